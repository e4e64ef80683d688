"""Frontends, schedulers and workers of one cluster, as a user starts them, and what their clients see when one is killed."""

from __future__ import annotations

import concurrent.futures
import json
import re
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.request

import pytest

from certificates import Authority
from cluster_processes import LIMIT, Frontend, Role, etcd, kubernetes, ready, stand_still, start, wait_for  # noqa: F401 (fixtures)
from loopback import free_addresses


@pytest.fixture
def cluster(request) -> str:
    return request.getfixturevalue(getattr(request, "param", "etcd")).cluster()


# What a cluster promises when processes of it end does not depend on what its members find each other by.
by_each = pytest.mark.parametrize("cluster", ["etcd", "kubernetes"], indirect=True)


@pytest.fixture
def roles(program, tiny_models, tmp_path, cluster):
    """Starts processes of the cluster by role and id; ends all."""
    started: list[Role] = []

    def start(role: str, id: str, *options: str, of: str = cluster, listen: str | None = None) -> Role:
        if role == "frontend":
            started.append(Frontend(program, tmp_path, id, of, *options))
        else:
            if role == "worker":
                options = ("--models", str(tiny_models), "--memory", "1GiB", "--no-store", *options)
            started.append(Role(program, tmp_path, role, id, of, *options, listen=listen))
        return started[-1]

    yield start
    for each in started:
        each.end()


@pytest.fixture
def box(roles):
    """Two schedulers, a worker and a frontend, that serve."""
    found = {id: roles(role, id) for id, role in {"s1": "scheduler", "s2": "scheduler", "w1": "worker", "f1": "frontend"}.items()}
    ready(found["f1"])
    return found


def status_of(program, cluster: str, *options: str) -> dict | None:
    done = subprocess.run([str(program), "cluster", "status", "--cluster", cluster, "--json", *options],
                          capture_output=True, text=True, timeout=LIMIT)
    return json.loads(done.stdout) if done.returncode == 0 else None


def leader_of(program, cluster: str, *options: str) -> str:
    said = status_of(program, cluster, *options)
    return said["leader"] if said else ""


def devices_of(program, cluster: str) -> dict[str, int]:
    said = status_of(program, cluster)
    return {member["id"]: member["devices"] for member in said["members"] if member["role"] == "worker"} if said else {}


def answers(frontend: Frontend, count: int, every: float = 0.0, meanwhile=lambda: None) -> list[tuple[int, dict]]:
    """Of requests that overlap; `meanwhile` happens once a third of them is sent."""
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        sent = []
        for i in range(count):
            if i == count // 3:
                meanwhile()
            sent.append(pool.submit(frontend.infer, float(i)))
            time.sleep(every)
        return [each.result() for each in sent]


def right(frontend: Frontend) -> dict[int, list[float]]:
    status, answer = frontend.infer(1.0)
    assert status == 200, answer
    return answer["outputs"][0]["data"]


def test_a_frontend_answers_with_what_a_worker_computed(box, program, cluster):
    one, two = (box["f1"].infer(value)[1]["outputs"][0]["data"] for value in (1.0, 2.0))
    assert len(one) == 10 and one != two
    assert right(box["f1"]) == one
    said = status_of(program, cluster)
    assert {m["id"]: (m["alive"], m["devices"]) for m in said["members"]} == {
        "f1": (True, 0), "s1": (True, 0), "s2": (True, 0), "w1": (True, 1)}


def test_errors_are_those_of_one_process(box):
    status, answer = box["f1"].infer(1.0, model="nothing")
    assert status == 404 and "'nothing' is not in the repository" in answer["error"]
    status, answer = box["f1"].infer(1.0, timeout_ms=0.001)
    assert status == 504 and "deadline" in answer["error"]
    status, answer = box["f1"].infer(1.0, inputs=[{"name": "input", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3]}])
    assert status == 400 and "shape" in answer["error"]


