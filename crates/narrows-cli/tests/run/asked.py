"""Queries and settings of a connection while the thread that moves its bytes is busy: here it is
stopped. Run under `narrows run --supervisor=parent`. Prints "fine", or what was wrong."""

import ctypes
import os
import socket
import struct
import sys
import time

libc = ctypes.CDLL(None, use_errno=True)
SEIZE, INTERRUPT, DETACH, ALL = 0x4206, 0x4207, 17, 0x40000000


def trace(request, tid):
    if libc.ptrace(request, tid, None, None) != 0:
        number = ctypes.get_errno()
        print(f"skipped: ptrace: {os.strerror(number)}")
        sys.exit()


def pumps():
    tasks = f"/proc/{os.getppid()}/task"
    named = [(tid, open(f"{tasks}/{tid}/comm").read().strip()) for tid in os.listdir(tasks)]
    return [int(tid) for tid, name in named if name == "narrows-pump"]


def connected():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        c = socket.socket()
        c.setblocking(False)
        try:
            c.connect(listener.getsockname())
        except BlockingIOError:
            pass
        s, _ = listener.accept()
        peer = listener.getsockname()
    c.setblocking(True)
    c.sendall(b"there")
    assert s.recv(5, socket.MSG_WAITALL) == b"there"
    return c, s, peer


def fill(c):
    c.setblocking(False)
    sent = 0
    try:
        while True:
            sent += c.send(bytes(65536))
    except BlockingIOError:
        return sent


def main():
    c, s, peer = connected()
    stopped = pumps()
    assert stopped, "there are no pumps"
    for tid in stopped:
        trace(SEIZE, tid)
        trace(INTERRUPT, tid)
        os.waitpid(tid, ALL)
    sent = fill(c)
    begun = time.monotonic()
    for i in range(20):
        for x in (c, s):
            for level, option, value in [(socket.IPPROTO_TCP, socket.TCP_NODELAY, i % 2), (socket.SOL_SOCKET, socket.SO_KEEPALIVE, i % 2), (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 + i), (socket.IPPROTO_IP, socket.IP_TOS, 4 * (i % 5))]:
                x.setsockopt(level, option, value)
                assert x.getsockopt(level, option) == value, (i, option)
            linger = struct.pack("ii", 1, i)
            x.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            assert x.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8) == linger, i
            assert len(x.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)) > 100, i
        # Its socket is full, so only the supervisor knows whether it was ever connected.
        assert c.getpeername() == peer
    took = time.monotonic() - begun
    for tid in stopped:
        trace(DETACH, tid)
    linger = struct.pack("ii", 0, 0)
    c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    c.shutdown(socket.SHUT_WR)
    got = 0
    while part := s.recv(1 << 16):
        got += len(part)
    assert got == sent, (got, sent)
    assert took < 5, took
    print("fine")


main()
