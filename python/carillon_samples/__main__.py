"""`python -m carillon_samples --out DIR`: writes the sample models."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from .catalogue import SAMPLES, TINY, Sample, choose
from .repository import config_text, is_complete, model_file, write_model

SEED = 1


def produce(sample: Sample, seed: int, name: str) -> bytes:
    """The ONNX bytes of `sample` with the weights of `seed`."""
    if not sample.needs_torch:
        return sample.builder()(sample, seed, name)
    from .torch_export import export

    return export(sample, seed)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="carillon_samples",
        description="Writes sample models as a Triton-style model repository. Models that are there are kept.",
        epilog="Models: " + ", ".join(SAMPLES))
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="the repository's folder")
    parser.add_argument("--models", default="all", metavar="NAMES",
                        help="names with commas between, 'tiny', 'dynamic' (time depends on the input), 'disb' (what "
                             "the workloads of DISB run: 1.3 GB) or 'all', which leaves what only these two have out "
                             "(default: all)")
    parser.add_argument("--copies", type=int, default=1, metavar="N",
                        help="write each chosen tiny model N times, each with weights of its own: NAME_0000 and on")
    parser.add_argument("--bf16", action="store_true",
                        help="also write NAME_bf16, which allows the server to compute in bfloat16")
    parser.add_argument("--seed", type=int, default=SEED, help=f"of the weights (default: {SEED})")
    options = parser.parse_args(arguments)
    if not 1 <= options.copies <= 10_000:
        parser.error(f"--copies must be 1 to 10000, not {options.copies}")
    try:
        options.samples = choose(options.models)
    except ValueError as error:
        parser.error(str(error))
    if options.copies > 1:
        large = [sample.name for sample in options.samples if sample.name not in TINY]
        if large:
            parser.error(f"--copies is for the tiny models only; not for {', '.join(large)}")
    return options


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    root: Path = options.out
    # (name in the repository, sample, seed of its weights)
    wanted = []
    for sample in options.samples:
        if options.copies == 1:
            wanted.append((sample.name, sample, options.seed))
        else:
            wanted += [(f"{sample.name}_{index:04}", sample, options.seed + index)
                       for index in range(options.copies)]
    if any(sample.needs_torch and not is_complete(root, name) for name, sample, _ in wanted):
        try:
            import torch  # noqa: F401
        except ImportError as error:
            say(f"carillon_samples: {error}; these models are exported with torch: run tools/setup --with-samples")
            return 1
    try:
        root.mkdir(parents=True, exist_ok=True)
        for number, (name, sample, seed) in enumerate(wanted, 1):
            label = f"[{number}/{len(wanted)}] {name}"
            if is_complete(root, name):
                say(f"{label}: is there")
            else:
                start = time.monotonic()
                model = produce(sample, seed, name)
                write_model(root, name, config_text(sample, name, sample.config_parameters()), model)
                say(f"{label}: {len(model) / 1e6:.1f} MB in {time.monotonic() - start:.1f} s")
            low = f"{name}_bf16"
            if options.bf16 and not is_complete(root, low):
                parameters = {**sample.config_parameters(), "precision": "bf16"}
                write_model(root, low, config_text(sample, low, parameters), model_file(root, name))
                say(f"{label}: {low} written beside it")
    except OSError as error:
        say(f"carillon_samples: cannot write the repository: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
