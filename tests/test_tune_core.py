"""carillon.tune.core: the planner from Python. What its policies decide, src/carillon/tune tests."""

from __future__ import annotations

import math
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "python"))
try:
    from carillon.tune import core
    from carillon.tune.core import Hold, Move, Place, Refuse, Release, Resize, Trial, Tuning, WakeAt
except ImportError as missing:
    pytest.skip(f"{missing}", allow_module_level=True)

POLICIES = ("fifo", "static", "dynamic", "best")


def with_devices(policy: str, devices: int, **options) -> Tuning:
    tuning = Tuning(policy, **options)
    for device in range(devices):
        assert tuning.device_came(device, 0.0) == []
    return tuning


def test_its_policies_are_those_of_the_program():
    assert tuple(core.policies()) == POLICIES
    assert Tuning().policy == "best"


def test_figure_3_5_of_the_paper():
    """Four trials of 4, 4, 12 and 30 s on five devices: a4 on three of them, a1 and a2 share one."""
    tuning = with_devices("static", 5, alpha=1, beta=1, c=2, d=4)
    seconds = (4, 4, 12, 30)
    orders = tuning.group_came(0, [Trial(i, budget=1, iteration=s) for i, s in enumerate(seconds)], 0.0)
    widths = {order.trial: order.width for order in orders if isinstance(order, Place)}
    assert widths == {0: 0.5, 1: 0.5, 2: 1, 3: 3}
    places = {order.trial: order.devices for order in orders}
    assert places[0] == places[1] and len(set(places[2] + places[3] + places[0])) == 5


@pytest.mark.parametrize("policy", POLICIES)
def test_trials_end_in_virtual_time(policy):
    """Nine trials of a millisecond an iteration on four devices, driven as the shells drive it."""
    tuning = with_devices(policy, 4)
    now, left, running = 0.0, {i: 20 for i in range(9)}, set()
    orders = tuning.group_came(0, [Trial(i, budget=20) for i in left], now)
    for _ in range(10_000):
        while orders:
            told = []
            for order in orders:
                if isinstance(order, WakeAt):
                    now = max(now, order.at)
                    told += tuning.wake(now)
                elif isinstance(order, (Place, Resize, Move)):
                    assert order.devices == sorted(set(order.devices)) and order.width > 0
                    running.add(order.trial)
                    told += tuning.settled(order.trial, now)
                else:
                    assert isinstance(order, (Hold, Release))
                    running.discard(order.trial)
                    told += tuning.settled(order.trial, now)
            orders = told
        if not left:
            break
        assert running, "trials wait, and none runs"
        now += 1e-3
        for trial in sorted(running):
            orders += tuning.reported(trial, now, busy=1e-3)
            left[trial] -= 1
            if left[trial] == 0:
                del left[trial]
                running.discard(trial)
                orders += tuning.ended(trial, now)
    assert not left and tuning.trials() == []


def test_a_trial_is_told_of_its_state_and_what_is_measured():
    tuning = with_devices("fifo", 1)
    assert tuning.group_came(7, [Trial(3, budget=10, persistent=100, ephemeral=50)], 1) == [Place(3, [0], 1.0)]
    (view,) = tuning.trials()
    assert (view.trial, view.group, view.state, view.settling, view.devices, view.width, view.remaining,
            view.iteration, view.left_alone) == (3, 7, "running", True, [0], 1.0, 10.0, None, None)
    assert tuning.settled(3, 1.5) == [] and not tuning.trials()[0].settling
    now = 1.5
    for _ in range(4):
        now += 0.5
        assert tuning.reported(3, now, busy=0.5) == []
    (view,) = tuning.trials()
    assert view.iterations == 4 and view.remaining == 6
    assert view.iteration.known and view.iteration.value == pytest.approx(0.5)
    assert view.left_alone == pytest.approx(3.0)
    assert tuning.reported(3, now + 1, iterations=2, busy=1.0, remaining=30) == []
    assert tuning.trials()[0].remaining == 30
    # Paused it keeps its device's memory; and comes again under its id.
    assert tuning.paused(3, now + 2) == [] and tuning.trials()[0].state == "paused"
    assert tuning.group_came(8, [Trial(3, budget=5)], now + 3) == [Place(3, [0], 1.0)]
    assert tuning.died(3, now + 4, retry=True, lost=2) == [Place(3, [0], 1.0)]
    assert tuning.trials()[0].iterations == 4
    assert tuning.ended(3, now + 5) == [] and tuning.trials() == []


