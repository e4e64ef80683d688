"""Operators that take places: gather, scatter, and those whose data decide how large results are."""

from __future__ import annotations

import numpy as np

from ..sketch import BOOL, EVERY, F32, F64, I32, I64, NUMBERS, draw_numbers
from .registry import row


def some_indices(s, extent: int, rank: int, dtype=I64, dims=None):
    """Places below `extent`, constants or an input; some counted from the end."""
    low = -extent if s.opset >= 11 and s.chance(0.3) else 0
    draw = draw_numbers(dtype, "index", low, extent)
    if dims is None and s.chance(0.6):
        return s.const(draw(s.numbers, tuple(s.within(1, 3) for _ in range(rank))))
    return s.input(dtype, dims if dims is not None else s.dims(rank), draw)


@row("Gather")
def gather(s, op):
    value = s.tensor(s.types(op, 0, among=EVERY), rank=(1, 4))
    axis = s.axis(value)
    if not value.fixed(axis % value.rank):
        index = s.one([0, 0, -1 if s.opset >= 11 else 0, 1])
        return s.node(op, [value, s.const(np.array(index if s.chance(0.6) else [index], np.int64))], axis=axis)
    s.require(value.shape[axis] > 0)
    indices = some_indices(s, value.shape[axis], s.one([0, 1, 1, 2]), s.one([I64, I64, I32]))
    s.node(op, [value, indices], axis=axis if axis != 0 or s.chance(0.5) else None)


@row("GatherElements")
def gather_elements(s, op):
    value = s.tensor(s.types(op, 0, among=EVERY), rank=(1, 3))
    axis = s.axis(value)
    place = axis % value.rank
    extent = value.least(place)
    s.require(extent > 0)
    dims = list(value.dims)
    if value.fixed(place) and s.chance(0.5):
        dims[place] = s.within(1, 3)
    s.require(None not in dims)
    s.node(op, [value, some_indices(s, extent, value.rank, dims=tuple(dims))], axis=axis)


@row("GatherND")
def gather_nd(s, op):
    value = s.tensor(s.types(op, 0, among=EVERY), rank=(1, 4))
    batch = s.within(0, min(1, value.rank - 1)) if s.opset >= 12 else 0
    depth = s.within(1, value.rank - batch)
    lowest = min(value.least(axis) for axis in range(batch, batch + depth))
    s.require(lowest > 0)
    draw = draw_numbers(I64, "index", 0, lowest)
    if batch:
        s.require(value.dims[0] is not None)
        indices = s.input(I64, (value.dims[0], s.within(1, 3), depth), draw)
    else:
        indices = s.const(draw(s.numbers, (s.within(1, 3), depth))) if s.chance(0.6) else s.input(I64, (*s.dims(1), depth), draw)
    s.node(op, [value, indices], batch_dims=batch or None)


@row("Scatter", "ScatterElements")
def scatter_elements(s, op):
    value = s.tensor(s.types(op, 0, among=NUMBERS), rank=(1, 3))
    axis = s.axis(value) if s.opset >= 11 else s.within(0, value.rank - 1)
    place = axis % value.rank
    s.require(None not in value.dims and value.least(place) > 0)
    dims = list(value.dims)
    reduction = s.one([None, None, "add", "mul"] + (["max", "min"] if s.opset >= 18 else [])) if s.opset >= 16 else None
    if reduction is None or reduction == "none":
        dims[place] = 1  # the same place twice would be anything
    indices = some_indices(s, value.least(place), value.rank, dims=tuple(dims))
    updates = s.input(value.dtype, tuple(dims))
    s.node(op, [value, indices, updates], axis=axis, reduction=reduction)


