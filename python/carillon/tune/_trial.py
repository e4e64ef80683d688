"""In a trial's process: it asks for its turn before it trains, and heeds orders between iterations."""

from __future__ import annotations

import functools
import os
import socket
import sys
import threading
import time
from typing import Any

from .. import _import_hook

TELL_EVERY = 1.0  # seconds: as a sign of life

_client: _Client | None = None
_runs: list[Any] = []  # Ray Train's controllers that this process has started
_TO_ABORT = 10.0  # seconds


class _Client:
    """`begin` and `end` come from the thread that serves Ray, `boundary` from those that train, which may be others."""

    def __init__(self, path: str) -> None:
        self._socket: socket.socket | None = socket.socket(socket.AF_UNIX)
        self._socket.connect(path)
        self._trial = ""
        self._unread = b""
        self._within = False
        self._granted = self._width = 0  # threads: as the broker last said; as they are now
        self._widened = (0, 0)           # the thread whose number of threads was set, and to what
        self._iterations = 0             # since the broker was last told, and when that was
        self._since = 0.0
        self._turns = 0                  # iterations of this report
        self._has_actors = False         # they compute where Ray puts them: the trial takes no turns
        self._one_at_a_time = threading.RLock()  # whoever waits for an order must be the one to hear it

    def begin(self, trial: str) -> None:
        with self._one_at_a_time:
            if trial != self._trial:
                self._trial, self._has_actors = trial, False
                self._say(f"hello {trial} {os.getpid()}")
            if self._has_actors:
                return
            self._say("want")
            self._wait()
            self._apply_width()
            self._iterations, self._since, self._within = 0, time.monotonic(), True
            self._turns = 0

    def end(self) -> None:
        with self._one_at_a_time:
            if not self._within:
                return
            self._within = False
            if not self._turns:  # no optimizer says where an iteration ends: what is reported is one
                self._iterations = 1
            self._tell()
            self._say("rest")

    def starts_actor(self) -> None:
        with self._one_at_a_time:
            if not self._has_actors:
                self._has_actors, self._within = True, False
                self._say("actors")

    def boundary(self) -> None:
        with self._one_at_a_time:
            if self._within:
                self._boundary()

    def leave(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _boundary(self) -> None:
        self._iterations += 1
        self._turns += 1
        heard = self._heard(block=False)
        if heard or time.monotonic() - self._since >= TELL_EVERY:
            self._tell()
        if heard and heard[-1] == "hold":
            self._say("held")
            self._wait()
            self._since = time.monotonic()
        self._apply_width()

    def _tell(self) -> None:
        now = time.monotonic()
        if self._iterations:
            self._say(f"did {self._width} {self._iterations} {now - self._since:.6f}")
        self._iterations, self._since = 0, now

    def _apply_width(self) -> None:
        self._width = self._granted
        torch = sys.modules.get("torch")
        # OpenMP keeps this number for each thread by itself.
        widened = (threading.get_ident(), self._width)
        if self._width and torch is not None and self._widened != widened:
            torch.set_num_threads(self._width)
            self._widened = widened

    def _wait(self) -> None:
        while self._socket is not None:
            if any(word == "go" for word in self._heard(block=True)):
                break

    def _heard(self, block: bool) -> list[str]:
        if self._socket is None:
            return []
        try:
            data = self._socket.recv(4096, 0 if block else socket.MSG_DONTWAIT)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if not data:
            self._alone()
            return []
        *lines, self._unread = (self._unread + data).split(b"\n")
        heard = []
        for line in lines:
            word, _, text = line.decode().partition(" ")
            if word == "go":
                self._granted = int(text)
            self._note(word, text)
            heard.append(word)
        return heard

    def _note(self, word: str, text: str) -> None:
        """For words of other drivers."""

    def _say(self, text: str) -> None:
        if self._socket is None:
            return
        try:
            self._socket.sendall(text.encode() + b"\n")
        except OSError:
            self._alone()

    def _alone(self) -> None:
        """The broker is gone: the trial goes on as if there had been none."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
            print("carillon: the broker of this study is gone; the trial goes on without turns", file=sys.stderr)


def _after_step(optimizer: Any, args: Any, kwargs: Any) -> None:
    if _client is not None:
        _client.boundary()


def _watch(torch: Any) -> None:
    from torch.optim import optimizer  # torch.optim has removed the name

    optimizer.register_optimizer_step_post_hook(_after_step)


def _watch_actors(actor: Any) -> None:
    created = actor.ActorClass._remote

    @functools.wraps(created)
    def _remote(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _client is not None:
            _client.starts_actor()
        handle = created(self, *args, **kwargs)
        made = self.__ray_metadata__.modified_class
        if (made.__module__.startswith("ray.train."), made.__name__) == (True, "TrainController"):
            _runs.append(handle)
        return handle

    actor.ActorClass._remote = _remote


def connect(path: str) -> None:
    """Once in a process, before the trial is set up."""
    if _client is not None:
        return
    # Of a process that was forked, libraries were loaded before Ray said how many threads the trial may have.
    if "torch" in sys.modules and os.environ.get("OMP_NUM_THREADS", "").isdigit():
        sys.modules["torch"].set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    try:
        client = _Client(path)
    except OSError as error:
        print(f"carillon: no broker at {path} ({error.strerror}); the trial runs without turns", file=sys.stderr)
        return
    enter(client)
    _import_hook.after_import("ray.actor", _watch_actors)


def enter(client: _Client) -> None:
    """As `connect`, with a connection that another driver made."""
    global _client
    _client = client
    os.register_at_fork(after_in_child=_forget)
    _import_hook.after_import("torch", _watch)


def _forget() -> None:
    """A process that a trial forks, such as one that loads data, is no trial: what it said would be the trial's."""
    global _client
    if _client is not None:
        _client.leave()
    _client = None


def begin(trial: str) -> None:
    if _client is not None:
        _client.begin(trial)


def end() -> None:
    if _client is not None:
        _client.end()


def abort_runs() -> None:
    """Ends what Ray Train has begun. A controller that ends with its trial instead leaves its placement group, unless Ray's
    dashboard runs."""
    if _runs:
        import ray

        ray.wait([run.abort.remote() for run in _runs], num_returns=len(_runs), timeout=_TO_ABORT)
        _runs.clear()


# Ray sends this class by value, with copies of the globals that it names: it names functions alone.
def with_turns(trainable: type, path: str) -> type:
    """`trainable`, a class of Ray Tune (of a function, too), each of whose `train` waits for its turn."""

    class WithTurns(trainable):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            connect(path)
            super().__init__(*args, **kwargs)

        def train(self) -> Any:
            begin(self.trial_id)
            try:
                return super().train()
            finally:
                end()

        def stop(self) -> None:
            try:
                super().stop()
            finally:
                abort_runs()

    WithTurns.__name__, WithTurns.__qualname__ = trainable.__name__, trainable.__qualname__
    return WithTurns
