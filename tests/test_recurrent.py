"""Recurrent models on the CPU engine, against onnxruntime: as torch exports them, and nodes with every attribute.

CARILLON_RUN_MODEL names the program if it is not in build/release.
"""
import json
import subprocess
import warnings

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from test_sample_models import program

BATCHES = [1, 2, 7]
STEPS, WIDTH, HIDDEN = 12, 20, 24
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def compare(file, inputs, folder, limit=1e-5):
    """The engine's outputs beside onnxruntime's; `inputs` by batch size."""
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    for batch, arrays in inputs.items():
        (folder / str(batch)).mkdir()
        for i, array in enumerate(arrays):
            array.tofile(folder / str(batch) / f"in_{i}.bin")
    done = subprocess.run([program(), "--model", file, "--data", folder, "--batches", ",".join(map(str, inputs)),
                           "--threads", "2"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    names = [spec.name for spec in session.get_inputs()]
    assert [spec["name"] for spec in json.loads(done.stdout)["inputs"]] == names
    for batch, arrays in inputs.items():
        for i, want in enumerate(session.run(None, dict(zip(names, arrays)))):
            got = np.fromfile(folder / str(batch) / f"out_{i}.bin", want.dtype).reshape(want.shape)
            assert np.isfinite(got).all(), f"batch {batch}, output {i}"
            error = np.abs(got.astype(np.float64) - want).max() / max(1, np.abs(want).max())
            assert error <= limit, f"batch {batch}, output {i}"


def sequences(batches=BATCHES):
    random = np.random.default_rng(5)
    return {batch: [random.standard_normal((batch, STEPS, WIDTH)).astype(np.float32)] for batch in batches}


@pytest.mark.parametrize("kind", ["lstm", "bidirectional_gru", "rnn"])
def test_what_torch_exports_agrees_with_onnxruntime(kind, tmp_path):
    torch = pytest.importorskip("torch", reason="torch is not installed: run tools/setup --with-samples")

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(3)
            self.layers = {"lstm": lambda: torch.nn.LSTM(WIDTH, HIDDEN, num_layers=2, batch_first=True),
                           "bidirectional_gru": lambda: torch.nn.GRU(WIDTH, HIDDEN, num_layers=2, batch_first=True,
                                                                     bidirectional=True),
                           "rnn": lambda: torch.nn.RNN(WIDTH, HIDDEN, batch_first=True)}[kind]()
            self.head = torch.nn.Linear(HIDDEN * (2 if kind == "bidirectional_gru" else 1), 5)

        def forward(self, x):
            y, states = self.layers(x)
            last = states[0] if kind == "lstm" else states
            return self.head(y), last.transpose(0, 1)

    file = tmp_path / "model.onnx"
    model = Model().eval()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the exporter is the older one, and about traced shapes
        torch.onnx.export(model, (torch.zeros(2, STEPS, WIDTH),), str(file), dynamo=False, opset_version=17,
                          input_names=["x"], output_names=["y", "last"],
                          dynamic_axes={name: {0: "batch"} for name in ["x", "y", "last"]})
        compare(file, sequences(), tmp_path)
        x = sequences([3])[3][0]
        wanted = [tensor.numpy() for tensor in model(torch.from_numpy(x))]
    (tmp_path / "torch" / "3").mkdir(parents=True)
    x.tofile(tmp_path / "torch" / "3" / "in_0.bin")
    done = subprocess.run([program(), "--model", file, "--data", tmp_path / "torch", "--batches", "3"],
                          capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    for i, want in enumerate(wanted):
        got = np.fromfile(tmp_path / "torch" / "3" / f"out_{i}.bin", np.float32).reshape(want.shape)
        assert np.abs(got - want).max() <= 1e-5


def node_model(op, direction, lengths=False, operands=("B",), **attributes):
    """x [n, STEPS, WIDTH] through one node, whose outputs come back with the batch in front."""
    random = np.random.default_rng(7)
    directions, rows = (2 if direction == "bidirectional" else 1), GATES[op] * HIDDEN
    weights = {"W": random.standard_normal((directions, rows, WIDTH)) / 4,
               "R": random.standard_normal((directions, rows, HIDDEN)) / 4}
    if "B" in operands:
        weights["B"] = random.standard_normal((directions, 2 * rows)) / 3
    if "P" in operands:
        weights["P"] = random.standard_normal((directions, 3 * HIDDEN)) / 2
    initializers = [numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()]
    inputs = ["t", "W", "R", "B" if "B" in operands else "", "lengths" if lengths else "", "", "",
              "P" if "P" in operands else ""]
    while not inputs[-1]:
        inputs.pop()
    states = ["y_h", "y_c"] if op == "LSTM" else ["y_h"]
    nodes = [helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0, 2]),
             helper.make_node(op, inputs, ["y", *states], direction=direction, hidden_size=HIDDEN, **attributes),
             helper.make_node("Transpose", ["y"], ["out"], perm=[2, 0, 1, 3])]
    nodes += [helper.make_node("Transpose", [state], [f"out_{state}"], perm=[1, 0, 2]) for state in states]
    given = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", STEPS, WIDTH])]
    if lengths:
        given.append(helper.make_tensor_value_info("lengths", TensorProto.INT32, ["n"]))
    results = [helper.make_tensor_value_info("out", TensorProto.FLOAT, ["n", STEPS, directions, HIDDEN])]
    results += [helper.make_tensor_value_info(f"out_{state}", TensorProto.FLOAT, ["n", directions, HIDDEN])
                for state in states]
    graph = helper.make_graph(nodes, "recurrent", given, results, initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)
    onnx.checker.check_model(model)
    return model


CASES = {
    "usual": {},
    "without_bias": {"operands": ()},
    "lengths": {"lengths": True},
    "clip": {"clip": 0.3},
    "peepholes": {"op": "LSTM", "operands": ("B", "P")},
    "input_forget": {"op": "LSTM", "input_forget": 1},
    "linear_before_reset": {"op": "GRU", "linear_before_reset": 1},
    "linear_before_reset_and_lengths": {"op": "GRU", "linear_before_reset": 1, "lengths": True},
    "activations": {"activations": {"LSTM": ["HardSigmoid", "ScaledTanh", "Softsign"], "GRU": ["HardSigmoid", "LeakyRelu"],
                                    "RNN": ["Affine"]},
                    "activation_alpha": [0.25, 0.75, 0.5], "activation_beta": [0.5, 0.75, 0.25]},
    "default_alphas": {"activations": {"LSTM": ["HardSigmoid", "Tanh", "Elu"], "GRU": ["Sigmoid", "Softplus"],
                                       "RNN": ["LeakyRelu"]}},
}


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("case,op", [(case, op) for case in CASES for op in GATES if CASES[case].get("op", op) == op])
def test_nodes_agree_with_onnxruntime(case, op, direction, tmp_path):
    options = {name: value for name, value in CASES[case].items() if name != "op"}
    twice = 2 if direction == "bidirectional" else 1
    for name in ["activation_alpha", "activation_beta"]:
        if name in options:
            options[name] = options[name] * twice
    if "activations" in options:
        options["activations"] = options["activations"][op] * twice
    file = tmp_path / "model.onnx"
    onnx.save(node_model(op, direction, **options), file)
    inputs = sequences()
    if options.get("lengths"):
        random = np.random.default_rng(9)
        for batch, arrays in inputs.items():
            arrays.append(random.integers(0, STEPS + 1, size=batch).astype(np.int32))
    compare(file, inputs, tmp_path)
