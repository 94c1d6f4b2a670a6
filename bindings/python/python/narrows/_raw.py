"""Raw files, whose buffers ``NarrowsFile`` reads: pipes in order, other files at any byte."""

from __future__ import annotations

import errno
import io
import os
import stat
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from ._narrows import FileReader, ReceivedTotals, Reader

if TYPE_CHECKING:
    from typing_extensions import Buffer

# Bytes decoded at a time to read everything.
_READ_SIZE = 8 * 1024 * 1024
_OFFSET_MAX = 2**63 - 1

_T = TypeVar("_T")


def is_stored(file: Any) -> bool:
    """Whether the file is storage. Its write rate then says nothing about the cost of a byte."""
    if isinstance(file, io.BytesIO):
        return True
    try:
        mode = os.fstat(file.fileno()).st_mode
    except (AttributeError, OSError, TypeError, ValueError):
        return False
    return stat.S_ISREG(mode) or stat.S_ISBLK(mode)


def is_indexed(file: Any) -> bool:
    """Whether readers may want any byte of it. Nobody does of a pipe or a socket."""
    if is_stored(file):
        return True
    try:
        file.fileno()
    except (AttributeError, OSError, TypeError, ValueError):
        # Objects of a store: they have no descriptor.
        return True
    return False


def write_raw(write: Callable[[bytes], int | None], data: bytes, /) -> int:
    """Writes to a raw file. A non-blocking one returns ``None`` if it took nothing; other objects
    return it if they took everything.
    """
    return write(data) or 0


class Pipe(io.RawIOBase):
    """Streams from the beginning of the first to the end of the last."""

    def __init__(self, file: Any, threads: int | None) -> None:
        source: Callable[[int], bytes] = getattr(file, "read1", None) or file.read
        self._reader = Reader(source, threads=threads, back=None, several=True)

    @property
    def totals(self) -> ReceivedTotals:
        return self._reader.totals

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer, /) -> int:
        return self._reader.readinto(buffer)

    def readall(self) -> bytes:
        return b"".join(iter(lambda: self._reader.read_some(_READ_SIZE), b""))

    def tell(self) -> int:
        return self._reader.delivered

    def pread(self, length: int, offset: int) -> bytes:
        raise io.UnsupportedOperation("the underlying file cannot seek")

    def size(self) -> int:
        raise io.UnsupportedOperation("the underlying file cannot seek")


class Seekable(io.RawIOBase):
    """The raw bytes of a file that can seek."""

    def __init__(self, file: Any, threads: int | None) -> None:
        begin: int = file.tell()
        number = _descriptor(file)
        self._reader = FileReader(
            descriptor=None if number is None else os.dup(number),
            object=_Positioned(file) if number is None else None,
            begin=begin,
            threads=threads,
        )
        self._at = 0

    @property
    def totals(self) -> ReceivedTotals:
        return self._reader.totals

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer, /) -> int:
        n = self._reader.readinto(buffer, self._at)
        self._at += n
        return n

    def readall(self) -> bytes:
        # Piece by piece: a length that the file states is only a claim.
        pieces = []
        while piece := self._reader.pread(_READ_SIZE, self._at):
            pieces.append(piece)
            self._at += len(piece)
        return b"".join(pieces)

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        if whence == io.SEEK_CUR:
            offset += self._at
        elif whence == io.SEEK_END:
            offset += self._reader.size()
        elif whence != io.SEEK_SET:
            raise ValueError(f"invalid whence ({whence}, should be 0, 1 or 2)")
        elif offset < 0:
            raise ValueError(f"negative seek position {offset}")
        self._at = self._reader.place(min(max(offset, 0), _OFFSET_MAX))
        return self._at

    def pread(self, length: int, offset: int) -> bytes:
        return self._reader.pread(length, min(offset, _OFFSET_MAX))

    def size(self) -> int:
        return self._reader.size()

    def format(self) -> str:
        """The name of the file's format: ``"narrows"``, ``"gzip"`` and others."""
        return self._reader.format()


def _descriptor(file: Any) -> int | None:
    """The descriptor of a file of Python itself, which threads can read without its position. Other
    objects may have one too, and read something else."""
    raw = file.raw if type(file) is io.BufferedReader else file
    if type(raw) is not io.FileIO:
        return None
    return raw.fileno()


class _Positioned:
    """Positioned reads of a file object, whose position is one for all threads."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._turn = threading.RLock()
        self._busy = False

    def read_at(self, offset: int, length: int) -> bytes:
        def read() -> bytes:
            self._file.seek(offset)
            data: bytes | None = self._file.read(length)
            if data is None:
                raise BlockingIOError(errno.EAGAIN, "the file object has no bytes now")
            return data

        return self._alone(read)

    def length(self) -> int:
        def end() -> int:
            self._file.seek(0, io.SEEK_END)
            at: int = self._file.tell()
            return at

        return self._alone(end)

    def _alone(self, call: Callable[[], _T]) -> _T:
        with self._turn:
            if self._busy:
                raise RuntimeError("the file object calls the file that reads it")
            self._busy = True
            try:
                return call()
            finally:
                self._busy = False
