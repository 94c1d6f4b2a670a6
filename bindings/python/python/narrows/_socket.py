"""A stream in each direction over one socket: ``wrap_socket``."""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import os
import socket
import threading
import warnings
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from ._errors import MisuseError
from ._narrows import ReceivedTotals, Reader, SentTotals, Writer

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from typing_extensions import Buffer, Self

# Whoever says nothing else waits for the peer no longer than people do.
_TIMEOUT = 60.0
# An object that nobody closed waits no longer for a peer that takes nothing: it goes in the middle of something else.
_LAST_WAIT = 5.0
# With it every stream begins.
_PREFACE_LEN = 32
# The peer closed the connection, or somebody cut it.
_GONE = (errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN)


def _send_all(sock: socket.socket, data: bytes, /) -> int:
    sock.sendall(data)
    return len(data)


class NarrowsSocket:
    """A connected stream socket over which each direction is a stream. ``wrap_socket`` makes it.

    Close it, best by ``with``: only that ends the stream. If the body of ``with`` raises, the peer is not told of an
    end that was none: it gets a ``TruncatedError`` instead, or where it confirms, the sender an error. An object that
    nobody closed gives away what was sent, without an end, and a ``ResourceWarning``.

    Several threads may use it: those that send come one after the other, so do those that receive, and one of each
    goes on at once.
    """

    def __init__(
        self,
        sock: socket.socket,
        *,
        policy: str = "balance",
        mode: Literal["rw", "r", "w"] = "rw",
        threads: int | None = None,
        timeout: float | None = _TIMEOUT,
    ) -> None:
        self._closed = True
        if mode not in ("rw", "r", "w"):
            raise ValueError(f"invalid mode: {mode!r}; a socket is 'rw', 'r' or 'w'")
        kind = {socket.AF_INET: "tcp", socket.AF_INET6: "tcp", socket.AF_UNIX: "unix"}.get(sock.family)
        if sock.type != socket.SOCK_STREAM or kind is None:
            raise MisuseError("only connected stream sockets (TCP, unix) carry a stream")
        # One that does something to its bytes, such as TLS, has to do it.
        self._plain = type(sock) is socket.socket
        if mode == "w" and not self._plain:
            raise MisuseError("mode 'w' needs a socket of the system, not one that changes what is sent")
        self._sock = sock
        self._sending, self._receiving = threading.RLock(), threading.RLock()
        self._reader: Reader | None = None
        self._writer: Writer | None = None
        self._received: ReceivedTotals | None = None
        self._sent: SentTotals | None = None
        self._ended = False
        self._process = os.getpid()
        # Before there is a descriptor to lose.
        Writer.validate(policy, threads, timeout)
        sock.settimeout(timeout)
        if "r" in mode:
            back = sock.sendall if mode == "r" else None
            self._reader = Reader(sock.recv, threads=threads, back=back)
            self._received = self._reader.totals
        if "w" in mode:
            self._writer = Writer(
                policy,
                threads=threads,
                descriptor=os.dup(sock.fileno()) if self._plain else None,
                kind=kind,
                duplex=mode == "w",
                # Of the socket alone: one that leads back here would keep this object alive.
                sink=None if self._plain else functools.partial(_send_all, sock),
                index=False,
                check=True,
                timeout=timeout,
            )
            self._sent = self._writer.totals
        self._closed = False

    def _check(self) -> None:
        if self._closed:
            raise ValueError("I/O operation on closed socket.")

    def _output(self) -> Writer:
        self._check()
        if self._writer is None:
            raise io.UnsupportedOperation("not open for sending")
        if self._ended:
            raise BrokenPipeError("the stream of this direction has ended")
        return self._writer

    def sendall(self, data: Buffer, /) -> None:
        """Sends all bytes on their way; waits only while too many are on it: ``flush`` or ``close`` wait until the
        system has them. Raises ``TimeoutError`` if the peer takes none for so long; a part may be on its way then, so
        the stream cannot go on with the same bytes."""
        with self._sending:
            writer = self._output()
            writer.write(data, False)
            # Wire bytes for an object of Python are passed on in calls only.
            if not self._plain:
                writer.flush()

    def send(self, data: Buffer, /) -> int:
        """As ``sendall``, and returns how many bytes there were: it always takes all."""
        self.sendall(data)
        return memoryview(data).nbytes

    def flush(self) -> None:
        """Waits until the system has all that was sent."""
        with self._sending:
            self._output().flush()

    def recv(self, bufsize: int, /) -> bytes:
        """At least one byte and at most so many, as soon as there are some; ``b""`` when the peer has ended its
        stream.

        Raises ``TimeoutError`` if nothing comes for so long, after which it may be called again; ``TruncatedError``
        (an ``EOFError``) if the connection ends before the stream; ``CorruptError`` for what is no stream.
        """
        with self._receiving:
            return self._input().read_some(bufsize)

    def recv_into(self, buffer: Buffer, nbytes: int = 0, /) -> int:
        """As ``recv``, into a buffer that can be written; returns how many bytes."""
        with self._receiving:
            view = memoryview(buffer).cast("B")
            return self._input().readinto(view[:nbytes] if nbytes else view)

    def _input(self) -> Reader:
        self._check()
        if self._reader is None:
            raise io.UnsupportedOperation("not open for receiving")
        return self._reader

    def makefile(
        self,
        mode: Literal["r", "rb", "w", "wb", "rw", "rwb"] = "r",
        buffering: int | None = None,
        *,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
    ) -> Any:
        """A file object over the connection, as ``socket.makefile`` makes it. The socket is closed by itself, not
        with it."""
        if not set(mode) <= set("rwb"):
            raise ValueError(f"invalid mode {mode!r} (only r, w, b allowed)")
        reading, writing = "r" in mode or "w" not in mode, "w" in mode
        raw = _SocketIO(self, reading, writing)
        size = io.DEFAULT_BUFFER_SIZE if buffering is None or buffering < 0 else buffering
        if size == 0:
            if "b" not in mode:
                raise ValueError("unbuffered streams must be binary")
            return raw
        buffer: Any
        if reading and writing:
            buffer = io.BufferedRWPair(raw, raw, size)
        elif reading:
            buffer = io.BufferedReader(raw, size)
        else:
            buffer = io.BufferedWriter(raw, size)
        if "b" in mode:
            return buffer
        return io.TextIOWrapper(buffer, encoding or io.text_encoding(None), errors, newline, buffering == 1)

    def settimeout(self, timeout: float | None, /) -> None:
        """Seconds that a call may wait without progress; ``None`` for ever."""
        self._check()
        self._sock.settimeout(timeout)
        if self._writer is not None:
            with self._sending:
                self._writer.set_timeout(timeout)

    def gettimeout(self) -> float | None:
        """Seconds that a call may wait without progress."""
        return self._sock.gettimeout()

    def fileno(self) -> int:
        """Descriptor of the socket; that it can be read does not say that ``recv`` has something."""
        return self._sock.fileno()

    def shutdown(self, how: int, /) -> None:
        """``SHUT_WR``, ``SHUT_RDWR``: ends the stream that is sent and waits until the system has it; the peer then
        reads ``b""``."""
        self._check()
        if how in (socket.SHUT_WR, socket.SHUT_RDWR):
            self._end()
            if not self._plain and self._writer is not None:
                self._sock.shutdown(socket.SHUT_WR)
        if how in (socket.SHUT_RD, socket.SHUT_RDWR):
            self._sock.shutdown(socket.SHUT_RD)

    def _end(self) -> None:
        if self._writer is None or self._ended:
            return
        with self._sending:
            self._ended = True
            try:
                self._writer.close()
            except BaseException:
                self._writer.abandon()
                raise

    def _abandon(self) -> None:
        if self._writer is None or self._ended:
            return
        with self._sending:
            self._ended = True
            self._writer.abandon()

    def _confirm(self, failure: str | None) -> None:
        """In mode ``r`` the sender waits for a word."""
        # In a forked process the connection is still that of the other one.
        if self._reader is None or os.getpid() != self._process:
            return
        # Who still receives has not seen the end; the sender hears that the connection is gone.
        if not self._receiving.acquire(blocking=False):
            return
        try:
            self._reader.close(failure)
        except OSError as error:
            # It does not wait any more.
            if failure is None and error.errno not in _GONE:
                raise
        finally:
            self._receiving.release()

    def close(self) -> None:
        """Ends the stream that is sent and closes the socket. That the peer is gone already is no error here, but one
        of ``shutdown``.

        What the peer's application sent and nobody received makes the system cut the connection, and what is still under way to the
        peer is lost with it: after ``shutdown(SHUT_WR)`` receive until ``b""`` first if that matters. In mode ``w``
        it returns when the peer has confirmed that all is stored. In mode ``r`` it is this confirmation, if ``recv``
        has returned ``b""``: store everything first. Else the sender hears that it failed.
        """
        if self._closed:
            return
        try:
            self._end()
            self._confirm(None)
        except OSError as error:
            # Without confirmation there is none that could be missing.
            if error.errno not in _GONE or self._reader is None:
                raise
        finally:
            self._let_go()

    def _let_go(self) -> None:
        self._closed = True
        self._reader = self._writer = None
        received = self._received
        if self._plain and received and not received.stats()["wire_bytes"] and os.getpid() == self._process:
            # A peer that has sent nothing yet has sent this, and what is under way to it shall not be lost for that.
            with contextlib.suppress(OSError):
                self._sock.settimeout(0)
                self._sock.recv(_PREFACE_LEN)
        self._sock.close()

    def stats(self) -> dict[str, Any]:
        """``sent`` as ``NarrowsFile.stats``, ``received`` with ``raw_bytes`` and ``wire_bytes``; ``None`` where there
        is no such direction. At any time, also while other threads send and receive, and afterwards."""
        sent, received = self._sent, self._received
        return {"sent": sent and sent.stats(), "received": received and received.stats()}

    def __enter__(self) -> Self:
        self._check()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        elif not self._closed:
            # Half of what was to be sent is no whole stream, and what was not stored is not confirmed.
            try:
                self._abandon()
                self._confirm(f"the receiver failed: {kind.__name__}")
            finally:
                self._let_go()

    def __del__(self, _warn: Callable[..., None] = warnings.warn) -> None:
        if getattr(self, "_closed", True):
            return
        writer = self._writer
        try:
            if writer is not None and not self._ended:
                timeout = self._sock.gettimeout()
                writer.set_timeout(_LAST_WAIT if timeout is None else min(timeout, _LAST_WAIT))
                writer.flush()
        # Nobody is there who could be told.
        except Exception:
            pass
        finally:
            self._abandon()
            self._let_go()
            # Last, since filters may make it an error.
            _warn(f"unclosed {self!r}", ResourceWarning, source=self)

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(f"cannot pickle {type(self).__name__!r} instances")


