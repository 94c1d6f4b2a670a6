"""Properties of the descriptor."""

from seen.tools import *


@check
def flags_are_kept():
    def prepare(c):
        fcntl.fcntl(c, fcntl.F_SETOWN, os.getpid())
        c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 3)

    c, s = pair(prepare)
    c2, s2 = pair(lambda c: c.set_inheritable(True))
    return (
        fcntl.fcntl(c, fcntl.F_GETFD),
        fcntl.fcntl(c2, fcntl.F_GETFD),
        fcntl.fcntl(c, fcntl.F_GETFL) & os.O_NONBLOCK,
        fcntl.fcntl(c, fcntl.F_GETOWN) == os.getpid(),
        c.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT),
    )


@check
def accept_flags():
    out = []
    for flags in (0, socket.SOCK_NONBLOCK, socket.SOCK_CLOEXEC):
        with listener() as l:
            c = client()
            c.connect(l.getsockname())
            fd = libc.accept4(l.fileno(), None, None, flags)
            out.append((fcntl.fcntl(fd, fcntl.F_GETFD), fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_NONBLOCK))
            os.close(fd)
    return out


def with_timeout(option):
    def prepare(c):
        c.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", 0, 50000))

    return prepare


@check
def receive_timeout():
    c, s = pair(with_timeout(socket.SO_RCVTIMEO))
    return attempt(c.recv, 1), c.getsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, 16)[8:] != bytes(8)


@check
def send_timeout():
    c, s = pair(with_timeout(socket.SO_SNDTIMEO))
    # Compressible data would all fit into the buffers between the two ends.
    draw = random.Random(1)
    for _ in range(1000):
        r = attempt(c.send, draw.randbytes(1 << 16))
        if isinstance(r, str):
            return r
    return "never"


@check
def signal_when_readable():
    got = []
    before = signal.signal(signal.SIGIO, lambda *_: got.append(1))

    def prepare(c):
        fcntl.fcntl(c, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(c, fcntl.F_SETFL, os.O_ASYNC)

    c, s = pair(prepare)
    del got[:]
    s.sendall(b"x")
    wait_for(lambda: bool(got), True)
    c.close()
    s.close()
    signal.signal(signal.SIGIO, before)
    return bool(got)
