"""The HDF5 filter: parameters for h5py, xarray and netCDF4, and chunks that are written directly.

HDF5 loads the filter from ``narrows/plugins`` when it meets a dataset that has it. Importing narrows
tells it that folder; h5py and netCDF4 may be imported before or afterwards.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from ._errors import MisuseError, UnsupportedError
from ._narrows import HDF5_FILTER, Hdf5Chunks, hdf5_params

if TYPE_CHECKING:
    from concurrent.futures import Future

    from ._hints import Mode, Number, Range, Share

PLUGINS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "plugins")
_LIBRARY = os.path.join(PLUGINS, "libnarrows_hdf5.so")
_VARIABLE = "HDF5_PLUGIN_PATH"
# The modules whose running HDF5 knows the folder.
_told: list[ModuleType] = []

# Chunks that a thread encodes one after the other, which is how long the chooser remembers what the
# ones before were like; and bytes of them at most, so that the memory of a write is bounded.
_RUN = 16
_RUN_BYTES = 32 << 20


class ErrorHints(TypedDict, total=False):
    """What ``narrows.hdf5`` takes; ``narrows.array`` describes it."""

    abs: Number | None
    rel: Share | None
    floor: Number | None
    digits: int | None
    bits: int | None
    range_rel: Share | None
    fill: Number | Sequence[Number] | None
    exact: Range | Sequence[Range] | None
    mode: Mode
    encode_rate: Number | str | None
    whole_chunks: bool


def register() -> None:
    """Tells HDF5 where the filter is: copies of it that start later by the environment, those of h5py
    and netCDF4 that run already by their own calls."""
    if not os.path.exists(_LIBRARY):
        return
    known = os.environ.get(_VARIABLE, "")
    if PLUGINS not in known.split(":"):
        # netCDF4 sets the variable to its own filters only if nobody did.
        os.environ[_VARIABLE] = ":".join(filter(None, (known or _netcdf4_plugins(), PLUGINS)))
    if (h5py := sys.modules.get("h5py")) is not None and hasattr(h5py, "h5pl"):
        path = os.fsencode(PLUGINS)
        if path not in (h5py.h5pl.get(i) for i in range(h5py.h5pl.size())):
            h5py.h5pl.append(path)
        # HDF5 loads a filter when a dataset is made or read. Whoever opens one and only writes would store
        # chunks without it, and nobody would say so.
        h5py.h5z.filter_avail(HDF5_FILTER)
    elif "h5py" not in sys.modules and not any(isinstance(f, _BehindH5py) for f in sys.meta_path):
        sys.meta_path.insert(0, _BehindH5py())
    netcdf4 = sys.modules.get("netCDF4")
    if netcdf4 is not None and netcdf4 not in _told and hasattr(netcdf4, "_netCDF4"):
        _told.append(netcdf4)
        if (append := getattr(_netcdf4_library(), "H5PLappend", None)) is not None:
            append(os.fsencode(PLUGINS))


class _BehindH5py(MetaPathFinder):
    """Registers the filter when h5py is imported after narrows."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if fullname != "h5py":
            return None
        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def run_and_register(module: ModuleType) -> None:
                run(module)
                register()

            # A loader of its own for each spec; the rest of it stays as it is.
            spec.loader.exec_module = run_and_register  # type: ignore[method-assign]
        return spec


def _netcdf4_plugins() -> str:
    """The folder of the filters in netCDF4's wheel, if there is one."""
    try:
        spec = find_spec("netCDF4")
    except (ImportError, ValueError):
        return ""
    for folder in (spec and spec.submodule_search_locations) or ():
        plugins = os.path.join(folder, "plugins")
        if os.path.exists(os.path.join(plugins, "lib__nczhdf5filters.so")):
            return plugins
    return ""


def _netcdf4_library() -> Any:
    """The functions of the netCDF and HDF5 that netCDF4 uses: its module links them."""
    import ctypes
    from importlib import import_module

    return ctypes.CDLL(import_module("netCDF4._netCDF4").__file__)


