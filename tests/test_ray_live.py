"""carillon.ray on a Ray cluster of this machine, and what clients see when one of its parts is killed (kill -9)."""

from __future__ import annotations

import collections
import http.server
import json
import sys
import threading
import urllib.request

import pytest

from cluster_processes import Frontend, Role, etcd, ready, start  # noqa: F401 (fixtures)
from loopback import ROOT, free_addresses
from ray_cluster import RayCluster, alive, kill, missing, tree_of, wait_for

sys.path.append(str(ROOT / "bench"))
from ledger import Ledger  # noqa: E402

WORKERS = 3
RATE, DEADLINE_MS = 60, 4000


@pytest.fixture(scope="module")
def can_have_ray() -> None:
    if why := missing():
        pytest.skip(why)


@pytest.fixture(scope="module")
def can_have_redis(can_have_ray) -> None:
    if why := missing(redis=True):
        pytest.skip(why)


@pytest.fixture
def ray(can_have_redis, tmp_path, program):
    """A head, whose knowledge is in Redis, and a raylet for each worker."""
    cluster = RayCluster(tmp_path, redis=True, environment={"CARILLON_PROGRAM": str(program)})
    try:
        cluster.start_head()
        for number in range(WORKERS):
            cluster.start_node(f"node-{number}", cpus=2)
        wait_for(lambda: cluster.nodes() == WORKERS + 1, "all nodes")
        yield cluster
    finally:
        cluster.end()


@pytest.fixture
def address(etcd) -> str:  # noqa: F811
    return f"etcd://{etcd.client}/box"


def serve(ray, models, address: str, *options: str, workers: int = WORKERS, status: int = 0):
    words = [f"--option={word}" for word in ("--memory", "1GiB", "--no-store")]
    return ray.carillon("serve", str(models), "--cluster", address, "--workers", str(workers), "--resource", "CPU=1", *words, *options, status=status)


@pytest.fixture
def box(ray, program, tiny_models, tmp_path, address):
    """Frontend and schedulers beside Ray, workers on it."""
    beside = [Role(program, tmp_path, "scheduler", id, address) for id in ("s1", "s2")]
    beside.append(Frontend(program, tmp_path, "f1", address))
    try:
        wait_for(lambda: "leads, epoch" in beside[0].text() + beside[1].text(), "a leader")
        serve(ray, tiny_models, address)
        ready(beside[-1])
        yield beside[-1]
    finally:
        for each in beside:
            each.end()


def members(ray, address: str) -> list[str]:
    """Workers that the leader hears, and that have devices."""
    done = ray.driver("-c", f"import subprocess, os; print(subprocess.run([os.environ['CARILLON_PROGRAM'], 'cluster', 'status', '--cluster', {address!r}, "
                            "'--json'], capture_output=True, text=True).stdout)")
    return sorted(each["id"] for each in json.loads(done.stdout)["members"] if each["role"] == "worker" and each["alive"] and each["devices"])


ALL = [f"ray-worker-{i}" for i in range(WORKERS)]


def lone(ray) -> dict[str, int] | None:
    """The process of each worker; none while one has several or none."""
    found = ray.carillons()
    return {id: each[0] for id, each in found.items()} if sorted(found) == ALL and all(len(each) == 1 for each in found.values()) else None


def answers_while(box, disturb, back) -> collections.Counter:
    """What becomes of requests while `disturb` happens, and until `back`."""
    with Ledger([box.http], "tiny_mlp", RATE, DEADLINE_MS) as ledger:
        disturb()
        back()
    assert ledger.doubled == 0 and len(ledger.entries) > RATE
    return collections.Counter(ledger.outcome(each) for each in ledger.entries)


def all_back(ray, address, but: int | None = None) -> None:
    """All workers have one process each, not the killed one, and are members."""
    wait_for(lambda: (found := lone(ray)) is not None and but not in found.values() and members(ray, address) == ALL, "all workers", why=lambda: ray.carillons())


def of_none_lost(counted: collections.Counter) -> None:
    assert counted["on time"] == counted.total(), counted


def test_a_killed_process_comes_back_and_no_answer_is_lost(ray, box, address):
    victim = lone(ray)["ray-worker-0"]
    of_none_lost(answers_while(box, lambda: kill(victim), lambda: all_back(ray, address, victim)))
    state = ray.status(address)["workers"][0]
    assert state["starts"] == 2 and state["why"].startswith("was ended by SIGKILL")


def test_a_killed_actor_takes_its_process_along_and_both_come_back(ray, box, address):
    state = ray.status(address)["workers"][1]

    def disturb():
        kill(state["actor_pid"])
        wait_for(lambda: not alive(state["pid"]), "the end of the actor's process", 2)

    of_none_lost(answers_while(box, disturb, lambda: all_back(ray, address, state["pid"])))
    assert ray.status(address)["workers"][1]["actor_pid"] != state["actor_pid"]


