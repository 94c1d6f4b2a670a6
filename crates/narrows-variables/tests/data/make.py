"""Makes the stored samples: `python make.py PROGRAM`, where PROGRAM is `narrows`.

Needs h5py, netCDF4, h5netcdf, numcodecs and zarr. Element i of every array is i * 37 % 1013, but for
`smooth` ones, which are 100 sin(i / 50) within .5. Chunks of Narrows are made by `narrows array encode`, so
that no filter or codec of Narrows need be installed.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile

import h5netcdf
import h5py
import netCDF4
import numpy as np
import zarr
from h5py import h5d, h5p, h5s, h5t, h5z

HERE = os.path.dirname(os.path.abspath(__file__))
NARROWS = 32768


def plain(shape, dtype):
    return (np.arange(np.prod(shape, dtype=int)) * 37 % 1013).reshape(shape).astype(dtype)


def smooth(shape, dtype):
    return (100 * np.sin(np.arange(np.prod(shape, dtype=int)) / 50)).reshape(shape).astype(dtype)


def chunk(array, *options):
    """One chunk of Narrows."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = os.path.join(folder, "a.npy"), os.path.join(folder, "a.nra")
        np.save(source, array)
        command = [sys.argv[1], "array", "encode", "--quiet", "--chunk", "1G", *options, source, "-o", target]
        subprocess.run(command, check=True)
        with open(target, "rb") as file:
            data = file.read()
        return data[data.index(b"NrA\x01"):]


def direct(group, name, data, chunks, *options, maxshape=None, before=(), leave_out=()):
    """A dataset whose chunks were encoded outside of HDF5."""
    plist = h5p.create(h5p.DATASET_CREATE)
    plist.set_chunk(chunks)
    for filter in before:
        plist.set_filter(filter, h5z.FLAG_OPTIONAL, (data.itemsize,))
    plist.set_filter(NARROWS, h5z.FLAG_OPTIONAL, (1, 2, 3, 4))
    space = h5s.create_simple(data.shape, maxshape or data.shape)
    h5d.create(group.id, name.encode(), h5t.py_create(data.dtype), space, plist)
    dataset = group[name]
    grid = [range(0, n, c) for n, c in zip(data.shape, chunks)]
    for number, origin in enumerate(np.array(np.meshgrid(*grid, indexing="ij")).reshape(len(chunks), -1).T):
        part = data[tuple(slice(o, o + c) for o, c in zip(origin, chunks))]
        whole = np.zeros(chunks, data.dtype)
        whole[tuple(slice(0, n) for n in part.shape)] = part
        if number in leave_out:
            mask = (1 << len(before) + 1) - 1
            dataset.id.write_direct_chunk(tuple(int(o) for o in origin), whole.tobytes(), mask)
        else:
            dataset.id.write_direct_chunk(tuple(int(o) for o in origin), chunk(whole, *options))


def early(group, name, data, chunks):
    """Chunks that are all there from the beginning."""
    plist = h5p.create(h5p.DATASET_CREATE)
    plist.set_chunk(chunks)
    plist.set_alloc_time(h5d.ALLOC_TIME_EARLY)
    h5d.create(group.id, name.encode(), h5t.py_create(data.dtype), h5s.create_simple(data.shape), plist)
    group[name][...] = data


def hdf5(name, libver):
    with h5py.File(os.path.join(HERE, name), "w", libver=libver) as file:
        file.create_dataset("contiguous", data=plain((7, 11), "f4"))
        file.create_dataset("big", data=plain((5, 3), ">i2"))
        file.create_dataset("scalar", data=np.float64(0))
        file.create_dataset("complex", data=plain((6,), "c8"))
        file.create_dataset("bool", data=np.array([False, True]))
        file.create_dataset("text", data=["a", "bc"])
        file.create_dataset("record", data=np.zeros(3, [("a", "i2"), ("b", "f8")]))
        compact = h5p.create(h5p.DATASET_CREATE)
        compact.set_layout(h5d.COMPACT)
        data = plain((4, 5), "u2")
        h5d.create(file.id, b"compact", h5t.py_create(data.dtype), h5s.create_simple(data.shape), compact)
        file["compact"][...] = data
        group = file.create_group("a/b")
        group.create_dataset("deflate", data=plain((30, 40), "f8"), chunks=(8, 16), compression="gzip",
                             compression_opts=1, shuffle=True, fletcher32=True)
        direct(group, "exact", plain((30, 40), "i4"), (10, 20))
        direct(group, "smooth", smooth((60, 50), "f4"), (32, 32), "--abs", "0.5", leave_out=[3])
        # Encoded with shuffle before it, which is no use but allowed.
        direct(group, "after", plain((20,), "i4"), (20,), leave_out=[0], before=[h5z.FILTER_SHUFFLE])
        file["other"] = h5py.SoftLink("/a/b/deflate")
        file["again"] = file["a/b/deflate"]
        # Indexes of newer files.
        if libver == "earliest":
            return
        group.create_dataset("partly", shape=(30, 40), dtype="f4", chunks=(10, 10), compression="gzip",
                             fillvalue=7)[:10] = 1
        file.create_dataset("single", data=plain((9, 9), "f4"), chunks=(9, 9), compression="gzip")
        early(file, "implicit", plain((10, 6), "i2"), (4, 4))
        file.create_dataset("fixed", data=plain((50, 3), "i2"), chunks=(7, 2))
        file.create_dataset("longer", shape=(50, 3), maxshape=(90, 5), data=plain((50, 3), "i2"), chunks=(7, 2))
        file.create_dataset("growing", data=plain((4, 40), "i2"), maxshape=(4, None), chunks=(3, 1))
        file.create_dataset("growing first", data=plain((90, 3), "i2"), maxshape=(None, 3), chunks=(2, 2),
                            compression="gzip", compression_opts=1)
    with h5py.File(os.path.join(HERE, "newer.h5"), "w", libver="latest") as file:
        file.create_dataset("free", data=plain((30, 24), "i2"), maxshape=(None, None), chunks=(2, 3))
        many = file.create_group("many")
        for i in range(12):
            many.create_dataset(f"variable with a rather long name {i:03}", data=np.int8(i))


