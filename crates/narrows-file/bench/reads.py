"""Reads at random places of one big file: plain, narrows, zstd with a seek table, squashfs; warm and cold.

usage: reads.py prepare NARROWS FOLDER TREE [--megabytes 384]
       reads.py run NARROWS FOLDER OUT.json [--library FILE] [--module DIR] [--rounds 3] [--warm 100] [--cold 20]

`prepare` makes the file (the first bytes of a tar of TREE) and its stored forms. `run` needs root (loop mounts, FUSE,
/proc/sys/vm/drop_caches) and, for the seek table, Python's pyzstd.

Each read is in a stretch of its own, so that no decoded block serves two reads. Warm: the stored bytes are in memory,
the decoded ones are not. Again: the same reads a second time. Cold: all caches are dropped before each read. Readers
are opened before (their index is read), and every read is compared with the file.
"""

import argparse
import ctypes
import os
import pathlib
import random
import statistics
import subprocess
import sys
import time

from samples import about, quantile, table, turns, write

SIZES = {"4 KiB": 4 << 10, "1 MiB": 1 << 20}
FRAME = 256 << 10


def prepare(narrows, folder, tree, megabytes):
    import pyzstd

    big = folder / "big"
    big.mkdir(parents=True, exist_ok=True)
    with open(big / "data", "wb") as file:
        tar = subprocess.Popen(["tar", "c", "-C", os.path.dirname(tree), os.path.basename(tree)], stdout=subprocess.PIPE)
        left = megabytes << 20
        while left and (piece := tar.stdout.read(min(left, 1 << 20))):
            file.write(piece)
            left -= len(piece)
        tar.kill()
    run = lambda *command: subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    run(narrows, "pack", "-q", "-f", str(big), "-o", str(folder / "big.nrw"))
    run(narrows, "-q", "-f", str(big / "data"), "-o", str(folder / "data.nrw"))
    (folder / "big.sqfs").unlink(missing_ok=True)
    run("mksquashfs", str(big), str(folder / "big.sqfs"), "-quiet", "-no-progress", "-comp", "zstd", "-Xcompression-level", "3")
    with pyzstd.SeekableZstdFile(folder / "data.zst", "wb", level_or_option=3, max_frame_content_size=FRAME) as out:
        out.write((big / "data").read_bytes())
    for name in ["big/data", "big.nrw", "data.nrw", "big.sqfs", "data.zst"]:
        print(name, os.path.getsize(folder / name))


class Plain:
    stored = "big/data"

    def __init__(self, folder, _):
        self.file = os.open(self.path(folder), os.O_RDONLY)

    def path(self, folder):
        return folder / self.stored

    def read(self, at, size):
        return os.pread(self.file, size, at)

    def close(self):
        os.close(self.file)


class Mounted(Plain):
    def __init__(self, folder, asked):
        self.top = folder / "mounted"
        self.top.mkdir(exist_ok=True)
        self.mount(folder, asked)
        super().__init__(folder, asked)

    def close(self):
        super().close()
        subprocess.run(["umount", str(self.top)], check=True)


class Mount(Mounted):
    """narrows mount"""

    stored = "big.nrw"

    def mount(self, folder, asked):
        self.program = subprocess.Popen([asked.narrows, "mount", "-f", str(folder / self.stored), str(self.top)])
        while not os.path.ismount(self.top):
            time.sleep(0.01)
            if self.program.poll() is not None:
                sys.exit("narrows mount ended")

    def path(self, _):
        return self.top / "big/data"

    def close(self):
        super().close()
        self.program.wait(30)


class Squash(Mounted):
    stored = "big.sqfs"

    def mount(self, folder, _):
        subprocess.run(["mount", "-o", "loop,ro", str(folder / self.stored), str(self.top)], check=True)

    def path(self, _):
        return self.top / "data"


class Library:
    """A process with the C library, which lives as long as its reads."""

    stored = "data.nrw"

    def __init__(self, folder, asked):
        self.lib = ctypes.CDLL(asked.library)
        self.lib.narrows_file_open.restype = ctypes.c_void_p
        self.lib.narrows_file_open.argtypes = [ctypes.c_char_p, ctypes.c_void_p]
        self.lib.narrows_file_pread.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint64, ctypes.c_void_p]
        self.lib.narrows_file_close.argtypes = [ctypes.c_void_p]
        self.file = self.lib.narrows_file_open(os.fsencode(folder / self.stored), None)
        if not self.file:
            sys.exit("the library cannot open the file")
        self.buffer = ctypes.create_string_buffer(1 << 20)

    def read(self, at, size):
        got, n = 0, ctypes.c_size_t()
        while got < size:
            if self.lib.narrows_file_pread(self.file, ctypes.addressof(self.buffer) + got, size - got, at + got, ctypes.byref(n)):
                sys.exit("the library cannot read the file")
            if n.value == 0:
                break
            got += n.value
        return ctypes.string_at(self.buffer, size)

    def close(self):
        self.lib.narrows_file_close(self.file)


