"""Data that OpenVINO refuses while it runs are the client's fault, and leave the model as good as before."""

from __future__ import annotations

import numpy as np
import pytest
import tritonclient.http as http_client
from onnx import TensorProto, helper, numpy_helper
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
