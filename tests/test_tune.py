"""Turns of a study's trials, and Ray Tune around them (docs/fluid-ray.md)."""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import struct
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "python"))
from carillon import _threads  # noqa: E402
from carillon.tune import _trial  # noqa: E402
from carillon.tune._broker import Broker  # noqa: E402
from carillon.tune.turns import Go, Hold, Turns  # noqa: E402


def test_one_trial_a_processor_in_the_order_of_coming():
    turns = Turns(2)
    assert turns.wants("a", 0) == [Go("a", 1)]
    assert turns.wants("b", 0) == [Go("b", 1)]
    assert turns.wants("c", 0) == []
    assert turns.rests("a", 1) == [Go("c", 1)]


def test_who_waits_has_a_turn_after_the_quantum():
    turns = Turns(1, quantum=0.5)
    turns.wants("a", 0)
    assert turns.next_tick() is None
    assert turns.wants("b", 0.1) == []
    assert turns.next_tick() == 0.5
    assert turns.tick(0.4) == []
    assert turns.tick(0.5) == [Hold("a")]
    assert turns.tick(0.6) == []
    assert turns.held("a", 0.7) == [Go("b", 1)]


def test_the_least_served_goes_first():
    turns = Turns(1)
    turns.wants("a", 0)
    turns.wants("b", 0)
    assert turns.rests("a", 3) == [Go("b", 1)]
    turns.wants("a", 3.1)
    assert turns.rests("b", 4) == [Go("a", 1)]
    turns.wants("b", 4.1)
    assert turns.rests("a", 4.2) == [Go("b", 1)]


def test_processors_that_nobody_waits_for_make_a_trial_wide_once_its_narrow_time_is_known():
    turns = Turns(4)
    assert turns.wants("a", 0) == [Go("a", 1)]
    turns.did("a", 1, 20, 2.0)
    assert turns.tick(2) == [Go("a", 4)]
    assert turns.wants("b", 3) == [Go("a", 3), Go("b", 1)]
    turns.wants("c", 3)
    assert turns.running() == {"a": 2, "b": 1, "c": 1}


def test_a_width_that_brings_nothing_is_not_kept():
    turns = Turns(2)
    turns.wants("a", 0)
    turns.did("a", 1, 20, 2.0)
    assert turns.tick(2) == [Go("a", 2)]
    turns.did("a", 2, 20, 1.95)
    assert turns.tick(4) == [Go("a", 1)]
    assert turns.rests("a", 5) == [] and turns.wants("a", 6) == [Go("a", 1)]


def test_whose_process_ends_makes_room():
    turns = Turns(1)
    turns.wants("a", 0)
    turns.wants("b", 0)
    assert turns.gone("a", 1) == [Go("b", 1)]
    assert turns.gone("a", 1) == [] and turns.rests("nobody", 1) == []


@pytest.mark.parametrize("processors, quantum", [(0, 1), (-1, 1), (1, 0), (1, float("nan"))])
def test_no_turns_without_a_processor_or_a_quantum(processors, quantum):
    with pytest.raises(ValueError):
        Turns(processors, quantum)


def test_clients_over_the_socket_never_compute_at_once():
    broker = Broker(Turns(1, quantum=1e-4))
    lock, orders = threading.Lock(), []

    def trial(name: str) -> None:
        client = _trial._Client(broker.path)
        for _ in range(5):
            client.begin(name)
            for _ in range(20):
                assert lock.acquire(blocking=False), "two at once"
                orders.append(name)
                lock.release()
                client.boundary()
            client.end()
        client.begin(name)  # so that the broker has read all before
        client.end()

    try:
        threads = [threading.Thread(target=trial, args=(name,)) for name in "abc"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=30)
        assert sorted(orders) == ["a"] * 100 + ["b"] * 100 + ["c"] * 100
        # A turn without an iteration counts as one, and may not be read yet.
        assert broker.counts.iterations.keys() == set("abc") and set(broker.counts.iterations.values()) <= {100, 101}
    finally:
        broker.close()
    assert not os.path.exists(broker.path)


def test_a_client_whose_broker_is_gone_goes_on_alone(capfd):
    broker = Broker(Turns(1))
    client = _trial._Client(broker.path)
    client.begin("a")
    broker.close()
    client.boundary()
    client.end()
    client.begin("a")
    assert "goes on without turns" in capfd.readouterr().err


def test_a_trial_in_a_new_process_has_nothing_of_what_its_last_one_had():
    broker = Broker(Turns(1))
    try:
        last = _trial._Client(broker.path)
        last.begin("a")  # and stays connected
        new = _trial._Client(broker.path)
        new.begin("a")
        new.end()
        assert broker.lost() == set()
    finally:
        broker.close()


def test_threads_of_a_trial_stand_still_together(tmp_path):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        client = _trial._Client(str(tmp_path / "s"))
        broker, _ = listener.accept()
    with broker, broker.makefile() as said:
        broker.sendall(b"go 1\n")
        client.begin("a")
        assert [said.readline().split()[0] for _ in range(2)] == ["hello", "want"]
        broker.sendall(b"hold\n")
        first, second = (threading.Thread(target=client.boundary, daemon=True) for _ in range(2))
        first.start()
        while said.readline() != "held\n":
            pass
        second.start()
        second.join(timeout=0.5)
        assert first.is_alive() and second.is_alive()
        broker.sendall(b"go 1\n")
        for thread in (first, second):
            thread.join(timeout=60)
            assert not thread.is_alive()


