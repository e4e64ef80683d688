"""A process that has imported what trials import, and forks one where Ray starts one (python/carillon/tune/INSIDE.md).

    python _ready.py LISTENER PATHS MODULE...     LISTENER: a descriptor; it ends with its standard input

It imports, and does nothing else: a fork has one thread, so of a process with others it would be broken. It forks
nothing where an import started a thread, or where Ray's core has drawn a random number: forks would draw the same.
"""

from __future__ import annotations

import fcntl
import gc
import importlib
import os
import runpy
import selectors
import signal
import socket
import struct
import sys
import time
from dataclasses import dataclass

_FIRST = ("numpy", "pandas", "pyarrow.fs", "torch")
_THEN = ("ray", "ray._private.workers.default_worker", "ray.tune", "ray.tune.trainable.function_trainable")
# What libraries read while they are imported. Ray sets the number of threads in a worker, after its start.
_READ_EARLY = ("LD_", "PYTHON", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "RAY_")
_NOT_READ = {"PYTHONBREAKPOINT"}  # but when it is needed; Ray sets it in a process that has connected
_HARMLESS = {"jemalloc_bg_thd"}  # of pyarrow's: it ends in a fork, and is missed there by nobody
_HEAD = struct.Struct("!IQ")     # of what `_enter` says: how many bytes follow, and a bit for each blocked signal
_END = 10.0                      # seconds that forks have once the driver is gone


@dataclass
class _Forked(BaseException):
    """Raised in a fork: it becomes the worker with a stack of its own."""

    folder: str
    arguments: list[str]
    environment: dict[str, str]
    fds: list[int]
    blocked: set[int]  # signals


def _early(environment: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items()
            if name.startswith(_READ_EARLY) and name not in _NOT_READ}


def _threads() -> list[str]:
    names = []
    for task in os.listdir("/proc/self/task"):
        if int(task) != os.getpid():
            with open(f"/proc/self/task/{task}/comm") as file:
                names.append(file.read().strip())
    return [name for name in names if name not in _HARMLESS]


def _receive(peer: socket.socket, fds: list[int]) -> tuple[list[str], set[int]]:
    """What `_enter` says, and the signals that are blocked there. `fds` has its standard files, whatever comes of it."""
    head, files, _, _ = socket.recv_fds(peer, _HEAD.size, 3)
    fds += files
    wanted, blocked = _HEAD.unpack(head)
    if len(fds) != 3:
        raise OSError("it has no standard files")
    told = b""
    while len(told) < wanted:
        more = peer.recv(wanted - len(told))
        if not more:
            raise OSError("it ended")
        told += more
    return told.decode(errors="surrogateescape").split("\0"), {n + 1 for n in range(64) if blocked >> n & 1}


