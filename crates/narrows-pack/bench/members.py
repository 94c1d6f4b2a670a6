"""One member of an archive of 100,000 small files, from exec until it is written: narrows, tar with zstd, squashfs.

usage: members.py prepare NARROWS FOLDER CORPUS [--count 100000]
       members.py run NARROWS FOLDER OUT.json [--rounds 20]

The files are pieces of 200 to 6,000 bytes of the files of CORPUS, in folders of 1,000. `run` needs root. What is
read is compared. tar reads on average half of the archive, so it has three rounds. Cold: caches are dropped before.
"""

import argparse
import os
import pathlib
import random
import shutil
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "narrows-file/bench"))
from samples import about, quantile, spread, table, turns, write


def prepare(narrows, folder, corpus, count):
    tree = folder / "small"
    shutil.rmtree(tree, ignore_errors=True)
    # Two hundred pieces in turn of each source, so that neighbours resemble each other as in real folders.
    sources = [f.read_bytes() for f in sorted(corpus.rglob("*")) if f.is_file() and f.stat().st_size > 8000 and f.suffix != ".md"]
    made, dice = 0, random.Random(1)
    while made < count:
        source = dice.choice(sources)
        for _ in range(min(200, count - made)):
            if made % 1000 == 0:
                (tree / f"{made // 1000:03}").mkdir(parents=True)
            at, size = dice.randrange(len(source) - 6000), dice.randrange(200, 6000)
            (tree / f"{made // 1000:03}" / f"{made:06}.txt").write_bytes(source[at : at + size])
            made += 1
    run = lambda line: subprocess.run(["bash", "-o", "pipefail", "-c", line], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    run(f"{narrows} pack -q -f small -o small.nrw")
    run("rm -f small.sqfs; mksquashfs small small.sqfs -quiet -no-progress -comp zstd -Xcompression-level 3 -keep-as-directory")
    run("tar c small | zstd -q -3 -T0 -f -o small.tar.zst")
    for name in ["small.nrw", "small.sqfs", "small.tar.zst"]:
        print(name, os.path.getsize(folder / name))


def drop():
    pathlib.Path("/proc/sys/vm/drop_caches").write_text("3")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="part", required=True)
    first = parts.add_parser("prepare")
    first.add_argument("narrows")
    first.add_argument("folder", type=pathlib.Path)
    first.add_argument("corpus", type=pathlib.Path)
    first.add_argument("--count", type=int, default=100_000)
    second = parts.add_parser("run")
    second.add_argument("narrows")
    second.add_argument("folder", type=pathlib.Path)
    second.add_argument("out")
    second.add_argument("--rounds", type=int, default=20)
    asked = parser.parse_args()
    if asked.part == "prepare":
        return prepare(asked.narrows, asked.folder, asked.corpus, asked.count)
    known = about(asked.narrows, ["zstd", "mksquashfs", "tar"])
    folder, narrows = asked.folder, asked.narrows
    known["bytes"] = {name: os.path.getsize(folder / name) for name in ["small.nrw", "small.sqfs", "small.tar.zst"]}
    count = sum(len(files) for _, _, files in os.walk(folder / "small"))
    for name in ["view", "squash"]:
        (folder / name).mkdir(exist_ok=True)
    program = subprocess.Popen([narrows, "mount", "-f", str(folder / "small.nrw"), str(folder / "view")])
    while not os.path.ismount(folder / "view"):
        time.sleep(0.01)
        if program.poll() is not None:
            sys.exit("narrows mount ended")
    subprocess.run(["mount", "-o", "loop,ro", str(folder / "small.sqfs"), str(folder / "squash")], check=True)
    out = f"/dev/shm/narrows-member.{os.getpid()}"
    lines = {
        "narrows unpack": [narrows, "unpack", "-q", "small.nrw", "PATH", "-C", out],
        "unsquashfs": ["unsquashfs", "-q", "-n", "-f", "-d", out, "small.sqfs", "PATH"],
        "cat in narrows mount": ["cat", "view/PATH"],
        "cat in squashfs mount": ["cat", "squash/PATH"],
        "narrows mount, cat, umount": ["bash", "-c", f"{narrows} mount small.nrw once && cat once/PATH && umount once"],
        "squashfs mount, cat, umount": ["bash", "-c", "mount -o loop,ro small.sqfs once && cat once/PATH && umount once"],
        "tar --zstd -x": ["tar", "--zstd", "-xf", "small.tar.zst", "--occurrence=1", "-C", out, "PATH"],
    }
    (folder / "once").mkdir(exist_ok=True)
    samples = []

    def run(name, number, state):
        if name.startswith("tar") and number >= 3:
            return None
        at = random.Random(f"{number} {state}").randrange(count)
        path = f"small/{at // 1000:03}/{at:06}.txt"
        right = (folder / path).read_bytes()
        os.makedirs(out)
        if state == "cold":
            drop()
        begun = time.perf_counter()
        done = subprocess.run([word.replace("PATH", path) for word in lines[name]], cwd=folder, stdin=subprocess.DEVNULL, capture_output=True)
        seconds = time.perf_counter() - begun
        got = done.stdout if "cat" in name else pathlib.Path(out, path).read_bytes()
        if done.returncode or got != right:
            sys.exit(f"{name} {path}: status {done.returncode}, {len(got)} bytes: {done.stderr.decode()}")
        shutil.rmtree(out)
        return seconds

    try:
        for state in ["warm", "cold"]:
            if state == "warm":
                subprocess.run("cat small.*", cwd=folder, shell=True, stdout=subprocess.DEVNULL)
            rounds = asked.rounds if state == "warm" else max(3, asked.rounds // 2)
            for number, name, seconds in turns(rounds, {name: lambda r, n=name: run(n, r, state) for name in lines}):
                if seconds is not None:
                    samples.append({"way": name, "state": state, "round": number, "s": seconds})
    finally:
        subprocess.run(["umount", str(folder / "view"), str(folder / "squash")])
        program.wait(30)
        shutil.rmtree(out, ignore_errors=True)
        write(asked.out, known, samples)
    rows = []
    for state in ["warm", "cold"]:
        for name in lines:
            of = [s["s"] for s in samples if (s["way"], s["state"]) == (name, state)]
            rows.append([state, name, spread(of, 1000, 1), f"{quantile(of, 0.95) * 1000:.1f}", len(of)])
    table(["caches", "way", "ms, median (range)", "p95 ms", "runs"], rows)
    print(known["bytes"])


if __name__ == "__main__":
    main()
