"""A range of an object 40 ms away: requests, and time until its first byte, against fetching all of it.

usage: far.py NARROWS NARROWS_LAB OUT.json FILE [--rounds 5] [--link rate=200mbit,delay=20ms]

The store is moto's S3 server; run this by a Python that has it and boto3, such as that of `.ci/store-server`. Store
and client are in network namespaces of their own with an emulated link between them (`narrows-lab link`). Requests
are the lines in the store's log, connections what strace sees of one run of each way, which is not timed.
"""

import argparse
import hashlib
import json
import os
import pathlib
import random
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "narrows-file/bench"))
from samples import about, spread, table, turns

PORT = 9000
LEN = 1000


def outside(asked):
    """Starts both hosts; this script again is the command on the client's side."""
    work = tempfile.mkdtemp(prefix="narrows-far.")
    known = about(asked.narrows, ["zstd", "curl"])
    store = f"exec {shlex.quote(sys.executable)} -c 'from moto.server import main; main([\"-H\", \"0.0.0.0\", \"-p\", \"{PORT}\"])' >{work}/log 2>&1"
    again = [sys.executable, os.path.abspath(__file__), *sys.argv[1:], "--inside", work]
    link = [asked.lab, "link", "-p", asked.link, "--server", store, "--server-delay", "3000", "--", *again]
    try:
        done = subprocess.run(link, timeout=asked.limit)
        if done.returncode:
            sys.exit(f"status {done.returncode}; the store said: {pathlib.Path(work, 'log').read_text()[-2000:]}")
        samples = json.loads(pathlib.Path(work, "samples").read_text())
        pathlib.Path(asked.out).write_text(json.dumps({"about": known | {"link": asked.link}, "samples": samples}) + "\n")
    finally:
        shutil.rmtree(work)


def first_byte(command, environment):
    """Seconds until the first byte of the output, and until its end; the output."""
    begun = time.perf_counter()
    program = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    first = program.stdout.read(1)
    first_s = time.perf_counter() - begun
    got = first + program.stdout.read()
    status, text = program.wait(60), program.stderr.read().decode()
    if status not in (0, -13, 141):
        sys.exit(f"{command}: status {status}: {text}")
    return first_s, time.perf_counter() - begun, got


