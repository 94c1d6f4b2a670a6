"""The flows between a socket and one peer, and copies of the messages that the peer may request
again.
"""

import hashlib
import secrets
import time
from collections import deque
from typing import Any

from .. import MESSAGE_MAX, MessageDecoder, MessageEnd, NarrowsError
from .settings import Settings

# Prefix of the routing ids of sockets that understand frames; the digit is the version of
# docs/format.md, section 13.
PREFIX = b"nrw1"
TAG_LEN = 4
# The head of a message: its tag, its number, and the last number received from the peer.
HEAD_LEN = TAG_LEN + 2
# Kinds: the first byte after the head, with values that no frame of a message flow begins with.
AS_IS, AGAIN, AGAIN_LAST, LACKS, GONE = 0x00, 0x02, 0x04, 0x06, 0x08
KINDS = frozenset((AS_IS, AGAIN, AGAIN_LAST, LACKS, GONE))
BYTES = [bytes((i,)) for i in range(256)]
# Messages of which copies are kept. Their numbers are 1 to 255: half of them may be in flight, and
# half of that is kept.
WINDOW = 64
# Maximum of the copies for one peer in bytes: a few times what a TCP connection holds on a slow
# link.
WINDOW_LEN = 64 << 10
# After STORED_MAX messages that did not get shorter, the next REST messages go plain.
STORED_MAX, REST = 16, 112
# After a loss, SPARE messages to the peer go plain; twice as many each time, up to SPARE_MAX.
SPARE, SPARE_MAX = 16, 1024
# More messages than any socket sends.
FOREVER = 1 << 62
# Seconds to wait for a requested message, which arrives within a round trip or not at all.
PATIENCE_S = 2.0
HELD_MAX, HELD_LEN = 1000, 1 << 20

Part = Any


def new_routing_id() -> bytes:
    return PREFIX + secrets.token_urlsafe(12).encode()


def head_of(part: Part) -> bytes:
    return part[:TAG_LEN] if type(part) is bytes else bytes(memoryview(part)[:TAG_LEN])


