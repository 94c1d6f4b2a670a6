"""`narrows cp` beside `narrows cp --images`, on links that this script makes.

    cargo build --release -p narrows-cli
    python3 crates/narrows-cli/bench/images.py --corpus DIR -o bench-images.json [--narrows PATH]
        [--folders media,photos] [--links 1,10,100] [--rounds 5]
    python3 crates/narrows-cli/bench/images.py --table bench-images.json

Needs root, for network namespaces with tbf at both ends. The folder `photos` has the JPEG images of all pools, `album`
eight photos that Pillow makes of the largest one by turning and mirroring it, the others are pools of the corpus. Both ways of a round follow each other, in turns, with fresh caches; `again` is a copy
that remembers the link from the one before.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

from measure import PORT, made_by, tell, veth

COMMAND_S = 600
WAYS: dict[str, list[str]] = {"plain": [], "images": ["--images"], "again": ["--images"]}


class Bench:
    def __init__(self, narrows: str, work: pathlib.Path) -> None:
        self.narrows, self.work, self.number = narrows, work, 0

    def environment(self, cache: str) -> dict[str, str]:
        return {**os.environ, "XDG_CACHE_HOME": cache, "NARROWS_CONFIG": "", "XDG_STATE_HOME": str(self.work)}

    def copy(self, near: list[str], place: str, source: pathlib.Path, way: str, cache: str) -> dict[str, Any]:
        self.number += 1
        name = f"copy{self.number}"
        words = [*near, self.narrows, "cp", "-r", "--json", *WAYS[way], "--token-file", str(self.work / "token")]
        begun = time.monotonic()
        done = subprocess.run(
            [*words, f"{source}/", f"{place}/{name}"],
            env=self.environment(cache),
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
        )
        seconds = time.monotonic() - begun
        target = self.work / "target" / name
        if done.returncode != 0:
            raise RuntimeError(f"{words}: {done.returncode} {done.stderr}")
        subprocess.run(["diff", "-r", str(source), str(target)], check=True)
        shutil.rmtree(target)
        said = json.loads(done.stdout or done.stderr.splitlines()[-1])
        return {"way": way, "seconds": seconds, "wire_bytes": said["wire_bytes"], "mix": said["mix"]}

    def cell(self, mbit: int, source: pathlib.Path, rounds: int) -> list[dict[str, Any]]:
        target = self.work / "target"
        target.mkdir(exist_ok=True)
        token = self.work / "token"
        token.unlink(missing_ok=True)
        with veth(mbit) as (near, far, address):
            words = [*far, self.narrows, "serve", "--listen", f"{address}:{PORT}", "--dir", str(target), "-q"]
            words += ["--token-out", str(token), "--key-file", str(self.work / "key")]
            server = subprocess.Popen(words, env=self.environment(str(self.work)), stdout=subprocess.DEVNULL)
            try:
                while not token.exists():
                    time.sleep(0.05)
                samples = []
                for round_ in range(rounds):
                    ways = [["plain"], ["images", "again"]]
                    for pair in ways if round_ % 2 == 0 else reversed(ways):
                        with tempfile.TemporaryDirectory(prefix="ni-") as cache:
                            for way in pair:
                                place = f"narrows://{address}:{PORT}"
                                sample = self.copy(near, place, source, way, cache)
                                samples.append({"round": round_, "load": os.getloadavg()[0], **sample})
                return samples
            finally:
                server.terminate()
                server.wait()


def photos(corpus: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    folder.mkdir()
    for file in sorted(corpus.rglob("*.jp*g")):
        shutil.copy(file, folder)
    return folder


def album(corpus: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    from PIL import Image, ImageOps

    folder.mkdir()
    with Image.open(corpus / "media/canon_hdr_NO.jpg") as photo:
        for i in range(8):
            turned = photo.rotate(i % 4 * 90, expand=True)
            turned = ImageOps.mirror(turned) if i > 3 else turned
            turned.save(folder / f"photo{i}.jpg", quality=92, progressive=False)
    return folder


def run(arguments: argparse.Namespace) -> None:
    corpus = pathlib.Path(arguments.corpus).resolve()
    command = "crates/narrows-cli/bench/images.py --corpus corpora"
    command += f" --folders {arguments.folders} --links {arguments.links} --rounds {arguments.rounds}"
    about = made_by(command, arguments.build)
    cells = []
    for mbit in map(int, arguments.links.split(",")):
        for folder in arguments.folders.split(","):
            with tempfile.TemporaryDirectory(prefix="ni-") as name:
                work = pathlib.Path(name)
                made = {"photos": photos, "album": album}.get(folder)
                source = made(corpus, work / folder) if made else corpus / folder
                bench = Bench(str(pathlib.Path(arguments.narrows).resolve()), work)
                samples = bench.cell(mbit, source, arguments.rounds)
            raw_bytes = sum(int(row["raw_bytes"]) for row in samples[0]["mix"])
            cells.append({"folder": folder, "mbit": mbit, "raw_bytes": raw_bytes, "samples": samples})
            tell(line(cells[-1]))
            pathlib.Path(arguments.output).write_text(json.dumps({"about": about, "cells": cells}, indent=1) + "\n")


def line(cell: dict[str, Any]) -> str:
    def median(way: str, what: str) -> float:
        return statistics.median(s[what] for s in cell["samples"] if s["way"] == way)

    seconds = {way: median(way, "seconds") for way in WAYS}
    wire = {way: median(way, "wire_bytes") / 1e6 for way in WAYS}
    parts = [f"{seconds[way]:.2f} s, {wire[way]:.2f} MB" for way in WAYS]
    return f"| {cell['folder']} | {cell['mbit']} Mbit/s | {' | '.join(parts)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus")
    parser.add_argument("-o", dest="output", default="bench-images.json")
    parser.add_argument("--narrows", default="target/release/narrows")
    parser.add_argument("--build", default="release")
    parser.add_argument("--folders", default="media,photos")
    parser.add_argument("--links", default="1,10,100")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--table", metavar="FILE")
    arguments = parser.parse_args()
    if arguments.table:
        print("| folder | link | `cp` | `cp --images` | the same again |\n| --- | --- | --- | --- | --- |")
        for cell in json.loads(pathlib.Path(arguments.table).read_text())["cells"]:
            print(line(cell))
    else:
        run(arguments)


if __name__ == "__main__":
    sys.exit(main())
