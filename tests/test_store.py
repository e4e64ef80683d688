"""Packed weights are kept on the disk, and a small server takes little memory (docs/operations.md, "The store")."""

from __future__ import annotations

import re
import subprocess

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from loopback import free_addresses, rss_of, serving, write_model

import tritonclient.http as http_client
from tritonclient.utils import InferenceServerException

MODELS, WIDTH = 12, 1024  # each of 4 MiB and a page of 512 KiB: the cache below holds three at a time


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """Products with a matrix each: entry [0, 0] of model i is i."""
    folder = tmp_path_factory.mktemp("many")
    for index in range(MODELS):
        weights = np.zeros((WIDTH, WIDTH), np.float32)
        weights[0, 0] = index
        weights[1:, 1:] = np.random.default_rng(index).random((WIDTH - 1, WIDTH - 1), np.float32)
        write_model(folder, f"m{index}", [onnx.helper.make_node("MatMul", ["x", "w"], ["y"])],
                    [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", WIDTH])],
                    onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["n", WIDTH]),
                    [numpy_helper.from_array(weights, "w")])
    return folder


def first_of(address, index):
    x = http_client.InferInput("x", [1, WIDTH], "FP32")
    data = np.zeros((1, WIDTH), np.float32)
    data[0, 0] = 1
    x.set_data_from_numpy(data)
    with http_client.InferenceServerClient(address) as client:
        return client.infer(f"m{index}", [x]).as_numpy("y")[0, 0]


def weights_in(store):
    return sorted((store / "weights").glob("*.weights"))


def ask_all(running):
    for _ in range(2):
        for index in range(MODELS):
            assert first_of(running.http, index) == index


def test_more_models_than_memory_are_read_from_the_store(program, many, tmp_path):
    store = tmp_path / "store"
    with serving(program, many, tmp_path / "log", "--store", str(store), page_cache="16 MiB") as running:
        files = weights_in(store)
        assert len(files) == MODELS
        ask_all(running)
        with_store = rss_of(running.process.pid)
        # They may go at any time.
        for file in files:
            file.unlink()
        ask_all(running)
    # The next server writes them again, and one after it uses them.
    with serving(program, many, tmp_path / "log", "--store", str(store), page_cache="16 MiB") as running:
        assert weights_in(store) == files
        ask_all(running)
    written = [file.stat().st_ino for file in files]
    with serving(program, many, tmp_path / "log", "--store", str(store), page_cache="16 MiB") as running:
        ask_all(running)
    assert [file.stat().st_ino for file in files] == written
    with serving(program, many, tmp_path / "log", "--no-store", page_cache="16 MiB") as running:
        ask_all(running)
        without = rss_of(running.process.pid)
    # Packed weights, 4 MiB each, lie in the one and not in the other.
    assert without - with_store > 0.8 * MODELS * 4 * 2**20


def test_a_second_start_uses_the_times_of_the_first(program, many, tmp_path):
    """They are kept with the weights, for the same files, plans and threads."""
    store, notes = tmp_path / "store", {}

    def start(*options):
        with serving(program, many, tmp_path / "log", "--store", str(store), *options, page_cache="16 MiB") as running:
            ask_all(running)
        before = dict(notes)
        notes.clear()
        notes.update((file.name, file.stat().st_ino) for file in (store / "weights").glob("*.note"))
        return before

    start()
    assert len(notes) == MODELS
    assert start() == notes, "each measurement would make a file anew"
    before = start("--threads", "3")
    assert len(notes) == 2 * MODELS and before.items() <= notes.items()
    # What is damaged is measured again.
    for file in (store / "weights").glob("*.note"):
        file.write_bytes(b"damage")
    damaged = {file.name: file.read_bytes() for file in (store / "weights").glob("*.note")}
    start("--threads", "3")
    mended = [name for name in damaged if (store / "weights" / name).read_bytes() != b"damage"]
    assert len(mended) == MODELS


def test_two_servers_share_a_store(program, many, tmp_path):
    store = ("--store", str(tmp_path / "store"))
    with serving(program, many, tmp_path / "log1", *store, page_cache="16 MiB") as one, \
            serving(program, many, tmp_path / "log2", *store, page_cache="16 MiB") as other:
        assert len(weights_in(tmp_path / "store")) == MODELS
        ask_all(one)
        ask_all(other)


def test_a_damaged_file_is_no_answer(program, many, tmp_path):
    store = tmp_path / "store"
    with serving(program, many, tmp_path / "log", "--store", str(store), page_cache="16 MiB") as running:
        for file in weights_in(store):
            with file.open("r+b") as out:
                out.write(b"damage")
        refused = set()
        for index in range(MODELS):
            try:
                assert first_of(running.http, index) == index, "of a model that is loaded already"
            except InferenceServerException:
                refused.add(f"m{index}")
        assert len(refused) >= MODELS - 3, "no more than three are loaded"
        with http_client.InferenceServerClient(running.http) as client:
            for each in client.get_model_repository_index():
                if each["name"] in refused:
                    assert each["state"] == "UNAVAILABLE" and "is damaged" in each["reason"], each
    with serving(program, many, tmp_path / "log", "--store", str(store), page_cache="16 MiB") as running:
        ask_all(running)


def test_a_full_store_is_told_once(program, many, tmp_path):
    log = tmp_path / "log"
    options = ("--store", str(tmp_path / "store"), "--store-limit", "9MiB")
    with serving(program, many, log, *options, page_cache="16 MiB") as running:
        assert len(weights_in(tmp_path / "store")) == 2
        ask_all(running)
    assert len(re.findall("weights stay in memory, as the store does not take them", log.read_text())) == 1


@pytest.mark.parametrize("options, why", [
    (["--store", "/dev/null"], "/dev/null: is not a directory"),
    (["--store-limit", "much"], "--store-limit"),
    (["--store", "x", "--no-store"], "--store excludes --no-store"),
])
def test_what_is_wrong_is_said(program, options, why, tmp_path):
    http, = free_addresses(1)
    said = subprocess.run([str(program), "serve", "--models", str(tmp_path), "--http", http, "--grpc", "", "--metrics", "",
                           *options], capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert said.returncode == 2
    assert why in said.stderr


def test_the_log_has_steps_of_models_at_debug_alone(program, tiny_models, tmp_path):
    log = tmp_path / "log"
    for level, steps in (("info", False), ("debug", True)):
        with serving(program, tiny_models, log, "--log-level", level):
            pass
        assert ("compiling" in log.read_text()) == steps
        assert "ready: " in log.read_text()


def test_a_small_model_takes_little_memory(program, tiny_models, tmp_path):
    models = tmp_path / "models"
    models.mkdir()
    (models / "tiny_mlp").symlink_to(tiny_models / "tiny_mlp")
    with serving(program, models, tmp_path / "log", "--follow-links", page_cache="2 GiB") as running:
        with http_client.InferenceServerClient(running.http) as client:
            x = http_client.InferInput("input", [1, 64], "FP32")
            x.set_data_from_numpy(np.zeros((1, 64), np.float32))
            client.infer("tiny_mlp", [x])
        assert rss_of(running.process.pid) < 150 * 2**20
