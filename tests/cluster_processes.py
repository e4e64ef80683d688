"""Processes that tests of clusters start: etcd, a stand-in for Kubernetes, carillon's roles, and programs that tell what happens as lines of JSON."""

from __future__ import annotations

import base64
import collections
import contextlib
import datetime
import json
import re
import shutil
import signal
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

import pytest

from loopback import free_addresses

ETCD = shutil.which("etcd")
LIMIT = 60  # seconds within which something that must happen has happened, on the slowest machine


def stand_still(process: subprocess.Popen) -> None:
    """SIGSTOP. A thread on another processor may run on for a moment: returns when none does."""
    process.send_signal(signal.SIGSTOP)
    tasks = Path(f"/proc/{process.pid}/task")
    wait_for(lambda: all((task / "stat").read_text().rpartition(")")[2].split()[0] == "T" for task in tasks.iterdir()),
             f"process {process.pid} to stand still")


class Etcd:
    """One etcd process, with a folder and ports of its own."""

    def __init__(self, folder: Path, name: str = "solo", peers: dict[str, str] | None = None, options=(), client: str | None = None,
                 scheme: str = "http"):
        self.client = client or free_addresses(1)[0]
        peers = peers or {name: free_addresses(1)[0]}
        self.log = folder / f"{name}.log"
        self.command = [
            ETCD or "etcd", "--name", name, "--data-dir", str(folder / f"{name}.etcd"),
            "--listen-client-urls", f"{scheme}://{self.client}", "--advertise-client-urls", f"{scheme}://{self.client}",
            "--listen-peer-urls", f"http://{peers[name]}", "--initial-advertise-peer-urls", f"http://{peers[name]}",
            "--initial-cluster", ",".join(f"{each}=http://{address}" for each, address in peers.items()), *options]
        self.process = None

    def start(self) -> Etcd:
        if ETCD is None:
            pytest.fail("no etcd: tools/setup installs Debian's etcd-server", pytrace=False)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        return self

    def ready(self) -> Etcd:
        wait_for(lambda: self.ask("kv/range", key="x") is not None, f"etcd at {self.client}: {self.log}")
        return self

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def ask(self, method: str, **body):
        """The gateway's answer; none where etcd gives none."""
        coded = {name: base64.b64encode(value.encode()).decode() if name in ("key", "value", "range_end") else value
                 for name, value in body.items()}
        request = urllib.request.Request(f"http://{self.client}/v3/{method}", json.dumps(coded).encode())
        try:
            with urllib.request.urlopen(request, timeout=5) as response:
                return json.load(response)
        except (urllib.error.URLError, OSError):
            return None

    def watches(self) -> int:
        with urllib.request.urlopen(f"http://{self.client}/metrics", timeout=LIMIT) as response:
            found = re.search(r"^etcd_debugging_mvcc_watcher_total (\d+)$", response.read().decode(), re.M)
        return int(found.group(1))

    def must(self, method: str, **body) -> dict:
        """Asks until it is done: while there is no leader etcd writes nothing."""
        answers = []
        wait_for(lambda: answers.append(self.ask(method, **body)) or answers[-1] is not None, f"{method} {body}")
        return answers[-1]

    def put(self, key: str, value: str) -> int:
        return int(self.must("kv/put", key=key, value=value)["header"]["revision"])

    def cluster(self, name: str = "box") -> str:
        return f"etcd://{self.client}/{name}"

    def registered(self, name: str = "box") -> int:
        found = self.must("kv/range", key=f"/carillon/{name}/members/", range_end=f"/carillon/{name}/members0", count_only=True)
        return int(found["count"])


class Kubernetes:
    """One stand-in for an API server of Kubernetes (kubernetes_api.py), with an address and a file of its own."""

    def __init__(self, folder: Path, name: str = "api", client: str | None = None, tls: tuple[Path, Path] | None = None):
        self.client, self.tls = client or free_addresses(1)[0], tls
        self.log = folder / f"{name}.log"
        self.command = [sys.executable, str(Path(__file__).with_name("kubernetes_api.py")), self.client, "--state", str(folder / f"{name}.json"),
                        *(("--cert", str(tls[0]), "--key", str(tls[1])) if tls else ())]
        self.process = None

    def cluster(self, name: str = "box", namespace: str = "default") -> str:
        return f"kubernetes://{namespace}/{name}?server={'https' if self.tls else 'http'}://{self.client}"

    def start(self) -> Kubernetes:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        return self

    def ready(self) -> Kubernetes:
        wait_for(lambda: self.ask(look=True) is not None, f"the API server at {self.client}: {self.log}")
        return self

    kill, signal = Etcd.kill, Etcd.signal

    def ask(self, **orders):
        """What the stand-in has once it has obeyed; none where it does not answer."""
        scheme, context = ("https", ssl._create_unverified_context()) if self.tls else ("http", None)
        request = urllib.request.Request(f"{scheme}://{self.client}/stub", json.dumps(orders).encode())
        try:
            with urllib.request.urlopen(request, timeout=5, context=context) as response:
                return json.load(response)
        except (urllib.error.URLError, OSError):
            return None

    def must(self, **orders) -> dict:
        answers = []
        wait_for(lambda: answers.append(self.ask(**orders)) or answers[-1] is not None, f"the API server to obey {orders}")
        return answers[-1]

    def lease(self, name: str, namespace: str = "default") -> dict | None:
        return self.must(look=True)["objects"].get(f"{namespace}/{name}")

    def edit(self, name: str, namespace: str = "default", spec=None, metadata=None) -> None:
        self.must(put={"metadata": {**(metadata or {}), "name": name, "namespace": namespace}, "spec": spec or {}})

    def registered(self, name: str = "box") -> int:
        """Members whose Leases have run out for nobody, by the clock of this machine, which the members have, too."""
        now = datetime.datetime.now(datetime.timezone.utc)
        return sum(1 for each in self.must(look=True)["objects"].values()
                   if each["metadata"]["name"].startswith(f"{name}.")
                   and (now - datetime.datetime.fromisoformat(each["spec"]["renewTime"])).total_seconds() < each["spec"]["leaseDurationSeconds"] + 0.5)