def test_devices_come_change_and_go():
    tuning = with_devices("fifo", 1)
    assert tuning.group_came(0, [Trial(0), Trial(1)], 0) == [Place(0, [0])]
    tuning.settled(0, 0)
    assert tuning.device_came(9, 1, speed=2.0, supply=0.5, memory=1 << 30) == [Place(1, [9])]
    tuning.settled(1, 1)
    assert tuning.device_changed(9, 2, memory=1 << 20) == []
    # What it had there is lost: it waits, and has the first device that is free.
    assert tuning.device_went(9, 3) == [] and tuning.trials()[1].state == "waiting"
    assert tuning.ended(0, 4) == [Place(1, [0])]
    # Events of who is not here are passed over.
    for passed in (tuning.device_went(9, 5), tuning.device_changed(77, 5), tuning.reported(50, 5), tuning.ended(50, 5),
                   tuning.settled(50, 5), tuning.paused(50, 5), tuning.died(50, 5, retry=True)):
        assert passed == []


def test_supply_that_falls_to_nothing_and_comes_back():
    tuning = with_devices("best", 1)
    assert tuning.group_came(0, [Trial(0, budget=5)], 0) == [Place(0, [0])]
    tuning.settled(0, 0)
    assert tuning.device_changed(0, 1, supply=0) == [Hold(0)]
    tuning.settled(0, 1)
    assert tuning.device_changed(0, 2, supply=0.5) == [Place(0, [0])]


def test_what_is_refused_says_why():
    tuning = Tuning("fifo")
    tuning.device_came(0, 0, memory=1000)
    assert tuning.device_came(0, 0) == [Refuse(None, "duplicate")]
    assert tuning.group_came(0, [Trial(0), Trial(0), Trial(1, persistent=999, ephemeral=2)], 0) == [
        Refuse(0, "duplicate"), Refuse(1, "too_large"), Place(0, [0])]


@pytest.mark.parametrize("policy", POLICIES)
def test_more_trials_than_there_may_be_are_refused_one_by_one(policy):
    tuning = with_devices(policy, 2)
    orders = tuning.group_came(0, (Trial(i, budget=1, iteration=1) for i in range(core.MOST_TRIALS + 3)), 0)
    refused = [order for order in orders if isinstance(order, Refuse)]
    assert refused == [Refuse(core.MOST_TRIALS + i, "too_many") for i in range(3)]
    assert len(tuning.trials()) == core.MOST_TRIALS


def endless():
    while True:
        yield Trial(0)


