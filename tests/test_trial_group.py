"""carillon.tune.TrialGroup: trials of plain scripts as processes, and the turns between the planner and them."""

from __future__ import annotations

import fcntl
import math
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "python"))
try:
    from carillon.tune import core  # noqa: F401
except ImportError as missing:
    pytest.skip(f"{missing}", allow_module_level=True)
import carillon.tune  # noqa: E402
from carillon.tune import TrialGroup, _processors  # noqa: E402
from carillon.tune._broker import Broker  # noqa: E402
from carillon.tune._folders import Folder  # noqa: E402
from carillon.tune._hangs import GRACE, Awake, Hangs  # noqa: E402
from carillon.tune.planned import Asked, End, Planned, Refused, Start  # noqa: E402
from carillon.tune.turns import Go, Hold, Turns  # noqa: E402


# --- Between the planner and processes: no clock, no process


def planned(policy="fifo", devices=1, told=None, **options) -> Planned:
    made = Planned(core.Tuning(policy, **(told or {})), **options)
    for device in range(devices):
        assert made.device_came(device, 0) == []
    return made


def test_a_trial_starts_computes_and_makes_room():
    p = planned()
    assert p.came([Asked("a", 3), Asked("b", 3)], 0) == [Start("a", (0,))]
    assert p.waits_for_place("b") and not p.waits_for_place("a")
    assert p.wants("a", 1) == [Go("a", 1)]
    assert p.running() == {"a": 1}
    for now in (2, 3):  # the first report is of the time in which it was placed, and measures nothing
        assert p.did("a", 1, 10, 1.0, now) == [] and p.reported("a", now) == []
    (a, b) = p.tuning.trials()
    assert (a.iterations, a.remaining, a.iteration.value) == (2, 1, pytest.approx(1.0))
    assert p.ended("a", 3) == [Start("b", (0,))]
    assert p.gone("a", 3) == [] and p.did("a", 1, 1, 1.0, 3) == []
    assert p.ended("b", 3) == [] and p.tuning.trials() == []


def test_half_a_report_is_told_as_half_once_a_report_is_known():
    p = planned()
    p.came([Asked("a", 10)], 0)
    p.wants("a", 0)
    p.did("a", 1, 20, 2.0, 2)
    assert p.tuning.trials()[0].iterations == 0  # of a report nobody knows how long it is
    p.reported("a", 2)
    p.did("a", 1, 10, 1.0, 3)
    assert p.tuning.trials()[0].iterations == 1.5 and p.tuning.trials()[0].remaining == 8.5
    p.did("a", 1, 10, 1.0, 4)
    p.reported("a", 4)
    assert p.tuning.trials()[0].iterations == 2


def shared() -> Planned:
    """Two trials that share one device."""
    p = planned("static", told={"alpha": 1, "beta": 1, "c": 2, "d": 1})
    assert p.came([Asked("a", 9, iteration=1), Asked("b", 9, iteration=1)], 0) == [Start("a", (0,)), Start("b", (0,))]
    return p


def test_who_shares_a_device_computes_by_turns():
    p = shared()
    assert p.wants("a", 0) == [Go("a", 1)]
    assert p.next_tick() is None
    assert p.wants("b", 0.1) == []
    assert p.next_tick() == 0.5
    assert p.tick(0.4) == [] and p.tick(0.5) == [Hold("a")] and p.tick(0.6) == []
    assert p.held("a", 0.7) == [Go("b", 1)]
    assert p.tick(1.2) == [Hold("b")]
    # Who rests needs no turn.
    assert p.rests("b", 1.3) == [Go("a", 1)]
    assert p.next_tick() is None
    # And who is gone keeps nobody waiting.
    p.wants("b", 1.4)
    assert p.died("a", 1.5, retry=False) == [Go("b", 1)]


def test_on_a_gpu_who_shares_it_computes_at_once():
    p = planned("static", told={"alpha": 1, "beta": 1, "c": 2, "d": 1}, takes_turns=False)
    p.came([Asked("a", 9, iteration=1), Asked("b", 9, iteration=1)], 0)
    assert p.wants("a", 0) == [Go("a", 1)] and p.wants("b", 0) == [Go("b", 1)]
    assert p.next_tick() is None


def test_what_sharing_costs_is_measured_with_the_wait_for_a_turn():
    p = planned("static", told={"beta": 1, "c": 2, "d": 1})
    p.came([Asked("a", iteration=1), Asked("b", iteration=1)], 0)
    assert {view.width for view in p.tuning.trials()} == {0.5}
    now = 0.0
    turn = p.wants("a", now) + p.wants("b", now)
    for _ in range(40):
        (go,) = turn
        other = {"a": "b", "b": "a"}[go.trial]
        now += 0.5
        assert p.tick(now) == [Hold(go.trial)]
        p.did(go.trial, 1, 5, 0.5, now)
        turn = p.held(go.trial, now)
        assert turn == [Go(other, 1)]
    view = p.tuning.trials()[0]
    assert view.iterations >= 80 and p.tuning.model().c == 2
    assert p.tuning.trials()[0].width == 0.5


def test_a_partner_that_is_still_setting_up_measures_nothing():
    p = planned("static", told={"beta": 1, "c": 2, "d": 1})
    p.came([Asked("a", iteration=1), Asked("b", iteration=1)], 0)
    now = 0.0
    p.wants("a", now)

    def alone(seconds):
        nonlocal now
        for _ in range(seconds):
            now += 1
            p.did("a", 1, 10, 1.0, now)

    alone(30)  # b's process starts, and computes nothing
    p.wants("b", now)
    p.tick(now + 0.5)
    assert p.held("a", now + 0.5) == [Go("b", 1)]
    now += 60
    p.tick(now)
    p.did("b", 1, 1, 60.0, now)  # it read its data for a minute
    assert p.held("b", now) == [Go("a", 1)]
    assert not p.tuning.model().alpha.known
    assert p.tuning.trials()[0].iterations >= 300


def test_a_trial_is_wider_at_its_boundary():
    p = planned("dynamic", devices=2, told={"alpha": 1, "beta": 1, "c": 1, "d": 2})
    assert p.came([Asked("a", 9, iteration=1), Asked("b", 3, iteration=1)], 0) == [Start("a", (0,)), Start("b", (1,))]
    assert p.wants("a", 0) == [Go("a", 1)] and p.wants("b", 0) == [Go("b", 1)]
    orders = p.ended("b", 3)
    while p.next_tick() is not None and not orders:
        orders = p.tick(p.next_tick())
    assert orders == [Go("a", 2)]
    assert p.tuning.trials()[0].settling
    p.did("a", 1, 10, 3.0, 3.5)
    assert not p.tuning.trials()[0].settling and p.running() == {"a": 2}


