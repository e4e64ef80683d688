"""A few lines around onnx.helper, for the models that are written without torch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from .catalogue import BATCH_DIMENSION, OPSET, SEQUENCE_DIMENSION, Sample, Tensor
from .seeded import fan_in_normal, normal, stream, uniform


class GraphWriter:
    """Collects nodes and initialisers; every weight is seeded by its name."""

    def __init__(self, sample: Sample, seed: int, name: str | None = None):
        self.sample = sample
        self.seed = seed
        self.name = name or sample.name
        self.nodes = []
        self.initializers = []

    def node(self, op: str, *inputs: str, name: str, **attributes) -> str:
        """Adds a node called `name` with one output, which has the same name."""
        self.nodes.append(helper.make_node(op, list(inputs), [name], name=name, **attributes))
        return name

    def branch(self, build: Callable[[], tuple[str, ...]], name: str) -> onnx.GraphProto:
        """A graph for one side of an If: the nodes that `build` adds.

        `build` gives the names of values that stand for the sample's outputs, in
        their order, each made by a node of the branch. Its nodes may use what is
        there outside; its weights are kept there, as exporters do.
        """
        outside, self.nodes = self.nodes, []
        results = build()
        inside, self.nodes = self.nodes, outside
        return helper.make_graph(inside, name, [], [
            self._value(tensor, result) for tensor, result in zip(self.sample.outputs, results, strict=True)])

    def either(self, condition: str, then: onnx.GraphProto, otherwise: onnx.GraphProto, name: str) -> tuple[str, ...]:
        """Adds an If called `name`; gives the names of its outputs, one for each of the sample's."""
        results = tuple(f"{name}.{tensor.name}" for tensor in self.sample.outputs)
        self.nodes.append(helper.make_node("If", [condition], list(results), name=name,
                                           then_branch=then, else_branch=otherwise))
        return results

    def constant(self, name: str, values) -> str:
        self.initializers.append(numpy_helper.from_array(np.asarray(values), name))
        return name

    def weight(self, name: str, shape, fan_in: int, gain: float) -> str:
        return self.constant(name, fan_in_normal(self._rng(name), shape, fan_in, gain))

    def normal(self, name: str, shape, std: float) -> str:
        return self.constant(name, normal(self._rng(name), shape, std))

    def uniform(self, name: str, shape, low: float, high: float) -> str:
        return self.constant(name, uniform(self._rng(name), shape, low, high))

    def finish(self, *outputs: str) -> bytes:
        """The checked model as bytes; `outputs` become the sample's, in their order."""
        for output, tensor in zip(outputs, self.sample.outputs, strict=True):
            self.nodes.append(helper.make_node("Identity", [output], [tensor.name], name=tensor.name))
        graph = helper.make_graph(
            self.nodes, self.name,
            [self._value(tensor) for tensor in self.sample.inputs],
            [self._value(tensor) for tensor in self.sample.outputs],
            self.initializers)
        model = helper.make_model(
            graph, producer_name="carillon_samples",
            opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)
        onnx.checker.check_model(model, full_check=True)
        return model.SerializeToString(deterministic=True)

    def _rng(self, name: str) -> np.random.Generator:
        return stream(self.seed, self.name, name)

    @staticmethod
    def _value(tensor: Tensor, name: str | None = None) -> onnx.ValueInfoProto:
        kind = {"FP32": TensorProto.FLOAT, "INT64": TensorProto.INT64}[tensor.dtype]
        dims = [SEQUENCE_DIMENSION if dim == -1 else dim for dim in tensor.dims]
        return helper.make_tensor_value_info(name or tensor.name, kind, [BATCH_DIMENSION, *dims])
