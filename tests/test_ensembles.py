"""Ensembles: models of a repository as one request, over both protocols, by orders and polls, and what is told of them."""

from __future__ import annotations

import re
import shutil
import subprocess
import threading

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from onnx import TensorProto, helper
from tritonclient.utils import InferenceServerException

from loopback import serving, write_model
from raw_http import MINUTE
from test_planned import workload, write_plan
from test_repository_control import connect, put, states, until

WIDTH = 8

BOTH = """platform: "ensemble" max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: [ 8 ] }
output { name: "sum" data_type: TYPE_FP32 dims: [ 8 ] }
output { name: "twice" data_type: TYPE_FP32 dims: [ 8 ] }
ensemble_scheduling {
  step { model_name: "add" model_version: -1 input_map { key: "a" value: "twice" } input_map { key: "b" value: "thrice" }
         output_map { key: "y" value: "sum" } }
  step { model_name: "double" model_version: -1 input_map { key: "x" value: "x" } output_map { key: "y" value: "twice" } }
  step { model_name: "triple" model_version: 1 input_map { key: "x" value: "x" } output_map { key: "y" value: "thrice" } }
}
"""


def value(name):
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", WIDTH])


def configured(folder, name, config):
    (folder / name).mkdir(exist_ok=True)
    (folder / name / "config.pbtxt").write_text(config)


@pytest.fixture
def models(tmp_path):
    """both: x -> 2x and 3x, beside each other -> their sum."""
    folder = tmp_path / "models"
    folder.mkdir()
    put(folder, "double", 2)
    put(folder, "triple", 3)
    write_model(folder, "add", [helper.make_node("Add", ["a", "b"], ["y"])], [value("a"), value("b")], value("y"))
    configured(folder, "both", BOTH)
    return folder


def ask(client, module, model="both", rows=2, **more):
    tensor = module.InferInput("x", [rows, WIDTH], "FP32")
    data = np.arange(rows * WIDTH, dtype=np.float32).reshape(rows, WIDTH)
    tensor.set_data_from_numpy(data)
    return data, client.infer(model, [tensor], **more)


def test_a_request_is_its_steps(program, models, tmp_path, module):
    with serving(program, models, tmp_path / "log") as server, connect(module, server) as client:
        for rows in (1, 2, 8):
            data, answer = ask(client, module, rows=rows)
            np.testing.assert_array_equal(answer.as_numpy("sum"), 5 * data)
            np.testing.assert_array_equal(answer.as_numpy("twice"), 2 * data)
        only = [module.InferRequestedOutput("twice")]
        data, answer = ask(client, module, outputs=only)
        assert answer.as_numpy("sum") is None
        np.testing.assert_array_equal(answer.as_numpy("twice"), 2 * data)
        with pytest.raises(InferenceServerException, match="must be"):
            ask(client, module, rows=9)
        with pytest.raises(InferenceServerException, match="cannot finish by its deadline: the ensemble's steps take"):
            ask(client, module, timeout=1)


DELAYS = """max_batch_size: 8 dynamic_batching { default_queue_policy {
    timeout_action: DELAY allow_timeout_override: true } }"""


def test_steps_that_delay_do_not_bound_it(program, models, tmp_path, module):
    """A timeout that no step can keep: as the models asked directly, the ensemble is late and answers."""
    for model in ("double", "triple", "add"):
        configured(models, model, DELAYS)
    with serving(program, models, tmp_path / "log") as server, connect(module, server) as client:
        data, answer = ask(client, module, "double", timeout=1)
        np.testing.assert_array_equal(answer.as_numpy("y"), 2 * data)
        data, answer = ask(client, module, timeout=1)
        np.testing.assert_array_equal(answer.as_numpy("sum"), 5 * data)


def runs(client, name):
    return int(client.get_inference_statistics(name)["model_stats"][0]["execution_count"])


def test_only_what_is_asked_for_runs(program, models, tmp_path, module):
    with serving(program, models, tmp_path / "log") as server, connect(module, server) as client, \
            connect(http_client, server) as told:
        for asked, ran in (["twice"], {"double"}), (["sum"], {"double", "triple", "add"}), \
                (["sum", "twice"], {"double", "triple", "add"}):
            before = {name: runs(told, name) for name in ("double", "triple", "add")}
            data, answer = ask(client, module, outputs=[module.InferRequestedOutput(name) for name in asked])
            for name, factor in (("twice", 2), ("sum", 5)):
                if name in asked:
                    np.testing.assert_array_equal(answer.as_numpy(name), factor * data)
                else:
                    assert answer.as_numpy(name) is None
            assert {name for name in before if runs(told, name) > before[name]} == ran


