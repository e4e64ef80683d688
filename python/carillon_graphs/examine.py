"""What a server makes of a case: every set alone, rows of several requests together, and what a stain leaves behind.

A fault is one of KINDS. What is no fault is counted with its reason: an oracle that refuses, oracles that disagree, a
graph whose answer turns on the last bit of its input, a model that the engine does not take.
"""

from __future__ import annotations

import collections
import re
import time
from dataclasses import dataclass, field

import numpy as np
import onnx

from .generate import Case
from .judges import Expected, Judge
from .oracle import near
from .server import BUSY, Gone, Refused, Server
from .sketch import BF16, F16, F64, is_float

KINDS = {
    "crash": "the server ended or did not answer",
    "wrong": "an answer is not the oracles'",
    "mixed": "rows together are answered unlike the same rows alone",
    "unwritten": "the same request is answered otherwise after another",
    "refused": "a request that the oracles answer is refused",
    "error": "an error that is no refusal (HTTP 500)",
}
STAIN = 12345.5  # no case computes this by itself
RETURNS_S = 60  # OpenVINO's models are compiled anew after a run that was refused, and its process starts again after a crash
# What the server refuses by design, with words: (words of the error, name in the count).
LIMITS = (
    (re.compile(r"must be \[-1.* with 1 to \d+ in place of -1"), "refused: a batch has 1 to 16 rows"),
    (re.compile(r"has no elements, of which it would make"), "refused: a reduction of nothing"),
    (re.compile(r"its window of \d+ does not fit in the padded extent"), "refused: a window larger than its input"),
    (re.compile(r"pads \[[-\d,]*\] reach beyond input"), "refused: a reflection wider than its input"),
    (re.compile(r"has a batch of \d+, the inputs before it"), "refused: first dimensions without names are one batch"),
    (re.compile(r"which depends on data; only shapes known|its trip count \(input 0\) is not a constant"),
     "refused: a Loop or Scan as long as the data say"),
    (re.compile(r"it runs for no iteration, and data decide"), "refused: a Loop of no rounds, whose extents data decide"),
    (re.compile(r"is outside an axis of|has an index outside of its axis"), "refused: an index outside its axis"),
    (re.compile(r"at these sizes alone, so rows cannot be batched"), "refused: rows that are proven apart at other sizes"),
    (re.compile(r"(RoiAlign\): the image|GridSample\): image \[.*\]) has no pixels"), "refused: an image without pixels"),
    (re.compile(r"Resize\): sizes .* of an axis without elements"), "refused: pixels made of none"),
    (re.compile(r"DFT\): the axis has no elements"), "refused: a transform of nothing"),
    (re.compile(r"dimension of \d+ does not split into \d+ equal parts"), "refused: a Split without sizes that is not even"),
    (re.compile(r"has nothing to pool"), "refused: a pool of nothing"),
    (re.compile(r"Window\): size is 0"), "refused: a window of size 0"),
    (re.compile(r"for which OpenVINO leaves its result unwritten"), "refused: OpenVINO leaves results of nothing unwritten"),
    (re.compile(r"may have data without elements, and OpenVINO does not check its indices"),
     "refused: OpenVINO checks no indices of nothing"),
    (re.compile(r"runs 0 times, and OpenVINO leaves unwritten"), "refused: OpenVINO leaves a Loop of no rounds unwritten"),
    (re.compile(r"OpenVINO: Check '(cmp::le\(kernel|batch_size|channel_count|pad_mode)"),
     "refused: OpenVINO pools and reflects no less"),
    (re.compile(r"OpenVINO: Check 'TRShape::broadcast_merge_into.* opset10::Unique "),
     "refused: OpenVINO's Unique of nothing has something"),
    (re.compile(r"OpenVINO: Check 'i < input_shape.size\(\)' .*\[0\].* '0' dimension is out of range"),
     "refused: OpenVINO flattens nothing to a copy of an extent that is not there"),
    (re.compile(r"OpenVINO: Check 'dimension_at_axis % num_splits == 0'"), "refused: OpenVINO splits evenly"),
    (re.compile(r"of type RDFT Check 'isInverse' .* Signal size greater than input size is not supported"),
     "refused: OpenVINO's transforms are no longer than their input"),
    (re.compile(r"there is no telling how long at most"), "refused: OpenVINO does not know how long a result is at most"),
    (re.compile(r"has the batch index \d+, and there are no images"), "refused: a region of no image"),
    (re.compile(r"whole numbers are exact there up to \d"), "refused: larger whole numbers than OpenVINO keeps exact"),
)
OF_LARGEST = 1e-5  # how far rows together may differ from rows alone


