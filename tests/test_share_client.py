"""The client of a shared device (python/carillon and the preloaded library) against a scripted broker.

A script must end with the weights, bit for bit, that it ends with alone: where it is recalled at every boundary, and
others leave what they like in the lane meanwhile.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from forked_scripts import RunServer, ScriptServer
from scripted_broker import BUSY, EPHEMERAL, ITERATIONS, RUN, ScriptedBroker

torch = pytest.importorskip("torch", reason="the client's tests run PyTorch scripts: tools/setup --with-training")

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "python"))
from carillon import _shim  # noqa: E402
from carillon.__main__ import main as carillon_main, size  # noqa: E402

SCRIPTS = ROOT / "tests" / "shared_scripts.py"
pytestmark = pytest.mark.skipif(_shim.library() is None, reason=f"{_shim.NAME} is not built (target carillon_shim)")

KINDS = ["plain", "amp", "accumulation", "gan", "lbfgs", "step_in_backward", "no_optimizer", "grad_only", "compiled",
         "forked_loaders", "evaluation", "resume", "lightning", "trainer", "by_hand", "forks"]


def environment(**more) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("CARILLON_", "LD_PRELOAD"))}
    return kept | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "python"),
                   "TOKENIZERS_PARALLELISM": "false"} | more


def python(*arguments, longest=300, **more) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, *map(str, arguments)], env=environment(**more), capture_output=True,
                          text=True, timeout=longest)


def shared_anew(socket, *arguments, **more) -> subprocess.CompletedProcess:
    """By the command, from the start of its Python on."""
    return python("-m", "carillon", "run", "--socket", socket, *arguments, **more)


@pytest.fixture(scope="session")
def forked():
    server = RunServer(environment())
    yield server
    server.close()


@pytest.fixture
def shared(forked):
    return forked.run_job


@pytest.fixture
def start(forked):
    """Starts a job, which ends with the test."""
    started = []

    def job(*arguments, **more):
        started.append(forked.start_job(*arguments, **more))
        return started[-1]

    yield job
    for each in started:
        each.kill()


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def same(a: Path, b: Path) -> bool:
    first, second = torch.load(a), torch.load(b)
    return len(first) == len(second) and all(torch.equal(x, y) for x, y in zip(first, second))


@pytest.fixture(scope="session")
def alone_scripts():
    """Runs scripts that share nothing."""
    server = ScriptServer(environment())
    yield server
    server.close()


@pytest.fixture(scope="session")
def alone(alone_scripts, tmp_path_factory):
    """The weights of a kind of script that shares nothing."""
    folder, done = tmp_path_factory.mktemp("alone"), {}

    def weights(kind: str) -> Path:
        if kind not in done:
            ended = alone_scripts.run(SCRIPTS, kind, folder / kind, environment=environment())
            assert ended.returncode == 0, ended.stderr[-3000:]
            done[kind] = folder / kind
        return done[kind]

    return weights


# A plain loop, for what looks at the client rather than at a kind of script.
COMPILED_LOOP = """
import os, sys, time, torch, torch.nn as nn, torch.nn.functional as F
torch.set_num_threads(1); torch.manual_seed(0)
m = nn.Sequential(nn.Linear(256, 320), nn.ReLU(), nn.Linear(320, 16)); o = torch.optim.Adam(m.parameters())
x, y = torch.randn(64, 256), torch.randint(0, 16, (64,))
def iteration():
    o.zero_grad(); F.cross_entropy(m(x), y).backward(); o.step()
