"""The sample models whose time depends on what a request holds: a sequence's length, an image's difficulty."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.reference
import onnxruntime
import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from carillon_samples.__main__ import main
from carillon_samples.catalogue import DYNAMIC, LENGTHS, SAMPLES
from carillon_samples.early_exit_cnn import THRESHOLD, images
from carillon_samples.repository import model_file

BATCHES = [1, 3, 8]


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    root = tmp_path_factory.mktemp("dynamic")
    assert main(["--out", str(root), "--models", "dynamic"]) == 0
    return root


@pytest.fixture(scope="module")
def encoder(repository):
    return answers_of(model_file(repository, "varlen_encoder"))


@pytest.fixture(scope="module")
def early_exit(repository):
    return answers_of(model_file(repository, "early_exit_cnn"))


def answers_of(model):
    """What onnxruntime answers to the inputs of the model at `model`, a path or bytes."""
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    return lambda *arrays: session.run(None, dict(zip(names, arrays, strict=True)))


def close(got: np.ndarray, want: np.ndarray, limit: float = 1e-4) -> bool:
    """Whether they differ by at most `limit` of the largest wanted value."""
    assert got.shape == want.shape and got.dtype == want.dtype
    assert np.isfinite(got).all() and np.isfinite(want).all()
    return np.abs(got - want).max() <= limit * np.abs(want).max()


@pytest.mark.parametrize("name", DYNAMIC)
def test_the_file_is_valid_and_of_open_shape(repository, name):
    path = model_file(repository, name)
    onnx.checker.check_model(path, full_check=True)
    model = onnx.load(path)
    assert model.opset_import[0].version == 17
    assert path.stat().st_size < 1e7
    sample = SAMPLES[name]
    for tensors, values in ((sample.inputs, model.graph.input), (sample.outputs, model.graph.output)):
        assert [tensor.name for tensor in tensors] == [value.name for value in values]
        for tensor, value in zip(tensors, values):
            dims = [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
            assert dims == ["batch", *("seq" if dim == -1 else dim for dim in tensor.dims)]


@pytest.mark.parametrize("name", DYNAMIC)
def test_the_same_seed_gives_the_same_bytes(repository, name, tmp_path):
    assert main(["--out", str(tmp_path), "--models", name]) == 0
    assert model_file(tmp_path, name).read_bytes() == model_file(repository, name).read_bytes()


def config_of(repository, name):
    return text_format.Parse((repository / name / "config.pbtxt").read_text(), model_config_pb2.ModelConfig())


def test_the_encoders_config_says_where_plans_are_made(repository):
    config = config_of(repository, "varlen_encoder")
    assert config.max_batch_size == 8
    assert {tensor.name: list(tensor.dims) for tensor in config.input} == {"input_ids": [-1], "attention_mask": [-1]}
    assert {tensor.name: list(tensor.dims) for tensor in config.output} == {"scores": [8], "tokens": [-1, 32]}
    assert {key: value.string_value for key, value in config.parameters.items()} == {
        "lengths": "16,32,64,128,256", "padding": "zero", "mask": "attention_mask"}


def test_the_early_exits_config_leaves_its_outputs_to_the_file(repository):
    config = config_of(repository, "early_exit_cnn")
    assert config.max_batch_size == 8
    assert [(tensor.name, list(tensor.dims)) for tensor in config.input] == [("input", [3, 32, 32])]
    assert not config.output and not config.parameters


@pytest.mark.parametrize("name", DYNAMIC)
@pytest.mark.parametrize("seed", [3, 4])  # of the images, these leave late and early
@pytest.mark.parametrize("batch", BATCHES)
def test_they_compute_what_the_specification_says(repository, name, seed, batch):
    """onnx's own evaluator, which is written in numpy, is the oracle."""
    path = model_file(repository, name)
    sample = SAMPLES[name]
    inputs = sample.example_inputs(batch, seed, length=19)
    got = answers_of(path)(*inputs)
    want = onnx.reference.ReferenceEvaluator(str(path)).run(
        None, {tensor.name: array for tensor, array in zip(sample.inputs, inputs)})
    for tensor, ours, theirs in zip(sample.outputs, got, want, strict=True):
        assert ours.shape == tensor.shape(batch, length=19)
        assert close(ours, theirs)


@pytest.mark.parametrize("length", [1, 15, *LENGTHS, 512])
@pytest.mark.parametrize("batch", BATCHES)
def test_the_encoder_takes_any_batch_and_length(encoder, batch, length):
    inputs = SAMPLES["varlen_encoder"].example_inputs(batch, 5, length)
    scores, tokens = encoder(*inputs)
    assert scores.shape == (batch, 8) and tokens.shape == (batch, length, 32)
    assert np.isfinite(scores).all() and np.isfinite(tokens).all()
    assert 0.1 < tokens.std() < 10
    for row in range(1, batch):
        assert not close(scores[row], scores[0], 1e-2)


def test_an_example_of_unsaid_length_is_seeded():
    sample = SAMPLES["varlen_encoder"]
    lengths = [sample.example_inputs(1, seed)[0].shape[1] for seed in range(20)]
    assert len(set(lengths)) > 10 and 1 <= min(lengths) and max(lengths) <= LENGTHS[-1]
    assert lengths == [sample.example_inputs(1, seed)[1].shape[1] for seed in range(20)]


