"""A Ray cluster on this machine for tests and benchmarks: a head, raylets and, where asked for, Redis. Its Python is apart."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from pathlib import Path

from loopback import HOST, ROOT, free_addresses

PYTHON = Path(os.environ.get("CARILLON_RAY_PYTHON", ROOT / "build/rivals/ray/bin/python"))
REDIS = shutil.which("redis-server")
START_S, START_TRIES = 60, 3
LIMIT = 120  # seconds, on the slowest machine


def missing(redis: bool = False) -> str:
    """Why there can be no cluster here; empty: there can."""
    if not PYTHON.is_file() or subprocess.run([PYTHON, "-c", "import ray"], capture_output=True, timeout=LIMIT).returncode != 0:
        return f"Ray is not installed for {PYTHON}: tools/setup --with-ray"
    if redis and REDIS is None:
        return "there is no redis-server, which keeps what Ray's head knows: tools/setup --with-ray"
    return ""


def wait_for(condition, what: str, limit_s: float = LIMIT, why=lambda: "") -> None:
    limit = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > limit:
            raise AssertionError(f"never came: {what}; {why()}")
        time.sleep(0.05)


def words_of(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").rstrip("\0").split("\0")
    except OSError:
        return []


def state_of(pid: int) -> tuple[str, int]:
    """As in proc(5), and the parent. ("", 0): there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return fields[0], int(fields[1])
    except OSError:
        return "", 0


def alive(pid: int) -> bool:
    return state_of(pid)[0] not in ("", "Z", "X")


def pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def tree_of(root: int) -> list[int]:
    """The process, and all that descend from it."""
    parents = {pid: state_of(pid)[1] for pid in pids()}
    found = [root]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found


def kill(*victims: int) -> None:
    for pid in victims:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


