#!/usr/bin/env python3
"""How long studies of Ray Tune take live, against what virtual time says (docs/fluid-virtual.md).

    python bench/ray_virtual.py measure --out trial.json                      # what a trial of bench/ray_tune.py costs here
    python bench/ray_virtual.py live --scheduler asha --mode plain >> live.jsonl
    python bench/ray_virtual.py compare --trial trial.json live.jsonl

`live` runs one study of bench/ray_tune.py, with its options, on the two processors that Ray is told of. It prints that
bench's JSON, and with it the options, what each trial reported and when the driver heard of it, and the seconds of an
epoch of a trial by itself, right before and right after (`alone`): shared machines change their speed from minute to
minute, and `compare` takes these in place of those of `measure`. A line of bench/ray_tune.py alone will do for `compare`,
which then takes its options from its own command line.

`measure` needs a machine that does nothing else, and about three minutes. No study that is compared goes into it:

alone, noise           seconds of an epoch of one trial in a process of its own, one thread: median without the first, and
                       of three rounds; and how much one is off from another, of that.
beside, beta           how many times slower with another such process on the other processor; 2 times the seconds with
                       two threads, over those with one.
stop                   from the order to an actor that has imported torch to end until Ray has its processor again:
                       median of three.
start, first, reset    of a study of six trials of three epochs in each mode, two at a time: from a trial's end to the
                       start of a process, as Ray tells it, without `stop`; from there to its first report, without
                       that epoch. An epoch is what the trial says it took.
setup, tail            what comes before the first trial could have started, and after the last report.
gap                    from a report to the next of the trial, without that epoch: median. With checkpoints, which are
                       one more turn of the driver: the same, with what a save takes.

`compare` runs the scheduler that was live in virtual time, and prints the makespans of both. Virtual runs differ by the
noise of epochs (`noise`): told are their median, and the least and most. A live run does not count where the machine
changed its speed meanwhile: where the median epoch of its trials is more than a tenth off from `alone` times `beside`.
Exit status 1 where a median of those that count is off by more than --most, or a study hung with every seed.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve()
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1] / "python")]
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [*sys.path[:2], os.environ.get("PYTHONPATH")]))
os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

import ray_tune  # noqa: E402

DISTURBED = 0.1
MODES = {"plain": [], "reuse": ["--reuse"], "fluid": []}


# --- A trial by itself


def train(told):
    """In a process of its own: seconds and accuracy of each epoch."""
    import torch
    torch.set_num_threads(told.threads)
    training = ray_tune.Training({"task": told.task, "steps": told.steps, "lr": told.lr})
    print("ready", flush=True)
    sys.stdin.readline()  # so that two begin together
    epochs = []
    for _ in range(told.epochs):
        began = time.monotonic()
        accuracy = training.epoch()["accuracy"]
        epochs.append([time.monotonic() - began, accuracy])
    print(json.dumps(epochs), flush=True)
    sys.stdin.readline()  # nobody is beside a trial that has ended


def epochs_of(told, processes, threads):
    """Seconds of epochs, without the first, with so many processes at once."""
    command = [sys.executable, str(HERE), "train", "--task", told.task, "--steps", str(told.steps), "--epochs", "9", "--threads",
               str(threads)]
    running = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(processes)]
    for process in running:
        assert process.stdout.readline() == "ready\n"
    for process in running:
        process.stdin.write("\n")
        process.stdin.flush()
    found = [json.loads(process.stdout.readline()) for process in running]
    for process in running:
        process.communicate("\n", timeout=60)
    return [seconds for epochs in found for seconds, _ in epochs[1:]]


def ends(told):
    """How long an actor holds its processor after it was told to end."""
    import ray
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, object_store_memory=200 << 20)

    @ray.remote(num_cpus=1)
    class Actor:
        def __init__(self):
            import torch
            self.threads = torch.get_num_threads()

        def ready(self):
            return self.threads

    took = []
    for _ in range(3):
        actor = Actor.remote()
        ray.get(actor.ready.remote())
        while ray.available_resources().get("CPU", 0) >= 1:  # what it tells lags behind
            time.sleep(0.01)
        began = time.monotonic()
        actor.__ray_terminate__.remote()
        while ray.available_resources().get("CPU", 0) < 1:
            time.sleep(0.01)
        took.append(time.monotonic() - began)
    ray.shutdown()
    print(json.dumps(took))


# --- A study


def add_study(parser):
    parser.add_argument("--scheduler", choices=["fifo", "asha", "hyperband", "bohb", "pbt"], default="asha")
    parser.add_argument("--task", choices=list(ray_tune.TASKS), default="cnn")
    parser.add_argument("--mode", choices=["plain", "fluid"], default="fluid")
    parser.add_argument("--reuse", action="store_true")
    parser.add_argument("--trials", type=int, default=9)
    parser.add_argument("--epochs", type=int, default=9)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--kind", choices=["class", "function"], default="class")
    parser.add_argument("--live", type=int)
    parser.add_argument("--at-once", type=int)
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--seed", type=int, default=1)


def live(told):
    """The study of bench/ray_tune.py; what it tells, its options, and the driver's log."""
    import ray
    from ray import tune
    import ray.tune.schedulers  # noqa: F401
    log = []
    watcher, init = ray_tune.watcher, ray.init

    def logging_watcher(tune):
        watch = watcher(tune)

        class Log(type(watch)):
            def on_trial_start(self, iteration, trials, trial, **info):
                log.append([time.monotonic(), "start", trial.trial_id])
                super().on_trial_start(iteration, trials, trial, **info)

            def on_trial_result(self, iteration, trials, trial, result, **info):
                log.append([time.monotonic(), "report", trial.trial_id, result["training_iteration"], result["accuracy"],
                            result["time_this_iter_s"]])
                super().on_trial_result(iteration, trials, trial, result, **info)

            def on_trial_complete(self, iteration, trials, trial, **info):
                log.append([time.monotonic(), "end", trial.trial_id])

        return Log()

    def logging_init(*arguments, **options):
        done = init(*arguments, **options)
        log.append([time.monotonic(), "begin", ""])
        return done

    ray_tune.watcher, ray.init = logging_watcher, logging_init
    alone = epochs_of(told, 1, 1) if told.probe else []
    try:
        with tempfile.TemporaryDirectory() as folder:
            found = ray_tune.study(ray, tune, told, folder)
    finally:
        ray_tune.watcher, ray.init = watcher, init
        ray.shutdown()
    if told.probe:
        found["alone"] = statistics.median(alone + epochs_of(told, 1, 1))
    begun = log[0][0]
    options = {name: value for name, value in vars(told).items() if name not in ("run", "out", "probe")}
    return found | {"options": options, "log": [[round(at - begun, 4), *rest] for at, *rest in log]}


