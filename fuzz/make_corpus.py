#!/usr/bin/env python3
"""Writes the seeds of the corpora (fuzz/corpus/TARGET/seed_*): small inputs that are right, or nearly so. Inputs that
the fuzzer found stand beside them under other names and stay. Run with the checkout's .venv."""

from __future__ import annotations

import gzip
import json
import pathlib
import struct
import zlib

import numpy as np
from onnx import TensorProto, helper, numpy_helper
from tritonclient.grpc import service_pb2

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent


def write(target: str, name: str, content: bytes | str) -> None:
    folder = HERE / "corpus" / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"seed_{name}").write_bytes(content.encode() if isinstance(content, str) else content)


def infer_json() -> None:
    x = {"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [1, 2.5, -3e4]}
    n = {"name": "n", "datatype": "INT32", "shape": [1, 2], "data": [[7, -8]]}
    write("infer_json", "plain", json.dumps({"id": "a", "inputs": [x, n], "parameters": {"timeout": 20000}}))
    write("infer_json", "outputs", json.dumps({
        "inputs": [x, n], "outputs": [{"name": "s"}, {"name": "y", "parameters": {"binary_data": True}}]}))
    blobs = [{"name": "x", "datatype": "FP32", "shape": [1, 3], "parameters": {"binary_data_size": 12}},
             {"name": "n", "datatype": "INT32", "shape": [1, 2], "parameters": {"binary_data_size": 8}}]
    head = json.dumps({"inputs": blobs, "parameters": {"binary_data_output": True}})
    write("infer_json", "blobs", head.encode() + b"\0" + struct.pack("<3f2i", 1, 2, 3, 7, 8))
    write("infer_json", "half", '{"inputs":[{"name":"x","datatype":"FP16","shape":[2,2],"data":[1,NaN,-Infinity,65504]}]}')
    write("infer_json", "bool", '{"inputs":[{"name":"x","datatype":"BOOL","shape":[1,4],"data":[true,false,1,0]}]}')
    shared = {"name": "x", "datatype": "FP32", "shape": [1, 3],
              "parameters": {"shared_memory_region": "r", "shared_memory_byte_size": 12, "shared_memory_offset": 4}}
    write("infer_json", "shared", json.dumps({"inputs": [shared, n]}))


def infer_grpc() -> None:
    def tensor(message, name, datatype, shape):
        return message.inputs.add(name=name, datatype=datatype, shape=shape)

    typed = service_pb2.ModelInferRequest(model_name="pair", id="q")
    tensor(typed, "x", "FP32", [1, 3]).contents.fp32_contents.extend([1, 2, 3])
    tensor(typed, "n", "INT32", [1, 2]).contents.int_contents.extend([7, -8])
    typed.parameters["timeout"].int64_param = 20000
    typed.outputs.add(name="y")
    write("infer_grpc", "typed", typed.SerializeToString())
    raw = service_pb2.ModelInferRequest(model_name="pair")
    tensor(raw, "x", "FP32", [1, 3])
    tensor(raw, "n", "INT32", [1, 2])
    raw.raw_input_contents.extend([struct.pack("<3f", 1, 2, 3), struct.pack("<2i", 7, 8)])
    write("infer_grpc", "raw", raw.SerializeToString())
    half = service_pb2.ModelInferRequest(raw_input_contents=[bytes(8)])
    tensor(half, "x", "FP16", [2, 2])
    write("infer_grpc", "half", half.SerializeToString())


def http() -> None:
    for name, target in {"infer": "/v2/models/a%20b/versions/3/infer?x=1", "region":
                         "/v2/systemsharedmemory/region/r/register", "load": "/v2/repository/models/m/load",
                         "trace": "/v2/models/m/trace/setting", "chunked": "gzip, chunked",
                         "accepts": "gzip;q=0.5, deflate;q=0", "nan": '{"a": [NaN, -Infinity], "b": {"c": 1e400}}',
                         "fault": '{"a": [1, 2,, 3], "b": "\\ud800"}'}.items():
        write("http", name, target)
    write("http", "gzip", gzip.compress(b"{" + b" " * 3000 + b"}", mtime=0))
    write("http", "traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
    write("http", "tracestate", "rojo=00f067aa0ba902b7, congo=t61rcWkgMzE,")
    write("http", "zlib", zlib.compress(b"some text, some text, some text"))


def http2() -> None:
    """The first byte says how the rest comes: see http2_fuzz.cpp."""
    names = {"POST": b"\x83", "GET": b"\x82", "http": b"\x86"}

    def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
        return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload

    def text(value: bytes) -> bytes:
        return bytes([len(value)]) + value

    def head(method: str, path: str, **fields: str) -> bytes:
        out = names[method] + names["http"] + b"\x04" + text(path.encode()) + b"\x01" + text(b"t")
        for name, value in fields.items():
            out += b"\x00" + text(name.replace("_", "-").encode()) + text(value.encode())
        return out

    settings, ping, rest = frame(4, 0, 0, b"\0\x04\0\0\x10\0"), frame(6, 0, 0, b"pingpong"), frame(3, 0, 1, b"\0\0\0\x08")
    get = frame(1, 5, 1, head("GET", "/v2/models/pair"))
    body = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3]},
                                  {"name": "n", "datatype": "INT32", "shape": [1, 2], "data": [7, 8]}]}).encode()
    infer = head("POST", "/v2/models/pair/infer", content_length=str(len(body)))

    def write_how(name: str, how: int, content: bytes) -> None:
        write("http2", name, bytes([how]) + content)

    whole = 1 | 14 << 3
    write_how("get", whole, get)
    write_how("get_in_pieces", 1 | 1 << 3, get)
    write_how("infer", whole, frame(1, 4, 1, infer) + frame(0, 0, 1, body[:20]) + frame(0, 1, 1, body[20:]))
    write_how("infer_packed", whole, frame(1, 4, 1, head("POST", "/v2/models/pair/infer", content_encoding="gzip",
                                                        accept_encoding="gzip")) +
              frame(0, 1, 1, gzip.compress(body, mtime=0)))
    write_how("continued", whole, frame(1, 1, 1, infer[:9]) + frame(9, 0, 1, infer[9:20]) + frame(9, 4, 1, infer[20:]))
    write_how("padded", whole, frame(1, 0x2d, 1, b"\x02\0\0\0\0\x10" + head("GET", "/v2") + b"\0\0"))
    write_how("expects", whole, frame(1, 4, 1, head("POST", "/v2/models/pair/infer", expect="100-continue")) + frame(
        0, 0, 1, body) + frame(1, 5, 1, b"\x00\x01t\x01u"))
    write_how("resets", whole, b"".join(frame(1, 4, i, infer) + frame(3, 0, i, b"\0\0\0\x08") for i in range(1, 29, 2)))
    write_how("many", whole, b"".join(frame(1, 5, i, head("GET", "/v2")) for i in range(1, 21, 2)))
    write_how("unread", whole | 4, b"".join(frame(1, 5, i, head("GET", "/v2/openapi.json")) for i in (1, 3, 5)) +
              frame(8, 0, 1, b"\0\0\xff\xff"))
    write_how("nobody_reads", whole | 2, get + ping * 9)
    write_how("frames", whole, settings + ping + get + rest + frame(8, 0, 0, b"\0\0\0\x01") + frame(2, 0, 1, b"\0" * 5) +
              frame(0x42, 0, 0, b"who knows") + frame(7, 0, 0, b"\0" * 8))
    write_how("http1", 14 << 3, b"GET /v2 HTTP/1.1\r\nHost: t\r\n\r\n" * 2)
    write_how("http1_chunked", 14 << 3, b"POST /v2/models/pair/infer HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n"
              b"\r\n" + f"{len(body):x}".encode() + b"\r\n" + body + b"\r\n0\r\n\r\n")