def test_paused_it_stands_still_and_goes_on_in_its_process():
    p = planned()
    p.came([Asked("a", 1), Asked("b", 1)], 0)
    p.wants("a", 0)
    assert p.paused("a", 1) == [Hold("a"), Start("b", (0,))]
    assert p.held("a", 1) == []
    assert p.wants("b", 1.5) == [Go("b", 1)]
    assert p.came([Asked("a", 2)], 2) == []
    assert p.ended("b", 3) == [Go("a", 1)]


def test_one_whose_process_died_begins_again():
    p = planned()
    p.came([Asked("a", 5)], 0)
    p.wants("a", 0)
    p.did("a", 1, 1, 1.0, 1)
    p.reported("a", 1)
    assert p.gone("a", 2) == []
    assert p.died("a", 2, retry=True, done=0) == [Start("a", (0,))]
    assert p.tuning.trials()[0].remaining == 5
    assert p.wants("a", 3) == [Go("a", 1)]


def test_a_process_that_is_bound_to_its_gpu_starts_again_on_another():
    p = planned("fifo", devices=1, moves=False)
    p.came([Asked("a", 5)], 0)
    p.wants("a", 0)
    p.device_came(1, 1)
    assert p.device_went(0, 2) == [Hold("a")]
    assert p.held("a", 3) == [End("a")]
    assert p.gone("a", 3) == [Start("a", (1,))]
    assert p.wants("a", 4) == [Go("a", 1)]


def test_where_memory_falls_a_process_ends_and_comes_back():
    p = planned("fifo", devices=0)
    p.device_came(0, 0, memory=1000)
    p.came([Asked("a", 5, persistent=600)], 0)
    p.wants("a", 0)
    assert p.device_changed(0, 1, memory=500) == [Hold("a")]
    assert p.held("a", 2) == [End("a")]
    assert p.gone("a", 3) == []
    assert p.device_changed(0, 4, memory=1000) == [Start("a", (0,))]


def test_others_take_a_share_of_all_devices_and_what_is_given_of_each_stays():
    told = []
    p = planned(devices=0, share=0.75)
    p.tuning = SimpleNamespace(device_came=lambda *a, **k: told.append(k) or [], device_changed=lambda *a, **k: told.append(k) or [],
                               device_went=lambda *a: [])
    p.device_came(0, 0)
    p.device_came(1, 0, speed=2.0, supply=0.5, memory=100)
    p.device_changed(0, 1, supply=0.4)
    assert [one["supply"] for one in told] == pytest.approx([0.75, 0.375, 0.3])
    del told[:]
    p.shares(0.5, 2)
    assert told == [{"speed": 1.0, "supply": 0.2, "memory": None}, {"speed": 2.0, "supply": 0.25, "memory": 100}]
    del told[:]
    p.device_went(1, 3)
    p.shares(1.0, 3)
    assert told == [{"speed": 1.0, "supply": 0.4, "memory": None}]
    for wrong in (-0.1, 1.1, math.nan):
        with pytest.raises(ValueError, match="a share is from 0 to 1"):
            p.shares(wrong, 4)


def test_where_all_is_taken_trials_stand_still_until_some_is_left():
    p = planned("best")
    p.came([Asked("a", 9)], 0)
    p.wants("a", 0)
    assert p.shares(0.0, 1) == [Hold("a")] and p.held("a", 1) == []
    assert p.shares(0.25, 2) == [Go("a", 1)]


V2 = {"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/cpu.max": "150000 100000\n", "sys/fs/cgroup/a/b/cpu.max": "max 100000\n"}
V1 = {"proc/self/cgroup": "4:cpu,cpuacct:/a\n", "proc/self/mountinfo": "35 31 0:32 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n",
      "sys/fs/cgroup/cpu/a/cpu.cfs_quota_us": "250000\n", "sys/fs/cgroup/cpu/a/cpu.cfs_period_us": "100000\n"}


@pytest.mark.parametrize("files, allowed, count, supply", [
    ({}, 4, 4, 1.0), (V2, 4, 2, 0.75), (V2, 1, 1, 1.0), (V1, 4, 3, 2.5 / 3), (V1, 2, 2, 1.0),
    ({**V2, "sys/fs/cgroup/a/cpu.max": "20000 100000\n"}, 4, 1, 0.2)])
def test_a_quota_of_a_container_is_counted(tmp_path, files, allowed, count, supply):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found = _processors.usable(str(tmp_path), allowed)
    assert (found.count, found.supply) == (count, pytest.approx(supply))


def test_a_group_has_as_many_devices_as_its_quota_keeps_busy(monkeypatch):
    monkeypatch.setattr(core, "processor_limits", lambda *_: (8, 1.5))
    with TrialGroup() as group:
        assert group._numbers == [0, 1] and group._planned.share == 0.75
        trials = group.map(train, [{"x": 1}] * 3)
    assert [trial.state for trial in trials] == ["ended"] * 3
    with TrialGroup(3) as group:  # as it was asked for
        assert group._numbers == [0, 1, 2] and group._planned.share == 1.0


def test_a_trial_that_no_device_can_hold_is_refused_and_nothing_else():
    p = planned("best", devices=0)
    p.device_came(0, 0, memory=100)
    assert p.came([Asked("a", persistent=200), Asked("b", persistent=50)], 0) == [Refused("a", "too_large"), Start("b", (0,))]
    with pytest.raises(ValueError, match="is here already"):
        p.came([Asked("c"), Asked("b")], 0)
    with pytest.raises(ValueError, match="comes twice"):
        p.came([Asked("c"), Asked("c")], 0)
    assert [view.trial for view in p.tuning.trials()] == [1]


# --- Live


def train(config):
    """Reports so many times, and goes on from its checkpoint. Where `config` says so it comes to grief, once."""
    done = carillon.tune.checkpoint() or 0
    for epoch in range(done, config.get("epochs", 3)):
        for _ in range(3):
            carillon.tune.step()
        metric = math.nan if epoch == 1 else config["x"] + epoch
        carillon.tune.report(metric, epoch=epoch, process=os.getpid(), checkpoint=epoch + 1)
        if epoch == 1 and done == 0:
            grief = config.get("grief")
            if grief == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            elif grief == "hung":
                time.sleep(10_000)
            elif grief == "memory":
                raise MemoryError("no room")
            elif grief == "error":
                raise ValueError("wrong number")
            elif grief == "exit":
                os._exit(3)
    return config["x"] * 2


def test_each_trial_ends_once_and_no_report_is_lost():
    with TrialGroup(2) as group:
        trials = group.map(train, [{"x": i} for i in range(7)], budget=3)
        ended = list(group.as_ended())
    assert len(ended) == len(set(map(id, ended))) == 7
    for i, trial in enumerate(trials):
        assert (trial.state, trial.value, trial.error, trial.attempts) == ("ended", i * 2, "", 1)
        assert [report["epoch"] for report in trial.reports] == [0, 1, 2]
        metrics = [report["metric"] for report in trial.reports]
        assert metrics[0] == i and math.isnan(metrics[1]) and metrics[2] == i + 2
    assert group._planned.tuning.trials() == []
    assert not group.folder.exists()


