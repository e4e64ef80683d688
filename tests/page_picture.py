"""Makes pictures of the admin page in headless Chromium, of a server under load.

    python tests/page_picture.py docs/img/page.png                        five models that are made up, two emulated devices
    python tests/page_picture.py docs/img/page_500.png --models 500 [--folder DIR]    500 real ones, on the CPU in 1 GiB
    ... [--dark] [--width 400] [--height 1200] [--seconds 25] [--scroll SELECTOR]

Needs chromium (tools/setup --with-browser), and Pillow, which matplotlib brings. The devices of the first take the times of a profile that is made up here.
The second serves a folder of models (bench/box_models.py makes one of 500), those that come first the most often.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

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
# Of those of the page with five, a little more than they can bear.
RATES = {"bert_base": 26, "detector": 5, "mobilenet": 50, "resnet50": 70, "summaries": 0}


def write_models(folder: Path, names=tuple(MODELS)) -> None:
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 16]) for name in ("x", "y")]
    for name in names:
        _, _, slo, _, cls = MODELS[name]
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


@contextlib.contextmanager
def made_up(program: Path, folder: Path, admin: str):
    """The server, and what is to be sent to it."""
    write_models(folder / "models", tuple(RATES))
    profile = write_times(folder / "profile.json")
    os.chdir(folder)  # devices are called after their files
    started = [arg for name, rate in RATES.items() if rate for arg in ("--load-model", name)]
    with serving(program, folder / "models", folder / "log", "--admin-port", admin, "--device", "emulated:profile.json*2",
                 "--profile", str(profile), "--model-control-mode", "explicit", *started, page_cache="1 GiB") as server:
        yield server, [f"{name},rate={rate},deadline={MODELS[name][2]}" for name, rate in RATES.items() if rate]


@contextlib.contextmanager
def of_folder(program: Path, folder: Path, admin: str, models: Path, count: int, rate: float):
    """Every SLO is 100 ms; how often a model is asked follows Zipf's law."""
    names = sorted((at.name for at in models.iterdir()), key=lambda name: name[::-1])[:count]
    for name in names:
        (folder / "some" / name).mkdir(parents=True)
        (folder / "some" / name / "1").symlink_to(models / name / "1")
        (folder / "some" / name / "config.pbtxt").write_text('parameters { key: "slo_ms" value { string_value: "100" } }\n')
    share = [1 / (place + 1) for place in range(len(names))]
    with serving(program, folder / "some", folder / "log", "--admin-port", admin, "--memory", "1GiB",
                 "--follow-links", "--log-level", "info", page_cache=None) as server:
        yield server, [f"{name},rate={rate * each / sum(share):.4f},deadline=100" for name, each in zip(names, share)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, nargs="+", help="several: each after --seconds more, at the next --width")
    parser.add_argument("--models", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="of models; they are made where it is left out")
    parser.add_argument("--rate", type=float, default=300, help="requests a second to a folder's models, together")
    parser.add_argument("--dark", action="store_true", help="the last picture is of the dark page")
    parser.add_argument("--width", type=int, nargs="+", default=[1280])
    parser.add_argument("--height", type=int, default=1200)
    parser.add_argument("--scroll", default="body", help="what is at the top")
    parser.add_argument("--seconds", type=float, default=45, help="of load before a picture")
    options = parser.parse_args()
    targets = [file.resolve() for file in options.file]
    program = Path(os.environ.get("CARILLON_PROGRAM", ROOT / "build" / "release" / "carillon")).resolve()
    with tempfile.TemporaryDirectory() as made, contextlib.ExitStack() as ends:
        folder = Path(made)
        (admin,) = free_addresses(1)
        if options.models == len(RATES) and options.folder is None:
            serves = made_up(program, folder, admin)
        else:
            models = options.folder and options.folder.resolve()
            if models is None:
                models = folder / "box"
                subprocess.run([sys.executable, str(ROOT / "bench" / "box_models.py"), str(models), "--count", str(options.models)],
                               check=True)
            serves = of_folder(program, folder, admin, models, options.models, options.rate)
        server, loads = ends.enter_context(serves)
        load = subprocess.Popen([str(program), "load", f"http://{server.http}", "--length", "16", *(arg for each in loads for arg in ("--model", each)),
                                 "--duration", str((options.seconds + 20) * len(targets))], stdout=subprocess.DEVNULL)
        ends.callback(load.wait)
        ends.callback(load.terminate)
        for place, target in enumerate(targets):
            width = options.width[min(place, len(options.width) - 1)]
            dark = options.dark and place == len(targets) - 1
            (folder / str(place)).mkdir()
            with Browser(folder / str(place), width, options.height, dark, scale=1.5 if width < 600 else 1) as page:
                page.open(f"http://{admin}/")
                time.sleep(options.seconds)
                page.run("(() => { const z = document.getElementById('zoom'); z.value = 1; z.dispatchEvent(new Event('input')); })()")
                time.sleep(3)
                page.run(f"document.querySelector({json.dumps(options.scroll)}).scrollIntoView()")
                target.parent.mkdir(parents=True, exist_ok=True)
                page.picture(target)
                Image.open(target).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(target, optimize=True)  # a third
                print(f"{target.name}: {target.stat().st_size} bytes;", "\n".join(page.console) or "nothing on the console")


if __name__ == "__main__":
    main()
