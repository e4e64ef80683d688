"""A backend of Syne Tune whose trials run under the planner (docs/fluid-scripts.md#syne-tune):

    Tuner(trial_backend=carillon.tune.syne_tune.PlannedBackend("train.py"), ...)   # was: LocalBackend("train.py")

The script is as ever. A trial that the scheduler pauses stands still in its process, at its next report or step of a
torch optimizer, and goes on there.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

try:
    from syne_tune.backend import LocalBackend
    from syne_tune.backend.trial_status import Status
    from syne_tune.constants import ST_CHECKPOINT_DIR, ST_CONFIG_JSON_FNAME_ARG
    from syne_tune.util import dump_json_with_numpy
except ImportError as error:
    raise ImportError(f"carillon.tune.syne_tune needs Syne Tune: pip install syne-tune ({error})") from error

from .group import GroupTrial, TrialGroup

_STATUS = {"ended": Status.completed, "failed": Status.failed, "refused": Status.failed, "stopped": Status.stopped}


class PlannedBackend(LocalBackend):
    """`entry_point`, `binary`, `delete_checkpoints` and `pass_args_as_json`: as LocalBackend has them.

    `max_resource_attr`: the name in a trial's configuration of how often it reports at most; by that the planner knows
    how long a trial is. `options`: of `TrialGroup` (`devices`, `retries`, `hang_after`, `policy`, ...).
    """

    def __init__(self, entry_point: str, binary: str | None = None, delete_checkpoints: bool = False,
                 pass_args_as_json: bool = False, *, max_resource_attr: str | None = None, **options: Any) -> None:
        if not Path(entry_point).is_file():
            raise ValueError(f"entry_point is {entry_point!r}, and there is no such file")
        super().__init__(entry_point, binary=binary, delete_checkpoints=delete_checkpoints,
                         pass_args_as_json=pass_args_as_json, rotate_gpus=False)
        self._max_resource_attr, self._options = max_resource_attr, options
        self._group: TrialGroup | None = None
        self._trials: dict[int, GroupTrial] = {}
        self._started: dict[int, dict[str, Any]] = {}  # the configuration that its process has

    def _schedule(self, trial_id: int, config: dict[str, Any]) -> None:
        if self._group is None:
            self._group = TrialGroup(folder=self.local_path, **self._options)
        budget = config.get(self._max_resource_attr) if self._max_resource_attr else None
        self._busy_trial_id_candidates.add(trial_id)
        last = self._trials.get(trial_id)
        if last is not None and last.state == "paused" and self._started[trial_id] == config:
            done = len(last.reports)
            last.resume(None if budget is None or budget <= done else budget - done)
            return
        if last is not None:  # PBT: another configuration; it goes on from the script's checkpoint
            last.stop()
            self._group.wait([last])
        folder = self.trial_path(trial_id)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "stop").unlink(missing_ok=True)
        name = f"{trial_id}" if last is None else f"{trial_id}.{len(self._group.trials)}"
        self._started[trial_id] = dict(config)
        self._trials[trial_id] = self._group.submit(self._words(folder, trial_id, config), budget=budget, name=name,
                                                    folder=folder)

    def _words(self, folder: Path, trial_id: int, config: dict[str, Any]) -> list[str]:
        told = str(folder / "config.json")
        dump_json_with_numpy(config, told)
        words = {ST_CONFIG_JSON_FNAME_ARG: told} if self.pass_args_as_json else dict(config)
        words[ST_CHECKPOINT_DIR] = str(self.checkpoint_trial_path(trial_id))
        return [*shlex.split(self.binary), str(self.entry_point),
                *(word for key, value in words.items() for word in (f"--{key}", str(value)))]

    # A Tuner that was read from its file knows trials of which no process is left.

    def _pause_trial(self, trial_id: int, result: dict[str, Any] | None) -> None:
        self._file_path(trial_id=trial_id, filename="pause").touch()
        if trial_id in self._trials:
            self._trials[trial_id].pause()
        self._release_from_worker(trial_id)

    def _kill_process(self, trial_id: int) -> None:
        if trial_id in self._trials:
            self._trials[trial_id].stop()

    def _is_process_done(self, trial_id: int) -> bool:
        return trial_id not in self._trials or self._trials[trial_id].is_over

    def _read_status(self, trial_id: int) -> str:
        for name, status in (("stop", Status.stopped), ("pause", Status.paused)):
            if self._file_path(trial_id=trial_id, filename=name).exists():
                return status
        if trial_id not in self._trials:
            return Status.stopped
        return _STATUS.get(self._trials[trial_id].state, Status.in_progress)

    def _lines(self, trial_id: int, name: str) -> list[str]:
        try:
            with open(self.trial_path(trial_id) / name, errors="replace") as file:
                return file.readlines()
        except FileNotFoundError:  # it has not started
            return []

    def stdout(self, trial_id: int) -> list[str]:
        return self._lines(trial_id, "out.txt")

    def stderr(self, trial_id: int) -> list[str]:
        """And why it failed, which Syne Tune shows."""
        trial = self._trials.get(trial_id)
        why = [f"carillon: {trial.error}\n"] if trial is not None and trial.is_over and trial.error else []
        return self._lines(trial_id, "err.txt") + why

    def stop_all(self) -> None:
        super().stop_all()
        if self._group is not None:
            self._group.close()

    def __getstate__(self) -> dict[str, Any]:
        """A Tuner is written to a file as it runs: without the processes."""
        return self.__dict__ | {"_group": None, "_trials": {}}

    def __str__(self) -> str:
        return f"planned entry_point {Path(self.entry_point).name}"
