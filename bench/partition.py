#!/usr/bin/env python3
"""`carillon partition`, measured: imbalance and time of dividing models over groups, as in Symphony's appendix A.2.

Models are variants of the 64 of profiles/v100_clockwork_table1.csv (the paper's zoo has no sizes), each drawn at random;
rates are exponential. Memory holds half as much again as a group has on average. Then rates drift, each by up to 10% a
step, and the division in force follows with moves of at most 5% of all weights. Prints tables, and writes nothing.

    python bench/partition.py               a few minutes on two cores, one process at a time
    python bench/partition.py --seeds 10    a tenth of it, for a look
"""
import argparse
import csv
import json
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time

from harness import CARILLON, ROOT, machine, say, table

SHAPES = ((400, 4), (800, 20))
STEPS = 10


def zoo():
    with open(ROOT / "profiles/v100_clockwork_table1.csv") as file:
        return [round(1e6 * float(row["weights_MB"])) for row in csv.DictReader(file)]


def problem(seed, count, groups, sizes):
    dice = random.Random(seed)
    models = [{"name": f"m{i}", "rate_rps": dice.expovariate(0.01), "static_bytes": dice.choice(sizes)}
              for i in range(count)]
    return {"memory_bytes": 3 * sum(m["static_bytes"] for m in models) // (2 * groups) + max(sizes), "models": models}


def divide(folder, document, groups, *arguments, current=None):
    """What the program tells, and the seconds that its process took."""
    file = folder / "models.json"
    file.write_text(json.dumps(document))
    if current is not None:
        (folder / "current.json").write_text(json.dumps(current))
        arguments = (*arguments, "--current", folder / "current.json")
    command = [CARILLON, "partition", file, "--groups", groups, "--json", *arguments]
    begun = time.perf_counter()
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    seconds = time.perf_counter() - begun
    if done.returncode != 0:
        sys.exit(done.stderr)
    return json.loads(done.stdout), seconds


def percent(values):
    return f"{100 * statistics.median(values):.5f}, {100 * max(values):.5f}"


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--seeds", type=int, default=100)
    arguments.add_argument("--proofs", type=int, default=5, help="seeds that CBC has --time-limit for, too")
    arguments.add_argument("--time-limit", type=float, default=10, help="the paper's")
    given = arguments.parse_args()
    sizes = zoo()
    balance, drift = [], []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for count, groups in SHAPES:
            say(f"{count} models in {groups} groups")
            runs = [divide(folder, problem(seed, count, groups, sizes), groups, "--time-limit", 0)
                    for seed in range(given.seeds)]
            better = proved = 0
            for seed in range(given.proofs):
                told, _ = divide(folder, problem(seed, count, groups, sizes), groups, "--time-limit", given.time_limit)
                better += told["objective"] < runs[seed][0]["objective"]
                proved += told["proved"]
            balance.append((count, groups, percent([t["load_imbalance"] for t, _ in runs]),
                            percent([t["memory_imbalance"] for t, _ in runs]),
                            f"{statistics.median(s for _, s in runs):.2f}, {max(s for _, s in runs):.2f}",
                            f"{sum(t['proved'] for t, _ in runs)} of {len(runs)}",
                            f"{better} and {proved} of {given.proofs}"))
            steps = []
            for seed in range(max(1, given.seeds // 10)):
                document, dice = problem(seed, count, groups, sizes), random.Random(seed)
                bound = sum(m["static_bytes"] for m in document["models"]) // 20
                now, _ = divide(folder, document, groups, "--time-limit", 0)
                for _ in range(STEPS):
                    for model in document["models"]:
                        model["rate_rps"] *= dice.uniform(0.9, 1.1)
                    now, _ = divide(folder, document, groups, "--time-limit", 0, "--max-move", bound, current=now)
                    assert now["move_cost"] <= bound
                    steps.append(now)
            drift.append((count, groups, len(steps), percent([t["load_imbalance"] for t in steps]),
                          percent([t["memory_imbalance"] for t in steps])))
    print(json.dumps({**machine(), "seeds": given.seeds, "time_limit": given.time_limit}))
    table(balance, ["models", "groups", "load imbalance, %: median, worst", "memory imbalance, %: median, worst",
                    "seconds: median, most", "proved by the search alone", f"CBC, {given.time_limit:g} s: better and proved"])
    print()
    table(drift, ["models", "groups", "steps", "load imbalance, %: median, worst", "memory imbalance, %: median, worst"])


if __name__ == "__main__":
    main()
