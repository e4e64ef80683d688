#!/usr/bin/env python3
"""What becomes of each request when a cluster's leader, worker or frontend is killed, or its leader stands still, at half load.

Processes on this machine: an etcd, two schedulers, four workers with an emulated device each (ResNet-50's times of Symphony:
a batch of b takes 1.053 b + 5.072 ms), and a frontend (two where one is killed). First the highest rate with 99% on time is
sought by bisection, but no higher than --most. Requests then come at --load of it, and go on while one process after the
other is killed (kill -9). A new one joins after each. The client has a ledger of all requests (bench/ledger.py).

"No decision" is the time from the kill to the first answer to a request that came after it, less the shortest run. Only the
next leader can have decided on that request, so this is at least the time without a decision. "The second after" is the
share of requests on time of those that came within a second of the kill. A kill is left out, counted and repeated where the
machine, or the client, stood still for more than 5 ms within a tenth of a second before it and 1.2 s after it.

    python bench/cluster_kills.py --kills 100 [--deadline 250] [--load 0.5]
    python bench/cluster_kills.py --kills 100 --who worker
    python bench/cluster_kills.py --kills 20 --who frontend
    python bench/cluster_kills.py --kills 100 --pause 1         SIGSTOP for so many seconds, then SIGCONT

With --who frontend, rows of the killed frontend wait at the leader for some seconds' work of one device. Then one request of
the other frontend, whose deadline lies behind theirs, tells when they are gone: its answer, less its own run.
"""
import argparse
import collections
import contextlib
import math
import random
import signal
import tempfile
import threading
import time

import emulated
import harness
from cluster import Cluster
from ledger import Ledger

MODEL = "resnet50"
BEHIND_S, BEFORE_S = 1.2, 0.1  # a kill's window
PATIENCE_S = 5


def percentile(values, q):
    values = sorted(values)
    return values[min(len(values) - 1, math.ceil(q * len(values)) - 1)]


def goodput(cluster, args):
    """By bisection to a twentieth, each rate for some seconds. A bad run in which the machine stood still is repeated."""
    def good(rate):
        for _ in range(3):
            with emulated.Watch() as watch:
                told = harness.load(cluster.url, [MODEL], "--rate", rate, "--deadline", args.deadline, "--duration", args.search_s, "--warmup", 0.5)
            if told["on_time_rate"] >= 0.99:
                return True
            if not watch.times:
                break
        return False

    low, high = 50.0, args.most
    if good(high):
        return high
    while high / low > 1.05:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if good(middle) else (low, middle)
    return low


def disturb(cluster, args, number):
    """Kills or stops one. Returns when, and what mends it."""
    if args.who == "leader":
        victim, role = cluster.status()["leader"], "scheduler"
    else:
        role = "worker"
        victim = next(id for id in cluster.processes if id.startswith("w"))
    process = cluster.processes[victim]
    at = time.monotonic()
    if args.pause:
        process.send_signal(signal.SIGSTOP)
        again = threading.Timer(args.pause, process.send_signal, [signal.SIGCONT])
        again.start()
        return at, again.join
    process.kill()

    def mend():
        cluster.processes.pop(victim).wait()
        cluster.start(f"{victim[0]}{100 + number}", role)
    return at, mend


