"""Models that come, change and go while the server runs, by polls and by orders, and requests that go on meanwhile."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from onnx import TensorProto, helper, numpy_helper
from tritonclient.utils import InferenceServerException

from loopback import free_addresses, serving, write_model
from raw_http import MINUTE

POLICIES = ["clockwork", "symphony", "orloj", "fcfs", "nexus"]


def value(name, shape):
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def put(folder, name, factor, version=1, width=8, config=None):
    """A model that multiplies by `factor`, moved into its place as a whole."""
    hidden = folder / ".making"
    write_model(hidden, name,
                [helper.make_node("Mul", ["x", "f"], ["y"])],
                [value("x", ["batch", width])], value("y", ["batch", width]),
                [numpy_helper.from_array(np.array(factor, np.float32), "f")])
    target = folder / name / str(version)
    target.parent.mkdir(exist_ok=True)
    if target.exists():
        os.replace(hidden / name / "1" / "model.onnx", target / "model.onnx")
        shutil.rmtree(hidden)
    else:
        os.replace(hidden / name / "1", target)
        shutil.rmtree(hidden)
    if config is not None:
        (folder / name / "config.pbtxt").write_text(config)


def ask(client, module, model, rows=1, width=8, version="", timeout=MINUTE):
    tensor = module.InferInput("x", [rows, width], "FP32")
    tensor.set_data_from_numpy(np.ones((rows, width), np.float32))
    return client.infer(model, [tensor], model_version=version, timeout=timeout).as_numpy("y")[0, 0]


def connect(module, server):
    return module.InferenceServerClient(server.http if module is http_client else server.grpc)


@pytest.fixture
def models(tmp_path):
    folder = tmp_path / "models"
    folder.mkdir()
    put(folder, "one", 2)
    put(folder, "two", 3)
    return folder


def states(client, module):
    index = client.get_model_repository_index()
    if module is http_client:
        return {(entry["name"], entry["version"]): (entry["state"], entry.get("reason", "")) for entry in index}
    return {(entry.name, entry.version): (entry.state, entry.reason) for entry in index.models}


class Load:
    """Requests to a model, one after the other, from some threads; what came back."""

    def __init__(self, server, model, threads=3):
        self.ended = False
        self.answers, self.errors = [], []
        self.threads = [threading.Thread(target=self.run, args=(server, model)) for _ in range(threads)]

    def run(self, server, model):
        with http_client.InferenceServerClient(server.http) as client:
            while not self.ended:
                try:
                    self.answers.append(float(ask(client, http_client, model)))
                except InferenceServerException as error:
                    self.errors.append(str(error))

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.ended = True
        for thread in self.threads:
            thread.join(60)


def until(said, seconds=60):
    end = time.monotonic() + seconds
    while not said():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.parametrize("policy", POLICIES)
def test_orders(program, models, tmp_path, module, policy):
    with serving(program, models, tmp_path / "log", "--scheduler", policy, "--model-control-mode", "explicit",
                 "--load-model", "one") as server, connect(module, server) as client:
        assert ask(client, module, "one") == 2
        state, reason = states(client, module)["two", "1"]
        assert state == "UNAVAILABLE" and "not loaded" in reason
        with pytest.raises(InferenceServerException, match="not loaded"):
            ask(client, module, "two")
        client.load_model("two")
        assert ask(client, module, "two", rows=3) == 3
        assert client.is_model_ready("two")

        # Another one under the same name: whoever asks during it gets an answer, of the one or the other.
        put(models, "two", 5)
        with Load(server, "two") as load:
            client.load_model("two")
            until(lambda: load.answers[-1:] == [5.0])
        assert load.errors == [] and set(load.answers) <= {3.0, 5.0}
        assert ask(client, module, "two") == 5

        client.unload_model("two")
        assert states(client, module)["two", "1"] == ("UNAVAILABLE", "unloaded")
        with pytest.raises(InferenceServerException, match="unloaded"):
            ask(client, module, "two")
        assert not client.is_model_ready("two")
        client.load_model("two")
        assert ask(client, module, "two") == 5
        assert ask(client, module, "one") == 2
        # The counters of a name and version go on; nothing is listed twice.
        lines = [line for line in server.scrape().splitlines() if line.startswith("nv_inference_request_success{")]
        assert len(lines) == len(set(re.sub(r" \S+$", "", line) for line in lines))


def test_what_cannot_be_loaded_leaves_what_is_there(program, models, tmp_path, module):
    with serving(program, models, tmp_path / "log", "--model-control-mode", "explicit", "--load-model", "*") as server:
        with connect(module, server) as client:
            (models / "one" / "1" / "model.onnx").write_bytes(b"broken")
            with pytest.raises(InferenceServerException, match="not an ONNX model"):
                client.load_model("one")
            assert ask(client, module, "one") == 2
            with pytest.raises(InferenceServerException, match="config is not"):
                client.load_model("two", config="{ no json")
            with pytest.raises(InferenceServerException, match="max_batch_size is -1"):
                client.load_model("two", config=json.dumps({"max_batch_size": -1}))
            assert ask(client, module, "two") == 3
            with pytest.raises(InferenceServerException, match="is not in the repository"):
                client.load_model("none")
            for name in ("..", "a/b", ".making"):
                with pytest.raises(InferenceServerException):
                    client.load_model(name)
            with pytest.raises(InferenceServerException, match="not known"):
                client.unload_model("none")
            put(models, "three", 7)
            client.load_model("three", config=json.dumps({"max_batch_size": 2}))
            assert ask(client, module, "three", rows=2) == 7
            with pytest.raises(InferenceServerException):
                ask(client, module, "three", rows=3)


def test_without_the_mode_orders_are_refused(program, models, tmp_path, module):
    with serving(program, models, tmp_path / "log") as server, connect(module, server) as client:
        for order in (client.load_model, client.unload_model):
            with pytest.raises(InferenceServerException, match="--model-control-mode"):
                order("one")
        assert ask(client, module, "one") == 2


@pytest.mark.parametrize("policy", POLICIES)
def test_polls(program, models, tmp_path, policy):
    log = tmp_path / "log"
    with serving(program, models, log, "--scheduler", policy, "--model-control-mode", "poll", "--repository-poll-secs",
                 "0.1") as server, http_client.InferenceServerClient(server.http) as client:
        with pytest.raises(InferenceServerException, match="takes no orders"):
            client.load_model("one")
        with Load(server, "one") as load:
            until(lambda: len(load.answers) > 20)
            put(models, "one", 4, version=2)  # the newest alone is served
            until(lambda: load.answers[-1] == 4)
            put(models, "one", 6, version=2)
            until(lambda: load.answers[-1] == 6)
            # A broken one is kept out, and said to be broken; what is served stays.
            (models / "one" / "2" / "model.onnx").write_bytes(b"broken")
            until(lambda: "not an ONNX model" in log.read_text())
            count = len(load.answers)
            until(lambda: len(load.answers) > count + 20)
            assert load.answers[-1] == 6
            put(models, "one", 8, version=2)
            until(lambda: load.answers[-1] == 8)
        assert load.errors == []
        assert sorted(set(load.answers), key=load.answers.index) == [2, 4, 6, 8]

        put(models, "new", 9)
        until(lambda: ("new", "1") in states(client, http_client) and client.is_model_ready("new"))
        assert ask(client, http_client, "new") == 9
        shutil.rmtree(models / "two")
        until(lambda: states(client, http_client)["two", "1"][0] == "UNAVAILABLE")
        assert client.is_server_ready()
        # A config that is another is another model.
        (models / "new" / "config.pbtxt").write_text("max_batch_size: 2")
        until(lambda: client.get_model_config("new")["max_batch_size"] == 2)
        assert ask(client, http_client, "new", rows=2) == 9


def test_an_empty_server_takes_orders(program, models, tmp_path, module):
    with serving(program, models, tmp_path / "log", "--model-control-mode", "explicit") as server, connect(module, server) as client:
        assert client.is_server_ready()
        assert {state for state, _ in states(client, module).values()} == {"UNAVAILABLE"}
        client.load_model("one")
        assert ask(client, module, "one") == 2


def write_slow(folder, width=768):
    """Takes some seconds without a store: how its kernels are best divided is measured, and how long runs take."""
    weights = np.random.default_rng(1).standard_normal((width, width)).astype(np.float32)
    write_model(folder, "slow", [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("MatMul", ["p", "w"], ["y"])],
                [value("x", ["batch", width])], value("y", ["batch", width]), [numpy_helper.from_array(weights, "w")])
    (folder / "slow" / "config.pbtxt").write_text(
        'max_batch_size: 64\nparameters { key: "class" value { string_value: "best_effort" } }')


def is_ready(client, model):
    try:
        return client.is_model_ready(model)
    except (OSError, InferenceServerException):  # the ports are not open yet
        return False


def test_it_lives_while_models_load(program, models, tmp_path):
    """Whoever looks after the process sees that it lives. Models that are ready are served; for others requests wait."""
    write_slow(models)
    http, grpc, metrics = free_addresses(3)
    process = subprocess.Popen([program, "serve", "--models", models, "--http", http, "--grpc", grpc, "--metrics", metrics,
                                "--model-control-mode", "poll", "--no-store"],
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def status(path):
        try:
            with urllib.request.urlopen(f"http://{http}{path}", timeout=60) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())["error"]
        except (urllib.error.URLError, ConnectionError):
            return None

    try:
        until(lambda: status("/v2/health/live") == 200)
        assert status("/v2/health/ready")[0] == 503
        with grpc_client.InferenceServerClient(grpc) as client:
            until(lambda: states(client, grpc_client).get(("one", "1"), ("",))[0] == "READY")
            assert ask(client, grpc_client, "one") == 2
            assert client.is_server_live() and not client.is_server_ready()
            assert status("/v2/health/ready")[0] == 503
            code, text = status("/v2/models/slow")
            assert code == 503 and "still" in text
            assert not client.is_model_ready("slow")
            with pytest.raises(InferenceServerException, match="UNAVAILABLE.*still to be loaded"):
                ask(client, grpc_client, "slow", timeout=1)
            with pytest.raises(InferenceServerException, match="NOT_FOUND.*other"):
                ask(client, grpc_client, "other")
            with pytest.raises(InferenceServerException, match="UNAVAILABLE.*takes no orders"):
                client.load_model("one")
        until(lambda: status("/v2/health/ready") == 200, 120)
        assert status("/v2/models/slow") == 200
    finally:
        process.terminate()
        assert process.wait(60) == 0


WIDE = 3072


def test_requests_wait_for_models_that_are_still_to_be_loaded(program, models, tmp_path, module):
    """Until the model is ready, or their deadline is there; a client that goes is waited for no longer."""
    write_slow(models, WIDE)
    http, grpc = free_addresses(2)
    process = subprocess.Popen([program, "serve", "--models", models, "--http", http, "--grpc", grpc, "--metrics", "",
                                "--no-store"],
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    address = http if module is http_client else grpc
    connected = lambda **options: module.InferenceServerClient(address, **options)  # noqa: E731
    answers = {}

    def keep(name, *args, **options):
        began = time.monotonic()
        try:
            with connected(**({"network_timeout": 120.0} if module is http_client else {})) as client:
                answers[name] = ask(client, module, "slow", width=WIDE, **options)
        except InferenceServerException as error:
            answers[name] = error
        answers[f"{name} after"] = time.monotonic() - began

    try:
        with connected() as client:
            until(lambda: is_ready(client, "one"))
            asking = [threading.Thread(target=keep, args=(name,), kwargs=options) for name, options in (
                ("patient", {}), ("hurried", {"timeout": 200_000}))]
            for thread in asking:
                thread.start()
            leave(address, module)
            asking[1].join(60)
            assert not client.is_model_ready("slow"), "the test's model is loaded too soon"
            assert "still to be loaded" in str(answers["hurried"])
            assert 0.2 <= answers["hurried after"] < 5
            assert asking[0].is_alive() and ask(client, module, "one") == 2
            asking[0].join(120)
            assert client.is_model_ready("slow") and np.isfinite(answers["patient"])
    finally:
        process.terminate()
        assert process.wait(60) == 0


def leave(address, module):
    """Asks for the slow model, and goes."""
    if module is grpc_client:
        with grpc_client.InferenceServerClient(address) as client:
            tensor = grpc_client.InferInput("x", [1, WIDE], "FP32")
            tensor.set_data_from_numpy(np.ones((1, WIDE), np.float32))
            client.async_infer("slow", [tensor], lambda result, error: None).cancel()
        return
    host, port = address.split(":")
    body = json.dumps({"inputs": [{"name": "x", "shape": [1, WIDE], "datatype": "FP32", "data": [1.0] * WIDE}]}).encode()
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(b"POST /v2/models/slow/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)


def test_it_stops_while_models_load(program, models, tmp_path):
    """SIGTERM does not wait for what is being compiled, which takes some seconds here; orders that wait are refused."""
    write_slow(models, 3072)
    http, = free_addresses(1)
    process = subprocess.Popen([program, "serve", "--models", models, "--http", http, "--grpc", "", "--metrics", "",
                                "--model-control-mode", "explicit", "--load-model", "*", "--no-store"],
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    refused = []

    def order():
        try:
            with http_client.InferenceServerClient(http, network_timeout=60) as client:
                client.load_model("one")
        except Exception as error:  # whatever it is, it is looked at below
            refused.append(error)

    waiting = threading.Thread(target=order)
    try:
        with http_client.InferenceServerClient(http) as client:
            until(lambda: is_ready(client, "one") and is_ready(client, "two"))
        waiting.start()
        time.sleep(0.2)  # the slow one is being compiled, and the order waits for it
        began = time.monotonic()
        process.terminate()
        assert process.wait(30) == 0
        assert time.monotonic() - began < 8  # of --drain-time's 10
        waiting.join(30)
        assert len(refused) == 1 and "stopping" in str(refused[0])
    finally:
        process.kill()
        process.wait()


def test_many_times_leave_nothing_behind(program, models, tmp_path):
    """Memory and threads of a server whose model is loaded again and again."""
    with serving(program, models, tmp_path / "log", "--model-control-mode", "explicit", "--load-model", "one") as server, \
            http_client.InferenceServerClient(server.http) as client:
        def threads():
            return len(os.listdir(f"/proc/{server.process.pid}/task"))

        client.load_model("two")
        before = threads()
        for round in range(40):
            put(models, "two", 10 + round)
            client.load_model("two")
            assert ask(client, http_client, "two") == 10 + round
            if round % 5 == 0:
                client.unload_model("two")
                client.load_model("two")
        until(lambda: threads() <= before)
        def held():
            return [line for line in server.scrape().splitlines() if line.startswith("carillon_device_models{")]

        # Copies of versions that have gone leave when nothing uses them any more.
        until(lambda: all(float(line.split()[-1]) <= 2 for line in held()))


def test_a_name_that_is_no_text_is_refused(program, models, tmp_path):
    os.mkdir(os.fsencode(models) + b"/\xff\xfe")
    with serving(program, models, tmp_path / "server.log", "--model-control-mode", "explicit") as server:
        for order in ("load", "unload"):
            request = urllib.request.Request(f"http://{server.http}/v2/repository/models/%FF%FE/{order}", data=b"{}")
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(request, timeout=60)
            assert refused.value.code == 400
            assert "not UTF-8" in json.loads(refused.value.read())["error"]
        with http_client.InferenceServerClient(server.http) as client:
            client.load_model("one")
            assert ask(client, http_client, "one") == 2
