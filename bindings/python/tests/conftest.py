"""Shared fixtures of the tests."""

import faulthandler
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from zmq_peers import Sockets

# All traffic stays on loopback: a proxy of the environment would take it elsewhere, or wait.
for _name in ("http_proxy", "https_proxy", "all_proxy"):
    for _variable in (_name, _name.upper()):
        os.environ.pop(_variable, None)
# From the last test to the end of the process, which waits for threads. It takes well below a second;
# the rest is for a machine that has other work.
EXIT_S = 60


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish() -> None:
    """A thread that never ends makes an error that names it. (For tests, see pyproject.toml.)"""
    faulthandler.dump_traceback_later(EXIT_S, exit=True, file=2)


def _record(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Appends skipped tests to the list of NARROWS_SKIPPED, as `narrows-test` does for Rust."""
    if report.skipped and not hasattr(report, "wasxfail") and (path := os.environ.get("NARROWS_SKIPPED")):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        reason = " ".join(str(reason).removeprefix("Skipped: ").split())
        with open(path, "a", encoding="utf-8") as skipped:
            skipped.write(f"bindings/python/{report.nodeid.replace('::', ' ')}: {reason}\n")


pytest_runtest_logreport = pytest_collectreport = _record


@pytest.fixture
def chance() -> random.Random:
    """A random generator with a fixed seed."""
    return random.Random(7)


@pytest.fixture(scope="session")
def program() -> str:
    """Path of the program `narrows`, for tests that exchange data with it."""
    path = os.environ.get("NARROWS_PROGRAM", "")
    if not os.access(path, os.X_OK):
        reason = "there is no narrows: NARROWS_PROGRAM names no program"
        (pytest.fail if os.environ.get("CI") in ("true", "1") else pytest.skip)(reason)
    return path


def text(chance: random.Random, length: int) -> bytes:
    """Compressible data: lines of a log."""
    lines = bytearray()
    while len(lines) < length:
        level = chance.choice([b"INFO", b"WARN", b"DEBUG"])
        lines += b"%010d %s worker-%d served /index/%x in %d us\n" % (
            len(lines),
            level,
            chance.randrange(8),
            chance.randrange(1 << 20),
            chance.randrange(10_000),
        )
    return bytes(lines[:length])


@pytest.fixture
def sockets(tmp_path: Path) -> Iterator[Sockets]:
    made = Sockets(tmp_path)
    yield made
    for s in made.made:
        s.close(0)
    made.context.destroy(0)
