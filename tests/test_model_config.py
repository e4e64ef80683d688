"""What a config.pbtxt asks for beside the model itself: warm-up, queue policies, links; and what is wrong with one."""

from __future__ import annotations

import json
import re
import subprocess
import threading
import time
import urllib.error
import urllib.request

import grpc
import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from onnx import TensorProto, helper, numpy_helper
from tritonclient.utils import InferenceServerException

from loopback import serving, write_model, write_profile
from test_repository_control import ask, connect, put, states

STRICT = ("--strict-readiness", "false")


def test_warm_up_of_what_the_data_size(program, tmp_path):
    folder = tmp_path / "models"
    write_model(folder, "found", [helper.make_node("NonZero", ["x"], ["y"])],
                [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 4])],
                helper.make_tensor_value_info("y", TensorProto.INT64, [2, None]))
    (folder / "found" / "config.pbtxt").write_text(
        'model_warmup { name: "first" batch_size: 1 count: 2 '
        'inputs { key: "x" value { data_type: TYPE_FP32 dims: [ 3, 4 ] random_data: true } } }')
    with serving(program, folder, tmp_path / "log") as server, connect(http_client, server) as client:
        assert states(client, http_client)[("found", "1")] == ("READY", "")


def table(folder, config):
    """rows: looks up 4 rows of a table."""
    write_model(folder, "rows", [helper.make_node("Gather", ["table", "x"], ["y"], axis=0)],
                [helper.make_tensor_value_info("x", TensorProto.INT64, ["batch", 2])],
                helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 2, 3]),
                [numpy_helper.from_array(np.arange(12, dtype=np.float32).reshape(4, 3), "table")])
    (folder / "rows" / "config.pbtxt").write_text(config)


def warmup(data, dims="2", kind="TYPE_INT64", batch=3):
    return (f'max_batch_size: 8 model_warmup {{ name: "first" batch_size: {batch} count: 2 '
            f'inputs {{ key: "x" value {{ data_type: {kind} dims: [ {dims} ] {data} }} }} }}')


@pytest.mark.parametrize("config,numbers,reason", [
    (warmup("zero_data: true"), None, None),
    (warmup("random_data: true"), None, None),
    (warmup('input_data_file: "ids"'), [3, 0], None),
    (warmup('input_data_file: "ids"'), [0, 9], "model_warmup 'first': "),
    (warmup('input_data_file: "ids"'), [1], "input 'x': file 'ids' has 8 bytes; dims [2] of INT64 take 16"),
    (warmup('input_data_file: "ids"'), None, "is not there"),
    (warmup("zero_data: true", dims="3"), None, "input 'x': it is INT64[3], without the batch; the model's is INT64[-1,2]"),
    (warmup("zero_data: true", kind="TYPE_INT32"), None, "input 'x': it is INT32[2], without the batch"),
    (warmup("zero_data: true").replace('"x"', '"z"'), None, "the model has no input 'z'"),
    ('max_batch_size: 8 model_warmup { name: "first" }', None, "model_warmup 'first': input 'x' is missing"),
])
def test_warm_up(program, tmp_path, config, numbers, reason):
    folder = tmp_path / "models"
    table(folder, config)
    put(folder, "other", 2)
    if numbers is not None:
        (folder / "rows" / "warmup").mkdir()
        (folder / "rows" / "warmup" / "ids").write_bytes(np.array(numbers, np.int64).tobytes())
    with serving(program, folder, tmp_path / "log", *STRICT) as server, connect(http_client, server) as client:
        state, said = states(client, http_client)[("rows", "1")]
        if reason is None:
            assert (state, said) == ("READY", "")
        else:
            assert state == "UNAVAILABLE" and reason in said
        assert ask(client, http_client, "other") == 2
    if reason is None:
        assert "rows version 1: warming up" in (tmp_path / "log").read_text()


