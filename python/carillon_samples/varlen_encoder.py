"""A transformer encoder for sequences of any length: its time grows with the tokens that a request holds.

Four pre-norm layers, 128 wide, 4 heads, at most 512 tokens. Batch and length
reach Reshape and the slice of the positions through Shape, as in traced graphs.

A token whose mask is 0 changes nothing for the others: it is hidden from
attention and left out of the mean. So a sequence with such tokens behind it has
the `scores`, and the first rows of `tokens`, that it has alone, up to rounding.
What `tokens` says of a hidden token itself means nothing.
"""

from __future__ import annotations

import math

import numpy as np

from .catalogue import Sample
from .graph_writer import GraphWriter
from .seeded import LINEAR_GAIN, RELU_GAIN

POSITIONS = 512
WIDTH = 128
HEADS = 4
HIDDEN = 4 * WIDTH
LAYERS = 4
# Added to the score of a hidden token. Finite, so that a sequence of nothing but hidden tokens gives no NaN.
HIDDEN_SCORE = -1e4


def varlen_encoder(sample: Sample, seed: int, name: str | None = None) -> bytes:
    g = GraphWriter(sample, seed, name)
    vocabulary = sample.inputs[0].bound
    classes = sample.outputs[0].dims[-1]
    features = sample.outputs[1].dims[-1]

    def scalar(label: str, value: float) -> str:
        return g.constant(label, np.float32(value))

    def vector(label: str, *values: int) -> str:
        return g.constant(label, np.array(values, np.int64))

    def dense(x: str, label: str, inputs: int, outputs: int, gain: float = LINEAR_GAIN) -> str:
        x = g.node("MatMul", x, g.weight(f"{label}.weight", (inputs, outputs), inputs, gain), name=f"{label}.matmul")
        return g.node("Add", x, g.normal(f"{label}.bias", (outputs,), 0.05), name=f"{label}.add")

    def layer_norm(x: str, label: str) -> str:
        scale = g.uniform(f"{label}.scale", (WIDTH,), 0.9, 1.1)
        bias = g.normal(f"{label}.bias", (WIDTH,), 0.05)
        return g.node("LayerNormalization", x, scale, bias, name=label, axis=-1, epsilon=1e-5)

    sqrt2, one, half = scalar("sqrt2", math.sqrt(2)), scalar("one", 1.0), scalar("half", 0.5)

    def gelu(x: str, label: str) -> str:
        erf = g.node("Erf", g.node("Div", x, sqrt2, name=f"{label}.div"), name=f"{label}.erf")
        added = g.node("Add", erf, one, name=f"{label}.add")
        return g.node("Mul", g.node("Mul", x, added, name=f"{label}.mul"), half, name=label)

    # [batch, seq, HEADS, WIDTH / HEADS] and back, batch and length taken from the ids.
    ids_shape = g.node("Shape", "input_ids", name="ids.shape")
    axis0 = vector("axis0", 0)

    def extent(index: int, label: str) -> str:
        number = g.node("Gather", ids_shape, g.constant(f"{label}.index", np.int64(index)), name=label, axis=0)
        return g.node("Unsqueeze", number, axis0, name=f"{label}.1d")

    batch, length = extent(0, "batch_size"), extent(1, "length")
    split_shape = g.node("Concat", batch, length, vector("split.tail", HEADS, WIDTH // HEADS),
                         name="split.shape", axis=0)
    join_shape = g.node("Concat", batch, length, vector("join.tail", WIDTH), name="join.shape", axis=0)

    # [batch, seq], 1 where a token is real; and [batch, 1, 1, seq], what is added to its attention scores.
    real = g.node("Cast", "attention_mask", name="mask.real", to=1)
    mask = g.node("Unsqueeze", real, vector("axes12", 1, 2), name="mask.4d")
    mask = g.node("Mul", g.node("Sub", one, mask, name="mask.inverted"), scalar("mask.low", HIDDEN_SCORE),
                  name="mask.bias")
    root = scalar("root", math.sqrt(WIDTH // HEADS))

    def attention(x: str, label: str) -> str:
        def heads(part: str, perm: list[int]) -> str:
            projected = dense(x, f"{label}.{part}", WIDTH, WIDTH)
            split = g.node("Reshape", projected, split_shape, name=f"{label}.{part}.split")
            return g.node("Transpose", split, name=f"{label}.{part}.heads", perm=perm)

        scores = g.node("MatMul", heads("query", [0, 2, 1, 3]), heads("key", [0, 2, 3, 1]), name=f"{label}.scores")
        scores = g.node("Div", scores, root, name=f"{label}.scaled")
        scores = g.node("Add", scores, mask, name=f"{label}.masked")
        weights = g.node("Softmax", scores, name=f"{label}.weights", axis=-1)
        mixed = g.node("MatMul", weights, heads("value", [0, 2, 1, 3]), name=f"{label}.mixed")
        mixed = g.node("Transpose", mixed, name=f"{label}.mixed.back", perm=[0, 2, 1, 3])
        mixed = g.node("Reshape", mixed, join_shape, name=f"{label}.joined")
        return dense(mixed, f"{label}.out", WIDTH, WIDTH)

    words = g.node("Gather", g.normal("word.weight", (vocabulary, WIDTH), 0.5), "input_ids", name="words", axis=0)
    places = g.node("Slice", g.normal("position.weight", (1, POSITIONS, WIDTH), 0.5), axis0, length,
                    vector("axis1", 1), name="places")
    x = layer_norm(g.node("Add", words, places, name="embedded"), "embedded.norm")
    for index in range(LAYERS):
        label = f"layer{index}"
        attended = attention(layer_norm(x, f"{label}.attention.norm"), f"{label}.attention")
        x = g.node("Add", x, attended, name=f"{label}.attention.residual")
        hidden = dense(layer_norm(x, f"{label}.norm"), f"{label}.up", WIDTH, HIDDEN)
        fed = dense(gelu(hidden, f"{label}.gelu"), f"{label}.down", HIDDEN, WIDTH, RELU_GAIN)
        x = g.node("Add", x, fed, name=f"{label}.residual")
    x = layer_norm(x, "norm")

    # The mean over the real tokens; of a sequence that has none it is 0.
    weight = g.node("Unsqueeze", real, vector("axis2", 2), name="mean.weight")
    axes = vector("mean.axis", 1)
    total = g.node("ReduceSum", g.node("Mul", x, weight, name="mean.kept"), axes, name="mean.sum", keepdims=0)
    count = g.node("Max", g.node("ReduceSum", weight, axes, name="mean.count", keepdims=0), one, name="mean.divisor")
    mean = g.node("Div", total, count, name="mean")
    return g.finish(dense(mean, "classifier", WIDTH, classes), dense(x, "token", WIDTH, features))
