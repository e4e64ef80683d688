"""`TrialGroup`: trials of a plain script as processes on this host's devices, under the planner (docs/fluid-scripts.md)."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import queue
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing import forkserver, resource_tracker, util
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

from .. import _threads
from . import _hangs, _job, _process, _processors
from ._broker import Broker, Driver
from ._folders import Folder
from .core import MOST_DEVICES, MOST_TRIALS, Model, Trial, Tuning
from .planned import Asked, End, Planned, Refused, Start

_FILES = 1 << 16   # open ones that this process may have: a trial's process takes three
_TO_START = 120.0  # seconds that a process may take until it says something, where `hang_after` is less
_TO_END = 10.0     # and from its result, or the end of its connection, until it is gone
_SITE = Path(__file__).resolve().parent.parent / "_site"
# A command, of whatever language, ends with its driver.
_BOUND = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.execvp(sys.argv[1], sys.argv[1:])"
_REASONS = {"too_large": "no device has the memory that it asks for",
            "too_many": f"there are {MOST_TRIALS} trials already"}

Work = Callable[[Any], Any] | Sequence[str]


@dataclass(eq=False)
class GroupTrial:
    """A trial of a TrialGroup. `state` is waiting, running or paused; then, once, ended, failed, stopped or refused."""

    name: str
    config: Any
    folder: Path
    state: str = "waiting"
    reports: list[dict[str, Any]] = field(default_factory=list)
    value: Any = None             # what its function returned; of a script its exit code
    error: str = ""               # why it failed, or was refused
    traceback: str = ""
    attempts: int = 0             # processes that were started because the last one was lost, and the first
    _group: TrialGroup | None = field(default=None, repr=False)
    _asked: Asked = field(default_factory=lambda: Asked(""), repr=False)
    _work: bytes | list[str] = field(default=b"", repr=False)
    _kept: int = field(default=0, repr=False)     # reports that its checkpoint has
    _over: bool = field(default=False, repr=False)
    _running: _Running | None = field(default=None, repr=False)
    _devices: tuple[int, ...] | None = field(default=None, repr=False)  # where it starts once its process is gone

    @property
    def is_over(self) -> bool:
        return self._over

    def stop(self) -> None:
        """It is wanted no more: it ends at its next boundary, as stopped."""
        self._own()._post(lambda: self._own()._stop(self))

    def pause(self) -> None:
        """It stands still at its next boundary, and keeps its memory."""
        self._own()._post(lambda: self._own()._pause(self))

    def resume(self, budget: float | None = None) -> None:
        """A paused trial goes on; `budget`: reports that it is to make more."""
        _check(budget=budget)
        self._own()._post(lambda: self._own()._resume(self, budget))

    def _own(self) -> TrialGroup:
        assert self._group is not None
        return self._group


class _Running:
    """A trial's process, from its start until it is gone."""

    def __init__(self, handle: Any, pid: int, sentinel: int, now: float) -> None:
        self.handle, self.pid, self.sentinel = handle, pid, sentinel
        self.heard = now
        self.connected = False
        self.result: tuple[str, Any] | None = None
        self.unwanted = False      # it was told to end by the planner
        self.stopping = False      # it was told to end by who submitted it
        self.killed = ""           # why
        self.leaving: float | None = None

    def kill(self) -> None:
        for kill in (os.killpg, os.kill):
            try:
                kill(self.pid, signal.SIGKILL)
                return
            except ProcessLookupError:
                continue  # it has not made its own group yet

    def kill_children(self) -> None:
        """Once it has ended: those that it left."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass

    def reap(self) -> int:
        if isinstance(self.handle, subprocess.Popen):
            os.close(self.sentinel)
            return self.handle.wait()
        self.handle.join()
        code = self.handle.exitcode
        self.handle.close()
        return code if code is not None else 1


def _check(**numbers: float | None) -> None:
    """By the planner's own constructor, so that there is one rule."""
    Trial(0, **numbers)  # type: ignore[arg-type]


