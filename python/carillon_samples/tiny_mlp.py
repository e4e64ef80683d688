"""Three dense layers, 64 to 128 to 64 to 10: the smallest thing worth serving."""

from __future__ import annotations

from .catalogue import Sample
from .graph_writer import GraphWriter
from .seeded import LINEAR_GAIN, RELU_GAIN


def tiny_mlp(sample: Sample, seed: int, name: str | None = None) -> bytes:
    g = GraphWriter(sample, seed, name)
    x = "input"
    widths = (64, 128, 64, 10)
    for index, (inputs, outputs) in enumerate(zip(widths, widths[1:])):
        weight = g.weight(f"fc{index}.weight", (outputs, inputs), inputs, RELU_GAIN if index else LINEAR_GAIN)
        bias = g.normal(f"fc{index}.bias", (outputs,), 0.1)
        x = g.node("Gemm", x, weight, bias, name=f"fc{index}", transB=1)
        if outputs != widths[-1]:
            x = g.node("Relu", x, name=f"relu{index}")
    return g.finish(x)
