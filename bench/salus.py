#!/usr/bin/env python3
"""Runs Salus's tables and figures, and what its paper does not have, in the simulator; writes the tables of bench/measured/salus.md.

    python bench/salus.py                          all sections, to standard output
    python bench/salus.py table2_1 beyond          only these
    python bench/salus.py --write bench/measured/salus.md    between the marks of that file; what was not run now is as before
    python bench/salus.py --choose-seed 1500       windows of arrivals and seeds whose row of FIFO is nearest to Table 2.1's

Results are kept in build/bench/salus.json, and each run of the program in build/bench/cells, by what was run and by which
program. Simulated time: the same commit gives the same numbers on any machine, but for the section `events`.
"""
import argparse
import functools
import hashlib
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

import harness

ROOT = harness.ROOT
PROGRAM = str(harness.CARILLON)
SCENARIOS = ROOT / "scenarios/salus"
KEPT = harness.RESULTS / "salus.json"
CELLS = harness.RESULTS / "cells"
POLICIES = ["fifo", "srtf", "pack", "fair", "best"]
MORE_SEEDS = list(range(1, 21))  # beside the file's
BEYOND_SEEDS = list(range(1, 6))
BEGIN, END = "<!-- measured: bench/salus.py -->", "<!-- end of measured -->"

# Table 2.1, in minutes.
PAPER = {"fifo": (303.4, 167.6, 170.6, 251.1), "srtf": (306.0, 28.6, 53.4, 217.0), "pack": (287.4, 129.9, 145.5, 266.1),
         "fair": (301.6, 58.5, 96.6, 281.2)}


@functools.cache
def program_digest():
    return hashlib.sha256(pathlib.Path(PROGRAM).read_bytes()).hexdigest()


def simulate(file, *arguments):
    """`carillon simulate FILE ARGUMENTS --json`, or what it said when the same program ran the same before."""
    arguments = [str(a) for a in arguments]
    tables = "".join(p.read_text() for p in sorted(SCENARIOS.glob("*.csv")))
    key = json.dumps(["jobs", program_digest(), pathlib.Path(file).read_text(), tables, arguments])
    cell = CELLS / hashlib.sha256(key.encode()).hexdigest()
    if cell.exists():
        return json.loads(cell.read_text())
    run = subprocess.run([PROGRAM, "simulate", str(file), *arguments, "--jobs", "1", "--json"], capture_output=True, text=True)
    if run.returncode == 1 and "comes to no end" in run.stderr:
        harness.say(run.stderr.strip())
        return None  # a fault of the policy: told in the tables
    if run.returncode != 0:
        sys.exit(f"carillon simulate {file} {' '.join(arguments)}: {run.stderr.strip()}")
    CELLS.mkdir(parents=True, exist_ok=True)
    part = cell.with_suffix(f".{os.getpid()}-{id(run)}")
    part.write_text(run.stdout)
    part.rename(cell)
    return json.loads(run.stdout)


def by_policy(file, *arguments, policies=POLICIES):
    runs = harness.in_parallel(ARGUMENTS.jobs, lambda p: simulate(file, "--scheduler", p, *arguments), policies,
                               f"{pathlib.Path(file).stem} {' '.join(map(str, arguments))}")
    return dict(zip(policies, runs, strict=True))


def table(rows, header):
    line = lambda row: "| " + " | ".join(str(c) for c in row) + " |"
    return "\n".join([line(header), "|" + "---|" * len(header), *map(line, rows)])


def spread(values, digits=2):
    """Median and range; runs that came to no end are None, and left out."""
    values = [v for v in values if v is not None]
    if not values:
        return "-"
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


# --- Table 2.1

def table2_1():
    file = SCENARIOS / "table2_1.toml"
    return {"file": by_policy(file), "seeds": {str(s): by_policy(file, "--seed", s) for s in MORE_SEEDS}}


