"""Models whose outputs' size the data decide, on our own engine and on the second, as onnxruntime answers them."""

from __future__ import annotations

import contextlib
import uuid

import numpy as np
import onnx
import onnxruntime
import pytest
import tritonclient.http as http_client
import tritonclient.utils.shared_memory as shm
from onnx import TensorProto, helper, numpy_helper
from tritonclient.utils import InferenceServerException

from loopback import serving, write_model
from raw_http import MINUTE

# Of each: what it takes, at sizes that differ where it takes any.
IMAGES = {"detector": [(1, 3, 32, 32)], "detector_open": [(1, 3, 32, 32), (1, 3, 48, 20), (1, 3, 32, 32)]}
VECTORS = ["found", "found_second"]

# What is made of `n`, which may be less than 0.
SIZED = {
    "tiled": [helper.make_node("Tile", ["some", "n"], ["y"])],
    "filled": [helper.make_node("ConstantOfShape", ["n"], ["y"])],
    "expanded": [helper.make_node("Expand", ["alone", "n"], ["y"])],
}


def value(name, shape, type=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, type, shape)


def constant(name, values, type=np.int64):
    return numpy_helper.from_array(np.array(values, type), name)


def write(folder, name, nodes, inputs, outputs, weights, domain=None):
    write_model(folder, name, nodes, inputs, outputs[0], weights)
    path = folder / name / "1" / "model.onnx"
    model = onnx.load(path)
    model.graph.output.extend(outputs[1:])
    if domain:
        model.opset_import.append(helper.make_opsetid(domain, 1))
    onnx.save(model, path)


def detector(folder, name, height, width):
    """A convolution makes boxes and the scores of five classes; what is kept is gathered as exporters write it."""
    rng = np.random.default_rng(3)
    weights = [numpy_helper.from_array(rng.standard_normal((9, 3, 3, 3)).astype(np.float32), "w"),
               constant("by_place", [0, 9, -1]), constant("parts", [4, 5]), constant("most", [20]),
               constant("overlap", [0.4], np.float32), constant("least", [0.6], np.float32), constant("first", [0]),
               constant("last", [-1]), constant("two", [2]), constant("three", [3]), constant("one", [1])]
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"], strides=[2, 2]),
             helper.make_node("Reshape", ["c", "by_place"], ["r"]),
             helper.make_node("Split", ["r", "parts"], ["b", "s"], axis=1),
             helper.make_node("Transpose", ["b"], ["boxes"], perm=[0, 2, 1]), helper.make_node("Sigmoid", ["s"], ["scores"]),
             helper.make_node("NonMaxSuppression", ["boxes", "scores", "most", "overlap", "least"], ["kept"]),
             helper.make_node("Slice", ["kept", "two", "three", "last"], ["places_"]),
             helper.make_node("Squeeze", ["places_", "last"], ["places"]),
             helper.make_node("Slice", ["kept", "one", "two", "last"], ["labels"]),
             helper.make_node("Squeeze", ["boxes", "first"], ["all_boxes"]),
             helper.make_node("Gather", ["all_boxes", "places"], ["rows"], axis=0),
             helper.make_node("Cast", ["labels"], ["as_numbers"], to=TensorProto.FLOAT),
             helper.make_node("Concat", ["rows", "as_numbers"], ["y"], axis=1)]
    write(folder, name, nodes, [value("x", [1, 3, height, width])],
          [value("y", [None, 5]), value("kept", [None, 3], TensorProto.INT64)], weights)


def found(folder, name, second=False):
    """Which of twelve numbers are above 1, what they are, and how many."""
    scale = helper.make_node("FusedMatMul", ["x", "w"], ["m"], domain="com.microsoft") if second else \
        helper.make_node("MatMul", ["x", "w"], ["m"])
    nodes = [scale, helper.make_node("Greater", ["m", "least"], ["mask"]), helper.make_node("NonZero", ["mask"], ["where"]),
             helper.make_node("Transpose", ["where"], ["places"]), helper.make_node("GatherND", ["m", "places"], ["y"]),
             helper.make_node("Shape", ["y"], ["count"])]
    write(folder, name, nodes, [value("x", [3, 4])],
          [value("y", [None]), value("places", [None, 2], TensorProto.INT64), value("count", [1], TensorProto.INT64)],
          [numpy_helper.from_array(np.eye(4, dtype=np.float32), "w"), constant("least", 1, np.float32)],
          "com.microsoft" if second else None)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bounded")
    detector(folder, "detector", 32, 32)
    detector(folder, "detector_open", "height", "width")
    found(folder, "found")
    found(folder, "found_second", second=True)
    # Pairs of what is found: an odd number has none.
    write(folder, "pairs", [helper.make_node("NonZero", ["x"], ["where"]), helper.make_node("Reshape", ["where", "two"], ["y"])],
          [value("x", [4])], [value("y", [2, None], TensorProto.INT64)], [constant("two", [2, -1])])
    # As many as are found, less three.
    for name, nodes in SIZED.items():
        write(folder, name, [helper.make_node("NonZero", ["x"], ["where"]), helper.make_node("Shape", ["where"], ["shape"], start=1),
                             helper.make_node("Sub", ["shape", "three"], ["n"]), *nodes], [value("x", [6])],
              [value("y", [None])], [constant("three", [3]), constant("some", [1, 2], np.float32), constant("alone", [4], np.float32)])
    return folder


@pytest.fixture(scope="module")
def server(program, models, tmp_path_factory):
    with serving(program, models, tmp_path_factory.mktemp("log") / "server.log") as running:
        yield running


