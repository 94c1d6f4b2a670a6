"""Errors of the module between processes."""

import concurrent.futures
import copy
import errno
import multiprocessing
import pickle

import narrows
import pytest
from narrows import _errors

WIRE = narrows.compress(bytes(range(256)) * 8, "fixed:zstd")


def truncated(cut: int) -> bytes:
    """Raises an error, in a worker process."""
    return narrows.decompress(WIRE[:cut])


def failures() -> list[narrows.NarrowsError]:
    found = [_errors.make(kind, f"a {kind} error", None, 7, 2) for kind in (*_errors._KINDS, "io")]
    for number in sorted(errno.errorcode):
        found.append(_errors.make("io", "of the system", number, None, 3))
    for data in (b"", WIRE[:-1], WIRE[:40] + b"x" + WIRE[41:], WIRE + b"x"):
        with pytest.raises(narrows.NarrowsError) as caught:
            narrows.decompress(data)
        found.append(caught.value)
    with pytest.raises(narrows.MisuseError) as misuse:
        narrows.compress(b"", "fixed:nothing")
    return [*found, misuse.value, _errors.timed_out("late")]


def test_errors_pickle_and_copy() -> None:
    for error in failures():
        ways = [pickle.loads(pickle.dumps(error, p)) for p in range(pickle.HIGHEST_PROTOCOL + 1)]
        for again in (*ways, copy.copy(error), copy.deepcopy(error)):
            assert type(again) is type(error) and again.args == error.args and str(again) == str(error)
            assert (again.wire_offset, again.frame) == (error.wire_offset, error.frame)
            if isinstance(error, OSError):
                assert again.errno == error.errno


def test_errors_keep_the_class_that_python_has() -> None:
    assert isinstance(_errors.timed_out("late"), TimeoutError)
    for number, kind in ((errno.EPIPE, BrokenPipeError), (errno.ECONNRESET, ConnectionResetError), (errno.ENOENT, FileNotFoundError)):
        error = _errors.make("io", "of the system", number, None, None)
        assert isinstance(error, kind) and isinstance(error, narrows.IoError) and error.errno == number


def test_errors_come_out_of_other_processes() -> None:
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as executor:
        with pytest.raises(narrows.TruncatedError, match="end frame"):
            executor.submit(truncated, 100).result(60)
    with context.Pool(1) as pool:
        with pytest.raises(narrows.TruncatedError):
            pool.apply_async(truncated, (100,)).get(60)