@by_each
def test_no_request_is_lost_when_the_leader_is_killed(box, program, cluster):
    want = right(box["f1"])
    leader = leader_of(program, cluster)
    got = answers(box["f1"], 60, 0.02, box[leader].kill)
    assert [status for status, _ in got] == [200] * 60, [answer for status, answer in got if status != 200][:3]
    assert right(box["f1"]) == want
    other = ({"s1", "s2"} - {leader}).pop()
    assert "leads, epoch" in box[other].text()


@by_each
def test_weights_stay_when_the_leader_is_killed(roles, program, cluster):
    metrics = free_addresses(1)[0]
    box = {id: roles(role, id, *options) for id, role, *options in (
        ("s1", "scheduler"), ("s2", "scheduler"), ("w1", "worker", "--metrics", metrics), ("f1", "frontend"))}
    ready(box["f1"])
    right(box["f1"])

    def free_pages() -> tuple[float, float]:
        with urllib.request.urlopen(f"http://{metrics}/metrics", timeout=LIMIT) as response:
            text = response.read().decode()
        assert "carillon_devices_wanted" not in text, "a worker does not see requests"
        found = {name: float(value) for name, value in re.findall(r"^(carillon_device_pages\w*)\{.*\} (\S+)$", text, re.MULTILINE)}
        return found["carillon_device_pages_free"], found["carillon_device_pages"]

    before = free_pages()
    assert before[0] < before[1]
    leader = leader_of(program, cluster)
    other = box[({"s1", "s2"} - {leader}).pop()]
    box[leader].kill()
    wait_for(lambda: "leads, epoch" in other.text() and devices_of(program, cluster) == {"w1": 1}, f"the next leader: {other.text()}")
    # Whoever loads weights again has given them back first.
    assert free_pages() == before
    right(box["f1"])
    assert free_pages() == before


def test_the_worker_and_the_frontend_count_what_they_do(roles, tiny_models):
    """The worker counts executions and loads. The frontend counts requests, with the times of the worker's reports."""
    metrics = free_addresses(1)[0]
    box = {id: roles(role, id, *options) for id, role, *options in (
        ("s1", "scheduler"), ("w1", "worker", "--metrics", metrics), ("f1", "frontend"))}
    ready(box["f1"])
    for value in range(5):
        assert box["f1"].infer(float(value))[0] == 200
    assert box["f1"].infer(1.0, timeout_ms=0.001)[0] == 504

    def counted() -> dict[str, float]:
        with urllib.request.urlopen(f"http://{metrics}/metrics", timeout=LIMIT) as response:
            text = response.read().decode()
        found = re.findall(r'^(\w+)(?:\{[^}]*model="tiny_mlp"[^}]*\})? (\S+)$', text, re.MULTILINE)
        return {name: float(value) for name, value in found}

    wait_for(lambda: counted().get("nv_inference_exec_count") == 5, f"five executions: {counted()}")  # a report follows its outputs
    now = counted()
    assert now["carillon_model_loads_total"] == 1 and now["carillon_exec_busy_seconds_total"] > 0, now
    with urllib.request.urlopen(f"http://{box['f1'].http}/v2/models/tiny_mlp/stats", timeout=LIMIT) as response:
        told = json.load(response)["model_stats"][0]
    steps = told["inference_stats"]
    assert (told["inference_count"], steps["success"]["count"], steps["fail"]["count"]) == (5, 5, 1), told
    for step in ("queue", "compute_input", "compute_infer", "compute_output"):
        assert steps[step]["count"] == 5, told
    assert 0 < steps["compute_infer"]["ns"] < steps["success"]["ns"], told


@by_each
def test_a_leader_that_was_stopped_is_not_obeyed_when_it_goes_on(box, program, cluster):
    leader = leader_of(program, cluster)
    other = ({"s1", "s2"} - {leader}).pop()
    stand_still(box[leader].process)
    got = answers(box["f1"], 20, 0.02)
    assert [status for status, _ in got] == [200] * 20
    box[leader].signal(signal.SIGCONT)
    wait_for(lambda: "leads no more" in box[leader].text(), f"{leader} to hear of the other: {box[leader].text()}")
    assert [status for status, _ in answers(box["f1"], 20)] == [200] * 20
    assert leader_of(program, cluster) == other


