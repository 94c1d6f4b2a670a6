"""Adaptive compression for data that crosses a network.

Streams: ``open`` and ``NarrowsFile`` work as ``gzip.open`` and ``gzip.GzipFile``, and read files at
any byte; ``compress`` and ``decompress`` process whole streams in memory, ``Compressor`` and
``Decompressor`` piece by piece; ``wrap_socket`` makes each direction of a connection a stream, and
``narrows.aio`` does so for asyncio. Messages: ``MessageEnd`` is one end of a link with both
directions; ``MessageEncoder`` and ``MessageDecoder`` are the two ends of one direction;
``TopicWriter`` and ``TopicReader`` are those of a topic with many readers; ``train`` makes a
``Dictionary``. ``Values`` encodes what is kept in a store, such as Redis. Arrays: ``narrows.array``
encodes chunks of numbers, exactly or within a stated error; ``zarr`` and ``zarr2`` are what Zarr
and xarray need for that, ``hdf5`` is for h5py and xarray, ``xarray_encoding`` for whole datasets,
``netcdf4_filter`` for netCDF4; ``write_chunks`` encodes for HDF5 on all cores. All errors are
``NarrowsError``, with one class for each kind.
"""

from typing import TYPE_CHECKING, Any

from ._errors import (
    CorruptError,
    IoError,
    LimitError,
    MisuseError,
    NarrowsError,
    TruncatedError,
    UnsupportedError,
)
from ._file import NarrowsFile, open
from ._fsspec import register as _register_fsspec
from ._hdf5 import hdf5, netcdf4_filter, register, write_chunks
from ._narrows import (
    DICTIONARY_MAX,
    DICTIONARY_MIN,
    MESSAGE_MAX,
    Adoption,
    Compressor,
    Decompressor,
    Dictionary,
    MessageDecoder,
    MessageEncoder,
    MessageEnd,
    Stats,
    TopicReader,
    TopicWriter,
    Training,
    Values,
    __version__,
    compress,
    decompress,
    train,
)
from ._socket import NarrowsSocket, wrap_socket

if TYPE_CHECKING:
    from . import array as array
    from ._zarr import zarr as zarr
    from ._xarray import xarray_encoding as xarray_encoding
    from ._zarr2 import zarr2 as zarr2

# Loaded at first use: most programs need none of them, and they import NumPy or more.
_LAZY = {"array": "array", "xarray_encoding": "_xarray", "zarr": "_zarr", "zarr2": "_zarr2"}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    module = importlib.import_module(f".{_LAZY[name]}", __name__)
    value = globals()[name] = module if name == "array" else getattr(module, name)
    return value


__all__ = [
    "DICTIONARY_MAX",
    "DICTIONARY_MIN",
    "MESSAGE_MAX",
    "Adoption",
    "Compressor",
    "CorruptError",
    "Decompressor",
    "Dictionary",
    "IoError",
    "LimitError",
    "MessageDecoder",
    "MessageEncoder",
    "MessageEnd",
    "MisuseError",
    "NarrowsError",
    "NarrowsFile",
    "NarrowsSocket",
    "Stats",
    "TopicReader",
    "TopicWriter",
    "Training",
    "TruncatedError",
    "UnsupportedError",
    "Values",
    "__version__",
    "compress",
    "decompress",
    "hdf5",
    "netcdf4_filter",
    "open",
    "train",
    "wrap_socket",
    "write_chunks",
]

register()
_register_fsspec()
del register, _register_fsspec
