"""Making of connections."""

from seen.tools import *


@check
def refused():
    c = client()
    return attempt(c.connect, refused_port())


@check
def refused_without_blocking():
    c = client()
    c.setblocking(False)
    first = attempt(c.connect, refused_port())
    # Whether loopback is refused within the call or after it depends on the kernel.
    told = first if first != "EINPROGRESS" else (mask(c), name(c.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)))[1]
    return told, name(c.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)), attempt(c.getpeername)


@check
def refusal_told_by_a_further_connect():
    """As redis-cli does: an error that connect has reported is not reported again by SO_ERROR."""
    c, port = client(), refused_port()
    c.setblocking(False)
    first = attempt(c.connect, port)
    events(c, 2000)
    second = attempt(c.connect, port)
    return second, name(c.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)), name(c.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))


@check
def connect_again_after_refusal():
    c = client()
    c.setblocking(False)
    attempt(c.connect, refused_port())
    mask(c)
    c.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    with listener() as l:
        # The first of these ends the failed attempt in the kernel.
        second = attempt(c.connect, l.getsockname())
        third = attempt(c.connect, l.getsockname())
        s, _ = l.accept()
        wait_for(lambda: "OUT" in events(c), True)
        c.send(b"abc")
        return second, third, s.recv(10), c.getsockname()[0]


@check
def without_blocking():
    with listener() as l:
        c = client()
        c.setblocking(False)
        first = attempt(c.connect, l.getsockname())
        wait_for(lambda: "OUT" in events(c), True)
        error = c.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        s, _ = l.accept()
        c.send(b"abc")
        return first, mask(c), error, s.recv(10), peer_of(c, s)


@check
def connect_three_times():
    with listener() as l:
        c = client()
        c.setblocking(False)
        first = attempt(c.connect, l.getsockname())
        wait_for(lambda: "OUT" in events(c), True)
        return first, attempt(c.connect, l.getsockname()), attempt(c.connect, l.getsockname())


@check
def connect_a_connected_socket():
    c, s = pair()
    return attempt(c.connect, (SERVER, 9))


@check
def accepted_by_the_thread_that_connects():
    """As CPython makes a pair of sockets where the system has none: within a host it is connected at once."""
    seen = set()
    for _ in range(30):
        with listener() as l:
            c = client()
            c.setblocking(False)
            attempt(c.connect, l.getsockname())
            s, _ = l.accept()
            seen.add((peer_of(c, s), attempt(c.send, b"abc"), s.recv(3), attempt(c.connect, l.getsockname()), attempt(c.connect, l.getsockname())))
    return seen


@check
def python_timeout_connect():
    with listener() as l:
        c = client()
        c.settimeout(5)
        c.connect(l.getsockname())
        s, _ = l.accept()
        s.sendall(b"abc")
        return c.recv(10)


@check
def selected():
    with listener() as l:
        c = client()
        c.setblocking(False)
        attempt(c.connect, l.getsockname())
        r, w, x = select.select([], [c], [], 5)
        return len(w)


def epoll_before_connect(flags):
    with listener() as l, select.epoll() as e:
        c = client()
        c.setblocking(False)
        e.register(c, flags)
        e.modify(c, flags | select.EPOLLOUT)
        attempt(c.connect, l.getsockname())
        s, _ = l.accept()
        first = e.poll(5)
        e.modify(c, select.EPOLLIN)
        s.sendall(b"abc")
        second = e.poll(5)
        e.unregister(c)
        return [(fd == c.fileno(), m) for fd, m in first], [(fd == c.fileno(), m) for fd, m in second], c.recv(9)


@check
def registered_before_connect():
    return epoll_before_connect(select.EPOLLIN)


@check
def registered_edge_triggered_before_connect():
    return epoll_before_connect(select.EPOLLIN | select.EPOLLET)


@check
def registered_before_blocking_connect():
    with listener() as l, select.epoll() as e:
        c = client()
        e.register(c, select.EPOLLIN)
        c.connect(l.getsockname())
        s, _ = l.accept()
        s.sendall(b"abc")
        return [(fd == c.fileno(), m) for fd, m in e.poll(5)], c.recv(9)


@check
def duplicated_before_connect():
    out = []
    for twin in (lambda c: os.dup(c.fileno()), lambda c: os.dup2(c.fileno(), 200), lambda c: fcntl.fcntl(c, fcntl.F_DUPFD, 150)):
        with listener() as l:
            c = client()
            other = twin(c)
            c.connect(l.getsockname())
            s, _ = l.accept()
            os.write(other, b"abc")
            c.sendall(b"def")
            out.append(all_of(s, 6))
            c.close()
            still = events(s)
            os.close(other)
            out.append((still, s.recv(1)))
    return out


def stuck():
    """A connection under way: the server's queue is full, so it does not answer."""
    l = socket.socket()
    l.bind((SERVER, 0))
    l.listen(0)
    others = [client() for _ in range(4)]
    for c in others:
        c.setblocking(False)
        attempt(c.connect, l.getsockname())
    time.sleep(0.1)
    c = client()
    c.setblocking(False)
    return l, c, others, attempt(c.connect, l.getsockname())


@check
def under_way():
    l, c, others, first = stuck()
    before = events(c, 100), attempt(c.send, b"x"), attempt(c.recv, 1), attempt(c.getpeername), attempt(c.connect, l.getsockname())
    l.settimeout(5)
    served = []
    while True:
        s, a = l.accept()
        served.append(s)
        if a == c.getsockname():
            break
    wait_for(lambda: "OUT" in events(c), True)
    c.send(b"abc")
    return first, before, s.recv(10), c.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR), peer_of(c, s)


@check
def interrupted_and_waited_for():
    l, c, others, first = stuck()
    c.close()
    c = client()
    address = struct.pack("=HH4s8x", socket.AF_INET, socket.htons(l.getsockname()[1]), socket.inet_aton(SERVER))
    connect = lambda: (libc.connect(c.fileno(), address, 16), name(ctypes.get_errno()))
    out = []
    c.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("qq", 0, 100000))
    out += [connect(), connect()]
    c.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("qq", 0, 0))
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    me = threading.get_ident()
    threading.Timer(0.2, lambda: signal.pthread_kill(me, signal.SIGUSR1)).start()
    out.append(connect())
    signal.signal(signal.SIGUSR1, before)
    served = []

    def serve():
        while True:
            s, a = l.accept()
            served.append(s)
            if a == c.getsockname():
                return

    l.settimeout(8)
    server = threading.Timer(0.2, serve)
    server.start()
    out.append(connect()[0])
    server.join()
    c.send(b"abc")
    return out, served[-1].recv(10), connect()


@check
def dissolved():
    c, s = pair()
    nothing = struct.pack("=H14x", socket.AF_UNSPEC)
    first = libc.connect(c.fileno(), nothing, 16), attempt(c.getpeername), attempt(s.recv, 10)
    # TCP keeps the local address, and `narrows` does not.
    attempt(c.bind, (CLIENT, 0))
    with listener() as l:
        c.connect(l.getsockname())
        t, _ = l.accept()
        c.sendall(b"abc")
        return first, t.recv(10)


@check
def closed_under_way():
    l, c, others, first = stuck()
    name = c.getsockname()
    c.close()
    [o.close() for o in others]
    l.settimeout(1.5)
    seen = []
    while True:
        got = attempt(l.accept)
        if got == "timeout":
            return name in seen
        seen.append(got[1])


@check
def bound_port_is_kept():
    c = client()
    port = c.getsockname()
    with listener() as l:
        c.connect(l.getsockname())
        s, a = l.accept()
        return c.getsockname() == port, a == port
