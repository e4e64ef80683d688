"""What ONNX graphs compute, by onnxruntime and by onnx.reference, neither of which shares code with Carillon."""

from __future__ import annotations

import functools
import warnings
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

onnxruntime.set_default_logger_severity(4)
warnings.filterwarnings("ignore")

BF16 = np.dtype(ml_dtypes.bfloat16)
PREVIEW = "ai.onnx.preview.training"
PROTO_OF = {np.dtype(np.float32): TensorProto.FLOAT, np.dtype(np.float64): TensorProto.DOUBLE,
            np.dtype(np.float16): TensorProto.FLOAT16, BF16: TensorProto.BFLOAT16,
            np.dtype(np.int8): TensorProto.INT8, np.dtype(np.int16): TensorProto.INT16,
            np.dtype(np.int32): TensorProto.INT32, np.dtype(np.int64): TensorProto.INT64,
            np.dtype(np.uint8): TensorProto.UINT8, np.dtype(np.uint16): TensorProto.UINT16,
            np.dtype(np.uint32): TensorProto.UINT32, np.dtype(np.uint64): TensorProto.UINT64,
            np.dtype(bool): TensorProto.BOOL, np.dtype(object): TensorProto.STRING}
_SPELLED = {"float": np.float32, "double": np.float64, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16,
            "bool": bool, "string": object, **{f"{sign}int{bits}": np.dtype(f"{sign}int{bits}")
                                               for sign in ("", "u") for bits in (8, 16, 32, 64)}}
_TYPE_OF = {f"tensor({name})": np.dtype(kind) for name, kind in _SPELLED.items()}


@functools.cache
def allowed_types(op: str, domain: str, opset: int, place: int) -> frozenset[np.dtype] | None:
    """The element types that the operator takes as its input at `place`; None where the opset lacks it."""
    try:
        schema = onnx.defs.get_schema(op, opset, domain)
    except onnx.defs.SchemaError:
        return None
    formal = schema.inputs[min(place, len(schema.inputs) - 1)]
    return frozenset(_TYPE_OF[name] for name in formal.types if name in _TYPE_OF)


@functools.cache
def _all_opsets() -> dict[str, tuple[int, int]]:
    versions: dict[str, list] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == "":
            versions.setdefault(schema.name, []).append((schema.since_version, schema.deprecated))
    newest = onnx.defs.onnx_opset_version()
    return {name: (min(found)[0], max(found)[0] - 1 if max(found)[1] else newest) for name, found in versions.items()}


def opsets_of(op: str) -> tuple[int, int] | None:
    """The first and the last opset of the default domain that has the operator, so far; None where it is another's."""
    return _all_opsets().get(op)


def imports(opset: int, ml_opset: int, domains) -> list:
    others = {"ai.onnx.ml": ml_opset, PREVIEW: 1}
    return [helper.make_opsetid("", opset)] + [helper.make_opsetid(name, others[name]) for name in sorted(domains)]


def array_of(result) -> np.ndarray:
    """What an oracle answers, as an array; texts as str."""
    array = np.asarray(result)
    if array.dtype.kind in "US":
        array = array.astype(object)
    if array.dtype == object:
        array = np.array([t.decode() if isinstance(t, bytes) else t for t in array.ravel()] or [],
                         dtype=object).reshape(array.shape)
    return array


def session(model: bytes) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


