"""PUSH and PULL, PUB and SUB. The sender has no back channel, so it has to be told that all readers
understand units.
"""

import hashlib
import math
import struct
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import zmq

from .. import (
    MESSAGE_MAX,
    Adoption,
    MessageDecoder,
    MessageEncoder,
    NarrowsError,
    TopicReader,
    TopicWriter,
    Training,
)
from .link import HELD_LEN, HELD_MAX, PATIENCE_S, Part
from .socket import (
    NOBLOCK,
    SNDMORE,
    Bare,
    Socket,
    bare_get,
    bare_recv,
    bare_send,
    given,
)

# First bytes of parts that are units. The same for all connections, since there is no routing id
# here to derive it from.
MAGIC = hashlib.sha256(b"narrows zmq units 1").digest()[:8]
# Topic of announcements. SUB sockets of this module subscribe to it once they need it.
ANNOUNCEMENTS = b"\0narrows"
# Interval in seconds at which a PUB socket checks for new connections and trainings: much less than
# the second that a new reader may wait.
LOOK_S = 0.05
# Seconds after the connection in which a reader should subscribe. A later one gets the next regular
# announcement.
SUBSCRIBED_S = 0.3


class Pusher(Socket):
    """PUSH: encodes each part independently, since nobody knows which peer gets it."""

    _encoder: MessageEncoder | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        s = self._settings
        if s.peers == "narrows" and s.policy != "off":
            self._encoder = MessageEncoder(s.policy, delivery="fanout", borders=True, history=0)
            # Drops the opening of the flow, which readers that join later would not get.
            self._encoder.announce()

    def send(
        self,
        data: Any,
        flags: int = 0,
        copy: bool = True,
        track: bool = False,
        routing_id: int | None = None,
        group: str | None = None,
        *,
        private: bool = False,
    ) -> Any:
        if self._encoder is None or private or isinstance(data, str):
            return bare_send(self, data, flags, copy, track)
        part = data if type(data) is bytes else bytes(memoryview(data))
        if 0 < len(part) <= MESSAGE_MAX:
            unit = self._encoder.encode(part)
            if len(unit) + len(MAGIC) < len(part) or part[: len(MAGIC)] == MAGIC:
                part = MAGIC + unit
        return bare_send(self, part, flags, copy, track)


class Puller(Socket):
    """PULL: decodes parts that are units."""

    _decoder: MessageDecoder

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._decoder = MessageDecoder(delivery="fanout", borders=True)

    def recv(self, flags: int = 0, copy: bool = True, track: bool = False) -> Any:
        part = bare_recv(self, flags, copy, track)
        if (part[: len(MAGIC)] if copy else bytes(memoryview(part)[: len(MAGIC)])) != MAGIC:
            return part
        try:
            (message,) = self._decoder.decode(bytes(part)[len(MAGIC) :])
        except (NarrowsError, ValueError):
            # Not made by a sender of this module.
            return part
        return given(message, copy)


class Publisher(Socket):
    """PUB: the first part stays plain, for subscriptions; the others are one message of a topic."""

    _writer: TopicWriter | None = None
    _state: "Publishing"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        s = self._settings
        self._state = Publishing()
        if s.peers == "narrows" and s.policy != "off":
            self._writer = TopicWriter(s.policy)
            if s.dictionary is not None:
                self._writer.offer(s.dictionary)
            else:
                self._writer.sample()
            address = f"inproc://narrows-{id(self):x}-{time.perf_counter_ns():x}"
            Bare.monitor(self, address, zmq.EVENT_HANDSHAKE_SUCCEEDED)
            self._state.watch = watch = zmq.Socket(self.context, zmq.PAIR)
            watch.linger = 0
            watch.connect(address)

    def monitor(self, addr: Any, events: int = zmq.EVENT_ALL) -> None:
        # Without the monitor, new readers wait for the next regular announcement.
        self._end_watch()
        super().monitor(addr, events)

    def close(self, linger: int | None = None) -> None:
        self._end_watch()
        super().close(linger)

    def _end_watch(self) -> None:
        state = self.__dict__.get("_state")
        if state is not None and state.watch is not None:
            watch, state.watch = state.watch, None
            if not self.closed:
                Bare.monitor(self, None, 0)
            watch.close(0)

    def send(
        self,
        data: Any,
        flags: int = 0,
        copy: bool = True,
        track: bool = False,
        routing_id: int | None = None,
        group: str | None = None,
        *,
        private: bool = False,
    ) -> Any:
        state, writer = self._state, self._writer
        if writer is None or isinstance(data, str) or not (flags & SNDMORE or state.parts):
            return bare_send(self, data, flags, copy, track)
        # PUB never blocks, so its parts can be gathered.
        state.parts.append(data if type(data) is bytes else bytes(memoryview(data)))
        state.private = state.private or private
        if flags & SNDMORE:
            return None
        parts, state.parts = state.parts, []
        private, state.private = state.private, False
        self._announce(writer, state)
        body = packed(parts)
        if not private and len(body) <= MESSAGE_MAX:
            unit = writer.send(body)
            if len(MAGIC) + len(unit) < sum(map(len, parts[1:])) or parts[1].startswith(MAGIC):
                parts = [parts[0], MAGIC + unit]
        for part in parts[:-1]:
            bare_send(self, part, flags | SNDMORE, True, False)
        return bare_send(self, parts[-1], flags, copy, track)

    def _announce(self, writer: TopicWriter, state: "Publishing") -> None:
        now = time.monotonic()
        if now >= state.look_at:
            state.look_at = now + LOOK_S
            state.look(writer, now)
        unit = writer.announcement()
        if unit is not None:
            bare_send(self, ANNOUNCEMENTS, SNDMORE, True, False)
            bare_send(self, MAGIC + unit, 0, True, False)


