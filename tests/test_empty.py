"""Tensors without elements: what a client may send as any other, on both protocols, answered as ONNX's reference does."""

from __future__ import annotations

import itertools
import json
import uuid
import warnings

import numpy as np
import onnx
import pytest
import requests
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
import tritonclient.utils.shared_memory as shm
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException

from loopback import serving
from raw_http import MINUTE

SIZES = (0, 1, 2, 5)
node = helper.make_node


def value(name, shape, type=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, type, shape)


def const(name, values, type=np.int64):
    return numpy_helper.from_array(np.array(values, type), name)


def weights(name, *shape):
    return numpy_helper.from_array(np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32), name)


def scan_body():
    return helper.make_graph([node("Add", ["b.s", "b.e"], ["b.t"]), node("Mul", ["b.e", "b.e"], ["b.o"])], "body",
                             [value("b.s", [4]), value("b.e", [4])], [value("b.t", [4]), value("b.o", [4])])


def loop_body():
    return helper.make_graph([node("Identity", ["b.on"], ["b.go"]), node("Add", ["b.c", "b.c"], ["b.d"]), node("Neg", ["b.c"], ["b.o"])],
                             "body", [value("b.i", [], TensorProto.INT64), value("b.on", [], TensorProto.BOOL), value("b.c", [4])],
                             [value("b.go", [], TensorProto.BOOL), value("b.d", [4]), value("b.o", [4])])


