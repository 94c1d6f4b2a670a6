"""Both ends of connections that carry frames: `framed.py ROLE ARGUMENTS`. Servers print their port first."""

import hashlib
import os
import random
import signal
import socket
import sys
import threading

HOST = "127.0.0.1"


def data(seed, n):
    """Text that compresses, then data that does not."""
    mine = random.Random(seed)
    words = [mine.randbytes(mine.randint(2, 9)).hex().encode() for _ in range(500)]
    line = b" ".join(mine.choices(words, k=20000)) + b"\n"
    text = (line * (n // 2 // len(line) + 1))[: n // 2]
    return text + mine.randbytes(n - n // 2)


def listen():
    listener = socket.create_server((HOST, 0), backlog=1024)
    print(listener.getsockname()[1], flush=True)
    return listener


def read_all(sock):
    seen, n = hashlib.sha256(), 0
    while part := sock.recv(1 << 18):
        seen.update(part)
        n += len(part)
    return n, seen.hexdigest()


def both_ways(sock, mine, theirs, n):
    """Sends and receives at once; each direction ends on its own."""

    def send():
        sock.sendall(data(mine, n))
        sock.shutdown(socket.SHUT_WR)

    thread = threading.Thread(target=send)
    thread.start()
    got, want = read_all(sock), data(theirs, n)
    thread.join()
    sock.close()
    print("right" if got == (n, hashlib.sha256(want).hexdigest()) else f"wrong: {got[0]} of {n}", flush=True)


def exchange_server(n):
    both_ways(listen().accept()[0], "server", "client", int(n))


def exchange_client(port, n):
    both_ways(socket.create_connection((HOST, int(port))), "client", "server", int(n))


def greeting_server():
    """Speaks first, then answers each line; the client ends first."""
    sock = listen().accept()[0]
    sock.sendall(b"220 welcome\r\n")
    for line in sock.makefile("rb"):
        sock.sendall(line.upper())
    sock.sendall(b"221 bye\r\n")
    sock.close()


def greeting_client(port):
    sock = socket.create_connection((HOST, int(port)))
    lines = sock.makefile("rb")
    said = [lines.readline()]
    for i in range(100):
        sock.sendall(b"line %d\n" % i)
        said.append(lines.readline())
    sock.shutdown(socket.SHUT_WR)
    said.append(lines.read())
    right = [b"220 welcome\r\n", *(b"LINE %d\n" % i for i in range(100)), b"221 bye\r\n"]
    print("right" if said == right else said)


def sink(connections, pause):
    """Reads one connection after another, slowly at first; prints what came and how it ended."""
    listener = listen()
    for _ in range(int(connections)):
        sock = listener.accept()[0]
        seen, n, end = hashlib.sha256(), 0, "end"
        try:
            while part := sock.recv(100000):
                seen.update(part)
                n += len(part)
                if n < 500000:
                    threading.Event().wait(float(pause))
        except OSError as e:
            end = type(e).__name__
        print(n, seen.hexdigest(), end, flush=True)
        sock.close()


def drain(port):
    """Reads from a server for ever; prints when it began and how that ended."""
    sock, end = socket.create_connection((HOST, int(port))), "end"
    sock.recv(1)
    print("ready", flush=True)
    try:
        while sock.recv(1 << 18):
            pass
    except OSError as e:
        end = type(e).__name__
    print(end, flush=True)


def pour_server():
    sock = listen().accept()[0]
    block = data("pour", 1 << 20)
    while True:
        sock.sendall(block)


def killed(port, file):
    sock = socket.create_connection((HOST, int(port)))
    sock.sendall(open(file, "rb").read())
    os.kill(os.getpid(), signal.SIGKILL)


def pour(port):
    """Sends for ever; prints how that ended."""
    sock = socket.create_connection((HOST, int(port)))
    print("ready", flush=True)
    block = data("pour", 1 << 20)
    try:
        while True:
            sock.sendall(block)
    except OSError as e:
        print(type(e).__name__, flush=True)


def hello(port, first):
    """Sends first bytes, given in hex, and then text."""
    sock = socket.create_connection((HOST, int(port)))
    sock.sendall(bytes.fromhex(first))
    sock.sendall(b"all this would shrink, if anybody tried\n" * 50000)
    sock.shutdown(socket.SHUT_WR)
    sock.recv(1)


def urgent_server():
    sock = listen().accept()[0]
    print(read_all(sock)[0], flush=True)


def urgent_client(port):
    sock = socket.create_connection((HOST, int(port)))
    for _ in range(50):
        sock.sendall(b"x" * 999)
        while True:
            try:
                sock.send(b"!", socket.MSG_OOB)
                break
            except BlockingIOError:
                pass
    sock.close()


def ping_server():
    sock = listen().accept()[0]
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while part := sock.recv(1 << 16):
        sock.sendall(part)


def ping_client(port, size, rounds):
    """Median round trip in microseconds."""
    import time

    sock = socket.create_connection((HOST, int(port)))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    size, times = int(size), []
    block = data("ping", size)
    for _ in range(int(rounds)):
        begun = time.perf_counter_ns()
        sock.sendall(block)
        got = 0
        while got < size:
            got += len(sock.recv(1 << 16))
        times.append(time.perf_counter_ns() - begun)
    print(sorted(times)[len(times) // 2] / 1000)


def fill(sock, most):
    """Writes zeros and reads nothing, until no more is taken for a while; prints how much was. When
    stdin ends it writes the rest, and reads as much."""
    zeros, taken, most = bytes(1 << 18), 0, int(most)
    sock.settimeout(1)
    try:
        while taken < most:
            taken += sock.send(zeros[: most - taken])
    except TimeoutError:
        pass
    print(taken, flush=True)
    sys.stdin.read()
    sock.settimeout(None)
    thread = threading.Thread(target=lambda: (sock.sendall(bytes(most - taken)), sock.shutdown(socket.SHUT_WR)))
    thread.start()
    n = read_all(sock)[0]
    thread.join()
    print(n, flush=True)


def fill_server(most):
    fill(listen().accept()[0], most)


def fill_client(port, most):
    fill(socket.create_connection((HOST, int(port))), most)


def idle_server(connections):
    """Holds this many connections, each after some bytes were exchanged, until stdin ends."""
    listener = listen()
    held = []
    for _ in range(int(connections)):
        sock = listener.accept()[0]
        sock.sendall(sock.recv(1 << 16))
        held.append(sock)
    print("held", flush=True)
    sys.stdin.read()


def idle_client(port, connections):
    held = []
    block = data("idle", 20000)
    for _ in range(int(connections)):
        sock = socket.create_connection((HOST, int(port)))
        sock.sendall(block)
        sock.recv(1 << 16)
        held.append(sock)
    print("held", flush=True)
    sys.stdin.read()


globals()[sys.argv[1].replace("-", "_")](*sys.argv[2:])
