# needs: python3
# scenarios: killed-after-write reset aborted half-close server-ends-first epoll-before-connect fork exec rights closed-all chroot slow-accept server-first urgent many descriptors-run-out refused blackholed threads supervisor-killed
"""Socket calls that are rare outside programs in C."""

import array
import encodings.idna  # noqa: address lookup needs it, and cannot import it in a chroot
import errno
import glob
import hashlib
import os
import random
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

role, scenario = sys.argv[1:3]
ADDR, PORT, PORT2 = os.environ["ADDR"], int(os.environ["PORT"]), int(os.environ["PORT2"])
BIG = os.path.join(os.environ["DATA"], "big")
ROUNDS = 100
socket.setdefaulttimeout(None)


def read_all(s):
    seen, size = hashlib.sha256(), 0
    while part := s.recv(1 << 16):
        seen.update(part)
        size += len(part)
    return f"{size} {seen.hexdigest()}\n".encode()


def read_line(s):
    line = b""
    while not line.endswith(b"\n"):
        part = s.recv(1)
        if not part:
            break
        line += part
    return line.decode().strip()


def reset(s):
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    s.close()


def end_of(s):
    try:
        return repr(s.recv(1))
    except OSError as e:
        return type(e).__name__


def allow_descriptors(count):
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, most))


def become_nobody():
    """Drops privileges, as daemons do; does nothing if not root."""
    if os.geteuid() == 0:
        os.chroot(".")
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)


def kill_supervisors():
    """Kills the supervisors on this host; returns their number."""
    killed = 0
    for folder in glob.glob("/proc/[0-9]*"):
        try:
            with open(folder + "/environ", "rb") as f:
                ours = f"NARROWS_LAB_CASE={os.environ['NARROWS_LAB_CASE']}".encode() in f.read().split(b"\0")
            with open(folder + "/comm") as f:
                ours = ours and f.read() == "narrows\n"
            if ours and os.readlink(folder + "/ns/net") == os.readlink("/proc/self/ns/net"):
                process = os.pidfd_open(int(folder[6:]))
                os.kill(int(folder[6:]), signal.SIGKILL)
                # Wait for its end: a socket handed over to a dying supervisor would be lost.
                select.select([process], [], [], 10)
                os.close(process)
                killed += 1
        except OSError:
            pass
    return killed


# --- server: the first line selects the service ---


def answer(s, peer):
    with s:
        word, *args = read_line(s).split()
        if word == "hash":
            result = read_all(s)
            with open("hash." + (args or ["0"])[0], "wb") as f:
                f.write(result)
            try:
                s.sendall(result)
            except OSError:
                pass
        elif word == "reset":
            s.sendall(bytes(int(args[0])))
            s.recv(1)
            reset(s)
        elif word == "close":
            s.sendall(bytes(int(args[0])))
            s.recv(1)
        elif word == "echo":
            while part := s.recv(1 << 16):
                s.sendall(part)
        elif word == "first":
            s.sendall(b"taken\n")
            s.shutdown(socket.SHUT_WR)
            with open("hash.0", "wb") as f:
                f.write(read_all(s))
        elif word == "end":
            end = "closed"
            try:
                if args[1] == "unread":
                    s.sendall(b"never read\n")
                while s.recv(1 << 16):
                    pass
            except OSError as e:
                end = type(e).__name__
            with open("end.tmp" + args[0], "w") as f:
                f.write(end)
            os.rename("end.tmp" + args[0], "end." + args[0])
        elif word == "take":
            threading.Thread(target=accept_from, args=[hole], daemon=True).start()
        elif word == "kill":
            with open("killed", "w") as f:
                f.write(str(kill_supervisors()))
        elif word == "peer":
            s.sendall(f"{peer[0]} {s.getsockname()}\n".encode())
        elif word == "urgent":
            s.setsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE, 1)
            data = b""
            while part := s.recv(100):
                data += part
            s.sendall(data[::-1])


def greet(s):
    with s:
        s.sendall(b"welcome to this server\n")
        s.sendall(read_line(s).upper().encode() + b"\n")


