"""Several devices in one server: numbers and metrics, few of them used where few will do, and what becomes of requests
when some fail, hang, and come back.

The devices are emulated: they take the time that a profile says. Nothing here depends on how fast the machine is, but
for limits of a minute within which things must happen at all.
"""

from __future__ import annotations

import json
import re
import subprocess
import time

import numpy as np
import pytest
import tritonclient.http as http_client

from loopback import answer_to, free_addresses, is_ready, serving, write_profile

MODELS = ("tiny_mlp", "tiny_cnn", "tiny_encoder")
INPUT = json.dumps({"inputs": [{"name": "input", "datatype": "FP32", "shape": [1, 64], "data": [0.5] * 64}]}).encode()


@pytest.fixture(scope="module")
def profile(tmp_path_factory):
    """Ten milliseconds and two for each request: long beside what the machine adds."""
    return write_profile(tmp_path_factory.mktemp("profile") / "profile.json", MODELS, 10)


def emulated(profile, count: int, *options: str) -> list[str]:
    return ["--device", f"emulated:{profile}*{count}", "--profile", str(profile), *options]


def by_device(server, name: str) -> list[float]:
    found = re.findall(rf'^{name}{{device="(\d+)",[^}}]*}} (\S+)', server.scrape(), re.MULTILINE)
    assert [int(device) for device, _ in found] == list(range(len(found)))
    return [float(value) for _, value in found]


def by_group(server, name: str) -> dict[str, float]:
    found = re.findall(rf'^{name}{{subcluster="(\d+)"}} (\S+)', server.scrape(), re.MULTILINE)
    return {group: float(value) for group, value in found}


def answers(server) -> dict[str, float]:
    out: dict[str, float] = {}
    for outcome, value in re.findall(r'^carillon_requests_total{.*outcome="(\w+)"} (\S+)', server.scrape(), re.MULTILINE):
        out[outcome] = out.get(outcome, 0) + float(value)
    return out


def wait_for(what, said: str, limit_s: float = 60):
    limit = time.monotonic() + limit_s
    while not what():
        assert time.monotonic() < limit, said
        time.sleep(0.05)


def infer(server, count: int = 1, timeout_us: int = 60_000_000):
    tensor = http_client.InferInput("input", [1, 64], "FP32")
    tensor.set_data_from_numpy(np.ones((1, 64), np.float32))
    with http_client.InferenceServerClient(server.http, network_timeout=90) as client:
        for _ in range(count):
            client.infer("tiny_mlp", [tensor], timeout=timeout_us)


def load(server, *options: str) -> dict:
    """What became of the requests, of which perhaps none had an answer (status 1)."""
    done = subprocess.run([str(server.program), "load", f"http://{server.http}", "--model", "tiny_mlp", "--json", *options],
                          capture_output=True, text=True, timeout=120)
    assert done.returncode in (0, 1) and done.stdout, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("scheduler", ["clockwork", "symphony"])
def test_one_request_at_a_time_needs_few_of_eight_devices(program, tiny_models, profile, tmp_path, scheduler):
    with serving(program, tiny_models, tmp_path / "server.log", *emulated(profile, 8), "--scheduler", scheduler) as server:
        infer(server, 5)
        assert by_device(server, "carillon_device_up") == [1] * 8
        assert by_device(server, "carillon_device_pages") == [512] * 8  # 256 MiB in pages of 512 KiB
        before = by_device(server, "carillon_device_executions_total")
        infer(server, 40)
        after = by_device(server, "carillon_device_executions_total")
        assert sum(after) - sum(before) == 40
        used = [d for d in range(8) if after[d] > before[d]]
        assert len(used) <= 2, f"devices {used} ran what one can"
        # The advice knows that there are eight, and that hardly one of them works.
        wait_for(lambda: int(re.search(r"^carillon_autoscale_release_devices (\d+)", server.scrape(),
                                       re.MULTILINE).group(1)) >= 5, "no advice to release devices")
        # None is released before the first five minutes have passed.
        assert by_group(server, "carillon_devices_wanted") == {"0": 8}
        assert by_group(server, "carillon_devices_coming") == {"0": 0}


def test_more_devices_are_wanted_at_once_than_bear_the_load(program, tiny_models, profile, tmp_path):
    with serving(program, tiny_models, tmp_path / "server.log", *emulated(profile, 1)) as server:
        infer(server, 1)
        assert by_group(server, "carillon_devices_wanted") == {"0": 1}
        # A device answers 16 requests in 42 ms, so 380 a second.
        told = load(server, "--rate", "900", "--deadline", "100", "--duration", "5", "--warmup", "0")
        assert told["on_time"] < 0.7 * told["sent"]
        wanted = by_group(server, "carillon_devices_wanted")["0"]
        assert 2 <= wanted <= 8
        assert by_group(server, "carillon_devices_wanted") == {"0": wanted}, "asked twice, none is counted twice"
        assert by_group(server, "carillon_devices_coming") == {"0": wanted - 1}
        assert by_group(server, "carillon_devices_given_up") == {"0": 0}
        assert by_group(server, "carillon_device_start_up_seconds") == {"0": 0}