class RayCluster:
    """`ray start --block` for each node. All that descends from these has a mark in its environment."""

    def __init__(self, log_folder: Path, redis: bool = False, environment: dict[str, str] | None = None):
        self.folder = Path(tempfile.mkdtemp(prefix="cray-", dir="/tmp"))  # sockets in it have short paths
        self.log_folder = log_folder
        self.mark = uuid.uuid4().hex
        self.port = int(free_addresses(1)[0].rpartition(":")[2])
        self.redis = None
        self.environment = {
            **os.environ, "PYTHONPATH": str(ROOT / "python"), "CARILLON_TEST_MARK": self.mark, "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_ADDRESS": f"{HOST}:{self.port}", "OMP_NUM_THREADS": "1",
            "RAY_worker_niceness": "0",  # Ray's own is 15, and what else runs here would stand before all that serves
            **(environment or {})}
        for name in ("VIRTUAL_ENV", "LD_PRELOAD"):
            self.environment.pop(name, None)
        self.redis_address = ""
        if redis:
            address = free_addresses(1)[0]
            self.redis_address = address
            with (log_folder / "redis.log").open("ab") as log:
                self.redis = subprocess.Popen(
                    [REDIS, "--bind", HOST, "--port", address.rpartition(":")[2], "--save", "", "--appendonly", "no", "--dir", str(self.folder)],
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, "CARILLON_TEST_MARK": self.mark})
            wait_for(lambda: self.listens(int(address.rpartition(":")[2])), "redis")
        self.processes: dict[str, subprocess.Popen] = {}

    @staticmethod
    def listens(port: int) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((HOST, port)) == 0

    def _start(self, name: str, *options: str, **environment: str) -> None:
        """Returns once it is there: two that start at once would take the same names in the session's folder."""
        for _ in range(START_TRIES):
            agent, before = free_addresses(1)[0].rpartition(":")[2], self.log_size(name)
            with (self.log_folder / f"ray-{name}.log").open("ab") as log:
                process = self.processes[name] = subprocess.Popen(
                    [str(PYTHON.parent / "ray"), "start", "--block", "--disable-usage-stats", f"--node-ip-address={HOST}",
                     "--object-store-memory=80000000", f"--dashboard-agent-listen-port={agent}",
                     "--min-worker-port=0", "--max-worker-port=0", *options],
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                    env={**self.environment, **environment})
            limit = time.monotonic() + START_S
            while process.poll() is None and time.monotonic() < limit:
                if "Ray runtime started" in self.log(name, before):
                    return
                time.sleep(0.1)
            self.kill_node(name)  # on a busy machine `ray start` gives up, or waits for a raylet that does not come
        raise AssertionError(f"Ray's {name} does not start: {self.log(name, before)}")

    def start_head(self, cpus: int = 0) -> None:
        more = {"RAY_REDIS_ADDRESS": self.redis_address} if self.redis else {}
        # Raylets of an earlier head name its address. On one machine the next head would take them for a cluster of its own.
        (self.folder / "ray_current_cluster").unlink(missing_ok=True)
        self._start("head", "--head", f"--port={self.port}", f"--num-cpus={cpus}", "--include-dashboard=false",
                    f"--ray-client-server-port={free_addresses(1)[0].rpartition(':')[2]}",
                    f"--temp-dir={self.folder}", **more)

    def start_node(self, name: str, cpus: int = 2, resources: dict[str, float] | None = None) -> None:
        self._start(name, f"--address={HOST}:{self.port}", f"--num-cpus={cpus}", f"--resources={json.dumps(resources or {})}")

    def log_size(self, name: str) -> int:
        file = self.log_folder / f"ray-{name}.log"
        return file.stat().st_size if file.exists() else 0

    def log(self, name: str, start: int = 0) -> str:
        return (self.log_folder / f"ray-{name}.log").read_bytes()[start:].decode(errors="replace")[-2000:]

    def raylet(self, name: str) -> int:
        """Its process."""
        found = [pid for pid in tree_of(self.processes[name].pid) if words_of(pid)[:1] and words_of(pid)[0].endswith("/raylet")]
        if len(found) != 1:
            raise AssertionError(f"{name} has the raylets {found}: {self.log(name)}")
        return found[0]

    def kill_raylet(self, name: str) -> None:
        """The raylet alone. What it had started has to end by itself; `ray start --block` sees to Ray's own."""
        kill(self.raylet(name))

    def kill_node(self, name: str) -> None:
        """All processes of Ray on it, at once."""
        kill(*tree_of(self.processes[name].pid))
        self.forget(name)

    def forget(self, name: str, limit_s: float = 60) -> None:
        """Waits until the node's first process has ended."""
        process = self.processes.pop(name)
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            kill(*tree_of(process.pid))
            process.wait()

    def marked(self) -> dict[int, list[str]]:
        """Processes that descend from this cluster, whoever their parent is now, with their words."""
        found = {}
        for pid in pids():
            try:
                environ = Path(f"/proc/{pid}/environ").read_bytes()
            except OSError:
                continue
            if self.mark.encode() in environ and alive(pid):
                found[pid] = words_of(pid)
        return found

    def carillons(self, role: str = "worker") -> dict[str, list[int]]:
        """The processes of a role, by id."""
        found: dict[str, list[int]] = {}
        for pid, words in self.marked().items():
            if len(words) > 2 and words[1] == role and "--id" in words:
                found.setdefault(words[words.index("--id") + 1], []).append(pid)
        return found

    def driver(self, *words: str, limit_s: float = LIMIT * 2) -> subprocess.CompletedProcess:
        """A command of Ray's Python, as a user has it."""
        return subprocess.run([str(PYTHON), *words], capture_output=True, text=True, timeout=limit_s, env=self.environment,
                              stdin=subprocess.DEVNULL)

    def carillon(self, *words: str, status: int = 0) -> subprocess.CompletedProcess:
        done = self.driver("-m", "carillon.ray", *words)
        assert done.returncode == status, f"carillon.ray {words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def status(self, cluster: str) -> dict:
        return json.loads(self.carillon("status", "--cluster", cluster).stdout)

    def nodes(self) -> int:
        done = self.driver("-c", "import ray; ray.init(log_to_driver=False); print(sum(n['Alive'] for n in ray.nodes()))")
        return int(done.stdout.split()[-1]) if done.returncode == 0 else 0

    def end(self) -> None:
        """Ends all of it by its process ids."""
        for process in self.processes.values():
            kill(*tree_of(process.pid))
            process.wait()
        self.processes.clear()
        if self.redis:
            self.redis.kill()
            self.redis.wait()
        limit = time.monotonic() + 20
        while (left := self.marked()) and time.monotonic() < limit:
            kill(*left)
            time.sleep(0.1)
        shutil.rmtree(self.folder, ignore_errors=True)