def accept_from(listener):
    while True:
        if scenario == "slow-accept":
            time.sleep(0.3)
        try:
            s, peer = listener.accept()
        except OSError as e:
            if e.errno != errno.EMFILE:
                raise
            # As servers do: new connections wait until others have closed.
            time.sleep(0.05)
            continue
        if scenario == "server-first":
            threading.Thread(target=greet, args=[s], daemon=True).start()
        else:
            threading.Thread(target=answer, args=[s, peer], daemon=True).start()


def serve():
    global hole
    listener = socket.create_server((ADDR, PORT), backlog=4096)
    if scenario == "blackholed":
        # A full accept queue answers no further connection.
        hole = socket.create_server((ADDR, PORT2), backlog=0)
        fills = socket.create_connection((ADDR, PORT2))
        fills.sendall(b"echo\n")
    if scenario == "descriptors-run-out":
        allow_descriptors(40)
    open("ready", "w").close()
    if scenario == "chroot":
        become_nobody()
    accept_from(listener)


# --- client ---


def connect():
    return socket.create_connection((ADDR, PORT), timeout=None)


def big_hash():
    with open(BIG, "rb") as f:
        data = f.read()
    return f"{len(data)} {hashlib.sha256(data).hexdigest()}"


def wait_for(path, size=61):
    for _ in range(2000):
        if os.path.exists(path) and os.path.getsize(path) >= size:
            with open(path) as f:
                return f.read().strip()
        time.sleep(0.01)
    return "nothing"


def tell(what, fine):
    print(f"{what}: {'right' if fine else 'FAILED'}")
    if not fine:
        sys.exit(1)


def killed_after_write():
    """A child writes everything and is killed at once; the server receives all of it."""
    for i in range(3):
        pid = os.fork()
        if pid == 0:
            s = connect()
            s.sendall(b"hash %d\n" % i)
            with open(BIG, "rb") as f:
                s.sendall(f.read())
            os.kill(os.getpid(), signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        tell("killed", os.WIFSIGNALED(status) and os.WTERMSIG(status) == 9)
        tell("what it wrote", wait_for(f"hash.{i}") == big_hash())


def resets():
    """The client sees each end as the server made it: reset or orderly, after any number of bytes."""
    mine, ends = random.Random(1), {}
    for i in range(ROUNDS):
        word, n = ("reset", "close")[i % 2], mine.randrange(100_000)
        with connect() as s:
            s.sendall(f"{word} {n}\n".encode())
            got = b""
            while len(got) < n:
                got += s.recv(n - len(got))
            s.sendall(b"x")
            end = end_of(s)
        ends[word, end] = ends.get((word, end), 0) + 1
    print(sorted(ends.items()))


def aborted():
    """The server sees what the client did: a reset, forced or due to unread data, or an end."""
    mine, ends = random.Random(2), {}
    for i in range(ROUNDS):
        word = ("reset", "unread", "closed")[i % 3]
        s = connect()
        s.sendall(b"end %d %s\n" % (i, word.encode()))
        s.sendall(bytes(mine.randrange(100_000)))
        if word == "unread":
            select.select([s], [], [], 10)
        reset(s) if word == "reset" else s.close()
        end = wait_for(f"end.{i}", 1)
        ends[word, end] = ends.get((word, end), 0) + 1
    print(sorted(ends.items()))


def half_close():
    with connect() as s:
        s.sendall(b"hash\n")
        with open(BIG, "rb") as f:
            s.sendfile(f)
        s.shutdown(socket.SHUT_WR)
        tell("answer after the half close", read_line(s) == big_hash())
        tell("end", s.recv(1) == b"")


def server_ends_first():
    """Data that the client sends after the server's end also arrives."""
    with connect() as s:
        s.sendall(b"first\n")
        tell("what the server said", s.makefile("rb").read() == b"taken\n")
        with open(BIG, "rb") as f:
            s.sendall(f.read())
    tell("what came after its end", wait_for("hash.0") == big_hash())


def epoll_before_connect():
    for triggered in (0, select.EPOLLET):
        s = socket.socket()
        s.setblocking(False)
        poll = select.epoll()
        poll.register(s, select.EPOLLIN | select.EPOLLOUT | triggered)
        tell("begun", s.connect_ex((ADDR, PORT)) in (0, 115))
        tell("writable", any(e & select.EPOLLOUT for _, e in poll.poll(10)))
        tell("no error", s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0)
        s.sendall(b"echo\nhello")
        poll.modify(s, select.EPOLLIN | triggered)
        tell("readable", [e & select.EPOLLIN for _, e in poll.poll(10)] == [select.EPOLLIN])
        tell("echo", s.recv(10) == b"hello")
        s.close()
        tell("gone from the set", poll.poll(0) == [])


def forked():
    """A connection that a child inherits, and one that a child makes."""
    s = connect()
    s.sendall(b"echo\n")
    pid = os.fork()
    if pid == 0:
        s.sendall(b"from the child")
        os._exit(0 if s.recv(14) == b"from the child" else 1)
    tell("child", os.waitpid(pid, 0)[1] == 0)
    s.sendall(b"from the parent")
    tell("parent", s.recv(15) == b"from the parent")
    s.close()
    s = socket.socket()
    pid = os.fork()
    if pid == 0:
        s.connect((ADDR, PORT))
        s.sendall(b"echo\nmine")
        os._exit(0 if s.recv(4) == b"mine" else 1)
    tell("child's own", os.waitpid(pid, 0)[1] == 0)


def executed():
    """The connection survives an exec, and so do its addresses."""
    with connect() as s:
        s.sendall(b"echo\n")
        os.set_inheritable(s.fileno(), True)
        there = "import socket,sys;s=socket.socket(fileno=int(sys.argv[1]));s.sendall(b'across');sys.exit(s.recv(6)!=b'across' or s.getpeername()[1]!=int(sys.argv[2]))"
        command = [sys.executable, "-c", there, str(s.fileno()), str(PORT)]
        tell("exec", subprocess.run(command, close_fds=False).returncode == 0)
        s.sendall(b"still")
        tell("here", s.recv(5) == b"still")


def rights():
    """A descriptor is passed to another process by SCM_RIGHTS."""
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        _, control, _, _ = theirs.recvmsg(1, 100)
        s = socket.socket(fileno=array.array("i", control[0][2])[0])
        s.sendall(b"echo\npassed")
        os._exit(0 if s.recv(6) == b"passed" and s.getpeername() == (ADDR, PORT) else 1)
    with connect() as s:
        ours.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [s.fileno()]))])
    tell("rights", os.waitpid(pid, 0)[1] == 0)


