"""Is an answer right? Whole numbers to the last, floats to a share of the output's scale."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

TOLERANCE = 1e-4  # of the largest value of an output
SMALLEST = 1e-6  # what never matters: sums of numbers around 1 in floats are no better
STEPS = 255  # of eight bits, over the range of an output


def step_of(want: np.ndarray, scale: float = 0.0) -> float:
    """By how much a quantised file's output may be off: a step of its last scale, or of eight bits over its range."""
    if want.dtype.kind in "ui" and want.dtype.itemsize == 1:
        return 1.0
    if want.dtype.kind != "f" or want.size == 0:
        return 0.0
    return max(1.001 * scale, float(max(0.0, want.max()) - min(0.0, want.min())) / STEPS)


def spread(want: np.ndarray, others: list[np.ndarray]) -> float:
    """By how much the reference differs from itself: `others` are answers that it gives as well.

    A sum that lies between two steps may be rounded either way, and what comes after it differs then; so it does, in
    floats, where many layers make much of the last digit.
    """
    if want.dtype.kind != "f" and not (want.dtype.kind in "ui" and want.dtype.itemsize == 1) or want.size == 0:
        return 0.0
    return max((float(np.abs(want.astype(np.float64) - other.astype(np.float64)).max(initial=0, where=np.isfinite(want)))
                for other in others if other.shape == want.shape), default=0.0)


@dataclass(frozen=True)
class Verdict:
    right: bool
    difference: float  # the largest, as a share of what is allowed to count as 1: the output's scale
    reason: str = ""


def judge(name: str, want: np.ndarray, got: np.ndarray, step: float = 0.0) -> Verdict:
    """`step`: what is allowed in any case, in units of `want`."""
    if want.shape != got.shape:
        return Verdict(False, float("inf"), f"{name} has the shape {list(got.shape)}; it is {list(want.shape)}")
    if want.dtype != got.dtype:
        return Verdict(False, float("inf"), f"{name} has the type {got.dtype}; it is {want.dtype}")
    if want.size == 0:
        return Verdict(True, 0.0)
    if want.dtype.kind in "bui":
        difference = float(np.abs(want.astype(np.float64) - got.astype(np.float64)).max())
        if difference <= step:
            return Verdict(True, difference)
        return Verdict(False, difference, f"{name} is off by {difference:g}")
    wide, other = want.astype(np.float64), got.astype(np.float64)
    finite = np.isfinite(wide)
    strange = ~finite | ~np.isfinite(other)
    if not np.array_equal(wide[strange], other[strange], equal_nan=True):
        return Verdict(False, float("inf"), f"{name} is not finite where it should be, or the other way round")
    if not finite.any():
        return Verdict(True, 0.0)
    wide, other = wide[finite], other[finite]
    scale = float(np.abs(wide).max())
    # An output of nothing but noise around zero has no scale of its own.
    difference = float(np.abs(wide - other).max()) / max(scale, 1e-6)
    allowed = max(TOLERANCE, (SMALLEST + step) / max(scale, 1e-6))
    if difference <= allowed:
        return Verdict(True, difference)
    return Verdict(False, difference, f"{name} differs by {difference:.2g} of its largest value; {allowed:.2g} is allowed")


def judge_all(want: dict[str, np.ndarray], got: dict[str, np.ndarray], steps: dict[str, float] | None = None) -> Verdict:
    """The first that is wrong, else the largest difference."""
    if missing := sorted(set(want) - set(got)):
        return Verdict(False, float("inf"), f"there is no output {missing[0]}")
    verdicts = [judge(name, array, got[name], (steps or {}).get(name, 0.0)) for name, array in want.items()]
    wrong = [v for v in verdicts if not v.right]
    return wrong[0] if wrong else Verdict(True, max((v.difference for v in verdicts), default=0.0))
