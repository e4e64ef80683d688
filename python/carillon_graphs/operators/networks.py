"""Convolutions, pools, normalisations and recurrent layers."""

from __future__ import annotations

import numpy as np

from ..sketch import F16, F32, F64, I32, I64, PROTO, draw_numbers
from .registry import row


def image(s, op, place=0, among=(F32, F32, F32, F32, F32, F64, F16), least=1, ranks=(3, 4, 4, 5), fixed=(1,)):
    """A value whose channels are fixed, with one to three dimensions of space."""
    rank = s.one(ranks)
    return s.tensor(s.types(op, place, among=among), rank=rank, fixed=fixed, least=least,
                    where=lambda v: all(v.least(a) >= least for a in range(1, v.rank)))


def window(s, spatial, dilations=True, most=3):
    """Attributes of a sliding window over so many dimensions."""
    kernel = [s.within(1, most) for _ in range(spatial)]
    found = {"kernel_shape": kernel, "strides": [s.one([1, 1, 2]) for _ in kernel] if s.chance(0.5) else None}
    if dilations and s.chance(0.25):
        found["dilations"] = [s.one([1, 2]) for _ in kernel]
    padding = s.one(["none", "pads", "pads", "SAME_UPPER", "SAME_LOWER", "VALID"])
    if padding == "pads":
        found["pads"] = [s.within(0, max(0, extent - 1)) for extent in kernel * 2]
    elif padding != "none":
        found["auto_pad"] = padding
    return found