@pytest.mark.parametrize("grief, says", [("killed", "signal 9"), ("memory", "MemoryError: no room"), ("exit", "code 3"),
                                         ("hung", "reached no boundary")])
def test_a_trial_that_comes_to_grief_goes_on_from_its_checkpoint_and_others_do_not_notice(grief, says):
    # A busy machine may make a good trial look as if it hung, so it has more tries than one.
    more = {"hang_after": 3, "retries": 9} if grief == "hung" else {}
    with TrialGroup(2, **more) as group:
        lost, other = group.map(train, [{"x": 5, "grief": grief, "epochs": 4}, {"x": 1}], budget=[4, 3])
    assert (lost.state, lost.value, other.state) == ("ended", 10, "ended")
    assert [report["epoch"] for report in lost.reports] == [0, 1, 2, 3]
    processes = [report["process"] for report in lost.reports]
    assert processes[0] == processes[1] != processes[2]
    if grief != "hung":
        assert lost.attempts == 2 and other.attempts == 1
    with TrialGroup(2, retries=0, hang_after=3 if grief == "hung" else None) as group:
        lost = group.submit(train, {"x": 5, "grief": grief})
    assert lost.state == "failed" and says in lost.error
    assert len(lost.reports) == 2 or grief == "hung"  # a busy machine may make it hang before


def ends_before_its_report_is_heard(config):
    """Keeps every third report; its first process ends right after the second of these was written."""
    done = carillon.tune.checkpoint() or 0
    here = carillon.tune._process._here
    for epoch in range(done + 1, 8):
        if epoch == 6 and done == 0:
            here._say = lambda text: os.kill(os.getpid(), signal.SIGKILL) if text.startswith("report") else None
        carillon.tune.report(epoch, done=done, checkpoint=epoch if epoch % 3 == 0 else None)


def test_a_checkpoint_whose_report_was_not_heard_is_gone_on_from():
    with TrialGroup(1) as group:
        trial = group.submit(ends_before_its_report_is_heard, budget=7)
    assert (trial.state, trial.error, trial.attempts) == ("ended", "", 2)
    assert [(report["metric"], report["done"]) for report in trial.reports] == [
        (1, 0), (2, 0), (3, 0), (4, 0), (5, 0), (6, 0), (7, 6)]


def cannot_save_once(config):
    carillon.tune.report(1, checkpoint=1)
    try:
        carillon.tune.report(2, checkpoint=lambda: None)
    except Exception:
        carillon.tune.report(2)
    carillon.tune.report(3, checkpoint=3)


def test_a_report_that_cannot_be_saved_was_none(tmp_path):
    with TrialGroup(1, retries=0, folder=tmp_path) as group:
        trial = group.submit(cannot_save_once, name="one")
    assert (trial.state, trial.error) == ("ended", "")
    assert [report["metric"] for report in trial.reports] == [1, 2, 3]


def cannot_save(config):
    try:
        carillon.tune.report(1, checkpoint=lambda: None)
    except Exception:
        return [path.name for path in Path(config).rglob("*checkpoint*")]


def test_a_save_that_fails_leaves_nothing(tmp_path):
    with TrialGroup(1, folder=tmp_path) as group:
        trial = group.submit(cannot_save, str(tmp_path))
    assert trial.value == []


def asks_once(config):
    carillon.tune._process.ask("what")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("where", ["on_ask", "on_end"])
def test_an_error_of_a_callback_is_told_and_is_not_the_trials(where):
    def wrong(*told):
        raise ValueError("of the callback")

    with pytest.raises(RuntimeError, match="of the callback"):
        with TrialGroup(1, **{where: wrong}) as group:
            group.submit(asks_once if where == "on_ask" else train, {"x": 1})
            assert group.wait(timeout=60)


def test_a_command_whose_end_nobody_would_hear_of_is_ended(tmp_path, monkeypatch):
    started = []

    def too_many(pid):
        started.append(pid)
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "pidfd_open", too_many)
    with TrialGroup(1) as group:
        trial = group.submit(["sleep", "1000"])
        assert group.wait(timeout=60)
        with pytest.raises(ProcessLookupError):
            os.kill(started[0], 0)
    assert trial.state == "failed" and "Too many open files" in trial.error


class SubmitsAsItIsPickled:
    """As another thread that submits meanwhile."""

    def __init__(self, group):
        self.group, self.other = group, None

    def __reduce__(self):
        self.other = self.group.submit(train, {"x": 1})
        return dict, ()


def test_trials_that_are_submitted_meanwhile_have_names_of_their_own():
    with TrialGroup(1) as group:
        config = SubmitsAsItIsPickled(group)
        trial = group.submit(nothing, config)
        assert group.wait(timeout=60)
        assert trial.name != config.other.name and len(group.trials) == 2
        assert (trial.state, config.other.state) == ("ended", "ended")


def nothing(config):
    pass


@pytest.mark.parametrize("pid", [-1, 0])
def test_a_process_is_known_by_the_kernel_and_not_by_what_it_says(pid):
    broker = Broker(Turns(1))
    try:
        for said in (pid, 4242):
            with socket.socket(socket.AF_UNIX) as trial:
                trial.connect(broker.path)
                trial.settimeout(60)
                trial.sendall(f"hello a {said}\nwant\n".encode())
                assert trial.recv(100) == (b"" if said < 1 else b"go 1\n")
                assert broker.counts.processes == (set() if said < 1 else {os.getpid()})
    finally:
        broker.close()


def test_who_waits_for_its_drivers_answer_keeps_no_device():
    asked = []
    with TrialGroup(1, on_ask=lambda *told: asked.append(told)) as group:
        asks = group.submit(asks_once)
        until(lambda: asked)
        until(lambda: not group.widths())
        group.answer(asked[0][0], asked[0][1], None)
    assert (asks.state, asks.error) == ("ended", "")


def test_an_error_is_told_and_not_tried_again():
    with TrialGroup(1) as group:
        wrong, good = group.map(train, [{"x": 5, "grief": "error"}, {"x": 1}])
    assert (wrong.state, wrong.error, wrong.attempts) == ("failed", "ValueError: wrong number", 1)
    assert "in train" in wrong.traceback and good.state == "ended"


def writes_at_its_end(config):
    def late():
        time.sleep(0.3)
        Path(config["file"]).write_text("whole")

    threading.Thread(target=late).start()


def test_a_process_does_what_is_left_after_its_result(tmp_path):
    with TrialGroup(1) as group:
        group.submit(writes_at_its_end, {"file": str(tmp_path / "late")})
    assert (tmp_path / "late").read_text() == "whole"


