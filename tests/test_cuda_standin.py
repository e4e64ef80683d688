"""The whole way to a GPU on stand-ins: a driver, cuDNN, cuBLASLt and NVRTC that compute on the host. For programs that have
kernels for GPUs (preset cuda): CARILLON_PROGRAM=build/cuda/carillon pytest tests/test_cuda_standin.py."""

from __future__ import annotations

import json
import os
import shutil
import subprocess

import numpy as np
import pytest
import tritonclient.http as http_client

from loopback import serving
from test_cuda_devices import Askers
from test_cuda_emulated import TINY, inputs_of
from test_devices import by_device, wait_for


@pytest.fixture(scope="module")
def standin(program):
    folder = program.parent / "cuda_standin"
    if not (folder / "libcuda.so.1").exists():
        pytest.skip("the stand-ins are not built")
    said = gpu(program, folder, "facts")
    if "built without kernels for GPUs" in said.stderr:
        pytest.skip("this program was built without kernels for GPUs: preset cuda builds them")
    assert said.returncode == 0, said.stderr
    return folder


def gpu(program, driver, *arguments, libraries=None, environment=None):
    return subprocess.run([str(program.parent / "carillon_gpu"), *arguments, "--device", "cuda:0", "--cuda-libraries",
                           str(libraries or driver)], capture_output=True, text=True, timeout=120,
                          env={**os.environ, "LD_LIBRARY_PATH": str(driver), **(environment or {})})


def test_a_wrong_answer_names_its_step(program, standin, tiny_models):
    def told(name, *arguments, status=0, environment=None):
        done = gpu(program, standin, "agree", str(tiny_models / name / "1/model.onnx"), "--steps", *arguments,
                   environment=environment)
        assert done.returncode == status, done.stderr
        return json.loads(done.stdout)

    for name in TINY:
        for number in ("f32", "f16"):
            agreed = told(name, "--number", number)
            assert agreed["agrees"] and agreed["steps"] == [] and agreed["compared"] >= 3
    wrong = told("tiny_cnn", status=1, environment={"CARILLON_STANDIN_FORGETS_RELU": "1"})
    assert not wrong["agrees"] and wrong["steps"][0]["apart"] > wrong["allowed"]
    names = [step["step"] for step in wrong["steps"]]
    assert names and all(" conv " in name and " relu" in name for name in names), "each is given the device's own bytes"


def test_serves_and_agrees_with_onnxruntime(program, standin, tiny_models, tmp_path):
    import onnxruntime
    choices = tmp_path / "choices"
    options = ["--device", "cuda:0", "--cuda-libraries", str(standin), "--io-cache", "16MiB", "--workspace", "16MiB",
               "--kernel-choices", str(choices)]
    before, code_before = "", {}
    for start in range(2):
        log = tmp_path / f"server{start}.log"
        with serving(program, tiny_models, log, *options, environment={"LD_LIBRARY_PATH": str(standin)}) as running:
            with http_client.InferenceServerClient(running.http) as client:
                for name in TINY:
                    session = onnxruntime.InferenceSession(str(tiny_models / name / "1" / "model.onnx"),
                                                           providers=["CPUExecutionProvider"])
                    given = inputs_of(session, 3)
                    inputs = []
                    for tensor, array in given.items():
                        inputs.append(http_client.InferInput(tensor, array.shape,
                                                             "FP32" if array.dtype == np.float32 else "INT64"))
                        inputs[-1].set_data_from_numpy(array)
                    answer = client.infer(name, inputs)
                    for spec, want in zip(session.get_outputs(), session.run(None, given)):
                        got = answer.as_numpy(spec.name)
                        assert np.max(np.abs(got - want)) <= 1e-4 * max(1e-6, float(np.max(np.abs(want))))
        said = log.read_text()
        assert "stand-in GPU, f32 with cuDNN 9.19.0 and cuBLASLt 13.1.0, chains by NVRTC 13.0" in said
        assert "run as a kernel each" not in said
        assert "no metrics of the GPU" in said  # there is no management library
        kept = (tmp_path / "choices.cuda-0").read_text()
        assert kept.startswith("carillon kernel choices 1; stand-in GPU; 9.0;") and kept.count("\n") > 10
        code = code_in(tmp_path)
        assert len(code) >= 2
        if start == 1:
            assert kept == before, "the second start measured anew"
            assert code == code_before, "the second start compiled anew"
        before, code_before = kept, code


