#!/usr/bin/env python3
"""Damaged models and configs, thousands of them, ordered from one live server: does it survive, and does it say why?

Three models and three configs (bench/damage.py) are damaged by seed. Each damaged copy is put into the repository of a
server in explicit mode, an order to load it is sent, and, where that succeeds, a request. What must come of it:

- a refusal with words (an HTTP error below 500 or 503; its text names the model, is printable, and shorter than 4 KiB);
- or answers as onnxruntime's (a process of its own) for the same file, inputs and sizes;
- and in either case a server that lives, within --time for an order and --memory above what it had before the first.

What onnxruntime refuses and Carillon serves is no fault by itself; it is listed by onnxruntime's reason. Where onnxruntime
without its graph optimisations does not agree with itself, or weights are not finite or huge (its LSTM makes numbers of
NaN), numbers are not compared. After a crash or a hang a new server
goes on. The exit status is 1 where anything was found.

    python bench/damaged.py [--copies 1000] [--only model:reader,text:quantised] [--json FILE] [--keep DIR]
    python bench/damaged.py --only model:reader --first 417 --copies 1     # one again
"""

import argparse
import collections
import contextlib
import http.client
import json
import multiprocessing
import pathlib
import re
import resource
import sys
import tempfile
import time

import numpy as np

import damage
import harness

sys.path.insert(0, str(harness.ROOT / "python"))
from carillon_models.client import TYPES, Client, Refused  # noqa: E402

MIB = 2**20
SUBJECTS = [f"{kind}:{name}" for kind in ("model", "text", "json") for name in damage.MODELS]
MOST_ELEMENTS = 1 << 20  # of an input that is tried
TOLERANCE = {
    "perceptron": 1e-3,
    "reader": 1e-3,
    "quantised": 0.02,
}  # of the largest number; the last: a step of quantisation
OPTIONS = [
    "--model-control-mode",
    "explicit",
    "--page-cache",
    "128 MiB",
    "--io-cache",
    "32 MiB",
    "--workspace",
    "32 MiB",
    "--default-deadline",
    "60000",
    "--threads",
    "1",
]


# -- the other side


def sizes_of(shape):
    """2 for the first open dimension, 3 for others; none where no request could be so large."""
    sizes = [extent if isinstance(extent, int) else (2 if at == 0 else 3) for at, extent in enumerate(shape)]
    fits = all(0 <= extent <= MOST_ELEMENTS for extent in sizes) and np.prod(sizes, dtype=float) <= MOST_ELEMENTS
    return sizes if fits else None


def inputs_for(described):
    """Seeded arrays for [(name, numpy type, shape)]; none where one cannot be made."""
    random = np.random.default_rng(5)
    arrays = {}
    for name, kind, shape in described:
        sizes = sizes_of(shape)
        if kind is None or sizes is None:
            return None
        drawn = (
            random.standard_normal(sizes)
            if np.issubdtype(kind, np.floating)
            else random.integers(0, 2 if kind == np.bool_ else 4, sizes)
        )
        arrays[name] = drawn.astype(kind)
    return arrays


def run_reference(file, optimised):
    import onnxruntime

    numpy_of = {
        "float": np.float32,
        "double": np.float64,
        "float16": np.float16,
        "bool": np.bool_,
        **{f"{sign}int{bits}": np.dtype(f"{sign}int{bits}").type for sign in ("", "u") for bits in (8, 16, 32, 64)},
    }
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    if not optimised:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # noqa: BLE001: of many kinds
        return {"refused": str(error)}
    arrays = inputs_for(
        [(spec.name, numpy_of.get(spec.type[len("tensor(") : -1]), spec.shape) for spec in session.get_inputs()]
    )
    if arrays is None:
        return {"untried": "no input can be made"}
    try:
        outputs = session.run(None, arrays)
    except Exception as error:  # noqa: BLE001
        return {"inputs": arrays, "failed": str(error)}
    return {
        "inputs": arrays,
        "outputs": {spec.name: value for spec, value in zip(session.get_outputs(), outputs, strict=True)},
    }


def reference_loop(pipe):
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
    while True:
        pipe.send(run_reference(*pipe.recv()))


