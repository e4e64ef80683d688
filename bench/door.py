#!/usr/bin/env python3
"""What becomes of requests when they come faster than the scheduler can decide (virtual time).

    python bench/door.py [--schedulers symphony,clockwork] [--decisions 2,5,20] [--jobs 2]

Thirty models on 48 devices that could serve far more. Each decision is charged so many microseconds (`simulate
--decision-us`). For each policy: the highest rate, to 3%, at which 99% are on time, and of twice that rate, what is on time
over what was on time then. Goal: at least 0.9. Same commit, same numbers. Prints a table for bench/measured/deciding.md.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import harness

SCENARIO = """
name = "door"
duration_s = 1.2
warmup_s = 0.2
[cluster]
devices = 48
[load]
rate = 100000
[[models]]
name = "m"
copies = 30
slo_ms = 20
max_batch = 32
latency = { alpha_ms = 0.05, beta_ms = 1 }
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schedulers", default=",".join(harness.POLICIES), help="separated by commas")
    parser.add_argument("--decisions", default="2,5,20", help="microseconds, separated by commas")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="runs at a time")
    arguments = parser.parse_args()
    decisions = [float(d) for d in arguments.decisions.split(",")]

    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "door.toml"
        file.write_text(SCENARIO)

        def on_time(policy, decision, rate):
            """(answers on time a second, their share)"""
            run = subprocess.run([str(harness.CARILLON), "simulate", str(file), "--scheduler", policy, "--rate", f"{rate:.6g}",
                                  "--decision-us", f"{decision:g}", "--json"], capture_output=True, text=True)
            if run.returncode != 0:
                sys.exit(f"{policy} at {rate:g}: {run.stderr.strip()}")
            answer = json.loads(run.stdout)
            return answer["goodput_rps"], answer["finish_rate"]

        def measure(item):
            policy, decision = item
            low, high = 0.0, 1e6 / decision
            while high - low > 0.03 * high:
                middle = (low + high) / 2
                low, high = (middle, high) if on_time(policy, decision, middle)[1] >= 0.99 else (low, middle)
            if low == 0:
                return None
            return low, on_time(policy, decision, 2 * low)[0] / on_time(policy, decision, low)[0]

        items = [(p, d) for p in arguments.schedulers.split(",") for d in decisions]
        found = dict(zip(items, harness.in_parallel(arguments.jobs, measure, items, "policies and costs"), strict=True))
    print("| scheduler | " + " | ".join(f"{d:g} us: requests/s | at twice that" for d in decisions) + " |")
    print("|---" * (1 + 2 * len(decisions)) + "|")
    for p in arguments.schedulers.split(","):
        cells = ["- | -" if found[p, d] is None else f"{found[p, d][0]:,.0f} | {found[p, d][1]:.3f}" for d in decisions]
        print(f"| {p} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
