"""Sizes and whole numbers that data give to OpenVINO: what ONNX has, or a 400 that names the node and costs nobody else."""

from __future__ import annotations

import json
import time

import numpy as np
import pytest
import tritonclient.http as http_client
from onnx import TensorProto, helper, numpy_helper
from tritonclient.utils import InferenceServerException

from loopback import serving, write_model
from raw_http import MINUTE
from test_gone_clients import wait_until

FLOAT, INT64, BOOL, DOUBLE = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL, TensorProto.DOUBLE
TYPES = {np.dtype(np.float32): (FLOAT, "FP32"), np.dtype(np.int64): (INT64, "INT64"), np.dtype(np.float64): (DOUBLE, "FP64"),
         np.dtype(bool): (BOOL, "BOOL")}
ROOM = 8 << 20  # bytes of the server's workspaces
TOO_LARGE = f"at most {ROOM} bytes"


def whole(*numbers):
    return np.array(numbers, np.int64)


def real(*numbers):
    return np.array(numbers, np.float32)


def value(name, shape, type=FLOAT):
    return helper.make_tensor_value_info(name, type, shape)


def constant(name, array):
    return numpy_helper.from_array(np.asarray(array), name)


def node(op, inputs, outputs, **attributes):
    return helper.make_node(op, inputs, outputs, name=f"the_{op}", **attributes)


def count(name, type=FLOAT):
    """How many elements it has: y."""
    return [helper.make_node("Size", [name], ["y"])]


def body(nodes, carried, into, outputs, constants=()):
    return helper.make_graph([helper.make_node("Identity", ["go"], ["on"]), *nodes], "body",
                             [value("i", [], INT64), value("go", [], BOOL), value(carried, into)],
                             [value("on", [], BOOL), *outputs], list(constants))


DOUBLES = body([helper.make_node("Concat", ["v", "v"], ["w"], axis=0)], "v", ["n"], [value("w", ["m"])])
FILLS = body([helper.make_node("Add", ["v", "one"], ["w"]), helper.make_node("Expand", ["v", "wide"], ["s"])], "v", [],
             [value("w", []), value("s", [1000])], [constant("one", np.float32(1)), constant("wide", whole(1000))])
WIDENS = body([helper.make_node("MatMul", ["v", "eye"], ["p"]), helper.make_node("Concat", ["p", "p"], ["w"], axis=1)], "v", ["p", "q"],
              [value("w", ["r", "s"])], [constant("eye", np.eye(3, dtype=np.float32))])
RANGES = body([helper.make_node("Range", ["nought", "v", "step"], ["r"]), helper.make_node("ReduceSum", ["r"], ["w"], keepdims=0)], "v", [],
              [value("w", [], INT64)], [constant("nought", np.int64(0)), constant("step", np.int64(-1))])
RANGES.input[2].CopyFrom(value("v", [], INT64))

IMAGE, PAIR = np.ones((1, 1, 4, 4), np.float32), np.ones((2, 3), np.float32)
FROM_0 = [constant("nought", np.int64(0)), constant("step", np.int64(1))]
COUNTS = node("Range", ["nought", "n", "step"], ["r"])


def range_of(type, *numbers):
    return {name: np.array(number, type) for name, number in zip(("a", "b", "d"), numbers)}


