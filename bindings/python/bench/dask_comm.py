"""``narrows://`` against ``tcp://`` as Dask's users feel it: rechunk, transpose and sum, shuffle, tensordot,
and data to and from the client, over links that this script makes. Needs root.

    make python-wheel && target/python-venv/bin/pip install --force-reinstall --no-deps target/wheels/narrows-*.whl
    target/python-venv/bin/python bindings/python/bench/dask_comm.py --corpus DIR [--rates 100mbit,1gbit,10gbit,none]
        [--workers 1,2,4] [--rounds N] [--megabytes N] [--cases shuffle,...] [--schemes tcp,tcp+lz4,tcp+zstd,narrows]
        -o RESULT.json

Every host is a network namespace: one for the scheduler and the client, one for each worker, behind one
bridge. Each host's device has the rate both ways (tbf); ``none`` is an unshaped one. All schemes have their
clusters at the same time and take turns in each round, in alternating order; a share is the median over the
rounds of the time of ``tcp`` over that of the scheme, so more than 1 is faster. ``best`` compares the fastest
rounds: on a machine with other load it says more. ``climate`` is data of the corpus, ``random`` cannot shrink.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import pathlib
import platform
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

PREFIX = "ndc"
NET = "10.78.0."
BURST = "256kb"
QUEUE = "20ms"
# Of the corpus' fields those that are longer than any block, so that repeating one gives nothing away.
FIELDS = ["CanESM2_tasmax_day_0-180.f32", "eraint_u.f32", "CanESM2_pr_stations.f32"]


# --- hosts and links ---


def sh(command: str, check: bool = True) -> None:
    subprocess.run(shlex.split(command), check=check, stderr=None if check else subprocess.DEVNULL)


@contextlib.contextmanager
def hosts(count: int) -> Iterator[None]:
    """``count`` hosts behind a bridge; host i is NET(i+1)."""
    names = [f"{PREFIX}{i}" for i in range(count)]
    try:
        sh(f"ip netns add {PREFIX}sw")
        sh(f"ip -n {PREFIX}sw link add br0 type bridge")
        sh(f"ip -n {PREFIX}sw link set br0 up")
        for i, name in enumerate(names):
            sh(f"ip netns add {name}")
            sh(f"ip link add eth0 netns {name} type veth peer name p{i} netns {PREFIX}sw")
            sh(f"ip -n {PREFIX}sw link set p{i} master br0 up")
            sh(f"ip -n {name} addr add {NET}{i + 1}/24 dev eth0")
            sh(f"ip -n {name} link set eth0 up")
            sh(f"ip -n {name} link set lo up")
        yield
    finally:
        for name in [*names, f"{PREFIX}sw"]:
            sh(f"ip netns del {name}", check=False)


def shape(count: int, rate: str) -> None:
    for i in range(count):
        for space, device in ((f"{PREFIX}{i}", "eth0"), (f"{PREFIX}sw", f"p{i}")):
            sh(f"tc -n {space} qdisc del dev {device} root", check=False)
            if rate != "none":
                sh(f"tc -n {space} qdisc add dev {device} root tbf rate {rate} burst {BURST} latency {QUEUE}")


# --- clusters ---


class Cluster:
    """A scheduler on host 0 and a worker on each other host."""

    def __init__(self, scheme: str, workers: int, port: int) -> None:
        protocol, _, compression = scheme.partition("+")
        self.address = f"{protocol}://{NET}1:{port}"
        environment = {
            **os.environ,
            "DASK_DISTRIBUTED__COMM__COMPRESSION": compression or "None",
            # The network, not the disk, is measured.
            "DASK_DISTRIBUTED__P2P__STORAGE__DISK": "False",
            # Tasks run where they are planned to, so that rounds transfer the same.
            "DASK_DISTRIBUTED__SCHEDULER__WORK_STEALING": "False",
            "OMP_NUM_THREADS": "1",
        }
        run = [sys.executable, "-m", "distributed.cli"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "env": environment}
        scheduler = ["dask_scheduler", "--host", self.address, "--no-dashboard", "--dashboard-address", ":0"]
        self.processes = [self.start(0, run, scheduler, quiet)]
        for i in range(workers):
            worker = ["dask_worker", self.address, "--no-nanny", "--nthreads", "1", "--no-dashboard"]
            worker += ["--memory-limit", "0", "--host", f"{protocol}://{NET}{i + 2}", "--name", str(i)]
            self.processes.append(self.start(i + 1, run, worker, quiet))

    @staticmethod
    def start(host: int, run: list[str], arguments: list[str], options: dict[str, Any]) -> subprocess.Popen[bytes]:
        module, *rest = arguments
        run = [*run[:-1], f"{run[-1]}.{module}"]
        return subprocess.Popen(["ip", "netns", "exec", f"{PREFIX}{host}", *run, *rest], **options)

    def stop(self) -> None:
        for process in reversed(self.processes):
            process.terminate()
        for process in self.processes:
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


# --- work, in the client's process on host 0 ---


def block(kind: str, corpus: str, rows: int, columns: int, seed: int) -> Any:
    """A block of float32, made on a worker."""
    import numpy

    count = rows * columns
    if kind == "random":
        return numpy.random.default_rng(seed).integers(0, 1 << 32, count, dtype="u4").reshape(rows, columns).view("f4")
    field = numpy.fromfile(pathlib.Path(corpus) / "climate" / "raw" / FIELDS[seed % len(FIELDS)], dtype="<f4")
    return numpy.resize(numpy.roll(field, 9973 * seed), count).reshape(rows, columns)


def same(data: Any, turn: int) -> Any:
    return data


def array(kind: str, corpus: str, megabytes: float, client: Any) -> Any:
    """A square array whose chunks are spread over the workers."""
    import dask.array
    from distributed import wait

    parts = 4
    side = int((megabytes * 1e6 / 4) ** 0.5) // parts
    names = sorted(client.scheduler_info(n_workers=-1)["workers"])

    def part(i: int, j: int) -> Any:
        # The same place in every cluster; rows, and pairs across the diagonal, lie on different workers.
        worker = names[j % len(names)]
        made = client.submit(block, kind, corpus, side, side, parts * i + j, workers=[worker], pure=False)
        return dask.array.from_delayed(made, (side, side), dtype="f4")

    rows = [[part(i, j) for j in range(parts)] for i in range(parts)]
    made = dask.array.block(rows).persist(client=client)
    wait(made)
    return made


def cases(kind: str, corpus: str, megabytes: float, client: Any, workers: int) -> dict[str, Callable[[], Any]]:
    import dask.dataframe
    import numpy
    import pandas
    from distributed import wait

    table: dict[str, Callable[[], Any]] = {}
    local = block(kind, corpus, 1000, int(megabytes * 1e6 / 4 / 1000), 1)

    def to_and_fro() -> None:
        future = client.scatter(local, hash=False)
        back = client.submit(lambda x: x[::-1].copy(), future, pure=False).result()
        assert back.shape == local.shape

    table["client"] = to_and_fro
    if workers < 2:
        return table
    x = array(kind, corpus, megabytes, client)
    clean = dask.array.nan_to_num if kind == "random" else (lambda a: a)
    side = x.shape[0]

    turn = itertools.count()

    def fresh() -> Any:
        # Of new names, or what is left of the last round would be taken.
        return x.map_blocks(same, next(turn), dtype=x.dtype)

    def rechunk() -> None:
        wait(fresh().rechunk((x.chunks[0][0] // 2, side)).persist(client=client))

    def transpose_sum() -> None:
        y = fresh()
        clean(y + y.T).sum().compute(scheduler=client)

    def tensordot() -> None:
        y = fresh()
        wait(dask.array.tensordot(y[: side // 2], y[:, : side // 2], axes=1).persist(client=client))

    table |= {"rechunk": rechunk, "transpose+sum": transpose_sum, "tensordot": tensordot}
    rows = int(megabytes * 1e6 / 20)

    def part(i: int) -> Any:
        values = block(kind, corpus, 1, 3 * (rows // 8), i).reshape(3, -1)
        key = numpy.random.default_rng(i).integers(0, 1000, values.shape[1])
        return pandas.DataFrame({"key": key, "a": values[0], "b": values[1], "c": values[2]})

    frame = dask.dataframe.from_map(part, range(8)).persist()
    wait(frame)

    def shuffle() -> None:
        wait(frame.map_partitions(same, next(turn)).shuffle("key", shuffle_method="p2p").persist())

    table["shuffle"] = shuffle
    return table


def measure(arguments: argparse.Namespace, addresses: dict[str, str], workers: int, rate: str) -> list[dict[str, Any]]:
    """All cases at one rate, the schemes in turn."""
    from distributed import Client

    results = []
    megabytes = arguments.megabytes or {"100mbit": 16.0, "1gbit": 64.0}.get(rate, 128.0)
    names = arguments.cases.split(",") if arguments.cases else None

    def chosen(case: str) -> bool:
        return names is None or case in names

    clients = {scheme: Client(address, set_as_default=False, timeout=60) for scheme, address in addresses.items()}
    try:
        for client in clients.values():
            client.wait_for_workers(workers, timeout=90)
        for kind in arguments.kinds.split(","):
            tables = {}
            for scheme, client in clients.items():
                with client.as_current():
                    tables[scheme] = cases(kind, arguments.corpus, megabytes, client, workers)
            for case in filter(chosen, next(iter(tables.values()))):
                samples: dict[str, list[float]] = {scheme: [] for scheme in clients}
                for round_ in range(arguments.rounds + 1):
                    order = list(clients) if round_ % 2 else list(clients)[::-1]
                    for scheme in order:
                        with clients[scheme].as_current():
                            begun = time.perf_counter()
                            tables[scheme][case]()
                            seconds = time.perf_counter() - begun
                        if round_:
                            samples[scheme].append(seconds)
                for scheme, seconds_ in samples.items():
                    plain = samples[arguments.schemes.split(",")[0]]
                    results.append(
                        {
                            "rate": rate,
                            "workers": workers,
                            "data": kind,
                            "megabytes": megabytes,
                            "case": case,
                            "scheme": scheme,
                            "seconds": [round(s, 5) for s in seconds_],
                            "median_s": round(statistics.median(seconds_), 5),
                            "spread": round((max(seconds_) - min(seconds_)) / statistics.median(seconds_), 3),
                            "share": round(statistics.median(p / s for p, s in zip(plain, seconds_)), 3),
                            "best": round(min(plain) / min(seconds_), 3),
                        }
                    )
                    print_row(results[-1])
            tables.clear()
    finally:
        for client in clients.values():
            client.close(10)
    return results


def print_row(row: dict[str, Any]) -> None:
    place = f"{row['rate']:>8} {row['workers']} workers {row['data']:8} {row['case']:14} {row['scheme']:9}"
    times = f"{row['median_s']:8.3f} s  spread {row['spread']:5.0%}"
    print(f"{place} {times}  share {row['share']:6.3f}  best {row['best']:6.3f}", file=sys.stderr, flush=True)


# --- the whole ---


def commit() -> str:
    here = pathlib.Path(__file__).parent
    found = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=here, capture_output=True, text=True)
    return found.stdout.strip()


def about() -> dict[str, Any]:
    import distributed

    import narrows

    return {
        "command": shlex.join(["python", *sys.argv]),
        "commit": commit(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Linux {platform.release()}",
        "load": os.getloadavg(),
        "versions": {"python": platform.python_version(), "distributed": distributed.__version__},
        "narrows": narrows.__version__,
    }


def write(path: str, results: list[dict[str, Any]]) -> None:
    text = json.dumps({"about": about(), "results": results}, indent=1)
    pathlib.Path(path).write_text(text + "\n", encoding="utf-8")


def available(scheme: str) -> bool:
    module = {"lz4": "lz4.block", "zstd": "zstandard", "snappy": "snappy"}.get(scheme.partition("+")[2])
    if module is None:
        return True
    try:
        __import__(module)
    except ImportError:
        print(f"{scheme} is left out: there is no {module}", file=sys.stderr)
        return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", required=True, help="folder with the benchmark data")
    parser.add_argument("--rates", default="100mbit,1gbit,10gbit,none")
    parser.add_argument("--workers", default="1,2,4")
    parser.add_argument("--kinds", default="climate,random")
    parser.add_argument("--schemes", default="tcp,tcp+lz4,tcp+zstd,narrows", help="the first is compared with")
    parser.add_argument("--cases", help="names of cases; default: all")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--megabytes", type=float, help="payload of a case; default: 16 to 128, by the rate")
    parser.add_argument("-o", "--output", help="file for the result as JSON")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.inside:
        task = json.loads(arguments.inside)
        print(json.dumps(measure(arguments, **task)))
        return
    schemes = [scheme for scheme in arguments.schemes.split(",") if available(scheme)]
    results: list[dict[str, Any]] = []
    for workers in map(int, arguments.workers.split(",")):
        with hosts(workers + 1):
            for rate in arguments.rates.split(","):
                shape(workers + 1, rate)
                # New connections for each rate: what they learned of another link is not measured.
                clusters = {scheme: Cluster(scheme, workers, 8786 + i) for i, scheme in enumerate(schemes)}
                try:
                    addresses = {scheme: cluster.address for scheme, cluster in clusters.items()}
                    task = {"addresses": addresses, "workers": workers, "rate": rate}
                    again = [sys.executable, *sys.argv, "--inside", json.dumps(task)]
                    command = ["ip", "netns", "exec", f"{PREFIX}0", *again]
                    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
                    results += json.loads(done.stdout.splitlines()[-1])
                    if arguments.output:
                        write(arguments.output, results)
                finally:
                    for cluster in clusters.values():
                        cluster.stop()


if __name__ == "__main__":
    main()
