#!/usr/bin/env python3
"""Models that move between groups of devices while requests come: what becomes of requests in a change, beside an equal
time without.

Two groups of emulated devices divide eight models, at 70% of what the devices bear in batches of four. Every --every
seconds another division is given out (a file and SIGHUP): two models go one way and two the other. A change lasts from
the order until no model moves, and half a second more. Beside it stands as much time right before the order.

    python bench/partition_live.py              live: five minutes on two cores
    python bench/partition_live.py --simulate   the same load in virtual time, with and without the changes: ten seeds

The simulation counts whole runs with the changes beside the same runs without. Prints a table, and writes it and all
changes to build/bench/partition_live.json.
"""
import argparse
import json
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time

import harness

MODELS = [f"m{i}" for i in range(8)]
BASE_MS, SLOPE_MS, SLO_MS = 15, 3, 150
BATCHES = [1, 2, 4, 8, 16]
WEIGHTS_MB, LOAD_MS = 100, 50

SCENARIO = """# Written by bench/partition_live.py.
name = "partition_live"
seed = {seed}
duration_s = {seconds}
warmup_s = 5
[cluster]
devices = {devices}
memory = "2 GiB"
network_delay_us = 100
allowance = {{ dispatch_us = 300, answer_us = 1000, overrun = 0.05 }}  # a live server's
"""
MODEL = """[[models]]
name = "{name}"
slo_ms = {slo}
rate = {rate:.4f}
weights = "{weights} MB"
load_ms = {load}
batch_sizes = {batches}
latency = {{ table_ms = {{ {table} }} }}
"""


def table_ms():
    return [BASE_MS + SLOPE_MS * b for b in BATCHES]


def write_profile(file):
    batches = [{"batch": b, "p50_ms": ms, "p99_ms": ms} for b, ms in zip(BATCHES, table_ms())]
    file.write_text(json.dumps({"device": "bench/partition_live.py", "models": [
        {"name": name, "weights_bytes": WEIGHTS_MB * 1_000_000, "load_ms": {"p50": LOAD_MS, "p99": LOAD_MS},
         "batches": batches} for name in MODELS]}))


def write_scenario(file, args, seed):
    rate = args.load * args.devices * 4000 / (BASE_MS + 4 * SLOPE_MS) / len(MODELS)
    table = ", ".join(f"{b} = {ms}" for b, ms in zip(BATCHES, table_ms()))
    file.write_text(SCENARIO.format(seed=seed, seconds=args.seconds, devices=args.devices) + "".join(
        MODEL.format(name=name, slo=SLO_MS, rate=rate, weights=WEIGHTS_MB, load=LOAD_MS, batches=BATCHES, table=table)
        for name in MODELS))


def write_division(file, turn):
    """Turned by two models: four of them have another group than the turn before."""
    turned = MODELS[2 * turn % 8:] + MODELS[:2 * turn % 8]
    file.write_text(json.dumps({"groups": [{"models": turned[:4]}, {"models": turned[4:]}]}))


def repository(folder, sample):
    for name in MODELS:
        shutil.copytree(sample, folder / name)
        config = folder / name / "config.pbtxt"
        config.write_text(re.sub(r'^name:.*$', f'name: "{name}"', config.read_text(), flags=re.MULTILINE))
    return folder


def outcomes(metrics):
    counts = {"on_time": 0, "late": 0, "refused": 0, "failed": 0, "shed": 0}
    for (name, labels), value in metrics.items():
        if name == "carillon_requests_total":
            outcome = dict(labels)["outcome"]
            counts[outcome] = counts.get(outcome, 0) + value
    return counts


def less(after, before):
    return {outcome: after[outcome] - before.get(outcome, 0) for outcome in after}


class Changes(threading.Thread):
    """Orders a change every so many seconds, and counts what became of requests in it and right before it."""

    def __init__(self, server, division, args):
        super().__init__()
        self.server, self.division, self.args, self.changes, self.stopped = server, division, args, [], threading.Event()
        self.error = None

    def looks(self, seconds):
        """Counts every 50 ms for so long; at least two."""
        seen = [(time.monotonic(), outcomes(self.server.metrics()))]
        while seen[-1][0] - seen[0][0] < seconds:
            time.sleep(0.05)
            seen.append((time.monotonic(), outcomes(self.server.metrics())))
        return seen

    def run(self):
        try:
            turn = 0
            while not self.stopped.wait(max(0.1, self.args.every - 4)):
                before = self.looks(4)
                turn += 1
                write_division(self.division, turn)
                self.server.process.send_signal(signal.SIGHUP)
                began, start = before[-1]
                time.sleep(0.2)
                while self.server.metrics()[("carillon_models_moving", ())] > 0:
                    if time.monotonic() > began + 60:
                        raise SystemExit("models still move after 60 s")
                    time.sleep(0.02)
                moved = time.monotonic() - began
                end = self.looks(0.5)[-1]
                took = end[0] - began
                at = min(before, key=lambda look: abs(began - took - look[0]))
                self.changes.append({"moving_s": moved, "seconds": took, "change": less(end[1], start),
                                     "seconds_before": began - at[0], "before": less(start, at[1])})
        except BaseException as error:  # told where it is joined
            self.error = error

    def stop(self):
        self.stopped.set()
        self.join()
        if self.error:
            raise self.error