# Of each: nodes, constants, what it answers: [(data, how many elements)], what it refuses: [(data, what is said)].
MODELS = {
    "tiled": ([node("Tile", ["x", "s"], ["t"]), *count("t")], [], [({"x": PAIR, "s": whole(1, 2)}, 12)],
              [({"x": PAIR, "s": whole(2_000_000, 3)}, TOO_LARGE), ({"x": PAIR, "s": whole(2_000_000_000, 2_000_000_000)}, TOO_LARGE)]),
    "expanded": ([node("Expand", ["x", "s"], ["t"]), *count("t")], [], [({"x": PAIR, "s": whole(2, 2, 3)}, 12)],
                 [({"x": PAIR, "s": whole(1_000_000_000, 2, 3)}, TOO_LARGE), ({"x": PAIR, "s": whole(1, 4, 3)}, "cannot be broadcast")]),
    # By the least step OpenVINO ends its process.
    "stepped": ([node("Slice", ["x", "from", "to", "axis", "s"], ["t"]), *count("t")],
                [constant("from", whole(0)), constant("to", whole(3)), constant("axis", whole(1))],
                [({"x": PAIR, "s": whole(1)}, 6), ({"x": PAIR, "s": whole(2)}, 4), ({"x": PAIR, "s": whole(2**31 - 1)}, 2)],
                [({"x": PAIR, "s": whole(-2**31)}, "has the step -2147483648"), ({"x": PAIR, "s": whole(0)}, "has the step 0")]),
    "summed_along": ([node("CumSum", ["x", "a"], ["t"]), node("NonZero", ["t"], ["p"]), *count("p")], [],
                     [({"x": PAIR, "a": np.int64(1)}, 12), ({"x": PAIR, "a": np.int64(-2)}, 12)],
                     [({"x": PAIR, "a": np.int64(2)}, "has the axis 2, of 2"), ({"x": PAIR, "a": np.int64(-3)}, "has the axis -3, of 2")]),
    # OpenVINO takes it out: it gives x, or fails.
    "as_it_is": ([node("Expand", ["x", "s"], ["t"]), *count("t")], [], [({"x": PAIR, "s": whole(*s)}, 6) for s in ((2, 3), (1, 1), (2, 1))],
                 [({"x": PAIR, "s": whole(2, 4)}, "cannot be broadcast"), ({"x": PAIR, "s": whole(-1, 3)}, "an extent of -1")]),
    "filled": ([node("ConstantOfShape", ["s"], ["t"]), *count("t")], [], [({"s": whole(2, 3)}, 6), ({"s": whole(0, 3)}, 0)],
               [({"s": whole(65536, 65536)}, TOO_LARGE), ({"s": whole(2**31 - 1, 2**31 - 1)}, TOO_LARGE)]),
    "padded": ([node("Pad", ["x", "s"], ["t"]), *count("t")], [], [({"x": PAIR, "s": whole(1, 0, 0, 2)}, 15)],
               [({"x": PAIR, "s": whole(300_000_000, 0, 0, 0)}, "[300000002,3], 3600000024 bytes"),
                ({"x": PAIR, "s": whole(0, 0, 2**31 - 1, 2**31 - 1)}, TOO_LARGE), ({"x": PAIR, "s": whole(-3, 0, 0, 0)}, "[-1,3]")]),
    "one_hot": ([node("OneHot", ["s", "n", "v"], ["t"]), *count("t")], [constant("v", real(0, 1))],
                [({"s": whole(0, 2, 1), "n": np.int64(4)}, 12)],
                [({"s": whole(0, 2, 1), "n": np.int64(400_000_000)}, "[3,400000000], 4800000000 bytes"),
                 ({"s": whole(0, 2, 1), "n": np.int64(-1)}, "a depth of -1")]),
    "ranged": ([node("Range", ["a", "b", "d"], ["t"]), *count("t")], [],
               [(range_of(np.int64, *each), n) for each, n in (((0, 5, 1), 5), ((5, 0, -2), 3), ((0, 5, -1), 0), ((5, 0, 1), 0), ((3, -2, 2), 0),
                                                             ((3, 3, 1), 0))],
               [(range_of(np.int64, 0, 2**31 - 1, 1), TOO_LARGE),
                (range_of(np.int64, -(2**31), 2**31 - 1, 2**31 - 1), "32 bits"), (range_of(np.int64, 0, 5, 0), "a delta of 0")]),
    "ranged_real": ([node("Range", ["a", "b", "d"], ["t"]), *count("t")], [],
                    [(range_of(np.float32, *each), n) for each, n in (((0, 5, 1.5), 4), ((0, 5, -1), 0), ((0, 5, np.inf), 0), ((0, -np.inf, 1), 0),
                                                                    ((5, 0, -np.inf), 0))],
                    [(range_of(np.float32, *each), text) for each, text in (((0, np.inf, 1), "the limit infinity"), ((0, np.nan, 1), "the limit NaN"),
                                                                          ((0, 5, np.nan), "the delta NaN"), ((-np.inf, 0, 1), "-infinity"),
                                                                          ((0, 1e30, 1e-3), TOO_LARGE), ((0, 1, 1e-30), TOO_LARGE))]),
    "scaled": ([node("Resize", ["x", "", "f"], ["t"], mode="nearest"), *count("t")], [], [({"x": IMAGE, "f": real(1, 1, 2, 2)}, 64)],
               [({"x": IMAGE, "f": real(1, 1, each, 1)}, "a scale of ") for each in (0, -1, np.inf, np.nan)]
               + [({"x": IMAGE, "f": real(1, 1, 1e5, 1e5)}, TOO_LARGE), ({"x": IMAGE, "f": real(1, 1, 1e30, 1e30)}, TOO_LARGE)]),
    "resized": ([node("Resize", ["x", "", "", "s"], ["t"], mode="linear"), *count("t")], [], [({"x": IMAGE, "s": whole(1, 1, 2, 8)}, 16)],
                [({"x": IMAGE, "s": whole(1, 1, 1_000_000, 1_000_000)}, TOO_LARGE), ({"x": IMAGE, "s": whole(1, 1, -1, 4)}, "a size of -1")]),
    "window": ([node("HannWindow", ["n"], ["t"]), *count("t")], [], [({"n": np.int64(4)}, 4), ({"n": np.int64(1)}, 1)],
               [({"n": np.int64(-1)}, "a size of -1"), ({"n": np.int64(2_000_000_000)}, TOO_LARGE)]),
    "transformed": ([node("DFT", ["x", "n"], ["t"], axis=1), *count("t")], [],
                    [({"x": np.ones((1, 4, 1), np.float32), "n": np.int64(n)}, 2 * n) for n in (4, 2, 7)],
                    [({"x": np.ones((1, 4, 1), np.float32), "n": np.int64(0)}, "a length of 0"),
                     ({"x": np.ones((1, 4, 1), np.float32), "n": np.int64(-1)}, "a length of -1"),
                     ({"x": np.ones((1, 4, 1), np.float32), "n": np.int64(1_000_000_000)}, TOO_LARGE)]),
    # What is made of what data have sized.
    "crossed": ([COUNTS, node("Unsqueeze", ["r", "first"], ["rows"]), node("Unsqueeze", ["r", "second"], ["columns"]),
                 node("Less", ["rows", "columns"], ["t"]), *count("t")], [*FROM_0, constant("first", whole(0)), constant("second", whole(1))],
                [({"n": np.int64(50)}, 2500)], [({"n": np.int64(100_000)}, TOO_LARGE)]),
    "looked_up": ([COUNTS, node("Mod", ["r", "seven"], ["q"]), node("Gather", ["table", "q"], ["t"]), *count("t")],
                  [*FROM_0, constant("seven", np.int64(7)), constant("table", np.ones((7, 512), np.float32))],
                  [({"n": np.int64(50)}, 50 * 512)], [({"n": np.int64(100_000)}, "Gather")]),
    "multiplied": ([node("Expand", ["x", "s"], ["e"]), node("MatMul", ["e", "weights"], ["t"]), *count("t")],
                   [constant("weights", np.ones((3, 2048), np.float32))], [({"x": PAIR, "s": whole(5, 2, 3)}, 5 * 2 * 2048)],
                   [({"x": PAIR, "s": whole(10_000, 2, 3)}, "MatMul")]),
    "convolved": ([node("Resize", ["x", "", "f"], ["e"], mode="nearest"), node("Conv", ["e", "weights"], ["t"]), *count("t")],
                  [constant("weights", np.ones((256, 1, 1, 1), np.float32))], [({"x": IMAGE, "f": real(1, 1, 2, 2)}, 256 * 64)],
                  [({"x": IMAGE, "f": real(1, 1, 100, 100)}, "Convolution")]),
    "one_hot_of_many": ([COUNTS, node("OneHot", ["r", "depth", "v"], ["t"]), *count("t")],
                        [*FROM_0, constant("depth", np.int64(1000)), constant("v", real(0, 1))],
                        [({"n": np.int64(5)}, 5000)], [({"n": np.int64(100_000)}, "OneHot")]),
    # Loops.
    "doubled": ([node("Loop", ["n", "", "x"], ["t"], body=DOUBLES), *count("t")], [],
                [({"x": real(1, 2), "n": np.int64(n)}, 2 * 2**n) for n in (0, 1, 3)], [({"x": real(1, 2), "n": np.int64(40)}, TOO_LARGE)]),
    "collected": ([node("Loop", ["n", "", "x"], ["last", "t"], body=FILLS), *count("t")], [],
                  [({"x": np.float32(1), "n": np.int64(n)}, 1000 * n) for n in (1, 3)], [({"x": np.float32(1), "n": np.int64(1_000_000)}, TOO_LARGE)]),
    "widened": ([node("Loop", ["n", "", "x"], ["t"], body=WIDENS), *count("t")], [],
                [({"x": PAIR, "n": np.int64(n)}, 6 * 2**n) for n in (0, 1)], [({"x": PAIR, "n": np.int64(2)}, "")]),
    "against": ([node("Loop", ["n", "", "s"], ["y"], body=RANGES)], [],
                [({"s": np.int64(5), "n": np.int64(n)}, 5 * (n == 0)) for n in (0, 1, 2)], []),
    # Whole numbers beyond 32 bits.
    "squared": ([node("Mul", ["s", "s"], ["q"]), node("ConstantOfShape", ["q"], ["t"]), *count("t")], [],
                [({"s": whole(3)}, 9)], [({"s": whole(65536)}, "Multiply 'the_Mul' gives 4294967296")]),
    "index": ([node("Mul", ["s", "s"], ["q"]), node("Gather", ["table", "q"], ["t"]), *count("t")], [constant("table", np.ones(9, np.float32))],
              [({"s": whole(2)}, 1)], [({"s": whole(65536)}, "Multiply 'the_Mul' gives 4294967296")]),
    "added": ([node("Add", ["s", "n"], ["y"])], [], [({"s": np.int64(2**31 - 9), "n": np.int64(8)}, 2**31 - 1)],
              [({"s": np.int64(2**31 - 9), "n": np.int64(9)}, "Add 'y' gives 2147483648")]),
    "difference": ([node("Sub", ["s", "n"], ["y"])], [], [({"s": np.int64(-9), "n": np.int64(2**31 - 9)}, -(2**31))],
                   [({"s": np.int64(-9), "n": np.int64(2**31 - 8)}, "Subtract 'y' gives -2147483649")]),
    # Those that OpenVINO computes in FP32.
    "summed": ([node("ReduceSum", ["s"], ["y"], keepdims=0)], [], [({"s": whole(2**24 - 2, 1)}, 2**24 - 1)],
               [({"s": whole(2**24, 1)}, "makes the number 16777217"), ({"s": whole(2**31 - 1, 2**31 - 1)}, "ReduceSum 'y'")]),
    "greatest": ([node("ReduceMax", ["s"], ["y"], keepdims=0)], [], [({"s": whole(2**24 - 1, 1)}, 2**24 - 1)],
                 [({"s": whole(2_000_000_001, 1)}, "ReduceMax 'y' has or makes the number 2000000001")]),
    "equal": ([node("Equal", ["s", "n"], ["e"]), node("Cast", ["e"], ["c"], to=INT64), node("ReduceMax", ["c"], ["y"], keepdims=0)], [],
              [({"s": whole(7, 8), "n": np.int64(8)}, 1), ({"s": whole(7, 8), "n": np.int64(6)}, 0)],
              [({"s": whole(7, 16777217), "n": np.int64(16777216)}, "Equal 'the_Equal'")]),
    "remainder": ([node("Mod", ["s", "n"], ["y"])], [], [({"s": np.int64(2**24 - 1), "n": np.int64(2)}, 1)],
                  [({"s": np.int64(2**24 + 1), "n": np.int64(2)}, "16777217")]),
    "cast": ([node("Cast", ["f"], ["c"], to=INT64), node("ReduceMax", ["c"], ["y"], keepdims=0)], [], [({"f": real(-7.5, 2.5)}, 2)],
             [({"f": real(3e9, 1)}, "Convert 'the_Cast' gives 3000000000")]),
    "divided": ([node("Div", ["s", "n"], ["d"]), node("ReduceMax", ["d"], ["y"], keepdims=0)], [], [({"s": whole(9, 7), "n": np.int64(2)}, 4)],
                [({"s": whole(9, 7), "n": np.int64(0)}, "Divide 'the_Div' divides by 0")]),
    "pooled": ([node("RoiAlign", ["x", "f", "s"], ["t"], output_height=2, output_width=2, sampling_ratio=1), helper.make_node("ReduceSum", ["t"], ["u"], keepdims=0),
                helper.make_node("Cast", ["u"], ["y"], to=INT64)], [],
               [({"x": IMAGE, "f": real(0, 0, 2, 2).reshape(1, 4), "s": whole(0)}, 4)],
               [({"x": IMAGE, "f": real(0, 0, 2, 2).reshape(1, 4), "s": whole(each)}, f"batch index {each}; it must be 0 to 0") for each in (-1, 1)]
               + [({"x": IMAGE[:0], "f": real(0, 0, 2, 2).reshape(1, 4), "s": whole(0)}, "has an operand without elements, 'x'")]),
}
# Rows that data leave to a recurrence: none, too.
for op, gates in (("LSTM", 4), ("GRU", 3), ("RNN", 1)):
    MODELS[op.lower()] = (
        [node("NonZero", ["f"], ["places"]), node("Squeeze", ["places", "first"], ["at"]), node("Gather", ["x", "at"], ["rows"], axis=1),
         node(op, ["rows", "w", "r"], ["t"], hidden_size=2), *count("t")],
        [constant("first", whole(0)), constant("w", np.ones((1, 2 * gates, 5), np.float32)), constant("r", np.ones((1, 2 * gates, 2), np.float32))],
        [({"x": np.ones((3, 4, 5), np.float32), "f": real(*each)}, 3 * 2 * sum(each)) for each in ((1, 0, 1, 0), (0, 0, 0, 0), (1, 1, 1, 1))], [])


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sizes")
    for name, (nodes, constants, good, _) in MODELS.items():
        inputs = [value(each, [None, *array.shape[1:]] if (name, each) == ("pooled", "x") else array.shape, TYPES[array.dtype][0])
                  for each, array in good[0][0].items()]
        if name in ("filled", "expanded", "tiled"):
            assert all(data["s"].shape == good[0][0]["s"].shape for data, _ in good)
        write_model(folder, name, nodes, inputs, value("y", [], INT64), constants)
        (folder / name / "config.pbtxt").write_text('max_batch_size: 0\nparameters { key: "engine" value { string_value: "openvino" } }')
    write_model(folder, "plain", [node("Add", ["x", "x"], ["y"])], [value("x", [3])], value("y", [3]))
    return folder