def config() -> None:
    write("config", "full", """name: "m" platform: "onnxruntime_onnx" max_batch_size: 8
input [{ name: "x" data_type: TYPE_FP32 dims: [3, -1] }] output [{ name: "y" data_type: TYPE_FP32 dims: [4] }]
dynamic_batching { preferred_batch_size: [1, 4, 8] max_queue_delay_microseconds: 100 }
instance_group [{ kind: KIND_CPU count: 2 }] version_policy { specific { versions: [1, 3] } }
parameters { key: "slo_ms" value { string_value: "25" } }
parameters { key: "lengths" value { string_value: "8,16,32" } }
parameters { key: "padding" value { string_value: "true" } }
parameters { key: "class" value { string_value: "real_time" } }
default_model_filename: "model.onnx"
""")
    write("config", "json", json.dumps({
        "name": "m", "max_batch_size": 4, "input": [{"name": "x", "data_type": "TYPE_INT64", "dims": ["2"]}],
        "version_policy": {"latest": {"num_versions": 2}}, "parameters": {"slo_ms": {"string_value": "5"}}}))
    write("config", "least", "backend: 'onnxruntime'")


def files() -> None:
    """The first byte says which parser gets the rest: see files_fuzz.cpp."""
    def write_for(parser: int, name: str, content: bytes | str) -> None:
        write("files", name, bytes([parser]) + (content.encode() if isinstance(content, str) else content))

    times = {"p50": 30.1, "p99": 33.0, "mean": 30.4, "min": 29.0, "max": 33.5, "n": 20}
    batch = {"batch": 1, "p50_ms": 40.2, "p99_ms": 43.0, "mean_ms": 40.5, "min_ms": 39.9, "max_ms": 43.1, "n": 100}
    kernel = {"batch": 1, "length": 16, "name": "conv1", "mean_ms": 0.5, "parts": 32, "by_width_ms": [0.9, 0.5]}
    write_for(0, "profile", json.dumps({
        "device": "cpu", "created": "2026-01-02T03:04:05Z", "carillon": "0.1.0", "threads": 2, "models": [
            {"name": "m", "version": 1, "precision": "f32", "weights_bytes": 1000, "load_ms": times,
             "batches": [batch], "lengths": [{"length": 16, "batches": [batch]}], "kernels": [kernel]}]}))
    write_for(1, "kernels", json.dumps({"device": "d", "units": 60, "models": {"a": {
        "aliases": ["b"], "source": "s", "latency_us": 48,
        "kernels": [{"name": "k", "blocks": 64, "round_us": [14, 15], "repeat": 2}]}}}))
    workloads = json.loads((ROOT / "profiles/igniter/workloads.json").read_text())
    workloads["models"] = dict(list(workloads["models"].items())[:2])
    write_for(2, "coefficients", json.dumps(workloads))
    write_for(3, "hardware", (ROOT / "profiles/igniter/v100.json").read_bytes())
    write_for(4, "measured_hardware", (ROOT / "profiles/igniter/v100.json").read_bytes())
    write_for(4, "measured_models", json.dumps(workloads))
    write_for(4, "measured", json.dumps({
        "format": "carillon-interference-1",
        "device": {"name": "d", "price_usd_per_hour": 0.5, "P_max_power_W": 300, "r_unit_percent": 5, "r_max_percent": 100},
        "models": {"a": {"d_load_bytes": 100, "d_feedback_bytes": 10, "n_kernels": 20, "k_sch_times_n_kernels_ms": 0.1,
                         "solo": [{"batch": 1, "r_pct": 50, "gpu_latency_ms": 3.5, "power_W": 90}],
                         "growth": [{"active_time_alone_ms": 3, "active_time_together_ms": 4, "others_l2_pct": 20}]}},
        "colocated": [{"power_W": 200, "members": [
            {"model": "a", "batch": 1, "r_pct": 50, "gpu_latency_ms": 4, "scheduling_ms": 0.2},
            {"model": "a", "batch": 2, "r_pct": 50, "gpu_latency_ms": 6}]}],
        "series": [{"workloads": 2, "power_W": 120, "scheduling_delay_per_kernel_ms": 0.01}],
        "checks": [{"models": ["a", "a"], "batches": [1, 2], "r_pct": [50, 50], "latency_ms": [4.5, 6.5]}],
        "not_measured": ["cache: no counters"]}))
    write_for(9, "lease", json.dumps({"type": "MODIFIED", "object": {
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": "box.w1", "resourceVersion": "7", "labels": {"carillon/cluster": "box"}, "annotations": {
            "carillon/member": json.dumps({"id": "w1", "role": "worker", "address": "10.0.0.1:7000", "incarnation": 5, "protocol": 1}, separators=(",", ":")),
            "carillon/epoch": json.dumps({"epoch": 3, "leader": "s1", "nonce": 9}, separators=(",", ":"))}},
        "spec": {"holderIdentity": "s1", "leaseDurationSeconds": 5, "leaseTransitions": 3}}}))
    write_for(8, "partition", json.dumps({
        "memory_bytes": 1e3, "max_rate_rps": 50, "models": [
            {"name": "a", "rate_rps": 30.5, "static_bytes": 400, "dynamic_bytes": 10, "move_cost": 3},
            {"name": "b", "rate_rps": 20, "static_bytes": 300, "move_cost": 2},
            {"name": "c", "rate_rps": 10, "static_bytes": 200, "move_cost": 1}]}) + "\n" +
        json.dumps({"groups": [{"models": ["a", "c"]}, {"models": ["b", "gone"]}]}))
    write_for(5, "served_plan", json.dumps({"devices": [{"device": 1, "type": "cpu", "workloads": [
        {"id": "W1", "model": "m", "share_pct": 40, "batch": 4, "half_slo_ms": 50}]}]}))
    write_for(10, "arrival_times", "# seconds\n" + "".join(f"{i * i / 100:g}\n" for i in range(100)))
    write_for(7, "disb", (ROOT / "scenarios/disb/B.json").read_bytes())
    write_for(6, "metrics", """# TYPE carillon_rows_total counter
carillon_rows_total{model="m",version="1"} 12
# TYPE carillon_slo_seconds gauge
carillon_slo_seconds{model="m",version="1"} 0.025
""")


