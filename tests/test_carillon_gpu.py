"""carillon_gpu, the program that tools/gpu-first runs, on the emulated device."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest


@pytest.fixture
def gpu(program):
    def run(*arguments):
        return subprocess.run([str(program.parent / "carillon_gpu"), *arguments], capture_output=True, text=True, timeout=300)
    return run


@pytest.mark.parametrize("model", ["tiny_cnn", "tiny_mlp"])
def test_agreement_is_told_whole_and_cut(gpu, tiny_models, model):
    apart = {}
    for number in ("f32", "tf32", "f16", "bf16"):
        for cut in ([], ["--cut", "--segment", "4"]):
            done = gpu("agree", str(tiny_models / model / "1/model.onnx"), "--device", "cuda-emulated", "--number", number, *cut)
            assert done.returncode == 0, done.stderr
            agreed = json.loads(done.stdout)
            assert agreed["agrees"] and 0 <= agreed["apart"] <= agreed["allowed"], agreed
            assert (agreed["segments"] > 1) == bool(cut) or agreed["segments"] == 1
            apart[number] = agreed["apart"]
    assert apart["f16"] > apart["f32"]


def test_facts_say_what_the_device_is(gpu):
    facts = json.loads(gpu("facts", "--device", "cuda-emulated").stdout)
    assert facts["processors"] == 132
    assert facts["parts"]["sizes"][0] == {"wanted": 1, "got": 8, "left": 124}
    assert facts["division"] == {"our kernels": "yes", "a convolution": "yes"}


def test_without_a_device_it_says_why(gpu):
    done = gpu("facts")
    if done.returncode == 0:
        pytest.skip("there is a GPU here")
    assert done.returncode == 2 and ("CUDA" in done.stderr or "GPU" in done.stderr), done.stderr


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


@pytest.mark.parametrize("how", ["bound", "flag", "parts"])
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


def test_recorded_calls_are_answered_alike(gpu, tiny_models, tmp_path):
    calls = tmp_path / "calls.txt"
    files = [str(tiny_models / f"{name}/1/model.onnx") for name in ("tiny_mlp", "tiny_cnn")]
    done = gpu("preempt", *files, "--device", "cuda-emulated", "--times", "3", "--parts", "--record", str(calls))
    assert done.returncode == 0, done.stderr
    again = gpu("replay", str(calls))
    assert again.returncode == 0, again.stdout
    told = json.loads(again.stdout)
    assert told["agrees"] and told["differences"] == [] and told["calls"] > 500
    # One difference is found, and where it is.
    lines = calls.read_text().splitlines()
    at = next(i for i, line in enumerate(lines) if " cuGraphLaunch 0 " in line)
    lines[at] = lines[at].replace(" cuGraphLaunch 0 ", " cuGraphLaunch 1 ")
    calls.write_text("\n".join(lines) + "\n")
    again = gpu("replay", str(calls))
    assert again.returncode == 1
    told = json.loads(again.stdout)
    assert not told["agrees"]
    assert told["differences"] == [f"line {at + 1}: cuGraphLaunch gave CUDA_SUCCESS (0) where CUDA_ERROR_INVALID_VALUE (1) is recorded"]


RECORDED = sorted((Path(__file__).resolve().parents[1] / "profiles").glob("*_driver_calls.txt"))


@pytest.mark.skipif(not RECORDED, reason="no driver's calls were recorded on a GPU yet")
def test_what_gpus_drivers_answered_the_emulated_device_answers(gpu):
    for calls in RECORDED:
        again = gpu("replay", str(calls))
        assert again.returncode == 0, f"{calls}: {again.stdout}{again.stderr}"


def test_calls_that_were_not_recorded_are_refused(gpu, tmp_path):
    (tmp_path / "calls.txt").write_text("nothing\n")
    done = gpu("replay", str(tmp_path / "calls.txt"))
    assert done.returncode == 2 and "line 1 of recorded calls" in done.stderr
    assert gpu("replay", str(tmp_path / "none.txt")).returncode == 2
    assert gpu("facts", "--device", "cuda-emulated", "--record", "/nowhere/calls.txt").returncode == 2


def test_both_ways_of_attention_are_measured(gpu, tiny_models):
    file = str(tiny_models / "tiny_encoder/1/model.onnx")

    def told(what, *arguments):
        done = gpu(what, file, "--device", "cuda-emulated", "--number", "f16", *arguments)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    for batch in ("1", "8", "32"):
        attentions = told("attention", "--batch", batch)["attentions"]
        assert len(attentions) == 1 and "attention f16" in attentions[0]["key"], "both layers' are alike"
        # A kernel of the emulated device takes 3 us, whatever it does.
        assert attentions[0]["kernel_us"] < attentions[0]["calls_us"] and attentions[0]["taken"] == "kernel"
        calls, kernel = (told("speed", "--batch", batch, "--runs", "3", "--attention", way) for way in ("calls", "kernel"))
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
