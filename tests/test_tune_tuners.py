"""Optuna's and Syne Tune's trials under the planner, and the examples of docs/fluid-scripts.md."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "python"))
try:
    from carillon.tune import core  # noqa: F401
except ImportError as missing:
    pytest.skip(f"{missing}", allow_module_level=True)

PAGE = (ROOT / "docs/fluid-scripts.md").read_text()


def examples(heading: str) -> list[str]:
    section = PAGE.split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    return re.findall(r"^```python\n(.*?)^```", section, re.M | re.S)


def run(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    (folder / "script.py").write_text(textwrap.dedent(text))
    path = os.pathsep.join([str(ROOT / "python"), *filter(None, [os.environ.get("PYTHONPATH")])])
    ran = subprocess.run([sys.executable, folder / "script.py"], capture_output=True, text=True, timeout=300, cwd=folder,
                         env=os.environ | {"PYTHONPATH": path, "SYNETUNE_FOLDER": str(folder / "results")})
    assert ran.returncode == 0, ran.stderr[-4000:]
    return ran


def test_the_example_of_a_plain_script(tmp_path):
    (text,) = examples("A plain script")
    assert run(tmp_path, text).stdout == "{'lr': 0.1} ended 9\n"


# --- Optuna


def needs_optuna():
    return pytest.importorskip("optuna", reason="Optuna is not installed: tools/setup")


def test_the_example_of_optuna(tmp_path):
    needs_optuna()
    (text,) = examples("Optuna")
    assert run(tmp_path, text).stdout == "20 True\n"


OBJECTIVE = """
    import os, signal
    import optuna
    import carillon.tune.optuna
    optuna.logging.set_verbosity(optuna.logging.ERROR)

    def objective(trial):
        x = trial.suggest_float("x", -3, 3)
        kind = trial.suggest_categorical("kind", ["a", "b", None])
        n = trial.suggest_int("n", 1, 5, log=True)
        for step in range(5):
            trial.report(x * x + n - step / 10, step)
            if trial.should_prune():
                raise optuna.TrialPruned("no good")
        trial.set_user_attr("params", trial.params)
        return x * x + n + (kind == "b")
