"""Why a request was late, refused or took what it took: from a server over both protocols, and from logs of all policies."""

from __future__ import annotations

import contextlib
import gzip
import json
import re
import subprocess
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import grpc
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from loopback import ROOT, policies_of, serving, write_profile

LOGS = Path(__file__).resolve().parent / "logs"
MODEL = "tiny_mlp"


def ask(address: str, path: str, body: dict | None = None, **headers: str):
    """Status, headers and body."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://{address}{path}", data=data, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, response.headers, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read().decode()


def infer(address: str, id: str = "", timeout_us: int = 0, **headers: str):
    return ask(address, f"/v2/models/{MODEL}/infer", {
        "id": id, "parameters": {"timeout": timeout_us},
        "inputs": [{"name": "input", "datatype": "FP32", "shape": [1, 64], "data": [0.5] * 64}]}, **headers)


def record(address: str, number, query: str = "", **headers: str):
    status, _, body = ask(address, f"/v2/carillon/requests/{number}{query}", **headers)
    assert status == 200, body
    return json.loads(body)


def check_trace(text: str) -> list[dict]:
    """What Chrome's trace-event format asks for: times that ascend, begins that end, arrows that begin and lead somewhere."""
    events = json.loads(text)["traceEvents"]
    last, open_slices, flows = 0.0, {}, set()
    for event in events:
        assert isinstance(event["pid"], int) and isinstance(event["tid"], int)
        if event["ph"] == "M":
            continue
        assert event["ts"] >= last
        last = event["ts"]
        stack = open_slices.setdefault((event["pid"], event["tid"]), [])
        match event["ph"]:
            case "B":
                assert not stack, event
                stack.append(event["name"])
            case "E":
                stack.pop()
            case "s":
                assert stack and event["id"] not in flows
                flows.add(event["id"])
            case "t" | "f":
                assert stack and event["id"] in flows, event
            case "C":
                assert event["args"]["waiting"] >= 0
            case _:
                pytest.fail(f"an unknown event: {event}")
    assert not any(open_slices.values())
    return events


# -- a server


@pytest.fixture(scope="module")
def slow(program, tiny_models, tmp_path_factory):
    """A server whose device takes 402 ms for a batch of one."""
    folder = tmp_path_factory.mktemp("slow")
    profile = write_profile(folder / "profile.json", ("tiny_mlp", "tiny_cnn", "tiny_encoder"), overhead_ms=400)
    with serving(program, tiny_models, folder / "log", "--device", f"emulated:{profile}", "--profile",
                 str(profile)) as running:
        # Its model is loaded.
        assert infer(running.http, timeout_us=60_000_000)[0] == 200
        yield running


def test_an_answer_names_its_number_and_the_record_has_its_steps(server):
    status, headers, _ = infer(server.http, id="one", timeout_us=30_000_000)
    assert status == 200
    told = record(server.http, headers["carillon-request"])
    assert told["number"] == int(headers["carillon-request"])
    assert told["id"] == "one" and told["model"] == MODEL and told["version"] == 1
    assert told["outcome"] == "on_time" and told["deadline_us"] == 30_000_000 and told["deadline_from"] == "timeout"
    assert told["batch"] == 1 and told["device"] == 0 and told["companions"] == [] and told["predicted_us"] > 0
    steps = [step["what"] for step in told["steps"]]
    assert steps.index("exec") < steps.index("answer")
    for step in told["steps"]:
        assert step["begin_us"] <= step["end_us"] <= told["took_us"]
    assert record(server.http, "one")["number"] == told["number"]
    assert record(server.http, "one", "?by=id")["number"] == told["number"]
    status, headers, text = ask(server.http, "/v2/carillon/requests/one", Accept="text/plain")
    assert status == 200 and headers["Content-Type"].startswith("text/plain")
    assert f'Request {told["number"]} (id "one") for model {MODEL}' in text


