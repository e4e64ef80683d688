"""One request to a model that is known by its metadata alone, as a shell command."""

from __future__ import annotations

import json
import math
import shlex
import urllib.request
from pathlib import Path

INLINE = 256  # elements: larger requests go into a file
LENGTH = 8  # of dimensions that may have any, the batch apart
WHOLE = {"INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64"}
VALUES = {"FP32": 0.0, "FP64": 0.0, "BOOL": False, "BYTES": "", **dict.fromkeys(WHOLE, 0)}


def metadata_of(http: str, model: str) -> dict:
    with urllib.request.urlopen(f"http://{http}/v2/models/{urllib.request.quote(model, safe='')}", timeout=10) as answer:
        return json.load(answer)


def request_for(metadata: dict) -> dict | None:
    """Zeros of the inputs' shapes; None where JSON has no such values (FP16, BF16)."""
    inputs = []
    for item in metadata["inputs"]:
        if item["datatype"] not in VALUES:
            return None
        shape = [size if size > 0 else 1 if place == 0 else LENGTH for place, size in enumerate(item["shape"])]
        inputs.append({"name": item["name"], "shape": shape, "datatype": item["datatype"],
                       "data": [VALUES[item["datatype"]]] * math.prod(shape)})
    return {"inputs": inputs}


def curl(http: str, metadata: dict, folder: Path) -> str | None:
    """The command; a request that is too long for a line is written into `folder`. None: see request_for()."""
    request = request_for(metadata)
    if request is None:
        return None
    address = shlex.quote(f"http://{http}/v2/models/{urllib.request.quote(metadata['name'], safe='')}/infer")
    body = json.dumps(request, separators=(",", ":"))
    if sum(len(item["data"]) for item in request["inputs"]) <= INLINE:
        return f"curl -s {address} -d {shlex.quote(body)}"
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{urllib.request.quote(metadata['name'], safe='')}.json"
    file.write_text(body)
    return f"curl -s {address} -d @{shlex.quote(str(file.resolve()))}"