@pytest.mark.parametrize("length, padded", [(1, 16), (11, 16), (16, 32), (33, 64), (100, 256)])
def test_padding_changes_nothing(encoder, length, padded):
    ids, _ = SAMPLES["varlen_encoder"].example_inputs(2, 7, length)
    real = np.ones_like(ids)
    scores, tokens = encoder(ids, real)
    behind = ((0, 0), (0, padded - length))
    for filling in (0, 999):  # whatever token the padding holds
        more_scores, more_tokens = encoder(np.pad(ids, behind, constant_values=filling), np.pad(real, behind))
        assert close(more_scores, scores)
        assert close(more_tokens[:, :length], tokens)


def test_sequences_of_different_lengths_share_a_batch(encoder):
    """Row by row, a padded batch answers as its sequences alone do."""
    sample = SAMPLES["varlen_encoder"]
    lengths = [3, 16, 29, 32]
    ids = np.zeros((len(lengths), 32), np.int64)
    mask = np.zeros_like(ids)
    for row, length in enumerate(lengths):
        ids[row, :length] = sample.example_inputs(1, row, length)[0]
        mask[row, :length] = 1
    scores, tokens = encoder(ids, mask)
    for row, length in enumerate(lengths):
        alone = encoder(ids[row:row + 1, :length], mask[row:row + 1, :length])
        assert close(scores[row:row + 1], alone[0])
        assert close(tokens[row:row + 1, :length], alone[1])


def test_real_tokens_matter_and_their_order(encoder):
    ids, _ = SAMPLES["varlen_encoder"].example_inputs(1, 9, 24)
    real = np.ones_like(ids)
    scores = encoder(ids, real)[0]
    other = ids.copy()
    other[0, 20] = (other[0, 20] + 1) % 1000
    assert not close(encoder(other, real)[0], scores, 1e-3)
    assert not close(encoder(ids[:, ::-1].copy(), real)[0], scores, 1e-3)


def test_a_sequence_of_nothing_but_padding_gives_numbers(encoder):
    ids = np.zeros((2, 16), np.int64)
    mask = np.array([[0] * 16, [1] * 16])
    scores, tokens = encoder(ids, mask)
    assert np.isfinite(scores).all() and np.isfinite(tokens).all()
    assert close(scores[1:], encoder(ids[1:], mask[1:])[0])


def test_images_of_either_kind_leave_where_they_should(early_exit):
    easy = np.random.default_rng(1).random(200) < 0.5
    exits = np.array([early_exit(image[None])[1][0] for image in images(easy, seed=1)])
    assert 0.4 < (exits == 0).mean() < 0.6
    assert np.array_equal(exits == 0, easy)


@pytest.mark.parametrize("seed", [2, 3])
def test_both_exits_occur_with_other_weights(seed, tmp_path):
    assert main(["--out", str(tmp_path), "--models", "early_exit_cnn", "--seed", str(seed)]) == 0
    answers = answers_of(model_file(tmp_path, "early_exit_cnn"))
    for easy in (True, False):
        exits = [answers(image[None])[1][0] for image in images([easy] * 50, seed=1)]
        assert np.mean(exits) < 0.05 if easy else np.mean(exits) > 0.95


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("easy", [True, False])
def test_a_batch_leaves_by_one_exit(early_exit, batch, easy):
    inputs = images([easy] * batch, seed=2)
    scores, exits = early_exit(inputs)
    assert scores.shape == (batch, 10) and scores.dtype == np.float32
    assert exits.shape == (batch,) and exits.dtype == np.int64
    assert (exits == (0 if easy else 1)).all()
    # Nothing but the choice of the exit ties the rows together.
    for row in range(batch):
        assert close(scores[row:row + 1], early_exit(inputs[row:row + 1])[0])
    for row in range(1, batch):
        assert not close(scores[row], scores[0], 1e-2)


def test_one_hard_image_keeps_the_others_back(early_exit):
    inputs = images([True, True, False, True], seed=3)
    scores, exits = early_exit(inputs)
    assert (exits == 1).all()
    assert close(scores[2:3], early_exit(inputs[2:3])[0])
    assert not close(scores[:1], early_exit(inputs[:1])[0], 1e-2)


def test_the_first_heads_confidence_decides(repository, early_exit):
    """The scores of the first exit are what the threshold is held against."""
    inputs = images([True] * 20, seed=4)
    for image in inputs:
        scores, exits = early_exit(image[None])
        shares = np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum()
        assert exits[0] == 0 and shares.max() >= THRESHOLD


def test_what_follows_the_first_exit_is_in_a_branch_that_captures_its_features(repository):
    graph = onnx.load(model_file(repository, "early_exit_cnn")).graph
    decision, = (node for node in graph.node if node.op_type == "If")
    branches = {attribute.name: attribute.g for attribute in decision.attribute}
    assert sum(node.op_type == "Conv" for node in branches["else_branch"].node) == 6
    assert not any(node.op_type == "Conv" for node in branches["then_branch"].node)
    made_outside = {name for node in graph.node for name in node.output}
    captured = {name for node in branches["else_branch"].node for name in node.input} & made_outside
    assert captured == {"stage0.relu", "rows"}
    types = [[(value.type.tensor_type.elem_type, len(value.type.tensor_type.shape.dim)) for value in branch.output]
             for branch in branches.values()]
    assert types[0] == types[1]
