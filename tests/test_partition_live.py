"""Groups of devices that divide the models: a division that changes while requests are served.

The devices are emulated: they take the time that a profile says. Deadlines are long beside what the machine adds.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
import urllib.request

import pytest

from loopback import serving, write_profile

MODELS = ("tiny_mlp", "tiny_cnn", "tiny_encoder")


def write_division(file, *groups):
    file.write_text(json.dumps({"groups": [{"models": list(names)} for names in groups]}))
    return file


@pytest.fixture
def division(tmp_path):
    return write_division(tmp_path / "division.json", ["tiny_mlp", "tiny_cnn"], ["tiny_encoder"])


def emulated(tmp_path, count):
    profile = write_profile(tmp_path / "profile.json", MODELS, 10)
    return ["--device", f"emulated:{profile}*{count}", "--profile", str(profile)]


def value(server, name):
    return float(re.search(rf"^{name} (\S+)", server.scrape(), re.MULTILINE).group(1))


def by(server, name, label):
    return {key: float(number) for key, number in
            re.findall(rf'^{name}{{{label}="(\d+)"[^}}]*}} (\S+)', server.scrape(), re.MULTILINE)}


def wait_for(what, said, limit_s=60):
    limit = time.monotonic() + limit_s
    while not what():
        assert time.monotonic() < limit, said
        time.sleep(0.05)


def begin_load(server, *options, model="tiny_mlp"):
    return subprocess.Popen([str(server.program), "load", f"http://{server.http}", "--model", model, "--json",
                             "--warmup", "0", *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def end_load(load):
    out, complaints = load.communicate(timeout=120)
    assert load.returncode in (0, 1) and out, complaints
    return json.loads(out)


@pytest.mark.parametrize("scheduler", ["carillon", "symphony"])
def test_a_model_moves_and_no_request_is_lost(program, tiny_models, tmp_path, division, scheduler):
    log = tmp_path / "server.log"
    with serving(program, tiny_models, log, *emulated(tmp_path, 4), "--scheduler", scheduler, "--partition",
                 str(division)) as server:
        wanted = by(server, "carillon_devices_wanted", "subcluster")
        assert wanted == {"0": 2, "1": 2}, "a number for each group"
        assert value(server, "carillon_models_moving") == 0
        begin = by(server, "carillon_device_executions_total", "device")
        # Two devices answer eight requests each in 26 ms: this is half of that.
        load = begin_load(server, "--rate", "300", "--deadline", "1000", "--duration", "6")
        time.sleep(2)
        before = by(server, "carillon_device_executions_total", "device")
        assert before["0"] > begin["0"] and (before["1"], before["3"]) == (begin["1"], begin["3"])
        write_division(division, ["tiny_cnn"], ["tiny_encoder", "tiny_mlp"])
        server.process.send_signal(signal.SIGHUP)
        wait_for(lambda: by(server, "carillon_device_executions_total", "device")["1"] > before["1"],
                 log.read_text()[-2000:], 30)
        wait_for(lambda: value(server, "carillon_models_moving") == 0, log.read_text()[-2000:])
        told = end_load(load)
        assert told["unanswered"] == told["failed"] == told["refused"] == 0
        assert told["on_time"] + told["late"] == told["sent"]
        assert told["late"] <= told["sent"] / 100, "a second is long, even on a busy machine"
        # The old group has nothing to do any more.
        after = by(server, "carillon_device_executions_total", "device")
        again = end_load(begin_load(server, "--rate", "50", "--deadline", "10000", "--duration", "1"))
        assert again["on_time"] == again["sent"] > 0
        last = by(server, "carillon_device_executions_total", "device")
        assert (last["0"], last["2"]) == (after["0"], after["2"])
        assert last["1"] + last["3"] > after["1"] + after["3"]
    assert "partition: models move to the groups of" in log.read_text()


@pytest.mark.parametrize("scheduler", ["carillon", "symphony"])
def test_a_model_that_comes_later_is_served_by_its_group(program, tiny_models, tmp_path, division, scheduler):
    with serving(program, tiny_models, tmp_path / "server.log", *emulated(tmp_path, 4), "--scheduler", scheduler, "--partition",
                 str(division), "--model-control-mode", "explicit", "--load-model", "tiny_mlp") as server:
        for model, devices in (("tiny_encoder", ("1", "3")), ("tiny_cnn", ("0", "2"))):
            before = by(server, "carillon_device_executions_total", "device")
            order = urllib.request.Request(f"http://{server.http}/v2/repository/models/{model}/load", method="POST")
            assert urllib.request.urlopen(order, timeout=60).status == 200
            told = end_load(begin_load(server, "--rate", "50", "--deadline", "10000", "--duration", "1", model=model))
            assert told["on_time"] == told["sent"] > 0
            after = by(server, "carillon_device_executions_total", "device")
            assert {device for device in after if after[device] > before[device]} <= set(devices)
        told = end_load(begin_load(server, "--rate", "50", "--deadline", "10000", "--duration", "1"))
        assert told["on_time"] == told["sent"] > 0


def test_a_file_that_cannot_be_changes_nothing(program, tiny_models, tmp_path, division):
    log = tmp_path / "server.log"
    with serving(program, tiny_models, log, *emulated(tmp_path, 2), "--partition", str(division)) as server:
        for text, words in (("{", "not a JSON document"),
                            ('{"groups": [{"models": ["tiny_mlp"]}]}', "has 1 groups, but 2 are in force; their number stays"),
                            ('{"groups": [{"models": ["a"]}, {"models": ["a"]}]}', "a model is in one group")):
            division.write_text(text)
            server.process.send_signal(signal.SIGHUP)
            wait_for(lambda words=words: re.search(f"--partition: .*{re.escape(words)}.*; nothing changes", log.read_text()),
                     words)
        told = end_load(begin_load(server, "--rate", "50", "--deadline", "10000", "--duration", "1"))
        assert told["on_time"] == told["sent"] > 0


@pytest.mark.parametrize("text, words", [
    ('{"groups": []}', "groups: is empty, but should hold at least one group"),
    ('{"groups": [{"models": []}, {"models": []}, {"models": []}]}',
     "has 3 groups, but should have at most 2, for 2 devices"),
])
def test_a_server_does_not_start_by_a_division_that_cannot_be(program, tiny_models, tmp_path, text, words):
    file = tmp_path / "division.json"
    file.write_text(text)
    done = subprocess.run([str(program), "serve", "--models", str(tiny_models), *emulated(tmp_path, 2), "--partition", str(file)],
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert words in done.stderr


def test_a_simulated_change_loses_nothing(program, tmp_path):
    scenario = tmp_path / "load.toml"
    scenario.write_text("""name = "load"
