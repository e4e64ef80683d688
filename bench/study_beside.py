#!/usr/bin/env python3
"""A study beside serving: what does it cost requests, and how long does it take on what they leave?

A server with --train serves one model at half of its capacity. A study of 27 trials (three epochs each, torch, a
carillon.tune.TrialGroup) runs under it by `carillon run`. In every round, with the same arrivals:

  alone    requests, and no study
  idle     the study, and no requests
  beside   both

Goals, stated before any run; each is a median over the rounds:
- on time: the share of requests that were answered by their deadline while the study ran is within 0.5 points of
  `alone`;
- p99 of these answers is at most 1.05 of that of `alone`, over the same seconds of the same arrivals;
- the study takes at most 1.25 of what it takes on the idle server, over the share of the time in which `alone` had no
  batch executing.

    python bench/study_beside.py [--model mobilenetv2] [--load 0.5] [--rounds 5] [--write] [--check]

--write puts the table into bench/measured/fluid-scripts.md, --check ends with status 1 where a goal was missed.
"""
import argparse
import csv
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import harness

DOCUMENT = harness.ROOT / "bench/measured/fluid-scripts.md"
BEGIN, END = "<!-- measured: bench/study_beside.py -->", "<!-- end of measured: bench/study_beside.py -->"
STUDY = """
import sys, time
import torch, torch.nn as nn, torch.nn.functional as F
import carillon.tune

def train(config):
    torch.manual_seed(config["seed"])
    m = nn.Sequential(*[nn.Sequential(nn.Linear(512, 512), nn.ReLU()) for _ in range(4)], nn.Linear(512, 16))
    o = torch.optim.SGD(m.parameters(), config["lr"], momentum=0.9)
    x, y = torch.randn(128, 512), torch.randint(0, 16, (128,))
    for _ in range(3):
        for _ in range(config["steps"]):
            o.zero_grad()
            loss = F.cross_entropy(m(x), y)
            loss.backward()
            o.step()
        carillon.tune.report(loss.item())

if __name__ == "__main__":
    steps = int(sys.argv[1])
    with carillon.tune.TrialGroup() as warm:  # what starts once
        warm.map(train, [{"seed": 0, "lr": 0.01, "steps": 1}], budget=3)
        warm.wait()
    began = time.monotonic()
    with carillon.tune.TrialGroup() as group:
        trials = group.map(train, [{"seed": i, "lr": 0.001 * (i + 1), "steps": steps} for i in range(27)], budget=3)
    assert all(t.state == "ended" and len(t.reports) == 3 for t in trials), [(t.state, t.error) for t in trials]
    print(began, time.monotonic())
"""


def study(folder, socket, steps):
    """When it began, and how long it took."""
    done = subprocess.run([sys.executable, "-m", "carillon", "run", "--socket", str(socket), str(folder / "study.py"), str(steps)],
                          env=os.environ | {"PYTHONPATH": str(harness.ROOT / "python")}, stdout=subprocess.PIPE, text=True, timeout=600)
    if done.returncode != 0:
        raise SystemExit(f"the study ended with {done.returncode}")
    began, ended = map(float, done.stdout.split()[-2:])
    return began, ended - began


def load(server, args, rate, deadline_ms, seed, seconds, folder):
    """The answers, as `carillon load --csv` has them, and when the load began."""
    file = folder / "answers.csv"
    began = time.monotonic()
    harness.load(server.http_url, [args.model], "--rate", f"{rate:.3f}", "--deadline", f"{deadline_ms:.1f}", "--duration", seconds,
                 "--warmup", 0, "--seed", seed, "--csv", file)
    with file.open() as lines:
        return began, list(csv.DictReader(lines))


def within(answers, begin, end):
    """Of the requests planned in these seconds: how many, the share on time, p99 in ms."""
    those = [a for a in answers if begin <= float(a["planned_ms"]) / 1000 < end]
    took = sorted(float(a["answered_ms"]) - float(a["planned_ms"]) for a in those if a["outcome"] in ("on_time", "late"))
    return {"sent": len(those), "on_time": sum(a["outcome"] == "on_time" for a in those) / len(those),
            "p99_ms": took[min(len(took) - 1, int(0.99 * len(took)))]}


