#!/usr/bin/env python3
"""The goodput of a cluster beside that of one process: the highest rate with 99% of the requests on time.

Both stand on this machine, with the same models, emulated devices, policy and seeds: `carillon serve`, and a cluster of an
etcd, a scheduler, two workers that share the devices, and a frontend. Devices only wait, so links and processors are what a
cluster can lose by. Each side's rate is sought by bisection; the sides take turns, and begin at the simulator's goodput. A
run in which the machine or the load generator stood still for more than 5 ms is left out, counted and repeated.

Workloads: both rows of Symphony's Table 2, and the A100 zoo of its figure 9 (37 models), with no batch larger than
--batch. Rates are what two cores carry beside the load generator: ResNet-50 has --devices-resnet50 devices in place of 8,
the zoo has 4 in place of 64.

    python bench/cluster_goodput.py [--seconds 10] [--precision 0.005] [--workloads inceptionresnetv2 resnet50 zoo]
"""
import argparse
import contextlib
import csv
import json
import pathlib
import subprocess
import tempfile

import emulated
import harness
from cluster import Cluster


def workload(name, args):
    """{model: (alpha, beta, slo_ms)}, and how many devices."""
    if name == "inceptionresnetv2":
        return {name: (5.090, 18.368, 70)}, 8
    if name == "resnet50":
        return {name: (1.053, 5.072, 25)}, args.devices_resnet50
    with (harness.ROOT / "profiles/a100_symphony_table4.csv").open(encoding="ascii") as file:
        return {row["model"]: (float(row["alpha_ms"]), float(row["beta_ms"]), float(row["slo_ms"])) for row in csv.DictReader(file)}, 4


def scenario(folder, name, models, devices, batch):
    text = f"""name = "{name}"
duration_s = 20
warmup_s = 2
[cluster]
devices = {devices}
allowance = {{ dispatch_us = 300, answer_us = 1000, overrun = 0.05 }}  # a live server's
[load]
rate = 500
"""
    for model, (alpha, beta, slo) in models.items():
        text += f'[[models]]\nname = "{model}"\nslo_ms = {slo}\nmax_batch = {batch}\nlatency = {{ alpha_ms = {alpha}, beta_ms = {beta} }}\n'
    file = pathlib.Path(folder) / f"{name}.toml"
    file.write_text(text)
    return file


class Busy(Exception):
    """The machine stands still too often for a measurement."""


class Side:
    """One side's search. `rate` is the next to try; `found` is the highest that was good once the search is over."""

    def __init__(self, name, url, models, start, args):
        self.name, self.url, self.models, self.args = name, url, models, args
        self.low, self.high, self.rate = None, None, start
        self.runs, self.left_out = [], 0

    def over(self):
        return self.low is not None and self.high is not None and self.high / self.low <= 1 + self.args.precision

    def once(self, rate, seed):
        """The share on time; none if the run does not count."""
        with tempfile.NamedTemporaryFile(suffix=".csv") as file, emulated.Watch() as watch:
            each = rate / len(self.models)
            told = harness.load(self.url, [f"{m},deadline={slo}" for m, (_, _, slo) in self.models.items()], "--rate", each, "--seed", seed,
                                "--duration", self.args.seconds, "--warmup", self.args.warmup, "--connections", 2000, "--csv", file.name)
            total = told.get("total", told)
            rows = list(csv.DictReader(open(file.name, encoding="ascii")))
        generator = max(float(r["sent_ms"]) - float(r["planned_ms"]) for r in rows if r["outcome"] != "unanswered")
        stalled = watch.times or generator > 5
        self.runs.append({"rate": rate, "seed": seed, "on_time": total["on_time_rate"], "p99_ms": total["p99_ms"],
                          "generator_late_ms": generator, "stalls": len(watch.times)})
        if stalled and not self.args.keep_stalled:
            self.left_out += 1
            if self.left_out > self.args.most_left_out:
                raise Busy(f"{self.name}: the machine stands still too often at {rate:.0f}/s: {self.runs[-3:]}")
            return None
        return total["on_time_rate"]

    def step(self):
        shares = []
        for seed in range(1, self.args.seeds + 1):
            while (share := self.once(self.rate, seed)) is None:
                pass
            shares.append(share)
        good = sum(shares) / len(shares) >= 0.99
        harness.say(f"{self.name}: {self.rate:.1f}/s: {100 * sum(shares) / len(shares):.2f}% on time")
        if good:
            self.low = self.rate
        else:
            self.high = self.rate
        if self.high is None:
            self.rate = self.low * 1.06
        elif self.low is None:
            self.rate = self.high / 1.06
        else:
            self.rate = (self.low * self.high) ** 0.5


def measure(name, args):
    models, devices = workload(name, args)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        file = scenario(folder, name, models, devices, args.batch)
        simulated = json.loads(subprocess.run([harness.CARILLON, "goodput", file, "--scheduler", args.scheduler, "--jobs", "1", "--json"],
                                              check=True, stdout=subprocess.PIPE, text=True).stdout)
        simulated = simulated.get("searches", [simulated])[0]["goodput_rps"]
        repository, profile = emulated.repository(folder, {m: v[:2] for m, v in models.items()}, args.batch)
        serve = stack.enter_context(harness.Server(repository, "--scheduler", args.scheduler, *emulated.devices(profile, devices)))
        cluster = Cluster(stack, f"{folder}/box", repository, schedulers=1, workers=2, scheduler_options=("--scheduler", args.scheduler),
                          worker_options=emulated.devices(profile, devices // 2))
        cluster.until(cluster.whole)
        sides = [Side("serve", serve.http_url, models, 0.95 * simulated, args), Side("cluster", cluster.url, models, 0.95 * simulated, args)]
        while not all(side.over() for side in sides):
            for side in sides:
                if not side.over():
                    side.step()
    one, many = (side.low for side in sides)
    return {"workload": name, "devices": devices, "simulated_rps": simulated, "serve_rps": one, "cluster_rps": many,
            "left_out": sum(side.left_out for side in sides), "runs": {side.name: side.runs for side in sides}}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", nargs="+", default=["inceptionresnetv2", "resnet50", "zoo"])
    parser.add_argument("--scheduler", default="symphony")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--warmup", type=float, default=1)
    parser.add_argument("--seeds", type=int, default=1, help="runs of each rate")
    parser.add_argument("--precision", type=float, default=0.005)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--devices-resnet50", type=int, default=2)
    parser.add_argument("--most-left-out", type=int, default=60, help="of a side's search")
    parser.add_argument("--keep-stalled", action="store_true", help="leaves nothing out; for trials")
    args = parser.parse_args()
    runs = []
    for name in args.workloads:
        try:
            runs.append(measure(name, args))
        except Busy as why:
            print(f"{name}: {why}")
    harness.table([[r["workload"], r["devices"], f"{r['simulated_rps']:.0f}", f"{r['serve_rps']:.0f}", f"{r['cluster_rps']:.0f}",
                    f"{r['cluster_rps'] / r['serve_rps']:.3f}", r["left_out"]] for r in runs],
                  ["workload", "devices", "simulated, 1/s", "serve, 1/s", "cluster, 1/s", "ratio", "runs left out"])
    harness.save("cluster_goodput", {"runs": runs})
    print(harness.machine())


if __name__ == "__main__":
    main()
