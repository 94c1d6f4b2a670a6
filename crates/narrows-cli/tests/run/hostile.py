"""Sends invalid requests to the supervisor of its own run, then checks that connections still work."""

import os
import socket
import struct

version, control, token, owner, flags, rules = os.environ["NARROWS_RUN"].split(":", 5)
name = b"\0narrows-run:" + bytes.fromhex(control)
token = bytes.fromhex(token)
LEN = 616


def line():
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    s.settimeout(2)
    s.connect(name)
    return s


def answer(message, fds=()):
    s = line()
    if fds:
        socket.send_fds(s, [message], fds)
    else:
        s.send(message)
    try:
        return len(s.recv(4096))
    except socket.timeout:
        return "nothing"


def request(kind, token=token, number=0, ident=7, length=0):
    head = token + struct.pack("<BBHiQQii", 1, kind, length, number, ident, 0, 0, 0)
    return head + bytes(LEN - len(head))


# Unknown requests, or without the token: no answer, and the line is closed.
for bad in (b"", b"x", bytes(LEN), os.urandom(LEN), request(3, bytes(16)), request(3)[:-1], request(3) + b"x", request(99), request(3, length=513)):
    if bad:
        assert answer(bad) == 0, bad[:24]
# With the token: an answer about a connection that does not exist.
assert answer(request(3)) == 520
# Descriptors that are not a pair of TCP and unix sockets, too many, too few: the supervisor, our
# parent, keeps none of them.
def kept():
    return len(os.listdir(f"/proc/{os.getppid()}/fd"))


tcp, unix = [socket.socket() for _ in range(2)], socket.socketpair()
before = kept()
for _ in range(20):
    for fds in ([tcp[0]], tcp, unix, [unix[0], tcp[0]], [tcp[0], unix[0], unix[1]]):
        assert answer(request(2, number=-1), [s.fileno() for s in fds]) == 0
# The supervisor's own work takes a few.
assert kept() < before + 20, (before, kept())
# Many silent lines.
silent = [line() for _ in range(200)]
with socket.create_server(("127.0.0.1", 0)) as l:
    c = socket.create_connection(l.getsockname())
    s, _ = l.accept()
    c.sendall(b"hello")
    assert s.recv(10) == b"hello"
    assert socket.socket(fileno=os.dup(c.fileno())).getpeername() == l.getsockname()
print("fine")
