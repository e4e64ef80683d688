"""Forms of operators that OpenVINO reads otherwise than ONNX says: what onnxruntime gives, or refused by name at load."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
import tritonclient.http as http_client
from onnx import TensorProto, helper, numpy_helper

from loopback import serving, write_model
from raw_http import MINUTE

RNG = np.random.default_rng(7)
TYPES = {np.dtype(np.float32): "FP32", np.dtype(np.int8): "INT8", np.dtype(np.uint8): "UINT8"}


def node(op, inputs, outputs=("y",), **attributes):
    return helper.make_node(op, inputs, list(outputs), name="the_node", **attributes)


def real(*shape):
    return np.abs(RNG.standard_normal(shape)).astype(np.float32)


def bytes_of(type):
    ends = np.iinfo(type)
    return RNG.integers(ends.min, ends.max + 1, 64).astype(type)


def weights(**arrays):
    return [numpy_helper.from_array(array, name) for name, array in arrays.items()]


# By name: the nodes, what is asked, constants, the opset.
PUT_RIGHT = {}
for op in ("Softmax", "LogSoftmax", "Hardmax"):
    for opset in (7, 11, 12, 13):
        for axis in (None, 0, 1, 2, *([-2] if opset > 7 else [])):
            PUT_RIGHT[f"{op}_{opset}_{axis}".lower()] = (
                node(op, ["x"], **({} if axis is None else {"axis": axis})), {"x": real(2, 3, 4)}, [], opset)
for pads in ([0, 0, 0, 0], [1, 1, 1, 1], [0, 0, 1, 1], [1, 0, 1, 0]):
    for kernel in (2, 3):
        for stride in (2, 3):
            PUT_RIGHT[f"pool_{''.join(map(str, pads))}_{kernel}_{stride}"] = (
                node("MaxPool", ["x"], kernel_shape=[kernel, kernel], strides=[stride, stride], pads=pads, ceil_mode=1),
                {"x": real(1, 2, 6, 8)}, [], 13)
for type in (np.int8, np.uint8):
    for op in ("Add", "Sub", "Mul"):
        PUT_RIGHT[f"{op}_{np.dtype(type)}".lower()] = (node(op, ["x", "z"]), {"x": bytes_of(type), "z": bytes_of(type)}, [], 14)
RANGES = {"zeros": [0, -0.0, 0], "halves": [-1.5, 2.5, 253.5], "below": [-3, -1, -2], "above": [0.5, 1.5, 255], "one": [7]}
for range_, numbers in RANGES.items():
    for output, names in (("steps", "ysz"), ("scale", "qyz"), ("zero", "qsy")):
        PUT_RIGHT[f"range_{range_}_{output}"] = (node("DynamicQuantizeLinear", ["x"], names),
                                                 {"x": np.array([numbers], np.float32)}, [], 13)
SAMPLED = {"x": real(1, 2, 5, 7), "g": RNG.uniform(-3, 3, (1, 8, 9, 2)).astype(np.float32)}
SAMPLES = {f"sample_{mode}_{padding}_{corners}": {"mode": mode, "padding_mode": padding, "align_corners": corners}
           for mode in ("nearest", "bilinear", "bicubic") for padding in ("zeros", "border", "reflection") for corners in (0, 1)}
for name, how in SAMPLES.items():
    PUT_RIGHT[name] = (node("GridSample", ["x", "g"], **how), SAMPLED, [], 16)
OUTPUTS = {**{name: TensorProto.UINT8 for name in PUT_RIGHT if name.endswith(("_steps", "_zero"))}, "order": TensorProto.INT64}
PUT_RIGHT["negative"] = (node("Neg", ["x"]), {"x": np.array([-128, 127, 0, -1], np.int8)}, [], 13)
REDUCED = "reduces all axes, whatever its axes are"
LSTM = weights(w=real(1, 12, 5), r=real(1, 12, 3))
REFUSED = {
    "average": (node("AveragePool", ["x"], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1], ceil_mode=1, count_include_pad=1),
                {"x": real(1, 2, 6, 8)}, [], 13, "where ceil_mode and count_include_pad are set"),
    "response": (node("LRN", ["x"], size=4, alpha=0.5), {"x": real(1, 6, 3, 3)}, [], 13, "has other channels in a window of an even size"),
    "forget": (node("LSTM", ["x", "w", "r"], hidden_size=3, input_forget=1), {"x": real(4, 2, 5)}, LSTM, 14, "does not read input_forget"),
    "order": (node("MaxPool", ["x"], ("v", "y"), kernel_shape=[2, 2], storage_order=1), {"x": real(1, 2, 4, 5)}, [], 12,
              "does not read storage_order"),
    "sums_1": (node("ReduceL1", ["x"], axes=[1]), {"x": real(2, 3, 4)}, [], 13, REDUCED),
    "sums_2": (node("ReduceLogSum", ["x"], axes=[-1], keepdims=0), {"x": real(2, 3, 4)}, [], 13, REDUCED),
    "sums_3": (node("ReduceLogSumExp", ["x"], axes=[0, 2]), {"x": real(2, 3, 4)}, [], 17, REDUCED),
    "nothing": (node("ReduceLogSum", ["x"], noop_with_empty_axes=1), {"x": real(2, 3)}, [], 18, "takes no logarithm"),
    "smooth": (node("Resize", ["x", "", "s"], mode="linear", antialias=1), {"x": real(1, 1, 8, 8)},
               weights(s=np.array([1, 1, 0.5, 0.4], np.float32)), 19, "does not read antialias"),
    "regions": (node("RoiAlign", ["x", "r", "b"], mode="max", output_height=2, output_width=2, sampling_ratio=2),
                {"x": real(1, 1, 6, 6)}, weights(r=np.array([[0, 0, 3, 3]], np.float32), b=np.zeros(1, np.int64)), 16,
                "takes the largest of other numbers"),
}
# What our own engine has for them, where it runs them at all.
OWN = [name for name in REFUSED if name not in ("smooth", "regions")]


def value(name, array):
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)


@pytest.fixture(scope="module")
def served(program, tmp_path_factory):
    if not (program.parent / "libcarillon_openvino.so").exists():
        pytest.skip("built without openvino")
    folder = tmp_path_factory.mktemp("forms")
    for name, (made, asked, constants, opset, *_) in {**PUT_RIGHT, **REFUSED}.items():
        out = helper.make_tensor_value_info("y", OUTPUTS.get(name, helper.np_dtype_to_tensor_dtype(next(iter(asked.values())).dtype)), None)
        for kind, engine in (("", "openvino"), ("_own", "carillon")):
            if kind and name in REFUSED and name not in OWN:
                continue
            write_model(folder, name + kind, [made], [value(n, a) for n, a in asked.items()], out, constants, opset)
            (folder / (name + kind) / "config.pbtxt").write_text(
                f'max_batch_size: 0\nparameters {{ key: "engine" value {{ string_value: "{engine}" }} }}')
    with serving(program, folder, tmp_path_factory.mktemp("log") / "server.log", "--strict-readiness", "false") as running:
        yield running, folder


def local_response(x, size=4, alpha=0.5, beta=0.75):
    before = (size - 1) // 2
    sums = [(x[:, max(0, c - before):c - before + size].astype(np.float64) ** 2).sum(1) for c in range(x.shape[1])]
    return (x / (1 + alpha / size * np.stack(sums, 1)) ** beta).astype(np.float32)


def expected(path, asked):
    if path.parts[-3] == "response":  # onnxruntime has no even windows, and the reference looks at other channels
        return local_response(asked["x"])
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(["y"], asked)[0]


def test_padding_of_open_extents(program, tmp_path):
    """Of a ConvTranspose: what has fixed extents is right."""
    if not (program.parent / "libcarillon_openvino.so").exists():
        pytest.skip("built without openvino")
    x = real(1, 2, 3, 3)
    for name, shape in (("fixed", x.shape), ("open", [1, 2, "h", "w"])):
        write_model(tmp_path / "models", name, [node("ConvTranspose", ["x", "w"], strides=[2, 2], auto_pad="SAME_LOWER")],
                    [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
                    helper.make_tensor_value_info("y", TensorProto.FLOAT, None), weights(w=real(2, 1, 3, 3)), 11)
        (tmp_path / "models" / name / "config.pbtxt").write_text(
            'max_batch_size: 0\nparameters { key: "engine" value { string_value: "openvino" } }')
    with serving(program, tmp_path / "models", tmp_path / "log", "--strict-readiness", "false") as running:
        with http_client.InferenceServerClient(running.http, network_timeout=MINUTE) as client:
            check(ask(client, "fixed", {"x": x}), expected(tmp_path / "models" / "fixed" / "1" / "model.onnx", {"x": x}), "fixed")
            reasons = {entry["name"]: entry.get("reason", "") for entry in client.get_model_repository_index()}
    assert "pads by auto_pad what has open extents" in reasons["open"], reasons


def ask(client, model, asked):
    tensors = []
    for name, array in asked.items():
        tensors.append(http_client.InferInput(name, list(array.shape), TYPES[array.dtype]))
        tensors[-1].set_data_from_numpy(array)
    return client.infer(model, tensors).as_numpy("y")


def check(got, want, name):
    assert got.shape == want.shape and got.dtype == want.dtype, name
    if want.dtype == np.float32:
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5, err_msg=name)
    else:
        np.testing.assert_array_equal(got, want, err_msg=name)


def test_both_engines_have_what_onnx_says(served):
    server, folder = served
    with http_client.InferenceServerClient(server.http, network_timeout=MINUTE) as client:
        for name in PUT_RIGHT:
            asked = PUT_RIGHT[name][1]
            want = expected(folder / name / "1" / "model.onnx", asked)
            for model in (name, name + "_own"):
                check(ask(client, model, asked), want, model)
        for name in OWN:
            asked = REFUSED[name][1]
            check(ask(client, name + "_own", asked), expected(folder / name / "1" / "model.onnx", asked), name)


def test_grid_samples_are_torchs(served):
    """onnx.reference has other numbers beyond the border where mode is cubic."""
    torch = pytest.importorskip("torch")
    x, g = (torch.from_numpy(SAMPLED[name]) for name in "xg")
    with http_client.InferenceServerClient(served[0].http, network_timeout=MINUTE) as client:
        for name, how in SAMPLES.items():
            want = torch.nn.functional.grid_sample(x, g, how["mode"], how["padding_mode"], bool(how["align_corners"])).numpy()
            for model in (name, name + "_own"):
                check(ask(client, model, SAMPLED), want, model)


def test_what_openvino_misreads_is_refused_by_name(served):
    with http_client.InferenceServerClient(served[0].http) as client:
        index = {entry["name"]: entry for entry in client.get_model_repository_index()}
    for name, (made, _, _, _, said) in REFUSED.items():
        entry = index[name]
        assert entry["state"] == "UNAVAILABLE", entry
        assert f"node 'the_node' ({made.op_type}): OpenVINO " in entry["reason"] and said in entry["reason"], entry


def test_a_resize_of_opset_10_takes_the_next_where_it_makes_less(program, tmp_path):
    x = real(1, 2, 5, 4)
    for name, scales in (("less", [1, 1, 0.6, 0.5]), ("both", [1, 1, 0.6, 2.5]), ("more", [1, 1, 2, 2])):
        write_model(tmp_path / "models", name, [node("Resize", ["x", "s"], mode="nearest")], [value("x", x)],
                    helper.make_tensor_value_info("y", TensorProto.FLOAT, None), weights(s=np.array(scales, np.float32)), 10)
    with serving(program, tmp_path / "models", tmp_path / "log") as running:
        with http_client.InferenceServerClient(running.http, network_timeout=MINUTE) as client:
            for name in ("less", "both", "more"):
                check(ask(client, name, {"x": x}), expected(tmp_path / "models" / name / "1" / "model.onnx", {"x": x}), name)
