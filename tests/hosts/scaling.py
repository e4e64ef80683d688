"""A cluster whose workers are scaled as Kubernetes would: a StatefulSet's rules and HPA's published formula, in place of both.

`Trial` sends a load that changes in steps to workers of one emulated device each, and tells what came of it.
"""

from __future__ import annotations

import contextlib
import csv
import itertools
import json
import math
import re
import subprocess
import threading
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

from cluster_processes import LIMIT, Role, ready, wait_for

from .box import METRICS_PORT, Box
from .client import Stalls

MODEL = "tiny_mlp"
MODELS = (MODEL, "tiny_cnn", "tiny_encoder")
# What a batch takes, and what requests have: a device answers some 50 a second.
OVERHEAD_MS, ROW_MS, BATCHES, DEADLINE_MS = 60, 15, (1, 2, 4, 8, 16), 600
CAPACITY = 36  # requests a second, of a Poisson process, that one device answers in time
BAD_ENOUGH = 0.01  # the share of bad requests above which devices are too few


@dataclass(frozen=True)
class Times:
    """Seconds."""

    period: float = 15  # HPA's, and over which the leader counts
    quiet: float = 30  # fewer devices are enough for so long before fewer are wanted
    start_up: float = 5  # from when a worker is asked for until its process begins
    steps: tuple[float, ...] = (45, 45, 45, 90)  # each lasts so long
    loads: tuple[float, ...] = (1, 2, 4, 1)  # in CAPACITY

    def begins(self) -> list[float]:
        return [0, *itertools.accumulate(self.steps)]

    def reached_within(self, step: int) -> float:
        """Two periods after what has to pass: starts of workers, or the quiet time and the period that still tells of the load before."""
        waits = self.start_up if step == 0 or self.loads[step] >= self.loads[step - 1] else self.quiet + self.period
        return waits + 2 * self.period


SHORT = Times(period=3, quiet=8, start_up=1, steps=(12, 14, 14, 26))


def profile(file: Path) -> Path:
    batches = [{"batch": b, "p50_ms": OVERHEAD_MS + ROW_MS * b, "p99_ms": OVERHEAD_MS + ROW_MS * b} for b in BATCHES]
    file.write_text(json.dumps({"device": "a test's", "models": [
        {"name": name, "weights_bytes": 20_000_000, "load_ms": {"p50": 5, "p99": 5}, "batches": batches} for name in MODELS]}), encoding="utf-8")
    return file


def scenario(file: Path, times: Times, *, devices: int, only: int | None = None, seed: int = 1) -> Path:
    """The trace, or `only` one of its steps for a minute."""
    begins = times.begins()
    steps = [[0, times.loads[only] * CAPACITY]] if only is not None else [[at, of * CAPACITY] for at, of in zip(begins, times.loads, strict=False)]
    table = ", ".join(f"{b} = {OVERHEAD_MS + ROW_MS * b}" for b in BATCHES)
    file.write_text(f"""name = "{file.stem}"
seed = {seed}
duration_s = {60 if only is not None else begins[-1]}
scheduler = "carillon"
[cluster]
devices = {devices}
[load]
process = "poisson"
[[models]]
name = "{MODEL}"
slo_ms = {DEADLINE_MS}
batch_sizes = {list(BATCHES)}
latency = {{ table_ms = {{ {table} }} }}
steps = {steps}
""", encoding="utf-8")
    return file


def simulate(program: Path, file: Path, *options: str) -> dict:
    done = subprocess.run([str(program), "simulate", str(file), "--json", *options], capture_output=True, text=True, timeout=10 * LIMIT)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def bad_rate(told: dict) -> float:
    return 1 - told["on_time"] / told["offered"]


def least_needed(program: Path, folder: Path, times: Times, most: int) -> list[int]:
    """By step: the fewest devices on which the simulator answers all but BAD_ENOUGH of the step's requests in time."""
    found = {}
    for step, load in enumerate(times.loads):
        if load not in found:
            found[load] = next(count for count in range(1, most + 1)
                               if count == most or bad_rate(simulate(program, scenario(folder / f"least-{step}-{count}.toml", times, devices=count,
                                                                                      only=step))) <= BAD_ENOUGH)
    return [found[load] for load in times.loads]


def hpa(current: int, metric: float, least: int, most: int, target: float = 1, tolerance: float = 0.1) -> int:
    """desired = ceil(current * ratio), for an AverageValue: the ratio of metric / current to the target. Within the tolerance: as it is."""
    ratio = metric / current / target
    desired = current if 1 - tolerance <= ratio <= 1 + tolerance else math.ceil(current * ratio)
    return min(most, max(least, desired))


