"""Sequences: requests that belong together, over both protocols and streams; the state between them, and their order."""

from __future__ import annotations

import queue
import threading

import numpy as np
import onnx
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from onnx import TensorProto, helper
from tritonclient.utils import InferenceServerException

from loopback import serving
from test_repository_control import connect

CONFIG = """max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: [ 1 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ 1 ] }
output { name: "told" data_type: TYPE_INT64 dims: [ 4 ] }
sequence_batching {
  max_sequence_idle_microseconds: IDLE
  control_input { name: "start" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }
  control_input { name: "end" control { kind: CONTROL_SEQUENCE_END fp32_false_true: [ 0, 1 ] } }
  control_input { name: "ready" control { kind: CONTROL_SEQUENCE_READY bool_false_true: [ false, true ] } }
  control_input { name: "id" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_INT64 } }
  state { input_name: "before" output_name: "after" data_type: TYPE_FP32 dims: [ 1 ]
          initial_state { data_type: TYPE_FP32 dims: [ 1 ] INITIAL name: "first" } }
}
"""


def value(name, kind=TensorProto.FLOAT, width=1):
    return helper.make_tensor_value_info(name, kind, ["batch", width])


def make(tmp_path, idle=60_000_000, initial="zero_data: true"):
    """sum: y = x + what it was before, and what the model was told: start, end, ready, id."""
    folder = tmp_path / "models"
    folder.mkdir(exist_ok=True)
    casts = [helper.make_node("Cast", [name], [name + "_i"], to=TensorProto.INT64) for name in ("start", "end", "ready")]
    nodes = [helper.make_node("Add", ["x", "before"], ["y"]), helper.make_node("Identity", ["y"], ["after"]), *casts,
             helper.make_node("Concat", ["start_i", "end_i", "ready_i", "id"], ["told"], axis=1)]
    graph_inputs = [value("before"), value("x"), value("start", TensorProto.INT32), value("end"),
                    value("ready", TensorProto.BOOL), value("id", TensorProto.INT64)]

    graph = helper.make_graph(nodes, "sum", graph_inputs,
                              [value("after"), value("y"), value("told", TensorProto.INT64, 4)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    (folder / "sum" / "1").mkdir(parents=True)
    onnx.save(model, folder / "sum" / "1" / "model.onnx")
    (folder / "sum" / "config.pbtxt").write_text(CONFIG.replace("IDLE", str(idle)).replace("INITIAL", initial))
    return folder


def tensor_of(module, x):
    tensor = module.InferInput("x", [1, 1], "FP32")
    tensor.set_data_from_numpy(np.full((1, 1), x, np.float32))
    return tensor


def ask(client, module, x, sequence=7, start=False, end=False, **more):
    answer = client.infer("sum", [tensor_of(module, x)], sequence_id=sequence, sequence_start=start, sequence_end=end,
                          **more)
    return answer.as_numpy("y")[0, 0], answer.as_numpy("told")[0].tolist()


def test_state_goes_from_one_to_the_next(program, tmp_path, module):
    with serving(program, make(tmp_path), tmp_path / "log") as server, connect(module, server) as client:
        assert ask(client, module, 1, start=True) == (1, [1, 0, 1, 7])
        assert ask(client, module, 2) == (3, [0, 0, 1, 7])
        assert ask(client, module, 50, sequence=8, start=True) == (50, [1, 0, 1, 8])
        assert ask(client, module, 3, end=True) == (6, [0, 1, 1, 7])
        with pytest.raises(InferenceServerException, match="must specify the START flag on the first request"):
            ask(client, module, 1)
        with pytest.raises(InferenceServerException, match="non-zero or non-empty correlation ID"):
            client.infer("sum", [tensor_of(module, 1)])
        with pytest.raises(InferenceServerException, match="takes its sequence's id as a number, INT64"):
            ask(client, module, 1, sequence="seven", start=True)
        # One that cannot be in time changes nothing, and the sequence goes on.
        with pytest.raises(InferenceServerException, match="deadline"):
            ask(client, module, 1000, sequence=8, timeout=1)
        assert ask(client, module, 1, sequence=8)[0] == 51
        metadata = client.get_model_metadata("sum") if module is http_client else client.get_model_metadata(
            "sum", as_json=True)
        assert [each["name"] for each in metadata["inputs"]] == ["x"]
        assert [each["name"] for each in metadata["outputs"]] == ["y", "told"]


def test_sequences_beside_each_other(program, tmp_path):
    """Many of them share batches; each has its own sums."""
    with serving(program, make(tmp_path), tmp_path / "log") as server:
        wrong = []

        def run(number):
            with grpc_client.InferenceServerClient(server.grpc) as client:
                total = 0
                for step in range(1, 21):
                    total += number * step
                    got = ask(client, grpc_client, number * step, sequence=number, start=step == 1, end=step == 20)
                    if got[0] != total or got[1][3] != number:
                        wrong.append((number, step, got))

        threads = [threading.Thread(target=run, args=(number,)) for number in range(1, 9)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert wrong == []


def test_a_stream_has_them_in_order(program, tmp_path):
    with serving(program, make(tmp_path), tmp_path / "log") as server, \
            grpc_client.InferenceServerClient(server.grpc) as client:
        answers = queue.Queue()
        client.start_stream(lambda result, error: answers.put((result, error)))
        for step in range(1, 31):
            client.async_stream_infer("sum", [tensor_of(grpc_client, step)], sequence_id=3, sequence_start=step == 1,
                                      sequence_end=step == 30, request_id=str(step))
        sums = {}
        for _ in range(30):
            result, error = answers.get(timeout=60)
            assert error is None
            sums[int(result.get_response().id)] = result.as_numpy("y")[0, 0]
        client.stop_stream()
        assert sums == {step: step * (step + 1) / 2 for step in range(1, 31)}


def test_a_stream_may_send_a_whole_sequence_without_waiting(program, tmp_path):
    """Some wait for their turn in the sequence, the rest in the connection; none in the middle is left out."""
    with serving(program, make(tmp_path), tmp_path / "log") as server, \
            grpc_client.InferenceServerClient(server.grpc) as client:
        answers = queue.Queue()
        client.start_stream(lambda result, error: answers.put((result, error)))
        for step in range(1, 301):
            client.async_stream_infer("sum", [tensor_of(grpc_client, 1)], sequence_id=3, sequence_start=step == 1,
                                      sequence_end=step == 300, request_id=str(step))
        sums = {}
        for _ in range(300):
            result, error = answers.get(timeout=60)
            assert error is None
            sums[int(result.get_response().id)] = result.as_numpy("y")[0, 0]
        client.stop_stream()
        assert sums == {step: step for step in range(1, 301)}


def test_one_that_is_idle_ends(program, tmp_path):
    with serving(program, make(tmp_path, idle=1), tmp_path / "log") as server, connect(http_client, server) as client:
        assert ask(client, http_client, 1, start=True)[0] == 1
        with pytest.raises(InferenceServerException, match="one that is idle for 0.001 ms has ended"):
            ask(client, http_client, 1)


def test_the_first_state_may_be_a_file(program, tmp_path):
    folder = make(tmp_path, initial='data_file: "hundred"')
    (folder / "sum" / "initial_state").mkdir()
    (folder / "sum" / "initial_state" / "hundred").write_bytes(np.float32(100).tobytes())
    with serving(program, folder, tmp_path / "log") as server, connect(http_client, server) as client:
        assert ask(client, http_client, 1, start=True)[0] == 101
        assert ask(client, http_client, 1, start=True)[0] == 101


def test_ids_may_be_text_where_the_model_is_not_told(program, tmp_path, module):
    folder = make(tmp_path)
    config = folder / "sum" / "config.pbtxt"
    lines = [line for line in CONFIG.replace("IDLE", "60000000").replace("INITIAL", "zero_data: true").splitlines()
             if "control_input" not in line and '"told"' not in line]
    config.write_text("\n".join(lines))
    nodes = [helper.make_node("Add", ["x", "before"], ["y"]), helper.make_node("Identity", ["y"], ["after"])]

    graph = helper.make_graph(nodes, "sum", [value("x"), value("before")], [value("y"), value("after")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    onnx.save(model, folder / "sum" / "1" / "model.onnx")
    with serving(program, folder, tmp_path / "log") as server, connect(module, server) as client:
        for x, start, want in ((1, True, 1), (2, False, 3), (3, False, 6)):
            answer = client.infer("sum", [tensor_of(module, x)], sequence_id="seven", sequence_start=start)
            assert answer.as_numpy("y")[0, 0] == want


def test_a_step_of_an_ensemble_may_have_them(program, tmp_path, module):
    folder = make(tmp_path)
    (folder / "outer").mkdir()
    (folder / "outer" / "config.pbtxt").write_text("""platform: "ensemble" max_batch_size: 1
input { name: "x" data_type: TYPE_FP32 dims: [ 1 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ 1 ] }
ensemble_scheduling { step { model_name: "sum" model_version: -1 input_map { key: "x" value: "x" }
                             output_map { key: "y" value: "y" } } }
""")
    with serving(program, folder, tmp_path / "log") as server, connect(module, server) as client:
        for x, start, want in ((1, True, 1), (2, False, 3)):
            answer = client.infer("outer", [tensor_of(module, x)], sequence_id=5, sequence_start=start)
            assert answer.as_numpy("y")[0, 0] == want


def test_a_decoupled_model_is_asked_over_streams(program, tmp_path, module):
    folder = make(tmp_path)
    config = folder / "sum" / "config.pbtxt"
    config.write_text(config.read_text() + "model_transaction_policy { decoupled: true }\n")
    with serving(program, folder, tmp_path / "log") as server, connect(module, server) as client:
        with pytest.raises(InferenceServerException, match="doesn't support models with decoupled transaction policy"):
            ask(client, module, 1, start=True)
        with grpc_client.InferenceServerClient(server.grpc) as streaming:
            assert streaming.get_model_config("sum").config.model_transaction_policy.decoupled
            answers = queue.Queue()
            streaming.start_stream(lambda result, error: answers.put((result, error)))
            for step, empty in ((1, True), (2, False), (3, True)):
                streaming.async_stream_infer("sum", [tensor_of(grpc_client, step)], sequence_id=3,
                                             sequence_start=step == 1, request_id=str(step),
                                             enable_empty_final_response=empty)
            got = []
            for _ in range(5):
                result, error = answers.get(timeout=60)
                assert error is None
                response = result.get_response()
                got.append((response.id, len(response.outputs), response.parameters["triton_final_response"].bool_param))
            streaming.stop_stream()
            assert got == [("1", 2, False), ("1", 0, True), ("2", 2, True), ("3", 2, False), ("3", 0, True)]
            assert answers.empty()
