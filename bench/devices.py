#!/usr/bin/env python3
"""Several devices: does a live server do with them what the simulator says, and what becomes of requests when some die?

Eight emulated devices, whose times are a profile's (a batch of b takes `base + slope * b` ms), serve the sample models
under the arrivals of a scenario that is simulated, too.

    python bench/devices.py                     live beside simulated: on-time rates, devices in use
    python bench/devices.py --faults            one device killed and one hung under load: on-time rate by second

Devices in use are counted second by second: those that ran a batch in it.
"""
import argparse
import json
import statistics
import subprocess
import tempfile
import threading
import time
import pathlib

import harness

# Milliseconds: base, slope (of a request more), SLO; and the share of the devices' time, were every batch of four.
MODELS = {"tiny_mlp": (20, 4, 200, 0.4), "tiny_cnn": (30, 8, 300, 0.35), "tiny_encoder": (15, 3, 120, 0.25)}
BATCHES = [1, 2, 4, 8, 16]
WEIGHTS_MB, LOAD_MS = 100, 10

SCENARIO = """# Written by bench/devices.py.
name = "devices"
seed = {seed}
duration_s = {seconds}
warmup_s = {warmup}

[cluster]
devices = {devices}
memory = "2 GiB"
network_delay_us = {delay_us}
allowance = {{ dispatch_us = 300, answer_us = 1000, overrun = 0.05 }}  # a live server's
"""

MODEL = """
[[models]]
name = "{name}"
slo_ms = {slo}
rate = {rate:.4f}
weights = "{weights} MB"
load_ms = {load}
batch_sizes = {batches}
latency = {{ table_ms = {{ {table} }} }}
"""


def table_of(name):
    base, slope, _, _ = MODELS[name]
    return [base + slope * b for b in BATCHES]


def write_profile(file):
    def times(ms):
        return {"p50_ms": ms, "p99_ms": ms}
    file.write_text(json.dumps({"device": "bench/devices.py", "models": [
        {"name": name, "weights_bytes": WEIGHTS_MB * 1_000_000, "load_ms": {"p50": LOAD_MS, "p99": LOAD_MS},
         "batches": [{"batch": b, **times(ms)} for b, ms in zip(BATCHES, table_of(name))]} for name in MODELS]}))


def write_scenario(file, args, utilization):
    text = SCENARIO.format(seed=args.seed, seconds=args.seconds, warmup=args.warmup, devices=args.devices,
                           delay_us=args.delay_us)
    for name, (base, slope, slo, share) in MODELS.items():
        of_four = (base + 4 * slope) / 4
        text += MODEL.format(name=name, slo=slo, rate=1000 * utilization * args.devices * share / of_four,
                             weights=WEIGHTS_MB, load=LOAD_MS, batches=BATCHES,
                             table=", ".join(f"{b} = {ms}" for b, ms in zip(BATCHES, table_of(name))))
    file.write_text(text)


class Watch:
    """Reads the counters of a server second by second."""

    def __init__(self, server):
        self.server, self.seconds, self.done = server, [], threading.Event()
        self.thread = threading.Thread(target=self.run)

    def look(self):
        metrics = self.server.metrics()
        executed = {dict(labels)["device"]: value for (name, labels), value in metrics.items()
                    if name == "carillon_device_executions_total"}
        up = sum(value for (name, _), value in metrics.items() if name == "carillon_device_up")
        outcomes = {}
        for (name, labels), value in metrics.items():
            if name == "carillon_requests_total":
                outcome = dict(labels)["outcome"]
                outcomes[outcome] = outcomes.get(outcome, 0) + value
        advice = {what: metrics[(f"carillon_autoscale_{what}_devices", ())] for what in ("add", "release")}
        return {"executed": executed, "up": up, "outcomes": outcomes, "advice": advice}

    def run(self):
        last, at = self.look(), time.monotonic()
        while not self.done.wait(max(0, at + 1 - time.monotonic())):
            at += 1
            now = self.look()
            more = {o: now["outcomes"].get(o, 0) - last["outcomes"].get(o, 0) for o in now["outcomes"]}
            self.seconds.append({"in_use": sum(now["executed"][d] > last["executed"][d] for d in now["executed"]),
                                 "up": now["up"], "advice": now["advice"], **more})
            last = now

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.done.set()
        self.thread.join()


def serve(models, profile, args, scheduler, *options):
    return harness.Server(models, "--scheduler", scheduler, "--profile", profile, "--device",
                          f"emulated:{profile}*{args.devices}", "--page-cache", "2 GiB", *options)


