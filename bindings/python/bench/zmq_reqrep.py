#!/usr/bin/env python3
"""Round trips of ZeroMQ REQ/REP: plain pyzmq, narrows.zmq, and simple wrappers around python-lz4 and
zstandard.

    zmq_reqrep.py MESSAGES.msgs [--rates 10,100,0] [--messages 200] [--rounds 5] [--starts 3] [--train FILE.msgs] [--json]
    zmq_reqrep.py MESSAGES.msgs --connect HOST:PORT            over a real or emulated link
    zmq_reqrep.py MESSAGES.msgs --serve HOST:PORT              its other end: ports from PORT on, one for each contender

A .msgs file has messages, each after its length in 4 bytes, little-endian. The server answers with
the message itself. Contenders have their own servers and take turns of --block messages each;
everything is restarted --starts times. A rate in Mbit/s is a link whose sender waits (bytes +
ZeroMQ's framing + 90 per packet) * 8 / rate before each send, in both directions and for all
contenders alike; 0 is the loopback without waits. With --connect the link itself is slow, and there
are no waits. Dictionaries are trained on --train, or else on the first half of the messages, and
then the second half is sent.

Needs python-lz4 and zstandard. p50: median of the round trips in microseconds. Q: mean over the
messages of the time of plain pyzmq, divided by that of the contender (median over the rounds for
each message), which is the quotient of their goodputs.
"""

import argparse
import json
import multiprocessing
import os
import platform
import statistics
import struct
import subprocess
import sys
from time import perf_counter_ns

import zmq

PACKET, PAYLOAD = 90, 1448
CONTENDERS = ("plain", "narrows", "lz4", "zstd1", "zstd1+dict")
FIRST_PORT = 17600


def read_messages(path: str) -> list[bytes]:
    data, at, messages = open(path, "rb").read(), 0, []
    while at + 4 <= len(data):
        (n,) = struct.unpack_from("<I", data, at)
        messages.append(data[at + 4 : at + 4 + n])
        at += 4 + n
    return list(dict.fromkeys(messages))


