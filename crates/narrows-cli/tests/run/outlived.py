"""Environments that outlive their run, as with `at`: what does a later listener at the supervisor's name receive?"""

import os
import socket
import subprocess
import sys
import time

CLIENT = """
import socket
listener = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(listener.getsockname())
server, _ = listener.accept()
client.sendall(b"secret")
assert server.recv(6) == b"secret"
"""


def bound(name):
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for _ in range(1000):
        try:
            s.bind(name)
            s.listen(16)
            return s
        except OSError:
            time.sleep(0.01)
    sys.exit("the name does not become free")


def heard_by(user, name, env):
    listening, ready = os.pipe()
    pid = os.fork()
    if pid == 0:
        if user:
            os.setuid(user)
        s = bound(name)
        os.write(ready, b"x")
        s.settimeout(2)
        heard = 0
        try:
            while True:
                line, _ = s.accept()
                line.settimeout(2)
                heard += line.recv(4096) != b""
        except socket.timeout:
            os._exit(min(heard, 1))
    os.read(listening, 1)
    # The run's own user is trusted, and keeps what it is given.
    subprocess.run([sys.executable, "-c", CLIENT], env=env, check=user != 0, stderr=subprocess.DEVNULL)
    _, status = os.waitpid(pid, 0)
    return {0: "nothing", 1: "requests"}[os.waitstatus_to_exitcode(status)]


saved = subprocess.check_output([sys.argv[1], "run", "--loopback", "--", "env"], text=True)
saved = dict(line.split("=", 1) for line in saved.splitlines() if "=" in line)
name = b"\0narrows-run:" + bytes.fromhex(saved["NARROWS_RUN"].split(":")[1])
env = {**os.environ, "NARROWS_RUN": saved["NARROWS_RUN"], "LD_PRELOAD": saved["LD_PRELOAD"]}
print("another user:", heard_by(12345, name, env))
print("the same user:", heard_by(0, name, env))
