"""What a program can see of TCP sockets, one line for each check.

The test runs it plain and under `narrows run --loopback` and compares the lines. The client has the address 127.0.0.2 and
the server 127.0.0.1, so that scope rules can leave either side plain. Nothing printed depends on ports, times or sizes of
buffers.
"""

import array
import ctypes
import errno
import fcntl
import hashlib
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time

CLIENT, SERVER = "127.0.0.2", "127.0.0.1"
libc = ctypes.CDLL(None, use_errno=True)
checks = []


def check(function):
    checks.append(function)
    return function


def name(number):
    return errno.errorcode.get(number, str(number)) if number else "0"


def attempt(function, *args):
    """The result, or the name of the error."""
    try:
        return function(*args)
    except socket.timeout:
        return "timeout"
    except OSError as error:
        return name(error.errno)


def listener(address=SERVER, family=socket.AF_INET):
    s = socket.socket(family)
    s.bind((address, 0))
    s.listen(16)
    return s


def client():
    s = socket.socket()
    s.bind((CLIENT, 0))
    return s


def pair(prepare=None):
    with listener() as l:
        c = client()
        if prepare:
            prepare(c)
        c.connect(l.getsockname())
        s, _ = l.accept()
    return c, s


def refused_port():
    s = socket.socket()
    s.bind((SERVER, 0))
    port = s.getsockname()
    s.close()
    return port


NAMES = [("IN", select.POLLIN), ("PRI", select.POLLPRI), ("OUT", select.POLLOUT), ("ERR", select.POLLERR), ("HUP", select.POLLHUP), ("RDHUP", select.POLLRDHUP)]


def events(sock, ms=0):
    p = select.poll()
    p.register(sock, select.POLLIN | select.POLLOUT | select.POLLRDHUP)
    got = p.poll(ms)
    mask = got[0][1] if got else 0
    return "+".join(n for n, bit in NAMES if mask & bit) or "none"


def settled(look, seconds=2.0):
    """What `look` says when it has said the same for a tenth of a second."""
    end, last, since = time.time() + seconds, look(), time.time()
    while time.time() < end and time.time() - since < 0.1:
        now = look()
        if now != last:
            last, since = now, time.time()
        time.sleep(0.005)
    return last


def mask(sock):
    return settled(lambda: events(sock))


def wait_for(look, value, seconds=5.0):
    end = time.time() + seconds
    while look() != value and time.time() < end:
        time.sleep(0.002)
    return look()


def all_of(sock, n):
    data = b""
    while len(data) < n:
        part = sock.recv(min(1 << 16, n - len(data)))
        if not part:
            break
        data += part
    return data


def int_ioctl(sock, request):
    value = array.array("i", [0])
    fcntl.ioctl(sock.fileno(), request, value)
    return value[0]


def reset(sock):
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def digest(data):
    return hashlib.sha256(data).hexdigest()[:16]


def noise(n, seed=b"x"):
    return hashlib.shake_128(seed).digest(n)


def peer_of(sock, other):
    return attempt(sock.getpeername) == other.getsockname() and attempt(sock.getsockname) == other.getpeername()


# --- data ---


@check
def echo():
    c, s = pair()
    c.sendall(b"hello")
    a = s.recv(100)
    s.sendall(a.upper())
    return a, c.recv(100)


@check
def peek():
    c, s = pair()
    c.sendall(b"hello")
    return s.recv(3, socket.MSG_PEEK), s.recv(100)


@check
def waitall():
    c, s = pair()
    threading.Timer(0.05, lambda: c.sendall(b"def")).start()
    c.sendall(b"abc")
    return s.recv(6, socket.MSG_WAITALL)


@check
def more():
    c, s = pair()
    c.send(b"abc", socket.MSG_MORE)
    c.send(b"def")
    return all_of(s, 6)


@check
def fionread():
    c, s = pair()
    c.sendall(b"x" * 1000)
    return wait_for(lambda: int_ioctl(s, termios.FIONREAD), 1000)


