"""Clients that hang up while their request runs: what nobody wants any more ends between two kernels."""

from __future__ import annotations

import json
import threading
import time

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from loopback import serving, write_model
from raw_http import MINUTE, ask, connect, get, post

KERNELS, SIZE = 40, 1000
REQUEST = post(json.dumps({"parameters": {"timeout": 5 * MINUTE}, "inputs": [
    {"name": "by", "shape": [1, 1], "datatype": "FP32", "data": [1.0]}]}).encode(), "/v2/models/long/infer")


@pytest.fixture(scope="module")
def server(program, tmp_path_factory):
    """`long` is a chain of products, some tens of milliseconds each."""
    models = tmp_path_factory.mktemp("long")
    square = numpy_helper.from_array(np.full([SIZE, SIZE], 1 / SIZE, np.float32), "square")
    names = [f"product_{i}" for i in range(KERNELS)]
    nodes = [helper.make_node("Add", ["square", "by"], ["sum"])]
    nodes += [helper.make_node("MatMul", [before, "sum"], [name]) for before, name in zip(["sum", *names], names)]
    nodes.append(helper.make_node("ReduceMax", [names[-1]], ["most"]))
    write_model(models, "long", nodes, [helper.make_tensor_value_info("by", TensorProto.FLOAT, [1, 1])],
                helper.make_tensor_value_info("most", TensorProto.FLOAT, [1, 1]), [square])
    with serving(program, models, tmp_path_factory.mktemp("log") / "server.log", "--scheduler", "fcfs") as running:
        yield running


def begin(server):
    client = connect(server.http)
    client.sendall(REQUEST)
    return client


def wait_until(true, what: str) -> None:
    limit = time.monotonic() + 120
    while not true():
        assert time.monotonic() < limit, what
        time.sleep(0.01)


def open_requests(server) -> int:
    return int(next(line.split()[-1] for line in server.scrape().splitlines() if line.startswith("carillon_open_requests ")))


def executions(server) -> int:
    """Runs that came to their end."""
    return get(server.http, "/v2/models/long/stats")[1]["model_stats"][0]["execution_count"]


def gone_during_a_run(server) -> int:
    """How many runs ended of two: one whose client went, and one that was asked for behind it."""
    before = executions(server)
    client = begin(server)
    wait_until(lambda: open_requests(server) == 1, "the request does not arrive")
    client.close()
    wait_until(lambda: open_requests(server) == 0, "nobody noticed that the client went")
    assert ask(server.http, REQUEST)[0] == 200
    return executions(server) - before


def test_what_nobody_wants_any_more_does_not_run_to_its_end(server):
    # On a busy machine the run may end before it is noticed that the client went.
    assert any(gone_during_a_run(server) == 1 for _ in range(10))


def test_what_another_client_waits_for_does(server):
    answers = []
    waiting = threading.Thread(target=lambda: answers.append(ask(server.http, REQUEST)[0]))
    client = begin(server)
    wait_until(lambda: open_requests(server) == 1, "the request does not arrive")
    waiting.start()
    wait_until(lambda: open_requests(server) == 2 or not waiting.is_alive(), "the second does not arrive")
    client.close()
    waiting.join()
    assert answers == [200]
