"""`carillon disb` as a user runs it: a workload in, figures of its clients out."""

from __future__ import annotations

import json
import pathlib
import shutil
import signal
import subprocess
import time
import xml.etree.ElementTree

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
SCHEDULERS = ["reef", "rt-only", "sequential", "streams", "wait"]
FIGURES = {"requests", "answered", "dropped", "unfinished", "rps", "mean_ms", "p50_ms", "p99_ms", "p999_ms"}


CLIENT = {"name", "model", "class", "requests", "answered", "dropped", "unfinished", "rps", "mean_ms", "p50_ms", "p99_ms"}


def disb(program, *arguments, status=0):
    done = subprocess.run([str(program), "disb", *map(str, arguments)], capture_output=True, text=True, timeout=300)
    assert done.returncode == status, f"{arguments}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def simulated(program, workload, *arguments):
    return json.loads(disb(program, workload, "--simulate", "--duration", "1", "--json", *arguments).stdout)


def without_wall(told):
    return {key: value for key, value in told.items() if key != "wall_s"}


def assert_counts_add_up(told):
    for each in [told["rt"], told["be"], *told["clients"]]:
        assert each["requests"] == each["answered"] + each["dropped"] + each["unfinished"], each
    for count in ("requests", "answered", "dropped", "unfinished"):
        assert sum(c[count] for c in told["clients"]) == told["rt"][count] + told["be"][count]


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
    assert set(clients[0]) == CLIENT
    assert_counts_add_up(told)
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
    (("A", "--seed", "18446744073709551616"), 2, "not '18446744073709551616'"),
    (("A", "--seed", "1e3"), 2, "--seed"),
    (("A", "--scale", "auto"), 2, "--scale auto is of live runs"),
    (("A", "--threads", "2"), 2, "--simulate excludes --threads"),
    (("A", "--plot", "nowhere/a.svg"), 1, "--plot: cannot write 'nowhere/a.svg': No such file or directory"),
    (("A", "--kernels", "scenarios"), 2, "scenarios: is a directory"),
    (("A", "--jobs", "0"), 2, "--jobs"),
    (("A", "--kernels", "nowhere.json"), 1, "nowhere.json: no such file"),
    ((), 2, "WORKLOAD"),
])
def test_what_cannot_be_run(program, arguments, status, words):
    if "scenarios" in arguments:
        arguments = [ROOT / a if a == "scenarios" else a for a in arguments]
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


# --- Live, on tiny models: what they take says nothing, but all else is as with large ones.

@pytest.fixture(scope="session")
def live_models(tiny_models, tmp_path_factory):
    """The tiny models, and copies of them under the names that DISB's workloads know."""
    folder = tmp_path_factory.mktemp("live")
    for name, source in {"tiny_mlp": "tiny_mlp", "tiny_cnn": "tiny_cnn", "vgg19": "tiny_cnn", "resnet152": "tiny_mlp",
                         "densenet201": "tiny_mlp", "inceptionv3": "tiny_cnn", "distilbert": "tiny_encoder"}.items():
        shutil.copytree(tiny_models / source, folder / name)
        config = folder / name / "config.pbtxt"
        config.write_text(config.read_text().replace(f'name: "{source}"', f'name: "{name}"', 1))
    return folder


def live(program, models, workload, *arguments):
    told = disb(program, workload, "--models", models, "--duration", "0.5", "--warm-up", "0.1", "--json", *arguments)
    return json.loads(told.stdout)


@pytest.fixture
def live_workload(tmp_path):
    return write(tmp_path / "live.json", {"time": 60, "tasks": [
        task("a_rt", {"type": "periodic", "frequency": 50}, "tiny_mlp"),
        task("b_rt", {"type": "trace", "trace": [0, 10, 20, 3000]}, "tiny_cnn"),
        task("c_be", {"type": "continuous"}, "tiny_cnn"), task("d_be", {"type": "poisson", "frequency": 30}, "tiny_mlp")]})


