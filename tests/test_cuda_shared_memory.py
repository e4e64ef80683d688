"""CUDA shared memory with Triton's own clients: tensors in a client's memory on a device, which the server opens by a
handle. Without a GPU: the server has the emulated device (of the preset cuda also the stand-in for a driver), and the
client the stand-in. CARILLON_GPU=1 does the same with a real driver, on cuda:0."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from tritonclient.utils import InferenceServerException

import bad_inputs
from lent_cuda import Lender
from loopback import serving
from raw_http import ask, post

MINUTE = 60_000_000  # of timeouts, which count microseconds
BYTES = 64 * 4  # of a row of tiny_mlp's input
REAL = os.environ.get("CARILLON_GPU") == "1"
DEVICES = ["cuda:0"] if REAL else ["cuda-emulated", "cuda:0"]


@pytest.fixture(scope="module")
def driver(program) -> str:
    if REAL:
        return "libcuda.so.1"
    library = program.parent / "cuda_standin" / "libcuda.so.1"
    if not library.exists():
        pytest.skip("the stand-in for a driver is not built")
    return str(library)


@pytest.fixture(scope="module")
def lender(driver) -> Lender:
    return Lender(driver)


@pytest.fixture(scope="module", params=DEVICES)
def server(request, program, driver, tiny_models, tmp_path_factory):
    options, environment = ["--device", request.param, "--io-cache", "16MiB", "--workspace", "16MiB"], None
    if request.param == "cuda:0" and not REAL:
        folder = str(Path(driver).parent)
        options += ["--cuda-libraries", folder]
        environment = {"LD_LIBRARY_PATH": folder}
        facts = subprocess.run([str(program.parent / "carillon_gpu"), "facts", "--device", "cuda:0", "--cuda-libraries", folder],
                               capture_output=True, text=True, timeout=120, env={**os.environ, **environment})
        if "built without kernels for GPUs" in facts.stderr:
            pytest.skip("this program was built without kernels for GPUs: preset cuda builds them")
    with serving(program, tiny_models, tmp_path_factory.mktemp("log") / "server.log", *options,
                 environment=environment) as running:
        yield running


@pytest.fixture
def client(server, module):
    with module.InferenceServerClient(server.http if module is http_client else server.grpc) as made:
        made.unregister_cuda_shared_memory()
        yield made
        made.unregister_cuda_shared_memory()


def regions(client) -> dict[str, tuple[int, int]]:
    status = client.get_cuda_shared_memory_status()
    listed = status if isinstance(status, list) else [
        {"name": r.name, "device_id": r.device_id, "byte_size": r.byte_size} for r in status.regions.values()]
    return {r["name"]: (r["device_id"], r["byte_size"]) for r in listed}


def open_loans(server) -> int:
    """Of the stand-in's: memory of others that the server has mapped."""
    maps = Path(f"/proc/{server.process.pid}/maps").read_text()
    return sum("memfd:carillon-emulated" in line and " rw-s " in line for line in maps.splitlines())


def in_region(module, region: str, rows: int, offset: int = 0):
    tensor = module.InferInput("input", [rows, 64], "FP32")
    tensor.set_shared_memory(region, rows * BYTES, offset=offset)
    return tensor


def by_value(client, module, values: np.ndarray) -> np.ndarray:
    tensor = module.InferInput("input", values.shape, "FP32")
    tensor.set_data_from_numpy(values)
    return client.infer("tiny_mlp", [tensor], timeout=MINUTE).as_numpy("output")


def assert_same_rows(got: np.ndarray, wanted: np.ndarray):
    """A request's rows run in whatever batches the policy makes, and kernels may add up in another order in each."""
    np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())


def test_inputs_and_outputs_on_the_device(server, client, module, lender):
    values = np.random.default_rng(5).standard_normal([3, 64]).astype(np.float32)
    wanted = by_value(client, module, values)
    before = open_loans(server)
    with lender.take(8192) as memory, lender.take(4096) as other:
        memory.put(values, 128)
        client.register_cuda_shared_memory("in", memory.raw_handle, 0, 4096)
        client.register_cuda_shared_memory("all", memory.raw_handle, 0, 8192)
        client.register_cuda_shared_memory("out", other.raw_handle, 0, 4096)
        assert regions(client) == {"all": (0, 8192), "in": (0, 4096), "out": (0, 4096)}
        output = module.InferRequestedOutput("output")
        output.set_shared_memory("out", wanted.nbytes + 8, offset=64)
        result = client.infer("tiny_mlp", [in_region(module, "in", 3, 128)], outputs=[output], timeout=MINUTE)
        assert_same_rows(other.get(np.float32, wanted.shape, 64), wanted)
        assert not other.get(np.uint8, 64).any() and not other.get(np.uint8, 8, 64 + wanted.nbytes).any()
        answered = result.get_output("output")
        assert list(answered["shape"] if isinstance(answered, dict) else answered.shape) == list(wanted.shape)

        # By value beside what lies on the device; and from and to one piece of memory.
        result = client.infer("tiny_mlp", [in_region(module, "in", 3, 128)], timeout=MINUTE)
        assert_same_rows(result.as_numpy("output"), wanted)
        output.set_shared_memory("all", wanted.nbytes, offset=8192 - wanted.nbytes)
        client.infer("tiny_mlp", [in_region(module, "in", 3, 128)], outputs=[output], timeout=MINUTE)
        assert_same_rows(memory.get(np.float32, wanted.shape, 8192 - wanted.nbytes), wanted)
        with pytest.raises(InferenceServerException, match="shared_memory_byte_size gives it only 4"):
            output = module.InferRequestedOutput("output")  # it would keep an offset for one of 0
            output.set_shared_memory("out", 4)
            client.infer("tiny_mlp", [in_region(module, "in", 3, 128)], outputs=[output], timeout=MINUTE)

        client.unregister_cuda_shared_memory("in")
        assert set(regions(client)) == {"all", "out"}
        client.unregister_system_shared_memory()
        assert set(regions(client)) == {"all", "out"}
        client.unregister_cuda_shared_memory()
        assert regions(client) == {}
        if not REAL:
            assert open_loans(server) == before


