"""The commands on real input, one after another as a user would: profile, simulate, goodput, load, replay."""

from __future__ import annotations

import json
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import time

import pytest

from loopback import free_addresses, is_ready, serving

SCENARIO = """
name = "two"
seed = 3
duration_s = 3
warmup_s = 0.5

[cluster]
devices = 1
memory = "64 MiB"
allowance = { dispatch_us = 300, answer_us = 1000, overrun = 0.05 }

[load]
rate = 120
process = "gamma:0.5"

[[models]]
name = "tiny_mlp"
slo_ms = 60
batch_sizes = [1, 2, 4, 8, 16]
latency = { csv = "profile.csv", row = "tiny_mlp" }

[[models]]
name = "tiny_cnn"
slo_ms = 80
batch_sizes = [1, 2, 4, 8, 16]
latency = { csv = "profile.csv", row = "tiny_cnn" }
"""


def run(*command, status=0):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=300)
    assert done.returncode == status, f"{command}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


@pytest.fixture(scope="module")
def scenario(program, tiny_models, tmp_path_factory):
    folder = tmp_path_factory.mktemp("scenario")
    run(program, "profile", "--models", tiny_models, "--only", "tiny_mlp", "--only", "tiny_cnn", "--repeats", 5,
        "--csv", folder / "profile.csv")
    header, *rows = (folder / "profile.csv").read_text().splitlines()
    assert header.startswith("model,weights_MB,transfer_ms,exec_b1_ms")
    assert len(rows) == 2
    file = folder / "two.toml"
    file.write_text(SCENARIO)
    return file


def test_simulate_repeats_itself_and_replays(program, scenario, tmp_path):
    log = tmp_path / "run.log"
    first = json.loads(run(program, "simulate", scenario, "--json").stdout)
    second = json.loads(run(program, "simulate", scenario, "--json", "--record", log).stdout)
    for report in (first, second):
        report.pop("wall_s")
    assert first == second
    assert first["finish_rate"] > 0.95
    replay = json.loads(run(program, "replay", log, "--json").stdout)
    assert replay["complete"] and replay["differing_events"] == 0
    # The log begins with the warm-up, which the report leaves out.
    assert replay["recorded"]["requests"] >= first["on_time"] > 0
    other = json.loads(run(program, "replay", log, "--scheduler", "fcfs", "--json").stdout)
    assert other["others"][0]["requests"] == replay["recorded"]["requests"]
    run(program, "simulate", scenario, "--record", log, status=2)  # it is there already


def test_preemption_is_recorded_and_replayed(program, tmp_path):
    overload, log = pathlib.Path(__file__).parents[1] / "scenarios/overload.toml", tmp_path / "run.log"
    shares = {}
    for option in ("none", "deadline"):
        report = json.loads(run(program, "simulate", overload, "--scheduler", "clockwork", "--preempt", option,
                                *(["--record", log] if option == "deadline" else []), "--json").stdout)
        shares[option] = report["finish_rate"]
    assert shares["deadline"] > shares["none"]
    assert "\na preempt " in log.read_text()
    replay = json.loads(run(program, "replay", log, "--json").stdout)
    assert replay["complete"] and replay["differing_events"] == 0
    said = run(program, "simulate", overload, "--scheduler", "symphony", "--preempt", "deadline", status=2).stderr
    assert "'symphony' does not preempt so; carillon, clockwork and edf do" in said


def test_goodput_stops_at_its_precision(program, scenario):
    found = json.loads(run(program, "goodput", scenario, "--scheduler", "clockwork", "--duration", 1, "--precision", 0.1, "--json").stdout)
    assert found["goodput_rps"] > 120


def test_load_sends_what_the_scenario_says(program, tiny_models, scenario, tmp_path):
    http, grpc = free_addresses(2)
    log = tmp_path / "live.log"
    process = subprocess.Popen(
        [program, "serve", "--models", tiny_models, "--scheduler", "symphony", "--http", http, "--grpc", grpc,
         "--metrics", "", "--record", log], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(600):
            if is_ready(http):
                break
            assert process.poll() is None
            time.sleep(0.1)
        live = json.loads(run(program, "load", f"http://{http}", "--scenario", scenario, "--json").stdout)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)
    simulated = json.loads(run(program, "simulate", scenario, "--json").stdout)
    assert {m["name"]: m["sent"] for m in live["models"]} == \
        {m["name"]: round(m["offered_rps"] * 2.5) for m in simulated["models"]}
    assert live["on_time"] + live["late"] + live["refused"] == live["sent"]
    assert json.loads(run(program, "replay", log, "--json").stdout)["differing_events"] == 0