def _devices(devices: int | str | Sequence[int]) -> tuple[list[int], bool]:
    """Their numbers, and whether they are GPUs."""
    if devices == "cuda":
        torch = sys.modules.get("torch")
        if torch is not None:
            count = torch.cuda.device_count()
        else:
            said = shutil.which("nvidia-smi") and subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True)
            count = len(re.findall(r"^GPU \d+:", said.stdout, re.M)) if said else 0
            if (visible := _all_visible()) is not None:  # nvidia-smi tells of the others, too
                count = min(count, len(visible))
        if not count:
            raise ValueError("devices is 'cuda', but there is no GPU here")
        return list(range(count)), True
    if isinstance(devices, str):
        raise ValueError(f"devices is {devices!r}; it must be a number of processors, 'cuda', or a list of GPUs")
    if isinstance(devices, int):
        if not 1 <= devices <= MOST_DEVICES:
            raise ValueError(f"devices is {devices}; it must be from 1 to {MOST_DEVICES}")
        return list(range(devices)), False
    numbers = list(devices)
    if not numbers or len(set(numbers)) != len(numbers) or any(not isinstance(n, int) or n < 0 for n in numbers):
        raise ValueError(f"devices is {numbers}; a list names GPUs, each once, as 0, 1, ...")
    visible = _all_visible()
    if visible is not None and max(numbers) >= len(visible):
        raise ValueError(f"devices is {numbers}, and there is no GPU {max(numbers)}: this process may use {len(visible)}, counted "
                         f"from 0 (CUDA_VISIBLE_DEVICES is {os.environ['CUDA_VISIBLE_DEVICES']!r})")
    return numbers, True


def _all_visible() -> list[str] | None:
    """The GPUs that this process may use, by number or UUID; None: all."""
    said = os.environ.get("CUDA_VISIBLE_DEVICES")
    if said is None:
        return None
    names = [name.strip() for name in said.split(",")]
    end = next((i for i, name in enumerate(names) if name in ("", "-1")), len(names))  # CUDA reads no further
    return names[:end]


def _visible(number: int) -> str:
    """A GPU's name for a trial's process: this process counts those that it may use."""
    visible = _all_visible()
    return str(number) if visible is None else visible[number]


