"""Every client that people have, unchanged, against one server: the same answers, and errors that can be read."""

from __future__ import annotations

import asyncio
import json
import queue
import shutil
import subprocess
import uuid
from pathlib import Path

import grpc
import numpy as np
import onnxruntime
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.grpc.aio as grpc_aio
import tritonclient.http as http_client
import tritonclient.http.aio as http_aio
import tritonclient.utils.shared_memory as shm
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

from loopback import ROOT, serving

MINUTE = 60_000_000  # of timeouts, which count microseconds
MODEL = "tiny_mlp"
VALUES = np.random.default_rng(3).standard_normal([3, 64]).astype(np.float32)


@pytest.fixture(scope="module")
def wanted(tiny_models):
    session = onnxruntime.InferenceSession(str(tiny_models / MODEL / "1" / "model.onnx"),
                                           providers=["CPUExecutionProvider"])
    return session.run(None, {"input": VALUES})[0]


@pytest.fixture(scope="module")
def patient(program, tiny_models, tmp_path_factory):
    """Of a model without an SLO of its own: perf_analyzer names no deadline, and a busy machine may miss a short one."""
    models = tmp_path_factory.mktemp("patient")
    shutil.copytree(tiny_models / MODEL / "1", models / MODEL / "1")
    with serving(program, models, tmp_path_factory.mktemp("log") / "server.log", "--default-deadline", "60000") as running:
        yield running


def input_of(module, values: np.ndarray = VALUES, **how):
    tensor = module.InferInput("input", values.shape, "FP32")
    tensor.set_data_from_numpy(values, **how)
    return tensor


def agree(got: np.ndarray, wanted: np.ndarray) -> None:
    assert got.shape == wanted.shape
    np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-4)


# One call with each client: values in, the output and the error of a wrong name out.


def with_http(server):
    with http_client.InferenceServerClient(server.http) as client:
        assert client.is_server_ready() and client.is_model_ready(MODEL)
        assert client.get_model_metadata(MODEL)["name"] == MODEL
        assert client.get_inference_statistics(MODEL)["model_stats"][0]["name"] == MODEL
        result = client.infer(MODEL, [input_of(http_client)], request_id="m", timeout=MINUTE)
        with pytest.raises(InferenceServerException) as refused:
            client.infer("nobody", [input_of(http_client)])
        return result.as_numpy("output"), refused.value.message()


def with_http_json(server):
    with http_client.InferenceServerClient(server.http) as client:
        output = http_client.InferRequestedOutput("output", binary_data=False)
        result = client.infer(MODEL, [input_of(http_client, binary_data=False)], outputs=[output], timeout=MINUTE)
        with pytest.raises(InferenceServerException) as refused:
            client.infer("nobody", [input_of(http_client, binary_data=False)])
        return result.as_numpy("output"), refused.value.message()


def with_http_async(server):
    with http_client.InferenceServerClient(server.http, concurrency=4) as client:
        pending = [client.async_infer(MODEL, [input_of(http_client)], timeout=MINUTE) for _ in range(8)]
        results = [each.get_result().as_numpy("output") for each in pending]
        refused = client.async_infer("nobody", [input_of(http_client)])
        with pytest.raises(InferenceServerException) as error:
            refused.get_result()
        return results[-1], error.value.message()


def with_http_aio(server):
    async def go():
        async with http_aio.InferenceServerClient(server.http) as client:
            assert await client.is_server_ready()
            results = await asyncio.gather(*[client.infer(MODEL, [input_of(http_aio)], timeout=MINUTE)
                                             for _ in range(4)])
            with pytest.raises(InferenceServerException) as refused:
                await client.infer("nobody", [input_of(http_aio)])
            return results[0].as_numpy("output"), refused.value.message()
    return asyncio.run(go())


def with_grpc(server):
    with grpc_client.InferenceServerClient(server.grpc) as client:
        assert client.is_server_ready() and client.is_model_ready(MODEL)
        assert client.get_model_config(MODEL).config.name == MODEL
        result = client.infer(MODEL, [input_of(grpc_client)], request_id="m", timeout=MINUTE)
        with pytest.raises(InferenceServerException) as refused:
            client.infer("nobody", [input_of(grpc_client)])
        return result.as_numpy("output"), refused.value.message()


def with_grpc_packed(server):
    with grpc_client.InferenceServerClient(server.grpc) as client:
        result = client.infer(MODEL, [input_of(grpc_client)], timeout=MINUTE, compression_algorithm="gzip")
        with pytest.raises(InferenceServerException) as refused:
            client.infer("nobody", [input_of(grpc_client)], compression_algorithm="deflate")
        return result.as_numpy("output"), refused.value.message()


