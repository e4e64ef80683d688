#!/usr/bin/env python3
"""A cluster whose hosts are far apart, or whose network loses packets, beside the simulator with the same delay.

The workload of Symphony's figure 14: 20 models with ResNet-50's times, SLOs of 20 to 100 ms, on emulated devices. Two cores
do not carry 32 devices: here are 4 (SLOs of 20 and 25 ms) or 2 (50 and 100 ms), two workers, two schedulers, a frontend, an
etcd. Each of them but the first scheduler, which has etcd beside it, is a host of its own: a network namespace, whose packets
take the delay and are lost by a seed (tests/hosts/wire.py). The load generator is at the frontend's host. Needs root.

For each network and SLO, the simulator seeks the goodput with that delay. Then the live cluster and the simulator get the
same requests at --load of it. The simulator knows a delay, the same for control and data, and no loss: rows with loss stand
beside a simulation without. The simulator's policy knows what a cluster allows for: a worker asks for inputs, which takes two
delays, hears that its outputs are there after two delays, and knows two clocks to within half of a round trip each. A run in
which the machine or the load generator stood still for more than 5 ms is left out, counted and repeated.

All hosts share the machine's processors here. `chrt --rr 5 python ...` spares them most of each other's time slices.

A TCP connection waits 200 ms or more for the loss of a packet that nothing follows. --route rto_min 5ms shortens that.

    python bench/cluster_network.py [--delays 0.1 1 3] [--losses 0 0.001 0.01] [--slos 20 25 50 100] [--seconds 8]
"""
import argparse
import contextlib
import csv
import json
import pathlib
import subprocess
import sys
import tempfile
import time

import emulated
import harness

sys.path.append(str(harness.ROOT / "tests"))
from cluster_processes import Etcd  # noqa: E402
from hosts.wire import WiredHosts  # noqa: E402

ALPHA, BETA, MODELS, BATCH = 1.053, 5.072, 20, 16
DEVICES = {20: 4, 25: 4, 50: 2, 100: 2}  # by SLO


