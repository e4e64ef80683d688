#!/usr/bin/env python3
"""Writes scenarios/policy: workloads of kinds that a default policy must do well, drawn at random.

Each kind is written four times: two files in open/, by which a policy may be made, and two in held/, which nobody looks at
before its constants are fixed. The seed below was fixed, and the files written, before any policy was run on them.

index.json has for each file its kind and a bound: no policy can have more requests on time. Of each model at most the
requests that come; together at most those for which the devices have time, where each takes its share of the largest batch
that ends within its SLO by itself. The cheapest requests count first. The bound knows nothing of waiting, memory or faults
other than speeds, so it is often far above what is possible.

    python bench/make_policy.py                       the files in the tree
    python bench/make_policy.py --seed 2 --out /tmp/more
"""
import argparse
import json
import math
import pathlib
import random

ROOT = pathlib.Path(__file__).resolve().parents[1]
SEED, EACH = 1, 2  # files of a kind in each half
REQUESTS = 40_000  # about so many in a run
PAGE = 16 * 2**20


def log_uniform(draw, low, high):
    return math.exp(draw.uniform(math.log(low), math.log(high)))


class Model:
    """A kind of models, `copies` of them. Times in ms, rates of each copy in requests a second."""

    def __init__(self, draw, name, copies=1, one=(2, 12), slo=(4, 10), most=16, weights=(50, 400)):
        self.name, self.copies, self.most = name, copies, most
        time = log_uniform(draw, *one)
        self.beta = time * draw.uniform(0.3, 0.9)
        self.alpha = time - self.beta
        self.slo = self.longest = time * log_uniform(draw, *slo)
        self.weights = round(log_uniform(draw, *weights)) * 1_000_000
        self.rate = None
        self.extra = {}

    def one(self):
        return self.alpha + self.beta

    def batch(self, within):
        """The largest batch that takes so long at most."""
        return max(1, min(self.most, int((within - self.beta) / self.alpha)))

    def each(self, within=None):
        """Device time of a request, in ms, in batches of a third of the SLO."""
        size = self.batch(self.slo / 3 if within is None else within)
        return (self.alpha * size + self.beta) / size

    def pages(self):
        return math.ceil(self.weights / PAGE)

    def text(self, memory):
        keys = {"name": f'"{self.name}"', "copies": self.copies, "slo_ms": f"{self.slo:.4g}", "max_batch": self.most,
                "latency": f"{{ alpha_ms = {self.alpha:.4g}, beta_ms = {self.beta:.4g} }}"}
        if memory:
            keys["weights"] = self.weights
        if self.rate is not None:
            keys["rate"] = f"{self.rate:.4g}"
        keys.update(self.extra)
        if "steps" in keys:
            keys.pop("rate", None)
        return "[[models]]\n" + "".join(f"{key} = {value}\n" for key, value in keys.items() if value is not None)


