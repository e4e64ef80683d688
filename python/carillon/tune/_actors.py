"""Ray's own TuneController over processes that exist in virtual time only: no cluster, no files.

The controller is Ray's, and so are schedulers' decisions. What it has of Ray's core is its actor manager: here one
whose actors are processes of a `World`. Each event that reaches the controller takes it `gap` seconds, one after the
other.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any, Callable

from ray.air.execution._internal.tracked_actor import TrackedActor
from ray.train._internal.session import _FutureTrainingResult, _TrainingResult
from ray.tune import Checkpoint, CheckpointConfig, Trainable
from ray.tune.execution.tune_controller import TuneController
from ray.tune.experiment import Trial
from ray.tune.result import RESULT_DUPLICATE, SHOULD_CHECKPOINT
from ray.tune.schedulers import HyperBandForBOHB, TrialScheduler
from ray.tune.search import SearchAlgorithm

from ._curves import Curves
from ._world import World

_MOST_PENDING = 200  # as Ray has it for searchers that know all trials beforehand


@dataclass(frozen=True)
class Timing:
    """Seconds. `start`: of a process; `stop`: of its end; `first`: that it computes besides in its first report;
    `reset`: of one that goes on with another trial; `save`, `restore`: of a checkpoint; `gap`: of the driver, for each
    thing that a trial tells it."""

    start: float = 0.0
    stop: float = 0.0
    first: float = 0.0
    reset: float = 0.0
    save: float = 0.0
    restore: float = 0.0
    gap: float = 0.0


@dataclass(frozen=True)
class Shape:
    """Of trials. `epochs`: reports of each at most; `iterations` of an epoch. `function`: its end is told by one more
    call, as Ray does it for a function; a class saves at its end. `saves`: it saves with each report. `tells_end`: Ray
    knows `epochs` beforehand, as a stop condition."""

    epochs: int
    iterations: int = 20
    function: bool = False
    saves: bool = False
    tells_end: bool = True
    noise: float = 0.0  # an epoch takes 1 + noise * normal of its time
    seed: int = 0
    keeps_curve: bool = False  # a trial that PBT copies another into reports by its own curve, which has that in it


class _Storage:
    """In place of a StorageContext. There is none."""

    trial_dir_name = experiment_dir_name = "virtual"
    experiment_fs_path = experiment_driver_staging_path = trial_driver_staging_path = trial_fs_path = "/nowhere"

    def _update_checkpoint_index(self, metrics: dict[str, Any]) -> None:
        pass


class _Saved(Checkpoint):
    """A trial's place on a curve."""

    def __init__(self, curve: int, epoch: int) -> None:
        super().__init__("/nowhere")
        self.curve, self.epoch = curve, epoch


class VirtualTrial(Trial):
    def __init__(self, number: int, shape: Shape) -> None:
        super().__init__("virtual", stub=True, trial_id=f"{number:05d}", storage=_Storage(),  # type: ignore[arg-type]
                         config={"trial": number}, checkpoint_config=CheckpointConfig(checkpoint_at_end=not shape.function),
                         stopping_criterion={"training_iteration": shape.epochs} if shape.tells_end else {})
        self.number = number

    def __hash__(self) -> int:
        return self.number  # so that sets have one order

    def __eq__(self, other: object) -> bool:
        return self is other

    def get_trainable_cls(self) -> type:
        return Trainable

    def init_local_path(self) -> None:
        pass

    def set_ray_actor(self, ray_actor: Any) -> None:
        self.temporary_state.ray_actor = ray_actor


class _Searcher:
    """What HyperBandForBOHB tells of pauses."""

    def __init__(self) -> None:
        self.running: set[str] = set()

    def on_pause(self, trial_id: str) -> None:
        self.running.discard(trial_id)

    def on_unpause(self, trial_id: str) -> None:
        self.running.add(trial_id)


class _Trials(SearchAlgorithm):
    """All of them, one after the other; `concurrency` at most that are neither over nor, to the searcher, paused."""

    def __init__(self, count: int, shape: Shape, concurrency: int | None, metric: str) -> None:
        self._count, self._shape, self._concurrency, self._metric = count, shape, concurrency, metric
        self._next = 0
        self.searcher = _Searcher()

    def next_trial(self) -> Trial | None:
        if self.is_finished() or (self._concurrency and len(self.searcher.running) >= self._concurrency):
            return None
        trial = VirtualTrial(self._next, self._shape)
        self._next += 1
        self.searcher.running.add(trial.trial_id)
        return trial

    def on_trial_complete(self, trial_id: str, result: dict | None = None, error: bool = False) -> None:
        self.searcher.running.discard(trial_id)

    def is_finished(self) -> bool:
        return self._finished or self._next >= self._count


