"""Weights that depend on a seed and a name only.

Every tensor has its own random stream, named after the model and the
parameter, so that the order in which parameters are filled, or a layer more or
less, leaves the others as they are. Scales are chosen so that activations keep
a variance near one through deep networks; batch-norm statistics are random
too, because a model whose running mean is 0 and variance 1 would pass even if
batch norm were folded wrongly.
"""

from __future__ import annotations

import hashlib
import math

import numpy as np


def stream(seed: int, *names: str) -> np.random.Generator:
    """A generator for the tensor called `names`, the same on every machine."""
    digest = hashlib.sha256("/".join((str(seed), *names)).encode()).digest()
    return np.random.Generator(np.random.Philox(int.from_bytes(digest[:16], "little")))


def normal(rng: np.random.Generator, shape, std: float) -> np.ndarray:
    values = rng.standard_normal(shape, dtype=np.float32)
    values *= np.float32(std)
    return values


def uniform(rng: np.random.Generator, shape, low: float, high: float) -> np.ndarray:
    values = rng.random(shape, dtype=np.float32)
    values *= np.float32(high - low)
    values += np.float32(low)
    return values


def fan_in_normal(rng: np.random.Generator, shape, fan_in: int, gain: float) -> np.ndarray:
    return normal(rng, shape, gain / math.sqrt(fan_in))


RELU_GAIN = math.sqrt(2.0)  # half of a ReLU's input power is lost
LINEAR_GAIN = 1.0


def fill(model, seed: int, name: str) -> None:
    """Fills every parameter and buffer of the torch module `model` in place.

    A layer may carry two attributes: `gain` (convolution, linear: what its
    input lost in the activation before it; ReLU's is the default) and `scale`
    (normalisation: below one at the end of a residual branch, so that a sum of
    many branches does not grow).
    """
    import torch
    from torch import nn

    def put(target, values: np.ndarray) -> None:
        with torch.no_grad():
            target.copy_(torch.from_numpy(np.ascontiguousarray(values)))

    for path, module in model.named_modules():
        def rng(part: str) -> np.random.Generator:
            return stream(seed, name, path, part)

        if isinstance(module, (nn.Conv2d, nn.Linear)):
            shape = tuple(module.weight.shape)
            gain = getattr(module, "gain", RELU_GAIN)
            put(module.weight, fan_in_normal(rng("weight"), shape, math.prod(shape[1:]), gain))
            if module.bias is not None:
                put(module.bias, normal(rng("bias"), shape[0], 0.05))
        elif isinstance(module, nn.BatchNorm2d):
            count = module.num_features
            scale = getattr(module, "scale", 1.0)
            put(module.weight, uniform(rng("weight"), count, 0.8 * scale, 1.2 * scale))
            put(module.bias, normal(rng("bias"), count, 0.1))
            put(module.running_mean, normal(rng("mean"), count, 0.1))
            put(module.running_var, uniform(rng("var"), count, 0.7, 1.3))
        elif isinstance(module, nn.LayerNorm):
            shape = tuple(module.weight.shape)
            put(module.weight, uniform(rng("weight"), shape, 0.9, 1.1))
            put(module.bias, normal(rng("bias"), shape, 0.05))
        elif isinstance(module, nn.Embedding):
            put(module.weight, normal(rng("weight"), tuple(module.weight.shape), 0.5))
        elif list(module.parameters(recurse=False)):
            raise TypeError(f"{name}: no rule to fill a {type(module).__name__} at '{path}'")