def tell_table2_1(got):
    rows = got["file"]
    minutes = lambda run: (run["makespan_s"] / 60, run["mean_queue_s"] / 60, run["mean_jct_s"] / 60, run["p95_jct_s"] / 60)
    cells = []
    for policy in POLICIES:
        ours = minutes(rows[policy])
        paper = PAPER.get(policy)
        cells.append([policy, *(f"{paper[i]:.1f}, {ours[i]:.1f}" if paper else f"-, {ours[i]:.1f}" for i in range(4)),
                      f"{rows[policy]['longest_wait_s'] / 60:.1f}", rows[policy]["most_lanes"], rows[policy]["switches"],
                      rows[policy]["refused"] + rows[policy]["evicted"]])
    text = ["Minutes; of each pair the paper's first, then ours.", "",
            table(cells, ["policy", "makespan", "mean queueing", "mean JCT", "95% JCT", "longest wait", "lanes", "switches",
                          "refused or evicted"]), ""]
    fifo = rows["fifo"]
    ratio = lambda run, of: (of["mean_jct_s"] / run["mean_jct_s"], run["makespan_s"] / of["makespan_s"])
    goals = []
    for i, name in ((0, "makespan"), (2, "mean JCT"), (3, "95% JCT")):
        off = minutes(fifo)[i] / PAPER["fifo"][i] - 1
        goals.append([f"FIFO's {name} within 5% of the paper's (chosen so)", f"{100 * off:+.1f}%", abs(off) <= 0.05])
    srtf, pack, fair, best = (rows[p] for p in ("srtf", "pack", "fair", "best"))
    goals += [
        ["SRTF's mean JCT is FIFO's over 3.19 or better", f"over {ratio(srtf, fifo)[0]:.2f}", ratio(srtf, fifo)[0] >= 3.19],
        ["SRTF's makespan at most 1% above FIFO's", f"{100 * (ratio(srtf, fifo)[1] - 1):+.1f}%", ratio(srtf, fifo)[1] <= 1.01],
        ["PACK's makespan 0.95 of FIFO's", f"{ratio(pack, fifo)[1]:.3f}", ratio(pack, fifo)[1] <= 0.955],
        ["FAIR's mean JCT within 10% of 96.6 min", f"{fair['mean_jct_s'] / 60:.1f}", abs(fair["mean_jct_s"] / 60 / 96.6 - 1) <= 0.1],
        ["best's mean JCT as SRTF's", f"{best['mean_jct_s'] / srtf['mean_jct_s']:.3f} of it",
         best["mean_jct_s"] <= 1.005 * srtf["mean_jct_s"]],
        ["best's makespan as PACK's", f"{best['makespan_s'] / pack['makespan_s']:.3f} of it",
         best["makespan_s"] <= 1.005 * pack["makespan_s"]]]
    text += [table([[what, value, "yes" if met else "**no**"] for what, value, met in goals], ["asked for", "came out", "met"]), ""]
    seeds = got["seeds"].values()
    def over_runs(one, other, key):
        return [s[one][key] / s[other][key] if s[one] and s[other] else None for s in seeds]
    over = []
    for policy in POLICIES[1:]:
        paper = PAPER.get(policy)
        over.append([policy, f"{PAPER['fifo'][2] / paper[2]:.2f}" if paper else "-",
                     spread([r and 1 / r for r in over_runs(policy, "fifo", "mean_jct_s")]),
                     f"{paper[0] / PAPER['fifo'][0]:.3f}" if paper else "-",
                     spread(over_runs(policy, "fifo", "makespan_s"), 3)])
    wins = [[f"of {len(got['seeds'])} seeds", "SRTF's over best's mean JCT", spread(over_runs("srtf", "best", "mean_jct_s"), 3)],
            ["", "PACK's over best's makespan", spread(over_runs("pack", "best", "makespan_s"), 3)]]
    text += [f"The same with {len(got['seeds'])} other seeds ({MORE_SEEDS[0]} to {MORE_SEEDS[-1]}): median, least and most, against FIFO of the same seed.",
             "", table(over, ["policy", "FIFO's mean JCT over its, paper", "ours", "its makespan over FIFO's, paper", "ours"]), "",
             table(wins, ["", "(above 1: best is better)", "ratio"])]
    return "\n".join(text)


