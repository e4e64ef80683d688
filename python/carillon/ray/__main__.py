"""`python -m carillon.ray serve|status|scale|delete`: the functions of the package, from a shell."""

from __future__ import annotations

import argparse
import json
import sys

from . import Mistake, delete, scale, serve, status


def resource(text: str) -> tuple[str, float]:
    name, equals, amount = text.partition("=")
    try:
        return name, float(amount) if equals else 1.0
    except ValueError:
        raise argparse.ArgumentTypeError(f"a resource is such as CPU=2, not {text!r}") from None


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python -m carillon.ray", description="Carillon's workers on a Ray cluster: docs/ray.md")
    commands = top.add_subparsers(dest="command", required=True)
    begin = commands.add_parser("serve", help="start workers, and what else the cluster lacks")
    begin.add_argument("models", nargs="+", help="a repository's folder, or ONNX files")
    begin.add_argument("--workers", type=int, default=2)
    begin.add_argument("--resource", type=resource, action="append", metavar="NAME=AMOUNT", help="of a worker (default CPU=1); may be given several times")
    begin.add_argument("--frontends", type=int)
    begin.add_argument("--schedulers", type=int)
    begin.add_argument("--http", default="0.0.0.0:8000")
    begin.add_argument("--grpc", default="0.0.0.0:8001")
    begin.add_argument("--program")
    begin.add_argument("--wanted-from", metavar="URL", action="append", help="of metrics that say carillon_devices_wanted; once for each scheduler")
    begin.add_argument("--most", type=int, help="workers, with --wanted-from")
    begin.add_argument("--timeout", type=float, default=120, help="seconds")
    for name in ("option", "frontend-option", "scheduler-option"):
        begin.add_argument(f"--{name}", action="append", default=[], metavar="WORD", help="of that command: --option=--log-level --option=debug")
    see = commands.add_parser("status", help="who leads, and how each process is")
    number = commands.add_parser("scale", help="to another number of workers")
    number.add_argument("workers", type=int)
    end = commands.add_parser("delete", help="end all that was started")
    for each in (begin, see, number, end):
        each.add_argument("--cluster", required=True, metavar="etcd://HOST:PORT/NAME")
    return top


def main(arguments: list[str] | None = None) -> int:
    given = parser().parse_args(arguments)
    try:
        if given.command == "serve":
            models = given.models[0] if len(given.models) == 1 else given.models
            resources = {name: int(amount) if amount.is_integer() else amount for name, amount in given.resource} if given.resource else None
            box = serve(models, given.workers, resources, given.cluster, frontends=given.frontends, schedulers=given.schedulers,
                        http=given.http, grpc=given.grpc, options=given.option, frontend_options=given.frontend_option,
                        scheduler_options=given.scheduler_option, program=given.program, wanted_from=given.wanted_from,
                        most=given.most, timeout=given.timeout)
            print("\n".join(f"http://{address}" for address in box.status()["http"]))
        elif given.command == "status":
            print(json.dumps(status(given.cluster), indent=2))
        elif given.command == "scale":
            scale(given.cluster, given.workers)
        else:
            delete(given.cluster)
    except (Mistake, OSError, RuntimeError, ImportError) as error:  # TimeoutError and ConnectionError are OSErrors
        print(f"carillon.ray: {error}", file=sys.stderr)
        return 2 if isinstance(error, Mistake) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
