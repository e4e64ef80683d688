"""tools/gpu-first: its limits, marks and results with programs that do as they are told, and the whole of it on the stand-ins
for NVIDIA's libraries (test_cuda_standin.py), with tiny models in place of the large ones."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

from test_cuda_standin import standin  # noqa: F401: a fixture

ROOT = Path(__file__).resolve().parents[1]
TINY = ("tiny_cnn", "tiny_encoder", "tiny_mlp")
LARGE = ("resnet50", "distilbert", "densenet121", "mobilenetv2", "vgg19", "resnet152", "densenet201", "inceptionv3")
# What a program prints where a test tells it nothing else, and what `carillon` does for the step overload.
USUAL = {"serve*": "echo 'ready: gRPC port 5'; exec sleep 60", "load*": """echo '{"goodput_rps": 10}'""",
         "*": """echo '{"agrees": true}'"""}


def write_program(file, text):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("#!/bin/sh\n" + text)
    file.chmod(0o755)


def write_programs(folder, calls, cases):
    """`cases`: commands of the shell, by patterns of the arguments; the first that fits."""
    fits = "".join(f'  {pattern.replace(" ", chr(92) + " ")}) {does} ;;\n' for pattern, does in (*cases.items(), *USUAL.items()))
    for name in ("carillon", "carillon_gpu"):
        write_program(folder / name, f'echo "$@" >>{calls}\ncase "$*" in\n{fits}esac\n')


class First:
    """The script with programs, models and folders of a test's own."""

    def __init__(self, folder):
        self.folder, self.script, self.out = folder, ROOT / "tools/gpu-first", folder / "out"
        self.options = ["--device", "cuda-emulated", "--work", str(folder / "work"), "--models", str(folder / "models"),
                        "--programs", str(folder / "programs")]
        for name in (*TINY, *LARGE):
            (folder / "models" / name / "1").mkdir(parents=True)
            (folder / "models" / name / "1/model.onnx").touch()
        write_program(folder / "path/compute-sanitizer", 'shift 4\necho "===== SANITIZER"\n"$@"\n')
        self.does({})

    def does(self, cases):
        write_programs(self.folder / "programs", self.folder / "calls", cases)

    def start(self, *arguments):
        path = f"{self.folder / 'path'}:{os.environ['PATH']}"
        return subprocess.Popen([sys.executable, str(self.script), *arguments, "--out", str(self.out), *self.options],
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, "PATH": path})

    def __call__(self, *arguments, status=0):
        process = self.start(*arguments)
        said, _ = process.communicate(timeout=120)
        assert process.returncode == status, said
        return said

    def results(self):
        lines = [json.loads(line) for line in (self.out / "steps.jsonl").read_text().splitlines()]
        results = {line["step"]: line for line in lines}
        assert len(results) == len(lines), "a step has two objects"
        return results

    def calls(self):
        """Since the last time."""
        file = self.folder / "calls"
        text = file.read_text() if file.exists() else ""
        file.unlink(missing_ok=True)
        return text.splitlines()


@pytest.fixture
def first(tmp_path):
    return First(tmp_path)


def wait_for(what, seconds=20):
    limit = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < limit
        time.sleep(0.02)


