"""Sockets of both kinds, and a relay that breaks connections, for the tests of narrows.zmq."""

import socket as tcp
import threading
import time
from collections.abc import Callable
from typing import Any

import narrows.zmq
import zmq

TIMEOUT_MS = 60_000
LINKED = "fixed:lz4:accel=1,link"
TRANSPORTS = ["tcp", "ipc", "inproc"]
CLASSES = {"narrows": narrows.zmq.Socket, "plain": zmq.Socket}
PEERS = [("narrows", "narrows"), ("narrows", "plain"), ("plain", "narrows")]


class Sockets:
    """Makes sockets with bounded waits, and closes them."""

    def __init__(self, tmp_path: Any) -> None:
        self.context = zmq.Context()
        self.tmp_path = tmp_path
        self.made: list[Any] = []

    def __call__(self, kind: int, who: str = "narrows", **kwargs: Any) -> Any:
        s = CLASSES[who](self.context, kind, **(kwargs if who == "narrows" else {}))
        s.linger, s.rcvtimeo, s.sndtimeo = 0, TIMEOUT_MS, TIMEOUT_MS
        self.made.append(s)
        return s

    def bind(self, s: Any, transport: str = "tcp") -> str:
        if transport == "tcp":
            s.bind("tcp://127.0.0.1:*")
        elif transport == "ipc":
            s.bind(f"ipc://{self.tmp_path}/{len(self.made)}")
        else:
            s.bind(f"inproc://test-{len(self.made)}")
        return str(s.getsockopt_string(zmq.LAST_ENDPOINT)).rstrip("\0")


def message(i: int) -> bytes:
    return b"SUBSCRIBE sip:u%d@example.net SIP/2.0\r\nCSeq: %d SUBSCRIBE\r\nExpires: 3600\r\nEvent: presence" % (
        i * 7919 % 100,
        i,
    )


def until(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.005)


def round_trips(client: Any, server: Any, numbers: range) -> None:
    for i in numbers:
        client.send(message(i))
        assert server.recv() == message(i)
        server.send(message(i) + b"!")
        assert client.recv() == message(i) + b"!"


def sent_bytes(s: Any) -> tuple[int, int]:
    """Raw and wire bytes of framed messages."""
    links = [s._link] if hasattr(s, "_link") else list(s._links.values())
    stats = [link.encoder.sent for link in links if link.encoder is not None]
    return sum(x.raw_bytes for x in stats), sum(x.wire_bytes for x in stats)


class Proxy:
    """A TCP relay whose connections can be broken, and which can be slow to accept new ones."""

    def __init__(self, target: str) -> None:
        self.target = int(target.rsplit(":", 1)[1])
        self.listener = tcp.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self.listener.getsockname()[1]}"
        self.pairs: list[tcp.socket] = []
        self.accepted = 0
        self.thread = threading.Thread(target=self.accept, daemon=True)
        self.thread.start()

    def accept(self) -> None:
        while True:
            try:
                near, _ = self.listener.accept()
                far = tcp.create_connection(("127.0.0.1", self.target))
            except OSError:
                return
            self.pairs += [near, far]
            self.accepted += 1
            for a, b in ((near, far), (far, near)):
                threading.Thread(target=self.pump, args=(a, b), daemon=True).start()

    @staticmethod
    def pump(a: tcp.socket, b: tcp.socket) -> None:
        try:
            while data := a.recv(65536):
                b.sendall(data)
        except OSError:
            pass
        for s in (a, b):
            try:
                s.shutdown(tcp.SHUT_RDWR)
            except OSError:
                pass

    def drop(self) -> None:
        pairs, self.pairs = self.pairs, []
        for s in pairs:
            try:
                s.shutdown(tcp.SHUT_RDWR)
            except OSError:
                pass
            s.close()

    def close(self) -> None:
        self.listener.close()
        self.drop()
