"""Files that hold one stream: ``open`` and ``NarrowsFile``."""

from __future__ import annotations

import functools
import io
import os
import stat
import threading
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Protocol, overload

from ._narrows import ReceivedTotals, Reader, SentTotals, Writer

if TYPE_CHECKING:
    from typing_extensions import Buffer, Self

_Path = str | bytes | os.PathLike[str] | os.PathLike[bytes]

# What is kept decoded for small reads.
_BUFFER_SIZE = 128 * 1024
# How much is decoded at a time where all is wanted, and to pass over what is not.
_READ_SIZE = 4 * 1024 * 1024


class _Readable(Protocol):
    def read(self, n: int, /) -> bytes: ...


class _Writable(Protocol):
    def write(self, data: bytes, /) -> object: ...


def _is_stored(file: Any) -> bool:
    """Whether what is written stays where it is: then how fast it is taken says nothing of what a byte costs."""
    if isinstance(file, io.BytesIO):
        return True
    try:
        mode = os.fstat(file.fileno()).st_mode
    except (AttributeError, OSError, TypeError, ValueError):
        return False
    return stat.S_ISREG(mode) or stat.S_ISBLK(mode)


def _write_raw(write: Callable[[bytes], int | None], data: bytes, /) -> int:
    """Of a raw file that does not block ``None`` means that it took nothing; other objects return it for all."""
    return write(data) or 0


