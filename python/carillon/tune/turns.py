"""Which trials compute, and with how many threads: decided without a clock, a socket or Ray.

This stands in for the planner of the program (src/carillon/tune), which has groups, budgets and measured overheads.
It keeps to what is needed to drive processes: one trial a processor, the least served first, and processors that
nobody waits for make others wider, where that was not found to bring nothing.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Go:
    """The trial computes, from its next boundary on, with `width` threads."""

    trial: str
    width: int


@dataclass(frozen=True)
class Hold:
    """The trial stops at its next boundary, and says so."""

    trial: str


Order = Go | Hold


@dataclass
class _Trial:
    came: int
    wants: bool = False
    width: int = 0         # granted; 0: none
    recalled: bool = False
    since: float = 0.0     # of its turn
    served: float = 0.0    # processor seconds


_ENOUGH = 20    # iterations by which a width is judged
_BRINGS = 0.95  # of the time at half the threads: more than that, and threads bring too little


class Turns:
    """Times are seconds of any clock that does not go back. `quantum`: a turn's length where others wait."""

    def __init__(self, processors: int, quantum: float = 0.5) -> None:
        if processors < 1 or not quantum > 0:
            raise ValueError(f"turns need a processor and a quantum above 0, not {processors} and {quantum}")
        self._processors, self._quantum = processors, quantum
        self._trials: dict[str, _Trial] = {}
        self._came = 0
        self._did: dict[tuple[str, int], tuple[int, float]] = {}
        self._widest = processors

    def did(self, trial: str, width: int, iterations: int, seconds: float, now: float = 0.0) -> list[Order]:
        """What it computed at that width: by this a width is kept, or not tried again by anybody."""
        if iterations < 1 or not seconds > 0:
            return []
        had, took = self._did.get((trial, width), (0, 0.0))
        self._did[trial, width] = had + iterations, took + seconds
        narrow = self._did.get((trial, 1), (0, 0.0))
        wide = self._did[trial, width]
        if width > 1 and min(narrow[0], wide[0]) >= _ENOUGH and wide[1] / wide[0] > _BRINGS * narrow[1] / narrow[0]:
            self._widest = min(self._widest, width - 1)
        return []

    def _may_be(self, trial: str) -> int:
        """Its widest: a trial that has not run alone for a while does so first."""
        return self._widest if self._did.get((trial, 1), (0, 0.0))[0] >= _ENOUGH else 1

    def wants(self, trial: str, now: float) -> list[Order]:
        """It has something to compute: its first call, or after `rests`."""
        if trial not in self._trials:
            self._came += 1
            # A newcomer has its turn first, but is owed nothing for the time before it came.
            served = min((t.served for t in self._trials.values()), default=0.0)
            self._trials[trial] = _Trial(self._came, served=served)
        self._trials[trial].wants = True
        return self._decide(now)

    def rests(self, trial: str, now: float) -> list[Order]:
        """It computes nothing until it wants to again: it has reported."""
        return self._out(trial, now, wants=False)

    def held(self, trial: str, now: float) -> list[Order]:
        """It has stopped, as it was told to."""
        return self._out(trial, now, wants=True)

    def gone(self, trial: str, now: float) -> list[Order]:
        self._trials.pop(trial, None)
        self._did = {key: value for key, value in self._did.items() if key[0] != trial}
        return self._decide(now)

    def tick(self, now: float) -> list[Order]:
        """To be called at `next_tick`."""
        return self._decide(now)

    def next_tick(self) -> float | None:
        """When a turn ends that others wait for."""
        if not any(t.wants and not t.width for t in self._trials.values()):
            return None
        return min((t.since + self._quantum for t in self._trials.values() if t.width and not t.recalled),
                   default=None)

    def running(self) -> dict[str, int]:
        return {name: t.width for name, t in self._trials.items() if t.width}

    def _out(self, name: str, now: float, wants: bool) -> list[Order]:
        trial = self._trials.get(name)
        if trial is None:
            return []
        trial.served += (now - trial.since) * trial.width
        trial.width, trial.recalled, trial.wants = 0, False, wants
        return self._decide(now)

    def _decide(self, now: float) -> list[Order]:
        orders: list[Order] = []
        waiting = sorted(((t.served, t.came, name) for name, t in self._trials.items() if t.wants and not t.width))
        running = {name: t for name, t in self._trials.items() if t.width}
        fresh = set()
        for _, _, name in waiting[:max(0, self._processors - len(running))]:
            running[name] = self._trials[name]
            running[name].since = now
            fresh.add(name)
        left = len(waiting) - len(fresh)
        # Who comes out makes room for one: no more are recalled than wait.
        due = sorted((t.since, name) for name, t in running.items() if name not in fresh)
        recalled = sum(t.recalled for t in running.values())
        for since, name in due:
            if recalled >= left or now < since + self._quantum:
                break
            if not running[name].recalled:
                running[name].recalled = True
                orders.append(Hold(name))
                recalled += 1
        stay = sorted((t.came, name) for name, t in running.items() if not t.recalled)
        widths = {name: 1 for _, name in stay}
        spare = 0 if left else self._processors - len(running)
        while spare and (wider := [name for _, name in stay if widths[name] < self._may_be(name)]):
            widths[min(wider, key=lambda name: widths[name])] += 1
            spare -= 1
        for name, width in widths.items():
            trial = running[name]
            if trial.width != width:
                if trial.width:
                    trial.served += (now - trial.since) * trial.width
                    trial.since = now
                trial.width = width
                orders.append(Go(name, width))
        return orders