@check
def out_queue():
    c, s = pair()
    c.sendall(b"x" * 100000)
    all_of(s, 100000)
    return wait_for(lambda: int_ioctl(c, termios.TIOCOUTQ), 0)


@check
def out_queue_of_idle():
    c, s = pair()
    return int_ioctl(c, termios.TIOCOUTQ), int_ioctl(s, termios.TIOCOUTQ)


@check
def both_ways_at_once():
    c, s = pair()
    up, down, got = noise(6 << 20, b"up"), noise(6 << 20, b"down"), {}
    threads = [
        threading.Thread(target=c.sendall, args=(up,)),
        threading.Thread(target=s.sendall, args=(down,)),
        threading.Thread(target=lambda: got.update(s=all_of(s, len(up)))),
    ]
    [t.start() for t in threads]
    back = all_of(c, len(down))
    [t.join() for t in threads]
    return digest(got["s"]) == digest(up), digest(back) == digest(down)


@check
def sizes_of_all_kinds():
    c, s = pair()
    sizes = [1, 2, 3, 100, 4094, 4095, 4096, 4097, 8191, 8192, 65535, 65536, 65537, 1, 200000, 5]
    data = noise(sum(sizes))

    def write():
        at = 0
        for n in sizes:
            c.sendall(data[at : at + n])
            at += n
        c.shutdown(socket.SHUT_WR)

    t = threading.Thread(target=write)
    t.start()
    got = all_of(s, len(data) + 1)
    t.join()
    return got == data


