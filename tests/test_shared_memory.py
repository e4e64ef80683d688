"""System shared memory with Triton's own clients: tensors that do not go through the socket."""

from __future__ import annotations

import contextlib
import os
import uuid

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
import tritonclient.utils.shared_memory as shm
from tritonclient.utils import InferenceServerException

MINUTE = 60_000_000  # of timeouts, which count microseconds
BYTES = 64 * 4  # of a row of tiny_mlp's input


@pytest.fixture(params=["http", "grpc"])
def module(request):
    return {"http": http_client, "grpc": grpc_client}[request.param]


@pytest.fixture
def client(server, module):
    address = server.http if module is http_client else server.grpc
    with module.InferenceServerClient(address) as made:
        made.unregister_system_shared_memory()
        made.unregister_cuda_shared_memory()
        yield made
        made.unregister_system_shared_memory()


@contextlib.contextmanager
def object_of(size: int):
    """A shared memory object of its own name: the client's handle, and its key."""
    key = f"/carillon_{uuid.uuid4().hex}"
    handle = shm.create_shared_memory_region(key[1:], key, size, create_only=True)
    try:
        yield handle, key
    finally:
        shm.destroy_shared_memory_region(handle)


def regions(client) -> dict[str, tuple[str, int, int]]:
    status = client.get_system_shared_memory_status()
    listed = status if isinstance(status, list) else [
        {"name": r.name, "key": r.key, "offset": r.offset, "byte_size": r.byte_size} for r in status.regions.values()]
    return {r["name"]: (r["key"], r["offset"], r["byte_size"]) for r in listed}


def by_value(client, module, values: np.ndarray) -> np.ndarray:
    tensor = module.InferInput("input", values.shape, "FP32")
    tensor.set_data_from_numpy(values)
    return client.infer("tiny_mlp", [tensor], timeout=MINUTE).as_numpy("output")


def assert_same_rows(got: np.ndarray, wanted: np.ndarray):
    """A request's rows run in whatever batches the policy makes, and kernels may add up in another order in each."""
    np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())


def test_inputs_and_outputs_in_shared_memory(client, module):
    values = np.random.default_rng(5).standard_normal([3, 64]).astype(np.float32)
    wanted = by_value(client, module, values)
    with object_of(8192) as (handle, key):
        shm.set_shared_memory_region(handle, [values], offset=128)
        client.register_system_shared_memory("in", key, 4096)
        client.register_system_shared_memory("out", key, 4096, offset=4096)
        assert regions(client) == {"in": (key, 0, 4096), "out": (key, 4096, 4096)}
        tensor = module.InferInput("input", [3, 64], "FP32")
        tensor.set_shared_memory("in", 3 * BYTES, offset=128)
        output = module.InferRequestedOutput("output")
        output.set_shared_memory("out", wanted.nbytes + 8, offset=64)
        result = client.infer("tiny_mlp", [tensor], outputs=[output], timeout=MINUTE)
        got = shm.get_contents_as_numpy(handle, np.float32, list(wanted.shape), offset=4096 + 64)
        assert_same_rows(got, wanted)
        answered = result.get_output("output")
        shape = answered["shape"] if isinstance(answered, dict) else answered.shape
        assert list(shape) == list(wanted.shape)
        del got

        # An output by value beside an input in memory, and the other way round.
        result = client.infer("tiny_mlp", [tensor], timeout=MINUTE)
        assert_same_rows(result.as_numpy("output"), wanted)
        with pytest.raises(InferenceServerException, match="shared_memory_byte_size gives it only 4"):
            output.set_shared_memory("out", 4)
            client.infer("tiny_mlp", [tensor], outputs=[output], timeout=MINUTE)


def test_many_requests_over_one_region(client, module):
    rng = np.random.default_rng(7)
    rows = rng.standard_normal([16, 64]).astype(np.float32)
    wanted = by_value(client, module, rows)
    with object_of(rows.nbytes) as (handle, key):
        shm.set_shared_memory_region(handle, [rows])
        client.register_system_shared_memory("rows", key, rows.nbytes)
        for i in range(16):
            tensor = module.InferInput("input", [1, 64], "FP32")
            tensor.set_shared_memory("rows", BYTES, offset=i * BYTES)
            got = client.infer("tiny_mlp", [tensor], timeout=MINUTE).as_numpy("output")
            assert_same_rows(got, wanted[i:i + 1])


def test_what_is_wrong_is_said(client, module):
    with object_of(4096) as (_, key):
        for bad, size, words in [("/carillon_nobody", 8, "cannot be opened"), ("/../etc/passwd", 8, "not a name"),
                                 (key, 4097, "4096")]:
            with pytest.raises(InferenceServerException, match=words):
                client.register_system_shared_memory("r", bad, size)
        client.register_system_shared_memory("r", key, 4096)
        with pytest.raises(InferenceServerException, match="registered already"):
            client.register_system_shared_memory("r", key, 4096)
        for region, size, offset, words in [("nobody", BYTES, 0, "nobody"), ("r", BYTES, 4000, "lead out of"),
                                            ("r", BYTES - 4, 0, "takes 256")]:
            tensor = module.InferInput("input", [1, 64], "FP32")  # it would keep an offset for one of 0
            tensor.set_shared_memory(region, size, offset=offset)
            with pytest.raises(InferenceServerException, match=words):
                client.infer("tiny_mlp", [tensor], timeout=MINUTE)
        client.unregister_system_shared_memory("r")
        client.unregister_system_shared_memory("r")
        assert regions(client) == {}
        with pytest.raises(InferenceServerException, match="'r'"):
            client.get_system_shared_memory_status("r")


def test_an_object_that_is_cut_costs_its_owner_an_error(client, module):
    with object_of(1 << 20) as (_, key):
        client.register_system_shared_memory("r", key, 1 << 20)
        tensor = module.InferInput("input", [1, 64], "FP32")
        tensor.set_shared_memory("r", BYTES, offset=1 << 19)
        client.infer("tiny_mlp", [tensor], timeout=MINUTE)
        os.truncate("/dev/shm" + key, 0)
        with pytest.raises(InferenceServerException, match="become shorter"):
            client.infer("tiny_mlp", [tensor], timeout=MINUTE)
        output = module.InferRequestedOutput("output")
        output.set_shared_memory("r", 4096)
        whole = module.InferInput("input", [1, 64], "FP32")
        whole.set_data_from_numpy(np.zeros([1, 64], np.float32))
        with pytest.raises(InferenceServerException, match="become shorter"):
            client.infer("tiny_mlp", [whole], outputs=[output], timeout=MINUTE)
        assert os.stat("/dev/shm" + key).st_size == 0
        assert client.is_server_live()


def test_cuda_shared_memory_is_refused_without_a_device(client, module):
    status = client.get_cuda_shared_memory_status()
    assert status == [] if isinstance(status, list) else len(status.regions) == 0
    with pytest.raises(InferenceServerException, match="system shared memory"):
        client.register_cuda_shared_memory("c", b"aGFuZGxl", 0, 64)
    client.unregister_cuda_shared_memory("c")


def test_the_extension_is_named(client):
    metadata = client.get_server_metadata()
    extensions = metadata["extensions"] if isinstance(metadata, dict) else list(metadata.extensions)
    assert "system_shared_memory" in extensions
    assert "cuda_shared_memory" not in extensions
