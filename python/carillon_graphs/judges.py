"""The oracles in processes of their own, since onnxruntime and OpenVINO crash on some of these graphs."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal

import numpy as np
import onnx

from . import oracle, rules

ANSWER_S = 60


class Refuses(Exception):
    """An oracle has the operators, and refuses the inputs."""


class Lacks(Exception):
    """An oracle has no answer: it lacks an operator or a type, crashes or hangs."""


def end_with_parent() -> None:
    """The kernel ends this process when the process that started it has ended (Linux: PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


class OpenVino:
    """OpenVINO as its own Python package runs it."""

    def __init__(self, model: onnx.ModelProto):
        import openvino
        core = openvino.Core()
        read = core.read_model(model.SerializeToString())
        # A stream of one thread loses what fails, and answers with the outputs of the run before.
        self.compiled = core.compile_model(read, "CPU", {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1,
                                                         "NUM_STREAMS": 0})

    def __call__(self, inputs):
        said = self.compiled(inputs, share_inputs=False)
        return [oracle.array_of(np.array(said[output])) for output in self.compiled.outputs]


MADE = {"onnxruntime": oracle.Runtime, "node by node": oracle.Steps, "onnx.reference": oracle.Reference, "openvino": OpenVino,
        "shaken": oracle.Shaken, "rules": rules.Walk}


def judge(pipe) -> None:
    """The loop of a judge's process: (which, model or None for the last one, inputs) in, what it answers or an error out.
    `which` is of MADE; what follows a slash in it is a further argument."""
    end_with_parent()
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, 2)  # what onnxruntime says when it crashes is nobody's concern
    model, made = None, {}
    while True:
        which, data, inputs = pipe.recv()
        which, *more = which.split("/")
        if data is not None:
            model, made = onnx.load_from_string(data), {}
        try:
            if which not in made:
                made[which] = MADE[which](model)
        except Exception as error:  # noqa: BLE001: of many kinds
            made[which] = error
        run = made[which]
        if isinstance(run, Exception):
            pipe.send(("lacks", str(run)))
            continue
        try:
            pipe.send(("answer", run(inputs, *more)))
        except NotImplementedError as error:
            pipe.send(("lacks", str(error)))
        except Exception as error:  # noqa: BLE001: of many kinds
            pipe.send(("refuses", str(error)[:2000]))


class Judge:
    """Asks one process, which is started anew after a crash."""

    def __init__(self):
        self.process = None
        self.holds: bytes | None = None

    def __call__(self, which: str, model: bytes, inputs: dict[str, np.ndarray]) -> list[np.ndarray] | rules.Ruled:
        """Raises Refuses or Lacks."""
        if self.process is None:
            context = multiprocessing.get_context("spawn")
            self.pipe, theirs = context.Pipe()
            self.process = context.Process(target=judge, args=(theirs,), daemon=True)
            self.process.start()
            theirs.close()
            self.holds = None
        try:
            self.pipe.send((which, None if model == self.holds else model, inputs))
            self.holds = model
            if self.pipe.poll(ANSWER_S):
                kind, said = self.pipe.recv()
                if kind == "answer":
                    return said
                raise (Lacks if kind == "lacks" else Refuses)(f"{which}: {said}")
        except (EOFError, OSError):
            pass
        how = "hangs" if self.process.is_alive() else "crashes"
        self.close()
        raise Lacks(f"{which} {how}")

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.join()
            self.process = None


class Expected:
    """What the oracles say of a case's inputs. onnxruntime is asked first for the whole; where that has no answer, each
    node is computed by onnxruntime or onnx.reference; onnx.reference alone is held against either."""

    OF_ONNX = ("onnxruntime", "node by node", "onnx.reference")

    def __init__(self, model: onnx.ModelProto, one: Judge, other: Judge):
        self.model = model.SerializeToString()
        self.names = [output.name for output in model.graph.output]
        self.judges = {"openvino": other}
        self.one = one
        self.known: dict[tuple[str, int], dict[str, np.ndarray] | Exception | rules.Ruled] = {}
        self.kept: list = []  # inputs whose identity is a key of `known`

    def answer(self, which: str, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray] | Exception:
        key = which, id(inputs)
        if key not in self.known:
            self.kept.append(inputs)
            try:
                said = self.judges.get(which, self.one)(which, self.model, inputs)
                self.known[key] = dict(zip(self.names, said, strict=True))
            except (Refuses, Lacks) as error:
                self.known[key] = error
        return self.known[key]

    def primary(self, inputs) -> tuple[str, dict[str, np.ndarray] | Exception]:
        first = self.answer("onnxruntime", inputs)
        if isinstance(first, dict):
            return "onnxruntime", first
        second = self.answer("node by node", inputs)
        return ("onnxruntime", first) if isinstance(second, Lacks) else ("node by node", second)

    def ruled(self, inputs) -> rules.Ruled:
        """The model's outputs by the rules; none where the oracles crash on it."""
        key = "rules", id(inputs)
        if key not in self.known:
            self.kept.append(inputs)
            try:
                self.known[key] = self.one("rules", self.model, inputs)
            except (Refuses, Lacks):
                self.known[key] = rules.Ruled({}, set(), {}, [])
        return self.known[key]

    def any_refuses(self, inputs) -> bool:
        return any(isinstance(self.answer(which, inputs), Refuses) for which in self.OF_ONNX)
