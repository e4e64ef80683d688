"""Spans by OTLP: what a collector is sent of requests over both protocols, and what becomes of a server whose collector
fails in every way."""

from __future__ import annotations

import contextlib
import http.server
import json
import signal
import socket
import ssl
import subprocess
import threading
import time

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (ExportTraceServiceRequest,
                                                                      ExportTraceServiceResponse)
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from tritonclient.utils import InferenceServerException

from loopback import serving, write_profile
from raw_http import INFER, MINUTE, ask, connect, post
from test_ensembles import WIDTH, models  # noqa: F401 (a fixture)
from test_operations import SMALL, line_where, wait_for
from test_security import authority  # noqa: F401 (a fixture)

# With time enough for a machine that does other things.
JSON = json.dumps({"id": "mine", "parameters": {"timeout": MINUTE}, "inputs": [
    {"name": "input", "datatype": "FP32", "shape": [1, 64], "data": [1.0] * 64}]}).encode()
CALLER = "00f067aa0ba902b7"
PARTS = {"read", "size", "queue", "load", "tried", "input", "exec", "output", "answer"}


def traceparent(trace: int, sampled: bool = True) -> str:
    return f"00-{trace:032x}-{CALLER}-{int(sampled):02x}"


class Collector:
    """A collector of OpenTelemetry's, on a port of its own. `answers`: how it meets the next posts, each once; an
    answer is a status, a tuple of a status, headers and a body, or a function of the handler."""

    def __init__(self, tls: ssl.SSLContext | None = None, port: int = 0, host: str = "127.0.0.1"):
        self.posts, self.spans, self.answers = [], [], []
        collector = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                answer = collector.answers.pop(0) if collector.answers else 200
                collector.take(self, body, answer)
                if callable(answer):
                    return answer(self)
                status, headers, text = (answer, {}, b"") if isinstance(answer, int) else answer
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)
                return None

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer((host, port), Handler)
        self.server.daemon_threads = True
        scheme = "http"
        if tls:
            self.server.socket = tls.wrap_socket(self.server.socket, server_side=True)
            scheme = "https"
        self.port = self.server.server_address[1]
        self.url = f"{scheme}://{host}:{self.port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def take(self, handler, body, answer):
        request = ExportTraceServiceRequest()
        with contextlib.suppress(DecodeError):
            request.ParseFromString(body)
        spans = [span for resource in request.resource_spans for scope in resource.scope_spans for span in scope.spans]
        self.posts.append((handler.path, dict(handler.headers), request, len(spans)))
        if answer == 200:
            self.spans += spans

    def of(self, trace: int) -> list[Span]:
        return [span for span in list(self.spans) if span.trace_id.hex() == f"{trace:032x}"]

    def wait_for(self, trace: int, seconds: float = 30) -> list[Span]:
        """The request's own span first. A request's spans may come in two posts."""
        wait_for(lambda: any(s.kind == Span.SPAN_KIND_SERVER for s in self.of(trace)), f"spans of {trace}", seconds)
        time.sleep(0.2)
        return sorted(self.of(trace), key=lambda span: span.kind != Span.SPAN_KIND_SERVER)

    def close(self):
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def collector():
    made = Collector()
    yield made
    made.close()


def attributes(span) -> dict:
    return {a.key: getattr(a.value, a.value.WhichOneof("value")) for a in span.attributes}


def check_tree(spans: list[Span]) -> None:
    """Each child is another span's, and lies within it."""
    assert len({span.span_id for span in spans}) == len(spans)
    by_id = {span.span_id: span for span in spans}
    for span in spans:
        assert len(span.trace_id) == 16 and len(span.span_id) == 8
        assert span.start_time_unix_nano <= span.end_time_unix_nano
        if span.parent_span_id not in by_id:
            assert span.parent_span_id.hex() in ("", CALLER), span
            continue
        parent = by_id[span.parent_span_id]
        assert parent.start_time_unix_nano <= span.start_time_unix_nano, (parent, span)
        assert span.end_time_unix_nano <= parent.end_time_unix_nano, (parent, span)


def counted(server, name: str = "carillon_otlp_spans_total") -> dict[str, float]:
    return {line.split('"')[1] if '"' in line else "": float(line.rsplit(" ", 1)[1])
            for line in server.scrape().splitlines() if line.startswith(name)}


