"""HDF5 filters on one array: ratio, and MB/s to write and to read, medians of interleaved rounds.

    python bench/hdf5_write.py [FILE.npy] [--rounds N] [--chunk BYTES] [--abs ERROR]

Without FILE it makes a field of 64 MB. Blosc2 is compared if hdf5plugin is installed.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import h5py
import numpy as np

import narrows

parser = argparse.ArgumentParser(usage=__doc__)
parser.add_argument("file", nargs="?")
parser.add_argument("--rounds", type=int, default=3)
parser.add_argument("--chunk", type=int, default=1 << 18)
parser.add_argument("--abs", type=float, default=0.01)
options = parser.parse_args()

if options.file:
    array = np.load(options.file)
else:
    axes = np.meshgrid(np.linspace(0, 8, 64), np.linspace(0, 9, 500), np.linspace(0, 7, 500), indexing="ij")
    noise = np.random.default_rng(1).normal(0, 0.05, axes[0].shape)
    array = (280 + 20 * np.sin(sum(axes)) + noise).astype("f4")

# Whole rows of the last axes, as far as a chunk goes.
chunks, room = [], max(1, options.chunk // array.itemsize)
for length in reversed(array.shape):
    chunks.insert(0, max(1, min(length, room)))
    room //= chunks[0]

ways: dict[str, dict[str, Any]] = {
    "deflate 4, shuffle": {"compression": "gzip", "shuffle": True},
    "narrows": narrows.hdf5(),
    "narrows, write_chunks": narrows.hdf5(),
    "narrows, fast": narrows.hdf5(mode="fast"),
    f"narrows, abs {options.abs:g}": narrows.hdf5(abs=options.abs),
    f"narrows, abs {options.abs:g}, write_chunks": narrows.hdf5(abs=options.abs),
}
try:
    import hdf5plugin
except ImportError:
    pass
else:
    ways["Blosc2 zstd 5, shuffle"] = dict(hdf5plugin.Blosc2(cname="zstd", clevel=5))

times: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
sizes: dict[str, int] = {}
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder, "x.h5")
    for _ in range(options.rounds):
        for way, arguments in ways.items():
            started = time.perf_counter()
            with h5py.File(path, "w") as f:
                d = f.create_dataset("x", array.shape, array.dtype, chunks=tuple(chunks), **arguments)
                if way.endswith("write_chunks"):
                    narrows.write_chunks(d, array)
                else:
                    d[...] = array
            written = time.perf_counter()
            with h5py.File(path) as f:
                f["x"][...]
                sizes[way] = f["x"].id.get_storage_size()
            times[way].append((written - started, time.perf_counter() - written))

print(f"{'ratio':>8} {'MB/s in':>8} {'MB/s out':>8}  chunks {tuple(chunks)} of {array.dtype}")
for way, pairs in times.items():
    rates = [array.nbytes / 1e6 / statistics.median(seconds) for seconds in zip(*pairs)]
    print(f"{array.nbytes / sizes[way]:8.2f} {rates[0]:8.0f} {rates[1]:8.0f}  {way}")
