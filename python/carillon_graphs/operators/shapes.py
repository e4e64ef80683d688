"""Operators that move elements, or make tensors of shapes."""

from __future__ import annotations

import numpy as np
from onnx import helper

from ..sketch import BOOL, EVERY, F16, F32, F64, I32, I64, NUMBERS, PROTO, TEXT, draw_numbers, is_float
from .registry import row

ANY = EVERY


def moved_types(s, op, place=0):
    return s.types(op, place, among=ANY)


@row("Transpose")
def transpose(s, op):
    value = s.tensor(moved_types(s, op), rank=(1, 4))
    perm = list(range(value.rank))
    s.rng.shuffle(perm)
    s.node(op, [value], perm=perm if s.chance(0.85) else None)


def axes_form(s, op, taken, axes, since, **attributes):
    """A node whose axes are an attribute, and from opset `since` on an input."""
    if s.opset < since:
        return s.node(op, taken, axes=axes, **attributes)
    return s.node(op, [*taken, None if axes is None else s.const(np.array(axes, np.int64))], **attributes)


@row("Unsqueeze")
def unsqueeze(s, op):
    value = s.tensor(moved_types(s, op), rank=(0, 3))
    count = s.one([1, 1, 2])
    axes = s.rng.sample(range(value.rank + count), count)
    if s.opset >= 11 and s.chance(0.3):
        axes = [axis - value.rank - count for axis in axes]
    axes_form(s, op, [value], axes, 13)


@row("Squeeze")
def squeeze(s, op):
    value = s.tensor(moved_types(s, op), rank=(1, 4), where=lambda v: any(v.fixed(a) and v.shape[a] == 1 for a in range(v.rank)),
                     dims=(*s.dims(s.within(0, 2)), 1, *s.dims(s.within(0, 1))))
    ones = [a for a in range(value.rank) if value.fixed(a) and value.shape[a] == 1]
    axes = s.rng.sample(ones, s.within(1, len(ones)))
    axes_form(s, op, [value], axes if s.chance(0.8) else None, 13)


@row("Flatten")
def flatten(s, op):
    value = s.tensor(moved_types(s, op), rank=(1, 4))
    axis = s.within(0, value.rank)
    s.node(op, [value], axis=axis if s.chance(0.8) else None)


