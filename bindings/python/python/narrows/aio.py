"""asyncio streams of which each direction is a stream of Narrows, compressed where it pays.

``open_connection`` and ``start_server`` take the arguments of asyncio's and return asyncio's own
``StreamReader`` and ``StreamWriter``, over a transport that encodes and decodes::

    reader, writer = await narrows.aio.open_connection("192.0.2.1", 5555)
    writer.write(b"...")
    await writer.drain()
    writer.write_eof()
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()

The peer does the same, or is a ``narrows.wrap_socket`` of mode ``rw``. Blocks that take long run on
the threads of the event loop's executor, all others on the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any

from ._errors import CorruptError, MisuseError, TruncatedError
from ._narrows import Decompressor, Flow

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["open_connection", "open_unix_connection", "start_server", "start_unix_server", "stats"]

# As in asyncio.
_LIMIT = 64 * 1024
# Bytes written and not yet with the system, above which `drain` waits, and down to which. Enough for blocks
# of a good length; asyncio's 64 KiB are not.
_HIGH = 512 * 1024
_LOW = 128 * 1024
# Most decoded bytes that are passed on at a time.
_PIECE = 64 * 1024
# Received bytes that wait to be decoded, above which no more are read.
_WIRE_MAX = 256 * 1024
# More wire bytes are not decoded on the event loop: that takes up to a millisecond.
_INLINE = 16 * 1024

_Connected = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None] | None]


class _Layer(asyncio.Protocol):
    """Between the transport of a connection and the protocol of the application."""

    def __init__(self, app: asyncio.Protocol, policy: str, loop: asyncio.AbstractEventLoop) -> None:
        self.app = app
        self.loop = loop
        self.transport: _Transport
        self._policy = policy
        self._failure: Exception | None = None
        self._wire: deque[bytes] = deque()
        self._wire_len = 0
        self._decoder = Decompressor()
        # Wire bytes that the decoder was given since it last needed some.
        self._inside = 0
        self._decoding = False
        self._ended = self._hung_up = False
        # The connection is closed, and the application does not have all that came by it.
        self._gone = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._raw = transport
        # A session of TLS that is being closed forgets it.
        self._is_tls = transport.get_extra_info("sslcontext") is not None
        self.transport = _Transport(self, transport, _flow(transport, self._policy))
        # With anything in its buffer, no more is handed over: what waits here can still be encoded in
        # another way.
        transport.set_write_buffer_limits(high=1, low=0)
        self.app.connection_made(self.transport)

    def connection_lost(self, exc: Exception | None) -> None:
        gone = exc is None and not self._ended and not self.transport.is_closing()
        self.transport.lost()
        if gone:
            self._gone = self._hung_up = True
            self.decode()
        else:
            self._finish(self._failure or exc)

    def _finish(self, error: Exception | None) -> None:
        self._gone = False
        self._wire.clear()
        self.app.connection_lost(error)

    def give_up(self) -> None:
        """The application closes a connection that is closed already."""
        if self._gone:
            self._gone = False
            self.loop.call_soon(self._finish, None)

    @property
    def _stopped(self) -> bool:
        return self.transport.is_closing() and not self._gone

    def pause_writing(self) -> None:
        self.transport.hold(True)

    def resume_writing(self) -> None:
        self.transport.hold(False)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            # Read all the same: the system answers unread bytes by a reset, which would overtake what is
            # under way to the peer.
            return
        self._wire.append(data)
        self._wire_len += len(data)
        if self._wire_len > _WIRE_MAX:
            self._raw.pause_reading()
        self.decode()

    def eof_received(self) -> bool:
        self._hung_up = True
        self.decode()
        # What is still to be sent can be, except by TLS.
        return not self._is_tls

    def decode(self) -> None:
        """Decodes what was received, as long as the application reads."""
        decoder = self._decoder
        while not self._decoding and not self._stopped and self.transport.is_reading():
            if self._ended:
                if self._wire:
                    self.fail(CorruptError("there are bytes behind the end of the stream"))
                return
            data = b""
            if decoder.needs_input:
                if not self._wire:
                    if self._hung_up:
                        self.fail(TruncatedError("the connection ends before the stream"))
                    return
                data = self._wire.popleft()
                self._wire_len -= len(data)
                if self._wire_len <= _WIRE_MAX // 2 and not self._hung_up:
                    self._raw.resume_reading()
                self._inside = 0
            self._inside += len(data)
            if self._inside > _INLINE:
                self._decoding = True
                work = self.loop.run_in_executor(None, decoder.decompress, data, _PIECE)
                work.add_done_callback(self._decoded)
                return
            try:
                raw = decoder.decompress(data, _PIECE)
            except Exception as error:
                self.fail(error)
                return
            self._deliver(raw)

    def _decoded(self, work: asyncio.Future[bytes]) -> None:
        self._decoding = False
        if work.cancelled() or self._stopped:
            return
        error = work.exception()
        if isinstance(error, Exception):
            self.fail(error)
            return
        self._deliver(work.result())
        self.decode()

    def _deliver(self, raw: bytes) -> None:
        if raw:
            self.app.data_received(raw)
        decoder = self._decoder
        if not decoder.eof or self._stopped:
            return
        self._ended = True
        if unused := decoder.unused_data:
            self._wire.appendleft(unused)
            return
        goes_on = self.app.eof_received()
        if self._gone:
            self._finish(None)
        elif not goes_on:
            self.transport.close()

    def fail(self, error: Exception) -> None:
        if self._gone:
            self._finish(error)
        else:
            self._failure = error
            self.transport.abort()

    def stats(self) -> dict[str, Any]:
        return {"sent": self.transport.flow.stats(), "received": self._decoder.stats()}


class _StreamProtocol(asyncio.StreamReaderProtocol):
    """asyncio's, but one direction may end by TLS too."""

    def eof_received(self) -> bool:
        super().eof_received()
        return True


