"""`carillon serve --train`: scripts have the CPU while no request wants it."""

from __future__ import annotations

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request

import numpy as np
import pytest
import tritonclient.http as http_client

from forked_scripts import RunServer
from loopback import make_samples, serving
from test_share import JOB

WIDTH = 16


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return make_samples(tmp_path_factory.mktemp("train"), "tiny_mlp")


@pytest.fixture
def lending(program, models, tmp_path):
    socket = tmp_path / "train.sock"
    with serving(program, models, tmp_path / "log", "--train", str(socket), "--train-memory", "64MiB") as server:
        server.socket, server.log = str(socket), tmp_path / "log"
        yield server


def job(program, socket, iterations, options=()):
    return subprocess.Popen([program, "run", "--socket", socket, "--shim", "/dev/null", *options, "--", sys.executable,
                             "-c", JOB, str(iterations), "40"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def kill(program, socket, running):
    """The script: what started it would leave it behind."""
    for line in jobs(program, socket)["jobs"]:
        os.kill(line["pid"], signal.SIGKILL)
    running.communicate(timeout=60)


def jobs(program, socket) -> dict:
    said = subprocess.run([program, "jobs", "--json", "--socket", socket], capture_output=True, text=True, timeout=60)
    assert said.returncode == 0, said.stderr
    return json.loads(said.stdout)


def metrics(server) -> str:
    return urllib.request.urlopen(f"http://{server.metrics}/metrics", timeout=30).read().decode()


def number(server, name) -> float:
    return float(re.search(rf"^{re.escape(name)} (\S+)$", metrics(server), re.MULTILINE).group(1))


def comes(holds, what):
    limit = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < limit, what
        time.sleep(0.005)


class Clients:
    """Requests one after the other, each answered, while the test looks; so many seconds between."""

    def __init__(self, server, pause=0.0):
        self.server, self.pause, self.answered, self.failed = server, pause, 0, []
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.ask)

    def ask(self):
        client = http_client.InferenceServerClient(self.server.http)
        [given] = client.get_model_metadata("tiny_mlp")["inputs"]
        rows = http_client.InferInput(given["name"], [1, *given["shape"][1:]], given["datatype"])
        rows.set_data_from_numpy(np.ones([1, *given["shape"][1:]], np.float32))
        while not self.over.is_set():
            try:
                client.infer("tiny_mlp", [rows], timeout=20_000_000)
                self.answered += 1
            except Exception as error:  # noqa: BLE001
                self.failed.append(error)
            self.over.wait(self.pause)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join(60)


def test_scripts_run_to_their_end_beside_requests(program, lending):
    first, second = (job(program, lending.socket, 300, ("--name", name)) for name in ("first", "second"))
    assert first.stdout.readline() == "inside\n"
    with Clients(lending) as clients:
        comes(lambda: clients.answered > 200, "no answers")
        comes(lambda: number(lending, "carillon_share_freezes_total") > 20, "nobody was frozen for a request")
        listed = {line["name"] for line in jobs(program, lending.socket)["jobs"]}
        assert listed <= {"first", "second"}
        outs = [process.communicate(timeout=120)[0] for process in (first, second)]
    assert not clients.failed, clients.failed[0]
    assert "done 300" in outs[0] and "done 300" in outs[1], outs
    comes(lambda: number(lending, 'carillon_share_ended_total{how="done"}') == 2, "the broker counts both jobs as done")


def test_scripts_are_of_the_lowest_priority_and_stand_still_while_a_request_runs(program, lending):
    running = job(program, lending.socket, 1_000_000)
    try:
        assert running.stdout.readline() == "inside\n"
        [line] = jobs(program, lending.socket)["jobs"]
        child = line["pid"]
        assert os.sched_getscheduler(child) == os.SCHED_IDLE
        seen = set()
        with Clients(lending):
            limit = time.monotonic() + 60
            while seen != {True, False} and time.monotonic() < limit:
                seen.add(state(child) == "T")
        assert seen == {True, False}, "it is frozen at times, and runs at times"
        comes(lambda: state(child) != "T", "it does not go on once nobody asks any more")
    finally:
        kill(program, lending.socket, running)


def test_a_script_that_is_killed_leaves_the_device_to_others(program, lending):
    first = job(program, lending.socket, 1_000_000)
    assert first.stdout.readline() == "inside\n"
    kill(program, lending.socket, first)
    second = job(program, lending.socket, 20)
    assert "done 20" in second.communicate(timeout=60)[0]


def test_scripts_wait_for_another_where_the_server_ends(program, models, tmp_path):
    socket = tmp_path / "train.sock"
    with serving(program, models, tmp_path / "log", "--train", str(socket), "--train-memory", "64MiB"):
        running = job(program, str(socket), 1_000_000)
        assert running.stdout.readline() == "inside\n"
    assert running.stdout.readline() == "ending\n", "this one ends then; those of the library attach again"
    running.communicate(timeout=60)
    assert not socket.exists()


def state(pid) -> str:
    return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_server_that_is_killed_leaves_nobody_stopped_and_nothing_in_the_way_of_the_next(program, models, tmp_path):
    socket = tmp_path / "train.sock"
    options = ("--train", str(socket), "--train-memory", "64MiB", "--train-rest", "1000")
    with pytest.raises(AssertionError, match="the server ended"):
        with serving(program, models, tmp_path / "log", *options) as server:
            running = job(program, str(socket), 1_000_000)
            assert running.stdout.readline() == "inside\n"
            [line] = jobs(program, str(socket))["jobs"]
            with Clients(server) as clients:
                comes(lambda: state(line["pid"]) == "T", "it is not frozen")
                server.process.send_signal(signal.SIGKILL)
                server.process.wait(30)
                clients.over.set()
    comes(lambda: state(line["pid"]) != "T", "it stands still for ever")
    os.kill(line["pid"], signal.SIGKILL)
    running.communicate(timeout=60)
    with serving(program, models, tmp_path / "log", *options[:-2]):
        again = job(program, str(socket), 20)
        assert "done 20" in again.communicate(timeout=60)[0]


# Scripts of torch, as they are: what the client does with them is in test_share_client.py.

ROOT = pathlib.Path(__file__).resolve().parent.parent
SCRIPTS = ROOT / "tests" / "shared_scripts.py"


def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("CARILLON_", "LD_PRELOAD"))}
    return kept | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "python")}


