"""Refusals on arrival do no harm (schedule/admission.h): worlds in which earlier forms of it did, in virtual time."""
import json
import pathlib
import subprocess

import pytest

SCENARIOS = sorted((pathlib.Path(__file__).resolve().parents[1] / "scenarios/admission").glob("*.toml"))


def simulated(program, scenario, scheduler, admission):
    ran = subprocess.run([program, "simulate", scenario, "--scheduler", scheduler, "--admission", admission, "--noise", "0.02",
                          "--json"], capture_output=True, text=True, check=True)
    return json.loads(ran.stdout)


@pytest.mark.parametrize("scheduler", ["clockwork", "symphony"])
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda path: path.stem)
def test_nothing_is_lost_where_loads_or_dear_models_stand_beside_others(program, scenario, scheduler):
    by_policy, on_arrival = (simulated(program, scenario, scheduler, how) for how in ("policy", "arrival"))
    assert on_arrival["finish_rate"] > by_policy["finish_rate"] - 0.02
    for before, after in zip(by_policy["models"], on_arrival["models"]):
        if before["name"] in ("dear", "honest"):
            assert after["finish_rate"] > before["finish_rate"] - 0.05


def test_a_policy_that_does_not_take_it_says_so(program):
    ran = subprocess.run([program, "simulate", SCENARIOS[0], "--scheduler", "fcfs", "--admission", "arrival"],
                         capture_output=True, text=True)
    assert ran.returncode == 2 and "clockwork and symphony take it" in ran.stderr
