"""More connections at once than the supervisor has descriptors: each is handed over or plain, none is lost."""

import os
import signal
import socket
import sys

count = int(sys.argv[1])
listener = socket.create_server(("127.0.0.1", 0), backlog=count)
address = listener.getsockname()
answers = os.fork()
if answers == 0:
    # Its connections are answered one after another, and need one descriptor.
    listener.settimeout(20)
    for _ in range(count):
        s, _ = listener.accept()
        s.sendall(s.recv(5))
        s.close()
    os._exit(0)
listener.close()
supervisor = os.getppid()
os.kill(supervisor, signal.SIGSTOP)
try:
    sockets = [socket.create_connection(address) for _ in range(count)]
finally:
    os.kill(supervisor, signal.SIGCONT)
for i, s in enumerate(sockets):
    s.settimeout(20)
    s.sendall(b"hello")
    got = s.recv(5)
    assert got == b"hello", (i, got)
    s.close()
assert os.waitpid(answers, 0)[1] == 0
print("fine")
