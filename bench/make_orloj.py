#!/usr/bin/env python3
"""Writes scenarios/orloj_c*.toml: the workloads of Orloj's tables C.1 to C.7, a file for each distribution of times.

The paper gives the mean and the P99 of its real tasks (Table 4.1) and the deviations of the synthetic modes (Table C.1); the
rest is chosen here, once for all: modes between 30 and 90 ms, two groups of requests in the language tasks, clusters for
the networks that skip parts, c0 and c1, and the load.

    python bench/make_orloj.py [--c1 0.4] [--load 0.4] [--out scenarios]
"""
import argparse
import csv
import pathlib
import statistics

ROOT = pathlib.Path(__file__).resolve().parents[1]
MINUTES = 30
NUMBERS = ["one", "two", "three", "four", "five", "six", "seven", "eight"]
# Mean and P99 in ms (Table 4.1).
TASKS = {"rdinet-cifar": (683.15, 2667.54), "skipnet-imagenet": (3.24, 5.56), "blenderbot-convAI": (200.39, 242.27),
         "blenderbot-cornell": (203.22, 247.04), "gpt-convAI": (79.47, 143.40), "gpt-cornell": (94.84, 161.69),
         "bart-cnn": (774.66, 1101.99), "t5-cnn": (552.91, 797.28), "fsmt-wmt": (189.30, 319.31),
         "mbart-wmt": (432.38, 729.87)}
# One application each: what a network skips depends on the input, and nobody knows that before it ran. The modes of the
# synthetic tables stand for applications (section 4.5.3), and so do the shorter and longer requests of the language tasks
# (section 4.5.2 groups them; that a group is an application is our reading).
ONE_APPLICATION = ("rdinet-cifar", "skipnet-imagenet")
STATIC = {"inception-imagenet": 8.0, "resnet-imagenet": 6.0}


def modes_of(case):
    """(mean ms, deviation ms, weight) of each application."""
    if case.startswith("std-"):
        spread = [float(s) for s in case[4:].split("/")]
        return [(30, 10 * spread[0] / 2, 1), (90, 10 * spread[-1] / 2, 1)]
    if case.endswith("-modal"):
        count = NUMBERS.index(case.split("-")[0]) + 1
        if count == 1:
            return [(60, 10, 1)]
        return [(30 + 60 * i / (count - 1), 5, 1) for i in range(count)]
    if case in STATIC:
        return [(STATIC[case], 0, 1)]
    mean, p99 = TASKS[case]
    if case == "rdinet-cifar":  # a few clusters, for the parts of the network that are skipped (figure 4.2)
        return [(0.22 * mean, 0.02 * mean, 0.6), (1.17 * mean, 0.06 * mean, 0.25), (0.96 * p99, 0.02 * p99, 0.15)]
    if case == "skipnet-imagenet":
        return [(0.68 * mean, 0.05 * mean, 0.5), (1.17 * mean, 0.05 * mean, 0.3), (0.95 * p99, 0.02 * p99, 0.2)]
    # A continuous range, grouped into shorter and longer requests (section 4.5.2).
    deviation = (p99 - mean) / 2.33
    return [(mean - 0.8 * deviation, 0.6 * deviation, 1), (mean + 0.8 * deviation, 0.6 * deviation, 1)]


def mean_and_p99(modes):
    """Of one request's own time, in ms."""
    weights = sum(w for _, _, w in modes)
    mean = sum(m * w for m, _, w in modes) / weights
    normal = statistics.NormalDist()
    low, high = 0.0, max(m + 5 * s for m, s, _ in modes)
    for _ in range(60):
        middle = (low + high) / 2
        share = sum(w * (normal.cdf((middle - m) / s) if s > 0 else float(middle >= m)) for m, s, w in modes) / weights
        low, high = (middle, high) if share < 0.99 else (low, middle)
    return mean, high


def rate_of(case, c1, load, scale=1):
    """Requests a second that are `load` of what the device does in batches of eight of the mean."""
    mean = scale * mean_and_p99(modes_of(case))[0]
    return load * 8000 / ((1 - c1) * mean + 8 * c1 * mean)


def file_name(table, case):
    return f"orloj_{table.lower().replace('.', '')}_{case.lower().replace('/', '_').replace('-', '_')}.toml"


def text_of(table, case, c1, load, scale=1, traces="traces", blind=False):
    """The scenario, all times multiplied by `scale`. A lone request of the mean takes its own time. Blind: no request names
    its application."""
    modes = [(m * scale, s * scale, w) for m, s, w in modes_of(case)]
    c0 = (1 - c1) * mean_and_p99(modes)[0]
    named = not blind and case not in ONE_APPLICATION and case not in STATIC
    listed = ", ".join(f"{{ mean_ms = {m:.6g}, std_ms = {s:.6g}, weight = {w:g}" + (f', app = "{i}" }}' if named else " }")
                       for i, (m, s, w) in enumerate(modes))
    return f"""# Orloj, Table {table}, case {case}: one device, requests as in the Azure sample. The SLO is
# a multiple of the P99 of a request's own time: 1.5, 2, 3, 4 and 5 in the paper (--slo-p99). Written by
# bench/make_orloj.py, which says what is not the paper's; docs/orloj.md has its finish rates.
name = "orloj-{table.lower().replace('.', '')}-{case.replace('/', '-')}"
duration_s = {60 * MINUTES}
warmup_s = 30
scheduler = "orloj"

[load]
rate = {rate_of(case, c1, load, scale):.6g}  # {load:g} of what the device does in batches of eight of the mean
process = "trace:{traces}/azure2019_500f_min480-959.csv"

[[models]]
name = "{case}"
slo_p99 = 3
batch_sizes = [1, 2, 4, 8, 16]
latency = {{ c0_ms = {c0:.6g}, c1 = {c1:g}, modes = [{listed}] }}
"""


def cases():
    """(table, case) in the order of the paper."""
    rows = csv.DictReader((ROOT / "bench/orloj_finish_rates.csv").open())
    return list(dict.fromkeys((r["table"], r["case"]) for r in rows))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--c1", type=float, default=0.4)
    parser.add_argument("--load", type=float, default=0.4, help="of what the device does in batches of eight of the mean")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "scenarios")
    args = parser.parse_args()
    for table, case in cases():
        (args.out / file_name(table, case)).write_text(text_of(table, case, args.c1, args.load))


if __name__ == "__main__":
    main()