@check
def full_then_drained():
    c, s = pair()
    c.setblocking(False)
    data, sent = noise(1 << 16), 0
    while True:
        # A send may be short at any length, so the pattern follows the offset.
        n = attempt(c.send, data[sent % 65536 :])
        if n == "EAGAIN":
            # Buffers beyond this socket may take more a little later.
            if events(c, 200) == "none":
                break
            continue
        sent += n
    full = events(c)
    got = bytearray()
    while len(got) < sent:
        got += s.recv(1 << 16)
    right = bytes(got) == (data * (sent // 65536 + 1))[:sent]
    return full, right, wait_for(lambda: "OUT" in events(c), True)


@check
def sendfile():
    c, s = pair()
    with tempfile.TemporaryFile() as f:
        data = noise(3 << 20)
        f.write(data)
        f.flush()

        def write():
            at = 0
            while at < len(data):
                at += os.sendfile(c.fileno(), f.fileno(), at, len(data) - at)

        t = threading.Thread(target=write)
        t.start()
        got = all_of(s, len(data))
        t.join()
    return digest(got) == digest(data)


@check
def splice():
    c, s = pair()
    r, w = os.pipe()
    data = noise(1 << 20)

    def write():
        at = 0
        while at < len(data):
            n = os.write(w, data[at : at + 65536])
            while n:
                moved = os.splice(r, c.fileno(), n)
                n -= moved
                at += moved

    t = threading.Thread(target=write)
    t.start()
    got = all_of(s, len(data))
    t.join()
    return digest(got) == digest(data)


@check
def splice_from_the_socket():
    c, s = pair()
    r, w = os.pipe()
    c.sendall(b"hello")
    n = os.splice(s.fileno(), w, 100)
    return n, os.read(r, 100)


@check
def sent_to_an_address():
    c, s = pair()
    return attempt(c.sendto, b"abc", s.getsockname()), s.recv(10)


@check
def message_with_an_address():
    c, s = pair()
    return attempt(c.sendmsg, [b"ab", b"c"], [], 0, s.getsockname()), s.recv(10)


@check
def received_from():
    c, s = pair()
    c.sendall(b"abc")
    return s.recvfrom(10)


@check
def truncated():
    c, s = pair()
    c.sendall(b"abcdef")
    wait_for(lambda: int_ioctl(s, termios.FIONREAD), 6)
    gone = libc.recv(s.fileno(), None, 4, 0x20)  # MSG_TRUNC
    return gone, s.recv(10)


@check
def truncated_and_left():
    c, s = pair()
    c.sendall(b"abcdef")
    wait_for(lambda: int_ioctl(s, termios.FIONREAD), 6)
    left = [libc.recv(s.fileno(), None, n, 0x20 | 0x2) for n in (4, 2000000)]  # MSG_TRUNC, MSG_PEEK
    return left, s.recv(10)


@check
def error_queue():
    c, s = pair()
    return attempt(c.recvmsg, 10, 100, socket.MSG_ERRQUEUE | socket.MSG_DONTWAIT)


@check
def urgent_inline():
    c, s = pair()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE, 1)
    c.sendall(b"abc")
    n = c.send(b"deF", socket.MSG_OOB)
    c.sendall(b"ghi")
    return n, all_of(s, 9)


@check
def urgent_loses_nothing_else():
    c, s = pair()
    for _ in range(3):
        c.sendall(b"abc")
        c.send(b"!", socket.MSG_OOB)
        c.sendall(b"ghi")
        time.sleep(0.05)
    c.shutdown(socket.SHUT_WR)
    return all_of(s, 100).replace(b"!", b"")


@check
def urgent_out_of_line():
    c, s = pair()
    c.sendall(b"abc")
    c.send(b"!", socket.MSG_OOB)
    wait_for(lambda: attempt(s.recv, 1, socket.MSG_OOB | socket.MSG_PEEK | socket.MSG_DONTWAIT), b"!")
    return attempt(s.recv, 1, socket.MSG_OOB), all_of(s, 3)


# --- names and options ---


@check
def names():
    c, s = pair()
    return peer_of(c, s), c.getsockname()[0], c.getpeername()[0], s.getsockname()[0], s.getpeername()[0]


@check
def names_of_ipv6():
    try:
        l = listener("::1", socket.AF_INET6)
    except OSError:
        return "no IPv6 here"
    c = socket.socket(socket.AF_INET6)
    c.connect(l.getsockname())
    s, a = l.accept()
    return peer_of(c, s), len(c.getpeername()), a == c.getsockname(), s.getsockname()[0]


@check
def names_of_mapped():
    try:
        l = listener("::", socket.AF_INET6)
    except OSError:
        return "no IPv6 here"
    c = client()
    c.connect((SERVER, l.getsockname()[1]))
    s, a = l.accept()
    return a[0], s.getpeername()[0], s.getsockname()[0], c.getpeername()[0]


@check
def names_in_a_short_buffer():
    c, s = pair()
    buffer, size = ctypes.create_string_buffer(b"zzzzzzzzzzzzzzzzzzzz"), ctypes.c_uint(6)
    r = libc.getpeername(c.fileno(), buffer, ctypes.byref(size))
    return r, size.value, buffer.raw[:2], buffer.raw[6:10]


@check
def pointers_to_nowhere():
    c, s = pair()
    nowhere, size, room = ctypes.c_void_p(8), ctypes.c_uint(28), ctypes.create_string_buffer(28)
    calls = [
        (libc.getsockname, room, nowhere),
        (libc.getsockname, nowhere, ctypes.byref(size)),
        (libc.getpeername, room, nowhere),
        (libc.getpeername, nowhere, ctypes.byref(size)),
        (libc.getsockopt, socket.IPPROTO_TCP, socket.TCP_NODELAY, nowhere, ctypes.byref(size)),
        (libc.getsockopt, socket.IPPROTO_TCP, socket.TCP_NODELAY, room, nowhere),
        (libc.getsockopt, socket.SOL_SOCKET, socket.SO_SNDBUF, nowhere, ctypes.byref(size)),
        (libc.setsockopt, socket.IPPROTO_TCP, socket.TCP_NODELAY, nowhere, 4),
        (libc.setsockopt, socket.SOL_SOCKET, socket.SO_KEEPALIVE, nowhere, 4),
    ]
    out = []
    for function, *args in calls:
        size.value = 28
        out.append((function(c.fileno(), *args), name(ctypes.get_errno())))
    return out


@check
def accept_without_address():
    with listener() as l:
        c = client()
        c.connect(l.getsockname())
        s = socket.socket(fileno=libc.accept(l.fileno(), None, None))
        c.sendall(b"abc")
        return s.recv(3), peer_of(c, s)


@check
def types():
    c, s = pair()
    options = [socket.SO_TYPE, socket.SO_DOMAIN, socket.SO_PROTOCOL, socket.SO_ACCEPTCONN, socket.SO_ERROR]
    return [[x.getsockopt(socket.SOL_SOCKET, o) for o in options] for x in (c, s)]


@check
def options_of_tcp():
    c, s = pair()
    out = []
    for x in (c, s):
        for option, value in [(socket.TCP_NODELAY, 1), (socket.TCP_KEEPIDLE, 77), (socket.TCP_KEEPINTVL, 7), (socket.TCP_KEEPCNT, 5), (socket.TCP_USER_TIMEOUT, 12345), (socket.TCP_CORK, 1), (socket.TCP_CORK, 0), (socket.TCP_QUICKACK, 1), (socket.TCP_NOTSENT_LOWAT, 1 << 17)]:
            x.setsockopt(socket.IPPROTO_TCP, option, value)
            out.append(x.getsockopt(socket.IPPROTO_TCP, option))
    return out


@check
def options_of_sockets():
    c, s = pair()
    out = []
    for option, value in [(socket.SO_KEEPALIVE, 1), (socket.SO_REUSEADDR, 1), (socket.SO_PRIORITY, 3), (socket.SO_DONTROUTE, 1), (socket.SO_OOBINLINE, 1)]:
        c.setsockopt(socket.SOL_SOCKET, option, value)
        out.append(c.getsockopt(socket.SOL_SOCKET, option))
    c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 9))
    return out, c.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8)


