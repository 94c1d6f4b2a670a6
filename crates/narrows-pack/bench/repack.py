"""Size of a tree that was packed at balanced and repacked, against archive at once; what a second repack reads.

usage: repack.py NARROWS OUT.json TREE...

Times are kept, but are no figures: this may run beside other work. What is unpacked at the end is compared.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "narrows-file/bench"))
from samples import about, table, timed, write


def traced(command, file):
    """Bytes that a command reads of a file, and the calls."""
    log = f"{file}.strace"
    subprocess.run(["strace", "-f", "-y", "-qq", "-e", "trace=read,pread64,preadv,readv,mmap,copy_file_range,sendfile", "-o", log, *command], check=True, capture_output=True)
    mine = [line for line in open(log, errors="replace") if f"<{os.path.realpath(file)}" in line]
    os.unlink(log)
    counts = [int(found[1]) for line in mine if (found := re.search(r"= (\d+)$", line.strip()))]
    return sum(counts), len(mine)


def main():
    narrows, out, trees = sys.argv[1], sys.argv[2], sys.argv[3:]
    known = about(narrows)
    samples, rows = [], []
    for tree in map(pathlib.Path, trees):
        work = pathlib.Path(tempfile.mkdtemp(prefix="narrows-repack.", dir=os.environ.get("WORK")))
        pack = lambda name, mode: timed(f"{narrows} pack -q -f --mode {mode} {tree} -o {work}/{name}")
        times = {"balanced": pack("x.nrw", "balanced"), "archive": pack("a.nrw", "archive")}
        balanced, archive = (os.path.getsize(work / name) for name in ["x.nrw", "a.nrw"])
        times["repack"] = timed(f"{narrows} repack -q --mode archive {work}/x.nrw")
        size, before = os.path.getsize(work / "x.nrw"), (work / "x.nrw").stat()
        read, calls = traced([narrows, "repack", "-q", str(work / "x.nrw")], str(work / "x.nrw"))
        same = (work / "x.nrw").stat().st_ino == before.st_ino
        (work / "back").mkdir()
        timed(f"{narrows} unpack -q {work}/x.nrw -C {work}/back && diff -rq --no-dereference {tree} {work}/back/{tree.name}")
        samples.append({"tree": tree.name, "balanced": balanced, "archive": archive, "repacked": size, "second_run_bytes": read, "second_run_calls": calls, "same_file": same, "times": times})
        rows.append([tree.name, balanced, archive, size, f"{size / archive - 1:+.2%}", f"{read} in {calls}", same])
        print(*rows[-1], flush=True)
        shutil.rmtree(work)
    write(out, known, samples)
    table(["tree", "balanced", "archive at once", "repacked", "over archive", "second run reads", "file left alone"], rows)


if __name__ == "__main__":
    main()