@dataclass(eq=False)
class _Task:
    method: str
    args: tuple[Any, ...] = ()
    on_result: Callable[..., None] | None = None
    result: Any = None


@dataclass
class _Actor:
    tracked: TrackedActor
    request: Any
    device: tuple[int, ...] = ()
    ready: bool = False
    heard: bool = False       # the driver knows that it is ready
    ends: bool = False        # when its tasks are done
    tasks: deque[_Task] = field(default_factory=deque)
    untold: list[_Task] = field(default_factory=list)  # done, and the driver has not heard of it
    trial: str = ""           # whose turn it asked for last
    curve: int = 0            # of this trial: its place
    epoch: int = 0
    seconds: float = 0.0      # of training
    fresh: bool = True        # it has not reported


class _Resources:
    """Of processors only. `has_resources_ready` is replaced by Fluid's."""

    def __init__(self, devices: int) -> None:
        self._devices, self._used = devices, 0.0
        self._free = list(range(devices))

    @staticmethod
    def _needs(request: Any) -> float:
        return sum(bundle.get("CPU", 0.0) for bundle in request.bundles)

    def has_resources_ready(self, request: Any) -> bool:
        return self._used + self._needs(request) <= self._devices + 1e-6

    def acquire(self, request: Any) -> tuple[int, ...]:
        needs = self._needs(request)
        self._used += needs
        taken, self._free = tuple(self._free[:int(needs)]), self._free[int(needs):]
        return taken

    def free(self, request: Any, devices: tuple[int, ...]) -> None:
        self._used -= self._needs(request)
        self._free = sorted([*self._free, *devices])


