"""A real server on loopback for the tests of this folder.

The program is $CARILLON_PROGRAM, else build/release/carillon. The sample models are made anew for each run.
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client

from loopback import ROOT, make_samples, serving

# Where a shell started this in the background SIGINT is ignored, and so it would be by all that tests start.
with contextlib.suppress(ValueError):  # not in the main thread
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Files that take longest, begun first (with --no-loadscope-reorder, where several run at a time): none is left to run
# alone at the end.
LONGEST = ("test_share_client", "test_random_graphs", "test_devices", "test_train", "test_classes", "test_security",
           "test_samples", "test_disb", "test_soak", "test_share_cuda", "test_ends", "test_etcd")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items) -> None:
    rank = {name: i for i, name in enumerate(LONGEST)}
    items.sort(key=lambda item: rank.get(item.path.stem, len(rank)))


@pytest.fixture(scope="session", autouse=True)
def store(tmp_path_factory) -> Path:
    """Servers keep packed weights here, and not among the user's."""
    home = tmp_path_factory.mktemp("cache")
    os.environ["XDG_CACHE_HOME"] = str(home)
    return home / "carillon"


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


# Of each protocol: tritonclient's module, and a client of whatever `server` the test's file has.
@pytest.fixture(params=["http", "grpc"])
def module(request):
    return http_client if request.param == "http" else grpc_client


@pytest.fixture
def client(module, server):
    with module.InferenceServerClient(server.http if module is http_client else server.grpc) as connected:
        yield connected
