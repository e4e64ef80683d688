"""The inner scheduler's state in a file of the experiment's folder, since Ray saves none of a scheduler's.

`Tuner.restore` makes the scheduler anew, and its trials are other objects with the same ids. So trials are written as
ids, and the restored ones take their places.
"""

from __future__ import annotations

import io
import pickle
import posixpath
from dataclasses import dataclass, field
from typing import Any

from ray import cloudpickle
from ray.tune.experiment import Trial

FILE = "carillon_fluid.pkl"
_VERSION = 1


@dataclass
class Lost:
    """Stands for a trial of the file that Ray has no more: it began after Ray last wrote its own state."""

    trial_id: str
    status: str = Trial.TERMINATED
    is_saving: bool = False
    config: dict[str, Any] = field(default_factory=dict)

    def is_finished(self) -> bool:
        return True

    def __hash__(self) -> int:
        return hash(self.trial_id)


class _Pickler(cloudpickle.CloudPickler):
    def persistent_id(self, obj: Any) -> Any:
        return obj.trial_id if isinstance(obj, (Trial, Lost)) else None


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, trials: dict[str, Trial]) -> None:
        super().__init__(file)
        self._trials = trials
        self.lost: dict[str, Lost] = {}

    def persistent_load(self, pid: Any) -> Any:
        return self._trials.get(pid) or self.lost.setdefault(pid, Lost(pid))


@dataclass
class Saved:
    known: set[str]               # ids of the trials that the scheduler had been told of
    held: dict[str, Any]          # paused trials: the iteration at which each stands
    scheduler: bytes
    ray: str = ""
    version: int = _VERSION

    def scheduler_for(self, trials: dict[str, Trial]) -> tuple[dict[str, Any], list[Lost]]:
        unpickler = _Unpickler(io.BytesIO(self.scheduler), trials)
        return unpickler.load(), list(unpickler.lost.values())


def state_of(scheduler: Any) -> bytes:
    file = io.BytesIO()
    _Pickler(file).dump(scheduler.__dict__)
    return file.getvalue()


def write(storage: Any, saved: Saved) -> None:
    """The file is whole at any moment: what is killed within leaves the last one."""
    path = posixpath.join(storage.experiment_fs_path, FILE)
    with storage.storage_filesystem.open_output_stream(path + ".new") as stream:
        stream.write(pickle.dumps(saved))
    storage.storage_filesystem.move(path + ".new", path)


def read(storage: Any) -> Saved | None:
    path = posixpath.join(storage.experiment_fs_path, FILE)
    try:
        with storage.storage_filesystem.open_input_stream(path) as stream:
            saved = pickle.loads(stream.read())
    except FileNotFoundError:
        return None
    if not isinstance(saved, Saved) or saved.version != _VERSION:
        raise ValueError(f"{path} is not the state of this version of carillon.tune")
    return saved