class Link:
    """Both flows with one peer, identified by the routing id that the client announced."""

    __slots__ = (
        "acked_parts", "asks", "decoder", "due", "encoder", "granted", "heard", "held", "held_len", "held_until", "lacks", "mirrors",
        "parts", "plain_run", "proven", "rests", "seq", "settings", "skip", "spare", "stored", "tag_in", "tag_out", "tried", "unacked",
        "unacked_len", "wire_len", "with_seed",
    )  # fmt: skip

    def __init__(self, routing_id: bytes, settings: Settings, *, client: bool) -> None:
        digest = hashlib.sha256(b"narrows zmq 1 " + routing_id).digest()
        there, back = digest[:TAG_LEN], digest[TAG_LEN : 2 * TAG_LEN]
        self.tag_out, self.tag_in = (there, back) if client else (back, there)
        self.settings = settings
        self.encoder: MessageEnd | None = None
        self.decoder: MessageDecoder | None = None
        # Whether the peer is known to understand frames. A client does not know at first; a server
        # has read the client's routing id.
        self.proven = not client
        # Number of messages that still go plain.
        self.skip = FOREVER if client or settings.policy == "off" else 0
        self.seq = 0
        self.heard = 0
        self.unacked: deque[tuple[int, list[Part], int]] = deque()
        self.unacked_len = 0
        self.stored = 0
        # Whether a trial decides if frames pay.
        self.tried = False
        self.spare = SPARE
        self.with_seed = settings.dictionary is not None
        # Bytes of the message being sent, for the policy.
        self.wire_len = 0
        # A message of the peer could not be decoded and was requested again; messages that arrive
        # meanwhile wait.
        self.asks = False
        self.held: list[list[Part]] = []
        self.held_len = 0
        self.held_until = 0.0
        # Plain messages received since the last frame, and the count at which the peer is answered
        # by a frame again.
        self.plain_run = 0
        self.due = FOREVER if settings.policy == "off" else 1
        self.mirrors = False
        # REQ and REP: the last reply was a frame, so the next request may be one.
        self.granted = False

    # Sending.

    def window_open(self) -> bool:
        return len(self.unacked) < WINDOW and self.unacked_len < WINDOW_LEN

    def encode(self, part: Part, first: bool, private: bool = False) -> bytes:
        """Encodes one part for the wire. The message gets the next number."""
        if first:
            self.wire_len = 0
            head = self.tag_out + BYTES[self.seq % 255 + 1] + BYTES[self.heard]
        else:
            head = self.tag_out
        if private or len(part) > MESSAGE_MAX:
            wire = b"".join((head, b"\0", part))
        else:
            encoder = self.encoder
            if encoder is None:
                encoder = self._new_encoder()
            unit = encoder.send(part)
            if len(unit) < len(part):
                self.stored = 0
            else:
                self.stored += 1
            wire = head + unit
        self.wire_len += len(wire)
        return wire

    def sent(self, parts: list[Part], raw_len: int) -> None:
        """Records a message that was given to the socket and had encoded parts."""
        self.seq = self.seq % 255 + 1
        self.unacked.append((self.seq, parts, raw_len))
        self.unacked_len += raw_len
        if self.stored >= STORED_MAX and not self.tried:
            self.stored = STORED_MAX // 2
            self.skip = REST

    def renew(self) -> None:
        """Makes the next frame independent of everything sent before."""
        if self.encoder is not None:
            self.encoder.reconnect()

    def _new_encoder(self) -> MessageEnd:
        s = self.settings
        self.encoder = MessageEnd(
            s.policy, borders=True, duplex=False, history=s.history, seed=s.dictionary if self.with_seed else None
        )
        return self.encoder

    def answered(self) -> None:
        """Tells the policy that the peer answered the last message. Messages are written within
        microseconds of being encoded.
        """
        if self.encoder is not None:
            self.encoder.answered(None, self.wire_len)

    def acknowledged(self, seq: int) -> None:
        unacked = self.unacked
        if unacked and unacked[-1][0] == seq:
            unacked.clear()
            self.unacked_len = 0
        elif any(s == seq for s, _, _ in unacked):
            while unacked:
                s, _, raw_len = unacked.popleft()
                self.unacked_len -= raw_len
                if s == seq:
                    break

    def lacked(self, seq: int) -> list[tuple[int, list[Part], bool]]:
        """The peer could not decode message ``seq`` nor any after it. Returns the messages to send
        again, each with its number and whether it is the last.
        """
        if all(s != seq for s, _, _ in self.unacked):
            return []
        while self.unacked[0][0] != seq:
            self.unacked.popleft()
        again = [(s, parts) for s, parts, _ in self.unacked]
        self.unacked.clear()
        self.unacked_len = 0
        # The peer may lack the dictionary, or have forgotten the link.
        self.with_seed = False
        self.encoder = None
        if self.skip < FOREVER:
            self.skip = max(self.skip, self.spare)
        self.spare = min(2 * self.spare, SPARE_MAX)
        return [(s, parts, i == len(again) - 1) for i, (s, parts) in enumerate(again)]

    def encode_again(self, part: Part, seq: int, first: bool, last: bool) -> bytes:
        if first:
            return b"".join((self.tag_out, bytes((seq, self.heard, AGAIN_LAST if last else AGAIN)), part))
        return b"".join((self.tag_out, b"\0", part))

    def control(self, kind: int, seq: int) -> bytes:
        return self.tag_out + bytes((seq, self.heard, kind))

    # Receiving.

    def framed(self, part: Part) -> bool:
        return head_of(part) == self.tag_in

    def decode_one(self, wire: bytes) -> bytes | None:
        """The message of one framed part if it is only a message, else ``None``; then nothing has
        changed.
        """
        if len(wire) <= HEAD_LEN or wire[HEAD_LEN] in KINDS or self.decoder is None or self.asks:
            return None
        try:
            (message,) = self.decoder.decode(wire[HEAD_LEN:])
        except (NarrowsError, ValueError):
            # Makes the next attempt fail too, instead of decoding the part twice.
            self.decoder = None
            return None
        acked = wire[TAG_LEN + 1]
        if acked and self.unacked:
            self.acknowledged(acked)
        self.heard = wire[TAG_LEN]
        return message

    def decode(self, parts: list[Part]) -> "Came":
        """Decodes a message that has a framed part."""
        first = next(i for i, part in enumerate(parts) if self.framed(part))
        head = bytes(parts[first])
        if len(head) <= HEAD_LEN:
            return Came(AS_IS, 0, None, first)
        seq, acked, kind = head[TAG_LEN], head[TAG_LEN + 1], head[HEAD_LEN]
        if acked:
            self.acknowledged(acked)
        if kind in (LACKS, GONE):
            return Came(kind, seq, None, first)
        if self.asks and kind not in (AGAIN, AGAIN_LAST):
            # It will be sent again, after the lost message.
            return Came(AS_IS, seq, None, first)
        out = parts[:first]
        try:
            for i in range(first, len(parts)):
                part = parts[i]
                if i > first and not self.framed(part):
                    out.append(part)
                    continue
                out.append(self._decode_part(bytes(part), HEAD_LEN if i == first else TAG_LEN, i == first))
        except NarrowsError:
            # Decoding resumes at the next message that is independent of earlier ones.
            self.decoder = None
            return Came(AS_IS, seq, None, first)
        self.heard = seq
        return Came(kind, seq, out, first)

    def _decode_part(self, wire: bytes, at: int, first: bool) -> bytes:
        kind = wire[at] if len(wire) > at else LACKS
        if kind == AS_IS or first and kind in (AGAIN, AGAIN_LAST):
            return wire[at + 1 :]
        decoder = self.decoder
        if decoder is None:
            seed = self.settings.dictionary
            decoder = self.decoder = MessageDecoder(borders=True, known=[seed] if seed else [])
        (message,) = decoder.decode(wire[at:]) or (None,)
        if message is None:
            raise NarrowsError("a part without a message")
        return message

    # Messages that wait for a requested one.

    def ask(self) -> None:
        self.asks = True
        self.held_until = time.monotonic() + PATIENCE_S

    def hold(self, parts: list[Part]) -> bool:
        """Keeps a plain message that arrived after a lost one. Returns false if no message was
        requested, or if too many are held.
        """
        if not self.asks or len(self.held) >= HELD_MAX or self.held_len >= HELD_LEN:
            return False
        self.held.append(parts)
        self.held_len += sum(len(p) for p in parts)
        return True

    def release(self) -> list[list[Part]]:
        held, self.held, self.held_len, self.asks = self.held, [], 0, False
        return held

    # Whether a server answers by a frame.

    def came_plain(self) -> None:
        """Records a plain message. Its client has no use for frames, or does not know that they are
        understood.
        """
        self.plain_run += 1
        self.mirrors = self.plain_run >= self.due

    def welcomes(self) -> None:
        """Records that the answer to a plain message is a frame."""
        self.mirrors = False
        self.due = min(2 * self.due, self.due + 128)

    def came_framed(self) -> None:
        self.plain_run, self.mirrors = 0, self.skip < FOREVER
        self.due = 16 if self.mirrors else FOREVER


class Came:
    """A received framed message: its kind and number, its parts if they could be decoded, and the
    index of the first frame.
    """

    __slots__ = ("first", "kind", "parts", "seq")

    def __init__(self, kind: int, seq: int, parts: list[Part] | None, first: int) -> None:
        self.kind, self.seq, self.parts, self.first = kind, seq, parts, first