class File:
    """A scenario. `load`: of what the devices can do in batches of a third of the SLO."""

    def __init__(self, draw, devices, models, load):
        self.draw, self.devices, self.models, self.load = draw, devices, models, load
        self.memory, self.pcie, self.speeds, self.faults = None, None, None, []
        self.process, self.warmup, self.duration = "poisson", 2, None
        self.shares = {}  # of the load's device time, by model's name; else equal shares for all copies

    def short_of_memory(self, times):
        """All models have so many times the devices' memory."""
        total = sum(m.copies * m.pages() for m in self.models)
        least = 2 * max(m.pages() for m in self.models)
        self.memory = max(least, math.ceil(total / times / self.devices)) * PAGE

    def capacity(self):
        return sum(self.speeds) if self.speeds else self.devices

    def settle(self):
        """Rates of all models, and how long it runs."""
        even = (1 - sum(self.shares.values())) / max(1, sum(m.copies for m in self.models if m.name not in self.shares))
        for m in self.models:
            if m.rate is None:
                share = self.shares[m.name] / m.copies if m.name in self.shares else even
                m.rate = 1000 * self.load * self.capacity() * share / m.each()
        total = sum(m.copies * m.rate for m in self.models)
        if self.duration is None:
            self.duration = round(min(120, max(20, REQUESTS / total)) + self.warmup)

    def mean_rate(self, m):
        steps = m.extra.get("steps")
        if steps is None:
            return m.copies * m.rate
        ends = [t for t, _ in steps[1:]] + [self.duration]
        return m.copies * sum(rate * (end - t) for (t, rate), end in zip(steps, ends, strict=True)) / self.duration

    def bound(self):
        time = 1000 * self.capacity() * (1 + max(m.longest for m in self.models) / 1000 / self.duration)
        served = asked = 0.0
        for m in sorted(self.models, key=lambda m: m.each(m.longest)):
            rate, each = self.mean_rate(m), m.each(m.longest)
            asked += rate
            if m.extra.get("slo_ms") == "inf":  # as long as it takes
                served += rate
                continue
            more = min(rate, max(0.0, time) / each)
            served += more
            time -= more * each
        return served / asked

    def text(self, name, note):
        out = f"# Written by bench/make_policy.py. {note}\n"
        out += f'name = "{name}"\nseed = 1\nduration_s = {self.duration}\nwarmup_s = {self.warmup}\n\n[cluster]\ndevices = {self.devices}\n'
        if self.memory:
            out += f"memory = {self.memory}\n"
        if self.pcie:
            out += f'pcie = "{self.pcie:.3g} GB/s"\n'
        if self.speeds:
            out += f"speeds = [{', '.join(f'{s:.3g}' for s in self.speeds)}]\n"
        out += f'\n[load]\nprocess = "{self.process}"\n\n' if self.process != "poisson" else "\n"
        for fault in self.faults:
            out += "[[faults]]\n" + "".join(f"{key} = {value}\n" for key, value in fault.items())
        return out + "".join(m.text(self.memory) for m in self.models)


def zoo(draw, count, kinds, **how):
    """So many models of so many kinds."""
    models = [Model(draw, "abcdefghijklmnopqrst"[i], **how) for i in range(kinds)]
    for _ in range(count - kinds):
        draw.choice(models).copies += 1
    return models


def by_zipf(draw, file, shape):
    """The copies become models of their own, with rates by a Zipf law."""
    models = []
    for m in file.models:
        for i in range(m.copies):
            other = Model.__new__(Model)
            other.__dict__.update(m.__dict__, name=f"{m.name}{i}", copies=1, extra=dict(m.extra))
            models.append(other)
    draw.shuffle(models)
    weights = [(rank + 1) ** -shape for rank in range(len(models))]
    file.models = models
    file.shares = {m.name: w / sum(weights) for m, w in zip(models, weights, strict=True)}


# --- Kinds. Each returns a file and what it is.

def scarce_zipf(draw):
    file = File(draw, 8, zoo(draw, 500, 8, slo=(6, 20)), draw.uniform(0.4, 0.9))
    file.short_of_memory(4)
    shape = draw.uniform(0.8, 1.3)
    by_zipf(draw, file, shape)
    return file, f"500 models of four times the memory, Zipf {shape:.2f}."


