"""Inputs that no client should send, by name: bytes for a raw socket, and messages for a raw gRPC call. Each says what must
come of it: which statuses, and words that its error has."""

from __future__ import annotations

import contextlib
import gzip
import json
import re
import socket
import zlib
from dataclasses import dataclass

import grpc
from tritonclient.grpc import service_pb2

from raw_http import INFER, MINUTE, connect, post, receive, until_closed

MIB = 1 << 20
MODEL = "/v2/models/tiny_mlp"
LONG = "n" * MIB

# Paths, and the methods that each takes.
ENDPOINTS = {
    "/v2": "GET",
    "/v2/health/live": "GET",
    "/v2/health/ready": "GET",
    MODEL: "GET",
    f"{MODEL}/ready": "GET",
    f"{MODEL}/config": "GET",
    f"{MODEL}/stats": "GET",
    "/v2/models/stats": "GET",
    INFER: "POST",
    f"{MODEL}/versions/1/infer": "POST",
    "/v2/repository/index": "POST",
    "/v2/repository/models/tiny_mlp/load": "POST",
    "/v2/repository/models/tiny_mlp/unload": "POST",
    "/v2/systemsharedmemory/status": "GET",
    "/v2/systemsharedmemory/region/r/register": "POST",
    "/v2/systemsharedmemory/unregister": "POST",
    "/v2/cudasharedmemory/status": "GET",
    "/v2/cudasharedmemory/region/r/register": "POST",
    "/v2/logging": "GET, POST",
    "/v2/trace/setting": "GET, POST",
    f"{MODEL}/trace/setting": "GET, POST",
    f"{MODEL}/generate": "POST",
}
METHODS = ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "get", "BREW", "X" * 30]


@dataclass(frozen=True)
class Bad:
    data: bytes
    statuses: tuple[int, ...] = (400,)
    words: str = ""
    json: bool = True  # the answer is the protocol's error; else the connection may end without one


def tensor(**changes) -> dict:
    return {
        key: value
        for key, value in (
            {"name": "input", "datatype": "FP32", "shape": [1, 64], "data": [0.5] * 64} | changes
        ).items()
        if value is not ...
    }


def body(*inputs, **changes) -> bytes:
    return json.dumps({"inputs": list(inputs) or [tensor()], "parameters": {"timeout": MINUTE}} | changes).encode()


def text(pattern: str, value: str) -> bytes:
    """A body with a piece of JSON in it that json.dumps would not write."""
    return body(
        tensor(
            data=["@"] if pattern == "data" else [0.5] * 64,
            **({pattern: "@"} if pattern not in ("data", "timeout") else {}),
        ),
        **({"parameters": {"timeout": "@"}} if pattern == "timeout" else {}),
    ).replace(b'["@"]' if pattern == "data" else b'"@"', value.encode())


def binary(json_length: object, size: object = 256, sent: int = 256) -> bytes:
    head = json.dumps(
        {"inputs": [tensor(data=..., parameters={"binary_data_size": size})], "parameters": {"timeout": MINUTE}}
    ).encode()
    length = len(head) if json_length is None else json_length
    return post(head + bytes(sent), Inference_Header_Content_Length=str(length))


def shared(**parameters) -> bytes:
    return post(
        body(tensor(data=..., parameters={"shared_memory_region": "lent", "shared_memory_byte_size": 256} | parameters))
    )


def register(key: object, size: object, offset: object = 0, name: str = "bad") -> bytes:
    return post(
        json.dumps({"key": key, "byte_size": size, "offset": offset}).encode(),
        f"/v2/systemsharedmemory/region/{name}/register",
    )