def test_grpc_names_the_number_too(server):
    with grpc.insecure_channel(server.grpc) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        request = service_pb2.ModelInferRequest(model_name=MODEL, id="over-grpc")
        tensor = request.inputs.add(name="input", datatype="FP32", shape=[1, 64])
        tensor.contents.fp32_contents.extend([0.5] * 64)
        _, call = stub.ModelInfer.with_call(request, timeout=60)
        number = dict(call.trailing_metadata())["carillon-request"]
        told = record(server.http, number)
        assert told["id"] == "over-grpc" and told["deadline_from"] == "grpc"
        # As a stream's parameter.
        answer = next(stub.ModelStreamInfer(iter([request]), timeout=60))
        assert record(server.http, answer.infer_response.parameters["carillon-request"].int64_param)["id"] == "over-grpc"
        # And of what is refused.
        request.parameters["timeout"].int64_param = 1
        with pytest.raises(grpc.RpcError) as refused:
            stub.ModelInfer.with_call(request, timeout=60)
        trailing = dict(refused.value.trailing_metadata())
        assert "grpc-retry-pushback-ms" not in trailing and int(trailing["carillon-would-take-us"]) > 0
        assert record(server.http, trailing["carillon-request"])["outcome"] == "refused"


def test_a_deadline_that_no_try_would_keep(slow):
    status, headers, body = infer(slow.http, timeout_us=100_000)
    assert status == 504
    told = record(slow.http, headers["carillon-request"])
    assert told["outcome"] == "refused" and told["reason"] == "cannot_finish"
    assert json.loads(body)["would_take_us"] == int(headers["carillon-would-take-us"]) == told["would_take_us"] > 400_000
    assert headers["Retry-After"] is None and told["retry_after_us"] is None
    assert told["expected"]["exec_us"] >= 400_000
    assert any("shorter" in sentence for sentence in told["story"])


