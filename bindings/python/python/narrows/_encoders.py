"""Encoders that stores share: their codecs are stateless, and each is made again for every task."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from ._hints import Hints
from .array import Encoder

# One is some hundred bytes, and a file seldom has more kinds of chunks.
_KINDS_MAX = 256


# The cache takes no lock of Python, so a forked process never finds one held.
@lru_cache(_KINDS_MAX)
def encoder(hints: Hints, dtype: Any, shape: tuple[int, ...]) -> Encoder:
    """The encoder of this process for chunks of this kind, with what it learned from those before.
    Variables that are alike share one: it remembers several winners."""
    return Encoder.of(hints)
