#!/usr/bin/env python3
"""One-shot calls against python-zstandard, interleaved: medians of CPU time.

    one_shot.py [--rounds N]

"one-shot" is zstandard.compress and zstandard.decompress; "kept" is a ZstdCompressor and a
ZstdDecompressor that are made once, with a checksum, as Narrows has one. "values" is narrows.Values,
which is kept too, and its speed against them. Needs the packages narrows and zstandard.
"""

import argparse
import random
import statistics
import time
from collections.abc import Callable

import narrows
import zstandard

LEVEL = 3
# Length of the data and calls per round.
SIZES = ((100, 1000), (1024, 1000), (64 << 10, 50), (16 << 20, 1))


def lines(length: int) -> bytes:
    chance, out = random.Random(7), bytearray()
    while len(out) < length:
        level = chance.choice([b"INFO", b"WARN", b"DEBUG"])
        numbers = (chance.randrange(8), chance.randrange(1 << 20), chance.randrange(10_000))
        out += b"%010d %s worker-%d served /index/%x in %d us\n" % (len(out), level, *numbers)
    return bytes(out[:length])


def medians(calls: dict[str, Callable[[], object]], count: int, rounds: int) -> dict[str, float]:
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            begun = time.process_time()
            for _ in range(count):
                call()
            taken[name].append((time.process_time() - begun) / count)
    return {name: statistics.median(times) * 1e6 for name, times in taken.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    compressor = zstandard.ZstdCompressor(level=LEVEL, write_checksum=True)
    decompressor = zstandard.ZstdDecompressor()
    values = narrows.Values(level=LEVEL)
    print(f"{'bytes':>9} {'call':<10} {'narrows us':>11} {'one-shot us':>12} {'kept us':>9} {'values us':>10} "
          f"{'speed of one-shot':>18} {'of kept':>8} {'values of kept':>15}")
    for length, count in SIZES:
        data = lines(length)
        wire, other, value = narrows.compress(data, level=LEVEL), compressor.compress(data), values.encode(data)
        calls: dict[str, tuple[Callable[[], object], ...]] = {
            "compress": (
                lambda data=data: narrows.compress(data, level=LEVEL),
                lambda data=data: zstandard.compress(data, LEVEL),
                lambda data=data: compressor.compress(data),
                lambda data=data: values.encode(data),
            ),
            "decompress": (
                lambda wire=wire: narrows.decompress(wire),
                lambda other=other: zstandard.decompress(other),
                lambda other=other: decompressor.decompress(other),
                lambda value=value: values.decode(value),
            ),
        }
        for name, four in calls.items():
            ours, alone, kept, ours_kept = medians(dict(zip("nokv", four, strict=True)), count, rounds).values()
            print(f"{length:>9} {name:<10} {ours:>11.2f} {alone:>12.2f} {kept:>9.2f} {ours_kept:>10.2f} "
                  f"{alone / ours:>18.2f} {kept / ours:>8.2f} {kept / ours_kept:>15.2f}")


if __name__ == "__main__":
    main()
