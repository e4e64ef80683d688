#!/usr/bin/env python3
"""Studies of Ray Tune as Ray runs them, with processes used again and without, with Ray's ResourceChangingScheduler, and with
`carillon.tune.Fluid`: the table of docs/fluid-ray.md.

    python bench/ray_table.py --python /path/to/an/environment/with/ray/bin/python --write

Each run is one of bench/ray_tune.py, a class as trainable. The runs of a seed follow each other, so that all ways have the
same neighbours. `bound` is the most that could be won: what Ray's best way took, by its start and half of the seconds
that its trials computed, as if both processors had never been idle and no process had to start.
"""
import argparse
import json
import pathlib
import statistics
import subprocess

import harness

DOCUMENT = harness.ROOT / "docs/fluid-ray.md"
BEGIN, END = "<!-- measured: bench/ray_table.py -->", "<!-- end of measured: bench/ray_table.py -->"
# 9 epochs each; 16 steps of the CNN take 0.6 s, and 40 of the others 0.3 and 0.15 s.
STUDIES = [("cnn", "fifo", 9, 16), ("cnn", "asha", 12, 16), ("cnn", "hyperband", 12, 16), ("cnn", "bohb", 12, 16), ("cnn", "pbt", 4, 16),
           ("words", "asha", 12, 40), ("words", "hyperband", 12, 40), ("gan", "asha", 12, 40), ("gan", "hyperband", 12, 40)]
WAYS = {"reuse": ["--mode", "plain", "--reuse"], "fluid": ["--mode", "fluid", "--reuse"], "plain": ["--mode", "plain"],
        "changing": ["--mode", "changing"]}
SLOW = ("plain", "changing")
GOALS = {"hyperband": 1.3, "bohb": 1.3}


def run(python, study, way, seed):
    task, scheduler, trials, steps = study
    command = [python, str(harness.ROOT / "bench/ray_tune.py"), "--kind", "class", "--task", task, "--scheduler", scheduler,
               "--trials", str(trials), "--steps", str(steps), "--seed", str(seed), *WAYS[way]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    told = json.loads(done.stdout)
    return told | {"load": float(pathlib.Path("/proc/loadavg").read_text().split()[0])}


def measure(args):
    result = {"studies": []}
    for study in STUDIES:
        if args.only and f"{study[0]}-{study[1]}" not in args.only:
            continue
        runs = {way: [] for way in WAYS}
        for seed in range(1, args.seeds + 1):
            for way in WAYS:
                if way in SLOW and seed > args.slow_seeds:
                    continue
                told = run(args.python, study, way, seed)
                harness.say(f"{study} {way} seed {seed}: {told['wall']} s, {told['epochs']} epochs, load {told['load']}")
                runs[way].append(told)
        result["studies"].append({"study": study, "runs": runs})
    return result


def median_of(runs, key):
    return statistics.median(r[key] for r in runs)


def percentile(values, share):
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else None


def report(result):
    header = ["task, scheduler", "plain Ray, s", "changing, s", "`reuse_actors`, s", "`Fluid`, s", "faster by", "bound", "epochs: Ray, `Fluid`",
              "best metric: Ray, `Fluid`"]
    rows, missed, resumes, resizes, restarts, wrong = [], [], [], [], [], []
    for entry in result["studies"]:
        (task, scheduler, trials, _), runs = entry["study"], entry["runs"]
        fluid = runs["fluid"]
        better = min(("plain", "reuse"), key=lambda way: median_of(runs[way], "wall") if runs[way] else float("inf"))
        ray = runs[better]
        # ASHA stops others in another order: seconds of an epoch are compared where the numbers of epochs differ.
        gains = [a["wall"] / b["wall"] for a, b in zip(ray, fluid)]
        each = [a["wall"] / a["epochs"] / (b["wall"] / b["epochs"]) for a, b in zip(ray, fluid)]
        bound = statistics.median(r["wall"] / (f["start"] + min(r["computed"], r["wall"] * 2) / 2) for r, f in zip(ray, fluid))
        gain = statistics.median(gains)
        same = all(a["epochs"] == b["epochs"] for a, b in zip(ray, fluid))
        goal = GOALS.get(scheduler, 1.0)
        if (gain if same else statistics.median(each)) < goal:
            missed.append(f"{task} under {scheduler} ({gain if same else statistics.median(each):.2f} of {goal})")
        seconds = lambda way: f"{median_of(runs[way], 'wall'):.1f}" if runs[way] else "-"
        list_of = lambda key, form: ", ".join(f"{median_of(way, key):{form}}" for way in (ray, fluid))
        rows.append([f"{task}, {scheduler}, {trials} trials", seconds("plain"), seconds("changing"), seconds("reuse"), seconds("fluid"),
                     " ".join(f"{g:.2f}" for g in gains) + ("" if same else f" (an epoch: {statistics.median(each):.2f})"),
                     f"{bound:.2f}", list_of("epochs", ".0f"), list_of("best", ".3f")])
        resumes += [t for r in fluid for t in r.get("resume_ms", [])]
        resizes += [t for r in fluid for t in r.get("resize_ms", [])]
        restarts += [r["restarts"] for r in fluid] if scheduler != "pbt" else []
        wrong += [r["errors"] for way in runs.values() for r in way if r["errors"]]
    m = result["machine"]
    text = (f"{m['cpu']}, {m['cores']} cores, commit {m['commit']}; medians of {len(result['studies'][0]['runs']['fluid'])} seeds, "
            f"{len(result['studies'][0]['runs']['plain'])} of plain Ray and ResourceChangingScheduler. \"Faster by\" is for each seed, against "
            "the better of plain Ray and `reuse_actors`, with Ray's start of the trials.\n\n")
    text += "\n".join("| " + " | ".join(map(str, row)) + " |" for row in [header, ["---"] * len(header), *rows])
    text += "\n\n- Goals (HyperBand and BOHB 1.3, the others 1.0): " + ("all met." if not missed else "**missed** by " + ", ".join(missed) + ".")
    text += f"\n- Trials that failed: {sum(wrong)}."
    if resumes:
        text += f"\n- {len(resumes)} trials went on in their process; they could compute after {percentile(resumes, 0.5):.1f} ms (median), {max(resumes):.1f} ms at most."
    if resizes:
        text += f"\n- A change of width of a trial that computes was heeded after {percentile(resizes, 0.5):.0f} ms (median), {max(resizes):.0f} ms at most, of {len(resizes)}."
    return text, not missed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True, help="of an environment with ray[tune] 2.60, torch, hpbandster and ConfigSpace==0.7.1")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--slow-seeds", type=int, default=1, help="of the ways that start a process for each trial")
    parser.add_argument("--only", nargs="*", help="studies, as cnn-asha; default: all")
    parser.add_argument("--write", action="store_true", help="into docs/fluid-ray.md")
    args = parser.parse_args()
    result = measure(args) | {"machine": harness.machine()}
    harness.save("ray_table", result)
    text, _ = report(result)
    print(text)
    if args.write:
        harness.write_between(DOCUMENT, BEGIN, END, text)


if __name__ == "__main__":
    main()
