"""Studies of Ray Tune in virtual time (python/carillon/tune/virtual.py). Epochs take one second where nothing is said."""

from __future__ import annotations

import itertools
import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "python"))
os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")
pytest.importorskip("carillon.tune.core", reason="the planner is not compiled", exc_type=ImportError)

from carillon.tune import _curves, _world  # noqa: E402

# --- Processes and devices, without Ray


def world(devices=1, **costs):
    ends = {}
    here = _world.World(devices, _world.Costs(**costs))

    def compute(name, iterations, seconds, on=(0,)):
        here.compute(name, iterations, seconds, lambda: ends.setdefault(name, here.now), on)

    return here, compute, ends


def run_out(here):
    while here.step():
        pass


def test_trials_that_compute_on_a_device_at_once_slow_each_other():
    here, compute, ends = world(alpha=1.5)
    compute("long", 2, 1.0)
    compute("short", 1, 1.0)
    run_out(here)
    # Until 1.5 s both make 1/1.5 s of work a second; then the long one is alone, with 1 s left.
    assert ends == {"short": pytest.approx(1.5), "long": pytest.approx(2.5)}
    assert here.device_seconds == pytest.approx(2.5)
    assert here.work == pytest.approx(3)


def test_trials_on_devices_of_their_own_do_not_slow_each_other():
    here, compute, ends = world(2, alpha=1.5)
    compute("a", 2, 1.0, (0,))
    compute("b", 1, 1.0, (1,))
    run_out(here)
    assert ends == {"b": pytest.approx(1), "a": pytest.approx(2)}
    assert here.device_seconds == pytest.approx(3)
    assert here.most_running == 2


def test_trials_on_other_devices_slow_each_other_where_that_was_measured():
    here, compute, ends = world(2, beside=1.25)
    compute("a", 2, 1.0, (0,))
    compute("b", 1, 1.0, (1,))
    run_out(here)
    assert ends == {"b": pytest.approx(1.25), "a": pytest.approx(2.25)}


def test_a_trial_on_several_devices_is_beside_those_on_none_of_them():
    here, compute, ends = world(3, beside=1.25, alpha=1.0)
    compute("wide", 1, 1.0, (0, 1))
    compute("first", 9, 1.0, (0,))
    compute("second", 9, 1.0, (1,))
    while "wide" not in ends:
        here.step()
    assert ends["wide"] == pytest.approx(1)


def test_a_trial_whose_process_ends_computes_no_more():
    here, compute, ends = world()
    compute("a", 10, 1.0)
    here.at(2.5, lambda: here.gone("a"))
    run_out(here)
    assert ends == {}
    assert (here.now, here.device_seconds) == (10.0, 2.5)  # an event that was planned is passed over


class Scripted:
    """In place of `Planned`: orders by the time, and what it is told."""

    def __init__(self, devices, script):
        self.devices, self.script, self.heard = devices, script, []

    def answer(self, word, name, now):
        self.heard.append((word, name, round(now, 6)))
        return self.script.pop((word, round(now, 6)), [])

    def wants(self, name, now):
        return self.answer("wants", name, now)

    def rests(self, name, now):
        return self.answer("rests", name, now)

    def held(self, name, now):
        return self.answer("held", name, now)

    def did(self, name, width, iterations, seconds, now):
        return self.answer(f"did {iterations} at {width}", name, now)

    def next_tick(self):
        return None

    def devices_of(self, name):
        return self.devices(name) if callable(self.devices) else self.devices


def scripted(devices, script, **costs):
    plan = Scripted(devices, script)
    here = _world.World(4, _world.Costs(**costs), plan)
    here.compute("t", 4, 1.0, lambda: None)
    return here, plan


def test_orders_take_hold_at_the_end_of_an_iteration():
    go, hold = _world.Go, _world.Hold
    here, plan = scripted((0, 1), {("wants", 0.0): [go("t", 1)], ("held", 2.0): [go("t", 2)]}, beta=1.25)
    here.at(1.5, lambda: here.send([hold("t")]))
    run_out(here)
    # On two devices an iteration takes 1.25 / 2 s.
    assert plan.heard == [("wants", "t", 0.0), ("did 1 at 1", "t", 1.0), ("did 1 at 1", "t", 2.0), ("held", "t", 2.0),
                          ("did 2 at 2", "t", 3.25), ("rests", "t", 3.25)]
    assert here.counts["holds"] == 1


