"""Servers on loopback for the tests: free addresses, sample models, and `carillon serve` as a child."""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import signal
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "python"))

from carillon_quickstart.ports import HOST, free_port  # noqa: E402


def free_addresses(count: int) -> list[str]:
    return [f"{HOST}:{free_port()}" for _ in range(count)]


def sanitized(program: Path) -> bool:
    """Whether a sanitizer is built in, which takes memory for itself."""
    return any(name in program.read_bytes() for name in (b"__asan_init", b"__tsan_init"))


def is_ready(address: str, tls: ssl.SSLContext | None = None) -> bool:
    scheme = "https" if tls else "http"
    try:
        with urllib.request.urlopen(f"{scheme}://{address}/v2/health/ready", timeout=5, context=tls) as response:
            return response.status == 200
    except (urllib.error.URLError, OSError):
        return False


def answer_to(url: str, body: bytes) -> tuple[int, str]:
    """The status of a POST, and what is said where it is no success."""
    try:
        return urllib.request.urlopen(urllib.request.Request(url, body), timeout=60).status, ""
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@dataclass
class RunningServer:
    http: str
    grpc: str
    metrics: str
    program: Path
    models: Path
    process: subprocess.Popen
    scheduler: str = "clockwork"

    def scrape(self) -> str:
        with urllib.request.urlopen(f"http://{self.metrics}/metrics", timeout=10) as response:
            return response.read().decode()


def make_samples(folder: Path, models: str) -> Path:
    subprocess.run([sys.executable, "-m", "carillon_samples", "--models", models, "--out", str(folder)],
                   check=True, env={**os.environ, "PYTHONPATH": str(ROOT / "python")}, timeout=300)
    return folder


def policies_of(program: Path) -> list[str]:
    """Every policy, by a name that --scheduler takes."""
    said = subprocess.run([str(program), "serve", "--help"], check=True, capture_output=True, text=True, timeout=60).stdout
    names = re.search(r"Policy: (.*)", said).group(1).split(", ")
    assert len(names) > 1
    return names


def write_profile(file: Path, models: tuple[str, ...], overhead_ms: int) -> Path:
    """For emulated devices: a batch takes so long, and two milliseconds for each request."""
    batches = [{"batch": b, "p50_ms": overhead_ms + 2 * b, "p99_ms": overhead_ms + 2 * b} for b in (1, 2, 4, 8, 16)]
    file.write_text(json.dumps({"device": "a test's", "models": [
        {"name": name, "weights_bytes": 20_000_000, "load_ms": {"p50": 5, "p99": 5}, "batches": batches}
        for name in models]}))
    return file


@contextlib.contextmanager
def serving(program: Path, models: Path, log_path: Path, *options: str, page_cache: str | None = "256 MiB",
            tls: ssl.SSLContext | None = None, environment: dict[str, str] | None = None):
    """A server that is ready; it must still be there at the end, and stop when told to. `tls`: a client's, where it
    speaks TLS. `page_cache`: None is the server's own choice. `environment`: what it has beside the test's."""
    http, grpc, metrics = free_addresses(3)
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [str(program), "serve", "--models", str(models), "--http", http, "--grpc", grpc,
             "--metrics", metrics, *(() if page_cache is None else ("--page-cache", page_cache)),
             *(() if "--log-level" in options else ("--log-level", "debug")), *options],
            stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {})})
    try:
        limit = time.monotonic() + 300
        while not is_ready(http, tls):
            status = process.poll()
            if status is not None or time.monotonic() > limit:
                pytest.fail(f"the server {'is not ready' if status is None else f'ended with {status}'}:\n"
                            + log_path.read_text(errors="replace")[-4000:], pytrace=False)
            time.sleep(0.02)
        yield RunningServer(http, grpc, metrics, program, models, process)
        assert process.poll() is None, "the server ended:\n" + log_path.read_text(errors="replace")[-4000:]
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0, log_path.read_text(errors="replace")[-4000:]
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def rss_of(pid: int) -> int:
    """Bytes that the process has resident."""
    return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize()


def write_model(folder, name: str, nodes, inputs, output, weights=(), opset: int = 17) -> None:
    """One model of a graph, in a repository."""
    import onnx  # not every test needs it
    from onnx import helper
    graph = helper.make_graph(nodes, name, inputs, [output], list(weights))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    model.ir_version = 8
    version = folder / name / "1"
    version.mkdir(parents=True)
    onnx.save(model, version / "model.onnx")
