#!/usr/bin/env python3
"""Carillon beside Triton's server and MLServer: who answers in time?

The same ONNX file, two kernel threads each, the same client (`carillon load` over gRPC, open-loop Poisson arrivals, each
request with its deadline as `timeout`), on the same machine, in turns. Rivals run in environments of their own:

    /usr/bin/python3 -m venv DIR/pytriton && DIR/pytriton/bin/pip install nvidia-pytriton onnxruntime
    /usr/bin/python3 -m venv DIR/mlserver && DIR/mlserver/bin/pip install mlserver onnxruntime

(Triton's own Python is 3.11 of the distribution: another 3.11 in its environment may not fit.)

PyTriton is Triton's own server (HTTP, gRPC, queues and dynamic batching in C++) with models in Python; here both rivals'
models call onnxruntime (bench/rivals). Triton's queue heeds each request's timeout, as a policy that it has to be given, and
has the best queue delay of a sweep. MLServer batches adaptively, with the same most rows.

Fixed before any result was seen:
- capacity: rows a second of onnxruntime alone, at the best of batches 1, 2, 4, 8, measured at the start;
- deadline: ten times onnxruntime's time for one row, but 25 ms at least; loads of 0.5, 1 and 2 times capacity, of which the
  tiny model's is taken as --tiny-capacity requests a second, since there a server's own work is the limit;
- the sweep: 0, 1, 5 and 20 ms of queue delay at the capacity's load; the best by goodput, before the rounds;
- goodput: answers within the deadline, a second, by the client's clock from the planned send time;
- every round runs every server at every load, in an order that turns; the tables have medians over rounds, and the median of
  each round's ratio to Carillon;
- gone clients (of models that take 2 ms a row or more): with the device kept busy for about 0.4 s, 60 calls
  over gRPC are cancelled, then 60 connections over HTTP reset, 100 ms after they were sent; the share of these requests that
  ran all the same, by what each server's model has counted.

    python bench/side_by_side.py --rivals DIR [--models resnet50,tiny_mlp] [--rounds 3] [--seconds 10]
"""

import argparse
import contextlib
import json
import os
import pathlib
import select
import shutil
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time

import harness

MOST = 8  # rows of a batch
FACTORS = [0.5, 1.0, 2.0]
DELAYS_US = [0, 1000, 5000, 20000]
GONE = 60
RIVALS = harness.ROOT / "bench/rivals"


def measure(file, threads):
    """onnxruntime alone: milliseconds for a row, and the most rows a second; the inputs of one row."""
    import numpy as np
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    random = np.random.default_rng(1)

    def inputs(batch):
        return {
            spec.name: random.standard_normal([batch, *spec.shape[1:]]).astype(np.float32)
            for spec in session.get_inputs()
        }

    times = {}
    for batch in (1, 2, 4, 8):
        arrays, taken = inputs(batch), []
        end = time.monotonic() + 2
        while time.monotonic() < end or len(taken) < 3:
            begin = time.perf_counter()
            session.run(None, arrays)
            taken.append(time.perf_counter() - begin)
        times[batch] = statistics.median(taken)
    return 1000 * times[1], max(batch / taken for batch, taken in times.items()), inputs(1)