def test_a_start_that_fails_leaves_no_record(program, tiny_models, tmp_path):
    log = tmp_path / "run.log"
    options = ("serve", "--models", tiny_models, "--record", log, "--page-cache", "64 MiB", "--grpc", "", "--metrics", "")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = run(program, *options, "--http", f"127.0.0.1:{taken.getsockname()[1]}", status=1)
        assert "--http" in done.stderr
    assert not log.exists()
    # One that was there is another's.
    log.write_text("mine")
    done = run(program, *options, "--http", "127.0.0.1:0", status=1)
    assert "name a file that is not there yet" in done.stderr and log.read_text() == "mine"


def test_load_says_whose_the_deadline_was(program, tiny_models, server, tmp_path):
    for url in (f"http://{server.http}", f"grpc://{server.grpc}"):
        some = ("load", url, "--model", "tiny_mlp", "--duration", 0.2)
        assert "deadline of tiny_mlp: 50 ms, the model's own (slo_ms of its config)" in run(program, *some).stdout
        assert "30000 ms, of this command line" in run(program, *some, "--deadline", 30000).stdout
    shutil.copytree(tiny_models / "tiny_mlp", tmp_path / "models" / "tiny_mlp")
    config = tmp_path / "models" / "tiny_mlp" / "config.pbtxt"
    config.write_text(re.sub(r'parameters \{\s*key: "slo_ms".*?\}\s*\}', "", config.read_text(), flags=re.DOTALL))
    with serving(program, tmp_path / "models", tmp_path / "log") as own:
        for url in (f"http://{own.http}", f"grpc://{own.grpc}"):
            said = run(program, "load", url, "--model", "tiny_mlp", "--duration", 0.2).stdout
            assert "deadline of tiny_mlp: the server's --default-deadline, where it has one: the model has none" in said


def test_load_sends_a_priority(program, server):
    for url in (f"http://{server.http}", f"grpc://{server.grpc}"):
        told = json.loads(run(program, "load", url, "--model", "tiny_mlp,priority=1,rate=40,deadline=30000",
                              "--process", "uniform", "--duration", 0.5, "--json").stdout)
        assert told["on_time"] + told["late"] == told["sent"] > 0, told


@pytest.mark.parametrize("old, new, words", [
    ("batch_sizes = [1, 2, 4, 8, 16]", "batch_sizes = [2, 4]", "must begin with 1"),
    ("batch_sizes = [1, 2, 4, 8, 16]", "batch_sizes = [1, 4, 4]", "must ascend"),
    ("batch_sizes = [1, 2, 4, 8, 16]", "batch_sizes = [1]\nmax_batch = 3", "not both"),
    ("overrun = 0.05", "overrun = -1", "allowance.overrun"),
    ('"gamma:0.5"', '"gamma:x"', "load.process"),
    ("row = \"tiny_cnn\"", "row = \"nobody\"", "nobody"),
])
def test_a_wrong_scenario_is_named(program, scenario, old, new, words):
    wrong = scenario.with_name("wrong.toml")
    wrong.write_text(scenario.read_text().replace(old, new))
    done = run(program, "simulate", wrong, status=2)
    assert words in done.stderr and "wrong.toml" in done.stderr


@pytest.mark.parametrize("arguments, words", [
    (["--noise", "nan"], "--noise"),
    (["--duration", "nan"], "--duration"),
    (["--rate", "inf"], "--rate"),
    (["--rate", "1e300"], "--rate"),
    (["--duration", "1e300"], "--duration"),
    (["--scheduler", "symphony:hold=2"], "hold (0 to 1)"),
])
def test_a_number_that_is_none_is_named(program, scenario, arguments, words):
    assert words in run(program, "simulate", scenario, *arguments, status=2).stderr


def test_the_largest_seed_is_one_seed(program, scenario):
    seed = 2**64 - 1
    told = json.loads(run(program, "simulate", scenario, "--duration", 1, "--seed", f"{seed}..{seed}", "--json").stdout)
    assert told["seed"] == seed


NOTHING = "No such file or directory"