def test_a_trial_that_starts_actors_takes_no_turns():
    broker = Broker(Turns(1))
    try:
        first, second = _trial._Client(broker.path), _trial._Client(broker.path)
        first.begin("a")
        first.starts_actor()
        second.begin("b")  # and computes
        first.boundary()
        first.end()
        first.begin("a")
        assert broker.has_actors("a") and not broker.has_actors("b") and not broker.has_actors("c")
        second.end()
        first.begin("c")  # the process goes on with another trial
        first.end()
        assert not broker.has_actors("a") and not broker.has_actors("c")
        assert broker.counts.iterations.keys() - {"c"} == {"b"}  # the end of "c" may not be read yet
    finally:
        broker.close()


FORKS = """
import os, sys, time
sys.path.insert(0, sys.argv[1])
from carillon.tune import _trial
_trial.connect(sys.argv[2])
_trial.begin("a")
if os.fork() == 0:
    _trial._after_step(None, None, None)  # of an optimizer
    print(_trial._client, os.getpid(), flush=True)
    os.close(1)
    time.sleep(600)
"""


def test_what_a_trial_forks_says_nothing_and_does_not_keep_its_connection():
    broker = Broker(Turns(1))
    try:
        run = subprocess.run([sys.executable, "-c", FORKS, ROOT / "python", broker.path], stdout=subprocess.PIPE, text=True,
                             timeout=60)
        client, child = run.stdout.split()
        try:
            other = _trial._Client(broker.path)
            other.begin("b")
            assert client == "None" and broker.lost() == {"a"}
        finally:
            os.kill(int(child), signal.SIGKILL)
    finally:
        broker.close()


def test_lines_that_are_none_end_a_connection_and_nothing_else():
    broker = Broker(Turns(1))
    try:
        for line in (b"want\n", b"hello\n", b"hello a b\n", b"hello a 1\ndid 1 x 2\n", b"\n", b"x" * 10_000, b"\xff\xfe\n"):
            with socket.socket(socket.AF_UNIX) as peer:
                peer.settimeout(5)
                peer.connect(broker.path)
                peer.sendall(line)
                assert peer.recv(10) == b""
        client = _trial._Client(broker.path)
        client.begin("good")
        client.end()
    finally:
        broker.close()


def test_a_worker_that_nobody_is_ready_for_starts_as_ever(tmp_path):
    script = tmp_path / "worker.py"
    script.write_text("import os, sys; print(sys.argv[1:], sys.flags.isolated); sys.exit(3)")
    enter = [sys.executable, "-IS", ROOT / "python" / "carillon" / "tune" / "_enter.py", tmp_path / "none.sock"]
    run = subprocess.run([*enter, sys.executable, script, "--a b"], capture_output=True, text=True, timeout=60)
    assert run.returncode == 3 and run.stdout == "['--a b'] 0\n"


def test_a_fork_of_the_ready_process_has_the_environment_of_the_start_and_ends_alike(tmp_path):
    pytest.importorskip("ray.tune", reason="Ray is not installed: pip install 'ray[tune]'")
    from carillon.tune import _starts

    script = tmp_path / "worker.py"
    script.write_text("""if True:
        import json, os, random, signal, sys, numpy, ray._raylet
        print(json.dumps({"parent": os.getppid(), "said": os.environ.get("SAID"), "job": os.environ.get("RAY_JOB_ID"),
            "folder": os.getcwd(), "arguments": sys.argv[1:], "imported": "ray.tune" in sys.modules,
            "threads": len(os.listdir("/proc/self/task")), "own_group": os.getpgid(0) == os.getpid(),
            "open": [name for fd in range(3, 256) if os.path.lexists(f"/proc/self/fd/{fd}")
                     for name in [os.readlink(f"/proc/self/fd/{fd}")] if name.startswith(("socket:", "pipe:"))],
            "interrupt": [signal.getsignal(signal.SIGINT) is signal.default_int_handler,
                          signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, [])],
            "drawn": [random.random(), numpy.random.rand(), ray._raylet.ObjectID.from_random().hex()]}), flush=True)
        os.kill(os.getpid(), 9) if sys.argv[1] == "die" else sys.exit(int(sys.argv[1]))
    """)
    starts = _starts.Starts([])
    try:
        def start(argument: str, **environment: str) -> tuple[int, dict]:
            run = subprocess.run([*starts.py_executable().split(), script, argument], capture_output=True, text=True,
                                 timeout=120, cwd=tmp_path, env=os.environ | _threads.quiet() | environment,
                                 preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}))
            return run.returncode, json.loads(run.stdout)

        code, first = start("5", SAID="first", RAY_JOB_ID="01000000")
        assert code == 5 and first["parent"] == starts.process.pid and first["imported"] and first["threads"] == 1
        assert (first["said"], first["folder"], first["arguments"]) == ("first", str(tmp_path), ["5"])
        assert first["open"] == [] and first["interrupt"] == [True, True] and first["own_group"]
        code, second = start("die", RAY_JOB_ID="01000000")
        assert code == -signal.SIGKILL and second["parent"] == starts.process.pid and second["said"] is None
        assert all(a != b for a, b in zip(first["drawn"], second["drawn"]))
        # What was read as libraries were loaded is not as it was: that one is started, not forked.
        for other in ({"RAY_JOB_ID": "02000000"}, {"RAY_JOB_ID": "01000000", "OMP_NUM_THREADS": "7"}):
            code, third = start("6", **other)
            assert code == 6 and third["parent"] != starts.process.pid and third["job"] == other["RAY_JOB_ID"]
        # Ray kills what it started: the fork ends with it.
        script.write_text("import os, time; print(os.getpid(), flush=True); time.sleep(600)")
        entered = subprocess.Popen([*starts.py_executable().split(), script], stdout=subprocess.PIPE, text=True,
                                   cwd=tmp_path, env=os.environ | _threads.quiet() | {"RAY_JOB_ID": "01000000"})
        fork = int(entered.stdout.readline())
        script.write_text("import json, os; print(json.dumps([os.readlink(f'/proc/self/fd/{fd}') for fd in range(3, 256) "
                          "if os.path.lexists(f'/proc/self/fd/{fd}')]))")
        _, beside = start("", RAY_JOB_ID="01000000")
        assert not [name for name in beside if name.startswith(("socket:", "pipe:"))]  # such as the other's
        entered.kill()
        entered.wait(timeout=60)
        assert entered.stdout.read() == ""  # its end is closed: nobody is left who has it
        assert not os.path.exists(f"/proc/{fork}/exe") or os.path.realpath(f"/proc/{fork}/exe") == f"/proc/{fork}/exe"
    finally:
        starts.close()
    starts.process.wait(timeout=60)