def is_alive(pid_file):
    """Whether a process runs whose number is in a file; waits for the number."""
    wait_for(lambda: pid_file.exists() and pid_file.read_text().strip())
    try:
        return Path(f"/proc/{pid_file.read_text().strip()}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def listed(first, *arguments):
    return [line.split()[1] for line in first("--list", *arguments).splitlines()]


def test_every_step_runs_once_in_the_order_of_the_list(first):
    said = first("smoke")
    wanted = [step for step in listed(first, "smoke") if not step.startswith("differs")]
    assert [line.split()[0] for line in said.splitlines()[:-1]] == wanted == list(first.results())
    assert f"{len(wanted)} of {len(wanted)} steps succeeded" in said
    assert first.results()["facts"] == {"step": "facts", "rc": 0, "seconds": pytest.approx(0, abs=5), "result": {"agrees": True}}
    assert first.results()["sanitizer"]["result"] == {"agrees": True}
    assert len(first.calls()) == len(wanted)
    said = first("rest")
    wanted = listed(first, "rest")
    assert [line.split()[0] for line in said.splitlines()[:-1]] == wanted
    assert "facts                    ok (" in said and "s, before)" in said
    assert "peers                    left out: it needs a GPU" in said
    assert list(first.results()["overload"]["result"]) == ["closed", "1x", "2x"]
    loads = [line for line in first.calls() if line.startswith("load grpc")]
    assert ["--rate 10.0" in line and "--deadline 20" in line for line in loads] == [False, True, False]
    assert "--rate 20.0" in loads[2]
    first("smoke"), first("rest")
    assert first.calls() == []
    assert {f.name for f in first.out.iterdir()} == {"steps.jsonl", "cuda.log", "machine.txt"}


def test_results_go_where_the_environment_says(first):
    done = subprocess.run([first.script, "smoke", "--only", "facts", *first.options], capture_output=True, text=True, timeout=60,
                          env={**os.environ, "OUT": str(first.out)})
    assert done.returncode == 0 and list(first.results()) == ["facts"], done.stderr


def test_what_fails_is_told_and_the_rest_goes_on(first):
    first.does({"agree*densenet121*--steps*": """echo '{"steps": [1]}'""",
                "agree*densenet121*": """echo noise; echo '{"agrees": false,\n "apart": 2}'; echo early >&2; echo late >&2
                                        echo 'driver says' >>$CUDA_LOG_FILE; echo 'cuDNN says' >>$CUDNN_LOGDEST_DBG
                                        echo 'cuBLASLt says' >>$CUBLASLT_LOG_FILE; exit 1""",
                "preempt*priority*": "echo 'priority: not in {bound,flag}' >&2; exit 105",
                "speed*resnet50*": "kill -SEGV $$"})
    said = first("smoke", "--only", "facts", "--only", "*densenet121*", "--only", "preempt-*", "--only", "speed-resnet50-8",
                 status=1)
    results = first.results()
    agreed = results["agree-densenet121"]
    assert (agreed["rc"], agreed["result"]) == (1, {"agrees": False, "apart": 2})
    assert (agreed["error"], agreed["driver_log"]) == ("early\nlate", "driver says")
    assert agreed["library_log"] == "cuDNN says\ncuBLASLt says"
    assert "agree-densenet121        rc=1 early late (" in said
    assert results["differs-densenet121"]["result"] == {"steps": [1]}
    assert results["preempt-priority"]["error"] == "priority: not in {bound,flag}"
    assert results["speed-resnet50-8"]["rc"] == -signal.SIGSEGV
    assert all(results[step]["rc"] == 0 for step in ("speed-densenet121-32", "preempt-bound", "preempt-parts"))
    assert "8 of 11 steps succeeded" in said
    assert (first.out / "cuda.log").read_text() == "### agree-densenet121\ndriver says\n"


def test_what_is_asked_first_is_printed(first):
    first.does({"facts*": """echo '{"device": "H100", "driver": 13000, "libraries": "cuDNN 9", "division":
                             {"our kernels": "yes", "cuDNN": "a capture: CUDA_ERROR_X (1)"}}'""",
                "agree*tiny_cnn*": """echo '{"agrees": true, "apart": 0.00012345, "allowed": 0.03}'"""})
    said = first("smoke", "--only", "facts", "--only", "agree-tiny*")
    assert ("facts                    ok: H100, driver 13000, cuDNN 9; in a part of the device: our kernels yes, "
            "cuDNN no (a capture: CUDA_ERROR_X (1)) (") in said
    assert "agree-tiny_cnn           ok: 0.00012 apart, 0.03 allowed (" in said


def test_recorded_calls_are_asked_again_where_there_are_some(first):
    only = ("rest", "--only", "facts", "--only", "calls", "--only", "replay")
    first.does({"preempt*": f"echo '1 cuInit 0 0' >{first.folder}/work/driver_calls.txt"})
    first(*only)
    assert list(first.results()) == ["facts", "calls", "replay"]
    assert (first.out / "driver_calls.txt").read_text() == "1 cuInit 0 0\n"
    assert first.calls()[-1] == f"replay {first.folder}/work/driver_calls.txt"
    first.does({"preempt*": "exit 1"})
    assert "replay                   left out: calls did not succeed" in first(*only, status=1)


def test_what_failed_is_run_again_when_asked(first):
    only = ("smoke", "--only", "facts", "--only", "agree-resnet50")
    first.does({"agree*resnet50*": f"[ -e {first.folder}/mended ]"})
    first(*only, status=1)
    (first.folder / "mended").touch()
    first.calls()
    assert "s, before)" in first(*only, status=1) and first.calls() == []
    first(*only, "--again")
    assert len(first.calls()) == 2 and first.results()["agree-resnet50"]["rc"] == 0


def test_without_facts_nothing_else_is_tried(first):
    first.does({"facts*": f"[ -e {first.folder}/mended ] || {{ echo 'there is no CUDA driver' >&2; exit 2; }}"})
    for part in ("smoke", "rest"):
        assert "facts                    rc=2 there is no CUDA driver (" in first(part, status=3)
        assert list(first.results()) == ["facts"]
    (first.folder / "mended").touch()
    first("smoke", "--only", "facts", "--only", "agree-tiny*")
    assert len(first.results()) == 4


def test_a_step_is_cut_off_with_all_its_processes(first):
    pid = first.folder / "pid"
    first.does({"agree*tiny_cnn*": f"sleep 60 & echo $! >{pid}; echo begun; echo stuck >&2; wait",
                "agree*tiny_mlp*": f"sleep 60 & echo $! >{pid}2"})
    begun = time.monotonic()
    said = first("smoke", "--only", "facts", "--only", "agree-tiny*", "--step-limit", "1", status=1)
    assert time.monotonic() - begun < 20
    cut = first.results()["agree-tiny_cnn"]
    assert (cut["rc"], cut["error"], cut["result"]) == (None, "cut off after 1 s: stuck", "begun") and cut["seconds"] >= 1
    assert "agree-tiny_cnn           cut off after 1 s: stuck (" in said
    wait_for(lambda: not is_alive(pid))
    assert first.results()["agree-tiny_mlp"]["rc"] == 0
    wait_for(lambda: not is_alive(first.folder / "pid2"))
    first.calls()
    first("smoke", "--only", "agree-tiny*", "--step-limit", "1", status=1)
    assert first.calls() == [], "its own limit has ended it: it is done"


def test_a_call_has_a_limit_and_the_next_goes_on(first):
    first.does({"agree*tiny_encoder*": f"[ -e {first.folder}/mended ] || sleep 60"})
    only = ("smoke", "--only", "facts", "--only", "agree-tiny*")
    begun = time.monotonic()
    said = first(*only, "--limit", "2", status=1)
    assert time.monotonic() - begun < 10
    results = first.results()
    assert results["agree-tiny_cnn"]["rc"] == 0
    assert results["agree-tiny_encoder"]["error"].startswith("cut off after 1.")
    assert results["agree-tiny_mlp"] == {"step": "agree-tiny_mlp", "rc": None, "seconds": 0, "result": "",
                                         "error": "not run: the limit of 2 s for all steps was reached"}
    assert "agree-tiny_mlp           not run: the limit" in said and "2 of 4 steps" in said
    first.calls()
    (first.folder / "mended").touch()
    first(*only)
    assert [call.split("/")[-3] for call in first.calls()] == ["tiny_encoder", "tiny_mlp"]
    assert all(result["rc"] == 0 for result in first.results().values())


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_call_that_is_killed_costs_one_step(first, number):
    pid = first.folder / "pid"
    first.does({"agree*tiny_encoder*": f"[ -e {pid} ] || {{ echo $$ >{pid}; exec sleep 60; }}"})
    only = ("smoke", "--only", "facts", "--only", "agree-tiny*")
    process = first.start(*only)
    wait_for(lambda: pid.exists())
    assert is_alive(pid)
    process.send_signal(number)
    process.communicate(timeout=20)
    assert process.returncode == (-number if number == signal.SIGKILL else 128 + number)
    wait_for(lambda: not is_alive(pid))
    assert list(first.results()) == ["facts", "agree-tiny_cnn"]
    first.calls()
    shutil.rmtree(first.out)  # as on a machine whose folder of results is emptied
    first(*only)
    assert [call.split("/")[-3] for call in first.calls()] == ["tiny_encoder", "tiny_mlp"]
    assert list(first.results()) == ["facts", "agree-tiny_cnn", "agree-tiny_encoder", "agree-tiny_mlp"]


def test_two_calls_do_not_share_a_work_folder(first):
    pid = first.folder / "pid"
    first.does({"facts*": f"echo $$ >{pid}; exec sleep 60"})
    process = first.start("smoke")
    assert is_alive(pid)
    assert "another gpu-first runs in" in first("smoke", status=1)
    process.terminate()
    process.communicate(timeout=20)


@pytest.mark.parametrize("prints, result", [
    ("echo text", "text"), ("true", ""), ("echo '{\"a\": 1}'; echo after", {"a": 1}), ("echo '{\"a\": 1'", '{"a": 1'),
    ("echo '{\"a\": 1}'; echo '[1/2] made'; echo '{\"a\": 2}'", [{"a": 1}, {"a": 2}]), ("echo '{}'; echo '{'", {}),
])
def test_results_are_json_or_the_end_of_the_text(first, prints, result):
    first.does({"facts*": prints})
    first("smoke", "--only", "facts")
    assert first.results()["facts"]["result"] == result


def test_what_is_kept_is_bounded(first):
    much = "head -c 3000000 /dev/zero | tr '\\0' x"
    first.does({"facts*": f"{much}; echo END; {much} >&2; {much} >>$CUDA_LOG_FILE; echo END >>$CUDA_LOG_FILE; exit 1"})
    first("smoke", status=3)
    result = first.results()["facts"]
    assert result["result"].endswith("xEND") and result["driver_log"].endswith("xEND") and result["error"].endswith("x")
    assert all(len(result[key]) == 4000 for key in ("result", "error")) and len(result["driver_log"]) == 3999
    # A hundred steps' results and logs stay below 16 MiB.
    assert (first.out / "cuda.log").stat().st_size < 160_000 and (first.out / "steps.jsonl").stat().st_size < 160_000


def test_results_of_other_programs_are_forgotten(first):
    only = ("smoke", "--only", "facts")
    first(*only)
    first.calls()
    first.does({"facts*": "echo '{\"new\": 1}'"})
    assert "results of other programs or options are forgotten" in first(*only)
    assert first.results()["facts"]["result"] == {"new": 1}
    first.calls()
    first(*only, "--runs", "7")
    assert len(first.calls()) == 1


@pytest.fixture
def checkout(first):
    """A copy of the script in a checkout of its own, whose makers of models are a few lines of Python."""
    root = first.folder / "checkout"
    for file in ("gpu-first", "gpu_peers.py"):
        (root / "tools").mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "tools" / file, root / "tools" / file)
    maker = root / "python/carillon_samples/__main__.py"
    maker.parent.mkdir(parents=True)
    (maker.parent / "__init__.py").touch()
    maker.write_text("""
import pathlib, sys, time
out, name = sys.argv[2], sys.argv[4]
if name == "resnet50": sys.exit("out of weights")
if name == "distilbert": time.sleep(60)
(pathlib.Path(out) / name / "1").mkdir(parents=True)
(pathlib.Path(out) / name / "1/model.onnx").touch()
print("made", name)
""")
    (root / "build").mkdir()
    first.script = root / "tools/gpu-first"
    first.options = first.options[:-4]  # programs and models are found and made
    return root