class StatefulSet:
    """Workers w1, w2, ... (parallel): as many as `replicas`, the first ones. The last go first, and are drained before.

    A worker's process begins `start_up` seconds after the worker is asked for.
    """

    def __init__(self, box: Box, start_up: float):
        self.box, self.start_up = box, start_up
        self.replicas = 0
        self.spans: list[tuple[float, float]] = []  # of each worker, from when it is asked for until it has gone
        self.failed: list[str] = []
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._stirred = threading.Condition(self._lock)
        self._threads: list[threading.Thread] = []

    def scale(self, replicas: int) -> None:
        with self._lock:
            self.replicas = replicas
            while len(self._threads) < replicas:
                number = len(self._threads) + 1
                id = f"w{number}"
                if id not in self.box.host_of:
                    self.box.host_of[id] = self.box.net.host(id)
                self._threads.append(threading.Thread(target=self._keep, args=(number, id)))
                self._threads[-1].start()
            self._stirred.notify_all()

    def end(self) -> None:
        self._over.set()
        with self._lock:
            self._stirred.notify_all()
        for thread in self._threads:
            thread.join()

    def _wanted(self, number: int) -> bool:
        return number <= self.replicas and not self._over.is_set()

    def _keep(self, number: int, id: str) -> None:
        """One ordinal: its pod is deleted wholly before it comes again."""
        while True:
            with self._lock:
                self._stirred.wait_for(lambda: self._wanted(number) or self._over.is_set())
                if self._over.is_set():
                    return
            asked = time.monotonic()
            if not self._over.wait(self.start_up):
                try:
                    self._run(number, id)
                except Exception as error:  # told at the end
                    self.failed.append(f"{id}: {error!r}")
            with self._lock:
                self.spans.append((asked, time.monotonic()))

    def _run(self, number: int, id: str) -> None:
        with self._lock:
            role = self.box.roles.get(id)
            if role is None:
                role = self._started(id)
            else:
                role.start()
            self._stirred.wait_for(lambda: not self._wanted(number))
        if self._over.is_set():
            return
        drained = self.box.ask("drain", id)  # as the pod's preStop does
        if drained.returncode != 0:
            self.failed.append(f"drain of {id}: {drained.stdout}{drained.stderr}")
        if (status := role.end()) != 0:
            self.failed.append(f"{id} ended with {status}")

    def _started(self, id: str) -> Role:
        return self.box.start(id, self.box.host_of[id])


@dataclass
class Told:
    """What came of a trial."""

    times: Times
    least: list[int]  # by step
    replicas: list[tuple[float, int]] = field(default_factory=list)  # from when on, in seconds after the load began
    present: list[tuple[float, int]] = field(default_factory=list)
    answers: list[tuple[float, str]] = field(default_factory=list)  # when planned, and what became of it
    stalls: list[tuple[float, float]] = field(default_factory=list)  # of the machine
    device_hours: float = 0
    failed: list[str] = field(default_factory=list)

    def in_step(self, step: int, of: list[tuple[float, int]]) -> list[tuple[float, int]]:
        """The number at the beginning and each change within the step."""
        begins = self.times.begins()
        before = [each for each in of if each[0] <= begins[step]][-1:]
        return [(begins[step], before[0][1])] * bool(before) + [each for each in of if begins[step] < each[0] < begins[step + 1]]

    def reached_after(self, step: int) -> float | None:
        """Seconds into the step after which replicas stay within one of the least; none: they do not."""
        begin, end = self.times.begins()[step:step + 2]
        changes = self.in_step(step, self.replicas)
        outside = [i for i, (_, count) in enumerate(changes) if not self.least[step] <= count <= self.least[step] + 1]
        if not outside:
            return 0.0
        return None if outside[-1] + 1 == len(changes) or not begin <= end else changes[outside[-1] + 1][0] - begin

    def turns(self, step: int) -> int:
        """How often replicas change direction within the step."""
        counts = [count for _, count in self.in_step(step, self.replicas)]
        signs = [(b > a) - (b < a) for a, b in itertools.pairwise(counts) if a != b]
        return sum(a != b for a, b in itertools.pairwise(signs))

    def bad(self, step: int | None = None, after: float = 0) -> list[tuple[float, str]]:
        begins = self.times.begins()
        begin, end = (0, begins[-1]) if step is None else begins[step:step + 2]
        return [(at, what) for at, what in self.answers if begin + after <= at < end and what != "on_time"]

    def excused(self, at: float) -> bool:
        """The machine stood still."""
        return any(begin - 0.5 - DEADLINE_MS / 1000 < at < end + 1 for begin, end in self.stalls)

    def lost_to_scaling_down(self) -> list[tuple[float, str]]:
        """Requests that failed at any time, and those of the last step, in which workers go, that were late or refused."""
        unfit = {each for each in self.bad() if each[1] in ("failed", "unanswered")} | set(self.bad(len(self.least) - 1, after=2))
        return sorted(each for each in unfit if not self.excused(each[0]))

    def bad_share(self) -> float:
        return len(self.bad()) / max(1, len(self.answers))

    def series(self) -> str:
        return ", ".join(f"{at:.0f} s: {count}" for at, count in self.replicas)


