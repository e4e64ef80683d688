"""`python -m carillon.tune record`: experiments of Ray Tune as curves for the simulator."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def record(*arguments, status=0):
    done = subprocess.run([sys.executable, "-m", "carillon.tune", "record", *map(str, arguments)], capture_output=True, text=True,
                          timeout=60, env=os.environ | {"PYTHONPATH": str(ROOT / "python")})
    assert done.returncode == status, done.stdout + done.stderr
    return done


def report(epoch, seconds=0.5, **numbers):
    return json.dumps({"done": False, "training_iteration": epoch, "trial_id": "ab_1", "time_this_iter_s": seconds, "pid": 7,
                       "config": {"lr": 0.1}, **numbers}) + "\n"


def trial(folder, name, *lines):
    (folder / name).mkdir(parents=True)
    (folder / name / "result.json").write_text("".join(lines).replace("ab_1", name))
    return folder


def rows(file):
    return [line.split(",") for line in file.read_text().splitlines()]


def test_an_experiment_is_a_file_that_the_simulator_reads(program, tmp_path):
    folder = tmp_path / "experiment"
    for i in range(3):
        trial(folder, f"t_{i}", *(report(e, 1.5, acc=0.1 * i + 0.05 * e) for e in range(1, 10)))
    out = tmp_path / "c.csv"
    assert "3 trials, 9 to 9 epochs" in record(folder, "--out", out).stdout
    assert rows(out)[:3] == [["trial", "epoch", "seconds", "metric"], ["t_0", "1", "1.500000", "0.05"],
                             ["t_0", "2", "1.500000", "0.1"]]
    (tmp_path / "s.toml").write_text('name = "s"\n[cluster]\ndevices = 2\n[study]\nalgorithm = "grid"\ntrials = 3\nepochs = 9\n'
                                     '[trial]\ncurves = "c.csv"\n')
    told = json.loads(subprocess.run([program, "simulate", tmp_path / "s.toml", "--scheduler", "fifo", "--json"], check=True,
                                     capture_output=True, text=True, timeout=60).stdout)
    assert told["makespan_s"] == pytest.approx(27)
    assert told["best_metric"] == pytest.approx(0.65)


def test_what_was_done_again_counts_once(tmp_path):
    folder = trial(tmp_path / "e", "a", report(1, acc=1), report(2, acc=2), report(3, acc=3), report(2, acc=20), report(3, acc=30))
    record(folder, "--out", tmp_path / "c.csv")
    assert [row[3] for row in rows(tmp_path / "c.csv")[1:]] == ["1.0", "20.0", "30.0"]


def test_metrics_that_are_none_are_nan_and_later_epochs_stay(tmp_path):
    folder = trial(tmp_path / "e", "a", report(1, acc=1), report(2, acc=float("nan")), report(3), report(4, acc=float("inf")))
    record(folder, "--out", tmp_path / "c.csv")
    assert [row[3] for row in rows(tmp_path / "c.csv")[1:]] == ["1.0", "nan", "nan", "nan"]


def test_a_curve_ends_where_a_report_is_missing(tmp_path):
    folder = trial(tmp_path / "e", "a", report(1, acc=1), report(2, acc=1), report(4, acc=1))
    record(folder, "--out", tmp_path / "c.csv")
    assert len(rows(tmp_path / "c.csv")) == 3


def test_a_line_that_a_crash_cut_off_is_left_out(tmp_path):
    folder = trial(tmp_path / "e", "a", report(1, acc=1), report(2, acc=1)[:20])
    record(folder, "--out", tmp_path / "c.csv")
    assert len(rows(tmp_path / "c.csv")) == 2


def test_names_with_commas_and_twice_the_same(tmp_path):
    folder = tmp_path / "e"
    for sub in ("x", "y"):
        trial(folder, f"{sub}/a=1,b=2", report(1, acc=1))
    record(folder, "--out", tmp_path / "c.csv")
    assert {row[0] for row in rows(tmp_path / "c.csv")[1:]} == {"x/a=1_b=2", "y/a=1_b=2"}
    for sub in ("x", "y"):
        file = folder / f"{sub}/a=1,b=2/result.json"
        file.write_text(file.read_text().replace(f"{sub}/a=1,b=2", "same"))
    record(folder, "--out", tmp_path / "c.csv")
    assert {row[0] for row in rows(tmp_path / "c.csv")[1:]} == {"same", "same_2"}


def test_a_metric_is_named_where_there_are_several(tmp_path):
    folder = trial(tmp_path / "e", "a", report(1, acc=1, inner={"loss": 2}))
    assert "reported are: acc, inner/loss" in record(folder, "--out", tmp_path / "c.csv", status=2).stderr
    record(folder, "--out", tmp_path / "c.csv", "--metric", "inner/loss")
    assert rows(tmp_path / "c.csv")[1][3] == "2.0"
    assert "no trial reports it" in record(folder, "--out", tmp_path / "d.csv", "--metric", "lost", status=2).stderr
    assert not (tmp_path / "d.csv").exists()


@pytest.mark.parametrize(("line", "words"), [
    ("[]\n" + report(1, acc=1), "an object is wanted"),
    ("{\n" + report(1, acc=1), "no report of Ray Tune"),
    (100_000 * "[" + "\n" + report(1, acc=1), "result.json:1: no report of Ray Tune"),
    ('{"training_iteration": 1' + 400 * "0" + ', "time_this_iter_s": 1, "acc": 1}', "must be a number"),
    ('{"training_iteration": 1' + 5000 * "0" + "}\n" + report(1, acc=1), "no report of Ray Tune"),
    (report(0, acc=1), "training_iteration is 0, but must be a whole number from 1 on"),
    (report(1.5, acc=1), "training_iteration is 1.5"),
    (report("x", acc=1), "training_iteration is 'x', but must be a number"),
    (report(1, seconds=None, acc=1), "time_this_iter_s is None"),
], ids=range(9))
def test_files_that_are_none_of_ray_are_named(tmp_path, line, words):
    folder = trial(tmp_path / "e", "a", line)
    said = record(folder, "--out", tmp_path / "c.csv", status=2).stderr
    assert words in said and "result.json" in said
    assert not (tmp_path / "c.csv").exists()


def test_what_is_nested_deeply_or_has_no_end_is_read(tmp_path):
    deep = 900
    folder = trial(tmp_path / "e", "a", '{"training_iteration": 1, "time_this_iter_s": 1, "big": -1' + 400 * "0" + ', "trial_id": "\\ud800"'
                   ', "x": ' + deep * '{"x": ' + "2" + (deep + 1) * "}")
    record(folder, "--out", tmp_path / "c.csv", "--metric", "/".join((deep + 1) * "x"))
    assert rows(tmp_path / "c.csv")[1] == ["_", "1", "1.000000", "2.0"]
    record(folder, "--out", tmp_path / "c.csv", "--metric", "big")
    assert rows(tmp_path / "c.csv")[1] == ["_", "1", "1.000000", "nan"]


def test_folders_without_an_experiment_are_named(tmp_path):
    assert "is no folder" in record(tmp_path / "none", "--out", tmp_path / "c.csv", status=2).stderr
    assert "no result.json below" in record(tmp_path, "--out", tmp_path / "c.csv", status=2).stderr
    trial(tmp_path / "e", "a", report(1, acc=1))
    assert "there is no folder none" in record(tmp_path / "e", "--out", "none/c.csv", status=2).stderr