"""
# Optimizers import torch's compiler, half of such a script's time, and ask nothing of it here.
LOOP = """
import sys, types, torch
compiler = sys.modules["torch._dynamo"] = torch._dynamo = types.ModuleType("torch._dynamo")
compiler.disable, compiler.graph_break = lambda f, *_, **__: f, lambda: None
""" + COMPILED_LOOP


@pytest.mark.parametrize("kind", KINDS)
def test_weights_are_those_of_the_script_alone(shared, kind, alone, tmp_path):
    if kind in ("lightning", "trainer"):
        pytest.importorskip({"lightning": "lightning", "trainer": "accelerate"}[kind],
                            reason="tools/setup --with-training")
    want = alone(kind)
    with ScriptedBroker(tmp_path / "s", new_lane_every=7) as broker:
        run = shared_anew if kind == "plain" else shared
        ended = run(tmp_path / "s", SCRIPTS, kind, tmp_path / "out", SHOW_COUNTERS="1")
        assert ended.returncode == 0, ended.stderr[-3000:]
        assert same(want, tmp_path / "out")
        counters = json.loads(ended.stdout.strip().splitlines()[-1])
        # Else nothing was tried.
        assert len(broker.jobs) == 1 and broker.grants >= 4
        assert counters["lane_blocks"] > 20, counters
        assert counters["iterations"] == counters["boundaries"]
        assert broker.jobs[0].said_bye


def test_a_wrong_boundary_without_rescue_is_found(alone, tmp_path):
    """The test above can fail."""
    with ScriptedBroker(tmp_path / "s"):
        ended = shared_anew(tmp_path / "s", SCRIPTS, "plain", tmp_path / "out", CARILLON_SHIM_PLANT="early")
        assert ended.returncode != 0 or not same(alone("plain"), tmp_path / "out")


def test_survivors_are_copied_at_first_and_known_then(shared, tmp_path):
    """What outlives its iteration is taken from private memory once it is known to."""
    script = write(tmp_path / "a.py", LOOP + """
import carillon
kept = []
for i in range(40):
    iteration(); kept = [torch.full((256, 256), float(i))] + kept[:3]
    assert all((k == i - n).all() for n, k in enumerate(kept)), i
    if i == 19: half = carillon.counters()
    if i == 39: print(half["rescued"], carillon.counters()["rescued"], carillon.counters()["holds"])
""")
    with ScriptedBroker(tmp_path / "s"):
        for _ in range(6):  # some runs on a busy machine copy nothing
            ended = shared(tmp_path / "s", script)
            assert ended.returncode == 0, ended.stderr
            half, all_of_it, holds = map(int, ended.stdout.split())
            assert half == all_of_it and holds > 10
            if half > 0:
                return
    pytest.fail("no survivor was copied in six runs")


WRITER = """
import carillon, sys, threading, torch
torch.set_num_threads(1)
told, counted, changed = [], [], threading.Condition()
def write():
    while True:
        with changed:
            changed.wait_for(lambda: told)
            tensor, enough = told.pop()
        if tensor is None: return
        n = 0
        while not enough.is_set():
            tensor.add_(1)  # without the interpreter's lock
            n += 1
        with changed:
            counted.append(n); changed.notify_all()
def tell(*what):
    with changed:
        told.append(what); changed.notify_all()
threading.Thread(target=write).start()
lost = 0
for i in range(20):
    tensor, enough = torch.zeros((1 << 20) + i * 4096), threading.Event()  # no size is known to outlive its iteration
    tell(tensor, enough)
    while tensor[-1] == 0: pass  # until it writes
    carillon.step()
    enough.set()
    with changed:
        changed.wait_for(lambda: counted)
        n = counted.pop()
    lost += not bool((tensor == n).all())
tell(None, None)
print(lost, carillon.counters()["rescued"])
"""


def test_what_another_thread_writes_as_its_job_leaves_the_lane_is_not_lost(shared, tmp_path):
    """Seen to fail, in two of three rescues, where what lives on is copied elsewhere and moved back."""
    with ScriptedBroker(tmp_path / "s", lane=64 << 20):
        ended = shared(tmp_path / "s", write(tmp_path / "a.py", WRITER))
        assert ended.returncode == 0, ended.stderr
        lost, rescued = map(int, ended.stdout.split())
        assert rescued >= 15 and lost == 0


def test_a_script_that_closes_all_descriptors_goes_on_alone(shared, tmp_path):
    """And none of its own files, which get the same numbers, is written to, mapped or closed."""
    script = write(tmp_path / "a.py", LOOP + """
