#!/usr/bin/env python3
"""What clients see when a worker's process, its actor, its raylet or Ray's head is killed (kill -9), beside Ray Serve.

One Ray cluster on this machine has both: a head without processors of its own, which keeps its knowledge in Redis, and a
raylet for each worker. carillon.ray has a worker on each raylet, with an emulated device. Its schedulers and its frontend run
beside Ray. Ray Serve has a replica on each raylet, which takes the same time for a request, one at a time; its proxies are
its own, on each node (EveryNode), and share one port. Both get the same number of requests a second, by Poisson processes,
half of what all devices can do. Each kill takes one part of either: a process of Carillon's and a replica, an actor and a
replica, a raylet that has both, the head.
The next kill comes when both are whole again. A killed raylet and a killed head are started again after --absent seconds.

"Failed": no answer, a broken connection, or a status that is not 200. "Late": answered after the deadline; Carillon refuses
such requests, and they count as failed. "Longest gap": the longest time between two answers of status 200. "Left": processes
of Carillon's that outlived the part that kept them by more than 10 s.

    python bench/ray_kills.py [--who process actor raylet head] [--kills 20] [--without-serve]

Ray's Python: tools/setup --with-ray, or CARILLON_RAY_PYTHON.
"""
import argparse
import collections
import contextlib
import pathlib
import random
import signal
import sys
import tempfile
import time
import urllib.error
import urllib.request

import emulated
import harness
from cluster import Cluster
from ledger import Ledger

sys.path.append(str(harness.ROOT / "tests"))
from loopback import free_addresses  # noqa: E402
from ray_cluster import RayCluster, alive, kill, missing, tree_of, wait_for  # noqa: E402

MODEL = "resnet50"
SYSTEMS = ("carillon", "ray serve")
AHEAD_S = 2  # of load before a kill
LEFT_S = 10


def dies(pids):
    limit = time.monotonic() + LEFT_S
    while any(alive(pid) for pid in pids) and time.monotonic() < limit:
        time.sleep(0.02)
    return sum(alive(pid) for pid in pids)


