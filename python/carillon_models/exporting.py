"""Architectures in, ONNX files out, each made in a child of its own that may fail, hang or crash."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import time
import traceback
import warnings
import zlib
from pathlib import Path

from .arrays import make_inputs
from .catalogue import File

OPSET = {"torchscript": 17, "dynamo": 18}


def seed_of(name: str) -> int:
    return zlib.crc32(name.encode())


def export_all(files: list[File], folder: Path, limit: float, say=print) -> dict[str, int]:
    """Makes what is missing; a failure leaves NAME.failed with its reason, and is not tried again."""
    folder.mkdir(parents=True, exist_ok=True)
    warm_up(files)
    counts = {"made": 0, "there": 0, "failed": 0}
    for number, file in enumerate(files, 1):
        onnx_file, failed = folder / f"{file.name}.onnx", folder / f"{file.name}.failed"
        if onnx_file.exists() or failed.exists():
            counts["there"] += 1
            continue
        before = time.monotonic()
        reason = in_a_child(lambda: export(file, folder), folder / f"{file.name}.partial", limit)
        if reason is None and not onnx_file.exists():
            reason = "nothing was written"
        if reason:
            failed.write_text(reason + "\n")
        counts["failed" if reason else "made"] += 1
        say(f"{number}/{len(files)} {file.name}: {(reason or 'made').splitlines()[0][:150]} "
            f"({time.monotonic() - before:.0f} s)")
    return counts


def warm_up(files: list[File]) -> None:
    """Imports once what every child would import for itself."""
    for library in ("OMP", "OPENBLAS", "MKL"):  # threads of a pool do not come along to a child that waits for them
        os.environ[f"{library}_NUM_THREADS"] = "1"
    ways = {f.way for f in files}
    if ways != {"skl2onnx"}:
        import onnxscript  # noqa: F401
        import torch
        import transformers
        transformers.logging.set_verbosity_error()
        torch.set_num_threads(1)
    import onnx  # noqa: F401


def in_a_child(work, partial: Path, limit: float) -> str | None:
    """None: done. Else the reason why it is not: what went wrong, then where."""
    partial.unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.setpgid(0, 0)
            quiet = os.open(os.devnull, os.O_WRONLY)
            os.dup2(quiet, 1)
            os.dup2(quiet, 2)
            work()
            status = 0
        except BaseException as error:  # whatever an exporter throws is its result
            text = re.sub(r"\x1b\[[\d;]*m", "", str(error)).strip() or type(error).__name__
            # torch's exporter tells what to do about it first.
            if "## Exception summary" in text:
                text = " ".join(text.split("## Exception summary", 1)[1].split())
            partial.write_text(f"{type(error).__name__}: {text}\n\n{traceback.format_exc()[-4000:]}")
        finally:
            os._exit(status)
    end = time.monotonic() + limit
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        if time.monotonic() > end:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            partial.unlink(missing_ok=True)
            return f"not done in {limit:.0f} s"
        time.sleep(0.05)
    reason = None
    if os.WIFSIGNALED(status):
        reason = f"ended by {signal.Signals(os.WTERMSIG(status)).name}"
    elif os.WEXITSTATUS(status):
        reason = partial.read_text().strip() if partial.exists() else f"ended with {os.WEXITSTATUS(status)}"
    partial.unlink(missing_ok=True)
    return reason


def export(file: File, folder: Path) -> None:
    import onnx
    a = file.architecture
    warnings.simplefilter("ignore")
    before = time.monotonic()
    work = folder / f"{file.name}.tmp.onnx"
    try:
        if file.way == "skl2onnx":
            onnx.save(from_sklearn(a), work)
        elif file.way in OPSET:
            from_torch(a, work, file.way)
        else:
            base = folder / f"{a.name}.torchscript.onnx"
            if not base.exists():
                raise RuntimeError(f"there is no {base.name} to quantise")
            quantise(a, base, work, file.way)
        model = onnx.load(work)
        if file.way in OPSET and a.after:
            model = a.after(model)
        onnx.save(model, work)  # in one file, whatever the exporter did
        (folder / f"{file.name}.json").write_text(json.dumps({
            "architecture": a.name, "family": a.family, "way": file.way,
            "opset": {o.domain or "ai.onnx": o.version for o in model.opset_import},
            "operators": sorted({(n.domain + "." if n.domain else "") + n.op_type for n in model.graph.node}),
            "bytes": work.stat().st_size, "seconds": round(time.monotonic() - before, 1),
            "inputs": [dataclasses.asdict(i) for i in a.inputs], "sizes": a.sizes}, indent=1))
        work.rename(folder / f"{file.name}.onnx")
    finally:
        for left in folder.glob(f"{file.name}.tmp.onnx*"):
            left.unlink()


def from_sklearn(a):
    from skl2onnx import to_onnx
    from skl2onnx.common.data_types import FloatTensorType
    from sklearn.base import is_classifier
    model = a.build()
    options = {id(model): {"zipmap": False}} if is_classifier(model) else None
    return to_onnx(model, initial_types=[("x", FloatTensorType([None, a.inputs[0].shape[1]]))], options=options,
                   target_opset={"": 18, "ai.onnx.ml": 3})


def from_torch(a, path: Path, way: str) -> None:
    import torch
    torch.manual_seed(seed_of(a.name))
    model = a.build().eval()
    settle(model)
    size = a.sizes[1]  # no dimension of 1, which exporters take to be fixed
    arrays = tuple(torch.from_numpy(x) for x in make_inputs(a.inputs, size, seed=1).values())
    names = [i.name for i in a.inputs]
    with torch.no_grad():
        outputs = [f"output_{i}" for i in range(len(model(*arrays)))]
        if way == "torchscript":
            axes = {i.name: {d: n for d, n in enumerate(i.shape) if isinstance(n, str)} for i in a.inputs}
            axes |= {name: {0: a.inputs[0].shape[0]} for name in outputs} if isinstance(a.inputs[0].shape[0], str) else {}
            torch.onnx.export(model, arrays, str(path), dynamo=False, opset_version=OPSET[way], input_names=names,
                              output_names=outputs, dynamic_axes=axes)
        else:
            shapes = tuple({d: n for d, n in enumerate(i.shape) if isinstance(n, str)} for i in a.inputs)
            torch.onnx.export(model, arrays, str(path), dynamo=True, opset_version=OPSET[way], input_names=names,
                              output_names=outputs, dynamic_shapes=(shapes,), external_data=False, verbose=False)


def settle(model) -> None:
    """Norms get statistics and scales of their own: with those of a new module a fault in them would not show."""
    import torch
    for module in model.modules():
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
            torch.nn.init.uniform_(module.running_var, 0.5, 1.5)
            torch.nn.init.normal_(module.running_mean, 0, 0.2)
        if isinstance(module, (torch.nn.modules.batchnorm._BatchNorm, torch.nn.LayerNorm, torch.nn.GroupNorm)) \
                and module.weight is not None:
            torch.nn.init.uniform_(module.weight, 0.7, 1.3)
            if module.bias is not None:
                torch.nn.init.normal_(module.bias, 0, 0.1)


def quantise(a, base: Path, path: Path, way: str) -> None:
    from onnxruntime.quantization import (CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static)
    # Seven bits of weights: on processors without the dot product of bytes onnxruntime's sums of two products
    # saturate at eight, and its answers are no reference then.
    if way == "dynamic":
        quantize_dynamic(str(base), str(path), weight_type=QuantType.QInt8, reduce_range=True)
        return

    class Reader(CalibrationDataReader):
        def __init__(self):
            self.left = [make_inputs(a.inputs, size, seed=s) for s, size in enumerate([a.sizes[1]] * 4)]

        def get_next(self):
            return self.left.pop() if self.left else None

    quantize_static(str(base), str(path), Reader(), quant_format=QuantFormat.QDQ if way == "qdq" else QuantFormat.QOperator,
                    per_channel=True, reduce_range=True, activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8)
