"""What the benches of stored files share: the machine, commands that are timed, ways that take turns, tables."""

from __future__ import annotations

import json
import os
import pathlib
import platform
import re
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any


def about(narrows: str, programs: Sequence[str] = ()) -> dict[str, Any]:
    """The machine, commit and command, printed and returned. Folders of this machine are left out of the command."""
    here = pathlib.Path(__file__).parent
    git = subprocess.run(["git", "describe", "--always", "--abbrev=12"], cwd=here, capture_output=True, text=True)
    cpu = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
    known = {
        "command": shlex.join(["python3", *(re.sub(r"(^|=).*/(?=[^/])", r"\1", word.rstrip("/")) for word in sys.argv)]),
        "commit": os.environ.get("NARROWS_COMMIT") or git.stdout.strip(),
        "machine": cpu[1] if cpu else platform.machine(),
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "load": os.getloadavg(),
        "versions": {name: version(command) for name, command in {"narrows": [narrows, "--version"], **{p: [p, "--version"] for p in programs}}.items()},
    }
    for name, value in known.items():
        print(f"{name}: {value}")
    return known


def version(command: list[str]) -> str:
    if command[0] == "mksquashfs":
        command = ["mksquashfs", "-version"]
    try:
        said = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        return "none"
    return (said.stdout or said.stderr).partition("\n")[0].strip("* ")


def timed(command: str, cwd: str | None = None, ok: Sequence[int] = (0,)) -> dict[str, float]:
    """Runs a line of bash: seconds from its start to its end, and those of processors."""
    before, begun = os.times(), time.monotonic()
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    seconds, after = time.monotonic() - begun, os.times()
    if done.returncode not in ok:
        sys.exit(f"{command}: status {done.returncode}: {done.stderr.decode(errors='replace')}")
    return {"s": seconds, "cpu": after.children_user + after.children_system - before.children_user - before.children_system}


def turns(rounds: int, ways: dict[str, Callable[[int], Any]]) -> Iterator[tuple[int, str, Any]]:
    """Every way in every round; the order of a round is that of the one before, reversed."""
    for number in range(rounds):
        for name in list(ways) if number % 2 == 0 else reversed(list(ways)):
            yield number, name, ways[name](number)


def quantile(values: Sequence[float], q: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


def spread(values: Sequence[float], scale: float = 1, digits: int = 2) -> str:
    """Median, and in brackets the least and the greatest."""
    low, middle, high = (scale * f(values) for f in (min, statistics.median, max))
    return f"{middle:.{digits}f} ({low:.{digits}f}-{high:.{digits}f})"


def table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    print()
    print("| " + " | ".join(head) + " |")
    print("|" + " --- |" * len(head))
    for row in rows:
        print("| " + " | ".join(str(cell) for cell in row) + " |")
    print(flush=True)


def write(path: str, known: dict[str, Any], samples: Any) -> None:
    pathlib.Path(path).write_text(json.dumps({"about": known, "samples": samples}) + "\n")


def mixed(corpus: str, out: str) -> None:
    """All pools of a corpus in pieces of 1 MiB that take turns, so that each part of the file is like the whole."""
    pools = []
    for pool in sorted(p for p in pathlib.Path(corpus).iterdir() if p.is_dir()):
        pools.append(b"".join(f.read_bytes() for f in sorted(pool.rglob("*")) if f.is_file()))
    with open(out, "wb") as file:
        for at in range(0, max(map(len, pools)), 1 << 20):
            for pool in pools:
                file.write(pool[at : at + (1 << 20)])
