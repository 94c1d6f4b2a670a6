"""Whether frames pay between REQ and REP: some round trips are made with them and some without, by turns.

What a frame costs here is the interpreter's time more than the codec's, and differs from machine to machine by as much as links do, so
it is not estimated but tried. A server answers as it was asked, so a round trip shows both directions.
"""

from statistics import median
from time import perf_counter_ns

# Round trips of each kind: enough that the medians of messages of mixed lengths can be compared.
EACH = 16
# The first frames find neither history nor warm tables.
COLD = 4
# Messages until the next trial, twice as many whenever it says the same: 3 per cent of messages are trials then.
FIRST, MOST = 256, 1024


class Trial:
    """What was measured, and what follows."""

    __slots__ = ("begin", "every", "framed", "frames", "left", "times")

    def __init__(self) -> None:
        # When the request was sent that is timed, or 0; whether it was framed.
        self.begin = 0
        self.framed = False
        self.every = FIRST
        self.frames = True
        self.restart()

    def restart(self) -> None:
        # Requests of this trial that are to be sent; below 0: frames that are to be sent without one.
        self.left = 2 * EACH + COLD
        self.times: tuple[list[int], list[int]] = ([], [])

    def next_framed(self) -> bool:
        """Whether the next request is framed; it is timed."""
        self.left -= 1
        self.framed = self.left >= 2 * EACH or bool(self.left & 1)
        self.begin = perf_counter_ns()
        return self.framed

    def answered(self, framed: bool) -> None:
        """The reply is there. Where it is not as the request the round trip says nothing."""
        span = perf_counter_ns() - self.begin
        self.begin = 0
        if framed == self.framed and self.left < 2 * EACH:
            self.times[framed].append(span)

    def verdict(self) -> bool:
        """Whether frames are faster. Without round trips of both kinds they are thought to be."""
        plain, framed = self.times
        frames = not plain or not framed or median(framed) < median(plain)
        self.every = min(2 * self.every, MOST) if frames == self.frames else FIRST
        self.frames = frames
        return frames