@pytest.fixture(scope="module", params=["apart", "inside"])
def served(request, program, models, tmp_path_factory):
    log = tmp_path_factory.mktemp("log") / "server.log"
    with serving(program, models, log, "--second-engine", request.param, "--workspace", str(ROOM)) as running:
        yield running, log


@pytest.fixture(scope="module")
def server(served):
    return served[0]


def ask(client, module, model, data):
    tensors = []
    for name, array in data.items():
        tensors.append(module.InferInput(name, list(array.shape), TYPES[array.dtype][1]))
        tensors[-1].set_data_from_numpy(np.asarray(array))
    return client.infer(model, tensors, timeout=MINUTE).as_numpy("y")


@pytest.mark.parametrize("model", MODELS)
def test_is_answered_as_onnx_has_it_or_refused_by_name(client, module, model):
    nodes, _, good, bad = MODELS[model]
    for data, elements in good:
        wait_until(lambda: client.is_model_ready(model), "it is not compiled anew")
        assert ask(client, module, model, data) == elements, data
        for wrong, text in bad:
            wait_until(lambda: client.is_model_ready(model), "it is not compiled anew")
            with pytest.raises(InferenceServerException) as error:
                ask(client, module, model, wrong)
            assert str(error.value.status()) in ("400", "StatusCode.INVALID_ARGUMENT"), (wrong, error.value)
            assert text in str(error.value), (wrong, error.value)
            assert "'" in str(error.value).split("OpenVINO: ")[1], f"no node is named: {error.value}"


