"""One bound over all that the server has resident (--memory): what it is divided into, what is refused, and what is
given back."""

import contextlib
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from loopback import free_addresses, rss_of, serving, write_model

MIB = 1 << 20


def children_of(pid: int) -> list[int]:
    found = []
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            if folder.name.isdigit() and int((folder / "stat").read_text().rsplit(") ", 1)[1].split()[1]) == pid:
                found.append(int(folder.name))
    return found


def tree_rss(pid: int) -> int:
    return rss_of(pid) + sum(tree_rss(child) for child in children_of(pid))


def figure(server, name: str) -> float:
    return float(re.search(rf"^{re.escape(name)} (\S+)$", server.scrape(), re.MULTILINE).group(1))


def serve_until_refused(program, models, *options: str) -> subprocess.CompletedProcess:
    http, grpc, metrics = free_addresses(3)
    return subprocess.run([str(program), "serve", "--models", str(models), "--http", http, "--grpc", grpc, "--metrics", metrics,
                           *options], capture_output=True, text=True, timeout=60, check=False)


@contextlib.contextmanager
def bounded(program, models, tmp_path, memory: str, *options: str):
    """Without a --page-cache of the test's own."""
    with serving(program, models, tmp_path / "log", "--memory", memory, "--store", str(tmp_path / "store"), *options,
                 page_cache=None) as server:
        yield server


def ask(server, name: str, values: np.ndarray, client):
    tensor = client.InferInput("input" if name.startswith("tiny") else "x", values.shape, "FP32")
    tensor.set_data_from_numpy(values)
    with client.InferenceServerClient(server.http) as connection:
        return connection.infer(name, [tensor])


@pytest.fixture
def mlp(tiny_models, tmp_path):
    """A repository of tiny_mlp alone."""
    shutil.copytree(tiny_models / "tiny_mlp", tmp_path / "models" / "tiny_mlp")
    return tmp_path / "models"


def write_product(models: Path, name: str, extent: int, kind=np.float32, layers: int = 1) -> None:
    """`layers` products with square matrices."""
    from onnx import TensorProto, helper, numpy_helper
    nodes, weights, value = [], [], "x"
    rng = np.random.default_rng(1)
    for layer in range(layers):
        matrix = rng.standard_normal((extent, extent)).astype(np.float32)
        if kind == np.int8:
            weights += [numpy_helper.from_array((matrix * 20).clip(-127, 127).astype(np.int8), f"q{layer}"),
                        numpy_helper.from_array(np.float32(0.05), f"s{layer}")]
            nodes.append(helper.make_node("DequantizeLinear", [f"q{layer}", f"s{layer}"], [f"w{layer}"]))
        elif kind == np.float16:
            weights.append(numpy_helper.from_array(matrix.astype(np.float16), f"h{layer}"))
            nodes.append(helper.make_node("Cast", [f"h{layer}"], [f"w{layer}"], to=TensorProto.FLOAT))
        else:
            weights.append(numpy_helper.from_array(matrix, f"w{layer}"))
        nodes.append(helper.make_node("MatMul", [value, f"w{layer}"], [f"y{layer}"]))
        value = f"y{layer}"
    io = [helper.make_tensor_value_info(text, TensorProto.FLOAT, ["b", extent]) for text in ("x", value)]
    write_model(models, name, nodes, [io[0]], io[1], weights)


# -- parts


@pytest.mark.parametrize("memory", ["256MiB", "512MiB"])
def test_a_small_bound_serves_a_small_model(program, mlp, tmp_path, memory):
    import tritonclient.http as client
    bound = int(memory.removesuffix("MiB")) * MIB
    with bounded(program, mlp, tmp_path, memory) as server:
        row = np.arange(64, dtype=np.float32).reshape(1, 64)
        first = ask(server, "tiny_mlp", row, client).as_numpy("output")
        for _ in range(200):
            np.testing.assert_allclose(ask(server, "tiny_mlp", row, client).as_numpy("output"), first, rtol=1e-5)
        assert figure(server, "carillon_memory_limit_bytes") == bound
        resident = figure(server, "carillon_memory_resident_bytes")
        assert abs(resident - tree_rss(server.process.pid)) < 8 * MIB
        assert resident < bound
        assert resident < 150 * MIB  # of one small model
        parts = dict(re.findall(r'^carillon_memory_bytes\{part="(\w+)"\} (\S+)$', server.scrape(), re.MULTILINE))
        assert {"libraries", "weights", "tensors", "workspace", "plans", "sizes", "processes", "loading", "bodies"} == set(parts)
        assert float(parts["plans"]) > 0 and float(parts["loading"]) == 0
    log = (tmp_path / "log").read_text()
    assert len(re.findall(r"memory: at most .* \(--memory\): libraries .*, weights .*, bodies .*, models ", log)) == 1


