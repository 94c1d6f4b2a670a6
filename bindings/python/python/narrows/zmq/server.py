"""REP and ROUTER: any number of peers, each of which announces in its routing id whether it
understands frames.
"""

import time
from collections import OrderedDict
from random import randrange
from typing import Any

import zmq

from .exchange import Exchange
from .link import AGAIN_LAST, AS_IS, FOREVER, GONE, LACKS, PREFIX, Link, Part
from .socket import Outgoing, Socket, bare_recv, bare_send, given

# After CALM_AFTER plain requests a REP inspects few of them: one in 16 at first, one in 64 later.
CALM_AFTER, CALM_FIRST, CALM_MOST = 64, 16, 64
PREFIX_STR = PREFIX.decode()


class Server(Socket):
    """Common base of REP and ROUTER."""

    # In the order of the last message received from them.
    _links: OrderedDict[Any, Link]
    # Link and routing id of the sender of the last message.
    _peer: list[Any]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._links, self._peer = OrderedDict(), [None, None]
        super().__init__(*args, **kwargs)

    def _link_to(self, routing_id: Any) -> Link:
        links = self._links
        link = links.get(routing_id)
        if link is None:
            name = routing_id if isinstance(routing_id, bytes) else routing_id.encode()
            link = links[routing_id] = Link(name, self._settings, client=False)
            if len(links) > self._settings.peers_max:
                self._forget(links.popitem(last=False)[1])
        else:
            links.move_to_end(routing_id)
        return link

    def _forget(self, link: Link) -> None:
        """Called for a link that is dropped. If its peer sends a frame later, it is told."""

    def _answer(self, out: Outgoing, link: Link | None, private: bool) -> None:
        out.link = link
        if link is None or private or not link.mirrors:
            return
        if link.plain_run:
            # The client may have a new connection, or more than one, so this frame must be
            # independent.
            link.renew()
            link.welcomes()
            out.frames = True
        else:
            out.frames = link.skip == 0 and link.window_open()


class Calm:
    """Decides when a REP need not inspect who sent a request: reading the routing id of a message
    takes as long as receiving it.

    A REQ sends a frame only if the last reply to it was one. So while no peer's last reply was a
    frame, all requests are plain. Still, some requests are inspected and answered by a frame if
    allowed, so that a client that has found that frames pay can begin.
    """

    __slots__ = ("granted", "left", "never", "plain_run", "sampled", "span")

    def __init__(self) -> None:
        # Number of peers that may send a frame; requests until the next one is inspected.
        self.granted = self.left = 0
        # Some peer may send a frame at any time.
        self.never = False
        self.plain_run = 0
        self.span = CALM_FIRST
        self.sampled = False

    def may_begin(self) -> bool:
        if self.plain_run < CALM_AFTER or self.granted or self.never or self.sampled:
            return False
        # Random, so that of clients that take turns each one is inspected at some time.
        self.left, self.sampled = randrange(self.span // 2, self.span + self.span // 2), True
        self.span = min(2 * self.span, CALM_MOST)
        return True

    def disturb(self) -> None:
        """Records that a frame arrived."""
        self.plain_run, self.span, self.sampled = 0, CALM_FIRST, False

    def grant(self, link: Link, framed: bool) -> None:
        """Records whether the reply to this peer is a frame."""
        if framed != link.granted:
            link.granted = framed
            self.granted += 1 if framed else -1


class Replier(Server):
    """REP: one reply to each request, to the peer that sent it. Requests to repeat are answered
    within ``recv``.
    """

    _calm: Calm

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._calm = Calm()
        super().__init__(*args, **kwargs)

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
        link: Link | None = self._peer[0]
        if link is None:
            return bare_send(self, data, flags, copy, track)
        if not (link.mirrors or link.granted or flags or self._out.more):
            if type(data) is bytes and data[:4] != link.tag_out:
                return bare_send(self, data, 0, copy, track)
        return self._send_part(data, flags, copy, track, private)

    def _begin(self, out: Outgoing, part: Part, private: bool) -> None:
        # Parts that cannot be encoded are framed too, so that the next request may be framed.
        link: Link = self._peer[0]
        self._answer(out, link, False)
        self._calm.grant(link, out.frames)

    def _forget(self, link: Link) -> None:
        # The forgotten peer may send a frame at any time.
        self._calm.never = self._calm.never or link.granted

    def recv(self, flags: int = 0, copy: bool = True, track: bool = False) -> Any:
        calm = self._calm
        if calm.left > 0:
            calm.left -= 1
            return bare_recv(self, flags, copy, track)
        if self._inbox:
            return given(self._inbox.popleft(), copy)
        if calm.may_begin():
            self._peer[0] = self._peer[1] = None
            return bare_recv(self, flags, copy, track)
        while True:
            frame = bare_recv(self, flags, False, track)
            try:
                routing_id = frame.get("Identity")
            except (zmq.ZMQError, UnicodeDecodeError):
                routing_id = ""
            peer = self._peer
            link = peer[0]
            if routing_id != peer[1] or link is None:
                peer[1] = routing_id
                if routing_id[:4] != PREFIX_STR:
                    peer[0] = None
                    calm.plain_run += 1
                    calm.sampled = False
                    return frame.bytes if copy else frame
                peer[0] = link = self._link_to(routing_id)
                if frame.get("Socket-Type") != "REQ":
                    # Its frames may be in flight although the last reply was plain.
                    calm.never = True
            part = frame.bytes
            if part[:4] != link.tag_in:
                link.plain_run += 1
                link.mirrors = link.plain_run >= link.due or calm.sampled and link.due < FOREVER
                calm.sampled = False
                calm.plain_run += 1
                return part if copy else frame
            if calm.plain_run:
                calm.disturb()
            if link.asks and time.monotonic() >= link.held_until:
                link.release()
            rest = self._rest() if frame.more else []
            if not rest:
                message = link.decode_one(part)
                if message is not None:
                    if link.plain_run or not link.mirrors:
                        link.came_framed()
                    return message if copy else zmq.Frame(message)
            came = link.decode([part, *rest])
            if came.parts is not None:
                if came.kind == AGAIN_LAST:
                    link.release()
                link.came_framed()
                return self._give(came.parts, copy)
            calm.grant(link, True)
            # The request must be answered before the next one can be received.
            answer: list[Part] = [link.control(GONE, came.seq)]
            if came.kind == AS_IS:
                if not link.asks:
                    link.ask()
                answer = [link.control(LACKS, came.seq)]
            elif came.kind == LACKS:
                for seq, parts, _ in link.lacked(came.seq)[:1]:
                    answer = [link.encode_again(p, seq, i == 0, True) for i, p in enumerate(parts)]
            self._send_again(answer)


class Router(Exchange, Server):
    """ROUTER: sends each message to the peer whose routing id is its first part."""

    _addressed = True

    def _link_of(self, parts: list[Part]) -> tuple[Link | None, int]:
        if parts[0][:4] == PREFIX and len(parts) > 1:
            return self._link_to(parts[0]), 1
        return None, 0

    def _came_framed(self, link: Link) -> None:
        link.came_framed()

    def _came_plain(self, link: Link) -> None:
        link.came_plain()

    def _forget(self, link: Link) -> None:
        self._release(link)

    def _begin(self, out: Outgoing, part: Part, private: bool) -> None:
        # The first part is the routing id; the following parts are for this peer.
        link = self._links.get(part if type(part) is bytes else bytes(memoryview(part)))
        self._answer(out, link, private)
