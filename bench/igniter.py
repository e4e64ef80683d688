#!/usr/bin/env python3
"""Provisioning, measured: fills the generated part of bench/measured/provisioning.md and draws docs/img/provisioning.png.

The paper's example and its twelve workloads under every strategy; times and memory for 12, 100 and 1,000 workloads; a
thousand random sets of workloads under the paper's algorithm and ours; how often each is optimal on small sets.

    python bench/igniter.py                 a few minutes on two cores
    python bench/igniter.py --sets 100      a tenth of the random sets, for a look
    python bench/igniter.py --simulated     only the plans served in virtual time, half a minute
    python bench/igniter.py --no-write      prints the tables and writes nothing
"""
import argparse
import collections
import concurrent.futures
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = os.environ.get("CARILLON_PROGRAM", str(ROOT / "build/release/carillon"))
DATA = ROOT / "profiles/igniter"
DOCUMENT = ROOT / "bench/measured/provisioning.md"
BEGIN, END = "<!-- measured: bench/igniter.py -->", "<!-- end of measured -->"
SIMULATED_BEGIN, SIMULATED_END = "<!-- measured: bench/igniter.py --simulated -->", "<!-- end of simulated -->"
STRATEGIES = ("igniter", "best", "ffd+", "gpulets+", "gslice+")
# Of the paper: devices and violations (section 5.3, measured on its devices).
PAPER = {"igniter": (6, 0), "ffd+": (5, 10), "gpulets+": (8, 3), "gslice+": (6, 3)}
PRICE = 3.06


def workloads_like_table3(dice, count, most=1.0):
    """Each like one of the paper's twelve, with 0.8 to 1.5 of its SLO and 0.2 to `most` of its rate."""
    pattern = json.loads((DATA / "table3.json").read_text())["workloads"]
    drawn = []
    for i in range(count):
        like = dice.choice(pattern)
        drawn.append({"id": f"w{i}", "model": like["model"], "slo_ms": like["slo_ms"] * dice.uniform(0.8, 1.5),
                      "rate_rps": like["rate_rps"] * dice.uniform(0.2, most)})
    return drawn


def plan(workloads, *arguments):
    """What `carillon plan --json` tells, and its peak memory in MB; best plans by the paper's constraints, as all do."""
    if "--strategy" not in arguments or "best" in arguments:
        arguments += ("--arrivals", "model")
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump({"workloads": workloads}, file)
        file.flush()
        command = [PROGRAM, "plan", file.name, "--coefficients", DATA / "workloads.json", "--hardware",
                   DATA / "v100.json", "--json", *arguments]
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            process = subprocess.Popen([str(c) for c in command], stdout=out, stderr=err)
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            if process.returncode != 0:
                err.seek(0)
                sys.exit(err.read().decode())
            out.seek(0)
            return json.load(out), usage.ru_maxrss / 1024


def fastest(workloads, *arguments, times=7):
    runs = [plan(workloads, *arguments) for _ in range(times)]
    return min(told["seconds"] for told, _ in runs), max(memory for _, memory in runs), runs[0][0]


def twelve(lines):
    table = json.loads((DATA / "table3.json").read_text())["workloads"]
    told = {s: plan(table, "--strategy", s)[0] for s in STRATEGIES}
    lines += ["## The paper's twelve workloads (Table 3)", "",
              "| strategy | devices (paper) | $/h | predicted violations | violations that the paper measured |",
              "|---|---|---|---|---|"]
    for s in STRATEGIES:
        devices, violations = PAPER.get(s, ("-", "-"))
        lines.append(f"| {s} | {told[s]['device_count']} ({devices}) | {told[s]['cost_usd_per_hour']:.2f} "
                     f"| {told[s]['predicted_violations']} | {violations} |")
    lines += ["", "iGniter's plan, share and batch of each workload:", ""]
    for device in told["igniter"]["devices"]:
        placed = ", ".join(f"{w['id']} {w['share_pct']:g}% ({w['batch']})" for w in device["workloads"])
        lines.append(f"- device {device['device']}: {placed}")
    dice = random.Random(1)
    orders = []
    for _ in range(200):
        shuffled = dice.sample(table, len(table))
        orders.append((plan(shuffled, "--strategy", "igniter")[0], plan(shuffled)[0]))
    counts = sorted({o[0]["device_count"] for o in orders}), sorted({o[1]["device_count"] for o in orders})
    lines += ["", f"In 200 random orders of the input igniter needs {' or '.join(map(str, counts[0]))} devices and best "
              f"{' or '.join(map(str, counts[1]))}, with "
              f"{max(o[0]['predicted_violations'] + o[1]['predicted_violations'] for o in orders)} predicted violations.", ""]
    example = plan(json.loads((DATA / "table1.json").read_text())["workloads"], "--strategy", "igniter")[0]
    placed = ", ".join(f"{w['id']} {w['share_pct']:g}% ({w['batch']})" for w in example["devices"][0]["workloads"])
    lines += [f"The example of Table 1: {example['device_count']} device, {placed}; as in the paper.", ""]
    return told