def wait_until_wide(config):
    end = time.monotonic() + 60
    while carillon.tune.threads() < 2 and time.monotonic() < end:
        time.sleep(0.005)
        carillon.tune.step()
        carillon.tune.report(0.0)
    return carillon.tune.threads()


def test_a_trial_that_is_alone_is_given_what_is_free():
    with TrialGroup(2) as group:
        trial = group.submit(wait_until_wide)
    assert trial.value == 2 and trial.attempts == 1


def never_at_once(config):
    """Computes with a lock that it must get at once."""
    with open(config["file"], "a") as file:
        for _ in range(60):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            time.sleep(0.002)
            fcntl.flock(file, fcntl.LOCK_UN)
            carillon.tune.step()
    return True


def test_trials_that_share_a_processor_never_compute_at_once(tmp_path):
    with TrialGroup(1, policy="static", alpha=1, beta=1, c=3, d=1, quantum=0.01) as group:
        trials = group.map(never_at_once, [{"file": str(tmp_path / "lock")}] * 3, iteration=1, budget=1)
    assert [(trial.state, trial.error) for trial in trials] == [("ended", "")] * 3


def endless(config):
    while True:
        time.sleep(0.001)
        carillon.tune.report(1.0, process=os.getpid())


def until(condition) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_pause_resume_and_stop():
    with TrialGroup(1) as group:
        first, second = group.submit(endless), group.submit(train, {"x": 1})
        until(lambda: first.reports)
        first.pause()
        assert group.wait([second], timeout=60)  # has the processor meanwhile
        assert first.state == "paused"
        so_far = len(first.reports)
        first.resume(budget=5)
        until(lambda: len(first.reports) > so_far)
        first.stop()
        assert group.wait(timeout=60)
    assert first.state == "stopped" and first.attempts == 1
    assert len({report["process"] for report in first.reports}) == 1


def test_a_wait_that_is_longer_than_hang_after_is_not_taken_to_hang():
    with TrialGroup(1, retries=0, hang_after=3) as group:
        trial = group.submit(endless)
        until(lambda: trial.reports)
        trial.pause()
        until(lambda: not group.widths())
        held = time.monotonic()
        until(lambda: time.monotonic() > held + 4)
        told: list[float] = []  # by the clock of the limits, as it is told to go on
        go = group._planned.came

        def came(*args):
            orders = go(*args)
            group._post(lambda: told.append(trial._running.heard))
            return orders

        group._planned.came = came
        trial.resume()
        until(lambda: told)
        assert told[0] > held + 4
        trial.stop()
        assert group.wait(timeout=60)
    assert trial.state == "stopped"


class Unloadable:
    """Goes into a file, and does not come back."""

    def __reduce__(self):
        return dict.__getitem__, ({}, "nothing")


def returns_unloadable(config):
    return Unloadable()


def test_who_hangs_and_who_only_waits():
    hangs = Hangs(5)
    assert hangs.next_look() is None and hangs.hanging(100) == []
    hangs.computes("a", 0)
    hangs.computes("b", 1)
    assert hangs.next_look() == 5 and hangs.hanging(4.9) == []
    hangs.heard("a", 4)
    hangs.heard("nobody", 4)
    assert hangs.next_look() == 6 and hangs.hanging(6) == [("b", 5)]
    assert hangs.hanging(6.5) == []  # it is told once, and then counts anew
    hangs.asks("a")  # the driver's time, until it has answered
    hangs.stands("b")
    assert hangs.hanging(100) == [] and hangs.next_look() is None
    hangs.answered("a", 100)
    assert hangs.next_look() == 105 and hangs.silent("a", 101) == 1
    hangs.asks("a")
    hangs.gone("a")
    hangs.computes("a", 200)  # its next process asks nobody
    assert hangs.hanging(205) == [("a", 5)]
    never = Hangs(None)
    never.computes("a", 0)
    assert never.next_look() is None and never.hanging(1e9) == []


def test_time_in_which_the_driver_stood_still_does_not_count():
    clock = Awake(10.0)
    for now, most in ((10.5, 1.0), (11.5, 1.0), (11.6, 0.05), (20.0, None)):
        clock.turned(now, most)  # nothing came before the end of the wait; None: nobody looks at the clock
    assert clock.at(20.0) == 20.0
    clock.turned(51.0, 1.0)  # it was to wait a second, and was stopped for thirty
    assert clock.at(51.0) == pytest.approx(21.0 + GRACE)


@pytest.mark.parametrize("wrong", [0, -1, 2.9, math.nan, math.inf])
def test_how_long_a_silence_may_be_is_checked_in_one_place(wrong):
    for make in (lambda: Broker(Turns(1), hang_after=wrong), lambda: TrialGroup(1, hang_after=wrong)):
        with pytest.raises(ValueError, match="hang_after is .*at least 3 seconds"):
            make()


STOPPED = """
    import os, signal, sys, threading, time, carillon.tune
    from carillon.tune import _process
    def train(config):
        answer = _process.ask(config) if config == "asks" else None
        for epoch in range(500):
            time.sleep(0.01)
            carillon.tune.report(1.0, process=os.getpid())
        return answer
    if __name__ == "__main__":
        asked = []
        with carillon.tune.TrialGroup(2, retries=0, hang_after=3, on_ask=lambda *said: asked.append(said)) as group:
            trials = [group.submit(train, "asks"), group.submit(train, "computes")]
            while not asked or not trials[1].reports:
                time.sleep(0.01)
            print(trials[1].reports[0]["process"], flush=True)
            os.kill(os.getpid(), signal.SIGSTOP)
            time.sleep(3.5)
            trial, number, _ = asked[0]
            group.answer(trial, number, "late")
        print([(trial.state, trial.value, trial.error) for trial in trials])
"""


def test_neither_a_stop_of_the_driver_nor_its_answer_is_a_hang_of_a_trial(tmp_path):
    driver = run(tmp_path, STOPPED)
    trial = int(driver.stdout.readline())
    assert os.WIFSTOPPED(os.waitpid(driver.pid, os.WUNTRACED)[1])
    os.kill(trial, signal.SIGSTOP)
    time.sleep(4)
    os.kill(driver.pid, signal.SIGCONT)
    time.sleep(0.5)
    os.kill(trial, signal.SIGCONT)
    assert driver.communicate(timeout=60) == ("[('ended', 'late', ''), ('ended', None, '')]\n", "")


def test_a_value_that_cannot_be_read_fails_its_trial_alone():
    with TrialGroup(1) as group:
        wrong, good = group.submit(returns_unloadable), group.submit(train, {"x": 1})
    assert wrong.state == "failed" and "its value cannot be read: KeyError" in wrong.error
    assert (good.state, good.value) == ("ended", 2)


