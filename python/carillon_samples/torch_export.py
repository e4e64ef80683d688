"""torch module in, ONNX bytes out."""

from __future__ import annotations

import io
import warnings

from .catalogue import BATCH_DIMENSION, OPSET, Sample
from .seeded import fill


def build_module(sample: Sample, seed: int):
    """The seeded module of `sample`, in evaluation mode."""
    import torch

    with torch.device("meta"):  # no time is lost on torch's own initialisation
        model = sample.builder()()
    model = model.to_empty(device="cpu").eval()
    for path, module in model.named_modules():
        if hasattr(module, "places"):  # the one buffer that is not a weight
            module.places.copy_(torch.arange(module.places.shape[-1]).unsqueeze(0))
    fill(model, seed, sample.name)
    return model


def export(sample: Sample, seed: int) -> bytes:
    """The ONNX file of `sample` with a symbolic batch dimension.

    Written by torch's TorchScript exporter at opset 17, the way most ONNX files
    in use were made. PRESERVE keeps batch norm as nodes of its own (EVAL would
    fold it), so that whoever loads the file has to fold it.
    """
    import torch

    model = build_module(sample, seed)
    arguments = tuple(torch.from_numpy(array) for array in sample.example_inputs(2, seed))
    names = [tensor.name for tensor in sample.inputs]
    outputs = [tensor.name for tensor in sample.outputs]
    file = io.BytesIO()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the exporter is the older one, and about traced shapes
        torch.onnx.export(
            model, arguments, file, dynamo=False, opset_version=OPSET,
            training=torch.onnx.TrainingMode.PRESERVE, do_constant_folding=True,
            input_names=names, output_names=outputs,
            dynamic_axes={name: {0: BATCH_DIMENSION} for name in names + outputs})
    return file.getvalue()