for _ in range(8): iteration()
kept = torch.full((1 << 20,), 3.)
os.closerange(3, 4096)
mine = [open(sys.argv[1], "w+") for _ in range(40)]
for f in mine: f.write("mine"); f.flush()
for _ in range(8): iteration(); kept = kept + 1
assert (kept == 11).all() and all(os.fstat(f.fileno()).st_size == 4 for f in mine)
print("done")
""")
    with ScriptedBroker(tmp_path / "s") as broker:
        ended = shared(tmp_path / "s", script, tmp_path / "file")
        assert (ended.returncode, ended.stdout) == (0, "done\n"), ended.stderr
        assert "closed descriptors that are not its own" in ended.stderr
        broker.wait_for(lambda: broker.jobs[0].over.is_set())


def test_what_a_job_becomes_by_exec_is_a_job(shared, tmp_path):
    script = write(tmp_path / "a.py", LOOP + """
for _ in range(5): iteration()
o.zero_grad(); held = m[0](x)  # within an iteration
if len(sys.argv) == 1: os.execv(sys.executable, [sys.executable, sys.argv[0], "again"])
print("done")
""")
    with ScriptedBroker(tmp_path / "s") as broker:
        ended = shared(tmp_path / "s", script)
        assert (ended.returncode, ended.stdout) == (0, "done\n"), ended.stderr
        assert len(broker.jobs) == 2


def test_alone_a_boundary_makes_no_system_call(tmp_path):
    trace = tmp_path / "trace"
    try:
        subprocess.run(["strace", "-V"], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("there is no strace")
    script = write(tmp_path / "a.py", LOOP + """
import carillon
for _ in range(50): iteration()
os.getppid(); before = carillon.counters()["boundaries"]
for _ in range(200): iteration()
after = carillon.counters()["boundaries"]; os.getppid()
print(after - before)
""")
    with ScriptedBroker(tmp_path / "s", recall=False, garbage=False):
        command = ["strace", "-f", "-o", str(trace), sys.executable, "-m", "carillon", "run", "--socket",
                   str(tmp_path / "s"), str(script)]
        ended = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=300)
        if "PTRACE" in ended.stderr and ended.returncode:
            pytest.skip("strace may not trace here")
        assert ended.returncode == 0, ended.stderr
        assert int(ended.stdout) == 200
    lines = trace.read_text().splitlines()
    marks = [i for i, line in enumerate(lines) if "getppid()" in line]
    thread = lines[marks[-1]].split()[0]
    between = [line for line in lines[marks[-2] + 1:marks[-1]] if line.split()[0] == thread]
    # Memory that torch's small tensors take from malloc may still grow; nothing comes with each boundary.
    assert len(between) < 20, between[:40]


def test_what_the_broker_is_told(tmp_path):
    with ScriptedBroker(tmp_path / "s") as broker:
        script = write(tmp_path / "job.py", LOOP + "import carillon\ncarillon.remaining(7)\nfor _ in range(20): iteration()")
        ended = shared_anew(tmp_path / "s", "--name", "thé", "--weight", "2.5", "--persistent", "1M", "--remaining", "9",
                       script)
        assert ended.returncode == 0, ended.stderr
        (job,) = broker.jobs
        assert job.name == "thé"
        pid, threads, persistent, ephemeral, remaining, weight, again, *_ = job.hello
        assert pid > 0 and (threads, persistent, ephemeral, weight, again) == (1, 1 << 20, 0, 2.5, 0)
        assert remaining == 7 * 10**9  # the script knows better than whoever started it
        assert all(stop[4] == 7 * 10**9 - stop[1] for stop in job.stops)  # less what it has run
        iterations = [stop[0] for stop in job.stops]
        assert iterations[0] == 0 and iterations == sorted(iterations)  # at first it says that it is ready
        assert job.u64(ITERATIONS) == 20
        assert 0 < job.u64(BUSY) < 300 * 10**9
        assert job.stops[-1][2] >= 3 * 4 * (256 * 320)  # weights and Adam's two states, at least
        assert 64 * 320 * 4 <= job.u64(EPHEMERAL) < 1 << 24


def test_a_lane_that_is_too_small_is_asked_to_grow(shared, tmp_path):
    with ScriptedBroker(tmp_path / "s", lane=1 << 20) as broker:
        script = write(tmp_path / "a.py", LOOP + """
for i in range(20):
    iteration()
    a = [torch.full((1 << 20,), float(n)) for n in range(i)]
    assert all((t == n).all() for n, t in enumerate(a)); del a
