"""`python -m carillon run [options] script.py [its arguments]`; where the program is in the package (a wheel of
packaging/build-wheel), its other commands as well."""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import socket
import sys
import uuid
from pathlib import Path

from . import _launch, _shim, _threads

SIZES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}

DESCRIPTION = """Runs a PyTorch script, as it is, as a job of the broker that `carillon share` starts: it takes turns
with the broker's other jobs between iterations, and uses the same working memory. See docs/sharing-scripts.md."""


def default_socket() -> str:
    """As the broker's: share/broker.h."""
    if named := os.environ.get("CARILLON_SOCKET"):
        return named
    if folder := os.environ.get("XDG_RUNTIME_DIR"):
        return f"{folder}/carillon/share.sock"
    return f"/tmp/carillon-{os.getuid()}/share.sock"


def size(text: str) -> int:
    number = text.strip().lower().removesuffix("b").removesuffix("i")
    unit = number[-1:] if number[-1:] in SIZES else ""
    try:
        value = float(number.removesuffix(unit)) if unit else float(number)
    except ValueError:
        raise argparse.ArgumentTypeError(f"a size is such as 512M or 1.5G, not {text!r}") from None
    if not 0 <= value * SIZES[unit] < 1 << 63:
        raise argparse.ArgumentTypeError(f"a size is 0 or more, not {text!r}")
    return int(value * SIZES[unit])


def weight(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1
    if not 1e-6 <= value <= 1000:
        raise argparse.ArgumentTypeError(f"a weight is from 0.000001 to 1000, not {text!r}")
    return value


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python -m carillon", description=DESCRIPTION)
    run = top.add_subparsers(dest="command", required=True).add_parser(
        "run", description=DESCRIPTION, usage="%(prog)s [options] script.py | -m MODULE | COMMAND [its arguments]")
    run.add_argument("--socket", default=None, metavar="PATH",
                     help="the broker's (default: CARILLON_SOCKET, else carillon/share.sock in the runtime folder)")
    run.add_argument("--name", help="of the job, for people (default: the script's)")
    run.add_argument("--weight", type=weight, metavar="W", help="of its share under the policy fair (default 1)")
    run.add_argument("--persistent", type=size, metavar="SIZE", help="memory that stays; without it, found out")
    run.add_argument("--ephemeral", type=size, metavar="SIZE", help="memory of an iteration; without it, found out")
    run.add_argument("--remaining", type=float, metavar="SECONDS", help="time of the device that it takes in all")
    run.add_argument("--reattach", type=float, metavar="SECONDS",
                     help="how long a job waits for another broker where its own is gone, before it goes on alone "
                          "(default 30)")
    run.add_argument("--alone", action="store_true", help="without a broker: as if run by python itself")
    run.add_argument("-m", dest="module", action="store_true", help="what follows is a module, as in python -m")
    run.add_argument("what", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return top


def command_of(options) -> list[str]:
    what = options.what[1:] if options.what[:1] == ["--"] else options.what
    if not what:
        raise SystemExit("carillon: what is to be run? Name a script, -m MODULE or a command")
    if options.module:
        return [sys.executable, "-m", *what]
    if what[0].endswith((".py", ".pyc")) or (os.path.isfile(what[0]) and not os.access(what[0], os.X_OK)):
        if not os.path.isfile(what[0]):
            raise SystemExit(f"carillon: there is no script {what[0]}")
        return [sys.executable, *what]
    if found := shutil.which(what[0]):
        return [found, *what[1:]]
    raise SystemExit(f"carillon: {what[0]} is no script (*.py) and no command in PATH")


def look_for_broker(path: str) -> None:
    if len(os.fsencode(path)) > 107:
        raise SystemExit(f"carillon: the socket's path is longer than 107 bytes: {path}")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as broker:
        try:
            broker.connect(path)
        except OSError as error:
            raise SystemExit(f"carillon: no broker at {path} ({error.strerror}): start one with `carillon share`, name "
                             "its socket with --socket, or run without one by --alone") from None


def environment(options, library: Path | None, base: dict[str, str]) -> dict[str, str]:
    """Of the script and all that it starts."""
    changed = dict(base)
    site = str(Path(__file__).resolve().parent / "_site")
    paths = [p for p in changed.get("PYTHONPATH", "").split(os.pathsep) if p and p != site]
    changed["PYTHONPATH"] = os.pathsep.join([site, *paths])
    if options.alone:
        changed["CARILLON_ALONE"] = "1"
        return changed
    preloaded = [p for p in changed.get("LD_PRELOAD", "").replace(":", " ").split() if Path(p).name != _shim.NAME]
    changed["LD_PRELOAD"] = " ".join([str(library), *preloaded])
    changed["CARILLON_SOCKET"] = options.socket or default_socket()
    # Within a job, what it starts is part of it, whose turn is its own: a turn of its own it would wait for while
    # the job, which may wait for it, has the lane. Else this is a run, and a job, of its own.
    if not changed.get("CARILLON_INSIDE"):
        changed["CARILLON_RUN"] = uuid.uuid4().hex
    for name, value in (("CARILLON_JOB_NAME", options.name), ("CARILLON_JOB_WEIGHT", options.weight),
                        ("CARILLON_JOB_PERSISTENT", options.persistent),
                        ("CARILLON_JOB_EPHEMERAL", options.ephemeral), ("CARILLON_JOB_REMAINING", options.remaining),
                        ("CARILLON_REATTACH", options.reattach)):
        if value is not None:
            changed[name] = str(value)
    return changed | _threads.quiet(changed)


def main(arguments: list[str] | None = None) -> None:
    words = sys.argv[1:] if arguments is None else arguments
    if words[:1] != ["run"] and _launch.PROGRAM.is_file():
        _launch.become(words)
    options = parser().parse_args(words)
    command = command_of(options)
    library = None
    if not options.alone:
        library = _shim.library()
        if library is None:
            raise SystemExit(f"carillon: {_shim.NAME} is not built: cmake --build --preset release --target "
                             "carillon_shim, or run without it by --alone")
        if set(str(library)) & set(" :"):
            raise SystemExit(f"carillon: the path {library} has a colon or a space, which LD_PRELOAD cannot have; "
                             "install carillon elsewhere, or run without it by --alone")
        look_for_broker(options.socket or default_socket())
    if command[0] == sys.executable and importlib.util.find_spec("torch") is None:
        print("carillon: this Python has no torch: nothing of the script can be shared", file=sys.stderr)
    sys.stdout.flush()
    os.execve(command[0], command, environment(options, library, dict(os.environ)))


if __name__ == "__main__":
    main()
