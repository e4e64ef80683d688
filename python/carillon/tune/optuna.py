"""Optuna's trials as processes under the planner (docs/fluid-scripts.md#optuna):

    carillon.tune.optuna.optimize(study, objective, n_trials=100)   # was: study.optimize(objective, n_trials=100)

The objective is as ever: it gets a trial, and suggests, reports and prunes by it. Samplers and pruners decide in this
process, where the study is; the objective runs in others.
"""

from __future__ import annotations

import base64
import datetime
import math
import pickle
import queue
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Sequence
from numbers import Integral
from typing import Any

try:
    import optuna
except ImportError as error:
    raise ImportError(f"carillon.tune.optuna needs Optuna: pip install optuna ({error})") from error
from optuna.trial import BaseTrial, FrozenTrial, TrialState

from . import _process
from .group import GroupTrial, TrialGroup

_logger = optuna.logging.get_logger(__name__)


class TrialLost(RuntimeError):
    """A trial's process was lost, and as often as it may begin again."""


def _ask(question: list[Any]) -> Any:
    answer = _process.ask(question)
    if "raised" in answer:
        known = {kind.__name__: kind for kind in (ValueError, TypeError, NotImplementedError)}
        raise known.get(answer["raised"], RuntimeError)(answer["text"])
    return answer["said"]


class _Study:
    """Of a trial's study, what an objective needs."""

    def stop(self) -> None:
        _ask(["stop"])

    def __getattr__(self, name: str) -> Any:
        if name in ("study_name", "directions", "user_attrs"):
            told = _ask(["study"])
            told["directions"] = [optuna.study.StudyDirection(value) for value in told["directions"]]
            return told[name]
        raise AttributeError(f"the study is in another process, and has no {name!r} here")

    @property
    def direction(self) -> optuna.study.StudyDirection:
        return self.directions[0]


class RemoteTrial(BaseTrial):
    """In a trial's process: the trial that is in the study's."""

    def __init__(self, number: int) -> None:
        self._number = number

    @property
    def number(self) -> int:
        return self._number

    @property
    def study(self) -> Any:
        return _Study()

    def suggest_float(self, name: str, low: float, high: float, *, step: float | None = None,
                      log: bool = False) -> float:
        return float(_ask(["suggest_float", [name, low, high], {"step": step, "log": log}]))

    def suggest_int(self, name: str, low: int, high: int, *, step: int = 1, log: bool = False) -> int:
        return int(_ask(["suggest_int", [name, low, high], {"step": step, "log": log}]))

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any:
        choices = list(choices)
        # Whole, and not as JSON, which has no tuples; the answer is its number.
        packed = base64.b64encode(pickle.dumps(choices)).decode()
        return choices[_ask(["suggest_categorical", [name, packed], {}])]

    def report(self, value: float, step: int) -> None:
        """Also a boundary of the planner's: the trial may stand still here, or go on wider."""
        _ask(["report", [float(value), step], {}])
        _process.report(float(value), step=step)

    def should_prune(self) -> bool:
        return bool(_ask(["should_prune", [], {}]))

    def set_user_attr(self, key: str, value: Any) -> None:
        _ask(["set_user_attr", [key, value], {}])

    def _told(self, name: str) -> Any:
        return _ask(["trial"])[name]

    @property
    def params(self) -> dict[str, Any]:
        return self._told("params")

    @property
    def distributions(self) -> dict[str, Any]:
        return {name: optuna.distributions.json_to_distribution(text)
                for name, text in self._told("distributions").items()}

    @property
    def user_attrs(self) -> dict[str, Any]:
        return self._told("user_attrs")

    @property
    def datetime_start(self) -> Any:
        return datetime.datetime.fromisoformat(self._told("datetime_start"))

    def suggest_uniform(self, name: str, low: float, high: float) -> float:
        return self.suggest_float(name, low, high)

    def suggest_loguniform(self, name: str, low: float, high: float) -> float:
        return self.suggest_float(name, low, high, log=True)

    def suggest_discrete_uniform(self, name: str, low: float, high: float, q: float) -> float:
        return self.suggest_float(name, low, high, step=q)

    def set_constraint(self, *args: Any, **kwargs: Any) -> None:
        _ask(["set_constraint", list(args), kwargs])


# Of a version of Optuna that has further methods, these alone are missing.
RemoteTrial.__abstractmethods__ = frozenset()


def _run(config: tuple[Callable[[Any], Any], int]) -> tuple[str, Any]:
    """In the trial's process. What the objective raises is told with its kind."""
    objective, number = config
    try:
        return "value", objective(RemoteTrial(number))
    except optuna.TrialPruned as pruned:
        return "pruned", str(pruned)
    except (MemoryError, _process.Stopped):
        raise
    except BaseException as error:  # sys.exit, too: it ends the study, as where the objective runs in its process
        if type(error).__name__ == "OutOfMemoryError":
            raise
        where = traceback.format_exc()
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            error = RuntimeError(f"{type(error).__name__}: {error}")
        error.add_note(where)
        return "raised", error


def _answer(study: optuna.Study, trial: optuna.Trial, question: list[Any]) -> Any:
    what, *rest = question
    if what == "stop":
        study.stop()
        return None
    if what == "study":
        return {"study_name": study.study_name, "directions": [int(d) for d in study.directions],
                "user_attrs": study.user_attrs}
    if what == "trial":
        return {"params": trial.params, "user_attrs": trial.user_attrs,
                "datetime_start": trial.datetime_start.isoformat() if trial.datetime_start else None,
                "distributions": {name: optuna.distributions.distribution_to_json(one)
                                  for name, one in trial.distributions.items()}}
    args, kwargs = rest
    if what == "suggest_categorical":
        choices = pickle.loads(base64.b64decode(args[1]))
        return _number_of(choices, trial.suggest_categorical(args[0], choices))
    return getattr(trial, what)(*args, **kwargs)


