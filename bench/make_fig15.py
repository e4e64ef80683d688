#!/usr/bin/env python3
"""Writes scenarios/symphony_fig15_changing_load.toml: 24 models on 512 devices, the load rising above capacity and falling.

The paper's rates come from 150 hours of videos, which are not public. Here each model has a share of the load (Zipf 0.5,
in an order drawn by the seed) and a wave of its own around the common course; all of it follows from the seed.

    python bench/make_fig15.py [--peak 240000]
"""
import argparse
import csv
import math
import pathlib
import random

ROOT = pathlib.Path(__file__).resolve().parents[1]
# The load over the hours of a day, as a share of the peak; each lasts 20 virtual seconds. Above about 0.8 it is too much.
COURSE = [0.18, 0.12, 0.10, 0.10, 0.12, 0.18, 0.30, 0.45, 0.55, 0.62, 0.66, 0.70,
          0.72, 0.70, 0.68, 0.70, 0.76, 0.90, 1.00, 0.92, 0.72, 0.50, 0.34, 0.24]
STEP_S = 20


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peak", type=float, default=240000, help="requests a second at the top of the course")
    parser.add_argument("--flat", action="store_true", help="the mean of the peak's step alone, to find the capacity")
    parser.add_argument("--out", default=str(ROOT / "scenarios/symphony_fig15_changing_load.toml"))
    args = parser.parse_args()
    rows = [r["model"] for r in csv.DictReader((ROOT / "profiles/a100_symphony_table4.csv").open())]
    draw = random.Random(15)
    names = sorted(draw.sample(rows, 24), key=rows.index)
    order = names[:]
    draw.shuffle(order)
    share = {name: (rank + 1) ** -0.5 for rank, name in enumerate(order)}
    total = sum(share.values())
    text = f"""# Symphony, figure 15 and section 5.7: 24 models on 512 A100s, the load changing over a day of {len(COURSE) * STEP_S} seconds,
# above what the devices can do at its top. Written by bench/make_fig15.py: the paper's own rates are not public.
name = "symphony-fig15-changing-load"
duration_s = {len(COURSE) * STEP_S}
scheduler = "symphony"

[cluster]
devices = 512
"""
    for name in names:
        phase, depth = draw.uniform(0, 2 * math.pi), draw.uniform(0.05, 0.3)
        steps = []
        for hour, level in enumerate(COURSE):
            wave = 1 + depth * math.sin(phase + 2 * math.pi * hour * 3 / len(COURSE))
            steps.append([hour * STEP_S, round(args.peak * level * wave * share[name] / total, 1)])
        text += f"""
[[models]]
name = "{name}"
max_batch = 64
latency = {{ csv = "../profiles/a100_symphony_table4.csv", row = "{name}" }}
steps = {[[0, round(args.peak * share[name] / total, 1)]] if args.flat else steps}
"""
    pathlib.Path(args.out).write_text(text)


if __name__ == "__main__":
    main()
