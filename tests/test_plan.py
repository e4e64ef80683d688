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
    told = plan(program, IGNITER / "table3.json", *V100, "--strategy", strategy)
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
    assert plan(program, "--json", *V100, IGNITER / "table3.json")["device_count"] == 6


def test_it_is_shown_and_drawn(program, tmp_path):
    done = run(program, IGNITER / "table3.json", *V100, "--plot", tmp_path / "plan.svg")
    assert "6 devices, 18.36 $/h (best)" in done.stdout and "no predicted violations" in done.stdout
    xml.etree.ElementTree.parse(tmp_path / "plan.svg")
    run(program, IGNITER / "table3.json", *V100, "--plot", tmp_path / "nowhere" / "plan.svg", status=1)


def test_a_hundred_workloads_repeat_themselves(program, tmp_path):
    file = write(tmp_path / "w.json", random_workloads(3, 100))
    first, second = plan(program, file, *V100), plan(program, file, *V100)
    first.pop("seconds"), second.pop("seconds")
    assert first == second
    assert first["predicted_violations"] == 0 and first["infeasible"] == []
    greedy = plan(program, file, *V100, "--effort", "0")
    assert first["lower_bound_usd_per_hour"] <= first["cost_usd_per_hour"] <= greedy["cost_usd_per_hour"]
    assert first["device_count"] <= plan(program, file, *V100, "--strategy", "igniter")["device_count"]


def test_the_search_can_be_ended(program, tmp_path):
    file = write(tmp_path / "w.json", random_workloads(4, 400))
    limited = plan(program, file, *V100, "--effort", "1e6", "--time-limit", "0.5")
    assert limited["stopped"] and limited["predicted_violations"] == 0
    # A terminal is told of the progress at once, and so says when the search is under way.
    ours, theirs = pty.openpty()
    process = subprocess.Popen([str(program), "plan", str(file), *map(str, V100), "--effort", "1e6", "--time-limit",
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
    before = write(tmp_path / "before.json", plan(program, IGNITER / "table3.json", *V100))
    workloads = json.loads((IGNITER / "table3.json").read_text())["workloads"]
    workloads = workloads[1:] + [{"id": "new", "model": "alexnet", "slo_ms": 20, "rate_rps": 300}]
    file = write(tmp_path / "w.json", {"workloads": workloads})
    # One move makes a device superfluous, and is worth it; at a price it is not.
    told = plan(program, file, *V100, "--existing", before)
    assert told["changes"] == {"moved": 1, "added": 1, "removed": 1, "devices_opened": 0, "devices_closed": 1}
    told = plan(program, file, *V100, "--existing", before, "--move-cost", "10")
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
    told = plan(program, file, *both)
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
    told = plan(program, file, *V100)
    [hasty] = told["infeasible"]
    assert hasty["id"] == "hasty" and hasty["smallest_slo_ms"] > 3
    parts = [w for d in told["devices"] for w in d["workloads"]]
    assert {w["id"] for w in parts} == {"much"} and len(parts) > 1
    assert sum(w["rate_rps"] for w in parts) == pytest.approx(1000)
    told = plan(program, file, *V100, "--no-split")
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
])
def test_mistakes_are_named(program, arguments, status, words):
    assert words in run(program, *arguments, status=status).stderr