class _ActorManager:
    """The calls of Ray's RayActorManager that the controller makes."""

    def __init__(self, world: World, timing: Timing, shape: Shape, curves: Curves,
                 heard: Callable[[VirtualTrial, float], None]) -> None:
        self._world, self._timing, self._shape, self._curves, self._heard = world, timing, shape, curves, heard
        self._resource_manager = _Resources(world.devices)
        self._live_actors_to_ray_actors_resources: dict[TrackedActor, tuple[_Actor, None]] = {}
        self._pending: dict[TrackedActor, tuple[_Actor, list[_Task]]] = {}
        self._due: deque[Callable[[], None]] = deque()
        self._driver_free = 0.0
        self._actors = 0
        self._noise = random.Random(shape.seed)
        self.controller: Any = None
        self.starts = 0
        self.idle = 0  # times that nothing was to come, in a row

    # --- Events for the driver

    def _tell_driver(self, call: Callable[[], None]) -> None:
        self._driver_free = max(self._world.now, self._driver_free) + self._timing.gap
        self._world.at(self._driver_free, lambda: self._due.append(call))

    def next(self, timeout: float | None = None) -> bool:
        self._start()
        while not self._due:
            if not self._world.step():
                self.idle += 1
                return False
        self._due.popleft()()
        self.idle = 0
        self._start()
        return True

    # --- Actors

    def add_actor(self, cls: type, kwargs: dict[str, Any], resource_request: Any, *,
                  on_start: Callable[[TrackedActor], None] | None = None,
                  on_stop: Callable[[TrackedActor], None] | None = None,
                  on_error: Callable[[TrackedActor, Exception], None] | None = None) -> TrackedActor:
        self._actors += 1
        tracked = TrackedActor(self._actors, on_start=on_start, on_stop=on_stop, on_error=on_error)
        self._pending[tracked] = _Actor(tracked, resource_request), []
        return tracked

    def _start(self) -> None:
        for tracked, (actor, tasks) in list(self._pending.items()):
            if not self._resource_manager.has_resources_ready(actor.request):
                continue
            actor.device = self._resource_manager.acquire(actor.request)
            del self._pending[tracked]
            self._live_actors_to_ray_actors_resources[tracked] = actor, None
            actor.tasks.extend(tasks)
            self.starts += 1
            self._world.at(self._world.now + self._timing.start, lambda actor=actor: self._started(actor))

    def _started(self, actor: _Actor) -> None:
        actor.ready = True
        if actor.ends:
            self._stopped(actor)
            return

        def tell() -> None:
            actor.heard = True
            if actor.tracked._on_start is not None:
                actor.tracked._on_start(actor.tracked)

        self._tell_driver(tell)
        self._work(actor)

    def _stopped(self, actor: _Actor) -> None:
        if actor.trial:
            self._world.gone(actor.trial)

        def tell() -> None:
            if self._live_actors_to_ray_actors_resources.pop(actor.tracked, None) is None:
                return
            self._resource_manager.free(actor.request, actor.device)
            if actor.tracked._on_stop is not None:
                actor.tracked._on_stop(actor.tracked)

        self._world.at(self._world.now + self._timing.stop, lambda: self._tell_driver(tell))

    def remove_actor(self, tracked: TrackedActor, kill: bool = False, stop_future: Any = None) -> bool:
        if tracked in self._pending:
            del self._pending[tracked]
            return False
        actor, _ = self._live_actors_to_ray_actors_resources[tracked]
        if not actor.heard:  # nor will it hear of its end
            tracked._on_start = tracked._on_stop = tracked._on_error = None
        actor.ends = True
        if actor.ready and not actor.tasks:
            self._stopped(actor)
        return True

    def is_actor_started(self, tracked: TrackedActor) -> bool:
        return tracked in self._live_actors_to_ray_actors_resources

    def is_actor_failed(self, tracked: TrackedActor) -> bool:
        return False

    def get_live_actors_resources(self) -> dict[str, float]:
        used: Counter[str] = Counter()
        for actor, _ in self._live_actors_to_ray_actors_resources.values():
            for bundle in actor.request.bundles:
                used.update(bundle)
        return dict(used)

    @property
    def num_live_actors(self) -> int:
        return len(self._live_actors_to_ray_actors_resources)

    @property
    def num_pending_actors(self) -> int:
        return len(self._pending)

    @property
    def num_total_actors(self) -> int:
        return self.num_live_actors + self.num_pending_actors

    @property
    def num_actor_tasks(self) -> int:
        return sum(len(actor.tasks) for actor, _ in self._live_actors_to_ray_actors_resources.values())

    def cleanup(self) -> None:
        pass

    # --- What actors do, one after the other

    def schedule_actor_task(self, tracked_actor: TrackedActor, method_name: str, args: tuple[Any, ...] | None = None,
                            kwargs: dict[str, Any] | None = None, on_result: Callable[..., None] | None = None,
                            on_error: Callable[..., None] | None = None,
                            _return_future: bool = False) -> _Task | None:
        task = _Task(method_name, args or (), on_result)
        if tracked_actor in self._pending:
            self._pending[tracked_actor][1].append(task)
        else:
            actor, _ = self._live_actors_to_ray_actors_resources[tracked_actor]
            actor.tasks.append(task)
            if actor.ready and len(actor.tasks) == 1:
                self._work(actor)
        if method_name == "save":
            trial = self.controller._actor_to_trial[tracked_actor]
            task.result = self._checkpoint(tracked_actor, trial)
        return task if _return_future else None

    def clear_actor_task_futures(self, tracked_actor: TrackedActor) -> None:
        if tracked_actor in self._live_actors_to_ray_actors_resources:
            actor, _ = self._live_actors_to_ray_actors_resources[tracked_actor]
            for task in [*actor.tasks, *actor.untold]:
                task.on_result = None

    def _checkpoint(self, tracked: TrackedActor, trial: Trial) -> _TrainingResult:
        actor, _ = self._live_actors_to_ray_actors_resources[tracked]
        told = dict(trial.last_result, training_iteration=actor.epoch)
        if actor.epoch:
            told[self.controller._metric] = self._curves.metric(actor.curve, actor.epoch)
        return _TrainingResult(_Saved(actor.curve, actor.epoch), told)

    def _work(self, actor: _Actor) -> None:
        """Begins its next task."""
        if not actor.tasks:
            if actor.ends:
                self._stopped(actor)
            return
        task, timing, world = actor.tasks[0], self._timing, self._world
        if task.on_result is None and task.method == "train":
            self._done(actor, task)  # nobody waits for it any more
        elif task.method == "train":
            self._train(actor, task)
        else:
            took = {"save": timing.save, "restore": timing.restore, "reset": timing.reset}.get(task.method, 0.0)
            world.at(world.now + took, lambda: self._did(actor, task))

    def _did(self, actor: _Actor, task: _Task) -> None:
        if task.method == "restore":
            [saved] = task.args
            actor.curve, actor.epoch = saved.checkpoint.curve, saved.checkpoint.epoch
            if self._shape.keeps_curve:
                actor.curve = self.controller._actor_to_trial[actor.tracked].number
        elif task.method == "reset":
            actor.curve, actor.epoch, actor.seconds = task.args[0]["trial"], 0, 0.0
            task.result = True
        self._done(actor, task)

    def _done(self, actor: _Actor, task: _Task) -> None:
        actor.tasks.popleft()

        def tell() -> None:
            actor.untold.remove(task)
            if task.on_result is not None:
                task.on_result(actor.tracked, task.result)

        if task.on_result is not None:
            actor.untold.append(task)
            self._tell_driver(tell)
        self._work(actor)

    def _train(self, actor: _Actor, task: _Task) -> None:
        trial: VirtualTrial = self.controller._actor_to_trial[actor.tracked]
        world = self._world
        if trial.trial_id != actor.trial:
            if actor.trial:
                world.gone(actor.trial)
            if not actor.epoch:
                actor.curve = trial.number
            actor.trial = trial.trial_id
        began = world.now

        if self._shape.function and actor.epoch >= self._shape.epochs:
            def over() -> None:
                task.result = {RESULT_DUPLICATE: True, "done": True}
                self._done(actor, task)

            world.compute(trial.trial_id, 0, 0.0, over, actor.device)
            return

        def reported() -> None:
            actor.epoch += 1
            took = world.now - began
            actor.seconds += took
            metric = self._curves.metric(actor.curve, actor.epoch)
            on_result = task.on_result

            def heard(tracked: TrackedActor, result: dict[str, Any]) -> None:
                self._heard(trial, metric)
                if on_result is not None:
                    on_result(tracked, result)

            task.on_result = heard
            task.result = {"training_iteration": actor.epoch, self.controller._metric: metric,
                           "time_this_iter_s": took, "time_total_s": actor.seconds, "timestamp": int(world.now),
                           "done": actor.epoch >= self._shape.epochs and not self._shape.function}
            if self._shape.saves:
                task.result[SHOULD_CHECKPOINT] = True
            self._done(actor, task)

        seconds = self._curves.seconds(actor.curve, actor.epoch + 1)
        if self._shape.noise > 0:
            seconds *= max(0.1, 1 + self._noise.gauss(0, self._shape.noise))
        iterations = self._shape.iterations
        before = self._timing.first if actor.fresh else 0.0
        actor.fresh = False
        world.compute(trial.trial_id, iterations, seconds / iterations, reported, actor.device, before)


