"""Several CUDA devices in one server, and devices that take the times of a table: all in this process, no GPU.

Nothing here depends on how fast the machine is, but for limits of a minute within which things must happen at all.
"""

from __future__ import annotations

import json
import subprocess
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as http_client
from tritonclient.utils import InferenceServerException

from loopback import answer_to, free_addresses, serving
from test_cuda_emulated import inputs_of
from test_devices import INPUT, answers, by_device, wait_for

ROOT = Path(__file__).resolve().parents[1]
MEMORY = ("--io-cache", "16MiB", "--workspace", "16MiB")


class Askers:
    """Threads that ask, one request after the other, and hold each answer against onnxruntime's."""

    def __init__(self, server, models, name: str, count: int):
        import onnxruntime
        session = onnxruntime.InferenceSession(str(models / name / "1" / "model.onnx"), providers=["CPUExecutionProvider"])
        self.server, self.name, self.sent, self.right, self.failed, self.wrong = server, name, 0, 0, [], []
        self.cases = []
        for batch in (1, 2, 3):
            given = inputs_of(session, batch)
            inputs = []
            for tensor, array in given.items():
                inputs.append(http_client.InferInput(tensor, array.shape, "FP32" if array.dtype == np.float32 else "INT64"))
                inputs[-1].set_data_from_numpy(array)
            self.cases.append((inputs, session.get_outputs()[0].name, session.run(None, given)[0]))
        self.lock, self.ends = threading.Lock(), threading.Event()
        self.threads = [threading.Thread(target=self.ask, args=(i,)) for i in range(count)]
        for thread in self.threads:
            thread.start()

    def ask(self, turn: int):
        with http_client.InferenceServerClient(self.server.http, network_timeout=90) as client:
            while not self.ends.is_set():
                inputs, output, want = self.cases[turn % len(self.cases)]
                turn += 1
                with self.lock:
                    self.sent += 1
                try:
                    got = client.infer(self.name, inputs, timeout=60_000_000).as_numpy(output)
                    near = np.max(np.abs(got - want)) <= 1e-4 * float(np.max(np.abs(want)))
                    with self.lock:
                        self.right += bool(near)
                        if not near:
                            self.wrong.append(turn)
                except InferenceServerException as error:
                    with self.lock:
                        self.failed.append(str(error))

    def stop(self):
        self.ends.set()
        for thread in self.threads:
            thread.join()


@pytest.mark.parametrize("device", [["cuda-emulated*2"], ["cuda-emulated", "cuda-emulated"]])
def test_two_devices_answer_right_and_one_goes_on_when_the_other_is_lost(program, tiny_models, tmp_path, device):
    log = tmp_path / "server.log"
    options = [word for each in device for word in ("--device", each)]
    with serving(program, tiny_models, log, *options, *MEMORY, "--scheduler", "fcfs", "--emulated-faults", "kill=1@4s",
                 page_cache="48MiB") as server:
        asked = Askers(server, tiny_models, "tiny_cnn", 8)
        try:
            wait_for(lambda: min(by_device(server, "carillon_device_executions_total")) > 20, "one device does nothing")
            wait_for(lambda: by_device(server, "carillon_device_up") == [1, 0], "device 1 was never lost")
            before = asked.right
            wait_for(lambda: asked.right > before + 50, "device 0 does not go on")
        finally:
            asked.stop()
        assert not asked.wrong
        assert asked.right + len(asked.failed) == asked.sent
        assert sum(answers(server).values()) == asked.sent, "each is answered once"
        assert len(asked.failed) <= 16, asked.failed
        # It stays lost: what probes it finds so is nothing that passes.
        time.sleep(0.5)
        assert by_device(server, "carillon_device_up") == [1, 0]
    text = log.read_text()
    assert "device 1 is taken out: cuda:1: the device is lost until the server is started again" in text
    assert "device 1 is back" not in text and "device 0 is taken out" not in text


def test_without_devices_the_answer_says_that_they_stay_lost(program, tiny_models, tmp_path):
    def send():
        return answer_to(f"http://{server.http}/v2/models/tiny_mlp/infer", INPUT)

    with serving(program, tiny_models, tmp_path / "server.log", "--device", "cuda-emulated", *MEMORY, "--emulated-faults",
                 "kill=0@1s", page_cache="48MiB") as server:
        told = []
        wait_for(lambda: told.append(send()) or told[-1][0] == 503, "never lost")
        assert "no device answers" in send()[1] or "went" in send()[1]
        assert any("lost until the server is started again" in text for _, text in told), told[-3:]


def refused(program, *arguments) -> str:
    run = subprocess.run([str(program), *map(str, arguments)], capture_output=True, text=True, timeout=120)
    assert run.returncode != 0, run.stdout
    return run.stderr


