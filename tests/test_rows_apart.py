"""Models in which the rows of a request see each other: whoever asks beside another gets what the file says of its
own rows alone, one row or several, with a config or without."""

from __future__ import annotations

import re
import threading

import numpy as np
import onnx
import onnxruntime
import pytest
import tritonclient.http as http_client
from onnx import TensorProto, helper, numpy_helper
from tritonclient.utils import InferenceServerException

from loopback import serving, write_model
from raw_http import MINUTE

END = 2**63 - 1
MOST = 6  # rows that configs allow


def node(op, inputs, output="y", name="", **attributes):
    return helper.make_node(op, inputs, output if isinstance(output, list) else [output], name=name, **attributes)


def whole(name, *numbers, shape=None):
    array = np.array(numbers, np.int64)
    return numpy_helper.from_array(array if shape is None else array.reshape(shape), name)


def real(name, *shape):
    rng = np.random.default_rng(len(name) + sum(shape))
    return numpy_helper.from_array((rng.standard_normal(shape) / 2).astype(np.float32), name)


def recurrence(op, gates):
    """Over dimension 0 of [T,1,8], as a file has it whose batch is always one."""
    return ([node("Unsqueeze", ["x", "one"], "t"), node(op, ["t", "w", "r"], ["h"], "steps", hidden_size=3),
             node("Reshape", ["h", "to"])],
            [whole("one", 1), whole("to", -1, 3), real("w", 1, 3 * gates, 8), real("r", 1, 3 * gates, 3)])


def scan():
    value = lambda name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [8])  # noqa: E731
    body = helper.make_graph([node("Add", ["h", "e"], "h2"), node("Identity", ["h2"], "o")], "body",
                             [value("h"), value("e")], [value("h2"), value("o")])
    return [node("Scan", ["zero", "x"], ["last", "y"], "steps", num_scan_inputs=1, body=body)], [
        numpy_helper.from_array(np.zeros(8, np.float32), "zero")]


def behind_a_transpose(op, *inputs, **attributes):
    """[N,8] as a signal of length N with 8 channels."""
    return [node("Transpose", ["x"], "turned", perm=[1, 0]), node("Unsqueeze", ["turned", "zero"], "signal"),
            node(op, ["signal", *inputs], "done", "steps", **attributes), node("Squeeze", ["done", "zero"], "back"),
            node("Transpose", ["back"], "y", perm=[1, 0])]