def test_weights_that_are_loaded_are_told_as_large_as_they_are(program, tmp_path):
    import tritonclient.http as client
    models = tmp_path / "models"
    write_product(models, "product", 1024, layers=2)  # 8 MiB
    with bounded(program, models, tmp_path, "512MiB") as server:
        ask(server, "product", np.zeros((1, 1024), np.float32), client)
        weights = figure(server, 'carillon_memory_bytes{part="weights"}')
        assert 0 < weights < figure(server, "carillon_memory_limit_bytes")
        assert 8 * MIB <= weights <= 10 * MIB


def test_auto_tells_where_the_bound_comes_from(program, mlp, tmp_path):
    with bounded(program, mlp, tmp_path, "auto") as server:
        assert figure(server, "carillon_memory_limit_bytes") > 256 * MIB
    assert re.search(r"memory: at most .* \((the machine's memory|what others leave of .*|/.*)\): libraries",
                     (tmp_path / "log").read_text())


@pytest.mark.parametrize(("options", "status", "says"), [
    (["--memory", "64MiB"], 2, [r"--memory 64MiB is too small: at least \d+MiB", "libraries and threads", "--page-cache at least"]),
    (["--memory", "much"], 2, ["--memory", "much"]),
    (["--memory", "1GiB", "--page-cache", "512MiB", "--io-cache", "512MiB", "--workspace", "64MiB", "--sizes-memory", "32MiB",
      "--inflight-limit", "128MiB"], 2,
     [r"--memory 1GiB is too small: at least \d+MiB", "--page-cache 512.0 MiB", "--io-cache 512.0 MiB",
      r"--workspace \S+ MiB \(\d+ of 64.0 MiB\)", "--sizes-memory 32.0 MiB", "--inflight-limit, with gRPC's buffers, 256.0 MiB",
      "libraries and threads"]),
    (["--memory", "1GiB", "--inflight-limit", "32MiB", "--body-limit", "64MiB"], 2, ["could never be read"]),
])
def test_parts_above_the_bound_are_named(program, mlp, options, status, says):
    done = serve_until_refused(program, mlp, *options)
    assert done.returncode == status, done.stderr
    for text in says:
        assert re.search(text, done.stderr), done.stderr


# -- models


