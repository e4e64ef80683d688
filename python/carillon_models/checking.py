"""Each file served without a config and asked beside onnxruntime; every file in a child of its own."""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from carillon_quickstart.ports import HOST, free_port

from .arrays import guess, make_inputs
from .catalogue import Input
from .client import Client, Refused
from .judging import judge_all, spread, step_of

QUANTISED = {"dynamic", "qdq", "qoperator"}
IN_BYTES = re.compile(r"Quantize|QLinear|Integer|QGemm")
# onnxruntime finds one range for all rows of a batch, Carillon one for each (engine/cpu/lstm_step.h).
BY_ROWS = "com.microsoft.DynamicQuantizeLSTM"
MODEL = "model"


def check_all(folder: Path, server: Path, only: list[str], again: str, limit: float, threads: int, rounds: int) -> int:
    if not server.is_file():
        raise SystemExit(f"there is no server at {server}")
    store = folder / "results.json"
    results = json.loads(store.read_text()) if store.exists() else {}
    files = [f for f in sorted(folder.glob("*.onnx")) if not f.name.endswith(".tmp.onnx")]
    if missing := set(only) - {f.stem for f in files}:
        raise SystemExit(f"{folder} has no {', '.join(sorted(missing))}")
    for number, file in enumerate(files, 1):
        if only and file.stem not in only:
            continue
        old = results.get(file.stem)
        if old and (again == "none" or again == "failed" and old["loads"] and old.get("right")):
            continue
        results[file.stem] = record = check_in_a_child(file, server, limit, threads, rounds)
        partial = store.with_suffix(".tmp")
        partial.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
        partial.rename(store)
        said = record["reason"] or f"right, {record['difference']:.1e}; {record.get('ratio', 0):.2f} of onnxruntime's time"
        print(f"{number}/{len(files)} {file.stem}: {said[:170]}", flush=True)
    return 0


def check_in_a_child(file: Path, server: Path, limit: float, threads: int, rounds: int) -> dict:
    """onnxruntime may crash or hang on a file as well as the server may."""
    failed = {"loads": False, "right": None, "reason": f"not done in {limit:.0f} s", "cause": "the check itself",
              **described(file)}
    command = [sys.executable, "-m", "carillon_models.checking", str(file.resolve()), str(server), str(limit), str(threads), str(rounds)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                             cwd=Path(__file__).resolve().parents[1])
    try:
        said, errors = child.communicate(timeout=limit + 60)  # it keeps to the limit itself
    except subprocess.TimeoutExpired:
        child.kill()
        child.communicate()
        return failed
    if child.returncode:
        last = (errors.strip().splitlines() or [f"ended with {child.returncode}"])[-1]
        return {**failed, "reason": f"the check ended with {child.returncode}: {last}"}
    return json.loads(said.splitlines()[-1])


def described(file: Path) -> dict:
    side = file.with_suffix(".json")
    known = json.loads(side.read_text()) if side.exists() else {}
    return {"architecture": known.get("architecture", file.stem), "family": known.get("family", "other"),
            "way": known.get("way", "given"), "operators": known.get("operators", [])}