""")
        ended = shared(tmp_path / "s", script)
        assert ended.returncode == 0, ended.stderr
        asked = [ask[1] for ask in broker.jobs[0].asks]
        assert asked and asked == sorted(asked) and 19 * (4 << 20) <= asked[-1] < 40 * (4 << 20)


def test_an_evicted_job_sees_no_memory_and_ends_with_the_reason(shared, tmp_path):
    with ScriptedBroker(tmp_path / "s", evict_ask="the device is full"):
        script = write(tmp_path / "a.py", LOOP + """
try:
    for i in range(20):
        if i > 10: a = torch.ones(8 << 20); del a
        iteration()
except RuntimeError as error:
    print("caught", type(error).__name__, "memory" in str(error))
    iteration()
print("never")
""")
        ended = shared(tmp_path / "s", script)
        assert ended.stdout.splitlines()[0] == "caught RuntimeError True", ended.stdout + ended.stderr
        assert "never" not in ended.stdout and ended.returncode == 1
        assert "evicted" in ended.stderr and "the device is full" in ended.stderr and "64.0 MiB" in ended.stderr


@pytest.mark.parametrize("options, wanted", [
    ({"refuse": "too large"}, ["refused", "too large", "64.0 MiB", "32.0 MiB"]),
    ({"version": 1}, ["version 1", "version 2"])])
def test_who_is_not_taken_is_told_why(shared, tmp_path, options, wanted):
    with ScriptedBroker(tmp_path / "s", **options):
        ended = shared(tmp_path / "s", write(tmp_path / "a.py", LOOP + "iteration(); print('never')"))
        assert ended.returncode == 1 and "never" not in ended.stdout
        for text in wanted:
            assert text in ended.stderr


def test_without_a_broker_it_says_what_to_do(tmp_path):
    script = write(tmp_path / "a.py", "print('ran')")
    ended = shared_anew(tmp_path / "s", script)
    assert ended.returncode == 1 and "carillon share" in ended.stderr and "--alone" in ended.stderr
    assert "ran" not in ended.stdout
    ended = shared_anew(tmp_path / "s", "--alone", script)
    assert (ended.returncode, ended.stdout) == (0, "ran\n")


LONG = LOOP + """
n = int(sys.argv[1])
import carillon
for i in range(n):
    iteration()
    print(i, flush=True)
torch.save([p.detach() for p in m.parameters()], sys.argv[2])
"""


def test_another_broker_takes_up_where_one_was_killed(start, alone_scripts, tmp_path):
    script = write(tmp_path / "a.py", LONG)
    want = alone_scripts.run(script, 300, tmp_path / "want", environment=environment())
    assert want.returncode == 0, want.stderr
    first = ScriptedBroker(tmp_path / "s", most_grants=10)
    job = start(tmp_path / "s", script, 300, tmp_path / "out")
    first.wait_for(lambda: first.jobs and len(first.jobs[0].stops) == 11)  # held
    iterations = first.jobs[0].stops[-1][0]
    first.close()
    with ScriptedBroker(tmp_path / "s") as second:
        second.wait_for(lambda: second.jobs and second.jobs[0].stops)
        out, err = job.communicate(timeout=300)
        assert job.returncode == 0, err
        again, _, told, busy = second.jobs[0].hello[6:10]
        assert (again, told) == (1, iterations) and busy > 0
        assert out.split() == [str(i) for i in range(300)]
        assert same(tmp_path / "want", tmp_path / "out")


def test_a_running_job_goes_on_without_its_broker(start, tmp_path):
    script = write(tmp_path / "a.py", LONG)
    broker = ScriptedBroker(tmp_path / "s", recall=False)
    job = start(tmp_path / "s", "--reattach", "0", script, 400, tmp_path / "out")
    for line in job.stdout:
        if int(line) == 30:
            break
    broker.close()
    out, err = job.communicate(timeout=300)
    assert job.returncode == 0, err
    assert out.split() == [str(i) for i in range(31, 400)]
    assert "goes on without sharing" in err


def children(pid: int) -> list[int]:
    found = []
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # a thread that has just ended
            found += [int(p) for p in (thread / "children").read_text().split()]
    return found


def state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:  # it has ended
        return "X"


LOADERS = """
import signal
heard = []
signal.signal(signal.SIGCHLD, lambda *_: heard.append(1))
from torch.utils.data import DataLoader, Dataset
class Rows(Dataset):
    def __len__(self): return 64 * 200
    def __getitem__(self, i): return torch.full((256,), float(i % 7)), i % 16
