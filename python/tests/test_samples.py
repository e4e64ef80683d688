"""The sample models: what is written, that it is the same each time, and that it computes what it should."""

from __future__ import annotations

import functools
import importlib.util
import os

import numpy as np
import onnx
import onnx.reference
import onnxruntime
import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from carillon_samples.__main__ import main
from carillon_samples.catalogue import DYNAMIC, MAX_BATCH, SAMPLES, TINY, choose
from carillon_samples.repository import model_file

needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None,
    reason="torch is not installed: run tools/setup --with-samples (or ./test --with-samples)")


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    root = tmp_path_factory.mktemp("samples")
    assert main(["--out", str(root), "--models", "tiny", "--bf16"]) == 0
    return root


def relative_error(got: np.ndarray, want: np.ndarray) -> float:
    assert got.shape == want.shape
    return float(np.abs(got - want).max() / np.abs(want).max())


def run(path, sample, batch: int, seed: int = 3) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    feeds = {tensor.name: array for tensor, array in zip(sample.inputs, sample.example_inputs(batch, seed))}
    return session.run(None, feeds)


@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize("batch", [1, 2, 7, 16])
def test_tiny_models_compute_what_the_specification_says(repository, name, batch):
    """onnx's own evaluator, which is written in numpy, is the oracle."""
    sample = SAMPLES[name]
    path = model_file(repository, name)
    feeds = {tensor.name: array for tensor, array in zip(sample.inputs, sample.example_inputs(batch, 3))}
    want = onnx.reference.ReferenceEvaluator(str(path)).run(None, feeds)
    got = run(path, sample, batch)
    assert relative_error(got[0], want[0]) < 1e-5
    assert got[0].shape == (batch, *sample.outputs[0].dims)


@pytest.mark.parametrize("name", TINY)
def test_answers_differ_between_inputs(repository, name):
    """A model that answers everything alike could not show rows that were mixed up."""
    answers = run(model_file(repository, name), SAMPLES[name], 16)[0]
    for row in range(1, 16):
        assert relative_error(answers[row], answers[0]) > 1e-2


def test_the_mask_matters(repository):
    sample = SAMPLES["tiny_encoder"]
    session = onnxruntime.InferenceSession(model_file(repository, "tiny_encoder"), providers=["CPUExecutionProvider"])
    ids, _ = sample.example_inputs(1, 3)
    all_seen = np.ones((1, 16), np.int64)
    half_seen = all_seen.copy()
    half_seen[:, 8:] = 0
    other_ids = ids.copy()
    other_ids[:, 8:] = (other_ids[:, 8:] + 1) % 100

    def answer(tokens, mask):
        return session.run(None, {"input_ids": tokens, "attention_mask": mask})[0][:, :8]

    assert relative_error(answer(other_ids, all_seen), answer(ids, all_seen)) > 1e-2
    assert relative_error(answer(other_ids, half_seen), answer(ids, half_seen)) < 1e-6


@pytest.mark.parametrize("name", TINY)
def test_config_and_model_agree(repository, name):
    for folder, precision in ((name, None), (f"{name}_bf16", "bf16")):
        config = text_format.Parse((repository / folder / "config.pbtxt").read_text(), model_config_pb2.ModelConfig())
        model = onnx.load(model_file(repository, folder))
        assert config.name == folder
        assert config.max_batch_size == MAX_BATCH
        assert config.HasField("dynamic_batching")
        assert int(config.parameters["slo_ms"].string_value) == SAMPLES[name].slo_ms
        assert (config.parameters["precision"].string_value if "precision" in config.parameters else None) == precision
        assert model.opset_import[0].version == 17
        for described, values in ((config.input, model.graph.input), (config.output, model.graph.output)):
            assert [tensor.name for tensor in described] == [value.name for value in values]
            for tensor, value in zip(described, values):
                first, *rest = value.type.tensor_type.shape.dim
                assert first.dim_param == "batch"
                assert list(tensor.dims) == [dim.dim_value for dim in rest]


def test_bf16_variant_is_the_same_file(repository):
    assert model_file(repository, "tiny_mlp_bf16").samefile(model_file(repository, "tiny_mlp"))


def test_same_seed_same_bytes(repository, tmp_path):
    assert main(["--out", str(tmp_path), "--models", "tiny"]) == 0
    for name in TINY:
        assert model_file(tmp_path, name).read_bytes() == model_file(repository, name).read_bytes()
    other = tmp_path / "other"
    assert main(["--out", str(other), "--models", "tiny", "--seed", "2"]) == 0
    for name in TINY:
        assert model_file(other, name).read_bytes() != model_file(repository, name).read_bytes()


