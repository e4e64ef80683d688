"""HTTP/2 at the HTTP port, as clients speak it: by prior knowledge, over TLS by ALPN, and as they should not."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import signal
import ssl
import subprocess

import grpc
import h2.config
import h2.connection
import h2.events
import httpx
import numpy as np
import pytest
import tritonclient.http as http_client
from hyperframe.frame import Frame, GoAwayFrame, HeadersFrame
from onnx import TensorProto, helper, numpy_helper

from loopback import is_ready, serving, write_model
from raw_http import INFER, MINUTE, connect, until_closed
from test_gone_clients import executions, open_requests, wait_until
from test_operations import starting

@pytest.fixture(scope="module")
def http2(server):
    with httpx.Client(http1=False, http2=True, base_url=f"http://{server.http}", timeout=120) as client:
        yield client


@pytest.fixture(scope="module")
def http1(server):
    with httpx.Client(base_url=f"http://{server.http}", timeout=120) as client:
        yield client


def declared(http1):
    """A request of JSON for `tiny_mlp`, by what the model says of itself."""
    inputs = http1.get("/v2/models/tiny_mlp").json()["inputs"]
    rng = np.random.default_rng(1)
    tensors = []
    for each in inputs:
        shape = [abs(extent) for extent in each["shape"]]
        tensor = http_client.InferInput(each["name"], shape, each["datatype"])
        tensors.append((tensor, rng.standard_normal(shape).astype(np.float32)))
    return tensors


def packed(http1, binary: bool):
    tensors = [tensor.set_data_from_numpy(values, binary_data=binary) for tensor, values in declared(http1)]
    outputs = [http_client.InferRequestedOutput(each["name"], binary_data=binary)
               for each in http1.get("/v2/models/tiny_mlp").json()["outputs"]]
    body, header = http_client.InferenceServerClient.generate_request_body(tensors, outputs=outputs, timeout=5 * MINUTE)
    return body, {} if header is None else {"Inference-Header-Content-Length": str(header)}


def alike(http1, http2, method, path, **request):
    answers = [client.request(method, path, **request) for client in (http1, http2)]
    assert [each.http_version for each in answers] == ["HTTP/1.1", "HTTP/2"]
    assert answers[0].status_code == answers[1].status_code
    assert answers[0].content == answers[1].content
    own = {"carillon-request"}  # a number of the journal
    headers = [{name: value for name, value in each.headers.items() if name not in own} for each in answers]
    assert headers[0] == headers[1]
    return answers[1]


@pytest.mark.parametrize("binary", [False, True])
def test_inference_is_the_same_in_both(http1, http2, binary):
    body, headers = packed(http1, binary)
    answer = alike(http1, http2, "POST", INFER, content=body, headers=headers)
    assert answer.status_code == 200
    assert ("inference-header-content-length" in answer.headers) == binary
    assert alike(http1, http2, "POST", INFER, content=gzip.compress(body),
                 headers={**headers, "Content-Encoding": "gzip"}).status_code == 200


@pytest.mark.parametrize("method, path, body, status", [
    ("GET", "/v2", None, 200), ("HEAD", "/v2", None, 200), ("GET", "/v2/models/tiny_mlp/config", None, 200),
    ("GET", "/nowhere", None, 404), ("GET", INFER, None, 405), ("POST", INFER, b"{", 400), ("POST", INFER, b"", 400),
    ("POST", "/v2/models/none/infer", b"{}", 404), ("POST", INFER, b'{"inputs":[]}', 400)])
def test_so_is_what_is_no_inference(http1, http2, method, path, body, status):
    assert alike(http1, http2, method, path, content=body).status_code == status


def test_a_hundred_streams_at_a_time(server, http1):
    body, headers = packed(http1, True)
    one = httpx.Limits(max_connections=1)

    # On one thread: where many share a connection, httpx now and then misses an answer that came.
    async def ask_all() -> list[httpx.Response]:
        gate = asyncio.Semaphore(100)
        async with httpx.AsyncClient(http1=False, http2=True, base_url=f"http://{server.http}", timeout=120,
                                     limits=one) as client:
            async def ask() -> httpx.Response:
                async with gate:
                    return await client.post(INFER, content=body, headers=headers)
            await client.get("/v2")
            return await asyncio.gather(*(ask() for _ in range(300)))

    answers = asyncio.run(ask_all())
    assert {each.status_code for each in answers} == {200}
    assert len({each.headers["inference-header-content-length"] for each in answers}) == 1
    head = int(answers[0].headers["inference-header-content-length"])
    assert len({each.content[:head] for each in answers}) == 1
    # A row's sums may be in another order in a batch of another size.
    outputs = np.array([np.frombuffer(each.content[head:], np.float32) for each in answers])
    assert np.abs(outputs - outputs[0]).max() <= 1e-5 * np.abs(outputs).max()


class Connection:
    """The h2 package on a socket: what a client of manners would not do can be done too."""

    def __init__(self, address: str, **config):
        self.socket = connect(address)
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, **config))
        self.h2.initiate_connection()
        self.flush()

    def flush(self):
        self.socket.sendall(self.h2.data_to_send())

    def begin(self, path, body=None, method="POST", ends=True, **headers):
        stream = self.h2.get_next_available_stream_id()
        fields = [(":method", method), (":scheme", "http"), (":authority", "t"), (":path", path)]
        fields += [(name.replace("_", "-"), value) for name, value in headers.items()]
        self.h2.send_headers(stream, fields, end_stream=body is None)
        if body is not None:
            self.h2.send_data(stream, body, end_stream=ends)
        self.flush()
        return stream

    def events(self):
        """Until the connection ends."""
        with contextlib.suppress(ConnectionResetError):
            while piece := self.socket.recv(65536):
                yield from self.h2.receive_data(piece)
                self.flush()

    def status(self, stream):
        for event in self.events():
            if isinstance(event, h2.events.ResponseReceived) and event.stream_id == stream:
                return int(dict(event.headers)[b":status"])
        return None


@pytest.fixture(scope="module")
def long_server(program, tmp_path_factory):
    """`long` is a chain of products, some tens of milliseconds each."""
    models = tmp_path_factory.mktemp("long")
    square = numpy_helper.from_array(np.full([1000, 1000], 1e-3, np.float32), "square")
    names = [f"product_{i}" for i in range(40)]
    nodes = [helper.make_node("Add", ["square", "by"], ["sum"])]
    nodes += [helper.make_node("MatMul", [before, "sum"], [name]) for before, name in zip(["sum", *names], names)]
    nodes.append(helper.make_node("ReduceMax", [names[-1]], ["most"]))
    write_model(models, "long", nodes, [helper.make_tensor_value_info("by", TensorProto.FLOAT, [1, 1])],
                helper.make_tensor_value_info("most", TensorProto.FLOAT, [1, 1]), [square])
    with serving(program, models, tmp_path_factory.mktemp("log") / "server.log", "--scheduler", "fcfs") as running:
        yield running


LONG = "/v2/models/long/infer"
LONG_BODY = json.dumps({"parameters": {"timeout": 5 * MINUTE}, "inputs": [
    {"name": "by", "shape": [1, 1], "datatype": "FP32", "data": [1.0]}]}).encode()


def reset_during_a_run(server) -> int:
    """How many runs ended of two: one whose stream was reset, and one that was asked for behind it."""
    before = executions(server)
    client = Connection(server.http)
    stream = client.begin(LONG, LONG_BODY)
    wait_until(lambda: open_requests(server) == 1, "the request does not arrive")
    client.h2.reset_stream(stream)
    client.flush()
    wait_until(lambda: open_requests(server) == 0, "nobody noticed the reset")
    assert client.status(client.begin(LONG, LONG_BODY)) == 200
    client.socket.close()
    return executions(server) - before


def test_a_stream_that_is_reset_is_a_client_that_hung_up(long_server):
    # On a busy machine the run may end before the reset is seen.
    assert any(reset_during_a_run(long_server) == 1 for _ in range(10))


def test_a_large_body_passes_the_windows(server, http1, http2):
    """Larger than what may come unasked (64 KiB), than a stream's window (16 MiB), and of no declared size."""
    body, _ = packed(http1, False)
    large = b" " * (20 << 20) + body
    assert http2.post(INFER, content=large).status_code == 200
    assert http2.post(INFER, content=(large[i:i + 100_000] for i in range(0, len(large), 100_000))).status_code == 200
    refused = http2.post(INFER, content=b" " * 1000, headers={"Content-Length": "1000"})
    assert refused.status_code == 400