def test_sizes_that_are_refused_cost_nobody_else(client, module):
    """OpenVINO compiles nothing anew, and other models' runs do not wait."""
    for model in ("padded", "one_hot", "tiled", "ranged", "window", "stepped", "summed_along"):
        for wrong, _ in MODELS[model][3]:
            with pytest.raises(InferenceServerException):
                ask(client, module, model, wrong)
            assert client.is_model_ready(model), wrong
            begin = time.monotonic()
            tensor = module.InferInput("x", [3], "FP32")
            tensor.set_data_from_numpy(real(1, 2, 3))
            np.testing.assert_array_equal(client.infer("plain", [tensor], timeout=MINUTE).as_numpy("y"), [2, 4, 6])
            assert time.monotonic() - begin < 5


def test_no_process_ended(served):
    log = served[1].read_text()
    assert "is gone" not in log and "taken out" not in log, log[-3000:]


DOUBLED = {
    "sum": ([node("Add", ["x", "c"], ["y"])], "Add 'y' has FP64 values"),
    "masked": ([node("Where", ["m", "x", "c"], ["w"]), node("Softmax", ["w"], ["y"])], "has FP64 values"),
    "moved": ([node("Reshape", ["x", "three"], ["y"])], "Reshape 'y' has FP64 values"),
    "cast_constant": ([node("Cast", ["c"], ["f"], to=FLOAT), node("Cast", ["f"], ["d"], to=INT64), node("Add", ["i", "d"], ["z"])], "FP64 constant"),
}


