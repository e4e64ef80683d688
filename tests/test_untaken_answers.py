"""What clients can make the server hold for them: answers over gRPC that they do not take, bodies that take many times
their size while they are read, pings. The clients speak HTTP/2 by themselves, so that their windows stay closed."""

from __future__ import annotations

import contextlib
import json
import queue
import re
import socket
import struct
import threading
import time

import grpc as grpc_core
import h2.config
import h2.connection
import h2.errors
import h2.events
import numpy as np
import pytest
import tritonclient.grpc as grpc_client
from onnx import TensorProto, helper, numpy_helper
from tritonclient.grpc import service_pb2

from loopback import rss_of, serving, write_model, write_profile
from raw_http import MINUTE, ask, connect, post, receive

MIB = 1 << 20
ANSWER = 4 * MIB
INFER = "/inference.GRPCInferenceService/ModelInfer"
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
INFLIGHT = 128


@pytest.fixture(scope="module")
def server(program, tmp_path_factory):
    """`wide` makes 4 MiB of 4 bytes, `long` answers what it was given."""
    models = tmp_path_factory.mktemp("wide")
    shape = numpy_helper.from_array(np.array([ANSWER // 4], np.int64), "shape")
    write_model(models, "wide", [helper.make_node("Expand", ["x", "shape"], ["y"])],
                [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])],
                helper.make_tensor_value_info("y", TensorProto.FLOAT, [ANSWER // 4]), [shape])
    write_model(models, "long", [helper.make_node("ReduceSum", ["x"], ["y"], keepdims=1)],
                [helper.make_tensor_value_info("x", TensorProto.INT64, ["n"])],
                helper.make_tensor_value_info("y", TensorProto.INT64, [1]))
    (models / "long" / "config.pbtxt").write_text('name: "long"')
    with serving(program, models, tmp_path_factory.mktemp("log") / "server.log", "--inflight-limit", f"{INFLIGHT}MiB",
                 "--body-limit", "32MiB", page_cache="32 MiB") as running:
        yield running


def gauge(server, name: str) -> int:
    return int(float(re.search(rf"^{name} (\S+)$", server.scrape(), re.MULTILINE).group(1)))


def in_flight(server) -> int:
    return gauge(server, "carillon_inflight_bytes")


def resident_mib(server) -> int:
    return rss_of(server.process.pid) // MIB


def wait_until(true, what: str) -> None:
    limit = time.monotonic() + 120
    while not true():
        assert time.monotonic() < limit, what
        time.sleep(0.02)


def message(count: int = 1) -> bytes:
    """A request as gRPC frames it."""
    request = service_pb2.ModelInferRequest(model_name="wide")
    request.inputs.add(name="x", datatype="FP32", shape=[1])
    request.raw_input_contents.append(b"\0\0\0\0")
    request.parameters["timeout"].int64_param = 10 * MINUTE
    packed = request.SerializeToString()
    return (b"\0" + struct.pack(">I", len(packed)) + packed) * count


class Deaf:
    """A client that sends, and opens no window for what comes."""

    def __init__(self, address: str):
        host, port = address.split(":")
        self.socket = socket.create_connection((host, int(port)), timeout=60)
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, header_encoding="utf-8"))
        self.h2.initiate_connection()
        self.flush()
        self.ended = []  # trailers, and answers without a body
        self.heard = []  # statuses of HTTP
        self.gone = None
        self.pending = b""  # the begin of a frame

    def flush(self) -> None:
        self.socket.sendall(self.h2.data_to_send())

    def call(self, path: str, body: bytes, ends: bool = True, more=()) -> int:
        stream = self.h2.get_next_available_stream_id()
        self.h2.send_headers(stream, [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "t"),
                                      ("content-type", "application/grpc"), ("te", "trailers"), *more])
        self.h2.send_data(stream, body, end_stream=ends)
        self.flush()
        return stream

    def events(self, data: bytes):
        """Frame by frame: to the h2 package a connection that said GOAWAY is closed, and what follows an error."""
        self.pending += data
        while not self.gone and len(self.pending) >= 9 + int.from_bytes(self.pending[:3]):
            end = 9 + int.from_bytes(self.pending[:3])
            frame, self.pending = self.pending[:end], self.pending[end:]
            yield from self.h2.receive_data(frame)

    def hear(self, seconds: float) -> None:
        """Whatever comes within the time, without a word about windows."""
        self.socket.settimeout(seconds)
        with contextlib.suppress(TimeoutError):
            while not self.gone and (data := self.socket.recv(65536)):
                for event in self.events(data):
                    if isinstance(event, h2.events.TrailersReceived):
                        self.ended.append(dict(event.headers))
                    elif isinstance(event, h2.events.ResponseReceived):
                        headers = dict(event.headers)
                        self.heard.append(headers[":status"])
                        if "grpc-status" in headers:
                            self.ended.append(headers)
                    elif isinstance(event, h2.events.ConnectionTerminated):
                        self.gone = event
                self.flush()

    def close(self) -> None:
        self.socket.close()


def test_answers_that_nobody_takes_are_bounded(server):
    before = resident_mib(server)
    with contextlib.closing(Deaf(server.grpc)) as client:
        for _ in range(500):
            client.call(INFER, message())
            client.hear(0.001)
        client.hear(2)
        wait_until(lambda: gauge(server, "carillon_open_requests") == 0, "requests stay open")
        grown = resident_mib(server) - before
        assert in_flight(server) <= INFLIGHT * MIB
        assert grown < INFLIGHT + 120, f"{grown} MiB for answers of which {INFLIGHT} may wait"
        refused = [trailers for trailers in client.ended if trailers["grpc-status"] == "8"]
        assert len(refused) > 400 and "that answering takes" in refused[0]["grpc-message"]
        # Others are served, as far as their answers are small.
        assert long_sum(server, [1, 2, 3]) == 6
    wait_until(lambda: in_flight(server) == 0, "what was in flight for a client that is gone stays")


def test_streams_that_nobody_reads_are_bounded(server):
    before = resident_mib(server)
    with contextlib.closing(Deaf(server.grpc)) as client:
        for _ in range(8):
            client.call(STREAM, message(60), ends=False)
        client.hear(3)
        wait_until(lambda: gauge(server, "carillon_open_requests") == 0, "requests stay open")
        assert in_flight(server) <= INFLIGHT * MIB
        grown = resident_mib(server) - before
        assert grown < INFLIGHT + 120, f"{grown} MiB for answers of which {INFLIGHT} may wait"
        assert long_sum(server, [4, 5]) == 9
    wait_until(lambda: in_flight(server) == 0, "what was in flight for a client that is gone stays")


def long_sum(server, values: list[int]) -> int:
    with grpc_client.InferenceServerClient(server.grpc) as client:
        tensor = grpc_client.InferInput("x", [len(values)], "INT64")
        tensor.set_data_from_numpy(np.array(values, np.int64))
        return int(client.infer("long", [tensor], timeout=MINUTE).as_numpy("y")[0])


# -- bodies that grow while they are read


def test_json_that_would_take_too_much_is_refused_with_words(server):
    before = resident_mib(server)
    count = 10 * MIB
    body = b'{"inputs":[{"name":"x","datatype":"INT64","shape":[%d],"data":[' % count + b"1," * (count - 1) + b"1]}]}"
    answers = []

    def send() -> None:
        with connect(server.http) as client:
            with contextlib.suppress(ConnectionError):  # it may be answered before it has sent everything
                client.sendall(post(body, "/v2/models/long/infer"))
            answers.append(receive(client))

    threads = [threading.Thread(target=send) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 6
    for status, _, answer in answers:
        assert status in (400, 503), answer
        assert any(word in json.loads(answer)["error"] for word in ("send large tensors as blobs", "in flight")), answer
    grown = resident_mib(server) - before
    assert grown < INFLIGHT + 120, f"{grown} MiB"
    wait_until(lambda: in_flight(server) == 0, "bytes stay in flight")


@pytest.mark.parametrize("field", [b"\x2a\x00", b"\x3a\x00", b"\x7a\x00", b"\x78\x01"])
def test_messages_of_many_small_fields_are_refused_with_words(server, field):
    before = resident_mib(server)
    with grpc_core.insecure_channel(server.grpc) as channel:
        raw = channel.unary_unary(INFER, request_serializer=None, response_deserializer=None)
        with pytest.raises(grpc_core.RpcError) as refused:
            raw(field * (12 * MIB), timeout=100)
    assert refused.value.code() == grpc_core.StatusCode.INVALID_ARGUMENT
    assert "raw_input_contents" in refused.value.details()
    assert resident_mib(server) - before < 150
    wait_until(lambda: in_flight(server) == 0, "bytes stay in flight")


def test_questions_are_short(server):
    with grpc_core.insecure_channel(server.grpc) as channel:
        for method in ("inference.GRPCInferenceService/ServerLive", "grpc.health.v1.Health/Check",
                       "inference.GRPCInferenceService/ModelMetadata"):
            raw = channel.unary_unary("/" + method, request_serializer=None, response_deserializer=None)
            with pytest.raises(grpc_core.RpcError) as refused:
                raw(b"\x7a\x00" * MIB, timeout=100)
            assert refused.value.code() == grpc_core.StatusCode.INVALID_ARGUMENT
            assert "at most 65536" in refused.value.details()


# -- pings


@pytest.fixture(scope="module")
def slow(program, tmp_path_factory):
    """A device whose batches take 6 s."""
    models = tmp_path_factory.mktemp("slow")
    write_model(models, "slow", [helper.make_node("Neg", ["x"], ["y"])],
                [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])],
                helper.make_tensor_value_info("y", TensorProto.FLOAT, [1]))
    profile = write_profile(tmp_path_factory.mktemp("profile") / "p.json", ("slow",), 6000)
    with serving(program, models, tmp_path_factory.mktemp("log") / "server.log", "--device", f"emulated:{profile}",
                 "--scheduler", "fcfs") as running:
        yield running


