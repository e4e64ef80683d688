"""`python -m carillon.tune simulate`: its options. Ray is imported once these are known to be right."""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import os
import sys
from typing import TYPE_CHECKING, Any, Callable

if TYPE_CHECKING:
    from ray.tune.schedulers import TrialScheduler

# --- Schedulers by name: with the numbers of the command line.


def _asha(told: argparse.Namespace, ray: Any) -> TrialScheduler:
    return ray.ASHAScheduler(max_t=told.max_t, grace_period=told.grace, reduction_factor=told.eta)


def _hyperband(told: argparse.Namespace, ray: Any) -> TrialScheduler:
    return ray.HyperBandScheduler(max_t=told.max_t, reduction_factor=told.eta)


def _bohb(told: argparse.Namespace, ray: Any) -> TrialScheduler:
    return ray.HyperBandForBOHB(max_t=told.max_t, reduction_factor=told.eta)


def _median(told: argparse.Namespace, ray: Any) -> TrialScheduler:
    return ray.MedianStoppingRule(time_attr="training_iteration", grace_period=told.grace)


def _pbt(told: argparse.Namespace, ray: Any, synch: bool = False) -> TrialScheduler:
    # Curves have no parameters. One is needed for there to be a copy.
    return ray.PopulationBasedTraining(time_attr="training_iteration", perturbation_interval=told.grace, synch=synch,
                                       hyperparam_mutations={"virtual": [0, 1, 2, 3]})


def _pbt_synch(told: argparse.Namespace, ray: Any) -> TrialScheduler:
    return _pbt(told, ray, synch=True)


def _fifo(told: argparse.Namespace, ray: Any) -> TrialScheduler:
    return ray.FIFOScheduler()


SCHEDULERS: dict[str, Callable[[argparse.Namespace, Any], TrialScheduler]] = {
    "asha": _asha, "hyperband": _hyperband, "bohb": _bohb, "pbt": _pbt, "pbt-synch": _pbt_synch, "median": _median,
    "fifo": _fifo}


class UnknownScheduler(ValueError):
    """Names what was given, and what there is."""


def scheduler_of(told: argparse.Namespace, ray: Any) -> TrialScheduler:
    """A new one."""
    if told.ray_scheduler in SCHEDULERS:
        try:
            return SCHEDULERS[told.ray_scheduler](told, ray)
        except (AssertionError, ValueError) as error:
            raise UnknownScheduler(f"{told.ray_scheduler}: {error}") from None
    module, colon, name = told.ray_scheduler.partition(":")
    if not colon:
        raise UnknownScheduler(f"scheduler {told.ray_scheduler!r}: it is one of {', '.join(SCHEDULERS)}, or MODULE:NAME of "
                               "what makes one")
    sys.path.insert(0, os.getcwd())
    try:
        made = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise UnknownScheduler(f"scheduler {told.ray_scheduler!r}: {error}") from None
    finally:
        sys.path.pop(0)
    if not callable(made):  # one that is there already has what it learnt in the last run
        raise UnknownScheduler(f"scheduler {told.ray_scheduler!r}: it is a {type(made).__name__}, and must be what makes a "
                               "scheduler, such as its class: each run has a new one")
    return made()


