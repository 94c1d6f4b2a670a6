"""Many connections under way: prints the KiB of kernel memory that each costs.

Other processes change memory use too: the caller tries again."""

import socket
import time

COUNT = 400


def free_kib():
    with open("/proc/meminfo") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))


def pending(address):
    s = socket.socket()
    s.setblocking(False)
    s.connect_ex(address)
    return s


with socket.socket() as server:
    server.bind(("127.0.0.1", 0))
    server.listen(0)
    address = server.getsockname()
    # One more than the queue length: the next connection gets no answer.
    full = [pending(address) for _ in range(2)]
    before = free_kib()
    these = [pending(address) for _ in range(COUNT)]
    after = 0
    for _ in range(50):
        after = max(after, free_kib())
        time.sleep(0.01)
    for s in these:
        try:
            s.send(b"x")
            raise SystemExit("a connection that is being made took a byte")
        except BlockingIOError:
            pass
print((before - after) // COUNT)