def test_no_request_is_lost_when_a_worker_is_killed(box, roles):
    roles("worker", "w2")
    wait_for(lambda: "leads, epoch" in box["f1"].text(), "a leader")
    got = answers(box["f1"], 60, 0.03, box["w1"].kill)
    assert [status for status, _ in got] == [200] * 60, [answer for status, answer in got if status != 200][:3]


# Its stream stays open: the leader misses its beats.
def test_no_request_waits_for_a_worker_that_stands_still(box, roles, program, cluster):
    w2 = roles("worker", "w2")
    wait_for(lambda: "leads, epoch" in w2.text(), "a leader")
    got = answers(box["f1"], 60, 0.03, lambda: stand_still(box["w1"].process))
    assert [status for status, _ in got] == [200] * 60, [answer for status, answer in got if status != 200][:3]
    box["w1"].signal(signal.SIGCONT)
    wait_for(lambda: devices_of(program, cluster) == {"w1": 1, "w2": 1}, "w1 to be back")
    stand_still(w2.process)
    got = answers(box["f1"], 20, 0.03)
    assert [status for status, _ in got] == [200] * 20, [answer for status, answer in got if status != 200][:3]


def drained(program, cluster: str, id: str, *options: str) -> subprocess.CompletedProcess:
    return subprocess.run([str(program), "cluster", "drain", id, "--cluster", cluster, *options], capture_output=True, text=True, timeout=2 * LIMIT)


@by_each
def test_no_request_is_lost_when_a_drained_worker_is_killed(box, roles, program, cluster):
    only = drained(program, cluster, "w1")
    assert only.returncode == 1 and "no other worker has a device" in only.stderr, only.stderr
    roles("worker", "w2")
    wait_for(lambda: devices_of(program, cluster) == {"w1": 1, "w2": 1}, "both workers")

    def stop_first():
        done = drained(program, cluster, "w1")
        assert (done.returncode, done.stdout) == (0, "w1 is drained\n"), done.stderr
        said = {each["id"]: (each["drain"], each["devices"]) for each in status_of(program, cluster)["members"]}
        assert said == {"w1": ("drained", 0), "w2": ("no", 1), "s1": ("no", 0), "s2": ("no", 0), "f1": ("no", 0)}
        box["w1"].kill()

    got = answers(box["f1"], 90, 0.01, stop_first)
    assert [status for status, _ in got] == [200] * 90, [answer for status, answer in got if status != 200][:3]


def test_a_worker_stays_drained_under_another_leader_until_that_is_undone(box, roles, program, cluster):
    roles("worker", "w2")
    wait_for(lambda: devices_of(program, cluster) == {"w1": 1, "w2": 1}, "both workers")
    assert drained(program, cluster, "w1").returncode == 0
    leader = leader_of(program, cluster)
    box[leader].kill()

    def told() -> dict[str, tuple[str, int]]:
        said = status_of(program, cluster)
        return {m["id"]: (m["drain"], m["devices"]) for m in said["members"] if m["role"] == "worker"} if said and said["leader"] != leader else {}

    wait_for(lambda: told() == {"w1": ("drained", 0), "w2": ("no", 1)}, "the next leader knows")
    undone = drained(program, cluster, "w1", "--undo", "--json")
    assert json.loads(undone.stdout) == {"name": "box", "id": "w1", "drain": "no"}, undone.stderr
    wait_for(lambda: told() == {"w1": ("no", 1), "w2": ("no", 1)}, "w1 serves again")
    assert drained(program, cluster, "w2").returncode == 0  # w1 can do without
    assert box["f1"].infer(1.0)[0] == 200


def draining(program, cluster: str, id: str) -> subprocess.Popen:
    """A drain under way, of a frontend that stands still and so says nothing of it."""
    drain = subprocess.Popen([str(program), "cluster", "drain", id, "--cluster", cluster], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: {m["id"]: m["drain"] for m in (status_of(program, cluster) or {"members": []})["members"]}.get(id) == "drains", f"{id} to drain")
    return drain