class TrialGroup(Driver):
    """Runs trials as processes of this host. Long ones spread over its processors, short ones share them.

        def train(config):
            for epoch in range(9):
                ...
                carillon.tune.report(loss, checkpoint=model.state_dict())

        with TrialGroup() as group:
            trials = group.map(train, [{"lr": lr} for lr in (0.1, 0.01)], budget=9)
        print(min(trials, key=lambda trial: trial.reports[-1]["metric"]).config)

    `devices`: so many processors (default: those that this process may use, a container's quota rounded up), "cuda" for
    all GPUs, or a list of GPUs.
    `retries`: how often a trial begins again, from its last checkpoint, whose process was killed, hung, or had not
    enough memory. `hang_after`: seconds in which a running trial must reach a boundary (default: no bound). `folder`:
    where checkpoints are, and stay; left out, they go with the group. `memory`: of each device, in bytes. `policy` and
    the other options: as `core.Tuning` has them.

    The end of the `with` waits for all trials but paused ones; an exception ends them.
    """

    def __init__(self, devices: int | str | Sequence[int] | None = None, *, policy: str = "best", retries: int = 1,
                 hang_after: float | None = None, folder: str | os.PathLike[str] | None = None,
                 memory: int | None = None, quantum: float = 0.5,
                 on_ask: Callable[[GroupTrial, int, Any], None] | None = None,
                 on_end: Callable[[GroupTrial], None] | None = None, **options: Any) -> None:
        if getattr(multiprocessing.current_process(), "_inheriting", False):
            raise RuntimeError("a TrialGroup begins while its script is imported for a trial's process: put it under "
                               "`if __name__ == \"__main__\":`")
        if not isinstance(retries, int) or retries < 0:
            raise ValueError(f"retries is {retries!r}; it must be a whole number from 0 on")
        _hangs.checked(hang_after)
        here = _processors.usable() if devices is None else _processors.Processors(0, 1.0)
        self._numbers, self._on_gpus = _devices(here.count if devices is None else devices)
        if self._on_gpus:
            options.setdefault("d", 1)  # a process is on one GPU
        else:
            # A width is a number of threads, which costs next to nothing to change. Trials that take turns on a
            # processor get no more done than one after the other: to find that out by measuring costs time.
            options.setdefault("move", 0.001)
            options.setdefault("c", 1)
        tuning = Tuning(policy, **options)
        # On a GPU those who share it compute at the same time.
        self._planned = Planned(tuning, takes_turns=not self._on_gpus, quantum=quantum, moves=not self._on_gpus,
                                share=here.supply)
        self._retries, self._hang_after = retries, hang_after
        self._on_ask, self._on_end = on_ask, on_end  # for tuners; in the broker's thread
        self._trials: dict[str, GroupTrial] = {}
        self._processes: dict[str, GroupTrial] = {}
        self._changed = threading.Condition()
        self._ended: queue.SimpleQueue[GroupTrial] = queue.SimpleQueue()
        self._error: BaseException | None = None
        self._closed = False
        self._done = threading.Event()  # after `close`: no trial is left
        self._groups = 0
        now = time.monotonic()
        for number in self._numbers:
            self._planned.device_came(number, now, memory=memory)
        self._quota = here.supply
        _job.join()
        _allow_files()
        self._own_folder = Folder("trials") if folder is None else None
        self.folder = Path(self._own_folder.path if self._own_folder else folder).absolute()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._context = multiprocessing.get_context("forkserver")
        try:
            self._broker = Broker(self._planned, self, hang_after=hang_after)
        except OSError:
            if self._own_folder:
                self._own_folder.remove()
            raise
        _job.watch(self._has_share)

    # --- For who submits trials

    def submit(self, work: Work, config: Any = None, *, budget: float | None = None, iteration: float | None = None,
               persistent: int = 0, ephemeral: int = 0, priority: float = 1.0, name: str | None = None,
               folder: str | os.PathLike[str] | None = None) -> GroupTrial:
        """A trial: `work(config)` in a process of its own, or a command, such as ["python", "train.py"].

        `budget`: reports that it is to make; left out, not known. `iteration`: seconds of one of them, where that is
        known. `persistent` and `ephemeral`: memory on its device, in bytes. `folder`: of its checkpoint, and of what a
        command prints (out.txt, err.txt); left out, one of its name. A command has its config in its words.
        """
        (trial,) = self.map(work, [config], budget=budget, iteration=iteration, persistent=persistent,
                            ephemeral=ephemeral, priority=priority, names=None if name is None else [name],
                            folders=None if folder is None else [Path(folder).absolute()])
        return trial

    def map(self, work: Work, configs: Iterable[Any], *, budget: float | Sequence[float] | None = None,
            iteration: float | None = None, persistent: int = 0, ephemeral: int = 0, priority: float = 1.0,
            names: Sequence[str] | None = None, folders: Sequence[Path] | None = None) -> list[GroupTrial]:
        """A trial for each config, whose results are wanted together; `budget` may be a list, one for each."""
        self._alive()
        configs = list(configs)
        if not configs:
            raise ValueError("configs is empty; a group has at least one trial")
        budgets = list(budget) if isinstance(budget, Sequence) else [budget] * len(configs)
        if len(budgets) != len(configs):
            raise ValueError(f"budget has {len(budgets)} entries for {len(configs)} configs")
        if names is not None and len(names) != len(configs):
            raise ValueError(f"names has {len(names)} entries for {len(configs)} configs")
        for one in budgets:
            _check(budget=one, iteration=iteration, persistent=persistent, ephemeral=ephemeral, priority=priority)
        works = [_packed(work, config) for config in configs]
        # Other threads submit, too: a tuner does so within `on_end`.
        with self._changed:
            self._alive()
            fresh: dict[str, GroupTrial] = {}
            for i, config in enumerate(configs):
                name = names[i] if names is not None else self._free_name(i, fresh)
                if not re.fullmatch(r"[A-Za-z0-9_.-]{1,128}", name) or name in (".", ".."):
                    raise ValueError(f"name is {name!r}; it must be of letters, digits, '_', '.' and '-'")
                if name in self._trials or name in fresh:
                    raise ValueError(f"name {name!r} is another trial's")
                asked = Asked(name, budgets[i], iteration, persistent, ephemeral, priority)
                folder = self.folder / name if folders is None else folders[i]
                fresh[name] = GroupTrial(name, config, folder, _group=self, _asked=asked, _work=works[i])
            self._trials.update(fresh)
            number, self._groups = self._groups, self._groups + 1
            asks = [trial._asked for trial in fresh.values()]
            self._post(lambda: self._broker.send(self._planned.came(asks, time.monotonic(), number)))
        return list(fresh.values())

    def _free_name(self, i: int, taken: dict[str, GroupTrial]) -> str:
        number = len(self._trials) + i
        while f"trial-{number}" in self._trials or f"trial-{number}" in taken:
            number += 1
        return f"trial-{number}"

    @property
    def devices(self) -> list[int]:
        """Their numbers."""
        return list(self._numbers)

    @property
    def trials(self) -> list[GroupTrial]:
        return list(self._trials.values())

    def wait(self, trials: Iterable[GroupTrial] | None = None, timeout: float | None = None) -> bool:
        """Until these, or all, are over; whether they are."""
        self._not_within("wait")
        wanted = list(self._trials.values() if trials is None else trials)
        with self._changed:
            done = self._changed.wait_for(lambda: self._error or all(trial._over for trial in wanted), timeout)
            self._alive()
            return bool(done)

    def as_ended(self) -> Iterator[GroupTrial]:
        """Trials, each once in a group, as they end; those that are submitted meanwhile, too. Paused ones are not
        waited for."""
        self._not_within("as_ended")
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._error or not self._ended.empty() or all(
                    trial._over or trial.state == "paused" for trial in self.trials))
                if self._ended.empty():
                    self._alive()
                    return
                self._alive()
                ended = self._ended.get()
            yield ended

    def answer(self, trial: GroupTrial, number: int, answer: Any) -> None:
        """What `on_ask` was asked. From any thread."""
        text = _process.to_json(answer)

        def say() -> None:
            self._broker.say(trial.name, f"answer {number} {text}")
            self._broker.hanging.answered(trial.name, self._broker.awake())

        self._post(say)

    def widths(self) -> dict[str, int]:
        """Who computes now, with how many threads."""
        return self._planned.running()

    def set_device(self, device: int, *, speed: float = 1.0, supply: float = 1.0, memory: int | None = None) -> None:
        """What there is of a device for trials from now on; with a `supply` of 0 its trials stand still."""
        if device not in self._numbers:
            raise ValueError(f"device is {device!r}; this group has {self._numbers}")
        checked = Tuning()
        checked.device_came(0, 0.0, speed=speed, supply=supply, memory=memory)
        self._post(lambda: self._broker.send(self._planned.device_changed(
            device, time.monotonic(), speed=speed, supply=supply, memory=memory)))

    def model(self) -> Model:
        """What sharing and spreading cost these trials, as measured so far."""
        return self._planned.tuning.model()

    def appetite(self) -> int:
        """How many trials a tuner that may choose should have going."""
        return self._planned.tuning.appetite()

    def close(self) -> None:
        """Ends all trials that are not over, and the group. Within `on_end` or `on_ask`: once that has returned."""
        within = self._broker.is_own_thread()
        with self._changed:
            first, self._closed = not self._closed, True
        if first:
            self._post(lambda: self._end_all(within))
        if within:
            return
        while not self._done.wait(0.1) and self._error is None:
            pass
        self._leave()

    def _has_share(self, share: float) -> None:
        """This process is a job, which had so much of its devices' time lately: others, or requests, had the rest."""
        self._post(lambda: self._broker.send(self._planned.shares(self._quota * share, time.monotonic())))

    def _leave(self) -> None:
        _job.unwatch(self._has_share)
        self._broker.close()
        if self._own_folder:
            self._own_folder.remove()

    def __enter__(self) -> TrialGroup:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: Any) -> None:
        try:
            if kind is None and not self._broker.is_own_thread():
                with self._changed:
                    # Also for processes that have told their result and do what is left to do.
                    self._changed.wait_for(lambda: self._error or all(
                        trial._over and trial._running is None or trial.state == "paused" for trial in self.trials))
                if not self._closed:
                    self._alive()
        finally:
            self.close()

    # --- The broker's thread

    def heard(self, trial: str, word: str, text: str) -> bool:
        one = self._trials.get(trial)
        running = one._running if one is not None else None
        if one is None or running is None:
            return False
        first, _, rest = text.partition(" ")
        kept, _, metrics = rest.partition(" ")
        try:
            said = json.loads(metrics if word == "report" else rest)
            number = int(first) if word in ("report", "ask") else 0
        except (ValueError, RecursionError):
            return False
        if word == "report" and isinstance(said, dict):
            if not 1 <= number <= len(one.reports) + 1:
                return False
            self._report(one, number, kept == "1", said)
        elif word == "ask":
            if self._on_ask is None:
                return False
            self._broker.hanging.asks(trial)
            self._on_ask(one, number, said)
        elif word == "result" and running.result is None:
            if first not in ("value", "stopped", "failed") or (first == "failed" and not _is_failure(said)):
                return False
            running.result = (first, said)
            running.leaving = self._broker.awake() + _TO_END
            if not self._on_gpus:
                self._result(one, running)  # who is next need not wait for the process's end
        else:
            return False
        return True

    def sign_of_life(self, trial: str) -> None:
        one = self._trials.get(trial)
        if one is not None and one._running is not None:
            one._running.heard, one._running.connected = self._broker.awake(), True

    def left(self, trial: str) -> None:
        one = self._trials.get(trial)
        if one is not None and one._running is not None and one._running.leaving is None:
            one._running.leaving = self._broker.awake() + _TO_END

    def hangs(self, trial: str, pid: int, silent: float) -> None:
        one = self._trials.get(trial)
        if one is not None and one._running is not None and one._running.leaving is None:
            self._kill(one._running, f"it reached no boundary for {silent:.1f} s")

    def _kill(self, running: _Running, why: str) -> None:
        running.killed = why
        running.leaving = self._broker.awake() + _TO_END
        running.kill()

    def broke(self, error: BaseException) -> None:
        self._error = error
        for trial in self._live():
            if trial._running is not None:
                trial._running.kill()
        with self._changed:
            self._changed.notify_all()

    def carry(self, order: Any) -> None:
        trial = self._trials[order.trial]
        if isinstance(order, Start):
            if trial._running is None:
                self._start(trial, order.devices)
            else:
                trial._devices = order.devices
        elif isinstance(order, End):
            if trial._running is not None:
                trial._running.unwanted = True
                trial._running.kill()
        elif isinstance(order, Refused):
            trial.error = _REASONS.get(order.reason, order.reason)
            self._over(trial, "refused")

    def next_tick(self) -> float | None:
        limits = [limit for trial in self._live() for limit in [self._limit(trial)] if limit is not None]
        return min(limits, default=None)

    def tick(self, now: float) -> None:
        for trial in self._live():
            limit = self._limit(trial)
            running = trial._running
            if limit is None or now < limit or running is None:
                continue
            if running.leaving is None:
                self._kill(running, f"it said nothing within {now - running.heard:.1f} s of its start")
            elif running.result is None and not running.killed and not running.stopping:
                self._kill(running, f"it said no more, and did not end within {_TO_END:.0f} s")
            else:
                self._kill(running, running.killed)

    def _live(self) -> list[GroupTrial]:
        return list(self._processes.values())

    def _limit(self, trial: GroupTrial) -> float | None:
        """When its process must have begun to speak, or have ended. (Between these the broker sees whether it hangs.)"""
        running = trial._running
        if running is None:
            return None
        if running.leaving is not None:
            return running.leaving
        if self._hang_after is None or running.connected:
            return None
        return running.heard + max(self._hang_after, _TO_START)

    def _start(self, trial: GroupTrial, devices: tuple[int, ...]) -> None:
        trial._devices = None
        if self._closed:
            return
        environment = {"CUDA_VISIBLE_DEVICES": ",".join(map(_visible, devices))} if self._on_gpus else {}
        now = self._broker.awake()
        try:
            trial.folder.mkdir(parents=True, exist_ok=True)
            if not trial.attempts:  # what another study left in this folder is not this trial's
                for left in (_process.CHECKPOINT, _process.VALUE):
                    (trial.folder / left).unlink(missing_ok=True)
            trial._running = (self._start_function if isinstance(trial._work, bytes) else self._start_script)(
                trial, environment, now)
        except Exception as error:  # of a command's words and of how Python starts processes anything may come
            trial.error = f"its process does not start: {error}"
            self._broker.send(self._planned.ended(trial.name, time.monotonic()))
            self._over(trial, "failed")
            return
        self._processes[trial.name] = trial
        trial.attempts = trial.attempts or 1
        trial.state = "running"
        self._broker.watch(trial._running.sentinel, lambda: self._exited(trial))

    def _start_function(self, trial: GroupTrial, environment: dict[str, str], now: float) -> _Running:
        _ready(self._context)
        process = self._context.Process(target=_process.main, name=trial.name, args=(
            self._broker.path, trial.name, str(trial.folder), environment, trial._work))
        process.start()
        return _Running(process, process.pid or 0, process.sentinel, now)

    def _start_script(self, trial: GroupTrial, environment: dict[str, str], now: float) -> _Running:
        if shutil.which(trial._work[0]) is None:
            raise FileNotFoundError(f"there is no program {trial._work[0]!r}")
        path = os.pathsep.join([str(_SITE), *filter(None, [os.environ.get("PYTHONPATH")])])
        own = {_process.SOCKET: self._broker.path, _process.TRIAL: trial.name, _process.FOLDER: str(trial.folder)}
        with open(trial.folder / "out.txt", "ab") as out, open(trial.folder / "err.txt", "ab") as err:
            process = subprocess.Popen([sys.executable, "-ISc", _BOUND, *trial._work], stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                                       start_new_session=True,
                                       env=_quiet(os.environ) | environment | own | {"PYTHONPATH": path})
        try:
            sentinel = os.pidfd_open(process.pid)
        except OSError:  # there are too many open files: nobody would hear of its end
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
        return _Running(process, process.pid, sentinel, now)

    def _exited(self, trial: GroupTrial) -> None:
        running = trial._running
        if running is None:
            return  # it was killed at the group's end
        self._broker.hang_up(trial.name)
        running.kill_children()
        code = running.reap()
        if not running.connected:
            self._broker.send(self._planned.gone(trial.name, time.monotonic()))
        trial._running = None
        self._processes.pop(trial.name, None)
        if running.result is None and running.stopping and code <= 0:
            running.result = ("stopped", None)
        if running.result is None and isinstance(trial._work, list) and not running.unwanted and not running.killed:
            if code == 0:
                running.result = ("value", 0)
            elif code > 0:
                running.result = ("failed", {"error": f"it ended with code {code}", "traceback": _end_of(trial.folder / "err.txt"),
                                             "memory": False})
        if trial._over:
            pass
        elif running.result is not None:
            self._result(trial, running)
        elif not running.unwanted:
            why = running.killed or (f"its process was killed by signal {-code}" if code < 0 else
                                     f"its process ended with code {code}")
            self._lost(trial, why)
        else:
            self._back(trial)
            self._planned.back(trial.name, float(trial._kept))
        if trial._devices is not None and not trial._over:
            self._start(trial, trial._devices)
        with self._changed:
            self._changed.notify_all()

    def _lost(self, trial: GroupTrial, why: str) -> None:
        now = time.monotonic()
        trial._devices = None  # the planner says anew where it starts
        if self._closed or trial.attempts > self._retries:
            trial.error = why
            self._broker.send(self._planned.ended(trial.name, now))
            self._over(trial, "failed")
            return
        trial.attempts += 1
        self._back(trial)
        trial.error = why
        self._broker.send(self._planned.died(trial.name, now, retry=True, done=float(trial._kept)))

    def _back(self, trial: GroupTrial) -> None:
        """It is where its checkpoint is."""
        with self._changed:
            del trial.reports[trial._kept:]
            if trial.state != "paused":
                trial.state = "waiting"

    def _result(self, trial: GroupTrial, running: _Running) -> None:
        assert running.result is not None
        kind, said = running.result
        if kind == "failed" and said["memory"] and not running.stopping and trial.attempts <= self._retries:
            if trial._running is None:
                self._lost(trial, said["error"])
            else:
                running.result = None  # it begins again once this process is gone
                running.killed = said["error"]
            return
        if kind == "failed":
            trial.error, trial.traceback = said["error"], said["traceback"]
        elif kind == "value":
            try:
                trial.value = said if isinstance(trial._work, list) else pickle.loads(
                    (trial.folder / _process.VALUE).read_bytes())
                trial.error = ""
            except Exception as error:  # of what is unpickled anything may come
                kind, trial.error = "failed", f"its value cannot be read: {type(error).__name__}: {error}"
        self._broker.send(self._planned.ended(trial.name, time.monotonic()))
        self._over(trial, {"value": "ended"}.get(kind, kind))

    def _report(self, trial: GroupTrial, number: int, kept: bool, metrics: dict[str, Any]) -> None:
        known = len(trial.reports)
        with self._changed:
            trial.reports[number - 1:number] = [metrics]  # one that is said again is in its place
            if kept:
                trial._kept = number
            self._changed.notify_all()
        if number > known:
            self._broker.send(self._planned.reported(trial.name, time.monotonic()))

    def _stop(self, trial: GroupTrial) -> None:
        if trial._over:
            return
        if trial._running is None:
            self._broker.send(self._planned.ended(trial.name, time.monotonic()))
            self._over(trial, "stopped")
            return
        trial._running.stopping = True
        if not self._broker.say(trial.name, "stop"):
            trial._running.result = ("stopped", None)
            trial._running.kill()

    def _pause(self, trial: GroupTrial) -> None:
        if not trial._over and trial.state != "paused":
            with self._changed:
                trial.state = "paused"
                self._changed.notify_all()
            self._broker.send(self._planned.paused(trial.name, time.monotonic()))

    def _resume(self, trial: GroupTrial, budget: float | None) -> None:
        if trial._over or trial.state != "paused":
            return
        trial.state = "waiting" if trial._running is None else "running"
        trial._asked = Asked(trial.name, budget, trial._asked.iteration, trial._asked.persistent,
                             trial._asked.ephemeral, trial._asked.priority)
        self._broker.send(self._planned.came([trial._asked], time.monotonic()))

    def _over(self, trial: GroupTrial, state: str) -> None:
        with self._changed:
            if trial._over:
                return
            trial._over, trial.state = True, state
            self._ended.put(trial)
            self._changed.notify_all()
        if self._on_end is not None:
            self._on_end(trial)

    def _end_all(self, leave: bool) -> None:
        for trial in list(self._trials.values()):
            if not trial._over:
                self._broker.send(self._planned.ended(trial.name, time.monotonic()))
                self._over(trial, "stopped")
            if trial._running is not None:
                trial._running.kill()
        for trial in self._live():
            if trial._running is not None:
                trial._running.reap()
                trial._running = None
        self._processes.clear()
        with self._changed:
            self._changed.notify_all()
        if leave:
            self._leave()
        self._done.set()

    def _not_within(self, what: str) -> None:
        if self._broker.is_own_thread():
            raise RuntimeError(f"{what} within on_end or on_ask would wait for itself")

    def _post(self, call: Callable[[], Any]) -> None:
        self._broker.post(call)

    def _alive(self) -> None:
        if self._error is not None:
            raise RuntimeError(f"the thread of this group has ended: {self._error!r}") from self._error
        if self._closed:
            raise RuntimeError("this group is closed")