duration_s = 20
[cluster]
devices = 4
memory = "2 GB"
[load]
rate = 1500
[[models]]
name = "m"
copies = 4
slo_ms = 50
max_batch = 16
weights = "200 MB"
latency = { alpha_ms = 1, beta_ms = 3 }
""")
    first = write_division(tmp_path / "first.json", ["m-0", "m-1"], ["m-2", "m-3"])
    second = write_division(tmp_path / "second.json", ["m-0", "m-3"], ["m-2", "m-1"])

    def simulate(*options):
        return subprocess.run([str(program), "simulate", str(scenario), "--scheduler", "carillon", "--json", *map(str, options)],
                              capture_output=True, text=True, timeout=60)
    without = json.loads(simulate("--partition", first).stdout)
    told = json.loads(simulate("--partition", first, "--repartition", f"10={second}").stdout)
    assert told["loads"] == without["loads"] + 4, "two models on two devices each"
    for run in (without, told):
        assert run["on_time"] == run["offered"] > 0
    wrong = write_division(tmp_path / "wrong.json", ["m-7"], [])
    for options, words in ((("--partition", wrong), "load has no model 'm-7'"),
                           (("--partition", first, "--repartition", f"x={second}"), "write SECONDS=FILE"),
                           (("--partition", first, "--record", tmp_path / "log"), "--partition does not go with --record")):
        done = simulate(*options)
        assert done.returncode == 2 and words in done.stderr, done.stderr