def test_a_folder_that_cannot_be_made_fails_its_trial_alone(tmp_path):
    (tmp_path / "file").write_text("")
    with TrialGroup(1) as group:
        wrong = group.submit(train, {"x": 1}, folder=tmp_path / "file" / "under")
        good = group.submit(train, {"x": 1})
    assert wrong.state == "failed" and "does not start" in wrong.error and good.state == "ended"


def test_many_processes_at_once_are_not_too_many_open_files(tmp_path):
    ran = run(tmp_path, """
        import resource
        from carillon.tune import TrialGroup
        def train(config):
            return config
        if __name__ == "__main__":
            resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
            with TrialGroup(30) as group:
                trials = group.map(train, range(60))
            print([trial.value for trial in trials] == list(range(60)))
    """)
    assert ran.communicate(timeout=120)[0] == "True\n"


class Untold(Exception):
    def __str__(self):
        raise RuntimeError("no text")


def raises_untold(config):
    raise Untold


def test_an_error_without_a_text_is_told_and_not_tried_again():
    with TrialGroup(1) as group:
        trial = group.submit(raises_untold)
    assert (trial.state, trial.attempts, trial.error) == ("failed", 1, "Untold: its text cannot be made")


@pytest.mark.parametrize("how, values", [(["-"], "[0]\n"), (["-c", "exec(open(0).read())"], "[0, 2.0]\n")])
def test_what_a_program_without_a_file_submits_is_refused(tmp_path, how, values):
    program = textwrap.dedent("""
        import math
        from carillon.tune import TrialGroup
        def train(config):
            pass
        with TrialGroup(1) as group:
            group.submit(["true"])
            for work, config in ((train, 1), (print, train), (math.sqrt, 4)):
                try:
                    group.submit(work, config)
                except TypeError as error:
                    assert "no file" in str(error), error
        print([trial.value for trial in group.trials])
    """)
    ran = subprocess.run([sys.executable, *how], input=program, capture_output=True, text=True, timeout=60, cwd=tmp_path,
                         env=os.environ | {"PYTHONPATH": str(ROOT / "python")})
    assert ran.stdout == values, ran.stderr


@pytest.mark.parametrize("work, folder", [(["true", "a\0b"], None), (["true", "\ud800"], None), (["a\0b"], None), (train, "a\0b")])
def test_what_cannot_be_started_fails_its_trial_alone(tmp_path, work, folder):
    with TrialGroup(1) as group:
        wrong = group.submit(work, {"x": 1}, folder=None if folder is None else tmp_path / folder)
        good = group.submit(train, {"x": 1})
    assert wrong.state == "failed" and "does not start" in wrong.error and good.state == "ended"


def test_a_command_that_removes_its_folder_fails_alone():
    with TrialGroup(1) as group:
        wrong = group.submit(["sh", "-c", "rm -r $CARILLON_TUNE_FOLDER; exit 3"])
        good = group.submit(train, {"x": 1})
    assert (wrong.state, wrong.error, wrong.traceback) == ("failed", "it ended with code 3", "") and good.state == "ended"


def test_a_folder_that_is_used_again_has_nothing_of_the_last_study(tmp_path):
    for x in (1, 2):
        with TrialGroup(1, folder=tmp_path) as group:
            trial = group.submit(train, {"x": x})
        assert (trial.state, trial.value, trial.attempts, len(trial.reports)) == ("ended", 2 * x, 1, 3)
        assert (tmp_path / trial.name / "checkpoint.pkl").exists()


def leaves_a_child(config):
    carillon.tune.report(1.0, child=subprocess.Popen(["sleep", "1000"]).pid)
    if config == "dies":
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("how", ["dies", "ends"])
def test_what_a_trial_started_ends_with_its_process(how):
    with TrialGroup(1, retries=0) as group:
        trial = group.submit(leaves_a_child, how)
    until(lambda: gone(trial.reports[0]["child"]))


def test_as_ended_gives_each_once_and_ends_without_paused_ones():
    with TrialGroup(1) as group:
        paused = group.submit(endless)
        until(lambda: paused.reports)
        paused.pause()
        until(lambda: paused.state == "paused")
        first = group.submit(train, {"x": 1})
        assert list(group.as_ended()) == [first] and list(group.as_ended()) == []
        second = group.submit(train, {"x": 1})
        assert list(group.as_ended()) == [second]


def test_the_list_that_map_gives_is_the_callers():
    with TrialGroup(1) as group:
        trials = group.map(train, [{"x": 1}])
        trials.append(group.submit(train, {"x": 2}))
        trials.append(group.submit(train, {"x": 3}, name="trial-3"))
        trials += group.map(train, [{"x": 4}, {"x": 5}])
    assert [trial.value for trial in trials] == [2, 4, 6, 8, 10]
    assert len({trial.name for trial in trials}) == 5


def test_a_group_may_be_closed_within_its_with():
    with TrialGroup(1) as group:
        trial = group.submit(endless)
        group.close()
    assert trial.state == "stopped"


@pytest.mark.parametrize("again", [True, False])
def test_a_group_may_be_closed_when_a_trial_ends(again):
    ended, refused = [], []

    def on_end(trial):
        ended.append((trial.name, trial.state))
        group.close()
        for wait in (group.wait, lambda: list(group.as_ended())):
            with pytest.raises(RuntimeError, match="would wait for itself") as error:
                wait()
            refused.append(error)

    group = TrialGroup(1, on_end=on_end)
    first, second, third = group.submit(train, {"x": 1}), group.submit(endless), group.submit(endless)
    until(lambda: len(ended) == 3 and not group._broker._thread.is_alive())
    assert ended == [(first.name, "ended"), (second.name, "stopped"), (third.name, "stopped")] and len(refused) == 6
    assert not group.folder.exists() and not os.path.exists(group._broker.path)
    if again:
        group.close()
    with pytest.raises(RuntimeError, match="closed"):
        group.submit(train, {"x": 1})


def test_a_with_ends_where_its_group_is_closed_when_a_trial_ends():
    with TrialGroup(1, on_end=lambda _: group.close()) as group:
        trials = [group.submit(train, {"x": 1}), group.submit(endless)]
    assert [trial.state for trial in trials] == ["ended", "stopped"] and not group.folder.exists()


def test_a_thread_that_does_not_heed_keeps_nobody_who_posts():
    broker, go = Broker(Turns(1)), threading.Event()
    done = []
    try:
        broker.post(go.wait)
        for i in range(100_000):  # more than the pipe takes
            broker.post(lambda: done.append(1))
        go.set()
        until(lambda: len(done) == 100_000)
    finally:
        broker.close()
    broker.post(lambda: done.append(2))
    assert done[-1] == 1


