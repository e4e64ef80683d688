"""How fast is the CPU engine on models of the sizes that people deploy, beside onnxruntime in the same run?

    python bench/real_models.py make --out build/real              # needs torch, transformers (python/requirements/models.txt)
    python bench/real_models.py kernels build/real build/models    # which kernels are plain, or oneDNN's reference
    python bench/real_models.py compare build/real [--only resnet50 .qdq] [--batches 1,8] [--threads 1,2] [--rounds N] [--seconds S]
    python bench/real_models.py lengths build/real [--only small_bert]              # what a new size of an open input takes
    tools/processor-level avx2 -- python bench/real_models.py compare build/real    # as on a processor without AVX-512

`make` writes networks with random weights, with any number of images or texts a request, in f32, in f16, and as
onnxruntime's quantisers make them: dynamic (weights of seven bits; dynamic8 of eight), static with QuantizeLinear and
DequantizeLinear (qdq, qdq8), static in operators of whole numbers (qoperator). `compare` lets the engines take turns
like compare_engines.py, and says besides how far our answers are from onnxruntime's: of the largest value of the
output; of quantised files also how far onnxruntime is from itself without its optimisations.

Small models (small_models.py: encoders, steps of decoders, loops) are made at fixed sizes, for batches of 1 and 8, and
in OUT/open with open sizes. `lengths` takes those: how long a request of a new size waits for its plan and its run.
"""
import argparse
import collections
import itertools
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

import compare_engines
import small_models
from harness import RESULTS, ROOT, machine, say

sys.path.insert(0, str(ROOT / "python"))
RUN_MODEL = pathlib.Path(os.environ.get("CARILLON_RUN_MODEL", ROOT / "build/release/carillon_run_model"))


# --- Networks -------------------------------------------------------------------------------------------------------

def resnet50():
    from torch import nn
    import torch.nn.functional as F
    from carillon_models.networks import block, head, plain

    class Bottleneck(nn.Module):
        def __init__(self, i, width, stride):
            super().__init__()
            self.body = nn.Sequential(block(i, width, 1), block(width, width, 3, stride), block(width, 4 * width, 1, act="none"))
            self.short = nn.Identity() if i == 4 * width else block(i, 4 * width, 1, stride, act="none")

        def forward(self, x):
            return F.relu(self.body(x) + self.short(x))

    layers, i = [block(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)], 64
    for width, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for n in range(count):
            layers.append(Bottleneck(i, width, stride if n == 0 else 1))
            i = 4 * width
    return plain(*layers, head(2048, 1000))


