#!/usr/bin/env python3
"""Do simulated and real agree? Four sample models on the CPU, served live and simulated under the same arrivals.

Measures the models first (`carillon profile`), writes a scenario from what it measured, then for each policy sends the
scenario's requests to a live server (`carillon load --scenario`) and simulates the same file (`carillon simulate`).
Kernels run on one thread, so that the load generator and the frontends have a core of their own.

    python bench/agree.py [--seconds 120] [--schedulers clockwork,symphony,nexus] [--utilization 0.7]
"""
import argparse
import json
import subprocess
import sys

import harness

# Shares of the device's time, and SLOs in batch-1 times of the slowest model: enough for a few batches to wait in line.
MODELS = {"mobilenetv2": (0.25, 3.0), "resnet18": (0.3, 4.0), "resnet50": (0.2, 6.0), "distilbert": (0.25, 8.0)}

SCENARIO = """# Written by bench/agree.py from profiles measured on this machine.
name = "agree"
seed = 11
duration_s = {seconds}
warmup_s = 5

[cluster]
devices = 1
network_delay_us = {delay_us}
allowance = {{ dispatch_us = 300, answer_us = 1000, overrun = 0.05 }}  # a live server's
"""

MODEL = """
[[models]]
name = "{name}"
slo_ms = {slo_ms:.1f}
rate = {rate:.4f}
batch_sizes = {batch_sizes}
latency = {{ csv = "profile.csv", row = "{name}" }}
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--repository", default=str(harness.ROOT / "build/samples"))
    parser.add_argument("--schedulers", default="clockwork,symphony,nexus")
    parser.add_argument("--utilization", type=float, default=0.7, help="of the device, if every batch were of one")
    parser.add_argument("--delay-us", type=float, default=100, help="one way, of the simulated network")
    parser.add_argument("--repeats", type=int, default=100, help="measurements of each batch size")
    args = parser.parse_args()
    repository = harness.samples(args.repository, *MODELS)
    folder = harness.RESULTS / "agree"
    folder.mkdir(parents=True, exist_ok=True)

    with harness.only(repository, *MODELS) as models:
        profile_file = folder / "profile.json"
        subprocess.run([harness.CARILLON, "profile", "--models", models, "--threads", "1", "--repeats",
                        str(args.repeats), "--out", profile_file, "--csv", folder / "profile.csv"],
                       check=True, stdout=sys.stderr)
        profile = {m["name"]: m for m in json.loads(profile_file.read_text())["models"]}
        one = {name: profile[name]["batches"][0]["mean_ms"] for name in MODELS}
        slowest = max(one.values())
        text = SCENARIO.format(seconds=args.seconds, delay_us=args.delay_us)
        for name, (share, slo) in MODELS.items():
            text += MODEL.format(name=name, slo_ms=slo * slowest, rate=args.utilization * share * 1000 / one[name],
                                 batch_sizes=[b["batch"] for b in profile[name]["batches"]])
        scenario = folder / "agree.toml"
        scenario.write_text(text)

        rows, runs = [], []
        for scheduler in args.schedulers.split(","):
            simulated = json.loads(subprocess.run(
                [harness.CARILLON, "simulate", scenario, "--scheduler", scheduler, "--json"], check=True,
                stdout=subprocess.PIPE, text=True).stdout)
            log = folder / f"{scheduler}.log"
            log.unlink(missing_ok=True)
            with harness.Server(models, "--scheduler", scheduler, "--profile", profile_file, "--threads", 1,
                                "--record", log) as server:
                live = harness.load(server.grpc_url, [], "--scenario", scenario)
            runs.append({"scheduler": scheduler, "live": live, "simulated": simulated})
            per_model = {m["name"]: m for m in simulated["models"]}
            for real, virtual, what in [(live, simulated, "all"),
                                        *((m, per_model[m["name"]], m["name"]) for m in live["models"])]:
                on_time = 100 * real["on_time_rate"], 100 * virtual["finish_rate"]
                rows.append([scheduler, what, real["sent"], f"{on_time[0]:.2f}", f"{on_time[1]:.2f}",
                             f"{on_time[0] - on_time[1]:+.2f}", f"{real['p99_ms']:.1f}", f"{virtual['p99_ms']:.1f}",
                             f"{real['p99_ms'] / max(1e-9, virtual['p99_ms']):.3f}"])
    harness.table(rows, ["scheduler", "model", "sent", "on time % live", "simulated", "points", "p99 ms live",
                         "simulated", "ratio"])
    worst = {s: (max(abs(float(r[5])) for r in rows if r[0] == s and r[1] == "all"),
                 max(abs(float(r[8]) - 1) for r in rows if r[0] == s and r[1] == "all"))
             for s in args.schedulers.split(",")}
    for scheduler, (points, ratio) in worst.items():
        agree = points <= 2 and ratio <= 0.15
        print(f"{scheduler}: on-time rates {points:.2f} points apart, p99 {100 * ratio:.1f}%: "
              f"{'within' if agree else 'NOT within'} 2 points and 15%")
    harness.save("agree", {"scenario": text, "runs": runs})


if __name__ == "__main__":
    main()