class Reference:
    """onnxruntime in a process of its own, which damaged models may end."""

    def __init__(self):
        self.process = None

    def __call__(self, file, optimised=True):
        if self.process is None:
            context = multiprocessing.get_context("spawn")
            self.pipe, theirs = context.Pipe()
            self.process = context.Process(target=reference_loop, args=(theirs,), daemon=True)
            self.process.start()
            theirs.close()
        with contextlib.suppress(EOFError, OSError):  # it has ended
            self.pipe.send((str(file), optimised))
            if self.pipe.poll(120):
                return self.pipe.recv()
        how = "hangs" if self.process.is_alive() else "crashes"
        self.close()
        return {"refused": f"it {how}"}

    def close(self):
        if self.process is not None:
            self.process.kill()
            self.process.join()
            self.process = None


# -- ours


class Fault(Exception):
    """What must never be."""


class Subject:
    """A live server, its repository, and what is told of each damaged copy."""

    def __init__(self, folder, reference, options, time_s, memory):
        self.folder, self.reference, self.options = folder, reference, options
        self.time_s, self.memory = time_s, memory
        self.server = None
        self.lowest = None
        for name, model in damage.MODELS.items():
            (folder / name / "1").mkdir(parents=True)
            self.restore(name, model)

    def restore(self, name, model=None):
        (self.folder / name / "1" / "model.onnx").write_bytes(
            (model or damage.MODELS[name]).SerializeToString(deterministic=True)
        )
        (self.folder / name / "config.pbtxt").unlink(missing_ok=True)

    def start(self):
        self.server = harness.Server(self.folder, *OPTIONS, *self.options)
        self.connection = http.client.HTTPConnection(f"127.0.0.1:{self.server.http}", timeout=self.time_s)
        self.client = Client(f"127.0.0.1:{self.server.http}", self.time_s)
        self.orders = 0
        # The first that is loaded brings code and pools into memory that are nobody's fault.
        for name in damage.MODELS:
            if name == "perceptron" or self.lowest is None:
                self.restore(name)
                self.order(name, "load")
                self.order(name, "unload")
        self.lowest = self.resident("VmRSS")

    def stop(self):
        if self.server is None:
            return
        server, self.server = self.server, None
        if server.process.poll() is not None:  # it has ended already
            pathlib.Path(server.log.name).unlink()
            return
        server.stop()

    def give_up(self):
        """Of a server that hangs or has gone."""
        if self.server.process.poll() is None:
            self.server.process.kill()
            self.server.process.wait()
        self.stop()

    def resident(self, which):
        text = pathlib.Path(f"/proc/{self.server.process.pid}/status").read_text()
        return int(re.search(rf"^{which}:\s+(\d+)", text, re.M).group(1)) * 1024

    def order(self, name, what, body=b"{}"):
        """The status of an order and its error, if it is one."""
        self.connection.request("POST", f"/v2/repository/models/{name}/{what}", body=body)
        response = self.connection.getresponse()
        said = response.read()
        if response.status == 200:
            return 200, ""
        try:
            text = json.loads(said)["error"]
        except (ValueError, KeyError, TypeError):
            raise Fault(f"{what}: status {response.status} with {said[:200]!r}, which is no error message") from None
        return response.status, text

    def clear(self, what, status, text, name):
        """A refusal that can be read."""
        if status >= 500 and status not in (501, 503, 504):
            raise Fault(f"{what}: status {status}: {text}")
        if name not in text or len(text) > 4096 or len(text) < len(name) + 12:
            raise Fault(f"{what}: no clear error: {text[:300]!r} ({len(text)} characters)")
        if any(ord(letter) < 32 and letter not in "\n\t" for letter in text):
            raise Fault(f"{what}: an error that is not to be printed: {text[:300]!r}")

    def of_model(self, name, data):
        file = self.folder / name / "1" / "model.onnx"
        file.write_bytes(data)
        status, text = self.order(name, "load")
        if status != 200:
            self.clear("load", status, text, name)
            return "refused", text
        theirs = self.reference(file)
        outcome = self.compare(name, file, theirs)
        self.order(name, "unload")
        return outcome

    def compare(self, name, file, theirs):
        arrays = theirs.get("inputs")
        described = self.client.get(f"/v2/models/{name}")
        if arrays is None:
            arrays = inputs_for(
                [
                    (spec["name"], TYPES.get(spec["datatype"]), [e if e >= 0 else "open" for e in spec["shape"]])
                    for spec in described["inputs"]
                ]
            )
        ours = None
        if arrays is not None:
            try:
                ours = self.client.infer(name, arrays)
            except Refused as error:
                status, text = str(error).split(": ", 1)
                self.clear("infer", int(status), text, name if int(status) != 400 else text[:8])
                if "outputs" in theirs:
                    return "served, request refused", text
        if "refused" in theirs:
            return "served, onnxruntime refuses", theirs["refused"]
        if "failed" in theirs:
            return ("served, onnxruntime fails" if ours else "both fail"), theirs["failed"]
        if "untried" in theirs or ours is None:
            return "served, not tried", theirs.get("untried", "no input can be made")
        wrong = self.difference(name, theirs["outputs"], ours)
        if wrong is None:
            return "served, same answers", ""
        if not damage.ordinary(file.read_bytes()):
            return "served, numbers without bounds", wrong
        again = self.reference(file, optimised=False)
        if "outputs" not in again or self.difference(name, theirs["outputs"], again["outputs"]):
            return "served, onnxruntime differs from itself", wrong
        raise Fault(f"answers unlike onnxruntime's: {wrong}")

    @staticmethod
    def difference(name, wanted, got):
        if set(wanted) != set(got):
            return f"outputs {sorted(got)}, wanted {sorted(wanted)}"
        for output, want in wanted.items():
            have = got[output]
            if have.shape != want.shape or have.dtype != want.dtype:
                return f"'{output}' is {have.dtype}{list(have.shape)}, wanted {want.dtype}{list(want.shape)}"
            want, have = want.astype(np.float64), have.astype(np.float64)
            finite = np.isfinite(want)
            if (finite != np.isfinite(have)).any():
                return (
                    f"'{output}' is not finite where it should be, or is: {have.ravel()[:4]}, wanted {want.ravel()[:4]}"
                )
            most = np.abs(want[finite]).max(initial=1e-3)
            error = np.abs(want[finite] - have[finite]).max(initial=0) / most
            if error > TOLERANCE[name]:
                return f"'{output}' is off by {error:.2g} of {most:.3g}: {have.ravel()[:4]}, wanted {want.ravel()[:4]}"
        return None

    def of_config(self, name, order, kind):
        status, text = order
        if status != 200:
            self.clear(f"load with {kind}", status, text, name)
            return "refused", text
        file = self.folder / name / "1" / "model.onnx"
        outcome = self.compare(name, file, self.reference(file))
        self.order(name, "unload")
        return outcome

    def of_text(self, name, data):
        (self.folder / name / "config.pbtxt").write_bytes(data)
        return self.of_config(name, self.order(name, "load"), "a config")

    def of_json(self, name, data):
        body = json.dumps({"parameters": {"config": data}}).encode(errors="surrogatepass")
        return self.of_config(name, self.order(name, "load", body), "a config in JSON")

    def one(self, kind, name, seed):
        """What came of a damaged copy: (outcome, text); the outcome is "FAULT" where it must not be so."""
        if self.server is None:
            self.start()
        data = getattr(damage, f"damaged_{kind}")(name, seed)
        try:
            begin = time.monotonic()
            outcome = getattr(self, f"of_{kind}")(name, data)
            if time.monotonic() - begin > self.time_s:
                raise Fault(f"it took {time.monotonic() - begin:.0f} s")
            grown = self.resident("VmHWM") - self.lowest
            if grown > self.memory:
                raise Fault(f"the server took {grown / MIB:.0f} MiB more at its peak")
            self.orders += 1
            if self.orders == 4000:  # a server loads 8,192 times
                self.stop()
            return outcome
        except Fault as fault:
            with contextlib.suppress(Exception):
                self.order(name, "unload")
            if "at its peak" in str(fault) or "it took" in str(fault):
                self.give_up()
            return "FAULT", str(fault)
        except (OSError, http.client.HTTPException) as error:
            time.sleep(0.5)  # until a process that ends has ended
            ended = self.server.process.poll()
            tail = self.server.tail(3)
            self.give_up()
            return (
                "FAULT",
                (f"the server ended with {ended}" if ended is not None else f"no answer: {error!r}")
                + f"; its log:\n{tail}",
            )
        finally:
            if kind != "json":
                self.restore(name)


