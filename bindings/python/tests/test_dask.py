"""Dask: two worker processes write and read a Zarr store on an S3-compatible server on loopback."""

import os
from collections.abc import Iterator

import dask
import dask.array as da
import numpy as np
import pytest
import s3fs
import xarray as xr
import zarr
from distributed import Client, LocalCluster
from moto.server import ThreadedMotoServer
from test_array import field, same

import narrows

@pytest.fixture(scope="module")
def s3() -> Iterator[dict]:
    """Options for s3fs. The server listens on a free port of loopback."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        _, port = server.get_host_and_port()
        options = {"key": "test", "secret": "test", "client_kwargs": {"endpoint_url": f"http://127.0.0.1:{port}"}}
        s3fs.S3FileSystem(**options).mkdir("bucket")
        yield options
    finally:
        server.stop()


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    options = {"n_workers": 2, "threads_per_worker": 2, "processes": True, "dashboard_address": ":0", "host": "127.0.0.1"}
    with LocalCluster(**options) as cluster, Client(cluster) as client:
        yield client


# Run as text: a function of this module would import it there, and narrows with it.
IMPORTED = "'narrows' in __import__('sys').modules"


def test_workers_need_only_the_wheel(client: Client, s3: dict) -> None:
    """They read a store before anything imported narrows there."""
    a = field("f4", (40, 30, 20))
    url = "s3://bucket/plain.zarr"
    array = zarr.create_array(url, shape=a.shape, chunks=(10, 30, 20), dtype="f4", storage_options=s3, **narrows.zarr())
    array[...] = a
    assert not any(client.run(eval, IMPORTED).values())
    lazy = da.from_zarr(url, storage_options=s3)
    assert lazy.numblocks == (4, 1, 1)
    assert same(lazy.compute(), a)
    assert any(client.run(eval, IMPORTED).values())


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("hints", [{}, {"rel": 1e-3, "floor": 1e-6}], ids=str)
def test_a_dataset_on_s3(client: Client, s3: dict, zarr_format: int, hints: dict) -> None:
    a = field("f4", (48, 40, 30)) + 273
    a[3, 4] = np.nan
    ds = xr.Dataset(
        {"tas": (("time", "y", "x"), da.from_array(a, chunks=(8, 40, 30)))}, {"time": np.arange(48).astype("M8[D]").astype("M8[ns]")}
    )
    make = narrows.zarr2 if zarr_format == 2 else narrows.zarr
    url = f"s3://bucket/{zarr_format}{bool(hints)}.zarr"
    encoding = {"tas": make(**hints)}
    ds.to_zarr(url, storage_options=s3, encoding=encoding, zarr_format=zarr_format, consolidated=False)
    with xr.open_zarr(url, storage_options=s3, consolidated=False) as back:
        assert back.tas.data.numblocks == (6, 1, 1)
        read = back.tas.data.compute()
        assert back.time.equals(ds.time)
    if hints:
        assert (np.isnan(read) == np.isnan(a)).all()
        x, y = a.astype("f8"), read.astype("f8")
        assert (abs(x - y) <= 1e-3 * abs(x))[~np.isnan(x)].all()
    else:
        assert same(read, a)


def test_encoders_and_codecs_travel(client: Client) -> None:
    encoder = narrows.array.Encoder(abs=0.01)
    chunks = client.gather(client.map(encoder.encode, [field("f4", (64, 64), seed) for seed in range(4)]))
    assert all(abs(narrows.array.decompress(c) - field("f4", (64, 64), i)).max() < 0.011 for i, c in enumerate(chunks))


def test_threads_of_dask(tmp_path: os.PathLike) -> None:
    a = field("f8", (64, 64, 8))
    with dask.config.set(scheduler="threads", num_workers=8):
        target = zarr.create_array(tmp_path / "a.zarr", shape=a.shape, chunks=(8, 8, 8), dtype="f8", **narrows.zarr())
        da.store(da.from_array(a, chunks=(8, 8, 8)), target, lock=False)
        assert same(da.from_zarr(tmp_path / "a.zarr").compute(), a)
