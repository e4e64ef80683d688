#!/usr/bin/env python3
"""Two programs side by side: what a change costs. In each round old, new and old again take turns, so that a noisy
machine is the same for all three; shown are medians over the rounds of new / old, and beside them of old / old.

Measured: a tiny model alone over HTTP and gRPC (p50, and the difference in microseconds), with 64 requests in flight
(requests a second), and the simulator (events a second, three scenarios).

    python bench/pairs.py OLD NEW [--rounds 10] [--seconds 2]
"""
import argparse
import json
import statistics
import subprocess

import harness

SCENARIOS = [("robust/mixed_slos.toml", "symphony"), ("robust/many_on_few.toml", "clockwork"), ("robust/skewed_zoo.toml", "eager")]


def live(program, models, seconds):
    found = {}
    with harness.Server(models, program=program) as server:
        for protocol, url in (("http", server.http_url), ("grpc", server.grpc_url)):
            harness.load(url, ["tiny_mlp"], "--process", "closed:1", "--duration", 0.5)
            result = harness.load(url, ["tiny_mlp"], "--process", "closed:1", "--duration", seconds)
            found[f"{protocol}, p50 us"] = 1000 * result["p50_ms"]
            result = harness.load(url, ["tiny_mlp"], "--process", "closed:64", "--duration", seconds)
            found[f"{protocol}, 64 in flight, requests/s"] = result["goodput_rps"]
    return found


def simulated(program):
    found = {}
    for scenario, policy in SCENARIOS:
        command = [program, "simulate", harness.ROOT / "scenarios" / scenario, "--scheduler", policy, "--json"]
        results = [json.loads(subprocess.run(command, capture_output=True, check=True).stdout) for _ in range(5)]
        # Runs, not events: what counts as an event may change.
        found[f"simulate {scenario} {policy}, runs/s"] = 1 / min(result["wall_s"] for result in results)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=2, help="of each load (default: 2)")
    args = parser.parse_args()
    repository = harness.samples(str(harness.ROOT / "build/samples"), "tiny_mlp")
    rounds = []
    with harness.only(repository, "tiny_mlp") as models:
        for number in range(args.rounds):
            rounds.append([{**live(program, models, args.seconds), **simulated(program)}
                           for program in (args.old, args.new, args.old)])
            harness.say(f"round {number + 1} of {args.rounds}")
    rows = []
    for name in rounds[0][0]:
        middle = lambda values: statistics.median(list(values))
        old, new = (middle(r[i][name] for r in rounds) for i in (0, 1))
        row = [name, f"{old:.1f}", f"{new:.1f}", f"{middle(r[1][name] / r[0][name] for r in rounds):.3f}",
               f"{middle(r[2][name] / r[0][name] for r in rounds):.3f}",
               f"{middle(r[1][name] - r[0][name] for r in rounds):+.1f}"]
        rows.append(row)
    harness.table(rows, ["", "old", "new", "new / old", "old / old", "new - old"])
    harness.save("pairs", {"old": args.old, "new": args.new, "rounds": rounds})


if __name__ == "__main__":
    main()
