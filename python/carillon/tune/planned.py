"""Which trials compute, and with how many threads: the planner's orders carried out by turns between iterations.

As `turns`, without a clock, a socket or processes, and with the same calls; `core.Tuning` decides places and widths.
Of this file's own are only: which process starts or ends, who of those that share a device computes now, when an order
is carried out, and in which unit iterations are told.

A trial comes with `came`, starts where a `Start` says so, and ends by `ended`, or by `gone` without a retry.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Iterable

from . import core
from .turns import Go, Hold


@dataclass(frozen=True)
class Start:
    """The trial's process starts, for these devices; it goes on from its checkpoint where it has one."""

    trial: str
    devices: tuple[int, ...]


@dataclass(frozen=True)
class End:
    """The trial's process ends, at its boundary; a `Start` follows when there is a place for it again."""

    trial: str


@dataclass(frozen=True)
class Refused:
    """The trial is not taken, and is not here."""

    trial: str
    reason: str


Order = Go | Hold | Start | End | Refused


@dataclass(frozen=True)
class Asked:
    """A trial as it comes. `budget`: of its tuner's reports; None: not known. `iteration`: seconds of one of them."""

    trial: str
    budget: float | None = None
    iteration: float | None = None
    persistent: int = 0
    ephemeral: int = 0
    priority: float = 1.0


@dataclass
class _Trial:
    number: int
    budget: float | None
    paused: bool = False               # by its tuner
    process: bool = False              # it was told to start, and is not known to be gone
    bound: tuple[int, ...] = ()        # the devices that its process was started for
    ending: bool = False               # its process was told to end
    connected: bool = False
    stepped: bool = False              # its process has come to a boundary
    devices: tuple[int, ...] = ()      # where the planner has it; (): nowhere
    width: float = 0.0
    under: str = ""                    # the planner's order that is not settled yet
    since_order: float = 0.0
    wants: bool = False                # it waits for a Go
    wanted: float = 0.0                # since when
    threads: int = 0                   # granted; 0: it does not compute
    recalled: bool = False             # it was told to hold, and has not said that it does
    since: float = 0.0                 # of its turn
    served: float = 0.0                # seconds
    # --- What is told of its iterations
    steps: float = 0.0                 # since the tuner's last report
    untold: float = 0.0                # of these, what the planner does not know
    busy: float = 0.0                  # seconds of these
    waited: float = 0.0                # for its turn: part of what sharing costs
    spoiled: bool = False              # this time was shared with one that is still setting up: it measures nothing
    a_report: float | None = None      # steps of one report, once that is known
    done: float = 0.0                  # reports


