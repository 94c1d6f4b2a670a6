"""What `narrows measure` predicts beside how long `narrows cp` takes, on links that this script makes.

    cargo build --release -p narrows-cli && make lab
    python3 crates/narrows-cli/bench/measure.py --corpus DIR -o measure.json [--narrows PATH] [--lab PATH]
        [--folders json,mail,...] [--links 10,100,1000,10/40,100/40] [--copies 3]
    python3 crates/narrows-cli/bench/measure.py --tables measure.json

Needs root, for network namespaces. Links without a delay are two of them with tbf at both ends, those with one
(RATE/ROUND-TRIP) are `narrows-lab link`. Each cell is a measurement, then copies of the same folder to a server at the
other end, each into a new folder, with fresh caches. Cells of even and odd number are the halves of a chessboard over
folders and links: constants are tuned on the first, figures quoted from the second.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import pathlib
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

MEASURE_S = 10
COMMAND_S = 300
ADDRESSES = ("10.77.0.1", "10.77.0.2")
PORT = 7790


def made_by(command: str, build: str) -> dict[str, Any]:
    """What has to stand beside every figure."""
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    processor = [line for line in open("/proc/cpuinfo", encoding="utf8") if line.startswith("model name")]
    return {
        "command": command,
        "commit": commit.stdout.strip(),
        "build": build,
        "machine": processor[0].split(":")[1].strip() if processor else platform.processor(),
        "cores": os.cpu_count(),
        "kernel": platform.release().split("-")[0],
    }


def tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def veth(mbit: int) -> Iterator[tuple[list[str], list[str], str]]:
    """Two namespaces with a link; the words that run a command in each, and the second's address."""
    names = [f"nm{os.getpid()}{side}" for side in "ab"]
    for name in names:
        subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        ends = ["type", "veth", "peer", "name", "eth0", "netns", names[1]]
        subprocess.run(["ip", "-n", names[0], "link", "add", "eth0", *ends], check=True)
        # 20 ms of queue, as the other benches have.
        shape = ["rate", f"{mbit}mbit", "burst", "64k", "limit", str(max(mbit * 2500, 128 << 10))]
        for name, address in zip(names, ADDRESSES):
            subprocess.run(["ip", "-n", name, "addr", "add", f"{address}/24", "dev", "eth0"], check=True)
            subprocess.run(["ip", "-n", name, "link", "set", "eth0", "up"], check=True)
            subprocess.run(["ip", "-n", name, "link", "set", "lo", "up"], check=True)
            # Large segments would pass a token bucket of 64 KiB in one piece.
            offload = ["ethtool", "-K", "eth0", "tso", "off", "gso", "off", "gro", "off"]
            if shutil.which("ethtool"):
                subprocess.run(["ip", "netns", "exec", name, *offload], check=False, capture_output=True)
            subprocess.run(["tc", "-n", name, "qdisc", "add", "dev", "eth0", "root", "tbf", *shape], check=True)
        near, far = (["ip", "netns", "exec", name] for name in names)
        yield near, far, ADDRESSES[1]
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False)


