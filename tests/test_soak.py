"""bench/soak.py for twenty seconds: clients of all kinds, models that come and go, bad inputs and killed clients at once.
`python bench/soak.py --minutes 10 --plot FILE` is the long test, which judges memory, threads and descriptors, too."""

from __future__ import annotations

import sys

import pytest

from loopback import ROOT

sys.path.insert(0, str(ROOT / "bench"))

import harness  # noqa: E402
import soak  # noqa: E402


def test_everything_at_once(program, monkeypatch):
    monkeypatch.setattr(harness, "CARILLON", program)
    result = soak.soak(1 / 3)
    assert result["wrong"] == []
    for kind in (
        "http: right",
        "grpc: right",
        "stream: right",
        "memory: right",
        "orders: loaded",
        "bad inputs",
        "clients killed",
    ):
        assert result["counts"].get(kind, 0) > 0, f"{kind}: never; {result['counts']}"


def samples(pss, threads=(20,) * 40, descriptors=(30,) * 40):
    return [{"pss_mib": p, "threads": t, "descriptors": d} for p, t, d in zip(pss, threads, descriptors)]


@pytest.mark.parametrize(
    "pss, grows",
    [
        ([400 + i % 3 for i in range(40)], False),
        ([100 + 10 * i for i in range(20)] + [300] * 20, False),
        ([400 + i for i in range(40)], True),
    ],
)
def test_growth_is_told_from_a_start_and_from_noise(pss, grows):
    steady = soak.steadiness(samples(pss))
    assert (steady["growth_mib"] >= steady["growth_bound_mib"]) == grows, steady


def test_what_leaks_is_told():
    steady = soak.steadiness(samples([400] * 40, threads=range(40), descriptors=[30] * 39 + [60]))
    assert steady["threads"] == [19, 39] and steady["descriptors"] == [30, 60]


def test_a_wrong_answer_is_found():
    import numpy as np

    x = np.ones([2, soak.WIDTH], np.float32)
    want = np.maximum(x @ soak.MATRIX, 0)
    assert (
        soak.right("dense", x, want, [])
        and not soak.right("dense", x, want + 0.1, [])
        and not soak.right("dense", x, want[:1], [])
    )
    assert soak.right("scale", x, 3 * x, [2, 3]) and not soak.right("scale", x, 3 * x, [2])