def will_return(answer) -> bool:
    """Whether the model is not ready for a while, through no fault of this request."""
    return (isinstance(answer, Refused) and answer.status == 503
            and ("it is compiled anew" in answer.text or "its process is started again" in answer.text))


@dataclass
class Fault:
    kind: str
    text: str
    place: str  # the request: "set 2", "together 1"
    inputs: dict[str, np.ndarray]
    want: dict[str, np.ndarray] | None = None
    got: dict[str, np.ndarray] | None = None


@dataclass
class Report:
    """Of one case on one engine."""
    engine: str
    ran_on: str = ""  # the engine that took it; empty where it was not loaded
    faults: list[Fault] = field(default_factory=list)
    counts: collections.Counter = field(default_factory=collections.Counter)
    notes: list[str] = field(default_factory=list)  # reasons of what is counted


def tolerance_of(dtypes) -> float:
    """Of the largest number, for a graph in which values of these types are computed."""
    if BF16 in dtypes:
        return 0.05
    return 0.01 if F16 in dtypes else 2e-4


def difference(got: dict[str, np.ndarray], want: dict[str, np.ndarray], tolerance: float) -> str | None:
    """What differs, described; whole numbers and texts must be equal."""
    if list(got) != list(want):
        return f"outputs {list(got)}, wanted {list(want)}"
    for name, wanted in want.items():
        have = got[name]
        if have.shape != wanted.shape or have.dtype != wanted.dtype:
            return f"'{name}' is {have.dtype}{list(have.shape)}, wanted {wanted.dtype}{list(wanted.shape)}"
        if not is_float(wanted.dtype):
            if not np.array_equal(have, wanted):
                place = np.argwhere(np.atleast_1d(have != wanted))[0].tolist()
                return (f"'{name}' {wanted.dtype}{list(wanted.shape)} differs at {place}: "
                        f"{np.atleast_1d(have)[tuple(place)]!r}, wanted {np.atleast_1d(wanted)[tuple(place)]!r}")
            continue
        a, b = np.atleast_1d(have.astype(np.float64)), np.atleast_1d(wanted.astype(np.float64))
        finite = np.isfinite(b)
        largest = np.abs(b[finite]).max(initial=1e-3)
        with np.errstate(all="ignore"):
            far = np.where(finite, ~(np.abs(a - b) <= tolerance * largest), ~((a == b) | (np.isnan(a) & np.isnan(b))))
        if far.any():
            place = np.argwhere(far)[0].tolist()
            return (f"'{name}' {wanted.dtype}{list(wanted.shape)} differs at {place}: {a[tuple(place)]:.6g}, wanted "
                    f"{b[tuple(place)]:.6g} (largest {largest:.4g}; {int(far.sum())} of {far.size} differ)")
    return None


def only(names, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: array for name, array in arrays.items() if name in names}


def unstable(expected: Expected, which: str, inputs, want, tolerance: float) -> bool:
    """Whether the oracle's own answer changes as much when its inputs change by a rounding."""
    generator = np.random.default_rng(1)
    for _ in range(4):
        said = expected.answer(which, {name: near(array, generator) for name, array in inputs.items()})
        if not isinstance(said, dict) or difference(only(want, said), want, tolerance):
            return True
    return False


