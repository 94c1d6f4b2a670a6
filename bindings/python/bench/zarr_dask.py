"""Zarr stores written and read by Dask with two worker processes: narrows against Blosc and Zarr's default.

    make python-wheel && target/python-venv/bin/pip install --force-reinstall --no-deps target/wheels/narrows-*.whl
    target/python-venv/bin/python bindings/python/bench/zarr_dask.py --corpus DIR [--repeat N] [--rounds N] [--json]

Every array of the climate pool (``DIR/climate``: raw ones with their shapes in ``DIR/MANIFEST.md``, and
numeric variables of NetCDF files) is written ``--repeat`` times over into one Zarr array, in chunks of
about 256 KiB, none of which crosses a copy; so a chunk is as it is in the file, and the ratio is that of
the pool. Each round writes everything with each codec, in an order that turns, to new stores in ``--to``
(a folder, by default in memory), reads it back, and compares it bit for bit. The results are medians of the
rounds; shares are medians of the rounds' shares of Blosc's time. The first round warms up.
"""

import argparse
import json
import math
import os
import re
import shlex
import shutil
import statistics
import sys
import tempfile
import time
import warnings
from pathlib import Path

import dask
import dask.array as da
import netCDF4
import numpy as np
import zarr
from distributed import Client, LocalCluster
from stream_writer import commit, machine
from zarr.codecs import BloscCodec

import narrows

CHUNK_LEN = 256 << 10
# Variables below this are indices and bounds, whose chunks are all overhead.
LEAST_LEN = 64 << 10
BASE = "blosc zstd 5"


def pool(corpus: Path) -> dict[str, np.ndarray]:
    arrays = {}
    manifest = (corpus / "MANIFEST.md").read_text(encoding="utf-8")
    for path in sorted((corpus / "climate" / "raw").iterdir()):
        row = next((line for line in manifest.splitlines() if f"raw/{path.name} " in line), "")
        values = np.fromfile(path, {".f32": "<f4", ".f64": "<f8"}[path.suffix])
        found = re.search(r"shape \[([0-9, ]+)\]", row)
        shape = [int(d) for d in found[1].split(",")] if found else [len(values)]
        arrays[path.name] = values.reshape(shape)
    # Names with a range are parts of files, whose last variables are missing.
    for path in sorted(set((corpus / "climate").glob("*.nc")) - set((corpus / "climate").glob("*MiB.nc"))):
        try:
            with netCDF4.Dataset(path) as file:
                file.set_auto_maskandscale(False)
                for name, variable in file.variables.items():
                    if variable.dtype is str or variable.dtype.kind not in "iuf":
                        continue
                    values = np.asarray(variable[...])
                    if values.nbytes >= LEAST_LEN:
                        arrays[f"{path.name}:{name}"] = values
        except OSError as error:
            print(f"{path.name} is left out: {error}", file=sys.stderr)
    return arrays


def chunk(a: np.ndarray) -> tuple[int, ...]:
    """About CHUNK_LEN, cut along the first axes: what is contiguous stays together."""
    shape = list(a.shape)
    for axis in range(len(shape)):
        rest = math.prod(shape[axis + 1 :]) * a.itemsize
        if math.prod(shape[axis:]) * a.itemsize <= CHUNK_LEN:
            break
        parts = math.ceil(shape[axis] * rest / CHUNK_LEN)
        shape[axis] = max(1, math.ceil(shape[axis] / min(parts, shape[axis])))
        if rest <= CHUNK_LEN:
            break
    return tuple(shape)


def codecs(hints: dict) -> dict[str, dict]:
    blosc = BloscCodec(cname="zstd", clevel=5, shuffle="shuffle")
    return {
        BASE: {"compressors": blosc},
        "zarr's default": {},
        "narrows": narrows.zarr(**hints),
        "narrows fast": narrows.zarr(**hints, mode="fast"),
    }


def write(arrays: dict, repeat: int, options: dict, root: Path) -> tuple[float, int]:
    """Seconds and stored bytes. Arrays are created before, and workers have the data already."""
    sources, targets = [], []
    for i, (a, persisted) in enumerate(arrays.values()):
        shape = (repeat, *a.shape)
        target = zarr.create_array(root / str(i), shape=shape, chunks=(1, *chunk(a)), dtype=a.dtype, fill_value=0, **options)
        sources.append(persisted)
        targets.append(target)
    begun = time.perf_counter()
    da.store(sources, targets, lock=False)
    seconds = time.perf_counter() - begun
    return seconds, sum(file.stat().st_size for file in root.rglob("*") if file.is_file() and file.name != "zarr.json")