def one_round(server, args, number, rate, deadline, folder, socket):
    _, alone_took = study(folder, socket, args.steps)
    seconds = max(20, round(2.5 * alone_took / (1 - args.load)) + 8)
    busy = server.busy_s()
    _, alone = load(server, args, rate, deadline, number, seconds, folder)
    busy = (server.busy_s() - busy) / seconds
    got = {}
    thread = threading.Thread(target=lambda: got.update(zip(("began", "answers"), load(server, args, rate, deadline, number, seconds,
                                                                                    folder))))
    thread.start()
    began, took = study(folder, socket, args.steps)
    thread.join()
    begin, end = began - got["began"], began - got["began"] + took
    if end > seconds:
        raise SystemExit(f"the study took {took:.1f} s, and the requests ended before")
    return {"idle_s": alone_took, "beside_s": took, "busy": busy, "alone": within(alone, begin, end),
            "beside": within(got["answers"], begin, end)}


def measure(args):
    repository = harness.samples(args.models, args.model)
    result = {"rounds": [], "model": args.model, "load": args.load}
    with tempfile.TemporaryDirectory() as text, harness.only(repository, args.model) as models:
        folder = pathlib.Path(text)
        (folder / "study.py").write_text(STUDY)
        socket = folder / "train.sock"
        with harness.Server(models, "--page-cache", "1GiB", "--workspace", "256MiB", "--train", socket,
                            "--train-memory", "512MiB") as server:
            capacity, median = server.one_at_a_time(args.model)
            deadline = 10 * median
            result |= {"capacity_rps": capacity, "deadline_ms": deadline}
            harness.say(f"capacity {capacity:.1f} requests/s; deadline {deadline:.1f} ms")
            for number in range(1, args.rounds + 1):
                one = one_round(server, args, number, args.load * capacity, deadline, folder, socket)
                harness.say(f"round {number}: {one}")
                result["rounds"].append(one)
    return result


def report(result):
    median, rounds = statistics.median, result["rounds"]
    on_time = median(r["beside"]["on_time"] - r["alone"]["on_time"] for r in rounds)
    p99 = median(r["beside"]["p99_ms"] / r["alone"]["p99_ms"] for r in rounds)
    took = median(r["beside_s"] / (r["idle_s"] / (1 - r["busy"])) for r in rounds)
    rows = [[i + 1, f"{100 * r['alone']['on_time']:.2f}%", f"{100 * r['beside']['on_time']:.2f}%", f"{r['alone']['p99_ms']:.1f}",
             f"{r['beside']['p99_ms']:.1f}", f"{100 * r['busy']:.0f}%", f"{r['idle_s']:.1f}", f"{r['beside_s']:.1f}",
             f"{r['beside_s'] / (r['idle_s'] / (1 - r['busy'])):.2f}"] for i, r in enumerate(rounds)]
    goals = [("on time within 0.5 points of alone", on_time >= -0.005, f"{100 * on_time:+.2f}"),
             ("p99 at most 1.05 of alone", p99 <= 1.05, f"{p99:.3f}"),
             ("the study's time at most 1.25 of that on the idle server over the idle share", took <= 1.25, f"{took:.2f}")]
    m = result["machine"]
    text = (f"{result['model']} at {result['load']:g} of its capacity ({result['capacity_rps']:.0f} requests/s one at a time, deadline "
            f"{result['deadline_ms']:.0f} ms); {m['cpu']}, {m['cores']} cores, commit {m['commit']}. Requests are those that came while the "
            "study ran, and the same ones without it.\n\n")
    header = ["round", "on time: alone", "beside", "p99 ms: alone", "beside", "requests' share of the time", "study (s): server idle",
              "beside", "over that of the idle share"]
    text += "\n".join("| " + " | ".join(map(str, row)) + " |" for row in [header, ["---"] * len(header), *rows])
    text += "\n\n" + "\n".join(f"- {what}: {'met' if met else '**missed**'} ({seen})." for what, met, seen in goals)
    return text, all(met for _, met, _ in goals)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=pathlib.Path, default=harness.ROOT / "build/samples")
    parser.add_argument("--model", default="mobilenetv2")
    parser.add_argument("--load", type=float, default=0.5)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=8, help="iterations of an epoch")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    result = measure(args)
    harness.save("study_beside", result)
    text, met = report(result | {"machine": harness.machine()})
    print(text)
    if args.write:
        harness.write_between(DOCUMENT, BEGIN, END, text)
    if args.check and not met:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