def with_grpc_async(server):
    with grpc_client.InferenceServerClient(server.grpc) as client:
        answers: queue.Queue = queue.Queue()
        for model in (MODEL, "nobody"):
            client.async_infer(model, [input_of(grpc_client)], lambda result, error: answers.put((result, error)),
                               timeout=MINUTE)
        both = [answers.get(timeout=60) for _ in range(2)]
        (result,) = [r for r, error in both if error is None]
        (error,) = [e for _, e in both if e is not None]
        return result.as_numpy("output"), error.message()


def with_grpc_aio(server):
    async def go():
        async with grpc_aio.InferenceServerClient(server.grpc) as client:
            assert await client.is_model_ready(MODEL)
            result = await client.infer(MODEL, [input_of(grpc_aio)], timeout=MINUTE)
            with pytest.raises(InferenceServerException) as refused:
                await client.infer("nobody", [input_of(grpc_aio)])
            return result.as_numpy("output"), refused.value.message()
    return asyncio.run(go())


def with_stream(server):
    with grpc_client.InferenceServerClient(server.grpc) as client:
        answers: queue.Queue = queue.Queue()
        client.start_stream(lambda result, error: answers.put((result, error)))
        for i in range(300):
            client.async_stream_infer(MODEL, [input_of(grpc_client)], request_id=str(i), timeout=MINUTE,
                                      enable_empty_final_response=i % 2 == 0)
        results = {}
        for _ in range(300):
            result, error = answers.get(timeout=60)
            assert error is None, error
            response = result.get_response()
            assert response.parameters["triton_final_response"].bool_param
            results[response.id] = result.as_numpy("output")
        assert sorted(results, key=int) == [str(i) for i in range(300)]
        client.async_stream_infer("nobody", [input_of(grpc_client)], request_id="wrong")
        result, error = answers.get(timeout=60)
        assert result is None
        client.async_stream_infer(MODEL, [input_of(grpc_client)], request_id="after", timeout=MINUTE)
        after, none = answers.get(timeout=60)
        assert none is None and after.get_response().id == "after"
        client.stop_stream()
        return results["299"], error.message()


def with_stream_aio(server):
    async def go():
        async with grpc_aio.InferenceServerClient(server.grpc) as client:
            async def requests():
                yield {"model_name": MODEL, "inputs": [input_of(grpc_aio)], "request_id": "a", "timeout": MINUTE}
                yield {"model_name": "nobody", "inputs": [input_of(grpc_aio)], "request_id": "b"}
            results, errors = [], []
            async for result, error in client.stream_infer(requests()):
                (results if error is None else errors).append(result if error is None else error)
            assert len(results) == len(errors) == 1
            return results[0].as_numpy("output"), errors[0].message()
    return asyncio.run(go())


def in_memory(client, module, wanted_bytes: int):
    """The same through shared memory, both ways."""
    key = f"/carillon_{uuid.uuid4().hex}"
    handle = shm.create_shared_memory_region(key[1:], key, 8192, create_only=True)
    try:
        shm.set_shared_memory_region(handle, [VALUES])
        client.register_system_shared_memory(key[1:], key, 8192)
        tensor = module.InferInput("input", VALUES.shape, "FP32")
        tensor.set_shared_memory(key[1:], VALUES.nbytes)
        output = module.InferRequestedOutput("output")
        output.set_shared_memory(key[1:], wanted_bytes, offset=4096)
        result = client.infer(MODEL, [tensor], outputs=[output], timeout=MINUTE)
        answered = result.get_output("output")
        shape = answered["shape"] if isinstance(answered, dict) else answered.shape
        got = np.array(shm.get_contents_as_numpy(handle, np.float32, list(shape), offset=4096))
        with pytest.raises(InferenceServerException) as refused:
            client.infer("nobody", [tensor])
        client.unregister_system_shared_memory(key[1:])
        return got, refused.value.message()
    finally:
        shm.destroy_shared_memory_region(handle)


def with_http_shared_memory(server):
    with http_client.InferenceServerClient(server.http) as client:
        return in_memory(client, http_client, 1024)


def with_grpc_shared_memory(server):
    with grpc_client.InferenceServerClient(server.grpc) as client:
        return in_memory(client, grpc_client, 1024)


def rest_body(values: np.ndarray = VALUES) -> dict:
    """As KServe's REST client writes a request. Without a timeout the server's default would be its deadline, which a
    busy machine may miss."""
    tensor = {"name": "input", "shape": list(values.shape), "datatype": "FP32", "data": values.flatten().tolist()}
    return {"id": str(uuid.uuid4()), "parameters": {"timeout": MINUTE}, "inputs": [tensor]}


def rest_output(answer: dict) -> np.ndarray:
    (output,) = answer["outputs"]
    assert output["datatype"] == "FP32" and answer["model_name"] == MODEL
    return np.array(output["data"], np.float32).reshape(output["shape"])


