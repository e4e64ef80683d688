"""`carillon plan` as a user runs it: files in, a plan out."""

from __future__ import annotations

import json
import os
import pathlib
import pty
import random
import select
import signal
import subprocess
import xml.etree.ElementTree

import pytest

IGNITER = pathlib.Path(__file__).resolve().parent.parent / "profiles" / "igniter"
V100 = ["--coefficients", IGNITER / "workloads.json", "--hardware", IGNITER / "v100.json"]
MODELS = {"alexnet": (10, 20, 1200), "resnet50": (20, 40, 600), "vgg19": (20, 40, 400), "ssd": (25, 55, 300)}


def run(program, *arguments, status=0):
    done = subprocess.run([str(program), "plan", *map(str, arguments)], capture_output=True, text=True, timeout=300)
    assert done.returncode == status, f"{arguments}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def plan(program, *arguments):
    return json.loads(run(program, *arguments, "--json").stdout)


# The paper's constraints, by which `best` is compared with the published strategies.
EVEN = ("--arrivals", "model")


def placed(told):
    return [w for device in told["devices"] for w in device["workloads"]]


def write(file, document):
    file.write_text(json.dumps(document))
    return file


def random_workloads(seed, count):
    dice = random.Random(seed)
    workloads = []
    for i in range(count):
        model = dice.choice(sorted(MODELS))
        low, high, rate = MODELS[model]
        workloads.append({"id": f"w{i}", "model": model, "slo_ms": dice.uniform(low, 1.3 * high),
                          "rate_rps": dice.uniform(0.1, 0.8) * rate})
    return {"workloads": workloads}


@pytest.mark.parametrize("strategy, devices, violations", [
    ("igniter", 6, 0), ("best", 6, 0), ("ffd+", 5, 9), ("gpulets+", 8, 3), ("gslice+", 6, 0)])
def test_the_papers_twelve_workloads(program, strategy, devices, violations):
    told = plan(program, IGNITER / "table3.json", *V100, "--strategy", strategy, *(EVEN if strategy == "best" else ()))
    assert told["strategy"] == strategy
    assert told["device_count"] == len(told["devices"]) == devices
    assert told["cost_usd_per_hour"] == pytest.approx(3.06 * devices)
    assert told["predicted_violations"] == violations
    assert told["infeasible"] == []
    assert sorted(w["id"] for d in told["devices"] for w in d["workloads"]) == sorted(f"W{i}" for i in range(1, 13))
    late = 0
    for device in told["devices"]:
        assert device["type"] == "NVIDIA V100 (EC2 p3.2xlarge)"
        assert device["price_usd_per_hour"] == 3.06
        for w in device["workloads"]:
            late += w["predicted_latency_ms"] > w["half_slo_ms"] or w["predicted_rps"] < w["rate_rps"] * (1 - 1e-9)
    assert late == violations


def test_a_plan_in_virtual_time(program):
    arguments = (IGNITER / "table3.json", *V100, "--simulate", "10", "--seed", "5")
    served = plan(program, *arguments, "--strategy", "igniter")["simulated"]
    assert [w["id"] for w in served["workloads"]] == [f"W{i}" for i in range(1, 13)]
    assert served["violations"] == 0
    assert served["on_time"] == served["requests"] == 50_000
    assert served == plan(program, *arguments, "--strategy", "igniter")["simulated"]
    too_few = plan(program, *arguments, "--strategy", "ffd+")["simulated"]
    assert too_few["violations"] == sum(w["violated"] for w in too_few["workloads"]) > 0
    assert "workloads violated" in run(program, *arguments, "--simulate-arrivals", "poisson").stdout
    assert "simulated" not in plan(program, IGNITER / "table3.json", *V100)


