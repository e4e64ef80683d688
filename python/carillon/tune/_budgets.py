"""What a scheduler of Ray Tune has in mind for a trial: which others it is compared with, and when it looks again.

Read off the schedulers' own state. Nothing is known of a scheduler that is not listed here but what the study's own
stop conditions say. Where Ray's names are others than here, nothing is known either.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ray.tune.experiment import Trial
from ray.tune.schedulers import (AsyncHyperBandScheduler, HyperBandScheduler, PopulationBasedTraining, TrialScheduler)

_REPORTS = "training_iteration"


@dataclass(frozen=True)
class Wanted:
    """`group`: a name that all have whose results are wanted together. `reports`: more of them until the scheduler
    looks at the trial, or until its end; None: not known."""

    group: str
    reports: float | None


def of(scheduler: TrialScheduler, trial: Trial) -> Wanted:
    done = (trial.last_result or {}).get(_REPORTS) or 0
    group, until = "", None
    try:
        group, until = _rung(scheduler, trial, done)
    except (LookupError, AttributeError, TypeError, ValueError, OverflowError):
        pass
    ends = [end for end in (until, (trial.stopping_criterion or {}).get(_REPORTS)) if end is not None]
    try:
        left = float(min(ends) - done) if ends else 0.0
    except (TypeError, ValueError, OverflowError):  # a trial may report anything under that name
        left = 0.0
    return Wanted(group, left if 0 < left < math.inf else None)


def _rung(scheduler: Any, trial: Trial, done: int) -> tuple[str, int | None]:
    """The group, and the report at which it is compared: only where the scheduler counts reports."""
    if isinstance(scheduler, HyperBandScheduler):  # and its kind for BOHB
        bracket, _ = scheduler._trial_info[trial]
        place = [bracket in band for band in scheduler._hyperbands].index(True)
        number = scheduler._hyperbands[place].index(bracket)
        name = f"band {place}, bracket {number}, rung {bracket._halves}"
        return name, bracket._cumul_r if scheduler._time_attr == _REPORTS else None
    if isinstance(scheduler, AsyncHyperBandScheduler):
        # Nobody waits for anybody: each is a group of its own.
        if scheduler._time_attr != _REPORTS:
            return trial.trial_id, None
        rungs = [milestone for milestone, _ in scheduler._trial_info[trial.trial_id]._rungs]
        return trial.trial_id, min((rung for rung in [*rungs, scheduler._max_t] if rung > done), default=None)
    if isinstance(scheduler, PopulationBasedTraining):
        if scheduler._time_attr != _REPORTS:
            return "", None
        if scheduler._synch:
            return "", int(scheduler._next_perturbation_sync)
        last = scheduler._trial_state[trial].last_perturbation_time
        return "", int(max(last + scheduler._perturbation_interval, scheduler._burn_in_period))
    return "", None
