"""Requests whose data their model cannot use, among good ones: each fails alone, with words, and costs the others nothing."""

from __future__ import annotations

import json
import threading

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
from onnx import TensorProto, helper, numpy_helper
from tritonclient.utils import InferenceServerException

from loopback import serving, write_model
from raw_http import MINUTE, ask, get, post

WORDS, WIDTH, TOKENS = 50, 16, 8


@pytest.fixture(scope="module")
def careless(program, tmp_path_factory):
    """Models that look at what they are given. `lookup` reads a table; `mixing` does so where the engine cannot tell
    whose index it is, and `second` on the second engine; `divide` divides whole numbers. `slow` keeps the device busy, so that others come together."""
    models = tmp_path_factory.mktemp("careless")
    table = numpy_helper.from_array(np.random.default_rng(5).standard_normal([WORDS, WIDTH]).astype(np.float32), "table")
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", TOKENS])
    found = helper.make_tensor_value_info("found", TensorProto.FLOAT, ["batch", TOKENS, WIDTH])
    write_model(models, "lookup", [helper.make_node("Gather", ["table", "ids"], ["found"], name="look")], [ids], found, [table])
    write_model(models, "mixing", [helper.make_node("Transpose", ["ids"], ["turned"], perm=[1, 0]),
                                   helper.make_node("Gather", ["table", "turned"], ["rows"], name="look"),
                                   helper.make_node("Transpose", ["rows"], ["found"], perm=[1, 0, 2])], [ids], found, [table])
    write_model(models, "second", [helper.make_node("Gather", ["table", "ids"], ["found"], name="look")], [ids], found, [table])
    (models / "second" / "config.pbtxt").write_text('backend: "openvino" max_batch_size: 16 dynamic_batching { }\n')
    a, b, quotient = (helper.make_tensor_value_info(name, TensorProto.INT32, ["batch", 4]) for name in ("a", "b", "quotient"))
    write_model(models, "divide", [helper.make_node("Div", ["a", "b"], ["quotient"], name="share")], [a, b], quotient)
    square = numpy_helper.from_array(np.full([1500, 1500], 1e-3, np.float32), "square")
    write_model(models, "slow", [helper.make_node("Add", ["square", "by"], ["sum"]),
                                 helper.make_node("MatMul", ["sum", "square"], ["product"]),
                                 helper.make_node("ReduceMax", ["product"], ["most"])],
                [helper.make_tensor_value_info("by", TensorProto.FLOAT, [1, 1])],
                helper.make_tensor_value_info("most", TensorProto.FLOAT, [1, 1]), [square])
    with serving(program, models, tmp_path_factory.mktemp("log") / "server.log") as running:
        yield running


def statistics_of(server, model: str) -> dict:
    return get(server.http, f"/v2/models/{model}/stats")[1]["model_stats"][0]


def asked_together(server, model: str, requests: list[dict[str, np.ndarray]]) -> tuple[list, int]:
    """All at once, again and behind more work until they come in batches of several, since a busy machine may send them
    one by one: the output of each, or the error, of the last time; and how often they were asked."""
    for times, slow in enumerate((10, 40, 160, 640), 1):
        before = statistics_of(server, model)
        arrived = asked_behind(server, slow, model, requests)
        after = statistics_of(server, model)
        batches = after["execution_count"] - before["execution_count"]
        if batches <= len(requests) // 2:
            return arrived, times
    raise AssertionError(f"{len(requests)} requests ran in {batches} batches: nothing is tested")


def asked_behind(server, slow: int, model: str, requests: list[dict[str, np.ndarray]]) -> list:
    """All at once, while the device is busy with `slow` requests that take long."""
    with grpc_client.InferenceServerClient(server.grpc) as client:
        arrived: list = [None] * len(requests)
        left = threading.Semaphore(0)
        busy = grpc_client.InferInput("by", [1, 1], "FP32")
        busy.set_data_from_numpy(np.ones([1, 1], np.float32))
        for _ in range(slow):
            client.async_infer("slow", [busy], callback=lambda result, error: left.release())

        def answer(index: int):
            def take(result, error) -> None:
                arrived[index] = error if error is not None else result
                left.release()
            return take

        for index, arrays in enumerate(requests):
            tensors = []
            for name, array in arrays.items():
                tensors.append(grpc_client.InferInput(name, array.shape, "INT64" if array.dtype == np.int64 else "INT32"))
                tensors[-1].set_data_from_numpy(array)
            client.async_infer(model, tensors, callback=answer(index))
        for _ in range(slow + len(requests)):
            assert left.acquire(timeout=100)
    return arrived


