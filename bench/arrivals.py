#!/usr/bin/env python3
"""Plans for how requests arrive, measured: fills its part of bench/measured/provisioning.md.

The paper's twelve workloads, planned by `carillon plan` for Poisson arrivals, for Gamma gaps of shape 0.5 and for even
gaps, each for an interference model that errs by 0, 5 and 10%. Every plan is served in virtual time under the same
arrivals and errors, with noise of 3%: 30 s, twenty seeds. A workload keeps its SLO in a run where its P99 is within the
SLO and it answers as many requests as come. A cell holds where every workload keeps its SLO in at least 95% of runs.

Beside it stand igniter's plan as published, and the headroom with which igniter's plan holds: the rates that igniter
plans for are so much higher than those that come. Headrooms are tried from 0 in steps of 20%, and in steps of 5% between
the first that holds and the one before. igniter does not split workloads; one that fits no
device with the headroom is halved by hand, or cut in three, and so on.

    python bench/arrivals.py                 some minutes on two cores
    python bench/arrivals.py --keep FOLDER --pieces 1    one of the table's 27 pieces; a later run goes on from there
    python bench/arrivals.py --seeds 4       a fifth of the runs, for a look
    python bench/arrivals.py --no-write      prints the tables and writes nothing
"""
import argparse
import collections
import concurrent.futures
import datetime
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = os.environ.get("CARILLON_PROGRAM", str(ROOT / "build/release/carillon"))
DATA = ROOT / "profiles/igniter"
DOCUMENT = ROOT / "bench/measured/provisioning.md"
BEGIN, END = "<!-- measured: bench/arrivals.py -->", "<!-- end of bench/arrivals.py -->"
ARRIVALS = {"poisson": "Poisson", "gamma:0.5": "Gamma, 0.5", "constant": "even"}
ERRORS = (0, 5, 10)
SECONDS = 30
WANTED = 0.95
STEPS, MOST = (20, 5), 400  # percent of headroom: from step to step, and then between two


def plan(workloads, *arguments):
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump({"workloads": workloads}, file)
        file.flush()
        command = [PROGRAM, "plan", file.name, "--coefficients", DATA / "workloads.json", "--hardware", DATA / "v100.json",
                   "--json", *arguments]
        done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=600)
        if done.returncode != 0:
            sys.exit(done.stderr)
        return json.loads(done.stdout)


def broken(told):
    """Workloads that break their SLO; those that were cut by hand count as one."""
    return {w["id"].split("/")[0] for w in told["simulated"]["workloads"] if w["violated"]}


def served(arrivals, error, seed):
    return ("--simulate", str(SECONDS), "--simulate-arrivals", arrivals, "--simulate-error", str(error / 100), "--seed",
            str(seed))


def runs_of(pool, seeds, one, give_up=None):
    """The workloads that each seed's run breaks, or nothing where some workload breaks more often than `give_up`."""
    sets, counts = [], collections.Counter()
    for first in range(0, len(seeds), 4):
        for told in pool.map(one, seeds[first:first + 4]):
            sets.append(broken(told))
            counts.update(sets[-1])
        if give_up is not None and counts and max(counts.values()) > give_up:
            return None
    return sets


def igniter_with(table, headroom):
    """Workloads at rates that are higher by the headroom, cut where they fit no device, and igniter's plan of them."""
    parts = collections.Counter()
    while True:
        workloads = []
        for w in table:
            count = 1 + parts[w["id"]]
            rate = w["rate_rps"] * (1 + headroom / 100) / count
            for i in range(count):
                workloads.append(w | {"id": w["id"] if count == 1 else f"{w['id']}/{i + 1}", "rate_rps": rate})
        told = plan(workloads, "--strategy", "igniter")
        if not told["infeasible"]:
            return workloads, told, dict(parts)
        for left_out in {i["id"].split("/")[0] for i in told["infeasible"]}:
            parts[left_out] += 1
            if parts[left_out] > 20:
                return None


def headroom_of_igniter(pool, table, seeds, arrivals, error):
    allowed = allowed_of(len(seeds))

    def holds(headroom):
        found = igniter_with(table, headroom)
        if found is None:
            return None
        workloads, told, parts = found
        load = ("--simulate-load", repr(1 / (1 + headroom / 100)))
        sets = runs_of(pool, seeds, lambda seed: plan(workloads, "--strategy", "igniter", *load, *served(arrivals, error, seed)),
                       allowed)
        return None if sets is None else {"headroom": headroom, "told": told, "parts": parts}

    for headroom in range(0, MOST + 1, STEPS[0]):
        if found := holds(headroom):
            # Between this step and the one before.
            for less in range(max(0, headroom - STEPS[0] + STEPS[1]), headroom, STEPS[1]):
                if earlier := holds(less):
                    return earlier
            return found
    return None


def allowed_of(runs):
    return math.floor((1 - WANTED) * runs + 1e-9)