def test_plans_that_cudnn_compiled_are_kept(program, standin, tiny_models, tmp_path):
    model = str(tiny_models / "tiny_cnn/1/model.onnx")
    plans = tmp_path / "choices.cuda-0.plans"

    def agrees():
        done = gpu(program, standin, "agree", model, "--number", "f16", "--kernel-choices", str(tmp_path / "choices"))
        assert done.returncode == 0 and json.loads(done.stdout)["agrees"], done.stderr
        return {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in plans.iterdir()}

    first = agrees()
    assert first and all(content.startswith(b"carillon cuDNN plans 1; stand-in GPU; 9.0; 132 processors; driver 13000; cuDNN 91900")
                         for content, _ in first.values())
    assert "engine 0 ()" in (tmp_path / "choices.cuda-0").read_text()
    assert agrees() == first, "the second start compiled anew"
    for file in plans.iterdir():
        file.write_bytes(file.read_bytes()[:-2])
    again = agrees()  # those that are taken are made anew
    assert any(len(again[name][0]) == len(content) for name, (content, _) in first.items())


def code_in(folder):
    return {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in (folder / "choices.cuda-0.code").iterdir()}


def test_code_that_is_damaged_or_anothers_is_made_anew(program, standin, tiny_models, tmp_path):
    model = str(tiny_models / "tiny_encoder/1/model.onnx")

    def agrees():
        # By calls: which chains there are does not depend on what was measured.
        done = gpu(program, standin, "agree", model, "--kernel-choices", str(tmp_path / "choices"), "--attention", "calls")
        assert done.returncode == 0 and json.loads(done.stdout)["agrees"], done.stderr
        return {name: content for name, (content, _) in code_in(tmp_path).items()}

    first = agrees()
    assert all(content.startswith(b"carillon chain code 1; NVRTC 13.0; --gpu-architecture=sm_90a ")
               for content in first.values())
    for damage in (lambda was: was[:-1], lambda was: was[:20], lambda was: b"", lambda was: was + b"x",
                   lambda was: was.replace(b"sm_90a", b"sm_100", 1), lambda was: was.replace(b"NVRTC 13.0", b"NVRTC 12.9", 1),
                   lambda was: was[:-9] + bytes([was[-9] ^ 1]) + was[-8:]):
        for name, content in first.items():
            (tmp_path / "choices.cuda-0.code" / name).write_bytes(damage(content))
        assert agrees() == first


def test_without_nvrtc_steps_are_kernels_and_it_says_so(program, standin, tiny_models, tmp_path):
    some = tmp_path / "some"
    some.mkdir()
    for name in ("libcudnn.so.9", "libcublasLt.so.13"):
        (some / name).symlink_to((standin / "libcuda.so.1").resolve())
    model = str(tiny_models / "tiny_encoder/1/model.onnx")
    without = gpu(program, standin, "agree", model, libraries=some)
    assert without.returncode == 0 and json.loads(without.stdout)["agrees"], without.stderr
    log = tmp_path / "server.log"
    options = ["--device", "cuda:0", "--cuda-libraries", str(some), "--io-cache", "16MiB", "--workspace", "16MiB"]
    with serving(program, tiny_models, log, *options, environment={"LD_LIBRARY_PATH": str(standin)}):
        pass
    said = log.read_text()
    assert said.count("elementwise steps run as a kernel each: libnvrtc.so.13 was not found") == 1
    assert str(some) in said and "chains by" not in said


