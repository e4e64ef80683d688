#!/usr/bin/env python3
"""REEF on this machine's CPU: how real-time requests fare beside best-effort ones, and what those still get.

Three questions, each with its own part; every part saves what it measured in build/bench, and --write fills the
generated chapter of bench/measured/reef.md from all that is saved.

    python bench/reef_live.py mixed      MobileNetV2 at 20 a second, real-time, beside ResNet-50 and DistilBERT in closed loops
    python bench/reef_live.py beside     real-time runs of one core, best-effort ones on the other; which model runs beside which
    python bench/reef_live.py disb       DISB's workloads, rates scaled to this device (resnet152, densenet201, ...: 1.3 GB)
    python bench/reef_live.py --write

Schedulers take turns within a round. --rounds has medians of several, with other seeds.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

import harness

DOCUMENT = harness.ROOT / "bench/measured/reef.md"
BEGIN, END = "<!-- measured: bench/reef_live.py -->", "<!-- end of measured live -->"
SCHEDULERS = ["rt-only", "sequential", "streams", "wait", "reef"]
WORKLOADS = ["A", "B", "B220", "C", "D", "E", "REAL"]
BESIDE = ["resnet50", "densenet121", "mobilenetv2", "distilbert"]


def task(name, model, load):
    return {"id": name, "load": load, "client": {"model_name": model, "batch_size": 1}}


def closed(name, model):
    return task(name, model, {"type": "continuous"})


def periodic(name, model, rate):
    return task(name, model, {"type": "periodic", "frequency": rate})


def disb(args, workload, *options, seed=1):
    """One run of the command; a list of tasks becomes a workload of their own, at the rates given."""
    with tempfile.TemporaryDirectory() as folder:
        if isinstance(workload, list):
            file = pathlib.Path(folder) / "own.json"
            file.write_text(json.dumps({"time": 3600, "tasks": workload}))
            workload, options = file, ("--scale", 1, *options)
        command = [str(harness.CARILLON), "disb", str(workload), "--models", str(args.models), "--duration",
                   str(args.seconds), "--warm-up", str(args.warm_up), "--seed", str(seed), "--json", *map(str, options)]
        harness.say("$ " + " ".join(command))
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}")
    told = json.loads(done.stdout)
    return {run["scheduler"]: run for run in told.get("runs", [told])}


def schedulers(names):
    return [word for name in names for word in ("--scheduler", name)]


def median(values):
    return statistics.median(list(values))


def client(run, name):
    return next(c for c in run["clients"] if c["name"] == name)


# --- MobileNetV2 beside ResNet-50 and DistilBERT

def mixed(args):
    best_effort = [closed("resnet50_be", "resnet50"), closed("distilbert_be", "distilbert")]
    tasks = [periodic("mobilenetv2_rt", "mobilenetv2", 20), *best_effort]
    rounds = []
    for seed in range(1, args.rounds + 1):
        runs = disb(args, tasks, *schedulers(SCHEDULERS), seed=seed)
        runs["alone"] = disb(args, best_effort, "--scheduler", "reef", seed=seed)["reef"]
        rounds.append(runs)
    return {"rounds": rounds}


def mixed_text(saved):
    rounds = saved["rounds"]
    lines = []
    for scheduler in SCHEDULERS:
        of = [r[scheduler] for r in rounds]
        kept = []
        for r in rounds:
            run, alone = r[scheduler], r["alone"]
            # The part of the cores' time that real-time runs leave, at what they take alone.
            real_time = r["rt-only"]["models"]
            left = 1 - sum(m["real_time_ms"] for m in real_time) / 1000 / run["live"]["threads"] / run["seconds"]
            # Each model's rate over its own alone; the clients have as much of the device each.
            shares = [client(run, name)["rps"] / client(alone, name)["rps"] for name in ("resnet50_be", "distilbert_be")]
            kept.append(statistics.mean(shares) / left)
        p99, alone_p99 = median(r["rt"]["p99_ms"] for r in of), median(r["rt-only"]["rt"]["p99_ms"] for r in rounds)
        lines.append([scheduler, f"{median(r['rt']['p50_ms'] for r in of):.2f}", f"{p99:.2f}",
                      f"{100 * (p99 / alone_p99 - 1):+.1f}%", sum(r["rt"]["dropped"] for r in of),
                      *(f"{median(client(r, name)['rps'] for r in of):.2f}" for name in ("resnet50_be", "distilbert_be")),
                      f"{median(kept):.2f}", f"{median(r['preemption_p50_us'] for r in of):.0f}",
                      f"{median(r['preemption_p99_us'] for r in of):.0f}"])
    of = {s: [r[s] for r in rounds] for s in SCHEDULERS}
    alone = median(r["rt"]["p99_ms"] for r in of["rt-only"])
    p99 = median(r["rt"]["p99_ms"] for r in of["reef"])
    goals = [("real-time p99 within 5% + 50 us of alone", p99 <= 1.05 * alone + 0.05, f"{p99:.2f} ms against {alone:.2f} ms"),
             ("best effort at least 0.9 of what real-time leaves", float(lines[-1][7]) >= 0.9, lines[-1][7])]
    return (table(["scheduler", "rt p50 ms", "rt p99 ms", "over rt-only", "dropped", "ResNet-50/s", "DistilBERT/s",
                   "best effort, of what is left", "preemption p50 us", "p99 us"], lines) + verdicts(goals))


# --- A real-time run of one core, and best-effort work on the other

def beside(args):
    widths = ["--real-time-threads", 1, "--best-effort-streams", 2, "--threads", 2]
    pairs, alone_be = [], {}
    for model in args.pair or BESIDE:
        # On one core, with nobody else.
        alone_be[model] = [disb(args, [closed("a_be", model)], "--threads", 1, "--scheduler", "reef", seed=s)["reef"]
                           for s in range(1, args.rounds + 1)]
    for real_time in args.pair or BESIDE:
        for best_effort in args.pair or BESIDE:
            tasks = [closed("a_rt", real_time), closed("b_be", best_effort), closed("c_be", best_effort)]
            for seed in range(1, args.rounds + 1):
                runs = disb(args, tasks, *schedulers(["rt-only", "reef"]), *widths, seed=seed)
                pairs.append({"real_time": real_time, "best_effort": best_effort, **runs})
    return {"alone": alone_be, "pairs": pairs}


def beside_text(saved):
    models = list(saved["alone"])
    lines, missed = [], []
    for real_time in models:
        line = [real_time]
        for best_effort in models:
            of = [p for p in saved["pairs"] if (p["real_time"], p["best_effort"]) == (real_time, best_effort)]
            # Alone it takes what it takes beside whomever; where it took far longer, the machine was somebody else's.
            usual = min(p["rt-only"]["rt"]["mean_ms"] for p in saved["pairs"] if p["real_time"] == real_time)
            if median(p["rt-only"]["rt"]["mean_ms"] for p in of) > 1.5 * usual:
                line.append("disturbed")
                continue
            slower = median(p["reef"]["rt"]["mean_ms"] / p["rt-only"]["rt"]["mean_ms"] - 1 for p in of)
            core = median(r["be"]["rps"] for r in saved["alone"][best_effort])
            rate = median(p["reef"]["be"]["rps"] for p in of) / core
            line.append(f"{100 * slower:+.1f}%, {rate:.2f}")
            if slower >= 0.03 or rate < 0.9:
                missed.append(f"{best_effort} beside {real_time}")
        lines.append(line)
    text = ("Real-time runs on the first core in a closed loop, best-effort ones on the other: how much longer real-time "
            "requests take on average, and the best-effort rate over that of a core alone.\n\n")
    return (text + table(["real-time \\ best effort", *models], lines) + "\nGoal: under 3% longer, at least 0.9 of a core. "
            + ("Missed: " + "; ".join(missed) if missed else "Met by all pairs that were measured undisturbed") + ".\n")


# --- DISB

def workloads(args):
    return {"workloads": {w: [disb(args, w, *schedulers(SCHEDULERS), seed=s) for s in range(1, args.rounds + 1)]
                          for w in args.workload or WORKLOADS}}


def workloads_text(saved):
    lines = []
    for workload, rounds in saved["workloads"].items():
        for scheduler in SCHEDULERS:
            of = [r[scheduler] for r in rounds]
            alone = [r["rt-only"] for r in rounds]
            ratio = lambda value: median(value(a) / value(b) if value(b) else float("nan") for a, b in zip(of, alone))
            lines.append([workload if scheduler == SCHEDULERS[0] else "",
                          f"{len(rounds)} x {of[0]['seconds']:g} s" if scheduler == SCHEDULERS[0] else "",
                          f"{of[0]['live']['scale']:.3f}" if scheduler == SCHEDULERS[0] else "", scheduler,
                          f"{median(r['rt']['mean_ms'] for r in of):.1f}",
                          f"{100 * (ratio(lambda r: r['rt']['mean_ms']) - 1):+.1f}%",
                          f"{median(r['rt']['p99_ms'] for r in of):.1f}",
                          f"{sum(r['rt']['requests'] for r in of)}", sum(r["rt"]["dropped"] for r in of),
                          f"{median(r['rt']['rps'] for r in of):.2f}", f"{median(r['be']['rps'] for r in of):.2f}",
                          f"{ratio(lambda r: r['total_rps']):.2f}",
                          f"{median(r['preemption_p50_us'] for r in of):.0f} ({median(r['preemption_p99_us'] for r in of):.0f})"])
    return table(["workload", "rounds", "rates x", "scheduler", "rt mean ms", "over rt-only", "rt p99 ms", "rt requests", "dropped",
                  "rt/s", "best effort/s", "total over rt-only", "preemption us"], lines)


# --- All together

def table(header, lines):
    return "\n".join(["| " + " | ".join(header) + " |", "|" + "---|" * len(header),
                      *("| " + " | ".join(str(c) for c in line) + " |" for line in lines)]) + "\n"


def verdicts(goals):
    return "\n" + "\n".join(f"- {what}: {'met' if met else 'missed'} ({seen})." for what, met, seen in goals) + "\n"


PARTS = {"mixed": (mixed, mixed_text, "MobileNetV2 at 20 a second beside ResNet-50 and DistilBERT",
                   ["mobilenetv2", "resnet50", "distilbert"]),
         "beside": (beside, beside_text, "One core for real-time, the other for best effort", BESIDE),
         "disb": (workloads, workloads_text, "DISB's workloads",
                  ["resnet152", "densenet201", "vgg19", "inceptionv3", "distilbert"])}


def chapter():
    text = ""
    for part, (_, told, title, _) in PARTS.items():
        file = harness.RESULTS / f"reef_live_{part}.json"
        if not file.is_file():
            continue
        saved = json.loads(file.read_text())
        machine = saved["machine"]
        many = "s" if saved["rounds_of"] > 1 else ""
        # Workloads of DISB may have been measured one by one: their rows say for how long.
        runs = "rounds" if part == "disb" else f"{saved['rounds_of']} round{many} of {saved['seconds']:g} s"
        text += (f"\n### {title}\n\n{machine['cpu']}, {machine['cores']} cores; {runs} under each scheduler, medians; "
                 f"{'the newest at ' if part == 'disb' else ''}commit {machine['commit']}.\n\n{told(saved)}")
    return text


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="*", choices=[*PARTS, []], help="what to measure")
    parser.add_argument("--models", type=pathlib.Path, default=harness.ROOT / "build/samples")
    parser.add_argument("--seconds", type=float, default=20, help="of each run")
    parser.add_argument("--warm-up", type=float, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workload", action="append", choices=WORKLOADS, help="of disb: only this one; may be repeated")
    parser.add_argument("--pair", action="append", help="of beside: only this model; may be repeated")
    parser.add_argument("--write", action="store_true", help="fill bench/measured/reef.md from what is saved")
    args = parser.parse_args()
    for part in args.part:
        measure, told, _, models = PARTS[part]
        harness.samples(args.models, *models)
        result = {"seconds": args.seconds, "rounds_of": args.rounds, **measure(args)}
        old = harness.RESULTS / f"reef_live_{part}.json"
        if part == "disb" and args.workload and old.is_file():  # beside those measured before
            before = json.loads(old.read_text())["workloads"]
            result["workloads"] = {w: {**before, **result["workloads"]}[w] for w in WORKLOADS
                                   if w in before or w in result["workloads"]}
        harness.save(f"reef_live_{part}", result)
        print(told(result))
    if args.write:
        document = DOCUMENT.read_text()
        before, rest = document.split(BEGIN, 1)
        DOCUMENT.write_text(f"{before}{BEGIN}\n{chapter()}{END}{rest.split(END, 1)[1]}")
        harness.say(f"wrote {DOCUMENT}")
    elif not args.part:
        sys.exit(parser.format_usage() + "nothing is asked for: name a part, or --write")


if __name__ == "__main__":
    main()
