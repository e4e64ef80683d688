"""The command `carillon` of a wheel that holds the program (packaging/build-wheel): this process becomes it."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
PROGRAM = PACKAGE / "_bin" / "carillon"
SHIM = PACKAGE / "libcarillon_shim.so"
ALONE = {"--alone", "-h", "--help"}  # options of `carillon run` without a value


def of_this_environment(words: list[str]) -> list[str]:
    """Options of `carillon run` that are not given: a script runs in the environment that this is installed in."""
    given, at = set(), 0
    while at < len(words) and words[at].startswith("-") and words[at] != "--":
        name, has_value, _ = words[at].partition("=")
        given.add(name)
        at += 1 if has_value or name in ALONE else 2
    wanted = {"--python": sys.executable, "--package": PACKAGE, "--shim": SHIM}
    return [f"{name}={value}" for name, value in wanted.items() if name not in given]


def extend(variable: str, place: object) -> None:
    """Behind what is there."""
    os.environ[variable] = ":".join(filter(None, [os.environ.get(variable), str(place)]))


def show_packages() -> None:
    """Where this environment has the packages of others, activated or not: NVIDIA's, and OpenVINO."""
    extend("CARILLON_SITE_PACKAGES", PACKAGE.parent)
    if (PACKAGE.parent / "openvino").is_dir():
        return  # the RPATH of the program's module leads there
    spec = importlib.util.find_spec("openvino")
    for folder in (spec and spec.submodule_search_locations) or ():
        if any(Path(folder).glob("libs/libopenvino.so.*")):
            extend("LD_LIBRARY_PATH", Path(folder) / "libs")


def become(words: list[str]) -> None:
    """No process is left between the caller and the program: signals and the exit status are the program's."""
    if words[:1] == ["run"]:
        words = ["run", *of_this_environment(words[1:]), *words[1:]]
    else:
        show_packages()
    # Python ignores these, and a program inherits what is ignored.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execv(PROGRAM, [str(PROGRAM), *words])
    except OSError as error:
        other = "" if PROGRAM.is_file() else ": this package is not the wheel's (does PYTHONPATH name a checkout?)"
        raise SystemExit(f"carillon: {PROGRAM} cannot be run: {error.strerror}{other}") from None


def main() -> None:
    become(sys.argv[1:])
