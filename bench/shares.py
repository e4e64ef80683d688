#!/usr/bin/env python3
"""Two sample models share the CPU device by a plan: are they on time, with iGniter's shares, with FFD+'s, and with too small ones?

Measures how the models slow each other on this machine (`carillon profile --interference`), plans a workload of each
(`carillon plan`, strategies igniter and ffd+), serves the plans (`carillon serve --plan`) and sends each workload its rate
for some minutes. A workload's P99 is within its SLO where no more than one in a hundred of its requests is late, refused or
unanswered. Then one workload gets only part of the share that it needs, and it is watched when its standby takes over.
Kernels have one thread's time in all, so that the load generator has a core of its own.
Writes the results into bench/measured/provisioning.md.

    python bench/shares.py [--seconds 300] [--models mobilenetv2,resnet18] [--repository DIR] [--no-write]
"""
import argparse
import csv
import json
import math
import subprocess
import sys
import threading
import time

import harness

DOCUMENT = harness.ROOT / "bench/measured/provisioning.md"
BEGIN, END = "<!-- written by bench/shares.py -->", "<!-- end of bench/shares.py -->"


def carillon(*arguments):
    command = [str(harness.CARILLON), *map(str, arguments)]
    harness.say("$ " + " ".join(command))
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}")
    return done.stdout


def plan(strategy, workloads, coefficients, hardware):
    return json.loads(carillon("plan", workloads, "--coefficients", coefficients, "--hardware", hardware, "--strategy",
                               strategy, "--json"))