class Rival:
    """A server in another environment, as a child; stopped with all that it started."""

    def __init__(self, command, folder, counter, environment=None):
        self.counter = counter
        self.log = open(folder / "log", "ab")
        harness.say("$ " + " ".join(map(str, command)))
        self.process = subprocess.Popen(
            [str(c) for c in command],
            stdout=self.log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(RIVALS), **(environment or {})},
        )

    def wait(self, http, name, seconds=300):
        import urllib.request

        def ready():
            url = f"http://127.0.0.1:{http}/v2/models/{name}/ready"
            return urllib.request.urlopen(url, timeout=5).status == 200

        return self.wait_until(ready, seconds)

    def wait_for_port(self, port, seconds=300):
        """Until somebody listens there, which whoever serves one model does once it is loaded."""

        def ready():
            socket.create_connection(("127.0.0.1", port), timeout=5).close()
            return True

        return self.wait_until(ready, seconds)

    def wait_until(self, ready, seconds):
        """`ready` may raise OSError."""
        limit = time.monotonic() + seconds
        while True:
            with contextlib.suppress(OSError):
                if ready():
                    return self
            if self.process.poll() is not None or time.monotonic() > limit:
                self.stop()
                raise SystemExit(
                    f"the rival is not ready:\n{pathlib.Path(self.log.name).read_text(errors='replace')[-3000:]}"
                )
            time.sleep(0.3)

    def rows(self):
        sys.path.insert(0, str(RIVALS))
        return struct.unpack("<q", pathlib.Path(self.counter).read_bytes())[0]

    def stop(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(15)
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.log.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


def carillon(args, name, folder, **_):
    with_config = folder / "carillon"
    if not with_config.exists():
        (with_config / name / "1").mkdir(parents=True)
        shutil.copy(args.files[name], with_config / name / "1" / "model.onnx")
        (with_config / name / "config.pbtxt").write_text(f"max_batch_size: {MOST}\n")
    caches = ["--page-cache", "512 MiB", "--io-cache", "64 MiB", "--workspace", "128 MiB"]
    server = harness.Server(with_config, "--threads", args.threads, *caches)
    server.rows = lambda: server.get(f"/v2/models/{name}/stats")["model_stats"][0]["inference_count"]
    return server


def triton(args, name, folder, delay_us=0, **_):
    place = pathlib.Path(args.rivals) / "pytriton"
    http, grpc, metrics = (harness.free_port() for _ in range(3))
    counter = folder / "triton.count"
    rival = Rival(
        [
            place / "bin/python",
            RIVALS / "triton_server.py",
            args.files[name],
            name,
            "--http",
            http,
            "--grpc",
            grpc,
            "--metrics",
            metrics,
            "--max-batch",
            MOST,
            "--queue-delay-us",
            delay_us,
            "--threads",
            args.threads,
            "--counter",
            counter,
        ],
        folder,
        counter,
    )
    rival.http, rival.grpc_url = http, f"grpc://127.0.0.1:{grpc}"
    return rival.wait(http, name)


def mlserver(args, name, folder, most=MOST, wait_s=0.005, **_):
    place = pathlib.Path(args.rivals) / "mlserver"
    http, grpc, metrics = (harness.free_port() for _ in range(3))
    home = folder / "mlserver"
    home.mkdir(exist_ok=True)
    counter = folder / "mlserver.count"
    (home / "settings.json").write_text(
        json.dumps(
            {
                "http_port": http,
                "grpc_port": grpc,
                "metrics_port": metrics,
                "host": "127.0.0.1",
                "parallel_workers": 0,
                "debug": False,
            }
        )
    )
    (home / "model-settings.json").write_text(
        json.dumps(
            {
                "name": name,
                "implementation": "mlserver_runtime.OnnxModel",
                "max_batch_size": most,
                "max_batch_time": wait_s,
                "parameters": {
                    "version": "1",
                    "extra": {"file": str(args.files[name]), "threads": args.threads, "counter": str(counter)},
                },
            }
        )
    )
    rival = Rival([place / "bin/mlserver", "start", home], folder, counter)
    rival.http, rival.grpc_url = http, f"grpc://127.0.0.1:{grpc}"
    return rival.wait(http, name)


SERVERS = {"Carillon": carillon, "Triton (PyTriton)": triton, "MLServer": mlserver}


def load(server, name, rate, deadline_ms, seconds, seed):
    harness.load(
        server.grpc_url, [f"{name},rate={max(2, rate / 4):.3f},deadline={10 * deadline_ms:.3f}"], "--duration", 1.5
    )
    return harness.load(
        server.grpc_url,
        [f"{name},rate={rate:.3f},deadline={deadline_ms:.3f}"],
        "--duration",
        seconds + 1,
        "--warmup",
        1,
        "--seed",
        seed,
        "--drain",
        20,
    )


def http_request(name, arrays):
    described = [
        {
            "name": tensor,
            "datatype": "FP32",
            "shape": list(array.shape),
            "parameters": {"binary_data_size": array.nbytes},
        }
        for tensor, array in arrays.items()
    ]
    head = json.dumps({"inputs": described, "parameters": {"binary_data_output": True, "timeout": 60_000_000}}).encode()
    body = head + b"".join(array.tobytes() for array in arrays.values())
    return (
        f"POST /v2/models/{name}/infer HTTP/1.1\r\nHost: t\r\nInference-Header-Content-Length: {len(head)}\r\nContent-Type: application/octet-stream\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    ).encode() + body


def gone_clients(server, name, arrays, row_ms, protocol):
    """Of requests whose clients go behind a queue of others, the share that ran: gRPC calls that are cancelled, HTTP
    connections that are reset."""
    import grpc
    from tritonclient.grpc import service_pb2

    if protocol == "http":  # MLServer's HTTP does not read binary tensors: it has no such requests to run
        with socket.create_connection(("127.0.0.1", server.http)) as connection:
            connection.sendall(http_request(name, arrays))
            connection.settimeout(120)
            if not connection.recv(64).startswith(b"HTTP/1.1 200"):
                return None

    message = service_pb2.ModelInferRequest(model_name=name)
    message.parameters["timeout"].int64_param = 60_000_000
    for tensor, array in arrays.items():
        message.inputs.add(name=tensor, datatype="FP32", shape=array.shape)
        message.raw_input_contents.append(array.tobytes())
    before = server.rows()
    with grpc.insecure_channel(
        server.grpc_url.removeprefix("grpc://"), options=[("grpc.use_local_subchannel_pool", 1)]
    ) as channel:
        grpc.channel_ready_future(channel).result(60)
        send = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        data = message.SerializeToString()
        waiting = [
            send.future(data, timeout=120) for _ in range(min(64, max(MOST, int(400 / row_ms))))
        ]  # what keeps the device busy
        if protocol == "grpc":
            gone = [send.future(data, timeout=120) for _ in range(GONE)]
            time.sleep(0.1)
            early = sum(call.done() for call in gone)
            for call in gone:
                call.cancel()
        else:
            gone = [socket.create_connection(("127.0.0.1", server.http)) for _ in range(GONE)]
            for connection in gone:
                connection.sendall(http_request(name, arrays))
            time.sleep(0.1)
            early = len(select.select(gone, [], [], 0)[0])
            for connection in gone:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                connection.close()
        answered = sum(call.exception() is None for call in waiting)
    last, end = -1, time.monotonic() + 60
    while (now := server.rows()) != last and time.monotonic() < end:  # until nothing runs any more
        last = now
        time.sleep(max(1.0, 20 * row_ms / 1000))
    return {
        "protocol": protocol,
        "waited": len(waiting),
        "answered": answered,
        "answered_before": early,
        "ran": now - before,
        "share": max(0, now - before - answered - early) / max(1, GONE - early),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rivals", required=True, help="folder with the environments pytriton and mlserver")
    parser.add_argument("--models", default="resnet50,tiny_mlp")
    parser.add_argument("--repository", default=str(harness.ROOT / "build/samples"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tiny-capacity", type=float, default=400)
    parser.add_argument("--servers", default=",".join(SERVERS))
    args = parser.parse_args()
    args.rivals = pathlib.Path(args.rivals).resolve()
    names = args.models.split(",")
    repository = harness.samples(args.repository, *names).resolve()
    args.files = {name: repository / name / "1" / "model.onnx" for name in names}
    servers = args.servers.split(",")
    result = {"models": {}, "runs": []}
    for name in names:
        row_ms, capacity, arrays = measure(args.files[name], args.threads)
        if name.startswith("tiny"):
            capacity = args.tiny_capacity
        deadline = max(25.0, 10 * row_ms)
        harness.say(f"{name}: {row_ms:.2f} ms a row, capacity {capacity:.1f}/s, deadline {deadline:.1f} ms")
        with tempfile.TemporaryDirectory(dir=harness.ROOT / "build") as place:
            folder = pathlib.Path(place)
            delay = 0
            if "Triton (PyTriton)" in servers:
                sweep = {}
                for delay_us in DELAYS_US:
                    with triton(args, name, folder, delay_us) as server:
                        sweep[delay_us] = load(server, name, capacity, deadline, args.seconds / 2, 5)["goodput_rps"]
                delay = max(sweep, key=sweep.get)
                harness.say(f"queue delay: {sweep}: {delay} us")
                result["models"][name] = {
                    "row_ms": row_ms,
                    "capacity_rps": capacity,
                    "deadline_ms": deadline,
                    "queue_delay_sweep": sweep,
                    "queue_delay_us": delay,
                }
            else:
                result["models"][name] = {"row_ms": row_ms, "capacity_rps": capacity, "deadline_ms": deadline}
            for turn in range(args.rounds):
                order = servers[turn % len(servers) :] + servers[: turn % len(servers)]
                for which in order:
                    with SERVERS[which](args, name, folder, delay_us=delay) as server:
                        for factor in FACTORS:
                            said = load(server, name, factor * capacity, deadline, args.seconds, 11 + turn)
                            result["runs"].append(
                                {"model": name, "server": which, "round": turn, "factor": factor, "load": said}
                            )
                        if row_ms < 2:
                            continue  # nothing waits there
                        for protocol in ("grpc", "http"):
                            gone = gone_clients(server, name, arrays, row_ms, protocol)
                            if gone is not None:
                                result["runs"].append({"model": name, "server": which, "round": turn, "gone": gone})
                            harness.say(f"  {which}: gone clients {gone}")
                harness.save("side_by_side", result)
                harness.say(f"{name}: round {turn + 1} of {args.rounds} done")
    tell(result, servers)


def tell(result, servers):
    for name, about in result["models"].items():
        print(f"\n{name}: {about}\n")
        rows = []
        for factor in FACTORS:
            of = lambda which, key: {
                r["round"]: r["load"][key]
                for r in result["runs"]
                if r["model"] == name and r["server"] == which and r.get("factor") == factor
            }
            for which in servers:
                goodput, ours = of(which, "goodput_rps"), of(servers[0], "goodput_rps")
                ratios = [goodput[turn] / max(ours[turn], 1e-9) for turn in goodput]
                median = lambda key: statistics.median(of(which, key).values())
                on_time = statistics.median(
                    r["load"]["on_time"] / max(1, r["load"]["sent"])
                    for r in result["runs"]
                    if r["model"] == name and r["server"] == which and r.get("factor") == factor
                )
                failed = statistics.median(
                    r["load"]["failed"] + r["load"]["unanswered"]
                    for r in result["runs"]
                    if r["model"] == name and r["server"] == which and r.get("factor") == factor
                )
                rows.append(
                    [
                        f"{factor:g}x",
                        which,
                        f"{statistics.median(goodput.values()):.1f}",
                        f"{100 * on_time:.1f}%",
                        f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
                        f"{median('p50_ms'):.1f}",
                        f"{median('p99_ms'):.1f}",
                        f"{median('late'):g}",
                        f"{median('refused'):g}",
                        f"{failed:g}",
                    ]
                )
        harness.table(
            rows,
            [
                "load",
                "server",
                "goodput/s",
                "on time",
                "to " + servers[0],
                "p50 ms",
                "p99 ms",
                "late",
                "refused",
                "failed",
            ],
        )
        share = lambda which, protocol: ", ".join(
            f"{100 * r['gone']['share']:.0f}%"
            + (f" ({r['gone']['answered_before']} answered before)" if r["gone"]["answered_before"] else "")
            for r in result["runs"]
            if r["model"] == name and r["server"] == which and r.get("gone", {}).get("protocol") == protocol
        )
        shares = [[which, share(which, "grpc"), share(which, "http")] for which in servers]
        if not any("gone" in r and r["model"] == name for r in result["runs"]):
            continue
        print()
        harness.table(
            shares, ["server", "cancelled gRPC calls that ran, by round", "requests of reset HTTP connections that ran"]
        )


if __name__ == "__main__":
    main()
