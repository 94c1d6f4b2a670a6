"""``Poller`` and ``select`` as in pyzmq, but they also see messages that wait inside a socket."""

from typing import Any

import zmq

from .socket import poll_events


class Poller(zmq.Poller):
    """As ``zmq.Poller``, but also sees messages that wait inside a socket of this module."""

    def poll(self, timeout: int | float | None = None) -> list[tuple[Any, int]]:
        return poll_events(self.sockets, -1 if timeout is None or timeout < 0 else int(timeout))


def select(
    rlist: list[Any], wlist: list[Any], xlist: list[Any], timeout: float | None = None
) -> tuple[list[Any], list[Any], list[Any]]:
    """As ``zmq.select``, but also sees messages that wait inside a socket of this module."""
    flags: dict[Any, int] = {}
    for sockets, flag in ((rlist, zmq.POLLIN), (wlist, zmq.POLLOUT), (xlist, zmq.POLLERR)):
        for s in sockets:
            flags[s] = flags.get(s, 0) | int(flag)
    events = poll_events(list(flags.items()), -1 if timeout is None or timeout < 0 else int(timeout * 1000))
    ready = [[s for s, found in events if found & flag] for flag in (zmq.POLLIN, zmq.POLLOUT, zmq.POLLERR)]
    return ready[0], ready[1], ready[2]
