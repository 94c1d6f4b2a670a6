"""Zarr v2 and v3, sharded or not, and xarray, by the real libraries."""

import asyncio
import itertools
import json
import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path

import numcodecs
import numpy as np
import pytest
import xarray as xr
import zarr
from numcodecs.compat import ensure_bytes
from test_array import field, same
from zarr.storage import MemoryStore

import narrows

FORMATS = [2, 3]
DTYPES = ["b1", "i1", "u2", "i4", "u8", "f2", "f4", "f8", "c8", "c16", ">f4", ">i8"]


def codec(zarr_format: int, **hints) -> dict:
    return narrows.zarr2(**hints) if zarr_format == 2 else narrows.zarr(**hints)


def made(a: np.ndarray, zarr_format: int = 3, hints: dict | None = None, store=None, **options) -> zarr.Array:
    options = {"chunks": tuple(max(1, d // 2) for d in a.shape), **options}
    store = MemoryStore() if store is None else store
    array = zarr.create_array(
        store, shape=a.shape, dtype=a.dtype, zarr_format=zarr_format, **options, **codec(zarr_format, **hints or {})
    )
    array[...] = a
    return array


def reopened(array: zarr.Array) -> zarr.Array:
    """From the metadata that were stored."""
    return zarr.open_array(array.store, mode="r+")


def chunks(store: MemoryStore) -> dict[str, bytes]:
    names = [name for name in store._store_dict if not name.endswith(("zarr.json", ".zarray", ".zattrs"))]
    return {name: store._store_dict[name].to_bytes() for name in names}


def put(store: MemoryStore, name: str, content: bytes) -> None:
    store._store_dict[name] = zarr.core.buffer.cpu.Buffer.from_bytes(content)


@pytest.mark.parametrize("zarr_format", FORMATS)
@pytest.mark.parametrize("hints", [{"abs": 0.01}, {"digits": 3}, {"rel": 1e-3, "abs": 0.1}, {"range_rel": 1e-3}])
def test_errors_do_not_add_up_over_writes_of_parts(hints: dict, zarr_format: int) -> None:
    a = np.cumsum(np.random.default_rng(1).normal(size=4000)) + 200
    array = made(np.zeros(4000), zarr_format, hints, chunks=(2000,))
    for start in range(0, 4000, 100):
        array[start : start + 100] = a[start : start + 100]
    allowed = {"abs": 0.01, "digits": 5e-3 * a, "rel": np.minimum(1e-3 * a, 0.1), "range_rel": 1e-3 * a.max()}
    error = abs(reopened(array)[:] - a)
    assert (error <= allowed[next(iter(hints))]).all() and error.any()


@pytest.mark.parametrize("zarr_format", FORMATS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_exact(dtype: str, zarr_format: int) -> None:
    for shape in ((37,), (11, 23), (5, 6, 7), (1, 1), (0, 4), ()):
        a = field(dtype, shape).astype(dtype)
        for order in "CF":
            options = {"order": order} if zarr_format == 2 else {"config": {"order": order}}
            array = made(a, zarr_format, **options)
            back = reopened(array)[...]
            # Zarr v3 has no byte order.
            assert np.asarray(back).astype(dtype).tobytes() == a.tobytes()
            assert back.shape == shape
    array = reopened(made(field(dtype, (10, 20)).astype(dtype), zarr_format))
    array[3:7, 5] = 1
    assert (array[3:7, 5] == 1).all()


@pytest.mark.parametrize("zarr_format", FORMATS)
def test_special_values_keep_their_bits(zarr_format: int) -> None:
    a = field("f4", (60, 50))
    bits = a.view("u4")
    bits[::3, ::2] = np.random.default_rng(1).integers(0, 2**32, bits[::3, ::2].shape, "u4")
    assert same(a, reopened(made(a, zarr_format))[...])
    a[1, :] = -0.0
    back = reopened(made(a, zarr_format, {"abs": 0.01}))[...]
    special = ~np.isfinite(a) | ((a == 0) & np.signbit(a))
    assert same(a[special], back[special])
    finite = np.isfinite(a)
    assert (abs(a[finite].astype("f8") - back[finite].astype("f8")) <= 0.01).all()


@pytest.mark.parametrize("dtype", ["f4", "f8", "i2", "c8"])
def test_the_fill_value_stays_exact(dtype: str) -> None:
    fill = -30000 if dtype == "i2" else 1.1e20
    a = field(dtype, (64, 64)).astype(dtype)
    a[10:30, ::3] = fill
    hints = {"abs": 2} if dtype == "i2" else {"rel": 0.01}
    back = reopened(made(a, 3, hints, fill_value=fill))[...]
    assert (back[a == a.dtype.type(fill)] == a.dtype.type(fill)).all() and not same(a, back)
    back = reopened(made(a, 2, {**hints, "fill": fill if dtype == "i2" else [fill, 0]}))[...]
    assert (back[a == a.dtype.type(fill)] == a.dtype.type(fill)).all()


@pytest.mark.parametrize("zarr_format", FORMATS)
@pytest.mark.parametrize("dtype", ["f4", "f8", "c16"])
@pytest.mark.parametrize("hints", [{"rel": 0.01}, {"range_rel": 0.01}, {"abs": 1e30, "fill": -9}])
def test_missing_values_of_floats_stay_exact_unstated(hints: dict, dtype: str, zarr_format: int) -> None:
    a = (280 + np.sort(np.random.default_rng(1).random(400))).astype(dtype)
    a[::4], a[1::4], a[2::4] = 9.969209968386869e36, 1e20, np.float32(1e20)
    back = reopened(made(a, zarr_format, hints))[...]
    for i in range(3):
        assert same(a[i::4], back[i::4])
    assert not same(a, back)
    if "range_rel" in hints:
        assert abs(back[3::4] - a[3::4]).max() <= 0.01 * 2**0.5


@pytest.mark.parametrize("zarr_format", FORMATS)
def test_fill_values_are_passed_on_and_stay_exact(zarr_format: int, tmp_path: Path) -> None:
    a = (280 + np.sort(np.random.default_rng(1).random(150))).astype("f4")
    a[3] = -9
    hints = codec(zarr_format, range_rel=0.01, fill=7, fill_value=-9)
    z = zarr.create_array(MemoryStore(), shape=a.shape, chunks=(100,), dtype="f4", zarr_format=zarr_format, **hints)
    z[:] = a
    encoding = {"t": {**codec(zarr_format, range_rel=0.01, _FillValue=np.float32(-9)), "chunks": (100,)}}
    holes = np.where(a == -9, np.float32(np.nan), a)
    xr.Dataset({"t": (("x",), holes)}).to_zarr(
        tmp_path / "s", encoding=encoding, zarr_format=zarr_format, consolidated=False
    )
    for stored in (z, zarr.open_array(str(tmp_path / "s" / "t"))):
        back = stored[:]
        assert back[3] == -9 and not same(a, back)
        assert abs(back[100:] - a[100:]).max() <= 0.01 * np.ptp(a[100:])
    assert z.fill_value == -9
    with xr.open_zarr(tmp_path / "s", consolidated=False) as ds:
        assert np.isnan(ds.t.values).sum() == 1


def test_what_pads_chunks_of_v2_is_no_part_of_their_range() -> None:
    a = (288 + np.random.default_rng(5).normal(size=(100, 130))).astype("f4")
    hints = narrows.zarr2(range_rel=1e-3)
    z = zarr.create_array(MemoryStore(), shape=a.shape, dtype="f4", chunks=(64, 64), zarr_format=2, **hints)
    z[:] = a
    for y in range(0, 100, 64):
        for x in range(0, 130, 64):
            was, now = a[y : y + 64, x : x + 64].astype("f8"), z[y : y + 64, x : x + 64]
            assert abs(was - now).max() <= 1e-3 * (was.max() - was.min())


@pytest.mark.parametrize("zarr_format", FORMATS)
def test_chunks_of_the_fill_value_are_left_out(zarr_format: int) -> None:
    a = np.zeros((40, 40), "f4")
    a[:20, :20] = field("f4", (20, 20)) + 100
    assert len(chunks(made(a, zarr_format).store)) == 1
    array = made(a, zarr_format, config={"write_empty_chunks": True})
    assert len(chunks(array.store)) == 4
    assert same(reopened(array)[...], a)


@pytest.mark.parametrize("hints", [{}, {"abs": 0.01}], ids=str)
def test_shards(hints: dict) -> None:
    a = field("f4", (100, 80))
    array = reopened(made(a, 3, hints, chunks=(20, 20), shards=(60, 40)))
    assert abs(array[...] - a).max() <= hints.get("abs", 0) * 1.001
    assert abs(array[3, 50:60] - a[3, 50:60]).max() <= 0.011
    array[10:30, 10:30] = 7
    assert (abs(array[10:30, 10:30] - 7) <= 0.011).all()
    assert len(chunks(array.store)) == 4
    whole = [codec for codec in json.loads(array.store._store_dict["zarr.json"].to_bytes())["codecs"]]
    assert whole[0]["configuration"]["codecs"][0]["name"] == "narrows.array"


def test_metadata() -> None:
    hints = {"rel": "1%", "floor": 1e-6, "fill": [1e20], "exact": (None, -5), "mode": "archive"}
    stored = {"rel": 0.01, "floor": 1e-6, "fill": [1e20], "exact": [[None, -5.0]], "mode": "archive"}
    v3 = json.loads(made(np.zeros(9), 3, hints).store._store_dict["zarr.json"].to_bytes())
    assert v3["codecs"] == [{"name": "narrows.array", "configuration": stored}]
    v2 = json.loads(made(np.zeros(9), 2, hints).store._store_dict[".zarray"].to_bytes())
    assert v2["compressor"] == {"id": "narrows", **stored}
    serializer = narrows.zarr(**hints)["serializer"]
    assert pickle.loads(pickle.dumps(serializer)) == serializer == type(serializer).from_dict(serializer.to_dict())
    assert hash(serializer) == hash(narrows.zarr(**hints)["serializer"])
    assert type(serializer).from_dict({"name": "narrows.array"}) == narrows.zarr()["serializer"]
    compressor = narrows.zarr2(**hints)["compressors"]
    assert pickle.loads(pickle.dumps(compressor)) == compressor == numcodecs.get_codec(compressor.get_config())
    for bad in ({"rel": -1}, {"later": 1}):
        with pytest.raises(narrows.MisuseError):
            type(serializer).from_dict({"name": "narrows.array", "configuration": bad})
        with pytest.raises(narrows.MisuseError):
            numcodecs.get_codec({"id": "narrows", **bad})


def test_numcodecs_alone() -> None:
    plain = numcodecs.get_codec({"id": "narrows"})
    a = field("f8", (30, 40))
    chunk = plain.encode(a)
    assert same(a, plain.decode(chunk))
    out = np.empty_like(a)
    assert plain.decode(np.frombuffer(chunk, "u1"), out=out) is out and same(a, out)
    assert ensure_bytes(plain.decode(plain.encode(b"abc" * 40))) == b"abc" * 40
    # As a filter before another codec, and behind one that makes integers.
    store = MemoryStore()
    options = {"filters": [numcodecs.Delta("i4"), plain], "compressors": numcodecs.Zlib()}
    b = np.arange(1000, dtype="i4").reshape(20, 50)
    array = zarr.create_array(store, shape=b.shape, chunks=(10, 50), dtype="i4", zarr_format=2, **options)
    array[...] = b
    assert same(b, zarr.open_array(store)[...])


def test_dates_and_records_in_v2() -> None:
    dates = np.arange(1000).astype("M8[s]")
    dates[5] = "NaT"
    assert same(dates, reopened(made(dates, 2))[...])
    records = np.zeros(100, [("a", "f4"), ("b", "i2")])
    records["a"] = field("f4", (100,))
    assert same(records, reopened(made(records, 2))[...])


@pytest.mark.filterwarnings("ignore:The data type:zarr.errors.UnstableSpecificationWarning")
@pytest.mark.parametrize("zarr_format", FORMATS)
@pytest.mark.parametrize("dtype", ["U4", "S4", "U20000", "S1", np.dtypes.StringDType()], ids=str)
@pytest.mark.parametrize("shape", [(60,), (6, 10), ()], ids=str)
def test_text_is_stored_exactly_whatever_the_bound(shape: tuple[int, ...], dtype: object, zarr_format: int) -> None:
    a = np.resize(np.array(["a", "bb", "", "wxyz"]).astype(dtype), shape)
    for hints in ({}, {"abs": 40}, {"rel": 0.5, "floor": 100}, {"range_rel": 0.5}):
        for order in "CF" if zarr_format == 2 else "C":
            options = {"order": order} if zarr_format == 2 else {}
            array = reopened(made(a, zarr_format, hints, **options))
            assert (np.asarray(array[...]) == a).all() and array.dtype == a.dtype, hints
            if len(shape) == 1:
                array[3:50] = a[3:50]
                assert (np.asarray(array[...]) == a).all()


@pytest.mark.filterwarnings("ignore:The data type:zarr.errors.UnstableSpecificationWarning")
@pytest.mark.filterwarnings("ignore:Combining a `sharding_indexed`")
def test_text_in_shards_and_what_the_metadata_say() -> None:
    a = np.array(["a", "bb"] * 8, np.dtypes.StringDType())
    array = made(a, chunks=(4,), shards=(8,))
    assert (np.asarray(reopened(array)[...]) == a).all()
    for dtype, name in (("T", "vlen-utf8"), ("U3", "bytes"), ("f4", "narrows.array")):
        array = zarr.create_array(MemoryStore(), shape=(4,), dtype=np.dtype(dtype), **narrows.zarr(abs=1))
        stored = json.loads(array.store._store_dict["zarr.json"].to_bytes())
        assert [codec["name"] for codec in stored["codecs"]] == [name]


@pytest.mark.parametrize("zarr_format", FORMATS)
@pytest.mark.parametrize("hints", [{}, {"abs": 0.1}], ids=str)
def test_damaged_chunks_are_errors(hints: dict, zarr_format: int) -> None:
    a = field("f4", (8, 8))
    array = made(a, zarr_format, hints, chunks=(8, 8))
    (name, chunk), *rest = chunks(array.store).items()
    assert not rest
    good = array[...]
    # Square, so that nothing but the check finds swapped axes. All bits of the type and the axes, one of
    # every byte behind them.
    for at in range(len(chunk)):
        bits = range(8) if at < 8 else [at % 8]
        for bad in (chunk[:at], *(chunk[:at] + bytes([chunk[at] ^ 1 << bit]) + chunk[at + 1 :] for bit in bits)):
            put(array.store, name, bad)
            try:
                back = array[...]
            except (narrows.NarrowsError, ValueError):
                continue
            assert same(back, good), at
    put(array.store, name, chunk)
    assert same(array[...], good)


def test_chunks_of_another_array_are_errors() -> None:
    a = field("f4", (8, 8))
    array = made(a, chunks=(8, 8))
    (name,) = chunks(array.store)
    others = (a.astype("f8"), a.astype("i4"), a[:4], a.reshape(4, 16), a.reshape(-1), np.zeros((0, 8), "f4"), np.zeros((80, 80), "f4"))
    for other in others:
        put(array.store, name, narrows.array.compress(other))
        with pytest.raises(narrows.NarrowsError):
            array[...]
    swapped = a.astype(">f4")
    put(array.store, name, narrows.array.compress(swapped))
    assert same(array[...], a)


@pytest.mark.parametrize("zarr_format", FORMATS)
def test_sixteen_threads(zarr_format: int) -> None:
    arrays = [field("f4", (40, 50), seed) for seed in range(16)]
    failed = []

    def work(a: np.ndarray) -> None:
        try:
            for _ in range(3):
                array = reopened(made(a, zarr_format, {"rel": 1e-3}, chunks=(10, 25)))
                assert (abs(array[...].astype("f8") - a) <= 1e-3 * abs(a.astype("f8"))).all()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(a,)) for a in arrays]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not failed


def test_no_trial_for_every_chunk() -> None:
    from narrows._encoders import encoder
    from narrows._hints import Hints

    hints = {"abs": 0.0125}
    made(field("f4", (320, 320)), 3, hints, chunks=(32, 32))
    trials = encoder(Hints.of(**hints).keeping(0).keeping_missing(np.dtype("f4")), np.dtype("f4"), (32, 32)).trials
    assert 1 <= trials <= 60


def dataset() -> xr.Dataset:
    time = np.arange(120).astype("M8[D]").astype("M8[ns]")
    tas = field("f4", (120, 8, 9)) + 273
    tas[::7, 2] = np.nan
    return xr.Dataset(
        {"tas": (("time", "y", "x"), tas), "count": (("time",), np.arange(120)), "name": ((), 3.5)}, {"time": time}
    )


@pytest.mark.parametrize("zarr_format", FORMATS)
def test_xarray(tmp_path: Path, zarr_format: int) -> None:
    ds = dataset()
    encoding = {"tas": codec(zarr_format, rel=1e-3, floor=1e-6), "count": codec(zarr_format), "time": codec(zarr_format)}
    ds.to_zarr(tmp_path / "o.zarr", encoding=encoding, zarr_format=zarr_format, consolidated=False)
    with xr.open_zarr(tmp_path / "o.zarr", consolidated=False) as back:
        assert back["count"].equals(ds["count"]) and back.time.equals(ds.time) and back.name.equals(ds.name)
        x, y = ds.tas.values.astype("f8"), back.tas.values.astype("f8")
        assert (np.isnan(x) == np.isnan(y)).all()
        assert (abs(x - y) <= 1e-3 * abs(x))[~np.isnan(x)].all()
        assert 0 < np.nanmax(abs(x - y))
        # And once more, by the encoding that was read.
        back.load().to_zarr(tmp_path / "again.zarr", zarr_format=zarr_format, consolidated=False)
    # A value for what is missing that the array does not know of is stated.
    encoding = {"tas": {**codec(zarr_format, rel=1e-2, fill=9.97e36), "_FillValue": np.float32(9.97e36)}}
    ds.to_zarr(tmp_path / "f.zarr", encoding=encoding, zarr_format=zarr_format, consolidated=False)
    with xr.open_zarr(tmp_path / "f.zarr", consolidated=False) as back:
        assert (np.isnan(x) == np.isnan(back.tas.values)).all()


def station_data() -> xr.Dataset:
    """As observations and regional models have it: text, times, bounds, packed and whole numbers."""
    chance = np.random.default_rng(4)
    tas = (280 + chance.normal(size=(24, 4))).astype("f4")
    ds = xr.Dataset(
        {
            "tas": (("time", "station"), tas, {"units": "K", "cell_measures": "area: area"}),
            "tasmax": (("time", "station"), tas + 1),
            "wind": (("time", "station"), tas + 1j * tas),
            "packed": (("time", "station"), np.round(tas, 1)),
            "filled": (("time", "station"), np.where(tas > 281, np.nan, tas)),
            "flag": (("time", "station"), tas > 280),
            "count": (("time",), np.arange(24)),
            "area": (("station",), chance.random(4)),
            "lat_bnds": (("station", "bnds"), chance.random((4, 2))),
            "corner": (("station", "nv"), chance.random((4, 3))),
            "place": (("station",), chance.random(4), {"units": "degrees_north"}),
            "since": (("station",), chance.random(4), {"units": "days since 2000-01-01"}),
            "edges": (("time", "two"), chance.random((24, 2))),
            "time_bnds": (("time", "bnds"), np.arange(48).reshape(24, 2).astype("M8[D]").astype("M8[ns]")),
            "duration": (("station",), np.arange(4).astype("m8[h]").astype("m8[ns]")),
            "rotated_pole": ((), np.array(b"", "S1")),
            "name": (("station",), np.array(["a", "bb", "", "d"])),
            "code": (("station",), np.array([b"x", b"y", b"z", b""])),
            "note": (("station",), np.array(["long", "text", "", "x"], object)),
            "height": ((), 2.0),
        },
        {
            "time": np.arange(24).astype("M8[D]").astype("M8[ns]"),
            "lon": (("station",), chance.random(4)),
            "id": (("station",), np.array(["q", "r", "s", "t"], object)),
        },
    )
    ds.lon.attrs["bounds"] = "edges"
    ds["tas"].attrs["missing_value"] = np.float32(-5)
    ds["tas"].values[::6] = -5
    ds["packed"].encoding = {"dtype": "i2", "scale_factor": 0.1, "add_offset": 280, "_FillValue": -999}
    ds["filled"].encoding = {"_FillValue": np.float32(-77)}
    ds["since"].encoding = {}
    return ds


CLOSE = ["tas", "tasmax", "wind", "filled"]


@pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning", "ignore:Object at .* is not recognized")
@pytest.mark.parametrize("store", ["zarr", "zarr2", "hdf5"])
@pytest.mark.parametrize("hints", [{"abs": 0.4}, {"rel": 0.002, "floor": 0.4}, {"range_rel": 0.01}], ids=str)
def test_an_encoding_for_a_whole_dataset(hints: dict, store: str, tmp_path: Path) -> None:
    ds = station_data()
    allowed = {"abs": 0.4, "rel": 0.002 * 290, "range_rel": 0.1}[next(iter(hints))]
    encoding = narrows.xarray_encoding(ds, store=store, **hints)
    assert not {"rotated_pole", "name", "code", "note", "time", "lon", "id"} & set(encoding)
    assert ("height" in encoding) == (store != "hdf5") and encoding["packed"]["scale_factor"] == 0.1
    path = tmp_path / "o"
    if store == "hdf5":
        ds.to_netcdf(path, engine="h5netcdf", encoding=encoding, invalid_netcdf=True)
        back = xr.open_dataset(path, engine="h5netcdf", decode_timedelta=True)
    else:
        zarr_format = 2 if store == "zarr2" else 3
        ds.to_zarr(path, encoding=encoding, zarr_format=zarr_format, consolidated=False)
        back = xr.open_zarr(path, consolidated=False, decode_timedelta=True, mask_and_scale=True)
    with back:
        for name in ds.variables:
            was, now = ds[name].values, back[name].values
            if name == "tas":
                # Read as what is missing.
                assert (np.isnan(now) == (was == -5)).all()
                was, now = was[was != -5], now[~np.isnan(now)]
            if name in CLOSE:
                assert 0 < np.nanmax(abs(was - now)) <= allowed * 2 ** (0.5 * (name == "wind")), name
                assert (np.isnan(was) == np.isnan(now)).all(), name
            elif name == "packed":
                assert np.allclose(was, now, atol=1e-4)
            elif name == "since":
                assert len(now) == len(was)
            elif was.dtype.kind in "fc":
                assert same(was, np.asarray(now, was.dtype)), name
            else:
                assert (was == np.asarray(now).astype(was.dtype)).all(), name


@pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning")
@pytest.mark.parametrize("zarr_format", FORMATS)
def test_one_encoding_for_all_variables(zarr_format: int, tmp_path: Path) -> None:
    """What people write: text is no error, and is not changed."""
    ds = station_data()[["tas", "rotated_pole", "name", "code", "note"]]
    encoding = {name: codec(zarr_format, abs=40) for name in ds.variables if name not in ds.coords}
    ds.to_zarr(tmp_path / "o", encoding=encoding, zarr_format=zarr_format, consolidated=False)
    with xr.open_zarr(tmp_path / "o", consolidated=False) as back:
        for name in ("rotated_pole", "name", "code", "note"):
            assert (back[name].values == ds[name].values).all(), name


def test_errors_of_an_encoding_name_the_variable() -> None:
    ds = station_data()
    ds["tas"].attrs["missing_value"] = np.arange(300, dtype="f4")
    with pytest.raises(narrows.MisuseError, match="variable 'tas': fill="):
        narrows.xarray_encoding(ds, abs=0.1)
    for wrong, kind in (({"abs": -1}, ValueError), ({"store": "v4"}, ValueError), ({"absolute": 1}, TypeError)):
        with pytest.raises(kind):
            narrows.xarray_encoding(ds, **wrong)
    with pytest.raises(TypeError, match="Dataset"):
        narrows.xarray_encoding(ds.tas, abs=1)
    exact = narrows.xarray_encoding(ds, mode="archive")
    assert all(entry["serializer"].hints.is_lossless for entry in exact.values())
    assert exact["area"]["serializer"].hints.mode == "archive"


def test_fsspec() -> None:
    ds = dataset()
    ds.to_zarr("memory://test_fsspec.zarr", encoding={"tas": narrows.zarr(digits=3)}, consolidated=False)
    with xr.open_zarr("memory://test_fsspec.zarr", consolidated=False) as back:
        assert abs(back.tas - ds.tas).max() <= 0.005 * 320


READ = """
import sys, zarr
print(sorted(m for m in sys.modules if m.startswith("narrows")), zarr.open_array(sys.argv[1])[...].sum())
"""


@pytest.mark.parametrize("zarr_format", FORMATS)
def test_a_fresh_process_needs_no_import(tmp_path: Path, zarr_format: int) -> None:
    a = np.arange(5000, dtype="i4")
    made(a, zarr_format, store=str(tmp_path / "a.zarr"))
    ran = subprocess.run([sys.executable, "-c", READ, str(tmp_path / "a.zarr")], capture_output=True, text=True, timeout=60)
    assert ran.stdout == f"[] {a.sum()}\n", ran.stderr


@pytest.mark.parametrize("zarr_format", FORMATS)
def test_a_reader_without_the_wheel_is_told_the_name(tmp_path: Path, zarr_format: int) -> None:
    """What docs/zarr.md says that it says."""
    made(np.arange(5000, dtype="i4"), zarr_format, store=str(tmp_path / "a.zarr"))
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-c", READ, str(tmp_path / "a.zarr")]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    if ran.returncode == 0:
        pytest.skip("narrows is installed in this environment")
    expected = {2: "codec not available: ''narrows''", 3: "narrows.array"}[zarr_format]
    assert expected in ran.stderr.splitlines()[-1]


@pytest.mark.parametrize("shards", [None, (20, 30, 40)])
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
def test_the_program_checks_transposed_arrays(
    tmp_path: Path, program: str, order: tuple[int, ...], shards: tuple[int, ...] | None
) -> None:
    a = field("f4", (20, 30, 40))
    options = {"filters": [zarr.codecs.TransposeCodec(order=order)], "shards": shards}
    made(a, 3, {"abs": 0.01}, store=str(tmp_path / "a.zarr"), chunks=(10, 15, 20), **options)
    np.save(tmp_path / "a.npy", a)
    command = [program, "check", str(tmp_path / "a.zarr"), "--against", str(tmp_path / "a.npy")]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0 and "the bound holds" in ran.stdout, ran.stdout + ran.stderr


def test_codecs_run_beside_the_event_loop() -> None:
    """A long chunk must not hold up the requests of others."""
    from zarr.core.array_spec import ArrayConfig, ArraySpec
    from zarr.core.buffer import default_buffer_prototype
    from zarr.core.dtype import Float64

    prototype = default_buffer_prototype()
    a = field("f8", (300, 500))
    spec = ArraySpec(a.shape, Float64(), np.float64(0), ArrayConfig("C", False), prototype)
    serializer = narrows.zarr()["serializer"]
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async def both() -> None:
        other = asyncio.create_task(count())
        await asyncio.gather(serializer._encode_single(prototype.nd_buffer.from_numpy_array(a), spec))
        other.cancel()

    asyncio.run(both())
    assert turns > 10