def rounds_otherwise(expected: Expected, inputs, want, tolerance: float) -> bool:
    """Whether the oracles' answer changes as much when what their nodes compute is rounded otherwise."""
    shaken = (expected.answer(f"shaken/{seed}", inputs) for seed in range(8))
    return any(isinstance(said, dict) and difference(only(want, said), want, tolerance) for said in shaken)


def types_within(model: onnx.ModelProto, case: Case) -> set[np.dtype]:
    """Element types that may be computed with."""
    found = {array.dtype for inputs in case.sets for array in inputs.values()}
    text = repr([(node.op_type, [a for a in node.attribute if a.name in ("to", "dtype", "output_datatype")])
                 for node in model.graph.node])
    if re.search(r"i: 10\b", text):
        found.add(F16)
    if re.search(r"i: 16\b", text):
        found.add(BF16)
    names = {10: F16, 16: BF16, 11: F64}
    found |= {names[t.data_type] for t in model.graph.initializer if t.data_type in names}
    return found


class Examiner:
    """Examines cases one after the other on one server, which it starts anew where it ends."""

    def __init__(self, server: Server):
        self.server = server
        self.number = 0
        self.one, self.other = Judge(), Judge()

    def expected(self, case: Case) -> Expected:
        return Expected(case.model, self.one, self.other)

    def close(self) -> None:
        self.server.stop()
        self.one.close()
        self.other.close()

    def __call__(self, case: Case, engine: str, expected: Expected | None = None) -> Report:
        report = Report(engine)
        expected = expected or self.expected(case)
        self.server.start()
        self.number += 1
        name = f"g{self.number}"
        place = ["load", {}]
        try:
            self._examine(case, name, engine, expected, report, place)
            self._unload(name)
        except Gone as gone:
            how = self.server.ended() or f"the server does not answer: {gone}"
            report.faults.append(Fault("crash", f"{place[0]}: {how}", *place))
            self.server.give_up()
        return report

    def _unload(self, name: str) -> None:
        try:
            self.server.unload(name)
        except Refused:
            self.server.give_up()

    def _examine(self, case, name, engine, expected, report, place) -> None:
        server = self.server
        config = "" if engine == "any" else f'parameters {{ key: "engine" value {{ string_value: "{engine}" }} }}\n'
        server.add(name, case.model.SerializeToString(), config)
        try:
            server.load(name)
        except Refused as refused:
            if "as often as they can be" in refused.text:
                raise Gone(f"it loads no more models: {refused.text}") from None
            report.counts["not loaded"] += 1
            report.notes.append(f"not loaded: {shorten(refused.text, name)}")
            return
        report.ran_on = engine if engine != "any" else self._engine_of(name)
        report.counts["loaded"] += 1
        tolerance = tolerance_of(types_within(case.model, case))
        check = Check(server, name, expected, report, tolerance, place)
        first: list = []
        for at, inputs in enumerate(case.sets):
            first.append(check.alone(f"set {at}", inputs))
        # A stain: the same shapes, full of one number that would be seen where nothing else was written.
        for at in {0, min(2, len(case.sets) - 1), len(case.sets) - 1}:
            if isinstance(first[at], dict):
                check.after_stain(f"set {at} after a stain", case.sets[at], first[at])
        if case.together:
            alone = [check.alone(f"together {at}, alone", inputs) for at, inputs in enumerate(case.together)]
            check.together(case.together, alone)

    def _engine_of(self, name: str) -> str:
        platform = self.server.first.ask("GET", f"/v2/models/{name}")["platform"]
        return "openvino" if platform == "openvino" else "carillon"


def shorten(text: str, name: str) -> str:
    """An error without what is of one case alone: names and numbers."""
    text = re.sub(r"model file '[^']*': ", "", text.replace(name, "MODEL"))
    text = re.sub(r"'[^']{1,40}'", "'...'", text)
    text = re.sub(r"\[[-\d, ]*\]", "[...]", text)
    return re.sub(r"\b-?\d+\b", "N", text)[:220]


