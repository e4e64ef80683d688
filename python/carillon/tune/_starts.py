"""In Ray's driver: the process that is ready to become trials' processes (`_ready`), one for all studies."""

from __future__ import annotations

import atexit
import os
import shlex
import socket
import subprocess
import sys
from collections.abc import Sequence

from .. import _threads
from ._folders import Folder

_HERE = os.path.dirname(os.path.abspath(__file__))
# Of a job's runtime_env: with any other, Ray itself puts another Python in place, or another file system.
_ALIKE = {"env_vars", "working_dir", "py_modules", "excludes", "config", "worker_process_setup_hook"}

_started: dict[tuple[str, ...], Starts] = {}


class Starts:
    """Has started the process; `close` ends it, and the driver's end does."""

    def __init__(self, modules: Sequence[str]) -> None:
        self._folder = Folder("ready", "ready.sock")
        self.path = str(self._folder.path / "ready.sock")
        paths = os.pathsep.join(os.path.abspath(path or ".") for path in sys.path)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(self.path)
            listener.listen(128)  # who comes before all is imported waits
            command = [sys.executable, os.path.join(_HERE, "_ready.py"), str(listener.fileno()), paths, *modules]
            # In a session of its own: Ctrl-C is the driver's to heed, from the first moment on.
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[listener.fileno()],
                                            env=os.environ | _threads.quiet(), start_new_session=True)

    def py_executable(self) -> str:
        """For a runtime_env. Ray puts it into a shell's command."""
        return shlex.join([sys.executable, "-IS", os.path.join(_HERE, "_enter.py"), self.path, sys.executable])

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self._folder.remove()


def start(modules: Sequence[str]) -> Starts:
    key = tuple(modules)
    if key not in _started or _started[key].process.poll() is not None:
        _started[key] = Starts(key)
        atexit.register(_started[key].close)
    return _started[key]


def runtime_env(starts: Starts | None) -> dict[str, str]:
    """What a trial's runtime_env has besides. Nothing where Ray has more hosts, whose files are others, or starts
    the job's processes in a way of its own."""
    import ray

    if starts is None or starts.process.poll() is not None:
        return {}
    hosts = sum(bool(node["Alive"]) for node in ray.nodes())
    job = {name for name, value in ray.get_runtime_context().runtime_env.items() if value}
    return {"py_executable": starts.py_executable()} if hosts == 1 and job <= _ALIKE else {}
