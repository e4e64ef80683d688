#!/usr/bin/env python3
"""Studies of Ray Tune as Ray runs them, with processes used again and without, with Ray's ResourceChangingScheduler, and with
`carillon.tune.Fluid`: the table of docs/fluid-ray.md.

    python bench/ray_table.py --python /path/to/an/environment/with/ray/bin/python --write

Each run is one of bench/ray_tune.py, a class as trainable. The runs of a seed follow each other, so that all ways have the
same neighbours. `bound` is what would be won if both processors were never idle: what the better way of Ray's took, over
Fluid's start and the seconds that Ray's trials computed, shared by the processors. Runs that are done are kept in build/bench/ray_table.json, as
long as the commit is the same, and not repeated.
"""
import argparse
import contextlib
import json
import pathlib
import statistics
import subprocess

import harness
import ray_tune

DOCUMENT = harness.ROOT / "docs/fluid-ray.md"
BEGIN, END = "<!-- measured: bench/ray_table.py -->", "<!-- end of measured: bench/ray_table.py -->"
NAME = "ray_table"
# 9 epochs each; 16 steps of the CNN take 0.6 s, and 40 of the others 0.3 and 0.15 s.
STUDIES = [("cnn", "fifo", 9, 16), ("cnn", "asha", 12, 16), ("cnn", "hyperband", 12, 16), ("cnn", "bohb", 12, 16), ("cnn", "pbt", 4, 16),
           ("words", "asha", 12, 40), ("words", "hyperband", 12, 40), ("gan", "asha", 12, 40), ("gan", "hyperband", 12, 40)]
WAYS = {"reuse": ["--mode", "plain", "--reuse"], "fluid": ["--mode", "fluid", "--reuse"], "plain": ["--mode", "plain"],
        "changing": ["--mode", "changing"]}
SLOW = ("plain", "changing")
LONGEST = 200  # seconds of a run, of which the longest that ends takes half
GOALS = {"hyperband": 1.3, "bohb": 1.3}


def run(python, study, way, seed):
    task, scheduler, trials, steps = study
    command = [python, str(harness.ROOT / "bench/ray_tune.py"), "--kind", "class", "--task", task, "--scheduler", scheduler,
               "--trials", str(trials), "--steps", str(steps), "--seed", seed, *WAYS[way]]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST)
    except subprocess.TimeoutExpired:
        return None
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    told = json.loads(done.stdout)
    return told | {"load": float(pathlib.Path("/proc/loadavg").read_text().split()[0])}


def measure(args):
    """Runs what is not in the file of results yet, which is written after each run."""
    m, result = harness.machine(), {"studies": []}
    with contextlib.suppress(OSError, ValueError):
        kept = json.loads((harness.RESULTS / f"{NAME}.json").read_text())
        if kept["machine"]["commit"] == m["commit"] and kept["machine"]["cpu"] == m["cpu"]:
            result = {"studies": kept["studies"]}
    for study in STUDIES:
        if args.only and f"{study[0]}-{study[1]}" not in args.only:
            continue
        entry = next((e for e in result["studies"] if tuple(e["study"]) == study), None)
        if entry is None:
            entry = {"study": study, "runs": {way: {} for way in WAYS}}
            result["studies"].append(entry)
        for seed in map(str, range(1, args.seeds + 1)):
            for way in WAYS:
                if seed in entry["runs"][way] or (way in SLOW and int(seed) > args.slow_seeds):
                    continue
                told = run(args.python, study, way, seed)
                harness.say(f"{study} {way} seed {seed}: " + (f"{told['wall']} s, {told['epochs']} epochs, load {told['load']}" if told
                                                              else f"did not end within {LONGEST} s"))
                entry["runs"][way][seed] = told
                harness.save(NAME, result)
    return result


def median_of(runs, key):
    return statistics.median(r[key] for r in runs)


