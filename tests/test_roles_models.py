"""A cluster whose workers have different models: requests go to workers that have theirs, and clients hear what nobody has."""

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

import numpy
import onnx
import pytest

from cluster_processes import LIMIT, Frontend, Role, etcd, stand_still, start, wait_for  # noqa: F401 (fixtures)
from loopback import free_addresses


@pytest.fixture
def box(program, tiny_models, tmp_path, etcd):
    """Starts processes of a cluster; a worker has a folder of its own with these models, copies of tiny_mlp."""
    started: list[Role] = []
    cluster = f"etcd://{etcd.client}/box"

    def begin(role: str, id: str, *options: str, models: tuple[str, ...] = ()) -> Role:
        if role == "frontend":
            started.append(Frontend(program, tmp_path, id, cluster, *options))
            return started[-1]
        if role == "worker":
            options = ("--no-store", *options)
            if "--memory" not in options:
                options += ("--memory", "1GiB")
            if "--models" not in options:
                put(tmp_path / f"models-{id}", *models)
                options += ("--models", str(tmp_path / f"models-{id}"))
        started.append(Role(program, tmp_path, role, id, cluster, *options))
        return started[-1]

    def put(folder, *models: str) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for model in models:
            shutil.copytree(tiny_models / "tiny_mlp", folder / model)
            config = folder / model / "config.pbtxt"
            if config.exists():
                config.write_text(config.read_text().replace("tiny_mlp", model))

    begin.put = lambda worker, *models: put(tmp_path / f"models-{worker.id}", *models)
    yield begin
    for each in started:
        each.end()


def told(frontend: Frontend, path: str, body: dict | None = None) -> tuple[int, dict, dict]:
    """Status, JSON and headers of an answer."""
    request = urllib.request.Request(f"http://{frontend.http}{path}", None if body is None else json.dumps(body).encode())
    try:
        with urllib.request.urlopen(request, timeout=LIMIT) as response:
            text, status, headers = response.read(), response.status, response.headers
    except urllib.error.HTTPError as error:
        text, status, headers = error.read(), error.code, error.headers
    return status, json.loads(text) if text else {}, headers


def put_product(folder, columns: int) -> None:
    """A model: 64 numbers times weights, [64, columns]."""
    weights = onnx.numpy_helper.from_array(numpy.ones((64, columns), numpy.float32), "w")
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph([onnx.helper.make_node("MatMul", ["input", "w"], ["output"])], "product",
                                   [value("input", onnx.TensorProto.FLOAT, ["N", 64])],
                                   [value("output", onnx.TensorProto.FLOAT, ["N", columns])], [weights])
    (folder / "1").mkdir(parents=True)
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8),
              folder / "1" / "model.onnx")


def served(frontend: Frontend, *models: str) -> None:
    wait_for(lambda: all(frontend.get(f"/v2/models/{model}/ready") == 200 for model in models), f"{models} to be served: {frontend.text()}")


@pytest.mark.parametrize("policy", ["clockwork", "symphony", "edf", "fcfs"])
def test_requests_go_to_a_worker_that_has_their_model(box, policy):
    box("scheduler", "s1", "--scheduler", policy)
    frontend = box("frontend", "f1")
    box("worker", "wb", models=("tiny_mlp",))
    served(frontend, "tiny_mlp")
    box("worker", "wa", models=("tiny_mlp", "tb"))
    served(frontend, "tb")
    got = [frontend.infer(float(i), model=model) for i in range(20) for model in ("tb", "tiny_mlp")]
    assert [status for status, _ in got] == [200] * 40, [answer for status, answer in got if status != 200][:3]


def test_a_worker_that_comes_back_without_a_model_leaves_it_to_others(box):
    explicit = ("--model-control-mode", "explicit")
    box("scheduler", "s1")
    frontend = box("frontend", "f1", *explicit)
    box("worker", "w2", *explicit, models=("tb",))
    w3 = box("worker", "w3", *explicit, models=("tb",))
    wait_for(lambda: frontend.get("/v2/health/ready") == 200, "workers")
    wait_for(lambda: told(frontend, "/v2/repository/models/tb/load", {})[0] == 200, "tb to be loaded")
    served(frontend, "tb")
    w3.end()
    box.put(w3)
    before = w3.text().count("leads, epoch")
    w3.start()
    wait_for(lambda: w3.text().count("leads, epoch") > before, f"w3 to be back: {w3.text()}")
    got = [frontend.infer(float(i), model="tb") for i in range(20)]
    assert [status for status, _ in got] == [200] * 20, [answer for status, answer in got if status != 200][:3]