def run(args, folder, models, plan_of, workloads, name, seconds, standby=False):
    """Serves the plan's first device and sends every workload its rate. Results by workload, and when standbys took over."""
    file = folder / f"{name}.json"
    file.write_text(json.dumps(plan_of))
    options = [] if standby else ["--no-standby"]
    with harness.Server(models, "--threads", args.threads, "--plan", file, "--plan-device", 1, *options) as server:
        over, begun, stop = {}, time.monotonic(), threading.Event()

        def watch():
            while not stop.wait(0.05):
                for (metric, labels), value in server.metrics().items():
                    if metric == "carillon_on_standby" and value == 1:
                        over.setdefault(dict(labels)["model"], time.monotonic() - begun)

        watcher = threading.Thread(target=watch)
        if standby:
            watcher.start()
        lines = harness.RESULTS / f"shares_{name}.csv"
        begun = time.monotonic()
        result = harness.load(server.http_url, [f"{w['model']},rate={w['rate_rps']:.4f},deadline={w['slo_ms']:.4f}"
                                                for w in workloads], "--process", args.process, "--duration", seconds,
                              "--csv", lines, "--seed", 5)
        stop.set()
        if standby:
            watcher.join()
    by_model = {}
    for workload in workloads:
        told = next(m for m in result["models"] if m["name"] == workload["model"])
        bad = told["sent"] - told["on_time"]
        with open(lines) as text:
            answers = [r for r in csv.DictReader(text) if r["model"] == workload["model"]]
        # The P99 of all requests: what was not answered is later than anything.
        latencies = sorted(float(r["answered_ms"]) - float(r["planned_ms"]) if r["outcome"] in ("on_time", "late")
                           else math.inf for r in answers)
        by_model[workload["model"]] = {
            "sent": told["sent"], "on_time_rate": told["on_time_rate"], "refused": told["refused"], "late": told["late"],
            "p99_ms": latencies[max(0, math.ceil(0.99 * len(latencies)) - 1)], "slo_ms": workload["slo_ms"],
            "within": bad <= 0.01 * told["sent"], "taken_over_s": over.get(workload["model"]),
            "first_s": min(float(r["planned_ms"]) for r in answers) / 1000}
    harness.say(json.dumps(by_model))
    return by_model


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--models", default="mobilenetv2,resnet18")
    parser.add_argument("--repository", default=str(harness.ROOT / "build/samples"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--process", default="uniform", help="arrivals; uniform are the paper's clients")
    parser.add_argument("--contrast-seconds", type=float, default=120, help="of the run with FFD+'s shares")
    parser.add_argument("--load", type=float, default=0.25, help="of each model: its rate, as a share of what it does alone")
    parser.add_argument("--slo", type=float, default=15, help="SLOs, in times of a batch of one alone")
    parser.add_argument("--fresh", action="store_true", help="measure the models anew")
    parser.add_argument("--no-write", action="store_true")
    args = parser.parse_args()
    names = args.models.split(",")
    repository = harness.samples(args.repository, *names)
    folder = harness.RESULTS / "shares"
    folder.mkdir(parents=True, exist_ok=True)
    with harness.only(repository, *names) as models:
        coefficients, hardware = folder / "coefficients.json", folder / "hardware.json"
        if args.fresh or not coefficients.exists():
            carillon("profile", "--interference", "--models", models, "--threads", args.threads, "--out-coefficients",
                     coefficients, "--out-hardware", hardware)
        profile_file = folder / "profile.json"
        if args.fresh or not profile_file.exists():
            carillon("profile", "--models", models, "--threads", args.threads, "--repeats", 30, "--out", profile_file)
        profile = {m["name"]: m for m in json.loads(profile_file.read_text())["models"]}
        workloads = []
        for name in names:
            one = next(b["p50_ms"] for b in profile[name]["batches"] if b["batch"] == 1)
            workloads.append({"id": f"W-{name}", "model": name, "slo_ms": round(args.slo * one, 3),
                              "rate_rps": round(args.load * 1000 / one, 3)})
        file = folder / "workloads.json"
        file.write_text(json.dumps({"workloads": workloads}, indent=1))

        plans, runs = {}, {}
        for strategy in ("igniter", "best", "ffd+"):
            plans[strategy] = plan(strategy, file, coefficients, hardware)
            told = [(w["id"], w["share_pct"], w["batch"]) for d in plans[strategy]["devices"] for w in d["workloads"]]
            harness.say(f"{strategy}: {plans[strategy]['device_count']} devices, {told}")
        for strategy in ("igniter", "ffd+"):
            if plans[strategy]["device_count"] != 1:
                raise SystemExit(f"{strategy} needs {plans[strategy]['device_count']} devices: choose a lower --load")
            runs[strategy] = run(args, folder, models, plans[strategy], workloads, strategy,
                                 args.seconds if strategy == "igniter" else args.contrast_seconds)
        # A share that is too small for the rate by a tenth, as if it had been predicted so.
        short = json.loads(json.dumps(plans["igniter"]))
        victim = short["devices"][0]["workloads"][0]
        one = next(b["p50_ms"] for b in profile[victim["model"]]["batches"] if b["batch"] == 1)
        best_time = min(b["p50_ms"] / b["batch"] for b in profile[victim["model"]]["batches"] if b["batch"] <= victim["batch"])
        rate = next(w["rate_rps"] for w in workloads if w["id"] == victim["id"])
        victim["share_pct"] = round(90 * rate * best_time / 1000, 2)
        harness.say(f"forced: {victim['id']} gets {victim['share_pct']}% of the device")
        runs["forced"] = run(args, folder, models, short, workloads, "forced", 20, standby=True)
        runs["forced"]["victim"] = victim
    data = {"workloads": workloads, "plans": plans, "runs": runs, "seconds": args.seconds, "process": args.process}
    harness.save("shares", data)
    write(data, args)


def write(data, args):
    rows = []
    for strategy in ("igniter", "ffd+"):
        for w in data["plans"][strategy]["devices"][0]["workloads"]:
            told = data["runs"][strategy][w["model"]]
            rows.append(f"| {strategy} | {w['model']} | {w['share_pct']:g}% | {w['batch']} | {w['predicted_latency_ms']:.1f} | "
                        f"{told['slo_ms']:.1f} | {told['p99_ms']:.1f} | {told['sent']} | {100 * told['on_time_rate']:.2f}% | "
                        f"{'yes' if told['within'] else 'no'} |")
    table = "\n".join(["| strategy | model | share | batch | predicted ms | SLO ms | P99 ms | requests | on time | within its SLO |",
                       "|---|---|---|---|---|---|---|---|---|---|", *rows])
    victim = data["runs"]["forced"]["victim"]
    told = data["runs"]["forced"][victim["model"]]
    taken = told["taken_over_s"]
    forced = (f"Forced under-prediction: {victim['model']} with {victim['share_pct']:g}% of the device, a tenth too little for "
              f"its rate: the standby " + (f"took over {taken - told['first_s']:.2f} s after its first request" if taken
                                           else "did not take over in 20 s") + ".")
    print(table + "\n\n" + forced)
    if args.no_write:
        return
    from datetime import date
    machine = harness.machine()
    text = (f"{BEGIN}\n## Live, on the CPU\n\n`python bench/shares.py`, commit {machine['commit']}, {machine['cpu']}, "
            f"{args.threads} kernel thread, {date.today().isoformat()}; {data['seconds']:g} s with igniter's shares, "
            f"{args.contrast_seconds:g} s with FFD+'s, {data['process']} arrivals; "
            f"P99 over all requests, those refused later than any.\n\n{table}\n\n{forced}\n{END}")
    document = DOCUMENT.read_text()
    if BEGIN in document:
        before, _, rest = document.partition(BEGIN)
        text = before + text + rest.partition(END)[2]
    else:
        text = document.rstrip() + "\n\n" + text + "\n"
    DOCUMENT.write_text(text)


if __name__ == "__main__":
    sys.exit(main())