def _descriptors() -> set[int]:
    return {int(name) for name in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{name}")}


def _pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except OSError:  # a container may forbid it
        return None


def _draws_differ() -> bool:
    """Whether forks get unlike random numbers from Ray's core, by which it names things."""
    drawn = []
    for _ in range(2):
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.write(write, sys.modules["ray._raylet"].ObjectID.from_random().binary())
            finally:
                os._exit(0)
        os.close(write)
        drawn.append(os.read(read, 64))
        os.close(read)
        os.waitpid(pid, 0)
    return bool(drawn[0]) and drawn[0] != drawn[1]


class _Ready:
    def __init__(self, listener: int, paths: list[str], modules: list[str]) -> None:
        self._paths, self._modules = paths, modules
        self._listener = socket.socket(fileno=listener)
        self._started = _early(dict(os.environ))
        self._environment: dict[str, str] | None = None  # of trials; None: nobody came yet
        self._refuses = ""
        self._children: dict[int, socket.socket] = {}
        self._ended, self._wake = socket.socketpair()
        self._wake.setblocking(False)
        self._driver = _pidfd(os.getppid())
        self._of_modules: set[int] = set()  # descriptors that forks keep
        self._heed_signals()
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # as Ray sets it in a trial's process
        self._import(_FIRST)

    def serve(self) -> None:
        self._selector = selectors.DefaultSelector()
        # The driver's end is that of standard input, too: unless a process that it forked has the other end.
        for file in (self._listener, self._ended, self._driver, 0):
            if file is not None:
                self._selector.register(file, selectors.EVENT_READ)
        until = None
        while until is None or (self._children and time.monotonic() < until):
            for key, _ in self._selector.select(None if until is None else 0.1):
                if key.fileobj in (0, self._driver):
                    self._selector.unregister(key.fileobj)
                    until = until or time.monotonic() + _END
                elif key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj is self._ended:
                    self._ended.recv(4096)
                    self._reap()
                else:
                    self._end(key.fileobj)
        for pid in self._children:
            os.kill(pid, signal.SIGKILL)

    def _heed_signals(self) -> None:
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver's to heed
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)

    def _import(self, modules: tuple[str, ...] | list[str]) -> None:
        before = _descriptors()
        for module in modules:
            try:
                importlib.import_module(module)
            except (Exception, SystemExit) as error:  # of somebody else's module anything may come
                if module not in _FIRST:
                    print(f"carillon: {module} is not imported before trials start: {error}", file=sys.stderr)
            if not self._refuses and (threads := _threads()):
                self._refuse(f"{module} starts threads as it is imported ({', '.join(threads)})")
        self._of_modules |= _descriptors() - before
        self._heed_signals()  # a module may have set handlers of its own
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()  # else each fork says again what a module said
        gc.collect()
        gc.freeze()  # else the first collection in a fork copies every page

    def _meet(self, environment: dict[str, str]) -> None:
        """Ray's core reads its variables as it is loaded, and the number of the job is one of them."""
        self._environment = _early(environment)
        os.environ.update(self._environment)
        import ray.actor

        ids = ray.actor.ActorClassID

        class Ids:  # a class that is decorated as it is imported draws one from Ray's core
            @staticmethod
            def from_random() -> object:
                return ids(os.urandom(ids.size()))

        ray.actor.ActorClassID = Ids  # type: ignore[misc]
        kept = list(sys.path)
        sys.path[1:1] = self._paths
        self._import([*_THEN, *self._modules])
        sys.path[:] = kept
        ray.actor.ActorClassID = ids  # type: ignore[misc]
        if not self._refuses and not _draws_differ():
            self._refuse("Ray draws random numbers as it is imported")

    def _refuse(self, why: str) -> None:
        self._refuses = why
        print(f"carillon: {why}: trials start as Ray starts them", file=sys.stderr)

    def _accept(self) -> None:
        peer, _ = self._listener.accept()
        peer.settimeout(10)
        fds: list[int] = []
        try:
            words, blocked = _receive(peer, fds)
            blank = words.index("", 1)
            environment = dict(word.split("=", 1) for word in words[blank + 1:])
            if self._environment is None and self._unlike(environment) <= {"RAY_"}:
                self._meet(environment)
            if self._refuses or _early(environment) != self._environment:
                raise OSError("not this one")
            pid = os.fork()
            if pid == 0:
                self._be_forked(peer, fds)
                raise _Forked(words[0], words[1:blank], environment, fds, blocked)
            self._children[pid] = peer
            self._selector.register(peer, selectors.EVENT_READ)
        except (OSError, ValueError, ImportError, struct.error):
            peer.close()
        else:
            try:
                peer.sendall(b"y")
            except OSError:
                pass  # Ray has killed it: its end is read next
        for fd in fds:
            os.close(fd)

    def _be_forked(self, peer: socket.socket, fds: list[int]) -> None:
        """Nothing of this process's own, or of other trials', stays open in a fork."""
        os.setpgid(0, 0)  # as Ray starts workers: it ends them with their groups
        signal.set_wakeup_fd(-1)
        self._selector.close()
        for own in (self._listener, self._ended, self._wake, *self._children.values(), peer):
            own.close()
        for fd in _descriptors() - {0, 1, 2, *fds} - self._of_modules:
            try:
                os.close(fd)
            except OSError:
                pass  # that of the listing

    def _unlike(self, environment: dict[str, str]) -> set[str]:
        """Beginnings of the names of variables in which it is not as this process was started."""
        unlike = _early(environment).items() ^ self._started.items()
        return {next(begin for begin in _READ_EARLY if name.startswith(begin)) for name, _ in unlike}

    def _reap(self) -> None:
        """Forks that have ended. What a module started is its own to wait for."""
        for pid, peer in list(self._children.items()):
            try:
                ended, status = os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:  # a module waits for any process
                ended, status = pid, None
            if ended != pid:
                continue
            del self._children[pid]
            if peer.fileno() < 0:
                continue
            self._selector.unregister(peer)
            try:
                if status is not None:
                    peer.sendall(struct.pack("!I", status))
            except OSError:
                pass  # it was killed
            peer.close()

    def _end(self, peer: object) -> None:
        """What Ray had started is gone; the fork was its process."""
        for pid, of in self._children.items():
            if of is peer:
                self._selector.unregister(of)
                of.close()
                os.kill(pid, signal.SIGKILL)


def _become(forked: _Forked) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # as in a Python that starts
    signal.pthread_sigmask(signal.SIG_SETMASK, forked.blocked)
    # Above the three first, where the process that is ready had none of these itself.
    files = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3) for fd in forked.fds]
    for fd in forked.fds:
        os.close(fd)
    for target, fd in enumerate(files):
        os.dup2(fd, target)
        os.close(fd)
    os.chdir(forked.folder)
    os.environ.clear()
    os.environ.update(forked.environment)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()  # Python's own generator does so by itself
    sys.argv = forked.arguments
    sys.path[0] = os.path.dirname(forked.arguments[0])
    runpy.run_path(forked.arguments[0], run_name="__main__")


def main() -> None:
    listener, paths, *modules = sys.argv[1:]
    sys.path[0] = ""  # this file's folder is nobody's to import from
    try:
        _Ready(int(listener), paths.split(os.pathsep), modules).serve()
    except _Forked as forked:
        found = forked
    else:
        return
    _become(found)


if __name__ == "__main__":
    main()
