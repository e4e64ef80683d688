"""The Grafana dashboard and the alert rules speak of metrics that a server has."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time

import pytest

from loopback import ROOT, serving

PACKAGING = ROOT / "packaging"
METRIC = re.compile(r"\b(?:carillon|nv|process)_[a-z0-9_]+")


def metrics_of_dashboard() -> set[str]:
    dashboard = json.loads((PACKAGING / "grafana/carillon.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    queries += [variable["query"] for variable in dashboard["templating"]["list"]]
    return {name for query in queries for name in METRIC.findall(query)}


def metrics_of_alerts() -> set[str]:
    return set(METRIC.findall((PACKAGING / "prometheus/alerts.yml").read_text()))


def test_every_metric_is_there(program, tiny_models, tmp_path):
    models = shutil.copytree(tiny_models, tmp_path / "models")
    config = models / "tiny_mlp" / "config.pbtxt"
    text = config.read_text() if config.exists() else 'name: "tiny_mlp"\n'
    if "slo_ms" not in text:  # only models with an SLO have that metric
        config.write_text(text + '\nparameters { key: "slo_ms" value { string_value: "1000" } }\n')
    with serving(program, models, tmp_path / "log", "--empty-histograms", "--access-log", str(tmp_path / "access.log")) as server:
        while "\nnv_cpu_utilization " not in server.scrape():  # is of the time since the last look
            time.sleep(0.05)
        there = set(re.findall(r"^([a-z0-9_]+)", server.scrape(), re.M))
    # tests/hosts/test_metrics.py has those of clusters.
    of_clusters = {name for name in metrics_of_alerts() if name.startswith("carillon_cluster_")}
    for names in (metrics_of_dashboard(), metrics_of_alerts() - of_clusters):
        assert len(names) > 3
        assert not names - there, "named in packaging/, but not in /metrics"


def test_alerts_fire_when_they_should():
    promtool = os.environ.get("PROMTOOL") or shutil.which("promtool", path=f"{ROOT}/.clients/bin") or shutil.which("promtool")
    if promtool is None:
        pytest.skip("no promtool: tools/setup --with-clients installs it (or name one in PROMTOOL)")
    for arguments in (["check", "rules", "alerts.yml"], ["test", "rules", "alerts_test.yml"]):
        ran = subprocess.run([promtool, *arguments], cwd=PACKAGING / "prometheus", capture_output=True, text=True,
                             timeout=60)
        assert ran.returncode == 0, ran.stdout + ran.stderr