SIZES = [node("Shape", ["x"], "shape"), node("Gather", ["shape", "zero"], "rows")]
ZERO = whole("zero", 0)
# By name: nodes from x [N,8] to y, and constants. The node that is in the way is called "steps".
GRAPHS = {
    "reverse": ([node("Slice", ["x", "last", "before", "zero", "back"], "y", "steps")],
                [whole("last", -1), whole("before", -END), ZERO, whole("back", -1)]),
    "roll": ([node("Slice", ["x", "last", "end", "zero"], "tail"),
              node("Slice", ["x", "zero", "last", "zero"], "head", "steps"), node("Concat", ["tail", "head"], axis=0)],
             [whole("last", -1), whole("end", END), ZERO]),
    "diff": ([node("Slice", ["x", "zero", "one", "zero"], "first"),
              node("Slice", ["x", "zero", "last", "zero"], "head", "steps"), node("Concat", ["first", "head"], "before", axis=0),
              node("Sub", ["x", "before"])],
             [ZERO, whole("one", 1), whole("last", -1)]),
    "first": ([node("Gather", ["x", "zero"], "row", "steps"), node("Sub", ["x", "row"])], [ZERO]),
    "last": ([node("Gather", ["x", "zero"], "row", "steps"), node("Add", ["x", "row"])], [whole("zero", -1)]),
    "lstm": recurrence("LSTM", 4),
    "gru": recurrence("GRU", 3),
    "scan": scan(),
    "attention": ([node("Transpose", ["x"], "keys", perm=[1, 0]), node("MatMul", ["x", "keys"], "scores", "steps"),
                   node("Softmax", ["scores"], "shares"), node("MatMul", ["shares", "x"])], []),
    "convolution": (behind_a_transpose("Conv", "w", pads=[1, 1]), [ZERO, real("w", 8, 8, 3)]),
    "pool": (behind_a_transpose("AveragePool", kernel_shape=[3], pads=[1, 1]), [ZERO]),
    "instance": (behind_a_transpose("InstanceNormalization", "w", "b"), [ZERO, real("w", 8), real("b", 8)]),
    "shares": (behind_a_transpose("Softmax", axis=2), [ZERO]),
    "positions": (SIZES + [node("Squeeze", ["rows", "zero"], "count"), node("Range", ["none", "count", "step"], "at"),
                           node("Gather", ["table", "at"], "p"), node("Add", ["x", "p"], "y", "steps")],
                  [ZERO, whole("none", 0, shape=()), whole("step", 1, shape=()), real("table", 600, 8)]),
    "shape": (SIZES + [node("Cast", ["rows"], "n", to=1), node("Div", ["x", "n"], "y", "steps")], [ZERO]),
    "size": ([node("Size", ["x"], "count"), node("Cast", ["count"], "n", to=1), node("Div", ["x", "n"], "y", "steps")], []),
    "einsum": ([node("Einsum", ["x", "x"], "g", "steps", equation="ni,nj->ij"), node("MatMul", ["x", "g"])], []),
    "pairs": ([node("Unsqueeze", ["x", "one"], "each"), node("Sub", ["each", "x"], "d", "steps"),
               node("Tanh", ["d"], "t"), node("ReduceSum", ["t", "one"], keepdims=0)], [whole("one", 1)]),
    "resize": ([node("Unsqueeze", ["x", "axes"], "image"),
                node("Resize", ["image", "", "scales"], "large", "steps", mode="linear"),
                node("Squeeze", ["large", "axes"], "q"), node("Reshape", ["q", "to"])],
               [whole("axes", 0, 1), whole("to", -1, 16),
                numpy_helper.from_array(np.array([1, 1, 2, 1], np.float32), "scales")]),
    "reshape": ([node("Reshape", ["x", "one"], "sequence"), node("Softmax", ["sequence"], "p", "steps", axis=1),
                 node("Reshape", ["p", "back"])], [whole("one", 1, -1, 8), whole("back", -1, 8)]),
    "cumulative": ([node("CumSum", ["x", "zero"], "y", "steps")], [whole("zero", 0, shape=())]),
    "range": ([node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"], "steps"), node("DequantizeLinear", ["q", "s", "z"])], []),
    "mean": ([node("ReduceMean", ["x"], "m", "steps", axes=[0]), node("Sub", ["x", "m"])], []),
    "halves": ([node("Concat", ["x", "x"], "c", axis=0), node("Reshape", ["c", "to"], "y", "steps")], [whole("to", -1, 16)]),
}
APART = {
    "dense": ([node("MatMul", ["x", "w"], "h"), node("Relu", ["h"])], [real("w", 8, 4)]),
    "layers": ([node("Reshape", ["x", "to"], "s"), node("Transpose", ["s"], "t", perm=[1, 0, 2]),
                node("LSTM", ["t", "w", "r"], ["h"], hidden_size=3), node("Transpose", ["h"], "b", perm=[2, 0, 1, 3]),
                node("Reshape", ["b", "back"])],
               [whole("to", 0, 4, 2), whole("back", 0, 12), real("w", 1, 12, 2), real("r", 1, 12, 3)]),
}
BATCHED = f'max_batch_size: {MOST}\ninput {{ name: "x" data_type: TYPE_FP32 dims: [ 8 ] }}\n'
OPENVINO = 'parameters { key: "engine" value { string_value: "openvino" } }\n'


def save(folder, name, graph, config=None):
    value = lambda n, shape: helper.make_tensor_value_info(n, TensorProto.FLOAT, shape)  # noqa: E731
    write_model(folder, name, graph[0], [value("x", ["n", 8])], value("y", None), graph[1])
    if config is not None:
        (folder / name / "config.pbtxt").write_text(config)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rows")
    for name, graph in {**GRAPHS, **APART}.items():
        save(folder, name, graph)
        save(folder, name + "_config", graph, BATCHED)
    for name in ("mean", "reverse", "dense"):
        save(folder, name + "_dynamic", (GRAPHS | APART)[name], BATCHED + "dynamic_batching { }\n")
    # Nothing comes of what is not proven: no number is larger than itself.
    save(folder, "harmless_dynamic", ([node("ReduceMax", ["x"], "m", "steps", axes=[0]), node("Greater", ["x", "x"], "g"),
                                       node("Where", ["g", "m", "x"])], []),
         BATCHED + "dynamic_batching { }\n")
    return folder


def seen_a_little():
    """Rows of 16-bit floats that see a hundredth of the mean of all."""
    value = lambda n: helper.make_tensor_value_info(n, TensorProto.FLOAT16, ["n", 8])  # noqa: E731
    return ([node("ReduceMean", ["x"], "m", "steps", axes=[0]), node("Mul", ["m", "little"], "s"), node("Add", ["x", "s"])],
            [value("x")], value("y"), [numpy_helper.from_array(np.float16(0.01), "little")])


def seen_from(far):
    """Rows that see the others where one of them has a number beyond `far`."""
    value = lambda n: helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 8])  # noqa: E731
    return ([node("ReduceMax", ["x"], "m", "steps", axes=[0]), node("Greater", ["m", "far"], "g"), node("Where", ["g", "none", "x"])],
            [value("x")], value("y"), [numpy_helper.from_array(np.float32(far), "far"), numpy_helper.from_array(np.float32(0), "none")])


