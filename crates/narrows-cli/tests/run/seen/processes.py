"""Sockets in more than one process."""

from seen.tools import *


def in_child(work):
    r, w = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(w, repr(work()).encode())
        finally:
            os._exit(0)
    os.close(w)
    os.waitpid(pid, 0)
    with os.fdopen(r, "rb") as f:
        return f.read()


@check
def forked_after_connect():
    c, s = pair()
    got = in_child(lambda: (c.send(b"abc"), peer_of(c, s)))
    c.close()
    return got, s.recv(10), s.recv(10)


@check
def forked_holds_the_socket():
    c, s = pair()
    r, w = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.read(r, 1)
        os._exit(0)
    c.close()
    before = settled(lambda: events(s))
    os.write(w, b"x")
    os.waitpid(pid, 0)
    return before, mask(s)


@check
def connected_in_a_child():
    with listener() as l:
        c = client()
        got = in_child(lambda: (c.connect(l.getsockname()), c.send(b"abc")))
        s, _ = l.accept()
        c.close()
        return got, s.recv(10), s.recv(10)


@check
def made_in_a_child():
    with listener() as l:

        def work():
            c = client()
            c.connect(l.getsockname())
            return c.send(b"abc")

        got = in_child(work)
        s, _ = l.accept()
        return got, s.recv(10), s.recv(10)


@check
def made_before_a_fork_connected_after():
    with listener() as l:
        c = client()
        in_child(lambda: 0)
        c.connect(l.getsockname())
        s, _ = l.accept()
        c.sendall(b"abc")
        return s.recv(10), peer_of(c, s)


INHERITS = "import socket,sys; s=socket.socket(fileno=int(sys.argv[1])); s.sendall(repr((s.family.name, s.getpeername()[0])).encode())"


@check
def inherited_across_exec():
    c, s = pair()
    c.set_inheritable(True)
    subprocess.run([sys.executable, "-c", INHERITS, str(c.fileno())], pass_fds=[c.fileno()], check=True)
    c.close()
    return all_of(s, 1000)


@check
def sent_to_a_process():
    a, b = socket.socketpair()
    c, s = pair()
    socket.send_fds(a, [b"x"], [c.fileno()])
    c.close()
    _, fds, _, _ = socket.recv_fds(b, 1, 1)
    other = socket.socket(fileno=fds[0])
    other.sendall(b"abc")
    return s.recv(10), peer_of(other, s)


@check
def started_without_fork():
    c, s = pair()
    pid = os.posix_spawn("/bin/true", ["true"], os.environ)
    os.waitpid(pid, 0)
    c.sendall(b"abc")
    return s.recv(10)


@check
def all_descriptors_closed():
    def work():
        os.closerange(3, 1000)
        with listener() as l:
            c = client()
            c.connect(l.getsockname())
            s, _ = l.accept()
            c.sendall(b"abc")
            return s.recv(10), peer_of(c, s)

    r, w = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.dup2(w, 0)
        os.write(0, repr(work()).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    return os.read(r, 1000)


@check
def errno_is_left_alone():
    with listener() as l:
        c = client()
        buffer = struct.pack("=HH4s8x", socket.AF_INET, socket.htons(l.getsockname()[1]), socket.inet_aton(SERVER))
        ctypes.set_errno(77)
        r = libc.connect(c.fileno(), buffer, 16)
        return r, ctypes.get_errno()