def _allow_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _end_of(file: Path) -> str:
    try:
        with open(file, "rb") as opened:
            opened.seek(max(0, opened.seek(0, os.SEEK_END) - 2000))
            return opened.read().decode(errors="replace")
    except OSError:  # the trial has removed it
        return ""


def _is_failure(said: Any) -> bool:
    return isinstance(said, dict) and all(isinstance(said.get(name), kind) for name, kind in (
        ("error", str), ("traceback", str), ("memory", bool)))


def _packed(work: Work, config: Any) -> bytes | list[str]:
    if isinstance(work, str):
        raise TypeError("work is a text; a command is a list of its words, such as ['python', 'train.py']")
    if isinstance(work, Sequence):
        words = [os.fspath(word) for word in work]
        if not words:
            raise ValueError("work is an empty command")
        return words
    if not callable(work):
        raise TypeError(f"work is {work!r}; it must be a function of a config, or a list of words")
    try:
        packed = bytes(ForkingPickler.dumps((work, config)))
    except Exception as error:  # of what is pickled anything may come
        raise TypeError(f"work and its config go to another process, and cannot be pickled (define the function at the "
                        f"top of a module): {error}") from None
    main = sys.modules["__main__"]
    file = getattr(main, "__file__", None)  # "<stdin>", which Python would import for any work, or None
    if main.__spec__ is None and (b"__main__" in packed if file is None else not os.path.isfile(file)):
        raise TypeError("work is a function, and this program has no file that a trial's process could import (a notebook, "
                        "standard input): define work and its config in a module, and run a file where there is no notebook")
    return packed