def pack(first, cases):
    write_programs(first.folder / "packed/gpu-bundle/bin", first.folder / "calls", cases)
    (first.folder / "packed/gpu-bundle/contents").write_text("v7\n")
    maker = first.folder / "packed/gpu-bundle/python/carillon_samples"
    shutil.copytree(first.folder / "checkout/python/carillon_samples", maker, dirs_exist_ok=True)
    with tarfile.open(first.folder / "checkout/build/gpu-bundle.tar.xz", "w:xz") as archive:
        archive.add(first.folder / "packed/gpu-bundle", "gpu-bundle")


def test_a_bundle_beside_the_checkout_is_unpacked(first, checkout):
    only = ("smoke", "--only", "facts")
    assert "there are no programs" in first(*only, status=1)
    pack(first, {})
    first(*only)
    unpacked = first.folder / "work/gpu-bundle"
    assert (first.out / "machine.txt").read_text().startswith(f"{unpacked}/bin\nv7\n")
    node = unpacked.stat().st_ino
    first(*only)
    assert unpacked.stat().st_ino == node and len(first.calls()) == 1
    pack(first, {"facts*": "echo '{\"new\": 1}'"})
    assert "are forgotten" in first(*only)
    assert first.results()["facts"]["result"] == {"new": 1}
    # A built checkout is nearer than a bundle.
    write_programs(checkout / "build/cuda", first.folder / "calls", {"facts*": "echo '{\"built\": 1}'"})
    first(*only)
    assert first.results()["facts"]["result"] == {"built": 1}