@contextlib.contextmanager
def serving(server: Path, file: Path, threads: int, limit: float):
    """Gives (address, its engine) once the server is ready, or (None, its reason why not)."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        version = folder / "models" / MODEL / "1"
        version.mkdir(parents=True)
        shutil.copyfile(file, version / "model.onnx")
        http, grpc, metrics = (f"{HOST}:{free_port()}" for _ in range(3))
        log = folder / "log"
        with log.open("wb") as sink:
            process = subprocess.Popen([str(server), "serve", "--models", str(folder / "models"), "--http", http, "--grpc", grpc,
                                        "--metrics", metrics, "--page-cache", "256 MiB", "--threads", str(threads), "--plans-at-once"],
                                       stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT)
        try:
            end = time.monotonic() + limit
            while True:
                if process.poll() is not None:
                    yield None, why(log.read_text(errors="replace"), f"the server ended with {process.returncode}")
                    return
                ready, reason = state(http)
                if ready or reason:
                    yield (http, engine_of(log.read_text(errors="replace"))) if ready else (None, reason)
                    return
                if time.monotonic() > end:
                    yield None, f"not ready in {limit:.0f} s"
                    return
                time.sleep(0.1)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                try:
                    process.wait(30)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


def state(address: str) -> tuple[bool, str]:
    """Whether the model is ready, and why it never will be; neither while nobody answers or it still loads."""
    try:
        return Client(address, 5).get(f"/v2/models/{MODEL}/ready").get("ready", False), ""
    except Refused as error:
        text = re.sub(r"^\d+: (the model is not ready: )?|model file '[^']*': ", "", str(error))
        return False, "" if re.search(r"loading|to be loaded", text) else text
    except (OSError, ValueError):
        return False, ""


def engine_of(log: str) -> str:
    """As the server's log says it."""
    found = re.search(r"\b(?:it runs on (\w+)|(\w+) [\w.+-]+ runs it)\b", log)
    return (found[1] or found[2]) if found else "carillon"


def why(log: str, otherwise: str) -> str:
    """The last line of the server's log that tells of an error."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"\b(error|critical)\b", line, re.I)]
    return (errors or lines or [otherwise])[-1]


class Reference:
    def __init__(self, file: Path, threads: int, optimised: bool = True):
        import onnxruntime
        options = onnxruntime.SessionOptions()
        if not optimised:
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 4
        self.session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        self.outputs = [o.name for o in self.session.get_outputs()]

    def specs(self):
        return [(i.name, i.type.removeprefix("tensor(").removesuffix(")"), i.shape) for i in self.session.get_inputs()]

    def run(self, arrays):
        return dict(zip(self.outputs, self.session.run(None, arrays)))


def last_scales(file: Path) -> dict[str, float]:
    """Of each output that comes out of a DequantizeLinear: its scale."""
    import onnx
    from onnx import numpy_helper
    graph = onnx.load(str(file)).graph
    known = {t.name: t for t in graph.initializer}
    outputs = {o.name for o in graph.output}
    return {node.output[0]: float(np.max(numpy_helper.to_array(known[node.input[1]]))) for node in graph.node
            if node.op_type == "DequantizeLinear" and node.output[0] in outputs and node.input[1] in known}


def nudged(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same with the floats' last digits moved."""
    rng = np.random.default_rng(9)
    return {name: array * (1 + rng.choice([-1, 1], array.shape) * 2.0**-22).astype(array.dtype) if array.dtype.kind == "f" else array
            for name, array in arrays.items()}


