"""A program that dropped root cannot set what only root may, and another user cannot set options on foreign connections."""

import os
import socket

import encodings.idna  # noqa: what socket imports later may not be readable

PRIVILEGED = [
    (socket.SOL_SOCKET, 36, 7),  # SO_MARK
    (socket.SOL_SOCKET, 33, 50 << 20),  # SO_RCVBUFFORCE
    (socket.SOL_SOCKET, socket.SO_PRIORITY, 7),
    (socket.IPPROTO_IP, 19, 1),  # IP_TRANSPARENT
]


def may(s, level, option, value):
    try:
        s.setsockopt(level, option, value)
        return True
    except PermissionError:
        return False


def connect():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return socket.create_connection(listener.getsockname()), listener.accept()[0]


timeout = (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 30_000)
roots = connect()
if os.geteuid() == 0:
    # In a container root may not set all of them either.
    with socket.socket() as plain:
        for option in PRIVILEGED:
            assert may(roots[0], *option) == may(plain, *option), option
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
    assert not may(roots[0], *timeout)
    assert may(roots[0], socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
own = connect()
for s in own:
    for option in PRIVILEGED:
        assert not may(s, *option), option
    assert may(s, *timeout)
    assert s.getsockopt(*timeout[:2]) == timeout[2]
for a, b in (roots, own):
    a.sendall(b"hello")
    assert b.recv(5) == b"hello"
print("fine")
