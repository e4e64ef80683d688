"""Models whose time depends on the input, served: lengths, padding and masks, and what is learned in idle time."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time

import numpy as np
import onnxruntime
import pytest
import tritonclient.http as http_client
from tritonclient.utils import InferenceServerException

from loopback import make_samples, serving

MODEL = "varlen_encoder"
LENGTHS = [16, 32, 64, 128, 256]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """The encoder as it is; and one that must not be padded, with two lengths."""
    folder = make_samples(tmp_path_factory.mktemp("dynamic"), MODEL)
    exact = folder / "exact_encoder"
    exact.mkdir()
    (exact / "1").symlink_to(folder / MODEL / "1", target_is_directory=True)
    config = (folder / MODEL / "config.pbtxt").read_text().replace(MODEL, "exact_encoder")
    config = config.replace('"16,32,64,128,256"', '"8,24"').replace('"zero"', '"none"')
    (exact / "config.pbtxt").write_text(config)
    return folder


@pytest.fixture(scope="module", params=["orloj", "clockwork"])
def server(request, program, models, tmp_path_factory):
    log = tmp_path_factory.mktemp("log") / "server.log"
    with serving(program, models, log, "--scheduler", request.param, "--profile-share", "1") as running:
        running.scheduler = request.param
        yield running


@pytest.fixture(scope="module")
def reference(models):
    return onnxruntime.InferenceSession(str(models / MODEL / "1" / "model.onnx"), providers=["CPUExecutionProvider"])


def tokens(rows: int, length: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1000 * rows + length)
    return {"input_ids": rng.integers(0, 1000, [rows, length], dtype=np.int64)}


def inputs_of(module, values: dict[str, np.ndarray]):
    made = []
    for name, value in values.items():
        made.append(module.InferInput(name, value.shape, "INT64"))
        made[-1].set_data_from_numpy(value)
    return made


def expect_same(answer, want: dict[str, np.ndarray]):
    for name, value in want.items():
        got = answer.as_numpy(name)
        assert got.shape == value.shape, name
        np.testing.assert_allclose(got, value, atol=1e-4 * np.abs(value).max(), err_msg=name)


def want_of(reference, values):
    if "attention_mask" not in values:
        values = {**values, "attention_mask": np.ones_like(values["input_ids"])}
    return dict(zip(["scores", "tokens"], reference.run(["scores", "tokens"], values)))


def test_metadata_leaves_the_length_open(server):
    with http_client.InferenceServerClient(server.http) as client:
        metadata = client.get_model_metadata(MODEL)
        assert [i["shape"] for i in metadata["inputs"]] == [[-1, -1], [-1, -1]]
        assert [o["shape"] for o in metadata["outputs"]] == [[-1, 8], [-1, -1, 32]]
        config = client.get_model_config(MODEL)
        assert config["input"][0]["dims"] == [-1]
        assert config["output"][1]["dims"] == [-1, 32]


@pytest.mark.parametrize("length", [1, 5, 16, 17, 100, 255, 256])
def test_every_length_is_answered_as_if_alone(client, module, reference, length):
    for rows in (1, 3, 8):
        values = tokens(rows, length)
        expect_same(client.infer(MODEL, inputs_of(module, values)), want_of(reference, values))


def test_the_clients_own_mask_is_heeded(client, module, reference):
    values = tokens(2, 20)
    values["attention_mask"] = np.ones([2, 20], np.int64)
    values["attention_mask"][0, 7:] = 0
    expect_same(client.infer(MODEL, inputs_of(module, values)), want_of(reference, values))


def test_requests_of_different_lengths_at_once(module, server, reference):
    """Batched together, padded to the longest of them, each gets its own answer."""
    if module is not http_client:
        pytest.skip("async_infer of the HTTP client is enough")
    with http_client.InferenceServerClient(server.http, concurrency=32) as client:
        for model, lengths in ((MODEL, [3, 16, 40, 7, 100, 64, 9, 31] * 4), ("exact_encoder", [8, 24, 24, 8] * 8)):
            values = [tokens(1, length) for length in lengths]
            waiting = [client.async_infer(model, inputs_of(http_client, v)) for v in values]
            for v, answer in zip(values, waiting):
                expect_same(answer.get_result(), want_of(reference, v))


@pytest.mark.parametrize("model, shape, says", [
    (MODEL, [1, 257], "1 to 256 in place of the other"),
    (MODEL, [9, 4], "1 to 8 in place of the first -1"),
    ("exact_encoder", [1, 16], "8 or 24 in place of the other"),
])
def test_lengths_without_a_plan_are_refused(client, module, model, shape, says):
    values = {"input_ids": np.zeros(shape, np.int64)}
    with pytest.raises(InferenceServerException, match=re.escape(says)):
        client.infer(model, inputs_of(module, values))


def test_finished_requests_are_profiled_in_idle_time(server):
    def profiled() -> float:
        found = re.search(rf'^carillon_profiled_total{{model="{MODEL}",version="1"}} (\d+)', server.scrape(), re.MULTILINE)
        return float(found.group(1))

    before = profiled()
    with http_client.InferenceServerClient(server.http) as client:
        for length in (4, 100):
            client.infer(MODEL, inputs_of(http_client, tokens(1, length)), parameters={"application": f"app{length}"})
    if server.scheduler != "orloj":  # which alone learns from it
        assert profiled() == 0
        return
    limit = time.monotonic() + 60
    while profiled() < before + 2:
        assert time.monotonic() < limit, "two finished requests, a server at rest, and no profile"
        time.sleep(0.05)


def test_load_with_lengths_and_applications(server):
    run = subprocess.run(
        [str(server.program), "load", f"http://{server.http}", "--model", f"{MODEL},app=chat,length=4-32,rate=40",
         "--model", f"{MODEL},app=mail,length=200,rate=5", "--deadline", "60000", "--duration", "1", "--json"],
        capture_output=True, text=True, timeout=120, check=True)
    told = json.loads(run.stdout)
    assert [m["name"] for m in told["models"]] == [f"{MODEL}/chat", f"{MODEL}/mail"]
    assert told["failed"] == told["unanswered"] == 0 and told["on_time"] == told["sent"] > 20

    run = subprocess.run([str(server.program), "load", f"http://{server.http}", "--model", MODEL],
                         capture_output=True, text=True, timeout=120)
    assert run.returncode == 1 and "varies in length; say which to send with --length L or A-B" in run.stderr
    run = subprocess.run([str(server.program), "load", f"http://{server.http}", "--model", f"{MODEL},length=9-3"],
                         capture_output=True, text=True, timeout=120)
    assert run.returncode == 2 and "length '9-3' is not understood" in run.stderr


def test_profile_by_length(program, models, tmp_path):
    out = tmp_path / "profile.json"
    subprocess.run([str(program), "profile", "--models", str(models), "--only", MODEL, "--repeats", "2",
                    "--out", str(out)], check=True, capture_output=True, timeout=300)
    model = json.loads(out.read_text())["models"][0]
    assert [entry["length"] for entry in model["lengths"]] == LENGTHS
    assert all([b["batch"] for b in entry["batches"]] == [1, 2, 4, 8] for entry in model["lengths"])
    assert model["batches"] == model["lengths"][2]["batches"]
    # And a server that is given it measures nothing, on an emulated device too.
    log = tmp_path / "server.log"
    repository = tmp_path / "models"
    shutil.copytree(models / MODEL, repository / MODEL)
    with serving(program, repository, log, "--device", f"emulated:{out}", "--profile", str(out)) as running:
        with http_client.InferenceServerClient(running.http) as client:
            answer = client.infer(MODEL, inputs_of(http_client, tokens(2, 50)))
            assert answer.as_numpy("tokens").shape == (2, 50, 32)
    assert "measuring" not in log.read_text()


def test_models_that_cannot_vary_so_are_told_of(program, models, tmp_path):
    repository = tmp_path / "models"
    rows = {"no_lengths": (None, "needs parameter lengths, which says to which extents requests are padded"),
            "bad_mask": ("nobody", "parameter mask is 'nobody', but the model's inputs are")}
    for name, (value, _) in rows.items():
        (repository / name).mkdir(parents=True)
        (repository / name / "1").mkdir()
        (repository / name / "1" / "model.onnx").write_bytes((models / MODEL / "1" / "model.onnx").read_bytes())
        config = (models / MODEL / "config.pbtxt").read_text().replace(MODEL, name)
        if value is None:
            config = re.sub(r'parameters \{\s*key: "lengths"[^}]*\}\s*\}', "", config)
            assert "\"lengths\"" not in config and "padding" in config
        else:
            config = config.replace('"attention_mask" }', f'"{value}" }}')
        (repository / name / "config.pbtxt").write_text(config)
    log = tmp_path / "server.log"
    with serving(program, repository, log, "--strict-readiness", "false"):
        pass
    for name, (_, says) in rows.items():
        assert says in log.read_text(), name
