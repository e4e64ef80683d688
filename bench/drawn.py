#!/usr/bin/env python3
"""Policies on random workloads of two to four models: each policy's share on time beside the first one's.

    python bench/drawn.py --schedulers carillon,carillon:keep_off=0,symphony,clockwork
    python bench/drawn.py --devices 1,2 --loads 1.1,1.3,1.6,2,3 --schedulers carillon,carillon:curb=1,symphony,clockwork

A model's times, deadline and share of the load are drawn. The load is what the devices can do in batches of which two in a
row fit into the deadline. The same --seed draws the same files. They are kept in --folder for a closer look.
"""
import argparse
import concurrent.futures
import os
import pathlib
import random
import statistics

import harness
import policy


def model(draw, index, share):
    """Its text, for so many devices' worth of work."""
    alpha, beta = 10 ** draw.uniform(-0.7, 0.8), 10 ** draw.uniform(-0.5, 1.2)
    slo = 10 ** draw.uniform(0.2, 1.3) * (alpha + beta)
    batch = max(1, min(16, int((slo / 2 - beta) / alpha))) if slo / 2 > alpha + beta else 1
    rate = share / ((alpha * batch + beta) / batch / 1000)
    return (f'[[models]]\nname = "m{index}"\nslo_ms = {slo:.2f}\nmax_batch = 16\n'
            f"latency = {{ alpha_ms = {alpha:.3g}, beta_ms = {beta:.3g} }}\nrate = {rate:.2f}\n")


def workload(seed, devices, loads):
    draw = random.Random(seed)
    count, models, load = draw.choice(devices), draw.choice([2, 2, 3, 4]), draw.choice(loads)
    weights = [draw.uniform(0.05, 1) for _ in range(models)]
    text = f'name = "drawn"\nseed = 1\nduration_s = 8\nwarmup_s = 2\n[cluster]\ndevices = {count}\n'
    return text + "".join(model(draw, i, w / sum(weights) * load * count) for i, w in enumerate(weights))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--devices", default="4,6,8")
    parser.add_argument("--loads", default="0.6,0.7,0.8,0.9", help="of what the devices can do")
    parser.add_argument("--schedulers", default="carillon,symphony,clockwork,orloj,edf,eager-drop")
    parser.add_argument("--folder", type=pathlib.Path, default=harness.RESULTS / "drawn")
    args = parser.parse_args()
    policies = args.schedulers.split(",")
    args.folder.mkdir(parents=True, exist_ok=True)
    files = []
    for i in range(args.files):
        files.append(args.folder / f"{i}.toml")
        files[-1].write_text(workload(1000 * args.seed + i, [int(d) for d in args.devices.split(",")],
                                      [float(load) for load in args.loads.split(",")]))
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        found = {p: list(pool.map(lambda f, p=p: policy.run(f, p, 1)["on_time"], files)) for p in policies}
    rows = []
    for p in policies:
        more = [x - first for x, first in zip(found[p], found[policies[0]])]
        rows.append([p, f"{statistics.mean(found[p]):.2f}", str(sum(d > 1 for d in more)), str(sum(d < -1 for d in more)),
                     f"{max(more):+.1f} ({more.index(max(more))}.toml)", f"{min(more):+.1f} ({more.index(min(more))}.toml)"])
    print(harness.markdown(rows, ["policy", "on time, mean", f"better than {policies[0]} by 1", "worse by 1", "most", "least"]))


if __name__ == "__main__":
    main()