def test_models_are_made_and_those_that_are_not_cost_their_steps(first, checkout):
    pack(first, {})
    said = first("smoke", "--only", "facts", "--only", "agree-*", "--step-limit", "3", status=1)
    results = first.results()
    assert results["agree-resnet50"]["error"] == results["agree-resnet50-f32"]["error"]
    assert results["agree-resnet50"]["error"] == "not run: the maker of model resnet50 failed: out of weights"
    assert results["agree-distilbert"]["error"] == "not run: the maker of model distilbert was cut off: "
    assert results["agree-densenet121"]["rc"] == 0 and "7 of 11 steps" in said
    assert "made densenet121" in (first.out / "make.log").read_text()
    # They were not run, so the next call tries them, and makes no model that there is.
    maker = first.folder / "work/gpu-bundle/python/carillon_samples/__main__.py"
    maker.write_text(maker.read_text().replace("resnet50", "x").replace("distilbert", "x"))
    first("smoke", "--only", "facts", "--only", "agree-*")
    assert (first.folder / "work/models/resnet50/1/model.onnx").exists()


@pytest.mark.parametrize("arguments, says", [
    ([], "say what: smoke, rest or overload"), (["everything"], "invalid choice: 'everything'"),
    (["smoke", "--limit", "0"], "--limit, --step-limit and --seconds are above 0"), (["smoke", "--runs", "1"], "--runs is at least 2"),
])
def test_bad_options(first, arguments, says):
    assert says in first(*arguments, status=2)