def listeners(port):
    lines = [line.split() for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(line[1].endswith(f":{port:04X}") and line[3] == "0A" for line in lines)


class Serve:
    """The rival's replicas and doors."""

    def __init__(self, ray, folder, args, port):
        self.folder = pathlib.Path(folder) / "replicas"
        self.folder.mkdir()
        self.count, self.port = args.workers, port
        done = ray.driver(str(harness.ROOT / "bench/rivals/ray_serve_app.py"), "--replicas", str(args.workers), "--seconds", str((args.alpha + args.beta) / 1000),
                          "--port", str(port), "--folder", str(self.folder), "--resource", "serve")
        if done.returncode != 0:
            raise SystemExit(f"Ray Serve does not start:\n{done.stdout}\n{done.stderr}")

    def replicas(self):
        return [int(file.name) for file in self.folder.iterdir() if alive(int(file.name))]

    def whole(self):
        return len(self.replicas()) == self.count and self.answers()

    def answers(self):
        try:
            body = b'{"id":"x"}'
            request = urllib.request.Request(f"http://127.0.0.1:{self.port}/", body, {"Content-Type": "application/json"})
            return urllib.request.urlopen(request, timeout=5).status == 200
        except (OSError, urllib.error.URLError):
            return False


class Doorless(Cluster):
    """A Cluster that does not wait for workers."""

    def ready(self):
        return self.status() is not None


class Box:
    """carillon.ray's workers on Ray, and the rest of the cluster beside it."""

    def __init__(self, stack, ray, folder, args):
        models, profile = emulated.repository(folder, {MODEL: (args.alpha, args.beta)}, 1)
        self.ray, self.count = ray, args.workers
        self.cluster = Doorless(stack, f"{folder}/box", models, workers=0, scheduler_options=("--scheduler", args.scheduler))
        options = [f"--option={word}" for word in map(str, emulated.devices(profile, 1))]
        ray.carillon("serve", str(models), "--cluster", self.cluster.address, "--workers", str(args.workers), "--resource", "CPU=1", "--resource", "carillon=1", *options)
        self.address = self.cluster.address

    def lone(self):
        """The process of each worker; none while one has none or several."""
        found = self.ray.carillons()
        return {id: each[0] for id, each in found.items()} if len(found) == self.count and all(len(each) == 1 for each in found.values()) else None

    def whole(self):
        told = self.cluster.status()
        ours = [m for m in (told or {"members": []})["members"] if m["role"] == "worker" and m["alive"] and m["devices"]]
        return self.lone() is not None and len(ours) == self.count

    def state_of(self, id):
        return next(each for each in self.ray.status(self.address)["workers"] if each["id"] == id)


def disturb(who, ray, box, serve, draw, args):
    """Kills one part of both. Returns when, which processes have to end by that, and what starts the part again."""
    processes = box.lone()
    id = draw.choice(sorted(processes))
    if who == "process":
        at = time.monotonic()
        kill(processes[id], *([draw.choice(serve.replicas())] if serve else []))
        return at, [processes[id]], lambda: None
    if who == "actor":
        actor = box.state_of(id)["actor_pid"]
        at = time.monotonic()
        kill(actor, *([draw.choice(serve.replicas())] if serve else []))
        return at, [actor, processes[id]], lambda: None
    if who == "raylet":
        node = draw.choice(sorted(name for name in ray.processes if name != "head"))
        raylet = ray.raylet(node)
        below = [pid for pid in tree_of(raylet) if pid != raylet]
        at = time.monotonic()
        kill(raylet)

        def again():
            ray.forget(node)
            time.sleep(args.absent)
            start_node(ray, node)
        return at, below, again
    at = time.monotonic()
    ray.kill_node("head")

    def again():
        time.sleep(args.absent)
        ray.start_head()
    return at, [], again


def start_node(ray, name):
    ray.start_node(name, 3, resources={"carillon": 1, "serve": 1})


def longest_gap(ledger, begin, end):
    times = sorted(e[3] for e in ledger.entries if e[4] == 200 and begin <= e[3] <= end)
    return max(b - a for a, b in zip([begin, *times], [*times, end]))


def rounds(who, ray, box, serve, args, draw):
    """All kills of one kind under load. What became of the requests, by system."""
    rate = args.rate or 0.5 * args.workers * 1000 / (args.alpha + args.beta)
    doors = {"carillon": [box.cluster.http]}
    if serve:
        doors["ray serve"] = [f"127.0.0.1:{serve.port}"]
    back, kills, left, done = collections.defaultdict(list), [], 0, 0
    limit = time.monotonic() + args.limit_s
    with contextlib.ExitStack() as stack:
        ledgers = {system: stack.enter_context(Ledger(doors[system], MODEL, rate, args.deadline, args.seed)) for system in doors}
        began = time.monotonic()
        while done < args.kills and time.monotonic() < limit:
            time.sleep(AHEAD_S + draw.random())
            at, over, again = disturb(who, ray, box, serve, draw, args)
            left += dies(over)
            again()
            waits = {"carillon": box.whole, **({"ray serve": serve.whole} if serve else {})}
            until = time.monotonic() + 120
            while waits:
                for system in [each for each, whole in waits.items() if whole()]:
                    back[system].append(time.monotonic() - at)
                    waits.pop(system)
                if time.monotonic() > until:
                    harness.say(f"{who}: not whole within 120 s: {list(waits)}")
                    for system in waits:
                        back[system].append(float("inf"))
                    break
                time.sleep(0.1)
            wait_for(lambda: ray.nodes() == args.workers + 1, "all of Ray's nodes")
            kills.append(at)
            done += 1
            harness.say(f"{who} {done}: back after {', '.join(f'{system} {times[-1]:.1f} s' for system, times in back.items())}")
            if any(times[-1] == float("inf") for times in back.values()):
                break
        ended = time.monotonic()
    rows = []
    for system, ledger in ledgers.items():
        counted = collections.Counter(ledger.outcome(e) for e in ledger.entries)
        failed = counted.total() - counted["on time"] - counted["late"]
        # Each with its status, and how long after the last kill before it.
        bad = [[e[4], round(e[1] - max((at for at in kills if at <= e[1]), default=began), 2)] for e in ledger.entries if e[4] != 200]
        rows.append({"who": who, "bad": bad[:200], "system": system, "kills": done, "rate_rps": rate, "requests": counted.total(), "failed": failed, "doubled": ledger.doubled,
                     "counted": counted, "failed_percent": 100 * failed / max(1, counted.total()), "longest_gap_s": longest_gap(ledger, began, ended),
                     "back_s": back[system], "left": left if system == "carillon" else None, "failures": ledger.failures[:5]})
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--who", nargs="+", choices=["process", "actor", "raylet", "head"], default=["process", "actor", "raylet", "head"])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--limit-s", type=float, default=1200, help="for each kind: seconds after which no more are killed")
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--alpha", type=float, default=2, help="ms")
    parser.add_argument("--beta", type=float, default=38, help="ms")
    parser.add_argument("--rate", type=float, default=0, help="requests a second to either, instead of half of what the devices can do")
    parser.add_argument("--deadline", type=float, default=2000, help="ms")
    parser.add_argument("--absent", type=float, default=2, help="seconds after which a killed raylet, or head, is started again")
    parser.add_argument("--scheduler", default="clockwork")
    parser.add_argument("--without-serve", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))  # Ray's processes are in sessions of their own
    if why := missing(redis=True):
        raise SystemExit(why)
    port = int(free_addresses(1)[0].rpartition(":")[2])
    draw = random.Random(args.seed)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        ray = RayCluster(pathlib.Path(folder), redis=True, environment={
            "CARILLON_PROGRAM": str(harness.CARILLON)})
        stack.callback(ray.end)
        ray.start_head()
        for number in range(args.workers):
            start_node(ray, f"node-{number}")
        wait_for(lambda: ray.nodes() == args.workers + 1, "all of Ray's nodes")
        box = Box(stack, ray, folder, args)
        serve = None if args.without_serve else Serve(ray, folder, args, port)
        if serve:
            harness.say(f"Ray Serve's proxies that listen: {listeners(port)}")
        wait_for(lambda: box.whole() and (serve is None or serve.whole()), "both to be whole")
        out = []
        for who in args.who:
            out += rounds(who, ray, box, serve, args, draw)
            for r in out[-2:]:
                harness.say(f"{r['who']}, {r['system']}, {r['kills']} kills: {dict(r['counted'])}, longest gap {r['longest_gap_s']:.2f} s, left {r['left']}, "
                            f"{r['bad'][:20]} {r['failures'][:2]}")
            harness.save("ray_kills", {"rows": out})
    harness.table([[r["who"], r["system"], r["kills"], r["requests"], r["failed"], f"{r['failed_percent']:.3f}", r["counted"]["late"], f"{r['longest_gap_s']:.2f}",
                    f"{sorted(r['back_s'])[len(r['back_s']) // 2]:.1f}", f"{max(r['back_s']):.1f}", "-" if r["left"] is None else r["left"]] for r in out],
                  ["killed", "system", "kills", "requests", "failed", "%", "late", "longest gap, s", "whole after, s (p50)", "most", "left"])
    print(harness.machine())


if __name__ == "__main__":
    main()
