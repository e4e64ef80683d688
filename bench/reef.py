#!/usr/bin/env python3
"""REEF in simulation: fills the generated part of bench/measured/reef.md and draws docs/img/reef.png.

The workloads under all schedulers, beside what the paper has and what the kernel tables allow at most; what each part
of the policy is worth; how long a preemption takes by the number and length of kernels, by model, by what may be in
flight, and what it costs to go back.

    python bench/reef.py                a few minutes on two cores
    python bench/reef.py --seconds 5    the first seconds of each workload, for a look
    python bench/reef.py --no-write     prints the tables and writes nothing
"""
import argparse
import json
import math
import pathlib
import subprocess
import sys
import tempfile

import harness

ROOT = harness.ROOT
DOCUMENT = ROOT / "bench/measured/reef.md"
BEGIN, END = "<!-- measured: bench/reef.py -->", "<!-- end of measured -->"
TABLE = ROOT / "profiles/mi50_kernels.json"
WORKLOADS = ["A", "B", "B220", "C", "D", "E", "REAL"]
SCHEDULERS = ["rt-only", "sequential", "streams", "wait", "reef"]
MODELS = ["resnet152", "densenet201", "vgg19", "inceptionv3", "distilbert"]
# Section 7.2: mean real-time latency and throughput of the schedulers, over rt-only's. Its text gives C to E as ranges.
PAPER = {"A": {"sequential": (1.95, 1.46), "streams": (1.84, 1.66), "reef": (1.005, 1.60)},
         "B220": {"sequential": (1.12, 0.96), "streams": (1.70, 0.76), "reef": (1.01, 1.14)},
         "D": {"reef": (1.015, 3.00)},
         "E": {"reef": (1.015, 2.96)},
         "REAL": {"sequential": (1.35, 3.6), "streams": (3.35, 8.3), "reef": (1.02, 7.7)}}
# What is asked of reef: its throughput over rt-only's, at less than 1.02 of its mean latency.
GOALS = {"A": 1.60, "B220": 1.14, "D": 3.0, "E": 2.96, "REAL": 7.7}


def disb(workload, *options, duration=None, seed=1):
    command = [str(harness.CARILLON), "disb", str(workload), "--simulate", "--json", "--seed", str(seed), *map(str, options)]
    if duration:
        command += ["--duration", str(duration)]
    ran = subprocess.run(command, capture_output=True, text=True)
    if ran.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{ran.stderr}")
    return json.loads(ran.stdout)


def rows(header, lines):
    return "\n".join(["| " + " | ".join(header) + " |", "|" + "---|" * len(header),
                      *("| " + " | ".join(str(c) for c in line) + " |" for line in lines)]) + "\n"


def plan_of(model, units):
    """(a run alone in unit time, the least unit time that it can be run in), in seconds, scaled as the program does."""
    alone = spread = packed = 0
    for kernel in model["kernels"]:
        rounds, longest = [], 0
        for us in kernel["round_us"]:
            longest = max(longest, us)
            rounds.append(longest)
        depth = min(len(rounds), math.ceil(kernel["blocks"] / units))
        wide = min(units, math.ceil(kernel["blocks"] / depth))
        full, rest = divmod(kernel["blocks"], wide * depth)
        time = full * rounds[depth - 1] + (rounds[math.ceil(rest / wide) - 1] if rest else 0)
        repeat = kernel.get("repeat", 1)
        alone += repeat * time
        spread += repeat * time * wide
        packed += repeat * min(kernel["blocks"] / (k + 1) * rounds[k] for k in range(len(rounds)))
    scale = model["latency_us"] / alone * 1e-6
    return {"latency": model["latency_us"] * 1e-6, "spread": spread * scale, "packed": packed * scale}


def bound(rates, best_effort, plans, units):
    """Requests a second, at most: real-time ones as they are, best-effort ones (a client each, one under way at a time)
    packed perfectly into the unit time that is left, those that take least of it first."""
    left = units - sum(rate * plans[model]["spread"] for model, rate in rates.items())
    total = sum(rates.values())
    for model in sorted(best_effort, key=lambda m: plans[m]["packed"]):
        rate = min(1 / plans[model]["latency"], max(0, left) / plans[model]["packed"])
        left -= rate * plans[model]["packed"]
        total += rate
    return total