for x, y in DataLoader(Rows(), 64, num_workers=2):
    o.zero_grad(); F.cross_entropy(m(x), y).backward(); o.step()
print("done")
"""


def test_the_loaders_of_a_held_job_stand_still(start, tmp_path):
    with ScriptedBroker(tmp_path / "s", most_grants=12) as broker:
        job = start(tmp_path / "s", write(tmp_path / "a.py", LOOP + LOADERS))
        broker.wait_for(lambda: broker.jobs and len(broker.jobs[0].stops) == 13)
        stopped = lambda: len(children(job.pid)) == 2 and all(state(pid) == "T" for pid in children(job.pid))
        broker.wait_for(stopped)
        held = broker.jobs[0]
        broker.recall = False
        held.lease(RUN)
        out, err = job.communicate(timeout=300)
        assert job.returncode == 0 and out == "done\n", err


def test_loaders_end_with_a_held_job_that_is_killed(start, tmp_path):
    with ScriptedBroker(tmp_path / "s", most_grants=12) as broker:
        job = start(tmp_path / "s", write(tmp_path / "a.py", LOOP + LOADERS))
        broker.wait_for(lambda: broker.jobs and len(broker.jobs[0].stops) == 13)
        workers = children(job.pid)
        broker.wait_for(lambda: all(state(w) == "T" for w in workers))
        job.kill()
        job.communicate()
        gone = lambda: all(state(w) in "XZ" for w in workers)
        broker.wait_for(gone)


def test_a_job_that_is_killed_in_an_iteration_leaves_others_alone(shared, start, tmp_path):
    with ScriptedBroker(tmp_path / "s", recall=False) as broker:
        job = start(tmp_path / "s", write(tmp_path / "a.py", LONG), 100000, tmp_path / "out")
        for line in job.stdout:
            if int(line) == 20:
                break
        job.kill()
        job.communicate()
        broker.wait_for(lambda: broker.jobs[0].over.is_set())
        assert not broker.jobs[0].said_bye
        ended = shared(tmp_path / "s", SCRIPTS, "plain", tmp_path / "after")
        assert ended.returncode == 0, ended.stderr


def test_a_held_job_can_be_interrupted(start, tmp_path):
    with ScriptedBroker(tmp_path / "s", most_grants=0) as broker:
        job = start(tmp_path / "s", write(tmp_path / "a.py", LOOP + """
try: iteration()
except KeyboardInterrupt: print("interrupted")
"""))
        broker.wait_for(lambda: broker.jobs and broker.jobs[0].stops)
        job.send_signal(signal.SIGINT)
        out, err = job.communicate(timeout=120)
        assert (job.returncode, out) == (0, "interrupted\n"), err


CHILD = LOOP + "for _ in range(10): iteration()\nprint('child', flush=True)"


@pytest.mark.parametrize("what, jobs", [
    # Nothing trains but what it starts: each run within is a job of its own.
    ("subprocess.run([sys.executable, '-m', 'carillon', 'run', sys.argv[1]], check=True)\n" * 2, 2),
    # What a job starts is part of it, also where it is a run: it has the job's turn.
    ("for _ in range(5): iteration()\nsubprocess.run([sys.executable, '-m', 'carillon', 'run', sys.argv[1]], check=True)\n"
     "iteration()", 1),
    # One run is one job: the first of its processes that trains.
    ("two = [subprocess.Popen([sys.executable, sys.argv[1]]) for _ in range(2)]\n"
     "assert [t.wait() for t in two] == [0, 0]", 1)])
def test_runs_within_runs(shared, tmp_path, what, jobs):
    child = write(tmp_path / "child.py", CHILD)
    script = write(tmp_path / "a.py", LOOP + "import subprocess\n" + what)
    with ScriptedBroker(tmp_path / "s", recall=False) as broker:
        ended = shared(tmp_path / "s", script, child)
        assert ended.returncode == 0, ended.stderr
        if "two =" in what:  # the second may have come after the first had gone
            assert 1 <= len(broker.jobs) <= 2
        else:
            assert len(broker.jobs) == jobs


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_processes_of_multiprocessing_work(shared, tmp_path, method):
    script = write(tmp_path / "a.py", f"""
