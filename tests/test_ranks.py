"""Outputs whose rank or extents depend on the size of a request, or on its data by way of branches of unlike shapes: an
answer has the shape of its run, metadata say what is open."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
import tritonclient.http as http_client
from onnx import TensorProto, helper, numpy_helper
from tritonclient.utils import InferenceServerException

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


zero = numpy_helper.from_array(np.float32(0), "zero")


def by_data(then, gives="y"):
    """Where the sum of x is above 0 what `then` makes of it, else x."""
    return [node("ReduceSum", ["x"], ["sum"], keepdims=0), node("Greater", ["sum", "zero"], ["c"]),
            node("If", ["c"], [gives], then_branch=branch("then", then, "t"),
                 else_branch=branch("else", [node("Identity", ["x"], ["e"])], "e"))]


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
    for name, sizes in [("rank_by_data", ["n", 2, 4]), ("fixed_rank_by_data", [3, 2, 4])]:
        write_model(folder, name, by_data([node("Flatten", ["x"], ["t"], axis=0)]), [value("x", sizes)], value("y", None), [zero])
    write_model(folder, "extents_by_data", by_data([node("Transpose", ["x"], ["t"])]), [value("x", ["n", 2, 4])], value("y", None), [zero])
    # What follows is a product, which only one branch's shape fits.
    write_model(folder, "misfit", [*by_data([node("Transpose", ["x"], ["t"])], "b"), node("MatMul", ["b", "w"], ["y"])],
                [value("x", [3, 2, 4])], value("y", None),
                [zero, numpy_helper.from_array(np.ones((4, 5), np.float32), "w")])
    # Rows are taken away while their sum is large.
    body = helper.make_graph(
        [node("Slice", ["v", "one_", "many", "none"], ["w"]), node("ReduceSum", ["w"], ["rest"], keepdims=0),
         node("Greater", ["rest", "zero"], ["goes_on"])], "body",
        [helper.make_tensor_value_info("i", TensorProto.INT64, []), helper.make_tensor_value_info("on", TensorProto.BOOL, []),
         value("v", None)], [helper.make_tensor_value_info("goes_on", TensorProto.BOOL, []), value("w", None)])
    write_model(folder, "shrinking", [node("Loop", ["five", "", "x"], ["r"], body=body), node("Relu", ["r"], ["y"])],
                [value("x", [6, 4])], value("y", None),
                [zero, *(numpy_helper.from_array(np.array([n]), name) for name, n in [("one_", 1), ("many", 99), ("none", 0)]),
                 numpy_helper.from_array(np.array(5), "five")])
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


def test_openvino_serves_no_if_of_unlike_ranks_and_says_so(program, tmp_path):
    """The If's own result, and a node behind it that the plugin stops at."""
    folder = tmp_path / "models"
    for name, behind in (("alone", []), ("behind", [node("Softmax", ["q"], ["z"], axis=-1), node("LRN", ["z"], ["y"], size=3)])):
        nodes, constants = squeezed(0)
        if behind:
            nodes[-1] = node("Relu", ["r"], ["q"])
        write_model(folder, name, nodes + behind, [value("x", ["n", 8])], value("y", None), constants)
        (folder / name / "config.pbtxt").write_text('parameters { key: "engine" value { string_value: "openvino" } }')
    with serving(program, folder, tmp_path / "log", "--strict-readiness", "false") as running, \
            http_client.InferenceServerClient(running.http) as client:
        for model in client.get_model_repository_index():
            assert model["state"] == "UNAVAILABLE"
            assert "the branches of node 'r' (If) may give unlike numbers of dimensions" in model["reason"], model


def test_the_config_says_that_the_rank_is_open(server):
    with http_client.InferenceServerClient(server.http) as client:
        assert [int(d) for d in client.get_model_config("rows")["output"][0]["dims"]] == [-1]
        assert [int(d) for d in client.get_model_config("within")["output"][0]["dims"]] == [-1]


def asked(client, module, name, x, **how):
    tensor = module.InferInput("x", x.shape, "FP32")
    tensor.set_data_from_numpy(x)
    outputs = [module.InferRequestedOutput("y", **how)]
    return client.infer(name, [tensor], outputs=outputs, timeout=MINUTE).as_numpy("y")


BY_DATA = {"rank_by_data": ([(1, 2, 4), (3, 2, 4), (5, 2, 4)], [-1]), "fixed_rank_by_data": ([(3, 2, 4)], [-1]),
           "extents_by_data": ([(1, 2, 4), (4, 2, 4), (5, 2, 4)], [-1, 2, -1]), "shrinking": ([(6, 4)], [-1, 4])}


@pytest.mark.parametrize("name", BY_DATA)
def test_the_shape_is_that_of_the_branch(client, module, models, name):
    sizes, shape = BY_DATA[name]
    reference = onnxruntime.InferenceSession(str(models / name / "1" / "model.onnx"), providers=["CPUExecutionProvider"])
    shapes = set()
    for size in sizes:
        for seed in range(6):
            x = np.random.default_rng(seed).standard_normal(size).astype(np.float32)
            want = reference.run(None, {"x": x})[0]
            for how in [{}, {"binary_data": False}] if module is http_client else [{}]:
                got = asked(client, module, name, x, **how)
                assert got.shape == want.shape, (size, seed)
                np.testing.assert_allclose(got, want, rtol=1e-6)
            shapes.add((size, want.shape))
    assert len(shapes) > len(sizes)
    metadata = client.get_model_metadata(name)
    told = metadata["outputs"][0]["shape"] if module is http_client else metadata.outputs[0].shape
    assert [int(d) for d in told] == shape
    config = client.get_model_config(name)
    dims = config["output"][0]["dims"] if module is http_client else config.config.output[0].dims
    assert [int(d) for d in dims] == shape


def test_data_that_choose_a_branch_that_does_not_fit_are_bad(client, module):
    x = np.ones((3, 2, 4), np.float32)
    np.testing.assert_allclose(asked(client, module, "misfit", -x), np.full((3, 2, 5), -4))
    with pytest.raises(InferenceServerException) as refused:
        asked(client, module, "misfit", x)
    assert "400" in str(refused.value) or "INVALID_ARGUMENT" in str(refused.value.status())
    assert "then_branch" in str(refused.value) and "(MatMul)" in str(refused.value)
    np.testing.assert_allclose(asked(client, module, "misfit", -x), np.full((3, 2, 5), -4))
