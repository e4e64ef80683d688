"""A Carillon server as a child process: free ports, readiness, the log, a clean end."""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from .ports import HOST, claim, claim_any

PR_SET_PDEATHSIG = 1  # prctl(2)


class ServerFailed(RuntimeError):
    pass


class Server:
    """One `carillon serve` on loopback. Use as a context manager; leaving it stops the server.

    `served`: options that say which models, such as ["--models", DIR].
    """

    def __init__(self, program: Path, served: list[str], log: Path, options: list[str],
                 say: Callable[[str], None], ports: tuple[int, int, int, int] = (8000, 8001, 8002, 8003)):
        self.marks = []
        chosen = []
        for what, wanted in zip(("HTTP", "gRPC", "metrics", "administration"), ports):
            mark = claim(wanted)
            port, mark = (wanted, mark) if mark else claim_any()
            self.marks.append(mark)
            if port != wanted:
                say(f"port {wanted} ({what}) is in use; taking {port}")
            chosen.append(f"{HOST}:{port}")
        self.http, self.grpc, self.metrics, self.admin = chosen
        elsewhere = any(option.startswith("--admin-port") for option in options)
        self.log = log
        self.command = [str(program), "serve", *served, "--http", self.http,
                        "--grpc", self.grpc, "--metrics", self.metrics,
                        *([] if elsewhere else ["--admin-port", self.admin]), *options]
        if elsewhere:
            self.admin = ""
        self.process: subprocess.Popen | None = None

    def __enter__(self) -> Server:
        libc = ctypes.CDLL(None)

        def with_parent() -> None:
            # Ctrl-C is ours to pass on (the child has its own session); if we are killed, it ends too.
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGINT)

        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                start_new_session=True, preexec_fn=with_parent)
        return self

    def __exit__(self, *_) -> None:
        """What was not stopped in the good way: Ctrl-C, and after some seconds by force."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        for mark in self.marks:
            mark.close()

    def check(self) -> None:
        """Raises ServerFailed if the server has ended."""
        status = self.process.poll()
        if status is not None:
            raise ServerFailed(f"the server has ended ({describe(status)})")

    def answers(self, path: str) -> bool:
        """Whether GET `path` gives 200."""
        try:
            with urllib.request.urlopen(f"http://{self.http}{path}", timeout=5) as response:
                return response.status == 200
        except (urllib.error.URLError, OSError):
            return False

    def wait_ready(self, models: list[str], limit: float) -> float:
        """Waits until the server and each of `models` is ready; gives the seconds it took.

        Raises ServerFailed if it ends before, or is not ready after `limit` seconds.
        """
        start = time.monotonic()
        said = 0.0
        waiting = ["/v2/health/ready", *(f"/v2/models/{name}/ready" for name in models)]
        while True:
            self.check()
            waiting = [path for path in waiting if not self.answers(path)]
            passed = time.monotonic() - start
            if not waiting:
                progress("")
                return passed
            if passed > limit:
                raise ServerFailed(f"not ready after {limit:.0f} s: no 200 from {', '.join(waiting)}")
            if sys.stderr.isatty() or passed - said >= 5:
                said = passed
                progress(f"    waiting for the server and {len(models)} models, {len(waiting)} not ready yet: {passed:.0f} s")
            time.sleep(0.1)

    def stop(self, limit: float = 30) -> None:
        """SIGINT, and waits. Raises ServerFailed if it does not end in time, or not with status 0."""
        self.check()
        self.process.send_signal(signal.SIGINT)
        try:
            status = self.process.wait(limit)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise ServerFailed(f"the server did not end within {limit:.0f} s of Ctrl-C and was killed") from None
        if status != 0:
            raise ServerFailed(f"the server did not end cleanly on Ctrl-C ({describe(status)})")

    def log_tail(self, lines: int = 30) -> str:
        try:
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
        except OSError as error:
            return str(error)


def describe(status: int) -> str:
    return f"signal {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"


def progress(text: str) -> None:
    """One line that is rewritten on a terminal; elsewhere a line of its own, nothing if empty."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
    elif text:
        print(text, file=sys.stderr, flush=True)
