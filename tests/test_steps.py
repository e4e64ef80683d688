"""What the scripts say while they build, from what ninja says to them."""

from __future__ import annotations

import subprocess

import pytest

from loopback import ROOT


def shell(script: str, *arguments: str, log="/dev/null") -> str:
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", f"LOG={log}; source tools/steps.sh; {script}", "shell", *arguments],
        cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("seconds, said, shown", [
    (60, "[10/40] Building CXX object a.cpp.o", "10 of 40 steps, about 3 min left"),
    (30, "[20/50] Linking CXX static library b.a", "20 of 50 steps, about 50 s left"),
    (3600, "[090/100] with leading noughts", "90 of 100 steps, about 7 min left"),
    (90, "[88/90] c", "88 of 90 steps, about 10 s left"),
    (90, "[90/90] d", "90 of 90 steps"),
    # Too early to tell.
    (5, "[10/40] e", "10 of 40 steps"),
    (60, "[0/2] Re-checking globbed directories...", "0 of 2 steps"),
    (60, "[1/40] f", "1 of 40 steps"),
    # Not ninja's.
    (60, "Unpacking libgrpc-dev (1.51) ...", "Unpacking libgrpc-dev (1.51) ..."),
    (60, "see [10/40]", "see [10/40]"),
    (60, "", ""),
])
def test_progress_of_a_build(seconds, said, shown):
    assert shell('how_far "$1" "$2"', str(seconds), said) == shown


@pytest.mark.parametrize("log, line", [
    (b"[1/9] a\n[2/9] b\na.cpp:3: warning: unused\n  int x;\n\n", "[2/9] b"),
    (b"Get:1 packages\nGet:2 packages\n\n", "Get:2 packages"),
    (b"Progress: 10%\rProgress: 20%\r", "Progress: 20%"),
    (b"", ""),
])
def test_the_line_that_says_most(tmp_path, log, line):
    file = tmp_path / "log"
    before = b"[8/9] of an earlier build\n"
    file.write_bytes(before + log)
    assert shell('last_line "$1"', str(len(before)), log=str(file)).strip() == line


def test_a_quiet_build_says_how_far_it_is(tmp_path):
    # The build waits until its progress was told.
    script = """
      progress_every=1
      build() { echo '[3/4] Building'; until [[ -e $1 ]]; do sleep 0.01; done; echo '[4/4] Linking'; }
      note() { printf '%s\\n' "$*"; touch "$here"; }
      here=$1
      quietly compilation build "$here" 2>&1
    """
    told = shell(script, str(tmp_path / "told"), log=str(tmp_path / "log"))
    assert "compilation: 1 s  3 of 4 steps" in told
    assert "compilation: done in" in told


def test_scripts_go_on_with_each_others_numbers(tmp_path):
    script = 'export STEP_FILE=$1; step first; bash -c "LOG=$LOG; source tools/steps.sh; step second; step third"; step fourth'
    assert shell(script, str(tmp_path / "number")) == "[1] first\n[2] second\n[3] third\n[4] fourth\n"
    assert (tmp_path / "number").read_text() == "4\n"


def quickstart(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(["./quickstart", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60)


def test_models_are_checked_before_anything_is_installed():
    for models, said in (("tiny,resnet19", "there is no sample model 'resnet19'; there are: "), (",", "names no model")):
        done = quickstart("--models", models)
        assert done.returncode == 2 and said in done.stderr and "[1]" not in done.stderr


def test_the_names_that_are_checked_are_those_of_the_catalogue():
    from carillon_samples.catalogue import GROUPS, SAMPLES
    listed = quickstart("--models", "nobody").stderr.split("there are: ")[1].strip().split(", ")
    assert set(listed) == {*SAMPLES, *GROUPS}


def test_own_files_are_checked_before_anything_is_installed(tmp_path):
    for name in ("one/m.onnx", "two/m.onnx", "notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")

    def asked(*arguments: str) -> str:
        done = subprocess.run([str(ROOT / "quickstart"), *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert done.returncode == 2 and "[1]" not in done.stderr, done.stderr
        return done.stderr

    assert "--model none.onnx: there is no such file" in asked("--model", "none.onnx")
    assert "--model one: this is a folder; a model repository is served with" in asked("--model", "one")
    assert "--model notes.txt: neither an ONNX file" in asked("--model=notes.txt")
    assert "is called m, too; give one another name: NAME=" in asked("--model", "one/m.onnx", "--model", "two/m.onnx")
    assert "is called a, too" in asked("--model", "a=one/m.onnx", "--model", "a=two/m.onnx")
    # What is good is not complained of before the next thing.
    assert "--seconds must be" in asked("--model", "one/m.onnx", "--model", "b=two/m.onnx", "--seconds", "none")
