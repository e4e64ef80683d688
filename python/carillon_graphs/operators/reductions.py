"""Operators that make one of several elements along axes, or compare them along axes."""

from __future__ import annotations

from ..sketch import F16, F32, F64, FLOATS, I64, NUMBERS, draw_numbers
from .elementwise import tamed
from .registry import row
from .shapes import axes_form


@row("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd",
     "ReduceSum", "ReduceSumSquare")
def reduce(s, op):
    rounds = op in ("ReduceL2", "ReduceLogSum", "ReduceLogSumExp")  # a root or a logarithm as a whole number
    value = s.tensor(s.types(op, 0, among=FLOATS if rounds else NUMBERS), rank=(1, 4))
    if op == "ReduceLogSum":
        value = tamed(s, value, 0.2, 3.0)
    axes = s.rng.sample(range(value.rank), s.within(1, value.rank))
    if s.opset >= 11 and s.chance(0.3):
        axes = [axis - value.rank for axis in axes]
    if s.chance(0.2):
        axes = None
    since = 13 if op == "ReduceSum" else 18
    more = {"noop_with_empty_axes": s.one([0, 1])} if axes is None and s.opset >= since and s.chance(0.4) else {}
    axes_form(s, op, [value], axes, since, keepdims=s.one([0, 1, None]), **more)


@row("ArgMax", "ArgMin")
def arg(s, op):
    value = s.tensor(s.types(op, 0), rank=(1, 4))
    s.node(op, [value], axis=s.axis(value) if s.opset >= 11 else s.within(0, value.rank - 1), keepdims=s.one([0, 1, None]),
           select_last_index=s.one([0, 1]) if s.opset >= 12 and s.chance(0.4) else None)


@row("Softmax", "LogSoftmax", "Hardmax")
def softmax(s, op):
    value = s.tensor(s.types(op, 0), rank=(1, 4))
    axis = s.axis(value) if s.opset >= 11 else s.within(0, value.rank - 1)
    s.node(op, [value], axis=axis if s.chance(0.8) else None)


@row("LpNormalization")
def lp_normalization(s, op):
    value = s.tensor(s.types(op, 0), rank=(1, 4))
    s.node(op, [value], axis=s.axis(value), p=s.one([1, 2, None]))


@row("MeanVarianceNormalization")
def mean_variance(s, op):
    value = s.tensor(s.types(op, 0), rank=(2, 4))
    axes = s.rng.sample(range(value.rank), s.within(1, value.rank))
    if value.rank == 4 and s.chance(0.4):
        axes = None
    s.node(op, [value], axes=axes)


@row("CumSum")
def cumsum(s, op):
    value = s.tensor(s.types(op, 0), rank=(1, 4))
    s.node(op, [value, s.const(s.axis(value), I64)], exclusive=s.one([0, 1, None]), reverse=s.one([0, 1, None]))


@row("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")
def loss(s, op):
    value = s.tensor(s.types(op, 0, among=(F32, F32, F64)), rank=(2, 4), fixed=(1,), least=2,
                     where=lambda v: v.dims and None not in v.dims)
    classes = value.shape[1]
    dims = (value.dims[0], *value.dims[2:])
    target = s.input(I64, dims, draw_numbers(I64, "index", 0, classes))
    weight = s.weights(classes, dtype=value.dtype, kind="positive") if s.chance(0.4) else None
    outputs = s.one([1, 2]) if op == "SoftmaxCrossEntropyLoss" else 1
    s.node(op, [value, target, weight], outputs, reduction=s.one(["none", "none", "sum", "mean", None]),
           ignore_index=s.one([None, None, 0, -1]))


@row("Einsum")
def einsum(s, op):
    value = s.tensor(s.types(op, 0, among=(F32, F32, F32, F64, F16)), rank=(1, 3))
    letters = "abc"[:value.rank]
    way = s.one(["permute", "sum", "product", "inner", "outer", "row"])
    if way == "permute":
        result = "".join(s.rng.sample(letters, len(letters)))
        return s.node(op, [value], equation=f"{letters}->{result}")
    if way == "sum":
        return s.node(op, [value], equation=f"{letters}->{''.join(s.rng.sample(letters, s.within(0, len(letters))))}")
    if way == "product":
        return s.node(op, [value, s.like(value, exact=True)], equation=f"{letters},{letters}->{letters}")
    if way == "inner":
        s.require(value.fixed(value.rank - 1))
        weights = s.weights(value.shape[-1], s.within(1, 4), dtype=value.dtype)
        return s.node(op, [value, weights], equation=f"{letters},{letters[-1]}z->{letters[:-1]}z")
    other = s.like(value, exact=True)
    if way == "outer":
        s.require(value.rank <= 2)
        theirs = "xyz"[:value.rank]
        return s.node(op, [value, other], equation=f"{letters},{theirs}->{letters}{theirs}")
    s.require(value.rank >= 2)
    theirs = letters[:-2] + "z" + letters[-1]
    s.node(op, [value, other], equation=f"{letters},{theirs}->{letters[:-1]}z")


