"""``narrows://`` under Dask's distributed: single comms, hostile peers, and clusters of processes."""

import asyncio
import contextlib
import logging
import random
import struct
import weakref
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any
from unittest import mock

import dask.array
import dask.dataframe
import numpy
import pandas
import pytest
from distributed import Client, LocalCluster, Security
from distributed.comm import CommClosedError, connect, listen
from distributed.protocol import to_serialize

from narrows.distributed import Narrows

LIMIT = 240.0
PREFACE = b"narrows\x01" + b"\xff" * 8


def run(body: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(body(), LIMIT))


@contextlib.contextmanager
def network(policy: str = "balance") -> Iterator[None]:
    """Connections as between two hosts: the engine has to find out how fast the link is."""
    elsewhere = staticmethod(lambda sock: False)
    with mock.patch.object(Narrows, "_policy", policy), mock.patch.object(Narrows, "_is_same_host", elsewhere):
        yield


# Comms to one host learn from each other while they live, and nobody knows when those of other tests are gone.
HOSTS = (f"127.0.1.{number}" for number in range(1, 255))


@contextlib.asynccontextmanager
async def pair(policy: str | None = None, host: str | None = None) -> AsyncIterator[tuple[Any, Any]]:
    """Two ends of one connection, as within a host or with this policy, to this or a new host."""
    accepted: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def handle(comm: Any) -> None:
        accepted.set_result(comm)

    with network(policy) if policy else contextlib.nullcontext():
        async with listen(f"narrows://{host or next(HOSTS)}:0", handle) as listener:
            near = await connect(listener.contact_address)
            far = await accepted
            try:
                yield near, far
            finally:
                near.abort()
                far.abort()


@pytest.mark.parametrize(
    "message",
    [
        None,
        "text",
        {"op": "heartbeat", "now": 1.5, "tuple": tuple(range(100))},
        (b"", b"x", b"yy" * 3000),
        {"many": tuple(b"%d" % i for i in range(5000))},
    ],
)
def test_messages_arrive_as_they_were(message: Any) -> None:
    async def body() -> None:
        async with pair() as (near, far):
            for _ in range(2):
                await near.write(message)
                await far.write(message)
                # msgpack has no tuples.
                assert await far.read() == message == await near.read()

    run(body)


@pytest.mark.parametrize("policy", [None, "balance", "fixed:zstd", "fixed:store"])
def test_arrays_arrive_writable_and_aligned(policy: str | None) -> None:
    chance = numpy.random.default_rng(7)
    arrays = {
        "empty": numpy.empty((0, 3)),
        "scalar": numpy.array(1.5),
        "small": numpy.arange(10.0),
        "random": chance.integers(0, 255, 3_000_001, dtype="u1"),
        "smooth": numpy.cumsum(chance.normal(size=(500, 501)), axis=1).astype("f4"),
        "zeros": numpy.zeros(2_000_000),
        "turned": chance.normal(size=(300, 200)).T,
        "strided": numpy.arange(60_000)[::3],
    }

    async def body() -> None:
        async with pair(policy) as (near, far):
            for _ in range(3):
                await near.write({name: to_serialize(array) for name, array in arrays.items()})
                got = await far.read()
                for name, array in arrays.items():
                    numpy.testing.assert_array_equal(got[name], array)
                    assert got[name].flags.aligned and (got[name].flags.writeable or array.size == 0), name
            if policy:
                assert near.sent["raw_bytes"] > 0

    run(body)


def test_what_one_comm_tried_no_other_one_to_the_same_host_tries_again() -> None:
    long, short = random.randbytes(1 << 20), random.randbytes(32 << 10)
    host = next(HOSTS)

    async def body() -> None:
        async with pair("fixed:store", host) as (first, far), pair("fixed:store", host) as (second, other):
            for comm, peer, message in [(first, far, long), (second, other, short)]:
                await comm.write({"x": to_serialize(message)})
                assert (await peer.read())["x"] == message
            assert first.sent["raw_bytes"] > 0
            assert second.sent["raw_bytes"] == 0
            assert second.sent["plain_bytes"] >= len(short)

    run(body)


def test_a_frame_of_100_mb_crosses_while_the_other_way_talks() -> None:
    array = numpy.arange(12_500_000, dtype="f8")

    async def body() -> None:
        async with pair("balance") as (near, far):

            async def talk() -> None:
                for i in range(200):
                    await far.write(i)
                    assert await near.read() == i

            await near.write({"x": to_serialize(array)})
            got, _ = await asyncio.gather(far.read(), talk())
            numpy.testing.assert_array_equal(got["x"], array)

    run(body)


