"""Quantised operators, ONNX's and those that onnxruntime's quantisers write, and Einsum: answers as onnxruntime's."""

from __future__ import annotations

import sys

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from loopback import ROOT, serving

sys.path.insert(0, str(ROOT / "python"))

from carillon_models.client import Client  # noqa: E402

RNG = np.random.default_rng(8)


def scale(name, value):
    return numpy_helper.from_array(np.array(value, np.float32), name)


def zero(name, value, kind=np.uint8):
    return numpy_helper.from_array(np.array(value, kind), name)


def weights(name, *shape, kind=np.int8):
    return numpy_helper.from_array(RNG.integers(-60, 60, shape).astype(kind), name)


XS, XZ, YS, YZ = scale("xs", 0.05), zero("xz", 120), scale("ys", 0.07), zero("yz", 118)
QUANTISE = helper.make_node("QuantizeLinear", ["x", "xs", "xz"], ["q"])
BACK = helper.make_node("DequantizeLinear", ["r", "ys", "yz"], ["y"])
IMAGE = ["batch", 4, 6, 6]


def contrib(op, inputs, **attributes):
    return [QUANTISE, helper.make_node(op, inputs, ["r"], domain="com.microsoft", **attributes), BACK]


def lstm():
    w, r = weights("w", 1, 4, 12), weights("r", 1, 3, 12)
    return [helper.make_node("DynamicQuantizeLSTM", ["x", "w", "r", "b", "", "", "", "", "ws", "wz", "rs", "rz"], ["", "h"],
                             domain="com.microsoft", hidden_size=3),
            helper.make_node("Squeeze", ["h", "axis"], ["y"])], ["time", 1, 4], [1, 3], [
        w, r, scale("ws", [0.01]), zero("wz", [0], np.int8), scale("rs", [0.01]), zero("rz", [0], np.int8),
        numpy_helper.from_array(RNG.standard_normal((1, 24)).astype(np.float32), "b"),
        numpy_helper.from_array(np.array([0]), "axis")]


def rounded(name, scale_of, to):
    """`name` in bytes and back, as static quantisers write it around every operator."""
    return [helper.make_node("QuantizeLinear", [name, f"{scale_of}s", f"{scale_of}z"], [f"{to}_q"]),
            helper.make_node("DequantizeLinear", [f"{to}_q", f"{scale_of}s", f"{scale_of}z"], [to])]


def real_weights(channels, axis=0):
    return [helper.make_node("DequantizeLinear", ["w", "ws"], ["f"], axis=axis)], scale("ws", [0.01 + 0.002 * i for i in range(channels)])