class Told:
    """A process that takes orders and tells news, a JSON object a line, and all it told."""

    def __init__(self, program: Path, *options: str):
        self.process = subprocess.Popen([program, *options],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.told: list[dict] = []
        self.errors = collections.deque(maxlen=50)  # gRPC's log, too
        self.changed = threading.Condition()
        self.threads = [threading.Thread(target=self.hear), threading.Thread(target=lambda: self.errors.extend(self.process.stderr))]
        for thread in self.threads:
            thread.start()

    def hear(self) -> None:
        for line in self.process.stdout:
            with self.changed:
                self.told.append(json.loads(line))
                self.changed.notify_all()

    def wait(self, news: str, after: int = 0, **more) -> dict:
        """The first such news from the place `after` on."""
        def found():
            return next((each for each in self.told[after:] if each["news"] == news and all(each[k] == v for k, v in more.items())), None)

        with self.changed:
            assert self.changed.wait_for(found, LIMIT), f"no {news} {more} in {self.told[after:]}; {list(self.errors)}"
            return found()

    def order(self, what: str, **more) -> None:
        self.process.stdin.write(json.dumps({"do": what, **more}) + "\n")
        self.process.stdin.flush()

    def place(self) -> int:
        return len(self.told)

    def end(self) -> int:
        if self.process.poll() is None:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()
            self.process.wait(LIMIT)
        for thread in self.threads:
            thread.join()
        return self.process.returncode

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class Host(Told):
    """One process of a cluster: carillon_hosts_probe."""

    def __init__(self, program, cluster: str, id: str, role: str, address: str, *key: str):
        self.id, self.role, self.address = id, role, address
        super().__init__(program.parent / "carillon_hosts_probe", cluster, id, role, address, *key)

    def state(self) -> dict:
        place = self.place()
        self.order("state")
        return self.wait("state", place)


def wait_for(condition, what: str, why=lambda: "") -> None:
    limit = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < limit, f"never came: {what}; {why()}"
        time.sleep(0.02)


class Role:
    """One process of a cluster, by carillon's own command. `on`: what the command is run by, if not by this process."""

    def __init__(self, program, folder, role: str, id: str, cluster: str, *options: str, listen: str | None = None, on: Sequence[str] = ()):
        self.id, self.role, self.listen = id, role, listen or free_addresses(1)[0]
        self.log = folder / f"{id}.log"
        self.command = [*on, str(program), role, "--cluster", cluster, "--id", id, "--listen", self.listen, *options]
        self.start()

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def end(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
        return self.process.wait(LIMIT)


class Frontend(Role):
    def __init__(self, program, folder, id: str, cluster: str, *options: str, listen: str | None = None, http: str | None = None,
                 on: Sequence[str] = ()):
        self.http = http or free_addresses(1)[0]
        off = () if "--metrics" in options else ("--metrics", "")
        super().__init__(program, folder, "frontend", id, cluster, "--http", self.http, "--grpc", "", *off, *options, listen=listen, on=on)

    def get(self, path: str) -> int:
        try:
            with urllib.request.urlopen(f"http://{self.http}{path}", timeout=LIMIT) as response:
                return response.status
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0

    def infer(self, value: float, timeout_ms: float = 20_000, model: str = "tiny_mlp", **more) -> tuple[int, dict]:
        """The status and the answer. 0: the connection broke."""
        body = {"parameters": {"timeout": int(timeout_ms * 1000)},
                "inputs": [{"name": "input", "datatype": "FP32", "shape": [1, 64], "data": [value] * 64}], **more}
        request = urllib.request.Request(f"http://{self.http}/v2/models/{model}/infer", json.dumps(body).encode())
        try:
            with urllib.request.urlopen(request, timeout=LIMIT) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)
        except OSError as error:
            return 0, {"error": str(error)}


def ready(frontend: Frontend) -> None:
    wait_for(lambda: frontend.get("/v2/models/tiny_mlp/ready") == 200 and frontend.get("/v2/health/ready") == 200,
             f"{frontend.id} to be ready: {frontend.text()}")


@contextlib.contextmanager
def processes():
    """Starts programs and coordinators, and ends what is left of them."""
    with contextlib.ExitStack() as stack:
        def begin(what):
            process = what.start().process if isinstance(what, (Etcd, Kubernetes)) else what.process

            def end():
                etcd_or_probe = what.process
                if etcd_or_probe.poll() is None:
                    etcd_or_probe.send_signal(signal.SIGCONT)
                    etcd_or_probe.kill()
                    etcd_or_probe.wait()
                if isinstance(what, Told):
                    what.end()

            assert process is not None
            stack.callback(end)
            return what

        yield begin


@pytest.fixture
def start():
    with processes() as begin:
        yield begin


@pytest.fixture
def etcd(start, tmp_path) -> Etcd:
    return start(Etcd(tmp_path)).ready()


@pytest.fixture
def kubernetes(start, tmp_path) -> Kubernetes:
    return start(Kubernetes(tmp_path)).ready()


@pytest.fixture(params=["etcd", "kubernetes"])
def coordinator(request) -> Etcd | Kubernetes:
    """What members of a cluster find each other by: each in turn."""
    return request.getfixturevalue(request.param)