def read(arrays: dict, root: Path) -> float:
    """Seconds for reading everything on the workers, which compare it too."""
    begun = time.perf_counter()
    equal = []
    for i, (a, persisted) in enumerate(arrays.values()):
        back = da.from_zarr(root / str(i), chunks=persisted.chunks)
        equal.append(da.map_blocks(same, back, persisted, dtype=bool, chunks=tuple((1,) * n for n in back.numblocks)).all())
    differing = [name for name, is_equal in zip(arrays, dask.compute(*equal), strict=True) if not is_equal]
    if differing:
        raise SystemExit(f"read back differently: {', '.join(differing)}")
    return time.perf_counter() - begun


def same(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.full((1,) * a.ndim, a.tobytes() == b.tobytes())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--repeat", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--to", type=Path, default=Path("/dev/shm"), help="folder of the stores")
    parser.add_argument("--only", help="codecs, separated by commas")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore", message="Sending large graph")
    plain = pool(arguments.corpus)
    raw_len = sum(a.nbytes for a in plain.values()) * arguments.repeat
    ways = codecs({})
    if arguments.only:
        ways = {name: way for name, way in ways.items() if name in (BASE, *arguments.only.split(","))}
    times: dict[str, list[float]] = {name: [] for name in ways}
    reads: dict[str, list[float]] = {name: [] for name in ways}
    stored = {}
    cluster = {"n_workers": arguments.workers, "threads_per_worker": 1, "processes": True, "dashboard_address": ":0", "host": "127.0.0.1"}
    with LocalCluster(**cluster) as local, Client(local) as client:
        arrays = {}
        for name, a in plain.items():
            source = da.from_array(a[None], chunks=(1, *a.shape), name=f"pool-{name}")
            lazy = da.concatenate([source] * arguments.repeat)
            arrays[name] = (a, client.persist(lazy))
        dask.compute(*[persisted.sum() for _, persisted in arrays.values()])
        order = list(ways)
        for i in range(arguments.rounds + 1):
            for name in order:
                root = Path(tempfile.mkdtemp(prefix="zarr_dask.", dir=arguments.to))
                try:
                    seconds, stored[name] = write(arrays, arguments.repeat, ways[name], root)
                    read_seconds = read(arrays, root)
                finally:
                    shutil.rmtree(root)
                if i > 0:
                    times[name].append(seconds)
                    reads[name].append(read_seconds)
            order = order[1:] + order[:1]
    rows = []
    for name in ways:
        shares = [t / base for t, base in zip(times[name], times[BASE], strict=True)]
        rows.append(
            {
                "codec": name,
                "ratio": raw_len / stored[name],
                "ratio_share": stored[BASE] / stored[name],
                "write_bytes_per_s": raw_len / statistics.median(times[name]),
                "write_share": statistics.median(shares),
                "write_shares": shares,
                "read_bytes_per_s": raw_len / statistics.median(reads[name]),
                "read_share": statistics.median(t / base for t, base in zip(reads[name], reads[BASE], strict=True)),
            }
        )
    about = {"machine": machine(), "commit": commit(), "command": shlex.join(["zarr_dask.py", *sys.argv[1:]])}
    load = os.getloadavg()[0]
    if arguments.json:
        print(json.dumps({**about, "load": load, "bytes": raw_len, "arrays": {n: a.shape for n, a in plain.items()}, "rows": rows}, indent=1))
        return
    for name, value in about.items():
        print(f"{name}: {value}")
    print(f"{raw_len / 1e6:.0f} MB of {len(plain)} arrays, load {load:.1f}")
    print(f"{'codec':16}{'ratio':>7}{'/ blosc':>9}{'MB/s in':>9}{'time / blosc':>14}{'MB/s out':>10}{'time / blosc':>14}  shares of the rounds")
    for row in rows:
        figures = f"{row['ratio']:7.3f}{row['ratio_share']:9.3f}{row['write_bytes_per_s'] / 1e6:9.0f}{row['write_share']:14.3f}"
        figures += f"{row['read_bytes_per_s'] / 1e6:10.0f}{row['read_share']:14.3f}"
        print(f"{row['codec']:16}{figures}  {' '.join(f'{s:.2f}' for s in row['write_shares'])}")


if __name__ == "__main__":
    main()