def bottleneck(i, o, stride, expand, kernel, act, squeeze):
    """MobileNetV2's and EfficientNet's block."""
    from torch import nn
    from carillon_models.networks import Skip, block
    wide = i * expand
    parts = [block(i, wide, 1, act=act)] if expand > 1 else []
    parts.append(block(wide, wide, kernel, stride, wide, act))
    if squeeze:
        parts.append(Gate(wide, max(1, i // 4)))
    parts.append(block(wide, o, 1, act="none"))
    return Skip(nn.Sequential(*parts)) if stride == 1 and i == o else nn.Sequential(*parts)


def Gate(width, narrow):
    from torch import nn

    class Squeezed(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(width, narrow, 1), nn.SiLU(),
                                      nn.Conv2d(narrow, width, 1), nn.Sigmoid())

        def forward(self, x):
            return x * self.gate(x)

    return Squeezed()


def mobilenetv2():
    from carillon_models.networks import block, head, plain
    layers, i = [block(3, 32, 3, 2, act="relu6")], 32
    for expand, o, count, stride in ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2),
                                     (6, 320, 1, 1)):
        for n in range(count):
            layers.append(bottleneck(i, o, stride if n == 0 else 1, expand, 3, "relu6", False))
            i = o
    return plain(*layers, block(320, 1280, 1, act="relu6"), head(1280, 1000))


def efficientnet_b0():
    from carillon_models.networks import block, head, plain
    layers, i = [block(3, 32, 3, 2, act="silu")], 32
    for expand, o, count, stride, kernel in ((1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3),
                                             (6, 112, 3, 1, 5), (6, 192, 4, 2, 5), (6, 320, 1, 1, 3)):
        for n in range(count):
            layers.append(bottleneck(i, o, stride if n == 0 else 1, expand, kernel, "silu", True))
            i = o
    return plain(*layers, block(320, 1280, 1, act="silu"), head(1280, 1000))


def yolo():
    """In the manner of YOLOv8n: CSP blocks, a pyramid, and a head that softmaxes distances over axis 1."""
    import torch
    from torch import nn
    from carillon_models.networks import block

    class Csp(nn.Module):
        def __init__(self, i, o, count, skip):
            super().__init__()
            self.half, self.skip = o // 2, skip
            self.one, self.two = block(i, o, 1, act="silu"), block(o // 2 * (2 + count), o, 1, act="silu")
            self.parts = nn.ModuleList(nn.Sequential(block(o // 2, o // 2, 3, act="silu"), block(o // 2, o // 2, 3, act="silu"))
                                       for _ in range(count))

        def forward(self, x):
            parts = list(self.one(x).chunk(2, 1))
            for part in self.parts:
                y = part(parts[-1])
                parts.append(y + parts[-1] if self.skip else y)
            return self.two(torch.cat(parts, 1))

    class Sppf(nn.Module):
        def __init__(self, i):
            super().__init__()
            self.one, self.two, self.pool = block(i, i // 2, 1, act="silu"), block(2 * i, i, 1, act="silu"), nn.MaxPool2d(5, 1, 2)

        def forward(self, x):
            parts = [self.one(x)]
            for _ in range(3):
                parts.append(self.pool(parts[-1]))
            return self.two(torch.cat(parts, 1))

    def branch(i, width, o):
        return nn.Sequential(block(i, width, 3, act="silu"), block(width, width, 3, act="silu"), nn.Conv2d(width, o, 1))

    class Yolo(nn.Module):
        def __init__(self, classes=80, bins=16):
            super().__init__()
            c = lambda i, o, s=2: block(i, o, 3, s, act="silu")
            self.p3 = nn.Sequential(c(3, 16), c(16, 32), Csp(32, 32, 1, True), c(32, 64), Csp(64, 64, 2, True))
            self.p4 = nn.Sequential(c(64, 128), Csp(128, 128, 2, True))
            self.p5 = nn.Sequential(c(128, 256), Csp(256, 256, 1, True), Sppf(256))
            self.up = nn.Upsample(scale_factor=2)
            self.n4, self.n3 = Csp(384, 128, 1, False), Csp(192, 64, 1, False)
            self.d3, self.m4, self.d4, self.m5 = c(64, 64), Csp(192, 128, 1, False), c(128, 128), Csp(384, 256, 1, False)
            self.boxes = nn.ModuleList(branch(w, 64, 4 * bins) for w in (64, 128, 256))
            self.kinds = nn.ModuleList(branch(w, 80, classes) for w in (64, 128, 256))
            self.bins, self.classes = bins, classes
            self.dfl = nn.Conv2d(bins, 1, 1, bias=False)

        def forward(self, x):
            p3 = self.p3(x)
            p4 = self.p4(p3)
            p5 = self.p5(p4)
            n4 = self.n4(torch.cat([self.up(p5), p4], 1))
            n3 = self.n3(torch.cat([self.up(n4), p3], 1))
            m4 = self.m4(torch.cat([self.d3(n3), n4], 1))
            m5 = self.m5(torch.cat([self.d4(m4), p5], 1))
            heads = [torch.cat([b(f), k(f)], 1).flatten(2) for b, k, f in zip(self.boxes, self.kinds, (n3, m4, m5))]
            box, kind = torch.cat(heads, 2).split((4 * self.bins, self.classes), 1)
            distances = self.dfl(box.reshape(x.shape[0], 4, self.bins, -1).transpose(2, 1).softmax(1)).flatten(1, 2)
            return (torch.cat([distances, kind.sigmoid()], 1),)

    return Yolo()


def conv1d():
    """A classifier of bytes or sound: convolutions of one dimension."""
    from torch import nn
    from carillon_models.networks import plain

    def layer(i, o, k, s):
        return nn.Sequential(nn.Conv1d(i, o, k, s, k // 2), nn.BatchNorm1d(o), nn.ReLU())

    return plain(layer(16, 64, 7, 2), layer(64, 128, 5, 2), layer(128, 128, 5, 1), layer(128, 256, 3, 2), layer(256, 256, 3, 1),
                 nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(256, 100))


def lstm():
    from torch import nn
    from carillon_models.networks import module
    return module(lambda self, x: self.out(self.body(x)[0][:, -1]), body=nn.LSTM(128, 256, 2, batch_first=True), out=nn.Linear(256, 50))


def transformer(kind, **settings):
    """A model of transformers' with random weights, of which only the first output is kept."""
    def build():
        import transformers
        from carillon_models.networks import module
        config = getattr(transformers, f"{kind}Config")(**settings)
        model = getattr(transformers, f"{kind}Model")._from_config(config, attn_implementation="eager")
        if kind == "Whisper":
            model = model.encoder
        return module(lambda self, *x: self.body(*x, return_dict=False)[0], body=model)
    return build


def t5(decoder):
    """T5-small's encoder, or one step of its decoder behind 32 words: norms without means, no biases, scores with a table of
    distances. The step reads and writes the keys and values of its past, and reads those of the encoder's words."""
    def build():
        import torch
        from torch import nn
        width, heads, each, wide, layers, words = 512, 8, 64, 2048, 6, 8000

        class Norm(nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = nn.Parameter(torch.ones(width))

            def forward(self, x):
                return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))

        def line(i, o):
            return nn.Linear(i, o, bias=False)

        class Attention(nn.Module):
            def __init__(self, own):
                super().__init__()
                self.norm, self.q, self.o = Norm(), line(width, heads * each), line(heads * each, width)
                if own:
                    self.k, self.v = line(width, heads * each), line(width, heads * each)

            def forward(self, x, place, known=None, grow=None):
                n = self.norm(x)
                split = lambda t: t.reshape(t.shape[0], -1, heads, each).transpose(1, 2)
                if known is None:
                    k, v = split(self.k(n)), split(self.v(n))
                else:
                    k, v = known
                if grow is not None:
                    k, v = torch.cat([grow[0], k], 2), torch.cat([grow[1], v], 2)
                scores = split(self.q(n)) @ k.transpose(2, 3)
                if place is not None:
                    scores = scores + place
                got = (scores.softmax(-1) @ v).transpose(1, 2).reshape(x.shape[0], -1, heads * each)
                return x + self.o(got), k, v

        class Feed(nn.Module):
            def __init__(self):
                super().__init__()
                self.norm, self.i, self.o = Norm(), line(width, wide), line(wide, width)

            def forward(self, x):
                return x + self.o(self.i(self.norm(x)).relu())

        class T5(nn.Module):
            def __init__(self):
                super().__init__()
                self.table, self.norm = nn.Embedding(words, width), Norm()
                self.near = nn.Parameter(torch.randn(1, heads, 1 if decoder else 64, 33 if decoder else 64))
                self.own = nn.ModuleList(Attention(True) for _ in range(layers))
                self.other = nn.ModuleList(Attention(False) for _ in range(layers if decoder else 0))
                self.feed = nn.ModuleList(Feed() for _ in range(layers))
                self.head = line(width, words) if decoder else nn.Identity()

            def forward(self, ids, *kept):
                x, made = self.table(ids), []
                for i in range(layers):
                    x, k, v = self.own[i](x, self.near, grow=kept[4 * i:4 * i + 2] if decoder else None)
                    if decoder:
                        made += [k, v]
                        x, _, _ = self.other[i](x, None, known=kept[4 * i + 2:4 * i + 4])
                    x = self.feed[i](x)
                return (self.head(self.norm(x)), *made)

        return T5()
    return build


IMAGE = [("x", (1, 3, 224, 224))]
T5_STEP = [("input_ids", (1, 1))] + [(f"{kind}_{i}", (1, 8, length, 64)) for i in range(6)
                                     for kind, length in (("k", 32), ("v", 32), ("other_k", 64), ("other_v", 64))]
WORDS = [("input_ids", (1, 128)), ("attention_mask", (1, 128))]
# Name: network, inputs, ways beside f32.
MODELS = {
    "resnet50": (resnet50, IMAGE, ["f16", "qdq", "qdq8", "qoperator"]),
    "mobilenetv2": (mobilenetv2, IMAGE, ["f16", "qdq", "qdq8", "qoperator"]),
    "efficientnet_b0": (efficientnet_b0, IMAGE, ["qdq", "qoperator"]),
    "yolo": (yolo, [("x", (1, 3, 320, 320))], ["qdq"]),
    "conv1d": (conv1d, [("x", (1, 16, 4096))], ["qdq"]),
    "lstm": (lstm, [("x", (1, 64, 128))], ["dynamic"]),
    "bert_base": (transformer("Bert"), WORDS, ["dynamic", "qdq"]),
    "distilbert": (transformer("DistilBert"), WORDS, ["dynamic"]),
    "minilm": (transformer("Bert", hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536), WORDS,
               ["f16", "dynamic", "dynamic8", "qdq8"]),
    "t5_encoder": (t5(False), [("input_ids", (1, 64))], ["f16", "dynamic", "dynamic8"]),
    "t5_step": (t5(True), T5_STEP, ["f16", "dynamic", "dynamic8"]),
    "vit_small": (transformer("ViT", hidden_size=384, num_attention_heads=6, intermediate_size=1536), IMAGE, ["dynamic", "qdq"]),
    "whisper_tiny": (transformer("Whisper", d_model=384, encoder_layers=4, encoder_attention_heads=6, encoder_ffn_dim=1536),
                     [("x", (1, 80, 3000))], ["dynamic"]),
}


def arrays(inputs, seed, batch=1, real="float32"):
    import numpy as np
    random = np.random.default_rng(seed)
    inputs = [(name, (batch * shape[0], *shape[1:])) for name, shape in inputs]
    return {name: random.integers(1, 1000, shape) if name == "input_ids" else np.ones(shape, np.int64)
            if name == "attention_mask" else random.standard_normal(shape).astype(real) for name, shape in inputs}


def make_one(name, folder):
    import onnx
    import torch
    from carillon_models.exporting import settle
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process
    build, inputs, ways = MODELS[name]

    def export(file, real):
        if file.exists():
            return
        torch.manual_seed(1)
        model = build().eval()
        settle(model)
        if real == "float16":
            model.half()
        partial = file.with_suffix(".partial")
        names = [n for n, _ in inputs]
        with torch.no_grad():
            torch.onnx.export(model, tuple(torch.from_numpy(x) for x in arrays(inputs, 1, 2, real).values()), str(partial),
                              dynamo=False, opset_version=17, input_names=names, output_names=["y"],
                              dynamic_axes={n: {0: "batch"} for n in [*names, "y"]})
        partial.rename(file)

    base = folder / f"{name}.onnx"
    export(base, "float32")

    class Reader(CalibrationDataReader):
        def __init__(self):
            self.left = [arrays(inputs, s) for s in range(2)]

        def get_next(self):
            return self.left.pop() if self.left else None

    for way in ways:
        file, partial = folder / f"{name}.{way}.onnx", folder / f"{name}.{way}.partial"
        if way == "f16":
            export(file, "float16")
            continue
        if file.exists():
            continue
        with tempfile.TemporaryDirectory() as work:
            ready = pathlib.Path(work) / "ready.onnx"
            quant_pre_process(str(base), str(ready), skip_symbolic_shape=True)
            # Seven bits of weights, as for docs/models.md: without VNNI onnxruntime is no reference at eight, though fast.
            seven = not way.endswith("8")
            if way.startswith("dynamic"):
                quantize_dynamic(str(ready), str(partial), weight_type=QuantType.QInt8, reduce_range=seven)
            else:
                quantize_static(str(ready), str(partial), Reader(), per_channel=True, reduce_range=seven,
                                quant_format=QuantFormat.QDQ if way.startswith("qdq") else QuantFormat.QOperator,
                                activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8)
        onnx.load(str(partial))
        partial.rename(file)


def make(options):
    options.out.mkdir(parents=True, exist_ok=True)
    for name in MODELS:
        if options.only and not any(part in name for part in options.only):
            continue
        try:
            make_one(name, options.out)
            say(f"{name}: made")
        except Exception as error:  # the others can be had all the same
            say(f"{name}: {type(error).__name__}: {str(error)[:300]}")
    (options.out / "open").mkdir(exist_ok=True)
    for name in small_models.SMALL:
        if options.only and not any(part in name for part in options.only):
            continue
        open_file = options.out / "open" / f"{name}.onnx"
        if not open_file.exists():
            small_models.write_open(name, open_file)
        for batch in small_models.BATCHES:
            file = options.out / f"{name}_b{batch}.onnx"
            if not file.exists():
                small_models.write_fixed(name, batch, open_file, file)
        say(f"{name}: made")


# --- Comparison -----------------------------------------------------------------------------------------------------

def difference(got, want):
    import numpy as np
    largest = float(np.max(np.abs(want))) or 1.0
    return float(np.max(np.abs(got.astype(np.float64) - want))) / largest


def answers(model, inputs, threads, quantised):
    """How far our answer is from onnxruntime's, and (quantised) onnxruntime's from its own without optimisations."""
    import numpy as np
    import onnxruntime

    def run(level):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.graph_optimization_level = level
        options.log_severity_level = 4
        session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
        return session.run(None, {i.name: inputs[i.name] for i in session.get_inputs()})[0]

    levels = onnxruntime.GraphOptimizationLevel
    want = run(levels.ORT_ENABLE_ALL)
    own = difference(run(levels.ORT_DISABLE_ALL), want) if quantised else None
    with tempfile.TemporaryDirectory() as work:
        folder = pathlib.Path(work) / "1"
        folder.mkdir()
        for i, array in enumerate(inputs.values()):
            (folder / f"in_{i}.bin").write_bytes(array.tobytes())
        done = subprocess.run([str(RUN_MODEL), "--model", str(model), "--data", work, "--threads", str(threads)], capture_output=True, text=True)
        if done.returncode:
            return done.stderr.strip()[-200:], own
        got = np.frombuffer((folder / "out_0.bin").read_bytes(), want.dtype).reshape(want.shape)
        return difference(got, want.astype(np.float64)), own


def compare(options):
    files = [f for f in sorted(options.dir.glob("*.onnx")) if not options.only or any(part in f.name for part in options.only)]
    level = os.environ.get("CARILLON_PROCESSOR_LEVEL", "its own")
    rows, report = [], {"machine": machine(), "level": level, "rounds": options.rounds, "cases": []}
    for file in files:
        name = file.name.removesuffix(".onnx")
        base, _, way = name.partition(".")
        small = small_models.fixed_inputs(base)  # its file is of one batch size
        off, own = "", None
        if not options.no_answers:
            inputs = arrays(small or MODELS[base][1], 9, real="float16" if way == "f16" else "float32")
            off, own = answers(file, inputs, options.threads[0], way not in ("", "f16"))
        for batch, threads in itertools.product([1] if small else options.batches, options.threads):
            say(f"{name} batch {batch}, {threads} threads: {options.rounds} rounds")
            settings = argparse.Namespace(threads=threads, rounds=options.rounds, seconds=options.seconds)
            try:
                case = compare_engines.compare(file, batch, "f32", settings, [compare_engines.OURS, compare_engines.ORT])
            except SystemExit as error:
                rows.append([name, str(batch), str(threads), "", "", str(error)[:60], "", ""])
                continue
            ours, theirs = (case["engines"][e]["p50_ms"] for e in (compare_engines.OURS, compare_engines.ORT))
            ratio = case["ratios"][compare_engines.ORT]
            report["cases"].append({"model": name, "batch": batch, "threads": threads, **case, "difference": off,
                                    "onnxruntimes_own": own})
            rows.append([name, str(batch), str(threads), f"{ours:.2f}", f"{theirs:.2f}",
                         f"{ratio['median']:.2f} ({ratio['min']:.2f} to {ratio['max']:.2f})",
                         off if isinstance(off, str) else f"{off:.1e}", "" if own is None else f"{own:.1e}"])
            say("  " + "  ".join(rows[-1]))
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "real_models.json").write_text(json.dumps(report, indent=1))
    header = ["model", "batch", "threads", "ours ms", "onnxruntime ms", "ours / onnxruntime, per s", "difference", "onnxruntime's own"]
    print(f"Processor level: {level}\n")
    print("| " + " | ".join(header) + " |\n|" + "---|" * len(header))
    for row in rows:
        print("| " + " | ".join(row) + " |")
    ratios = [c["ratios"][compare_engines.ORT]["median"] for c in report["cases"]]
    if ratios:
        print(f"\n{sum(r >= 0.8 for r in ratios)} of {len(ratios)} at 0.8 or more, {sum(r >= 0.9 for r in ratios)} at 0.9 or more, "
              f"{sum(r < 0.5 for r in ratios)} below 0.5, median {statistics.median(ratios):.2f}")


def lengths(options):
    """New sizes of open inputs, one after the other: how long the plan takes, and the run; onnxruntime's first run there."""
    import onnxruntime
    rows = []
    for file in sorted((options.dir / "open").glob("*.onnx")):
        if options.only and not any(part in file.name for part in options.only):
            continue
        done = subprocess.run([str(compare_engines.PROGRAM), "--model", str(file), "--threads", str(options.threads),
                               "--sizes", ",".join(map(str, options.sizes))], capture_output=True, text=True)
        if done.returncode:
            say(f"{file.name}: {done.stderr.strip()[-200:]}")
            continue
        ours = json.loads(done.stdout)["sizes"]
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = options.threads
        settings.log_severity_level = 4
        session = onnxruntime.InferenceSession(str(file), settings, providers=["CPUExecutionProvider"])
        theirs = []
        for size in [options.sizes[0] + 1, *options.sizes]:  # the first makes its memory
            given = small_models.SMALL[file.stem].inputs
            inputs = arrays([(n, tuple(size if isinstance(d, str) and d != "batch" else 1 if d == "batch" else d for d in shape))
                             for n, shape in given], size)
            before = time.perf_counter()
            session.run(None, inputs)
            theirs.append(1e3 * (time.perf_counter() - before))
        plans, runs = [r["plan_ms"] for r in ours], [r["first_run_ms"] for r in ours]
        rows.append([file.stem, str(ours[-1]["kernels"]), f"{statistics.median(plans):.1f}", f"{max(plans):.1f}",
                     f"{statistics.median(runs):.2f}", f"{statistics.median(theirs[1:]):.2f}"])
        say("  " + "  ".join(rows[-1]))
    header = ["model", "kernels", "plan ms", "longest", "first run ms", "onnxruntime's first run ms"]
    print("| " + " | ".join(header) + " |\n|" + "---|" * len(header))
    for row in rows:
        print("| " + " | ".join(row) + " |")


def kernels(options):
    """Kernels that are plain code or oneDNN's reference, over all files: how many, and their share of all the time."""
    counts, times, files, whole = collections.Counter(), collections.Counter(), collections.defaultdict(set), 0.0
    reference = 0
    for file in sorted(f for folder in options.dirs for f in folder.glob("*.onnx")):
        if options.only and not any(part in file.name for part in options.only):
            continue
        done = subprocess.run([str(compare_engines.PROGRAM), "--model", str(file), "--threads", "1", "--seconds", "0.02", "--kernels",
                               "--json"], capture_output=True, text=True)
        if done.returncode:
            say(f"{file.name}: {done.stderr.strip().splitlines()[-1][:200] if done.stderr.strip() else done.returncode}")
            continue
        for row in json.loads(done.stdout)["kernel_table"]:
            name, took = row["name"], row["p50_us"]
            whole += took
            found = re.search(r" (plain:\w+)$| ((?:simple:)?ref\S*)$", name)
            if not found or "GRU" in name:  # oneDNN calls its GRU so; its products are the fast ones
                continue
            kind = found[1] or f"{found[2]} {re.sub(r'[^A-Za-z]*[0-9].*', '', name.split('/')[-1]).split(' ')[0]}"
            reference += found[2] is not None
            counts[kind] += 1
            times[kind] += took
            files[kind].add(file.name.removesuffix(".onnx"))
    print("| kernel | times | us | share | such as |\n|---|---|---|---|---|")
    for kind, took in times.most_common():
        print(f"| {kind} | {counts[kind]} | {took:.0f} | {took / whole:.2%} | {', '.join(sorted(files[kind])[:3])} |")
    return 1 if reference else 0


def numbers(text):
    return [int(part) for part in text.split(",")]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    one = commands.add_parser("make", help="writes the ONNX files; what is there stays")
    one.add_argument("--out", type=pathlib.Path, required=True)
    one.add_argument("--only", nargs="+", metavar="PART", help="models with this in their names")
    one.set_defaults(run=make)
    three = commands.add_parser("kernels", help="lists kernels that are plain code or oneDNN's reference; fails where there are such")
    three.add_argument("dirs", type=pathlib.Path, nargs="+")
    three.add_argument("--only", nargs="+", metavar="PART", help="files with this in their names")
    three.set_defaults(run=kernels)
    four = commands.add_parser("lengths", help="times new sizes of the open files")
    four.add_argument("dir", type=pathlib.Path)
    four.add_argument("--only", nargs="+", metavar="PART", help="files with this in their names")
    four.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    four.add_argument("--sizes", nargs="+", type=int, default=[7, 19, 45, 33, 61], metavar="N", help="asked for in this order")
    four.set_defaults(run=lengths)
    two = commands.add_parser("compare", help="times both engines in turns")
    two.add_argument("dir", type=pathlib.Path)
    two.add_argument("--only", nargs="+", metavar="PART", help="files with this in their names")
    two.add_argument("--batches", type=numbers, default=[1], metavar="B,...")
    two.add_argument("--threads", type=numbers, default=[len(os.sched_getaffinity(0))], metavar="T,...")
    two.add_argument("--no-answers", action="store_true", help="times only")
    two.add_argument("--rounds", type=int, default=7)
    two.add_argument("--seconds", type=float, default=0.5, help="of a turn")
    two.set_defaults(run=compare)
    options = parser.parse_args()
    return options.run(options)


if __name__ == "__main__":
    sys.exit(main())
