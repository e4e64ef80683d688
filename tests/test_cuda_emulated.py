"""The CUDA engine's plans, memory and worker under the whole server, on a device in this process: no GPU."""

from __future__ import annotations

import json
import subprocess

import numpy as np
import pytest
import tritonclient.http as http_client

from loopback import free_addresses, serving

TINY = ("tiny_mlp", "tiny_cnn", "tiny_encoder")
BATCHES = (1, 3, 16)


@pytest.fixture(scope="module")
def server(program, tiny_models, tmp_path_factory):
    with serving(program, tiny_models, tmp_path_factory.mktemp("log") / "server.log", "--device", "cuda-emulated",
                 "--io-cache", "16MiB", "--workspace", "16MiB") as running:
        yield running


def inputs_of(session, batch):
    random = np.random.default_rng(batch)
    made = {}
    for spec in session.get_inputs():
        shape = [batch if not isinstance(n, int) else n for n in spec.shape]
        if spec.type == "tensor(float)":
            made[spec.name] = random.standard_normal(shape, dtype=np.float32)
        elif "mask" in spec.name:
            made[spec.name] = (np.arange(shape[-1]) < random.integers(1, shape[-1] + 1, size=(batch, 1))).astype(np.int64)
        else:
            made[spec.name] = random.integers(0, 50, size=shape).astype(np.int64)
    return made


@pytest.mark.parametrize("name", TINY)
def test_agrees_with_onnxruntime(server, tiny_models, name):
    import onnxruntime
    session = onnxruntime.InferenceSession(str(tiny_models / name / "1" / "model.onnx"), providers=["CPUExecutionProvider"])
    with http_client.InferenceServerClient(server.http) as client:
        for batch in BATCHES:
            given = inputs_of(session, batch)
            inputs = []
            for tensor, array in given.items():
                inputs.append(http_client.InferInput(tensor, array.shape, "FP32" if array.dtype == np.float32 else "INT64"))
                inputs[-1].set_data_from_numpy(array)
            answer = client.infer(name, inputs)
            for spec, want in zip(session.get_outputs(), session.run(None, given)):
                got = answer.as_numpy(spec.name)
                assert got.shape == want.shape
                assert np.max(np.abs(got - want)) <= 1e-4 * max(1e-6, float(np.max(np.abs(want))))


def test_load_is_answered_on_time_and_pages_move(program, tiny_models, tmp_path):
    """One page for three models: each LOAD maps, copies through host memory, and takes another's place."""
    with serving(program, tiny_models, tmp_path / "server.log", "--device", "cuda-emulated", "--io-cache", "16MiB",
                 "--workspace", "16MiB", page_cache="16MiB") as running:
        with http_client.InferenceServerClient(running.http) as client:
            answers = {}
            for turn in range(6):
                for name in ("tiny_mlp", "tiny_cnn"):
                    shape = client.get_model_metadata(name)["inputs"][0]["shape"][1:]
                    tensor = client.get_model_metadata(name)["inputs"][0]["name"]
                    array = np.full([1, *shape], 0.5, np.float32)
                    given = http_client.InferInput(tensor, array.shape, "FP32")
                    given.set_data_from_numpy(array)
                    out = client.get_model_metadata(name)["outputs"][0]["name"]
                    got = client.infer(name, [given]).as_numpy(out)
                    assert np.array_equal(answers.setdefault(name, got), got), f"{name} in turn {turn}"


@pytest.mark.parametrize("devices, says", [
    (["cuda:x"], "'x' is not a number of one"),
    (["cuda-emulate"], "is not a device; there are cpu, emulated:PROFILE, cuda:N, cuda-emulated and cuda-emulated:TABLE"),
])
def test_what_cannot_be_is_named(program, tiny_models, tmp_path, devices, says):
    (http,) = free_addresses(1)
    options = [word for device in devices for word in ("--device", device)]
    run = subprocess.run([str(program), "serve", "--models", str(tiny_models), "--http", http, "--grpc", "", "--metrics", "",
                          "--page-cache", "32MiB", "--io-cache", "16MiB", "--workspace", "16MiB", *options],
                         capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert run.returncode == 2, run.stderr
    assert says in run.stderr


def test_profile_measures_there(program, tiny_models, tmp_path):
    out = tmp_path / "profile.json"
    run = subprocess.run([str(program), "profile", "--models", str(tiny_models), "--only", "tiny_mlp", "--device", "cuda-emulated",
                          "--page-cache", "32MiB", "--io-cache", "16MiB", "--workspace", "16MiB", "--repeats", "3", "--out",
                          str(out)], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    (model,) = json.loads(out.read_text())["models"]
    assert model["name"] == "tiny_mlp" and all(row["p50_ms"] > 0 for row in model["batches"]) and len(model["batches"]) > 2
