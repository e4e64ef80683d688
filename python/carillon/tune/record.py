"""What trials of Ray Tune did, as curves that `carillon simulate STUDY.toml` reads (docs/fluid.md)."""

from __future__ import annotations

import csv
import json
import math
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path

SHORTEST = 1e-6  # seconds; the simulator takes none below
# What Ray adds to each report.
RAYS = {"done", "training_iteration", "trial_id", "date", "timestamp", "time_this_iter_s", "time_total_s", "pid", "hostname",
        "node_ip", "config", "time_since_restore", "iterations_since_restore", "checkpoint_dir_name", "should_checkpoint",
        "experiment_tag", "episodes_total"}


class RecordError(ValueError):
    """Names the file, what was found in it, and what would be right."""


@dataclass
class Curve:
    """A trial's epochs, from the first on: seconds each, and the metric (NaN where none was reported)."""

    name: str
    seconds: list[float] = field(default_factory=list)
    metric: list[float] = field(default_factory=list)


def flat(report: dict) -> dict[str, float]:
    """The numbers of a report by name, those within others as `outer/inner`."""
    numbers = {}
    left = [("", report)]  # not by recursion: a report may be nested more deeply than Python calls
    while left:
        before, inner = left.pop()
        for name, value in inner.items():
            if not before and name in RAYS:
                continue
            if isinstance(value, dict):
                left.append((f"{before}{name}/", value))
            elif isinstance(value, (int, float)) and not isinstance(value, bool):
                numbers[f"{before}{name}"] = _as_float(value)
    return numbers


def _as_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:  # JSON's whole numbers have no end
        return math.inf if value > 0 else -math.inf


def reports(file: Path) -> list[dict]:
    """All reports of a result.json. A last line that a crash cut off is left out."""
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    found = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            report = json.loads(line)
        except (ValueError, RecursionError) as error:
            if number == len(lines):
                break
            raise RecordError(f"{file}:{number}: no report of Ray Tune: {error}") from None
        if not isinstance(report, dict):
            raise RecordError(f"{file}:{number}: no report of Ray Tune: an object is wanted")
        found.append(report)
    return found


def number_in(report: dict, name: str, file: Path) -> float:
    value = report.get(name)
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not math.isfinite(_as_float(value)):
        raise RecordError(f"{file}: a report's {name} is {value!r}, but must be a number")
    return float(value)


def read_curve(file: Path, metric: str) -> Curve:
    """The curve of one trial. What a trial did again after a restart takes the place of what it did before."""
    told = reports(file)
    by_epoch: dict[int, tuple[float, float]] = {}
    name = file.parent.name
    for report in told:
        epoch = number_in(report, "training_iteration", file)
        if epoch != int(epoch) or epoch < 1:
            raise RecordError(f"{file}: a report's training_iteration is {epoch:g}, but must be a whole number from 1 on")
        value = flat(report).get(metric, math.nan)
        by_epoch[int(epoch)] = (max(SHORTEST, number_in(report, "time_this_iter_s", file)), value)
        name = str(report.get("trial_id", name))
    curve = Curve("".join("_" if c in ",\"\r\n" or "\ud800" <= c <= "\udfff" else c for c in name))
    for epoch in range(1, len(by_epoch) + 1):
        if epoch not in by_epoch:  # reports are missing: what follows cannot be placed
            break
        seconds, value = by_epoch[epoch]
        curve.seconds.append(seconds)
        curve.metric.append(value if math.isfinite(value) else math.nan)
    return curve


def metrics_of(files: list[Path]) -> list[str]:
    """Names of what the trials reported."""
    names: set[str] = set()
    for file in files:
        for report in reports(file):
            names |= flat(report).keys()
    return sorted(names)


def record(folder: Path, metric: str | None) -> list[Curve]:
    """The curves of all trials below `folder`, by name. Without `metric`, the one that all trials report."""
    if not folder.is_dir():
        raise RecordError(f"{folder} is no folder: name that of an experiment of Ray Tune (its storage_path and name)")
    files = sorted(folder.rglob("result.json"))
    if not files:
        raise RecordError(f"{folder}: no result.json below: name the folder of an experiment of Ray Tune")
    known = metrics_of(files)
    if metric is None:
        if len(known) != 1:
            raise RecordError(f"--metric says which number counts; reported are: {', '.join(known) or 'none'}")
        [metric] = known
    elif metric not in known:
        raise RecordError(f"--metric {metric}: no trial reports it; reported are: {', '.join(known) or 'none'}")
    curves = [curve for curve in (read_curve(file, metric) for file in files) if curve.seconds]
    if not curves:
        raise RecordError(f"{folder}: no trial has reported")
    names: set[str] = set()
    for curve in sorted(curves, key=lambda c: c.name):
        name, count = curve.name, 1
        while curve.name in names:
            count += 1
            curve.name = f"{name}_{count}"
        names.add(curve.name)
    return sorted(curves, key=lambda c: c.name)


def write(curves: list[Curve], out: Path) -> None:
    """The file appears as a whole or not at all."""
    if not out.parent.is_dir():
        raise RecordError(f"--out {out}: there is no folder {out.parent}")
    beside = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        with beside.open("w", newline="") as file:
            rows = csv.writer(file, lineterminator="\n")
            rows.writerow(["trial", "epoch", "seconds", "metric"])
            for curve in curves:
                for epoch, (seconds, metric) in enumerate(zip(curve.seconds, curve.metric), 1):
                    rows.writerow([curve.name, epoch, f"{seconds:.6f}", "nan" if math.isnan(metric) else repr(metric)])
        beside.replace(out)
    finally:
        beside.unlink(missing_ok=True)


def run(folder: str, out: str, metric: str | None) -> int:
    """The command. Returns the exit status; errors go to standard error."""
    try:
        curves = record(Path(folder), metric)
        write(curves, Path(out))
    except RecordError as error:
        print(f"carillon.tune record: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"carillon.tune record: {error.filename or folder}: {error.strerror}", file=sys.stderr)
        return 1
    epochs = [len(curve.seconds) for curve in curves]
    print(f"{out}: {len(curves)} trials, {min(epochs)} to {max(epochs)} epochs")
    return 0
