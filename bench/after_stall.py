#!/usr/bin/env python3
"""How soon are requests served again after the whole server stood still?

A server of tiny_mlp gets requests at a constant rate, each with a deadline. In the middle the process is stopped
(SIGSTOP), as a machine that its host takes away, and goes on after 2 or 6 s. Told of each: how long after its end the
first request was answered on time that came after it, and the share on time of all that came from half a second after
its end on. Goal, stated before any run: within 0.5 s, and the share as before the stall, within 0.5 points.

    python bench/after_stall.py [--policies clockwork,symphony] [--rounds 3] [--check]
"""
import argparse
import csv
import os
import pathlib
import signal
import subprocess
import tempfile
import time

import harness

BEFORE, AFTER = 4.0, 4.0  # seconds


def one(server, folder, rate, deadline_ms, stall):
    file = folder / "answers.csv"
    command = [str(harness.CARILLON), "load", server.http_url, "--model", "tiny_mlp", "--rate", str(rate), "--deadline",
               str(deadline_ms), "--duration", str(BEFORE + stall + AFTER), "--warmup", "0", "--seed", "1", "--csv", str(file), "--json"]
    began = time.monotonic()
    load = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(BEFORE)
    os.kill(server.process.pid, signal.SIGSTOP)
    try:
        time.sleep(stall)
    finally:
        ended = time.monotonic() - began
        os.kill(server.process.pid, signal.SIGCONT)
    if load.wait(60) != 0:
        raise SystemExit("the load generator failed")
    with file.open() as lines:
        answers = [(float(row["planned_ms"]) / 1000, row["outcome"] == "on_time") for row in csv.DictReader(lines)]
    share = lambda begin, end: [ok for at, ok in answers if begin <= at < end]
    before, after = share(0.5, BEFORE - 0.2), share(ended + 0.5, ended + AFTER - 0.5)
    again = min((at - ended for at, ok in answers if at >= ended and ok), default=float("inf"))
    return again, sum(before) / len(before), sum(after) / len(after)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=pathlib.Path, default=harness.ROOT / "build/samples")
    parser.add_argument("--policies", default="clockwork,symphony")
    parser.add_argument("--rate", type=float, default=100)
    parser.add_argument("--deadline", type=float, default=50, help="ms")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    repository = harness.samples(args.models, "tiny_mlp")
    rows, met = [], True
    with tempfile.TemporaryDirectory() as text, harness.only(repository, "tiny_mlp") as models:
        for policy in args.policies.split(","):
            with harness.Server(models, "--scheduler", policy) as server:
                for stall in (2.0, 6.0):
                    for number in range(args.rounds):
                        again, before, after = one(server, pathlib.Path(text), args.rate, args.deadline, stall)
                        rows.append([policy, f"{stall:g}", number + 1, f"{again:.3f}", f"{100 * before:.2f}%", f"{100 * after:.2f}%"])
                        met = met and again <= 0.5 and after >= before - 0.005
    harness.table(rows, ["policy", "stall (s)", "round", "served again after (s)", "on time before", "from 0.5 s after"])
    if args.check and not met:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