def cuda_orders(handle: str, size: int) -> dict[str, Bad]:
    """Orders to register memory on a device, of which `handle` (in base64) opens `size` bytes."""
    good = {"raw_handle": {"b64": handle}, "device_id": 0, "byte_size": size}
    path = "/v2/cudasharedmemory/region/bad/register"
    cases = {
        f"{member} = {value!r:.40}": Bad(post(json.dumps(good | {member: value}).encode(), path), (400,), words)
        for member, value, words in (
            ("raw_handle", None, "raw_handle"),
            ("raw_handle", handle, "raw_handle"),
            ("raw_handle", {}, "b64"),
            ("raw_handle", {"b64": None}, "b64"),
            ("raw_handle", {"b64": [handle]}, "b64"),
            ("raw_handle", {"b64": "!" * 88}, "base64"),
            ("raw_handle", {"b64": "\0" * 88}, "base64"),
            ("raw_handle", {"b64": handle[:-1]}, "base64"),
            ("raw_handle", {"b64": handle + "===="}, "base64"),
            ("raw_handle", {"b64": handle[:-4]}, "bytes"),
            ("raw_handle", {"b64": "A" * 86 + "=="}, "CUDA_ERROR_"),
            ("raw_handle", {"b64": "/" * 86 + "=="}, ""),
            ("raw_handle", {"b64": "A" * 4096}, "base64"),
            ("device_id", None, "device_id"),
            ("device_id", "0", "device_id"),
            ("device_id", -1, "device_id"),
            ("device_id", 999, "device_id 999"),
            ("device_id", 2**63, "device_id"),
            ("device_id", -(2**63), "device_id"),
            ("device_id", 1e3, "device_id"),
            ("byte_size", None, "byte_size"),
            ("byte_size", "many", "byte_size"),
            ("byte_size", 0, "byte size"),
            ("byte_size", -1, "byte_size"),
            ("byte_size", 2**64 - 1, "byte size"),
            ("byte_size", 2**64, "byte_size"),
            ("byte_size", 0.5, "byte_size"),
        )
    }
    for member in good:
        cases[f"no {member}"] = Bad(
            post(json.dumps({name: value for name, value in good.items() if name != member}).encode(), path),
            (400,),
            member,
        )
    for what, data in (("nothing", b""), ("no JSON", b"{"), ("a list", b"[]"), ("not UTF-8", b'{"raw_handle":"\xff"}')):
        cases[what] = Bad(post(data, path), (400,))
    cases["a long name"] = Bad(post(json.dumps(good).encode(), path.replace("bad", "n" * 300)), (400,), "300 bytes")
    return cases


def head(first: str, *lines: str) -> bytes:
    return "\r\n".join([first, "Host: t", *lines, "", ""]).encode()


def chunked(*chunks: bytes) -> bytes:
    return head(f"POST {INFER} HTTP/1.1", "Transfer-Encoding: chunked") + b"".join(chunks)


