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

from carillon_graphs import examine, generate, oracle, rules, run, server  # noqa: E402
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
        answer = next(self.answers)
        if isinstance(answer, Exception):
            raise answer
        return answer


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


NAN, INF = float("nan"), float("inf")
DOUBLE = np.float64


def numbers(shape, dtype=np.float32, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def scan_of_nothing(trips):
    return f"""<ir_version: 8, opset_import: ["": 17]> g (float[N, 3] x) => (float[N, 3] y, float[T, N, 3] all) <int64 trips = {{{trips}}}> {{
        y, all = Loop (trips, "", x) <body = body (int64 i, bool on, float[N, 3] s) => (bool next, float[N, 3] t, float[N, 3] o) {{
            next = Identity (on)
            t = Add (s, s)
            o = Neg (s)
        }}>
    }}"""


def one_node(text, inputs, outputs, opset=17, constants=""):
    return f'<ir_version: 8, opset_import: ["": {opset}]> g ({inputs}) => ({outputs}) {constants} {{ {text} }}'


def recurrent(attributes, state=True):
    more = ', "", "", h' if state else ""
    return one_node(f"a, y = RNN <hidden_size=2 {attributes}> (x, w, r{more})",
                    "float[T, B, 3] x, float[1, 2, 3] w, float[1, 2, 2] r" + (", float[1, B, 2] h" if state else ""),
                    "float[] a, float[] y")


RECURRENT = {"w": numbers((1, 2, 3)), "r": numbers((1, 2, 2)), "h": numbers((1, 2, 2), seed=3)}

# Each rule has a model with inputs for which the rule holds, and the outputs that are right then (None: ONNX leaves them
# free). Behind these are other inputs, or another model, for which the rule does not hold.
RULED = {
    "a Loop of no rounds": (
        scan_of_nothing(0), {"x": numbers((2, 3))}, {"all": np.zeros((0, 2, 3), np.float32)}, scan_of_nothing(2)),
    "onnxruntime does not reduce nothing along an axis counted from the end": (
        one_node("y = ReduceL1 <axes=[-2]> (x)", "float[N, 4] x", "float[] y"), {"x": numbers((0, 4))},
        {"y": np.zeros((1, 4), np.float32)}, one_node("y = ReduceL1 <axes=[0]> (x)", "float[N, 4] x", "float[] y")),
    "onnxruntime finds no places in nothing along an axis counted from the end": (
        one_node("y = ArgMax <axis=-2> (x)", "float[4, N] x", "int64[] y"), {"x": numbers((4, 0))},
        {"y": np.zeros((1, 0), np.int64)}, one_node("y = ArgMax <axis=0> (x)", "float[4, N] x", "int64[] y")),
    "a mean of no numbers": (
        one_node("y = ReduceMean <axes=[0]> (x)", "float[N, 2] x", "float[] y"), {"x": numbers((0, 2))},
        {"y": np.full((1, 2), NAN, np.float32)}, {"x": numbers((1, 2))}),
    "a mean loss of no rows": (
        one_node("y = NegativeLogLikelihoodLoss (x, t)", "float[N, 3] x, int64[N] t", "float[] y"),
        {"x": numbers((0, 3)), "t": np.zeros(0, np.int64)}, {"y": np.full((), NAN, np.float32)},
        {"x": numbers((1, 3)), "t": np.zeros(1, np.int64)}),
    "a recurrence of no steps": (
        recurrent(""), {"x": numbers((0, 2, 3)), **RECURRENT}, {"y": RECURRENT["h"]}, {"x": numbers((1, 2, 3)), **RECURRENT}),
    "a whole number of one that it cannot hold": (
        one_node("y = Cast <to=2> (x)", "float[N] x", "uint8[N] y"), {"x": np.array([1, INF], np.float32)}, {"y": None},
        {"x": np.array([1, 255.9], np.float32)}),
    "a normalisation of equal numbers": (
        one_node("y = MeanVarianceNormalization <axes=[1]> (x)", "float[N, M] x", "float[] y"),
        {"x": np.array([[2.0], [3.0]], np.float32)}, {"y": np.zeros((2, 1), np.float32)},
        {"x": np.array([[2.0, 1.0], [3.0, 4.0]], np.float32)}),
    "onnx.reference wraps places that OneHot has not": (
        one_node("y = OneHot (x, d, v)", "int32[N] x, double[2] v", "double[] y", constants="<int64 d = {3}>"),
        {"x": np.array([-1, 3, 0, -4], np.int32), "v": np.array([0.0, 1.0])},
        {"y": np.array([[0, 0, 1], [0, 0, 0], [1, 0, 0], [0, 0, 0]], DOUBLE)},
        {"x": np.array([-1, 2, 0, -3], np.int32), "v": np.array([0.0, 1.0])}),
    "onnx.reference adds up signed numbers for a norm of 1": (
        one_node("y = LpNormalization <p=1, axis=0> (x)", "bfloat16[N] x", "bfloat16[] y", opset=22),
        {"x": np.array([1, -3], ml_dtypes.bfloat16)}, {"y": np.array([0.25, -0.75], ml_dtypes.bfloat16)},
        {"x": np.array([1, 3], ml_dtypes.bfloat16)}),
    "onnx.reference gives a mean in the type of what it normalises": (
        one_node("y, m, d = LayerNormalization (x, s)", "bfloat16[N, 2] x, bfloat16[2] s", "bfloat16[] y, float[] m, float[] d"),
        {"x": np.array([[1, 3]], ml_dtypes.bfloat16), "s": np.ones(2, ml_dtypes.bfloat16)},
        {"m": np.array([[2]], np.float32), "d": np.array([[1]], np.float32)},
        (one_node("y, m, d = LayerNormalization (x, s)", "float[N, 2] x, float[2] s", "float[] y, float[] m, float[] d"),
         {"x": numbers((1, 2)), "s": np.ones(2, np.float32)})),
    "onnx.reference takes a softmax before opset 13 along one axis": (
        one_node("y = Hardmax (x)", "double[1, 2, 2] x", "double[] y", opset=12), {"x": np.array([[[1, 2], [3, 4]]], DOUBLE)},
        {"y": np.array([[[0, 0], [0, 1]]], DOUBLE)},
        (one_node("y = Hardmax (x)", "double[2, 2] x", "double[] y", opset=12), {"x": numbers((2, 2), DOUBLE)})),
    "onnx.reference pools two dimensions, whatever the rank": (
        one_node("y = GlobalMaxPool (x)", "double[N, 2, 3] x", "double[] y"), {"x": np.arange(12.0).reshape(2, 2, 3)},
        {"y": np.array([[[2], [5]], [[8], [11]]], DOUBLE)},
        (one_node("y = GlobalMaxPool (x)", "double[N, 2, 3, 1] x", "double[] y"), {"x": numbers((2, 2, 3, 1), DOUBLE)})),
    "onnx.reference pads a convolution by the wrong extents": (
        one_node("y = Conv <auto_pad=\"VALID\", strides=[2]> (x, w)", "double[N, 1, 6] x, double[1, 1, 3] w", "double[] y"),
        {"x": np.arange(6.0).reshape(1, 1, 6), "w": np.ones((1, 1, 3))}, {"y": np.array([[[3, 9]]], DOUBLE)},
        one_node("y = Conv <strides=[2]> (x, w)", "double[N, 1, 6] x, double[1, 1, 3] w", "double[] y")),
    "onnx.reference takes the first group's bias and weights for each group": (
        one_node("y = ConvTranspose <group=2> (x, w, b)", "double[N, 2, 1] x, double[2, 1, 1] w, double[2] b", "double[] y"),
        {"x": np.ones((1, 2, 1)), "w": np.array([[[2.0]], [[3.0]]]), "b": np.array([10.0, 20.0])},
        {"y": np.array([[[12], [23]]], DOUBLE)},
        (one_node("y = ConvTranspose (x, w)", "double[N, 2, 1] x, double[2, 1, 1] w", "double[] y"),
         {"x": np.ones((1, 2, 1)), "w": np.ones((2, 1, 1))})),
    "onnx.reference sorts what is unique, wanted or not": (
        one_node("y = Unique <sorted=0, axis=1> (x)", "int32[1, N] x", "int32[] y"), {"x": np.array([[3, 1, 3, 2]], np.int32)},
        {"y": np.array([[3, 1, 2]], np.int32)}, one_node("y = Unique <sorted=1, axis=1> (x)", "int32[1, N] x", "int32[] y")),
    "an oracle pads a pool as if its window had no dilations, or its stride did not leave pixels out": (
        one_node("y = AveragePool <auto_pad=\"SAME_LOWER\", dilations=[2], kernel_shape=[2]> (x)", "float[N, 1, 4] x", "float[] y",
                 opset=19),
        {"x": np.arange(4, dtype=np.float32).reshape(1, 1, 4)}, {"y": np.array([[[1, 1, 2, 2]]], np.float32)},
        one_node("y = AveragePool <auto_pad=\"SAME_LOWER\", kernel_shape=[2]> (x)", "float[N, 1, 4] x", "float[] y", opset=19)),
    "onnx.reference runs a plain recurrence": (
        recurrent(", layout=1", state=False), {"x": numbers((2, 2, 3)), **RECURRENT}, {"y": None, "a": None},
        recurrent("", state=False)),
    "onnx.reference gathers nothing of shape [0]": (
        one_node("y = GatherElements (x, i)", "bfloat16[N, 2] x, int64[M, 2] i", "bfloat16[] y"),
        {"x": numbers((3, 2), ml_dtypes.bfloat16), "i": np.zeros((0, 2), np.int64)}, {"y": np.zeros((0, 2), ml_dtypes.bfloat16)},
        {"x": numbers((3, 2), ml_dtypes.bfloat16), "i": np.zeros((1, 2), np.int64)}),
}


def test_each_rule_has_a_case():
    assert set(RULED) == {rule.name for rule in rules.RULES}
    assert all(rule.why for rule in rules.RULES)


@pytest.mark.parametrize("name", RULED)
def test_a_rule(name):
    """It gives the right results where an oracle gives others or none, and holds of nothing else."""
    text, inputs, right, other = RULED[name]
    model = onnx.parser.parse_model(text)
    ruled = rules.Walk(model)(inputs)
    for output, wanted in right.items():
        assert ruled.rules[output] == [name]
        assert (output in ruled.free) == (wanted is None)
        if wanted is not None:
            assert examine.difference({"y": ruled.outputs[output]}, {"y": wanted}, 1e-3) is None
            said = dict(zip((o.name for o in model.graph.output), oracle.Steps(model)(inputs), strict=True))
            assert examine.difference({"y": said[output]}, {"y": wanted}, 1e-3) is not None, "no oracle is wrong any more"
    text, inputs = (other, inputs) if isinstance(other, str) else (text, other) if isinstance(other, dict) else other
    plain = rules.Walk(onnx.parser.parse_model(text))(inputs)
    assert not plain.rules and not plain.free and plain.outputs


def test_what_comes_of_a_rule():
    """What is behind a node that a rule holds of is computed of the right result; what is beside it is compared as ever."""
    model = onnx.parser.parse_model(one_node(
        "h = OneHot (x, d, v) y = Neg (h) c = Cast <to=2> (f) z = Add (c, c) b = Neg (f)",
        "int32[N] x, double[2] v, float[1] f", "double[] y, uint8[] z, float[] b", constants="<int64 d = {2}>"))
    inputs = {"x": np.array([5], np.int32), "v": np.array([0.0, 1.0]), "f": np.array([-7], np.float32)}
    ruled = rules.Walk(model)(inputs)
    np.testing.assert_array_equal(ruled.outputs["y"], [[0.0, 0.0]])
    assert ruled.free == {"z"} and set(ruled.outputs) == {"y", "b"}
    assert ruled.rules == {"y": ["onnx.reference wraps places that OneHot has not"],
                           "z": ["a whole number of one that it cannot hold"]}


@pytest.mark.parametrize(("answer", "kind", "counted"), [
    ([[0.0, 0.0]], None, "rule: onnx.reference wraps places that OneHot has not"),  # right
    ([[0.0, 1.0]], None, "right"),  # as the oracle, which is wrong; but the rule is asked where an answer differs
    ([[1.0, 0.0]], "wrong", None),  # neither
])
def test_a_rule_lets_the_right_result_pass_alone(answer, kind, counted):
    model = onnx.parser.parse_model(one_node("y = OneHot (x, d, v)", "int32[N] x, double[2] v", "double[] y",
                                             constants="<int64 d = {2}>"))
    report = asked(model, {"x": np.array([5], np.int32), "v": np.array([0.0, 1.0])}, {"y": np.array(answer)})
    assert [fault.kind for fault in report.faults] == ([kind] if kind else [])
    if counted:
        assert report.counts == {counted: 1}


def asked(model, inputs, answer):
    """The report on one request that a server answers so, or refuses."""
    judge = examine.Judge()
    try:
        report = examine.Report("carillon", "carillon")
        examine.Check(Scripted([answer]), "m", Expected(model, judge, judge), report, 1e-4, ["", {}]).alone("set 0", inputs)
        return report
    finally:
        judge.close()


def test_what_turns_on_a_rounding_within():
    """Five pixels of one: which of them is the least is a matter of roundings, and what lies where is not."""
    model = onnx.parser.parse_model(one_node(
        "r = Resize <mode=\"linear\", coordinate_transformation_mode=\"asymmetric\"> (x, \"\", \"\", s) y = ArgMin <axis=2> (r)",
        "float[1, 1, 1, 2] x", "int64[] y", constants="<int64[4] s = {1, 1, 5, 5}>"))
    inputs = {"x": np.array([[[[0.3, 0.7]]]], np.float32)}
    report = asked(model, inputs, {"y": np.full((1, 1, 1, 5), 3)})
    assert report.counts == {"skipped: the answer turns on a rounding within": 1} and not report.faults
    copies = onnx.parser.parse_model(one_node("r = Tile (x, s) y = ArgMin <axis=2> (r)", "float[1, 1, 1, 2] x", "int64[] y",
                                              constants="<int64[4] s = {1, 1, 5, 1}>"))
    assert [fault.kind for fault in asked(copies, inputs, {"y": np.full((1, 1, 1, 2), 3)}).faults] == ["wrong"]


def test_a_refusal_that_an_oracle_shares_at_a_node():
    """onnxruntime has no LeakyRelu of float64, so it refuses no whole model; but it does refuse the Split."""
    model = onnx.parser.parse_model(one_node("a, b, c = Split <axis=0> (x) y = LeakyRelu (a)", "double[N, 2] x", "double[] y",
                                             opset=14))
    inputs = {"x": np.ones((1, 2))}
    told = examine.Refused(400, "node 'Split_0' (Split): dimension of 1 does not split into 3 equal parts")
    report = asked(model, inputs, told)
    assert report.counts == {"refused, as a node is by onnxruntime": 1} and not report.faults
    other = asked(model, inputs, examine.Refused(400, "node 'LeakyRelu_1' (LeakyRelu): no"))
    assert [fault.kind for fault in other.faults] == ["refused"]


def test_what_openvino_fails_at_is_no_answer():
    """Its LRN over 5 channels fails at open extents; an answer would be that of the run before."""
    from carillon_graphs.judges import OpenVino
    model = onnx.parser.parse_model(one_node("y = LRN <size=5> (x)", "float[N, M, K, L] x", "float[] y"))
    with pytest.raises(RuntimeError, match="LRN"):
        OpenVino(model)({"x": numbers((2, 2, 2, 3))})


def test_a_shape_that_openvino_itself_gives():
    """Its error is OpenVINO's, where its own package gives that shape, too."""
    model = onnx.parser.parse_model(one_node("y = Reshape (x, s)", "float[N] x, int64[1] s", "float[] y"))
    inputs = {"x": np.ones(4, np.float32), "s": np.array([4])}
    told = examine.Refused(500, "its execution failed: OpenVINO: output 'y' came out with shape [2,2], and not with [4] as said")
    for said, kinds in ((np.ones((2, 2)), []), (np.ones(4), ["error"])):
        judge = examine.Judge()
        try:
            expected, report = Expected(model, judge, judge), examine.Report("openvino", "openvino")
            expected.known["openvino", id(inputs)] = {"y": said}
            examine.Check(Scripted([told]), "m", expected, report, 1e-4, ["", {}]).alone("set 0", inputs)
        finally:
            judge.close()
        assert [fault.kind for fault in report.faults] == kinds
        assert report.counts["failed: OpenVINO itself gives another shape"] == (0 if kinds else 1)


def test_sums_of_bfloat16():
    """They are added up in float32: in bfloat16 ones would end at 256."""
    model = onnx.parser.parse_model(one_node("y = ReduceSum <keepdims=0> (x)", "bfloat16[N] x", "bfloat16[] y"))
    assert oracle.Steps(model)({"x": np.ones(1000, ml_dtypes.bfloat16)})[0] == 1000


def test_a_server_is_another_before_it_loads_no_more(program, tmp_path, monkeypatch):
    monkeypatch.setattr(server, "MOST_LOADS", 3)
    case = generate.draw_case("1/1", "Add")
    examiner = examine.Examiner(server.Server(program, tmp_path, []))
    try:
        processes = []
        for _ in range(4):  # each a load, beside the server's own model
            assert not examiner(case, "carillon").faults
            processes.append(examiner.server.process.pid)
    finally:
        examiner.close()
    assert processes[0] == processes[1] != processes[2] == processes[3]


def test_a_thousand_graphs(program, tmp_path):
    if sanitized(program):
        pytest.skip("a sanitizer makes it an hour: tools/random_graphs --program does so by command")
    result = run.run(run.Options(program, seed=1, count=GRAPHS, out=tmp_path / "faults", second_every=SECOND_EVERY))
    assert not result.found, "\n".join(run.one_line(found) for found in result.found)
    # That much was really examined.
    assert result.graphs > 0.98 * GRAPHS
    assert set(ROWS) - set(result.operators) == set()
    of_own = {what: count for (engine, what), count in result.counts.items() if engine == "carillon"}
    assert of_own["loaded"] > 0.85 * GRAPHS
    assert of_own["right"] > 4 * GRAPHS
    assert of_own["the same together"] > 2 * GRAPHS
    assert of_own["the same after a stain"] > GRAPHS
    assert sum(count for what, count in of_own.items() if what.startswith("skipped")) < 0.1 * GRAPHS
