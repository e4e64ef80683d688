"""Models that our own engine cannot run, or that a config gives to the other engine, beside those that it can."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import openvino
import pytest
import tritonclient.http as http_client
from onnx import TensorProto, helper, numpy_helper
from tritonclient.utils import InferenceServerException

from loopback import serving, write_model
from raw_http import MINUTE


def value(name, shape):
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def weights(name, *shape):
    return numpy_helper.from_array(np.random.default_rng(len(name)).standard_normal(shape).astype(np.float32), name)


def give(folder, name, config):
    (folder / name / "config.pbtxt").write_text(config)


def engine(name):
    return f'parameters {{ key: "engine" value {{ string_value: "{name}" }} }}'


def write_loop(folder, name, after):
    """Collects x three times, where `go`: y is [3,2,3], as OpenVINO says, and has no elements where it does not go."""
    scalar, truth = TensorProto.INT64, TensorProto.BOOL
    body = helper.make_graph(
        [helper.make_node("Identity", ["c"], ["c_out"]), helper.make_node("Add", ["s", "x"], ["s_out"]),
         helper.make_node("Identity", ["s_out"], ["each"])], "body",
        [helper.make_tensor_value_info("i", scalar, []), helper.make_tensor_value_info("c", truth, []), value("s", [2, 3])],
        [helper.make_tensor_value_info("c_out", truth, []), value("s_out", [2, 3]), value("each", [2, 3])])
    write_model(folder, name,
                [helper.make_node("Squeeze", ["go"], ["goes"]), helper.make_node("Loop", ["three", "goes", "x"], ["last", "all"], body=body),
                 *after("all")],
                [value("x", [2, 3]), helper.make_tensor_value_info("go", truth, [1])], value("y", [3, 2, 3]),
                [numpy_helper.from_array(np.array(3, np.int64), "three")])
    give(folder, name, engine("openvino"))


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("second")
    # An operator of onnxruntime's own, which our graph does not have.
    contrib = [helper.make_node("FusedMatMul", ["x", "w"], ["p"], domain="com.microsoft", alpha=0.5),
               helper.make_node("Relu", ["p"], ["y"])]
    plain = [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Relu", ["p"], ["y"])]
    batched = [value("x", ["batch", 16])], value("y", ["batch", 4]), [weights("w", 16, 4)]
    opened = [value("x", ["batch", "rows", 16])], value("y", ["batch", "rows", 4]), [weights("w", 16, 4)]
    write_model(folder, "contrib", contrib, *batched)
    write_model(folder, "contrib_open", contrib, *opened)
    write_model(folder, "contrib_background", contrib, *batched)
    write_model(folder, "contrib_refused", contrib, *batched)
    write_model(folder, "plain", plain, *batched)
    write_model(folder, "plain_given", plain, *opened)
    write_model(folder, "intermediate", plain, *batched)
    for name in ("contrib", "contrib_open", "contrib_background", "contrib_refused"):
        path = folder / name / "1" / "model.onnx"
        model = onnx.load(path)
        model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
        onnx.save(model, path)
    give(folder, "contrib_refused", engine("carillon"))
    give(folder, "contrib_background", 'parameters { key: "class" value { string_value: "best_effort" } }')
    give(folder, "plain_given", engine("openvino"))
    write_loop(folder, "loop", lambda all_: [helper.make_node("Identity", [all_], ["y"])])
    write_loop(folder, "loop_carried_on", lambda all_: [helper.make_node("Neg", [all_], ["n"]), helper.make_node("Neg", ["n"], ["y"])])
    # OpenVINO's own format.
    path = folder / "intermediate" / "1" / "model.onnx"
    openvino.save_model(openvino.Core().read_model(str(path)), str(path.with_suffix(".xml")), compress_to_fp16=False)
    shutil.move(path, folder / "intermediate" / "source.onnx")
    return folder


@pytest.fixture(scope="module", params=["clockwork", "orloj"])
def server(request, program, models, tmp_path_factory):
    log = tmp_path_factory.mktemp("log") / "server.log"
    with serving(program, models, log, "--scheduler", request.param, "--strict-readiness", "false") as running:
        running.log = log
        yield running


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def ask(client, module, model, x):
    tensor = module.InferInput("x", x.shape, "FP32")
    tensor.set_data_from_numpy(x)
    return client.infer(model, [tensor], timeout=MINUTE).as_numpy("y")


def wanted(models, model, x):
    path = models / model / "1" / "model.onnx"
    if not path.exists():
        path = models / model / "source.onnx"
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]


def check(client, module, models, model, x):
    want = wanted(models, model, x)
    got = ask(client, module, model, x)
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, atol=1e-4)


@pytest.mark.parametrize("model", ["contrib", "contrib_background", "plain", "intermediate"])
def test_answers_at_any_batch(client, module, models, model):
    for rows in (1, 3, 16):
        check(client, module, models, model, numbers(rows, 16, seed=rows))


@pytest.mark.parametrize("model", ["contrib_open", "plain_given"])
def test_answers_at_any_size(client, module, models, model):
    for batch, rows in [(1, 64), (2, 7), (1, 1), (3, 200), (2, 7)]:
        check(client, module, models, model, numbers(batch, rows, 16, seed=rows))


@pytest.mark.parametrize("model", ["loop", "loop_carried_on"])
def test_a_loop_that_does_not_run_tells_no_other_clients_numbers(server, client, module, model):
    def ask_it(by, x, go):
        tensors = [module.InferInput("x", [2, 3], "FP32"), module.InferInput("go", [1], "BOOL")]
        tensors[0].set_data_from_numpy(np.full([2, 3], x, np.float32))
        tensors[1].set_data_from_numpy(np.array([go]))
        return by.infer(model, tensors, timeout=MINUTE).as_numpy("y")

    address = server.http if module is http_client else server.grpc
    with module.InferenceServerClient(address) as other:
        for _ in range(3):
            want = np.full([3, 2, 3], 7777, np.float32) * np.array([2, 3, 4], np.float32)[:, None, None]
            np.testing.assert_array_equal(ask_it(other, 7777, True), want)
            with pytest.raises(InferenceServerException, match="runs 0 times") as refused:
                ask_it(client, 1, False)
            assert "7777" not in str(refused.value)


def reasons(client, module):
    if module is http_client:
        return {entry["name"]: (entry.get("state"), entry.get("reason", "")) for entry in client.get_model_repository_index()}
    return {entry.name: (entry.state, entry.reason) for entry in client.get_model_repository_index().models}


def test_the_index_and_the_log_say_why(client, module, server):
    index = reasons(client, module)
    assert index["plain"] == ("READY", "")
    state, reason = index["contrib"]
    assert state == "READY" and reason.startswith("openvino 2") and "FusedMatMul" in reason
    assert "its config says so" in index["plain_given"][1]
    assert "its file is for that alone" in index["intermediate"][1]
    text = server.log.read_text()
    assert "contrib version 1: it runs on openvino" in text and "is not stopped before its end" in text


def test_a_config_that_keeps_a_model_here_is_heeded(client, module):
    state, reason = reasons(client, module)["contrib_refused"]
    assert state == "UNAVAILABLE" and "FusedMatMul" in reason and "openvino" not in reason
    with pytest.raises(InferenceServerException) as refused:
        ask(client, module, "contrib_refused", numbers(1, 16))
    assert "FusedMatMul" in str(refused.value)


def test_wrong_inputs_are_the_clients_fault(client, module, models):
    for x in (numbers(2, 15), numbers(2, 2, 16)):
        with pytest.raises(InferenceServerException) as refused:
            ask(client, module, "contrib", x)
        assert "400" in str(refused.value) or "INVALID_ARGUMENT" in str(refused.value.status())
    check(client, module, models, "contrib", numbers(2, 16))


def beside(program: Path, folder: Path, engines: list[str]) -> Path:
    """The program in a folder with these engines only."""
    shutil.copy(program, folder / "carillon")
    for name in engines:
        module = program.parent / f"libcarillon_{name}.so"
        if not module.exists():
            pytest.skip(f"built without {name}" + (" (-DCARILLON_ONNXRUNTIME=ON)" if name == "onnxruntime" else ""))
        shutil.copy(module, folder)
        shutil.copy(program.parent / f"carillon-{name}", folder)
    return folder / "carillon"


@pytest.fixture(scope="module")
def models_of_both(tmp_path_factory):
    folder = tmp_path_factory.mktemp("both")
    plain = [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Relu", ["p"], ["y"])]
    batched = [value("x", ["batch", 16])], value("y", ["batch", 4]), [weights("w", 16, 4)]
    write_model(folder, "given", plain, *batched)
    give(folder, "given", engine("onnxruntime"))
    write_model(folder, "given_open", plain, [value("x", ["batch", "rows", 16])], value("y", ["batch", "rows", 4]),
                [weights("w", 16, 4)])
    give(folder, "given_open", engine("onnxruntime"))
    write_model(folder, "background", plain, *batched)
    give(folder, "background", engine("onnxruntime") + 'parameters { key: "class" value { string_value: "best_effort" } }')
    # Operators that our graph does not have, and one that OpenVINO does not have either.
    write_model(folder, "fused", [helper.make_node("FusedMatMul", ["x", "w"], ["y"], domain="com.microsoft", alpha=0.5)],
                *batched)
    write_model(folder, "distances", [helper.make_node("CDist", ["x", "w"], ["y"], domain="com.microsoft",
                                                       metric="sqeuclidean")],
                [value("x", ["batch", 4])], value("y", ["batch", 16]), [weights("w", 16, 4)])
    give(folder, "distances", "max_batch_size: 8")
    for name in ("fused", "distances"):
        path = folder / name / "1" / "model.onnx"
        model = onnx.load(path)
        model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
        onnx.save(model, path)
    return folder


def test_onnxruntime_runs_what_a_config_gives_it_and_what_no_other_can(program, models_of_both, tmp_path):
    alone = beside(program, tmp_path, ["onnxruntime"])
    with serving(alone, models_of_both, tmp_path / "log", "--strict-readiness", "false") as running:
        with http_client.InferenceServerClient(running.http, network_timeout=120, connection_timeout=120) as client:
            index = reasons(client, http_client)
            assert index["given"][0] == "READY" and index["given"][1].startswith("onnxruntime 1.")
            assert "its config says so" in index["given"][1]
            for model, what in (("fused", "FusedMatMul"), ("distances", "CDist")):
                assert index[model][0] == "READY", index[model]
                assert index[model][1].startswith("onnxruntime 1.") and what in index[model][1]
                assert f"{model} version 1: it runs on onnxruntime 1." in (tmp_path / "log").read_text()
            metadata = client.get_model_metadata("given")
            assert metadata["platform"] == "onnxruntime_onnx"
            for rows in (1, 3, 16):
                for model in ("given", "background", "fused"):
                    check(client, http_client, models_of_both, model, numbers(rows, 16, seed=rows))
            check(client, http_client, models_of_both, "distances", numbers(3, 4))
            for batch, rows in [(1, 64), (2, 7), (3, 200), (2, 7)]:
                check(client, http_client, models_of_both, "given_open", numbers(batch, rows, 16, seed=rows))
            with pytest.raises(InferenceServerException):
                ask(client, http_client, "given", numbers(2, 15))


def test_of_two_others_the_first_that_can_runs_it(program, models_of_both, tmp_path):
    both = beside(program, tmp_path, ["openvino", "onnxruntime"])
    with serving(both, models_of_both, tmp_path / "log", "--strict-readiness", "false") as running:
        with http_client.InferenceServerClient(running.http, network_timeout=120, connection_timeout=120) as client:
            index = reasons(client, http_client)
            assert index["fused"][1].startswith("openvino ") and index["distances"][1].startswith("onnxruntime ")
            assert client.get_model_metadata("fused")["platform"] == "openvino"
            check(client, http_client, models_of_both, "fused", numbers(2, 16))
            check(client, http_client, models_of_both, "distances", numbers(2, 4))


def test_without_its_build_a_config_that_asks_for_onnxruntime_says_what_is_needed(program, models_of_both, tmp_path):
    alone = beside(program, tmp_path, [])
    with serving(alone, models_of_both, tmp_path / "log", "--strict-readiness", "false") as running:
        with http_client.InferenceServerClient(running.http, network_timeout=120) as client:
            index = reasons(client, http_client)
            state, reason = index["given"]
            assert state == "UNAVAILABLE" and "no module for onnxruntime" in reason
            assert "-DCARILLON_ONNXRUNTIME=ON" in reason
            state, reason = index["fused"]
            assert state == "UNAVAILABLE" and "no module for OpenVINO" in reason and "onnxruntime" not in reason