def reports_from_threads(config):
    def reports():
        for _ in range(200):
            carillon.tune.report(1.0, checkpoint=1)

    threads = [threading.Thread(target=reports) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_threads_of_a_trial_may_report():
    with TrialGroup(1, retries=0) as group:
        trial = group.submit(reports_from_threads)
    assert (trial.state, len(trial.reports)) == ("ended", 800)


def reports_in_a_fork(config):
    pid = os.fork()
    if pid == 0:
        carillon.tune.report(2.0)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0


def test_what_a_trial_forks_is_no_trial():
    with TrialGroup(1, retries=0) as group:
        trial = group.submit(reports_in_a_fork)
    assert trial.state == "ended" and trial.reports == []


KILLED = """
    import os, signal, carillon.tune, time
    from carillon.tune._starts import Starts
    if __name__ == "__main__":
        group = carillon.tune.TrialGroup(1)
        starts = Starts([])
        print("there", flush=True)
        time.sleep(600)
"""


def test_folders_of_killed_drivers_go_with_the_next_start_and_no_others(tmp_path, monkeypatch):
    # Not below pytest's folder: where several run tests its name is so long that sockets would go elsewhere.
    with tempfile.TemporaryDirectory(prefix="tune-", dir="/tmp") as place:
        monkeypatch.setenv("TMPDIR", place)
        check_folders_of_killed_drivers(tmp_path, Path(place))


def check_folders_of_killed_drivers(tmp_path, place):
    def folders() -> set[str]:
        return {path.name.rsplit("-", 1)[0] for path in place.glob("carillon-tune-*")}

    def start(text: str = KILLED) -> subprocess.Popen[str]:
        driver = run(tmp_path, text)
        driver.stdout.readline()
        return driver

    three = {f"carillon-tune-{what}" for what in ("trials", "turns", "ready")}
    killed = start()
    assert folders() == three
    # Without a lock it is half made; the second is a name of somebody's own, and the third of another user.
    for name in ("carillon-tune-half", "other", "carillon-tune-theirs"):
        (place / name).mkdir()
    (place / "carillon-tune-link").symlink_to(place / "other")
    theirs = place / "carillon-tune-theirs" / "~lock"
    theirs.touch()
    if os.geteuid() == 0:
        os.chown(theirs.parent, 12345, -1)
    else:
        theirs.unlink()
    # A driver was killed long ago before its folder had a lock.
    for name, files in (("empty", ()), ("begun", ("~lock.new",)), ("full", ("turns.sock",))):
        old = place / f"carillon-tune-{name}"
        old.mkdir()
        for file in files:
            (old / file).touch()
        os.utime(old, (1, 1))
    kept = {"carillon-tune-full", "carillon-tune-half", "carillon-tune-theirs", "carillon-tune-link"}
    living = start()
    assert not any((place / f"carillon-tune-{name}").exists() for name in ("empty", "begun"))
    both = len(list(place.glob("carillon-tune-*")))
    killed.kill()
    killed.communicate(timeout=60)
    assert both == 10
    again = start()
    assert len(list(place.glob("carillon-tune-*"))) == 10  # the living one's, and its own
    for driver in (living, again):
        driver.kill()
        driver.communicate(timeout=60)
    start("""
        import carillon.tune
        if __name__ == "__main__":
            carillon.tune.TrialGroup(1).close()
            print("over", flush=True)
    """).communicate(timeout=60)
    assert {path.name for path in place.glob("carillon-tune-*")} == kept and (place / "other").is_dir()


def test_a_forked_child_leaves_its_parents_folder():
    folder = Folder("test")
    child = os.fork()
    if not child:
        folder.remove()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0 and folder.path.is_dir()
    folder.remove()
    assert not folder.path.exists()


def test_a_group_that_cannot_join_a_job_leaves_no_folder(tmp_path, monkeypatch):
    def no_torch():
        raise ImportError("there is no torch")

    monkeypatch.setattr(carillon.tune.group._job, "join", no_torch)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(ImportError, match="no torch"):
        TrialGroup(1)
    assert list(tmp_path.iterdir()) == []


LONG = """
    import carillon.tune
    from carillon.tune._starts import Starts
    def train(config):
        carillon.tune.report(1.0)
    if __name__ == "__main__":
        with carillon.tune.TrialGroup(1, retries=0) as group:
            trials = [group.submit(train), group.submit(["true"])]
        starts = Starts([])
        print([trial.state for trial in trials], [trial.error for trial in trials])
        starts.close()
        starts.process.wait(60)
"""


def test_a_temporary_folder_may_have_a_long_path(tmp_path, monkeypatch):
    far, near = tmp_path / ("x" * 117), Path(f"/tmp/c-{os.getpid()}")
    far.mkdir()
    near.mkdir()
    monkeypatch.setenv("TMPDIR", str(far))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(near))
    try:
        driver = run(tmp_path, LONG)
        assert driver.communicate(timeout=60) == ("['ended', 'ended'] ['', '']\n", "")
        assert list(near.iterdir()) == [] and list(far.iterdir()) == []
    finally:
        near.rmdir()


def test_where_no_path_is_short_enough_that_is_said(tmp_path, monkeypatch):
    far = tmp_path / ("x" * 117)
    far.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(far))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(far))
    monkeypatch.setattr("carillon.tune._folders._SHORT", (str(far), "/no/such"))
    with pytest.raises(OSError, match="set TMPDIR to a shorter path"):
        TrialGroup(1)
    assert list(far.iterdir()) == []


def test_what_starts_in_rays_place_may_have_a_path_with_blanks(monkeypatch):
    from carillon.tune._starts import Starts

    monkeypatch.setattr("sys.executable", "/a folder/python")
    starts = Starts.__new__(Starts)
    starts.path = "/a/ready.sock"
    assert shlex.split(starts.py_executable())[0] == "/a folder/python"


def asks_much(config):
    return len(carillon.tune._process.ask("how much"))


def test_an_answer_that_is_larger_than_a_sockets_buffer_comes_whole():
    group = TrialGroup(1, on_ask=lambda trial, number, _: group.answer(trial, number, "x" * (3 << 20)))
    with group:
        trial = group.submit(asks_much)
        assert group.wait(timeout=60)
    assert trial.value == 3 << 20


def says_much(config):
    errors = []
    for say in (lambda: carillon.tune.report(1, text="x" * (2 << 20)),
                lambda: carillon.tune._process.ask("x" * (2 << 20))):
        with pytest.raises(ValueError, match="must be at most 1048448") as raised:
            say()
        errors.append(str(raised.value))
    carillon.tune.report(1, text="x" * 1_048_400)
    return errors


def test_a_report_that_is_too_large_says_so():
    with TrialGroup(1, retries=0) as group:
        trial = group.submit(says_much)
    assert trial.state == "ended" and "a report is 20971" in trial.value[0] and len(trial.reports) == 1


WRONG = {"huge": "did 1 1" + 400 * "0" + " 1", "endless": "did 1 1 inf", "nested": "report 1 0 " + 100_000 * "[",
         "number": "report 1 0 5", "no failure": "result failed 5", "nothing": "result nothing null"}


