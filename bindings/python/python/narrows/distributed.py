"""``narrows://``: Dask's connections, compressed as the link, the CPUs and the data deserve.

distributed finds this module by its entry point, so an address is all that is needed::

    dask scheduler --protocol narrows
    dask worker narrows://scheduler:8786
    Client("narrows://scheduler:8786")

Messages are what they are with ``tcp://``. Their bytes go through the engine of Narrows, which
chooses for each block. Nothing is encrypted.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
import socket
import sys
import weakref
from collections.abc import Callable, Generator
from typing import Any, TypeVar

from distributed.comm.addressing import parse_host_port, unparse_host_port
from distributed.comm.core import Comm, CommClosedError, Connector
from distributed.comm.tcp import RequireEncryptionMixin, TCPBackend, TCPListener, set_tcp_timeout
from distributed.comm.utils import from_frames, to_frames
from distributed.protocol.utils import host_array
from distributed.system import MEMORY_LIMIT
from distributed.utils import ensure_memoryview
from tornado import gen

from ._errors import CorruptError, NarrowsError, UnsupportedError
from ._narrows import CommFlow, CommHub

logger = logging.getLogger(__name__)

_PREFIX = "narrows://"
# Frames of less share a buffer: they are msgpack and pickles, which do not outlive the message.
_SHARED_BELOW = 2048
# Alignment of a frame in a shared buffer, as numpy's own.
_ALIGN = 64
# A message larger than memory is damage or an attack; of a smaller one pages are touched as bytes come.
_MESSAGE_MAX = int(MEMORY_LIMIT)

_T = TypeVar("_T")


def _allocate(lengths: list[int]) -> list[memoryview]:
    """Writable buffers of these lengths. Long ones can be freed independently."""
    buffers: list[memoryview] = []
    places = [0]
    for length in lengths:
        places.append(places[-1] + (-(-length // _ALIGN) * _ALIGN if length < _SHARED_BELOW else 0))
    shared = host_array(places[-1])
    for length, place in zip(lengths, places):
        buffers.append(shared[place : place + length] if length < _SHARED_BELOW else host_array(length))
    return buffers


class _Hub:
    """Wakes the comms of one event loop, by one descriptor for all of them."""

    _of_loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Hub] = weakref.WeakKeyDictionary()
    _numbers = itertools.count()

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.hub = CommHub()
        self._comms: weakref.WeakValueDictionary[int, Narrows] = weakref.WeakValueDictionary()
        loop.add_reader(self.hub.fileno(), self._wake)

    @classmethod
    def of(cls, loop: asyncio.AbstractEventLoop) -> _Hub:
        hub = cls._of_loops.get(loop)
        if hub is None:
            hub = cls._of_loops[loop] = cls(loop)
        return hub

    def number(self, comm: Narrows) -> int:
        number = next(self._numbers)
        self._comms[number] = comm
        return number

    def _wake(self) -> None:
        for number in self.hub.take():
            comm = self._comms.get(number)
            if comm is not None:
                comm._on_signal()


class _Timeouts:
    """What ``set_tcp_timeout`` needs of a stream."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock

    def closed(self) -> bool:
        return False


def _readable(ref: weakref.ref[Narrows]) -> None:
    comm = ref()
    if comm is not None:
        comm._on_readable()


def _release(loop: asyncio.AbstractEventLoop, descriptor: int, flow: CommFlow) -> None:
    """Ends a connection. The loop must forget its descriptor before the last owner closes it."""
    if not loop.is_closed():
        loop.remove_reader(descriptor)
    flow.close()


def _dangling(loop: asyncio.AbstractEventLoop, descriptor: int, flow: CommFlow, name: str) -> None:
    logger.warning("Closing dangling comm %s", name)
    try:
        loop.call_soon_threadsafe(_release, loop, descriptor, flow)
    except RuntimeError:
        flow.close()


