#!/usr/bin/env python3
"""Many small models on one machine that cannot hold them all, each request with a deadline: one box, one command.

    python bench/box.py [--models 500] [--memory 1GiB] [--rivals clockwork,symphony,lru] [--loads 0.5,1,2] [--seconds 60]
                        [--rate R] [--plot docs/img/box.png]
    python bench/box.py --rivals "clockwork,clockwork --admission policy"     with an option of `serve`
    python bench/box.py --in-cgroup                    the bound is that of a cgroup (root)
    python bench/box.py --drawn build/bench/box.json --plot docs/img/box.png       draws a run once more

Makes the models (box_models.py: ten architectures, 2.2 GiB of weights in 500 models). Requests come at random times
(Poisson), by Zipf's law over the models (exponent 1), with a deadline of 50 to 100 ms each model has for itself. Their
rate is a multiple of the capacity: what 16 clients without deadlines, each with one request at a time, get answered a
second by the first server of the list, once all models are ready, in 30 s. All servers get the same requests, one server
after the other, under the same bound of memory. Beside Carillon's policies: an HTTP server with a cache of onnxruntime's
sessions (rivals/lru_server.py). (Carillon reads weights from files; what the system keeps of files in memory that it can
drop is not counted, of either.)

Told of each: the share on time of all requests and of those that were not refused, the p99 of the time from a request's planned time to its refusal, processor milliseconds an answer, the most memory that the process and its children had
(VmRSS, looked at every 10 ms), and how long it took until the first and all models were ready, with an empty store and at
a second start. A stall is a sleep of 1 ms, of a process beside, that took 5 ms longer. Answers' outputs are not compared
here: tests do.
"""
import argparse
import asyncio
import csv
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

import numpy as np

import box_models
import harness

HERE = pathlib.Path(__file__).parent


def children_of(pid):
    found, frontier = [pid], [pid]
    while frontier:
        parent = frontier.pop()
        try:
            for task in pathlib.Path(f"/proc/{parent}/task").iterdir():
                more = [int(child) for child in (task / "children").read_text().split()]
                found += more
                frontier += more
        except OSError:
            continue
    return found


class Watch:
    """The memory of a process and its children, every 10 ms."""

    def __init__(self, pid):
        self.pid, self.most, self.ended = pid, 0, False
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        members, turn = [self.pid], 0
        while not self.ended:
            if turn % 100 == 0:
                members = children_of(self.pid)
            turn += 1
            total = 0
            for pid in members:
                try:
                    total += int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096
                except OSError:
                    continue
            self.most = max(self.most, total)
            time.sleep(0.01)

    def stop(self):
        self.ended = True
        self.thread.join()
        return self.most


