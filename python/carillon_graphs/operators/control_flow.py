"""If, Loop and Scan, with bodies that reach out of themselves."""

from __future__ import annotations

import numpy as np
from onnx import helper

from ..sketch import BOOL, F32, F64, I64, PROTO, draw_numbers, tensor_proto
from .registry import row


def info(name: str, dtype, shape=None):
    return helper.make_tensor_value_info(name, PROTO[dtype], shape)


class Body:
    """Nodes of a graph within a node, and their constants."""

    def __init__(self, sketch):
        self.sketch, self.nodes, self.constants = sketch, [], []

    def node(self, op, taken, **attributes) -> str:
        made = self.sketch.name("b")
        self.nodes.append(helper.make_node(op, taken, [made], **attributes))
        return made

    def const(self, array) -> str:
        name = self.sketch.name("b")
        proto = tensor_proto(np.asarray(array), name)
        if self.sketch.chance(0.5):
            self.nodes.append(helper.make_node("Constant", [], [name], value=proto))
        else:
            self.constants.append(proto)
        return name

    def graph(self, name, inputs, outputs):
        return helper.make_graph(self.nodes, name, inputs, outputs, self.constants)

    def step(self, name: str, dtype, rank: int) -> str:
        """Something of `name`, of its type, and often of its shape."""
        s = self.sketch
        number = lambda value: self.const(np.asarray(value).astype(dtype))
        way = s.one(["add", "mul", "relu", "add_itself", "reverse", "concat", "slice", "transpose", "squeeze", "softmax", "sum"])
        if way == "add" or rank == 0:
            return self.node("Add", [name, number(s.within(1, 3))])
        if way == "mul":
            return self.node("Mul", [name, number(0.5)])
        if way == "add_itself":
            return self.node("Add", [name, name])
        if way == "reverse" and s.opset >= 10:
            ends = [self.const(np.array([number])) for number in (-1, -2**60, 0, -1)]
            return self.node("Slice", [name, *ends])
        if way == "concat":
            return self.node("Concat", [name, name], axis=s.within(0, rank - 1))
        if way == "slice" and s.opset >= 10:
            ends = [self.const(np.array([number])) for number in (0, s.one([0, 1, 2]), s.within(0, rank - 1))]
            return self.node("Slice", [name, *ends])
        if way == "transpose" and rank >= 2:
            return self.node("Transpose", [name], perm=[1, 0, *range(2, rank)])
        if way == "squeeze" and s.opset >= 13:
            return self.node("Squeeze", [name])
        if way == "softmax" and dtype != I64:
            return self.node("Softmax", [name], axis=s.within(0, rank - 1))
        if way == "sum" and s.opset >= 13:
            return self.node("ReduceSum", [name, self.const(np.array([s.within(0, rank - 1)]))], keepdims=s.one([0, 1]))
        return self.node("Relu", [name])


def condition(s):
    """A number that is true or false: a client's, by the data, by a size, or known."""
    way = s.one(["input", "data", "data", "size", "known"])
    if way == "input":
        return s.input(BOOL, s.one([(), (1,)]))
    if way == "known":
        return s.const(np.array(s.chance(0.5)))
    if way == "data":
        value = s.tensor((F32, F64))
        total, = s.node("ReduceSum", [value], keepdims=0)
        return s.node("Greater", [total, s.const(np.asarray(s.one([0, 0, 0.5])), value.dtype)])[0]
    value = s.tensor(rank=(1, 4), where=lambda v: v.rank >= 1)
    sizes, = s.node("Shape", [value])
    extent, = s.node("Gather", [sizes, s.const(np.array(s.within(0, value.rank - 1)))])
    return s.node(s.one(["Equal", "Greater"]) if s.opset >= 9 else "Equal", [extent, s.const(np.array(s.one([1, 1, 0, 2])))])[0]


@row("If")
def choose(s, op):
    value = s.tensor((F32, F32, F32, F64, I64), rank=(0, 3))
    decided = condition(s)
    outputs = s.one([1, 1, 2])
    captured = [value]
    branches = []
    for name in ("then", "else"):
        body = Body(s)
        results = []
        for _ in range(outputs):
            start = value.name
            for _ in range(s.one([1, 1, 2])):
                relu = value.dtype == I64 and s.opset < 14
                start = body.step(start, value.dtype, value.rank if start == value.name else 0) if not relu else \
                    body.node("Neg", [start])
            results.append(start)
        # torch writes the ranks of what it knows; others leave them out
        branches.append(body.graph(name, [], [info(result, value.dtype) for result in results]))
    s.node(op, [decided], outputs, captures=captured, then_branch=branches[0], else_branch=branches[1])