def test_the_extension_is_named(client):
    metadata = client.get_server_metadata()
    extensions = metadata["extensions"] if isinstance(metadata, dict) else list(metadata.extensions)
    assert {"cuda_shared_memory", "system_shared_memory"} <= set(extensions)


def test_what_is_wrong_is_said(client, module, lender):
    with lender.take(4096) as memory:
        good = memory.raw_handle
        freed = lender.take(64)
        with freed:
            of_freed = freed.raw_handle
        wrong = [(good, 0, 0, "byte size 0"), (good, 1, 64, "device_id 1 is no CUDA device of this server; it has 0"),
                 (good, -1, 64, "device_id -1"), (good[:84], 0, 64, "63 bytes"), (b"", 0, 64, "0 bytes"),
                 (b"A" * 86 + b"==", 0, 64, "CUDA_ERROR_")]
        if not REAL:  # a real driver may open what was freed, and lends whole granules
            wrong += [(of_freed, 0, 64, "CUDA_ERROR_"), (good, 0, 4097, "has 4096 bytes"),
                      (good, 0, 2**63, "has 4096 bytes")]
        for handle, device, size, words in wrong:
            with pytest.raises(InferenceServerException, match=words):
                client.register_cuda_shared_memory("r", handle, device, size)
        client.register_cuda_shared_memory("r", good, 0, 4096)
        with pytest.raises(InferenceServerException, match="registered already"):
            client.register_cuda_shared_memory("r", good, 0, 4096)
        for region, size, offset, words in [("nobody", BYTES, 0, "nobody"), ("r", BYTES, 4000, "lead out of"),
                                            ("r", BYTES, 2**63 - 8, "lead out of"), ("r", BYTES - 4, 0, "takes 256")]:
            tensor = module.InferInput("input", [1, 64], "FP32")
            tensor.set_shared_memory(region, size, offset=offset)
            with pytest.raises(InferenceServerException, match=words):
                client.infer("tiny_mlp", [tensor], timeout=MINUTE)
        client.unregister_cuda_shared_memory("r")
        client.unregister_cuda_shared_memory("r")
        with pytest.raises(InferenceServerException, match="'r'"):
            client.get_cuda_shared_memory_status("r")


def test_each_bad_order(server, lender):
    """What no client of Triton's writes, over HTTP."""
    with lender.take(64) as memory:
        bad = bad_inputs.cuda_orders(memory.raw_handle.decode(), 64)
        wrong = {name: fault for name, each in bad.items() if (fault := bad_inputs.fault_over_http(server.http, each))}
    assert not wrong, "\n".join(f"{name}: {fault}" for name, fault in wrong.items())
    status, _, answer = ask(server.http, post(bad_inputs.body()))
    assert status == 200, answer