def choose_seed(count):
    text = (SCENARIOS / "table2_1.toml").read_text().replace('"p100_workloads', f'"{SCENARIOS}/p100_workloads')
    want = (PAPER["fifo"][0], PAPER["fifo"][2], PAPER["fifo"][3])
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for window in (300, 600, 900, 1200, 1800):
            file = pathlib.Path(folder) / f"{window}.toml"
            file.write_text(re.sub(r"over_s = \d+", f"over_s = {window}", text))
            for run in simulate(file, "--scheduler", "fifo", "--seed", f"1..{count}")["runs"]:
                got = (run["makespan_s"] / 60, run["mean_jct_s"] / 60, run["p95_jct_s"] / 60)
                found.append((max(abs(g / w - 1) for g, w in zip(got, want, strict=True)), window, run["seed"], got))
    for worst, window, seed, got in sorted(found)[:10]:
        print(f"over {window} s, seed {seed}: off by {100 * worst:.1f}% at most; makespan {got[0]:.1f}, mean JCT {got[1]:.1f}, "
              f"95% {got[2]:.1f} min")


# --- figures 2.9 to 2.11

def fig2_9():
    file = SCENARIOS / "fig2_9_fair.toml"
    runs = {}
    for policy in ("fair", "best", "fifo"):
        run = simulate(file, "--scheduler", policy, "--interval", 1)
        phases = [{} for _ in range(5)]
        for entry in run["series"]:
            phase = entry["interval"] // 15
            for job, n in entry["iterations"].items():
                if phase < 5:
                    phases[phase][job] = phases[phase].get(job, 0) + n
        runs[policy] = {"phases": phases, "makespan_s": run["makespan_s"]}
    return runs


def tell_fig2_9(got):
    cells = []
    alone = 15 / 0.36181
    for policy, run in got.items():
        for i, phase in enumerate(run["phases"]):
            total = sum(phase.values())
            cells.append([policy, f"{15 * i} to {15 * i + 15} s", *(f"{phase.get(j, 0) * 50 / 15:.0f}" for j in ("first", "second", "third")),
                          f"{total * 50 / 15:.0f}", f"{total / alone:.3f}"])
    return ("Images a second of three jobs of inception3_50 (50 images an iteration), which come at 0, 15 and 30 s; in one lane. "
            "The paper: halves, thirds, and back, with the total unchanged.\n\n"
            + table(cells, ["policy", "", "first", "second", "third", "all", "of one alone"]))


def fig2_10():
    return {name: by_policy(SCENARIOS / f"fig2_10_{name}.toml") for name in ("resnet50", "superres")}


def tell_fig2_10(got):
    cells = []
    for name, paper in (("resnet50", 1.07), ("superres", 2.38)):
        for policy in POLICIES:
            run = got[name][policy]
            cells.append([name, policy, f"{run['makespan_s'] / 60:.1f}", f"{got[name]['fifo']['makespan_s'] / run['makespan_s']:.3f}",
                          paper if policy == "pack" else "", f"{run['mean_jct_s'] / 60:.1f}", run["most_lanes"]])
    return ("300 jobs of 60 s at once. PACK's ratios are what the co-location model was fitted to; that they come out says that "
            "enough lanes are open, and no more.\n\n"
            + table(cells, ["jobs", "policy", "makespan (min)", "FIFO's over it", "paper", "mean JCT (min)", "lanes"]))


def fig2_11():
    text = (SCENARIOS / "fig2_11_inference.toml").read_text().replace('"p100_inference', f'"{SCENARIOS}/p100_inference')
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for rate in (0.2, 0.5, 1):
            file = pathlib.Path(folder) / "fig2_11_inference.toml"
            file.write_text(text.replace("per_s = 0.2", f"per_s = {rate}"))
            for policy in ("pack", "fair", "best"):
                run = simulate(file, "--scheduler", policy)
                rows.append({"rate": rate, "policy": policy, **{k: run.get(k) for k in (
                    "finished", "refused", "requests", "mean_latency_ms", "mean_alone_ms", "p99_latency_ms", "utilization",
                    "most_lanes", "most_memory_bytes", "unfinished", "makespan_s")}})
    return rows


