"""The quickstart's client part against a stand-in for the server: what it shows, and that it can fail."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent


@pytest.fixture
def story(tmp_path):
    """Starts `python -m carillon_quickstart` with the stand-in; gives the process."""
    program = tmp_path / "carillon"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{HERE}/fake_carillon.py" "$@"\n')
    program.chmod(0o755)
    started = []

    def start(*options: str, fault: str = "") -> subprocess.Popen:
        process = subprocess.Popen(
            [sys.executable, "-m", "carillon_quickstart", "--program", str(program),
             "--repository", str(tmp_path / "models"), "--log", str(tmp_path / "log"),
             "--models", "tiny_mlp,tiny_encoder", "--seconds", "1",
             # So long a deadline that a busy machine changes nothing.
             "--least-deadline", "10", *options],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "FAKE_FAULT": fault, "PYTHONPATH": str(HERE.parent)})
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def test_once_ends_by_itself_with_a_table(story):
    process = story("--once")
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    rows = {line.split()[0]: line.split() for line in output.splitlines() if line.startswith("tiny_")}
    for name in ("tiny_mlp", "tiny_encoder"):
        sent, on_time = int(rows[name][3]), int(rows[name][4])
        assert sent > 0 and 0.8 * sent <= on_time <= sent
    assert "curl -s http://127.0.0.1:" in output
    assert "it ended cleanly" in errors


def test_ports_in_use_are_told_and_others_taken(tmp_path):
    from carillon_quickstart.ports import claim_any
    from carillon_quickstart.server import Server

    said = []
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        free = [claim_any() for _ in range(3)]
        for _, mark in free:
            mark.close()
        server = Server(tmp_path / "carillon", [], tmp_path / "log", [], said.append, (port, *(other for other, _ in free)))
    assert server.http != f"127.0.0.1:{port}"
    assert f"port {port} (HTTP) is in use; taking {server.http.rpartition(':')[2]}" in said


def test_quickstarts_that_start_together_take_different_ports():
    from carillon_quickstart.ports import claim, claim_any

    # Each looks for a free port before the other's server has bound any.
    port, mark = claim_any()
    with mark:
        assert claim(port) is None
    with claim(port):
        pass


def test_no_outgoing_connection_takes_a_port_before_its_server(tmp_path):
    from carillon_quickstart import ports

    low, high = map(int, ports._RANGE.read_text().split())
    assert not any(low <= ports.free_port() <= high for _ in range(100)), "and 100 can be had"
    everything = tmp_path / "range"
    everything.write_text("1024\t65535\n")
    assert len(ports._candidates(everything)) > 50_000, "nothing is left: any will do"


@pytest.mark.parametrize("fault, words", [
    ("wrong", "differs from onnxruntime's by 0.01"),
    ("refuse", "requests were on time"),
    ("die", "the fake died as it was told"),
    ("stubborn", "did not end cleanly on Ctrl-C (exit status 3)"),
])
def test_a_server_that_fails_is_not_called_good(story, fault, words):
    process = story("--once", fault=fault)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 1
    assert words in errors


def test_refusals_are_counted_as_such(story):
    process = story("--once", fault="refuse")
    output, _ = process.communicate(timeout=120)
    row = next(line.split() for line in output.splitlines() if line.startswith("tiny_mlp"))
    sent, on_time, refused = int(row[3]), int(row[4]), int(row[5])
    assert on_time == 0 and refused == sent > 0


def test_interrupt_stops_the_server_cleanly(story):
    process = story()
    for line in process.stdout:
        if line.startswith("Serving until Ctrl-C"):
            break
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert "it ended cleanly" in errors


def test_interrupt_in_the_middle_leaves_no_server_behind(story, tmp_path):
    process = story("--seconds", "60")
    for line in process.stderr:
        if "requests a second" in line:
            break
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    for status in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            assert str(tmp_path) not in status.read_text() or int(status.parent.name) == process.pid
        except OSError:
            pass  # it ended while we looked


def test_not_ready_in_time_is_told(tmp_path):
    from carillon_quickstart.server import Server, ServerFailed

    program = tmp_path / "carillon"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    with Server(program, ["--models", str(tmp_path)], tmp_path / "log", [], lambda _: None) as server:
        with pytest.raises(ServerFailed, match="not ready after 0 s"):
            server.wait_ready(["m"], limit=0.3)
        process = server.process
    assert process.poll() is not None