def tensor_of(module, x):
    made = module.InferInput("x", x.shape, "FP32")
    made.set_data_from_numpy(x)
    return made


def wanted(models, model, x):
    session = onnxruntime.InferenceSession(str(models / model / "1" / "model.onnx"), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, {"x": x})))


def check(client, module, models, model, x, **how):
    want = wanted(models, model, x)
    outputs = [module.InferRequestedOutput(name, **how) for name in want]
    answer = client.infer(model, [tensor_of(module, x)], outputs=outputs, timeout=MINUTE)
    for name, array in want.items():
        got = answer.as_numpy(name)
        assert got.shape == array.shape and got.dtype == array.dtype, name
        np.testing.assert_allclose(got, array, atol=1e-4)
    return want


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("model", IMAGES)
def test_boxes_are_kept_as_onnxruntime_keeps_them(client, module, models, model):
    counts = set()
    for seed, shape in enumerate(IMAGES[model]):
        for scale in (1, 0.05, 0):  # at 0 no score is enough
            want = check(client, module, models, model, scale * numbers(*shape, seed=seed))
            counts.add(len(want["y"]))
    assert 0 in counts and len(counts) > 2


@pytest.mark.parametrize("model", VECTORS)
def test_what_is_found_is_answered(client, module, models, model):
    for seed in range(3):
        check(client, module, models, model, numbers(3, 4, seed=seed))
    assert wanted(models, model, np.ones((3, 4), np.float32))["y"].shape == (0,)
    for x in (np.ones((3, 4), np.float32), 2 * np.ones((3, 4), np.float32)):  # nothing, and everything
        check(client, module, models, model, x)


def test_each_runs_where_it_should(server):
    with http_client.InferenceServerClient(server.http) as client:
        reasons = {entry["name"]: entry.get("reason", "") for entry in client.get_model_repository_index()}
    assert reasons.pop("found_second").startswith("openvino")
    assert set(reasons.values()) == {""}


@pytest.mark.parametrize("model", VECTORS)
def test_answers_in_json(server, models, model):
    with http_client.InferenceServerClient(server.http) as client:
        for x in (numbers(3, 4), np.zeros((3, 4), np.float32)):
            check(client, http_client, models, model, x, binary_data=False)


def test_metadata_leave_open_what_data_decide(client, module):
    as_dict = {} if module is http_client else {"as_json": True}
    told = client.get_model_metadata("found", **as_dict)
    shapes = {output["name"]: [int(d) for d in output["shape"]] for output in told["outputs"]}
    assert shapes == {"y": [-1], "places": [-1, 2], "count": [1]}
    config = client.get_model_config("detector", **as_dict)
    config = config.get("config", config)
    assert int(config.get("max_batch_size", 0)) == 0


def test_data_that_do_not_fit_are_the_clients_fault(client, module, models):
    with pytest.raises(InferenceServerException) as refused:
        client.infer("pairs", [tensor_of(module, np.array([1, 1, 1, 0], np.float32))], timeout=MINUTE)
    assert "400" in str(refused.value) or "INVALID_ARGUMENT" in str(refused.value.status())
    assert "Reshape" in str(refused.value)
    check(client, module, models, "pairs", np.array([1, 0, 1, 0], np.float32))


def test_such_outputs_have_no_classes(client, module):
    output = module.InferRequestedOutput("y", class_count=2)
    with pytest.raises(InferenceServerException, match="has no classes"):
        client.infer("found", [tensor_of(module, numbers(3, 4))], outputs=[output], timeout=MINUTE)


@contextlib.contextmanager
def region(client, size):
    key = f"/carillon-bounded-{uuid.uuid4().hex[:12]}"
    handle = shm.create_shared_memory_region(key[1:], key, size, create_only=True)
    client.register_system_shared_memory("out", key, size)
    try:
        yield handle
    finally:
        client.unregister_system_shared_memory("out")
        shm.destroy_shared_memory_region(handle)


def test_shared_memory_takes_what_there_is(client, module, models):
    x = 3 * numbers(3, 4)
    want = wanted(models, "found", x)["y"]
    assert 1 < len(want) < 12
    with region(client, 4096) as handle:
        output = module.InferRequestedOutput("y")
        output.set_shared_memory("out", want.nbytes)  # less than the most that there can be
        client.infer("found", [tensor_of(module, x)], outputs=[output], timeout=MINUTE)
        np.testing.assert_array_equal(shm.get_contents_as_numpy(handle, np.float32, list(want.shape)), want)
        output.set_shared_memory("out", want.nbytes - 4)
        with pytest.raises(InferenceServerException, match="shared_memory_byte_size gives it only"):
            client.infer("found", [tensor_of(module, x)], outputs=[output], timeout=MINUTE)


@pytest.mark.parametrize("model", SIZED)
def test_a_size_below_0_is_refused_with_its_number(client, module, models, model):
    for found in (3, 4, 6, 3):
        check(client, module, models, model, np.array([1] * found + [0] * (6 - found), np.float32))
    for found in (0, 2):
        with pytest.raises(InferenceServerException) as refused:
            client.infer(model, [tensor_of(module, np.array([1] * found + [0] * (6 - found), np.float32))], timeout=MINUTE)
        assert "400" in str(refused.value) or "INVALID_ARGUMENT" in str(refused.value.status())
        assert f"[{found - 3}]" in str(refused.value) and "node" in str(refused.value), refused.value