def test_a_drain_goes_on_once_the_member_has_registered_anew(box, program, cluster, etcd):
    """Its lease may end while its host stands still, or etcd may lose it."""
    stand_still(box["f1"].process)
    with draining(program, cluster, "f1") as drain:
        etcd.must("kv/deleterange", key="/carillon/box/members/f1")
        wait_for(lambda: "f1" not in {m["id"] for m in status_of(program, cluster)["members"]}, "f1 to be gone")
        time.sleep(0.2)  # in which the drain looks
        box["f1"].signal(signal.SIGCONT)
        assert drain.communicate(timeout=2 * LIMIT) == ("f1 is drained\n", "")
    wait_for(lambda: "cluster: no member for the moment: its key in etcd is gone. It registers anew" in box["f1"].text(), "its log to say so")
    assert box["f1"].infer(1.0)[0] == 200


def test_a_drain_is_given_to_the_next_leader(box, program, cluster):
    stand_still(box["f1"].process)
    with draining(program, cluster, "f1") as drain:
        box[leader_of(program, cluster)].kill()
        box["f1"].signal(signal.SIGCONT)
        assert drain.communicate(timeout=2 * LIMIT) == ("f1 is drained\n", "")
    assert box["f1"].get("/v2/health/ready") == 503


def test_a_worker_that_shares_no_protocol_with_the_frontend_gets_no_work(roles, program, cluster, monkeypatch):
    """The leader goes together with both."""
    monkeypatch.setenv("CARILLON_PROTOCOLS", "2-3")
    leader = roles("scheduler", "s1")
    roles("worker", "w1")
    monkeypatch.setenv("CARILLON_PROTOCOLS", "3-4")
    frontend = roles("frontend", "f1")
    ready(frontend)
    monkeypatch.setenv("CARILLON_PROTOCOLS", "1-2")
    apart = roles("worker", "w9")
    monkeypatch.setenv("CARILLON_PROTOCOLS", "2-3")
    says = "frontend 'f1' speaks protocols 3 to 4: upgrade worker 'w9' to a build that speaks protocol 3. Until then worker 'w9' gets no work"
    wait_for(lambda: says in apart.text(), "its log to name both", apart.text)
    got = answers(frontend, 60, 0.01)
    assert [status for status, _ in got] == [200] * 60, [answer for status, answer in got if status != 200][:3]
    assert devices_of(program, cluster) == {"w1": 1, "w9": 0}
    assert leader.text().count(says) == 1 and apart.text().count(says) == 1, "once each, though it comes again and again"


def test_a_drained_frontend_is_not_ready_and_answers(box, program, cluster):
    assert drained(program, cluster, "f1").stdout == "f1 is drained\n"
    wait_for(lambda: box["f1"].get("/v2/health/ready") == 503, "f1 to be not ready")
    assert box["f1"].infer(1.0)[0] == 200
    assert drained(program, cluster, "f1", "--undo").stdout == "f1 drains no more\n"
    ready(box["f1"])


@by_each
def test_without_a_worker_requests_are_refused_and_with_one_again_answered(box):
    box["w1"].kill()
    wait_for(lambda: box["f1"].get("/v2/health/ready") == 503, "the frontend to be not ready")
    status, answer = box["f1"].infer(1.0, timeout_ms=300)
    assert status in (503, 504), answer
    box["w1"].start()
    ready(box["f1"])
    assert box["f1"].infer(1.0)[0] == 200


@by_each
def test_without_a_leader_a_request_has_its_time_and_then_an_answer(box):
    for id in ("s1", "s2"):
        box[id].kill()
    began = time.monotonic()
    status, answer = box["f1"].infer(1.0, timeout_ms=500)
    assert status == 504 and "deadline" in answer["error"], answer
    assert time.monotonic() - began >= 0.4
    box["s1"].start()
    wait_for(lambda: box["f1"].infer(1.0)[0] == 200, "an answer")