@dataclass
class Planned:
    """Times are seconds of any clock that does not go back. `takes_turns`: those that share a device compute one at
    a time, `quantum` seconds each; else all at once. `moves`: a running trial's process can go to other devices."""

    tuning: core.Tuning
    takes_turns: bool = True
    quantum: float = 0.5
    moves: bool = True
    share: float = 1.0  # of each device's supply, so much is these trials'; it changes by `shares`
    _given: dict[int, tuple[float, float, int | None]] = field(default_factory=dict)  # devices, without that
    _trials: dict[str, _Trial] = field(default_factory=dict)
    _names: dict[int, str] = field(default_factory=dict)
    _live: dict[str, _Trial] = field(default_factory=dict)  # those with a process
    _next: int = 0
    _wake: float | None = None
    _out: list[Order] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not 0 < self.quantum < float("inf"):
            raise ValueError(f"a quantum is above 0, not {self.quantum}")

    # --- What a tuner, or who submits trials, tells

    def came(self, asked: Iterable[Asked], now: float, group: int = 0) -> list[Order]:
        """Trials that are wanted together; paused ones come again, with the reports that they are to make more."""
        specs, fresh = [], set()
        for one in asked:
            if one.trial in fresh:
                raise ValueError(f"trial {one.trial!r} comes twice")
            fresh.add(one.trial)
            known = self._trials.get(one.trial)
            if known is not None and not known.paused:
                raise ValueError(f"trial {one.trial!r} is here already")
            number = known.number if known else self._number()
            specs.append((one, core.Trial(number, budget=one.budget, iteration=one.iteration,
                                          persistent=one.persistent, ephemeral=one.ephemeral, priority=one.priority)))
        # All are right: only now anything changes.
        for one, spec in specs:
            trial = self._trials.setdefault(one.trial, _Trial(spec.trial, None))
            self._names[spec.trial] = one.trial
            trial.budget = None if one.budget is None else trial.done + one.budget
            trial.paused = False
        return self._decided(self.tuning.group_came(group, [spec for _, spec in specs], now), now)

    def reported(self, name: str, now: float) -> list[Order]:
        """The trial made one report to its tuner. Comes after the `did` of what it computed for that."""
        trial = self._trials.get(name)
        if trial is None:
            return []
        trial.done += 1
        if trial.steps > 0:
            trial.a_report = trial.steps
        trial.steps = 0.0
        return self._decided(self._tell(trial, now), now)

    def paused(self, name: str, now: float) -> list[Order]:
        """Its tuner wants no more of it for now: it stands still when it reaches its boundary."""
        trial = self._trials.get(name)
        if trial is None:
            return []
        self._stop(name, trial)
        trial.paused, trial.devices = True, ()
        if trial.under != "release":
            trial.under = ""
        return self._decided(self.tuning.paused(trial.number, now), now)

    def ended(self, name: str, now: float) -> list[Order]:
        """It has its result, or is given up. Its process is its own affair from now on."""
        trial = self._trials.pop(name, None)
        if trial is None:
            return []
        del self._names[trial.number]
        self._live.pop(name, None)
        return self._decided(self.tuning.ended(trial.number, now), now)

    def died(self, name: str, now: float, retry: bool, done: float = 0.0) -> list[Order]:
        """Its process is gone, not as it was told to. With `retry` it begins again with `done` reports made."""
        if not retry:
            return self.ended(name, now)
        trial = self._trials.get(name)
        if trial is None:
            return []
        lost = max(0.0, trial.done - done)
        self._no_process(name, trial)
        trial.done = min(trial.done, done)
        trial.devices, trial.under, trial.width = (), "", 0.0
        return self._decided(self.tuning.died(trial.number, now, retry=True, lost=lost), now)

    def back(self, name: str, done: float) -> None:
        """Its process ended as it was told to, and its checkpoint has `done` reports."""
        trial = self._trials.get(name)
        if trial is not None:
            trial.done = min(trial.done, done)

    def device_came(self, device: int, now: float, speed: float = 1.0, supply: float = 1.0,
                    memory: int | None = None) -> list[Order]:
        told = self.tuning.device_came(device, now, speed=speed, supply=supply * self.share, memory=memory)
        self._given[device] = speed, supply, memory
        return self._decided(told, now)

    def device_changed(self, device: int, now: float, speed: float = 1.0, supply: float = 1.0,
                       memory: int | None = None) -> list[Order]:
        told = self.tuning.device_changed(device, now, speed=speed, supply=supply * self.share, memory=memory)
        if device in self._given:
            self._given[device] = speed, supply, memory
        return self._decided(told, now)

    def shares(self, share: float, now: float) -> list[Order]:
        """Others take more, or less, of all devices: so much is left of what there is for trials, from 0 to 1."""
        if not 0 <= share <= 1:
            raise ValueError(f"a share is from 0 to 1, not {share}")
        self.share = share
        told: list[core.Order] = []
        for device, (speed, supply, memory) in self._given.items():
            told += self.tuning.device_changed(device, now, speed=speed, supply=supply * share, memory=memory)
        return self._decided(told, now)

    def device_went(self, device: int, now: float) -> list[Order]:
        self._given.pop(device, None)
        stand = []
        for name, trial in self._live.items():
            if device not in trial.devices:
                continue
            self._stop(name, trial)
            trial.devices = tuple(d for d in trial.devices if d != device)
            if not trial.devices and trial.under != "release":
                # An order under way may be one between devices: it is over when the trial stands still.
                trial.under = "hold"
                if not trial.threads and not trial.ending:
                    stand.append(trial)
        told = self.tuning.device_went(device, now)
        for trial in stand:
            told = told + self._settle(trial, now)
        return self._decided(told, now)

    # --- What a trial's process tells (the calls of `Turns`)

    def wants(self, name: str, now: float) -> list[Order]:
        trial = self._trials.get(name)
        if trial is None:
            return []
        trial.connected = True
        self._out_of_turn(trial, now)
        trial.wants, trial.wanted = True, now
        return self._decided([], now)

    def rests(self, name: str, now: float) -> list[Order]:
        return self._stands(name, now, wants=False)

    def held(self, name: str, now: float) -> list[Order]:
        return self._stands(name, now, wants=True)

    def did(self, name: str, width: int, iterations: int, seconds: float, now: float) -> list[Order]:
        """It computed, at that width, and is at a boundary: an order to be wider is carried out."""
        trial = self._trials.get(name)
        if trial is None or iterations < 1 or not seconds > 0:
            return []
        if not trial.stepped:  # this has what it set up
            trial.stepped = trial.spoiled = True
        trial.steps += iterations
        trial.untold += iterations
        trial.busy += seconds
        told = self._tell(trial, now) if trial.budget is None or trial.a_report else []
        if trial.under in ("change", "place") and trial.threads and not trial.recalled:
            told = told + self._settle(trial, now)
        return self._decided(told, now)

    def gone(self, name: str, now: float) -> list[Order]:
        """Its process has ended, or says no more. Where it was told to end, that is what was wanted."""
        trial = self._trials.get(name)
        if trial is None:
            return []
        ending = trial.ending
        self._no_process(name, trial)
        if ending and trial.under in ("release", "hold"):
            return self._decided(self._settle(trial, now), now)
        if ending and trial.under == "restart":
            self._start(name, trial, "moved")
        return self._decided([], now)

    def tick(self, now: float) -> list[Order]:
        told: list[core.Order] = []
        if self._wake is not None and now >= self._wake:
            self._wake = None
            told = self.tuning.wake(now)
        return self._decided(told, now)

    def next_tick(self) -> float | None:
        ends = [] if self._wake is None else [self._wake]
        ends += [self._trials[name].since + self.quantum for name in self._due()]
        return min(ends, default=None)

    def running(self) -> dict[str, int]:
        """Who computes, with how many threads."""
        return {name: trial.threads for name, trial in self._live.items() if trial.threads}

    def devices_of(self, name: str) -> tuple[int, ...]:
        """Where the planner has it."""
        trial = self._trials.get(name)
        return () if trial is None else trial.devices

    def waits_for_place(self, name: str) -> bool:
        trial = self._trials.get(name)
        return trial is not None and not trial.devices

    # --- Inside

    def _number(self) -> int:
        number, self._next = self._next, (self._next + 1) & 0xFFFFFFFF
        return number

    def _tell(self, trial: _Trial, now: float) -> list[core.Order]:
        """Tells the planner what was computed, in its tuner's unit where there is a budget in it."""
        unit = 1.0 if trial.budget is None else trial.a_report
        if not unit or not trial.untold > 0:
            return []
        # With turns, an iteration's time has the wait for the turn in it. So a trial is told of once it has waited.
        if self.takes_turns and trial.width < 1 and not trial.waited and trial.busy < 4 * self.quantum:
            return []
        remaining = None
        if trial.budget is not None:
            left = trial.budget - trial.done - trial.steps / unit
            remaining = left if left > 0 else None
        self._look_about(trial)
        busy = 0.0 if trial.spoiled else trial.busy + trial.waited
        told = self.tuning.reported(trial.number, now, iterations=trial.untold / unit, busy=busy, remaining=remaining)
        trial.untold = trial.busy = trial.waited = 0.0
        trial.spoiled = False
        return told

    def _look_about(self, trial: _Trial) -> None:
        if trial.width < 1 and any(not other.stepped and set(other.devices) & set(trial.devices)
                                   for other in self._live.values()):
            trial.spoiled = True

    def _stop(self, name: str, trial: _Trial) -> None:
        if trial.threads and not trial.recalled:
            trial.recalled = True
            self._out.append(Hold(name))

    def _out_of_turn(self, trial: _Trial, now: float) -> None:
        if trial.threads:
            trial.served += now - trial.since
        trial.threads, trial.recalled = 0, False

    def _stands(self, name: str, now: float, wants: bool) -> list[Order]:
        trial = self._trials.get(name)
        if trial is None:
            return []
        self._out_of_turn(trial, now)
        self._look_about(trial)
        trial.wants, trial.wanted = wants, now
        if trial.under in ("release", "restart"):
            self._end_process(name, trial)
            return self._decided([], now)
        return self._decided(self._settle(trial, now) if trial.under == "hold" else [], now)

    def _end_process(self, name: str, trial: _Trial) -> None:
        if trial.process and not trial.ending:
            trial.ending = True
            self._out.append(End(name))

    def _start(self, name: str, trial: _Trial, under: str) -> None:
        trial.process, trial.under, trial.bound = True, under, trial.devices
        self._live[name] = trial
        self._out.append(Start(name, trial.devices))

    def _no_process(self, name: str, trial: _Trial) -> None:
        self._live.pop(name, None)
        trial.process = trial.ending = trial.connected = trial.stepped = trial.spoiled = trial.wants = trial.recalled = False
        trial.threads = 0
        trial.steps = trial.untold = trial.busy = trial.waited = 0.0

    def _settle(self, trial: _Trial, now: float) -> list[core.Order]:
        stood = now - trial.since_order if trial.under == "moved" else 0.0
        trial.under = ""
        return self.tuning.settled(trial.number, now, stood=max(0.0, stood))

    def _decided(self, told: list[core.Order], now: float) -> list[Order]:
        """What the planner's orders come to, and then whose turn it is."""
        queue = list(told)
        while True:
            while queue:
                queue += self._heed(queue.pop(0), now)
            queue = self._grant(now)
            if not queue:
                break
        out, self._out = self._out, []
        return out

    def _heed(self, order: core.Order, now: float) -> list[core.Order]:
        if isinstance(order, core.WakeAt):
            self._wake = order.at
            return []
        if isinstance(order, core.Refuse):
            name = self._names.pop(order.trial, None) if order.trial is not None else None
            if name is None:
                raise ValueError(f"a device is refused: {order.reason}")
            number = self._trials.pop(name).number
            self._out.append(Refused(name, order.reason))
            return self.tuning.ended(number, now)  # one that was paused is still there
        name = self._names[order.trial]
        trial = self._trials[name]
        trial.since_order = now
        if isinstance(order, core.Hold):
            trial.under, trial.width = "hold", 0.0
            if not trial.threads:
                return self._settle(trial, now)
            self._stop(name, trial)
        elif isinstance(order, core.Release):
            trial.under, trial.devices, trial.width = "release", (), 0.0
            if not trial.process:
                return self._settle(trial, now)
            if trial.threads:
                self._stop(name, trial)
            else:
                self._end_process(name, trial)
        else:
            trial.devices, trial.width, trial.wanted = tuple(order.devices), order.width, now
            if not trial.process:
                self._start(name, trial, "place")
            elif not self.moves and trial.bound != trial.devices:
                # A process is bound to its device: another one starts there.
                trial.under = "restart"
                if trial.threads:
                    self._stop(name, trial)
                else:
                    self._end_process(name, trial)
            else:
                trial.under = "place" if isinstance(order, core.Place) else "change"
                # Settled at its next boundary, or with its next Go: never in no time, or the planner could change its
                # mind for ever. One that was told to hold says so first: a Go that crosses its answer would be taken
                # for the next.
                if trial.threads and not trial.recalled:
                    if self._is_taken(trial):
                        self._stop(name, trial)  # and then it waits for its turn there
                    else:
                        self._go(name, trial, now)
        return []

    def _threads(self, trial: _Trial) -> int:
        return max(1, round(trial.width))

    def _go(self, name: str, trial: _Trial, now: float) -> None:
        if trial.threads:
            trial.served += now - trial.since
        trial.wants, trial.recalled = False, False
        trial.threads, trial.since = self._threads(trial), now
        self._out.append(Go(name, trial.threads))

    def _may_compute(self, trial: _Trial) -> bool:
        return bool(trial.devices) and trial.width > 0 and not trial.ending and trial.under not in (
            "hold", "release", "restart")

    def _waiting(self) -> list[tuple[float, int, str, _Trial]]:
        return sorted((trial.served, trial.number, name, trial) for name, trial in self._live.items()
                      if trial.wants and not trial.threads and self._may_compute(trial))

    def _is_taken(self, trial: _Trial) -> bool:
        """Whether another one computes on a device of its."""
        return self.takes_turns and any(
            other is not trial and other.threads and set(other.devices) & set(trial.devices)
            for other in self._live.values())

    def _grant(self, now: float) -> list[core.Order]:
        told: list[core.Order] = []
        for _, _, name, trial in self._waiting():
            if self._is_taken(trial):
                continue
            if trial.width < 1 and trial.untold > 0:
                trial.waited += now - trial.wanted
                told += self._tell(trial, now)
            self._go(name, trial, now)
            if trial.under:
                told += self._settle(trial, now)
        for name in self._due():
            trial = self._trials[name]
            if now >= trial.since + self.quantum:
                self._stop(name, trial)
        return told

    def _due(self) -> list[str]:
        """Who computes while others wait for its device, and was not told to hold."""
        if not self.takes_turns:
            return []
        wanted = {device for _, _, _, trial in self._waiting() for device in trial.devices}
        return [name for name, trial in self._live.items()
                if trial.threads and not trial.recalled and wanted & set(trial.devices)]