class _Future(_FutureTrainingResult):
    """PBT waits for what another trial saves."""

    def resolve(self, block: bool = True) -> Any:
        return self.future.result


class _Classes:
    def get(self, trainable: type) -> type:
        return trainable


class _NoFiles:
    def on_trial_checkpoint(self, trial: Trial) -> None:
        pass


class _Unheard:
    def on_no_available_trials(self, trials: list[Trial]) -> None:
        pass


_NEEDED = ("_actor_manager", "_class_cache", "_insufficient_resources_manager", "_max_pending_trials", "_live_trials",
           "_actor_to_trial", "_storage")


class VirtualController(TuneController):
    """Ray's, with another actor manager, and without files. `heard`: what trials have reported, as the driver hears it."""

    def __init__(self, scheduler: TrialScheduler, world: World, curves: Curves, *, count: int, shape: Shape,
                 timing: Timing, metric: str, concurrency: int | None, reuse: bool,
                 heard: Callable[[VirtualTrial, float], None]) -> None:
        super().__init__(search_alg=_Trials(count, shape, concurrency, metric), scheduler=scheduler, metric=metric,
                         reuse_actors=reuse, checkpoint_period=1 << 30,
                         storage=_Storage())  # type: ignore[arg-type]
        missing = [name for name in _NEEDED if not hasattr(self, name)]
        if missing:
            raise RuntimeError(f"this version of Ray has another TuneController: it has no {', '.join(missing)}")
        self.actors = _ActorManager(world, timing, shape, curves, heard)
        self.actors.controller = self
        self._actor_manager = self.actors
        self._fail_fast = self.RAISE  # to the constructor it would be worth a warning
        self._world = world
        self.ended: dict[str, float] = {}
        self._class_cache = _Classes()
        self._insufficient_resources_manager = _Unheard()
        inner = getattr(scheduler, "_inner", scheduler)
        # A searcher gets as many at a time as may run; BOHB's is one. Others know all trials beforehand.
        self._max_pending_trials = (concurrency or 1) if isinstance(inner, HyperBandForBOHB) else _MOST_PENDING

    def _create_checkpoint_manager(self) -> Any:
        return _NoFiles()

    def checkpoint(self, force: bool = False, wait: bool = False) -> None:
        pass

    def on_step_begin(self) -> None:
        pass

    def _schedule_trial_stop(self, trial: Trial, exception: Exception | None = None) -> None:
        super()._schedule_trial_stop(trial, exception)
        self.ended[trial.trial_id] = self._world.now

    def _schedule_trial_save(self, trial: Trial, result: dict | None = None) -> Any:
        future = super()._schedule_trial_save(trial, result)
        if future is not None:
            future = trial.temporary_state.saving_to = _Future(future.future)
        return future
