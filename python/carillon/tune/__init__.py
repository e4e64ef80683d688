"""Trials over this host's devices (docs/fluid.md): of plain scripts, of Ray Tune, of Optuna and of Syne Tune.

    TuneConfig(scheduler=carillon.tune.Fluid(ASHAScheduler(...)))   # Ray Tune, one line: docs/fluid-ray.md
    with carillon.tune.TrialGroup() as group: ...                   # plain scripts: docs/fluid-scripts.md
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._groups import new_group
from ._process import Stopped, checkpoint, report, step, threads

if TYPE_CHECKING:
    from .fluid import Fluid
    from .group import GroupTrial, TrialGroup

__all__ = ["Fluid", "GroupTrial", "Stopped", "TrialGroup", "checkpoint", "new_group", "report", "step", "threads"]


def __getattr__(name: str) -> object:
    # Ray, and the compiled planner, are imported when they are asked for, so that trials' processes do without.
    if name in ("GroupTrial", "TrialGroup"):
        from . import group

        return getattr(group, name)
    if name != "Fluid":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        import ray.tune  # noqa: F401
    except ImportError as error:
        raise ImportError(f"carillon.tune.Fluid needs Ray Tune: pip install 'ray[tune]' ({error})") from error
    from .fluid import Fluid

    return Fluid
