"""Transforms of one side have the shape that ONNX says, on OpenVINO too: the last dimension, of 1, goes."""

from __future__ import annotations

import numpy as np
import pytest
import tritonclient.http as http_client
from onnx import TensorProto, helper, numpy_helper

from loopback import serving, write_model
from raw_http import MINUTE

# Of each: the model's shape, axes, the length, shapes that are asked. An axis may count from the end.
CASES = {
    "open": (["n", "t", 1], 1, 3, [(2, 3, 1), (5, 4, 1)]),
    "first": (["n", "t", 1], 0, 2, [(2, 1, 1), (4, 3, 1)]),
    "fixed": ([2, 4, 1], 1, 4, [(2, 4, 1)]),
    "behind": (["n", "t", 1], -2, 3, [(2, 3, 1), (5, 4, 1)]),
    "deep": (["n", 2, "t", 1], 2, 3, [(3, 2, 5, 1)]),
}


@pytest.fixture(scope="module", params=["openvino", "carillon"])
def server(request, program, tmp_path_factory):
    folder = tmp_path_factory.mktemp("transforms")
    for name, (shape, axis, length, _) in CASES.items():
        write_model(folder, name, [helper.make_node("DFT", ["x", "length"], ["y"], name="the_DFT", axis=axis, onesided=1)],
                    [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
                    helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * len(shape)),
                    [numpy_helper.from_array(np.array(length, np.int64), "length")])
        (folder / name / "config.pbtxt").write_text(
            f'max_batch_size: 0\nparameters {{ key: "engine" value {{ string_value: "{request.param}" }} }}')
    with serving(program, folder, tmp_path_factory.mktemp("log") / "server.log") as running:
        yield running


@pytest.mark.parametrize("name", CASES)
def test_a_transform_of_one_side(server, name):
    _, axis, length, shapes = CASES[name]
    with http_client.InferenceServerClient(server.http, network_timeout=MINUTE) as client:
        for shape in shapes:
            x = np.random.default_rng(3).standard_normal(shape).astype(np.float32)
            asked = http_client.InferInput("x", list(shape), "FP32")
            asked.set_data_from_numpy(x)
            answer = client.infer(name, [asked]).as_numpy("y")
            want = np.fft.rfft(x[..., 0].astype(np.float64), length, axis=axis if axis >= 0 else axis + 1)
            want = np.stack([want.real, want.imag], -1)
            assert answer.shape == want.shape, (shape, answer.shape)
            np.testing.assert_allclose(answer, want, atol=1e-4)
