"""Two transformer layers, 32 wide, 4 heads, 16 tokens, written as exporters write them.

Layer norm is spelled out in primitive operators in the first layer and is one
LayerNormalization node in the second; GELU is spelled out with Erf. The batch
size reaches Reshape through Shape and Concat, as in graphs traced by torch.
"""

from __future__ import annotations

import math

import numpy as np

from .catalogue import Sample
from .graph_writer import GraphWriter
from .seeded import LINEAR_GAIN, RELU_GAIN

LENGTH = 16
WIDTH = 32
HEADS = 4
HIDDEN = 64
VOCABULARY = 100


def tiny_encoder(sample: Sample, seed: int, name: str | None = None) -> bytes:
    g = GraphWriter(sample, seed, name)

    def scalar(label: str, value: float) -> str:
        return g.constant(label, np.float32(value))

    def dense(x: str, label: str, inputs: int, outputs: int, gain: float = LINEAR_GAIN) -> str:
        x = g.node("MatMul", x, g.weight(f"{label}.weight", (inputs, outputs), inputs, gain), name=f"{label}.matmul")
        return g.node("Add", g.normal(f"{label}.bias", (outputs,), 0.05), x, name=f"{label}.add")

    def layer_norm(x: str, label: str, spelled_out: bool) -> str:
        scale = g.uniform(f"{label}.scale", (WIDTH,), 0.9, 1.1)
        bias = g.normal(f"{label}.bias", (WIDTH,), 0.05)
        if not spelled_out:
            return g.node("LayerNormalization", x, scale, bias, name=label, axis=-1, epsilon=1e-5)
        mean = g.node("ReduceMean", x, name=f"{label}.mean", axes=[-1])
        centred = g.node("Sub", x, mean, name=f"{label}.centred")
        square = g.node("Pow", centred, scalar(f"{label}.two", 2.0), name=f"{label}.square")
        variance = g.node("ReduceMean", square, name=f"{label}.variance", axes=[-1])
        safe = g.node("Add", variance, scalar(f"{label}.epsilon", 1e-5), name=f"{label}.safe")
        deviation = g.node("Sqrt", safe, name=f"{label}.deviation")
        x = g.node("Div", centred, deviation, name=f"{label}.div")
        x = g.node("Mul", x, scale, name=f"{label}.mul")
        return g.node("Add", x, bias, name=label)

    def gelu(x: str, label: str) -> str:
        erf = g.node("Erf", g.node("Div", x, scalar(f"{label}.sqrt2", math.sqrt(2)), name=f"{label}.div"),
                     name=f"{label}.erf")
        one = g.node("Add", erf, scalar(f"{label}.one", 1.0), name=f"{label}.add")
        return g.node("Mul", g.node("Mul", x, one, name=f"{label}.mul"), scalar(f"{label}.half", 0.5), name=label)

    # [batch, LENGTH, HEADS, WIDTH / HEADS] and back, the batch taken from the ids.
    batch = g.node("Gather", g.node("Shape", "input_ids", name="ids.shape"), g.constant("zero", np.int64(0)),
                   name="batch_size", axis=0)
    batch = g.node("Unsqueeze", batch, g.constant("axis0", np.array([0], np.int64)), name="batch_size.1d")
    split_shape = g.node("Concat", batch, g.constant("split.tail", np.array([LENGTH, HEADS, WIDTH // HEADS], np.int64)),
                         name="split.shape", axis=0)
    join_shape = g.node("Concat", batch, g.constant("join.tail", np.array([LENGTH, WIDTH], np.int64)),
                        name="join.shape", axis=0)

    # 0 where a position may be looked at, a large negative number where not.
    mask = g.node("Unsqueeze", "attention_mask", g.constant("axes12", np.array([1, 2], np.int64)), name="mask.4d")
    mask = g.node("Cast", mask, name="mask.float", to=1)
    mask = g.node("Sub", scalar("mask.one", 1.0), mask, name="mask.inverted")
    mask = g.node("Mul", mask, scalar("mask.low", -10000.0), name="mask.bias")

    def attention(x: str, label: str) -> str:
        def heads(part: str, perm: list[int]) -> str:
            projected = dense(x, f"{label}.{part}", WIDTH, WIDTH)
            split = g.node("Reshape", projected, split_shape, name=f"{label}.{part}.split")
            return g.node("Transpose", split, name=f"{label}.{part}.heads", perm=perm)

        scores = g.node("MatMul", heads("query", [0, 2, 1, 3]), heads("key", [0, 2, 3, 1]), name=f"{label}.scores")
        scores = g.node("Div", scores, scalar(f"{label}.root", math.sqrt(WIDTH // HEADS)), name=f"{label}.scaled")
        scores = g.node("Add", scores, mask, name=f"{label}.masked")
        weights = g.node("Softmax", scores, name=f"{label}.weights", axis=-1)
        mixed = g.node("MatMul", weights, heads("value", [0, 2, 1, 3]), name=f"{label}.mixed")
        mixed = g.node("Transpose", mixed, name=f"{label}.mixed.back", perm=[0, 2, 1, 3])
        mixed = g.node("Reshape", mixed, join_shape, name=f"{label}.joined")
        return dense(mixed, f"{label}.out", WIDTH, WIDTH)

    words = g.node("Gather", g.normal("word.weight", (VOCABULARY, WIDTH), 0.5), "input_ids", name="words", axis=0)
    x = g.node("Add", words, g.normal("position.weight", (1, LENGTH, WIDTH), 0.5), name="embedded")
    x = layer_norm(x, "embedded.norm", spelled_out=True)
    for index in range(2):
        label = f"layer{index}"
        spelled_out = index == 0
        added = g.node("Add", attention(x, f"{label}.attention"), x, name=f"{label}.attention.residual")
        x = layer_norm(added, f"{label}.attention.norm", spelled_out)
        hidden = gelu(dense(x, f"{label}.up", WIDTH, HIDDEN), f"{label}.gelu")
        fed = dense(hidden, f"{label}.down", HIDDEN, WIDTH, RELU_GAIN)
        x = layer_norm(g.node("Add", fed, x, name=f"{label}.residual"), f"{label}.norm", spelled_out)
    return g.finish(x)
