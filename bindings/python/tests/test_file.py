"""Files are read at any byte: by seeks, by threads, by other libraries; damage is told."""

import bz2
import csv
import errno
import gc
import gzip
import io
import lzma
import os
import pickle
import random
import subprocess
import sys
import tarfile
import threading
import time
import weakref
import zipfile
from pathlib import Path

import pytest
from conftest import text

import narrows

LENGTH = 3_000_000


def stored(data: bytes, **options: object) -> bytes:
    held = io.BytesIO()
    with narrows.open(held, "wb", **options) as file:
        file.write(data)
    return held.getvalue()


@pytest.fixture(scope="module")
def data() -> bytes:
    return text(random.Random(5), LENGTH)


@pytest.fixture(scope="module")
def wire(data: bytes) -> bytes:
    return stored(data)


class Remote(io.RawIOBase):
    """A file object without a descriptor, which counts its reads and gives short ones."""

    def __init__(self, wire: bytes, most: int = 1 << 30) -> None:
        self.wire, self.most, self.at, self.reads = wire, most, 0, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self.at = offset + (0, self.at, len(self.wire))[whence]
        return self.at

    def tell(self) -> int:
        return self.at

    def read(self, size: int = -1) -> bytes:
        self.reads += 1
        time.sleep(0)
        piece = self.wire[self.at : self.at + min(size, self.most)]
        self.at += len(piece)
        return piece


@pytest.mark.parametrize(
    "options", [{}, {"preset": "fast"}, {"preset": "archive"}, {"policy": "fixed:zstd:level=3,link"}]
)
@pytest.mark.parametrize("index", [None, False])
@pytest.mark.parametrize("check", [True, False])
def test_round_trips(options, index, check, data, tmp_path) -> None:
    path = tmp_path / "f.nrw"
    with narrows.open(path, "wb", index=index, check=check, **options) as file:
        for at in range(0, len(data), 70_001):
            file.write(data[at : at + 70_001])
    # What is fast enough depends on the load.
    assert path.stat().st_size < len(data) / (1 if options.get("preset") == "fast" else 2)
    with narrows.open(path) as file:
        assert file.size() == len(data)
        assert file.seek(-10, io.SEEK_END) == len(data) - 10 and file.read() == data[-10:]
        assert file.pread(100, 2_000_000) == data[2_000_000:2_000_100]
        file.seek(0)
        assert file.read() == data
    for source in (io.BytesIO(path.read_bytes()), Remote(path.read_bytes(), 10_000)):
        assert narrows.open(source).read() == data


