"""Seeded inputs that suit a model: tokens below its table's end, masks of ones, floats from a normal distribution."""

from __future__ import annotations

import numpy as np

from .catalogue import Input


def shape_at(shape, size: dict[str, int]) -> list[int]:
    return [size[n] if isinstance(n, str) else n for n in shape]


def make_inputs(inputs: tuple[Input, ...] | list[Input], size: dict[str, int], seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    made = {}
    for i in inputs:
        shape = shape_at(i.shape, size)
        if i.kind == "tokens":
            made[i.name] = rng.integers(2 if i.below > 8 else 0, i.below, shape, dtype=np.int64)
        elif i.kind == "mask":
            made[i.name] = np.ones(shape, np.int64)
        else:
            made[i.name] = rng.standard_normal(shape, dtype=np.float32)
    return made


GUESSES = {"batch": (1, 2, 3), "height": (64, 96, 32), "width": (64, 64, 128), None: (16, 7, 33)}


def guess(specs) -> tuple[list[Input], list[dict[str, int]]]:
    """Inputs and three sizes of a file that nobody described. `specs`: (name, whether whole numbers, shape)."""
    inputs, names = [], []
    for name, whole, shape in specs:
        dims: list[int | str] = []
        for at, extent in enumerate(shape):
            if isinstance(extent, int) and extent > 0:
                dims.append(extent)
                continue
            dims.append(extent or ("batch" if at == 0 else f"{name}_{at}"))
            names.append((dims[-1], at))
        inputs.append(Input(name, tuple(dims), ("mask" if "mask" in name else "tokens") if whole else "float",
                            2 if "type" in name else 50))

    def extent(dim: str, at: int, turn: int) -> int:
        for known, values in GUESSES.items():
            if known and (known in dim.lower() or known == "batch" and at == 0):
                return values[turn]
        return GUESSES[None][turn]

    return inputs, [{dim: extent(dim, at, turn) for dim, at in names} for turn in range(3)]