def test_two_gpus_serve_beside_each_other(program, standin, tiny_models, tmp_path):
    """`cuda:1,0`: each with libraries, memory and choices of its own."""
    choices, log = tmp_path / "choices", tmp_path / "server.log"
    with serving(program, tiny_models, log, "--device", "cuda:1,0", "--cuda-libraries", str(standin), "--io-cache", "16MiB",
                 "--workspace", "16MiB", "--kernel-choices", str(choices), "--scheduler", "fcfs",
                 environment={"LD_LIBRARY_PATH": str(standin)}) as running:
        asked = Askers(running, tiny_models, "tiny_cnn", 8)
        try:
            wait_for(lambda: min(by_device(running, "carillon_device_executions_total")) > 20, "one device does nothing")
        finally:
            asked.stop()
        assert asked.right == asked.sent and not asked.failed and not asked.wrong
    said = log.read_text()
    assert "device 0: cuda:1: stand-in GPU, f32" in said and "device 1: cuda:0: stand-in GPU, f32" in said
    for number in (0, 1):
        assert (tmp_path / f"choices.cuda-{number}").read_text().startswith("carillon kernel choices 1; stand-in GPU; 9.0;")


def test_choices_of_another_gpu_are_replaced(program, standin, tiny_models, tmp_path):
    file = tmp_path / "choices.cuda-0"
    model = str(tiny_models / "tiny_cnn/1/model.onnx")
    for wrong in ("carillon kernel choices 1; another GPU\na\tb\n", "", "\0\1\2", "x" * 1000):
        file.write_text(wrong)
        done = gpu(program, standin, "agree", model, "--kernel-choices", str(tmp_path / "choices"))
        assert done.returncode == 0 and json.loads(done.stdout)["agrees"], done.stderr
        assert file.read_text().startswith("carillon kernel choices 1; stand-in GPU;")


def test_a_choice_that_there_is_not_is_measured_anew(program, standin, tiny_models, tmp_path):
    file = tmp_path / "choices.cuda-0"
    model = str(tiny_models / "tiny_cnn/1/model.onnx")
    assert gpu(program, standin, "agree", model, "--kernel-choices", str(tmp_path / "choices")).returncode == 0
    first = file.read_text()
    # Of forms that are only measured against fused ones, choices are asked for where it is not known which is better.
    damaged = [line for line in first.splitlines(keepends=True) if not line.startswith("fused or not: ")]
    assert len(damaged) < first.count("\n")
    file.write_text("".join(damaged).replace("engine ", "engine 9").replace("algorithm 2a", "algorithm ff"))
    assert gpu(program, standin, "agree", model, "--kernel-choices", str(tmp_path / "choices")).returncode == 0
    assert file.read_text() == first


def test_what_is_missing_is_named(program, standin, tiny_models, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    said = gpu(program, standin, "facts", libraries=empty)
    assert said.returncode == 2 and "libcudnn.so.9 was not found" in said.stderr and str(empty) in said.stderr
    other = tmp_path / "other"
    other.mkdir()
    shutil.copy(standin.parent / "cuda_stubs" / "libcarillon_cuda_stub_whole.so", other / "libcudnn.so.9")
    shutil.copy(standin / "libcuda.so.1", other / "libcublasLt.so.13")
    said = gpu(program, standin, "facts", libraries=other)
    assert said.returncode == 2 and "is no cuDNN of 9.8 or newer" in said.stderr, said.stderr
    said = subprocess.run([str(program.parent / "carillon_gpu"), "facts", "--device", "cuda:3", "--cuda-libraries", str(standin)],
                          capture_output=True, text=True, timeout=60, env={**os.environ, "LD_LIBRARY_PATH": str(standin)})
    assert said.returncode == 2 and "there is no device cuda:3: there are cuda:0 to cuda:1" in said.stderr, said.stderr
