"""Sockets with more than one holder, and calls that wait for more data than there is."""

from seen.tools import *


def exchange(sock, size=50000):
    """Sends data to `echo` and compares what comes back."""
    data = noise(size)
    sock.settimeout(5)
    try:
        sock.sendall(data)
        return "same" if all_of(sock, size) == data else "other bytes"
    except OSError as error:
        return type(error).__name__


def echo(listening, count):
    """Echoes this many connections, one after another."""

    def serve():
        for _ in range(count):
            s, _ = listening.accept()
            with s:
                while part := s.recv(1 << 16):
                    s.sendall(part)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    return thread


def sent_before_connect(send):
    """The other holder has the socket before the connection is made, or gets it after."""
    seen = []
    with listener() as l:
        echo(l, 20)
        for n in range(20):
            a, b = socket.socketpair()
            pid = os.fork()
            if pid == 0:
                try:
                    a.close()
                    _, fds, _, _ = socket.recv_fds(b, 1, 1)
                    b.recv(1)
                    b.send(exchange(socket.socket(fileno=fds[0])).encode())
                finally:
                    os._exit(0)
            b.close()
            with client() as c:
                send(a, c)
                if n % 2:
                    time.sleep(0.01)
                c.connect(l.getsockname())
                a.send(b"c")
                seen.append(a.recv(100).decode())
            os.waitpid(pid, 0)
            a.close()
    return set(seen)


@check
def sent_to_a_process_and_connected():
    return sent_before_connect(lambda a, c: socket.send_fds(a, [b"x"], [c.fileno()]))


@check
def sent_under_another_number_and_connected():
    def send(a, c):
        other = os.dup(c.fileno())
        socket.send_fds(a, [b"x"], [other])
        os.close(other)

    return sent_before_connect(send)


class Part(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("len", ctypes.c_size_t)]


class Message(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_void_p),
        ("name_len", ctypes.c_uint),
        ("parts", ctypes.POINTER(Part)),
        ("parts_len", ctypes.c_size_t),
        ("control", ctypes.c_void_p),
        ("control_len", ctypes.c_size_t),
        ("flags", ctypes.c_long),
        ("len", ctypes.c_uint),
    ]


def messages(buffers, control=b"", address=b""):
    """Messages for sendmmsg and recvmmsg, with the buffers that must live as long."""
    held = [ctypes.create_string_buffer(bytes(b), len(b)) for b in buffers]
    others = [ctypes.create_string_buffer(control, len(control)), ctypes.create_string_buffer(address, len(address))]
    parts = (Part * len(held))(*[Part(ctypes.addressof(b), len(b)) for b in held])
    all_messages = (Message * len(held))()
    for n, message in enumerate(all_messages):
        message.parts, message.parts_len = ctypes.pointer(parts[n]), 1
        if control:
            message.control, message.control_len = ctypes.addressof(others[0]), len(control)
        if address:
            message.name, message.name_len = ctypes.addressof(others[1]), len(address)
    return all_messages, held, (parts, others)


def rights(*fds):
    return struct.pack(f"=Qii{len(fds)}i4x", 16 + 4 * len(fds), socket.SOL_SOCKET, socket.SCM_RIGHTS, *fds)


@check
def sent_by_many_messages_and_connected():
    def send(a, c):
        m, _, _keep = messages([b"x"], rights(c.fileno()))
        assert libc.sendmmsg(a.fileno(), m, 1, 0) == 1

    return sent_before_connect(send)


@check
def sent_and_given_up():
    """As with helpers that only set an option: the other holder has already closed it."""
    a, b = socket.socketpair()
    with listener() as l:
        echo(l, 1)
        c = client()
        socket.send_fds(a, [b"x"], [c.fileno()])
        _, fds, _, _ = socket.recv_fds(b, 1, 1)
        os.close(fds[0])
        c.connect(l.getsockname())
        return exchange(c)


# Calls through it keep the interpreter's lock. With another thread the lock would go to that
# thread, which the child does not have.
locked = ctypes.PyDLL(None)


