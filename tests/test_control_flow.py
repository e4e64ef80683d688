"""Models with branches and loops on the CPU engine, against onnxruntime: random ones, and the sample that exits early.

CARILLON_RUN_MODEL names the program if it is not in build/release.
"""
import subprocess

import numpy as np
import onnx
import onnxruntime
import pytest
from carillon_samples.__main__ import main as make_samples
from carillon_samples.early_exit_cnn import images
from onnx import TensorProto, helper, numpy_helper
from test_sample_models import program

WIDTH = 8
BATCHES = [1, 2, 3, 4]


class Maker:
    """Random graphs over values of shape [n, WIDTH]. Names are dealt out over all graphs of a model."""

    def __init__(self, seed):
        self.random = np.random.default_rng(seed)
        self.count = 0

    def name(self):
        self.count += 1
        return f"v{self.count}"

    def constant(self, array):
        return numpy_helper.from_array(np.asarray(array), self.name())

    def any(self, seen):
        return seen[self.random.integers(max(0, len(seen) - 4), len(seen))]

    def condition(self, graph, of):
        """A node that says whether the largest element is above a bound."""
        bound = self.constant(np.float32(self.random.normal() + 1))
        most, result = self.name(), self.name()
        graph["weights"].append(bound)
        graph["nodes"] += [helper.make_node("ReduceMax", [of], [most], keepdims=0),
                           helper.make_node("Greater", [most, bound.name], [result])]
        return result

    def fill(self, graph, seen, depth, count):
        """Adds nodes that see the values `seen`; their results are seen, too."""
        for _ in range(count):
            kind = self.random.choice(["product", "Tanh", "Relu", "Add", "Sub"] + (["if", "loop"] * 2 if depth < 3 else []))
            if kind == "if":
                seen += self.branch(graph, seen, depth)
            elif kind == "loop":
                seen += self.loop(graph, seen, depth)
            else:
                result = self.name()
                inputs = [self.any(seen)]
                if kind == "product":
                    weight = self.constant(self.random.normal(size=(WIDTH, WIDTH)).astype(np.float32) / 3)
                    graph["weights"].append(weight)
                    inputs.append(weight.name)
                elif kind in ("Add", "Sub"):
                    inputs.append(self.any(seen))
                graph["nodes"].append(helper.make_node("MatMul" if kind == "product" else kind, inputs, [result]))
                seen.append(result)

    def graph(self, name, inputs, outer, depth, count, outputs, condition=None):
        """A body that gives `outputs` values; before them a condition, of data or the one named."""
        graph = {"nodes": [], "weights": []}
        seen = outer + [i.name for i in inputs if i.type.tensor_type.shape.dim]
        self.fill(graph, seen, depth, count)
        given = []
        if condition is not None:
            result = self.name()
            decides = self.condition(graph, self.any(seen)) if condition == "" else condition
            graph["nodes"].append(helper.make_node("Identity", [decides], [result]))
            given.append(helper.make_tensor_value_info(result, TensorProto.BOOL, []))
        for _ in range(outputs):
            result = self.name()
            graph["nodes"].append(helper.make_node("Identity", [self.any(seen)], [result]))
            given.append(helper.make_tensor_value_info(result, TensorProto.FLOAT, ["n", WIDTH]))
        return helper.make_graph(graph["nodes"], name, inputs, given, graph["weights"])

    def branch(self, graph, seen, depth):
        count = int(self.random.integers(1, 3))
        decides = self.condition(graph, self.any(seen))
        bodies = [self.graph(name, [], seen, depth + 1, int(self.random.integers(0, 4)), count)
                  for name in ("then", "else")]
        results = [self.name() for _ in range(count)]
        graph["nodes"].append(helper.make_node("If", [decides], results, then_branch=bodies[0], else_branch=bodies[1]))
        return results

    def loop(self, graph, seen, depth):
        carried = int(self.random.integers(1, 3))
        trips = self.constant(np.int64(self.random.integers(0, 5)))
        graph["weights"].append(trips)
        scans = bool(self.random.integers(0, 2)) and int(numpy_helper.to_array(trips)) > 0
        iteration, going_on = self.name(), self.name()
        inputs = [helper.make_tensor_value_info(iteration, TensorProto.INT64, []),
                  helper.make_tensor_value_info(going_on, TensorProto.BOOL, [])]
        inputs += [helper.make_tensor_value_info(self.name(), TensorProto.FLOAT, ["n", WIDTH]) for _ in range(carried)]
        body = self.graph("body", inputs, seen, depth + 1, int(self.random.integers(1, 4)), carried + scans,
                          condition=going_on if scans else "")
        before = "" if scans or self.random.integers(0, 2) else self.condition(graph, self.any(seen))
        results = [self.name() for _ in range(carried + scans)]
        graph["nodes"].append(helper.make_node("Loop", [trips.name, before] + [self.any(seen) for _ in range(carried)],
                                               results, body=body))
        if scans:  # one row an iteration, brought back to the common shape
            axes, total = self.constant(np.array([0], np.int64)), self.name()
            graph["weights"].append(axes)
            graph["nodes"].append(helper.make_node("ReduceSum", [results.pop(), axes.name], [total], keepdims=0))
            results.append(total)
        return results

    def model(self):
        graph = {"nodes": [], "weights": []}
        seen = ["x"]
        self.fill(graph, seen, 0, 6)
        value = lambda name: helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", WIDTH])  # noqa: E731
        made = helper.make_graph(graph["nodes"], "random", [value("x")], [value(name) for name in seen[1:]],
                                 graph["weights"])
        model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.checker.check_model(model)
        return model


def compare(file, inputs, folder, limit=1e-4):
    """The engine's outputs against onnxruntime's; `inputs` by batch size. Gives onnxruntime's."""
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    for batch, array in inputs.items():
        (folder / str(batch)).mkdir()
        array.tofile(folder / str(batch) / "in_0.bin")
    done = subprocess.run([program(), "--model", file, "--data", folder, "--batches", ",".join(map(str, inputs)),
                           "--threads", "1"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    answers = {}
    for batch, array in inputs.items():
        answers[batch] = session.run(None, {session.get_inputs()[0].name: array})
        for i, want in enumerate(answers[batch]):
            got = np.fromfile(folder / str(batch) / f"out_{i}.bin", want.dtype).reshape(want.shape)
            assert np.isfinite(got).all(), f"batch {batch}, output {i}"
            error = np.abs(got.astype(np.float64) - want).max() / max(1, np.abs(want).max())
            assert error <= limit, f"batch {batch}, output {i}"
    return answers


@pytest.mark.parametrize("seed", range(20))
def test_random_models_agree_with_onnxruntime(seed, tmp_path):
    model = Maker(seed).model()
    file = tmp_path / "model.onnx"
    onnx.save(model, file)
    random = np.random.default_rng(seed)
    inputs = {batch: (random.standard_normal((batch, WIDTH)) * scale).astype(np.float32)
              for batch, scale in zip(BATCHES, (1, 0.1, 3, -1))}
    compare(file, inputs, tmp_path)


@pytest.mark.parametrize("easy", [True, False])
def test_the_early_exit_agrees_with_onnxruntime(easy, tmp_path):
    assert make_samples(["--out", str(tmp_path / "models"), "--models", "early_exit_cnn"]) == 0
    inputs = {batch: images([easy] * batch, seed=batch) for batch in (1, 2, 8)}
    answers = compare(tmp_path / "models" / "early_exit_cnn" / "1" / "model.onnx", inputs, tmp_path)
    for batch, (_, exits) in answers.items():
        assert (exits == (0 if easy else 1)).all(), f"batch {batch}"
