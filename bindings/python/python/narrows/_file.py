"""Compressed files: ``open`` and ``NarrowsFile``."""

from __future__ import annotations

import fcntl
import functools
import io
import os
import stat
import threading
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Protocol, overload

from ._errors import MisuseError
from ._hints import read_rate
from ._narrows import ReceivedTotals, SentTotals, Writer, format_of, with_level
from ._raw import Pipe, Seekable, is_indexed, is_stored, write_raw

if TYPE_CHECKING:
    from typing_extensions import Buffer, Self

Preset = Literal["fast", "balanced", "archive"]
_Path = str | bytes | os.PathLike[str] | os.PathLike[bytes]

# Formats that are read and not appended to, and what appends to them.
_FOREIGN = {
    "gzip": "gzip.open",
    "bzip2": "bz2.open",
    "xz": "lzma.open",
    "zstd": "zstd -c",
    "lz4": "lz4 -c",
}
# Bytes by which a format is known.
_MAGIC_MAX = 6
# Last raw bytes of a pack, and what they begin with.
_PACK_END = 64
_PACK_MAGIC = b"NRWPACK\x1a"
# Decoded bytes buffered for small reads.
_BUFFER_SIZE = 128 * 1024


class _Readable(Protocol):
    def read(self, n: int, /) -> bytes: ...


class _Writable(Protocol):
    def write(self, data: bytes, /) -> object: ...


