"""``proxy``, ``proxy_steerable``, ``monitored_queue``, ``device`` as in pyzmq, also between sockets
of this module.

libzmq moves parts in C, bypassing the wrapper, so it would pass on frames that only the wrapper can
read. If a socket of this module takes part, messages move through its ``recv_multipart`` and
``send_multipart`` instead: each hop is compressed on its own. Between plain sockets pyzmq's
function runs.
"""

import struct
import sys
from collections.abc import Callable
from typing import Any

import zmq
import zmq.backend
import zmq.devices

from .link import Part
from .socket import NOBLOCK, Socket, bare_get, poll_events

# Messages of one direction before it is the other's turn, as in libzmq's proxy.
BURST = 1000

# pyzmq's functions, which run between plain sockets and which `guard` replaces.
_plain_proxy: Callable[..., Any] = zmq.backend.proxy
_plain_proxy_steerable: Callable[..., Any] = zmq.backend.proxy_steerable
_plain_monitored_queue: Callable[..., Any] = zmq.devices.monitored_queue


def proxy(frontend: Any, backend: Any, capture: Any = None) -> Any:
    """Moves messages between two sockets, in both directions, until the context ends.

    ``capture``: a socket that gets a copy of every message.
    """
    if not any_wrapped(frontend, backend, capture):
        return _plain_proxy(frontend, backend, capture)
    return Mover(frontend, backend, told=capture).run()


def proxy_steerable(frontend: Any, backend: Any, capture: Any = None, control: Any = None) -> Any:
    """As ``proxy``; ``control``: a socket that receives ``PAUSE``, ``RESUME``, ``STATISTICS`` and ``TERMINATE``."""
    if not any_wrapped(frontend, backend, capture, control):
        return _plain_proxy_steerable(frontend, backend, capture, control)
    return Mover(frontend, backend, told=capture, control=control).run()


def monitored_queue(
    in_socket: Any, out_socket: Any, mon_socket: Any, in_prefix: bytes = b"in", out_prefix: bytes = b"out"
) -> Any:
    """As ``proxy``; ``mon_socket`` gets a copy of every message, with a prefix that tells its
    direction.
    """
    if not any_wrapped(in_socket, out_socket, mon_socket):
        return _plain_monitored_queue(in_socket, out_socket, mon_socket, in_prefix, out_prefix)
    prefixes = ([in_prefix], [out_prefix])
    return Mover(in_socket, out_socket, told=mon_socket, prefixes=prefixes, swaps=True).run()


def device(device_type: Any, frontend: Any, backend: Any) -> Any:
    """Deprecated alias for ``proxy``."""
    return proxy(frontend, backend)


def any_wrapped(*sockets: Any) -> bool:
    return any(isinstance(s, Socket) for s in sockets)


class Way:
    """One direction of a proxy."""

    __slots__ = ("blocked", "from_bytes", "from_messages", "prefix", "source", "target", "to_bytes", "to_messages")

    def __init__(self, source: Any, target: Any, prefix: list[Part]) -> None:
        self.source, self.target, self.prefix = source, target, prefix
        # The target accepts nothing now, so wait for it instead of the source.
        self.blocked = False
        self.from_messages = self.from_bytes = self.to_messages = self.to_bytes = 0


class Mover:
    """A proxy that runs in the calling thread."""

    def __init__(
        self,
        frontend: Any,
        backend: Any,
        *,
        told: Any = None,
        control: Any = None,
        prefixes: tuple[list[Part], list[Part]] = ([], []),
        swaps: bool = False,
    ) -> None:
        self.told, self.control = told, control
        self.ways = [Way(frontend, backend, prefixes[0])]
        if frontend is not backend:
            self.ways.append(Way(backend, frontend, prefixes[1]))
        # Between two ROUTERs the second part of a message is the routing id of the target.
        self.swaps = swaps and frontend.type == backend.type == zmq.ROUTER
        self.paused = self.ended = False

    def run(self) -> int:
        while not self.ended:
            events = self.wait()
            if self.control is not None and events.get(self.control, 0) & zmq.POLLIN:
                self.command()
                continue
            for way in self.ways:
                if way.blocked:
                    way.blocked = not events.get(way.target, 0) & zmq.POLLOUT
                elif events.get(way.source, 0) & zmq.POLLIN:
                    self.move(way)
        return 0

    def wait(self) -> dict[Any, int]:
        wanted: dict[Any, int] = {}
        if self.control is not None:
            wanted[self.control] = int(zmq.POLLIN)
        for way in () if self.paused else self.ways:
            socket, flag = (way.target, zmq.POLLOUT) if way.blocked else (way.source, zmq.POLLIN)
            wanted[socket] = wanted.get(socket, 0) | int(flag)
        return dict(poll_events(list(wanted.items()), -1))

    def move(self, way: Way) -> None:
        for _ in range(BURST):
            if not bare_get(way.target, zmq.EVENTS) & zmq.POLLOUT:
                way.blocked = True
                return
            try:
                message = way.source.recv_multipart(NOBLOCK)
            except zmq.Again:
                return
            length = sum(len(part) for part in message)
            way.from_messages += 1
            way.from_bytes += length
            if self.swaps:
                message[:2] = message[1::-1]
            if self.told is not None:
                self.told.send_multipart(way.prefix + message)
            way.target.send_multipart(message)
            way.to_messages += 1
            way.to_bytes += length

    def command(self) -> None:
        control = self.control
        command = control.recv_multipart()[0]
        if command == b"STATISTICS":
            control.send_multipart([struct.pack("=Q", n) for n in self.statistics()])
            return
        if command in (b"PAUSE", b"RESUME"):
            self.paused = command == b"PAUSE"
        elif command == b"TERMINATE":
            self.ended = True
        if control.type == zmq.REP:
            control.send(b"")

    def statistics(self) -> list[int]:
        """Statistics as libzmq reports them: messages and bytes from and to the frontend, then from
        and to the backend.
        """
        there, back = self.ways[0], self.ways[-1]
        numbers = []
        for comes, goes in ((there, back), (back, there)):
            numbers += [comes.from_messages, comes.from_bytes, goes.to_messages, goes.to_bytes]
        return numbers


def guard() -> None:
    """Replaces pyzmq's own functions, which its devices use too, so that they can move messages of
    wrapped sockets.

    Names that an application imported from ``zmq`` before this module stay libzmq's.
    """
    ours = {"proxy": proxy, "proxy_steerable": proxy_steerable, "monitored_queue": monitored_queue}
    plain = (_plain_proxy, _plain_proxy_steerable, _plain_monitored_queue)
    for name, module in list(sys.modules.items()):
        if name == "zmq" or name.startswith("zmq."):
            for attribute, mine in ours.items():
                if any(vars(module).get(attribute) is p for p in plain):
                    setattr(module, attribute, mine)
