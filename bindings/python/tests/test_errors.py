"""Errors of the module: between processes, and without the libraries that parts of it need."""

import concurrent.futures
import copy
import errno
import multiprocessing
import pathlib
import pickle
import subprocess
import sys
import tomllib

import narrows
import pytest
from narrows import _errors, _extras

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


EXTRAS = [
    ("narrows.redis", "redis", "redis"),
    ("narrows.redis.asyncio", "redis", "redis"),
    ("narrows.zmq", "zmq", "zmq"),
    ("narrows.zmq.asyncio", "zmq", "zmq"),
    ("narrows.httpx", "httpx", "http"),
]


@pytest.mark.parametrize("part, library, extra", EXTRAS)
def test_a_missing_library_is_told_with_its_extra(part: str, library: str, extra: str) -> None:
    project = pathlib.Path(__file__).parents[1] / "pyproject.toml"
    (requirement,) = tomllib.loads(project.read_text())["project"]["optional-dependencies"][extra]
    code = f"""
import importlib, sys
sys.modules[{library!r}] = None
try:
    importlib.import_module({part!r})
except ModuleNotFoundError as error:
    print(error.name, error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.startswith(f"{library} {part.removesuffix('.asyncio')} needs "), done.stdout
    assert f"pip install '{requirement}'" in done.stdout and f"[{extra}]" in done.stdout


def test_another_missing_module_keeps_its_error() -> None:
    error = ModuleNotFoundError("No module named 'typing_extensions'", name="typing_extensions")
    assert _extras.missing(error, "narrows.redis", "redis", "redis>=6") is error
