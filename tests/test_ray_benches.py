"""Of bench/ray_virtual.py and bench/ray_table.py: what they tell of runs, without running a study."""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "python")]
pytest.importorskip("carillon.tune.core", reason="the planner is not compiled", exc_type=ImportError)
environment = dict(os.environ)
import ray_table  # noqa: E402
import ray_virtual  # noqa: E402
os.environ.clear()
os.environ.update(environment)  # what it sets is for its own runs
from carillon.tune._world import WorldError  # noqa: E402

FOUND = {"scheduler": "pbt", "mode": "fluid", "reuse": False, "wall": 10.0, "epochs": 9}


@pytest.fixture
def compare(tmp_path, monkeypatch, capsys):
    (tmp_path / "trial.json").write_text("{}")
    (tmp_path / "live.jsonl").write_text(json.dumps(FOUND) + "\n")

    monkeypatch.setattr(logging, "disable", lambda level: None)  # other tests look at what is logged

    def run(hangs):
        def simulated(found, cost, told, seed):
            if seed in hangs:
                raise WorldError("it hangs")
            return {"wall": 10.0 + seed / 10, "epochs": 9}

        monkeypatch.setattr(ray_virtual, "simulated", simulated)
        status = ray_virtual.compare(SimpleNamespace(trial=tmp_path / "trial.json", files=[tmp_path / "live.jsonl"], seeds=3, most=0.15))
        return status, capsys.readouterr()

    return run


def test_runs_that_hang_are_counted(compare):
    status, told = compare({1})
    assert status == 0 and "| fluid (2 of 3 seeds, 1 hung) |" in told.out
    status, told = compare({1, 2, 3})
    assert status == 1 and "no virtual run of pbt, fluid, 10.0 s, ended: 3 hung" in told.err
    assert "that always hung: 1" in told.out


def test_a_mode_that_is_not_simulated_is_refused():
    pytest.importorskip("ray.tune", reason="Ray is not installed: pip install 'ray[tune]'")
    with pytest.raises(SystemExit, match="mode 'changing' is not simulated"):
        ray_virtual.simulated(FOUND | {"mode": "changing"}, {}, SimpleNamespace())


def test_each_number_of_seeds_is_told():
    run = {"wall": 2.0, "start": 1.0, "computed": 2.0, "epochs": 9, "best": 0.5, "errors": 0}
    studies = [{"study": ["cnn", "fifo", 9, 16], "runs": {way: {str(seed): run for seed in range(1, seeds + 1)} for way in ray_table.WAYS}}
               for seeds in (3, 2)]
    told = ray_table.report({"studies": studies, "slow_seeds": 1, "machine": {"cpu": "c", "cores": 2, "commit": "0"}})
    assert "Medians over seeds 1 to 2 or 3," in told