@pytest.mark.parametrize("kind", ["best_effort", "real_time"])
def test_a_model_of_another_class_is_served(program, roles, tiny_models, tmp_path, cluster, kind):
    models = tmp_path / "models"
    shutil.copytree(tiny_models / "tiny_mlp", models / "tiny_mlp")
    with (models / "tiny_mlp" / "config.pbtxt").open("a") as config:
        config.write(f'parameters {{ key: "class" value {{ string_value: "{kind}" }} }}\n')
    roles("scheduler", "s1")
    worker = Role(program, tmp_path, "worker", "w1", cluster, "--models", str(models), "--memory", "1GiB", "--no-store")
    try:
        frontend = roles("frontend", "f1")
        ready(frontend)
        assert [frontend.infer(value)[0] for value in (1.0, 2.0, 3.0)] == [200] * 3
    finally:
        assert worker.end() == 0


def test_a_member_that_waits_says_for_what(roles, program, tmp_path, cluster):
    first = roles("scheduler", "s1")
    wait_for(lambda: "leads, epoch" in first.text(), "a leader")
    for id, of, words in (("s1", cluster, "id 's1' is in use by another process"), ("s9", f"etcd://{free_addresses(1)[0]}/box", "Failed to connect")):
        second = Role(program, tmp_path, "scheduler", id, of)
        try:
            wait_for(lambda said=second, words=words: words in said.text(), f"the words: {words}")
        finally:
            assert second.end() == 0


@by_each
@pytest.mark.parametrize("id", ["w1", "s1", "s2"])
def test_who_takes_the_id_of_a_member_that_runs_harms_nobody(box, program, tmp_path, cluster, id):
    before = status_of(program, cluster)["epoch"]
    second = Role(program, tmp_path, box[id].role, id, cluster, *box[id].command[8:])
    try:
        wait_for(lambda: second.text().count("ready: ") == 2, "the second process")
        time.sleep(1)
        assert [status for status, _ in answers(box["f1"], 20, 0.02)] == [200] * 20
    finally:
        second.end()
    assert [status for status, _ in answers(box["f1"], 20, 0.02)] == [200] * 20
    assert status_of(program, cluster)["epoch"] == before


@by_each
def test_a_member_that_is_stopped_leaves_its_id_to_another_process(box, program, cluster):
    for id in ("f1", "w1", "s2"):
        box[id].end()
        assert id not in {member["id"] for member in status_of(program, cluster)["members"]}


def test_a_static_cluster_serves(program, roles, tmp_path):
    addresses = free_addresses(3)
    file = tmp_path / "box.toml"
    file.write_text('name = "box"\n' + "".join(
        f'[[member]]\nid = "{id}"\nrole = "{role}"\naddress = "{address}"\n'
        for (id, role), address in zip((("s1", "scheduler"), ("w1", "worker"), ("f1", "frontend")), addresses, strict=True)))
    of = f"static:{file}"
    roles("scheduler", "s1", of=of, listen=addresses[0])
    roles("worker", "w1", of=of, listen=addresses[1])
    frontend = Frontend(program, tmp_path, "f1", of, listen=addresses[2])
    try:
        ready(frontend)
        assert frontend.infer(1.0)[0] == 200
        # Members told the leader themselves what they speak.
        checked = subprocess.run([str(program), "cluster", "upgrade-check", "--cluster", of, "--json"], capture_output=True, text=True, timeout=LIMIT)
        said = json.loads(checked.stdout)
        assert checked.returncode == 0 and {each["id"]: each["build"] for each in said["members"]} == dict.fromkeys(("f1", "s1", "w1"), said["build"])
    finally:
        assert frontend.end() == 0


@pytest.fixture
def authority(tmp_path) -> Authority:
    folder = tmp_path / "ca"
    folder.mkdir()
    return Authority(folder)


