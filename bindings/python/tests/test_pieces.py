"""Streams in memory piece by piece: `Compressor` and `Decompressor` behave as bz2's and zlib's."""

import bz2
import copy
import os
import pickle
import signal
import struct
import threading
import time

import pytest
from conftest import text

import narrows
from narrows import Compressor, Decompressor

POLICIES = ["fixed:store", "fixed:lz4", "fixed:zstd", "fixed:zstd:level=1,link", "fixed:xz", "fixed:bzip2", "balance"]
# Modules with the same objects, for the tests of both.
MAKERS = {"narrows": (Compressor, Decompressor), "bz2": (bz2.BZ2Compressor, bz2.BZ2Decompressor)}


def encoded(data: bytes, piece: int = 1 << 20, **options: object) -> bytes:
    compressor = Compressor(**options)
    return b"".join(compressor.compress(data[i : i + piece]) for i in range(0, len(data), piece)) + compressor.flush()


def decoded(wire: bytes, piece: int, most: int = -1) -> bytes:
    decompressor, raw, at = Decompressor(), bytearray(), 0
    while not decompressor.eof:
        data = wire[at : at + piece] if decompressor.needs_input else b""
        at += len(data)
        assert data or not decompressor.needs_input, "it wants more than there is"
        got = decompressor.decompress(data, most)
        assert most < 0 or len(got) <= most
        raw += got
    assert at == len(wire) and decompressor.unused_data == b"" and not decompressor.needs_input
    return bytes(raw)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("length", [0, 1, 1000, 700_000])
def test_round_trips(policy: str, length: int, chance) -> None:
    data = text(chance, length)
    wire = encoded(data, 3000, policy=policy)
    for piece, most in ((7 if length < 10_000 else 777, -1), (1 << 20, -1), (1 << 20, 5000), (3000, 2999)):
        assert decoded(wire, piece, most) == data
    assert narrows.decompress(wire) == data


def test_pieces_make_no_difference(chance) -> None:
    data = text(chance, 500_000)
    wires = {encoded(data, piece, level=5) for piece in (100, 65_536, 100_000, 500_000)}
    assert len(wires) == 1
    assert len(encoded(data, 500_000, threads=4, level=5)) == len(wires.pop())


def test_everything_with_the_buffer_protocol(chance) -> None:
    data = text(chance, 200_000)
    for make in (bytearray, memoryview, lambda d: memoryview(bytearray(d))):
        compressor = Compressor()
        wire = compressor.compress(make(data)) + compressor.compress(make(data[:10])) + compressor.flush()
        assert Decompressor().decompress(make(wire)) == data + data[:10]
    for call in (Compressor().compress, Decompressor().decompress):
        with pytest.raises(TypeError):
            call("text")
        with pytest.raises(BufferError):
            call(memoryview(data)[::2])


def test_a_flushed_block_can_be_decoded_at_once(chance) -> None:
    compressor, decompressor = Compressor(level=3), Decompressor()
    for length in (1, 100, 5, 300_000, 0):
        data = text(chance, length)
        wire = compressor.compress(data[:50]) + compressor.compress(data[50:], Compressor.FLUSH_BLOCK)
        assert decompressor.decompress(wire) == data and decompressor.needs_input
        assert compressor.flush(Compressor.FLUSH_BLOCK) == b""
    assert decompressor.decompress(compressor.flush()) == b"" and decompressor.eof
    for call in (lambda: compressor.compress(b"x"), compressor.flush):
        with pytest.raises(narrows.MisuseError, match="ended"):
            call()
    for mode in (-1, 3):
        with pytest.raises(narrows.MisuseError, match="mode"):
            Compressor().compress(b"", mode)
    with pytest.raises(narrows.MisuseError):
        Compressor().flush(Compressor.CONTINUE)