PINGING = [("grpc.keepalive_time_ms", 1000), ("grpc.keepalive_timeout_ms", 20000),
           ("grpc.keepalive_permit_without_calls", 1), ("grpc.http2.max_pings_without_data", 0),
           ("grpc.http2.min_time_between_pings_ms", 500)]


def test_a_client_that_pings_every_second_keeps_its_call(slow):
    with grpc_client.InferenceServerClient(slow.grpc, channel_args=PINGING) as client:
        tensor = grpc_client.InferInput("x", [1], "FP32")
        tensor.set_data_from_numpy(np.zeros(1, np.float32))
        assert client.infer("slow", [tensor], timeout=MINUTE).as_numpy("y").shape == (1,)


def test_a_client_that_pings_every_second_keeps_its_stream(slow):
    answers = queue.Queue()
    with grpc_client.InferenceServerClient(slow.grpc, channel_args=PINGING) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        time.sleep(5)  # four pings were too many once
        tensor = grpc_client.InferInput("x", [1], "FP32")
        tensor.set_data_from_numpy(np.zeros(1, np.float32))
        client.async_stream_infer("slow", [tensor])
        result, error = answers.get(timeout=60)
        assert error is None and result.as_numpy("y").shape == (1,)


def test_a_client_that_pings_ten_times_a_second_is_kept(slow):
    """Also where the way to the server brings every ping a little early."""
    with contextlib.closing(Deaf(slow.grpc)) as client:
        due = time.monotonic()
        for _ in range(30):
            client.h2.ping(b"12345678")
            client.flush()
            due += 0.09
            client.hear(max(0.001, due - time.monotonic()))
            assert not client.gone


