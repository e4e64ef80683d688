#!/usr/bin/env python3
"""What a cluster costs beside one process, and what its clients see when its leader or a worker is killed.

Processes on this machine: `carillon serve`, and a cluster of an etcd, schedulers, one worker and one frontend. Both stand
beside each other. In each round they take turns with the same load over HTTP, so that a noisy machine is the same for both.
Shown are medians over the rounds. A round in which the machine stood still for more than 5 ms is left out, and counted.

With --kills, requests with a deadline come at a rate while the leader, or the first of several workers, is killed
(kill -9), once a turn. A new process of its name joins, and the next turn begins when it is there. Counted are requests by
what became of them.

    python bench/cluster.py [--rounds 20] [--seconds 2] [--models tiny_mlp resnet50]
    python bench/cluster.py --kills 20 [--rate 200] [--deadline 250]
    python bench/cluster.py --kills 20 --who worker --workers 4 [--rate 200]

With --tls the cluster's members speak TLS, with certificates that the openssl command makes. With --tls-adds two clusters
stand beside each other, one of them with TLS, and take turns with the same rate of requests. Shown is what TLS adds to the
latency, and to the processor time that each process takes for a request: medians of the rounds' differences.

    python bench/cluster.py --tls-adds [--rounds 20] [--seconds 2] [--models tiny_mlp] [--rate 200]
"""
import argparse
import contextlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

import harness

sys.path.append(str(harness.ROOT / "tests"))
from certificates import Authority  # noqa: E402
from cluster_processes import Etcd, processes  # noqa: E402
from loopback import free_addresses  # noqa: E402


