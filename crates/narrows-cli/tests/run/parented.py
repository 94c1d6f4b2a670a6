"""Leaves orphans to `narrows run --supervisor=parent`, waits until none is left, then prints each signal it gets."""

import os
import signal
import sys
import time

ORPHANS = 20
parent = os.getppid()


def zombies():
    count = 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat") as f:
                state, above = f.read().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        count += state == "Z" and int(above) == parent
    return count


signal.signal(signal.SIGTERM, signal.SIG_DFL)
caught = {n for n in range(1, 65) if n not in (9, 15, 17, 19, 32, 33)}
signal.pthread_sigmask(signal.SIG_BLOCK, caught)
r, w = os.pipe()
for _ in range(ORPHANS):
    pid = os.fork()
    if pid == 0:
        if os.fork() == 0:
            os.close(r)
            while os.getppid() != parent:
                time.sleep(0.001)
        os._exit(0)
    os.waitpid(pid, 0)
os.close(w)
# Ends when the last orphan has ended; the parent reports which of them are zombies then.
os.read(r, 1)
end = time.time() + 10
while zombies() and time.time() < end:
    time.sleep(0.01)
print("zombies" if zombies() else "buried", flush=True)
while True:
    print(int(signal.sigwait(caught)), flush=True)