def tell_fig2_11(got):
    cells = [[f"{r['rate']:g}", r["policy"], r["finished"], r["most_lanes"], f"{r['most_memory_bytes'] / 1e9:.1f}",
              f"{100 * r['utilization']:.0f}%", f"{r['mean_alone_ms'] or 0:.2f}", f"{r['mean_latency_ms'] or 0:.2f}",
              f"{(r['mean_latency_ms'] or 0) - (r['mean_alone_ms'] or 0):+.2f}", f"{r['p99_latency_ms'] or 0:.1f}"] for r in got]
    return ("42 inference jobs, three of each of 14 models, on one device of 16 GB. The paper: one device, at most 5 ms more on "
            "average; MPS needs 6, no sharing 42 (neither is simulated here).\n\n"
            + table(cells, ["requests a second and job", "policy", "jobs held", "lanes", "GB", "busy", "alone (ms)", "mean latency (ms)",
                            "more", "p99 (ms)"]))


# --- what the paper does not have

def beyond():
    files = sorted(SCENARIOS.glob("beyond_*.toml")) + [SCENARIOS / "ten_thousand.toml"]
    got = {}
    for file in files:
        seeds = BEYOND_SEEDS if file.stem != "ten_thousand" else [1]
        got[file.stem] = {str(s): by_policy(file, "--seed", s) for s in seeds}
    return got


def tell_beyond(got):
    measures = (("mean_jct_s", "mean JCT", 60), ("p95_jct_s", "95% JCT", 60), ("makespan_s", "makespan", 60),
                ("mean_slowdown", "mean slowdown", 1), ("longest_wait_s", "longest wait", 60))
    text = [f"Medians of {len(BEYOND_SEEDS)} seeds, in minutes (slowdown: a job's time over what it takes alone). `best` over the strongest of the others in "
            "that column; below 1 it is better.", ""]
    for name, seeds in got.items():
        runs = list(seeds.values())
        cells = []
        for policy in POLICIES:
            ended = [r[policy] for r in runs if r[policy]]
            row = [policy + (f" ({len(runs) - len(ended)} of {len(runs)} came to no end)" if len(ended) < len(runs) else "")]
            if not ended:
                cells.append(row + ["-"] * 10)
                continue
            for key, _, unit in measures:
                row.append(f"{statistics.median(r[key] for r in ended) / unit:.1f}")
            count = lambda key: f"{statistics.median(r[key] for r in ended):g}"
            row += [count("finished"), count("refused"), count("evicted"), count("died"), count("unfinished")]
            cells.append(row)
        against = ["best over the others"]
        for key, _, _ in measures:
            # Who evicts more than best has less to do, and is not compared with.
            losses = lambda p: statistics.median(r[p]["evicted"] + r[p]["refused"] for r in runs if r[p])
            fair_ones = [p for p in POLICIES[:-1] if all(r[p] for r in runs) and losses(p) <= losses("best")]
            others = min((statistics.median(r[p][key] for r in runs) for p in fair_ones), default=0)
            mine = statistics.median(r["best"][key] for r in runs)
            against.append(f"{mine / others:.2f}" if others > 0 else "-")
        cells.append(against + [""] * 5)
        text += [f"### {name.removeprefix('beyond_')}", "", comment_of(name), "",
                 table(cells, ["policy", *(label for _, label, _ in measures), "finished", "refused", "evicted", "died", "unfinished"]), ""]
    return "\n".join(text).rstrip()


def comment_of(name):
    """What a scenario file says of itself, at its top."""
    lines = (SCENARIOS / f"{name}.toml").read_text().splitlines()
    return " ".join(line[2:] for line in lines[:next(i for i, l in enumerate(lines) if not l.startswith("#"))])