def _from_one(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 on")
    return number


def _seeds(text: str) -> list[int]:
    first, dots, last = text.partition("..")
    if not first.isdecimal() or (dots and not last.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number nor a range like 1..5")
    seeds = list(range(int(first), int(last if dots else first) + 1))
    if not seeds:
        raise argparse.ArgumentTypeError(f"{text!r} has no number in it")
    return seeds


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "simulate", help="a study under a scheduler of Ray Tune, in virtual time",
        description="Runs Ray's own scheduler, under Fluid or as Ray does it, in virtual time (docs/fluid-virtual.md). Needs "
                    "ray[tune], but no cluster. Times are seconds of a trial alone on a device.")
    parser.add_argument("ray_scheduler", metavar="SCHEDULER",
                        help=f"{', '.join(SCHEDULERS)}, or MODULE:NAME of what makes a TrialScheduler")
    parser.add_argument("--scheduler", action="append", metavar="POLICY",
                        help="who decides on devices: fifo, static, dynamic, best (default); ray: Ray alone, a device a "
                             "trial; ray-reuse: with reuse_actors; may be given again")
    parser.add_argument("--seed", type=_seeds, default=[1], help="one, or a range like 1..5")
    parser.add_argument("--json", action="store_true",
                        help="as `carillon simulate STUDY.toml --json`: one run, or all of them as `runs`")
    parser.add_argument("--each-trial", action="store_true", help="of each trial, too; with --json")
    study = parser.add_argument_group("the study")
    study.add_argument("--curves", help="CSV file trial,epoch,seconds,metric, as `record` writes it")
    study.add_argument("--epoch", type=float, metavar="S", help="in place of curves: an epoch's time")
    study.add_argument("--trials", type=int, help="the first ones of the curves (default: all)")
    study.add_argument("--epochs", type=int, help="of a trial at most (default: those of the longest curve)")
    study.add_argument("--devices", type=int, default=1)
    study.add_argument("--mode", choices=["max", "min"], default="max", help="which metric is better")
    study.add_argument("--target", type=float, help="the run ends when a metric reaches it")
    study.add_argument("--concurrency", type=int, help="trials at most that are not over (bohb: nor paused)")
    study.add_argument("--max-t", type=_from_one, help="asha, hyperband, bohb: the scheduler's max_t (default: --epochs)")
    study.add_argument("--eta", type=float, default=3, help="asha, hyperband, bohb: reduction_factor (3)")
    study.add_argument("--grace", type=_from_one, default=1, help="asha, median: grace_period; pbt: perturbation_interval (1)")
    costs = parser.add_argument_group("costs")
    costs.add_argument("--together", action="store_true",
                       help="trials that share a device compute at the same time, as on a GPU (default: by turns)")
    costs.add_argument("--alpha", type=float, default=1, help="with --together: so much each other trial slows one (1)")
    costs.add_argument("--beside", type=float, default=1, help="so much each trial on another device slows one (1)")
    costs.add_argument("--beta", type=float, default=1, help="on w devices an epoch takes beta^(w - 1) / w (1)")
    costs.add_argument("--told", action="store_true", help="the policy knows alpha and beta, and need not measure them")
    costs.add_argument("--move", type=float, default=0, metavar="S", help="for which a trial stands when its devices change")
    costs.add_argument("--start", type=float, default=0, metavar="S", help="of a trial's process")
    costs.add_argument("--stop", type=float, default=0, metavar="S", help="of a process's end, which Ray waits for")
    costs.add_argument("--first", type=float, default=0, metavar="S", help="that a process sets up in its first report")
    costs.add_argument("--reset", type=float, default=0, metavar="S", help="ray-reuse: of a process that takes another trial")
    costs.add_argument("--save", type=float, default=0, metavar="S", help="of a checkpoint")
    costs.add_argument("--restore", type=float, default=0, metavar="S", help="from a checkpoint")
    costs.add_argument("--gap", type=float, default=0, metavar="S", help="of Ray's driver, for each thing that it hears")
    costs.add_argument("--noise", type=float, default=0, help="an epoch takes 1 + noise * normal of its time (0)")
    costs.add_argument("--iterations", type=int, default=20, help="of an epoch, between which widths change (20)")
    costs.add_argument("--quantum", type=float, default=0.5, metavar="S", help="of a turn (0.5)")


def run(told: argparse.Namespace) -> int:
    """The command. Returns the exit status; errors go to standard error."""
    os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")
    try:
        import ray.tune.schedulers
    except ImportError as error:
        print(f"carillon.tune simulate: it needs Ray Tune: pip install 'ray[tune]' ({error})", file=sys.stderr)
        return 1
    logging.getLogger("ray").setLevel(logging.ERROR)  # Ray tells of each of PBT's copies
    try:
        from . import virtual
    except ImportError as error:  # of the planner
        print(f"carillon.tune simulate: {error}", file=sys.stderr)
        return 1
    from ._curves import CurvesError
    from ._world import WorldError

    try:
        study = virtual.Study(
            trials=told.trials, epochs=told.epochs, epoch_s=told.epoch, curves=told.curves, devices=told.devices,
            name=os.path.basename(told.curves) if told.curves else "study", mode=told.mode, target=told.target,
            alpha=told.alpha, beside=told.beside, beta=told.beta, move=told.move, together=told.together, told=told.told,
            quantum=told.quantum, concurrency=told.concurrency, iterations=told.iterations, noise=told.noise,
            start=told.start, stop=told.stop, first=told.first, reset=told.reset, save=told.save, restore=told.restore, gap=told.gap)
        told.max_t = study.most_epochs() if told.max_t is None else told.max_t
        runs = [virtual.run(study, scheduler_of(told, ray.tune.schedulers), policy, seed, told.each_trial)
                for policy in told.scheduler or ["best"] for seed in told.seed]
    except (virtual.VirtualError, CurvesError, UnknownScheduler) as error:
        print(f"carillon.tune simulate: {error}", file=sys.stderr)
        return 2
    except WorldError as error:
        print(f"carillon.tune simulate: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"carillon.tune simulate: {error.filename}: {error.strerror}", file=sys.stderr)
        return 1
    if told.json:
        print(json.dumps(runs[0] if len(runs) == 1 else {"runs": runs}, indent=2))
    else:
        print(table(runs))
    return 0


def table(runs: list[dict[str, Any]]) -> str:
    first = runs[0]
    lines = [f"{first['study']}: {first['algorithm']} on {first['devices']} devices; times in s",
             f"{'scheduler':<10}{'seed':>6}{'makespan':>12}{'to target':>12}{'device time':>14}{'in use':>8}{'trials':>8}"
             f"{'epochs':>8}{'resizes':>9}{'moves':>8}{'best':>9}"]
    for r in runs:
        target = "-" if r["time_to_target_s"] is None else f"{r['time_to_target_s']:.1f}"
        best = "-" if r["best_metric"] is None else f"{r['best_metric']:.4g}"
        lines.append(f"{r['scheduler']:<10}{r['seed']:>6}{r['makespan_s']:>12.1f}{target:>12}{r['device_seconds']:>14.1f}"
                     f"{100 * r['utilization']:>7.1f}%{r['trials']:>8}{r['epochs']:>8}{r['resizes']:>9}{r['moves']:>8}{best:>9}")
    return "\n".join(lines)