def wrong_index(model: str, index: int) -> str:
    if model == "second" and abs(index) < 1 << 31:
        return "Gather 'found' has an index outside of its axis"
    if model == "second":
        return f"input 'ids' has the number {index}; OpenVINO computes whole numbers in 32 bits: -2147483648 to 2147483647"
    return (f"node 'look' (Gather): index {index}, which comes from input 'ids', is outside an axis of {WORDS} elements: it "
            f"must be {-WORDS} to {WORDS - 1}")


@pytest.mark.parametrize("model", ["lookup", "mixing", "second"])
def test_a_bad_index_costs_nobody_else(careless, model):
    random = np.random.default_rng(9)
    requests = [{"ids": random.integers(-WORDS, WORDS, [1, TOKENS])} for _ in range(64)]
    alone = []
    with grpc_client.InferenceServerClient(careless.grpc) as client:
        for request in requests:
            tensor = grpc_client.InferInput("ids", [1, TOKENS], "INT64")
            tensor.set_data_from_numpy(request["ids"])
            alone.append(client.infer(model, [tensor], timeout=MINUTE).as_numpy("found"))
    bad = {int(i): int(index) for i, index in zip(random.choice(64, 12, replace=False), [WORDS, -WORDS - 1, 1 << 40] * 4)}
    for i, index in bad.items():
        requests[i]["ids"][0, random.integers(TOKENS)] = index
    failed_before = statistics_of(careless, model)["inference_stats"]["fail"].get("count", 0)
    answers, times = asked_together(careless, model, requests)
    for i, answer in enumerate(answers):
        if i in bad:
            assert isinstance(answer, InferenceServerException), f"request {i} has an answer"
            assert answer.status() == "StatusCode.INVALID_ARGUMENT", answer
            assert wrong_index(model, bad[i]) in answer.message()
        else:
            assert not isinstance(answer, InferenceServerException), str(answer)
            np.testing.assert_array_equal(answer.as_numpy("found"), alone[i])
    assert statistics_of(careless, model)["inference_stats"]["fail"]["count"] == failed_before + times * len(bad)
    metrics = careless.scrape()
    assert f'carillon_requests_invalid_total{{model="{model}"' in metrics


def test_a_division_by_zero_costs_nobody_else(careless):
    """The server has measured the model on zeros, and serves it; the least number over -1 traps nowhere."""
    random = np.random.default_rng(11)
    least = np.iinfo(np.int32).min
    requests = []
    for i in range(48):
        divisor = random.integers(1, 9, [1, 4]).astype(np.int32) * random.choice([-1, 1], [1, 4]).astype(np.int32)
        requests.append({"a": random.integers(-99, 99, [1, 4]).astype(np.int32), "b": divisor})
        if i % 6 == 0:
            requests[-1]["a"][0, 1], requests[-1]["b"][0, 1] = least, -1
        if i % 4 == 3:
            divisor[0, random.integers(4)] = 0
    answers, _ = asked_together(careless, "divide", requests)
    for i, (request, answer) in enumerate(zip(requests, answers)):
        if i % 4 == 3:
            assert isinstance(answer, InferenceServerException), f"request {i} has an answer"
            assert answer.status() == "StatusCode.INVALID_ARGUMENT", answer
            assert "node 'share' (Div): division of integers by zero" in answer.message() and "input 'b'" in answer.message()
            continue
        assert not isinstance(answer, InferenceServerException), str(answer)
        wide = np.trunc(request["a"].astype(np.float64) / request["b"]).astype(np.int64)
        wide[wide == -least] = least  # wraps
        np.testing.assert_array_equal(answer.as_numpy("quotient"), wide)


def test_bad_data_over_http(careless):
    def infer(model: str, *tensors: dict) -> tuple[int, dict]:
        body = json.dumps({"inputs": list(tensors), "parameters": {"timeout": MINUTE}}).encode()
        status, _, answer = ask(careless.http, post(body, f"/v2/models/{model}/infer"))
        return status, json.loads(answer)

    ids = {"name": "ids", "datatype": "INT64", "shape": [2, TOKENS], "data": [1] * TOKENS + [WORDS] + [1] * (TOKENS - 1)}
    for model in ("lookup", "mixing"):
        status, answer = infer(model, ids)
        assert status == 400
        assert answer["error"].startswith(f"model '{model}': row 1: node 'look' (Gather): index {WORDS}"), answer
        assert f"{-WORDS} to {WORDS - 1}" in answer["error"]
    a = {"name": "a", "datatype": "INT32", "shape": [1, 4], "data": [1, 2, 3, 4]}
    status, answer = infer("divide", a, a | {"name": "b", "data": [1, 1, 0, 1]})
    assert status == 400 and "division of integers by zero" in answer["error"], answer
    status, answer = infer("divide", a, a | {"name": "b"})
    assert status == 200 and answer["outputs"][0]["data"] == [1, 1, 1, 1], answer
