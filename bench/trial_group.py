#!/usr/bin/env python3
"""What a TrialGroup costs, and what its policies bring: a study of four torch trials, one five times as long as the
others (docs/fluid-scripts.md#measured).

    python bench/trial_group.py [--rounds 2]
"""

from __future__ import annotations

import argparse
import os
import time

import torch

import carillon.tune

LENGTHS = [60, 12, 12, 12]


def empty(config):
    return 1


def calls(config):
    start = time.perf_counter()
    for _ in range(2000):
        carillon.tune.report(1.0)
    reports = time.perf_counter()
    for _ in range(20_000):
        carillon.tune.step()
    return (reports - start) / 2000 * 1e6, (time.perf_counter() - reports) / 20_000 * 1e6


def train(config):
    net = torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 512), torch.nn.ReLU(),
                              torch.nn.Linear(512, 10))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    inputs, labels = torch.randn(256, 512), torch.randint(0, 10, (256,))
    for _ in range(config["epochs"]):
        for _ in range(10):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
        carillon.tune.report(0.0, threads=carillon.tune.threads())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2)
    rounds = parser.parse_args().rounds
    print("load", *(f"{load:.1f}" for load in os.getloadavg()))
    with carillon.tune.TrialGroup() as group:
        group.wait([group.submit(empty)])
        start = time.monotonic()
        group.wait(group.map(empty, [None] * 200))
        print(f"an empty trial: {(time.monotonic() - start) / 200 * 1e3:.0f} ms")
        costs = group.submit(calls)
        group.wait([costs])
        print("a report {:.0f} us, a step {:.1f} us".format(*costs.value))
    for _ in range(rounds):
        for policy in ("fifo", "dynamic", "best"):
            with carillon.tune.TrialGroup(policy=policy) as group:
                group.wait([group.submit(empty)])
                start = time.monotonic()
                trials = group.map(train, [{"epochs": n} for n in LENGTHS], budget=LENGTHS)
                group.wait(trials)
                took = time.monotonic() - start
                wide = sum(report["threads"] > 1 for report in trials[0].reports)
                model = group.model()
            print(f"{policy}: {took:.1f} s, {wide} of {LENGTHS[0]} epochs of the long trial wide, alpha {model.alpha}, "
                  f"beta {model.beta}")


if __name__ == "__main__":
    main()
