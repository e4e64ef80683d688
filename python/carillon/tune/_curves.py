"""What trials would do: seconds and metric of each epoch, recorded or made."""

from __future__ import annotations

import csv
import math
import random
from dataclasses import dataclass, field
from pathlib import Path

from .record import SHORTEST, Curve

_COLUMNS = ["trial", "epoch", "seconds", "metric"]
_LONGEST = 1e9  # seconds of an epoch


class CurvesError(ValueError):
    """Names the file and line, what was found, and what would be right."""


@dataclass
class Curves:
    """By the number of a trial, and of an epoch from 1 on. Behind its end a curve goes on as there: `beyond` counts
    the epochs for which that was asked."""

    curves: list[Curve]
    worst: float = -math.inf  # stands for what is not a number, which schedulers do not compare
    beyond: set[tuple[int, int]] = field(default_factory=set)

    def seconds(self, trial: int, epoch: int) -> float:
        curve = self.curves[trial]
        if epoch > len(curve.seconds):
            self.beyond.add((trial, epoch))
        return curve.seconds[min(epoch, len(curve.seconds)) - 1]

    def metric(self, trial: int, epoch: int) -> float:
        curve = self.curves[trial]
        metric = curve.metric[min(epoch, len(curve.metric)) - 1]
        return self.worst if math.isnan(metric) else metric


def constant(trials: int, epochs: int, seconds: float, seed: int) -> Curves:
    """All alike in time; who is better is drawn, once for each trial."""
    draw = random.Random(seed)
    return Curves([Curve(f"{number}", [seconds] * epochs, [draw.random()] * epochs) for number in range(trials)])


def _number(text: str, what: str, where: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise CurvesError(f"{where}: {what} is {text!r}, but must be a number") from None


def read(path: Path) -> list[Curve]:
    """A file `trial,epoch,seconds,metric` as `python -m carillon.tune record` writes it, in the order of the file."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            return _read(csv.DictReader(file), str(path))
    except UnicodeDecodeError as error:
        raise CurvesError(f"{path}: no text in UTF-8: {error}") from None
    except csv.Error as error:
        raise CurvesError(f"{path}: no CSV file: {error}") from None


def _read(rows: csv.DictReader, path: str) -> list[Curve]:
    missing = [name for name in _COLUMNS if name not in (rows.fieldnames or [])]
    if missing:
        raise CurvesError(f"{path}:1: no column {', '.join(missing)}; wanted are {','.join(_COLUMNS)}")
    curves: dict[str, Curve] = {}
    for row in rows:
        where = f"{path}:{rows.line_num}"
        name = row["trial"]
        if any(row[column] is None for column in _COLUMNS):
            raise CurvesError(f"{where}: {len(_COLUMNS)} columns are wanted")
        curve = curves.setdefault(name, Curve(name))
        epoch, seconds = _number(row["epoch"], "epoch", where), _number(row["seconds"], "seconds", where)
        if epoch != len(curve.seconds) + 1:
            raise CurvesError(f"{where}: epoch {row['epoch']} of trial {name} follows {len(curve.seconds)}; a trial's "
                              "epochs are 1, 2, ... in this order")
        if not SHORTEST <= seconds <= _LONGEST:
            raise CurvesError(f"{where}: seconds is {row['seconds']}, but must be from {SHORTEST:g} to {_LONGEST:g}")
        metric = _number(row["metric"], "metric", where) if row["metric"].strip() else math.nan
        if math.isinf(metric):
            raise CurvesError(f"{where}: metric is {row['metric']}, but must be finite, nan or empty")
        curve.seconds.append(seconds)
        curve.metric.append(metric)
    if not curves:
        raise CurvesError(f"{path}: no trial; a row an epoch is wanted")
    return list(curves.values())
