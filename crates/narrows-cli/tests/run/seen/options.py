"""Names and options."""

from seen.tools import *


@check
def names():
    c, s = pair()
    return peer_of(c, s), c.getsockname()[0], c.getpeername()[0], s.getsockname()[0], s.getpeername()[0]


@check
def names_of_ipv6():
    try:
        l = listener("::1", socket.AF_INET6)
    except OSError:
        return "no IPv6 here"
    c = socket.socket(socket.AF_INET6)
    c.connect(l.getsockname())
    s, a = l.accept()
    return peer_of(c, s), len(c.getpeername()), a == c.getsockname(), s.getsockname()[0]


@check
def names_of_mapped():
    try:
        l = listener("::", socket.AF_INET6)
    except OSError:
        return "no IPv6 here"
    c = client()
    c.connect((SERVER, l.getsockname()[1]))
    s, a = l.accept()
    return a[0], s.getpeername()[0], s.getsockname()[0], c.getpeername()[0]


@check
def names_in_a_short_buffer():
    c, s = pair()
    buffer, size = ctypes.create_string_buffer(b"zzzzzzzzzzzzzzzzzzzz"), ctypes.c_uint(6)
    r = libc.getpeername(c.fileno(), buffer, ctypes.byref(size))
    return r, size.value, buffer.raw[:2], buffer.raw[6:10]


@check
def pointers_to_nowhere():
    c, s = pair()
    nowhere, size, room = ctypes.c_void_p(8), ctypes.c_uint(28), ctypes.create_string_buffer(28)
    calls = [
        (libc.getsockname, room, nowhere),
        (libc.getsockname, nowhere, ctypes.byref(size)),
        (libc.getpeername, room, nowhere),
        (libc.getpeername, nowhere, ctypes.byref(size)),
        (libc.getsockopt, socket.IPPROTO_TCP, socket.TCP_NODELAY, nowhere, ctypes.byref(size)),
        (libc.getsockopt, socket.IPPROTO_TCP, socket.TCP_NODELAY, room, nowhere),
        (libc.getsockopt, socket.SOL_SOCKET, socket.SO_SNDBUF, nowhere, ctypes.byref(size)),
        (libc.setsockopt, socket.IPPROTO_TCP, socket.TCP_NODELAY, nowhere, 4),
        (libc.setsockopt, socket.SOL_SOCKET, socket.SO_KEEPALIVE, nowhere, 4),
    ]
    out = []
    for function, *args in calls:
        size.value = 28
        out.append((function(c.fileno(), *args), name(ctypes.get_errno())))
    return out


@check
def accept_without_address():
    with listener() as l:
        c = client()
        c.connect(l.getsockname())
        s = socket.socket(fileno=libc.accept(l.fileno(), None, None))
        c.sendall(b"abc")
        return s.recv(3), peer_of(c, s)


@check
def types():
    c, s = pair()
    options = [socket.SO_TYPE, socket.SO_DOMAIN, socket.SO_PROTOCOL, socket.SO_ACCEPTCONN, socket.SO_ERROR]
    return [[x.getsockopt(socket.SOL_SOCKET, o) for o in options] for x in (c, s)]


@check
def credentials_of_the_peer():
    c, s = pair()
    out = []
    for x, other in ((c, s), (s, c)):
        out.append(struct.unpack("3i", x.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)))
        # SO_PEERSEC, SO_PEERGROUPS, SO_PEERPIDFD
        out += [attempt(x.getsockopt, socket.SOL_SOCKET, option, 64) for option in (31, 59, 77)]
        # SO_PASSCRED, SO_PASSSEC, SO_PASSPIDFD, SO_PASSRIGHTS
        out += [attempt(x.setsockopt, socket.SOL_SOCKET, option, 1) for option in (16, 34, 76, 83)]
        other.sendall(b"abc")
        out += x.recvmsg(10, 256)[:3]
    return out


@check
def credentials_behind_the_end():
    c, s = pair()
    reset(c)
    wait_for(lambda: attempt(s.recv, 1), "ECONNRESET")
    time.sleep(0.2)
    credentials = struct.unpack("3i", s.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return credentials, s.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)[0], attempt(s.setsockopt, socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


@check
def queue_told_nowhere():
    c, s = pair()
    answer = libc.ioctl(c.fileno(), ctypes.c_ulong(termios.TIOCOUTQ), ctypes.c_void_p(8))
    return answer, name(ctypes.get_errno())


@check
def options_of_tcp():
    c, s = pair()
    out = []
    for x in (c, s):
        for option, value in [(socket.TCP_NODELAY, 1), (socket.TCP_KEEPIDLE, 77), (socket.TCP_KEEPINTVL, 7), (socket.TCP_KEEPCNT, 5), (socket.TCP_USER_TIMEOUT, 12345), (socket.TCP_CORK, 1), (socket.TCP_CORK, 0), (socket.TCP_QUICKACK, 1), (socket.TCP_NOTSENT_LOWAT, 1 << 17)]:
            x.setsockopt(socket.IPPROTO_TCP, option, value)
            out.append(x.getsockopt(socket.IPPROTO_TCP, option))
    return out


@check
def options_of_sockets():
    c, s = pair()
    out = []
    for option, value in [(socket.SO_KEEPALIVE, 1), (socket.SO_REUSEADDR, 1), (socket.SO_PRIORITY, 3), (socket.SO_DONTROUTE, 1), (socket.SO_OOBINLINE, 1)]:
        c.setsockopt(socket.SOL_SOCKET, option, value)
        out.append(c.getsockopt(socket.SOL_SOCKET, option))
    c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 9))
    return out, c.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8)


@check
def buffers():
    c, s = pair()
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        c.setsockopt(socket.SOL_SOCKET, option, 50000)
    sizes = c.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF), c.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
    data = noise(1 << 20)
    t = threading.Thread(target=c.sendall, args=(data,))
    t.start()
    got = all_of(s, len(data))
    t.join()
    return sizes, got == data


@check
def options_of_ip():
    c, s = pair()
    c.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, 0x10)
    return c.getsockopt(socket.IPPROTO_IP, socket.IP_TOS), c.getsockopt(socket.IPPROTO_IP, socket.IP_TTL) > 0


@check
def options_that_do_not_exist():
    c, s = pair()
    return attempt(c.getsockopt, socket.IPPROTO_TCP, 999), attempt(c.setsockopt, socket.IPPROTO_TCP, 999, 1), attempt(c.setsockopt, socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 0)


@check
def tcp_info():
    c, s = pair()
    info = c.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    return info[0], len(info) > 100


@check
def congestion():
    c, s = pair()
    before = c.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0")
    c.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
    return len(before) > 0, c.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0")


@check
def segment():
    c, s = pair()
    return c.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG) > 500


@check
def layered_protocol_is_refused():
    c, s = pair()
    return attempt(c.setsockopt, socket.IPPROTO_TCP, 31, b"none") in ("ENOENT", "ENOPROTOOPT")


@check
def options_before_connect():
    def prepare(c):
        c.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        c.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, 8)
        c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    c, s = pair(prepare)
    return c.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE), c.getsockopt(socket.IPPROTO_IP, socket.IP_TOS), c.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