def test_copies_have_weights_of_their_own(tmp_path):
    assert main(["--out", str(tmp_path), "--models", "tiny_mlp", "--copies", "3"]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tiny_mlp_0000", "tiny_mlp_0001", "tiny_mlp_0002"]
    assert len({path.read_bytes() for path in tmp_path.glob("*/1/model.onnx")}) == 3


def test_what_is_complete_is_kept_and_the_rest_is_mended(tmp_path, capsys):
    assert main(["--out", str(tmp_path), "--models", "tiny"]) == 0
    kept = model_file(tmp_path, "tiny_mlp")
    before = kept.stat().st_mtime_ns
    (tmp_path / "tiny_cnn" / "config.pbtxt").unlink()
    model_file(tmp_path, "tiny_encoder").write_bytes(b"")
    assert main(["--out", str(tmp_path), "--models", "tiny"]) == 0
    assert kept.stat().st_mtime_ns == before
    assert (tmp_path / "tiny_cnn" / "config.pbtxt").stat().st_size > 0
    assert model_file(tmp_path, "tiny_encoder").stat().st_size > 0
    assert not list(tmp_path.glob(".*"))
    assert "tiny_mlp: is there" in capsys.readouterr().err


@pytest.mark.parametrize("arguments, words", [
    (["--models", "resnet19"], "no sample model 'resnet19'"),
    (["--models", ","], "no model is named"),
    (["--models", "resnet18", "--copies", "2"], "tiny models only"),
    (["--models", "tiny", "--copies", "0"], "must be 1 to 10000"),
])
def test_bad_arguments_are_told(tmp_path, capsys, arguments, words):
    with pytest.raises(SystemExit) as stop:
        main(["--out", str(tmp_path / "out"), *arguments])
    assert stop.value.code == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_written_is_told(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["--out", str(tmp_path / "file"), "--models", "tiny_mlp"]) == 1
    assert "cannot write the repository" in capsys.readouterr().err


def test_choose_keeps_order_and_drops_repeats():
    assert [sample.name for sample in choose("tiny_cnn,tiny,vgg16")] == ["tiny_cnn", "tiny_mlp", "tiny_encoder", "vgg16"]
    assert [sample.name for sample in choose("all,dynamic,disb")] == list(SAMPLES)
    assert not {sample.name for sample in choose("all")} & {*DYNAMIC, "resnet152", "vgg19"}
    assert len(choose("disb")) == 5


# The exports that every run tries; the others take minutes, and `./test --with-samples` tries them.
SMALL_EXPORTS = ("resnet18", "mobilenetv2", "distilbert")


@functools.cache
def exported(name: str) -> bytes:
    """Of seed 1, kept: an export takes seconds."""
    from carillon_samples.torch_export import export

    return export(SAMPLES[name], seed=1)


@needs_torch
@pytest.mark.parametrize("name", [name for name, sample in SAMPLES.items() if sample.needs_torch])
def test_export_computes_what_torch_does(name):
    if name not in SMALL_EXPORTS and os.environ.get("CARILLON_TEST_EXPORTS") != "all":
        pytest.skip("a large model: CARILLON_TEST_EXPORTS=all, or ./test --with-samples")
    import torch

    from carillon_samples.torch_export import build_module, export

    sample = SAMPLES[name]
    model = exported(name) if name in SMALL_EXPORTS else export(sample, seed=1)
    inputs = sample.example_inputs(3, 5)  # another batch than the export's example
    with torch.no_grad():
        want = build_module(sample, seed=1)(*map(torch.from_numpy, inputs)).numpy()
    got = run(model, sample, 3, seed=5)[0]
    assert got.shape == (3, *sample.outputs[0].dims)
    assert relative_error(got, want) < 1e-4
    # Numbers that a float16-like exponent would lose, or that are all alike, would make poor tests.
    assert np.isfinite(want).all() and 0.1 < want.std() < 100
    assert relative_error(want[1], want[0]) > 1e-3


@needs_torch
def test_batch_norm_is_left_for_the_server_to_fold():
    graph = onnx.load_from_string(exported("resnet18")).graph
    assert sum(node.op_type == "BatchNormalization" for node in graph.node) == 20


@needs_torch
def test_export_is_the_same_each_time():
    from carillon_samples.torch_export import export

    assert export(SAMPLES["mobilenetv2"], seed=1) == exported("mobilenetv2")