def inside(asked):
    work = pathlib.Path(asked.inside)
    endpoint = f"http://{os.environ['NARROWS_LINK_SERVER']}:{PORT}"
    environment = os.environ | {"AWS_ENDPOINT_URL": endpoint, "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1",
                                "AWS_DEFAULT_REGION": "us-east-1", "XDG_CACHE_HOME": str(work)}
    os.environ.update(environment)
    for _ in range(100):
        try:
            urllib.request.urlopen(urllib.request.Request(f"{endpoint}/bucket", method="PUT"), timeout=5)
            break
        except OSError:
            time.sleep(0.2)
    raw = pathlib.Path(asked.file).read_bytes()
    run = lambda *command: subprocess.run(command, check=True, env=environment, capture_output=True)
    run(asked.narrows, "-q", "-f", asked.file, "-o", f"{work}/data.nrw")
    run("zstd", "-q", "-f", "-3", asked.file, "-o", f"{work}/data.zst")
    for name, path in [("data.nrw", f"{work}/data.nrw"), ("data", asked.file), ("data.zst", f"{work}/data.zst")]:
        run("curl", "-sSf", "-H", "x-amz-acl: public-read", "-T", path, f"{endpoint}/bucket/{name}")
    log = work / "log"
    # The log is coloured, also in a file.
    words = lambda: re.sub("\x1b\\[[0-9;]*m", "", log.read_text(errors="replace"))
    requests = lambda: re.findall(r'"((?:GET|HEAD|PUT|POST) [^ "]*)[^"]*" (\d+)', words())
    boto = "import boto3; boto3.client('s3').download_file('bucket', 'data.zst', '{0}')"
    lines = {
        "narrows cat --range": "{narrows} cat --range {a}-{b} s3://bucket/data.nrw",
        "curl -r of the plain object": "curl -sSf -r {a}-{b} {endpoint}/bucket/data",
        "curl, then zstd -d, as it comes": "curl -sSf {endpoint}/bucket/data.zst | zstd -dcq | tail -c +{a1} | head -c {len}",
        "boto3 download_file, then zstd -d": "{python} -c \"" + boto.format("{work}/got.zst") + "\" && zstd -dcq {work}/got.zst | tail -c +{a1} | head -c {len}",
    }

    def command(name, at):
        return ["bash", "-c", "exec " * ("|" not in lines[name] and "&&" not in lines[name]) + lines[name].format(narrows=shlex.quote(asked.narrows), a=at, b=at + LEN - 1, a1=at + 1, len=LEN, endpoint=endpoint, python=shlex.quote(sys.executable), work=work)]

    def one(name, number):
        at = random.Random(number).randrange(len(raw) - LEN)
        before = len(requests())
        first_s, all_s, got = first_byte(command(name, at), environment)
        if got != raw[at : at + LEN]:
            sys.exit(f"{name}: other bytes")
        time.sleep(0.3)
        return {"offset": at, "first_byte_s": first_s, "all_s": all_s, "requests": [" ".join(r) for r in requests()[before:]]}

    samples = [{"way": name, "round": number} | sample for number, name, sample in turns(asked.rounds, {name: lambda n, name=name: one(name, n) for name in lines})]
    last = len(raw) - 2 * LEN
    before = len(requests())
    first_s, all_s, got = first_byte(["bash", "-c", f"exec {shlex.quote(asked.narrows)} cat --range -{LEN} s3://bucket/data.nrw"], environment)
    samples.append({"way": "narrows cat --range, the last bytes", "round": 0, "offset": last, "first_byte_s": first_s, "all_s": all_s,
                    "requests": [" ".join(r) for r in requests()[before:]]})
    # What the end costs alone: a window that opens lets through some 14 KiB in the first round trip, then twice as much.
    ends = {f"curl, the last {kib} KiB of the stored object": kib for kib in [256, 64, 16, 1]}
    for number in range(asked.rounds):
        for name, kib in ends.items():
            first_s, all_s, _ = first_byte(["curl", "-sSf", "-r", f"-{kib << 10}", f"{endpoint}/bucket/data.nrw"], environment)
            samples.append({"way": name, "round": number, "first_byte_s": first_s, "all_s": all_s, "requests": ["GET"], "connections": 1})
    for name in lines:
        traced = ["strace", "-f", "-qq", "-e", "trace=connect", "-o", f"{work}/strace", *command(name, 12345)]
        subprocess.run(traced, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        text = (work / "strace").read_text() if (work / "strace").exists() else ""
        connections = len(re.findall(rf"sin_port=htons\({PORT}\)", text))
        for sample in samples:
            if sample["way"] == name:
                sample["connections"] = connections
    ping = []
    for _ in range(5):
        begun = time.perf_counter()
        import socket

        socket.create_connection((os.environ["NARROWS_LINK_SERVER"], PORT), 5).close()
        ping.append(time.perf_counter() - begun)
    samples.append({"way": "connect", "round": 0, "first_byte_s": min(ping), "all_s": max(ping), "requests": [], "connections": 1})
    (work / "samples").write_text(json.dumps(samples))
    rows = []
    for name in [*lines, "narrows cat --range, the last bytes", *ends, "connect"]:
        of = [s for s in samples if s["way"] == name]
        rows.append([name, spread([len(s["requests"]) for s in of], 1, 0), of[0].get("connections", ""), spread([s["first_byte_s"] for s in of], 1000, 0), spread([s["all_s"] for s in of], 1000, 0)])
    table(["way", "requests", "connections", "ms to the first byte", "ms to the end"], rows)
    print(*samples[0]["requests"], sep="\n")
    print("sha256 of the file:", hashlib.sha256(raw).hexdigest()[:16], "bytes:", len(raw))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("narrows")
    parser.add_argument("lab")
    parser.add_argument("out")
    parser.add_argument("file")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--link", default="rate=200mbit,delay=20ms")
    parser.add_argument("--limit", type=int, default=300, help="seconds at most")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    inside(asked) if asked.inside else outside(asked)


if __name__ == "__main__":
    main()
