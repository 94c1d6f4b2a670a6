"""The codec for Zarr v3: an array-to-bytes codec, since only these see dtype, shape and fill value."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from zarr import codecs
from zarr.abc.codec import ArrayBytesCodec

from ._encoders import encoder
from ._errors import MisuseError
from ._hints import Hints, Mode, Number, Range, Share, pass_on
from .array import check_dtype, decompress_as

if TYPE_CHECKING:
    from zarr.core.array_spec import ArraySpec
    from zarr.core.buffer import Buffer, NDBuffer

# A name in our namespace, with the dot that the registry of Zarr's extensions has for namespaces.
NAME = "narrows.array"


@dataclass(frozen=True, init=False)
class ArrayCodec(ArrayBytesCodec):
    """Chunks of numbers, exact or within a bound. ``narrows.zarr`` makes one with what belongs to it.

    Has no state: encoders are shared by all arrays of the process, and contexts of codecs belong to
    threads.
    """

    is_fixed_size = False

    hints: Hints

    def __init__(self, **hints: Any) -> None:
        object.__setattr__(self, "hints", Hints.of(**hints))

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        configuration = data.get("configuration", {})
        if data.get("name") != NAME or not isinstance(configuration, dict):
            raise MisuseError(f"the metadata of a codec called {data.get('name')!r} are none of {NAME}")
        codec = cls()
        object.__setattr__(codec, "hints", Hints.from_dict(configuration))
        return codec

    def to_dict(self) -> dict[str, Any]:
        return {"name": NAME, "configuration": self.hints.to_dict()}

    def evolve_from_array_spec(self, array_spec: ArraySpec) -> ArrayBytesCodec:  # type: ignore[override]
        """Itself; for text and objects what Zarr stores them by, since the dtype is known only here."""
        dtype = array_spec.dtype
        of_objects = getattr(dtype, "object_codec_id", None)
        if of_objects == "vlen-utf8":
            return codecs.VLenUTF8Codec()
        if of_objects == "vlen-bytes":
            return codecs.VLenBytesCodec()
        try:
            check_dtype(dtype.to_native_dtype())
        except TypeError:
            return codecs.BytesCodec().evolve_from_array_spec(array_spec)
        return self

    def validate(self, *, shape: Any, dtype: Any, chunk_grid: Any) -> None:
        check_dtype(dtype.to_native_dtype())

    def _for(self, spec: ArraySpec) -> Hints:
        """The hints, where the fill value stays exact: it stands for what is missing."""
        fill = spec.fill_value
        kind = getattr(getattr(fill, "dtype", None), "kind", "")
        if self.hints.is_lossless or kind not in ("i", "u", "f", "c"):
            return self.hints
        hints = self.hints.keeping(fill.real, fill.imag) if kind == "c" else self.hints.keeping(fill)
        return hints.keeping_missing(fill.dtype)

    def _encode_sync(self, chunk_array: NDBuffer, chunk_spec: ArraySpec) -> Buffer | None:
        elements = chunk_array.as_numpy_array()
        encoded = encoder(self._for(chunk_spec), elements.dtype, chunk_spec.shape).encode(elements)
        return chunk_spec.prototype.buffer.from_bytes(encoded)

    def _decode_sync(self, chunk_bytes: Buffer, chunk_spec: ArraySpec) -> NDBuffer:
        dtype = chunk_spec.dtype.to_native_dtype()
        array = decompress_as(chunk_bytes.as_numpy_array(), dtype, chunk_spec.shape)
        return chunk_spec.prototype.nd_buffer.from_numpy_array(array)

    async def _encode_single(self, chunk_array: NDBuffer, chunk_spec: ArraySpec) -> Buffer | None:
        return await asyncio.to_thread(self._encode_sync, chunk_array, chunk_spec)

    async def _decode_single(self, chunk_bytes: Buffer, chunk_spec: ArraySpec) -> NDBuffer:
        return await asyncio.to_thread(self._decode_sync, chunk_bytes, chunk_spec)

    def compute_encoded_size(self, input_byte_length: int, chunk_spec: ArraySpec) -> int:
        raise NotImplementedError


class VLenUTF8Codec(ArrayCodec):
    """What a new array is made with, whose dtype is not known yet. zarr looks at the name of the class: for
    strings it takes no other.
    """

    def evolve_from_array_spec(self, array_spec: ArraySpec) -> ArrayBytesCodec:  # type: ignore[override]
        known = ArrayCodec()
        object.__setattr__(known, "hints", self.hints)
        return known.evolve_from_array_spec(array_spec)


def zarr(
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
    """What a Zarr v3 array is to be made with, exact or within a bound::

        ds.to_zarr("o.zarr", encoding={"tas": narrows.zarr(rel=0.001, floor=1e-6)})
        zarr.create_array("o.zarr", shape=..., dtype="f4", **narrows.zarr(abs=0.01))

    Hints are those of ``narrows.array.compress``, and ``whole_chunks=True`` where each chunk is written
    whole and once, which shrinks more within a bound. The array's fill value stays exact, and so do
    9.96921e36 and 1e20 in floats; state others by ``fill``. ``_FillValue``, for xarray, and ``fill_value``, for zarr,
    stay exact too, and are passed on to them. Text and objects are stored as Zarr does it, and not
    compressed.
    """
    passed, fill = pass_on(_FillValue, fill_value, fill)
    codec = VLenUTF8Codec(
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
    return {"serializer": codec, "compressors": (), **passed}
