"""All the ways to send and receive bytes."""

from seen.tools import *


@check
def echo():
    c, s = pair()
    c.sendall(b"hello")
    a = s.recv(100)
    s.sendall(a.upper())
    return a, c.recv(100)


@check
def peek():
    c, s = pair()
    c.sendall(b"hello")
    return s.recv(3, socket.MSG_PEEK), s.recv(100)


@check
def waitall():
    c, s = pair()
    threading.Timer(0.05, lambda: c.sendall(b"def")).start()
    c.sendall(b"abc")
    return s.recv(6, socket.MSG_WAITALL)


@check
def more():
    c, s = pair()
    c.send(b"abc", socket.MSG_MORE)
    c.send(b"def")
    return all_of(s, 6)


@check
def fionread():
    c, s = pair()
    c.sendall(b"x" * 1000)
    return wait_for(lambda: int_ioctl(s, termios.FIONREAD), 1000)


@check
def out_queue():
    c, s = pair()
    c.sendall(b"x" * 100000)
    all_of(s, 100000)
    return wait_for(lambda: int_ioctl(c, termios.TIOCOUTQ), 0)


@check
def out_queue_of_idle():
    c, s = pair()
    return int_ioctl(c, termios.TIOCOUTQ), int_ioctl(s, termios.TIOCOUTQ)


@check
def both_ways_at_once():
    c, s = pair()
    up, down, got = noise(6 << 20, b"up"), noise(6 << 20, b"down"), {}
    threads = [
        threading.Thread(target=c.sendall, args=(up,)),
        threading.Thread(target=s.sendall, args=(down,)),
        threading.Thread(target=lambda: got.update(s=all_of(s, len(up)))),
    ]
    [t.start() for t in threads]
    back = all_of(c, len(down))
    [t.join() for t in threads]
    return digest(got["s"]) == digest(up), digest(back) == digest(down)


@check
def sizes_of_all_kinds():
    c, s = pair()
    sizes = [1, 2, 3, 100, 4094, 4095, 4096, 4097, 8191, 8192, 65535, 65536, 65537, 1, 200000, 5]
    data = noise(sum(sizes))

    def write():
        at = 0
        for n in sizes:
            c.sendall(data[at : at + n])
            at += n
        c.shutdown(socket.SHUT_WR)

    t = threading.Thread(target=write)
    t.start()
    got = all_of(s, len(data) + 1)
    t.join()
    return got == data