def over_http(region_key: str) -> dict[str, Bad]:
    """`region_key`: an object of 4,096 bytes in shared memory, registered as "lent"."""
    cases: dict[str, Bad] = {}
    for path, methods in ENDPOINTS.items():
        for method in METHODS:
            if method not in methods.split(", "):
                length = [] if method == "GET" else ["Content-Length: 0"]
                cases[f"{method} {path}"] = Bad(
                    head(f"{method} {path} HTTP/1.1", *length),
                    (405, 400) if method == "BREW" else (405,),
                    methods.split(",")[0],
                )
    for path in (
        "/",
        "/v1",
        "/v2/models",
        "/v2/models//infer",
        "/v2//models/tiny_mlp",
        f"{MODEL}/nothing",
        f"{MODEL}/versions//infer",
        f"{MODEL}/versions/1/2/infer",
        "/v2/health/../../etc/passwd",
        "/v2/systemsharedmemory/region//register",
        "/%2e%2e",
        "/v2/models/%00/config",
        "/v2/models/nobody",
        "/v2/models/nobody/stats",
        f"{MODEL}/versions/9",
        f"{MODEL}/versions/9/config",
    ):
        cases[f"path {path}"] = Bad(head(f"GET {path} HTTP/1.1"), (404,), "")
    for version in ("9", "abc", "-1", "0", "1.0", "99999999999999999999999", "%00", "%ff"):
        cases[f"version {version}"] = Bad(post(body(), f"{MODEL}/versions/{version}/infer"), (404, 400), "version")
    cases |= {
        f"escape {path}": Bad(head(f"GET /v2/models/{path} HTTP/1.1"), (400, 404), "")
        for path in ("%", "%2", "%zz", "%ff%fe")
    }
    cases["a name of 1 MiB in the path"] = Bad(head(f"GET /v2/models/{LONG} HTTP/1.1"), (431, 414, 400), "")
    cases["a name of 60 kB in the path"] = Bad(head(f"GET /v2/models/{'n' * 60_000} HTTP/1.1"), (404, 400, 431), "")
    # How HTTP is written.
    cases |= {
        f"Content-Length {value[:24]}": Bad(
            head(f"POST {INFER} HTTP/1.1", f"Content-Length: {value}") + b"{}", (400, 413), "", json=False
        )
        for value in (
            "-1",
            "+2",
            "2.0",
            "0x2",
            "",
            "two",
            "2 2",
            "2,3",
            "99999999999999999999999",
            "18446744073709551615",
            "9223372036854775807",
        )
    }
    cases |= {
        "two lengths": Bad(
            head(f"POST {INFER} HTTP/1.1", "Content-Length: 2", "Content-Length: 3") + b"{} ", (400,), "", json=False
        ),
        "no body": Bad(head(f"POST {INFER} HTTP/1.1"), (400, 411)),
        "an empty body": Bad(post(b"")),
        "a header of 70 kB": Bad(head("GET /v2 HTTP/1.1", f"X: {'x' * 70_000}"), (431,), "", json=False),
        "3,000 headers": Bad(head("GET /v2 HTTP/1.1", *["X-Header: some value"] * 4000), (431,), "", json=False),
        "a header without a name": Bad(head("GET /v2 HTTP/1.1", ": x"), json=False),
        "a header without a colon": Bad(head("GET /v2 HTTP/1.1", "nothing"), json=False),
        "a blank before the colon": Bad(head("GET /v2 HTTP/1.1", "X : y"), json=False),
        "NUL in a header": Bad(head("GET /v2 HTTP/1.1", "X: a\0b"), json=False),
        "HTTP/9.9": Bad(head("GET /v2 HTTP/9.9"), (400, 505), "", json=False),
        "no version": Bad(b"GET /v2\r\n\r\n", json=False),
        "garbage": Bad(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)) + b"\r\n\r\n", json=False),
        "an unknown expectation": Bad(
            head(f"POST {INFER} HTTP/1.1", "Expect: miracles", "Content-Length: 2") + b"{}", (417, 400), ""
        ),
        "an absolute path of elsewhere": Bad(head("GET ftp://x/y HTTP/1.1"), (400, 404), ""),
        "chunk size zz": Bad(chunked(b"zz\r\n"), json=False),
        "chunk size -1": Bad(chunked(b"-1\r\n"), json=False),
        "chunk size 2^68": Bad(chunked(b"fffffffffffffffff\r\n"), (400, 413), "", json=False),
        "chunk without an end": Bad(chunked(b"2\r\n{}XX\r\n0\r\n\r\n"), json=False),
        "chunks of 300 MiB said": Bad(chunked(b"12c00000\r\n{}"), (400, 413), "", json=False),
        "chunks in HTTP/1.0": Bad(
            f"POST {INFER} HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n".encode(), json=False
        ),
        "a body beyond the limit": Bad(head(f"POST {INFER} HTTP/1.1", f"Content-Length: {64 * MIB}"), (413,), ""),
    }
    # Packed bodies.
    packed = gzip.compress(body())
    cases |= {
        "gzip that is none": Bad(post(body(), Content_Encoding="gzip")),
        "deflate that is none": Bad(post(body(), Content_Encoding="deflate")),
        "gzip cut off": Bad(post(packed[:-9], Content_Encoding="gzip")),
        "gzip with a wrong sum": Bad(post(packed[:-8] + bytes(8), Content_Encoding="gzip")),
        "gzip of nothing": Bad(post(b"", Content_Encoding="gzip")),
        "br": Bad(post(body(), Content_Encoding="br"), (415, 400, 501), "br"),
        "gzip twice": Bad(post(gzip.compress(packed), Content_Encoding="gzip, gzip"), (415, 400, 501), "gzip"),
        "a bomb": Bad(post(gzip.compress(bytes(64 * MIB), 9), Content_Encoding="gzip"), (413,), ""),
        "a bomb in deflate": Bad(post(zlib.compress(bytes(64 * MIB), 9), Content_Encoding="deflate"), (413,), ""),
    }
    # JSON.
    cases |= {
        f"JSON {what}": Bad(post(data), (400,), words)
        for what, data, words in (
            ("that is none", b"{", ""),
            ("null", b"null", ""),
            ("an array", b"[]", ""),
            ("a number", b"7", ""),
            ("with more behind", body() + b"{}", ""),
            ("of zeros", bytes(100), ""),
            ("100,000 deep", b'{"inputs":' + b"[" * 100_000, "deep"),
            ("2,000 deep and whole", b'{"inputs":' + b"[" * 2000 + b"]" * 2000 + b"}", "deep"),
            ("deep in data", text("data", "[" * 2000 + "]" * 2000), "deep"),
            ("with objects 2,000 deep", b'{"a":' * 2000 + b"1" + b"}" * 2000, "deep"),
            ("not UTF-8", body().replace(b"input", b"in\xff\xfeut", 1), ""),
            ("with half a surrogate", body().replace(b'"input"', b'"\\ud800"', 1), ""),
            ("with NUL in a name", body().replace(b'"input"', b'"in\\u0000put"', 1), ""),
            ("with a bare NUL", body().replace(b"input", b"in\0put", 1), ""),
            ("with UTF-16", body().decode().encode("utf-16"), ""),
            ("with inputs twice", body().replace(b'"parameters"', b'"inputs": [], "parameters"'), "twice"),
            ("with inputs that are none", body(inputs={}), "inputs"),
            ("with inputs null", body(inputs=None), "inputs"),
            ("with no inputs", body(inputs=[]), "input"),
            ("with numbers for inputs", body(7), ""),
            ("with an id that is a number", body(id=7), "id"),
            ("with parameters that are a list", body(parameters=[]), "parameters"),
            ("with outputs that are an object", body(outputs={}), "outputs"),
            ("with an output without a name", body(outputs=[{}]), "name"),
            ("with an unknown output", body(outputs=[{"name": "nothing"}]), "output"),
            ("with an output twice", body(outputs=[{"name": "output"}] * 2), "twice"),
            ("with an output of 1 MiB of letters", body(outputs=[{"name": LONG}]), "output"),
            ("with 100,000 outputs", body(outputs=[{"name": "output"}] * 100_000), "twice"),
            ("with 100,000 inputs", body(*[tensor(data=[])] * 100_000), ""),
            (
                "with a classification of -1",
                body(outputs=[{"name": "output", "parameters": {"classification": -1}}]),
                "classification",
            ),
            ("with binary_data 7", body(outputs=[{"name": "output", "parameters": {"binary_data": 7}}]), "binary_data"),
        )
    }
    # Tensors.
    cases |= {
        f"a tensor with {what}": Bad(post(body(*given)), statuses, words)
        for what, given, statuses, words in (
            ("no name", [tensor(name=...)], (400,), "name"),
            ("an empty name", [tensor(name="")], (400,), "input"),
            ("a name of 1 MiB", [tensor(name=LONG)], (400,), "input"),
            ("a number as its name", [tensor(name=7)], (400,), "name"),
            ("another name", [tensor(name="other")], (400,), "its inputs are 'input'"),
            ("itself again", [tensor(), tensor()], (400,), "twice"),
            ("no datatype", [tensor(datatype=...)], (400,), "datatype"),
            ("no shape", [tensor(shape=...)], (400,), "shape"),
            ("no data", [tensor(data=...)], (400,), "data"),
            ("null data", [tensor(data=None)], (400,), "data"),
            ("an object as data", [tensor(data={})], (400,), "data"),
            ("too little data", [tensor(data=[1] * 63)], (400,), "64"),
            ("too much data", [tensor(data=[1] * 65)], (400,), "64"),
            ("ragged data", [tensor(data=[[1] * 60, [1] * 4])], (400,), ""),
            ("texts as data", [tensor(data=["1"] * 64)], (400,), ""),
            ("booleans as data", [tensor(data=[True] * 64)], (400,), ""),
            ("null in data", [tensor(data=[None] * 64)], (400,), ""),
            ("objects in data", [tensor(data=[{}] * 64)], (400,), ""),
            ("bytes", [tensor(datatype="BYTES", data=["x"] * 64)], (400, 501), "BYTES"),
            ("a million dimensions", [tensor(shape=[1] * 1_000_000)], (400,), "shape"),
            ("parameters that are a list", [tensor(parameters=[])], (400,), "parameters"),
            ("both data and a blob", [tensor(parameters={"binary_data_size": 256})], (400,), ""),
        )
    }
    cases |= {
        f"datatype {kind!r}": Bad(post(body(tensor(datatype=kind))), (400,), "")
        for kind in ("FP64", "INT32", "fp32", "", "F" * 100_000, 7, None, ["FP32"])
    }
    cases |= {
        f"shape {shape}": Bad(post(text("shape", shape)), (400,), "shape")
        for shape in (
            "[-1,64]",
            "[0,64]",
            "[64]",
            "[]",
            "[1,64,1]",
            "[64,1]",
            "[17,64]",
            "[9223372036854775807,64]",
            "[9223372036854775808,64]",
            "[4294967296,4294967296]",
            "[-9223372036854775808,64]",
            "[1.5,64]",
            "[1e300,64]",
            '["1",64]',
            "[null,64]",
            "[true,64]",
            "7",
            '"1,64"',
            "null",
            "{}",
            "[[1],64]",
            "[NaN,64]",
        )
    }
    cases |= {
        f"timeout {value}": Bad(post(text("timeout", value)), (400,), "" if len(value) > 19 else "timeout")
        for value in (
            "-1",
            "NaN",
            "Infinity",
            "1.5",
            "1e30",
            "18446744073709551616",
            '"soon"',
            '""',
            "true",
            "null",
            "[]",
            "{}",
            "-9223372036854775808",
        )
    }
    cases |= {
        f"parameter {name} = {value!r:.30}": Bad(post(body(parameters={name: value})), (400,), name)
        for name, value in (
            ("priority", -1),
            ("priority", 1.5),
            ("priority", 2**32),
            ("priority", "high"),
            ("application", 7),
            ("application", "a" * 100_000),
            ("binary_data_output", 7),
        )
    }
    # Blobs.
    cases |= {
        f"a JSON length of {str(length)[:24]}": Bad(binary(length), (400,), "")
        for length in (0, 1, -1, 10_000, 2**63, 2**64, 10**30, "abc", "", "1.5", "0x40", " ")
    }
    cases |= {
        f"a blob said to have {size} bytes": Bad(binary(None, size), (400,), "")
        for size in (0, 1, 255, 257, 512, 2**31, 2**63 - 1, 2**63, 2**64 - 1, -1, -256, 1.5, "256", None, True, [])
    }
    cases |= {
        "a blob cut off": Bad(binary(None, 256, 100), (400,), ""),
        "bytes behind the blob": Bad(binary(None, 256, 300), (400,), ""),
        "a JSON length twice": Bad(
            post(body(), Inference_Header_Content_Length="5").replace(
                b"Content-Length: 5\r\n", b"Content-Length: 5\r\nInference-Header-Content-Length: 6\r\n", 1
            ),
            (400,),
            "",
        ),
    }
    # Shared memory.
    cases |= {
        f"shared memory: {what}": Bad(shared(**parameters), (400,), words)
        for what, parameters, words in (
            ("an unknown region", {"shared_memory_region": "none"}, "none"),
            ("a region of 1 MiB of letters", {"shared_memory_region": LONG}, "region"),
            ("a number as region", {"shared_memory_region": 7}, "region"),
            ("an offset at the end", {"shared_memory_offset": 4096}, "lent"),
            ("an offset near the end", {"shared_memory_offset": 4096 - 255}, "lent"),
            ("an offset of 2^64 - 1", {"shared_memory_offset": 2**64 - 1}, ""),
            ("an offset that comes round", {"shared_memory_offset": 2**64 - 256}, ""),
            ("a negative offset", {"shared_memory_offset": -1}, "offset"),
            ("too few bytes", {"shared_memory_byte_size": 255}, "256"),
            ("no bytes", {"shared_memory_byte_size": 0}, ""),
            ("2^63 bytes", {"shared_memory_byte_size": 2**63}, ""),
            ("negative bytes", {"shared_memory_byte_size": -256}, "byte_size"),
            ("bytes as text", {"shared_memory_byte_size": "256"}, "byte_size"),
            ("a blob besides", {"binary_data_size": 256}, ""),
        )
    }
    cases["shared memory and data"] = Bad(
        post(body(tensor(parameters={"shared_memory_region": "lent", "shared_memory_byte_size": 256}))), (400,), ""
    )
    cases |= {
        f"an output in shared memory: {what}": Bad(
            post(
                body(
                    outputs=[
                        {
                            "name": "output",
                            "parameters": {"shared_memory_region": "lent", "shared_memory_byte_size": 40} | parameters,
                        }
                    ]
                )
            ),
            (400,),
            "",
        )
        for what, parameters in (
            ("too small", {"shared_memory_byte_size": 39}),
            ("beyond the end", {"shared_memory_offset": 4090}),
            ("an unknown region", {"shared_memory_region": "none"}),
            ("an offset that comes round", {"shared_memory_offset": 2**64 - 8}),
        )
    }
    cases |= {
        f"a region {what}": Bad(request, statuses, words)
        for what, request, statuses, words in (
            ("of no object", register("/no_such_object", 16), (400, 404), ""),
            ("with a path", register("/../etc/passwd", 16), (400, 404), ""),
            ("with a path in it", register("/a/b", 16), (400, 404), ""),
            ("without a key", register("", 16), (400,), ""),
            ("with NUL", register("/a\0b", 16), (400, 404), ""),
            ("with a key of 1 MiB", register("/" + LONG, 16), (400, 404), ""),
            ("with a number as key", register(7, 16), (400,), ""),
            ("of no bytes", register(region_key, 0), (400,), ""),
            ("beyond its object", register(region_key, 4097), (400,), ""),
            ("that begins behind it", register(region_key, 1, 4096), (400,), ""),
            ("whose end comes round", register(region_key, 2**64 - 1, 2), (400,), ""),
            ("of negative size", register(region_key, -1), (400,), ""),
            ("of text as size", register(region_key, "many"), (400,), ""),
            ("of no JSON", post(b"{", "/v2/systemsharedmemory/region/bad/register"), (400,), ""),
            ("of CUDA", post(b"{}", "/v2/cudasharedmemory/region/bad/register"), (501, 400), "CUDA"),
        )
    }
    # Settings and orders.
    cases |= {
        f"{path} with {data[:40]!r}": Bad(post(data, path), (400, 404, 501, 503), "")
        for path, data in (
            ("/v2/logging", b"{"),
            ("/v2/logging", b"[]"),
            ("/v2/logging", b'{"log_info": 7}'),
            ("/v2/logging", b'{"log_verbose_level": -1}'),
            ("/v2/logging", b'{"log_verbose_level": 1e99}'),
            ("/v2/logging", b'{"log_file": "/tmp/x"}'),
            ("/v2/logging", b'{"no_such_setting": 1}'),
            ("/v2/trace/setting", b'{"trace_level": "ALL"}'),
            ("/v2/models/nobody/trace/setting", b"{}"),
            ("/v2/repository/index", b"{"),
            ("/v2/repository/index", b"[]"),
            ("/v2/repository/models/tiny_mlp/load", b"{"),
            ("/v2/repository/models/tiny_mlp/load", b'{"parameters": 7}'),
            ("/v2/repository/models/%2e%2e/load", b"{}"),
            ("/v2/repository/models/nobody/unload", b"{}"),
        )
    }
    return cases