def test_the_step_overload_says_why_there_is_no_server(first):
    first.does({"serve*": "echo 'no device'; exit 4"})
    first("rest", "--only", "overload", status=1)
    assert first.results()["overload"]["error"].startswith("the server ended with 4: no device")


# ------------------------------------------------------------------------------------------------------ on the stand-ins

@pytest.fixture
def rehearsal(program, standin, tiny_models, tmp_path):  # noqa: F811
    """The script with real programs; tiny models have the large ones' names."""
    first = First(tmp_path)
    for name in (*TINY, *LARGE):
        of = name if name in TINY else "tiny_encoder" if name == "distilbert" else "tiny_cnn"
        shutil.copytree(tiny_models / of, first.folder / "models" / name, dirs_exist_ok=True)
        config = first.folder / "models" / name / "config.pbtxt"
        config.write_text(config.read_text().replace(f'"{of}"', f'"{name}"'))
    first.options = ["--work", str(tmp_path / "work"), "--models", str(tmp_path / "models"), "--programs", str(program.parent),
                     "--cuda-libraries", str(standin), "--runs", "10", "--seconds", "0.2", "--deadline-ms", "500"]
    return first


def awake(script):
    """Processes that keep the driver awake for this script."""
    def is_one(process):
        try:
            arguments = (process / "cmdline").read_bytes()
            return b"cuDevicePrimaryCtxRetain" in arguments and f"\nPPid:\t{script.pid}\n" in (process / "status").read_text()
        except OSError:
            return False
    return [process for process in Path("/proc").glob("[0-9]*") if is_one(process)]


def test_all_steps_on_the_standins(program, standin, rehearsal, monkeypatch):  # noqa: F811
    monkeypatch.setenv("LD_LIBRARY_PATH", str(standin))
    process = rehearsal.start("smoke")
    wait_for(lambda: (rehearsal.out / "steps.jsonl").exists() and len(rehearsal.results()) > 5, seconds=60)
    keeper = awake(process)
    assert len(keeper) == 1
    process.kill()
    process.communicate(timeout=20)
    wait_for(lambda: not keeper[0].exists())
    before = list(rehearsal.results().values())
    for part in ("smoke", "rest"):
        wanted = [s for s in listed(rehearsal, part) if not s.startswith("differs") and s not in ("sanitizer", "peers")]
        patterns = [option for step in wanted for option in ("--only", step)]
        rehearsal(part, *patterns)
        results = rehearsal.results()
        assert rehearsal(part, *patterns).count("s, before)") == len(wanted)
        assert rehearsal.results() == results
    assert [results[result["step"]] for result in before] == before, "steps that had ended ran again"
    assert all(result["result"]["agrees"] for step, result in results.items() if step.startswith("agree"))
    assert results["preempt-flag"]["result"]["longer_us"]["count"] == 10
    assert results["facts"]["result"]["division"] == {"our kernels": "yes", "cuDNN": "yes"}
    replayed = results["replay"]["result"]
    assert replayed["agrees"] and replayed["calls"] > 500, replayed
    files = {file.name: file.stat().st_size for file in rehearsal.out.iterdir()}
    assert set(files) == {"steps.jsonl", "cuda.log", "machine.txt", "driver_calls.txt"} and max(files.values()) < 16 << 20
    assert results["overload"]["result"]["2x"]["sent"] > 1.5 * results["overload"]["result"]["1x"]["sent"] > 0
    assert [run["scheduler"] for run in results["disb-C"]["result"]["runs"]] == ["reef", "rt-only", "streams"]
    assert not list(rehearsal.folder.glob("work/tmp*"))