def best(pool, table, seeds, arrivals, error):
    asked = ("--arrivals", arrivals, "--model-error", str(error))
    sets = runs_of(pool, seeds, lambda seed: plan(table, *asked, *served(arrivals, error, seed)))
    return {"told": plan(table, *asked), "sets": [sorted(s) for s in sets]}


def published(pool, table, seeds, arrivals, error):
    asked = ("--strategy", "igniter")
    sets = runs_of(pool, seeds, lambda seed: plan(table, *asked, *served(arrivals, error, seed)))
    return {"told": plan(table, *asked), "sets": [sorted(s) for s in sets]}


PIECES = {"best": best, "published": published, "headroom": headroom_of_igniter}


def counted(sets):
    return collections.Counter(w for s in sets for w in s)


def price(told):
    return f"{told['device_count']}, {told['cost_usd_per_hour']:.2f}"


def rows(cells, runs):
    lines = ["| arrivals | model error | best: devices, $/h | every SLO kept in 95% of runs | least kept, of the workloads "
             f"| runs with all twelve kept | expected on time, least | igniter: devices, $/h | SLOs broken, mean of {runs} runs "
             "| igniter's headroom for the same | its devices, $/h |", "|---|---|---|---|---|---|---|---|---|---|---|"]
    for c in cells:
        worst = max(counted(c["best"]["sets"]).values(), default=0)
        whole = sum(not s for s in c["best"]["sets"])
        expected = min(w["on_time"] for w in c["best"]["told"]["expected"])
        mean = sum(map(len, c["published"]["sets"])) / runs
        found = c["headroom"]
        headroom = f"{found['headroom']}%" if found else f"none up to {MOST}%"
        for w, more in sorted(found["parts"].items() if found else ()):
            headroom += f", {w} cut in {more + 1}"
        lines.append(f"| {ARRIVALS[c['arrivals']]} | {c['error']}% | {price(c['best']['told'])} "
                     f"| {'yes' if worst <= allowed_of(runs) else '**no**'} | {runs - worst} of {runs} | {whole} of {runs} "
                     f"| {math.floor(1e4 * expected) / 100:.2f}% | {price(c['published']['told'])} | {mean:.1f} | {headroom} "
                     f"| {price(found['told']) if found else '-'} |")
    return lines


def names(counts):
    return ", ".join(f"{w} {n}" for w, n in counts.most_common()) or "none"


def raw(cells):
    lines = ["", "The plans (device: workload, share, batch), and in how many runs a workload broke its SLO:", ""]
    for c in cells:
        devices = "; ".join(f"{d['device']}: " + ", ".join(f"{w['id']} {w['share_pct']:g}% ({w['batch']})" for w in d["workloads"])
                            for d in c["best"]["told"]["devices"])
        lines.append(f"- {ARRIVALS[c['arrivals']]}, {c['error']}%: {devices}. Broken: {names(counted(c['best']['sets']))}. "
                     f"igniter's, as published: {names(counted(c['published']['sets']))}.")
    return lines


def write_between(lines):
    text = DOCUMENT.read_text()
    if BEGIN not in text:
        text += f"\n## Plans for how requests arrive\n\n{BEGIN}\n{END}\n"
    head, rest = text.split(BEGIN)
    DOCUMENT.write_text(f"{head}{BEGIN}\n\n" + "\n".join(lines) + f"\n{END}{rest.split(END)[1]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--keep", type=pathlib.Path, metavar="FOLDER", help="keep each piece there, and go on from what is there")
    parser.add_argument("--pieces", type=int, help="with --keep: end after so many new pieces")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--no-write", action="store_true", help="print the tables and write nothing")
    args = parser.parse_args()
    seeds = list(range(1, args.seeds + 1))
    table = json.loads((DATA / "table3.json").read_text())["workloads"]
    if args.keep:
        args.keep.mkdir(parents=True, exist_ok=True)
    cells, made = [], 0
    with concurrent.futures.ThreadPoolExecutor(args.threads) as pool:
        for arrivals in ARRIVALS:
            for error in ERRORS:
                cells.append({"arrivals": arrivals, "error": error})
                for name, make in PIECES.items():
                    file = args.keep and args.keep / f"{arrivals.replace(':', '_')}_{error}_{name}.json"
                    if file and file.exists():
                        cells[-1][name] = json.loads(file.read_text())
                        continue
                    if args.pieces is not None and made == args.pieces:
                        return
                    made += 1
                    cells[-1][name] = make(pool, table, seeds, arrivals, error)
                    if file:
                        file.write_text(json.dumps(cells[-1][name]))
                print(rows(cells[-1:], len(seeds))[-1], flush=True)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    lines = [f"`python bench/arrivals.py`, commit {commit}, {datetime.date.today()}; {SECONDS} s of virtual time, noise of 3%, "
             f"{len(seeds)} seeds.", "", *rows(cells, len(seeds)), *raw(cells), ""]
    print("\n".join(lines))
    if not args.no_write:
        write_between(lines)


if __name__ == "__main__":
    main()