def test_what_a_process_sets_up_first_is_no_iteration():
    here = _world.World(1, _world.Costs(), Scripted((0,), {("wants", 0.0): [_world.Go("t", 1)]}))
    here.compute("t", 2, 1.0, lambda: None, before=2.5)
    run_out(here)
    # Until its first boundary nobody hears of it.
    assert here.plan.heard == [("wants", "t", 0.0), ("did 1 at 1", "t", 3.5), ("did 1 at 1", "t", 4.5), ("rests", "t", 4.5)]
    assert here.work == 2


def test_a_trial_stands_still_when_its_devices_change():
    go, hold = _world.Go, _world.Hold
    where = iter([(0,), (1,), (1,)])
    here, plan = scripted(lambda name: next(where), {("wants", 0.0): [go("t", 1)], ("held", 1.0): [go("t", 1)]}, move=0.5)
    here.at(0.5, lambda: here.send([hold("t")]))
    run_out(here)
    assert plan.heard[-1] == ("rests", "t", 4.5)
    assert here.counts["moved"] == 1
    assert here.device_seconds == pytest.approx(4)


def test_a_wider_turn_takes_hold_at_the_next_end():
    here, plan = scripted((0, 1), {("wants", 0.0): [_world.Go("t", 1)], ("did 1 at 1", 1.0): [_world.Go("t", 2)]})
    run_out(here)
    assert ("rests", "t", 3.0) in plan.heard  # 1 + 1 + 2 / 2
    assert here.counts["widths"] == 1


def test_threads_on_a_processor_share_its_time():
    here, compute, ends = world()
    compute("long", 2, 1.0)
    compute("short", 1, 1.0)
    run_out(here)
    assert ends == {"short": pytest.approx(2), "long": pytest.approx(3)}


def test_a_plan_that_changes_a_trial_for_ever_is_an_error():
    here, plan = scripted((0,), {("wants", 0.0): [_world.Go("t", 1)]})

    def again():
        here.at(here.now, again)

    here.at(0.5, again)
    with pytest.raises(_world.WorldError, match="0.5 s the policy comes to no end"):
        run_out(here)


# --- Curves


def curves_file(tmp_path, text, header="trial,epoch,seconds,metric\n"):
    path = tmp_path / "curves.csv"
    path.write_text(header + text)
    return path


def test_curves_are_those_that_record_writes(tmp_path):
    found = _curves.Curves(_curves.read(curves_file(tmp_path, "b,1,0.5,0.1\nb,2,0.25,nan\na,1,2,\n")), -math.inf)
    assert [curve.name for curve in found.curves] == ["b", "a"]
    assert (found.seconds(0, 1), found.seconds(0, 2), found.metric(0, 1), found.metric(0, 2)) == (0.5, 0.25, 0.1, -math.inf)
    assert not found.beyond
    assert (found.seconds(1, 3), found.metric(1, 3)) == (2, -math.inf)
    assert found.beyond == {(1, 3)}


@pytest.mark.parametrize("text, header, says", [
    ("", None, ":1: no column trial, epoch, seconds, metric"),
    ("a,1,2\n", "trial,epoch,seconds\n", ":1: no column metric; wanted are trial,epoch,seconds,metric"),
    ("", "trial,epoch,seconds,metric\n", ": no trial; a row an epoch is wanted"),
    ("a,1,-0.5,1\n", "trial,epoch,seconds,metric\n", ":2: seconds is -0.5, but must be from"),
    ("a,1,0,1\n", "trial,epoch,seconds,metric\n", ":2: seconds is 0, but must be from"),
    ("a,1,inf,1\n", "trial,epoch,seconds,metric\n", ":2: seconds is inf, but must be from"),
    ("a,1,nan,1\n", "trial,epoch,seconds,metric\n", ":2: seconds is nan, but must be from"),
    ("a,1,x,1\n", "trial,epoch,seconds,metric\n", ":2: seconds is 'x', but must be a number"),
    ("a,1,1,inf\n", "trial,epoch,seconds,metric\n", ":2: metric is inf, but must be finite"),
    ("a,2,1,1\n", "trial,epoch,seconds,metric\n", ":2: epoch 2 of trial a follows 0"),
    ("a,1,1,1\na,1,1,1\n", "trial,epoch,seconds,metric\n", ":3: epoch 1 of trial a follows 1"),
    ("a,1,1\n", "trial,epoch,seconds,metric\n", ":2: 4 columns are wanted"),
])
def test_curves_that_cannot_be_are_refused(tmp_path, text, header, says):
    path = curves_file(tmp_path, text, header or "")
    with pytest.raises(_curves.CurvesError) as told:
        _curves.read(path)
    assert str(path) + says in str(told.value)


