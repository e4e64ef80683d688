"""What there is to export: one entry an architecture, and the files that are made of it."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Input:
    """One input: its dimensions are numbers, or the names of those that vary."""

    name: str
    shape: tuple[int | str, ...]
    # float; tokens (whole numbers under `below`); mask (ones); boxes (corners in order under `below`); values (`values`)
    kind: str = "float"
    below: int = 0
    dtype: str = ""  # numpy's name; otherwise float32 for float, else int64
    values: tuple = ()  # of kind values: what is repeated to fill the shape


@dataclass(frozen=True)
class Architecture:
    name: str
    family: str
    build: Callable  # () -> a torch module whose forward takes the inputs in order, or a fitted scikit-learn model
    inputs: tuple[Input, ...]
    # Three sizes at which answers are compared; files are exported at the second.
    sizes: tuple[dict[str, int], ...]
    quantise: tuple[str, ...] = ()  # of dynamic, qdq, qoperator
    after: Callable | None = None  # changes the finished onnx.ModelProto


@dataclass(frozen=True)
class File:
    """What one .onnx file is made of."""

    name: str
    architecture: Architecture = field(repr=False)
    way: str  # torchscript, dynamo, skl2onnx, dynamic, qdq or qoperator


SEQUENCES = ({"batch": 1, "sequence": 16}, {"batch": 2, "sequence": 7}, {"batch": 3, "sequence": 33})
BATCHES = ({"batch": 1}, {"batch": 2}, {"batch": 5})
IMAGES = ({"batch": 1, "height": 64, "width": 64}, {"batch": 2, "height": 96, "width": 64},
          {"batch": 3, "height": 32, "width": 128})


def tokens(name: str = "input_ids", below: int = 99, dim: str = "sequence") -> Input:
    return Input(name, ("batch", dim), "tokens", below)


def mask(name: str = "attention_mask", dim: str = "sequence") -> Input:
    return Input(name, ("batch", dim), "mask")


def image(channels: int = 3, side: int | None = None, name: str = "pixel_values") -> Input:
    return Input(name, ("batch", channels, side or "height", side or "width"))


def architectures() -> list[Architecture]:
    """All of them. Needs neither torch nor the others: builders import them when they are called."""
    found = []
    for module in ("networks", "language", "perception", "classical"):
        found += importlib.import_module(f"carillon_models.{module}").ARCHITECTURES
    names = [a.name for a in found]
    assert len(set(names)) == len(names), "two architectures have one name"
    return found


def files() -> list[File]:
    made = []
    for a in architectures():
        if a.family == "scikit-learn":
            made.append(File(a.name, a, "skl2onnx"))
            continue
        made += [File(f"{a.name}.{way}", a, way) for way in ("torchscript", "dynamo", *a.quantise)]
    return made
