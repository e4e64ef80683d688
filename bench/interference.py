#!/usr/bin/env python3
"""iGniter's interference model against its authors' measurements: writes bench/measured/interference.md and docs/img/interference.png.

Fits the coefficients with `carillon profile --fit` to the published samples, as they are and with noise, and holds the
predictions against the 750 published co-located pairs, which no fit sees. The model's equations are written down here once more,
apart from the program, and the two must agree.

    python bench/interference.py            about a minute
    python bench/interference.py --quick    fewer seeds, for a look
"""
import argparse
import copy
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = os.environ.get("CARILLON_PROGRAM", str(ROOT / "build/release/carillon"))
DATA = ROOT / "profiles/igniter"
METHODS = ("igniter", "robust")
# Relative noise of all readings, and how many solo times of each model are made 1.6 to 3 times as long, or short.
NOISES = ((0.02, 0), (0.05, 0), (0, 1), (0.02, 1), (0.05, 1))


def fit(samples, method):
    """The command's --json, or None where it finds no fit."""
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "samples.json"
        file.write_text(json.dumps(samples))
        files = [f"--fit={f}" for f in (file, DATA / "workloads.json", DATA / "v100.json")]
        run = subprocess.run([PROGRAM, "profile", *files, "--method", method, "--json"], capture_output=True, text=True)
    if run.returncode != 0 and "plain least squares give" not in run.stderr:
        sys.exit(run.stderr)
    return json.loads(run.stdout) if run.returncode == 0 else None


def latencies(models, hardware, residents):
    """Equations 1 to 11, in ms, of (model, batch, share)."""
    alone = []
    for name, batch, share in residents:
        c = models[name]["coefficients"]
        active = (c["k1"] * batch**2 + c["k2"] * batch + c["k3"]) / (share + c["k4"]) + c["k5"]
        ability = 1000 * batch / active
        alone.append((active, c["alpha_power_W_per_rps"] * ability + c["beta_power_W"],
                      c["alpha_cacheutil_pct_per_rps"] * ability + c["beta_cacheutil_pct"]))
    h = hardware["hardware_coefficients"]
    above = h["p_idle_W"] + sum(power for _, power, _ in alone) - h["P_max_power_W"]
    slow = 1 if above <= 0 else 1 + h["alpha_f_MHz_per_W"] * above / h["F_max_frequency_MHz"]
    count = len(residents)
    delay = h["alpha_sch_ms_per_kernel_per_workload"] * count + h["beta_sch_ms_per_kernel"] if count > 1 else 0
    cache = sum(use for _, _, use in alone)
    out = []
    for (name, batch, _), (active, _, use) in zip(residents, alone):
        c = models[name]["coefficients"]
        gpu = c["k_sch_times_n_kernels_ms"] + delay * c["n_kernels"] + active * (1 + c["alpha_cache_per_pct"] * (cache - use))
        out.append((c["d_load_bytes"] + c["d_feedback_bytes"]) * batch / h["B_pcie_bytes_per_ms"] + gpu / slow)
    return out


def pairs(models, hardware, samples):
    """(model, other, measured, predicted)"""
    out = []
    for run in samples["pair_samples"]:
        predicted = latencies(models, hardware, list(zip(run["models"], run["batches"], run["r_pct"])))
        for i, name in enumerate(run["models"]):
            out.append((name, run["models"][1 - i], run["latency_ms"][i], predicted[i]))
    return out


def errors(rows):
    return [100 * abs(predicted / measured - 1) for _, _, measured, predicted in rows]