def test_a_model_that_comes_anew_loses_no_request(program, models, tmp_path):
    """With another max_batch_size each time, while requests are between its steps."""
    wrong, answered, ended = [], [0] * 4, threading.Event()

    def send(number):
        module = (http_client, grpc_client)[number % 2]
        with connect(module, server) as client:
            while not ended.is_set():
                try:
                    data, answer = ask(client, module, rows=1 + answered[number] % 8, timeout=MINUTE)
                    np.testing.assert_array_equal(answer.as_numpy("sum"), 5 * data)
                except (InferenceServerException, AssertionError) as error:
                    wrong.append(str(error))
                answered[number] += 1

    with serving(program, models, tmp_path / "log", "--model-control-mode", "explicit", "--load-model", "*") as server, \
            connect(http_client, server) as orders:
        threads = [threading.Thread(target=send, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for turn in range(8):
            for name in ("add", "triple"):
                configured(models, name, f"max_batch_size: {(16, 8)[turn % 2]}")
                orders.load_model(name)
        ended.set()
        for thread in threads:
            thread.join()
    assert not wrong, wrong[:5]
    assert min(answered) > 0, answered


FINDS = """platform: "ensemble"
input { name: "x" data_type: TYPE_FP32 dims: [ 3, 4 ] }
output { name: "places" data_type: TYPE_INT64 dims: [ 2, -1 ] }
output { name: "next" data_type: TYPE_INT64 dims: [ 2, -1 ] }
ensemble_scheduling {
  step { model_name: "find" model_version: -1 input_map { key: "x" value: "x" } output_map { key: "where" value: "places" } }
  step { model_name: "move" model_version: -1 input_map { key: "at" value: "places" } output_map { key: "y" value: "next" } }
}
"""


def test_steps_whose_outputs_the_data_size(program, tmp_path, module):
    """What one finds, were it nothing, another model takes as it is."""
    def whole(name, shape):
        return helper.make_tensor_value_info(name, TensorProto.INT64, shape)
    folder = tmp_path / "models"
    folder.mkdir()
    write_model(folder, "find", [helper.make_node("NonZero", ["x"], ["where"])],
                [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 4])], whole("where", [2, None]))
    write_model(folder, "move", [helper.make_node("Add", ["at", "at"], ["y"])], [whole("at", [2, "found"])],
                whole("y", [2, "found"]))
    configured(folder, "finds", FINDS)
    with serving(program, folder, tmp_path / "log") as server, connect(module, server) as client:
        for wanted in (5, 12, 1, 0):
            x = np.zeros((3, 4), np.float32)
            x.flat[:wanted] = 1
            tensor = module.InferInput("x", [3, 4], "FP32")
            tensor.set_data_from_numpy(x)
            answer = client.infer("finds", [tensor], timeout=MINUTE)
            places = np.array(np.nonzero(x))
            np.testing.assert_array_equal(answer.as_numpy("places").reshape(2, -1), places)
            np.testing.assert_array_equal(answer.as_numpy("next").reshape(2, -1), 2 * places)


