"""CPU of the server and time of `narrows cp`, with and without --store-compressed, up and down.

usage: stored.py NARROWS OUT.json [--rounds 5] [--policies default,fixed:zstd:level=1] [--folder /dev/shm] CORPUS

Trees: CORPUS, and 5,000 files of 4 KB of its bytes. Client and server share this host and its cores; both ends have
their files in FOLDER (memory), and the connection is TLS over loopback. The server is one process, whose CPU time is
that of a control group (cpuacct of cgroup version 1; it needs root). Each result is compared with the source.
"""

import argparse
import os
import pathlib
import random
import shutil
import statistics
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "narrows-file/bench"))
from samples import about, spread, table, write

GROUPS = pathlib.Path("/sys/fs/cgroup/cpuacct")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("narrows")
    parser.add_argument("out")
    parser.add_argument("corpus", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--policies", default="default,fixed:zstd:level=1")
    parser.add_argument("--folder", default="/dev/shm")
    asked = parser.parse_args()
    known = about(asked.narrows)
    top = pathlib.Path(asked.folder, f"narrows-stored.{os.getpid()}")
    served, group = top / "served", GROUPS / f"narrows-stored.{os.getpid()}"
    served.mkdir(parents=True)
    group.mkdir()
    samples, rows, server = [], [], None
    environment = os.environ | {"XDG_STATE_HOME": str(top / "state"), "XDG_CACHE_HOME": str(top / "cache")}
    try:
        shutil.copytree(asked.corpus, top / "mixed")
        small(asked.corpus, top / "small")
        listen = [asked.narrows, "serve", "--listen", "127.0.0.1:0", "--dir", str(served), "--token-out", str(top / "token")]
        within = lambda: (group / "cgroup.procs").write_text(str(os.getpid()))
        with open(top / "log", "wb") as log:
            server = subprocess.Popen(listen, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=within)
        address = ""
        for _ in range(500):
            address = address_in((top / "log").read_text())
            if address and (top / "token").exists():
                break
            time.sleep(0.02)
        if not address:
            sys.exit("the server said no address: " + (top / "log").read_text())
        for policy in asked.policies.split(","):
            for tree in ["mixed", "small"]:
                common = [asked.narrows, "cp", "-r", "-q", "--no-memory", "--token-file", str(top / "token")]
                common += [] if policy == "default" else ["--policy", policy]
                remote = f"narrows://{address}"

                def run(way, number):
                    direction, form = way.split(", ")
                    stored = ["--store-compressed"] if form == "stored" else []
                    up = [*common, *stored, str(top / tree), f"{remote}/{form}/"]
                    down = [*common, *stored, f"{remote}/{form}/{tree}", str(top / "back")]
                    shutil.rmtree(top / "back", ignore_errors=True)
                    (top / "back").mkdir()
                    if direction == "up":
                        shutil.rmtree(served / form, ignore_errors=True)
                        (served / form).mkdir()
                    before, begun = cpu(group), time.monotonic()
                    client = os.times()
                    done = subprocess.run(up if direction == "up" else down, env=environment, capture_output=True, text=True)
                    seconds = time.monotonic() - begun
                    if done.returncode:
                        sys.exit(f"{way}: status {done.returncode}: {done.stderr}")
                    after = os.times()
                    time.sleep(0.1)
                    server_cpu = [b - a for a, b in zip(before, cpu(group))]
                    if direction == "down" and subprocess.run(["diff", "-rq", str(top / tree), str(top / "back" / tree)]).returncode:
                        sys.exit(f"{way}: other bytes came back")
                    size = sum(f.stat().st_size for f in (served / form).rglob("*") if f.is_file())
                    return {"s": seconds, "server_cpu_s": server_cpu[0], "server_user_s": server_cpu[1], "server_system_s": server_cpu[2],
                            "client_cpu_s": after.children_user + after.children_system - client.children_user - client.children_system, "stored_bytes": size}

                # Down follows up, of what up stored.
                ways = {way: lambda n, w=way: run(w, n) for way in ["up, plain", "up, stored", "down, plain", "down, stored"]}
                of = {way: [] for way in ways}
                for number in range(asked.rounds):
                    for way in (list(ways) if number % 2 == 0 else ["up, stored", "up, plain", "down, stored", "down, plain"]):
                        sample = ways[way](number)
                        of[way].append(sample)
                        samples.append({"policy": policy, "tree": tree, "way": way, "round": number} | sample)
                for direction in ["up", "down"]:
                    plain, stored = of[f"{direction}, plain"], of[f"{direction}, stored"]
                    share = lambda key: statistics.median(b[key] / a[key] for a, b in zip(plain, stored))
                    values = lambda which, key: spread([s[key] for s in which], digits=3)
                    rows.append([policy, tree, direction, values(plain, "server_cpu_s"), values(stored, "server_cpu_s"), f"{share('server_cpu_s'):.2f}", f"{share('server_user_s'):.2f}",
                                 values(plain, "s"), values(stored, "s"), f"{share('s'):.2f}", plain[-1]["stored_bytes"], stored[-1]["stored_bytes"]])
                    print(*rows[-1], flush=True)
    finally:
        if server:
            server.terminate()
            server.wait(20)
        time.sleep(0.1)
        group.rmdir()
        shutil.rmtree(top)
        write(asked.out, known, samples)
    table(["policy", "tree", "way", "server CPU s, cp", "stored", "share", "share, user", "s, cp", "stored", "share", "bytes, cp", "stored"], rows)


def small(corpus, to):
    dice = random.Random(1)
    files = [f.read_bytes() for f in sorted(corpus.rglob("*")) if f.is_file() and f.stat().st_size > 8192]
    for number in range(5000):
        folder = to / f"{number // 100:02}"
        folder.mkdir(parents=True, exist_ok=True)
        source = dice.choice(files)
        at = dice.randrange(len(source) - 4096)
        (folder / f"{number:04}").write_bytes(source[at : at + 4096])


def address_in(log):
    for word in log.replace(",", " ").split():
        if word.startswith("127.0.0.1:") and word != "127.0.0.1:0":
            return word.rstrip(".;")
    return ""


def cpu(group):
    """Seconds of the group: all, user, system."""
    return [int((group / f"cpuacct.{name}").read_text()) / 1e9 for name in ["usage", "usage_user", "usage_sys"]]


if __name__ == "__main__":
    main()
