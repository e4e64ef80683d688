"""Lanes on a CUDA device, end to end but for the device: broker, preloaded library, allocator and hooks over a stand-in
for the driver (build/*/fake_cuda/libcuda.so.1) and one for torch.cuda (standin_cuda.py).

A script must end with the weights, bit for bit, that it ends with alone.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from forked_scripts import RunServer, Script

torch = pytest.importorskip("torch", reason="the client's tests run PyTorch scripts: tools/setup --with-training")

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "python"))
from carillon import _cuda, _shim  # noqa: E402

SCRIPT = ROOT / "tests" / "shared_cuda_script.py"


def built(name: str) -> Path | None:
    found = sorted(ROOT.glob(f"build/*/{name}"), key=lambda p: p.stat().st_mtime, reverse=True)
    return found[0] if found else None


FAKE, PROGRAM = built("fake_cuda/libcuda.so.1"), built("carillon")
pytestmark = pytest.mark.skipif(
    None in (FAKE, PROGRAM, _shim.library(), _shim.library(_cuda.NAME)),
    reason="not built: targets carillon, carillon_shim, carillon_cuda, carillon_fake_cuda")


def environment(**more) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("CARILLON_", "LD_"))}
    return kept | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "python"),
                   "LD_LIBRARY_PATH": str(FAKE.parent)} | more


@pytest.fixture(scope="module")
def scripts():
    server = RunServer(environment(), modules=("torch",))
    yield server
    server.close()


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """What a script that shares nothing learns."""
    server, known = RunServer(environment(), "--alone", modules=("torch",)), {}

    def learns(*arguments) -> list:
        if arguments not in known:
            out = tmp_path_factory.mktemp("alone") / "out"
            done = server.run_job("none", "--alone", SCRIPT, out, *arguments)
            assert done.returncode == 0, done.stderr[-3000:]
            known[arguments] = torch.load(out)
        return known[arguments]

    yield learns
    server.close()


@pytest.fixture
def share(scripts, tmp_path):
    """A broker for jobs that are forked from one Python."""
    return lambda *options, **more: Broker(tmp_path, *options, scripts=scripts, **more)


class Broker:
    def __init__(self, folder: Path, *options: str, device: str = "cuda", scripts: RunServer | None = None):
        self.scripts, self.socket = scripts, folder / "s"
        self.process = subprocess.Popen(
            [PROGRAM, "share", "--memory", "1GiB", "--device", device, "--socket", self.socket, "--quantum", "1",
             *options], env=environment(), stderr=subprocess.PIPE, text=True)
        self.log = ""
        self.read_until("ready:")

    def read_until(self, text: str) -> None:
        while text not in self.log:
            line = self.process.stderr.readline()
            assert line, self.log
            self.log += line

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        self.log += self.process.communicate(timeout=60)[1]
        assert self.process.returncode == 0, self.log

    def start(self, *arguments, **more) -> subprocess.Popen | Script:
        if self.scripts:
            return self.scripts.start_job(self.socket, *arguments, **more)
        return subprocess.Popen(
            [sys.executable, "-m", "carillon", "run", "--socket", str(self.socket), *map(str, arguments)],
            env=environment(**more), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(job: subprocess.Popen | Script) -> dict:
    out, err = job.communicate(timeout=300)
    assert job.returncode == 0, err[-3000:]
    return json.loads(out.splitlines()[-1])


def beside_each_other(broker: Broker, folder: Path, jobs: list, *options: str, holds: int) -> list[dict]:
    """What the jobs counted, each a (seed, iterations) that starts when the others do. They start anew where one of them
    was held fewer times than `holds` says: on a busy machine a job can be over before another gets a processor."""
    for attempt in range(5):
        meet = folder / f"meet{attempt}"
        running = [broker.start(SCRIPT, folder / f"out{seed}", seed, n, *options, MEET=str(meet)) for seed, n in jobs]
        counts = [ended(job) for job in running]
        if all(counted["holds"] >= holds for counted in counts):
            return counts
    raise AssertionError(f"no {holds} holds each in five attempts: {counts}")


def same(a: list, b: list) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("policy", ["fair", "best"])
def test_two_jobs_share_a_device_and_learn_what_they_learn_alone(share, alone, tmp_path, policy):
    jobs = [(7, 60), (8, 60)]
    with share("--policy", policy) as broker:  # by fair there is one lane for both
        counts = beside_each_other(broker, tmp_path, jobs, holds=6 if policy == "fair" else 0)
    assert f"of cuda by {policy}" in broker.log
    for (seed, n), counted in zip(jobs, counts):
        assert counted["violations"] == "", counted
        assert counted["cuda_lane_segments"] > 0 and counted["cuda_lane_bytes"] > 0, counted
        assert counted["lane_blocks"] == 0, counted  # the host's memory is in no lane
        assert counted["switched"] == [False], counted
        assert same(torch.load(tmp_path / f"out{seed}"), alone(seed, n)), seed
    if policy == "fair":
        assert any(counted["cuda_replaced"] > 0 for counted in counts), counts


def test_what_lives_on_and_is_not_kept_is_found(share, alone, tmp_path):
    """The test above can fail."""
    with share() as broker:
        beside_each_other(broker, tmp_path, [(7, 60), (8, 60)], "forgets", holds=6)
    assert not all(same(torch.load(tmp_path / f"out{seed}"), alone(seed, 60)) for seed in (7, 8))


def test_a_job_that_cannot_keep_what_lives_on_ends_and_others_go_on(share, alone, tmp_path):
    with share() as broker:
        meet = {"MEET": str(tmp_path / "meet")}
        poor = broker.start(SCRIPT, tmp_path / "out7", 7, 60, "hoards", CARILLON_FAKE_CUDA_MEMORY=str(63 << 20), **meet)
        other = broker.start(SCRIPT, tmp_path / "out8", 8, 60, **meet)
        _, err = poor.communicate(timeout=300)
        counted = ended(other)
    assert poor.returncode == 1 and "cannot be kept: no memory: CUDA_ERROR_OUT_OF_MEMORY" in err, err[-2000:]
    assert counted["violations"] == "" and counted["iterations"] == 60, counted
    assert same(torch.load(tmp_path / "out8"), alone(8, 60))


def test_what_an_iteration_needs_beyond_its_lane_it_asks_for(share, alone, tmp_path):
    with share("--assumed-ephemeral", "1MiB") as broker:
        counted = ended(broker.start(SCRIPT, tmp_path / "out", 3, 40, "evaluates", "modules", "captures"))
    assert counted["violations"] == ""
    assert counted["cuda_asks"] > 0 and counted["cuda_lane_bytes"] >= 3 * (24 << 20), counted
    assert counted["cuda_gates"] > 100, counted  # before modules, too
    assert counted["cuda_held_back"] > 0, counted  # freed while a graph was captured
    assert same(torch.load(tmp_path / "out"), alone(3, 40, "evaluates", "modules", "captures"))


def test_graphs_that_another_thread_captures_are_left_alone(share, alone, tmp_path):
    jobs = [(7, 60), (8, 60)]
    with share() as broker:
        counts = beside_each_other(broker, tmp_path, jobs, "beside", holds=3)
    for (seed, n), counted in zip(jobs, counts):
        assert counted["violations"] == "" and counted["captured"] > 5, counted
        assert same(torch.load(tmp_path / f"out{seed}"), alone(seed, n)), seed


def test_a_job_whose_broker_goes_keeps_what_it_has(share, alone, tmp_path):
    with share("--release") as broker:
        job = broker.start("--reattach", "0", SCRIPT, tmp_path / "out", 5, 400)
        broker.read_until("has lane")
    counted = ended(job)
    assert counted["violations"] == "" and counted["cuda_lane_bytes"] == 0, counted
    assert same(torch.load(tmp_path / "out"), alone(5, 400))


def test_who_has_no_device_is_turned_away(share, tmp_path):
    script = tmp_path / "a.py"
    script.write_text("import torch, carillon\ncarillon.step()\n")
    with share() as broker:
        out, err = broker.start(script).communicate(timeout=120)
    assert "lanes are memory of cuda:0" in err, err


def test_a_broker_of_the_hosts_memory_takes_jobs_on_a_device_too(alone, tmp_path):
    with Broker(tmp_path, device="cpu") as broker:
        counted = ended(broker.start(SCRIPT, tmp_path / "out", 5, 10))
    assert counted["cuda_lane_segments"] == 0 and counted["iterations"] == 10, counted
    assert same(torch.load(tmp_path / "out"), alone(5, 10))


def test_without_a_driver_the_broker_says_so(tmp_path):
    done = subprocess.run([PROGRAM, "share", "--memory", "1GiB", "--device", "cuda:0", "--socket", tmp_path / "s"],
                          env=environment(LD_LIBRARY_PATH=""), capture_output=True, text=True, timeout=60)
    if done.returncode == 0 or "no CUDA driver" not in done.stderr:
        pytest.skip("this machine has a CUDA driver")
    assert done.stderr.startswith("carillon share: --device cuda:0"), done.stderr


@pytest.mark.parametrize("variables, says", [
    ({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, "lanes on CUDA are off: expandable_segments"),
    ({"CARILLON_CUDA_GATES": "0"}, "CARILLON_CUDA_GATES is from 1 to 4096, not '0'"),
])
def test_settings_that_do_not_go_together_with_lanes(tmp_path, variables, says):
    with Broker(tmp_path) as broker:
        job = broker.start(SCRIPT, tmp_path / "out", 5, 10, **variables)
        _, err = job.communicate(timeout=120)
    assert job.returncode == 1 and says in err, err[-2000:]


@pytest.mark.parametrize("ordinal, says", [("cuda:1", "sees 1 device"), ("cuda:x", "should be cpu, cuda or cuda:N")])
def test_devices_that_there_are_not(tmp_path, ordinal, says):
    done = subprocess.run([PROGRAM, "share", "--memory", "1GiB", "--device", ordinal, "--socket", tmp_path / "s"],
                          env=environment(), capture_output=True, text=True, timeout=60)
    assert done.returncode != 0 and says in done.stderr, done.stderr


def test_ranges_of_a_snapshot():
    block = lambda size, state: {"size": size, "state": state}
    segments = [{"address": 1000, "blocks": [block(10, "inactive"), block(20, "active_allocated"),
                                             block(5, "active_pending_free"), block(7, "inactive"),
                                             block(1, "active_allocated")]},
                {"address": 1043, "blocks": [block(2, "active_allocated")]},
                {"address": 5000, "blocks": [block(9, "inactive")]}]
    assert _cuda.live_ranges(segments) == [(1010, 25), (1042, 3)]
    assert _cuda.live_ranges([]) == []