class Publishing:
    """State of a PUB socket: the message being gathered, new readers, and training."""

    __slots__ = ("came_at", "look_at", "parts", "private", "trained", "training", "watch")

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.private = False
        self.look_at = 0.0
        self.came_at: float | None = None
        self.watch: Any = None
        self.training: threading.Thread | None = None
        self.trained: Adoption | None = None

    def look(self, writer: TopicWriter, now: float) -> None:
        watch, came = self.watch, False
        while watch is not None and bare_get(watch, zmq.EVENTS) & zmq.POLLIN:
            watch.recv_multipart(NOBLOCK)
            came = True
        if came:
            self.came_at = now
            writer.reader_came()
        elif self.came_at is not None and now >= self.came_at + SUBSCRIBED_S:
            self.came_at = None
            writer.reader_came()
        if self.training is None:
            training = writer.training()
            if training is not None:
                self.training = threading.Thread(target=self.train, args=(training,), daemon=True)
                self.training.start()
        elif not self.training.is_alive():
            self.training = None
            if self.trained is not None:
                writer.trained(self.trained)

    def train(self, training: Training) -> None:
        self.trained = training.run()


class Subscriber(Socket):
    """SUB: messages that need an announcement wait for it, and so do the messages behind them.

    It subscribes to announcements only when the first unit arrives, since an XPUB publisher without
    this module would see that subscription. ``peers="narrows"`` subscribes at once.
    """

    _reader: TopicReader
    _ready: deque[list[Part]]
    _endpoints: list[str]
    _listening: "Listening"
    _behind: "Behind"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._reader, self._ready, self._endpoints = TopicReader(), deque(), []
        self._listening, self._behind = Listening(), Behind()
        if self._settings.peers == "narrows":
            self._listening.subscribe(self)

    def connect(self, addr: str) -> Any:
        result = super().connect(addr)
        self._endpoints.append(addr)
        return result

    def disconnect(self, addr: Any) -> None:
        super().disconnect(addr)
        if addr in self._endpoints:
            self._endpoints.remove(addr)

    def close(self, linger: int | None = None) -> None:
        listening = self.__dict__.get("_listening")
        if listening is not None:
            listening.hang_up()
        super().close(linger)

    def _waiting(self) -> bool:
        return bool(self._inbox or self._ready)

    def _due(self) -> float:
        wakeup_s = self._reader.wakeup_in if self._reader.waiting else None
        return min(self._behind.due(), math.inf if wakeup_s is None else time.monotonic() + wakeup_s)

    def _on_time(self) -> None:
        if self._reader.waiting:
            self._deliver(self._reader.on_time())
            self._ready.extend(self._behind.overdue())

    def recv(self, flags: int = 0, copy: bool = True, track: bool = False) -> Any:
        if self._inbox:
            return given(self._inbox.popleft(), copy)
        return self._give(self._recv_message(flags), copy)

    def recv_multipart(self, flags: int = 0, copy: bool = True, track: bool = False) -> Any:
        if self._inbox:
            parts = list(self._inbox)
            self._inbox.clear()
        else:
            parts = self._recv_message(flags)
        return parts if copy else [zmq.Frame(p) for p in parts]

    def _recv_message(self, flags: int) -> list[Part]:
        end = None
        while not self._ready:
            if self._reader.waiting:
                end = self._wait(flags, end)
                if self._ready:
                    break
            parts = [bare_recv(self, flags, True, False)]
            if bare_get(self, zmq.RCVMORE):
                parts += self._rest()
            if len(parts) == 2 and parts[1].startswith(MAGIC):
                self._unit(parts[1][len(MAGIC) :])
            elif not self._behind.hold(parts):
                return parts
        return self._ready.popleft()

    def _unit(self, unit: bytes) -> None:
        reader = self._reader
        before = reader.waiting + reader.unannounced
        try:
            bodies = reader.receive(unit)
        except NarrowsError:
            # Damaged, or not made by this module; the reader counts it.
            return
        waiting = reader.waiting
        if waiting or self._behind.entries:
            self._behind.units_came(waiting + reader.unannounced + len(bodies) - before)
        self._deliver(bodies)
        self._listening.unit_came(self, waiting > 0)

    def _deliver(self, bodies: Sequence[bytes]) -> None:
        self._ready.extend(self._behind.in_order(bodies, self._reader.waiting))

    def _wait(self, flags: int, end: float | None) -> float | None:
        now = time.monotonic()
        if end is None and not flags & NOBLOCK:
            timeout = int(bare_get(self, zmq.RCVTIMEO))
            end = now + timeout / 1000 if timeout >= 0 else math.inf
        while True:
            self._on_time()
            due = self._due()
            if self._ready or end is None or due == math.inf:
                return end
            left_s = max(0.0, min(end, due) - time.monotonic())
            if zmq.Socket.poll(self, int(left_s * 1000) + 1):
                return end
            if time.monotonic() >= end and not self._ready:
                raise zmq.Again()