class _Transport(asyncio.Transport):
    """The transport of the application: takes raw bytes, and writes a stream."""

    def __init__(self, layer: _Layer, raw: asyncio.Transport, flow: Flow) -> None:
        super().__init__()
        self.flow = flow
        self._layer = layer
        self._raw = raw
        self._waiting: deque[memoryview] = deque()
        self._waiting_len = 0
        self._high, self._low = _HIGH, _LOW
        # The event loop's buffer has bytes; the application was told to pause.
        self._held = self._paused = False
        self._reads = True
        # A block is encoded on another thread; the connection is to be looked at.
        self._encoding = self._due = False
        self._next: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._eof = self._ending = self._ended = self._closing = self._lost = False

    # --- for the application ---

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._raw.get_extra_info(name, default)

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._layer.app

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        assert isinstance(protocol, asyncio.Protocol)
        self._layer.app = protocol

    def write(self, data: Buffer) -> None:
        if self._eof:
            raise RuntimeError("Cannot call write() after write_eof()")
        # A bytearray may change afterwards.
        view = memoryview(data if isinstance(data, bytes) else bytes(data))
        if self._closing or not len(view):
            return
        self._waiting.append(view)
        self._waiting_len += len(view)
        self._soon()
        self._control()

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        # The end of the stream tells it, by TLS too.
        return True

    def write_eof(self) -> None:
        self._eof = self._ending = True
        self._soon()

    def close(self) -> None:
        if self._lost:
            self._layer.give_up()
        if not self._closing:
            self._closing = self._ending = True
            if self._layer_is_paused():
                self._raw.resume_reading()
            self._soon()

    def abort(self) -> None:
        if self._lost:
            self._layer.give_up()
        self._closing = True
        self._raw.abort()

    def is_closing(self) -> bool:
        return self._closing

    def is_reading(self) -> bool:
        return self._reads

    def pause_reading(self) -> None:
        self._reads = False

    def resume_reading(self) -> None:
        if not self._reads:
            self._reads = True
            self._layer.loop.call_soon(self._layer.decode)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is None:
            high = _HIGH if low is None else 4 * low
        if low is None:
            low = high // 4
        if not high >= low >= 0:
            raise ValueError(f"high ({high!r}) must be >= low ({low!r}) must be >= 0")
        self._high, self._low = high, low
        self._control()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def get_write_buffer_size(self) -> int:
        """Bytes that the system does not have yet."""
        return self._waiting_len + self.flow.pending + self._raw.get_write_buffer_size()

    def stats(self) -> dict[str, Any]:
        return self._layer.stats()

    # --- for the layer ---

    def hold(self, held: bool) -> None:
        self._held = held
        if not held:
            # Not at once: the event loop may not be asked to close from within this call.
            self._due = True
            self._soon()

    def lost(self) -> None:
        self._closing = self._lost = True
        self._waiting.clear()
        self._waiting_len = 0
        for handle in (self._next, self._timer):
            if handle is not None:
                handle.cancel()
        self._next = self._timer = None
        self.flow.close()

    # --- encoding ---

    def _layer_is_paused(self) -> bool:
        return not self._raw.is_closing() and not self._raw.is_reading()

    def _soon(self) -> None:
        # All that is written before the event loop runs again goes together.
        if self._next is None and not self._lost:
            self._next = self._layer.loop.call_soon(self._pump)

    def _look(self) -> None:
        self._timer = None
        self._due = True
        self._pump()

    def _pump(self) -> None:
        """Encodes and hands over what is due."""
        if self._next is not None:
            self._next.cancel()
            self._next = None
        flow, raw = self.flow, self._raw
        if self._due and not self._lost:
            self._due = False
            flow.look(raw.get_write_buffer_size())
        while not self._lost:
            moved = self._feed()
            if flow.work(raw.get_write_buffer_size()) and not self._encoding:
                self._encoding = True
                self._layer.loop.run_in_executor(None, flow.run).add_done_callback(self._encoded)
            if self._held:
                break
            if wire := flow.take(raw.get_write_buffer_size()):
                raw.write(wire)
                flow.written(len(wire), raw.get_write_buffer_size())
            elif not moved:
                break
        self._control()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._lost:
            return
        if flow.is_over and not self._ended:
            self._ended = True
            if self._closing:
                raw.close()
            elif raw.can_write_eof():
                raw.write_eof()
        elif self._ended and self._closing:
            raw.close()
        elif not self._held and (seconds := flow.look_in) is not None:
            self._timer = self._layer.loop.call_later(seconds, self._look)

    def _feed(self) -> bool:
        """Gives the encoder what it has room for. Returns whether that was anything."""
        moved = False
        while self._waiting:
            view = self._waiting[0]
            taken = self.flow.write(view)
            if not taken:
                return moved
            moved = True
            self._waiting_len -= taken
            if taken == len(view):
                self._waiting.popleft()
            else:
                self._waiting[0] = view[taken:]
        if self._ending:
            self.flow.end()
        return moved

    def _encoded(self, work: asyncio.Future[None]) -> None:
        self._encoding = False
        if not work.cancelled() and not self._lost:
            if isinstance(error := work.exception(), Exception):
                self._layer.fail(error)
                return
            self._pump()

    def _control(self) -> None:
        """Tells the application to pause or to go on."""
        if self._lost:
            return
        size = self.get_write_buffer_size()
        if size > self._high and not self._paused:
            self._paused = True
            self._layer.app.pause_writing()
        elif size <= self._low and self._paused:
            self._paused = False
            self._layer.app.resume_writing()