NAN, INFINITE = math.nan, math.inf
BAD = [
    (lambda t: Tuning("nice"), ValueError, "fifo, static, dynamic, best"),
    (lambda t: Tuning(5), TypeError, "policy: str"),
    (lambda t: Tuning(seed=1), TypeError, "policy: str"),
    (lambda t: Tuning(alpha=0.9), ValueError, "alpha is 0.9"),
    (lambda t: Tuning(alpha=NAN), ValueError, "alpha is nan"),
    (lambda t: Tuning(beta=101), ValueError, "beta is 101"),
    (lambda t: Tuning(beta="x"), TypeError, "beta is 'x'; it must be a number"),
    (lambda t: Tuning(move=-1), ValueError, "move is -1"),
    (lambda t: Tuning(c=0), ValueError, "c is 0"),
    (lambda t: Tuning(c=65), ValueError, "c is 65"),
    (lambda t: Tuning(c=2.5), TypeError, "c is 2.5; it must be a whole number"),
    (lambda t: Tuning(d=1 << 70), ValueError, "d is 1180591620717411303424"),
    (lambda t: Tuning(threshold=1), ValueError, "threshold"),
    (lambda t: Tuning(most_packed=0), ValueError, "most_packed is 0"),
    (lambda t: Tuning(effort=1), ValueError, "effort is 1"),
    (lambda t: Trial(-1), ValueError, "trial is -1"),
    (lambda t: Trial(1 << 32), ValueError, "trial is 4294967296"),
    (lambda t: Trial("a"), TypeError, "trial is 'a'"),
    (lambda t: Trial(None), TypeError, "trial"),
    (lambda t: Trial(1, budget=0), ValueError, "budget is 0"),
    (lambda t: Trial(1, budget=-3), ValueError, "budget is -3"),
    (lambda t: Trial(1, budget=NAN), ValueError, "budget is nan"),
    (lambda t: Trial(1, budget=INFINITE), ValueError, "budget is inf"),
    (lambda t: Trial(1, budget=10 ** 400), ValueError, "budget is 1000"),
    (lambda t: Trial(1, iteration=0), ValueError, "iteration is 0"),
    (lambda t: Trial(1, iteration=NAN), ValueError, "iteration is nan"),
    (lambda t: Trial(1, persistent=-1), ValueError, "persistent is -1"),
    (lambda t: Trial(1, ephemeral=1 << 60), ValueError, "ephemeral is 1152921504606846976"),
    (lambda t: Trial(1, priority=0), ValueError, "priority is 0"),
    (lambda t: Trial(1, priority=NAN), ValueError, "priority is nan"),
    (lambda t: t.group_came(0, [], 0), ValueError, "trials is empty"),
    (lambda t: t.group_came(0, [3], 0), TypeError, "trials[0] is 3; it must be a carillon.tune.core.Trial"),
    (lambda t: t.group_came(0, [Trial(0), None], 0), TypeError, "trials[1] is None"),
    (lambda t: t.group_came(0, 5, 0), TypeError, "trials: "),
    (lambda t: t.group_came(0, endless(), 0), ValueError, "trials has more than 1000000 entries"),
    (lambda t: t.group_came(-1, [Trial(0)], 0), ValueError, "group is -1"),
    (lambda t: t.group_came(0, [Trial(0)], NAN), ValueError, "now is nan"),
    (lambda t: t.group_came(0, [Trial(0)], "0"), TypeError, "now is '0'"),
    (lambda t: t.wake(-1), ValueError, "now is -1"),
    (lambda t: t.wake(INFINITE), ValueError, "now is inf"),
    (lambda t: (t.wake(5), t.wake(4)), ValueError, "never goes back"),
    (lambda t: t.reported(0, 0, iterations=0), ValueError, "iterations is 0"),
    (lambda t: t.reported(0, 0, iterations=NAN), ValueError, "iterations is nan"),
    (lambda t: t.reported(0, 0, iterations=None), TypeError, "iterations"),
    (lambda t: t.reported(0, 0, busy=-1), ValueError, "busy is -1"),
    (lambda t: t.reported(0, 0, busy=NAN), ValueError, "busy is nan"),
    (lambda t: t.reported(0, 0, remaining=0), ValueError, "remaining is 0"),
    (lambda t: t.settled(0, 0, stood=-1), ValueError, "stood is -1"),
    (lambda t: t.settled(0.5, 0), TypeError, "trial is 0.5"),
    (lambda t: t.died(0, 0, lost=NAN), ValueError, "lost is nan"),
    (lambda t: t.ended(1 << 40, 0), ValueError, "trial is 1099511627776"),
    (lambda t: t.paused(-5, 0), ValueError, "trial is -5"),
    (lambda t: t.device_came(-1, 0), ValueError, "device is -1"),
    (lambda t: t.device_came(5, 0, speed=0), ValueError, "speed is 0"),
    (lambda t: t.device_came(5, 0, speed=NAN), ValueError, "speed is nan"),
    (lambda t: t.device_came(5, 0, supply=1.5), ValueError, "supply is 1.5"),
    (lambda t: t.device_came(5, 0, memory=-1), ValueError, "memory is -1"),
    (lambda t: t.device_changed(0, 0, supply=NAN), ValueError, "supply is nan"),
    (lambda t: t.device_went(1 << 32, 0), ValueError, "device is 4294967296"),
    (lambda t: Place(0, [0], 0), ValueError, "width is 0"),
    (lambda t: WakeAt(NAN), ValueError, "at is nan"),
    (lambda t: Refuse(-1, "x"), ValueError, "trial is -1"),
]


@pytest.mark.parametrize("wrong, error, says", BAD, ids=[str(i) for i in range(len(BAD))])
def test_bad_input_names_the_argument_and_changes_nothing(wrong, error, says):
    tuning = with_devices("best", 1)
    tuning.group_came(0, [Trial(0, budget=5)], 0)
    with pytest.raises(error) as raised:
        wrong(tuning)
    assert says in str(raised.value)
    assert [(t.trial, t.state, t.remaining) for t in tuning.trials()] == [(0, "running", 5.0)]


