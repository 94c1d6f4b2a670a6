"""Files: they behave as those of gzip, and exchange data with the program `narrows`."""

import bz2
import copy
import errno
import gc
import gzip
import io
import lzma
import os
import pickle
import random
import signal
import subprocess
import sys
import tarfile
import threading
import time
import weakref
import zipfile

import fsspec
import pytest
import zstandard
from conftest import text

import narrows


def outcome(call) -> object:
    """The result of a call, or the kind of its error."""
    try:
        return call()
    except (ValueError, OSError, EOFError, TypeError) as error:
        return next(k for k in (EOFError, TypeError, OSError, ValueError) if isinstance(error, k))


def test_files_are_small_by_default(tmp_path) -> None:
    """Whatever the speed of the disk: a file has no link whose rate tells the cost of a byte."""
    data = text(random.Random(1), 3_000_000)
    buffer = io.BytesIO()
    for target in (tmp_path / "n", buffer):
        with narrows.open(target, "wb") as f:
            for at in range(0, len(data), 5000):
                f.write(data[at : at + 5000])
    with narrows.open(tmp_path / "fixed", "wb", policy="fixed:zstd") as f:
        f.write(data)
    for size in ((tmp_path / "n").stat().st_size, len(buffer.getvalue())):
        # These lines have no distant repetitions, so short blocks, for which zstd uses other
        # tables, are 5 % smaller; where `fixed` ends a block depends on when its bytes were taken.
        assert size <= 1.07 * (tmp_path / "fixed").stat().st_size < len(data) / 2
    assert narrows.open(tmp_path / "n").read() == data


def test_flush_waits_for_no_whole_block(tmp_path) -> None:
    with narrows.open(tmp_path / "n", "wb") as f:
        for i in range(1, 20):
            begun = time.monotonic()
            f.write(b"a line\n")
            f.flush()
            if time.monotonic() - begun < 0.5:
                break
        assert i < 19, "each flush waited for more to write"


@pytest.mark.parametrize("seed", range(12))
def test_reads_as_gzip_does(seed: int, tmp_path) -> None:
    chance = random.Random(seed)
    data = text(chance, chance.choice([0, 1, 300_000, 1_200_000]))
    with narrows.open(tmp_path / "n", "wb") as f, gzip.open(tmp_path / "g", "wb", compresslevel=1) as g:
        for file in (f, g):
            assert file.write(data) == len(data)
    ours, theirs = narrows.open(tmp_path / "n"), gzip.open(tmp_path / "g")
    assert (ours.readable(), ours.writable(), ours.seekable()) == (theirs.readable(), theirs.writable(), theirs.seekable())
    for _ in range(60):
        size = chance.choice([-1, 0, 1, 7, 1000, 8192, 100_000, 1 << 20])
        small = chance.choice([0, 1, 50, 5000])
        operation = chance.randrange(9)
        if operation == 0 and size == -1 and chance.randrange(4):
            continue
        if operation in (0, 1):
            assert ours.read(size) == theirs.read(size)
        elif operation == 2:
            # How much one call returns is up to each file.
            got = ours.read1(size)
            assert theirs.read(len(got)) == got and (got or size == 0 or not theirs.read(1))
        elif operation == 3:
            mine, other = bytearray(small), bytearray(small)
            n = ours.readinto(mine)
            assert n == theirs.readinto(other) and mine == other
        elif operation == 4:
            assert ours.readline() == theirs.readline()
        elif operation == 5:
            assert ours.readline(small) == theirs.readline(small)
        elif operation == 6:
            assert [line for line, _ in zip(ours, range(3))] == [line for line, _ in zip(theirs, range(3))]
        elif operation == 7:
            peeked = ours.peek(1)
            assert bool(peeked) == bool(theirs.peek(1))
            assert theirs.read(min(len(peeked), 10)) == ours.read(min(len(peeked), 10)) == peeked[:10]
        else:
            to = chance.randrange(len(data) + 2)
            assert ours.seek(to) == theirs.seek(to)
        assert ours.tell() == theirs.tell()
    for file in (ours, theirs):
        file.close()


