"""Common base of DEALER and ROUTER: any number of messages in flight, of any number of parts."""

import math
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import zmq

from .link import AGAIN, AGAIN_LAST, AS_IS, LACKS, Link, Part
from .socket import NOBLOCK, SNDMORE, Outgoing, Socket, bare_get, bare_recv, given


class Exchange(Socket):
    _ready: deque[list[Part]]
    # Links that wait for a lost message.
    _asking: list[Link]
    # Number of parts left before the body if all parts of the message are known, else ``None``. The
    # parts up to the first empty one are the envelope.
    _body: list[int | None]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._ready, self._asking, self._body = deque(), [], [None]
        super().__init__(*args, **kwargs)

    def _link_of(self, parts: list[Part]) -> tuple[Link | None, int]:
        """The link of this message (``None`` if plain), and how many first parts are not the
        peer's.
        """
        raise NotImplementedError

    def _came_framed(self, link: Link) -> None: ...

    def _came_plain(self, link: Link) -> None: ...

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
        return self._send_part(data, flags, copy, track, private)

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
        parts = list(msg_parts)
        for i, part in enumerate(parts):
            if not isinstance(part, (bytes, zmq.Frame, bytearray)):
                try:
                    memoryview(part)
                except TypeError:
                    raise TypeError(f"part {i} of the message has no buffer") from None
        first = 1 if self._addressed and not self._out.more else 0
        at = body_at(parts, first)
        whole = not self._out.more
        try:
            for i, part in enumerate(parts[:-1]):
                self._body[0] = at - i if whole else None
                self._send_part(part, flags | SNDMORE, copy, track, private)
            self._body[0] = at - len(parts) + 1 if whole else None
            return self._send_part(parts[-1], flags, copy, track, private)
        finally:
            self._body[0] = None

    def _suits(self, out: Outgoing, part: Part, more: bool) -> bool:
        """Whether to frame this part. Empty parts stay: they separate envelope and body. The
        envelope stays, since a REP socket returns it unread.
        """
        if not len(part) or self._addressed and not out.more:
            return False
        at = self._body[0]
        return (out.delimited or not more) if at is None else at <= 0

    def _waiting(self) -> bool:
        return bool(self._inbox or self._ready)

    def recv(self, flags: int = 0, copy: bool = True, track: bool = False) -> Any:
        if self._inbox:
            return given(self._inbox.popleft(), copy)
        return self._give(self._recv_message(flags), copy)

    def recv_multipart(self, flags: int = 0, copy: bool = True, track: bool = False) -> Any:
        if self._inbox:
            parts = list(self._inbox)
            self._inbox.clear()
        else:
            parts = self._recv_message(flags)
        return parts if copy else [zmq.Frame(p) for p in parts]

    def _recv_message(self, flags: int) -> list[Part]:
        end = None
        while not self._ready:
            if self._asking:
                end = self._wait(flags, end)
                if self._ready:
                    break
            parts = [bare_recv(self, flags, True, False)]
            if bare_get(self, zmq.RCVMORE):
                parts += self._rest()
            link, own = self._link_of(parts)
            if link is None:
                return parts
            tag = link.tag_in
            for part in parts[own:]:
                if part[:4] == tag:
                    break
            else:
                self._came_plain(link)
                if not link.hold(parts):
                    self._release(link)
                    self._ready.append(parts)
                continue
            self._framed(link, parts, own)
        return self._ready.popleft()

    def _framed(self, link: Link, parts: list[Part], own: int) -> None:
        came = link.decode(parts[own:])
        envelope = parts[: own + came.first]
        if came.parts is not None:
            self._came_framed(link)
            message = parts[:own] + came.parts
            if came.kind in (AGAIN, AGAIN_LAST):
                self._ready.append(message)
                if came.kind == AGAIN_LAST:
                    self._release(link)
            else:
                self._ready.append(message)
        elif came.kind == AS_IS and not link.asks:
            link.ask()
            self._asking.append(link)
            self._send_again([*envelope, link.control(LACKS, came.seq)])
        elif came.kind == LACKS:
            for seq, again, last in link.lacked(came.seq):
                self._send_again(parts[:own] + self._encode_again(link, seq, again, last))

    def _encode_again(self, link: Link, seq: int, parts: list[Part], last: bool) -> list[Part]:
        at, message, first = body_at(parts, 0), list(parts), True
        for i in range(at, len(parts)):
            if len(parts[i]):
                message[i] = link.encode_again(parts[i], seq, first, last)
                first = False
        return message

    def _due(self) -> float:
        return min((link.held_until for link in self._asking), default=math.inf)

    def _on_time(self) -> None:
        now = time.monotonic()
        for link in [x for x in self._asking if now >= x.held_until]:
            self._release(link)

    def _release(self, link: Link) -> None:
        if link.asks:
            self._ready.extend(link.release())
            self._asking.remove(link)

    def _wait(self, flags: int, end: float | None) -> float | None:
        """Waits for the next message, but delivers in time what waits for a requested one."""
        now = time.monotonic()
        if end is None and not flags & NOBLOCK:
            timeout = int(bare_get(self, zmq.RCVTIMEO))
            end = now + timeout / 1000 if timeout >= 0 else math.inf
        self._on_time()
        if self._ready or not self._asking or end is None:
            return end
        until = min(end, self._due())
        if not zmq.Socket.poll(self, max(0, int((until - now) * 1000) + 1)):
            if time.monotonic() >= end:
                raise zmq.Again()
            return self._wait(flags, end)
        return end


def body_at(parts: Sequence[Part], first: int) -> int:
    """Index where the body begins: after the first empty part, if there is one."""
    for i in range(first, len(parts)):
        if not len(parts[i]):
            return i + 1
    return first
