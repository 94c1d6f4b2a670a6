"""An hour of chaos with tunnels, where every byte is judged.

    python3 crates/narrows-tunnel/bench/soak.py --narrows PATH --minutes 60 [--rate 6] [--seed 1] -o RESULT.json

Four tunnels on loopback: one whose certificates and authorities are exchanged and that nothing else happens to, one
whose carriers are cut, frozen and damaged, one whose ends are killed, stopped and replaced, and one behind a remote
shell. Flows of all kinds come in by -L, -D, -R and unix sockets. Every flow says who it is, and all its bytes follow
from that. Rules, for each direction of each flow:

- Each byte that comes is the one that was sent at this place.
- An end comes after all bytes of a program that ended its direction. Anything else is a reset. (Unix sockets have no
  reset; there an early end is allowed where a reset would be.)
- A reset has a reason: a fault of its tunnel in its time, a program that broke the flow, or a target that refuses.
  The exchange of certificates is no reason.
- An error is reported once, by TCP too: who was told of it by a write may read an end.
- If nothing moves for two minutes, it is a hang: silence of 45 s ends a carrier, and processes are stopped for 52 s.

Exit status 1 if any rule was broken.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import random
import shutil
import socket
import struct
import sys
import tempfile
import threading
import time
import zlib
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import load
import tunnel
from chaos import Pair, Way, free_port

HANG_S = 120.0
# Sockets are looked at this often at least.
LOOK_S = 2.0
PIECE_MAX = 64 << 10
WORKERS = 12
POOL = 4 << 20
MAGIC = 0x4E54534F
HEADER = struct.Struct("<IQQQHHI")
KINDS = ["text", "noise", "records", "zeros"]
STYLES = ["both", "ask", "chat", "upload", "download", "slow", "idle", "client breaks", "target breaks"]
WEIGHTS = [20, 20, 14, 8, 8, 5, 6, 5, 5]


def pools(rng: random.Random) -> list[bytes]:
    """Bytes that say where they are: none of them but zeros is the same at two places."""
    words = [bytes(rng.choices(b"abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 9))) for _ in range(900)]
    text = b" ".join(b"%x %s" % (i, rng.choice(words)) for i in range(POOL // 8))
    records = b"".join(struct.pack("<IIdI", i, i * 7 % 1001, i / 3, 0) for i in range(POOL // 20))
    return [text[:POOL], rng.randbytes(POOL), records[:POOL], bytes(POOL)]


class Content:
    """One direction of a flow."""

    def __init__(self, pool: bytes, offset: int, length: int) -> None:
        self.pool, self.offset, self.length = pool, offset % len(pool), length

    def piece(self, at: int, length: int) -> bytes:
        length = min(length, self.length - at)
        start = (self.offset + at) % len(self.pool)
        part = self.pool[start : start + length]
        while len(part) < length:
            part += self.pool[: length - len(part)]
        return part


@dataclass
class Side:
    """What a program saw of a flow."""

    sent: int = 0
    shut: bool = False
    got: int = 0
    wrong: int | None = None
    # end, reset, hang, or nothing yet
    end: str = ""
    write_error: str = ""
    broke: bool = False
    begun: float = 0.0
    moved: float = 0.0
    over: float = 0.0


@dataclass
class Flow:
    number: int
    pair: Pair
    way: Way
    style: str
    kind: int
    up: int
    down: int
    client: Side = field(default_factory=Side)
    target: Side | None = None
    connect_error: str = ""
    judged: bool = False

    def header(self) -> bytes:
        body = HEADER.pack(MAGIC, self.number, self.up, self.down, self.kind, STYLES.index(self.style), 0)
        return body[:-4] + struct.pack("<I", zlib.crc32(body[:-4]))


class Soak:
    def __init__(self, arguments: argparse.Namespace, work: pathlib.Path) -> None:
        self.arguments, self.work = arguments, work
        self.rng = random.Random(arguments.seed)
        self.pools = pools(random.Random(arguments.seed))
        self.flows: dict[int, Flow] = {}
        self.next = 0
        self.lock = threading.Lock()
        self.counts: Counter[str] = Counter()
        self.by_way: Counter[str] = Counter()
        self.bytes = 0
        self.broken: list[str] = []
        self.stopping = threading.Event()
        self.budget, self.budgeted = 0.0, time.monotonic()
        self.largest_gap: dict[str, float] = {}
        self.last_whole: dict[str, float] = {}

        tcp = socket.create_server(("127.0.0.1", 0), backlog=1024)
        path = str(work / "target.socket")
        unix = socket.socket(socket.AF_UNIX)
        unix.bind(path)
        unix.listen(1024)
        for listening in (tcp, unix):
            threading.Thread(target=self.accept, args=(listening,), daemon=True).start()
        relayed = ["cut", "cut", "end", "damage", "freeze", "reload"]
        plans = [
            ("calm", "certificates", ["reload", "reload", "reload", "new authority"]),
            ("cut", "certificates", relayed),
            ("killed", "token", ["kill", "kill", "stop", "stop", "replace"]),
            ("shell", "shell", ["kill", "stop"]),
        ]
        self.pairs = []
        for i, (name, style, faults) in enumerate(plans):
            rng = random.Random(arguments.seed * 100 + i)
            common = (tcp.getsockname()[1], path, free_port())
            self.pairs.append(Pair(name, work / name, arguments.narrows, *common, style, faults, rng))

    # --- targets ---

    def accept(self, listening: socket.socket) -> None:
        while True:
            conn, _ = listening.accept()
            threading.Thread(target=self.serve, args=(conn,), daemon=True).start()

    def serve(self, conn: socket.socket) -> None:
        conn.settimeout(LOOK_S)
        head, begun = b"", time.monotonic()
        while len(head) < HEADER.size:
            try:
                part = conn.recv(HEADER.size - len(head))
            except TimeoutError:
                if time.monotonic() - begun > HANG_S:
                    self.broke("hang", "a target hears nothing of a new flow")
                    return conn.close()
                continue
            except OSError:
                self.count("resets before a flow said who it is")
                return conn.close()
            if not part:
                # A unix socket has no resets.
                if conn.family == socket.AF_UNIX:
                    self.count("unix ends before a flow said who it is")
                else:
                    self.broke("silent end", f"a target had {len(head)} bytes of a flow and an end")
                return conn.close()
            head += part
        magic, number, up, down, kind, style, check = HEADER.unpack(head)
        with self.lock:
            flow = self.flows.get(number)
        if flow is not None and flow.judged:
            return self.late(flow, conn)
        if magic != MAGIC or check != zlib.crc32(head[:-4]) or flow is None or (flow.up, flow.down) != (up, down):
            self.broke("wrong bytes", f"a header of no flow: {head.hex()}")
            return conn.close()
        if flow.target is not None:
            self.broke("wrong bytes", f"flow {number} came twice")
            return conn.close()
        flow.target = Side(begun=begun, moved=time.monotonic())
        self.talk(flow, conn, flow.target, is_client=False)

    def late(self, flow: Flow, conn: socket.socket) -> None:
        """The client had a reset before the target heard of the flow: the target must have one too."""
        self.count("targets that heard of a flow after its client had a reset")
        expected = Content(self.pools[flow.kind], flow.number * 7919, flow.up)
        got, begun = 0, time.monotonic()
        while True:
            try:
                data = conn.recv(PIECE_MAX)
            except TimeoutError:
                if time.monotonic() - begun > HANG_S:
                    self.broke("hang", f"flow {flow.number} ({flow.pair.name}, {flow.way.name}): a target whose client is gone")
                    break
                continue
            except OSError:
                break
            if not data:
                by_unix = flow.way.unix_target or (flow.way.unix_client and flow.client.broke)
                if not by_unix and not (flow.client.shut and got == flow.up):
                    self.broke("silent end", f"flow {flow.number} ({flow.pair.name}, {flow.way.name}): a late target has {got} of {flow.up}")
                break
            if expected.piece(got, len(data)) != data:
                self.broke("wrong bytes", f"flow {flow.number}: a late target has other bytes behind {got}")
                break
            got += len(data)
        conn.close()

    # --- clients ---

    def work_on(self, pair: Pair, seed: int) -> None:
        rng = random.Random(seed)
        while not self.stopping.is_set():
            flow = self.draw(pair, rng)
            self.wait_for_budget(flow.up + flow.down)
            if self.stopping.is_set():
                return
            with self.lock:
                self.flows[flow.number] = flow
            self.run(flow, rng)
            flow.judged = True
            self.judge(flow)
            self.stopping.wait(rng.random() * 0.3)

    def draw(self, pair: Pair, rng: random.Random) -> Flow:
        with self.lock:
            self.next += 1
            number = self.next
        style = rng.choices(STYLES, WEIGHTS)[0]
        length = lambda: int(rng.choice([0, 1, 900, 5_000, 60_000, 60_000, 400_000, 400_000, 2_500_000]) * rng.uniform(0.5, 1.5))
        if rng.random() < 0.01:
            length = lambda: 16_000_000
        up, down = (length() if style != "download" else 0), (length() if style != "upload" else 0)
        if style == "chat":
            up = down = rng.randint(1, 300) * 100
        if style == "slow":
            up, down = min(up, 1_500_000), min(down, 1_500_000)
        way = rng.choice(pair.ways)
        if rng.random() < 0.03:
            way, style = pair.refused, "both"
        kind = rng.choices(range(len(KINDS)), [5, 3, 4, 1])[0]
        return Flow(number, pair, way, style, kind, up, down)

    def wait_for_budget(self, length: int) -> None:
        while not self.stopping.is_set():
            with self.lock:
                now = time.monotonic()
                self.budget = min(self.budget + (now - self.budgeted) * self.arguments.rate * 1e6, 20e6)
                self.budgeted = now
                if self.budget > 0:
                    self.budget -= length
                    return
            self.stopping.wait(0.05)

    def run(self, flow: Flow, rng: random.Random) -> None:
        side = flow.client
        side.begun = side.moved = time.monotonic()
        try:
            conn = self.connect(flow.way)
        except OSError as e:
            flow.connect_error = str(e) or type(e).__name__
            side.over = time.monotonic()
            return
        conn.settimeout(LOOK_S)
        side.moved = time.monotonic()
        if not self.write_all(conn, flow.header(), side):
            side.end = self.last_word(conn, side)
            side.over = time.monotonic()
            conn.close()
            return
        self.talk(flow, conn, side, is_client=True)
        # The target may not have heard of the end yet.
        until = time.monotonic() + HANG_S
        while flow.target is not None and not flow.target.over and time.monotonic() < until:
            time.sleep(0.01)

    def connect(self, way: Way) -> socket.socket:
        if way.unix_client:
            conn = socket.socket(socket.AF_UNIX)
            conn.settimeout(HANG_S)
            try:
                conn.connect(way.address)
            except OSError:
                conn.close()
                raise
            return conn
        conn = socket.create_connection(way.address, HANG_S)
        if way.socks:
            try:
                conn.sendall(b"\x05\x01\x00" + b"\x05\x01\x00\x01\x7f\x00\x00\x01" + struct.pack(">H", way.socks))
                answer = load.exactly(conn, 12)
                if len(answer) != 12 or answer[3] != 0:
                    raise OSError(f"SOCKS answers {answer.hex() or 'nothing'}")
            except OSError:
                conn.close()
                raise
        return conn

    def last_word(self, conn: socket.socket, side: Side) -> str:
        try:
            return "end" if not conn.recv(1) and not side.write_error else "reset"
        except OSError:
            return "reset"

    # --- both ---

    def talk(self, flow: Flow, conn: socket.socket, side: Side, is_client: bool) -> None:
        """Sends one direction and receives the other, in the style of the flow."""
        out_len, in_len = (flow.up, flow.down) if is_client else (flow.down, flow.up)
        pool = self.pools[flow.kind]
        offset = flow.number * 7919
        out = Content(pool, offset if is_client else offset + POOL // 2, out_len)
        inn = Content(pool, offset + POOL // 2 if is_client else offset, in_len)
        rng = random.Random(flow.number * 2 + is_client)
        breaks = flow.style == ("client breaks" if is_client else "target breaks")
        break_at = rng.randint(0, out_len) if breaks else None
        over = threading.Event()

        def write() -> None:
            at = 0
            limit = break_at if break_at is not None else out_len
            pause_at = rng.randint(0, max(out_len, 1)) if flow.style == "idle" else None
            while at < limit and not over.is_set():
                if flow.style == "ask" and not is_client and side.got < in_len:
                    # The answer follows the question.
                    over.wait(0.005)
                    continue
                if flow.style == "chat" and (side.got < at if is_client else side.got <= at):
                    over.wait(0.0005)
                    continue
                length = 100 if flow.style == "chat" else rng.choice([1, 700, 8_000, 30_000, PIECE_MAX, PIECE_MAX])
                if pause_at is not None and at <= pause_at < at + length:
                    over.wait(rng.choice([1, 6, 6, 17]))
                    pause_at = None
                piece = out.piece(at, min(length, limit - at))
                if not self.write_all(conn, piece, side):
                    return
                at += len(piece)
                side.sent = at
                if rng.random() < 0.03:
                    over.wait(rng.random() * 0.05)
            if over.is_set():
                return
            if break_at is not None:
                over.wait(rng.random() * 0.2)
                side.broke = True
                conn.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                # Closed by the reader's thread.
                over.set()
                return
            if flow.style == "upload" and not is_client:
                # Ends only when it has heard everything.
                while side.got < in_len and not over.wait(0.005):
                    pass
            try:
                conn.shutdown(socket.SHUT_WR)
                side.shut = True
            except OSError as e:
                side.write_error = str(e)

        writer = threading.Thread(target=write, daemon=True)
        writer.start()
        last = time.monotonic()
        while not side.end and not (side.broke and over.is_set()):
            try:
                conn.settimeout(0.1 if breaks else LOOK_S)
                data = conn.recv(PIECE_MAX)
            except TimeoutError:
                if time.monotonic() - max(side.moved, last) > HANG_S:
                    side.end = "hang"
                continue
            except OSError:
                side.end = "reset"
                break
            side.moved = last = time.monotonic()
            if not data:
                # An error is reported once, and the writer's thread may be about to tell of it.
                over.wait(0.1)
                side.end = "reset" if side.write_error else "end"
                break
            if side.wrong is None and inn.piece(side.got, len(data)) != data:
                side.wrong = side.got
            side.got += len(data)
            if flow.style == "slow" and rng.random() < 0.2:
                over.wait(rng.random() * 0.3)
            if flow.style == "slow" and rng.random() < 0.004:
                over.wait(8)
        if side.end == "end" and side.got == in_len:
            # The own direction goes on.
            until = time.monotonic()
            while writer.is_alive():
                writer.join(LOOK_S)
                if time.monotonic() - max(side.moved, until) > HANG_S:
                    side.end = "hang"
                    break
        over.set()
        writer.join(HANG_S)
        conn.close()
        side.over = time.monotonic()

    def write_all(self, conn: socket.socket, data: bytes, side: Side) -> bool:
        view = memoryview(data)
        while view:
            try:
                n = conn.send(view)
            except TimeoutError:
                # Behind the end of the other direction the own one goes on, however slowly.
                if side.broke or side.end not in ("", "end"):
                    return False
                if time.monotonic() - side.moved > HANG_S:
                    side.write_error = "hang"
                    return False
                continue
            except OSError as e:
                side.write_error = str(e)
                return False
            side.moved = time.monotonic()
            view = view[n:]
        return True

    # --- the judge ---

    def judge(self, flow: Flow) -> None:
        pair, client, target = flow.pair, flow.client, flow.target
        what = f"flow {flow.number} ({pair.name}, {flow.way.name}, {flow.style}, {KINDS[flow.kind]}, {flow.up} up, {flow.down} down)"
        ended = max(client.over, target.over if target else 0)
        fault = pair.explains(client.begun, ended)
        self.count("flows")
        self.by_way[f"{pair.name}, {flow.way.name}"] += 1
        if flow.connect_error and flow.way is pair.refused and "reset" in flow.connect_error:
            self.count("refused by the target, seen as a reset")
            return
        if flow.connect_error:
            self.count("refused connects")
            if client.over - client.begun > HANG_S - 1:
                self.broke("hang", f"{what}: no answer to a connect")
            if not fault:
                self.broke("unexplained reset", f"{what}: cannot connect: {flow.connect_error}")
            return
        if flow.way is pair.refused:
            if target is not None:
                self.broke("wrong bytes", f"{what}: a target that refuses was reached")
            elif client.end != "reset":
                self.broke("silent end" if client.end == "end" else "hang", f"{what}: refused by the target, seen as {client.end or 'nothing'}")
            else:
                self.count("refused by the target, seen as a reset")
            return
        if target is not None and not target.over:
            self.broke("hang", f"{what}: the target waits on")
            return
        broke = client.broke or (target is not None and target.broke)
        whole = True
        for name, side, other, want, by_unix, other_by_unix in (
            ("client", client, target, flow.down, flow.way.unix_client, flow.way.unix_target),
            ("target", target, client, flow.up, flow.way.unix_target, flow.way.unix_client),
        ):
            if side is None:
                continue
            with self.lock:
                self.bytes += side.got
            if side.wrong is not None or side.got > want:
                whole = False
                self.broke("wrong bytes", f"{what}: the {name} has another byte at {side.wrong}")
            if side.end == "hang" or side.write_error == "hang":
                whole = False
                self.broke("hang", f"{what}: the {name} has {side.got} of {want} and nothing moves")
            elif side.end == "end" and (side.got < want or other is None or not other.shut):
                whole = False
                if by_unix and (fault or broke) or other_by_unix and other is not None and other.broke:
                    self.count("early ends of unix sockets, for resets")
                else:
                    self.broke("silent end", f"{what}: the {name} has {side.got} of {want} and an end; fault {fault}, last {self.last_fault(pair, ended)}")
            elif side.end == "reset":
                whole = False
                self.count("resets")
                if not fault and not broke:
                    self.broke("unexplained reset", f"{what}: the {name} has {side.got} of {want}; {side.write_error}")
        if target is None and client.end != "reset" and not client.broke:
            whole = False
        if broke:
            self.count("flows that a program broke")
        elif whole:
            self.count("whole flows")
            now = time.monotonic()
            with self.lock:
                gap = now - self.last_whole.get(pair.name, now)
                self.last_whole[pair.name] = now
                self.largest_gap[pair.name] = max(self.largest_gap.get(pair.name, 0), gap)
        else:
            self.count("flows broken by a fault")

    def last_fault(self, pair: Pair, at: float) -> str:
        with pair.lock:
            before = [f for f in pair.faults if f.begun <= at]
        return f"{before[-1].kind} {at - before[-1].begun:.2f} s before" if before else "none"

    def count(self, what: str) -> None:
        with self.lock:
            self.counts[what] += 1

    def broke(self, rule: str, text: str) -> None:
        with self.lock:
            self.counts[f"BROKEN: {rule}"] += 1
            if len(self.broken) < 300:
                self.broken.append(f"{rule}: {text}")
        print(f"BROKEN: {rule}: {text}", file=sys.stderr, flush=True)

    # --- the course ---

    def torment(self, pair: Pair) -> None:
        while not self.stopping.wait(pair.rng.expovariate(1 / 4)):
            pair.one_fault()
            pair.mend()

    def go(self) -> None:
        begun = time.monotonic()
        time.sleep(2)
        threads = [threading.Thread(target=self.torment, args=(pair,), daemon=True) for pair in self.pairs]
        for i, pair in enumerate(self.pairs):
            threads += [threading.Thread(target=self.work_on, args=(pair, self.arguments.seed * 1000 + i * 100 + j), daemon=True) for j in range(WORKERS)]
        for thread in threads:
            thread.start()
        until = begun + self.arguments.minutes * 60
        while time.monotonic() < until:
            time.sleep(min(30, max(until - time.monotonic(), 0.1)))
            self.write(time.monotonic() - begun, over=False)
            print(f"{time.monotonic() - begun:.0f} s: {self.bytes / 1e6:.0f} MB, {dict(self.counts)}", flush=True)
        self.stopping.set()
        deadline = time.monotonic() + HANG_S + 60
        for thread in threads:
            thread.join(max(deadline - time.monotonic(), 0.1))
        with self.lock:
            left = [flow for flow in self.flows.values() if not flow.judged]
        for flow in left:
            self.broke("hang", f"flow {flow.number} ({flow.pair.name}, {flow.way.name}, {flow.style}) is not over at the end")
        time.sleep(1)
        self.write(time.monotonic() - begun, over=True)

    def write(self, seconds: float, over: bool) -> None:
        broken = {name: self.counts.get(f"BROKEN: {name}", 0) for name in ("wrong bytes", "silent end", "unexplained reset", "hang")}
        result = {
            "about": tunnel.about(self.arguments) | {"command": command()},
            "over": over,
            "minutes": round(seconds / 60, 2),
            "bytes": self.bytes,
            "broken": broken,
            "counts": {k: v for k, v in sorted(self.counts.items()) if not k.startswith("BROKEN")},
            "ended_by_themselves": [text for pair in self.pairs for text in pair.unexpected],
            "faults": {pair.name: dict(sorted(pair.counts.items())) for pair in self.pairs},
            "largest_gap_between_whole_flows_s": {k: round(v, 1) for k, v in self.largest_gap.items()},
            "left_at_the_end": {pair.name: pair.held() for pair in self.pairs},
            "flows_by_way": dict(sorted(self.by_way.items())),
            "texts": self.broken,
        }
        out = pathlib.Path(self.arguments.output)
        new = out.with_suffix(".new")
        new.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        os.replace(new, out)

    def close(self) -> None:
        for pair in self.pairs:
            pair.close()


def command() -> str:
    return " ".join(["python3", "soak.py", *(os.path.basename(a) if a.startswith("/") else a for a in sys.argv[1:])])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--narrows", default="target/release/narrows")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--rate", type=float, default=6, help="MB/s that all flows may carry together")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--commit", help="of the program, if it is not this folder's")
    parser.add_argument("-o", "--output", required=True)
    arguments = parser.parse_args()
    arguments.narrows = os.path.abspath(arguments.narrows)
    threading.stack_size(512 << 10)
    load.many_files()
    work = pathlib.Path(tempfile.mkdtemp(prefix="tunnel-soak-"))
    soak = Soak(arguments, work)
    try:
        soak.go()
    finally:
        soak.close()
    if any(k.startswith("BROKEN") for k in soak.counts):
        raise SystemExit(f"a rule was broken; the logs of the tunnels are in {work}")
    shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()