def simulated(pool):
    """The plans of the twelve workloads, served in virtual time under several seeds."""
    seeds = range(1, 21)
    cases = {"noise": (), "error": ("--simulate-error", "0.04"),
             "standby": ("--simulate-error", "0.04", "--simulate-standby"),
             "poisson": ("--simulate-arrivals", "poisson")}
    plans = {s: ("--strategy", s) for s in STRATEGIES} | {"best, 2% headroom": ("--headroom", "2")}
    table = json.loads((DATA / "table3.json").read_text())["workloads"]

    def one(key):
        name, extra, seed = key
        told = plan(table, *plans[name], "--simulate", "30", "--seed", str(seed), *extra)[0]
        return {w["id"] for w in told["simulated"]["workloads"] if w["violated"]}

    def counted(name, *extra):
        sets = list(pool.map(one, [(name, extra, seed) for seed in seeds]))
        low, high = min(map(len, sets)), max(map(len, sets))
        told = str(low) if low == high else f"{statistics.mean(map(len, sets)):.1f} ({low} to {high})"
        return told, collections.Counter(w for s in sets for w in s)

    lines = [f"Workloads of the twelve that break their SLO in 30 s, mean of {len(seeds)} seeds (least to most):", "",
             "| strategy | measured in the paper | predicted | noise of 3% | and model errors of 4% | and standbys "
             "| noise of 3%, Poisson arrivals |", "|---|---|---|---|---|---|---|"]
    which, full = [], []
    for name, arguments in plans.items():
        told = plan(table, *arguments)[0]
        cells = {case: counted(name, *extra) for case, extra in cases.items()}
        full.append(f"{name} {counted(name, '--simulate-batching', 'full')[0]}")
        paper = PAPER[name][1] if name in PAPER else "-"
        lines.append(f"| {name} | {paper} | {told['predicted_violations']} | "
                     + " | ".join(cells[case][0] for case in cases) + " |")
        for case, title in (("noise", "noise"), ("error", "noise and errors")):
            seen = sorted(cells[case][1].items(), key=lambda w: (-w[1], int(w[0][1:])))
            if seen:
                which.append(f"- {name}, {title}: " + ", ".join(f"{w} {n}" for w, n in seen))
    lines += ["", f"With noise of 3% and batches that wait until they are full: {'; '.join(full)}.",
              "", f"Who they are, and in how many of the {len(seeds)} runs:", "", *which, ""]
    devices = []
    for headroom in (0, 20, 40, 60, 80, 100, 150, 200):
        extra = ("--headroom", str(headroom), "--simulate", "30", "--simulate-arrivals", "poisson")
        told = list(pool.map(lambda seed: plan(table, *extra, "--seed", str(seed))[0], range(1, 6)))
        low, high = (f(t["simulated"]["violations"] for t in told) for f in (min, max))
        counts = sorted({t["device_count"] for t in told})
        devices.append(f"{headroom}%: {' or '.join(map(str, counts))}, {low if low == high else f'{low} to {high}'}")
    lines += ["Devices of best, and workloads that break their SLO under Poisson arrivals (five seeds), by `--headroom`: "
              + "; ".join(devices) + ".", ""]
    room = sorted((w["predicted_rps"] / w["rate_rps"] - 1, w["id"])
                  for d in plan(table, "--strategy", "ffd+")[0]["devices"] for w in d["workloads"])
    lines += ["What ffd+'s plan can serve beyond the rates, by the model: "
              + ", ".join(f"{w} {100 * r:+.1f}%" for r, w in room) + ".", ""]
    return lines