def reason_class(text):
    """Texts that differ in names and numbers alone are of one class."""
    text = re.sub(r"/\S+", "PATH", text.splitlines()[0] if text else "")
    return re.sub(
        r"'[^']*'|\"[^\"]*\"|\d+", "_", re.sub(r"\(node_?:?[^)]*\)|node \([^)]*\)|[Nn]ode:\S+", "NODE", text)
    )[:140]


def run(subjects, seeds, options=(), time_s=120, memory=256 * MIB, keep=None, report=lambda text: None):
    """All of it: {"outcomes": {subject: {outcome: count}}, "faults": [...], "listed": [...]}."""
    reference = Reference()
    result = {"outcomes": {}, "faults": [], "listed": []}
    with tempfile.TemporaryDirectory() as folder:
        subject = Subject(pathlib.Path(folder), reference, options, time_s, memory)
        try:
            for which in subjects:
                kind, name = which.split(":")
                counts = result["outcomes"][which] = collections.Counter()
                for done, seed in enumerate(seeds, 1):
                    outcome, text = subject.one(kind, name, seed)
                    counts[outcome] += 1
                    if outcome == "FAULT":
                        result["faults"].append({"subject": which, "seed": seed, "what": text})
                        report(f"\n{which} {seed}: {text}")
                    elif outcome not in ("refused", "served, same answers"):
                        result["listed"].append(
                            {"subject": which, "seed": seed, "outcome": outcome, "reason": text[:500]}
                        )
                    if keep and (outcome == "FAULT" or "onnxruntime" in outcome):
                        pathlib.Path(keep).mkdir(parents=True, exist_ok=True)
                        data = getattr(damage, f"damaged_{kind}")(name, seed)
                        (pathlib.Path(keep) / f"{kind}_{name}_{seed}").write_bytes(
                            data.encode() if isinstance(data, str) else data
                        )
                    if done % 25 == 0 or done == len(seeds):
                        report(f"\r  {which}: {done} of {len(seeds)}, {counts['FAULT']} found ")
                report("\n")
        finally:
            subject.stop()
            reference.close()
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--copies", type=int, default=1000, help="of each subject")
    parser.add_argument("--first", type=int, default=0, help="seed of the first")
    parser.add_argument("--only", default=",".join(SUBJECTS), help=f"of {', '.join(SUBJECTS)}")
    parser.add_argument("--time", type=float, default=120, help="seconds that an order and a request may take together")
    parser.add_argument("--memory", type=float, default=256, help="MiB that the server may take beyond what it had")
    parser.add_argument("--option", action="append", default=[], help="for the server, such as --option=--threads=2")
    parser.add_argument("--json", help="file for all of it")
    parser.add_argument("--keep", help="folder for the copies that something was found with")
    args = parser.parse_args()
    subjects = args.only.split(",")
    for which in subjects:
        if which not in SUBJECTS:
            parser.error(f"--only {which}: there are {', '.join(SUBJECTS)}")
    result = run(
        subjects,
        range(args.first, args.first + args.copies),
        args.option,
        args.time,
        args.memory * MIB,
        args.keep,
        lambda text: print(text, end="", file=sys.stderr, flush=True),
    )
    outcomes = sorted({outcome for counts in result["outcomes"].values() for outcome in counts})
    harness.table(
        [[which, *(counts.get(outcome, 0) for outcome in outcomes)] for which, counts in result["outcomes"].items()],
        ["subject", *outcomes],
    )
    classes = collections.Counter((entry["outcome"], reason_class(entry["reason"])) for entry in result["listed"])
    for (outcome, reason), count in classes.most_common():
        example = next(e for e in result["listed"] if (e["outcome"], reason_class(e["reason"])) == (outcome, reason))
        print(f"{count:5} {outcome} ({example['subject']} {example['seed']}): {reason}")
    for fault in result["faults"]:
        print(f"FAULT {fault['subject']} {fault['seed']}: {fault['what']}")
    if args.json:
        pathlib.Path(args.json).write_text(
            json.dumps({"machine": harness.machine(), "first": args.first, "copies": args.copies, **result}, indent=1)
            + "\n"
        )
    return 1 if result["faults"] else 0


if __name__ == "__main__":
    sys.exit(main())
