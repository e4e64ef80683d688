"""The planner under a study of Ray Tune: Ray starts processes and says who reports; the planner says who computes.

A trial comes to the planner with its process, and again after each pause. Ray's own order of starts stays.
"""

from __future__ import annotations

from typing import Callable

from . import core
from .planned import Asked, Order, Planned

_REACTION = 3.0  # seconds: from a trial's end until Ray has the next one's process there it takes 1.5, where that is a fork


class StudyPlan(Planned):
    """The calls of `Turns`, and what the scheduler knows of a trial. Processors are devices of speed 1.

    No two trials share one: those that take turns get no more done than one after the other."""

    def __init__(self, processors: int, quantum: float = 0.5,
                 planner: Callable[..., core.Tuning] = core.Tuning) -> None:
        super().__init__(planner("best", c=1, reaction=_REACTION), quantum=quantum)
        self._wanted: dict[str, tuple[str, float | None]] = {}
        self._groups: dict[str, int] = {}
        self._processors = processors
        self.appetite = processors
        for processor in range(processors):
            self.device_came(processor, now=0.0)

    def expects(self, name: str, group: str, reports: float | None, now: float) -> list[Order]:
        """`reports`: until the scheduler looks at it again, from now. One that was paused goes on."""
        self._wanted[name] = group, reports
        trial = self._trials.get(name)
        if trial is None:
            return []
        if trial.paused:
            return self._come(name, now)
        trial.budget = None if reports is None else trial.done + reports
        return []

    def wants(self, name: str, now: float) -> list[Order]:
        came = [] if name in self._trials else self._come(name, now)
        return came + super().wants(name, now)

    def gone(self, name: str, now: float) -> list[Order]:
        # Ray starts it again or does not. If so it comes as another one.
        return super().gone(name, now) + self.ended(name, now)

    def over(self, name: str, now: float) -> list[Order]:
        """It has ended, and does not come again."""
        self._wanted.pop(name, None)
        return self.ended(name, now)

    def _come(self, name: str, now: float) -> list[Order]:
        group, reports = self._wanted.get(name, ("", None))
        number = self._groups.setdefault(group, len(self._groups))
        return self.came([Asked(name, budget=reports)], now, number)

    def _decided(self, told: list[core.Order], now: float) -> list[Order]:
        out = super()._decided(told, now)
        self.appetite = max(self._processors, self.tuning.appetite())
        return out