@check
def buffers():
    c, s = pair()
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        c.setsockopt(socket.SOL_SOCKET, option, 50000)
    sizes = c.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF), c.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
    data = noise(1 << 20)
    t = threading.Thread(target=c.sendall, args=(data,))
    t.start()
    got = all_of(s, len(data))
    t.join()
    return sizes, got == data


@check
def options_of_ip():
    c, s = pair()
    c.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, 0x10)
    return c.getsockopt(socket.IPPROTO_IP, socket.IP_TOS), c.getsockopt(socket.IPPROTO_IP, socket.IP_TTL) > 0


@check
def options_that_do_not_exist():
    c, s = pair()
    return attempt(c.getsockopt, socket.IPPROTO_TCP, 999), attempt(c.setsockopt, socket.IPPROTO_TCP, 999, 1), attempt(c.setsockopt, socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 0)


@check
def tcp_info():
    c, s = pair()
    info = c.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    return info[0], len(info) > 100


@check
def congestion():
    c, s = pair()
    before = c.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0")
    c.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
    return len(before) > 0, c.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0")


@check
def segment():
    c, s = pair()
    return c.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG) > 500


@check
def layered_protocol_is_refused():
    c, s = pair()
    return attempt(c.setsockopt, socket.IPPROTO_TCP, 31, b"none") in ("ENOENT", "ENOPROTOOPT")


@check
def options_before_connect():
    def prepare(c):
        c.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        c.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, 8)
        c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    c, s = pair(prepare)
    return c.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE), c.getsockopt(socket.IPPROTO_IP, socket.IP_TOS), c.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


# --- what belongs to the descriptor ---


@check
def flags_are_kept():
    def prepare(c):
        fcntl.fcntl(c, fcntl.F_SETOWN, os.getpid())
        c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 3)

    c, s = pair(prepare)
    c2, s2 = pair(lambda c: c.set_inheritable(True))
    return (
        fcntl.fcntl(c, fcntl.F_GETFD),
        fcntl.fcntl(c2, fcntl.F_GETFD),
        fcntl.fcntl(c, fcntl.F_GETFL) & os.O_NONBLOCK,
        fcntl.fcntl(c, fcntl.F_GETOWN) == os.getpid(),
        c.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT),
    )


