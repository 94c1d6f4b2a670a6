"""The ways from one host to services of the other: directly, by ssh, stunnel, haproxy, and by `narrows tunnel`.

Each way is up for as long as it is used, and gives each service a port on the near host. TLS is mutual, with
P-256 certificates of one authority.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import time

from net import Net, stop, tree

# Ports of the ways: as many as there are services, on either host.
FIRST_PORT = 20_000
STEP = 20
START_S = 20
QUIET = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}


def find(name: str) -> str | None:
    return shutil.which(name, path=os.environ["PATH"] + ":/usr/sbin:/usr/local/sbin")


# --- keys ---


def openssl(*words: str) -> None:
    subprocess.run(["openssl", *words], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def authority(folder: pathlib.Path, name: str = "ca") -> None:
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    files = ["-keyout", str(folder / f"{name}.key"), "-out", str(folder / f"{name}.pem")]
    openssl("req", "-x509", *key, *files, "-days", "30", "-subj", f"/CN=bench {name}")


def certificate(folder: pathlib.Path, name: str, address: str, ca: str = "ca") -> None:
    """NAME.pem, NAME.key, and both in NAME.both."""
    request, extensions = folder / f"{name}.csr", folder / f"{name}.ext"
    made = {end: folder / f"{name}.{end}" for end in ("pem", "key", "both")}
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", f"{made['key']}.new"]
    openssl("req", *key, "-out", str(request), "-subj", f"/CN={name}")
    extensions.write_text(f"subjectAltName=IP:{address},DNS:{name}\n")
    by = ["-CA", str(folder / f"{ca}.pem"), "-CAkey", str(folder / f"{ca}.key"), "-CAcreateserial"]
    openssl("x509", "-req", "-in", str(request), *by, "-days", "30", "-extfile", str(extensions), "-out", f"{made['pem']}.new")
    os.replace(f"{made['key']}.new", made["key"])
    os.replace(f"{made['pem']}.new", made["pem"])
    made["both"].write_text(made["pem"].read_text() + made["key"].read_text())


# --- ways ---


class Way:
    """A way in use. `ports` are those of services at the far host, 127.0.0.1 or all addresses."""

    name = ""
    number = 0

    def __init__(self, net: Net, ports: list[int], work: pathlib.Path, narrows: str) -> None:
        self.net, self.ports, self.narrows = net, ports, narrows
        self.work = work / self.name.replace(" ", "-")
        self.work.mkdir(parents=True, exist_ok=True)
        self.keys = work
        self.base = FIRST_PORT + self.number * STEP
        self.processes: list[subprocess.Popen[bytes]] = []
        try:
            self.start()
            self.wait()
        except BaseException:
            self.close()
            raise

    @classmethod
    def missing(cls) -> str | None:
        """What is not installed."""
        return None

    def start(self) -> None:
        raise NotImplementedError

    def to(self, port: int) -> tuple[str, int]:
        """Where a client on the near host connects to."""
        return "127.0.0.1", self.base + self.ports.index(port)

    def forwards(self) -> list[tuple[int, int]]:
        return [(self.base + i, port) for i, port in enumerate(self.ports)]

    def run(self, host: list[str], *command: str, **options: object) -> subprocess.Popen[bytes]:
        log = (self.work / "log").open("ab")
        self.processes.append(subprocess.Popen([*host, *command], **QUIET, stderr=log, **options))  # type: ignore[call-overload]
        return self.processes[-1]

    def wait(self) -> None:
        """Until the way is there: the first service answers."""
        host, port = self.to(self.ports[0])
        until = time.monotonic() + START_S
        probe = ["python3", "-c", "import socket,sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 2)", host, str(port)]
        while subprocess.run([*self.net.near, *probe], stderr=subprocess.DEVNULL).returncode != 0:
            if time.monotonic() > until or any(p.poll() is not None for p in self.processes):
                raise RuntimeError(f"{self.name} does not start; see {self.work / 'log'}")
            time.sleep(0.1)

    def close(self) -> None:
        for process in self.processes:
            stop(process)

    def pids(self) -> list[int]:
        return [p for process in self.processes for p in tree(process.pid)]


class Plain(Way):
    name = "plain TCP"

    def start(self) -> None:
        pass

    def to(self, port: int) -> tuple[str, int]:
        return self.net.far_address, port


class Ssh(Way):
    name = "ssh -L"
    number = 1
    options: list[str] = []

    @classmethod
    def missing(cls) -> str | None:
        return None if find("sshd") and find("ssh") else "an OpenSSH server"

    def sshd(self) -> int:
        for key in ("host", "user"):
            if not (self.work / key).exists():
                subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.work / key)], check=True)
        pathlib.Path("/run/sshd").mkdir(exist_ok=True)
        port = self.base + STEP - 1
        server = [find("sshd") or "sshd", "-D", "-e", "-f", "/dev/null", "-o", f"Port={port}"]
        server += ["-o", f"ListenAddress={self.net.far_address}", "-o", f"HostKey={self.work / 'host'}"]
        server += ["-o", f"AuthorizedKeysFile={self.work / 'user.pub'}", "-o", "StrictModes=no"]
        server += ["-o", "PidFile=none", "-o", "UseDNS=no", "-o", "PermitRootLogin=yes"]
        self.run(self.net.far, *server)
        time.sleep(0.3)
        return port

    def client(self, port: int) -> list[str]:
        options = ["BatchMode=yes", "StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "LogLevel=ERROR", "ExitOnForwardFailure=yes"]
        return ["ssh", "-F", "none", "-p", str(port), "-i", str(self.work / "user"), *(w for o in options for w in ("-o", o))]

    def start(self) -> None:
        command = [*self.client(self.sshd()), *self.options, "-N"]
        for local, port in self.forwards():
            command += ["-L", f"127.0.0.1:{local}:127.0.0.1:{port}"]
        self.run(self.net.near, *command, f"root@{self.net.far_address}")


class SshC(Ssh):
    name = "ssh -L -C"
    number = 2
    options = ["-C"]


class Stunnel(Way):
    name = "stunnel"
    number = 3

    @classmethod
    def missing(cls) -> str | None:
        return None if find("stunnel") else "stunnel4"

    def start(self) -> None:
        common = "foreground = yes\npid =\ndebug = 3\nsslVersion = TLSv1.3\nsocket = l:TCP_NODELAY=1\nsocket = r:TCP_NODELAY=1\n"
        for end, host in (("far", self.net.far), ("near", self.net.near)):
            text = common + f"cert = {self.keys / end}.pem\nkey = {self.keys / end}.key\nCAfile = {self.keys / 'ca.pem'}\nverifyChain = yes\n"
            text += "client = yes\n" if end == "near" else ""
            for local, port in self.forwards():
                a, b = (f"127.0.0.1:{local}", f"{self.net.far_address}:{local}")
                accept, connect = (a, b) if end == "near" else (b, f"127.0.0.1:{port}")
                text += f"[s{port}]\naccept = {accept}\nconnect = {connect}\n"
            (self.work / f"{end}.conf").write_text(text)
            self.run(host, find("stunnel") or "stunnel", str(self.work / f"{end}.conf"))


class Haproxy(Way):
    name = "haproxy TLS"
    number = 4

    @classmethod
    def missing(cls) -> str | None:
        return None if find("haproxy") else "haproxy"

    def start(self) -> None:
        common = "global\n  maxconn 9000\n  nbthread 2\n  ssl-default-bind-options ssl-min-ver TLSv1.3\ndefaults\n  mode tcp\n"
        common += "  timeout connect 10s\n  timeout client 1h\n  timeout server 1h\n"
        for end, host in (("far", self.net.far), ("near", self.net.near)):
            text = common
            tls = f"ssl crt {self.keys / end}.both ca-file {self.keys / 'ca.pem'} verify required"
            for local, port in self.forwards():
                there = f"{self.net.far_address}:{local}"
                bind, server = (f"127.0.0.1:{local}", f"{there} {tls}") if end == "near" else (f"{there} {tls}", f"127.0.0.1:{port}")
                text += f"listen s{port}\n  bind {bind}\n  server far {server}\n"
            (self.work / f"{end}.conf").write_text(text)
            self.run(host, find("haproxy") or "haproxy", "-db", "-q", "-f", str(self.work / f"{end}.conf"))


class Narrows(Way):
    name = "narrows tunnel"
    number = 5

    def far_end(self) -> list[str]:
        return ["--key-file", str(self.work / "key"), "--token-out", str(self.work / "token")]

    def near_end(self) -> list[str]:
        return ["--token-file", str(self.work / "token")]

    def start(self) -> None:
        port = self.base + STEP - 1
        there = f"{self.net.far_address}:{port}"
        (self.work / "token").unlink(missing_ok=True)
        self.run(self.net.far, self.narrows, "tunnel", "--listen", there, "--allow", "any", *self.far_end())
        # Whoever finds the token can connect.
        until = time.monotonic() + START_S
        while type(self) is Narrows and not (self.work / "token").exists() and time.monotonic() < until:
            time.sleep(0.02)
        time.sleep(0.5)
        command = [self.narrows, "tunnel", *self.near_end()]
        for local, to in self.forwards():
            command += ["-L", f"127.0.0.1:{local}:127.0.0.1:{to}"]
        self.run(self.net.near, *command, f"narrows://{there}")


class NarrowsCertificates(Narrows):
    """As Narrows, proved by certificates that can be exchanged."""

    name = "narrows tunnel, certificates"
    number = 6

    def far_end(self) -> list[str]:
        return self.files("far")

    def near_end(self) -> list[str]:
        return self.files("near")

    def files(self, end: str) -> list[str]:
        return ["--cert", f"{self.keys / end}.pem", "--key", f"{self.keys / end}.key", "--ca", str(self.keys / "ca.pem")]


class NarrowsSsh(Ssh):
    name = "narrows tunnel -e ssh"
    number = 7

    def start(self) -> None:
        client = self.client(self.sshd())
        command = [self.narrows, "tunnel", "-e", " ".join(client), "--remote-narrows", self.narrows]
        for local, to in self.forwards():
            command += ["-L", f"127.0.0.1:{local}:127.0.0.1:{to}"]
        self.run(self.net.near, *command, f"root@{self.net.far_address}")


WAYS: list[type[Way]] = [Plain, Ssh, SshC, Stunnel, Haproxy, Narrows, NarrowsSsh]
BY_NAME = {way.name: way for way in [*WAYS, NarrowsCertificates]}