class _SocketIO(io.RawIOBase):
    def __init__(self, sock: NarrowsSocket, reading: bool, writing: bool) -> None:
        self._socket, self._reading, self._writing = sock, reading, writing

    def readable(self) -> bool:
        return self._reading

    def writable(self) -> bool:
        return self._writing

    def readinto(self, buffer: Buffer, /) -> int:
        return self._socket.recv_into(buffer)

    def write(self, data: Buffer, /) -> int:
        return self._socket.send(data)

    def fileno(self) -> int:
        return self._socket.fileno()


def wrap_socket(
    sock: socket.socket,
    *,
    policy: str = "balance",
    mode: Literal["rw", "r", "w"] = "rw",
    threads: int | None = None,
    timeout: float | None = _TIMEOUT,
) -> NarrowsSocket:
    """Takes over a connected stream socket: what is sent and received goes as streams, compressed as it pays there.

    ``mode``: ``rw`` is a stream in each direction, for a peer that does the same; ``w`` and ``r`` are one stream in
    one direction with the reports of its receiver in the other, as ``narrows recv`` and ``narrows send`` speak over
    TCP. ``policy``, ``threads``: as of ``NarrowsFile``. ``timeout``: seconds that a call may wait without progress
    before it raises ``TimeoutError``, by default 60; ``None`` is no limit. A TLS socket is written in calls only,
    which then wait for it. Raises ``MisuseError`` for other kinds of sockets.
    """
    return NarrowsSocket(sock, policy=policy, mode=mode, threads=threads, timeout=timeout)
