"""Exceptions: one class for each kind of error, all derived from ``NarrowsError``."""

from __future__ import annotations

import errno as _errno


class NarrowsError(Exception):
    """Base of all errors of this module.

    ``wire_offset``: offset in bytes of the faulty frame in the encoded stream. ``frame``: number of
    that frame, from 0. Both are ``None`` if there is no such frame. ``stored``: what a server answered
    whose values cannot be decoded, with their stored bytes; ``None`` elsewhere.
    """

    wire_offset: int | None = None
    frame: int | None = None
    stored: object = None


class CorruptError(NarrowsError, OSError):
    """The bytes are not what a sender wrote: damaged or hostile. Fetch them again.

    An ``OSError``, as ``gzip.BadGzipFile`` is, so that code that reads files and catches
    ``OSError`` catches this too.
    """


class TruncatedError(NarrowsError, EOFError):
    """The stream stops before its end. An ``EOFError``, as ``gzip`` raises. Fetch the rest, or all
    of it again.
    """


class UnsupportedError(NarrowsError, OSError):
    """A newer format, or a feature or codec that this build lacks. Upgrade the reader."""


class LimitError(NarrowsError, ValueError):
    """A length or request exceeds the limits of this side. Raise the limit, or refuse the peer."""


class MisuseError(NarrowsError, ValueError):
    """The call itself is wrong: a bad specification, or calls out of order."""


class IoError(NarrowsError, OSError):
    """The operating system or the peer's connection failed; ``errno`` has the cause.

    If Python has a class of its own for the error (``TimeoutError``, ``BrokenPipeError``), the
    error is an instance of that class too.
    """


_KINDS: dict[str, type[NarrowsError]] = {
    "corrupt": CorruptError,
    "truncated": TruncatedError,
    "unsupported": UnsupportedError,
    "limit": LimitError,
    "misuse": MisuseError,
}
# Each class is an attribute of this module, so that errors can be pickled, for other processes.
_io_classes: dict[type[OSError], type[IoError]] = {OSError: IoError}
for _kind in (
    BlockingIOError,
    BrokenPipeError,
    ChildProcessError,
    ConnectionAbortedError,
    ConnectionRefusedError,
    ConnectionResetError,
    FileExistsError,
    FileNotFoundError,
    InterruptedError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
    ProcessLookupError,
    TimeoutError,
):
    _io_classes[_kind] = type(f"Io{_kind.__name__}", (IoError, _kind), {"__module__": __name__})
    globals()[f"Io{_kind.__name__}"] = _io_classes[_kind]


def _io_error(message: str, errno: int | None) -> IoError:
    if errno is None:
        return IoError(message)
    return _io_classes.get(type(OSError(errno, message)), IoError)(errno, message)


def timed_out(message: str) -> IoError:
    """An ``IoError`` that is also a ``TimeoutError``."""
    return _io_error(message, _errno.ETIMEDOUT)


def make(kind: str, message: str, errno: int | None, wire_offset: int | None, frame: int | None) -> NarrowsError:
    """The exception for an error of the engine of this ``kind``: a key of ``_KINDS``, or ``io``."""
    error = _io_error(message, errno) if kind == "io" else _KINDS[kind](message)
    error.wire_offset, error.frame = wire_offset, frame
    return error
