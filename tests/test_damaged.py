"""A sample of the damaged models and configs of bench/damaged.py, which does all of them."""

from __future__ import annotations

import sys

import onnx
import pytest

from loopback import ROOT, sanitized

sys.path.insert(0, str(ROOT / "bench"))

import damage  # noqa: E402
import damaged  # noqa: E402
import harness  # noqa: E402

SAMPLE = 40
# What was found, and is mended: by subject, seeds.
FOUND = {
    "model:perceptron": [
        79,  # shares of all rows of a batch, as if it were a request's
        721,
    ],  # given to the second engine, which ended the process
    "model:reader": [487, 865],  # likewise; an opset from which it counted down for minutes
    "model:quantised": [138, 189, 375],  # a name that is not to be printed; likewise
    # Names of 100,000 letters, control characters; an error that does not say whose it is.
    "text:perceptron": [13, 712],
    "text:reader": [150],
    "json:quantised": [33],
    "json:perceptron": [207],
}


@pytest.fixture(scope="module", autouse=True)
def this_program(program):
    before, harness.CARILLON = harness.CARILLON, program
    yield
    harness.CARILLON = before


def nothing_found(result):
    assert result["faults"] == [], "\n".join(f"{f['subject']} {f['seed']}: {f['what']}" for f in result["faults"])


@pytest.fixture(scope="module")
def memory(program):
    return (4096 if sanitized(program) else 256) * damaged.MIB


def test_a_sample_is_refused_with_words_or_answered_right(memory):
    result = damaged.run(damaged.SUBJECTS, range(2000, 2000 + SAMPLE), memory=memory)
    nothing_found(result)
    for subject, counts in result["outcomes"].items():
        assert sum(counts.values()) == SAMPLE
        assert counts["refused"] > SAMPLE / 3, f"{subject}: little was damaged: {counts}"
        assert counts["served, same answers"] > 0, f"{subject}: nothing is compared: {counts}"


@pytest.mark.parametrize("subject", FOUND)
def test_what_was_found_stays_mended(memory, subject):
    nothing_found(damaged.run([subject], FOUND[subject], memory=memory))


def test_the_same_seed_damages_alike():
    for kind in ("model", "text", "json"):
        damage_of = getattr(damage, f"damaged_{kind}")
        for name in damage.MODELS:
            assert damage_of(name, 5) == damage_of(name, 5)
            assert len({damage_of(name, seed) for seed in range(60)}) > 50
    changed = onnx.ModelProto.FromString(damage.damaged_model("reader", 5))
    assert changed != damage.MODELS["reader"], "odd seeds change fields and can still be parsed"


def test_a_wrong_answer_is_found():
    """The comparison itself, with an answer that is off."""
    import numpy as np

    want = {"output": np.array([[1, 2]], np.float32)}
    assert damaged.Subject.difference("reader", want, {"output": np.array([[1, 2]], np.float32)}) is None
    for wrong in (np.array([[1, 2.1]]), np.array([[1, np.nan]]), np.array([[1]]), np.array([1, 2])):
        assert damaged.Subject.difference("reader", want, {"output": wrong.astype(np.float32)})