def test_a_cluster_with_tls_serves_and_loses_no_request_when_the_leader_is_killed(roles, program, cluster, authority):
    box = {id: roles(role, id, *authority.member("box", role, id)) for id, role in {
        "s1": "scheduler", "s2": "scheduler", "w1": "worker", "f1": "frontend"}.items()}
    ready(box["f1"])
    want = right(box["f1"])
    admin, worker = authority.member("box", "admin", "anna"), authority.member("box", "worker", "w1")
    leader = leader_of(program, cluster, *admin)
    assert leader in ("s1", "s2")
    got = answers(box["f1"], 60, 0.02, box[leader].kill)
    assert [status for status, _ in got] == [200] * 60, [answer for status, answer in got if status != 200][:3]
    assert right(box["f1"]) == want
    other = ({"s1", "s2"} - {leader}).pop()
    assert leader_of(program, cluster, *admin) == other

    def handover(*options: str) -> subprocess.CompletedProcess:
        return subprocess.run([str(program), "cluster", "handover", "--cluster", cluster, *options], capture_output=True, text=True, timeout=LIMIT)

    assert "carillon://box/worker/w1, and only schedulers and admins may order" in handover(*worker).stderr
    done = handover()
    assert done.returncode == 1 and "nobody answers" in done.stderr, done.stderr
    # The next of that name, with a certificate that was renewed meanwhile.
    roles("scheduler", leader, *authority.member("box", "scheduler", leader))
    wait_for(lambda: all(m["alive"] for m in status_of(program, cluster, *admin)["members"]), "the other scheduler")
    done = handover(*admin)
    assert done.returncode == 0 and f"{leader} leads" in done.stdout, done.stderr
    assert right(box["f1"]) == want


def test_who_is_not_of_the_cluster_is_named_in_the_log(roles, cluster, authority):
    roles("scheduler", "s1", *authority.member("box", "scheduler", "s1"))
    plain = roles("worker", "w1")
    wait_for(lambda: "no stream to the scheduler at" in plain.text(), f"a word on the scheduler: {plain.text()}")
    stranger = roles("worker", "w2", *Authority(authority.folder, "other").member("box", "worker", "w2"))
    wait_for(lambda: "certificate verify failed" in stranger.text(), f"a word on the certificate: {stranger.text()}")


def test_certificates_that_cannot_be_used_are_named(program, authority, tiny_models):
    def tried(*options: str, id: str = "w1") -> str:
        done = subprocess.run([str(program), "worker", "--cluster", "etcd://127.0.0.1:1/box", "--listen", "127.0.0.1:7000", "--id", id,
                               "--models", str(tiny_models), *options], capture_output=True, text=True, timeout=LIMIT)
        assert done.returncode == 2, done.stderr
        return done.stderr

    expired = authority.member("box", "worker", "w1", days=-1)
    assert f"--cluster-cert {expired[1]}: the certificate expired at" in tried(*expired)
    good = authority.member("box", "worker", "w1")
    assert "the certificate is that of carillon://box/worker/w1, and not of carillon://box/worker/w2" in tried(*good, id="w2")
    assert "give all" in tried(*good[:4])
    assert "--cluster-ca /nothing: No such file" in tried(*good[:5], "/nothing")


@pytest.mark.parametrize(("options", "words"), [
    (["frontend"], "--cluster is required"),
    (["frontend", "--cluster", "box"], "--cluster"),
    (["worker", "--cluster", "etcd://127.0.0.1:1/box", "--listen", "127.0.0.1:7000"], "--models"),
    (["scheduler", "--cluster", "etcd://127.0.0.1:1/box", "--listen", "nowhere"], "--listen"),
    (["scheduler", "--cluster", "etcd://127.0.0.1:1/box", "--listen", "127.0.0.1:7000", "--id", "a b"], "an id is 1 to 64 letters"),
    (["scheduler", "--cluster", "etcd://127.0.0.1:1/box"], "--listen is needed"),
    (["scheduler", "--cluster", "etcd://127.0.0.1:1/box", "--listen", "0.0.0.0:7000"], "one at which they reach this host"),
    (["scheduler", "--cluster", "static:/nothing.toml", "--id", "a"], "/nothing.toml"),
    (["scheduler", "--cluster", "etcd://127.0.0.1:1/box", "--listen", "127.0.0.1:7000", "--cluster-key", "/nothing"], "cannot read '/nothing'"),
    (["scheduler", "--cluster", "etcd://127.0.0.1:1/box", "--listen", "127.0.0.1:7000", "--scheduler", "lottery"], "lottery"),
])
def test_what_is_wrong_is_named(program, options, words):
    done = subprocess.run([str(program), *options], capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 2 and words in done.stderr, done.stderr


def ordered(frontend: Frontend, model: str, what: str, **parameters: str | bool) -> tuple[int, str]:
    """The answer to an order to load or unload."""
    request = urllib.request.Request(f"http://{frontend.http}/v2/repository/models/{model}/{what}",
                                     json.dumps({"parameters": parameters}).encode())
    try:
        with urllib.request.urlopen(request, timeout=LIMIT) as response:
            return response.status, ""
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)["error"]


