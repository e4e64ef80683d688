#!/usr/bin/env python3
"""MLPerf's LoadGen, scenario Server: the highest rate that it calls VALID, of Carillon's policies and of other servers.

    python bench/loadgen.py [--seconds 60] [--models mobilenetv2:15,resnet50:100] [--servers carillon,mlserver,batching,...]
                            [--rivals DIR] [--short 10] [--queries 1500] [--precision 0.05] [--tries 3] [--busy N]

Each model has a target in ms: 99% of the answers have to be there so soon after their queries were due. ResNet-50's own
target, 15 ms, is less than one run of it takes on two cores, so it has 100 ms.

Servers: `carillon` (the default policy), `clockwork`, `symphony`, `orloj`, `edf` (Carillon under these); `mlserver`, whose
environment lies in --rivals (bench/side_by_side.py says how it is made); `batching`: bench/rivals/batching_server.py,
onnxruntime behind gRPC with a largest batch and a delay. MLServer and `batching` get the best of some settings first
(SETTINGS): all at one rate, which rises until one setting is left whose run is VALID, or the quickest of those that were.
All servers have the same ONNX file, two threads of kernels (--threads) and the same client (bench/loadgen_client.py), and
run one at a time; those that wait stay, and do nothing.

Requests to Carillon carry the target, less --allowance ms for the way, as their deadline. Others heed none. A refusal counts
as late: LoadGen hears of it after the target. So refusing helps only as far as others are answered in time.

Search: runs of --short seconds and --queries queries at least, in turns of one run of each server, raise or lower the rate by
steps until one is VALID and one is not, and then halve the distance until it is below --precision. A short run that is INVALID
with fewer than half of its queries late is tried once more, as a stall of the machine makes one so. Then runs of --seconds
decide, again in turns: one VALID is followed by a rate a step higher, one INVALID by one a step lower, then two, then four,
until one is each or --tries are made. The highest VALID rate counts, "over the best of the others" is its ratio to that of the
best other server.

--setting batching=4:2 takes these rows and ms without trying others. --emulated N has policies alone, on N devices that take
the times of bench/overload.py and compute nothing: a busy machine matters less. --busy N runs N busy loops beside all of it.
"""

import argparse
import contextlib
import json
import math
import pathlib
import signal
import subprocess
import sys
import tempfile
import types

import emulated
import harness
import side_by_side
from neighbours import busy_loops
from overload import EMULATED

CLIENT = harness.ROOT / "bench/loadgen_client.py"
POLICIES = ["carillon", "clockwork", "symphony", "orloj", "edf"]
# Of (largest batch, delay in ms).
SETTINGS = {
    "mlserver": [(0, 0), (8, 5)],
    "batching": [(1, 0), (2, 0), (4, 0), (8, 0), (4, 2), (8, 5)],
}
NEAR = 0.5  # of the queries late: a run that is INVALID by fewer may be so by a stall


class Search:
    """For the highest rate at which runs are VALID: next rate, and what its run said. It looks for a valid and an invalid
    rate by steps, then between them; no run is needed any more once `rate` is None."""

    def __init__(self, start, precision, step=1.3, least=0.5):
        self.rate, self.precision, self.step, self.least = start, precision, step, least
        self.valid = self.invalid = None
        self.doubted = False

    def tell(self, valid, near=False):
        """`near`: an invalid run that may have been valid but for a stall; one at each rate is tried again."""
        if not valid and near and not self.doubted:
            self.doubted = True
            return
        self.doubted = False
        if valid:
            self.valid = max(self.rate, self.valid or 0)
        else:
            self.invalid = min(self.rate, self.invalid or math.inf)
        if self.invalid is None:
            self.rate = self.valid * self.step
        elif self.valid is None:
            lower = self.invalid / self.step
            self.rate = lower if lower >= self.least else None
        elif self.invalid <= self.valid * (1 + self.precision):
            self.rate = None
        else:
            self.rate = math.sqrt(self.valid * self.invalid)


class Confirmation:
    """Long runs from a rate on: up while they are VALID, else down by ever more; at most so many."""

    def __init__(self, start, precision, tries):
        self.rate, self.step, self.left, self.down = start, 1 + precision, tries, 1
        self.valid = self.invalid = None

    def tell(self, valid, near=False):
        self.left -= 1
        if valid:
            self.valid = max(self.rate, self.valid or 0)
            self.rate = self.valid * self.step
        else:
            self.invalid = min(self.rate, self.invalid or math.inf)
            self.rate = self.invalid / self.step**self.down
            self.down *= 2
        if self.left == 0 or (self.valid and self.invalid):
            self.rate = None


