"""Data that OpenVINO refuses while it runs are the client's fault, and leave the model as good as before."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
import tritonclient.http as http_client
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from tritonclient.utils import InferenceServerException

from loopback import serving, write_model
from raw_http import MINUTE
from test_gone_clients import wait_until


def value(name, shape, type=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, type, shape)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write_model(folder, "scatter", [helper.make_node("ScatterElements", ["x", "at", "by"], ["y"], axis=0)],
                [value("x", [5]), value("at", [5], TensorProto.INT64), value("by", [5])], value("y", [5]))
    # How long x must be at least is not in its type.
    write_model(folder, "best", [helper.make_node("TopK", ["x", "two"], ["y", "places"], axis=0)],
                [value("x", ["n"])], value("y", [2]), [numpy_helper.from_array(np.array([2]), "two")])
    for name in ("scatter", "best"):
        (folder / name / "config.pbtxt").write_text('parameters { key: "engine" value { string_value: "openvino" } }')
    return folder


@pytest.fixture(scope="module", params=["apart", "inside"])
def server(request, program, models, tmp_path_factory):
    with serving(program, models, tmp_path_factory.mktemp("log") / "server.log", "--second-engine", request.param) as running:
        yield running


def ask(client, module, model, **arrays):
    tensors = []
    for name, array in arrays.items():
        tensors.append(module.InferInput(name, array.shape, "INT64" if array.dtype == np.int64 else "FP32"))
        tensors[-1].set_data_from_numpy(array)
    return client.infer(model, tensors, timeout=MINUTE).as_numpy("y")


def refused(client, module, model, **arrays):
    with pytest.raises(InferenceServerException) as error:
        ask(client, module, model, **arrays)
    status = "400" if module is http_client else "StatusCode.INVALID_ARGUMENT"
    assert str(error.value.status()) == status, error.value
    return str(error.value)


X, BY = np.arange(5, dtype=np.float32), np.full(5, 9, np.float32)


def test_an_index_beyond_the_data_is_the_clients_fault(client, module):
    # The first request of all is a bad one: then OpenVINO's operators are tried on other data.
    for bad in ([0, 1, 2, 3, 7], [5, 1, 2, 3, 4]):
        text = refused(client, module, "scatter", x=X, at=np.array(bad), by=BY)
        assert "ScatterElementsUpdate" in text and "'y'" in text, text
        assert "Exception from" not in text
        got = ask(client, module, "scatter", x=X, at=np.array([0, 1, 1, 0, 4]), by=BY)
        np.testing.assert_array_equal(got, [9, 9, 2, 3, 9])


def test_a_size_that_only_a_run_refuses_is_the_clients_fault(client, module):
    for _ in range(2):
        text = refused(client, module, "best", x=np.ones(1, np.float32))
        assert "TopK" in text, text
        wait_until(lambda: client.is_model_ready("best"), "it is not compiled anew")
        np.testing.assert_array_equal(ask(client, module, "best", x=X), [4, 3])


def test_only_these_requests_failed(client, module, server):
    if module is not http_client:
        pytest.skip("one look is enough")
    statistics = client.get_inference_statistics("scatter")["model_stats"][0]["inference_stats"]
    assert statistics["success"]["count"] > 0
    assert client.is_model_ready("scatter") and client.is_model_ready("best")


# Of each: nodes, inputs but the sizes `s`, sizes that are right, and sizes that are not with what is said of them.
def total(name):
    return helper.make_node("ReduceSum", [name], ["y"], keepdims=0)


ONES = numpy_helper.from_array(np.ones(1, np.float32))
SIZES = {
    "tiled": ([helper.make_node("Tile", ["x", "s"], ["t"]), total("t")], [2, 3], [[1, 2], [0, 3]],
              [([-1, 2], "Tile 't' has a number of repeats of -1"), ([2, -3], "Tile 't' has a number of repeats of -3")]),
    "expanded": ([helper.make_node("Expand", ["x", "s"], ["t"]), total("t")], [2, 3], [[2, 3], [1, 1]],
                 [([-1, 3], "-1"), ([2, -3], "-3"), ([-4, -5], "-5")]),
    "filled": ([helper.make_node("ConstantOfShape", ["s"], ["c"], value=ONES), helper.make_node("ReduceSum", ["c"], ["f"], keepdims=0),
                helper.make_node("ReduceMax", ["x"], ["m"], keepdims=0), helper.make_node("Add", ["f", "m"], ["y"])], [2, 3],
               [[2, 2], [4, 1]], [([-1, 2], "-1"), ([2, -7], "-7")]),
    "parted": ([helper.make_node("Split", ["x", "s"], ["t", "u"], axis=1), helper.make_node("ReduceSum", ["t"], ["a"], keepdims=0),
                helper.make_node("ReduceSum", ["u"], ["b"], keepdims=0), helper.make_node("Sub", ["a", "b"], ["y"])], [2, 3],
               [[1, 2], [2, 1]], [([-1, 4], ""), ([4, -1], ""), ([-1, 3], "a length of -1"), ([2, 2], "")]),
    "reshaped": ([helper.make_node("Reshape", ["x", "s"], ["t"]), total("t")], [2, 3], [[3, 2], [-1, 2]],
                 [([-2, 3], "Reshape 't' is told [-2,3], which [2,3] cannot be reshaped to"), ([-2, -3], "is told [-2,-3]"),
                  ([4, 2], "is told [4,2]"), ([-1, -1], "is told [-1,-1]"), ([-1, 4], "is told [-1,4]"), ([0, 2], "is told [0,2]")]),
    "resized": ([helper.make_node("Resize", ["x", "", "", "s"], ["t"], mode="nearest"), total("t")], [2, 3], [[4, 3], [2, 6]],
                [([-1, 3], ""), ([2, -6], "")]),
    "scaled": ([helper.make_node("Cast", ["s"], ["f"], to=TensorProto.FLOAT), helper.make_node("Resize", ["x", "", "f"], ["t"], mode="nearest"),
                total("t")], [2, 3], [[2, 1], [1, 3]], [([0, 1], "a scale of 0; it must be above 0"), ([-1, 1], "a scale of -1")]),
    "ranged": ([helper.make_node("Split", ["s"], ["l", "d"], axis=0), helper.make_node("Squeeze", ["l"], ["limit"]),
                helper.make_node("Squeeze", ["d"], ["delta"]), helper.make_node("Range", ["none", "limit", "delta"], ["r"]),
                helper.make_node("Cast", ["r"], ["f"], to=TensorProto.FLOAT), helper.make_node("ReduceSum", ["f"], ["t"], keepdims=0),
                helper.make_node("ReduceMax", ["x"], ["m"], keepdims=0), helper.make_node("Add", ["t", "m"], ["y"])], [2, 3],
               [[5, 1], [5, 2], [-4, -1]], [([5, 0], "Range 'r' has a delta of 0")]),
    "padded": ([helper.make_node("Concat", ["s", "none"], ["p"], axis=0), helper.make_node("Pad", ["x", "p"], ["t"]), total("t")],
               [2, 3], [[1, 0], [-1, 2]], [([-3, 0], ""), ([0, -4], "")]),
}


@pytest.fixture(scope="module")
def sized(program, tmp_path_factory):
    folder = tmp_path_factory.mktemp("sized")
    for name, (nodes, shape, _, _) in SIZES.items():
        write_model(folder, name, nodes, [value("x", shape), value("s", [2], TensorProto.INT64)], value("y", []),
                    [numpy_helper.from_array(np.zeros([2] * (name == "padded"), np.int64), "none")] if name in ("padded", "ranged") else [])
    write_model(folder, "grouped", [helper.make_node("Conv", ["x", "w"], ["y"], auto_pad="SAME_UPPER", group=2, kernel_shape=[1, 1, 3])],
                [value("x", [1, 2, 3, 3, 2])], value("y", [1, 6, 3, 3, 2]),
                [numpy_helper.from_array(np.arange(18, dtype=np.float32).reshape(6, 1, 1, 1, 3), "w")])
    for upper in (0, 1):
        write_model(folder, f"triangle_{upper}", [helper.make_node("Trilu", ["x", "s"], ["y"], upper=upper)],
                    [value("x", ["a", "b"]), value("s", [], TensorProto.INT64)], value("y", ["a", "b"]))
    for largest in (0, 1):
        write_model(folder, f"ties_{largest}", [helper.make_node("TopK", ["x", "s"], ["v", "y"], axis=0, largest=largest)],
                    [value("x", [60]), value("s", [1], TensorProto.INT64)], value("y", [None], TensorProto.INT64))
    body = helper.make_graph([helper.make_node("Identity", ["go"], ["on"]), helper.make_node("Add", ["a", "one"], ["b"])], "body",
                             [value("i", [], TensorProto.INT64), value("go", [], TensorProto.BOOL), value("a", [])],
                             [value("on", [], TensorProto.BOOL), value("b", [])], [numpy_helper.from_array(np.float32(1), "one")])
    write_model(folder, "turns", [helper.make_node("Squeeze", ["s"], ["n"]), helper.make_node("ReduceMax", ["x"], ["m"], keepdims=0),
                                  helper.make_node("Loop", ["n", "yes", "m"], ["y"], body=body)],
                [value("x", [2]), value("s", [1], TensorProto.INT64)], value("y", []), [numpy_helper.from_array(np.array(True), "yes")])
    for each in folder.iterdir():
        (each / "config.pbtxt").write_text('parameters { key: "engine" value { string_value: "openvino" } }')
    with serving(program, folder, tmp_path_factory.mktemp("log") / "server.log") as running:
        yield running, folder


@pytest.fixture
def sized_client(module, sized):
    with module.InferenceServerClient(sized[0].http if module is http_client else sized[0].grpc) as connected:
        yield connected


def by_reference(folder, model, **arrays):
    return ReferenceEvaluator(onnx.load(folder / model / "1" / "model.onnx")).run(None, arrays)[0]


@pytest.mark.parametrize("model", SIZES)
def test_sizes_from_data_that_mean_nothing_are_refused(sized_client, module, sized, model):
    _, shape, good, bad = SIZES[model]
    x = np.arange(1, 1 + np.prod(shape), dtype=np.float32).reshape(shape)
    for sizes in good:
        session = onnxruntime.InferenceSession(sized[1] / model / "1" / "model.onnx")
        want = session.run(None, {"x": x, "s": np.array(sizes)})[0]
        wait_until(lambda: sized_client.is_model_ready(model), "it is not compiled anew")
        np.testing.assert_allclose(ask(sized_client, module, model, x=x, s=np.array(sizes)), want, rtol=1e-6)
        for sizes, text in bad:
            wait_until(lambda: sized_client.is_model_ready(model), "it is not compiled anew")
            assert text in refused(sized_client, module, model, x=x, s=np.array(sizes)), sizes


def test_a_reshape_that_does_not_fit_costs_no_compilation(sized_client, module, sized):
    """Others' requests would be refused meanwhile."""
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    for sizes in ([4, 2], [-1, 4], [-2, 3]):
        refused(sized_client, module, "reshaped", x=x, s=np.array(sizes))
        for good in ([3, 2], [0, -1], [6, 1]):
            assert ask(sized_client, module, "reshaped", x=x, s=np.array(good)) == 15


