#!/usr/bin/env python3
"""Writes scenarios/robust/drawn_*.toml: workloads drawn at random, to hold policies to more than the papers' figures.

Everything varies at once: how many models and devices, kinds of models (alpha, beta/alpha, SLO as a multiple of a batch of
one; some kinds have requests of several SLOs), popularity and its order, how requests arrive (evenly, Poisson, in bursts;
some kinds in a way of their own), a background load that comes and goes, and memory for a part of the models only. The
seed below was fixed, and the files written, before any policy was run on them.

    python bench/make_robust.py            the dozen in the tree
    python bench/make_robust.py --seed 2 --count 5 --out /tmp/more

What keeps a draw from being impossible under every policy: an SLO leaves room for a batch of one behind the longest batch
of one of any model on each second device, and the devices together have room for each model's weights once, and a third
more.
"""
import argparse
import math
import pathlib
import random

ROOT = pathlib.Path(__file__).resolve().parents[1]
SEED, COUNT = 1, 12
REQUESTS = 80_000  # about so many in a run at the rate in the file
PAGE = 16 * 2**20


def log_uniform(draw, low, high):
    return math.exp(draw.uniform(math.log(low), math.log(high)))


def draw_process(draw):
    kind = draw.choice(["poisson", "poisson", "gamma", "gamma", "uniform"])
    return f"gamma:{log_uniform(draw, 0.1, 1):.2g}" if kind == "gamma" else kind


def pages(kind):
    return math.ceil(kind["weights_mb"] * 1e6 / PAGE)


def scenario(seed, number):
    draw = random.Random(1000 * seed + number)
    models = round(log_uniform(draw, 1, 60))
    devices = round(log_uniform(draw, 1, 24))
    count = round(log_uniform(draw, 1, min(models, 10)))
    kinds = []
    for i in range(count):
        alpha = log_uniform(draw, 0.1, 10)
        beta = min(40, alpha * log_uniform(draw, 0.05, 40))
        kinds.append({"name": "abcdefghij"[i], "alpha": alpha, "beta": beta, "copies": 1, "one": alpha + beta,
                      "multiple": log_uniform(draw, 2, 15), "several": draw.random() < 0.25,
                      "process": draw_process(draw) if draw.random() < 0.25 else None,
                      "weights_mb": log_uniform(draw, 20, 600)})
    for _ in range(models - count):
        draw.choice(kinds)["copies"] += 1
    longest = max(k["one"] for k in kinds)
    for k in kinds:
        k["slo"] = max(k["multiple"] * k["one"], k["one"] + 2 * longest / devices)
    popularity, last = "equal", False
    if draw.random() < 0.6:
        popularity, last = f"zipf:{draw.uniform(0.5, 1.5):.2g}", draw.random() < 0.5
    process = draw_process(draw)
    memory = None
    if draw.random() < 0.5:
        total = sum(k["copies"] * pages(k) for k in kinds)
        share = max(draw.uniform(0.2, 1.2), 4 / 3 / devices)
        memory = max(math.ceil(share * total), 2 * max(pages(k) for k in kinds)) * PAGE
    background = None
    if draw.random() < 0.4:
        k = draw.choice(kinds)
        background = {"kind": k, "share": draw.uniform(0.1, 0.4), "period": draw.choice([5, 10, 20])}

    # The rate in the file, where a search starts: batches whose time is a third of the SLO.
    def each(k):
        batch = max(1, min(64, int((k["slo"] / 3 - k["beta"]) / k["alpha"])))
        return (k["beta"] + k["alpha"] * batch) / batch
    shape = float(popularity[5:]) if popularity != "equal" else 0
    order = [k for k in kinds for _ in range(k["copies"])]
    weights = [(r + 1) ** -shape for r in range(models)]
    if last:
        weights.reverse()
    mean = sum(w * each(k) for w, k in zip(weights, order, strict=True)) / sum(weights)
    free = devices * (1 - (background["share"] / 2 if background else 0))
    rate = float(f"{0.7 * 1000 * free / mean:.2g}")
    duration = min(240, max(20, round(REQUESTS / rate)))

    text = f"""# Written by bench/make_robust.py: number {number} of the seed {seed}. {models} models of {count} kinds on {devices} devices.
name = "robust-drawn-{number}"
seed = {number}
duration_s = {duration + 4}
warmup_s = 4
[cluster]
devices = {devices}
"""
    if memory:
        text += f'memory = {memory}  # {memory // PAGE} pages, of {sum(k["copies"] * pages(k) for k in kinds)} for all models\n'
    text += f'[load]\nrate = {rate:g}\nprocess = "{process}"\npopularity = "{popularity}"\n'
    if last:
        text += "popular_last = true\n"
    for k in kinds:
        slos = [k["slo"] * m for m in ((1, 2, 5) if k["several"] else (1,))]
        listed = ", ".join(f"{s:.3g}" for s in slos)
        text += f'[[models]]\nname = "{k["name"]}"\n'
        if k["copies"] > 1:
            text += f'copies = {k["copies"]}\n'
        text += f'slo_ms = {"[" + listed + "]" if k["several"] else listed}\n'
        if k["process"]:
            text += f'process = "{k["process"]}"\n'
        if memory:
            text += f'weights = {round(k["weights_mb"] * 1e6)}\n'
        text += f'latency = {{ alpha_ms = {k["alpha"]:.3g}, beta_ms = {k["beta"]:.3g} }}\n'
    if background:
        k, period = background["kind"], background["period"]
        high = background["share"] * devices * 1000 / each(k)
        steps = [[t, round(high if t // period % 2 else 0, 1)] for t in range(0, duration + 4, period)]
        text += f'[[models]]\nname = "background"  # of the kind {k["name"]}, every other {period} seconds\n'
        text += f'slo_ms = {k["slo"]:.3g}\nsteps = {steps}\n'
        if memory:
            text += f'weights = {round(k["weights_mb"] * 1e6)}\n'
        text += f'latency = {{ alpha_ms = {k["alpha"]:.3g}, beta_ms = {k["beta"]:.3g} }}\n'
    return text


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "scenarios/robust")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for number in range(1, arguments.count + 1):
        (arguments.out / f"drawn_{number:02}.toml").write_text(scenario(arguments.seed, number))


if __name__ == "__main__":
    main()
