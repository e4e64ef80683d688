"""A server of the runner's own, which loads and unloads models by order, and requests to it in binary tensors."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import onnx

from carillon_quickstart.ports import free_port

from .judges import end_with_parent
from .sketch import BF16, BOOL, F16, F32, F64, I8, I16, I32, I64, TEXT, U8, U16, U32, U64

KINDS = {F32: "FP32", F64: "FP64", F16: "FP16", BF16: "BF16", I8: "INT8", I16: "INT16", I32: "INT32", I64: "INT64",
         U8: "UINT8", U16: "UINT16", U32: "UINT32", U64: "UINT64", BOOL: "BOOL", TEXT: "BYTES"}
DTYPES = {name: dtype for dtype, name in KINDS.items()}
ANSWER_S = 60.0  # no request takes so long
MOST_LOADS = 8000  # a server refuses to load more than 8,192 models in its life


class Refused(Exception):
    """The server answered with an error."""

    def __init__(self, status: int, text: str):
        super().__init__(f"{status}: {text}")
        self.status, self.text = status, text


class Gone(Exception):
    """The server ended, or did not answer in time."""


def encode(array: np.ndarray) -> bytes:
    if array.dtype != TEXT:
        return np.ascontiguousarray(array).tobytes()
    texts = [str(text).encode() for text in array.ravel()]
    return b"".join(len(text).to_bytes(4, "little") + text for text in texts)


def decode(data: bytes, kind: str, shape: list[int]) -> np.ndarray:
    dtype = DTYPES[kind]
    if dtype != TEXT:
        return np.frombuffer(data, dtype).reshape(shape)
    texts, at = [], 0
    while at < len(data):
        length = int.from_bytes(data[at:at + 4], "little")
        texts.append(data[at + 4:at + 4 + length].decode(errors="replace"))
        at += 4 + length
    return np.array(texts, dtype=object).reshape(shape)


def request_of(inputs: dict[str, np.ndarray]) -> tuple[bytes, int]:
    """The body of a request, and how long its JSON is."""
    blobs = {name: encode(array) for name, array in inputs.items()}
    described = [{"name": name, "shape": list(array.shape), "datatype": KINDS[array.dtype],
                  "parameters": {"binary_data_size": len(blobs[name])}} for name, array in inputs.items()]
    head = json.dumps({"inputs": described, "parameters": {"binary_data_output": True}}).encode()
    return head + b"".join(blobs.values()), len(head)


class Connection:
    """One kept-alive connection. `send` and `receive` apart let several requests be under way at a time."""

    def __init__(self, address: str):
        self.connection = http.client.HTTPConnection(address, timeout=ANSWER_S)

    def close(self) -> None:
        self.connection.close()

    def send(self, model: str, inputs: dict[str, np.ndarray]) -> None:
        body, head = request_of(inputs)
        try:
            self.connection.request("POST", f"/v2/models/{model}/infer", body=body,
                                    headers={"Inference-Header-Content-Length": str(head)})
        except OSError as error:
            raise Gone(f"no request could be sent: {error!r}") from None

    def receive(self) -> dict[str, np.ndarray]:
        said, rest = self._answer()
        outputs = {}
        for output in said["outputs"]:
            size = output["parameters"]["binary_data_size"]
            outputs[output["name"]] = decode(rest[:size], output["datatype"], output["shape"])
            rest = rest[size:]
        return outputs

    def infer(self, model: str, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        self.send(model, inputs)
        return self.receive()

    def ask(self, method: str, path: str, body: bytes = b"") -> dict:
        try:
            self.connection.request(method, path, body=body)
        except OSError as error:
            raise Gone(f"no request could be sent: {error!r}") from None
        return self._answer()[0]

    def _answer(self) -> tuple[dict, bytes]:
        try:
            response = self.connection.getresponse()
            body = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise Gone(f"no answer came: {error!r}") from None
        if response.status != 200:
            try:
                text = json.loads(body)["error"]
            except (ValueError, KeyError, TypeError):
                text = f"(no error message) {body[:200]!r}"
            raise Refused(response.status, text)
        length = int(response.headers.get("Inference-Header-Content-Length", len(body)))
        return (json.loads(body[:length]) if length else {}), body[length:]


class Server:
    """`carillon serve` in explicit mode over a folder of its own, started when it is first needed, again after a crash,
    and again after MOST_LOADS. Beside what cases bring it has a model of its own, `busy`."""

    def __init__(self, program: Path, folder: Path, options: list[str]):
        self.program, self.folder, self.options = program, folder, options
        self.models = folder / "models"
        self.models.mkdir(parents=True, exist_ok=True)
        self.log = folder / "server.log"
        self.process: subprocess.Popen | None = None
        self.connections: list[Connection] = []
        self.loads = 0

    def start(self) -> None:
        """Before the first model of a case is added."""
        if self.process is not None and self.process.poll() is None:
            if self.loads < MOST_LOADS:
                return
            self.stop()
        self.loads = 0
        self.close_connections()
        port = free_port()
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [str(self.program), "serve", "--models", str(self.models), "--http", f"127.0.0.1:{port}", "--grpc", "",
                 "--metrics", "", "--model-control-mode", "explicit", "--page-cache", "64MiB", "--io-cache", "128MiB",
                 "--workspace", "128MiB", "--default-deadline", "60000", "--strict-readiness", "false",
                 "--threads", "2", *self.options],
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, preexec_fn=end_with_parent,
                env={**os.environ, "XDG_CACHE_HOME": str(self.folder / "cache")})
        self.address = f"127.0.0.1:{port}"
        limit = time.monotonic() + 120
        while True:
            if self.process.poll() is not None or time.monotonic() > limit:
                raise SystemExit(f"the server did not start:\n{self.tail()}")
            try:
                Connection(self.address).ask("GET", "/v2/health/ready")
                break
            except (Gone, Refused):
                time.sleep(0.05)
        self.connections = [Connection(self.address) for _ in range(6)]
        add_busy(self.models)
        self.load("busy")

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-3000:]

    @property
    def first(self) -> Connection:
        return self.connections[0]

    def add(self, name: str, model: bytes, config: str) -> None:
        folder = self.models / name
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "1").mkdir(parents=True)
        (folder / "1" / "model.onnx").write_bytes(model)
        if config:
            (folder / "config.pbtxt").write_text(config)

    def load(self, name: str) -> None:
        self.loads += 1
        self.first.ask("POST", f"/v2/repository/models/{name}/load", b"{}")

    def unload(self, name: str) -> None:
        self.first.ask("POST", f"/v2/repository/models/{name}/unload", b"{}")
        shutil.rmtree(self.models / name, ignore_errors=True)

    def ended(self) -> str | None:
        """How the server ended, if it has."""
        try:
            status = self.process.wait(3)
        except subprocess.TimeoutExpired:
            return None
        how = f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"
        last = self.tail().strip().rsplit("\n", 1)[-1]
        return f"the server ended with {how}; last it said: {last}"

    def give_up(self) -> None:
        """Of a server that has ended, hangs, or whose connections are out of step."""
        self.close_connections()
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.process = None
        for folder in self.models.iterdir():
            shutil.rmtree(folder, ignore_errors=True)

    def stop(self) -> None:
        if self.process is None or self.process.poll() is not None:
            return
        self.close_connections()
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def close_connections(self) -> None:
        for connection in self.connections:
            connection.close()
        self.connections = []


def add_busy(models: Path) -> None:
    """A model that keeps the device for some milliseconds, so that requests which come meanwhile run together."""
    from onnx import TensorProto, helper, numpy_helper

    if (models / "busy").exists():
        return
    weights = numpy_helper.from_array(np.full((256, 256), 1 / 256, np.float32), "w")
    nodes, last = [], "x"
    for layer in range(12):
        nodes.append(helper.make_node("MatMul", [last, "w"], [f"p{layer}"]))
        nodes.append(helper.make_node("Tanh", [f"p{layer}"], [f"t{layer}"]))
        last = f"t{layer}"
    graph = helper.make_graph(nodes, "busy", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [256, 256])],
                              [helper.make_tensor_value_info(last, TensorProto.FLOAT, [256, 256])], [weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (models / "busy" / "1").mkdir(parents=True)
    onnx.save(model, models / "busy" / "1" / "model.onnx")


BUSY = {"x": np.zeros((256, 256), np.float32)}


def default_program() -> Path:
    root = Path(__file__).resolve().parents[2]
    return Path(os.environ.get("CARILLON_PROGRAM", root / "build" / "release" / "carillon"))
