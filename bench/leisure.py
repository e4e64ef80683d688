#!/usr/bin/env python3
"""Does a policy refuse what an idle server could serve?

    python bench/leisure.py [--models DIR] [--model tiny_mlp] [--policies clockwork,symphony] [--shares 0.1,0.3]
                            [--deadlines 20,50,100] [--rounds 5] [--seconds 10] [--busy 2]

A round sends requests at random times (Poisson), at a share of the server's capacity (that of 16 clients without
deadlines, each with one request at a time), with a deadline. They are on time where the client has the answer by then.
Beside the server --busy busy loops run. The same requests go to a server under fcfs that is not told of the deadlines,
which refuses nothing: what it has on time could be on time. Servers take turns, in changing order, each a process of its
own. Told is the share on time of all requests: the median over rounds (smallest to largest), and the median latency to
that of fcfs, of the same round.

Goal: at most 0.5 points below fcfs, and a median latency of at most 1.2 times its. Exit status 1 where it is missed.
"""
import argparse
import itertools
import statistics
import sys

import harness
from neighbours import busy_loops


def figures(server, model, rate, deadline, seconds, seed, told):
    return harness.load(server.grpc_url, [model], "--rate", rate, "--deadline", deadline, "--duration", seconds,
                        "--warmup", 1, "--seed", seed, *([] if told else ["--no-timeout"]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=str(harness.ROOT / "build/quickstart/models"))
    parser.add_argument("--model", default="tiny_mlp")
    parser.add_argument("--policies", default="clockwork,symphony")
    parser.add_argument("--shares", default="0.1,0.3")
    parser.add_argument("--deadlines", default="20,50,100")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--busy", type=int, default=2)
    parser.add_argument("--rate", type=float, help="capacity, requests a second (else measured)")
    parser.add_argument("--program", help="another build of Carillon, for all servers")
    arguments = parser.parse_args()
    policies = ["fcfs", *arguments.policies.split(",")]
    conditions = list(itertools.product(map(float, arguments.shares.split(",")), map(float, arguments.deadlines.split(","))))
    found = {}
    with busy_loops(arguments.busy):
        def serve(policy):
            return harness.Server(arguments.models, "--scheduler", policy, program=arguments.program)

        capacity = arguments.rate
        if capacity is None:
            with serve("fcfs") as server:
                done = harness.load(server.grpc_url, [arguments.model], "--process", "closed:16", "--duration", 5)
            capacity = done["goodput_rps"]
        for turn in range(arguments.rounds):
            order = policies[turn % len(policies):] + policies[:turn % len(policies)]
            for policy in order:
                with serve(policy) as server:
                    for share, deadline in conditions:
                        found[turn, policy, share, deadline] = figures(server, arguments.model, share * capacity, deadline,
                                                                       arguments.seconds, turn, policy != "fcfs")
    print(f"capacity {capacity:.0f} requests a second of {arguments.model}, {arguments.busy} busy loops beside\n")
    print("| load | deadline | policy | on time | of accepted | refused | p50 to fcfs |")
    print("|---|---|---|---|---|---|---|")
    missed = False
    for share, deadline in conditions:
        base = {}
        for policy in policies:
            rounds = [found[turn, policy, share, deadline] for turn in range(arguments.rounds)]
            on_time = [100 * r["on_time"] / r["sent"] for r in rounds]
            accepted = [100 * r["on_time"] / max(1, r["on_time"] + r["late"]) for r in rounds]
            refused = [100 * r["refused"] / r["sent"] for r in rounds]
            p50 = [r["p50_ms"] for r in rounds]
            base.setdefault("on_time", statistics.median(on_time))
            base.setdefault("p50", p50)
            ratio = statistics.median(p / max(1e-9, b) for p, b in zip(p50, base["p50"]))
            fine = statistics.median(on_time) >= base["on_time"] - 0.5 and ratio <= 1.2
            missed = missed or not fine
            print(f"| {share} | {deadline:.0f} ms | {policy} | {statistics.median(on_time):.2f}% "
                  f"({min(on_time):.1f} to {max(on_time):.1f}) | {statistics.median(accepted):.2f}% | "
                  f"{statistics.median(refused):.2f}% | {ratio:.2f}{'' if fine else ' (missed)'} |")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
