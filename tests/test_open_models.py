"""Models whose inputs have dimensions that nothing fixes, served without a config: any size, as requests come."""

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

KEPT = 3


def value(name, shape):
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("open")
    rng = np.random.default_rng(1)
    weights = lambda name, *shape: numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name)
    # Images of any height and width; the output's follow them by a stride.
    write_model(folder, "images",
                [helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1], strides=[2, 2]),
                 helper.make_node("Relu", ["c"], ["y"])],
                [value("x", ["batch", 3, "height", "width"])], value("y", ["batch", 8, "h", "w"]), [weights("w", 8, 3, 3, 3)])
    # Two sequences, each as long as it likes.
    write_model(folder, "pair",
                [helper.make_node("MatMul", ["a", "w"], ["aw"]), helper.make_node("Transpose", ["b"], ["bt"], perm=[0, 2, 1]),
                 helper.make_node("MatMul", ["aw", "bt"], ["y"])],
                [value("a", ["batch", "m", 16]), value("b", ["batch", "n", 16])], value("y", ["batch", "m", "n"]),
                [weights("w", 16, 16)])
    # No batch, no names.
    write_model(folder, "nameless",
                [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("ReduceSum", ["p", "axis"], ["y"], keepdims=0)],
                [value("x", [None, 4])], value("y", None), [weights("w", 4, 5), numpy_helper.from_array(np.array([0]), "axis")])
    # Each row less what all rows are on average, and its part of all: who shares a batch would change them.
    write_model(folder, "centred",
                [helper.make_node("ReduceMean", ["x"], ["mean"], axes=[0]), helper.make_node("Sub", ["x", "mean"], ["c"]),
                 helper.make_node("Softmax", ["c"], ["y"], axis=0)],
                [value("x", ["batch", 4])], value("y", ["batch", 4]))
    # Halves of equal length only.
    write_model(folder, "halves",
                [helper.make_node("Reshape", ["x", "shape"], ["y"])],
                [value("x", ["batch", "n"])], value("y", ["batch", 2, "half"]),
                [numpy_helper.from_array(np.array([0, 2, -1]), "shape")])
    # A decoder's cache: what comes attends to what was there, and to itself.
    write_model(folder, "cache",
                [helper.make_node("Concat", ["past", "x"], ["all"], axis=2),
                 helper.make_node("Transpose", ["all"], ["keys"], perm=[0, 1, 3, 2]),
                 helper.make_node("MatMul", ["x", "keys"], ["scores"]),
                 helper.make_node("Softmax", ["scores"], ["shares"], axis=-1),
                 helper.make_node("MatMul", ["shares", "all"], ["y"])],
                [value("past", ["batch", 2, "past", 4]), value("x", ["batch", 2, "now", 4])],
                value("y", ["batch", 2, "now", 4]), [])
    write_model(folder, "largest",
                [helper.make_node("ArgMax", ["x"], ["y"], name="most", axis=1, keepdims=0)], [value("x", ["batch", "n", 4])],
                helper.make_tensor_value_info("y", TensorProto.INT64, ["batch", 4]), [])
    return folder


@pytest.fixture(scope="module", params=["clockwork", "symphony", "orloj"])
def server(request, program, models, tmp_path_factory):
    log = tmp_path_factory.mktemp("log") / "server.log"
    with serving(program, models, log, "--scheduler", request.param, "--sizes", str(KEPT)) as running:
        yield running


@pytest.fixture(scope="module")
def references(models):
    return {path.name: onnxruntime.InferenceSession(str(path / "1" / "model.onnx"), providers=["CPUExecutionProvider"])
            for path in models.iterdir()}


def ask(client, module, model, timeout=MINUTE, **arrays):
    inputs = []
    for name, array in arrays.items():
        tensor = module.InferInput(name, array.shape, "FP32")
        tensor.set_data_from_numpy(array)
        inputs.append(tensor)
    return client.infer(model, inputs, timeout=timeout).as_numpy("y")


def check(client, module, references, model, **arrays):
    want = references[model].run(None, arrays)[0]
    got = ask(client, module, model, **arrays)
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, atol=1e-4)


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def metric(server, name):
    return float(re.search(rf"^{name} (\S+)$", server.scrape(), re.M).group(1))


def test_any_height_and_width(client, module, references):
    for height, width in [(224, 224), (64, 48), (33, 77), (64, 48), (1, 500)]:
        for batch in (1, 3):
            check(client, module, references, "images", x=numbers(batch, 3, height, width))


def test_two_dimensions_vary_by_themselves(client, module, references):
    for m, n in [(64, 64), (3, 9), (1, 1), (17, 200)]:
        check(client, module, references, "pair", a=numbers(2, m, 16), b=numbers(2, n, 16, seed=1))