@pytest.mark.parametrize("seed", range(6))
def test_writes_as_gzip_does(seed: int) -> None:
    chance = random.Random(seed)
    ours, theirs = io.BytesIO(), io.BytesIO()
    f, g = narrows.NarrowsFile(fileobj=ours, mode="wb"), gzip.GzipFile(fileobj=theirs, mode="wb")
    for _ in range(40):
        operation = chance.randrange(7)
        piece = text(chance, chance.choice([0, 1, 100, 65_536, 300_000]))
        if operation < 4:
            assert f.write(piece) == g.write(piece)
        elif operation == 4:
            assert f.write(memoryview(piece)) == g.write(memoryview(piece))
        elif operation == 5:
            f.flush(), g.flush()
        else:
            f.writelines([piece, b"x"]), g.writelines([piece, b"x"])
        assert f.tell() == g.tell()
    f.close(), g.close()
    assert not ours.closed
    assert narrows.decompress(ours.getvalue()) == gzip.decompress(theirs.getvalue())


def test_wrong_use_is_told_as_by_gzip(tmp_path) -> None:
    for module in (narrows, gzip):
        path = tmp_path / module.__name__
        file = module.open(path, "wb")
        assert outcome(lambda: file.read()) is OSError
        assert outcome(lambda: file.write("text")) is TypeError
        assert (file.readable(), file.writable()) == (False, True)
        assert file.fileno() > 2
        file.write(b"abc")
        file.close()
        file.close()
        assert file.closed
        for call in (lambda: file.write(b"x"), lambda: file.flush(), lambda: file.read(), lambda: file.__enter__()):
            assert outcome(call) in (ValueError, OSError)
        file = module.open(path)
        assert outcome(lambda: file.write(b"x")) is OSError
        assert outcome(lambda: file.fileno()) != ValueError
        file.close()
        for call in (lambda: file.read(), lambda: file.peek(1), lambda: file.readline(), lambda: file.tell()):
            assert outcome(call) in (ValueError, OSError)
        assert outcome(lambda: module.open(path, "xb")) is OSError
        with pytest.raises(FileExistsError):
            module.open(path, "x")
        with pytest.raises(FileNotFoundError):
            module.open(tmp_path / "nowhere" / "x", "wb")
        for wrong in ({"mode": "rtb"}, {"mode": "z"}, {"mode": "rb", "encoding": "utf-8"}):
            assert outcome(lambda wrong=wrong: module.open(path, **wrong)) is ValueError
        assert outcome(lambda: module.open(7.5)) is TypeError
        with module.open(path) as file:
            assert file.read() == b"abc"


def test_a_wrong_policy_empties_nothing(tmp_path) -> None:
    path = tmp_path / "kept"
    path.write_bytes(b"kept")
    for wrong in ({"policy": "best"}, {"level": 99}, {"level": 3, "preset": "fast"}, {"level": 3, "policy": "balance"}):
        with pytest.raises(narrows.MisuseError):
            narrows.open(path, "wb", **wrong)
    assert path.read_bytes() == b"kept"
    assert narrows.open(tmp_path / "new", "xb").close() is None
    assert narrows.open(tmp_path / "new").read() == b""


def test_appending_as_to_a_gzip_file(program, chance, tmp_path) -> None:
    pieces = [text(chance, length) for length in (300_000, 10, 0, 200_000)]
    results = []
    for module, path in ((gzip, tmp_path / "f.gz"), (narrows, tmp_path / "f.nrw")):
        for mode, piece in zip(("ab", "a", "ab", "ab"), pieces, strict=True):
            with module.open(path, mode) as file:
                assert file.tell() == 0 and file.writable() and not file.readable()
                file.write(piece)
        with module.open(path, "at", encoding="ascii") as file:
            file.write("a line\n")
        with module.open(path) as file:
            results.append(file.read())
    assert results[0] == results[1] == b"".join(pieces) + b"a line\n"
    with narrows.open(path) as file:
        assert file.size() == len(results[0])
        assert file.pread(20, 299_990) == results[0][299_990:300_010]
    assert narrows.decompress(path.read_bytes()) == results[0]
    assert subprocess.run([program, "-dc", path], capture_output=True, check=True, timeout=60).stdout == results[0]
    # The streams of a pipe are one file too.
    read, write = os.pipe()
    with os.fdopen(write, "wb") as file:
        file.write(b"".join(narrows.compress(piece) for piece in (b"one", b"", b"two")))
    with os.fdopen(read, "rb") as file, narrows.open(file) as ours:
        assert ours.read() == b"onetwo" and ours.stats()["raw_bytes"] == 6
    buffer = io.BytesIO()
    for piece in pieces:
        with narrows.open(buffer, "ab", level=1) as file:
            file.write(piece)
    assert narrows.decompress(buffer.getvalue()) == b"".join(pieces)