def test_an_order_to_load_at_a_frontend_holds_for_all_workers(roles, program, cluster):
    explicit = ("--model-control-mode", "explicit")
    roles("scheduler", "s1")
    frontend = roles("frontend", "f1", *explicit)
    first = [roles("worker", id, *explicit) for id in ("w1", "w2")]
    wait_for(lambda: frontend.get("/v2/health/ready") == 200 and devices_of(program, cluster) == {"w1": 1, "w2": 1},
             f"two workers without a model: {frontend.text()}")
    assert frontend.infer(1)[0] == 404
    status, why = ordered(frontend, "no_such_model", "load")
    assert status == 404 and "worker w" in why and "no_such_model" in why
    status, why = ordered(frontend, "tiny_mlp", "load", config="{}")
    assert status != 200 and "brings no config and no files" in why
    status, why = ordered(frontend, "tiny_mlp", "unload", unload_dependents=True)
    assert status != 200 and "leave out unload_dependents" in why
    assert ordered(frontend, "tiny_mlp", "load") == (200, "")
    assert frontend.infer(1)[0] == 200, "at once"
    # Who comes later has it, too.
    roles("worker", "w3", *explicit)
    wait_for(lambda: devices_of(program, cluster).get("w3") == 1, "the third worker")
    for worker in first:
        worker.end()
    wait_for(lambda: frontend.infer(2, timeout_ms=2_000)[0] == 200, f"the third worker to serve: {frontend.text()}")
    assert ordered(frontend, "tiny_mlp", "unload") == (200, "")
    assert frontend.infer(3)[0] in (404, 503)
    plain = roles("frontend", "f2")
    wait_for(lambda: plain.get("/v2/health/live") == 200, "a second frontend")
    wait_for(lambda: "start it with --model-control-mode" in ordered(plain, "tiny_mlp", "load")[1], "a frontend that takes no orders",
             lambda: str(ordered(plain, "tiny_mlp", "load")))


@by_each
def test_an_order_that_is_under_way_has_an_answer_when_another_scheduler_leads(roles, program, cluster):
    """The old leader goes on, and so do the streams to it. The next one has the order, too, and waits for the worker."""
    explicit = ("--model-control-mode", "explicit")
    for scheduler in ("s1", "s2"):
        roles("scheduler", scheduler)
    frontend, worker = roles("frontend", "f1", *explicit), roles("worker", "w1", *explicit)
    wait_for(lambda: frontend.get("/v2/health/ready") == 200, f"a worker without a model: {frontend.text()}")
    stand_still(worker.process)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        order = pool.submit(ordered, frontend, "tiny_mlp", "load")
        leader = leader_of(program, cluster)
        subprocess.run([str(program), "cluster", "handover", "--cluster", cluster], check=True, timeout=LIMIT)
        status, why = order.result()
    assert status == 503 and why == "worker w1 has gone, and may have carried out the order", why
    assert leader_of(program, cluster) != leader
    worker.signal(signal.SIGCONT)
    wait_for(lambda: ordered(frontend, "tiny_mlp", "load") == (200, ""), f"the next leader: {frontend.text()}")
    assert frontend.infer(1)[0] == 200