class Narrows(Comm):
    """A connection. Reads and writes never wait on the event loop's thread."""

    # Tests take others.
    _policy = "balance"

    @staticmethod
    def _is_same_host(sock: socket.socket) -> bool:
        return bool(sock.getsockname()[0] == sock.getpeername()[0])

    def __init__(self, sock: socket.socket, local_addr: str, peer_addr: str, deserialize: bool = True) -> None:
        self._closed = False
        self._flow: CommFlow | None = None
        self._local_addr = local_addr
        self._peer_addr = peer_addr
        super().__init__(deserialize=deserialize)
        self._loop = loop = asyncio.get_running_loop()
        hub = _Hub.of(loop)
        set_tcp_timeout(_Timeouts(sock))  # type: ignore[no-untyped-call]
        same_host = self._is_same_host(sock)
        self._descriptor = sock.detach()
        number = hub.number(self)
        self._flow = CommFlow(self._descriptor, hub.hub, number, self._policy, same_host, _MESSAGE_MAX, _allocate)
        # What a reader waits for, and its attempt to get it.
        self._waiting: asyncio.Future[Any] | None = None
        self._attempt: Callable[[], Any] | None = None
        self._flushed: asyncio.Future[None] | None = None
        self._error: BaseException | None = None
        self._listens = False
        self._finalizer = weakref.finalize(self, _dangling, loop, self._descriptor, self._flow, repr(self))
        self._finalizer.atexit = False
        self._listen(True)

    @property
    def local_address(self) -> str:
        return self._local_addr

    @property
    def peer_address(self) -> str:
        return self._peer_addr

    @property
    def sent(self) -> dict[str, Any]:
        """What was sent so far: raw bytes that went plain, raw and wire bytes of the others, the rate
        of the link in bytes per second, and the raw bytes of each method."""
        if self._flow is None:
            return {}
        plain, raw, wire, rate, methods = self._flow.sent
        return {
            "plain_bytes": plain,
            "raw_bytes": raw,
            "wire_bytes": wire,
            "rate_bytes_per_s": rate,
            "methods": dict(methods),
        }

    def handshake_info(self) -> dict[str, Any]:
        # The engine sees all bytes; what is compressed before it cannot adapt.
        return {**super().handshake_info(), "compression": None}

    async def meet(self) -> None:
        """Waits until the peer is known to speak this protocol."""
        if self._flow is None:
            raise CommClosedError()
        flow = self._flow
        await self._await(lambda: True if flow.meet() else None)

    async def read(self, deserializers: Any = None) -> Any:
        if self._flow is None:
            raise CommClosedError()
        frames = await self._await(self._flow.receive)
        try:
            return await from_frames(  # type: ignore[no-untyped-call]
                frames,
                deserialize=self.deserialize,
                deserializers=deserializers,
                allow_offload=self.allow_offload,
            )
        except EOFError:
            # Frames possibly garbled or truncated by communication error
            self.abort()
            raise CommClosedError("aborted stream on truncated data") from None

    async def write(self, msg: Any, serializers: Any = None, on_error: Any = "message") -> int:
        if self._flow is None:
            raise CommClosedError()
        frames = await to_frames(  # type: ignore[no-untyped-call]
            msg,
            allow_offload=self.allow_offload,
            serializers=serializers,
            on_error=on_error,
            context={
                "sender": self.local_info,
                "recipient": self.remote_info,
                **self.handshake_options,
            },
            # A frame of any length is one buffer at the other end.
            frame_split_size=sys.maxsize,
        )
        if self._flow is None:
            raise CommClosedError()
        try:
            return self._flow.write([f if isinstance(f, bytes) else ensure_memoryview(f) for f in frames])
        except (NarrowsError, OSError) as e:
            self._fail(e)
            raise CommClosedError(f"in {self}: {e}") from e
        except BaseException:
            # What was sent of the message is unknown.
            self.abort()
            raise

    @gen.coroutine
    def close(self) -> Generator[Any, None, None]:
        # A coroutine of tornado, as that of `tcp://`: it may be left without being awaited.
        flow, self._flow = self._flow, None
        self._closed = True
        if flow is None:
            return
        try:
            while flow.is_busy:
                self._flushed = self._loop.create_future()
                yield self._flushed
        finally:
            self._flushed = None
            self._end(flow)

    def abort(self) -> None:
        flow, self._flow = self._flow, None
        self._closed = True
        if flow is not None:
            self._end(flow)

    def closed(self) -> bool:
        return self._closed

    def _end(self, flow: CommFlow) -> None:
        self._finalizer.detach()
        _release(self._loop, self._descriptor, flow)
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(self._error or CommClosedError(f"in {self}: the comm was closed"))

    def _fail(self, e: BaseException) -> None:
        """Ends the comm because of an error of the connection."""
        if self._error is None:
            self._error = CommClosedError(f"in {self}: {type(e).__name__}: {e}")
            self._error.__cause__ = e
        self.abort()

    def _listen(self, on: bool) -> None:
        if on != self._listens:
            self._listens = on
            if on:
                self._loop.add_reader(self._descriptor, functools.partial(_readable, weakref.ref(self)))
            else:
                self._loop.remove_reader(self._descriptor)

    async def _await(self, attempt: Callable[[], _T | None]) -> _T:
        """The result of an attempt that is repeated when there is more to read."""
        flow = self._flow
        assert flow is not None
        try:
            result = attempt()
            if result is not None:
                return result
            self._listen(not flow.waits)
            self._waiting, self._attempt = self._loop.create_future(), attempt
            return await self._waiting  # type: ignore[no-any-return]
        except CommClosedError:
            raise
        except (NarrowsError, OSError, EOFError) as e:
            self._fail(e)
            assert self._error is not None
            raise self._error from e
        except BaseException:
            # What was read of the message is unknown, so nothing can follow it.
            self.abort()
            raise
        finally:
            self._waiting = self._attempt = None

    def _on_readable(self) -> None:
        flow = self._flow
        if flow is None:
            return self._listen(False)
        try:
            if self._waiting is None or self._waiting.done() or self._attempt is None:
                # Nobody reads: only look whether the peer has gone.
                self._listen(not flow.read_ahead())
                return None
            result = self._attempt()
            if result is not None:
                self._waiting.set_result(result)
            else:
                self._listen(not flow.waits)
        except Exception as e:
            self._fail(e)
        return None

    def _on_signal(self) -> None:
        if self._flushed is not None and not self._flushed.done():
            self._flushed.set_result(None)
        if self._flow is None:
            return
        try:
            self._flow.check()
        except Exception as e:
            return self._fail(e)
        if self._waiting is not None:
            self._on_readable()