# --- how fast it decides

def events():
    """1,000 jobs at once: how long the program takes over them. The core is part of that; the simulated device is, too."""
    text = (SCENARIOS / "table2_1.toml").read_text().replace('"p100_workloads', f'"{SCENARIOS}/p100_workloads')
    text = text.replace("copies = 100\n", "copies = 1000\n").replace("total = 18180", "total = 90000")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "thousand.toml"
        file.write_text(text.replace('16 GB', '160 GB'))
        for policy in POLICIES:
            took = []
            for _ in range(5):
                begin = time.monotonic()
                run = subprocess.run([PROGRAM, "simulate", str(file), "--scheduler", policy, "--json"], capture_output=True, text=True)
                took.append(time.monotonic() - begin)
                if run.returncode != 0:
                    sys.exit(run.stderr)
            told = json.loads(run.stdout)
            assert told["jobs"] == 1000
            rows.append({"policy": policy, "events": told["events"], "seconds": sorted(took)})
    return {"machine": harness.machine(), "rows": rows}


def tell_events(got):
    cells = [[r["policy"], f"{r['events']:,}", f"{statistics.median(r['seconds']):.2f}", f"{r['events'] / max(r['seconds']) / 1e3:,.0f} to "
              f"{r['events'] / min(r['seconds']) / 1e3:,.0f}"] for r in got["rows"]]
    where = got["machine"]
    return (f"1,000 jobs as in Table 2.1 on ten times the memory: events that the policy was told, and how long the whole program took "
            f"(median and range of five, {where['cpu']}, {where['cores']} cores, which others used, too; commit {where['commit']}). The simulated device and "
            "reading the file are in it, so the core alone does more.\n\n"
            + table(cells, ["policy", "events", "seconds", "thousand events a second"]))


SECTIONS = {"table2_1": ("Table 2.1: 100 jobs on one device", table2_1, tell_table2_1),
            "fig2_9": ("Figure 2.9: fair shares", fig2_9, tell_fig2_9),
            "fig2_10": ("Figure 2.10: hyperparameter exploration", fig2_10, tell_fig2_10),
            "fig2_11": ("Figure 2.11: inference", fig2_11, tell_fig2_11),
            "beyond": ("Beyond the paper", beyond, tell_beyond),
            "events": ("A thousand jobs: events a second", events, tell_events)}


def told(kept):
    where = harness.machine()
    text = [f"Written by `python bench/salus.py --write bench/measured/salus.md` at commit {where['commit']} ({where['cpu']}); run it again "
            "after a change to a policy. Virtual time: the same commit gives the same numbers on any machine."]
    for name, (title, _, tell) in SECTIONS.items():
        if name in kept:
            text += ["", f"## {title}", "", tell(kept[name])]
    return "\n".join(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", help=f"of {', '.join(SECTIONS)}; none: all")
    parser.add_argument("--write", type=pathlib.Path, metavar="FILE", help="between the marks of a file instead of standard output")
    parser.add_argument("--choose-seed", type=int, metavar="N", help="of 1 to N, for Table 2.1, by FIFO's row; nothing else is run")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="runs at a time")
    global ARGUMENTS
    ARGUMENTS = parser.parse_args()
    for name in ARGUMENTS.sections:
        if name not in SECTIONS:
            parser.error(f"there is no section {name}; there are {', '.join(SECTIONS)}")
    if ARGUMENTS.choose_seed:
        return choose_seed(ARGUMENTS.choose_seed)
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    for name in ARGUMENTS.sections or SECTIONS:
        kept[name] = SECTIONS[name][1]()
        KEPT.parent.mkdir(parents=True, exist_ok=True)
        KEPT.write_text(json.dumps(kept))
    text = told(kept)
    if not ARGUMENTS.write:
        print(text)
        return None
    harness.write_between(ARGUMENTS.write, BEGIN, END, text)
    return None


if __name__ == "__main__":
    main()
