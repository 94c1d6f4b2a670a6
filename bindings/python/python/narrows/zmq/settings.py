"""Options of a socket."""

from dataclasses import dataclass
from typing import Literal

from .. import Dictionary


@dataclass(frozen=True, slots=True)
class Settings:
    """Keywords of ``Context.socket`` in addition to pyzmq's own.

    - ``policy``: chooses the compression methods, as for ``narrows.MessageEnd``; ``off`` makes a
      plain socket that still reads frames.
    - ``history``: bytes of earlier messages used to encode a message, 1,024 to 65,536; 0 encodes
      each message alone.
    - ``peers``: ``any``, or ``narrows`` if everything that a PUSH or PUB socket sends goes to
      sockets of this module, or everything that a SUB receives comes from them.
    - ``dictionary``: made of messages like those to come. REQ, REP, DEALER and ROUTER begin their
      history with it, if both ends have it; PUB announces it instead of a dictionary trained from
      what it sends.
    - ``peers_max``: number of peers that a REP or ROUTER socket remembers; the one silent for
      longest is forgotten first.
    """

    policy: str = "messages"
    history: int = 16 << 10
    peers: Literal["any", "narrows"] = "any"
    dictionary: Dictionary | None = None
    peers_max: int = 1024

    def __post_init__(self) -> None:
        if self.peers not in ("any", "narrows"):
            raise ValueError("peers must be 'any' or 'narrows'")
        if self.peers_max < 1:
            raise ValueError("peers_max must be 1 or more")
