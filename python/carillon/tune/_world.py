"""Trials' processes and devices in virtual time, under the same `Planned` that tells processes live. No Ray, no clock.

A process is told to compute one report's iterations (`compute`), asks for its turn, and heeds orders at the ends of
iterations, as `_trial` does. Without a plan it computes at once, on the devices that it was given.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Callable

from .planned import Planned
from .turns import Go, Hold

_TELL_EVERY = 1.0    # seconds: as often a process tells of its iterations at least
_MOST_AT_ONCE = 100  # events of one instant, for each process and device


class WorldError(RuntimeError):
    """The study comes to no end."""


@dataclass(frozen=True)
class Costs:
    """`alpha`: those that compute on one device at the same time slow each other by so much for each other one; None:
    they share its time, as threads share a processor. `beside`: so much each one that computes elsewhere slows.
    `beta`: on w devices an iteration takes beta^(w - 1) / w. `move`: seconds that a trial stands when its devices
    change."""

    alpha: float | None = None
    beside: float = 1.0
    beta: float = 1.0
    move: float = 0.0


@dataclass
class _Process:
    name: str
    devices: tuple[int, ...] = ()       # those of its last turn
    iterations: int = 0                 # of this report
    seconds: float = 0.0                # of one of them, alone on a device
    then: Callable[[], None] | None = None
    progress: float = 0.0               # iterations of this report; below 0: it sets up
    told: float = 0.0                   # of these, the plan knows
    told_at: float = 0.0
    width: int = 0                      # threads; 0: it does not compute
    pending: Go | Hold | None = None    # to be heeded at the end of this iteration
    pace: float = 0.0                   # iterations a second
    since: float = 0.0                  # of `progress`
    booking: int = 0
    computing: bool = False
    telling: bool = False


@dataclass
class World:
    devices: int
    costs: Costs = Costs()
    plan: Planned | None = None
    now: float = 0.0
    device_seconds: float = 0.0         # of all devices: at least one trial computed
    work: float = 0.0                   # of the iterations that were done: what they take alone
    most_running: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    _events: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _number: int = 0
    _processes: dict[str, _Process] = field(default_factory=dict)
    _on: dict[int, dict[str, _Process]] = field(default_factory=dict)  # who computes on each device
    _busy_since: dict[int, float] = field(default_factory=dict)
    _running: int = 0
    _tick_at: float | None = None
    _at_once: int = 0

    # --- Events

    def at(self, when: float, call: Callable[[], None]) -> None:
        """Calls in the order of time, and of coming."""
        if not math.isfinite(when):
            raise WorldError(f"at {self.now:.6g} s something would take for ever; see the trials' seconds")
        self._number += 1
        heapq.heappush(self._events, (max(when, self.now), self._number, call))

    def step(self) -> bool:
        """Whether there was an event."""
        if not self._events:
            return False
        when, _, call = heapq.heappop(self._events)
        self._at_once = self._at_once + 1 if when == self.now else 0
        if self._at_once > _MOST_AT_ONCE * (len(self._processes) + self.devices + 100):
            raise WorldError(f"at {when:.6g} s the policy comes to no end: it changes trials again and again")
        self.now = when
        call()
        return True

    def finish(self) -> None:
        """The study ends now: what still computes counts until here."""
        for process in list(self._processes.values()):
            self._stop(process)

    # --- What processes do

    def compute(self, name: str, iterations: int, seconds: float, then: Callable[[], None],
                devices: tuple[int, ...] = (), before: float = 0.0) -> None:
        """One report of the trial: `iterations` of `seconds` each, alone on a device. `then`: it has reported.
        `devices`: where it computes without a plan. `before`: seconds that it computes before its first iteration."""
        process = self._processes.setdefault(name, _Process(name))
        process.iterations, process.seconds, process.then = iterations, seconds, then
        process.progress, process.told = -before / seconds if before > 0 else 0.0, 0.0
        if self.plan is None:
            process.devices = devices
            self._begin(process, 1)
        else:
            self.send(self.plan.wants(name, self.now))

    def gone(self, name: str) -> None:
        """Its process has ended, or goes on with another trial."""
        process = self._processes.pop(name, None)
        if process is not None:
            self._stop(process)
        if self.plan is not None:
            self.send(self.plan.gone(name, self.now))

    def send(self, orders: list[Any]) -> None:
        """The plan's orders; what is not for a process is passed over, as it is live."""
        for order in orders:
            process = self._processes.get(order.trial)
            if process is None or process.then is None or not isinstance(order, (Go, Hold)):
                continue
            if not process.computing:
                if isinstance(order, Go):
                    self._begin(process, order.width)
                else:
                    process.pending = order
            else:
                process.pending = order
                if not process.telling:
                    self._book(process)
        self._plan_tick()

    def _plan_tick(self) -> None:
        when = self.plan.next_tick() if self.plan is not None else None
        if when is None or (self._tick_at is not None and self.now <= self._tick_at <= when):
            return
        self._tick_at = when

        def tick() -> None:
            if self._tick_at == when:
                self._tick_at = None
                assert self.plan is not None
                self.send(self.plan.tick(self.now))

        self.at(when, tick)

    # --- Iterations

    def _begin(self, process: _Process, width: int) -> None:
        """It has its turn."""
        process.computing, process.pending = True, None
        devices = process.devices
        if self.plan is not None:
            devices = self.plan.devices_of(process.name)
        stands = self.costs.move if process.devices and devices != process.devices else 0.0
        process.devices = devices
        process.told_at = process.since = self.now
        process.pace, process.width = 0.0, width
        if stands > 0:
            process.booking += 1
            booking = process.booking
            self.counts["moved"] += 1

            def stood() -> None:
                if process.booking == booking:
                    process.told_at = process.since = self.now
                    self._enter(process)

            self.at(self.now + stands, stood)
        else:
            self._enter(process)

    def _enter(self, process: _Process) -> None:
        self._running += 1
        self.most_running = max(self.most_running, self._running)
        for device in process.devices:
            on = self._on.setdefault(device, {})
            if not on:
                self._busy_since[device] = self.now
            on[process.name] = process
        self._repace(process.devices)

    def _leave(self, process: _Process) -> None:
        entered = [device for device in process.devices if process.name in self._on.get(device, {})]
        if entered:
            self._running -= 1
        for device in entered:
            on = self._on[device]
            del on[process.name]
            if not on:
                self.device_seconds += self.now - self._busy_since.pop(device)
        self._repace(process.devices)

    def _stop(self, process: _Process) -> None:
        """It does not compute any more."""
        if not process.computing:
            return
        self._advance(process)
        process.computing, process.pending, process.pace = False, None, 0.0
        process.booking += 1
        self._leave(process)

    def _advance(self, process: _Process) -> None:
        if self.now > process.since:
            process.progress = min(float(process.iterations),
                                   process.progress + process.pace * (self.now - process.since))
        process.since = self.now

    def _pace(self, process: _Process) -> float:
        if process.seconds <= 0:
            return math.inf
        there = max(len(self._on[device]) for device in process.devices)
        sharing = {name for device in process.devices for name in self._on[device]}
        slower = there if self.costs.alpha is None else self.costs.alpha ** (there - 1)
        slower *= self.costs.beside ** max(0, self._running - len(sharing))
        width = max(1, process.width)
        return width / (process.seconds * self.costs.beta ** (width - 1) * slower)

    def _repace(self, devices: tuple[int, ...]) -> None:
        for device in self._on if self.costs.beside != 1 else devices:
            for process in self._on.get(device, {}).values():
                pace = self._pace(process)
                if pace != process.pace:
                    self._advance(process)
                    process.pace = pace
                    self._book(process)

    def _book(self, process: _Process) -> None:
        """When it is to be looked at next: at its end, when it tells of itself, or where an order waits."""
        pace = process.pace
        if pace == 0:
            return  # it stands until it has moved
        if math.isinf(pace):
            self._look_at(process, self.now, float(process.iterations))
            return
        done = process.progress + pace * (self.now - process.since)
        if process.pending is not None:
            until = math.floor(done + 1e-9) + 1
        elif self.plan is not None:
            until = math.ceil(done + pace * max(0.0, process.told_at + _TELL_EVERY - self.now) - 1e-9)
            until = max(until, math.floor(done + 1e-9) + 1)
        else:
            until = process.iterations
        until = min(max(until, 1), process.iterations)
        self._look_at(process, self.now + max(0.0, until - done) / pace, float(until))

    def _look_at(self, process: _Process, when: float, progress: float) -> None:
        process.booking += 1
        booking = process.booking

        def boundary() -> None:
            if process.booking == booking:
                process.progress, process.since = progress, self.now
                self._boundary(process)

        self.at(when, boundary)

    def _tell(self, process: _Process) -> None:
        iterations = round(process.progress - process.told)
        seconds = self.now - process.told_at
        process.told, process.told_at = process.progress, self.now
        self.work += iterations * process.seconds
        if self.plan is not None and iterations and seconds > 0:
            process.telling = True
            self.send(self.plan.did(process.name, process.width, iterations, seconds, self.now))
            process.telling = False

    def _boundary(self, process: _Process) -> None:
        if process.progress >= process.iterations:
            self._stop(process)
            then, process.then = process.then, None
            self._tell(process)
            if self.plan is not None:
                self.send(self.plan.rests(process.name, self.now))
            assert then is not None
            then()
            return
        order, process.pending = process.pending, None
        self._tell(process)  # what it hears by that waits for the next boundary
        if isinstance(order, Hold):
            self._stop(process)
            self.counts["holds"] += 1
            assert self.plan is not None
            self.send(self.plan.held(process.name, self.now))
        elif isinstance(order, Go):
            self._resume(process, order.width)
        else:
            self._book(process)

    def _resume(self, process: _Process, width: int) -> None:
        """Between two iterations: it goes on, with that width, where the plan has it now."""
        assert self.plan is not None
        if width == process.width and self.plan.devices_of(process.name) == process.devices:
            self._book(process)
            return
        if width != process.width:
            self.counts["widths"] += 1
        self._stop(process)
        self._begin(process, width)
