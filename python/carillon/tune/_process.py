"""In a process of a TrialGroup: its function runs here, reports, and asks the driver.

Besides the words of `_broker` a trial says `report N KEPT JSON` (KEPT: 1 with a checkpoint), `ask N JSON` and
`result KIND JSON` (`value`, `stopped`, `failed`); it hears `answer N JSON` and `stop`.
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
import pickle
import select
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from .. import _import_hook
from . import _trial
from ._broker import MOST_TEXT

SOCKET, TRIAL, FOLDER = "CARILLON_TUNE_SOCKET", "CARILLON_TUNE_TRIAL", "CARILLON_TUNE_FOLDER"
CHECKPOINT = "checkpoint.pkl"
VALUE = "value.pkl"
_DIE_WITH_PARENT = 1  # of prctl
_SHORT_WAIT = 0.1  # seconds that a trial keeps its device while it waits for its driver's answer
_MOST_SAID = MOST_TEXT - 128  # bytes of a report, beside the line's other words

_here: _Here | None = None


class Stopped(SystemExit):
    """The trial is wanted no more. Not to be caught: the process ends by it."""


def _plain(value: Any) -> Any:
    """Numbers of numpy and torch, for JSON."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if hasattr(value, "__float__"):
        return float(value)
    raise TypeError(f"{value!r} is no number, text or list")


def to_json(value: Any) -> str:
    return json.dumps(value, default=_plain, separators=(",", ":"))


def _bounded(what: str, text: str) -> str:
    """The driver drops a trial that says a longer line."""
    if len(text) > _MOST_SAID:
        raise ValueError(f"{what} is {len(text)} bytes as JSON; it must be at most {_MOST_SAID}")
    return text


class _Here(_trial._Client):
    def __init__(self, path: str, trial: str, folder: Path) -> None:
        super().__init__(path)
        self._name, self.folder = trial, folder
        self._stop = self._hold = self._went = False
        self._answers: dict[int, Any] = {}
        self._asked = 0
        self._in_report = 0  # iterations since the last report
        self._reports = 0
        self._unsaved: list[str] = []  # reports since the last checkpoint
        self.restored: Any = None

    def start(self) -> None:
        self.begin(self._name)
        self._heed()
        self.restored = self._restore()

    def _boundary(self) -> None:
        self._iterations += 1
        self._in_report += 1
        self._heard(block=False)
        now = time.monotonic()
        if self._stop or self._hold or self._went or now - self._since >= _trial.TELL_EVERY:
            self._tell()
        self._heed()

    def _heed(self) -> None:
        if self._stop:
            self._within = False
            raise Stopped(0)
        if self._hold:
            self._hold = False
            self._say("held")
            self._wait()
            self._since = time.monotonic()
            if self._stop:
                self._within = False
                raise Stopped(0)
        self._went = False
        self._apply_width()

    def _wait(self) -> None:
        while self._socket is not None and not self._stop:
            if "go" in self._heard(block=True):
                break

    def _note(self, word: str, text: str) -> None:
        if word == "hold":
            self._hold = True
        elif word == "go":
            self._hold, self._went = False, True
        elif word == "stop":
            self._stop = True
        elif word == "answer":
            number, _, said = text.partition(" ")
            self._answers[int(number)] = json.loads(said)

    def _alone(self) -> None:
        """The driver is gone, and nobody is left who would take a result."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
            print("carillon: the driver of these trials is gone; this one ends", file=sys.stderr)
            os._exit(1)

    def report(self, metrics: dict[str, Any], checkpoint: Any) -> None:
        with self._one_at_a_time:
            self._report(metrics, checkpoint)

    def _report(self, metrics: dict[str, Any], checkpoint: Any) -> None:
        text = to_json(metrics)
        texts = [*self._unsaved, text]
        if checkpoint is not None:
            self._save((self._reports + 1, texts, checkpoint))
            texts = []
        # Only now is it a report: one that cannot be saved was none.
        self._reports, self._unsaved = self._reports + 1, texts
        if not self._in_report:  # no optimizer says where an iteration ends
            self._iterations += 1
        self._tell()
        self._in_report = 0
        self._say(f"report {self._reports} {int(checkpoint is not None)} {text}")
        self._heard(block=False)
        self._heed()

    def _save(self, state: tuple[int, list[str], Any]) -> None:
        """What is killed, or fails, within leaves the last one."""
        path = self.folder / CHECKPOINT
        fresh = path.with_suffix(".new")
        try:
            with open(fresh, "wb") as file:
                pickle.dump(state, file)
            os.replace(fresh, path)
        except BaseException:
            fresh.unlink(missing_ok=True)
            raise

    def _restore(self) -> Any:
        try:
            with open(self.folder / CHECKPOINT, "rb") as file:
                self._reports, texts, checkpoint = pickle.load(file)
        except FileNotFoundError:
            return None
        # The process may have ended between the checkpoint and its report: the driver knows no report of this checkpoint.
        first = self._reports - len(texts) + 1
        for number, text in enumerate(texts, first):
            self._say(f"report {number} {int(number == self._reports)} {text}")
        return checkpoint

    def ask(self, question: Any) -> Any:
        """The driver's answer. Its time is not the trial's."""
        text = _bounded("what is asked of the driver", to_json(question))
        with self._one_at_a_time:
            return self._ask(text)

    def _ask(self, text: str) -> Any:
        asked, resting = time.monotonic(), False
        self._asked += 1
        self._say(f"ask {self._asked} {text}")
        while self._asked not in self._answers and self._socket is not None:
            if self._within and not resting and not select.select([self._socket], [], [], _SHORT_WAIT)[0]:
                resting = True
                self._since += time.monotonic() - asked
                self._tell()
                asked = time.monotonic()
                self._say("rest")  # others may compute meanwhile
            self._heard(block=True)
            if self._stop:
                self._heed()
        if resting:
            self._say("want")
            self._wait()
            self._heed()
        self._since += time.monotonic() - asked
        return self._answers.pop(self._asked)

    def finish(self, kind: str, text: str) -> None:
        self._within = False
        self._tell()
        self._say(f"result {kind} {text}")


def die_with_parent() -> None:
    """A driver that is killed leaves no trial behind."""
    try:
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    except (OSError, AttributeError):
        pass


def main(path: str, trial: str, folder: str, environment: dict[str, str], work: bytes) -> None:
    """A process's whole life. `work`: the function and its config, pickled."""
    os.setsid()  # so that it is killed with its own children
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver's, which ends the trials
    os.environ.update(environment)
    _reach(path, trial, folder)
    try:
        function, config = pickle.loads(work)
        _here.start()
        value = function(config)
        with open(_here.folder / VALUE, "wb") as file:
            pickle.dump(value, file)
        _here.finish("value", "null")
    except Stopped:
        _here.finish("stopped", "null")
    except BaseException as error:
        what = "".join(traceback.format_exception(error))
        short = f"{type(error).__name__}: {_text_of(error)}"
        _here.finish("failed", to_json({"error": short[:1000], "traceback": what[-20_000:],
                                        "memory": _is_of_memory(error)}))


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # it is somebody else's code
        return "its text cannot be made"


