"""A study under `carillon run` is one job of a server's broker: its trials run in what requests leave."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from loopback import serving
from test_train import comes, jobs, models, number  # noqa: F401

pytest.importorskip("torch", reason="torch is not installed")
ROOT = Path(__file__).resolve().parent.parent

STUDY = """
import json, os, sys
import torch
import carillon.tune

def train(config):
    weight = torch.nn.Parameter(torch.zeros(64))
    optimizer = torch.optim.SGD([weight], 0.01)
    for _ in range(2):
        for _ in range(2):
            optimizer.zero_grad()
            (weight ** 2).sum().backward()
            optimizer.step()
        carillon.tune.report(os.sched_getscheduler(0))

if __name__ == "__main__":
    with carillon.tune.TrialGroup(devices=2) as group:
        trials = group.map(train, [{}] * 2, budget=2)
        group.wait()
        print("over", flush=True)
        sys.stdin.readline()
    print(json.dumps([[t.state, t.error, [r["metric"] for r in t.reports]] for t in trials]))
"""


@pytest.fixture
def lending(program, models, tmp_path):  # noqa: F811
    socket = tmp_path / "train.sock"
    with serving(program, models, tmp_path / "log", "--train", str(socket), "--train-memory", "512MiB", page_cache="1GiB") as server:
        server.socket = str(socket)
        yield server


def test_a_study_is_one_job_and_all_its_trials_have_its_priority(program, lending, tmp_path):
    (tmp_path / "study.py").write_text(STUDY)
    study = subprocess.Popen([program, "run", "--socket", lending.socket, "--", sys.executable, tmp_path / "study.py"],
                             env=os.environ | {"PYTHONPATH": str(ROOT / "python")}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True)
    assert study.stdout.readline() == "over\n", study.communicate(timeout=60)[1]
    assert len(jobs(program, lending.socket)["jobs"]) == 1
    out, error = study.communicate("\n", timeout=120)
    assert study.returncode == 0, error
    assert json.loads(out) == [["ended", "", [os.SCHED_IDLE] * 2]] * 2
    comes(lambda: number(lending, 'carillon_share_ended_total{how="done"}') == 1, "the broker counts the study as done")