class Bench:
    def __init__(self, arguments: argparse.Namespace, work: pathlib.Path) -> None:
        self.arguments, self.work = arguments, work
        self.narrows = str(pathlib.Path(arguments.narrows).resolve())
        self.lab = str(pathlib.Path(arguments.lab).resolve())
        self.number = 0

    def environment(self) -> dict[str, str]:
        self.number += 1
        cache = self.work / f"cache{self.number}"
        cache.mkdir()
        return {**os.environ, "XDG_CACHE_HOME": str(cache), "NARROWS_CONFIG": "", "XDG_STATE_HOME": str(self.work)}

    def run(self, words: list[str]) -> tuple[str, float]:
        begun = time.monotonic()
        done = subprocess.run(words, env=self.environment(), capture_output=True, text=True, timeout=COMMAND_S)
        if done.returncode != 0:
            raise RuntimeError(f"{words}: {done.returncode} {done.stderr}")
        return done.stdout, time.monotonic() - begun

    def serve_words(self, address: str, target: pathlib.Path) -> list[str]:
        words = [self.narrows, "serve", "--listen", f"{address}:{PORT}", "--dir", str(target)]
        return [*words, "--token-out", str(self.work / "token"), "--key-file", str(self.work / "key"), "-q"]

    def client(self, near: list[str], address: str, source: pathlib.Path) -> dict[str, Any]:
        place = f"narrows://{address}:{PORT}"
        token = ["--token-file", str(self.work / "token")]
        measure = [*near, self.narrows, "measure", "--json", "--time", str(MEASURE_S), *token, place, str(source)]
        output, whole_s = self.run(measure)
        found = json.loads(output)
        seconds = []
        for _ in range(self.arguments.copies):
            self.number += 1
            copy = [*near, self.narrows, "cp", "-r", "-q", *token, str(source), f"{place}/copy{self.number}"]
            seconds.append(self.run(copy)[1])
            shutil.rmtree(self.work / "target" / f"copy{self.number}", ignore_errors=True)
        del found["link"]["round_trip_s"]["samples"]
        return {"measure_s": whole_s, "found": found, "copies_s": seconds}

    def cell(self, link: str, source: pathlib.Path) -> dict[str, Any]:
        target = self.work / "target"
        target.mkdir(exist_ok=True)
        (self.work / "token").unlink(missing_ok=True)
        for file in source.rglob("*"):
            if file.is_file():
                file.read_bytes()
        rate, _, trip = link.partition("/")
        if not trip:
            with veth(int(rate)) as (near, far, address):
                words = [*far, *self.serve_words(address, target)]
                server = subprocess.Popen(words, env=self.environment(), stdout=subprocess.DEVNULL)
                try:
                    self.await_token()
                    return self.client(near, address, source)
                finally:
                    server.terminate()
                    server.wait()
        out = self.work / "cell.json"
        mine = [sys.executable, __file__, "--client", str(source), "-o", str(out), "--work", str(self.work)]
        mine += ["--narrows", self.narrows, "--lab", self.lab, "--copies", str(self.arguments.copies)]
        serve = " ".join(self.serve_words("$NARROWS_LINK_SERVER", target))
        profile = f"rate={rate}mbit,delay={float(trip) / 2}ms"
        words = [self.lab, "link", "--profile", profile, "--server", serve, "--", *mine]
        subprocess.run(words, env=self.environment(), check=True, timeout=2 * COMMAND_S, stdout=subprocess.DEVNULL)
        return json.loads(out.read_text())

    def await_token(self) -> None:
        for _ in range(200):
            if (self.work / "token").exists():
                return
            time.sleep(0.05)
        raise RuntimeError("the server shows no token")


def half(folder: int, link: int) -> str:
    return "tuning" if (folder + link) % 2 == 0 else "quoted"


def run(arguments: argparse.Namespace) -> None:
    if arguments.client:
        bench = Bench(arguments, pathlib.Path(arguments.work))
        bench.number = int(time.time() * 10) % 10**8
        bench.await_token()
        address = os.environ["NARROWS_LINK_SERVER"]
        pathlib.Path(arguments.output).write_text(json.dumps(bench.client([], address, pathlib.Path(arguments.client))))
        return
    corpus, links = pathlib.Path(arguments.corpus), arguments.links.split(",")
    command = "crates/narrows-cli/bench/measure.py --corpus corpora"
    command += f" --folders {arguments.folders} --links {arguments.links} --copies {arguments.copies}"
    about = made_by(command, arguments.build)
    cells = []
    for i, folder in enumerate(arguments.folders.split(",")):
        for j, link in enumerate(links):
            with tempfile.TemporaryDirectory(prefix="nm-") as work:
                bench = Bench(arguments, pathlib.Path(work))
                load = os.getloadavg()[0]
                try:
                    cell = bench.cell(link, corpus / folder if folder != "all" else corpus)
                except (RuntimeError, subprocess.SubprocessError, OSError) as error:
                    tell(f"{folder} at {link}: {error}")
                    continue
            cell["found"]["folder"]["path"] = folder
            cells.append({"folder": folder, "link": link, "half": half(i, j), "load": load, **cell})
            predicted = cell["found"]["prediction"]["seconds"]
            took = " ".join(f"{s:.2f}" for s in cell["copies_s"])
            tell(f"{folder} at {link}: {predicted['low']:.2f} {predicted['value']:.2f} {predicted['high']:.2f}; {took}")
            pathlib.Path(arguments.output).write_text(json.dumps({"about": about, "cells": cells}, indent=1))


