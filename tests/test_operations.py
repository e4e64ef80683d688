"""What operates a server: the service manager's messages, the access log, traces, health and reflection over gRPC, and
the description of its HTTP interface."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path

import grpc
import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from tritonclient.utils import InferenceServerException

from loopback import free_addresses, is_ready, serving
from raw_http import INFER, ask, connect, get, post, receive

# Servers that need little memory: several run at a time.
SMALL = ("--io-cache", "32 MiB", "--workspace", "64 MiB")
JSON = json.dumps({"id": "mine", "inputs": [
    {"name": "input", "datatype": "FP32", "shape": [1, 64], "data": [1.0] * 64}]}).encode()
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACEPARENT = f"00-{TRACE}-00f067aa0ba902b7-01"


def wait_for(condition, what: str, seconds: float = 120):
    limit = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < limit, f"{what} did not happen"
        time.sleep(0.02)
    return found


# ---- the service manager


class Manager:
    """Listens where systemd would, and as steadily."""

    def __init__(self, path: Path):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(path))
        self.messages = queue.Queue()
        threading.Thread(target=self.listen, daemon=True).start()

    def listen(self):
        while True:
            self.messages.put(self.socket.recv(4096).decode())

    def heard(self, begins: str) -> str:
        """The next message that begins like this; those before it are dropped."""
        while True:
            message = self.messages.get(timeout=60)
            if message.startswith(begins):
                return message


def test_a_service_manager_is_told(program, tiny_models, tmp_path):
    manager = Manager(tmp_path / "notify")
    environment = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "400000"}
    with serving(program, tiny_models, tmp_path / "log", *SMALL, environment=environment) as server:
        assert manager.heard("READY=1") == "READY=1\nSTATUS=loading models"  # the ports are open
        assert "\n" not in manager.heard("STATUS=")
        assert re.fullmatch(r"READY=1\nSTATUS=ready: (\d+) of \1 models on 1 device", manager.heard("READY=1"))
        for _ in range(3):
            manager.heard("WATCHDOG=1")
        server.process.send_signal(signal.SIGHUP)
        assert re.fullmatch(r"RELOADING=1\nMONOTONIC_USEC=\d+", manager.heard("RELOADING=1"))
        assert manager.heard("READY=1") == "READY=1"
    assert re.match(r"STOPPING=1\nSTATUS=stopping.*\nEXTEND_TIMEOUT_USEC=40000000", manager.heard("STOPPING=1"))


def test_a_bad_notify_socket_ends_the_start(program, tiny_models):
    ran = subprocess.run([str(program), "serve", "--models", str(tiny_models)], capture_output=True, text=True, timeout=120,
                         env={**os.environ, "NOTIFY_SOCKET": "vsock:2:1234"})
    assert ran.returncode == 1
    assert "NOTIFY_SOCKET is 'vsock:2:1234'" in ran.stderr


# ---- the access log, and traces in it


@pytest.fixture(scope="module")
def logged(program, tiny_models, tmp_path_factory):
    folder = tmp_path_factory.mktemp("access")
    with serving(program, tiny_models, folder / "log", *SMALL, "--access-log", str(folder / "access.log")) as server:
        server.access = folder / "access.log"
        yield server


def lines_of(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def line_where(file: Path, **wanted) -> dict:
    """The one line that has these."""
    def found():
        return [line for line in lines_of(file) if all(line.get(name) == value for name, value in wanted.items())]
    lines = wait_for(found, f"a line with {wanted}")
    assert len(lines) == 1, lines
    return lines[0]


def test_an_inference_over_http_is_a_line(logged):
    began = time.time()
    status, headers, body = ask(logged.http, post(JSON.replace(b"mine", b"http-1"), traceparent=TRACEPARENT,
                                                  tracestate="congo=t61rcWkgMzE"))
    assert status == 200
    line = line_where(logged.access, id="http-1")
    when = time.mktime(time.strptime(line["time"][:19], "%Y-%m-%dT%H:%M:%S")) - time.timezone
    assert began - 2 < when < time.time() + 2
    assert line["protocol"] == "http" and line["method"] == "POST" and line["path"] == INFER
    assert line["model"] == "tiny_mlp" and line["version"] == 1
    assert line["status"] == 200 and line["outcome"] == "on_time"
    assert line["bytes_in"] == len(JSON) + 2 and line["bytes_out"] == len(body)
    assert 0 <= line["service_us"] <= line["duration_us"] < 120e6
    assert line["peer"].startswith("127.0.0.1:")
    assert line["trace_id"] == TRACE and line["sampled"] is True
    assert headers["traceparent"] == f"00-{TRACE}-{line['span_id']}-01"
    assert headers["tracestate"] == "congo=t61rcWkgMzE"
    assert get(logged.http, f"/v2/carillon/requests/{headers['carillon-request']}")[1]["trace"] == TRACE


def test_what_is_no_inference_or_none_that_goes_well_is_a_line_too(logged):
    assert ask(logged.http, b"GET /v2/models/none HTTP/1.1\r\nHost: t\r\n\r\n")[0] == 404
    line = line_where(logged.access, path="/v2/models/none")
    assert line["status"] == 404 and line["outcome"] == "invalid" and line["method"] == "GET"
    assert "model" not in line and "trace_id" not in line
    assert ask(logged.http, post(b"{", INFER + "?broken"))[0] == 400
    assert line_where(logged.access, path=INFER + "?broken")["outcome"] == "invalid"
    with connect(logged.http) as connection:
        connection.sendall(b"HEAD /v2?head HTTP/1.1\r\nHost: t\r\n\r\n")
        receive(connection, head_only=True)
    line = line_where(logged.access, path="/v2?head")
    assert line["method"] == "HEAD" and line["bytes_out"] == 0
    with connect(logged.http) as connection:
        connection.sendall(b"no\r\n\r\n")
        assert receive(connection)[0] == 400
    wait_for(lambda: [x for x in lines_of(logged.access) if x["status"] == 400 and "path" not in x], "a line of it")


def test_an_inference_that_cannot_be_on_time_is_refused(logged):
    request = json.loads(JSON) | {"id": "hopeless", "parameters": {"timeout": 1}}
    assert ask(logged.http, post(json.dumps(request).encode()))[0] == 504
    line = line_where(logged.access, id="hopeless")
    assert line["outcome"] == "refused" and line["status"] == 504 and line["deadline_us"] == 1
    assert line["would_take_us"] >= 0


def test_a_client_that_goes_is_a_line(logged):
    with connect(logged.http) as connection:
        connection.sendall(post(JSON, INFER + "?gone").replace(b"Content-Length: ", b"Content-Length: 1"))
    line = line_where(logged.access, path=INFER + "?gone")
    assert line["status"] == 499 and line["outcome"] == "cancelled"


def test_inferences_over_grpc_are_lines(logged):
    client = grpc_client.InferenceServerClient(logged.grpc)
    tensor = grpc_client.InferInput("input", [1, 64], "FP32")
    tensor.set_data_from_numpy(np.ones([1, 64], np.float32))
    client.infer("tiny_mlp", [tensor], request_id="grpc-1", headers={"traceparent": TRACEPARENT})
    line = line_where(logged.access, id="grpc-1")
    assert line["protocol"] == "grpc" and line["path"] == "/inference.GRPCInferenceService/ModelInfer"
    assert line["model"] == "tiny_mlp" and line["status"] == 0 and line["outcome"] == "on_time"
    assert line["bytes_in"] > 256 and line["bytes_out"] > 0 and line["trace_id"] == TRACE
    assert line["peer"].startswith("127.0.0.1:")
    with pytest.raises(InferenceServerException):
        client.get_model_metadata("none")
    line = line_where(logged.access, path="/inference.GRPCInferenceService/ModelMetadata", status=5)
    assert line["outcome"] == "invalid"

    done = threading.Semaphore(0)
    client.start_stream(lambda result, error: done.release(), headers={"traceparent": TRACEPARENT})
    for name in ("stream-1", "stream-2"):
        client.async_stream_infer("tiny_mlp", [tensor], request_id=name)
    client.async_stream_infer("none", [tensor], request_id="stream-3")
    for _ in range(3):
        assert done.acquire(timeout=120)
    client.stop_stream()
    for name in ("stream-1", "stream-2"):
        line = line_where(logged.access, id=name)
        assert line["path"].endswith("/ModelStreamInfer") and line["outcome"] == "on_time" and line["trace_id"] == TRACE
    line = line_where(logged.access, path="/inference.GRPCInferenceService/ModelStreamInfer", status=5)
    assert line["outcome"] == "invalid"


def test_grpc_tells_its_span(logged):
    channel = grpc.insecure_channel(logged.grpc)
    live = channel.unary_unary("/inference.GRPCInferenceService/ServerLive")
    _, call = live.with_call(b"", timeout=60, metadata=[("traceparent", TRACEPARENT), ("tracestate", "a=1"),
                                                          ("tracestate", "b=2")])
    metadata = dict(call.initial_metadata())
    assert re.fullmatch(f"00-{TRACE}-[0-9a-f]{{16}}-01", metadata["traceparent"])
    assert metadata["traceparent"] != TRACEPARENT and metadata["tracestate"] == "a=1,b=2"
    _, call = live.with_call(b"", timeout=60, metadata=[("traceparent", TRACEPARENT.upper())])
    assert "traceparent" not in dict(call.initial_metadata())


@pytest.mark.parametrize("traceparent", ["", "00-zz", TRACEPARENT.upper(), TRACEPARENT.replace(TRACE, "0" * 32)])
def test_a_trace_that_is_none_is_not_passed_on(logged, traceparent):
    _, headers, _ = ask(logged.http, post(JSON, traceparent=traceparent, tracestate="a=1"))
    assert "traceparent" not in headers and "tracestate" not in headers


def test_a_trace_does_not_outlive_its_request(logged):
    with connect(logged.http) as connection:
        connection.sendall(f"GET /v2 HTTP/1.1\r\nHost: t\r\ntraceparent: {TRACEPARENT}\r\n\r\n".encode())
        assert receive(connection)[1]["traceparent"]
        connection.sendall(b"GET /v2 HTTP/1.1\r\nHost: t\r\n\r\n")
        assert "traceparent" not in receive(connection)[1]
        connection.sendall(f"GET /v2 HTTP/1.1\r\nHost: t\r\ntraceparent: {TRACEPARENT}\r\n"
                           f"traceparent: {TRACEPARENT}\r\n\r\n".encode())
        assert "traceparent" not in receive(connection)[1]  # which one?
        connection.sendall(f"GET /v2 HTTP/1.1\r\nHost: t\r\ntraceparent: {TRACEPARENT}\r\n\r\n".encode())
        assert receive(connection)[1]["traceparent"]
        connection.sendall(b"GET /v2 HTTP/1.1\r\n\r\n")  # refused before its fields are looked at
        status, headers, _ = receive(connection)
        assert status == 400 and "traceparent" not in headers


def test_keys_are_named_and_logs_are_opened_again(program, tiny_models, tmp_path):
    keys = tmp_path / "keys.toml"
    keys.write_text('[[key]]\nname = "team-a"\nsecret = "a-secret-of-team-a"\n')
    keys.chmod(0o600)
    log = tmp_path / "access.log"
    with serving(program, tiny_models, tmp_path / "log", *SMALL, "--access-log", str(log), "--keys", str(keys),
                 "--trace-sample", "1") as server:
        assert ask(server.http, post(JSON.replace(b"mine", b"known"), x_api_key="a-secret-of-team-a"))[0] == 200
        line = line_where(log, id="known")
        assert line["key"] == "team-a" and line["sampled"] is True and re.fullmatch("[0-9a-f]{32}", line["trace_id"])
        assert ask(server.http, post(JSON, INFER + "?unknown"))[0] == 401
        assert "key" not in line_where(log, path=INFER + "?unknown")
        assert "a-secret" not in log.read_text()
        moved = log.rename(tmp_path / "access.log.1")
        before = len(lines_of(moved))
        server.process.send_signal(signal.SIGHUP)
        wait_for(log.exists, "the log is opened again")
        assert ask(server.http, post(JSON.replace(b"mine", b"after"), x_api_key="a-secret-of-team-a"))[0] == 200
        line_where(log, id="after")
        assert len(lines_of(moved)) >= before
        # Lines are counted, in the metrics too, which keys do not open here.
    assert (log.stat().st_mode & 0o777) & 0o007 == 0


def test_metrics_tell_of_the_log_and_the_machine(logged):
    ask(logged.http, post(JSON))
    wait_for(lambda: "\nnv_cpu_utilization " in logged.scrape(), "some of the machine's time")
    metrics = {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in logged.scrape().splitlines()
               if not line.startswith("#")}
    assert metrics["carillon_access_log_lines_total"] >= 1
    assert metrics["carillon_access_log_dropped_total"] == 0
    assert 0 <= metrics["nv_cpu_utilization"] <= 1
    assert metrics["nv_cpu_memory_total_bytes"] > metrics["nv_cpu_memory_used_bytes"] > 0
    assert metrics["process_resident_memory_bytes"] > 1e6 and metrics["process_cpu_seconds_total"] > 0
    labels = 'model="tiny_mlp",version="1"'
    assert metrics[f"nv_inference_pending_request_count{{{labels}}}"] == 0
    assert metrics[f"nv_model_load_duration_secs{{{labels}}}"] > 0
    assert metrics[f"nv_inference_request_summary_us_count{{{labels}}}"] == metrics[f"nv_inference_request_success{{{labels}}}"]
    assert metrics[f'nv_inference_request_summary_us{{{labels},quantile="0.99"}}'] > 0


# ---- gRPC's health and reflection

SERVING, NOT_SERVING, UNKNOWN = b"\x08\x01", b"\x08\x02", b"\x08\x03"


def field(number: int, text: str) -> bytes:
    return bytes([number << 3 | 2, len(text)]) + text.encode()


def watch(channel, service: str):
    call = channel.unary_stream("/grpc.health.v1.Health/Watch")
    return call(field(1, service) if service else b"", timeout=300)


@contextlib.contextmanager
def starting(program, models, log_path):
    """A server that may not be ready yet: its process, HTTP's and gRPC's addresses."""
    http, rpc, metrics = free_addresses(3)
    with log_path.open("wb") as log:
        process = subprocess.Popen([str(program), "serve", "--models", str(models), "--http", http, "--grpc", rpc,
                                    "--metrics", metrics, "--page-cache", "64 MiB", *SMALL], stdout=log, stderr=log)
    try:
        yield process, http, rpc
    finally:
        process.kill()
        process.wait()


def test_health_is_watched(program, tiny_models, tmp_path):
    with starting(program, tiny_models, tmp_path / "log") as (process, http, rpc):
        wait_for(lambda: is_ready(http), "the server is ready")
        channel = grpc.insecure_channel(rpc)
        watches = [watch(channel, name) for name in ("", "inference.GRPCInferenceService")]
        stranger = watch(channel, "nobody")
        assert [next(told) for told in watches] == [SERVING, SERVING]
        assert next(stranger) == UNKNOWN
        gone = watch(channel, "")
        next(gone)
        gone.cancel()
        assert channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=60) == SERVING
        process.send_signal(signal.SIGTERM)
        for call, rest in ((watches[0], [NOT_SERVING]), (watches[1], [NOT_SERVING]), (stranger, [])):
            told = []
            with pytest.raises(grpc.RpcError) as ended:
                for health in call:
                    told.append(health)
            assert ended.value.code() == grpc.StatusCode.UNAVAILABLE
            assert told == rest
        assert process.wait(60) == 0


def test_a_signal_that_comes_twice_at_once_is_one(program, tiny_models, tmp_path):
    """timeout(1) signals the program, and then its process group."""
    with starting(program, tiny_models, tmp_path / "log") as (process, http, _):
        wait_for(lambda: is_ready(http), "the server is ready")
        process.send_signal(signal.SIGTERM)
        time.sleep(0.005)  # the first is taken, and the server has not stopped yet
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert "stopped" in (tmp_path / "log").read_text()


def test_a_watch_sees_the_server_become_ready(program, tiny_models, tmp_path):
    with starting(program, tiny_models, tmp_path / "log") as (_, _, rpc):
        channel = grpc.insecure_channel(rpc)
        grpc.channel_ready_future(channel).result(timeout=120)
        told = []
        for health in watch(channel, ""):
            told.append(health)
            if health == SERVING:
                break
        assert told in ([NOT_SERVING, SERVING], [SERVING])


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
def test_reflection_tells_what_there_is(server, version):
    from google.protobuf import descriptor_pb2
    channel = grpc.insecure_channel(server.grpc)
    method = channel.stream_stream(f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo")
    requests = [field(7, ""), field(4, "inference.GRPCInferenceService"), field(3, "health.proto"), field(4, "no.such"), b"",
                field(4, f"grpc.reflection.{version}.ServerReflection")]
    answers = list(method(iter(requests), timeout=60))
    assert len(answers) == len(requests)
    for name in ("inference.GRPCInferenceService", "grpc.health.v1.Health", f"grpc.reflection.{version}.ServerReflection"):
        assert field(1, name) in answers[0]
    for name in (b"ModelInferRequest", b"ModelStreamInfer", b"model_config.proto"):
        assert name in answers[1]
    assert b"HealthCheckRequest" in answers[2]
    assert b"there is no symbol no.such here" in answers[3]
    assert b"asks for nothing" in answers[4]
    assert b"ServerReflectionInfo" in answers[5]
    # A file is a descriptor as protobuf has it.
    at = answers[2].index(b"\x0a\x0chealth.proto")
    file = descriptor_pb2.FileDescriptorProto.FromString(answers[2][at:])
    assert [service.name for service in file.service] == ["Health"]


def test_reflection_needs_a_key_where_there_are_keys(program, tiny_models, tmp_path):
    keys = tmp_path / "keys.toml"
    keys.write_text('[[key]]\nname = "team-a"\nsecret = "a-secret-of-team-a"\n')
    keys.chmod(0o600)
    with serving(program, tiny_models, tmp_path / "log", *SMALL, "--keys", str(keys)) as server:
        channel = grpc.insecure_channel(server.grpc)
        method = channel.stream_stream("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")
        with pytest.raises(grpc.RpcError) as refused:
            list(method(iter([field(7, "")]), timeout=60))
        assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED
        assert list(method(iter([field(7, "")]), timeout=60, metadata=[("x-api-key", "a-secret-of-team-a")]))
        assert next(watch(channel, "")) == SERVING  # health is open
        assert get(server.http, "/v2/openapi.json")[0] == 401
