"""`carillon disb` as a user runs it: a workload in, figures of its clients out."""

from __future__ import annotations

import json
import pathlib
import signal
import subprocess
import time
import xml.etree.ElementTree

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
SCHEDULERS = ["reef", "rt-only", "sequential", "streams", "wait"]
FIGURES = {"requests", "dropped", "rps", "mean_ms", "p50_ms", "p99_ms", "p999_ms"}


def disb(program, *arguments, status=0):
    done = subprocess.run([str(program), "disb", *map(str, arguments)], capture_output=True, text=True, timeout=300)
    assert done.returncode == status, f"{arguments}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def simulated(program, workload, *arguments):
    return json.loads(disb(program, workload, "--simulate", "--duration", "1", "--json", *arguments).stdout)


def without_wall(told):
    return {key: value for key, value in told.items() if key != "wall_s"}


def write(file, document):
    file.write_text(document if isinstance(document, str) else json.dumps(document))
    return file


def task(name, load, model="m"):
    return {"id": name, "load": load, "client": {"model_name": model, "batch_size": 1}}


def one_model(**changes):
    model = {"latency_us": 100, "kernels": [{"name": "k", "blocks": 60, "round_us": [50]},
                                            {"name": "l", "blocks": 120, "round_us": [25, 50]}]} | changes
    return {"device": "d", "units": 60, "models": {"m": model}}


@pytest.fixture
def own(tmp_path):
    """A workload and a table of kernels that fit each other."""
    tasks = [task("a_rt", {"type": "periodic", "frequency": 100}), task("b_be", {"type": "continuous"})]
    return (write(tmp_path / "w.json", {"time": 1, "tasks": tasks}), "--kernels",
            write(tmp_path / "k.json", one_model()))


def test_what_is_told(program):
    told = simulated(program, "A")
    assert list(told) == ["workload", "scheduler", "seed", "seconds", "total_rps", "preemptions", "preemption_p50_us",
                          "preemption_p99_us", "rt", "be", "utilization", "clients", "models", "wall_s"]
    assert (told["workload"], told["scheduler"], told["seconds"]) == ("A", "reef", 1)
    assert set(told["rt"]) == set(told["be"]) == FIGURES
    assert told["rt"]["requests"] == 100
    assert told["total_rps"] == pytest.approx(told["rt"]["rps"] + told["be"]["rps"])
    assert 0 < told["rt"]["p50_ms"] <= told["rt"]["p99_ms"] <= told["rt"]["p999_ms"]
    assert 0 < told["utilization"] <= 1
    clients = told["clients"]
    assert [(c["name"], c["model"], c["class"]) for c in clients] == [
        ("vgg19_rt", "vgg19", "real_time"), ("resnet152_be", "resnet152", "best_effort")]
    assert set(clients[0]) == {"name", "model", "class", "requests", "answered", "dropped", "rps", "mean_ms", "p50_ms",
                               "p99_ms"}
    assert all(c["answered"] + c["dropped"] <= c["requests"] for c in clients)
    assert set(told["models"][0]) == {"model", "real_time_ms", "best_effort_ms", "padded_ms", "lost_ms", "killed"}


def test_each_scheduler_once(program):
    told = simulated(program, "D", "--scheduler", "reef", "--scheduler", "all", "--jobs", "2")
    assert told["workload"] == "D"
    assert [run["scheduler"] for run in told["runs"]] == SCHEDULERS
    by_name = {run["scheduler"]: run for run in told["runs"]}
    assert by_name["rt-only"]["be"]["rps"] == 0
    assert by_name["reef"]["be"]["rps"] > 0
    assert all(run["rt"]["mean_ms"] >= 0.999 * by_name["rt-only"]["rt"]["mean_ms"] for run in told["runs"])