def test_a_refusal_that_waiting_helps_says_for_how_long(slow):
    status = 0
    for _ in range(20):  # on a busy machine the second may come when the first has nearly ended
        done = []
        # It has not the time to wait for others, for a larger batch.
        first = threading.Thread(target=lambda: done.append(infer(slow.http, timeout_us=450_000)[0]))
        first.start()
        time.sleep(0.1)
        # While the first runs, another has to wait for it.
        while status != 504 and not done:
            status, headers, body = infer(slow.http, timeout_us=600_000)
        first.join()
        if status == 504:
            break
    assert status == 504, "none was refused while the device was busy"
    told = record(slow.http, headers["carillon-request"])
    assert told["reason"] == "cannot_finish" and told["expected"]["actions"] >= 1
    ms = int(headers["retry-after-ms"])
    assert 0 < ms <= 2000 and int(headers["Retry-After"]) == -(-ms // 1000)
    assert json.loads(body)["retry_after_ms"] == ms
    assert told["retry_after_us"] <= ms * 1000
    # What came after: the run that it would have waited for.
    assert any(step["what"] == "busy" for step in told["after"])


def test_the_list_and_the_trace(slow):
    infer(slow.http, id="listed", timeout_us=1000)
    _, _, body = ask(slow.http, f"/v2/carillon/requests?model={MODEL}&outcome=refused&limit=1")
    listed = json.loads(body)
    assert listed["capacity"] == 10_000 and len(listed["requests"]) == 1
    assert listed["requests"][0]["id"] == "listed" and listed["requests"][0]["outcome"] == "refused"
    assert ask(slow.http, "/v2/carillon/requests?limit=x")[0] == 400
    events = check_trace(ask(slow.http, "/v2/carillon/trace?seconds=600")[2])
    threads = {event["args"]["name"] for event in events if event.get("name") == "thread_name"}
    assert {"LOAD", "INPUT", "EXEC", "OUTPUT"} <= threads
    assert {"s", "f", "C"} <= {event["ph"] for event in events}


def explain(program: Path, *arguments: str, status: int = 0) -> str:
    done = subprocess.run([str(program), "explain", *arguments], capture_output=True, text=True, timeout=300)
    assert done.returncode == status, done.stderr
    return done.stdout if status == 0 else done.stderr


def test_the_command_asks_a_server(slow, program, tmp_path):
    _, headers, _ = infer(slow.http, id="asked", timeout_us=1000)
    number = headers["carillon-request"]
    url = f"http://{slow.http}"
    assert "It was refused" in explain(program, url, "--request", number)
    assert json.loads(explain(program, url, "--request", "asked", "--by-id", "--json"))["number"] == int(number)
    assert "cannot_finish" in explain(program, url, "--perfetto", str(tmp_path / "trace.json"))
    check_trace((tmp_path / "trace.json").read_text())
    assert json.loads(explain(program, url, "--json"))["models"][0]["model"] == MODEL
    assert "no request 'nobody' is kept" in explain(program, url, "--request", "nobody", status=1)
    assert "needs a log" in explain(program, url, "--policies", "fcfs", status=2)


def test_those_without_a_result_are_listed_with_their_numbers(slow, program):
    numbers = []
    for i in range(22):
        status, headers, _ = infer(slow.http, id=f"refused-{i}", timeout_us=1000)
        assert status == 504
        numbers.append(int(headers["carillon-request"]))
    url = f"http://{slow.http}"
    listed = json.loads(explain(program, url, "--json"))["without_result"]
    assert [row["number"] for row in listed] == numbers[:1:-1]  # the last 20, the newest first
    assert all(row["model"] == MODEL and row["outcome"] == "refused" and row["reason"] for row in listed)
    assert listed[0]["id"] == "refused-21" and listed[0]["arrived_unix_us"] > 1e15
    row, = (line for line in explain(program, url).splitlines() if line.startswith(f"{numbers[-1]} "))
    assert re.search(rf"^{numbers[-1]} +20\d\d-\d\d-\d\d [\d:.]+ UTC +{MODEL} +refused +\w+ +1.000 +[\d.]+  refused-21$", row)
    assert "It was refused" in explain(program, url, "--request", row.split()[0])


def test_a_log_lists_those_without_a_result(program, tmp_path):
    overload, log = ROOT / "scenarios/overload.toml", tmp_path / "run.log"
    subprocess.run([program, "simulate", overload, "--scheduler", "clockwork", "--rate", "100", "--record", log],
                   check=True, capture_output=True, timeout=120)
    told = json.loads(explain(program, str(log), "--json"))
    listed = told["without_result"]
    refused = sum(row["refused"] + row["failed"] for row in told["models"])
    assert refused > 20 and len(listed) == 20
    assert [row["number"] for row in listed] == sorted((row["number"] for row in listed), reverse=True)
    assert all(row["arrived_us"] > 0 for row in listed)
    number = str(listed[0]["number"])
    assert any(line.split()[:1] == [number] and " s " in line for line in explain(program, str(log)).splitlines())
    assert json.loads(explain(program, str(log), "--request", number, "--json", "--policies", "fcfs"))["request"]["outcome"] == "refused"


def test_without_a_journal_nothing_is_numbered(program, tiny_models, tmp_path):
    with serving(program, tiny_models, tmp_path / "log", "--journal", "0") as off:
        status, headers, _ = infer(off.http)
        assert status == 200 and headers["carillon-request"] is None
        status, _, body = ask(off.http, "/v2/carillon/requests")
        assert status == 404 and "--journal 0" in body


def test_keys_see_their_own_requests(program, tiny_models, tmp_path):
    secrets = {name: f"the-secret-of-{name}-0123456789" for name in ("a", "b", "boss")}
    keys = tmp_path / "keys.toml"
    roles = {"boss": '"infer", "admin"'}
    keys.write_text("".join(f"""
[[key]]
name = "{name}"
secret = "{secret}"
roles = [{roles.get(name, '"infer"')}]
""" for name, secret in secrets.items()))
    keys.chmod(0o600)
    with serving(program, tiny_models, tmp_path / "log", "--keys", str(keys)) as guarded:
        def head(name):
            return {"x-api-key": secrets[name]}
        numbers = {name: infer(guarded.http, **head(name))[1]["carillon-request"] for name in ("a", "b")}
        for name, own in numbers.items():
            assert record(guarded.http, own, **head(name))["key"] == name
            listed = json.loads(ask(guarded.http, "/v2/carillon/requests", **head(name))[2])["requests"]
            assert [each["number"] for each in listed] == [int(own)]
        assert ask(guarded.http, f"/v2/carillon/requests/{numbers['b']}", **head("a"))[0] == 404
        assert record(guarded.http, numbers["b"], **head("boss"))["key"] == "b"
        assert ask(guarded.http, "/v2/carillon/requests")[0] == 401
        assert ask(guarded.http, "/v2/carillon/trace", **head("a"))[0] == 403
        check_trace(ask(guarded.http, "/v2/carillon/trace", **head("boss"))[2])
        secret = tmp_path / "secret"
        secret.write_text(secrets["boss"] + "\n")
        assert "Request" in explain(program, f"http://{guarded.http}", "--request", numbers["a"], "--key-file", str(secret))


# -- logs


@contextlib.contextmanager
def unpacked(name: str, folder: Path):
    log = folder / f"{name}.log"
    log.write_bytes(gzip.decompress((LOGS / f"{name}.log.gz").read_bytes()))
    yield log


@pytest.mark.parametrize("name", sorted(file.name.removesuffix(".log.gz") for file in LOGS.glob("*.log.gz")))
def test_a_log_of_every_policy_is_explained(program, tmp_path, name):
    with unpacked(name, tmp_path) as log:
        trace = tmp_path / "trace.json"
        summary = json.loads(explain(program, str(log), "--json", "--perfetto", str(trace)))
        events = check_trace(trace.read_text())
        assert any(event["ph"] == "s" for event in events)
        counted = json.loads(explain_replay(program, log))["recorded"]
        total = {outcome: sum(row[outcome] for row in summary["models"])
                 for outcome in ("on_time", "late", "refused", "cancelled", "failed", "open")}
        assert total["on_time"] == counted["on_time"] and total["late"] == counted["late"]
        assert total["refused"] + total["failed"] == counted["refused"] and total["cancelled"] == counted["cancelled"]
        assert summary["requests"] == counted["requests"]


def explain_replay(program: Path, log: Path) -> str:
    return subprocess.run([str(program), "replay", str(log), "--json"], capture_output=True, text=True, timeout=120).stdout


@pytest.mark.parametrize("name", ["simulated_clockwork", "live_symphony", "live_orloj"])
def test_all_policies_say_what_they_would_have_done(program, tmp_path, name):
    with unpacked(name, tmp_path) as log:
        # The first that was refused, and one that had its answer.
        text = log.read_text()
        refused = next(line.split()[2] for line in text.splitlines() if line.startswith("a refuse "))
        answered = next(line.split()[9] for line in text.splitlines() if line.startswith("a infer "))
        for number in (refused, answered):
            told = json.loads(explain(program, str(log), "--request", number, "--json"))
            assert told["request"]["number"] == int(number)
            fates = {fate["policy"]: fate for fate in told["policies"]}
            assert set(fates) >= set(policies_of(program))
            assert told["policies"][0]["recorded"] and told["policies"][0]["policy"] == told["scheduler"]
            for fate in fates.values():
                assert fate["outcome"] in ("on_time", "late", "refused", "failed"), fate
                assert (fate["start_us"] is not None) == (fate["batch"] is not None)
        shown = explain(program, str(log), "--request", refused, "--policies", "fcfs,eager")
        assert "It was refused" in shown and "Simulated, not replayed" in shown and "as recorded" in shown


def test_a_simulation_is_told_as_it_was(program, tmp_path):
    """The recorded policy, simulated from its own log, does what it did."""
    scenario = tmp_path / "s.toml"
    scenario.write_text("""
name = "exact"
seed = 3
duration_s = 1
[cluster]
devices = 1
network_delay_us = 0
[load]
rate = 300
[[models]]
name = "m"
slo_ms = 30
max_batch = 8
latency = { alpha_ms = 1, beta_ms = 6 }
""")
    log = tmp_path / "run.log"
    subprocess.run([str(program), "simulate", str(scenario), "--scheduler", "clockwork", "--record", str(log)],
                   check=True, capture_output=True, timeout=120)
    for number in ("0", "17", "120", "200"):
        told = json.loads(explain(program, str(log), "--request", number, "--policies", "clockwork", "--json"))
        fate = told["policies"][0]
        assert len(told["policies"]) == 1 and fate["recorded"]
        assert fate["outcome"] == told["request"]["outcome"]
        assert fate["took_us"] == told["request"]["took_us"] and fate["batch"] == told["request"]["batch"]


def test_wrong_use_is_told(program, tmp_path):
    with unpacked("simulated_fcfs", tmp_path) as log:
        assert "has no request 99999999" in explain(program, str(log), "--request", "99999999", status=1)
        assert "by its own numbers alone" in explain(program, str(log), "--request", "x", status=2)
        assert "best" in explain(program, str(log), "--request", "1", "--policies", "best", status=2)
        said = explain(program, str(log), "--perfetto", "/no/such/folder/file", status=1)
        assert "--perfetto: cannot write '/no/such/folder/file': No such file or directory" in said
    said = explain(program, str(tmp_path / "none"), status=1)
    assert f"cannot read the log '{tmp_path / 'none'}': No such file or directory" in said
    assert f"cannot read the log '{tmp_path}': Is a directory" in explain(program, str(tmp_path), status=1)


@pytest.mark.parametrize(("target", "meant"), [
    ("localhost:8000", "such as http://localhost:8000"), ("127.0.0.1:8000/", "such as http://127.0.0.1:8000/"),
    ("[::1]:8003", "such as http://[::1]:8003"), ("grpc://localhost:8001", "asked over HTTP"),
    ("htp://localhost:8000", "asked over HTTP")])
def test_an_address_without_http_is_told(program, target, meant):
    said = explain(program, target, "--request", "1", status=2)
    assert f"there is no log '{target}'; " in said and meant in said


def test_a_log_may_be_called_like_an_address(program, tmp_path):
    with unpacked("simulated_fcfs", tmp_path) as log:
        log.rename(tmp_path / "localhost:8000")
        done = subprocess.run([program, "explain", "localhost:8000"], capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert done.returncode == 0 and "requests under fcfs" in done.stdout, done.stderr


def test_what_the_policy_went_by(program, tmp_path):
    """The policy carillon, asked of a request that it refused and of one that it sent."""
    log = tmp_path / "log"
    subprocess.run([str(program), "simulate", str(Path(__file__).parents[1] / "scenarios/policy/open/abuse_2.toml"), "--duration", "3", "--record",
                    str(log), "--scheduler", "carillon", "--json"], check=True, stdout=subprocess.DEVNULL)
    summary = json.loads(explain(program, str(log), "--json"))
    refused = summary["without_result"][0]["number"]
    for number, decided in (refused, "refused"), (refused - 1000, ""):
        told = json.loads(explain(program, str(log), "--request", str(number), "--json", "--policies", "fcfs"))
        last = told["went_by"][-1]
        assert decided in last["when"] and last["at_us"] >= 0
        assert last["terms"]["devices are short"].startswith(("yes: ", "no"))
        assert "requests" in last["terms"]["of its model there wait"]
    text = explain(program, str(log), "--request", str(refused), "--policies", "fcfs")
    assert "What carillon went by" in text and "devices are short" in text
    # Others do not tell.
    other = tmp_path / "other"
    subprocess.run([str(program), "simulate", str(Path(__file__).parents[1] / "scenarios/policy/open/abuse_2.toml"), "--duration", "3", "--record",
                    str(other), "--scheduler", "fcfs", "--json"], check=True, stdout=subprocess.DEVNULL)
    assert json.loads(explain(program, str(other), "--request", "5", "--json", "--policies", "fcfs"))["went_by"] == []