def static_conv(channels, groups=1, relu=False):
    nodes, scales = real_weights(channels)
    yz = zero("yz", 0 if relu else 118)
    middle = [helper.make_node("Relu", ["c"], ["r"])] if relu else []
    return ([*rounded("x", "x", "a"), *nodes, helper.make_node("Conv", ["a", "f", "b"], ["c"], pads=[1, 1, 1, 1], group=groups), *middle,
             *rounded("r" if relu else "c", "y", "y")], IMAGE, ["batch", channels, 6, 6],
            [XS, XZ, YS, yz, weights("w", channels, 4 // groups, 3, 3), scales,
             numpy_helper.from_array(RNG.standard_normal(channels).astype(np.float32), "b")])


def static_gemm():
    nodes, scales = real_weights(5)
    return ([*rounded("x", "x", "a"), *nodes, helper.make_node("Gemm", ["a", "f", "b"], ["c"], transB=1), *rounded("c", "y", "y")],
            ["batch", 8], ["batch", 5], [XS, XZ, YS, YZ, weights("w", 5, 8), scales,
                                         numpy_helper.from_array(RNG.standard_normal(5).astype(np.float32), "b")])


def static_block():
    """What an inverted residual of EfficientNet has: a gate of means, an activation, a sum, halves and a concatenation."""
    nodes = [*rounded("x", "x", "a"), helper.make_node("Sigmoid", ["a"], ["s"]), *rounded("s", "g", "sig"),
             helper.make_node("Mul", ["a", "sig"], ["silu"]), *rounded("silu", "x", "b"),
             helper.make_node("GlobalAveragePool", ["b"], ["m"]), *rounded("m", "x", "gate"),
             helper.make_node("Mul", ["b", "gate"], ["gated"]), *rounded("gated", "x", "c"),
             helper.make_node("Add", ["c", "a"], ["sum"]), *rounded("sum", "y", "d"),
             helper.make_node("Split", ["d"], ["left", "right"], axis=1), *rounded("left", "y", "l"), *rounded("right", "y", "r"),
             helper.make_node("MaxPool", ["l"], ["pooled"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]), *rounded("pooled", "y", "p"),
             helper.make_node("Concat", ["p", "r", "a"], ["all"], axis=1), *rounded("all", "y", "y")]
    return nodes, IMAGE, ["batch", 8, 6, 6], [XS, XZ, YS, YZ, scale("gs", 1 / 255), zero("gz", 0)]


def halfway(op, y_zero, **attributes):
    """Scales are powers of two, so all sums are exact, and many lie in the middle between two steps of the result."""
    kernel = [5, 4, 3, 3] if op == "Conv" else [8, 5]
    signed = y_zero < 0
    kind = np.int8 if signed else np.uint8
    return ([*rounded("x", "x", "a"), helper.make_node("DequantizeLinear", ["w", "ws"], ["f"]), helper.make_node(op, ["a", "f"], ["c"], **attributes),
             *rounded("c", "y", "y")], IMAGE if op == "Conv" else ["batch", 8], ["batch", 5, 6, 6] if op == "Conv" else ["batch", 5],
            [scale("xs", 1 / 16), zero("xz", -3 if signed else 120, kind), scale("ys", 1), zero("yz", y_zero, kind),
             numpy_helper.from_array(RNG.integers(-2, 3, kernel).astype(np.int8), "w"), scale("ws", 1)])


# Answers are those of ONNX's reference, bit for bit; it knows these operators from opset 19 on.
EXACT = {f"halfway_{op}_{y_zero}": halfway(op, y_zero, **attributes) for op, attributes in (("Conv", {"pads": [1, 1, 1, 1]}), ("MatMul", {}))
         for y_zero in (127, 128, -3)}

# Name: nodes from x to y, the shapes of both, initializers.
MODELS = {
    "linear": ([QUANTISE, helper.make_node("DequantizeLinear", ["q", "xs", "xz"], ["y"])], ["batch", 5], ["batch", 5], [XS, XZ]),
    "by_channel": ([helper.make_node("DequantizeLinear", ["w", "ws"], ["f"], axis=1), helper.make_node("MatMul", ["x", "f"], ["y"])],
                   ["batch", 8], ["batch", 5], [weights("w", 8, 5), scale("ws", [0.1, 0.2, 0.3, 0.4, 0.5])]),
    "dynamic": ([helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
                 helper.make_node("MatMulInteger", ["q", "w", "z", "wz"], ["i"]),
                 helper.make_node("Cast", ["i"], ["f"], to=TensorProto.FLOAT), helper.make_node("Mul", ["f", "s"], ["y"])],
                ["batch", 8], ["batch", 5], [weights("w", 8, 5), zero("wz", [1, 2, 3, -4, 0], np.int8)]),
    "dynamic_conv": ([helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
                      helper.make_node("ConvInteger", ["q", "w", "z", "wz"], ["i"], pads=[1, 1, 1, 1], strides=[2, 1]),
                      helper.make_node("Cast", ["i"], ["f"], to=TensorProto.FLOAT), helper.make_node("Mul", ["f", "s"], ["y"])],
                     IMAGE, ["batch", 3, 3, 6], [weights("w", 3, 4, 3, 3), zero("wz", 3, np.int8)]),
    # As onnxruntime's quantisers of 2020 have a bias: rounded in each run, and added to whole numbers.
    "dynamic_conv_bias": ([helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
                           helper.make_node("Mul", ["s", "ws"], ["bs"]), helper.make_node("Div", ["b", "bs"], ["d"]),
                           helper.make_node("Floor", ["d"], ["r"]), helper.make_node("Cast", ["r"], ["bi"], to=TensorProto.INT32),
                           helper.make_node("ConvInteger", ["q", "w", "z", "wz"], ["i"], pads=[1, 1, 1, 1]),
                           helper.make_node("Reshape", ["bi", "column"], ["br"]), helper.make_node("Add", ["i", "br"], ["sum"]),
                           helper.make_node("Cast", ["sum"], ["f"], to=TensorProto.FLOAT), helper.make_node("Mul", ["s", "ws"], ["m"]),
                           helper.make_node("Mul", ["f", "m"], ["y"])],
                          IMAGE, ["batch", 3, 6, 6],
                          [weights("w", 3, 4, 3, 3), zero("wz", 3, np.int8), scale("ws", 0.01),
                           numpy_helper.from_array(RNG.standard_normal(3).astype(np.float32), "b"),
                           numpy_helper.from_array(np.array([1, -1, 1, 1]), "column")]),
    "conv": ([QUANTISE, helper.make_node("QLinearConv", ["q", "xs", "xz", "w", "ws", "wz", "ys", "yz", "b"], ["r"],
                                         pads=[1, 1, 1, 1], group=2), BACK],
             IMAGE, ["batch", 6, 6, 6], [XS, XZ, YS, YZ, weights("w", 6, 2, 3, 3), scale("ws", [0.01, 0.02, 0.01, 0.03, 0.02, 0.01]),
                                         zero("wz", [0] * 6, np.int8), weights("b", 6, kind=np.int32)]),
    "matmul": ([QUANTISE, helper.make_node("QLinearMatMul", ["q", "xs", "xz", "w", "ws", "wz", "ys", "yz"], ["r"]), BACK],
               ["batch", 3, 8], ["batch", 3, 5], [XS, XZ, YS, YZ, weights("w", 8, 5), scale("ws", 0.02), zero("wz", 3, np.int8)]),
    "add": (contrib("QLinearAdd", ["q", "xs", "xz", "q", "xs", "xz", "ys", "yz"]), ["batch", 7], ["batch", 7], [XS, XZ, YS, YZ]),
    "mul": (contrib("QLinearMul", ["q", "xs", "xz", "q", "xs", "xz", "ys", "yz"]), ["batch", 7], ["batch", 7], [XS, XZ, YS, YZ]),
    "sigmoid": (contrib("QLinearSigmoid", ["q", "xs", "xz", "ys", "yz"]), ["batch", 7], ["batch", 7], [XS, XZ, YS, YZ]),
    "leaky": (contrib("QLinearLeakyRelu", ["q", "xs", "xz", "ys", "yz"], alpha=0.2), ["batch", 7], ["batch", 7], [XS, XZ, YS, YZ]),
    "pool": (contrib("QLinearGlobalAveragePool", ["q", "xs", "xz", "ys", "yz"]), IMAGE, ["batch", 4, 1, 1], [XS, XZ, YS, YZ]),
    "concat": (contrib("QLinearConcat", ["ys", "yz", "q", "xs", "xz", "q", "xs", "xz"], axis=1), ["batch", 3], ["batch", 6],
               [XS, XZ, YS, YZ]),
    "gemm": (contrib("QGemm", ["q", "xs", "xz", "w", "ws", "wz", "b", "ys", "yz"], transB=1, alpha=1.0), ["batch", 8], ["batch", 5],
             [XS, XZ, YS, YZ, weights("w", 5, 8), scale("ws", [0.01, 0.02, 0.03, 0.02, 0.01]), zero("wz", [0] * 5, np.int8),
              weights("b", 5, kind=np.int32)]),
    "static_conv": static_conv(6),
    "static_groups": static_conv(8, groups=2, relu=True),
    "static_depthwise": static_conv(4, groups=4),
    "static_gemm": static_gemm(),
    "static_block": static_block(),
    "lstm": lstm(),
    "einsum": ([helper.make_node("Einsum", ["x", "w"], ["y"], equation="bqhd,khd->bhqk")], ["batch", 5, 2, 3], ["batch", 2, 5, 4],
               [numpy_helper.from_array(RNG.standard_normal((4, 2, 3)).astype(np.float32), "w")]),
}
# One step of what the model ends in: sums between two steps may be rounded either way.
STEPS = {name: 0.0701 for name in ("conv", "matmul", "add", "mul", "sigmoid", "leaky", "pool", "concat", "gemm", "static_conv", "static_groups",
                                        "static_depthwise", "static_gemm", "static_block")} | {"lstm": 0.02}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("quantised")
    for name, (nodes, x, y, initializers) in (MODELS | EXACT).items():
        graph = helper.make_graph(nodes, name, [helper.make_tensor_value_info("x", TensorProto.FLOAT, x)],
                                  [helper.make_tensor_value_info("y", TensorProto.FLOAT, y)], initializers)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19 if name in EXACT else 17), helper.make_opsetid("com.microsoft", 1)])
        model.ir_version = 8
        version = folder / name / "1"
        version.mkdir(parents=True)
        onnx.save(model, version / "model.onnx")
        # Ours, not one that it may be given to.
        (folder / name / "config.pbtxt").write_text('parameters { key: "engine" value { string_value: "carillon" } }')
    return folder


