"""Programs of daily life across a tunnel: redis, HTTP, git, PostgreSQL's dump and replication.

    jobs.py redis HOST PORT FILE     sets and gets documents of 4 KB, 32 at a time
    jobs.py http HOST PORT COUNT     gets documents by four connections that stay open
"""

from __future__ import annotations

import http.client
import http.server
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import threading
import time

from net import Net, stop

REDIS, HTTP, GIT, POSTGRES = 9101, 9102, 9103, 9104
PORTS = [REDIS, HTTP, GIT, POSTGRES]
VALUE, BATCH = 4 << 10, 32
DOCUMENTS, DOCUMENT = 40, 60_000
ROWS_BYTES, REPLICATED_BYTES = 4_000_000, 2_500_000
CLIENT_S = 120
PG = "/usr/lib/postgresql"


def postgres_bin() -> pathlib.Path | None:
    found = sorted(pathlib.Path(PG).glob("*/bin/postgres"))
    return found[-1].parent if found else None


class Services:
    """The servers on the far host, with their data, which is made once."""

    def __init__(self, work: pathlib.Path, text: bytes) -> None:
        self.work, self.text = work, text
        self.processes: list[subprocess.Popen[bytes]] = []
        self.turn = 0
        work.mkdir(mode=0o711, exist_ok=True)
        self.names = ["http"]
        (work / "documents").mkdir()
        for i in range(DOCUMENTS):
            at = i * DOCUMENT % max(len(text) - DOCUMENT, 1)
            (work / "documents" / f"{i}.json").write_bytes(text[at : at + DOCUMENT])
        (work / "text").write_bytes(text)
        if shutil.which("redis-server"):
            self.names.append("redis")
        if shutil.which("git"):
            self.make_repository()
            self.names.append("git clone")
        if postgres_bin() and shutil.which("setpriv"):
            self.make_cluster()
            self.names += ["pg_dump", "PostgreSQL replication"]

    # --- data ---

    def make_repository(self) -> None:
        """The files of this project, in one commit."""
        tree, bare = self.work / "tree", self.work / "git" / "repository"
        tree.mkdir()
        top = subprocess.run(["git", "rev-parse", "--show-toplevel"], cwd=pathlib.Path(__file__).parent, capture_output=True, text=True, check=True).stdout.strip()
        subprocess.run(f"git -C '{top}' archive HEAD crates | tar -x -C '{tree}'", shell=True, check=True)
        git = ["git", "-c", "user.name=bench", "-c", "user.email=bench@example.com", "-c", "init.defaultBranch=main"]
        for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "bench"]):
            subprocess.run([*git, *words], cwd=tree, check=True, stdout=subprocess.DEVNULL)
        subprocess.run(["git", "clone", "-q", "--bare", str(tree), str(bare)], check=True)
        shutil.rmtree(tree)

    def as_postgres(self, *command: str) -> list[str]:
        return ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", "--", *command]

    def make_cluster(self) -> None:
        self.cluster = self.work / "postgres"
        self.cluster.mkdir()
        shutil.chown(self.cluster, "postgres", "postgres")
        self.cluster.chmod(0o700)
        initdb = [str((postgres_bin() or pathlib.Path()) / "initdb"), "-D", str(self.cluster), "-A", "trust", "-N", "--wal-segsize=1", "-E", "SQL_ASCII", "--locale=C"]
        subprocess.run(self.as_postgres(*initdb), check=True, stdout=subprocess.DEVNULL, cwd="/")
        with (self.cluster / "postgresql.conf").open("a") as file:
            file.write(
                f"listen_addresses = '*'\nport = {POSTGRES}\nfsync = off\nwal_level = replica\nmax_wal_senders = 20\n"
                f"max_replication_slots = 200\nunix_socket_directories = '{self.cluster}'\nautovacuum = off\n"
                "max_wal_size = 4GB\ncheckpoint_timeout = 1h\nshared_buffers = 32MB\nlog_min_messages = fatal\n"
            )
        with (self.cluster / "pg_hba.conf").open("a") as file:
            file.write("host all all 0.0.0.0/0 trust\nhost replication all 0.0.0.0/0 trust\n")
        self.is_filled = False

    def psql(self, text: str) -> str:
        command = ["psql", "-h", str(self.cluster), "-p", str(POSTGRES), "-d", "postgres", "-AtqX", "-v", "ON_ERROR_STOP=1"]
        done = subprocess.run(self.as_postgres(*command), input=text.encode("utf-8", "replace"), capture_output=True, cwd="/")
        if done.returncode != 0:
            raise RuntimeError(f"psql: {done.stderr.decode(errors='replace').strip()}")
        return done.stdout.decode().strip()

    def fill(self) -> None:
        lines = [line.replace(b"\\", b"\\\\").replace(b"\t", b" ").replace(b"\0", b"").replace(b"\r", b"") for line in self.text.split(b"\n") if line]
        rows = [b"%d\t%s" % (i, line[:2000]) for i, line in enumerate(lines)]

        def some(first: int, bytes_: int) -> tuple[str, int]:
            taken, used = [], 0
            i = first
            while used < bytes_:
                row = rows[i % len(rows)]
                taken.append(row)
                used += len(row) + 1
                i += 1
            return b"\n".join(taken).decode("latin-1").encode("ascii", "replace").decode(), i

        table, after = some(0, ROWS_BYTES)
        self.psql(f"create table rows(id int, line text);\ncopy rows from stdin;\n{table}\n\\.\ncheckpoint;\nselect pg_create_physical_replication_slot('base', true);\n")
        table, _ = some(after, REPLICATED_BYTES)
        self.psql(f"create table later(id int, line text);\ncopy later from stdin;\n{table}\n\\.\n")
        self.end = self.psql("select pg_current_wal_flush_lsn();")
        self.is_filled = True

    # --- running ---

    def start(self, net: Net, python: str) -> None:
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": (self.work / "log").open("ab")}
        run = lambda *command, **more: self.processes.append(subprocess.Popen([*net.far, *command], **{**quiet, **more}))
        run(python, __file__, "serve-http", str(self.work / "documents"))
        if "redis" in self.names:
            run("redis-server", "--port", str(REDIS), "--bind", "0.0.0.0", "--protected-mode", "no", "--save", "", "--appendonly", "no", cwd=str(self.work))
        if "git clone" in self.names:
            # Not `git daemon`, which would not pass the end on to its child.
            daemon = pathlib.Path(subprocess.run(["git", "--exec-path"], capture_output=True, text=True, check=True).stdout.strip()) / "git-daemon"
            run(str(daemon), f"--base-path={self.work / 'git'}", "--export-all", f"--port={GIT}", "--reuseaddr", env={**os.environ, "HOME": str(self.work)})
        if "pg_dump" in self.names:
            run(*self.as_postgres(str((postgres_bin() or pathlib.Path()) / "postgres"), "-D", str(self.cluster)), cwd="/")
            until = time.monotonic() + 20
            while True:
                try:
                    self.psql("select 1;")
                    break
                except RuntimeError:
                    if time.monotonic() > until:
                        raise
                    time.sleep(0.1)
            if not self.is_filled:
                self.fill()
        time.sleep(0.5)

    def close(self) -> None:
        for process in self.processes:
            stop(process)
        self.processes.clear()

    def client(self, job: str, host: str, port_of, python: str) -> list[str]:
        """The command of a job; what it needs is made now."""
        self.turn += 1
        into = self.work / f"into-{self.turn}"
        if job == "redis":
            return [python, __file__, "redis", host, str(port_of(REDIS)), str(self.work / "text")]
        if job == "http":
            return [python, __file__, "http", host, str(port_of(HTTP)), str(DOCUMENTS)]
        if job == "git clone":
            return ["git", "clone", "-q", "--bare", f"git://{host}:{port_of(GIT)}/repository", str(into)]
        where = ["-h", host, "-p", str(port_of(POSTGRES)), "-U", "postgres"]
        if job == "pg_dump":
            return ["pg_dump", *where, "-d", "postgres", "-t", "rows", "-f", "/dev/null"]
        slot = f"run{self.turn}"
        self.psql(f"select pg_copy_physical_replication_slot('base', '{slot}');")
        into.mkdir()
        return ["pg_receivewal", *where, "-D", str(into), "-S", slot, "--no-loop", "--no-sync", "--endpos", self.end]


