"""tools/mutants finds the places of its five kinds, and only those, in code as clang-format lays it out."""
import importlib.machinery
import importlib.util
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]


def load():
    loader = importlib.machinery.SourceFileLoader("mutants", str(ROOT / "tools/mutants"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("mutants", loader))
    sys.modules["mutants"] = module
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    loader.exec_module(module)
    sys.dont_write_bytecode = before
    return module


mutants = load()


def faults(code, kind):
    """(was, becomes) of all faults of a kind in the body of a function."""
    text = f"namespace n {{\nint f(int a, int b) {{\n{code}\n}}\n}}  // namespace n\n"
    places = mutants.Source("x.cpp", text).places()
    found = [fault for place in places for fault in place if fault.kind == kind]
    for fault in found:
        assert text[fault.begin:fault.begin + len(fault.was)] == fault.was
    return [(fault.was, fault.becomes) for fault in found]


@pytest.mark.parametrize("code, expected", [
    ("return a < b;", [("<", "<="), ("<", ">")]),
    ("return a >= b;", [(">=", ">"), (">=", "<=")]),
    ("return a == b || a != b;", [("==", "!="), ("!=", "==")]),
    ("std::vector<std::pair<int, int>> v = make<int>(a);", []),
    ("return a <=> b;", []),
    ("// a < b\nreturn f(\"a < b\");", []),
    ("return a << b;", []),
])
def test_comparisons(code, expected):
    assert faults(code, "comparison") == expected


@pytest.mark.parametrize("code, expected", [
    ("return a + 1;", [("1", "2"), ("1", "0")]),
    ("return 0;", [("0", "1")]),
    ("return 1'000ULL;", [("1'000ULL", "1001ULL"), ("1'000ULL", "999ULL")]),
    ("++a;", [("++", "--")]),
    ("return x(0x10, 1.5, 1e9, 5ms, Duration{1}, '1', \"1\", a1);", []),
])
def test_plus_or_minus_one(code, expected):
    assert faults(code, "one") == expected


@pytest.mark.parametrize("code, expected", [
    ("a = b;", ["a = b;"]),
    ("x.push_back({a, b});", ["x.push_back({a, b});"]),
    ("if (a) return;", ["return;"]),
    ("for (;;) break;", ["break;"]),
    ("if (a)\n  ++b;\nelse\n  --b;", ["++b;", "--b;"]),
    ("switch (a) {\n  case 1:\n    b = 2;\n    break;\n}", ["b = 2;", "break;"]),
    ("run([&](int c) { b = c; });", ["run([&](int c) { b = c; });", "b = c;"]),
    ("const int c = a;\nauto d = b;\nThing& e = f();\nstd::vector<int> g{1, 2};\nint h;\nreturn c;", []),
])
def test_statements(code, expected):
    assert faults(code, "statement") == [(was, "{}") for was in expected]


@pytest.mark.parametrize("code, expected", [
    ("return g(a, b);", [("a, b", "b, a")]),
    ("return g(a + 1, h<int, char>(b), a);",
     [("a + 1, h<int, char>(b)", "h<int, char>(b), a + 1"), ("h<int, char>(b), a", "a, h<int, char>(b)")]),
    ("return Window{a, b};", [("a, b", "b, a")]),
    ("return std::max(a, b) + g(a, a);", []),
    ("return std::min<Duration>(a, b) + g<int>(a, a);", []),
    ("return g<int>(a, b);", [("a, b", "b, a")]),
    ("return g({.x = a, .y = b});", []),
    ("if (a) {\n  return 0;\n}", []),
])
def test_arguments(code, expected):
    assert faults(code, "argument") == expected


@pytest.mark.parametrize("code, expected", [
    ("if (a && b) return;", [("a && b", "!(a && b)")]),
    ("while (a) --a;", [("a", "!(a)")]),
    ("return a > 1 ? a : b;", [("a > 1", "!(a > 1)")]),
    ("g(x, y.at(1) ? a : b);", [("y.at(1)", "!(y.at(1))")]),
    ("if (const auto* c = get(a)) return;", [("const auto* c = get(a)", "const auto* c = get(a); !(c)")]),
    ("if (const int c = a; c > b) return;", [("c > b", "!(c > b)")]),
])
def test_guards(code, expected):
    assert faults(code, "guard") == expected


def test_assertions_and_declarations_are_left_alone():
    text = """
struct S {
  void g(int a, int b);
  int h{0};
};
void S::g(int a, int b) {
  CARILLON_ASSERT(a < b && a > 0);
}
"""
    assert [fault.was for place in mutants.Source("x.h", text).places() for fault in place] == ["0"]


def test_the_draw_is_the_seeds():
    first = mutants.draw(ROOT, 5, ["device"])
    assert first == mutants.draw(ROOT, 5, ["device"]) != mutants.draw(ROOT, 6, ["device"])
    assert len(first) > 300
    assert {mutants.part_of(d.fault.path) for d in first} == {"device"}
    assert {d.fault.kind for d in first} == set(mutants.KINDS)
    assert len({d.key for d in first}) == len(first)


def test_only_narrows_the_draw():
    path = "src/carillon/device/window_queue.cpp"
    guards = mutants.draw(ROOT, 1, ["guard", path])
    assert guards and all(d.fault.kind == "guard" and d.fault.path == path for d in guards)
    line = guards[0].line
    assert {d.line for d in mutants.draw(ROOT, 1, [f"{path}:{line}"])} == {line}


def test_named_faults_are_each_somewhere_once():
    named = mutants.named(ROOT, [])
    assert len({d.fault.kind for d in named}) == len(named) >= 20
    assert {mutants.part_of(d.fault.path) for d in named} == {
        "cpu", "cuda", "device", "graph", "job", "ledger", "research", "scheduler"}
    assert mutants.named(ROOT, ["worker"]) == []


def test_a_difference_shows_the_lines():
    d = mutants.Drawn(mutants.Fault("x.cpp", "one", 11, "1", "2"), *mutants.changed("int a;\nb = 1;\nc;\n", mutants.Fault("x.cpp", "one", 11, "1", "2")))
    assert d.difference() == "x.cpp:2 (one)\n-b = 1;\n+b = 2;"


def test_tests_run_from_quick_to_slow():
    seconds = {"A.slow": 9.0, "B.quick": 0.01, "C.quick": 0.02, "D.middle": 0.3, "E.slow": 3.0}
    assert [names for names, _ in mutants.batches(seconds)] == ["B.quick:C.quick", "D.middle", "E.slow", "A.slow"]
