#!/usr/bin/env python3
"""Writes profiles/mi50_kernels.json from the measurements that REEF's authors published.

    python bench/make_mi50_kernels.py FOLDER [--out FILE]

FOLDER has kernels.csv, one row a kernel launch in the order of the model's schedule (columns: model, kernel,
thread_blocks), and <model>.profile.json as github.com/SJTU-IPADS/reef has it in resource/<model>/. Times are written as
they were measured: nothing is smoothed, rounded or made to add up.
"""
import argparse
import csv
import itertools
import json
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[1]
COMMIT = "58dabe0"
UNITS = 60  # compute units of an MI50
# By REEF's name: the name here, what DISB's workloads call it, and what to know about it.
MODELS = {
    "resnet152": ("resnet152", ["resnet152-imagenet"], "ResNet-152 v2 of 64x64 pixels, going by its kernels"),
    "densenet": ("densenet201", ["densenet201-imagenet"], "DenseNet-201, going by its kernels"),
    "vgg": ("vgg19", ["vgg19-imagenet"], "not a VGG, going by its kernels, but ResNet-50 v2 of 64x64 pixels"),
    "inception": ("inceptionv3", ["inceptionv3-imagenet"], "Inception v3, going by its kernels"),
    "bert": ("distilbert", [], "DistilBERT (six layers), going by its kernels"),
    "alexnet": ("alexnet", [], ""),
    "mobilenet": ("mobilenet", [], "MobileNet v1, going by its kernels"),
    "resnet": ("resnet", [], "ResNet-152 v2 of 224x224 pixels, going by its kernels, but its first convolution 24 times"),
    "resnet18": ("resnet18", [], "ResNet-18 v2, going by its kernels"),
}


def kernels_of(rows, measured):
    """Lines of JSON, a kernel each; equal ones in a row are one with a "repeat"."""
    lines = []
    for (name, blocks), run in itertools.groupby(rows, key=lambda r: (r["kernel"], int(r["thread_blocks"]))):
        kernel = {"name": name, "blocks": blocks, "round_us": measured[name]["latency"]}
        count = len(list(run))
        if count > 1:
            kernel["repeat"] = count
        lines.append("   " + json.dumps(kernel, separators=(",", ":")))
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "profiles/mi50_kernels.json")
    args = parser.parse_args()
    with (args.folder / "kernels.csv").open() as file:
        rows = list(csv.DictReader(file))
    models = []
    for theirs, (name, aliases, note) in sorted(MODELS.items(), key=lambda item: item[1][0]):
        profile = json.loads((args.folder / f"{theirs}.profile.json").read_text())
        lines = kernels_of([r for r in rows if r["model"] == theirs], profile["kernel_latency"])
        source = (f"github.com/SJTU-IPADS/reef, commit {COMMIT}, resource/{theirs}/{theirs}.json and "
                  f"{theirs}.profile.json" + (f"; {note}" if note else ""))
        head = json.dumps({"aliases": aliases, "source": source, "latency_us": profile["model_latency"]})
        models.append(f'  {json.dumps(name)}: {head[:-1]}, "kernels": [\n' + ",\n".join(lines) + "]}")
    args.out.write_text('{"device": "AMD Radeon Instinct MI50", "units": ' + f'{UNITS}, "models": {{\n'
                        + ",\n".join(models) + "}}\n")


if __name__ == "__main__":
    main()
