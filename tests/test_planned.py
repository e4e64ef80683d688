"""`carillon serve --plan`: models with shares of the device, and standbys; `carillon plan --from` a running server."""

from __future__ import annotations

import json
import re
import subprocess
import time

import numpy as np
import pytest
import tritonclient.http as http_client
from tritonclient.utils import InferenceServerException

from loopback import ROOT, serving

COEFFICIENTS = ROOT / "profiles" / "igniter" / "workloads.json"
HARDWARE = ROOT / "profiles" / "igniter" / "v100.json"


def workload(model: str, share: float, batch: int = 4, half_slo_ms: float = 500) -> dict:
    return {"id": f"W-{model}", "model": model, "share_pct": share, "batch": batch, "half_slo_ms": half_slo_ms}


def write_plan(folder, *devices: list[dict]):
    file = folder / "plan.json"
    file.write_text(json.dumps({"strategy": "hand", "devices": [
        {"device": i + 1, "type": "cpu", "workloads": workloads} for i, workloads in enumerate(devices)]}))
    return file


def gauge(server, name: str, model: str) -> float:
    found = re.search(rf'^{name}{{model="{model}",version="1"}} (\S+)', server.scrape(), re.MULTILINE)
    assert found, f"no {name} of {model}"
    return float(found.group(1))


def send(server, model: str, count: int = 1):
    shape = {"tiny_mlp": [1, 64], "tiny_cnn": [1, 3, 16, 16]}[model]
    tensor = http_client.InferInput("input", shape, "FP32")
    tensor.set_data_from_numpy(np.ones(shape, np.float32))
    with http_client.InferenceServerClient(server.http) as client:
        return [client.infer(model, [tensor]).as_numpy("output") for _ in range(count)]


@pytest.fixture(scope="module")
def planned(program, tiny_models, tmp_path_factory):
    """Two devices' plan, of which the server is the second; tiny_encoder is not on it."""
    folder = tmp_path_factory.mktemp("planned")
    plan = write_plan(folder, [workload("tiny_encoder", 100)], [workload("tiny_mlp", 40), workload("tiny_cnn", 55, 3)])
    with serving(program, tiny_models, folder / "server.log", "--plan", str(plan), "--plan-device", "2") as running:
        yield running


def test_shares_of_a_cuda_device_are_served(program, tiny_models, server, tmp_path):
    plan = write_plan(tmp_path, [workload("tiny_mlp", 40), workload("tiny_cnn", 55, 3)])
    with serving(program, tiny_models, tmp_path / "server.log", "--plan", str(plan), "--device", "cuda-emulated") as running:
        for model, share in (("tiny_mlp", 40), ("tiny_cnn", 55)):
            assert gauge(running, "carillon_share_percent", model) == share
            for mine, whole in zip(send(running, model, 2), send(server, model, 2)):
                np.testing.assert_allclose(mine, whole, rtol=1e-4, atol=1e-5)


def test_each_workload_has_its_share_and_batch(planned, server):
    for model, share in (("tiny_mlp", 40), ("tiny_cnn", 55)):
        assert gauge(planned, "carillon_share_percent", model) == share
        assert gauge(planned, "carillon_on_standby", model) == 0
        assert gauge(planned, "carillon_slo_seconds", model) == 1
        # The same answers as a server that has the whole device for all.
        np.testing.assert_allclose(send(planned, model)[0], send(server, model)[0], rtol=1e-4, atol=1e-5)
    with http_client.InferenceServerClient(planned.http) as client:
        assert client.get_model_config("tiny_cnn")["dynamic_batching"]["preferred_batch_size"] == [1, 2, 3]
        assert not client.is_model_ready("tiny_encoder")
        with pytest.raises(InferenceServerException, match="the plan has no workload of it on this device"):
            client.infer("tiny_encoder", [])


def test_statistics_are_those_of_each_workload(planned):
    before = gauge_sum(planned, "tiny_mlp")
    send(planned, "tiny_mlp", 5)
    assert gauge_sum(planned, "tiny_mlp") == before + 5


def gauge_sum(server, model: str) -> float:
    return sum(float(v) for v in re.findall(rf'^carillon_requests_total{{model="{model}",[^}}]*}} (\S+)', server.scrape(),
                                            re.MULTILINE))


