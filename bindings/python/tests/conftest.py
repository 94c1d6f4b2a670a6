"""What several tests use."""

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from zmq_peers import Sockets


@pytest.fixture
def chance() -> random.Random:
    """The same numbers every time."""
    return random.Random(7)


@pytest.fixture(scope="session")
def program() -> str:
    """Path of the program `narrows`, for what both must read of each other."""
    path = os.environ.get("NARROWS_PROGRAM", "")
    if not os.access(path, os.X_OK):
        pytest.skip("NARROWS_PROGRAM names no program")
    return path


def text(chance: random.Random, length: int) -> bytes:
    """Lines of a log: what compresses."""
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
