"""Operators that look at one element at a time, alone or with others by broadcasting."""

from __future__ import annotations

import numpy as np

from ..sketch import BF16, BOOL, EVERY, F16, F32, F64, I8, I32, I64, NUMBERS, PROTO, TEXT, U8, is_float
from .registry import row


def tamed(s, value, low, high):
    """`value`, now and then as it is, else within low to high."""
    if s.chance(0.1):
        return value
    squashed, = s.node("Tanh", [value])
    half, middle = (high - low) / 2, (high + low) / 2
    scaled, = s.node("Mul", [squashed, s.const(np.asarray(half), value.dtype)])
    return s.node("Add", [scaled, s.const(np.asarray(middle), value.dtype)])[0]


DOMAINS = {"Acos": (-0.9, 0.9), "Asin": (-0.9, 0.9), "Atanh": (-0.9, 0.9), "Acosh": (1.1, 3.0), "Log": (0.2, 4.0),
           "Sqrt": (0.1, 4.0), "Reciprocal": (0.5, 2.5), "Tan": (-1.0, 1.0), "Exp": (-3.0, 3.0), "Cosh": (-3.0, 3.0),
           "Sinh": (-3.0, 3.0)}


@row("Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Ceil", "Cos", "Cosh", "Erf", "Exp", "Floor",
     "HardSwish", "Identity", "Log", "Mish", "Neg", "Reciprocal", "Relu", "Round", "Sigmoid", "Sign", "Sin", "Sinh",
     "Softplus", "Softsign", "Sqrt", "Tan", "Tanh")
def unary(s, op):
    value = s.tensor(s.types(op, 0, among=EVERY if op == "Identity" else NUMBERS))
    if op in DOMAINS:
        value = tamed(s, value, *DOMAINS[op])
    s.node(op, [value])


@row("Celu", "Elu", "Gelu", "HardSigmoid", "LeakyRelu", "Selu", "Shrink", "ThresholdedRelu")
def unary_with_attributes(s, op):
    value = s.tensor(s.types(op, 0))
    real = lambda low, high: round(s.rng.uniform(low, high), 2) if s.chance(0.6) else None
    attributes = {"Celu": {"alpha": real(0.5, 2)}, "Elu": {"alpha": real(0.1, 2)},
                  "Gelu": {"approximate": s.one(["none", "tanh", None])},
                  "HardSigmoid": {"alpha": real(0.1, 0.5), "beta": real(0, 0.7)}, "LeakyRelu": {"alpha": real(-0.1, 0.5)},
                  "Selu": {"alpha": real(1, 2), "gamma": real(0.5, 2)},
                  "Shrink": {"bias": real(0, 1), "lambd": real(0.1, 1)}, "ThresholdedRelu": {"alpha": real(0.1, 1.5)}}
    s.node(op, [value], **attributes[op])


@row("BitwiseNot")
def bitwise_not(s, op):
    s.node(op, [s.tensor(s.types(op, 0))])


@row("Not")
def logical_not(s, op):
    s.node(op, [s.tensor((BOOL,))])


def ordered(s, first, second):
    """Either may come first."""
    return [second, first] if s.chance(0.4) else [first, second]


@row("Add", "Sub", "Mul")
def arithmetic(s, op):
    value = s.tensor(s.types(op, 0))
    s.node(op, ordered(s, value, s.like(value)))


@row("Div")
def divide(s, op):
    value = s.tensor(s.types(op, 0))
    s.node(op, [value, s.like(value, kind="positive")])


@row("Mod")
def modulo(s, op):
    value = s.tensor(s.types(op, 0))
    s.node(op, [value, s.like(value, kind="positive")],
           fmod=1 if is_float(value.dtype) or s.chance(0.3) else s.one([0, None]))


@row("Pow")
def power(s, op):
    value = s.tensor(s.types(op, 0))
    if s.chance(0.6):
        exponent = s.const(s.one([2, 2, 3, 1, 0]), s.one([value.dtype, I64, F32]) if s.opset >= 12 else value.dtype)
    else:
        value, = s.node("Abs", [value])
        exponent = s.like(value, kind="positive")
    s.node(op, [value, exponent])