# --- Studies, with Ray's own schedulers

NO_RAY = "Ray is not installed: pip install 'ray[tune]'"


@pytest.fixture(scope="module")
def virtual():
    pytest.importorskip("ray.tune", reason=NO_RAY)
    import logging

    logging.getLogger("ray").setLevel(logging.ERROR)
    from carillon.tune import virtual

    return virtual


@pytest.fixture(scope="module")
def schedulers():
    return pytest.importorskip("ray.tune.schedulers", reason=NO_RAY)


def makers(s):
    reports = {"time_attr": "training_iteration"}
    changed = {"hyperparam_mutations": {"lr": [1, 2, 3]}}
    return {
        "fifo": s.FIFOScheduler,
        "asha": lambda: s.ASHAScheduler(max_t=9, grace_period=1, reduction_factor=3),
        "asha, three brackets": lambda: s.ASHAScheduler(max_t=9, grace_period=1, reduction_factor=3, brackets=3),
        "hyperband": lambda: s.HyperBandScheduler(max_t=9, reduction_factor=3),
        "bohb": lambda: s.HyperBandForBOHB(max_t=9, reduction_factor=3),
        "pbt": lambda: s.PopulationBasedTraining(**reports, **changed, perturbation_interval=2),
        "pbt, synch": lambda: s.PopulationBasedTraining(**reports, **changed, perturbation_interval=2, synch=True),
        "median": lambda: s.MedianStoppingRule(**reports, grace_period=1),
        "median, which pauses": lambda: s.MedianStoppingRule(**reports, grace_period=1, hard_stop=False),
    }


NAMES = ["fifo", "asha", "asha, three brackets", "hyperband", "bohb", "pbt", "pbt, synch", "median", "median, which pauses"]
POLICIES = ["fifo", "static", "dynamic", "best", "ray", "ray-reuse"]


def study(virtual, trials, epochs, devices=1, **more):
    return virtual.Study(**({"epoch_s": 1.0} | more), trials=trials, epochs=epochs, devices=devices)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", NAMES)
def test_every_scheduler_ends_all_of_its_trials(virtual, schedulers, name, policy):
    """Under costs that leave no two things at one time. What holds of any run is held against each."""
    for devices, seed, function in itertools.product((1, 2, 3), (1, 2), (False, True)):
        # At a bracket's end Ray's HyperBand stops trials that are paused, and none of those that still save before they
        # pause. Nobody wants these any more, and the study does not end. With a stop condition it does not come to that.
        tells_end = not function or name == "hyperband"
        here = study(virtual, 10, 9, devices, start=0.37, gap=0.011, save=0.021, restore=0.013, reset=0.017, function=function,
                     saves=function, tells_end=tells_end, concurrency=4 if name == "bohb" else None, iterations=7)
        run = virtual.run(here, makers(schedulers)[name](), policy, seed, each=True)
        assert run["trials"] == 10
        assert all(trial["ended_s"] is not None for trial in run["each"])
        assert run["epochs"] == sum(trial["epochs"] for trial in run["each"])
        assert all(1 <= trial["epochs"] for trial in run["each"])
        if not name.startswith("pbt"):  # of these a copy does epochs again
            assert all(trial["epochs"] <= 9 for trial in run["each"])
        assert run["work_s"] == pytest.approx(run["epochs"])  # seconds each; turns and widths lose none of it
        # More where a trial has not yet given a device back that another one computes on.
        assert run["device_seconds"] >= run["work_s"] * (1 - 1e-9)
        assert run["device_seconds"] <= devices * run["makespan_s"] * (1 + 1e-9)
        assert 0 < run["utilization"] <= 1
        if policy in ("ray", "ray-reuse", "fifo"):
            assert run["most_running"] <= devices
        assert run["starts"] >= 1