@pytest.mark.parametrize("name", ["A", "b", "B220", "C", "D", "e", "real"])
def test_the_workloads_that_come_with_it(program, name):
    brought = simulated(program, name)
    assert brought["workload"] == name.upper()
    read = simulated(program, ROOT / "scenarios/disb" / f"{name.upper()}.json")
    assert without_wall(read) == without_wall(brought)
    named = simulated(program, name, "--kernels", ROOT / "profiles/mi50_kernels.json")
    assert without_wall(named) == without_wall(brought)


def test_same_seed_same_figures(program):
    arguments = ("E", "--noise", "0.05", "--seed", "7")
    first = without_wall(simulated(program, *arguments))
    assert first == without_wall(simulated(program, *arguments))
    assert first["clients"] != simulated(program, "E", "--noise", "0.05", "--seed", "8")["clients"]
    alone = [without_wall(simulated(program, "E", "--scheduler", name)) for name in SCHEDULERS]
    together = simulated(program, "E", "--scheduler", "all", "--jobs", "5")["runs"]
    assert [without_wall(run) for run in together] == alone


def test_rates_are_scaled(program):
    assert simulated(program, "A", "--scale", "0.5")["rt"]["requests"] == 50
    # 60 seconds' arrivals, ten times as fast.
    told = json.loads(disb(program, "A", "--simulate", "--scale", "10", "--json").stdout)
    assert (told["seconds"], told["rt"]["requests"]) == (6, 6000)


def test_what_reef_can_do_without(program):
    usual = simulated(program, "C")
    for option in ("--no-padding", "--no-look-ahead"):
        assert simulated(program, "C", option)["clients"] != usual["clients"], option
    assert simulated(program, "C", "--no-padding")["be"]["rps"] < usual["be"]["rps"]
    assert simulated(program, "C", "--in-flight", "1", "--in-flight-us", "5")["be"]["rps"] > 0


def test_it_is_shown_and_drawn(program, tmp_path):
    short = ("--simulate", "--duration", "1")
    one = disb(program, "A", *short).stdout
    assert "vgg19_rt" in one and "resnet152_be" in one
    several = disb(program, "A", *short, "--scheduler", "all", "--plot", tmp_path / "a.svg").stdout
    for name in SCHEDULERS:
        assert any(line.startswith(name + " ") for line in several.splitlines()), several
    assert "Differences and ratios are to rt-only" in several and "vgg19_rt" not in several
    drawn = xml.etree.ElementTree.parse(tmp_path / "a.svg")
    words = " ".join(drawn.getroot().itertext())
    for word in [*SCHEDULERS, "latency (ms)", "requests/s", "99th percentile", "best-effort"]:
        assert word in words
    disb(program, "A", *short, "--plot", tmp_path / "nowhere" / "a.svg", status=1)


def test_help_tells_of_all(program):
    told = disb(program, "--help").stdout
    for word in ["B220", "REAL", "--simulate", "--best-effort-share", "--in-flight-us", "Examples:", *SCHEDULERS]:
        assert word in told
    assert "disb" in subprocess.run([str(program), "--help"], capture_output=True, text=True, timeout=60).stdout


def test_live_runs_are_not_there_yet(program):
    done = disb(program, "A", status=1)
    assert "--simulate" in done.stderr and done.stdout == ""


@pytest.mark.parametrize("arguments, status, words", [
    (("F",), 1, "there are A, B, B220, C, D, E, REAL"),
    (("nowhere/w.json",), 1, "nowhere/w.json"),
    (("A", "--scheduler", "fifo"), 2, "there are reef, rt-only, sequential, streams, wait"),
    (("A", "--best-effort-share", "1.5"), 2, "--best-effort-share"),
    (("A", "--best-effort-share", "-0.1"), 2, "--best-effort-share"),
    (("A", "--best-effort-share", "nan"), 2, "--best-effort-share"),
    (("A", "--in-flight", "0"), 2, "--in-flight"),
    (("A", "--in-flight", "513"), 2, "--in-flight"),
    (("A", "--in-flight", "99999999999999999999"), 2, "--in-flight"),
    (("A", "--in-flight-us", "-1"), 2, "--in-flight-us"),
    (("A", "--noise", "2"), 2, "--noise"),
    (("A", "--scale", "0"), 2, "--scale"),
    (("A", "--duration", "0"), 2, "--duration"),
    (("A", "--seed", "-1"), 2, "--seed"),
    (("A", "--jobs", "0"), 2, "--jobs"),
    (("A", "--kernels", "nowhere.json"), 1, "nowhere.json: no such file"),
    ((), 2, "WORKLOAD"),
])
def test_what_cannot_be_run(program, arguments, status, words):
    assert words in disb(program, "--simulate", *arguments, status=status).stderr


