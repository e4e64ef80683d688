"""A thousand random graphs of the ten thousand that tools/random_graphs examines, and tests of the examination."""

from __future__ import annotations

import re
import sys

import ml_dtypes
import numpy as np
import onnx
import pytest

from loopback import ROOT, sanitized

sys.path.insert(0, str(ROOT / "python"))

from carillon_graphs import examine, generate, oracle, run  # noqa: E402
from carillon_graphs.judges import Expected  # noqa: E402
from carillon_graphs.operators import ROWS  # noqa: E402
from carillon_graphs.server import decode, encode  # noqa: E402

GRAPHS = 1000
# OpenVINO takes ten times as long to load a graph: every so-manieth goes there.
SECOND_EVERY = 8

# What has no row, and why.
WITHOUT = {
    "Constant": "rows make constants of one in seven of their weights",
    "ZipMap": "its result is no tensor, and none of the oracles' as the server gives it",
    "TreeEnsemble": "it is the newer form of the two ensembles that have rows, and no oracle of ours has it",
}


# Graphs whose answers differ: (label, engine), and why. Who mends a fault takes its line out.
KNOWN: dict[tuple[str, str], str] = {
    ("1/116", "carillon"): "a mean of no whole numbers is 0 here; the oracle converts NaN",
    ("1/157", "carillon"): "what a Loop of no iterations collects has the shape of its elements here; onnxruntime says [0]",
    ("1/165", "carillon"): "a recurrence of no steps ends in its initial states here, as ONNX says",
    ("1/244", "carillon"): "the oracle is wrong: onnxruntime leaves a tensor without elements unreduced",
    ("1/379", "carillon"): "a recurrence of no steps ends in its initial states here, as ONNX says",
    ("1/404", "carillon"): "a recurrence of no steps ends in its initial states here, as ONNX says",
    ("1/486", "carillon"): "the oracle is wrong: SAME padding beside ceil_mode or dilations",
    ("1/500", "carillon"): "what a Loop of no iterations collects has the shape of its elements here; onnxruntime says [0]",
    ("1/682", "carillon"): "what a Loop of no iterations collects has the shape of its elements here; onnxruntime says [0]",
    ("1/715", "carillon"): "a mean of no whole numbers is 0 here; the oracle converts NaN",
    ("1/915", "carillon"): "what a Loop of no iterations collects has the shape of its elements here; onnxruntime says [0]",
    ("1/918", "carillon"): "what a Loop of no iterations collects has the shape of its elements here; onnxruntime says [0]",
    ("1/951", "carillon"): "the oracle is wrong: SAME padding beside ceil_mode or dilations",
    ("1/958", "carillon"): "the oracle is wrong: SAME padding where the stride is longer than the window",
    ("1/987", "carillon"): "the oracle is wrong: onnx.reference keeps a dimension too many",
}


def known_to_carillon() -> set[str]:
    graph = ROOT / "src" / "carillon" / "graph"
    standard = (graph / "operators.cpp").read_text().split("own_table")[0]
    classical = (graph / "ml" / "expand.cpp").read_text()
    names = set(re.findall(r'^    \{"(\w+)", \d+,', standard, re.M)) | set(re.findall(r'Rule\{"(\w+)",', classical))
    training = re.search(r"find_training_operator\(.*?\n\}", (graph / "operators.cpp").read_text(), re.S).group(0)
    return names | set(re.findall(r'name == "(\w+)"', training))


def test_every_operator_has_a_row():
    known = known_to_carillon()
    assert len(known) > 180, "the tables are not read as they are written"
    assert known - set(ROWS) == set(WITHOUT)
    assert set(ROWS) <= known


def test_a_label_draws_the_same_graph():
    for about in ("Conv", "Loop", "TfIdfVectorizer"):
        one, other = (generate.draw_case("7/3", about) for _ in range(2))
        assert one.model.SerializeToString(deterministic=True) == other.model.SerializeToString(deterministic=True)
        for a, b in zip(one.sets + one.together, other.sets + other.together, strict=True):
            assert list(a) == list(b)
            for name in a:
                np.testing.assert_array_equal(a[name], b[name])