def overall(seconds, plans, units):
    lines, missed, runs = [], [], {}
    for workload in WORKLOADS:
        found = {run["scheduler"]: run for run in disb(workload, "--scheduler", "all", duration=seconds)["runs"]}
        runs[workload] = found
        alone = found["rt-only"]
        rates = {}
        for client in alone["clients"]:
            if client["class"] == "real_time":
                rates[client["model"]] = rates.get(client["model"], 0) + client["rps"]
        most = bound(rates, [c["model"] for c in alone["clients"] if c["class"] == "best_effort"], plans, units)
        for scheduler in SCHEDULERS:
            run = found[scheduler]
            slower = run["rt"]["mean_ms"] / alone["rt"]["mean_ms"]
            gain = run["total_rps"] / alone["total_rps"]
            paper = PAPER.get(workload, {}).get(scheduler)
            lines.append([workload if scheduler == SCHEDULERS[0] else "", scheduler, f"{run['rt']['mean_ms']:.3f}",
                          f"{100 * (slower - 1):+.2f}%", f"{run['rt']['p99_ms']:.2f}", run["rt"]["dropped"],
                          f"{run['rt']['rps']:.1f}", f"{run['be']['rps']:.1f}", f"{gain:.2f}",
                          f"{most / alone['total_rps']:.2f}" if scheduler == "reef" else "",
                          f"{100 * (paper[0] - 1):+.1f}%, {paper[1]:.2f}" if paper else ""])
            if scheduler == "reef":
                if slower >= 1.02:
                    missed.append(f"{workload}: {slower:.3f} of the latency")
                if workload in GOALS and gain < GOALS[workload]:
                    missed.append(f"{workload}: {gain:.2f} times, not {GOALS[workload]}")
        if workload == "C" and found["reef"]["total_rps"] < 0.9 * found["streams"]["total_rps"]:
            missed.append("C: below 0.9 of streams")
    text = rows(["workload", "scheduler", "rt mean ms", "over rt-only", "rt p99 ms", "dropped", "rt/s", "best effort/s",
                 "total over rt-only", "at most", "paper"], lines)
    dropped = ", ".join(f"{w} {found['reef']['rt']['dropped']} ({found['rt-only']['rt']['dropped']})"
                        for w, found in runs.items() if found["reef"]["rt"]["dropped"] or found["rt-only"]["rt"]["dropped"])
    text += "\n" + ("Missed: " + "; ".join(missed) if missed else "All goals are met") + (
        ", of the requests that were answered: one that is dropped has no latency." if not missed else ".")
    if dropped:
        text += f" Real-time requests dropped under reef (under rt-only): {dropped}."
    return text + "\n", runs


def worth(seconds):
    """reef without its parts, and on other devices."""
    variants = [("reef", []), ("rule 1 to the letter (`--no-look-ahead`)", ["--no-look-ahead"]),
                ("no padding (`--no-padding`)", ["--no-padding"]),
                ("4 in flight, however long (`--in-flight-us 1000000`)", ["--in-flight-us", 1000000]),
                ("1 in flight", ["--in-flight", 1]), ("at most 5 us in flight", ["--in-flight-us", 5]),
                ("at most 100 us in flight", ["--in-flight-us", 100]),
                ("the kernel is known (`--knows-kernel`)", ["--knows-kernel"]),
                ("whatever company costs (`--slowdown 1`)", ["--slowdown", 1]), ("`--slowdown 0.01`", ["--slowdown", 0.01]),
                ("a margin of 0", ["--margin", 0]), ("a margin of 10%", ["--margin", 0.1]),
                ("a device without interference", ["--interference", 0]), ("with 5% of it", ["--interference", 0.05]),
                ("dispatch in 2 us", ["--dispatch-us", 2]), ("dispatch in 10 us", ["--dispatch-us", 10]),
                ("kernels vary by 5%", ["--noise", 0.05])]
    lines = []
    for name, options in variants:
        line = [name]
        for workload in ("A", "B220", "D", "E", "REAL"):
            runs = {s: disb(workload, "--scheduler", s, *options, duration=seconds) for s in ("rt-only", "reef")}
            line.append(f"{runs['reef']['total_rps'] / runs['rt-only']['total_rps']:.2f}, "
                        f"{100 * (runs['reef']['rt']['mean_ms'] / runs['rt-only']['rt']['mean_ms'] - 1):+.2f}%")
        lines.append(line)
    return rows(["", "A", "B220", "D", "E", "REAL"], lines)


