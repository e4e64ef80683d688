"""Writes models into a Triton-style repository: DIR/NAME/config.pbtxt and DIR/NAME/1/model.onnx.

A model appears whole or not at all: it is written beside its place and renamed
into it, so what is there can be kept on the next run.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from .catalogue import Sample


def config_text(sample: Sample, name: str, parameters: dict[str, str]) -> str:
    """Triton's model configuration of `sample` under `name`; dims leave the batch out.

    Outputs are left to the file where one of them is a single value a row: its
    dims would be empty, which the format does not tell from forgotten ones.
    """
    def tensors(field: str, items) -> str:
        rows = ",\n".join(
            f'  {{\n    name: "{item.name}"\n    data_type: TYPE_{item.dtype}\n'
            f'    dims: [ {", ".join(map(str, item.dims))} ]\n  }}' for item in items)
        return f"{field} [\n{rows}\n]\n"

    text = f'name: "{name}"\nplatform: "onnxruntime_onnx"\nmax_batch_size: {sample.max_batch}\n'
    text += tensors("input", sample.inputs)
    if all(tensor.dims for tensor in sample.outputs):
        text += tensors("output", sample.outputs)
    text += "dynamic_batching { }\n"
    text += "instance_group [\n  {\n    count: 1\n    kind: KIND_CPU\n  }\n]\n"
    for key, value in parameters.items():
        text += f'parameters {{\n  key: "{key}"\n  value {{ string_value: "{value}" }}\n}}\n'
    return text


def model_file(root: Path, name: str) -> Path:
    return root / name / "1" / "model.onnx"


def is_complete(root: Path, name: str) -> bool:
    """Whether `name` is there with both its files, neither of them empty."""
    files = (root / name / "config.pbtxt", model_file(root, name))
    return all(file.is_file() and file.stat().st_size > 0 for file in files)


def write_model(root: Path, name: str, config: str, model: bytes | Path) -> None:
    """Puts the model called `name` into `root`.

    `model` is the ONNX file's content, or another file of the same file system
    to be hard-linked (copied where the file system has no such links). An
    incomplete model of that name is replaced.
    """
    partial = root / f".{name}.partial-{os.getpid()}"
    shutil.rmtree(partial, ignore_errors=True)
    try:
        (partial / "1").mkdir(parents=True)
        target = partial / "1" / "model.onnx"
        if isinstance(model, Path):
            try:
                os.link(model, target)
            except OSError:
                shutil.copyfile(model, target)
        else:
            target.write_bytes(model)
        (partial / "config.pbtxt").write_text(config, encoding="utf-8")
        if (root / name).exists():
            shutil.rmtree(root / name)
        partial.rename(root / name)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