def attributes(name):
    """Attributes in headers of both ages, in a heap, of another type than the elements, and a list."""
    with h5py.File(os.path.join(HERE, name), "w", libver="latest") as file:
        few = file.create_dataset("few", data=plain((5,), "f4"))
        few.attrs["_FillValue"] = np.float32(1e20)
        few.attrs["units"] = "K"
        many = file.create_dataset("many", data=plain((5,), "f4"))
        for i in range(12):
            many.attrs[f"note {i}"] = "text that is of no use here"
        many.attrs["missing_value"] = np.array([-9999.0, 1e20], "f8")
        file.create_dataset("text", data=plain((5,), "i2")).attrs["_FillValue"] = "none"
        file.create_dataset("shared", data=plain((5,), "i2"))
        file["kind"] = np.dtype(">i2")
        file["shared"].attrs.create("_FillValue", -7, dtype=file["kind"])
    with h5py.File(os.path.join(HERE, "old-" + name), "w", libver="earliest") as file:
        file.create_dataset("few", data=plain((5,), "i4")).attrs["_FillValue"] = np.int32(-9)


def long_arrays(name):
    """Extensible arrays with secondary blocks and pages, a deep tree, a heap with indirect blocks."""
    with h5py.File(os.path.join(HERE, name), "w", libver="latest") as file:
        dataset = file.create_dataset("far", shape=(200_000,), maxshape=(None,), dtype="u1", chunks=(1,))
        for i in [0, 5, 100, 1000, 5000, 199_999]:
            dataset[i] = i % 251 + 1
    with h5py.File(os.path.join(HERE, "paged.h5"), "w", libver="latest") as file:
        file.create_dataset("paged", data=plain((1100,), "u1"), chunks=(1,))
    with h5py.File(os.path.join(HERE, "names.h5"), "w", libver="latest") as file:
        target = file.create_dataset("target", data=np.int8(1))
        group = file.create_group("links")
        for i in range(130):
            group[f"{i:03}" + "x" * 100] = h5py.SoftLink("/target")
        group["zz last"] = target


def netcdf():
    with netCDF4.Dataset(os.path.join(HERE, "netcdf4.nc"), "w") as file:
        file.createDimension("time", None)
        file.createDimension("x", 20)
        group = file.createGroup("model")
        for name, options in {"t": {"zlib": True, "complevel": 4}, "p": {}, "z": {"compression": "zstd"}}.items():
            variable = group.createVariable(name, "f4", ("time", "x"), fill_value=1e20, **options)
            variable[:30] = plain((30, 20), "f4")
    with h5netcdf.File(os.path.join(HERE, "h5netcdf.nc"), "w") as file:
        file.dimensions = {"x": 20, "y": 30}
        file.create_variable("t", ("y", "x"), data=plain((30, 20), "f4"), chunks=(10, 10), compression="gzip")


def put(path, data):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(data if isinstance(data, bytes) else json.dumps(data).encode())


