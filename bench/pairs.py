#!/usr/bin/env python3
"""Two programs side by side: what a change costs. In each round old, new and old again take turns, so that a noisy
machine is the same for all three; shown are medians over the rounds of new / old with quartiles, and beside them of
old / old.

Measured: a tiny model alone over HTTP and gRPC (p50, and the difference in microseconds), with 64 requests in flight
(requests a second), and the simulator (runs a second, three scenarios). The three servers stand beside each other. A
turn of theirs with a stall of the machine above 5 ms is left out of all three, and counted.

    python bench/pairs.py OLD NEW [--rounds 10] [--seconds 1] [--without-simulator]
"""
import argparse
import contextlib
import json
import statistics
import subprocess

import harness

SCENARIOS = [("robust/mixed_slos.toml", "symphony"), ("robust/many_on_few.toml", "clockwork"), ("robust/skewed_zoo.toml", "eager")]


def live(servers, seconds):
    """What each server does, by what was measured; None: there was a stall."""
    found = {}
    for protocol in ("http", "grpc"):
        for clients, figure, factor, name in ((1, "p50_ms", 1000, "p50 us"),
                                              (64, "goodput_rps", 1, "64 in flight, requests/s")):
            with harness.Stalls() as stalls:
                values = [factor * harness.load(getattr(server, f"{protocol}_url"), ["tiny_mlp"], "--process",
                                                f"closed:{clients}", "--duration", seconds, "--warmup", 0.2)[figure]
                          for server in servers]
            found[f"{protocol}, {name}"] = None if stalls.count else values
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
    parser.add_argument("--seconds", type=float, default=1, help="of each load (default: 1)")
    parser.add_argument("--without-simulator", action="store_true")
    args = parser.parse_args()
    repository = harness.samples(str(harness.ROOT / "build/samples"), "tiny_mlp")
    programs = (args.old, args.new, args.old)
    rounds = []
    with contextlib.ExitStack() as stack:
        models = stack.enter_context(harness.only(repository, "tiny_mlp"))
        servers = [stack.enter_context(harness.Server(models, program=program)) for program in programs]
        for number in range(args.rounds):
            found = live(servers, args.seconds)
            if not args.without_simulator:
                each = [simulated(program) for program in programs]
                found |= {name: [one[name] for one in each] for name in each[0]}
            rounds.append(found)
            harness.say(f"round {number + 1} of {args.rounds}")
    rows = []
    for name in rounds[0]:
        values = [found[name] for found in rounds if found[name]]
        if len(values) < 2:
            rows.append([name, "", "", "", "", "", len(rounds) - len(values)])
            continue
        old, new = (statistics.median(v[i] for v in values) for i in (0, 1))
        ratios = [new / old for old, new, _ in values]
        low, middle, high = statistics.quantiles(ratios, n=4)
        rows.append([name, f"{old:.1f}", f"{new:.1f}", f"{middle:.3f} ({low:.3f} to {high:.3f})",
                     f"{statistics.median(again / old for old, _, again in values):.3f}",
                     f"{statistics.median(new - old for old, new, _ in values):+.1f}", len(rounds) - len(values)])
    harness.table(rows, ["", "old", "new", "new / old", "old / old", "new - old", "left out"])
    harness.save("pairs", {"old": args.old, "new": args.new, "rounds": rounds})


if __name__ == "__main__":
    main()
