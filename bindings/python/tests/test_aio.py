"""asyncio streams: they behave as asyncio's own, and what crosses is a stream that others read."""

import asyncio
import contextlib
import gc
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
import warnings

import pytest
from conftest import text

import narrows
from narrows import aio

# Longer than anything here takes.
LIMIT_S = 240
PLACES = {"tcp": (aio.open_connection, aio.start_server), "plain": (asyncio.open_connection, asyncio.start_server)}


def run(main) -> None:
    """Runs it with asyncio's own checks, and sees to it that nothing is left."""
    threads = threading.active_count()
    problems: list[dict] = []

    async def bounded() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
        await asyncio.wait_for(main(), LIMIT_S)

    descriptors = len(os.listdir("/proc/self/fd"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        asyncio.run(bounded(), debug=True)
        gc.collect()
    assert not problems, [p.get("exception") for p in problems]
    assert threading.active_count() == threads and len(os.listdir("/proc/self/fd")) <= descriptors


@contextlib.asynccontextmanager
async def serving(handle, module: str = "tcp", **options):
    """A server whose handlers must end well, and the port."""
    tasks = []

    async def checked(reader, writer) -> None:
        tasks.append(asyncio.current_task())
        try:
            await handle(reader, writer)
            writer.close()
            with contextlib.suppress(ConnectionError, narrows.NarrowsError):
                await writer.wait_closed()
        finally:
            # Has an effect when the test failed: the peer reads no more, and `asyncio.run` waits for
            # the end of this task.
            writer.transport.abort()

    server = await PLACES[module][1](checked, "127.0.0.1", 0, **options)
    try:
        yield server.sockets[0].getsockname()[1]
        await asyncio.gather(*tasks)
    finally:
        server.close()
        await server.wait_closed()


async def closed(writer) -> None:
    writer.close()
    await writer.wait_closed()


@pytest.mark.parametrize("module", PLACES)
def test_the_methods_of_a_reader(module: str) -> None:
    """The same calls give the same results as with asyncio's own streams."""

    async def handle(reader, writer) -> None:
        writer.write(b"first line\nsecond;third")
        writer.writelines([b"12345", bytearray(b"67890"), memoryview(b"!")])
        await writer.drain()
        assert await reader.readline() == b"a question\n"
        writer.write(b"x" * 300_000)
        writer.write_eof()
        assert await reader.read() == b""

    done = asyncio.Event()

    async def main() -> None:
        async with serving(lambda r, w: handle(r, w) if not done.is_set() else r.read(), module) as port:
            reader, writer = await PLACES[module][0]("127.0.0.1", port)
            assert await reader.readline() == b"first line\n"
            assert await reader.readuntil(b";") == b"second;"
            assert await reader.readexactly(10) == b"third12345"
            assert (await reader.readexactly(6)) == b"67890!"
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(reader.read(10), 0.05)
            writer.write(b"a question\n")
            await writer.drain()
            assert writer.can_write_eof() and not reader.at_eof() and not writer.is_closing()
            assert writer.get_extra_info("peername")[1] == port
            with pytest.raises(asyncio.LimitOverrunError):
                await reader.readuntil(b"y")
            with pytest.raises(asyncio.IncompleteReadError) as caught:
                await reader.readexactly(300_001)
            assert caught.value.partial == b"x" * 300_000
            assert await reader.read() == b"" and reader.at_eof()
            writer.write_eof()
            with pytest.raises(RuntimeError):
                writer.write(b"more")
            await closed(writer)
            assert writer.is_closing()
            done.set()
            _, writer = await PLACES[module][0]("127.0.0.1", port)
            writer.close()
            writer.write(b"nobody gets it")
            await writer.wait_closed()

    run(main)


@pytest.mark.parametrize("policy", ["balance", "fixed:zstd:level=1,link", "fixed:bzip2", "fixed:store"])
def test_both_directions_at_once(policy: str, chance) -> None:
    there, back = text(chance, 1_500_000), chance.randbytes(300_000) + text(chance, 700_000)

    async def handle(reader, writer) -> None:
        async def answer() -> None:
            for at in range(0, len(back), 30_000):
                writer.write(back[at : at + 30_000])
                await writer.drain()
            writer.write_eof()

        _, got = await asyncio.gather(answer(), reader.read())
        assert got == there

    async def main() -> None:
        async with serving(handle, policy=policy) as port:
            reader, writer = await aio.open_connection("127.0.0.1", port, policy=policy)
            writer.write(there)
            writer.write_eof()
            assert await reader.read() == back
            await closed(writer)
            totals = aio.stats(writer)
            assert totals["sent"]["raw_bytes"] == len(there) and totals["received"]["raw_bytes"] == len(back)
            if policy.startswith("fixed:zstd"):
                assert totals["sent"]["wire_bytes"] < len(there) / 2

    run(main)


@pytest.mark.parametrize("aio_serves", [True, False])
def test_the_peer_may_use_a_wrapped_socket(aio_serves: bool, chance) -> None:
    data = text(chance, 500_000)

    def blocking(sock: socket.socket) -> None:
        with narrows.wrap_socket(sock, timeout=20) as end:
            end.sendall(data)
            end.shutdown(socket.SHUT_WR)
            got = bytearray()
            while piece := end.recv(65536):
                got += piece
            assert got == data[::-1]

    async def talk(reader, writer) -> None:
        got = await reader.read()
        assert got == data
        writer.write(got[::-1])
        await writer.drain()
        await closed(writer)

    async def main() -> None:
        if aio_serves:
            async with serving(talk) as port:
                await asyncio.to_thread(lambda: blocking(socket.create_connection(("127.0.0.1", port), 20)))
            return
        with socket.create_server(("127.0.0.1", 0)) as server:
            # `asyncio.run` waits for the thread.
            server.settimeout(20)
            served = asyncio.create_task(asyncio.to_thread(lambda: blocking(server.accept()[0])))
            await talk(*await aio.open_connection(*server.getsockname()))
            await served

    run(main)


def test_back_pressure_is_real() -> None:
    """A peer that does not read stops the sender, whose memory stays small; then all of it arrives."""
    pieces, piece = 400, os.urandom(50_000)

    async def main() -> None:
        go = asyncio.Event()

        async def handle(reader, writer) -> None:
            await go.wait()
            for _ in range(pieces):
                assert await reader.readexactly(len(piece)) == piece
            assert await reader.read() == b""

        async with serving(handle, limit=1 << 16) as port:
            _, writer = await aio.open_connection("127.0.0.1", port, policy="fixed:store")
            sent = 0

            async def write() -> None:
                nonlocal sent
                for _ in range(pieces):
                    writer.write(piece)
                    await writer.drain()
                    sent += 1

            task = asyncio.create_task(write())
            last = -1
            while sent != last:
                last = sent
                await asyncio.sleep(0.3)
            # The system's buffers have the rest.
            assert 0 < sent < pieces and writer.transport.get_write_buffer_size() < 1_500_000
            go.set()
            await task
            await closed(writer)

    run(main)


def test_a_reader_that_pauses_takes_no_more() -> None:
    """A few bytes may decode to very many: they wait encoded until the application reads."""

    async def main() -> None:
        async def handle(reader, writer) -> None:
            writer.write(bytes(20_000_000))
            writer.write_eof()
            await reader.read()

        async with serving(handle, policy="fixed:zstd") as port:
            reader, writer = await aio.open_connection("127.0.0.1", port, limit=1000)
            await asyncio.sleep(0.5)
            assert len(reader._buffer) <= 70_000
            total = 0
            while data := await reader.read(1 << 20):
                total += len(data)
            assert total == 20_000_000
            await closed(writer)

    run(main)


def test_a_cancelled_call_loses_nothing(chance) -> None:
    data = text(chance, 400_000)

    async def handle(reader, writer) -> None:
        for at in range(0, len(data), 40_000):
            writer.write(data[at : at + 40_000])
            await writer.drain()
            await asyncio.sleep(0.01)
        writer.write_eof()
        assert await reader.read() == data

    async def main() -> None:
        async with serving(handle) as port:
            reader, writer = await aio.open_connection("127.0.0.1", port)
            got = bytearray()
            while not reader.at_eof():
                with contextlib.suppress(asyncio.TimeoutError):
                    got += await asyncio.wait_for(reader.read(9999), 0.001)
            assert got == data
            for at in range(0, len(data), 50_000):
                writer.write(data[at : at + 50_000])
                task = asyncio.create_task(writer.drain())
                await asyncio.sleep(0)
                task.cancel()
            writer.write_eof()
            # Until the peer has it all.
            while aio.stats(writer)["sent"]["raw_bytes"] < len(data):
                await asyncio.sleep(0.01)
            await closed(writer)

    run(main)


def test_a_stream_that_is_cut_is_no_end(chance) -> None:
    data = text(chance, 100_000)

    async def main() -> None:
        ready = asyncio.Event()

        async def handle(reader, writer) -> None:
            writer.write(data)
            await writer.drain()
            await ready.wait()
            writer.transport.abort()

        async with serving(handle) as port:
            reader, writer = await aio.open_connection("127.0.0.1", port)
            assert await reader.readexactly(len(data)) == data
            ready.set()
            with pytest.raises((narrows.TruncatedError, ConnectionError)):
                await reader.read()
            with contextlib.suppress(ConnectionError, narrows.NarrowsError):
                await closed(writer)
            assert writer.is_closing()

    run(main)


@pytest.mark.parametrize("flaw", ["rubbish", "cut", "flipped", "behind", "nothing"])
def test_hostile_peers(flaw: str, chance) -> None:
    wire = bytearray(narrows.compress(text(chance, 100_000)))
    kind = {"cut": narrows.TruncatedError, "nothing": narrows.TruncatedError}.get(flaw, narrows.CorruptError)
    if flaw == "rubbish":
        wire = bytearray(b"GET / HTTP/1.1\r\nHost: example.net\r\n\r\n")
    elif flaw == "cut":
        del wire[-1]
    elif flaw == "flipped":
        wire[len(wire) // 2] ^= 1
    elif flaw == "behind":
        wire += b"more"
    else:
        wire.clear()

    async def main() -> None:
        found: list[BaseException] = []

        async def handle(reader, writer) -> None:
            try:
                while await reader.read(1000):
                    pass
                await asyncio.sleep(0.2)
                await reader.read(1)
                writer.write(b"x" * 10)
                await writer.drain()
            except (narrows.NarrowsError, ConnectionError) as error:
                found.append(error)

        async with serving(handle) as port:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(wire)
            writer.write_eof()
            while not found:
                await asyncio.sleep(0.01)
            with contextlib.suppress(ConnectionError):
                await closed(writer)
        assert isinstance(found[0], kind), found

    run(main)


def test_a_long_block_does_not_stop_the_event_loop(chance) -> None:
    data = text(chance, 600_000)

    async def main() -> None:
        async def handle(reader, writer) -> None:
            assert await reader.read() == data

        async with serving(handle) as port:
            _, writer = await aio.open_connection("127.0.0.1", port, policy="fixed:xz:level=6")
            writer.write(data)
            writer.write_eof()
            longest, begun = 0.0, time.thread_time()
            while aio.stats(writer)["sent"]["raw_bytes"] < len(data):
                await asyncio.sleep(0.001)
            # By this thread's own clock: the encoding is many times that.
            longest = time.thread_time() - begun
            assert longest < aio.stats(writer)["sent"]["encode_cpu_seconds"]
            await closed(writer)

    run(main)


def test_many_connections(chance) -> None:
    async def echo(reader, writer) -> None:
        while line := await reader.readline():
            writer.write(line)
            await writer.drain()

    threads = threading.active_count()

    async def main() -> None:
        async with serving(echo) as port:

            async def talk(i: int) -> None:
                reader, writer = await aio.open_connection("127.0.0.1", port)
                for n in range(20):
                    line = b"%d: line %d\n" % (i, n)
                    writer.write(line)
                    assert await reader.readline() == line
                await closed(writer)

            await asyncio.gather(*(talk(i) for i in range(30)))
            assert threading.active_count() == threads

    run(main)


def test_unix_sockets_and_wrong_use(tmp_path) -> None:
    async def main() -> None:
        async def echo(reader, writer) -> None:
            writer.write(await reader.read())
            await closed(writer)

        server = await aio.start_unix_server(echo, tmp_path / "s")
        reader, writer = await aio.open_unix_connection(tmp_path / "s")
        writer.write(b"there and back")
        writer.write_eof()
        assert await reader.read() == b"there and back"
        await closed(writer)
        server.close()
        await server.wait_closed()
        for call in (aio.open_connection("127.0.0.1", 1, policy="best"), aio.start_server(echo, port=0, policy="best")):
            with pytest.raises(narrows.MisuseError):
                await call
        with pytest.raises(ConnectionRefusedError):
            await aio.open_unix_connection(tmp_path / "s")

    run(main)


def test_tls(tmp_path, chance) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    try:
        subprocess.run(
            [*made, "-subj", "/CN=localhost", "-keyout", key, "-out", certificate],
            check=True,
            capture_output=True,
            timeout=LIMIT_S,
        )
    except FileNotFoundError:
        pytest.skip("there is no openssl")
    inside = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    inside.load_cert_chain(certificate, key)
    outside = ssl.create_default_context(cafile=certificate)
    outside.check_hostname = False
    data = text(chance, 500_000)

    async def main() -> None:
        async def handle(reader, writer) -> None:
            assert await reader.read() == data
            writer.write(data[::-1])
            await writer.drain()
            await closed(writer)

        async with serving(handle, ssl=inside) as port:
            reader, writer = await aio.open_connection("127.0.0.1", port, ssl=outside)
            assert writer.get_extra_info("ssl_object").version() == "TLSv1.3"
            writer.write(data)
            # TLS itself cannot end one direction.
            writer.write_eof()
            await writer.drain()
            assert await reader.read() == data[::-1]
            await closed(writer)

    run(main)


def test_a_forgotten_writer_is_told() -> None:
    """As asyncio tells of its own (from Python 3.12 on), and nothing hangs at the end of the process."""
    program = """
import asyncio, narrows.aio
async def main():
    server = await narrows.aio.start_server(lambda r, w: None, "127.0.0.1", 0)
    reader, writer = await narrows.aio.open_connection(*server.sockets[0].getsockname())
    writer.write(b"x" * 1000000)
asyncio.run(main())
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=LIMIT_S, capture_output=True)


class _Forgetful(asyncio.Transport):
    """A session of TLS, which knows nothing of itself any more once it is being closed."""

    forgot = False

    def get_extra_info(self, name, default=None):
        if self.forgot:
            raise AttributeError("'NoneType' object has no attribute '_get_extra_info'")
        return object() if name == "sslcontext" else default

    def set_write_buffer_limits(self, high=None, low=None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.forgot

    def is_reading(self) -> bool:
        return True

    def abort(self) -> None:
        self.forgot = True


def test_the_end_of_a_tls_connection_that_is_being_closed():
    async def main() -> None:
        layer = aio._Layer(asyncio.Protocol(), "balance", asyncio.get_running_loop())
        raw = _Forgetful()
        layer.connection_made(raw)
        raw.forgot = True
        assert layer.eof_received() is False

    run(main)
