"""carillon.ray without Ray: what serve() starts and refuses, and how a process is watched. test_ray_live.py has Ray."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "python"))
import carillon.ray  # noqa: E402
from carillon.ray import _keeper, _plan, _wanted, _watch  # noqa: E402
from carillon.ray._plan import Mistake, plan  # noqa: E402
from carillon.ray._serving import Serving  # noqa: E402

LIMIT = 30
CLUSTER = "etcd://127.0.0.1:2379/box"


def wait_for(condition, what: str) -> None:
    limit = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < limit, f"never came: {what}"
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    """A process that has ended and that nobody has waited for is not."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


# --- Arguments

@pytest.mark.parametrize("change, words", [
    ({"cluster": None}, "cluster= is missing: the address of an etcd and a name"),
    ({"cluster": ""}, "`apt-get install etcd-server` is all that an etcd takes"),
    ({"cluster": "10.0.0.1:2379"}, "is no address of an etcd and a name, such as etcd://10.0.0.1:2379/box"),
    ({"cluster": "etcd://10.0.0.1:2379"}, "is no address of an etcd and a name"),
    ({"cluster": "static:box.toml"}, "a file names its members by their addresses, and Ray chooses these"),
    ({"workers": 0}, "workers=0 is not a whole number from 1 to 1000"),
    ({"workers": True}, "workers=True is not a whole number"),
    ({"workers": 1.5}, "workers=1.5 is not a whole number"),
    ({"resources": {}}, "a worker takes something, such as {'CPU': 2}"),
    ({"resources": {"cpu": 2}}, "Ray spells 'cpu' as 'CPU'"),
    ({"resources": {"CPU": -1}}, "'CPU' is a number above 0, not -1"),
    ({"resources": {"CPU": float("nan")}}, "'CPU' is a number above 0, not nan"),
    ({"resources": {"CPU": 1.5}}, "above 1, Ray has whole numbers only, and 'CPU' is 1.5"),
    ({"models": []}, "no model is named"),
    ({"models": 3}, "a folder, a file, a list of files, or files by name, and not 3"),
    ({"options": "--no-store"}, "options of a worker: a list of words"),
    ({"http": "8000"}, "http='8000' is no HOST:PORT"),
    ({"frontends": -1}, "frontends=-1 is not a whole number from 0"),
    ({"timeout": 0}, "timeout=0 is not a number of seconds above 0"),
    ({"most": 4}, "wanted_from= and most= go together"),
    ({"most": 1, "wanted_from": "http://127.0.0.1:8002/metrics"}, "most=1 is less than workers=2"),
    ({"most": 4, "wanted_from": []}, "wanted_from=[] is neither a URL nor a list of them"),
    ({"most": 4, "wanted_from": 8002}, "wanted_from=8002 is neither a URL nor a list of them"),
    ({"most": 4, "wanted_from": ["http://a/metrics", "10.0.0.1:8003"]}, "wanted_from: '10.0.0.1:8003' is no URL"),
])
def test_an_argument_that_cannot_be_is_refused_with_words(change, words):
    with pytest.raises(Mistake) as error:
        carillon.ray.serve(**{"models": "models", "workers": 2, "resources": {"CPU": 2}, "cluster": CLUSTER} | change)
    assert words in str(error.value)


@pytest.mark.parametrize("models, options", [
    ("/m", ("--models", "/m")),
    (Path("/m/a.onnx"), ("--model", "/m/a.onnx")),
    (["/m/a.onnx", "/m/b.onnx"], ("--model", "/m/a.onnx", "--model", "/m/b.onnx")),
    ({"first": "/m/a.onnx"}, ("--model", "first=/m/a.onnx")),
    ("models", ("--models", os.path.abspath("models"))),
])
def test_models_are_options_of_the_worker(models, options):
    assert _plan.model_options(models) == options


def test_what_of_the_models_a_node_lacks_is_named(tmp_path):
    file = tmp_path / "a.onnx"
    file.touch()
    assert _plan.missing_model(("--models", str(tmp_path))) == ""
    assert _plan.missing_model(("--model", f"first={file}", "--model", str(file))) == ""
    assert _plan.missing_model(("--models", "/nowhere")) == "there is no folder /nowhere"
    assert _plan.missing_model(("--model", "first=/nowhere.onnx")) == "there is no file /nowhere.onnx"


