"""``Context``, and ``Socket``, the common base of all socket types."""

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

import zmq
import zmq.backend

from .link import Link, Part, head_of
from .settings import Settings

SETTINGS = frozenset(f.name for f in fields(Settings))
# pyzmq's sockets without its Python layer, which costs as much time as sending.
Bare: Any = zmq.backend.Socket
bare_send: Callable[..., Any] = Bare.send
bare_recv: Callable[..., Any] = Bare.recv
bare_get: Callable[..., Any] = Bare.get
SNDMORE, NOBLOCK = int(zmq.SNDMORE), int(zmq.NOBLOCK)


class LostReply(zmq.Again):
    """The reply to a request was received and cannot be decoded, and will not come again."""


class Outgoing:
    """The message being sent."""

    __slots__ = ("delimited", "framed", "frames", "link", "more", "parts", "raw_len")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.link: Link | None = None
        # Its parts may be framed; at least one was.
        self.frames = self.framed = False
        # More parts will follow those sent; one of those sent was empty.
        self.more = self.delimited = False
        self.parts: list[Part] = []
        self.raw_len = 0


class Socket(zmq.Socket[bytes]):
    """A ZeroMQ socket. Takes the keywords of ``Settings``; everything else is as in pyzmq."""

    _settings: Settings
    _out: Outgoing
    # The remaining parts of a message that was received as a whole.
    _inbox: deque[Part]

    # Whether the first part of a message is for this socket, not for the peer.
    _addressed = False

    def __new__(cls, *args: Any, **kwargs: Any) -> "Socket":
        if cls is not Socket:
            return super().__new__(cls)
        kind = args[1] if len(args) > 1 else kwargs.get("socket_type", 0)
        return super().__new__(class_of(kind) if not kwargs.get("shadow") else cls)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._settings = Settings(**{k: kwargs.pop(k) for k in SETTINGS & kwargs.keys()})
        self._out = Outgoing()
        self._inbox = deque()
        super().__init__(*args, **kwargs)

    @classmethod
    def shadow(cls, address: Any) -> Any:
        """A plain pyzmq socket, which sends and receives frames as they are."""
        return zmq.Socket.shadow(address)

    # Parts of a message that was received as a whole are returned one by one.

    def get(self, option: int) -> Any:
        if option == zmq.RCVMORE and self._inbox:
            return 1
        value = bare_get(self, option)
        if option == zmq.EVENTS and not self.closed:
            self._on_time()
            if self._waiting():
                value |= int(zmq.POLLIN)
        return value

    getsockopt = get

    def poll(self, timeout: int | None = None, flags: int = zmq.POLLIN) -> int:
        events = poll_events([(self, int(flags))], -1 if timeout is None or timeout < 0 else int(timeout))
        return events[0][1] if events else 0

    def _waiting(self) -> bool:
        """Whether ``recv`` can return something without the underlying socket."""
        return bool(self._inbox)

    def _due(self) -> float:
        """Time at which held-back messages are delivered even if nothing arrives, by
        ``time.monotonic``.
        """
        return math.inf

    def _on_time(self) -> None:
        """Delivers held-back messages that are due."""

    def recv_into(self, buffer: Any, /, *, nbytes: int = 0, flags: int = 0) -> int:
        part = self.recv(flags)
        room = memoryview(buffer).cast("B")
        if nbytes:
            room = room[:nbytes]
        n = min(len(part), len(room))
        room[:n] = part[:n]
        return len(part)

    def _give(self, parts: list[Part], copy: bool) -> Any:
        """Returns the first part, and keeps the others for the next calls."""
        self._inbox.extend(parts[1:])
        return given(parts[0], copy)

    def _rest(self, flags: int = 0) -> list[bytes]:
        """Receives the remaining parts of a message, which are already there."""
        parts = []
        while bare_get(self, zmq.RCVMORE):
            parts.append(bare_recv(self, 0, True, False))
        return parts

    def send(
        self,
        data: Any,
        flags: int = 0,
        copy: bool = True,
        track: bool = False,
        routing_id: int | None = None,
        group: str | None = None,
        *,
        private: bool = False,
    ) -> Any:
        return super().send(data, flags, copy, track, routing_id, group)

    def send_multipart(
        self,
        msg_parts: Sequence[Any],
        flags: int = 0,
        copy: bool = True,
        track: bool = False,
        *,
        private: bool = False,
        **kwargs: Any,
    ) -> Any:
        if not private:
            return super().send_multipart(msg_parts, flags, copy, track, **kwargs)
        for part in msg_parts[:-1]:
            self.send(part, flags | SNDMORE, copy, track, private=True)
        return self.send(msg_parts[-1], flags, copy, track, private=True)

    def _begin(self, out: Outgoing, part: Part, private: bool) -> None:
        """Called for the first part of a message: decides whether the message is framed."""

    def _suits(self, out: Outgoing, part: Part, more: bool) -> bool:
        """Whether this part of a framed message is framed."""
        return True

    def _send_part(self, part: Part, flags: int, copy: bool, track: bool, private: bool) -> Any:
        out = self._out
        if isinstance(part, str):
            return bare_send(self, part, flags, copy, track)
        more = bool(flags & SNDMORE)
        if not out.more:
            out.link, out.frames = None, False
            self._begin(out, part, private)
            if out.frames and part and type(part) is bytes and not (more or private or self._addressed):
                return self._send_one(out.link, part, flags, copy, track)
        link = out.link
        wire, encoded = part, False
        if link is not None:
            if out.frames and self._suits(out, part, more):
                part = part if type(part) is bytes else bytes(memoryview(part))
                encoded = True
            elif (out.more or not self._addressed) and head_of(part) == link.tag_out:
                # A plain part that begins like a frame must not be mistaken for one.
                encoded = private = True
            if encoded:
                wire = link.encode(part, not out.framed, private)
        try:
            result = bare_send(self, wire, flags, copy, track)
        except BaseException:
            if encoded and link is not None:
                # The history contains a part that was not sent.
                link.renew()
            raise
        if link is not None:
            out.framed = out.framed or encoded
            out.delimited = out.delimited or not len(part)
            if (out.framed or out.frames) and (out.more or not self._addressed):
                out.parts.append(part)
                out.raw_len += len(part)
        if more:
            out.more = True
        else:
            if link is not None and out.framed:
                link.sent(out.parts, out.raw_len)
            elif link is not None and link.skip > 0:
                link.skip -= 1
            out.clear()
        return result

    def _send_one(self, link: Any, part: bytes, flags: int, copy: bool, track: bool) -> Any:
        """Sends a message of one part, framed."""
        wire = link.encode(part, True)
        try:
            result = bare_send(self, wire, flags, copy, track)
        except BaseException:
            link.renew()
            raise
        link.sent([part], len(part))
        return result

    def _send_again(self, message: list[Part]) -> None:
        """Sends parts that are already in wire form. Does not wait for long, since it runs within a
        reception.
        """
        if self._out.more:
            # Nothing can be sent in the middle of a message of the application.
            return
        for i, part in enumerate(message):
            last = i == len(message) - 1
            try:
                bare_send(self, part, NOBLOCK | (0 if last else SNDMORE), True, False)
            except zmq.Again:
                if not super().poll(1000, zmq.POLLOUT):
                    return
                bare_send(self, part, NOBLOCK | (0 if last else SNDMORE), True, False)