def epochs_of(virtual, scheduler, curves, policy="ray", **more):
    run = virtual.run(virtual.Study(curves=curves, **more), scheduler, policy, each=True)
    return [trial["epochs"] for trial in run["each"]], run


def levels(tmp_path, metrics, epochs=9, seconds=1.0):
    """Curves that are as good from their beginning to their end."""
    return curves_file(tmp_path, "".join(f"t{number},{epoch},{seconds},{metric}\n" for number, metric in enumerate(metrics)
                                         for epoch in range(1, epochs + 1)))


def test_ashas_stops(virtual, schedulers, tmp_path):
    """One after the other. A trial stops at rung 1 or 3 where it is below two thirds of those that came there before."""
    asha = schedulers.ASHAScheduler(max_t=9, grace_period=1, reduction_factor=3)
    epochs, run = epochs_of(virtual, asha, levels(tmp_path, [0.5, 0.4, 0.6, 0.55]))
    # 0.4 < 0.5 at 1; 0.55 is above 0.533, two thirds of 0.4, 0.5 and 0.6, at 1, and below 0.567, that of 0.5 and 0.6, at 3.
    assert epochs == [9, 1, 9, 3]
    assert run["makespan_s"] == pytest.approx(22)


def test_ashas_stops_where_less_is_better(virtual, schedulers, tmp_path):
    asha = schedulers.ASHAScheduler(max_t=9, grace_period=1, reduction_factor=3)
    epochs, run = epochs_of(virtual, asha, levels(tmp_path, [0.5, 0.6, 0.4, 0.45]), mode="min")
    assert epochs == [9, 1, 9, 3]
    assert run["best_metric"] == 0.4


@pytest.mark.parametrize("policy", POLICIES)
def test_hyperbands_rungs(virtual, schedulers, policy):
    """Three brackets of 3, 5 and 9 trials: 3 do 9 epochs; 5 do 3, of these 2 do 9; 9 do 1, of these 3 do 3, and 1 does 9."""
    hyperband = schedulers.HyperBandScheduler(max_t=9, reduction_factor=3)
    run = virtual.run(study(virtual, 17, 9, 4), hyperband, policy, each=True)
    epochs = [trial["epochs"] for trial in run["each"]]
    assert epochs[:3] == [9] * 3
    assert sorted(epochs[3:8]) == [3, 3, 3, 9, 9]
    assert sorted(epochs[8:]) == [1] * 6 + [3] * 2 + [9]


def test_the_best_of_a_rung_go_on(virtual, schedulers, tmp_path):
    hyperband = schedulers.HyperBandForBOHB(max_t=4, reduction_factor=2)
    epochs, _ = epochs_of(virtual, hyperband, levels(tmp_path, [0.1, 0.4, 0.3, 0.2], epochs=4), "best", devices=2, concurrency=4)
    assert epochs == [1, 4, 2, 1]


def test_pbts_copies(virtual, schedulers, tmp_path):
    """After two epochs the worst of four goes on as the best does, from there; then all end."""
    def pbt():
        return schedulers.PopulationBasedTraining(time_attr="training_iteration", perturbation_interval=2, synch=True,
                                                  hyperparam_mutations={"lr": [1, 2, 3]}, quantile_fraction=0.25)

    for policy in ("ray", "best"):
        scheduler = pbt()
        epochs, run = epochs_of(virtual, scheduler, levels(tmp_path, [0.3, 0.1, 0.4, 0.2], epochs=3), policy, devices=2)
        assert epochs == [3, 3, 3, 3]
        assert [trial["metric"] for trial in run["each"]] == [0.3, 0.4, 0.4, 0.2]
        assert scheduler._num_perturbations == 1
        # Ray starts each anew after the pause; under Fluid only the copy needs a process.
        assert run["starts"] == (8 if policy == "ray" else 5)