@pytest.mark.parametrize("arguments, words", [
    (("--simulate-noise", "0.1"), "--simulate"),
    (("--simulate", "-1"), "--simulate"),
    (("--simulate", "10", "--simulate-noise", "2"), "--simulate-noise"),
    (("--simulate", "10", "--simulate-arrivals", "bursts"), "--simulate-arrivals"),
    (("--simulate", "1000000"), "can be at most"),
    (("--simulate", "10", "--simulate-arrivals", "gamma:0"), "--simulate-arrivals: is 'gamma:0'"),
    (("--simulate", "10", "--simulate-arrivals", "closed:4"), "should be constant, poisson or gamma:SHAPE"),
    (("--simulate", "10", "--simulate-load", "2"), "--simulate-load"),
    (("--simulate", "10", "--simulate-load", "nan"), "--simulate-load: Value nan is no finite number"),
])
def test_what_cannot_be_simulated_is_refused(program, arguments, words):
    done = subprocess.run([str(program), "plan", str(IGNITER / "table3.json"), *map(str, V100), *arguments],
                          capture_output=True, text=True, timeout=300)
    assert done.returncode not in (0, 1), done
    assert words in done.stderr


def test_the_papers_example(program):
    told = plan(program, IGNITER / "table1.json", *V100, "--strategy", "igniter")
    placed = {w["id"]: (w["share_pct"], w["batch"]) for d in told["devices"] for w in d["workloads"]}
    assert told["device_count"] == 1
    assert placed == {"A": (10, 4), "R": (30, 8), "V": (37.5, 6)}


def test_the_order_of_arguments_does_not_matter(program):
    assert plan(program, *V100, "--strategy", "igniter", IGNITER / "table3.json")["device_count"] == 6
    assert plan(program, "--json", *V100, IGNITER / "table3.json", *EVEN)["device_count"] == 6


def test_it_is_shown_and_drawn(program, tmp_path):
    done = run(program, IGNITER / "table3.json", *V100, *EVEN, "--plot", tmp_path / "plan.svg")
    assert "6 devices, 18.36 $/h (best)" in done.stdout and "no predicted violations" in done.stdout
    xml.etree.ElementTree.parse(tmp_path / "plan.svg")
    run(program, IGNITER / "table3.json", *V100, "--plot", tmp_path / "nowhere" / "plan.svg", status=1)


def test_a_hundred_workloads_repeat_themselves(program, tmp_path):
    file = write(tmp_path / "w.json", random_workloads(3, 100))
    first, second = plan(program, file, *V100, *EVEN), plan(program, file, *V100, *EVEN)
    first.pop("seconds"), second.pop("seconds")
    assert first == second
    assert first["predicted_violations"] == 0 and first["infeasible"] == []
    greedy = plan(program, file, *V100, *EVEN, "--effort", "0")
    assert first["lower_bound_usd_per_hour"] <= first["cost_usd_per_hour"] <= greedy["cost_usd_per_hour"]
    assert first["device_count"] <= plan(program, file, *V100, "--strategy", "igniter")["device_count"]


def test_the_search_can_be_ended(program, tmp_path):
    file = write(tmp_path / "w.json", random_workloads(4, 400))
    limited = plan(program, file, *V100, *EVEN, "--effort", "1e6", "--time-limit", "0.5")
    assert limited["stopped"] and limited["predicted_violations"] == 0
    # A terminal is told of the progress at once, and so says when the search is under way.
    ours, theirs = pty.openpty()
    process = subprocess.Popen([str(program), "plan", str(file), *map(str, V100), *EVEN, "--effort", "1e6", "--time-limit",
                                "600", "--json"], stdout=subprocess.PIPE, stderr=theirs, text=True)
    try:
        os.close(theirs)
        assert select.select([ours], [], [], 60)[0], "no progress within a minute"
        assert b"devices" in os.read(ours, 4096)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    finally:
        os.close(ours)
        process.kill()
        process.wait()
    assert process.returncode == 0 and json.loads(out)["stopped"]