@pytest.mark.parametrize(("command", "status", "words"), [
    ("serve --models . --model-control-mode auto", 2, "--model-control-mode: auto not in {explicit,none,poll}"),
    ("serve --models . --second-engine beside", 2, "--second-engine: beside not in {apart,inside}"),
    ("replay none", 1, f"cannot read the log 'none': {NOTHING}"),
    ("replay .", 1, "cannot read the log '.': Is a directory"),
    ("simulate none", 1, f"cannot read the scenario 'none': {NOTHING}"),
    ("simulate .", 2, "cannot read the scenario '.': Is a directory"),
    ("goodput none", 1, f"cannot read the scenario 'none': {NOTHING}"),
    ("simulate SCENARIO --plot none/a.svg", 1, f"--plot: cannot write 'none/a.svg': {NOTHING}"),
    ("simulate SCENARIO --plot /dev/full", 1, "--plot: cannot write '/dev/full': No space left on device"),
    ("load http://127.0.0.1:1 --scenario none", 1, f"cannot read the scenario 'none': {NOTHING}"),
    ("load https://127.0.0.1:1 --model m --ca none", 2, f"--ca: cannot read the file of PEM 'none': {NOTHING}"),
    ("load http://127.0.0.1:1 --model m --key @none", 2, f"--key: cannot read the secret 'none': {NOTHING}"),
    ("profile --models MODELS --only tiny_mlp --repeats 1 --csv none/a.csv", 1, f"--csv: cannot write 'none/a.csv': {NOTHING}"),
])
def test_a_file_that_cannot_be_had_is_told_with_the_reason(program, tiny_models, scenario, tmp_path, command, status, words):
    places = {"SCENARIO": str(scenario), "MODELS": str(tiny_models)}
    done = subprocess.run([program, *(places.get(word, word) for word in command.split())], cwd=tmp_path, capture_output=True,
                          text=True, timeout=120)
    assert (done.returncode, words in done.stderr) == (status, True), done.stderr


def test_what_cannot_be_printed_is_told(program, scenario):
    for command in (["simulate", scenario, "--json"], ["simulate", scenario], ["--version"], ["serve", "--help"]):
        with open("/dev/full", "w") as full:
            done = subprocess.run([str(program), *map(str, command)], stdout=full, stderr=subprocess.PIPE, text=True,
                                  timeout=60)
        assert done.returncode == 1 and "cannot write to standard output" in done.stderr, command


def test_load_says_what_it_cannot_send(program, scenario):
    closed = scenario.with_name("closed.toml")
    closed.write_text(scenario.read_text().replace('"gamma:0.5"', '"closed:4"'))
    done = run(program, "load", "http://127.0.0.1:1", "--scenario", closed, status=2)
    assert "closed:N" in done.stderr
    for priority in ("-1", "4294967296", "high", ""):
        done = run(program, "load", "http://127.0.0.1:1", "--model", f"m,priority={priority}", status=2)
        assert f"'priority={priority}' is not understood" in done.stderr
    done = run(program, "load", "http://127.0.0.1:1", "--model", "m", "--seed", "18446744073709551616", status=2)
    assert "a seed is a whole number" in done.stderr
    done = run(program, "load", "http://127.0.0.1:1", status=2)
    assert "--model or --scenario" in done.stderr


# What users look for first stands first.
HEADINGS = {
    "Models": "--models", "Addresses": "--http", "Memory": "--memory", "Deadlines and scheduling": "--default-deadline",
    "Devices and kernels": "--device", "Real-time and best-effort requests": "--best-effort-streams",
    "Security": "--tls-cert", "Limits and connections": "--max-open", "Readiness and stopping": "--strict-readiness",
    "Logs and tracing": "--log-level", "Training beside serving": "--train", "Plans of several workloads": "--plan"}


def test_each_option_of_serve_stands_under_one_heading(program):
    said = run(program, "serve", "--help").stdout.split("\nExamples:")[0]
    under, heading = {}, None
    for line in said.splitlines():
        if line.endswith(":") and not line.startswith(" "):
            heading = line[:-1]
            assert heading not in under, f"two headings are called {heading}"
            under[heading] = []
        elif option := re.match(r"  (?:-\w,)?(--[a-z0-9-]+)", line):
            under[heading].append(option.group(1))
    assert under.pop("Help") == ["--help"]
    assert {name: options[0] for name, options in under.items()} == HEADINGS
    assert list(under) == list(HEADINGS)
    options = [option for each in under.values() for option in each]
    assert len(options) == len(set(options)) > 60
    assert max(map(len, under.values())) <= 14, "a heading of more is a list again"
    # Related ones are not torn apart.
    for begin, heading in (("--tls", "Security"), ("--store", "Memory"), ("--grpc-", "Limits and connections"),
                           ("--cuda-", "Devices and kernels"), ("--train-", "Training beside serving")):
        assert [name for name, each in under.items() if any(option.startswith(begin) for option in each)] == [heading]


def test_help_shows_examples_of_its_own(program):
    for command in ("scheduler", "queue", "door", "device"):
        examples = run(program, "bench", command, "--help").stdout.split("Examples:")[1].strip().splitlines()
        assert examples and all(line.strip().startswith(f"carillon bench {command}") for line in examples), command
