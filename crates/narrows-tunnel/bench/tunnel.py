"""`narrows tunnel` beside plain TCP, ssh -L, ssh -L -C, stunnel and haproxy, on links that this script makes.

    cargo build --release -p narrows-cli && make lab
    python3 crates/narrows-tunnel/bench/tunnel.py --corpus DIR -o RESULT.json [--narrows PATH] [--lab PATH]
        [--rounds 5] [--job-rounds 3] [--cells mixed,bulk,noise,echo,connect,idle,reload,jobs] [--ways ...]

Needs root, for network namespaces. All ways are up at the same time and take turns in each round, in alternating
order; programs that are not installed are left out and named. RESULT.json has all samples, RESULT.md the medians.
`cpu_s` is what both ends of a way used, without the clients and servers of the bench.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import platform
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import jobs
import load
import mixed
import ways
from net import RATES, UNSHAPED, Emulated, Net, PROFILES, Veth, stop

HERE = pathlib.Path(__file__).resolve().parent
CELLS = ["mixed", "bulk", "noise", "echo", "connect", "idle", "reload", "jobs"]
PORTS = [load.SINK, load.ECHO, load.ONCE, load.HOLD, *jobs.PORTS]
JOB_WAYS = ["plain TCP", "ssh -L -C", "stunnel", "narrows tunnel"]
FLOWS = 5000
# Longer than a flow's history is kept, and than it takes to return memory to the system.
REST_S = 17
COMMAND_S = 180
MIXED_LEN = 48 << 20
TEXT_KINDS = ["json", "logs"]


class Bench:
    def __init__(self, arguments: argparse.Namespace, work: pathlib.Path) -> None:
        self.arguments, self.work = arguments, work
        self.samples: list[dict[str, Any]] = []
        self.missing: dict[str, str] = {}
        self.chosen = []
        for way in ways.WAYS:
            if arguments.ways and way.name not in arguments.ways.split(","):
                continue
            if (missing := way.missing()) is not None:
                self.missing[way.name] = missing
                print(f"{way.name} is left out: {missing} is not installed", file=sys.stderr)
            else:
                self.chosen.append(way)
        corpus = pathlib.Path(arguments.corpus)
        self.mixed, self.noise = work / "mixed", work / "noise"
        self.mixed.write_bytes(mixed.mixed(corpus, MIXED_LEN))
        self.noise.write_bytes(mixed.noise(32 << 20))
        self.text = b"".join(mixed.of_kind(corpus / kind) for kind in TEXT_KINDS)

    # --- frame ---

    @contextlib.contextmanager
    def up(self, net: Net, kinds: list[type[ways.Way]], ports: list[int]) -> Iterator[dict[str, ways.Way]]:
        """The ways, those that start."""
        made: dict[str, ways.Way] = {}
        keys = pathlib.Path(tempfile.mkdtemp(dir=self.work))
        keys.chmod(0o711)
        ways.authority(keys)
        ways.certificate(keys, "near", net.near_address)
        ways.certificate(keys, "far", net.far_address)
        try:
            for kind in kinds:
                try:
                    made[kind.name] = kind(net, ports, keys, self.arguments.narrows)
                except (RuntimeError, OSError, subprocess.SubprocessError) as e:
                    self.missing[kind.name] = str(e)
                    print(f"{kind.name} is left out: {e}", file=sys.stderr)
            yield made
        finally:
            for way in made.values():
                way.close()

    @contextlib.contextmanager
    def servers(self, net: Net) -> Iterator[None]:
        command = [*net.far, sys.executable, str(HERE / "load.py"), "serve"]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        time.sleep(0.5)
        try:
            yield
        finally:
            stop(process)

    def rounds(self, made: dict[str, ways.Way], rounds: int, cell: dict[str, Any], run: Callable[[ways.Way], dict[str, Any]]) -> None:
        """One sample of each way a round, in alternating order."""
        for round_ in range(rounds):
            for name in list(made) if round_ % 2 else list(made)[::-1]:
                before = cpu_s(made[name].pids())
                try:
                    values = run(made[name])
                except (RuntimeError, ValueError, subprocess.SubprocessError, OSError) as e:
                    values = {"error": str(e).strip()[-300:]}
                used = cpu_s(made[name].pids()) - before
                self.add({**cell, "way": name, "round": round_, **values, "cpu_s": round(used, 3)})

    def add(self, sample: dict[str, Any]) -> None:
        self.samples.append(sample)
        shown = {k: round(v, 3) if isinstance(v, float) else v for k, v in sample.items() if k != "each"}
        print(" ".join(f"{k}={v}" for k, v in shown.items()), flush=True)

    def client(self, net: Net, way: ways.Way, command: str, port: int, *rest: object) -> dict[str, Any]:
        host, port = way.to(port)
        words = [*net.near, sys.executable, str(HERE / "load.py"), command, host, str(port), *map(str, rest)]
        return json.loads(bounded(words).splitlines()[-1])

    # --- cells ---

    def bulk(self, net: Veth, made: dict[str, ways.Way], cell: str, link: str, file: pathlib.Path, length: int, flows: int = 1, rounds: int | None = None) -> None:
        net.shape(link)

        def run(way: ways.Way) -> dict[str, Any]:
            # ssh's zlib would take most of the bench's time on a link that it cannot fill.
            less = 10 if way.name == "ssh -L -C" and link in (UNSHAPED, "1 Gbit/s") else 1
            got = self.client(net, way, "bulk", load.SINK, file, length // flows // less, flows)
            return {**got, "mb_s": got["bytes"] / got["s"] / 1e6}

        self.rounds(made, rounds or self.arguments.rounds, {"cell": cell, "link": link, "flows": flows}, run)

    def veth_cells(self) -> None:
        wanted = self.arguments.cells.split(",")
        net = Veth()
        try:
            with self.servers(net), self.up(net, self.chosen, PORTS) as made:
                rounds = self.arguments.rounds
                if "mixed" in wanted:
                    self.bulk(net, made, "mixed", "100 Mbit/s", self.mixed, 32 << 20)
                if "bulk" in wanted:
                    for flows in (1, 4):
                        self.bulk(net, made, "mixed", UNSHAPED, self.mixed, 512 << 20, flows)
                if "echo" in wanted:
                    net.shape(UNSHAPED)
                    self.rounds(made, rounds, {"cell": "echo", "link": UNSHAPED}, lambda w: self.client(net, w, "echo", load.ECHO, 5000))
                if "connect" in wanted:
                    net.shape(UNSHAPED)
                    run = lambda w: self.client(net, w, "connect", load.ONCE, 2, 16)
                    self.rounds(made, rounds, {"cell": "connect", "link": UNSHAPED}, run)
                if "noise" in wanted:
                    for flows in (1, 4):
                        self.bulk(net, made, "noise", UNSHAPED, self.noise, 512 << 20, flows)
                    for link, rate in reversed(RATES.items()):
                        # Some 2 s of the link.
                        few = max(rounds - 2, 1) if rate < 100_000_000 else rounds
                        self.bulk(net, made, "noise", link, self.noise, rate // 8 * 2, rounds=few)
                net.shape(UNSHAPED)
            if "idle" in wanted:
                with self.servers(net):
                    self.idle(net)
            if "reload" in wanted:
                with self.servers(net):
                    self.reload(net)
        finally:
            net.close()

    def holding(self, net: Net, way: ways.Way, length: int) -> subprocess.Popen[str]:
        host, port = way.to(load.HOLD)
        words = [*net.near, sys.executable, str(HERE / "load.py"), "hold", host, str(port), str(FLOWS), str(length)]
        held = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        answer(held, COMMAND_S)
        return held

    def idle(self, net: Net) -> None:
        """Memory of both ends for flows that each had an exchange of 2 KB and then a rest."""
        for kind in self.chosen:
            if kind is ways.Plain:
                continue
            with self.up(net, [kind], [load.HOLD]) as made:
                for way in made.values():
                    before = memory(way.pids())
                    try:
                        held = self.holding(net, way, 2 << 10)
                    except RuntimeError as e:
                        self.add({"cell": "idle", "link": UNSHAPED, "way": way.name, "round": 0, "error": str(e)})
                        continue
                    at_once = memory(way.pids())
                    cpu = cpu_s(way.pids())
                    time.sleep(REST_S)
                    after, cpu = memory(way.pids()), cpu_s(way.pids()) - cpu
                    held.kill()
                    held.wait()
                    values = {"kb": (after - before) / FLOWS / 1024, "kb_at_once": (at_once - before) / FLOWS / 1024, "empty_mb": before / 1e6}
                    self.add({"cell": "idle", "link": UNSHAPED, "way": way.name, "round": 0, **values, "flows": FLOWS, "cpu_s_of_rest": cpu})

    def reload(self, net: Net) -> None:
        """Another authority and other certificates at both ends while flows are open."""
        for round_ in range(2):
            with self.up(net, [ways.NarrowsCertificates], [load.HOLD]) as made:
                for way in made.values():
                    held = self.holding(net, way, 1 << 10)
                    old = way.work / "old"
                    old.mkdir()
                    for name in ("near.pem", "near.key", "ca.pem"):
                        shutil.copy(way.keys / name, old / name)
                    begun = time.monotonic()
                    ways.authority(way.keys, "ca-2")
                    for end, address in (("near", net.near_address), ("far", net.far_address)):
                        ways.certificate(way.keys, end, address, "ca-2")
                    os.replace(way.keys / "ca-2.pem", way.keys / "ca.pem")
                    time.sleep(3)
                    said = (way.work / "log").read_text(errors="replace").count("the certificates were read again")
                    held.stdin.write("again\n")  # type: ignore[union-attr]
                    held.stdin.flush()  # type: ignore[union-attr]
                    values = json.loads(answer(held, COMMAND_S))
                    old_works, new_works = (self.connects(net, way, folder) for folder in (old, way.keys))
                    held.kill()
                    held.wait()
                    values |= {"reloads_told": said, "old_certificate_accepted": old_works, "new_certificate_accepted": new_works, "s": time.monotonic() - begun}
                    self.add({"cell": "reload", "link": UNSHAPED, "way": way.name, "round": round_, "flows": FLOWS, **values})

    def connects(self, net: Net, way: ways.Way, folder: pathlib.Path) -> bool:
        """Whether a new client with these files comes in."""
        there = f"narrows://{net.far_address}:{way.base + ways.STEP - 1}"
        words = [*net.near, self.arguments.narrows, "tunnel", "-L", f"127.0.0.1:0:127.0.0.1:{load.HOLD}", there, "--json"]
        words += ["--cert", str(folder / "near.pem"), "--key", str(folder / "near.key"), "--ca", str(folder / "ca.pem")]
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        time.sleep(2)
        stop(process)  # type: ignore[arg-type]
        return '"up":true' in process.stdout.read()  # type: ignore[union-attr]

    def job_cells(self) -> None:
        services = jobs.Services(self.work / "services", self.text)
        kinds = [way for way in self.chosen if way.name in JOB_WAYS]
        for link in PROFILES:
            try:
                net = Emulated(self.arguments.lab, link, self.work)
            except (OSError, RuntimeError) as e:
                print(f"{link} is left out: {e}", file=sys.stderr)
                self.missing[link] = str(e)
                continue
            try:
                services.start(net, sys.executable)
                with self.up(net, kinds, jobs.PORTS) as made:
                    for job in services.names:

                        def run(way: ways.Way) -> dict[str, Any]:
                            host, _ = way.to(jobs.HTTP)
                            command = services.client(job, host, lambda port: way.to(port)[1], sys.executable)
                            environment = {"PGSSLMODE": "disable", "PGGSSENCMODE": "disable", "GIT_TERMINAL_PROMPT": "0"}
                            begun = time.monotonic()
                            bounded([*net.near, *command], environment)
                            return {"s": time.monotonic() - begun}

                        self.rounds(made, self.arguments.job_rounds, {"cell": job, "link": link}, run)
            finally:
                services.close()
                net.close()

    # --- result ---

    def write(self) -> None:
        out = pathlib.Path(self.arguments.output)
        result = {"about": about(self.arguments), "left_out": self.missing, "zstd_ratio_of_mixed": ratios(self.mixed), "samples": self.samples}
        text = json.dumps(result, indent=None, separators=(",", ":"))
        out.write_text(text.replace('{"cell"', '\n{"cell"') + "\n", encoding="utf-8")
        out.with_suffix(".md").write_text(tables(self.samples), encoding="utf-8")


# --- the machine ---


def bounded(words: list[str], environment: dict[str, str] | None = None) -> str:
    """The output of a command, which is ended with all it started when it takes too long."""
    env = {**os.environ, **(environment or {})}
    process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, start_new_session=True)
    try:
        said, errors = process.communicate(timeout=COMMAND_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    if process.returncode != 0:
        raise RuntimeError(errors.strip() or f"status {process.returncode}")
    return said


def answer(process: subprocess.Popen[str], seconds: float) -> str:
    """The next line of a process."""
    timer = signal.signal(signal.SIGALRM, lambda *_: process.kill())
    signal.alarm(int(seconds))
    try:
        line = process.stdout.readline()  # type: ignore[union-attr]
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, timer)
    if not line:
        process.kill()
        process.wait()
        raise RuntimeError("the flows cannot be opened in time")
    return line


def cpu_s(pids: list[int]) -> float:
    """CPU time of processes and of their children that are over."""
    ticks = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def memory(pids: list[int]) -> int:
    """Proportional share of memory, in bytes."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            for line in pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) * 1024
    return total