def scenario() -> None:
    for name in ("overload", "classes", "clockwork_fig7_isolation"):
        write("scenario", name, (ROOT / f"scenarios/{name}.toml").read_bytes())
    write("scenario", "profile", "model,alpha_ms,beta_ms,slo_ms,weights_MB,transfer_ms\na,1.5,3,25,100,8\nb,2,0,,,\n")
    write("scenario", "table", "model,exec_b1_ms,exec_b16_ms\na,1.5,3\n")
    write("scenario", "trace", "function,trigger,1,2,3\nf,http,5,0,7\ng,timer,1,1,1\n")


def log() -> None:
    for scheduler in ("clockwork", "symphony", "fcfs"):
        for path in sorted((ROOT / "tests/logs").glob(f"*_{scheduler}.log.gz"))[:1]:
            lines = gzip.decompress(path.read_bytes()).splitlines(keepends=True)
            write("log", scheduler, b"".join(lines[:60]))


def share() -> None:
    """Packets of share/protocol.h, as a job sends them."""
    def packet(kind: int, body: bytes = b"", version: int = 2) -> bytes:
        return struct.pack("<4I", 0x6C6C7263, version, kind, 16 + len(body)) + body

    def hello(again: int = 0, weight: float = 1.0, name: bytes = b"train.py") -> bytes:
        return struct.pack("<IIQQQdIIQQ64s", 4711, 2, 1 << 30, 1 << 28, 10**12, weight, again, 0, 70, 7 * 10**9, name)

    write("share", "hello", packet(1, hello()))
    write("share", "again", packet(1, hello(again=1, name="caf\u00e9 \u4e2d".encode())))
    write("share", "weight", packet(1, hello(weight=float("nan"))))
    write("share", "long_name", packet(1, hello(name=b"x" * 64)))
    write("share", "stopped", packet(5, struct.pack("<6Q", 71, 8 * 10**9, 1 << 30, 2**64 - 1, 0, 3)))
    write("share", "ask", packet(6, struct.pack("<2Q", 1 << 30, 1 << 29)))
    write("share", "bye", packet(8))
    write("share", "query", packet(9))
    write("share", "version", packet(9, version=3))