import torch, multiprocessing
def work(i): return float(torch.ones(64, 1024).mul(i).sum())
if __name__ == "__main__":
    {LOOP.strip().replace(chr(10), chr(10) + "    ")}
    with multiprocessing.get_context("{method}").Pool(2) as pool:
        for i in range(12):
            iteration()
            if i % 4 == 3: assert pool.map(work, [1, 2]) == [65536.0, 131072.0]
    import atexit
    atexit.register(print, "done")
""")
    with ScriptedBroker(tmp_path / "s") as broker:
        ended = shared(tmp_path / "s", script)
        assert (ended.returncode, ended.stdout) == (0, "done\n"), ended.stderr
        assert len(broker.jobs) == 1


def test_no_memory_of_a_forked_child_lies_in_the_lane_it_left(shared, tmp_path):
    """libc maps an arena for a new thread wherever the child's addresses have room."""
    script = write(tmp_path / "a.py", LOOP + """
import threading, carillon
for _ in range(12): iteration()
assert carillon.counters()["lane_bytes"] > 0
child = os.fork()
if child == 0:
    meet = threading.Barrier(8)  # so that none takes over another's arena
    def work():
        meet.wait()
        for size in (100, 10_000, 50_000): [bytearray(size) for _ in range(100)]
        meet.wait()
    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    os._exit(7)
assert os.waitpid(child, 0)[1] == 7 << 8
for _ in range(3): iteration()
""")
    with ScriptedBroker(tmp_path / "s", lane=256 << 20, garbage=False) as broker:
        ended = shared(tmp_path / "s", script)
        assert ended.returncode == 0, ended.stderr
        assert len(broker.jobs) == 1


def test_workers_of_torchrun_are_one_job(tmp_path):
    script = write(tmp_path / "a.py", COMPILED_LOOP + """
import torch.distributed as dist
dist.init_process_group("gloo")
m = nn.parallel.DistributedDataParallel(m)
for _ in range(12): iteration()
os.write(1, f"rank {dist.get_rank()}{os.linesep}".encode())  # at once: two processes share the pipe
# The model keeps the group and its threads, and torch aborts where one of them still works as Python ends.
import gc
del m; gc.collect()
dist.destroy_process_group()
tasks = os.listdir("/proc/self/task")
assert not any("gloo" in open(f"/proc/self/task/{task}/comm").read() for task in tasks)
""")
    with ScriptedBroker(tmp_path / "s") as broker:
        ended = shared_anew(tmp_path / "s", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", script)
        assert ended.returncode == 0, ended.stderr[-3000:]
        assert sorted(ended.stdout.splitlines()) == ["rank 0", "rank 1"]
        assert len(broker.jobs) == 1 and broker.grants > 3


def test_without_torch_the_script_runs(tmp_path):
    """As with a Python that has no torch: nothing is there to hook, and it says so."""
    script = write(tmp_path / "a.py", "import sys; print('torch' in sys.modules, sys.argv[1:])")
    with ScriptedBroker(tmp_path / "s") as broker:
        code = ("import importlib.util as u, sys; real = u.find_spec; "
                "u.find_spec = lambda n, *a: None if n == 'torch' else real(n, *a); "
                "from carillon.__main__ import main; main()")
        ended = python("-c", code, "run", "--socket", tmp_path / "s", script, "--x", "1")
        assert (ended.returncode, ended.stdout) == (0, "False ['--x', '1']\n"), ended.stderr
        assert "has no torch" in ended.stderr and broker.jobs == []


@pytest.mark.parametrize("text, want", [("0", 0), ("512", 512), ("2k", 2048), ("1.5G", 3 << 29), ("3 MiB", 3 << 20)])
def test_sizes(text, want):
    assert size(text) == want


@pytest.mark.parametrize("arguments, text", [
    (["run"], "what is to be run"), (["run", "nothere.py"], "no script nothere.py"),
    (["run", "no-such-command"], "no script (*.py) and no command")])
def test_bad_commands(arguments, text):
    with pytest.raises(SystemExit) as stopped:
        carillon_main(arguments)
    assert text in str(stopped.value)
