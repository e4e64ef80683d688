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


def test_scarce_memory_is_for_those_who_are_asked(program, products, tmp_path):
    """Each takes a few hundred KiB for its one plan, and four times that for the others: not all have room."""
    with serving(program, products, tmp_path / "log", "--memory", "232MiB", page_cache=None) as server:
        wait_until(server, lambda: figure(server, "carillon_later_plans_made_total") > 0, "no model has its plans")
        made = -1.0
        while made != (made := figure(server, "carillon_later_plans_made_total")):
            time.sleep(1)
        assert 0 < made < MODELS, "some have room, and not all"
        rows = np.random.default_rng(3).standard_normal((8, EXTENT)).astype(np.float32)
        want = {}
        for i in range(MODELS):
            answer = ask(server, f"product{i:02}", rows, http_client).as_numpy("y7")
            want[i] = answer
        # Asked for, the last have their plans in the place of others.
        wait_until(server, lambda: figure(server, "carillon_later_plans_made_total") > made, "none of these has its plans")
        assert figure(server, "carillon_later_plans_dropped_total") > 0
        for i in range(MODELS):
            answer = ask(server, f"product{i:02}", rows, http_client).as_numpy("y7")
            np.testing.assert_allclose(answer, want[i], rtol=1e-4, atol=1e-3)
        assert figure(server, "carillon_memory_resident_bytes") < figure(server, "carillon_memory_limit_bytes")


def test_a_model_that_is_loaded_takes_their_memory(program, products, tmp_path):
    models = tmp_path / "models"
    shutil.copytree(products, models)
    write_product(models, "large", 1024, layers=4)
    with serving(program, models, tmp_path / "log", "--memory", "256MiB", "--model-control-mode", "explicit",
                 *(text for i in range(MODELS) for text in ("--load-model", f"product{i:02}")), page_cache=None) as server:
        wait_until(server, lambda: all_made(server), "not all models have their plans")
        with http_client.InferenceServerClient(server.http) as client:
            client.load_model("large")
            assert client.is_model_ready("large")
        assert figure(server, "carillon_later_plans_dropped_total") > 0
