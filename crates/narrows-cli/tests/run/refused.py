"""Failed connections hold neither their ports nor resources that later connections need."""

import errno
import select
import socket
import sys
import time

with socket.create_server(("127.0.0.1", 0)) as free:
    nobody = free.getsockname()


def refused(port=0):
    s = socket.socket()
    deadline = time.monotonic() + 10
    while True:
        try:
            s.bind(("127.0.0.1", port))
            break
        except OSError as e:
            # The supervisor closes its socket a moment after the program closed its own.
            assert e.errno == errno.EADDRINUSE and time.monotonic() < deadline, e
            time.sleep(0.001)
    s.setblocking(False)
    assert s.connect_ex(nobody) in (errno.EINPROGRESS, errno.ECONNREFUSED)
    return s


# The same port again as soon as the socket is closed.
first = refused()
port = first.getsockname()[1]
for _ in range(3):
    select.select([], [first], [], 10)
    assert first.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) in (errno.ECONNREFUSED, 0)
    first.close()
    first = refused(port)
first.close()
for _ in range(1500):
    refused().close()
# Failed connections whose sockets stay open, as many as fit.
open_ones = [refused() for _ in range(int(sys.argv[1]))]
with socket.create_server(("127.0.0.1", 0)) as listener:
    pairs = []
    for _ in range(int(sys.argv[1])):
        c = socket.create_connection(listener.getsockname())
        s, _ = listener.accept()
        pairs.append((c, s))
        s.settimeout(20)
        c.sendall(b"hello")
        assert s.recv(10) == b"hello"
# One that was kept finally connects.
with socket.create_server(("127.0.0.1", 0)) as listener:
    last = open_ones[-1]
    assert last.connect_ex(nobody) != 0
    deadline = time.monotonic() + 10
    while last.connect_ex(listener.getsockname()) not in (0, errno.EISCONN):
        assert time.monotonic() < deadline
        time.sleep(0.001)
print("fine")
