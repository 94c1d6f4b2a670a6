"""Transports of httpx that ask for the content coding ``narrows`` and decode it.

Whatever the server sends otherwise reaches httpx as it is::

    with httpx.Client(transport=narrows.httpx.Transport()) as client:
        response = client.get("https://example.net/")

``narrows.asgi`` is the server's half.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

from ._extras import missing

try:
    import httpx
except ModuleNotFoundError as error:
    raise missing(error, __name__, "http", "httpx>=0.27") from None

from ._errors import NarrowsError
from ._narrows import Decompressor

__all__ = ["AsyncTransport", "Transport"]

# Most decoded bytes at a time: a few received ones may decode to very many.
_PIECE = 64 * 1024


class Transport(httpx.BaseTransport):
    """Asks and decodes for another transport, by default ``httpx.HTTPTransport``.

    The response has neither ``Content-Encoding`` nor ``Content-Length`` of what was sent. A body that
    is damaged or cut raises ``httpx.DecodingError``.
    """

    def __init__(self, transport: httpx.BaseTransport | None = None) -> None:
        self._transport = transport or httpx.HTTPTransport()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        _ask(request)
        response = self._transport.handle_request(request)
        if not _is_encoded(response):
            return response
        assert isinstance(response.stream, httpx.SyncByteStream)
        return _decoded(response, _Stream(response.stream, _Decoding(request, response)))

    def close(self) -> None:
        self._transport.close()


class AsyncTransport(httpx.AsyncBaseTransport):
    """As ``Transport``, for ``httpx.AsyncClient``; by default over ``httpx.AsyncHTTPTransport``."""

    def __init__(self, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self._transport = transport or httpx.AsyncHTTPTransport()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        _ask(request)
        response = await self._transport.handle_async_request(request)
        if not _is_encoded(response):
            return response
        assert isinstance(response.stream, httpx.AsyncByteStream)
        return _decoded(response, _AsyncStream(response.stream, _Decoding(request, response)))

    async def aclose(self) -> None:
        await self._transport.aclose()


class _Decoding:
    """Decodes one body."""

    def __init__(self, request: httpx.Request, response: httpx.Response) -> None:
        self._request = request
        # Such responses say how a body would be encoded.
        self._may_be_empty = request.method == "HEAD" or response.status_code in (204, 304)
        self._decompressor = Decompressor()

    def pieces(self, data: bytes) -> Iterator[bytes]:
        decompressor = self._decompressor
        if decompressor.eof and data:
            raise self._error("there are bytes behind the end of the body")
        try:
            while data or not decompressor.needs_input and not decompressor.eof:
                raw, data = decompressor.decompress(data, _PIECE), b""
                if raw:
                    yield raw
        except NarrowsError as error:
            raise self._error(str(error)) from error
        if decompressor.unused_data:
            raise self._error("there are bytes behind the end of the body")

    def end(self) -> None:
        decompressor = self._decompressor
        empty = self._may_be_empty and not decompressor.stats()["wire_bytes"]
        if not decompressor.eof and not empty:
            raise self._error("the body ends before the end of its stream")

    def _error(self, text: str) -> httpx.DecodingError:
        return httpx.DecodingError(text, request=self._request)


class _Stream(httpx.SyncByteStream):
    def __init__(self, stream: httpx.SyncByteStream, decoding: _Decoding) -> None:
        self._stream, self._decoding = stream, decoding

    def __iter__(self) -> Iterator[bytes]:
        for data in self._stream:
            yield from self._decoding.pieces(data)
        self._decoding.end()

    def close(self) -> None:
        self._stream.close()


class _AsyncStream(httpx.AsyncByteStream):
    def __init__(self, stream: httpx.AsyncByteStream, decoding: _Decoding) -> None:
        self._stream, self._decoding = stream, decoding

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for data in self._stream:
            for raw in self._decoding.pieces(data):
                yield raw
        self._decoding.end()

    async def aclose(self) -> None:
        await self._stream.aclose()


def _ask(request: httpx.Request) -> None:
    asked = request.headers.get("accept-encoding", "")
    # Who wants the bytes as they are gets them.
    if "narrows" not in asked.lower() and asked.strip().lower() != "identity":
        request.headers["accept-encoding"] = f"narrows, {asked}" if asked else "narrows"


def _is_encoded(response: httpx.Response) -> bool:
    # The last coding was applied last.
    codings: str = response.headers.get("content-encoding", "")
    return codings.split(",")[-1].strip().lower() == "narrows"


def _decoded(response: httpx.Response, stream: Any) -> httpx.Response:
    headers = response.headers.copy()
    others = [coding.strip() for coding in headers.pop("content-encoding").split(",")][:-1]
    if others:
        headers["content-encoding"] = ", ".join(others)
    headers.pop("content-length", None)
    return httpx.Response(response.status_code, headers=headers, stream=stream, extensions=response.extensions)
