"""Draws cases by a seed, examines them on servers of its own, several at a time, and says what is wrong.

    tools/random_graphs                                   10,000 graphs, seed 1, on Carillon's own engine and on OpenVINO
    tools/random_graphs --count 500 --engine carillon     on one
    tools/random_graphs --only Loop --only If             graphs about these operators
    tools/random_graphs --seed 7 --first 1234 --count 1   one again
    tools/random_graphs --again build/random_graphs/1-1234-carillon   from the folder of a fault: its model and inputs

Each fault is a folder of --out with the model, the inputs, what was wanted and what came, and a line with the command
that repeats it. The exit status is 1 where there was one.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import multiprocessing
import multiprocessing.connection
import os
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx

from .examine import KINDS, Examiner, Fault, Report
from .generate import Case, draw_case
from .operators import ROWS
from .server import Server, default_program
from .shrink import shrunk
from .sketch import BF16, Misfit

ROOT = Path(__file__).resolve().parents[2]
ENGINES = {"carillon": ["carillon"], "openvino": ["openvino"], "both": ["carillon", "openvino"]}


@dataclass
class Options:
    program: Path
    seed: int = 1
    first: int = 0
    count: int = 10_000
    engines: tuple[str, ...] = ("carillon", "openvino")
    only: tuple[str, ...] = ()
    jobs: int = 2
    out: Path = ROOT / "build" / "random_graphs"
    shrink: bool = True
    # Every how-manieth graph goes to OpenVINO, which takes five times as long to load one.
    second_every: int = 1


@dataclass
class Found:
    """A fault, where its folder is, and how to repeat it."""
    kind: str
    label: str
    about: str
    engine: str
    text: str
    operators: list[str]
    folder: str
    command: str


@dataclass
class Result:
    graphs: int = 0
    counts: collections.Counter = field(default_factory=collections.Counter)  # (engine, what): requests
    graphs_with: collections.Counter = field(default_factory=collections.Counter)  # the same, of how many graphs
    notes: collections.Counter = field(default_factory=collections.Counter)
    skipped: collections.Counter = field(default_factory=collections.Counter)  # (operator, why)
    operators: collections.Counter = field(default_factory=collections.Counter)
    found: list[Found] = field(default_factory=list)
    examples: dict[str, str] = field(default_factory=dict)  # of each note: the first graph

    def add(self, other: Result) -> None:
        self.graphs += other.graphs
        for name in ("counts", "graphs_with", "notes", "skipped", "operators"):
            getattr(self, name).update(getattr(other, name))
        self.found += other.found
        self.examples = other.examples | self.examples


def about_of(options: Options, index: int) -> str:
    """The operator that the graph of this index is about; each in its turn."""
    names = sorted(options.only or ROWS)
    return names[index * 7919 % len(names)]


def examine_one(examiner: Examiner, options: Options, index: int) -> Result:
    result = Result()
    label = f"{options.seed}/{index}"
    try:
        case = draw_case(label, about_of(options, index))
    except Misfit:
        result.skipped[about_of(options, index), "no graph was found"] += 1
        return result
    result.graphs = 1
    result.operators.update(set(case.operators))
    expected = examiner.expected(case)
    for engine in options.engines:
        if engine == "openvino" and index % options.second_every:
            continue
        report = examiner(case, engine, expected)
        keep(result, report, case)
        if report.faults:
            result.found.append(write(examiner, options, index, case, report))
    return result


def keep(result: Result, report: Report, case: Case) -> None:
    for what, count in report.counts.items():
        result.counts[report.engine, what] += count
        result.graphs_with[report.engine, what] += 1
        if what.startswith(("skipped", "answered")):
            result.skipped[case.about, what] += 1
    notes = {f"{report.engine}: {note}" for note in report.notes}
    result.notes.update(notes)
    result.examples.update(dict.fromkeys(notes, case.label))


def write(examiner: Examiner, options: Options, index: int, case: Case, report: Report) -> Found:
    """The folder of a case's first fault, shrunk where that is easy."""
    fault = report.faults[0]
    folder = options.out / f"{options.seed}-{index}-{report.engine}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    only = "".join(f" --only {name}" for name in options.only)
    command = f"tools/random_graphs --seed {options.seed} --first {index} --count 1 --engine {report.engine}{only}"
    write_case(folder, case, report.engine, fault, command)
    operators = [node.op_type for node in case.model.graph.node if node.op_type != "Constant"]
    if options.shrink and len(operators) > 1:
        smaller = shrunk(examiner, case, report.engine, fault)
        if smaller is not None:
            write_case(folder / "smaller", smaller[0], report.engine, smaller[1], f"tools/random_graphs --again {folder}/smaller")
            operators = [node.op_type for node in smaller[0].model.graph.node if node.op_type != "Constant"]
            fault = smaller[1]
    return Found(fault.kind, f"{options.seed}/{index}", case.about, report.engine, fault.text, operators, str(folder), command)