def in_copy(make_copy):
    """A process started without fork handlers has the socket too when the connection is made."""
    with listener() as l:
        echo(l, 1)
        c = client()
        a, b = socket.socketpair()
        pid = make_copy()
        if pid == 0:
            try:
                b.recv(1)
                b.send(exchange(c).encode())
            finally:
                os._exit(0)
        c.connect(l.getsockname())
        a.send(b"c")
        said = a.recv(100)
        os.waitpid(pid, 0)
        return said


@check
def forked_without_handlers():
    return in_copy(locked._Fork)


@check
def cloned_without_handlers():
    stack = ctypes.create_string_buffer(1 << 20)
    with listener() as l:
        echo(l, 1)
        c = client()
        a, b = socket.socketpair()
        data = noise(1000)

        # The child has a copy of this interpreter, which continues to run.
        def child(_):
            try:
                b.recv(1)
                libc.send(c.fileno(), data, len(data), 0)
                b.send(b"sent")
            finally:
                os._exit(0)

        function = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(child)
        top = (ctypes.addressof(stack) + len(stack)) & ~15
        pid = locked.clone(function, ctypes.c_void_p(top), signal.SIGCHLD, None)
        c.connect(l.getsockname())
        a.send(b"c")
        said = a.recv(100)
        os.waitpid(pid, 0)
        c.settimeout(5)
        return said, all_of(c, len(data)) == data


# --- control data ---


@check
def descriptors_sent_over_tcp():
    """TCP ignores them."""
    c, s = pair()
    s.settimeout(5)
    with open("/dev/null") as f:
        for _ in range(20):
            sent = c.sendmsg([b"x" * 1000], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [f.fileno()]))])
            c.sendall(b"y" * 1000)
            got = attempt(all_of, s, 2000)
            if sent != 1000 or got != b"x" * 1000 + b"y" * 1000:
                return sent, got
    return "all came"


@check
def descriptors_that_are_none_sent_over_tcp():
    c, s = pair()
    c.settimeout(5)
    control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [987]))]
    return attempt(c.sendmsg, [b"abc"], control), all_of(s, 3)


@check
def credentials_sent_over_tcp():
    c, s = pair()
    control = [(socket.SOL_SOCKET, 2, struct.pack("3i", 4321, 1234, 1234))]
    return attempt(c.sendmsg, [b"abc"], control), all_of(s, 3)


@check
def many_messages():
    c, s = pair()
    address = struct.pack("=HH4s8x", socket.AF_INET, 99, socket.inet_aton(SERVER))
    plain, _, _keep = messages([b"abc", b"", b"defg"])
    sent = libc.sendmmsg(c.fileno(), plain, 3, 0), [m.len for m in plain]
    named, _, _keep2 = messages([b"hij", b"kl"], rights(0), address)
    sent += libc.sendmmsg(c.fileno(), named, 2, 0), [m.len for m in named]
    wait_for(lambda: int_ioctl(s, termios.FIONREAD), 12)
    got, buffers, _keep3 = messages([bytes(5), bytes(5), bytes(5)])
    received = libc.recvmmsg(s.fileno(), got, 3, 0, None), [m.len for m in got]
    return sent, received, [b.raw for b in buffers]


@check
def many_messages_waited_for():
    c, s = pair()
    for n in range(1, 4):
        threading.Timer(0.05 * n, c.sendall, [b"x" * 10]).start()
    got, _, _keep = messages([bytes(15), bytes(15)])
    received = libc.recvmmsg(s.fileno(), got, 2, socket.MSG_WAITALL, None)
    return received, [m.len for m in got]


# --- calls that wait for more data ---


def later(sock, *pieces):
    """Sends each part a little after the previous one."""

    def send():
        for piece in pieces:
            time.sleep(0.1)
            sock.sendall(piece)

    threading.Thread(target=send, daemon=True).start()