def _flow(raw: asyncio.Transport, policy: str) -> Flow:
    sock = raw.get_extra_info("socket")
    if sock is None:
        return Flow(policy, None, False)
    near = sock.family == socket.AF_UNIX
    if not near:
        with contextlib.suppress(OSError):
            near = sock.getsockname()[0] == sock.getpeername()[0]
    return Flow(policy, os.dup(sock.fileno()), near)


async def open_connection(
    host: str | None = None, port: int | str | None = None, *, limit: int = _LIMIT, policy: str = "balance", **kwds: Any
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """As ``asyncio.open_connection``; ``policy`` as for ``wrap_socket``.

    ``drain`` waits while more than 512 KiB are not with the system. ``write_eof`` ends this
    direction, over TLS too; ``close`` does so before it closes; ``writer.transport.abort()`` gives
    the stream no end, so that nobody takes a part for the whole. A stream that is damaged raises
    ``CorruptError`` and one that is cut ``TruncatedError`` (an ``EOFError``) in the calls of the
    reader.
    """
    return await _open("create_connection", (host, port), limit, policy, kwds)


async def open_unix_connection(
    path: str | os.PathLike[str] | None = None, *, limit: int = _LIMIT, policy: str = "balance", **kwds: Any
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """As ``asyncio.open_unix_connection``; the rest as for ``open_connection``."""
    return await _open("create_unix_connection", (path,), limit, policy, kwds)


async def start_server(
    client_connected_cb: _Connected,
    host: str | None = None,
    port: int | str | None = None,
    *,
    limit: int = _LIMIT,
    policy: str = "balance",
    **kwds: Any,
) -> asyncio.Server:
    """As ``asyncio.start_server``, for clients of ``open_connection``."""
    return await _start("create_server", (host, port), client_connected_cb, limit, policy, kwds)


async def start_unix_server(
    client_connected_cb: _Connected,
    path: str | os.PathLike[str] | None = None,
    *,
    limit: int = _LIMIT,
    policy: str = "balance",
    **kwds: Any,
) -> asyncio.Server:
    """As ``asyncio.start_unix_server``, for clients of ``open_unix_connection``."""
    return await _start("create_unix_server", (path,), client_connected_cb, limit, policy, kwds)


def stats(writer: asyncio.StreamWriter) -> dict[str, Any]:
    """``sent`` and ``received`` as those of ``NarrowsSocket.stats``, at any time, after ``close``
    too.
    """
    transport = writer.transport
    if not isinstance(transport, _Transport):
        raise MisuseError("the writer is none of narrows.aio")
    return transport.stats()


async def _open(
    create: str, place: tuple[Any, ...], limit: int, policy: str, kwds: dict[str, Any]
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    Flow.validate(policy)
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=limit, loop=loop)
    protocol = _StreamProtocol(reader, loop=loop)
    _, layer = await getattr(loop, create)(lambda: _Layer(protocol, policy, loop), *place, **kwds)
    return reader, asyncio.StreamWriter(layer.transport, protocol, reader, loop)


async def _start(
    create: str, place: tuple[Any, ...], connected: _Connected, limit: int, policy: str, kwds: dict[str, Any]
) -> asyncio.Server:
    Flow.validate(policy)
    loop = asyncio.get_running_loop()

    def layer() -> _Layer:
        reader = asyncio.StreamReader(limit=limit, loop=loop)
        return _Layer(_StreamProtocol(reader, connected, loop=loop), policy, loop)

    server: asyncio.Server = await getattr(loop, create)(layer, *place, **kwds)
    return server
