"""The planner of the program (src/carillon/tune): which trials run on which devices, and how wide.

    from carillon.tune.core import Place, Trial, Tuning

    tuning = Tuning("best")
    tuning.device_came(0, now=0.0)
    orders = tuning.group_came(0, [Trial(0, budget=81)], now=0.0)

It has no clock: each event comes with its time, in seconds that never go back. The compiled module lies beside this
file where the package was installed, and in the build where this is a checkout.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
from pathlib import Path

_HERE = Path(__file__).resolve().parent


def _places() -> list[Path]:
    """Where the compiled module may lie."""
    places = [_HERE]
    checkout = _HERE.parents[2]
    if (checkout / "CMakePresets.json").is_file():
        program = os.environ.get("CARILLON_PROGRAM")
        builds = [Path(program).parent] if program else []
        places += [build / "python" for build in [*builds, checkout / "build" / "release"]]
    return places


def _load() -> None:
    """Puts carillon.tune._planner among the modules."""
    name = f"{__package__}._planner"
    if name in sys.modules:
        return
    places = _places()
    for place in places:
        for suffix in importlib.machinery.EXTENSION_SUFFIXES:
            path = place / f"_planner{suffix}"
            if not path.is_file():
                continue
            loader = importlib.machinery.ExtensionFileLoader(name, str(path))
            spec = importlib.util.spec_from_file_location(name, path, loader=loader)
            assert spec is not None
            module = importlib.util.module_from_spec(spec)
            loader.exec_module(module)
            sys.modules[name] = module
            setattr(sys.modules[__package__], "_planner", module)
            return
    compiles = ("`cmake --build --preset release --target carillon_python` compiles it" if len(places) > 1
                else "`pip install .` in a checkout compiles it")
    raise ImportError(f"carillon.tune.core is not compiled for this Python ({sys.implementation.cache_tag}): {compiles} "
                      f"(looked in {', '.join(map(str, places))})", name=__name__)


_load()

from ._planner import (  # noqa: E402
    MOST_DEVICES, MOST_TRIALS, Hold, Measured, Model, Move, Place, Refuse, Release, Resize, Trial, TrialView, Tuning,
    WakeAt, policies, processor_limits)

Order = Place | Resize | Move | Hold | Release | Refuse | WakeAt

__all__ = ["MOST_DEVICES", "MOST_TRIALS", "Hold", "Measured", "Model", "Move", "Order", "Place", "Refuse", "Release",
           "Resize", "Trial", "TrialView", "Tuning", "WakeAt", "policies", "processor_limits"]