@check
def peeked_until_all_is_there():
    c, s = pair()
    seen = []
    for receive in [
        lambda n: s.recv(n, socket.MSG_PEEK | socket.MSG_WAITALL),
        lambda n: s.recvfrom(n, socket.MSG_PEEK | socket.MSG_WAITALL)[0],
        lambda n: s.recvmsg(n, 0, socket.MSG_PEEK | socket.MSG_WAITALL)[0],
        lambda n: b"%d" % s.recvmsg_into([bytearray(7), bytearray(13)], 0, socket.MSG_PEEK | socket.MSG_WAITALL)[0],
    ]:
        later(c, b"0123456789", b"abcdefghij")
        seen.append((receive(20), all_of(s, 20)))
    return seen


@check
def peeked_until_the_end():
    c, s = pair()
    c.sendall(b"abc")
    threading.Timer(0.1, c.shutdown, [socket.SHUT_WR]).start()
    return s.recv(20, socket.MSG_PEEK | socket.MSG_WAITALL), s.recv(20, socket.MSG_WAITALL), s.recv(20)


@check
def peeked_until_the_time_is_over():
    c, s = pair()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 300000))
    c.sendall(b"abc")
    begun = time.time()
    got = s.recv(20, socket.MSG_PEEK | socket.MSG_WAITALL)
    return got, 0.25 < time.time() - begun < 2, s.recv(3), attempt(s.recv, 1)


@check
def peeked_until_a_signal():
    c, s = pair()
    c.sendall(b"abc")
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGUSR1]).start()
    buffer = ctypes.create_string_buffer(20)
    begun = time.time()
    # Not through Python, which would restart the call.
    got = libc.recv(s.fileno(), buffer, 20, socket.MSG_PEEK | socket.MSG_WAITALL)
    waited = 0.1 < time.time() - begun < 5
    signal.signal(signal.SIGUSR1, before)
    return got, waited, s.recv(20)


@check
def peeked_without_waiting():
    c, s = pair()
    s.setblocking(False)
    flags = socket.MSG_PEEK | socket.MSG_WAITALL
    none = attempt(s.recv, 20, flags)
    c.sendall(b"abc")
    wait_for(lambda: "IN" in events(s), True)
    return none, s.recv(20, flags), s.recv(20, flags | socket.MSG_DONTWAIT)


@check
def waited_for_all_in_parts():
    c, s = pair()
    later(c, b"01234", b"56789abcd", b"efghij")
    parts = [bytearray(7), bytearray(1), bytearray(12)]
    return s.recvmsg_into(parts, 0, socket.MSG_WAITALL), parts


@check
def waited_for_all_in_parts_before_a_reset():
    c, s = pair()
    c.sendall(b"x" * 100)
    c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    threading.Timer(0.1, c.close).start()
    parts = [bytearray(70), bytearray(130)]
    return s.recvmsg_into(parts, 0, socket.MSG_WAITALL)[0], attempt(s.recv, 10), attempt(s.recv, 10)


@check
def the_time_to_wait_is_for_all_pieces():
    """Pieces keep coming until a second after the timeout."""
    seen = []
    for receive in [
        lambda s: len(s.recv(100, socket.MSG_WAITALL)),
        lambda s: s.recvmsg_into([bytearray(50), bytearray(50)], 0, socket.MSG_WAITALL)[0],
    ]:
        c, s = pair()
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 350000))
        later(c, *[b"x"] * 13)
        # On a busy host the first piece may take longer than the timeout.
        select.select([s], [], [], 5)
        begun = time.time()
        got = receive(s)
        # With a timeout per piece it would take longer than all pieces do.
        seen.append(0.3 < time.time() - begun < 1.2)
        # Later pieces find a reader.
        s.settimeout(5)
        all_of(s, 13 - got)
    return seen