def rows_alone(run, inputs: list[Input], arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What `run` says of each row of the batch by itself, put together."""
    places = {i.name: i.shape.index(inputs[0].shape[0]) for i in inputs if inputs[0].shape[0] in i.shape and i.name in arrays}
    count = arrays[inputs[0].name].shape[0]
    answers = [run({name: array.take([row], places[name]) if name in places else array for name, array in arrays.items()})
               for row in range(count)]
    together = {}
    for name, first in answers[0].items():
        rows = [np.asarray(answer[name]) for answer in answers]
        batch = next((d for d, n in enumerate(np.shape(first)) if n == 1 and (d == 0 or d == 1 and np.shape(first)[0] != 1)), 0)
        together[name] = np.concatenate(rows, batch)
    return together


def check(file: Path, server: Path, limit: float, threads: int, rounds: int) -> dict:
    record = {"loads": False, "right": None, "reason": "", "cause": "", "difference": None, "engine": "", **described(file)}
    end = time.monotonic() + limit
    try:
        reference = Reference(file, threads)
    except Exception as error:
        return {**record, "reason": f"onnxruntime: {str(error).strip().splitlines()[0]}", "cause": "onnxruntime"}
    shipped = record["way"] == "package"
    quantised = record["way"] in QUANTISED or shipped and any(IN_BYTES.search(o) for o in record["operators"])
    scales = last_scales(file) if quantised else {}
    plain = Reference(file, threads, optimised=False) if quantised or shipped else None
    side = file.with_suffix(".json")
    if side.exists():
        known = json.loads(side.read_text())
        inputs = [Input(**{key: tuple(value) if isinstance(value, list) else value for key, value in i.items()})
                  for i in known["inputs"]]
        sizes = known["sizes"]
    else:
        inputs, sizes = guess(reference.specs())
    taken = {name for name, _, _ in reference.specs()}  # exporters drop what a model does not read
    asked = []
    for at, size in enumerate(sizes):
        arrays = {name: array for name, array in make_inputs(inputs, size, seed=100 + at).items() if name in taken}
        try:
            asked.append((size, arrays, reference.run(arrays)))
        except Exception as error:  # the file itself cannot do this size: an exporter's fault
            record.setdefault("sizes_that_onnxruntime_refuses", []).append([size, str(error).strip().splitlines()[0][:300]])
    if not asked:
        return {**record, "right": None, "reason": "onnxruntime takes none of the sizes", "cause": "onnxruntime"}
    with serving(server, file, threads, limit / 2) as (address, said):
        if address is None:
            return {**record, "reason": said, "cause": "load"}
        record["loads"] = True
        client = Client(address, max(5.0, end - time.monotonic()))
        record["engine"] = said
        record["difference"] = 0.0
        for size, arrays, want in asked:
            try:
                got = client.infer(MODEL, arrays)
            except (Refused, OSError) as error:
                return {**record, "right": False, "reason": f"at {size}: {error}", "cause": "refused"}
            want = {name: np.asarray(array) for name, array in want.items()}
            others = [plain.run(arrays)] if plain else []
            if shipped:
                others.append(reference.run(nudged(arrays)))
                if BY_ROWS in record["operators"] and len(arrays[inputs[0].name]) > 1:
                    others.append(rows_alone(reference.run, inputs, arrays))
            own = {name: spread(array, [np.asarray(other[name]) for other in others]) for name, array in want.items()}
            steps = {name: own[name] + (step_of(array, scales.get(name, 0.0)) if quantised else 0) for name, array in want.items()}
            verdict = judge_all(want, got, steps)
            record["difference"] = max(record["difference"], min(verdict.difference, 1e30))
            record["spread"] = max([record.get("spread", 0.0), *(own[name] / max(float(np.abs(array).max(initial=0)), 1e-6)
                                                                  for name, array in want.items() if array.dtype.kind == "f")])
            if not verdict.right:
                return {**record, "right": False, "reason": f"at {size}: {verdict.reason}", "cause": "wrong"}
            record.setdefault("sizes", 0)
            record["sizes"] += 1
            if "ratio" not in record:
                record |= time_both(client, reference, arrays, rounds)
        return {**record, "right": True}


def time_both(client: Client, reference: Reference, arrays, rounds: int) -> dict:
    """Medians of turns: ours from the server's own statistics, so that no client and no wire is in it."""
    spent = lambda: client.get(f"/v2/models/{MODEL}/stats")["model_stats"][0]["inference_stats"]["compute_infer"]
    for _ in range(2):
        client.infer(MODEL, arrays)
        reference.run(arrays)
    ours, theirs = [], []
    for _ in range(rounds):
        before = spent()
        client.infer(MODEL, arrays)
        after = spent()
        ours.append((after["ns"] - before["ns"]) / max(1, after["count"] - before["count"]) / 1e6)
        start = time.perf_counter()
        reference.run(arrays)
        theirs.append(1e3 * (time.perf_counter() - start))
    mine, other = statistics.median(ours), statistics.median(theirs)
    return {"ours_ms": mine, "onnxruntime_ms": other, "ratio": mine / other if other else 0.0}


def main() -> None:
    parser = argparse.ArgumentParser(description="Checks one file; prints its record as a line of JSON.")
    parser.add_argument("file", type=Path)
    parser.add_argument("server", type=Path)
    parser.add_argument("limit", type=float)
    parser.add_argument("threads", type=int)
    parser.add_argument("rounds", type=int)
    options = parser.parse_args()
    print(json.dumps(check(options.file, options.server, options.limit, options.threads, options.rounds)))


if __name__ == "__main__":
    main()