class Wire:
    """Waits as long as a link of this rate takes to send. The senders of a process share it in
    turn.
    """

    def __init__(self, rate: float) -> None:
        self.ns_per_byte = 8000 / rate if rate else 0.0

    def wait(self, n: int) -> None:
        if self.ns_per_byte:
            n += 2 + (2 if n < 256 else 9)
            until = perf_counter_ns() + (n + PACKET * (-(-n // PAYLOAD))) * self.ns_per_byte
            while perf_counter_ns() < until:
                pass


def maker(name: str, wire: Wire, dictionary: bytes):
    """Returns a socket and two functions: send a message, receive one."""
    if name == "narrows":
        import narrows.zmq
        from narrows.zmq import client, exchange, server, socket

        bare_send = zmq.backend.Socket.send

        def paced(s, data, flags=0, copy=True, track=False):
            wire.wait(len(data))
            return bare_send(s, data, flags, copy, track)

        for module in (client, exchange, server, socket):
            module.bare_send = paced if wire.ns_per_byte else bare_send

        def make(ctx, kind):
            s = narrows.zmq.Socket(ctx, kind)
            return s, s.send, s.recv

        return make

    if name == "plain":
        encode = decode = None
    elif name == "lz4":
        import lz4.block

        encode, decode = lz4.block.compress, lz4.block.decompress
    else:
        import zstandard

        d = zstandard.ZstdCompressionDict(dictionary) if name.endswith("dict") else None
        if d:
            d.precompute_compress(level=1)
        encode = zstandard.ZstdCompressor(level=1, dict_data=d).compress
        decode = zstandard.ZstdDecompressor(dict_data=d).decompress

    def make(ctx, kind):
        s = zmq.Socket(ctx, kind)
        raw_send, raw_recv, wait = s.send, s.recv, wire.wait
        if wire.ns_per_byte:

            def send(m):
                m = encode(m) if encode else m
                wait(len(m))
                raw_send(m)
        elif encode:

            def send(m):
                raw_send(encode(m))
        else:
            send = raw_send
        recv = (lambda: decode(raw_recv())) if decode else raw_recv
        return s, send, recv

    return make


def serve(name: str, host: str, port: int, rate: float, dictionary: bytes, parent: int) -> None:
    ctx = zmq.Context()
    s, send, recv = maker(name, Wire(rate), dictionary)(ctx, zmq.REP)
    s.linger = 0
    s.rcvtimeo = 1000
    s.bind(f"tcp://{host}:{port}")
    while True:
        try:
            m = recv()
        except zmq.Again:
            if os.getppid() != parent:
                return
            continue
        if m == b"quit":
            break
        send(m)
    s.close()
    ctx.term()


def play(times, messages, rate, args, host, port, dictionary, local, after) -> None:
    """Runs all rounds with their own processes and connections, whose scheduling may be good or
    bad.
    """
    servers = []
    if local:
        for i, name in enumerate(CONTENDERS):
            arguments = (name, host, port + i, rate, dictionary, os.getpid())
            servers.append(multiprocessing.Process(target=serve, args=arguments, daemon=True))
            servers[-1].start()
    ctx = zmq.Context()
    ends = {}
    for i, name in enumerate(CONTENDERS):
        s, send, recv = maker(name, Wire(rate), dictionary)(ctx, zmq.REQ)
        s.linger = 0
        s.rcvtimeo = 20_000
        s.connect(f"tcp://{host}:{port + i}")
        ends[name] = (s, send, recv)
    for turn in range(args.warm + args.rounds):
        for at in range(0, len(messages), args.block):
            shift = (after + turn + at // args.block) % len(CONTENDERS)
            for name in CONTENDERS[shift:] + CONTENDERS[:shift]:
                _, send, recv = ends[name]
                for i in range(at, min(at + args.block, len(messages))):
                    m = messages[i]
                    begin = perf_counter_ns()
                    send(m)
                    came = recv()
                    took = perf_counter_ns() - begin
                    assert came == m, name
                    if turn >= args.warm:
                        times[name][i].append(took)
    for s, send, _ in ends.values():
        if local:
            send(b"quit")
            s.linger = 1000
        s.close()
    for p in servers:
        p.join(5)
        p.kill()
    ctx.term()


def run(messages, rate, args, host, port, dictionary, local) -> dict:
    times = {name: [[] for _ in messages] for name in CONTENDERS}
    for after in range(args.starts):
        play(times, messages, rate, args, host, port, dictionary, local, after)
    means = {name: statistics.fmean(statistics.median(t) for t in times[name]) for name in CONTENDERS}
    raw = statistics.fmean(len(m) for m in messages)
    result = {}
    for name in CONTENDERS:
        every = sorted(t for ts in times[name] for t in ts)
        result[name] = {
            "p50_us": round(every[len(every) // 2] / 1e3, 1),
            "p90_us": round(every[len(every) * 9 // 10] / 1e3, 1),
            "goodput_mbit_per_s": round(2 * raw * 8e3 / means[name], 2),
            "q": round(means["plain"] / means[name], 3),
        }
    return result


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("file")
    p.add_argument("--rates", default="10,100,0", help="Mbit/s, separated by commas; 0 is no wait")
    p.add_argument("--messages", type=int, default=200)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--starts", type=int, default=3, help="how often all of it is done, by processes of their own")
    p.add_argument("--warm", type=int, default=3, help="rounds before those that count")
    p.add_argument("--block", type=int, default=75, help="messages of a turn; few find all caches cold")
    p.add_argument("--train")
    p.add_argument("--connect", metavar="HOST:PORT")
    p.add_argument("--serve", metavar="HOST:PORT")
    p.add_argument("--json", action="store_true")
    args = p.parse_args()

    messages = read_messages(args.file)
    if args.train:
        samples = read_messages(args.train)
    else:
        samples, messages = messages[: len(messages) // 2], messages[len(messages) // 2 :]
    messages = messages[: args.messages]
    import zstandard

    dictionary = zstandard.train_dictionary(32 << 10, samples).as_bytes()
    if args.serve:
        host, port = args.serve.rsplit(":", 1)
        servers = []
        for i, name in enumerate(CONTENDERS):
            servers.append(
                multiprocessing.Process(target=serve, args=(name, host, int(port) + i, 0, dictionary, os.getpid()))
            )
            servers[-1].start()
        print("ready", flush=True)
        for s in servers:
            s.join()
        return
    results = {}
    if args.connect:
        host, port = args.connect.rsplit(":", 1)
        results["link"] = run(messages, 0, args, host, int(port), dictionary, False)
    else:
        for rate in (float(r) for r in args.rates.split(",")):
            label = f"{rate:g} Mbit/s" if rate else "loopback"
            results[label] = run(messages, rate, args, "127.0.0.1", FIRST_PORT, dictionary, True)
    git = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        capture_output=True,
        text=True,
        cwd=os.path.dirname(os.path.abspath(__file__)),
    )
    about = {
        "command": " ".join(["zmq_reqrep.py", *sys.argv[1:]]),
        "commit": git.stdout.strip() or None,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Linux {platform.release().split('-')[0]}",
        "python": platform.python_version(),
        "libzmq": zmq.zmq_version(),
        "messages": len(messages),
        "mean_len": round(statistics.fmean(len(m) for m in messages)),
        "rounds": args.rounds,
        "starts": args.starts,
        "block": args.block,
        "wire": "of the link" if args.connect else "wait before each send, calibrated, in both directions",
    }
    if args.json:
        print(json.dumps({**about, "results": results}, indent=1))
        return
    for key, value in about.items():
        print(f"{key:9} {value}")
    for label, rows in results.items():
        print(f"\n{label:12} {'p50 us':>9} {'p90 us':>9} {'Mbit/s':>9} {'Q':>7}")
        for name, row in rows.items():
            print(
                f"{name:12} {row['p50_us']:9.1f} {row['p90_us']:9.1f} {row['goodput_mbit_per_s']:9.2f} {row['q']:7.3f}"
            )


if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    main()
