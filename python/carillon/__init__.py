"""Unmodified PyTorch scripts share one device: `python -m carillon run script.py` (docs/sharing-scripts.md).

A script need not import this. It may, to say what cannot be seen from outside; outside of `carillon run` all of it
does nothing:

    import carillon
    carillon.step()          # an iteration ended here; from then on nothing else is taken for a boundary
    carillon.remaining(120)  # so many seconds of the device are left, as far as the script knows
"""

from __future__ import annotations

from . import _hooks

__all__ = ["counters", "remaining", "shared", "step"]


def step() -> None:
    """An iteration ended. May hold the script until it is its turn again."""
    _hooks.signal(_hooks.MANUAL, 0)


def remaining(seconds: float) -> None:
    """How much time of the device the script needs from now on; policies such as srtf and best go by it."""
    if seconds < 0:
        raise ValueError(f"remaining time is 0 or more seconds, not {seconds}")
    _hooks.remaining(seconds)


def shared() -> bool:
    """Whether this process is a job of a broker now."""
    return bool((counters() or {}).get("attached"))


def counters() -> dict[str, int] | None:
    """What the preloaded library counted; None without it."""
    return _hooks.counters()
