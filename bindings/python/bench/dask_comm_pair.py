"""One comm of ``narrows://`` against one of ``tcp://``: messages with one array, and round trips of tiny messages.

    sudo target/python-venv/bin/python bindings/python/bench/dask_comm_pair.py --corpus DIR [--rates 100mbit,1gbit,10gbit,none]
        [--rounds N] [--megabytes N] -o RESULT.json

As ``dask_comm.py``, without scheduler and tasks: two hosts, a link between them, and the schemes in turn. ``loopback``
is a rate too: both ends on one host. Needs root.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import pathlib
import statistics
import subprocess
import sys
import time
from typing import Any

from dask_comm import NET, PREFIX, about, block, hosts, shape

SCHEMES = ["tcp", "narrows"]
PINGS = 50


async def serve(address: str) -> None:
    from distributed.comm import CommClosedError, listen

    async def answer(comm: Any) -> None:
        try:
            while True:
                message = await comm.read()
                await comm.write(message if isinstance(message, int) else "taken")
        except CommClosedError:
            pass

    async with listen(address, answer):
        await asyncio.Event().wait()


async def measure(arguments: argparse.Namespace, addresses: dict[str, str], rate: str) -> list[dict[str, Any]]:
    from distributed.comm import connect
    from distributed.protocol import to_serialize

    results = []
    megabytes = arguments.megabytes or {"100mbit": 8, "1gbit": 32}.get(rate, 64)
    for kind in ("climate", "random"):
        comms = {scheme: await connect(address, timeout=30) for scheme, address in addresses.items()}
        array = block(kind, arguments.corpus, 1000, int(megabytes * 250), 0)
        seconds: dict[str, list[float]] = {scheme: [] for scheme in comms}
        pings: dict[str, list[float]] = {scheme: [] for scheme in comms}
        for round_ in range(arguments.rounds + 1):
            for scheme in list(comms)[:: 1 if round_ % 2 else -1]:
                comm = comms[scheme]
                begun = time.perf_counter()
                await comm.write({"x": to_serialize(array)})
                await comm.read()
                took = [time.perf_counter() - begun]
                for i in range(PINGS):
                    begun = time.perf_counter()
                    await comm.write(i)
                    await comm.read()
                    took.append(time.perf_counter() - begun)
                if round_:
                    seconds[scheme].append(took[0])
                    pings[scheme] += took[1:]
        plain = seconds[SCHEMES[0]]
        for scheme, own in seconds.items():
            row = {
                "rate": rate,
                "data": kind,
                "megabytes": megabytes,
                "scheme": scheme,
                "seconds": [round(s, 6) for s in own],
                "median_s": round(statistics.median(own), 6),
                "share": round(statistics.median(p / s for p, s in zip(plain, own)), 3),
                "best": round(min(plain) / min(own), 3),
                "ping_p50_us": round(1e6 * statistics.median(pings[scheme])),
                "ping_p95_us": round(1e6 * statistics.quantiles(pings[scheme], n=20)[-1]),
                "sent": getattr(comms[scheme], "sent", None),
            }
            results.append(row)
            print({k: v for k, v in row.items() if k not in ("seconds", "sent")}, file=sys.stderr, flush=True)
        for comm in comms.values():
            await comm.close()
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", help="folder with the benchmark data")
    parser.add_argument("--rates", default="100mbit,1gbit,10gbit,none,loopback")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--megabytes", type=float, help="length of the array; default: 8 to 64, by the rate")
    parser.add_argument("-o", "--output", help="file for the result as JSON")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        asyncio.run(serve(arguments.serve))
    elif arguments.inside:
        print(json.dumps(asyncio.run(measure(arguments, **json.loads(arguments.inside)))))
    else:
        results: list[dict[str, Any]] = []
        with hosts(2):
            for rate in arguments.rates.split(","):
                shape(2, "none" if rate == "loopback" else rate)
                far = 0 if rate == "loopback" else 1
                addresses = {scheme: f"{scheme}://{NET}{far + 1}:{9100 + i}" for i, scheme in enumerate(SCHEMES)}
                enter = ["ip", "netns", "exec"]
                run = [sys.executable, sys.argv[0]]
                servers = [
                    subprocess.Popen([*enter, f"{PREFIX}{far}", *run, "--serve", address])
                    for address in addresses.values()
                ]
                try:
                    task = json.dumps({"addresses": addresses, "rate": rate})
                    command = [*enter, f"{PREFIX}0", sys.executable, *sys.argv, "--inside", task]
                    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
                    results += json.loads(done.stdout.splitlines()[-1])
                finally:
                    for server in servers:
                        server.kill()
                        server.wait()
        if arguments.output:
            text = json.dumps({"about": about(), "results": results}, indent=1)
            pathlib.Path(arguments.output).write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
