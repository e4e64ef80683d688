"""`carillon share`, `run` and `jobs` as a user runs them, with jobs that speak the protocol by struct: no torch."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import urllib.request
from pathlib import Path

import pytest

from carillon import _shim


# A job of as many iterations as it is told; prints what it ran. `STUCK` waits in the middle of its second.
# Numbers of the page are read and written whole, through views: struct.pack_into() fills its place with zeros first,
# and a broker that looks just then sees counters that went back.
JOB = textwrap.dedent("""
    import mmap, os, select, socket, struct, sys, time
    MAGIC, HOLD, RUN, LOOK = 0x6C6C7263, 0, 1, 2
    wanted, memory = int(sys.argv[1]), int(sys.argv[2]) << 20
    broker = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    broker.connect(os.environ["CARILLON_SOCKET"])
    def packet(kind, body=b""):
        return struct.pack("<4I", MAGIC, 2, kind, 16 + len(body)) + body
    name = os.environ.get("CARILLON_JOB_NAME", "job").encode()
    weight = float(os.environ.get("CARILLON_JOB_WEIGHT", "1"))
    broker.send(packet(1, struct.pack("<IIQQQdIIQQ64s", os.getpid(), 1, 1 << 20, memory, 0, weight, 0, 0, 0, 0, name)))
    data, fds, _, _ = socket.recv_fds(broker, 65536, 4)
    assert struct.unpack_from("<4I", data)[2] == 2, data
    page = mmap.mmap(fds[0], 4096)
    words, counters = memoryview(page).cast("I"), memoryview(page)[136:168].cast("Q")
    lease = lambda: words[64 // 4]
    done = busy = 0
    def stop():
        words[128 // 4] = 0
        try: broker.send(packet(5, struct.pack("<6Q", done, busy, 1 << 20, memory, 0, 0)))
        except BrokenPipeError: pass  # it said why
    def last_packet():
        while True:
            try: data, fds, _, _ = socket.recv_fds(broker, 65536, 4)
            except ConnectionResetError: continue  # it did not read all; what it said comes yet
            if not data: return "the broker hung up"
            kind = struct.unpack_from("<4I", data)[2]
            if kind in (3, 7, 11): return {3: "refused", 7: "evicted", 11: "ending"}[kind]
    def wait():
        while lease() != RUN:
            if lease() == LOOK or select.select([broker], [], [], 0)[0] and not broker.recv(65536, socket.MSG_PEEK):
                print(last_packet(), flush=True)
                sys.exit(9)
            time.sleep(0.0005)
        words[128 // 4] = 1
    stop()
    wait()
    while done < wanted:
        started = time.monotonic_ns()
        while time.monotonic_ns() - started < 2_000_000: pass
        done += 1
        busy += time.monotonic_ns() - started
        if done == 2: print("inside", flush=True)
        for i, value in enumerate((done, busy, 1 << 20, memory)): counters[i] = value
        if lease() != RUN:
            stop()
            wait()
    broker.send(packet(8))
    print(f"done {done}", flush=True)
""")


class Broker:
    def __init__(self, program, folder, *options):
        self.program, self.socket = program, str(folder / "share.sock")
        self.process = subprocess.Popen([program, "share", "--memory", "64MiB", "--socket", self.socket, *options],
                                        stderr=subprocess.PIPE, text=True)
        self.first = self.line()
        assert "ready" in self.first, self.first

    def line(self) -> str:
        return self.process.stderr.readline()

    def line_with(self, words: str) -> str:
        while line := self.line():
            if words in line:
                return line
        raise AssertionError(f"the log ended without {words!r}")

    def run(self, *words, options=(), **more) -> subprocess.Popen:
        # Without the library, which a Python that speaks by itself does not need.
        return subprocess.Popen([self.program, "run", "--socket", self.socket, "--shim", "/dev/null", *options, "--",
                                 *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more)

    def job(self, iterations=1_000_000, memory_mib=40, options=()) -> subprocess.Popen:
        return self.run(sys.executable, "-c", JOB, iterations, memory_mib, options=options)

    def jobs(self) -> dict:
        said = subprocess.run([self.program, "jobs", "--json", "--socket", self.socket], capture_output=True, text=True,
                              timeout=60)
        assert said.returncode == 0, said.stderr
        return json.loads(said.stdout)

    def end(self, how=signal.SIGTERM) -> int:
        self.process.send_signal(how)
        self.process.communicate(timeout=60)
        return self.process.returncode


@pytest.fixture
def start(program, tmp_path):
    started = []

    def make(*options) -> Broker:
        started.append(Broker(program, tmp_path, *options))
        return started[-1]

    yield make
    for broker in started:
        if broker.process.poll() is None:
            broker.end(signal.SIGKILL)


def run(program, *words) -> subprocess.CompletedProcess:
    return subprocess.run([program, *map(str, words)], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("options, words", [
    (["--memory", "0"], "--memory is 0"),
    (["--memory", "much"], "--memory"),
    (["--memory", "1GiB", "--device", "cuda:one"], "should be cpu, cuda or cuda:N"),
    (["--memory", "1GiB", "--device", "cuda:99"], "cuda:99"),  # no driver, or not so many
    (["--memory", "1GiB", "--device", "tpu"], "should be cpu"),
    (["--memory", "1GiB", "--policy", "lottery"], "lottery"),
    (["--memory", "1GiB", "--socket", "/tmp/" + "x" * 120], "107"),
    (["--memory", "1GiB", "--metrics", "nowhere"], "--metrics"),
    (["--memory", "1GiB", "--quantum", "0.1"], "--quantum"),
])
def test_what_cannot_be_is_refused_with_words(program, tmp_path, options, words):
    if "--socket" not in options:
        options = [*options, "--socket", tmp_path / "s"]
    said = run(program, "share", *options)
    assert said.returncode == 2 and words in said.stderr, said.stderr


def test_jobs_take_turns_and_are_listed(start):
    broker = start("--metrics", "127.0.0.1:0", "--quantum", "5")
    first, second = broker.job(200, options=("--name", "first")), broker.job(200, options=("--name", "second"))
    assert first.stdout.readline() == "inside\n" and second.stdout.readline() == "inside\n"
    listed = {job["name"]: job for job in broker.jobs()["jobs"]}
    assert set(listed) <= {"first", "second"}
    port = re.search(r"metrics port (\d+)", broker.first).group(1)
    metrics = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30).read().decode()
    assert 'carillon_share_jobs_total{again="0"} 2' in metrics
    for job in (first, second):
        out, _ = job.communicate(timeout=120)
        assert out == "done 200\n" and job.returncode == 0
    metrics = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30).read().decode()
    assert int(re.search(r"carillon_share_hand_over_seconds_count (\d+)", metrics).group(1)) > 10
    shown = run(broker.program, "jobs", "--socket", broker.socket)
    assert shown.returncode == 0 and shown.stdout.startswith("0 jobs")
    assert broker.end() == 0


def test_exit_statuses_and_signals_pass_through(start):
    broker = start()
    ended = broker.run("sh", "-c", "exit 7")
    ended.communicate(timeout=60)
    assert ended.returncode == 7
    killed = broker.run("sh", "-c", "kill -SEGV $$")
    killed.communicate(timeout=60)
    assert killed.returncode == -signal.SIGSEGV
    told = broker.run("sh", "-c", "trap 'exit 5' TERM; echo here; while :; do sleep 0.01; done")
    assert told.stdout.readline() == "here\n"
    told.send_signal(signal.SIGTERM)
    told.communicate(timeout=60)
    assert told.returncode == 5
    nothing = broker.run("no-such-program")
    assert nothing.wait(timeout=60) == 127


def test_a_job_has_its_environment(start):
    broker = start()
    shown = broker.run("env", options=("--name", "n", "--persistent", "2MiB", "--ephemeral", "1 GiB", "--weight", "2.5",
                                       "--remaining", "90"))
    out, wrong = shown.communicate(timeout=60)
    variables = dict(line.split("=", 1) for line in out.splitlines() if "=" in line)
    assert variables["CARILLON_SOCKET"] == broker.socket, wrong
    assert variables["CARILLON_JOB_NAME"] == "n"
    assert variables["CARILLON_JOB_PERSISTENT"] == str(2 << 20)
    assert variables["CARILLON_JOB_EPHEMERAL"] == str(1 << 30)
    assert float(variables["CARILLON_JOB_WEIGHT"]) == 2.5 and float(variables["CARILLON_JOB_REMAINING"]) == 90
    assert len(variables["CARILLON_RUN"]) == 32
    assert variables["PYTHONPATH"].split(":")[0].endswith("carillon/_site")
    assert variables["LD_PRELOAD"].split(":")[0] == "/dev/null"


@pytest.mark.parametrize("given", [
    {}, {"PYTHONPATH": "/one:/two", "LD_PRELOAD": "/lib/one.so"}, {"OMP_WAIT_POLICY": "active"}, {"GOMP_SPINCOUNT": "7"}, {"OMP_WAIT_POLICY": ""},
    {"KMP_BLOCKTIME": "5"},
])
def test_both_ways_to_run_give_the_same_environment(start, given):
    root = Path(__file__).resolve().parent.parent
    if _shim.library() is None:
        pytest.skip(f"{_shim.NAME} is not built")
    broker = start()
    options = ["--socket", broker.socket, "--name", "n", "--persistent", "2MiB", "--ephemeral", "1GiB", "--weight", "2.5",
               "--remaining", "90", "--reattach", "5"]
    base = {name: value for name, value in os.environ.items()
            if not name.startswith(("CARILLON_", "OMP_", "GOMP_", "KMP_", "LD_PRELOAD"))} | {"PYTHONPATH": ""} | given
    shows = "import os, json; print(json.dumps(dict(os.environ)))"

    def environment(*command, **more) -> dict[str, str]:
        said = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=120, env=base | more)
        assert said.returncode == 0, said.stderr
        variables = json.loads(said.stdout)
        # Numbers are alike, however they are written; lists of libraries may be divided by either sign.
        for name in ("CARILLON_JOB_WEIGHT", "CARILLON_JOB_REMAINING", "CARILLON_REATTACH"):
            variables[name] = float(variables[name])
        variables["LD_PRELOAD"] = variables["LD_PRELOAD"].replace(":", " ").split()
        variables["PYTHONPATH"] = [path for path in variables["PYTHONPATH"].split(":") if path]
        assert len(variables.pop("CARILLON_RUN")) == 32
        return variables

    program = environment(broker.program, "run", *options, "--shim", _shim.library(), "--", sys.executable, "-c", shows)
    # The module is found by a path, which the script must not lose.
    here = str(root / "python")
    module = environment(sys.executable, "-m", "carillon", "run", *options, "--", sys.executable, "-c", shows,
                         PYTHONPATH=":".join(filter(None, [here, given.get("PYTHONPATH")])))
    assert module["PYTHONPATH"].pop(1) == here
    for one in (program, module):
        one["PYTHONPATH"][0] = str(Path(one["PYTHONPATH"][0]).resolve())
        one["LD_PRELOAD"][0] = str(Path(one["LD_PRELOAD"][0]).resolve())
        one.pop("_", None), one.pop("LC_CTYPE", None)
    assert program == module


def test_options_behind_the_script_are_the_scripts(start, tmp_path):
    broker = start()
    script = tmp_path / "script.py"
    script.write_text("import sys\nprint(sys.argv[1:])\n")
    said = run(broker.program, "run", "--socket", broker.socket, "--shim", "/dev/null", "--python", sys.executable, script,
               "--weight", "heavy", "--help", "--sockets")
    assert said.stdout == "['--weight', 'heavy', '--help', '--sockets']\n", said.stderr
    assert run(broker.program, "run", "--socket", broker.socket, tmp_path / "none.py").returncode == 2
    assert "has no option --wieght" in run(broker.program, "run", "--wieght", "2", script).stderr


def test_the_program_finds_what_pip_installed(start, tmp_path):
    """Beside the program there is nothing; the Python that is named has the package."""
    library = _shim.library()
    if library is None:
        pytest.skip(f"{_shim.NAME} is not built")
    broker = start()
    # The tests' own environment finds the checkout's package; the Python that it is made of has none.
    python = Path(sys.executable).resolve()
    alone = tmp_path / "bin" / "carillon"
    alone.parent.mkdir()
    shutil.copy(broker.program, alone)
    site_packages = tmp_path / "site"
    shutil.copytree(Path(__file__).parent.parent / "python/carillon", site_packages / "carillon")
    script = tmp_path / "script.py"
    script.write_text("import os; print(os.environ['LD_PRELOAD'], os.environ['PYTHONPATH'].split(':')[0])")
    clean = {n: v for n, v in os.environ.items() if not n.startswith(("CARILLON_", "LD_PRELOAD", "PYTHON"))}

    def said(*options, **more):
        return subprocess.run([alone, "run", "--socket", broker.socket, *map(str, options), script], capture_output=True,
                              text=True, timeout=120, env=clean | more)

    installed = {"PYTHONPATH": str(site_packages)}  # as far as the Python can tell
    nowhere = said("--python", python)
    assert nowhere.returncode == 1
    assert "--package" in nowhere.stderr and str(tmp_path) in nowhere.stderr and str(python) in nowhere.stderr
    no_library = said("--python", python, **installed)
    assert no_library.returncode == 1
    assert "libcarillon_shim.so" in no_library.stderr and "--shim" in no_library.stderr
    shutil.copy(library, site_packages / "carillon")
    found = said("--python", python, **installed)
    assert found.returncode == 0, found.stderr
    assert found.stdout.split() == [str(site_packages / "carillon" / _shim.NAME), str(site_packages / "carillon/_site")]
    no_python = said("--python", tmp_path / "no-python")
    assert no_python.returncode == 1 and "--package" in no_python.stderr


def test_without_a_broker_it_says_so(program, tmp_path):
    for command in (["jobs"], ["run", "true"]):
        said = run(program, command[0], "--socket", tmp_path / "none", *command[1:])
        assert said.returncode == 1 and "no broker listens" in said.stderr


def test_a_job_that_is_killed_makes_way(start):
    broker = start()
    first = broker.job()
    assert first.stdout.readline() == "inside\n"
    second = broker.job(20)
    broker.line_with("job 2")
    listed = broker.jobs()["jobs"]
    os.kill(listed[0]["pid"], signal.SIGKILL)
    assert first.wait(timeout=60) == -signal.SIGKILL
    out, _ = second.communicate(timeout=60)
    assert out.endswith("done 20\n")


def test_a_broker_that_ends_tells_its_jobs(start, tmp_path):
    broker = start("--json-log", str(tmp_path / "log.json"))
    job = broker.job()
    assert job.stdout.readline() == "inside\n"
    assert broker.end() == 0
    assert job.communicate(timeout=60)[0] == "ending\n"
    events = [json.loads(line)["event"] for line in (tmp_path / "log.json").read_text().splitlines()]
    assert events == ["came", "admitted", "left"]
    start()  # the path is free


def test_two_brokers_at_a_path(start, program):
    broker = start()
    said = run(program, "share", "--memory", "1GiB", "--socket", broker.socket)
    assert said.returncode == 2 and "another broker" in said.stderr
    broker.end(signal.SIGKILL)
    start()  # in the place of what was left


def test_what_is_too_large_is_refused(start):
    broker = start()
    job = broker.job(memory_mib=500)
    assert job.communicate(timeout=60)[0] == "refused\n"
    assert "even alone" in broker.line_with("refused")
