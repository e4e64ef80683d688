"""A graph while it is drawn: node by node, each tried by an oracle at two sets of extents.

`Sketch.node()` computes a node's results at once, at both trials. So every operator's row knows the rank, the extents
and the numbers of the values it takes, and a node that fits nothing is never added. An extent that differs between
the trials is open; one that does not is fixed, as far as a row may rely on it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Callable

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from . import oracle

BF16 = np.dtype(ml_dtypes.bfloat16)
F16, F32, F64 = np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64)
I8, I16, I32, I64 = (np.dtype(f"int{bits}") for bits in (8, 16, 32, 64))
U8, U16, U32, U64 = (np.dtype(f"uint{bits}") for bits in (8, 16, 32, 64))
BOOL, TEXT = np.dtype(bool), np.dtype(object)
FLOATS = (F32, F32, F32, F32, F32, F32, F64, F16, BF16)  # how often each is drawn
INTEGERS = (I64, I64, I32, I32, I8, U8, I16, U16, U32, U64)
NUMBERS = FLOATS * 2 + INTEGERS
EVERY = NUMBERS * 2 + (BOOL, BOOL, TEXT)

MOST_ELEMENTS = 4096  # of any value at the trials
LARGEST = 1e4  # of numbers at the trials

PROTO = {F32: TensorProto.FLOAT, F64: TensorProto.DOUBLE, F16: TensorProto.FLOAT16, BF16: TensorProto.BFLOAT16,
         I8: TensorProto.INT8, I16: TensorProto.INT16, I32: TensorProto.INT32, I64: TensorProto.INT64,
         U8: TensorProto.UINT8, U16: TensorProto.UINT16, U32: TensorProto.UINT32, U64: TensorProto.UINT64,
         BOOL: TensorProto.BOOL, TEXT: TensorProto.STRING}

# What the open extents are at the two trials: pairs that differ from each other and from common fixed extents.
TRIAL_PAIRS = ((2, 5), (5, 2), (3, 7), (7, 3))
SYMBOLS = ("N", "T", "M", "K")

Dim = int | str


class Misfit(Exception):
    """What was drawn fits nothing here; something else is to be drawn."""


def is_float(dtype: np.dtype) -> bool:
    return dtype in (F32, F64, F16, BF16)


def bits_of(dtype: np.dtype) -> int:
    return dtype.itemsize * 8


@dataclass
class Value:
    name: str
    arrays: tuple[np.ndarray, ...]  # at each trial
    constant: bool = False
    dims: tuple[Dim | None, ...] | None = None  # None: an extent that is neither fixed nor a symbol

    @property
    def dtype(self) -> np.dtype:
        return self.arrays[0].dtype

    @property
    def rank(self) -> int:
        return self.arrays[0].ndim

    @property
    def shape(self) -> tuple[int, ...]:
        return self.arrays[0].shape

    def fixed(self, *axes: int) -> bool:
        """Whether these extents (all of them, if none is named) are the same at all trials."""
        return all(len({array.shape[axis] for array in self.arrays}) == 1 for axis in (axes or range(self.rank)))

    def fixed_at(self, axes) -> bool:
        """Whether it has these axes, and their extents are the same at all trials."""
        return all(-self.rank <= axis < self.rank and self.fixed(axis) for axis in axes)

    def least(self, axis: int) -> int:
        return min(array.shape[axis] for array in self.arrays)


@dataclass
class Input:
    """An input of the graph, and how its numbers are drawn."""
    name: str
    dtype: np.dtype
    dims: tuple[Dim, ...]
    numbers: Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]


def draw_numbers(dtype: np.dtype, kind: str = "any", low: int = 0, high: int = 1):
    """What draws an array of `dtype`: kind is any, positive, index (low <= i < high) or unit (-0.9 to 0.9)."""

    def draw(generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        if dtype == TEXT:
            words = np.array(["a", "b", "be", "see", "", "ä b"], dtype=object)
            return np.array(words[generator.integers(0, len(words), shape)], dtype=object).reshape(shape)
        if kind == "index":
            return generator.integers(low, high, shape).astype(dtype)
        if dtype == BOOL:
            return generator.integers(0, 2, shape).astype(bool)
        if is_float(dtype):
            if kind == "unit":
                return generator.uniform(-0.9, 0.9, shape).astype(dtype)
            numbers = generator.standard_normal(shape)
            return (np.abs(numbers) + 0.25 if kind == "positive" else numbers).astype(dtype)
        lowest = 1 if kind == "positive" else 0 if dtype.kind == "u" else -6
        return generator.integers(lowest, 7, shape).astype(dtype)

    return draw


@dataclass
class Sketch:
    rng: random.Random
    opset: int
    ml_opset: int = 3
    inputs: list[Input] = field(default_factory=list)
    initializers: list[onnx.TensorProto] = field(default_factory=list)
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    operators: list[str] = field(default_factory=list)
    domains: set[str] = field(default_factory=set)
    used: set[str] = field(default_factory=set)
    count: int = 0
    symbols: int = 2  # how many of SYMBOLS this graph may use

    def __post_init__(self):
        self.numbers = np.random.default_rng(self.rng.getrandbits(32))
        pairs = list(TRIAL_PAIRS)
        if self.chance(0.2):
            pairs = [(2, 5), (5, 1), (1, 2), (7, 3)]
        self.extents = dict(zip(SYMBOLS, pairs))
        self.symbols = self.rng.choice((1, 2, 2, 3, 4))

    # -- chance

    def chance(self, share: float) -> bool:
        return self.rng.random() < share

    def one(self, options):
        return self.rng.choice(list(options))

    def within(self, low: int, high: int) -> int:
        return self.rng.randint(low, high)

    def axis(self, value: Value, least: int = 0) -> int:
        """An axis, from `least` on, sometimes counted from the end."""
        if value.rank <= least:
            raise Misfit
        axis = self.within(least, value.rank - 1)
        return axis - value.rank if self.chance(0.3) else axis

    def require(self, holds) -> None:
        if not holds:
            raise Misfit

    # -- going back

    def mark(self):
        return (len(self.inputs), len(self.initializers), len(self.nodes), len(self.values), len(self.operators),
                set(self.used), set(self.domains))

    def back_to(self, mark) -> None:
        for items, length in zip((self.inputs, self.initializers, self.nodes, self.values, self.operators), mark):
            del items[length:]
        self.used, self.domains = mark[-2:]

    # -- values

    def name(self, prefix: str = "v") -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    def symbol_of(self, extents: tuple[int, ...]) -> str | None:
        for symbol in SYMBOLS[:self.symbols]:
            if self.extents[symbol] == extents:
                return symbol
        return None

    def dims_of(self, arrays: tuple[np.ndarray, ...]) -> tuple[Dim | None, ...]:
        dims: list[Dim | None] = []
        for extents in zip(*(array.shape for array in arrays)):
            dims.append(extents[0] if len(set(extents)) == 1 else self.symbol_of(extents))
        return tuple(dims)

    def keep(self, value: Value) -> Value:
        value.dims = self.dims_of(value.arrays)
        self.values.append(value)
        return value

    def dims(self, rank: int, fixed=(), least: int = 1) -> tuple[Dim, ...]:
        """Extents of a new input: the first is mostly open, those at `fixed` axes never."""
        found: list[Dim] = []
        for axis in range(rank):
            share = 0.8 if axis == 0 else 0.35
            if axis not in fixed and self.chance(share):
                first = 0.85 if axis == 0 else 0.15
                found.append(SYMBOLS[0] if self.chance(first) else self.one(SYMBOLS[:self.symbols]))
            else:
                found.append(self.one([extent for extent in (1, 2, 3, 4, 4, 6, 8) if extent >= least]))
        return tuple(found)

    def input(self, dtype: np.dtype, dims: tuple[Dim, ...], numbers=None) -> Value:
        numbers = numbers or draw_numbers(dtype)
        given = Input(self.name("x"), dtype, tuple(dims), numbers)
        shapes = [tuple(d if isinstance(d, int) else self.extents[d][trial] for d in dims) for trial in range(2)]
        for shape in shapes:
            self.require(np.prod(shape, dtype=float) <= MOST_ELEMENTS)
        self.inputs.append(given)
        return self.keep(Value(given.name, tuple(numbers(self.numbers, shape) for shape in shapes)))

    def const(self, array, dtype: np.dtype | None = None) -> Value:
        array = np.asarray(array)
        if dtype is not None:
            array = array.astype(dtype)
        array = np.ascontiguousarray(array).reshape(array.shape)
        name = self.name("c")
        proto = tensor_proto(array, name)
        if self.chance(0.15):
            self.nodes.append(helper.make_node("Constant", [], [name], value=proto))
        else:
            self.initializers.append(proto)
        return Value(name, (array, array), constant=True, dims=array.shape)

    def weights(self, *shape: int, dtype: np.dtype = F32, kind: str = "any", scale: float = 1.0) -> Value:
        array = draw_numbers(dtype, kind)(self.numbers, shape)
        return self.const((array * np.asarray(scale)).astype(dtype) if is_float(dtype) else array)

    def find(self, where: Callable[[Value], bool]) -> Value | None:
        """A value that is there, later ones rather."""
        fitting = [value for value in self.values if where(value)]
        if not fitting:
            return None
        weights = [1 + 2 * place + (6 if value.name not in self.used else 0) for place, value in enumerate(fitting)]
        return self.rng.choices(fitting, weights)[0]

    def tensor(self, dtypes=FLOATS, rank=(0, 4), fixed=(), where=None, least: int = 1, dtype=None, dims=None,
               numbers=None, kind: str = "any", new: float = 0.25) -> Value:
        """A value of one of `dtypes` and a rank within `rank`, whose extents at the axes `fixed` are. It is one that is
        there, or a new input; `dims` are a new input's."""
        low, high = (rank, rank) if isinstance(rank, int) else rank
        allowed = set(dtypes) if dtype is None else {dtype}
        self.require(allowed)

        def fits(value: Value) -> bool:
            return (value.dtype in allowed and low <= value.rank <= high and value.fixed_at(fixed)
                    and all(value.least(axis % value.rank) >= least for axis in fixed)
                    and (where is None or where(value)))

        plain = numbers is None and kind == "any"
        if plain and not self.chance(new):
            found = self.find(fits)
            if found is not None:
                return found
        rank_drawn = len(dims) if dims is not None else self.within(low, high)
        if dims is None and rank_drawn == 0 and high > 0 and self.chance(0.7):
            rank_drawn = self.within(max(low, 1), high)
        drawn = dtype if dtype is not None else self.one(dtypes)
        places = {axis % rank_drawn for axis in fixed} if rank_drawn else ()
        made = dims if dims is not None else self.dims(rank_drawn, places, least)
        value = self.input(drawn, made, numbers or draw_numbers(drawn, kind))
        self.require(where is None or where(value))
        return value

    def like(self, value: Value, dtype: np.dtype | None = None, kind: str = "any", exact: bool = False,
             constant: float = 0.35) -> Value:
        """A tensor that broadcasts with `value`, of its shape if `exact`."""
        dtype = dtype or value.dtype
        same = [other for other in self.values if other is not value and other.dtype == dtype
                and all(a.shape == b.shape for a, b in zip(value.arrays, other.arrays))]
        if same and kind == "any" and self.chance(0.6):
            return self.one(same)
        draw = draw_numbers(dtype, kind)
        if not exact and kind == "any" and self.chance(0.2):
            other = self.find(lambda v: v.dtype == dtype and broadcasts(v, value))
            if other is not None:
                return other
        if not exact and self.chance(constant):  # a constant over the last axes
            axes = self.within(0, value.rank)
            shape = [value.shape[axis] if value.fixed(axis) and self.chance(0.8) else 1
                     for axis in range(value.rank - axes, value.rank)]
            return self.const(draw(self.numbers, tuple(shape)))
        if value.fixed() and self.chance(0.5):
            return self.const(draw(self.numbers, value.shape))
        dims = value.dims
        if dims is None or None in dims:
            self.require(not exact)
            return self.const(draw(self.numbers, ()))
        if not exact:
            dims = tuple(1 if self.chance(0.15) else dim for dim in dims)
            if dims and self.chance(0.1):
                dims = dims[self.within(0, len(dims) - 1):]
        return self.input(dtype, dims, draw)

    # -- nodes

    def types(self, op: str, place: int, domain: str = "", among=NUMBERS) -> tuple[np.dtype, ...]:
        """Of `among`, what ONNX allows as the operator's input at `place`."""
        allowed = oracle.allowed_types(op, domain, self.opset if domain == "" else self.ml_opset, place)
        if allowed is None:
            raise Misfit(f"{op} is not in opset {self.opset}")
        return tuple(dtype for dtype in among if dtype in allowed)

    def node(self, op: str, taken, outputs: int = 1, domain: str = "", captures=(), tame: bool = True,
             **attributes) -> list[Value]:
        """Adds a node; its inputs may be None (left out). Its results are values from now on."""
        names = ["" if value is None else value.name for value in taken]
        while names and names[-1] == "":
            names.pop()
        made = [self.name() for _ in range(outputs)]
        attributes = {key: value for key, value in attributes.items() if value is not None}
        node = helper.make_node(op, names, made, domain=domain, **attributes)
        needed = {value.name: value for value in (*taken, *captures) if value is not None}
        results = oracle.run_node(node, self.opset, self.ml_opset, needed.values())
        if results is None:
            raise Misfit(f"{op} does not fit")
        for arrays in results:
            for array in arrays:
                self.require(array.size <= MOST_ELEMENTS)
                if tame and is_float(array.dtype):
                    self.require(np.isfinite(array).all() and np.abs(array).max(initial=0) <= LARGEST)
        self.nodes.append(node)
        self.operators.append(op)
        if domain:
            self.domains.add(domain)
        self.used.update(needed)
        return [self.keep(Value(name, arrays)) for name, arrays in zip(made, zip(*results, strict=True), strict=True)]


def broadcasts(value: Value, other: Value) -> bool:
    try:
        for a, b in zip(value.arrays, other.arrays):
            np.broadcast_shapes(a.shape, b.shape)
        return True
    except ValueError:
        return False


def tensor_proto(array: np.ndarray, name: str) -> onnx.TensorProto:
    if array.dtype == TEXT:
        return helper.make_tensor(name, TensorProto.STRING, array.shape, [text.encode() for text in array.ravel()])
    if array.dtype == BF16:
        return helper.make_tensor(name, TensorProto.BFLOAT16, array.shape, array.tobytes(), raw=True)
    return numpy_helper.from_array(array, name)
