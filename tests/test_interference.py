"""profile --fit, and that plan reads what it writes."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

DATA = Path(__file__).resolve().parent.parent / "profiles/igniter"
FILES = [f"--fit={DATA / name}" for name in ("profile_samples.json", "workloads.json", "v100.json")]


def run(*command, status=0):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=300)
    assert done.returncode == status, f"{command}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


@pytest.mark.parametrize("method, mean", [("igniter", 3.67), ("robust", 3.43)])
def test_fits_the_published_samples(program, method, mean):
    fit = json.loads(run(program, "profile", *FILES, "--method", method, "--json").stdout)
    assert fit["checks"]["samples"] == 1500
    assert fit["checks"]["mean_error_pct"] < mean
    stored = json.loads((DATA / "workloads.json").read_text())["models"]
    if method == "igniter":
        for name, model in stored.items():
            for key in ("k2", "alpha_power_W_per_rps", "alpha_cache_per_pct"):
                assert fit["coefficients"]["models"][name]["coefficients"][key] == \
                    pytest.approx(model["coefficients"][key], rel=1e-3)
    for model in fit["coefficients"]["models"].values():
        assert model["fit"]["time"]["samples"] == 9 and model["fit"]["time"]["r2"] > 0.99


def test_plan_reads_the_files(program, tmp_path):
    coefficients, hardware = tmp_path / "models.json", tmp_path / "device.json"
    told = run(program, "profile", *FILES, "--method", "igniter", "--out-coefficients", coefficients,
               "--out-hardware", hardware)
    assert "alexnet + ssd" in told.stdout
    plans = [json.loads(run(program, "plan", DATA / "table3.json", "--strategy", "igniter", "--coefficients", c,
                            "--hardware", h, "--json").stdout)
             for c, h in ((coefficients, hardware), (DATA / "workloads.json", DATA / "v100.json"))]
    assert plans[0]["device_count"] == plans[1]["device_count"] == 6
    shares = [[[w["share_pct"] for w in d["workloads"]] for d in p["devices"]] for p in plans]
    assert shares[0] == shares[1]


def test_says_what_is_wrong(program, tmp_path):
    run(program, "profile", status=2)
    run(program, "profile", "--models", tmp_path, "--out-coefficients", tmp_path / "c.json", status=2)
    assert "no file of measurements" in run(program, "profile", "--fit", DATA / "table1.json", status=2).stderr
    samples = json.loads((DATA / "profile_samples.json").read_text())
    samples["fit_samples"]["ssd"]["grid"][2]["gpu_latency_ms"] = -1
    wrong = tmp_path / "wrong.json"
    wrong.write_text(json.dumps(samples))
    told = run(program, "profile", "--fit", wrong, status=2).stderr
    assert f"{wrong}: fit_samples.ssd.grid[2].gpu_latency_ms: is -1" in told
    # A wild sample is named and left out; the paper's least squares go with it.
    samples["fit_samples"]["ssd"]["grid"][2]["gpu_latency_ms"] = 45
    wrong.write_text(json.dumps(samples))
    fit = json.loads(run(program, "profile", "--fit", wrong, *FILES[1:], "--json").stdout)
    (outlier,) = fit["coefficients"]["models"]["ssd"]["fit"]["time"]["outliers"]
    assert outlier.startswith("batch 1, share 100%: 45 ms")


def test_measures_models_together_on_this_machine(program, tiny_models, tmp_path):
    """What comes out is looked at, not how long things took: the machine may be busy."""
    measurements, coefficients, hardware = (tmp_path / f for f in ("measured.json", "models.json", "device.json"))
    caches = ("--page-cache", "64 MiB", "--io-cache", "32 MiB", "--workspace", "64 MiB")
    fit = json.loads(run(program, "profile", "--models", tiny_models, "--only", "tiny_cnn", "--interference", "--together", 2,
                         "--max-batch", 4, "--price", 0.5, *caches, "--out-measurements", measurements,
                         "--out-coefficients", coefficients, "--out-hardware", hardware, "--json").stdout)
    measured = json.loads(measurements.read_text())
    assert measured["format"] == "carillon-interference-1"
    model = measured["models"]["tiny_cnn"]
    assert len(model["solo"]) == 11 and model["n_kernels"] > 1 and model["d_load_bytes"] > 0
    assert all(sample["gpu_latency_ms"] > 0 for sample in model["solo"])
    assert len(measured["colocated"][0]["members"]) == 2 and len(measured["checks"]) == 1
    assert fit["checks"]["samples"] == 2
    assert json.loads(hardware.read_text())["price_usd_per_hour"] == 0.5
    # The measurements are what --fit reads, and it comes to the same.
    again = json.loads(run(program, "profile", "--fit", measurements, "--json").stdout)
    assert again["coefficients"] == fit["coefficients"] and again["hardware"] == fit["hardware"]
    told = run(program, "profile", "--models", tiny_models, "--interference", "--device", "emulated:x", status=2)
    assert "--interference measures on --device cpu" in told.stderr
    run(program, "profile", "--models", tiny_models, "--together", 2, status=2)