def made(kernels, us, folder, blocks=60):
    """A workload of one best-effort client with so many kernels, and a real-time one whose runs come at random."""
    table = folder / f"table_{kernels}_{us}_{blocks}.json"
    table.write_text(json.dumps({"device": "made up", "units": 60, "models": {
        "be": {"latency_us": kernels * us, "kernels": [{"name": "k", "blocks": blocks, "round_us": [us], "repeat": kernels}]},
        "rt": {"latency_us": 100, "kernels": [{"name": "k", "blocks": 60, "round_us": [50], "repeat": 2}]}}}))
    return table, random_arrivals(folder, "be", "rt")


def random_arrivals(folder, best_effort, real_time):
    workload = folder / f"workload_{best_effort}_{real_time}.json"
    workload.write_text(json.dumps({"time": 20, "tasks": [
        {"id": "a_rt", "load": {"type": "poisson", "frequency": 20}, "client": {"model_name": real_time, "batch_size": 1}},
        {"id": "b_be", "load": {"type": "continuous"}, "client": {"model_name": best_effort, "batch_size": 1}}]}))
    return workload


def preemption(run):
    return f"{run['preemption_p50_us']:.0f} ({run['preemption_p99_us']:.0f})"


def latencies(folder):
    """Figures 12 and 13."""
    text = "Preemption latency, microseconds, median (99th percentile), by kernels of 100 us each, and by how long each of 100 is:\n\n"
    counts, lengths = [25, 50, 100, 200, 400], [25, 50, 100, 200, 400]
    series = {}
    lines = []
    for scheduler in ("wait", "reef"):
        by_count = [disb(w, "--kernels", t, "--scheduler", scheduler) for t, w in (made(n, 100, folder) for n in counts)]
        by_length = [disb(w, "--kernels", t, "--scheduler", scheduler) for t, w in (made(100, us, folder) for us in lengths)]
        series[scheduler] = ([r["preemption_p50_us"] for r in by_count], [r["preemption_p50_us"] for r in by_length])
        lines.append([scheduler, *(preemption(r) for r in by_count), *(preemption(r) for r in by_length)])
    text += rows(["scheduler", *(f"{n} kernels" for n in counts), *(f"{us} us" for us in lengths)], lines)
    text += "\nBy the model that is preempted (VGG-19 comes, 20 a second, at random):\n\n"
    lines = []
    for scheduler in ("wait", "reef"):
        lines.append([scheduler, *(preemption(disb(random_arrivals(folder, model, "vgg19"), "--kernels", TABLE, "--scheduler", scheduler))
                                   for model in MODELS)])
    text += rows(["scheduler", *MODELS], lines)
    return text, (counts, lengths, series)


def capacity(folder):
    """Figure 15."""
    lines = []
    workload = random_arrivals(folder, "resnet152", "vgg19")
    alone = folder / "alone.json"
    alone.write_text(json.dumps({"time": 20, "tasks": [
        {"id": "b_be", "load": {"type": "continuous"}, "client": {"model_name": "resnet152", "batch_size": 1}}]}))
    # Kernels that fill the device, so that a real-time run has to wait for the eviction.
    table, wide = made(200, 20, folder)
    for launches in (1, 2, 4, 8, 16, 32):
        options = ["--scheduler", "reef", "--in-flight", launches, "--in-flight-us", 1000000]
        run = disb(wide, "--kernels", table, *options)
        narrow = disb(workload, "--kernels", TABLE, *options)
        only = disb(alone, "--kernels", TABLE, *options)
        lines.append([launches, preemption(run), preemption(narrow), f"{only['be']['mean_ms']:.3f}"])
    text = rows(["in flight", "preemption us, kernels of 20 us that fill the device", "preemption us, ResNet-152", "ResNet-152 alone, ms"], lines)
    text += "\nWhat an eviction costs the run that is evicted (time that is run again or was killed, as time of the units that it used, over their number, by eviction):\n\n"
    lines = []
    for name, options in (("4 in flight, however long", ["--in-flight-us", 1000000]), ("at most 20 us in flight", []),
                          ("the kernel is known", ["--knows-kernel"])):
        line = [name]
        for model in MODELS:
            run = disb(random_arrivals(folder, model, "vgg19"), "--kernels", TABLE, "--scheduler", "reef", *options)
            of = next(m for m in run["models"] if m["model"] == model)
            line.append(f"{1000 * of['lost_ms'] / 60 / max(1, run['preemptions']):.0f} us")
        lines.append(line)
    return text + rows(["", *MODELS], lines)


