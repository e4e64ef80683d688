#!/usr/bin/env python3
"""How long a cluster of hosts has no leader once its leader is killed: from kill -9 to the moment at which a spare leads.

Processes on this machine, which have one monotonic clock: an etcd, or a stand-in for Kubernetes, two schedulers, two workers, a frontend. After each kill
a new scheduler joins, and the next kill waits until the dead one is registered no more; with --soon it does not wait. A
kill during which the machine stood still for more than 5 ms is repeated, and counted.

    python bench/failover.py [--kills 50] [--soon] [--kubernetes --call-ms 20 [--faults]]
"""
import argparse
import math
import pathlib
import random
import statistics
import sys
import tempfile
import time

import harness

sys.path.append(str(harness.ROOT / "tests"))
from cluster_processes import Etcd, Host, Kubernetes, processes  # noqa: E402
from loopback import free_addresses  # noqa: E402


def host(coordinator, id, role):
    return Host(harness.CARILLON, coordinator.cluster(), id, role, free_addresses(1)[0])


def led(coordinator, hosts, soon):
    """The leader, once all are there and it has led for a moment. Who died is registered until its lease ends, after 5 s."""
    while True:
        if not soon and coordinator.registered() != len(hosts):
            time.sleep(0.2)
            continue
        states = [(each, each.state()) for each in hosts]
        leaders = [each for each, state in states if state["leads"]]
        if len(leaders) == 1 and all(len(state["there"]) == len(hosts) - 1 for _, state in states):
            time.sleep(0.3)
            if leaders[0].state()["leads"]:
                return leaders[0]
        time.sleep(0.05)


def faults(draw):
    """What becomes of the calls of the next failover that are about the epoch: of each kind none, one or two."""
    kinds = ({"touch": True, "verbs": ["update"]}, {"stall_ms": 60}, {"status": 500}, {"status": 0})
    return {"fail": [{"name": "box", "times": draw.randint(0, 2), **kind} for kind in draw.sample(kinds, 2)]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--soon", action="store_true")
    parser.add_argument("--kubernetes", action="store_true", help="tests/kubernetes_api.py in place of etcd")
    parser.add_argument("--call-ms", type=float, default=0, help="how long it takes for each call")
    parser.add_argument("--faults", action="store_true", help="its calls of the epoch conflict, stall, fail and break off, by a seed")
    args = parser.parse_args()
    gaps, left_out, draw = [], 0, random.Random(1)
    with tempfile.TemporaryDirectory() as folder, processes() as start:
        coordinator = start((Kubernetes if args.kubernetes else Etcd)(pathlib.Path(folder))).ready()
        if args.kubernetes:
            coordinator.must(slow_ms=args.call_ms)
        hosts = [start(host(coordinator, id, role)) for id, role in (
            ("s1", "scheduler"), ("s2", "scheduler"), ("w1", "worker"), ("w2", "worker"), ("f1", "frontend"))]
        schedulers = 2
        while len(gaps) < args.kills:
            leader = led(coordinator, hosts, args.soon)
            spare = next(each for each in hosts if each.role == "scheduler" and each is not leader)
            place = spare.place()
            if args.faults:
                coordinator.must(**faults(draw))
            with harness.Stalls() as stalls:
                at = time.monotonic_ns()
                leader.kill()
                leads = spare.wait("state", place, leads=True)
            if stalls.count:
                left_out += 1
            else:
                gaps.append((leads["at_ns"] - at) / 1e6)
            hosts.remove(leader)
            schedulers += 1
            hosts.append(start(host(coordinator, f"s{schedulers}", "scheduler")))
    gaps.sort()
    harness.table([[len(gaps), f"{statistics.median(gaps):.0f}", f"{gaps[math.ceil(0.99 * len(gaps)) - 1]:.0f}", f"{gaps[-1]:.0f}", left_out]],
                  ["kills", "p50 ms", "p99 ms", "most ms", "left out"])
    harness.save("failover" + ("-kubernetes" if args.kubernetes else "") + ("-faults" if args.faults else "") + ("-soon" if args.soon else ""), {"gaps_ms": gaps, "left_out": left_out})


if __name__ == "__main__":
    main()
