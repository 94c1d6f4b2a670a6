"""How `narrows cp --bwlimit auto` shares a link with a greedy TCP flow: alone, beside it, and after it.

    cargo build --release -p narrows-cli && make lab
    python3 crates/narrows-cli/bench/yielding.py -o bwlimit-auto.json [--narrows PATH] [--lab PATH] [--only NAME,...]

Needs what `narrows-lab link` needs: root, or user namespaces. Both ends are network namespaces, with a link between
them. The copy sends noise to a `narrows serve`; the greedy flow is a socket that is written to without a pause. What
the other end has acknowledged is read from the system twice a second, for both.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import platform
import re
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time

# Name, link, rate in Mbit/s, congestion control of both flows, value of --bwlimit, seconds alone, beside and after.
CASES = [
    ("home", "rate=10mbit,delay=20ms,queue=100ms", 10, "cubic", "auto", (10, 15, 12)),
    ("home, no limit", "rate=10mbit,delay=20ms,queue=100ms", 10, "cubic", "0", (10, 15, 5)),
    ("home, bbr", "rate=10mbit,delay=20ms,queue=100ms", 10, "bbr", "auto", (10, 15, 12)),
    ("slow", "rate=1mbit,delay=20ms,queue=200ms", 1, "cubic", "auto", (15, 20, 15)),
    ("far", "rate=10mbit,delay=100ms,queue=200ms", 10, "cubic", "auto", (15, 15, 20)),
    ("office", "rate=100mbit,delay=10ms,queue=50ms", 100, "cubic", "auto", (10, 15, 10)),
    ("office, no limit", "rate=100mbit,delay=10ms,queue=50ms", 100, "cubic", "0", (10, 15, 5)),
    ("office, short queue", "rate=100mbit,delay=10ms,queue=10ms", 100, "cubic", "auto", (10, 15, 10)),
]
PORT, SINK = 7790, 7791
# TCP_INFO, and where in it the acknowledged bytes are.
TCP_INFO, ACKED_AT = 11, 120
# Time to settle, which is left out of a mean.
SETTLE_S = 5


def serve(narrows: str, folder: str) -> None:
    """The server's side: a server of narrows, and a sink for the greedy flow."""
    sink = socket.create_server(("0.0.0.0", SINK))

    def drain(connection: socket.socket) -> None:
        try:
            while connection.recv(1 << 16):
                pass
        except OSError:
            pass

    def accept() -> None:
        while True:
            threading.Thread(target=drain, args=(sink.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    words = ["serve", "--listen", f"0.0.0.0:{PORT}", "--token-out", "token", "--dir", "there"]
    subprocess.run([narrows, *words], cwd=folder, check=False)


def greedy(server: str, stop: threading.Event) -> socket.socket:
    """A flow that fills the link."""
    connection = socket.create_connection((server, SINK))

    def write() -> None:
        data = os.urandom(1 << 16)
        try:
            while not stop.is_set():
                connection.sendall(data)
        except OSError:
            pass

    threading.Thread(target=write, daemon=True).start()
    return connection


def copied() -> tuple[int, float]:
    """What was acknowledged of the copy, and its round trip in ms."""
    said = subprocess.run(["ss", "-tinH", "dport", "=", str(PORT)], capture_output=True, text=True, check=True).stdout
    trip = re.search(r" rtt:([\d.]+)", said)
    return sum(map(int, re.findall(r"bytes_acked:(\d+)", said))), float(trip[1]) if trip else 0.0


def send(narrows: str, folder: str, limit: str, phases: tuple[float, float, float]) -> None:
    """The client's side: a copy, and the greedy flow for a while. Writes a sample twice a second."""
    server = os.environ["NARROWS_LINK_SERVER"]
    begin, end = phases[0], phases[0] + phases[1]
    words = ["cp", "-q", "--no-memory", "--token-file", "token", "--bwlimit", limit]
    copy = subprocess.Popen([narrows, *words, "noise", f"narrows://{server}:{PORT}/there"], cwd=folder)
    begun, other, acked, stop = time.monotonic(), None, 0, threading.Event()
    while copy.poll() is None and (now := time.monotonic() - begun) < sum(phases):
        if other is None and not stop.is_set() and now >= begin:
            other = greedy(server, stop)
        if other is not None:
            acked = struct.unpack_from("<Q", other.getsockopt(socket.IPPROTO_TCP, TCP_INFO, 232), ACKED_AT)[0]
            if now >= end:
                stop.set()
                # What it has queued is dropped.
                other.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                other.close()
                other = None
        done, trip = copied()
        print(json.dumps([round(now, 2), done, acked, trip]), flush=True)
        time.sleep(0.5)
    copy.terminate()
    copy.wait()


def figures(samples: list[list[float]], mbit: float, phases: tuple[float, float, float]) -> dict[str, object]:
    """Shares of the link in each phase."""
    begin, end, over = phases[0], phases[0] + phases[1], sum(phases)

    def share(of: int, first: float, last: float) -> float | None:
        within = [sample for sample in samples if first <= sample[0] <= last]
        if len(within) < 2:
            return None
        rate = (within[-1][of] - within[0][of]) / (within[-1][0] - within[0][0])
        return round(rate / (mbit * 125e3), 3)

    def trip(first: float, last: float) -> float | None:
        within = [sample[3] for sample in samples if first <= sample[0] <= last]
        return round(statistics.median(within), 1) if within else None

    return {
        "first_3_s": share(1, 0, 3),
        "alone": share(1, 3, begin),
        "beside": share(1, begin + SETTLE_S, end),
        "greedy_beside": share(2, begin + SETTLE_S, end),
        "back_within_5_s": share(1, end, end + SETTLE_S),
        "back": share(1, end + SETTLE_S, over),
        "round_trip_ms": [trip(3, begin), trip(begin + SETTLE_S, end), trip(end + SETTLE_S, over)],
    }


def about(words: list[str]) -> dict[str, object]:
    git = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    models = re.findall(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
    return {
        "command": " ".join(words),
        "commit": git.stdout.strip(),
        "machine": models[0] if models else platform.machine(),
        "cores": os.cpu_count(),
        "kernel": platform.release().split("-")[0],
    }


def main() -> None:
    if sys.argv[1:2] == ["serve"]:
        return serve(*sys.argv[2:4])
    if sys.argv[1:2] == ["send"]:
        narrows, folder, limit, *phases = sys.argv[2:]
        return send(narrows, folder, limit, tuple(map(float, phases)))
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("-o", required=True, type=pathlib.Path, help="result")
    arguments.add_argument("--narrows", default="target/release/narrows", type=pathlib.Path)
    arguments.add_argument("--lab", default="target/release/narrows-lab", type=pathlib.Path)
    arguments.add_argument("--only", help="names of cases")
    asked = arguments.parse_args()
    narrows, me = str(asked.narrows.resolve()), str(pathlib.Path(__file__).resolve())
    result: dict[str, object] = {"about": about(["crates/narrows-cli/bench/yielding.py", "-o", asked.o.name]), "cases": []}
    for name, link, mbit, congestion, limit, phases in CASES:
        if asked.only and name not in asked.only.split(","):
            continue
        with tempfile.TemporaryDirectory() as folder:
            os.mkdir(f"{folder}/there")
            # A file that is sent all the time, in which nothing can be saved.
            with open(f"{folder}/noise", "wb") as noise:
                for _ in range(int(sum(phases) * mbit / 8) + 1):
                    noise.write(os.urandom(1 << 20))
            load = os.getloadavg()[0]
            server = f"{sys.executable} {me} serve {narrows} {folder}"
            words = ["link", "-p", link, "--congestion", congestion, "--server", server, "--server-delay", "2500", "--"]
            words += [sys.executable, me, "send", narrows, folder, limit, *map(str, phases)]
            done = subprocess.run([asked.lab, *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
        samples = [json.loads(line) for line in done.stdout.splitlines()]
        found = figures(samples, mbit, phases)
        case = {"name": name, "link": link, "congestion": congestion, "bwlimit": limit, "seconds": phases, "load": load}
        result["cases"].append({**case, "shares": found, "samples": samples})
        print(name, json.dumps(found), file=sys.stderr, flush=True)
    text = json.dumps(result, indent=1)
    # A sample is a line.
    text = re.sub(r"\[\s+([-\d.]+(?:,\s+[-\d.]+)*)\s+\]", lambda m: "[" + re.sub(r"\s+", " ", m[1]) + "]", text)
    asked.o.write_text(text + "\n")


if __name__ == "__main__":
    main()
