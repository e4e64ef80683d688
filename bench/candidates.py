"""What do measured candidates bring (engine README, "Candidates"), beside the rules alone, in one run?

    python bench/candidates.py MODEL.onnx ... [--batches 1,8] [--threads T] [--rounds N] [--seconds S] [--choose SECONDS]

For each model and batch size two processes of carillon_engine_bench, one by the rules and one that measured for
--choose seconds while it loaded, take turns; a third loads with what the second kept, and must measure nothing. A ratio
is of the median times of one round's turns; what is told is the median over rounds, and their range.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

from compare_engines import PROGRAM
from harness import RESULTS, machine, say


class Runner:
    def __init__(self, model, batch, threads, *more):
        self.process = subprocess.Popen([str(PROGRAM), "--rounds", "--model", str(model), "--batch", str(batch), "--threads", str(threads),
                                         *more], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.ready = self.answer()

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"carillon_engine_bench ended with {self.process.wait()}")
        return json.loads(line)

    def turn(self, seconds):
        self.process.stdin.write(f"{seconds}\n")
        self.process.stdin.flush()
        return self.answer()

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def compare(model, batch, options):
    with tempfile.TemporaryDirectory() as folder:
        choose = ["--choose", str(options.choose), "--choices", str(pathlib.Path(folder) / "choices")]
        runners = [Runner(model, batch, options.threads)]
        try:
            for _ in range(2):
                runners.append(Runner(model, batch, options.threads, *choose))
            way = "?"
            for line in (pathlib.Path(folder) / "choices").read_text().splitlines():
                if line.startswith("plan "):
                    way = line.split("\t")[1]
            rules, chosen, again = runners
            ratios, times = [], []
            for n in range(options.rounds):
                pair = [rules, chosen] if n % 2 == 0 else [chosen, rules]
                took = {id(r): r.turn(options.seconds)["p50_ms"] for r in pair}
                ratios.append(took[id(rules)] / took[id(chosen)])
                times.append((took[id(rules)], took[id(chosen)]))
            return {"model": model.stem, "batch": batch, "way": way, "rules_ms": statistics.median(t[0] for t in times),
                    "chosen_ms": statistics.median(t[1] for t in times), "ratio": statistics.median(ratios), "least": min(ratios),
                    "most": max(ratios), "load_ms": [r.ready["load_ms"] for r in runners],
                    "measured": chosen.ready["measured"], "again": again.ready["measured"],
                    "weights": [r.ready["weights_bytes"] for r in runners]}
        finally:
            for runner in runners:
                runner.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=pathlib.Path, nargs="+")
    parser.add_argument("--batches", default="1,8")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.3, help="of a turn")
    parser.add_argument("--choose", type=float, default=1)
    options = parser.parse_args()
    report = {"machine": machine(), "rows": []}
    print("| model | batch | way | rules, ms | chosen, ms | throughput, chosen / rules | load, ms: rules, first, again | measured |\n"
          "|---|---|---|---|---|---|---|---|")
    bad = False
    for model in options.models:
        for batch in map(int, options.batches.split(",")):
            try:
                row = compare(model, batch, options)
            except RuntimeError as error:
                say(f"{model.name} at batch {batch}: {error}")
                continue
            report["rows"].append(row)
            bad = bad or row["again"] > 0
            print(f"| {row['model']} | {batch} | {row['way']} | {row['rules_ms']:.2f} | {row['chosen_ms']:.2f} | {row['ratio']:.2f} "
                  f"({row['least']:.2f} to {row['most']:.2f}) | {', '.join(f'{m:.0f}' for m in row['load_ms'])} | "
                  f"{row['measured']}, then {row['again']} |", flush=True)
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "candidates.json").write_text(json.dumps(report, indent=1))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
