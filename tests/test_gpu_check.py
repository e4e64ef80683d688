"""tools/gpu-check and the program that it runs, on the emulated device."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def gpu_check(out, *arguments):
    done = subprocess.run([sys.executable, str(ROOT / "tools/gpu-check"), "--out", str(out), *arguments],
                          capture_output=True, text=True, timeout=300)
    written = out / "gpu-check.json"
    return done, json.loads(written.read_text()) if written.exists() else None


@pytest.fixture
def gpu(program):
    def run(*arguments):
        return subprocess.run([str(program.parent / "carillon_gpu"), *arguments], capture_output=True, text=True, timeout=300)
    return run


def test_parts_are_kept_in_one_file(program, tiny_models, tmp_path):
    done, result = gpu_check(tmp_path, "--device", "cuda-emulated", "--build", str(program.parent), "--models", str(tiny_models),
                             "--part", "facts", "--part", "agree", "--model", "tiny_cnn", "--model", "tiny_mlp")
    assert done.returncode == 0, done.stderr
    steps = {s["step"]: s for s in result["steps"]}
    assert steps["facts"]["result"]["processors"] == 132
    assert steps["facts"]["result"]["parts"]["sizes"][0] == {"wanted": 1, "got": 8, "left": 124}
    for model in ("tiny_cnn", "tiny_mlp"):
        for number in ("f32", "tf32", "f16", "bf16"):
            for cut in ("", " cut"):
                agreed = steps[f"{model} {number}{cut}"]["result"]
                assert agreed["agrees"] and 0 <= agreed["apart"] <= agreed["allowed"], agreed
                assert (agreed["segments"] > 1) == bool(cut) or agreed["segments"] == 1
    assert steps["tiny_cnn f16"]["result"]["apart"] > steps["tiny_cnn f32"]["result"]["apart"]
    assert (tmp_path / "gpu-check.log").read_text().count(": ok") == 17


def test_what_there_is_no_time_for_is_said(program, tiny_models, tmp_path):
    done, result = gpu_check(tmp_path, "--device", "cuda-emulated", "--build", str(program.parent), "--models", str(tiny_models),
                             "--part", "agree", "--model", "tiny_mlp", "--minutes", "0.001")
    assert done.returncode == 1
    assert {s["status"] for s in result["steps"]} == {"no time"} and len(result["steps"]) == 8


def test_without_a_device_each_step_says_why(program, tiny_models, tmp_path):
    done, result = gpu_check(tmp_path, "--build", str(program.parent), "--models", str(tiny_models), "--part", "facts")
    if result["steps"][0]["status"] == "ok":
        pytest.skip("there is a GPU here")
    assert done.returncode == 1
    assert result["steps"][0]["status"] == "exit 2"
    assert "CUDA" in result["steps"][0]["says"] or "GPU" in result["steps"][0]["says"], result


def test_speed_and_load_are_told_in_numbers(gpu, tiny_models):
    file = str(tiny_models / "tiny_cnn/1/model.onnx")
    speed = json.loads(gpu("speed", file, "--device", "cuda-emulated", "--runs", "30", "--segment", "2").stdout)
    assert speed["run"]["count"] == 30 and speed["segments"] > 1
    assert 0 < speed["run"]["least"] <= speed["run"]["p50"] <= speed["run"]["p99"] <= speed["run"]["most"]
    assert speed["per_second"] > 0 and speed["on_device"]["p50"] > 0
    load = json.loads(gpu("load", file, "--device", "cuda-emulated", "--times", "3").stdout)
    assert load["bytes"] > 0 and load["load_gb_per_s"]["count"] == 3
    assert load["run_us"]["count"] == load["run_beside_loads_us"]["count"] == 30
    assert load["bus"]["host_to_device_gb_per_s"]["p50"] == pytest.approx(55, rel=0.01)


def test_overload_goes_through_the_server(program, tiny_models, tmp_path):
    done, result = gpu_check(tmp_path, "--device", "cuda-emulated", "--build", str(program.parent), "--models", str(tiny_models),
                             "--part", "overload", "--model", "tiny_mlp", "--model", "tiny_cnn", "--disb-seconds", "2",
                             "--deadline-ms", "500")
    assert done.returncode == 0, done.stderr + str(result)
    steps = {s["step"]: s["result"] for s in result["steps"]}
    assert set(steps) == {"closed", "1x", "2x"}
    assert steps["2x"]["sent"] > 1.5 * steps["1x"]["sent"] > 0 and steps["1x"]["on_time"] > 0


@pytest.mark.parametrize("how", ["bound", "flag", "gate", "parts"])
def test_preemption_is_told_apart_by_what_ends_best_effort(gpu, tiny_models, how):
    files = [str(tiny_models / f"{name}/1/model.onnx") for name in ("tiny_mlp", "tiny_encoder")]
    stop = ["--parts"] if how == "parts" else ["--whole", "--stop", how]
    done = gpu("preempt", *files, "--device", "cuda-emulated", "--times", "20", *stop)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["leaves_room"] == (how == "parts")
    assert told["alone_us"]["count"] == 19 and told["longer_us"]["count"] == 20
    assert told["best_effort_segments"] > 1
    assert (told["evicted"] <= 1) == (how == "parts"), "beside it nobody is evicted"


def test_both_ways_of_attention_are_measured(program, tiny_models, tmp_path):
    done, result = gpu_check(tmp_path, "--device", "cuda-emulated", "--build", str(program.parent), "--models", str(tiny_models),
                             "--part", "attention", "--model", "tiny_encoder", "--runs", "3")
    assert done.returncode == 0, done.stderr
    steps = {s["step"]: s["result"] for s in result["steps"]}
    for batch in (1, 8, 32):
        attentions = steps[f"tiny_encoder f16 batch {batch}"]["attentions"]
        assert len(attentions) == 1 and "attention f16" in attentions[0]["key"], "both layers' are alike"
        # A kernel of the emulated device takes 3 us, whatever it does.
        assert attentions[0]["kernel_us"] < attentions[0]["calls_us"] and attentions[0]["taken"] == "kernel"
        calls, kernel = (steps[f"tiny_encoder f16 batch {batch} by {way}"] for way in ("calls", "one kernel"))
        assert kernel["on_device"]["p50"] < calls["on_device"]["p50"]


def test_a_model_without_attention_is_told_so(gpu, tiny_models):
    done = gpu("attention", str(tiny_models / "tiny_cnn/1/model.onnx"), "--device", "cuda-emulated")
    assert done.returncode == 2 and "no attention that one kernel could compute" in done.stderr


@pytest.mark.parametrize("arguments, says", [
    (["facts", "--device", "cuda:x"], "'cuda:x' is not a device"),
    (["facts", "--device", "gpu"], "'gpu' is not a device"),
    (["agree", "nothing.onnx", "--device", "cuda-emulated"], "nothing.onnx"),
    (["agree", "nothing.onnx", "--number", "f8"], "f8"),
    (["agree"], "MODEL"),
    ([], "subcommand"),
])
def test_bad_commands(gpu, arguments, says):
    done = gpu(*arguments)
    assert done.returncode != 0
    assert says in done.stderr + done.stdout