def test_an_existing_plan_is_kept(program, tmp_path):
    before = write(tmp_path / "before.json", plan(program, IGNITER / "table3.json", *V100, *EVEN))
    workloads = json.loads((IGNITER / "table3.json").read_text())["workloads"]
    workloads = workloads[1:] + [{"id": "new", "model": "alexnet", "slo_ms": 20, "rate_rps": 300}]
    file = write(tmp_path / "w.json", {"workloads": workloads})
    # One move makes a device superfluous, and is worth it; at a price it is not.
    told = plan(program, file, *V100, *EVEN, "--existing", before)
    assert told["changes"] == {"moved": 1, "added": 1, "removed": 1, "devices_opened": 0, "devices_closed": 1}
    told = plan(program, file, *V100, *EVEN, "--existing", before, "--move-cost", "10")
    assert told["changes"] == {"moved": 0, "added": 1, "removed": 1, "devices_opened": 0, "devices_closed": 0}
    where = {w["id"]: d["device"] for d in json.loads(before.read_text())["devices"] for w in d["workloads"]}
    for device in told["devices"]:
        for w in device["workloads"]:
            assert where.get(w["id"], device["device"]) == device["device"]
    wrong = write(tmp_path / "wrong.json", {"devices": [{"device": 1, "type": "T4", "workloads": []}]})
    done = run(program, IGNITER / "table3.json", *V100, "--existing", wrong, status=2)
    assert "wrong.json: devices[0].type: is 'T4'" in done.stderr


def test_several_types_are_mixed(program, tmp_path):
    hardware = json.loads((IGNITER / "v100.json").read_text())
    hardware |= {"gpu": "half of a device", "price_usd_per_hour": 1.2}
    models = json.loads((IGNITER / "workloads.json").read_text())
    models["gpu"] = "half"
    for model in models["models"].values():
        for name in ("k1", "k2", "k3", "k5", "k_sch_times_n_kernels_ms", "alpha_power_W_per_rps"):
            model["coefficients"][name] *= 2
    half = ["--hardware", write(tmp_path / "half.json", hardware)]
    both = [*V100, *half, "--coefficients", write(tmp_path / "models.json", models)]
    file = write(tmp_path / "w.json", {"workloads": [
        {"id": "a", "model": "vgg19", "slo_ms": 20, "rate_rps": 440},
        {"id": "b", "model": "resnet50", "slo_ms": 40, "rate_rps": 200}]})
    told = plan(program, file, *both, *EVEN)
    assert sorted(d["price_usd_per_hour"] for d in told["devices"]) == [1.2, 3.06]
    assert told["predicted_violations"] == 0
    # One file of coefficients serves for all, and says so; of several none may be missing.
    assert "taken for 'half of a device' too" in run(program, file, *V100, *half).stderr
    again = write(tmp_path / "again.json", models | {"gpu": "A100"})
    done = run(program, file, *V100, *half, "--coefficients", again, status=2)
    assert "none of the --coefficients is of a device that this names" in done.stderr


def test_what_cannot_be_is_explained(program, tmp_path):
    file = write(tmp_path / "w.json", {"workloads": [
        {"id": "hasty", "model": "vgg19", "slo_ms": 3, "rate_rps": 10},
        {"id": "much", "model": "ssd", "slo_ms": 55, "rate_rps": 1000}]})
    told = plan(program, file, *V100, *EVEN)
    [hasty] = told["infeasible"]
    assert hasty["id"] == "hasty" and hasty["smallest_slo_ms"] > 3
    parts = [w for d in told["devices"] for w in d["workloads"]]
    assert {w["id"] for w in parts} == {"much"} and len(parts) > 1
    assert sum(w["rate_rps"] for w in parts) == pytest.approx(1000)
    told = plan(program, file, *V100, *EVEN, "--no-split")
    assert [i["id"] for i in told["infeasible"]] == ["hasty", "much"]
    assert 300 < told["infeasible"][1]["largest_rate_rps"] < 1000
    assert "an SLO of" in run(program, file, *V100).stdout