class Trial:
    def __init__(self, box: Box, times: Times, most: int = 8):
        self.box, self.times, self.most = box, times, most

    def _start(self) -> None:
        box, net = self.box, self.box.net
        device = profile(box.folder / "profile.json")
        box.worker_options = ("--device", f"emulated:{device}", "--profile", str(device))
        box.start_etcd({"e1": net.host("e1")})
        for id in ("s1", "s2", "f1"):
            options = () if id == "f1" else ("--metrics", f"0.0.0.0:{METRICS_PORT}", "--autoscale-period", str(self.times.period),
                                             "--autoscale-quiet", str(self.times.quiet))
            box.start(id, net.host(id), *options)
            if id == "s1":
                box.wait_for_words(box.roles["s1"], "leads, epoch")

    def wanted(self) -> int | None:
        """As an adapter's query says: the maximum of what schedulers tell Prometheus."""
        return self._told("devices_wanted")

    def _told(self, name: str) -> int | None:
        numbers = []
        for id in ("s1", "s2"):
            with contextlib.suppress(OSError), urllib.request.urlopen(f"http://{self.box.host_of[id].at(METRICS_PORT)}/metrics", timeout=2) as response:
                numbers += re.findall(rf'^carillon_{name}{{subcluster="0"}} (\d+)', response.read().decode(), re.M)
        return max(map(int, numbers), default=None)

    def run(self) -> Told:
        told = Told(self.times, least_needed(self.box.program, self.box.folder, self.times, self.most))
        self._start()
        workers = StatefulSet(self.box, self.times.start_up)
        stalls = Stalls()
        try:
            workers.scale(1)
            ready(self.box.frontends()[0])
            wait_for(lambda: self.wanted() is not None, "a number of devices", self.box.logs)
            self._follow(told, workers)
        finally:
            stalls.end()
            workers.end()
        told.stalls = [(begin - self._began, end - self._began) for begin, end in stalls.times]
        begin, end = self._began, self._began + self.times.begins()[-1]
        told.device_hours = sum(max(0.0, min(last, end) - max(first, begin)) for first, last in workers.spans) / 3600
        told.failed = workers.failed
        return told

    def _follow(self, told: Told, workers: StatefulSet) -> None:
        box, times = self.box, self.times
        file, answers = scenario(box.folder / "steps.toml", times, devices=self.most), box.folder / "answers.csv"
        load = subprocess.Popen([str(box.program), "load", f"http://{box.http('f1')}", "--scenario", str(file), "--csv", str(answers),
                                 "--allow-failures"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self._began = time.monotonic()
        current, length = 1, times.begins()[-1]
        told.replicas.append((0.0, current))
        told.present.append((0.0, 1))
        look_at = times.period
        try:
            while (passed := time.monotonic() - self._began) < length:
                if passed >= look_at:
                    look_at += times.period
                    metric = self.wanted()
                    if metric is not None and (desired := hpa(current, metric, 1, self.most)) != current:
                        current = desired
                        workers.scale(current)
                        told.replicas.append((passed, current))
                present = self._told("devices_present")
                if present is not None and present != told.present[-1][1]:
                    told.present.append((passed, present))
                time.sleep(0.2)
            assert load.wait(LIMIT) in (0, 1)
        finally:
            if load.poll() is None:
                load.kill()
                load.wait()
        with answers.open(encoding="utf-8") as lines:
            told.answers = [(float(each["planned_ms"]) / 1000, each["outcome"]) for each in csv.DictReader(lines)]
