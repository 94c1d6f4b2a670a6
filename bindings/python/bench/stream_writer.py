"""The Python writer against the engine alone: goodput of 64 KiB writes, as a share of the goodput of
the engine's driver over the same bytes.

    make python-wheel && target/python-venv/bin/pip install --force-reinstall --no-deps target/wheels/narrows-*.whl
    target/python-venv/bin/python bindings/python/bench/stream_writer.py [--megabytes N] [--rounds N] [--file FILE] [--json]

Both write to the same kind of sink: a pipe or a socket pair whose other end another process reads
and discards, or /dev/null. Each round runs both, in alternating order. The results are medians; the
share is the median of the rounds' shares. ``best`` is the share of the fastest rounds of each,
``cpu`` that of the CPU times: on a machine with other load they say more.
"""

import argparse
import json
import os
import platform
import random
import shlex
import socket
import statistics
import subprocess
import sys
import time

import narrows
from narrows import _narrows

WRITE = 64 << 10
POLICIES = ["balance", "fixed:lz4", "fixed:zstd:level=1", "fixed:zstd:level=3"]
READER = "import os\nwhile os.read(0, 1 << 20): pass"


def sample(length: int) -> bytes:
    """Lines of a log, with a tenth of incompressible bytes."""
    chance = random.Random(1)
    pieces = []
    for i in range(4000):
        pieces.append(
            b"".join(
                b"%010d INFO worker-%d served /item/%06x in %d us\n"
                % (i * 100 + j, chance.randrange(16), chance.randrange(1 << 24), chance.randrange(100_000))
                for j in range(chance.randrange(20, 200))
            )
        )
        pieces.append(chance.randbytes(chance.randrange(1200)))
    part = b"".join(pieces)
    return (part * (length // len(part) + 1))[:length]


class Sink:
    """Discards bytes as fast as they can be read."""

    def __init__(self, kind: str) -> None:
        self.child = None
        if kind == "null":
            self.descriptor, self.link = os.open("/dev/null", os.O_WRONLY), "file"
            return
        if kind == "pipe":
            read, self.descriptor = os.pipe()
            self.link = "file"
        else:
            here, there = socket.socketpair()
            read, self.descriptor, self.link = there.detach(), here.detach(), "unix"
        self.child = subprocess.Popen([sys.executable, "-S", "-c", READER], stdin=read)
        os.close(read)
        time.sleep(0.05)  # Lets the reader start.

    def close(self) -> None:
        os.close(self.descriptor)
        if self.child is not None:
            self.child.wait(60)


def by_python(data: bytes, policy: str, kind: str) -> float:
    sink = Sink(kind)
    view = memoryview(data)
    begun = time.perf_counter()
    if sink.link == "unix":
        file = narrows.wrap_socket(socket.socket(fileno=os.dup(sink.descriptor)), policy=policy)
        write = file.sendall
    else:
        file = narrows.open(f"/dev/fd/{sink.descriptor}", "wb", policy=policy)
        write = file.write
    for at in range(0, len(data), WRITE):
        write(view[at : at + WRITE])
    file.close()
    seconds = time.perf_counter() - begun
    sink.close()
    return seconds


def by_engine(data: bytes, policy: str, kind: str) -> float:
    sink = Sink(kind)
    seconds = _narrows.drive(data, policy, None, os.dup(sink.descriptor), sink.link)
    sink.close()
    return seconds


def machine() -> str:
    model = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo") as info:
            model = next(line.split(":")[1].strip() for line in info if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return f"{model}, {os.cpu_count()} cores, Linux {platform.release().split('-')[0]}, Python {platform.python_version()}"


def commit() -> str:
    here = os.path.dirname(os.path.abspath(__file__))
    ran = subprocess.run(["git", "-C", here, "describe", "--always", "--dirty"], capture_output=True, text=True)
    return ran.stdout.strip() or "unknown"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--file", help="data instead of the generated")
    parser.add_argument("--sinks", default="pipe,socket,null")
    parser.add_argument("--policies", default=",".join(POLICIES), help="separated by commas")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    length = arguments.megabytes << 20
    if arguments.file:
        with open(arguments.file, "rb") as file:
            data = file.read(length)
    else:
        data = sample(length)
    about = {"machine": machine(), "commit": commit(), "command": shlex.join(["stream_writer.py", *sys.argv[1:]])}
    if not arguments.json:
        for name, value in about.items():
            print(f"{name}: {value}")
        print(f"{'sink':8}{'policy':22}{'engine MB/s':>12}{'python MB/s':>12}{'share':>8}{'best':>7}{'cpu':>7}  shares of the rounds")
    rows = []
    for kind in arguments.sinks.split(","):
        for policy in arguments.policies.split(","):
            times: dict[str, list[float]] = {"engine": [], "python": []}
            cpu: dict[str, list[float]] = {"engine": [], "python": []}
            for i in range(arguments.rounds + 1):
                runs = [("engine", by_engine), ("python", by_python)]
                for name, run in runs if i % 2 else reversed(runs):
                    before = time.process_time()
                    seconds = run(data, policy, kind)
                    if i > 0:  # The first round warms up.
                        times[name].append(seconds)
                        cpu[name].append(time.process_time() - before)
            shares = [e / p for e, p in zip(times["engine"], times["python"])]
            rates = {name: len(data) / 1e6 / statistics.median(t) for name, t in times.items()}
            share = statistics.median(shares)
            best = min(times["engine"]) / min(times["python"])
            cpu_share = statistics.median(cpu["engine"]) / statistics.median(cpu["python"])
            rows.append(
                {
                    "sink": kind,
                    "policy": policy,
                    "engine_bytes_per_s": rates["engine"] * 1e6,
                    "python_bytes_per_s": rates["python"] * 1e6,
                    "share": share,
                    "best_share": best,
                    "cpu_share": cpu_share,
                    "shares": shares,
                }
            )
            if not arguments.json:
                spread = " ".join(f"{s:.2f}" for s in shares)
                figures = f"{rates['engine']:12.0f}{rates['python']:12.0f}{share:8.3f}{best:7.2f}{cpu_share:7.2f}"
                print(f"{kind:8}{policy:22}{figures}  {spread}", flush=True)
    if arguments.json:
        print(json.dumps({**about, "bytes": len(data), "write_bytes": WRITE, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
