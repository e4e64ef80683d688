"""Models that refuse the zeros by which they are measured are ready all the same, and answer what fits them."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
import tritonclient.http as http_client
from onnx import TensorProto, helper, numpy_helper
from tritonclient.utils import InferenceServerException

from loopback import serving, write_model
from raw_http import MINUTE
from test_gone_clients import wait_until

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
TYPES = {np.dtype(np.float32): "FP32", np.dtype(np.int64): "INT64"}

X = np.arange(1, 7, dtype=np.float32).reshape(2, 3)
LONG = np.arange(35, dtype=np.float32)
IMAGE = np.arange(12, dtype=np.float32).reshape(1, 1, 3, 4)
ROOM = np.arange(16, dtype=np.float32).reshape(2, 8)


def total(name):
    return helper.make_node("ReduceSum", [name], ["y"], keepdims=0)


def whole(*numbers):
    return np.array(numbers, np.int64)


def real(*numbers):
    return np.array(numbers, np.float32)


# Of each: nodes, inputs, good data, bad data (or None), constants, whether some data that are made up run.
MODELS = {
    "reshaped": ([helper.make_node("Reshape", ["x", "s"], ["r"]), total("r")], {"x": [2, 3], "s": [2]},
                 {"x": X, "s": whole(3, 2)}, {"x": X, "s": whole(4, 2)}, {}, True),
    "resized": ([helper.make_node("Resize", ["x", "", "s"], ["r"], mode="nearest"), total("r")], {"x": [1, 1, 3, 4], "s": [4]},
                {"x": IMAGE, "s": real(1, 1, 2, 1)}, {"x": IMAGE, "s": real(1, 1, 0, 1)}, {}, True),
    "ranged": ([helper.make_node("Range", ["a", "b", "s"], ["r"]), total("r")], {"a": [], "b": [], "s": []},
               {"a": np.float32(0), "b": np.float32(5), "s": np.float32(1)}, None, {}, True),
    # Only 5 x 7 fits the weights, or only 4 columns: no data that are made up do.
    "five_by_seven": ([helper.make_node("Reshape", ["x", "s"], ["r"]), helper.make_node("MatMul", ["r", "w"], ["p"]), total("p")],
                      {"x": [35], "s": [2]}, {"x": LONG, "s": whole(5, 7)}, {"x": LONG, "s": whole(7, 5)},
                      {"w": np.ones((7, 3), np.float32)}, False),
    "four_columns": ([helper.make_node("Slice", ["x", "zero", "s", "one"], ["r"]), helper.make_node("MatMul", ["r", "w"], ["p"]),
                      total("p")], {"x": [2, 8], "s": [1]}, {"x": ROOM, "s": whole(4)}, {"x": ROOM, "s": whole(3)},
                     {"w": np.ones((4, 3), np.float32), "zero": whole(0), "one": whole(1)}, False),
}
MODELS["asked_in_time"] = (*MODELS["four_columns"][:3], None, *MODELS["four_columns"][4:])
OWN = {
    # As many places as are found, and three numbers: OpenVINO runs it, as ours plans for extents that fit always.
    "three_found": ([helper.make_node("NonZero", ["x"], ["n"]), helper.make_node("Cast", ["n"], ["c"], to=FLOAT),
                     helper.make_node("Add", ["c", "three"], ["a"]), total("a")], {"x": [6]}, {"x": real(1, 0, 2, 0, 0, 3)},
                    {"x": real(1, 0, 2, 0, 0, 0)}, {"three": np.ones((1, 3), np.float32)}, False),
    "divided": ([helper.make_node("Div", ["a", "s"], ["q"]), helper.make_node("Cast", ["q"], ["c"], to=FLOAT), total("c")],
                {"a": [3], "s": [3]}, {"a": whole(9, 8, 7), "s": whole(1, 2, 3)}, {"a": whole(9, 8, 7), "s": whole(1, 0, 3)}, {}, True),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("refused")
    for name, (nodes, inputs, good, _, constants, _) in {**MODELS, **OWN}.items():
        types = {np.dtype(np.float32): FLOAT, np.dtype(np.int64): INT64}
        write_model(folder, name, nodes, [helper.make_tensor_value_info(input, types[good[input].dtype], shape)
                                          for input, shape in inputs.items()], helper.make_tensor_value_info("y", FLOAT, []),
                    [numpy_helper.from_array(array, constant) for constant, array in constants.items()])
        if name in MODELS:
            (folder / name / "config.pbtxt").write_text('parameters { key: "engine" value { string_value: "openvino" } }')
    return folder


@pytest.fixture(scope="module", params=["apart", "inside"])
def served(request, program, models, tmp_path_factory):
    log = tmp_path_factory.mktemp("log") / "server.log"
    with serving(program, models, log, "--second-engine", request.param) as running:
        yield running, log


@pytest.fixture(scope="module")
def server(served):
    return served[0]


def ask(client, module, model, data, deadline=MINUTE):
    tensors = []
    for name, array in data.items():
        tensors.append(module.InferInput(name, list(array.shape), TYPES[array.dtype]))
        tensors[-1].set_data_from_numpy(np.asarray(array))
    return client.infer(model, tensors, timeout=deadline).as_numpy("y")


@pytest.mark.parametrize("model", [*MODELS, *OWN])
def test_is_ready_and_answers(client, module, models, model):
    _, _, good, bad, _, _ = {**MODELS, **OWN}[model]
    session = onnxruntime.InferenceSession(models / model / "1" / "model.onnx")
    want = session.run(None, {name: np.asarray(array) for name, array in good.items()})[0]
    for _ in range(2):
        np.testing.assert_allclose(ask_when_ready(client, module, model, good), want, rtol=1e-5)
        if bad is None:
            continue
        with pytest.raises(InferenceServerException) as error:
            ask(client, module, model, bad)
        assert str(error.value.status()) in ("400", "StatusCode.INVALID_ARGUMENT"), error.value


def ask_when_ready(client, module, model, data):
    """A refused run leaves OpenVINO's model to be compiled anew."""
    wait_until(lambda: client.is_model_ready(model), "it is not compiled anew")
    return ask(client, module, model, data)


@pytest.mark.parametrize("model", [*MODELS, *OWN])
def test_says_what_was_never_measured(served, model):
    lines = [line for line in served[1].read_text().splitlines() if f"{model} version" in line and "its time was not measured" in line]
    assert len(lines) == (0 if {**MODELS, **OWN}[model][5] else 1), lines


def test_a_deadline_is_kept_where_nothing_was_measured(client, module):
    """The estimate of what was never measured is no reason to refuse for ever."""
    for _ in range(3):
        assert ask(client, module, "asked_in_time", MODELS["four_columns"][2], deadline=2_000_000) is not None


def test_is_ready_where_it_comes_beside_others(program, models, tmp_path):
    """Measured on threads and memory of its own, while others are served."""
    log = tmp_path / "server.log"
    with serving(program, models, log, "--model-control-mode", "explicit") as running:
        with http_client.InferenceServerClient(running.http) as client:
            for model in ("five_by_seven", "reshaped"):
                client.load_model(model)
                good = MODELS[model][2]
                assert ask_when_ready(client, http_client, model, good).shape == ()
    assert log.read_text().count("its time was not measured") == 1