def test_nothing_is_lost_by_appending(chance, tmp_path) -> None:
    """What would be appended to a file without an end could never be read; and an exception leaves the
    file as it was.
    """
    path = tmp_path / "f"
    with narrows.open(path, "wb") as file:
        file.write(text(chance, 200_000))
    whole = path.read_bytes()
    with pytest.raises(ZeroDivisionError), narrows.open(path, "ab") as file:
        file.write(chance.randbytes(2_000_000))
        file.flush()
        assert path.stat().st_size > len(whole)
        raise ZeroDivisionError
    assert path.read_bytes() == whole
    for damaged, kind in (
        (whole[:-1], narrows.TruncatedError),
        (whole[: len(whole) // 2], narrows.TruncatedError),
        (b"kept", narrows.NarrowsError),
    ):
        path.write_bytes(damaged)
        for mode in ("ab", "at"):
            with pytest.raises(kind):
                narrows.open(path, mode)
        assert path.read_bytes() == damaged


# Whole files of other formats, some with what may follow in them.
FOREIGN = {
    "gzip": gzip.compress,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "zstd": lambda data: zstandard.compress(data),
    "zstd with a skippable frame": lambda data: b"\x50\x2a\x4d\x18\x04\0\0\0tail" + zstandard.compress(data),
    "lz4": lambda data: LZ4,
}
# `printf 'kept\n' | lz4 -c`.
LZ4 = bytes.fromhex("04224d186440a7050000806b6570740a000000004f68c94e")


@pytest.mark.parametrize("name", FOREIGN)
def test_files_of_other_formats_are_not_appended_to(name, tmp_path) -> None:
    """Nobody could read them afterwards. An error tells what appends to them, and nothing changes."""
    path, kept = tmp_path / "log", FOREIGN[name](b"kept\n")
    path.write_bytes(kept)
    match = f"log is a file of {name.split()[0]}, .*append by "
    for mode in ("ab", "at", "a"):
        with pytest.raises(narrows.MisuseError, match=match):
            narrows.open(path, mode)
    for access in ("ab", "r+b", "a+b"):
        for buffering in (0, -1):
            with open(path, access, buffering=buffering) as file:
                file.seek(0, io.SEEK_END)
                with pytest.raises(narrows.MisuseError, match=match):
                    narrows.open(file, "ab")
                assert file.tell() == len(kept)
    # It says that it can be read, and that it is at the beginning.
    with pytest.raises(narrows.MisuseError, match=match), fsspec.open(f"file://{path}", "ab", compression="narrows"):
        pass
    held = io.BytesIO(kept)
    held.seek(0, io.SEEK_END)
    with pytest.raises(narrows.MisuseError, match=match.removeprefix("log ")):
        narrows.open(held, "ab")
    assert path.read_bytes() == held.getvalue() == kept
    with narrows.open(path) as file:
        assert file.read() == b"kept\n"


def test_file_objects_may_have_bytes_of_their_own_before_a_stream(tmp_path) -> None:
    path = tmp_path / "f"
    for _ in range(2):
        with open(path, "ab") as file, narrows.open(file, "ab") as ours:
            ours.write(b"abc")
    with narrows.open(path) as ours:
        assert ours.read() == b"abcabc"
    held = io.BytesIO()
    held.write(b"header")
    with narrows.open(held, "ab") as ours:
        ours.write(b"abc")
    held.seek(6)
    assert narrows.open(held).read() == b"abc"
    # Where nobody can look, nobody is asked.
    read, write = os.pipe()
    with os.fdopen(write, "wb") as file, narrows.open(file, "ab") as ours:
        ours.write(b"abc")
    with os.fdopen(read, "rb") as file, narrows.open(file) as ours:
        assert ours.read() == b"abc"


def test_packs_are_not_appended_to(program, tmp_path) -> None:
    (tmp_path / "a").write_text("content\n")
    pack = tmp_path / "a.nrp"
    subprocess.run([program, "pack", "-q", "-o", pack, "a"], check=True, timeout=60, cwd=tmp_path)
    whole = pack.read_bytes()
    with pytest.raises(narrows.MisuseError, match="is a pack"):
        narrows.open(pack, "ab")
    assert pack.read_bytes() == whole


def test_a_stream_that_is_written_cannot_seek(tmp_path) -> None:
    """As of bz2 and lzma: what writes ends of its own then needs no way back."""
    for module in (narrows, bz2, lzma):
        for mode in ("wb", "ab"):
            with module.open(tmp_path / module.__name__, mode) as file:
                assert not file.seekable() and file.tell() == 0
                file.write(b"abc")
                for to in ((0,), (3,), (10,), (1, io.SEEK_CUR), (0, io.SEEK_END)):
                    with pytest.raises(io.UnsupportedOperation):
                        file.seek(*to)
                assert file.tell() == 3
        with module.open(tmp_path / module.__name__) as file:
            assert file.seekable() and file.read() == b"abcabc"
    path = tmp_path / "text"
    for mode in ("wt", "at"):
        with narrows.open(path, mode, encoding="utf-8") as file:
            assert not file.seekable() and file.write("ä") == 1
    with narrows.open(path, "rt", encoding="utf-8") as file:
        assert file.read() == "ää"


def test_archives_inside_a_stream(tmp_path) -> None:
    numpy = pytest.importorskip("numpy")
    path, numbers = tmp_path / "n", numpy.arange(10_000)
    with narrows.open(path, "wb") as file, zipfile.ZipFile(file, "w") as made:
        made.writestr("a", b"first")
        with made.open("b", "w") as member:
            member.write(b"second")
    with narrows.open(path) as file, zipfile.ZipFile(file) as made:
        assert made.testzip() is None and made.read("a") == b"first" and made.read("b") == b"second"
    for save in (numpy.savez, numpy.savez_compressed):
        with narrows.open(path, "wb") as file:
            save(file, a=numbers, b=numbers * 2)
        with narrows.open(path) as file, numpy.load(file) as got:
            assert (got["a"] == numbers).all() and (got["b"] == numbers * 2).all()
    with narrows.open(path, "wb") as file, tarfile.open(fileobj=file, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("empty"))
    with narrows.open(path) as file, tarfile.open(fileobj=file) as tar:
        assert tar.getnames() == ["empty"]


def test_use_after_close(tmp_path) -> None:
    for mode in ("wb", "rb"):
        file = narrows.open(tmp_path / "f", mode)
        file.close()
        for call in (
            lambda: file.write(b"x"),
            lambda: file.read(),
            lambda: file.flush(),
            lambda: file.fileno(),
            lambda: file.readable(),
            lambda: file.writable(),
            lambda: file.seekable(),
            lambda: file.tell(),
            lambda: file.seek(0),
            lambda: file.peek(),
            lambda: next(file),
            lambda: file.__enter__(),
        ):
            with pytest.raises(ValueError):
                call()


def test_text(tmp_path) -> None:
    lines = [f"Zeile {i} mit ä, ö und 漢\n" for i in range(2000)]
    with narrows.open(tmp_path / "t", "wt", encoding="utf-8", newline="\n") as file:
        file.writelines(lines)
    with narrows.open(tmp_path / "t", "rt", encoding="utf-8") as file:
        assert file.readline() == lines[0]
        at = file.tell()
        assert file.read() == "".join(lines[1:])
        file.seek(at)
        assert list(file) == lines[1:]
    with narrows.open(tmp_path / "t", "rt", encoding="ascii", errors="replace") as file:
        assert "\ufffd" in file.readline()


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32"])
def test_marks_of_the_byte_order_are_as_in_a_gzip_file(encoding, tmp_path) -> None:
    for module in (gzip, narrows):
        path = tmp_path / module.__name__
        with module.open(path, "wt", encoding=encoding) as file:
            assert file.write("\u00e9\n") == 2
            file.write("漢\n")
        with module.open(path, "rt", encoding=encoding) as file:
            assert file.read() == "\u00e9\n漢\n"
    with gzip.open(tmp_path / "gzip") as theirs, narrows.open(tmp_path / "narrows") as ours:
        raw = ours.read()
        assert raw == theirs.read() == "\u00e9\n漢\n".encode(encoding)
    # One mark in all, as in a plain file.
    with narrows.open(tmp_path / "narrows", "at", encoding=encoding) as file:
        file.write("x")
    with open(tmp_path / "plain", "at", encoding=encoding) as file:
        file.write("\u00e9\n漢\n")
    with open(tmp_path / "plain", "at", encoding=encoding) as file:
        file.write("x")
    with narrows.open(tmp_path / "narrows") as file:
        assert file.read() == (tmp_path / "plain").read_bytes()
    with narrows.open(tmp_path / "new", "at", encoding=encoding) as file:
        file.write("\u00e9\n漢\n")
    with narrows.open(tmp_path / "new") as file:
        assert file.read() == raw
    held = io.BytesIO()
    with narrows.open(held, "wt", encoding=encoding) as file:
        file.write("\u00e9\n漢\n")
    assert narrows.decompress(held.getvalue()) == raw


def test_calls_take_the_keywords_of_a_gzip_file(tmp_path) -> None:
    for module in (gzip, narrows):
        with module.open(tmp_path / "f", "wb") as file:
            assert file.write(data=b"ab\ncd\n") == 6
        with module.open(tmp_path / "f") as file:
            assert file.seek(offset=1, whence=io.SEEK_SET) == 1 and file.seek(0, whence=0) == 0
            assert file.peek(n=1)[:1] == b"a" and file.read1(size=1) == b"a"
            assert file.read(size=1) == b"b" and file.readline(size=-1) == b"\n"


def test_the_name_is_that_of_a_gzip_file(tmp_path) -> None:
    for given in (tmp_path / "f", str(tmp_path / "f"), os.fsencode(tmp_path / "f")):
        names = []
        for module in (gzip, narrows):
            with module.open(given, "wb") as file:
                names.append(file.name)
            with open(given, "rb") as source, module.open(source) as file:
                names.append(file.name)
        assert names[:2] == names[2:] and type(names[0]) is type(names[2])


@pytest.mark.parametrize("plain", [b"p", b"plain text\n", b"NRx", b"plain text\n" * 100])
def test_plain_files_are_os_errors_however_short(plain, tmp_path) -> None:
    (tmp_path / "f").write_bytes(plain)
    for source in (tmp_path / "f", io.BytesIO(plain)):
        for module in (gzip, narrows):
            if hasattr(source, "seek"):
                source.seek(0)
            match = {gzip: "Not a gzipped", narrows: "not the beginning of a stream"}[module]
            with pytest.raises(OSError, match=match), module.open(source) as file:
                file.read()
    for begin in (b"N", b"NRW", b"NRW\x1a", b"NRW\x1a\x01"):
        with pytest.raises(narrows.TruncatedError):
            narrows.open(io.BytesIO(begin)).read()


def test_flush_brings_all_that_was_written(chance) -> None:
    held = io.BytesIO()
    data = text(chance, 200_000)
    with narrows.open(held, "wb") as file:
        at = 0
        for length in (1, 10, 100_000, 3, 99_986):
            file.write(data[at : at + length])
            at += length
            file.flush()
            reader = narrows.open(io.BytesIO(held.getvalue()))
            assert reader.read(at) == data[:at]
            with pytest.raises(EOFError):
                reader.read(1)


def test_truncated_and_damaged_files(chance, tmp_path) -> None:
    data = text(chance, 900_000)
    # With an index the preface is there twice, and a damaged index is made anew: no byte is missed.
    with narrows.open(tmp_path / "f", "wb", policy="fixed:zstd:level=1", index=False) as file:
        file.write(data)
    wire = (tmp_path / "f").read_bytes()
    for length in {0, 1, 31, 32, 40, len(wire) // 2, len(wire) - 1, *range(0, len(wire), len(wire) // 40)}:
        reader = narrows.open(io.BytesIO(wire[:length]))
        got = bytearray()
        with pytest.raises(EOFError) as caught:
            while piece := reader.read1(4096):
                got += piece
        assert isinstance(caught.value, narrows.TruncatedError)
        assert data.startswith(got)
        with pytest.raises(EOFError):
            reader.read(1)
    for at in range(0, len(wire), max(1, len(wire) // 200)):
        flipped = bytearray(wire)
        flipped[at] ^= 0x10
        reader = narrows.open(io.BytesIO(flipped))
        got = bytearray()
        with pytest.raises(narrows.NarrowsError):
            while piece := reader.read1(4096):
                got += piece
        assert data.startswith(got)
    with pytest.raises(narrows.CorruptError):
        narrows.open(io.BytesIO(b"nothing of that kind" * 10)).read()


def test_the_program_reads_and_writes_the_same(program: str, chance, tmp_path) -> None:
    data = text(chance, 700_000) + chance.randbytes(100_000)
    for policy in ("balance", "fixed:zstd:level=3,link", "fixed:lz4", "adoc"):
        with narrows.open(tmp_path / "ours", "wb", policy=policy, index=policy == "balance") as file:
            file.write(data)
        ran = subprocess.run([program, "pipe", "-dc", tmp_path / "ours"], stdout=subprocess.PIPE, timeout=60, check=True)
        assert ran.stdout == data
        ran = subprocess.run(
            [program, "pipe", "--policy", policy], input=data, stdout=subprocess.PIPE, timeout=60, check=True
        )
        assert narrows.decompress(ran.stdout) == data
        assert narrows.open(io.BytesIO(ran.stdout)).read() == data


def test_an_error_of_the_file_object_reaches_the_caller() -> None:
    class Full(io.RawIOBase):
        def __init__(self) -> None:
            self.room = 100_000

        def writable(self) -> bool:
            return True

        def write(self, data) -> int:
            self.room -= len(data)
            if self.room < 0:
                raise OSError(28, "No space left on device")
            return len(data)

    with pytest.raises(OSError, match="No space left") as caught:
        with narrows.open(Full(), "wb", policy="fixed:store") as file:
            for _ in range(100):
                file.write(bytes(64 << 10))
    assert caught.value.errno == 28

    class Short(io.BytesIO):
        def write(self, data) -> int:
            return super().write(data[:1000])

    short = Short()
    with narrows.open(short, "wb", policy="fixed:store") as file:
        file.write(bytes(100_000))
    assert len(narrows.decompress(short.getvalue())) == 100_000


def test_an_object_without_room_gets_the_rest_later() -> None:
    class Reluctant(io.BytesIO):
        calls = 0

        def write(self, data) -> int:
            self.calls += 1
            return 0 if self.calls % 3 else super().write(data)

    held, data, refused = Reluctant(), os.urandom(1 << 20), 0

    def until_taken(call) -> None:
        nonlocal refused
        while True:
            try:
                return call()
            except BlockingIOError as error:
                assert error.errno == errno.EAGAIN
                refused += 1

    file = narrows.open(held, "wb", policy="fixed:store")
    for at in range(0, len(data), 1 << 16):
        file.write(data[at : at + (1 << 16)])
        until_taken(file.flush)
    until_taken(file.close)
    assert refused > 10 and file.closed
    assert narrows.decompress(held.getvalue()) == data


def test_a_raw_file_that_does_not_block_loses_nothing() -> None:
    data = os.urandom(5 << 20)
    read, write = os.pipe()
    os.set_blocking(write, False)
    os.set_blocking(read, False)
    with open(read, "rb", 0) as reader, open(write, "wb", 0) as raw:
        assert isinstance(raw, io.FileIO)
        file = narrows.open(raw, "wb", policy="fixed:store")
        got, at, refused = bytearray(), 0, 0
        steps = [lambda: file.write(data[at:]), file.flush, file.close]
        while steps:
            try:
                steps[0]()
                steps.pop(0)
            except BlockingIOError:
                refused += 1
                # Bytes taken before the error are not taken again.
                at = max(at, file.tell())
                got += reader.read() or b""
        got += reader.read() or b""
    assert refused > 2
    assert narrows.decompress(got) == data


def test_objects_that_do_not_say_how_much_they_took_took_all() -> None:
    held = io.BytesIO()

    class Silent:
        def write(self, data) -> None:
            held.write(data)

    with narrows.open(Silent(), "wb") as file:
        file.write(b"abc" * 1000)
    assert narrows.decompress(held.getvalue()) == b"abc" * 1000


def test_after_an_error_of_the_object_nothing_more_is_written() -> None:
    class Once:
        pieces: list[bytes] = []
        failed = False

        def write(self, data) -> int:
            if len(self.pieces) == 2 and not self.failed:
                self.failed = True
                raise ConnectionResetError(errno.ECONNRESET, "gone")
            self.pieces.append(bytes(data))
            return len(data)

    once = Once()
    file = narrows.open(once, "wb", policy="fixed:store")
    with pytest.raises(ConnectionResetError, match="gone"):
        for _ in range(100):
            file.write(os.urandom(1 << 16))
            file.flush()
    written = len(once.pieces)
    for call in (lambda: file.write(os.urandom(1 << 17)), file.flush):
        with pytest.raises(narrows.IoError, match="failed already.*gone") as caught:
            call()
        assert isinstance(caught.value, ConnectionResetError)
    assert 0 < file.stats()["raw_bytes"] <= file.tell()
    file.close()
    assert len(once.pieces) == written


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="the system has no /dev/full")
def test_a_full_disk_is_told() -> None:
    with pytest.raises(OSError) as caught:
        with narrows.open("/dev/full", "wb") as file:
            file.write(bytes(1 << 20))
            file.flush()
    assert caught.value.errno == 28 and isinstance(caught.value, narrows.IoError)
    file = narrows.open("/dev/full", "wb")
    for told in ("No space", "failed already.*No space"):
        with pytest.raises(OSError, match=told) as caught:
            file.write(bytes(1 << 20))
            file.flush()
        assert caught.value.errno == 28
    file.close()


def test_a_reader_that_goes_away_is_a_broken_pipe() -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as pipe:
        with pytest.raises(BrokenPipeError):
            with narrows.open(f"/dev/fd/{pipe.fileno()}", "wb") as file:
                for _ in range(100):
                    file.write(os.urandom(64 << 10))
                    file.flush()


def test_a_reader_that_does_not_read_times_out() -> None:
    read, write = os.pipe()
    with os.fdopen(read, "rb"), os.fdopen(write, "wb") as pipe:
        file = narrows.open(f"/dev/fd/{pipe.fileno()}", "wb", timeout=0.2, policy="fixed:store")
        with pytest.raises(TimeoutError) as caught:
            for i in range(1000):
                file.write(bytes(range(256)) * 2560)
        assert isinstance(caught.value, narrows.IoError)
        assert i * 655_360 < file.tell() < (i + 1) * 655_360, "a part of the last one was taken"
        with pytest.raises(TimeoutError):
            file.close()
        assert file.closed


def test_a_wait_heeds_signals() -> None:
    class Interrupted(Exception):
        pass

    def interrupt(*_: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    read, write = os.pipe()
    try:
        with os.fdopen(read, "rb"), os.fdopen(write, "wb") as pipe:
            file = narrows.open(f"/dev/fd/{pipe.fileno()}", "wb", policy="fixed:store")
            for call in (lambda: [file.write(bytes(1 << 16)) for _ in range(1000)], file.flush, file.close):
                signal.setitimer(signal.ITIMER_REAL, 0.1)
                with pytest.raises(Interrupted):
                    call()
            assert file.closed
    finally:
        signal.signal(signal.SIGALRM, before)


def test_two_threads_on_one_file_take_turns() -> None:
    held = io.BytesIO()
    with narrows.open(held, "wb") as file:

        def write(of: int) -> None:
            for i in range(300):
                file.write(b"%d of %d\n" % (i, of) * 50)

        threads = [threading.Thread(target=write, args=(of,)) for of in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    lines = narrows.decompress(held.getvalue()).splitlines()
    expected = sorted(b"%d of %d" % (i, of) for i in range(300) for of in range(4) for _ in range(50))
    assert sorted(lines) == expected

    held.seek(0)
    reader = narrows.open(held)
    pieces: list[bytes] = []

    def read() -> None:
        while piece := reader.readline():
            pieces.append(piece)

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(p.rstrip() for p in pieces) == expected


def test_a_call_out_of_the_file_object_is_refused() -> None:
    class Nosy(io.BytesIO):
        def write(self, data) -> int:
            with pytest.raises(RuntimeError):
                file.write(b"more")
            return super().write(data)

    nosy = Nosy()
    file = narrows.open(nosy, "wb")
    file.write(b"abc")
    file.close()
    assert narrows.decompress(nosy.getvalue()) == b"abc"


def test_other_threads_go_on_while_blocks_are_encoded(chance) -> None:
    data = text(chance, 1_000_000)
    turns, done = 0, threading.Event()

    def work() -> None:
        with narrows.open(io.BytesIO(), "wb", policy="fixed:xz:level=6", threads=1) as file:
            file.write(data)
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    while not done.is_set():
        turns += 1
        time.sleep(0.001)
    thread.join()
    assert turns > 5


def test_copies_are_refused(tmp_path) -> None:
    with narrows.open(tmp_path / "f", "wb") as file:
        for call in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError):
                call(file)


def test_a_forked_process_cannot_write_and_ends(tmp_path) -> None:
    script = """
import os, sys, narrows
file = narrows.open(sys.argv[1], "wb")
file.write(b"parent")
child = os.fork()
if child == 0:
    for call in (lambda: file.write(b"child"), file.close):
        try:
            call()
        except narrows.MisuseError as error:
            continue
        os._exit(1)
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
file.close()
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", script, str(tmp_path / "f")], timeout=60, check=True)
    assert narrows.open(tmp_path / "f").read() == b"parent"


def test_a_file_that_nobody_closed_does_not_keep_the_interpreter(tmp_path) -> None:
    script = """
import sys, io, narrows
a, b = narrows.open(sys.argv[1], "wb"), narrows.open(io.BytesIO(), "wb")
a.write(bytes(100_000))
"""
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "f")], timeout=60, check=True)


def test_errors_keep_nobody_alive() -> None:
    def use(wire: bytes) -> weakref.ref:
        file = narrows.open(io.BytesIO(wire))
        for _ in range(2):
            with pytest.raises(narrows.NarrowsError):
                file.read()
        return weakref.ref(file)

    class Loop(io.BytesIO):
        file: object = None

    loop = Loop()
    loop.file = narrows.open(loop, "wb")
    gone = [weakref.ref(loop), use(b"garbage" * 100), use(narrows.compress(b"x")[:-1])]
    loop.file.close()
    loop = Loop()
    gone.append(weakref.ref(loop))
    loop.file = narrows.open(loop, "wb")
    del loop
    gc.collect()
    assert [ref() for ref in gone] == [None] * 4


def test_what_stands_before_a_cut_is_given_by_read1(chance) -> None:
    wire = narrows.compress(chance.randbytes(900_000), "fixed:store")[:-1]
    for read in (narrows.NarrowsFile.read1, lambda f, n: (b := bytearray(n), f.readinto1(b))[1] * b"x"):
        file, got = narrows.open(io.BytesIO(wire)), 0
        with pytest.raises(EOFError):
            while piece := read(file, 2_000_000):
                got += len(piece)
        assert got == 900_000


def test_totals_stay_behind_the_end(tmp_path) -> None:
    data = text(random.Random(1), 300_000)
    with narrows.open(tmp_path / "n", "wb", policy="fixed:zstd") as file:
        file.write(data)
    stats = file.stats()
    assert stats["raw_bytes"] == len(data) and stats["wire_bytes"] == os.path.getsize(tmp_path / "n")
    assert stats["ratio"] > 2 and stats["methods"] == {"zstd": len(data)}
    with narrows.open(tmp_path / "n") as file:
        assert file.read(10) == data[:10]
        file.seek(0)
        assert file.read() == data
    assert file.stats() == {"raw_bytes": len(data), "wire_bytes": os.path.getsize(tmp_path / "n")}
    with pytest.raises(ValueError, match="closed"):
        file.read()
    with narrows.open(tmp_path / "t", "wt", policy="fixed:zstd") as lines:
        lines.write("a line\n")
    assert lines.buffer.stats()["raw_bytes"] == 7
    failed = narrows.NarrowsFile(fileobj=io.BytesIO(b"none"))
    with pytest.raises(narrows.NarrowsError):
        failed.read()
    failed.close()
    assert failed.stats()["raw_bytes"] == 0
