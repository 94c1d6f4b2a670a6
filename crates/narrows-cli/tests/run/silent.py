"""Silent lines to the supervisor: some are held for a while, those beyond the limit are closed at once.

Arguments: number of lines, more than may be held; "other" to use another user than the supervisor's."""

import os
import select
import socket
import sys

import encodings.idna  # noqa: what socket imports later may not be readable

count, other = int(sys.argv[1]), sys.argv[2:] == ["other"]
name = b"\0narrows-run:" + bytes.fromhex(os.environ["NARROWS_RUN"].split(":")[1])
if other:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)


def line():
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    s.connect(name)
    return s


def ended(s, patience_s=0.0):
    return bool(select.select([s], [], [], patience_s)[0])


def last_ends_first():
    """No held line ends before the first one; checked in this order, pauses do not matter."""
    lines = [line() for _ in range(count)]
    at_once = ended(lines[-1], 10) and not ended(lines[0])
    # The first one is not held for ever either.
    assert all(ended(s, 20) for s in lines)
    return at_once


# On a busy machine both may be delayed for longer than a line is held.
assert any(last_ends_first() for _ in range(10))
silent = [line() for _ in range(count)]
with socket.create_server(("127.0.0.1", 0)) as listener:
    c = socket.create_connection(listener.getsockname())
    s, _ = listener.accept()
    c.sendall(b"hello")
    assert s.recv(10) == b"hello"
print("fine")