@check
def full_then_drained():
    c, s = pair()
    c.setblocking(False)
    data, sent = noise(1 << 16), 0
    while True:
        # A send may be short at any length, so the pattern follows the offset.
        n = attempt(c.send, data[sent % 65536 :])
        if n == "EAGAIN":
            # Buffers behind this socket may take more a little later.
            if events(c, 200) == "none":
                break
            continue
        sent += n
    full = events(c)
    got = bytearray()
    while len(got) < sent:
        got += s.recv(1 << 16)
    right = bytes(got) == (data * (sent // 65536 + 1))[:sent]
    return full, right, wait_for(lambda: "OUT" in events(c), True)


@check
def sendfile():
    c, s = pair()
    with tempfile.TemporaryFile() as f:
        data = noise(3 << 20)
        f.write(data)
        f.flush()

        def write():
            at = 0
            while at < len(data):
                at += os.sendfile(c.fileno(), f.fileno(), at, len(data) - at)

        t = threading.Thread(target=write)
        t.start()
        got = all_of(s, len(data))
        t.join()
    return digest(got) == digest(data)


@check
def splice():
    c, s = pair()
    r, w = os.pipe()
    data = noise(1 << 20)

    def write():
        at = 0
        while at < len(data):
            n = os.write(w, data[at : at + 65536])
            while n:
                moved = os.splice(r, c.fileno(), n)
                n -= moved
                at += moved

    t = threading.Thread(target=write)
    t.start()
    got = all_of(s, len(data))
    t.join()
    return digest(got) == digest(data)


@check
def splice_from_the_socket():
    c, s = pair()
    r, w = os.pipe()
    c.sendall(b"hello")
    n = os.splice(s.fileno(), w, 100)
    return n, os.read(r, 100)


@check
def sent_to_an_address():
    c, s = pair()
    return attempt(c.sendto, b"abc", s.getsockname()), s.recv(10)


@check
def much_sent_to_an_address():
    """More than fits at a time."""
    c, s = pair()
    data = noise(1 << 20)
    got = []
    t = threading.Thread(target=lambda: got.append(digest(all_of(s, len(data)))))
    t.start()
    sent = attempt(c.sendto, data, s.getsockname())
    t.join()
    c.setblocking(False)
    while isinstance(answer := attempt(c.sendto, data, s.getsockname()), int):
        pass
    return sent, got == [digest(data)], answer


@check
def message_with_an_address():
    c, s = pair()
    return attempt(c.sendmsg, [b"ab", b"c"], [], 0, s.getsockname()), s.recv(10)


@check
def received_from():
    c, s = pair()
    c.sendall(b"abc")
    return s.recvfrom(10)


@check
def truncated():
    c, s = pair()
    c.sendall(b"abcdef")
    wait_for(lambda: int_ioctl(s, termios.FIONREAD), 6)
    gone = libc.recv(s.fileno(), None, 4, 0x20)  # MSG_TRUNC
    return gone, s.recv(10)


@check
def truncated_before_a_reset():
    c, s = pair()
    c.sendall(b"x" * 100)
    wait_for(lambda: int_ioctl(s, termios.FIONREAD), 100)
    c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    c.close()
    look = select.poll()
    look.register(s, 0)
    look.poll(5000)
    gone = libc.recv(s.fileno(), None, 65536, 0x20)  # MSG_TRUNC
    return gone, attempt(s.recv, 10)


@check
def waited_for_all_before_a_reset():
    seen = []
    for receive in [
        lambda s: len(s.recv(200, socket.MSG_WAITALL)),
        lambda s: len(s.recvfrom(200, socket.MSG_WAITALL)[0]),
        lambda s: len(s.recvmsg(200, 0, socket.MSG_WAITALL)[0]),
        lambda s: s.recv_into(bytearray(200), 200, socket.MSG_WAITALL),
    ]:
        c, s = pair()
        c.sendall(b"x" * 100)
        c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        threading.Timer(0.05, c.close).start()
        seen.append((receive(s), attempt(s.recv, 10), attempt(s.recv, 10)))
    return seen


@check
def truncated_and_left():
    c, s = pair()
    c.sendall(b"abcdef")
    wait_for(lambda: int_ioctl(s, termios.FIONREAD), 6)
    left = [libc.recv(s.fileno(), None, n, 0x20 | 0x2) for n in (4, 2000000)]  # MSG_TRUNC, MSG_PEEK
    return left, s.recv(10)


@check
def error_queue():
    c, s = pair()
    return attempt(c.recvmsg, 10, 100, socket.MSG_ERRQUEUE | socket.MSG_DONTWAIT)


@check
def urgent_inline():
    c, s = pair()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE, 1)
    c.sendall(b"abc")
    n = c.send(b"deF", socket.MSG_OOB)
    c.sendall(b"ghi")
    return n, all_of(s, 9)


@check
def urgent_loses_nothing_else():
    c, s = pair()
    for _ in range(3):
        c.sendall(b"abc")
        c.send(b"!", socket.MSG_OOB)
        c.sendall(b"ghi")
        time.sleep(0.05)
    c.shutdown(socket.SHUT_WR)
    return all_of(s, 100).replace(b"!", b"")


@check
def urgent_out_of_line():
    c, s = pair()
    c.sendall(b"abc")
    c.send(b"!", socket.MSG_OOB)
    wait_for(lambda: attempt(s.recv, 1, socket.MSG_OOB | socket.MSG_PEEK | socket.MSG_DONTWAIT), b"!")
    return attempt(s.recv, 1, socket.MSG_OOB), all_of(s, 3)