def _number_of(choices: list[Any], answer: Any) -> int:
    """1, 1.0 and True are three choices, though they are equal; a storage may give a copy of the choice."""
    same = [number for number, one in enumerate(choices) if one is answer]
    return same[0] if same else [repr(one) for one in choices].index(repr(answer))


class _Loop:
    """In the study's thread."""

    def __init__(self, study: optuna.Study, objective: Callable[[Any], Any], catch: tuple[type[Exception], ...],
                 callbacks: Sequence[Callable[[optuna.Study, FrozenTrial], None]], budget: float | None,
                 options: dict[str, Any]) -> None:
        self.study, self.objective, self.catch, self.callbacks = study, objective, catch, callbacks
        self.budget = budget
        self.events: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()
        self.group = TrialGroup(on_ask=lambda *asked: self.events.put(asked), on_end=lambda t: self.events.put((t,)),
                                **options)
        self.here: dict[str, optuna.Trial] = {}
        self.error: BaseException | None = None

    def start(self) -> None:
        trial = self.study.ask()
        name = f"optuna-{trial.number}"
        self.here[name] = trial
        self.group.submit(_run, (self.objective, trial.number), budget=self.budget, name=name)

    def event(self, timeout: float | None) -> None:
        try:
            one, *asked = self.events.get(timeout=timeout)
        except queue.Empty:
            self.group._alive()
            return
        if not asked:
            self.end(one)
        elif one.name in self.here:
            number, question = asked
            try:
                answer = _answer(self.study, self.here[one.name], question)
                self.group.answer(one, number, {"said": answer})
            except Exception as error:
                # As it would have been raised in the objective.
                self.group.answer(one, number, {"raised": type(error).__name__, "text": str(error)})

    def end(self, one: GroupTrial) -> None:
        trial = self.here.pop(one.name)
        kind, said = one.value if one.state == "ended" else ("raised", TrialLost(one.error or one.state))
        if kind == "value":
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                frozen = self.study.tell(trial, said)
        else:
            frozen = self.study.tell(trial, state=TrialState.PRUNED if kind == "pruned" else TrialState.FAIL)
        if frozen.state == TrialState.COMPLETE:
            _logger.info(f"Trial {frozen.number} finished with {frozen.values} and parameters: {frozen.params}.")
        elif frozen.state == TrialState.PRUNED:
            _logger.info(f"Trial {frozen.number} pruned. {said}")
        else:
            _logger.warning(f"Trial {frozen.number} failed with parameters {frozen.params}: {said!r}")
        if kind == "raised" and not isinstance(said, (TrialLost, *self.catch)):
            self.error = self.error or said
            return
        for callback in self.callbacks:
            callback(self.study, frozen)

    def close(self) -> None:
        self.group.close()
        for trial in self.here.values():
            self.study.tell(trial, state=TrialState.FAIL)
        self.here.clear()


def optimize(study: optuna.Study, objective: Callable[[Any], Any], n_trials: int | None = None,
             timeout: float | None = None, n_jobs: int | None = None, catch: Any = (),
             callbacks: Iterable[Callable[[optuna.Study, FrozenTrial], None]] | None = None, *,
             budget: float | None = None, **options: Any) -> None:
    """As `study.optimize`: the objective runs in processes, on the devices and with the widths that the planner gives.

    `n_jobs`: trials at a time at most; -1: as many as there are devices; left out, as many as the planner can run with a
    gain. `budget`: how often a
    trial reports, where that is known. `options`: of `TrialGroup` (`devices`, `retries`, `hang_after`, `policy`, ...).
    A trial whose process is lost for good is failed, and the study goes on. What an objective raises and `catch` does not
    have, `sys.exit` too, fails its trial and is raised here; trials that are under way then are ended, and failed.
    """
    if not isinstance(study, optuna.Study):
        raise TypeError(f"study is {study!r}; it must be an optuna.Study")
    if n_trials is not None and not isinstance(n_trials, Integral):
        raise ValueError(f"n_trials is {n_trials!r}; it must be a whole number, or None")
    if n_jobs is not None and (not isinstance(n_jobs, Integral) or (n_jobs < 1 and n_jobs != -1)):
        raise ValueError(f"n_jobs is {n_jobs!r}; it must be a whole number from 1 on, -1, or None")
    if timeout is not None and math.isnan(timeout):
        raise ValueError(f"timeout is {timeout}; it must be a number of seconds, or None")
    if study._thread_local.in_optimize_loop:
        raise RuntimeError("a study is optimized within its own optimization")
    caught = tuple(catch) if isinstance(catch, Iterable) else (catch,)
    started, end = 0, None if timeout is None else time.monotonic() + timeout
    loop = _Loop(study, objective, caught, list(callbacks or ()), budget, options)
    most = len(loop.group.devices) if n_jobs == -1 else n_jobs
    study._stop_flag = False
    study._thread_local.in_optimize_loop = True  # so that study.stop() may be called
    try:
        while True:
            may = (not study._stop_flag and loop.error is None and (n_trials is None or started < n_trials)
                   and (end is None or time.monotonic() < end))
            if may and len(loop.here) < (most or max(1, loop.group.appetite())):
                loop.start()
                started += 1
            elif loop.here:
                loop.event(timeout=1.0)
            else:
                break
    finally:
        study._thread_local.in_optimize_loop = False
        loop.close()
    if loop.error is not None:
        raise loop.error
