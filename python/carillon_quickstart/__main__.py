"""Sample models, a server, real requests with deadlines, a table; then serves until Ctrl-C."""

from __future__ import annotations

import argparse
import json
import shlex
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from tritonclient.utils import InferenceServerException

from carillon_samples.__main__ import main as write_samples
from carillon_samples.catalogue import Sample, choose
from carillon_samples.repository import model_file

from .load import Client, OpenLoop, Question, Tally, typical_time
from .own import curl, metadata_of
from .server import Server, ServerFailed, progress

LOAD = 0.35  # share of the time that the requests of all models would keep a server busy that runs one at a time
MOST = 0.8  # share of the requests that must be on time
RATE_LIMIT = 40.0  # requests a second to one model, so that the client in Python is not what is measured
READY_LIMIT = 180.0
DASHBOARD = Path("packaging/grafana/carillon.json")


class Disappointed(RuntimeError):
    """The server is there, but did not do what it should."""


def say(text: str) -> None:
    print(f"    {text}", file=sys.stderr, flush=True)


def step(text: str) -> None:
    step.number += 1
    print(f"[{step.number}] {text}", file=sys.stderr, flush=True)


def table(tallies: dict[str, Tally]) -> str:
    rows = [("model", "deadline", "sent", "on time", "refused", "late", "failed", "p50", "p99")]
    for name, tally in tallies.items():
        rows.append((name, f"{tally.deadline * 1e3:.0f} ms", str(tally.sent), str(tally.on_time), str(tally.refused),
                     str(tally.late), str(tally.failed + tally.wrong),
                     f"{tally.percentile(50) * 1e3:.1f} ms", f"{tally.percentile(99) * 1e3:.1f} ms"))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) if column == 0 else cell.rjust(width)
                       for column, (cell, width) in enumerate(zip(row, widths))) for row in rows]
    lines.insert(1, "-" * len(lines[0]))
    return "\n".join(lines)


def judge(tallies: dict[str, Tally]) -> None:
    """Raises Disappointed unless answers came back right, and most of them on time."""
    for name, tally in tallies.items():
        if tally.failed or tally.wrong:
            raise Disappointed(f"{name}: {tally.failed} requests failed and {tally.wrong} answers were wrong; "
                               f"the first: {tally.first_problem}")
        if tally.on_time < MOST * tally.sent:
            raise Disappointed(f"{name}: only {tally.on_time} of {tally.sent} requests were on time")


def by_hand(server: Server, sample: Sample) -> str:
    """A shell command that sends one request with a deadline."""
    tensor = sample.inputs[0]
    address = f"http://{server.http}/v2/models/{sample.name}/infer"
    if len(sample.inputs) == 1 and tensor.dims == (64,):
        body = ('{"inputs":[{"name":"%s","shape":[1,64],"datatype":"FP32","data":[\'$(seq -s, 64)\']}],'
                '"parameters":{"timeout":50000}}' % tensor.name)
        return f"curl -s {address} -d '{body}'"
    lines = ["import numpy as np, tritonclient.http as t", f'c = t.InferenceServerClient("{server.http}")']
    for number, item in enumerate(sample.inputs):
        shape = item.shape(batch=1, length=16)
        lines.append(f'x{number} = t.InferInput("{item.name}", {list(shape)}, "{item.dtype}")')
        lines.append(f"x{number}.set_data_from_numpy(np.ones({shape}, np.{item.numpy_type.__name__}))")
    names = ", ".join(f"x{number}" for number in range(len(sample.inputs)))
    lines.append(f'print(c.infer("{sample.name}", [{names}], timeout={(sample.slo_ms or 1000) * 1000})'
                 f'.as_numpy("{sample.outputs[0].name}"))')
    return ".venv/bin/python - <<'EOF'\n" + "\n".join(lines) + "\nEOF"


def try_by_hand(command: str) -> str:
    """Runs the command that we show, so that what we show works; gives its output's beginning."""
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    output = done.stdout.strip()
    if done.returncode != 0 or not output or '"error"' in output:
        raise Disappointed(f"the command below did not work: {(output + done.stderr).strip()[:400]}\n{command}")
    return output if len(output) <= 160 else output[:157] + "..."


def show_load(at: float, count: int, total: int) -> None:
    if sys.stderr.isatty() and count % 20 == 0:
        progress(f"    {at:.0f} s: {count} of {total} sent")


def exercise(server: Server, samples: list[Sample], root: Path, seconds: float,
             least_deadline: float) -> dict[str, Tally]:
    """Sends open-loop requests to every sample; gives what became of them."""
    questions = {sample.name: Question(sample, str(model_file(root, sample.name))) for sample in samples}
    alone = {}
    for sample in samples:
        for protocol, address in (("http", server.http), ("grpc", server.grpc)):
            client = Client(protocol, address)
            try:
                alone[sample.name] = typical_time(client, sample.name, questions[sample.name])
            except (InferenceServerException, ValueError) as error:
                raise Disappointed(f"{sample.name} over {protocol}: {error}") from None
            finally:
                client.close()
    say("alone, over gRPC: " + ", ".join(f"{name} {time * 1e3:.1f} ms" for name, time in alone.items()))
    rates = {name: min(RATE_LIMIT, LOAD / len(samples) / took) for name, took in alone.items()}
    deadlines = {name: max(least_deadline, 10 * took) for name, took in alone.items()}
    say(f"{sum(rates.values()):.0f} requests a second for {seconds:.0f} s, half over HTTP and half over gRPC")
    loop = OpenLoop({"http": server.http, "grpc": server.grpc}, questions, threads=24)
    loop.run(rates, deadlines, seconds, seed=1, progress=show_load)
    progress("")
    return loop.tallies