@contextlib.contextmanager
def exporting(program, models, tmp_path, url, *options, **more):
    access = tmp_path / "access.log"
    with serving(program, models, tmp_path / "log", *SMALL, "--access-log", str(access), "--otlp", url, *options,
                 **more) as server:
        server.access = access
        server.log = tmp_path / "log"
        yield server


def infer(server, trace: int, body: bytes = JSON, path: str = INFER, sampled: bool = True, **headers):
    return ask(server.http, post(body, path, traceparent=traceparent(trace, sampled), **headers))


def tensor() -> grpc_client.InferInput:
    made = grpc_client.InferInput("input", [1, 64], "FP32")
    made.set_data_from_numpy(np.ones([1, 64], np.float32))
    return made


# ---- what is told


def test_a_request_over_http_is_a_span_with_its_story(program, tiny_models, tmp_path, collector):
    with exporting(program, tiny_models, tmp_path, collector.url) as server:
        before = time.time_ns()
        status, headers, _ = infer(server, 1, JSON.replace(b"mine", b"told"), INFER + "?secret=1")
        assert status == 200
        spans = collector.wait_for(1)
        after = time.time_ns()
        line = line_where(server.access, id="told")
        root, children = spans[0], spans[1:]
        assert root.span_id.hex() == line["span_id"] == headers["traceparent"].split("-")[2]
        assert root.parent_span_id.hex() == CALLER and root.name == "infer tiny_mlp"
        assert root.flags == 0x301 and root.status.code == Status.STATUS_CODE_UNSET
        assert before - 10**7 < root.start_time_unix_nano < root.end_time_unix_nano < after + 10**7
        told = attributes(root)
        assert told["http.request.method"] == "POST" and told["url.path"] == INFER
        assert told["http.response.status_code"] == 200 and told["client.address"] == "127.0.0.1"
        assert told["carillon.outcome"] == "on_time" and told["carillon.id"] == "told"
        assert told["carillon.model"] == "tiny_mlp" and told["carillon.version"] == 1
        assert told["carillon.class"] == "normal" and told["carillon.batch"] == 1
        assert told["carillon.device"] == 0 and told["carillon.device_name"].startswith("cpu")
        assert told["carillon.number"] == int(headers["carillon-request"])
        assert told["carillon.predicted_us"] > 0 and told["carillon.waited_us"] >= 0 and told["carillon.tries"] >= 1
        assert "secret" not in str(root)
        names = [child.name for child in children]
        assert {"queue", "exec"} <= set(names) <= PARTS, names
        assert all(child.parent_span_id == root.span_id and child.kind == Span.SPAN_KIND_INTERNAL for child in children)
        check_tree(spans)
        whole = root.end_time_unix_nano - root.start_time_unix_nano
        assert abs(whole - 1000 * line["duration_us"]) < 2000
        exec_span = next(child for child in children if child.name == "exec")
        queue = next(child for child in children if child.name == "queue")
        assert queue.end_time_unix_nano == exec_span.start_time_unix_nano
        # And who tells it.
        path, sent, request, _ = collector.posts[0]
        assert path == "/v1/traces" and sent["Content-Type"] == "application/x-protobuf"
        resource = attributes(request.resource_spans[0].resource)
        assert resource["service.name"] == "carillon" and resource["host.name"] == socket.gethostname()
        assert resource["service.version"] and len(resource["service.instance.id"]) == 36
        assert request.resource_spans[0].scope_spans[0].scope.name == "carillon"
        wait_for(lambda: counted(server)["sent"] == len(spans), "they are counted")
        assert counted(server) == {"sent": len(spans), "dropped": 0, "rejected": 0}


