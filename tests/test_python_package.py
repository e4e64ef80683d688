"""The Python package as `pip install .` makes it, in an environment of its own.

Building it takes minutes, so only CARILLON_WHEEL=build (or the path of a wheel) runs these tests:

    CARILLON_WHEEL=build .venv/bin/python -m pytest tests/test_python_package.py
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import venv
import zipfile
from pathlib import Path

import pytest

from scripted_broker import ScriptedBroker

ROOT = Path(__file__).resolve().parent.parent
WHEEL = os.environ.get("CARILLON_WHEEL")
pytestmark = pytest.mark.skipif(not WHEEL, reason="CARILLON_WHEEL is not set: see this file's beginning")


def clean() -> dict[str, str]:
    return {n: v for n, v in os.environ.items() if not n.startswith(("CARILLON_", "LD_PRELOAD", "PYTHON"))}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    if WHEEL != "build":
        return Path(WHEEL).resolve()
    out = tmp_path_factory.mktemp("wheel")
    subprocess.run([sys.executable, "-m", "pip", "wheel", "--no-deps", "-w", out, ROOT], check=True, env=clean())
    (built,) = out.glob("carillon-*.whl")
    return built


@pytest.fixture(scope="module")
def python(wheel, tmp_path_factory) -> str:
    """A fresh environment with the wheel and nothing else."""
    place = tmp_path_factory.mktemp("environment")
    venv.create(place, with_pip=True)
    interpreter = str(place / "bin" / "python")
    subprocess.run([interpreter, "-m", "pip", "install", "--no-deps", "--no-index", "-q", wheel], check=True, env=clean())
    return interpreter


def run(python, *words, cwd, **more) -> subprocess.CompletedProcess:
    return subprocess.run([python, *map(str, words)], capture_output=True, text=True, timeout=300, cwd=cwd,
                          env=clean() | more)


def code(python, text, cwd) -> subprocess.CompletedProcess:
    return run(python, "-c", textwrap.dedent(text), cwd=cwd)


def test_what_is_in_it(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    for name in ("libcarillon_shim.so", "_core.pyi", "py.typed", "_site/sitecustomize.py", "__main__.py"):
        assert f"carillon/{name}" in names
    for module in ("_core", "tune/_planner"):
        assert any(n.startswith(f"carillon/{module}.") and n.endswith(".so") for n in names)
    assert {"carillon/tune/core.py", "carillon/tune/_planner.pyi"} <= set(names)


def test_it_needs_no_torch_and_does_nothing_outside_of_a_run(python, tmp_path):
    ended = code(python, "import carillon, sys; carillon.step(); carillon.remaining(3)\n"
                         "print(carillon.shared(), carillon.counters(), 'torch' in sys.modules)", tmp_path)
    assert (ended.returncode, ended.stdout) == (0, "False None False\n"), ended.stderr


def test_a_script_runs_through_it(python, tmp_path):
    (tmp_path / "a.py").write_text("import os, carillon; print(os.environ['LD_PRELOAD'], carillon.__file__)")
    with ScriptedBroker(tmp_path / "s"):
        ended = run(python, "-m", "carillon", "run", "--socket", tmp_path / "s", "a.py", cwd=tmp_path)
        assert ended.returncode == 0, ended.stderr
        library, package = ended.stdout.split()
        assert Path(library).parent == Path(package).parent and Path(library).name == "libcarillon_shim.so"
        assert Path(package).is_relative_to(Path(python).parent.parent)


def test_a_policy_is_driven(python, tmp_path):
    """Two jobs of equal weight, each of the other's size, in one lane: the second waits for the first."""
    ended = code(python, """
        from carillon._core import *
        assert policies() == ["fifo", "srtf", "pack", "fair", "best"]
        s = JobSharing("fair", capacity=1 << 30)
        for job in (1, 2):
            commands, _ = s.on(JobCame(job, persistent=1 << 20, ephemeral=700 << 20), 0)
            assert "admit" in [c.kind for c in commands], commands
        kinds = lambda commands: [(c.kind, c.job) for c in commands if c.kind in ("grant", "recall")]
        assert kinds(s.on(IterationEnded(1, stopped=True, iterations=0), 0)[0]) == [("grant", 1)]
        commands, wake = s.on(IterationEnded(2, stopped=True, iterations=0), 0)
        assert kinds(commands) == [] and wake is not None
        commands, _ = s.on(JobWake(), wake)
        assert kinds(commands) == [("recall", 1)], (commands, wake)
        told = IterationEnded(1, stopped=True, busy_ns=wake, persistent=1 << 20, ephemeral=700 << 20)
        assert kinds(s.on(told, wake)[0]) == [("grant", 2)]
        assert [(j.job, j.state) for j in s.jobs()] == [(1, "waiting"), (2, "running")]
        assert [(l.size, l.jobs) for l in s.lanes()] == [(700 << 20, 2)]
        assert s.jobs()[0].attained_ns == wake
        commands, _ = s.on(JobCame(3, 2 << 30, 0), wake)
        assert [(c.kind, c.job, c.reason) for c in commands] == [("refuse", 3, "too_large")]

        b = BoundaryChooser()
        ends = [b.on(signal, 7, live) for _ in range(5) for signal, live in ((Signal.BACKWARD, 900), (Signal.STEP, 100))]
        assert ends[1::2] == [True] * 5 and not any(ends[::2]) and b.certain
    """, tmp_path)
    assert ended.returncode == 0, ended.stderr


def test_trials_are_planned(python, tmp_path):
    ended = code(python, """
        from carillon.tune.core import *
        t = Tuning("best")
        assert t.device_came(0, 0) == []
        assert t.group_came(0, [Trial(0, budget=3)], 0) == [Place(0, [0], 1)]
    """, tmp_path)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("wrong, says", [
    ("JobSharing('nice', capacity=1)", "there are fifo"), ("JobSharing('fair', capacity=0)", "above 0"),
    ("JobSharing('fair', capacity=-1)", "capacity is -1"), ("JobSharing('fair', capacity=1 << 99)", "capacity is 6338"),
    ("JobSharing('fair', capacity=1, quantum_ns=5)", "quantum"), ("JobCame(-1)", "job is -1"),
    ("JobCame(1, weight=float('nan'))", "weight"), ("JobCame(1, persistent=-5)", "persistent is -5"),
    ("IterationEnded(1, iterations=1 << 32)", "iterations is 4294967296"), ("DeviceFree(-1)", "until_ns is -1"),
    ("BoundaryChooser().on(Signal.STEP, 1, -1)", "live is -1"),
    ("s = JobSharing('fair', capacity=9); s.on(JobWake(), 5); s.on(JobWake(), 4)", "never goes back"),
    ("JobSharing('fair', capacity=9).on(JobWake(), -1)", "now_ns is -1")])
def test_bad_numbers_are_value_errors(python, tmp_path, wrong, says):
    ended = code(python, f"from carillon._core import *\ntry: exec({wrong!r})\nexcept ValueError as e: print(e)", tmp_path)
    assert ended.returncode == 0 and says in ended.stdout, ended.stdout + ended.stderr
