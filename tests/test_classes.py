"""Requests of several classes, served: real-time before all else, best effort in what is left."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import threading
import time
import urllib.request

import numpy as np
import onnx
import onnxruntime
import pytest
import tritonclient.http as http_client
from onnx import TensorProto, helper, numpy_helper
from tritonclient.utils import InferenceServerException

from loopback import make_samples, serving, write_model

PATIENT = 20_000_000  # microseconds: what is asked here is the answer, on however slow a machine
# So many layers that their kernels are more than a GPU, here an emulated one, has of best effort at a time.
WIDTH = 512
LAYERS = 24
ALLOW = 'parameters { key: "real_time_requests" value { string_value: "allow" } }\n'
CONFIG = """
parameters {{ key: "class" value {{ string_value: "{kind}" }} }}
"""


def write_layers(folder, name: str, kind: str, more: str = "") -> None:
    """A model that takes some milliseconds: each layer reads all its weights."""
    rng = np.random.default_rng(5)
    nodes, weights, x = [], [], "x"
    for i in range(LAYERS):
        weights.append(numpy_helper.from_array(
            (rng.standard_normal([WIDTH, WIDTH]) / WIDTH**0.5).astype(np.float32), f"w{i}"))
        nodes += [helper.make_node("MatMul", [x, f"w{i}"], [f"m{i}"]), helper.make_node("Tanh", [f"m{i}"], [f"t{i}"])]
        x = f"t{i}"
    shape = ["batch", WIDTH]
    write_model(folder, name, nodes, [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
                helper.make_tensor_value_info(x, TensorProto.FLOAT, shape), weights)
    (folder / name / "config.pbtxt").write_text(f'name: "{name}"\nmax_batch_size: 4\n' + CONFIG.format(kind=kind) + more)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = make_samples(tmp_path_factory.mktemp("classes"), "tiny_mlp")
    # Who may be real-time: any request for "tiny_mlp", none for its copy.
    shutil.copytree(folder / "tiny_mlp", folder / "ordinary")
    config = (folder / "tiny_mlp" / "config.pbtxt").read_text()
    (folder / "ordinary" / "config.pbtxt").write_text(config.replace('name: "tiny_mlp"', 'name: "ordinary"', 1))
    (folder / "tiny_mlp" / "config.pbtxt").write_text(config + ALLOW)
    write_layers(folder, "background", "best_effort")
    write_layers(folder, "promised", "best_effort", 'parameters { key: "slo_ms" value { string_value: "50" } }\n')
    write_layers(folder, "urgent", "real_time")
    return folder


@pytest.fixture(scope="module", params=["clockwork cpu", "symphony cpu", "clockwork cuda-emulated"])
def server(request, program, models, tmp_path_factory):
    log = tmp_path_factory.mktemp("log") / "server.log"
    scheduler, device = request.param.split()
    with serving(program, models, log, "--scheduler", scheduler, "--device", device, "--default-deadline", "20000") as running:
        running.log = log
        yield running


def connect(module, server):
    return module.InferenceServerClient(server.http if module is http_client else server.grpc)


def rows_of(seed: int, width: int = WIDTH) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal([1, width]).astype(np.float32)


def inputs_of(module, x: np.ndarray, name: str = "x"):
    made = module.InferInput(name, x.shape, "FP32")
    made.set_data_from_numpy(x)
    return [made]


def metric(server, name: str, **labels: str) -> float:
    found = 0.0
    for line in server.scrape().splitlines():
        at = re.match(rf"{name}\{{(.*)\}} (\S+)$", line)
        if at and all(f'{key}="{value}"' in at.group(1) for key, value in labels.items()):
            found += float(at.group(2))
    return found


class Busy:
    """Closed-loop best-effort clients, whose answers are checked."""

    def __init__(self, server, models, clients: int = 3):
        model = onnx.load(models / "background" / "1" / "model.onnx")
        reference = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        self.inputs = [rows_of(seed) for seed in range(4)]
        self.want = [reference.run(None, {"x": x})[0] for x in self.inputs]
        self.server, self.answered, self.wrong, self.stop = server, 0, [], threading.Event()
        self.threads = [threading.Thread(target=self.loop, args=(i,)) for i in range(clients)]

    def loop(self, number: int):
        with http_client.InferenceServerClient(self.server.http) as client:
            for turn in range(1_000_000):
                if self.stop.is_set():
                    return
                which = (turn + number) % len(self.inputs)
                got = client.infer("background", inputs_of(http_client, self.inputs[which])).as_numpy(f"t{LAYERS - 1}")
                if not np.allclose(got, self.want[which], atol=1e-4):
                    self.wrong.append(which)
                self.answered += 1

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        for thread in self.threads:
            thread.join(60)


def test_real_time_and_best_effort_are_answered_right_beside_each_other(server, models, module):
    began = metric(server, "carillon_preemption_latency_seconds_count", model="tiny_mlp")
    with http_client.InferenceServerClient(server.http) as asked:
        metadata = asked.get_model_metadata("tiny_mlp")
    given, output = metadata["inputs"][0]["name"], metadata["outputs"][0]["name"]
    x = rows_of(1, 64)
    with connect(module, server) as client, Busy(server, models) as busy:
        answers = []
        while busy.answered < 20 or len(answers) < 100:
            answers.append(client.infer("tiny_mlp", inputs_of(module, x, given), priority=1, timeout=PATIENT))
            time.sleep(0.005)
    assert not busy.wrong
    assert all(np.array_equal(a.as_numpy(output), answers[0].as_numpy(output)) for a in answers)
    assert metric(server, "carillon_preemption_latency_seconds_count", model="tiny_mlp") > began
    assert metric(server, "carillon_preemptions_total", model="background") > 0


def class_of(server, number: str) -> str:
    with urllib.request.urlopen(f"http://{server.http}/v2/carillon/requests/{number}", timeout=60) as response:
        return json.load(response)["class"]


def send_first(server, name: str, key: str | None = None) -> str:
    """The number of a request of priority 1 that was answered over HTTP."""
    body = {"inputs": [{"name": "input", "datatype": "FP32", "shape": [1, 64], "data": [0.5] * 64}],
            "parameters": {"priority": 1, "timeout": PATIENT}}
    request = urllib.request.Request(f"http://{server.http}/v2/models/{name}/infer", json.dumps(body).encode())
    if key:
        request.add_header("Authorization", f"Bearer {key}")
    with urllib.request.urlopen(request, timeout=60) as response:
        return response.headers["carillon-request"]


def test_priority_one_is_an_ordinary_level_unless_the_model_says_otherwise(server):
    assert class_of(server, send_first(server, "ordinary")) == "normal"
    assert class_of(server, send_first(server, "tiny_mlp")) == "real_time"


def test_a_model_of_class_real_time_needs_no_priority(server, models, module):
    began = metric(server, "carillon_preemption_latency_seconds_count", model="urgent")
    with connect(module, server) as client, Busy(server, models) as busy:
        sent = 0
        while busy.answered < 10 or sent < 20:
            client.infer("urgent", inputs_of(module, rows_of(3)))
            sent += 1
    assert metric(server, "carillon_preemption_latency_seconds_count", model="urgent") > began


def test_real_time_that_cannot_be_on_time_is_refused(server, module):
    with connect(module, server) as client, pytest.raises(InferenceServerException) as refused:
        client.infer("urgent", inputs_of(module, rows_of(3)), timeout=20)
    assert "504" in str(refused.value) or "DEADLINE" in str(refused.value.status())


def test_too_much_real_time_work_is_refused_and_not_queued(server):
    """Without deadlines of their own: the server's default is 20 s, and no more than that may wait."""
    answered, refused = [], []

    def ask():
        with http_client.InferenceServerClient(server.http) as client:
            for _ in range(10):
                try:
                    client.infer("urgent", inputs_of(http_client, rows_of(3)), timeout=30_000)
                    answered.append(1)
                except InferenceServerException as error:
                    assert "504" in str(error) or "deadline" in str(error).lower()
                    refused.append(1)

    threads = [threading.Thread(target=ask) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(answered) + len(refused) == 160
    with http_client.InferenceServerClient(server.http) as client:
        client.infer("urgent", inputs_of(http_client, rows_of(3)))  # nothing is left of it


def test_an_slo_of_a_best_effort_model_is_said_to_mean_little(server):
    said = server.log.read_text()
    assert re.search(r"promised.*slo_ms", said), said[-2000:]


@pytest.mark.parametrize("options, says", [
    (["--best-effort-streams", "1000"], "there can be 1 to"),
    (["--real-time-threads", "900"], "it must be 0 (all) to"),
    (["--stop-cost", "2"], "--stop-cost"),
])
def test_streams_that_cannot_be_are_refused(program, models, options, says):
    done = subprocess.run([str(program), "serve", "--models", str(models), "--http", "127.0.0.1:0", *options],
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and says in done.stdout + done.stderr


def test_one_stream_and_one_thread_serve_all_classes(program, models, tmp_path):
    with serving(program, models, tmp_path / "log", "--threads", "1") as server, Busy(server, models, 1) as busy:
        with http_client.InferenceServerClient(server.http) as client:
            while busy.answered < 3:
                client.infer("urgent", inputs_of(http_client, rows_of(3)))
    assert not busy.wrong