def test_a_warm_up_larger_than_the_machine_is_refused(program, tmp_path):
    folder = tmp_path / "models"
    write_model(folder, "open", [helper.make_node("Relu", ["x"], ["y"])],
                [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", "height", "width"])],
                helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", "height", "width"]))
    (folder / "open" / "config.pbtxt").write_text(
        warmup("zero_data: true", dims="1000000000, 100", kind="TYPE_FP32", batch=8))
    put(folder, "other", 2)
    with serving(program, folder, tmp_path / "log", *STRICT) as server, connect(http_client, server) as client:
        state, said = states(client, http_client)[("open", "1")]
        assert state == "UNAVAILABLE" and "a request of that size takes" in said
        assert ask(client, http_client, "other") == 2


def test_queue_policies(program, tmp_path):
    folder = tmp_path / "models"
    folder.mkdir()
    put(folder, "late", 2, config="""max_batch_size: 8 dynamic_batching { default_queue_policy {
        default_timeout_microseconds: 1 allow_timeout_override: true } }""")
    put(folder, "levels", 3, config="""max_batch_size: 8 dynamic_batching { priority_levels: 2 default_priority_level: 2
        priority_queue_policy { key: 1 value { default_timeout_microseconds: 1 allow_timeout_override: true } } }""")
    put(folder, "full", 4, config="max_batch_size: 8 dynamic_batching { default_queue_policy { max_queue_size: 1 } }")
    with serving(program, folder, tmp_path / "log") as server, connect(http_client, server) as client:
        tensor = http_client.InferInput("x", [1, 8], "FP32")
        tensor.set_data_from_numpy(np.ones((1, 8), np.float32))
        with pytest.raises(InferenceServerException, match="deadline"):
            client.infer("late", [tensor])
        assert client.infer("levels", [tensor]).as_numpy("y")[0, 0] == 3
        with pytest.raises(InferenceServerException, match="deadline"):
            client.infer("levels", [tensor], priority=1)
        # Of many at a time some meet another; whoever does is told why, and all others are answered.
        answered, refused = [], []

        def run():
            with http_client.InferenceServerClient(server.http) as mine:
                for _ in range(20):
                    try:
                        answered.append(mine.infer("full", [tensor]).as_numpy("y")[0, 0])
                    except InferenceServerException as error:
                        refused.append(str(error))

        threads = [threading.Thread(target=run) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert answered and set(answered) == {4}
        assert all("Exceeds maximum queue size: 1 requests of the model wait" in each for each in refused)
        assert client.infer("full", [tensor]).as_numpy("y")[0, 0] == 4


def test_a_full_queue_is_told_as_by_triton(program, tmp_path):
    """What a device has is not in the queue. Who finds no place there is told so, and when to come again."""
    folder = tmp_path / "models"
    folder.mkdir()
    put(folder, "full", 4, config="max_batch_size: 8 dynamic_batching { default_queue_policy { max_queue_size: 8 } }")
    profile = write_profile(tmp_path / "profile.json", ("full",), 2000)
    body = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 8], "data": [1.0] * 8}]}).encode()
    message = grpc_client.service_pb2.ModelInferRequest(model_name="full", raw_input_contents=[np.ones(8, np.float32).tobytes()])
    message.inputs.add(name="x", datatype="FP32", shape=[1, 8])
    answered, refused = [], []

    def over_http():
        try:
            with urllib.request.urlopen(f"http://{server.http}/v2/models/full/infer", body, timeout=300) as response:
                answered.append(response.status)
        except urllib.error.HTTPError as error:
            said = json.loads(error.read())
            refused.append((error.code == 503, said["error"], int(error.headers["retry-after-ms"]), said["retry_after_ms"],
                            1000 * int(error.headers["Retry-After"])))

    def over_grpc():
        try:
            with grpc.insecure_channel(server.grpc) as channel:
                grpc_client.service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(message, timeout=300)
            answered.append(200)
        except grpc.RpcError as error:
            ms = int(dict(error.trailing_metadata())["grpc-retry-pushback-ms"])
            refused.append((error.code() == grpc.StatusCode.UNAVAILABLE, error.details(), ms, ms, ms))

    def send(count):
        threads = [threading.Thread(target=(over_http, over_grpc)[i % 2]) for i in range(count)]
        for thread in threads:
            thread.start()
        return threads

    with serving(program, folder, tmp_path / "log", "--device", f"emulated:{profile}", "--profile", str(profile)) as server:
        began = send(1)
        # Until it is on the device, and so in no queue.
        while not re.search(r"^carillon_open_requests 1$", server.scrape(), re.MULTILINE) or \
                re.search(r'^nv_inference_pending_request_count\{model="full",[^}]*\} [^0]', server.scrape(), re.MULTILINE):
            time.sleep(0.01)
        began += send(8)
        for thread in began:
            thread.join()
        assert answered == [200] * 9 and not refused, refused
        for thread in send(60):
            thread.join()
    assert len(answered) + len(refused) == 69 and refused
    for code, text, ms, again, seconds in refused:
        assert code and "Exceeds maximum queue size: 8 requests of the model wait" in text, text
        assert 0 < ms == again <= seconds


