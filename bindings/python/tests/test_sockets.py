"""Sockets: streams in both directions, bounded waits, and the program `narrows` as the peer."""

import contextlib
import gc
import os
import pickle
import select
import socket
import subprocess
import sys
import threading
import time
import weakref

import pytest
from conftest import text

import narrows


@pytest.fixture(params=["tcp", "unix"])
def pair(request):
    """The two ends of a connection, wrapped."""
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
    # For close, which waits until the system has reported that the other end is gone.
    here.settimeout(20)


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
        """A stand-in for a TLS socket."""

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
        receiver.close()

    thread = threading.Thread(target=receive)
    thread.start()
    sender.sendall(data)
    sender.close()
    thread.join(20)
    assert b"".join(got) == data


@pytest.mark.parametrize("fails", [False, True])
def test_a_sender_hears_of_the_end_when_it_is_stored(fails: bool) -> None:
    here, there = socket.socketpair()
    told: list[object] = []

    def send() -> None:
        try:
            with narrows.wrap_socket(here, mode="w", timeout=20) as sender:
                sender.sendall(b"precious")
            told.append("stored")
        except narrows.NarrowsError as error:
            told.append(str(error))

    thread = threading.Thread(target=send)
    thread.start()

    class DiskFull(Exception):
        pass

    try:
        with narrows.wrap_socket(there, mode="r", timeout=20) as receiver:
            assert receiver.makefile("rb").read() == b"precious"
            # That it does not come too early can only be checked by waiting.
            thread.join(0.2)
            assert not told
            if fails:
                raise DiskFull
    except DiskFull:
        assert fails
    thread.join(20)
    assert len(told) == 1 and (told[0] != "stored" and "DiskFull" in str(told[0]) if fails else told[0] == "stored")


def test_a_receiver_that_goes_early_confirms_nothing() -> None:
    here, there = socket.socketpair()
    sender = narrows.wrap_socket(here, mode="w", timeout=20)
    sender.sendall(b"a part of it")
    sender.flush()
    receiver = narrows.wrap_socket(there, mode="r", timeout=20)
    assert receiver.recv(100) == b"a part of it"
    receiver.close()
    with pytest.raises(OSError):
        sender.close()


@pytest.mark.parametrize("mode", ["w", "rw"])
def test_an_exception_in_the_body_is_no_end_of_the_stream(mode) -> None:
    here, there = socket.socketpair()
    with narrows.wrap_socket(there, mode={"w": "r"}.get(mode, mode), timeout=20) as receiver:
        with pytest.raises(ZeroDivisionError):
            with narrows.wrap_socket(here, mode=mode, timeout=20) as sender:
                sender.sendall(b"half of it")
                sender.flush()
                # Waits for the preface of the other side.
                if mode == "rw":
                    select.select([sender], [], [], 20)
                assert 1 / 0
        assert receive(receiver, 10) == b"half of it"
        # If a report of the receiver was not read, the system resets the connection.
        with pytest.raises((narrows.TruncatedError, ConnectionResetError) if mode == "w" else narrows.TruncatedError):
            receiver.recv(1)


class Mine(socket.socket):
    """A stand-in for a socket that transforms its data, such as TLS."""


def mine(sock: socket.socket) -> Mine:
    return Mine(sock.family, sock.type, sock.proto, fileno=sock.detach())


def test_what_is_sent_by_an_object_of_python_leaves_with_the_call() -> None:
    class Counted(Mine):
        sent = 0

        def sendall(self, data, flags=0) -> None:
            # Meanwhile the engine produces more.
            time.sleep(0.001)
            self.sent += len(data)

    here, there = socket.socketpair()
    with there, narrows.wrap_socket(Counted(fileno=here.detach()), policy="fixed:store", timeout=20) as sender:
        raw = 0
        for length in [500_000] + [100] * 200:
            raw += length
            sender.sendall(bytes(length))
            assert sender._sock.sent == sender.stats()["sent"]["wire_bytes"] > raw


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_nothing_is_left_of_a_socket_that_was_closed() -> None:
    def use(kind) -> weakref.ref:
        here, there = (kind(s) for s in socket.socketpair())
        with narrows.wrap_socket(here, timeout=20) as here, narrows.wrap_socket(there, timeout=20) as there:
            here.sendall(b"x")
            assert there.recv(1) == b"x"
        return weakref.ref(here)

    def fail() -> weakref.ref:
        here, there = socket.socketpair()
        with here, narrows.wrap_socket(there, timeout=20) as wrapped:
            here.sendall(b"GET / HTTP/1.1\r\n\r\n" * 9)
            for _ in range(2):
                with pytest.raises(narrows.CorruptError):
                    wrapped.recv(1)
        return weakref.ref(wrapped)

    gc.collect()  # What earlier tests left.
    before = descriptors()
    gone = [use(mine), use(lambda s: s), fail()]
    gc.collect()
    assert [ref() for ref in gone] == [None] * 3
    assert descriptors() == before