def test_live_under_every_scheduler(program, live_models):
    told = live(program, live_models, "A", "--scheduler", "all", "--threads", "2")
    assert told["workload"] == "A"
    assert [run["scheduler"] for run in told["runs"]] == SCHEDULERS
    simulated_keys = list(simulated(program, "A"))
    for run in told["runs"]:
        assert list(run) == [*simulated_keys[:-1], "live", "wall_s"]
        assert run["seconds"] == 0.5
        assert_counts_add_up(run)
        assert set(run["rt"]) == set(run["be"]) == FIGURES and set(run["clients"][0]) == CLIENT
        assert [(c["name"], c["model"]) for c in run["clients"]] == [("vgg19_rt", "vgg19"), ("resnet152_be", "resnet152")]
        assert run["rt"]["answered"] > 0 and run["rt"]["p50_ms"] > 0
        assert (run["be"]["answered"] == 0) == (run["scheduler"] == "rt-only")
        assert 0 < run["utilization"] <= 1.01
        of = run["live"]
        assert of["threads"] == 2 and of["device"].startswith("cpu: ") and of["interrupted"] is False
        assert set(of["alone_ms"]) == {"vgg19", "resnet152"} and min(of["alone_ms"].values()) > 0
        # A tiny model takes far less than the table's, so rates go up until the share of the device is the same.
        assert of["scale"] > 1
        assert of["real_time_share"] == pytest.approx(100 * 4.824e-3, rel=0.01)
        assert sum(bin["count"] for bin in of["preemption_histogram"]) == run["preemptions"]
        assert of["preemption_histogram"][-1]["at_most_us"] is None
        assert run["preemption_p50_us"] <= of["preemption_p90_us"] <= run["preemption_p99_us"] <= of["preemption_max_us"]
        assert of["late_p50_us"] <= of["late_p99_us"]
        assert of["paused_ms"] >= 0 and (of["lost_ms"] is None or of["lost_ms"] >= 0)
    by_name = {run["scheduler"]: run for run in told["runs"]}
    assert by_name["rt-only"]["preemptions"] == 0
    assert by_name["sequential"]["live"]["paused_runs"] == by_name["streams"]["live"]["paused_runs"] == 0


def test_live_on_an_emulated_cuda_device(program, live_models):
    """Real-time requests run before best effort, which goes on after its segment; each is answered once."""
    told = live(program, live_models, "A", "--device", "cuda-emulated", "--scheduler", "reef", "--scheduler", "sequential")
    for run in told["runs"]:
        assert_counts_add_up(run)
        assert run["rt"]["answered"] > 0 and run["be"]["answered"] > 0
        assert run["live"]["device"].startswith("cuda-emulated: ")
    none = subprocess.run([str(program), "disb", "A", "--device", "gpu"], capture_output=True, text=True, timeout=60)
    assert none.returncode != 0 and "'gpu' is not cpu, cuda, cuda:N, cuda-emulated or cuda-emulated:TABLE" in none.stderr


@pytest.mark.parametrize("name", ["B", "B220", "C", "D", "E", "REAL"])
def test_live_workloads_that_come_with_it(program, live_models, name):
    # On a fast machine models as tiny as these could do REAL more than a thousand times.
    told = live(program, live_models, name, *(["--scale", "100"] if name == "REAL" else []))
    assert told["scheduler"] == "reef" and told["workload"] == name
    assert_counts_add_up(told)
    if name == "B":
        assert told["live"]["scale"] == 1  # a closed loop has no rate
    assert told["rt"]["answered"] > 0
    # Best effort may get nothing in this short time: under B a real-time loop has no pause, and its threads run where
    # nothing else on the machine wants the core. test_live_rates_are_as_told says that it is answered.
    assert told["be"]["requests"] > 0


def test_live_rates_are_as_told(program, live_models, live_workload):
    told = live(program, live_models, live_workload, "--scale", "1", "--scheduler", "rt-only")
    assert [c["requests"] for c in told["clients"]] == [25, 3, 0, 0]
    assert told["live"]["scale"] == 1
    twice = live(program, live_models, live_workload, "--scale", "2", "--scheduler", "rt-only")
    assert twice["clients"][0]["requests"] == 50
    wide = live(program, live_models, live_workload, "--scale", "1", "--threads", "2", "--real-time-threads", "1",
                "--best-effort-streams", "2")
    assert_counts_add_up(wide)
    assert all(c["answered"] > 0 for c in wide["clients"])


def test_live_is_shown_and_drawn(program, live_models, live_workload, tmp_path):
    short = ("--models", live_models, "--duration", "0.3", "--warm-up", "0", "--scale", "1")
    one = disb(program, live_workload, *short).stdout
    for word in ["alone:", "tiny_mlp", "rates times 1", "paused ms", "lost ms", "dropped", "a_rt", "d_be"]:
        assert word in one
    several = disb(program, live_workload, *short, "--scheduler", "all", "--plot", tmp_path / "live.svg").stdout
    assert all(any(line.startswith(name + " ") for line in several.splitlines()) for name in SCHEDULERS)
    words = " ".join(xml.etree.ElementTree.parse(tmp_path / "live.svg").getroot().itertext())
    assert all(name in words for name in SCHEDULERS)