@check
def given_up_by_its_peer():
    """The peer takes nothing for as long as TCP_USER_TIMEOUT allows."""
    c, s = pair(lambda c: c.setsockopt(socket.IPPROTO_TCP, 18, 500))  # TCP_USER_TIMEOUT
    c.setblocking(False)
    draw = random.Random(1)
    while True:
        n = attempt(c.send, draw.randbytes(1 << 16))
        if n == "EAGAIN" and events(c, 200) == "none":
            break
        if isinstance(n, str) and n != "EAGAIN":
            return n
    c.setblocking(True)
    buffer = ctypes.create_string_buffer(1)
    seen = []
    for _ in range(2):
        # Python has one name for this error and for its own timeout.
        n = libc.recv(c.fileno(), buffer, 1, 0)
        seen.append(n if n >= 0 else name(ctypes.get_errno()))
    return seen, c.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)


def low_water(look):
    """How much data is there when readiness is reported."""
    seen = []
    c, s = pair(lambda c: c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 8))
    for n in range(10):
        threading.Timer(0.05 * n, s.sendall, [b"x"]).start()
    look(c)
    # Less would not be reported; more may have come since.
    seen.append(int_ioctl(c, termios.FIONREAD) >= 8)
    # Nobody is woken below the mark, not even a reader that wants less.
    wait_for(lambda: int_ioctl(c, termios.FIONREAD), 10)
    all_of(c, 10)
    s.sendall(b"abc")
    wait_for(lambda: int_ioctl(c, termios.FIONREAD), 3)
    seen.append((look(c, 0.1), c.recv(3)))
    s.sendall(b"de")
    s.close()
    return seen, look(c), c.recv(10), c.recv(10)


@check
def low_water_and_poll():
    def look(c, seconds=5):
        p = select.poll()
        p.register(c, select.POLLIN)
        return bool(p.poll(seconds * 1000))

    return low_water(look)


@check
def low_water_and_select():
    return low_water(lambda c, seconds=5: bool(select.select([c], [], [], seconds)[0]))


@check
def low_water_and_epoll():
    def look(c, seconds=5):
        with select.epoll() as p:
            p.register(c, select.EPOLLIN)
            return bool(p.poll(seconds))

    return low_water(look)


@check
def told_once_for_each_arrival():
    c, s = pair()
    with select.epoll() as p:
        p.register(c, select.EPOLLIN | select.EPOLLET | select.EPOLLRDHUP)
        seen = []
        for piece in (b"abc", b"def"):
            s.sendall(piece)
            seen += [p.poll(5) != [], p.poll(0)]
        s.shutdown(socket.SHUT_WR)
        seen.append([e & ~select.EPOLLET for _, e in p.poll(5)])
        return seen, c.recv(10), c.recv(10)


@check
def told_once_and_again():
    c, s = pair()
    with select.epoll() as p:
        p.register(c, select.EPOLLIN | select.EPOLLONESHOT)
        s.sendall(b"abc")
        first, second = p.poll(5) != [], p.poll(0.1)
        p.modify(c, select.EPOLLIN | select.EPOLLONESHOT)
        return first, second, p.poll(5) != [], c.recv(10)


@check
def told_to_one_of_two():
    c, s = pair()
    with select.epoll() as p, select.epoll() as q:
        for e in (p, q):
            attempt(e.register, c, select.EPOLLIN | 1 << 28)  # EPOLLEXCLUSIVE
        s.sendall(b"abc")
        return bool(p.poll(5) or q.poll(5)), attempt(p.modify, c, select.EPOLLIN), c.recv(10)


# --- half close, and descriptor numbers ---


@check
def shut_for_reading():
    c, s = pair()
    s.sendall(b"abc")
    wait_for(lambda: int_ioctl(c, termios.FIONREAD), 3)
    c.shutdown(socket.SHUT_RD)
    return "IN" in events(c), c.recv(10), c.recv(10), c.send(b"def"), s.recv(10)


@check
def shut_twice():
    c, s = pair()
    c.shutdown(socket.SHUT_WR)
    again = attempt(c.shutdown, socket.SHUT_WR)
    end = s.recv(10)
    s.shutdown(socket.SHUT_WR)
    return again, end, c.recv(10), attempt(c.send, b"x")


@check
def opened_by_its_link():
    c, s = pair()
    return attempt(os.open, f"/proc/self/fd/{c.fileno()}", os.O_RDWR)


