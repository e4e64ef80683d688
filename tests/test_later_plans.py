"""Plans of larger batches: made beside serving where there is memory, and dropped for models that want it."""

from __future__ import annotations

import shutil
import time

import numpy as np
import pytest
import tritonclient.http as http_client

from loopback import serving
from test_memory import ask, figure, write_product

MODELS = 24
EXTENT = 64


@pytest.fixture(scope="module")
def products(tmp_path_factory):
    """Models of eight kernels each."""
    folder = tmp_path_factory.mktemp("products")
    for i in range(MODELS):
        write_product(folder, f"product{i:02}", EXTENT, layers=8)
    return folder


def wait_until(server, is_so, what: str) -> None:
    end = time.monotonic() + 120
    while not is_so():
        assert time.monotonic() < end, f"{what}:\n{server.scrape()}"
        time.sleep(0.05)


def all_made(server) -> bool:
    return figure(server, "carillon_later_plan_models_complete") == figure(server, "carillon_later_plan_models")


def test_answers_are_the_same_before_and_after(program, tiny_models, tmp_path):
    rows = np.random.default_rng(2).standard_normal((16, 64)).astype(np.float32)
    with serving(program, tiny_models, tmp_path / "log") as server:
        assert figure(server, "carillon_later_plan_models") > 0
        alone = [ask(server, "tiny_mlp", row[None], http_client).as_numpy("output") for row in rows]
        together = [ask(server, "tiny_mlp", rows, http_client).as_numpy("output")]
        wait_until(server, lambda: all_made(server), "not all models have their plans")
        together.append(ask(server, "tiny_mlp", rows, http_client).as_numpy("output"))
        for answer in together:
            np.testing.assert_allclose(answer, np.concatenate(alone), rtol=1e-5, atol=1e-6)
        assert figure(server, "carillon_later_plans_dropped_total") == 0
        assert figure(server, "carillon_later_plan_bytes") > 0


def test_all_at_once_where_that_is_asked_for(program, tiny_models, tmp_path):
    with serving(program, tiny_models, tmp_path / "log", "--plans-at-once") as server:
        assert figure(server, "carillon_later_plan_models") == 0
        rows = np.ones((8, 64), np.float32)
        assert ask(server, "tiny_mlp", rows, http_client).as_numpy("output").shape[0] == 8


def settled(server) -> float:
    """How many models have their plans, once no more are made: those that do not fit are tried, too, and refused."""
    wait_until(server, lambda: figure(server, "carillon_later_plan_models_complete") > MODELS / 4, "few models have their plans")
    seen = [-2.0, -1.0]
    while len(set(seen[-4:])) > 1:
        time.sleep(0.5)
        seen.append(figure(server, "carillon_later_plan_models_complete"))
    return seen[-1]


def test_scarce_memory_is_for_those_who_are_asked(program, products, tmp_path):
    """A plan takes 256 KiB: 24 models 6 MiB, and their other plans 24 MiB. Of 232 MiB models have about 26."""
    with serving(program, products, tmp_path / "log", "--memory", "232MiB", page_cache=None) as server:
        assert 0 < settled(server) < MODELS, "some have room, and not all"
        dropped = figure(server, "carillon_later_plans_dropped_total")
        rows = np.random.default_rng(3).standard_normal((8, EXTENT)).astype(np.float32)
        names = [f"product{i:02}" for i in (0, MODELS - 2, MODELS - 1)]  # these were made first and last
        want = {name: ask(server, name, rows, http_client).as_numpy("y7") for name in names}
        # Those that are asked for have their plans in the place of some that are not.
        wait_until(server, lambda: figure(server, "carillon_later_plans_dropped_total") >= dropped + 2, "none made room")
        settled(server)
        for name in names:
            answer = ask(server, name, rows, http_client).as_numpy("y7")
            np.testing.assert_allclose(answer, want[name], rtol=1e-4, atol=1e-3)
        assert figure(server, "carillon_memory_resident_bytes") < figure(server, "carillon_memory_limit_bytes")


def test_a_model_that_is_loaded_takes_their_memory(program, products, tmp_path):
    models = tmp_path / "models"
    shutil.copytree(products, models)
    write_product(models, "large", 1024, layers=4)  # 16 MiB of weights, and at least twice that while it is made
    with serving(program, models, tmp_path / "log", "--memory", "300MiB", "--model-control-mode", "explicit",
                 *(text for i in range(MODELS) for text in ("--load-model", f"product{i:02}")), page_cache=None) as server:
        assert settled(server) > 0
        with http_client.InferenceServerClient(server.http) as client:
            client.load_model("large")
            assert client.is_model_ready("large")
        assert figure(server, "carillon_later_plans_dropped_total") > 0