@pytest.mark.parametrize("arguments, status, words", [
    (("A", "--models", "nowhere"), 1, "-m carillon_samples --out nowhere --models disb"),
    (("A", "--models", "."), 1, "there is no model 'vgg19' in ."),
    (("A", "--scheduler", "fifo"), 2, "there are reef, rt-only, sequential, streams, wait"),
    (("A", "--scale", "fast"), 2, "--scale: 'fast' should be a number of 0.001 to 1000, or auto"),
    (("A", "--scale", "0"), 2, "--scale"),
    (("A", "--noise", "0.1"), 2, "--noise requires --simulate"),
    (("A", "--jobs", "2"), 2, "--jobs requires --simulate"),
    (("A", "--best-effort-streams", "1000"), 2, "--best-effort-streams 1000"),
    (("A", "--real-time-threads", "1000"), 2, "--real-time-threads 1000"),
    (("A", "--warm-up", "-1"), 2, "--warm-up"),
    (("A", "--page-cache", "much"), 2, "--page-cache"),
    (("A", "--plot", "nowhere/a.svg"), 1, "--plot: cannot write"),
])
def test_what_cannot_be_run_live(program, arguments, status, words):
    assert words in disb(program, *arguments, status=status).stderr


def test_live_models_that_do_not_fit(program, live_models, live_workload, tmp_path):
    # Each model takes a page of its own.
    told = disb(program, live_workload, "--models", live_models, "--page-cache", "16MiB", status=1).stderr
    assert "raise --page-cache" in told
    own = write(tmp_path / "own.json", {"time": 1, "tasks": [task("a_rt", {"type": "periodic", "frequency": 1}, "tiny_mlp")]})
    told = disb(program, own, "--models", live_models, status=2).stderr
    assert "does not have 'tiny_mlp'" in told and "say --scale X" in told
    broken = tmp_path / "models"
    shutil.copytree(live_models / "tiny_mlp", broken / "tiny_mlp")
    (broken / "tiny_mlp" / "1" / "model.onnx").write_bytes(b"not a model")
    assert "model tiny_mlp: " in disb(program, own, "--models", broken, "--scale", "1", status=2).stderr


def test_live_can_be_ended_with_the_figures_so_far(program, live_models, live_workload):
    process = subprocess.Popen([str(program), "disb", str(live_workload), "--models", str(live_models), "--duration", "3600",
                                "--warm-up", "0", "--scale", "1", "--scheduler", "all", "--json"],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        while "% of 3600 s" not in (line := process.stderr.readline()):
            assert line, "it ended"
        process.send_signal(signal.SIGINT)
        out, told = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, told
    run = json.loads(out)  # the others were not begun
    assert run["scheduler"] == "reef" and run["live"]["interrupted"] is True
    assert 0 < run["seconds"] < 3600
    assert run["rt"]["answered"] > 0
    assert_counts_add_up(run)


def test_preemptions_are_measured(program, live_models, tmp_path):
    bench = pathlib.Path(program).parent / "carillon_preempt_bench"
    if not bench.exists():
        pytest.skip(f"there is no {bench}: build it first")
    options = ["--victim", "tiny_cnn", "--real-time", "tiny_mlp", "--preemptions", "20", "--rounds", "2", "--gap-ms", "1"]
    done = subprocess.run([str(bench), "--models", str(live_models), *options, "--json"], capture_output=True, text=True,
                          timeout=300)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    (victim,) = told["victims"]
    assert victim["victim"] == "tiny_cnn" and victim["alone_ms"] > 0
    assert list(victim["modes"]) == ["inside", "boundaries", "priorities", "equal", "turns", "idle"]
    for mode, of in victim["modes"].items():
        assert of["rounds"] == len(of["each"]) == 2
        assert of["count"] == sum(each["count"] for each in of["each"]) <= 20
        assert all(each["wake_idle"]["count"] > 0 for each in of["each"])
        if of["count"]:
            assert of["p50_us"] <= of["p90_us"] <= of["p99_us"] <= of["max_us"]
            assert of["to_end"]["p50_us"] >= of["p50_us"]
    assert victim["modes"]["idle"]["count"] == 20  # nobody has to be there
    wrong = subprocess.run([str(bench), "--models", str(live_models), "--victim", "yolo"], capture_output=True, text=True,
                           timeout=60)
    assert wrong.returncode == 1 and "there is no model 'yolo'" in wrong.stderr
