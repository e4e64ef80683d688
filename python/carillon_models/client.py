"""One KServe v2 request over HTTP with binary tensors, and no more: the matrix needs no client library."""

from __future__ import annotations

import http.client
import json

import numpy as np

TYPES = {"BOOL": np.bool_, "UINT8": np.uint8, "UINT16": np.uint16, "UINT32": np.uint32, "UINT64": np.uint64,
         "INT8": np.int8, "INT16": np.int16, "INT32": np.int32, "INT64": np.int64, "FP16": np.float16,
         "FP32": np.float32, "FP64": np.float64}
NAMES = {np.dtype(kind): name for name, kind in TYPES.items()}


class Refused(Exception):
    """The server's answer was an error: its text."""


class Client:
    def __init__(self, address: str, timeout: float):
        self.connection = http.client.HTTPConnection(address, timeout=timeout)

    def get(self, path: str) -> dict:
        self.connection.request("GET", path)
        return self._answer()[0]

    def infer(self, model: str, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        described, blobs = [], []
        for name, array in inputs.items():
            blobs.append(np.ascontiguousarray(array).tobytes())
            described.append({"name": name, "shape": list(array.shape), "datatype": NAMES[array.dtype],
                              "parameters": {"binary_data_size": len(blobs[-1])}})
        head = json.dumps({"inputs": described, "parameters": {"binary_data_output": True}}).encode()
        self.connection.request("POST", f"/v2/models/{model}/infer", body=head + b"".join(blobs),
                                headers={"Inference-Header-Content-Length": str(len(head))})
        said, rest = self._answer()
        outputs = {}
        for output in said["outputs"]:
            size = output["parameters"]["binary_data_size"]
            outputs[output["name"]] = np.frombuffer(rest[:size], TYPES[output["datatype"]]).reshape(output["shape"])
            rest = rest[size:]
        return outputs

    def _answer(self) -> tuple[dict, bytes]:
        response = self.connection.getresponse()
        body = response.read()
        if response.status != 200:
            try:
                text = json.loads(body)["error"]
            except (ValueError, KeyError, TypeError):
                text = body.decode(errors="replace") or response.reason
            raise Refused(f"{response.status}: {text}")
        length = int(response.headers.get("Inference-Header-Content-Length", len(body)))
        return json.loads(body[:length]), body[length:]