def _is_of_memory(error: BaseException) -> bool:
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"


def join_script() -> None:
    """A script's process: its name, and where its driver is, are in the environment."""
    path, trial, folder = (os.environ.pop(name, "") for name in (SOCKET, TRIAL, FOLDER))
    if _here is not None or not path:
        return
    die_with_parent()
    here = _reach(path, trial, folder)
    _import_hook.after_import("syne_tune.report", _watch_reporter)
    here.start()


def _reach(path: str, trial: str, folder: str) -> _Here:
    global _here
    try:
        _here = _Here(path, trial, Path(folder))
    except OSError as error:
        raise SystemExit(f"carillon: no driver of trials at {path} ({error.strerror})") from None
    _trial.enter(_here)
    os.register_at_fork(after_in_child=_forget)
    return _here


def _forget() -> None:
    """In a process that a trial forks: `_trial._forget`."""
    global _here
    _here = None


def _watch_reporter(module: Any) -> None:
    """A script of Syne Tune reports by what it prints; that is a boundary, too."""
    told = module.Reporter.__call__

    @functools.wraps(told)
    def __call__(self: Any, **metrics: Any) -> None:
        told(self, **metrics)
        report(**{name: value for name, value in metrics.items() if isinstance(value, (int, float, str))})

    module.Reporter.__call__ = __call__


# --- What a trial's code calls


def report(metric: float | None = None, *, checkpoint: Any = None, **metrics: Any) -> None:
    """An epoch ended, with these metrics; one that has no name is `metric`. A NaN is told as it is.

    `checkpoint`: whatever can be pickled. The trial finds it as `carillon.tune.checkpoint()` where its process has to
    begin again. Outside of a trial this does nothing.
    """
    if metric is not None:
        metrics = {"metric": metric} | metrics
    try:
        text = to_json(metrics)
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(f"report takes numbers, texts and lists of these: {error}") from None
    _bounded("a report", text)
    if _here is not None:
        _here.report(json.loads(text), checkpoint)


def checkpoint() -> Any:
    """What this trial last reported as its checkpoint, if its process was started again; else None."""
    return None if _here is None else _here.restored


def threads() -> int:
    """How many threads this trial may have until the next boundary: of torch they are set already."""
    return 1 if _here is None else max(1, _here._width)


def step() -> None:
    """An iteration ended, where no optimizer of torch says so: widths and turns may change here."""
    if _here is not None:
        _here.boundary()


def ask(question: Any) -> Any:
    if _here is None:
        raise RuntimeError("this process is no trial's")
    return _here.ask(question)