def test_a_model_without_batch_or_names(client, module, references):
    for rows in (64, 1, 7, 300):
        check(client, module, references, "nameless", x=numbers(rows, 4))


def test_rows_that_see_each_other_are_not_batched(client, module, references, server):
    """Requests at once, each of them alone with its rows, as many as it has."""
    check(client, module, references, "centred", x=numbers(40, 4))
    wrong = []

    def run(seed):
        with module.InferenceServerClient(server.http if module is http_client else server.grpc) as mine:
            for rows in range(1, 6):
                try:
                    check(mine, module, references, "centred", x=numbers(rows, 4, seed=seed))
                except AssertionError as error:
                    wrong.append(error)

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong[0]


def test_metadata_leaves_open_what_is_open(client, module):
    as_dict = {} if module is http_client else {"as_json": True}
    metadata = client.get_model_metadata("images", **as_dict)
    shape = lambda tensor: [int(extent) for extent in tensor["shape"]]
    assert shape(metadata["inputs"][0]) == [-1, 3, -1, -1]
    assert shape(metadata["outputs"][0]) == [-1, 8, -1, -1]
    assert shape(client.get_model_metadata("nameless", **as_dict)["outputs"][0]) == [5]


def test_extents_that_do_not_fit_are_the_clients_fault(client, module, references):
    check(client, module, references, "halves", x=numbers(1, 10))
    for _ in range(2):
        with pytest.raises(InferenceServerException) as refused:
            ask(client, module, "halves", x=numbers(1, 11))
        text = str(refused.value)
        assert "400" in text or "INVALID_ARGUMENT" in str(refused.value.status())
        assert "do not fit the model" in text and "Reshape" in text
    check(client, module, references, "halves", x=numbers(2, 12))


def test_a_dimension_of_one_name_has_one_length(client, module, models):
    with pytest.raises(InferenceServerException) as refused:
        ask(client, module, "images", x=numbers(1, 4, 8, 8))
    assert "it must be [-1,3,-1,-1] with 1 to 16 in place of -1 and anything in place of the others" in str(refused.value)
    with pytest.raises(InferenceServerException) as refused:
        ask(client, module, "images", x=numbers(0, 3, 8, 8))
    assert "it must be [-1,3,-1,-1]" in str(refused.value)


def test_a_past_of_nothing(client, module, references):
    for past, now in [(0, 5), (3, 1), (0, 1), (0, 5)]:
        for batch in (1, 2):
            check(client, module, references, "cache", past=numbers(batch, 2, past, 4), x=numbers(batch, 2, now, 4, seed=1))


def test_what_there_is_not_of_nothing_is_refused(client, module, references):
    check(client, module, references, "largest", x=numbers(1, 3, 4))
    with pytest.raises(InferenceServerException) as refused:
        ask(client, module, "largest", x=numbers(1, 0, 4))
    assert "do not fit the model" in str(refused.value) and "most" in str(refused.value)
    check(client, module, references, "largest", x=numbers(1, 5, 4))


def test_sizes_come_and_go(client, module, references, server):
    for width in range(300, 300 + 2 * KEPT):
        check(client, module, references, "images", x=numbers(1, 3, 5, width))
    assert metric(server, "carillon_sizes") <= KEPT * 7  # models
    assert metric(server, "carillon_sizes_bytes") > 0
    check(client, module, references, "images", x=numbers(1, 3, 5, 300))


def test_a_size_that_is_too_large_is_refused(client, module, references):
    with pytest.raises(InferenceServerException) as refused:
        # 200,000 times 200,000 numbers come out of little.
        ask(client, module, "pair", a=numbers(1, 200_000, 16), b=numbers(1, 200_000, 16))
    assert "do not fit the model" in str(refused.value)
    check(client, module, references, "pair", a=numbers(1, 2, 16), b=numbers(1, 3, 16))


def test_many_clients_with_sizes_of_their_own(server, module, references):
    wrong = []

    def loop(number):
        with module.InferenceServerClient(server.http if module is http_client else server.grpc) as client:
            for turn in range(12):
                m, n = 5 + (number + turn) % KEPT, 40 + number % 2
                a, b = numbers(1, m, 16, seed=number), numbers(1, n, 16, seed=turn)
                try:
                    got = ask(client, module, "pair", a=a, b=b)
                except InferenceServerException as error:
                    # More sizes in use at a time than are kept is what clients may ask for, and not get.
                    if "under way" not in str(error):
                        wrong.append(str(error))
                    continue
                if not np.allclose(got, references["pair"].run(None, {"a": a, "b": b})[0], atol=1e-4):
                    wrong.append((m, n))

    threads = [threading.Thread(target=loop, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not wrong
    assert metric(server, "carillon_open_requests") == 0