@pytest.mark.parametrize("resources, words", [
    ({"CPU": 2}, ""),
    ({"GPU": 1}, ""),
    ({"NPU": 1}, "has the resource 'NPU'; nodes have CPU, GPU"),
    ({"CPU": 8}, "has 'CPU': 8; the most is 4"),
    ({"CPU": 4, "GPU": 1}, "has all of 'CPU': 4, 'GPU': 1"),
])
def test_a_resource_that_no_node_has_is_named(resources, words):
    found = _plan.unmet(resources, [{"CPU": 4, "object_store_memory": 9}, {"CPU": 2, "GPU": 1, "node:10.0.0.1": 1}])
    assert (words in found) if words else found == ""


def test_command_lines():
    wanted = plan("/m", 2, {"CPU": 2.0, "memory": 3 << 30}, CLUSTER, options=["--log-level", "debug"], scheduler_options=["--scheduler", "edf"])
    assert wanted.spec("worker", 1).command("c", "10.0.0.1:7") == [
        "c", "worker", "--cluster", CLUSTER, "--id", "ray-worker-1", "--listen", "10.0.0.1:7", "--models", "/m",
        "--threads", "2", "--memory", "3072MiB", "--log-level", "debug"]
    assert wanted.spec("frontend", 0).command("c", "10.0.0.1:7", "0.0.0.0:8000", "") == [
        "c", "frontend", "--cluster", CLUSTER, "--id", "ray-frontend-0", "--listen", "10.0.0.1:7", "--http", "0.0.0.0:8000", "--grpc", ""]
    assert wanted.spec("scheduler", 0).command("c", "10.0.0.1:7")[-2:] == ["--scheduler", "edf"]
    assert "--threads" not in plan("/m", 1, {"GPU": 1}, CLUSTER).spec("worker", 0).command("c", "l")
    own = plan("/m", 1, {"CPU": 4}, CLUSTER, options=["--threads", "1"]).spec("worker", 0).command("c", "l")
    assert own.count("--threads") == 1


def test_what_serving_takes_of_rays_processors():
    def group(name, *processors, state="CREATED"):
        return {"name": name, "state": state, "bundles": {i: {"CPU": each} for i, each in enumerate(processors)}}

    assert _plan.processors_of_workers([group("box/workers", 2, 2), group("box/worker-2", 1), group("", 8), group("mine/workers of", 4),
                                        group("box/worker-3", 1, state="REMOVED"), {**group("a/workers"), "bundles": {0: {"GPU": 1}}}]) == 5
    assert _plan.processors_of_workers([]) == 0


# --- The wanted number

@pytest.mark.parametrize("text, devices", [
    ('carillon_devices_wanted{subcluster="0"} 6\n', 6),
    ('# TYPE carillon_devices_wanted gauge\ncarillon_devices_wanted{subcluster="0"} 4\ncarillon_devices_wanted{subcluster="1"} 7\n', 11),
    ("carillon_devices_wanted 2.2\n", 3),
    ("carillon_devices_wanted 0\n", 0),
])
def test_the_wanted_number_is_that_of_all_sub_clusters(text, devices):
    assert _wanted.devices_wanted(text) == devices


@pytest.mark.parametrize("text, words", [
    ("carillon_devices_coming 3\n", "there is no carillon_devices_wanted"),
    ("carillon_devices_wanted NaN\n", "carillon_devices_wanted is NaN"),
    ("carillon_devices_wanted -1\n", "carillon_devices_wanted is -1"),
    ("carillon_devices_wanted +Inf\n", "carillon_devices_wanted is +Inf"),
    ("carillon_devices_wanted many\n", "carillon_devices_wanted is many"),
])
def test_a_wanted_number_that_is_none_is_refused(text, words):
    with pytest.raises(ValueError) as error:
        _wanted.devices_wanted(text)
    assert str(error.value) == words


@pytest.mark.parametrize("devices, each, workers", [(0, 1, 2), (3, 1, 3), (3, 2, 2), (9, 2, 5), (100, 1, 6), (4, 0, 4)])
def test_workers_for_devices(devices, each, workers):
    assert _wanted.workers_wanted(devices, each, least=2, most=6) == workers


# --- Watching a process

def test_a_process_that_does_not_last_is_started_again_ever_later():
    restarts = _watch.Restarts(_watch.Backoff(first=1, most=10, lasts=5))
    assert [restarts.ended(0) for _ in range(6)] == [1, 2, 4, 8, 10, 10]
    assert restarts.ended(5) == 1 and restarts.in_a_row == 1  # it lasted
    assert restarts.ended(4.9) == 2
    for _ in range(2000):
        restarts.ended(0)
    assert restarts.ended(0) == 10