def processor_seconds(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / 100


class MemoryGroup:
    """A cgroup (version 1 or 2) that may have so many bytes of memory, files' pages included; a name without one: none."""

    def __init__(self, size):
        self.folder = None
        if size is None:
            return
        version_1 = pathlib.Path("/sys/fs/cgroup/memory")
        root, limit = (version_1, "memory.limit_in_bytes") if version_1.is_dir() else ("/sys/fs/cgroup", "memory.max")
        self.folder = pathlib.Path(root) / f"carillon-box-{os.getpid()}"
        self.folder.mkdir()
        (self.folder / limit).write_text(str(size))

    def enter(self):
        """In a process that is to be a member, before its program begins."""
        if self.folder:
            (self.folder / "cgroup.procs").write_text(str(os.getpid()))

    def told(self):
        """How many members were killed for want of memory, and the most bytes that they had together, if it is known."""
        def number(file, name=None):
            try:
                lines = (self.folder / file).read_text().split("\n")
            except OSError:
                return None
            found = [line.split()[-1] for line in lines if line and (name is None or line.split()[0] == name)]
            return int(found[0]) if found else None

        first = lambda *values: next((value for value in values if value is not None), None)  # noqa: E731
        return {"killed": first(number("memory.oom_control", "oom_kill"), number("memory.events", "oom_kill")),
                "group_bytes": first(number("memory.max_usage_in_bytes"), number("memory.peak"))}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.folder:
            self.folder.rmdir()


class Running:
    """A server that was started, until it ends."""

    def __init__(self, command, port, name, group):
        self.log = HERE.parent / "build/bench" / f"box_{name.replace(' ', '_')}.log"
        self.log.parent.mkdir(parents=True, exist_ok=True)
        harness.say("$ " + " ".join(map(str, command)))
        self.began = time.monotonic()
        self.process = subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL, stderr=self.log.open("w"),
                                        preexec_fn=group.enter)
        self.url = f"http://127.0.0.1:{port}"
        self.watch = Watch(self.process.pid)

    def answers(self, path):
        try:
            with urllib.request.urlopen(self.url + path, timeout=5) as answer:
                return answer.status == 200
        except (urllib.error.URLError, OSError):
            return False

    def wait_for(self, paths, longest):
        while not any(self.answers(path) for path in paths):
            if self.process.poll() is not None:
                raise SystemExit(f"the server ended with {self.process.returncode}: see {self.log}")
            if time.monotonic() - self.began > longest:
                raise SystemExit(f"no answer within {longest} s: see {self.log}")
            time.sleep(0.05)
        return time.monotonic() - self.began

    def cpu(self):
        return processor_seconds(self.process.pid)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.watch.stop()
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


STORE = HERE.parent / "build/bench/box_store"


def commands(rival, folder, memory, port):
    if rival == "lru":
        return [sys.executable, HERE / "rivals/lru_server.py", folder, "--http", port, "--memory", mebibytes(memory)]
    policy, *more = rival.split()
    return [harness.CARILLON, "serve", "--models", folder, "--http", f"127.0.0.1:{port}", "--grpc", "", "--metrics", "",
            "--scheduler", policy, *more, "--memory", memory, "--log-level", "warn", "--store", STORE]


def mebibytes(size):
    parts = re.fullmatch(r"(\d+)\s*(MiB|GiB)", size)
    if parts is None:
        raise SystemExit(f"--memory {size}: give a whole number of MiB or GiB, such as 1GiB")
    return int(parts[1]) * (1024 if parts[2] == "GiB" else 1)


def shares_of(names, seed):
    """By Zipf's law, over the models in random order."""
    order = list(names)
    random.Random(seed).shuffle(order)
    weights = {name: 1 / rank for rank, name in enumerate(order, 1)}
    total = sum(weights.values())
    return {name: weight / total for name, weight in weights.items()}


def capacity(url, folder, shares, seconds, clients=16):
    """Answers a second to clients that have one request at a time each."""
    import aiohttp
    import onnx

    def body(name):
        model = onnx.load(pathlib.Path(folder) / name / "1" / "model.onnx", load_external_data=False)
        tensors, raw = [], b""
        for value in model.graph.input:
            kind = value.type.tensor_type
            shape = [d.dim_value or (1 if d.dim_param == "n" else 16) for d in kind.shape.dim]
            floats = kind.elem_type == onnx.TensorProto.FLOAT
            array = np.ones(shape, np.float32 if floats else np.int64)
            tensors.append({"name": value.name, "shape": shape, "datatype": "FP32" if floats else "INT64",
                            "parameters": {"binary_data_size": array.nbytes}})
            raw += array.tobytes()
        header = json.dumps({"inputs": tensors, "parameters": {"binary_data_output": True}}).encode()
        return header + raw, {"Inference-Header-Content-Length": str(len(header))}

    bodies = {name: body(name) for name in shares}
    picks = random.Random(3)
    names, weights = list(shares), list(shares.values())
    answered = 0

    async def client(session, until):
        nonlocal answered
        while time.monotonic() < until:
            name = picks.choices(names, weights)[0]
            data, headers = bodies[name]
            async with session.post(f"{url}/v2/models/{name}/infer", data=data, headers=headers) as answer:
                await answer.read()
                answered += answer.status == 200

    async def all_of_them():
        async with aiohttp.ClientSession() as session:
            until = time.monotonic() + seconds
            await asyncio.gather(*(client(session, until) for _ in range(clients)))

    asyncio.run(all_of_them())
    return answered / seconds