def test_a_body_that_is_too_large_is_refused_before_it_comes(server):
    client = Connection(server.http)
    stream = client.begin(INFER, b" " * 1000, ends=False, content_length=str(1 << 40))
    seen = []
    for event in client.events():
        seen.append(type(event))
        if isinstance(event, h2.events.ResponseReceived):
            assert dict(event.headers)[b":status"] == b"413"
        if isinstance(event, h2.events.StreamReset):
            assert event.error_code == 0 and event.stream_id == stream
            break
    assert h2.events.StreamEnded in seen
    client.socket.close()


def test_what_is_no_http2_ends_its_connection_alone(server, http2):
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    for bad in (b"\xff" * 1000, b"\0\0\0\4\0\0\0\0\0" + b"\0\0\1\0\0\0\0\0\1x", b"\0\0\5\6\0\0\0\0\0short"):
        with connect(server.http) as raw:
            raw.sendall(preface + bad)
            received = until_closed(raw)
        assert b"\7\0\0\0\0\0" in received, received  # a GOAWAY
    assert http2.get("/v2/health/live").status_code == 200


def test_an_upgrade_goes_on_in_http1(server):
    said = subprocess.run(["curl", "-sS", "--http2", "-o", "/dev/null", "-w", "%{http_version} %{http_code}",
                           f"http://{server.http}/v2"], check=True, capture_output=True, text=True, timeout=60).stdout
    assert said == "1.1 200"


