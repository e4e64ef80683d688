"""Hostile and careless clients against a running server, over raw sockets and raw gRPC calls: each is answered or
dropped, and nobody else notices."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import resource
import shutil
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request

import grpc as grpc_core
import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
import tritonclient.http.aio as http_aio
from onnx import TensorProto, helper, numpy_helper
from tritonclient.utils import InferenceServerException

from loopback import RunningServer, free_addresses, rss_of, serving, write_model
from raw_http import INFER, MINUTE, ask, connect, get, post, receive, until_closed

MIB = 1 << 20
LIMITS = ("--body-limit", "32 MiB", "--inflight-limit", "64 MiB", "--drain-time", "20")


@pytest.fixture(scope="module")
def hardened(program, tiny_models, tmp_path_factory):
    """A server with small limits, so that little is needed to reach them."""
    log = tmp_path_factory.mktemp("hostile") / "server.log"
    with serving(program, tiny_models, log, *LIMITS) as running:
        running.log = log
        yield running


def mlp(**changes) -> bytes:
    tensor = {"name": "input", "datatype": "FP32", "shape": [1, 64], "data": [0.5] * 64}
    return json.dumps({"inputs": [tensor], "parameters": {"timeout": MINUTE}} | changes).encode()


def assert_serves(server) -> None:
    status, _, body = ask(server.http, post(mlp()))
    assert status == 200, body


# -- packed bodies


def test_bombs_are_refused_while_others_are_served(hardened):
    bomb = gzip.compress(bytes(250 * MIB), 6)
    refused = []

    def throw() -> None:
        refused.append(ask(hardened.http, post(bomb, Content_Encoding="gzip"))[0])

    throwers = [threading.Thread(target=throw) for _ in range(8)]
    for thrower in throwers:
        thrower.start()
    for _ in range(20):
        assert_serves(hardened)
    for thrower in throwers:
        thrower.join()
    assert refused == [413] * 8


def test_packed_bodies_of_all_sizes_are_read(hardened):
    for blanks in (0, MIB // 2, 12 * MIB):
        body = mlp() + b" " * blanks
        status, _, answer = ask(hardened.http, post(gzip.compress(body, 1), Content_Encoding="gzip"))
        assert status == 200, answer


def test_packed_messages_over_grpc(hardened):
    with grpc_client.InferenceServerClient(hardened.grpc) as client:
        tensor = grpc_client.InferInput("input", [16, 64], "FP32")
        tensor.set_data_from_numpy(np.random.default_rng(1).standard_normal([16, 64]).astype(np.float32))
        for algorithm in (None, "gzip", "deflate"):
            assert client.infer("tiny_mlp", [tensor], timeout=MINUTE, compression_algorithm=algorithm)
        huge = grpc_client.InferInput("input", [1, 20 * MIB], "FP32")
        huge.set_data_from_numpy(np.zeros([1, 20 * MIB], np.float32))
        for algorithm in (None, "gzip"):
            with pytest.raises(InferenceServerException) as refused:
                client.infer("tiny_mlp", [huge], compression_algorithm=algorithm)
            assert refused.value.status() == "StatusCode.RESOURCE_EXHAUSTED"
        assert client.infer("tiny_mlp", [tensor], timeout=MINUTE)


# -- memory


def resident_mib(server) -> int:
    return rss_of(server.process.pid) // MIB


def test_bodies_in_flight_are_bounded(hardened):
    before = resident_mib(hardened)
    head = b"POST %s HTTP/1.1\r\nHost: t\r\nContent-Length: %d\r\n\r\n" % (INFER.encode(), 30 * MIB)
    answers = []
    with contextlib.ExitStack() as stack:
        for _ in range(20):
            connection = stack.enter_context(connect(hardened.http))
            # All but the last byte, as far as it is taken.
            with contextlib.suppress(ConnectionError):
                connection.sendall(head + bytes(29 * MIB))
                continue
            answers.append(connection)
        full = resident_mib(hardened) - before
        assert_serves(hardened)
    assert full < 150, f"{full} MiB for 64 MiB in flight"
    assert_serves(hardened)


def test_a_full_server_answers_before_it_reads(hardened):
    head = b"POST %s HTTP/1.1\r\nHost: t\r\nContent-Length: %d\r\n\r\n" % (INFER.encode(), 28 * MIB)
    with connect(hardened.http) as one, connect(hardened.http) as two, connect(hardened.http) as three:
        one.sendall(head)
        two.sendall(head)
        time_limit = time.monotonic() + 60
        while True:  # until the two have been heard
            with connect(hardened.http) as probe:
                probe.sendall(head)
                probe.settimeout(0.2)
                with contextlib.suppress(TimeoutError):
                    assert receive(probe)[0] == 503
                    break
            assert time.monotonic() < time_limit
        three.sendall(head)
        status, headers, body = receive(three)
        assert (status, headers["retry-after"]) == (503, "1")
        assert "in flight" in json.loads(body)["error"]
        assert_serves(hardened)


def test_slow_bodies_make_way(hardened):
    """Two connections promise all that may be in flight, and send nothing: others find room all the same."""
    head = b"POST %s HTTP/1.1\r\nHost: t\r\nContent-Length: %d\r\n\r\n" % (INFER.encode(), 28 * MIB)
    with connect(hardened.http) as one, connect(hardened.http) as two:
        one.sendall(head)
        two.sendall(head)
        body = mlp() + b" " * (28 * MIB)
        body = body[:28 * MIB]
        limit = time.monotonic() + 100
        while True:
            with contextlib.suppress(ConnectionError, AssertionError):
                status, _, _ = ask(hardened.http, post(body))
                if status == 200:
                    break
            assert time.monotonic() < limit, "slow bodies keep all others out"


# -- readiness


@contextlib.contextmanager
def started(program, models, log, *options: str, **popen):
    """A server whose models are through, ready or not, and that may end."""
    http, grpc, metrics = free_addresses(3)
    with log.open("wb") as out:
        process = subprocess.Popen(
            [str(program), "serve", "--models", str(models), "--http", http, "--grpc", grpc, "--metrics", metrics,
             "--page-cache", "256 MiB", *options], stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, **popen)
    try:
        limit = time.monotonic() + 300
        while True:
            assert process.poll() is None and time.monotonic() < limit, log.read_text()
            with contextlib.suppress(urllib.error.URLError, OSError):
                if "still loading" not in get(http, "/v2/health/ready")[1].get("error", ""):
                    break
            time.sleep(0.1)
        yield RunningServer(http, grpc, metrics, program, models, process)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def test_broken_models_are_not_ready(program, tiny_models, tmp_path):
    models = tmp_path / "models"
    shutil.copytree(tiny_models / "tiny_mlp", models / "tiny_mlp")
    broken = models / "broken" / "1"
    broken.mkdir(parents=True)
    (broken / "model.onnx").write_bytes(b"not a model")
    with started(program, models, tmp_path / "log") as server:
        http, grpc = server.http, server.grpc
        status, body = get(http, "/v2/health/ready")
        assert status == 503 and body["ready"] is False and "'broken'" in body["error"]
        assert get(http, "/v2/health/live")[0] == 200
        assert get(http, "/v2/models/tiny_mlp/ready")[0] == 200
        assert get(http, "/v2/models/broken/ready")[0] == 503
        with grpc_client.InferenceServerClient(grpc) as client:
            assert client.is_server_live() and not client.is_server_ready()
            assert client.is_model_ready("tiny_mlp") and not client.is_model_ready("broken")
    with started(program, models, tmp_path / "log", "--strict-readiness", "false") as server:
        assert get(server.http, "/v2/health/ready")[0] == 200


def test_what_is_wrong_with_an_open_model_is_told(program, tmp_path):
    """An open first dimension is no fault of its own: the cause is told, and nothing else. Of a file whose dimensions
    are all fixed it is what is wrong with it as it is, not that it cannot batch. Where outputs do not follow it, it is
    a dimension as any other."""
    def tensor(name: str, *shape):
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    four = numpy_helper.from_array(np.zeros(4, np.float32), "four")
    flat = numpy_helper.from_array(np.array([3]), "flat")
    models = tmp_path / "models"
    causes = {
        "unknown": "node 'pool' (MaxRoiPool): the operator is not supported",
        "misfit": "node 'add' (Add): shapes [1,3] and [4] do not broadcast",
        "fixed": "node 'add' (Add): shapes [2,3] and [4] do not broadcast",
    }
    regions = numpy_helper.from_array(np.array([[0, 0, 0, 2, 2]], np.float32), "regions")
    write_model(models, "unknown", [helper.make_node("MaxRoiPool", ["x", "regions"], ["y"], "pool", pooled_shape=[1, 1])],
                [tensor("x", "n", 3, 3, 3)], tensor("y", 1, 3, 1, 1), [regions])
    # The second engine has it.
    (models / "unknown" / "config.pbtxt").write_text('parameters { key: "engine" value { string_value: "carillon" } }')
    write_model(models, "misfit", [helper.make_node("Add", ["x", "four"], ["y"], "add")], [tensor("x", "n", 3)], tensor("y", "n", 3), [four])
    write_model(models, "flat", [helper.make_node("Reshape", ["x", "flat"], ["y"], "reshape")], [tensor("x", "n", 3)], tensor("y", 3), [flat])
    write_model(models, "sum", [helper.make_node("ReduceMax", ["x"], ["y"], "max")], [tensor("x", "n", 3)], tensor("y", 1, 1))
    write_model(models, "length", [helper.make_node("Neg", ["x"], ["y"], "neg")], [tensor("x", "n", "length")], tensor("y", "n", "length"))
    write_model(models, "fixed", [helper.make_node("Add", ["x", "four"], ["y"], "add")], [tensor("x", 2, 3)], tensor("y", 2, 3), [four])
    with started(program, models, tmp_path / "log") as server:
        told = [line for line in (tmp_path / "log").read_text().splitlines() if "is not ready" in line]
        with http_client.InferenceServerClient(server.http) as client:
            def served(name, shape):
                x = http_client.InferInput("x", shape, "FP32")
                x.set_data_from_numpy(np.arange(np.prod(shape), dtype=np.float32).reshape(shape))
                return client.infer(name, [x], timeout=MINUTE).as_numpy("y")
            assert served("flat", [1, 3]).tolist() == [0, 1, 2]
            assert served("sum", [5, 3]).tolist() == [[14]]
            assert served("length", [2, 7])[1, 6] == -13
            with pytest.raises(InferenceServerException, match="input .2,3. cannot take the shape .3."):
                served("flat", [2, 3])
    assert len(told) == len(causes)
    for name, cause in causes.items():
        line, = (line for line in told if f"{name} version 1" in line)
        assert cause in line, line
        assert "dimension 0 ('n') has no fixed extent" not in line and "fixed at 2" not in line, line


def test_a_server_without_models_is_not_ready(program, tmp_path):
    (tmp_path / "models").mkdir()
    with started(program, tmp_path / "models", tmp_path / "log") as server:
        status, body = get(server.http, "/v2/health/ready")
        assert status == 503 and "no models" in body["error"]
        with grpc_client.InferenceServerClient(server.grpc) as client:
            assert client.is_server_live() and not client.is_server_ready()


# -- raw gRPC


@pytest.fixture
def channel(hardened):
    with grpc_core.insecure_channel(hardened.grpc, options=[("grpc.use_local_subchannel_pool", 1)]) as opened:
        yield opened


def raw(channel, method: str):
    return channel.unary_unary(f"/inference.GRPCInferenceService/{method}")


def test_much_metadata_ends_one_call_at_most(channel):
    """Beyond gRPC's own default of 8 KiB. 64 KiB, with 32 for each field, are all that there may be."""
    live = raw(channel, "ServerLive")
    for size in (9_000, 30_000, 55_000):
        around = [live.future(b"", timeout=60) for _ in range(20)]
        metadata = [(f"key-{i}", "v" * 500) for i in range(size // 500)]
        assert live(b"", timeout=60, metadata=metadata) == b"\x08\x01"
        around += [live.future(b"", timeout=60) for _ in range(19)]
        assert all(call.result() == b"\x08\x01" for call in around)


def test_what_is_no_protobuf_is_answered_with_words(channel):
    for method in ("ModelInfer", "ModelMetadata", "RepositoryIndex"):
        with pytest.raises(grpc_core.RpcError) as refused:
            raw(channel, method)(b"\xff\xff\xff", timeout=60)
        assert refused.value.code() == grpc_core.StatusCode.INVALID_ARGUMENT
        assert "cannot be read as inference." in refused.value.details()


def test_the_nearer_of_timeout_and_deadline_counts(program, tiny_models, tmp_path):
    """A request that cannot be on time by the call's own deadline is refused by the server, at once and with the
    reason: it does not wait until the client gives up. The device takes 20 s for whatever it runs."""
    models = tmp_path / "models"
    shutil.copytree(tiny_models / "tiny_mlp", models / "tiny_mlp")
    took = {key: 20_000.0 for key in ("p50_ms", "p99_ms", "mean_ms", "min_ms", "max_ms")} | {"n": 1}
    load = {key: 1.0 for key in ("p50", "p99", "mean", "min", "max")} | {"n": 1}
    profile = tmp_path / "slow.json"
    profile.write_text(json.dumps({
        "device": "slow", "created": "", "carillon": "", "threads": 1,
        "models": [{"name": "tiny_mlp", "version": 1, "precision": "f32", "weights_bytes": 1 << 16, "load_ms": load,
                    "batches": [{"batch": batch, **took} for batch in (1, 2, 4, 8, 16)]}]}))
    with (started(program, models, tmp_path / "log", "--device", f"emulated:{profile}", "--profile", str(profile))
          as server, grpc_client.InferenceServerClient(server.grpc) as client):
        tensor = grpc_client.InferInput("input", [1, 64], "FP32")
        tensor.set_data_from_numpy(np.zeros([1, 64], np.float32))
        with pytest.raises(InferenceServerException) as refused:
            client.infer("tiny_mlp", [tensor], timeout=MINUTE, client_timeout=10)
        assert refused.value.status() == "StatusCode.DEADLINE_EXCEEDED"
        assert "would" in refused.value.message(), "the client has waited in vain"


# -- HTTP as it is written


@pytest.mark.parametrize("head, status, words", [
    ("GET /v2 HTTP/1.1\r\n", 400, "Host"),
    ("GET /v2 HTTP/1.1\r\nHost: a\r\nHost: b\r\n", 400, "Host"),
    (f"POST {INFER} HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: xchunked\r\n", 501, "xchunked"),
    (f"POST {INFER} HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: gzip, chunked\r\n", 501, "gzip"),
    (f"POST {INFER} HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked, chunked\r\n", 400, "chunked"),
    (f"POST {INFER} HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n", 400, ""),
])
def test_framing_in_doubt_is_refused(hardened, head, status, words):
    with connect(hardened.http) as connection:
        connection.sendall(head.encode() + b"\r\n0\r\n\r\nGET /v2/health/live HTTP/1.1\r\nHost: t\r\n\r\n")
        answer = until_closed(connection)
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert words.encode() in answer
    assert answer.count(b"Content-Type:") == 1, "what was hidden behind it has been answered"


def test_head_has_the_headers_and_no_body(hardened):
    for path, wanted in (("/v2/health/live", 200), ("/v2", 200), (INFER, 405), ("/nowhere", 404)):
        _, _, body = ask(hardened.http, f"GET {path} HTTP/1.1\r\nHost: t\r\n\r\n".encode())
        with connect(hardened.http) as connection:
            connection.sendall(f"HEAD {path} HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n".encode())
            head, rest = until_closed(connection).split(b"\r\n\r\n", 1)
        assert head.startswith(b"HTTP/1.1 %d " % wanted)
        assert b"Content-Length: %d\r\n" % len(body) in head + b"\r\n"
        assert rest == b""


def test_json_errors_have_a_place(hardened):
    status, _, body = ask(hardened.http, post(b'{"inputs":\n  [1 2]}'))
    assert status == 400
    assert "line 2, column 6" in json.loads(body)["error"] and "byte 16" in json.loads(body)["error"]


def test_a_doubled_timeout_is_refused(hardened):
    body = mlp().replace(b'"parameters": {', b'"parameters": {"timeout": 1, ')
    status, _, answer = ask(hardened.http, post(body))
    assert status == 400 and "'timeout' twice" in json.loads(answer)["error"]


def test_nan_and_infinities_are_taken(hardened):
    for literal in ("NaN", "Infinity", "-Infinity"):
        body = mlp().replace(b"0.5", literal.encode(), 1)
        status, _, answer = ask(hardened.http, post(body))
        assert status == 200, answer
        assert len(json.loads(answer)["outputs"][0]["data"]) > 0  # NaN among them is read too
    status, _, answer = ask(hardened.http, post(mlp().replace(b"0.5", b"Nan", 1)))
    assert status == 400 and "byte" in json.loads(answer)["error"]


def test_unknown_parameters_are_told_once(hardened):
    for _ in range(3):
        body = mlp(parameters={"timeout": MINUTE, "sequence_id": 5, "timeout_ms": 7})
        assert ask(hardened.http, post(body))[0] == 200
    with grpc_client.InferenceServerClient(hardened.grpc) as client:
        tensor = grpc_client.InferInput("input", [1, 64], "FP32")
        tensor.set_data_from_numpy(np.zeros([1, 64], np.float32))
        client.infer("tiny_mlp", [tensor], timeout=MINUTE, sequence_id=5, sequence_start=True)
        for i in range(200):
            client.infer("tiny_mlp", [tensor], timeout=MINUTE, parameters={f"mine{i}": 1})
    log = hardened.log.read_text()
    assert log.count("'sequence_id (of") == log.count("'timeout_ms'") == 1
    assert "'mine0'" in log and "'mine199'" not in log, "how many names are remembered is bounded"


def test_clients_that_cannot_unpack_read_all_but_inference(hardened):
    """The asyncio client asks for packed answers and unpacks those of inference alone."""
    async def run() -> None:
        async with http_aio.InferenceServerClient(hardened.http) as client:
            assert await client.is_server_ready()
            assert (await client.get_server_metadata())["name"] == "carillon"
            config = await client.get_model_config("tiny_encoder")
            assert config["name"] == "tiny_encoder"
            assert len(json.dumps(await client.get_inference_statistics())) > 1024, "long enough to be packed"
            assert len(await client.get_model_repository_index()) == 3
            tensor = http_aio.InferInput("input", [16, 64], "FP32")
            tensor.set_data_from_numpy(np.ones([16, 64], np.float32))
            for binary in (True, False):
                output = http_aio.InferRequestedOutput("output", binary_data=binary)
                for packing in (None, "gzip"):
                    result = await client.infer("tiny_mlp", [tensor], outputs=[output], timeout=MINUTE,
                                                request_compression_algorithm=packing,
                                                response_compression_algorithm=packing)
                    assert result.as_numpy("output").shape[0] == 16

    asyncio.run(run())


# -- connections


def test_idle_connections_lock_nobody_out(program, tiny_models, tmp_path):
    """More connections than the server takes, and more than it has descriptors: all idle, some half a header."""
    descriptors = 160

    def few_descriptors() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))

    log = tmp_path / "log"
    with started(program, tiny_models, log, preexec_fn=few_descriptors) as server:
        with contextlib.ExitStack() as stack:
            known = stack.enter_context(connect(server.http))
            known.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: t\r\n\r\n")
            assert receive(known)[0] == 200
            for address in (server.http, server.grpc, server.metrics):
                for i in range(descriptors):
                    connection = stack.enter_context(connect(address))
                    if i % 2 and address != server.grpc:
                        with contextlib.suppress(ConnectionError):
                            connection.sendall(b"GET /v2 HTTP/1.1\r\nHo")
            for _ in range(20):
                assert_serves(server)
                assert b"carillon_open_requests" in ask(server.metrics, b"GET /metrics HTTP/1.1\r\nHost: t\r\n\r\n")[2]
            known.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: t\r\n\r\n")
            assert receive(known)[0] == 200, "a connection that was of use has made way for strangers"
        # gRPC's listener lives, too: clients come in once the others have gone.
        with grpc_core.insecure_channel(server.grpc, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
            assert raw(channel, "ServerLive")(b"", timeout=120, wait_for_ready=True) == b"\x08\x01"
        told = log.read_text().count("out of file descriptors")
        assert 1 <= told <= 3, log.read_text()
        assert server.process.poll() is None


# -- signals


def wait_for(condition, what: str) -> None:
    limit = time.monotonic() + 100
    while not condition():
        assert time.monotonic() < limit, what
        time.sleep(0.01)


def test_signals_without_a_meaning_are_ignored(hardened):
    for name, said in (("SIGHUP", "SIGHUP: there are neither certificates nor keys"),
                       ("SIGUSR1", "SIGUSR1 means nothing here"), ("SIGUSR2", "SIGUSR2 means nothing here")):
        hardened.process.send_signal(getattr(signal, name))
        wait_for(lambda said=said: said in hardened.log.read_text(), f"{name} is not told")
    assert_serves(hardened)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_server_that_stops_drains(program, tiny_models, tmp_path, number):
    options = [("grpc.use_local_subchannel_pool", 1)]
    with (started(program, tiny_models, tmp_path / "log", *LIMITS) as running,
          grpc_core.insecure_channel(running.grpc, options=options) as channel):
        body = mlp()
        live = raw(channel, "ServerReady")
        assert live(b"", timeout=60) == b"\x08\x01"
        with connect(running.http) as slow, connect(running.http) as idle:
            idle.sendall(b"GET /v2/health/ready HTTP/1.1\r\nHost: t\r\n\r\n")
            assert receive(idle)[0] == 200
            slow.sendall(post(body)[:-1])  # a request that has begun
            with connect(running.http) as beside:  # and has been heard: the server reads in the order of arrival
                beside.sendall(b"GET /v2 HTTP/1.1\r\nHost: t\r\n\r\n")
                receive(beside)
            running.process.send_signal(number)
            wait_for(lambda: "stopping" in (tmp_path / "log").read_text(), "the signal is not seen")
            wait_for(lambda: get(running.http, "/v2/health/ready")[0] == 503, "the server stays ready")
            assert get(running.http, "/v2/health/live")[0] == 200
            status, headers, answer = ask(running.http, post(body))
            assert (status, headers["connection"]) == (503, "close") and b"going away" in answer
            idle.sendall(post(body))
            assert receive(idle)[0] == 503
            assert live(b"", timeout=60) == b""  # false
            with pytest.raises(grpc_core.RpcError) as refused:
                raw(channel, "ModelInfer")(b"", timeout=60)
            assert refused.value.code() == grpc_core.StatusCode.UNAVAILABLE
            assert running.process.poll() is None
            slow.sendall(body[-1:])
            status, headers, answer = receive(slow)
            assert (status, headers["connection"]) == (200, "close"), answer
        assert running.process.wait(60) == 0, (tmp_path / "log").read_text()


# -- little memory


# Where the libraries can be loaded but not set themselves up (a mebibyte near 80), they abort before main().
@pytest.mark.parametrize("mib", [64, 90, 120, 200, 350, 480, 600, 700, 1000, 3000])
def test_few_addresses_end_in_words(program, tiny_models, tmp_path, mib):
    """From far too few on, up to enough: the server says in a line what it lacks, or serves, and ends when told to."""
    if any(name in program.read_bytes() for name in (b"__asan_init", b"__tsan_init")):
        pytest.skip("a sanitizer reserves terabytes of addresses for itself")
    models = tmp_path / "models"
    shutil.copytree(tiny_models / "tiny_mlp", models / "tiny_mlp")
    http, grpc, metrics = free_addresses(3)
    log = tmp_path / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [str(program), "serve", "--models", str(models), "--http", http, "--grpc", grpc, "--metrics", metrics,
             "--page-cache", "64 MiB", "--io-cache", "16 MiB", "--workspace", "32 MiB"], stdin=subprocess.DEVNULL, stdout=out,
            stderr=subprocess.STDOUT, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (mib * MIB, mib * MIB)))
    try:
        def open_or_over() -> bool:
            with contextlib.suppress(urllib.error.URLError, OSError):
                return process.poll() is not None or get(http, "/v2/health/ready")[0] == 200
            return process.poll() is not None

        wait_for(open_or_over, "the server neither serves nor ends")
        if process.poll() is None:
            for _ in range(8):
                assert ask(http, post(mlp()))[0] == 200
            with grpc_client.InferenceServerClient(grpc) as client:
                assert client.is_server_live()
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0, log.read_text()
            assert mib > 500 and "stopped" in log.read_text()
            return
        last = log.read_text().strip().splitlines()[-1]
        if process.returncode == 127:  # the system could not even load the libraries
            assert mib < 100 and "error while loading shared libraries" in last
            return
        assert process.returncode == 1, log.read_text()
        assert "ulimit -v" in last and mib < 1000, log.read_text()
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
