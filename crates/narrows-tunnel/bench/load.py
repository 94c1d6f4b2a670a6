"""Servers and clients of the bench, each a command of its own, so that it can run on either host.

    load.py serve                                 the servers, on all addresses
    load.py bulk HOST PORT FILE BYTES FLOWS       sends; seconds until all was received, as JSON
    load.py echo HOST PORT COUNT                  100 bytes to and fro; microseconds, as JSON
    load.py connect HOST PORT SECONDS WORKERS     connects, exchanges 16 bytes, closes; their number, as JSON
    load.py hold HOST PORT COUNT BYTES            opens connections, each with an exchange; then for each line of
                                                  stdin one more exchange on all, and the number that answered
    load.py redis|http|... see jobs.py
"""

from __future__ import annotations

import json
import mmap
import os
import resource
import select
import signal
import socket
import struct
import sys
import threading
import time

SINK, ECHO, ONCE, HOLD = 9001, 9002, 9003, 9004
BIG = 1 << 20
ONCE_LEN = 16
ECHO_LEN = 100
# Time without any progress after which a client gives up.
PATIENCE_S = 60


def connect(host: str, port: int) -> socket.socket:
    made = socket.create_connection((host, port), PATIENCE_S)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


def exactly(conn: socket.socket, n: int) -> bytes:
    """Receives n bytes, or fewer before an end."""
    parts = []
    while n > 0:
        part = conn.recv(n)
        if not part:
            break
        parts.append(part)
        n -= len(part)
    return b"".join(parts)


def many_files() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


# --- servers ---


def sink(conn: socket.socket) -> None:
    """Receives as many bytes as the first eight say, and answers one."""
    buffer = bytearray(BIG)
    while len(head := exactly(conn, 8)) == 8:
        (left,) = struct.unpack("<Q", head)
        while left > 0:
            n = conn.recv_into(buffer, min(left, BIG))
            if n == 0:
                return
            left -= n
        conn.sendall(b"k")


def echo(conn: socket.socket) -> None:
    while data := conn.recv(4096):
        conn.sendall(data)


def listener(port: int) -> socket.socket:
    return socket.create_server(("0.0.0.0", port), backlog=8192, reuse_port=False)


def forking(port: int, serve) -> None:
    listening = listener(port)
    while True:
        conn, _ = listening.accept()
        conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if os.fork() == 0:
            try:
                listening.close()
                serve(conn)
            except OSError:
                pass
            os._exit(0)
        conn.close()


def once(port: int) -> None:
    """Answers one message of each connection and closes, in a few processes."""
    listening = listener(port)
    for _ in range(3):
        if os.fork() == 0:
            break
    while True:
        conn, _ = listening.accept()
        try:
            conn.sendall(exactly(conn, ONCE_LEN))
        except OSError:
            pass
        conn.close()


def hold(port: int) -> None:
    """Echoes on thousands of connections."""
    many_files()
    listening = listener(port)
    listening.setblocking(False)
    poll = select.epoll()
    poll.register(listening, select.EPOLLIN)
    conns: dict[int, socket.socket] = {}
    while True:
        for fd, _ in poll.poll():
            if fd == listening.fileno():
                try:
                    conn, _ = listening.accept()
                except BlockingIOError:
                    continue
                poll.register(conn, select.EPOLLIN)
                conns[conn.fileno()] = conn
                continue
            try:
                data = conns[fd].recv(65536)
                if data:
                    conns[fd].sendall(data)
                    continue
            except OSError:
                pass
            poll.unregister(fd)
            conns.pop(fd).close()


def serve() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: os.killpg(0, signal.SIGKILL))
    os.setpgid(0, 0)
    for run in (lambda: forking(SINK, sink), lambda: forking(ECHO, echo), lambda: once(ONCE), lambda: hold(HOLD)):
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            run()
    while True:
        signal.pause()


# --- clients ---


