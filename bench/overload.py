#!/usr/bin/env python3
"""ResNet-50 and MobileNetV2 together at 0.5, 1 and 2 times what the device can do: who is still on time?

Open-loop Poisson arrivals, deadline ten times the batch-1 time of each model. Capacity is measured first: the two
models' rates, in equal numbers, at which full batches would keep the device busy all the time, from the same profile for
all runs. The schedulers run in turn; with --rounds, in as many rounds with other arrivals each, of which the table has
the medians. --against PROGRAM serves each of them with another build in turn, for both to be compared.

With --emulated N the models run on N emulated devices, which take the times of EMULATED and compute nothing, so that a
busy machine matters less; the table is of the policies then, not of kernels. --busy N runs N busy loops beside all of it.

    python bench/overload.py [--seconds 20] [--repository DIR] [--plot docs/img/overload.png]
    python bench/overload.py --seconds 8 --rounds 5 --schedulers clockwork,symphony,eager,orloj,nexus --against OLD
    python bench/overload.py --seconds 8 --rounds 5 --schedulers carillon,clockwork,symphony,orloj,edf [--busy 2] [--emulated 2]
"""
import argparse
import contextlib
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

import emulated
import harness
from neighbours import busy_loops

MODELS = ["resnet50", "mobilenetv2"]
# Of emulated devices: a batch of b takes alpha * b + beta ms, about as on two cores.
EMULATED = {"resnet50": (16, 4), "mobilenetv2": (4.5, 2.5)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--warmup", type=float, default=2, help="seconds at each load that are left out")
    parser.add_argument("--repository", default=str(harness.ROOT / "build/samples"))
    parser.add_argument("--schedulers", default="clockwork,fcfs")
    parser.add_argument("--factors", default="0.5,1,2")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--against", help="another build of carillon, whose rows say so")
    parser.add_argument("--option", action="append", default=[],
                        help="an option for this build's servers, such as --option=--preempt=none")
    parser.add_argument("--protocol", choices=["http", "grpc"], default="grpc")
    parser.add_argument("--profile", type=pathlib.Path, help="of these models, in place of a measured one")
    parser.add_argument("--busy", type=int, default=0, help="busy loops beside")
    parser.add_argument("--emulated", type=int, default=0, help="emulated devices in place of this machine's processors")
    parser.add_argument("--plot", help="picture to write; docs/img/overload.png unless --busy or --emulated is given")
    args = parser.parse_args()
    args.name = "overload" + (f"_emulated{args.emulated}" if args.emulated else "") + (f"_busy{args.busy}" if args.busy else "")
    args.plot = args.plot or str(harness.ROOT / "docs/img/overload.png" if args.name == "overload" else harness.RESULTS / f"{args.name}.png")
    factors = [float(f) for f in args.factors.split(",")]

    harness.RESULTS.mkdir(parents=True, exist_ok=True)
    with served(args) as (models, profile_file), busy_loops(args.busy):
        profile = {m["name"]: m for m in json.loads(profile_file.read_text())["models"]}
        deadline, per_request = {}, {}
        for name in MODELS:
            batches = profile[name]["batches"]
            deadline[name] = 10 * next(b["p50_ms"] for b in batches if b["batch"] == 1)
            # The cheapest a request can be, among the batches that fit the deadline.
            per_request[name] = min(b["p50_ms"] / b["batch"] for b in batches if b["p50_ms"] <= deadline[name] / 2)
        # Equal rates r of both: r * (sum of their times) = the devices.
        capacity = max(1, args.emulated) * 1000 / sum(per_request.values())
        harness.say(f"capacity {capacity:.1f}/s of each model, deadlines {deadline}")

        runs = []
        programs = {"": None, **({" (against)": args.against} if args.against else {})}
        for turn in range(args.rounds):
            for scheduler in args.schedulers.split(","):
                for factor in factors:
                    for mark, program in programs.items():
                        result = run(args, models, profile_file, scheduler, program,
                                     {m: (capacity * factor, deadline[m]) for m in MODELS}, 7 + turn,
                                     harness.RESULTS / f"{args.name}_{scheduler}{mark and '_against'}_{factor:g}.csv")
                        runs.append({"scheduler": scheduler + mark, "factor": factor, "round": turn, "load": result})
            harness.save(args.name, {"capacity_rps_each": capacity, "deadline_ms": deadline, "runs": runs})
            harness.say(f"round {turn + 1} of {args.rounds} done")
    tell(runs)
    plot(args, runs, factors, 2 * capacity)


@contextlib.contextmanager
def served(args):
    """The models' folder, and what they take, measured or made up."""
    if args.emulated:
        with tempfile.TemporaryDirectory() as folder:
            yield emulated.repository(folder, EMULATED, 16)
        return
    with harness.only(harness.samples(args.repository, *MODELS), *MODELS) as models:
        profile_file = args.profile or harness.RESULTS / "overload_profile.json"
        if not args.profile:
            command = [harness.CARILLON, "profile", "--models", models, "--out", profile_file]
            subprocess.run(command, check=True, stdout=sys.stderr)
        yield models, profile_file


def run(args, models, profile_file, scheduler, program, rates, seed, csv_file):
    """One server, loaded for a while; {model: (requests a second, deadline in ms)}."""
    devices = emulated.devices(profile_file, args.emulated) if args.emulated else ("--profile", profile_file)
    options = ["--scheduler", scheduler, *devices, *([] if program else args.option)]
    with harness.Server(models, *options, program=program) as server:
        url = server.grpc_url if args.protocol == "grpc" else server.http_url
        harness.load(url, [f"{m},rate=5,deadline={deadline:.3f}" for m, (_, deadline) in rates.items()], "--duration", 2)
        return harness.load(url, [f"{m},rate={rate:.3f},deadline={deadline:.3f}" for m, (rate, deadline) in rates.items()],
                            "--duration", args.seconds + args.warmup, "--warmup", args.warmup, "--seed", seed,
                            "--csv", csv_file)


def late_share(load):
    return load["late"] / max(1, load["on_time"] + load["late"] + load["refused"])


def tell(runs):
    """The table, of medians where there are several rounds."""
    cells = {}
    for r in runs:
        cells.setdefault((r["scheduler"], r["factor"]), []).append(r["load"])
    rows = []
    for (scheduler, factor), loads in cells.items():
        median = lambda key: statistics.median(load[key] for load in loads)
        share = lambda values: f"{statistics.median(values):.2f}%" + (
            f" ({min(values):.1f} to {max(values):.1f})" if len(values) > 1 else "")
        failed = statistics.median(load["failed"] + load["unanswered"] for load in loads)
        rows.append([scheduler, f"{factor:g}x", f"{median('sent'):g}",
                     share([100 * load["on_time"] / max(1, load["sent"]) for load in loads]),
                     f"{median('goodput_rps'):.1f}", share([100 * late_share(load) for load in loads]),
                     f"{median('refused'):g}", f"{median('refused_before_deadline'):g}", f"{failed:g}",
                     f"{median('p50_ms'):.1f}", f"{median('p99_ms'):.1f}"])
    harness.table(rows, ["scheduler", "load", "sent", "on time", "goodput/s", "late of answers", "refused",
                         "before deadline", "failed", "p50 ms", "p99 ms"])
    goodput = {key: statistics.median(load["goodput_rps"] for load in loads) for key, loads in cells.items()}
    for scheduler in dict.fromkeys(r["scheduler"] for r in runs):
        if (scheduler, 1) in goodput and (scheduler, 2) in goodput:
            print(f"{scheduler}: goodput at 2x is {goodput[scheduler, 2] / goodput[scheduler, 1]:.3f} of that at 1x")


def plot(args, runs, factors, capacity):
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    import csv

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4))
    last = max(r["round"] for r in runs)
    for scheduler in dict.fromkeys(r["scheduler"] for r in runs if "(against)" not in r["scheduler"]):
        mine = [r for r in runs if r["scheduler"] == scheduler and r["round"] == last]
        left.plot([r["factor"] for r in mine], [r["load"]["goodput_rps"] for r in mine], "o-", label=scheduler)
        file = harness.RESULTS / f"{args.name}_{scheduler}_{factors[-1]:g}.csv"
        with open(file) as lines:
            latencies = sorted(float(r["answered_ms"]) - float(r["planned_ms"]) for r in csv.DictReader(lines)
                               if r["outcome"] in ("on_time", "late") and float(r["planned_ms"]) >= 1e3 * args.warmup)
        right.plot(latencies, [(i + 1) / len(latencies) for i in range(len(latencies))], label=scheduler)
    left.plot(factors, [f * capacity for f in factors], "k:", label="offered")
    left.set(xlabel="load (times capacity)", ylabel="answers on time, a second", ylim=(0, 2.1 * capacity))
    right.set(xlabel="latency of results (ms)", ylabel="fraction", title=f"at {factors[-1]:g}x", xscale="log")
    left.legend()
    right.legend()
    figure.tight_layout()
    pathlib.Path(args.plot).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(args.plot, dpi=110)
    harness.say(f"wrote {args.plot}")


if __name__ == "__main__":
    main()