def test_a_copy_may_keep_its_recorded_curve(virtual, schedulers, tmp_path):
    """What was recorded of a trial that PBT had copied another into has that in it."""
    scheduler = makers(schedulers)["pbt, synch"]()
    _, run = epochs_of(virtual, scheduler, levels(tmp_path, [0.3, 0.1, 0.4, 0.2], epochs=3), "best", devices=2, keeps_curve=True)
    assert scheduler._num_perturbations == 1
    assert [trial["metric"] for trial in run["each"]] == [0.3, 0.1, 0.4, 0.2]


def test_the_median_rule_stops_those_below(virtual, schedulers, tmp_path):
    """Three are not judged; the fourth is below the median of these, the fifth is not."""
    median = schedulers.MedianStoppingRule(time_attr="training_iteration", grace_period=1, min_samples_required=3)
    epochs, _ = epochs_of(virtual, median, levels(tmp_path, [0.5, 0.6, 0.7, 0.1, 0.9], epochs=4))
    assert epochs == [4, 4, 4, 1, 4]


def test_a_scheduler_that_nobody_knows(virtual, schedulers):
    class Second(schedulers.FIFOScheduler):
        """Stops each at its second report."""

        def on_trial_result(self, tune_controller, trial, result):
            assert tune_controller.get_trials()
            return self.STOP if result["training_iteration"] == 2 else self.CONTINUE

    for policy in POLICIES:
        assert virtual.run(study(virtual, 3, 9), Second(), policy)["epochs"] == 6


@pytest.mark.parametrize("policy, trials, epochs, devices, makespan", [
    *[(policy, 4, 6, devices, 24 / devices) for policy in ("ray", "ray-reuse", "fifo") for devices in (1, 2, 4)],
    *[(policy, 3, 4, devices, {1: 12, 2: 8, 4: 4}[devices]) for policy in ("ray", "fifo") for devices in (1, 2, 4)],
    ("best", 4, 6, 1, 24), ("best", 3, 4, 1, 12),  # one device is never idle
    # Alone on two devices: narrow until it was measured three times, which is for 3 s; then 3 s of work on both.
    ("best", 1, 6, 2, 4.5),
    # Two go on for 4 s, a device each. Then the third is alone: 3 s narrow, and 1 s of work on both.
    ("best", 3, 4, 2, 7.5),
])
def test_makespans_of_fifo_by_hand(virtual, policy, trials, epochs, devices, makespan):
    run = virtual.run(study(virtual, trials, epochs, devices), policy=policy)
    assert run["makespan_s"] == pytest.approx(makespan)
    assert run["utilization"] == pytest.approx(run["work_s"] / (devices * makespan))


@pytest.mark.parametrize("policy, devices, makespan", [
    # Four trials do an epoch, two of them a second one, one of these two more: 8 s of work.
    *[(policy, devices, {1: 8, 2: 2 + 1 + 2, 4: 1 + 1 + 2}[devices]) for policy in ("ray", "fifo") for devices in (1, 2, 4)],
    ("best", 1, 8),
])
def test_makespans_of_successive_halving_by_hand(virtual, schedulers, policy, devices, makespan):
    halving = schedulers.HyperBandForBOHB(max_t=4, reduction_factor=2)
    run = virtual.run(study(virtual, 4, 4, devices, concurrency=4), halving, policy)
    assert run["epochs"] == 8
    assert run["makespan_s"] == pytest.approx(makespan)


def test_wide_trials_take_no_longer_than_narrow_ones(virtual, schedulers):
    """Where the policy knows that a device more is worth one: between all of the work on all devices, and a device a
    trial."""
    for devices, most in ((2, 5), (4, 4)):
        halving = schedulers.HyperBandForBOHB(max_t=4, reduction_factor=2)
        run = virtual.run(study(virtual, 4, 4, devices, concurrency=4, told=True), halving, "best")
        assert 8 / devices <= run["makespan_s"] < most
    for trials, epochs, devices, most in ((3, 4, 2, 8), (1, 6, 2, 5), (1, 6, 4, 5)):
        run = virtual.run(study(virtual, trials, epochs, devices, told=True), policy="best")
        assert trials * epochs / devices <= run["makespan_s"] <= most