def test_many_requests_side_by_side_over_one_region(server, module, client, lender):
    rows = np.random.default_rng(7).standard_normal([16, 64]).astype(np.float32)
    wanted = by_value(client, module, rows)
    size = wanted[0].nbytes
    faults: list[str] = []
    with lender.take(rows.nbytes + wanted.nbytes) as memory:
        memory.put(rows)
        client.register_cuda_shared_memory("rows", memory.raw_handle, 0, memory.size)

        def ask_for(which: range) -> None:
            with module.InferenceServerClient(server.http if module is http_client else server.grpc) as own:
                for _ in range(10):
                    for i in which:
                        output = module.InferRequestedOutput("output")
                        output.set_shared_memory("rows", size, offset=rows.nbytes + i * size)
                        try:
                            own.infer("tiny_mlp", [in_region(module, "rows", 1, i * BYTES)], outputs=[output], timeout=MINUTE)
                        except InferenceServerException as error:
                            faults.append(str(error))

        threads = [threading.Thread(target=ask_for, args=(range(4 * i, 4 * i + 4),)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not faults, faults[:3]
        np.testing.assert_allclose(memory.get(np.float32, wanted.shape, rows.nbytes), wanted, rtol=1e-4, atol=1e-5)


def test_over_a_stream(server, lender):
    rows = np.random.default_rng(9).standard_normal([8, 64]).astype(np.float32)
    with grpc_client.InferenceServerClient(server.grpc) as client, lender.take(rows.nbytes) as memory:
        wanted = by_value(client, grpc_client, rows)
        memory.put(rows)
        client.register_cuda_shared_memory("rows", memory.raw_handle, 0, memory.size)
        answers: queue.Queue = queue.Queue()
        client.start_stream(lambda result, error: answers.put((result, error)))
        for i in range(8):
            client.async_stream_infer("tiny_mlp", [in_region(grpc_client, "rows", 1, i * BYTES)], request_id=str(i),
                                      parameters={}, timeout=MINUTE)
        for _ in range(8):
            result, error = answers.get(timeout=60)
            assert error is None, error
            i = int(result.get_response().id)
            np.testing.assert_allclose(result.as_numpy("output"), wanted[i:i + 1], rtol=1e-4, atol=1e-5)
        client.stop_stream()
        client.unregister_cuda_shared_memory()


LENDS_AND_ENDS = """
import sys
sys.path.insert(0, sys.argv[1])
import numpy as np
from lent_cuda import Lender
memory = Lender(sys.argv[2]).take(256)
memory.put(np.full(64, 0.5, np.float32))
print(memory.raw_handle.decode(), flush=True)
sys.stdin.readline()
"""


def test_a_client_that_ends(server, client, module, driver):
    """What it lent is there until it is unregistered, and cannot be registered any more."""
    child = subprocess.Popen([sys.executable, "-c", LENDS_AND_ENDS, str(Path(__file__).parent), driver],
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    handle = child.stdout.readline().strip().encode()
    client.register_cuda_shared_memory("left", handle, 0, 256)
    wanted = by_value(client, module, np.full([1, 64], 0.5, np.float32))
    child.communicate("\n", timeout=60)
    assert child.returncode == 0
    got = client.infer("tiny_mlp", [in_region(module, "left", 1)], timeout=MINUTE).as_numpy("output")
    np.testing.assert_array_equal(got, wanted)
    client.unregister_cuda_shared_memory("left")
    with pytest.raises(InferenceServerException, match="CUDA_ERROR_"):
        client.register_cuda_shared_memory("left", handle, 0, 256)


KEYS = """
[[key]]
name = "owner"
secret = "owner-secret-0123456789"
roles = ["infer", "admin"]
[[key]]
name = "friend"
secret = "friend-secret-0123456789"
regions = ["cam-*"]
[[key]]
name = "stranger"
secret = "stranger-secret-0123456789"
"""


def test_a_region_is_for_the_key_that_registered_it(program, tiny_models, lender, module, tmp_path):
    if REAL:
        pytest.skip("it is the same with a real driver")
    keys = tmp_path / "keys.toml"
    keys.write_text(KEYS)
    keys.chmod(0o600)
    values = np.full([1, 64], 0.25, np.float32)
    with serving(program, tiny_models, tmp_path / "log", "--device", "cuda-emulated", "--io-cache", "16MiB", "--workspace",
                 "16MiB", "--keys", str(keys)) as server, \
            module.InferenceServerClient(server.http if module is http_client else server.grpc) as client, \
            lender.take(256) as memory:
        def key(name: str) -> dict[str, str]:
            return {"authorization": f"Bearer {name}-secret-0123456789"}

        memory.put(values)
        for region in ("mine", "cam-1"):
            with pytest.raises(InferenceServerException, match="role 'admin'"):
                client.register_cuda_shared_memory(region, memory.raw_handle, 0, 256, headers=key("friend"))
            client.register_cuda_shared_memory(region, memory.raw_handle, 0, 256, headers=key("owner"))
        for region, name, may in (("mine", "owner", True), ("cam-1", "owner", True), ("cam-1", "friend", True),
                                  ("mine", "friend", False), ("mine", "stranger", False), ("cam-1", "stranger", False)):
            def infer(region=region, name=name):
                return client.infer("tiny_mlp", [in_region(module, region, 1)], timeout=MINUTE, headers=key(name))

            if may:
                assert infer().as_numpy("output") is not None
            else:
                with pytest.raises(InferenceServerException, match=f"'{region}' is registered that key '{name}' may name"):
                    infer()
        for call in (lambda: client.unregister_cuda_shared_memory(headers=key("friend")),
                     lambda: client.get_cuda_shared_memory_status(headers=key("stranger"))):
            with pytest.raises(InferenceServerException, match="role 'admin'"):
                call()
        client.unregister_cuda_shared_memory(headers=key("owner"))
