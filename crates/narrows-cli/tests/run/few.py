"""Connections work under each descriptor limit, handed over or plain; also without a root, user or environment."""

import os
import resource
import socket
import sys

import codecs, encodings.idna  # noqa: what socket imports later needs descriptors


def talk():
    with socket.socket() as l:
        l.bind(("127.0.0.1", 0))
        l.listen(5)
        c = socket.socket()
        c.connect(l.getsockname())
        s, _ = l.accept()
        c.sendall(b"hello")
        assert s.recv(10) == b"hello"
        assert c.getpeername() == s.getsockname()
        s.close()
        assert c.recv(1) == b""
        c.close()


soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
lowest = os.dup(0)
os.close(lowest)
for spare in range(3, 9):
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + spare, hard))
    talk()
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
if os.geteuid() == 0:
    os.chroot(sys.argv[1])
    os.chdir("/")
    os.setgid(65534)
    os.setuid(65534)
os.closerange(3, 64)
talk()
print("fine")
