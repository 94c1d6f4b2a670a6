"""Programs started between `socket` and `connect`: the first half inherit the socket, the others do not."""

import os
import socket
import subprocess

NOTHING = "/bin/true"
listener = socket.create_server(("127.0.0.1", 0))


def spawn(sock):
    os.waitpid(os.posix_spawn(NOTHING, [NOTHING], {}), 0)


def spawn_by_name(sock):
    os.waitpid(os.posix_spawnp("true", ["true"], {}), 0)


def spawn_with_actions(sock):
    """Under another number, which exec does not close."""
    actions = [(os.POSIX_SPAWN_DUP2, sock.fileno(), 100)]
    os.waitpid(os.posix_spawn(NOTHING, [NOTHING], {}, file_actions=actions), 0)


def system(sock):
    os.system("true")


def by_vfork(sock):
    subprocess.run([NOTHING], close_fds=False, cwd="/", check=True)


def by_vfork_with_environment(sock):
    subprocess.run([NOTHING], close_fds=False, cwd="/", env={"A": "b"}, check=True)


def by_vfork_that_closes(sock):
    subprocess.run([NOTHING], close_fds=True, cwd="/", check=True)


def connect(way, inheritable):
    sock = socket.socket()
    sock.set_inheritable(inheritable)
    way(sock)
    sock.connect(listener.getsockname())
    other, _ = listener.accept()
    sock.sendall(b"x")
    assert other.recv(1) == b"x"
    for end in (sock, other):
        end.close()


for way in (spawn, spawn_by_name, system, by_vfork, by_vfork_with_environment):
    connect(way, True)
connect(spawn_with_actions, False)
for way in (spawn, spawn_by_name, system, by_vfork, by_vfork_with_environment):
    connect(way, False)
connect(by_vfork_that_closes, True)
print("fine")