def sources(wire: bytes, path: Path):
    path.write_bytes(wire)
    yield lambda: narrows.open(path)
    yield lambda: narrows.open(str(path), threads=1)
    yield lambda: narrows.open(open(path, "rb"))
    yield lambda: narrows.open(open(path, "rb", buffering=0))
    yield lambda: narrows.open(open(path, "r+b"))
    yield lambda: narrows.open(io.BytesIO(wire))
    yield lambda: narrows.open(Remote(wire))


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("seed", range(4))
def test_seeks_as_bytes_in_memory_do(seed, data, tmp_path) -> None:
    chance = random.Random(seed)
    wire = stored(data, index=seed % 2 == 0, policy=("fixed:zstd,link", None)[seed // 2])
    for open_it in sources(wire, tmp_path / "f"):
        ours, theirs = open_it(), io.BytesIO(data)
        for _ in range(80):
            operation, n = chance.randrange(8), chance.choice([0, 1, 100, 9000, 200_000])
            if operation == 0:
                to = chance.randrange(len(data) + 1)
                assert ours.seek(to) == theirs.seek(to)
            elif operation == 1:
                by = chance.randrange(-theirs.tell(), len(data) - theirs.tell() + 1)
                assert ours.seek(by, io.SEEK_CUR) == theirs.seek(by, io.SEEK_CUR)
            elif operation == 2:
                by = -chance.randrange(len(data))
                assert ours.seek(by, io.SEEK_END) == theirs.seek(by, io.SEEK_END)
            elif operation == 3:
                assert ours.read(n) == theirs.read(n)
            elif operation == 4:
                mine, other = bytearray(n), bytearray(n)
                assert ours.readinto(mine) == theirs.readinto(other) and mine == other
            elif operation == 5:
                piece = ours.read1(n)
                assert theirs.read(len(piece)) == piece and (piece or not n or not theirs.read(1))
            elif operation == 6:
                assert ours.readline() == theirs.readline()
            else:
                at = chance.randrange(len(data) + 10)
                assert ours.pread(n, at) == data[at : at + n]
            assert ours.tell() == theirs.tell()
        assert ours.seek(len(data) + 1000) == len(data) and ours.read() == b""
        assert ours.pread(10, len(data)) == ours.pread(10, 2**63) == b""
        with pytest.raises(ValueError):
            ours.seek(-1)
        for wrong in ((-1, 0), (1, -1)):
            with pytest.raises(ValueError):
                ours.pread(*wrong)
        ours.close()


def test_an_index_makes_a_seek_cheap(data, wire) -> None:
    remote = Remote(wire)
    file = narrows.open(remote)
    assert remote.reads == 0, "nothing is read before it is asked for"
    file.pread(10, LENGTH // 2)
    assert remote.reads <= 4
    assert file.size() == LENGTH and remote.reads <= 4


@pytest.mark.parametrize("make", [lambda path: path, lambda path: Remote(path.read_bytes(), 5000)])
def test_threads_read_at_once(make, data, wire, tmp_path) -> None:
    path = tmp_path / "f"
    path.write_bytes(wire)
    wrong: list[object] = []

    def read(seed: int) -> None:
        chance = random.Random(seed)
        try:
            for _ in range(40):
                n, at = chance.choice([1, 1000, 300_000]), chance.randrange(LENGTH)
                if file.pread(n, at) != data[at : at + n]:
                    wrong.append((n, at))
        except BaseException as error:
            wrong.append(error)

    with narrows.open(make(path)) as file:
        threads = [threading.Thread(target=read, args=(seed,)) for seed in range(6)]
        for thread in threads:
            thread.start()
        assert file.read() == data, "the position is not theirs"
        for thread in threads:
            thread.join(120)
        assert not any(thread.is_alive() for thread in threads)
    assert wrong == []


@pytest.mark.parametrize("policy", [None, "fixed:zstd", "fixed:zstd,link"])
def test_reading_in_order_decodes_ahead(policy, data, tmp_path) -> None:
    """From several places, so that what was decoded ahead is left and taken up again."""
    path, data = tmp_path / "f", data * 7
    path.write_bytes(stored(data, policy=policy))
    for source in (path, Remote(path.read_bytes(), 100_000)):
        with narrows.open(source, threads=4) as file:
            for begin in (0, 12_345_678, 3_000_000, len(data) - 4_000_000):
                file.seek(begin)
                got = b"".join(file.read(90_001) for _ in range(60))
                assert got == data[begin : begin + 60 * 90_001]
            assert file.pread(len(data), 1) == data[1:]


def test_an_error_ahead_spares_what_comes_before_it(data) -> None:
    data = data * 7
    wire = stored(data, policy="fixed:zstd")

    class Stopped(BaseException):
        pass

    class Half(Remote):
        raises: type[BaseException] = ConnectionResetError

        def read(self, size: int = -1) -> bytes:
            if self.at < 3 * len(self.wire) // 4 < self.at + size < len(self.wire) - 70_000:
                raise self.raises(errno.ECONNRESET, "gone")
            return super().read(min(size, 10_000))

    with narrows.open(Half(wire), threads=4) as file:
        got = bytearray()
        with pytest.raises(ConnectionResetError):
            while piece := file.read1(50_000):
                got += piece
        assert len(got) > len(data) * 0.6 and data.startswith(got)
    source = Half(wire)
    source.raises = Stopped
    with narrows.open(source, threads=4) as file, pytest.raises(Stopped):
        while file.read1(50_000):
            pass


def test_other_threads_go_on_while_blocks_are_decoded(data) -> None:
    wire = stored(data * 3, policy="fixed:xz:level=6")
    turns, done = 0, threading.Event()

    def work() -> None:
        narrows.open(io.BytesIO(wire), threads=1).pread(3 * LENGTH, 0)
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    while not done.is_set():
        turns += 1
        time.sleep(0.001)
    thread.join()
    assert turns > 5


@pytest.mark.parametrize("index", [True, False])
def test_a_file_that_is_cut_is_never_taken_for_whole(index, data) -> None:
    data = data[:700_000]
    wire = stored(data, index=index, policy="fixed:zstd:level=1")
    for length in sorted({0, 1, 5, 31, 32, 33, len(wire) - 1, len(wire) - 40, *range(0, len(wire), len(wire) // 30)}):
        file, got = narrows.open(io.BytesIO(wire[:length])), bytearray()
        with pytest.raises(narrows.TruncatedError):
            while piece := file.read1(50_000):
                got += piece
        assert data.startswith(got)
        for call in (
            lambda: narrows.open(io.BytesIO(wire[:length])).read(),
            lambda: file.pread(len(data) + 1, 0),
            lambda: file.seek(0, io.SEEK_END),
            lambda: file.size(),
        ):
            with pytest.raises(narrows.TruncatedError):
                call()
        assert len(got) == 0 or file.pread(10, 0) == data[:10]


@pytest.mark.parametrize("index", [True, False])
def test_damage_gives_an_error_or_the_right_bytes(index, data, chance) -> None:
    data = data[:700_000]
    wire = stored(data, index=index, policy="fixed:zstd:level=1")
    places = {*range(60), *range(len(wire) - 300, len(wire)), *(chance.randrange(len(wire)) for _ in range(200))}
    for place in places:
        flipped = bytearray(wire)
        flipped[place] ^= 1 << chance.randrange(8)
        try:
            assert narrows.open(io.BytesIO(flipped)).read() == data
            assert index and not 100 < place < len(wire) * 9 // 10, "only preface and index are there twice"
        except narrows.NarrowsError:
            pass
        file = narrows.open(io.BytesIO(flipped))
        for at in (0, 350_000, 690_000):
            try:
                assert file.pread(1000, at) == data[at : at + 1000]
            except narrows.NarrowsError:
                pass


def test_what_is_not_damaged_can_be_read(data) -> None:
    wire = bytearray(stored(data, policy="fixed:zstd:level=1"))
    wire[len(wire) // 2] ^= 4
    with narrows.open(io.BytesIO(wire)) as file:
        with pytest.raises(narrows.CorruptError) as caught:
            file.pread(LENGTH, 0)
        assert isinstance(caught.value, OSError) and caught.value.wire_offset
        for at in (0, LENGTH - 5000):
            assert file.pread(5000, at) == data[at : at + 5000]


def test_streams_behind_one_another_are_one(data, tmp_path) -> None:
    parts = [data[:1_000_000], b"", data[1_000_000:1_000_001], data[1_000_001:]]
    path = tmp_path / "f"
    path.write_bytes(b"".join(stored(part, index=i != 2) for i, part in enumerate(parts)))
    with narrows.open(path) as file:
        assert file.size() == LENGTH
        assert file.pread(10, 999_995) == data[999_995:1_000_005]
        assert file.read() == data
    path.write_bytes(path.read_bytes() + b"something else")
    with narrows.open(path) as file, pytest.raises(narrows.NarrowsError):
        file.read()


def test_a_stream_may_begin_where_the_file_object_is(data, wire, tmp_path) -> None:
    (tmp_path / "f").write_bytes(b"a header" + wire)
    with open(tmp_path / "f", "rb") as plain:
        for source in (plain, io.BytesIO(b"a header" + wire)):
            assert source.read(8) == b"a header"
            with narrows.open(source) as file:
                assert file.pread(9, 77_777) == data[77_777:77_786]
                assert file.read() == data
            assert not source.closed


def test_other_formats(data, program, tmp_path) -> None:
    made = {
        "gz": gzip.compress(data[:1000]) + gzip.compress(data[1000:], 1),
        "xz": lzma.compress(data, preset=0),
        "bz2": bz2.compress(data, 1),
    }
    ran = subprocess.run([program, "--format", "zstd", "-c"], input=data, stdout=-1, check=True, timeout=60)
    made["zst"] = ran.stdout
    for name, wire in made.items():
        path = tmp_path / name
        path.write_bytes(wire)
        for source in (path, io.BytesIO(wire)):
            with narrows.open(source) as file:
                assert file.pread(100, LENGTH - 100) == data[-100:], name
                assert file.pread(100, 50) == data[50:150]
                assert file.pread(100, LENGTH - 50) == data[-50:]
                assert file.size() == LENGTH and file.seek(LENGTH + 5) == LENGTH
                assert file.seek(0) == 0 and file.read() == data
                assert file.seek(-5, io.SEEK_END) == LENGTH - 5 and file.read() == data[-5:]
        for cut in (wire[: len(wire) // 2], wire[:-30]):
            with pytest.raises(narrows.NarrowsError):
                narrows.open(io.BytesIO(cut)).read()
        flipped = bytearray(wire)
        flipped[len(wire) // 2] ^= 1
        with pytest.raises(narrows.NarrowsError):
            narrows.open(io.BytesIO(flipped)).read()
    with narrows.open(tmp_path / "gz", "rt", encoding="ascii") as lines:
        assert sum(1 for _ in lines) == data.count(b"\n") + 1


def test_an_exception_of_the_file_object_reaches_the_caller(wire) -> None:
    class Lost(OSError):
        pass

    class Failing(Remote):
        fails = False

        def read(self, size: int = -1) -> bytes:
            if self.fails:
                raise Lost(errno.EIO, "the store is gone")
            return super().read(size)

    for kind in (wire, gzip.compress(bytes(100_000))):
        source = Failing(kind)
        file = narrows.open(source)
        source.fails = True
        for call in (lambda: file.read(), lambda: file.pread(1, 50_000), lambda: file.size()):
            with pytest.raises(Lost) as caught:
                call()
            assert caught.value.errno == errno.EIO
        source.fails = False
        assert len(file.pread(1, 50_000)) == 1, "it is back"

    class Interrupted(Remote):
        def read(self, size: int = -1) -> bytes:
            raise InterruptedError(errno.EINTR, "stopped")

    with pytest.raises(InterruptedError):
        narrows.open(Interrupted(wire)).read()

    class More(Remote):
        def read(self, size: int = -1) -> bytes:
            return super().read(size) + b"more"

    with pytest.raises(OSError, match="more than asked"):
        narrows.open(More(wire)).read()


def test_a_file_object_that_calls_back_is_refused(wire) -> None:
    class Nosy(Remote):
        def read(self, size: int = -1) -> bytes:
            return file.pread(size, 0)

    file = narrows.open(Nosy(wire))
    with pytest.raises(RuntimeError):
        file.pread(1, 0)


def test_errors_of_the_system_have_number_and_name(tmp_path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        narrows.open(tmp_path / "none")
    assert caught.value.errno == errno.ENOENT and caught.value.filename == tmp_path / "none"
    with pytest.raises(IsADirectoryError):
        narrows.open(tmp_path)
    (tmp_path / "there").touch()
    with pytest.raises(FileExistsError) as caught:
        narrows.open(tmp_path / "there", "xb")
    assert caught.value.filename == tmp_path / "there"
    with pytest.raises(narrows.TruncatedError):
        narrows.open(tmp_path / "there").read()


def test_an_exception_leaves_no_file_that_looks_whole(data, tmp_path) -> None:
    for mode, target in (("wb", tmp_path / "a"), ("xb", tmp_path / "b"), ("wt", tmp_path / "c"), ("wb", io.BytesIO())):
        with pytest.raises(ZeroDivisionError):
            with narrows.open(target, mode) as file:
                for at in range(0, len(data), 100_000):
                    piece = data[at : at + 100_000]
                    file.write(piece.decode() if mode == "wt" else piece)
                1 / 0
        assert file.closed
        stored = io.BytesIO(target.getvalue()) if isinstance(target, io.BytesIO) else target
        with narrows.open(stored) as reader, pytest.raises(narrows.TruncatedError):
            reader.read()
    file = narrows.open(tmp_path / "d", "wb")
    file.write(b"a part")
    file.abandon()
    file.abandon()
    assert file.closed and file.stats()["raw_bytes"] <= 6
    with pytest.raises(narrows.TruncatedError):
        narrows.open(tmp_path / "d").read()
    with pytest.raises(ZeroDivisionError), narrows.open(io.BytesIO(narrows.compress(b"x"))) as file:
        1 / 0
    assert file.closed


def test_hints(data, tmp_path) -> None:
    lengths = {p: len(stored(data, preset=p)) for p in ("fast", "balanced", "archive")}
    # Under load nothing may be fast enough.
    assert lengths["archive"] < lengths["balanced"] < lengths["fast"] < 1.01 * LENGTH
    assert stored(data[:10_000], encode_rate="1GB/s") and stored(data[:10_000], encode_rate=1e6, preset="archive")
    path = tmp_path / "kept"
    path.write_bytes(b"kept")
    for wrong in (
        {"preset": "best"},
        {"preset": "fast", "policy": "balance"},
        {"encode_rate": 1e6, "policy": "balance"},
        {"encode_rate": "quick"},
        {"encode_rate": 0},
        {"threads": 0},
    ):
        with pytest.raises(narrows.MisuseError):
            narrows.open(path, "wb", **wrong)
    assert path.read_bytes() == b"kept"


def test_the_program_agrees(program, data, tmp_path) -> None:
    (tmp_path / "raw").write_bytes(data)
    subprocess.run([program, "-k", tmp_path / "raw", "-o", tmp_path / "theirs.nrw"], check=True, timeout=60)
    with narrows.open(tmp_path / "theirs.nrw") as file:
        assert file.pread(50, 1_234_567) == data[1_234_567:1_234_617] and file.read() == data
    with narrows.open(tmp_path / "ours.nrw", "wb") as file:
        file.write(data)
    assert subprocess.run([program, "check", tmp_path / "ours.nrw"], stdout=-1, timeout=60).returncode == 0
    ran = subprocess.run([program, "cat", "--range", "1000000-1000099", tmp_path / "ours.nrw"], stdout=-1, timeout=60)
    assert ran.stdout[:99] == data[1_000_000:1_000_099]


def test_closed_files_are_told_as_those_of_io(wire, tmp_path) -> None:
    for mode in ("rb", "wb"):
        file = narrows.open(io.BytesIO(wire), mode)
        file.close()
        for call in (lambda: file.pread(1, 0), lambda: file.size(), lambda: file.seek(0, 2), lambda: file.read1(1)):
            with pytest.raises(ValueError, match="closed"):
                call()
    with narrows.open(io.BytesIO(), "wb") as file:
        for call in (lambda: file.pread(1, 0), lambda: file.size()):
            with pytest.raises(io.UnsupportedOperation):
                call()


def test_a_pipe_is_read_in_order(wire, data) -> None:
    read, write = os.pipe()

    def feed() -> None:
        with os.fdopen(write, "wb") as pipe:
            pipe.write(wire)

    thread = threading.Thread(target=feed)
    thread.start()
    with os.fdopen(read, "rb") as pipe, narrows.open(pipe) as file:
        assert not file.seekable()
        for call in (lambda: file.seek(0), lambda: file.pread(1, 0), lambda: file.size()):
            with pytest.raises(io.UnsupportedOperation):
                call()
        assert file.read() == data
    thread.join(60)


def test_a_forked_process_opens_its_own(wire, tmp_path) -> None:
    script = """
import os, sys, threading, narrows
file = narrows.open(sys.argv[1])
before = file.pread(100, 1000)
stop = []
def read():
    while not stop:
        file.pread(100_000, 100_000)
thread = threading.Thread(target=read)
thread.start()
for _ in range(10):
    child = os.fork()
    if child == 0:
        try:
            file.pread(1, 0)
        except narrows.MisuseError:
            os._exit(7 if narrows.open(sys.argv[1]).pread(100, 1000) == before else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
stop.append(1)
thread.join()
"""
    (tmp_path / "f").write_bytes(wire)
    subprocess.run([sys.executable, "-W", "ignore", "-c", script, str(tmp_path / "f")], timeout=120, check=True)


def test_cycles_are_collected(wire) -> None:
    source = Remote(wire)
    source.file = narrows.open(source)
    source.file.read(10)
    gone = weakref.ref(source)
    del source
    # A thread that collects already makes this call do nothing.
    end = time.monotonic() + 20
    while gone() is not None and time.monotonic() < end:
        gc.collect()
        time.sleep(0.01)
    assert gone() is None


def test_text_at_any_line(tmp_path) -> None:
    lines = [f"Zeile {i}: ä 漢\r\n" for i in range(20_000)]
    with narrows.open(tmp_path / "t.nrw", "wt", encoding="utf-8", newline="") as file:
        file.writelines(lines)
    with narrows.open(tmp_path / "t.nrw", "rt", encoding="utf-8", newline="") as file:
        places = []
        while line := file.readline():
            assert line == lines[len(places)]
            places.append(file.tell())
        for i in (15_000, 3, 19_998, 0):
            file.seek(places[i])
            assert file.readline() == lines[i + 1]
    with narrows.open(tmp_path / "t.nrw", "rt", encoding="utf-8") as file:
        assert file.read(20).count("\n") == 1 and "\r" not in file.read()
    with narrows.open(tmp_path / "t.nrw", "rt", encoding="ascii") as file, pytest.raises(UnicodeDecodeError):
        file.read()


def test_archives(data, tmp_path) -> None:
    with narrows.open(tmp_path / "a.tar.nrw", "wb") as file, tarfile.open(fileobj=file, mode="w|") as tar:
        for i in range(20):
            info = tarfile.TarInfo(f"f{i}")
            info.size = 100_000
            tar.addfile(info, io.BytesIO(data[i * 100_000 :]))
    with narrows.open(tmp_path / "a.tar.nrw") as file, tarfile.open(fileobj=file) as tar:
        for i in (19, 0, 7):
            assert tar.extractfile(f"f{i}").read() == data[i * 100_000 :][:100_000]
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as made:
        for i in range(5):
            made.writestr(f"f{i}", data[i * 1000 :][:1000])
    with narrows.open(io.BytesIO(stored(held.getvalue()))) as file, zipfile.ZipFile(file) as made:
        assert made.testzip() is None and made.read("f3") == data[3000:4000]


def test_pickles(tmp_path) -> None:
    with narrows.open(tmp_path / "p", "wb") as file:
        for value in ({"a": [1] * 1000}, bytes(500_000), "end"):
            pickle.dump(value, file, protocol=5)
    with narrows.open(tmp_path / "p") as file:
        assert [pickle.load(file) for _ in range(3)] == [{"a": [1] * 1000}, bytes(500_000), "end"]


def test_pandas(tmp_path) -> None:
    pandas = pytest.importorskip("pandas")
    with narrows.open(tmp_path / "t.csv.nrw", "wt", newline="") as file:
        csv.writer(file).writerows([["a", "b"], *([i, i / 3] for i in range(30_000))])
    with narrows.open(tmp_path / "t.csv.nrw") as file:
        table = pandas.read_csv(file)
        assert len(table) == 30_000 and table.a.iloc[-1] == 29_999
        file.seek(0)
        assert sum(len(part) for part in pandas.read_csv(file, chunksize=7000)) == 30_000
    with narrows.open(tmp_path / "u.csv.nrw", "wb") as file:
        table.to_csv(file, index=False)
    with narrows.open(tmp_path / "u.csv.nrw", "rt") as file:
        assert pandas.read_csv(file).equals(table)


def test_parquet(tmp_path) -> None:
    pandas, parquet = pytest.importorskip("pandas"), pytest.importorskip("pyarrow.parquet")
    table = pandas.DataFrame({"a": range(10_000)})
    with narrows.open(tmp_path / "t", "wb") as file:
        table.to_parquet(file)
    with narrows.open(tmp_path / "t") as file:
        assert parquet.read_table(file).to_pandas().equals(table)


def test_h5py(tmp_path) -> None:
    h5py, numpy = pytest.importorskip("h5py"), pytest.importorskip("numpy")
    values = numpy.arange(300_000, dtype="f8").reshape(300, 1000)
    with h5py.File(tmp_path / "plain.h5", "w") as made:
        made.create_dataset("x", data=values, chunks=(10, 1000))
    (tmp_path / "h5.nrw").write_bytes(stored((tmp_path / "plain.h5").read_bytes()))
    with narrows.open(tmp_path / "h5.nrw") as file, h5py.File(file, "r") as made:
        assert (made["x"][250:260, ::7] == values[250:260, ::7]).all()
        assert (made["x"][...] == values).all()


def test_fsspec(data, tmp_path) -> None:
    fsspec = pytest.importorskip("fsspec")
    path = str(tmp_path / "f.nrw")
    with fsspec.open(path, "wb", compression="narrows") as file:
        file.write(data)
    assert narrows.open(path).size() == LENGTH
    with fsspec.open(path, "rb", compression="infer") as file:
        file.seek(-100, io.SEEK_END)
        assert file.read() == data[-100:]
    with fsspec.open(path, "rt", compression="infer") as file:
        assert file.readline().encode() == data[: data.index(b"\n") + 1]
    with fsspec.open(path, "at", compression="infer") as file:
        file.write("the last line\n")
    with fsspec.open(path, "rt", compression="infer") as file:
        file.seek(LENGTH)
        assert file.read() == "the last line\n"
    memory = fsspec.filesystem("memory")
    with memory.open("/f.nrw", "wb") as file, narrows.open(file, "wb") as ours:
        ours.write(data)
    with memory.open("/f.nrw", "rb") as file, narrows.open(file) as ours:
        assert ours.pread(100, 2_000_000) == data[2_000_000:2_000_100]


@pytest.mark.parametrize("order", ["fsspec, narrows", "narrows, fsspec", "narrows, pandas", "narrows, fsspec.compression"])
def test_fsspec_knows_the_extension_whichever_is_imported_first(order) -> None:
    pytest.importorskip("fsspec")
    program = f"""
import sys, {order}
import fsspec, narrows
assert fsspec.compression.compr["narrows"] is narrows.open
assert fsspec.utils.infer_compression("f.nrw") == "narrows"
assert not any(type(f).__name__ == "_BehindFsspec" for f in sys.meta_path)
# One that the user registered stays.
fsspec.compression.register_compression("narrows", str, "nrw", force=True)
import narrows._fsspec
narrows._fsspec.register()
assert fsspec.compression.compr["narrows"] is str
"""
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True, timeout=60)


def test_fsspec_is_not_imported_for_others() -> None:
    program = "import sys, narrows; assert 'fsspec' not in sys.modules and 'importlib.metadata' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
