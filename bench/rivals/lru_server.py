"""What people write first: an HTTP server of the KServe protocol with a cache of onnxruntime's sessions.

    lru_server.py MODELS --http PORT --memory MIB [--workers N]

Sessions are made when a model is asked for. The one that was not used for the longest time goes while the process has
more memory than it may. A request whose deadline (the parameter `timeout`) has passed before it runs is refused.
"""
import argparse
import asyncio
import collections
import concurrent.futures
import ctypes
import json
import pathlib
import threading
import time

import numpy as np
import onnxruntime
from aiohttp import web

TYPES = {"tensor(float)": ("FP32", np.float32), "tensor(int64)": ("INT64", np.int64)}
libc = ctypes.CDLL("libc.so.6")


def resident():
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * 4096


class Sessions:
    def __init__(self, folder, memory):
        self.folder, self.memory = pathlib.Path(folder), memory
        self.sessions, self.lock = collections.OrderedDict(), threading.Lock()
        self.options = onnxruntime.SessionOptions()
        self.options.intra_op_num_threads = 1
        self.options.enable_cpu_mem_arena = False

    def get(self, name):
        with self.lock:
            if name in self.sessions:
                self.sessions.move_to_end(name)
                return self.sessions[name]
        made = onnxruntime.InferenceSession(str(self.folder / name / "1" / "model.onnx"), self.options,
                                            providers=["CPUExecutionProvider"])
        with self.lock:
            self.sessions[name] = made
            while resident() > self.memory and len(self.sessions) > 1:
                self.sessions.popitem(last=False)
                libc.malloc_trim(0)
        return made


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("models")
    parser.add_argument("--http", type=int, required=True)
    parser.add_argument("--memory", type=int, required=True, help="MiB")
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    sessions = Sessions(args.models, args.memory << 20)
    pool = concurrent.futures.ThreadPoolExecutor(args.workers)

    def spec(values):
        return [{"name": v.name, "datatype": TYPES[v.type][0],
                 "shape": [d if isinstance(d, int) else -1 for d in v.shape]} for v in values]

    async def metadata(request):
        name = request.match_info["model"]
        session = await asyncio.get_running_loop().run_in_executor(pool, sessions.get, name)
        return web.json_response({"name": name, "versions": ["1"], "platform": "onnxruntime_onnx",
                                  "inputs": spec(session.get_inputs()), "outputs": spec(session.get_outputs())})

    def run(name, feeds, due):
        if time.monotonic() > due:
            return None
        session = sessions.get(name)
        return session.run(None, feeds), [output.name for output in session.get_outputs()]

    async def infer(request):
        arrived = time.monotonic()
        body = await request.read()
        length = int(request.headers.get("Inference-Header-Content-Length", len(body)))
        header = json.loads(body[:length])
        timeout = header.get("parameters", {}).get("timeout", 0)
        feeds, at = {}, length
        for tensor in header["inputs"]:
            kind = np.float32 if tensor["datatype"] == "FP32" else np.int64
            size = tensor.get("parameters", {}).get("binary_data_size")
            values = np.frombuffer(body, kind, size // kind().itemsize, at) if size is not None else np.array(tensor["data"], kind)
            at += size or 0
            feeds[tensor["name"]] = values.reshape(tensor["shape"])
        due = arrived + timeout / 1e6 if timeout else float("inf")
        done = await asyncio.get_running_loop().run_in_executor(pool, run, request.match_info["model"], feeds, due)
        if done is None:
            return web.json_response({"error": "the deadline has passed"}, status=504)
        arrays, names = done
        told = json.dumps({"model_name": request.match_info["model"], "model_version": "1", "outputs": [
            {"name": name, "datatype": "FP32", "shape": list(array.shape), "parameters": {"binary_data_size": array.nbytes}}
            for name, array in zip(names, arrays)]}).encode()
        return web.Response(body=told + b"".join(np.ascontiguousarray(array).tobytes() for array in arrays),
                            headers={"Inference-Header-Content-Length": str(len(told))},
                            content_type="application/octet-stream")

    async def ready(_):
        return web.Response()

    app = web.Application(client_max_size=64 << 20)
    app.add_routes([web.get("/v2/health/ready", ready), web.get("/v2/health/live", ready),
                    web.get("/v2/models/{model}", metadata), web.get("/v2/models/{model}/ready", ready),
                    web.post("/v2/models/{model}/infer", infer)])
    web.run_app(app, host="127.0.0.1", port=args.http, print=None)


main()