class Behind:
    """Plain messages behind units that wait, since a publisher promises order. Their wait is short,
    since a forged unit waits for an announcement that never comes.
    """

    __slots__ = ("entries", "held", "held_len", "units", "until")

    def __init__(self) -> None:
        # In order of arrival: numbers of consecutive units, and plain messages.
        self.entries: deque[int | list[Part]] = deque()
        self.units = self.held = self.held_len = 0
        # Deadline of the first waiting unit.
        self.until = math.inf

    def hold(self, parts: list[Part]) -> bool:
        """Holds a message. Returns false if no unit waits before it, or only overdue ones, or too
        much is held.
        """
        if self.units == 0 or self.held >= HELD_MAX or self.held_len >= HELD_LEN or time.monotonic() >= self.until:
            return False
        self.entries.append(parts)
        self.held += 1
        self.held_len += sum(map(len, parts))
        return True

    def units_came(self, count: int) -> None:
        if count > 0:
            if self.units == 0:
                self.until = time.monotonic() + PATIENCE_S
            self.units += count
            self.entries.append(count)

    def due(self) -> float:
        return self.until if self.held else math.inf

    def overdue(self) -> list[list[Part]]:
        """Returns the messages that have waited long enough."""
        if not self.held or time.monotonic() < self.until:
            return []
        out = [entry for entry in self.entries if not isinstance(entry, int)]
        self.entries = deque([self.units])
        self.held = self.held_len = 0
        return out

    def in_order(self, bodies: Sequence[bytes], waiting: int) -> list[list[Part]]:
        """Returns the messages that can be delivered now that ``bodies`` were decoded and
        ``waiting`` units still wait; other units were dropped.
        """
        messages = deque(parts for body in bodies if (parts := unpacked(body)) is not None)
        out: list[list[Part]] = []
        while self.entries:
            entry = self.entries[0]
            if not isinstance(entry, int):
                self.held -= 1
                self.held_len -= sum(map(len, entry))
                out.append(entry)
            else:
                done = min(entry, self.units - waiting)
                out += [messages.popleft() for _ in range(min(done, len(messages)))]
                self.units -= done
                if done < entry:
                    self.entries[0] = entry - done
                    break
            self.entries.popleft()
        return [*out, *messages]


class Listening:
    """Subscription of a SUB socket to announcements."""

    __slots__ = ("knock", "subscribed")

    def __init__(self) -> None:
        self.subscribed = False
        # A second connection, which makes the publisher soon repeat what it announced before this
        # socket subscribed.
        self.knock: Any = None

    def subscribe(self, socket: Subscriber) -> None:
        self.subscribed = True
        Bare.set(socket, zmq.SUBSCRIBE, ANNOUNCEMENTS)

    def unit_came(self, socket: Subscriber, waits: bool) -> None:
        if not waits:
            self.hang_up()
        if self.subscribed:
            return
        self.subscribe(socket)
        if waits and socket._endpoints:
            try:
                self.knock = zmq.Socket(socket.context, zmq.SUB)
                self.knock.linger = 0
                for addr in socket._endpoints:
                    self.knock.connect(addr)
            except zmq.ZMQError:
                # No more sockets in this context: waiting messages wait for the next regular
                # announcement.
                self.hang_up()

    def hang_up(self) -> None:
        knock, self.knock = self.knock, None
        if knock is not None:
            knock.close(0)


def packed(parts: Sequence[bytes]) -> bytes:
    """Joins all parts: their number as 2 bytes, then each part, all but the last with its length
    before it as 4 bytes. Little-endian.
    """
    pieces = [struct.pack("<H", len(parts))]
    for part in parts[:-1]:
        pieces += (struct.pack("<I", len(part)), part)
    return b"".join((*pieces, parts[-1]))


def unpacked(body: bytes) -> list[Part] | None:
    """Splits joined parts; ``None`` if ``body`` is malformed."""
    if len(body) < 2:
        return None
    (count,), at = struct.unpack_from("<H", body), 2
    parts: list[Part] = []
    for _ in range(count - 1):
        if len(body) < at + 4:
            return None
        (n,) = struct.unpack_from("<I", body, at)
        at += 4 + n
        if at > len(body):
            return None
        parts.append(body[at - n : at])
    return [*parts, body[at:]] if count > 0 else None