def offer(server, shares, deadlines, rate, seconds):
    streams = [f"{name},rate={rate * share:.6g},deadline={deadlines[name]:.4g}" for name, share in shares.items()]
    answers = HERE.parent / "build/bench/box.csv"
    before = server.cpu()
    said, harness.say = harness.say, lambda text: None  # a line of 500 models
    try:
        told = harness.load(server.url, streams, "--length", 16, "--duration", seconds, "--seed", 1, "--csv", answers)
    finally:
        harness.say = said
    told["cpu_ms"] = 1e3 * (server.cpu() - before) / max(1, told["on_time"] + told["late"])
    with answers.open() as lines:
        refused = sorted(float(line["answered_ms"]) - float(line["planned_ms"]) for line in csv.DictReader(lines)
                         if line["outcome"] == "refused")
    for percent in (50, 90, 99):
        told[f"refused_p{percent}_ms"] = refused[len(refused) * percent // 100] if refused else None
    told["refused_within_5_ms"] = sum(each <= 5 for each in refused) / len(refused) if refused else None
    return told


def start(rival, folder, names, memory, within, group):
    """Starts the server; how long it took until the first and all models were ready, and the processor's time."""
    port = harness.free_port()
    server = Running(commands(rival, folder, memory, port), port, rival, group)
    try:
        first = server.wait_for([f"/v2/models/{name}/ready" for name in names[:5]], within)
        ready = server.wait_for(["/v2/health/ready"], within)
    except BaseException:
        server.__exit__()
        raise
    return server, {"first_s": first, "ready_s": ready, "cpu_s": server.cpu()}


def plot(results, file):
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.4), width_ratios=[3, 1])
    servers = results["servers"]
    loads = list(next(iter(servers.values()))["loads"])
    for i, (name, server) in enumerate(servers.items()):
        places = [load + (i - (len(servers) - 1) / 2) * 0.26 for load in range(len(loads))]
        told = [server["loads"].get(load, {"on_time": 0, "sent": 1}) for load in loads]  # no load: it ended before
        shares = [100 * each["on_time"] / each["sent"] for each in told]
        left.bar_label(left.bar(places, shares, 0.24, label=LABELS.get(name, name)), fmt="%.1f", fontsize=8)
        right.bar_label(right.bar([i], [server["most_bytes"] / 2**20], 0.7), fmt="%.0f", fontsize=8)
    left.set_xticks(range(len(loads)), [f"{float(load):g} x capacity" for load in loads])
    left.set_ylabel("on time, % of all requests")
    left.set_ylim(0, 112)
    left.legend(loc="lower left", fontsize=8)
    right.axhline(mebibytes(results["memory"]), color="black", linestyle=":")
    right.set_xticks([])
    right.set_ylabel(f"most memory, MiB (bound: {results['memory']})")
    figure.tight_layout()
    figure.savefig(file, dpi=110)
    harness.say(f"wrote {file}")


