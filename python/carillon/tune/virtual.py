"""A study of Ray Tune in virtual time: Ray's own scheduler and controller, and `Fluid` with its planner as they run
live, over processes that exist in virtual time only (docs/fluid-virtual.md). Needs Ray, but starts none.

    from ray.tune.schedulers import ASHAScheduler
    from carillon.tune import virtual

    study = virtual.Study(trials=27, epochs=9, epoch_s=2.0, devices=4)
    virtual.run(study, ASHAScheduler(max_t=9, mode="max"), policy="best")["makespan_s"]
"""

from __future__ import annotations

import contextlib
import math
import random
from collections import Counter
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Iterator

import numpy  # comes with Ray Tune
from ray.tune.schedulers import FIFOScheduler, PopulationBasedTraining, TrialScheduler

from . import _curves, core
from ._actors import Shape, Timing, VirtualController, VirtualTrial
from ._broker import Counts
from ._controller import Controller
from ._study import StudyPlan
from ._world import Costs, World, WorldError
from .fluid import Fluid

POLICIES = (*core.policies(), "ray", "ray-reuse")
_MANY = 1 << 30  # processes: memory is no bound


class VirtualError(ValueError):
    """Names the option, what was given, and what would be right."""


@dataclass(frozen=True)
class Study(Timing):
    """What is simulated, and how long things take besides (`Timing`). Seconds are those of a trial alone on a device. `curves`: a file as `record` writes it; else
    all epochs take `epoch_s`, and who is better is drawn by the seed.

    `together`: those that share a device compute at the same time, each other one slows them `alpha` times; else they
    take turns, as Fluid has them on processors. `told`: the planner knows alpha and beta, and does not measure them.
    `beside`: one that computes on another device slows a trial so many times (caches, memory). `reuse`: `reuse_actors`
    under Fluid. `at_once`, `live`: Fluid's. `concurrency`: trials at most that are not over (under BOHB: nor paused).
    `iterations`, `function`, `saves`, `tells_end`, `keeps_curve`, `noise`: see `Shape`."""

    trials: int | None = None       # None: all of the curves
    epochs: int | None = None       # None: of the longest curve
    epoch_s: float | None = None
    curves: str | Path | None = None
    devices: int = 1
    name: str = "study"
    mode: str = "max"
    target: float | None = None
    alpha: float = 1.0
    beta: float = 1.0
    move: float = 0.0
    beside: float = 1.0
    together: bool = False
    reuse: bool = False
    told: bool = False
    quantum: float = 0.5
    at_once: int | None = None
    live: int | None = None
    concurrency: int | None = None
    iterations: int = 20
    function: bool = False
    saves: bool = False
    tells_end: bool = True
    keeps_curve: bool = False
    noise: float = 0.0

    def __post_init__(self) -> None:
        for name in ("trials", "epochs", "devices", "iterations", "at_once", "live", "concurrency"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, int) and value >= 1):
                raise VirtualError(f"{name} is a whole number of at least 1, not {value}")
        for name in ("move", *(field.name for field in fields(Timing))):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise VirtualError(f"{name} is at least 0 seconds, not {value}")
        for name in ("alpha", "beta", "beside"):
            value = getattr(self, name)
            if not 1 <= value <= 100:
                raise VirtualError(f"{name} is from 1 to 100, not {value}")
        if self.devices > core.MOST_DEVICES:
            raise VirtualError(f"devices is at most {core.MOST_DEVICES}, not {self.devices}")
        if not 0 <= self.noise <= 1:
            raise VirtualError(f"noise is from 0 to 1, not {self.noise}")
        if not 0 < self.quantum < math.inf:
            raise VirtualError(f"quantum is above 0 seconds, not {self.quantum}")
        if self.alpha > 1 and not self.together:
            raise VirtualError("alpha is of trials that compute on a device at the same time: it needs together; those "
                               "that take turns do not slow each other")
        if self.mode not in ("max", "min"):
            raise VirtualError(f"mode is max or min, not {self.mode!r}")
        if self.target is not None and math.isnan(self.target):
            raise VirtualError("target is a number, not nan")
        if (self.curves is None) == (self.epoch_s is None):
            raise VirtualError("either curves (--curves) or epoch_s (--epoch) says how long an epoch takes")
        if self.epoch_s is not None:
            if not 0 < self.epoch_s < math.inf:
                raise VirtualError(f"epoch_s is above 0 seconds, not {self.epoch_s}")
            if self.trials is None or self.epochs is None:
                raise VirtualError("with epoch_s (--epoch), trials and epochs say how many there are")

    def most_epochs(self) -> int:
        return self.epochs or max(len(curve.seconds) for curve in self.trial_curves(1).curves)

    def trial_curves(self, seed: int) -> _curves.Curves:
        if self.curves is None:
            assert self.trials is not None and self.epochs is not None and self.epoch_s is not None
            return _curves.constant(self.trials, self.epochs, self.epoch_s, seed)
        found = _curves.read(Path(self.curves))
        if self.trials is not None and self.trials > len(found):
            raise VirtualError(f"{self.trials} trials, but {self.curves} has the curves of {len(found)}")
        return _curves.Curves(found[:self.trials], -math.inf if self.mode == "max" else math.inf)


