"""The planner under a study of Ray Tune: Ray starts processes and says who reports; the planner says who computes.

A trial comes to the planner with its process, and again after each pause. Ray's own order of starts stays.
"""

from __future__ import annotations

from . import core
from .planned import Asked, Order, Planned

_NARROW = 3  # times that a trial tells of iterations on one processor before it may be wider
_PACKED = 2  # trials that share a processor at most: one computes while Ray has the report of the other


class StudyPlan(Planned):
    """The calls of `Turns`, and what the scheduler knows of a trial. Processors are devices of speed 1.

    To the planner a processor more brings much until it has measured that, and it can measure that only of trials which
    were on one processor before. So it is offered one processor a trial, until a trial has been on one for a while."""

    def __init__(self, processors: int, quantum: float = 0.5) -> None:
        super().__init__(core.Tuning("best", c=_PACKED), quantum=quantum)
        self._wanted: dict[str, tuple[str, float | None]] = {}
        self._groups: dict[str, int] = {}
        self._processors, self._offered = processors, 0
        self._narrow: dict[str, int] = {}
        self.appetite = processors

    def expects(self, name: str, group: str, reports: float | None, now: float) -> list[Order]:
        """`reports`: until the scheduler looks at it again, from now. One that was paused goes on."""
        self._wanted[name] = group, reports
        trial = self._trials.get(name)
        if trial is None:
            return []
        if trial.paused:
            return self._come(name, now)
        trial.budget = None if reports is None else trial.done + reports
        if trial.width > self.tuning.model().d and not trial.threads and not trial.under:
            # The planner takes processors from no trial that runs because these were found to bring nothing, while
            # others wait for them. At its boundary it costs nothing to come again.
            return self.paused(name, now) + self._come(name, now)
        return []

    def wants(self, name: str, now: float) -> list[Order]:
        came = [] if name in self._trials else self._come(name, now)
        return came + super().wants(name, now)

    def did(self, name: str, width: int, iterations: int, seconds: float, now: float) -> list[Order]:
        out = super().did(name, width, iterations, seconds, now)
        if self._offered < self._processors and name in self._trials:
            self._narrow[name] = self._narrow.get(name, 0) + 1
            if self._narrow[name] >= _NARROW:
                out += self._offer(self._processors, now)
        return out

    def _offer(self, processors: int, now: float) -> list[Order]:
        out: list[Order] = []
        while self._offered < min(processors, self._processors):
            out += self.device_came(self._offered, now)
            self._offered += 1
        return out

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
        first = self._offer(1, now)
        came = self.came([Asked(name, budget=reports)], now, number)
        # After it came, or who is there would have the processor.
        return first + came + self._offer(sum(not trial.paused for trial in self._trials.values()), now)

    def _decided(self, told: list[core.Order], now: float) -> list[Order]:
        out = super()._decided(told, now)
        self.appetite = max(self._processors, self.tuning.appetite())
        return out