def run_live(arguments):
    done = subprocess.run([sys.executable, str(HERE), "live", "--no-probe", *map(str, arguments)], capture_output=True, text=True, timeout=120)
    if done.returncode:
        raise SystemExit(f"live {' '.join(map(str, arguments))}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


# --- What a trial costs


def times_of(found, word):
    """By trial, in their order: when the driver heard of it."""
    times = {}
    for at, what, trial, *_ in found["log"]:
        if what == word:
            times.setdefault(trial, []).append(at)
    return list(times.values())


def gaps(found):
    """From each report of a trial to its next one, without that epoch."""
    reports = {}
    for at, what, trial, *rest in found["log"]:
        if what == "report":
            reports.setdefault(trial, []).append((at, rest[2]))
    return [later - earlier - took for told in reports.values() for (earlier, _), (later, took) in zip(told, told[1:])]


def firsts(found):
    """By trial, in the order of starts: from its start to its first report, without that epoch."""
    begun, out = {}, {}
    for at, what, trial, *rest in found["log"]:
        if what == "start":
            begun.setdefault(trial, at)
        elif what == "report":
            out.setdefault(trial, at - begun[trial] - rest[2])
    return [out[trial] for trial in begun]


def measure(told):
    rounds = [[epochs_of(told, *how) for how in ((1, 1), (2, 1), (1, 2))] for _ in range(3)]
    alone, beside, wide = (statistics.median(statistics.median(epochs) for epochs in how) for how in zip(*rounds))
    off = statistics.median(abs(seconds / alone - 1) for (epochs, _, _) in rounds for seconds in epochs)
    cost = {"task": told.task, "steps": told.steps, "alone": alone, "noise": 1.48 * off,  # of a normal one
            "beside": max(1.0, beside / alone), "beta": max(1.0, 2 * wide / alone), "modes": {}, "rounds": rounds}
    done = subprocess.run([sys.executable, str(HERE), "ends"], capture_output=True, text=True, timeout=120, check=True)
    cost["stop"] = statistics.median(json.loads(done.stdout.splitlines()[-1]))
    two = ["--task", told.task, "--steps", told.steps, "--at-once", 2, "--epochs", 3, "--kind", "class"]
    for mode, options in MODES.items():
        name = ["--mode", "fluid" if mode == "fluid" else "plain", *options]
        found = run_live([*two, *name, "--scheduler", "fifo", "--trials", 6])
        starts, reports = (times_of(found, word) for word in ("start", "report"))
        ended = [at for at, what, *_ in found["log"] if what == "end"]
        gap = max(0.0, statistics.median(gaps(found)))
        # The first two processes have nobody's end before them. The others each take the place of one that ended.
        start = max(0.0, statistics.median(later[0] - end for end, later in zip(ended, starts[2:])) - gap - cost["stop"])
        first = max(0.0, statistics.median(firsts(found)[2:]))
        saving = run_live([*two, *name, "--scheduler", "pbt", "--trials", 2])
        cost["modes"][mode] = {
            "gap": gap, "gap_with_save": max(gap, statistics.median(gaps(saving))), "start": start, "first": first,
            "setup": max(0.0, starts[0][0] - start), "tail": max(0.0, found["wall"] - reports[-1][-1]), "log": found["log"]}
    reuse, plain = cost["modes"]["reuse"], cost["modes"]["plain"]
    reuse["reset"] = reuse["start"] + reuse["first"]
    reuse |= {"start": plain["start"], "first": plain["first"], "setup": plain["setup"]}
    return cost


# --- Virtual time


def simulated(found, cost, told, seed=1):
    """The study of a live run in virtual time; `seed`: of the noise of epochs."""
    from carillon.tune import _curves, record, virtual
    from ray import tune
    import ray.tune.schedulers  # noqa: F401

    options = argparse.Namespace(**(vars(told) | found.get("options", {}) | {"scheduler": found["scheduler"]}))
    saves = found["scheduler"] in ("hyperband", "bohb", "pbt")
    if found["mode"] not in ("plain", "fluid"):
        raise SystemExit(f"compare: mode {found['mode']!r} is not simulated; it is plain or fluid")
    mode = "fluid" if found["mode"] == "fluid" else "reuse" if found["reuse"] else "plain"
    here = {"reset": cost["modes"]["reuse"]["reset"]} | cost["modes"][mode]
    alone = found.get("alone", cost["alone"])
    study = virtual.Study(
        trials=options.trials, epochs=options.epochs, epoch_s=alone, devices=ray_tune.PROCESSORS, beside=cost["beside"],
        beta=cost["beta"], at_once=options.at_once if mode == "fluid" else None, live=options.live,
        concurrency=4 if found["scheduler"] == "bohb" else options.at_once if mode != "fluid" else None,
        iterations=options.steps, noise=cost["noise"], function=found["kind"] == "function",
        saves=saves and found["kind"] == "function", tells_end=False, keeps_curve="log" in found, reuse=found["reuse"],
        start=here["start"], stop=cost.get("stop", 0.0), first=here["first"], reset=here["reset"], gap=here["gap"],
        save=max(0.0, here["gap_with_save"] - 2 * here["gap"]) if saves else 0.0)
    curves = None
    if "log" in found:
        # The metrics that were live, so that the scheduler judges by the same numbers. How long it took is not read.
        trials = {}
        for _, word, trial, *what in found["log"]:
            if word == "start":  # in the order of coming
                trials.setdefault(trial, {})
            elif word == "report":
                trials[trial][what[0]] = what[1]
        recorded = [record.Curve(name, [alone] * len(epochs), [epochs[e] for e in sorted(epochs)])
                    for name, epochs in trials.items()]
        curves = _curves.Curves(recorded)
    run = virtual.run(study, ray_tune.scheduler_for(tune, options), "best" if mode == "fluid" else
                      {"plain": "ray", "reuse": "ray-reuse"}[mode], seed, curves=curves)
    return run | {"wall": here["setup"] + run["makespan_s"] + here["tail"]}


def disturbed(found, cost):
    """How much slower the trials' epochs were than two at a time are, by what was found right before and after."""
    took = [rest[2] for _, what, _, *rest in found.get("log", []) if what == "report"]
    return statistics.median(took) / (found["alone"] * cost["beside"]) - 1 if took and "alone" in found else 0.0


def compare(told):
    import logging

    from carillon.tune._world import WorldError
    logging.disable(logging.WARNING)  # Ray tells of each of PBT's copies
    cost = json.loads(told.trial.read_text())
    worst = 0.0
    print("| scheduler | mode | live (s) | virtual (s) | least to most | off | epochs live, virtual |\n"
          "|---|---|---|---|---|---|---|")
    left_out = all_hung = 0
    for file in told.files:
        for line in file.read_text().splitlines():
            found = json.loads(line)
            runs, hung = [], 0
            for seed in range(1, told.seeds + 1):
                try:
                    runs.append(simulated(found, cost, told, seed))
                except WorldError:  # Ray would hang, too: docs/fluid-virtual.md
                    hung += 1
            if not runs:
                all_hung += 1
                print(f"no virtual run of {found['scheduler']}, {found['mode']}, {found['wall']:.1f} s, ended: {hung} hung", file=sys.stderr)
                continue
            runs.sort(key=lambda run: run["wall"])
            run = runs[len(runs) // 2]
            off, slower = run["wall"] / found["wall"] - 1, disturbed(found, cost)
            if abs(slower) > DISTURBED:
                left_out += 1
                print(f"left out: {found['scheduler']}, {found['mode']}, {found['wall']:.1f} s, whose epochs were {slower:+.0%} off", file=sys.stderr)
                continue
            worst = max(worst, abs(off))
            mode = found["mode"] + (", reuse" if found["reuse"] else "") + (f" ({len(runs)} of {told.seeds} seeds, {hung} hung)" if hung else "")
            print(f"| {found['scheduler']} | {mode} | {found['wall']:.1f} | {run['wall']:.1f} | {runs[0]['wall']:.1f} to "
                  f"{runs[-1]['wall']:.1f} | {off:+.1%} | {found['epochs']}, {run['epochs']} |", flush=True)
    print(f"worst: {worst:.1%}, {told.most:.0%} is asked for; runs left out: {left_out}; that always hung: {all_hung}")
    return 1 if worst > told.most or all_hung else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="run", required=True)
    trial = commands.add_parser("train", help="(of measure) a trial by itself")
    trial.add_argument("--threads", type=int, default=1)
    trial.add_argument("--lr", type=float, default=0.01)
    commands.add_parser("ends", help="(of measure) how long an actor takes to end")
    measuring = commands.add_parser("measure", help="what a trial costs")
    measuring.add_argument("--out", type=pathlib.Path, required=True)
    for one in (trial, measuring):
        one.add_argument("--task", choices=list(ray_tune.TASKS), default="cnn")
        one.add_argument("--steps", type=int, default=40)
    trial.add_argument("--epochs", type=int, default=9)
    living = commands.add_parser("live", help="one study of bench/ray_tune.py, with its log")
    add_study(living)
    living.add_argument("--no-probe", dest="probe", action="store_false", help="no epochs of a trial by itself before and after")
    comparing = commands.add_parser("compare", help="live runs against virtual time")
    comparing.add_argument("files", nargs="+", type=pathlib.Path, metavar="LIVE.jsonl")
    comparing.add_argument("--trial", type=pathlib.Path, required=True, help="what `measure` wrote")
    comparing.add_argument("--seeds", type=int, default=15, help="virtual runs of each study, whose median is told")
    comparing.add_argument("--most", type=float, default=0.15)
    add_study(comparing)
    told = parser.parse_args()
    if told.run == "train":
        train(told)
    elif told.run == "ends":
        ends(told)
    elif told.run == "live":
        print(json.dumps(live(told)))
    elif told.run == "measure":
        told.out.write_text(json.dumps(measure(told), indent=1) + "\n")
    else:
        return compare(told)
    return 0


if __name__ == "__main__":
    sys.exit(main())