@pytest.mark.parametrize("devices, says", [
    (["cuda:"], "--device cuda:: 'cuda:' is not a device: a number is missing after 'cuda:'"),
    (["cuda:0,"], "'cuda:0,' is not a device: a number is missing beside a comma; after 'cuda:' come numbers of devices"),
    (["cuda:,1"], "a number is missing after 'cuda:'"),
    (["cuda:0,,1"], "a number is missing beside a comma"),
    (["cuda:-1"], "'-1' is not a number of one; after 'cuda:' come numbers of devices, from 0, with commas"),
    (["cuda:0,x"], "'x' is not a number of one"),
    (["cuda:0-3"], "'0-3' is not a number of one"),
    (["cuda:9999999999"], "9999999999 is larger than any device's number"),
    (["cuda:0,0"], "--device cuda:0,0: cuda:0 is given twice"),
    (["cuda:0", "cuda:0"], "--device cuda:0: cuda:0 is given twice"),
    (["cuda", "cuda:0"], "cuda:0 is given twice ('cuda' is cuda:0)"),
    (["cuda:1,00", "cuda"], "--device cuda: cuda:0 is given twice"),
    (["cuda*2"], "'*' is for emulated devices; several GPUs are listed, as in cuda:0,1"),
    (["cuda-emulated*0"], "what follows '*' must be a number from 1"),
    (["cuda-emulated:"], "it should be a table of steps"),
    (["cuda-emulated:/nowhere.json"], "--device cuda-emulated:/nowhere.json: /nowhere.json: no such file; it should be a table"),
])
def test_what_is_no_device_is_named(program, tiny_models, devices, says):
    (http,) = free_addresses(1)
    told = refused(program, "serve", "--models", tiny_models, "--http", http, "--grpc", "", "--metrics", "", "--page-cache", "32MiB",
                   *MEMORY, *[word for device in devices for word in ("--device", device)])
    assert says in told


@pytest.mark.parametrize("faults, says", [
    ("hang=1@1s", "device 1 is a CUDA device, which can only be lost for good: kill=1@TIME"),
    ("kill=0@1s+1s", "device 0 is a CUDA device"),
    ("kill=2@1s", "there is no emulated device 2"),
])
def test_outages_that_a_cuda_device_has_not(program, tiny_models, faults, says):
    (http,) = free_addresses(1)
    assert says in refused(program, "serve", "--models", tiny_models, "--http", http, "--grpc", "", "--metrics", "", "--page-cache",
                           "32MiB", *MEMORY, "--device", "cuda-emulated*2", "--emulated-faults", faults)


def test_profile_and_disb_take_one_device(program, tiny_models):
    for command in (["profile", "--models", tiny_models], ["disb", "A", "--models", tiny_models]):
        assert "--device cuda:0,1: this takes one device; several are for 'carillon serve'" in refused(
            program, *command, "--device", "cuda:0,1")
    assert "several, by '*', are for 'carillon serve'" in refused(program, "profile", "--models", tiny_models, "--device",
                                                                  "cuda-emulated*2")


# --- Tables of steps

STEP_US = 700


@pytest.fixture(scope="module")
def table(program, tiny_models, tmp_path_factory):
    """Every step of the tiny models at batch 1 and 8, f32: as carillon_gpu names it, with times of our own; what else there
    is goes by rates. And the sums, in milliseconds."""
    plans, sums = [], {}
    for model in ("tiny_mlp", "tiny_cnn", "tiny_encoder"):
        for batch in (1, 8):
            done = subprocess.run([str(program.parent / "carillon_gpu"), "steps", str(tiny_models / model / "1/model.onnx"), "--device",
                                   "cuda-emulated", "--batch", str(batch), "--runs", "2"], capture_output=True, text=True, timeout=120)
            assert done.returncode == 0, done.stderr
            (plan,) = json.loads(done.stdout)["plans"]
            assert (plan["model"], plan["number"], plan["batch"]) == (model, "f32", batch)
            for i, step in enumerate(plan["steps"]):
                step["us"] = STEP_US * batch + 10 * (i % 7)
            sums[model, batch] = sum(step["us"] for step in plan["steps"]) / 1e3
            plans.append(plan)
    file = tmp_path_factory.mktemp("table") / "gpu.json"
    file.write_text(json.dumps({"device": "a test's GPU", "memory_bytes": 1 << 30, "plans": plans,
                                "rates": {"*": {"operations_per_s": 1e9, "bytes_per_s": 1e9}}}))
    return file, sums


