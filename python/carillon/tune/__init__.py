"""Trials of Ray Tune share this machine's processors between iterations (docs/fluid-ray.md). One line changes:

    TuneConfig(scheduler=carillon.tune.Fluid(ASHAScheduler(...)))
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .fluid import Fluid

__all__ = ["Fluid"]


def __getattr__(name: str) -> object:
    # Ray is imported when Fluid is asked for, so that trials' processes and plain scripts do without.
    if name != "Fluid":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        import ray.tune  # noqa: F401
    except ImportError as error:
        raise ImportError(f"carillon.tune.Fluid needs Ray Tune: pip install 'ray[tune]' ({error})") from error
    from .fluid import Fluid

    return Fluid