@check
def connected_twice():
    with listener() as l:
        c = client()
        first = attempt(c.connect, l.getsockname())
        return first, attempt(c.connect, l.getsockname()), attempt(c.connect, refused_port())


@check
def another_number_before_and_after():
    with listener() as l:
        echo(l, 1)
        c = client()
        before = os.dup(c.fileno())
        c.connect(l.getsockname())
        after = os.dup(c.fileno())
        seen = []
        for fd in (before, after):
            other = socket.socket(fileno=fd)
            seen.append((exchange(other, 1000), attempt(other.getpeername) == l.getsockname()))
            other.close()
        return seen


@check
def options_of_another_number_count():
    """Options that forbid a swap count for the socket, under whatever number they were set."""
    with listener() as l:
        echo(l, 1)
        c = client()
        other = socket.socket(fileno=os.dup(c.fileno()))
        zerocopy = attempt(other.setsockopt, socket.SOL_SOCKET, 60, 1)  # SO_ZEROCOPY
        c.connect(l.getsockname())
        return zerocopy, c.getsockopt(socket.SOL_SOCKET, 60), exchange(c, 1000)


@check
def sent_without_copies():
    c, s = pair()
    return attempt(c.send, b"abc", 0x4000000), s.recv(10)  # MSG_ZEROCOPY


@check
def gift_of_pages():
    c, s = pair()
    r, w = os.pipe()
    data = ctypes.create_string_buffer(noise(4096), 4096)
    part = Part(ctypes.addressof(data), 4096)
    given = libc.vmsplice(w, ctypes.byref(part), 1, 0)
    return given, attempt(os.splice, r, c.fileno(), 4096), digest(all_of(s, 4096)) == digest(data.raw)


@check
def options_from_another_network():
    """As servers that isolate their children from the network and give them connected sockets."""
    c, s = pair()
    r, w = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            # CLONE_NEWNET, with CLONE_NEWUSER where that is needed.
            parted = libc.unshare(0x40000000 | (0x10000000 if os.geteuid() else 0))
            told = attempt(c.setsockopt, socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            os.write(w, repr((parted, told, c.send(b"abc"))).encode())
        finally:
            os._exit(0)
    os.close(w)
    os.waitpid(pid, 0)
    return os.read(r, 1000), s.recv(10)


@check
def writable_again_after_splices():
    """As relays that splice from socket to socket: pages of any kind until there is no room, then an event."""
    c, s = pair()
    c.setblocking(False)
    from_socket, to_socket = socket.socketpair()
    to_socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    to_socket.setblocking(False)
    from_socket.setblocking(False)
    r, w = os.pipe()
    fcntl.fcntl(w, 1031, 1 << 20)  # F_SETPIPE_SZ
    for fd in (r, w):
        os.set_blocking(fd, False)
    poll = select.poll()
    poll.register(c, select.POLLOUT)
    total = 0
    for n in range(60):
        piece = noise([4096, 16384, 65536, 30000][n % 4])
        try:
            while True:
                to_socket.send(piece)
        except BlockingIOError:
            pass
        try:
            while True:
                os.splice(from_socket.fileno(), w, 1 << 20, flags=2)
        except BlockingIOError:
            pass
        try:
            while True:
                total += os.splice(r, c.fileno(), 1 << 20, flags=2)
        except BlockingIOError:
            pass
        s.settimeout(5)
        all_of(s, total)
        total = 0
        if not poll.poll(5000):
            return "never writable again"
    return "writable"


# --- the last one: it makes the second engine leave all later connections of the program plain ---


@check
def threads_with_tables_of_their_own():
    """The same number means another socket once a thread has its own descriptor table."""
    with listener() as l:
        echo(l, 1)
        c = client()
        connected, said = threading.Event(), []

        def other():
            said.append(libc.unshare(0x400))  # CLONE_FILES
            parted.set()
            connected.wait()
            said.append(exchange(c))

        parted = threading.Event()
        thread = threading.Thread(target=other)
        thread.start()
        parted.wait()
        c.connect(l.getsockname())
        connected.set()
        thread.join()
        return said