@pytest.mark.parametrize("line", WRONG)
def test_words_that_a_trial_cannot_say_end_its_connection_alone(line):
    with TrialGroup(1, retries=0) as group:
        wrong = group.submit(says, line)
        good = group.submit(train, {"x": 1})
        assert group.wait(timeout=60)
    assert wrong.state == "failed" and good.state == "ended"


def says(line):
    here = carillon.tune._process._here
    here._say(WRONG[line])
    here._heard(block=True)  # the end of the connection, by which it ends


def test_a_device_without_supply_has_nobody_who_computes():
    with TrialGroup(1) as group:
        trial = group.submit(endless)
        until(lambda: trial.reports)
        group.set_device(0, supply=0)
        until(lambda: not group.widths())
        time.sleep(0.1)  # a report that was on its way
        so_far = len(trial.reports)
        time.sleep(0.1)
        assert len(trial.reports) == so_far and trial.state == "running"
        group.set_device(0, supply=0.5)
        until(lambda: len(trial.reports) > so_far)
        for wrong in ({"device": 5}, {"device": 0, "supply": math.nan}, {"device": 0, "speed": 0}):
            with pytest.raises(ValueError):
                group.set_device(**wrong)
        trial.stop()
    assert len({report["process"] for report in trial.reports}) == 1


def says_its_gpu(config):
    for _ in range(3):
        carillon.tune.step()
        carillon.tune.report(1.0, gpu=os.environ["CUDA_VISIBLE_DEVICES"], threads=carillon.tune.threads())


def test_gpus_are_counted_among_those_that_the_driver_may_use(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,GPU-ab,-1,7")
    with TrialGroup([0, 1], policy="fifo", memory=100) as group:
        trials = group.map(says_its_gpu, [{}] * 2, persistent=60)
    assert {trial.reports[0]["gpu"] for trial in trials} == {"4", "GPU-ab"}
    with pytest.raises(ValueError, match=r"devices is \[0, 2\], and there is no GPU 2: .*'4,GPU-ab,-1,7'"):
        TrialGroup([0, 2])


def test_on_gpus_each_process_sees_its_own():
    """Without GPUs: what is told to the processes."""
    with TrialGroup([3, 5], policy="fifo", memory=100) as group:
        trials = group.map(says_its_gpu, [{}] * 4, persistent=60)
        too_large = group.submit(says_its_gpu, {}, persistent=101)
    assert [trial.state for trial in trials] == ["ended"] * 4 and too_large.state == "refused"
    assert {report["gpu"] for trial in trials for report in trial.reports} == {"3", "5"}
    assert {report["threads"] for trial in trials for report in trial.reports} == {1}


def trains(config):
    import torch

    net = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=config["lr"])
    torch.manual_seed(0)
    data = torch.randn(32, 4)
    for epoch in range(4):
        for _ in range(5):
            optimizer.zero_grad()
            loss = (net(data) - data.sum(1, keepdim=True)).square().mean()
            loss.backward()
            optimizer.step()
        carillon.tune.report(loss, threads=torch.get_num_threads(), may_have=carillon.tune.threads(),
                             checkpoint=net.state_dict())


def test_steps_of_torch_are_iterations_and_its_threads_are_set():
    pytest.importorskip("torch", reason="torch is not installed")
    with TrialGroup(2) as group:
        trials = group.map(trains, [{"lr": 0.1}, {"lr": 0.01}, {"lr": math.nan}], budget=4)
        group.wait()
        assert all(group._broker.counts.iterations[trial.name] == 20 for trial in trials)
    for trial in trials:
        assert (trial.state, trial.error, len(trial.reports)) == ("ended", "", 4)
        assert all(report["threads"] == report["may_have"] for report in trial.reports[1:])
    assert math.isnan(trials[2].reports[-1]["metric"]) and trials[0].reports[-1]["metric"] < 1


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


def test_an_exception_ends_the_trials():
    with pytest.raises(KeyError):
        with TrialGroup(1) as group:
            running, waiting = group.submit(endless), group.submit(endless)
            until(lambda: running.reports)
            raise KeyError("the script's own")
    assert (running.state, waiting.state) == ("stopped", "stopped")
    assert gone(running.reports[0]["process"])
    with pytest.raises(RuntimeError, match="closed"):
        group.submit(train, {"x": 1})


def run(folder: Path, text: str, **more) -> subprocess.Popen[str]:
    script = folder / "script.py"
    script.write_text(textwrap.dedent(text))
    return subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            env=os.environ | {"PYTHONPATH": f"{ROOT / 'python'}:{folder}"}, **more)


def test_a_driver_that_is_killed_leaves_no_trial(tmp_path):
    driver = run(tmp_path, """
        import os, time, carillon.tune
        def train(config):
            while True:
                time.sleep(0.001)
                carillon.tune.report(1.0, process=os.getpid())
        if __name__ == "__main__":
            with carillon.tune.TrialGroup(1) as group:
                trial = group.submit(train)
                while not trial.reports:
                    time.sleep(0.01)
                print(trial.reports[0]["process"], flush=True)
    """)
    process = int(driver.stdout.readline())
    assert not gone(process)
    driver.kill()
    driver.communicate(timeout=60)
    until(lambda: gone(process))


def test_ctrl_c_is_the_drivers_also_while_the_process_that_forks_imports(tmp_path):
    optim = tmp_path / "torch" / "optim"  # one that is slow to import
    optim.mkdir(parents=True)
    (optim.parent / "__init__.py").write_text("import time\nopen(__file__ + str(time.time()), 'w').close()\ntime.sleep(0.5)\n"
                                              "def set_num_threads(n): pass\n")
    (optim / "__init__.py").write_text("")
    (optim / "optimizer.py").write_text("def register_optimizer_step_post_hook(hook): pass\n")
    driver = run(tmp_path, """
        import glob, os, signal, sys, threading, time, carillon.tune
        def train(config):
            return [signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, [])]
        def interrupt():
            while len(glob.glob(torch.__file__ + "?*")) < 2:
                time.sleep(0.01)
            for _ in range(20):
                os.killpg(0, signal.SIGINT)
                time.sleep(0.01)
        if __name__ == "__main__":
            import torch
            signal.signal(signal.SIGINT, lambda *_: None)  # it takes its time to end
            threading.Thread(target=interrupt).start()
            with carillon.tune.TrialGroup(1, retries=0) as group:
                trial = group.submit(train)
            print(trial.state, trial.value, signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []))
    """, start_new_session=True)
    assert driver.communicate(timeout=60) == ("ended [False] False\n", "")


def test_a_script_without_a_guard_is_told_of_it(tmp_path):
    driver = run(tmp_path, """
        import carillon.tune
        def train(config):
            return 1
        with carillon.tune.TrialGroup(1) as group:
            trial = group.submit(train)
        print(trial.state)
    """)
    out, err = driver.communicate(timeout=60)
    assert out == "failed\n" and "if __name__ ==" in err


