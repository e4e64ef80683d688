"""How much is tried: few cases and short times in the suite, all of them where CARILLON_HOSTS=all."""

from __future__ import annotations

import os

import pytest

ALL = os.environ.get("CARILLON_HOSTS") == "all"


IN_ALL = pytest.mark.skipif(not ALL, reason="one of many cases; CARILLON_HOSTS=all tries it")


def only_in_all(*values):
    """A case of a test, likewise."""
    return pytest.param(*values, marks=IN_ALL)


def seconds(few: float, many: float, name: str) -> float:
    """A time that the environment variable `name` sets, too."""
    return float(os.environ.get(name, many if ALL else few))
