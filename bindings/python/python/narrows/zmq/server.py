"""REP and ROUTER: any number of peers, each of which said in its routing id whether it understands frames."""

import time
from collections import OrderedDict
from typing import Any

import zmq

from .exchange import Exchange
from .link import AGAIN_LAST, AS_IS, GONE, LACKS, PREFIX, Link, Part
from .socket import Outgoing, Socket, bare_recv, bare_send, given, too_long

PREFIX_STR = PREFIX.decode()


class Server(Socket):
    """What REP and ROUTER have in common."""

    # In the order in which they were heard last.
    _links: OrderedDict[Any, Link]
    # Who sent what came last, and its routing id.
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
        """It is not known any more. If its peer sends a frame it is told."""

    def _answer(self, out: Outgoing, link: Link | None, private: bool) -> None:
        out.link = link
        if link is None or private or not link.mirrors:
            return
        if link.plain_run:
            # The client may have another connection than before, or more than one, so this frame needs nothing.
            link.renew()
            link.welcomes()
            out.frames = True
        else:
            out.frames = link.skip == 0 and link.window_open()


class Replier(Server):
    """REP: a reply for each request, to the peer that sent it. Who asks again is answered within ``recv``."""

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
        if link is None or (not link.mirrors and not flags and not self._out.more):
            if link is None or type(data) is bytes and data[:4] != link.tag_out:
                return bare_send(self, data, flags, copy, track)
        return self._send_part(data, flags, copy, track, private)

    def _begin(self, out: Outgoing, part: Part, private: bool) -> None:
        self._answer(out, self._peer[0], private or too_long(part))

    def recv(self, flags: int = 0, copy: bool = True, track: bool = False) -> Any:
        if self._inbox:
            return given(self._inbox.popleft(), copy)
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
                    return frame.bytes if copy else frame
                peer[0] = link = self._link_to(routing_id)
            part = frame.bytes
            if part[:4] != link.tag_in:
                link.plain_run += 1
                link.mirrors = link.plain_run >= link.due
                return part if copy else frame
            if link.asks and time.monotonic() >= link.held_until:
                link.release()
            rest = self._rest()
            if not rest:
                message = link.decode_one(part)
                if message is not None:
                    link.came_framed()
                    return given(message, copy)
            came = link.decode([part, *rest])
            if came.parts is not None:
                if came.kind == AGAIN_LAST:
                    link.release()
                link.came_framed()
                return self._give(came.parts, copy)
            # It has to be answered before the next one can be received.
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
    """ROUTER: each message to the peer whose routing id is its first part."""

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
        # The first part is the routing id, and what comes is for this peer.
        link = self._links.get(part if type(part) is bytes else bytes(memoryview(part)))
        self._answer(out, link, private)