@pytest.mark.parametrize("kind", [np.float32, np.float16, np.int8])
def test_what_does_not_fit_is_refused_by_name_and_others_serve(program, mlp, tmp_path, kind):
    import tritonclient.http as client
    write_product(mlp, "large", 2048, kind, layers=6)  # 96 MiB as f32
    with bounded(program, mlp, tmp_path, "256MiB", "--strict-readiness", "false") as server:
        ask(server, "tiny_mlp", np.zeros((1, 64), np.float32), client)
        with pytest.raises(client.InferenceServerException, match=r"too small for model 'large': at least \d+MiB"):
            ask(server, "large", np.zeros((1, 2048), np.float32), client)
        peak = int(re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{server.process.pid}/status").read_text()).group(1)) * 1024
        assert peak < 150 * MIB  # it was not tried


@pytest.mark.parametrize("kind", [np.float32, np.float16, np.int8])
def test_what_is_said_to_be_enough_is_enough(program, tmp_path, kind):
    import tritonclient.http as client
    models = tmp_path / "models"
    write_product(models, "large", 1536, kind, layers=4)  # 36 MiB as f32
    with bounded(program, models, tmp_path, "256MiB", "--strict-readiness", "false") as server:
        with pytest.raises(client.InferenceServerException, match="too small for model 'large'"):
            ask(server, "large", np.zeros((1, 1536), np.float32), client)
    enough = re.search(r"is too small for model 'large': at least (\d+MiB)", (tmp_path / "log").read_text()).group(1)
    with bounded(program, models, tmp_path, enough) as server:
        ask(server, "large", np.zeros((1, 1536), np.float32), client)
        peak = int(re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{server.process.pid}/status").read_text()).group(1)) * 1024
        assert peak < int(enough.removesuffix("MiB")) * MIB


@pytest.mark.parametrize(("models", "extent", "layers"), [(1, 1000, 12), (1, 1536, 4), (3, 1024, 6)])
def test_without_a_store_too_what_is_said_to_be_enough_is_enough(program, tmp_path, models, extent, layers):
    """Weights then stay in memory, and measuring takes them once more."""
    import tritonclient.http as client
    for i in range(models):
        write_product(tmp_path / "models", f"large{i}", extent, layers=layers)
    def started(memory: str, *options: str):
        return serving(program, tmp_path / "models", tmp_path / "log", "--memory", memory, "--no-store", *options, page_cache=None)

    with started("220MiB", "--strict-readiness", "false"):
        pass
    named = {int(n) for n in re.findall(r"too small for model 'large\d'[^;]*: at least (\d+)MiB", (tmp_path / "log").read_text())}
    with started(f"{min(named)}MiB", "--strict-readiness", "false") as server:
        for i in range(models):
            ask(server, f"large{i}", np.zeros((1, extent), np.float32), client)
        peak = int(re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{server.process.pid}/status").read_text()).group(1)) * 1024
        assert peak < min(named) * MIB
    assert "too small" not in (tmp_path / "log").read_text()


def test_processes_of_other_engines_count(program, mlp, tmp_path):
    import tritonclient.http as client
    if not (program.parent / "carillon-openvino").exists():
        pytest.skip("OpenVINO is not built in")
    config = mlp / "tiny_mlp" / "config.pbtxt"
    config.write_text(config.read_text() + '\nparameters { key: "engine" value { string_value: "openvino" } }\n')
    with bounded(program, mlp, tmp_path, "256MiB", "--strict-readiness", "false") as server:
        with pytest.raises(client.InferenceServerException, match=r"--memory 256MiB is too small for model 'tiny_mlp': at least \d+MiB"):
            ask(server, "tiny_mlp", np.zeros((1, 64), np.float32), client)
        assert not children_of(server.process.pid)
    enough = re.search(r"is too small for model 'tiny_mlp': at least (\d+MiB)", (tmp_path / "log").read_text()).group(1)
    with bounded(program, mlp, tmp_path, enough) as server:
        ask(server, "tiny_mlp", np.zeros((1, 64), np.float32), client)
        process, = children_of(server.process.pid)
        assert abs(figure(server, 'carillon_memory_bytes{part="processes"}') - rss_of(process)) < 16 * MIB
        resident = figure(server, "carillon_memory_resident_bytes")
        assert abs(resident - tree_rss(server.process.pid)) < 8 * MIB
        assert resident < int(enough.removesuffix("MiB")) * MIB


def test_memory_of_models_that_go_comes_back(program, mlp, tmp_path):
    import tritonclient.http as client
    write_product(mlp, "product", 1024, layers=2)  # 8 MiB
    with bounded(program, mlp, tmp_path, "512MiB", "--model-control-mode", "explicit") as server:
        with client.InferenceServerClient(server.http, network_timeout=120, connection_timeout=120) as connection:
            def round_trip() -> None:
                connection.load_model("product")
                connection.unload_model("product")

            def settled() -> int:
                import time
                limit = time.monotonic() + 20
                while figure(server, 'carillon_memory_bytes{part="plans"}') > 0 and time.monotonic() < limit:
                    time.sleep(0.1)
                time.sleep(0.3)
                return tree_rss(server.process.pid)

            for _ in range(5):
                round_trip()
            before = settled()
            for _ in range(50):
                round_trip()
            after = settled()
        assert figure(server, 'carillon_memory_bytes{part="plans"}') == 0
        assert figure(server, 'carillon_memory_bytes{part="loading"}') == 0
        assert after < 1.05 * before, (before, after)