def test_a_killed_raylet_leaves_no_process_and_its_worker_comes_back_elsewhere(ray, box, address):
    before, raylet = lone(ray), ray.raylet("node-2")
    below = [pid for pid in tree_of(raylet) if pid != raylet]
    victims = set(below) & set(before.values())
    assert len(victims) == 1, "workers are spread"

    def disturb():
        kill(raylet)
        wait_for(lambda: not any(alive(pid) for pid in below), "the end of all that the raylet had started", 20)
        ray.forget("node-2")

    # The other nodes have room for a second worker each.
    of_none_lost(answers_while(box, disturb, lambda: all_back(ray, address)))
    assert set(before.values()) - set(lone(ray).values()) == victims


def test_serving_goes_on_while_the_head_is_dead_and_after_it_is_back(ray, box, address):
    before = lone(ray)

    def disturb():
        ray.kill_node("head")

    def back():
        victim = before["ray-worker-0"]
        kill(victim)  # the actor starts it again without Ray's head
        all_back(ray, address, victim)
        ray.start_head()
        wait_for(lambda: ray.nodes() == WORKERS + 1, "all nodes at the next head")

    of_none_lost(answers_while(box, disturb, back))
    after = lone(ray)
    assert after["ray-worker-1"] == before["ray-worker-1"] and after["ray-worker-2"] == before["ray-worker-2"]
    state = ray.status(address)["workers"]
    assert [each["state"] for each in state] == ["runs"] * WORKERS


def test_all_of_a_cluster_by_one_call_scaled_and_deleted(ray, tiny_models, address):
    said = serve(ray, tiny_models, address, "--http", "127.0.0.1:0", "--grpc", "", "--frontend-option=--metrics", "--frontend-option=", workers=2)
    url = said.stdout.strip()
    body = json.dumps({"inputs": [{"name": "input", "datatype": "FP32", "shape": [1, 64], "data": [1.0] * 64}]}).encode()
    with urllib.request.urlopen(urllib.request.Request(f"{url}/v2/models/tiny_mlp/infer", body), timeout=30) as response:
        assert response.status == 200
    refused = serve(ray, tiny_models, address, status=2)
    assert "box is already served on this Ray cluster" in refused.stderr
    ray.carillon("scale", "3", "--cluster", address)
    assert len(ray.carillons()) == 3
    ray.carillon("scale", "1", "--cluster", address)
    wait_for(lambda: sorted(ray.carillons()) == ["ray-worker-0"], "one worker")
    ray.carillon("delete", "--cluster", address)
    assert not ray.carillons("worker") and not ray.carillons("frontend") and not ray.carillons("scheduler")
    refused = ray.carillon("status", "--cluster", address, status=2)
    assert "box is not served on this Ray cluster" in refused.stderr


def test_the_number_of_workers_follows_the_wanted_number(ray, tiny_models, address):
    class Metrics(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(f'carillon_devices_wanted{{subcluster="0"}} {server.wanted}\n'.encode())

        def log_message(self, *_):
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Metrics)
    server.wanted = 3
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        serve(ray, tiny_models, address, "--http", "127.0.0.1:0", "--grpc", "", "--frontend-option=--metrics", "--frontend-option=",
              "--wanted-from", f"http://127.0.0.1:{server.server_port}/metrics", "--most", "3", workers=1)
        wait_for(lambda: lone(ray) is not None, "three workers")
        assert ray.status(address)["scaler"]["wanted_workers"] == 3
        server.wanted = 0
        wait_for(lambda: sorted(ray.carillons()) == ALL[:1], "one worker")
        ray.carillon("delete", "--cluster", address)
        assert not ray.carillons()
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_what_cannot_be_served_is_refused_with_words_and_leaves_nothing(ray, tiny_models, address, tmp_path):
    nobody = free_addresses(1)[0]
    for options, words in (
            (("--cluster", f"etcd://{nobody}/box"), nobody),
            (("--resource", "NPU=1"), "no node of this Ray cluster has the resource 'NPU'"),
            (("--resource", "CPU=64"), "has 'CPU': 64; the most is 2"),
            (("--option=--no-such-option",), "does not last, and ended with status"),
            (("--program", "/nowhere/carillon"), "there is no program /nowhere/carillon")):
        refused = ray.driver("-m", "carillon.ray", "serve", str(tiny_models), "--cluster", address, "--workers", "1", "--http", "127.0.0.1:0",
                             "--grpc", "", "--frontend-option=--metrics", "--frontend-option=", *options)
        assert refused.returncode != 0 and words in refused.stderr, (options, refused.stderr)
    refused = ray.driver("-m", "carillon.ray", "serve", str(tmp_path / "none"), "--cluster", address, "--workers", "1", "--frontends", "0", "--schedulers", "1")
    assert "ray-worker-0: on the node " in refused.stderr and f": there is no folder {tmp_path / 'none'}" in refused.stderr, refused.stderr
    assert not ray.carillons("worker") and not ray.carillons("scheduler")