# -- gRPC


@dataclass(frozen=True)
class BadCall:
    method: str
    data: bytes
    codes: tuple[str, ...] = ("INVALID_ARGUMENT",)
    words: str = ""


def request(raw: bytes | None = bytes(256), **changes) -> service_pb2.ModelInferRequest:
    message = service_pb2.ModelInferRequest(model_name="tiny_mlp")
    message.parameters["timeout"].int64_param = MINUTE
    message.inputs.add(**({"name": "input", "datatype": "FP32", "shape": [1, 64]} | changes))
    if raw is not None:
        message.raw_input_contents.append(raw)
    return message


def infer(message=None, codes=("INVALID_ARGUMENT",), words="", change=None) -> BadCall:
    message = request() if message is None else message
    if change is not None:
        change(message)
    return BadCall("ModelInfer", message.SerializeToString(), codes, words)


def typed(kind: str, values) -> BadCall:
    message = request(None)
    getattr(message.inputs[0].contents, kind).extend(values)
    return infer(message)


def parameter(name: str, kind: str, value) -> BadCall:
    return infer(words=name, change=lambda m: setattr(m.parameters[name], kind, value))


def placed(**parameters) -> BadCall:
    message = request(None)
    for name, value in ({"shared_memory_region": "lent", "shared_memory_byte_size": 256} | parameters).items():
        setattr(message.inputs[0].parameters[name], "string_param" if isinstance(value, str) else "int64_param", value)
    return infer(message)