def test_costs_are_in_the_makespan_by_hand(virtual):
    # The driver hears of the start, of four reports, and that a class has saved at its end: Ray asks for it.
    assert virtual.run(study(virtual, 1, 4, gap=0.1, start=0.5), policy="ray")["makespan_s"] == pytest.approx(0.5 + 4 + 6 * 0.1)
    # A function is asked once more, and says that it has ended.
    told = study(virtual, 1, 4, gap=0.1, start=0.5, function=True, tells_end=False)
    assert virtual.run(told, policy="ray")["makespan_s"] == pytest.approx(0.5 + 4 + 6 * 0.1)
    # Two processes, one after the other; and one for both.
    two = study(virtual, 2, 4, start=0.5, first=0.75, reset=0.25)
    assert virtual.run(two, policy="ray")["makespan_s"] == pytest.approx(2 * (4.5 + 0.75))
    assert virtual.run(two, policy="ray-reuse")["makespan_s"] == pytest.approx(4.5 + 0.75 + 4.25)


def test_a_process_may_be_given_up_before_ray_hears_of_its_start(virtual, schedulers):
    """With reuse_actors a trial takes over a process that has become free while its own one starts."""
    for seed in range(10):
        here = study(virtual, 4, 9, 2, epoch_s=0.36, noise=0.05, start=0.62, first=1.26, gap=0.0155, save=0.005, function=True,
                     tells_end=False)
        assert virtual.run(here, makers(schedulers)["pbt, synch"](), "ray-reuse", seed)["epochs"] >= 36


def test_the_end_of_a_process_takes_its_time(virtual):
    """A trial's process starts when the one before has given its processor back."""
    here = study(virtual, 2, 4, start=0.5, stop=0.25)
    assert virtual.run(here, policy="ray")["makespan_s"] == pytest.approx(2 * 4.5 + 0.25)


def test_noise_is_drawn_by_the_seed(virtual):
    noisy = study(virtual, 4, 9, 2, noise=0.05)
    first, again, other = (virtual.run(noisy, policy="ray", seed=seed)["work_s"] for seed in (1, 1, 2))
    assert first == again != other
    assert first == pytest.approx(36, rel=0.05)


def test_trials_that_share_a_device_at_once(virtual):
    """Four epochs of four iterations each. After its first iteration the first trial has the second one beside it, and
    a second of work of both takes 1.5 s; the second one is alone for the iteration that it is behind."""
    together = study(virtual, 2, 4, iterations=4, together=True, alpha=1.5, told=True)
    assert virtual.run(together, policy="best")["makespan_s"] == pytest.approx(0.25 + 3.75 * 1.5 + 0.25)
    assert virtual.run(together, policy="fifo")["makespan_s"] == pytest.approx(8)


def test_a_study_ends_at_its_target(virtual, tmp_path):
    curves = curves_file(tmp_path, "".join(f"t,{epoch},2.0,{epoch / 10}\n" for epoch in range(1, 10)))
    run = virtual.run(virtual.Study(curves=curves, target=0.3), policy="ray")
    assert run["time_to_target_s"] == run["makespan_s"] == pytest.approx(6)
    assert virtual.run(virtual.Study(curves=curves, target=1.5), policy="ray")["time_to_target_s"] is None


def test_what_was_not_recorded_is_counted(virtual, schedulers, tmp_path):
    curves = curves_file(tmp_path, "a,1,1,1\na,2,1,1\nb,1,1,1\n")
    run = virtual.run(virtual.Study(curves=curves), policy="ray")
    assert (run["epochs"], run["beyond_curves"]) == (4, 1)


def test_fluid_holds_what_ray_would_start_again(virtual, schedulers):
    def hyperband():
        return schedulers.HyperBandScheduler(max_t=9, reduction_factor=3)

    under_ray = virtual.run(study(virtual, 17, 9, 2, start=1.0), hyperband(), "ray")
    under_fluid = virtual.run(study(virtual, 17, 9, 2, start=1.0), hyperband(), "fifo")
    assert under_fluid["starts"] == 17 < under_ray["starts"]
    assert under_fluid["held"] > 0 == under_ray["held"]


def test_a_study_that_ray_leaves_hanging_is_an_error(virtual, schedulers):
    """Three trials report their last epoch while the first one still saves."""
    here = study(virtual, 3, 9, 3, save=0.5, function=True, tells_end=False)
    with pytest.raises(_world.WorldError, match="2 trials are left that nobody runs"):
        virtual.run(here, schedulers.HyperBandScheduler(max_t=9, reduction_factor=3), "ray")


