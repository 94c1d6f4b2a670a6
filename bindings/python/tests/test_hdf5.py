"""The HDF5 filter in the libraries and programs that people use."""

import hashlib
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import h5netcdf.legacyapi
import h5py
import netCDF4
import numpy as np
import pytest
import xarray

import narrows
from narrows import _hdf5

FILL = 1e20
Array = np.ndarray[Any, Any]


def field(shape: tuple[int, ...] = (6, 60, 70), seed: int = 3) -> Array:
    """A smooth field with noise, as models write them."""
    chance = np.random.default_rng(seed)
    axes = np.meshgrid(*(np.linspace(0, 3 + i, n) for i, n in enumerate(shape)), indexing="ij")
    return (280 + 20 * np.sin(sum(axes)) + chance.normal(0, 0.05, shape)).astype("f4")


def need(program: str) -> None:
    if shutil.which(program) is None:
        reason = f"there is no {program}"
        (pytest.fail if os.environ.get("CI") in ("true", "1") else pytest.skip)(reason)


def run(*command: str | Path, plugins: str | None = _hdf5.PLUGINS) -> subprocess.CompletedProcess[str]:
    """Runs a program that has only the path of the filter."""
    environment = {k: v for k, v in os.environ.items() if k not in ("HDF5_PLUGIN_PATH", "PYTHONPATH")}
    if plugins is not None:
        environment["HDF5_PLUGIN_PATH"] = plugins
    return subprocess.run([str(c) for c in command], env=environment, capture_output=True, text=True, check=False, timeout=120)


def python(text: str, *arguments: str | Path, narrows: bool = True) -> str:
    """Runs a fresh interpreter."""
    environment = {k: v for k, v in os.environ.items() if k != "HDF5_PLUGIN_PATH"}
    if not narrows:
        environment.pop("PYTHONPATH", None)
        environment["HDF5_PLUGIN_PATH"] = _hdf5.PLUGINS
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(text), *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "o.nc"


def stored(dataset: h5py.Dataset) -> int:
    return int(dataset.id.get_storage_size())


def test_arrays_come_back_exactly_or_within_every_stated_bound(path: Path) -> None:
    a = field()
    a[0, :9] = FILL
    a[1, 3, 3], a[1, 3, 4], a[1, 3, 5] = np.nan, np.inf, -np.inf
    wide = a.astype("f8")
    cases: dict[str, tuple[Any, Callable[[Array], Array]]] = {
        "exact": ({}, lambda x: 0 * x),
        "zero": ({"abs": 0}, lambda x: 0 * x),
        "abs": ({"abs": 0.01, "fill": FILL}, lambda x: 0 * x + 0.01),
        "rel": ({"rel": "1%", "floor": 0.5, "fill": FILL}, lambda x: np.maximum(0.01 * x, 0.5)),
        "digits": ({"digits": 3, "mode": "fast", "fill": FILL}, lambda x: 0.005 * x),
        "bits": ({"bits": 9, "exact": (290, None), "mode": "archive"}, lambda x: np.where(x >= 290, 0, x / 1024)),
    }
    with h5py.File(path, "w") as f:
        for name, (hints, _) in cases.items():
            f.create_dataset(name, data=a, chunks=(4, 32, 50), **narrows.hdf5(**hints))
    with h5py.File(path) as f:
        for name, (_, allowed) in cases.items():
            b = f[name][:].astype("f8")
            kept = ~np.isfinite(a) | (a == np.float32(FILL))
            assert (b[kept].astype("f4").view("u4") == a[kept].view("u4")).all(), name
            with np.errstate(invalid="ignore"):
                assert (np.abs(b - wide)[~kept] <= allowed(wide)[~kept]).all(), name
        sizes = {name: stored(f[name]) for name in cases}
    assert sizes["abs"] * 2 < sizes["exact"] < a.nbytes, sizes
    assert sizes["zero"] == sizes["exact"]