def live(folder, args):
    scenario, profile, division = folder / "load.toml", folder / "profile.json", folder / "division.json"
    write_scenario(scenario, args, args.seed)
    write_profile(profile)
    write_division(division, 0)
    sample = harness.samples(args.repository, "tiny_mlp") / "tiny_mlp"
    models = repository(folder / "models", sample)
    rows, runs = [], []
    for scheduler in args.schedulers.split(","):
        write_division(division, 0)
        with harness.Server(models, "--scheduler", scheduler, "--profile", profile, "--device",
                            f"emulated:{profile}*{args.devices}", "--page-cache", "2 GiB", "--partition", division) as server:
            changes = Changes(server, division, args)
            with harness.Stalls() as stalls:
                changes.start()
                told = harness.load(server.grpc_url, [], "--scenario", scenario)
                changes.stop()
        runs.append({"scheduler": scheduler, "live": told, "changes": changes.changes, "stalls": stalls.count,
                     "longest_stall_ms": stalls.worst_ms})
        for what, seconds in (("change", "seconds"), ("before", "seconds_before")):
            total = {o: sum(c[what].get(o, 0) for c in changes.changes) for o in ("on_time", "late", "refused", "failed", "shed")}
            rows.append([scheduler, "in changes" if what == "change" else "right before", len(changes.changes),
                         f"{sum(c[seconds] for c in changes.changes):.1f}", f"{sum(total.values()):.0f}",
                         *(f"{total[o]:.0f}" for o in ("late", "refused", "failed", "shed"))])
        moving = [c["moving_s"] for c in changes.changes]
        print(f"{scheduler}: {told['sent']} sent, {told['on_time']} on time, {told['unanswered']} unanswered; a change moves "
              f"four models within {min(moving):.2f} to {max(moving):.2f} s; {stalls.count} stalls of the machine, the longest "
              f"{stalls.worst_ms:.0f} ms")
    harness.table(rows, ["policy", "time", "changes", "seconds", "requests", "late", "refused", "failed", "shed"])
    harness.save("partition_live", {"runs": runs})


def simulate(folder, args):
    scenario, rows, runs = folder / "load.toml", [], []
    write_scenario(scenario, args, args.seed)
    for turn in range(4):
        write_division(folder / f"division{turn}.json", turn)
    orders = [(at, folder / f"division{(at // args.every) % 4}.json")
              for at in range(args.every, args.seconds - 1, args.every)]
    for scheduler in args.schedulers.split(","):
        for changes in (False, True):
            command = [harness.CARILLON, "simulate", scenario, "--scheduler", scheduler, "--json", "--seed",
                       f"{args.seed}..{args.seed + 9}", "--jobs", 2, "--partition", folder / "division0.json"]
            if changes:
                for at, file in orders:
                    command += ["--repartition", f"{at}={file}"]
            told = json.loads(subprocess.run([str(c) for c in command], check=True, stdout=subprocess.PIPE).stdout)["runs"]
            runs.append({"scheduler": scheduler, "changes": changes, "runs": told})
            total = {key: sum(run[key] for run in told) for key in ("offered", "on_time", "late", "refused")}
            rows.append([scheduler, len(orders) * len(told) if changes else 0, total["offered"], total["late"],
                         total["refused"], total["offered"] - total["on_time"] - total["late"] - total["refused"],
                         sum(run["loads"] for run in told)])
    harness.table(rows, ["policy", "changes", "requests", "late", "refused", "lost", "LOADs"])
    harness.save("partition_simulated", {"runs": runs})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=120)
    parser.add_argument("--every", type=int, default=8, help="seconds between changes, at least 5")
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--load", type=float, default=0.7, help="of the devices, were every batch of four")
    parser.add_argument("--schedulers", default="carillon,symphony")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--repository", default=str(harness.ROOT / "build/samples"))
    parser.add_argument("--simulate", action="store_true", help="in virtual time, over ten seeds")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        (simulate if args.simulate else live)(pathlib.Path(name), args)


if __name__ == "__main__":
    main()
