"""What large JSON takes while it is read is there before its body is let in: who is let in is served."""

from __future__ import annotations

import socket
import threading

import pytest
from onnx import TensorProto, helper

from loopback import serving, write_model

MEBI = 1 << 20
NUMBERS = 5 * MEBI // 8  # "0.5," each: 2.5 MiB of JSON
LIMIT = 64 * MEBI
# 56 MiB for large bodies, of which 40 are for reading one of them at a time.
AT_ONCE = (LIMIT * 7 // 8) // (5 * MEBI // 2) - 16


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("charges")
    write_model(folder, "sum", [helper.make_node("ReduceSum", ["x"], ["y"], keepdims=0)],
                [helper.make_tensor_value_info("x", TensorProto.FLOAT, [NUMBERS])],
                helper.make_tensor_value_info("y", TensorProto.FLOAT, []))
    return folder


@pytest.fixture(scope="module")
def server(program, models, tmp_path_factory):
    with serving(program, models, tmp_path_factory.mktemp("log") / "server.log", "--inflight-limit", "64MiB") as running:
        yield running


def body():
    numbers = "0.5," * NUMBERS
    return ('{"inputs":[{"name":"x","datatype":"FP32","shape":[%d],"data":[%s]}]}' % (NUMBERS, numbers[:-1])).encode()


class Asked:
    """A request that asks whether it may send its body."""

    def __init__(self, address: str, size: int):
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout=60)
        self.socket.sendall(b"POST /v2/models/sum/infer HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n"
                            b"Content-Length: %d\r\n\r\n" % size)
        self.file = self.socket.makefile("rb")
        self.status = self.take_status()

    def take_status(self) -> int:
        status = int(self.file.readline().split()[1])
        self.headers = {}
        while (line := self.file.readline().strip()):
            name, value = line.decode().split(":", 1)
            self.headers[name.lower()] = value.strip()
        return status

    def close(self):
        self.file.close()
        self.socket.close()


def test_what_is_let_in_is_served(server):
    sent = body()
    asked = [Asked(server.http, len(sent)) for _ in range(48)]
    try:
        let_in = [each for each in asked if each.status == 100]
        refused = [each for each in asked if each.status != 100]
        assert {each.status for each in refused} == {503}
        assert all("retry-after" in each.headers for each in refused)
        assert AT_ONCE - 1 <= len(let_in) <= AT_ONCE

        def send(each):
            each.socket.sendall(sent)
            each.status = each.take_status()

        threads = [threading.Thread(target=send, args=(each,)) for each in let_in]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [each.status for each in let_in] == [200] * len(let_in)
    finally:
        for each in asked:
            each.close()
    # Then there is room again.
    again = Asked(server.http, len(sent))
    assert again.status == 100
    again.socket.sendall(sent)
    assert again.take_status() == 200
    again.close()