def with_curl(server):
    def post(model: str) -> tuple[int, dict]:
        done = subprocess.run(["curl", "-sS", "-w", "\n%{http_code}", "-H", "Content-Type: application/json",
                               "--data-binary", "@-", f"http://{server.http}/v2/models/{model}/infer"],
                              input=json.dumps(rest_body()), capture_output=True, text=True, check=True, timeout=60)
        body, status = done.stdout.rsplit("\n", 1)
        return int(status), json.loads(body)

    if shutil.which("curl") is None:
        pytest.skip("there is no curl")
    status, answer = post(MODEL)
    assert status == 200
    missing, error = post("nobody")
    assert missing == 404
    return rest_output(answer), error["error"]


def with_kserve_rest(server):
    """aiohttp stands for the httpx of KServe's client, which sends the same bytes."""
    import aiohttp

    async def go():
        async with aiohttp.ClientSession() as session:
            async def post(model: str):
                async with session.post(f"http://{server.http}/v2/models/{model}/infer", json=rest_body()) as response:
                    return response.status, await response.json()

            async with session.get(f"http://{server.http}/v2/health/live") as live:
                assert (await live.json())["live"] is True
            async with session.get(f"http://{server.http}/v2/health/ready") as ready:
                assert (await ready.json())["ready"] is True
            async with session.get(f"http://{server.http}/v2/models/{MODEL}/ready") as ready:
                assert ready.status == 200
            status, answer = await post(MODEL)
            assert status == 200
            missing, error = await post("nobody")
            assert missing == 404
            return rest_output(answer), error["error"]
    return asyncio.run(go())


def with_kserve_grpc(server):
    """KServe's client sends typed contents, and reads raw ones."""
    def request(model: str):
        message = service_pb2.ModelInferRequest(model_name=model, id="k")
        tensor = message.inputs.add(name="input", datatype="FP32", shape=VALUES.shape)
        tensor.contents.fp32_contents.extend(VALUES.flatten())
        return message

    with grpc.insecure_channel(server.grpc) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        assert stub.ServerLive(service_pb2.ServerLiveRequest()).live
        response = stub.ModelInfer(request(MODEL), timeout=60)
        with pytest.raises(grpc.RpcError) as refused:
            stub.ModelInfer(request("nobody"), timeout=60)
        assert refused.value.code() == grpc.StatusCode.NOT_FOUND
        (output,) = response.outputs
        return (np.frombuffer(response.raw_output_contents[0], np.float32).reshape(output.shape),
                refused.value.details())


def outside(*program: str) -> str:
    """A program that tools/clients installs."""
    file = ROOT / ".clients" / Path(*program)
    if not file.exists():
        pytest.skip(f"there is no {file.relative_to(ROOT)}: tools/setup --with-clients")
    return str(file)


def with_kserve_sdk(address: str, protocol: str):
    """KServe's own client, in an environment of its own."""
    done = subprocess.run([outside("venv", "bin", "python"), str(ROOT / "tests/clients/kserve_sdk.py"), protocol, address, MODEL],
                          input=json.dumps(VALUES.tolist()), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    return np.array(said["output"], np.float32), said["error"]


def with_kserve_sdk_rest(server):
    return with_kserve_sdk(server.http, "rest")


def with_kserve_sdk_grpc(server):
    return with_kserve_sdk(server.grpc, "grpc")


CLIENTS = [with_http, with_http_json, with_http_async, with_http_aio, with_grpc, with_grpc_packed, with_grpc_async,
           with_grpc_aio, with_stream, with_stream_aio, with_http_shared_memory, with_grpc_shared_memory, with_curl,
           with_kserve_rest, with_kserve_grpc, with_kserve_sdk_rest, with_kserve_sdk_grpc]


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.__name__.removeprefix("with_"))
def test_each_client(server, wanted, client):
    got, error = client(server)
    agree(got, wanted)
    assert "nobody" in error


# -- perf_analyzer, which asks for much before it starts, and ends at the first error