class _Raw(io.RawIOBase):
    """The decoded bytes, for ``io.BufferedReader``."""

    def __init__(self, source: Callable[[int], Any], file: Any, threads: int | None) -> None:
        self._source = source
        self._file = file
        self._threads = threads
        self._reader = Reader(source, threads=threads, back=None)
        self._seekable = bool(getattr(file, "seekable", lambda: False)())
        self._start: int = file.tell() if self._seekable else 0

    @property
    def totals(self) -> ReceivedTotals:
        return self._reader.totals

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self._seekable

    def readinto(self, buffer: Buffer, /) -> int:
        return self._reader.readinto(buffer)

    def readall(self) -> bytes:
        return b"".join(iter(lambda: self._reader.read_some(_READ_SIZE), b""))

    def tell(self) -> int:
        return self._reader.delivered

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Forward by decoding, backward by decoding from the start."""
        if not self._seekable:
            raise io.UnsupportedOperation("the file underneath cannot seek")
        if whence == io.SEEK_CUR:
            offset += self._reader.delivered
        elif whence == io.SEEK_END:
            while self._reader.read_some(_READ_SIZE):
                pass
            offset += self._reader.delivered
        elif whence != io.SEEK_SET:
            raise ValueError(f"invalid whence ({whence}, should be 0, 1 or 2)")
        if offset < self._reader.delivered:
            self._file.seek(self._start)
            self._reader = Reader(self._source, threads=self._threads, back=None)
        left = offset - self._reader.delivered
        while left > 0 and (passed := self._reader.read_some(min(left, _READ_SIZE))):
            left -= len(passed)
        return self._reader.delivered


class NarrowsFile(io.BufferedIOBase):
    """A file that holds one stream, as ``gzip.GzipFile`` is one; what it holds is what ``narrows pipe`` writes and
    reads.

    ``filename`` is a path, or ``fileobj`` an object with ``read`` or ``write``, which is not closed. ``mode`` is
    ``"rb"``, ``"wb"`` or ``"xb"`` (the file must not exist). ``policy``: by which rule the methods of blocks are
    chosen: ``storage`` for what is kept (zstd 3 in long blocks), ``balance`` (as fast as possible over what is written
    to), ``fixed:METHOD`` such as ``fixed:zstd:level=9``; by default ``storage`` for files and ``io.BytesIO``, else
    ``balance``. ``threads``: threads that encode or decode, by default as many as
    there are cores for it. ``index``: append an index of the blocks. ``check``: a check on every block. ``timeout``:
    seconds that a call that writes may wait without progress before it raises ``TimeoutError``; by default there is
    no limit, as with other files.

    Small writes gather up to 64 KiB; ``flush`` waits until all is in the hands of the file. Blocks are encoded by
    threads of their own, never with the interpreter's lock. After an error of what is written to nothing more is
    written, and every call but ``close`` raises it again. Where ``write`` of ``fileobj`` takes nothing (returns 0, or
    ``None`` if it is an ``io.RawIOBase``), ``write``, ``flush`` and ``close`` raise ``BlockingIOError`` once there is
    no more room here; nothing is lost, and ``flush`` and ``close`` can be called again. A ``write`` that raises may
    have taken a part, also if it was late or interrupted: ``tell`` says up to where, the rest can be written again.

    Reading decodes on the calling thread without that lock. A stream that ends too early raises ``TruncatedError`` (an
    ``EOFError``), a damaged one ``CorruptError`` (an ``OSError``); ``read1`` and ``readinto1`` give the bytes before
    first, ``read`` and the others lose those that they had gathered, as those of ``gzip`` do.

    Several threads may use one object: calls come one after the other. An object is of use only in the process that
    opened it.
    """

    def __init__(
        self,
        filename: _Path | None = None,
        mode: str = "rb",
        *,
        policy: str | None = None,
        threads: int | None = None,
        fileobj: Any = None,
        index: bool = False,
        check: bool = True,
        timeout: float | None = None,
    ) -> None:
        # One thread at a time; calls out of the file object underneath come through and are refused by what is beneath.
        self._turn = threading.RLock()
        self._own: io.FileIO | None = None
        self._fileobj: Any = None
        self._writer: Writer | None = None
        self._buffer: io.BufferedReader | None = None
        self._raw: _Raw | None = None
        # What is left of them behind the end.
        self._totals: SentTotals | ReceivedTotals | None = None
        if mode in ("a", "ab"):
            raise ValueError("a stream ends with its totals, so nothing can be appended: write a new file")
        if mode not in ("r", "rb", "w", "wb", "x", "xb"):
            raise ValueError(f"invalid mode: {mode!r}; a stream is 'rb', 'wb' or 'xb'")
        if (filename is None) == (fileobj is None):
            raise TypeError("either a path or a file object is needed")
        self.mode = mode[0] + "b"
        # Before a file is emptied.
        Writer.validate(policy or "balance", threads, timeout)
        if fileobj is None:
            assert filename is not None
            self._own = io.FileIO(filename, self.mode)
        file: Any = fileobj if fileobj is not None else self._own
        self._fileobj = file
        self.name: Any = filename if filename is not None else getattr(file, "name", "")
        try:
            if self.mode == "rb":
                source: Callable[[int], bytes] = getattr(file, "read1", None) or file.read
                self._raw = _Raw(source, file, threads)
                self._buffer = io.BufferedReader(self._raw, _BUFFER_SIZE)
                return
            sink = None
            if self._own is None:
                sink = functools.partial(_write_raw, file.write) if isinstance(file, io.RawIOBase) else file.write
            self._writer = Writer(
                policy or ("storage" if _is_stored(file) else "balance"),
                threads=threads,
                descriptor=os.dup(self._own.fileno()) if self._own else None,
                kind="file",
                duplex=False,
                sink=sink,
                # What cannot be converted must not be left to a call that has a descriptor to lose.
                index=bool(index),
                check=bool(check),
                timeout=timeout,
            )
        except BaseException:
            if self._own:
                self._own.close()
            self._fileobj = None
            raise

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""
        # Asked also when the object was never made.
        return getattr(self, "_fileobj", None) is None

    def _reading(self) -> io.BufferedReader:
        if self._buffer is None:
            self._refuse("not open for reading")
        return self._buffer

    def _writing(self) -> Writer:
        if self._writer is None:
            self._refuse("not open for writing")
        return self._writer

    def _refuse(self, why: str) -> NoReturn:
        if self.closed:
            raise ValueError("I/O operation on closed file.")
        raise io.UnsupportedOperation(why)

    def readable(self) -> bool:
        self._check_open()
        return self._buffer is not None

    def writable(self) -> bool:
        self._check_open()
        return self._writer is not None

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file.")

    def write(self, data: Buffer, /) -> int:
        """Takes all bytes of an object with the buffer protocol; returns how many."""
        with self._turn:
            writer = self._writer
            if writer is None:
                self._refuse("not open for writing")
            return writer.write(data, True)

    def flush(self) -> None:
        """Waits until all that was written is in the hands of the file underneath, so that a reader can have it."""
        with self._turn:
            self._check_open()
            if self._writer is not None:
                self._writer.flush()
                flush = getattr(self._fileobj, "flush", None)
                if flush is not None:
                    flush()

    def close(self) -> None:
        """Ends the stream and waits until it is written. A file object that was given stays open. After
        ``BlockingIOError`` this one is open too: close it again when the object takes bytes."""
        if self.closed:
            return
        with self._turn:
            writer, buffer = self._writer, self._buffer
            if writer is not None:
                try:
                    writer.close()
                except BlockingIOError:
                    raise
                except BaseException:
                    writer.abandon()
                    self._let_go()
                    raise
            try:
                if buffer is not None:
                    buffer.close()
            finally:
                self._let_go()

    def _let_go(self) -> None:
        own, self._totals = self._own, self._current_totals()
        self._own = self._fileobj = self._writer = self._buffer = self._raw = None
        if own is not None:
            own.close()

    def read(self, size: int | None = -1, /) -> bytes:
        """At most ``size`` bytes, fewer only at the end; all of them if it is negative or ``None``."""
        with self._turn:
            return self._reading().read(size)

    def read1(self, size: int = -1, /) -> bytes:
        """At most ``size`` bytes, with at most one wait for more."""
        with self._turn:
            return self._reading().read1(_BUFFER_SIZE if size < 0 else size)

    def readinto(self, buffer: Buffer, /) -> int:
        with self._turn:
            return self._reading().readinto(buffer)

    def readinto1(self, buffer: Buffer, /) -> int:
        with self._turn:
            return self._reading().readinto1(buffer)

    def readline(self, size: int | None = -1, /) -> bytes:
        with self._turn:
            return self._reading().readline(size)

    def peek(self, size: int = 0, /) -> bytes:
        """Bytes that come next, without moving on: at least one, but at the end."""
        with self._turn:
            return self._reading().peek(size)

    def seekable(self) -> bool:
        """Whether ``seek`` works: forward always when writing, any way when reading what can seek itself."""
        self._check_open()
        return self._buffer is None or self._buffer.seekable()

    def tell(self) -> int:
        """Position in the decoded bytes."""
        with self._turn:
            return self._writing().position if self._buffer is None else self._buffer.tell()

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Moves by decoding what lies between, backward from the start; a writer can only fill up with zeros."""
        with self._turn:
            if self._buffer is not None:
                return self._buffer.seek(offset, whence)
            writer = self._writing()
            if whence not in (io.SEEK_SET, io.SEEK_CUR):
                raise ValueError("the end of a stream that is being written is not known")
            left = offset - writer.position if whence == io.SEEK_SET else offset
            if left < 0:
                raise OSError("a stream that is being written cannot go back")
            while left > 0:
                piece = bytes(min(left, _BUFFER_SIZE))
                left -= writer.write(piece, True)
            return writer.position

    def fileno(self) -> int:
        """Descriptor of the file underneath."""
        self._check_open()
        number: int = self._fileobj.fileno()
        return number

    def stats(self) -> dict[str, Any]:
        """``raw_bytes`` and ``wire_bytes`` so far, and after ``close`` those of the whole. Of a writer also ``blocks``,
        ``ratio`` (raw / wire), ``encode_cpu_seconds`` and ``methods`` (raw bytes by method)."""
        with self._turn:
            totals = self._current_totals()
            if totals is None:
                self._refuse("not open")
            return totals.stats()

    def _current_totals(self) -> SentTotals | ReceivedTotals | None:
        if self._writer is not None:
            return self._writer.totals
        return self._totals if self._raw is None else self._raw.totals

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(f"cannot pickle {type(self).__name__!r} instances")

    def __repr__(self) -> str:
        state = "closed" if self.closed else self.mode
        return f"<narrows.NarrowsFile {getattr(self, 'name', '')!r} {state}>"

    if TYPE_CHECKING:

        def __enter__(self) -> Self: ...
        def __exit__(
            self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
        ) -> None: ...