def test_a_request_over_grpc_and_messages_of_a_stream(program, tiny_models, tmp_path, collector):
    with exporting(program, tiny_models, tmp_path, collector.url) as server:
        client = grpc_client.InferenceServerClient(server.grpc)
        client.infer("tiny_mlp", [tensor()], request_id="one", timeout=MINUTE, headers={"traceparent": traceparent(2)})
        spans = collector.wait_for(2)
        check_tree(spans)
        told = attributes(spans[0])
        assert spans[0].span_id.hex() == line_where(server.access, id="one")["span_id"]
        assert spans[0].parent_span_id.hex() == CALLER and spans[0].name == "infer tiny_mlp"
        assert told["rpc.system"] == "grpc" and told["rpc.method"] == "ModelInfer"
        assert told["rpc.service"] == "inference.GRPCInferenceService" and told["rpc.grpc.status_code"] == 0
        assert told["carillon.outcome"] == "on_time" and "exec" in {span.name for span in spans}
        with pytest.raises(InferenceServerException):
            client.get_model_metadata("none", headers={"traceparent": traceparent(3)})
        spans = collector.wait_for(3)
        assert len(spans) == 1 and spans[0].name == "inference.GRPCInferenceService/ModelMetadata"
        assert attributes(spans[0])["rpc.grpc.status_code"] == 5 and spans[0].status.code == Status.STATUS_CODE_UNSET

        done = threading.Semaphore(0)
        client.start_stream(lambda result, error: done.release(), headers={"traceparent": traceparent(4)})
        for name in ("first", "second"):
            client.async_stream_infer("tiny_mlp", [tensor()], request_id=name, timeout=MINUTE)
        for _ in range(2):
            assert done.acquire(timeout=120)
        client.stop_stream()
        spans = collector.wait_for(4)
        stream = spans[0]
        assert stream.name == "inference.GRPCInferenceService/ModelStreamInfer"
        assert stream.parent_span_id.hex() == CALLER
        messages = {attributes(span)["carillon.id"]: span for span in spans if span.name == "infer tiny_mlp"}
        assert set(messages) == {"first", "second"}
        for name, message in messages.items():
            assert message.parent_span_id == stream.span_id and message.kind == Span.SPAN_KIND_INTERNAL
            assert message.span_id.hex() == line_where(server.access, id=name)["span_id"]
        check_tree(spans)


def test_what_is_refused_or_late_says_why(program, tiny_models, tmp_path, collector):
    profile = write_profile(tmp_path / "profile.json", ("tiny_mlp", "tiny_cnn", "tiny_encoder"), 40)
    with exporting(program, tiny_models, tmp_path, collector.url, "--device", f"emulated:{profile}", "--profile",
                   str(profile)) as server:
        refused = json.loads(JSON) | {"id": "refused", "parameters": {"timeout": 1000}}
        status, headers, _ = infer(server, 5, json.dumps(refused).encode())
        assert status == 504
        spans = collector.wait_for(5)
        check_tree(spans)
        told = attributes(spans[0])
        assert spans[0].status.code == Status.STATUS_CODE_ERROR
        assert "deadline" in spans[0].status.message and told["carillon.text"] == spans[0].status.message
        assert told["carillon.outcome"] == "refused" and told["carillon.deadline_us"] == 1000
        assert told["carillon.deadline_from"] == "timeout" and told["carillon.reason"] in ("too_near", "cannot_finish")
        assert told["carillon.would_take_us"] == int(headers["carillon-would-take-us"]) > 40_000
        assert not {"input", "exec", "output"} & {span.name for span in spans}

        # What nobody could read has a span without a model; a client's fault is no error of the server's.
        assert infer(server, 6, b"{", INFER)[0] == 400
        spans = collector.wait_for(6)
        assert len(spans) == 1 and spans[0].name == "POST" and spans[0].status.code == Status.STATUS_CODE_UNSET
        assert attributes(spans[0])["carillon.outcome"] == "invalid"


def test_a_late_answer_is_no_error(program, tiny_models, tmp_path, collector):
    profile = write_profile(tmp_path / "profile.json", ("tiny_mlp", "tiny_cnn", "tiny_encoder"), 40)
    with exporting(program, tiny_models, tmp_path, collector.url, "--device", f"emulated:{profile}", "--profile",
                   str(profile), "--scheduler", "fcfs") as server:
        late = json.loads(JSON) | {"id": "late", "parameters": {"timeout": 20_000}}
        assert infer(server, 7, json.dumps(late).encode())[0] == 200
        spans = collector.wait_for(7)
        check_tree(spans)
        told = attributes(spans[0])
        assert told["carillon.outcome"] == "late" and spans[0].status.code == Status.STATUS_CODE_UNSET
        assert told["carillon.took_us"] > told["carillon.deadline_us"] == 20_000
        exec_span = next(span for span in spans if span.name == "exec")
        assert exec_span.end_time_unix_nano - exec_span.start_time_unix_nano > 30e6
        assert attributes(exec_span)["carillon.predicted_us"] > 30_000


