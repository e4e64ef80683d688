#!/usr/bin/env python3
"""Everything at once for a long time: is every request answered once and right, and does the server stay as it was?

Against one server in explicit mode, side by side: clients over HTTP, gRPC and gRPC streams with deadlines from hopeless to
none, sizes of an open model, a model of the second engine, inputs and outputs in shared memory; orders that load a model
anew, each time with another factor, and unload it; the bad inputs of tests/bad_inputs.py; and processes that are killed in
the middle of bodies, calls and streams. Answers are compared with numpy's.

What must hold, stated before any run:
- no answer is wrong, none is missing, none comes twice; requests are refused for their deadline (504), because their model
  is just not there (404, 503), or because there is no room (503: the server is overloaded, too much is in flight), and for
  nothing else;
- at the end, with all clients gone, no request is open;
- of the proportional set size (PSS), the smallest of each of ten windows of the second half is taken: a line through them
  rises by less than 3% of the size over the half, or 8 MiB where that is more;
- the most threads, and the most descriptors, of the last quarter are no more than those of the second quarter, and 8 for
  clients that happen to be there.
The last two are told, but not judged, of runs shorter than five minutes. The exit status is 1 where something did not hold.

    python bench/soak.py [--minutes 60] [--seed 1] [--json FILE] [--plot docs/img/soak.png]
"""

import argparse
import collections
import contextlib
import http.client
import json
import os
import pathlib
import queue
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid

import numpy as np
from onnx import TensorProto, helper, numpy_helper

import harness

sys.path[:0] = [str(harness.ROOT / "tests"), str(harness.ROOT / "python")]
MIB = 2**20
WIDTH = 16
MATRIX = np.random.default_rng(4).standard_normal([WIDTH, 8]).astype(np.float32)


# -- models: y of x as numpy has it


def put(folder, name, nodes, shape, weights, config="", names=("x", "y")):
    """Moved into its place as a whole; the output is as open as the input."""
    value = lambda tensor, dims: helper.make_tensor_value_info(tensor, TensorProto.FLOAT, dims)
    model = helper.make_model(
        helper.make_graph(nodes, name, [value(names[0], shape)], [value(names[1], [*shape[:-1], None])], weights),
        opset_imports=[helper.make_opsetid("", 17)],
    )
    model.ir_version = 8
    (folder / name / "1").mkdir(parents=True, exist_ok=True)
    if config:
        (folder / name / "config.pbtxt").write_text(config)
    hidden = folder / name / ".making"
    hidden.write_bytes(model.SerializeToString())
    hidden.replace(folder / name / "1" / "model.onnx")


def put_scale(folder, factor):
    put(
        folder,
        "scale",
        [helper.make_node("Mul", ["x", "f"], ["y"])],
        ["batch", WIDTH],
        [numpy_helper.from_array(np.float32(factor), "f")],
    )


