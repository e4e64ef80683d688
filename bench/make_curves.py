#!/usr/bin/env python3
"""Writes SYNTHETIC learning curves for studies (docs/fluid.md): nothing was trained for them.

    python bench/make_curves.py --out scenarios/fluid/synthetic_curves.csv [--trials 400] [--epochs 27] [--seed 1]

Shaped as accuracies of an image classifier over settings of very unlike worth: each rises as a power law towards an end
of its own, from 0.1, with noise of 0.003 an epoch. Good settings are few: one of sixty ends above 0.9. Slow starters
are among the good ones, so that early rungs mislead. Epochs take 15 s at the median, lognormal with sigma 0.3 between
trials, as settings differ in the size of the model.
"""
import argparse
import math
import pathlib
import random


def curves(trials, epochs, seed):
    r = random.Random(seed)
    for t in range(trials):
        # The end: half of the settings are below 0.4, one of sixty above 0.9.
        end = 0.1 + 0.82 * r.random() ** 1.45
        half = math.exp(r.gauss(0.6, 0.6))  # epochs after which half of the way is gone, about
        seconds = 15 * math.exp(0.3 * r.gauss(0, 1))
        for e in range(1, epochs + 1):
            value = 0.1 + (end - 0.1) * (1 - (1 + e / half) ** -1.6) / (1 - (1 + epochs / half) ** -1.6)
            yield t, e, seconds * (1 + 0.01 * r.gauss(0, 1)), max(0.0, value + 0.003 * r.gauss(0, 1))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--trials", type=int, default=400)
    parser.add_argument("--epochs", type=int, default=27)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    lines = ["trial,epoch,seconds,metric"]
    lines += [f"synthetic_{t},{e},{s:.2f},{m:.4f}" for t, e, s, m in curves(arguments.trials, arguments.epochs, arguments.seed)]
    arguments.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
