"""Arrays of numbers, exact or within a stated error.

``compress`` makes one chunk of an array, ``decompress`` gives it back, ``info`` tells what a chunk says
of itself. ``Encoder`` encodes many chunks of one array and remembers what suited the ones before. Every
lossy chunk is decoded and compared with its bound before it is returned.

An array is any object with the buffer protocol: NumPy arrays of every order and layout, ``array.array``,
``bytes``. Elements are integers, floats and complex numbers of up to 64 bits each half, truth values,
dates, and records of these; records and truth values are always exact. All calls release the
interpreter's lock and may run on several threads at once.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ._errors import CorruptError
from ._hints import Hints, Mode, Number, Range, Share
from ._narrows import ARRAY_MAX, ArrayEncoder, DecodedArray, array_decode, array_info

__all__ = ["ARRAY_MAX", "ChunkInfo", "Encoder", "compress", "decompress", "info"]

# Not a time: the least integer, by which NumPy marks what is missing.
_NAT = float(-(2**63))
# Bytes of a record, by the chunk format.
_RECORD_MAX = 65535


def _elements(a: Any) -> tuple[Any, bool]:
    """The elements as an object whose buffer can be read, and whether they are dates."""
    np = sys.modules.get("numpy")
    if np is None:
        return a, False
    if not isinstance(a, np.ndarray):
        if not hasattr(a, "__array__"):
            return a, False
        a = np.asarray(a)
    if isinstance(a, np.ma.MaskedArray):
        raise TypeError("the array has a mask, which a chunk does not keep; encode a.filled(value) with fill=value")
    check_dtype(a.dtype)
    stored = _stored(np, a.dtype)
    return (a if stored is a.dtype else a.view(stored)), a.dtype.kind in "mM"


def check_dtype(dtype: Any) -> None:
    """``TypeError`` for a NumPy dtype that chunks cannot have."""
    if dtype.hasobject or dtype.kind not in "biufcmMV" or dtype.itemsize == 0:
        raise TypeError(f"elements of type {dtype} are no numbers; store text and objects by another codec")
    if dtype.kind in "fc" and dtype.itemsize > (8 if dtype.kind == "f" else 16):
        raise TypeError(f"elements of type {dtype} have more than 64 bits; convert them to float64 or complex128")
    if dtype.kind == "V" and dtype.itemsize > _RECORD_MAX:
        raise TypeError(f"records of {dtype.itemsize} bytes are longer than {_RECORD_MAX}")


def as_bytes(a: Any) -> Any:
    """An array of text or records as one of plain records, or of bytes where these would be too long."""
    if a.dtype.itemsize <= _RECORD_MAX:
        return a.view(f"V{a.dtype.itemsize}")
    return a.ravel(order="K").view("u1")


class Encoder:
    """Encodes the chunks of one array, in any order and on any thread.

    Remembers which steps and codec suited the chunks so far, so that they are not searched again for
    every chunk. Hints are those of ``compress``. Chunks of different threads may be encoded differently
    in another run; they always decode to the same.
    """

    def __init__(
        self,
        *,
        abs: Number | None = None,
        rel: Share | None = None,
        floor: Number | None = None,
        digits: int | None = None,
        bits: int | None = None,
        range_rel: Share | None = None,
        fill: Number | Iterable[Number] | None = None,
        exact: Range | Iterable[Range] | None = None,
        mode: Mode = "balanced",
        encode_rate: Number | str | None = None,
    ) -> None:
        hints = Hints.of(
            abs=abs,
            rel=rel,
            floor=floor,
            digits=digits,
            bits=bits,
            range_rel=range_rel,
            fill=fill,
            exact=exact,
            mode=mode,
            encode_rate=encode_rate,
            whole_chunks=True,
        )
        self._start(hints)

    def _start(self, hints: Hints) -> None:
        self._hints = hints
        self._native = hints.encoder()
        self._dates: ArrayEncoder | None = None

    @classmethod
    def of(cls, hints: Hints) -> Encoder:
        """An encoder with hints that were read before."""
        encoder = cls.__new__(cls)
        encoder._start(hints)
        return encoder

    @property
    def hints(self) -> Hints:
        return self._hints

    @property
    def pipeline(self) -> str | None:
        """The steps and codec in use; ``None`` before the first chunk."""
        return (self._dates or self._native).pipeline

    @property
    def trials(self) -> int:
        """How often steps and codecs were compared."""
        return (self._dates or self._native).trials

    def encode(self, a: Any) -> bytes:
        """One chunk."""
        elements, dates = _elements(a)
        if not dates or self._hints.is_lossless:
            return self._native.encode(elements)
        if self._dates is None:
            self._dates = self._hints.keeping(_NAT).encoder()
        return self._dates.encode(elements)

    def __reduce__(self) -> tuple[Any, tuple[Hints]]:
        # Without the memory, which is made again by the first chunk.
        return Encoder.of, (self._hints,)

    def __repr__(self) -> str:
        hints = ", ".join(f"{name}={value!r}" for name, value in self._hints.to_dict().items())
        return f"narrows.array.Encoder({hints})"


def compress(
    a: Any,
    *,
    abs: Number | None = None,
    rel: Share | None = None,
    floor: Number | None = None,
    digits: int | None = None,
    bits: int | None = None,
    range_rel: Share | None = None,
    fill: Number | Iterable[Number] | None = None,
    exact: Range | Iterable[Range] | None = None,
    mode: Mode = "balanced",
    encode_rate: Number | str | None = None,
) -> bytes:
    """Encodes an array of at most 1 GiB as one chunk.

    Exact without hints. All hints that are stated hold at once, for every element; 0 means exact.

    - ``abs``: the largest absolute error.
    - ``rel``: the largest error as a share of the value (``0.01`` or ``"1%"``), but ``floor`` if that is
      more.
    - ``digits``, ``bits``: significant decimal digits; significant bits behind the leading one.
    - ``range_rel``: the largest error as a share of the range of the chunk's values.
    - ``fill``: a value, or several, that stay as they are; ``exact``: a range ``(low, high)``, or several,
      of such values, where ``None`` is no end. Not-a-numbers, infinities and -0.0 always stay.
    - ``mode``: ``fast``, ``balanced`` or ``archive``; ``encode_rate``: bytes per second that one core must
      encode at least, by nominal speeds.

    Raises ``TypeError`` for elements that are no numbers, ``MisuseError`` for hints without sense,
    ``LimitError`` for more than 1 GiB.
    """
    encoder = Encoder(
        abs=abs,
        rel=rel,
        floor=floor,
        digits=digits,
        bits=bits,
        range_rel=range_rel,
        fill=fill,
        exact=exact,
        mode=mode,
        encode_rate=encode_rate,
    )
    return encoder.encode(a)


def decompress(chunk: Any, *, max_length: int = ARRAY_MAX, dtype: Any = None) -> Any:
    """Decodes a chunk: a NumPy array with the dtype, byte order, shape and layout that it was made of.

    Without NumPy, a ``DecodedArray``: its ``dtype`` (``"<f4"``), ``shape``, and the elements by the
    buffer protocol.

    - ``max_length``: the most raw bytes that are decoded, since a few bytes may expand to very many.
    - ``dtype``: for dates and records, which chunks keep as integers and plain bytes: the NumPy dtype,
      of the same length.

    Raises ``CorruptError``, ``TruncatedError`` (an ``EOFError``), ``UnsupportedError``, and ``LimitError``
    for a longer chunk.
    """
    decoded = array_decode(chunk, max_length)
    try:
        import numpy as np
    except ImportError:
        if dtype is not None:
            raise TypeError("dtype= needs NumPy, which is not installed") from None
        return decoded
    array = _ndarray(np, decoded)
    return array if dtype is None else array.view(dtype)


def _ndarray(np: Any, decoded: DecodedArray) -> Any:
    return np.ndarray(decoded.shape, decoded.dtype, decoded, order=decoded.order)


def decompress_as(chunk: Any, dtype: Any, shape: tuple[int, ...]) -> Any:
    """Decodes what has to be of this NumPy dtype and shape. ``CorruptError`` if it is of another."""
    import numpy as np

    length = dtype.itemsize
    for axis in shape:
        length *= axis
    decoded = array_decode(chunk, length)
    stored, found = _stored(np, dtype), np.dtype(decoded.dtype)
    if decoded.shape != shape or found not in (stored, stored.newbyteorder()):
        raise CorruptError(
            f"the chunk has {decoded.dtype} of shape {decoded.shape}, where the store's metadata say {dtype} of "
            f"shape {shape}: the chunk or the metadata are of another array"
        )
    array = _ndarray(np, decoded)
    if found != stored:
        array = array.byteswap().view(stored)
    return array if stored == dtype else array.view(dtype)


def _stored(np: Any, dtype: Any) -> Any:
    """The dtype by which a chunk keeps another."""
    if dtype.kind in "mM":
        return np.dtype("i8").newbyteorder(dtype.byteorder)
    return np.dtype(f"V{dtype.itemsize}") if dtype.kind == "V" else dtype


@dataclass(frozen=True)
class ChunkInfo:
    """What a chunk says of itself. ``abs``, ``rel``, ``floor``: the bound that it keeps, ``None`` where
    it has none. ``worst_abs``, ``worst_rel``: not below the largest errors. ``exceptions``: values stored
    exactly since they would have missed the bound. ``keeps``: whether some values were to stay exact.
    """

    dtype: str
    shape: tuple[int, ...]
    order: str
    raw_len: int
    wire_len: int
    pipeline: str
    abs: float | None = None
    rel: float | None = None
    floor: float | None = None
    keeps: bool = False
    worst_abs: float | None = None
    worst_rel: float | None = None
    exceptions: int = 0

    @property
    def ratio(self) -> float:
        """Raw bytes by encoded ones."""
        return self.raw_len / self.wire_len


def info(chunk: Any) -> ChunkInfo:
    """Decodes a chunk, compares its check, and tells what it says of itself."""
    return ChunkInfo(**array_info(chunk))
