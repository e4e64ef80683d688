"""Triton's classification extension: the largest values as text, with labels where the repository has them."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
import tritonclient.utils.shared_memory as shared_memory
from onnx import TensorProto, helper
from tritonclient.utils import InferenceServerException

from loopback import serving, write_model
from raw_http import MINUTE, ask, post

LABELS = ["cat", "dog: brown", "", "Füchse"]
ROWS = np.array([[0.25, 3, -1, 2, 9], [7, 7, 1, np.nan, 0]], np.float32)
ANSWER = [[b"9.000000:4", b"3.000000:1:dog: brown", b"2.000000:3:F\xc3\xbcchse"],
          [b"7.000000:0:cat", b"7.000000:1:dog: brown", b"1.000000:2:"]]


@pytest.fixture(scope="module")
def server(program, tmp_path_factory):
    models = tmp_path_factory.mktemp("models")

    def value(name):
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 5])

    write_model(models, "same", [helper.make_node("Identity", ["x"], ["y"])], [value("x")], value("y"))
    (models / "same" / "labels.txt").write_text("\n".join(LABELS) + "\n")
    (models / "same" / "config.pbtxt").write_text(
        'max_batch_size: 4\noutput { name: "y" data_type: TYPE_FP32 dims: [ 5 ] label_filename: "labels.txt" }')
    with serving(program, models, tmp_path_factory.mktemp("log") / "log") as running:
        yield running


@pytest.fixture(params=["http", "grpc"])
def client(request, server):
    module = http_client if request.param == "http" else grpc_client
    with module.InferenceServerClient(server.http if module is http_client else server.grpc) as opened:
        opened.module = module
        yield opened


def rows_of(client):
    tensor = client.module.InferInput("x", list(ROWS.shape), "FP32")
    tensor.set_data_from_numpy(ROWS)
    return [tensor]


def output(client, count, **more):
    if client.module is grpc_client:
        more.pop("binary_data", None)
    return client.module.InferRequestedOutput("y", class_count=count, **more)


@pytest.mark.parametrize("binary", [True, False])
def test_the_largest_with_their_labels(client, binary):
    result = client.infer("same", rows_of(client), outputs=[output(client, 3, binary_data=binary)], timeout=MINUTE)
    got = result.as_numpy("y")
    assert got.shape == (2, 3)
    assert [[text if isinstance(text, bytes) else text.encode() for text in row] for row in got] == ANSWER


def test_no_more_than_there_are(client):
    result = client.infer("same", rows_of(client), outputs=[output(client, 1000)], timeout=MINUTE)
    assert result.as_numpy("y").shape == (2, 5)


def test_into_shared_memory(server):
    """Triton's own clients do not ask for it."""
    room = shared_memory.create_shared_memory_region("classes", "/carillon_test_classes", 4096)
    with http_client.InferenceServerClient(server.http) as client:
        try:
            client.register_system_shared_memory("classes", "/carillon_test_classes", 4096)

            def asked(room: int):
                request = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 5], "data": [1, 2, 5, 4, 3]}],
                           "outputs": [{"name": "y", "parameters": {
                               "classification": 2, "shared_memory_region": "classes", "shared_memory_byte_size": room}}]}
                return ask(server.http, post(json.dumps(request).encode(), path="/v2/models/same/infer"))

            status, _, answer = asked(4096)
            assert status == 200, answer
            assert shared_memory.get_contents_as_numpy(room, np.object_, [1, 2]).tolist() == [
                [b"5.000000:2:", b"4.000000:3:F\xc3\xbcchse"]]
            status, _, answer = asked(16)
            assert status == 400 and b"16" in answer
        finally:
            client.unregister_system_shared_memory("classes")
            shared_memory.destroy_shared_memory_region(room)


@pytest.mark.parametrize("count", ["-1", "1.5", "true", "\"3\"", "[1]", "1e30"])
def test_what_is_no_count_is_refused(server, count):
    body = ('{"inputs":[{"name":"x","datatype":"FP32","shape":[1,5],"data":[1,2,3,4,5]}],'
            '"outputs":[{"name":"y","parameters":{"classification":%s}}]}' % count)
    status, _, answer = ask(server.http, post(body.encode(), path="/v2/models/same/infer"))
    assert status == 400 and b"classification" in answer