def test_what_is_told_of_it(program, models, tmp_path):
    with serving(program, models, tmp_path / "log") as server, connect(http_client, server) as client:
        metadata = client.get_model_metadata("both")
        assert metadata["platform"] == "ensemble" and metadata["versions"] == ["1"]
        assert metadata["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 8]}]
        config = client.get_model_config("both")
        assert config["platform"] == "ensemble" and config["max_batch_size"] == 8
        assert {step["model_name"] for step in config["ensemble_scheduling"]["step"]} == {"add", "double", "triple"}
        assert states(client, http_client)[("both", "1")] == ("READY", "")
        ask(client, http_client)
        ask(client, http_client)
        for name in ("both", "add", "double", "triple"):
            told = client.get_inference_statistics(name)["model_stats"][0]
            assert told["inference_stats"]["success"]["count"] == 2 and told["inference_count"] == 4, name
        assert re.search(r'nv_inference_request_success\{model="both",version="1"\} 2\b', server.scrape())


@pytest.mark.parametrize("config,reason", [
    (BOTH.replace("thrice", "four", 1), "step 1 ('add'): input_map gives input 'b' the tensor 'four', which is neither"),
    (BOTH.replace('"double"', '"dubble"'), "there is no model 'dubble' in the repository"),
    (BOTH.replace("max_batch_size: 8", "max_batch_size: 100"), "the ensemble's max_batch_size is 100, and the model's is 16"),
    (BOTH.replace("dims: [ 8 ]", "dims: [ 9 ]", 1), "tensor 'x' is FP32[-1,8] as input 'x' of model 'double', but FP32[-1,9]"),
    (BOTH.replace('key: "x"', 'key: "in"', 1), "input_map names input 'in', which the model does not have; it has 'x'"),
    (BOTH.replace('"add"', '"both"'), "ensembles are in each other, in a circle: 'both', 'both'"),
])
def test_a_wrong_one_is_not_ready_and_says_why(program, models, tmp_path, config, reason):
    configured(models, "both", config)
    with serving(program, models, tmp_path / "log", "--strict-readiness", "false") as server, \
            connect(http_client, server) as client:
        state, said = states(client, http_client)[("both", "1")]
        assert state == "UNAVAILABLE" and reason in said
        with pytest.raises(InferenceServerException, match="not ready"):
            ask(client, http_client)
    assert reason in (tmp_path / "log").read_text()


def test_an_order_brings_its_models(program, models, tmp_path, module):
    with serving(program, models, tmp_path / "log", "--model-control-mode", "explicit") as server, \
            connect(module, server) as client:
        client.load_model("both")
        data, answer = ask(client, module)
        np.testing.assert_array_equal(answer.as_numpy("sum"), 5 * data)
        client.unload_model("triple")
        state, reason = states(client, module)[("both", "1")]
        assert state == "UNAVAILABLE" and "step 'triple'" in reason and "unloaded" in reason
        client.load_model("triple")
        ask(client, module)
        client.unload_model("both")
        assert states(client, module)[("both", "1")] == ("UNAVAILABLE", "unloaded")
        assert states(client, module)[("add", "1")][0] == "READY"
        shutil.rmtree(models / "add")
        client.unload_model("add")
        with pytest.raises(InferenceServerException, match="'add'"):
            client.load_model("both")


def test_the_first_models_are_those_of_a_wanted_ensemble(program, models, tmp_path):
    put(models, "other", 7)
    with serving(program, models, tmp_path / "log", "--model-control-mode", "explicit", "--load-model", "both") as server, \
            connect(http_client, server) as client:
        ask(client, http_client)
        assert states(client, http_client)[("other", "1")][0] == "UNAVAILABLE"


def test_it_follows_its_models(program, models, tmp_path):
    with serving(program, models, tmp_path / "log", "--model-control-mode", "poll", "--repository-poll-secs", "0.1") \
            as server, connect(http_client, server) as client:
        data, answer = ask(client, http_client)
        np.testing.assert_array_equal(answer.as_numpy("sum"), 5 * data)
        put(models, "triple", 10)
        until(lambda: (ask(client, http_client)[1].as_numpy("sum") == 12 * data).all())
        put(models, "double", 2, version=2, width=4)
        until(lambda: states(client, http_client)[("both", "1")][0] == "UNAVAILABLE")
        assert "tensor 'x' is FP32[-1,4]" in states(client, http_client)[("both", "1")][1]
        shutil.rmtree(models / "double" / "2")
        until(lambda: states(client, http_client)[("both", "1")][0] == "READY")
        log = (tmp_path / "log").read_text()
        assert log.count("both version 1: ready") <= 2, "it is not taken in again at each look"


def test_under_other_policies(program, models, tmp_path):
    for policy in ("fcfs", "symphony", "orloj"):
        with serving(program, models, tmp_path / f"log-{policy}", "--scheduler", policy) as server, \
                connect(grpc_client, server) as client:
            data, answer = ask(client, grpc_client, client_timeout=MINUTE)
            np.testing.assert_array_equal(answer.as_numpy("sum"), 5 * data)


def test_of_models_with_shares_of_a_plan(program, models, tmp_path, module):
    """Each step runs in its workload's share; without a workload of every step the ensemble is not there, and says why."""
    put(models, "alone", 5)
    plan = write_plan(tmp_path, [workload(name, 30) for name in ("add", "double", "triple")])
    with serving(program, models, tmp_path / "log", "--plan", str(plan), "--no-standby", "--strict-readiness", "false") as server, \
            connect(module, server) as client:
        assert client.is_model_ready("both")
        for rows in (1, 4):
            data, answer = ask(client, module, rows=rows, timeout=MINUTE)
            np.testing.assert_array_equal(answer.as_numpy("sum"), 5 * data)
        with pytest.raises(InferenceServerException, match="cannot finish by its deadline: the ensemble's steps take"):
            ask(client, module, timeout=1)
        with pytest.raises(InferenceServerException, match="the plan has no workload of it on this device"):
            client.infer("alone", [])
    plan = write_plan(tmp_path, [workload(name, 30) for name in ("double", "triple")])
    with serving(program, models, tmp_path / "log", "--plan", str(plan), "--no-standby", "--strict-readiness", "false") as server, \
            connect(module, server) as client:
        assert not client.is_model_ready("both")
        with pytest.raises(InferenceServerException, match="add"):
            ask(client, module)
        data, answer = ask(client, module, model="double", rows=1, timeout=MINUTE)
        np.testing.assert_array_equal(answer.as_numpy("y"), 2 * data)


def test_a_plan_of_an_ensemble_is_refused(program, models, tmp_path):
    plan = write_plan(tmp_path, [workload("both", 100)])
    done = subprocess.run([str(program), "serve", "--models", str(models), "--plan", str(plan), "--http", "", "--grpc", "", "--metrics", ""],
                          capture_output=True, text=True, timeout=120)
    assert done.returncode != 0 and "'both' is an ensemble, which has no share; plan its steps' models" in done.stderr