def test_few_live_processes_are_kept_to(virtual, schedulers):
    run = virtual.run(study(virtual, 17, 9, 2, live=2), schedulers.HyperBandScheduler(max_t=9, reduction_factor=3), "best")
    assert run["starts"] > 17
    assert run["epochs"] == 75


@pytest.mark.parametrize("policy", ["ray", "best"])
def test_a_thousand_trials_end_in_seconds(virtual, schedulers, policy):
    began = time.monotonic()
    run = virtual.run(study(virtual, 1000, 9, 8), makers(schedulers)["asha"](), policy)
    assert run["trials"] == 1000
    assert time.monotonic() - began < 60  # 3 s on a core that is free


def test_random_numbers_are_as_they_were(virtual, schedulers):
    import random

    random.seed(7)
    expected = random.Random(7).random()
    virtual.run(study(virtual, 4, 4), makers(schedulers)["pbt"](), "ray")
    assert random.random() == expected


@pytest.mark.parametrize("more, says", [
    ({"epoch_s": 0}, "epoch_s is above 0 seconds, not 0"),
    ({"epoch_s": -1.0}, "epoch_s is above 0 seconds, not -1.0"),
    ({"epoch_s": math.nan}, "epoch_s is above 0 seconds, not nan"),
    ({"start": -1.0}, "start is at least 0 seconds, not -1.0"),
    ({"gap": math.inf}, "gap is at least 0 seconds, not inf"),
    ({"move": -0.1}, "move is at least 0 seconds, not -0.1"),
    ({"devices": 0}, "devices is a whole number of at least 1, not 0"),
    ({"trials": 0}, "trials is a whole number of at least 1, not 0"),
    ({"trials": 2.5}, "trials is a whole number of at least 1, not 2.5"),
    ({"beta": 0.5}, "beta is from 1 to 100, not 0.5"),
    ({"alpha": 1.1}, "it needs together"),
    ({"target": math.nan}, "target is a number, not nan"),
    ({"mode": "most"}, "mode is max or min, not 'most'"),
    ({"curves": "c.csv"}, "either curves (--curves) or epoch_s (--epoch)"),
    ({"trials": None}, "trials and epochs say how many there are"),
    ({"quantum": 0}, "quantum is above 0 seconds, not 0"),
])
def test_studies_that_cannot_be_are_refused(virtual, more, says):
    with pytest.raises(virtual.VirtualError) as told:
        virtual.Study(**({"epoch_s": 1.0, "trials": 2, "epochs": 2} | more))
    assert says in str(told.value)


def test_more_trials_than_curves(virtual, tmp_path):
    curves = levels(tmp_path, [0.1, 0.2])
    with pytest.raises(virtual.VirtualError, match=r"3 trials, but .*curves.csv has the curves of 2"):
        virtual.run(virtual.Study(curves=curves, trials=3))


def test_what_is_no_new_scheduler_is_refused(virtual, schedulers):
    with pytest.raises(virtual.VirtualError, match="a scheduler of Ray Tune is wanted, not str"):
        virtual.run(study(virtual, 2, 2), "asha")
    with pytest.raises(virtual.VirtualError, match="policy 'better': it is one of .*best.*ray"):
        virtual.run(study(virtual, 2, 2), policy="better")
    with pytest.raises(virtual.VirtualError, match="has mode 'min', the study 'max'"):
        virtual.run(study(virtual, 2, 2), schedulers.ASHAScheduler(metric="loss", mode="min"))


# --- The command


def simulate(*arguments, status=0, cwd=None, **env):
    done = subprocess.run([sys.executable, "-m", "carillon.tune", "simulate", *map(str, arguments)], capture_output=True,
                          text=True, timeout=120, cwd=cwd, env=os.environ | {"PYTHONPATH": str(ROOT / "python")} | env)
    assert done.returncode == status, done.stdout + done.stderr
    return done


