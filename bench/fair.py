#!/usr/bin/env python3
"""What does fairness cost: the policy carillon's number `fair` on the overloaded files of scenarios/policy/open, beside others.

    python bench/fair.py [--seeds 3] [--only 'abuse*,elephant*'] [--schedulers 'carillon:fair=0 carillon:fair=1 orloj']

A table for each: the share on time of all requests, of the modest models' (all but the one that asks for too much, where
there is one), and of the worst modest model, in percent, over the seeds.
"""
import argparse
import fnmatch
import json
import subprocess

import harness

FOLDER = harness.ROOT / "scenarios/policy/open"
ONLY = "abuse*,elephant*,flood*,cron*,diurnal*,two_slos*"
POLICIES = [*(f"carillon:fair={fair}" for fair in (0, 0.25, 0.5, 0.75, 1)), "orloj", "clockwork", "symphony", "nexus"]
IMMODEST = {"abuse": "abuser", "elephant": "elephant", "flood": "best"}


def run(file, policy, seeds):
    command = [harness.CARILLON, "simulate", file, "--scheduler", policy, "--seed", f"1..{seeds}", "--jobs", "1", "--json"]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{file} under {policy}: {done.stderr.strip()}")
    told = json.loads(done.stdout)
    runs = told.get("runs", [told])
    immodest = IMMODEST.get(file.stem.rsplit("_", 1)[0])
    sums = [0, 0, 0]
    for one in runs:
        modest = [m for m in one["models"] if immodest is None or not m["name"].startswith(immodest)]
        asked = sum(m["offered_rps"] for m in modest)
        sums[0] += one["finish_rate"]
        sums[1] += sum(m["finish_rate"] * m["offered_rps"] for m in modest) / asked
        sums[2] += min(m["finish_rate"] for m in modest)
    return [100 * s / len(runs) for s in sums]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", default=ONLY, help="names of scenarios, with * and commas")
    parser.add_argument("--schedulers", help="with spaces between them")
    args = parser.parse_args()
    policies = args.schedulers.split() if args.schedulers else POLICIES
    files = [f for f in sorted(FOLDER.glob("*.toml")) if any(fnmatch.fnmatch(f.stem, only) for only in args.only.split(","))]
    found = {(f.stem, p): run(f, p, args.seeds) for f in files for p in policies}
    for i, what in enumerate(["all", "modest models", "worst modest model"]):
        rows = [[f.stem, *(f"{found[f.stem, p][i]:.1f}" for p in policies)] for f in files]
        rows.append(["mean", *(f"{sum(found[f.stem, p][i] for f in files) / len(files):.1f}" for p in policies)])
        print(harness.markdown(rows, [what, *policies]), end="\n\n")


if __name__ == "__main__":
    main()