def _comm_of_stream(stream: Any, local_addr: str, peer_addr: str, deserialize: bool) -> Narrows:
    """A comm that takes the connection over from tornado."""
    sock = stream.socket.dup()
    stream.close()
    return Narrows(sock, local_addr, peer_addr, deserialize)


def _refuse_tls(connection_args: dict[str, Any]) -> None:
    if connection_args.get("ssl_context") is not None:
        raise RuntimeError(
            "narrows:// does not encrypt, and was given TLS certificates (security=...): use tls://, or carry "
            "narrows:// through an encrypted tunnel and leave the certificates out"
        )


class NarrowsConnector(RequireEncryptionMixin, Connector):
    prefix = _PREFIX
    encrypted = False

    async def connect(self, address: str, deserialize: bool = True, **connection_args: Any) -> Narrows:
        self._check_encryption(address, connection_args)  # type: ignore[no-untyped-call]
        _refuse_tls(connection_args)
        host, port = parse_host_port(address)
        loop = asyncio.get_running_loop()
        error: OSError | None = None
        for family, kind, protocol, _, target in await _resolve(host, port):
            sock = socket.socket(family, kind, protocol)
            try:
                sock.setblocking(False)
                await loop.sock_connect(sock, target)
                local = self.prefix + unparse_host_port(*sock.getsockname()[:2])
                return Narrows(sock, local, self.prefix + address, deserialize)
            except OSError as e:
                error = e
            finally:
                # Has no effect on a socket that the comm has taken over.
                sock.close()
        raise CommClosedError(f"cannot connect to {self.prefix + address}: {error}") from error


async def _resolve(host: str, port: int) -> list[Any]:
    """Addresses of a host; without a thread where it is a number."""
    numeric = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=numeric)
    except socket.gaierror as e:
        if e.errno != socket.EAI_NONAME:
            raise
    return await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)


class NarrowsListener(TCPListener):
    prefix = _PREFIX
    comm_class = staticmethod(_comm_of_stream)  # type: ignore[assignment]
    encrypted = False

    def _get_server_args(self, **connection_args: Any) -> dict[str, Any]:
        _refuse_tls(connection_args)
        return {}

    async def on_connection(self, comm: Comm, handshake_overrides: dict[str, Any] | None = None) -> None:
        try:
            assert isinstance(comm, Narrows)
            # A peer of another protocol gets nothing that it could misread.
            await comm.meet()
            await super().on_connection(comm, handshake_overrides)
        except CommClosedError as e:
            if isinstance(e.__cause__, (CorruptError, UnsupportedError)):
                logger.warning("Refused the connection from %s: %s", comm.peer_address, e.__cause__)
            raise


class NarrowsBackend(TCPBackend):
    """What the entry point names."""

    _connector_class = NarrowsConnector  # type: ignore[assignment]
    _listener_class = NarrowsListener