def seen_where_it_is_infinite():
    """Rows to which nothing is added, unless a number of another is infinite."""
    value = lambda n: helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 8])  # noqa: E731
    return ([node("ReduceMax", ["x"], "m", "steps", axes=[0]), node("Mul", ["m", "none"], "z"), node("Add", ["x", "z"])],
            [value("x")], value("y"), [numpy_helper.from_array(np.zeros(1, np.float32), "none")])


@pytest.mark.parametrize("engine", ["carillon", "openvino"])
def test_dynamic_batching_finds_what_rows_see_of_others_however_little(program, tmp_path, engine):
    for name, graph in (("little", seen_a_little()), ("afar", seen_from(2.5)), ("farther", seen_from(1e6)),
                        ("infinite", seen_where_it_is_infinite())):
        write_model(tmp_path / "models", name, *graph)
        (tmp_path / "models" / name / "config.pbtxt").write_text(
            f'max_batch_size: 8\ndynamic_batching {{ }}\nparameters {{ key: "engine" value {{ string_value: "{engine}" }} }}')
    with serving(program, tmp_path / "models", tmp_path / "log", "--strict-readiness", "false") as running:
        with http_client.InferenceServerClient(running.http) as mine:
            entries = mine.get_model_repository_index()
    for entry in entries:
        assert entry["state"] == "UNAVAILABLE" and "'steps'" in entry["reason"], entry
        assert "where only the other rows are others" in entry["reason"], entry


@pytest.fixture(scope="module")
def server(program, models, tmp_path_factory):
    log = tmp_path_factory.mktemp("log") / "server.log"
    with serving(program, models, log, "--strict-readiness", "false", "--inflight-limit", "256 MiB") as running:
        running.log = log
        yield running


@pytest.fixture(scope="module")
def references(models):
    return {path.name: onnxruntime.InferenceSession(str(path / "1" / "model.onnx"), providers=["CPUExecutionProvider"])
            for path in models.iterdir()}


def numbers(rows, seed=0):
    return np.random.default_rng(seed).standard_normal((rows, 8)).astype(np.float32)


