"""What an application may say about a socket."""

from dataclasses import dataclass
from typing import Literal

from .. import Dictionary


@dataclass(frozen=True, slots=True)
class Settings:
    """Keywords of ``Context.socket`` besides pyzmq's own.

    ``policy``: by which rule methods are chosen, as for ``narrows.MessageEnd``; ``off`` makes a plain socket that reads what others compress.
    ``history``: bytes of earlier messages that a message may be encoded with, 1,024 to 65,536, or 0: each message alone.
    ``peers``: ``any``, or ``narrows`` where all that a PUSH or PUB socket sends goes to sockets of this module, or all that a SUB
    receives comes from them.
    ``dictionary``: of messages like those to come. REQ, REP, DEALER and ROUTER begin their history with it, if both ends have it; PUB
    announces it instead of one that it makes of what it sends.
    ``peers_max``: how many peers a REP or ROUTER socket remembers; the one that was silent for longest is forgotten.
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
