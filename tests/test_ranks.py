"""Outputs whose rank depends on the size of a request: an answer has the rank of its run, metadata say that it is open."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
import tritonclient.http as http_client
from onnx import TensorProto, helper, numpy_helper

from loopback import serving, write_model
from raw_http import MINUTE

node = helper.make_node


def value(name, shape):
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def branch(name, nodes, gives):
    return helper.make_graph(nodes, name, [], [value(gives, None)])


def squeezed(axis):
    """As PyTorch exports squeeze(axis): the dimension goes where its extent is 1."""
    return [node("Shape", ["x"], ["s"]), node("Gather", ["s", "axis"], ["n"]), node("Equal", ["n", "one"], ["c"]),
            node("If", ["c"], ["r"], then_branch=branch("then", [node("Squeeze", ["x", "axis"], ["t"])], "t"),
                 else_branch=branch("else", [node("Identity", ["x"], ["e"])], "e")),
            node("Relu", ["r"], ["y"])], [numpy_helper.from_array(np.array([axis]), "axis"),
                                          numpy_helper.from_array(np.array([1]), "one")]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    for name, axis, shape in [("rows", 0, ["n", 8]), ("within", 1, ["batch", "t", 8])]:
        nodes, constants = squeezed(axis)
        write_model(folder, name, nodes, [value("x", shape)], value("y", None), constants)
    write_model(folder, "all_ones", [node("Squeeze", ["x"], ["y"])], [value("x", ["a", "b", 2])], value("y", None))
    # The config may say a rank.
    write_model(folder, "told", *(lambda n, c: (n, [value("x", ["n", 8])], value("y", None), c))(*squeezed(0)))
    (folder / "told" / "config.pbtxt").write_text('max_batch_size: 0\noutput { name: "y" data_type: TYPE_FP32 dims: [ -1, 8 ] }\n')
    (folder / "within" / "config.pbtxt").write_text("max_batch_size: 4\n")
    # Data decide: neither branch's shape is the answer's before it runs.
    write_model(folder, "by_data",
                [node("ReduceSum", ["x"], ["sum"], keepdims=0), node("Greater", ["sum", "zero"], ["c"]),
                 node("If", ["c"], ["y"], then_branch=branch("then", [node("Flatten", ["x"], ["t"], axis=0)], "t"),
                      else_branch=branch("else", [node("Identity", ["x"], ["e"])], "e"))],
                [value("x", ["n", 2, 4])], value("y", None), [numpy_helper.from_array(np.float32(0), "zero")])
    return folder


@pytest.fixture(scope="module")
def server(program, models, tmp_path_factory):
    with serving(program, models, tmp_path_factory.mktemp("log") / "server.log", "--strict-readiness", "false") as running:
        yield running


@pytest.mark.parametrize("name, sizes, shape", [
    ("rows", [(1, 8), (3, 8), (1, 8), (2, 8)], [-1]),
    ("told", [(1, 8), (3, 8)], [-1]),
    ("within", [(1, 1, 8), (2, 1, 8), (1, 5, 8), (3, 5, 8)], [-1, -1]),
    ("all_ones", [(1, 1, 2), (3, 1, 2), (1, 3, 2), (3, 4, 2)], [-1]),
])
def test_the_rank_is_that_of_the_run(client, module, models, name, sizes, shape):
    reference = onnxruntime.InferenceSession(str(models / name / "1" / "model.onnx"), providers=["CPUExecutionProvider"])
    for size in sizes:
        x = np.random.default_rng(len(size)).standard_normal(size).astype(np.float32)
        want = reference.run(None, {"x": x})[0]
        tensor = module.InferInput("x", x.shape, "FP32")
        tensor.set_data_from_numpy(x)
        got = client.infer(name, [tensor], timeout=MINUTE).as_numpy("y")
        assert got.shape == want.shape, size
        np.testing.assert_array_equal(got, want)
    metadata = client.get_model_metadata(name)
    if module is http_client:
        assert metadata["outputs"][0]["shape"] == shape
    else:
        assert list(metadata.outputs[0].shape) == shape


def test_the_config_says_that_the_rank_is_open(server):
    with http_client.InferenceServerClient(server.http) as client:
        assert [int(d) for d in client.get_model_config("rows")["output"][0]["dims"]] == [-1]
        assert [int(d) for d in client.get_model_config("within")["output"][0]["dims"]] == [-1]


def test_a_rank_that_data_decide_is_refused_by_name(server):
    with http_client.InferenceServerClient(server.http) as client:
        entry = next(e for e in client.get_model_repository_index() if e["name"] == "by_data")
    assert entry["state"] == "UNAVAILABLE"
    assert "then_branch" in entry["reason"] and "else_branch" in entry["reason"], entry
