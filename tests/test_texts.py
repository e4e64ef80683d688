"""Tensors of texts (BYTES): labels, keys, categories and words, over every way in and out, beside onnxruntime."""

from __future__ import annotations

import concurrent.futures
import json
import struct
import subprocess
import urllib.error
import urllib.request

import numpy as np
import onnx
import onnxruntime
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
import tritonclient.utils.shared_memory as shm
from onnx import TensorProto, helper, numpy_helper
from tritonclient.utils import InferenceServerException, serialize_byte_tensor

from loopback import serving
from raw_http import MINUTE
from test_classical import WIDTH, floats, forest, ml, vectors
from test_shared_memory import object_of

STRING, INT64, FLOAT = TensorProto.STRING, TensorProto.INT64, TensorProto.FLOAT
LABELS = ["café", "", "a\nb"]
PETS = ["cat", "dog", "", "größe"]
WORDS = PETS + ["dragon", "Drache", "a dragon\0 with more"]  # which no model knows

linear = dict(coefficients=floats(1, 3, WIDTH), intercepts=[0.0, 0.1, 0.2])
svm = {k: v for k, v in vectors(3).items() if k != "classlabels_ints"}
TFIDF = dict(max_gram_length=2, max_skip_count=0, min_gram_length=1, mode="TF", ngram_counts=[0, 2], ngram_indexes=[0, 1, 2],
             pool_strings=["cat", "größe", "cat", "dog"])
# Name: nodes, the input's type, outputs with theirs, initializers.
MODELS = {
    "linear": ([ml("LinearClassifier", ["x"], ["y", "p"], classlabels_strings=LABELS, **linear)], FLOAT, {"y": STRING, "p": FLOAT}, ()),
    "trees": ([ml("TreeEnsembleClassifier", ["x"], ["y", "p"], classlabels_strings=LABELS, **forest(6, 3, "class"))], FLOAT,
              {"y": STRING, "p": FLOAT}, ()),
    "svm": ([ml("SVMClassifier", ["x"], ["y", "p"], classlabels_strings=LABELS, **svm)], FLOAT, {"y": STRING, "p": FLOAT}, ()),
    # As skl2onnx writes what has no operator of its own.
    "picked": ([helper.make_node("ArgMax", ["x"], ["i"], axis=1, keepdims=0), ml("ArrayFeatureExtractor", ["classes", "i"], ["row"]),
                helper.make_node("Reshape", ["row", "shape"], ["y"])], FLOAT, {"y": STRING},
               (helper.make_tensor("classes", STRING, [WIDTH], [w.encode() for w in PETS]),
                numpy_helper.from_array(np.array([-1]), "shape"))),
    "to_whole": ([ml("LabelEncoder", ["x"], ["y"], keys_strings=PETS, values_int64s=[3, 1, 4, 1], default_int64=-9)], STRING, {"y": INT64}, ()),
    "to_real": ([ml("LabelEncoder", ["x"], ["y"], keys_strings=PETS, values_floats=[3.5, 1, 4, 1], default_float=0.25)], STRING,
                {"y": FLOAT}, ()),
    "to_text": ([ml("LabelEncoder", ["x"], ["y"], keys_strings=PETS, values_strings=["Katze", "Hund", "nichts", "size"],
                    default_string="sonst")], STRING, {"y": STRING}, ()),
    "of_whole": ([ml("LabelEncoder", ["x"], ["y"], keys_int64s=[0, 1, -2], values_strings=LABELS)], INT64, {"y": STRING}, ()),
    "of_real": ([ml("LabelEncoder", ["x"], ["y"], keys_floats=[0.0, 1.0, -2.0], values_strings=LABELS)], FLOAT, {"y": STRING}, ()),
    "mapper": ([ml("CategoryMapper", ["x"], ["y"], cats_strings=PETS, cats_int64s=[7, 6, 5, 4], default_int64=-1)], STRING, {"y": INT64}, ()),
    "mapper_back": ([ml("CategoryMapper", ["x"], ["y"], cats_strings=LABELS, cats_int64s=[0, 1, -2], default_string="?")], INT64,
                    {"y": STRING}, ()),
    "one_hot": ([ml("OneHotEncoder", ["x"], ["y"], cats_strings=PETS, zeros=1)], STRING, {"y": FLOAT}, ()),
    "words": ([helper.make_node("TfIdfVectorizer", ["x"], ["y"], **TFIDF)], STRING, {"y": FLOAT}, ()),
    "moved": ([ml("LabelEncoder", ["x"], ["a"], keys_strings=PETS, values_strings=PETS, default_string="none"),
               helper.make_node("Transpose", ["a"], ["t"], perm=[1, 0]), helper.make_node("Transpose", ["t"], ["b"], perm=[1, 0]),
               helper.make_node("Gather", ["b", "at"], ["c"], axis=1), helper.make_node("Concat", ["c", "a"], ["y"], axis=1)], STRING,
              {"y": STRING}, (numpy_helper.from_array(np.array([2, 0]), "at"),)),
    # What goes through is the request's own, and not only what files name.
    "echo": ([helper.make_node("Identity", ["x"], ["y"])], STRING, {"y": STRING}, ()),
    "own_moved": ([helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0]), helper.make_node("Transpose", ["t"], ["b"], perm=[1, 0]),
                   helper.make_node("Gather", ["b", "at"], ["c"], axis=1), helper.make_node("Concat", ["c", "x"], ["y"], axis=1)], STRING,
                  {"y": STRING}, (numpy_helper.from_array(np.array([2, 0]), "at"),)),
    "own_or_none": ([helper.make_node("Where", ["mask", "x", "none"], ["y"])], STRING, {"y": STRING},
                    (numpy_helper.from_array(np.array([True, False, True, True]), "mask"), helper.make_tensor("none", STRING, [1], [b"none"]))),
}
KINDS = {FLOAT: ("FP32", np.float32), INT64: ("INT64", np.int64), STRING: ("BYTES", np.object_)}
ENSEMBLE = """platform: "ensemble" max_batch_size: 16
input { name: "x" data_type: TYPE_STRING dims: [ 4 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ 4 ] }
ensemble_scheduling {
  step { model_name: "same" model_version: -1 input_map { key: "x" value: "x" } output_map { key: "y" value: "between" } }
  step { model_name: "to_real" model_version: -1 input_map { key: "x" value: "between" } output_map { key: "y" value: "y" } }
}
"""