@pytest.fixture(scope="module")
def scripts():
    pytest.importorskip("torch", reason="tools/setup --with-training")
    server = RunServer(environment())
    yield server
    server.close()


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The weights of a kind of script that shares nothing."""
    pytest.importorskip("torch", reason="tools/setup --with-training")
    folder, server = tmp_path_factory.mktemp("alone"), RunServer(environment(), "--alone")

    def weights(kind):
        if not (folder / kind).exists():
            ended = server.run_job("none", "--alone", SCRIPTS, kind, folder / kind)
            assert ended.returncode == 0, ended.stderr[-3000:]
        return folder / kind

    yield weights
    server.close()


def lent(scripts, socket, kind, out, *options):
    return scripts.start_job(socket, "--persistent", "8MiB", "--ephemeral", "40MiB", *options, SCRIPTS, kind, out)


def same(a, b) -> bool:
    import torch
    first, second = torch.load(a), torch.load(b)
    return len(first) == len(second) and all(torch.equal(x, y) for x, y in zip(first, second))


def test_frozen_scripts_end_with_the_weights_that_they_have_alone(lending, scripts, alone, tmp_path):
    kinds = ("plain", "gan", "forked_loaders")
    wanted = [alone(kind) for kind in kinds]
    with Clients(lending, pause=0.01) as clients:  # without it scripts wait for most of a minute
        for running in [lent(scripts, lending.socket, kind, tmp_path / kind) for kind in kinds]:
            _, err = running.communicate(timeout=300)
            assert running.returncode == 0, err[-3000:]
    assert not clients.failed, clients.failed[0]
    assert number(lending, "carillon_share_freezes_total") > 20
    for kind, want in zip(kinds, wanted):
        assert same(want, tmp_path / kind), kind


def test_scripts_of_a_server_that_goes_go_on_alone(program, models, scripts, alone, tmp_path):
    want = alone("plain")
    socket = str(tmp_path / "train.sock")
    with serving(program, models, tmp_path / "log", "--train", socket, "--train-memory", "64MiB") as server:
        running = lent(scripts, socket, "plain", tmp_path / "lent", "--reattach", "1")
        with Clients(server):
            comes(lambda: (listed := jobs(program, socket)["jobs"]) and listed[0]["iterations"] > 0
                  or running.poll() is not None, "it does not run")
    _, err = running.communicate(timeout=300)
    assert running.returncode == 0, err[-3000:]
    assert same(want, tmp_path / "lent")


@pytest.mark.parametrize("options, words", [
    (["--train-memory", "1GiB"], "--train"),  # nobody trains
    (["--train", "PATH", "--train-memory", "0"], "--train-memory is 0"),
    (["--train", "PATH", "--train-memory", "much"], "--train-memory"),
    (["--train", "PATH", "--train-memory", "4GiB", "--page-cache", "4GiB"], "--page-cache"),
    (["--train", "PATH", "--page-cache", "16MiB", "--train-memory", "1MiB"], "needs 16.0 MiB for weights"),
    (["--train", "PATH", "--train-policy", "lottery"], "lottery"),
    (["--train", "/tmp/" + "x" * 120], "107"),
    (["--train", "PATH", "--device", "emulated:any.json"], "no --device cpu"),
    (["--train", "PATH", "--train-rest", "-1"], "--train-rest"),
])
def test_what_cannot_be_is_refused_with_words(program, models, tmp_path, options, words):
    options = [o.replace("PATH", str(tmp_path / "s")) for o in options]
    said = subprocess.run([program, "serve", "--models", models, "--http", "127.0.0.1:0", "--grpc", "", "--metrics", "",
                           *options], capture_output=True, text=True, timeout=120)
    assert said.returncode != 0 and words in said.stderr, said.stderr


def test_a_path_that_another_broker_has_is_said(program, models, tmp_path, lending):
    said = subprocess.run([program, "serve", "--models", models, "--http", "127.0.0.1:0", "--grpc", "", "--metrics", "",
                           "--train", lending.socket, "--page-cache", "256MiB"], capture_output=True, text=True,
                          timeout=120)
    assert said.returncode != 0 and lending.socket in said.stderr and "--train" in said.stderr, said.stderr