def relu(folder) -> None:
    """A model without weights."""
    def value(name: str):
        return onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["N", 64])

    graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["input"], ["output"])], "relu", [value("input")], [value("output")])
    (folder / "1").mkdir(parents=True)
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), folder / "1" / "model.onnx")


def test_a_model_without_weights_runs_where_it_is(box, tmp_path):
    box("scheduler", "s1")
    frontend = box("frontend", "f1")
    box("worker", "wb", models=("tiny_mlp",))
    served(frontend, "tiny_mlp")
    relu(tmp_path / "more" / "relu")
    box("worker", "wa", "--models", str(tmp_path / "more"))
    served(frontend, "relu")
    got = [frontend.infer(float(i), model="relu") for i in range(20)]
    assert [status for status, _ in got] == [200] * 20, [answer for status, answer in got if status != 200][:3]


def states(frontend: Frontend) -> dict[str, str]:
    return {each["name"]: each["state"] for each in told(frontend, "/v2/repository/index", {})[1]}


def test_a_model_that_no_worker_has_is_not_ready(box):
    box("scheduler", "s1")
    frontend = box("frontend", "f1")
    box("worker", "w1", models=("tiny_mlp",))
    w2 = box("worker", "w2", models=("tiny_mlp", "tb"))
    served(frontend, "tiny_mlp", "tb")
    w2.kill()
    wait_for(lambda: frontend.get("/v2/models/tb/ready") != 200, "tb to be not ready")
    assert states(frontend) == {"tiny_mlp": "READY", "tb": "UNAVAILABLE"}
    body = {"inputs": [{"name": "input", "datatype": "FP32", "shape": [1, 64], "data": [1] * 64}]}
    status, answer, headers = told(frontend, "/v2/models/tb/infer", body)
    assert status == 503 and "no worker has it" in answer["error"] and headers["Retry-After"] == "1", (answer, headers)
    assert frontend.get("/v2/health/ready") == 200 and frontend.infer(1.0)[0] == 200
    # The worker is back with an empty folder, and its model is forgotten.
    box.put(w2)
    w2.start()
    wait_for(lambda: "no worker has it" == next(each for each in told(frontend, "/v2/repository/index", {})[1] if each["name"] == "tb").get("reason"),
             "tb to be forgotten")
    status, answer, headers = told(frontend, "/v2/models/tb/infer", body)
    assert status == 503 and "no worker has it" in answer["error"] and headers["Retry-After"] == "1", (answer, headers)
    w2.end()
    box.put(w2, "tb")
    w2.start()
    served(frontend, "tb")
    assert frontend.infer(1.0, model="tb")[0] == 200


def test_a_frontend_says_why_it_is_not_ready(box, program):
    frontend = box("frontend", "f1")
    wait_for(lambda: "no scheduler leads cluster 'box'" in frontend.text(), "a word on the leader in the log")
    assert "none is registered" in frontend.text()

    def why() -> str:
        return told(frontend, "/v2/health/ready")[1].get("error", "")

    assert why() == "no scheduler leads cluster 'box'"
    box("scheduler", "s1")
    wait_for(lambda: why() == "no worker of cluster 'box' has a device", "a leader")
    box("worker", "w1", models=("tiny_mlp",))
    served(frontend, "tiny_mlp")
    wait_for(lambda: why() == "", "the frontend to be ready")
    for _ in range(2):
        done = ordered_of(program, frontend, "drain", "f1")
        assert done.stdout == "f1 is drained\n", done.stderr
    wait_for(lambda: "this frontend drains" in why(), "the frontend to drain")
    assert frontend.text().count("drains: it answers on") == 1


def ordered_of(program, member: Role, *words: str) -> subprocess.CompletedProcess:
    return subprocess.run([str(program), "cluster", *words, "--cluster", member.command[member.command.index("--cluster") + 1]],
                          capture_output=True, text=True, timeout=2 * LIMIT)