def test_curl_knows_beforehand(server):
    said = subprocess.run(["curl", "-sS", "--http2-prior-knowledge", "-o", "/dev/null", "-w", "%{http_version} %{http_code}",
                           f"http://{server.http}/v2"], check=True, capture_output=True, text=True, timeout=60).stdout
    assert said == "2 200"


def test_grpc_is_told_where_to_go(server):
    with grpc.insecure_channel(server.http) as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ServerLive")
        with pytest.raises(grpc.RpcError) as refused:
            call(b"", timeout=60)
    assert refused.value.code() == grpc.StatusCode.UNIMPLEMENTED
    assert "--grpc" in refused.value.details()


def frames_in(data: bytes):
    while data:
        frame, length = Frame.parse_frame_header(memoryview(data[:9]))
        frame.parse_body(memoryview(data[9:9 + length]))
        data = data[9 + length:]
        yield frame


def test_open_streams_finish_when_the_server_ends(program, long_server, tmp_path):
    with starting(program, long_server.models, tmp_path / "server.log") as (process, http, _):
        wait_until(lambda: is_ready(http), "the server is not ready")
        client = Connection(http)
        stream = client.begin(LONG, LONG_BODY)
        # Once this one is answered that one has arrived, too.
        assert client.status(client.begin("/v2", method="GET")) == 200
        process.send_signal(signal.SIGTERM)
        # The h2 package takes nothing that comes behind a GOAWAY.
        rest = list(frames_in(until_closed(client.socket)))
        client.socket.close()
        assert process.wait(timeout=120) == 0
    goaways = [each for each in rest if isinstance(each, GoAwayFrame)]
    assert goaways and {each.error_code for each in goaways} == {0} and goaways[-1].last_stream_id >= stream
    answer = next(each for each in rest if isinstance(each, HeadersFrame) and each.stream_id == stream)
    assert dict(client.h2.decoder.decode(answer.data))[":status"] == "200"


def test_over_tls_by_alpn(program, tiny_models, tmp_path):
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
                    "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out",
                    str(certificate)], check=True, capture_output=True, timeout=60)
    tls = ssl.create_default_context(cafile=str(certificate))
    with serving(program, tiny_models, tmp_path / "server.log", "--tls-cert", str(certificate), "--tls-key", str(key),
                 tls=tls) as server:
        versions = {}
        for http2 in (False, True):
            with httpx.Client(http2=http2, verify=tls, base_url=f"https://{server.http}", timeout=120) as client:
                answer = client.get("/v2/models/tiny_mlp")
                versions[http2] = (answer.http_version, answer.status_code, answer.content)
    assert versions[False][:2] == ("HTTP/1.1", 200) and versions[True][:2] == ("HTTP/2", 200)
    assert versions[False][2] == versions[True][2]
