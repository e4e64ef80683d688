#!/usr/bin/env python3
"""An open encoder under requests of many sizes, each with a deadline of its own size: what does it bring to predict times by size?

Serves the sample varlen_encoder on the CPU without its lengths, so that plans are made as sizes come, and sends seeded Poisson
arrivals over HTTP, as many of each size; a request may take so many times what it takes alone, and a millisecond. Each policy
runs as it is and blind to sizes (--length-blind), when it goes by the largest of the last ten times. Load 1 is what the device
does one by one. At half of it hardly a refusal is needed. The plans are there before it is measured. Kernels run on one thread.
Writes the results into bench/measured/dynamic.md.

    python bench/open_sizes.py [--seconds 10] [--rounds 2] [--loads 0.5,0.9] [--schedulers clockwork,symphony,orloj] [--no-write]
"""
import argparse
import json
import shutil
import statistics

import harness

MODEL = "varlen_encoder"
SIZES = [8, 16, 32, 64, 128, 256, 512]
DOCUMENT = harness.ROOT / "bench/measured/dynamic.md"
BEGIN, END = "<!-- written by bench/open_sizes.py -->", "<!-- end of bench/open_sizes.py -->"


def repository(folder):
    """The sample, with nothing said of lengths."""
    source = harness.samples(harness.ROOT / "build/samples", MODEL)
    if folder.exists():
        shutil.rmtree(folder)
    (folder / MODEL / "1").mkdir(parents=True)
    shutil.copy(source / MODEL / "1" / "model.onnx", folder / MODEL / "1" / "model.onnx")
    return folder


def streams(rates, deadlines):
    """Of each size, told apart by its application."""
    return [f"{MODEL},app=size{size},length={size},rate={rates[size]:.3f}"
            + (f",deadline={deadlines[size]:.3f}" if deadlines else "") for size in SIZES]


def of_size(result, size):
    return next(m for m in result["models"] if m["name"].endswith(f"/size{size}"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10, help="of each run, after the warm-up")
    parser.add_argument("--warmup", type=float, default=2, help="seconds at the run's load that are left out")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--slack", type=float, default=5, help="the deadline, in times of the request alone")
    parser.add_argument("--loads", default="0.5,0.9")
    parser.add_argument("--schedulers", default="clockwork,symphony,orloj")
    parser.add_argument("--no-write", action="store_true", help="leave the document as it is")
    args = parser.parse_args()
    loads = [float(f) for f in args.loads.split(",")]
    schedulers = args.schedulers.split(",")
    models = repository(harness.RESULTS / "open_sizes" / "models")
    options = ["--threads", "1", "--max-open", "65536"]

    with harness.Server(models, *options, "--scheduler", "fcfs") as server:
        for _ in range(2):  # the first makes the plans
            alone = harness.load(server.http_url, streams({s: 4 for s in SIZES}, None), "--duration", 6, "--warmup", 2)
    solo = {size: of_size(alone, size)["p50_ms"] for size in SIZES}
    capacity = 1000 / statistics.mean(solo.values())
    deadlines = {size: args.slack * solo[size] + 1 for size in SIZES}
    harness.say(f"alone, ms: {solo}; load 1 is {capacity:.0f}/s")

    runs = []
    for round_ in range(args.rounds):
        for scheduler in schedulers:
            for blind in (True, False):
                for load in loads:
                    with harness.Server(models, *options, "--scheduler", scheduler,
                                        *(["--length-blind"] if blind else [])) as server:
                        few = {s: 3 for s in SIZES}
                        harness.load(server.http_url, streams(few, None), "--duration", 3, "--seed", 3)
                        rates = {s: load * capacity / len(SIZES) for s in SIZES}
                        result = harness.load(server.http_url, streams(rates, deadlines), "--duration",
                                              args.seconds + args.warmup, "--warmup", args.warmup, "--seed", 11 + round_)
                    runs.append({"round": round_, "scheduler": scheduler, "blind": blind, "load": load, "result": result})
                    harness.say(f"{scheduler}{' blind' if blind else ''} at {load:g}: {result['on_time_rate']:.4f} on time")
    file = harness.save("open_sizes", {"solo_ms": solo, "capacity_rps": capacity, "slack": args.slack, "runs": runs})
    write(json.loads(file.read_text()), loads, schedulers, args)


def cell(values):
    return f"{statistics.mean(values):.3f} ({min(values):.3f} to {max(values):.3f})"


def write(data, loads, schedulers, args):
    rows = []
    for load in loads:
        for scheduler in schedulers:
            for blind in (True, False):
                mine = [r["result"] for r in data["runs"]
                        if (r["scheduler"], r["blind"], r["load"]) == (scheduler, blind, load)]
                share = lambda key, sizes: cell([sum(of_size(r, s)[key] for s in sizes)
                                                 / max(1, sum(of_size(r, s)["sent"] for s in sizes)) for r in mine])
                rows.append([f"{load:g}", scheduler, "blind" if blind else "by size", share("on_time", SIZES),
                             share("refused", SIZES), share("refused", SIZES[:3]), share("refused", SIZES[-1:]),
                             sum(r["late"] for r in mine)])
    header = ["load", "scheduler", "sizes", "on time", "refused", f"refused, {SIZES[0]} to {SIZES[2]}",
              f"refused, {SIZES[-1]}", "late answers"]
    table = "\n".join(["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
                      + ["| " + " | ".join(map(str, row)) + " |" for row in rows])
    print(table)
    if args.no_write:
        return
    machine = data["machine"]
    alone = ", ".join(f"{size}: {data['solo_ms'][str(size)]:.2f}" for size in SIZES)
    text = (f"{BEGIN}\n`python bench/open_sizes.py --seconds {args.seconds:g} --rounds {args.rounds} --loads {args.loads} "
            f"--schedulers {args.schedulers}`, commit {machine['commit']}, {machine['cpu']}, kernels on one thread, "
            f"{machine['date']}. As many requests of each size; a request alone takes, in ms over HTTP, {alone}; it may take "
            f"{data['slack']:g} times that and 1 ms. Load 1 is {data['capacity_rps']:.0f} requests/s. Shares of requests, mean "
            f"of {args.rounds} rounds (least to most).\n\n{table}\n{END}")
    document = DOCUMENT.read_text()
    before, _, rest = document.partition(BEGIN)
    _, _, after = rest.partition(END)
    DOCUMENT.write_text(before + text + after)


if __name__ == "__main__":
    main()