@pytest.fixture
def watch(tmp_path):
    started = []

    def begin(*command: str, backoff=_watch.Backoff(first=0.01, most=0.05, lasts=10)):
        started.append(_watch.Watcher(lambda: command, tmp_path / "log", _watch.Restarts(backoff)))
        return started[-1]

    yield begin
    for each in started:
        each.stop(1)


def running(watcher) -> int:
    wait_for(lambda: watcher.status()["state"] == "runs", f"a process: {watcher.status()}")
    return watcher.status()["pid"]


def test_a_killed_process_comes_back(watch):
    watcher = watch("/bin/sleep", "1000")
    pid = running(watcher)
    wait_for(lambda: Path(f"/proc/{pid}/comm").read_text() == "sleep\n", "the launcher to become the command")
    assert os.getpgid(pid) == os.getsid(pid) == pid
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: watcher.status()["pid"] not in (pid, None), "another process")
    status = watcher.status()
    assert status["starts"] == 2 and status["why"] == "was ended by SIGKILL"
    watcher.stop(10)
    assert not is_alive(status["pid"]) and watcher.status()["state"] == "stops"


def test_what_a_process_leaves_in_its_group_is_ended(watch, tmp_path):
    file = tmp_path / "pid"
    watcher = watch("/bin/sh", "-c", f"/bin/sleep 1000 & echo $! > {file}.new; mv {file}.new {file}; wait")
    pid = running(watcher)
    wait_for(file.exists, "the process that it starts")
    left = int(file.read_text())
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not is_alive(left), "the end of what it had started")


def test_a_process_that_ignores_sigterm_is_killed(watch):
    watcher = watch("/bin/sh", "-c", "trap '' TERM; echo ready; while :; do /bin/sleep 0.05; done")
    pid = running(watcher)
    wait_for(lambda: "ready" in Path(watcher.status()["log"]).read_text(), "the trap")
    watcher.stop(0.2)
    assert not is_alive(pid)


def test_a_process_that_dies_at_each_start_is_told_of_with_its_last_words(watch):
    watcher = watch("/bin/sh", "-c", "echo no such device; exit 3")
    wait_for(lambda: watcher.status()["short_runs"] >= 3, "three ends")
    assert watcher.status()["why"].startswith("ended with status 3; its log ends: no such device")


def test_a_command_that_is_none_is_told_of(watch):
    watcher = watch("/nowhere/carillon")
    wait_for(lambda: watcher.status()["short_runs"] >= 1, "an end")
    assert "/nowhere/carillon cannot be run: No such file or directory" in watcher.status()["why"]


def test_a_node_that_lacks_something_is_asked_again(tmp_path):
    lacks = threading.Event()

    def command():
        if not lacks.is_set():
            raise _watch.NotHere("there is no folder /m")
        return ["/bin/sleep", "1000"]

    watcher = _watch.Watcher(command, tmp_path / "log", _watch.Restarts(_watch.Backoff(0.01, 0.05, 10)))
    try:
        wait_for(lambda: watcher.status()["not_here"], "the reason")
        assert watcher.status()["why"] == "there is no folder /m"
        lacks.set()
        running(watcher)
        assert not watcher.status()["not_here"]
    finally:
        watcher.stop(1)


def test_the_process_dies_with_the_one_that_watches_it(tmp_path):
    """The watcher is made by a thread that ends at once, as an actor's constructor may be run by one."""
    script = f"""
import sys, threading, time
sys.path.insert(0, {str(ROOT / "python")!r})
from pathlib import Path
from carillon.ray import _watch
made = []
maker = threading.Thread(target=lambda: made.append(_watch.Watcher(lambda: ["/bin/sleep", "1000"], Path({str(tmp_path / "log")!r}))))
maker.start()
maker.join()
time.sleep(0.5)
while made[0].status()["state"] != "runs": time.sleep(0.01)
print(made[0].status()["pid"], made[0].status()["starts"], flush=True)
time.sleep(1000)
"""
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    try:
        pid, starts = map(int, parent.stdout.readline().split())
        assert starts == 1 and is_alive(pid)
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()
    wait_for(lambda: not is_alive(pid), "the end of the watched process")