class Cluster:
    """Its processes, on hosts of `net`."""

    PLACES = {"s1": "lead", "s2": "spare", "w1": "first", "w2": "second", "f1": "front"}
    ROLES = {"s": "scheduler", "w": "worker", "f": "frontend"}

    def __init__(self, stack, net, folder, models, profile, devices):
        self.net, self.front, self.folder = net, net.hosts["front"], folder
        folder.mkdir()
        lead = net.hosts["lead"]
        etcd = Etcd(folder, client=lead.at(2379))
        etcd.command = lead.on(*etcd.command)
        stack.callback(self.end, etcd.start().process)
        self.address = f"etcd://{etcd.client}/box"
        options = {"s": ("--scheduler", "symphony"), "f": ("--http", "127.0.0.1:8000", "--grpc", "", "--metrics", ""),
                   "w": ("--models", models, "--metrics", "", *emulated.devices(profile, devices // 2))}
        for id, place in self.PLACES.items():
            host, log = net.hosts[place], stack.enter_context((folder / f"{id}.log").open("wb"))
            command = host.on(str(harness.CARILLON), self.ROLES[id[0]], "--cluster", self.address, "--id", id, "--listen", host.at(7000),
                              *map(str, options[id[0]]))
            stack.callback(self.end, subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log))
        end = time.monotonic() + 60
        while not self.whole():
            if time.monotonic() > end:
                logs = "\n".join(f"--- {id}\n{(folder / f'{id}.log').read_text(errors='replace')[-1500:]}" for id in self.PLACES)
                raise SystemExit(f"the cluster does not come up: {self.status()}\n{logs}")
            time.sleep(0.3)
        time.sleep(1)  # models are there, and ways are known

    @staticmethod
    def end(process):
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def status(self):
        done = subprocess.run(self.front.on(str(harness.CARILLON), "cluster", "status", "--cluster", self.address, "--json"),
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=60)
        return json.loads(done.stdout) if done.returncode == 0 else {}

    def whole(self):
        members = self.status().get("members", [])
        return len(members) == len(self.PLACES) and all(m["alive"] and m["offset_us"] is not None for m in members) and \
            all(m["devices"] for m in members if m["role"] == "worker") and self.ready()

    def ready(self):
        ask = "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/v2/health/ready', timeout=5)"
        return subprocess.run(self.front.on(sys.executable, "-c", ask), capture_output=True).returncode == 0

    def load(self, scenario, answers):
        command = [harness.CARILLON, "load", "http://127.0.0.1:8000", "--scenario", scenario, "--connections", "2000", "--csv", answers,
                   "--allow-failures", "--json"]
        return json.loads(subprocess.run(self.front.on(*map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                                         check=True).stdout)

    def bounds(self):
        """By how much clocks may be wrong, at most."""
        return max(m["bound_us"] for m in self.status()["members"] if m["bound_us"] is not None)


def write(file, args, slo, delay_ms, rate, seconds):
    us = 1000 * delay_ms
    file.write_text(f"""name = "network"
seed = {args.seed}
duration_s = {seconds}
warmup_s = 1
scheduler = "symphony"
[cluster]
devices = {DEVICES[slo]}
network_delay_us = {us}
fetch_us = {2 * us}
allowance = {{ dispatch_us = {300 + 3 * us}, answer_us = {1000 + 4 * us}, overrun = 0.05 }}  # a live server's, and the network's
[load]
rate = {rate}
[[models]]
name = "resnet50"
copies = {MODELS}
slo_ms = {slo}
max_batch = {BATCH}
latency = {{ alpha_ms = {ALPHA}, beta_ms = {BETA} }}
""")


def simulator(command, file, *options):
    done = subprocess.run([harness.CARILLON, command, file, *options, "--jobs", "1", "--json"], check=True, stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL, text=True)
    return json.loads(done.stdout)


def cell(cluster, args, folder, slo, delay_ms, rate):
    file = folder / "scenario.toml"
    write(file, args, slo, delay_ms, rate, args.seconds)
    simulated = simulator("simulate", file)
    left_out = 0
    while True:
        answers = folder / "answers.csv"
        before = cluster.status().get("epoch")
        with emulated.Watch() as watch:
            live = cluster.load(file, answers)
        elections = (cluster.status().get("epoch") or 0) - (before or 0)
        rows = csv.DictReader(answers.open(encoding="ascii"))
        generator = max(float(r["sent_ms"]) - float(r["planned_ms"]) for r in rows if r["outcome"] != "unanswered")
        if not (watch.times or generator > 5) or args.keep_stalled:
            return live, simulated, left_out, elections
        left_out += 1
        if left_out > args.most_left_out:
            return None, simulated, left_out, elections


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--delays", nargs="+", type=float, default=[0.1, 1, 3], help="ms, one way")
    parser.add_argument("--losses", nargs="+", type=float, default=[0, 0.001, 0.01])
    parser.add_argument("--slos", nargs="+", type=int, choices=DEVICES, default=list(DEVICES))
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--load", type=float, default=0.9, help="share of the simulated goodput")
    parser.add_argument("--most", type=float, default=800, help="requests a second that this machine's processors carry")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--route", nargs="+", default=(), help="of the hosts' routes, such as 'rto_min 5ms quickack 1' (ip-route(8))")
    parser.add_argument("--most-left-out", type=int, default=10, help="of a row of the table")
    parser.add_argument("--keep-stalled", action="store_true", help="leaves nothing out; for trials")
    args = parser.parse_args()
    rows, runs = [], []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        models, profile = emulated.repository(folder, {f"resnet50-{i}": (ALPHA, BETA) for i in range(MODELS)}, BATCH)
        rates = {}
        for slo in args.slos:
            for delay in args.delays:
                write(folder / "scenario.toml", args, slo, delay, 500, 20)
                goodput = simulator("goodput", folder / "scenario.toml", "--precision", "0.02")
                goodput = goodput.get("searches", [goodput])[0]["goodput_rps"]
                rates[slo, delay] = max(20, min(args.most, args.load * goodput))
        for delay in args.delays:
            for loss in args.losses:
                for devices in sorted({DEVICES[slo] for slo in args.slos}):
                    with contextlib.ExitStack() as stack:
                        net = WiredHosts(("lead", "spare", "first", "second", "front"), delay, loss, args.seed, args.route)
                        stack.enter_context(net)
                        cluster = Cluster(stack, net, folder / f"{delay}-{loss}-{devices}", models, profile, devices)
                        bound = cluster.bounds()
                        for slo in (slo for slo in args.slos if DEVICES[slo] == devices):
                            rate = rates[slo, delay]
                            live, simulated, left_out, elections = cell(cluster, args, folder, slo, delay, rate)
                            if live is None:
                                print(f"delay {delay} ms, loss {loss}, SLO {slo} ms: the machine stood still in all {left_out} runs", flush=True)
                                continue
                            on_time = 100 * live["on_time_rate"], 100 * simulated["finish_rate"]
                            rows.append([delay, f"{100 * loss:g}", slo, devices, f"{rate:.0f}", live["sent"], f"{on_time[0]:.2f}", f"{on_time[1]:.2f}",
                                         f"{on_time[0] - on_time[1]:+.2f}", live["late"], live["refused"], live["failed"] + live["unanswered"],
                                         elections, f"{bound:.0f}", left_out])
                            runs.append({"delay_ms": delay, "loss": loss, "slo_ms": slo, "rate": rate, "live": live, "simulated": simulated})
                            harness.say(str(rows[-1]))
                    runs.append({"delay_ms": delay, "loss": loss, "wire": net.told})
                    harness.say(f"wire: {net.told}")
    harness.table(rows, ["delay, ms", "loss, %", "SLO, ms", "devices", "rate, 1/s", "sent", "on time %, live", "simulated", "points", "late",
                         "refused", "failed", "elections", "clock bound, us", "left out"])
    near = sum(abs(float(r[8])) <= 3 for r in rows)
    print(f"{near} of {len(rows)} within 3 points")
    harness.save("cluster_network", {"runs": runs})
    print(harness.machine())


if __name__ == "__main__":
    main()