def ask(client, module, model, x):
    tensor = module.InferInput("x", x.shape, "FP32")
    tensor.set_data_from_numpy(x)
    return client.infer(model, [tensor], timeout=MINUTE).as_numpy("y")


def check(client, module, references, model, x):
    want = references[model].run(None, {"x": x})[0]
    got = ask(client, module, model, x)
    assert got.shape == want.shape, model
    np.testing.assert_allclose(got, want, atol=1e-5 * max(1, np.abs(want).max()), err_msg=f"{model} {x.shape}")


def config_of(client, module, model):
    config = client.get_model_config(model)
    return config.get("max_batch_size", 0) if module is http_client else config.config.max_batch_size


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("kind", ["", "_config"])
def test_several_rows_are_what_the_file_says(client, module, references, name, kind):
    for rows in (1, 2, 3, MOST):
        check(client, module, references, name + kind, numbers(rows, seed=rows))


@pytest.mark.parametrize("kind", ["", "_config"])
def test_clients_beside_each_other_see_nothing_of_each_other(module, server, references, kind):
    wrong = []
    begin = threading.Barrier(4)

    def run(seed):
        rng = np.random.default_rng(seed)
        with module.InferenceServerClient(server.http if module is http_client else server.grpc) as mine:
            begin.wait(60)
            for name in GRAPHS:
                for _ in range(3):
                    try:
                        check(mine, module, references, name + kind, numbers(int(rng.integers(1, 4)), seed=int(rng.integers(99))))
                    except Exception as error:  # noqa: BLE001
                        wrong.append(error)

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong[0]


def test_what_is_proven_batches(client, module, references):
    for name in APART:
        assert config_of(client, module, name) == 16
        for model in (name, name + "_config"):
            for rows in (1, 3, MOST):
                check(client, module, references, model, numbers(rows, seed=rows))
    assert config_of(client, module, "mean") == 0


def test_a_config_is_shown_as_it_is_and_its_bound_heeded(client, module, server):
    assert config_of(client, module, "mean_config") == MOST
    metadata = client.get_model_metadata("mean_config")
    tensors = metadata["inputs"] if module is http_client else [{"shape": list(metadata.inputs[0].shape)}]
    assert [int(d) for d in tensors[0]["shape"]] == [-1, 8]
    for rows in (0, MOST + 1):
        with pytest.raises(InferenceServerException) as refused:
            ask(client, module, "mean_config", numbers(rows))
        assert f"it must be [-1,8] with 1 to {MOST} in place of -1" in str(refused.value)


def test_dynamic_batching_is_tried_on_random_rows(client, module, server, references):
    index = client.get_model_repository_index()
    entries = index if module is http_client else [
        {"name": m.name, "state": m.state, "reason": m.reason} for m in index.models]
    reasons = {entry["name"]: (entry.get("state"), entry.get("reason", "")) for entry in entries}
    for name in ("mean_dynamic", "reverse_dynamic"):
        state, reason = reasons[name]
        assert state == "UNAVAILABLE" and "'steps'" in reason and "remove dynamic_batching" in reason, reason
    for name in ("dense_dynamic", "harmless_dynamic"):
        assert reasons[name][0] == "READY", reasons[name]
        check(client, module, references, name, numbers(3))
    text = server.log.read_text()
    assert re.search(r"harmless_dynamic version 1: its rows are not proven to be apart: node 'steps'.*agree alone and together",
                     text)
    assert "dense_dynamic version 1: its rows" not in text


def test_the_log_says_why_a_model_does_not_batch(server):
    text = server.log.read_text()
    for name in GRAPHS:
        # A Scan's steps are nodes of their own.
        culprit = "scan" if name == "scan" else "steps"
        for kind, what in (("", "requests are not batched"), ("_config", "each request runs by itself")):
            said = re.findall(rf"\b{name}{kind} version 1: its rows are not proven to be apart: (.*)", text)
            assert len(said) == 1 and what in said[0], (name, said)
            assert f"'{culprit}" in said[0] or name == "scan", said
    for name in APART:
        assert f"{name} version 1: its rows" not in text