def test_a_watcher_that_died_before_its_process_asked_for_the_signal_leaves_none(tmp_path):
    done = subprocess.run([sys.executable, "-I", "-S", str(_watch.CHILD), "1", "/bin/sleep", "1000"], capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 1 and "the actor has ended" in done.stderr


# --- Begin, see, scale, delete: over a Ray that is a few lists

class Node:
    def __init__(self, id, resources, head=False):
        self.id, self.address, self.resources, self.head = id, "10.0.0." + id[-1], resources, head


class FakeLand:
    """Keepers that say what a test wants them to."""

    def __init__(self):
        self.all_nodes = [Node("n0", {"CPU": 0}, head=True), Node("n1", {"CPU": 4}), Node("n2", {"CPU": 4})]
        self.actors, self.made, self.said, self.asked = {}, {}, [], []
        self.member_ids = {}      # beside those of our actors: id -> role
        self.etcd = ""            # what it says instead
        self.wrong = {}           # name of an actor -> what differs in its status
        self.room = True
        self.drain_says = ""
        self.devices = 1          # that each worker has, as its leader knows

    def nodes(self):
        return self.all_nodes

    def names(self, prefix):
        return sorted(name for name in self.actors if name.startswith(prefix))

    def start(self, kind, name, *arguments, resources={}, group=None, bundle=-1, node=None):
        self.actors.setdefault(name, {"kind": kind, "of": arguments[0], "group": group, "bundle": bundle, "node": node, "resources": dict(resources)})

    def members(self):
        ours = {each["of"].id: each["of"].role for each in self.actors.values() if each["kind"] == "keeper"}
        return [{"id": id, "role": role, "alive": True, "devices": self.devices if role == "worker" else 0} for id, role in (self.member_ids | ours).items()]

    def answer(self):
        if self.etcd:
            return 1, "", self.etcd
        if not self.members():
            return 1, json.dumps({"error": "knows no"}), "carillon cluster status: etcd knows no cluster box: no member is registered, and nobody ever led"
        return 0, json.dumps({"name": "box", "epoch": 1, "leader": "s", "members": self.members()}), ""

    def ask(self, program, cluster, seconds):
        return self.answer()

    def call_all(self, names, method, *arguments, seconds=0):
        answers = {}
        for name in names:
            self.asked.append((name, method, *arguments))
            actor = self.actors[name]
            answers[name] = self.wrong.get(name) if isinstance(self.wrong.get(name), Exception) else {
                "status": lambda: {"id": actor["of"].id, "node": "10.0.0.1", "state": "runs", "why": "", "not_here": False, "short_runs": 0,
                                   "starts": 1, "pid": 7, "log": "l", "http": "10.0.0.1:8000" if actor["of"].role == "frontend" else "",
                                   **self.wrong.get(name, {})} if actor["kind"] == "keeper" else {"wanted_workers": 3},
                "ask": self.answer, "ready": lambda: True, "stop": lambda: None, "drain": lambda: self.drain_says,
                "spec": lambda: actor["of"]}[method]()
        return answers

    def call(self, name, method, *arguments, seconds=0):
        return self.call_all([name], method, *arguments)[name]

    def end(self, name):
        self.actors.pop(name, None)

    def groups(self, prefix):
        return {name: len(bundles) for name, bundles in self.made.items() if name.startswith(prefix)}

    def make_group(self, name, bundles):
        if name in self.made:
            raise ValueError(f"{name} is there")
        self.made[name] = list(bundles)

    def wait_group(self, name, seconds):
        return self.room

    def drop_group(self, name):
        self.made.pop(name, None)

    def free(self):
        return {"CPU": 1}

    def request(self, bundles):
        self.said.append(len(bundles))


class Clock:
    now = 0.0

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


@pytest.fixture
def land():
    return FakeLand()


@pytest.fixture
def serving(land):
    clock = Clock()
    return Serving(land, CLUSTER, clock, clock.sleep)


def asked(**more):
    return plan(**{"models": "/m", "workers": 2, "resources": {"CPU": 2}, "cluster": CLUSTER} | more)


def test_serve_places_workers_in_one_spread_group_and_what_the_cluster_lacks(land, serving):
    serving.begin(asked())
    assert land.made == {"box/workers": [{"CPU": 2}] * 2}
    assert land.names("box/") == ["box/frontend-0", "box/scheduler-0", "box/scheduler-1", "box/worker-0", "box/worker-1"]
    assert [(land.actors[f"box/worker-{i}"]["group"], land.actors[f"box/worker-{i}"]["bundle"]) for i in (0, 1)] == [("box/workers", 0), ("box/workers", 1)]
    assert [land.actors[name]["node"] for name in land.names("box/scheduler")] == ["n1", "n2"], "not on the head, and apart"


def test_a_cluster_that_has_schedulers_and_frontends_gets_workers_alone(land, serving):
    land.member_ids = {"s1": "scheduler", "f1": "frontend"}
    serving.begin(asked())
    assert land.names("box/") == ["box/worker-0", "box/worker-1"]


def test_how_many_frontends_and_schedulers_can_be_said(land, serving):
    serving.begin(asked(frontends=2, schedulers=1))
    assert len(land.names("box/frontend-")) == 2 and len(land.names("box/scheduler-")) == 1


def test_a_second_serve_of_the_same_cluster_is_refused_and_changes_nothing(land, serving):
    serving.begin(asked())
    before = dict(land.actors)
    with pytest.raises(Mistake, match="box is already served on this Ray cluster: scale it, or delete it first"):
        serving.begin(asked())
    assert land.actors == before and land.made


def nothing_is_left(land) -> bool:
    return not land.actors and not land.made


def test_an_etcd_that_does_not_answer_is_told_of_in_the_programs_words(land, serving):
    land.etcd = "carillon cluster status: etcd at 127.0.0.1:2379 does not answer: connection refused"
    with pytest.raises(ConnectionError, match="etcd at 127.0.0.1:2379 does not answer"):
        serving.begin(asked())
    assert nothing_is_left(land)


def test_a_resource_that_no_node_has_is_refused_before_anything_is_started(land, serving):
    with pytest.raises(Mistake, match="no node of this Ray cluster has the resource 'NPU'"):
        serving.begin(asked(resources={"NPU": 1}))
    assert nothing_is_left(land)


def test_where_an_autoscaler_may_bring_the_node_serve_waits_for_it(land, serving):
    land.room = False
    with pytest.raises(TimeoutError, match="Ray found no room for 2 workers of 'NPU': 1 within 120 s; free in all: 'NPU': 0"):
        serving.begin(asked(resources={"NPU": 1}, most=4, wanted_from="http://127.0.0.1:1/metrics"))
    assert nothing_is_left(land)


def test_a_node_without_the_models_is_named_and_nothing_is_left(land, serving):
    land.wrong["box/worker-1"] = {"state": "waits", "not_here": True, "why": "on the node 10.0.0.2: there is no folder /m"}
    with pytest.raises(RuntimeError, match="ray-worker-1: on the node 10.0.0.2: there is no folder /m"):
        serving.begin(asked())
    assert nothing_is_left(land)


def test_a_worker_that_dies_at_each_start_is_named_with_its_last_words(land, serving):
    land.wrong["box/worker-0"] = {"state": "waits", "short_runs": 3, "why": "ended with status 2; its log ends: unknown option --thread"}
    with pytest.raises(RuntimeError, match="ray-worker-0 on the node 10.0.0.1 does not last, and ended with status 2; its log ends: unknown option --thread"):
        serving.begin(asked())
    assert nothing_is_left(land)


def test_a_worker_that_is_never_a_member_is_named_when_the_time_is_over(land, serving):
    land.wrong["box/worker-1"] = RuntimeError("no answer within 15 s")
    with pytest.raises(TimeoutError, match="box does not serve within 120 s: box/worker-1: no answer within 15 s"):
        serving.begin(asked())
    assert nothing_is_left(land)


def test_scaling_up_gives_each_worker_a_group_and_down_drains_the_highest_first(land, serving):
    serving.begin(asked())
    serving.scale(4)
    assert set(land.made) == {"box/workers", "box/worker-2", "box/worker-3"}
    assert land.actors["box/worker-3"]["of"].id == "ray-worker-3" and land.actors["box/worker-3"]["group"] == "box/worker-3"
    land.asked.clear()
    serving.scale(1)
    drained = [each[2] for each in land.asked if each[1] == "drain"]
    assert drained == ["ray-worker-3", "ray-worker-2", "ray-worker-1"]
    assert land.names("box/worker-") == ["box/worker-0"] and set(land.made) == {"box/workers"}
    serving.scale(2)  # into the bundle that is left
    assert land.actors["box/worker-1"]["group"] == "box/workers" and land.actors["box/worker-1"]["bundle"] == 1


def test_a_worker_that_cannot_be_drained_stays(land, serving):
    serving.begin(asked())
    land.drain_says = "carillon cluster drain: no other worker has the model tiny_mlp"
    with pytest.raises(RuntimeError, match="ray-worker-1 cannot be drained, and stays: .*no other worker has the model"):
        serving.scale(1)
    assert len(land.names("box/worker-")) == 2


def test_a_worker_whose_process_does_not_run_goes_without_a_drain(land, serving):
    serving.begin(asked())
    land.wrong["box/worker-1"] = {"state": "waits"}
    land.drain_says = "nobody knows it"
    serving.scale(1)
    assert land.names("box/worker-") == ["box/worker-0"]


def test_scaling_what_is_not_served_is_refused(serving):
    with pytest.raises(Mistake, match="box is not served on this Ray cluster"):
        serving.scale(2)


def test_delete_ends_frontends_first_and_leaves_nothing(land, serving):
    serving.begin(asked())
    serving.scale(3)
    land.asked.clear()
    serving.delete()
    assert nothing_is_left(land)
    assert [name.split("/")[1].split("-")[0] for name, method, *_ in land.asked if method == "stop"] == [
        "frontend", "worker", "worker", "worker", "scheduler", "scheduler"]


def test_status_tells_of_each_process_and_of_actors_that_are_away(land, serving):
    serving.begin(asked())
    land.wrong["box/worker-1"] = RuntimeError("the actor is restarting")
    said = serving.status()
    assert said["leader"] == "s" and said["http"] == ["10.0.0.1:8000"]
    assert [(each["id"], each["state"]) for each in said["workers"]] == [("ray-worker-0", "runs"), ("ray-worker-1", "away")]
    assert said["workers"][1]["why"] == "its actor: the actor is restarting"
    json.dumps(said)


# --- The scaler

@contextlib.contextmanager
def told_metrics():
    """A server whose `text` can be changed. `missing` bytes of it do not come; `slow`: a comment comes first, byte by byte."""
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            body = server.text.encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body) + server.missing))
            self.end_headers()
            with contextlib.suppress(OSError):  # whoever asked has gone
                while server.slow:
                    self.wfile.write(b"#")
                    time.sleep(0.02)
                self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    server.text, server.missing, server.slow = "", 0, False
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def metrics():
    with told_metrics() as server:
        yield server


