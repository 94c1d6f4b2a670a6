"""The codec for Zarr v2 and others that use numcodecs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Self

from numcodecs.abc import Codec
from numcodecs.compat import ensure_contiguous_ndarray_like, ensure_ndarray_like, ndarray_copy

from ._encoders import encoder
from ._hints import Hints, Mode, Number, Range, Share, pass_on
from .array import as_bytes, check_dtype, decompress

if TYPE_CHECKING:
    from typing_extensions import Buffer

NAME = "narrows"


class ArrayCodec2(Codec):  # type: ignore[misc] # numcodecs has no types.
    """Chunks of numbers, exact or within a bound, as compressor or filter.

    Has no state: encoders are shared by all arrays of the process, and contexts of codecs belong to
    threads.
    """

    codec_id = NAME

    def __init__(self, **hints: Any) -> None:
        self.hints = Hints.of(**hints)

    def encode(self, buf: Any) -> bytes:
        elements, hints = ensure_ndarray_like(buf), self.hints
        if isinstance(buf, (bytes, bytearray, memoryview)):
            # What a filter in front made of text or objects: no bound holds for that.
            hints = hints.exactly()
        elif elements.dtype.kind in "SUV" and not elements.dtype.hasobject:
            elements, hints = as_bytes(elements), hints.exactly()
        check_dtype(elements.dtype)
        hints = hints.keeping_missing(elements.dtype)
        return encoder(hints, elements.dtype, elements.shape).encode(elements)

    def decode(self, buf: Buffer, out: Any = None) -> Any:
        array = decompress(ensure_contiguous_ndarray_like(buf))
        return array if out is None else ndarray_copy(array, out)

    def get_config(self) -> dict[str, Any]:
        return {"id": NAME, **self.hints.to_dict()}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        codec = cls()
        codec.hints = Hints.from_dict({name: value for name, value in config.items() if name != "id"})
        return codec

    def __repr__(self) -> str:
        hints = ", ".join(f"{name}={value!r}" for name, value in self.hints.to_dict().items())
        return f"narrows.zarr2({hints})"


def zarr2(
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
    whole_chunks: bool = False,
    _FillValue: Number | None = None,
    fill_value: Number | None = None,
) -> dict[str, Any]:
    """What a Zarr v2 array is to be made with, exact or within a bound::

        ds.to_zarr("o.zarr", zarr_format=2, encoding={"tas": narrows.zarr2(digits=3)})
        zarr.create_array("o.zarr", zarr_format=2, shape=..., dtype="f4", **narrows.zarr2(abs=0.01))

    Hints are those of ``narrows.array.compress``, and ``whole_chunks=True`` where each chunk is written
    whole and once, which shrinks more within a bound. Codecs of Zarr v2 do not see the array's fill value,
    by which chunks at the edge are padded: state it here, as ``_FillValue`` for xarray or ``fill_value`` for
    zarr, to which it is passed on, or by ``fill``. With ``range_rel`` it is taken for 0 where none is stated.
    9.96921e36 and 1e20 stay exact in floats, and so do text, objects and records. A filter in front, such as
    ``Delta``, makes other numbers of the values, and the bound holds for those.
    """
    passed, fill = pass_on(_FillValue, fill_value, fill)
    if range_rel is not None and fill is None:
        fill = 0
    codec = ArrayCodec2(
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
        whole_chunks=whole_chunks,
    )
    return {"compressors": codec, **passed}
