"""Decides by trial whether frames pay between REQ and REP: some round trips use frames, some not.

The cost of a frame here is more the interpreter's time than the codec's. It differs between
machines as much as links differ, so it is measured, not estimated. A server answers in the form of
the request, so a round trip measures both directions.
"""

from statistics import fmean
from time import perf_counter_ns

# Round trips of each kind: enough to compare those of messages of mixed lengths. After this many
# plain ones the server answers by a frame again (`link.py`), so frames can resume at once.
EACH = 16
# Frames at the start that are not counted, since they have neither history nor warm tables.
COLD = 4
# Frames take more CPU time, so a gain within the noise does not count.
GAIN = 0.97
# Messages until the next trial; doubled up to MOST while the verdict stays the same. Then 3 per
# cent of messages are trials.
FIRST, MOST = 256, 1024


class Trial:
    """Measurements of a trial, and the resulting decision."""

    __slots__ = ("begin", "every", "framed", "framed_left", "frames", "plain_left", "rest", "times", "waits")

    def __init__(self) -> None:
        # Start time of the request being timed, or 0; and whether it was framed.
        self.begin = 0
        self.framed = False
        # Frames are wanted, but the server has to send one first.
        self.waits = False
        self.every = FIRST
        self.frames = True
        self.restart()

    def restart(self) -> None:
        # Remaining round trips of the trial, and messages until the next trial.
        self.framed_left, self.plain_left, self.rest = EACH + COLD, EACH, -1
        self.times: tuple[list[int], list[int]] = ([], [])

    def wants_frame(self) -> bool:
        """Whether the next request should be framed."""
        return self.framed_left > 0 or (self.plain_left == 0 and self.frames)

    def asked(self, framed: bool) -> None:
        """Records that a request is being sent."""
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
        """Records the reply. A reply of another form than the request does not count."""
        span = perf_counter_ns() - self.begin
        self.begin = 0
        if framed == self.framed and self.rest < 0 and self.framed_left < EACH:
            self.times[framed].append(span)

    def is_over(self) -> bool:
        return self.rest < 0 and self.framed_left == 0 and self.plain_left == 0

    def verdict(self) -> bool:
        """Whether frames are faster. Assumed without round trips of both kinds."""
        plain, framed = self.times
        frames = not plain or not framed or typical(framed) < GAIN * typical(plain)
        self.every = min(2 * self.every, MOST) if frames == self.frames else FIRST
        self.frames = frames
        self.rest = self.every
        return frames


def typical(times: list[int]) -> float:
    """The mean of the faster half: the slower half may be disturbed by other processes."""
    return fmean(sorted(times)[: (len(times) + 1) // 2])
