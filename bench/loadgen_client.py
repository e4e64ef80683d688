"""One run of MLPerf's LoadGen, scenario Server, against a server of the KServe protocol over gRPC; tells the verdict as JSON.

    loadgen_client.py HOST:PORT MODEL --rate R --target-ms L [--seconds S] [--queries N] [--timeout-ms T] [--warmup S] [--logs DIR]

LoadGen asks at Poisson times, R a second, and measures each answer from the time at which it was to be asked for. A run is
VALID by LoadGen's own rules: the 99th percentile is within L, and enough queries say so ("early stopping"; with none late
662 are enough, and the more are late, the more it takes).

--timeout-ms: each request carries this deadline (KServe's parameter `timeout`), which Carillon heeds.
An answer that is no result, such as a refusal, is never a quick answer: LoadGen hears of it when L has passed since it was
asked for, so it counts as late. LoadGen gives up where more queries wait than come in a second (or in four times L), and the run
is INVALID.

It is a program of its own, so that each run has an interpreter and a LoadGen of its own.
"""

import argparse
import heapq
import itertools
import json
import math
import pathlib
import sys
import tempfile
import threading
import time

import grpc
import mlperf_loadgen
import numpy as np
from tritonclient.grpc import service_pb2

SAMPLES = 16  # different inputs
TYPES = {"FP32": np.float32, "INT64": np.int64}
NO_ROOM = (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE)


class Later:
    """A thread that calls functions at times of time.monotonic()."""

    def __init__(self):
        self.heap, self.changed, self.order = [], threading.Condition(), itertools.count()
        threading.Thread(target=self.run, daemon=True).start()

    def at(self, when, function, *arguments):
        with self.changed:
            heapq.heappush(self.heap, (when, next(self.order), function, arguments))
            self.changed.notify()

    def run(self):
        while True:
            with self.changed:
                while not self.heap or self.heap[0][0] > time.monotonic():
                    self.changed.wait(max(0.0, self.heap[0][0] - time.monotonic()) if self.heap else None)
                _, _, function, arguments = heapq.heappop(self.heap)
            function(*arguments)


class Requests:
    """Sends a model's requests, ready made, and counts what became of them."""

    def __init__(self, channel, model, timeout_ms):
        self.send = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        ask = channel.unary_unary(
            "/inference.GRPCInferenceService/ModelMetadata",
            request_serializer=service_pb2.ModelMetadataRequest.SerializeToString,
            response_deserializer=service_pb2.ModelMetadataResponse.FromString,
        )
        inputs = ask(service_pb2.ModelMetadataRequest(name=model), timeout=30).inputs
        random = np.random.default_rng(1)
        self.messages = []
        for _ in range(SAMPLES):
            message = service_pb2.ModelInferRequest(model_name=model)
            if timeout_ms:
                message.parameters["timeout"].int64_param = round(1000 * timeout_ms)
            for spec in inputs:
                shape = [1, *spec.shape[1:]]
                values = random.standard_normal(shape) if spec.datatype == "FP32" else np.ones(shape)
                message.inputs.add(name=spec.name, datatype=spec.datatype, shape=shape)
                message.raw_input_contents.append(values.astype(TYPES[spec.datatype]).tobytes())
            self.messages.append(message.SerializeToString())
        self.counts, self.lock = {"answered": 0, "refused": 0, "failed": 0}, threading.Lock()
        self.why = ""

    def ask(self, sample, done):
        """Calls done(whether there is a result) from another thread."""

        def ended(call):
            code = call.code()
            what = "answered" if code == grpc.StatusCode.OK else "refused" if code in NO_ROOM else "failed"
            with self.lock:
                self.counts[what] += 1
                if what != "answered":
                    self.why = f"{code.name}: {call.details()}"
            done(what == "answered")

        self.send.future(self.messages[sample], timeout=120).add_done_callback(ended)

    def warm(self, rate, seconds):
        """Evenly at that rate, but 500 a second at most; returns when all are answered. What an answer begins with."""
        rate = min(rate, 500)
        count, left = max(1, math.ceil(rate * seconds)), threading.Semaphore(0)
        begin = time.monotonic()
        for i in range(count):
            time.sleep(max(0.0, begin + i / rate - time.monotonic()))
            self.ask(i % SAMPLES, lambda _: left.release())
        for _ in range(count):
            left.acquire()
        for _ in range(100):  # a deadline may refuse one of them
            try:
                answer = service_pb2.ModelInferResponse.FromString(self.send(self.messages[0], timeout=60))
            except grpc.RpcError:
                continue
            if answer.raw_output_contents:
                return [float(x) for x in np.frombuffer(answer.raw_output_contents[0], np.float32)[:8]]
            return list(answer.outputs[0].contents.fp32_contents[:8])
        return None