@pytest.mark.parametrize("upper", [0, 1])
def test_a_diagonal_far_outside_is_that_of_a_corner(sized_client, module, sized, upper):
    x = np.arange(1, 13, dtype=np.float32).reshape(3, 4)
    for k in (0, 1, 3, 4, 5, 2**31 - 1, 2**31 - 3, -1, -2, -3, -4, -(2**31)):
        want = np.triu(x, k) if upper else np.tril(x, k)
        np.testing.assert_array_equal(ask(sized_client, module, f"triangle_{upper}", x=x, s=np.array(k)), want, err_msg=str(k))


def test_openvinos_own_splits_may_take_what_is_left(sized_client, module, sized):
    x = np.arange(36, dtype=np.float32).reshape(1, 2, 3, 3, 2)
    want = onnxruntime.InferenceSession(sized[1] / "grouped" / "1" / "model.onnx").run(None, {"x": x})[0]
    np.testing.assert_allclose(ask(sized_client, module, "grouped", x=x), want, rtol=1e-6)


@pytest.mark.parametrize("largest", [0, 1])
def test_of_what_is_alike_the_first_comes_first(sized_client, module, sized, largest):
    """A k that is an input, too."""
    x = np.random.default_rng(3).integers(0, 3, 60).astype(np.float32)
    for k in (1, 7, 30, 60):
        want = by_reference(sized[1], f"ties_{largest}", x=x, s=np.array([k]))
        order = np.argsort(-x if largest else x, kind="stable")[:k]
        np.testing.assert_array_equal(want, order)
        np.testing.assert_array_equal(ask(sized_client, module, f"ties_{largest}", x=x, s=np.array([k])), order)


@pytest.mark.parametrize("trips", [3, 1, 0, -1, -5])
def test_a_trip_count_below_0_is_0(sized_client, module, trips):
    got = ask(sized_client, module, "turns", x=np.array([2, 1], np.float32), s=np.array([trips]))
    np.testing.assert_array_equal(got, 2 + max(trips, 0))