def _quiet(environment: Any) -> dict[str, str]:
    """A trial starts with one thread, and threads that wait do not spin in another trial's time."""
    return {"OMP_NUM_THREADS": "1"} | _threads.quiet(environment) | dict(environment)


_starting = threading.Lock()


def _ready(context: Any) -> None:
    """Processes are forked from one that has imported what this one has: a start takes milliseconds."""
    with _starting:
        if forkserver._forkserver._forkserver_pid is not None:  # type: ignore[attr-defined]
            return
        # torch imports the second of these with the first optimizer: a second or two of each trial.
        context.set_forkserver_preload(["__main__", f"{__package__}._unblock",
                                        *(["torch", "torch._dynamo"] if "torch" in sys.modules else [])])
        process = multiprocessing.current_process()
        if process._config.get("tempdir") is None:  # type: ignore[attr-defined]
            # For its socket. Python's own folder may have too long a path, and is left where a driver is killed.
            folder = Folder("forks", "listener-xxxxxxxx")
            process._config["tempdir"] = str(folder.path)  # type: ignore[attr-defined]
            util.Finalize(None, folder.remove, exitpriority=-100)
        before = dict(os.environ)
        os.environ.update({name: value for name, value in _quiet(before).items() if name not in before})
        resource_tracker.ensure_running()  # which unblocks the signal
        # It heeds no Ctrl-C once it has imported all, and must not end by one before.
        unblocked = signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            forkserver.ensure_running()
        finally:
            if unblocked:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
            for name in set(os.environ) - set(before):
                del os.environ[name]
