#!/usr/bin/env python3
"""Does the default number of threads serve as well as the best fixed one, where processors are few or shared?

    python bench/neighbours.py [--models DIR] [--model resnet50] [--seconds 20] [--rounds 3] [--rate R] [--deadline MS]
                               [--conditions alone,one,quota,busy]

Conditions of the server's process: `alone`; `one`: it may run on one processor (taskset); `quota`: its control group
grants one processor's time (needs to write to /sys/fs/cgroup); `busy`: two busy loops run beside it, which end with the
round. In each condition servers with the default, with `--threads 1` and with one thread a processor take turns, each
as a process of its own, in changing order. A round sends requests at a fixed rate with a deadline. Without --rate and
--deadline: half of what one thread alone can do, and five times what one run takes then. What is told is the share of
requests that are answered on time: the median over rounds and their range. Goal: the default is at most 2 points below
the best fixed number. Exit status 1 where it is not.
"""
import argparse
import contextlib
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

import harness

CONDITIONS = ["alone", "one", "quota", "busy"]
CGROUPS = pathlib.Path("/sys/fs/cgroup")


@contextlib.contextmanager
def quota_group():
    """A control group that grants one processor's time; None where there is none to be had."""
    name = f"carillon_bench_{os.getpid()}"
    for parent, files in [(CGROUPS, {"cpu.max": "100000 100000"}),
                          *((CGROUPS / v1, {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "100000"})
                            for v1 in ("cpu", "cpu,cpuacct"))]:
        folder = parent / name
        try:
            folder.mkdir()
        except OSError:
            continue
        try:
            for file, text in files.items():
                if not (folder / file).exists():
                    raise OSError("the controller is not there")
                (folder / file).write_text(text)
        except OSError:
            folder.rmdir()
            continue
        try:
            yield folder
        finally:
            folder.rmdir()  # the server has ended
        return
    yield None


@contextlib.contextmanager
def busy_loops(count):
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


@contextlib.contextmanager
def program(condition, group):
    """What starts the server under that condition."""
    lines = {"one": 'exec taskset -c "$FIRST" ', "quota": f"echo $$ > {group}/cgroup.procs; exec "}.get(condition, "exec ")
    first = min(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder:
        script = pathlib.Path(folder) / "carillon"
        script.write_text(f'#!/bin/sh\nFIRST={first}\n{lines}"{harness.CARILLON}" "$@"\n')
        script.chmod(0o755)
        yield script


def ask(server, model, args, rate, deadline, seed):
    told = harness.load(server.grpc_url, [f"{model},rate={rate:g},deadline={deadline:g}"], "--process", "poisson",
                        "--duration", args.seconds, "--warmup", args.warmup, "--seed", seed)
    total = told["on_time"] + told["late"] + told["refused"] + told["failed"]
    return {"on_time": told["on_time"] / max(1, total), "requests": total, "p50_ms": told["p50_ms"],
            "p99_ms": told["p99_ms"]}


def calibrate(models, args):
    """What one thread alone can do: requests a second."""
    with harness.Server(models, "--threads", 1) as server:
        told = harness.load(server.grpc_url, [f"{args.model},deadline=0"], "--process", "closed:1", "--duration", 4,
                            "--warmup", 1)
    return told["on_time"] / 3


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=pathlib.Path, default=harness.ROOT / "build/samples")
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--warmup", type=float, default=4, help="seconds that are not counted")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rate", type=float, default=0, help="requests a second")
    parser.add_argument("--deadline", type=float, default=0, help="milliseconds")
    parser.add_argument("--conditions", default=",".join(CONDITIONS))
    args = parser.parse_args()
    conditions = args.conditions.split(",")
    if unknown := set(conditions) - set(CONDITIONS):
        parser.error(f"--conditions: there is no {', '.join(sorted(unknown))}; there are {', '.join(CONDITIONS)}")
    harness.samples(args.models, args.model)
    kinds = {"default": [], "1": ["--threads", 1]}
    if (cores := len(os.sched_getaffinity(0))) > 1:
        kinds[str(cores)] = ["--threads", cores]
    results, failed = [], []
    with harness.only(args.models, args.model) as models, quota_group() as group:
        each = calibrate(models, args) if not (args.rate and args.deadline) else 0
        rate, deadline = args.rate or each / 2, args.deadline or 5000 / each
        for condition in conditions:
            if condition == "quota" and group is None:
                harness.say("no control group can be made here: 'quota' is left out")
                continue
            rounds = []
            for number in range(args.rounds):
                order = list(kinds)
                order = order[number % len(order):] + order[:number % len(order)]
                found = {}
                for kind in order:
                    with program(condition, group) as script, \
                            harness.Server(models, *kinds[kind], program=script) as server, \
                            busy_loops(2 if condition == "busy" else 0):
                        found[kind] = ask(server, args.model, args, rate, deadline, number + 1)
                rounds.append(found)
                harness.say(f"{condition}, round {number + 1}: "
                            + ", ".join(f"{k} {found[k]['on_time']:.1%}" for k in kinds))
            median = {k: statistics.median(r[k]["on_time"] for r in rounds) for k in kinds}
            best = max((k for k in kinds if k != "default"), key=median.get)
            if median["default"] < median[best] - 0.02:
                failed.append(condition)
            results.append({"condition": condition, "rate": rate, "deadline_ms": deadline, "rounds": rounds,
                            "median": median, "best": best})
    harness.save("neighbours", {"model": args.model, "results": results})
    span = lambda rounds, k: (f"{statistics.median(r[k]['on_time'] for r in rounds):.1%} "
                              f"({min(r[k]['on_time'] for r in rounds):.1%} to "
                              f"{max(r[k]['on_time'] for r in rounds):.1%})")
    harness.table([[r["condition"], *(span(r["rounds"], k) for k in kinds),
                    f"{100 * (r['median']['default'] - r['median'][r['best']]):+.1f}"] for r in results],
                  ["condition", *(f"threads: {k}" for k in kinds), "default less the best, points"])
    print(f"\n{args.model}, {rate:.1f} requests a second, deadline {deadline:.0f} ms")
    if failed:
        raise SystemExit(f"more than 2 points below the best fixed number: {', '.join(failed)}")


if __name__ == "__main__":
    main()