def test_every_extent_is_drawn_and_oracles_run_the_graphs():
    seen = set()
    for index, about in enumerate(sorted(ROWS)[::6]):
        case = generate.draw_case(f"8/{index}", about)
        assert len(oracle.Steps(case.model)(case.sets[0])) == len(case.model.graph.output)
        assert about in case.operators
        seen |= {extent for extents in case.extents for extent in extents.values()}
    assert seen == set(generate.EXTENTS)


@pytest.mark.parametrize(("got", "want", "differs"), [
    ([1.0, 2.0], [1.0, 2.0 + 1e-6], False),
    ([1.0, 2.0], [1.0, 2.01], True),
    ([0.0, 1000.0], [0.01, 1000.0], False),  # by the largest
    ([np.nan, 1.0], [np.nan, 1.0], False),
    ([np.nan, 1.0], [1.0, 1.0], True),
    ([np.inf], [-np.inf], True),
    ([[1.0]], [1.0], True),
    ([], [], False),
])
def test_what_differs(got, want, differs):
    arrays = ({"y": np.array(values, np.float32)} for values in (got, want))
    assert (examine.difference(*arrays, 1e-4) is not None) == differs


def test_whole_numbers_texts_and_types_differ_exactly():
    differs = lambda a, b: examine.difference({"y": a}, {"y": b}, 1e-4) is not None
    assert differs(np.array([1 << 60]), np.array([(1 << 60) + 1]))
    assert differs(np.array(["a"], object), np.array(["b"], object))
    assert differs(np.array([1], np.int32), np.array([1], np.int64))
    assert not differs(np.array([True]), np.array([True]))


@pytest.mark.parametrize("array", [np.arange(6, dtype=np.int64).reshape(2, 3), np.array(["", "ä b"], object),
                                   np.array([[1.5, -2]], ml_dtypes.bfloat16), np.zeros((0, 3), np.float16), np.array(True)])
def test_tensors_on_the_wire(array):
    from carillon_graphs.server import KINDS
    np.testing.assert_array_equal(decode(encode(array), KINDS[array.dtype], list(array.shape)), array)


class Scripted:
    """A server that gives these answers in turn, to an examination that needs no more of it."""

    def __init__(self, answers):
        self.answers = iter(answers)
        self.first = self

    def infer(self, _name, _inputs):
        return next(self.answers)


@pytest.mark.parametrize(("answers", "kind"), [
    ([[3.0], [9.0], [3.0]], None),  # right, the stain's answer, right again
    ([[4.0], [9.0], [4.0]], "wrong"),
    ([[3.0], [9.0], [9.0]], "unwritten"),
])
def test_what_is_a_fault(answers, kind):
    model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["": 17]> g (float[N] x) => (float[N] y) { y = Add(x, x) }')
    judge = examine.Judge()
    try:
        report = examine.Report("carillon")
        server = Scripted([{"y": np.array(values, np.float32)} for values in answers])
        check = examine.Check(server, "m", Expected(model, judge, judge), report, 1e-4, ["", {}])
        inputs = {"x": np.array([1.5], np.float32)}
        before = check.alone("set 0", inputs)
        check.after_stain("set 0 after a stain", inputs, before)
    finally:
        judge.close()
    assert [fault.kind for fault in report.faults] == ([kind] if kind else [])


def test_a_thousand_graphs(program, tmp_path):
    if sanitized(program):
        pytest.skip("a sanitizer makes it an hour: tools/random_graphs --program does so by command")
    result = run.run(run.Options(program, seed=1, count=GRAPHS, out=tmp_path / "faults", second_every=SECOND_EVERY))
    new = [found for found in result.found if (found.label, found.engine) not in KNOWN]
    assert not new, "\n".join(run.one_line(found) for found in new)
    # That much was really examined.
    assert result.graphs > 0.98 * GRAPHS
    assert set(ROWS) - set(result.operators) == set()
    of_own = {what: count for (engine, what), count in result.counts.items() if engine == "carillon"}
    assert of_own["loaded"] > 0.85 * GRAPHS
    assert of_own["right"] > 4 * GRAPHS
    assert of_own["the same together"] > 2 * GRAPHS
    assert of_own["the same after a stain"] > GRAPHS
    assert sum(count for what, count in of_own.items() if what.startswith("skipped")) < 0.1 * GRAPHS