def test_every_type_comes_back(path: Path) -> None:
    n = 500
    steps = np.arange(n)
    exact = {
        "bool": steps % 3 == 0,
        "S": np.array([b"ab", b"cde"] * (n // 2)),
        "compound": np.array([(i, i / 3) for i in steps], [("a", "<i4"), ("b", ">f8")]),
        "longdouble": np.sin(steps).astype("longdouble"),
        "opaque": np.array([b"\x00\xff%3d" % i for i in steps], "V5"),
    }
    extremes = {
        "i8": np.array([-(2**63), 2**63 - 1, 0, -1] * (n // 4), "i8"),
        "u8": np.array([2**64 - 1, 0] * (n // 2), "u8"),
        "denormal": (steps * 5e-324).astype("f8"),
    }
    numbers = np.sin(steps / 50) * 30
    close = {t: numbers.astype(t) for t in ("f2", "<f4", ">f4", "<f8", ">f8")}
    close["c8"] = (numbers + 1j * numbers[::-1]).astype("c8")
    close[">c16"] = (numbers + 1j * numbers[::-1]).astype(">c16")
    close["integers"] = (numbers * 1000).astype(">i2")
    enumeration = h5py.enum_dtype({"a": 0, "b": 1, "c": 2}, basetype="i2")
    with h5py.File(path, "w") as f:
        for name, a in {**exact, **extremes, **close}.items():
            f.create_dataset(f"exact {name}", data=a, chunks=(77,), **narrows.hdf5())
            f.create_dataset(f"close {name}", data=a, chunks=(77,), **narrows.hdf5(abs=1.5))
        text = [f"text {i}" for i in range(50)]
        f.create_dataset("strings", data=text, dtype=h5py.string_dtype(), chunks=(20,), **narrows.hdf5(abs=1))
        f.create_dataset("ragged", (3,), h5py.vlen_dtype("i4"), chunks=(2,), **narrows.hdf5())[1] = [1, 2, 3]
        f.create_dataset("enum", data=(steps % 3).astype("i2"), dtype=enumeration, chunks=(99,), **narrows.hdf5(abs=5))
        f.create_dataset("empty", (0, 5), "f4", chunks=(3, 5), maxshape=(None, 5), **narrows.hdf5(abs=1))
    with h5py.File(path) as f:
        for name, a in exact.items():
            for kind in ("exact", "close"):
                b = f[f"{kind} {name}"][:]
                assert (b == a).all() and b.dtype == a.dtype, name
        for name, a in extremes.items():
            assert (f[f"exact {name}"][:] == a).all(), name
            assert all(abs(x - y) <= 1.5 for x, y in zip(a.tolist(), f[f"close {name}"][:].tolist())), name
        for name, a in close.items():
            assert (f[f"exact {name}"][:] == a).all(), name
            b = f[f"close {name}"][:]
            worst = np.abs(b.astype("c16") - a) if a.dtype.kind == "c" else np.abs(b.astype("f8") - a)
            assert worst.max() <= 1.5 * (2**0.5 if a.dtype.kind == "c" else 1), name
            if a.dtype.kind != "i":
                assert stored(f[f"close {name}"]) < stored(f[f"exact {name}"]), name
        assert [t.decode() for t in f["strings"][:]] == text
        assert f["ragged"][1].tolist() == [1, 2, 3]
        assert (f["enum"][:] == steps % 3).all()
        assert f["empty"][:].shape == (0, 5)


def test_what_cannot_hold_is_refused_when_the_dataset_is_created(path: Path) -> None:
    a = field((20, 30))
    with h5py.File(path, "w") as f:
        hints = {**narrows.hdf5(abs=0.1), "shuffle": True}
        with pytest.raises(ValueError, match="narrows: a bound cannot be kept behind another filter"):
            f.create_dataset("shuffled", data=a, **hints)
        f.create_dataset("shuffled exactly", data=a, **{**narrows.hdf5(), "shuffle": True, "fletcher32": True})
        for words in [(2,), (0,), (1 | 3 << 8,), (1 | 1 << 16, 0), (1 | 1 << 30,), tuple(range(99))]:
            with pytest.raises(ValueError, match="narrows: "):
                f.create_dataset(f"{words}", data=a, compression=narrows._narrows.HDF5_FILTER, compression_opts=words)
        with pytest.raises((TypeError, ValueError), match="[Ss]calar"):
            f.create_dataset("scalar", data=1.0, **narrows.hdf5())
    with h5py.File(path) as f:
        assert (f["shuffled exactly"][:] == a).all()
    for bad in [{"abs": -1}, {"abs": float("nan")}, {"floor": 1}, {"digits": 0}, {"mode": "best"}]:
        with pytest.raises(narrows.MisuseError):
            narrows.hdf5(**bad)  # type: ignore[misc]


def test_the_fill_value_of_a_dataset_stays(path: Path) -> None:
    a = field((40, 50))
    a[:7] = -9999
    with h5py.File(path, "w") as f:
        f.create_dataset("a", data=a, chunks=(16, 16), fillvalue=-9999, **narrows.hdf5(digits=1))
        grown = f.create_dataset("b", (10, 5), "f4", chunks=(4, 4), maxshape=(None, 5), fillvalue=7, **narrows.hdf5())
        grown.resize((30, 5))
        grown[25:] = 1
    with h5py.File(path) as f:
        assert ((f["a"][:] == -9999) == (a == -9999)).all()
        assert (f["b"][:25] == 7).all() and (f["b"][25:] == 1).all()


KEPT: dict[str, tuple[str, Any]] = {
    "halves": ("f2", -0.3174),
    "halves, big-endian": (">f2", -0.3174),
    "singles, big-endian": (">f4", 4.1297035),
    "doubles": ("f8", 4.1297035),
    "integers": ("i2", 740),
    "complex": ("c8", 3 + 4j),
    "complex, big-endian": (">c16", -9 - 9j),
}


@pytest.mark.parametrize("name", KEPT)
@pytest.mark.parametrize("write", ["assigned", "write_chunks"])
def test_the_fill_value_of_every_type_stays_beside_stated_ones(name: str, write: str, path: Path) -> None:
    kind, fill = KEPT[name]
    a = np.linspace(1, 1000, 1000).astype(kind)
    a[::5] = fill
    hints: list[dict[str, Any]] = [{}, {"fill": 5}, {"fill": [5, 6, 7]}, {"fill": 5, "whole_chunks": True}]
    with h5py.File(path, "w") as f:
        for i, stated in enumerate(hints):
            options = narrows.hdf5(abs=3.9, **stated)
            d = f.create_dataset(str(i), a.shape, a.dtype, chunks=(100,), fillvalue=a[0], **options)
            if write == "assigned":
                d[...] = a
            else:
                narrows.write_chunks(d, a)
    with h5py.File(path) as f:
        for i, stated in enumerate(hints):
            b = f[str(i)][...]
            assert (b[::5] == a[::5]).all(), stated
            assert (b != a).any() and np.abs(b.astype("c16") - a).max() <= 3.9 * 2**0.5, stated


@pytest.mark.parametrize("kind", ["f2", "f8", "c16"])
def test_the_fill_value_of_every_type_is_no_part_of_the_range(kind: str, path: Path) -> None:
    a = (280 + np.sort(np.random.default_rng(1).random(150) * 8)).astype(kind)
    with h5py.File(path, "w") as f:
        f.create_dataset("a", data=a, chunks=(100,), fillvalue=a.dtype.type(-9), **narrows.hdf5(range_rel=0.05))
    with h5py.File(path) as f:
        worst = np.abs(f["a"][100:].astype("c16") - a[100:]).max()
    assert worst <= 0.05 * float(np.ptp(a[100:].real)) * (2**0.5 if kind == "c16" else 1)


def test_a_fill_value_without_a_place_is_refused(path: Path) -> None:
    ranges = [(1, 2), (3, 4), (5, 6)]
    with h5py.File(path, "w") as f:
        options = narrows.hdf5(abs=0.1, fill=[10, 11, 12], exact=ranges)
        with pytest.raises(ValueError, match="no place is left for the dataset's fill value, -9"):
            f.create_dataset("a", data=field((20, 30)), chunks=(20, 30), fillvalue=-9, **options)


def test_missing_values_stay_where_nccopy_loses_the_fill_value(path: Path) -> None:
    """It keeps ``_FillValue`` as an attribute, and the dataset's own fill value is 0."""
    need("nccopy")
    a = 280 + np.sort(np.random.default_rng(1).random(300))
    fills = {"f4": np.float32(FILL), "f8": np.float64(FILL), "default": netCDF4.default_fillvals["f4"]}
    plain = path.with_suffix(".plain.nc")
    with netCDF4.Dataset(plain, "w") as f:
        f.createDimension("x", 300)
        for name, fill in fills.items():
            kind = "f8" if name == "f8" else "f4"
            v = f.createVariable(name, kind, ("x",), chunksizes=(100,), fill_value=None if name == "default" else fill)
            v.set_auto_maskandscale(False)
            v[:] = np.where(np.arange(300) % 3 == 0, fill, a)
    all_hints: list[dict[str, Any]] = [{"rel": 0.01}, {"range_rel": 0.01}]
    for hints in all_hints:
        words = (narrows._narrows.HDF5_FILTER, *narrows.hdf5(**hints, fill=-9999)["compression_opts"])
        done = run("nccopy", "-F", f"*,{','.join(map(str, words))}", plain, path)
        assert done.returncode == 0, done.stderr
        with h5py.File(path) as f, h5py.File(plain) as p:
            for name, fill in fills.items():
                was, now = p[name][...].astype("f8"), f[name][...].astype("f8")
                missing = was == p[name].dtype.type(fill)
                assert missing.sum() == 100 and (was[missing] == now[missing]).all(), (hints, name)
                most = 0.01 * was[~missing] if "rel" in hints else 0.01
                assert (np.abs(was - now)[~missing] <= most).all(), (hints, name)


def test_records_whose_names_begin_with_r_and_i_are_no_complex_numbers(path: Path) -> None:
    steps = np.arange(200)
    with h5py.File(path, "w") as f:
        for names in (("rain", "ice"), ("Real", "Imag"), ("i", "r")):
            a = np.array([(i * 1.1, i * 0.5) for i in steps], [(n, "f4") for n in names])
            f.create_dataset(names[0], data=a, chunks=(50,), **narrows.hdf5(abs=5))
            f[names[0] + " plain"] = a
    with h5py.File(path) as f:
        assert [bool((f[n][...] == f[f"{n} plain"][...]).all()) for n in ("rain", "Real", "i")] == [True, False, True]


@pytest.mark.parametrize("imports", ["import narrows, h5py", "import h5py, narrows"])
def test_who_only_writes_uses_the_filter(imports: str, path: Path) -> None:
    """HDF5 looks for filters when datasets are made and read, and writes without one that is optional."""
    with h5py.File(path, "w") as f:
        f.create_dataset("a", (0, 100), "f4", maxshape=(None, 100), chunks=(50, 100), **narrows.hdf5(abs=0.01))
    text = f"""
        import sys
        {imports}
        import numpy
        with h5py.File(sys.argv[1], "a") as f:
            f["a"].resize(200, 0)
            f["a"][:] = numpy.linspace(0, 1, 20000, dtype="f4").reshape(200, 100)
            print(f["a"].id.get_storage_size())
    """
    assert int(python(text, path)) < 20000


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("made_by", ["h5py", "write_chunks", "netCDF4", "a fill value"])
def test_what_pads_chunks_is_no_part_of_their_range(made_by: str, whole: bool, path: Path) -> None:
    a = (288 + np.random.default_rng(5).normal(size=(100, 130))).astype("f4")
    hints: dict[str, Any] = {"range_rel": 1e-3, "whole_chunks": whole}
    if made_by == "netCDF4":
        with netCDF4.Dataset(path, "w") as n:
            for name, length in zip("yx", a.shape, strict=True):
                n.createDimension(name, length)
            v = n.createVariable("a", "f4", ("y", "x"), chunksizes=(64, 64), fill_value=False)
            narrows.netcdf4_filter(v, **hints)
            v[:] = a
    else:
        with h5py.File(path, "w") as f:
            fill = {"fillvalue": -1} if made_by == "a fill value" else {}
            d = f.create_dataset("a", a.shape, a.dtype, chunks=(64, 64), **fill, **narrows.hdf5(**hints, fill=1e20))
            if made_by == "write_chunks":
                narrows.write_chunks(d, a)
            else:
                d[:] = a
    with h5py.File(path) as f:
        back = f["a"][:]
    for y in range(0, 100, 64):
        for x in range(0, 130, 64):
            was, now = a[y : y + 64, x : x + 64].astype("f8"), back[y : y + 64, x : x + 64]
            assert abs(was - now).max() <= 1e-3 * (was.max() - was.min())
    assert stored_at(path) < a.nbytes


def stored_at(path: Path) -> int:
    with h5py.File(path) as f:
        return stored(f["a"])


def test_xarray_writes_and_both_engines_read(path: Path) -> None:
    data = xarray.Dataset(
        {"tas": (("time", "lat", "lon"), field()), "mask": (("lat",), np.arange(60) % 2 == 0), "t0": ((), 4.0)},
        coords={"time": np.arange(6)},
    )
    encoding = {
        "tas": {**narrows.hdf5(digits=3), "_FillValue": np.float32(FILL), "chunksizes": (2, 30, 70)},
        "mask": narrows.hdf5(),
    }
    data.to_netcdf(path, engine="h5netcdf", encoding=encoding)
    for engine in ("h5netcdf", "netcdf4"):
        with xarray.open_dataset(path, engine=engine) as back:
            assert (np.abs(back.tas - data.tas) <= 0.005 * np.abs(data.tas)).all()
            assert (back["mask"] == data["mask"]).all()
    with h5netcdf.legacyapi.Dataset(path) as f:
        assert f["tas"].shape == data.tas.shape
    # xarray remembers a filter that h5py calls "unknown": who writes again states one, or none.
    with xarray.open_dataset(path, engine="h5netcdf") as back:
        back.load().drop_encoding().to_netcdf(path.with_suffix(".again.nc"), engine="h5netcdf")


def test_netcdf4_writes_by_its_own_library(path: Path) -> None:
    a = field()
    a[0, 0, :9] = 9.96921e36
    with netCDF4.Dataset(path, "w") as f:
        for name, n in zip(("t", "y", "x"), a.shape):
            f.createDimension(name, None if name == "t" else n)
        v = f.createVariable("tas", "f4", ("t", "y", "x"), chunksizes=(2, 30, 35))
        narrows.netcdf4_filter(v, abs=0.01)
        v[:] = a
        scalar = f.createVariable("s", "f4", ())
        deflated = f.createVariable("q", "f4", ("y", "x"), zlib=True)
        text = f.createVariable("text", str, ("y",))
        late = f.createVariable("late", "f4", ("y", "x"))
        late[:] = a[1]
        f.sync()
        for refused in (scalar, deflated, text, late):
            with pytest.raises(narrows.MisuseError):
                narrows.netcdf4_filter(refused)
    with netCDF4.Dataset(path) as f:
        f.set_auto_mask(False)
        assert np.abs(f["tas"][:].astype("f8") - a)[a < 1e30].max() <= 0.01
        assert (f["tas"][:][a > 1e30] == a[a > 1e30]).all()
        assert (f["late"][:] == a[1]).all()
    with h5py.File(path) as f:
        assert stored(f["tas"]) * 2 < a.nbytes


ORDERS = {
    "narrows first": "import narrows, h5py, netCDF4",
    "narrows last": "import h5py, netCDF4, narrows",
    "netCDF4 first": "import netCDF4, h5py, narrows",
    "netCDF4, narrows, h5py": "import netCDF4, narrows, h5py",
    "h5py, narrows, netCDF4": "import h5py, narrows, netCDF4",
}


@pytest.mark.parametrize("order", ORDERS)
def test_both_copies_of_hdf5_use_the_filter_in_one_process(order: str, path: Path) -> None:
    a = field((40, 50))
    told = python(
        f"""
        import sys
        {ORDERS[order]}
        import numpy as np
        a = np.load(sys.argv[1])
        with netCDF4.Dataset(sys.argv[2] + ".1", "w") as f:
            f.createDimension("y", 40), f.createDimension("x", 50)
            v = f.createVariable("a", "f4", ("y", "x"), chunksizes=(20, 20))
            narrows.netcdf4_filter(v, abs=.01)
            v[:] = a
            # The filters of netCDF4's wheel are still found.
            f.createVariable("z", "f4", ("y", "x"), compression="blosc_lz4")[:] = a
        with h5py.File(sys.argv[2] + ".2", "w") as f:
            f.create_dataset("a", data=a, chunks=(20, 20), **narrows.hdf5(abs=.01))
        for name in ".1", ".2":
            with h5py.File(sys.argv[2] + name) as f:
                assert f["a"].id.get_storage_size() * 1.5 < a.nbytes
                b = f["a"][:]
            with netCDF4.Dataset(sys.argv[2] + name) as f:
                assert (f["a"][:] == b).all() and abs(b.astype("f8") - a).max() <= .01
        print("read", h5py.version.hdf5_version, netCDF4.__hdf5libversion__)
        """,
        *[save(path, a), path],
    )
    assert told.startswith("read")


def save(path: Path, a: Array) -> Path:
    np.save(path.with_suffix(".npy"), a)
    return path.with_suffix(".npy")


def test_a_process_that_knows_only_the_path_reads(path: Path) -> None:
    a = field((40, 50))
    with h5py.File(path, "w") as f:
        f.create_dataset("a", data=a, **narrows.hdf5())
    for library in ("h5py.File", "netCDF4.Dataset"):
        text = f"import sys, numpy, h5py, netCDF4; assert ({library}(sys.argv[1])['a'][:] == numpy.load(sys.argv[2])).all()"
        python(text, path, save(path, a), narrows=False)


def test_importing_narrows_imports_no_array_library() -> None:
    python(
        """
        import os, sys, narrows
        assert not {"h5py", "netCDF4", "numpy", "xarray"} & set(sys.modules)
        assert os.environ["HDF5_PLUGIN_PATH"].split(":")[-1].endswith("plugins")
        """
    )


def test_a_reader_without_the_filter_says_so(path: Path) -> None:
    with h5py.File(path, "w") as f:
        f.create_dataset("a", data=field((40, 50)), **narrows.hdf5())
    environment = {k: v for k, v in os.environ.items() if k not in ("HDF5_PLUGIN_PATH", "PYTHONPATH")}
    text = "import sys, h5py; h5py.File(sys.argv[1])['a'][:]"
    done = subprocess.run([sys.executable, "-c", text, path], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and "OSError: Can't synchronously read data" in done.stderr


def test_the_programs_of_hdf5_and_netcdf_read_and_write(path: Path, program: str) -> None:
    for name in ("h5dump", "h5repack", "ncdump", "nccopy"):
        need(name)
    a = field((4, 30, 35))
    data = xarray.Dataset({"tas": (("time", "lat", "lon"), a)})
    data.to_netcdf(path, engine="h5netcdf", encoding={"tas": {**narrows.hdf5(), "chunksizes": (2, 30, 35)}})
    first = f"{a[0, 0, 0]:.3f}"
    for dump in (["h5dump", "-d", "/tas", path], ["ncdump", "-v", "tas", path]):
        done = run(*dump)
        assert done.returncode == 0 and first in done.stdout, done.stderr
        # Without the path they fail, and say so by their status or in their text.
        done = run(*dump, plugins="")
        assert first not in done.stdout and (done.returncode != 0 or "error" in done.stderr)
    plain = path.with_suffix(".plain.nc")
    data.to_netcdf(plain, engine="h5netcdf", encoding={"tas": {"chunksizes": (1, 30, 35)}})

    def parameters(form: str) -> str:
        command = [program, "hdf5", form, "--abs", "0.01"]
        return subprocess.run(command, capture_output=True, text=True, timeout=120).stdout.strip()

    copies = {
        "nccopy": ["-F", f"tas,{parameters('--params')}"],
        "h5repack": ["-f", f"tas:{parameters('--repack')}"],
    }
    for name, arguments in copies.items():
        for source in (plain, path):
            copy = path.with_suffix(f".{name}.nc")
            done = run(name, *arguments, source, copy)
            assert done.returncode == 0, done.stderr
            with h5py.File(copy) as f:
                assert stored(f["tas"]) * 2 < a.nbytes
                assert np.abs(f["tas"][:].astype("f8") - a).max() <= 0.01
            copy.unlink()
    # To other chunks, and back to none.
    for arguments in (["-l", "tas:CHUNK=3x7x35"], ["-f", "tas:NONE"]):
        done = run("h5repack", *arguments, path, copy)
        assert done.returncode == 0, done.stderr
        with h5py.File(copy) as f:
            assert (f["tas"][:] == a).all()
        copy.unlink()


def params(dataset: h5py.Dataset) -> tuple[int, ...]:
    """What HDF5 keeps for the filter, which is the last one."""
    plist = dataset.id.get_create_plist()
    return tuple(plist.get_filter(plist.get_nfilters() - 1)[2])


def test_the_last_stored_parameter_alone_means_exact(path: Path) -> None:
    """NCO gives the variables that follow one with a filter the last of its parameters only."""
    a = field((20, 30))
    cases: dict[str, dict[str, Any]] = {
        "exact": narrows.hdf5(),
        "abs": narrows.hdf5(abs=0.01, fill=5),
        "archive": narrows.hdf5(digits=3, exact=(None, -1), mode="archive", encode_rate="2MB/s"),
        "behind": {**narrows.hdf5(), "shuffle": True},
    }
    with h5py.File(path, "w") as f:
        for name, options in cases.items():
            f.create_dataset(name, data=a, chunks=(7, 11), **options)
        f.create_dataset("lines", data=a, chunks=(20, 1), **narrows.hdf5(abs=0.01))
        f.create_dataset("axis", data=a[0], chunks=(30,), **narrows.hdf5(abs=0.01))
        f.create_dataset("text", data=np.array([b"ab", b"cde"]), chunks=(2,), **narrows.hdf5(abs=1))
        for name in list(f):
            last = params(f[name])[-1:]
            again = f.create_dataset(
                f"{name} again", data=a, compression=narrows._narrows.HDF5_FILTER, compression_opts=last
            )
            assert (again[:] == a).all() and stored(again) < a.nbytes, name
    with h5py.File(path) as f:
        assert np.abs(f["abs"][:] - a).max() <= 0.01 and (f["behind"][:] == a).all()
        assert f["text"][:].tolist() == [b"ab", b"cde"]


def test_files_of_before_are_read_and_written(path: Path) -> None:
    """Their parameters end with the last axis of a chunk. The newest program of then made them."""
    shutil.copy(Path(__file__).parent / "stored" / "filter-1.h5", path)
    a = (100 * np.sin(np.arange(600) / 50)).astype("f4").reshape(20, 30)
    with h5py.File(path, "r+") as f:
        assert params(f["exact"])[-1] == 30
        for _ in range(2):
            assert (f["exact"][:] == a).all() and (f["shuffled"][:] == a).all()
            assert 0 < np.abs(f["close"][:] - a).max() <= 0.5
            assert (np.abs(f["swapped"][:] - a) <= 2**-9 * np.abs(a)).all()
            assert f["text"][:].tolist() == [b"ab", b"cde"] * 10 and f["strings"][0] == b"a"
            for name in ("exact", "close", "swapped", "shuffled"):
                f[name][3:8, 2:9] = a[3:8, 2:9]
            narrows.write_chunks(f["exact"], a)


def climate(path: Path, steps: range = range(12)) -> Array:
    """A file as models write them: coordinates, bounds, text, a variable without axes, and two variables
    with the filter. Returns the first one.
    """
    a = field((len(steps), 30, 40), seed=steps.start)
    with netCDF4.Dataset(path, "w") as f:
        for name, length in (("time", None), ("lat", 30), ("lon", 40), ("bnds", 2), ("name", 8)):
            f.createDimension(name, length)

        def put(name: str, axes: tuple[str, ...], values: Any, hints: dict[str, Any] | None = None, **about: str) -> None:
            kind = values.dtype if isinstance(values, np.ndarray) else "f8"
            v = f.createVariable(name, kind, axes, chunksizes=(4, 30, 40) if len(axes) == 3 else None)
            if hints is not None:
                narrows.netcdf4_filter(v, **hints)
            v.setncatts(about)
            v[:] = values

        days = np.array(steps) + 0.25
        put("tas", ("time", "lat", "lon"), a, {"abs": 0.05}, units="K")
        put("lat", ("lat",), np.linspace(-87, 87, 30), units="degrees_north")
        put("lon", ("lon",), np.linspace(0, 351, 40), units="degrees_east")
        put("time", ("time",), days, units="days since 2000-01-01", calendar="standard", bounds="time_bnds")
        put("time_bnds", ("time", "bnds"), np.stack([days - 0.5, days + 0.5], 1))
        put("pr", ("time", "lat", "lon"), np.maximum(a - 280, 0), {"digits": 3}, units="mm")
        put("height", (), 2.0, units="m")
        put("station", ("name",), np.array(list("station "), "S1"))
        put("count", ("lat", "lon"), np.arange(1200, dtype="i4").reshape(30, 40), {})
    return a


def same_as(path: Path, source: Path, steps: slice = slice(None)) -> None:
    """Compares a copy with its source: a bound is used once more, and nothing else changes."""
    with netCDF4.Dataset(path) as f, netCDF4.Dataset(source) as g:
        for name, v in g.variables.items():
            was = v[steps] if v.dimensions[:1] == ("time",) else v[...]
            now = f[name][...]
            if name == "tas":
                assert (np.abs(now.astype("f8") - was) <= 0.05).all()
            elif name == "pr":
                assert (np.abs(now.astype("f8") - was) <= 0.005 * was).all()
            else:
                assert (now == was).all(), name


def test_nco_copies_and_computes(path: Path) -> None:
    for name in ("ncks", "ncra", "ncrcat", "ncwa"):
        need(name)
    a = climate(path)
    out, more = path.with_suffix(".out.nc"), path.with_suffix(".more.nc")
    b = climate(more, range(12, 24))

    def nco(*command: str | Path) -> None:
        done = run(command[0], "-O", *command[1:], out)
        assert done.returncode == 0, done.stdout + done.stderr

    nco("ncks", path)
    same_as(out, path)
    # Twice, of what NCO wrote.
    shutil.copy(out, again := path.with_suffix(".again.nc"))
    nco("ncks", again)
    same_as(out, again)
    nco("ncks", "-d", "time,3,9", path)
    same_as(out, path, slice(3, 10))
    nco("ncks", "-v", "pr,tas", path)
    with netCDF4.Dataset(out) as f:
        assert np.abs(f["tas"][:] - a).max() <= 0.1
    nco("ncks", "--cmp=dfl,1", path)
    same_as(out, path)
    nco("ncrcat", path, more)
    with netCDF4.Dataset(out) as f:
        assert np.abs(f["tas"][:] - np.concatenate([a, b])).max() <= 0.1
        assert (f["time"][:] == np.arange(24) + 0.25).all()
    for mean in (["ncra"], ["ncwa", "-a", "time"]):
        nco(*mean, path)
        with netCDF4.Dataset(out) as f:
            assert np.abs(f["tas"][...].squeeze() - a.mean(0)).max() <= 0.1
            assert (f["lat"][:] == np.linspace(-87, 87, 30)).all()


def test_cdo_copies_and_computes(path: Path) -> None:
    need("cdo")
    a = climate(path)
    out, more = path.with_suffix(".out.nc"), path.with_suffix(".more.nc")
    b = climate(more, range(12, 24))

    def cdo(*command: str | Path) -> None:
        done = run("cdo", "-s", "-O", *command, out)
        assert done.returncode == 0, done.stderr

    cdo("-f", "nc4", "copy", "-selname,tas,pr", path)
    with netCDF4.Dataset(out) as f:
        assert np.abs(f["tas"][:] - a).max() <= 0.05
        assert np.abs(f["time_bnds"][:, 1] - f["time"][:]).max() == 0.5
    cdo("mergetime", "-selname,tas", path, "-selname,tas", more)
    with netCDF4.Dataset(out) as f:
        assert np.abs(f["tas"][:] - np.concatenate([a, b])).max() <= 0.05
    cdo("timmean", "-selname,tas", path)
    with netCDF4.Dataset(out) as f:
        assert np.abs(f["tas"][:].squeeze() - a.mean(0)).max() <= 0.05 + 1e-4


def test_h5repack_copies_all_variables(path: Path) -> None:
    need("h5repack")
    climate(path)
    out = path.with_suffix(".out.nc")
    for arguments in ([], ["-l", "tas,pr:CHUNK=3x15x40"], ["-f", "tas,pr,count:NONE"], ["-f", "GZIP=1"]):
        done = run("h5repack", *arguments, path, out)
        assert done.returncode == 0 and "Warning" not in done.stderr, done.stderr
        same_as(out, path)
        out.unlink()


def test_threads_and_forks(path: Path) -> None:
    a = field((32, 40, 40))
    with h5py.File(path, "w") as f:
        f.create_dataset("a", data=a, chunks=(1, 40, 40), **narrows.hdf5())
    with h5py.File(path) as f, ThreadPoolExecutor(6) as pool:
        assert all(pool.map(lambda i: bool((f["a"][i % 32] == a[i % 32]).all()), range(200)))
    python(
        """
        import os, sys, numpy, h5py, narrows
        a = numpy.load(sys.argv[2])
        assert (h5py.File(sys.argv[1])["a"][3] == a[3]).all()
        children = []
        for i in range(4):
            if not (child := os.fork()):
                with h5py.File(sys.argv[1]) as f:
                    right = (f["a"][:] == a).all()
                with h5py.File(f"{sys.argv[1]}.{i}", "w") as f:
                    f.create_dataset("a", data=a, chunks=(1, 40, 40), **narrows.hdf5(abs=.01))
                os._exit(0 if right else 9)
            children.append(child)
        assert all(os.waitpid(child, 0)[1] == 0 for child in children)
        """,
        path,
        save(path, a),
    )
    digests = {hashlib.sha256(Path(f"{path}.{i}").read_bytes()).digest() for i in range(4)}
    assert len(digests) == 1


def test_corrupt_chunks_are_errors(path: Path) -> None:
    a = field((30, 40))
    with h5py.File(path, "w") as f:
        for name, hints in {"exact": narrows.hdf5(), "close": narrows.hdf5(abs=0.01)}.items():
            f.create_dataset(name, data=a, chunks=(30, 40), **hints)
    with h5py.File(path) as f:
        known = {name: f[name][:] for name in f}
        chunks = {name: f[name].id.get_chunk_info(0) for name in f}
    whole = path.read_bytes()
    for name, chunk in chunks.items():
        errors = 0
        for at in [*range(0, 40), *range(40, chunk.size, 97), chunk.size - 1]:
            damaged = bytearray(whole)
            damaged[chunk.byte_offset + at] ^= 0x24
            path.write_bytes(damaged)
            with h5py.File(path) as f:
                try:
                    assert (f[name][:] == known[name]).all(), at
                except OSError as e:
                    assert "narrows: " in str(e), at
                    errors += 1
        # The stated bound is not under the check.
        assert errors > 25
    path.write_bytes(whole)
    # Chunks of another shape and type, a chunk that is cut short, plain bytes.
    with h5py.File(path, "r+") as f:
        d = f.create_dataset("other", (30, 40), "f4", chunks=(15, 40), **narrows.hdf5())
        chunk = f["exact"].id.read_direct_chunk((0, 0))[1]
        for content in (chunk, chunk[: len(chunk) // 2], chunk[:1], a[:15].tobytes()):
            d.id.write_direct_chunk((0, 0), content)
            with pytest.raises(OSError, match="narrows: "):
                d[:15]


@pytest.mark.parametrize("chunks", [(2, 20, 30), (5, 33, 70), (6, 60, 70)])
def test_direct_chunks_mean_what_the_filter_means(chunks: tuple[int, ...], path: Path) -> None:
    a = field()
    a[0, 0, :5] = FILL
    with h5py.File(path, "w") as f:
        for name, hints in {"exact": narrows.hdf5(), "close": narrows.hdf5(abs=0.01)}.items():
            d = f.create_dataset(name, a.shape, a.dtype, chunks=chunks, fillvalue=FILL, **hints)
            narrows.write_chunks(d, a)
            one = f.create_dataset(f"{name} by one", a.shape, a.dtype, chunks=chunks, fillvalue=FILL, **hints)
            narrows.write_chunks(one, a, threads=1)
    with h5py.File(path) as f:
        assert (f["exact"][:] == a).all()
        assert np.abs(f["close"][:].astype("f8") - a).max() <= 0.01
        for name in ("exact", "close"):
            d, one = f[name].id, f[f"{name} by one"].id
            for i in range(d.get_num_chunks()):
                origin = d.get_chunk_info(i).chunk_offset
                assert d.read_direct_chunk(origin) == one.read_direct_chunk(origin)


@pytest.mark.parametrize("hints", [{"abs": 0.01}, {"digits": 4}, {"rel": 1e-4, "floor": 1e-6}, {"range_rel": 1e-3}])
def test_errors_do_not_add_up_over_appended_steps(path: Path, hints: dict[str, Any]) -> None:
    # Each append decodes the chunk and encodes it again.
    a = field((24, 40, 40)).astype("f8")
    with h5py.File(path, "w") as f:
        f.create_dataset("a", a.shape, "f8", chunks=a.shape, **narrows.hdf5(**hints))
    for step in range(len(a)):
        with h5py.File(path, "r+") as f:
            f["a"][step] = a[step]
    allowed = {"abs": 0.01, "digits": 0.5e-3 * a, "rel": 1e-4 * a, "range_rel": 1e-3 * a.max()}[next(iter(hints))]
    with h5py.File(path) as f:
        error = abs(f["a"][:] - a)
        assert (error <= allowed).all() and error.any()
        assert f["a"].id.get_storage_size() < a.nbytes / 3


def test_whole_chunks_shrink_more(path: Path) -> None:
    a = field((1, 90, 90))
    with h5py.File(path, "w") as f:
        for name, whole in (("whole", True), ("parts", False)):
            hints = narrows.hdf5(abs=1.0, whole_chunks=whole)
            f.create_dataset(name, data=a, chunks=a.shape, **hints)
            assert abs(f[name][:] - a).max() <= 1.0
        whole, parts = (f[name].id.get_storage_size() for name in ("whole", "parts"))
        assert whole < parts
    with pytest.raises(TypeError):
        narrows.hdf5(abs=1.0, whole_chunks=1)


def test_direct_chunks_append_and_convert(path: Path) -> None:
    a = field((10, 20, 20))
    with h5py.File(path, "w") as f:
        d = f.create_dataset("a", (0, 20, 20), ">f4", chunks=(2, 20, 20), maxshape=(None, 20, 20), **narrows.hdf5())
        for step in range(0, 10, 2):
            d.resize(step + 2, axis=0)
            narrows.write_chunks(d, a[step : step + 2], at=(step, 0, 0))
        assert (d[:] == a).all()
        for bad, at in [(a, (1, 0, 0)), (a[:1], (0, 0, 0)), (a[0], None), (a, (2, 0, 0)), (a[:2].astype("c8"), None)]:
            with pytest.raises(narrows.MisuseError):
                narrows.write_chunks(d, bad, at=at)
        plain = f.create_dataset("plain", data=a, chunks=True)
        checked = f.create_dataset("checked", data=a, fletcher32=True, **narrows.hdf5())
        strings = f.create_dataset("strings", (5,), h5py.string_dtype(), chunks=(5,), **narrows.hdf5())
        for refused, values in [(plain, a), (checked, a), (strings, np.array([b"x"] * 5))]:
            with pytest.raises(narrows.MisuseError):
                narrows.write_chunks(refused, values)
    with h5py.File(path) as f:
        assert (f["a"][:] == a).all()
