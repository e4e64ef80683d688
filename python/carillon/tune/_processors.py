"""How many devices a study has where nobody says: the processors that this process may use, a container's quota counted."""

from __future__ import annotations

import math
from dataclasses import dataclass

from . import core


@dataclass(frozen=True)
class Processors:
    """`count` devices, of each of which `supply` is there. A quota of 1.5 processors is two of 0.75: their threads run
    at once until the quota of a period is spent, and then none does. (One whole and one half would say that a trial is
    faster on the one, which is not so.) A trial that is alone on one of them gets more than its supply says."""

    count: int
    supply: float


def usable(root: str = "/", allowed: int = 0) -> Processors:
    """The processors of the process's set, or its quota rounded up where that is less. (The arguments: for tests.)"""
    return shared_by(*core.processor_limits(root, allowed))


def shared_by(count: int, quota: float | None) -> Processors:
    """`count` processors under the quota: no more than it can keep busy."""
    if quota is None or quota >= count:
        return Processors(count, 1.0)
    count = max(1, min(count, math.ceil(quota - 1e-6)))
    return Processors(count, min(1.0, quota / count))


def under_quota(count: int) -> Processors:
    """`count`, as somebody else counted them: under the quota of this process."""
    return shared_by(count, core.processor_limits()[1])
