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


# OpenVINO does not read the axis of opset 20 and later: the operand and whether the rank is told, or why not.
BY_OPERAND = {
    "one": (1, ["n", "t", 2], ""),
    "behind": (-2, [2, 4, 2], ""),
    "left_out": (None, [2, 4, 2], ""),
    "first": (0, ["n", "t", 2], "axis 0 is meant"),
    "deep": (-2, [2, 3, 4, 2], "axis 2 is meant"),
    "deep_left_out": (None, [2, 3, 4, 2], "axis 2 is meant"),
    "data": ("axis", [2, 4, 2], "the file does not say which axis is meant: it is no constant in it"),
}


@pytest.mark.parametrize("engine", ["openvino", "carillon"])
def test_an_axis_that_openvino_does_not_read(program, tmp_path, engine):
    models = tmp_path / "models"
    for name, (axis, shape, _) in BY_OPERAND.items():
        if axis == "axis" and engine == "carillon":
            continue
        inputs, constants, asked = ["x", ""], [], [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
        if axis is not None:
            inputs.append("axis")
        if axis == "axis":
            asked.append(helper.make_tensor_value_info("axis", TensorProto.INT64, []))
        elif axis is not None:
            constants.append(numpy_helper.from_array(np.array(axis, np.int64), "axis"))
        write_model(models, name, [helper.make_node("DFT", inputs, ["y"], name="the_DFT")], asked,
                    helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * len(shape)), constants, opset=20)
        (models / name / "config.pbtxt").write_text(
            f'max_batch_size: 0\nparameters {{ key: "engine" value {{ string_value: "{engine}" }} }}')
    log = tmp_path / "server.log"
    with serving(program, models, log, "--strict-readiness", "false") as running:
        said = log.read_text()
        with http_client.InferenceServerClient(running.http, network_timeout=MINUTE) as client:
            for name, (axis, shape, why) in BY_OPERAND.items():
                if why and engine == "openvino":
                    assert f"node 'the_DFT' (DFT): OpenVINO transforms axis 1, and {why}" in said, name
                    assert not client.is_model_ready(name)
                if axis == "axis" or (why and engine == "openvino"):
                    continue
                given = [{"n": 2, "t": 5}.get(extent, extent) for extent in shape]
                x = np.random.default_rng(5).standard_normal(given).astype(np.float32)
                tensor = http_client.InferInput("x", given, "FP32")
                tensor.set_data_from_numpy(x)
                answer = client.infer(name, [tensor]).as_numpy("y")
                along = -2 if axis is None else axis
                want = np.fft.fft(x[..., 0] + 1j * x[..., 1], axis=along + 1 if along < 0 else along)
                np.testing.assert_allclose(answer, np.stack([want.real, want.imag], -1), atol=1e-4)