class Bench:
    def __init__(self, args, model, target_ms, folder):
        self.args, self.model, self.target_ms, self.folder = args, model, target_ms, folder
        self.addresses, self.runs = {}, []
        if not args.emulated:
            self.file = harness.samples(args.repository, model).resolve() / model / "1" / "model.onnx"

    def start(self, stack, name, setting=None):
        """Starts the server, which `stack` ends, and returns its address."""
        if name in POLICIES:
            if self.args.emulated:
                repository, profile = self.made_up()
                options = emulated.devices(profile, self.args.emulated)
            else:
                repository = stack.enter_context(harness.only(self.args.repository, self.model))
                options = ["--threads", self.args.threads, "--memory", self.args.memory]
            options = ["--scheduler", name, *options, *self.args.option]
            return f"127.0.0.1:{stack.enter_context(harness.Server(repository, *options)).grpc}"
        folder = self.folder / f"{name}_{setting[0]}_{setting[1]:g}"
        folder.mkdir(exist_ok=True)
        if name == "mlserver":
            told = types.SimpleNamespace(rivals=self.args.rivals, files={self.model: self.file}, threads=self.args.threads)
            rival = side_by_side.mlserver(told, self.model, folder, most=setting[0], wait_s=setting[1] / 1000)
            return stack.enter_context(rival).grpc_url.removeprefix("grpc://")
        port = harness.free_port()
        command = [sys.executable, side_by_side.RIVALS / "batching_server.py", self.file, self.model, "--grpc", port,
                   "--batch", setting[0], "--delay-ms", setting[1], "--threads", self.args.threads]  # fmt: skip
        stack.enter_context(side_by_side.Rival(command, folder, None)).wait_for_port(port)
        return f"127.0.0.1:{port}"

    def made_up(self):
        folder = self.folder / f"emulated_{self.model}"
        if not folder.exists():
            folder.mkdir()
            emulated.repository(folder, {self.model: EMULATED[self.model]}, 16)
        return folder / "models", folder / "profile.json"

    def run(self, name, address, rate, seconds, what):
        command = [sys.executable, CLIENT, address, self.model, "--rate", f"{rate:.4f}", "--target-ms", self.target_ms,
                   "--seconds", seconds, "--queries", self.args.queries, "--seed", len(self.runs) + 1]  # fmt: skip
        if name in POLICIES:
            command += ["--timeout-ms", max(self.target_ms / 2, self.target_ms - self.args.allowance)]
        done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, text=True)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(map(str, command))} ended with {done.returncode}")
        told = json.loads(done.stdout)
        self.runs.append({"model": self.model, "server": name, "what": what, **told})
        harness.say(f"{self.model} {name} {what}: {rate:.1f}/s {'VALID' if told['valid'] else 'INVALID'}, p99 {told['p99_ms']:.1f} ms, "
                    f"{told['over_latency']} of {told['queries']} late, {told['refused']} refused, {told['failed']} failed"
                    + (f" ({told['why']})" if told["failed"] else ""))
        return told

    def choose(self, name, start):
        """The best of the server's settings."""
        left, rate, last = SETTINGS[name], start, None
        if len(left) == 1:
            return left[0]
        while True:
            told = {}
            for setting in left:
                with contextlib.ExitStack() as stack:
                    address = self.start(stack, name, setting)
                    what = f"{setting[0]} rows, {setting[1]:g} ms"
                    told[setting] = self.run(name, address, rate, self.args.short, what)
                    if not told[setting]["valid"]:  # perhaps the machine stood still
                        told[setting] = self.run(name, address, rate, self.args.short, what)
            valid = [setting for setting in left if told[setting]["valid"]]
            by_p99 = sorted(left, key=lambda setting: told[setting]["p99_ms"])
            if not valid:
                if last is not None or rate < 1:  # those that are left were valid at the rate before
                    return last or by_p99[0]
                rate /= 1.5
                continue
            last = next(setting for setting in by_p99 if setting in valid)
            if len(valid) == 1:
                return last
            left, rate = valid, 1.3 * rate

    def all_in_turns(self, searches, seconds, what):
        """One run of each server, again and again, until no search needs any. Whoever was first is the last next time."""
        names = list(searches)
        while any(search.rate is not None for search in searches.values()):
            for name in names:
                search = searches[name]
                if search.rate is None:
                    continue
                told = self.run(name, self.addresses[name], search.rate, seconds, what)
                search.tell(told["valid"], near=told["over_latency"] < NEAR * told["queries"])
            names = names[1:] + names[:1]

    def measure(self):
        start, names = self.args.start, self.args.servers.split(",")
        if not self.args.emulated:
            _, most, _ = side_by_side.measure(self.file, self.args.threads)
            start = min(most / 2, start)  # of small models the kernels are the least
            harness.say(f"{self.model}: onnxruntime alone does {most:.1f} rows a second; the search begins at {start:.1f}")
        chosen = {name: self.args.setting.get(name) or self.choose(name, start) for name in names if name in SETTINGS}
        with contextlib.ExitStack() as stack:
            for name in names:
                self.addresses[name] = self.start(stack, name, chosen.get(name))
            short = {name: Search(start, self.args.precision) for name in names}
            self.all_in_turns(short, self.args.short, "short")
            found = {name: search.valid for name, search in short.items()}
            long = {name: Confirmation(found[name], self.args.precision, self.args.tries) for name in names if found[name]}
            if self.args.seconds > 0:
                self.all_in_turns(long, self.args.seconds, "long")
                found = {name: long[name].valid if name in long else None for name in names}
        return {"target_ms": self.target_ms, "settings": chosen, "found": found, "short": {n: s.valid for n, s in short.items()}}

    def rows(self, result):
        rows = []
        for name, rate in result["found"].items():
            others = max((r or 0 for other, r in result["found"].items() if other != name), default=0)
            best = [run for run in self.runs if run["server"] == name and run["valid"] and rate and abs(run["rate"] - rate) < 1e-3 * rate]
            said = best[-1] if best else {}
            setting = result["settings"].get(name)
            rows.append([
                self.model, f"{self.target_ms:g} ms", name + (f" ({setting[0]} rows, {setting[1]:g} ms)" if setting else ""),
                f"{rate:.1f}" if rate else "none", f"{rate / others:.2f}" if rate and others else "",
                f"{said['p50_ms']:.1f}, {said['p99_ms']:.1f}" if said else "",
                f"{100 * said['over_latency'] / said['queries']:.2f}%" if said else "",
                f"{100 * said['refused'] / said['queries']:.2f}%" if said else "",
            ])  # fmt: skip
        return rows


