"""When a trial hangs: the one rule for studies of Ray and for TrialGroup. Pure: times are arguments."""

from __future__ import annotations

import math

from ._trial import TELL_EVERY

LEAST = 3 * TELL_EVERY  # of a trial that is well more is not heard: it tells of boundaries once in a while
GRACE = 0.1             # seconds that a thread may wait for a processor on a busy machine


def checked(hang_after: float | None) -> float | None:
    if hang_after is not None and not LEAST <= hang_after < math.inf:
        raise ValueError(f"hang_after is {hang_after}; it must be at least {LEAST:g} seconds, or None")
    return hang_after


class Hangs:
    """Trials that may compute, and since when each has reached no boundary. `after`: seconds, as `checked`."""

    def __init__(self, after: float | None) -> None:
        self._after = checked(after)
        self._since: dict[str, float] = {}
        self._asking: set[str] = set()

    def computes(self, trial: str, now: float) -> None:
        """It may go on; until now it had to wait."""
        self._since[trial] = now

    def heard(self, trial: str, now: float) -> None:
        if trial in self._since:
            self._since[trial] = now

    def stands(self, trial: str) -> None:
        self._since.pop(trial, None)

    def asks(self, trial: str) -> None:
        """It waits for its driver's answer: that is not its own time."""
        self._asking.add(trial)

    def answered(self, trial: str, now: float) -> None:
        self._asking.discard(trial)
        self.heard(trial, now)

    def gone(self, trial: str) -> None:
        self._since.pop(trial, None)
        self._asking.discard(trial)

    def silent(self, trial: str, now: float) -> float | None:
        """Seconds since it was last heard; None: it does not compute."""
        return now - self._since[trial] if trial in self._since else None

    def next_look(self) -> float | None:
        if self._after is None:
            return None
        return min((since + self._after for trial, since in self._since.items() if trial not in self._asking), default=None)

    def hanging(self, now: float) -> list[tuple[str, float]]:
        """Those that hang, and their seconds of silence. Each counts anew from now on."""
        if self._after is None:
            return []
        found = [(trial, now - since) for trial, since in self._since.items()
                 if trial not in self._asking and now >= since + self._after]
        for trial, _ in found:
            self._since[trial] = now
        return found


class Awake:
    """A clock that stands still while this process does (SIGSTOP, Ctrl-Z): what nobody could hear then is no silence.

    `turned` is told of each turn of a loop that waits: no more than it was to wait, and some grace, is counted."""

    def __init__(self, now: float) -> None:
        self._turn, self._lost = now, 0.0

    def turned(self, now: float, most: float | None) -> None:
        """`most`: seconds that the loop was to wait; None: until something happens, and nothing depends on the clock."""
        if most is not None:
            self._lost += max(0.0, now - self._turn - most - GRACE)
        self._turn = now

    def at(self, now: float) -> float:
        return now - self._lost