@row("ScatterND")
def scatter_nd(s, op):
    value = s.tensor(s.types(op, 0, among=NUMBERS), rank=(1, 3))
    s.require(None not in value.dims and value.least(0) > 0)
    reduction = s.one([None, None, "add", "mul"] + (["max", "min"] if s.opset >= 18 else [])) if s.opset >= 16 else None
    count = 1 if reduction is None else s.within(1, 3)
    draw = draw_numbers(I64, "index", 0, value.least(0))
    indices = s.input(I64, (count, 1), draw) if s.chance(0.3) else s.const(draw(s.numbers, (count, 1)))
    s.node(op, [value, indices, s.input(value.dtype, (count, *value.dims[1:]))], reduction=reduction)


@row("OneHot")
def one_hot(s, op):
    depth = s.within(1, 4)
    dtype = s.one([I64, I64, I32, F32])
    places = draw_numbers(dtype, "index", -1 if s.chance(0.3) else 0, depth + s.within(0, 1))
    value = s.tensor(dtype=dtype, rank=(0, 2), numbers=places)
    kind = s.one([F32, F32, I64, F64, BOOL])
    axis = s.within(-value.rank - 1, value.rank)
    s.node(op, [value, s.const(s.one([np.int64(depth), np.array([depth])]), I64), s.const(np.array([0, 1]), kind)],
           axis=axis if s.chance(0.6) else None)


@row("TopK")
def top_k(s, op):
    value = s.tensor(s.types(op, 0), rank=(1, 3))
    axis = s.axis(value) if s.opset >= 11 else s.within(0, value.rank - 1)
    most = value.least(axis % value.rank)
    k = s.within(0 if s.opset >= 11 and s.chance(0.1) else 1, max(1, most))
    if s.opset < 10:
        return s.node(op, [value], 2, axis=axis, k=k)
    if s.opset >= 13 and value.fixed() is False and s.chance(0.2):  # as many as there are
        sizes, = s.node("Shape", [value])
        many, = s.node("Gather", [sizes, s.const(np.array([axis % value.rank]))])
        return s.node(op, [value, many], 2, axis=axis)
    s.node(op, [value, s.const(np.array([k], np.int64))], 2, axis=axis, largest=s.one([0, 1, None]) if s.opset >= 11 else None)


@row("Compress")
def compress(s, op):
    value = s.tensor(s.types(op, 0, among=EVERY), rank=(1, 3))
    axis = s.axis(value)
    if s.chance(0.3) and value.dims[axis] is not None:
        condition = s.input(BOOL, (value.dims[axis],))
    else:
        condition = s.const(draw_numbers(BOOL)(s.numbers, (s.within(1, max(1, value.least(axis % value.rank))),)))
    s.node(op, [value, condition], axis=axis if s.chance(0.85) else None)


@row("NonZero")
def non_zero(s, op):
    s.node(op, [s.tensor(s.types(op, 0, among=NUMBERS + (BOOL, BOOL)), rank=(1, 3))])


@row("Unique")
def unique(s, op):
    value = s.tensor(s.types(op, 0, among=(I64, I64, I32, F32, F64)), rank=(1, 3))
    s.node(op, [value], s.one([1, 2, 4]), axis=s.axis(value) if s.chance(0.4) else None, sorted=s.one([1, 1, None, 0]))


@row("NonMaxSuppression")
def non_max_suppression(s, op):
    batch = s.one(["N", 1, 2])
    count = s.one([2, 4, "M" if s.symbols > 2 else 3])

    def boxes(generator, shape):
        corners = generator.uniform(0, 4, shape).astype(np.float32)
        return np.concatenate([np.minimum(corners[..., :2], corners[..., 2:]), np.maximum(corners[..., :2], corners[..., 2:])], -1)

    given = s.input(F32, (batch, count, 4), boxes)
    scores = s.input(F32, (batch, s.one([1, 2]), count), draw_numbers(F32, "positive"))
    s.node(op, [given, scores, s.const(np.array([s.one([1, 2, 3])])), s.const(np.array([0.5], np.float32)),
                s.const(np.array([0.4], np.float32)) if s.chance(0.6) else None], center_point_box=s.one([None, 0, 1]))