THROUGH = (ENSEMBLE.replace("TYPE_FP32 dims: [ 4 ]", "TYPE_STRING dims: [ 6 ]").replace('"same"', '"echo"').replace('"to_real"', '"own_moved"'))


def save(folder, name, nodes, kind, outputs, initializers=()):
    graph = helper.make_graph(nodes, name, [helper.make_tensor_value_info("x", kind, ["batch", WIDTH])],
                              [helper.make_tensor_value_info(one, of, None) for one, of in outputs.items()], initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)])
    model.ir_version = 8
    (folder / name / "1").mkdir(parents=True)
    onnx.save(model, folder / name / "1" / "model.onnx")
    (folder / name / "config.pbtxt").write_text('max_batch_size: 16 parameters { key: "engine" value { string_value: "carillon" } }')


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    for name, parts in MODELS.items():
        save(folder, name, *parts)
    save(folder, "same", [ml("LabelEncoder", ["x"], ["y"], keys_strings=PETS, values_strings=PETS)], STRING, {"y": STRING})
    save(folder, "latin", [ml("LabelEncoder", ["x"], ["y"], keys_int64s=[0, 1], values_strings=[b"ok", b"\xe9t\xe9"])], INT64, {"y": STRING})
    save(folder, "strict", [ml("OneHotEncoder", ["x"], ["y"], cats_strings=PETS, zeros=0)], STRING, {"y": FLOAT})
    (folder / "pair" / "1").mkdir(parents=True)
    (folder / "pair" / "config.pbtxt").write_text(ENSEMBLE)
    (folder / "through" / "1").mkdir(parents=True)
    (folder / "through" / "config.pbtxt").write_text(THROUGH)
    return folder


@pytest.fixture(scope="module")
def server(program, models, tmp_path_factory):
    with serving(program, models, tmp_path_factory.mktemp("log") / "server.log", "--threads", "2", "--strict-readiness", "false") as running:
        yield running


@pytest.fixture(params=["http", "grpc"])
def module(request):
    return {"http": http_client, "grpc": grpc_client}[request.param]


@pytest.fixture
def client(server, module):
    with module.InferenceServerClient(server.http if module is http_client else server.grpc) as made:
        yield made


def test_load_makes_texts(program, server):
    for url in (f"http://{server.http}", f"grpc://{server.grpc}"):
        done = subprocess.run([str(program), "load", url, "--model", "same", "--rate", "40", "--process", "uniform",
                               "--duration", "0.5", "--json"], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout)
        assert told["on_time"] == told["sent"] > 0, told