def ratios(path: pathlib.Path) -> dict[str, float]:
    found = {}
    for level in ("-1", "-3"):
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            done = subprocess.run(f"zstd {level} -c {shlex.quote(str(path))} | wc -c", shell=True, capture_output=True, text=True, check=True)
            found[level] = round(path.stat().st_size / int(done.stdout), 3)
    return found


def first_line(*words: str) -> str:
    try:
        done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=10, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.SubprocessError):
        return ""
    return next((line for line in done.stdout.splitlines() if "ersion" in line or "SSH" in line or "stunnel" in line or "narrows" in line), "").strip()


def about(arguments: argparse.Namespace) -> dict[str, Any]:
    model = next((line.split(":")[1].strip() for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")), "")
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=HERE, capture_output=True, text=True).stdout.strip()
    versions = {
        "ssh": first_line("ssh", "-V"),
        "stunnel": first_line(ways.find("stunnel") or "stunnel", "-version"),
        "haproxy": first_line(ways.find("haproxy") or "haproxy", "-v"),
        "narrows": first_line(arguments.narrows, "--version"),
        "python": platform.python_version(),
    }
    return {
        "command": shlex.join(["python3", "tunnel.py", *(a for a in sys.argv[1:] if not a.startswith("/"))]),
        "commit": arguments.commit or commit,
        "machine": f"{model}, {os.cpu_count()} cores, Linux {platform.release().split('-')[0]}",
        "congestion_control": pathlib.Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip(),
        "load": os.getloadavg(),
        "versions": versions,
        "time": time.strftime("%Y-%m-%d %H:%M"),
    }


# --- tables ---

COLUMNS = {"mixed": "mb_s", "noise": "mb_s", "echo": "p50", "connect": "per_s", "idle": "kb", "reload": "alive"}


def tables(samples: list[dict[str, Any]]) -> str:
    """Medians with the least and the most, a row for each cell, a column for each way."""
    names = list(dict.fromkeys(s["way"] for s in samples))
    rows: dict[str, dict[str, list[float]]] = {}
    errors = []
    for s in samples:
        shown = [COLUMNS.get(s["cell"], "s"), *(["p99"] if s["cell"] == "echo" else [])]
        for value in shown:
            title = f"{s['cell']}, {s['link']}" + (f", {s['flows']} flows" if s.get("flows", 1) != 1 else "") + f", {value}"
            if value in s:
                rows.setdefault(title, {}).setdefault(s["way"], []).append(float(s[value]))
            else:
                errors.append(f"- {title}, {s['way']}, round {s['round']}: {s.get('error', 'no value')}")
    lines = ["| cell | " + " | ".join(names) + " |", "| --- |" + " --: |" * len(names)]
    for title, by_way in rows.items():
        cells = []
        for name in names:
            values = by_way.get(name)
            cells.append(f"{number(statistics.median(values))} ({number(min(values))}-{number(max(values))})" if values else "")
        lines.append(f"| {title} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", *dict.fromkeys(errors), ""])


def number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", required=True, help="folder with the benchmark data")
    parser.add_argument("--narrows", default="target/release/narrows")
    parser.add_argument("--lab", default="target/release/narrows-lab", help="for links with delay and loss")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--job-rounds", type=int, default=3)
    parser.add_argument("--cells", default=",".join(CELLS))
    parser.add_argument("--ways", help="names, with commas; default: all that are installed")
    parser.add_argument("--commit", help="of the program, if it is not this folder's")
    parser.add_argument("--tables", help="print the tables of this RESULT.json, and do nothing else")
    parser.add_argument("-o", "--output", required=True)
    arguments = parser.parse_args()
    if arguments.tables:
        print(tables(json.loads(pathlib.Path(arguments.tables).read_text())["samples"]))
        return
    arguments.narrows, arguments.lab = (os.path.abspath(p) for p in (arguments.narrows, arguments.lab))
    load.many_files()
    work = pathlib.Path(tempfile.mkdtemp(prefix="tunnel-bench-"))
    work.chmod(0o711)
    bench = Bench(arguments, work)
    try:
        bench.veth_cells()
        bench.write()
        if "jobs" in arguments.cells.split(","):
            bench.job_cells()
    finally:
        bench.write()
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()