def test_steps_of_an_ensemble_are_children(program, models, tmp_path, collector):  # noqa: F811
    body = json.dumps({"id": "whole", "parameters": {"timeout": MINUTE}, "inputs": [
        {"name": "x", "datatype": "FP32", "shape": [1, WIDTH], "data": [1.0] * WIDTH}]}).encode()
    with exporting(program, models, tmp_path, collector.url) as server:
        assert infer(server, 8, body, "/v2/models/both/infer")[0] == 200
        spans = collector.wait_for(8)
        check_tree(spans)
        root = spans[0]
        steps = {span.name: span for span in spans if span.name.startswith("step ")}
        assert set(steps) == {"step double", "step triple", "step add"} and root.name == "infer both"
        for step in steps.values():
            assert step.parent_span_id == root.span_id
            assert "exec" in {span.name for span in spans if span.parent_span_id == step.span_id}
            assert attributes(step)["carillon.outcome"] == "on_time"
        assert steps["step add"].start_time_unix_nano >= steps["step double"].end_time_unix_nano
        refused = json.loads(body) | {"parameters": {"timeout": 1}}
        assert infer(server, 9, json.dumps(refused).encode(), "/v2/models/both/infer")[0] == 504
        spans = collector.wait_for(9)
        assert spans[0].status.code == Status.STATUS_CODE_ERROR and "ensemble's steps take" in spans[0].status.message


def test_only_sampled_requests_are_told(program, tiny_models, tmp_path, collector):
    with exporting(program, tiny_models, tmp_path, collector.url) as server:
        assert infer(server, 10, sampled=False)[0] == 200
        assert ask(server.http, post(JSON))[0] == 200
        with connect(server.http) as connection:  # of one connection
            for trace, sampled in ((11, True), (12, False), (13, True)):
                connection.sendall(post(JSON, traceparent=traceparent(trace, sampled)))
                while b"\r\n\r\n" not in connection.recv(65536):
                    pass
        collector.wait_for(11)
        collector.wait_for(13)
        assert {span.trace_id.hex() for span in collector.spans} == {f"{trace:032x}" for trace in (11, 13)}


def test_traces_that_begin_here(program, tiny_models, tmp_path, collector):
    with exporting(program, tiny_models, tmp_path, collector.url, "--trace-sample", "1", "--journal", "0") as server:
        assert ask(server.http, post(JSON.replace(b"mine", b"begun")))[0] == 200
        line = line_where(server.access, id="begun")
        trace = int(line["trace_id"], 16)
        spans = collector.wait_for(trace)
        # Without a journal there is the request alone.
        assert len(spans) == 1 and spans[0].parent_span_id == b"" and spans[0].span_id.hex() == line["span_id"]
        assert spans[0].flags == 0x101 and attributes(spans[0])["carillon.model"] == "tiny_mlp"


def test_secrets_stay_here(program, tiny_models, tmp_path, collector):
    keys = tmp_path / "keys.toml"
    keys.write_text('[[key]]\nname = "team-a"\nsecret = "a-secret-of-team-a"\n')
    keys.chmod(0o600)
    variables = {"OTEL_EXPORTER_OTLP_HEADERS": "authorization=Bearer%20collectors-secret, x-tenant=c",
                 "OTEL_SERVICE_NAME": "tower", "OTEL_RESOURCE_ATTRIBUTES": "service.name=no,deployment=a%20b"}
    with exporting(program, tiny_models, tmp_path, collector.url + "/otlp/traces?tenant=7", "--keys", str(keys),
                   "--otlp-header", "x-tenant=a=b", environment=variables) as server:
        assert infer(server, 14, x_api_key="a-secret-of-team-a")[0] == 200
        assert infer(server, 15, x_api_key="a-wrong-secret")[0] == 401
        assert attributes(collector.wait_for(14)[0])["carillon.key"] == "team-a"
        assert attributes(collector.wait_for(15)[0])["carillon.outcome"] == "invalid"
        path, headers, request, _ = collector.posts[0]
        assert path == "/otlp/traces?tenant=7" and headers["authorization"] == "Bearer collectors-secret"
        assert headers["x-tenant"] == "a=b"
        resource = attributes(request.resource_spans[0].resource)
        assert resource["service.name"] == "tower" and resource["deployment"] == "a b"
        everything = str([post[2] for post in collector.posts]) + server.log.read_text()
        assert "secret" not in everything and "tenant=7" not in server.log.read_text()


