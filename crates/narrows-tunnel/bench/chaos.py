"""Tunnels for the soak, and what is done to them: processes are killed, stopped and replaced, carriers are cut,
frozen and damaged, certificates are exchanged. All on this host's loopback.
"""

from __future__ import annotations

import os
import pathlib
import random
import signal
import socket
import stat
import struct
import subprocess
import threading
import time
from dataclasses import dataclass, field

import ways

# Longer than a silent peer is believed alive (45 s).
LONG_S = 52.0
LONG_SHARE = 0.03
# A server that is replaced lets its flows go on for so long.
DRAIN_S = 4
# A killed end is there again within this time, and the tunnel is up: the dialer waits up to 30 s between attempts.
UP_AGAIN_S = 40.0


def free_port() -> int:
    """Below the ephemeral ports, so that no client's own socket takes it while nobody listens."""
    while True:
        port = random.SystemRandom().randrange(12_000, 30_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue


@dataclass
class Fault:
    kind: str
    begun: float
    # When what it did is surely over; infinite while it lasts.
    over: float = float("inf")


class Relay:
    """Passes the carriers of a tunnel on, and spoils them on demand."""

    def __init__(self, to: int) -> None:
        self.to = to
        self.listening = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port = self.listening.getsockname()[1]
        self.lock = threading.Lock()
        self.links: list[tuple[socket.socket, socket.socket]] = []
        # Links of which one direction is over.
        self.ended: set[tuple[socket.socket, socket.socket]] = set()
        self.frozen_until = 0.0
        self.damage = 0
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        while True:
            near, _ = self.listening.accept()
            try:
                far = socket.create_connection(("127.0.0.1", self.to), 5)
            except OSError:
                near.close()
                continue
            for end in (near, far):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                end.settimeout(None)
            with self.lock:
                self.links.append((near, far))
            for a, b in ((near, far), (far, near)):
                threading.Thread(target=self.carry, args=(a, b), daemon=True).start()

    def carry(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(1 << 16):
                while time.monotonic() < self.frozen_until:
                    time.sleep(0.05)
                if self.damage > 0:
                    self.damage -= 1
                    at = len(data) // 2
                    data = data[:at] + bytes([data[at] ^ 0x20]) + data[at + 1 :]
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
            with self.lock:
                link = (source, sink) if (source, sink) in self.links else (sink, source)
                if link in self.ended:
                    self.ended.discard(link)
                    self.links.remove(link)
                    source.close()
                    sink.close()
                else:
                    self.ended.add(link)
        except (OSError, ValueError):
            self.drop(source, sink)

    def drop(self, *ends: socket.socket) -> None:
        for end in ends:
            try:
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            end.close()

    def some(self, rng: random.Random, all_: bool) -> list[tuple[socket.socket, socket.socket]]:
        with self.lock:
            self.links = [link for link in self.links if link[0].fileno() >= 0]
            self.ended &= set(self.links)
            return list(self.links) if all_ else rng.sample(self.links, min(1, len(self.links)))

    def cut(self, rng: random.Random, all_: bool) -> None:
        for link in self.some(rng, all_):
            self.drop(*link)

    def end(self, rng: random.Random) -> None:
        """An orderly end of TCP in the middle of TLS."""
        for near, far in self.some(rng, False):
            for end in (near, far):
                try:
                    end.shutdown(socket.SHUT_WR)
                except OSError:
                    pass


@dataclass
class Way:
    """How a client comes in."""

    name: str
    address: tuple[str, int] | str
    socks: int = 0
    unix_target: bool = False

    @property
    def unix_client(self) -> bool:
        return isinstance(self.address, str)


@dataclass
class Pair:
    """Two ends of a tunnel, and how its clients come in."""

    name: str
    work: pathlib.Path
    narrows: str
    target: int
    unix_target: str
    refusing: int
    style: str
    faults_of: list[str]
    rng: random.Random
    faults: list[Fault] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    unexpected: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.work.mkdir()
        self.near: subprocess.Popen[bytes] | None = None
        self.far: subprocess.Popen[bytes] | None = None
        self.leaving: list[subprocess.Popen[bytes]] = []
        self.lock = threading.Lock()
        self.port = free_port()
        ports = {name: free_port() for name in ("tcp", "to-unix", "socks", "reverse", "refusing")}
        here = "127.0.0.1"
        paths = {name: str(self.work / f"{name}.socket") for name in ("unix", "both")}
        self.ways = [
            Way("-L", (here, ports["tcp"])),
            Way("-L to unix", (here, ports["to-unix"]), unix_target=True),
            Way("-L unix", paths["unix"]),
            Way("-L unix to unix", paths["both"], unix_target=True),
            Way("-D", (here, ports["socks"]), socks=self.target),
            Way("-R", (here, ports["reverse"])),
        ]
        self.refused = Way("-L refused", (here, ports["refusing"]))
        to = f"{here}:{self.target}"
        self.forwards = ["-L", f"{ports['tcp']}:{to}", "-L", f"{ports['to-unix']}:{self.unix_target}"]
        self.forwards += ["-L", f"{paths['unix']}:{to}", "-L", f"{paths['both']}:{self.unix_target}"]
        self.forwards += ["-D", str(ports["socks"]), "-R", f"{ports['reverse']}:{to}"]
        self.forwards += ["-L", f"{ports['refusing']}:{here}:{self.refusing}"]
        self.relay = Relay(self.port) if "cut" in self.faults_of else None
        if self.style == "certificates":
            ways.authority(self.work)
            self.certify("ca")
        if self.style == "shell":
            # As a remote shell: forgets the host and runs the command.
            shell = self.work / "shell"
            shell.write_text('#!/bin/sh\nshift\nexec sh -c "$*"\n')
            shell.chmod(0o755)
        self.start_far()
        time.sleep(0.3)
        self.start_near()

    # --- processes ---

    def certify(self, ca: str) -> None:
        for end in ("near", "far"):
            ways.certificate(self.work, end, "127.0.0.1", ca)

    def proof(self, end: str) -> list[str]:
        if self.style == "certificates":
            return ["--cert", f"{self.work / end}.pem", "--key", f"{self.work / end}.key", "--ca", str(self.work / "ca.pem")]
        if end == "near":
            return ["--token-file", str(self.work / "token")]
        return ["--key-file", str(self.work / "key"), "--token-out", str(self.work / "token")]

    def spawn(self, end: str, *words: str) -> subprocess.Popen[bytes]:
        log = (self.work / f"{end}.log").open("ab")
        command = [self.narrows, "tunnel", *words]
        # With a log, which says when and why each flow ended.
        environment = {**os.environ, "NARROWS_LOG": "info"}
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log, env=environment)

    def start_far(self) -> None:
        if self.style == "shell":
            return
        rules = ["--allow", "any", "--allow-listen", "any", "--drain", str(DRAIN_S)]
        self.far = self.spawn("far", "--listen", f"127.0.0.1:{self.port}", *rules, *self.proof("far"))

    def start_near(self) -> None:
        if self.style == "shell":
            to = ["-e", str(self.work / "shell"), "--remote-narrows", self.narrows, "host"]
        else:
            to = [*self.proof("near"), f"narrows://127.0.0.1:{self.relay.port if self.relay else self.port}"]
        until = time.monotonic() + 5
        while self.style == "token" and not (self.work / "token").exists() and time.monotonic() < until:
            time.sleep(0.05)
        self.near = self.spawn("near", *self.forwards, "--keep-trying", *to)

    def far_of_shell(self) -> int | None:
        """The far end behind the remote shell: a child of the near one."""
        children = [pid for pid in ways.tree(self.near.pid)[1:]] if self.near else []
        return children[-1] if children else None

    def mend(self) -> None:
        """Starts again what is over, which nothing but a fault should have caused."""
        for end in ("far", "near"):
            process = getattr(self, end)
            if process is not None and process.poll() is not None:
                log = (self.work / f"{end}.log").read_text(errors="replace")[-400:]
                self.unexpected.append(f"{self.name}, {end}: status {process.returncode}: {log}")
                self.count("ended by itself")
                now = time.monotonic()
                self.faults.append(Fault("ended by itself", now - 5, now + UP_AGAIN_S))
                (self.start_far if end == "far" else self.start_near)()

    def count(self, kind: str) -> None:
        self.counts[kind] = self.counts.get(kind, 0) + 1

    # --- faults ---

    def one_fault(self) -> None:
        """Does something to the tunnel, and returns when it is over; how long flows may feel it is recorded."""
        kind = self.rng.choice(self.faults_of)
        if kind in ("reload", "new authority"):
            self.exchange(kind)
            self.count(kind)
            return
        long = self.rng.random() < LONG_SHARE
        fault = Fault(kind, time.monotonic())
        with self.lock:
            self.faults.append(fault)
        felt = UP_AGAIN_S
        end = self.rng.choice(["near", "far"])
        if kind == "kill":
            self.kill(end)
        elif kind == "stop":
            self.halt(end, LONG_S if long else self.rng.uniform(0.05, 3))
            felt = UP_AGAIN_S if long else 2.0
        elif kind == "replace":
            self.replace()
        elif kind == "cut" and self.relay:
            self.relay.cut(self.rng, self.rng.random() < 0.3)
        elif kind == "end" and self.relay:
            self.relay.end(self.rng)
        elif kind == "damage" and self.relay:
            self.relay.damage = 1
        elif kind == "freeze" and self.relay:
            seconds = LONG_S if long else self.rng.uniform(0.1, 4)
            self.relay.frozen_until = time.monotonic() + seconds
            time.sleep(seconds)
            felt = UP_AGAIN_S if long else 2.0
        self.count(kind + (", long" if long and kind in ("stop", "freeze") else ""))
        fault.over = time.monotonic() + felt

    def pid(self, end: str) -> int | None:
        if end == "far" and self.style == "shell":
            return self.far_of_shell()
        process = getattr(self, end)
        return process.pid if process is not None and process.poll() is None else None

    def kill(self, end: str) -> None:
        pid = self.pid(end)
        if pid is None:
            return
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        if end == "far" and self.style == "shell":
            return
        getattr(self, end).wait()
        time.sleep(self.rng.choice([0, 0, 0.2, 1.5, 7]))
        (self.start_far if end == "far" else self.start_near)()

    def halt(self, end: str, seconds: float) -> None:
        pid = self.pid(end)
        if pid is None:
            return
        try:
            os.kill(pid, signal.SIGSTOP)
            time.sleep(seconds)
            os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:
            pass

    def replace(self) -> None:
        """A new server takes the port over while the old one lets its flows go on."""
        if self.far is None or self.far.poll() is not None:
            return
        self.leaving.append(self.far)
        self.far.terminate()
        # Its listener closes at its next look at signals.
        time.sleep(0.3)
        self.start_far()
        self.leaving = [p for p in self.leaving if p.poll() is None]

    def exchange(self, kind: str) -> None:
        """Other certificates, of the same authority or of another. No open flow may feel it."""
        if kind == "new authority":
            ways.authority(self.work, "next")
            # For a moment both are trusted, or the ends would change at the same instant.
            old = (self.work / "ca.pem").read_text()
            self.put("ca.pem", old + (self.work / "next.pem").read_text())
            time.sleep(2.5)
            self.certify("next")
            time.sleep(2.5)
            os.replace(self.work / "next.key", self.work / "ca.key")
            self.put("ca.pem", (self.work / "next.pem").read_text())
        else:
            self.certify("ca")
            if self.rng.random() < 0.5 and (pid := self.pid(self.rng.choice(["near", "far"]))):
                os.kill(pid, signal.SIGHUP)
        time.sleep(1.5)

    def put(self, name: str, text: str) -> None:
        new = self.work / f"{name}.new"
        new.write_text(text)
        os.replace(new, self.work / name)

    def explains(self, begun: float, ended: float) -> bool:
        """Whether a fault can have been felt by a flow in this time."""
        with self.lock:
            return any(f.begun - 0.5 <= ended and begun <= f.over for f in self.faults)

    # --- the end ---

    def held(self) -> dict[str, dict[str, float]]:
        """Descriptors and memory of both ends."""
        found = {}
        for end in ("near", "far"):
            if (pid := self.pid(end)) is not None:
                try:
                    links = [os.stat(f"/proc/{pid}/fd/{fd}").st_mode for fd in os.listdir(f"/proc/{pid}/fd")]
                    status = pathlib.Path(f"/proc/{pid}/status").read_text()
                except OSError:
                    continue
                rss = next((int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")), 0)
                found[end] = {"sockets": sum(stat.S_ISSOCK(mode) for mode in links), "rss_mb": round(rss / 1024, 1)}
        return found

    def close(self) -> None:
        for process in [self.near, self.far, *self.leaving]:
            if process is not None:
                ways.stop(process)
