#!/usr/bin/env python3
"""A stand-in for `carillon serve` that answers with onnxruntime, to test clients against.

FAKE_FAULT in the environment makes it misbehave: "wrong" answers are off by
one percent, "refuse" refuses every request that has less than twenty seconds,
"die" ends it at start with a message, "stubborn" ends with status 3 on
Ctrl-C.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import http.server
import json
import os
import signal
import sys
import threading
from pathlib import Path

import grpc
import numpy as np
import onnxruntime
from tritonclient.grpc import service_pb2, service_pb2_grpc

FAULT = os.environ.get("FAKE_FAULT", "")
TYPES = {"FP32": np.float32, "INT64": np.int64}
NAMES = {np.dtype(np.float32): "FP32", np.dtype(np.int64): "INT64"}


class Refused(Exception):
    pass


class Models:
    def __init__(self, root: Path):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.sessions = {
            file.parent.parent.name: onnxruntime.InferenceSession(
                file, options, providers=["CPUExecutionProvider"])
            for file in root.glob("*/1/model.onnx")}

    def infer(self, name: str, feeds: dict, timeout: int) -> list[tuple[str, np.ndarray]]:
        if FAULT == "refuse" and timeout < 20_000_000:
            raise Refused
        session = self.sessions[name]
        answers = session.run(None, feeds)
        if FAULT == "wrong":
            answers = [answer * np.float32(1.01) for answer in answers]
        return [(output.name, answer) for output, answer in zip(session.get_outputs(), answers)]


class Http(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    models: Models

    def reply(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for key, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        self.reply(200, b"", {})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        length = int(self.headers.get("Inference-Header-Content-Length", len(body)))
        header, at = json.loads(body[:length]), length
        feeds = {}
        for item in header["inputs"]:
            kind = TYPES[item["datatype"]]
            if "data" in item:
                values = np.array(item["data"], kind)
            else:
                size = item["parameters"]["binary_data_size"]
                values = np.frombuffer(body[at:at + size], kind)
                at += size
            feeds[item["name"]] = values.reshape(item["shape"])
        parameters = header.get("parameters", {})
        try:
            answers = self.models.infer(self.path.split("/")[3], feeds, parameters.get("timeout", 1 << 40))
        except Refused:
            self.reply(504, b'{"error":"cannot be on time"}', {"Content-Type": "application/json"})
            return
        binary = parameters.get("binary_data_output", False)
        outputs = [{"name": name, "datatype": NAMES[array.dtype], "shape": list(array.shape),
                    **({"parameters": {"binary_data_size": array.nbytes}} if binary else {"data": array.ravel().tolist()})}
                   for name, array in answers]
        text = json.dumps({"model_name": "m", "model_version": "1", "outputs": outputs}).encode()
        blobs = b"".join(array.tobytes() for _, array in answers) if binary else b""
        self.reply(200, text + blobs, {"Inference-Header-Content-Length": str(len(text))} if binary else {})

    def log_message(self, *_) -> None:
        pass


class Grpc(service_pb2_grpc.GRPCInferenceServiceServicer):
    def __init__(self, models: Models):
        self.models = models

    def ModelInfer(self, request, context):
        feeds = {item.name: np.frombuffer(raw, TYPES[item.datatype]).reshape(item.shape)
                 for item, raw in zip(request.inputs, request.raw_input_contents)}
        try:
            answers = self.models.infer(request.model_name, feeds, request.parameters["timeout"].int64_param)
        except Refused:
            context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "cannot be on time")
        response = service_pb2.ModelInferResponse(model_name=request.model_name, model_version="1")
        for name, array in answers:
            response.outputs.add(name=name, datatype=NAMES[array.dtype], shape=array.shape)
            response.raw_output_contents.append(array.tobytes())
        return response


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=["serve"])
    for name in ("--models", "--http", "--grpc", "--metrics"):
        parser.add_argument(name, required=True)
    parser.add_argument("--admin-port")
    options = parser.parse_args()
    if FAULT == "die":
        print("the fake died as it was told", file=sys.stderr)
        return 1
    Http.models = Models(Path(options.models))
    host, port = options.http.split(":")
    over_http = http.server.ThreadingHTTPServer((host, int(port)), Http)
    over_http.daemon_threads = True
    over_grpc = grpc.server(concurrent.futures.ThreadPoolExecutor(4))
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(Grpc(Http.models), over_grpc)
    over_grpc.add_insecure_port(options.grpc)
    over_grpc.start()
    threading.Thread(target=over_http.serve_forever, daemon=True).start()
    signal.sigwait({signal.SIGINT})
    over_http.shutdown()
    over_grpc.stop(None).wait()
    return 3 if FAULT == "stubborn" else 0


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    sys.exit(main())
