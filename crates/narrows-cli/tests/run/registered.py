"""Remembered epoll registrations are forgotten once their socket is gone, plain or handed over.

Run under `narrows run --except 127.0.0.2`. Uses more sockets than there are places to remember them."""

import os
import select
import socket

COUNT = 520
near, excluded = (socket.create_server((host, 0), backlog=4000) for host in ("127.0.0.1", "127.0.0.2"))


def is_handed_over(s):
    """Whether it is not a TCP socket."""
    inode = os.readlink(f"/proc/self/fd/{s.fileno()}")[len("socket:[") : -1]
    with open("/proc/self/net/tcp") as f:
        return all(line.split()[9] != inode for line in f)


def register(count):
    """Sockets registered in an epoll set before they are connected."""
    sockets = [socket.socket() for _ in range(count)]
    for s in sockets:
        watch.register(s, select.EPOLLIN)
    return sockets


def reused():
    """A closed socket's number is reused: the registration of the new socket counts."""
    old = socket.socket()
    number = old.fileno()
    watch.register(old, select.EPOLLIN)
    old.close()
    new = socket.socket()
    assert new.fileno() == number
    watch.register(new, select.EPOLLIN | select.EPOLLOUT)
    new.connect(near.getsockname())
    assert is_handed_over(new)
    assert watch.poll(20) == [(number, select.EPOLLOUT)]


def connected(sockets, address, handed_over):
    for s in sockets:
        s.connect(address)
    assert [is_handed_over(s) for s in sockets[::100]] == [handed_over] * len(sockets[::100])
    (one,) = register(1)
    one.connect(near.getsockname())
    assert is_handed_over(one)


def within(act):
    """Runs `act` in its own process, with its own numbers and places."""
    child = os.fork()
    if child == 0:
        act()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


watch = select.epoll()
within(reused)
within(lambda: connected(register(COUNT), excluded.getsockname(), False))
within(lambda: connected(register(COUNT), near.getsockname(), True))
# Another process holds them too.
shared = register(COUNT)
within(lambda: connected(shared, near.getsockname(), False))
print("fine")
