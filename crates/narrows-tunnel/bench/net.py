"""Two hosts and the link between them, as network namespaces. Needs root.

A link without delay is a veth pair, shaped by the kernel's token bucket. Links with delay and loss (wifi, 4g)
are emulated by `narrows-lab link`, as kernels often lack netem.
"""

from __future__ import annotations

import os
import pathlib
import shlex
import subprocess
import time

NEAR, FAR = "ntb-near", "ntb-far"
NET = "10.79.0."
RATES = {"1 Mbit/s": 1_000_000, "10 Mbit/s": 10_000_000, "100 Mbit/s": 100_000_000, "1 Gbit/s": 1_000_000_000}
UNSHAPED = "unshaped"
PROFILES = {"wifi": "wifi", "4g": "4g", "1 % loss": "rate=100mbit,delay=10ms,loss=1%"}
# As the lab's links: a round trip, at least 20 ms and 96 packets may wait.
QUEUE_S, QUEUE_PACKETS, MTU = 0.02, 96, 1514
# What passes at once after a rest: 2 ms, at least a packet with its GSO neighbours.
BURST_S, BURST_MIN = 0.002, 4 * MTU
# Thousands of short connections a second between two addresses.
SYSCTLS = [
    "net.ipv4.ip_local_port_range=1024 65535",
    "net.ipv4.tcp_tw_reuse=1",
    "net.core.somaxconn=8192",
    "net.ipv4.tcp_max_syn_backlog=8192",
]


def sh(command: str, check: bool = True) -> None:
    quiet = None if check else subprocess.DEVNULL
    subprocess.run(shlex.split(command), check=check, stdout=subprocess.DEVNULL, stderr=quiet)


class Net:
    """Two hosts; `near` and `far` are the beginnings of commands that run there."""

    near: list[str]
    far: list[str]
    near_address: str
    far_address: str

    def tune(self) -> None:
        for host in (self.near, self.far):
            for setting in SYSCTLS:
                subprocess.run([*host, "sysctl", "-q", "-w", setting], stderr=subprocess.DEVNULL)

    def close(self) -> None:
        raise NotImplementedError


class Veth(Net):
    def __init__(self) -> None:
        self.near, self.far = (["ip", "netns", "exec", name] for name in (NEAR, FAR))
        self.near_address, self.far_address = NET + "1", NET + "2"
        self.close()
        for name in (NEAR, FAR):
            sh(f"ip netns add {name}")
        sh(f"ip link add eth0 netns {NEAR} type veth peer name eth0 netns {FAR}")
        for name, address in ((NEAR, self.near_address), (FAR, self.far_address)):
            sh(f"ip -n {name} addr add {address}/24 dev eth0")
            sh(f"ip -n {name} link set eth0 up")
            sh(f"ip -n {name} link set lo up")
        self.tune()

    def shape(self, link: str) -> None:
        for name in (NEAR, FAR):
            sh(f"tc -n {name} qdisc del dev eth0 root", check=False)
            if link != UNSHAPED:
                rate = RATES[link]
                burst = max(int(rate / 8 * BURST_S), BURST_MIN)
                limit = max(int(rate / 8 * QUEUE_S), QUEUE_PACKETS * MTU)
                sh(f"tc -n {name} qdisc add dev eth0 root tbf rate {rate}bit burst {burst} limit {limit}")

    def close(self) -> None:
        for name in (NEAR, FAR):
            sh(f"ip netns del {name}", check=False)


class Emulated(Net):
    """A link of the lab; both hosts live as long as the lab's process."""

    def __init__(self, lab: str, link: str, work: pathlib.Path) -> None:
        files = [work / "near.host", work / "far.host"]
        for file in files:
            file.unlink(missing_ok=True)
        told = [f"echo $$ $NARROWS_LINK_CLIENT $NARROWS_LINK_SERVER > {file}.new; mv {file}.new {file}; exec sleep 7200" for file in files]
        profile = PROFILES[link]
        command = [lab, "link", "--profile", profile, "--server", told[1], "--", "sh", "-c", told[0]]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        until = time.monotonic() + 20
        while not all(file.exists() for file in files):
            if time.monotonic() > until or self.process.poll() is not None:
                raise RuntimeError("narrows-lab link does not start")
            time.sleep(0.02)
        near, self.near_address, self.far_address = files[0].read_text().split()
        far = files[1].read_text().split()[0]
        self.near, self.far = (["nsenter", "-t", pid, "-n", "--"] for pid in (near, far))
        self.tune()

    def close(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def stop(process: subprocess.Popen[bytes], patience: float = 3.0) -> None:
    """Ends a process that this program started."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def tree(pid: int) -> list[int]:
    """A process and its descendants."""
    try:
        children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return [pid] if os.path.exists(f"/proc/{pid}") else []
    return [pid, *(p for child in children for p in tree(int(child)))]