def write_between(begin, end, lines):
    head, rest = DOCUMENT.read_text().split(begin)
    tail = rest.split(end)[1]
    DOCUMENT.write_text(f"{head}{begin}\n\n{chr(10).join(lines)}\n{end}{tail}")


def times(lines):
    # The authors' program on a machine like this one, in seconds, and in the paper (section 5.4).
    authors = {12: ("0.002", "0.00364"), 100: ("0.032 to 0.061", "-"), 1000: ("3.7 to 5.4", "4.61")}
    lines += ["## Time and memory", "",
              "Of planning alone, the best of seven runs (of best, of three); memory is the process's peak. The authors' program was "
              "timed apart from this, on a machine like this one.", "",
              "| workloads | igniter, ms | best, greedy only, ms | best, ms | memory igniter, best, MB | authors' Python, s | in the paper, s |",
              "|---|---|---|---|---|---|---|"]
    figures = {}
    for count in (12, 100, 1000):
        drawn = json.loads((DATA / "table3.json").read_text())["workloads"] if count == 12 else \
            workloads_like_table3(random.Random(count), count)
        igniter, memory, _ = fastest(drawn, "--strategy", "igniter")
        greedy, _, _ = fastest(drawn, "--effort", "0")
        best, best_memory, _ = fastest(drawn, times=3)
        figures[count] = igniter, greedy, best, memory, best_memory
        lines.append(f"| {count:,} | {1e3 * igniter:.3g} | {1e3 * greedy:.3g} | {1e3 * best:.3g} | {memory:.0f}, {best_memory:.0f} "
                     f"| {authors[count][0]} | {authors[count][1]} |")
    lines.append("")
    return figures


def one_set(seed):
    dice = random.Random(seed)
    drawn = workloads_like_table3(dice, dice.randint(4, 60))
    igniter, greedy, best = (plan(drawn, *a)[0] for a in (("--strategy", "igniter"), ("--effort", "0"), ()))
    return {"count": len(drawn), "igniter": igniter["device_count"], "igniter_left_out": len(igniter["infeasible"]),
            "igniter_violations": igniter["predicted_violations"], "greedy": greedy["device_count"],
            "best": best["device_count"], "best_left_out": len(best["infeasible"]),
            "best_violations": best["predicted_violations"], "proven": best["proven_cheapest"]}


def random_sets(lines, pool, count):
    sets = list(pool.map(one_set, range(count)))
    whole = [s for s in sets if s["igniter_left_out"] == s["best_left_out"]]
    devices = {k: sum(s[k] for s in whole) for k in ("igniter", "greedy", "best")}
    lines += [f"## {count:,} random sets", "",
              "4 to 60 workloads, each like one of the twelve with 0.8 to 1.5 of its SLO and 0.2 to 1 of its rate; the seed of a "
              "set is its number.", "",
              f"- Devices over the {len(whole):,} sets that both serve in full: igniter {devices['igniter']:,}, best's greedy plans "
              f"{devices['greedy']:,}, best {devices['best']:,}: **{100 * (1 - devices['best'] / devices['igniter']):.1f}% fewer**.",
              f"- best needs fewer in {sum(s['best'] < s['igniter'] for s in whole):,} sets, as many in "
              f"{sum(s['best'] == s['igniter'] for s in whole):,}, more in {sum(s['best'] > s['igniter'] for s in whole):,}.",
              f"- Sets with a predicted violation: igniter {sum(s['igniter_violations'] > 0 for s in sets)}, best "
              f"{sum(s['best_violations'] > 0 for s in sets)}. Sets in which a workload is left out: igniter "
              f"{sum(s['igniter_left_out'] > 0 for s in sets)}, best {sum(s['best_left_out'] > 0 for s in sets)}.",
              f"- best is proven cheapest in {sum(s['proven'] for s in sets):,}.", ""]
    return sets