def test_another_engine_keeps_rows_apart_likewise(program, tmp_path, module):
    if not (program.parent / "libcarillon_openvino.so").exists():
        pytest.skip("built without openvino")
    folder = tmp_path / "models"
    for name in ("mean", "reverse", "shape", "positions"):
        save(folder, name, GRAPHS[name], OPENVINO)
        save(folder, name + "_config", GRAPHS[name], BATCHED + OPENVINO)
    save(folder, "dense", APART["dense"], OPENVINO)
    save(folder, "mean_dynamic", GRAPHS["mean"], BATCHED + OPENVINO + "dynamic_batching { }\n")
    sessions = {path.name: onnxruntime.InferenceSession(str(path / "1" / "model.onnx"), providers=["CPUExecutionProvider"])
                for path in folder.iterdir()}
    with serving(program, folder, tmp_path / "log", "--strict-readiness", "false") as running:
        with module.InferenceServerClient(running.http if module is http_client else running.grpc) as mine:
            for name in sessions:
                if name == "mean_dynamic":
                    with pytest.raises(InferenceServerException, match="steps"):
                        ask(mine, module, name, numbers(2))
                    continue
                for rows in (1, 2, 3):
                    check(mine, module, sessions, name, numbers(rows, seed=rows))
            assert config_of(mine, module, "dense") == 16
            assert config_of(mine, module, "mean") == 0
            assert config_of(mine, module, "mean_config") == MOST


@pytest.mark.parametrize("engine", ["carillon", "openvino"])
def test_rows_that_see_each_other_at_one_size_alone_are_refused_there(program, tmp_path, engine):
    """Rows are proven apart when the model loads, at sizes of the server's choice; others are looked at as they come."""
    if engine == "openvino" and not (program.parent / "libcarillon_openvino.so").exists():
        pytest.skip("built without OpenVINO")
    # y is x with its rows turned round where x has one column, and x elsewhere: step = 1 - 2 * (columns == 1).
    nodes = [node("Shape", ["x"], "shape"), node("Gather", ["shape", "one"], "columns"),
             node("Equal", ["columns", "one"], "is_one"), node("Cast", ["is_one"], "flag", to=TensorProto.INT64),
             node("Mul", ["flag", "two"], "twice"), node("Sub", ["one", "twice"], "step"),
             node("Mul", ["flag", "minus"], "first"), node("Where", ["is_one", "low", "high"], "last"),
             node("Slice", ["x", "first", "last", "axis", "step"], "y", "turn")]
    constants = [whole("one", 1), whole("two", 2), whole("minus", -1), whole("low", -END), whole("high", END), whole("axis", 0)]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", "T"]) for name in "xy")
    write_model(tmp_path / "models", "turning", nodes, [x], y, constants)
    (tmp_path / "models/turning/config.pbtxt").write_text(OPENVINO if engine == "openvino" else "")
    with serving(program, tmp_path / "models", tmp_path / "log") as server, http_client.InferenceServerClient(server.http) as client:
        assert client.get_model_config("turning")["max_batch_size"] > 1, "rows are apart at the sizes of the load"

        def ask(rows, columns):
            tensor = http_client.InferInput("x", [rows, columns], "FP32")
            data = np.arange(rows * columns, dtype=np.float32).reshape(rows, columns)
            tensor.set_data_from_numpy(data)
            return data, client.infer("turning", [tensor], timeout=MINUTE).as_numpy("y")

        for rows, columns in ((1, 3), (3, 3), (2, 5)):
            data, got = ask(rows, columns)
            np.testing.assert_array_equal(got, data)
        for rows in (1, 2):
            with pytest.raises(InferenceServerException, match="'turn'.* at these sizes alone, so rows cannot be batched"):
                ask(rows, 1)
