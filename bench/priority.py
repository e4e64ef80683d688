#!/usr/bin/env python3
"""Does best-effort work delay real-time requests through the whole server?

`carillon serve` on loopback with every core kept busy by best-effort requests: clients in a closed loop send to a model
whose config says `class: best_effort`. Meanwhile MobileNetV2 and ResNet-50 are asked for 10 times a second each with
priority 1, over HTTP and gRPC. Rounds with that load and without it alternate on one server, and a second quiet round
in each turn, against the first, shows what two equal ones differ by. Goal: p99 under load within 10% of the idle one.

    python bench/priority.py [--seconds 20] [--rounds 3] [--victim resnet50] [--clients 2 a core]
"""
import argparse
import json
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import tempfile

import harness

URGENT = ["mobilenetv2", "resnet50"]


def repository(source, victim, folder):
    """The urgent models, and the victim under a name of its own, as best effort."""
    for model in URGENT:
        shutil.copytree(source / model, folder / model, copy_function=os.link)
        config = (folder / model / "config.pbtxt").read_text()
        (folder / model / "config.pbtxt").unlink()  # a link to the sample's own
        (folder / model / "config.pbtxt").write_text(
            config + 'parameters {\n  key: "real_time_requests"\n  value { string_value: "allow" }\n}\n')
    name = f"{victim}_best_effort"
    shutil.copytree(source / victim, folder / name, copy_function=os.link)
    config = (source / victim / "config.pbtxt").read_text().replace(f'name: "{victim}"', f'name: "{name}"', 1)
    (folder / name / "config.pbtxt").unlink()
    (folder / name / "config.pbtxt").write_text(
        config + 'parameters {\n  key: "class"\n  value { string_value: "best_effort" }\n}\n')
    return name


class Busy:
    """Best-effort clients in a closed loop, for as long as the block lasts."""

    def __init__(self, url, model, clients, seconds):
        self.command = [str(harness.CARILLON), "load", url, "--model", f"{model},deadline=0", "--process", f"closed:{clients}",
                        "--duration", str(seconds), "--drain", "60", "--json"]

    def __enter__(self):
        self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, text=True)
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)  # it ends with the figures so far
        told = json.loads(self.process.communicate()[0])
        self.answered = told["on_time"] + told["late"]
        if self.answered == 0:
            raise SystemExit(f"no best-effort request was answered: {told}")


def ask(url, model, args, seed):
    """p50 and p99 of priority-1 requests."""
    told = harness.load(url, [f"{model},priority=1,rate={args.rate},deadline={args.deadline}"], "--process", "uniform",
                        "--duration", args.seconds, "--warmup", min(1, args.seconds / 4), "--seed", seed)
    answered = told["on_time"] + told["late"]
    if answered == 0:
        raise SystemExit(f"{model}: no request was answered: {told}")
    return {"p50_ms": told["p50_ms"], "p99_ms": told["p99_ms"], "answered": answered,
            "not_answered": told["refused"] + told["failed"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=pathlib.Path, default=harness.ROOT / "build/samples")
    parser.add_argument("--seconds", type=float, default=20, help="of each round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rate", type=float, default=10)
    parser.add_argument("--deadline", type=float, default=2000, help="milliseconds")
    parser.add_argument("--victim", default="resnet50")
    parser.add_argument("--clients", type=int, default=2 * (os.cpu_count() or 1))
    parser.add_argument("--only", action="append", choices=URGENT)
    parser.add_argument("--protocol", action="append", choices=["http", "grpc"])
    parser.add_argument("--serve", action="append", default=[], metavar="OPTION", help="for 'serve'; may be repeated")
    args = parser.parse_args()
    harness.samples(args.models, args.victim, *URGENT)
    result, rows = [], []
    # Beside the samples, as links do not leave their file system.
    with tempfile.TemporaryDirectory(dir=args.models.parent) as folder:
        victim = repository(args.models, args.victim, pathlib.Path(folder))
        with harness.Server(folder, *args.serve) as server:
            for protocol in args.protocol or ["http", "grpc"]:
                url = {"http": server.http_url, "grpc": server.grpc_url}[protocol]
                for model in args.only or URGENT:
                    idle, again, busy = [], [], []
                    for turn in range(args.rounds):
                        idle.append(ask(url, model, args, turn))
                        with Busy(server.grpc_url, victim, args.clients, args.seconds + 600) as load:
                            busy.append(ask(url, model, args, turn))
                        busy[-1]["best_effort_answered"] = load.answered
                        again.append(ask(url, model, args, turn))
                    result.append({"protocol": protocol, "model": model, "idle": idle, "busy": busy, "idle_again": again})
                    of = lambda runs, key: statistics.median(run[key] for run in runs)
                    p99 = of(idle, "p99_ms")
                    rows.append([protocol, model, f"{of(idle, 'p50_ms'):.2f}", f"{of(busy, 'p50_ms'):.2f}", f"{p99:.2f}",
                                 f"{of(busy, 'p99_ms'):.2f}", f"{100 * (of(busy, 'p99_ms') / p99 - 1):+.1f}%",
                                 f"{100 * (of(again, 'p99_ms') / p99 - 1):+.1f}%",
                                 sum(run["not_answered"] for run in busy), of(busy, "best_effort_answered"),
                                 "met" if of(busy, "p99_ms") <= 1.1 * p99 else "missed"])
    harness.save("priority", {"seconds": args.seconds, "rate": args.rate, "victim": args.victim, "clients": args.clients,
                              "serve": args.serve, "runs": result})
    harness.table(rows, ["protocol", "model", "idle p50 ms", "busy p50", "idle p99", "busy p99", "busy over idle",
                         "idle over idle", "not answered", "best effort answered", "goal: within 10%"])


if __name__ == "__main__":
    main()
