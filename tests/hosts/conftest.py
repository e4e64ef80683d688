from __future__ import annotations

import pytest

from cluster_processes import start  # noqa: F401 (fixture)

from .box import Box
from .network import Hosts, missing


@pytest.fixture(scope="session")
def can_have_hosts() -> None:
    if why := missing():
        pytest.skip(why)


@pytest.fixture
def net(can_have_hosts):
    with Hosts() as made:
        yield made


@pytest.fixture
def box(net, start, program, tiny_models, tmp_path) -> Box:  # noqa: F811
    """A cluster without processes yet: Box.start_all() starts them."""
    return Box(net, start, program, tiny_models, tmp_path)


@pytest.fixture(params=["etcd", "kubernetes"])
def each_box(box, request) -> Box:
    """The same, with each kind of coordinator in turn."""
    box.on_kubernetes = request.param == "kubernetes"
    return box