@row("Reshape")
def reshape(s, op):
    value = s.tensor(moved_types(s, op), rank=(1, 4))
    way = s.one(["fixed", "fixed", "computed", "flat"])
    if way == "computed":  # Shape(x)'s parts in another order, as exporters write it
        shape, = s.node("Shape", [value])
        first, = s.node("Gather", [shape, s.const(np.array([s.within(0, value.rank - 1)], np.int64))])
        rest = s.const(np.array([-1], np.int64))
        parts = [first, rest] if s.chance(0.7) else [rest, first]
        target, = s.node("Concat", parts, axis=0)
        s.node(op, [value, target])
        return
    if way == "flat":
        target = s.one([[-1], [1, -1], [-1, 1], [0, -1], [1, 1, -1]])
        if value.rank > 1:
            target = s.one([target, [0, 0, -1], [0, -1, 1]])
    else:
        # The fixed extents are split or joined; what is open goes into the -1 or stays by a 0.
        target = []
        for axis in range(value.rank):
            extent = value.shape[axis]
            if not value.fixed(axis):
                target.append(0 if s.chance(0.6) else -1)
            elif extent % 2 == 0 and extent > 0 and s.chance(0.4):
                target += [2, extent // 2]
            elif target and target[-1] > 0 and s.chance(0.4):
                target[-1] *= extent
            else:
                target.append(extent)
        if s.chance(0.3):
            s.rng.shuffle(target)
        if -1 not in target and s.chance(0.5):
            target[s.within(0, len(target) - 1)] = -1
        target = [extent if extent != -1 or place == target.index(-1) else 0 for place, extent in enumerate(target)]
    s.node(op, [value, s.const(np.array(target, np.int64))],
           allowzero=1 if s.opset >= 14 and 0 not in target and s.chance(0.1) else None)


@row("Slice")
def slice_(s, op):
    value = s.tensor(moved_types(s, op), rank=(1, 4))
    axes = s.rng.sample(range(value.rank), s.one([1, 1, min(2, value.rank)]))
    starts, ends, steps = [], [], []
    for axis in axes:
        extent = value.least(axis)
        if s.opset >= 10 and s.chance(0.2):
            starts.append(s.one([-1, extent - 1]))
            ends.append(s.one([-(2**62), -extent - 1]))
            steps.append(s.one([-1, -1, -2]))
        else:
            starts.append(s.one([0, 0, 1, -1, -2, s.within(0, extent)]))
            ends.append(s.one([2**62, 2**31 - 1, -1, s.within(0, extent), extent]))
            steps.append(s.one([1, 1, 1, 2]) if s.opset >= 10 else 1)
    if s.opset < 10:
        return s.node(op, [value], axes=axes, starts=starts, ends=ends)
    kind = s.one([np.int64, np.int64, np.int32]) if all(abs(e) < 2**31 for e in ends) else np.int64
    as_const = lambda numbers: s.const(np.array(numbers, kind))
    if s.chance(0.2):
        axes = [axis - value.rank for axis in axes]
    s.node(op, [value, as_const(starts), as_const(ends), as_const(axes),
                as_const(steps) if set(steps) != {1} or s.chance(0.5) else None])


@row("Concat")
def concat(s, op):
    value = s.tensor(moved_types(s, op), rank=(1, 4))
    axis = s.axis(value)
    others = []
    for _ in range(s.one([1, 1, 2, 0])):
        if value.fixed() and s.chance(0.3):
            others.append(s.like(value, exact=True))
        elif s.chance(0.6):
            others.append(s.like(value, exact=True))
        else:
            others.append(s.find(lambda v: v.dtype == value.dtype and v.rank == value.rank) or value)
    parts = [value, *others]
    s.rng.shuffle(parts)
    s.node(op, parts, axis=axis)


@row("Split")
def split(s, op):
    value = s.tensor(moved_types(s, op), rank=(1, 4), where=lambda v: any(v.fixed(a) and v.shape[a] >= 2 for a in range(v.rank)),
                     dims=(*s.dims(s.within(0, 2)), s.one([2, 3, 4, 6])))
    if s.chance(0.1):
        axis, extent = 0, None
        s.require(value.rank > 0)
    else:
        axis = s.one([a for a in range(value.rank) if value.fixed(a) and value.shape[a] >= 2])
        extent = value.shape[axis]
    parts = s.one([2, 2, 3])
    given = axis - value.rank if s.opset >= 11 and s.chance(0.3) else axis
    if extent is not None and (s.chance(0.6) or extent % parts != 0):
        cuts = sorted(s.within(0 if s.chance(0.1) else 1, extent) for _ in range(parts - 1))
        sizes = [int(x) for x in np.diff([0, *cuts, extent])]
        if s.opset < 13:
            return s.node(op, [value], parts, axis=given, split=sizes)
        return s.node(op, [value, s.const(np.array(sizes, np.int64))], parts, axis=given)
    s.node(op, [value], parts, axis=given, num_outputs=parts if s.opset >= 18 else None)


@row("Expand")
def expand(s, op):
    value = s.tensor(moved_types(s, op), rank=(0, 3))
    if s.chance(0.4):
        other = s.tensor(rank=(1, 4), where=lambda v: v.rank >= 1)
        target, = s.node("Shape", [other])
    else:
        shape = [s.one([1, extent]) if value.fixed(axis) and extent != 1 else s.one([1, 1, 2, 3])
                 for axis, extent in enumerate(value.shape)]
        target = s.const(np.array([s.within(1, 3)] * s.within(0, 1) + shape, np.int64))
    s.node(op, [value, target])


@row("Tile")
def tile(s, op):
    value = s.tensor(moved_types(s, op), rank=(1, 4))
    repeats = [s.one([1, 1, 2, 3, 0 if s.chance(0.2) else 1]) for _ in range(value.rank)]
    s.node(op, [value, s.const(np.array(repeats, np.int64))])


@row("Pad")
def pad(s, op):
    value = s.tensor(s.types(op, 0, among=NUMBERS + (BOOL,)), rank=(1, 4))
    mode = s.one(["constant", "constant", None, "reflect", "edge"] + (["wrap"] if s.opset >= 19 else []))
    most = 1 if mode == "reflect" else 2
    begin = [s.within(0, most) if s.chance(0.5) else 0 for _ in range(value.rank)]
    end = [s.within(0, most) if s.chance(0.5) else 0 for _ in range(value.rank)]
    if mode in ("constant", None) and s.chance(0.2):
        begin[s.within(0, value.rank - 1)] = -1
    if s.opset < 11:
        s.require(is_float(value.dtype))
        return s.node(op, [value], mode=mode, pads=begin + end, value=s.one([None, 0.5]))
    fill = s.const(s.one([0, 1, 3]), value.dtype) if s.chance(0.5) else None
    if s.opset >= 18 and s.chance(0.3):
        axis = s.within(0, value.rank - 1)
        return s.node(op, [value, s.const(np.array([begin[axis], end[axis]], np.int64)), fill,
                           s.const(np.array([axis], np.int64))], mode=mode)
    s.node(op, [value, s.const(np.array(begin + end, np.int64)), fill], mode=mode)


@row("DepthToSpace", "SpaceToDepth")
def blocks(s, op):
    block = 2
    if op == "DepthToSpace":
        value = s.tensor(s.types(op, 0), rank=4, where=lambda v: v.fixed(1) and v.shape[1] % 4 == 0,
                         dims=("N", s.one([4, 8]), *s.dims(2)))
        return s.node(op, [value], blocksize=block, mode=s.one(["DCR", "CRD", None]) if s.opset >= 11 else None)
    value = s.tensor(s.types(op, 0), rank=4, where=lambda v: v.fixed(2, 3) and v.shape[2] % 2 == v.shape[3] % 2 == 0,
                     dims=("N", s.one([1, 3]), s.one([2, 4]), s.one([2, 4])))
    s.node(op, [value], blocksize=block)


@row("Shape")
def shape(s, op):
    value = s.tensor(moved_types(s, op), rank=(1, 4))
    if s.opset >= 15 and s.chance(0.4):
        found, = s.node(op, [value], start=s.one([0, 1, -1, None]), end=s.one([1, 2, -1, None]))
    else:
        found, = s.node(op, [value])
    use_of_size(s, found, value)


@row("Size")
def size(s, op):
    value = s.tensor(moved_types(s, op))
    found, = s.node(op, [value])
    use_of_size(s, found, value)


def use_of_size(s, found, value):
    """What exporters do with sizes: means by hand, masks, ranges."""
    if s.chance(0.4) or not is_float(value.dtype) or found.arrays[0].size == 0:
        return
    number, = s.node("Cast", [found], to=PROTO[value.dtype])
    if number.rank == 1:
        index = s.const(s.within(0, number.shape[0] - 1), I64)
        number, = s.node("Gather", [number, index])
    s.node(s.one(["Add", "Mul", "Div"]), [value, number])


@row("ConstantOfShape")
def constant_of_shape(s, op):
    dtype = s.one([F32, F32, I64, I32, F64, BOOL, F16])
    filled = helper.make_tensor("value", PROTO[dtype], [1], np.array([s.within(0, 3)]).astype(dtype).tolist())
    target = shape_of_something(s)
    s.node(op, [target], value=filled if s.chance(0.8) else None)


def shape_of_something(s):
    if s.chance(0.7):
        return s.node("Shape", [s.tensor(rank=(1, 3), where=lambda v: v.rank >= 1)])[0]
    return s.const(np.array([s.one([0, 1, 2, 3]) if s.chance(0.3) else s.one([1, 2, 3]) for _ in range(s.within(0, 3))], np.int64))


@row("EyeLike")
def eye_like(s, op):
    value = s.tensor(s.types(op, 0), rank=2)
    s.node(op, [value], k=s.one([None, 0, 1, -1]), dtype=s.one([None, PROTO[F32], PROTO[I64]]))


@row("Range")
def range_(s, op):
    if s.chance(0.6):  # 0 to an extent, as positions are
        value = s.tensor(rank=(1, 3), where=lambda v: v.rank >= 1)
        sizes, = s.node("Shape", [value])
        limit, = s.node("Gather", [sizes, s.const(s.within(0, value.rank - 1), I64)])
        return s.node(op, [s.const(0, I64), limit, s.const(s.one([1, 1, 2]), I64)])
    dtype = s.one([F32, F64, I32, I64])
    start, limit, step = s.one([(0, 5, 1), (4, -2, -1), (1, 1, 1), (3, 9, 2), (0, 1, 3)])
    s.node(op, [s.const(start, dtype), s.const(limit, dtype), s.const(step, dtype)])


@row("Trilu")
def trilu(s, op):
    value = s.tensor(s.types(op, 0), rank=(2, 4))
    s.node(op, [value, s.const(s.within(-2, 2), I64) if s.chance(0.6) else None], upper=s.one([0, 1, None]))


@row("ReverseSequence")
def reverse_sequence(s, op):
    batch = s.one([0, 1])
    lengths = s.one([1, 2])
    dims = [s.one([4, 3]), s.one([4, 3]), *s.dims(s.within(0, 1))]
    dims[batch] = s.one([SYMBOL, 3])
    value = s.tensor(s.types(op, 0, among=NUMBERS + (TEXT,)), rank=(2, 3), dims=tuple(dims), new=1.0)
    counts = s.input(I64, (dims[batch],), draw_numbers(I64, "index", 0 if lengths == 2 and s.chance(0.1) else 1, 3))
    s.node(op, [value, counts], batch_axis=batch, time_axis=1 - batch)


SYMBOL = "N"


@row("Resize")
def resize(s, op):
    value = s.tensor(s.types(op, 0, among=(F32, F32, F32, F32, F16, F64)), rank=(3, 4), least=2)
    mode = s.one(["nearest", "nearest", "linear", "cubic"] if value.rank == 4 else ["nearest", "linear"])
    scales = [1.0, 1.0] + [s.one([2.0, 0.5, 1.5, 1.0]) for _ in range(value.rank - 2)]
    if s.chance(0.1):
        scales[s.within(0, 1)] = 2.0
    if s.opset < 11:
        return s.node(op, [value, s.const(np.array(scales, np.float32))], mode=s.one(["nearest", "linear"]))
    attributes = {"mode": mode, "coordinate_transformation_mode": s.one(
        ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel", None])}
    if mode == "nearest":
        attributes["nearest_mode"] = s.one([None, "floor", "ceil", "round_prefer_ceil"])
    if mode == "cubic":
        attributes["cubic_coeff_a"] = s.one([None, -0.5])
        attributes["exclude_outside"] = s.one([None, 0, 1])
    nothing = s.const(np.zeros(0, np.float32)) if s.opset < 13 else None
    if value.fixed(0, 1) or s.chance(0.6):
        return s.node(op, [value, nothing, s.const(np.array(scales, np.float32))], **attributes)
    if s.opset >= 18:  # the last axes alone
        axes = list(range(2, value.rank))
        return s.node(op, [value, None, None, s.const(np.array([s.within(1, 5) for _ in axes], np.int64))], axes=axes, **attributes)
    sizes, = s.node("Shape", [value])
    kept, = s.node("Slice", [sizes, s.const(np.array([0])), s.const(np.array([2]))])
    wanted, = s.node("Concat", [kept, s.const(np.array([s.within(1, 5) for _ in range(value.rank - 2)], np.int64))], axis=0)
    empty = s.const(np.zeros(0, np.float32))
    s.node(op, [value, nothing, empty if s.opset < 13 else None, wanted], **attributes)


@row("Upsample")
def upsample(s, op):
    value = s.tensor(s.types(op, 0, among=(F32,)), rank=4)
    scales = [1.0, 1.0, s.one([1.0, 2.0]), s.one([1.0, 2.0, 3.0])]
    mode = s.one(["nearest", "linear", None])
    if s.opset < 9:
        return s.node(op, [value], mode=mode, scales=scales)
    s.node(op, [value, s.const(np.array(scales, np.float32))], mode=mode)
