"""Quantisation, and products and convolutions of bytes."""

from __future__ import annotations

import numpy as np

from ..sketch import F16, F32, I8, I32, U8, U16, I16
from .networks import window
from .registry import row


def scale_of(s, shape=(), dtype=F32):
    return s.const(np.round(s.numbers.uniform(0.02, 0.2, shape), 3), dtype)


def zero_of(s, dtype, shape=()):
    low, high = (100, 140) if dtype == U8 else (-10, 11)
    return s.const(s.numbers.integers(0 if dtype.kind == "u" else low, high, shape), dtype)


@row("QuantizeLinear")
def quantize(s, op):
    value = s.tensor(s.types(op, 0, among=(F32, F32, F32, F16)), rank=(1, 4))
    dtype = s.one([U8, I8] + ([U16, I16] if s.opset >= 21 else []))
    if s.opset >= 13 and s.chance(0.3):
        axis = s.axis(value)
        s.require(value.fixed(axis))
        extent = value.shape[axis]
        return s.node(op, [value, scale_of(s, (extent,), value.dtype), zero_of(s, dtype, (extent,))], axis=axis)
    zero = zero_of(s, dtype) if dtype != U8 or s.chance(0.7) else None
    s.node(op, [value, scale_of(s, (), value.dtype), zero])


@row("DequantizeLinear")
def dequantize(s, op):
    dtype = s.one([U8, I8, I32])
    value = s.tensor(dtype=dtype, rank=(1, 4))
    if s.opset >= 13 and s.chance(0.3):
        axis = s.axis(value)
        s.require(value.fixed(axis))
        extent = value.shape[axis]
        return s.node(op, [value, scale_of(s, (extent,)), zero_of(s, dtype, (extent,)) if dtype != I32 else None], axis=axis)
    s.node(op, [value, scale_of(s), zero_of(s, dtype) if dtype != I32 and s.chance(0.7) else None])


@row("DynamicQuantizeLinear")
def dynamic(s, op):
    value = s.tensor((F32,), rank=(1, 4))
    bytes_, scale, zero = s.node(op, [value], 3)
    if s.chance(0.6) and value.fixed(value.rank - 1):  # a dynamically quantised layer
        weights = s.weights(value.shape[-1], s.within(1, 4), dtype=s.one([I8, U8]))
        product, = s.node("MatMulInteger", [bytes_, weights, zero])
        numbers, = s.node("Cast", [product], to=1)
        s.node("Mul", [numbers, scale])
    elif s.chance(0.5):
        s.node("DequantizeLinear", [bytes_, scale, zero])


@row("MatMulInteger")
def matmul_integer(s, op):
    dtype = s.one([U8, I8])
    value = s.tensor(dtype=dtype, rank=(2, 4), fixed=(-1,))
    other = s.one([U8, I8])
    s.node(op, [value, s.weights(value.shape[-1], s.within(1, 4), dtype=other),
                zero_of(s, dtype) if s.chance(0.5) else None, zero_of(s, other) if s.chance(0.3) else None])


@row("QLinearMatMul")
def qlinear_matmul(s, op):
    dtype = s.one([U8, I8])
    value = s.tensor(dtype=dtype, rank=(2, 3), fixed=(-1,))
    s.node(op, [value, scale_of(s), zero_of(s, dtype), s.weights(value.shape[-1], s.within(1, 4), dtype=dtype), scale_of(s),
                zero_of(s, dtype), scale_of(s), zero_of(s, dtype)])


@row("ConvInteger", "QLinearConv")
def integer_convolution(s, op):
    dtype = s.one([U8, U8, I8])
    value = s.tensor(dtype=dtype, rank=(3, 4), fixed=(1,))
    channels = value.shape[1]
    outputs = s.within(1, 3)
    attributes = window(s, value.rank - 2)
    weights = s.weights(outputs, channels, *attributes["kernel_shape"], dtype=s.one([dtype, I8]))
    if op == "ConvInteger":
        return s.node(op, [value, weights, zero_of(s, dtype) if s.chance(0.5) else None,
                           zero_of(s, weights.dtype) if s.chance(0.3) else None], **attributes)
    result = dtype
    per_channel = s.chance(0.3)
    s.node(op, [value, scale_of(s), zero_of(s, dtype), weights, scale_of(s, (outputs,) if per_channel else ()),
                s.const(np.zeros((outputs,) if per_channel else (), np.int64), weights.dtype), scale_of(s), zero_of(s, result),
                s.const(s.numbers.integers(-50, 50, outputs), I32) if s.chance(0.5) else None], **attributes)
