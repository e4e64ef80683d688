"""tritonclient and plain HTTP against a running server: what users' clients see."""

from __future__ import annotations

import json
import socket
import subprocess
import time
import urllib.error
import urllib.request

import numpy as np
import onnxruntime
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from tritonclient.utils import InferenceServerException

MINUTE = 60_000_000  # of timeouts, which count microseconds

# Input names, datatypes, shapes without the batch, and how to fill them.
INPUTS = {
    "tiny_mlp": [("input", "FP32", [64])],
    "tiny_cnn": [("input", "FP32", [3, 16, 16])],
    "tiny_encoder": [("input_ids", "INT64", [16]), ("attention_mask", "INT64", [16])],
}
OUTPUT = {"tiny_mlp": "output", "tiny_cnn": "output", "tiny_encoder": "last_hidden_state"}


def arrays(model: str, rows: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(rows)
    made = {}
    for name, datatype, shape in INPUTS[model]:
        if name == "attention_mask":
            made[name] = np.ones([rows, *shape], np.int64)
        elif datatype == "INT64":
            made[name] = rng.integers(0, 10, [rows, *shape], dtype=np.int64)
        else:
            made[name] = rng.standard_normal([rows, *shape]).astype(np.float32)
    return made


def infer_inputs(module, model: str, values: dict[str, np.ndarray], **options):
    inputs = []
    for name, datatype, _ in INPUTS[model]:
        tensor = module.InferInput(name, values[name].shape, datatype)
        tensor.set_data_from_numpy(values[name], **options)
        inputs.append(tensor)
    return inputs


@pytest.fixture(scope="module")
def references(tiny_models):
    return {model: onnxruntime.InferenceSession(str(tiny_models / model / "1" / "model.onnx"),
                                                providers=["CPUExecutionProvider"]) for model in INPUTS}


@pytest.fixture(scope="module")
def http(server):
    with http_client.InferenceServerClient(server.http, concurrency=16) as client:
        yield client


@pytest.fixture(scope="module")
def grpc(server):
    with grpc_client.InferenceServerClient(server.grpc) as client:
        yield client


@pytest.fixture(params=["http", "grpc"])
def client(request):
    return request.getfixturevalue(request.param)


def module_of(client):
    return grpc_client if isinstance(client, grpc_client.InferenceServerClient) else http_client


def post(server, path: str, body: bytes | dict, headers: dict[str, str] | None = None) -> tuple[int, dict]:
    """Status and JSON of a plain request."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(f"http://{server.http}{path}", data=data, headers=headers or {})
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, json.loads(response.read())
    except urllib.error.HTTPError as error:
        assert error.headers["Content-Type"] == "application/json"
        return error.code, json.loads(error.read())


def mlp_request(**changes) -> dict:
    tensor = {"name": "input", "datatype": "FP32", "shape": [1, 64], "data": [0.5] * 64}
    body = {"inputs": [tensor | changes.pop("input", {})], "parameters": {"timeout": MINUTE}}
    return body | changes


# -- what the server says of itself


def test_health(client):
    assert client.is_server_live()
    assert client.is_server_ready()
    for model in INPUTS:
        assert client.is_model_ready(model)
    assert not client.is_model_ready("nobody")


def test_metadata_over_http(http):
    assert "statistics" in http.get_server_metadata()["extensions"]
    assert http.get_server_metadata()["name"] == "carillon"
    metadata = http.get_model_metadata("tiny_cnn")
    assert metadata["versions"] == ["1"]
    assert metadata["inputs"] == [{"name": "input", "datatype": "FP32", "shape": [-1, 3, 16, 16]}]
    config = http.get_model_config("tiny_cnn")
    assert config["max_batch_size"] == 16
    assert config["input"][0]["dims"] == [3, 16, 16]
    assert config["input"][0]["data_type"] == "TYPE_FP32"


def test_metadata_over_grpc(grpc):
    assert "statistics" in grpc.get_server_metadata().extensions
    assert list(grpc.get_model_metadata("tiny_encoder").inputs[0].shape) == [-1, 16]
    assert grpc.get_model_config("tiny_encoder").config.max_batch_size == 16


def test_repository_index(http, grpc):
    over_http = {(m["name"], m["version"], m["state"]) for m in http.get_model_repository_index()}
    over_grpc = {(m.name, m.version, m.state) for m in grpc.get_model_repository_index().models}
    assert over_http == over_grpc == {(model, "1", "READY") for model in INPUTS}


# -- right answers


@pytest.mark.parametrize("rows", [1, 2, 7, 16])
@pytest.mark.parametrize("model", list(INPUTS))
@pytest.mark.parametrize("form", ["http json", "http binary", "http gzip", "grpc"])
def test_answers_agree_with_onnxruntime(http, grpc, references, model, rows, form):
    values = arrays(model, rows)
    wanted = references[model].run(None, values)[0]
    name = OUTPUT[model]
    if form == "grpc":
        result = grpc.infer(model, infer_inputs(grpc_client, model, values), request_id="r-1", timeout=MINUTE)
        assert result.get_response().id == "r-1"
    else:
        binary = form != "http json"
        packing = "gzip" if form == "http gzip" else None
        result = http.infer(model, infer_inputs(http_client, model, values, binary_data=binary),
                            outputs=[http_client.InferRequestedOutput(name, binary_data=binary)],
                            request_id="r-1", timeout=MINUTE, request_compression_algorithm=packing,
                            response_compression_algorithm=packing)
        assert result.get_response()["id"] == "r-1"
        assert result.get_response()["model_version"] == "1"
    got = result.as_numpy(name)
    assert got.shape == wanted.shape
    assert np.max(np.abs(got - wanted)) <= 1e-4 * np.max(np.abs(wanted))


def test_many_at_once(http, grpc, references):
    values = [arrays("tiny_mlp", 1 + i % 4) for i in range(64)]
    pending = [http.async_infer("tiny_mlp", infer_inputs(http_client, "tiny_mlp", v), timeout=MINUTE) for v in values]
    over_grpc = [grpc.infer("tiny_mlp", infer_inputs(grpc_client, "tiny_mlp", v), timeout=MINUTE) for v in values]
    for v, one, other in zip(values, pending, over_grpc):
        wanted = references["tiny_mlp"].run(None, v)[0]
        np.testing.assert_allclose(one.get_result().as_numpy("output"), wanted, rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(other.as_numpy("output"), wanted, rtol=1e-3, atol=1e-4)


# -- deadlines


def test_an_impossible_deadline_is_refused_with_its_reason(client):
    module = module_of(client)
    inputs = infer_inputs(module, "tiny_cnn", arrays("tiny_cnn", 16))
    with pytest.raises(InferenceServerException) as refused:
        client.infer("tiny_cnn", inputs, timeout=1)
    assert refused.value.status() in ("504", "StatusCode.DEADLINE_EXCEEDED")
    assert refused.value.message()
    client.infer("tiny_cnn", inputs, timeout=MINUTE)


def test_priority_and_application_are_taken(client):
    module = module_of(client)
    inputs = infer_inputs(module, "tiny_mlp", arrays("tiny_mlp", 1))
    for priority in (0, 1, 7):
        client.infer("tiny_mlp", inputs, timeout=MINUTE, priority=priority, parameters={"application": "tests"})


# -- bad input: an error that says what and where, and the server stays up


@pytest.mark.parametrize("changes, words", [
    ({"input": {"name": "z"}}, ["'z'", "'input'"]),
    ({"input": {"datatype": "INT32"}}, ["INT32", "FP32"]),
    ({"input": {"shape": [1, 63]}}, ["[1,63]", "[-1,64]"]),
    ({"input": {"shape": [17, 64]}}, ["[17,64]", "1 to 16"]),
    ({"input": {"shape": [0, 64]}}, ["[0,64]", "1 to 16"]),
    ({"input": {"data": [0.5] * 63}}, ["63", "64"]),
    ({"input": {"data": ["a"] * 64}}, ["\"a\"", "FP32"]),
    ({"inputs": []}, ["'input'"]),
    ({"outputs": [{"name": "z"}]}, ["'z'", "'output'"]),
    ({"parameters": {"timeout": -5}}, ["timeout", "-5", "microseconds"]),
    ({"parameters": {"timeout": 10**20}}, ["parameter 'timeout'", "100000000000000000000", "at most 64 bits"]),
    ({"parameters": {"priority": "high"}}, ["priority", "high"]),
])
def test_bad_requests(server, http, changes, words):
    status, answer = post(server, "/v2/models/tiny_mlp/infer", mlp_request(**changes))
    assert status == 400
    for word in words:
        assert word in answer["error"]
    assert http.is_server_live()


def test_far_timeouts_are_taken_as_a_day(server, http, grpc):
    assert post(server, "/v2/models/tiny_mlp/infer", mlp_request(parameters={"timeout": 10**15}))[0] == 200
    for module, client in ((http_client, http), (grpc_client, grpc)):
        tensors = infer_inputs(module, "tiny_mlp", arrays("tiny_mlp", 1))
        assert client.infer("tiny_mlp", tensors, timeout=2**62).as_numpy("output").shape[0] == 1


def test_bad_byte_counts(server, http, grpc):
    text = json.dumps({"inputs": [{"name": "input", "datatype": "FP32", "shape": [1, 64],
                                   "parameters": {"binary_data_size": 255}}]}).encode()
    status, answer = post(server, "/v2/models/tiny_mlp/infer", text + bytes(255),
                          {"Inference-Header-Content-Length": str(len(text))})
    assert status == 400 and "255" in answer["error"] and "256" in answer["error"]
    status, answer = post(server, "/v2/models/tiny_mlp/infer", text, {"Inference-Header-Content-Length": "99999"})
    assert status == 400 and "99999" in answer["error"]
    tensor = grpc_client.InferInput("input", [1, 64], "FP32")
    tensor.set_data_from_numpy(np.zeros([1, 64], np.float32))
    tensor._raw_content = bytes(255)
    with pytest.raises(InferenceServerException, match="255.*256"):
        grpc.infer("tiny_mlp", [tensor])
    assert http.is_server_live()


def test_unknown_models_and_versions(client):
    inputs = infer_inputs(module_of(client), "tiny_mlp", arrays("tiny_mlp", 1))
    for model, version in (("nobody", ""), ("tiny_mlp", "99"), ("tiny_mlp", "one")):
        with pytest.raises(InferenceServerException) as refused:
            client.infer(model, inputs, model_version=version)
        assert refused.value.status() in ("404", "400", "StatusCode.NOT_FOUND", "StatusCode.INVALID_ARGUMENT")
        assert (version or model) in refused.value.message()


def test_paths_and_methods(server):
    assert post(server, "/v2/models/nobody/infer", {})[0] == 404
    assert post(server, "/v2/nowhere", {})[0] == 404
    assert post(server, "/v2/health/live", {})[0] == 405
    status, answer = post(server, "/v2/repository/models/tiny_mlp/load", {})
    assert status == 501 and "load" in answer["error"]


def test_garbage_on_the_socket(server, http):
    for garbage in (b"\x16\x03\x01\x02\x00", b"GET", b"POST /v2 HTTP/1.1\r\nContent-Length: x\r\n\r\n",
                    b"POST /v2/models/tiny_mlp/infer HTTP/1.1\r\nContent-Length: 999999999999\r\n\r\n"):
        host, port = server.http.split(":")
        with socket.create_connection((host, int(port)), timeout=30) as connection:
            connection.sendall(garbage)
    assert http.is_server_live()


def test_a_port_in_use_is_named(server):
    second = subprocess.run([str(server.program), "serve", "--models", str(server.models), "--http", server.http,
                             "--grpc", "", "--metrics", "", "--page-cache", "256 MiB"],
                            capture_output=True, text=True, timeout=300)
    assert second.returncode == 1
    assert server.http in second.stderr and "port in use" in second.stderr and "--http" in second.stderr


# -- clients that go, statistics, metrics


def test_clients_that_go_leave_nothing_open(server, http):
    body = json.dumps(mlp_request()).encode()
    host, port = server.http.split(":")
    for _ in range(50):
        with socket.create_connection((host, int(port)), timeout=30) as connection:
            connection.sendall(b"POST /v2/models/tiny_mlp/infer HTTP/1.1\r\nHost: t\r\nContent-Length: %d\r\n\r\n%s"
                               % (len(body), body))
    limit = time.monotonic() + 60
    while "\ncarillon_open_requests 0\n" not in server.scrape():
        assert time.monotonic() < limit, "requests of clients that have gone are still open"
        time.sleep(0.05)
    assert http.is_server_live()


def test_statistics_count(http, grpc):
    # Not the model of the test above: what its clients sent as they went may still be arriving.
    def count():
        (model,) = http.get_inference_statistics("tiny_cnn")["model_stats"]
        return model["inference_count"], model["inference_stats"]["success"]["count"]

    rows, requests = count()
    http.infer("tiny_cnn", infer_inputs(http_client, "tiny_cnn", arrays("tiny_cnn", 3)), timeout=MINUTE)
    grpc.infer("tiny_cnn", infer_inputs(grpc_client, "tiny_cnn", arrays("tiny_cnn", 2)), timeout=MINUTE)
    assert count() == (rows + 5, requests + 2)
    (model,) = grpc.get_inference_statistics("tiny_cnn").model_stats
    assert model.inference_count == rows + 5
    assert model.inference_stats.compute_infer.ns > 0


def test_metrics(server, http):
    http.infer("tiny_mlp", infer_inputs(http_client, "tiny_mlp", arrays("tiny_mlp", 1)), timeout=MINUTE)
    text = server.scrape()
    values = {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1])
              for line in text.splitlines() if line and not line.startswith("#")}
    assert values['nv_inference_request_success{model="tiny_mlp",version="1"}'] >= 1
    assert values['carillon_requests_total{model="tiny_mlp",version="1",outcome="on_time"}'] >= 1
    assert values["carillon_page_cache_pages"] > 0
    assert values['carillon_model_loaded{model="tiny_mlp",version="1"}'] in (0, 1)