def report(result):
    header = ["task, scheduler", "plain Ray, s", "changing, s", "`reuse_actors`, s", "`Fluid`, s", "faster by", "bound", "epochs: Ray, `Fluid`",
              "best metric: Ray, `Fluid`"]
    rows, missed, resumes, resizes, failed = [], [], [], [], 0
    for entry in result["studies"]:
        (task, scheduler, trials, _), ways = entry["study"], entry["runs"]
        endless = {way for way, of in ways.items() if None in of.values()}
        ways = {way: {seed: told for seed, told in of.items() if told} for way, of in ways.items()}
        runs = {way: list(of.values()) for way, of in ways.items()}
        better = min(("plain", "reuse"), key=lambda way: median_of(runs[way], "wall") if runs[way] else float("inf"))
        seeds = sorted(ways[better].keys() & ways["fluid"].keys())
        ray, fluid = [ways[better][s] for s in seeds], [ways["fluid"][s] for s in seeds]
        # ASHA stops others in another order: seconds of an epoch are compared where the numbers of epochs differ.
        same = all(a["epochs"] == b["epochs"] for a, b in zip(ray, fluid))
        gains = [a["wall"] / b["wall"] * (1 if same else b["epochs"] / a["epochs"]) for a, b in zip(ray, fluid)]
        bound = statistics.median(r["wall"] / (f["start"] + r["computed"] / ray_tune.PROCESSORS) for r, f in zip(ray, fluid))
        goal = GOALS.get(scheduler, 1.0)
        if statistics.median(gains) < goal:
            missed.append(f"{task} under {scheduler} ({statistics.median(gains):.2f} of {goal:g})")
        seconds = {way: f"{median_of(of, 'wall'):.1f}" if of else "-" for way, of in runs.items()}
        seconds |= dict.fromkeys(endless, "no end")
        both = lambda key, form: ", ".join(f"{median_of(way, key):{form}}" for way in (ray, fluid))
        rows.append([f"{task}, {scheduler}, {trials} trials", *(seconds[way] for way in ("plain", "changing", "reuse", "fluid")),
                     " ".join(f"{g:.2f}" for g in gains) + ("" if same else ", an epoch"), f"{bound:.2f}", both("epochs", ".0f"),
                     both("best", ".3f")])
        resumes += [t for r in fluid for t in r.get("resume_ms", [])]
        resizes += [t for r in fluid for t in r.get("resize_ms", [])]
        failed += sum(r["errors"] for of in runs.values() for r in of)
    m = result["machine"]
    seeds_told = " or ".join(map(str, sorted({len(entry["runs"]["fluid"]) for entry in result["studies"]})))
    text = (f"{m['cpu']}, {m['cores']} cores, commit {m['commit']}. Medians over seeds 1 to {seeds_told}, "
            f"of plain Ray and ResourceChangingScheduler (\"changing\") over {result['slow_seeds']}. Ways with \"-\" were not run; \"no end\": a run did not end within {LONGEST} s. \"Faster by\" is for each seed, against the better of plain Ray and "
            "`reuse_actors`; the start of the first process counts.\n\n")
    text += "\n".join("| " + " | ".join(map(str, row)) + " |" for row in [header, ["---"] * len(header), *rows])
    text += "\n\n- Goals (HyperBand and BOHB 1.3, the others 1.0): " + ("all met." if not missed else "**missed** by " + ", ".join(missed) + ".")
    text += f"\n- Trials that failed: {failed}."
    if resumes:
        text += f"\n- {len(resumes)} trials went on in their process. They could compute after {statistics.median(resumes):.1f} ms (median), {max(resumes):.1f} ms at most."
    if resizes:
        text += f"\n- {len(resizes)} changes of a width while the trial computed were heeded after {statistics.median(resizes):.0f} ms (median), {max(resizes):.0f} ms at most."
    return text


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True, help="of an environment of python/requirements/ray.txt")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--slow-seeds", type=int, default=1, help="of the ways that start a process for each trial")
    parser.add_argument("--only", nargs="*", help="studies, as cnn-asha; default: all")
    parser.add_argument("--write", action="store_true", help="into docs/fluid-ray.md")
    args = parser.parse_args()
    text = report(measure(args) | {"machine": harness.machine(), "slow_seeds": args.slow_seeds})
    print(text)
    if args.write:
        harness.write_between(DOCUMENT, BEGIN, END, text)


if __name__ == "__main__":
    main()