def pads(folder, seconds):
    """Which model's kernels run beside which's: best-effort rate beside real-time runs without a pause, over its own."""
    lines = []
    for real_time in MODELS:
        line = [real_time]
        for best_effort in MODELS:
            workload = folder / "pair.json"
            workload.write_text(json.dumps({"time": 10, "tasks": [
                {"id": "a_rt", "load": {"type": "continuous"}, "client": {"model_name": real_time, "batch_size": 1}},
                {"id": "b_be", "load": {"type": "continuous"}, "client": {"model_name": best_effort, "batch_size": 1}}]}))
            share = []
            for options in ([], ["--no-look-ahead"]):
                run = disb(workload, "--kernels", TABLE, "--scheduler", "reef", *options, duration=min(seconds, 10) if seconds else None)
                latency = json.loads(TABLE.read_text())["models"][best_effort]["latency_us"] * 1e-6
                share.append(f"{100 * run['be']['rps'] * latency:.0f}%")
            line.append(f"{share[0]} ({share[1]})")
        lines.append(line)
    return rows(["real-time \\ best effort", *MODELS], lines)


def draw(runs, figures):
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    counts, lengths, series = figures
    fig, axes = plt.subplots(2, 2, figsize=(11, 7))
    width = 0.16
    for i, scheduler in enumerate(SCHEDULERS):
        at = [x + (i - 2) * width for x in range(len(WORKLOADS))]
        axes[0][0].bar(at, [runs[w][scheduler]["rt"]["mean_ms"] for w in WORKLOADS], width, label=scheduler)
        axes[0][1].bar(at, [runs[w][scheduler]["total_rps"] for w in WORKLOADS], width, label=scheduler)
    for axis, what in ((axes[0][0], "mean latency of real-time requests, ms"), (axes[0][1], "requests a second, both classes")):
        axis.set_xticks(range(len(WORKLOADS)), WORKLOADS)
        axis.set_ylabel(what)
        axis.legend(fontsize=8)
    for k, (axis, x, what) in enumerate(((axes[1][0], counts, "kernels of 100 us"), (axes[1][1], lengths, "length of each of 100 kernels, us"))):
        for scheduler, lines in series.items():
            axis.plot(x, lines[k], marker="o", label=scheduler)
        axis.set_xlabel(what)
        axis.set_ylabel("median preemption latency, us")
        axis.set_yscale("log")
        axis.legend(fontsize=8)
    fig.tight_layout()
    out = ROOT / "docs/img/reef.png"
    fig.savefig(out, dpi=110)
    harness.say(f"wrote {out}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, help="of each workload; default: as long as it is")
    parser.add_argument("--no-write", action="store_true")
    args = parser.parse_args()
    table = json.loads(TABLE.read_text())
    plans = {name: plan_of(model, table["units"]) for name, model in table["models"].items()}
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        machine = harness.machine()
        text = f"By `bench/reef.py{f' --seconds {args.seconds:g}' if args.seconds else ''}`, commit {machine['commit']}.\n\n"
        table_text, runs = overall(args.seconds, plans, table["units"])
        text += "### The workloads\n\n" + table_text
        harness.say("workloads: done")
        text += "\n### What each part is worth\n\nTotal throughput and mean real-time latency over rt-only's on the same device:\n\n" + worth(args.seconds)
        harness.say("parts: done")
        text += "\n### Preemption\n\n"
        part, figures = latencies(folder)
        text += part
        text += "\n### What may be in flight\n\n" + capacity(folder)
        text += ("\n### Which kernels run beside which\n\nThe best-effort model's rate beside real-time runs without a pause, over its rate alone "
                 "(with rule 1 to the letter):\n\n") + pads(folder, args.seconds)
    if args.no_write:
        print(text)
        return
    document = DOCUMENT.read_text()
    before, rest = document.split(BEGIN, 1)
    after = rest.split(END, 1)[1]
    DOCUMENT.write_text(f"{before}{BEGIN}\n{text}{END}{after}")
    harness.say(f"wrote {DOCUMENT}")
    draw(runs, figures)


if __name__ == "__main__":
    main()