def test_over_tls(program, tiny_models, tmp_path, authority):  # noqa: F811
    identity = authority.issue("collector")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(identity.certificate, identity.key)
    collector = Collector(context)
    with exporting(program, tiny_models, tmp_path, collector.url, "--otlp-ca", str(authority.certificate)) as server:
        assert infer(server, 16)[0] == 200
        check_tree(collector.wait_for(16))
    with exporting(program, tiny_models, tmp_path, collector.url) as server:
        assert infer(server, 17)[0] == 200
        wait_for(lambda: "certificate is not trusted" in server.log.read_text(), "the log says so")
        assert "--otlp-ca" in server.log.read_text() and infer(server, 18)[0] == 200
    collector.close()


# ---- what is wrong


@pytest.mark.parametrize(("options", "words"), [
    (["--otlp", "collector:4318"], "neither http:// nor https://"),
    (["--otlp", "grpc://127.0.0.1:4317"], "neither http:// nor https://"),
    (["--otlp", "http://127.0.0.1:0"], "its host or its port is none"),
    (["--otlp", "http://"], "its host or its port is none"),
    (["--otlp", "http://me:hush@127.0.0.1:4318"], "a user or a password"),
    (["--otlp", "http://127.0.0.1:4318/a b"], "characters"),
    (["--otlp", "http://127.0.0.1:4318", "--otlp-header", "hush"], "NAME=VALUE"),
    (["--otlp", "http://127.0.0.1:4318", "--otlp-header", "Host=hush"], "cannot be given"),
    (["--otlp", "http://127.0.0.1:4318", "--otlp-header", "a b=hush"], "no name of a header"),
    (["--otlp", "http://127.0.0.1:4318", "--otlp-ca", "x"], "write https://"),
    (["--otlp-header", "a=hush"], "--otlp"),
])
def test_a_server_does_not_start_with_a_wrong_collector(program, tiny_models, options, words):
    done = subprocess.run([str(program), "serve", "--models", str(tiny_models), "--http", "127.0.0.1:0", "--grpc", "",
                           "--metrics", "", *options], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and words in done.stderr and "hush" not in done.stderr, done


def lines_about(server) -> list[str]:
    return [line for line in server.log.read_text().splitlines() if "--otlp:" in line]


def test_a_collector_that_comes_later_gets_what_waits(program, tiny_models, tmp_path):
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    with exporting(program, tiny_models, tmp_path, f"http://127.0.0.1:{port}") as server:
        assert infer(server, 20)[0] == 200
        wait_for(lambda: lines_about(server), "the log says that nobody is there")
        collector = Collector(port=port)
        check_tree(collector.wait_for(20))
        wait_for(lambda: len(lines_about(server)) == 2, "the log says that all is well")
        assert "not taken" in lines_about(server)[0] and "Connection refused" in lines_about(server)[0]
        assert "taken again; 0 were dropped" in lines_about(server)[1]
        collector.close()


def garbage(handler):
    handler.wfile.write(b"\x00\x01\x02 this is not HTTP\r\n\r\n")


def closes(handler):
    handler.connection.shutdown(socket.SHUT_RDWR)


def breaks_off(handler):
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nhalf")


def endless(handler):
    with contextlib.suppress(OSError):
        handler.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 1_000_000)


@pytest.mark.parametrize("answer", [503, 429, 502, 504, garbage, closes],
                         ids=lambda a: a if isinstance(a, int) else a.__name__)
def test_what_may_go_well_later_is_sent_again(program, tiny_models, tmp_path, collector, answer):
    collector.answers = [answer]
    with exporting(program, tiny_models, tmp_path, collector.url) as server:
        assert infer(server, 21)[0] == 200
        spans = collector.wait_for(21)
        check_tree(spans)
        assert len(collector.posts) == 2 and collector.posts[0][3] == collector.posts[1][3]
        wait_for(lambda: len(lines_about(server)) == 2, "the log says that all is well")
        assert counted(server)["dropped"] == 0


