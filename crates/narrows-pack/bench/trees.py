"""Packs and unpacks trees with narrows and its peers, interleaved, keeps all samples as JSON, and says who is beaten.

usage: trees.py NARROWS OUT.json ROUNDS TREE...

The sources are in the page cache: they are read before. WORK names the folder to write to (/tmp); HEAVY=0 leaves out
the slowest ways, which otherwise have one round. Each way's tree is compared with its source in the first round.
Times are until the programs have ended, with the bytes in the page cache.
"""

import math
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "narrows-file/bench"))
from samples import about, spread, table, timed, write

narrows, out, rounds, trees = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4:]
heavy = os.environ.get("HEAVY", "1") == "1"
HEAVY = ["narrows archive", "tar + zstd -19 --long=27 -T0", "tar + xz -T0", "mksquashfs zstd -15", "mksquashfs zstd -22", "zpaq -m3"]
MODES = ["narrows fast", "narrows balanced", "narrows archive"]


def ways_of(top, work):
    x = f"{work}/x"
    squash = f"rm -f {x}; mksquashfs {top} {x} -quiet -no-progress -keep-as-directory -comp zstd"
    unsquash = f"unsquashfs -q -n -d u {x}"
    zstd = lambda options: (f"tar c {top} | zstd -q {options} -T0 -f -o {x}", f"zstd -dcq --long=27 {x} | tar x")
    pack = lambda options: (f"{narrows} pack {top} -q -f -o {x} {options}", f"{narrows} unpack -q {x}")
    ways = {
        "narrows fast": pack("--mode fast"),
        "narrows balanced": pack(""),
        "tar + zstd -1 -T0": zstd("-1"),
        "tar + zstd -3 -T0": zstd("-3"),
        "tar + zstd -6 -T0": zstd("-6"),
        "tar + zstd -9 -T0": zstd("-9"),
        "mksquashfs zstd -3": (f"{squash} -Xcompression-level 3", unsquash),
        "narrows archive": pack("--mode archive"),
        "tar + zstd -19 --long=27 -T0": zstd("-19 --long=27"),
        "tar + xz -T0": (f"tar c {top} | xz -T0 -c >{x}", f"xz -dc -T0 {x} | tar x"),
        "mksquashfs zstd -15": (f"{squash} -b 1M", unsquash),
        "mksquashfs zstd -22": (f"{squash} -b 1M -Xcompression-level 22", unsquash),
    }
    if shutil.which("zpaq"):
        ways["zpaq -m1"] = (f"rm -f {x}.zpaq {x}; zpaq add {x}.zpaq {top} -m1 && mv {x}.zpaq {x}", f"ln -sf {x} {x}.zpaq; zpaq x {x}.zpaq -to u")
        ways["zpaq -m3"] = (f"rm -f {x}.zpaq {x}; zpaq add {x}.zpaq {top} -m3 && mv {x}.zpaq {x}", f"ln -sf {x} {x}.zpaq; zpaq x {x}.zpaq -to u")
    return {name: way for name, way in ways.items() if heavy or name not in HEAVY}


def verdict(points, mode, other):
    """Whether a peer is no larger and no slower, by medians."""
    size, seconds = points[mode]["bytes"], points[mode][other]
    beaten = [(p["bytes"] / size, p[other] / seconds, name) for name, p in points.items() if name not in MODES and p["bytes"] <= size and p[other] <= seconds]
    if not beaten:
        return "yes"
    # The one that is ahead most.
    by_size, by_time, name = min(beaten, key=lambda b: b[0] * b[1])
    return f"no, dominated by {name}: {by_size:.2f} of the size in {by_time:.2f} of the time"


def equal_time(points, mode):
    """Size over that of tar and zstd at the same time, on the line between its two levels."""
    size, seconds = points[mode]["bytes"], points[mode]["pack"]
    levels = sorted((p["pack"], p["bytes"]) for name, p in points.items() if name.startswith("tar + zstd"))
    if seconds <= levels[0][0]:
        return f"{size / levels[0][1]:.2f} (faster than all)"
    best = levels[0][1]
    for (t0, b0), (t1, b1) in zip(levels, levels[1:]):
        if t0 <= seconds:
            best = min(best, b0)
        if t0 < seconds < t1:
            part = math.log(seconds / t0) / math.log(t1 / t0)
            best = min(best, b0 + part * (b1 - b0))
    if seconds >= levels[-1][0]:
        best = min(best, levels[-1][1])
    return f"{size / best:.2f}"


def main():
    known = about(narrows, ["zstd", "xz", "mksquashfs", "tar"])
    samples, verdicts = [], []
    for tree in trees:
        work = tempfile.mkdtemp(dir=os.environ.get("WORK", "/tmp"))
        parent, top = os.path.split(os.path.realpath(tree))
        subprocess.run(f"tar c {top} | cat >/dev/null", cwd=parent, shell=True)
        ways, of = ways_of(top, work), {}
        for number in range(rounds):
            for name in list(ways) if number % 2 == 0 else reversed(list(ways)):
                if number > 0 and name in HEAVY:
                    continue
                pack, unpack = ways[name]
                p = timed(pack, cwd=parent)
                size = os.path.getsize(f"{work}/x")
                to = tempfile.mkdtemp(dir=work)
                u = timed(unpack, cwd=to)
                if number == 0:
                    got = next(pathlib.Path(to).rglob(top)) if not os.path.exists(f"{to}/{top}") else f"{to}/{top}"
                    if subprocess.run(["diff", "-rq", "--no-dereference", f"{parent}/{top}", str(got)], stdout=subprocess.DEVNULL).returncode:
                        print(f"{name}: another tree came back", flush=True)
                shutil.rmtree(to)
                sample = {"tree": top, "way": name, "round": number, "bytes": size, "pack": p, "unpack": u}
                samples.append(sample)
                of.setdefault(name, []).append(sample)
                write(out, known, samples)
        shutil.rmtree(work)
        points = {name: {"bytes": s[0]["bytes"], **{k: statistics.median(x[k]["s"] for x in s) for k in ["pack", "unpack"]}} for name, s in of.items()}
        rows = []
        for name, s in sorted(of.items(), key=lambda item: points[item[0]]["pack"]):
            seconds = lambda key: spread([x[key]["s"] for x in s])
            cpu = lambda key: f"{statistics.median(x[key]['cpu'] for x in s):.2f}"
            rows.append([top, name, points[name]["bytes"], seconds("pack"), cpu("pack"), seconds("unpack"), cpu("unpack")])
        table(["tree", "way", "bytes", "pack s", "CPU s", "unpack s", "CPU s"], rows)
        for mode in MODES:
            if mode in points:
                verdicts.append([top, mode, verdict(points, mode, "pack"), verdict(points, mode, "unpack"), equal_time(points, mode)])
    table(["tree", "mode", "on the front of pack time and size", "of unpack time and size", "size over tar and zstd at equal time"], verdicts)


main()
