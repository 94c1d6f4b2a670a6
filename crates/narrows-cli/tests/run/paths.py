"""Runs a script with MPTCP sockets in place of TCP, as `mptcpize` does. Prints on stderr what it got."""

import runpy
import socket
import sys

plain, MPTCP = socket.socket, 262


class Paths(plain):
    def __init__(self, family=-1, type=-1, proto=-1, fileno=None):
        stream = fileno is None and type in (-1, socket.SOCK_STREAM)
        super().__init__(family, type, MPTCP if stream else proto, fileno)
        if stream:
            print("protocol", self.getsockopt(socket.SOL_SOCKET, socket.SO_PROTOCOL), file=sys.stderr, flush=True)


socket.socket = Paths
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