def test_fp64_is_refused_at_load(program, tmp_path):
    """OpenVINO computes it as FP32: 1e300 and infinity would become 3.4e38."""
    models = tmp_path / "models"
    for name, (nodes, _) in DOUBLED.items():
        inputs = [value("i", [3], INT64)] if name == "cast_constant" else [value("x", [3], DOUBLE)]
        if name == "masked":
            inputs.append(value("m", [3], BOOL))
        output = value("z", [3], INT64) if name == "cast_constant" else value("y", [3], DOUBLE)
        write_model(models, name, nodes, inputs, output, [constant("c", np.array(np.inf)), constant("three", whole(3))])
        (models / name / "config.pbtxt").write_text('max_batch_size: 0\nparameters { key: "engine" value { string_value: "openvino" } }')
    # A shape is no value.
    write_model(models, "shape", [node("Shape", ["x"], ["s"]), node("ReduceMax", ["s"], ["y"], keepdims=0)], [value("x", ["a", "b"], DOUBLE)],
                value("y", [], INT64))
    (models / "shape" / "config.pbtxt").write_text('max_batch_size: 0\nparameters { key: "engine" value { string_value: "openvino" } }')
    # Our own engine has FP64.
    write_model(models, "own", DOUBLED["masked"][0], [value("x", [3], DOUBLE), value("m", [3], BOOL)], value("y", [3], DOUBLE),
                [constant("c", np.array(-np.inf))])
    with serving(program, models, tmp_path / "server.log", "--strict-readiness", "false") as running:
        with http_client.InferenceServerClient(running.http) as client:
            index = {each["name"]: each for each in client.get_model_repository_index()}
            for name, (_, text) in DOUBLED.items():
                assert index[name]["state"] == "UNAVAILABLE" and text in index[name]["reason"], json.dumps(index[name])
            assert ask(client, http_client, "shape", {"x": np.zeros((2, 5))}) == 5
            assert index["own"]["state"] == "READY", index["own"]
            assert np.isnan(ask(client, http_client, "own", {"x": np.array([1.0, 2, 3]), "m": np.zeros(3, bool)})).all()
