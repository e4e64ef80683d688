"""Open-loop requests with deadlines, through tritonclient, over HTTP and gRPC.

Arrivals are planned ahead and do not wait for answers; latency counts from the
planned moment, so that a slow server cannot slow the question down and look
better for it. Every answer is compared with onnxruntime's.
"""

from __future__ import annotations

import dataclasses
import queue
import threading
import time

import numpy as np
import onnxruntime
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from carillon_samples.catalogue import Sample

VARIANTS = 4  # different inputs per model, with their answers known
TOLERANCE = 1e-3  # relative to the largest value of the answer
PATIENCE = 30.0  # seconds until a client gives a request up


@dataclasses.dataclass
class Tally:
    """What became of the requests to one model. Latencies in seconds, of answers only."""

    deadline: float = 0.0
    sent: int = 0
    on_time: int = 0
    late: int = 0
    refused: int = 0
    wrong: int = 0
    failed: int = 0
    latencies: list[float] = dataclasses.field(default_factory=list)
    first_problem: str = ""

    def percentile(self, share: float) -> float:
        return float(np.percentile(self.latencies, share)) if self.latencies else float("nan")


class Question:
    """A model's inputs and the answers that onnxruntime gives to them."""

    def __init__(self, sample: Sample, model_file: str):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(model_file, options, providers=["CPUExecutionProvider"])
        self.sample = sample
        self.inputs = [sample.example_inputs(1, seed) for seed in range(VARIANTS)]
        names = [tensor.name for tensor in sample.inputs]
        self.answers = [session.run(None, dict(zip(names, arrays))) for arrays in self.inputs]

    def problem(self, variant: int, result) -> str:
        """What is wrong with an answer; empty if nothing is."""
        for tensor, want in zip(self.sample.outputs, self.answers[variant]):
            got = result.as_numpy(tensor.name)
            if got is None:
                return f"output '{tensor.name}' is missing"
            if got.shape != want.shape or got.dtype != want.dtype:
                return f"output '{tensor.name}' is {got.dtype}{list(got.shape)}, not {want.dtype}{list(want.shape)}"
            off = float(np.abs(got - want).max() / np.abs(want).max())
            if not off <= TOLERANCE:
                return f"output '{tensor.name}' differs from onnxruntime's by {off:.2g} of its largest value"
        return ""


class Client:
    """One connection over one protocol; to be used by one thread."""

    def __init__(self, protocol: str, address: str):
        self.protocol = protocol
        self.module = {"http": triton_http, "grpc": triton_grpc}[protocol]
        if protocol == "http":
            self.client = triton_http.InferenceServerClient(
                address, connection_timeout=PATIENCE, network_timeout=PATIENCE)
        else:
            self.client = triton_grpc.InferenceServerClient(address)

    def infer(self, name: str, arrays: list[np.ndarray], sample: Sample, deadline: float):
        """Raises InferenceServerException where the server refuses."""
        inputs = []
        for tensor, array in zip(sample.inputs, arrays):
            item = self.module.InferInput(tensor.name, list(array.shape), np_to_triton_dtype(array.dtype))
            item.set_data_from_numpy(array)
            inputs.append(item)
        extra = {"client_timeout": PATIENCE} if self.protocol == "grpc" else {}
        return self.client.infer(name, inputs, timeout=round(deadline * 1e6), **extra)

    def close(self) -> None:
        self.client.close()


def is_refusal(error: InferenceServerException) -> bool:
    """Whether the server said that the deadline cannot be met."""
    return "504" in str(error.status()) or "DEADLINE_EXCEEDED" in str(error.status())


def typical_time(client: Client, name: str, question: Question, count: int = 10) -> float:
    """Seconds that one request takes when it is alone: the median of `count`, after a first one.

    Raises InferenceServerException, and ValueError for a wrong answer.
    """
    times = []
    for index in range(count + 1):
        variant = index % VARIANTS
        start = time.monotonic()
        result = client.infer(name, question.inputs[variant], question.sample, PATIENCE)
        times.append(time.monotonic() - start)
        if problem := question.problem(variant, result):
            raise ValueError(problem)
    return float(np.median(times[1:]))


class OpenLoop:
    """Sends planned requests from a pool of threads, each with its own connections."""

    def __init__(self, addresses: dict[str, str], questions: dict[str, Question], threads: int):
        self.questions = questions
        self.addresses = addresses
        self.work: queue.SimpleQueue = queue.SimpleQueue()
        self.lock = threading.Lock()
        self.tallies = {name: Tally() for name in questions}
        self.workers = [threading.Thread(target=self._serve, daemon=True) for _ in range(threads)]

    def run(self, rates: dict[str, float], deadlines: dict[str, float], seconds: float, seed: int, progress) -> None:
        """Poisson arrivals at `rates` a second for `seconds`; returns when every request has its outcome."""
        rng = np.random.default_rng(seed)
        plan = []
        for name, rate in rates.items():
            self.tallies[name].deadline = deadlines[name]
            at, index = rng.exponential(1 / rate), 0
            while at < seconds:
                plan.append((at, name, index))
                at, index = at + rng.exponential(1 / rate), index + 1
        plan.sort()
        for worker in self.workers:
            worker.start()
        start = time.monotonic() + 0.2
        for count, (at, name, index) in enumerate(plan, 1):
            if (pause := start + at - time.monotonic()) > 0:
                time.sleep(pause)
            # Half of each model's requests over each protocol.
            self.work.put((start + at, name, index % VARIANTS, ("http", "grpc")[index % 2]))
            progress(at, count, len(plan))
        for _ in self.workers:
            self.work.put(None)
        for worker in self.workers:
            worker.join()

    def _serve(self) -> None:
        clients = {protocol: Client(protocol, address) for protocol, address in self.addresses.items()}
        while (item := self.work.get()) is not None:
            planned, name, variant, protocol = item
            question = self.questions[name]
            deadline = self.tallies[name].deadline
            outcome, problem = "", ""
            # What is left of the time counts: the request may have waited for a thread.
            left = max(planned + deadline - time.monotonic(), 1e-6)
            try:
                result = clients[protocol].infer(name, question.inputs[variant], question.sample, left)
                took = time.monotonic() - planned
                problem = question.problem(variant, result)
                outcome = "wrong" if problem else "on_time" if took <= deadline else "late"
            except InferenceServerException as error:
                took = time.monotonic() - planned
                outcome = "refused" if is_refusal(error) else "failed"
                problem = "" if outcome == "refused" else f"{protocol}: {error}"
            except Exception as error:  # a client library's own: broken connections and the like
                took, outcome, problem = 0.0, "failed", f"{protocol}: {type(error).__name__}: {error}"
            with self.lock:
                tally = self.tallies[name]
                tally.sent += 1
                setattr(tally, outcome, getattr(tally, outcome) + 1)
                if outcome in ("on_time", "late"):
                    tally.latencies.append(took)
                tally.first_problem = tally.first_problem or problem
        for client in clients.values():
            client.close()
