"""A real server on loopback for the tests of this folder.

The program is $CARILLON_PROGRAM, else build/release/carillon. The sample models are made anew for each run.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import pytest

from loopback import free_addresses, is_ready

ROOT = Path(__file__).resolve().parent.parent


@dataclass
class RunningServer:
    http: str
    grpc: str
    metrics: str
    program: Path
    models: Path
    process: subprocess.Popen

    def scrape(self) -> str:
        with urllib.request.urlopen(f"http://{self.metrics}/metrics", timeout=10) as response:
            return response.read().decode()


@pytest.fixture(scope="session")
def program() -> Path:
    found = Path(os.environ.get("CARILLON_PROGRAM", ROOT / "build" / "release" / "carillon"))
    if not found.is_file():
        pytest.fail(f"no program at {found}: build it, or name it in CARILLON_PROGRAM", pytrace=False)
    return found


def make_samples(folder: Path, models: str) -> Path:
    subprocess.run([sys.executable, "-m", "carillon_samples", "--models", models, "--out", str(folder)],
                   check=True, env={**os.environ, "PYTHONPATH": str(ROOT / "python")}, timeout=300)
    return folder


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory) -> Path:
    return make_samples(tmp_path_factory.mktemp("models"), "tiny")


@contextlib.contextmanager
def serving(program: Path, models: Path, log_path: Path, *options: str):
    """A server that is ready; it must still be there at the end, and stop when told to."""
    http, grpc, metrics = free_addresses(3)
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [str(program), "serve", "--models", str(models), "--http", http, "--grpc", grpc,
             "--metrics", metrics, "--page-cache", "256 MiB", *options],
            stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
    try:
        limit = time.monotonic() + 300
        while not is_ready(http):
            status = process.poll()
            if status is not None or time.monotonic() > limit:
                pytest.fail(f"the server {'is not ready' if status is None else f'ended with {status}'}:\n"
                            + log_path.read_text(errors="replace")[-4000:], pytrace=False)
            time.sleep(0.1)
        yield RunningServer(http, grpc, metrics, program, models, process)
        assert process.poll() is None, "the server ended:\n" + log_path.read_text(errors="replace")[-4000:]
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0, log_path.read_text(errors="replace")[-4000:]
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


@pytest.fixture(scope="session")
def server(program, tiny_models, tmp_path_factory):
    with serving(program, tiny_models, tmp_path_factory.mktemp("log") / "server.log") as running:
        yield running