def at(server) -> str:
    return f"http://127.0.0.1:{server.server_port}/metrics"


def test_of_what_schedulers_tell_the_largest_number_counts():
    assert _wanted.largest(["a: refused", 3, 2]) == 3
    with pytest.raises(ValueError, match="^a: refused; b: there is no carillon_devices_wanted$"):
        _wanted.largest(["a: refused", "b: there is no carillon_devices_wanted"])


def test_another_leader_is_followed(land, serving, metrics):
    """Only the leader gives the number: a spare gives none, and a scheduler that is gone does not answer."""
    with told_metrics() as other:
        wanted = asked(most=5, wanted_from=[at(metrics), at(other)])
        serving.begin(wanted)
        metrics.text, other.text = "carillon_devices_wanted 3\n", "# a spare\n"
        scaler = _keeper.Scaler(wanted, every=0.02, land=land)
        wait_for(lambda: len(land.names("box/worker-")) == 3, "three workers")
        metrics.text = other.text = ""
        wait_for(lambda: scaler.status()["why"].count("there is no carillon_devices_wanted") == 2, "the reasons of both")
        assert at(metrics) in scaler.status()["why"] and at(other) in scaler.status()["why"]
        other.text = "carillon_devices_wanted 4\n"
        wait_for(lambda: len(land.names("box/worker-")) == 4, "four workers")
        assert scaler.status()["why"] == ""
        metrics.text = "carillon_devices_wanted 2\n"  # it has not heard yet that another leads
        time.sleep(0.2)
        assert len(land.names("box/worker-")) == 4
        scaler.stop()
    assert scaler.status()["wanted_devices"] == 4