def shifting_set(draw):
    sets, period = draw.choice([4, 5, 6]), draw.choice([8, 10, 12])
    file = File(draw, 8, zoo(draw, 120, 6, slo=(8, 25)), draw.uniform(0.5, 1.0))
    file.short_of_memory(4)
    by_zipf(draw, file, 0.3)
    file.duration = sets * period
    file.settle()
    for i, m in enumerate(file.models):  # nine tenths of all requests are for the set of the period
        turn, rest = i % sets, m.rate * 0.1
        hot = m.rate * (0.9 * sets + 0.1)
        steps = [[t, round(hot if (t // period) % sets == turn else rest, 4)] for t in range(0, file.duration, period)]
        m.extra["steps"] = steps
    return file, f"120 models of four times the memory; each {period} s another {('fourth', 'fifth', 'sixth')[sets - 4]} of them is asked for."


def slow_bus(draw):
    file = File(draw, 6, zoo(draw, 150, 6, slo=(10, 30)), draw.uniform(0.4, 0.8))
    file.short_of_memory(3)
    by_zipf(draw, file, 1.0)
    file.pcie = log_uniform(draw, 1, 3)
    return file, f"150 models of three times the memory, over a bus of {file.pcie:.2g} GB/s."


def cold_start(draw):
    file = File(draw, 8, zoo(draw, 300, 8, slo=(6, 20)), draw.uniform(0.4, 0.8))
    file.short_of_memory(2)
    file.warmup = 0
    file.duration = 20
    return file, "300 models of twice the memory, and nothing is loaded when requests begin."


def diurnal(draw):
    file = File(draw, 8, zoo(draw, 24, 6), draw.uniform(0.6, 0.9))
    file.duration = 60
    file.settle()
    period, crowds = draw.choice([20, 30]), draw.sample(range(4, 56), 3)
    for i, m in enumerate(file.models):
        phase = draw.uniform(0, 0.3)
        steps = []
        for t in range(60):
            rate = m.rate * (1 + 0.7 * math.sin(2 * math.pi * (t / period + phase)))
            if any(c <= t < c + 2 for k, c in enumerate(crowds) if k % len(file.models) == i):
                rate *= 8
            steps.append([t, round(rate, 3)])
        m.extra["steps"] = steps
    return file, f"24 models whose rates swing by 70% each {period} s; three crowds of eight times a kind's rate."


def abuse(draw):
    file = File(draw, 4, [], draw.uniform(1.2, 2.0))
    modest, abusers = zoo(draw, 8, 4), [Model(draw, "abuser", copies=2)]
    for m in modest:
        m.name = "modest_" + m.name
    file.models = modest + abusers
    share = 0.4 / file.load  # two fifths of the devices for all modest tenants: below their max-min share
    each = share / sum(m.copies for m in modest)
    file.shares = {m.name: each * m.copies for m in modest} | {"abuser": 1 - share}
    return file, f"Eight modest models ask for 0.4 of the devices, two abusive ones for {file.load - 0.4:.2f}."


def long_beside_tight(draw):
    tight = Model(draw, "tight", copies=4, one=(2, 6), slo=(3, 5))
    long = Model(draw, "long", copies=2, one=(80, 250), slo=(8, 20), most=8)
    file = File(draw, draw.choice([4, 6, 8]), [tight, long], draw.uniform(0.5, 0.95))
    file.shares = {"tight": draw.uniform(0.3, 0.6)}
    return file, "Tight SLOs beside runs that take longer than those SLOs."


def two_devices(draw):
    quick = Model(draw, "quick", copies=3, one=(1, 3), slo=(5, 12))
    long = Model(draw, "long", one=(30, 80), slo=(6, 15), most=4)
    file = File(draw, 2, [quick, long], draw.uniform(0.4, 0.8))
    file.shares = {"quick": draw.uniform(0.3, 0.6)}
    return file, "Quick and long models on two devices."


def two_slos(draw):
    model = Model(draw, "m", one=(4, 12), slo=(2.5, 4))
    longer = model.slo * draw.uniform(4, 12)
    model.longest = longer
    model.extra["slo_ms"] = f"[{model.slo:.4g}, {longer:.4g}]"
    file = File(draw, draw.choice([1, 2, 4]), [model], draw.uniform(0.8, 1.4))
    return file, "Two SLOs in one queue."


def elephant(draw):
    file = File(draw, 8, [Model(draw, "elephant"), *zoo(draw, 60, 6)], draw.uniform(1.0, 1.5))
    file.shares = {"elephant": draw.uniform(0.7, 0.9)}
    return file, f"One model has {100 * file.shares['elephant']:.0f}% of the work, 60 others the rest."


def cron(draw):
    file = File(draw, 8, zoo(draw, 40, 6, slo=(5, 15)), draw.uniform(0.3, 0.6))
    file.duration = 40
    file.settle()
    every, burst = draw.choice([4, 5, 8]), draw.uniform(6, 15)
    for m in file.models:
        steps = []
        for t in range(0, 40, every):
            steps += [[t, round(m.rate * burst, 3)], [round(t + 0.2, 3), round(m.rate * (1 - 0.2 * burst / every) / (1 - 0.2 / every), 3)]]
        m.extra["steps"] = [[t, max(0.0, rate)] for t, rate in steps]
    return file, f"Each {every} s all models are asked for {burst:.0f} times as much for 0.2 s."


def pareto(draw):
    shape = draw.uniform(1.3, 2.2)
    heavy = Model(draw, "heavy", one=(3, 8), slo=(10, 25), most=8)
    least = heavy.one()
    quantiles = [0.25, 0.65, 0.85, 0.95, 0.985, 0.997]
    weights = [0.5, 0.3, 0.1, 0.07, 0.02, 0.01]
    modes = [(least * (1 - q) ** (-1 / shape), w) for q, w in zip(quantiles, weights, strict=True)]
    listed = ", ".join(f"{{ mean_ms = {ms:.4g}, std_ms = {ms / 20:.3g}, weight = {w} }}" for ms, w in modes)
    heavy.extra["latency"] = f"{{ c0_ms = 0.5, c1 = 0.6, modes = [{listed}] }}"
    heavy.beta, heavy.alpha = 0.5, 0.6 * sum(ms * w for ms, w in modes)  # a mean: a batch takes its longest
    tight = Model(draw, "tight", copies=3, one=(2, 5), slo=(4, 7))
    file = File(draw, 4, [heavy, tight], draw.uniform(0.4, 0.8))
    file.shares = {"heavy": draw.uniform(0.3, 0.6)}
    return file, f"Pareto times (shape {shape:.2f}) beside tight SLOs."


def unlike_speeds(draw):
    file = File(draw, 6, zoo(draw, 12, 5), draw.uniform(0.9, 1.3))
    file.speeds = [log_uniform(draw, 0.4, 4) for _ in range(6)]
    return file, "Devices of unlike speed."


def slow_spells(draw):
    file = File(draw, 6, zoo(draw, 12, 5), draw.uniform(0.6, 0.9))
    file.duration = 40
    file.faults = [{"device": i, "at_s": round(draw.uniform(5, 30), 2), "kind": '"slow"', "for_s": round(draw.uniform(2, 6), 2),
                    "factor": round(draw.uniform(2, 6), 2)} for i in draw.sample(range(6), 3)]
    return file, "Three of six devices are slow for some seconds."


def outliers(draw):
    file = File(draw, 6, zoo(draw, 12, 5), draw.uniform(0.4, 0.6))
    for m in file.models:
        m.extra["outliers"] = "{ share = 0.02, factor = 10 }"
    return file, "Two of a hundred batches take ten times as long."


def deaths(draw):
    file = File(draw, 6, zoo(draw, 12, 5), draw.uniform(0.6, 0.9))
    file.duration = 40
    file.faults = [{"device": i, "at_s": round(draw.uniform(5, 30), 2), "kind": draw.choice(['"die"', '"hang"']),
                    "for_s": round(draw.uniform(1, 6), 2)} for i in draw.sample(range(6), 3)]
    return file, "Three of six devices die or hang for some seconds."


def flood(draw):
    urgent = Model(draw, "urgent", copies=2, one=(1, 4), slo=(6, 12), most=1)
    urgent.extra["class"] = '"real-time"'
    best = Model(draw, "best", copies=2, one=(5, 30), slo=(50, 100))
    best.extra |= {"class": '"best-effort"', "slo_ms": "inf"}
    file = File(draw, 4, [urgent, *zoo(draw, 6, 3, slo=(6, 12)), best], draw.uniform(1.2, 2.5))
    rest = draw.uniform(0.5, 0.85) / file.load
    file.shares = {"urgent": 0.15 / file.load, "best": 1 - rest - 0.15 / file.load}
    file.process = "poisson"
    return file, "Real-time and normal requests beside a flood of best effort."


def thousand(draw):
    file = File(draw, 100, zoo(draw, 1000, 10, slo=(6, 20)), draw.uniform(0.3, 0.7))
    file.short_of_memory(draw.uniform(0.2, 2))
    file.warmup = 0
    file.duration = 10
    return file, "1,000 models on 100 devices, from empty."


KINDS = [scarce_zipf, shifting_set, slow_bus, cold_start, diurnal, abuse, long_beside_tight, two_devices, two_slos, elephant, cron,
         pareto, unlike_speeds, slow_spells, outliers, deaths, flood, thousand]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "scenarios/policy")
    arguments = parser.parse_args()
    index = {}
    for kind in KINDS:
        for half, first in (("open", 1), ("held", 1 + EACH)):
            for number in range(first, first + EACH):
                draw = random.Random(f"{arguments.seed} {kind.__name__} {number}")
                file, note = kind(draw)
                file.settle()
                name = f"{kind.__name__}_{number}"
                path = arguments.out / half / f"{name}.toml"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(file.text(name, note))
                index[f"{half}/{name}"] = {"kind": kind.__name__, "bound": round(file.bound(), 4)}
    (arguments.out / "index.json").write_text(json.dumps(index, indent=1) + "\n")


if __name__ == "__main__":
    main()