def test_what_was_sent_leaves_with_a_socket_that_nobody_closed() -> None:
    here, there = socket.socketpair()
    data = os.urandom(1 << 20)
    got = bytearray()
    with narrows.wrap_socket(there, timeout=20) as receiver:

        def receive() -> None:
            while piece := receiver.recv(1 << 20):
                got.extend(piece)

        ends: list[BaseException] = []
        thread = threading.Thread(target=lambda: ends.append(pytest.raises(EOFError, receive).value))
        thread.start()
        sender = narrows.wrap_socket(here, policy="fixed:store", timeout=20)
        sender.sendall(data)
        with pytest.warns(ResourceWarning, match="unclosed"):
            del sender
        thread.join(20)
    assert got == data and isinstance(ends[0], narrows.TruncatedError)


def test_what_was_sent_arrives_though_nothing_was_received() -> None:
    data = os.urandom(1 << 20)
    with socket.create_server(("127.0.0.1", 0)) as server:
        # So that most of the data is still at the sender when that closes.
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        here = socket.create_connection(server.getsockname())
        there, _ = server.accept()
    with narrows.wrap_socket(there, timeout=20) as receiver:
        def send() -> None:
            with narrows.wrap_socket(here, policy="fixed:store", timeout=20) as sender:
                sender.sendall(data)

        thread = threading.Thread(target=send)
        thread.start()
        got = receive(receiver, 1000)
        thread.join(0.5)
        got += b"".join(iter(lambda: receiver.recv(1 << 20), b""))
        thread.join(20)
    assert got == data


def test_a_forked_process_leaves_the_connection_alone() -> None:
    script = """
import os, socket, threading, narrows
for mode, back in (("rw", "rw"), ("r", "w")):
    here, there = (narrows.wrap_socket(s, mode=m, timeout=20) for s, m in zip(socket.socketpair(), (mode, back)))
    for drop in (True, False):
        child = os.fork()
        if child == 0:
            if drop:
                del here, there
            else:
                try:
                    with here:
                        raise OSError("in the child")
                except OSError:
                    pass
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    there.sendall(b"parent")
    there.flush()
    assert here.recv(6) == b"parent"
    closing = threading.Thread(target=there.close)
    closing.start()
    assert here.recv(1) == b""
    here.close()
    closing.join(20)
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], timeout=60, check=True)


def test_totals_can_be_had_at_any_time(chance) -> None:
    here, there = socket.socketpair()
    here, there = narrows.wrap_socket(here, timeout=20), narrows.wrap_socket(there, timeout=20)
    thread = threading.Thread(target=lambda: here.recv(1))
    thread.start()
    for _ in range(50):
        assert here.stats()["received"]["raw_bytes"] == 0
        time.sleep(0.002)
    there.sendall(b"x")
    thread.join(20)
    here.sendall(text(chance, 200_000))
    assert len(receive(there, 200_000)) == 200_000
    there.close()
    with pytest.raises(OSError):
        for _ in range(1000):
            here.sendall(bytes(100_000))
            here.flush()
    for _ in range(2):
        sent, received = here.stats()["sent"], here.stats()["received"]
        assert sent["raw_bytes"] >= 200_000 and 0 < sent["wire_bytes"] < sent["raw_bytes"]
        assert received["raw_bytes"] == 1 and received["wire_bytes"] > 1
        here.close()
    assert there.stats()["received"]["raw_bytes"] == 200_000


def test_a_socket_that_was_refused_keeps_no_descriptor() -> None:
    here, there = socket.socketpair()
    with here, there:
        before = descriptors()
        for wrong in ({"threads": -1}, {"policy": None}, {"policy": "best"}, {"timeout": -1}, {"timeout": "1"}):
            for mode in ("w", "rw"):
                with pytest.raises((narrows.MisuseError, TypeError, OverflowError)):
                    narrows.wrap_socket(here, mode=mode, **wrong)
        assert descriptors() == before


def test_the_program_sends_and_receives(program: str, chance, tmp_path) -> None:
    data = text(chance, 2_000_000)
    (tmp_path / "data").write_bytes(data)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        server.settimeout(20)
        with ending([program, "send", "-q", tmp_path / "data", f"tcp://127.0.0.1:{port}"]) as child:
            sock, _ = server.accept()
            with narrows.wrap_socket(sock, mode="r", timeout=20) as receiver:
                assert b"".join(iter(lambda: receiver.recv(1 << 20), b"")) == data
            assert child.wait(20) == 0
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with ending([program, "recv", "-q", "-o", tmp_path / "copy", "--listen", f"127.0.0.1:{port}"]) as child:
        sock = connect(port)
        with narrows.wrap_socket(sock, mode="w", timeout=20) as sender:
            sender.sendall(data)
        assert (tmp_path / "copy").read_bytes() == data
        assert child.wait(20) == 0


@contextlib.contextmanager
def ending(command: list):
    """A process that ends with the test, whatever it waits for."""
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as child:
        try:
            yield child
        finally:
            child.kill()


def connect(port: int) -> socket.socket:
    """Connects once the program listens."""
    for _ in range(200):
        try:
            return socket.create_connection(("127.0.0.1", port))
        except ConnectionRefusedError:
            time.sleep(0.05)
    raise AssertionError("the program does not listen")