class Cluster:
    """Its processes, by id, each ended by its own process id."""

    def __init__(self, stack, folder, models, schedulers=2, workers=1, frontends=1, tls=False, worker_options=(), scheduler_options=(),
                 program=None):
        self.stack, self.folder = stack, pathlib.Path(folder)
        self.program = program or harness.CARILLON  # of processes that start from now on
        no_metrics = () if "--metrics" in worker_options else ("--metrics", "")
        self.options = {"worker": ("--models", models, *no_metrics, *worker_options), "scheduler": scheduler_options}
        self.folder.mkdir(exist_ok=True)
        self.authority, self.shown = Authority(self.folder) if tls else None, {}
        self.etcd = stack.enter_context(processes())(Etcd(self.folder)).ready()
        self.address = f"etcd://{self.etcd.client}/box"
        self.processes, self.listens = {}, {}
        for i in range(schedulers):
            self.start(f"s{i + 1}", "scheduler")
        for i in range(workers):
            self.start(f"w{i + 1}", "worker")
        self.doors, self.doors_of = {}, {}
        for i in range(frontends):
            self.start_frontend(f"f{i + 1}")
        self.http = self.doors["f1"]
        self.until(self.ready)

    def start_frontend(self, id):
        self.doors[id], grpc = free_addresses(2)
        self.doors_of[id] = ("--http", self.doors[id], "--grpc", grpc, "--metrics", "")
        self.start(id, "frontend", *self.doors_of[id])

    def start(self, id, role, *options):
        options = (*options, *self.options.get(role, ()), *self.shows(role, id))
        self.listens.setdefault(id, free_addresses(1)[0])
        log = self.stack.enter_context((self.folder / f"{id}.log").open("ab"))
        command = [self.program, role, "--cluster", self.address, "--id", id, "--listen", self.listens[id], *options]
        process = subprocess.Popen([str(each) for each in command], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.processes[id] = process
        self.stack.callback(self.end, process)

    def shows(self, role, id):
        if self.authority and id not in self.shown:
            self.shown[id] = self.authority.member("box", role, id)
        return self.shown.get(id, ())

    @staticmethod
    def end(process):
        if process.poll() is None:
            process.terminate()
            process.wait(60)

    @staticmethod
    def until(condition, limit_s=120):
        end = time.monotonic() + limit_s
        while not condition():
            if time.monotonic() > end:
                raise SystemExit("the cluster does not come up")
            time.sleep(0.05)

    @property
    def url(self):
        return f"http://{self.http}"

    def ready(self):
        try:
            return all(urllib.request.urlopen(f"http://{door}/v2/health/ready", timeout=5).status == 200 for door in self.doors.values())
        except (OSError, urllib.error.URLError):
            return False

    def status(self):
        done = subprocess.run([str(harness.CARILLON), "cluster", "status", "--cluster", self.address, "--json", *self.shows("admin", "bench")],
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=60)
        return json.loads(done.stdout) if done.returncode == 0 else None

    def whole(self, but_the_dead=False):
        """Whether all are there, and all devices; members that were killed may still be registered where `but_the_dead`."""
        said = self.status()
        if said is None or said["leader"] not in self.processes:
            return False
        members = [m for m in said["members"] if m["id"] in self.processes] if but_the_dead else said["members"]
        return len(members) == len(self.processes) and all(m["alive"] and m["offset_us"] is not None for m in members) and \
            all(m["devices"] for m in members if m["role"] == "worker")


def costs(args, stack, folder):
    repository = harness.samples(str(harness.ROOT / "build/samples"), *args.models)
    models = stack.enter_context(harness.only(repository, *args.models))
    serve = stack.enter_context(harness.Server(models))
    cluster = Cluster(stack, f"{folder}/box", models, schedulers=1, tls=args.tls)
    rows = []
    for model in args.models:
        rounds, left_out = [], 0
        while len(rounds) < args.rounds:
            with harness.Stalls() as stalls:
                turn = [harness.load(url, [model], "--process", "closed:1", "--duration", args.seconds, "--warmup", 0.3)
                        for url in (serve.http_url, cluster.url)]
            if stalls.count:
                left_out += 1
                if left_out > 10 * args.rounds:
                    raise SystemExit("the machine stands still too often")
                continue
            rounds.append(turn)
        for figure in ("p50_ms", "p99_ms"):
            one, many = (statistics.median(turn[i][figure] for turn in rounds) for i in (0, 1))
            added = statistics.median(turn[1][figure] - turn[0][figure] for turn in rounds)
            rows.append([model, figure.removesuffix("_ms"), f"{one:.3f}", f"{many:.3f}", f"{added:.3f}", str(left_out)])
    harness.table(rows, ["model", "", "serve, ms", "cluster, ms", "added, ms", "rounds left out"])


def processor_s(process):
    fields = pathlib.Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def tls_adds(args, stack, folder):
    repository = harness.samples(str(harness.ROOT / "build/samples"), *args.models)
    models = stack.enter_context(harness.only(repository, *args.models))
    clusters = [Cluster(stack, f"{folder}/{name}", models, schedulers=1, tls=name == "tls") for name in ("plain", "tls")]
    rows = []
    for model in args.models:
        rounds = []
        for number in range(args.rounds):
            turn = {}
            for cluster in clusters if number % 2 else reversed(clusters):
                before = {id: processor_s(process) for id, process in cluster.processes.items()}
                told = harness.load(cluster.url, [model], "--rate", args.rate, "--deadline", 5000, "--duration", args.seconds)
                took = {f"{id}, us": (processor_s(process) - before[id]) / told["sent"] * 1e6
                        for id, process in cluster.processes.items()}
                turn[cluster] = {"p50, ms": told["p50_ms"], "p99, ms": told["p99_ms"], **took}
            rounds.append([turn[cluster] for cluster in clusters])
        for figure in rounds[0][0]:
            plain, tls = (statistics.median(turn[i][figure] for turn in rounds) for i in (0, 1))
            added = statistics.median(turn[1][figure] - turn[0][figure] for turn in rounds)
            rows.append([model, figure, f"{plain:.3f}", f"{tls:.3f}", f"{added:.3f}"])
    harness.table(rows, ["model", "", "plain", "TLS", "added"])


def kills(args, stack, folder):
    repository = harness.samples(str(harness.ROOT / "build/samples"), "tiny_mlp")
    cluster = Cluster(stack, folder, stack.enter_context(harness.only(repository, "tiny_mlp")), workers=args.workers, tls=args.tls)
    sums, left_out, done = {}, 0, 0
    while done < args.kills:
        cluster.until(cluster.whole)
        who, role = (cluster.status()["leader"], "scheduler") if args.who == "leader" else ("w1", "worker")
        with harness.Stalls() as stalls:
            command = [str(harness.CARILLON), "load", cluster.url, "--model", "tiny_mlp", "--rate", str(args.rate), "--deadline", str(args.deadline),
                       "--duration", "2", "--json"]
            client = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            time.sleep(1)
            cluster.processes[who].kill()
            told = json.loads(client.communicate(timeout=60)[0])
        cluster.processes.pop(who).wait()
        cluster.start(who, role)
        if stalls.count:
            left_out += 1
            continue
        done += 1
        for name, value in told.items():
            if isinstance(value, int):
                sums[name] = sums.get(name, 0) + value
        sums["most_p99_ms"] = max(sums.get("most_p99_ms", 0), told["p99_ms"])
    print(json.dumps({"kills": done, "left_out": left_out, **sums}, indent=1))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--models", nargs="+", default=["tiny_mlp", "resnet50"])
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--who", choices=["leader", "worker"], default="leader")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--rate", type=float, default=200)
    parser.add_argument("--deadline", type=float, default=250, help="ms")
    parser.add_argument("--tls", action="store_true")
    parser.add_argument("--tls-adds", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        (kills if args.kills else tls_adds if args.tls_adds else costs)(args, stack, folder)
    print(harness.machine())


if __name__ == "__main__":
    main()