def closed_all():
    """Connections work after a daemon has closed all descriptors."""
    os.closerange(3, 1000)
    with connect() as s:
        s.sendall(b"peer\n")
        tell("names", read_line(s).split()[0] == s.getsockname()[0])


def chroot():
    """A program with a connection drops its privileges and enters a chroot; so does the server before it accepts."""
    s = connect()
    become_nobody()
    for s in (s, connect()):
        s.sendall(b"peer\n")
        tell("names", read_line(s).split()[0] == s.getsockname()[0] and s.getpeername() == (ADDR, PORT))


def slow_accept():
    with connect() as s:
        s.sendall(b"echo\nearly")
        tell("echo", s.recv(5) == b"early")


def server_first():
    for _ in range(20):
        with connect() as s:
            tell("greeting", read_line(s) == "welcome to this server")
            s.sendall(b"hello\n")
            tell("answer", read_line(s) == "HELLO")
            tell("end", s.recv(1) == b"")


def urgent():
    with connect() as s:
        s.sendall(b"urgent\nbefore")
        s.send(b"!", socket.MSG_OOB)
        time.sleep(0.05)
        s.sendall(b"after")
        s.shutdown(socket.SHUT_WR)
        got = b""
        while part := s.recv(100):
            got += part
        tell("urgent", got[::-1] == b"before!after")


def many():
    """1,000 connections at once, each with different bytes."""
    allow_descriptors(2000)
    opened = []
    for i in range(1000):
        s = connect()
        s.sendall(b"echo\n%08d" % i)
        opened.append(s)
    tell("own bytes", all(s.recv(8) == b"%08d" % i for i, s in enumerate(opened)))
    tell("own names", len({s.getsockname() for s in opened}) == len(opened))
    for s in opened:
        s.close()