@row("PRelu")
def prelu(s, op):
    value = s.tensor(s.types(op, 0), rank=(1, 4))
    axis = s.within(0, value.rank - 1)
    slope = [1] * (value.rank - axis)
    if value.fixed(axis):
        slope[0] = value.shape[axis]
    s.node(op, [value, s.weights(*slope, dtype=value.dtype)])


@row("BitShift")
def shift(s, op):
    value = s.tensor(s.types(op, 0))
    amount = s.const(s.numbers.integers(0, 7, ()), value.dtype) if s.chance(0.5) else s.like(value, kind="positive")
    s.node(op, [value, amount], direction=s.one(["LEFT", "RIGHT"]))


@row("BitwiseAnd", "BitwiseOr", "BitwiseXor")
def bitwise(s, op):
    value = s.tensor(s.types(op, 0))
    s.node(op, ordered(s, value, s.like(value)))


@row("And", "Or", "Xor")
def logical(s, op):
    value = s.tensor((BOOL,))
    s.node(op, ordered(s, value, s.like(value)))


@row("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
def compare(s, op):
    value = s.tensor(s.types(op, 0, among=NUMBERS * 2 + (BOOL, TEXT)))
    s.node(op, ordered(s, value, s.like(value)))


@row("Max", "Min", "Mean", "Sum")
def several(s, op):
    value = s.tensor(s.types(op, 0))
    others = [s.like(value) for _ in range(s.one([0, 1, 1, 1, 2, 3]))]
    s.node(op, [value, *others])


@row("Where")
def where(s, op):
    value = s.tensor(s.types(op, 1, among=EVERY))
    other = s.like(value)
    condition = s.like(value, BOOL)
    s.node(op, [condition, *ordered(s, value, other)])


@row("Clip")
def clip(s, op):
    value = s.tensor(s.types(op, 0))
    low, high = sorted(float(x) for x in s.numbers.uniform(-1.5, 1.5, 2))
    if not is_float(value.dtype):
        low, high = sorted(int(x) for x in s.numbers.integers(0, 6, 2))
    if s.opset < 11:
        return s.node(op, [value], min=s.one([low, None]), max=s.one([high, None]))
    s.node(op, [value, s.const(low, value.dtype) if s.chance(0.8) else None,
                s.const(high, value.dtype) if s.chance(0.8) else None])


@row("IsInf", "IsNaN")
def float_test(s, op):
    value = s.tensor(s.types(op, 0))
    if s.chance(0.7):  # some are what is asked for
        holes = s.like(value, BOOL)
        odd = s.const(np.nan if op == "IsNaN" else s.one([np.inf, -np.inf]), value.dtype)
        value, = s.node("Where", [holes, odd, value], tame=False)
    flag = lambda: s.one([0, 1, None])
    s.node(op, [value], **({"detect_negative": flag(), "detect_positive": flag()} if op == "IsInf" else {}))


@row("Cast")
def cast(s, op):
    value = s.tensor(s.types(op, 0, among=NUMBERS * 2 + (BOOL, BOOL)))
    to = s.one([F32, F32, F64, F16, BF16, I64, I32, I8, U8, BOOL])
    if is_float(value.dtype) and to.kind == "u":  # a negative number as unsigned is anything
        value, = s.node("Abs", [value])
    s.node(op, [value], to=PROTO[to])


@row("CastLike")
def cast_like(s, op):
    value = s.tensor(s.types(op, 0, among=NUMBERS + (BOOL,)))
    s.node(op, [value, s.tensor(dtypes=(F32, F64, F16, I64, I32, BOOL))])


@row("Dropout")
def dropout(s, op):
    value = s.tensor(s.types(op, 0))
    outputs = s.one([1, 1, 2])
    if s.opset < 12:
        return s.node(op, [value], outputs, ratio=s.one([0.3, None]))
    ratio = s.const(0.4, F32) if s.chance(0.5) else None
    training = s.const(False) if s.chance(0.3) else None
    s.node(op, [value, ratio, training], outputs)


