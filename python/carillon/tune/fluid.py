"""`Fluid`: a scheduler of Ray Tune around any other one. What the other decides stays; what it costs changes."""

from __future__ import annotations

import time
import warnings
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ray
from ray.tune.execution.placement_groups import PlacementGroupFactory
from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler, PopulationBasedTraining, TrialScheduler
from ray.util.placement_group import placement_group_table

from ..ray._plan import processors_of_workers
from . import _budgets, _groups, _hangs, _starts, _state
from ._broker import Broker
from ._controller import Controller, UnknownRay
from .turns import Turns

try:
    from . import _processors
    from ._study import StudyPlan
    from .core import MOST_DEVICES
except ImportError:  # the planner is not compiled
    _processors = StudyPlan = None  # type: ignore[assignment, misc]

if TYPE_CHECKING:
    from ray.tune.execution.tune_controller import TuneController

_TRIAL_CPU = 0.001             # of Ray's, in place of what a trial asks for
_PROCESS_BYTES = 400 << 20     # of a torch process that is paused, about
_SAVE_EVERY = 1.0              # seconds
_PATIENCE = 10.0               # seconds until others need not wait for a trial that hangs


@dataclass
class _Held:
    config: dict[str, Any]     # as it was: who changes it (PBT) means another trial
    iteration: Any             # as reported
    since: float


def _free_memory() -> int:
    """What processes can still have, files in the page cache given up."""
    with open("/proc/meminfo") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("MemAvailable:"))