def measure(requests, args, logs):
    later, target = Later(), args.target_ms / 1000

    def complete(query):
        mlperf_loadgen.QuerySamplesComplete([mlperf_loadgen.QuerySampleResponse(query, 0, 0)])

    def issue(queries):
        for query in queries:
            query_id, asked = query.id, time.monotonic()

            def done(has_result, query_id=query_id, asked=asked):
                if has_result:
                    complete(query_id)
                else:
                    later.at(asked + target + 0.001, complete, query_id)

            requests.ask(query.index, done)

    settings = mlperf_loadgen.TestSettings()
    settings.scenario = mlperf_loadgen.TestScenario.Server
    settings.mode = mlperf_loadgen.TestMode.PerformanceOnly
    settings.server_target_qps = args.rate
    settings.server_target_latency_ns = round(1e6 * args.target_ms)
    settings.server_target_latency_percentile = 0.99
    settings.server_max_async_queries = max(100, math.ceil(args.rate * max(1, 4 * target)))
    settings.min_duration_ms = round(1000 * args.seconds)
    settings.min_query_count = args.queries
    settings.schedule_rng_seed, settings.sample_index_rng_seed, settings.qsl_rng_seed = args.seed, args.seed, args.seed
    log = mlperf_loadgen.LogSettings()
    output = mlperf_loadgen.LogOutputSettings()
    output.outdir, output.copy_summary_to_stdout = str(logs), False
    log.log_output, log.enable_trace = output, False
    system = mlperf_loadgen.ConstructSUT(issue, lambda: None)
    samples = mlperf_loadgen.ConstructQSL(SAMPLES, SAMPLES, lambda _: None, lambda _: None)
    mlperf_loadgen.StartTestWithLogSettings(system, samples, settings, log)
    mlperf_loadgen.DestroyQSL(samples)
    mlperf_loadgen.DestroySUT(system)


def verdict(logs):
    """What LoadGen's detailed log says of the run."""
    said = {}
    for line in (logs / "mlperf_log_detail.txt").read_text().splitlines():
        if line.startswith(":::MLLOG "):
            entry = json.loads(line.removeprefix(":::MLLOG "))
            said[entry["key"]] = entry["value"]
    return {
        "valid": said["result_validity"] == "VALID",
        "queries": said["result_query_count"],
        "over_latency": said.get("result_overlatency_query_count", 0),
        "latency_met": said.get("result_perf_constraints_met", False),
        "enough": said.get("early_stopping_met", False),
        "per_second": said.get("result_completed_samples_per_sec", 0.0),
        **{f"p{p}_ms": said.get(f"result_{p}.00_percentile_latency_ns", 0) / 1e6 for p in (50, 90, 99)},
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address")
    parser.add_argument("model")
    parser.add_argument("--rate", type=float, required=True, help="queries a second")
    parser.add_argument("--target-ms", type=float, required=True, help="what the 99th percentile has to be within")
    parser.add_argument("--seconds", type=float, default=10, help="at least")
    parser.add_argument("--queries", type=int, default=1000, help="at least")
    parser.add_argument("--timeout-ms", type=float, default=0, help="deadline that requests carry; 0: none")
    parser.add_argument("--warmup", type=float, default=1, help="seconds at that rate before")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--logs", type=pathlib.Path, help="folder that gets LoadGen's own files")
    args = parser.parse_args()
    if args.rate <= 0 or args.target_ms <= 0:
        parser.error("--rate and --target-ms must be above 0")
    with tempfile.TemporaryDirectory() as folder:
        logs = args.logs or pathlib.Path(folder)
        logs.mkdir(parents=True, exist_ok=True)
        with grpc.insecure_channel(args.address, options=[("grpc.max_receive_message_length", 64 << 20)]) as channel:
            requests = Requests(channel, args.model, args.timeout_ms)
            answer = requests.warm(args.rate, args.warmup)
            requests.counts.update(dict.fromkeys(requests.counts, 0))
            processor = time.process_time()
            measure(requests, args, logs)
        json.dump({"rate": args.rate, **verdict(logs), **requests.counts, "why": requests.why, "answer": answer,
                   "client_cpu_s": time.process_time() - processor}, sys.stdout)


if __name__ == "__main__":
    main()