@pytest.mark.parametrize("arguments, status, words", [
    ([IGNITER / "table3.json"], 2, "--coefficients is required"),
    ([IGNITER / "table3.json", *V100, "--strategy", "worst"], 2, "--strategy"),
    ([IGNITER / "nothing.json", *V100], 1, "nothing.json: no such file; it should be a file of workloads"),
    ([IGNITER / "v100.json", *V100], 2, "v100.json: document: has no \"workloads\""),
    ([IGNITER / "table3.json", *V100[:2], "--hardware", IGNITER / "t4.json"], 2,
     "t4.json: hardware_coefficients.P_max_power_W: is null, but should be watts"),
    ([IGNITER / "table3.json", *V100, *V100[2:]], 2, "like that of another --hardware"),
    ([IGNITER / "table3.json", "--coefficients", IGNITER / "v100.json", *V100[2:]], 2,
     "v100.json: document: has no \"models\""),
    ([IGNITER / "table3.json", *V100, "--strategy", "igniter", "--headroom", "10"], 2, "--strategy best alone"),
    ([IGNITER / "table3.json", *V100, "--move-cost", "1"], 2, "--existing"),
    ([IGNITER / "table3.json", *V100, "--time-limit", "-1"], 2, "--time-limit"),
    ([IGNITER / "table3.json", *V100, "--strategy", "igniter", "--arrivals", "poisson"], 2,
     "--arrivals, --percentile and --model-error go with --strategy best alone: igniter plans as it was published"),
    ([IGNITER / "table3.json", *V100, "--strategy", "ffd+", "--percentile", "95"], 2, "--strategy best alone: ffd+"),
    ([IGNITER / "table3.json", *V100, "--strategy", "gslice+", "--model-error", "5"], 2, "--strategy best alone"),
    ([IGNITER / "table3.json", *V100, "--arrivals", "model", "--percentile", "95"], 2, "do not go with --arrivals model"),
    ([IGNITER / "table3.json", *V100, "--arrivals", "gamma:0"], 2, "--arrivals: 'gamma:0': the shape should be a number"),
    ([IGNITER / "table3.json", *V100, "--arrivals", "gamma:-0.5"], 2, "in 0.1..1000, such as gamma:0.5"),
    ([IGNITER / "table3.json", *V100, "--arrivals", "gamma:nan"], 2, "in 0.1..1000, such as gamma:0.5"),
    ([IGNITER / "table3.json", *V100, "--arrivals", "posson"], 1,
     "--arrivals: posson: no such file; it should be constant, poisson, gamma:SHAPE or a file of arrival times"),
    ([IGNITER / "table3.json", *V100, "--arrivals", IGNITER], 2, "is a directory, but should be constant, poisson"),
    ([IGNITER / "table3.json", *V100, "--arrivals", IGNITER / "README.md"], 2, "README.md:3: is '"),
    ([IGNITER / "table3.json", *V100, "--percentile", "100"], 2, "--percentile"),
    ([IGNITER / "table3.json", *V100, "--percentile", "nan"], 2, "--percentile: Value nan is no finite number"),
    ([IGNITER / "table3.json", *V100, "--model-error", "-1"], 2, "--model-error"),
    ([IGNITER / "table3.json", *V100, "--model-error", "nan"], 2, "--model-error: Value nan is no finite number"),
])
def test_mistakes_are_named(program, arguments, status, words):
    assert words in run(program, *arguments, status=status).stderr


# Device, share and batch of each workload, as every commit since the first has planned them.
IGNITERS_PLAN = ["1 W12 92.5 8", "2 W8 75 6", "2 W6 15 4", "3 W7 60 3", "3 W4 32.5 4", "4 W10 60 2", "4 W9 37.5 4",
                 "5 W5 45 9", "5 W1 20 6", "5 W11 15 1", "6 W3 12.5 8", "6 W2 7.5 3"]


def test_the_published_strategies_plan_as_before(program):
    told = plan(program, IGNITER / "table3.json", *V100, "--strategy", "igniter")
    lines = [f"{d['device']} {w['id']} {w['share_pct']:g} {w['batch']}" for d in told["devices"] for w in d["workloads"]]
    assert lines == IGNITERS_PLAN
    for strategy in ("igniter", "ffd+", "gpulets+", "gslice+"):
        told = plan(program, IGNITER / "table3.json", *V100, "--strategy", strategy)
        assert not {"arrivals", "percentile", "model_error_pct", "expected"} & told.keys()
        assert all("expected_on_time" not in w for w in placed(told))