def write_case(folder: Path, case: Case, engine: str, fault: Fault, command: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(case.model, folder / "model.onnx")
    (folder / "model.txt").write_text(onnx.printer.to_text(case.model))
    (folder / "case.json").write_text(json.dumps(
        {"label": case.label, "about": case.about, "engine": engine, "kind": fault.kind, "text": fault.text,
         "place": fault.place, "extents": case.extents, "command": command}, indent=1))
    write_arrays(folder / "sets.npz", {f"{kind}/{at}/{name}": array
                                       for kind, sets in (("sets", case.sets), ("together", case.together))
                                       for at, inputs in enumerate(sets) for name, array in inputs.items()})
    for name, arrays in (("inputs", fault.inputs), ("wanted", fault.want), ("got", fault.got)):
        if arrays:
            write_arrays(folder / f"{name}.npz", arrays)


def write_arrays(file: Path, arrays: dict[str, np.ndarray]) -> None:
    """numpy's format has no bfloat16: such arrays are named for it, and hold its bits."""
    np.savez(file, **{name + ("|bf16" if a.dtype == BF16 else ""): a.view(np.uint16) if a.dtype == BF16 else a
                      for name, a in arrays.items()})


def read_case(folder: Path) -> tuple[Case, str]:
    said = json.loads((folder / "case.json").read_text())
    model = onnx.load(folder / "model.onnx")
    sets: dict[str, dict[int, dict[str, np.ndarray]]] = {"sets": {}, "together": {}}
    with np.load(folder / "sets.npz", allow_pickle=True) as arrays:  # texts are objects; the file is our own
        for key in arrays.files:
            kind, at, name = key.removesuffix("|bf16").split("/", 2)
            array = arrays[key].view(BF16) if key.endswith("|bf16") else arrays[key]
            sets[kind].setdefault(int(at), {})[name] = array
    case = Case(said["label"], said["about"], model, list(sets["sets"].values()), said["extents"],
                [node.op_type for node in model.graph.node], list(sets["together"].values()))
    return case, said["engine"]


# -- several at a time


def work(pipe, options: Options, folder: str) -> None:
    """A worker's process: an index comes, its result goes back."""
    examiner = Examiner(Server(options.program, Path(folder), []))
    try:
        while (index := pipe.recv()) is not None:
            pipe.send(examine_one(examiner, options, index))
    except (EOFError, KeyboardInterrupt):
        pass
    finally:
        examiner.close()


class Worker:
    def __init__(self, options: Options, folder: Path):
        self.pipe, theirs = multiprocessing.Pipe()
        context = multiprocessing.get_context("spawn")
        folder.mkdir(parents=True)
        self.process = context.Process(target=work, args=(theirs, options, str(folder)))
        self.process.start()
        theirs.close()
        self.index: int | None = None

    def give(self, index: int) -> None:
        self.index = index
        self.pipe.send(index)


def run(options: Options, tell=lambda result, done: None) -> Result:
    """All graphs of `options`, each examined once; the order in which they end does not matter."""
    result = Result()
    waiting = iter(range(options.first, options.first + options.count))
    with tempfile.TemporaryDirectory(prefix="random_graphs") as folder:
        started = 0

        def start() -> Worker | None:
            nonlocal started
            index = next(waiting, None)
            if index is None:
                return None
            started += 1
            worker = Worker(options, Path(folder) / str(started))
            worker.give(index)
            return worker

        workers = [worker for worker in (start() for _ in range(options.jobs)) if worker]
        done = 0
        while workers:
            ready = multiprocessing.connection.wait([worker.pipe for worker in workers])
            for worker in [worker for worker in workers if worker.pipe in ready]:
                try:
                    result.add(worker.pipe.recv())
                except (EOFError, OSError):  # an oracle ended the process while the graph was drawn
                    worker.process.join()
                    result.skipped[about_of(options, worker.index), "skipped: an oracle crashes on its nodes"] += 1
                    workers.remove(worker)
                    if again := start():
                        workers.append(again)
                    continue
                finally:
                    done += 1
                    tell(result, done)
                index = next(waiting, None)
                if index is None:
                    with contextlib.suppress(OSError):
                        worker.pipe.send(None)
                    worker.process.join(60)
                    workers.remove(worker)
                else:
                    worker.give(index)
    return result


# -- by command


def say(options: Options, result: Result) -> None:
    print(f"{result.graphs} graphs of seed {options.seed}, {len(result.operators)} operators; by engine:")
    print("  engine    requests  graphs")
    for engine in options.engines:
        for (_, what), count in sorted(item for item in result.counts.items() if item[0][0] == engine):
            print(f"  {engine:9} {count:8} {result.graphs_with[engine, what]:7}  {what}")
    if result.skipped:
        why = collections.defaultdict(collections.Counter)
        for (operator, reason), count in result.skipped.items():
            why[reason][operator] += count
        for reason, operators in sorted(why.items()):
            print(f"  {reason}: {', '.join(f'{name} {count}' for name, count in operators.most_common(30))}")
    for note, count in result.notes.most_common(30):
        print(f"  {count:6}  {note}   # {result.examples[note]}")
    by_kind = collections.Counter(found.kind for found in result.found)
    for kind, count in by_kind.items():
        print(f"{count} {kind}: {KINDS[kind]}")
    print("no fault" if not result.found else f"{len(result.found)} graphs with faults")


def one_line(found: Found) -> str:
    text = found.text if len(found.text) < 400 else found.text[:400] + "..."
    operators = " ".join(found.operators)
    return (f"{found.kind.upper()} {found.label} {found.engine} [{operators}] {text}\n"
            f"    {found.command}   # {found.folder}")


def main(arguments=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, prog="tools/random_graphs",
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="the first graph of the seed")
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--engine", choices=ENGINES, default="both")
    parser.add_argument("--only", action="append", default=[], metavar="OP", help="graphs about this operator; several times")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="servers at a time (default: one a core)")
    parser.add_argument("--program", type=Path, default=default_program(),
                        help="carillon (default: $CARILLON_PROGRAM, else build/release/carillon)")
    parser.add_argument("--out", type=Path, default=Options.out, help="folder of the faults' folders")
    parser.add_argument("--no-shrink", action="store_true", help="leave graphs with faults as they are")
    parser.add_argument("--second-every", type=int, default=1, metavar="N", help="every Nth graph alone goes to OpenVINO")
    parser.add_argument("--again", type=Path, metavar="FOLDER", help="the case in this folder, on the engine it names")
    given = parser.parse_args(arguments)
    if not given.program.is_file():
        parser.error(f"there is no program at {given.program}: build it, or name it with --program")
    if unknown := set(given.only) - set(ROWS):
        parser.error(f"no row for {', '.join(sorted(unknown))}; there are {', '.join(sorted(ROWS))}")
    options = Options(given.program, given.seed, given.first, given.count, tuple(ENGINES[given.engine]), tuple(given.only),
                      given.jobs, given.out, not given.no_shrink, given.second_every)
    if given.again:
        return again(options, given.again)
    began, last = time.monotonic(), 0

    def tell(result: Result, done: int) -> None:
        nonlocal last
        for found in result.found[last:]:
            print(one_line(found), flush=True)
        last = len(result.found)
        if sys.stderr.isatty():
            speed = done / (time.monotonic() - began)
            print(f"\r{done} of {options.count}, {speed:.1f} a second ", end="", file=sys.stderr, flush=True)

    result = run(options, tell)
    say(options, result)
    print(f"{time.monotonic() - began:.0f} s")
    return 1 if result.found else 0


def again(options: Options, folder: Path) -> int:
    case, engine = read_case(folder)
    with tempfile.TemporaryDirectory(prefix="random_graphs") as place:
        examiner = Examiner(Server(options.program, Path(place), []))
        try:
            report = examiner(case, engine)
        finally:
            examiner.close()
    for fault in report.faults:
        print(f"{fault.kind.upper()} {fault.text}")
    for what, count in sorted(report.counts.items()):
        print(f"  {count:4}  {what}")
    for note in report.notes:
        print(f"  {note}")
    return 1 if report.faults else 0
