"""`carillon serve --model FILE` and `./quickstart --model FILE`: a model of one's own, without a repository or a config."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import urllib.request

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from loopback import ROOT, free_addresses, is_ready


def write(file, factor: float, width=4, kind=TensorProto.FLOAT, **saved):
    values = [helper.make_tensor_value_info(name, kind, ["batch", width]) for name in ("x", "y")]
    scale = numpy_helper.from_array(np.full(width, factor, helper.tensor_dtype_to_np_dtype(kind)), "f")
    graph = helper.make_graph([helper.make_node("Mul", ["x", "f"], ["y"])], "own", [values[0]], [values[1]], [scale])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    onnx.save(model, file, **saved)
    return file


def refused(program, *options) -> str:
    done = subprocess.run([str(program), "serve", *map(str, options), "--http", free_addresses(1)[0], "--grpc", "", "--metrics", ""],
                          capture_output=True, text=True, timeout=120)
    assert done.returncode != 0 and not done.stdout, done
    return done.stderr


def test_files_are_served_under_their_names(program, tmp_path):
    write(tmp_path / "double.onnx", 2)
    # Weights beside the file, which is reached by a link.
    (tmp_path / "far").mkdir()
    write(tmp_path / "far/model.onnx", 3, save_as_external_data=True, size_threshold=0, location="weights.bin")
    os.symlink(tmp_path / "far", tmp_path / "near")
    (http,) = free_addresses(1)
    server = subprocess.Popen([str(program), "serve", "--model", "double.onnx", "--model", "triple=near/model.onnx", "--http", http,
                               "--grpc", "", "--metrics", ""], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    try:
        for line in server.stderr:
            if "ready: 2 of 2 models" in line:
                break
        assert is_ready(http)
        for model, factor in (("double", 2), ("triple", 3)):
            request = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}
            with urllib.request.urlopen(f"http://{http}/v2/models/{model}/infer", json.dumps(request).encode(), timeout=60) as answer:
                assert json.load(answer)["outputs"][0]["data"] == [factor, 2 * factor, 3 * factor, 4 * factor]
    finally:
        server.terminate()
        server.communicate(timeout=60)
    assert server.returncode == 0


def test_what_cannot_be_served_ends_it_and_says_why(program, tmp_path):
    write(tmp_path / "good.onnx", 2)
    (tmp_path / "other").mkdir()
    shutil.copy(tmp_path / "good.onnx", tmp_path / "other/good.onnx")
    (tmp_path / "torn.onnx").write_bytes((tmp_path / "good.onnx").read_bytes()[:40])
    (tmp_path / "weights.pt").write_bytes(b"x")
    for options, said in (
            (["--model", tmp_path / "none.onnx"], "none.onnx is not there"),
            (["--model", tmp_path], "is a folder, where one file is wanted"),
            (["--model", tmp_path / "weights.pt"], "weights.pt is a TorchScript or PyTorch file; export it"),
            (["--model", tmp_path / "good.onnx", "--model", tmp_path / "other/good.onnx"], "two models are called 'good'"),
            (["--model", tmp_path / "good.onnx", "--models", tmp_path], "--models"),
            (["--model", tmp_path / "good.onnx", "--model-control-mode", "poll"], "these want a repository"),
            ([], "--models, or --model, is required"),
            (["--model", tmp_path / "torn.onnx"], "model 'torn' cannot be served: "),
            (["--model", tmp_path / "good.onnx", "--model", tmp_path / "torn.onnx"], "model 'torn' cannot be served: ")):
        assert said in refused(program, *options), options


def test_a_repository_that_is_not_there_is_told_at_once(program, tmp_path):
    write(tmp_path / "one.onnx", 2)
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for models, said in (("nodir", "--models: model repository 'nodir': No such file or directory"),
                         ("link", "--models: model repository 'link': No such file or directory"),
                         ("one.onnx", "'one.onnx' is not a directory; it is one with a folder for each model, and a model that is "
                                      "one file is served with --model"),
                         ("one.onnx/x", "--models: model repository 'one.onnx/x': Not a directory")):
        for control in ("none", "poll", "explicit"):
            done = subprocess.run([program, "serve", "--models", models, "--model-control-mode", control, "--http", "127.0.0.1:0",
                                   "--grpc", "", "--metrics", "", "--store", "store", "--access-log", "access", "--record", "record"],
                                  capture_output=True, text=True, timeout=60, cwd=tmp_path)
            # Not a line of what would be started.
            assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1), done
            assert said in done.stderr, done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "one.onnx"]


@pytest.mark.parametrize("width, kind, shown", [
    (4, TensorProto.FLOAT, "-d '{\"inputs\":[{\"name\":\"x\",\"shape\":[1,4]"),
    (5000, TensorProto.INT64, "-d @"),
    (4, TensorProto.FLOAT16, "which JSON has not"),
])
def test_quickstart_shows_how_to_ask_and_where_to_look(program, tmp_path, width, kind, shown):
    file = write(tmp_path / "my own.onnx", 2, width, kind)
    done = subprocess.run([sys.executable, "-m", "carillon_quickstart", "--program", str(program), "--log", str(tmp_path / "log"),
                           "--model", str(file), "--once"],
                          capture_output=True, text=True, timeout=300, env={**os.environ, "PYTHONPATH": str(ROOT / "python")})
    assert done.returncode == 0, done.stderr
    assert shown in done.stdout and "A page to look at: http://127.0.0.1:" in done.stdout
    assert "packaging/grafana/carillon.json" in done.stdout and "[1] server: " in done.stderr
    if kind != TensorProto.FLOAT16:
        assert "/v2/models/my%20own/infer" in done.stdout and 'which prints: {"' in done.stdout


def test_quickstart_tells_of_a_model_that_cannot_be_served(program, tmp_path):
    (tmp_path / "torn.onnx").write_bytes(b"no model")
    done = subprocess.run([sys.executable, "-m", "carillon_quickstart", "--program", str(program), "--log", str(tmp_path / "log"),
                           "--model", str(tmp_path / "torn.onnx"), "--once"],
                          capture_output=True, text=True, timeout=300, env={**os.environ, "PYTHONPATH": str(ROOT / "python")})
    assert done.returncode == 1 and "model 'torn' cannot be served: " in done.stderr
