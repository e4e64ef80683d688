"""Products of matrices, and what is done to matrices."""

from __future__ import annotations

from ..sketch import F32, F64
from .registry import row


@row("MatMul")
def matmul(s, op):
    value = s.tensor(s.types(op, 0), rank=(1, 4))
    last = value.rank - 1
    way = s.one(["weights", "weights", "itself", "other", "left"])
    if way == "weights" and value.fixed(last):
        shape = [value.shape[last], s.within(1, 6)]
        if value.rank >= 3 and s.chance(0.2) and value.fixed(value.rank - 3):
            shape.insert(0, value.shape[-3])
        return s.node(op, [value, s.weights(*shape[:1 if s.chance(0.1) else None], dtype=value.dtype, scale=0.5)])
    if way == "left" and value.rank >= 2 and value.fixed(last - 1):
        return s.node(op, [s.weights(s.within(1, 4), value.shape[last - 1], dtype=value.dtype, scale=0.5), value])
    s.require(value.rank >= 2)
    if way == "itself":  # attention to itself
        perm = [*range(value.rank - 2), last, last - 1]
        turned, = s.node("Transpose", [value], perm=perm)
        return s.node(op, [value, turned] if s.chance(0.6) else [turned, value])
    dims = value.dims
    s.require(None not in dims)
    theirs = (*dims[:-2], dims[-1], s.one([dims[-2], 3, "K" if s.symbols == 4 else 2]))
    s.node(op, [value, s.input(value.dtype, theirs)])


@row("Gemm")
def gemm(s, op):
    value = s.tensor(s.types(op, 0), rank=2)
    turned = s.chance(0.2)
    inner = 0 if turned else 1
    s.require(value.fixed(inner))
    columns = s.within(1, 6)
    other_turned = s.chance(0.4)
    shape = (columns, value.shape[inner]) if other_turned else (value.shape[inner], columns)
    bias = s.weights(*s.one([(columns,), (1, columns), (1,), (1, 1)]), dtype=value.dtype) if s.chance(0.6) or s.opset < 11 else None
    whole = value.dtype.kind in "iu"
    s.node(op, [value, s.weights(*shape, dtype=value.dtype), bias], transA=int(turned) or None, transB=int(other_turned) or None,
           alpha=s.one([None, 2.0 if whole else 0.5]), beta=s.one([None, 2.0 if whole else 0.25]))


@row("Det")
def determinant(s, op):
    extent = s.within(1, 3)
    value = s.tensor(s.types(op, 0, among=(F32, F32, F64)), rank=(2, 3),
                     where=lambda v: v.fixed(v.rank - 1, v.rank - 2) and v.shape[-1] == v.shape[-2],
                     dims=(*s.dims(s.within(0, 1)), extent, extent))
    s.node(op, [value])