@pytest.fixture(scope="module")
def server(program, models, tmp_path_factory):
    with serving(program, models, tmp_path_factory.mktemp("log") / "server.log", "--threads", "2") as running:
        yield running


def ask(server, name, x):
    client = Client(server.http, 120)
    try:
        return client.infer(name, {"x": x})["y"]
    finally:
        client.connection.close()


@pytest.mark.parametrize("name", MODELS)
def test_answers_are_onnxruntimes(server, models, name):
    options = onnxruntime.SessionOptions()
    # Optimised, it quantises the floats that meet weights in bytes, and is off by percents.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    reference = onnxruntime.InferenceSession(str(models / name / "1" / "model.onnx"), options, providers=["CPUExecutionProvider"])
    for count in (1, 3, 2):
        shape = [n if isinstance(n, int) else count for n in MODELS[name][1]]
        x = np.random.default_rng(count).standard_normal(shape).astype(np.float32)
        want = reference.run(None, {"x": x})[0]
        got = ask(server, name, x)
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, atol=max(1e-4, STEPS.get(name, 0)), rtol=1e-5)


@pytest.mark.parametrize("name", EXACT)
def test_a_sum_between_two_steps_goes_to_the_even_one(server, models, name):
    """Before the zero point is added, which may be odd."""
    reference = ReferenceEvaluator(str(models / name / "1" / "model.onnx"))
    shape = [n if isinstance(n, int) else 3 for n in EXACT[name][1]]
    x = (4 * np.random.default_rng(1).standard_normal(shape)).astype(np.float32)
    np.testing.assert_array_equal(ask(server, name, x), reference.run(None, {"x": x})[0])


def test_a_dynamic_range_is_a_requests_own(server):
    """Two rows of one request share a range; those of others never get into it."""
    assert Client(server.http, 60).get("/v2/models/dynamic/config").get("max_batch_size", 0) == 0
    assert Client(server.http, 60).get("/v2/models/by_channel/config")["max_batch_size"] > 1