def test_a_flood_of_pings_ends_the_connection(slow):
    with contextlib.closing(Deaf(slow.grpc)) as client:
        with contextlib.suppress(ConnectionError, BrokenPipeError):
            for _ in range(200):
                client.h2.ping(b"12345678")
                client.flush()
                client.hear(0.001)
                if client.gone:
                    break
        assert client.gone and client.gone.error_code == h2.errors.ErrorCodes.ENHANCE_YOUR_CALM
        assert client.gone.additional_data == b"too_many_pings"


# -- a client that goes behind what it sent ahead


def test_a_client_that_goes_behind_pipelined_requests_is_noticed(slow):
    request = post(json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1.0]}],
                               "parameters": {"timeout": 10 * MINUTE}}).encode(), "/v2/models/slow/infer")

    def open_requests() -> int:
        return gauge(slow, "carillon_open_requests")

    # Something runs, so that what comes behind it waits.
    with connect(slow.http) as first, connect(slow.http) as second, connect(slow.http) as third:
        for client in (first, second):
            client.sendall(request)
        wait_until(lambda: open_requests() == 2, "two requests are not open")
        third.sendall(request + b"GET /v2/health/live HTTP/1.1\r\nHost: t\r\nX: " + b"a" * (100 << 10))
        wait_until(lambda: open_requests() == 3, "the third request is not open")
        third.close()
        wait_until(lambda: open_requests() <= 2, "nobody noticed")
        assert open_requests() >= 1, "the third was answered, and not cancelled"


