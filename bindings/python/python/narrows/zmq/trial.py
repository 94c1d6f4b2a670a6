"""Whether frames pay between REQ and REP: some round trips are made with them and some without.

What a frame costs here is the interpreter's time more than the codec's, and differs from machine to machine by as much as links do, so
it is not estimated but tried. A server answers as it was asked, so a round trip shows both directions.
"""

from statistics import fmean
from time import perf_counter_ns

# Round trips of each kind: enough that those of messages of mixed lengths can be compared. After so many plain ones the server
# answers by a frame again (`link.py`), so frames can go on at once.
EACH = 16
# The first frames find neither history nor warm tables.
COLD = 4
# Frames take more of the processor, so a gain within what disturbs is none.
GAIN = 0.97
# Messages until the next trial, twice as many whenever it says the same: 3 per cent of messages are trials then.
FIRST, MOST = 256, 1024


class Trial:
    """What was measured, and what follows."""

    __slots__ = ("begin", "every", "framed", "framed_left", "frames", "plain_left", "rest", "times", "waits")

    def __init__(self) -> None:
        # When the request was sent that is timed, or 0; whether it was framed.
        self.begin = 0
        self.framed = False
        # Frames are wanted, and the server has to send one first.
        self.waits = False
        self.every = FIRST
        self.frames = True
        self.restart()

    def restart(self) -> None:
        # Round trips of the trial that are left, and messages until the next one.
        self.framed_left, self.plain_left, self.rest = EACH + COLD, EACH, -1
        self.times: tuple[list[int], list[int]] = ([], [])

    def wants_frame(self) -> bool:
        """Whether the next request should be framed."""
        return self.framed_left > 0 or (self.plain_left == 0 and self.frames)

    def asked(self, framed: bool) -> None:
        """A request is sent now."""
        self.waits = False
        self.framed = framed
        self.begin = perf_counter_ns()
        if self.rest > 0:
            self.rest -= 1
            if self.rest == 0:
                self.restart()
        elif framed and self.framed_left > 0:
            self.framed_left -= 1
        elif not framed and self.plain_left > 0:
            self.plain_left -= 1

    def answered(self, framed: bool) -> None:
        """The reply is there. Where it is not as the request the round trip says nothing."""
        span = perf_counter_ns() - self.begin
        self.begin = 0
        if framed == self.framed and self.rest < 0 and self.framed_left < EACH:
            self.times[framed].append(span)

    def is_over(self) -> bool:
        return self.rest < 0 and self.framed_left == 0 and self.plain_left == 0

    def verdict(self) -> bool:
        """Whether frames are faster. Without round trips of both kinds they are thought to be."""
        plain, framed = self.times
        frames = not plain or not framed or typical(framed) < GAIN * typical(plain)
        self.every = min(2 * self.every, MOST) if frames == self.frames else FIRST
        self.frames = frames
        self.rest = self.every
        return frames


def typical(times: list[int]) -> float:
    """The mean of the faster half: the slower one is what other processes disturbed."""
    return fmean(sorted(times)[: (len(times) + 1) // 2])
