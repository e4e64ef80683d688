#!/usr/bin/env python3
"""A variable-length encoder under two applications, short inputs and long ones: who is on time, live?

Serves the sample varlen_encoder on the CPU with orloj (also blind to lengths, as in its paper), clockwork, symphony and fcfs in turn, several rounds of each, and sends
seeded Poisson arrivals over HTTP: most requests are short, most of the work is in the long ones. The SLO is three times the
P99 of the mixture's solo times, as measured first; loads are shares of what the device can do if each application's requests
run in the best batches of their own. Kernels run on one thread, so that the load generator has a core of its own.
Writes the results into bench/measured/dynamic.md, and docs/img/dynamic.png.

    python bench/dynamic.py [--seconds 20] [--rounds 3] [--loads 0.6,0.8,0.95,1.1] [--no-write]
"""
import argparse
import bisect
import json
import pathlib
import shutil
import statistics
import subprocess
import sys

import harness

MODEL = "varlen_encoder"
LENGTHS = [16, 32, 64, 128, 256, 384, 512]  # of the plans; the sample's own end at 256
# Application: share of the requests, shortest and longest input.
APPS = {"chat": (0.85, 8, 32), "mail": (0.15, 256, 512)}
DOCUMENT = harness.ROOT / "bench/measured/dynamic.md"
BEGIN, END = "<!-- written by bench/dynamic.py -->", "<!-- end -->"


def repository(folder):
    """The sample with plans for longer inputs."""
    source = harness.samples(harness.ROOT / "build/samples", MODEL)
    if folder.exists():
        shutil.rmtree(folder)
    shutil.copytree(source / MODEL, folder / MODEL)
    config = folder / MODEL / "config.pbtxt"
    text = config.read_text()
    assert '"16,32,64,128,256"' in text, "the sample's lengths have changed"
    config.write_text(text.replace('"16,32,64,128,256"', '"' + ",".join(map(str, LENGTHS)) + '"'))
    return folder


def lengths_of(first, last):
    """Those that `carillon load --length first-last` sends, each as often."""
    steps = min(last - first + 1, 64)
    return [first + (last - first) * i // (steps - 1) for i in range(steps)]


def plan(profile):
    """SLO in ms, and the total rate that would keep the device busy."""
    times = {entry["length"]: {b["batch"]: b["p50_ms"] for b in entry["batches"]} for entry in profile["lengths"]}
    at = lambda length: times[LENGTHS[bisect.bisect_left(LENGTHS, length)]]
    solos, work = [], 0.0
    for share, first, last in APPS.values():
        lengths = lengths_of(first, last)
        solos += [(at(n)[1], share / len(lengths)) for n in lengths]
        work += share * statistics.mean(min(t / k for k, t in at(n).items()) for n in lengths)
    solos.sort()
    total, p99 = 0.0, 0.0
    for time, weight in solos:
        total += weight
        if total >= 0.99:
            p99 = time
            break
    return 3 * p99, 1000 / work, p99


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20, help="of each run, after the warm-up")
    parser.add_argument("--warmup", type=float, default=3, help="seconds at the run's load that are left out")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--loads", default="0.6,0.8,0.95,1.1")
    parser.add_argument("--schedulers", default="orloj,orloj/blind,clockwork,symphony,fcfs",
                        help="/blind: --length-blind")
    parser.add_argument("--no-write", action="store_true", help="leave the document and the plot as they are")
    args = parser.parse_args()
    loads = [float(f) for f in args.loads.split(",")]
    schedulers = args.schedulers.split(",")
    folder = harness.RESULTS / "dynamic"
    models = repository(folder / "models")
    profile_file = folder / "profile.json"
    subprocess.run([harness.CARILLON, "profile", "--models", models, "--threads", "1", "--repeats", "50", "--out",
                    profile_file], check=True, stdout=sys.stderr)
    slo_ms, capacity, p99 = plan(json.loads(profile_file.read_text())["models"][0])
    harness.say(f"P99 {p99:.2f} ms, SLO {slo_ms:.1f} ms, capacity {capacity:.0f}/s")

    runs = []
    for round_ in range(args.rounds):
        for scheduler in schedulers:
            for load in loads:
                name, _, blind = scheduler.partition("/")
                options = ["--length-blind"] if blind else []
                with harness.Server(models, "--threads", "1", "--scheduler", name, "--profile", profile_file,
                                    *options) as server:
                    streams = lambda rate: [f"{MODEL},app={app},length={first}-{last},rate={share * rate:.3f},"
                                            f"deadline={slo_ms:.3f}" for app, (share, first, last) in APPS.items()]
                    # Light load first: what policies learn, they learn here, in idle time too.
                    harness.load(server.http_url, streams(0.2 * capacity), "--duration", 5, "--seed", 3)
                    result = harness.load(server.http_url, streams(load * capacity), "--duration",
                                          args.seconds + args.warmup, "--warmup", args.warmup, "--seed", 11 + round_)
                    metrics = server.metrics()
                    one = lambda name: next((v for (n, _), v in metrics.items() if n == name), 0.0)
                    batches = one("nv_inference_count") / max(1.0, one("nv_inference_exec_count"))
                    runs.append({"round": round_, "scheduler": scheduler, "load": load, "mean_batch": batches,
                                 "profiled": one("carillon_profiled_total"), "result": result})
                    harness.say(f"{scheduler} at {load:g}: {result['on_time_rate']:.4f} on time")
    file = harness.save("dynamic", {"slo_ms": slo_ms, "p99_ms": p99, "capacity_rps": capacity, "apps": APPS, "runs": runs})
    write(json.loads(file.read_text()), loads, schedulers, args)