class NarrowsFile(io.BufferedIOBase):
    """A compressed file, used as ``gzip.GzipFile``, and read at any byte. ``narrows FILE`` and
    ``narrows pipe`` read and write the same format.

    - ``filename``: a path; or ``fileobj``: an object with ``read`` or ``write``, which is not
      closed.
    - ``mode``: ``"rb"``, ``"wb"``, ``"xb"`` (the file must not exist) or ``"ab"``: appends a stream of
      its own, if the file is whole. Readers see one file. One program at a time may append. Files of
      gzip, bzip2, xz, zstd and LZ4, and packs, are refused: nobody could read them afterwards.
    - ``preset``: what time and bytes are worth: ``"fast"``, ``"balanced"`` (about as ``zstd -3``) or
      ``"archive"`` (small, whatever time it takes). By default ``"balanced"`` for files and
      ``io.BytesIO``, else the policy ``balance``.
    - ``encode_rate``: bytes per second that all cores together must encode at least, as a number or
      as ``"500MB/s"``.
    - ``policy``: chooses the compression methods instead: ``balance`` (as fast as possible over the
      underlying link), ``fixed:METHOD`` such as ``fixed:zstd:level=9``.
    - ``level``: level of the method, which is zstd unless ``policy`` names another one: 1 to 22.
    - ``threads``: number of threads that encode or decode, by default according to the number of
      cores.
    - ``index``: append an index of the blocks, so that readers find any byte with one read of the
      end. By default for everything but pipes and sockets.
    - ``check``: put a checksum on every block.
    - ``timeout``: seconds that a call that writes may wait without progress before it raises
      ``TimeoutError``; by default there is no limit, as with other files.

    Small writes are gathered up to 64 KiB; ``flush`` waits until the file has everything. Blocks
    are encoded on separate threads, without the interpreter's lock. After an error of the
    underlying file nothing more is written, and every call but ``close`` raises the error again. If
    ``write`` of ``fileobj`` takes nothing (returns 0, or ``None`` if it is an ``io.RawIOBase``),
    ``write``, ``flush`` and ``close`` raise ``BlockingIOError`` once the buffers are full; nothing
    is lost, and ``flush`` and ``close`` can be called again. A ``write`` that raises may have taken
    a part, also after a timeout or interruption: ``tell`` returns up to where, and the rest can be
    written again.

    A file is written in place, as by ``gzip``. If the body of ``with`` raises, the file gets no end,
    so that nobody takes a part for the whole: readers get what is there, then ``TruncatedError``.

    Reading seeks by the index, or, without one, by the headers of all blocks; files of several
    streams are read as one. It also reads zstd, gzip, xz, bzip2 and LZ4 by their magic numbers: zstd
    with a seek table at any byte, the others by decoding up to it. Pipes hold streams of Narrows and
    cannot seek. Blocks are decoded without the interpreter's lock; a ``fileobj`` that is no plain
    file of Python is read by ``seek`` and ``read``, one call at a time, and its position changes.

    A file that ends too early raises ``TruncatedError`` (an ``EOFError``), a damaged one
    ``CorruptError`` (an ``OSError``); blocks elsewhere can still be read. ``read1`` and
    ``readinto1`` return the bytes decoded before the error first; ``read`` and the others lose the
    bytes that they had gathered, as those of ``gzip`` do.

    Several threads may use one object: their calls run one after the other, except ``pread``, whose
    calls run at the same time. An object can only be used in the process that opened it.
    """

    def __init__(
        self,
        filename: _Path | None = None,
        mode: str = "rb",
        *,
        policy: str | None = None,
        threads: int | None = None,
        fileobj: Any = None,
        index: bool | None = None,
        check: bool = True,
        timeout: float | None = None,
        preset: Preset | None = None,
        encode_rate: float | str | None = None,
        level: int | None = None,
    ) -> None:
        # Admits one thread at a time. Reentrant calls from the underlying file object pass, and the
        # reader or writer refuses them.
        self._turn = threading.RLock()
        self._own: io.FileIO | None = None
        self._fileobj: Any = None
        self._writer: Writer | None = None
        self._buffer: io.BufferedReader | None = None
        self._raw: Pipe | Seekable | None = None
        # The totals that remain after close.
        self._totals: SentTotals | ReceivedTotals | None = None
        # Length of the file before what is appended to it; whether that holds no text yet.
        self._before: int | None = None
        self._is_first = True
        # The position that text is told at its beginning, for which the file seems to seek.
        self._text_at: int | None = None
        if mode not in ("r", "rb", "w", "wb", "x", "xb", "a", "ab"):
            raise ValueError(f"invalid mode: {mode!r}; a stream is 'rb', 'wb', 'xb' or 'ab'")
        if (filename is None) == (fileobj is None):
            raise TypeError("either a path or a file object is needed")
        self.mode = mode[0] + "b"
        # Checked before a file is truncated.
        if policy is not None and (preset is not None or encode_rate is not None):
            raise MisuseError("policy= chooses the methods, so preset= and encode_rate= have no effect beside it")
        if level is not None:
            if preset is not None or encode_rate is not None:
                raise MisuseError("level= chooses the method, so preset= and encode_rate= have no effect beside it")
            policy = with_level(policy or "fixed:zstd", level)
        rate = read_rate(encode_rate)
        if rate is not None:
            preset, rate = preset or "balanced", max(1, round(rate))
        Writer.validate(policy or "balance", threads, timeout, preset, rate)
        if fileobj is None:
            assert filename is not None
            if self.mode == "ab":
                self._is_first = _check_end(filename)
            self._own = io.FileIO(filename, self.mode)
            if self.mode == "ab" and is_stored(self._own):
                self._before = self._own.seek(0, io.SEEK_END)
        elif self.mode == "ab":
            self._is_first = _check_begin(fileobj)
        file: Any = fileobj if fileobj is not None else self._own
        self._fileobj = file
        self.name: Any = os.fspath(filename) if filename is not None else getattr(file, "name", "")
        try:
            if self.mode == "rb":
                seekable = bool(getattr(file, "seekable", lambda: False)())
                self._raw = Seekable(file, threads) if seekable else Pipe(file, threads)
                self._buffer = io.BufferedReader(self._raw, _BUFFER_SIZE)
                return
            sink = None
            if self._own is None:
                sink = functools.partial(write_raw, file.write) if isinstance(file, io.RawIOBase) else file.write
            if policy is None and preset is None and is_stored(file):
                preset = "balanced"
            # Converted before the call, since a failure inside it would leak the descriptor.
            index = is_indexed(file) if index is None else bool(index)
            self._writer = Writer(
                policy or "balance",
                threads=threads,
                descriptor=os.dup(self._own.fileno()) if self._own else None,
                kind="file",
                duplex=False,
                sink=sink,
                index=index,
                check=bool(check),
                timeout=timeout,
                preset=preset,
                encode_rate=rate,
            )
        except BaseException:
            if self._own:
                self._own.close()
            self._fileobj = None
            raise

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""
        # Also called if __init__ failed.
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

    def write(self, data: Buffer) -> int:
        """Writes all bytes of an object with the buffer protocol; returns their number."""
        with self._turn:
            writer = self._writer
            if writer is None:
                self._refuse("not open for writing")
            return writer.write(data, True)

    def flush(self) -> None:
        """Waits until the underlying file has everything that was written, so that a reader can
        read it.
        """
        with self._turn:
            self._check_open()
            if self._writer is not None:
                self._writer.flush()
                flush = getattr(self._fileobj, "flush", None)
                if flush is not None:
                    flush()

    def close(self) -> None:
        """Ends the stream and waits until it is written. A given file object stays open. After
        ``BlockingIOError`` this object is still open: close it again when the file object accepts
        bytes.
        """
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

    def abandon(self) -> None:
        """Closes a file without an end: readers get what is there, then ``TruncatedError``. What was
        not written yet is lost. A file that was appended to is as it was before. ``with`` does it if
        its body raises. A reader is closed.
        """
        with self._turn:
            if self._writer is None:
                self.close()
                return
            try:
                self._writer.abandon()
                if self._own is not None and self._before is not None:
                    self._own.truncate(self._before)
            finally:
                self._let_go()

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()

    def _let_go(self) -> None:
        own, self._totals = self._own, self._current_totals()
        self._own = self._fileobj = self._writer = self._buffer = self._raw = None
        if own is not None:
            own.close()

    def read(self, size: int | None = -1) -> bytes:
        """Reads ``size`` bytes, fewer only at the end; all of them if ``size`` is negative or
        ``None``.
        """
        with self._turn:
            return self._reading().read(size)

    def read1(self, size: int = -1) -> bytes:
        """Reads at most ``size`` bytes, and waits for more at most once."""
        with self._turn:
            return self._reading().read1(_BUFFER_SIZE if size < 0 else size)

    def readinto(self, buffer: Buffer, /) -> int:
        with self._turn:
            return self._reading().readinto(buffer)

    def readinto1(self, buffer: Buffer, /) -> int:
        with self._turn:
            return self._reading().readinto1(buffer)

    def readline(self, size: int | None = -1) -> bytes:
        with self._turn:
            return self._reading().readline(size)

    def peek(self, n: int = 0) -> bytes:
        """Returns the next bytes without advancing: at least one, except at the end."""
        with self._turn:
            return self._reading().peek(n)

    def seekable(self) -> bool:
        """Whether ``seek`` works: when reading a file that can seek. A stream that is being written
        cannot, so that ``zipfile`` and others write it in one pass, as they do with ``bz2``.
        """
        self._check_open()
        return self._text_at is not None or (self._buffer is not None and self._buffer.seekable())

    def pread(self, length: int, offset: int, /) -> bytes:
        """Returns the bytes from ``offset`` on, fewer than ``length`` only at the end, as ``os.pread``
        does. The position stays. Threads may call it at the same time.
        """
        raw = self._raw
        if raw is None:
            self._refuse("not open for reading")
        if length < 0 or offset < 0:
            raise ValueError("length and offset must be 0 or more")
        return raw.pread(length, offset)

    def size(self) -> int:
        """Length of the decoded bytes. Files of gzip, xz, bzip2 and LZ4, and of zstd without a seek
        table, are decoded to their end to find it.
        """
        raw = self._raw
        if raw is None:
            self._refuse("not open for reading")
        return raw.size()

    def tell(self) -> int:
        """Position in the decoded bytes."""
        if self._text_at is not None:
            return self._text_at
        with self._turn:
            return self._writing().position if self._buffer is None else self._buffer.tell()

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Seeks to any byte, behind the end to the end. Only when reading."""
        with self._turn:
            if self._buffer is None:
                self._refuse("a stream that is being written cannot seek")
            return self._buffer.seek(offset, whence)

    def fileno(self) -> int:
        """Descriptor of the underlying file."""
        self._check_open()
        number: int = self._fileobj.fileno()
        return number

    def stats(self) -> dict[str, Any]:
        """``raw_bytes`` and ``wire_bytes`` so far, after ``close`` the final ones; of a file that
        can seek, up to the last byte that was read, and its whole length. For a writer also
        ``blocks``, ``ratio`` (raw / wire), ``encode_cpu_seconds`` and ``methods`` (raw bytes by
        method).
        """
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


class _TextFile(io.TextIOWrapper):
    """Gives a file no end if the body of ``with`` raises."""

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is not None and isinstance(self.buffer, NarrowsFile):
            self.buffer.abandon()
        self.close()


_Binary = Literal["r", "rb", "w", "wb", "x", "xb", "a", "ab"]
_Text = Literal["rt", "wt", "xt", "at"]


def _check_end(filename: _Path) -> bool:
    """Raises the error that what would be appended to this file could not be read. Returns whether the file
    has nothing yet.
    """
    try:
        found = os.stat(filename)
    except FileNotFoundError:
        return True
    if not stat.S_ISREG(found.st_mode) or not found.st_size:
        return True
    with NarrowsFile(filename) as file:
        assert isinstance(file._raw, Seekable)
        _refuse_foreign(filename, file._raw.format())
        size = file.size()
        end = file.pread(_PACK_END, size - _PACK_END) if size >= _PACK_END else b""
        if end.startswith(_PACK_MAGIC):
            raise MisuseError(f"{_shown(filename)} is a pack, in which nothing may follow; make another one")
    return size == 0


def _check_begin(file: Any) -> bool:
    """As ``_check_end`` of a file object, whose own bytes may stand before its streams: raises the error only if
    it begins as a file of another format, where that can be seen.
    """
    try:
        at, begin = _before(file)
    except (AttributeError, OSError, TypeError, ValueError):
        return True
    _refuse_foreign(getattr(file, "name", "the file"), format_of(begin))
    return at == 0


def _before(file: Any) -> tuple[int, bytes]:
    """The position at which a file object writes, and the first bytes before it; none where it cannot tell."""
    try:
        number = file.fileno()
        found = os.fstat(number)
    except (AttributeError, OSError, TypeError, ValueError):
        number = None
    if number is not None:
        if not stat.S_ISREG(found.st_mode):
            return 0, b""
        # Who appends may tell another position. A file that is open for writing only is opened once more.
        at = found.st_size if fcntl.fcntl(number, fcntl.F_GETFL) & os.O_APPEND else file.tell()
        if not at:
            return 0, b""
        with io.FileIO(f"/proc/self/fd/{number}") as again:
            return at, again.read(min(at, _MAGIC_MAX)) or b""
    at = file.tell() if file.seekable() else 0
    if not at or not file.readable():
        return at, b""
    file.seek(0)
    try:
        return at, file.read(min(at, _MAGIC_MAX))
    finally:
        file.seek(at)


def _refuse_foreign(name: Any, found: str) -> None:
    if found in _FOREIGN:
        raise MisuseError(
            f"{_shown(name)} is a file of {found}, which nobody could read with a stream of Narrows behind it; "
            f"append by {_FOREIGN[found]}, or write to a new file"
        )


def _shown(name: Any) -> str:
    return os.fsdecode(name) if isinstance(name, (str, bytes, os.PathLike)) else str(name)


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
    index: bool | None = None,
    check: bool = True,
    timeout: float | None = None,
    preset: Preset | None = None,
    encode_rate: float | str | None = None,
    level: int | None = None,
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
    index: bool | None = None,
    check: bool = True,
    timeout: float | None = None,
    preset: Preset | None = None,
    encode_rate: float | str | None = None,
    level: int | None = None,
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
    index: bool | None = None,
    check: bool = True,
    timeout: float | None = None,
    preset: Preset | None = None,
    encode_rate: float | str | None = None,
    level: int | None = None,
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
    index: bool | None = None,
    check: bool = True,
    timeout: float | None = None,
    preset: Preset | None = None,
    encode_rate: float | str | None = None,
    level: int | None = None,
) -> NarrowsFile | io.TextIOWrapper:
    """Opens a compressed file, as ``gzip.open`` does, and reads it at any byte. ``file`` is a path or
    an object with ``read`` or ``write``, such as those of fsspec.

    ``mode`` is ``r``, ``w``, ``x`` or ``a`` with ``b`` (the default) or ``t`` for text, to which
    ``encoding``, ``errors`` and ``newline`` apply. The other arguments are those of
    ``NarrowsFile``. Raises what Python's ``open`` raises, ``ValueError`` for a wrong mode, and
    ``MisuseError`` for a wrong policy; for ``a``, ``TruncatedError`` and ``CorruptError`` if the file
    has no end, ``MisuseError`` if it is of gzip or another format, since nobody could read what is
    behind it.
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
        preset=preset,
        encode_rate=encode_rate,
        level=level,
    )
    if not text:
        return binary
    # A TextIOWrapper writes the mark of the byte order, such as that of UTF-16, where its file can seek and is
    # at its beginning.
    if binary._writer is not None:
        binary._text_at = 0 if binary._is_first else 1
    try:
        return _TextFile(binary, encoding or io.text_encoding(None), errors, newline)
    finally:
        binary._text_at = None
