"""How threads wait for work, in jobs of `carillon run` and in trials of carillon.tune."""

from __future__ import annotations

import os
from collections.abc import Mapping


def quiet(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Variables to add. Threads of OpenMP otherwise spin while they wait, in another job's or trial's time; libraries
    read these as they are loaded. What is set already stays. The same rule in C++: `carillon run`,
    src/carillon/cli/run.cpp (tests/test_share.py holds them against each other).
    """
    added = {}
    if not environment.get("OMP_WAIT_POLICY") and "GOMP_SPINCOUNT" not in environment:
        added["GOMP_SPINCOUNT"] = "10000"
    if "KMP_BLOCKTIME" not in environment:
        added["KMP_BLOCKTIME"] = "0"
    return added
