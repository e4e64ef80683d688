#!/usr/bin/env python3
"""Runs every policy over scenarios/policy in the simulator: what is on time, of the worst model, and late, beside a bound.

    python bench/policy.py                             the open half, ten seeds; writes its tables into bench/measured
    python bench/policy.py --only 'abuse*' --seeds 3 --schedulers symphony,edf     a table on the terminal
    python bench/policy.py --held                      the held-back half: only once a policy's constants are fixed

A run uses one core, so that the numbers are the same everywhere. "Lost" is the best policy's share on time, a mean over the
seeds, less the policy's own, in points.
"""
import argparse
import concurrent.futures
import fnmatch
import json
import os
import pathlib
import subprocess

import harness

ROOT = pathlib.Path(__file__).resolve().parents[1]
FOLDER = ROOT / "scenarios/policy"
POLICIES = ["carillon", "clockwork", "symphony", "orloj", "edf", "eager", "eager-drop", "timeout:0.3", "timeout-drop:0.3", "nexus", "clipper",
            "shepherd", "fcfs"]


def run(file, policy, seeds):
    command = [harness.CARILLON, "simulate", file, "--scheduler", policy, "--seed", f"1..{seeds}", "--jobs", "1", "--json"]
    done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{file} under {policy}: {done.stderr.strip()}")
    told = json.loads(done.stdout)
    runs = told.get("runs", [told])

    def mean(of):
        return sum(map(of, runs)) / len(runs)

    return {"on_time": 100 * mean(lambda r: r["finish_rate"]), "late": 100 * mean(lambda r: r["late"] / max(1, r["offered"])),
            "worst": 100 * mean(lambda r: min(m["finish_rate"] for m in r["models"]))}


def table(found, policies, index):
    rows = []
    for name, by in found.items():
        best = max(by[p]["on_time"] for p in policies)
        bound = 100 * index[name]["bound"]
        rows.append([name.split("/")[1], f"{bound:.1f}", *(("**{:.1f}**" if by[p]["on_time"] > best - 0.05 else "{:.1f}").format(by[p]["on_time"])
                                             for p in policies)])
    return harness.markdown(rows, ["scenario", "bound", *policies])


def losses(found, policies):
    kinds = {}
    for name, by in found.items():
        kinds.setdefault(name.split("/")[1].rsplit("_", 1)[0], []).append(by)
    rows = []
    for p in policies:
        lost = [max(b["on_time"] for b in by.values()) - by[p]["on_time"] for by in found.values()]
        worst = max(kinds, key=lambda kind: sum(max(b["on_time"] for b in by.values()) - by[p]["on_time"] for by in kinds[kind]))
        rows.append([p, f"{sum(lost) / len(lost):.2f}", f"{max(lost):.1f}", worst,
                     f"{sum(by[p]['worst'] for by in found.values()) / len(found):.1f}",
                     f"{sum(by[p]['late'] for by in found.values()) / len(found):.2f}"])
    return harness.markdown(sorted(rows, key=lambda r: float(r[1])),
                            ["policy", "lost, mean", "lost, most", "in the kind", "worst model, mean", "late, mean"])


SHOWN = ["carillon", "clockwork", "symphony", "orloj", "edf", "timeout-drop:0.3"]


def plot(found, policies, path):
    """The share on time of some policies in each kind of workload."""
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    kinds = {}
    for name, by in found.items():
        kinds.setdefault(name.split("/")[1].rsplit("_", 1)[0], []).append(by)
    shown = [p for p in SHOWN if p in policies]
    share = {p: [sum(by[p]["on_time"] for by in files) / len(files) for files in kinds.values()] for p in shown}
    figure, axes = plt.subplots(figsize=(8, 0.32 * len(kinds) + 1), constrained_layout=True)
    for p in reversed(shown):  # the first lies over the others
        mark = {"marker": "D", "s": 46, "color": "black", "zorder": 3} if p == shown[0] else {"s": 26, "alpha": 0.8}
        axes.scatter(share[p], range(len(kinds)), label=p, **mark)
    axes.set_yticks(range(len(kinds)), [kind.replace("_", " ") for kind in kinds])
    axes.invert_yaxis()
    axes.set_xlabel("requests on time, %")
    axes.grid(axis="x", alpha=0.3)
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(handles[::-1], labels[::-1], loc="lower left", fontsize=8)
    figure.savefig(path, dpi=110)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--held", action="store_true")
    parser.add_argument("--only", default="*", help="names of scenarios, with * and commas")
    parser.add_argument("--schedulers", default=",".join(POLICIES))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--out", type=pathlib.Path, help="writes the tables here")
    parser.add_argument("--plot", type=pathlib.Path, help="writes a picture of some policies here, such as docs/img/policy.png")
    args = parser.parse_args()
    policies = args.schedulers.split(",")
    index = json.loads((FOLDER / "index.json").read_text())
    half = "held" if args.held else "open"
    names = [n for n in index if n.startswith(half + "/") and any(fnmatch.fnmatch(n.split("/")[1], only) for only in args.only.split(","))]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        pending = {(n, p): pool.submit(run, FOLDER / f"{n}.toml", p, args.seeds) for n in names for p in policies}
        found = {n: {p: pending[n, p].result() for p in policies} for n in names}
    text = losses(found, policies) + "\n\n" + table(found, policies, index)
    print(text)
    harness.save(f"policy_{half}", {"found": found})
    if args.plot:
        plot(found, policies, args.plot)
    whole = args.only == "*" and args.schedulers == ",".join(POLICIES) and args.seeds == 10
    out = args.out or (ROOT / f"bench/measured/policy_{half}.md" if whole else None)
    if out:
        out.write_text(f"# Every policy on scenarios/policy/{half}\n\nShare on time in percent, {args.seeds} seeds: `python bench/policy.py"
                       f"{' --held' if args.held else ''}` at {harness.machine()['commit']}. The bound is that of "
                       f"`bench/make_policy.py`.\n\n{text}\n")


if __name__ == "__main__":
    main()
