#!/usr/bin/env python3
"""What it costs to refuse requests as they come (`--admission arrival`), in virtual time.

    python bench/admission.py [SCENARIO...] [--factors 1,2] [--duration 12] [--seeds 1] [--schedulers clockwork,symphony]

Simulates each scenario (default: those of scenarios/robust) at multiples of its own rate, with execution times that vary by
2%, once with each --admission. Told of each: the share of all requests that are on time, and the share of the refusals that
come more than 5 ms after the request. Requests of the scenario's warm-up count for the second, too.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import tomllib

import harness

ROBUST = harness.ROOT / "scenarios/robust"


def simulate(scenario, scheduler, admission, rate, duration, seed):
    with tempfile.TemporaryDirectory() as folder:
        log = pathlib.Path(folder) / "log"
        command = [harness.CARILLON, "simulate", scenario, "--scheduler", scheduler, "--admission", admission, "--rate", rate,
                   "--duration", duration, "--seed", seed, "--noise", 0.02, "--record", log, "--json"]
        ran = subprocess.run(list(map(str, command)), capture_output=True, text=True)
        if ran.returncode != 0:
            raise SystemExit(f"{' '.join(map(str, command))}: {ran.stderr}")
        return json.loads(ran.stdout), refusals(log)


def refusals(log):
    """How many requests were refused, and how many of them later than 5 ms after they came."""
    came, now, refused, later = {}, 0, 0, 0
    with log.open() as lines:
        for line in lines:
            words = line.split()
            if words[0] == "e":
                now = int(words[1])
                if words[2].startswith("arrived"):
                    came[words[3]] = now
            elif words[:2] == ["a", "refuse"]:
                refused += 1
                later += now - came[words[2]] > 5_000_000
    return refused, later


def offered(scenario):
    told = json.loads(subprocess.run([str(harness.CARILLON), "simulate", str(scenario), "--scheduler", "fcfs", "--json"],
                                     capture_output=True, text=True, check=True).stdout)
    return told["offered_rps"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenarios", nargs="*")
    parser.add_argument("--factors", default="1,2")
    parser.add_argument("--duration", type=float, default=12)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--schedulers", default="clockwork,symphony")
    args = parser.parse_args()
    rows, gained = [], []
    for scenario in map(pathlib.Path, args.scenarios or sorted(ROBUST.glob("*.toml"))):
        name = tomllib.loads(scenario.read_text()).get("name", scenario.stem)
        rate = offered(scenario)
        for scheduler in args.schedulers.split(","):
            for factor in map(float, args.factors.split(",")):
                shares, told = [], []
                for admission in ("policy", "arrival"):
                    on_time, sent, refused, later = 0, 0, 0, 0
                    for seed in range(1, args.seeds + 1):
                        result, (more, late) = simulate(scenario, scheduler, admission, factor * rate, args.duration, seed)
                        on_time, sent = on_time + result["on_time"], sent + result["offered"]
                        refused, later = refused + more, later + late
                    shares.append(on_time / sent)
                    told += [f"{100 * shares[-1]:.2f}%", f"{100 * later / refused:.1f}% of {refused:,}" if refused else ""]
                rows.append([name, scheduler, f"{factor:g}", told[0], told[2], told[1], told[3]])
                gained.append(shares[1] - shares[0])
    print(f"{args.duration:g} s, {args.seeds} seeds\n")
    harness.table(rows, ["scenario", "policy", "rate", "on time: policy", "arrival", "refused later than 5 ms: policy", "arrival"])
    gained.sort()
    print(f"\nMore on time by arrival than by policy: median {100 * gained[len(gained) // 2]:.2f} points, "
          f"from {100 * gained[0]:.2f} to {100 * gained[-1]:.2f}")


if __name__ == "__main__":
    sys.exit(main())