def refused():
    s = socket.socket()
    try:
        s.connect((ADDR, PORT2))
    except OSError as e:
        print("blocking", type(e).__name__)
    s.connect((ADDR, PORT))
    s.sendall(b"echo\nagain")
    tell("the same socket again", s.recv(5) == b"again")
    s = socket.socket()
    s.setblocking(False)
    tell("begun", s.connect_ex((ADDR, PORT2)) in (111, 115))
    poll = select.poll()
    poll.register(s, select.POLLOUT)
    poll.poll(10_000)
    print("not blocking", s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) in (0, 111))
    print("then", s.connect_ex((ADDR, PORT)) in (103, 115))


def descriptors_run_out():
    """At both ends: the client gets as many as natively; connections wait while the server has no free descriptor."""
    allow_descriptors(64)
    opened = []
    try:
        while True:
            opened.append(connect())
            opened[-1].sendall(b"echo\n%08d" % len(opened))
    except OSError as e:
        print(len(opened), "connections, then", errno.errorcode[e.errno])
    for i, s in enumerate(opened, 1):
        tell(f"echo {i}", s.recv(8) == b"%08d" % i)
        s.close()
    with connect() as s:
        s.sendall(b"echo\nagain")
        tell("again", s.recv(5) == b"again")


def blackholed():
    """No answer: the client's timeout, the kernel's timeout, a close; and a connection that is answered late."""
    try:
        socket.create_connection((ADDR, PORT2), timeout=0.3)
    except OSError as e:
        print("after 0.3 s", type(e).__name__)
    s = socket.socket()
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_SYNCNT, 1)
    try:
        s.connect((ADDR, PORT2))
    except OSError as e:
        print("after one more attempt", errno.errorcode[e.errno])
    s = socket.socket()
    s.setblocking(False)
    print("begun", errno.errorcode[s.connect_ex((ADDR, PORT2))], errno.errorcode[s.connect_ex((ADDR, PORT2))])
    poll = select.poll()
    poll.register(s, select.POLLIN | select.POLLOUT)
    print("events", poll.poll(300))
    for call in (s.getpeername, lambda: s.send(b"x"), lambda: s.recv(1)):
        try:
            print(call())
        except OSError as e:
            print(errno.errorcode[e.errno])
    with connect() as other:
        other.sendall(b"take\n")
        tell("told", other.recv(1) == b"")
    tell("writable", poll.poll(20_000)[0][1] == select.POLLOUT)
    tell("no error", s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0)
    s.setblocking(True)
    s.sendall(b"echo\nlate")
    tell("echo", s.recv(4) == b"late")


def supervisor_killed():
    """A killed supervisor causes an error on its connections, never an end; new connections work."""
    with connect() as s, connect() as other:
        s.sendall(b"echo\nbefore")
        tell("before", s.recv(6) == b"before")
        other.sendall(b"kill\n")
        end_of(other)
        killed = kill_supervisors() + int(wait_for("killed", 1))
        if killed:
            tell("an error", end_of(s) == "ConnectionResetError")
        else:
            s.sendall(b"x")
            tell("an error", s.recv(1) == b"x")
    with connect() as s:
        s.sendall(b"echo\nafter")
        tell("after", s.recv(5) == b"after")


def threads():
    """One thread reads while another writes."""
    data = random.Random(3).randbytes(5 << 20)
    with connect() as s:
        s.sendall(b"echo\n")
        writer = threading.Thread(target=lambda: (s.sendall(data), s.shutdown(socket.SHUT_WR)))
        writer.start()
        got = bytearray()
        while part := s.recv(1 << 16):
            got += part
        writer.join()
        tell("both ways", bytes(got) == data)


if role == "server":
    serve()
else:
    signal.alarm(55)
    {
        "killed-after-write": killed_after_write,
        "reset": resets,
        "aborted": aborted,
        "half-close": half_close,
        "server-ends-first": server_ends_first,
        "epoll-before-connect": epoll_before_connect,
        "fork": forked,
        "exec": executed,
        "rights": rights,
        "closed-all": closed_all,
        "chroot": chroot,
        "slow-accept": slow_accept,
        "server-first": server_first,
        "urgent": urgent,
        "many": many,
        "descriptors-run-out": descriptors_run_out,
        "refused": refused,
        "blackholed": blackholed,
        "threads": threads,
        "supervisor-killed": supervisor_killed,
    }[scenario]()
