"""Files onto disks of given rates: `narrows --adapt` against plain bytes and zstd, until the disk has the bytes.

usage: disk.py NARROWS OUT.json [--rates 20,100,400,0] [--rounds 5] [--seconds 2.5] [--folder /dev/shm] FILE...

The disk is a loop device with ext4 whose image lies in FOLDER (memory, so that no real disk has a say), and
which the kernel throttles to RATE MB/s (blkio of cgroup version 1; 0 is unthrottled). It needs root. Of each FILE
as much is taken as fills the disk for SECONDS when written plain. What `--adapt` wrote is decoded and compared.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

from samples import about, spread, table, turns, write

THROTTLE = pathlib.Path("/sys/fs/cgroup/blkio/blkio.throttle.write_bps_device")
LEN = 512 << 20


def said(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


class Disk:
    def __init__(self, folder):
        self.image, self.top = f"{folder}/narrows-disk.{os.getpid()}", f"{folder}/narrows-mounted.{os.getpid()}"
        with open(self.image, "wb") as file:
            file.truncate(LEN)
        self.device = said("losetup", "-f", "--show", self.image)
        # Tables that the kernel would write later, in the background, would take their part of the rate.
        said("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard", self.device)
        os.mkdir(self.top)
        said("mount", self.device, self.top)
        number = os.stat(self.device).st_rdev
        self.number = f"{os.major(number)}:{os.minor(number)}"

    def throttle(self, mb_per_s):
        THROTTLE.write_text(f"{self.number} {mb_per_s * 1_000_000}\n")

    def close(self):
        self.throttle(0)
        said("umount", self.top)
        said("losetup", "-d", self.device)
        os.unlink(self.image)
        os.rmdir(self.top)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("narrows")
    parser.add_argument("out")
    parser.add_argument("files", nargs="+")
    parser.add_argument("--rates", default="20,100,400,0")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.5)
    parser.add_argument("--folder", default="/dev/shm")
    parser.add_argument("--real", metavar="DIR", help="also a folder on a real disk, as it is")
    parser.add_argument("--ways", help="names of ways with commas; default: all")
    asked = parser.parse_args()
    known = about(asked.narrows, ["zstd"])
    disk = Disk(asked.folder)
    samples, rows = [], []
    source = f"{asked.folder}/narrows-source.{os.getpid()}"
    forms = {
        "plain": "cp SOURCE TO",
        "narrows --adapt": f"{asked.narrows} --adapt -f --json SOURCE -o TO",
        "narrows --mode fast": f"{asked.narrows} --mode fast -f SOURCE -o TO",
        "narrows": f"{asked.narrows} -f SOURCE -o TO",
        "zstd -1": "zstd -q -f -1 SOURCE -o TO",
        "zstd -3": "zstd -q -f -3 SOURCE -o TO",
        "zstd -1 -T0": "zstd -q -f -1 -T0 SOURCE -o TO",
        "zstd -3 -T0": "zstd -q -f -3 -T0 SOURCE -o TO",
    }
    forms = {name: form for name, form in forms.items() if not asked.ways or name in asked.ways.split(",")}

    def run(name, top):
        to = f"{top}/x"
        command = forms[name].replace("SOURCE", source).replace("TO", to).split()
        pathlib.Path(to).unlink(missing_ok=True)
        said("sync", "-f", top)
        before, begun = os.times(), time.monotonic()
        done = subprocess.run(command, capture_output=True, text=True)
        written = time.monotonic() - begun
        if done.returncode:
            sys.exit(f"{name}: {done.stderr}")
        after = os.times()
        file = os.open(to, os.O_RDONLY)
        os.fsync(file)
        sample = {"s": time.monotonic() - begun, "until_exit_s": written, "bytes": os.fstat(file).st_size}
        os.close(file)
        sample["cpu"] = after.children_user + after.children_system - before.children_user - before.children_system
        if name == "narrows --adapt":
            sample["summary"] = json.loads((done.stderr or done.stdout).strip().splitlines()[-1])
        return sample

    try:
        disks = [(rate, disk.top) for rate in map(int, filter(None, asked.rates.split(",")))] + [("real", asked.real)] * bool(asked.real)
        for rate, top in disks:
            for path in asked.files:
                limited = rate if rate != "real" else 0
                raw = open(path, "rb").read(int(limited * 1e6 * asked.seconds) or -1)
                pathlib.Path(source).write_bytes(raw)
                disk.throttle(limited)
                for number, name, sample in turns(asked.rounds, {name: lambda _, name=name: run(name, top) for name in forms}):
                    sample |= {"rate_mb_per_s": rate, "file": os.path.basename(path), "raw": len(raw), "way": name, "round": number}
                    samples.append(sample)
                    if name == "narrows --adapt" and number == 0:
                        disk.throttle(0)
                        compared = subprocess.run(["bash", "-o", "pipefail", "-c", f"{asked.narrows} cat {top}/x | cmp - {source}"])
                        if compared.returncode:
                            sys.exit("--adapt stored something else")
                        disk.throttle(limited)
                rows += figures([s for s in samples if s["rate_mb_per_s"] == rate and s["file"] == os.path.basename(path)], list(forms))
                pathlib.Path(top, "x").unlink(missing_ok=True)
        table(["MB/s", "file", "way", "s", "of plain's speed", "of the best", "bytes, ratio", "CPU s"], rows)
    finally:
        disk.close()
        pathlib.Path(source).unlink(missing_ok=True)
        write(asked.out, known, samples)


def figures(samples, ways):
    """A row for each way; the share of plain's speed is a median over rounds."""
    by = {name: sorted((s for s in samples if s["way"] == name), key=lambda s: s["round"]) for name in ways}
    middle = {name: statistics.median(s["s"] for s in of) for name, of in by.items()}
    rows = []
    for name, of in by.items():
        plain = statistics.median(p["s"] / s["s"] for p, s in zip(by["plain"], of)) if "plain" in by else 0
        # The best of the others is chosen afterwards, by its median.
        best = min((s for other, s in middle.items() if "narrows" not in other), default=0) / middle[name]
        rate, file, raw = of[0]["rate_mb_per_s"] or "none", of[0]["file"], of[0]["raw"]
        size = statistics.median(s["bytes"] for s in of)
        cpu = statistics.median(s["cpu"] for s in of)
        rows.append([rate, file, name, spread([s["s"] for s in of], digits=3), f"{plain:.2f}", f"{best:.2f}", f"{size:.0f}, {raw / size:.2f}", f"{cpu:.2f}"])
        print(*rows[-1], flush=True)
    return rows


if __name__ == "__main__":
    main()
