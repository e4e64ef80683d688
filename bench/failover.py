#!/usr/bin/env python3
"""How long a cluster of hosts has no leader once its leader is killed: from kill -9 to the moment at which a spare leads.

Processes on this machine, which have one monotonic clock: an etcd, two schedulers, two workers, a frontend. After each kill
a new scheduler joins, and the next kill waits until the dead one is registered no more; with --soon it does not wait. A
kill during which the machine stood still for more than 5 ms is repeated, and counted.

    python bench/failover.py [--kills 50] [--soon]
"""
import argparse
import math
import pathlib
import statistics
import sys
import tempfile
import time

import harness

sys.path.append(str(harness.ROOT / "tests"))
from cluster_processes import Etcd, Host, processes  # noqa: E402
from loopback import free_addresses  # noqa: E402


def host(etcd, id, role):
    return Host(harness.CARILLON, f"etcd://{etcd.client}/box", id, role, free_addresses(1)[0])


def led(etcd, hosts, soon):
    """The leader, once all are there and it has led for a moment. Who died is registered until its lease ends, after 5 s."""
    while True:
        registered = etcd.must("kv/range", key="/carillon/box/members/", range_end="/carillon/box/members0", count_only=True)
        if int(registered["count"]) != len(hosts) and not soon:
            time.sleep(0.2)
            continue
        states = [(each, each.state()) for each in hosts]
        leaders = [each for each, state in states if state["leads"]]
        if len(leaders) == 1 and all(len(state["there"]) == len(hosts) - 1 for _, state in states):
            time.sleep(0.3)
            if leaders[0].state()["leads"]:
                return leaders[0]
        time.sleep(0.05)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--soon", action="store_true")
    args = parser.parse_args()
    gaps, left_out = [], 0
    with tempfile.TemporaryDirectory() as folder, processes() as start:
        etcd = start(Etcd(pathlib.Path(folder))).ready()
        hosts = [start(host(etcd, id, role)) for id, role in (
            ("s1", "scheduler"), ("s2", "scheduler"), ("w1", "worker"), ("w2", "worker"), ("f1", "frontend"))]
        schedulers = 2
        while len(gaps) < args.kills:
            leader = led(etcd, hosts, args.soon)
            spare = next(each for each in hosts if each.role == "scheduler" and each is not leader)
            place = spare.place()
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
            hosts.append(start(host(etcd, f"s{schedulers}", "scheduler")))
    gaps.sort()
    harness.table([[len(gaps), f"{statistics.median(gaps):.0f}", f"{gaps[math.ceil(0.99 * len(gaps)) - 1]:.0f}", f"{gaps[-1]:.0f}", left_out]],
                  ["kills", "p50 ms", "p99 ms", "most ms", "left out"])
    harness.save("failover-soon" if args.soon else "failover", {"gaps_ms": gaps, "left_out": left_out})


if __name__ == "__main__":
    main()