def over_grpc(region_key: str) -> dict[str, BadCall]:
    p = service_pb2
    both = request()
    both.inputs[0].contents.fp32_contents.extend([0.5] * 64)
    cases = {
        "an empty request": BadCall("ModelInfer", b"", ("NOT_FOUND", "INVALID_ARGUMENT")),
        "no protobuf": BadCall("ModelInfer", b"\xff" * 40),
        "a length that lies": BadCall("ModelInfer", b"\x0a\xff\xff\xff\xff\x0f"),
        "fields 5,000 deep": BadCall("ModelInfer", b"\x0b" * 5000),
        "a name that is not UTF-8": BadCall("ModelInfer", b"\x0a\x03\xff\xfe\xfd", ("INVALID_ARGUMENT", "NOT_FOUND")),
        "an unknown model": infer(
            codes=("NOT_FOUND",), words="nobody", change=lambda m: setattr(m, "model_name", "nobody")
        ),
        "a model of 1 MiB of letters": infer(
            codes=("NOT_FOUND", "INVALID_ARGUMENT"), change=lambda m: setattr(m, "model_name", LONG)
        ),
        "typed and raw": infer(both),
        "two blobs": infer(change=lambda m: m.raw_input_contents.append(b"x")),
        "no data": infer(request(None)),
        "too few bytes": infer(request(bytes(255)), words="256"),
        "too many bytes": infer(request(bytes(257)), words="256"),
        "no inputs": infer(change=lambda m: (m.ClearField("inputs"), m.ClearField("raw_input_contents"))),
        "an input twice": infer(
            words="twice",
            change=lambda m: (m.inputs.add().CopyFrom(m.inputs[0]), m.raw_input_contents.append(bytes(256))),
        ),
        "another input": infer(request(name="other"), words="its inputs are"),
        "an empty name": infer(request(name="")),
        "a name of 1 MiB": infer(request(name=LONG)),
        "another datatype": infer(request(datatype="FP64"), words="FP32"),
        "no datatype": infer(request(datatype="")),
        "bytes": infer(request(datatype="BYTES"), codes=("INVALID_ARGUMENT", "UNIMPLEMENTED")),
        "numbers of another kind": typed("int_contents", [1] * 64),
        "doubles": typed("fp64_contents", [1] * 64),
        "texts": typed("bytes_contents", [b"x"] * 64),
        "too few numbers": typed("fp32_contents", [1] * 63),
        "too many numbers": typed("fp32_contents", [1] * 65),
        "an unknown output": infer(change=lambda m: m.outputs.add(name="nothing"), words="output"),
        "an output twice": infer(
            change=lambda m: (m.outputs.add(name="output"), m.outputs.add(name="output")), words="twice"
        ),
        "a million outputs": infer(
            change=lambda m: m.outputs.extend([p.ModelInferRequest.InferRequestedOutputTensor(name="output")] * 100_000)
        ),
    }
    cases |= {
        f"version {version[:20]!r}": infer(
            codes=("NOT_FOUND", "INVALID_ARGUMENT"),
            words="version",
            change=lambda m, v=version: setattr(m, "model_version", v),
        )
        for version in ("9", "abc", "-1", "0", "1.0", "9" * 40, "v" * MIB)
    }
    cases |= {
        f"shape {shape[:3]}": infer(request(shape=shape), words="shape")
        for shape in (
            [],
            [64],
            [1, 64, 1],
            [-1, 64],
            [0, 64],
            [17, 64],
            [2**62, 64],
            [2**63 - 1, 2**63 - 1],
            [-(2**63), 64],
            [2**32, 2**32],
            [1] * 100_000,
        )
    }
    cases |= {
        f"parameter {name} = {value!r:.20}": parameter(name, kind, value)
        for name, kind, value in (
            ("timeout", "int64_param", -1),
            ("timeout", "double_param", float("nan")),
            ("timeout", "double_param", float("inf")),
            ("timeout", "string_param", "soon"),
            ("timeout", "string_param", ""),
            ("timeout", "bool_param", True),
            ("priority", "int64_param", -1),
            ("priority", "string_param", "high"),
            ("application", "int64_param", 7),
            ("application", "string_param", "a" * 100_000),
        )
    }
    cases |= {
        f"shared memory: {parameters}": placed(**parameters)
        for parameters in (
            {"shared_memory_region": "none"},
            {"shared_memory_offset": 4096},
            {"shared_memory_offset": 2**63 - 1},
            {"shared_memory_offset": -1},
            {"shared_memory_byte_size": 0},
            {"shared_memory_byte_size": 255},
            {"shared_memory_byte_size": -1},
            {"shared_memory_byte_size": 2**63 - 1},
        )
    }
    for what, key, offset, size in (
        ("no object", "/no_such_object", 0, 16),
        ("a path", "/../etc/passwd", 0, 16),
        ("no key", "", 0, 16),
        ("no bytes", region_key, 0, 0),
        ("beyond its object", region_key, 0, 4097),
        ("an end that comes round", region_key, 2**64 - 1, 2),
        ("a key of 1 MiB", LONG, 0, 16),
    ):
        cases[f"a region of {what}"] = BadCall(
            "SystemSharedMemoryRegister",
            p.SystemSharedMemoryRegisterRequest(name="bad", key=key, offset=offset, byte_size=size).SerializeToString(),
            ("INVALID_ARGUMENT", "NOT_FOUND"),
        )
    for method, message in (
        ("ModelMetadata", p.ModelMetadataRequest(name="nobody")),
        ("ModelConfig", p.ModelConfigRequest(name="nobody")),
        ("ModelStatistics", p.ModelStatisticsRequest(name="nobody")),
        ("ModelMetadata", p.ModelMetadataRequest(name="tiny_mlp", version="x")),
        ("SystemSharedMemoryStatus", p.SystemSharedMemoryStatusRequest(name="none")),
        ("TraceSetting", p.TraceSettingRequest(model_name="nobody")),
    ):
        cases[f"{method} of {str(message)[:30]}".replace("\n", " ")] = BadCall(
            method, message.SerializeToString(), ("NOT_FOUND", "INVALID_ARGUMENT")
        )
    cases["an order"] = BadCall(
        "RepositoryModelLoad",
        p.RepositoryModelLoadRequest(model_name="tiny_mlp").SerializeToString(),
        ("UNIMPLEMENTED", "UNAVAILABLE", "INVALID_ARGUMENT"),
    )
    cases["CUDA's memory"] = BadCall(
        "CudaSharedMemoryRegister",
        p.CudaSharedMemoryRegisterRequest(name="x").SerializeToString(),
        ("UNIMPLEMENTED", "INVALID_ARGUMENT"),
    )
    cases["an unknown method"] = BadCall("Nothing", b"", ("UNIMPLEMENTED",))
    cases["a message beyond the limit"] = BadCall("ModelInfer", bytes(40 * MIB), ("RESOURCE_EXHAUSTED",))
    return cases


