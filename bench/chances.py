#!/usr/bin/env python3
"""Does the ledger know the chance that an answer is late, and what does the policy carillon gain by it?

    python bench/chances.py [--what calibration,gain,varied,live] [--seeds 3] [--models DIR] [--model tiny_mlp] [--seconds 60]
                            [--rates 0.001,0.01] [--json FILE]

`calibration`: simulated. Late answers that were expected when their batches were sent, beside those that were late, over
all models and seeds. Times have outliers, follow Pareto's law, or devices slow down; ways and times are measured, as live.
Goal: within a factor of two where at least 20 are expected.
`gain`: simulated. The share on time with chances and without (carillon:chance=0), with what the scenario says and measured.
`varied`: simulated. One model on one device, whose times vary so much that its runs may well be too long.
`live`: a server on this machine's CPU under `load`, quiet and beside two busy loops, at a third of its capacity. The same
counts, by its metrics.

Exit status 1 where a goal is missed.
"""
import argparse
import contextlib
import json
import subprocess
import sys
import tempfile

import harness
from neighbours import busy_loops

FOLDER = harness.ROOT / "scenarios/policy/open"
KINDS = ["outliers", "pareto", "slow_spells", "unlike_speeds"]
FEWEST = 20


def simulate(file, policy, seeds, *options):
    command = [harness.CARILLON, "simulate", file, "--scheduler", policy, "--seed", f"1..{seeds}", "--json", *options]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{file} under {policy}: {done.stderr.strip()}")
    told = json.loads(done.stdout)
    return told.get("runs", [told])


def sums(parts):
    return {key: sum(part[key] for part in parts) for key in ["of", "expected", "were", "avoidable"]}


def judged(name, rate, counted):
    off = counted["were"] / counted["expected"] if counted["expected"] else 0
    enough = counted["expected"] >= FEWEST
    good = not enough or 0.5 <= off <= 2
    return {"what": name, "miss rate": f"{100 * rate:g}%", "answers": counted["of"], "late, expected": f"{counted['expected']:.1f}",
            "late": counted["were"], "avoidable": counted["avoidable"], "late / expected": f"{off:.2f}" if enough else "(few)",
            "good": good}


def calibration(arguments):
    rows = []
    for kind in KINDS[:3]:
        for number in [1, 2]:
            for rate in arguments.rates:
                runs = simulate(FOLDER / f"{kind}_{number}.toml", "carillon", arguments.seeds, "--measured", "--miss-rate", rate)
                rows.append(judged(f"{kind}_{number}", rate, sums([m["late"] for run in runs for m in run["models"]])))
    return rows


def gain(arguments):
    rows = []
    for kind in KINDS:
        for number in [1, 2]:
            row = {"scenario": f"{kind}_{number}"}
            for how, options in [("told", []), ("measured", ["--measured"])]:
                for policy in ["carillon", "carillon:chance=0", "clockwork", "orloj"]:
                    runs = simulate(FOLDER / f"{kind}_{number}.toml", policy, arguments.seeds, *options)
                    row[f"{policy}, {how}"] = f"{100 * sum(run['finish_rate'] for run in runs) / len(runs):.2f}"
            rows.append(row)
    return rows


# Of `varied`: requests a second, and NOISE of --noise.
VARIED = [(40, 0.6), (60, 0.6), (100, 0.6), (20, 1), (60, 1), (100, 1), (60, 1.5)]


def varied(arguments):
    rows = []
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        for rate, noise in VARIED:
            file.seek(0)
            file.truncate()
            file.write(f"""name = "varied"
duration_s = 20
warmup_s = 2
[cluster]
devices = 1
[[models]]
name = "m"
copies = 1
slo_ms = 28
max_batch = 16
latency = {{ alpha_ms = 8.4, beta_ms = 0 }}
rate = {rate}
""")
            file.flush()
            row = {"requests a second, noise": f"{rate}, {noise}"}
            for policy in ["carillon", "clockwork", "symphony", "orloj", "eager-drop", "edf"]:
                runs = simulate(file.name, policy, arguments.seeds, "--measured", "--noise", noise)
                row[policy] = f"{100 * sum(run['finish_rate'] for run in runs) / len(runs):.1f}"
            rows.append(row)
    return rows


def live(arguments):
    rows = []
    for busy in [0, 2]:
        with busy_loops(busy) if busy else contextlib.nullcontext():
            for rate in arguments.rates:
                for policy in arguments.policies.split(","):
                    with harness.Server(arguments.models, "--scheduler", policy, "--miss-rate", rate) as server:
                        closed = harness.load(server.grpc_url, [arguments.model], "--process", "closed:8", "--duration", 4)
                        before = server.metrics()
                        told = harness.load(server.grpc_url, [arguments.model], "--rate", closed["goodput_rps"] / 3, "--deadline",
                                            arguments.deadline, "--duration", arguments.seconds, "--warmup", 2)
                        after = server.metrics()
                    counted = {key: int(round(value(after) - value(before))) if key != "expected" else value(after) - value(before)
                               for key, value in COUNTERS.items()}
                    row = judged(f"{policy}, {busy} busy loops", rate, counted)
                    row["on time"] = f"{100 * told['on_time'] / max(1, told['sent']):.2f}%"
                    rows.append(row)
                    harness.say(str(row))
    return rows


def counter(name):
    return lambda metrics: sum(value for (which, _), value in metrics.items() if which == name)


COUNTERS = {"of": counter("carillon_promised_rows_total"), "expected": counter("carillon_promised_rows_expected_late_total"),
            "were": counter("carillon_promised_rows_late_total"),
            "avoidable": counter("carillon_promised_rows_avoidable_late_total")}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--what", default="calibration,gain,varied,live")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--models", default=str(harness.ROOT / "build/quickstart/models"))
    parser.add_argument("--model", default="tiny_mlp")
    parser.add_argument("--deadline", type=float, default=20, help="milliseconds")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--rates", type=lambda text: [float(part) for part in text.split(",")], default=[0.001, 0.01])
    parser.add_argument("--policies", default="carillon,carillon:chance=0,clockwork", help="of `live`")
    parser.add_argument("--json", help="a file that gets everything")
    arguments = parser.parse_args()
    found = {what: {"calibration": calibration, "gain": gain, "varied": varied, "live": live}[what](arguments) for what in arguments.what.split(",")}
    for what, rows in found.items():
        print(f"\n{what}\n")
        header = [key for key in rows[0] if key != "good"]
        print(harness.markdown([[row[key] for key in header] for row in rows], header))
    if arguments.json:
        with open(arguments.json, "w") as out:
            json.dump({"machine": harness.machine(), **found}, out, indent=1)
    return 0 if all(row.get("good", True) for rows in found.values() for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