def tables(path: str) -> None:
    """Prints the tables of measure.md."""
    result = json.loads(pathlib.Path(path).read_text())
    cells = result["cells"]

    def within(cells: list[dict[str, Any]]) -> tuple[int, int]:
        hits = total = 0
        for cell in cells:
            predicted = cell["found"]["prediction"]["seconds"]
            hits += sum(predicted["low"] <= s <= predicted["high"] for s in cell["copies_s"])
            total += len(cell["copies_s"])
        return hits, total

    def row(name: str, cells: list[dict[str, Any]]) -> None:
        if not cells:
            return
        hits, total = within(cells)
        ratios = [statistics.median(c["copies_s"]) / c["found"]["prediction"]["seconds"]["value"] for c in cells]
        widths = [c["found"]["prediction"]["seconds"] for c in cells]
        width = statistics.median(math.sqrt(w["high"] / w["low"]) - 1 for w in widths)
        error = statistics.median(abs(r - 1) for r in ratios)
        print(
            f"| {name} | {len(cells)} | {hits} of {total} ({100 * hits / total:.0f} %) | {statistics.median(ratios):.2f} |"
            f" {100 * error:.0f} % | ±{100 * width:.0f} % |"
        )

    print("| cells | number | copies within the interval | copy / prediction, median | error, median | interval, median |")
    print("| --- | --- | --- | --- | --- | --- |")
    chosen: list[tuple[str, Callable[[dict[str, Any]], bool]]] = [
        ("quoted half", lambda c: c["half"] == "quoted"),
        ("tuning half", lambda c: c["half"] == "tuning"),
    ]
    for link in dict.fromkeys(c["link"] for c in cells):
        chosen.append((f"quoted, {link}", lambda c, link=link: c["half"] == "quoted" and c["link"] == link))
    for name, keep in chosen:
        row(name, [c for c in cells if keep(c)])
    print("\n| folder | link | half | predicted | 80 % of copies | copies | plain predicted |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for cell in cells:
        predicted = cell["found"]["prediction"]
        s = predicted["seconds"]
        plain = next(w for w in predicted["copies"] if w["name"] == "plain")["seconds"]["value"]
        copies = ", ".join(f"{t:.2f}" if s["low"] <= t <= s["high"] else f"**{t:.2f}**" for t in cell["copies_s"])
        print(
            f"| {cell['folder']} | {cell['link']} | {cell['half']} | {s['value']:.2f} s | {s['low']:.2f} to"
            f" {s['high']:.2f} s | {copies} s | {plain:.2f} s |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus")
    parser.add_argument("-o", dest="output", default="measure.json")
    parser.add_argument("--narrows", default="target/release/narrows")
    parser.add_argument("--lab", default="target/release/narrows-lab")
    parser.add_argument("--build", default="release")
    parser.add_argument("--folders", default="json,mail,climate,media")
    parser.add_argument("--links", default="10,100,1000,10/40,100/40")
    parser.add_argument("--copies", type=int, default=3)
    parser.add_argument("--tables", metavar="FILE")
    parser.add_argument("--client", help=argparse.SUPPRESS)
    parser.add_argument("--work", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.tables:
        tables(arguments.tables)
    else:
        run(arguments)


if __name__ == "__main__":
    main()