def trips(s):
    way = s.one(["known", "known", "size", "input"])
    if way == "known":
        return s.const(np.array(s.one([0, 1, 2, 3])))
    if way == "input":
        return s.input(I64, s.one([(), (1,)]), draw_numbers(I64, "index", 0, 4))
    value = s.tensor(rank=(1, 4), where=lambda v: v.rank >= 1)
    sizes, = s.node("Shape", [value])
    return s.node("Gather", [sizes, s.const(np.array(s.within(0, value.rank - 1)))])[0]


@row("Loop")
def loop(s, op):
    value = s.tensor((F32, F32, F32, F64), rank=(0, 3))
    count = trips(s)
    first = s.const(np.array(s.chance(0.9))) if s.chance(0.7) else (s.input(BOOL, ()) if s.chance(0.3) else None)
    body = Body(s)
    turn, keeps, carried = s.name("b"), s.name("b"), s.name("b")
    made = body.node("Add", [carried, body.const(np.asarray(0.5).astype(value.dtype))]) if s.chance(0.5) else \
        body.node("Mul", [carried, body.const(np.asarray(1.5).astype(value.dtype))])
    if s.chance(0.4):  # reaches out of itself
        made = body.node("Add", [made, value.name])
    if s.chance(0.3):
        number = body.node("Cast", [turn], to=PROTO[value.dtype])
        made = body.node("Add", [made, number])
    if s.chance(0.1) and value.rank:
        made = body.node("Concat", [made, carried], axis=0)
    if s.chance(0.3):
        total = body.node("ReduceSum", [made], keepdims=0)
        goes_on = body.node("Less", [total, body.const(np.asarray(s.one([3.0, 20.0])).astype(value.dtype))])
    else:
        goes_on = body.node("Identity", [keeps])
    results = [info(goes_on, BOOL), info(made, value.dtype)]
    scans = s.one([0, 1, 1, 2])
    for _ in range(scans):
        scanned = body.node("Identity", [s.one([made, carried])]) if s.chance(0.7) else \
            body.node("Mul", [made, body.const(np.asarray(2).astype(value.dtype))])
        results.append(info(scanned, value.dtype))
    graph = body.graph("body", [info(turn, I64, []), info(keeps, BOOL, []), info(carried, value.dtype)], results)
    s.node(op, [count, first, value], 1 + scans, captures=[value], body=graph)


@row("Scan")
def scan(s, op):
    s.require(s.opset >= 9)
    value = s.tensor((F32,), rank=(1, 3))
    axis = s.within(0, value.rank - 1) if s.chance(0.4) else 0
    part = [dim for place, dim in enumerate(value.dims) if place != axis]
    s.require(all(isinstance(dim, int) for dim in part) or value.dims is not None and None not in part)
    shape = tuple(dim if isinstance(dim, int) else 1 for dim in part)
    keeps_state = s.chance(0.8)
    body = Body(s)
    item = s.name("b")
    taken, inputs, results, outputs = [], [], [], 0
    if keeps_state:
        state = s.name("b")
        start = s.const(np.zeros(shape, np.float32)) if all(isinstance(dim, int) for dim in part) else s.input(F32, tuple(part))
        taken.append(start)
        inputs.append(info(state, F32))
        total = body.node(s.one(["Add", "Max"]), [state, item])
        results.append(info(total, F32))
        outputs += 1
    else:
        total = body.node("Relu", [item])
    taken.append(value)
    inputs.append(info(item, F32))
    made = body.node("Mul", [total, body.const(np.float32(0.5))])
    results.append(info(made, F32))
    graph = body.graph("body", inputs, results)
    attributes = {"scan_input_axes": [axis] if axis or s.chance(0.3) else None,
                  "scan_input_directions": [s.one([0, 1])] if s.chance(0.4) else None,
                  "scan_output_directions": [s.one([0, 1])] if s.chance(0.3) else None,
                  "scan_output_axes": [s.within(0, value.rank - 1)] if s.chance(0.3) else None}
    s.node(op, taken, outputs + 1, body=graph, num_scan_inputs=1, **attributes)