@check
def accept_flags():
    out = []
    for flags in (0, socket.SOCK_NONBLOCK, socket.SOCK_CLOEXEC):
        with listener() as l:
            c = client()
            c.connect(l.getsockname())
            fd = libc.accept4(l.fileno(), None, None, flags)
            out.append((fcntl.fcntl(fd, fcntl.F_GETFD), fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_NONBLOCK))
            os.close(fd)
    return out


def with_timeout(option):
    def prepare(c):
        c.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", 0, 50000))

    return prepare


@check
def receive_timeout():
    c, s = pair(with_timeout(socket.SO_RCVTIMEO))
    return attempt(c.recv, 1), c.getsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, 16)[8:] != bytes(8)


@check
def send_timeout():
    c, s = pair(with_timeout(socket.SO_SNDTIMEO))
    for _ in range(1000):
        r = attempt(c.send, bytes(1 << 16))
        if isinstance(r, str):
            return r
    return "never"


@check
def signal_when_readable():
    got = []
    before = signal.signal(signal.SIGIO, lambda *_: got.append(1))

    def prepare(c):
        fcntl.fcntl(c, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(c, fcntl.F_SETFL, os.O_ASYNC)

    c, s = pair(prepare)
    del got[:]
    s.sendall(b"x")
    wait_for(lambda: bool(got), True)
    c.close()
    s.close()
    signal.signal(signal.SIGIO, before)
    return bool(got)


# --- ends ---


@check
def idle_events():
    c, s = pair()
    return mask(c), mask(s)


@check
def half_close():
    c, s = pair()
    c.shutdown(socket.SHUT_WR)
    a = mask(s), mask(c)
    got = s.recv(1)
    s.sendall(b"late")
    return a, got, c.recv(10), attempt(c.send, b"x")


@check
def close_events():
    c, s = pair()
    c.sendall(b"last")
    c.close()
    return mask(s), s.recv(10), s.recv(10), mask(s)


@check
def both_halves():
    c, s = pair()
    c.shutdown(socket.SHUT_WR)
    s.recv(1)
    s.shutdown(socket.SHUT_WR)
    end = c.recv(1)
    return end, mask(c), mask(s), c.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR), attempt(c.recv, 1), attempt(s.recv, 1)


@check
def shutdown_for_reading():
    c, s = pair()
    c.shutdown(socket.SHUT_RD)
    a = attempt(c.recv, 1)
    c.sendall(b"abc")
    return a, s.recv(10)


@check
def shutdown_both_ways():
    c, s = pair()
    c.sendall(b"abc")
    c.shutdown(socket.SHUT_RDWR)
    return all_of(s, 10), attempt(c.recv, 1), attempt(c.send, b"x"), mask(s)


@check
def reset_events():
    c, s = pair()
    reset(c)
    return mask(s), name(s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))


@check
def reset_while_reading():
    c, s = pair()
    threading.Timer(0.05, reset, (c,)).start()
    return attempt(s.recv, 10), attempt(s.recv, 10), attempt(s.send, b"x")


@check
def data_before_a_reset():
    c, s = pair()
    c.sendall(b"abc")
    wait_for(lambda: int_ioctl(s, termios.FIONREAD), 3)
    reset(c)
    mask(s)
    return attempt(s.recv, 10), attempt(s.recv, 10)


@check
def close_with_bytes_unread():
    c, s = pair()
    s.sendall(b"abc")
    wait_for(lambda: int_ioctl(c, termios.FIONREAD), 3)
    c.close()
    return mask(s), attempt(s.recv, 10)


@check
def write_after_the_peer_closed():
    c, s = pair()
    s.close()
    mask(c)
    out = [attempt(c.send, b"x")]
    time.sleep(0.2)
    return out + [attempt(c.send, b"x"), attempt(c.send, b"x"), attempt(c.recv, 1)]


