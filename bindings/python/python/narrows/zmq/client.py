"""REQ and DEALER: one peer, which shows only by its answers that it understands frames."""

import struct
from time import perf_counter_ns
from typing import Any

import zmq

from .exchange import Exchange
from .link import AS_IS, FOREVER, LACKS, Link, Part, head_of, new_routing_id
from .socket import (
    NOBLOCK,
    Bare,
    LostReply,
    Outgoing,
    Socket,
    bare_get,
    bare_recv,
    bare_send,
    given,
)
from .trial import Trial

# If the last answer is older than this, the connection may have been lost since. In a ping-pong the
# next message follows within microseconds.
FRESH_NS = 100_000
# Plain messages between reads of the monitor while the peer is unproven, so that its events do not
# pile up.
UNPROVEN = 4096
# Plain messages until the next check whether the server may be sent frames; a frame of the server
# ends the wait earlier.
WAIT = 64
# How often a reply that cannot be decoded is requested again.
TRIES = 4


class Client(Socket):
    """Common base of REQ and DEALER."""

    _link: Link
    _routing_id: bytes
    # Number of endpoints: with more than one, it is unknown which peer gets a message.
    _endpoints: int
    _mine: bool
    _watch: Any = None
    # Time of the last received frame, in ns.
    _alive: list[int]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._routing_id = new_routing_id()
        self._link = Link(self._routing_id, self._settings, client=True)
        self._endpoints, self._mine, self._alive = 0, True, [0]

    def set(self, option: int, optval: Any) -> None:
        if option == zmq.ROUTING_ID:
            # The peer gets only the application's routing id.
            self._mine = False
            self._be_plain()
        Bare.set(self, option, optval)

    setsockopt = set

    def connect(self, addr: str) -> Any:
        self._another(addr)
        if self._endpoints == 1 and self._mine and self._watch is None:
            # Not earlier: a socket that binds, as proxies do, would announce support and be sent
            # frames.
            Bare.set(self, zmq.ROUTING_ID, self._routing_id)
            self._begin_watch()
        return super().connect(addr)

    def bind(self, addr: str) -> Any:
        self._endpoints += 1
        self._another(addr)
        return super().bind(addr)

    def disconnect(self, addr: Any) -> None:
        super().disconnect(addr)
        self._endpoints = max(0, self._endpoints - 1)
        self._be_plain()

    def _another(self, addr: str) -> None:
        # Compression gains nothing within a process.
        self._endpoints += 2 if addr.startswith("inproc:") else 1
        if self._endpoints > 1:
            self._be_plain()

    def monitor(self, addr: Any, events: int = zmq.EVENT_ALL) -> None:
        # A socket has only one monitor. Without it a new connection would go unnoticed.
        self._mine = False
        self._be_plain()
        self._end_watch()
        super().monitor(addr, events)

    def close(self, linger: int | None = None) -> None:
        self._end_watch()
        super().close(linger)

    def _be_plain(self) -> None:
        self._link.proven = False
        self._link.skip = UNPROVEN
        self._link.renew()

    def _proved(self) -> None:
        """Called for each received frame: the peer understands frames as long as the connection
        lasts.
        """
        link = self._link
        self._alive[0] = perf_counter_ns()
        if link.proven or self._watch is None or not self._mine or self._endpoints != 1:
            return
        # The frame may have been queued here since before the connection was lost.
        if not self._lost_connection():
            link.proven = True
            link.skip = 0 if self._settings.policy != "off" else FOREVER

    def _begin_watch(self) -> None:
        address = f"inproc://narrows-{id(self):x}-{perf_counter_ns():x}"
        watch = None
        try:
            Bare.monitor(self, address, zmq.EVENT_DISCONNECTED)
            watch = zmq.Socket(self.context, zmq.PAIR)
            # With a limit, the thread of libzmq would wait for this socket.
            watch.linger = watch.rcvhwm = 0
            watch.connect(address)
            self._watch = watch
        except zmq.ZMQError:
            # No more sockets in this context: stay plain.
            if watch is not None:
                watch.close(0)

    def _lost_connection(self) -> bool:
        """Whether the monitor reported a lost connection since the last call."""
        lost = False
        watch = self._watch
        while watch is not None and bare_get(watch, zmq.EVENTS) & zmq.POLLIN:
            event = watch.recv_multipart(NOBLOCK)
            lost = lost or struct.unpack_from("=H", event[0])[0] == zmq.EVENT_DISCONNECTED
        return lost

    def _end_watch(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            if not self.closed:
                Bare.monitor(self, None, 0)
            watch.close(0)

    def _begin(self, out: Outgoing, part: Part, private: bool) -> None:
        link = self._link
        out.link = link
        if not link.proven and link.skip <= 0:
            # Reads the events of the monitor, so that they do not pile up.
            self._lost_connection()
            link.skip = UNPROVEN
        if link.skip > 0 or private:
            return
        now = perf_counter_ns()
        if now - self._alive[0] > FRESH_NS:
            if self._lost_connection():
                # The new peer has to prove that it understands frames.
                self._be_plain()
                return
            self._alive[0] = now
        out.frames = link.window_open()


class Requester(Client):
    """REQ: one request, one reply. Repetitions happen within ``recv``."""

    _trial: Trial

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._trial = Trial()
        self._link.tried = self._settings.policy.startswith("messages")

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
        link = self._link
        if link.skip > 0 and not flags and not self._out.more and type(data) is bytes and data[:4] != link.tag_out:
            link.skip -= 1
            link.granted = False
            return bare_send(self, data, 0, copy, track)
        return self._send_part(data, flags, copy, track, private)

    def _begin(self, out: Outgoing, part: Part, private: bool) -> None:
        # A new request means that the last one is done: its copies are not needed.
        link, trial = self._link, self._trial
        if link.unacked:
            link.unacked.clear()
            link.unacked_len = 0
        trial.begin = 0
        # The permission is for one request: a client that does not wait for the reply does not know
        # whether it was a frame.
        granted, link.granted = link.granted, False
        # Parts that cannot be encoded are framed too, so that the reply is framed.
        super()._begin(out, part, False)
        if not out.frames:
            return
        framed = True
        if link.tried:
            if trial.is_over() and not trial.verdict():
                out.frames = False
                link.skip = trial.every
                trial.restart()
                return
            framed = trial.wants_frame()
        if framed and not granted:
            # The next framed reply ends the wait.
            out.frames = False
            trial.waits = True
            link.skip = WAIT
            return
        trial.asked(framed)
        out.frames = framed

    def recv(self, flags: int = 0, copy: bool = True, track: bool = False) -> Any:
        if self._inbox:
            return given(self._inbox.popleft(), copy)
        link, trial = self._link, self._trial
        if trial.begin and trial.framed:
            return self._recv_expected(flags, copy, track)
        part = bare_recv(self, flags, copy, track)
        if (part[:4] if copy else head_of(part)) != link.tag_in:
            if trial.begin:
                trial.answered(False)
            return part
        return self._recv_framed(part, self._rest(), flags, copy, track)

    def _recv_expected(self, flags: int, copy: bool, track: bool) -> Any:
        """Receives the reply to a frame, which mostly has one part. Querying for more parts takes
        longer than receiving one, except on a `zmq.Frame`.
        """
        link, trial = self._link, self._trial
        frame = bare_recv(self, flags, False, track)
        part = frame.bytes
        if part[:4] != link.tag_in:
            trial.answered(False)
            return part if copy else frame
        message = None if frame.more else link.decode_one(part)
        if message is None:
            return self._recv_framed(part, self._rest(), flags, copy, track)
        link.granted = True
        # Timing a few round trips shows the slope as well as timing all.
        if trial.rest < 0 or not link.seq & 3:
            link.wire_len += len(part)
            link.answered()
        self._alive[0] = perf_counter_ns()
        if trial.rest < 0:
            trial.answered(True)
        trial.begin = 0
        if len(link.unacked) == 1:
            link.unacked.pop()
            link.unacked_len = 0
        return given(message, copy)

    def _recv_framed(self, part: Any, rest: list[Part], flags: int, copy: bool, track: bool) -> Any:
        link, trial = self._link, self._trial
        for _ in range(TRIES):
            came = link.decode([part, *rest])
            if came.parts is not None:
                self._proved()
                link.granted = True
                if trial.waits and link.proven:
                    link.skip = 0
                if trial.begin:
                    if trial.framed:
                        link.wire_len += len(part)
                        link.answered()
                    trial.answered(True)
                return self._give(came.parts, copy)
            trial.begin = 0
            if came.kind == AS_IS:
                bare_send(self, link.control(LACKS, came.seq), 0, True, False)
            else:
                again = link.lacked(came.seq) if came.kind == LACKS else []
                if not again:
                    break
                for seq, parts, last in again[-1:]:
                    self._send_again([link.encode_again(p, seq, i == 0, last) for i, p in enumerate(parts)])
            part = bare_recv(self, flags, copy, track)
            if head_of(part) != link.tag_in:
                return part
            rest = self._rest()
        # The reply is lost, as after a broken connection.
        raise LostReply()


class Dealer(Exchange, Client):
    """DEALER: messages in both directions, at any time."""

    def _link_of(self, parts: list[Part]) -> tuple[Link | None, int]:
        return self._link, 0

    def _came_framed(self, link: Link) -> None:
        self._proved()

    def _came_plain(self, link: Link) -> None:
        pass
