"""All that is touched of Ray's TuneController besides what a scheduler is meant to call (python/carillon/tune/INSIDE.md).

Ray says nothing of these names between versions, so they are looked for before any is used.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Callable

import ray
from ray.tune.execution import class_cache
from ray.tune.experiment import Trial

from .. import _threads
from . import _trial

if TYPE_CHECKING:
    from ray.tune.execution.tune_controller import TuneController

_NEEDED = ("_schedule_trial_train", "_schedule_trial_save", "_set_trial_status", "_trial_to_actor", "_actor_to_trial",
           "_actor_manager", "_class_cache", "_actor_cache", "_storage", "pause_trial", "get_trials")


class UnknownRay(Exception):
    """This version of Ray has another controller: which name is missing."""


class _Classes:
    """In place of the controller's cache of actor classes: the only place that every trial's process passes."""

    def __init__(self, path: str, runtime_env: dict[str, str]) -> None:
        self._path, self._runtime_env = path, runtime_env
        self._made: dict[type, Any] = {}

    def get(self, trainable: type) -> Any:
        if trainable not in self._made:
            told = {name: os.environ[name] for name in class_cache.ENV_VARS_TO_PROPAGATE if name in os.environ}
            env = {"env_vars": class_cache.DEFAULT_ENV_VARS | _threads.quiet() | told, **self._runtime_env}
            self._made[trainable] = ray.remote(runtime_env=env)(_trial.with_turns(trainable, self._path))
        return self._made[trainable]


class Controller:
    """`may_start`: whether one more trial's process may start now. `died`: told of a paused trial whose process is
    gone, before Ray is."""

    def __init__(self, controller: TuneController, path: str, runtime_env: dict[str, str],
                 may_start: Callable[[], bool], died: Callable[[Trial], None]) -> None:
        missing = [name for name in _NEEDED if not hasattr(controller, name)]
        missing += [f"class_cache.{name}" for name in ("DEFAULT_ENV_VARS", "ENV_VARS_TO_PROPAGATE")
                    if not hasattr(class_cache, name)]
        manager = getattr(controller, "_actor_manager", None)
        resources = getattr(manager, "_resource_manager", None)
        if not hasattr(resources, "has_resources_ready"):
            missing.append("_actor_manager._resource_manager.has_resources_ready")
        missing += [f"_actor_manager.{name}" for name in ("add_actor", "num_live_actors", "num_pending_actors")
                    if not hasattr(manager, name)]
        if missing:
            raise UnknownRay(", ".join(missing))
        self.raw = controller
        self._manager = manager
        controller._class_cache = _Classes(path, runtime_env)

        ready = resources.has_resources_ready
        resources.has_resources_ready = lambda request: may_start() and ready(request)

        # Ray takes the end of a paused trial's process for that of one which was starting, and fails the study. What
        # is set here is set on objects that Ray leaves out of its own state, which is all else of the controller.
        add = manager.add_actor

        def add_actor(*args: Any, on_error: Callable[[Any, Exception], None], **kwargs: Any) -> Any:
            def failed(tracked_actor: Any, exception: Exception) -> None:
                trial = controller._actor_to_trial.get(tracked_actor)
                if trial is not None and trial.status == Trial.PAUSED:
                    died(trial)
                on_error(tracked_actor, exception)

            return add(*args, on_error=failed, **kwargs)

        manager.add_actor = add_actor

    @property
    def storage(self) -> Any:
        return self.raw._storage

    def trials(self) -> dict[str, Trial]:
        return {trial.trial_id: trial for trial in self.raw.get_trials()}

    def has_process(self, trial: Trial) -> bool:
        return trial in self.raw._trial_to_actor

    def processes(self) -> int:
        return int(self._manager.num_live_actors)

    def unused_processes(self) -> int:
        return int(self.raw._actor_cache.num_cached_objects)

    def waiting_for_process(self) -> int:
        return int(self._manager.num_pending_actors)

    def hold(self, trial: Trial, result: dict[str, Any], save: bool) -> None:
        """In `on_trial_result`, which has to return NOOP: it is asked for no further step, and its process stays."""
        if save and not trial.is_saving:
            self.raw._schedule_trial_save(trial, result=result)
        self.raw._set_trial_status(trial, Trial.PAUSED)

    def resume(self, trial: Trial) -> None:
        self.raw._set_trial_status(trial, Trial.RUNNING)
        self.raw._schedule_trial_train(trial)

    def wake(self, trial: Trial) -> None:
        """It counts as running, but is asked for nothing."""
        self.raw._set_trial_status(trial, Trial.RUNNING)

    def let_go(self, trial: Trial, save: bool) -> None:
        """Ray's own pause of a held trial: its process ends, after its checkpoint. To Ray it runs until then."""
        if save:
            self.wake(trial)
        self.raw.pause_trial(trial, should_checkpoint=save)

    def park(self, trial: Trial) -> None:
        """A trial that has no process and was restored as one to run at once is paused."""
        self.raw._set_trial_status(trial, Trial.PAUSED)