class Fluid(TrialScheduler):
    """Runs the trials of `scheduler` (default: first come, first served), which decides as ever.

    A trial that `scheduler` pauses stays in its process, memory and all, and goes on there when it is wanted again.
    It is checkpointed and its process ends, as Ray does it, only where there are more than `live` processes (default:
    as many as fit into half of the memory that is free at the start; with `reuse_actors`, `at_once`). `at_once` trials
    are under way at a time, paused ones not counted (default: one for each of `processors`, which are those that Ray
    has). They share the processors by turns between iterations, and one that is alone has all of them.

    Trials' processes are forked from one that has imported Ray and torch, and the modules of `preload`; with None Ray
    starts each as ever. A trial that computes for `hang_after` seconds without an end of an iteration is killed, and
    Ray's `max_failures` decides what becomes of it (default: it may take as long as it likes).

    The scheduler's state is kept in the experiment's folder, and found again by `Tuner.restore`.

    Trials that ask for more than processors (GPUs, several bundles) keep what they ask for, and Ray pauses them. Those that
    start actors, as Ray Train does, take no turns, and Ray pauses them. With a
    version of Ray that has another controller, all is passed through, after a warning.
    """

    def __init__(self, scheduler: TrialScheduler | None = None, *, processors: int | None = None,
                 at_once: int | None = None, live: int | None = None, preload: Sequence[str] | None = (),
                 hang_after: float | None = None) -> None:
        super().__init__()
        if isinstance(scheduler, Fluid):
            raise ValueError("Fluid is around a scheduler of Ray Tune, not around another Fluid")
        if scheduler is not None and not isinstance(scheduler, TrialScheduler):
            raise TypeError(f"scheduler is {scheduler!r}; it must be a scheduler of Ray Tune, such as ASHAScheduler()")
        for name, value in (("processors", processors), ("at_once", at_once), ("live", live)):
            if value is not None and (not isinstance(value, int) or value < 1):
                raise ValueError(f"{name} is {value!r}; it must be a whole number from 1 on, or None")
        if processors is not None and StudyPlan is not None and processors > MOST_DEVICES:
            raise ValueError(f"processors is {processors}; it must be at most {MOST_DEVICES}")
        self._inner = FIFOScheduler() if scheduler is None else scheduler
        if isinstance(preload, str):
            raise ValueError("preload is a list of names of modules")
        self._processors, self._at_once, self._live = processors, at_once, live
        self._preload, self._hang_after = preload, _hangs.checked(hang_after)
        self._ready()  # which imports while Ray starts
        self._controller: Controller | None = None
        self._passes_through = False
        self._broker: Broker | None = None
        self._plan: StudyPlan | None = None
        self._saved: _state.Saved | None = None
        self._known: set[str] = set()
        self._groups: dict[str, str] = {}
        self._deferred: list[Trial] = []
        self._shrunk: set[str] = set()
        self._held: dict[str, _Held] = {}
        self._dirty, self._writes, self._warned, self._saved_at = False, True, False, 0.0
        self.held_seconds: list[float] = []  # of each pause that ended by going on in place
        self.let_go = 0                      # pauses that ended a process

    # --- What Ray asks

    @property
    def metric(self) -> str | None:
        return self._inner.metric

    @property
    def supports_buffered_results(self) -> bool:
        return False  # a trial that is to pause must not have gone on

    def set_search_properties(self, metric: str | None, mode: str | None, **spec: Any) -> bool:
        return self._inner.set_search_properties(metric, mode, **spec)

    def debug_string(self) -> str:
        return self._inner.debug_string()

    def save(self, checkpoint_path: str) -> None:
        self._inner.save(checkpoint_path)

    def restore(self, checkpoint_path: str) -> None:
        self._inner.restore(checkpoint_path)

    def on_trial_add(self, tune_controller: TuneController, trial: Trial) -> None:
        self._attach(tune_controller)
        if self._controller is None:
            self._inner.on_trial_add(tune_controller, trial)
            return
        self._shrink(trial)
        if self._saved is not None:
            self._deferred.append(trial)  # the state is loaded when all of its trials are here
            return
        self._add(tune_controller, trial)

    def on_trial_result(self, tune_controller: TuneController, trial: Trial, result: dict[str, Any]) -> str:
        decision = self._inner.on_trial_result(tune_controller, trial, result)
        self._dirty = True
        if decision == TrialScheduler.PAUSE and self._can_hold(trial):
            assert self._controller is not None
            # PBT copies a paused trial from its checkpoint, and takes for granted that there is one.
            self._controller.hold(trial, result, save=isinstance(self._inner, PopulationBasedTraining))
            self._held[trial.trial_id] = _Held(trial.config, result.get("training_iteration"), time.monotonic())
            decision = TrialScheduler.NOOP
            self._tell("reported", trial)
            self._tell("paused", trial)
        elif decision == TrialScheduler.STOP:
            self._tell("over", trial)
        elif decision in (TrialScheduler.CONTINUE, TrialScheduler.NOOP):
            self._tell("reported", trial)
            self._expect(trial)
        if decision != TrialScheduler.CONTINUE:
            self._write()
        return decision

    def on_trial_complete(self, tune_controller: TuneController, trial: Trial, result: dict[str, Any]) -> None:
        with self._forgotten(trial):
            self._inner.on_trial_complete(tune_controller, trial, result)

    def on_trial_remove(self, tune_controller: TuneController, trial: Trial) -> None:
        with self._forgotten(trial):
            self._inner.on_trial_remove(tune_controller, trial)

    def on_trial_error(self, tune_controller: TuneController, trial: Trial) -> None:
        with self._forgotten(trial):
            self._inner.on_trial_error(tune_controller, trial)

    def choose_trial_to_run(self, tune_controller: TuneController) -> Trial | None:
        if self._controller is None:
            return self._inner.choose_trial_to_run(tune_controller)
        if self._saved is not None:
            self._load(tune_controller)
        self._end_of_lost()
        chosen = self._inner.choose_trial_to_run(tune_controller)
        while chosen is not None and chosen.trial_id in self._held:
            if not self._go_on(chosen):
                chosen = None
                break
            chosen = self._inner.choose_trial_to_run(tune_controller)
        if chosen is not None and chosen.is_saving:
            chosen = None  # its process is ending; a new one starts from the checkpoint
        self._make_room()
        if self._dirty and time.monotonic() - self._saved_at > _SAVE_EVERY:
            self._write()
        return chosen

    # --- What the planner is told

    def _tell(self, event: str, trial: Trial, *told: Any) -> None:
        if self._plan is None or self._broker is None:
            return
        broker, call, name = self._broker, getattr(self._plan, event), trial.trial_id
        broker.post(lambda: broker.send(call(name, *told, time.monotonic())))

    def _expect(self, trial: Trial) -> None:
        wanted = _budgets.of(self._inner, trial)
        self._tell("expects", trial, self._groups.get(trial.trial_id, "") + wanted.group, wanted.reports)

    # --- Paused trials

    def _can_hold(self, trial: Trial) -> bool:
        # A held trial must not keep Ray's resources: its scheduler may be waiting for trials that need them.
        return (self._controller is not None and self._broker is not None and trial.trial_id in self._shrunk
                and self._controller.has_process(trial) and not self._broker.has_actors(trial.trial_id))

    def _go_on(self, trial: Trial) -> bool:
        """Whether the trial is no more held: it runs, or its process ends."""
        assert self._controller is not None and self._broker is not None
        if trial.is_saving:
            return False  # Ray would take the answer to a step for that to the save
        held = self._held.pop(trial.trial_id)
        if trial.config is not held.config:
            self._controller.let_go(trial, save=False)
            self.let_go += 1
        else:
            self.held_seconds.append(time.monotonic() - held.since)
            self._expect(trial)
            self._broker.resumes(trial.trial_id)
            self._controller.resume(trial)
        return True

    def _end_of_lost(self) -> None:
        """Ray notices the end of a process when it is asked for something. So a held trial's is."""
        assert self._controller is not None and self._broker is not None
        for trial_id in self._broker.lost() & self._held.keys():
            trial = self._controller.trials().get(trial_id)
            if trial is not None and self._controller.has_process(trial):
                self._held.pop(trial_id)
                self._controller.resume(trial)

    def _died(self, trial: Trial) -> None:
        assert self._controller is not None
        if self._held.pop(trial.trial_id, None) is not None:
            self._controller.wake(trial)

    def _make_room(self) -> None:
        """Where trials wait for a process and there are `live`, the one that is held longest gives its own up."""
        assert self._controller is not None
        controller = self._controller
        if not controller.waiting_for_process() or controller.processes() < self._most_live() or not self._held:
            return
        trials = controller.trials()
        if any(trial.is_saving for trial in trials.values()):
            return  # one at a time
        trial_id = min(self._held, key=lambda name: self._held[name].since)
        del self._held[trial_id]
        if trial_id in trials:
            controller.let_go(trials[trial_id], save=True)
            self.let_go += 1

    def _may_start(self) -> bool:
        assert self._controller is not None
        here = self._controller.processes()
        under_way = here - len(self._held) - self._controller.unused_processes()
        return here < self._most_live() and under_way < self._most_at_once()

    def _most_at_once(self) -> int:
        assert self._processors is not None
        return self._at_once or (self._plan.appetite if self._plan else self._processors)

    def _most_live(self) -> int:
        return self._live or self._most_at_once()

    # --- The beginning

    def _ready(self) -> _starts.Starts | None:
        return None if self._preload is None else _starts.start(self._preload)

    def _attach(self, tune_controller: TuneController) -> None:
        raw = getattr(tune_controller, "_tune_controller", tune_controller)
        if self._controller is not None and self._controller.raw is not raw:
            raise ValueError("a Fluid is for one study: make another one, with a new scheduler in it")
        if self._controller is not None or self._passes_through:
            return
        resources = ray.cluster_resources()
        share = 1.0
        if self._processors is None:
            served = processors_of_workers(placement_group_table().values())
            self._processors = max(1, int(resources.get("CPU", 1) - served))
            # Ray counts the processors of all hosts, and may have been told another number than the quota lets run.
            if _processors is not None and sum(bool(node["Alive"]) for node in ray.nodes()) == 1:
                here = _processors.under_quota(self._processors)
                self._processors, share = here.count, here.supply
            if StudyPlan is not None:
                self._processors = min(self._processors, MOST_DEVICES)
        # With `reuse_actors` a process that is there takes another trial over within a second, and to start one more so
        # that a trial can stay takes longer.
        if self._live is None and not getattr(raw, "_reuse_actors", False):
            self._live = max(self._most_at_once(), _free_memory() // 2 // _PROCESS_BYTES)
        plan = None if StudyPlan is None else StudyPlan(self._processors)
        if plan is not None:
            plan.shares(share, time.monotonic())
        broker = Broker(Turns(self._processors) if plan is None else plan, patience=_PATIENCE,
                        hang_after=self._hang_after)
        try:
            self._controller = Controller(raw, broker.path, _starts.runtime_env(self._ready()), self._may_start,
                                          self._died)
        except UnknownRay as unknown:
            broker.close()
            self._passes_through = True
            warnings.warn(f"carillon.tune knows no way into Ray {ray.__version__} (it has no {unknown}): trials run as "
                          "under the inner scheduler alone", stacklevel=2)
            return
        self._broker, self._plan = broker, plan
        weakref.finalize(self, broker.close)  # at the end of the program, too; Ray tells no scheduler of a study's end
        try:
            self._saved = _state.read(self._controller.storage)
        except Exception as error:  # of a file that is damaged anything may come
            warnings.warn(f"carillon.tune cannot read its state, and begins anew: {error}", stacklevel=2)

    def _shrink(self, trial: Trial) -> None:
        asked = trial.placement_group_factory
        # Without a head, the one bundle is for actors of the trial.
        if (trial.status == Trial.RUNNING or asked.head_bundle_is_empty or len(asked.bundles) != 1
                or set(asked.bundles[0]) - {"CPU"}):
            return
        trial.update_resources(PlacementGroupFactory([{"CPU": _TRIAL_CPU}]))
        self._shrunk.add(trial.trial_id)

    def _add(self, tune_controller: TuneController, trial: Trial) -> None:
        self._known.add(trial.trial_id)
        self._inner.on_trial_add(tune_controller, trial)
        self._groups[trial.trial_id] = _groups.current()
        self._expect(trial)

    @contextmanager
    def _forgotten(self, trial: Trial) -> Iterator[None]:
        """However the inner scheduler takes the trial's end."""
        try:
            yield
        finally:
            self._held.pop(trial.trial_id, None)
            self._tell("over", trial)
            self._dirty = True
            self._write()

    # --- The file

    def _load(self, tune_controller: TuneController) -> None:
        assert self._controller is not None and self._saved is not None
        saved, self._saved = self._saved, None
        deferred, self._deferred = self._deferred, []
        here = self._controller.trials()
        if not saved.known & here.keys():  # another study of the same name
            saved = _state.Saved(set(), {}, b"")
        else:
            state, lost = saved.scheduler_for(here)
            self._inner.__dict__.update(state)
            self._known = saved.known & here.keys()
            for trial in lost:
                try:
                    self._inner.on_trial_remove(tune_controller, trial)
                except Exception as error:  # the scheduler is somebody else's
                    warnings.warn(f"{type(self._inner).__name__} still counts on trial {trial.trial_id}, which Ray has "
                                  f"no more: {error}", stacklevel=2)
        for trial in deferred:
            if trial.trial_id not in self._known:
                self._add(tune_controller, trial)
            elif (trial.status == Trial.PENDING and trial.trial_id in saved.held
                  and trial.has_checkpoint()
                  and trial.last_result.get("training_iteration") == saved.held[trial.trial_id]):
                self._controller.park(trial)

    def _write(self) -> None:
        if self._controller is None or self._saved is not None or not self._writes:
            return
        self._dirty, self._saved_at = False, time.monotonic()
        held = {name: h.iteration for name, h in self._held.items()}
        try:
            state = _state.state_of(self._inner)
            _state.write(self._controller.storage, _state.Saved(set(self._known), held, state, ray.__version__))
        except Exception as error:  # of what is pickled, or of the storage
            self._writes = isinstance(error, OSError)  # the disk may have room again
            if not self._warned:
                self._warned = True
                warnings.warn(f"carillon.tune cannot keep the state of {type(self._inner).__name__} (Tuner.restore will begin "
                              f"with the last one that was kept, or anew): {error}", stacklevel=2)

    def __getstate__(self) -> dict[str, Any]:
        """Ray writes schedulers down before a study begins, and after a restart."""
        fresh = Fluid(self._inner, at_once=self._at_once, live=self._live, processors=self._processors,
                      preload=self._preload, hang_after=self._hang_after)
        return fresh.__dict__

    def __getattr__(self, name: str) -> Any:
        # What searchers and callbacks look for in a scheduler they know.
        if name.startswith("__") or "_inner" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.__dict__["_inner"], name)
