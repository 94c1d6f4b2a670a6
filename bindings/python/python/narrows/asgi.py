"""ASGI middleware: the content coding ``narrows`` for clients that ask for it.

A client asks by ``Accept-Encoding: narrows``, as ``narrows.httpx`` does; all others get the
application's responses as they are. Works with Starlette, FastAPI and every other ASGI application::

    app = narrows.asgi.NarrowsMiddleware(app)
    app.add_middleware(narrows.asgi.NarrowsMiddleware, level=9)      # Starlette
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from ._narrows import Compressor, compress

__all__ = ["NarrowsMiddleware"]

_Message = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[_Message]]
_Send = Callable[[_Message], Awaitable[None]]
_App = Callable[[_Message, _Receive, _Send], Awaitable[None]]
_Headers = list[tuple[bytes, bytes]]

# Shorter bodies save less than the headers of one packet.
_SIZE_MIN = 500
# Longer pieces take more than a millisecond to encode: not on the event loop.
_INLINE = 256 * 1024
# Ways to send a file past the middleware.
_PAST = ("http.response.pathsend", "http.response.zerocopysend")
# Headers about bytes that are no more those that are sent.
_OF_BYTES = (b"content-length", b"accept-ranges", b"content-digest", b"repr-digest", b"digest", b"content-md5")


class NarrowsMiddleware:
    """Encodes the bodies of responses, whole or as they are streamed: what the application has sent
    can be decoded at once.

    - ``policy``, ``level``: as for ``narrows.compress``.
    - ``minimum_size``: shorter bodies that are sent whole stay as they are.

    Responses with a ``Content-Encoding``, a range or ``no-transform`` stay as they are, and so do
    bodies that would not get shorter. An ``ETag`` becomes a weak one. Where the headers do not tell
    which of these a response is, they wait for the first piece of its body; those of
    ``text/event-stream`` and of clients that do not ask never wait.

    The length of a response that has a secret beside what the request said tells of the secret: such
    responses need ``Cache-Control: no-transform``.
    """

    def __init__(
        self, app: _App, *, policy: str = "fixed:zstd", level: int | None = None, minimum_size: int = _SIZE_MIN
    ) -> None:
        # Raises the error that these are.
        Compressor(policy, level=level)
        self.app = app
        self._policy, self._level, self._minimum_size = policy, level, minimum_size

    async def __call__(self, scope: _Message, receive: _Receive, send: _Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        asked = asks(scope["headers"])
        if asked and scope.get("extensions"):
            scope = {**scope, "extensions": {k: v for k, v in scope["extensions"].items() if k not in _PAST}}
        response = _Response(send, asked, scope["method"] == "HEAD", self._policy, self._level, self._minimum_size)
        await self.app(scope, receive, response.send)


class _Response:
    def __init__(
        self, send: _Send, asked: bool, is_head: bool, policy: str, level: int | None, minimum_size: int
    ) -> None:
        self._send, self._asked, self._is_head = send, asked, is_head
        self._policy, self._level, self._minimum_size = policy, level, minimum_size
        # Waits for the body, which decides.
        self._start: _Message | None = None
        self._compressor: Compressor | None = None
        # Bytes that the application is still to send, if it said how many.
        self._left: int | None = None

    async def send(self, message: _Message) -> None:
        kind = message["type"]
        if kind == "http.response.start":
            await self._begin(message)
        elif kind == "http.response.body":
            await self._body(message)
        else:
            start, self._start = self._start, None
            if start is not None:
                await self._send(start)
            await self._send(message)

    async def _begin(self, start: _Message) -> None:
        if not may_be_encoded(start):
            await self._send(start)
            return
        headers: _Headers = [(k.lower(), v) for k, v in start.get("headers", ())]
        start = {**start, "headers": headers}
        # Caches keep one response for each kind of client.
        vary(headers)
        if self._asked and start["status"] == 304:
            # It is about a response that the client has, encoded or not.
            undecided(headers)
        elif self._asked and is_live(headers):
            self._encode(headers)
        elif self._asked:
            self._start = start
            return
        await self._send(start)

    def _encode(self, headers: _Headers) -> None:
        self._compressor = Compressor(self._policy, level=self._level)
        self._left = None if self._is_head else stated(headers)
        encoded(headers, None)

    async def _body(self, message: _Message) -> None:
        body: bytes = message.get("body", b"")
        more: bool = message.get("more_body", False)
        start, self._start = self._start, None
        if start is not None:
            headers = start["headers"]
            if more:
                self._encode(headers)
            elif len(body) >= self._minimum_size and stated(headers) in (None, len(body)):
                wire = await _run(len(body), lambda: compress(body, self._policy, level=self._level, threads=1))
                if len(wire) < len(body):
                    encoded(headers, len(wire))
                    message = {**message, "body": wire}
            elif self._is_head and not body:
                length = stated(headers)
                if length is None or length >= self._minimum_size:
                    # The application has left out the body that decides.
                    undecided(headers)
            await self._send(start)
        if (compressor := self._compressor) is not None:
            if self._left is not None:
                self._left -= len(body)
                if self._left < 0 or self._left > 0 and not more:
                    # As servers do, which have nothing to compare with any more.
                    raise RuntimeError("the body of the response is not as long as its Content-Length")
            mode = Compressor.FLUSH_BLOCK if more else Compressor.FLUSH_FRAME
            wire = await _run(len(body), lambda: compressor.compress(body, mode))
            message = {**message, "body": wire}
        await self._send(message)


def asks(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether ``Accept-Encoding`` names the coding. A ``*`` does not: it is no promise to know it."""
    for name, value in headers:
        if name.lower() != b"accept-encoding":
            continue
        for item in value.decode("latin-1").lower().split(","):
            coding, *parameters = (part.strip() for part in item.split(";"))
            if coding == "narrows":
                return not any(q.replace(" ", "").rstrip("0").rstrip(".") in ("q=", "q=0") for q in parameters)
    return False