@pytest.mark.parametrize("policy", POLICIES)
def test_no_order_of_events_brings_it_down(policy):
    """Events as a broken shell would tell them: of trials that are not here, unasked, twice."""
    for seed in range(40):
        draw = random.Random(seed)
        tuning, now, ended = Tuning(policy), 0.0, set()
        for _ in range(150):
            now += draw.choice((0.0, 1e-9, draw.random(), 1e3))
            trial, device = draw.randrange(12), draw.randrange(5)
            numbers = {"speed": draw.choice((1.0, 1e-6, 4.0)), "supply": draw.choice((0.0, 0.5, 1.0)),
                       "memory": draw.choice((None, 0, 100, 1000))}
            what = draw.randrange(11)
            if what <= 1:
                specs = [Trial(draw.randrange(12), budget=draw.choice((None, 1e-9, 3, 1e15)),
                               iteration=draw.choice((None, 1e-9, 4e9)), persistent=draw.choice((0, 60)),
                               ephemeral=draw.choice((0, 50, 1 << 50))) for _ in range(draw.randint(1, 6))]
                orders = tuning.group_came(draw.randrange(3), specs, now)
            elif what == 2:
                orders = tuning.device_came(device, now, **numbers)
            elif what == 3:
                orders = tuning.device_changed(device, now, **numbers)
            elif what == 4:
                orders = draw.choice((tuning.device_went, lambda *_: tuning.wake(now)))(device, now)
            elif what == 5:
                orders = tuning.paused(trial, now)
            elif what == 6:
                orders = tuning.died(trial, now, retry=draw.random() < 0.7, lost=draw.choice((0, 1, 1e15)))
            elif what == 7:
                orders = tuning.ended(trial, now)
            elif what == 8:
                orders = tuning.settled(trial, now, stood=draw.choice((0.0, 1e-9, 4e9)))
            else:
                orders = tuning.reported(trial, now, iterations=draw.choice((1e-9, 1, 1e15)),
                                         busy=draw.choice((0.0, 1e-9, 1, 4e9)),
                                         remaining=draw.choice((None, 1e-9, 1e15)))
            here = {view.trial for view in tuning.trials()}
            assert all(order.trial in here for order in orders if not isinstance(order, (Refuse, WakeAt)))
        for trial in range(12):
            now += 1
            tuning.ended(trial, now)
            ended.add(trial)
        assert tuning.trials() == []


def test_its_stub_is_that_of_the_module():
    module = sys.modules["carillon.tune._planner"]
    made = Path(module.__file__).parent / "_planner.pyi"
    kept = ROOT / "python/carillon/tune/_planner.pyi"
    if not made.is_file() or made == kept:
        pytest.skip(f"no stub was made beside {module.__file__}")
    assert made.read_text() == kept.read_text(), f"cp {made} {kept}"
    assert (ROOT / "python/carillon/py.typed").is_file()
    # And of no other: each public name is in it.
    names = [name for name in dir(module) if not name.startswith("_")]
    assert all(f"class {name}:" in kept.read_text() or f"def {name}(" in kept.read_text() or f"{name}: " in kept.read_text()
               for name in names)
    assert set(names) <= set(core.__all__)


def test_where_it_is_not_compiled_it_says_so(tmp_path):
    def said(environment: Path) -> str:
        clean = {k: v for k, v in os.environ.items() if k != "CARILLON_PROGRAM"}
        ran = subprocess.run([sys.executable, "-c", "import carillon.tune; import carillon.tune.core"],
                             env=clean | {"PYTHONPATH": str(environment)}, capture_output=True, text=True, timeout=60)
        assert ran.returncode == 1
        return ran.stderr.splitlines()[-1]

    shutil.copytree(ROOT / "python/carillon", tmp_path / "python/carillon",
                    ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    installed = said(tmp_path / "python")
    assert "ImportError: carillon.tune.core is not compiled for this Python" in installed and "pip install ." in installed
    (tmp_path / "CMakePresets.json").touch()
    assert "--target carillon_python" in said(tmp_path / "python")
