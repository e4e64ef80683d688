"""The thread beside a driver of trials that tells their processes when they compute. Decides nothing: `turns`, or
`planned`, does.

Lines of text over a Unix socket. A trial says `hello TRIAL PID`, `want`, `did WIDTH ITERATIONS SECONDS`, `rest` and `held`;
it hears `go WIDTH` and `hold`. After `actors` it takes no turns: Ray's actors that it started compute for it. The end of the
connection is the end of the process. Other words are the driver's own: see `Driver`, and `_process` for the words of a
TrialGroup.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import struct
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Callable, Protocol

from ._folders import Folder
from ._hangs import Awake, Hangs
from .turns import Go, Hold

_MOST_LINE = 4096
MOST_TEXT = 1 << 20  # of a line for a driver
_LOOK_EVERY = 1.0      # seconds between two looks at the clock while something depends on how long it is silent
_MOST_UNSENT = 1 << 26  # bytes that a trial may leave unread


@dataclass
class _Peer:
    socket: socket.socket
    trial: str = ""
    pid: int = 0
    unread: bytes = b""
    unsent: bytearray = field(default_factory=bytearray)
    has_actors: bool = False


class Decider(Protocol):
    """`Turns` or `Planned`."""

    def wants(self, trial: str, now: float, /) -> list[Any]: ...
    def rests(self, trial: str, now: float, /) -> list[Any]: ...
    def held(self, trial: str, now: float, /) -> list[Any]: ...
    def gone(self, trial: str, now: float, /) -> list[Any]: ...
    def did(self, trial: str, width: int, iterations: int, seconds: float, now: float, /) -> list[Any]: ...
    def tick(self, now: float, /) -> list[Any]: ...
    def next_tick(self) -> float | None: ...


class Driver:
    """What a driver of processes does besides, each in the broker's thread. This one does nothing."""

    def heard(self, trial: str, word: str, text: str) -> bool:
        """A trial said a word of its own; whether there is such a word."""
        return False

    def carry(self, order: Any) -> None:
        """An order that is not for a process."""

    def sign_of_life(self, trial: str) -> None:
        """A trial said something."""

    def left(self, trial: str) -> None:
        """A trial's connection has ended."""

    def hangs(self, trial: str, pid: int, silent: float) -> None:
        """A trial reached no boundary for so many seconds. Its process is to end. `pid`: 0 where this process does not see it."""
        try:
            if pid > 1:
                os.kill(pid, signal.SIGKILL)
        except OSError:
            pass  # it has just ended

    def broke(self, error: BaseException) -> None:
        """The broker's thread ends by it."""

    def tick(self, now: float) -> None:
        """To be called at `next_tick`, and may be called before. Times are those of `Broker.awake`."""

    def next_tick(self) -> float | None:
        return None


@dataclass
class Counts:
    """What trials said so far."""

    iterations: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    processes: set[int] = field(default_factory=set)
    resizes: int = 0
    holds: int = 0
    hung: int = 0
    resize_s: list[float] = field(default_factory=list)  # from an order to a trial that computes until it heeds it
    resume_s: list[float] = field(default_factory=list)  # from a scheduler's choice until the trial could go on


_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid


def _pid_of(peer: socket.socket) -> int:
    """By the kernel, as this process counts; 0: in another namespace. (What a process says of itself may be a stranger's.)"""
    return int(_CREDENTIALS.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))[0])


