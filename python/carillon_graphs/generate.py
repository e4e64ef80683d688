"""A case from a seed: a small graph of ONNX, and sets of inputs with every open extent from 0, 1, 2 and 5."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import helper

from . import oracle
from .operators import ROWS
from .sketch import PROTO, SYMBOLS, Input, Misfit, Sketch

EXTENTS = (0, 1, 2, 5)
OPSETS = (23, 23, 23, 22, 21, 20, 19, 18, 18, 17, 17, 17, 16, 15, 14, 13, 13, 12, 11, 11, 10, 9)
SETS = 5  # of inputs, a graph
MOST_INPUT_ELEMENTS = 20_000

# Beside the operator that a graph is about, these are drawn often: rows move in them, or sizes become numbers.
MOVERS = ("Transpose", "Reshape", "Slice", "Gather", "Concat", "Shape", "Add", "Mul", "MatMul", "ReduceSum", "ReduceMean",
          "Softmax", "Unsqueeze", "Squeeze", "Expand", "Flatten", "Relu", "Sub", "Where", "Cast", "Split", "Pad", "Gemm",
          "Conv", "LayerNormalization", "Tile", "Size", "If", "Loop", "Einsum")


@dataclass
class Case:
    """A graph and what is asked of it."""
    label: str  # what draws it again: SEED/INDEX
    about: str  # the operator that it is about
    model: onnx.ModelProto
    sets: list[dict[str, np.ndarray]]
    extents: list[dict[str, int]]  # of each set
    operators: list[str] = field(default_factory=list)
    # Sets that differ in how many rows they have, and in nothing else that is open: a server may batch them.
    together: list[dict[str, np.ndarray]] = field(default_factory=list)


def draw_sketch(rng: random.Random, about: str) -> Sketch:
    opsets = [opset for opset in OPSETS if has_operator(about, opset)]
    sketch = Sketch(rng, rng.choice(opsets), ml_opset=rng.choice((2, 3, 3)))
    before, after = rng.choice((0, 0, 1, 1, 2, 3)), rng.choice((0, 0, 1, 1, 2, 3))
    for _ in range(before):
        try_row(sketch, any_operator(rng))
    if not any(try_row(sketch, about) for _ in range(12)):
        raise Misfit(f"no form of {about} was found")
    for _ in range(after):
        if len(sketch.operators) < 8:
            try_row(sketch, any_operator(rng))
    return sketch


def has_operator(operator: str, opset: int) -> bool:
    """Whether ONNX has it at this opset; those of other domains have opsets of their own."""
    first, last = oracle.opsets_of(operator) or (OPSETS[-1], OPSETS[0])
    return first <= opset <= last


def any_operator(rng: random.Random) -> str:
    return rng.choice(MOVERS) if rng.random() < 0.7 else rng.choice(sorted(ROWS))


def try_row(sketch: Sketch, operator: str) -> bool:
    mark = sketch.mark()
    try:
        ROWS[operator](sketch, operator)
        return True
    except (Misfit, IndexError, ValueError):  # a form that fits nothing here
        sketch.back_to(mark)
        return False


def draw_case(label: str, about: str) -> Case:
    """The same case for the same label and operator, always. Raises Misfit where no graph is found."""
    rng = random.Random(label)
    for attempt in range(20):
        try:
            return finish(draw_sketch(rng, about), label, about, rng)
        except Misfit:
            continue
    raise Misfit(f"{label}: no graph about {about} was found")


def finish(sketch: Sketch, label: str, about: str, rng: random.Random) -> Case:
    made = [value for value in sketch.values if any(value.name in node.output for node in sketch.nodes)]
    outputs = [value for value in made if value.name not in sketch.used]
    others = [value for value in made if value.name in sketch.used]
    if others and rng.random() < 0.25:
        outputs.append(rng.choice(others))
    sketch.require(outputs)
    if len(outputs) > 4:
        outputs = sorted(rng.sample(outputs, 4), key=lambda value: value.name)
    # Inputs that nothing reads any more, as a row that failed later may leave them, are left out.
    read = {name for node in sketch.nodes for name in names_read(node)}
    inputs = [given for given in sketch.inputs if given.name in read]
    sketch.require(inputs)
    named = rng.random() < 0.85
    declared = rng.random() < 0.5
    spell = lambda dim: dim if isinstance(dim, int) or named else None
    graph_inputs = [helper.make_tensor_value_info(g.name, PROTO[g.dtype], [spell(d) for d in g.dims]) for g in inputs]
    graph_outputs = [helper.make_tensor_value_info(
        v.name, PROTO[v.dtype], [d if isinstance(d, int) or (named and d) else None for d in v.dims] if declared else None)
        for v in outputs]
    initializers = [tensor for tensor in sketch.initializers if tensor.name in read]
    graph = helper.make_graph(sketch.nodes, "drawn", graph_inputs, graph_outputs, initializers)
    model = helper.make_model(graph, ir_version=10 if sketch.opset >= 21 else 8,
                              opset_imports=oracle.imports(sketch.opset, sketch.ml_opset, sketch.domains))
    prune_constants(model)
    extents = draw_extents(rng, inputs)
    generator = np.random.default_rng(rng.getrandbits(32))
    sets = [draw_inputs(generator, inputs, chosen) for chosen in extents]
    together = [draw_inputs(generator, inputs, chosen) for chosen in draw_rows(rng, inputs, extents[0])]
    return Case(label, about, model, sets, extents, sketch.operators, together)


def names_read(node: onnx.NodeProto):
    yield from node.input
    for attribute in node.attribute:
        for inner in attribute.g.node if attribute.HasField("g") else ():
            yield from names_read(inner)


def prune_constants(model: onnx.ModelProto) -> None:
    """Without constants that rows which were given up have left."""
    read = {name for node in model.graph.node for name in names_read(node)} | {o.name for o in model.graph.output}
    for node in [n for n in model.graph.node if n.op_type == "Constant" and n.output[0] not in read]:
        model.graph.node.remove(node)


def draw_extents(rng: random.Random, inputs: list[Input]) -> list[dict[str, int]]:
    symbols = sorted({dim for given in inputs for dim in given.dims if not isinstance(dim, int)}, key=SYMBOLS.index)
    if not symbols:
        return [{}, {}]
    found = [{symbol: rng.choice((1, 2, 5)) for symbol in symbols} for _ in range(2)]
    found[0][symbols[0]] = rng.choice((2, 5))  # one at least has several rows
    empty = dict(found[1])
    empty[rng.choice(symbols)] = 0
    found.append(empty)
    while len(found) < SETS:
        found.append({symbol: rng.choice(EXTENTS) for symbol in symbols})
    unique: list[dict[str, int]] = []
    for chosen in found:
        if chosen not in unique:
            unique.append(chosen)
    return unique


def draw_rows(rng: random.Random, inputs: list[Input], extents: dict[str, int]) -> list[dict[str, int]]:
    """Extents of requests that may share a batch; none where no input's first extent is open."""
    first = {given.dims[0] for given in inputs if given.dims and not isinstance(given.dims[0], int)}
    if not first:
        return []
    rows = rng.sample((1, 1, 2, 2, 5), 4)
    return [{**extents, **{symbol: count for symbol in first}} for count in rows]


def draw_inputs(generator: np.random.Generator, inputs: list[Input], extents: dict[str, int]) -> dict[str, np.ndarray]:
    return {given.name: given.numbers(generator, tuple(d if isinstance(d, int) else extents[d] for d in given.dims))
            for given in inputs}