def summary(rows):
    values = sorted(errors(rows))
    return {"mean": statistics.mean(values), "median": values[-(-len(values) // 2) - 1],
            "p95": values[-(-len(values) * 95 // 100) - 1], "max": values[-1]}


def alike(ours, ours_on, theirs, theirs_on):
    """Differences in percent of the latencies that two sets of coefficients predict: alone, in pairs and threes."""
    names = sorted(theirs)
    sets = [[n] for n in names] + [[a, b] for a in names for b in names if a < b] + [[n for n in names if n != out] for out in names]
    out = []
    for chosen in sets:
        for batch in (1, 2, 4, 8, 16, 24, 32):
            for share in (10, 20, 30, 50, 80, 100):
                if share * len(chosen) > 100:
                    continue
                residents = [(n, batch, share) for n in chosen]
                out += [100 * abs(a / b - 1) for a, b in
                        zip(latencies(ours, ours_on, residents), latencies(theirs, theirs_on, residents))]
    return out


def noisy(samples, noise, wild, seed):
    rng = random.Random(seed)
    out = copy.deepcopy(samples)
    for model in out["fit_samples"].values():
        for sample in model["grid"]:
            for key in ("gpu_latency_ms", "power_W"):
                sample[key] *= 1 + noise * rng.gauss(0, 1)
        for sample in model["l2_utilization"]:
            sample["l2_pct"] *= 1 + noise * rng.gauss(0, 1)
        for sample in rng.sample(model["grid"], wild):
            sample["gpu_latency_ms"] *= rng.uniform(1.6, 3) ** rng.choice((-1, 1))
    return out


def under_noise(samples, seeds):
    rows = []
    for noise, wild in NOISES:
        for method in METHODS:
            means = []
            for seed in range(seeds):
                fitted = fit(noisy(samples, noise, wild, seed), method)
                if fitted:
                    means.append(fitted["checks"]["mean_error_pct"])
            rows.append((noise, wild, method, statistics.median(means), max(means), f"{len(means)} of {seeds}"))
            print(rows[-1], file=sys.stderr)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--no-write", action="store_true", help="print a summary and write nothing")
    args = parser.parse_args()
    samples = json.loads((DATA / "profile_samples.json").read_text())
    stored, v100 = (json.loads((DATA / f).read_text()) for f in ("workloads.json", "v100.json"))
    fits = {method: fit(samples, method) for method in METHODS}
    rows = {"stored": pairs(stored["models"], v100, samples)}
    for method, fitted in fits.items():
        rows[method] = pairs(fitted["coefficients"]["models"], fitted["hardware"], samples)
        told, found = fitted["checks"], summary(rows[method])
        assert all(abs(told[f"{k}_error_pct"] - v) < 1e-6 for k, v in found.items()), (told, found)
    alikes = {m: alike(f["coefficients"]["models"], f["hardware"], stored["models"], v100) for m, f in fits.items()}
    noise = under_noise(samples, 3 if args.quick else 20)
    print("furthest off:", sorted(rows["robust"], key=lambda r: -abs(r[3] / r[2] - 1))[:8])
    for name, each in rows.items():
        print(name, {k: round(v, 2) for k, v in summary(each).items()})
    for method, each in alikes.items():
        print(method, "against the stored coefficients' predictions: mean", round(statistics.mean(each), 4), "max", round(max(each), 4))
    if not args.no_write:
        write(samples, fits, rows, alikes, noise)


def solo_errors(fitted, method):
    out = []
    for name, model in fitted["coefficients"]["models"].items():
        f = model["fit"]
        out.append(f"| {name} | {method} | " + " | ".join(
            f"{f[q]['mean_error_pct']:.2f} / {f[q]['max_error_pct']:.2f}" for q in ("time", "power", "cache", "growth")) +
            f" | {f['time']['r2']:.5f} | {f['power']['r2']:.4f} | {f['cache']['r2']:.4f} |\n")
    return "".join(out)


def write(samples, fits, rows, alikes, noise):
    text = (ROOT / "bench/measured/interference.md").read_text()
    begin, end = "<!-- figures -->\n", "<!-- end of figures -->\n"
    head, tail = text[:text.index(begin) + len(begin)], text[text.index(end):]
    out = ["""
Errors in percent of the 750 pairs' 1,500 measured latencies; no fit sees the pairs:

| coefficients | mean | median | P95 | max | predicted latencies against the published coefficients': mean | max |
|---|---|---|---|---|---|---|
"""]
    for name, each in rows.items():
        s = summary(each)
        label = "as published" if name == "stored" else f"`--method {name}`"
        difference = "" if name == "stored" else f"{statistics.mean(alikes[name]):.4f} | {max(alikes[name]):.4f}"
        out.append(f"| {label} | {s['mean']:.2f} | {s['median']:.2f} | {s['p95']:.2f} | {s['max']:.2f} | {difference or '- | -'} |\n")
    names = list(samples["fit_samples"])
    out.append("\nMean error of the row's model beside the column's, robust (and as published):\n\n| | " + " | ".join(names) + " |\n|" + "---|" * (len(names) + 1) + "\n")
    mean = {}
    for source in ("robust", "stored"):
        for a in names:
            for b in names:
                of = [r for r in rows[source] if r[0] == a and r[1] == b]
                mean[source, a, b] = statistics.mean(errors(of)) if of else None
    for a in names:
        out.append(f"| {a} | " + " | ".join("-" if mean["robust", a, b] is None else f"{mean['robust', a, b]:.2f} ({mean['stored', a, b]:.2f})" for b in names) + " |\n")
    out.append("""
![Predicted against measured latencies, and mean errors by pair](../../docs/img/interference.png)

What the fits make of their own samples, mean and largest error in percent:

| model | method | time | power | cache | growth | R2 of time | of power | of cache |
|---|---|---|---|---|---|---|---|---|
""")
    for method in METHODS:
        out.append(solo_errors(fits[method], method))
    out.append("""
With seeded noise on the published samples (times, power and cache use; the wild samples are times of each model), the mean error over the pairs; plain least squares do not always give every sample a time:

| noise | wild samples a model | method | median of seeds | worst seed | seeds with a fit |
|---|---|---|---|---|---|
""")
    for level, wild, method, middle, worst, of in noise:
        out.append(f"| {100 * level:g}% | {wild} | {method} | {middle:.2f} | {worst:.2f} | {of} |\n")
    (ROOT / "bench/measured/interference.md").write_text(head + "".join(out) + "\n" + tail)

    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    figure, (scatter, heat) = plt.subplots(1, 2, figsize=(12, 5.2))
    for name in names:
        of = [r for r in rows["robust"] if r[0] == name]
        scatter.plot([r[2] for r in of], [r[3] for r in of], ".", markersize=3, label=name)
    ends = [min(r[2] for r in rows["robust"]), max(r[2] for r in rows["robust"])]
    scatter.plot(ends, ends, "k-", linewidth=0.8)
    scatter.plot(ends, [1.1 * e for e in ends], "k:", linewidth=0.8, label="10% off")
    scatter.plot(ends, [0.9 * e for e in ends], "k:", linewidth=0.8)
    scatter.set(xscale="log", yscale="log", xlabel="measured latency, ms", ylabel="predicted, ms")
    scatter.legend()
    image = heat.imshow([[mean["robust", a, b] if mean["robust", a, b] is not None else float("nan") for b in names] for a in names],
                        cmap="YlOrRd", vmin=0)
    for i, a in enumerate(names):
        for j, b in enumerate(names):
            if mean["robust", a, b] is not None:
                heat.text(j, i, f"{mean['robust', a, b]:.1f}%", ha="center", va="center")
    heat.set_xticks(range(len(names)), [f"beside {n}" for n in names], rotation=20)
    heat.set_yticks(range(len(names)), names)
    heat.set_title("mean error")
    figure.colorbar(image, ax=heat, label="%")
    figure.tight_layout()
    figure.savefig(ROOT / "docs/img/interference.png", dpi=80)


if __name__ == "__main__":
    main()
