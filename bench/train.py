#!/usr/bin/env python3
"""Training in what serving leaves free: what does it cost requests, and what do scripts get?

Two servers of the same model, one of them with --train, and two scripts of torch, each as it is. In every round, at
each load and with the same arrivals, in an order that turns from round to round:

  alone      the first server, no script anywhere
  again      the same once more: what two runs that are the same differ by
  train      the second server; both scripts run under it by `carillon run`
  nice       the first server; both scripts run beside it at nice 19, as they would without this
  idle       (once a round, no load) what both scripts get of the machine under --train, and at nice 19

Goals, stated before any run; each is a median over the rounds:
- on time: the share of requests that were answered by their deadline under `train` is within 0.5 points of `alone`;
- p99 of `train` is at most 1.05 of that of `alone`;
- training gets 0.8 of the idle time: iterations over those of `idle`, for the part of the time in which `alone` had no
  batch executing;
- the p99 of stopping a script within an iteration is at most 1 ms.

    python bench/train.py [--model mobilenetv2] [--loads 0.3 0.5 0.7] [--rounds 10] [--seconds 6] [--write] [--check]

--write puts the table into bench/measured/sharing-scripts.md, --check ends with status 1 where a goal was missed.
"""
import argparse
import json
import mmap
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import harness

DOCUMENT = harness.ROOT / "bench/measured/sharing-scripts.md"
BEGIN, END = "<!-- measured: bench/train.py -->", "<!-- end of measured: bench/train.py -->"
SCRIPTS = 2
SCRIPT = """
import mmap, sys
import torch, torch.nn as nn, torch.nn.functional as F
torch.set_num_threads(1); torch.manual_seed(0)
file = open(sys.argv[1], "r+b")
count = memoryview(mmap.mmap(file.fileno(), 4096)).cast("Q")
m = nn.Sequential(*[nn.Sequential(nn.Linear(512, 512), nn.ReLU()) for _ in range(4)], nn.Linear(512, 16))
o = torch.optim.SGD(m.parameters(), 0.01, momentum=0.9)
x, y = torch.randn(128, 512), torch.randint(0, 16, (128,))
done = 0
while True:
    o.zero_grad(); F.cross_entropy(m(x), y).backward(); o.step()
    done += 1
    count[0] = done  # whole: struct.pack_into() writes zeros first
"""


class Scripts:
    """Both scripts; they stand still outside of `with scripts:`."""

    def __init__(self, folder, name, before, environment):
        self.processes, self.counts = [], []
        for i in range(SCRIPTS):
            file = folder / f"{name}{i}"
            file.write_bytes(bytes(4096))
            self.counts.append(mmap.mmap(os.open(file, os.O_RDWR), 4096))
            self.processes.append(subprocess.Popen([*before, str(folder / "script.py"), str(file)], env=environment,
                                                   stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True))
        until = time.monotonic() + 120
        while min(self.each()) < 20:
            for process in self.processes:
                if process.poll() is not None:
                    raise SystemExit(f"{name}: a script ended with {process.returncode}: {process.stderr.read()}")
            if time.monotonic() > until:
                raise SystemExit(f"{name}: after two minutes the scripts ran {self.each()} iterations")
            time.sleep(0.05)
        self.signal(signal.SIGSTOP)

    def each(self):
        return [memoryview(count).cast("Q")[0] for count in self.counts]

    def signal(self, number):
        for process in self.processes:
            process.send_signal(number)

    def __enter__(self):
        self.signal(signal.SIGCONT)
        time.sleep(0.3)
        return self

    def __exit__(self, *_):
        self.signal(signal.SIGSTOP)
        time.sleep(0.1)

    def end(self):
        for process in self.processes:
            process.kill()
            process.wait()


def run(server, args, rate, deadline_ms, seed, scripts=None):
    """One load; with it what the scripts ran meanwhile."""
    before, busy, began = scripts and sum(scripts.each()), server.busy_s(), time.monotonic()
    told = harness.load(server.http_url, [args.model], "--rate", f"{rate:.3f}", "--deadline", f"{deadline_ms:.1f}",
                        "--duration", args.seconds, "--seed", seed)
    took, busy = time.monotonic() - began, server.busy_s() - busy
    total = told["total"] if "total" in told else told
    return {"sent": total["sent"], "on_time": total["on_time"] / total["sent"], "p99_ms": total["p99_ms"],
            "p50_ms": total["p50_ms"], "seconds": took, "busy": busy / took,
            "iterations_s": scripts and (sum(scripts.each()) - before) / took}


def idle(args, scripts):
    with scripts:
        before, began = sum(scripts.each()), time.monotonic()
        time.sleep(args.seconds)
        return (sum(scripts.each()) - before) / (time.monotonic() - began)