class Context(zmq.Context[Socket]):
    """A context that makes sockets of this module."""

    _socket_class = Socket
    # Separate from the instance of `zmq.Context.instance()`.
    _instance = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not self._shadow:
            # REQ, DEALER and PUB use two more sockets each, which an application that counts its
            # own does not expect.
            self.set(zmq.MAX_SOCKETS, 3 * int(self.get(zmq.MAX_SOCKETS)))


def given(part: Part, copy: bool) -> Any:
    return part if copy else zmq.Frame(part)


def poll_events(sockets: Sequence[tuple[Any, int]], timeout_ms: int) -> list[tuple[Any, int]]:
    """As ``zmq.zmq_poll``; a negative timeout is no limit."""
    readable: dict[Any, Socket] = {}
    for s, flags in sockets:
        # A socket of asyncio has the one that receives.
        inner = getattr(s, "_shadow_sock", s) if isinstance(s, zmq.Socket) else s
        if flags & zmq.POLLIN and isinstance(inner, Socket):
            readable[s] = inner
    end = time.monotonic() + timeout_ms / 1000 if timeout_ms >= 0 else math.inf
    while True:
        for inner in readable.values():
            inner._on_time()
        waiting = [s for s, inner in readable.items() if inner._waiting()]
        until = min((end, *(inner._due() for inner in readable.values())))
        left_ms = 0 if waiting else -1 if until == math.inf else max(0, int((until - time.monotonic()) * 1000) + 1)
        events: list[tuple[Any, int]] = zmq.zmq_poll(list(sockets), 0 if timeout_ms == 0 else left_ms)
        if waiting:
            found = dict(events)
            for s in waiting:
                found[s] = found.get(s, 0) | int(zmq.POLLIN)
            return list(found.items())
        if events or time.monotonic() >= end:
            return events


# The class of each socket type. `kinds` fills it in, since the modules of the classes import this
# one.
CLASSES: dict[int, type[Socket]] = {}


def class_of(kind: int) -> type[Socket]:
    return CLASSES.get(int(kind), Socket)
