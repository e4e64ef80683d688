"""Makes docs/img/page.png: the admin page of a server with emulated devices and some models under load.

    python tests/page_picture.py docs/img/page.png [--dark] [--width 1280]

Needs chromium (tools/setup --with-browser). The devices take the times of a profile that is made up here.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from browser import Browser
from loopback import ROOT, free_addresses, serving, write_model

# name: fixed ms, ms a request, SLO, requests a second, class
MODELS = {
    "bert_base": (14.0, 5.5, 300, 14, "normal"),
    "detector": (20.0, 12.0, 300, 4, "real_time"),
    "mobilenet": (6.0, 1.6, 200, 30, "normal"),
    "ranker": (8.0, 1.1, 200, 20, "normal"),
    "resnet50": (10.0, 4.2, 300, 16, "normal"),
    "speech": (30.0, 22.0, 800, 2, "normal"),
    "summaries": (60.0, 40.0, 1500, 0, "normal"),
}


def write_models(folder: Path) -> None:
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 16]) for name in ("x", "y")]
    for name, (_, _, slo, _, cls) in MODELS.items():
        write_model(folder, name, [helper.make_node("Mul", ["x", "f"], ["y"])], [value[0]], value[1],
                    [numpy_helper.from_array(np.float32(2), "f")])
        (folder / name / "config.pbtxt").write_text(
            f'name: "{name}"\n' + "".join(f'parameters {{ key: "{key}" value {{ string_value: "{text}" }} }}\n'
                                          for key, text in (("slo_ms", slo), ("class", cls))))


def write_times(file: Path) -> Path:
    file.write_text(json.dumps({"device": "made up", "models": [
        {"name": name, "weights_bytes": 90_000_000, "load_ms": {"p50": 12, "p99": 12},
         "batches": [{"batch": b, "p50_ms": fixed + each * b, "p99_ms": fixed + each * b} for b in (1, 2, 4, 8, 16)]}
        for name, (fixed, each, *_) in MODELS.items()]}))
    return file


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--dark", action="store_true")
    parser.add_argument("--width", type=int, default=1280)
    parser.add_argument("--height", type=int, default=1010)
    parser.add_argument("--seconds", type=float, default=25, help="of load before the picture")
    options = parser.parse_args()
    target = options.file.resolve()
    program = Path(os.environ.get("CARILLON_PROGRAM", ROOT / "build" / "release" / "carillon"))
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        write_models(folder / "models")
        profile = write_times(folder / "profile.json")
        (admin,) = free_addresses(1)
        os.chdir(folder)  # devices are called after their files
        started = [arg for name in MODELS if name != "summaries" for arg in ("--load-model", name)]
        with serving(program, folder / "models", folder / "log", "--admin-port", admin, "--device", "emulated:profile.json*2",
                     "--profile", str(profile), "--model-control-mode", "explicit", *started, page_cache="1 GiB") as server:
            loads = [arg for name, (_, _, slo, rate, _) in MODELS.items() if rate
                     for arg in ("--model", f"{name},rate={rate},deadline={slo}")]
            load = subprocess.Popen([str(program), "load", f"http://{server.http}", *loads, "--duration",
                                     str(options.seconds + 20)], stdout=subprocess.DEVNULL)
            try:
                with Browser(folder, options.width, options.height, options.dark, scale=2 if options.width < 600 else 1) as page:
                    page.open(f"http://{admin}/")
                    time.sleep(options.seconds)
                    page.run("(() => { const z = document.getElementById('zoom'); z.value = 1; z.dispatchEvent(new Event('input')); })()")
                    page.click("#list")
                    time.sleep(2)
                    page.run("scrollTo(0, 0)")
                    target.parent.mkdir(parents=True, exist_ok=True)
                    page.picture(target)
                    print("\n".join(page.console) or "nothing on the console")
            finally:
                load.terminate()
                load.wait()


if __name__ == "__main__":
    main()