def measure(args):
    repository = harness.samples(args.models, args.model)
    result = {"rounds": [], "model": args.model, "seconds": args.seconds}
    with tempfile.TemporaryDirectory() as text, harness.only(repository, args.model) as models:
        folder = pathlib.Path(text)
        (folder / "script.py").write_text(SCRIPT)
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(harness.ROOT / "python")}
        caches = ["--page-cache", "1GiB", "--workspace", "256MiB"]
        socket = folder / "train.sock"
        with harness.Server(models, *caches) as plain, \
             harness.Server(models, *caches, "--train", socket, "--train-memory", "512MiB", *args.train) as lending:
            running = []
            try:
                running.append(Scripts(folder, "train", [sys.executable, "-m", "carillon", "run", "--socket", str(socket),
                                                         "--persistent", "16MiB", "--ephemeral", "64MiB"], environment))
                running.append(Scripts(folder, "nice", ["nice", "-n", "19", sys.executable], environment))
                under, beside = running
                for server in (plain, lending):
                    capacity, median = server.one_at_a_time(args.model)
                deadline = 10 * median
                result |= {"capacity_rps": capacity, "deadline_ms": deadline}
                harness.say(f"capacity {capacity:.1f} requests/s; deadline {deadline:.1f} ms")
                for number in range(args.rounds):
                    one = {"idle_train": idle(args, under), "idle_nice": idle(args, beside), "loads": {}}
                    for share in args.loads:
                        modes = ["alone", "train", "nice", "again"]
                        modes = modes[number % 4:] + modes[:number % 4]
                        seen = {}
                        for mode in modes:
                            how = {"train": (lending, under), "nice": (plain, beside)}.get(mode, (plain, None))
                            about = (args, share * capacity, deadline, number + 1)
                            if how[1] is None:
                                seen[mode] = run(how[0], *about)
                            else:
                                with how[1] as scripts:
                                    seen[mode] = run(how[0], *about, scripts)
                        one["loads"][str(share)] = seen
                        harness.say(f"  round {number + 1} of {args.rounds}, load {share}: " + ", ".join(
                            f"{m} {seen[m]['on_time']:.4f} {seen[m]['p99_ms']:.1f} ms" for m in sorted(seen)))
                    result["rounds"].append(one)
                metrics = lending.metrics()
                result["freezes"] = metrics[("carillon_share_freezes_total", ())]
                result["freeze_buckets"] = sorted(
                    (float(dict(labels)["le"]), n) for (name, labels), n in metrics.items()
                    if name == "carillon_share_freeze_seconds_bucket")
            finally:
                for scripts in running:
                    scripts.end()
    return result


def p99_of(buckets):
    """The least upper end that 99% are within."""
    total = buckets[-1][1] if buckets else 0
    return next((end for end, n in buckets if total and n >= 0.99 * total), float("nan"))


def report(result):
    median = statistics.median
    header = ["load", "on time: alone", "again", "train", "nice 19", "p99 ms: alone", "again", "train", "nice 19",
              "train over alone", "nice over alone", "of the idle time: train", "nice 19"]
    lines, goals = [], []
    for share in result["rounds"][0]["loads"]:
        of = [(r, r["loads"][share]) for r in result["rounds"]]
        on_time = {m: median(s[m]["on_time"] for _, s in of) for m in ("alone", "again", "train", "nice")}
        p99 = {m: median(s[m]["p99_ms"] for _, s in of) for m in on_time}
        ratio = {m: median(s[m]["p99_ms"] / s["alone"]["p99_ms"] for _, s in of) for m in ("again", "train", "nice")}
        got = {m: median(s[m]["iterations_s"] / (r["idle_" + m] * (1 - s["alone"]["busy"])) for r, s in of)
               for m in ("train", "nice")}
        lines.append([share, *(f"{100 * on_time[m]:.2f}%" for m in on_time), *(f"{p99[m]:.1f}" for m in p99),
                      f"{ratio['train']:.3f} ({ratio['again']:.3f} again)", f"{ratio['nice']:.3f}",
                      f"{got['train']:.2f}", f"{got['nice']:.2f}"])
        goals += [(f"load {share}: on time within 0.5 points of alone", on_time["train"] >= on_time["alone"] - 0.005,
                   f"{100 * (on_time['train'] - on_time['alone']):+.2f}"),
                  (f"load {share}: p99 at most 1.05 of alone", ratio["train"] <= 1.05, f"{ratio['train']:.3f}"),
                  (f"load {share}: 0.8 of the idle time", got["train"] >= 0.8, f"{got['train']:.2f}")]
    freeze = 1000 * p99_of(result["freeze_buckets"])
    goals.append(("freezing p99 at most 1 ms", freeze <= 1, f"within {freeze:g} ms, of {result['freezes']:.0f}"))
    m = result["machine"]
    text = (f"{result['model']} (capacity {result['capacity_rps']:.0f} requests/s one at a time, deadline "
            f"{result['deadline_ms']:.0f} ms), {len(result['rounds'])} rounds of {result['seconds']:g} s; {m['cpu']}, "
            f"{m['cores']} cores, commit {m['commit']}.\n\n")
    text += "\n".join(["| " + " | ".join(header) + " |", "|" + "---|" * len(header),
                       *("| " + " | ".join(map(str, line)) + " |" for line in lines)]) + "\n\n"
    text += "\n".join(f"- {what}: {'met' if met else '**missed**'} ({seen})." for what, met, seen in goals) + "\n"
    return text, all(met for _, met, _ in goals)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=pathlib.Path, default=harness.ROOT / "build/samples")
    parser.add_argument("--model", default="mobilenetv2")
    parser.add_argument("--loads", type=float, nargs="+", default=[0.3, 0.5, 0.7])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=6)
    parser.add_argument("--train", nargs="*", default=[], metavar="OPTION", help="more options of the lending server")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    result = measure(args)
    file = harness.save("train", result)
    text, met = report(json.loads(file.read_text()))
    print(text)
    if args.write:
        page = DOCUMENT.read_text()
        begin, end = page.index(BEGIN) + len(BEGIN), page.index(END)
        DOCUMENT.write_text(page[:begin] + "\n" + text + page[end:])
    if args.check and not met:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
