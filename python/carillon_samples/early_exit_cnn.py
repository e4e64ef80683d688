"""A network that answers easy images early (BranchyNet: Teerapittayanon, McDanel, Kung, 2016).

A first stage and a small head look at a 32x32 image. If the head is sure of
every image of the batch, that is if the least over the batch of its largest
softmax probability is THRESHOLD or more, its scores are the answer (`exit` is
0). Otherwise an If runs the further stages, some ten times as expensive,
and the scores are those of their head (`exit` is 1). `scores` are logits.

Weights are random, so what makes an image easy is its contrast: the first
stage's convolutions have next to no bias, so that the head's logits grow with
the pixels' distance from 0, and with them its largest probability. images()
makes images of both kinds; how sure the head is of them depends little on the
weights' seed.
"""

from __future__ import annotations

import numpy as np
from onnx import numpy_helper

from .catalogue import Sample
from .graph_writer import GraphWriter
from .seeded import LINEAR_GAIN, RELU_GAIN, stream

THRESHOLD = 0.3  # ten classes: 0.1 is no opinion
WIDTHS = (64, 128, 256)
CLASSES = 10
HEAD_GAIN = 10.0  # makes the first head sure of what has contrast
EASY_CONTRAST = (1.0, 2.0)  # standard deviation of the pixels, drawn for each image
HARD_CONTRAST = (0.01, 0.03)


def images(easy, seed: int) -> np.ndarray:
    """Seeded images f32 [n, 3, 32, 32]: bright patches and noise around 0.

    `easy` holds n truth values: contrasted images, of which the first head is
    sure, or dim ones, of which it is not.
    """
    easy = np.asarray(easy, bool)
    rng = stream(seed, "early_exit_cnn", "images")
    coarse = rng.standard_normal((easy.size, 3, 4, 4), dtype=np.float32)
    patches = coarse.repeat(8, axis=2).repeat(8, axis=3)
    noise = rng.standard_normal((easy.size, 3, 32, 32), dtype=np.float32)
    pixels = 0.9 * patches + 0.4 * noise
    pixels /= pixels.std(axis=(1, 2, 3), keepdims=True)
    share = rng.random(easy.size, dtype=np.float32)
    low, high = np.where(easy, np.array([EASY_CONTRAST]).T, np.array([HARD_CONTRAST]).T)
    contrast = low + share * (high - low)
    return (pixels * contrast[:, None, None, None]).astype(np.float32)


def example_inputs(batch: int, seed: int) -> list[np.ndarray]:
    """Easy images for even seeds, hard ones for odd seeds: a mixed batch would never leave early."""
    return [images([seed % 2 == 0] * batch, seed)]


def early_exit_cnn(sample: Sample, seed: int, name: str | None = None) -> bytes:
    g = GraphWriter(sample, seed, name)

    def conv(x: str, label: str, inputs: int, outputs: int, gain: float = RELU_GAIN, stride: int = 1) -> str:
        weight = g.weight(f"{label}.weight", (outputs, inputs, 3, 3), inputs * 9, gain)
        bias = g.normal(f"{label}.bias", (outputs,), 0.005)
        return g.node("Conv", x, weight, bias, name=f"{label}.conv", kernel_shape=[3, 3],
                      pads=[1, 1, 1, 1], strides=[stride, stride])

    def conv_norm(x: str, label: str, inputs: int, outputs: int, stride: int = 1) -> str:
        weight = g.weight(f"{label}.weight", (outputs, inputs, 3, 3), inputs * 9, RELU_GAIN)
        x = g.node("Conv", x, weight, name=f"{label}.conv", kernel_shape=[3, 3],
                   pads=[1, 1, 1, 1], strides=[stride, stride])
        scale = g.uniform(f"{label}.scale", (outputs,), 0.8, 1.2)
        bias = g.normal(f"{label}.bias", (outputs,), 0.1)
        mean = g.normal(f"{label}.mean", (outputs,), 0.1)
        var = g.uniform(f"{label}.var", (outputs,), 0.7, 1.3)
        return g.node("BatchNormalization", x, scale, bias, mean, var, name=f"{label}.norm", epsilon=1e-5)

    def relu(x: str, label: str) -> str:
        return g.node("Relu", x, name=f"{label}.relu")

    def block(x: str, label: str, width: int, layer) -> str:
        """Two convolutions and the way past them."""
        y = relu(layer(x, f"{label}.first", width, width), f"{label}.first")
        y = layer(y, f"{label}.second", width, width)
        return relu(g.node("Add", y, x, name=f"{label}.add"), label)

    def head(x: str, label: str, width: int, extent: int, gain: float) -> str:
        """A dense layer over the means of 4 x 4 regions of an image of `extent` x `extent` places."""
        side = extent // 4
        x = g.node("AveragePool", x, name=f"{label}.pool", kernel_shape=[side, side], strides=[side, side])
        x = g.node("Flatten", x, name=f"{label}.flat", axis=1)
        weight = g.weight(f"{label}.weight", (CLASSES, width * 16), width * 16, gain)
        return g.node("Gemm", x, weight, g.normal(f"{label}.bias", (CLASSES,), 0.01), name=label, transB=1)

    features = relu(conv("input", "stem", 3, WIDTHS[0], LINEAR_GAIN, stride=2), "stem")
    features = block(features, "stage0", WIDTHS[0], conv)
    scores = head(features, "early", WIDTHS[0], 16, HEAD_GAIN)

    shape = g.node("Shape", "input", name="input.shape")
    rows = g.node("Slice", shape, g.constant("rows.from", np.array([0], np.int64)),
                  g.constant("rows.to", np.array([1], np.int64)), name="rows")

    def exit_number(label: str, number: int) -> str:
        value = numpy_helper.from_array(np.array([number], np.int64))
        return g.node("ConstantOfShape", rows, name=label, value=value)

    def leave() -> tuple[str, ...]:
        return g.node("Identity", scores, name="leave.scores"), exit_number("leave.exit", 0)

    def go_on() -> tuple[str, ...]:
        x = features
        for index, (inputs, outputs) in enumerate(zip(WIDTHS, WIDTHS[1:]), 1):
            label = f"stage{index}"
            x = relu(conv_norm(x, label, inputs, outputs, stride=index), label)
            x = block(x, f"{label}.block", outputs, conv_norm)
        return head(x, "final", WIDTHS[-1], 8, RELU_GAIN), exit_number("final.exit", 1)

    probability = g.node("Softmax", scores, name="early.probability", axis=1)
    largest = g.node("ReduceMax", probability, name="early.largest", axes=[1], keepdims=0)
    least = g.node("ReduceMin", largest, name="early.least", keepdims=0)
    sure = g.node("GreaterOrEqual", least, g.constant("threshold", np.float32(THRESHOLD)), name="early.sure")
    return g.finish(*g.either(sure, g.branch(leave, "leave"), g.branch(go_on, "go_on"), name="decision"))