def show_where(server: Server) -> None:
    """What there is to look at."""
    if server.admin:
        print(f"A page to look at: http://{server.admin}/", flush=True)
    print(f"Metrics: http://{server.metrics}/metrics    Server's log: {server.log}")
    print(f"A Grafana dashboard over them, to import: {DASHBOARD}", flush=True)


def ask_own_models(server: Server, folder: Path) -> None:
    """A line for each model that was brought, and what it prints."""
    with urllib.request.urlopen(urllib.request.Request(f"http://{server.http}/v2/repository/index", method="POST"),
                                timeout=10) as answer:
        names = [model["name"] for model in json.load(answer)]
    for name in names:
        command = curl(server.http, metadata_of(server.http, name), folder)
        if command is None:
            print(f"{name} takes FP16 or BF16, which JSON has not: ask it with tritonclient, or\n\n"
                  f"{server.command[0]} load http://{server.http} --model {shlex.quote(name)} --deadline 1000\n")
            continue
        output = try_by_hand(command)
        print(f"{name}, asked by hand:\n\n{command}\n\nwhich prints: {output}\n")


def serve_until_interrupted(server: Server) -> None:
    try:
        print("\nServing until Ctrl-C.", flush=True)
        while True:
            server.check()
            time.sleep(0.5)
    except KeyboardInterrupt:
        print(flush=True)


def tell_own_story(options: argparse.Namespace) -> None:
    served = [argument for model in options.model for argument in ("--model", model)]
    with Server(options.program, served, options.log, options.server_options, say) as server:
        try:
            step("server: " + " ".join(server.command))
            say(f"ready after {server.wait_ready([], READY_LIMIT):.1f} s")
            step("a request to each model")
            ask_own_models(server, options.log.parent)
            end_story(server, options.once)
        except (ServerFailed, Disappointed):
            show_log_of(server)
            raise


def show_log_of(server: Server) -> None:
    progress("")
    print(f"The end of the server's log ({server.log}):", file=sys.stderr)
    print("\n".join(f"    | {line}" for line in server.log_tail().splitlines()), file=sys.stderr)


def end_story(server: Server, once: bool) -> None:
    show_where(server)
    if not once:
        serve_until_interrupted(server)
    step("stopping the server")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C changes nothing: the wait has a limit
    server.stop()
    say("it ended cleanly")


def tell_story(options: argparse.Namespace) -> None:
    samples = options.samples
    root = options.repository
    step(f"sample models in {root}")
    if write_samples(["--out", str(root), "--models", ",".join(sample.name for sample in samples)]) != 0:
        raise Disappointed("the sample models could not be made")

    with Server(options.program, ["--models", str(root)], options.log, options.server_options, say) as server:
        try:
            step("server: " + " ".join(server.command))
            say(f"ready after {server.wait_ready([sample.name for sample in samples], READY_LIMIT):.1f} s")
            step("requests with deadlines through tritonclient")
            tallies = exercise(server, samples, root, options.seconds, options.least_deadline)
            print(f"\n{table(tallies)}\n", flush=True)
            print("Latency counts from the planned moment of sending. Every answer was compared with onnxruntime's.\n")
            judge(tallies)
            command = by_hand(server, samples[0])
            output = try_by_hand(command)
            print(f"One request by hand:\n\n{command}\n\nwhich prints: {output}\n")
            end_story(server, options.once)
        except (ServerFailed, Disappointed):
            show_log_of(server)
            raise


def main() -> int:
    parser = argparse.ArgumentParser(prog="carillon_quickstart", description=__doc__)
    parser.add_argument("--program", required=True, type=Path)
    parser.add_argument("--repository", type=Path, help="folder for the sample models")
    served = parser.add_mutually_exclusive_group(required=True)
    served.add_argument("--models", help="names with commas between, 'tiny', 'dynamic' or 'all'")
    served.add_argument("--model", action="append", help="[NAME=]FILE in place of samples; may be given several times")
    parser.add_argument("--log", required=True, type=Path, help="file for the server's output")
    parser.add_argument("--once", action="store_true", help="stop after the requests")
    parser.add_argument("--seconds", type=float, default=8.0, help="how long requests are sent")
    parser.add_argument("--least-deadline", type=float, default=0.05,
                        help="seconds; a client in Python is not always quicker than the default (0.05)")
    parser.add_argument("--first-step", type=int, default=1, help="number of the first step shown")
    parser.add_argument("server_options", nargs="*", help="more options for `carillon serve`")
    options = parser.parse_args()
    if options.models is not None:
        if options.repository is None:
            parser.error("--models needs --repository")
        try:
            options.samples = choose(options.models)
        except ValueError as error:
            parser.error(str(error))
    step.number = options.first_step - 1
    try:
        tell_own_story(options) if options.model else tell_story(options)
    except (ServerFailed, Disappointed) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        return 130
    return 0


step.number = 0

if __name__ == "__main__":
    sys.exit(main())