def test_the_ready_process_waits_for_its_forks_alone():
    from carillon.tune import _ready

    here, there = socket.socketpair()
    ready = _ready._Ready.__new__(_ready._Ready)
    ready._selector = selectors.DefaultSelector()
    ready._selector.register(there, selectors.EVENT_READ)
    with here, there, subprocess.Popen(["true"]) as of_a_module, subprocess.Popen(["false"]) as fork:
        for process in (of_a_module, fork):
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        ready._children = {fork.pid: there}
        ready._reap()
        assert ready._children == {} and of_a_module.wait() == 0
        assert os.waitstatus_to_exitcode(struct.unpack("!I", here.recv(4))[0]) == 1


def test_what_is_sent_to_the_ready_process_and_is_no_start_leaves_nothing_open(tmp_path):
    from carillon.tune import _ready

    ready = _ready._Ready.__new__(_ready._Ready)
    ready._listener = socket.socket(socket.AF_UNIX)
    ready._listener.bind(str(tmp_path / "s"))
    ready._listener.listen()
    ready._children, ready._refuses = {}, "nobody is forked here"
    with ready._listener:
        for said in (b"", b"x", struct.pack("!IQ", 100, 0), struct.pack("!IQ", 4, 0) + b"a\0b=", struct.pack("!IQ", 3, 0) + b"a\0\0"):
            before = os.listdir("/proc/self/fd")
            with socket.socket(socket.AF_UNIX) as peer:
                peer.connect(str(tmp_path / "s"))
                if said:
                    socket.send_fds(peer, [said], [0, 1, 2])
                peer.shutdown(socket.SHUT_WR)
                ready._accept()
                assert peer.recv(1) == b""
            assert os.listdir("/proc/self/fd") == before, said


INTERRUPTED = """
import os, signal, sys, time
sys.path.insert(0, sys.argv[1])
from carillon.tune import _starts
signal.signal(signal.SIGINT, lambda *_: None)  # it takes its time to end
starts = _starts.Starts([])
for _ in range(100):
    os.killpg(0, signal.SIGINT)
    time.sleep(0.01)
print(starts.process.poll())
starts.close()
print(starts.process.wait(60))
"""


def test_ctrl_c_in_the_terminal_is_not_for_the_process_that_forks():
    run = subprocess.run([sys.executable, "-c", INTERRUPTED, ROOT / "python"], capture_output=True, text=True, timeout=120,
                         start_new_session=True)
    assert (run.stdout, run.stderr) == ("None\n0\n", "")