# Of each graph: its nodes, its inputs' shapes (letters are open), its constants.
GRAPHS = {
    "matmul": ([node("MatMul", ["x", "z"], ["y"])], {"x": "mk", "z": "kl"}, []),
    "stacked": ([node("MatMul", ["x", "z"], ["y"])], {"x": "amk", "z": "akl"}, []),
    "attention": ([node("Transpose", ["k"], ["kt"], perm=[0, 2, 1]), node("MatMul", ["q", "kt"], ["s"]),
                   node("Softmax", ["s"], ["p"]), node("MatMul", ["p", "k"], ["y"])],
                  {"q": [1, "m", 8], "k": [1, "k", 8]}, []),
    "lstm": ([node("LSTM", ["x", "w", "r", "", "", "h"], ["all", "y"], hidden_size=3)],
             {"x": ["t", 1, 4], "h": [1, 1, 3]}, [weights("w", 1, 12, 4), weights("r", 1, 12, 3)]),
    "gru": ([node("GRU", ["x", "w", "r"], ["", "y"], hidden_size=3)],
            {"x": ["t", "n", 4]}, [weights("w", 1, 9, 4), weights("r", 1, 9, 3)]),
    "slice": ([node("Slice", ["x", "from", "to", "axis"], ["s"]), node("Transpose", ["s"], ["t"], perm=[0, 2, 1]),
               node("MatMul", ["t", "s"], ["y"])], {"x": [1, "m", 8]}, [const("from", [3]), const("to", [5]), const("axis", [1])]),
    "gemm": ([node("Gemm", ["x", "z", "b"], ["y"], alpha=2.0, beta=0.5)], {"x": "mk", "z": ["k", 3]}, [weights("b", 3)]),
    "softmax": ([node("Softmax", ["x"], ["y"], axis=0)], {"x": "mk"}, []),
    "concat": ([node("Concat", ["x", "z"], ["y"], axis=0)], {"x": ["m", 4], "z": ["k", 4]}, []),
    "concat_within": ([node("Concat", ["x", "z"], ["c"], axis=1), node("Relu", ["c"], ["y"])], {"x": [3, "m"], "z": [3, "k"]}, []),
    "gather": ([node("Cast", ["x"], ["i"], to=TensorProto.INT64), node("Mul", ["i", "zero"], ["j"]),
                node("Gather", ["z", "j"], ["y"])], {"x": "m", "z": ["k", 4]}, [const("zero", 0)]),
    "topk": ([node("TopK", ["x", "k"], ["y", "places"])], {"x": ["m", 5]}, [const("k", [0])]),
    "argmax": ([node("ArgMax", ["x"], ["a"], axis=1), node("Cast", ["a"], ["y"], to=TensorProto.FLOAT)], {"x": "mk"}, []),
    "conv": ([node("Conv", ["x", "w", "b"], ["y"], pads=[1, 1])], {"x": ["n", 2, 6]}, [weights("w", 3, 2, 3), weights("b", 3)]),
    "maxpool": ([node("MaxPool", ["x"], ["y"], kernel_shape=[2, 2])], {"x": ["n", "c", 4, 4]}, []),
    "avgpool": ([node("AveragePool", ["x"], ["y"], kernel_shape=[2, 2])], {"x": ["n", "c", 4, 4]}, []),
    "layernorm": ([node("LayerNormalization", ["x", "s", "b"], ["y"])], {"x": ["m", "k", 4]}, [weights("s", 4), weights("b", 4)]),
    "batchnorm": ([node("BatchNormalization", ["x", "s", "s", "s", "s"], ["y"])], {"x": ["n", 4, "k"]},
                  [const("s", [1, 2, 3, 4], np.float32)]),
    "batchnorm_learns_means": ([node("BatchNormalization", ["x", "s", "s", "s", "s"], ["o", "y", "v"], training_mode=1)],
                               {"x": ["n", 4, "k"]}, [const("s", [1, 2, 3, 4], np.float32)]),
    "batchnorm_learns_variances": ([node("BatchNormalization", ["x", "s", "s", "s", "s"], ["o", "m", "y"], training_mode=1)],
                                   {"x": ["n", 4, "k"]}, [const("s", [1, 2, 3, 4], np.float32)]),
    "instancenorm": ([node("InstanceNormalization", ["x", "s", "s"], ["y"])], {"x": ["n", 3, 4]}, [weights("s", 3)]),
    "einsum": ([node("Einsum", ["x", "z"], ["y"], equation="mk,kl->ml")], {"x": "mk", "z": "kl"}, []),
    "pad": ([node("Pad", ["x", "pads", "fill"], ["y"])], {"x": ["m", 2]}, [const("pads", [1, 0, 2, 1]), const("fill", 7, np.float32)]),
    "tile": ([node("Tile", ["x", "times"], ["y"])], {"x": "mk"}, [const("times", [2, 3])]),
    "expand": ([node("Shape", ["z"], ["s"]), node("Expand", ["x", "s"], ["y"])], {"x": [1, 4], "z": ["m", 4]}, []),
    "where": ([node("Greater", ["x", "z"], ["c"]), node("Where", ["c", "x", "z"], ["y"])], {"x": "mk", "z": [1, "k"]}, []),
    "broadcast": ([node("Add", ["x", "z"], ["y"])], {"x": ["m", 1], "z": [1, "k"]}, []),
    "cumsum": ([node("CumSum", ["x", "axis"], ["y"])], {"x": "mk"}, [const("axis", 0)]),
    "split": ([node("Split", ["x", "parts"], ["p", "q"], axis=1), node("Concat", ["q", "p"], ["y"], axis=1)],
              {"x": ["m", 5]}, [const("parts", [0, 5])]),
    "reshape": ([node("Reshape", ["x", "to"], ["y"])], {"x": ["m", 6]}, [const("to", [-1, 2])]),
    "scatter": ([node("ScatterND", ["x", "i", "z"], ["y"])], {"x": ["m", 4]},
                [const("i", np.zeros((0, 1))), const("z", np.zeros((0, 4)), np.float32)]),
    "depth": ([node("DepthToSpace", ["x"], ["y"], blocksize=2)], {"x": ["n", 4, "h", "w"]}, []),
    "onehot": ([node("Cast", ["x"], ["i"], to=TensorProto.INT64), node("OneHot", ["i", "d", "v"], ["y"])],
               {"x": "mk"}, [const("d", 3), const("v", [0, 1], np.float32)]),
    "nonzero": ([node("NonZero", ["x"], ["z"]), node("Cast", ["z"], ["y"], to=TensorProto.FLOAT)], {"x": "mk"}, []),
    "scan": ([node("Scan", ["s", "x"], ["z", "y"], body=scan_body(), num_scan_inputs=1)], {"s": [4], "x": ["t", 4]}, []),
    "loop": ([node("Shape", ["z"], ["n"]), node("Squeeze", ["n"], ["m"]), node("Loop", ["m", "", "x"], ["c", "y"], body=loop_body())],
             {"x": [4], "z": "m"}, []),
    "quantised": ([node("QuantizeLinear", ["x", "s", "o"], ["q"]), node("DequantizeLinear", ["q", "s", "o"], ["y"])],
                  {"x": "mk"}, [const("s", 0.1, np.float32), const("o", 3, np.uint8)]),
    "alone": ([node("Identity", ["x"], ["y"])], {"x": "mk"}, []),
    "count": ([node("Size", ["x"], ["c"]), node("Cast", ["c"], ["y"], to=TensorProto.FLOAT)], {"x": "mk"}, []),
}
for reduction in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare"):
    GRAPHS["reduce_" + reduction.lower()] = ([node("Reduce" + reduction, ["x", "axis"], ["y"])], {"x": "mk"}, [const("axis", [1])])