def _params(hints: ErrorHints) -> list[int]:
    from ._hints import Hints

    if not os.path.exists(_LIBRARY):
        raise UnsupportedError(f"this narrows was built without its HDF5 filter: there is no {_LIBRARY}")
    register()
    known = Hints.of(**hints)
    return hdf5_params(
        abs=known.abs,
        range_rel=known.range_rel,
        rel=known.rel,
        floor=known.floor,
        digits=known.digits,
        bits=known.bits,
        fills=known.fill,
        exact=known.exact,
        mode=known.mode,
        encode_rate=known.encode_rate,
        rewritable=not known.whole_chunks,
    )


def hdf5(**hints: Unpack[ErrorHints]) -> dict[str, Any]:
    """Arguments for h5py's ``create_dataset`` and for xarray's ``encoding`` with ``engine="h5netcdf"``.

    Without hints the values stay as they are. Hints are those of ``narrows.array``: ``abs``, ``rel`` with
    ``floor``, ``digits``, ``bits``, ``range_rel`` (of the range of each chunk); ``fill`` and ``exact``
    name values and ranges that stay; ``mode`` is fast, balanced or archive. ``whole_chunks=True`` says
    that each chunk is written whole and once, which shrinks more within a bound. The fill value of the
    dataset stays too, and so do 9.96921e36 and 1e20 in floats. Strings and what else is no number stay as they are.

    >>> f.create_dataset("tas", data=a, chunks=True, **narrows.hdf5(abs=0.01, fill=1e20))
    >>> ds.to_netcdf("o.nc", engine="h5netcdf", encoding={"tas": narrows.hdf5(digits=3)})
    """
    # Bounds are of values: in front of the filter nothing may shuffle their bytes.
    return {"compression": HDF5_FILTER, "compression_opts": tuple(_params(hints)), "shuffle": False}


def netcdf4_filter(variable: Any, **hints: Unpack[ErrorHints]) -> None:
    """Makes a new variable of netCDF4-python use the filter, which its ``createVariable`` refuses.

    Call it before the variable gets values. Hints are those of ``hdf5``.

    >>> v = dataset.createVariable("tas", "f4", ("time", "lat", "lon"), chunksizes=(1, 90, 180))
    >>> narrows.netcdf4_filter(v, abs=0.01)
    """
    import ctypes

    import netCDF4

    params = _params(hints)
    library = _netcdf4_library()
    try:
        define, explain = library.nc_def_var_filter, library.nc_strerror
    except AttributeError:
        raise UnsupportedError("this netCDF4 has no filters; upgrade it") from None
    define.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_uint, ctypes.c_size_t, ctypes.POINTER(ctypes.c_uint)]
    explain.argtypes, explain.restype = [ctypes.c_int], ctypes.c_char_p
    filters = variable.filters()
    if filters is None or not variable.dimensions:
        raise MisuseError("only variables with dimensions in files of NetCDF 4 can have filters")
    # netCDF creates datasets late and insists on filters: a failure would be that of the whole file.
    if others := [name for name, used in filters.items() if used]:
        raise MisuseError(f"{variable.name!r} has other filters ({', '.join(others)}): create it without")
    if variable.dtype is str or isinstance(variable.datatype, netCDF4.VLType):
        raise MisuseError(f"{variable.name!r} has elements of variable length, which the filter does not take")
    words = (ctypes.c_uint * len(params))(*params)
    status = define(variable._grpid, variable._varid, HDF5_FILTER, len(params), words)
    if status != 0:
        why = explain(status).decode(errors="replace")
        raise MisuseError(f"netCDF gave {variable.name!r} no filter: {why}; it must have no values yet")