class Broker:
    """Starts with its thread; `close` ends both. `lost` names trials whose process has ended, once each.

    `patience`: a trial that was told to hold, and does not for so many seconds, keeps nobody else from computing any
    more. `hang_after`: one that computes, and says nothing for so long, hangs (`Driver.hangs`). None: neither happens."""

    def __init__(self, turns: Decider, driver: Driver | None = None, patience: float | None = None,
                 hang_after: float | None = None) -> None:
        self._patience, self.hanging = patience, Hangs(hang_after)
        self._awake = Awake(time.monotonic())
        self._turns, self._driver = turns, driver or Driver()
        self._most_line = _MOST_LINE if driver is None else MOST_TEXT
        self._resumed: dict[str, float] = {}
        self._widened: dict[str, float] = {}
        self._told_to_hold: dict[str, float] = {}
        self._posted: deque[Callable[[], None]] = deque()
        self._folder = Folder("turns", "turns.sock")
        self.path = str(self._folder.path / "turns.sock")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.path)
        self._listener.listen(128)
        self._listener.setblocking(False)
        self._wake_out, self._wake_in = os.pipe()
        os.set_blocking(self._wake_in, False)
        self._waking, self._closing = threading.Lock(), False
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        self._selector.register(self._wake_out, selectors.EVENT_READ, None)
        self._peers: dict[str, _Peer] = {}
        self._lock = threading.Lock()
        self._lost: set[str] = set()
        self.counts = Counts()
        self._thread = threading.Thread(target=self._serve, name="carillon-tune", daemon=True)
        self._thread.start()

    def lost(self) -> set[str]:
        with self._lock:
            lost, self._lost = self._lost, set()
        return lost

    def post(self, call: Callable[[], None]) -> None:
        """Has it called in the broker's thread, soon. From any thread; after `close` it is not called."""
        self._posted.append(call)
        self._wake()

    def has_actors(self, trial: str) -> bool:
        """Whether the trial has started actors of Ray's. From any thread."""
        peer = self._peers.get(trial)
        return peer is not None and peer.has_actors

    def resumes(self, trial: str) -> None:
        """Notes the time at which a paused trial was told to go on. From any thread."""
        self._resumed[trial] = time.monotonic()

    def watch(self, file: int, then: Callable[[], None]) -> None:
        """In the broker's thread: `then` is called there once, when the file can be read."""
        self._selector.register(file, selectors.EVENT_READ, then)

    def hang_up(self, trial: str) -> None:
        """In the broker's thread, once the trial's process has ended: what it said last is read. (Its own children may
        keep the connection open.)"""
        peer = self._peers.get(trial)
        while peer is not None and peer.socket.fileno() >= 0:
            if not self._read(peer):
                self._drop(peer)

    def say(self, trial: str, line: str) -> bool:
        """In the broker's thread: whether the trial has a connection."""
        peer = self._peers.get(trial)
        if peer is None:
            return False
        peer.unsent += line.encode() + b"\n"
        self._write(peer)
        return True

    def awake(self) -> float:
        """In the broker's thread: a clock that stands still while this process does."""
        return self._awake.at(time.monotonic())

    def close(self) -> None:
        """From any thread: from the broker's own, it ends once what it does now is done."""
        self._closing = True
        self._wake()
        if not self.is_own_thread():
            self._thread.join(timeout=5)
        self._folder.remove()

    def is_own_thread(self) -> bool:
        return threading.current_thread() is self._thread

    def _wake(self) -> None:
        with self._waking:
            if self._wake_in >= 0:
                try:
                    os.write(self._wake_in, b"w")
                except BlockingIOError:
                    pass  # it has not heeded thousands of these yet

    def _serve(self) -> None:
        try:
            while self._turn():
                pass
        except BaseException as error:
            self._driver.broke(error)
            raise
        finally:
            # However it ends: trials that hear of it go on alone, and do not wait for ever.
            for key in list(self._selector.get_map().values()):
                if isinstance(key.fileobj, socket.socket):
                    key.fileobj.close()
            self._selector.close()
            with self._waking:
                os.close(self._wake_in)
                os.close(self._wake_out)
                self._wake_in = -1

    def _turn(self) -> bool:
        most = self._most_wait()
        ready = self._selector.select(most)
        self._awake.turned(time.monotonic(), most)
        if self._closing:
            return False
        for key, events in ready:
            if key.fileobj is self._listener:
                self._accept()
            elif key.fileobj == self._wake_out:
                os.read(self._wake_out, _MOST_LINE)
                while self._posted and not self._closing:
                    self._posted.popleft()()
            elif isinstance(key.data, _Peer):
                if events & selectors.EVENT_WRITE:
                    self._write(key.data)
                if events & selectors.EVENT_READ:
                    self._read(key.data)
            else:
                self._selector.unregister(key.fd)
                key.data()
        now = time.monotonic()
        self._send(self._turns.tick(now))
        self._driver.tick(self.awake())
        self._look(self.awake())
        return True

    def _most_wait(self) -> float | None:
        """Seconds until something is to be done though nothing happens."""
        now = time.monotonic()
        waits = [] if (tick := self._turns.next_tick()) is None else [tick - now]
        limits = [limit - self._awake.at(now) for limit in (self._driver.next_tick(), self._next_look(), self.hanging.next_look())
                  if limit is not None]
        if limits:
            waits += [*limits, _LOOK_EVERY]  # or a stop of this process would pass for a wait
        return max(0.0, min(waits)) if waits else None

    def _next_look(self) -> float | None:
        if self._patience is None:
            return None
        return min((told + self._patience for told in self._told_to_hold.values()), default=None)

    def _look(self, now: float) -> None:
        """For trials that hang within an iteration. `now`: of `awake`."""
        patience = float("inf") if self._patience is None else self._patience
        for trial in [name for name, told in self._told_to_hold.items() if now >= told + patience]:
            del self._told_to_hold[trial]
            self._send(self._turns.rests(trial, time.monotonic()))  # until it says something
        for trial, silent in self.hanging.hanging(now):
            self.counts.hung += 1
            self._driver.hangs(trial, self._peers[trial].pid, silent)

    def _accept(self) -> None:
        try:
            accepted, _ = self._listener.accept()
        except OSError:
            return
        accepted.setblocking(False)
        self._selector.register(accepted, selectors.EVENT_READ, _Peer(accepted))

    def _write(self, peer: _Peer) -> None:
        """What the socket takes now; the rest when it takes more."""
        if peer.socket.fileno() < 0:
            return
        try:
            while peer.unsent:
                del peer.unsent[:peer.socket.send(peer.unsent)]
        except BlockingIOError:
            if len(peer.unsent) > _MOST_UNSENT:
                peer.unsent.clear()
                peer.socket.shutdown(socket.SHUT_RDWR)  # its end is read next
        except OSError:
            peer.unsent.clear()  # its end is read next
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if peer.unsent else 0)
        if self._selector.get_key(peer.socket).events != events:
            self._selector.modify(peer.socket, events, peer)

    def _read(self, peer: _Peer) -> bool:
        """Whether there was something."""
        if peer.socket.fileno() < 0:
            return False  # its end was seen in this turn
        try:
            data = peer.socket.recv(max(_MOST_LINE, self._most_line // 16))
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data or len(peer.unread) > self._most_line:
            self._drop(peer)
            return False
        *lines, peer.unread = (peer.unread + data).split(b"\n")
        for line in lines:
            if not self._take(peer, line.decode(errors="replace")):
                self._drop(peer)
                return False
        return True

    def _take(self, peer: _Peer, line: str) -> bool:
        """Whether that was a line of the protocol."""
        now = time.monotonic()
        words = line.split()
        name, pid, width, iterations, seconds = "", 0, 0, 0, 0.0
        try:  # the words alone: an error of the planner or of a driver is not the trial's
            if words[0] == "hello":
                name, pid = words[1], int(words[2])
                if pid < 1:
                    return False
            elif words[0] == "did":
                width, iterations, seconds = int(words[1]), int(words[2]), float(words[3])
                if not (0 <= width < 1 << 31 and 0 <= iterations < 1 << 53 and 0 <= seconds < float("inf")):
                    return False
        except (IndexError, ValueError):
            return False
        if peer.trial:
            self.hanging.heard(peer.trial, self.awake())
            self._driver.sign_of_life(peer.trial)
        if words[0] == "hello":
            if peer.trial:  # the process goes on with another trial
                self._leave(peer)
            peer.trial, peer.pid, peer.has_actors = name, _pid_of(peer.socket), False
            if peer.trial in self._peers:  # of its last process the end was not read yet
                self._leave(self._peers[peer.trial])
            self._peers[peer.trial] = peer
            self.counts.processes.add(peer.pid or pid)
            self._driver.sign_of_life(peer.trial)
        elif not peer.trial:
            return False
        elif words[0] == "want":
            if (told := self._resumed.pop(peer.trial, None)) is not None:
                self.counts.resume_s.append(now - told)
            self._send(self._turns.wants(peer.trial, now))
        elif words[0] == "held":
            self.counts.holds += 1
            self._stands(peer.trial)
            self._send(self._turns.held(peer.trial, now))
        elif words[0] == "did":
            if (told := self._widened.pop(peer.trial, None)) is not None:
                self.counts.resize_s.append(now - told)
            counts = self.counts
            counts.iterations[peer.trial] = counts.iterations.get(peer.trial, 0) + iterations
            counts.seconds[peer.trial] = counts.seconds.get(peer.trial, 0.0) + seconds
            self._send(self._turns.did(peer.trial, width, iterations, seconds, now))
        elif words[0] == "rest":
            self._stands(peer.trial)
            self._send(self._turns.rests(peer.trial, now))
        elif words[0] == "actors":
            peer.has_actors = True
            self._stands(peer.trial)
            self._send(self._turns.gone(peer.trial, now))
        else:
            word, _, text = line.partition(" ")
            return self._driver.heard(peer.trial, word, text)
        return True

    def send(self, orders: list[Any]) -> None:
        """In the broker's thread."""
        self._send(orders)

    def _send(self, orders: list[Any]) -> None:
        for order in orders:
            if isinstance(order, Go):
                if self.say(order.trial, f"go {order.width}"):
                    self.counts.resizes += order.width > 1
                    # What follows its first order at once is heard with that.
                    if (self.hanging.silent(order.trial, self.awake()) or 0) > 0.005:
                        self._widened[order.trial] = time.monotonic()
                    self.hanging.computes(order.trial, self.awake())
                    self._driver.sign_of_life(order.trial)  # until now it had to wait
                    self._told_to_hold.pop(order.trial, None)
            elif isinstance(order, Hold):
                if self.say(order.trial, "hold"):
                    self._told_to_hold[order.trial] = self.awake()
            else:
                self._driver.carry(order)

    def _stands(self, trial: str) -> None:
        self.hanging.stands(trial)
        self._told_to_hold.pop(trial, None)
        self._widened.pop(trial, None)

    def _leave(self, peer: _Peer) -> bool:
        """Whether the peer was the trial's."""
        if self._peers.get(peer.trial) is not peer:
            return False
        del self._peers[peer.trial]
        self._stands(peer.trial)
        self.hanging.gone(peer.trial)
        self._send(self._turns.gone(peer.trial, time.monotonic()))
        self._driver.left(peer.trial)
        return True

    def _drop(self, peer: _Peer) -> None:
        if peer.socket.fileno() < 0:
            return
        self._selector.unregister(peer.socket)
        peer.socket.close()
        if self._leave(peer):
            with self._lock:
                self._lost.add(peer.trial)
