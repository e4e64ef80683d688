"""What ends, hangs or breaks the second engine's process is that model's trouble, and nobody else's."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as http_client
from tritonclient.utils import InferenceServerException

from loopback import is_ready, serving
from raw_http import MINUTE

EVIL = 13.0  # what a faulty model's faults are told by, in the first element


@pytest.fixture(scope="module")
def faulty_program(program, tmp_path_factory) -> Path:
    """The program beside a module that does what a model's file says, in OpenVINO's place."""
    build = program.parent
    module = build / "testing" / "libcarillon_faulty_module.so"
    if not module.exists():
        pytest.skip("built without OpenVINO")
    folder = tmp_path_factory.mktemp("program")
    shutil.copy(program, folder / "carillon")
    shutil.copy(build / "carillon-openvino", folder)
    shutil.copy(module, folder / "libcarillon_openvino.so")
    return folder / "carillon"


def write_model(folder: Path, name: str, faults: str) -> None:
    version = folder / name / "1"
    version.mkdir(parents=True)
    (version / "model.xml").write_text(faults)
    (version / "model.bin").write_bytes(b"")


def children(process) -> set[int]:
    found: set[int] = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            if int(stat.read_text().rsplit(")", 1)[1].split()[1]) == process.pid:
                found.add(int(stat.parent.name))
        except OSError:
            continue  # it has gone meanwhile
    return found


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def ask(client, model, first=1.0, rows=1):
    x = np.full((rows, 4), 3, np.float32)
    x[0, 0] = first
    tensor = http_client.InferInput("x", x.shape, "FP32")
    tensor.set_data_from_numpy(x)
    np.testing.assert_array_equal(client.infer(model, [tensor], timeout=MINUTE).as_numpy("y"), 2 * x)


def reasons(client):
    return {entry["name"]: (entry.get("state"), entry.get("reason", "")) for entry in client.get_model_repository_index()}


def until(condition) -> None:
    limit = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.02)


@pytest.fixture(scope="module")
def server(faulty_program, tmp_path_factory):
    models = tmp_path_factory.mktemp("models")
    write_model(models, "fine", "")
    for fault in ("crash", "abort", "exit", "nonsense"):
        write_model(models, f"run_{fault}", f"run {int(EVIL)} {fault}\n")
        for call in ("read", "shapes", "compile", "request"):
            write_model(models, f"{call}_{fault}", f"{call} {fault}\n")
    write_model(models, "run_hang", f"run {int(EVIL)} hang\n")
    write_model(models, "open_hang", f"run {int(EVIL)} hang\nports open\n")
    write_model(models, "measured_crash", "run 0 crash\n")
    write_model(models, "doomed", f"run {int(EVIL)} abort\n")
    log = tmp_path_factory.mktemp("log") / "server.log"
    with serving(faulty_program, models, log, "--strict-readiness", "false") as running:
        running.log = log
        yield running


@pytest.fixture
def client(server):
    with http_client.InferenceServerClient(server.http, network_timeout=120, connection_timeout=120,
                                           concurrency=8) as connected:
        yield connected


SAID = {"crash": "SIGSEGV", "abort": "SIGABRT", "exit": "status 7", "nonsense": "no answer"}


def test_what_ends_it_at_load_is_why_the_model_is_not_ready(client):
    index = reasons(client)
    for fault, said in SAID.items():
        for call in ("read", "shapes", "compile", "request"):
            state, reason = index[f"{call}_{fault}"]
            assert state == "UNAVAILABLE" and said in reason, (call, fault, reason)
    state, reason = index["measured_crash"]
    assert state == "UNAVAILABLE" and "SIGSEGV" in reason
    ask(client, "fine")


@pytest.mark.parametrize("fault", SAID)
def test_what_ends_it_in_a_run_is_that_runs_error(server, client, fault):
    model = f"run_{fault}"
    ask(client, model)
    with pytest.raises(InferenceServerException) as failed:
        ask(client, model, EVIL)
    assert SAID[fault] in str(failed.value) and "500" in str(failed.value.status())
    ask(client, "fine")
    until(lambda: client.is_model_ready(model))
    ask(client, model, rows=3)
    assert lost_devices(server) == 0
    told = [line for line in server.log.read_text().splitlines() if f"/{model}/1/model.xml'" in line]
    assert any("is gone: " in line and SAID[fault] in line and "it is started again in 1000 ms" in line for line in told)
    assert any("it runs again" in line for line in told)


def test_one_that_ends_too_often_is_out(client):
    for _ in range(4):
        until(lambda: client.is_model_ready("doomed"))
        with pytest.raises(InferenceServerException):
            ask(client, "doomed", EVIL)
    until(lambda: "not started again" in reasons(client)["doomed"][1])
    state, reason = reasons(client)["doomed"]
    assert state == "UNAVAILABLE" and "SIGABRT" in reason
    with pytest.raises(InferenceServerException) as refused:
        ask(client, "doomed")
    assert "not started again" in str(refused.value)
    ask(client, "fine")


def test_kills_from_outside_leave_every_request_with_one_answer(server, client):
    over = threading.Event()
    outcomes: list[str] = []

    def load() -> None:
        with http_client.InferenceServerClient(server.http, network_timeout=120, connection_timeout=120) as mine:
            while not over.is_set():
                try:
                    ask(mine, "fine")
                    outcomes.append("fine")
                except InferenceServerException as error:
                    outcomes.append(str(error.status()))

    threads = [threading.Thread(target=load) for _ in range(4)]
    for thread in threads:
        thread.start()
    until(lambda: outcomes.count("fine") > 20)
    for pid in children(server.process):
        os.kill(pid, signal.SIGKILL)
    until(lambda: any(outcome != "fine" for outcome in outcomes))
    until(lambda: client.is_model_ready("fine"))
    then = outcomes.count("fine")
    until(lambda: outcomes.count("fine") > then + 20)
    over.set()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    assert set(outcomes) <= {"fine", "500", "503"}


def lost_devices(server) -> float:
    return sum(float(line.rsplit(" ", 1)[1]) for line in server.scrape().splitlines()
               if line.startswith("carillon_device_lost_total{"))


def test_a_run_that_hangs_is_that_models_trouble(server, client):
    """It is given up before the device counts as one that hangs."""
    ask(client, "run_hang")
    before = lost_devices(server)
    with pytest.raises(InferenceServerException) as failed:
        ask(client, "run_hang", EVIL)
    assert "did not come back from a run within 750 ms" in str(failed.value)
    ask(client, "fine")
    until(lambda: client.is_model_ready("run_hang"))
    ask(client, "run_hang")
    assert lost_devices(server) == before


def test_a_device_that_hangs_is_back_without_what_hangs(server, client):
    """A size that has not run has longer than the device: what runs it ends with the device."""
    def ask_open(length: int, first: float) -> None:
        x = np.full((1, length), 3, np.float32)
        x[0, 0] = first
        tensor = http_client.InferInput("x", x.shape, "FP32")
        tensor.set_data_from_numpy(x)
        np.testing.assert_array_equal(client.infer("open_hang", [tensor], timeout=MINUTE).as_numpy("y"), 2 * x)

    ask_open(7, 1.0)
    with pytest.raises(InferenceServerException):
        ask_open(9, EVIL)
    until(lambda: "its run was given up, as the device was" in server.log.read_text())

    def answers() -> bool:
        try:
            ask_open(7, 1.0)
            ask(client, "fine")
            return True
        except InferenceServerException:
            return False

    until(answers)


def test_a_model_that_could_not_be_measured_has_no_process(server):
    """By now it would have been started again."""
    assert "/measured_crash/1/model.xml': it runs again" not in server.log.read_text()


def test_no_process_is_left_of_a_server_that_was_killed(faulty_program, tmp_path):
    models = tmp_path / "models"
    write_model(models, "fine", "")
    write_model(models, "loops", f"run {int(EVIL)} loop\n")
    with pytest.raises(AssertionError, match="the server ended"):
        with serving(faulty_program, models, tmp_path / "log") as running:
            left = children(running.process)
            assert len(left) == 2
            with http_client.InferenceServerClient(running.http) as client:
                x = http_client.InferInput("x", (1, 4), "FP32")
                x.set_data_from_numpy(np.full((1, 4), EVIL, np.float32))
                client.async_infer("loops", [x], timeout=MINUTE)
                running.process.kill()
                running.process.wait()
                until(lambda: not any(alive(pid) for pid in left))


def test_a_stop_does_not_wait_for_what_is_being_compiled(faulty_program, tmp_path):
    models = tmp_path / "models"
    write_model(models, "fine", "")
    write_model(models, "hangs", "compile hang\n")
    with serving(faulty_program, models, tmp_path / "log", "--model-control-mode", "explicit",
                 "--load-model", "fine") as running:
        def load() -> None:
            with http_client.InferenceServerClient(running.http, network_timeout=120) as client:
                with pytest.raises(Exception):
                    client.load_model("hangs")

        loading = threading.Thread(target=load)
        loading.start()
        until(lambda: (models / "hangs" / "1" / "model.xml.reached").exists())
        assert is_ready(running.http)
    # `serving` has ended it, and waits for half a minute at most.
    loading.join(60)
    assert not loading.is_alive()