"""


def test_samplers_and_pruners_decide_as_in_plain_optuna(tmp_path):
    needs_optuna()
    run(tmp_path, OBJECTIVE + """
    def study(sampler):
        return optuna.create_study(sampler=sampler, pruner=optuna.pruners.MedianPruner(n_startup_trials=3))

    if __name__ == "__main__":
        for make in (lambda: optuna.samplers.TPESampler(seed=1), lambda: optuna.samplers.RandomSampler(seed=3)):
            plain, planned, seen = study(make()), study(make()), []
            plain.optimize(objective, n_trials=15)
            carillon.tune.optuna.optimize(planned, objective, n_trials=15, n_jobs=1, devices=1,
                                          callbacks=[lambda study, trial: seen.append(trial.number)])
            assert seen == list(range(15))
            for one, other in zip(plain.trials, planned.trials, strict=True):
                for name in ("params", "state", "values", "intermediate_values", "user_attrs", "distributions"):
                    assert getattr(one, name) == getattr(other, name), (name, one, other)
            states = {trial.state.name for trial in planned.trials}
            assert states == {"COMPLETE", "PRUNED"}
    """)


def test_trials_at_a_time_several_objectives_and_a_study_that_is_stopped(tmp_path):
    needs_optuna()
    run(tmp_path, OBJECTIVE + """
    def both(trial):
        x = trial.suggest_float("x", 0, 1)
        assert [d.name for d in trial.study.directions] == ["MINIMIZE", "MAXIMIZE"]
        if trial.number == 9:
            trial.study.stop()
        return x, 1 - x

    if __name__ == "__main__":
        study = optuna.create_study()
        carillon.tune.optuna.optimize(study, objective, n_trials=12, n_jobs=4, devices=2, budget=5)
        assert sorted(trial.number for trial in study.trials) == list(range(12))
        assert all(trial.state.is_finished() for trial in study.trials)
        study = optuna.create_study(directions=["minimize", "maximize"])
        carillon.tune.optuna.optimize(study, both, n_jobs=2, devices=2)
        assert 10 <= len(study.trials) <= 12 and all(trial.state.name == "COMPLETE" for trial in study.trials)
    """)


def test_what_goes_wrong_in_a_trial_is_told_as_in_plain_optuna(tmp_path):
    needs_optuna()
    run(tmp_path, OBJECTIVE + """
    def grief(trial):
        trial.suggest_float("x", 0, 1)
        if trial.number == 1:
            raise KeyError("mine")
        if trial.number == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        if trial.number == 3:
            return float("nan")
        if trial.number == 4:
            return None
        return 1.0

    def wrong(trial):
        trial.suggest_float("x", 2, 1)

    if __name__ == "__main__":
        study = optuna.create_study()
        carillon.tune.optuna.optimize(study, grief, n_trials=6, n_jobs=1, devices=1, catch=KeyError)
        states = [trial.state.name for trial in study.trials]
        assert states == ["COMPLETE", "FAIL", "FAIL", "FAIL", "FAIL", "COMPLETE"], states
        study = optuna.create_study()
        try:
            carillon.tune.optuna.optimize(study, grief, n_trials=6, n_jobs=1, devices=1)
            assert False
        except KeyError as error:
            assert "mine" in str(error) and "in grief" in error.__notes__[0]
        assert [trial.state.name for trial in study.trials] == ["COMPLETE", "FAIL"]
        try:
            carillon.tune.optuna.optimize(study, wrong, n_trials=1, devices=1)
            assert False
        except ValueError as error:
            assert "low" in str(error)
        for bad, says in (({"n_trials": 1.5}, "n_trials is 1.5"), ({"n_jobs": 0}, "n_jobs is 0"), ({"n_jobs": -2}, "n_jobs is -2"),
                          ({"timeout": float("nan")}, "timeout is nan"), ({"budget": float("nan"), "n_trials": 1}, "budget is nan")):
            try:
                carillon.tune.optuna.optimize(study, objective, **bad)
                assert False, bad
            except ValueError as error:
                assert says in str(error), error
    """)


def test_its_arguments_mean_what_they_mean_in_plain_optuna(tmp_path):
    needs_optuna()
    run(tmp_path, OBJECTIVE + """
    import sys

    def leaves(trial):
        trial.suggest_float("x", 0, 1)
        if trial.number == 1:
            sys.exit(7)
        return 1.0

    def interrupts(trial):
        raise KeyboardInterrupt("mine")

    def at_most(study, trial):
        most.append(len(study.get_trials(states=[optuna.trial.TrialState.RUNNING])) + 1)

    def plain(study, *args, **kwargs):
        study.optimize(*args, **kwargs)

    def planned(study, *args, **kwargs):
        carillon.tune.optuna.optimize(study, *args, devices=2, **kwargs)

    if __name__ == "__main__":
        for optimize in (plain, planned):
            for none in ({"n_trials": 0}, {"n_trials": -3}, {"timeout": 0}, {"timeout": -1}):
                study = optuna.create_study()
                optimize(study, objective, n_jobs=1, **none)
                assert study.trials == [], none
            study, most = optuna.create_study(), []
            optimize(study, objective, n_trials=8, n_jobs=-1, callbacks=[at_most])
            assert len(study.trials) == 8
            assert optimize is plain or max(most) == 2, most
            for raises, error, says in ((leaves, SystemExit, "7"), (interrupts, KeyboardInterrupt, "mine")):
                study, seen = optuna.create_study(), []
                try:
                    optimize(study, raises, n_trials=4, n_jobs=1, catch=(Exception,),
                             callbacks=[lambda _, trial: seen.append(trial.state.name)])
                    assert False
                except error as raised:
                    assert str(raised) == says
                states = [trial.state.name for trial in study.trials]
                # Optuna leaves the trial that ended the study as one that runs.
                assert seen == ["COMPLETE"] * (raises is leaves)
                assert states == [*seen, "RUNNING" if (optimize, raises) == (plain, leaves) else "FAIL"], states
            study, raised = optuna.create_study(), []

            def nested(study, trial):
                try:
                    optimize(study, objective, n_trials=1)
                except RuntimeError as error:
                    raised.append(error)

            optimize(study, objective, n_trials=1, n_jobs=1, callbacks=[nested])
            assert len(raised) == 1 and len(study.trials) == 1
    """)


def test_choices_that_are_equal_are_told_apart_and_tuples_stay(tmp_path):
    needs_optuna()
    run(tmp_path, """
    import carillon.tune.optuna
    import optuna

    def objective(trial):
        one = trial.suggest_categorical("one", [1, True, 1.0])
        pair = trial.suggest_categorical("pair", [(1, 2), (3, 4)])
        trial.set_user_attr("seen", f"{one!r} {pair!r}")
        return 0.0

    if __name__ == "__main__":
        seen = []
        for optimize in (optuna.Study.optimize, carillon.tune.optuna.optimize):
            study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))
            optimize(study, objective, n_trials=9, n_jobs=1)
            seen.append([(trial.user_attrs, trial.params, trial.distributions) for trial in study.trials])
        assert seen[0] == seen[1], seen
    """)


# --- Syne Tune


def needs_syne_tune():
    return pytest.importorskip("syne_tune", reason="Syne Tune is not installed: pip install syne-tune (over 1 GB)")


def test_the_example_of_syne_tune(tmp_path):
    needs_syne_tune()
    study, script = examples("Syne Tune")
    (tmp_path / "train.py").write_text(script)
    assert run(tmp_path, study).stdout.splitlines()[-1] == "True"


def test_a_trial_that_syne_tune_pauses_goes_on_in_its_process(tmp_path):
    needs_syne_tune()
    (tmp_path / "train.py").write_text(examples("Syne Tune")[1].replace("1 / epoch)", "1 / epoch, process=os.getpid())").replace(
        "import argparse", "import argparse, os, time").replace("    report(", "    time.sleep(0.01)\n    report("))
    run(tmp_path, """
    import time
    import dill  # by which a Tuner is written
    import carillon.tune.syne_tune
    from syne_tune.backend.trial_status import Status

    def results(backend, trial, count):
        seen = []
        while len(seen) < count:
            time.sleep(0.02)
            status, new = backend.fetch_status_results([trial.trial_id])
            seen += [metrics for _, metrics in new]
            if status[trial.trial_id][1] not in (Status.in_progress, Status.paused):
                break
        return seen, status[trial.trial_id][1]

    if __name__ == "__main__":
        backend = carillon.tune.syne_tune.PlannedBackend("train.py", max_resource_attr="epochs", devices=1)
        backend.set_path("results")
        first = backend.start_trial({"x": 0.5, "epochs": 400})
        seen, status = results(backend, first, 2)
        assert status == Status.in_progress and backend.busy_trial_ids() == [(0, Status.in_progress)]
        read = dill.loads(dill.dumps(backend))
        assert read._read_status(0) == Status.stopped and read._is_process_done(0)
        (backend.trial_path(0) / "err.txt").write_bytes(b"\\xff\\n")
        assert read.stderr(0) == ["\\ufffd\\n"]
        backend.pause_trial(0)
        assert backend.busy_trial_ids() == []
        second = backend.start_trial({"x": 0.25, "epochs": 3})
        done, status = results(backend, second, 4)
        assert status == Status.completed and [m["epoch"] for m in done] == [1, 2, 3]
        backend.resume_trial(0)
        more, _ = results(backend, first, 20)
        assert {m["process"] for m in seen + more} == {seen[0]["process"]}
        assert [m["epoch"] for m in seen + more] == list(range(1, len(seen + more) + 1))
        backend.pause_trial(0)
        backend.resume_trial(0, {"x": 1.0, "epochs": 3})  # as PBT does
        changed, _ = results(backend, first, 3)
        while backend.busy_trial_ids():
            time.sleep(0.02)
        last, status = results(backend, first, 1)
        assert status == Status.completed and backend.stdout(0)
        third = backend.start_trial({"x": 0.5, "epochs": 400})
        results(backend, third, 1)
        backend.stop_trial(2)
        assert backend.fetch_status_results([2])[0][2][1] == Status.stopped
        backend.stop_all()
        try:
            carillon.tune.syne_tune.PlannedBackend("no_such.py")
            assert False
        except ValueError as error:
            assert "no_such.py" in str(error)
    """)


def test_why_a_trial_failed_is_in_its_stderr(tmp_path):
    needs_syne_tune()
    (tmp_path / "train.py").write_text("import sys; print('mine', file=sys.stderr); sys.exit(3)")
    run(tmp_path, """
    import time
    import carillon.tune.syne_tune

    if __name__ == "__main__":
        for binary, says in ((None, ["mine\\n", "carillon: it ended with code 3\\n"]),
                             ("no-such-python", ["carillon: its process does not start: there is no program 'no-such-python'\\n"])):
            backend = carillon.tune.syne_tune.PlannedBackend("train.py", binary=binary)
            backend.set_path(f"results-{binary}")
            backend.start_trial({"x": 0.5})
            while backend.busy_trial_ids():
                time.sleep(0.02)
            assert backend.stderr(0) == says, backend.stderr(0)
            backend.stop_all()
    """)
