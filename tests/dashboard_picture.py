"""Makes docs/img/dashboard.png: every panel of packaging/grafana/carillon.json over some minutes of a server under load.

    python tests/dashboard_picture.py docs/img/dashboard.png [--minutes 3]

Prometheus (Debian's package of that name) scrapes the server and answers the panels' own queries; matplotlib draws what
Grafana would, in the dashboard's places. It fails where a panel has nothing to show. The server is that of
page_picture.py, with two emulated devices: a third of the time with as much load as they can bear, a third with twice
that, and in the last third one of them fails for a while.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import shutil
import subprocess
import tempfile
import time
import urllib.parse
import urllib.request
from pathlib import Path

from loopback import ROOT, free_addresses, serving
from page_picture import MODELS, write_models, write_times

DASHBOARD = ROOT / "packaging/grafana/carillon.json"
STEP = 2  # seconds between points
WINDOW = "20s"  # $__rate_interval: with Prometheus' usual 15 s between scrapes Grafana takes a minute


def prometheus(folder: Path, metrics: str) -> tuple[subprocess.Popen, str]:
    """A Prometheus that scrapes the server each second, and its address."""
    program = os.environ.get("PROMETHEUS") or shutil.which("prometheus")
    if program is None:
        raise SystemExit("no prometheus (of Debian's package prometheus; or name it in PROMETHEUS)")
    (folder / "prometheus.yml").write_text(
        "global: {scrape_interval: 1s}\n"
        f"scrape_configs: [{{job_name: carillon, static_configs: [{{targets: ['{metrics}']}}]}}]\n")
    (address,) = free_addresses(1)
    process = subprocess.Popen(
        [program, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
         f"--web.listen-address={address}"], stdout=subprocess.DEVNULL, stderr=(folder / "prometheus.log").open("wb"))
    limit = time.monotonic() + 60
    while True:
        try:
            urllib.request.urlopen(f"http://{address}/-/ready", timeout=5).close()
            return process, address
        except OSError:
            if process.poll() is not None or time.monotonic() > limit:
                process.kill()
                raise SystemExit("prometheus does not start:\n" + (folder / "prometheus.log").read_text()[-2000:]) from None
            time.sleep(0.2)


def series_of(address: str, query: str, begin: float, end: float) -> list[dict]:
    query = query.replace("$__rate_interval", WINDOW).replace("$instance", ".*").replace("$model", ".*")
    arguments = urllib.parse.urlencode({"query": query, "start": begin, "end": end, "step": STEP})
    with urllib.request.urlopen(f"http://{address}/api/v1/query_range?{arguments}", timeout=30) as response:
        return json.load(response)["data"]["result"]


def legend_of(pattern: str, labels: dict[str, str]) -> str:
    shown = {**labels, "instance": "carillon:8002"}  # the port of this run says nothing
    return re.sub(r"{{(\w+)}}", lambda found: shown.get(found.group(1), ""), pattern)


def format_of(unit: str):
    """How values of a Grafana unit are written at an axis."""
    def size(value: float) -> str:
        for name in ("B", "KiB", "MiB", "GiB"):
            if abs(value) < 1024 or name == "GiB":
                return f"{value:.3g} {name}"
            value /= 1024
        raise AssertionError

    return {
        "s": lambda value: f"{value * 1e3:.3g} ms" if abs(value) < 1 else f"{value:.3g} s",
        "percentunit": lambda value: f"{value:.0%}",
        "bytes": size,
        "reqps": lambda value: f"{value:.3g}/s",
        "ops": lambda value: f"{value:.3g}/s",
    }.get(unit, lambda value: f"{value:.3g}")


def draw(panels: list[dict], found: dict[int, list[tuple[str, list, list]]], target: Path) -> None:
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels)
    figure = plt.figure(figsize=(14, rows * 0.3), facecolor="#f4f5f5")
    for panel in panels:
        place = panel["gridPos"]
        left, width = place["x"] / 24, place["w"] / 24
        bottom, height = 1 - (place["y"] + place["h"]) / rows, place["h"] / rows
        axes = figure.add_axes((left + 0.1 * width, bottom + 0.34 * height, 0.87 * width, 0.5 * height))
        for legend, times, values in found[panel["id"]]:
            axes.plot(times, values, linewidth=1.2, label=legend)
        axes.set_title(panel["title"], loc="left", fontsize=10, fontweight="bold")
        write = format_of(panel["fieldConfig"]["defaults"].get("unit", "short"))
        axes.yaxis.set_major_formatter(lambda value, _, write=write: write(value))
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0f} s")
        most = max(max(values) for _, _, values in found[panel["id"]])
        axes.set_ylim(0, 1.1 * most if most > 0 else 1)
        axes.tick_params(labelsize=8, length=0)
        axes.grid(color="#e3e3e5", linewidth=0.8)
        for side in axes.spines.values():
            side.set_visible(False)
        handles, names = axes.get_legend_handles_labels()
        axes.legend(handles[:8], names[:8], loc="upper left", bbox_to_anchor=(0, -0.16), ncols=2 if max(map(len, names)) > 20 else 4,
                    fontsize=7, frameon=False, borderaxespad=0)
    figure.savefig(target, dpi=70)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--minutes", type=float, default=3)
    options = parser.parse_args()
    target = options.file.resolve()
    third = options.minutes * 20
    program = Path(os.environ.get("CARILLON_PROGRAM", ROOT / "build/release/carillon"))
    panels = [panel for panel in json.loads(DASHBOARD.read_text())["panels"] if "targets" in panel]
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        write_models(folder / "models")
        profile = write_times(folder / "profile.json")
        os.chdir(folder)
        with serving(program, folder / "models", folder / "log", "--device", "emulated:profile.json*2", "--profile",
                     str(profile), "--emulated-faults", f"kill=1@{2 * third + third / 4:.0f}s+{third / 3:.0f}s",
                     page_cache="576 MiB") as server:
            scraper, address = prometheus(folder, server.metrics)
            try:
                begin = time.time()
                for times in (1, 2.5, 1.5):
                    loads = [arg for name, (_, _, slo, rate, _) in MODELS.items()
                             for arg in ("--model", f"{name},rate={times * max(rate, 0.5)},deadline={slo}")]
                    subprocess.run([str(program), "load", f"grpc://{server.grpc}", *loads, "--duration", str(third)],
                                   check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                end = time.time()
                found: dict[int, list[tuple[str, list, list]]] = {}
                for panel in panels:
                    lines = []
                    for asked in panel["targets"]:
                        for one in series_of(address, asked["expr"], begin + 10, end):
                            points = [(at - begin, float(value)) for at, value in one["values"]]
                            points = [(at, value) for at, value in points if math.isfinite(value)]
                            if points:
                                lines.append((legend_of(asked["legendFormat"], one["metric"]), *map(list, zip(*points))))
                    if not lines:
                        raise SystemExit(f"panel '{panel['title']}' has nothing to show")
                    found[panel["id"]] = lines
            finally:
                scraper.terminate()
                scraper.wait()
    target.parent.mkdir(parents=True, exist_ok=True)
    draw(panels, found, target)
    print(f"{target}: {len(panels)} panels, {sum(map(len, found.values()))} lines")


if __name__ == "__main__":
    main()