def test_a_module_that_starts_threads_is_told_and_nothing_is_forked(tmp_path, monkeypatch, capfd):
    pytest.importorskip("ray.tune", reason="Ray is not installed: pip install 'ray[tune]'")
    from carillon.tune import _starts

    (tmp_path / "threaded.py").write_text("import threading, time\n"
                                          "threading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    script = tmp_path / "worker.py"
    script.write_text("import os; print(os.getppid())")
    starts = _starts.Starts(["threaded"])
    try:
        run = subprocess.run([*starts.py_executable().split(), script], capture_output=True, text=True, timeout=120,
                             env=os.environ | _threads.quiet())
        assert int(run.stdout) == os.getpid()
    finally:
        starts.close()
        starts.process.wait(timeout=60)
    assert "threaded starts threads as it is imported" in capfd.readouterr().err


def plan(processors: int):
    core = pytest.importorskip("carillon.tune.core", reason="the planner is not compiled", exc_type=ImportError)
    assert core
    from carillon.tune._study import StudyPlan

    return StudyPlan(processors)


def computing(orders: list) -> dict[str, int]:
    return {order.trial: order.width for order in orders if isinstance(order, Go)}


def test_the_planner_places_a_trial_when_its_process_is_there():
    study = plan(2)
    assert study.appetite >= 2
    assert study.expects("a", "", 9, 0.0) == []
    assert computing(study.wants("a", 1.0)) == {"a": 1}
    assert computing(study.wants("b", 1.5))["b"] == 1  # of b nothing is known
    assert study.running() == {"a": 1, "b": 1}


@pytest.mark.parametrize("wide, width", [(0.6, 2), (1.3, 1)])
def test_a_trial_alone_is_wide_once_it_was_narrow_and_stays_so_where_that_pays(wide, width):
    study = plan(2)
    now, widths = 0.0, []
    study.expects("a", "", 40, now)
    study.wants("a", now)
    for _ in range(12):
        threads = study.running()["a"]
        widths.append(threads)
        seconds = 1.0 if threads == 1 else wide
        now += seconds
        study.did("a", threads, 10, seconds, now)
        study.rests("a", now)
        study.reported("a", now)
        study.expects("a", "", 39 - len(widths), now)
        study.wants("a", now)
    assert widths[:2] == [1, 1] and 2 in widths and widths[-1] == width
    # Who comes later need not wait until it ends.
    study.expects("b", "", 40, now)
    study.wants("b", now)
    for _ in range(3):
        now += 1.0
        for name, threads in list(study.running().items()):
            study.did(name, threads, 10, 1.0, now)
    assert (wide == 0.6) or study.running() == {"a": 1, "b": 1}


def test_trials_that_ray_starts_one_after_another_compute_beside_each_other():
    """Most are stopped at their first report; the first ones go on to the ninth, as do some that come later."""
    study = plan(2)
    alone = {1: 0.1, 2: 0.059}  # seconds of an iteration, by threads; ten are a report
    comes = {"0": 0.0, "1": 0.33}
    events = [(at, "comes", name) for name, at in comes.items()]
    done, busy, waits, number = {}, set(), [], 1
    while events:
        events.sort()
        now, what, name = events.pop(0)
        if what == "comes":
            done[name] = 0
            study.expects(name, name, 1, now)
            study.wants(name, now)
        else:
            busy.discard(name)
            done[name] += 1
            study.did(name, study.running()[name], 1, alone[study.running()[name]], now)
            if done[name] % 10 == 0:
                study.rests(name, now)
                study.reported(name, now)
                if done[name] == 10:
                    waits.append(now - comes[name])
                if done[name] < 90 and int(name) % 4 < 2:
                    rung = next(rung for rung in (1, 3, 9) if 10 * rung > done[name])
                    study.expects(name, name, rung - done[name] / 10, now)
                    study.wants(name, now)
                else:
                    study.over(name, now)
                    if number < 14:
                        number += 1
                        comes[str(number)] = now + 0.15  # what Ray takes
                        events.append((now + 0.15, "comes", str(number)))
        for other, threads in study.running().items():
            if other not in busy:
                busy.add(other)
                events.append((now + alone[threads], "did", other))
    # Nobody waits until a trial that came long before has ended.
    assert len(waits) == 15 and max(waits) < 3, waits


def test_a_paused_trial_computes_nothing_until_it_is_expected_again():
    study = plan(1)
    study.expects("a", "rung 1", 1, 0.0)
    study.wants("a", 0.0)
    study.did("a", 1, 10, 1.0, 1.0)
    study.rests("a", 1.0)
    study.reported("a", 1.0)
    study.paused("a", 1.0)
    assert computing(study.wants("a", 1.1)) == {}
    assert computing(study.expects("a", "rung 0", 2, 1.2)) == {"a": 1}


def test_what_a_process_had_is_free_when_it_ends_and_its_trial_may_come_again():
    study = plan(1)
    study.expects("a", "", 9, 0.0)
    study.wants("a", 0.0)
    study.wants("b", 0.1)
    assert computing(study.gone("a", 1.0)) == {"b": 1}
    study.over("b", 2.0)
    assert computing(study.wants("a", 3.0)) == {"a": 1}


def test_a_trial_that_does_not_hold_keeps_others_from_computing_for_a_while_only():
    broker = Broker(Turns(1, quantum=1e-3), patience=0.05)
    try:
        hangs, waits = _trial._Client(broker.path), _trial._Client(broker.path)
        hangs.begin("hangs")
        waits.begin("waits")  # comes back once the other's turn was taken
        assert waits._granted == 1 and broker.counts.holds == 0
        waits.end()
        hangs.boundary()
        assert hangs._granted == 1 and broker.counts.holds == 1
        hangs.end()
    finally:
        broker.close()


def test_a_trial_that_says_nothing_while_it_computes_is_killed_if_that_is_wanted():
    broker = Broker(Turns(1), hang_after=4)
    code = ("import sys, time; sys.path.insert(0, sys.argv[1]); from carillon.tune import _trial\n"
            "client = _trial._Client(sys.argv[2]); client.begin('a')\n"
            "if sys.argv[3] == 'rests': client.end()\n"
            "print('there', flush=True); time.sleep(5 if sys.argv[3] == 'rests' else 600)")
    try:
        for what, ends in (("rests", 0), ("hangs", -signal.SIGKILL)):
            run = subprocess.run([sys.executable, "-c", code, ROOT / "python", broker.path, what], timeout=60,
                                 capture_output=True, text=True)
            assert run.returncode == ends and run.stdout == "there\n"
        assert broker.counts.hung == 1
    finally:
        broker.close()


def test_budgets_are_what_schedulers_compare_by():
    pytest.importorskip("ray.tune", reason="Ray is not installed: pip install 'ray[tune]'")
    from ray.tune.experiment import Trial
    from ray.tune.schedulers import (ASHAScheduler, FIFOScheduler, HyperBandScheduler, MedianStoppingRule,
                                     PopulationBasedTraining)

    from carillon.tune import _budgets

    os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")

    def trial(done: int = 0, **stop: int) -> Trial:
        made = Trial("trainable", stub=True, stopping_criterion=stop)
        made.run_metadata.last_result = {"training_iteration": done, "m": 0.0, "time_total_s": 1.0}
        return made

    known = dict(metric="m", mode="max")
    asha = ASHAScheduler(time_attr="training_iteration", max_t=9, grace_period=1, reduction_factor=3, **known)
    for done, left in ((0, 1), (1, 2), (2, 1), (3, 6), (8, 1)):
        one = trial(done)
        asha.on_trial_add(None, one)
        assert _budgets.of(asha, one) == _budgets.Wanted(one.trial_id, left)
    by_time = ASHAScheduler(time_attr="time_total_s", **known)
    one = trial()
    by_time.on_trial_add(None, one)
    assert _budgets.of(by_time, one).reports is None
    band = HyperBandScheduler(max_t=9, reduction_factor=3, **known)
    trials = [trial() for _ in range(12)]
    for one in trials:
        band.on_trial_add(None, one)
    wanted = [_budgets.of(band, one) for one in trials]
    assert len({w.group for w in wanted}) == 3 and {w.reports for w in wanted} == {1, 3, 9}
    pbt = PopulationBasedTraining(time_attr="training_iteration", perturbation_interval=4,
                                  hyperparam_mutations={"x": [1, 2]}, **known)
    one = trial(3)
    pbt.on_trial_add(SimpleNamespace(search_alg=None), one)
    assert _budgets.of(pbt, one) == _budgets.Wanted("", 1)
    pbt._perturbation_interval = float("inf")
    assert _budgets.of(pbt, one) == _budgets.Wanted("", None)
    band._hyperbands.clear()  # as another version of Ray may have it
    assert _budgets.of(band, trials[0]) == _budgets.Wanted("", None)
    assert _budgets.of(FIFOScheduler(), trial(2)) == _budgets.Wanted("", None)
    assert _budgets.of(FIFOScheduler(), trial(2, training_iteration=10)) == _budgets.Wanted("", 8)
    assert _budgets.of(MedianStoppingRule(**known), trial(2, training_iteration=2)).reports is None
    for odd in ("two", [2], {}, object(), 1j, float("nan"), float("-inf"), 10**400, -10**400):
        assert _budgets.of(FIFOScheduler(), trial(odd, training_iteration=9)).reports in (None, 9)
        assert _budgets.of(asha, trial(odd)).reports is None


# --- With Ray

STUDY = r'''
import json, os, sys, time
import ray
from ray import tune
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, HyperBandScheduler, TrialScheduler
import carillon.tune

where, what = sys.argv[1:3]
EPOCHS = 9
parents = set()

def function(config):
    for i in range(EPOCHS):
        time.sleep(0.05)
        tune.report({"score": config["x"], "process": os.getpid(), "parent": os.getppid()})

class Class(tune.Trainable):  # one that cannot save
    def step(self):
        time.sleep(self.config.get("sleep", 0.05))
        return {"score": self.config["x"], "process": os.getpid(), "parent": os.getppid(), "done": self.iteration + 1 >= EPOCHS}

class PauseOften(FIFOScheduler):
    def on_trial_result(self, controller, trial, result):
        return TrialScheduler.PAUSE

def fit(trainable, scheduler, more={}, name="s", count=3, **config):
    seen = {}
    parents.clear()
    class Watch(tune.Callback):
        def on_trial_result(self, iteration, trials, trial, result, **_):
            parents.add(result["parent"])
            seen.setdefault(trial.trial_id, []).append((result["process"], result["training_iteration"]))
            if sum(map(len, seen.values())) == more.get("kill_at") and (what == "pauses" or sys.argv[2] == "first"):
                os.kill(seen[trial.trial_id][0][0] if more.get("trial") else os.getpid(), 9)
    fluid = carillon.tune.Fluid(scheduler, **more.get("fluid", {}))
    results = tune.Tuner(trainable, param_space={"x": tune.grid_search(list(range(count))), **config},
        tune_config=tune.TuneConfig(scheduler=fluid, metric="score", mode="max"),
        run_config=tune.RunConfig(name=name, storage_path=where, verbose=0, callbacks=[Watch()],
            failure_config=tune.FailureConfig(max_failures=1), checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False, checkpoint_frequency=more.get("saves", 0)))).fit()
    return results, seen, fluid

ray.init(num_cpus=3 if what == "train" else 2, include_dashboard=False, log_to_driver=False, object_store_memory=100 << 20)
if what == "pauses":
    out = {}
    for trainable in (function, Class):
        results, seen, fluid = fit(trainable, PauseOften(), name=trainable.__name__)
        out[trainable.__name__] = {"errors": results.num_errors, "processes": [len({p for p, _ in s}) for s in seen.values()],
            "iterations": [[i for _, i in s] for s in seen.values()], "held": len(fluid.held_seconds), "let_go": fluid.let_go}
    results, seen, fluid = fit(Class, HyperBandScheduler(max_t=9), name="hyperband", count=8)
    out["hyperband"] = {"errors": results.num_errors, "processes": [len({p for p, _ in s}) for s in seen.values()],
        "longest": max(map(len, seen.values()))}
    results, seen, fluid = fit(Class, PauseOften(), more={"kill_at": 8, "trial": True}, name="killed")
    from carillon.tune import _starts
    out["forked"] = parents == {_starts.start(()).process.pid}
    out["killed"] = {"errors": results.num_errors, "processes": sorted(len({p for p, _ in s}) for s in seen.values()),
        "last": [s[-1][1] for s in seen.values()]}
    print(json.dumps(out))
elif what == "room":
    class Saves(Class):
        def save_checkpoint(self, folder):
            pass
        def load_checkpoint(self, folder):
            pass
    results, seen, fluid = fit(Saves, PauseOften(), more={"fluid": {"live": 2}}, name="room")
    out = {"errors": results.num_errors, "let_go": fluid.let_go, "last": [s[-1][1] for s in seen.values()]}
    from carillon.tune import _controller
    _controller._NEEDED += ("no_such_thing",)
    import warnings
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        results, seen, fluid = fit(function, FIFOScheduler(), name="unknown", count=2)
    out["unknown"] = {"errors": results.num_errors, "said": [str(w.message) for w in said if "no_such_thing" in str(w.message)],
        "iterations": [len(s) for s in seen.values()]}
    print(json.dumps(out))
elif what == "faults":
    class Faulty(Class):  # one that can save; its first process has a fault at its third iteration
        def setup(self, config):
            self.at = 0
        def step(self):
            self.at += 1
            mark = os.path.join(where, "had-" + self.config["fault"])
            if self.config["x"] == 1 and self.at == 3 and not os.path.exists(mark):
                open(mark, "w").close()
                if self.config["fault"] == "killed":
                    os.kill(os.getpid(), 9)
                if self.config["fault"] == "memory":
                    raise MemoryError("no memory is left")
                if self.config["fault"] == "hangs":
                    time.sleep(600)
            score = float("nan") if self.config["fault"] == "nan" and self.config["x"] == 1 else self.config["x"]
            return {"score": score, "at": self.at, "process": os.getpid(), "parent": os.getppid(), "done": self.at >= EPOCHS}
        def save_checkpoint(self, folder):
            open(os.path.join(folder, "at"), "w").write(str(self.at))
        def load_checkpoint(self, folder):
            self.at = int(open(os.path.join(folder, "at")).read())
    out = {}
    for fault in ("killed", "memory", "hangs", "nan"):
        hang = {"hang_after": 20} if fault == "hangs" else {}
        results, seen, fluid = fit(Faulty, ASHAScheduler(max_t=9, grace_period=9), more={"fluid": hang, "saves": 1}, name=fault, fault=fault)
        out[fault] = {"errors": results.num_errors, "processes": [len({p for p, _ in s}) for s in seen.values()],
            "last": [r.metrics["at"] for r in results], "reports": [len(s) for s in seen.values()],
            "hung": fluid._broker.counts.hung, "best": results.get_best_result().metrics["score"]}
    class Lose(tune.Callback):  # the broker, and the process that is ready
        def on_trial_result(self, iteration, trials, trial, result, **_):
            if iteration == 12:
                lost._broker.close()
                from carillon.tune import _starts
                _starts.start(()).process.kill()
    lost = carillon.tune.Fluid(PauseOften(), at_once=2)
    results = tune.Tuner(Class, param_space={"x": tune.grid_search(list(range(5)))},
        tune_config=tune.TuneConfig(scheduler=lost, metric="score", mode="max"),
        run_config=tune.RunConfig(name="lost", storage_path=where, verbose=0, callbacks=[Lose()],
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False))).fit()
    out["lost"] = {"errors": results.num_errors, "last": [r.metrics["training_iteration"] for r in results]}
    print(json.dumps(out))
elif what == "train":
    import ray.train
    from ray.train.torch import TorchTrainer
    from ray.tune.integration.ray_train import TuneReportCallback
    def worker(config):
        while not all(os.path.exists(os.path.join(where, name)) for name in config.get("waits_for", ())):
            time.sleep(0.1)
        for i in range(3):
            ray.train.report({"score": config["x"], "process": os.getpid(), "parent": os.getppid()})
    def trains(config):
        TorchTrainer(worker, train_loop_config=config, scaling_config=ray.train.ScalingConfig(num_workers=config["workers"]),
            run_config=ray.train.RunConfig(name=tune.get_context().get_trial_id(), storage_path=where, callbacks=[TuneReportCallback()])).fit()
    def mixed(config):
        if config["x"] == 0:
            return trains({**config, "workers": 1, "waits_for": ["ended-1", "ended-2"]})
        for i in range(3):
            tune.report({"score": config["x"], "process": os.getpid(), "parent": os.getppid()})
        open(os.path.join(where, f"ended-{config['x']}"), "w").close()
    class StopsFirst(FIFOScheduler):
        def on_trial_result(self, controller, trial, result):
            return TrialScheduler.STOP if result["score"] == 0 else TrialScheduler.CONTINUE
    class Together(FIFOScheduler):  # nobody goes on before all have reported, as in HyperBand
        seen = ()
        def on_trial_result(self, controller, trial, result):
            self.seen = {*self.seen, trial.trial_id}
            return TrialScheduler.PAUSE if len(self.seen) < 3 else TrialScheduler.CONTINUE
        def choose_trial_to_run(self, controller):
            there = {trial.status: trial for trial in controller.get_trials()}
            return there.get("PENDING") or (there.get("PAUSED") if len(self.seen) == 3 else None)
    def left():
        for _ in range(120):  # Ray cleans up within a second or two
            there = [group["state"] for group in ray.util.placement_group_table().values() if group["state"] != "REMOVED"]
            there += [actor["ActorClassName"] for actor in ray._private.state.actors().values()
                if actor["State"] != "DEAD" and actor["ActorClassName"] != "_AutoscalingCoordinatorActor"]  # the cluster's
            if not there:
                break
            time.sleep(0.25)
        return there
    out = {}
    for name, trainable, scheduler, options, count, config in (
            ("stopped", trains, StopsFirst(), {}, 3, {"workers": 1}),
            ("paused", trains, Together(), {}, 3, {"workers": 2}),
            ("beside", mixed, FIFOScheduler(), {"processors": 1, "at_once": 3}, 3, {})):
        results, seen, fluid = fit(trainable, scheduler, more={"fluid": options}, name=name, count=count, **config)
        out[name] = {"errors": results.num_errors, "left": left(), "reports": sorted(len(s) for s in seen.values()),
            "held": len(fluid.held_seconds)}
    print(json.dumps(out))
elif what == "first":
    fit(Class, ASHAScheduler(max_t=9, grace_period=1, reduction_factor=3), more={"kill_at": 9}, count=6, sleep=0.3)
elif what == "again":
    from carillon.tune import _state
    import pickle
    saved = pickle.load(open(os.path.join(where, "s", _state.FILE), "rb"))
    before = saved.scheduler_for({})[0]["_brackets"][0]._rungs
    tuner = tune.Tuner.restore(os.path.join(where, "s"), Class)
    fluid = tuner._local_tuner._tune_config.scheduler
    results = tuner.fit()
    after = fluid._inner._brackets[0]._rungs
    print(json.dumps({"errors": results.num_errors, "ended": len(results), "type": type(fluid).__name__,
        "before": [dict(r) for _, r in before], "after": [dict(r) for _, r in after]}))
'''


def study(folder: Path, what: str) -> subprocess.CompletedProcess[str]:
    pytest.importorskip("ray.tune", reason="Ray is not installed: pip install 'ray[tune]'")
    script = folder / "study.py"
    script.write_text(STUDY)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("CARILLON_", "LD_PRELOAD"))}
    run = subprocess.Popen([sys.executable, script, folder, what], text=True, stdout=subprocess.PIPE,
                           stderr=subprocess.PIPE, start_new_session=True,
                           env=kept | {"PYTHONPATH": str(ROOT / "python"), "RAY_AIR_NEW_OUTPUT": "0", "TUNE_GLOBAL_CHECKPOINT_S": "0"})
    try:
        out, err = run.communicate(timeout=600)
    finally:
        # Ray's servers are this session's, too: a driver that was killed leaves them.
        try:
            os.killpg(run.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    return subprocess.CompletedProcess(run.args, run.returncode, out, err)


def test_a_silence_that_is_too_short_to_be_a_hang_is_refused():
    pytest.importorskip("ray.tune", reason="Ray is not installed: pip install 'ray[tune]'")
    from carillon.tune import Fluid

    for wrong in (0, 2.9, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="hang_after is .*at least 3 seconds"):
            Fluid(preload=None, hang_after=wrong)


@pytest.mark.parametrize("options, error, says", [
    ({"scheduler": "asha"}, TypeError, "scheduler is 'asha'"), ({"scheduler": int}, TypeError, "scheduler is <class 'int'>"),
    ({"processors": 0}, ValueError, "processors is 0"), ({"processors": 1.5}, ValueError, "processors is 1.5"),
    ({"processors": 10_001}, ValueError, "at most 10000"), ({"at_once": "2"}, ValueError, "at_once is '2'"),
    ({"live": -1}, ValueError, "live is -1"), ({"live": float("nan")}, ValueError, "live is nan"),
    ({"preload": "torch"}, ValueError, "a list of names")])
def test_options_that_cannot_be_are_named(options, error, says):
    plan(1)
    pytest.importorskip("ray.tune", reason="Ray is not installed: pip install 'ray[tune]'")
    from carillon.tune import Fluid

    with pytest.raises(error, match=says):
        Fluid(**{"preload": None} | options)


def fluid_with(scheduler):
    """One that has a controller that does nothing."""
    from carillon.tune import Fluid

    fluid = Fluid(scheduler, preload=None)
    fluid._controller = SimpleNamespace(has_process=lambda _: True, hold=lambda *_, **__: None)
    fluid._broker = SimpleNamespace(has_actors=lambda _: False)
    fluid._writes = False
    return fluid


def test_what_a_trial_asks_for_is_taken_from_processors_of_its_own_alone():
    pytest.importorskip("ray.tune", reason="Ray is not installed: pip install 'ray[tune]'")
    from ray.tune import PlacementGroupFactory
    from ray.tune.experiment import Trial
    from ray.tune.schedulers import FIFOScheduler

    for bundles, shrinks in (([{"CPU": 2}], True), ([{"CPU": 1}, {"CPU": 1}], False), ([{}, {"CPU": 2}], False),
                             ([{"CPU": 1, "GPU": 1}], False)):
        trial, asked = Trial("trainable", stub=True), PlacementGroupFactory(bundles)
        trial.placement_group_factory = asked
        fluid = fluid_with(FIFOScheduler())
        fluid._shrink(trial)
        assert (trial.placement_group_factory == asked) == (not shrinks) == (not fluid._can_hold(trial)), bundles


def test_a_trial_may_report_anything_as_its_iteration():
    pytest.importorskip("ray.tune", reason="Ray is not installed: pip install 'ray[tune]'")
    from ray.tune.experiment import Trial
    from ray.tune.schedulers import FIFOScheduler, TrialScheduler

    class Pauses(FIFOScheduler):
        def on_trial_result(self, controller, trial, result):
            return TrialScheduler.PAUSE

    fluid, trial = fluid_with(Pauses()), Trial("trainable", stub=True)
    fluid._shrunk.add(trial.trial_id)
    for odd in ("two", None, float("nan"), float("inf"), [1]):
        assert fluid.on_trial_result(None, trial, {"training_iteration": odd}) == TrialScheduler.NOOP
        assert fluid._held[trial.trial_id].iteration is odd


def test_the_state_is_kept_again_once_the_disk_has_room(monkeypatch):
    pytest.importorskip("ray.tune", reason="Ray is not installed: pip install 'ray[tune]'")
    from ray.tune.schedulers import FIFOScheduler

    from carillon.tune import _state

    fluid, tries = fluid_with(FIFOScheduler()), []
    fluid._controller.storage, fluid._writes = None, True

    def write(storage, saved):
        tries.append(saved)
        if len(tries) < 3:
            raise OSError("no space left on device")

    monkeypatch.setattr(_state, "write", write)
    with pytest.warns(UserWarning, match="no space left") as said:
        for _ in range(3):
            fluid._write()
    assert len(tries) == 3 and len(said) == 1
    monkeypatch.setattr(_state, "state_of", lambda _: 1 / 0)  # what cannot be pickled is not tried again
    fluid._write()
    fluid._write()
    assert not fluid._writes and len(tries) == 3


def test_a_scheduler_that_raises_at_a_trials_end_has_ended_it():
    pytest.importorskip("ray.tune", reason="Ray is not installed: pip install 'ray[tune]'")
    from ray.tune.experiment import Trial
    from ray.tune.schedulers import FIFOScheduler

    class Raises(FIFOScheduler):
        def on_trial_error(self, *_):
            raise KeyError("mine")

        on_trial_complete = on_trial_remove = on_trial_error

    for ends, more in (("on_trial_error", ()), ("on_trial_remove", ()), ("on_trial_complete", ({},))):
        fluid, trial = fluid_with(Raises()), Trial("trainable", stub=True)
        fluid._held[trial.trial_id] = object()
        with pytest.raises(KeyError, match="mine"):
            getattr(fluid, ends)(None, trial, *more)
        assert fluid._held == {}


def test_a_study_has_no_more_processors_than_its_quota_keeps_busy(monkeypatch):
    plan(1)
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'ray[tune]'")
    from carillon.tune import core, fluid

    class Enough(Exception):
        pass

    def attached(resources: dict, hosts: int, quota: float | None, served: int = 0, **options) -> tuple[int, float | None]:
        monkeypatch.setattr(ray, "cluster_resources", lambda: resources)
        monkeypatch.setattr(fluid, "placement_group_table", lambda: {
            "a": {"name": "box/workers", "state": "CREATED", "bundles": {0: {"CPU": served}}}})
        monkeypatch.setattr(ray, "nodes", lambda: [{"Alive": True}] * hosts)
        monkeypatch.setattr(core, "processor_limits", lambda *_: (64, quota))
        plans = []

        def stop(plan, *_, **__):
            plans.append(plan)
            raise Enough

        monkeypatch.setattr(fluid, "Broker", stop)
        made = fluid.Fluid(preload=None, **options)
        with pytest.raises(Enough):
            made._attach(SimpleNamespace(_reuse_actors=True))
        return made._processors, plans[0].share

    assert attached({"CPU": 8}, 1, None) == (8, 1.0)
    assert attached({"CPU": 8}, 1, 1.5) == (2, 0.75)
    assert attached({}, 1, 1.5) == (1, 1.0)           # Ray rounds quotas down
    assert attached({"CPU": 8}, 2, 1.5) == (8, 1.0)   # the other host has its own
    assert attached({"CPU": 8}, 1, 1.5, processors=4) == (4, 1.0)
    assert attached({"CPU": 8}, 1, None, served=6) == (2, 1.0)  # carillon.ray's workers have the others


def test_paused_trials_stay_in_their_processes(tmp_path):
    run = study(tmp_path, "pauses")
    assert run.returncode == 0, run.stderr[-4000:]
    out = json.loads(run.stdout.splitlines()[-1])
    for kind in ("function", "Class"):
        assert out[kind]["errors"] == 0 and out[kind]["let_go"] == 0
        assert out[kind]["processes"] == [1, 1, 1]
        assert out[kind]["iterations"] == [list(range(1, 10))] * 3
        assert out[kind]["held"] >= 24
    assert out["hyperband"]["errors"] == 0 and set(out["hyperband"]["processes"]) == {1}
    assert out["hyperband"]["longest"] == 9
    # A trial whose process is killed, held or not, begins again; the others do not.
    assert out["killed"]["errors"] == 0 and out["killed"]["processes"] == [1, 1, 2] and out["killed"]["last"] == [9, 9, 9]
    assert out["forked"]


def test_where_memory_is_short_ray_pauses_and_an_unknown_ray_goes_on_alone(tmp_path):
    run = study(tmp_path, "room")
    assert run.returncode == 0, run.stderr[-4000:]
    out = json.loads(run.stdout.splitlines()[-1])
    assert out["errors"] == 0 and out["let_go"] >= 1 and out["last"] == [9, 9, 9]
    assert out["unknown"]["errors"] == 0 and out["unknown"]["iterations"] == [9, 9] and len(out["unknown"]["said"]) == 1


def test_a_trial_with_a_fault_goes_on_from_its_checkpoint_and_others_as_ever(tmp_path):
    run = study(tmp_path, "faults")
    assert run.returncode == 0, run.stderr[-4000:]
    out = json.loads(run.stdout.splitlines()[-1])
    for fault in ("killed", "memory", "hangs"):
        told = out[fault]
        assert told["errors"] == 0 and told["last"] == [9, 9, 9] and told["best"] == 2
        assert sorted(told["processes"]) == [1, 1, 2] and sorted(told["reports"]) == [9, 9, 9]
        assert told["hung"] == (fault == "hangs")
    assert out["nan"]["errors"] == 0 and out["nan"]["last"] == [9, 9, 9] and out["nan"]["best"] == 2
    assert out["lost"] == {"errors": 0, "last": [9] * 5}


def test_trials_that_start_ray_train_end_leave_nothing_and_let_others_compute(tmp_path):
    pytest.importorskip("torch", reason="torch is not installed")
    run = study(tmp_path, "train")
    assert run.returncode == 0, run.stderr[-4000:]
    out = json.loads(run.stdout.splitlines()[-1])
    for told in out.values():
        assert (told["errors"], told["left"]) == (0, [])
    assert out["stopped"]["reports"] == [1, 3, 3]
    # A held one would keep its workers' processors. So two began again.
    assert (out["paused"]["reports"], out["paused"]["held"]) == ([3, 4, 4], 0)
    assert out["beside"]["reports"] == [3, 3, 3]


def test_rungs_are_kept_over_a_kill(tmp_path):
    run = study(tmp_path, "first")
    assert run.returncode == -signal.SIGKILL, run.stderr[-4000:]
    run = study(tmp_path, "again")
    assert run.returncode == 0, run.stderr[-4000:]
    out = json.loads(run.stdout.splitlines()[-1])
    assert out["type"] == "Fluid" and out["errors"] == 0 and out["ended"] == 6
    assert any(out["before"])
    for before, after in zip(out["before"], out["after"]):
        assert before.items() <= after.items()