def data_of(kind, rows, seed=5):
    rng = np.random.default_rng(seed)
    if kind == STRING:
        return rng.choice(np.array(WORDS, dtype=np.object_), (rows, WIDTH))
    if kind == INT64:
        return rng.integers(-2, 3, (rows, WIDTH))
    return (rng.integers(-6, 7, (rows, WIDTH)) / 2).astype(np.float32)


def tensor_of(module, kind, data, **more):
    tensor = module.InferInput("x", data.shape, KINDS[kind][0])
    tensor.set_data_from_numpy(data, **more)
    return tensor


def as_texts(array):
    return np.array([t.decode() if isinstance(t, bytes) else t for t in array.ravel()], dtype=np.object_).reshape(array.shape)


def check(got, want):
    assert got.shape == want.shape
    if want.dtype == np.object_:
        np.testing.assert_array_equal(as_texts(got), want)
    else:
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def reference(models, name):
    return onnxruntime.InferenceSession(str(models / name / "1" / "model.onnx"), providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("name", MODELS)
def test_answers_are_onnxruntimes(client, module, models, name):
    session, kind = reference(models, name), MODELS[name][1]
    for rows in (1, 5):
        data = data_of(kind, rows)
        wanted = session.run(None, {"x": data})
        for binary in (True, False) if module is http_client else (None,):
            more = {} if binary is None else {"binary_data": binary}
            outputs = [module.InferRequestedOutput(one, **more) for one in MODELS[name][2]]
            result = client.infer(name, [tensor_of(module, kind, data, **more)], outputs=outputs, timeout=MINUTE)
            for one, want in zip(MODELS[name][2], wanted):
                check(result.as_numpy(one), want)


def test_models_of_an_ensemble_hand_texts_on(client, module, models):
    data = data_of(STRING, 3)
    known = np.where(np.isin(data, PETS), data, "_Unused")
    check(client.infer("pair", [tensor_of(module, STRING, data)], timeout=MINUTE).as_numpy("y"),
          reference(models, "to_real").run(None, {"x": known})[0])


def test_what_the_server_says_of_them(server):
    with http_client.InferenceServerClient(server.http) as client:
        assert client.get_model_metadata("to_text")["inputs"] == [{"name": "x", "datatype": "BYTES", "shape": [-1, WIDTH]}]
        assert client.get_model_config("to_text")["output"][0]["data_type"] == "TYPE_STRING"


def test_shared_memory(client, module, models):
    data = data_of(STRING, 3)
    sent = serialize_byte_tensor(data).item()
    wanted = reference(models, "to_text").run(None, {"x": data})[0]
    length = len(serialize_byte_tensor(wanted).item())
    with object_of(8192) as (handle, key):
        shm.set_shared_memory_region(handle, [serialize_byte_tensor(data)])
        client.register_system_shared_memory("texts", key, 8192)
        try:
            for size, room in ((len(sent), 2048), (len(sent) + 1, 2048), (len(sent) - 1, 2048), (len(sent), length - 1)):
                tensor = module.InferInput("x", data.shape, "BYTES")
                tensor.set_shared_memory("texts", size)
                output = module.InferRequestedOutput("y")
                output.set_shared_memory("texts", room, offset=4096)
                if (size, room) == (len(sent), 2048):
                    client.infer("to_text", [tensor], outputs=[output], timeout=MINUTE)
                    check(shm.get_contents_as_numpy(handle, np.object_, list(wanted.shape), offset=4096), wanted)
                    continue
                said = f"has {length} bytes" if room < 2048 else "behind the last element" if size > len(sent) else "element 11 has"
                with pytest.raises(InferenceServerException, match=said):
                    client.infer("to_text", [tensor], outputs=[output], timeout=MINUTE)
        finally:
            client.unregister_system_shared_memory()


def test_requests_of_one_batch_have_their_own_texts_back(program, models, tmp_path):
    with (serving(program, models, tmp_path / "log", "--scheduler", "timeout:0.5", "--strict-readiness", "false") as server,
          grpc_client.InferenceServerClient(server.grpc) as client):
        def ask(number: int) -> None:
            data = np.array([[f"first of {number}", "cat", "x" * (number % 40), f"last of {number}"]], dtype=np.object_)
            got = client.infer("own_moved", [tensor_of(grpc_client, STRING, data)], timeout=MINUTE).as_numpy("y")
            np.testing.assert_array_equal(as_texts(got), data[:, [2, 0, 0, 1, 2, 3]])

        with concurrent.futures.ThreadPoolExecutor(16) as threads:
            list(threads.map(ask, range(80)))
        stats = client.get_inference_statistics("own_moved", as_json=True)["model_stats"][0]
        assert int(stats["execution_count"]) < int(stats["inference_count"]), "none shared a batch"


def test_an_ensemble_gives_texts_back(server, module):
    with module.InferenceServerClient(server.http if module is http_client else server.grpc) as client:
        data = data_of(STRING, 3)
        got = client.infer("through", [tensor_of(module, STRING, data)], timeout=MINUTE).as_numpy("y")
        np.testing.assert_array_equal(as_texts(got), data[:, [2, 0, 0, 1, 2, 3]])


def test_an_unknown_text_fails_its_request(client, module):
    with pytest.raises(InferenceServerException, match="a text, which comes from input 'x', is not one of the 4"):
        client.infer("strict", [tensor_of(module, STRING, np.array([WORDS[:3] + ["dragon"]], dtype=np.object_))], timeout=MINUTE)


def test_texts_have_no_largest_values(client, module):
    outputs = [module.InferRequestedOutput("y", class_count=1)]
    with pytest.raises(InferenceServerException, match="'y' of model 'to_text' is BYTES, which has no largest values"):
        client.infer("to_text", [tensor_of(module, STRING, data_of(STRING, 1))], outputs=outputs, timeout=MINUTE)


def test_what_is_not_utf8_goes_as_a_blob(server):
    with http_client.InferenceServerClient(server.http) as client:
        data = tensor_of(http_client, INT64, np.array([[0, 1, 0, 0]]))
        got = client.infer("latin", [data], outputs=[http_client.InferRequestedOutput("y")], timeout=MINUTE).as_numpy("y")
        assert got.tolist() == [[b"ok", b"\xe9t\xe9", b"ok", b"ok"]]
        outputs = [http_client.InferRequestedOutput("y", binary_data=False)]
        with pytest.raises(InferenceServerException, match="element 1 is not UTF-8.*binary_data"):
            client.infer("latin", [data], outputs=outputs, timeout=MINUTE)


def post(server, body, length=None):
    request = urllib.request.Request(f"http://{server.http}/v2/models/to_whole/infer", body)
    if length is not None:
        request.add_header("Inference-Header-Content-Length", str(length))
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=60)
    return refused.value.code, json.loads(refused.value.read())["error"]


