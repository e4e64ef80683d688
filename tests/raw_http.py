"""HTTP by the byte, for clients that a library would not be."""

from __future__ import annotations

import contextlib
import json
import socket
import urllib.error
import urllib.request

MINUTE = 60_000_000  # of timeouts, which count microseconds
INFER = "/v2/models/tiny_mlp/infer"


def connect(address: str, timeout: float = 120) -> socket.socket:
    host, port = address.split(":")
    return socket.create_connection((host, int(port)), timeout=timeout)


def until_closed(connection: socket.socket) -> bytes:
    """All that comes. A reset is an end like any other."""
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := connection.recv(65536):
            received += piece
    return received


def receive(connection: socket.socket, head_only: bool = False) -> tuple[int, dict[str, str], bytes]:
    """One response: status, headers (names in lower case), body."""
    data = b""
    while b"\r\n\r\n" not in data:
        piece = connection.recv(65536)
        assert piece, f"the connection ended after {data!r}"
        data += piece
    head, body = data.split(b"\r\n\r\n", 1)
    lines = head.decode().split("\r\n")
    headers = {name.lower(): value.strip() for name, value in (line.split(":", 1) for line in lines[1:])}
    while not head_only and len(body) < int(headers["content-length"]):
        piece = connection.recv(65536)
        assert piece, "the connection ended within a body"
        body += piece
    return int(lines[0].split()[1]), headers, body


def ask(address: str, request: bytes) -> tuple[int, dict[str, str], bytes]:
    with connect(address) as connection:
        connection.sendall(request)
        return receive(connection)


def post(body: bytes, path: str = INFER, **headers: str) -> bytes:
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return f"POST {path} HTTP/1.1\r\nHost: t\r\n{lines}Content-Length: {len(body)}\r\n\r\n".encode() + body


def get(address: str, path: str) -> tuple[int, dict]:
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=60) as response:
            return response.status, json.loads(response.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())
