#!/usr/bin/env python3
"""What does the client of a shared device cost a script that nobody recalls?

    python bench/lanes.py [--runs 7] [--iterations 300]

Runs one script bare and as a job of a broker that only grants, in turn (one pair is not counted), and prints the time
of an iteration of each and the ratio of each pair: hooks, preloaded library, lane and page together. The goal is 1%.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
from scripted_broker import ScriptedBroker  # noqa: E402

SCRIPT = """
import sys, time, torch, torch.nn as nn, torch.nn.functional as F
torch.set_num_threads(1); torch.manual_seed(0)
width, n = int(sys.argv[1]), int(sys.argv[2])
m = nn.Sequential(*[nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(4)], nn.Linear(width, 16))
o = torch.optim.SGD(m.parameters(), 0.01)
x, y = torch.randn(128, width), torch.randint(0, 16, (128,))
def iteration():
    o.zero_grad(); F.cross_entropy(m(x), y).backward(); o.step()
for _ in range(n // 4): iteration()
begun = time.thread_time()
for _ in range(n): iteration()
print((time.thread_time() - begun) / n)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--iterations", type=int, default=300)
    parser.add_argument("--widths", type=int, nargs="+", default=[128, 512, 1024])
    options = parser.parse_args()
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "python")}
    with tempfile.TemporaryDirectory() as folder:
        script, path = pathlib.Path(folder, "script.py"), pathlib.Path(folder, "s")
        script.write_text(SCRIPT)

        def run(*before: str, width: int) -> float:
            command = [sys.executable, *before, str(script), str(width), str(options.iterations)]
            return float(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)

        with ScriptedBroker(path, lane=256 << 20, recall=False, garbage=False):
            for width in options.widths:
                pairs = []
                for i in range(options.runs + 1):
                    bare = run(width=width)
                    shared = run("-m", "carillon", "run", "--socket", str(path), width=width)
                    if i:
                        pairs.append((bare, shared))
                ratios = sorted(shared / bare for bare, shared in pairs)
                print(json.dumps({
                    "width": width, "bare_us": round(statistics.median(b for b, _ in pairs) * 1e6, 1),
                    "shared_us": round(statistics.median(s for _, s in pairs) * 1e6, 1),
                    "ratio_median": round(statistics.median(ratios), 4),
                    "ratio_least": round(ratios[0], 4), "ratio_most": round(ratios[-1], 4)}), flush=True)


if __name__ == "__main__":
    main()
