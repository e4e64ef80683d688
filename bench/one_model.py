#!/usr/bin/env python3
"""What the server takes for one small model: seconds from the start of its process to its first answer, and memory.

    python bench/one_model.py [--model FILE] [--rounds 3] [--memory 256MiB --memory 1GiB --memory auto]

The model (default: the sample tiny_mlp) has inputs of numbers with fixed extents, but for a batch. Told are the medians
over rounds (smallest to largest) of the time to the first answer over HTTP, and of VmRSS half a second later.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

import harness


def asked(url, body=None):
    with urllib.request.urlopen(urllib.request.Request(url, body), timeout=5) as answer:
        return json.load(answer)


def once_answered(ask, process, limit=30):
    """What ask() gives, once there is somebody who answers it."""
    end = time.monotonic() + limit
    while True:
        try:
            return ask()
        except (urllib.error.URLError, OSError):
            if process.poll() is not None or time.monotonic() > end:
                raise SystemExit("the server ended, or does not answer") from None
            time.sleep(0.002)


def start(model, memory, store):
    """Seconds to the first answer, and bytes of memory after it."""
    address = f"127.0.0.1:{harness.free_port()}"
    began = time.monotonic()
    process = subprocess.Popen([harness.CARILLON, "serve", "--model", model, "--http", address, "--grpc", "", "--metrics", "",
                                "--memory", memory, "--store", store, "--log-level", "warn"])
    try:
        url = f"http://{address}/v2/models/model"
        spec = once_answered(lambda: asked(url), process)
        tensors = []
        for each in spec["inputs"]:
            shape = [1 if extent == -1 else extent for extent in each["shape"]]
            size = 1
            for extent in shape:
                size *= extent
            tensors.append({"name": each["name"], "shape": shape, "datatype": each["datatype"], "data": [0] * size})
        once_answered(lambda: asked(f"{url}/infer", json.dumps({"inputs": tensors}).encode()), process)
        seconds = time.monotonic() - began
        time.sleep(0.5)
        status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
        return seconds, 1024 * int(status.split("VmRSS:")[1].split()[0])
    finally:
        process.terminate()
        process.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--memory", action="append")
    arguments = parser.parse_args()
    model = arguments.model or harness.samples(harness.ROOT / "build/bench/models", "tiny_mlp") / "tiny_mlp/1/model.onnx"
    rows = []
    with tempfile.TemporaryDirectory() as store:
        for memory in arguments.memory or ["256MiB", "1GiB", "auto"]:
            found = [start(model, memory, store) for _ in range(arguments.rounds)]
            seconds, sizes = [each[0] for each in found], [each[1] / 2**20 for each in found]
            rows.append([memory, *(f"{statistics.median(v):{f}} ({min(v):{f}} to {max(v):{f}})"
                                   for v, f in ((seconds, ".3f"), (sizes, ".0f")))])
    harness.table(rows, ["--memory", "first answer after s", "VmRSS MiB"])


if __name__ == "__main__":
    main()
