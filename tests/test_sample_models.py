"""The CPU engine against onnxruntime on the sample models, at several batch sizes that share their weights.

CARILLON_SAMPLES names a repository that has them all (python -m carillon_samples makes one); without it the tiny
models are made, and the others are skipped. CARILLON_RUN_MODEL names the program if it is not in build/release.
"""
import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
TINY = ["tiny_mlp", "tiny_cnn", "tiny_encoder"]
ASKED_FOR = ["resnet152", "densenet201", "vgg19", "inceptionv3"]  # not among "all"
LARGE = ["resnet18", "resnet50", "mobilenetv2", "densenet121", "vgg16", "distilbert", *ASKED_FOR]
BATCHES = [1, 2, 7, 16]
LIMITS = {"f32": 1e-4, "bf16": 3e-2}  # largest difference over the largest output
TYPES = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(int32)": np.int32, "tensor(bool)": np.bool_}


def program():
    named = os.environ.get("CARILLON_RUN_MODEL")
    candidates = [pathlib.Path(named)] if named else [ROOT / "build" / p / "carillon_run_model" for p in ("release", "dev")]
    for path in candidates:
        if path.exists():
            return path
    pytest.skip(f"no carillon_run_model at {', '.join(map(str, candidates))}: build it first")


@pytest.fixture(scope="session")
def samples(tmp_path_factory):
    named = os.environ.get("CARILLON_SAMPLES")
    if named:
        return pathlib.Path(named)
    folder = tmp_path_factory.mktemp("samples")
    subprocess.run([sys.executable, "-m", "carillon_samples", "--out", str(folder), "--models", "tiny"], check=True,
                   env={**os.environ, "PYTHONPATH": str(ROOT / "python")})
    return folder


def model_file(samples, name):
    file = samples / name / "1" / "model.onnx"
    if not file.exists():
        if name in TINY or (os.environ.get("CARILLON_SAMPLES_REQUIRED") and name not in ASKED_FOR):
            pytest.fail(f"{file} is missing")
        pytest.skip(f"{file} is not there: set CARILLON_SAMPLES to a repository that has {name}")
    return file


def make_inputs(session, batch):
    random = np.random.default_rng(batch)
    inputs = {}
    for spec in session.get_inputs():
        shape = [batch if not isinstance(n, int) else n for n in spec.shape]
        kind = TYPES[spec.type]
        if kind == np.float32:
            inputs[spec.name] = random.standard_normal(shape, dtype=np.float32)
        elif "mask" in spec.name:  # sentences of different lengths, none empty
            lengths = random.integers(1, shape[-1] + 1, size=shape[:-1])
            inputs[spec.name] = (np.arange(shape[-1]) < lengths[..., None]).astype(kind)
        else:
            inputs[spec.name] = random.integers(0, 100, size=shape).astype(kind)
    return inputs


def relative_error(got, want):
    return float(np.max(np.abs(got.astype(np.float64) - want)) / np.max(np.abs(want)))


@pytest.fixture(scope="session")
def wanted(samples):
    """Inputs and onnxruntime's outputs of a model, computed once."""
    cache = {}

    def of(name):
        if name not in cache:
            import onnxruntime

            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = 2
            session = onnxruntime.InferenceSession(str(model_file(samples, name)), options,
                                                   providers=["CPUExecutionProvider"])
            cache[name] = []
            for batch in BATCHES:
                inputs = make_inputs(session, batch)
                cache[name].append((batch, inputs, session.run(None, inputs)))
        return cache[name]

    return of


@pytest.mark.parametrize("precision", ["f32", "bf16"])
@pytest.mark.parametrize("name", TINY + LARGE)
def test_agrees_with_onnxruntime(name, precision, samples, wanted, tmp_path):
    tool = program()
    file = model_file(samples, name)
    cases = wanted(name)
    for batch, inputs, _ in cases:
        (tmp_path / str(batch)).mkdir()
        for i, array in enumerate(inputs.values()):
            array.tofile(tmp_path / str(batch) / f"in_{i}.bin")
    done = subprocess.run([tool, "--model", file, "--data", tmp_path, "--batches", ",".join(map(str, BATCHES)),
                           "--precision", precision, "--threads", "2"], capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    described = json.loads(done.stdout)
    assert [spec["name"] for spec in described["inputs"]] == list(cases[0][1])
    for batch, _, outputs in cases:
        for i, want in enumerate(outputs):
            got = np.fromfile(tmp_path / str(batch) / f"out_{i}.bin", want.dtype).reshape(want.shape)
            assert np.isfinite(got).all(), f"batch {batch}, output {i}"
            error = relative_error(got, want)
            print(f"{name} {precision} batch {batch} output {i}: {error:.2e}")
            assert error <= LIMITS[precision], f"batch {batch}, output {i}"


def run_model(file, folder, array):
    """The model's one output for its one input."""
    (folder / str(len(array))).mkdir(parents=True)
    array.tofile(folder / str(len(array)) / "in_0.bin")
    done = subprocess.run([program(), "--model", file, "--data", folder, "--batches", str(len(array)), "--threads", "2"],
                          capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    return np.fromfile(folder / str(len(array)) / "out_0.bin", np.float32).reshape(len(array), -1)


@pytest.mark.parametrize("name", ["tiny_mlp", "tiny_cnn", "mobilenetv2"])
def test_what_is_not_a_number_stays_so_and_in_its_row(name, samples, tmp_path):
    import onnxruntime
    session = onnxruntime.InferenceSession(str(model_file(samples, name)), providers=["CPUExecutionProvider"])
    [usual] = make_inputs(session, 4).values()
    before = run_model(model_file(samples, name), tmp_path / "usual", usual)
    for value in [np.nan, np.inf, -np.inf, 1e38, -3e38]:
        for where in [slice(37, 38), slice(None)]:
            bad = usual.copy()
            bad[2].reshape(-1)[where] = value
            case = f"{value} in {where}"
            got = run_model(model_file(samples, name), tmp_path / case.replace(" ", "_"), bad)
            [want] = session.run(None, {session.get_inputs()[0].name: bad})
            want = want.reshape(len(bad), -1)
            assert np.array_equal(got[[0, 1, 3]], before[[0, 1, 3]]), case
            assert np.array_equal(np.isnan(got[2]), np.isnan(want[2])), case
            infinite = np.isinf(want[2])
            assert np.array_equal(got[2][infinite], want[2][infinite]), case
            finite = np.isfinite(want[2])
            if finite.any():
                assert relative_error(got[2][finite], want[2][finite]) <= LIMITS["f32"], case