def serve_http(folder: str) -> None:
    class Handler(http.server.SimpleHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1

        def __init__(self, *args: object) -> None:
            super().__init__(*args, directory=folder)  # type: ignore[arg-type]

        def log_message(self, *_: object) -> None:
            pass

    http.server.ThreadingHTTPServer(("0.0.0.0", HTTP), Handler).serve_forever()


def http_client(host: str, port: int, count: int) -> None:
    failed = []

    def some(first: int) -> None:
        try:
            conn = http.client.HTTPConnection(host, port, timeout=CLIENT_S)
            for i in range(first, count, 4):
                conn.request("GET", f"/{i}.json")
                if len(conn.getresponse().read()) != DOCUMENT:
                    raise OSError("a short document")
        except (OSError, http.client.HTTPException) as e:
            failed.append(e)

    threads = [threading.Thread(target=some, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise SystemExit(f"http: {failed[0]}")


def redis_client(host: str, port: int, path: str) -> None:
    text = pathlib.Path(path).read_bytes()
    conn = socket.create_connection((host, port), CLIENT_S)
    conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    answers = conn.makefile("rb")

    def command(*words: bytes) -> bytes:
        return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in words)

    values = [text[i * VALUE : (i + 1) * VALUE] for i in range(8 * BATCH)]
    for first in range(0, len(values), BATCH):
        conn.sendall(b"".join(command(b"SET", b"doc:%d" % i, values[i]) for i in range(first, first + BATCH)))
        for _ in range(BATCH):
            if answers.readline() != b"+OK\r\n":
                raise SystemExit("redis: a refused SET")
    for _ in range(2):
        for first in range(0, len(values), BATCH):
            conn.sendall(b"".join(command(b"GET", b"doc:%d" % i) for i in range(first, first + BATCH)))
            for i in range(first, first + BATCH):
                length = int(answers.readline()[1:])
                if answers.read(length + 2)[:-2] != values[i]:
                    raise SystemExit("redis: another value")


def main() -> None:
    command, *rest = sys.argv[1:]
    if command == "serve-http":
        serve_http(rest[0])
    elif command == "redis":
        redis_client(rest[0], int(rest[1]), rest[2])
    elif command == "http":
        http_client(rest[0], int(rest[1]), int(rest[2]))
    else:
        raise SystemExit(__doc__)


if __name__ == "__main__":
    main()