FOUR = b"".join(struct.pack("<I", len(w)) + w for w in (b"cat", b"", b"dog", b"x" * 300))


@pytest.mark.parametrize("blob, said", [
    (b"", "at least 16"), (FOUR[:-1], "element 3 has a length of 300, and only 299 bytes"), (FOUR + b"\0", "1 bytes are behind"),
    (struct.pack("<I", 1 << 30) + FOUR[4:], "element 0 has a length of 1073741824"),
    (struct.pack("<i", -1) + FOUR[4:], "element 0 has a length of 4294967295"),
    (FOUR[:-304] + b"\1\0", "element 3 has no length: 2 bytes"),
])
def test_bad_blobs(server, blob, said):
    head = json.dumps({"inputs": [{"name": "x", "datatype": "BYTES", "shape": [1, WIDTH], "parameters": {"binary_data_size": len(blob)}}]}).encode()
    code, error = post(server, head + blob, len(head))
    assert code == 400 and said in error and "input 'x' of model 'to_whole'" in error


@pytest.mark.parametrize("data, said", [
    ('["a","b","c"]', "takes 4"), ('["a","b","c","d","e"]', "takes 4"), ('["a","b",3,"d"]', "element 2 is 3"),
    ('["a","b","c",null]', "element 3 is null"), ('[NaN,"b","c","d"]', "element 0 is NaN"), ('["a","\\ud800","c","d"]', "JSON"),
    ('["a",["b"],"c","d"]', "element 1 is an array"),
])
def test_bad_json(server, data, said):
    code, error = post(server, f'{{"inputs":[{{"name":"x","datatype":"BYTES","shape":[1,{WIDTH}],"data":{data}}}]}}'.encode())
    assert code == 400 and said in error
    assert post(server, b'{"inputs":[{"name":"x","datatype":"BYTES","shape":[1,4],"data":["\xff","b","c","d"]}]}')[0] == 400
