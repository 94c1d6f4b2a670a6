"""Sockets: a stream in each direction, bounded waits, and the program at the other end."""

import os
import pickle
import socket
import subprocess
import threading
import time

import pytest
from conftest import text

import narrows


@pytest.fixture(params=["tcp", "unix"])
def pair(request):
    """Two ends of a connection, wrapped."""
    if request.param == "unix":
        here, there = socket.socketpair()
    else:
        with socket.create_server(("127.0.0.1", 0)) as server:
            here = socket.create_connection(server.getsockname())
            there, _ = server.accept()
    with narrows.wrap_socket(here, timeout=20) as here, narrows.wrap_socket(there, timeout=20) as there:
        yield here, there


def receive(end: narrows.NarrowsSocket, length: int) -> bytes:
    got = bytearray()
    while len(got) < length and (piece := end.recv(length - len(got))):
        got += piece
    return bytes(got)


def test_both_directions(pair, chance) -> None:
    here, there = pair
    for i in range(100):
        here.sendall(b"question %d" % i)
        assert receive(there, len(b"question %d" % i)) == b"question %d" % i
        assert there.send(memoryview(b"answer")) == 6
        assert receive(here, 6) == b"answer"
    data = text(chance, 2_000_000)
    sender = threading.Thread(target=lambda: (here.sendall(data), here.shutdown(socket.SHUT_WR)))
    sender.start()
    got, buffer = bytearray(), bytearray(70_000)
    while n := there.recv_into(buffer):
        got += buffer[:n]
    sender.join()
    assert got == data
    assert there.recv(1) == b"" and there.recv_into(buffer, 5) == 0
    there.sendall(b"still")
    assert receive(here, 5) == b"still"
    with pytest.raises(BrokenPipeError):
        here.sendall(b"x")
    stats = there.stats()
    assert stats["received"]["raw_bytes"] == len(data) + sum(len(b"question %d" % i) for i in range(100))
    assert here.stats()["sent"]["wire_bytes"] == stats["received"]["wire_bytes"]


def test_files_over_a_socket(pair) -> None:
    here, there = pair
    with here.makefile("w", encoding="utf-8") as writer, there.makefile("r", encoding="utf-8") as reader:
        for i in range(10):
            writer.write(f"line {i} ä\n")
            writer.flush()
            assert reader.readline() == f"line {i} ä\n"
    with there.makefile("rwb") as both:
        both.write(b"bytes\n")
        both.flush()
        assert here.makefile("rb", 0).read(6) == b"bytes\n"


def test_waits_are_bounded(pair) -> None:
    here, there = pair
    here.settimeout(0.1)
    assert here.gettimeout() == 0.1
    with pytest.raises(TimeoutError):
        here.recv(10)
    there.sendall(b"late")
    here.settimeout(20)
    assert receive(here, 4) == b"late"
    here.settimeout(0.2)
    with pytest.raises(TimeoutError):
        for _ in range(1000):
            here.sendall(os.urandom(1 << 18))


def test_a_connection_that_is_cut_is_no_end(pair) -> None:
    here, there = pair
    here.sendall(b"begun")
    assert receive(there, 5) == b"begun"
    here._sock.shutdown(socket.SHUT_RDWR)
    with pytest.raises(EOFError):
        there.recv(1)


def test_rubbish_is_told() -> None:
    here, there = socket.socketpair()
    with narrows.wrap_socket(there, timeout=20) as there:
        here.sendall(b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n" * 3)
        with pytest.raises(narrows.CorruptError):
            there.recv(1)
        here.close()


def test_wrong_use_is_told(pair) -> None:
    here, there = pair
    with pytest.raises(TypeError):
        pickle.dumps(here)
    here.close()
    here.close()
    for call in (lambda: here.send(b"x"), lambda: here.recv(1), lambda: here.settimeout(1), lambda: here.flush()):
        with pytest.raises(ValueError):
            call()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams, pytest.raises(narrows.MisuseError):
        narrows.wrap_socket(datagrams)
    one, other = socket.socketpair()
    with one, other:
        with pytest.raises(ValueError):
            narrows.wrap_socket(one, mode="x")  # type: ignore[arg-type]
        with pytest.raises(narrows.MisuseError):
            narrows.wrap_socket(one, policy="best")
        with narrows.wrap_socket(other, mode="r") as reader, pytest.raises(OSError):
            reader.sendall(b"x")


def test_a_socket_that_changes_its_bytes_is_asked_to_send_them(chance) -> None:
    class Inverted(socket.socket):
        """Stands for TLS."""

        def sendall(self, data, flags=0):
            super().sendall(bytes(b ^ 0xFF for b in data), flags)

        def recv(self, size, flags=0):
            return bytes(b ^ 0xFF for b in super().recv(min(size, 10_000), flags))

    pair = [Inverted(fileno=s.detach()) for s in socket.socketpair()]
    data = text(chance, 200_000)
    with narrows.wrap_socket(pair[0], timeout=20) as here, narrows.wrap_socket(pair[1], timeout=20) as there:
        here.sendall(b"first")
        assert receive(there, 5) == b"first"
        sender = threading.Thread(target=lambda: (here.sendall(data), here.shutdown(socket.SHUT_WR)))
        sender.start()
        assert receive(there, len(data)) == data
        sender.join()
        assert there.recv(1) == b""
    one, other = socket.socketpair()
    with Inverted(fileno=one.detach()) as one, other, pytest.raises(narrows.MisuseError):
        narrows.wrap_socket(one, mode="w")


def test_one_direction_with_reports(chance) -> None:
    data = text(chance, 3_000_000)
    here, there = socket.socketpair()
    sender = narrows.wrap_socket(here, mode="w", timeout=20)
    receiver = narrows.wrap_socket(there, mode="r", timeout=20)
    got: list[bytes] = []

    def receive() -> None:
        while piece := receiver.recv(1 << 20):
            got.append(piece)

    thread = threading.Thread(target=receive)
    thread.start()
    sender.sendall(data)
    sender.close()
    thread.join(20)
    receiver.close()
    assert b"".join(got) == data


def test_the_program_sends_and_receives(program: str, chance, tmp_path) -> None:
    data = text(chance, 2_000_000)
    (tmp_path / "data").write_bytes(data)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        server.settimeout(20)
        with subprocess.Popen([program, "send", "-q", tmp_path / "data", f"tcp://127.0.0.1:{port}"]) as child:
            sock, _ = server.accept()
            with narrows.wrap_socket(sock, mode="r", timeout=20) as receiver:
                assert b"".join(iter(lambda: receiver.recv(1 << 20), b"")) == data
            assert child.wait(20) == 0
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with subprocess.Popen(
        [program, "recv", "-q", "-o", tmp_path / "copy", "--listen", f"127.0.0.1:{port}"], stderr=subprocess.DEVNULL
    ) as child:
        sock = connect(port)
        with narrows.wrap_socket(sock, mode="w", timeout=20) as sender:
            sender.sendall(data)
        assert (tmp_path / "copy").read_bytes() == data
        assert child.wait(20) == 0


def connect(port: int) -> socket.socket:
    """Once the program listens."""
    for _ in range(200):
        try:
            return socket.create_connection(("127.0.0.1", port))
        except ConnectionRefusedError:
            time.sleep(0.05)
    raise AssertionError("the program does not listen")