def test_the_last_spare_is_not_drained_unless_forced(box, program):
    schedulers = {id: box("scheduler", id) for id in ("s1", "s2", "s3")}
    any_of = schedulers["s1"]

    def status() -> dict:
        done = ordered_of(program, any_of, "status", "--json")
        return json.loads(done.stdout) if done.returncode == 0 else {"leader": None, "members": []}

    wait_for(lambda: status()["leader"] and len([m for m in status()["members"] if m["alive"]]) == 3, "three schedulers")
    leader = status()["leader"]
    first, last = sorted(set(schedulers) - {leader})
    assert ordered_of(program, any_of, "handover", leader).stderr.endswith(f"{leader} leads already\n")
    assert ordered_of(program, any_of, "drain", first).stdout == f"{first} is drained\n"
    assert "drains: it does not claim the lead any more" in schedulers[first].text()
    assert f"{first} is drained" in ordered_of(program, any_of, "status").stdout
    refused = ordered_of(program, any_of, "drain", last, "--json")
    assert refused.returncode == 1 and f"{last} is the last spare" in json.loads(refused.stdout)["error"], refused
    assert ordered_of(program, any_of, "drain", last, "--force").stdout == f"{last} is drained\n"
    assert {m["id"]: m["drain"] for m in status()["members"]} == {leader: "no", first: "drained", last: "drained"}
    assert ordered_of(program, any_of, "drain", first, "--undo").returncode == 0
    assert f"'{leader}' leads, epoch" in schedulers[first].text()


def test_two_drains_at_once_leave_a_spare(box, program):
    schedulers = [box("scheduler", id) for id in ("s1", "s2", "s3")]

    def status() -> dict:
        done = ordered_of(program, schedulers[0], "status", "--json")
        return json.loads(done.stdout) if done.returncode == 0 else {"leader": None, "members": []}

    wait_for(lambda: status()["leader"] and len([m for m in status()["members"] if m["alive"]]) == 3, "three schedulers")
    spares = sorted({"s1", "s2", "s3"} - {status()["leader"]})
    for _ in range(5):
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            done = list(pool.map(lambda id: ordered_of(program, schedulers[0], "drain", id), spares))
        drains = {m["id"]: m["drain"] for m in status()["members"]}
        assert [drains[id] == "drained" for id in spares] == [each.returncode == 0 for each in done], (drains, done)
        assert any(drains[id] == "no" for id in spares), "nobody would lead when the leader goes"
        assert all(each.returncode == 0 or "is the last spare" in each.stderr for each in done), done
        for id in spares:
            assert ordered_of(program, schedulers[0], "drain", id, "--undo").returncode == 0


def test_a_drain_loads_elsewhere_what_the_worker_alone_holds(box, program, tmp_path):
    """Each device has room for two of four models, of 7 MiB each."""
    models = ("ta", "tb", "tc", "td")
    for model in models:
        put_product(tmp_path / "models" / model, 7 << 12)
    box("scheduler", "s1")
    frontend = box("frontend", "f1")
    at = dict(zip(("w1", "w2"), free_addresses(2)))
    for id in at:
        box("worker", id, "--models", str(tmp_path / "models"), "--page-cache", "16MiB", "--metrics", at[id])

    def metric(id: str, name: str) -> dict[str, float]:
        with urllib.request.urlopen(f"http://{at[id]}/metrics", timeout=LIMIT) as response:
            text = response.read().decode()
        return {re.search(r'model="(\w+)"', labels).group(1): float(number) for labels, number in re.findall(rf"^{name}{{(.*)}} (\S+)$", text, re.M)}

    def held(id: str) -> set[str]:
        gone = metric(id, "carillon_model_unloads_total")
        return {model for model, loads in metric(id, "carillon_model_loads_total").items() if loads > gone[model]}

    def each_is_somewhere() -> bool:
        served(frontend, *sorted(set(models) - held("w1") - held("w2")))  # in the place of what both have
        return len(held("w1")) == len(held("w2")) == 2 and held("w1") | held("w2") == set(models)

    served(frontend, *models)
    wait_for(each_is_somewhere, "each model to be somewhere", lambda: f"{held('w1')} {held('w2')}")
    used = held("w1")
    time.sleep(10.5)  # nobody uses what w2 holds
    for model in used:
        assert frontend.infer(1.0, model=model)[0] == 200
    done = ordered_of(program, frontend, "drain", "w1")
    assert done.stdout == "w1 is drained\n", done.stderr
    assert held("w2") == used
    before = metric("w2", "carillon_model_loads_total")
    for model in used:
        assert frontend.infer(1.0, model=model)[0] == 200
    assert metric("w2", "carillon_model_loads_total") == before, "a request met a cold model"