class Runtime:
    """onnxruntime, without its optimisations, over one model. What it cannot run is an exception of its own."""

    def __init__(self, model: onnx.ModelProto):
        if any(value.type.tensor_type.elem_type == TensorProto.BFLOAT16
               for value in (*model.graph.input, *model.graph.output)):
            raise NotImplementedError("onnxruntime takes no bfloat16 from numpy")
        self.session = session(model.SerializeToString())

    def __call__(self, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        return [array_of(result) for result in self.session.run(None, inputs)]


class Reference:
    """onnx.reference over one model."""

    def __init__(self, model: onnx.ModelProto):
        self.evaluator = ReferenceEvaluator(model)
        self.types = [value.type.tensor_type.elem_type for value in model.graph.output]

    def __call__(self, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        with np.errstate(all="ignore"):
            return [array_of(result) for result in self.evaluator.run(None, inputs)]


class Widened:
    """onnx.reference in float32, for what it would add up in bfloat16, rounding after each number."""

    SUMS = frozenset({"ReduceSum", "ReduceMean", "ReduceSumSquare", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp"})

    def __init__(self, model: onnx.ModelProto):
        self.reference = Reference(model)

    def __call__(self, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        wide = {name: array.astype(np.float32) if array.dtype == BF16 else array for name, array in inputs.items()}
        return [result.astype(BF16) if result.dtype == np.float32 else result for result in self.reference(wide)]


NAMES = {Runtime: "onnxruntime", Reference: "onnx.reference", Widened: "onnx.reference"}


@dataclass
class Ran:
    """What an oracle made of a node."""
    made: list[np.ndarray]
    by: str  # of NAMES
    refused: bool = False  # whether another oracle, which has the operator, refused these inputs


class Node:
    """One node by itself: by onnxruntime where that has it, else by onnx.reference. It is read when it first runs, by
    the types that come."""

    def __init__(self, node: onnx.NodeProto, opset: int, ml_opset: int):
        self.node, self.opset, self.ml_opset = node, opset, ml_opset
        self.runs: dict[tuple, list] = {}

    def __call__(self, values: dict[str, np.ndarray]) -> list[np.ndarray]:
        return self.run(values).made

    def run(self, values: dict[str, np.ndarray]) -> Ran:
        kind = tuple((name, array.dtype, array.ndim) for name, array in values.items())
        if kind not in self.runs:
            self.runs[kind] = self._read(values)
        problem: Exception = NotImplementedError(f"{self.node.op_type}: no oracle has it")
        refused = False
        for run in self.runs[kind]:
            try:
                results = run(values)
                if self.node.domain == PREVIEW:  # onnx.reference widens what it multiplies by a Python number
                    results = [result.astype(values[self.node.input[2]].dtype) for result in results]
                return Ran(results, NAMES[type(run)], refused)
            except Exception as error:  # noqa: BLE001: of many kinds
                problem, refused = error, True
        raise problem

    def _read(self, values) -> list:
        inputs = [helper.make_tensor_value_info(name, PROTO_OF[a.dtype], [None] * a.ndim) for name, a in values.items()]
        outputs = [onnx.ValueInfoProto(name=name) for name in self.node.output if name]
        graph = helper.make_graph([self.node], "node", inputs, outputs)
        model = helper.make_model(graph, opset_imports=imports(self.opset, self.ml_opset, {self.node.domain} - {""}),
                                  ir_version=10)
        found = []
        for which in self._oracles(values):
            try:
                found.append(which(model))
            except Exception:  # noqa: BLE001: it has no such operator or type
                continue
        return found

    def _oracles(self, values) -> tuple:
        if any(a.dtype == BF16 for a in values.values()):
            return (Widened,) if self.node.op_type in Widened.SUMS else (Reference,)
        return (Runtime, Reference)


def names_within(node: onnx.NodeProto) -> list[str]:
    """What a node reads, and what graphs within it read of what is around it."""
    names = [name for name in node.input if name]
    for attribute in node.attribute:
        if attribute.HasField("g"):
            inner = attribute.g
            own = {value.name for value in inner.input} | {tensor.name for tensor in inner.initializer}
            for each in inner.node:
                names += [name for name in names_within(each) if name not in own]
                own |= set(each.output)
    return list(dict.fromkeys(names))


# Operators whose results are exactly numbers that they take, or whole numbers: they round nothing.
EXACT = frozenset({
    "Abs", "ArgMax", "ArgMin", "Cast", "CastLike", "Ceil", "Clip", "Compress", "Concat", "Constant", "ConstantOfShape",
    "DepthToSpace", "Dropout", "Expand", "EyeLike", "Flatten", "Floor", "Gather", "GatherElements", "GatherND",
    "GlobalMaxPool", "Hardmax", "Identity", "If", "Max", "MaxPool", "MaxUnpool", "Min", "Neg", "OneHot", "Pad", "ReduceMax",
    "ReduceMin", "Relu", "Reshape", "Round", "Scatter", "ScatterElements", "ScatterND", "Sign", "Slice", "SpaceToDepth",
    "Split", "Squeeze", "Tile", "TopK", "Transpose", "Trilu", "Unique", "Unsqueeze", "Where"})


def exact(node: onnx.NodeProto) -> bool:
    if node.op_type in ("Resize", "Upsample"):
        return not any(attribute.name == "mode" and attribute.s != b"nearest" for attribute in node.attribute)
    return node.op_type in EXACT


# By how much of itself a number changes in about two roundings.
ROUNDINGS = {np.dtype(np.float16): 2e-3, BF16: 1.6e-2}


def near(array: np.ndarray, generator: np.random.Generator, within: bool = False) -> np.ndarray:
    """The same numbers, each about two roundings away, or anywhere within; what is no floating-point number stays as it
    is."""
    if array.dtype.kind != "f" and array.dtype != BF16:
        return array
    by = generator.uniform(-1, 1, array.shape) if within else generator.choice([-1.0, 1.0], array.shape)
    return (array * (1 + ROUNDINGS.get(array.dtype, 1e-6) * by)).astype(array.dtype)


class Steps:
    """A model node by node, so that each may be computed by another oracle. What none of them has is an error."""

    def __init__(self, model: onnx.ModelProto):
        opsets = {given.domain: given.version for given in model.opset_import}
        self.constants = {tensor.name: tensor_array(tensor) for tensor in model.graph.initializer}
        self.nodes = [Node(node, opsets[""], opsets.get("ai.onnx.ml", 3)) for node in model.graph.node]
        self.outputs = [output.name for output in model.graph.output]

    def __call__(self, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        values = {**self.constants, **inputs}
        for step in self.nodes:
            self.keep(step, step.run(self.taken(step, values)).made, values)
        return [values[name] for name in self.outputs]

    @staticmethod
    def taken(step: Node, values) -> dict[str, np.ndarray]:
        return {name: values[name] for name in names_within(step.node)}

    def keep(self, step: Node, made, values) -> None:
        values.update(zip((name for name in step.node.output if name), made, strict=True))


class Shaken(Steps):
    """The same, with roundings other than those of the oracles: each number that a node rounds is off by two at most."""

    def __call__(self, inputs: dict[str, np.ndarray], seed: str = "0") -> list[np.ndarray]:
        self.generator = np.random.default_rng(int(seed))
        return super().__call__(inputs)

    def keep(self, step: Node, made, values) -> None:
        if not exact(step.node):
            made = [near(array, self.generator, within=True) for array in made]
        super().keep(step, made, values)


def tensor_array(tensor: onnx.TensorProto) -> np.ndarray:
    if tensor.data_type == TensorProto.BFLOAT16:
        return np.frombuffer(tensor.raw_data, BF16).reshape(tuple(tensor.dims))
    return array_of(numpy_helper.to_array(tensor))


def run_node(node: onnx.NodeProto, opset: int, ml_opset: int, values) -> list[list[np.ndarray]] | None:
    """The results of one node at each trial of `values`; None where neither oracle takes it."""
    values = list(values)
    step = Node(node, opset, ml_opset)
    try:
        return [step({v.name: v.arrays[trial] for v in values}) for trial in range(2)]
    except Exception:  # noqa: BLE001: of many kinds, and all of them mean that it does not fit
        return None
