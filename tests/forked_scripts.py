"""Python scripts in processes forked from one that has imported torch: most of a short script's time goes on that.

A script finds all as if python itself had started it, but that torch is imported: its arguments, its environment, its
folder first in sys.path, __main__, streams of its own. What LD_PRELOAD and sitecustomize do at a program's start was done
for the process that it is forked from.

    forked_scripts.py SOCKET MODULE ...

is that process, which imports the modules.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path


class Script:
    """A running script: what the tests need of subprocess.Popen."""

    def __init__(self, connection: socket.socket, stdout: int, stderr, args: list[str]):
        self.args, self.returncode = args, None
        self.stdout = os.fdopen(stdout)
        self._stderr, self._connection = stderr, connection
        self.pid = self._told()

    def _told(self) -> int:
        return int(self._connection.recv(10, socket.MSG_WAITALL))

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float = 300) -> int:
        if self.returncode is None:
            if not select.select([self._connection], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout)
            self.returncode = self._told()
        return self.returncode

    def communicate(self, timeout: float = 300) -> tuple[str, str]:
        too_long = threading.Timer(timeout, self.kill)
        too_long.start()
        try:
            out = self.stdout.read()
            self.wait(timeout)
        finally:
            too_long.cancel()
        self._stderr.seek(0)
        return out, self._stderr.read()

    def completed(self) -> subprocess.CompletedProcess:
        out, err = self.communicate()
        return subprocess.CompletedProcess(self.args, self.returncode, out, err)


TORCH = ("torch", "torch._dynamo")  # optimizers import its compiler


class ScriptServer:
    """Forks scripts from one process, which has imported `modules` in `environment`. A script has an environment of its
    own, in which LD_PRELOAD and what sitecustomize looks at must be the same."""

    def __init__(self, environment: dict[str, str], modules: tuple[str, ...] = TORCH):
        self._folder = tempfile.TemporaryDirectory()
        self._path = str(Path(self._folder.name) / "s")
        self._log = open(Path(self._folder.name) / "log", "w+")
        # In a session of its own: close() ends all processes of that session.
        self._process = subprocess.Popen([sys.executable, __file__, self._path, *modules], env=environment, stdin=subprocess.DEVNULL,
                                         stdout=subprocess.PIPE, stderr=self._log, text=True, start_new_session=True)
        if self._process.stdout.readline() != "ready\n":
            self._log.seek(0)
            raise RuntimeError(f"the server of scripts has ended: {self._log.read()[-3000:]}")

    def start(self, script, *arguments, environment: dict[str, str]) -> Script:
        args = [str(script), *map(str, arguments)]
        out, into = os.pipe()
        stderr = tempfile.TemporaryFile("w+", errors="replace")
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(self._path)
        asked = json.dumps({"args": args, "environment": environment, "folder": os.getcwd()}).encode()
        socket.send_fds(connection, [b"%10d" % len(asked)], [into, stderr.fileno()])
        connection.sendall(asked)
        os.close(into)
        return Script(connection, out, stderr, args)

    def run(self, script, *arguments, environment: dict[str, str]) -> subprocess.CompletedProcess:
        return self.start(script, *arguments, environment=environment).completed()

    def close(self) -> None:
        """Ends the scripts that still run, too: those of a test that has failed."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(60)
        self._process.stdout.close()
        self._log.close()
        self._folder.cleanup()


class RunServer(ScriptServer):
    """The same of `python -m carillon run`: the library is preloaded, and the hooks on torch are installed already."""

    def __init__(self, environment: dict[str, str], *options: str, modules: tuple[str, ...] = TORCH):
        self._base = environment
        super().__init__(self._of_run("none", [*options, __file__], {})[1], modules)

    def _of_run(self, broker, arguments, more) -> tuple[list[str], dict[str, str]]:
        """What `run` would run but for the Python, and the environment that it would give it."""
        from carillon import __main__ as program
        from carillon import _shim
        options = program.parser().parse_args(["run", "--socket", str(broker), *map(str, arguments)])
        return program.command_of(options)[1:], program.environment(options, _shim.library(), self._base | more)

    def start_job(self, broker, *arguments, **more: str) -> Script:
        """`broker`: its socket. `arguments`: what follows `run`. `more`: of the environment."""
        command, environment = self._of_run(broker, arguments, more)
        return self.start(*command, environment=environment)

    def run_job(self, broker, *arguments, **more: str) -> subprocess.CompletedProcess:
        return self.start_job(broker, *arguments, **more).completed()


def _serve(path: str, *modules: str) -> str:
    """Comes back in the processes that are forked for a script, made ready for it: the script."""
    for name in modules:
        importlib.import_module(name)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(16)
    gc.freeze()
    print("ready", flush=True)
    waiting = 0  # processes that wait for a script
    while True:
        connection = listener.accept()[0]
        while waiting and os.waitpid(-1, os.WNOHANG)[0]:
            waiting -= 1
        if os.fork() == 0:
            break
        waiting += 1
        connection.close()
    listener.close()
    length, fds, _, _ = socket.recv_fds(connection, 10, 2)
    asked = json.loads(connection.recv(int(length), socket.MSG_WAITALL))
    if script := os.fork():
        for fd in fds:
            os.close(fd)
        with contextlib.suppress(OSError):  # a test that has failed does not listen
            connection.sendall(b"%10d" % script)
            connection.sendall(b"%10d" % os.waitstatus_to_exitcode(os.waitpid(script, 0)[1]))
        os._exit(0)
    connection.close()
    for number, fd in enumerate(fds, 1):
        os.dup2(fd, number)
        os.close(fd)
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    sys.argv[:] = asked["args"]
    sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
    return sys.argv[0]


if __name__ == "__main__":
    runpy.run_path(_serve(*sys.argv[1:]), run_name="__main__")