def test_an_order_to_load_is_given_to_the_next_leader(box, program):
    explicit = ("--model-control-mode", "explicit")
    schedulers = {id: box("scheduler", id) for id in ("s1", "s2")}
    frontend = box("frontend", "f1", *explicit)
    worker = box("worker", "w1", *explicit, models=("tiny_mlp",))
    wait_for(lambda: frontend.get("/v2/health/ready") == 200, "a worker")

    def leader_now() -> str | None:
        done = ordered_of(program, frontend, "status", "--json")
        return json.loads(done.stdout)["leader"] if done.returncode == 0 else None

    leader = leader_now()
    stand_still(worker.process)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        answer = pool.submit(told, frontend, "/v2/repository/models/tiny_mlp/load", {})
        time.sleep(0.3)  # in which the leader gets it
        schedulers[leader].kill()
        wait_for(lambda: leader_now() not in (None, leader), "the next leader")
        worker.signal(signal.SIGCONT)
        assert answer.result()[0] == 200, answer.result()
    served(frontend, "tiny_mlp")


def test_an_unload_names_a_worker_that_serves_on(box):
    explicit = ("--model-control-mode", "explicit")
    box("scheduler", "s1")
    frontend = box("frontend", "f1", *explicit)
    box("worker", "w1", *explicit, models=("tiny_mlp",))
    box("worker", "w2", models=("tiny_mlp",))
    served(frontend, "tiny_mlp")
    wait_for(lambda: told(frontend, "/v2/repository/models/tiny_mlp/load", {})[0] == 200, "w1 to load it")
    status, answer, _ = told(frontend, "/v2/repository/models/tiny_mlp/unload", {})
    assert status == 503 and "worker w2: it takes no orders to load and unload" in answer["error"], answer
    assert frontend.infer(1.0)[0] == 200


def test_a_model_that_never_fits_is_no_fault_that_passes(box, tmp_path):
    explicit = ("--model-control-mode", "explicit")
    box("scheduler", "s1")
    frontend = box("frontend", "f1", *explicit)
    folder = tmp_path / "large"
    put_product(folder / "large", 2_000_000)
    box("worker", "w1", *explicit, "--models", str(folder), "--memory", "300MiB")
    wait_for(lambda: frontend.get("/v2/health/ready") == 200, "a worker")
    status, answer, headers = told(frontend, "/v2/repository/models/large/load", {})
    assert status == 400 and "worker w1" in answer["error"] and headers["Retry-After"] is None, answer


def test_addresses_that_cannot_do_are_named(program, tmp_path, etcd):
    for id, of, words in (("s1", f"etcds://{etcd.client}/box", "does etcd speak TLS?"),
                          ("s2", "etcd://192.0.2.1:2379/box", "only this host can reach that address, and etcd is on another")):
        member = Role(program, tmp_path, "scheduler", id, of)
        try:
            wait_for(lambda member=member, words=words: words in member.text(), f"the words: {words}", member.text)
        finally:
            member.end()


def test_who_is_not_in_a_static_file_is_told_who_is(program, tmp_path):
    file = tmp_path / "box.toml"
    file.write_text('name = "box"\n[[member]]\nid = "s1"\nrole = "scheduler"\naddress = "127.0.0.1:7000"\n')
    done = subprocess.run([str(program), "scheduler", "--cluster", f"static:{file}", "--id", "s9"], capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 2 and "box.toml has no member 's9'; it has s1" in done.stderr, done.stderr


def test_a_command_that_fails_prints_one_object(program):
    for words in (("status",), ("handover",), ("drain", "w1")):
        done = subprocess.run([str(program), "cluster", *words, "--cluster", "static:/nothing.toml", "--json"],
                              capture_output=True, text=True, timeout=LIMIT)
        assert done.returncode != 0 and "/nothing.toml" in json.loads(done.stdout)["error"], done