def test_a_share_that_is_too_small_is_made_good_by_the_standby(program, tiny_models, tmp_path):
    """A hundredth of the device cannot keep up; the standby, with eleven times as much, can."""
    plan = write_plan(tmp_path, [workload("tiny_encoder", 0.2, 1, half_slo_ms=10)])
    log = tmp_path / "server.log"
    with serving(program, tiny_models, log, "--plan", str(plan)) as running:
        limit = time.monotonic() + 60
        while gauge(running, "carillon_on_standby", "tiny_encoder") == 0:
            assert time.monotonic() < limit, log.read_text()[-2000:]
            subprocess.run([str(program), "load", f"http://{running.http}", "--model", "tiny_encoder", "--rate", "200",
                            "--deadline", "20", "--duration", "2", "--json"], check=True, capture_output=True, timeout=60)
        assert gauge(running, "carillon_share_percent", "tiny_encoder") == pytest.approx(10.2)
        told = subprocess.run([str(program), "load", f"http://{running.http}", "--model", "tiny_encoder", "--rate", "20",
                               "--deadline", "60000", "--duration", "1", "--json"], check=True, capture_output=True,
                              text=True, timeout=120)
        assert json.loads(told.stdout)["failed"] == 0
    assert "its standby takes over, with 10.2% of the device in place of 0.2%" in log.read_text()


@pytest.mark.parametrize("devices, options, status, says", [
    ([[workload("nobody", 50)]], [], 1, "workload 'W-nobody': there is no model 'nobody' in"),
    ([[workload("tiny_mlp", 50)], [workload("tiny_mlp", 50)]], [], 1, "has 2 devices; say which of them this server is"),
    ([[workload("tiny_mlp", 50)]], ["--plan-device", "3"], 1, "has no device 3; there is: 1"),
    ([[workload("tiny_mlp", 70), workload("tiny_cnn", 70)]], [], 1, "shares that sum to 140"),
    ([[workload("tiny_mlp", 50)]], ["--record", "log"], 2, "--plan goes with neither --record nor --profile"),
    ([[workload("tiny_mlp", 50)]], ["--stop-cost", "0.02"], 2, "--plan goes with none of --stop-cost, --best-effort-streams"),
    ([[workload("tiny_mlp", 50)]], ["--real-time-threads", "1"], 2, "--plan goes with none of --stop-cost, --best-effort-streams"),
])
def test_what_cannot_be_served_is_named(program, tiny_models, tmp_path, devices, options, status, says):
    plan = write_plan(tmp_path, *devices)
    run = subprocess.run([str(program), "serve", "--models", str(tiny_models), "--plan", str(plan), "--http", "127.0.0.1:0",
                          "--grpc", "", "--metrics", "", *options], capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert run.returncode == status, run.stderr
    assert says in run.stderr


def test_plan_from_a_running_server(program, planned, tmp_path):
    coefficients = json.loads(COEFFICIENTS.read_text())
    coefficients["models"]["tiny_mlp"] = coefficients["models"]["alexnet"]
    file = tmp_path / "coefficients.json"
    file.write_text(json.dumps(coefficients))
    load = subprocess.Popen([str(program), "load", f"http://{planned.http}", "--model", "tiny_mlp", "--rate", "50",
                             "--duration", "6"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        time.sleep(1)
        run = subprocess.run([str(program), "plan", "--from", f"http://{planned.metrics}/metrics", "--from-seconds", "2",
                              "--coefficients", str(file), "--hardware", str(HARDWARE), "--json"],
                             capture_output=True, text=True, timeout=60)
    finally:
        load.wait(60)
    assert run.returncode == 0, run.stderr
    told = json.loads(run.stdout)
    assert told["device_count"] == 1
    (only,) = told["devices"][0]["workloads"]
    assert only["id"] == only["model"] == "tiny_mlp"
    assert only["half_slo_ms"] == 500
    assert 10 < only["rate_rps"] < 200


@pytest.mark.parametrize("options, status, says", [
    ([], 2, "either a file of WORKLOADS, or --from"),
    (["--from", "http://127.0.0.1:1/metrics", "--from-seconds", "0.1"], 1, "'http://127.0.0.1:1/metrics': "),
    (["--from", "grpc://127.0.0.1:1"], 2, "comes over http or https, not gRPC"),
])
def test_plan_from_nowhere(program, options, status, says):
    run = subprocess.run([str(program), "plan", *options, "--coefficients", str(COEFFICIENTS), "--hardware", str(HARDWARE)],
                         capture_output=True, text=True, timeout=60)
    assert run.returncode == status, run.stderr
    assert says in run.stderr


def test_plan_from_what_is_no_metrics(program, planned):
    run = subprocess.run([str(program), "plan", "--from", f"http://{planned.http}/v2/health/ready", "--from-seconds", "0.1",
                          "--coefficients", str(COEFFICIENTS), "--hardware", str(HARDWARE)],
                         capture_output=True, text=True, timeout=60)
    assert run.returncode == 2 and "tells no carillon_rows_total" in run.stderr
