"""What a mask hides with Where is hidden, whatever the keys hold, as ONNX has it."""

from __future__ import annotations

import warnings

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from loopback import serving, write_model
from raw_http import MINUTE

SHAPES = {"q": [1, 2, 8, 4], "k": [1, 2, 8, 4], "v": [1, 2, 8, 4], "mask": [1, 1, 1, 8]}
HIDDEN = {"infinity": -np.inf, "number": np.finfo(np.float32).min}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("masked")
    for name, hidden in HIDDEN.items():
        for engine in ("carillon", "openvino"):
            nodes = [helper.make_node("Transpose", ["k"], ["turned"], perm=[0, 1, 3, 2]),
                     helper.make_node("MatMul", ["q", "turned"], ["products"]), helper.make_node("Mul", ["products", "half"], ["s"]),
                     helper.make_node("Where", ["mask", "s", "hidden"], ["masked"]),
                     helper.make_node("Softmax", ["masked"], ["weights"], axis=-1), helper.make_node("MatMul", ["weights", "v"], ["y"])]
            inputs = [helper.make_tensor_value_info(input, TensorProto.BOOL if input == "mask" else TensorProto.FLOAT, shape)
                      for input, shape in SHAPES.items()]
            write_model(folder, f"{name}_{engine}", nodes, inputs,
                        helper.make_tensor_value_info("y", TensorProto.FLOAT, SHAPES["q"]),
                        [numpy_helper.from_array(np.float32(0.5), "half"), numpy_helper.from_array(np.float32(hidden), "hidden")])
            (folder / f"{name}_{engine}" / "config.pbtxt").write_text(
                f'parameters {{ key: "engine" value {{ string_value: "{engine}" }} }}')
    return folder


@pytest.fixture(scope="module")
def server(program, models, tmp_path_factory):
    with serving(program, models, tmp_path_factory.mktemp("log") / "server.log") as running:
        yield running


def ordinary():
    random = np.random.default_rng(11)
    values = {name: random.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}
    values["mask"] = (np.arange(8) % 3 != 1).reshape(SHAPES["mask"])
    return values


def cases():
    hidden, shown = (0, 1, 4), (0, 1, 3)
    for text, name, place, value in [("ordinary", "k", hidden, 0.5), ("hidden NaN", "k", hidden, np.nan),
                                     ("hidden infinity", "k", hidden, np.inf), ("hidden -infinity", "k", hidden, -np.inf),
                                     ("hidden overflow", "k", hidden, 3e38), ("shown NaN", "k", shown, np.nan),
                                     ("shown infinity", "k", shown, np.inf), ("NaN of a hidden value", "v", hidden, np.nan),
                                     ("NaN of a query", "q", shown, np.nan)]:
        yield pytest.param(name, place, value, False, id=text)
    for text, value in [("all hidden", 0.5), ("all hidden, with NaN", np.nan), ("all hidden, with -infinity", -np.inf)]:
        yield pytest.param("k", hidden, value, True, id=text)


@pytest.mark.parametrize("engine", ["carillon", "openvino"])
@pytest.mark.parametrize("form", HIDDEN)
@pytest.mark.parametrize("name, place, value, all_hidden", list(cases()))
def test_as_onnx_has_it(client, module, models, form, engine, name, place, value, all_hidden):
    values = ordinary()
    values[name][place] = value
    if all_hidden:
        values["mask"][:] = False
    model = f"{form}_{engine}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        want = ReferenceEvaluator(onnx.load(models / model / "1" / "model.onnx")).run(None, values)[0]
    tensors = []
    for input, array in values.items():
        tensors.append(module.InferInput(input, array.shape, "BOOL" if input == "mask" else "FP32"))
        tensors[-1].set_data_from_numpy(array)
    got = client.infer(model, tensors, timeout=MINUTE).as_numpy("y")
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