@row("Conv")
def convolution(s, op):
    value = image(s, op)
    channels, spatial = value.shape[1], value.rank - 2
    group = s.one([1, 1, channels, 1 if channels % 2 else 2])
    outputs = group * s.within(1, 3)
    attributes = window(s, spatial)
    weights = s.weights(outputs, channels // group, *attributes["kernel_shape"], dtype=value.dtype, scale=0.5)
    bias = s.weights(outputs, dtype=value.dtype) if s.chance(0.5) else None
    s.node(op, [value, weights, bias], group=group if group > 1 else None, **attributes)


@row("ConvTranspose")
def transposed(s, op):
    value = image(s, op, ranks=(3, 4, 4))
    channels, spatial = value.shape[1], value.rank - 2
    group = s.one([1, 1, channels])
    each = s.within(1, 3)
    kernel = [s.within(1, 3) for _ in range(spatial)]
    strides = [s.one([1, 2]) for _ in kernel]
    attributes = {"strides": strides, "dilations": s.one([None, [2] * spatial]) if s.chance(0.3) else None}
    if s.chance(0.4):
        attributes["pads"] = [s.within(0, extent - 1) for extent in kernel * 2]
    if s.chance(0.3):
        attributes["output_padding"] = [s.within(0, stride - 1) for stride in strides]
    weights = s.weights(channels, each, *kernel, dtype=value.dtype, scale=0.5)
    s.node(op, [value, weights, s.weights(each * group, dtype=value.dtype) if s.chance(0.5) else None],
           group=group if group > 1 else None, **attributes)


@row("AveragePool", "MaxPool", "LpPool")
def pool(s, op):
    value = image(s, op, fixed=())
    more = {}
    attributes = window(s, value.rank - 2, dilations=op == "MaxPool" and s.opset >= 10 or s.opset >= 19)
    if s.opset >= (18 if op == "LpPool" else 10) and s.chance(0.2):
        more["ceil_mode"] = 1
    if op == "AveragePool" and s.opset >= 7:
        more["count_include_pad"] = s.one([None, 0, 1])
    if op == "LpPool":
        more["p"] = s.one([None, 1, 2, 3])
    s.node(op, [value], 2 if op == "MaxPool" and s.opset >= 8 and s.chance(0.25) else 1, **attributes, **more)


@row("MaxUnpool")
def unpool(s, op):
    value = s.tensor((F32,), rank=4, fixed=(2, 3), where=lambda v: v.shape[2] % 2 == v.shape[3] % 2 == 0,
                     dims=("N", s.one([1, 2]), s.one([2, 4]), s.one([2, 4])))
    attributes = {"kernel_shape": [2, 2], "strides": [2, 2]}
    pooled, places = s.node("MaxPool", [value], 2, **attributes)
    s.node(op, [pooled, places], **attributes)


@row("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def global_pool(s, op):
    value = image(s, op, fixed=())
    s.node(op, [value], **({"p": s.one([None, 1, 2])} if op == "GlobalLpPool" else {}))


@row("LRN")
def local_response(s, op):
    value = image(s, op, among=(F32,), fixed=(), ranks=(3, 4, 4))
    s.node(op, [value], size=s.one([1, 3, 5]), alpha=s.one([None, 0.01]), beta=s.one([None, 0.5]), bias=s.one([None, 2.0]))


@row("BatchNormalization")
def batch_normalization(s, op):
    value = s.tensor(s.types(op, 0, among=(F32, F32, F32, F16, F64)), rank=(2, 4), fixed=(1,))
    channels = value.shape[1]
    of_channel = lambda kind="any": s.weights(channels, dtype=value.dtype, kind=kind)
    taken = [value, of_channel(), of_channel(), of_channel(), of_channel("positive")]
    training = s.opset >= 14 and s.chance(0.15)
    s.node(op, taken, 3 if training else 1, epsilon=s.one([None, 1e-3]), training_mode=1 if training else None,
           momentum=s.one([None, 0.5]) if training else None)


@row("InstanceNormalization")
def instance_normalization(s, op):
    value = image(s, op, among=(F32, F32, F64))
    channels = value.shape[1]
    s.node(op, [value, s.weights(channels, dtype=value.dtype), s.weights(channels, dtype=value.dtype)],
           epsilon=s.one([None, 1e-2]))


@row("GroupNormalization")
def group_normalization(s, op):
    value = image(s, op, among=(F32, F32, F64), ranks=(3, 4))
    channels = value.shape[1]
    groups = s.one([1, channels, 2 if channels % 2 == 0 else 1])
    extent = channels if s.opset >= 21 else groups
    s.node(op, [value, s.weights(extent, dtype=value.dtype), s.weights(extent, dtype=value.dtype)], num_groups=groups,
           epsilon=s.one([None, 1e-2]))


@row("LayerNormalization")
def layer_normalization(s, op):
    value = s.tensor(s.types(op, 0, among=(F32, F32, F32, F32, F64, F16)), rank=(2, 4))
    axis = s.axis(value, least=1)
    axes = range(axis % value.rank, value.rank)
    scale = [value.shape[a] if value.fixed(a) else 1 for a in axes]
    s.require(all(value.fixed(a) for a in axes) or s.opset >= 17)
    bias = s.weights(*scale, dtype=value.dtype) if s.chance(0.6) else None
    s.node(op, [value, s.weights(*scale, dtype=value.dtype), bias], s.one([1, 1, 1, 3]),
           axis=axis if axis != -1 or s.chance(0.3) else None, epsilon=s.one([None, 1e-2]))


ACTIVATIONS = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}


@row("LSTM", "GRU", "RNN")
def recurrent(s, op):
    width, hidden = s.one([1, 3, 4]), s.one([1, 2, 4])
    batch_first = s.opset >= 14 and s.chance(0.3)
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[op]
    # Sequence first, as ONNX has it, or turned round before, as exporters do for batch_first layers.
    fitting = s.find(lambda v: v.dtype == F32 and v.rank == 3 and v.fixed(2)) if s.chance(0.5) else None
    if fitting is None:
        fitting = s.input(F32, (s.one(["T", "N", 3]) if s.symbols > 1 else "N", s.one([1, 2, "N"]), width))
    value = fitting
    if s.chance(0.3):
        value, = s.node("Transpose", [value], perm=[1, 0, 2])
    width = value.shape[2]
    s.require(1 <= width)
    direction = s.one(["forward", "forward", "reverse", "bidirectional", None])
    ways = 2 if direction == "bidirectional" else 1
    batch_axis = 0 if batch_first else 1
    taken = [value, s.weights(ways, gates * hidden, width, scale=0.5), s.weights(ways, gates * hidden, hidden, scale=0.5),
             s.weights(ways, 2 * gates * hidden, scale=0.5) if s.chance(0.5) else None]
    batch = value.dims[batch_axis]
    lengths = None
    if s.chance(0.2) and batch is not None and value.fixed(1 - batch_axis) and value.shape[1 - batch_axis] > 1:
        lengths = s.input(I32, (batch,), draw_numbers(I32, "index", 1, value.shape[1 - batch_axis] + 1))
    taken.append(lengths)
    if s.chance(0.25) and batch is not None:
        shape = (batch, ways, hidden) if batch_first else (ways, batch, hidden)
        taken.append(s.input(F32, shape))
        if op == "LSTM":
            taken.append(s.input(F32, shape))
            taken.append(s.weights(ways, 3 * hidden) if s.chance(0.3) else None)
    attributes = {"direction": direction, "hidden_size": hidden, "layout": 1 if batch_first else None}
    if s.chance(0.15):
        attributes["clip"] = 0.5
    if s.chance(0.2):
        attributes["activations"] = [s.one(["Sigmoid", "Tanh", "Relu"]) for _ in ACTIVATIONS[op] * ways]
    if op == "GRU":
        attributes["linear_before_reset"] = s.one([None, 1])
    if op == "LSTM" and s.chance(0.1):
        attributes["input_forget"] = 1
    results = s.node(op, taken, s.one([1, 2, 3 if op == "LSTM" else 2]), **attributes)
    if results[0].rank == 4 and s.chance(0.5):  # what exporters put behind it
        if ways == 1:
            axis = 2 if batch_first else 1
            s.node("Squeeze", [results[0], s.const(np.array([axis]))] if s.opset >= 13 else [results[0]],
                   **({} if s.opset >= 13 else {"axes": [axis]}))


@row("GridSample")
def grid_sample(s, op):
    four = s.tensor(s.types(op, 0, among=(F32, F32, F64)), rank=4, least=2)
    s.require(four.dims and four.dims[0] is not None)
    grid = s.input(F32, (four.dims[0], s.one([2, 3]), s.one([1, 3, "M" if s.symbols > 2 else 2]), 2), draw_numbers(F32, "unit"))
    if four.dtype != F32:
        grid, = s.node("Cast", [grid], to=PROTO[four.dtype])
    linear = ["bilinear", "nearest", "bicubic"] if s.opset < 20 else ["linear", "nearest", "cubic"]
    s.node(op, [four, grid], mode=s.one([*linear, None]), padding_mode=s.one(["zeros", "border", "reflection", None]),
           align_corners=s.one([0, 1, None]))


@row("RoiAlign")
def roi_align(s, op):
    value = s.tensor((F32,), rank=4, where=lambda v: v.least(0) >= 1 and v.least(2) >= 2 and v.least(3) >= 2)
    count = s.one([1, 2, "M" if s.symbols > 2 else 3])
    boxes = s.input(F32, (count, 4), lambda g, shape: np.sort(g.uniform(0, 4, shape), axis=-1).astype(np.float32)[..., [0, 1, 2, 3]])
    rows = s.input(I64, (count,), draw_numbers(I64, "index", 0, 1))
    s.node(op, [value, boxes, rows], output_height=s.one([1, 2]), output_width=s.one([1, 2, None]),
           sampling_ratio=s.one([0, 1, 2]), spatial_scale=s.one([None, 0.5, 1.0]), mode=s.one(["avg", "max", None]),
           **({"coordinate_transformation_mode": s.one(["half_pixel", "output_half_pixel", None])} if s.opset >= 16 else {}))