@pytest.mark.parametrize("answer", [400, 404, 500, (301, {"Location": "http://127.0.0.1:1/"}, b"")],
                         ids=["400", "404", "500", "301"])
def test_what_cannot_go_well_is_dropped_at_once(program, tiny_models, tmp_path, collector, answer):
    collector.answers = [answer, answer]
    with exporting(program, tiny_models, tmp_path, collector.url) as server:
        for trace in (22, 23):
            assert infer(server, trace)[0] == 200
            wait_for(lambda n=trace - 21: len(collector.posts) == n, "a post")
        wait_for(lambda: counted(server)["dropped"] == sum(post[3] for post in collector.posts), "they are counted")
        assert len(lines_about(server)) == 1  # not for each
        assert infer(server, 24)[0] == 200
        collector.wait_for(24)
        wait_for(lambda: len(lines_about(server)) == 2, "the log says that all is well")


@pytest.mark.parametrize("answer", [breaks_off, endless], ids=lambda a: a.__name__)
def test_a_status_is_an_answer_whatever_follows(program, tiny_models, tmp_path, collector, answer):
    collector.answers = [answer]
    with exporting(program, tiny_models, tmp_path, collector.url) as server:
        assert infer(server, 25)[0] == 200
        wait_for(lambda: counted(server)["sent"] > 0, "they count as sent")
        assert len(collector.posts) == 1


def test_a_collector_says_when_to_come_again_and_what_it_rejects(program, tiny_models, tmp_path, collector):
    part = ExportTraceServiceResponse()
    part.partial_success.rejected_spans = 2
    part.partial_success.error_message = "too old"
    collector.answers = [(503, {"Retry-After": "3"}, b"busy"), (200, {}, part.SerializeToString())]
    with exporting(program, tiny_models, tmp_path, collector.url) as server:
        assert infer(server, 26)[0] == 200
        wait_for(lambda: len(collector.posts) == 1, "a post")
        first = time.monotonic()
        wait_for(lambda: len(collector.posts) == 2, "it comes again")
        assert time.monotonic() - first > 2.5
        wait_for(lambda: counted(server)["rejected"] == 2, "they are counted")
        assert counted(server)["sent"] == collector.posts[0][3] - 2 and counted(server)["dropped"] == 0
        assert "HTTP 503: busy" in lines_about(server)[0]


def test_a_collector_that_hangs_holds_nobody_up(program, tiny_models, tmp_path, collector):
    free = threading.Event()
    collector.answers = [lambda handler: free.wait(60)] * 5
    with exporting(program, tiny_models, tmp_path, collector.url) as server:
        assert infer(server, 27)[0] == 200
        wait_for(lambda: collector.posts, "a post")
        with connect(server.http) as connection:
            for _ in range(3000):  # more than its queue holds
                connection.sendall(post(JSON, traceparent=traceparent(28)))
                received = b""
                while b"\r\n\r\n" not in received:
                    received += connection.recv(65536)
                assert received.startswith(b"HTTP/1.1 200")
        wait_for(lambda: counted(server, "carillon_otlp_requests_dropped_total")[""] > 500, "some are counted")
        began = time.monotonic()
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(30) == 0 and time.monotonic() - began < 8, server.log.read_text()[-2000:]
        server.process.poll = lambda: None  # it was this that ended it
        server.process.send_signal = lambda number: None
    free.set()


def test_the_last_spans_go_out_at_the_end(program, tiny_models, tmp_path, collector):
    with exporting(program, tiny_models, tmp_path, collector.url) as server:
        for trace in range(30, 40):
            assert infer(server, trace)[0] == 200
    assert all(collector.of(trace) for trace in range(30, 40))  # without waiting for a second


def test_many_are_sent_in_batches(program, tiny_models, tmp_path, collector):
    with exporting(program, tiny_models, tmp_path, collector.url) as server:
        for _ in range(600):
            assert infer(server, 41)[0] == 200
        wait_for(lambda: sum(s.kind == Span.SPAN_KIND_SERVER for s in collector.of(41)) == 600, "all spans")
        assert max(post[3] for post in collector.posts) <= 512
        check_tree(collector.of(41))
        assert counted(server)["dropped"] == 0