@pytest.mark.parametrize("scheduler", ["clockwork", "symphony", "fcfs"])
def test_every_request_is_answered_once_while_devices_fail_and_hang(program, tiny_models, profile, tmp_path, scheduler):
    log = tmp_path / "server.log"
    faults = "kill=0@2s+2s,hang=1@2s+3s"
    # More than two devices can do, so that each of the four is at work when it fails.
    rate = "900"
    with serving(program, tiny_models, log, *emulated(profile, 4, "--emulated-faults", faults, "--hang-after", "500"),
                 "--scheduler", scheduler) as server:
        told = load(server, "--rate", rate, "--deadline", "300", "--duration", "6", "--warmup", "0")
        assert told["unanswered"] == 0
        assert told["on_time"] + told["late"] + told["refused"] + told["failed"] == told["sent"]
        counted = answers(server)
        assert sum(counted.values()) == told["sent"]
        assert min(by_device(server, "carillon_device_lost_total")[:2]) >= 1
        wait_for(lambda: by_device(server, "carillon_device_up") == [1] * 4, log.read_text()[-2000:])
        again = load(server, "--rate", "20", "--deadline", "60000", "--duration", "1", "--warmup", "0")
        assert again["on_time"] == again["sent"] > 0
    text = log.read_text()
    assert "device 0 is taken out: the emulated device has failed" in text
    assert "device 1 is taken out: it hangs" in text
    assert "device 0 is back" in text and "device 1 is back" in text


def test_without_devices_all_is_refused_at_once_and_readiness_says_so(program, tiny_models, profile, tmp_path):
    def send():
        return answer_to(f"http://{server.http}/v2/models/tiny_mlp/infer", INPUT)

    with serving(program, tiny_models, tmp_path / "server.log",
                 *emulated(profile, 2, "--emulated-faults", "kill=0@1s+4s,kill=1@1s+4s")) as server:
        # Found out by whoever is sent there.
        wait_for(lambda: send()[0] == 503 and not is_ready(server.http), "never not ready")
        status, text = send()
        assert status == 200 or "no device answers" in text or "its device went" in text, text
        wait_for(lambda: is_ready(server.http), "never ready again")
        wait_for(lambda: send()[0] == 200, "never serving again")


def test_devices_that_hang_for_ever_do_not_keep_the_server_from_stopping(program, tiny_models, profile, tmp_path):
    log = tmp_path / "server.log"
    with serving(program, tiny_models, log,
                 *emulated(profile, 2, "--emulated-faults", "hang=0@1s,hang=1@1s", "--hang-after", "300")) as server:
        def all_are_out():
            told = load(server, "--rate", "20", "--deadline", "2000", "--duration", "1", "--warmup", "0")
            assert told["unanswered"] == 0
            return by_device(server, "carillon_device_up") == [0, 0]
        wait_for(all_are_out, log.read_text()[-2000:])
    for device in (0, 1):
        assert f"device {device} does not come back from what it runs: it is left behind" in log.read_text()


@pytest.mark.parametrize("options, says", [
    (["--device", "cpu", "--device", "cpu"], "--device cpu can be given once"),
    (["--device", "tpu"], "'tpu' is not a device"),
    (["--device", "emulated:PROFILE*0"], "what follows '*' must be a number"),
    (["--emulated-faults", "kill=0@1s"], "there is no emulated device 0"),
    (["--device", "emulated:PROFILE*2", "--emulated-faults", "kill=2@1s"], "there is no emulated device 2"),
    (["--device", "emulated:PROFILE", "--emulated-faults", "kill=0"], "'kill=0' is no outage"),
    (["--device", "emulated:PROFILE*2", "--plan", "plan.json"], "--plan serves one device of the plan"),
])
def test_what_cannot_be_is_named(program, tiny_models, profile, tmp_path, options, says):
    (http,) = free_addresses(1)
    options = [option.replace("PROFILE", str(profile)) for option in options]
    run = subprocess.run([str(program), "serve", "--models", str(tiny_models), "--http", http, "--grpc", "", "--metrics", "",
                          *options], capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert run.returncode == 2, run.stderr
    assert says in run.stderr
