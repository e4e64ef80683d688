#!/usr/bin/env python3
"""Workers that follow a load in four steps, live, beside the usual signals of autoscalers, simulated on the same trace.

Each worker has one emulated device, and is a host of its own: a network namespace (tests/hosts). This script stands in for
Kubernetes. Every --period seconds it applies HPA's formula. It keeps a StatefulSet's rules, too: workers come --start-up
seconds after they are asked for, and the last workers are drained and go first. The least number of devices of each
step is the simulator's: the fewest on which all but a hundredth of the requests are answered in time. Needs root.

    python bench/autoscale_live.py                # about four minutes
    python bench/autoscale_live.py --simulated    # the signals alone, without root
"""
import argparse
import contextlib
import dataclasses
import json
import pathlib
import sys
import tempfile

import harness

sys.path.append(str(harness.ROOT / "tests"))
from cluster_processes import processes  # noqa: E402
from hosts.box import Box  # noqa: E402
from hosts.network import Hosts, missing  # noqa: E402
from hosts.scaling import Times, Trial, bad_rate, least_needed, scenario, simulate  # noqa: E402
from loopback import make_samples  # noqa: E402

MOST = 8
SIGNALS = ["wanted", "concurrency:2", "concurrency:4", "concurrency:8", "concurrency:16", "utilization:0.5", "utilization:0.7", "utilization:0.9", "utilization:1",
           "queue:50", "queue:100", "queue:200"]


def simulated(file, times, signal, seed):
    told = simulate(harness.CARILLON, file, "--seed", str(seed), "--autoscale", str(times.start_up), "--autoscale-period", str(times.period),
                    "--autoscale-quiet", str(times.quiet), *(() if signal == "wanted" else ("--autoscale-by", signal)))
    return {"signal": signal, "device_hours": told["scaling"]["device_hours"], "bad": bad_rate(told), "cut_off": told["scaling"]["cut_off"],
            "wanted": told["scaling"]["wanted"]}


def fixed(folder, times, count, seed):
    told = simulate(harness.CARILLON, scenario(folder / f"fixed-{count}.toml", times, devices=count), "--seed", str(seed))
    return {"signal": f"fixed: {count}", "device_hours": count * times.begins()[-1] / 3600, "bad": bad_rate(told)}


def live(times, folder):
    with contextlib.ExitStack() as stack:
        net, begin = stack.enter_context(Hosts()), stack.enter_context(processes())
        box = Box(net, begin, harness.CARILLON, make_samples(folder / "models", "tiny"), folder)
        return Trial(box, times, MOST).run()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = Times()
    parser.add_argument("--period", type=float, default=default.period, help="seconds between looks of HPA, which the leader counts, too")
    parser.add_argument("--quiet", type=float, default=default.quiet, help="seconds that fewer devices have to be enough")
    parser.add_argument("--start-up", type=float, default=default.start_up, help="seconds until a worker's process begins")
    parser.add_argument("--steps", type=float, nargs=4, default=default.steps, help="seconds of each step")
    parser.add_argument("--seeds", type=int, default=5, help="of the simulated signals")
    parser.add_argument("--simulated", action="store_true", help="nothing live")
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    times = dataclasses.replace(default, period=args.period, quiet=args.quiet, start_up=args.start_up, steps=tuple(args.steps))
    if not args.simulated and (why := missing()):
        raise SystemExit(why)
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        least = least_needed(harness.CARILLON, folder, times, MOST)
        out = {"machine": harness.machine(), "times": dataclasses.asdict(times), "least": least}
        print(f"the least devices of each step: {least}")
        if not args.simulated:
            told = live(times, folder)
            out["live"] = {**dataclasses.asdict(told), "answers": len(told.answers), "bad": told.bad_share(), "lost": told.lost_to_scaling_down()}
            print(f"live: {told.device_hours:.4f} device hours, {told.bad_share():.2%} of {len(told.answers)} requests bad; "
                  f"lost to scaling down: {len(told.lost_to_scaling_down())}; drains that failed: {told.failed or 'none'}")
            print(f"replicas: {told.series()}")
            print("| step | load | least | replicas at its end | within one of the least after | allowed | changes of direction | bad | the last of these after |")
            print("|---|---|---|---|---|---|---|---|---|")
            for step, load in enumerate(times.loads):
                reached, sent = told.reached_after(step), [at for at, _ in told.answers if times.begins()[step] <= at < times.begins()[step + 1]]
                print(f"| {step + 1} | {load:g}x | {least[step]} | {told.in_step(step, told.replicas)[-1][1]} | "
                      f"{'never' if reached is None else f'{reached:.0f} s'} | {times.reached_within(step):.0f} s | {told.turns(step)} | "
                      f"{len(told.bad(step)) / max(1, len(sent)):.2%} | "
                      f"{max((f'{at - times.begins()[step]:.0f} s' for at, _ in told.bad(step)), key=lambda s: int(s[:-2]), default='-')} |")
        file = scenario(folder / "steps.toml", times, devices=MOST)
        rows = []
        print("| simulated | device hours | bad |\n|---|---|---|")
        for signal in SIGNALS:
            runs = [simulated(file, times, signal, seed) for seed in range(1, args.seeds + 1)]
            rows.append({"signal": signal, "runs": runs})
            print(f"| {signal} | {sum(r['device_hours'] for r in runs) / len(runs):.4f} | {sum(r['bad'] for r in runs) / len(runs):.2%} |")
        for count in sorted({1, *least}):
            runs = [fixed(folder, times, count, seed) for seed in range(1, args.seeds + 1)]
            rows.append({"signal": f"fixed: {count}", "runs": runs})
            print(f"| fixed: {count} | {runs[0]['device_hours']:.4f} | {sum(r['bad'] for r in runs) / len(runs):.2%} |")
        out["simulated"] = rows
        if args.json:
            args.json.write_text(json.dumps(out, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
