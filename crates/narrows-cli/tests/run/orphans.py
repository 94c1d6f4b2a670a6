"""Makes connections with itself for some time, while its supervisor may be killed; prints the errors."""

import errno
import os
import socket
import sys
import threading
import time

l = socket.create_server(("127.0.0.1", 0))
stop = time.time() + float(sys.argv[1])
met = set()


def talk(s):
    try:
        while d := s.recv(1000):
            s.sendall(d)
    except OSError as e:
        met.add("server " + errno.errorcode[e.errno])
    s.close()


def serve():
    while True:
        try:
            s, _ = l.accept()
        except OSError as e:
            met.add("accept " + errno.errorcode[e.errno])
            time.sleep(0.1)
            continue
        threading.Thread(target=talk, args=(s,), daemon=True).start()


def client():
    while time.time() < stop:
        try:
            c = socket.socket()
            c.connect(l.getsockname())
            for _ in range(3):
                c.sendall(b"x" * 500)
                got = 0
                while got < 500:
                    d = c.recv(1000)
                    if not d:
                        met.add("an end")
                        break
                    got += len(d)
            c.close()
            met.add("right")
        except OSError as e:
            met.add("client " + errno.errorcode[e.errno])


for _ in range(2):
    threading.Thread(target=serve, daemon=True).start()
threads = [threading.Thread(target=client, daemon=True) for _ in range(4)]
[t.start() for t in threads]
print("ready", flush=True)
[t.join(20) for t in threads]
print("hangs" if any(t.is_alive() for t in threads) else "fine", *sorted(met), sep=",", flush=True)
os._exit(0)