def small_set(key):
    count, seed = key
    drawn = workloads_like_table3(random.Random(f"small {count} {seed}"), count)
    igniter, greedy, best = (plan(drawn, *a)[0] for a in (("--strategy", "igniter"), ("--effort", "0"), ()))
    return {"proven": best["proven_cheapest"], "greedy": greedy["device_count"] == best["device_count"],
            "igniter": igniter["device_count"] == best["device_count"] and igniter["predicted_violations"] == 0 and
            not igniter["infeasible"]}


def small_sets(lines, pool):
    lines += ["## Small sets", "",
              "100 random sets each. Proven: no partition of the workloads over devices is cheaper, each with its cheapest batch. The "
              "other columns say how often these plans have as few devices.", "",
              "| workloads | best, proven | best's greedy plans | igniter, all SLOs met |", "|---|---|---|---|"]
    for count in (6, 8, 12, 16, 20):
        sets = list(pool.map(small_set, [(count, i) for i in range(100)]))
        lines.append(f"| {count} | {sum(s['proven'] for s in sets)} | {sum(s['greedy'] and s['proven'] for s in sets)} "
                     f"| {sum(s['igniter'] and s['proven'] for s in sets)} |")
    lines.append("")


def draw(told, figures, sets):
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    figure, (plans, saved, clock) = plt.subplots(1, 3, figsize=(15, 4.2), width_ratios=(2, 1, 1))
    colours = {"alexnet": "#8fb8de", "resnet50": "#f2b880", "vgg19": "#9fd3a4", "ssd": "#d7a5c9"}
    at, ticks = 0, []
    for strategy in STRATEGIES:
        begin = at
        for device in told[strategy]["devices"]:
            bottom = 0
            for w in device["workloads"]:
                plans.bar(at, w["share_pct"], bottom=bottom, width=0.85, color=colours[w["model"]],
                          edgecolor="#c00" if w.get("violated") else "#555", linewidth=1.6 if w.get("violated") else 0.6)
                plans.text(at, bottom + w["share_pct"] / 2, w["id"], ha="center", va="center", fontsize=6)
                bottom += w["share_pct"]
            at += 1
        ticks.append(((begin + at - 1) / 2, strategy))
        at += 0.8
    plans.set_xticks([t for t, _ in ticks], [s for _, s in ticks])
    plans.set_ylim(0, 128)
    plans.set_ylabel("share of a device, %")
    plans.set_title("The twelve workloads (red: predicted violation)")
    for name, colour in colours.items():
        plans.bar(0, 0, color=colour, label=name)
    plans.legend(fontsize=7, loc="upper right")
    whole = [s for s in sets if s["igniter_left_out"] == s["best_left_out"]]
    for low in range(4, 60, 8):
        chosen = [100 * (1 - s["best"] / s["igniter"]) for s in whole if low <= s["count"] < low + 8]
        if chosen:
            saved.bar(low + 4, statistics.mean(chosen), width=7, color="#8fb8de")
    saved.set_xlabel("workloads")
    saved.set_ylabel("fewer devices than igniter, %")
    saved.set_title("Random sets")
    counts = sorted(figures)
    for i, label in enumerate(("igniter", "best, greedy only", "best")):
        clock.loglog(counts, [1e3 * figures[c][i] for c in counts], "o-", label=label)
    clock.loglog(counts, [2, 45, 4500], "s--", color="#888", label="the authors' Python")
    clock.set_xlabel("workloads")
    clock.set_ylabel("ms")
    clock.set_title("Time to plan")
    clock.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(ROOT / "docs/img/provisioning.png", dpi=110)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", type=int, default=1000)
    parser.add_argument("--simulated", action="store_true", help="only the plans served in virtual time")
    parser.add_argument("--no-write", action="store_true", help="print the tables and write nothing")
    args = parser.parse_args()
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        served = simulated(pool)
        print("\n".join(served))
        if not args.no_write:
            write_between(SIMULATED_BEGIN, SIMULATED_END, served)
        if args.simulated:
            return
        lines = []
        told = twelve(lines)
        figures = times(lines)
        sets = random_sets(lines, pool, args.sets)
        small_sets(lines, pool)
    print("\n".join(lines))
    if args.no_write:
        return
    write_between(BEGIN, END, lines)
    draw(told, figures, sets)


if __name__ == "__main__":
    main()