# What the reference gives no number for, though ONNX says what is wanted; from ONNX's operator texts.
BY_THE_TEXT = {
    "gather": lambda x, z: np.zeros((0, 4), np.float32) if len(x) == 0 else None,
    "lstm": lambda x, h: h if len(x) == 0 else None,                # no steps: the state that it began with
    "gru": lambda x: np.zeros((1, x.shape[1], 3), np.float32) if x.size == 0 else None,
    "loop": lambda x, z: np.array([-x * 2**i for i in range(len(z))], np.float32).reshape(-1, 4),
    "scan": lambda s, x: np.zeros((0, 4), np.float32) if len(x) == 0 else None,     # nothing, of what there would be
    "conv": lambda x: np.zeros((0, 3, 6), np.float32) if len(x) == 0 else None,
}


def letters(inputs):
    return sorted({d for shape in inputs.values() for d in shape if isinstance(d, str)})


def build(name):
    nodes, inputs, constants = GRAPHS[name]
    graph = helper.make_graph(nodes, name, [value(i, list(shape)) for i, shape in inputs.items()], [value("y", None)], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)


def feeds(name, extents, seed=0):
    rng = np.random.default_rng(seed)
    return {i: rng.standard_normal([extents.get(d, d) for d in shape]).astype(np.float32) for i, shape in GRAPHS[name][1].items()}


def wanted(name, arrays):
    """The answer, or nothing where there is none."""
    if name in BY_THE_TEXT and (told := BY_THE_TEXT[name](**arrays)) is not None:
        return told
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            return np.asarray(ReferenceEvaluator(build(name)).run(["y"], arrays)[0])
    except Exception:  # whatever its code meets there
        return None


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("empty")
    for name in GRAPHS:
        place = folder / name / "1"
        place.mkdir(parents=True)
        onnx.save(build(name), place / "model.onnx")
        # Any first dimension is taken as it is: no batch.
        inputs = "".join(f'input {{ name: "{i}" data_type: TYPE_FP32 dims: {[-1 if isinstance(d, str) else d for d in shape]} }}\n'
                         for i, shape in GRAPHS[name][1].items())
        (folder / name / "config.pbtxt").write_text(
            'max_batch_size: 0\nparameters { key: "engine" value { string_value: "carillon" } }\n' + inputs)
    return folder


@pytest.fixture(scope="module")
def server(program, models, tmp_path_factory):
    with serving(program, models, tmp_path_factory.mktemp("log") / "server.log", "--sizes", "128") as running:
        yield running


def over_http(server, model, arrays):
    with http_client.InferenceServerClient(server.http) as client:
        return ask(http_client, client, model, arrays)


