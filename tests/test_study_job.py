"""A study under `carillon run` is one job of a server's broker: its trials run in what requests leave."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import scripted_broker
from carillon.tune import _job
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


def test_a_share_is_told_where_it_is_news():
    share = _job.Share()
    assert share.counted(10.0, 100.0) is None  # of how long nobody knows
    assert share.counted(10.5, 101.0) == 0.5
    assert share.counted(11.05, 102.0) is None  # 0.525
    assert share.counted(12.05, 103.0) == pytest.approx(0.7625)
    assert [share.counted(13.05 + i, 104.0 + i) for i in range(5)] == [pytest.approx(0.88125), None, 1.0, None, None]
    assert [share.counted(17.05, 109.0 + i) for i in range(8)][-1] is None and share._told == 0.02
    assert share.counted(0.0, 1.0) is None  # another broker, which counts anew
    assert share.counted(0.0, 1.0) is None
    assert share.counted(2.0, 2.0) == pytest.approx(0.5, abs=0.02)  # no more than all


def test_the_share_of_a_broker_that_is_gone_is_the_jobs_again():
    share = _job.Share()
    share.counted(0.0, 1.0)
    assert share.counted(0.5, 2.0) == 0.5
    assert [share.missed() for _ in range(2)] == [None, None]
    assert share.counted(1.0, 3.0) is None  # it was only late
    assert [share.missed() for _ in range(4)] == [None, None, 1.0, None]


JOINS = """
import os, sys, threading, time
sys.modules["torch"] = type(sys)("torch")
import carillon
from carillon.tune import _job
os.environ.update(CARILLON_SOCKET="/none", CARILLON_ALONE="", CARILLON_INSIDE="")
go_on, steps = threading.Event(), []

def step():
    steps.append(1)
    if len(steps) == 1:
        raise ValueError("no such job")
    go_on.wait()

carillon.step = step
threading.excepthook = lambda told: None
try:
    _job.join()
except RuntimeError as error:
    print(error)
threads = [threading.Thread(target=_job.join) for _ in range(2)]
for thread in threads:
    thread.start()
threads[1].join(0.3)
print([thread.is_alive() for thread in threads])
go_on.set()
for thread in threads:
    thread.join()
"""


def test_who_joins_waits_for_the_broker_or_hears_why_not():
    run = subprocess.run([sys.executable, "-c", JOINS], capture_output=True, text=True, timeout=60,
                         env=os.environ | {"PYTHONPATH": str(ROOT / "python")})
    assert run.stdout.splitlines() == ["this process cannot become a job of the broker: ValueError('no such job')",
                                       "[True, True]"], run.stderr


def answers(listener: socket.socket, pid: list[int], share: list[float]) -> None:
    """Each time that it is asked, a second has gone. Another job is there, too, and the text comes in two packets."""
    attained = here = 0.0
    while True:
        try:
            peer, _ = listener.accept()
        except OSError:
            return
        with peer:
            assert peer.recv(100) == scripted_broker.packet(scripted_broker.QUERY)
            attained, here = attained + share[0], here + 1
            text = json.dumps({"jobs": [{"pid": 1, "attained_s": 0, "here_s": here},
                                        {"pid": pid[0], "attained_s": attained, "here_s": here}]}).encode()
            for part in (text[:30], text[30:]):
                peer.send(scripted_broker.packet(scripted_broker.LISTING, part))


SHARED = """
import sys
import carillon.tune
from carillon.tune import _job

def train(config):
    pass

if __name__ == "__main__":
    _job._ASK_EVERY = 0.02
    with carillon.tune.TrialGroup(devices=2) as group:
        shares = group._planned.shares
        def seen(share, now):
            print(share, flush=True)
            return shares(share, now)
        group._planned.shares = seen
        sys.stdin.readline()
        assert [given[1] for given in group._planned._given.values()] == [1.0, 1.0]
    assert not _job._told
"""


def test_a_study_has_no_more_of_its_devices_than_the_broker_gives_its_job(tmp_path):
    (tmp_path / "study.py").write_text(SHARED)
    pid, share = [0], [1.0]
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(tmp_path / "share.sock"))
        listener.listen()
        study = subprocess.Popen([sys.executable, tmp_path / "study.py"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE, text=True,
                                 env=os.environ | {"PYTHONPATH": str(ROOT / "python"), "CARILLON_SOCKET": str(tmp_path / "share.sock")})
        pid[0] = study.pid
        threading.Thread(target=answers, args=(listener, pid, share), daemon=True).start()
        try:
            for lent, least, most in ((0.4, 0.4, 0.45), (0.0, 0.02, 0.02), (1.0, 1.0, 1.0)):
                share[0] = lent
                while not least <= (told := float(study.stdout.readline())) <= most:
                    assert 0 < told < 1
            share[0] = 0.0
            while float(study.stdout.readline()) != 0.02:
                pass
            pid[0] = 0  # a broker that does not know the job, as after its restart
            assert float(study.stdout.readline()) == 1.0
            out, error = study.communicate("\n", timeout=60)
            assert (out, error, study.returncode) == ("", "", 0)
        finally:
            study.kill()
            study.communicate()
            listener.shutdown(socket.SHUT_RDWR)


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
    (line,) = jobs(program, lending.socket)["jobs"]
    assert [(job["job"], job["pid"]) for job in _job.ask(lending.socket)] == [(line["job"], line["pid"])]
    out, error = study.communicate("\n", timeout=120)
    assert study.returncode == 0, error
    assert json.loads(out) == [["ended", "", [os.SCHED_IDLE] * 2]] * 2
    comes(lambda: number(lending, 'carillon_share_ended_total{how="done"}') == 1, "the broker counts the study as done")