LABELS = {"lru": "LRU of onnxruntime sessions"}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=int, default=500)
    parser.add_argument("--folder", help="where the models are made (default: build/bench/box_models)")
    parser.add_argument("--memory", default="1GiB", help="of each server")
    parser.add_argument("--in-cgroup", action="store_true",
                        help="each server runs in a cgroup of so much memory (root), and Carillon is not told a bound")
    parser.add_argument("--rivals", default="clockwork,symphony,lru")
    parser.add_argument("--loads", default="0.5,1,2")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--rate", type=float, help="of the capacity, requests a second; it is measured without")
    parser.add_argument("--starts-within", type=float, default=600, help="seconds")
    parser.add_argument("--plot", help="a picture of the results")
    parser.add_argument("--drawn", help="results of an earlier run, to be drawn by --plot alone")
    args = parser.parse_args()
    if args.drawn:
        return plot(json.loads(pathlib.Path(args.drawn).read_text()), args.plot)
    folder = pathlib.Path(args.folder or HERE.parent / "build/bench/box_models")
    names = box_models.make(folder, args.models)
    shares = shares_of(names, 1)
    draw = random.Random(2)
    deadlines = {name: draw.uniform(50, 100) for name in names}
    rows, starts, results, measured = [], [], {}, args.rate
    for rival in args.rivals.split(","):
        # In a cgroup Carillon finds out by itself what it may have.
        own = "auto" if args.in_cgroup and rival != "lru" else args.memory
        with MemoryGroup(mebibytes(args.memory) << 20 if args.in_cgroup else None) as group:
            shutil.rmtree(STORE, ignore_errors=True)
            server, begun = start(rival, folder, names, own, args.starts_within, group)
            most = [server.watch.most]
            if rival != "lru":
                server.__exit__()
                server, again = start(rival, folder, names, own, args.starts_within, group)
                begun |= {f"second_{what}": value for what, value in again.items()}
            with server:
                if measured is None:
                    measured = capacity(server.url, folder, shares, 30)
                    harness.say(f"capacity: {measured:.0f} a second")
                runs = {}
                for load in map(float, args.loads.split(",")):
                    try:
                        with harness.Stalls() as stalls:
                            told = offer(server, shares, deadlines, load * measured, args.seconds)
                    except SystemExit:
                        if server.process.poll() is None:
                            raise
                        begun["ended"] = f"at {load:g}, status {server.process.returncode}"
                        harness.say(f"{rival} ended {begun['ended']}")
                        rows.append([rival, f"{load:g}", "", f"it ended, status {server.process.returncode}", *[""] * 6])
                        break
                    accepted = told["sent"] - told["refused"]
                    told |= {"stalls": stalls.count, "worst_stall_ms": stalls.worst_ms}
                    runs[load] = told
                    refused = told["refused_p99_ms"]
                    rows.append([rival, f"{load:g}", told["sent"], f"{100 * told['on_time'] / told['sent']:.1f}%",
                                 f"{100 * told['on_time'] / max(1, accepted):.2f}%", told["late"], told["failed"],
                                 "" if refused is None else f"{refused:.1f}", f"{told['cpu_ms']:.1f}",
                                 f"{stalls.count}, {stalls.worst_ms:.0f} ms"])
                    harness.say(f"{rival} at {load:g}: {rows[-1]}")
                    if refused is not None:
                        harness.say(f"refusals: {100 * told['refused_within_5_ms']:.0f}% within 5 ms; p50 "
                                    f"{told['refused_p50_ms']:.1f}, p90 {told['refused_p90_ms']:.1f} ms")
                most.append(server.watch.most)
            if args.in_cgroup:
                harness.say(f"{rival}: {(told := group.told())}")
                begun |= told
            results[rival] = begun | {"most_bytes": max(most), "loads": {
                str(load): {k: v for k, v in told.items() if k != "models"} for load, told in runs.items()}}
            starts.append([rival, f"{max(most) / 2**20:.0f}", *(f"{begun[what]:.1f}" if what in begun else "" for what in (
                "first_s", "ready_s", "cpu_s", "second_first_s", "second_ready_s", "second_cpu_s"))])
    print(f"{args.models} models, capacity {measured:.0f} a second\n")
    harness.table(rows, ["server", "load", "sent", "on time of all", "of accepted", "late", "failed", "refusals p99 ms",
                         "CPU ms an answer", "stalls, the longest"])
    print()
    harness.table(starts, ["server", "most MiB", "first ready s", "all ready s", "CPU s", "again: first s", "all s", "CPU s"])
    told = {"models": args.models, "memory": args.memory, "capacity": measured, "servers": results}
    harness.save("box", told)
    if args.plot:
        plot(told, args.plot)


if __name__ == "__main__":
    main()
