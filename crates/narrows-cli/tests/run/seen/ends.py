"""Ends of connections."""

from seen.tools import *


@check
def idle_events():
    c, s = pair()
    return mask(c), mask(s)


@check
def half_close():
    c, s = pair()
    c.shutdown(socket.SHUT_WR)
    a = mask(s), mask(c)
    got = s.recv(1)
    s.sendall(b"late")
    return a, got, c.recv(10), attempt(c.send, b"x")


@check
def close_events():
    c, s = pair()
    c.sendall(b"last")
    c.close()
    return mask(s), s.recv(10), s.recv(10), mask(s)


@check
def both_halves():
    c, s = pair()
    c.shutdown(socket.SHUT_WR)
    s.recv(1)
    s.shutdown(socket.SHUT_WR)
    end = c.recv(1)
    return end, mask(c), mask(s), c.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR), attempt(c.recv, 1), attempt(s.recv, 1)


@check
def shutdown_for_reading():
    c, s = pair()
    c.shutdown(socket.SHUT_RD)
    a = attempt(c.recv, 1)
    c.sendall(b"abc")
    return a, s.recv(10)


@check
def shutdown_both_ways():
    c, s = pair()
    c.sendall(b"abc")
    c.shutdown(socket.SHUT_RDWR)
    return all_of(s, 10), attempt(c.recv, 1), attempt(c.send, b"x"), mask(s)


@check
def reset_events():
    c, s = pair()
    reset(c)
    return mask(s), name(s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))


@check
def reset_while_reading():
    c, s = pair()
    threading.Timer(0.05, reset, (c,)).start()
    return attempt(s.recv, 10), attempt(s.recv, 10), attempt(s.send, b"x")


@check
def reset_while_sending():
    """Neither end reads; the bytes that nobody has read make the end a reset."""
    c, s = pair()
    fill(c), fill(s)
    threading.Timer(0.1, c.close).start()
    return refusal(s), attempt(s.send, b"x")


@check
def reset_while_nothing_is_read():
    c, s = pair()
    fill(c), fill(s)
    c.close()
    return events(s, 15000, 0), name(s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))


@check
def data_before_a_reset():
    c, s = pair()
    c.sendall(b"abc")
    wait_for(lambda: int_ioctl(s, termios.FIONREAD), 3)
    reset(c)
    mask(s)
    return attempt(s.recv, 10), attempt(s.recv, 10)


@check
def close_with_bytes_unread():
    c, s = pair()
    s.sendall(b"abc")
    wait_for(lambda: int_ioctl(c, termios.FIONREAD), 3)
    c.close()
    return mask(s), attempt(s.recv, 10)


@check
def write_after_the_peer_closed():
    c, s = pair()
    s.close()
    mask(c)
    out = [attempt(c.send, b"x")]
    time.sleep(0.2)
    return out + [attempt(c.send, b"x"), attempt(c.send, b"x"), attempt(c.recv, 1)]


@check
def peer_after_a_reset():
    c, s = pair()
    reset(c)
    mask(s)
    return attempt(s.getpeername)


@check
def ends_are_told_apart():
    wrong = []
    for i in range(60):
        c, s = pair()
        data = noise(i * 977 + 1)
        t = threading.Thread(target=lambda: (c.sendall(data), c.close() if i % 2 else reset(c)))
        t.start()
        got, end = 0, None
        while end is None:
            part = attempt(s.recv, 65536)
            end = part if isinstance(part, str) or not part else None
            got += len(part) if end is None else 0
        t.join()
        # A reset may discard unread data; an end may not.
        if end != (b"" if i % 2 else "ECONNRESET") or (i % 2 and got != len(data)):
            wrong.append((i, got, end))
    return wrong


@check
def close_while_another_thread_reads():
    c, s = pair()
    got = []
    t = threading.Thread(target=lambda: got.append(s.recv(10)))
    t.start()
    time.sleep(0.05)
    c.close()
    t.join()
    return got


@check
def lingering_close():
    c, s = pair()
    c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 5))
    c.sendall(b"x" * 200000)
    t = threading.Thread(target=c.close)
    t.start()
    got = all_of(s, 300000)
    t.join()
    return len(got)