@check
def peer_after_a_reset():
    c, s = pair()
    reset(c)
    mask(s)
    return attempt(s.getpeername)


@check
def ends_are_told_apart():
    wrong = []
    for i in range(60):
        c, s = pair()
        data = noise(i * 977 + 1)
        t = threading.Thread(target=lambda: (c.sendall(data), c.close() if i % 2 else reset(c)))
        t.start()
        got, end = 0, None
        while end is None:
            part = attempt(s.recv, 65536)
            end = part if isinstance(part, str) or not part else None
            got += len(part) if end is None else 0
        t.join()
        # A reset may take what was not read along; an end may not.
        if end != (b"" if i % 2 else "ECONNRESET") or (i % 2 and got != len(data)):
            wrong.append((i, got, end))
    return wrong


@check
def close_while_another_thread_reads():
    c, s = pair()
    got = []
    t = threading.Thread(target=lambda: got.append(s.recv(10)))
    t.start()
    time.sleep(0.05)
    c.close()
    t.join()
    return got


@check
def lingering_close():
    c, s = pair()
    c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 5))
    c.sendall(b"x" * 200000)
    t = threading.Thread(target=c.close)
    t.start()
    got = all_of(s, 300000)
    t.join()
    return len(got)


# --- connecting ---


@check
def refused():
    c = client()
    return attempt(c.connect, refused_port())


@check
def refused_without_blocking():
    c = client()
    c.setblocking(False)
    first = attempt(c.connect, refused_port())
    # Whether loopback is refused within the call or after it is the kernel's affair.
    told = first if first != "EINPROGRESS" else (mask(c), name(c.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)))[1]
    return told, name(c.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)), attempt(c.getpeername)


@check
def connect_again_after_refusal():
    c = client()
    c.setblocking(False)
    attempt(c.connect, refused_port())
    mask(c)
    c.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    with listener() as l:
        # The kernel ends the failed attempt with the first of these.
        second = attempt(c.connect, l.getsockname())
        third = attempt(c.connect, l.getsockname())
        s, _ = l.accept()
        wait_for(lambda: "OUT" in events(c), True)
        c.send(b"abc")
        return second, third, s.recv(10), c.getsockname()[0]


@check
def without_blocking():
    with listener() as l:
        c = client()
        c.setblocking(False)
        first = attempt(c.connect, l.getsockname())
        wait_for(lambda: "OUT" in events(c), True)
        error = c.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        s, _ = l.accept()
        c.send(b"abc")
        return first, mask(c), error, s.recv(10), peer_of(c, s)


@check
def connect_three_times():
    with listener() as l:
        c = client()
        c.setblocking(False)
        first = attempt(c.connect, l.getsockname())
        wait_for(lambda: "OUT" in events(c), True)
        return first, attempt(c.connect, l.getsockname()), attempt(c.connect, l.getsockname())


@check
def connect_a_connected_socket():
    c, s = pair()
    return attempt(c.connect, (SERVER, 9))


@check
def python_timeout_connect():
    with listener() as l:
        c = client()
        c.settimeout(5)
        c.connect(l.getsockname())
        s, _ = l.accept()
        s.sendall(b"abc")
        return c.recv(10)


@check
def selected():
    with listener() as l:
        c = client()
        c.setblocking(False)
        attempt(c.connect, l.getsockname())
        r, w, x = select.select([], [c], [], 5)
        return len(w)


def epoll_before_connect(flags):
    with listener() as l, select.epoll() as e:
        c = client()
        c.setblocking(False)
        e.register(c, flags)
        e.modify(c, flags | select.EPOLLOUT)
        attempt(c.connect, l.getsockname())
        s, _ = l.accept()
        first = e.poll(5)
        e.modify(c, select.EPOLLIN)
        s.sendall(b"abc")
        second = e.poll(5)
        e.unregister(c)
        return [(fd == c.fileno(), m) for fd, m in first], [(fd == c.fileno(), m) for fd, m in second], c.recv(9)