def test_commands_are_trials_too(tmp_path):
    (tmp_path / "train.py").write_text(textwrap.dedent("""
        import sys
        import carillon.tune
        for epoch in range(int(sys.argv[1])):
            carillon.tune.report(epoch)
        print("said")
        sys.exit(int(sys.argv[2]))
    """))
    with TrialGroup(2, folder=tmp_path / "out") as group:
        good = group.submit([sys.executable, str(tmp_path / "train.py"), "3", "0"], name="good")
        wrong = group.submit([sys.executable, str(tmp_path / "train.py"), "1", "7"])
        missing = group.submit(["/no/such/program"])
    assert (good.state, good.value, [r["metric"] for r in good.reports]) == ("ended", 0, [0, 1, 2])
    assert (wrong.state, wrong.error) == ("failed", "it ended with code 7")
    assert missing.state == "failed" and "/no/such/program" in missing.error
    assert (tmp_path / "out/good/out.txt").read_text() == "said\n"


def test_a_command_ends_with_its_driver(tmp_path):
    driver = run(tmp_path, """
        from carillon.tune import TrialGroup

        if __name__ == "__main__":
            with TrialGroup(1) as group:
                trial = group.submit(["sleep", "1000"])
                while trial._running is None or b"sleep" != open(f"/proc/{trial._running.pid}/cmdline", "rb").read()[:5]:
                    pass
                print(trial._running.pid, flush=True)
                group.wait()
        """)
    pid = int(driver.stdout.readline())
    driver.kill()
    driver.wait()
    until(lambda: gone(pid))


def test_a_command_that_is_not_there_is_named():
    with TrialGroup(1) as group:
        trial = group.submit(["no-such-program-here"])
    assert trial.state == "failed" and "no program 'no-such-program-here'" in trial.error


def test_how_threads_wait_is_left_as_it_was_given():
    from carillon.tune.group import _quiet

    assert "GOMP_SPINCOUNT" in _quiet({}) and "GOMP_SPINCOUNT" not in _quiet({"OMP_WAIT_POLICY": "active"})
    assert _quiet({"GOMP_SPINCOUNT": "7", "KMP_BLOCKTIME": "5"}) == {"OMP_NUM_THREADS": "1", "GOMP_SPINCOUNT": "7", "KMP_BLOCKTIME": "5"}


@pytest.mark.parametrize("given", [{}, {"OMP_WAIT_POLICY": "active"}, {"OMP_WAIT_POLICY": ""}, {"GOMP_SPINCOUNT": "7"},
                                   {"KMP_BLOCKTIME": "5"}])
def test_threads_wait_in_trials_as_in_jobs_of_both_ways_to_run(given):
    from carillon import __main__ as run
    from carillon.tune.group import _quiet

    job = run.environment(run.parser().parse_args(["run", "true"]), Path("shim"), given)
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"):
        assert job.get(name) == _quiet(given).get(name), name


def test_a_script_that_is_stopped_is_not_one_that_ended(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import carillon.tune\nwhile True:\n    carillon.tune.report(1.0)\n")
    with TrialGroup(1) as group:
        trial = group.submit([sys.executable, str(script)])
        until(lambda: trial.reports)
        trial.stop()
        assert group.wait(timeout=60)
    assert trial.state == "stopped" and trial.value is None


def test_a_trial_that_no_device_can_hold_is_refused():
    with TrialGroup(1, memory=1000) as group:
        large, small = group.submit(train, {"x": 1}, persistent=2000), group.submit(train, {"x": 1}, ephemeral=500)
    assert (large.state, small.state) == ("refused", "ended") and "memory" in large.error


def test_numbers_of_numpy_are_numbers_and_outside_of_a_trial_a_report_is_nothing():
    import numpy

    carillon.tune.report(numpy.float32(1.5), many=numpy.arange(3))
    carillon.tune.step()
    assert carillon.tune.checkpoint() is None and carillon.tune.threads() == 1
    with pytest.raises(TypeError, match="numbers, texts and lists"):
        carillon.tune.report(object())


@pytest.mark.parametrize("options, error, says", [
    ({"devices": 0}, ValueError, "devices is 0"), ({"devices": -1}, ValueError, "devices is -1"),
    ({"devices": "tpu"}, ValueError, "devices is 'tpu'"), ({"devices": []}, ValueError, "a list names GPUs"),
    ({"devices": [0, 0]}, ValueError, "each once"), ({"retries": -1}, ValueError, "retries is -1"),
    ({"retries": 1.5}, ValueError, "retries is 1.5"), ({"hang_after": 2}, ValueError, "at least 3"),
    ({"hang_after": math.nan}, ValueError, "hang_after is nan"), ({"policy": "nice"}, ValueError, "fifo, static"),
    ({"alpha": 0.5}, ValueError, "alpha is 0.5"), ({"memory": -1}, ValueError, "memory is -1"),
    ({"quantum": math.nan}, ValueError, "quantum"), ({"nonsense": 1}, TypeError, "nonsense")])
def test_options_that_cannot_be_are_named(options, error, says):
    with pytest.raises(error) as raised:
        TrialGroup(**options)
    assert says in str(raised.value)


@pytest.mark.parametrize("submit, error, says", [
    (lambda g: g.map(train, []), ValueError, "configs is empty"),
    (lambda g: g.submit(train, {}, budget=0), ValueError, "budget is 0"),
    (lambda g: g.submit(train, {}, budget=-1), ValueError, "budget is -1"),
    (lambda g: g.submit(train, {}, budget=math.nan), ValueError, "budget is nan"),
    (lambda g: g.submit(train, {}, iteration=-1), ValueError, "iteration is -1"),
    (lambda g: g.submit(train, {}, priority=0), ValueError, "priority is 0"),
    (lambda g: g.submit(train, {}, persistent=-1), ValueError, "persistent is -1"),
    (lambda g: g.map(train, [1, 2], budget=[1]), ValueError, "budget has 1 entries for 2"),
    (lambda g: g.submit(train, {}, name="a/b"), ValueError, "name is 'a/b'"),
    (lambda g: g.map(train, [1, 2, 3], names=["x", "y", "x"]), ValueError, "name 'x' is another trial's"),
    (lambda g: g.submit("python train.py"), TypeError, "a list of its words"),
    (lambda g: g.submit([]), ValueError, "empty command"),
    (lambda g: g.submit(5), TypeError, "must be a function"),
    (lambda g: g.submit(lambda config: 1), TypeError, "cannot be pickled")])
def test_trials_that_cannot_be_are_named_and_the_group_goes_on(submit, error, says):
    with TrialGroup(1) as group:
        with pytest.raises(error) as raised:
            submit(group)
        assert says in str(raised.value) and group.trials == []