def may_be_encoded(start: _Message) -> bool:
    if start["status"] < 200 or start["status"] in (204, 206):
        return False
    for name, value in start.get("headers", ()):
        name = name.lower()
        if name in (b"content-encoding", b"content-range"):
            return False
        if name == b"cache-control" and b"no-transform" in value.lower():
            return False
    return True


def stated(headers: _Headers) -> int | None:
    """The length that the application says the body has."""
    found = [value for name, value in headers if name == b"content-length"]
    return int(found[0]) if found and found[0].isdigit() else None


def vary(headers: _Headers) -> None:
    found = [value for name, value in headers if name == b"vary"]
    known = {item.strip().lower() for value in found for item in value.split(b",")}
    if not known & {b"*", b"accept-encoding"}:
        headers.append((b"vary", b"Accept-Encoding"))


def is_live(headers: _Headers) -> bool:
    """Whether the client waits for each event, and for the headers before the first one."""
    return any(k == b"content-type" and v.lower().startswith(b"text/event-stream") for k, v in headers)


def undecided(headers: _Headers) -> None:
    """Leaves what holds for the encoded body and for the one as it is."""
    kept = []
    for name, value in headers:
        # The bytes that these are about may not be those that a GET gets.
        if name in _OF_BYTES:
            continue
        if name == b"etag" and not value.startswith(b"W/"):
            value = b"W/" + value
        kept.append((name, value))
    headers[:] = kept


def encoded(headers: _Headers, length: int | None) -> None:
    """Describes the encoded body."""
    undecided(headers)
    headers.append((b"content-encoding", b"narrows"))
    # A message with both would be cut at two places.
    if length is not None and all(name != b"transfer-encoding" for name, _ in headers):
        headers.append((b"content-length", b"%d" % length))


async def _run(length: int, work: Callable[[], bytes]) -> bytes:
    if length <= _INLINE:
        return work()
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        # Another kind of event loop.
        return work()
    return await loop.run_in_executor(None, work)
