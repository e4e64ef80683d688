#!/usr/bin/env python3
"""PyTorch scripts that share a device live, under `carillon share`: what it costs, what memory they hold, who ends when.

    python bench/lanes.py                             all sections, to standard output
    python bench/lanes.py memory twenty               only these
    python bench/lanes.py memory --check              exit status 1 where a goal is missed
    python bench/lanes.py --write bench/measured/salus.md       between the marks of that file; what was not run now is as before
    python bench/lanes.py twenty --json out.json      what was measured, too

Needs torch, and of the preset `release` the targets carillon and carillon_shim. Results are kept in build/bench. Nothing
else should run on the machine meanwhile. Each job computes in one thread. MB are 10^6 bytes.

overhead  One script bare and as a job of a broker that only grants, in turn (the first pair is not counted).
          Goal: the median of the ratios of an iteration's CPU time is at most 1.01, at each width.
memory    Eight jobs that each keep 30 MB and take 220 MB besides in an iteration, as declared; 512 MB; one lane, policy
          fair. All the time, every few milliseconds: pages of tensor memory that are there. It is what lies in the
          client's two heaps (torch's blocks of 64 KiB and more, also those that are free and were not given back, also
          those of iterations before the lane is used and of what outlived one), and the lane's memory file, once. Not
          counted: the interpreter, torch itself, smaller blocks, what libraries take for themselves. Beside it the same
          scripts without lanes: with the client's private heap and nothing else of it, so that tensor memory is counted
          the same way; and as they are, where it is all memory without a file that came after torch was imported (told
          of the jobs in lanes, too).
          Goals: in lanes never more than 512 MB; without lanes two fit, and three do not.
faults    SIGKILL to a job in the middle of an iteration, and how long until it is gone (until then its threads may write) and
          the job that was held begins its own; SIGKILL to
          the broker of two jobs, another one at its place, and how long until both are listed by it.
twenty    Twenty jobs with seeded lengths (lognormal, sigma 1, about 30 s in all), arrivals (evenly over 10 s) and memory
          (declared, and really allocated; of 1 GB, so that a few fit at a time), under each policy; and the same jobs in
          `carillon simulate`. Processes are there, torch imported, before they arrive, so there is no start-up.
          What the simulator is told was measured before: an iteration alone (right before and after each policy's run;
          their mean), and the co-location model: two jobs side by side take s times as long as one, so each has the
          utilization s / 2 of the two cores, and n of them go slower by max(1, n s / 2); and what a change of the job
          in a lane costs, caches that are cold then included, where two take turns (medians, three times).
          Where several run at once (pack, best) what comes of it turns on who was there first: with arrivals 20 ms later
          the simulator itself gives mean times that differ by half. So the simulator is run 40 times, each time with
          arrivals up to 20 ms later and iterations up to 2% longer or shorter, as they differ live from run to run,
          and the policies are run live several times, in turn.
          Goal: the median of the mean completion times live within 10% of the simulator's median for every policy.
"""
import argparse
import contextlib
import itertools
import json
import os
import pathlib
import random
import select
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time

import harness
import page_count

ROOT = harness.ROOT
sys.path.insert(0, str(ROOT / "tests"))
sys.path.insert(0, str(ROOT / "python"))
from carillon import _shim  # noqa: E402
from scripted_broker import ScriptedBroker  # noqa: E402

PROGRAM = str(harness.CARILLON)
KEPT = harness.RESULTS / "lanes.json"
PLOT = ROOT / "docs/img/lanes_memory.png"
BEGIN, END = "<!-- measured: bench/lanes.py -->", "<!-- end of measured live -->"
POLICIES = ["fifo", "srtf", "pack", "fair", "best"]
MB = 1_000_000
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "python")}


class Broker:
    """`carillon share` at a socket of its own; ended by its process id."""

    def __init__(self, folder, memory, policy):
        self.socket = pathlib.Path(folder) / f"{policy}.sock"
        self.log = pathlib.Path(folder) / f"{policy}.log"
        with open(self.log, "w") as log:
            self.process = subprocess.Popen([PROGRAM, "share", "--memory", str(memory), "--policy", policy, "--socket",
                                             str(self.socket)], stdout=log, stderr=log)
        until = time.monotonic() + 30
        while not self.socket.exists():
            if self.process.poll() is not None or time.monotonic() > until:
                raise SystemExit(f"carillon share did not start:\n{self.log.read_text()}")
            time.sleep(0.05)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(30)