HOW = {
    "concurrency": ["--concurrency-range", "1:2"],
    "asynchronous": ["--concurrency-range", "3", "--async"],
    "rate": ["--request-rate-range", "20", "--request-distribution", "poisson"],
    "shared_memory": ["--concurrency-range", "2", "--shared-memory", "system", "--output-shared-memory-size", "4096"],
    "streams": ["--concurrency-range", "2", "--streaming"],
}


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("how", HOW)
def test_perf_analyzer(patient, protocol, how, tmp_path):
    if how == "streams" and protocol == "http":
        pytest.skip("HTTP has no streams")
    report = tmp_path / "report.csv"
    done = subprocess.run([outside("bin", "perf_analyzer"), "-m", MODEL, "-b", "2", "-i", protocol, "-u", getattr(patient, protocol), *HOW[how],
                           "--measurement-mode", "count_windows", "--measurement-request-count", "30", "--stability-percentage", "100000",
                           "--max-trials", "10", "-f", str(report)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "throughput" in done.stdout.splitlines()[-1], done.stdout
    names, *rows = (line.split(",") for line in report.read_text().splitlines() if line)
    for row in rows:
        assert float(row[names.index("Inferences/Second")]) > 0
        # What it reads from the server's statistics.
        assert float(row[names.index("Server Compute Infer")]) >= 0
    if how != "streams":
        assert "Successful request count" in done.stdout


# -- what streams have beside answers


def test_a_stream_that_is_cancelled_leaves_nothing_open(server):
    with grpc_client.InferenceServerClient(server.grpc) as client:
        client.start_stream(lambda result, error: None)
        for i in range(50):
            client.async_stream_infer(MODEL, [input_of(grpc_client)], request_id=str(i), timeout=MINUTE)
        client.stop_stream(cancel_requests=True)
        assert client.is_server_live()
    # Another is served as ever.
    with_grpc(server)


def test_an_impossible_deadline_is_a_streams_error(server):
    with grpc_client.InferenceServerClient(server.grpc) as client:
        answers: queue.Queue = queue.Queue()
        client.start_stream(lambda result, error: answers.put((result, error)))
        client.async_stream_infer(MODEL, [input_of(grpc_client)], request_id="late", timeout=1)
        result, error = answers.get(timeout=60)
        assert result is None and error.message()
        client.stop_stream()


# -- settings


def test_log_settings(server):
    with http_client.InferenceServerClient(server.http) as http, grpc_client.InferenceServerClient(server.grpc) as rpc:
        before = http.get_log_settings()
        assert before["log_info"] is True and before["log_verbose_level"] == 1 and before["log_file"] == ""
        assert http.update_log_settings({"log_verbose_level": 0})["log_verbose_level"] == 0
        assert rpc.get_log_settings().settings["log_verbose_level"].uint32_param == 0
        changed = rpc.update_log_settings({"log_verbose_level": 0, "log_info": False})
        assert changed.settings["log_info"].bool_param is False
        assert http.get_log_settings()["log_info"] is False
        assert http.update_log_settings({"log_info": True, "log_verbose_level": 1}) == before
        for client in (http, rpc):
            with pytest.raises(InferenceServerException, match="log_file|file cannot be changed"):
                client.update_log_settings({"log_file": "/tmp/elsewhere"})
        with pytest.raises(InferenceServerException, match="no log setting 'colour'"):
            http.update_log_settings({"colour": True})
        with pytest.raises(InferenceServerException, match="no log setting 'colour'"):
            rpc.update_log_settings({"colour": True})
        assert http.get_log_settings() == before
        assert "logging" in http.get_server_metadata()["extensions"]


def test_trace_settings(server):
    with http_client.InferenceServerClient(server.http) as http, grpc_client.InferenceServerClient(server.grpc) as rpc:
        assert http.get_trace_settings()["trace_level"] == ["OFF"]
        assert http.get_trace_settings(MODEL)["trace_rate"] == "1000"
        assert http.update_trace_settings(MODEL, {"trace_rate": "7"})["trace_rate"] == "7"
        assert list(rpc.get_trace_settings(MODEL).settings["trace_rate"].value) == ["7"]
        assert list(rpc.get_trace_settings().settings["trace_rate"].value) == ["1000"]
        assert http.update_trace_settings(MODEL, {"trace_rate": None})["trace_rate"] == "1000"
        rpc.update_trace_settings(settings={"trace_level": ["OFF"], "log_frequency": "3"})
        assert http.get_trace_settings()["log_frequency"] == "3"
        rpc.update_trace_settings(settings={"log_frequency": None})
        assert http.get_trace_settings()["log_frequency"] == "0"
        for client in (http, rpc):
            with pytest.raises(InferenceServerException, match="records no traces"):
                client.update_trace_settings(settings={"trace_level": ["TIMESTAMPS"]})
            with pytest.raises(InferenceServerException, match="no trace setting 'colour'"):
                client.update_trace_settings(settings={"colour": ["1"]})
            with pytest.raises(InferenceServerException, match="nobody"):
                client.get_trace_settings("nobody")


def test_loading_at_run_time_is_refused_with_a_reason(server):
    with http_client.InferenceServerClient(server.http) as http, grpc_client.InferenceServerClient(server.grpc) as rpc:
        for client in (http, rpc):
            for change in (client.load_model, client.unload_model):
                with pytest.raises(InferenceServerException, match="when it started"):
                    change(MODEL)
            assert client.is_model_ready(MODEL)