def grid(data, chunks):
    for place in np.ndindex(*[-(-n // c) for n, c in zip(data.shape, chunks)]):
        part = data[tuple(slice(p * c, (p + 1) * c) for p, c in zip(place, chunks))]
        whole = np.zeros(chunks, data.dtype)
        whole[tuple(slice(0, n) for n in part.shape)] = part
        yield place, whole


def zarr2(root):
    group = zarr.open_group(root, mode="w", zarr_format=2)
    from numcodecs import LZ4, Blosc, Shuffle, Zlib, Zstd
    data = plain((30, 20), "f4")
    compressors = {"blosc": Blosc("lz4", 5, Blosc.SHUFFLE), "blosc bits": Blosc("zstd", 3, Blosc.BITSHUFFLE),
                   "zlib": Zlib(1), "zstd": Zstd(1), "lz4": LZ4(), "raw": None}
    for name, compressor in compressors.items():
        group.create_array(name, data=data, chunks=(15, 20), compressors=compressor)
    group.create_array("nested", data=data, chunks=(16, 16), filters=[Shuffle(4)], compressors=Zlib(1), order="F",
                       chunk_key_encoding={"name": "v2", "separator": "/"})
    group.create_array("big", data=data.astype(">f8"), chunks=(30, 20), compressors=None, fill_value=np.nan)
    narrow = smooth((60, 50), "f4")
    put(f"{root}/sub/smooth/.zarray", {
        "zarr_format": 2, "shape": [60, 50], "chunks": [32, 32], "dtype": "<f4", "order": "C", "fill_value": "NaN",
        "filters": None, "compressor": {"id": "narrows", "abs": 0.5}})
    for place, part in grid(narrow, (32, 32)):
        put(f"{root}/sub/smooth/{place[0]}.{place[1]}", chunk(part, "--abs", "0.5"))
    zarr.consolidate_metadata(root, zarr_format=2)


def zarr3(root):
    group = zarr.open_group(root, mode="w", zarr_format=3)
    data = plain((30, 20), "f4")
    group.create_array("default", data=data, chunks=(16, 16))
    group.create_array("sharded", data=data, shards=(16, 20), chunks=(8, 10))
    group.create_array("big", data=data, chunks=(30, 20), compressors=zarr.codecs.GzipCodec(),
                       serializer=zarr.codecs.BytesCodec(endian="big"))
    group.create_array("turned", data=data, chunks=(15, 20), compressors=None,
                       filters=[zarr.codecs.TransposeCodec(order=(1, 0))])
    group.create_array("flat", data=data, chunks=(16, 16), compressors=zarr.codecs.BloscCodec(),
                       chunk_key_encoding={"name": "v2", "separator": "."})
    group.create_array("scalar", data=np.float32(0))
    narrow = smooth((60, 50), "f4")
    base = {"zarr_format": 3, "node_type": "array", "shape": [60, 50], "data_type": "float32", "fill_value": "NaN",
            "chunk_key_encoding": {"name": "default"}, "attributes": {}}
    ours = {"name": "narrows", "configuration": {"abs": 0.5}}
    put(f"{root}/sub/smooth/zarr.json", base | {
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [32, 32]}}, "codecs": [ours]})
    for place, part in grid(narrow, (32, 32)):
        put(f"{root}/sub/smooth/c/{place[0]}/{place[1]}", chunk(part, "--abs", "0.5"))
    inner = {"chunk_shape": [16, 32], "codecs": [ours],
             "index_codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}]}
    put(f"{root}/sub/shards/zarr.json", base | {
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [32, 64]}},
        "codecs": [{"name": "sharding_indexed", "configuration": inner}]})
    import google_crc32c
    for place, shard in grid(narrow, (32, 64)):
        body, index = b"", b""
        for _, part in grid(shard, (16, 32)):
            data = chunk(part, "--abs", "0.5")
            index += np.array([len(body), len(data)], "<u8").tobytes()
            body += data
        sum = google_crc32c.value(index).to_bytes(4, "little")
        put(f"{root}/sub/shards/c/{place[0]}/{place[1]}", body + index + sum)
    zarr.consolidate_metadata(root, zarr_format=3)


def zipped(root, name, method):
    with zipfile.ZipFile(os.path.join(HERE, name), "w", method) as file:
        for folder, _, names in sorted(os.walk(root)):
            for entry in sorted(names):
                path = os.path.join(folder, entry)
                info = zipfile.ZipInfo(os.path.relpath(path, root))
                with open(path, "rb") as source:
                    file.writestr(info, source.read(), compress_type=method)


def main():
    hdf5("earliest.h5", "earliest")
    hdf5("latest.h5", "latest")
    long_arrays("far.h5")
    attributes("attributes.h5")
    netcdf()
    with tempfile.TemporaryDirectory() as folder:
        zarr2(f"{folder}/v2.zarr")
        zarr3(f"{folder}/v3.zarr")
        zipped(f"{folder}/v2.zarr", "v2.zip", zipfile.ZIP_DEFLATED)
        zipped(f"{folder}/v3.zarr", "v3.zip", zipfile.ZIP_STORED)


main()
