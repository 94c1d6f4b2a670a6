"""``Poller`` and ``select`` as in pyzmq, but they also see messages that wait inside a socket."""

import math
import time
from collections.abc import Sequence
from typing import Any

import zmq

from .socket import Socket


def poll_events(sockets: Sequence[tuple[Any, int]], timeout_ms: int) -> list[tuple[Any, int]]:
    """As ``zmq.zmq_poll``; a negative timeout is no limit."""
    readable = [s for s, flags in sockets if flags & zmq.POLLIN and isinstance(s, Socket)]
    end = time.monotonic() + timeout_ms / 1000 if timeout_ms >= 0 else math.inf
    while True:
        for s in readable:
            s._on_time()
        waiting = [s for s in readable if s._waiting()]
        until = min((end, *(s._due() for s in readable)))
        left_ms = 0 if waiting else -1 if until == math.inf else max(0, int((until - time.monotonic()) * 1000) + 1)
        events: list[tuple[Any, int]] = zmq.zmq_poll(list(sockets), 0 if timeout_ms == 0 else left_ms)
        if waiting:
            found = dict(events)
            for s in waiting:
                found[s] = found.get(s, 0) | int(zmq.POLLIN)
            return list(found.items())
        if events or time.monotonic() >= end:
            return events


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
