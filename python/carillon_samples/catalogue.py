"""Which sample models there are: names, tensors, where each is built."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable

import numpy as np

from .seeded import stream

OPSET = 17
BATCH_DIMENSION = "batch"
SEQUENCE_DIMENSION = "seq"
MAX_BATCH = 16
LENGTHS = (16, 32, 64, 128, 256)  # of sequences, at which plans are made


@dataclasses.dataclass(frozen=True)
class Tensor:
    """One input or output; `dims` leave the batch dimension out.

    A dim of -1 is the sequence's length, which each request chooses; all tensors
    of a request agree on it. `bound` is, for integer inputs, the number that
    values stay below.
    """

    name: str
    dims: tuple[int, ...]
    dtype: str = "FP32"  # as in KServe's protocol
    bound: int = 0

    @property
    def numpy_type(self):
        return {"FP32": np.float32, "INT64": np.int64}[self.dtype]

    def shape(self, batch: int, length: int) -> tuple[int, ...]:
        """The whole shape of `batch` rows of sequences `length` long."""
        return (batch, *(length if dim == -1 else dim for dim in self.dims))


@dataclasses.dataclass(frozen=True)
class Sample:
    name: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    slo_ms: int | None  # the deadline of a request that names none; None: the server's
    source: str  # "module:function" in this package
    needs_torch: bool
    max_batch: int = MAX_BATCH
    parameters: tuple[tuple[str, str], ...] = ()  # of config.pbtxt, beside slo_ms
    examples: str | None = None  # "module:function" that makes example inputs where random numbers would not do

    def builder(self) -> Callable:
        return imported(self.source)

    def config_parameters(self) -> dict[str, str]:
        slo = {} if self.slo_ms is None else {"slo_ms": str(self.slo_ms)}
        return {**slo, **dict(self.parameters)}

    def example_inputs(self, batch: int, seed: int, length: int | None = None) -> list[np.ndarray]:
        """Seeded inputs: images are normal, token ids uniform, masks keep a prefix.

        `length` is that of the sequences where the model leaves it open; drawn
        from 1 to LENGTHS' largest if None.
        """
        if self.examples:
            return imported(self.examples)(batch, seed)
        if length is None:
            length = int(stream(seed, self.name, "example length").integers(1, LENGTHS[-1] + 1))
        arrays = []
        for tensor in self.inputs:
            rng = stream(seed, self.name, "example", tensor.name)
            shape = tensor.shape(batch, length)
            if tensor.dtype == "FP32":
                arrays.append(rng.standard_normal(shape, dtype=np.float32))
            elif tensor.name == "attention_mask":
                kept = rng.integers(max(1, shape[-1] // 2), shape[-1] + 1, size=(batch, 1))
                arrays.append((np.arange(shape[-1])[None, :] < kept).astype(np.int64))
            else:
                arrays.append(rng.integers(0, tensor.bound, size=shape, dtype=np.int64))
        return arrays


def imported(source: str) -> Callable:
    module, function = source.split(":")
    return getattr(importlib.import_module(f"{__package__}.{module}"), function)


def image_model(name: str, source: str, slo_ms: int, size: int = 224) -> Sample:
    return Sample(name, (Tensor("input", (3, size, size)),), (Tensor("output", (1000,)),),
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
        # Shorter sequences are padded up to the next of `lengths`; what is padding, the mask says.
        Sample("varlen_encoder",
               (Tensor("input_ids", (-1,), "INT64", 1000), Tensor("attention_mask", (-1,), "INT64", 2)),
               (Tensor("scores", (8,)), Tensor("tokens", (-1, 32))),
               None, "varlen_encoder:varlen_encoder", needs_torch=False, max_batch=8,
               parameters=(("lengths", ",".join(map(str, LENGTHS))), ("padding", "zero"),
                           ("mask", "attention_mask"))),
        Sample("early_exit_cnn", (Tensor("input", (3, 32, 32)),),
               (Tensor("scores", (10,)), Tensor("exit", (), "INT64")),
               None, "early_exit_cnn:early_exit_cnn", needs_torch=False, max_batch=8,
               examples="early_exit_cnn:example_inputs"),
        image_model("resnet152", "resnet:resnet152", 1500),
        image_model("densenet201", "densenet:densenet201", 1000),
        image_model("vgg19", "vgg:vgg19", 2500),
        image_model("inceptionv3", "inception:inceptionv3", 800, size=299),
    )
}

TINY = tuple(name for name in SAMPLES if name.startswith("tiny_"))
# Those whose time depends on what a request holds. A server has to know how to plan them, so they are
# written only where they are asked for.
DYNAMIC = ("varlen_encoder", "early_exit_cnn")
# What the workloads of DISB run (scenarios/disb): 1.3 GB, and so written only where they are asked for, too.
DISB = ("resnet152", "densenet201", "vgg19", "inceptionv3", "distilbert")
ALL = tuple(name for name in SAMPLES if name not in DYNAMIC and (name not in DISB or name == "distilbert"))
GROUPS = {"all": ALL, "tiny": TINY, "dynamic": DYNAMIC, "disb": DISB}


def choose(text: str) -> list[Sample]:
    """The samples named by groups and names with commas between.

    Groups are "tiny", "dynamic" (time depends on the input), "disb" (what the
    workloads of DISB run) and "all", which leaves the last two's own out.

    Raises ValueError with the names that exist when one does not.
    """
    names: list[str] = []
    for word in filter(None, (part.strip() for part in text.split(","))):
        if word in GROUPS:
            names += GROUPS[word]
        elif word in SAMPLES:
            names.append(word)
        else:
            raise ValueError(f"there is no sample model '{word}'; there are: {', '.join((*GROUPS, *SAMPLES))}")
    if not names:
        raise ValueError(f"no model is named; there are: {', '.join((*GROUPS, *SAMPLES))}")
    return [SAMPLES[name] for name in dict.fromkeys(names)]