def test_the_command_gives_the_same_bytes(schedulers):
    arguments = ("pbt", "--epoch", 1, "--trials", 8, "--epochs", 9, "--devices", 3, "--seed", "3..4", "--start", 0.3, "--gap", 0.01,
                 "--scheduler", "best", "--scheduler", "ray-reuse", "--json", "--each-trial")
    first, second = (simulate(*arguments, PYTHONHASHSEED=seed).stdout for seed in ("1", "2"))
    assert first == second
    runs = json.loads(first)["runs"]
    assert [(run["scheduler"], run["seed"]) for run in runs] == [("best", 3), ("best", 4), ("ray-reuse", 3), ("ray-reuse", 4)]
    for name in ("study", "scheduler", "seed", "devices", "makespan_s", "time_to_target_s", "device_seconds", "utilization",
                 "resizes", "moves", "trials"):
        assert name in runs[0]


def test_the_command_reads_curves_and_tells_a_table(schedulers, tmp_path):
    out = simulate("hyperband", "--curves", ROOT / "scenarios" / "fluid" / "synthetic_curves.csv", "--trials", 40, "--devices", 4,
                   "--scheduler", "fifo").stdout
    title, header, row = out.splitlines()
    assert title.startswith("synthetic_curves.csv: HyperBandScheduler on 4 devices")
    assert header.split()[:3] == ["scheduler", "seed", "makespan"]
    assert row.split()[0] == "fifo"


def test_the_command_takes_schedulers_of_ones_own(schedulers, tmp_path):
    (tmp_path / "mine.py").write_text("from ray.tune.schedulers import FIFOScheduler\nclass Mine(FIFOScheduler):\n    pass\n")
    out = simulate("mine:Mine", "--epoch", 1, "--trials", 2, "--epochs", 2, "--json", cwd=tmp_path).stdout
    assert json.loads(out)["algorithm"] == "Mine"
    (tmp_path / "made.py").write_text("from ray.tune.schedulers import FIFOScheduler\nmade = FIFOScheduler()\n")
    said = simulate("made:made", "--epoch", 1, "--trials", 2, "--epochs", 2, cwd=tmp_path, status=2).stderr
    assert "scheduler 'made:made': it is a FIFOScheduler, and must be what makes a scheduler" in said


@pytest.mark.parametrize("arguments, status, says", [
    (["ashe", "--epoch", 1, "--trials", 2, "--epochs", 2], 2, "scheduler 'ashe': it is one of asha, hyperband, bohb"),
    (["no_such:Thing", "--epoch", 1, "--trials", 2, "--epochs", 2], 2, "scheduler 'no_such:Thing': No module named 'no_such'"),
    (["asha", "--epoch", 1, "--trials", 2, "--epochs", 2, "--grace", 5], 2, "grace_period must be <= max_t"),
    (["asha", "--epoch", 1, "--trials", 2, "--epochs", 2, "--grace", 0], 2, "argument --grace: '0' is no number from 1 on"),
    (["asha", "--epoch", 1, "--trials", 2, "--epochs", 2, "--max-t", 0], 2, "argument --max-t: '0' is no number from 1 on"),
    (["fifo", "--epoch", 1, "--trials", 2, "--epochs", 2, "--target", "nan"], 2, "target is a number, not nan"),
    (["fifo", "--epoch", -1, "--trials", 2, "--epochs", 2], 2, "epoch_s is above 0 seconds, not -1"),
    (["fifo"], 2, "either curves"),
    (["fifo", "--curves", "/no/such.csv"], 1, "/no/such.csv: No such file or directory"),
    (["fifo", "--epoch", 1, "--trials", 2, "--epochs", 2, "--scheduler", "bets"], 2, "policy 'bets': it is one of"),
    (["fifo", "--epoch", 1, "--trials", 2, "--epochs", 2, "--seed", "2..1"], 2, "'2..1' has no number in it"),
])
def test_the_command_says_what_is_wrong(schedulers, arguments, status, says):
    done = simulate(*arguments, status=status)
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_the_command_says_that_ray_is_missing(tmp_path):
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "__init__.py").write_text("raise ImportError('no Ray here')\n")
    done = subprocess.run([sys.executable, "-m", "carillon.tune", "simulate", "fifo"], capture_output=True, text=True, timeout=60,
                          env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT / "python")])})
    assert done.returncode == 1
    assert "it needs Ray Tune" in done.stderr