class Check:
    """The requests of one model."""

    def __init__(self, server: Server, name: str, expected: Expected, report: Report, tolerance: float, place: list):
        self.server, self.name, self.expected, self.report = server, name, expected, report
        self.tolerance, self.place = tolerance, place

    def fault(self, kind, text, place, inputs, want=None, got=None):
        self.report.faults.append(Fault(kind, f"{place}: {text}", place, inputs, want, got))

    def count(self, what, note=None):
        self.report.counts[what] += 1
        if note:
            self.report.notes.append(f"{what}: {shorten(note, self.name)}")

    def ask(self, place, inputs) -> dict[str, np.ndarray] | Refused:
        self.place[:] = [place, inputs]
        until = time.monotonic() + RETURNS_S
        while True:
            try:
                return self.server.first.infer(self.name, inputs)
            except Refused as refused:
                if not will_return(refused) or time.monotonic() > until:
                    return refused
            time.sleep(0.02)

    def alone(self, place, inputs):
        """The answer, compared with the oracles'."""
        got = self.ask(place, inputs)
        which, want = self.expected.primary(inputs)
        if isinstance(got, Refused):
            if got.status >= 500 and got.status not in (501, 503, 504):
                self.server_error(got, place, inputs)
            elif isinstance(want, Exception):
                self.count("refused, as by an oracle")
            elif self.expected.any_refuses(inputs):
                self.count("refused, as by one oracle", got.text)
            elif any(f"({operator})" in got.text or re.search(rf"\b{operator} '", got.text)
                     for operator in self.expected.ruled(inputs).refused):
                self.count("refused, as a node is by onnxruntime", got.text)
            elif self.openvino_fails(inputs):
                self.count("refused, as OpenVINO does", got.text)
            elif limit := next((what for said, what in LIMITS if said.search(got.text)), None):
                self.count(limit)
            else:
                self.fault("refused", f"{got.status}: {got.text}", place, inputs, want)
            return got
        if isinstance(want, Exception):
            self.count("answered, which no oracle does")
            return got
        wrong = difference(got, want, self.tolerance)
        if wrong is None:
            self.count("right")
        else:
            self.judge(wrong, got, which, want, place, inputs)
        return got

    def openvino_fails(self, inputs) -> bool:
        return self.report.ran_on == "openvino" and isinstance(self.expected.answer("openvino", inputs), Exception)

    def openvino_gives_another_shape(self, got, inputs) -> bool:
        """Whether the error is that, and OpenVINO by itself gives none of the oracles' shape either."""
        name = re.search(r"OpenVINO: output '([^']*)' came out with shape", got.text)
        want, said = self.expected.primary(inputs)[1], self.expected.answer("openvino", inputs)
        return (name is not None and self.report.ran_on == "openvino" and isinstance(want, dict) and isinstance(said, dict)
                and name[1] in said and name[1] in want and said[name[1]].shape != want[name[1]].shape)

    def server_error(self, got, place, inputs):
        if self.openvino_fails(inputs):
            self.count("failed, as OpenVINO does", got.text)
        elif self.openvino_gives_another_shape(got, inputs):
            self.count("failed: OpenVINO itself gives another shape", got.text)
        else:
            self.fault("error", f"{got.status}: {got.text}", place, inputs)

    def judge(self, wrong, got, which, want, place, inputs):
        """An answer unlike the first oracle's: whose fault is it?"""
        left = self.by_rules(got, want, inputs)
        if left is not None:
            if not left:
                return None
            got, want = only(left, got), only(left, want)
            wrong = difference(got, want, self.tolerance)
        if which != "onnxruntime" and all(not array.size for array in (*want.values(), *got.values())):
            return self.count("skipped: a shape of nothing, which onnxruntime does not say", wrong)
        other = self.expected.answer("onnx.reference", inputs)
        if isinstance(other, dict):
            other = only(want, other)
            if difference(got, other, self.tolerance) is None:
                return self.count("right by onnx.reference alone")
            if difference(other, want, self.tolerance) is not None:
                return self.count("skipped: the oracles disagree", wrong)
        if unstable(self.expected, which, inputs, want, self.tolerance):
            return self.count("skipped: the answer turns on the last bit")
        if rounds_otherwise(self.expected, inputs, want, self.tolerance):
            return self.count("skipped: the answer turns on a rounding within")
        if self.report.ran_on == "openvino":
            said = self.expected.answer("openvino", inputs)
            if isinstance(said, Exception):
                return self.count("skipped: OpenVINO itself fails", wrong)
            if difference(got, only(want, said), self.tolerance) is None:
                return self.count("skipped: OpenVINO itself answers so", wrong)
        return self.fault("wrong", f"{wrong} (by {which})", place, inputs, want, got)

    def by_rules(self, got, want, inputs) -> list[str] | None:
        """The outputs that no rule explains; the rules that explain others are counted. None where the answer has other
        outputs than it should."""
        if list(got) != list(want):
            return None
        ruled = self.expected.ruled(inputs)
        left = []
        for name, wanted in want.items():
            if difference({name: got[name]}, {name: wanted}, self.tolerance) is None:
                continue
            right = ruled.outputs.get(name)
            if name in ruled.rules and (name in ruled.free or right is not None and difference(
                    {name: got[name]}, {name: right}, self.tolerance) is None):
                for rule in ruled.rules[name]:
                    self.count(f"rule: {rule}")
            else:
                left.append(name)
        return left

    def same(self, got, before) -> str | None:
        """What differs between two answers to the same request, but for a rounding."""
        if isinstance(got, Refused) or isinstance(before, Refused):
            return None if type(got) is type(before) else f"{got}, before {before}"
        return difference(got, before, max(OF_LARGEST, self.tolerance / 20))

    def after_stain(self, place, inputs, before):
        stained = {name: np.full_like(array, STAIN) if is_float(array.dtype) else array for name, array in inputs.items()}
        self.ask(place + " (the stain)", stained)
        got = self.ask(place, inputs)
        wrong = self.same(got, before)
        if wrong is None:
            self.count("the same after a stain")
        elif self.turns(inputs, before):
            self.count("skipped: the answer turns on the last bit")
        else:
            self.fault("unwritten", wrong, place, inputs, before, got if isinstance(got, dict) else None)

    def turns(self, inputs, before) -> bool:
        which, want = self.expected.primary(inputs)
        return isinstance(want, dict) and unstable(self.expected, which, inputs, want, OF_LARGEST * 10)

    def together(self, sets, alone):
        """All of them while the device is busy, so that it takes those together that may be."""
        others = self.server.connections[1:]
        self.place[:] = ["together", sets[0]]
        others[0].send("busy", BUSY)
        pairs = list(zip(others[1:], sets, alone, strict=False))
        for connection, inputs, _ in pairs:
            connection.send(self.name, inputs)
        answers = []
        for connection, _, _ in pairs:
            try:
                answers.append(connection.receive())
            except Refused as refused:
                answers.append(refused)
        try:
            others[0].receive()
        except Refused:
            pass
        for at, ((_, inputs, before), got) in enumerate(zip(pairs, answers, strict=True)):
            place = f"together {at}"
            wrong = self.same(got, before)
            if wrong is None:
                self.count("the same together")
            elif will_return(got):
                self.count("refused: another made OpenVINO compile anew, or crash")
            elif self.turns(inputs, before):
                self.count("skipped: the answer turns on the last bit")
            else:
                self.fault("mixed", wrong, place, inputs, before if isinstance(before, dict) else None,
                           got if isinstance(got, dict) else None)


