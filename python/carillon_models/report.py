"""What came of a check, as a page."""

from __future__ import annotations

import collections
import json
import re
import statistics
from pathlib import Path

STATES = ("right", "wrong", "refused", "does not load", "no reference")


def state(record: dict) -> str:
    """One of STATES."""
    if record["cause"] in ("onnxruntime", "the check itself"):
        return "no reference"
    if not record["loads"]:
        return "does not load"
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


def write(folder: Path, command: str) -> str:
    store = folder / "results.json"
    results = json.loads(store.read_text()) if store.exists() else {}
    failed = {f.stem: (f.read_text().splitlines() or [""])[0] for f in sorted(folder.glob("*.failed"))}
    unchecked = sorted({f.stem for f in folder.glob("*.onnx") if not f.name.endswith(".tmp.onnx")} - set(results))
    return page(results, failed, unchecked, command)


def page(results: dict[str, dict], failed: dict[str, str], unchecked: list[str], command: str) -> str:
    counts = collections.Counter(state(r) for r in results.values())
    compared = sum(counts[s] for s in STATES[:4])
    out = ["# Models that people export\n",
           f"Written by `{command}`; bench/models.py makes the files and checks them.\n",
           "Small files with random weights, served without a config at three sizes each (batch, length, height and width), "
           "beside onnxruntime. Right means: floats within 1e-4 of the output's largest value, whole numbers equal; of "
           "quantised files within a step of the output, and as much again as onnxruntime differs from itself without "
           "its optimisations.\n"]
    if compared:
        out.append(f"**{counts['right']} of {compared} files are served and right "
                   f"({100 * counts['right'] / compared:.0f}%)**, of "
                   f"{len({r['architecture'] for r in results.values()})} architectures. "
                   f"{len(failed)} more could not be exported" + (f", {len(unchecked)} are not checked yet" if unchecked else "")
                   + ".\n")
    fewer = sorted(name for name, r in results.items() if r.get("right") and r.get("sizes_that_onnxruntime_refuses"))
    if fewer:
        out.append(f"Of {len(fewer)} of the right ones onnxruntime itself refuses some of the sizes, which the exporter has "
                   f"fixed; these were compared at the others: {', '.join(fewer)}.\n")
    for what in ("way", "family"):
        groups = collections.defaultdict(collections.Counter)
        for record in results.values():
            groups[record[what]][state(record)] += 1
        out.append(f"## By {what}\n")
        out.append(table([what, "files", *STATES], [[name, sum(c.values()), *(c[s] for s in STATES)]
                                                    for name, c in sorted(groups.items())]))
    engines = collections.Counter(r["engine"] for r in results.values() if r["loads"])
    if engines:
        out.append("Engines of those that load: " + ", ".join(f"{name} {count}" for name, count in engines.most_common()) + ".\n")
    ratios = sorted((r["ratio"], name) for name, r in results.items() if r.get("right") and r.get("ratio"))
    if ratios:
        values = [ratio for ratio, _ in ratios]
        out.append("## Time\n")
        out.append(f"A request's time in the engine beside onnxruntime's in the same run (medians of alternating runs, the same "
                   f"threads): median {statistics.median(values):.2f}, from {values[0]:.2f} ({ratios[0][1]}) to {values[-1]:.2f} "
                   f"({ratios[-1][1]}). {sum(v <= 1 for v in values)} of {len(values)} take no longer. Not a contest: ours is the "
                   "server's statistic of the engine alone, onnxruntime's that of a call from Python with its overhead, and "
                   "these models are tiny, so what a call and a kernel cost to start counts for more than it would.\n")
    reasons = collections.defaultdict(list)
    for name, record in results.items():
        if state(record) != "right":
            reasons[(state(record), kind_of(record["reason"]))].append(name)
    if reasons:
        out.append("## Why not, the most frequent first\n")
        ordered = sorted(reasons.items(), key=lambda item: (-len(item[1]), item[0]))
        out.append(table(["files", "what", "reason", "such as"],
                         [[len(names), what, reason, ", ".join(sorted(names)[:3])] for (what, reason), names in ordered]))
    out.append("## All files\n")
    rows = []
    for name, r in sorted(results.items()):
        timed = r.get("right") and r.get("ratio")
        rows.append([name, state(r), r.get("engine", ""), f"{r['difference']:.1e}" if r["loads"] and r["difference"] is not None else "",
                     f"{r['ours_ms']:.2f}" if timed else "", f"{r['onnxruntime_ms']:.2f}" if timed else "",
                     f"{r['ratio']:.2f}" if timed else "", r["reason"][:160]])
    out.append(table(["file", "", "engine", "difference", "ms", "onnxruntime ms", "ratio", "reason"], rows))
    if failed:
        out.append("## Not exported\n\nThe exporter's own reasons.\n")
        out.append(table(["file", "reason"], [[name, reason[:160]] for name, reason in failed.items()]))
    return "\n".join(out)
