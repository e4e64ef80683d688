"""Load in four steps, and workers that follow it: bench/autoscale_live.py in short."""

from __future__ import annotations

import pytest

from .scaling import SHORT, Told, Trial, hpa


@pytest.mark.parametrize(("current", "metric", "desired"), [
    (1, 1, 1), (1, 2, 2), (4, 1, 1), (10, 11, 10), (10, 12, 12), (10, 9, 10), (10, 8.9, 9), (8, 99, 8), (3, 0, 1)])
def test_hpas_formula(current, metric, desired):
    assert hpa(current, metric, 1, 8 if metric == 99 else 100) == desired


def test_what_is_told_of_a_trial():
    told = Told(SHORT, [1, 2, 3, 1], replicas=[(0, 1), (15, 4), (18, 3), (33, 4), (50, 2)], answers=[(45.0, "late"), (50.0, "on_time"), (3.0, "refused")])
    assert [told.reached_after(step) for step in range(4)] == [0, 6, 0, 10]
    assert [told.turns(step) for step in range(4)] == [0, 1, 0, 0]
    assert told.lost_to_scaling_down() == [(45.0, "late")]
    assert told.bad_share() == pytest.approx(2 / 3)
    told.stalls = [(44.9, 45.0)]
    assert told.lost_to_scaling_down() == []


def test_workers_follow_the_load_and_no_request_is_lost_when_they_go(box):
    told = Trial(box, SHORT).run()
    seen = f"least {told.least}, replicas {told.series()}; {len(told.answers)} requests, {told.bad_share():.1%} bad"
    assert not told.failed, f"{told.failed}; {seen}"
    assert not told.lost_to_scaling_down(), f"{told.lost_to_scaling_down()[:10]}; {seen}"
    for step in range(len(told.least)):
        reached = told.reached_after(step)
        assert reached is not None and reached <= SHORT.reached_within(step), f"step {step}: {reached}; {seen}\n{box.logs()}"
        assert told.turns(step) <= 1, f"step {step}; {seen}"
