"""Orloj's figure 4.14 in the simulator, for bench/orloj.py --short: the three-modal workload, its times scaled down until
the scheduler's own time shows. Each decision delays what follows by what it took of this machine's CPU, or by a fixed time.
"""
import json
import pathlib
import subprocess
import sys

import make_orloj

P99_MS = (100, 50, 20, 10, 5, 2, 1, 0.5, 0.2, 0.1, 0.05)
SLOS = ("1.5", "2", "3", "5")
CHARGES = ("0", "measured", "20", "200")
SECONDS = 120


def measure(program, folder, pool, traces, load):
    """[{p99_ms, slo, charge, finish_rate, decisions}], where decisions are measured with their times."""
    case = "three-modal"
    p99 = make_orloj.mean_and_p99(make_orloj.modes_of(case))[1]

    def run(target, slo, charge):
        file = pathlib.Path(folder) / f"short_{target:g}.toml"
        # So that each run has about as many requests, as far as minutes go.
        seconds = 1800 if target >= 20 else 600 if target >= 5 else SECONDS if target >= 1 else 60
        command = [program, "simulate", str(file), "--slo-p99", slo, "--decision-us", charge, "--duration", str(seconds), "--json"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(done.stderr)
        told = json.loads(done.stdout)
        return {"p99_ms": target, "slo": slo, "charge": charge, "finish_rate": told["finish_rate"], "decisions": told.get("decisions")}

    for target in P99_MS:
        text = make_orloj.text_of("C.2", case, 0.4, load, target / p99, traces)
        (pathlib.Path(folder) / f"short_{target:g}.toml").write_text(text)
    jobs = [pool.submit(run, target, slo, charge) for target in P99_MS for slo in SLOS for charge in CHARGES]
    return [job.result() for job in jobs]


def breaks_at(rows, slo, charge):
    """The largest P99 at which the finish rate is more than 0.01 below that with free decisions; None where it never is."""
    def rates(of):
        return {r["p99_ms"]: r["finish_rate"] for r in rows if r["slo"] == slo and r["charge"] == of}
    free, charged = rates("0"), rates(charge)
    return next((p for p in P99_MS if charged[p] < free[p] - 0.01), None)


def section(rows, image):
    """The document's part on it; draws `image`."""
    by = {(r["p99_ms"], r["slo"], r["charge"]): r for r in rows}
    lines = ["""
## Short requests (figure 4.14)

The three-modal workload with all its times scaled down, and decisions charged to virtual time (`carillon simulate --decision-us`): the scheduler hears one event after another, and what it decides is on its way when the decision is done. With `measured`, each takes what it took of this machine's CPU, the making of distributions twice a second included; 20 and 200 are fixed microseconds for each decision. Network, frontends and kernels' launches are not charged, which the paper's testbed had, so that only the scheduler's part is shown. Shorter times are run for fewer minutes of the trace. Finish rates:

| P99 (ms) | SLO (x P99) | free | measured | 20 us | 200 us | a decision, mean (us) | P99 (us) | longest (us) |
|---|---|---|---|---|---|---|---|---|
"""]
    for p in P99_MS:
        for slo in ("1.5", "3", "5"):
            cells = " | ".join(f"{by[p, slo, c]['finish_rate']:.3f}" for c in CHARGES)
            d = by[p, slo, "measured"]["decisions"]
            lines.append(f"| {p:g} | {slo} | {cells} | {d['mean_us']:.1f} | {d['p99_us']:.1f} | {d['max_us']:.0f} |\n")

    def told(charge):
        found = [breaks_at(rows, slo, charge) for slo in SLOS]
        at = max((p for p in found if p is not None), default=None)
        return f"nowhere down to {P99_MS[-1]:g} ms" if at is None else f"from {at:g} ms down"

    lines.append(f"""
The paper's finish rate falls when the P99 nears 20 ms. Here it is more than 0.01 below what free decisions give, at any of the SLOs: with measured decisions {told('measured')}; at 20 us a decision {told('20')}; at 200 us {told('200')}.

![Finish rate by the P99 of the times](../../docs/img/{image.name})
""")
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    figure, axes = plt.subplots(1, 3, figsize=(12, 3.6), sharey=True)
    for axis, (charge, title) in zip(axes, (("measured", "decisions as measured"), ("20", "20 us a decision"), ("200", "200 us a decision"))):
        for slo in SLOS:
            axis.plot(P99_MS, [by[p, slo, charge]["finish_rate"] for p in P99_MS], marker=".", label=f"{slo} x P99")
        axis.axvline(20, color="gray", linestyle=":")
        axis.set_xscale("log")
        axis.set_ylim(0, 1.03)
        axis.set_title(title, fontsize=9)
        axis.set_xlabel("P99 (ms); dotted: the paper's fall")
    axes[0].legend(fontsize=8)
    axes[0].set_ylabel("finish rate")
    figure.tight_layout()
    figure.savefig(image, dpi=70)
    return "".join(lines)