def test_a_typo_is_an_error_that_says_where(program, tmp_path):
    folder = tmp_path / "models"
    folder.mkdir()
    put(folder, "typo", 2, config='max_batch_size: 8\ninputs [ { name: "x" } ]')
    put(folder, "other", 3)
    with serving(program, folder, tmp_path / "log", *STRICT) as server, connect(http_client, server) as client:
        state, said = states(client, http_client)[("typo", "1")]
        assert state == "UNAVAILABLE"
        assert "line 2, column 1: ModelConfig has no field 'inputs'; the nearest is 'input'" in said


def test_links_out_of_the_repository_are_followed_where_that_is_wanted(program, tmp_path):
    outside, folder = tmp_path / "outside", tmp_path / "models"
    outside.mkdir()
    folder.mkdir()
    put(outside, "linked", 2)
    put(folder, "other", 3)
    (folder / "linked").symlink_to(outside / "linked")
    with serving(program, folder, tmp_path / "log", *STRICT) as server, connect(http_client, server) as client:
        state, said = states(client, http_client)[("linked", "1")]
        assert state == "UNAVAILABLE" and "such links are followed with --follow-links" in said
    with serving(program, folder, tmp_path / "log", "--follow-links") as server, \
            connect(http_client, server) as client:
        assert ask(client, http_client, "linked") == 2


def test_load_ends_with_an_error_where_every_request_failed(program, tmp_path):
    """A decoupled model is refused over HTTP; the other answers."""
    folder = tmp_path / "models"
    folder.mkdir()
    put(folder, "decoupled", 2, config="max_batch_size: 8 model_transaction_policy { decoupled: true }")
    put(folder, "good", 2)

    def load(url, *options):
        return subprocess.run([program, "load", url, "--duration", "0.5", "--rate", "20", *options],
                              capture_output=True, text=True, timeout=120)

    with serving(program, folder, tmp_path / "log") as server:
        done = load(f"http://{server.http}", "--model", "decoupled")
        assert done.returncode == 1 and "requests failed" in done.stderr
        assert "first failure of decoupled: " in done.stdout
        assert "deadline of decoupled: the server's --default-deadline, where it has one: the model has none" in done.stdout
        done = load(f"http://{server.http}", "--model", "decoupled", "--model", "good,deadline=20000")
        assert done.returncode == 0, done.stdout + done.stderr
        assert "deadline of good: 20000 ms, of this command line\n" in done.stdout
        done = load(f"http://{server.http}", "--model", "good", "--deadline", "0.001", "--json")
        assert done.returncode == 0, "refusals are answers"
        told = json.loads(done.stdout)
        assert told["failed"] == 0 and told["models"][0]["deadline_is"] == "0.001 ms, of this command line"


def test_reshape(program, tmp_path):
    """What clients send and get has the config's shapes, over both protocols, in batches."""
    folder = tmp_path / "models"
    write_model(folder, "shaped", [helper.make_node("Add", ["x", "x"], ["twice"]),
                                   helper.make_node("ReduceSum", ["twice", "axes"], ["y"], keepdims=0)],
                [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 2, 3])],
                helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch"]),
                [numpy_helper.from_array(np.array([1, 2]), "axes")])
    (folder / "shaped" / "config.pbtxt").write_text(
        'max_batch_size: 4 input { name: "x" data_type: TYPE_FP32 dims: [ 6 ] reshape { shape: [ 2, 3 ] } } '
        'output { name: "y" data_type: TYPE_FP32 dims: [ 1 ] reshape { shape: [ ] } }')
    data = np.arange(18, dtype=np.float32).reshape(3, 6)
    with serving(program, folder, tmp_path / "log") as server:
        for module in (http_client, grpc_client):
            with connect(module, server) as client:
                assert states(client, module)[("shaped", "1")] == ("READY", "")
                given = module.InferInput("x", data.shape, "FP32")
                given.set_data_from_numpy(data)
                answer = client.infer("shaped", [given])
                np.testing.assert_array_equal(answer.as_numpy("y"), 2 * data.sum(1, keepdims=True))
                given = module.InferInput("x", [1, 2, 3], "FP32")
                given.set_data_from_numpy(data[:1].reshape(1, 2, 3))
                with pytest.raises(InferenceServerException, match=r"\[-1,6\]"):
                    client.infer("shaped", [given])
        with connect(http_client, server) as client:
            assert [t["shape"] for t in client.get_model_metadata("shaped")["inputs"]] == [[-1, 6]]
            assert client.get_model_config("shaped")["input"][0]["reshape"] == {"shape": [2, 3]}