@check
def registered_before_connect():
    return epoll_before_connect(select.EPOLLIN)


@check
def registered_edge_triggered_before_connect():
    return epoll_before_connect(select.EPOLLIN | select.EPOLLET)


@check
def registered_before_blocking_connect():
    with listener() as l, select.epoll() as e:
        c = client()
        e.register(c, select.EPOLLIN)
        c.connect(l.getsockname())
        s, _ = l.accept()
        s.sendall(b"abc")
        return [(fd == c.fileno(), m) for fd, m in e.poll(5)], c.recv(9)


@check
def duplicated_before_connect():
    out = []
    for twin in (lambda c: os.dup(c.fileno()), lambda c: os.dup2(c.fileno(), 200), lambda c: fcntl.fcntl(c, fcntl.F_DUPFD, 150)):
        with listener() as l:
            c = client()
            other = twin(c)
            c.connect(l.getsockname())
            s, _ = l.accept()
            os.write(other, b"abc")
            c.sendall(b"def")
            out.append(all_of(s, 6))
            c.close()
            still = events(s)
            os.close(other)
            out.append((still, s.recv(1)))
    return out


def stuck():
    """A connection under way: the server's queue is full, so it takes no notice."""
    l = socket.socket()
    l.bind((SERVER, 0))
    l.listen(0)
    others = [client() for _ in range(4)]
    for c in others:
        c.setblocking(False)
        attempt(c.connect, l.getsockname())
    time.sleep(0.1)
    c = client()
    c.setblocking(False)
    return l, c, others, attempt(c.connect, l.getsockname())


@check
def under_way():
    l, c, others, first = stuck()
    before = events(c, 100), attempt(c.send, b"x"), attempt(c.recv, 1), attempt(c.getpeername), attempt(c.connect, l.getsockname())
    l.settimeout(5)
    served = []
    while True:
        s, a = l.accept()
        served.append(s)
        if a == c.getsockname():
            break
    wait_for(lambda: "OUT" in events(c), True)
    c.send(b"abc")
    return first, before, s.recv(10), c.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR), peer_of(c, s)


@check
def interrupted_and_waited_for():
    l, c, others, first = stuck()
    c.close()
    c = client()
    address = struct.pack("=HH4s8x", socket.AF_INET, socket.htons(l.getsockname()[1]), socket.inet_aton(SERVER))
    connect = lambda: (libc.connect(c.fileno(), address, 16), name(ctypes.get_errno()))
    out = []
    c.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("qq", 0, 100000))
    out += [connect(), connect()]
    c.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("qq", 0, 0))
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    me = threading.get_ident()
    threading.Timer(0.2, lambda: signal.pthread_kill(me, signal.SIGUSR1)).start()
    out.append(connect())
    signal.signal(signal.SIGUSR1, before)
    served = []

    def serve():
        while True:
            s, a = l.accept()
            served.append(s)
            if a == c.getsockname():
                return

    l.settimeout(8)
    server = threading.Timer(0.2, serve)
    server.start()
    out.append(connect()[0])
    server.join()
    c.send(b"abc")
    return out, served[-1].recv(10), connect()


@check
def dissolved():
    c, s = pair()
    nothing = struct.pack("=H14x", socket.AF_UNSPEC)
    first = libc.connect(c.fileno(), nothing, 16), attempt(c.getpeername)
    # Which TCP keeps, and `narrows` does not.
    attempt(c.bind, (CLIENT, 0))
    with listener() as l:
        c.connect(l.getsockname())
        t, _ = l.accept()
        c.sendall(b"abc")
        return first, t.recv(10)


@check
def closed_under_way():
    l, c, others, first = stuck()
    name = c.getsockname()
    c.close()
    [o.close() for o in others]
    l.settimeout(1.5)
    seen = []
    while True:
        got = attempt(l.accept)
        if got == "timeout":
            return name in seen
        seen.append(got[1])


