"""How fast is the CPU engine beside onnxruntime and OpenVINO, on the same models and threads, in one run?

    python bench/compare_engines.py --models DIR [--names resnet50,mobilenetv2,distilbert] [--batches 1,8]
                                    [--precision f32|bf16|both] [--threads T] [--rounds N] [--seconds S] [--json]

DIR is a repository as `python -m carillon_samples` writes it (made there where models are missing). Each engine is a
process of its own that runs only in its turn; the engines take turns in every round, in changing order, so that a
machine that gets slower or busier does so for all of them. A ratio compares the turns of one round; what is told is
the median over rounds and their range. onnxruntime has no bf16 on CPUs and is left out there.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

from harness import RESULTS, ROOT, machine, samples, say

PROGRAM = pathlib.Path(os.environ.get("CARILLON_ENGINE_BENCH", ROOT / "build/release/carillon_engine_bench"))
OURS, ORT, OPENVINO = "carillon", "onnxruntime", "openvino"


# --- One engine, in a process of its own: the worker's side ---------------------------------------------------------

def make_inputs(specs, batch):
    """Like Runner::fill_inputs: floats from a normal distribution, whole numbers 0 or 1."""
    import numpy as np

    random = np.random.default_rng(1)
    inputs = {}
    for name, kind, shape in specs:
        shape = [batch if not isinstance(n, int) or n < 0 else n for n in shape]
        if "float" in kind or kind == "f32":
            inputs[name] = random.standard_normal(shape, dtype=np.float32).astype("float16" if "16" in kind else "float32")
        else:
            inputs[name] = random.integers(0, 2, shape).astype(np.int32 if "32" in kind else bool if "bool" in kind else np.int64)
    return inputs


def onnxruntime_runner(model, batch, threads, _precision):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    inputs = make_inputs([(i.name, i.type, i.shape) for i in session.get_inputs()], batch)
    return lambda: session.run(None, inputs)


def openvino_runner(model, batch, threads, precision):
    import openvino

    core = openvino.Core()
    network = core.read_model(model)
    network.reshape({port.get_any_name(): [batch if n.is_dynamic else n.get_length() for n in port.partial_shape]
                     for port in network.inputs})
    compiled = core.compile_model(network, "CPU", {
        "INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1, "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": precision})
    request = compiled.create_infer_request()
    specs = [(p.get_any_name(), p.get_element_type().get_type_name(), list(p.shape)) for p in compiled.inputs]
    inputs = make_inputs(specs, batch)
    for name, array in inputs.items():
        request.set_tensor(name, openvino.Tensor(array, shared_memory=True))
    return lambda: request.infer(share_inputs=True, share_outputs=True)


def work(engine, model, batch, threads, precision):
    run = {ORT: onnxruntime_runner, OPENVINO: openvino_runner}[engine](model, batch, threads, precision)
    for _ in range(3):
        run()
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        took = []
        before = time.perf_counter()
        end = before + float(line)
        while before < end or len(took) < 3:
            run()
            after = time.perf_counter()
            took.append(after - before)
            before = after
        took.sort()
        mean = sum(took) / len(took)
        print(json.dumps({"runs": len(took), "mean_ms": 1e3 * mean, "min_ms": 1e3 * took[0],
                          "p50_ms": 1e3 * took[len(took) // 2], "p99_ms": 1e3 * took[int(0.99 * (len(took) - 1))],
                          "per_s": batch / mean}), flush=True)


# --- The side that compares -----------------------------------------------------------------------------------------

class Engine:
    def __init__(self, name, model, batch, threads, precision):
        self.name, self.turns = name, []
        if name == OURS:
            command = [str(PROGRAM), "--rounds", "--model", model, "--batch", str(batch), "--threads", str(threads),
                       "--precision", precision]
        else:
            command = [sys.executable, __file__, "--worker", name, model, str(batch), str(threads), precision]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.answer()

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended with {self.process.wait()}")
        return json.loads(line)

    def turn(self, seconds):
        self.process.stdin.write(f"{seconds}\n")
        self.process.stdin.flush()
        self.turns.append(self.answer())

    def stop(self):
        self.process.stdin.close()
        self.process.wait(30)


def spread(values):
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def compare(model, batch, precision, options, names=None):
    if names is None:
        names = [OURS, OPENVINO] if precision == "bf16" else [OURS, ORT, OPENVINO]
    engines = [Engine(name, str(model), batch, options.threads, precision) for name in names]
    try:
        for i in range(options.rounds):
            first = i % len(engines)
            for engine in engines[first:] + engines[:first]:
                engine.turn(options.seconds)
    finally:
        for engine in engines:
            engine.stop()
    result = {"engines": {}, "ratios": {}}
    for engine in engines:
        result["engines"][engine.name] = {
            "per_s": spread([t["per_s"] for t in engine.turns]),
            "p50_ms": statistics.median(t["p50_ms"] for t in engine.turns),
            "p99_ms": statistics.median(t["p99_ms"] for t in engine.turns)}
    for other in engines[1:]:
        result["ratios"][other.name] = spread(
            [a["per_s"] / b["per_s"] for a, b in zip(engines[0].turns, other.turns)])
    return result


def main():
    if sys.argv[1:2] == ["--worker"]:
        engine, model, batch, threads, precision = sys.argv[2:]
        return work(engine, model, int(batch), int(threads), precision)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=ROOT / "build/samples", help="a repository of sample models")
    parser.add_argument("--names", default="resnet50,mobilenetv2,distilbert")
    parser.add_argument("--batches", default="1,8")
    parser.add_argument("--precision", choices=["f32", "bf16", "both"], default="f32")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=1.0, help="of a turn")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if not PROGRAM.exists():
        raise SystemExit(f"{PROGRAM} is missing: cmake --preset release && cmake --build --preset release")
    names = options.names.split(",")
    folder = samples(options.models, *names)
    precisions = ["f32", "bf16"] if options.precision == "both" else [options.precision]
    report = {"machine": machine(), "threads": options.threads, "rounds": options.rounds, "cases": []}
    rows = []
    for precision in precisions:
        for name in names:
            for batch in map(int, options.batches.split(",")):
                say(f"{name} batch {batch} {precision}: {options.rounds} rounds")
                case = compare(folder / name / "1/model.onnx", batch, precision, options)
                report["cases"].append({"model": name, "batch": batch, "precision": precision, **case})
                for engine, figures in case["engines"].items():
                    ratio = case["ratios"].get(engine)
                    rows.append([name, batch, precision, engine, f"{figures['per_s']['median']:.1f}",
                                 f"{figures['p50_ms']:.3f}", f"{figures['p99_ms']:.3f}",
                                 f"{ratio['median']:.2f} ({ratio['min']:.2f} to {ratio['max']:.2f})" if ratio else ""])
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "compare_engines.json").write_text(json.dumps(report, indent=1))
    if options.json:
        print(json.dumps(report))
        return None
    header = ["model", "batch", "precision", "engine", "per s", "p50 ms", "p99 ms", "ours / this"]
    widths = [max(len(str(row[i])) for row in [header, *rows]) for i in range(len(header))]
    for row in [header, *rows]:
        print("  ".join(str(cell).ljust(width) for cell, width in zip(row, widths)).rstrip())
    return None


if __name__ == "__main__":
    main()
