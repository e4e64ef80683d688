"""`carillon simulate` on files of jobs that share a device, as a user runs it."""

from __future__ import annotations

import json
import pathlib
import subprocess
import xml.etree.ElementTree

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
SALUS = ROOT / "scenarios/salus"
POLICIES = ["fifo", "srtf", "pack", "fair", "best"]
FIGURES = {"scheduler", "seed", "jobs", "finished", "refused", "evicted", "died", "unfinished", "makespan_s", "mean_jct_s",
           "p95_jct_s", "mean_queue_s", "utilization"}

TWO = """
name = "two"
[device]
memory = "1 GB"
switch_us = 0
[[jobs]]
name = "long"
iterations = 100
iteration_ms = 100
persistent = "100 MB"
ephemeral = "600 MB"
[[jobs]]
name = "short"
arrival_s = 1
iterations = 10
iteration_ms = 100
persistent = "100 MB"
ephemeral = "600 MB"
"""


def simulate(program, *arguments, status=0):
    done = subprocess.run([str(program), "simulate", *map(str, arguments)], capture_output=True, text=True, timeout=300)
    assert done.returncode == status, f"{arguments}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def told(program, *arguments):
    return json.loads(simulate(program, *arguments, "--json").stdout)


@pytest.fixture
def two(tmp_path):
    file = tmp_path / "two.toml"
    file.write_text(TWO)
    return file


# There is memory for one lane: 10 s and 1 s of work. End of the long one, end of the short one.
@pytest.mark.parametrize("scheduler, long, short", [("fifo", 10, 11), ("srtf", 11, 2), ("best", 11, 2)])
def test_two_jobs_in_one_lane(program, two, scheduler, long, short):
    run = told(program, two, "--scheduler", scheduler, "--each-job")
    assert FIGURES <= run.keys()
    assert run["scheduler"] == scheduler
    assert run["finished"] == 2
    ends = {job["name"]: job["ended_s"] for job in run["each"]}
    # A job that is recalled ends its iteration first.
    assert ends["long"] == pytest.approx(long, abs=0.11)
    assert ends["short"] == pytest.approx(short, abs=0.11)
    assert run["makespan_s"] == pytest.approx(11, abs=0.001)
    assert run["utilization"] == pytest.approx(1, abs=0.001)


def test_fair_halves(program, two):
    run = told(program, two, "--scheduler", "fair", "--each-job", "--interval", 1)
    ends = {job["name"]: job["ended_s"] for job in run["each"]}
    assert ends["short"] == pytest.approx(3, abs=0.3)  # half of the device from 1 s on
    second = next(s["iterations"] for s in run["series"] if s["interval"] == 1)
    assert 4 <= second["long"] <= 6 and 4 <= second["short"] <= 6


@pytest.mark.parametrize("scheduler", POLICIES)
def test_same_seed_same_bytes(program, scheduler):
    once, again, other = (simulate(program, SALUS / "beyond_one_fits.toml", "--scheduler", scheduler, "--seed", seed, "--each-job",
                                   "--json").stdout for seed in (7, 7, 8))
    assert once == again
    assert once != other


def test_several_at_once(program, two):
    runs = told(program, two, *(f"--scheduler={p}" for p in POLICIES), "--seed", "1..2")["runs"]
    assert [(r["scheduler"], r["seed"]) for r in runs] == [(p, s) for p in POLICIES for s in (1, 2)]
    table = simulate(program, two, "--scheduler", "fifo", "--scheduler", "fair").stdout
    assert "makespan" in table and "fifo" in table and "fair" in table


# Whatever goes wrong with some jobs, the others end.
@pytest.mark.parametrize("scheduler", POLICIES)
def test_faults_stay_with_their_jobs(program, scheduler):
    run = told(program, SALUS / "beyond_faults.toml", "--scheduler", scheduler, "--each-job")
    outcomes = {job["name"]: job.get("reason", job["outcome"]) for job in run["each"]}
    of = lambda kind: {outcome for name, outcome in outcomes.items() if name.startswith(kind)}
    # Memory that falls may cost any of them.
    assert of("good") <= {"finished", "capacity_fell"}, outcomes
    assert of("dies") <= {"died", "capacity_fell"}, outcomes
    assert of("hangs") <= {"hangs", "capacity_fell"}, outcomes
    assert of("grows") <= {"finished", "no_memory", "capacity_fell"}, outcomes
    assert sum(job["outcome"] == "finished" for job in run["each"]) >= 45
    assert sum(run[o] for o in ("finished", "refused", "evicted", "died", "unfinished")) == run["jobs"] == 85


@pytest.mark.parametrize("scheduler", POLICIES)
def test_jobs_that_do_not_fit_are_refused_with_what_would(program, tmp_path, scheduler):
    file = tmp_path / "large.toml"
    file.write_text(TWO.replace('"600 MB"', '"950 MB"', 1))
    run = told(program, file, "--scheduler", scheduler, "--each-job")
    large = next(job for job in run["each"] if job["name"] == "long")
    assert large["outcome"] == "refused"
    assert large["reason"] == "too_large"
    assert 0 < large["fits_persistent_bytes"] + large["fits_ephemeral_bytes"] <= 1e9
    assert run["finished"] == 1
    assert "too_large (what fits: " in simulate(program, file, "--scheduler", scheduler).stdout


def test_ten_thousand_jobs(program):
    run = told(program, SALUS / "ten_thousand.toml", "--scheduler", "best")
    assert run["finished"] == run["jobs"] == 10_000


def test_plot(program, tmp_path):
    svg = tmp_path / "run.svg"
    simulate(program, SALUS / "beyond_faults.toml", "--scheduler", "pack", "--plot", svg)
    root = xml.etree.ElementTree.parse(svg).getroot()
    texts = [t.text for t in root.iter("{http://www.w3.org/2000/svg}text")]
    assert any("Lanes" in t for t in texts) and any("Memory" in t for t in texts) and any("Completion" in t for t in texts)
    assert svg.stat().st_size < 3_000_000


@pytest.mark.parametrize("arguments, said", [
    (("--rate", 5), "--rate is for scenarios of requests"),
    (("--noise", 1), "--noise is for scenarios of requests"),
    (("--record", "x.log"), "--record is for scenarios of requests"),
    (("--scheduler", "clockwork"), "fifo"),
    (("--plot", "x.svg", "--seed", "1..2"), "--plot draws one run; this would be 2"),
    (("--seed", "x"), "--seed 'x'"),
    ((ROOT / "scenarios/overload.toml",), "run them apart"),
])
def test_what_does_not_go_together_is_said(program, two, arguments, said):
    done = simulate(program, two, *arguments, status=2)
    assert said in done.stderr


@pytest.mark.parametrize("old, new, said", [
    ('memory = "1 GB"', "memory = 0", "two.toml:4: device.memory must say"),
    ("iterations = 100\n", "", "job 'long' needs iterations or duration_s"),
    ('name = "short"', 'name = "long"', "two jobs are named 'long'"),
    ("arrival_s = 1", "arrival_s = -1", "jobs.arrival_s must be a number from 0"),
    ("arrival_s = 1", 'trace = "none.csv"', "iterations does not go with trace"),
])
def test_files_that_are_wrong(program, two, old, new, said):
    text = two.read_text()
    assert old in text
    two.write_text(text.replace(old, new, 1))
    done = simulate(program, two, status=2)
    assert said in done.stderr


def test_scenarios_do_not_list_jobs(program):
    done = simulate(program, ROOT / "scenarios/overload.toml", "--each-job", status=2)
    assert "--each-job is for files of [[jobs]]" in done.stderr
