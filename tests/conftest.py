"""A real server on loopback for the tests of this folder.

The program is $CARILLON_PROGRAM, else build/release/carillon. The sample models are made anew for each run.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from loopback import ROOT, make_samples, serving


@pytest.fixture(scope="session")
def program() -> Path:
    found = Path(os.environ.get("CARILLON_PROGRAM", ROOT / "build" / "release" / "carillon"))
    if not found.is_file():
        pytest.fail(f"no program at {found}: build it, or name it in CARILLON_PROGRAM", pytrace=False)
    return found


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory) -> Path:
    return make_samples(tmp_path_factory.mktemp("models"), "tiny")


@pytest.fixture(scope="session")
def server(program, tiny_models, tmp_path_factory):
    with serving(program, tiny_models, tmp_path_factory.mktemp("log") / "server.log") as running:
        yield running
