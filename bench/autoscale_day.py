#!/usr/bin/env python3
"""A day of a trace in virtual time (scenarios/azure_day.toml), on devices that come and go as many are wanted.

Beside it: the fixed cluster of the same peak, a fixed cluster of no more device hours, and the usual signals of autoscalers.
Moves are LOADs: what a model that is held elsewhere, or nowhere, costs. The trace has eight hours of a day.

    python bench/autoscale_day.py
    python bench/autoscale_day.py --seconds 1200 --by utilization:0.7
"""
import argparse
import json
import pathlib
import subprocess
import tempfile

import harness

SCENARIO = harness.ROOT / "scenarios/azure_day.toml"


def run(file, *options):
    done = subprocess.run([harness.CARILLON, "simulate", file, "--json", *map(str, options)], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout)


def row(name, told, hours, present):
    bad = 1 - told["on_time"] / told["offered"]
    changes = sum(a != b for a, b in zip(present, present[1:], strict=False))
    print(f"| {name} | {min(present)} to {max(present)} | {changes} | {hours:.2f} | {bad:.3%} | {told['late']} | {told['loads']} | {told['wall_s']:.0f} s |",
          flush=True)
    return {"name": name, "hours": hours, "bad": bad, "present": present, **{key: told[key] for key in ("offered", "on_time", "late", "refused", "loads")}}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=28800, help="of the trace, from its beginning")
    parser.add_argument("--start-up", type=float, default=60, help="seconds until a device is there")
    parser.add_argument("--by", nargs="*", default=["utilization:0.7", "concurrency:4", "queue:5"], help="signals beside the wanted number")
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    text = SCENARIO.read_text()
    out = {"machine": harness.machine(), "rows": []}
    with tempfile.NamedTemporaryFile("w", suffix=".toml", dir=SCENARIO.parent) as file:  # paths in it are relative to its folder

        def on(devices):
            file.seek(0)
            file.truncate()
            file.write(text.replace("devices = 24", f"devices = {devices}"))
            file.flush()
            return file.name

        def fixed(name, devices):
            told = run(on(devices), "--duration", args.seconds)
            out["rows"].append(row(f"{name}: {devices}", told, devices * args.seconds / 3600, [devices]))

        def scaled(by, most, begins=1):
            told = run(on(most), "--duration", args.seconds, "--autoscale", args.start_up, "--autoscale-from", begins,
                       *(() if by == "wanted" else ("--autoscale-by", by)))
            out["rows"].append(row(f"{by}, from {begins}", told, told["scaling"]["device_hours"], told["scaling"]["present"])
                               | {"cut_off": told["scaling"]["cut_off"]})
            return out["rows"][-1]

        print("| devices | present | changes | device hours | bad | late | LOADs | computed in |\n|---|---|---|---|---|---|---|---|", flush=True)
        wanted = scaled("wanted", 24)
        peak = max(wanted["present"])
        fixed("fixed, of the same peak", peak)
        scaled("wanted", 24, peak)
        fixed("fixed, of no more device hours", max(1, int(wanted["hours"] * 3600 / args.seconds)))
        for by in args.by:
            scaled(by, 24)
    if args.json:
        args.json.write_text(json.dumps(out), encoding="utf-8")


if __name__ == "__main__":
    main()
