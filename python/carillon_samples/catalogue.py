"""Which sample models there are: names, tensors, where each is built."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable

import numpy as np

from .seeded import stream

OPSET = 17
BATCH_DIMENSION = "batch"
MAX_BATCH = 16


@dataclasses.dataclass(frozen=True)
class Tensor:
    """One input or output; `dims` leave the batch dimension out.

    `bound` is, for integer inputs, the number that values stay below.
    """

    name: str
    dims: tuple[int, ...]
    dtype: str = "FP32"  # as in KServe's protocol
    bound: int = 0

    @property
    def numpy_type(self):
        return {"FP32": np.float32, "INT64": np.int64}[self.dtype]


@dataclasses.dataclass(frozen=True)
class Sample:
    name: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    slo_ms: int  # the deadline of a request that names none
    source: str  # "module:function" in this package
    needs_torch: bool

    def builder(self) -> Callable:
        module, function = self.source.split(":")
        return getattr(importlib.import_module(f"{__package__}.{module}"), function)

    def example_inputs(self, batch: int, seed: int) -> list[np.ndarray]:
        """Seeded inputs: images are normal, token ids uniform, masks keep a prefix."""
        arrays = []
        for tensor in self.inputs:
            rng = stream(seed, self.name, "example", tensor.name)
            shape = (batch, *tensor.dims)
            if tensor.dtype == "FP32":
                arrays.append(rng.standard_normal(shape, dtype=np.float32))
            elif tensor.name == "attention_mask":
                length = tensor.dims[-1]
                kept = rng.integers(length // 2, length + 1, size=(batch, 1))
                arrays.append((np.arange(length)[None, :] < kept).astype(np.int64))
            else:
                arrays.append(rng.integers(0, tensor.bound, size=shape, dtype=np.int64))
        return arrays


def image_model(name: str, source: str, slo_ms: int) -> Sample:
    return Sample(name, (Tensor("input", (3, 224, 224)),), (Tensor("output", (1000,)),),
                  slo_ms, source, needs_torch=True)


def encoder(name: str, source: str, *, length: int, width: int, vocabulary: int, slo_ms: int,
            needs_torch: bool) -> Sample:
    return Sample(
        name,
        (Tensor("input_ids", (length,), "INT64", vocabulary), Tensor("attention_mask", (length,), "INT64", 2)),
        (Tensor("last_hidden_state", (length, width)),),
        slo_ms, source, needs_torch)


SAMPLES = {
    sample.name: sample
    for sample in (
        Sample("tiny_mlp", (Tensor("input", (64,)),), (Tensor("output", (10,)),),
               50, "tiny_mlp:tiny_mlp", needs_torch=False),
        Sample("tiny_cnn", (Tensor("input", (3, 16, 16)),), (Tensor("output", (10,)),),
               50, "tiny_cnn:tiny_cnn", needs_torch=False),
        encoder("tiny_encoder", "tiny_encoder:tiny_encoder", length=16, width=32, vocabulary=100,
                slo_ms=50, needs_torch=False),
        image_model("resnet18", "resnet:resnet18", 250),
        image_model("mobilenetv2", "mobilenetv2:mobilenetv2", 150),
        image_model("resnet50", "resnet:resnet50", 500),
        image_model("densenet121", "densenet:densenet121", 600),
        image_model("vgg16", "vgg:vgg16", 2000),
        encoder("distilbert", "distilbert:distilbert", length=128, width=768, vocabulary=30522,
                slo_ms=800, needs_torch=True),
    )
}

TINY = tuple(name for name in SAMPLES if name.startswith("tiny_"))


def choose(text: str) -> list[Sample]:
    """The samples named by "all", "tiny", or names with commas between, both mixed too.

    Raises ValueError with the names that exist when one does not.
    """
    names: list[str] = []
    for word in filter(None, (part.strip() for part in text.split(","))):
        if word == "all":
            names += SAMPLES
        elif word == "tiny":
            names += TINY
        elif word in SAMPLES:
            names.append(word)
        else:
            raise ValueError(f"there is no sample model '{word}'; there are: all, tiny, {', '.join(SAMPLES)}")
    if not names:
        raise ValueError(f"no model is named; there are: all, tiny, {', '.join(SAMPLES)}")
    return [SAMPLES[name] for name in dict.fromkeys(names)]