def bulk(host: str, port: int, path: str, length: int, flows: int) -> None:
    """Each flow sends its own part of the file, again from its start where that is too short."""
    with open(path, "rb") as file:
        data = memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
    go_read, go_write = os.pipe()
    answers = []
    for i in range(flows):
        read, write = os.pipe()
        answers.append(read)
        if os.fork() == 0:
            seconds = -1.0
            try:
                conn = connect(host, port)
                # The way of the connection is there.
                conn.sendall(struct.pack("<Q", 0))
                exactly(conn, 1)
                os.write(write, b"r")
                os.read(go_read, 1)
                begun = time.monotonic()
                conn.sendall(struct.pack("<Q", length))
                at, left = i * (len(data) // flows), length
                while left > 0:
                    part = data[at : at + min(left, BIG)]
                    conn.sendall(part)
                    left -= len(part)
                    at = (at + len(part)) % len(data)
                conn.settimeout(PATIENCE_S)
                if exactly(conn, 1) == b"k":
                    seconds = time.monotonic() - begun
            except OSError as e:
                print(f"bulk: {e}", file=sys.stderr)
            os.write(write, struct.pack("<d", seconds))
            os._exit(0)
        os.close(write)
    for read in answers:
        os.read(read, 1)
    time.sleep(0.05)
    os.write(go_write, b"g" * flows)
    seconds = [struct.unpack("<d", os.read(read, 8))[0] for read in answers]
    if min(seconds) < 0:
        raise SystemExit("a flow failed")
    print(json.dumps({"s": max(seconds), "each": seconds, "bytes": length * flows}))


def messages(count: int) -> list[bytes]:
    """As of a monitor: a line of JSON whose numbers change."""
    lines = []
    for i in range(count):
        line = f'{{"id":{i},"host":"db-{i % 7}","cpu":{(i * 7919) % 1000 / 10},"mem":{(i * 104729) % 65536},"ok":true,"t":{1732500000 + i}'
        lines.append(line.ljust(ECHO_LEN - 1, " ")[: ECHO_LEN - 1].encode() + b"}")
    return lines


def echo_client(host: str, port: int, count: int) -> None:
    conn = connect(host, port)
    times = []
    for line in messages(count):
        begun = time.perf_counter_ns()
        conn.sendall(line)
        got = exactly(conn, ECHO_LEN)
        times.append(time.perf_counter_ns() - begun)
        if got != line:
            raise SystemExit("the echo is another")
    times = sorted(times[count // 10 :])
    at = lambda share: times[int(share * (len(times) - 1))] / 1000
    print(json.dumps({"p50": at(0.5), "p99": at(0.99), "count": len(times)}))


def connect_client(host: str, port: int, seconds: float, workers: int) -> None:
    until = time.monotonic() + seconds
    pipes = []
    for _ in range(workers):
        read, write = os.pipe()
        pipes.append(read)
        if os.fork() == 0:
            done = failed = 0
            while time.monotonic() < until:
                try:
                    with connect(host, port) as conn:
                        conn.sendall(b"x" * ONCE_LEN)
                        if exactly(conn, ONCE_LEN + 1) == b"x" * ONCE_LEN:
                            done += 1
                        else:
                            failed += 1
                except OSError:
                    failed += 1
            os.write(write, struct.pack("<QQ", done, failed))
            os._exit(0)
        os.close(write)
    counts = [struct.unpack("<QQ", os.read(read, 16)) for read in pipes]
    done, failed = (sum(c[i] for c in counts) for i in (0, 1))
    print(json.dumps({"per_s": done / seconds, "failed": failed}))


def hold_client(host: str, port: int, count: int, length: int) -> None:
    """Opens connections in batches, so that the listener's queue is never long."""
    many_files()
    conns: list[socket.socket] = []
    data = os.urandom(length)

    def exchange(some: list[socket.socket]) -> dict[str, int]:
        result = {"alive": 0, "ended": 0, "reset": 0, "silent": 0}
        open_ = []
        for conn in some:
            try:
                conn.sendall(data)
                open_.append(conn)
            except OSError:
                result["reset"] += 1
        for conn in open_:
            try:
                got = exactly(conn, length)
                result["alive" if got == data else "ended"] += 1
            except TimeoutError:
                result["silent"] += 1
            except OSError:
                result["reset"] += 1
        return result

    while len(conns) < count:
        batch = []
        for _ in range(min(64, count - len(conns))):
            conn = connect(host, port)
            conn.settimeout(20)
            batch.append(conn)
        answered = exchange(batch)
        if answered["alive"] < len(batch):
            raise SystemExit(f"connections fail: {answered} after {len(conns)}")
        conns += batch
    print(json.dumps({"open": len(conns)}), flush=True)
    for _ in sys.stdin:
        print(json.dumps(exchange(conns)), flush=True)


def main() -> None:
    command, *rest = sys.argv[1:]
    if command == "serve":
        serve()
        return
    host, port, *rest = rest
    if command == "bulk":
        bulk(host, int(port), rest[0], int(rest[1]), int(rest[2]))
    elif command == "echo":
        echo_client(host, int(port), int(rest[0]))
    elif command == "connect":
        connect_client(host, int(port), float(rest[0]), int(rest[1]))
    elif command == "hold":
        hold_client(host, int(port), int(rest[0]), int(rest[1]))
    else:
        raise SystemExit(__doc__)


if __name__ == "__main__":
    main()
