"""A smaller graph with the same kind of fault: with one output, and without the nodes that only others need."""

from __future__ import annotations

import copy

import onnx
from onnx import helper

from .examine import Examiner, Fault
from .generate import Case, names_read, prune_constants

TRIES = 12


def with_outputs(case: Case, outputs: list[str]) -> Case | None:
    """The case with these values as its outputs, and with what they need alone; its inputs are all kept in the sets only
    where they are read."""
    model = copy.deepcopy(case.model)
    graph = model.graph
    wanted, nodes = set(outputs), []
    for node in reversed(graph.node):
        if wanted & set(node.output):
            nodes.append(node)
            wanted.update(names_read(node))
    if not nodes:
        return None
    known = {value.name: value for value in case.model.graph.output}
    kept = [value for value in graph.input if value.name in wanted]
    if not kept:
        return None
    inferred = {value.name: value for value in typed(case.model).graph.value_info}
    made = []
    for name in outputs:
        value = known.get(name) or inferred.get(name)
        if value is None:
            return None
        made.append(helper.make_tensor_value_info(name, value.type.tensor_type.elem_type, None))
    smaller = helper.make_model(
        helper.make_graph(list(reversed(nodes)), "drawn", kept, made, [t for t in graph.initializer if t.name in wanted]),
        ir_version=model.ir_version, opset_imports=model.opset_import)
    prune_constants(smaller)
    names = {value.name for value in kept}
    only = lambda sets: [{name: array for name, array in inputs.items() if name in names} for inputs in sets]
    return Case(case.label, case.about, smaller, only(case.sets), case.extents, [n.op_type for n in smaller.graph.node],
                only(case.together))


def typed(model: onnx.ModelProto) -> onnx.ModelProto:
    try:
        return onnx.shape_inference.infer_shapes(model)
    except Exception:  # noqa: BLE001: it may not know a type
        return model


def shrunk(examiner: Examiner, case: Case, engine: str, fault: Fault) -> tuple[Case, Fault] | None:
    """The smallest that was found in a few tries, with its fault; None where none is smaller."""
    best = None
    size = len(case.model.graph.node)
    candidates = [[output.name] for output in case.model.graph.output]
    candidates += [[node.output[0]] for node in case.model.graph.node if node.op_type != "Constant"]
    sized = [(len(smaller.model.graph.node), at, smaller) for at, smaller in
             enumerate(with_outputs(case, names) for names in candidates) if smaller is not None]
    for nodes, _, smaller in sorted(sized, key=lambda each: each[:2])[:TRIES]:
        if nodes >= size and len(case.model.graph.output) == 1:
            break
        same = [each for each in examiner(smaller, engine).faults if each.kind == fault.kind]
        if same:
            best = smaller, same[0]
            break
    return best
