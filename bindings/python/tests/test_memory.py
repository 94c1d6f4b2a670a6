"""Whole streams in memory: round trips, and errors of the right class for everything else."""

import array
import signal
import struct
import threading
import time

import pytest
from conftest import text

import narrows

POLICIES = ["balance", "fixed:store", "fixed:lz4", "fixed:zstd:level=3", "fixed:zstd:level=1,link", "fixed:xz", "fixed:bzip2"]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("length", [0, 1, 1000, 1_500_000])
def test_round_trip(policy: str, length: int, chance) -> None:
    data = text(chance, length)
    wire = narrows.compress(data, policy)
    assert narrows.decompress(wire) == data
    assert narrows.decompress(wire, threads=1) == data
    if length > 1000 and policy != "balance":
        assert (len(wire) < len(data) / 2) == (policy != "fixed:store")


def test_random_bytes_grow_by_headers_only(chance) -> None:
    data = chance.randbytes(300_000)
    assert len(narrows.compress(data)) < len(data) + 200


def test_buffers_of_every_type(chance) -> None:
    data = text(chance, 5000)
    for buffer in (bytearray(data), memoryview(data), memoryview(bytearray(data)), array.array("I", range(9999))):
        wire = narrows.compress(buffer)
        assert narrows.decompress(bytearray(wire)) == narrows.decompress(memoryview(wire)) == bytes(buffer)
    with pytest.raises(BufferError):
        narrows.compress(memoryview(data)[::2])
    with pytest.raises(TypeError):
        narrows.compress("text")  # type: ignore[arg-type]


def test_every_truncation_is_told(chance) -> None:
    data = text(chance, 700)
    for policy in ("fixed:store", "fixed:zstd", "fixed:lz4"):
        wire = narrows.compress(data, policy)
        for length in range(len(wire)):
            with pytest.raises(EOFError) as caught:
                narrows.decompress(wire[:length])
            assert type(caught.value) is narrows.TruncatedError


def test_every_flipped_byte_is_told(chance) -> None:
    wire = narrows.compress(text(chance, 500), "fixed:zstd")
    for at in range(len(wire)):
        for bit in (1, 0x80):
            flipped = bytearray(wire)
            flipped[at] ^= bit
            with pytest.raises(narrows.NarrowsError):
                narrows.decompress(flipped)


def test_what_follows_the_end_is_told(chance) -> None:
    wire = narrows.compress(b"all")
    for behind in (b"\0", bytes(100), b"no stream, but more than a preface"):
        with pytest.raises(narrows.CorruptError, match="end of the stream") as caught:
            narrows.decompress(wire + behind)
        assert isinstance(caught.value, OSError)


def test_rubbish_and_lengths_that_lie(chance) -> None:
    with pytest.raises(narrows.CorruptError):
        narrows.decompress(b"\x1f\x8b" + bytes(100))
    wire = narrows.compress(text(chance, 400), "fixed:zstd")
    # The header of the first block follows the preface: no memory is allocated for the lengths that
    # it claims.
    for at in range(32, 44):
        for word in (0xFFFF_FFFF, 0x7FFF_FFFF, 0x8080_8080):
            lying = bytearray(wire)
            struct.pack_into("<I", lying, at, word)
            with pytest.raises(narrows.NarrowsError):
                narrows.decompress(lying)


def test_the_result_is_limited() -> None:
    wire = narrows.compress(bytes(3_000_000))
    assert len(wire) < 3000
    assert len(narrows.decompress(wire, 3_000_000)) == 3_000_000
    assert len(narrows.decompress(wire, max_length=None)) == 3_000_000
    with pytest.raises(narrows.LimitError, match="max_length") as caught:
        narrows.decompress(wire, 2_999_999)
    assert isinstance(caught.value, ValueError)


def test_wrong_arguments_are_told() -> None:
    for policy in ("best", "fixed:nothing", "replay:FILE", ""):
        with pytest.raises(narrows.MisuseError):
            narrows.compress(b"", policy)
    for threads in (0, 1000):
        with pytest.raises(narrows.MisuseError):
            narrows.compress(b"", threads=threads)


def test_errors_say_where(chance) -> None:
    wire = bytearray(narrows.compress(text(chance, 5000), "fixed:zstd"))
    wire[60] ^= 1
    with pytest.raises(narrows.CorruptError) as caught:
        narrows.decompress(wire)
    assert (caught.value.wire_offset, caught.value.frame) == (32, 0)
    for kind in ("Corrupt", "Truncated", "Unsupported", "Limit", "Misuse", "Io"):
        assert issubclass(getattr(narrows, f"{kind}Error"), narrows.NarrowsError)


def test_other_threads_go_on_meanwhile(chance) -> None:
    data = text(chance, 1_000_000)
    done = threading.Event()

    def work() -> None:
        narrows.compress(data, "fixed:xz:level=6", threads=1)
        done.set()

    thread = threading.Thread(target=work)
    turns = 0
    thread.start()
    # Each iteration needs the interpreter's lock; a call that kept it would allow none until it is
    # done.
    while not done.is_set():
        turns += 1
        time.sleep(0.001)
    thread.join()
    assert turns > 5


def test_an_end_that_lies_about_the_length(chance) -> None:
    """The result is allocated with the length in the end frame. If that is too small, too large, or
    far too large, the error is found and nothing is returned.
    """
    data = text(chance, 200_000)
    wire = narrows.compress(data, "fixed:zstd")
    at = len(wire) - 32
    assert struct.unpack_from("<Q", wire, at) == (len(data),)
    for told in (0, 1, len(data) - 1, len(data) + 1, 60 << 20, 1 << 29, 1 << 40, (1 << 64) - 1):
        lying = bytearray(wire)
        struct.pack_into("<Q", lying, at, told)
        for max_length in (len(data), 1 << 30, None):
            with pytest.raises((narrows.CorruptError, narrows.LimitError)):
                narrows.decompress(lying, max_length)


def test_many_threads_and_calls_within_calls(chance) -> None:
    """Contexts that a thread keeps between calls are used by one call at a time."""
    datas = [text(chance, n) for n in (10, 3000, 40_000, 2_500_000)]
    wires = [narrows.compress(d, p) for d in datas for p in ("fixed:zstd", "fixed:lz4", "fixed:zstd:level=1,link")]
    failed: list[int] = []

    def work() -> None:
        for _ in range(5):
            for i, wire in enumerate(wires):
                if narrows.decompress(wire) != datas[i // 3]:
                    failed.append(i)

    def within(*_: object) -> None:
        inside.append(narrows.decompress(narrows.compress(datas[1])) == datas[1])
        # Only now: on a slow machine handlers would interrupt each other without end.
        signal.setitimer(signal.ITIMER_REAL, 0.001)

    threads = [threading.Thread(target=work) for _ in range(4)]
    inside: list[bool] = []
    before = signal.signal(signal.SIGALRM, within)
    signal.setitimer(signal.ITIMER_REAL, 0.001)
    try:
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            work()
        for thread in threads:
            thread.join()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert not failed and inside and all(inside)
