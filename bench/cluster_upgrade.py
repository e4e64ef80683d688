#!/usr/bin/env python3
"""What becomes of each request while a cluster is upgraded from another build to this one, role by role, and back.

Processes on this machine: an etcd, schedulers, workers with an emulated device each (ResNet-50's times of Symphony: a batch
of b takes 1.053 b + 5.072 ms), and frontends. First all are of the older build (--old), and the highest rate with 99% on time
is sought (bench/cluster_kills.py). Requests then come at --load of it. Meanwhile, as docs/cluster-upgrade.md says, the spare
schedulers are replaced, the leader is drained and replaced, then worker by worker, then frontend by frontend. Clients leave a
frontend that drains, as a load balancer has them do. Then all members go back to the older build in the same order.

The client has a ledger of all requests (bench/ledger.py). The longest gap is between two answers with status 200, one after
the other. A request that was bad and under way while the machine stood still for more than 5 ms is counted apart, too.

    python bench/cluster_upgrade.py --old PATH/carillon [--rate 0] [--load 0.5] [--deadline 250]
"""
import argparse
import collections
import contextlib
import json
import os
import subprocess
import tempfile
import time

import cluster_kills
import emulated
import harness
from cluster import Cluster
from ledger import Ledger

MODEL = cluster_kills.MODEL
WHAT = ["on time", "late", "refused", "failed", "lost", "broken", "wrong"]


def command(cluster, *arguments):
    return subprocess.run([str(harness.CARILLON), "cluster", *arguments, "--cluster", cluster.address, "--json"], capture_output=True, text=True, timeout=120)


def drain(cluster, id):
    done = command(cluster, "drain", id)
    if done.returncode != 0:
        logs = "".join(f"--- {log.name}\n{log.read_text(errors='replace')[-1500:]}" for log in sorted(cluster.folder.glob("*.log")))
        raise SystemExit(f"{id} does not drain: {done.stderr}\n{logs}")


def replace(cluster, id, role):
    """Ends the process, and starts one of cluster.program in its place."""
    process = cluster.processes.pop(id)
    process.terminate()
    process.wait(60)
    if role == "frontend":
        cluster.start(id, role, *cluster.doors_of[id])
    else:
        cluster.start(id, role)
    cluster.until(cluster.whole)


def upgrade(cluster, ledger, program, pause_s):
    """Returns the name, the begin and the end of each step."""
    cluster.program = program
    steps = []
    leader = cluster.status()["leader"]
    roles = {id: {"s": "scheduler", "w": "worker", "f": "frontend"}[id[0]] for id in sorted(cluster.processes)}
    for id in sorted(roles, key=lambda id: ("swf".index(id[0]), id == leader, id)):
        begun = time.monotonic()
        kind = roles[id]
        if kind == "scheduler":
            kind = "leader" if id == leader else "spare"
        if kind == "frontend":
            drain(cluster, id)
            ledger.use([door for each, door in cluster.doors.items() if each != id])
            time.sleep(1)
        elif kind != "spare":
            drain(cluster, id)
        replace(cluster, id, roles[id])
        if kind == "frontend":
            cluster.until(cluster.ready)
            ledger.use(cluster.doors.values())
        time.sleep(pause_s)
        steps.append((kind, begun, time.monotonic()))
        harness.say(f"  {id}, {kind}: {steps[-1][2] - begun:.1f} s")
    return steps


def longest_gap(entries, begin, end):
    at = sorted(e[3] for e in entries if e[4] == 200 and e[3] is not None and begin <= e[3] <= end)
    return 1000 * max((b - a for a, b in zip(at, at[1:])), default=0)


def measure(args, stack, folder):
    models, profile = emulated.repository(folder, {MODEL: (args.alpha, args.beta)}, args.batch)
    cluster = Cluster(stack, f"{folder}/box", models, workers=args.workers, frontends=args.frontends, worker_options=emulated.devices(profile, 1),
                      scheduler_options=("--scheduler", args.scheduler), program=args.old)
    cluster.until(cluster.whole)
    checked = json.loads(command(cluster, "upgrade-check").stdout)
    harness.say(f"upgrade-check: together {checked['together']}; {checked['members'][0]['says']}")
    best = args.rate / args.load if args.rate else cluster_kills.goodput(cluster, args)
    watch = stack.enter_context(emulated.Watch())
    phases = []
    with Ledger(cluster.doors.values(), MODEL, args.load * best, args.deadline, args.seed) as ledger:
        begun = time.monotonic()
        time.sleep(args.quiet_s)
        phases.append(("before", "nothing", begun, time.monotonic()))
        for way, program in (("up", harness.CARILLON), ("down", args.old)):
            phases += [(way, *step) for step in upgrade(cluster, ledger, program, args.pause_s)]
    rows, out = [], []
    whole = {way: [p for p in phases if p[0] == way] for way in ("up", "down")}
    grouped = [(way, kind, [p[2:] for p in phases if p[:2] == (way, kind)]) for way, kind in dict.fromkeys(p[:2] for p in phases)]
    grouped += [("both", "all", [(whole["up"][0][2], whole["down"][-1][3])])]
    for way, kind, times in grouped:
        sent = [e for e in ledger.entries if any(a <= e[1] < b for a, b in times)]
        count = collections.Counter(ledger.outcome(e) for e in sent)
        bad = [e for e in sent if ledger.outcome(e) != "on time"]
        stalled = sum(watch.stalled(e[1] - 0.05, (e[3] or e[1]) + 0.05) for e in bad)
        gap = max(longest_gap(ledger.entries, a, b) for a, b in times)
        took = sum(b - a for a, b in times)
        rows.append([way, kind, f"{took:.0f}", len(sent), *(count[w] for w in WHAT), stalled, f"{gap:.0f}"])
        out.append({"way": way, "who": kind, "seconds": took, "sent": len(sent), **count, "bad_at_stalls": stalled, "longest_gap_ms": gap})
    harness.table(rows, ["way", "replaced", "s", "sent", *WHAT, "bad while the machine stood still", "longest gap, ms"])
    harness.say(f"{args.load * best:.0f} requests a second; {ledger.doubled} doubled; the machine stood still {len(watch.times)} times; load {os.getloadavg()[0]:.1f}")
    if ledger.failures:
        print("failed:", *ledger.failures[:5], sep="\n  ")
    harness.save("cluster_upgrade", {"rate_rps": args.load * best, "doubled": ledger.doubled, "rows": out, "failures": ledger.failures})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--old", required=True, help="the carillon of the older build")
    parser.add_argument("--load", type=float, default=0.5, help="share of the goodput")
    parser.add_argument("--rate", type=float, default=0, help="requests a second instead of a search")
    parser.add_argument("--most", type=float, default=1300, help="the highest rate that is tried: what this machine's processors can carry")
    parser.add_argument("--search-s", type=float, default=3)
    parser.add_argument("--quiet-s", type=float, default=15, help="seconds before anything is replaced, for comparison")
    parser.add_argument("--pause-s", type=float, default=1, help="seconds behind each process")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--frontends", type=int, default=2)
    parser.add_argument("--deadline", type=float, default=250, help="ms")
    parser.add_argument("--alpha", type=float, default=1.053, help="ms")
    parser.add_argument("--beta", type=float, default=5.072, help="ms")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--scheduler", default="clockwork")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        measure(args, stack, folder)
    print(harness.machine())


if __name__ == "__main__":
    main()