def onnx() -> None:
    random = np.random.default_rng(7)

    def weights(name, *shape):
        return numpy_helper.from_array(random.standard_normal(shape).astype(np.float32), name)

    def numbers(name, *values):
        return numpy_helper.from_array(np.array(values, np.int64), name)

    def save(name, nodes, shape, initializers):
        graph = helper.make_graph(nodes, name, [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
                                  [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)], initializers)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
        model.ir_version = 8
        write("onnx", name, model.SerializeToString())

    node = helper.make_node
    save("convolution", [node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1]), node("Relu", ["c"], ["r"]),
                         node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2]), node("GlobalAveragePool", ["p"], ["g"]),
                         node("Flatten", ["g"], ["y"])], ["n", 2, 5, 5], [weights("w", 4, 2, 3, 3), weights("b", 4)])
    save("shapes", [node("Shape", ["x"], ["s"]), node("Gather", ["s", "zero"], ["n"]),
                    node("Concat", ["n", "rest"], ["to"], axis=0), node("Reshape", ["x", "to"], ["f"]),
                    node("Gemm", ["f", "w"], ["g"], alpha=0.5), node("Softmax", ["g"], ["h"], axis=1),
                    node("Slice", ["h", "one", "three", "one"], ["y"])], ["n", 3, 4],
         [numbers("zero", 0), numbers("rest", 12), numbers("one", 1), numbers("three", 3), weights("w", 12, 3)])
    save("recurrent", [node("Transpose", ["x"], ["t"], perm=[1, 0, 2]),
                       node("LSTM", ["t", "w", "r"], ["", "h"], hidden_size=2),
                       node("Squeeze", ["h", "zero"], ["y"])], ["n", 3, 4],
         [weights("w", 1, 8, 4), weights("r", 1, 8, 2), numbers("zero", 0)])
    branch = [helper.make_graph([node(op, ["x"], ["z"])], op, [],
                                [helper.make_tensor_value_info("z", TensorProto.FLOAT, None)]) for op in ("Relu", "Neg")]
    save("branches", [node("ReduceMax", ["x"], ["m"], keepdims=0), node("Greater", ["m", "limit"], ["c"]),
                      node("If", ["c"], ["y"], then_branch=branch[0], else_branch=branch[1])], ["n", 4],
         [numpy_helper.from_array(np.float32(0), "limit")])


if __name__ == "__main__":
    for make in (infer_json, infer_grpc, http, http2, config, files, scenario, share, log, onnx):
        make()