def test_a_scheduler_that_is_gone_hides_no_number(land, serving, metrics):
    with told_metrics() as other:
        gone = at(other)
    wanted = asked(most=5, wanted_from=[gone, at(metrics)])
    serving.begin(wanted)
    metrics.text = "carillon_devices_wanted 4\n"
    scaler = _keeper.Scaler(wanted, every=0.02, land=land)
    wait_for(lambda: len(land.names("box/worker-")) == 4, "four workers")
    scaler.stop()
    assert scaler.status()["why"] == ""


@pytest.mark.parametrize("etcd, devices, words", [
    ("carillon cluster status: etcd does not answer", 4, "carillon cluster status: etcd does not answer"),
    ("", 0, "the leader knows of none"),
])
def test_while_nobody_tells_how_many_devices_a_worker_has_the_number_of_workers_stays(land, serving, metrics, etcd, devices, words):
    land.devices = 4
    wanted = asked(most=9, wanted_from=at(metrics))
    serving.begin(wanted)
    metrics.text = "carillon_devices_wanted 12\n"
    scaler = _keeper.Scaler(wanted, every=0.02, land=land)
    wait_for(lambda: len(land.names("box/worker-")) == 3, "three workers of four devices")
    land.etcd, land.devices = etcd, devices
    wait_for(lambda: scaler.status()["why"] == f"nobody tells how many devices a worker has: {words}", "the reason")
    assert len(land.names("box/worker-")) == 3
    land.etcd, land.devices = "", 4
    metrics.text = "carillon_devices_wanted 13\n"
    wait_for(lambda: len(land.names("box/worker-")) == 4, "the workers that 13 devices are")
    scaler.stop()


