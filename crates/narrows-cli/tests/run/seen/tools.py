"""Tools of all checks."""

import array
import ctypes
import errno
import fcntl
import hashlib
import os
import random
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


def events(sock, ms=0, wanted=select.POLLIN | select.POLLOUT | select.POLLRDHUP):
    p = select.poll()
    p.register(sock, wanted)
    got = p.poll(ms)
    mask = got[0][1] if got else 0
    return "+".join(n for n, bit in NAMES if mask & bit) or "none"


def settled(look, seconds=2.0):
    """The result of `look` once it has been stable for a tenth of a second."""
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


def fill(sock):
    """Sends until nothing more is taken."""
    sock.setblocking(False)
    part = noise(1 << 16)
    while attempt(sock.send, part) != "EAGAIN" or select.select([], [sock], [], 0.3)[1]:
        pass
    sock.setblocking(True)


def refusal(sock):
    """Sends until that fails."""
    while isinstance(answer := attempt(sock.send, noise(1 << 16)), int):
        pass
    return answer


def digest(data):
    return hashlib.sha256(data).hexdigest()[:16]


def noise(n, seed=b"x"):
    return hashlib.shake_128(seed).digest(n)


def peer_of(sock, other):
    return attempt(sock.getpeername) == other.getsockname() and attempt(sock.getsockname) == other.getpeername()
