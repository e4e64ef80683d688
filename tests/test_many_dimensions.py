"""Tensors of up to 16 dimensions by our own engine, beside onnx.reference; of more a model is refused when it is loaded."""

from __future__ import annotations

import numpy as np
import pytest
import tritonclient.http as http_client
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from tritonclient.utils import np_to_triton_dtype

from loopback import serving, write_model
from raw_http import MINUTE

RNG = np.random.default_rng(11)
MOST = 16
RANKS = (9, 12, 13, MOST)


def node(op, inputs, output="y", **attributes):
    return helper.make_node(op, inputs, [output], name="the_node", **attributes)


def real(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def constants(**arrays):
    return [numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items()]


def cases(rank):
    """By name: nodes, what is asked, constants. Extents alternate, so that no two neighbours are one dimension."""
    pairs = [2 if i >= rank - 3 or i % 2 == 0 else 1 for i in range(rank)]
    evens, odds = ([2 if i % 2 == which else 1 for i in range(rank)] for which in (0, 1))
    turned = [*range(1, rank, 2), *range(0, rank, 2)]
    every_other = np.arange(0, rank, 2)
    pads = np.zeros(2 * rank, np.int64)
    pads[[0, rank - 1, rank + 2]] = 1
    x = {"x": real(*pairs)}
    yield "transpose", [node("Transpose", ["x"], perm=turned)], x, []
    yield "expand", [node("Expand", ["x", "s"])], {"x": real(2)}, constants(s=np.array(pairs))
    yield "slice", [node("Slice", ["x", "b", "e", "a", "t"])], x, constants(
        b=np.full(every_other.size, -1), e=np.full(every_other.size, -9), a=every_other, t=np.full(every_other.size, -1))
    yield "gather", [node("Gather", ["x", "i"], axis=rank - 2)], x, constants(i=np.array([1, 0, 1]))
    yield "gather_more", [node("Gather", ["x", "i"], axis=1)], {"x": real(3, 4)}, constants(i=RNG.integers(0, 4, [1] * (rank - 3) + [2, 2]))
    yield "gather_elements", [node("GatherElements", ["x", "i"], axis=rank - 1)], x, constants(i=RNG.integers(0, 2, pairs))
    yield "gather_nd", [node("GatherND", ["x", "i"])], x, constants(i=np.zeros((2, rank - 1), np.int64))
    yield "scatter_nd", [node("ScatterND", ["x", "i", "u"])], {**x, "u": real(2, *pairs[1:])}, constants(i=np.array([[1], [0]]))
    for op in ("ReduceSum", "ReduceMax", "ReduceL2"):
        yield op.lower(), [node(op, ["x", "a"], keepdims=0)], x, constants(a=every_other)
    yield "argmax", [node("ArgMax", ["x"], axis=rank - 2)], x, []
    yield "concat", [node("Concat", ["x", "z"], axis=rank - 2)], {**x, "z": real(*pairs)}, []
    for op in ("Add", "Pow", "Max", "Greater"):
        yield op.lower(), [node(op, ["x", "z"])], {"x": np.abs(real(*evens)), "z": real(*odds)}, []
    yield "where", [node("Where", ["b", "x", "z"])], {"b": RNG.integers(0, 2, evens).astype(bool), "x": real(*odds), "z": real(1)}, []
    for mode in ("constant", "edge"):
        yield f"pad_{mode}", [node("Pad", ["x", "p"], mode=mode)], x, constants(p=pads)
    yield "tile", [node("Tile", ["x", "t"])], {"x": real(*evens)}, constants(t=np.array([3 if i in (1, rank - 1) else 1 for i in range(rank)]))
    yield "softmax", [node("Softmax", ["x"], axis=rank - 2)], x, []
    yield "exp", [node("Exp", ["x"])], x, []
    yield "cast", [node("Cast", ["x"], to=TensorProto.INT32)], x, []
    yield "cumsum", [node("CumSum", ["x", "a"])], x, constants(a=np.int64(rank - 2))
    yield "matmul", [node("MatMul", ["x", "z"])], {"x": real(*evens[:-2], 2, 3), "z": real(*odds[:-2], 3, 2)}, []
    yield "unsqueeze", [node("Unsqueeze", ["x", "a"], "u"), node("Exp", ["u"])], {"x": real(3)}, constants(a=np.arange(rank - 1))
    yield "reshape", [node("Reshape", ["x", "s"], "u"), node("Transpose", ["u"], perm=turned)], {"x": real(int(np.prod(pairs)))}, constants(
        s=np.array(pairs))
    yield "bytes", [node("DequantizeLinear", ["x", "s"])], {"x": RNG.integers(0, 256, pairs).astype(np.uint8)}, constants(s=np.float32(0.5))
    yield "compress", [node("Compress", ["x", "b"], axis=rank - 1)], x, constants(b=np.array([False, True]))


def value(name, array, open_):
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype),
                                         [f"{name}0", *array.shape[1:]] if open_ else array.shape)


@pytest.fixture(scope="module", params=[False, True], ids=["fixed", "open"])
def served(request, program, tmp_path_factory):
    folder, wanted = tmp_path_factory.mktemp("dimensions"), {}
    for rank in (*RANKS, MOST + 1):
        for name, nodes, asked, weights in cases(rank):
            inputs = [value(n, array, request.param) for n, array in asked.items()]
            graph = helper.make_graph(nodes, name, inputs, [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)], weights)
            want = ReferenceEvaluator(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)])).run(None, asked)[0]
            out = helper.make_tensor_value_info("y", helper.np_dtype_to_tensor_dtype(want.dtype), None)
            model = f"{name}_{rank}"
            write_model(folder, model, nodes, inputs, out, weights, 19)
            (folder / model / "config.pbtxt").write_text(
                'max_batch_size: 0\nparameters { key: "engine" value { string_value: "carillon" } }')
            wanted[model] = (rank, asked, want)
    with serving(program, folder, tmp_path_factory.mktemp("log") / "server.log", "--strict-readiness", "false") as running:
        yield running, wanted


def test_answers_are_those_of_onnx(served):
    with http_client.InferenceServerClient(served[0].http, network_timeout=MINUTE) as client:
        for model, (rank, asked, want) in served[1].items():
            if rank > MOST:
                continue
            tensors = []
            for name, array in asked.items():
                tensors.append(http_client.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype)))
                tensors[-1].set_data_from_numpy(array)
            got = client.infer(model, tensors).as_numpy("y")
            assert got.shape == want.shape and got.dtype == want.dtype, model
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5, err_msg=model)


def test_more_are_refused_by_name_when_the_model_is_loaded(served):
    with http_client.InferenceServerClient(served[0].http) as client:
        index = {entry["name"]: entry for entry in client.get_model_repository_index()}
    for model, (rank, _, _) in served[1].items():
        if rank <= MOST:
            continue
        entry = index[model]
        assert entry["state"] == "UNAVAILABLE", entry
        assert "the_node" in entry["reason"] and f"of {rank} dimensions; at most {MOST} are supported" in entry["reason"], entry