def put_models(folder):
    dense = [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Relu", ["p"], ["y"])]
    weights = [numpy_helper.from_array(MATRIX, "w")]
    put(folder, "dense", dense, ["batch", WIDTH], weights)
    put(
        folder,
        "second",
        dense,
        ["batch", WIDTH],
        weights,
        'parameters { key: "engine" value { string_value: "openvino" } }',
    )
    put(folder, "open", dense, ["batch", "length", WIDTH], weights)
    put_scale(folder, 1)
    # The one that bad inputs are for.
    put(
        folder,
        "tiny_mlp",
        [helper.make_node("MatMul", ["input", "w"], ["output"])],
        ["batch", 64],
        [numpy_helper.from_array(np.ones([64, 10], np.float32), "w")],
        names=("input", "output"),
    )


def inputs_of(chance, model):
    rows = chance.choice([1, 1, 2, 5])
    shape = [rows, chance.choice([1, 3, 8, 17, 64]), WIDTH] if model == "open" else [rows, WIDTH]
    return np.random.default_rng(chance.randrange(1 << 30)).standard_normal(shape).astype(np.float32)


def right(model, x, y, factors):
    if model == "scale":
        return any(np.allclose(y, x * np.float32(f), rtol=1e-4, atol=1e-4) for f in factors)
    return y.shape == (*x.shape[:-1], 8) and np.allclose(y, np.maximum(x @ MATRIX, 0), rtol=1e-3, atol=1e-3)


# -- clients


class Soak:
    def __init__(self, server, folder, seed):
        self.server, self.folder, self.seed = server, folder, seed
        self.ended = threading.Event()
        self.counts = collections.Counter()
        self.wrong = []
        self.lock = threading.Lock()
        self.factors = [1]  # that "scale" may have just now
        self.samples = []

    def note(self, what, count=1):
        with self.lock:
            self.counts[what] += count

    def found(self, text):
        with self.lock:
            self.counts["WRONG"] += 1
            if len(self.wrong) < 100:
                self.wrong.append(text)

    def draw(self, chance):
        """A model, its input and a timeout in microseconds."""
        model = chance.choice(["dense", "dense", "open", "second", "scale"])
        return model, inputs_of(chance, model), chance.choice([1, 2_000, 20_000, 1_000_000, 60_000_000, 60_000_000])

    def refused(self, protocol, model, status, text):
        """Counted where it may be."""
        if status in (504, "StatusCode.DEADLINE_EXCEEDED"):
            self.note(f"{protocol}: refused for its deadline")
        elif model == "scale" and status in (404, 503, "StatusCode.NOT_FOUND", "StatusCode.UNAVAILABLE"):
            self.note(f"{protocol}: model not there")
        elif status in (503, "StatusCode.RESOURCE_EXHAUSTED") and ("overloaded" in text or "in flight" in text):
            self.note(f"{protocol}: no room")
        else:
            self.found(f"{protocol}: {model}: {status}: {text[:300]}")

    def judge(self, protocol, model, x, y, factors):
        if right(model, x, y, factors):
            self.note(f"{protocol}: right")
        else:
            self.found(f"{protocol}: {model} of {list(x.shape)} is wrong: {y.ravel()[:4]}")

    def could_be(self, before):
        """Factors from before a request until now: an answer may be of any of them."""
        return [*before, *self.factors]

    def over_http(self, seed):
        chance = random.Random(seed)
        connection = http.client.HTTPConnection("127.0.0.1", self.server.http, timeout=120)
        while not self.ended.is_set():
            model, x, timeout = self.draw(chance)
            as_json = chance.random() < 0.3
            described = {
                "name": "x",
                "datatype": "FP32",
                "shape": list(x.shape),
                **({"data": x.ravel().tolist()} if as_json else {"parameters": {"binary_data_size": x.nbytes}}),
            }
            head = json.dumps(
                {"inputs": [described], "parameters": {"timeout": timeout, "binary_data_output": not as_json}}
            ).encode()
            before = list(self.factors)
            connection.request(
                "POST",
                f"/v2/models/{model}/infer",
                head + (b"" if as_json else x.tobytes()),
                {} if as_json else {"Inference-Header-Content-Length": str(len(head))},
            )
            response = connection.getresponse()
            data = response.read()
            if response.status != 200:
                self.refused("http", model, response.status, data.decode(errors="replace"))
                continue
            length = int(response.headers.get("Inference-Header-Content-Length", len(data)))
            (output,) = json.loads(data[:length])["outputs"]
            y = np.array(output["data"], np.float32) if as_json else np.frombuffer(data[length:], np.float32)
            self.judge("http", model, x, y.reshape(output["shape"]), self.could_be(before))

    def over_grpc(self, seed):
        import tritonclient.grpc as client_module
        from tritonclient.utils import InferenceServerException

        chance = random.Random(seed)
        with client_module.InferenceServerClient(f"127.0.0.1:{self.server.grpc}") as client:
            while not self.ended.is_set():
                model, x, timeout = self.draw(chance)
                tensor = client_module.InferInput("x", x.shape, "FP32").set_data_from_numpy(x)
                before = list(self.factors)
                try:
                    y = client.infer(
                        model, [tensor], timeout=timeout, compression_algorithm=chance.choice([None, None, "gzip"])
                    ).as_numpy("y")
                except InferenceServerException as error:
                    self.refused("grpc", model, error.status(), error.message())
                    continue
                self.judge("grpc", model, x, y, self.could_be(before))

    def over_streams(self, seed):
        """Some streams one after the other, of some hundred requests; each id comes back once."""
        import tritonclient.grpc as client_module

        chance = random.Random(seed)
        while not self.ended.is_set():
            with client_module.InferenceServerClient(f"127.0.0.1:{self.server.grpc}") as client:
                answers = queue.Queue()
                client.start_stream(lambda result, error: answers.put((result, error)))
                open_requests = {}
                for i in range(chance.choice([1, 50, 300])):
                    model = chance.choice(["dense", "open", "second"])
                    open_requests[f"{i}"] = (model, inputs_of(chance, model))
                    tensor = client_module.InferInput("x", open_requests[f"{i}"][1].shape, "FP32").set_data_from_numpy(
                        open_requests[f"{i}"][1]
                    )
                    client.async_stream_infer(model, [tensor], request_id=f"{i}", timeout=60_000_000)
                for _ in range(len(open_requests)):
                    try:
                        result, error = answers.get(timeout=120)
                    except queue.Empty:
                        self.found(f"stream: {len(open_requests)} requests have no answer")
                        break
                    if error is not None:
                        # It does not say whose it is: that ids come once is seen of the others.
                        self.refused("stream", "", "StatusCode.RESOURCE_EXHAUSTED", error.message())
                        continue
                    asked = open_requests.pop(result.get_response().id, None)
                    if asked is None:
                        self.found(f"stream: id {result.get_response().id} comes twice")
                    else:
                        self.judge("stream", *asked, result.as_numpy("y"), [])
                client.stop_stream()
                if not answers.empty():
                    self.found("stream: more answers than requests")

    def in_memory(self, seed):
        import tritonclient.http as client_module
        import tritonclient.utils.shared_memory as shm
        from tritonclient.utils import InferenceServerException

        chance = random.Random(seed)
        with client_module.InferenceServerClient(f"127.0.0.1:{self.server.http}", network_timeout=120) as client:
            while not self.ended.is_set():
                key = f"/carillon_{uuid.uuid4().hex}"
                handle = shm.create_shared_memory_region(key[1:], key, 65536, create_only=True)
                try:
                    client.register_system_shared_memory(key[1:], key, 65536)
                    for _ in range(chance.choice([1, 20])):
                        x = inputs_of(chance, "dense")
                        shm.set_shared_memory_region(handle, [x])
                        tensor, output = client_module.InferInput(
                            "x", x.shape, "FP32"
                        ), client_module.InferRequestedOutput("y")
                        tensor.set_shared_memory(key[1:], x.nbytes)
                        output.set_shared_memory(key[1:], 32 * len(x), offset=32768)
                        try:
                            client.infer("dense", [tensor], outputs=[output], timeout=60_000_000)
                        except InferenceServerException as error:
                            self.refused("memory", "dense", int(error.status() or 0), error.message())
                            continue
                        self.judge(
                            "memory",
                            "dense",
                            x,
                            np.array(shm.get_contents_as_numpy(handle, np.float32, [len(x), 8], offset=32768)),
                            [],
                        )
                    client.unregister_system_shared_memory(key[1:])
                finally:
                    shm.destroy_shared_memory_region(handle)

    def give_orders(self, seed):
        chance = random.Random(seed)
        connection = http.client.HTTPConnection("127.0.0.1", self.server.http, timeout=300)

        def order(what):
            connection.request("POST", f"/v2/repository/models/scale/{what}", b"{}")
            response = connection.getresponse()
            data = response.read()
            if response.status != 200:
                self.found(f"order to {what}: {response.status}: {data[:300]!r}")

        while not self.ended.wait(0.5):
            factor = chance.randrange(2, 1000)
            self.factors = [*self.factors[-1:], factor]
            put_scale(self.folder, factor)
            order("load")
            self.factors = [factor]
            self.note("orders: loaded")
            if chance.random() < 0.25:
                order("unload")
                self.note("orders: unloaded")
                order("load")

    def be_bad(self, seed):
        import bad_inputs
        import grpc

        chance = random.Random(seed)
        over_http, over_grpc = bad_inputs.over_http("/no_such_object"), bad_inputs.over_grpc("/no_such_object")
        with grpc.insecure_channel(
            f"127.0.0.1:{self.server.grpc}", options=[("grpc.max_send_message_length", -1)]
        ) as channel:
            while not self.ended.wait(0.01):
                # No region is lent here, so what is said may be another fault than meant: an error it must be.
                if chance.random() < 0.7:
                    name = chance.choice(list(over_http))
                    bad = over_http[name]
                    fault = bad_inputs.fault_over_http(
                        f"127.0.0.1:{self.server.http}",
                        bad_inputs.Bad(bad.data, (*range(400, 500), 501, 503), "", bad.json),
                    )
                else:
                    name = chance.choice(list(over_grpc))
                    bad = over_grpc[name]
                    fault = bad_inputs.fault_over_grpc(
                        channel,
                        bad_inputs.BadCall(
                            bad.method,
                            bad.data,
                            ("INVALID_ARGUMENT", "NOT_FOUND", "UNIMPLEMENTED", "RESOURCE_EXHAUSTED", "UNAVAILABLE"),
                            "",
                        ),
                    )
                if fault and "an answer" not in fault and "status 200" not in fault:
                    self.found(f"bad input {name:.60}: {fault}")
                else:
                    self.note("bad inputs")

    def watch(self):
        begin = time.monotonic()
        process = f"/proc/{self.server.process.pid}"
        while not self.ended.is_set():
            with contextlib.suppress(OSError, AttributeError):
                rollup = pathlib.Path(f"{process}/smaps_rollup").read_text()
                kib = lambda which: int(re.search(rf"^{which}:\s+(\d+)", rollup, re.M).group(1))
                self.samples.append(
                    {
                        "s": round(time.monotonic() - begin, 2),
                        "pss_mib": kib("Pss") / 1024,
                        "rss_mib": kib("Rss") / 1024,
                        "threads": len(os.listdir(f"{process}/task")),
                        "descriptors": len(os.listdir(f"{process}/fd")),
                    }
                )
            self.ended.wait(0.5)

    def kill_clients(self, seed):
        """Processes made ahead by one that has what they need (victim_loop); killed after a moment."""
        chance = random.Random(seed)
        with subprocess.Popen(
            [sys.executable, __file__, "--victims", f"{self.server.http}:{self.server.grpc}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as maker:
            while not self.ended.wait(0.1):
                maker.stdin.write(chance.choice(["body", "answer", "stream", "call"]) + "\n")
                maker.stdin.flush()
                pid = int(maker.stdout.readline())
                self.ended.wait(chance.choice([0.02, 0.1, 0.3]))
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                self.note("clients killed")
            maker.stdin.close()

    def run(self, seconds):
        jobs = [
            self.over_http,
            self.over_http,
            self.over_grpc,
            self.over_grpc,
            self.over_streams,
            self.in_memory,
            self.give_orders,
            self.be_bad,
            self.kill_clients,
        ]

        def guarded(job, seed):
            try:
                job(seed)
            except Exception as error:  # noqa: BLE001: a client that fails is a finding
                self.found(f"{job.__name__} ended with {error!r}: {error}")

        threads = [threading.Thread(target=guarded, args=(job, 100 * self.seed + i)) for i, job in enumerate(jobs)]
        watcher = threading.Thread(target=self.watch)
        for thread in (*threads, watcher):
            thread.start()
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and self.server.process.poll() is None:
            harness.say(
                f"  {seconds - left:.0f} of {seconds:.0f} s: {sum(self.counts.values())} done, {self.counts['WRONG']} wrong"
            )
            time.sleep(min(left, 10))
        self.ended.set()
        for thread in (*threads, watcher):
            thread.join(300)
        if self.server.process.poll() is not None:
            self.found(f"the server ended with {self.server.process.returncode}: {self.server.tail(5)}")
            return
        limit = time.monotonic() + 60
        while (left := self.server.metrics().get(("carillon_open_requests", ()), 0)) and time.monotonic() < limit:
            time.sleep(0.2)
        if left:
            self.found(f"{left:.0f} requests are open though all clients have gone")


def victim(kind, http_port, grpc_port):
    """A client that waits to be killed."""
    if kind in ("body", "answer"):
        with socket.create_connection(("127.0.0.1", http_port)) as connection:
            head = json.dumps(
                {
                    "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, WIDTH], "data": [1] * WIDTH}],
                    "parameters": {"timeout": 10_000_000},
                }
            )
            request = (
                f"POST /v2/models/dense/infer HTTP/1.1\r\nHost: t\r\nContent-Length: {len(head)}\r\n\r\n{head}".encode()
            )
            while kind == "answer":
                connection.sendall(request)
            connection.sendall(request[:-20])
            time.sleep(60)
    import tritonclient.grpc as client_module

    with client_module.InferenceServerClient(f"127.0.0.1:{grpc_port}") as client:
        tensor = client_module.InferInput("x", [1, WIDTH], "FP32").set_data_from_numpy(np.ones([1, WIDTH], np.float32))
        if kind == "stream":
            client.start_stream(lambda result, error: None)
        while True:
            if kind == "stream":
                client.async_stream_infer("dense", [tensor], timeout=10_000_000)
            else:
                client.infer("dense", [tensor], timeout=10_000_000)


def victim_loop(ports):
    """A kind a line comes in, the process id of such a client goes out."""
    http_port, grpc_port = map(int, ports.split(":"))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            signal.alarm(30)  # should nobody kill it
            with contextlib.suppress(BaseException):
                victim(line.strip(), http_port, grpc_port)
            os._exit(0)
        print(pid, flush=True)


# -- what must hold of the server itself


def steadiness(samples):
    """What the second half says: growth over it in MiB, its bound, threads and descriptors (second quarter, last quarter)."""
    half = samples[len(samples) // 2 :]
    windows = np.array_split(np.arange(len(half)), 10)
    lows = [min(half[i]["pss_mib"] for i in window) for window in windows if len(window)]
    growth = float(np.polyfit(range(len(lows)), lows, 1)[0] * (len(lows) - 1))
    quarter = len(samples) // 4
    most = lambda key, part: max(sample[key] for sample in part)
    return {
        "pss_lows_mib": [round(low, 1) for low in lows],
        "growth_mib": round(growth, 2),
        "growth_bound_mib": round(max(8, 0.03 * lows[0]), 2),
        **{
            key: [most(key, samples[quarter : 2 * quarter]), most(key, samples[-quarter:])]
            for key in ("threads", "descriptors")
        },
    }


def plot(samples, file):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (above, below) = plt.subplots(2, 1, figsize=(8, 5), sharex=True)
    minutes = [sample["s"] / 60 for sample in samples]
    for key, label in (("pss_mib", "PSS"), ("rss_mib", "RSS")):
        above.plot(minutes, [sample[key] for sample in samples], label=label, linewidth=0.8)
    above.set(ylabel="MiB", ylim=(0, None))
    above.legend()
    for key in ("threads", "descriptors"):
        below.plot(minutes, [sample[key] for sample in samples], label=key, linewidth=0.8)
    below.set(xlabel="minutes", ylim=(0, None))
    below.legend()
    figure.tight_layout()
    pathlib.Path(file).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=110)


def soak(minutes, seed=1, options=()):
    with tempfile.TemporaryDirectory() as folder:
        put_models(pathlib.Path(folder))
        with harness.Server(
            folder,
            "--model-control-mode",
            "explicit",
            "--load-model",
            "*",
            "--page-cache",
            "256 MiB",
            "--body-limit",
            "32 MiB",
            "--inflight-limit",
            "256 MiB",
            *options,
        ) as server:
            run = Soak(server, pathlib.Path(folder), seed)
            run.run(60 * minutes)
    result = {
        "minutes": minutes,
        "seed": seed,
        "counts": dict(sorted(run.counts.items())),
        "wrong": run.wrong,
        "samples": run.samples,
    }
    if len(run.samples) >= 40:
        result["steadiness"] = steady = steadiness(run.samples)
        if minutes >= 5:
            if steady["growth_mib"] >= steady["growth_bound_mib"]:
                run.wrong.append(
                    f"PSS grew by {steady['growth_mib']} MiB over the second half; {steady['growth_bound_mib']} are allowed"
                )
            for key in ("threads", "descriptors"):
                if steady[key][1] > steady[key][0] + 8:
                    run.wrong.append(
                        f"{key}: {steady[key][0]} at most in the second quarter, {steady[key][1]} in the last"
                    )
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--option", action="append", default=[], help="for the server, such as --option=--scheduler=symphony"
    )
    parser.add_argument("--json", help="file for all of it; the result lies in build/bench, too")
    parser.add_argument("--plot", help="file for a picture of memory, threads and descriptors")
    parser.add_argument("--victims", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.victims:
        victim_loop(args.victims)
        return 0
    result = soak(args.minutes, args.seed, args.option)
    harness.table(sorted(result["counts"].items()), ["what", "how often"])
    if "steadiness" in result:
        print(json.dumps(result["steadiness"]))
    for text in result["wrong"]:
        print(f"WRONG {text}")
    harness.save("soak", result)
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps({"machine": harness.machine(), **result}) + "\n")
    if args.plot:
        plot(result["samples"], args.plot)
    return 1 if result["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