def over_grpc(server, model, arrays):
    with grpc_client.InferenceServerClient(server.grpc) as client:
        return ask(grpc_client, client, model, arrays)


def ask(module, client, model, arrays):
    inputs = []
    for name, array in arrays.items():
        tensor = module.InferInput(name, array.shape, "FP32")
        tensor.set_data_from_numpy(array)
        inputs.append(tensor)
    return client.infer(model, inputs, **({"timeout": MINUTE} if module is http_client else {"client_timeout": 60})).as_numpy("y")


def over_json(server, model, arrays):
    body = {"inputs": [{"name": n, "shape": a.shape, "datatype": "FP32", "data": a.ravel().tolist()} for n, a in arrays.items()]}
    reply = requests.post(f"http://{server.http}/v2/models/{model}/infer", json=body, timeout=60)
    if reply.status_code != 200:
        raise InferenceServerException(reply.text, str(reply.status_code))
    output = next(o for o in reply.json()["outputs"] if o["name"] == "y")
    return np.array(output["data"], np.float32).reshape(output["shape"])


def over_grpc_contents(server, model, arrays):
    """Numbers in typed fields, where a tensor without elements has no contents at all."""
    request = service_pb2.ModelInferRequest(model_name=model)
    for name, array in arrays.items():
        tensor = request.inputs.add(name=name, datatype="FP32", shape=array.shape)
        tensor.contents.fp32_contents.extend(array.ravel().tolist())
    with grpc_client.InferenceServerClient(server.grpc) as client:
        try:
            reply = client._client_stub.ModelInfer(request, timeout=60)
        except Exception as error:
            raise InferenceServerException(str(error)) from error
    at = next(i for i, output in enumerate(reply.outputs) if output.name == "y")
    return np.frombuffer(reply.raw_output_contents[at], np.float32).reshape(reply.outputs[at].shape)


WAYS = {"http": over_http, "json": over_json, "grpc": over_grpc, "grpc_contents": over_grpc_contents}


@pytest.mark.parametrize("name", GRAPHS)
def test_as_the_reference(server, name):
    """All sizes, each by a way that differs from size to size; and none but what ONNX has no answer for is refused."""
    ways = itertools.cycle(WAYS.items())
    open_ones = letters(GRAPHS[name][1])
    for sizes in itertools.product(SIZES, repeat=len(open_ones)):
        arrays = feeds(name, dict(zip(open_ones, sizes)))
        want = wanted(name, arrays)
        way, send = next(ways)
        where = f"{name} {dict(zip(open_ones, sizes))} by {way}"
        if want is None or (want.size and way == "json" and not np.isfinite(want).all()):
            if want is None:
                with pytest.raises(InferenceServerException):
                    send(server, name, arrays)
                continue
            send = over_http  # JSON has no infinity
        got = send(server, name, arrays)
        assert got.shape == want.shape, where
        np.testing.assert_allclose(got, want, atol=1e-4, rtol=1e-4, err_msg=where)
    assert requests.get(f"http://{server.http}/v2/health/live", timeout=60).status_code == 200


# Extents of 0 that the file fixes: of each model its node, its input's extents, the answer's.
FIXED = {"product": ("MatMul", [3, 0], [3, 4]), "rows": ("Relu", [0, 3], [0, 3]), "both": ("Relu", [0, 0], [0, 0])}
# OpenVINO takes weights without elements for a scalar, so it cannot read the product.
FIXED_AND_ENGINES = [(name, "") for name in FIXED] + [("rows", "openvino"), ("both", "openvino")]