# -- requests out of the ordinary


@pytest.mark.parametrize("far", ["99999999H", "99999999M", "99999999S", "25H"])
def test_far_deadlines_of_calls_are_taken_as_a_day(server, far):
    request = service_pb2.ModelInferRequest(model_name="long")
    request.inputs.add(name="x", datatype="INT64", shape=[1])
    request.raw_input_contents.append(bytes(8))
    packed = request.SerializeToString()
    with contextlib.closing(Deaf(server.grpc)) as client:
        client.call(INFER, b"\0" + struct.pack(">I", len(packed)) + packed, more=[("grpc-timeout", far)])
        wait_until(lambda: client.hear(0.1) or client.ended, "no answer")
        assert client.ended[0]["grpc-status"] == "0", client.ended


def test_a_body_without_json_is_the_one_input(server):
    body = np.arange(6, dtype=np.int64).tobytes()
    status, headers, answer = ask(server.http, post(body, "/v2/models/long/infer", Inference_Header_Content_Length="0"))
    assert status == 200, answer
    text = int(headers["inference-header-content-length"])
    assert json.loads(answer[:text])["outputs"][0]["shape"] == [1]
    assert np.frombuffer(answer[text:], np.int64).tolist() == [15]
    status, _, answer = ask(server.http, post(body[:-1], "/v2/models/long/infer", Inference_Header_Content_Length="0"))
    assert status == 400 and "a multiple of 8 bytes" in json.loads(answer)["error"]


@pytest.mark.parametrize("field", ["Content-Length", "Content-Encoding", "Inference-Header-Content-Length",
                                   "Content-Type", "Expect"])
def test_fields_that_say_one_thing_come_once(server, field):
    body = b'{"inputs":[{"name":"x","datatype":"INT64","shape":[1],"data":[1]}]}'
    value = {"Content-Length": len(body), "Content-Encoding": "identity", "Content-Type": "application/json",
             "Inference-Header-Content-Length": len(body), "Expect": "100-continue"}[field]
    twice = f"{field}: {value}\r\n" * (1 if field == "Content-Length" else 2)
    head = f"POST /v2/models/long/infer HTTP/1.1\r\nHost: t\r\n{twice}Content-Length: {len(body)}\r\n\r\n"
    status, _, answer = ask(server.http, head.encode() + body)
    assert status == 400, answer
    if field == "Content-Length":
        return  # the parser of headers has its own words
    assert f"header {field} twice" in json.loads(answer)["error"]
    over2 = Deaf(server.http)
    with contextlib.closing(over2) as client:
        stream = client.h2.get_next_available_stream_id()
        client.h2.send_headers(stream, [(":method", "POST"), (":scheme", "http"), (":path", "/v2/models/long/infer"),
                                        (":authority", "t"), (field.lower(), str(value)), (field.lower(), str(value))])
        client.h2.send_data(stream, body, end_stream=True)
        client.flush()
        wait_until(lambda: client.hear(0.1) or client.heard, "no answer")
        assert client.heard[0] == "400"
