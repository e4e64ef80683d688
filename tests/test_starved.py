"""A machine that has no time for the server makes it slow, and nothing more: no device is taken for one that hangs.

Nothing here depends on how long anything takes.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import onnx
import pytest
import tritonclient.http as http_client
from onnx import TensorProto, helper, numpy_helper

from loopback import serving

WIDTH = 256
TRIPS = 400
REQUESTS = 24
MATRIX = (np.random.default_rng(7).standard_normal([WIDTH, WIDTH]) / WIDTH**0.5).astype(np.float32)


def write_loop(folder: Path) -> None:
    """Many small kernels, one after the other: x is multiplied and bent, trip by trip."""
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["on"]), helper.make_node("MatMul", ["before", "w"], ["product"]),
         helper.make_node("Tanh", ["product"], ["after"])], "body",
        [helper.make_tensor_value_info("trip", TensorProto.INT64, []), helper.make_tensor_value_info("go", TensorProto.BOOL, []),
         helper.make_tensor_value_info("before", TensorProto.FLOAT, [1, WIDTH])],
        [helper.make_tensor_value_info("on", TensorProto.BOOL, []),
         helper.make_tensor_value_info("after", TensorProto.FLOAT, [1, WIDTH])])
    graph = helper.make_graph(
        [helper.make_node("Loop", ["trips", "first", "x"], ["y"], body=body)], "long_loop",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, WIDTH])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, WIDTH])],
        [numpy_helper.from_array(np.array(TRIPS, np.int64), "trips"), numpy_helper.from_array(np.array(True), "first"),
         numpy_helper.from_array(MATRIX, "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    (folder / "long_loop" / "1").mkdir(parents=True)
    onnx.save(model, folder / "long_loop" / "1" / "model.onnx")


@contextlib.contextmanager
def neighbours(process: subprocess.Popen):
    """Every core has somebody who never sleeps, and beside whom the server's threads hardly count."""
    for thread in Path(f"/proc/{process.pid}/task").iterdir():
        os.setpriority(os.PRIO_PROCESS, int(thread.name), 19)
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(len(os.sched_getaffinity(0)))]
    try:
        yield
    finally:
        for each in busy:
            each.kill()
            each.wait()


def lost(server) -> list[str]:
    return re.findall(r"^carillon_device_lost_total\{.*\} (\S+)", server.scrape(), re.MULTILINE)


@pytest.mark.parametrize("scheduler", ["clockwork", "symphony"])
def test_a_device_without_a_processor_is_not_taken_out(program, tmp_path, scheduler):
    models = tmp_path / "models"
    write_loop(models)
    log = tmp_path / "server.log"
    rows = np.random.default_rng(1).standard_normal([REQUESTS, 1, WIDTH]).astype(np.float32)
    answers: dict[int, np.ndarray] = {}
    # A hundredth of a processor makes some milliseconds a second.
    with serving(program, models, log, "--scheduler", scheduler, "--hang-after", "50") as server:

        def ask(number: int) -> None:
            with http_client.InferenceServerClient(server.http, network_timeout=3600, connection_timeout=3600) as client:
                tensor = http_client.InferInput("x", [1, WIDTH], "FP32")
                tensor.set_data_from_numpy(rows[number])
                answers[number] = client.infer("long_loop", [tensor]).as_numpy("y")

        with neighbours(server.process):
            threads = [threading.Thread(target=ask, args=(number,)) for number in range(REQUESTS)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert lost(server) == ["0"], log.read_text()[-4000:]
    assert sorted(answers) == list(range(REQUESTS)), log.read_text()[-4000:]
    for number, row in enumerate(rows):
        want = row
        for _ in range(TRIPS):
            want = np.tanh(want @ MATRIX)
        np.testing.assert_allclose(answers[number], want, atol=1e-3)
    assert "is taken out" not in log.read_text()