# -- queue policies that delay

def slow_model(folder, name, config):
    """One whose run takes some milliseconds: others have to wait for it."""
    weights = np.random.default_rng(3).standard_normal((512, 512)).astype(np.float32) / 512
    nodes = [helper.make_node("MatMul", ["x" if i == 0 else f"h{i - 1}", "w"], ["y" if i == 11 else f"h{i}"]) for i in range(12)]
    write_model(folder, name, nodes, [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 512])],
                helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 512]), [numpy_helper.from_array(weights, "w")])
    (folder / name / "config.pbtxt").write_text(config)


DELAY = """max_batch_size: 1 dynamic_batching { default_queue_policy {
    timeout_action: DELAY default_timeout_microseconds: 1 allow_timeout_override: %s } }"""


def test_what_is_late_is_delayed_and_still_runs(program, tmp_path, module):
    folder = tmp_path / "models"
    slow_model(folder, "delays", DELAY % "false")
    slow_model(folder, "overrides", DELAY % "true")
    slow_model(folder, "only_overrides", (DELAY % "true").replace("default_timeout_microseconds: 1", ""))
    slow_model(folder, "rejects", (DELAY % "false").replace("DELAY", "REJECT"))
    with serving(program, folder, tmp_path / "log", "--default-deadline", "1") as server:
        tensor = module.InferInput("x", [1, 512], "FP32")
        tensor.set_data_from_numpy(np.ones((1, 512), np.float32))
        outcomes = []

        def run(model, **more):
            with connect(module, server) as mine:
                for _ in range(3):
                    try:
                        outcomes.append(mine.infer(model, [tensor], **more).as_numpy("y").shape)
                    except InferenceServerException as error:
                        outcomes.append(str(error))

        # More than can be on time: each is later than its microsecond, and each is answered.
        threads = [threading.Thread(target=run, args=("delays",)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert outcomes == [(1, 512)] * 24
        outcomes.clear()
        run("rejects")
        assert len(outcomes) == 3 and all("deadline" in outcome for outcome in outcomes)
        outcomes.clear()
        run("overrides", timeout=1)  # its own timeout delays it, too
        run("only_overrides", timeout=1)  # also where the config has no timeout
        assert outcomes == [(1, 512)] * 6
        outcomes.clear()
        run("delays", timeout=1)  # and is a deadline where the config does not say so
        assert all("deadline" in outcome for outcome in outcomes)
        with connect(http_client, server) as client:
            (told,) = client.get_inference_statistics("overrides")["model_stats"]
            assert told["inference_stats"]["success"]["count"] == 3
            assert told["inference_stats"]["fail"]["count"] == 0
    assert "timeout_action" not in (tmp_path / "log").read_text()


# -- statistics

def test_statistics_add_up(program, tmp_path):
    folder = tmp_path / "models"
    folder.mkdir()
    put(folder, "one", 2, config="max_batch_size: 8")
    with serving(program, folder, tmp_path / "log") as server, connect(http_client, server) as http, \
            connect(grpc_client, server) as grpc:
        for rows in (1, 2, 5, 8):
            assert ask(http, http_client, "one", rows=rows) == 2
            assert ask(grpc, grpc_client, "one", rows=rows) == 2
        bad = http_client.InferInput("x", [1, 8], "FP32")
        bad.set_data_from_numpy(np.ones((1, 8), np.float32))
        with pytest.raises(InferenceServerException):
            http.infer("one", [bad], timeout=1)  # cannot be on time
        (told,) = http.get_inference_statistics("one")["model_stats"]
        (also,) = grpc.get_inference_statistics("one", as_json=True)["model_stats"]
        stats = told["inference_stats"]
        assert told["inference_count"] == 2 * (1 + 2 + 5 + 8)
        assert told["execution_count"] == sum(batch["compute_infer"]["count"] for batch in told["batch_stats"])
        assert told["inference_count"] == sum(batch["batch_size"] * batch["compute_infer"]["count"]
                                              for batch in told["batch_stats"])
        sizes = [batch["batch_size"] for batch in told["batch_stats"]]
        assert sizes == sorted(set(sizes)) and set(sizes) <= {1, 2, 4, 8}
        for batch in told["batch_stats"]:
            assert batch["compute_input"]["count"] == batch["compute_infer"]["count"] == batch["compute_output"]["count"] > 0
            assert batch["compute_infer"]["ns"] > 0
            assert batch["compute_input"]["ns"] > 0 and batch["compute_output"]["ns"] > 0
        assert stats["success"]["count"] == 8 and stats["fail"]["count"] == 1
        for step in ("queue", "compute_input", "compute_infer", "compute_output"):
            assert stats[step]["count"] == 8, step
        assert stats["success"]["ns"] >= sum(stats[step]["ns"] for step in ("queue", "compute_input", "compute_infer", "compute_output"))
        assert stats["cache_hit"] == stats["cache_miss"] == {"count": 0, "ns": 0}
        assert told["last_inference"] > 0
        # The same over gRPC, whose JSON has numbers as text and leaves zeros out.
        assert int(also["inference_count"]) == told["inference_count"]
        assert [int(batch["batch_size"]) for batch in also["batch_stats"]] == sizes
        for batch, other in zip(also["batch_stats"], told["batch_stats"]):
            for step in ("compute_input", "compute_infer", "compute_output"):
                assert {key: int(n) for key, n in batch[step].items()} == other[step]


# -- inputs that an initializer sets

def with_initializer(folder, name, version, ir, config):
    """y = x * f + b, where f is an input of the file, too."""
    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", "f"], ["m"]), helper.make_node("Add", ["m", "b"], ["y"])], name,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4]),
         helper.make_tensor_value_info("f", TensorProto.FLOAT, [4])]
        + ([helper.make_tensor_value_info("b", TensorProto.FLOAT, [])] if ir < 4 else []),
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 4])],
        [numpy_helper.from_array(np.full(4, 3, np.float32), "f"), numpy_helper.from_array(np.array(1, np.float32), "b")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", version)])
    model.ir_version = ir
    path = folder / name / "1" / "model.onnx"
    path.parent.mkdir(parents=True)
    path.write_bytes(model.SerializeToString())
    if config is not None:
        (folder / name / "config.pbtxt").write_text(config)


X = 'input { name: "x" data_type: TYPE_FP32 dims: [ 4 ] optional: true }'
F = 'input { name: "f" data_type: TYPE_FP32 dims: [ 4 ] optional: true }'


@pytest.mark.parametrize("engine", ["carillon", "openvino"])
@pytest.mark.parametrize("ir,opset", [(3, 8), (8, 17)])
def test_an_input_that_an_initializer_sets_is_left_out(program, tmp_path, module, ir, opset, engine):
    folder, log = tmp_path / "models", tmp_path / "log"
    own = f'parameters {{ key: "engine" value {{ string_value: "{engine}" }} }}'
    with_initializer(folder, "listed", opset, ir, f"max_batch_size: 8 {X} {F} {own}")
    with_initializer(folder, "not_listed", opset, ir, f"max_batch_size: 8 {X} {own}")
    with_initializer(folder, "bare", opset, ir, None)
    with_initializer(folder, "wrong", opset, ir, f"max_batch_size: 8 {X} {F.replace('4', '5')} {own}")
    with serving(program, folder, log, *STRICT) as server, connect(module, server) as client:
        told = states(client, module)
        assert "FP32[4] in the file, where an initializer sets it" in told["wrong", "1"][1]
        for name in ("listed", "not_listed", "bare"):
            assert told[name, "1"][0] == "READY", told[name, "1"]
            x = module.InferInput("x", [2, 4], "FP32")
            x.set_data_from_numpy(np.full((2, 4), 5, np.float32))
            np.testing.assert_array_equal(client.infer(name, [x]).as_numpy("y"), np.full((2, 4), 16))
            f = module.InferInput("f", [4], "FP32")
            f.set_data_from_numpy(np.ones(4, np.float32))
            if engine == "openvino" and name == "not_listed":
                continue
            with pytest.raises(InferenceServerException, match="is set by an initializer of its file|has no input 'f'"):
                client.infer(name, [x, f])
            with pytest.raises(InferenceServerException, match="'x'"):
                client.infer(name, [])
    text = log.read_text()
    assert "listed version 1: ignored: input 'f': an initializer of the file sets it: requests leave it out" in text
    assert "not_listed version 1: ignored: input 'x': optional: the file has no value of its own" in text