_Binary = Literal["r", "rb", "w", "wb", "x", "xb"]
_Text = Literal["rt", "wt", "xt"]


@overload
def open(
    file: _Path | _Readable | _Writable,
    mode: _Binary = "rb",
    *,
    policy: str | None = None,
    threads: int | None = None,
    encoding: None = None,
    errors: None = None,
    newline: None = None,
    index: bool = False,
    check: bool = True,
    timeout: float | None = None,
) -> NarrowsFile: ...
@overload
def open(
    file: _Path | _Readable | _Writable,
    mode: _Text,
    *,
    policy: str | None = None,
    threads: int | None = None,
    encoding: str | None = None,
    errors: str | None = None,
    newline: str | None = None,
    index: bool = False,
    check: bool = True,
    timeout: float | None = None,
) -> io.TextIOWrapper: ...
@overload
def open(
    file: _Path | _Readable | _Writable,
    mode: str,
    *,
    policy: str | None = None,
    threads: int | None = None,
    encoding: str | None = None,
    errors: str | None = None,
    newline: str | None = None,
    index: bool = False,
    check: bool = True,
    timeout: float | None = None,
) -> NarrowsFile | io.TextIOWrapper: ...


def open(
    file: Any,
    mode: str = "rb",
    *,
    policy: str | None = None,
    threads: int | None = None,
    encoding: str | None = None,
    errors: str | None = None,
    newline: str | None = None,
    index: bool = False,
    check: bool = True,
    timeout: float | None = None,
) -> NarrowsFile | io.TextIOWrapper:
    """Opens a stream in a file, as ``gzip.open`` does: ``file`` is a path or an object with ``read`` or ``write``.

    ``mode`` is ``r``, ``w`` or ``x`` with ``b`` (the default) or ``t`` for text, to which ``encoding``, ``errors``
    and ``newline`` belong. The other arguments are those of ``NarrowsFile``. Raises what ``open`` of Python raises,
    ``ValueError`` for a wrong mode (there is no appending), ``MisuseError`` for a wrong policy.
    """
    text = "t" in mode
    if text and "b" in mode:
        raise ValueError(f"invalid mode: {mode!r}")
    if not text:
        for name, value in (("encoding", encoding), ("errors", errors), ("newline", newline)):
            if value is not None:
                raise ValueError(f"argument {name!r} not supported in binary mode")
    path, fileobj = None, None
    if isinstance(file, (str, bytes, os.PathLike)):
        path = file
    elif hasattr(file, "read") or hasattr(file, "write"):
        fileobj = file
    else:
        raise TypeError("file must be a path or a file object")
    binary = NarrowsFile(
        path,
        mode.replace("t", ""),
        policy=policy,
        threads=threads,
        fileobj=fileobj,
        index=index,
        check=check,
        timeout=timeout,
    )
    return io.TextIOWrapper(binary, encoding or io.text_encoding(None), errors, newline) if text else binary