class _Counting:
    """The planner; its orders are counted."""

    def __init__(self, tuning: core.Tuning, counts: Counter[str]) -> None:
        self._tuning, self._counts = tuning, counts

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._tuning, name)
        if not callable(found):
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            told = found(*args, **kwargs)
            if isinstance(told, list):
                self._counts.update(type(order).__name__.lower() for order in told)
            return told

        return call


class _Heard:
    """What the driver has heard of trials: epochs done, those done again counted, and the best metric."""

    def __init__(self, study: Study) -> None:
        self._target, self._larger = study.target, study.mode == "max"
        self.epochs: Counter[int] = Counter()
        self.last: dict[int, float | None] = {}
        self.best: float | None = None
        self.reached = False

    def __call__(self, trial: VirtualTrial, metric: float) -> None:
        self.epochs[trial.number] += 1
        self.last[trial.number] = metric if math.isfinite(metric) else None
        if not math.isfinite(metric):
            return
        if self.best is None or (metric > self.best if self._larger else metric < self.best):
            self.best = metric
        if self._target is not None and (metric >= self._target if self._larger else metric <= self._target):
            self.reached = True


class _Broker:
    """In place of the thread and the socket beside Ray's driver."""

    def __init__(self) -> None:
        self.counts = Counts()

    def lost(self) -> set[str]:
        return set()

    def has_actors(self, trial: str) -> bool:
        return False

    def resumes(self, trial: str) -> None:
        pass

    def close(self) -> None:
        pass


class VirtualFluid(Fluid):
    """`Fluid`, told of the world's time. It keeps no file and forks no processes."""

    def __init__(self, scheduler: TrialScheduler, world: World, plan: StudyPlan, *, at_once: int | None,
                 live: int | None) -> None:
        super().__init__(scheduler, processors=world.devices, at_once=at_once, live=live, preload=None)
        self._world, self._virtual_plan = world, plan

    def _attach(self, tune_controller: Any) -> None:
        if self._controller is not None:
            return
        raw = getattr(tune_controller, "_tune_controller", tune_controller)
        if self._live is None and not raw._reuse_actors:
            self._live = _MANY
        classes = raw._class_cache
        self._controller = Controller(raw, "", {}, self._may_start, self._died)
        raw._class_cache = classes
        self._broker, self._plan = _Broker(), self._virtual_plan  # type: ignore[assignment]

    def _tell(self, event: str, trial: Any, *told: Any) -> None:
        if self._plan is not None:
            self._world.send(getattr(self._plan, event)(trial.trial_id, *told, self._world.now))

    def _write(self) -> None:
        pass


def _plan(study: Study, policy: str, counts: Counter[str]) -> StudyPlan:
    """The plan as `Fluid` makes it, with another policy."""
    told = {"alpha": study.alpha, "beta": study.beta} if study.told else {}

    def planner(live_policy: str, **options: Any) -> Any:
        if study.together:
            options["c"] = None  # that which follows from alpha
        return _Counting(core.Tuning(policy, **options, **told), counts)

    plan = StudyPlan(study.devices, study.quantum, planner)
    plan.takes_turns = not study.together
    return plan


