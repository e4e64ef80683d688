"""One process that is started again when it ends, after a time that grows while it does not last."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

CHILD = Path(__file__).with_name("_child.py")
TOLD_BYTES = 4096  # of a log, from which its last lines are taken
MOST_LOG_BYTES = 64 << 20


class NotHere(Exception):
    """Why the process cannot be started on this machine as it is now."""


@dataclass(frozen=True)
class Backoff:
    """Seconds."""
    first: float = 0.2
    most: float = 15.0
    lasts: float = 10.0  # a process that ran for so long did not end because of how it was started


class Restarts:
    """When a process that has ended is started again. Pure."""

    def __init__(self, backoff: Backoff = Backoff()):
        self.backoff = backoff
        self.in_a_row = 0  # ends of processes that did not last

    def ended(self, ran: float) -> float:
        """Seconds from now, for a process that ran for `ran` seconds."""
        if ran >= self.backoff.lasts:
            self.in_a_row = 0
        self.in_a_row += 1
        return min(self.backoff.most, self.backoff.first * 2.0 ** min(self.in_a_row - 1, 30))


def last_lines(log: Path, count: int = 5) -> str:
    with contextlib.suppress(OSError), log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - TOLD_BYTES))
        return "\n".join(file.read().decode(errors="replace").splitlines()[-count:])
    return ""


def words_of(status: int) -> str:
    """Of a process's end."""
    if status >= 0:
        return f"ended with status {status}"
    try:
        return f"was ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"was ended by signal {-status}"


class Child:
    """The process, in a session and a process group of its own. The thread that makes a Child must outlive it."""

    def __init__(self, command: Sequence[str], log: Path, environment: dict[str, str] | None = None):
        with contextlib.suppress(OSError):
            if log.stat().st_size > MOST_LOG_BYTES:
                log.replace(log.with_suffix(".before.log"))
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(CHILD), str(os.getpid()), *command], stdin=subprocess.DEVNULL,
                stdout=out, stderr=out, start_new_session=True, env=environment)
        self.pid = self._process.pid
        self._lock, self._over = threading.Lock(), False

    def terminate(self) -> None:
        """SIGTERM to the process alone: it ends what it has started itself."""
        with self._lock, contextlib.suppress(ProcessLookupError):
            if not self._over:
                os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL to the process and all in its group."""
        with self._lock, contextlib.suppress(ProcessLookupError):
            if not self._over:
                os.killpg(self.pid, signal.SIGKILL)

    def wait(self) -> int:
        """Its status, once it has ended; what it left in its group is ended, too."""
        with contextlib.suppress(ChildProcessError):  # where SIGCHLD is ignored
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)  # its number stays taken until the group is gone
        self.kill()
        with self._lock:
            self._over = True
        return self._process.wait()


class Watcher:
    """The thread that starts the process, again and again, until stop().

    `command()`: what to start next; NotHere, where that cannot be now. `start` is Child but in tests.
    """

    def __init__(self, command: Callable[[], Sequence[str]], log: Path, restarts: Restarts | None = None,
                 start: Callable[[Sequence[str], Path], Child] = Child):
        self._command, self._log, self._start = command, log, start
        self._restarts = restarts or Restarts()
        self._lock = threading.Lock()
        self._child: Child | None = None
        self._stops = threading.Event()
        self._since = time.monotonic()  # of the state
        self._next = 0.0
        self._starts = 0
        self._why = ""       # the last process ended, or did not start
        self._not_here = False
        self._thread = threading.Thread(target=self._run, name="carillon-watcher", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stops.is_set():
            began = time.monotonic()
            why, lasting = self._once()
            now = time.monotonic()
            with self._lock:
                delay = self._restarts.ended(now - began)
                self._child, self._why, self._not_here = None, why, lasting
                self._since, self._next = now, now + delay
            self._stops.wait(delay)

    def _once(self) -> tuple[str, bool]:
        """Until the process has ended. Why, and whether this machine is to blame."""
        try:
            child = self._start(self._command(), self._log)
        except NotHere as error:
            return str(error), True
        except Exception as error:  # the thread must go on
            return f"could not be started: {error}", False
        with self._lock:
            self._child, self._since, self._not_here = child, time.monotonic(), False
            self._starts += 1
        if self._stops.is_set():
            child.terminate()  # stop() may have come before there was a child
        status = child.wait()
        said = last_lines(self._log)
        return words_of(status) + (f"; its log ends: {said}" if said else ""), False

    def status(self) -> dict:
        now = time.monotonic()
        with self._lock:
            child = self._child
            return {"state": "stops" if self._stops.is_set() else "runs" if child else "waits",
                    "pid": child.pid if child else None,
                    "seconds": round(now - self._since, 1),
                    "starts_in": None if child or self._stops.is_set() else round(max(0.0, self._next - now), 1),
                    "starts": self._starts,
                    "short_runs": self._restarts.in_a_row,  # as of the last end
                    "why": self._why, "not_here": self._not_here,
                    "log": str(self._log)}

    def stop(self, patience: float) -> None:
        """SIGTERM, and SIGKILL after `patience` seconds. Returns when nothing is left of the process."""
        self._stops.set()
        with self._lock:
            child = self._child
        if child:
            child.terminate()
        self._thread.join(patience)
        while self._thread.is_alive():
            with self._lock:
                child = self._child
            if child:
                child.kill()
            self._thread.join(1)
