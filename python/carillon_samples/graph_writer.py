"""A few lines around onnx.helper, for the models that are written without torch."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from .catalogue import BATCH_DIMENSION, OPSET, Sample
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

    def constant(self, name: str, values) -> str:
        self.initializers.append(numpy_helper.from_array(np.asarray(values), name))
        return name

    def weight(self, name: str, shape, fan_in: int, gain: float) -> str:
        return self.constant(name, fan_in_normal(self._rng(name), shape, fan_in, gain))

    def normal(self, name: str, shape, std: float) -> str:
        return self.constant(name, normal(self._rng(name), shape, std))

    def uniform(self, name: str, shape, low: float, high: float) -> str:
        return self.constant(name, uniform(self._rng(name), shape, low, high))

    def finish(self, output: str) -> bytes:
        """The checked model as bytes; `output` becomes the sample's only output."""
        wanted = self.sample.outputs[0].name
        self.nodes.append(helper.make_node("Identity", [output], [wanted], name=wanted))
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
    def _value(tensor):
        kind = {"FP32": TensorProto.FLOAT, "INT64": TensorProto.INT64}[tensor.dtype]
        return helper.make_tensor_value_info(tensor.name, kind, [BATCH_DIMENSION, *tensor.dims])
