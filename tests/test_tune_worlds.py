"""Seeded worlds of trials' processes in virtual time, driven by `planned` as the broker does it, with faults.

CARILLON_TUNE_WORLDS is how many worlds of each policy there are. A failure prints its seed.
"""

from __future__ import annotations

import heapq
import os
import random
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "python"))
try:
    from carillon.tune import core
except ImportError as missing:
    pytest.skip(f"{missing}", allow_module_level=True)
from carillon.tune.planned import Asked, End, Planned, Start  # noqa: E402
from carillon.tune.turns import Go, Hold  # noqa: E402

WORLDS = int(os.environ.get("CARILLON_TUNE_WORLDS", "60"))


@dataclass
class Process:
    trial: str
    iteration_s: float
    state: str = "starting"          # then computing, waiting (for a Go), gone
    unread: list = field(default_factory=list)
    threads: int = 0
    done: int = 0                    # iterations since it told
    since: float = 0.0


@dataclass
class World:
    seed: int
    policy: str
    now: float = 0.0
    events: list = field(default_factory=list)  # (time, number, call)
    count: int = 0
    processes: dict = field(default_factory=dict)
    waiting_starts: set = field(default_factory=set)
    reports: dict = field(default_factory=dict)
    kept: dict = field(default_factory=dict)
    ended: list = field(default_factory=list)
    paused: set = field(default_factory=set)
    away: set = field(default_factory=set)

    def __post_init__(self):
        self.draw = random.Random(f"{self.policy} {self.seed}")
        d = self.draw
        told = {name: value for name, value in (("alpha", 1.1), ("beta", 1.05), ("move", 0.001)) if d.random() < 0.5}
        self.on_gpus = d.random() < 0.3
        self.devices = d.randint(1, 4)
        self.planned = Planned(core.Tuning(self.policy, **told, **({"d": 1} if self.on_gpus else {})),
                               takes_turns=not self.on_gpus, quantum=d.choice((0.05, 0.5)), moves=not self.on_gpus)
        self.faults = d.random() < 0.7
        self.trials = {f"t{i}": d.randint(1, 6) for i in range(d.randint(1, 9))}  # reports each is to make
        self.steps = {name: d.randint(1, 5) for name in self.trials}             # iterations a report
        self.memory = 1000 if d.random() < 0.5 else None
        for device in range(self.devices):
            self.heed(self.planned.device_came(device, 0.0, memory=self.memory))
        asked = [Asked(name, d.choice((None, float(n))), persistent=d.choice((0, 300)) if self.memory else 0)
                 for name, n in self.trials.items()]
        while asked:
            part, asked = asked[:3], asked[3:]
            self.at(d.random(), lambda part=part: self.heed(self.planned.came(part, self.now, d.randint(0, 2))))
        if self.faults:
            for _ in range(d.randint(0, 6)):
                self.at(d.random() * 8, self.fault)

    def at(self, delay, call):
        self.count += 1
        heapq.heappush(self.events, (self.now + delay, self.count, call))

    def fault(self):
        d = self.draw
        kind = d.choice(("supply", "device", "memory", "kill", "pause"))
        device = d.randrange(self.devices)
        if kind == "supply":
            self.heed(self.planned.device_changed(device, self.now, supply=d.choice((0.0, 0.5)), memory=self.memory))
            self.at(d.random(), lambda: self.heed(self.planned.device_changed(device, self.now, memory=self.memory)))
        elif kind == "device" and device not in self.away:
            self.away.add(device)
            self.heed(self.planned.device_went(device, self.now))
            self.at(d.random(), lambda: self.came_back(device))
        elif kind == "memory" and self.memory:
            self.heed(self.planned.device_changed(device, self.now, memory=350))
            self.at(d.random(), lambda: self.heed(self.planned.device_changed(device, self.now, memory=self.memory)))
        elif kind == "kill" and self.processes:
            self.die(self.processes[d.choice(sorted(self.processes))])
        elif kind == "pause":
            here = [name for name in self.trials if name in self.reports and name not in self.ended
                    and name not in self.paused]
            if here:
                name = d.choice(here)
                self.paused.add(name)
                self.heed(self.planned.paused(name, self.now))
                self.at(d.random() * 2, lambda: self.resume(name))

    def came_back(self, device):
        self.away.discard(device)
        self.heed(self.planned.device_came(device, self.now, memory=self.memory))

    def resume(self, name):
        if name in self.paused and name not in self.ended:
            self.paused.discard(name)
            left = self.trials[name] - self.reports[name]
            self.heed(self.planned.came([Asked(name, float(max(1, left)))], self.now))

    # --- Orders

    def heed(self, orders):
        for order in orders:
            process = self.processes.get(getattr(order, "trial", None))
            if isinstance(order, Start):
                if process is not None:  # it is about to be gone
                    self.waiting_starts.add(order.trial)
                else:
                    self.start(order.trial)
            elif isinstance(order, End):
                assert process is not None and process.state != "computing", "ended within an iteration"
                self.at(0.01, lambda p=process: self.gone(p, told=True))
            elif isinstance(order, (Go, Hold)):
                assert process is not None and process.state != "gone", f"{order} to nobody"
                process.unread.append(order)
                if process.state == "waiting":
                    self.read(process)
            else:
                raise AssertionError(order)
        self.check()

    def start(self, name):
        self.reports.setdefault(name, 0)
        self.kept.setdefault(name, 0)
        process = Process(name, self.draw.choice((0.01, 0.1)))
        self.processes[name] = process
        self.at(self.draw.random() * 0.3, lambda: self.ready(process))

    def ready(self, process):
        if process.state == "starting":
            process.state = "waiting"
            self.heed(self.planned.wants(process.trial, self.now))

    def read(self, process):
        orders, process.unread = process.unread, []
        for order in orders:
            if isinstance(order, Go):
                process.threads = order.width
                if process.state == "waiting":
                    process.state, process.since, process.done = "computing", self.now, 0
                    self.at(process.iteration_s / process.threads, lambda: self.boundary(process))
        return orders

    def boundary(self, process):
        if process.state != "computing":
            return
        name = process.trial
        process.done += 1
        width = process.threads
        orders = self.read(process)
        reports = self.draw.random() < 1 / self.steps[name]
        if orders or reports:
            done, seconds = process.done, self.now - process.since
            process.done, process.since = 0, self.now
            self.heed(self.planned.did(name, width, done, seconds, self.now))
        if reports and process.state == "computing":
            self.reports[name] += 1
            self.heed(self.planned.reported(name, self.now))
            if self.draw.random() < 0.7:
                self.kept[name] = self.reports[name]
            if self.reports[name] >= self.trials[name]:
                self.end(process)
                return
        if process.state != "computing":
            return
        orders += self.read(process)
        if self.faults and self.draw.random() < 0.01:
            self.die(process)
        elif orders and isinstance(orders[-1], Hold):
            process.state = "waiting"
            self.heed(self.planned.held(name, self.now))
        else:
            self.at(process.iteration_s / process.threads, lambda: self.boundary(process))

    def end(self, process):
        name = process.trial
        process.state = "gone"
        del self.processes[name]
        assert name not in self.ended
        self.ended.append(name)
        self.heed(self.planned.ended(name, self.now))
        self.heed(self.planned.gone(name, self.now))

    def die(self, process):
        self.gone(process, told=False)

    def gone(self, process, told):
        if process.state == "gone":
            return
        name = process.trial
        process.state = "gone"
        del self.processes[name]
        ending = self.planned._trials[name].ending
        self.reports[name] = self.kept[name]
        if ending:
            self.planned.back(name, float(self.kept[name]))
        self.heed(self.planned.gone(name, self.now))
        if not ending:
            self.heed(self.planned.died(name, self.now, retry=True, done=float(self.kept[name])))
        if name in self.waiting_starts:
            self.waiting_starts.discard(name)
            if name not in self.processes:
                self.start(name)

    # --- What holds at every moment

    def check(self):
        computing = self.planned.running()
        # Those that were told to hold compute until their boundary, on what they had.
        held = [name for name in computing if not self.planned._trials[name].recalled]
        for name in computing:
            assert name in self.processes, "who has no process computes"
        if not self.on_gpus:
            used = [device for name in held for device in self.planned._trials[name].devices]
            assert len(used) == len(set(used)), "two compute on one processor"

    def run(self):
        for _ in range(200_000):
            if len(self.ended) == len(self.trials):
                assert self.planned.tuning.trials() == []
                return
            tick = self.planned.next_tick()
            if self.events and (tick is None or self.events[0][0] <= tick):
                self.now, _, call = heapq.heappop(self.events)
                self.now = max(self.now, 0.0)
                call()
            elif tick is not None:
                self.now = max(self.now, tick)
                self.heed(self.planned.tick(self.now))
            else:
                raise AssertionError(f"nothing goes on: {self.planned._trials} {self.processes} "
                                     f"{self.planned.tuning.trials()}")
        raise AssertionError(f"no end: {self.planned.tuning.trials()}")


@pytest.mark.parametrize("policy", ("fifo", "static", "dynamic", "best"))
def test_every_trial_ends_once_whatever_happens(policy):
    for seed in range(WORLDS):
        try:
            World(seed, policy).run()
        except Exception as error:
            raise AssertionError(f"seed {seed} of {policy}: {type(error).__name__}: {error}") from error