def test_half_of_a_number_is_none(metrics):
    metrics.text, metrics.missing = "carillon_devices_wanted 1", 2  # of 12
    assert _keeper.told_by(at(metrics)) == f"{at(metrics)}: the answer breaks off after 25 of 27 bytes"
    metrics.missing = 0
    assert _keeper.told_by(at(metrics)) == f"{at(metrics)}: there is no carillon_devices_wanted"
    metrics.text += "2\n"
    assert _keeper.told_by(at(metrics)) == 12


def test_an_answer_that_does_not_end_is_given_up(metrics, monkeypatch):
    monkeypatch.setattr(_keeper, "ANSWERS_S", 1.0)
    metrics.slow, metrics.missing = True, 1 << 20
    assert _keeper.told_by(at(metrics)) == f"{at(metrics)}: the answer is not whole after 1 s"
    monkeypatch.setattr(_keeper, "ANSWERS_S", LIMIT)
    monkeypatch.setattr(_keeper, "MOST_BYTES", 8)
    assert _keeper.told_by(at(metrics)) == f"{at(metrics)}: the answer has more than 8 bytes"
    metrics.slow = False


def test_schedulers_are_asked_themselves_whatever_proxy_there_is(metrics, monkeypatch):
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    metrics.text = "carillon_devices_wanted 3\n"
    assert _keeper.told_by(at(metrics)) == 3


@pytest.mark.parametrize("amount", ["nan", "inf", "-inf"])
def test_a_resource_of_a_shell_is_a_number(amount, capsys):
    from carillon.ray.__main__ import main
    assert main(["serve", "m", "--cluster", CLUSTER, "--resource", f"CPU={amount}"]) == 2
    assert f"'CPU' is a number above 0, not {amount}" in capsys.readouterr().err


def test_the_number_of_workers_follows_the_wanted_number_and_ray_is_told(land, serving, metrics):
    wanted = asked(most=5, wanted_from=f"http://127.0.0.1:{metrics.server_port}/metrics")
    serving.begin(wanted)
    assert "box/scaler" in land.actors
    with pytest.raises(Mistake, match="box follows its wanted number"):
        serving.scale(3)
    metrics.text = 'carillon_devices_wanted{subcluster="0"} 4\n'
    scaler = _keeper.Scaler(wanted, every=0.02, land=land)
    wait_for(lambda: len(land.names("box/worker-")) == 4, "four workers")
    metrics.text = "carillon_devices_wanted 99\n"
    wait_for(lambda: len(land.names("box/worker-")) == 5, "the most workers")
    metrics.text = "carillon_devices_wanted NaN\n"
    wait_for(lambda: scaler.status()["why"].endswith("carillon_devices_wanted is NaN"), "the reason")
    assert len(land.names("box/worker-")) == 5, "the last good number stands"
    metrics.text = "carillon_devices_wanted 0\n"
    wait_for(lambda: len(land.names("box/worker-")) == 2, "the least workers")
    scaler.stop()
    assert {4, 5, 2} <= set(land.said) and land.said[-1] == 0