def kills(args, stack, folder):
    models, profile = emulated.repository(folder, {MODEL: (args.alpha, args.beta)}, args.batch)
    cluster = Cluster(stack, f"{folder}/box", models, workers=args.workers, worker_options=emulated.devices(profile, 1),
                      scheduler_options=("--scheduler", args.scheduler))
    cluster.until(cluster.whole)
    best = args.rate / args.load if args.rate else goodput(cluster, args)
    rate, at, draw = args.load * best, [], random.Random(args.seed)
    watch = stack.enter_context(emulated.Watch())
    doors = [cluster.http]
    left_out = 0
    with Ledger(doors, MODEL, rate, args.deadline, args.seed) as ledger:
        began = time.monotonic()
        for number in range(args.kills * 10):
            if time.monotonic() > began + args.limit_s:
                break
            cluster.until(lambda: cluster.whole(but_the_dead=True))
            time.sleep(0.3 + 0.2 * draw.random())
            when, mend = disturb(cluster, args, number)
            emulated.sleep_until(when + BEHIND_S)
            mend()
            if watch.stalled(when - BEFORE_S, when + BEHIND_S) and not args.keep_stalled:
                left_out += 1
            else:
                at.append(when)
            if len(at) == args.kills:
                break
        ended = time.monotonic()
    late_sent = [e[1] for e in ledger.entries if e[2] - e[1] > 0.005]
    kept = [k for k in at if args.keep_stalled or not any(k - BEFORE_S < each < k + BEHIND_S for each in late_sent)]
    left_out += len(at) - len(kept)
    if not kept:
        raise SystemExit(f"the machine stood still at all {left_out} kills")
    shortest_s = (args.alpha + args.beta) / 1000
    gaps, seconds, counted = [], [], collections.Counter()
    for k in kept:
        answered = [e[3] for e in ledger.entries if e[4] == 200 and e[2] > k and e[3] < k + PATIENCE_S]
        gaps.append(1000 * (min(answered) - k - shortest_s) if answered else math.inf)
        window = collections.Counter(ledger.outcome(e) for e in ledger.entries if k <= e[1] < k + 1)
        counted += window
        seconds.append(window["on time"] / max(1, window.total()))
    everything = collections.Counter(ledger.outcome(e) for e in ledger.entries)
    out = {"who": args.who, "pause_s": args.pause, "deadline_ms": args.deadline, "goodput_rps": best, "rate_rps": rate,
           "kills": len(kept), "left_out": left_out, "seconds": ended - began, "all": everything, "doubled": ledger.doubled, "failures": ledger.failures,
           "in_seconds_after": counted, "no_decision_ms": gaps, "second_after": seconds}
    what = ["on time", "late", "refused", "failed", "lost", "broken", "wrong"]
    harness.table([["all", len(ledger.entries), *(everything[w] for w in what), ledger.doubled],
                   ["in the seconds after", counted.total(), *(counted[w] for w in what), ""]], ["requests", "sent", *what, "doubled"])
    harness.table([[len(kept), left_out, f"{best:.0f}", f"{rate:.0f}", f"{percentile(gaps, .5):.0f}", f"{percentile(gaps, .99):.0f}", f"{max(gaps):.0f}",
                    f"{100 * sum(seconds) / len(seconds):.2f}", f"{100 * percentile(seconds, .01):.2f}"]],
                  ["pauses" if args.pause else "kills", "left out", "goodput/s", "rate/s", "no decision p50 ms", "p99", "most", "second after, % on time", "p1 of kills"])
    if ledger.failures:
        print("failed:", *ledger.failures[:5], sep="\n  ")
    harness.save(f"cluster_kills-{args.who}{'-pause' if args.pause else ''}-{args.deadline:.0f}", out)


def frontend_kills(args, stack, folder):
    """How soon a dead frontend's rows are gone."""
    models, profile = emulated.repository(folder, {MODEL: (args.alpha, args.beta)}, 1)
    cluster = Cluster(stack, f"{folder}/box", models, schedulers=1, worker_options=emulated.devices(profile, 1),
                      scheduler_options=("--scheduler", "edf"))
    run_s = (args.alpha + args.beta) / 1000
    rows = round(args.rows_s / run_s)
    took, left_out = [], 0
    watch = stack.enter_context(emulated.Watch())
    for number in range(3 * args.kills):
        id = f"f{100 + number}"
        cluster.start_frontend(id)
        cluster.until(cluster.ready)
        cluster.until(lambda: cluster.whole(but_the_dead=True))
        # All of the victim's rows at once; then one of the other frontend, due later, which waits behind them.
        with Ledger([cluster.doors[id]], MODEL, rows / 0.05, 1000 * args.rows_s * 4, most=rows) as _, \
                Ledger([cluster.http], MODEL, 50, 1000 * args.rows_s * 8, most=1) as other:
            time.sleep(0.6)
            at = time.monotonic()
            cluster.processes[id].kill()
            time.sleep(args.rows_s)
        cluster.processes.pop(id).wait()
        cluster.doors.pop(id)
        waiting = [e for e in other.entries if e[1] < at and (e[3] is None or e[3] > at)]
        if not waiting or watch.stalled(at - BEFORE_S, at + 0.5) and not args.keep_stalled:
            left_out += 1
            continue
        took.append(1000 * (min(e[3] for e in waiting) - at - run_s))
        if len(took) == args.kills:
            break
    harness.table([[len(took), left_out, rows, f"{percentile(took, .5):.0f}", f"{percentile(took, .99):.0f}", f"{max(took):.0f}"]],
                  ["kills", "left out", "rows that wait", "gone after, p50 ms", "p99", "most"])
    harness.save("cluster_kills-frontend", {"took_ms": took, "left_out": left_out, "rows": rows})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--who", choices=["leader", "worker", "frontend"], default="leader")
    parser.add_argument("--pause", type=float, default=0, help="seconds for which the process is stopped instead")
    parser.add_argument("--load", type=float, default=0.5, help="share of the goodput")
    parser.add_argument("--rate", type=float, default=0, help="requests a second instead of a search")
    parser.add_argument("--most", type=float, default=1300, help="the highest rate that is tried: what this machine's processors can carry")
    parser.add_argument("--search-s", type=float, default=3)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--deadline", type=float, default=250, help="ms")
    parser.add_argument("--alpha", type=float, default=1.053, help="ms")
    parser.add_argument("--beta", type=float, default=5.072, help="ms")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--scheduler", default="clockwork")
    parser.add_argument("--rows-s", type=float, default=2, help="with --who frontend: seconds of work that wait")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit-s", type=float, default=1200, help="seconds after which no more are killed")
    parser.add_argument("--keep-stalled", action="store_true", help="leaves nothing out; for trials")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        (frontend_kills if args.who == "frontend" else kills)(args, stack, folder)
    print(harness.machine())


if __name__ == "__main__":
    main()
