"""A residual network in small: stem, one residual block, pooling, a dense layer."""

from __future__ import annotations

from .catalogue import Sample
from .graph_writer import GraphWriter
from .seeded import LINEAR_GAIN, RELU_GAIN


def tiny_cnn(sample: Sample, seed: int, name: str | None = None) -> bytes:
    g = GraphWriter(sample, seed, name)

    def conv_norm(x: str, label: str, inputs: int, outputs: int, gain: float, stride: int = 1) -> str:
        weight = g.weight(f"{label}.weight", (outputs, inputs, 3, 3), inputs * 9, gain)
        x = g.node("Conv", x, weight, name=f"{label}.conv", kernel_shape=[3, 3],
                   pads=[1, 1, 1, 1], strides=[stride, stride])
        scale = g.uniform(f"{label}.scale", (outputs,), 0.8, 1.2)
        bias = g.normal(f"{label}.bias", (outputs,), 0.1)
        mean = g.normal(f"{label}.mean", (outputs,), 0.1)
        var = g.uniform(f"{label}.var", (outputs,), 0.7, 1.3)
        return g.node("BatchNormalization", x, scale, bias, mean, var, name=f"{label}.norm", epsilon=1e-5)

    stem = g.node("Relu", conv_norm("input", "stem", 3, 16, LINEAR_GAIN, stride=2), name="stem.relu")
    x = g.node("Relu", conv_norm(stem, "block.first", 16, 16, RELU_GAIN), name="block.relu")
    x = g.node("Add", conv_norm(x, "block.second", 16, 16, RELU_GAIN), stem, name="block.add")
    x = g.node("Relu", x, name="block.out")
    x = g.node("GlobalAveragePool", x, name="pool")
    x = g.node("Flatten", x, name="flat", axis=1)
    weight = g.weight("fc.weight", (10, 16), 16, RELU_GAIN)
    bias = g.normal("fc.bias", (10,), 0.1)
    return g.finish(g.node("Gemm", x, weight, bias, name="fc", transB=1))