def test_plans_are_for_poisson_arrivals(program):
    told = plan(program, IGNITER / "table3.json", *V100)
    assert (told["arrivals"], told["percentile"], told["model_error_pct"]) == ("poisson", 99, 0)
    assert told["device_count"] > 6 and told["predicted_violations"] == 0 and told["infeasible"] == []
    assert [w["id"] for w in told["expected"]] == [f"W{i}" for i in range(1, 13)]
    assert all(0.99 <= w["on_time"] <= 1 for w in told["expected"])
    assert all(0.99 <= w["expected_on_time"] <= 1 and w["batch"] <= 32 for w in placed(told))
    again = plan(program, IGNITER / "table3.json", *V100, "--arrivals", "poisson", "--percentile", "99")
    told.pop("seconds"), again.pop("seconds")
    assert told == again
    shown = run(program, IGNITER / "table3.json", *V100).stdout
    assert "planned for poisson arrivals: P99 within the SLO over 30 s, in 99.5% of cases; model error 0%" in shown
    assert "on time\n" in shown.splitlines(keepends=True)[0]


def test_arrivals_decide_what_is_needed(program, tmp_path):
    table = IGNITER / "table3.json"
    cost = {a: plan(program, table, *V100, "--arrivals", a)["cost_usd_per_hour"]
            for a in ("constant", "poisson", "gamma:0.5")}
    assert cost["constant"] < cost["poisson"] < cost["gamma:0.5"]
    assert plan(program, table, *V100, "--model-error", "10")["cost_usd_per_hour"] > cost["poisson"]
    # What was recorded of a Poisson process is much like one.
    dice, at, lines = random.Random(5), 0.0, ["# of a server's log"]
    for _ in range(30_000):
        at += dice.expovariate(200)
        lines.append(f"{at:.9f}")
    times = tmp_path / "times.txt"
    times.write_text("\n".join(lines))
    told = plan(program, table, *V100, "--arrivals", times)
    assert told["arrivals"] == str(times)
    assert cost["constant"] < told["cost_usd_per_hour"] <= cost["poisson"]
    done = run(program, table, *V100, "--arrivals", times, "--simulate", "1", status=2)
    assert "say --simulate-arrivals constant, poisson or gamma:SHAPE" in done.stderr
    times.write_text("")
    done = run(program, table, *V100, "--arrivals", times, status=2)
    assert "has 0 arrival times, but should have at least 100" in done.stderr
    times.write_text("\n".join(["2.5", "1.5"] * 100))
    assert "times.txt:2: is 1.5, which is before the time above" in run(
        program, table, *V100, "--arrivals", times, status=2).stderr


@pytest.mark.parametrize("arrivals", ["constant", "poisson", "gamma:0.5"])
def test_a_plan_for_arrivals_holds_in_virtual_time(program, arrivals):
    arguments = (IGNITER / "table3.json", *V100, "--arrivals", arrivals, "--simulate", "30", "--seed", "3")
    told = plan(program, *arguments)
    assert told["simulated"]["arrivals"] == arrivals
    assert told["simulated"]["violations"] == 0
    expected = {w["id"]: w["on_time"] for w in told["expected"]}
    for w in told["simulated"]["workloads"]:
        assert w["on_time_fraction"] == pytest.approx(expected[w["id"]], abs=0.01)
    assert told["simulated"] == plan(program, *arguments)["simulated"]
    half = plan(program, *arguments, "--simulate-load", "0.5")["simulated"]
    assert half["requests"] == pytest.approx(told["simulated"]["requests"] / 2, rel=0.05)


def test_batches_that_were_not_measured_are_told_of(program, tmp_path):
    models = json.loads((IGNITER / "workloads.json").read_text())
    for model in models["models"].values():
        del model["coefficients"]["largest_measured_batch"]
    file = write(tmp_path / "models.json", models)
    done = run(program, IGNITER / "table3.json", "--coefficients", file, *V100[2:])
    assert "do not say the largest batch that was measured" in done.stderr
    assert "alexnet, resnet50, ssd, vgg19" in done.stderr
    models["models"]["alexnet"]["coefficients"]["largest_measured_batch"] = 1.5
    done = run(program, IGNITER / "table3.json", "--coefficients", write(file, models), *V100[2:], status=2)
    assert "largest_measured_batch: is 1.5, but should be a whole number in 1..65536" in done.stderr