def measured(program, models, out, *options):
    run = subprocess.run([str(program), "profile", "--models", str(models), "--repeats", "3", "--out", str(out), *MEMORY, *options],
                         capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    return json.loads(out.read_text())


def test_profile_has_the_tables_times(program, tiny_models, table, tmp_path):
    """In virtual time: the same every time, and nobody waits."""
    file, sums = table
    first = measured(program, tiny_models, tmp_path / "1.json", "--device", f"cuda-emulated:{file}")
    assert first["device"] == f"cuda-emulated:{file}: a test's GPU, f32, by a table of its steps' times; outputs are zeros"
    for model in first["models"]:
        for row in model["batches"]:
            assert row["p50_ms"] == row["p99_ms"]
            if row["batch"] in (1, 8):
                want = sums[model["name"], row["batch"]]
                assert want < row["p50_ms"] < want + 0.02, "beside the steps, a copy in and out, and launches"
    second = measured(program, tiny_models, tmp_path / "2.json", "--device", f"cuda-emulated:{file}")
    assert first["models"] == second["models"]


def test_scenarios_of_the_simulator_can_read_it(program, tiny_models, table, tmp_path):
    file, sums = table
    csv = tmp_path / "profile.csv"
    measured(program, tiny_models, tmp_path / "again.json", "--only", "tiny_mlp", "--csv", str(csv), "--device",
             f"cuda-emulated:{file}")
    name, _, _, one = csv.read_text().splitlines()[1].split(",")[:4]
    assert name == "tiny_mlp" and float(one) == pytest.approx(sums["tiny_mlp", 1], rel=0.03)
    scenario = tmp_path / "scenario.toml"
    scenario.write_text('duration_s = 10\n[load]\nrate = 20\n[[models]]\nname = "tiny_mlp"\nslo_ms = 50\nmax_batch = 1\n'
                        'latency = { csv = "profile.csv", row = "tiny_mlp" }\n')
    told = subprocess.run([str(program), "simulate", str(scenario), "--json"], capture_output=True, text=True, timeout=120)
    assert told.returncode == 0, told.stderr
    assert json.loads(told.stdout)["on_time"] > 100


def test_runs_take_their_time_and_answer_zeros(program, tiny_models, table, tmp_path):
    """Live, a run is never shorter than the table has it."""
    file, sums = table
    with serving(program, tiny_models, tmp_path / "server.log", "--device", f"cuda-emulated:{file}*2", *MEMORY) as server:
        with http_client.InferenceServerClient(server.http) as client:
            metadata = client.get_model_metadata("tiny_encoder")
            inputs = []
            for spec in metadata["inputs"]:
                shape = [1, *[n if n > 0 else 16 for n in spec["shape"][1:]]]
                array = np.ones(shape, np.int64 if spec["datatype"] == "INT64" else np.float32)
                inputs.append(http_client.InferInput(spec["name"], array.shape, spec["datatype"]))
                inputs[-1].set_data_from_numpy(array)
            output = metadata["outputs"][0]["name"]
            for _ in range(3):
                start = time.monotonic()
                got = client.infer("tiny_encoder", inputs, timeout=60_000_000).as_numpy(output)
                assert time.monotonic() - start >= sums["tiny_encoder", 1] / 1e3
                assert not got.any()


def test_disb_runs_on_a_table(program, tiny_models, table, tmp_path):
    file, sums = table
    workload = tmp_path / "workload.json"
    workload.write_text(json.dumps({"time": 60, "tasks": [
        {"id": "a_rt", "load": {"type": "periodic", "frequency": 10}, "client": {"model_name": "tiny_mlp", "batch_size": 1}},
        {"id": "b_be", "load": {"type": "continuous"}, "client": {"model_name": "tiny_cnn", "batch_size": 1}}]}))
    done = subprocess.run([str(program), "disb", str(workload), "--models", str(tiny_models), "--scale", "1", "--duration", "0.5",
                           "--warm-up", "0.1", "--scheduler", "reef", "--json", "--device", f"cuda-emulated:{file}",
                           "--cuda-longest-kernel", "1e6"],
                          capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    run = json.loads(done.stdout)
    assert run["rt"]["answered"] > 0 and run["be"]["answered"] > 0
    assert run["live"]["device"].startswith(f"cuda-emulated:{file}: a test's GPU")
    for model, ms in run["live"]["alone_ms"].items():
        assert ms >= sums[model, 1]


def test_steps_that_nobody_knows_are_named(program, tiny_models, table, tmp_path):
    file, _ = table
    document = json.loads(file.read_text())
    del document["rates"]
    lacking = tmp_path / "lacking.json"
    lacking.write_text(json.dumps(document))
    run = subprocess.run([str(program), "profile", "--models", str(tiny_models), "--only", "tiny_mlp", *MEMORY, "--device",
                          f"cuda-emulated:{lacking}"], capture_output=True, text=True, timeout=120)
    assert run.returncode != 0
    assert f"left out: {lacking}: it has no time for step" in run.stderr.replace('model "tiny_mlp" at batch 2: ', "")
    assert "of tiny_mlp at batch 2 in f32" in run.stderr


def test_the_table_that_comes_with_it(program, tiny_models, tmp_path):
    """An H100's: its rates are for any model."""
    told = measured(program, tiny_models, tmp_path / "profile.json", "--only", "tiny_cnn", "--cuda-number", "f16", "--device",
                    f"cuda-emulated:{ROOT}/profiles/h100_mobilenetv2.json")
    (model,) = told["models"]
    assert "H100" in told["device"] and all(0 < row["p50_ms"] < 0.1 for row in model["batches"])
