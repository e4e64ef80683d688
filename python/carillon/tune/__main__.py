"""`python -m carillon.tune record FOLDER --out curves.csv`, and `python -m carillon.tune simulate SCHEDULER ...`."""

from __future__ import annotations

import argparse
import sys

from . import _simulate, record


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m carillon.tune", description="Studies of trials (docs/fluid.md).")
    commands = parser.add_subparsers(required=True, metavar="record|simulate", dest="command")
    recording = commands.add_parser("record", help="an experiment of Ray Tune as curves for `carillon simulate`",
                                    description="Writes what an experiment's trials reported as curves: a row an epoch, with its "
                                                "time and the metric. A time is what the trial took then: record trials that had "
                                                "a device each.")
    recording.add_argument("folder", help="of the experiment: its trials' result.json are below")
    recording.add_argument("--out", required=True, help="CSV file trial,epoch,seconds,metric")
    recording.add_argument("--metric", help="which reported number; inner ones as outer/inner; where several are reported")
    _simulate.add_to(commands)
    told = parser.parse_args(arguments)
    if told.command == "simulate":
        return _simulate.run(told)
    return record.run(told.folder, told.out, told.metric)


if __name__ == "__main__":
    sys.exit(main())