@check
def bound_port_is_kept():
    c = client()
    port = c.getsockname()
    with listener() as l:
        c.connect(l.getsockname())
        s, a = l.accept()
        return c.getsockname() == port, a == port


# --- processes ---


def in_child(work):
    r, w = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(w, repr(work()).encode())
        finally:
            os._exit(0)
    os.close(w)
    os.waitpid(pid, 0)
    with os.fdopen(r, "rb") as f:
        return f.read()


@check
def forked_after_connect():
    c, s = pair()
    got = in_child(lambda: (c.send(b"abc"), peer_of(c, s)))
    c.close()
    return got, s.recv(10), s.recv(10)


@check
def forked_holds_the_socket():
    c, s = pair()
    r, w = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.read(r, 1)
        os._exit(0)
    c.close()
    before = settled(lambda: events(s))
    os.write(w, b"x")
    os.waitpid(pid, 0)
    return before, mask(s)


@check
def connected_in_a_child():
    with listener() as l:
        c = client()
        got = in_child(lambda: (c.connect(l.getsockname()), c.send(b"abc")))
        s, _ = l.accept()
        c.close()
        return got, s.recv(10), s.recv(10)


@check
def made_in_a_child():
    with listener() as l:

        def work():
            c = client()
            c.connect(l.getsockname())
            return c.send(b"abc")

        got = in_child(work)
        s, _ = l.accept()
        return got, s.recv(10), s.recv(10)


@check
def made_before_a_fork_connected_after():
    with listener() as l:
        c = client()
        in_child(lambda: 0)
        c.connect(l.getsockname())
        s, _ = l.accept()
        c.sendall(b"abc")
        return s.recv(10), peer_of(c, s)


INHERITS = "import socket,sys; s=socket.socket(fileno=int(sys.argv[1])); s.sendall(repr((s.family.name, s.getpeername()[0])).encode())"


@check
def inherited_across_exec():
    c, s = pair()
    c.set_inheritable(True)
    subprocess.run([sys.executable, "-c", INHERITS, str(c.fileno())], pass_fds=[c.fileno()], check=True)
    c.close()
    return all_of(s, 1000)


@check
def sent_to_a_process():
    a, b = socket.socketpair()
    c, s = pair()
    socket.send_fds(a, [b"x"], [c.fileno()])
    c.close()
    _, fds, _, _ = socket.recv_fds(b, 1, 1)
    other = socket.socket(fileno=fds[0])
    other.sendall(b"abc")
    return s.recv(10), peer_of(other, s)


@check
def started_without_fork():
    c, s = pair()
    pid = os.posix_spawn("/bin/true", ["true"], os.environ)
    os.waitpid(pid, 0)
    c.sendall(b"abc")
    return s.recv(10)


@check
def all_descriptors_closed():
    def work():
        os.closerange(3, 1000)
        with listener() as l:
            c = client()
            c.connect(l.getsockname())
            s, _ = l.accept()
            c.sendall(b"abc")
            return s.recv(10), peer_of(c, s)

    r, w = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.dup2(w, 0)
        os.write(0, repr(work()).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    return os.read(r, 1000)


@check
def errno_is_left_alone():
    with listener() as l:
        c = client()
        buffer = struct.pack("=HH4s8x", socket.AF_INET, socket.htons(l.getsockname()[1]), socket.inet_aton(SERVER))
        ctypes.set_errno(77)
        r = libc.connect(c.fileno(), buffer, 16)
        return r, ctypes.get_errno()


def late(*_):
    raise TimeoutError


def main():
    chosen = sys.argv[1:]
    signal.signal(signal.SIGALRM, late)
    for function in checks:
        if chosen and function.__name__ not in chosen:
            continue
        signal.alarm(20)
        try:
            result = function()
        except BaseException as error:
            result = f"{type(error).__name__}: {error}"
        signal.alarm(0)
        print(f"{function.__name__}: {result}", flush=True)


main()
