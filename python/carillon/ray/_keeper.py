"""The detached actors. Each keeps one process of the cluster, on the node where Ray has put it."""

from __future__ import annotations

import concurrent.futures
import contextlib
import http.client
import os
import shutil
import socket
import subprocess
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

from .. import _launch
from ._plan import PATIENCE, Spec, missing_model
from ._wanted import devices_wanted, largest, workers_wanted
from ._watch import NotHere, Watcher

ANY = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}  # and where the host itself reaches it
ASKED_S = 10.0  # what `carillon cluster status` may take; it waits some 2 s for an etcd
ANSWERS_S = 5.0  # the longest that an answer over HTTP may take
MOST_BYTES, READ_BYTES = 8 << 20, 1 << 16  # of a whole answer, and of one read
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # without a proxy


def find_program(named: str | None) -> str:
    """On this node. NotHere: it has none."""
    if named:
        if found := shutil.which(named):
            return os.path.abspath(found)
        raise NotHere(f"there is no program {named}")
    if found := os.environ.get("CARILLON_PROGRAM"):
        return found
    if _launch.PROGRAM.is_file():
        return str(_launch.PROGRAM)
    if found := shutil.which("carillon"):
        return os.path.abspath(found)
    raise NotHere("there is no program carillon: install the wheel or the Debian package on every node, or name it by "
                  "program=")


def address() -> str:
    import ray.util
    return ray.util.get_node_ip_address()


def free_port(host: str) -> int:
    """For TCP and UDP."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    while True:
        with socket.socket(family, socket.SOCK_STREAM) as tcp, socket.socket(family, socket.SOCK_DGRAM) as udp:
            tcp.bind((host, 0))
            port = tcp.getsockname()[1]
            with contextlib.suppress(OSError):
                udp.bind((host, port))
                return port


def joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def log_folder() -> Path:
    """Ray's own, where `ray logs` and the dashboard show it."""
    try:
        from ray._private.worker import _global_node
        return Path(_global_node.get_logs_dir_path())
    except (ImportError, AttributeError):
        return Path(tempfile.mkdtemp(prefix="carillon-ray-"))


def run(command: list[str], seconds: float) -> tuple[int, str, str]:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        return 1, "", f"no answer within {seconds:g} s"
    except OSError as error:
        return 1, "", f"{command[0]} cannot be run: {error.strerror}"
    return done.returncode, done.stdout, done.stderr.strip()


def ask(program: str | None, cluster: str) -> tuple[int, str, str]:
    """Status, output and errors of `carillon cluster status`, from a node of Ray's."""
    try:
        return run([find_program(program), "cluster", "status", "--cluster", cluster, "--json"], ASKED_S)
    except NotHere as error:
        return 1, "", f"on the node {address()}: {error}"


class Keeper:
    def __init__(self, spec: Spec):
        self._spec = spec
        self._host = address()
        self._ports: dict[str, int] = {}  # of doors that may have any port
        if _launch.PROGRAM.is_file():
            _launch.show_packages()
        self._watcher = Watcher(self._command, log_folder() / f"carillon-{spec.id}-{os.getpid()}.log")

    def _command(self) -> list[str]:
        try:
            program = find_program(self._spec.program)
            if lacks := missing_model(self._spec.models):
                raise NotHere(lacks)
        except NotHere as error:
            raise NotHere(f"on the node {self._host}: {error}") from None
        return self._spec.command(program, joined(self._host, free_port(self._host)), self._door("http"), self._door("grpc"))

    def _door(self, name: str) -> str:
        host, colon, port = getattr(self._spec, name).rpartition(":")
        if colon and port == "0":
            if name not in self._ports:
                self._ports[name] = free_port(host.strip("[]"))
            port = str(self._ports[name])
        return host + colon + port

    def status(self) -> dict:
        host, colon, port = self._door("http").rpartition(":")
        return {**self._watcher.status(), "id": self._spec.id, "node": self._host, "actor_pid": os.getpid(),
                "http": joined(self._host, int(port)) if host in ANY else host + colon + port}

    def ask(self) -> tuple[int, str, str]:
        return ask(self._spec.program, self._spec.cluster)

    def spec(self) -> Spec:
        return self._spec

    def ready(self) -> bool:
        """Of a frontend without TLS."""
        host, _, port = self._door("http").rpartition(":")
        try:
            with DIRECT.open(f"http://{ANY.get(host, host)}:{port}/v2/health/ready", timeout=ANSWERS_S) as response:
                return response.status == 200
        except (OSError, http.client.HTTPException):
            return False

    def drain(self, id: str) -> str:
        """Until nothing is left for the member to do. Why that failed; empty: it did not."""
        try:
            program = find_program(self._spec.program)
        except NotHere as error:
            return str(error)
        status, _, errors = run([program, "cluster", "drain", id, "--cluster", self._spec.cluster], 70)
        return "" if status == 0 else errors

    def stop(self) -> None:
        self._watcher.stop(PATIENCE[self._spec.role])


def fetched(url: str) -> str:
    """A text, whole: half of a number is another number. OSError, ValueError, HTTPException: why there is none."""
    until = time.monotonic() + ANSWERS_S
    body = bytearray()
    with DIRECT.open(url, timeout=ANSWERS_S) as response:
        length = response.length  # None: the answer does not say
        while length is None or len(body) < length:
            part = response.read1(READ_BYTES if length is None else min(READ_BYTES, length - len(body)))
            body += part
            if not part:
                break
            if len(body) > MOST_BYTES:
                raise ValueError(f"the answer has more than {MOST_BYTES} bytes")
            if time.monotonic() > until:
                raise TimeoutError(f"the answer is not whole after {ANSWERS_S:g} s")
    if length is not None and len(body) < length:
        raise ValueError(f"the answer breaks off after {len(body)} of {length} bytes")
    return body.decode(errors="replace")


def told_by(url: str) -> int | str:
    """The wanted number of devices, or why there is none."""
    try:
        return devices_wanted(fetched(url))
    except (OSError, ValueError, http.client.HTTPException) as error:
        return f"{url}: {error}"


class Scaler:
    """Asks for the wanted number again and again, tells Ray's autoscaler, and places as many workers."""

    def __init__(self, plan, every: float = 15.0, land=None):
        if land is None:
            from ._land import Land
            land = Land()
        self._plan, self._every, self._land = plan, every, land
        self._status = {"wanted_devices": None, "wanted_workers": None, "why": "", "at": None}
        self._stops = threading.Event()
        self._thread = threading.Thread(target=self._run, name="carillon-scaler", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stops.is_set():
            self._step()
            self._stops.wait(self._every)

    def _step(self) -> None:
        from ._serving import Serving
        plan, why = self._plan, ""
        try:
            with concurrent.futures.ThreadPoolExecutor(len(plan.wanted_from)) as pool:
                devices = largest(list(pool.map(told_by, plan.wanted_from)))
            serving = Serving(self._land, plan.cluster)
            workers = workers_wanted(devices, serving.devices_of_a_worker(), plan.workers, plan.most)
            self._status |= {"wanted_devices": devices, "wanted_workers": workers, "at": time.time()}
            self._land.request([plan.resources] * workers)
            serving.place(plan.spec("worker", 0), workers)
        except Exception as error:  # whatever it is, the next step may do better; the last number stands
            why = str(error)
        self._status |= {"why": why}

    def status(self) -> dict:
        return dict(self._status)

    def stop(self) -> None:
        self._stops.set()
        self._thread.join()
        self._land.request([])