def cell(values):
    return f"{statistics.mean(values):.3f} ({min(values):.3f} to {max(values):.3f})"


def write(data, loads, schedulers, args):
    rows = []
    for load in loads:
        for scheduler in schedulers:
            mine = [r for r in data["runs"] if r["scheduler"] == scheduler and r["load"] == load]
            apps = [cell([next(m for m in r["result"]["models"] if m["name"].endswith("/" + app))["on_time_rate"]
                          for r in mine]) for app in APPS]
            late = sum(r["result"]["late"] for r in mine)
            rows.append([f"{load:g}", scheduler, cell([r["result"]["on_time_rate"] for r in mine]), *apps,
                         late, f"{statistics.mean(r['result']['p99_ms'] for r in mine):.1f}",
                         f"{statistics.mean(r['mean_batch'] for r in mine):.2f}"])
    header = ["load", "scheduler", "on time", *APPS, "late answers", "p99 ms", "mean batch"]
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(map(str, row)) + " |" for row in rows]
    table = "\n".join(lines)
    print(table)
    if args.no_write:
        return
    shares = "; ".join(f"{app}: {100 * share:.0f}% of the requests, {first} to {last} tokens"
                       for app, (share, first, last) in APPS.items())
    machine = data["machine"]
    text = (f"{BEGIN}\n`python bench/dynamic.py --seconds {args.seconds:g} --rounds {args.rounds} --loads {args.loads}`, commit {machine['commit']}, {machine['cpu']}, kernels on one thread, "
            f"{machine['date']}. {shares}. P99 of the solo times {data['p99_ms']:.2f} ms, SLO {data['slo_ms']:.1f} ms; load 1 "
            f"is {data['capacity_rps']:.0f} requests/s. Shares of requests on time, mean of {args.rounds} rounds of "
            f"{args.seconds:g} s (least to most).\n\n{table}\n\n![On time by load](../../docs/img/dynamic.png)\n{END}")
    document = DOCUMENT.read_text()
    before, _, rest = document.partition(BEGIN)
    _, _, after = rest.partition(END)
    DOCUMENT.write_text(before + text + after)
    plot(data, loads, schedulers)


def plot(data, loads, schedulers):
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 1 + len(APPS), figsize=(12, 3.6), sharey=True)
    for axis, app in zip(axes, [None, *APPS]):
        for scheduler in schedulers:
            means, lows, highs = [], [], []
            for load in loads:
                values = []
                for r in data["runs"]:
                    if r["scheduler"] != scheduler or r["load"] != load:
                        continue
                    told = r["result"] if app is None else next(m for m in r["result"]["models"]
                                                                if m["name"].endswith("/" + app))
                    values.append(told["on_time_rate"])
                means.append(statistics.mean(values))
                lows.append(means[-1] - min(values))
                highs.append(max(values) - means[-1])
            axis.errorbar(loads, means, yerr=[lows, highs], fmt="o-", capsize=3, label=scheduler)
        axis.set(title=app or "all", xlabel="load (times capacity)", ylim=(0, 1.03))
    axes[0].set_ylabel("on time")
    axes[0].legend()
    figure.tight_layout()
    figure.savefig(harness.ROOT / "docs/img/dynamic.png", dpi=110)


if __name__ == "__main__":
    main()