class Module:
    """A process with the Python module."""

    stored = "data.nrw"

    def __init__(self, folder, asked):
        import narrows

        self.file = narrows.open(folder / self.stored, "rb")

    def read(self, at, size):
        self.file.seek(at)
        return self.file.read(size)

    def close(self):
        self.file.close()


class Seekable(Module):
    stored = "data.zst"

    def __init__(self, folder, _):
        import pyzstd

        self.file = pyzstd.SeekableZstdFile(folder / self.stored, "rb")


class Exec:
    """A process of its own for each read: narrows cat --range."""

    stored = "data.nrw"

    def __init__(self, folder, asked):
        self.command = [asked.narrows, "cat", str(folder / self.stored), "--range"]

    def read(self, at, size):
        return subprocess.run([*self.command, f"{at}-{at + size - 1}"], capture_output=True, check=True).stdout

    def close(self):
        pass


READERS = {"plain": Plain, "narrows mount": Mount, "narrows library": Library, "narrows module": Module, "zstd seekable": Seekable, "squashfs": Squash, "narrows cat, a process each": Exec}


def drop():
    pathlib.Path("/proc/sys/vm/drop_caches").write_text("3")


def places(file, count, seed):
    """As many places as asked for, in any order, each in a stretch of 1 MiB behind which 1 MiB is free."""
    stretches = random.Random(seed).sample(range(os.path.getsize(file) // (2 << 20)), count)
    return [s * (2 << 20) + random.Random(seed + s).randrange(1 << 20) for s in stretches]


def run(asked):
    folder = asked.folder
    if asked.module:
        sys.path.insert(0, asked.module)
    known = about(asked.narrows, ["mksquashfs"])
    known["bytes"] = {r.stored: os.path.getsize(folder / r.stored) for r in READERS.values()}
    data = folder / "big/data"
    subprocess.run(["sync"])
    samples = []

    def read(kind, number, size, state):
        seed = 1000 * number + (size >> 12)
        at = places(data, asked.warm if state == "warm" else asked.cold, seed)
        times = {state: [], "again": []} if state == "warm" else {state: []}
        with open(data, "rb") as file:
            wanted = [os.pread(file.fileno(), size, a) for a in at]
        if state == "warm":
            drop()
            subprocess.run(["cat", str(folder / kind.stored)], stdout=subprocess.DEVNULL)
        reader = kind(folder, asked)
        try:
            reader.read(places(data, asked.warm + 1, seed)[-1], 1)
            for name, kept in times.items():
                for a, right in zip(at, wanted):
                    if state == "cold":
                        drop()
                    begun = time.perf_counter()
                    got = reader.read(a, size)
                    kept.append(time.perf_counter() - begun)
                    if got != right:
                        sys.exit(f"{kind.__name__}: other bytes at {a}")
        finally:
            reader.close()
        return times

    optional = {"narrows library": asked.library, "narrows module": asked.module}
    readers = {name: r for name, r in READERS.items() if optional.get(name, True)}
    for label, size in SIZES.items():
        for state in ["warm", "cold"]:
            ways = {name: lambda number, k=k: read(k, number, size, state) for name, k in readers.items()}
            for number, name, times in turns(asked.rounds, ways):
                samples += [{"reader": name, "size": label, "state": s, "round": number, "us": [round(t * 1e6, 1) for t in v]} for s, v in times.items()]
    write(asked.out, known, samples)
    rows = []
    for label in SIZES:
        for state in ["warm", "again", "cold"]:
            for name in readers:
                of = [s["us"] for s in samples if (s["reader"], s["size"], s["state"]) == (name, label, state)]
                all_us = [t for us in of for t in us]
                rounds = [statistics.median(us) for us in of]
                rows.append([label, state, name, f"{statistics.median(all_us):.0f} ({min(rounds):.0f}-{max(rounds):.0f})", f"{quantile(all_us, 0.99):.0f}", len(all_us)])
    table(["read", "state", "reader", "p50 us (of rounds)", "p99 us", "reads"], rows)
    print({name: size for name, size in known["bytes"].items()})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="part", required=True)
    first = parts.add_parser("prepare")
    first.add_argument("narrows")
    first.add_argument("folder", type=pathlib.Path)
    first.add_argument("tree")
    first.add_argument("--megabytes", type=int, default=384)
    second = parts.add_parser("run")
    second.add_argument("narrows")
    second.add_argument("folder", type=pathlib.Path)
    second.add_argument("out")
    second.add_argument("--library", help="libnarrows.so: adds a reader that uses it")
    second.add_argument("--module", help="folder with the narrows module: adds a reader that uses it")
    second.add_argument("--rounds", type=int, default=3)
    second.add_argument("--warm", type=int, default=100)
    second.add_argument("--cold", type=int, default=20)
    asked = parser.parse_args()
    if asked.part == "prepare":
        prepare(asked.narrows, asked.folder, asked.tree.rstrip("/"), asked.megabytes)
    else:
        run(asked)


if __name__ == "__main__":
    main()