def test_thousands_of_tiny_messages_cross_both_ways_in_order() -> None:
    async def body() -> None:
        async with pair() as (near, far):

            async def send(comm: Any) -> None:
                for i in range(5000):
                    await comm.write(i)
                    if i % 100 == 0:
                        await asyncio.sleep(0)

            async def hear(comm: Any) -> None:
                for i in range(5000):
                    assert await comm.read() == i

            await asyncio.gather(send(near), send(far), hear(near), hear(far))

    run(body)


@pytest.mark.parametrize("policy", [None, "fixed:store", "fixed:lz4"])
def test_messages_of_many_frames_arrive_in_pieces(policy: str | None, chance: random.Random) -> None:
    """Frames of all lengths, which a relay passes on in pieces that end anywhere."""
    lengths = [0, 1, 4095, 4096, 4097, 700_000, *(int(2 ** chance.uniform(0, 15)) for _ in range(300)), 1_500_000]
    bytes_ = numpy.frombuffer(chance.randbytes(max(lengths)), dtype="u1")
    arrays = {str(i): bytes_[-length:] if length else bytes_[:0] for i, length in enumerate(lengths)}

    async def body() -> None:
        accepted: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        async def handle(comm: Any) -> None:
            accepted.set_result(comm)

        with network(policy) if policy else contextlib.nullcontext():
            listener = await listen("narrows://127.0.0.1:0", handle)
            port = int(listener.contact_address.rsplit(":", 1)[1])

            async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)

                async def carry(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
                    with contextlib.suppress(ConnectionError):
                        while data := await source.read(int(2 ** chance.uniform(0, 18))):
                            sink.write(data)
                            await sink.drain()
                    sink.close()

                try:
                    await asyncio.gather(carry(reader, far_writer), carry(far_reader, writer))
                finally:
                    # The test may end first.
                    writer.close()
                    far_writer.close()

            server = await asyncio.start_server(relay, "127.0.0.1", 0)
            near = await connect(f"narrows://127.0.0.1:{server.sockets[0].getsockname()[1]}")
            far = await accepted
            for i in range(3):
                await near.write({name: to_serialize(array) for name, array in arrays.items()})
                await near.write(i)
                got = await far.read()
                for name, array in arrays.items():
                    numpy.testing.assert_array_equal(got[name], array)
                assert await far.read() == i
            near.abort()
            far.abort()
            server.close()
            listener.stop()

    run(body)


def test_messages_of_all_lengths_keep_their_order(chance: random.Random) -> None:
    lengths = [int(2 ** chance.uniform(0, 21)) for _ in range(120)]

    async def body() -> None:
        async with pair("fixed:lz4") as (near, far):
            for i, length in enumerate(lengths):
                await near.write((i, b"%d " % i * (length // 4)))
            for i, length in enumerate(lengths):
                assert await far.read() == (i, b"%d " % i * (length // 4))

    run(body)


def test_close_sends_what_was_written_and_then_ends_both() -> None:
    array = numpy.random.default_rng(1).integers(0, 9, 20_000_000, dtype="u1")

    async def body() -> None:
        async with pair("fixed:lz4") as (near, far):
            await near.write({"x": to_serialize(array)})
            got, _ = await asyncio.gather(far.read(), near.close())
            numpy.testing.assert_array_equal(got["x"], array)
            assert near.closed()
            with pytest.raises(CommClosedError):
                await far.read()
            assert far.closed()
            for comm in (near, far):
                with pytest.raises(CommClosedError):
                    await comm.write("more")
                with pytest.raises(CommClosedError):
                    await comm.read()

    run(body)


def test_an_idle_comm_notices_that_its_peer_has_gone() -> None:
    async def body() -> None:
        async with pair() as (near, far):
            far.abort()
            while not near.closed():
                await asyncio.sleep(0.01)

    run(body)


def test_a_peer_that_dies_under_a_large_write_ends_the_comm() -> None:
    array = numpy.random.default_rng(1).integers(0, 255, 30_000_000, dtype="u1")

    async def body() -> None:
        async with pair() as (near, far):
            await near.write({"x": to_serialize(array)})
            await asyncio.sleep(0.05)
            far.abort()
            while not near.closed():
                await asyncio.sleep(0.01)
            with pytest.raises(CommClosedError):
                await near.write("more")

    run(body)


def test_abort_while_reading_and_a_cancelled_read_end_the_comm() -> None:
    async def body() -> None:
        async with pair() as (near, far):
            reading = asyncio.ensure_future(near.read())
            await asyncio.sleep(0.01)
            near.abort()
            with pytest.raises(CommClosedError):
                await reading
            reading = asyncio.ensure_future(far.read())
            await asyncio.sleep(0)
            reading.cancel()
            with pytest.raises((asyncio.CancelledError, CommClosedError)):
                await reading
            assert far.closed()

    run(body)


def test_sent_arrays_are_let_go() -> None:
    async def body() -> None:
        async with pair("fixed:lz4") as (near, far):
            array = numpy.zeros(5_000_000)
            gone = weakref.ref(array)
            await near.write({"x": to_serialize(array)})
            del array
            await far.read()
            while gone() is not None:
                await asyncio.sleep(0.01)

    run(body)


def test_nobody_listens() -> None:
    async def body() -> None:
        with pytest.raises(OSError, match="Timed out"):
            await connect("narrows://127.0.0.1:1", timeout=0.3)

    run(body)


def test_security_is_refused_and_not_ignored() -> None:
    async def body() -> None:
        async def handle(comm: Any) -> None:
            raise AssertionError

        with pytest.raises(RuntimeError, match="encryption required"):
            await connect("narrows://127.0.0.1:1", timeout=1, require_encryption=True)
        temporary = Security.temporary()
        with pytest.raises(RuntimeError, match="does not encrypt"):
            context = temporary.get_connection_args("client")["ssl_context"]
            await connect("narrows://127.0.0.1:1", timeout=1, ssl_context=context)
        arguments = temporary.get_listen_args("scheduler")
        with pytest.raises(RuntimeError, match="does not encrypt"):
            await listen("narrows://127.0.0.1:0", handle, ssl_context=arguments["ssl_context"])

    run(body)


def test_one_end_speaks_plain_tcp(caplog: pytest.LogCaptureFixture) -> None:
    async def body() -> None:
        async def handle(comm: Any) -> None:
            raise AssertionError

        async with listen("narrows://127.0.0.1:0", handle) as listener:
            with pytest.raises(OSError):
                await connect(listener.contact_address.replace("narrows", "tcp"), timeout=2)
        assert "does not speak narrows" in caplog.text
        async with listen("tcp://127.0.0.1:0", handle) as listener:
            with pytest.raises(CommClosedError, match="does not speak narrows"):
                await connect(listener.contact_address.replace("tcp", "narrows"), timeout=2)

    run(body)


def head(count: int, raw_len: int, *lengths: int) -> bytes:
    return struct.pack("<IIQ", ord("M"), count, raw_len) + struct.pack(f"<{len(lengths)}Q", *lengths)


def segment(kind: int, length: int) -> bytes:
    return struct.pack("<Q", kind << 56 | length)


HOSTILE = {
    "nothing": b"",
    "part of a preface": PREFACE[:5],
    "another version": b"narrows\x02" + bytes(8),
    "text": b"GET / HTTP/1.1\r\n\r\n",
    "no message": PREFACE + b"x" * 16,
    "too many frames": PREFACE + head(1 << 21, 1 << 21),
    "too many bytes": PREFACE + head(1, 1 << 60, 1 << 60),
    "lengths that overflow": PREFACE + head(3, 5, 1 << 63, 1 << 63, 5),
    "lengths that fall short": PREFACE + head(2, 50, 20, 20),
    "a claim without bytes": PREFACE + head(1, 1 << 30, 1 << 30) + segment(1, 1 << 30) + b"x",
    "a table that ends": PREFACE + head(1000, 1000, 1),
    "an unknown segment": PREFACE + head(1, 10, 10) + segment(3, 10),
    "an empty segment": PREFACE + head(1, 10, 10) + segment(1, 0),
    "a segment too long": PREFACE + head(1, 10, 10) + segment(2, 11),
    "a flow of noise": PREFACE + head(1, 10, 10) + segment(2, 10) + bytes(range(64)),
    "a message of noise": PREFACE + head(1, 10, 10) + segment(1, 10) + bytes(range(10)),
    "no frames": PREFACE + head(0, 0),
}


def test_hostile_bytes_end_their_own_connection_only(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "tornado")

    async def body() -> None:
        async def handle(comm: Any) -> None:
            await comm.write(await comm.read())

        async with listen("narrows://127.0.0.1:0", handle) as listener:
            port = int(listener.contact_address.rsplit(":", 1)[1])
            for data in HOSTILE.values():
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(data)
                writer.write_eof()
                # It says its own part at most, and ends.
                with contextlib.suppress(ConnectionError):
                    await reader.read(-1)
                writer.close()
            comm = await connect(listener.contact_address)
            await comm.write("still there")
            assert await comm.read() == "still there"
            comm.abort()

    run(body)


def test_images_are_refused_before_they_are_decoded(caplog: pytest.LogCaptureFixture) -> None:
    """A peer's image could take seconds and 64 MiB to decode; comms send none."""
    flow = struct.pack("<4sBBHHBBIIQ", b"NRW\x1a", 1, 0, 0, 0, 0, 0, 1 << 20, 0, 1 << 11 | 1)
    flow += struct.pack("<I", zlib.crc32(flow))
    # A data frame: raw length, wire length, body.
    frame = bytes([1, 11, 100, 10]) + bytes(10)

    async def body() -> None:
        async def handle(comm: Any) -> None:
            raise AssertionError

        async with listen("narrows://127.0.0.1:0", handle) as listener:
            port = int(listener.contact_address.rsplit(":", 1)[1])
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(PREFACE + head(1, 100, 100) + segment(2, 100) + flow + frame)
            # It is not asked for any either.
            codecs = int.from_bytes((await reader.readexactly(16))[8:], "little")
            assert codecs & 1 and not codecs >> 11 & 1
            with contextlib.suppress(ConnectionError):
                await reader.read(-1)
            writer.close()
        assert "the frame uses codec 11" in caplog.text

    run(body)


def test_damage_on_the_way_is_found(chance: random.Random) -> None:
    """A relay flips bits of a flow: the message never arrives changed."""

    async def body() -> None:
        # So few bytes cross that none go plain, which have no checks but those of TCP.
        array = numpy.tile(numpy.arange(1000.0), 500)
        ended = 0
        heard: asyncio.Queue[Any] = asyncio.Queue()

        async def handle(comm: Any) -> None:
            try:
                heard.put_nowait((await comm.read())["x"])
            except Exception as e:
                heard.put_nowait(e)
            comm.abort()

        with network("fixed:lz4"):
            listener = await listen("narrows://127.0.0.1:0", handle)
            port = int(listener.contact_address.rsplit(":", 1)[1])

            async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)

                async def carry(source: asyncio.StreamReader, sink: asyncio.StreamWriter, damage: bool) -> None:
                    passed = 0
                    with contextlib.suppress(ConnectionError):
                        while data := bytearray(await source.read(65536)):
                            # The handshake and the head of the message pass, however they are cut.
                            if damage and passed + len(data) > 20_000:
                                data[-1 - chance.randrange(min(1000, len(data)))] ^= 1 << chance.randrange(8)
                                damage = False
                            passed += len(data)
                            sink.write(data)
                            await sink.drain()
                    sink.close()

                try:
                    await asyncio.gather(carry(reader, far_writer, True), carry(far_reader, writer, False))
                finally:
                    # The test may end first.
                    writer.close()
                    far_writer.close()

            for _ in range(5):
                # While a comm tries whether encoding pays, bytes of others to the same host go plain.
                host = next(HOSTS)
                server = await asyncio.start_server(relay, host, 0)
                comm = await connect(f"narrows://{host}:{server.sockets[0].getsockname()[1]}")
                await comm.write({"x": to_serialize(array)})
                got = await heard.get()
                if isinstance(got, CommClosedError):
                    ended += 1
                else:
                    numpy.testing.assert_array_equal(got, array)
                comm.abort()
                server.close()
            listener.stop()
        assert ended > 0

    run(body)


def test_a_cluster_of_two_processes_computes() -> None:
    with LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, protocol="narrows://", dashboard_address=None
    ) as cluster, Client(cluster) as client:
        assert cluster.scheduler_address.startswith("narrows://")
        assert all(address.startswith("narrows://") for address in client.scheduler_info()["workers"])
        x = dask.array.arange(2_000_000, chunks=100_000).reshape(1000, 2000).rechunk((500, 200))
        total = (x + x.T.rechunk((200, 500)).T).sum().compute()
        assert total == 2 * sum(range(2_000_000))
        frame = pandas.DataFrame({"key": numpy.arange(20_000) % 97, "value": numpy.arange(20_000.0)})
        back = client.submit(lambda f: f, client.scatter(frame)).result()
        pandas.testing.assert_frame_equal(back, frame)
        shuffled = dask.dataframe.from_pandas(frame, npartitions=8).shuffle("key")
        assert int(shuffled.value.sum().compute()) == sum(range(20_000))
        with pytest.raises(ZeroDivisionError):
            client.submit(lambda: 1 // 0).result()