@pytest.fixture(scope="module")
def fixed(program, tmp_path_factory):
    folder = tmp_path_factory.mktemp("fixed")
    for name, engine in FIXED_AND_ENGINES:
        op, shape, answer = FIXED[name]
        made = helper.make_model(
            helper.make_graph([node(op, ["x", "w"] if op == "MatMul" else ["x"], ["y"])], name, [value("x", shape)], [value("y", answer)],
                              [weights("w", 0, 4)] if op == "MatMul" else []),
            opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
        onnx.checker.check_model(made)
        place = folder / (name + engine) / "1"
        place.mkdir(parents=True)
        onnx.save(made, place / "model.onnx")
        if engine:
            (place.parent / "config.pbtxt").write_text(
                'max_batch_size: 0\nparameters { key: "engine" value { string_value: "openvino" } }\n')
    with serving(program, folder, tmp_path_factory.mktemp("log") / "server.log") as running:
        yield running


@pytest.mark.parametrize("name,engine", FIXED_AND_ENGINES)
def test_an_extent_of_0_in_the_file_is_fixed(fixed, name, engine):
    _, shape, answer = FIXED[name]
    with http_client.InferenceServerClient(fixed.http) as client:
        told = client.get_model_metadata(name + engine)
    assert told["inputs"][0]["shape"] == shape and told["outputs"][0]["shape"] == answer
    for send in WAYS.values():
        got = send(fixed, name + engine, {"x": np.zeros(shape, np.float32)})
        np.testing.assert_array_equal(got, np.zeros(answer, np.float32))
        with pytest.raises(InferenceServerException, match=f"must be \\[{shape[0]},{shape[1]}\\]"):
            send(fixed, name + engine, {"x": np.zeros((3, 3), np.float32)})


@pytest.mark.parametrize("way", WAYS)
def test_every_way_takes_and_gives_nothing(server, way):
    for name, sizes in [("matmul", {"m": 3, "k": 0, "l": 2}), ("matmul", {"m": 0, "k": 3, "l": 0}), ("alone", {"m": 2, "k": 0})]:
        arrays = feeds(name, sizes)
        got = WAYS[way](server, name, arrays)
        np.testing.assert_array_equal(got, wanted(name, arrays))


@pytest.mark.parametrize("way", WAYS)
def test_what_is_beside_an_extent_of_0(server, way):
    """It takes no bytes, so a small request may say it; but not what would make too much of nothing."""
    large = np.zeros((50_000, 0), np.float32)
    assert WAYS[way](server, "reduce_sum", {"x": large}).shape == (50_000, 1)
    assert WAYS[way](server, "alone", {"x": large}).shape == (50_000, 0)
    with pytest.raises(InferenceServerException, match="more than 1048576 together"):
        WAYS[way](server, "reduce_sum", {"x": np.zeros((1 << 30, 0), np.float32)})


@pytest.mark.parametrize("module", [http_client, grpc_client], ids=["http", "grpc"])
def test_shared_memory_of_no_bytes(server, module):
    """A region may be used for none of its bytes: an input and an output without elements."""
    key = f"/carillon-{uuid.uuid4()}"
    region = shm.create_shared_memory_region("none", key, 64)
    try:
        with module.InferenceServerClient(server.http if module is http_client else server.grpc) as client:
            client.register_system_shared_memory("none", key, 64)
            x, z = module.InferInput("x", [3, 0], "FP32"), module.InferInput("z", [0, 2], "FP32")
            x.set_shared_memory("none", 0)
            z.set_shared_memory("none", 0, offset=64)
            y = module.InferRequestedOutput("y")
            y.set_shared_memory("none", 24)
            client.infer("matmul", [x, z], outputs=[y])
            np.testing.assert_array_equal(shm.get_contents_as_numpy(region, np.float32, [3, 2]), np.zeros((3, 2)))
            x = module.InferInput("x", [0, 2], "FP32")
            z = module.InferInput("z", [2, 2], "FP32")
            x.set_shared_memory("none", 0)
            z.set_data_from_numpy(np.ones((2, 2), np.float32))
            y = module.InferRequestedOutput("y")
            y.set_shared_memory("none", 0)
            answer = client.infer("matmul", [x, z], outputs=[y]).get_output("y")
            assert list(answer["shape"] if module is http_client else answer.shape) == [0, 2]
    finally:
        with module.InferenceServerClient(server.http if module is http_client else server.grpc) as client:
            client.unregister_system_shared_memory("none")
        shm.destroy_shared_memory_region(region)
