"""Streams in both directions over one socket: ``wrap_socket``."""

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

# Default timeout in seconds: about as long as a person would wait.
_TIMEOUT = 60.0
# Maximum wait in seconds of an unclosed object that is collected, since that interrupts other code.
_LAST_WAIT = 5.0
# Length in bytes of the preface, with which every stream begins.
_PREFACE_LEN = 32
# Errors that mean that the peer closed the connection, or that it was cut.
_GONE = (errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN)


def _send_all(sock: socket.socket, data: bytes, /) -> int:
    sock.sendall(data)
    return len(data)


class NarrowsSocket:
    """A connected stream socket of which each direction is a stream. Made by ``wrap_socket``.

    Close it, preferably by ``with``: only that ends the stream. If the body of ``with`` raises, the
    stream gets no end: the peer gets a ``TruncatedError``, or, where this end confirms, the sender
    an error. An object that is collected without being closed sends what was written, without an
    end, and issues a ``ResourceWarning``.

    Several threads may use it: sending calls run one after the other, and so do receiving calls,
    but sending and receiving run concurrently.
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
            raise MisuseError("only connected stream sockets (TCP, unix) can carry a stream")
        # A subclass that transforms its data, such as TLS, must do so itself.
        self._plain = type(sock) is socket.socket
        if mode == "w" and not self._plain:
            raise MisuseError("mode 'w' needs a plain socket, not one that transforms its data (TLS)")
        self._sock = sock
        self._sending, self._receiving = threading.RLock(), threading.RLock()
        self._reader: Reader | None = None
        self._writer: Writer | None = None
        self._received: ReceivedTotals | None = None
        self._sent: SentTotals | None = None
        self._ended = False
        self._process = os.getpid()
        # Checked before there is a descriptor to leak.
        Writer.validate(policy, threads, timeout)
        sock.settimeout(timeout)
        if "r" in mode:
            back = sock.sendall if mode == "r" else None
            self._reader = Reader(sock.recv, threads=threads, back=back, several=False)
            self._received = self._reader.totals
        if "w" in mode:
            self._writer = Writer(
                policy,
                threads=threads,
                descriptor=os.dup(sock.fileno()) if self._plain else None,
                kind=kind,
                duplex=mode == "w",
                # Refers to the socket only: a reference to this object would keep it alive.
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
        """Sends all bytes. Waits only while too many are in flight: ``flush`` and ``close`` wait
        until the system has them. Raises ``TimeoutError`` if the peer accepts none for the timeout;
        a part may already be in flight, so the same bytes cannot be sent again on this stream.
        """
        with self._sending:
            writer = self._output()
            writer.write(data, False)
            # Wire bytes for a Python object are only passed on during calls.
            if not self._plain:
                writer.flush()

    def send(self, data: Buffer, /) -> int:
        """As ``sendall``; returns the number of bytes, which is always all of them."""
        self.sendall(data)
        return memoryview(data).nbytes

    def flush(self) -> None:
        """Waits until the system has everything that was sent."""
        with self._sending:
            self._output().flush()

    def recv(self, bufsize: int, /) -> bytes:
        """Receives at least one byte and at most ``bufsize``; ``b""`` when the peer has ended its
        stream.

        Raises ``TimeoutError`` if nothing arrives for the timeout, after which it may be called
        again; ``TruncatedError`` (an ``EOFError``) if the connection ends before the stream;
        ``CorruptError`` for data that is not a stream.
        """
        with self._receiving:
            return self._input().read_some(bufsize)

    def recv_into(self, buffer: Buffer, nbytes: int = 0, /) -> int:
        """As ``recv``, into a writable buffer; returns the number of bytes."""
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
        """Returns a file object over the connection, as ``socket.makefile`` does. Closing it does
        not close the socket.
        """
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
        """Sets the seconds that a call may wait without progress; ``None`` is no limit."""
        self._check()
        self._sock.settimeout(timeout)
        if self._writer is not None:
            with self._sending:
                self._writer.set_timeout(timeout)

    def gettimeout(self) -> float | None:
        """Seconds that a call may wait without progress."""
        return self._sock.gettimeout()

    def fileno(self) -> int:
        """Descriptor of the socket. If it is readable, ``recv`` may still have nothing to return."""
        return self._sock.fileno()

    def shutdown(self, how: int, /) -> None:
        """With ``SHUT_WR`` or ``SHUT_RDWR``, ends the sent stream and waits until the system has
        it; the peer then reads ``b""``."""
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
        """In mode ``r``, confirms the stream to the sender, or reports the failure."""
        # In a forked process the connection belongs to the parent.
        if self._reader is None or os.getpid() != self._process:
            return
        # A thread that still receives has not seen the end; the sender will see the connection
        # close.
        if not self._receiving.acquire(blocking=False):
            return
        try:
            self._reader.close(failure)
        except OSError as error:
            # The sender is gone: it no longer waits.
            if failure is None and error.errno not in _GONE:
                raise
        finally:
            self._receiving.release()

    def close(self) -> None:
        """Ends the sent stream and closes the socket. A peer that is already gone is an error of
        ``shutdown``, but not of ``close``.

        If data of the peer was not received, the system resets the connection, and data in flight
        to the peer is lost: if that matters, first call ``shutdown(SHUT_WR)`` and receive until
        ``b""``. In mode ``w`` it returns when the peer has confirmed that everything is stored. In
        mode ``r`` it sends this confirmation if ``recv`` has returned ``b""``, so store everything
        first; else the sender is told that the transfer failed.
        """
        if self._closed:
            return
        try:
            self._end()
            self._confirm(None)
        except OSError as error:
            # Only mode w waits for a confirmation that can be missing.
            if error.errno not in _GONE or self._reader is None:
                raise
        finally:
            self._let_go()

    def _let_go(self) -> None:
        self._closed = True
        self._reader = self._writer = None
        received = self._received
        if self._plain and received and not received.stats()["wire_bytes"] and os.getpid() == self._process:
            # Even a peer that has sent nothing has sent the preface. Unread, it would reset the
            # connection and lose data in flight.
            with contextlib.suppress(OSError):
                self._sock.settimeout(0)
                self._sock.recv(_PREFACE_LEN)
        self._sock.close()

    def stats(self) -> dict[str, Any]:
        """``sent`` as ``NarrowsFile.stats``, and ``received`` with ``raw_bytes`` and
        ``wire_bytes``; ``None`` for a direction that does not exist. May be called at any time:
        while other threads send and receive, and after ``close``.
        """
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
            # A partial stream gets no end, and data that was not stored is not confirmed.
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
        # There is no caller to report it to.
        except Exception:
            pass
        finally:
            self._abandon()
            self._let_go()
            # Last, since warning filters may raise it as an error.
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
    """Takes over a connected stream socket: data is sent and received as streams, compressed where
    it pays.

    - ``mode``: ``rw`` is a stream in each direction, for a peer that does the same. ``w`` and ``r``
      are one stream in one direction, with the receiver's reports in the other, as ``narrows recv``
      and ``narrows send`` use over TCP.
    - ``policy``, ``threads``: as for ``NarrowsFile``.
    - ``timeout``: seconds that a call may wait without progress before it raises ``TimeoutError``,
      by default 60; ``None`` is no limit.

    A TLS socket is only written during calls, which then wait for it. Raises ``MisuseError`` for
    other kinds of sockets.
    """
    return NarrowsSocket(sock, policy=policy, mode=mode, threads=threads, timeout=timeout)