def _prepare(study: Study, scheduler: TrialScheduler) -> str:
    """Tells the scheduler which number counts, where it does not know. Returns that number's name."""
    metric = scheduler.metric
    mode = None if getattr(scheduler, "_mode", None) else study.mode
    if getattr(scheduler, "_mode", None) not in (None, study.mode):
        raise VirtualError(f"the scheduler has mode {scheduler._mode!r}, the study {study.mode!r}")
    scheduler.set_search_properties(None if metric else "metric", mode)
    if isinstance(scheduler, PopulationBasedTraining):
        scheduler._log_config = False  # into files
    return scheduler.metric or "metric"


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """What schedulers draw from, as it was before."""
    before, numpy_before = random.getstate(), numpy.random.get_state()
    random.seed(seed)
    numpy.random.seed(seed % (1 << 32))
    try:
        yield
    finally:
        random.setstate(before)
        numpy.random.set_state(numpy_before)


def run(study: Study, scheduler: TrialScheduler | None = None, policy: str = "best", seed: int = 1,
        each: bool = False, curves: _curves.Curves | None = None) -> dict[str, Any]:
    """One run: the figures that `carillon simulate STUDY.toml --json` has of one, and some more. `scheduler`: a new
    one. `policy`: one of the planner's, under Fluid; `ray`: without Fluid, a processor a trial; `ray-reuse`: that,
    with `reuse_actors`. `each`: of each trial, too. `curves`: in place of the study's own. The same arguments give the
    same figures."""
    scheduler = scheduler or FIFOScheduler()
    if policy not in POLICIES:
        raise VirtualError(f"policy {policy!r}: it is one of {', '.join(POLICIES)}")
    if not isinstance(scheduler, TrialScheduler) or isinstance(scheduler, Fluid):
        raise VirtualError(f"a scheduler of Ray Tune is wanted, not {type(scheduler).__name__}")
    curves = curves or study.trial_curves(seed)
    epochs = study.most_epochs()
    metric = _prepare(study, scheduler)
    plain = policy in ("ray", "ray-reuse")
    counts: Counter[str] = Counter()
    plan = None if plain else _plan(study, policy, counts)
    world = World(study.devices, Costs(study.alpha if study.together else None, study.beside, study.beta, study.move), plan)
    heard = _Heard(study)
    with _seeded(seed):
        fluid = scheduler if plan is None else VirtualFluid(scheduler, world, plan, at_once=study.at_once,
                                                            live=study.live)
        controller = VirtualController(
            fluid, world, curves, count=len(curves.curves), metric=metric, concurrency=study.concurrency,
            reuse=policy == "ray-reuse" or (study.reuse and not plain), heard=heard,
            shape=Shape(epochs, study.iterations, study.function, study.saves, study.tells_end, study.noise, seed,
                        study.keeps_curve),
            timing=study)
        while not controller.is_finished() and not heard.reached:
            controller.step()
            if controller.actors.idle > 2:
                waiting = sum(not trial.is_finished() for trial in controller.get_trials())
                raise WorldError(f"at {world.now:.6g} s {waiting} trials are left that nobody runs, and nothing is to "
                                 "come")
    world.finish()
    figures = {
        "study": study.name, "algorithm": type(scheduler).__name__, "scheduler": policy, "seed": seed,
        "devices": study.devices, "makespan_s": world.now, "time_to_target_s": world.now if heard.reached else None,
        "device_seconds": world.device_seconds,
        "utilization": world.device_seconds / (study.devices * world.now) if world.now > 0 else 0.0,
        "work_s": world.work, "places": counts["place"], "resizes": counts["resize"], "moves": counts["move"],
        "holds": counts["hold"], "releases": counts["release"], "refused": counts["refuse"],
        "most_running": world.most_running, "best_metric": heard.best, "trials": len(controller.get_trials()),
        "epochs": sum(heard.epochs.values()), "beyond_curves": len(curves.beyond), "starts": controller.actors.starts,
        "held": len(fluid.held_seconds) if isinstance(fluid, Fluid) else 0}
    if each:
        ended = controller.ended
        figures["each"] = [
            {"trial": trial.number, "name": curves.curves[trial.number].name, "epochs": heard.epochs[trial.number],
             "metric": heard.last.get(trial.number), "ended_s": ended.get(trial.trial_id)}
            for trial in controller.get_trials()]
    return figures