@pytest.mark.parametrize("document, words", [
    ("", "not a JSON document"),
    ("[" * 100_000, "more than 16 deep"),
    ({"time": 1}, "document: has no \"tasks\""),
    ({"time": 1, "tasks": []}, "tasks: has 0 tasks"),
    ({"time": -1, "tasks": [task("a_rt", {"type": "continuous"})]}, "time: is -1"),
    ({"time": 1, "tasks": [task("a", {"type": "continuous"})]}, "tasks[0].id: is 'a'"),
    ({"time": 1, "tasks": [task("a_rt", {"type": "continuous"})] * 2}, "tasks[1].id: is 'a_rt'"),
    ({"time": 1, "tasks": [task("a_rt", {"type": "periodic"})]}, "tasks[0].load: has no \"frequency\""),
    ({"time": 1, "tasks": [task("a_rt", {"type": "dependent"})]}, "tasks[0].load.type: is 'dependent'"),
    ({"time": 1, "tasks": [task("a_rt", {"type": "trace", "trace": [1, "2"]})]}, "tasks[0].load.trace[1]: is \"2\""),
    ({"time": 1, "tasks": [task("a_rt", {"type": "continuous"}, model="yolo")]},
     "client 'a_rt' runs 'yolo', which the program's table of kernels does not have; it has alexnet, densenet201"),
])
def test_broken_workloads(program, tmp_path, document, words):
    file = write(tmp_path / "w.json", document)
    assert words in disb(program, file, "--simulate", status=2).stderr


def test_a_workload_and_kernels_of_ones_own(program, own):
    told = simulated(program, *own)
    assert told["workload"] == "w" and told["rt"]["requests"] == 100 and told["be"]["rps"] > 0


@pytest.mark.parametrize("document, words", [
    ("{", "not a JSON document"),
    ({"device": "d", "units": 60}, "document: has no \"models\""),
    ({"device": "d", "units": 0, "models": {}}, "units: is 0"),
    (one_model(kernels=[]), "models.m.kernels: is empty"),
    (one_model(kernels=[{"name": "k", "blocks": 1}]), "models.m.kernels[0]: has no \"round_us\""),
    (one_model(kernels=[{"name": "k", "blocks": 1, "round_us": []}]), "models.m.kernels[0].round_us: is empty"),
    (one_model(kernels=[{"name": "k", "blocks": 1, "round_us": [0]}]), "models.m.kernels[0].round_us[0]: is 0"),
    (one_model(kernels=[{"name": "k", "round_us": [1]}]), "models.m.kernels[0]: has no \"blocks\""),
    (one_model(latency_us=-1), "models.m.latency_us: is -1"),
    (one_model(aliases=["m"]), "models.m.aliases[0]: is 'm'"),
])
def test_broken_kernels(program, own, tmp_path, document, words):
    file = write(tmp_path / "broken.json", document)
    told = disb(program, own[0], "--simulate", "--kernels", file, status=2).stderr
    assert f"{file}: " in told and words in told


def test_it_can_be_ended(program):
    process = subprocess.Popen([str(program), "disb", "E", "--simulate", "--duration", "86400", "--scheduler", "all"],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        out, told = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 1 and out == ""
    assert "interrupted; 0 of 5 runs were done" in told