def models_of(text):
    try:
        return {name: float(target) for name, target in (part.split(":") for part in text.split(","))}
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' should be MODEL:MILLISECONDS[,MODEL:MILLISECONDS...]") from None


def setting_of(text):
    try:
        name, numbers = text.split("=")
        rows, delay = numbers.split(":")
        if name not in SETTINGS:
            raise ValueError(name)
        return name, (int(rows), float(delay))
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' should be SERVER=ROWS:MILLISECONDS, of {' or '.join(SETTINGS)}") from None


def servers_of(text):
    unknown = [name for name in text.split(",") if name not in POLICIES and name not in SETTINGS]
    if unknown:
        raise argparse.ArgumentTypeError(f"there is no server {', '.join(unknown)}, but {', '.join([*POLICIES, *SETTINGS])}")
    return text


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=models_of, default=models_of("mobilenetv2:15,resnet50:100"))
    parser.add_argument("--servers", type=servers_of, default=",".join([*POLICIES, *SETTINGS]))
    parser.add_argument("--rivals", type=pathlib.Path, default=harness.ROOT / "build/rivals", help="folder with the environment mlserver")
    parser.add_argument("--repository", default=str(harness.ROOT / "build/samples"))
    parser.add_argument("--seconds", type=float, default=60, help="of a run that decides; 0: the short ones do")
    parser.add_argument("--short", type=float, default=10, help="seconds of a run that searches")
    parser.add_argument("--queries", type=int, default=1500, help="of a run, at least; LoadGen believes none of fewer than 662")
    parser.add_argument("--start", type=float, default=200, help="the first rate, at most; else half of what onnxruntime alone does")
    parser.add_argument("--precision", type=float, default=0.05)
    parser.add_argument("--tries", type=int, default=3, help="long runs of a server, at most")
    parser.add_argument("--allowance", type=float, default=2, help="ms of the target that the deadline leaves for the way")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--memory", default="2GiB", help="of each Carillon")
    parser.add_argument("--setting", type=setting_of, action="append", default=[], help="such as batching=4:2, in place of the best")
    parser.add_argument("--emulated", type=int, default=0, help="so many emulated devices")
    parser.add_argument("--option", action="append", default=[], help="for Carillon's servers, such as --option=--miss-rate=0.002")
    parser.add_argument("--busy", type=int, default=0, help="busy loops beside")
    args = parser.parse_args()
    args.rivals, args.setting = args.rivals.resolve(), dict(args.setting)
    if args.emulated and (set(args.servers.split(",")) - set(POLICIES) or set(args.models) - set(EMULATED)):
        parser.error(f"--emulated takes servers {', '.join(POLICIES)} and models {', '.join(EMULATED)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # servers are ended, too
    if "mlserver" in args.servers.split(",") and not (args.rivals / "mlserver/bin/mlserver").is_file():
        parser.error(f"there is no MLServer in {args.rivals}: make it as bench/side_by_side.py says, or leave it out of --servers")
    results, runs, rows = {}, [], []
    with tempfile.TemporaryDirectory() as folder, busy_loops(args.busy), harness.Stalls() as stalls:
        for model, target in args.models.items():
            bench = Bench(args, model, target, pathlib.Path(folder))
            results[model] = bench.measure()
            runs += bench.runs
            rows += bench.rows(results[model])
            harness.save("loadgen", {"seconds": args.seconds, "busy": args.busy, "models": results, "runs": runs})
    harness.table(rows, ["model", "target", "server", "highest valid rate", "over the best of the others", "p50, p99 ms", "late", "refused"])
    print(f"the machine stood still {stalls.count} times for more than 5 ms, {stalls.worst_ms:.0f} ms at most")


if __name__ == "__main__":
    main()
