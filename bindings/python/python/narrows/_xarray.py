"""Encodings for the variables of an xarray dataset: a bound for measured values, and for nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, Unpack

import numpy

from ._errors import MisuseError
from ._hints import Hints, halves

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from ._hdf5 import ErrorHints

# Attributes by which CF's variables name others: their bounds, coordinates, terms and grids.
_NAMING = ("bounds", "climatology", "coordinates", "grid_mapping", "cell_measures", "formula_terms", "nodes")
# What bounds and corners of cells are called where no attribute says so, and their axis.
_BOUNDS = re.compile(r".*_(bnds?|bounds|vertices|corners)", re.IGNORECASE)
_ENDS = frozenset(("bnds", "nbnd", "nb2", "bound", "bounds", "nbounds", "nv", "nvertex", "vertices"))
# Units of places and of times, which are measured from something.
_PLACES = re.compile(r"degrees?_?(north|east|south|west|n|e|s|w)|.* since .*", re.IGNORECASE)
# What of a variable's own encoding says how its values are stored. xarray forgets it where another is stated.
_KEPT = ("dtype", "scale_factor", "add_offset", "_FillValue", "missing_value", "units", "calendar")
_MISSING = ("_FillValue", "missing_value")


def xarray_encoding(
    dataset: Any, *, store: Literal["zarr", "zarr2", "hdf5"] = "zarr", **hints: Unpack[ErrorHints]
) -> dict[Hashable, dict[str, Any]]:
    """The ``encoding`` of an ``xarray.Dataset`` for ``to_zarr``, or with ``store="hdf5"`` for
    ``to_netcdf(engine="h5netcdf")``; ``store="zarr2"`` is for ``zarr_format=2``.

    The hints, those of ``narrows.zarr``, hold for data variables that are floats. Exact are integers, truth
    values, dates, packed variables (``scale_factor``), bounds, and whatever another variable names as its
    bounds, coordinates, cell measures, grid mapping or terms. ``_FillValue`` and ``missing_value`` of a
    variable stay exact too. Text, objects, coordinates and what has no axis in HDF5 have no entry, so that
    the store keeps them its own way. A variable that needs another bound gets another entry:

    >>> encoding = narrows.xarray_encoding(ds, abs=0.01)
    >>> encoding["pr"] = narrows.zarr(rel=0.01, floor=1e-9)
    >>> ds.to_zarr("o.zarr", encoding=encoding)
    """
    if not hasattr(dataset, "data_vars"):
        raise TypeError(f"an xarray.Dataset is needed, not {type(dataset).__name__}; use to_dataset()")
    make, known = _maker(store), Hints.of(**hints)
    kept = {name: value for name, value in hints.items() if name in ("mode", "encode_rate")}
    named = set(_named(dataset))
    encodings = {}
    for name, variable in dataset.data_vars.items():
        if not _is_numeric(variable.dtype) or (store == "hdf5" and 0 in (variable.ndim, variable.size)):
            continue
        stated = {key: variable.encoding[key] for key in _KEPT if key in variable.encoding}
        try:
            if known.is_lossless or name in named or _is_exact(name, variable):
                made = make(**kept)
            else:
                made = make(**_keeping(hints, variable))
        except (MisuseError, TypeError) as e:
            raise type(e)(f"variable {name!r}: {e}") from None
        encodings[name] = {**stated, **made}
    return encodings


def _maker(store: str) -> Callable[..., dict[str, Any]]:
    if store == "zarr":
        from ._zarr import zarr

        return zarr
    if store == "zarr2":
        from ._zarr2 import zarr2

        return zarr2
    if store == "hdf5":
        from ._hdf5 import hdf5

        return hdf5
    raise MisuseError(f"no store is called {store!r}; there are zarr, zarr2 and hdf5")


def _is_numeric(dtype: Any) -> bool:
    """Whether chunks can have such elements."""
    return dtype.kind in "biumM" or (dtype.kind in "fc" and dtype.itemsize <= {"f": 8, "c": 16}[dtype.kind])


def _told(variable: Any) -> Iterator[Mapping[Any, Any]]:
    yield from (variable.attrs, variable.encoding)


def _named(dataset: Any) -> Iterator[str]:
    """Names in attributes that name variables; words that are none do no harm."""
    for variable in (dataset, *dataset.variables.values()):
        for told in _told(variable):
            for key in _NAMING:
                if isinstance(names := told.get(key), str):
                    yield from names.split()


def _is_exact(name: Any, variable: Any) -> bool:
    if variable.dtype.kind not in "fc" or _BOUNDS.fullmatch(str(name)):
        return True
    if not _ENDS.isdisjoint(str(dim).lower() for dim in variable.dims):
        return True
    if any(_PLACES.fullmatch(str(told.get("units", ""))) for told in _told(variable)):
        return True
    encoding = variable.encoding
    if encoding.get("scale_factor") is not None or encoding.get("add_offset") is not None:
        return True
    return numpy.dtype(encoding.get("dtype") or variable.dtype).kind not in "fc"


def _keeping(hints: ErrorHints, variable: Any) -> ErrorHints:
    """The hints, where values of the variable that mark what is missing stay."""
    marks = [numpy.ravel(told[key]) for told in _told(variable) for key in _MISSING if told.get(key) is not None]
    numbers = [half for mark in marks if mark.dtype.kind in "iufc" for each in mark for half in halves(each)]
    if not numbers:
        return hints
    fill = hints.get("fill")
    return {**hints, "fill": (*(() if fill is None else numpy.ravel(fill)), *numbers)}  # type: ignore[arg-type]
