"""`carillon simulate` on files of studies, as a user runs it."""

from __future__ import annotations

import json
import pathlib
import subprocess
import xml.etree.ElementTree

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
FLUID = ROOT / "scenarios/fluid"
POLICIES = ["fifo", "static", "dynamic", "best"]
FIGURES = {"study", "scheduler", "seed", "devices", "makespan_s", "time_to_target_s", "device_seconds", "utilization", "resizes",
           "moves", "trials"}


def simulate(program, *arguments, status=0):
    done = subprocess.run([str(program), "simulate", *map(str, arguments)], capture_output=True, text=True, timeout=300)
    assert done.returncode == status, f"{arguments}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def told(program, *arguments):
    return json.loads(simulate(program, *arguments, "--json").stdout)


def test_figure_3_5(program):
    runs = told(program, FLUID / "fig3_5.toml", *(f"--scheduler={p}" for p in POLICIES))["runs"]
    assert [r["scheduler"] for r in runs] == POLICIES
    for run in runs:
        assert FIGURES <= run.keys()
        assert run["trials"] == 4 and run["devices"] == 5
    took = {r["scheduler"]: r["makespan_s"] for r in runs}
    assert took["fifo"] == pytest.approx(30)
    assert took["static"] == pytest.approx(12)
    assert took["best"] <= 10.001


@pytest.mark.parametrize("scheduler", POLICIES)
def test_same_seed_same_bytes(program, scheduler):
    once, again, other = (simulate(program, FLUID / "hyperband.toml", "--scheduler", scheduler, "--seed", seed, "--each-trial",
                                   "--json").stdout for seed in (1, 1, 2))
    assert once == again
    assert once != other


def test_each_trial_and_the_best_so_far(program):
    run = told(program, FLUID / "asha.toml", "--each-trial")
    assert len(run["each"]) == run["trials"]
    rises = [b["metric"] for b in run["best"]]
    assert rises == sorted(rises) and rises[-1] >= 0.9
    assert run["best"][-1]["at_s"] == run["time_to_target_s"] == run["makespan_s"]


def test_plot(program, tmp_path):
    file = tmp_path / "run.svg"
    simulate(program, FLUID / "syncbohb.toml", "--plot", file)
    assert "How busy each device was" in file.read_text()
    xml.etree.ElementTree.parse(file)


def test_every_scenario_runs(program):
    for file in sorted(FLUID.glob("*.toml")):
        run = told(program, file, "--scheduler", "best")
        assert run["utilization"] > 0, file


@pytest.mark.parametrize("study", [
    'algorithm = "halving"\nrungs = [[5, 1], [5, 1]]\n[trial]\nepoch_s = 1',
    'algorithm = "halving"\nrungs = [[5, 1], [5, 1]]\n[trial]\nepoch_s = 1\nc = 2\nd = 4\nbeta = 1.05',
    'algorithm = "hyperband"\nepochs = 27\n[trial]\nepoch_s = 1',
    'algorithm = "hyperband"\nepochs = 9\n[trial]\nepoch_s = 15.15\nalpha = 1.1\nbeta = 1.05\nc = 2\nd = 4\ntold = []',
    'algorithm = "asha"\ntrials = 21\nepochs = 9\n[trial]\nepoch_s = 15.15\nalpha = 1.1\nbeta = 1.05\nc = 2\nd = 4',
    'algorithm = "pbt"\ntrials = 8\nepochs = 9\n[trial]\nepoch_s = 1',
])
def test_studies_whose_changes_cost_nothing_come_to_an_end(program, tmp_path, study):
    for devices in (4, 5, 7):
        file = tmp_path / "plain.toml"
        file.write_text(f"[cluster]\ndevices = {devices}\n[study]\n{study}\n")
        runs = told(program, file, *(f"--scheduler={p}" for p in POLICIES), "--seed=1..5")["runs"]
        assert len(runs) == 20
        for run in runs:
            assert run["resizes"] + run["moves"] < 200 * run["trials"], run


@pytest.mark.parametrize("arguments, says", [
    (["--scheduler", "pack"], "there are fifo, static, dynamic, best"),
    (["--rate", "5"], "--rate is for scenarios of requests, not for files of [study]"),
    (["--each-job"], "--each-trial"),
    (["--interval", "1"], "--interval"),
    (["--seed", "x"], "--seed"),
    (["--plot", "x.svg", "--scheduler", "fifo", "--scheduler", "best"], "--plot draws one run"),
])
def test_wrong_arguments(program, arguments, says):
    assert says in simulate(program, FLUID / "fig3_5.toml", *arguments, status=2).stderr


def test_files_of_two_kinds_are_run_apart(program):
    for others in (ROOT / "scenarios/salus/fig2_9_fair.toml", ROOT / "scenarios/overload.toml"):
        assert "run them apart" in simulate(program, FLUID / "fig3_5.toml", others, status=2).stderr
    assert "--each-trial is for files of [study]" in simulate(program, ROOT / "scenarios/overload.toml", "--each-trial", status=2).stderr


def test_what_is_wrong_with_a_file_is_said(program, tmp_path):
    file = tmp_path / "bad.toml"
    file.write_text("[cluster]\ndevices = 2\n[study]\ntrials = [4, nan]\n")
    assert "bad.toml:4: study.trials as a list must have seconds" in simulate(program, file, status=2).stderr
    file.write_text("[[devices]]\nspeed = 0.001\n[study]\nalgorithm = \"grid\"\ntrials = 5\nepochs = 100000\n[trial]\nepoch_s = 1e9\n")
    assert "would take longer than 3000000000 s" in simulate(program, file, status=2).stderr
    assert "/dev/zero': it is a device" in simulate(program, "/dev/zero", status=2).stderr