def write_chunks(dataset: Any, array: Any, *, at: Sequence[int] | None = None, threads: int | None = None) -> None:
    """Writes an array into an h5py dataset that has the filter, encoding on all cores.

    HDF5 runs filters one at a time; this encodes beside it and stores the chunks as they are. ``at`` is
    where the array begins in the dataset, the origin by default. It must begin at a chunk, and each of
    its ends must be that of a chunk or of the dataset. The same array gives the same bytes, whatever
    the number of threads.

    >>> d = f.create_dataset("tas", a.shape, a.dtype, chunks=True, **narrows.hdf5(abs=0.01))
    >>> narrows.write_chunks(d, a)
    """
    from concurrent.futures import ThreadPoolExecutor
    from itertools import islice, product

    plist = dataset.id.get_create_plist()
    filters = [plist.get_filter(i) for i in range(plist.get_nfilters())]
    if [entry[0] for entry in filters] != [HDF5_FILTER]:
        raise MisuseError(f"{dataset.name} must have the filter of narrows and no other: create it with narrows.hdf5()")
    params, chunks, shape = filters[0][2], dataset.chunks, dataset.shape
    start = tuple(at) if at is not None else (0,) * len(shape)
    lengths = tuple(array.shape)
    if len(start) != len(shape) or len(lengths) != len(shape):
        raise MisuseError(f"{dataset.name} has {len(shape)} axes, the array {len(lengths)}, at= {len(start)}")
    for begin, length, end, step in zip(start, lengths, shape, chunks):
        last = begin + length
        if begin < 0 or begin % step or last > end or (last % step and last != end):
            raise MisuseError(
                f"the array of {lengths} at {start} does not fill chunks of {chunks} in {dataset.name} of {shape}"
            )
    origins = product(*(range(b, b + n, step) for b, n, step in zip(start, lengths, chunks)))
    chunk_bytes = max(1, dataset.dtype.itemsize)
    for step in chunks:
        chunk_bytes *= step
    run = max(1, min(_RUN, _RUN_BYTES // chunk_bytes))
    encode = _Encoding(dataset, array, start, params)
    encode.check(array)
    count = threads or len(os.sched_getaffinity(0))
    waiting: deque[Future[list[tuple[tuple[int, ...], bytes]]]] = deque()

    def store(done: Future[list[tuple[tuple[int, ...], bytes]]]) -> None:
        for origin, chunk in done.result():
            dataset.id.write_direct_chunk(origin, chunk)

    with ThreadPoolExecutor(count, "narrows-hdf5") as pool:
        try:
            while batch := list(islice(origins, run)):
                waiting.append(pool.submit(encode, batch))
                if len(waiting) > count:
                    store(waiting.popleft())
            while waiting:
                store(waiting.popleft())
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


class _Encoding:
    """What the threads of ``write_chunks`` share."""

    def __init__(self, dataset: Any, array: Any, start: tuple[int, ...], params: Sequence[int]):
        self.array, self.start, self.params = array, start, params
        self.dtype, self.chunks, self.fill, self.name = dataset.dtype, dataset.chunks, dataset.fillvalue, dataset.name
        self.local = threading.local()

    def check(self, array: Any) -> None:
        import numpy

        Hdf5Chunks(self.params)
        if not numpy.can_cast(array.dtype, self.dtype, "same_kind"):
            raise MisuseError(f"{array.dtype} does not become {self.dtype} in {self.name}; use astype()")

    def __call__(self, origins: Sequence[tuple[int, ...]]) -> list[tuple[tuple[int, ...], bytes]]:
        chunks = getattr(self.local, "chunks", None)
        if chunks is None:
            chunks = self.local.chunks = Hdf5Chunks(self.params)
        chunks.forget()
        return [(origin, chunks.encode(self.piece(origin))) for origin in origins]

    def piece(self, origin: tuple[int, ...]) -> Any:
        """A whole chunk: behind the end of the array stands the fill value, as HDF5 does it."""
        import numpy

        begin = [o - s for o, s in zip(origin, self.start)]
        part: Any = numpy.asarray(self.array[tuple(slice(b, b + n) for b, n in zip(begin, self.chunks))])
        whole: Any
        if part.shape == self.chunks:
            whole = numpy.ascontiguousarray(part, self.dtype)
        else:
            whole = numpy.full(self.chunks, self.fill, self.dtype)
            whole[tuple(slice(n) for n in part.shape)] = part
        return whole.reshape(-1).view(numpy.uint8)