# -- what came of one


def readable(text: str) -> bool:
    return 8 <= len(text) <= 4096 and all(ord(letter) >= 32 or letter in "\n\t" for letter in text)


def fault_over_http(address: str, bad: Bad) -> str | None:
    """What is wrong with the answer; None where nothing is."""
    with connect(address) as connection:
        with contextlib.suppress(ConnectionError):  # it may have answered, and closed, before all was sent
            connection.sendall(bad.data)
        if not bad.json:
            connection.shutdown(socket.SHUT_WR)
            answer = until_closed(connection)
            if not answer:
                return None  # the connection has ended: what cannot be read need not be answered
            match = re.match(rb"HTTP/1\.[01] (\d+) ", answer)
            return None if match and int(match[1]) in bad.statuses else f"answered {answer[:200]!r}"
        try:
            status, headers, data = receive(connection)
        except (AssertionError, OSError) as error:
            return f"no answer: {error!r:.200}"
    if status not in bad.statuses:
        return f"status {status}: {data[:300]!r}"
    if headers["content-type"] != "application/json":
        return f"content type {headers['content-type']}"
    try:
        text = json.loads(data)["error"]
    except (ValueError, KeyError, TypeError):
        return f"no error message: {data[:200]!r}"
    if not readable(text):
        return f"unreadable: {text[:300]!r} ({len(text)} letters)"
    return None if bad.words in text else f"does not say {bad.words!r}: {text[:300]!r}"


def fault_over_grpc(channel, bad: BadCall) -> str | None:
    try:
        channel.unary_unary(f"/inference.GRPCInferenceService/{bad.method}")(bad.data, timeout=120)
    except grpc.RpcError as error:
        name, text = error.code().name, error.details() or ""
        if name not in bad.codes:
            return f"{name}: {text[:300]}"
        if bad.method != "Nothing" and not readable(text):
            return f"unreadable: {text[:300]!r} ({len(text)} letters)"
        return None if bad.words in text else f"does not say {bad.words!r}: {text[:300]!r}"
    return "an answer"
