"""Where ONNX leaves a result free, and where an oracle is known to be wrong: one rule a kind.

A rule looks at one node, at its input arrays, and at an oracle's results. It gives the right result. The nodes behind
are computed from this result, and not from the oracle's. Where ONNX leaves the result free, the rule gives None, and nothing
that depends on the result is compared. All other results of the graph are compared as ever. Where no oracle knows what is
right of tensors without elements, docs/dynamic-models.md decides.

Rules are asked only about an answer that is unlike the oracles'. Answers after a stain and answers of rows together are
compared with the server's own, and no rule touches that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable

import numpy as np
import onnx
from onnx import helper

from . import oracle
from .oracle import BF16, Ran, Steps, names_within

Results = dict[int, "np.ndarray | None"]  # by the place of an output; empty where the rule does not hold

FLOATS = (np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64), BF16)
SAME = ("SAME_UPPER", "SAME_LOWER")


@dataclass
class Seen:
    """A node that ran."""
    node: onnx.NodeProto
    opset: int
    taken: list[np.ndarray | None]  # its inputs; None for one that is left out
    made: list[np.ndarray | None]  # an oracle's results; None for one that is not wanted
    by: str  # the oracle
    again: Callable[[onnx.NodeProto, dict[str, np.ndarray]], Ran]  # runs a node like it

    def attribute(self, name: str, default=None):
        for attribute in self.node.attribute:
            if attribute.name == name:
                value = helper.get_attribute_value(attribute)
                return value.decode() if isinstance(value, bytes) else value
        return default

    def has(self, place: int) -> bool:
        return place < len(self.taken) and self.taken[place] is not None

    def with_attributes(self, **changed) -> list[np.ndarray]:
        """What the oracles make of the node with other attributes; None takes one away."""
        node = onnx.NodeProto()
        node.CopyFrom(self.node)
        kept = [attribute for attribute in node.attribute if attribute.name not in changed]
        del node.attribute[:]
        node.attribute.extend(kept)
        node.attribute.extend(helper.make_attribute(name, value) for name, value in changed.items() if value is not None)
        names = [name for name in node.input if name]
        return self.again(node, dict(zip(names, (array for array in self.taken if array is not None), strict=True))).made


@dataclass(frozen=True)
class Rule:
    name: str
    why: str
    oracle: str | None  # the one that is wrong; None where ONNX leaves it free
    operators: tuple[str, ...]
    right: Callable[[Seen], Results]


RULES: list[Rule] = []


def rule(name: str, why: str, *operators: str, oracle: str | None = None):
    """The decorated function gives the right results of such a node, or none where the rule does not hold."""

    def add(function):
        RULES.append(Rule(name, why, oracle, operators, function))
        return function

    return add


# -- tensors without elements

@rule("a Loop of no rounds", "its scan outputs have the shape of what a round would give behind an extent of 0 (ONNX's text); "
      "oracles say [0], or 0 for each extent that the file leaves open", "Loop")
def loop_of_nothing(seen: Seen) -> Results:
    carried = len(seen.attribute("body").input) - 2
    scans = {at: made for at, made in enumerate(seen.made) if at >= carried and made is not None}
    if not scans or any(made.shape[0] for made in scans.values()):
        return {}
    # One round tells the shapes, whatever its conditions say.
    once = onnx.NodeProto()
    once.CopyFrom(seen.node)
    once.input[0], once.input[1] = trips, goes_on = "one_round", "goes_on"
    values = {name: array for name, array in zip(seen.node.input[2:], seen.taken[2:], strict=True) if name}
    values |= {trips: np.array(1, np.int64), goes_on: np.array(True)}
    try:
        made = iter(seen.again(once, values).made)
    except Exception:  # noqa: BLE001: of many kinds: no oracle runs this round
        return dict.fromkeys(scans)
    found = [next(made) if name else None for name in seen.node.output]
    right = {at: np.zeros((0, *found[at].shape[1:]), made.dtype) for at, made in scans.items()}
    return {at: array for at, array in right.items() if array.shape != scans[at].shape}


REDUCTIONS = {"ReduceSum": 0, "ReduceSumSquare": 0, "ReduceL1": 0, "ReduceL2": 0, "ReduceProd": 1, "ReduceMean": np.nan,
              "ReduceLogSum": -np.inf, "ReduceLogSumExp": -np.inf, "ReduceMax": -np.inf, "ReduceMin": np.inf}


def axes_of(seen: Seen) -> list[int]:
    axes = seen.attribute("axes")
    if axes is None and seen.has(1):
        axes = seen.taken[1].tolist()
    if axes:
        return list(axes)
    return [] if seen.attribute("noop_with_empty_axes", 0) else list(range(seen.taken[0].ndim))


def reduced_shape(seen: Seen) -> tuple[int, ...]:
    shape = seen.taken[0].shape
    places = {axis % len(shape) for axis in axes_of(seen)}
    if seen.attribute("keepdims", 1):
        return tuple(1 if axis in places else extent for axis, extent in enumerate(shape))
    return tuple(extent for axis, extent in enumerate(shape) if axis not in places)


def of_nothing(seen: Seen) -> np.ndarray:
    dtype, number = seen.made[0].dtype, REDUCTIONS[seen.node.op_type]
    if dtype not in FLOATS and not np.isfinite(number):  # whole numbers: docs/dynamic-models.md
        number = 0 if np.isnan(number) else np.iinfo(dtype).max if number > 0 else np.iinfo(dtype).min
    return np.full(reduced_shape(seen), number, dtype)


@rule("onnxruntime does not reduce nothing along an axis counted from the end", "it answers with the shape that it takes",
      *REDUCTIONS, oracle="onnxruntime")
def unreduced(seen: Seen) -> Results:
    if seen.taken[0].size or seen.made[0].shape == reduced_shape(seen) or all(axis >= 0 for axis in axes_of(seen)):
        return {}
    return {0: of_nothing(seen)}


@rule("onnxruntime finds no places in nothing along an axis counted from the end", "it answers with the shape that it takes",
      "ArgMax", "ArgMin", oracle="onnxruntime")
def unreduced_to_places(seen: Seen) -> Results:
    shape, axis = list(seen.taken[0].shape), seen.attribute("axis", 0)
    place = axis % len(shape)
    right = [*shape[:place], *([1] if seen.attribute("keepdims", 1) else []), *shape[place + 1:]]
    if axis >= 0 or 0 not in right or list(seen.made[0].shape) == right:
        return {}
    return {0: np.zeros(right, np.int64)}


@rule("a mean of no numbers", "ONNX: undefined. It is NaN here, and 0 of whole numbers", "ReduceMean")
def mean_of_nothing(seen: Seen) -> Results:
    return {0: of_nothing(seen)} if not seen.taken[0].size and 0 not in reduced_shape(seen) else {}


@rule("a mean loss of no rows", "ONNX divides 0 by 0, which is NaN; onnxruntime says 0",
      "NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss", oracle="onnxruntime")
def loss_of_nothing(seen: Seen) -> Results:
    if seen.attribute("reduction", "mean") != "mean" or seen.taken[1].size:
        return {}
    return {0: np.full((), np.nan, seen.made[0].dtype)}


@rule("a recurrence of no steps", "it ends in the states that it begins with, or zeros; onnxruntime gives zeros, or what its "
      "memory held", "LSTM", "GRU", "RNN", oracle="onnxruntime")
def no_steps(seen: Seen) -> Results:
    layout = seen.attribute("layout", 0)
    x = seen.taken[0]
    if x.shape[1 if layout else 0]:
        return {}
    found: Results = {}
    for at, given in ((1, 5), (2, 6)):
        if at < len(seen.made) and seen.made[at] is not None:
            found[at] = seen.taken[given] if seen.has(given) else np.zeros_like(seen.made[at])
    return found


# -- what ONNX leaves free

@rule("a whole number of one that it cannot hold", "ONNX: undefined, beyond the type's range, and of NaN", "Cast", "CastLike")
def beyond_range(seen: Seen) -> Results:
    numbers, made = seen.taken[0], seen.made[0]
    if numbers.dtype not in FLOATS or made.dtype.kind not in "iu":
        return {}
    wide, limits = np.trunc(numbers.astype(np.float64)), np.iinfo(made.dtype)
    fits = (wide >= float(limits.min)) & (wide < float(limits.max) + 1)  # NaN fits nowhere
    return {} if fits.all() else {0: None}


@rule("a normalisation of equal numbers", "0 by ONNX's function, which adds 1e-9 to a deviation of 0; onnxruntime divides by 0",
      "MeanVarianceNormalization", oracle="onnxruntime")
def equal_numbers(seen: Seen) -> Results:
    x, made = seen.taken[0], seen.made[0]
    axes = tuple(seen.attribute("axes", (0, 2, 3)))
    if not x.size:
        return {}
    equal = x.max(axis=axes, keepdims=True) == x.min(axis=axes, keepdims=True)
    return {0: np.where(equal, np.zeros_like(made), made)} if equal.any() else {}


# -- onnx.reference

@rule("onnx.reference wraps places that OneHot has not", "ONNX: a place outside [-depth, depth - 1] gives a row of off values",
      "OneHot", oracle="onnx.reference")
def one_hot(seen: Seen) -> Results:
    places, depth, values = seen.taken
    outside = (places < -int(depth.ravel()[0])) | (places >= int(depth.ravel()[0]))
    if not outside.any():
        return {}
    axis = seen.attribute("axis", -1)
    return {0: np.where(np.expand_dims(outside, axis), values[0], seen.made[0])}


@rule("onnx.reference adds up signed numbers for a norm of 1", "a norm of 1 is the sum of absolute numbers",
      "LpNormalization", oracle="onnx.reference")
def norm_of_one(seen: Seen) -> Results:
    x = seen.taken[0]
    if seen.attribute("p", 2) != 1 or not (x < 0).any():
        return {}
    wide = x.astype(np.float64)
    norm = np.abs(wide).sum(axis=seen.attribute("axis", -1), keepdims=True)
    with np.errstate(all="ignore"):
        return {0: np.where(norm == 0, 0, wide / norm).astype(x.dtype)}


@rule("onnx.reference gives a mean in the type of what it normalises", "it is of the type that stash_type says, float32",
      "LayerNormalization", oracle="onnx.reference")
def stash_type(seen: Seen) -> Results:
    return {at: made.astype(np.float32) for at, made in enumerate(seen.made)
            if at > 0 and made is not None and made.dtype != np.float32}


@rule("onnx.reference takes a softmax before opset 13 along one axis", "before opset 13 it is along all axes from `axis` on, "
      "of which the default is 1", "Softmax", "LogSoftmax", "Hardmax", oracle="onnx.reference")
def softmax_of_matrix(seen: Seen) -> Results:
    x = seen.taken[0]
    if seen.opset >= 13 or not x.size:
        return {}
    axis = seen.attribute("axis", 1)
    axis += x.ndim if axis < 0 else 0
    if axis == x.ndim - 1:
        return {}
    matrix = x.reshape(int(np.prod(x.shape[:axis])), -1).astype(np.float64)
    if seen.node.op_type == "Hardmax":
        result = np.zeros_like(matrix)
        result[np.arange(len(matrix)), matrix.argmax(axis=1)] = 1
    else:
        result = matrix - matrix.max(axis=1, keepdims=True)
        result -= np.log(np.exp(result).sum(axis=1, keepdims=True))
        result = result if seen.node.op_type == "LogSoftmax" else np.exp(result)
    return {0: result.reshape(x.shape).astype(x.dtype)}


@rule("onnx.reference pools two dimensions, whatever the rank", "GlobalMaxPool is over all dimensions from 2 on",
      "GlobalMaxPool", oracle="onnx.reference")
def global_max(seen: Seen) -> Results:
    x = seen.taken[0]
    if x.ndim == 4 or 0 in x.shape[2:]:
        return {}
    return {0: x.max(axis=tuple(range(2, x.ndim)), keepdims=True)}


def explicit_pads(seen: Seen, kernel) -> list[int]:
    """The pads that `auto_pad` stands for: as ONNX's text has it, with the window that dilations make."""
    extents, way = seen.taken[0].shape[2:], seen.attribute("auto_pad")
    strides = seen.attribute("strides", [1] * len(kernel))
    dilations = seen.attribute("dilations", [1] * len(kernel))
    totals = [max(0, (-(-extent // stride) - 1) * stride + (size - 1) * dilation + 1 - extent) if way in SAME else 0
              for extent, size, stride, dilation in zip(extents, kernel, strides, dilations, strict=True)]
    first = [(total + 1) // 2 if way == "SAME_LOWER" else total // 2 for total in totals]
    return first + [total - before for total, before in zip(totals, first, strict=True)]


@rule("onnx.reference pads a convolution by the wrong extents", "its auto_pad looks at the batch's and the channels' extents, "
      "and takes VALID for SAME_UPPER", "Conv", "ConvInteger", "QLinearConv", oracle="onnx.reference")
def padded_convolution(seen: Seen) -> Results:
    if seen.attribute("auto_pad", "NOTSET") == "NOTSET":
        return {}
    weights = seen.taken[3 if seen.node.op_type == "QLinearConv" else 1]
    return {0: seen.with_attributes(auto_pad=None, pads=explicit_pads(seen, weights.shape[2:]))[0]}


@rule("onnx.reference takes the first group's bias and weights for each group", "each group of a ConvTranspose has its own",
      "ConvTranspose", oracle="onnx.reference")
def grouped_transposed_convolution(seen: Seen) -> Results:
    if seen.attribute("group", 1) == 1:
        return {}
    names = [name for name in seen.node.input if name]
    wide = dict(zip(names, (array.astype(np.float32) for array in seen.taken if array is not None), strict=True))
    ran = seen.again(seen.node, wide)  # which onnxruntime has in float32
    return {0: ran.made[0].astype(seen.made[0].dtype) if ran.by == "onnxruntime" else None}


def one_each(numbers) -> bool:
    return all(number == 1 for number in numbers or ())


@rule("an oracle pads a pool as if its window had no dilations, or its stride did not leave pixels out",
      "SAME pads by the dilated window and never by less than 0, and gives an output for each stride begun",
      "MaxPool", "AveragePool", "LpPool")
def padded_pool(seen: Seen) -> Results:
    kernel = seen.attribute("kernel_shape")
    strides, dilations = seen.attribute("strides"), seen.attribute("dilations")
    leaps = any(stride > size for stride, size in zip(strides or (), kernel, strict=False))
    if seen.attribute("auto_pad", "NOTSET") not in SAME or (one_each(dilations) and not leaps):
        return {}
    if seen.by == "onnxruntime" and one_each(dilations):
        return {}
    return dict(enumerate(seen.with_attributes(auto_pad=None, ceil_mode=None, pads=explicit_pads(seen, kernel))))


@rule("onnx.reference runs a plain recurrence", "it passes over direction, clip, activations, input_forget and lengths, and "
      "turns the last state wrongly where the batch is first", "LSTM", "GRU", "RNN", oracle="onnx.reference")
def plain_recurrence(seen: Seen) -> Results:
    told = (seen.attribute("direction", "forward") != "forward" or seen.attribute("clip") is not None
            or seen.attribute("activations") is not None or seen.attribute("input_forget", 0)
            or seen.attribute("layout", 0) or seen.has(4))
    return {at: None for at, made in enumerate(seen.made) if made is not None} if told else {}


@rule("onnx.reference gathers nothing of shape [0]", "GatherElements gives the shape of its places", "GatherElements",
      oracle="onnx.reference")
def gathers_nothing(seen: Seen) -> Results:
    places = seen.taken[1]
    return {} if places.size else {0: np.zeros(places.shape, seen.made[0].dtype)}


@rule("onnx.reference sorts what is unique, wanted or not", "without `sorted` it is in the order in which it comes", "Unique",
      oracle="onnx.reference")
def unsorted(seen: Seen) -> Results:
    x, axis = seen.taken[0], seen.attribute("axis")
    if seen.attribute("sorted", 1) or not x.size:
        return {}
    _, first = np.unique(x, return_index=True, axis=axis)
    return {0: np.take(x.ravel() if axis is None else x, np.sort(first), axis=axis or 0)}


# -- a model by them

@dataclass
class Ruled:
    """A model's outputs by the rules."""
    outputs: dict[str, np.ndarray]  # without those that ONNX leaves free, or that no oracle can compute
    free: set[str]  # names of outputs that ONNX leaves free, or that come of such
    rules: dict[str, list[str]]  # by output: the rules that it comes of, by name
    refused: list[str]  # operators whose inputs onnxruntime refused, which onnx.reference answered


class Walk(Steps):
    """A model node by node, where each node's results are those of the rules that hold of it."""

    def __init__(self, model: onnx.ModelProto):
        super().__init__(model)
        self.opsets = {given.domain: given.version for given in model.opset_import}

    def __call__(self, inputs: dict[str, np.ndarray]) -> Ruled:
        values = {**self.constants, **inputs}
        rules: dict[str, list[str]] = {}
        free: set[str] = set()
        refused: list[str] = []
        for step in self.nodes:
            names = names_within(step.node)
            came = list(dict.fromkeys(rule for name in names for rule in rules.get(name, ())))
            of_free = any(name in free for name in names)
            results: dict[int, np.ndarray | None] = {}
            here: dict[int, list[str]] = {}
            try:
                taken = self.taken(step, values)
                ran = step.run(taken)
                if ran.refused:
                    refused.append(step.node.op_type)
                self.keep(step, ran.made, values)
                results, here = self._ruled(step, taken, ran)
            except Exception:  # noqa: BLE001: of many kinds; what follows is not known
                pass
            for at, name in enumerate(step.node.output):
                if not name:
                    continue
                if came or at in here:
                    rules[name] = came + [each for each in here.get(at, ()) if each not in came]
                if at in results:
                    values[name] = results[at] if results[at] is not None else values[name]
                if of_free or results.get(at, ...) is None:
                    free.add(name)
        return Ruled({name: values[name] for name in self.outputs if name in values and name not in free},
                     free & set(self.outputs), {name: rules[name] for name in self.outputs if name in rules}, refused)

    def _ruled(self, step, taken, ran: Ran):
        """The results of the rules that hold, and their names, both by place."""
        node = step.node
        results: Results = {}
        here: dict[int, list[str]] = {}
        if node.domain not in ("", "ai.onnx"):
            return results, here
        made = iter(ran.made)
        seen = Seen(node, self.opsets[""], [taken[name] if name else None for name in node.input],
                    [next(made) if name else None for name in node.output], ran.by,
                    lambda other, values: oracle.Node(other, step.opset, step.ml_opset).run(
                        {**{n: taken[n] for n in names_within(other) if n in taken}, **values}))
        for each in RULES:
            if node.op_type not in each.operators or each.oracle not in (None, ran.by):
                continue
            for at, array in each.right(seen).items():
                if at < len(node.output) and node.output[at]:
                    results[at] = array
                    here.setdefault(at, []).append(each.name)
                    if array is not None:
                        seen.made[at] = array
        return results, here