class Job:
    """A script that prints `ready` once torch is there, waits for a line, and prints what it did as JSON at its end."""

    def __init__(self, name, script, arguments, run=(), more=()):
        before = [sys.executable, "-m", "carillon", "run", "--name", name, *map(str, run)] if run else [sys.executable]
        self.name = name
        self.process = subprocess.Popen([*before, str(script), *map(str, arguments)], env=ENVIRONMENT | dict(more),
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.pid = self.process.pid

    def wait_until_ready(self):
        line = self.process.stdout.readline()
        if line != "ready\n":
            raise SystemExit(f"{self.name} did not start:\n{self.process.communicate()[1][-2000:]}")

    def go(self, line=""):
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def result(self, longest=600):
        out, errors = self.process.communicate(timeout=longest)
        if self.process.returncode != 0:
            raise SystemExit(f"{self.name} ended with {self.process.returncode}:\n{errors[-2000:]}")
        return json.loads(out.splitlines()[-1])


def refuse_losses(broker):
    """A job that was not taken, or was thrown out, is no part of any number here."""
    log = broker.log.read_text()
    if "evicted" in log or "refused" in log:
        raise SystemExit(f"a job was not taken, or thrown out:\n{log}")


@contextlib.contextmanager
def jobs_of():
    """A list of jobs; ends what is left of them."""
    jobs = []
    try:
        yield jobs
    finally:
        for job in jobs:
            if job.process.poll() is None:
                job.process.kill()
                job.process.wait()


def table(rows, header):
    line = lambda row: "| " + " | ".join(str(c) for c in row) + " |"
    return "\n".join([line(header), "|" + "---|" * len(header), *map(line, rows)])


def verdicts(goals):
    return table([[what, came, "yes" if met else "**no**"] for what, came, met in goals], ["goal", "came out", "met"])


# --- overhead

OVERHEAD = """
import sys, time, torch, torch.nn as nn, torch.nn.functional as F
torch.set_num_threads(1); torch.manual_seed(0)
width, n = int(sys.argv[1]), int(sys.argv[2])
m = nn.Sequential(*[nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(4)], nn.Linear(width, 16))
o = torch.optim.SGD(m.parameters(), 0.01)
x, y = torch.randn(128, width), torch.randint(0, 16, (128,))
def iteration():
    o.zero_grad(); F.cross_entropy(m(x), y).backward(); o.step()
for _ in range(n // 4): iteration()
begun = time.thread_time()
for _ in range(n): iteration()
print((time.thread_time() - begun) / n)
"""


def overhead(options):
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        script, path = pathlib.Path(folder, "script.py"), pathlib.Path(folder, "s")
        script.write_text(OVERHEAD)

        def run(*before, width):
            command = [sys.executable, *before, str(script), str(width), str(options.iterations)]
            return float(subprocess.run(command, env=ENVIRONMENT, check=True, capture_output=True, text=True).stdout)

        with ScriptedBroker(path, lane=256 << 20, recall=False, garbage=False):
            for width in options.widths:
                pairs = []
                for i in range(options.runs + 1):
                    bare = run(width=width)
                    shared = run("-m", "carillon", "run", "--socket", str(path), width=width)
                    harness.say(f"overhead: width {width}, pair {i} of {options.runs}: {shared / bare:.4f}")
                    if i:
                        pairs.append((bare, shared))
                ratios = sorted(shared / bare for bare, shared in pairs)
                rows.append({"width": width, "bare_us": statistics.median(b for b, _ in pairs) * 1e6,
                             "shared_us": statistics.median(s for _, s in pairs) * 1e6,
                             "ratio_median": statistics.median(ratios), "ratio_least": ratios[0], "ratio_most": ratios[-1]})
    return {"rows": rows, "runs": options.runs, "iterations": options.iterations}


def overhead_goals(got):
    return [(f"width {r['width']}: at most 1.01 of the bare script's time", f"{r['ratio_median']:.4f}", r["ratio_median"] <= 1.01)
            for r in got["rows"]]


def tell_overhead(got):
    rows = [[r["width"], f"{r['bare_us']:.0f}", f"{r['shared_us']:.0f}",
             f"{r['ratio_median']:.4f} ({r['ratio_least']:.4f} to {r['ratio_most']:.4f})"] for r in got["rows"]]
    return (f"Median of {got['runs']} pairs of {got['iterations']} iterations each, least and most.\n\n"
            + table(rows, ["width", "bare (us)", "as a job (us)", "ratio"]))


# --- memory

CAPACITY, PERSISTENT, EPHEMERAL = 512 * MB, 30 * MB, 220 * MB

MEMORY = """
import ctypes, json, os, sys, torch, torch.nn as nn, torch.nn.functional as F
torch.set_num_threads(1)
seed, iterations = int(sys.argv[1]), int(sys.argv[2])
torch.manual_seed(seed)
WORDS, WIDTH, HIDDEN, BLOCKS, BATCH = 52_000, 32, 2048, 13, 1056

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))

if os.environ.get("HEAP_ONLY"):
    ctypes.PyDLL(None).carillon_prepare()
print("ready", flush=True)
sys.stdin.readline()
model = nn.Sequential(nn.Embedding(WORDS, WIDTH), *[Block() for _ in range(BLOCKS)], nn.Linear(WIDTH, 64))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
words, wanted = torch.randint(0, WORDS, (160, BATCH)), torch.randint(0, 64, (160, BATCH))
for i in range(iterations):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(words[i % 160]), wanted[i % 160])
    loss.backward()
    optimizer.step()
try:
    import carillon
    counters = carillon.counters()
except ModuleNotFoundError:
    counters = None
print(json.dumps({"loss": loss.item(), "counters": counters}))
"""


class Watch:
    """What jobs hold, from when they go until all have ended: a line for each look."""

    def __init__(self, jobs, heaps, broker=None):
        self.jobs, self.broker, self.lines, self.proportional = jobs, broker, [], []
        self.pages = {job.pid: page_count.Pages(job.pid) for job in jobs}
        self.before = {pid: pages.anonymous() for pid, pages in self.pages.items()}
        self.ranges = {pid: page_count.heap_range(pid) for pid in self.pages} if heaps else {}
        self.over = threading.Event()
        self.failure = None
        self.thread = threading.Thread(target=self._run_safely)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()
        for pages in self.pages.values():
            pages.close()
        if self.failure:
            raise self.failure

    def _run_safely(self):
        try:
            self._run()
        except Exception as error:
            self.failure = error

    def _look_at(self, pid):
        """Within the heaps, or beyond what was there before; 0 of a process that is gone."""
        try:
            if self.ranges:
                return self.pages[pid].anonymous(self.ranges[pid])
            return max(0, self.pages[pid].anonymous() - self.before[pid])
        except (OSError, ProcessLookupError):
            return 0

    def _run(self):
        begun = time.monotonic()
        looked_twice = begun
        while not self.over.is_set():
            at = time.monotonic()
            lane = page_count.file_bytes(page_count.files_of(self.broker, "carillon-lane")) if self.broker else 0
            each = [self._look_at(pid) for pid in self.pages]
            self.lines.append([round(at - begun, 4), lane, *each])
            if self.broker and at - looked_twice > 5:  # now and then, as the kernel's own sum says it
                looked_twice = at
                with contextlib.suppress(OSError, ProcessLookupError):
                    pss = sum(page_count.proportional(pid, self.ranges[pid]) for pid in self.pages)
                    grown = sum(self.pages[pid].anonymous() - self.before[pid] for pid in self.pages)
                    self.proportional.append([round(at - begun, 4), pss, grown + lane])
            time.sleep(0.002)


def watched(script, folder, many, iterations, more, *, lanes, heaps):
    def measure(broker):
        with jobs_of() as jobs:
            for i in range(many):
                run = ("--socket", broker.socket, "--persistent", PERSISTENT, "--ephemeral", EPHEMERAL) if broker else ()
                jobs.append(Job(f"job-{i}", script, (i, iterations), run, more))
            for job in jobs:
                job.wait_until_ready()
            with Watch(jobs, heaps, broker.process.pid if broker else None) as watch:
                for job in jobs:
                    job.go()
                told = [job.result() for job in jobs]
        sums = [sum(line[1:]) for line in watch.lines]
        times = [line[0] for line in watch.lines]
        gaps = sorted(b - a for a, b in zip(times, times[1:]))
        return {"jobs": many, "iterations": iterations, "peak": max(sums), "lines": watch.lines,
                "looks": len(sums), "between_ms": [1000 * statistics.median(gaps), 1000 * gaps[int(0.99 * len(gaps))]],
                "smaps": watch.proportional, "told": told}

    if not lanes:
        return measure(None)
    with Broker(folder, CAPACITY, "fair") as broker:
        got = measure(broker)
        refuse_losses(broker)
    return got


def memory(options):
    got = {}
    with tempfile.TemporaryDirectory() as folder:
        script = pathlib.Path(folder, "script.py")
        script.write_text(MEMORY)
        counted = {"LD_PRELOAD": str(_shim.library()), "HEAP_ONLY": "1"}
        for name, many, iterations, more in (("lanes", 8, options.memory_iterations, {}), ("two", 2, 4, counted),
                                             ("three", 3, 4, counted), ("two_plain", 2, 4, {})):
            got[name] = watched(script, folder, many, iterations, more, lanes=name == "lanes", heaps="plain" not in name)
            harness.say(f"memory: {name}: {many} jobs, at most {got[name]['peak'] / MB:.1f} MB in {got[name]['looks']} looks, "
                        f"{got[name]['between_ms'][0]:.1f} ms from one to the next (99%: {got[name]['between_ms'][1]:.1f})")
    plot_memory(got)
    for one in got.values():  # what the page needs of these is in the picture
        one["lines"] = one["lines"][::max(1, len(one["lines"]) // 500)]
    return got


def plot_memory(got):
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), width_ratios=(2, 1), constrained_layout=True)
    lines = got["lanes"]["lines"]
    at = [line[0] for line in lines]
    left.stackplot(at, [[line[1] / MB for line in lines]] + [[line[2 + i] / MB for line in lines] for i in range(8)],
                   labels=["the lane, once", "each job's own"], linewidth=0,
                   colors=["#4878a8", *("#e0a458" if i % 2 else "#c8742f" for i in range(8))])
    left.axhline(CAPACITY / MB, color="black", linewidth=1, linestyle="--")
    left.set(title="eight jobs in one lane", xlabel="s", ylabel="tensor memory that is there (MB)", xlim=(0, at[-1]),
             ylim=(0, max(CAPACITY, got["lanes"]["peak"]) / MB * 1.1))
    left.legend(loc="lower left")
    for name, label, colour in (("two", "two", "#5b8c5a"), ("three", "three", "#a14a76"),
                                ("two_plain", "two, all their memory", "#777777")):
        one = got[name]["lines"]
        right.plot([line[0] for line in one], [sum(line[1:]) / MB for line in one], color=colour, linewidth=1, label=label)
    right.axhline(CAPACITY / MB, color="black", linewidth=1, linestyle="--")
    right.set(title="without lanes", xlabel="s", ylim=(0, None))
    right.legend()
    figure.savefig(PLOT, dpi=90)
    plt.close(figure)


def memory_goals(got):
    peak = lambda name: got[name]["peak"] / MB
    return [("eight jobs in lanes: at most 512 MB at all times", f"{peak('lanes'):.1f} MB at most", got["lanes"]["peak"] <= CAPACITY),
            ("without lanes: two fit", f"{peak('two'):.1f} MB at most", got["two"]["peak"] <= CAPACITY),
            ("and three do not", f"{peak('three'):.1f} MB at most", got["three"]["peak"] > CAPACITY)]


def tell_memory(got):
    lanes = got["lanes"]
    rows = [[what, got[name]["jobs"], got[name]["iterations"], f"{got[name]['peak'] / MB:.1f}", got[name]["looks"],
             f"{got[name]['between_ms'][0]:.1f}, {got[name]['between_ms'][1]:.1f}"]
            for name, what in (("lanes", "one lane"), ("two", "no lanes"), ("three", "no lanes"),
                                ("two_plain", "no lanes, all their memory"))]
    counters = [t["counters"] for t in lanes["told"]]
    smaps = max((line[1] for line in lanes["smaps"]), default=0)
    grown = max((line[2] for line in lanes["smaps"]), default=0)
    return ("Jobs of 30 MB persistent and 220 MB ephemeral memory on a device of 512 MB.\n\n"
            + table(rows, ["", "jobs", "iterations of each", "MB at most", "looks", "ms between looks (median, 99%)"])
            + f"\n\n/proc/PID/smaps, {len(lanes['smaps'])} times meanwhile: PSS of the same mappings {smaps / MB:.1f} MB at most; all "
            f"memory without a file that came after torch was imported, and the lane, {grown / MB:.1f} MB at most. Held "
            f"{sum(c['holds'] for c in counters)} times, {sum(c['asks'] for c in counters)} times asked for more of the lane, "
            f"{sum(c['rescued'] for c in counters)} blocks copied out of it.\n\n![Tensor memory of eight jobs over time](../../docs/img/{PLOT.name})")


# --- faults

FAULTS = """
import json, os, struct, sys, time, torch, torch.nn as nn, torch.nn.functional as F
torch.set_num_threads(1)
iterations, stuck = int(sys.argv[2]), int(sys.argv[3])
out = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
tell = lambda *pair: os.write(out, struct.pack("2d", *pair))
tell(os.getpid(), 0)
model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 16))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
x, y = torch.randn(256, 256), torch.randint(0, 16, (256,))
print("ready", flush=True)
sys.stdin.readline()
import carillon
for i in range(iterations):
    started = time.monotonic()
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    if i == stuck:
        tell(started, 0)
    while i == stuck:
        F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    tell(started, time.monotonic())
print(json.dumps({"iterations": iterations, "counters": carillon.counters()}))
"""


class Told:
    """What such a job wrote: its process id, and the start and end of each iteration."""

    def __init__(self, path):
        self.path = pathlib.Path(path)

    def all(self):
        data = self.path.read_bytes() if self.path.exists() else b""
        return list(struct.iter_unpack("2d", data[:len(data) // 16 * 16]))

    def pid(self):
        return int(self.all()[0][0])

    def first(self, holds, longest=60):
        """The first pair of which that holds."""
        until = time.monotonic() + longest
        while time.monotonic() < until:
            for pair in self.all()[1:]:
                if holds(pair):
                    return pair
            time.sleep(0.001)
        raise SystemExit("a job that should have gone on stands still")


def jobs_listed(broker):
    run = subprocess.run([PROGRAM, "jobs", "--json", "--socket", str(broker.socket)], capture_output=True, text=True)
    return json.loads(run.stdout)["jobs"] if run.returncode == 0 else []


def faults(options):
    killed, again, lost = [], [], 0
    with tempfile.TemporaryDirectory() as folder, jobs_of() as jobs:
        script = pathlib.Path(folder, "script.py")
        script.write_text(FAULTS)
        numbers = itertools.count()

        def start(broker, iterations, stuck=-1):
            told = Told(pathlib.Path(folder, f"told-{next(numbers)}"))
            job = Job("job", script, (told.path, iterations, stuck),
                      ("--socket", broker.socket, "--persistent", 20 * MB, "--ephemeral", 600 * MB))
            jobs.append(job)
            job.wait_until_ready()
            job.go()
            return job, told

        with Broker(folder, TWENTY_CAPACITY, "fair") as broker:
            survivor, goes_on = start(broker, 1_000_000)
            goes_on.first(lambda pair: pair[1] > 0)
            for i in range(options.kills):
                victim, told = start(broker, 40, 30)
                told.first(lambda pair: pair[1] == 0)
                time.sleep(0.1)  # the other is held by now
                process = os.pidfd_open(told.pid())
                at = time.monotonic()
                os.kill(told.pid(), signal.SIGKILL)
                select.select([process], [], [])
                gone = time.monotonic()
                os.close(process)
                killed.append((gone - at, goes_on.first(lambda pair, at=at: pair[0] > at)[0] - at))
                victim.process.wait()
                harness.say(f"faults: kill {i + 1} of {options.kills}: gone after {1000 * killed[-1][0]:.2f} ms, the next one starts "
                            f"after {1000 * killed[-1][1]:.2f} ms")
            os.kill(goes_on.pid(), signal.SIGKILL)
            survivor.process.wait()
        iterations = 400 * (options.kills + 2)
        broker = Broker(folder, TWENTY_CAPACITY, "fair")
        both = [start(broker, iterations) for _ in range(2)]
        for _, told in both:
            told.first(lambda pair: pair[1] > 0)
        for i in range(options.kills):
            time.sleep(0.3)
            broker.process.kill()
            broker.process.wait()
            at = time.monotonic()
            broker = Broker(folder, TWENTY_CAPACITY, "fair")
            while len(listed := jobs_listed(broker)) < 2 or any(job["state"] == "starting" for job in listed):
                if time.monotonic() > at + 30:
                    raise SystemExit("the jobs do not attach again")
                time.sleep(0.005)
            again.append(time.monotonic() - at)
            for _, told in both:
                told.first(lambda pair, at=at: pair[0] > at)
            harness.say(f"faults: restart {i + 1} of {options.kills}: {1000 * again[-1]:.0f} ms")
        for job, told in both:
            job.result()
            lost += iterations - sum(pair[1] > 0 for pair in told.all()[1:])
        broker.__exit__()
    return {"killed_s": killed, "again_s": again, "lost": lost, "iterations": 2 * iterations}


def faults_goals(got):
    freed = [start - gone for gone, start in got["killed_s"]]
    return [("a job is killed in an iteration: the next one starts within 10 ms of its end", f"{1000 * max(freed):.1f} ms at most",
             max(freed) <= 0.01),
            ("the broker is killed and started again: held jobs are there again within 1 s", f"{max(got['again_s']):.2f} s at most",
             max(got["again_s"]) <= 1),
            ("and no iteration is lost", f"{got['lost']} of {got['iterations']}", got["lost"] == 0)]


def tell_faults(got):
    def row(what, values):
        return [what, len(values), *(f"{1000 * v:.2f}" for v in (statistics.median(values), max(values)))]

    return table([row("SIGKILL in an iteration, to the end of the process (the system frees its memory)",
                      [gone for gone, _ in got["killed_s"]]),
                  row("and to the start of the next job's iteration", [start for _, start in got["killed_s"]]),
                  row("broker started again, to both jobs there", got["again_s"])], ["", "times", "ms, median", "most"])


# --- twenty jobs, live and simulated

TWENTY_CAPACITY, SEED = 1000 * MB, 1

# Iterations of fixed work, and as much memory as was declared; most of it is never written to, and so costs nothing.
TWENTY = """
import json, sys, time, torch, torch.nn as nn, torch.nn.functional as F
torch.set_num_threads(1)
torch.manual_seed(0)
iterations, persistent, ephemeral, each = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256), nn.ReLU(), nn.Linear(256, 16))
x, y = torch.randn(400, 256), torch.randint(0, 16, (400,))
stays = torch.empty(persistent - 8_000_000, dtype=torch.uint8)
with torch.no_grad():
    for _ in range(5):
        F.cross_entropy(model.eval()(x), y)
model.train()
print("ready", flush=True)
start = float(sys.stdin.readline())
while (left := start - time.monotonic()) > 0:
    time.sleep(left)
import carillon
times = []  # of each iteration: its start and end, and whether the job was held since the one before
holds = 0
for i in range(iterations):
    started = time.monotonic()
    loss = F.cross_entropy(model(x), y)
    besides = torch.empty(ephemeral - 16_000_000, dtype=torch.uint8)
    model.zero_grad()
    loss.backward()
    del besides
    with torch.no_grad():
        for p in model.parameters():
            p -= 0.01 * p.grad
    done = time.monotonic()
    if i == 0:
        first = done
    times.append((started, done, carillon.counters()["holds"] > holds))
    holds = carillon.counters()["holds"]
    carillon.remaining(max((iterations - i - 1) * each, 1e-6))
    carillon.step()
print(json.dumps({"arrived": start, "first": first, "done": done, "times": times, "counters": carillon.counters()}))
"""


def twenty_jobs():
    rng = random.Random(SEED)
    lengths = [rng.lognormvariate(0, 1) for _ in range(20)]
    arrivals = sorted(rng.uniform(0, 10) for _ in range(20))
    return [{"name": f"job-{i:02}", "share": length / sum(lengths), "arrival_s": round(arrival, 3),
             "persistent": rng.randrange(20, 81) * MB, "ephemeral": rng.randrange(100, 401) * MB}
            for i, (length, arrival) in enumerate(zip(lengths, arrivals, strict=True))]


def run_live(script, folder, policy, jobs, each):
    """What each of the jobs said."""
    with Broker(folder, TWENTY_CAPACITY, policy) as broker, jobs_of() as live:
        for job in jobs:
            run = ("--socket", broker.socket, "--persistent", job["persistent"], "--ephemeral", job["ephemeral"],
                   "--remaining", job["iterations"] * each)
            live.append(Job(job["name"], script, (job["iterations"], job["persistent"], job["ephemeral"], each), run))
        for job in live:
            job.wait_until_ready()
        start = time.monotonic() + 0.5
        for job, wanted in zip(live, jobs, strict=True):
            job.go(start + wanted["arrival_s"])
        told = [job.result() for job in live]
        refuse_losses(broker)
    return told


def alone_ms(script, folder, each, many=1, iterations=60):
    """An iteration of a job that has the device to itself, or of each of several side by side."""
    job = {"name": "alone", "iterations": iterations, "arrival_s": 0, "persistent": 20 * MB, "ephemeral": 100 * MB}
    told = run_live(script, folder, "pack", [job] * many, each)
    # While all of them run: the slowest goes on alone at the end.
    return statistics.mean(1000 * (t["done"] - t["first"]) / (iterations - 1) for t in told)


def simulated(folder, jobs, policy, iteration_ms, utilization, switch):
    """The simulator's figures, a list of each."""
    runs = []
    for seed in range(40):
        rng = random.Random(seed)
        later = [{**job, "arrival_s": round(job["arrival_s"] + rng.uniform(0, 0.02), 4)} for job in jobs]
        runs.append(simulated_once(folder, later, policy, iteration_ms * rng.uniform(0.98, 1.02), utilization, switch))
    return {key: [run[key] for run in runs] for key in ("mean_jct_s", "p95_jct_s", "makespan_s", "most_lanes")}


def switch_ms(script, folder, each, iterations=200):
    """What a change of the job in a lane costs, with two that take turns: from the end of one's last iteration to the start of
    the other's first, and by how much that first one is longer than others, as caches are cold then."""
    job = {"name": "turns", "iterations": iterations, "arrival_s": 0, "persistent": 20 * MB, "ephemeral": 600 * MB}
    both = sorted((*t, number) for number, told in enumerate(run_live(script, folder, "fair", [job] * 2, each))
                  for t in told["times"][5:])
    gaps = [b[0] - a[1] for a, b in itertools.pairwise(both) if a[3] != b[3]]
    longer = statistics.median(t[1] - t[0] for t in both if t[2]) - statistics.median(t[1] - t[0] for t in both if not t[2])
    return 1000 * (statistics.median(gaps) + longer)


def simulated_once(folder, jobs, policy, iteration_ms, utilization, switch):
    file = pathlib.Path(folder, "jobs.toml")
    lines = [f'name = "twenty"', "[device]", f'memory = "{TWENTY_CAPACITY}"', f"switch_us = {1000 * switch:.1f}"]
    for job in jobs:
        lines += ["[[jobs]]", f'name = "{job["name"]}"', f'iterations = {job["iterations"]}', f"iteration_ms = {iteration_ms:.4f}",
                  f'persistent = "{job["persistent"]}"', f'ephemeral = "{job["ephemeral"]}"', f'arrival_s = {job["arrival_s"]}',
                  f"utilization = {utilization:.4f}"]
    file.write_text("\n".join(lines) + "\n")
    command = [PROGRAM, "simulate", str(file), "--scheduler", policy, "--json"]
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode != 0:
        sys.exit(f"{' '.join(command)}: {run.stderr.strip()}")
    return json.loads(run.stdout)


def summary(told):
    """As the simulator's figures are defined."""
    times = sorted(t["done"] - t["arrived"] for t in told)
    return {"mean_jct_s": statistics.mean(times), "p95_jct_s": times[-(-95 * len(times) // 100) - 1],
            "makespan_s": max(t["done"] for t in told) - min(t["arrived"] for t in told),
            "holds": sum(t["counters"]["holds"] for t in told),
            "iteration_ms": sum(t["counters"]["busy_ns"] for t in told) / 1e6 / sum(t["counters"]["iterations"] for t in told)}


def twenty(options):
    jobs, rows = twenty_jobs(), []
    with tempfile.TemporaryDirectory() as folder:
        script = pathlib.Path(folder, "script.py")
        script.write_text(TWENTY)
        before = alone_ms(script, folder, 0.02)
        together = alone_ms(script, folder, 0.02, many=2)
        after = alone_ms(script, folder, 0.02)
        side_by_side = together / statistics.mean((before, after))
        utilization = min(1.0, max(0.5, side_by_side / 2))
        switch = statistics.median(switch_ms(script, folder, statistics.mean((before, after)) / 1000) for _ in range(3))
        for job in jobs:
            job["iterations"] = max(3, round(job["share"] * options.twenty_seconds * 1000 / after))
        harness.say(f"twenty: an iteration alone {before:.2f}, {after:.2f} ms; two side by side take {side_by_side:.3f} times as "
                    f"long: utilization {utilization:.3f}; a change of jobs costs {switch:.2f} ms")
        live = {policy: [] for policy in options.policies}
        alone = {policy: [] for policy in options.policies}
        for turn in range(options.twenty_runs):
            for policy in options.policies:
                before = after
                live[policy].append(summary(run_live(script, folder, policy, jobs, before / 1000)))
                after = alone_ms(script, folder, 0.02)
                alone[policy] += [before, after]
                harness.say(f"twenty: run {turn + 1} of {options.twenty_runs}, {policy}: alone {before:.2f}, {after:.2f} ms; "
                            f"mean JCT {live[policy][-1]['mean_jct_s']:.2f} s")
        for policy in options.policies:
            told = simulated(folder, jobs, policy, statistics.mean(alone[policy]), utilization, switch)
            rows.append({"policy": policy, "alone_ms": alone[policy], "simulated": told,
                         "live": {key: [run[key] for run in live[policy]] for key in live[policy][0]}})
    return {"jobs": jobs, "side_by_side": side_by_side, "utilization": utilization, "switch_ms": switch, "rows": rows}


def twenty_ratio(row, key="mean_jct_s"):
    return statistics.median(row["live"][key]) / statistics.median(row["simulated"][key])


def twenty_goals(got):
    return [(f"{r['policy']}: mean JCT within 10% of the simulator's", f"{100 * (twenty_ratio(r) - 1):+.1f}%",
             abs(twenty_ratio(r) - 1) <= 0.1) for r in got["rows"]]


def tell_twenty(got):
    def spread(values):
        return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"

    rows = []
    for r in got["rows"]:
        row = [r["policy"]]
        for key in ("mean_jct_s", "makespan_s"):
            row += [spread(r["live"][key]), spread(r["simulated"][key]), f"{twenty_ratio(r, key):.3f}"]
        rows.append([*row, round(statistics.median(r["live"]["holds"])), max(r["simulated"]["most_lanes"]),
                     f"{statistics.mean(r['alone_ms']):.2f}, {statistics.mean(r['live']['iteration_ms']):.2f}"])
    return (f"{len(got['jobs'])} jobs of {sum(j['iterations'] for j in got['jobs'])} iterations in all, on 1 GB. Two side by side "
            f"took {got['side_by_side']:.3f} times as long as one alone: utilization {got['utilization']:.3f}; a change of jobs cost {got['switch_ms']:.2f} ms. Seconds: the median, "
            f"least and most of {len(got['rows'][0]['live']['holds'])} runs live and 40 simulated, which differ by as much as live "
            "ones do.\n\n"
            + table(rows, ["policy", "mean JCT live", "simulated", "ratio", "makespan live", "simulated", "ratio", "holds live",
                           "lanes (simulated)", "iteration alone, and in the run (ms)"]))


SECTIONS = {"overhead": ("What a script pays that nobody recalls", overhead, tell_overhead, overhead_goals),
            "memory": ("Tensor memory of eight jobs", memory, tell_memory, memory_goals),
            "faults": ("Killed jobs and brokers", faults, tell_faults, faults_goals),
            "twenty": ("Twenty jobs, live and simulated", twenty, tell_twenty, twenty_goals)}


def told(kept):
    text = ["Of this machine, unlike what is above: written by `python bench/lanes.py --write bench/measured/salus.md` (its `--help` has "
            "what is measured how, and why)."]
    for name, (title, _, tell, goals) in SECTIONS.items():
        if name in kept:
            where = kept[name]["machine"]
            text += ["", f"## {title}", "", f"`python bench/lanes.py {name}`, commit {where['commit']}, {where['date']}; {where['cpu']}, "
                     f"{where['cores']} cores of a shared machine.", "", tell(kept[name]), "", verdicts(goals(kept[name]))]
    return "\n".join(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=f"of {', '.join(SECTIONS)}; none: all")
    parser.add_argument("--write", type=pathlib.Path, metavar="FILE", help="between the marks of a file instead of standard output")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="what was measured")
    parser.add_argument("--check", action="store_true", help="exit status 1 where a goal is missed")
    parser.add_argument("--runs", type=int, default=7, help="overhead: pairs")
    parser.add_argument("--iterations", type=int, default=300, help="overhead: of each run")
    parser.add_argument("--widths", type=int, nargs="+", default=[128, 512, 1024], help="overhead: of the layers")
    parser.add_argument("--memory-iterations", type=int, default=10, help="memory: of each of the eight jobs")
    parser.add_argument("--kills", type=int, default=20, help="faults: of jobs, and of brokers")
    parser.add_argument("--twenty-seconds", type=float, default=30, help="twenty: all jobs together, alone")
    parser.add_argument("--twenty-runs", type=int, default=3, help="twenty: live, of each policy")
    parser.add_argument("--policies", nargs="+", default=POLICIES, choices=POLICIES, metavar="POLICY", help="twenty: of these")
    options = parser.parse_args()
    for name in options.sections:
        if name not in SECTIONS:
            parser.error(f"there is no section {name}; there are {', '.join(SECTIONS)}")
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    missed = []
    for name in options.sections or SECTIONS:
        kept[name] = {"machine": harness.machine(), **SECTIONS[name][1](options)}
        KEPT.parent.mkdir(parents=True, exist_ok=True)
        KEPT.write_text(json.dumps(kept))
        missed += [f"{what}: {came}" for what, came, met in SECTIONS[name][3](kept[name]) if not met]
    if options.json:
        options.json.write_text(json.dumps({name: kept[name] for name in options.sections or SECTIONS}, indent=1) + "\n")
    text = told(kept)
    if options.write:
        harness.write_between(options.write, BEGIN, END, text)
    else:
        print(text)
    for goal in missed:
        harness.say(f"missed: {goal}")
    return 1 if missed and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