@pytest.mark.parametrize("module", MAKERS)
def test_the_end_is_told_as_by_bz2(module: str, chance) -> None:
    make, unmake = MAKERS[module]
    data = text(chance, 20_000)
    compressor = make()
    wire = compressor.compress(data) + compressor.flush()
    decompressor = unmake()
    assert (decompressor.eof, decompressor.needs_input, decompressor.unused_data) == (False, True, b"")
    assert decompressor.decompress(wire[:-1], max_length=-1) + decompressor.decompress(wire[-1:] + b"more") == data
    assert (decompressor.eof, decompressor.needs_input, decompressor.unused_data) == (True, False, b"more")
    with pytest.raises(EOFError):
        decompressor.decompress(b"")
    decompressor = unmake()
    first = decompressor.decompress(wire + b"rest", 100)
    assert first == data[:100] and not decompressor.needs_input and not decompressor.eof
    rest = bytearray(first)
    while not decompressor.eof:
        piece = decompressor.decompress(b"", max_length=7000)
        assert len(piece) <= 7000
        rest += piece
    assert rest == data and decompressor.unused_data == b"rest"
    # A cut is no error, and no end.
    decompressor = unmake()
    decompressor.decompress(wire[: len(wire) // 2])
    assert not decompressor.eof and decompressor.needs_input
    with pytest.raises(TypeError):
        pickle.dumps(make())


def test_streams_behind_one_another(chance) -> None:
    parts = [text(chance, length) for length in (10, 0, 300_000, 1)]
    wire = b"".join(narrows.compress(part) for part in parts)
    assert narrows.decompress(wire) == narrows.decompress(wire, threads=1) == b"".join(parts)
    got, left = [], wire
    while left:
        decompressor = Decompressor()
        got.append(decompressor.decompress(left))
        left = decompressor.unused_data
    assert got == parts
    with pytest.raises(narrows.LimitError):
        narrows.decompress(wire, len(b"".join(parts)) - 1)
    for length in range(len(wire) - 40, len(wire)):
        with pytest.raises(narrows.TruncatedError):
            narrows.decompress(wire[:length])


def test_every_truncation_leaves_the_end_open(chance) -> None:
    data = text(chance, 600)
    wire = encoded(data)
    for length in range(len(wire)):
        decompressor = Decompressor()
        assert data.startswith(decompressor.decompress(wire[:length]))
        assert not decompressor.eof and decompressor.needs_input


def test_every_flipped_byte_is_told(chance) -> None:
    data = text(chance, 400)
    wire = encoded(data)
    for at in range(len(wire)):
        for bit in (1, 0x80):
            flipped = bytearray(wire)
            flipped[at] ^= bit
            decompressor, got = Decompressor(), b""
            try:
                for i in range(0, len(wire), 50):
                    got += decompressor.decompress(flipped[i : i + 50])
            except narrows.NarrowsError as error:
                with pytest.raises(type(error)):
                    decompressor.decompress(b"")
                assert not decompressor.needs_input
            # What was returned was checked.
            assert data.startswith(got) and not decompressor.eof


def test_bombs_are_bounded_by_max_length() -> None:
    wire = encoded(bytes(300_000_000), threads=2)
    assert len(wire) < 100_000
    before = peak_kib()
    decompressor = Decompressor()
    assert decompressor.decompress(wire, 10) == bytes(10)
    for _ in range(1000):
        assert len(decompressor.decompress(b"", 10_000)) == 10_000
    assert not decompressor.eof and peak_kib() - before < 40_000


def peak_kib() -> int:
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM"))


def test_lengths_that_lie(chance) -> None:
    wire = encoded(text(chance, 400))
    before = peak_kib()
    for at in range(32, 44):
        for word in (0xFFFF_FFFF, 0x7FFF_FFFF, 0x8080_8080):
            lying = bytearray(wire)
            struct.pack_into("<I", lying, at, word)
            decompressor = Decompressor()
            try:
                decompressor.decompress(lying)
            except narrows.NarrowsError:
                pass
            assert not decompressor.eof
    assert peak_kib() - before < 100_000


def test_hostile_bytes(chance) -> None:
    wire = encoded(text(chance, 30_000), 5000)
    for _ in range(300):
        damaged = bytearray(wire)
        for _ in range(chance.randrange(1, 6)):
            at = chance.randrange(len(damaged))
            if chance.random() < 0.5:
                damaged[at] = chance.randrange(256)
            else:
                del damaged[at : at + chance.randrange(40)]
        decompressor = Decompressor()
        try:
            for i in range(0, len(damaged), 700):
                if decompressor.eof:
                    break
                decompressor.decompress(damaged[i : i + 700], 4000)
        except narrows.NarrowsError:
            pass


def test_levels(chance) -> None:
    data = text(chance, 300_000)
    lengths = [len(narrows.compress(data, level=level)) for level in (1, 3, 12)]
    assert lengths[0] > lengths[2] and lengths[1] > lengths[2]
    # All of zstd's levels.
    for level in (-7, 19, 20, 21, 22):
        wire = narrows.compress(data, level=level)
        assert narrows.decompress(wire) == data and wire == narrows.compress(data, f"fixed:zstd:level={level}")
    assert narrows.compress(data, level=12) == narrows.compress(data, "fixed:zstd:level=12")
    assert encoded(data, level=4, policy="fixed:xz") == encoded(data, policy="fixed:xz:level=4")
    assert encoded(data, level=1, policy="fixed:zstd:link") == encoded(data, policy="fixed:zstd:level=1,link")
    for policy, level in (("balance", 3), ("fixed:zstd:level=3", 3), ("fixed:zstd", 23), ("fixed:store", 1)):
        for call in (lambda p, n: narrows.compress(data, p, level=n), lambda p, n: Compressor(p, level=n)):
            with pytest.raises(narrows.MisuseError, match="level"):
                call(policy, level)
    with pytest.raises(narrows.MisuseError):
        Compressor(threads=0)


def test_totals(chance) -> None:
    data = text(chance, 300_000)
    compressor, decompressor = Compressor(level=2), Decompressor()
    wire = compressor.compress(data) + compressor.flush()
    sent = compressor.stats()
    assert (sent["raw_bytes"], sent["wire_bytes"]) == (len(data), len(wire))
    assert sent["methods"] == {"zstd:level=2": len(data)} and sent["ratio"] > 2
    decompressor.decompress(wire + b"behind", 1000)
    assert decompressor.stats()["raw_bytes"] == 1000
    decompressor.decompress(b"")
    assert decompressor.stats() == {"raw_bytes": len(data), "wire_bytes": len(wire)}


def test_an_index_and_checks(chance, tmp_path) -> None:
    data = text(chance, 400_000)
    (tmp_path / "f").write_bytes(encoded(data, index=True, check=False))
    with narrows.open(tmp_path / "f") as file:
        assert file.pread(100, 300_000) == data[300_000:300_100] and file.stats()["wire_bytes"] < 200_000
    assert len(encoded(data, check=False)) < len(encoded(data)) < len(encoded(data, index=True))


def test_threads_take_turns(chance) -> None:
    data = text(chance, 200_000)
    compressor, pieces, lock = Compressor(level=1), [], threading.Lock()
    decompressor = Decompressor()

    def work(i: int) -> None:
        for _ in range(20):
            with lock:
                # In the order of the calls, or nobody could decode them.
                pieces.append(compressor.compress(data, Compressor.FLUSH_BLOCK))
            compressor.stats()

    def rubbish() -> None:
        for _ in range(50):
            try:
                decompressor.decompress(data[:5000])
            except (narrows.NarrowsError, EOFError):
                pass
            assert not decompressor.eof

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    threads += [threading.Thread(target=rubbish) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert narrows.decompress(b"".join(pieces) + compressor.flush()) == 80 * data
    # Without a lock of the caller's: every byte is taken once, in some order.
    compressor = Compressor(level=1)
    threads = [
        threading.Thread(target=lambda i=i: pieces.append(compressor.compress(bytes((i,)) * 70_000))) for i in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    compressor.flush()
    assert compressor.stats()["raw_bytes"] == 6 * 70_000


def test_other_threads_go_on_meanwhile(chance) -> None:
    data = text(chance, 500_000)
    wire = encoded(data, policy="fixed:bzip2")
    for work in (lambda: Compressor("fixed:bzip2").compress(data), lambda: Decompressor().decompress(wire)):
        turns, thread = 0, threading.Thread(target=work)
        thread.start()
        while thread.is_alive():
            turns += 1
            time.sleep(0.0005)
        thread.join()
        assert turns > 5


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_process_goes_on_or_is_told(chance) -> None:
    """Both processes can end the stream. If another thread was in a call at the fork, the child is told
    instead of waiting for ever.
    """
    data = text(chance, 1_500_000)
    compressor = Compressor("fixed:xz:level=6")
    head = compressor.compress(data[:1000])

    def in_child(check) -> int:
        pid = os.fork()
        if pid == 0:
            try:
                # Ends a child that waits for a lock of a thread that it does not have.
                signal.alarm(60)
                os._exit(0 if check() else 1)
            finally:
                os._exit(2)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    assert in_child(lambda: narrows.decompress(head + compressor.flush()) == data[:1000]) == 0

    def refused() -> bool:
        try:
            compressor.flush()
        except narrows.MisuseError as error:
            return "process" in str(error)
        return False

    thread = threading.Thread(target=lambda: compressor.compress(data))
    thread.start()
    time.sleep(0.05)
    assert thread.is_alive(), "the test needs more data"
    assert in_child(refused) == 0
    thread.join()
    compressor.flush()


def test_dictionaries_can_be_pickled_and_copied(chance) -> None:
    samples = [text(chance, 200) for _ in range(200)]
    trained = narrows.train(samples)
    assert trained is not None
    for dictionary in (trained, narrows.Dictionary(b"some bytes " * 10)):
        for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
            assert pickle.loads(pickle.dumps(dictionary, protocol)) == dictionary
        assert copy.copy(dictionary) == copy.deepcopy(dictionary) == dictionary
    damaged = pickle.dumps(trained).replace(trained.content, bytes(len(trained.content)))
    assert isinstance(pickle.loads(damaged), narrows.Dictionary)
    with pytest.raises(ValueError):
        pickle.loads(pickle.dumps(trained).replace(trained.content, trained.content[:4] + bytes(len(trained) - 4)))
