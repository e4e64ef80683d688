"""Which trials compute, and with how many threads: decided without a clock, a socket or Ray.

This stands in for the planner of the program (src/carillon/tune), which has groups, budgets and measured overheads.
It keeps to what is needed to drive processes: one trial a processor, the least served first, and processors that
nobody waits for make others wider.
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


class Turns:
    """Times are seconds of any clock that does not go back. `quantum`: a turn's length where others wait."""

    def __init__(self, processors: int, quantum: float = 0.5) -> None:
        if processors < 1 or not quantum > 0:
            raise ValueError(f"turns need a processor and a quantum above 0, not {processors} and {quantum}")
        self._processors, self._quantum = processors, quantum
        self._trials: dict[str, _Trial] = {}
        self._came = 0

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
        for place, (_, name) in enumerate(stay):
            spare = 0 if left else self._processors - len(running)
            width = 1 + spare // len(stay) + (place < spare % len(stay))
            trial = running[name]
            if trial.width != width:
                if trial.width:
                    trial.served += (now - trial.since) * trial.width
                    trial.since = now
                trial.width = width
                orders.append(Go(name, width))
        return orders
