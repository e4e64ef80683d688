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
            array = rng.integers(2 if i.below > 8 else 0, i.below, shape, dtype=np.int64)
        elif i.kind == "boxes":  # left, top, right, bottom
            array = np.sort(rng.integers(0, i.below, [*shape[:-1], 2, 2]), axis=-2).reshape(shape)
        elif i.kind == "mask":
            array = np.ones(shape, np.int64)
        elif i.kind == "values":
            array = np.resize(np.array(i.values), shape)
        else:
            array = rng.standard_normal(shape, dtype=np.float32)
        made[i.name] = array.astype(i.dtype) if i.dtype else array
    return made


GUESSES = {"batch": (1, 2, 3), "height": (64, 96, 32), "width": (64, 64, 128), None: (16, 7, 33)}


def guess(specs) -> tuple[list[Input], list[dict[str, int]]]:
    """Inputs and three sizes of a file that nobody described. `specs`: (name, ONNX's name of its type, shape)."""
    inputs, free = [], {}
    for name, kind, shape in specs:
        whole = "int" in kind or kind == "bool"
        dims: list[int | str] = []
        for at, extent in enumerate(shape):
            if isinstance(extent, int) and extent > 0:
                dims.append(extent)
                continue
            named = isinstance(extent, str) and extent not in ("", "?")
            dims.append(extent if named else "batch" if at == 0 else f"{name}_{at}")
            image = not whole and len(shape) == 4 and at > 1  # whatever its dimensions are called
            free.setdefault(dims[-1], (None, None, "height", "width")[at] if image else "batch" if at == 0 else dims[-1].lower())
        inputs.append(Input(name, tuple(dims), ("mask" if "mask" in name else "tokens") if whole else "float",
                            2 if "type" in name or kind == "bool" else 50 if whole else 0,
                            {"float": "float32", "double": "float64"}.get(kind, kind)))

    def extent(meaning: str, turn: int) -> int:
        return next((values[turn] for known, values in GUESSES.items() if known and known in meaning), GUESSES[None][turn])

    return inputs, [{dim: extent(meaning, turn) for dim, meaning in free.items()} for turn in range(3)]