def compare(models, profile, scenario, args):
    rows, runs = [], []
    for utilization in args.utilizations:
        write_scenario(scenario, args, utilization)
        for scheduler in args.schedulers.split(","):
            simulated = json.loads(subprocess.run(
                [harness.CARILLON, "simulate", scenario, "--scheduler", scheduler, "--interval", "1", "--json"],
                check=True, stdout=subprocess.PIPE, text=True).stdout)
            with serve(models, profile, args, scheduler) as server, Watch(server) as watch:
                live = harness.load(server.grpc_url, [], "--scenario", scenario)
            used = statistics.mean(s["in_use"] for s in watch.seconds[args.warmup:args.seconds])
            virtually = statistics.mean(simulated["series"]["devices_used"][args.warmup:args.seconds])
            on_time = 100 * live["on_time_rate"], 100 * simulated["finish_rate"]
            advice = watch.seconds[args.seconds - 1]["advice"]
            runs.append({"utilization": utilization, "scheduler": scheduler, "live": live, "simulated": simulated,
                         "seconds": watch.seconds})
            rows.append([utilization, scheduler, live["sent"], f"{on_time[0]:.2f}", f"{on_time[1]:.2f}",
                         f"{on_time[0] - on_time[1]:+.2f}", f"{used:.1f}", f"{virtually:.1f}",
                         f"{used - virtually:+.1f}", f"+{advice['add']:.0f} -{advice['release']:.0f}"])
    harness.table(rows, ["load", "scheduler", "sent", "on time % live", "simulated", "points", "in use live",
                         "simulated", "apart", "advice"])
    apart = [r for r in rows if abs(float(r[5])) > 2 or abs(float(r[8])) > 1]
    print(f"{len(rows) - len(apart)} of {len(rows)} within 2 points and one device")
    harness.save("devices", {"runs": runs})


def break_some(models, profile, scenario, args):
    """Device 0 fails a third into the run and device 1 hangs then, both for a sixth of it."""
    runs = []
    utilization = args.utilizations[0]
    write_scenario(scenario, args, utilization)
    start, lasts = args.seconds // 3, args.seconds // 6
    for scheduler in args.schedulers.split(","):
        faults = f"kill=0@{start}s+{lasts}s,hang=1@{start}s+{lasts}s"
        with serve(models, profile, args, scheduler, "--emulated-faults", faults) as server, Watch(server) as watch:
            live = harness.load(server.grpc_url, [], "--scenario", scenario)
            counted = watch.look()["outcomes"]
        runs.append({"scheduler": scheduler, "faults": faults, "live": live, "seconds": watch.seconds})
        rate = lambda part: 100 * sum(s["on_time"] for s in part) / max(1, sum(
            sum(s[o] for o in ("on_time", "late", "refused", "failed")) for s in part))
        # Outages count from when the server is ready, which is up to two seconds before the load begins.
        spans = {"before": watch.seconds[args.warmup:start - 2], "while broken": watch.seconds[start - 2:start + lasts + 2],
                 "after": watch.seconds[start + lasts + 4:args.seconds]}
        print(f"\n{scheduler}, load {utilization}, {faults}: {live['sent']} sent after the warm-up, "
              f"{live['unanswered']} unanswered; the server counts {sum(counted.values()):.0f} answers in all")
        harness.table([[what, f"{rate(part):.2f}", min(s["up"] for s in part), max(s["in_use"] for s in part)]
                       for what, part in spans.items()], ["time", "on time %", "devices up, least", "in use, most"])
    harness.save("devices_faults", {"runs": runs})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--utilizations", type=lambda t: [float(x) for x in t.split(",")], default=[0.4, 0.7, 1.2],
                        help="of the devices, were every batch of four; --faults takes the first")
    parser.add_argument("--schedulers", default="clockwork,symphony,eager,orloj,nexus,fcfs")
    parser.add_argument("--delay-us", type=float, default=100, help="one way, of the simulated network")
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--repository", default=str(harness.ROOT / "build/samples"))
    parser.add_argument("--faults", action="store_true", help="break two devices under load, live")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, \
            harness.only(harness.samples(args.repository, *MODELS), *MODELS) as models:
        profile, scenario = pathlib.Path(folder) / "profile.json", pathlib.Path(folder) / "devices.toml"
        write_profile(profile)
        (break_some if args.faults else compare)(models, profile, scenario, args)


if __name__ == "__main__":
    main()
