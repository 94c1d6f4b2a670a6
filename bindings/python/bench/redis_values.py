#!/usr/bin/env python3
"""Values in Redis, with and without compression: bytes stored, commands in a second, and the client's CPU.

    redis_values.py --corpus DIR [--rounds N] [-o FILE]

Four kinds of values from DIR: JSON rows and documents, lines of logs alone and ten at a time. Every other
one trains the dictionaries, the rest are stored and read, one command at a time over a Unix socket, all
ways in turn. "zlib" and "zstd" are what django-redis has (levels 6 and 3), zstd with contexts that are
kept and with a checksum, as Narrows has one. Needs redis-server and the packages narrows, redis and
zstandard.
"""

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import narrows
import narrows.redis
import redis
import zstandard

LEVEL = 3
# Of zstd's trainer, as that of Narrows.
DICTIONARY = 16 << 10
VALUES_MAX = 2000
MEASURED = ("set_per_s", "get_per_s", "set_cpu_us", "get_cpu_us")


def kinds(corpus: Path) -> dict[str, list[bytes]]:
    rows = (corpus / "json/amazon_cellphones.ndjson").read_bytes().splitlines()[1:]
    statuses = json.loads((corpus / "json/twitter.json").read_bytes())["statuses"]
    events = json.loads((corpus / "json/github_events.json").read_bytes())
    documents = [json.dumps(d).encode() for d in (*statuses, *events)]
    lines = (corpus / "logs/OpenStack_2k.log").read_bytes().splitlines()
    access = (corpus / "logs/apache_access.log").read_bytes().splitlines()
    tens = [b"\n".join(access[i : i + 10]) for i in range(0, len(access), 10)]
    return {"JSON rows": rows, "JSON documents": documents, "log lines": lines, "log, ten lines": tens}


class Plain:
    """The plain library with functions around each value."""

    def __init__(self, path: str, encode: Callable[[bytes], bytes], decode: Callable[[bytes], bytes]) -> None:
        self.client, self.encode, self.decode = redis.Redis(unix_socket_path=path), encode, decode

    def set(self, key: str, value: bytes) -> None:
        self.client.set(key, self.encode(value))

    def get(self, key: str) -> bytes:
        return self.decode(self.client.get(key))


def ways(path: str, samples: list[bytes]) -> dict[str, Any]:
    def same(value: bytes) -> bytes:
        return value

    def zstd(trained: Any) -> Plain:
        compressor = zstandard.ZstdCompressor(level=LEVEL, dict_data=trained, write_checksum=True)
        decompressor = zstandard.ZstdDecompressor(dict_data=trained)
        return Plain(path, compressor.compress, decompressor.decompress)

    def ours(dictionary: narrows.Dictionary | None) -> narrows.redis.Redis:
        return narrows.redis.Redis(unix_socket_path=path, values=narrows.Values(level=LEVEL, dictionary=dictionary))

    made = {
        "plain": Plain(path, same, same),
        "zlib": Plain(path, lambda v: zlib.compress(v, 6), zlib.decompress),
        "zstd": zstd(None),
        "narrows": ours(None),
    }
    made["zstd, dictionary"] = zstd(zstandard.train_dictionary(DICTIONARY, samples, level=LEVEL))
    if dictionary := narrows.train(samples):
        made["narrows, dictionary"] = ours(dictionary)
    return made


def measure(path: str, values: list[bytes], rounds: int) -> dict[str, Any]:
    samples, rest = values[::2][:VALUES_MAX], values[1::2][:VALUES_MAX]
    made = ways(path, samples)
    plain = redis.Redis(unix_socket_path=path)
    stored: dict[str, int] = {}
    memory: dict[str, int] = {}
    took: dict[str, dict[str, list[float]]] = {name: {} for name in made}
    for turn in range(rounds):
        for name, way in made.items():
            plain.flushall()
            times = [(time.perf_counter(), time.process_time())]
            for i, value in enumerate(rest):
                way.set(f"value:{i}", value)
            times.append((time.perf_counter(), time.process_time()))
            for i, value in enumerate(rest):
                assert way.get(f"value:{i}") == value
            times.append((time.perf_counter(), time.process_time()))
            for what, begin, end in zip(("set", "get"), times, times[1:], strict=False):
                took[name].setdefault(f"{what}_per_s", []).append(len(rest) / (end[0] - begin[0]))
                took[name].setdefault(f"{what}_cpu_us", []).append((end[1] - begin[1]) / len(rest) * 1e6)
            if turn == rounds - 1:
                stored[name] = sum(plain.strlen(f"value:{i}") for i in range(len(rest)))
                memory[name] = sum(plain.memory_usage(f"value:{i}") for i in range(len(rest)))
    return {
        "values": len(rest),
        "raw_bytes": sum(map(len, rest)),
        "trained_on": len(samples),
        "ways": {
            name: {
                "stored_bytes": stored[name],
                "server_memory_bytes": memory[name],
                **{what: [round(value, 1) for value in taken] for what, taken in took[name].items()},
            }
            for name in made
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--note", help="kept in the output")
    arguments = parser.parse_args()
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/s"
        command = ["redis-server", "--port", "0", "--unixsocket", path, "--save", "", "--dir", folder]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:
            try:
                while not Path(path).exists():
                    assert server.poll() is None
                    time.sleep(0.01)
                version = redis.Redis(unix_socket_path=path).info("server")["redis_version"]
                for kind, values in kinds(arguments.corpus).items():
                    results[kind] = found = measure(path, values, arguments.rounds)
                    raw, count = found["raw_bytes"], found["values"]
                    print(f"\n{kind}: {count} values of {raw / count:.0f} bytes")
                    for name, way in found["ways"].items():
                        share = f"{100 * way['stored_bytes'] / raw:.1f} %"
                        set_s, get_s, set_us, get_us = (statistics.median(way[what]) for what in MEASURED)
                        print(f"  {name:<20} {share:>8} {set_s:>8.0f} set/s {get_s:>8.0f} get/s {set_us:>6} {get_us:>6} us of CPU")
            finally:
                server.kill()
    versions = {"narrows": narrows.__version__, "redis": redis.__version__, "redis-server": version}
    versions |= {"zstandard": zstandard.__version__, "python": platform.python_version()}
    if arguments.output:
        commit = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
        about = {
            "command": f"bindings/python/bench/redis_values.py --corpus DIR --rounds {arguments.rounds}",
            "commit": commit.stdout.strip(),
            "machine": f"{platform.machine()}, {os.cpu_count()} cores, Linux {platform.release().split('-')[0]}",
            "load": os.getloadavg(),
            "versions": versions,
            "note": arguments.note,
        }
        text = json.dumps({"about": about, "kinds": results}, indent=1)
        # The samples of one figure on one line.
        text = re.sub(r"\[[\d\s.,]*\]", lambda m: " ".join(m[0].split()), text)
        arguments.output.write_text(text + "\n")


if __name__ == "__main__":
    main()
