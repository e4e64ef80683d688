"""Architectures that nobody picked: `transformers`' model types in an order that a seed gives.

Every type that has both a configuration and a model of AutoModel's is in the pool, less those that the catalogue has.
They are taken in the seed's order until as many as asked for are exported in at least one way. None is passed over:
what cannot be made small without knowing it, and what an exporter refuses, is counted with its reason.

How a configuration is made small goes by the names of its fields alone (`shrunk`), and what a model takes by the
names of its forward's parameters (`input_sets`). Neither knows a model type.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import random
import re
from dataclasses import dataclass
from pathlib import Path

from .catalogue import BATCHES, IMAGES, SEQUENCES, Architecture, File, Input, architectures

SEED = 2026
COUNT = 40
WAYS = ("torchscript", "dynamo")
LARGEST = 30_000_000  # parameters of a model that counts as small
BELOW, VOCABULARY = 100, 128  # tokens that are asked with; those above them are a configuration's special ones


def order(pool: list[str], seed: int = SEED) -> list[str]:
    """The whole pool, as the seed has it. The pool's own order does not matter."""
    shuffled = sorted(pool)
    random.Random(seed).shuffle(shuffled)
    return shuffled


def pool() -> list[str]:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES
    named = {a.build.config for a in architectures() if hasattr(a.build, "config")}
    return [t for t, config in CONFIG_MAPPING_NAMES.items() if t in MODEL_MAPPING_NAMES and config not in named]


# --- a small configuration ---

LAYERS = re.compile(r"(^|_)(layers?|blocks|depth)$|^n_?layers?$|num_hidden_layers|_layers$")
HEADS = re.compile(r"(^|_)(heads?|n_head)$|num_(key_value|query)_heads|attention_heads$|_heads$")
KV_HEADS = re.compile(r"(key_value|kv)_heads|num_kv")
HEAD_DIM = re.compile(r"head_dim|head_size|^d_kv$|^key_dim$|attention_head_size|_d_head$|^d_head$|channels_per_head")
EXPERTS = re.compile(r"experts$|^n_routed_experts$|moe_num_experts")
POSITIONS = re.compile(r"max_(source_|target_|text_)?(position|length|seq)|n_positions|max_relative_positions|n_ctx$|context_length")
WINDOWS = re.compile(r"sliding_window|attention_window|local_attention$|^window_size$|attention_chunk_size|window_length")
WIDTHS = re.compile(r"hidden|embed|embd|dim|width|channels|intermediate|ffn|inner|d_model|d_ff|proj|rank|_size$|^d_")
NO_WIDTH = re.compile(r"num_channels|in_chans|in_channels|input_channels|kernel|patch|image|img|vocab|window|group|stride|factor|"
                      r"batch|chunk|crop|type_|_init|norm|layers|heads|num_|mel|fft|frame|sampl|block|grid|codebook|state|pool|"
                      r"conv_|spatial|bin|step|max|expand|temperature|position|dilation|downs|ups|cache|_id$|feature_size")


@dataclass(frozen=True)
class Rung:
    """How much is made smaller. Where widths stay as they are by default, fewer relations can break."""

    name: str
    widths: bool


RUNGS = (Rung("all of it", True), Rung("layers, vocabulary, positions, experts and images", False))


def shrunk(config_class, rung: Rung, factor: float | None = None, default=None):
    """A configuration of `config_class` with its declared defaults made small, field by field."""
    default = default if default is not None else config_class()
    factor = factor or 32 / min(main_widths(default), default=1 << 30)
    layers = next((v for f in ("num_hidden_layers", "num_layers", "n_layer") if isinstance(v := declared(config_class).get(f), int)), 0)
    special = [VOCABULARY - 1]
    changed = {}
    for name, value in declared(config_class).items():
        if name in config_class.sub_configs:
            inner = getattr(default, name, None)
            if inner is not None and not isinstance(inner, (dict, str)):
                changed[name] = shrunk(type(inner), rung, factor, inner).to_dict()
            continue
        small = small_value(name, value, rung, factor, layers, special)
        if small != value:
            changed[name] = small
    for switch in ("use_cache", "use_pretrained_backbone"):
        if switch in declared(config_class):
            changed[switch] = False
    return config_class(**changed)


def declared(config_class) -> dict:
    """Its fields and their defaults as written, before anything is worked out from them."""
    return {name: p.default for name, p in inspect.signature(config_class.__init__).parameters.items()
            if p.default is not inspect.Parameter.empty and name not in ("self", "id2label", "label2id")}


def main_widths(config) -> list[int]:
    """Of it and of those inside it; of stages the first one's."""
    own = None
    for name in ("hidden_size", "d_model", "n_embd", "embed_dim", "dim", "hidden_sizes", "embed_dims", "embedding_size", "encoder_hidden_size"):
        value = declared(type(config)).get(name)
        if isinstance(value, (list, tuple)) and value and isinstance(value[0], int):
            value = 2 * value[0]  # of stages, 16 is enough for the first
        if isinstance(value, int) and value >= 16:
            own = value
            break
    inner = [w for name in config.sub_configs if hasattr(getattr(config, name, None), "sub_configs")
             for w in main_widths(getattr(config, name))]
    return ([own] if own else []) + inner


def narrow(value: int, factor: float) -> int:
    return value if value < 32 else max(16, 16 * round(value * factor / 16))


def small_value(name: str, value, rung: Rung, factor: float, layers: int, special: list[int]):
    whole = isinstance(value, int) and not isinstance(value, bool)
    numbers = isinstance(value, (list, tuple)) and bool(value) and all(isinstance(v, int) and not isinstance(v, bool) for v in value)
    of_layers = isinstance(value, (list, tuple)) and layers > 2 and len(value) == layers
    if re.search(r"(^|_)(token_id|token_index|id)s?$", name):
        if whole and value >= BELOW:
            special[0] -= 1
            return special[0] + 1
        if numbers and max(value) >= BELOW:
            return type(value)([VOCABULARY - 1])
        return value
    if of_layers:
        return value[:2]
    if whole:
        if "vocab_size" in name:
            return value if value <= VOCABULARY else VOCABULARY
        if re.fullmatch(r"(image_size|img_size|input_size|crop_size)", name):
            return min(value, 128)
        if EXPERTS.search(name):
            return min(value, 4)
        if re.search(r"experts_per_tok|top_k$|topk$|num_selected", name):
            return min(value, 2)
        if re.fullmatch(r"(n_group|topk_group|num_expert_groups?)", name):
            return 1
        if LAYERS.search(name):
            return min(value, 2)
        if POSITIONS.search(name):
            return min(value, 128)
        if WINDOWS.search(name):
            return min(value, 4 if name == "window_size" else 16)
        if re.fullmatch(r"num_queries|num_object_queries|num_query_tokens|query_length|two_stage_num_proposals|num_latents", name):
            return min(value, 16)
        if re.search(r"codebook_size", name):
            return min(value, 64)
        if not rung.widths:
            return value
        if HEAD_DIM.search(name):
            return min(value, 8)
        if KV_HEADS.search(name):
            return value if value < 2 else 2 if value < 16 else 4
        if HEADS.search(name):
            return min(value, 4)
        if re.search(r"state", name):
            return min(value, 16)
        return narrow(value, factor) if WIDTHS.search(name) and not NO_WIDTH.search(name) else value
    if numbers:
        if re.search(r"image_size|img_size|input_size|crop_size", name):
            return type(value)(min(v, 128) for v in value)
        if re.search(r"depths?$|^num_layers$|layers$|blocks$", name):
            return type(value)([1] * len(value))
        if WINDOWS.search(name):
            return type(value)(min(v, 16) for v in value)
        if not rung.widths:
            return value
        if HEADS.search(name) or HEAD_DIM.search(name):
            return type(value)(max(1, v // value[0]) if HEADS.search(name) else 8 for v in value)
        if WIDTHS.search(name) and not NO_WIDTH.search(name) or name in ("conv_dim", "in_channels"):
            return type(value)(max(8, 8 * round(v * factor / 8)) if v >= 32 else v for v in value)
    return value


# --- what it takes ---

def found(config, names, otherwise=None):
    """The first of `names` that the configuration or one inside it has."""
    for name in names:
        value = getattr(config, name, None)
        if value is not None and not isinstance(value, dict):
            return value
    for name in config.sub_configs:
        inner = getattr(config, name, None)
        if hasattr(inner, "sub_configs") and (value := found(inner, names)) is not None:
            return value
    return otherwise


def input_sets(config, main: str, takes: set[str]) -> list[tuple[tuple[Input, ...], tuple[dict[str, int], ...]]]:
    """What to try in this order: inputs, and the three sizes at which they are asked."""
    channels = found(config, ("num_channels", "in_chans", "in_channels"), 3)
    channels = channels if isinstance(channels, int) else 3
    size = found(config, ("image_size", "img_size"))
    side = size if isinstance(size, int) else size[0] if isinstance(size, (list, tuple)) and size else None
    frames = found(config, ("num_frames", "frames_per_clip"), 4)
    mels = found(config, ("num_mel_bins", "n_mels", "input_feat_per_channel", "input_feat_size", "feature_size"), 80)
    fixed = Input("pixel_values", ("batch", channels, side or 64, side or 64))
    free = Input("pixel_values", ("batch", channels, "height", "width"))
    decoder = Input("decoder_input_ids", ("batch", "target"), "tokens", BELOW)
    targets = tuple({**s, "target": t} for s, t in zip(SEQUENCES, (5, 9, 3)))
    text = [Input("input_ids", ("batch", "sequence"), "tokens", BELOW)]
    if "attention_mask" in takes:
        text.append(Input("attention_mask", ("batch", "sequence"), "mask"))
    tried = []

    def add(inputs, sizes):
        if {i.name for i in inputs} <= takes:
            tried.append((tuple(inputs), sizes))
            if "decoder_input_ids" in takes and decoder not in inputs:
                tried.append((tuple([*inputs, decoder]), tuple({**s, "target": t} for s, t in zip(sizes, (5, 9, 3)))))

    if main == "input_ids":
        if getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" in takes:
            tried.append(((*text, decoder), targets))
        add(text, SEQUENCES)
        add([*text, fixed], SEQUENCES)
        add([*text, Input("bbox", ("batch", "sequence", 4), "boxes", BELOW)], SEQUENCES)
        add([*text, fixed, Input("bbox", ("batch", "sequence", 4), "boxes", BELOW)], SEQUENCES)
        add([Input("input_ids", ("batch", 16), "tokens", BELOW)], BATCHES)
    elif main.startswith("pixel_values"):
        still = [fixed] if side else [free]
        add([dataclasses.replace(i, name=main) for i in still], BATCHES if side else IMAGES)
        add([dataclasses.replace(fixed, name=main)], BATCHES)
        add([Input(main, ("batch", frames, channels, side or 64, side or 64))], BATCHES)
        add([dataclasses.replace(fixed, name=main), *text], SEQUENCES)
    elif main == "input_features":
        for shape in (("batch", mels, "time"), ("batch", "time", mels)):
            add([Input(main, shape)], tuple({"batch": b, "time": t} for b, t in ((1, 100), (2, 160), (3, 64))))
        for shape in (("batch", mels, 256), ("batch", 256, mels), ("batch", mels, 3000)):
            add([Input(main, shape)], BATCHES)
    elif main == "input_values":
        sound = tuple({"batch": b, "samples": s} for b, s in ((1, 4000), (2, 4800), (3, 3200)))
        add([Input(main, ("batch", "samples"))], sound)
        add([Input(main, ("batch", 1, "samples"))], sound)
        add([Input(main, ("batch", found(config, ("max_length",), 64), mels))], BATCHES)
    elif main == "past_values":
        width = found(config, ("num_input_channels", "input_size"), 1)
        add([Input(main, ("batch", found(config, ("context_length",), 32), width))], BATCHES)
        add([Input(main, ("batch", found(config, ("context_length",), 32)))], BATCHES)
    return tried


def family(inputs: tuple[Input, ...]) -> str:
    names = {i.name for i in inputs}
    seen, read = any(n.startswith("pixel") for n in names), "input_ids" in names
    return ("multimodal" if seen and read else "vision" if seen else "language" if read
            else "sequence" if "past_values" in names else "audio")


# --- one type ---

def builder(kind: str, rung: Rung, names: tuple[str, ...]):
    def build():
        import torch
        import transformers
        from .language import called
        config = shrunk(type(transformers.AutoConfig.for_model(kind)), rung)
        with torch.device("meta"):
            count = sum(p.numel() for p in transformers.AutoModel.from_config(config).parameters())
        if count > LARGEST:
            raise ValueError(f"{count} parameters, with {rung.name} made small")
        return called(transformers.AutoModel.from_config(config).eval(), names, tensors)
    return build


def tensors(result) -> tuple:
    """The answer's tensors, in order, without those inside lists and caches; four at most."""
    import torch
    values = result.values() if hasattr(result, "values") else result if isinstance(result, tuple) else (result,)
    return tuple(v for v in values if isinstance(v, torch.Tensor))[:4]


def plan(kind: str) -> dict:
    """The first rung and inputs with which the model answers at three sizes. Raises what came of the first attempt."""
    import torch
    import transformers
    from .arrays import make_inputs
    from .exporting import seed_of
    failures = []
    for rung in RUNGS:
        try:
            torch.manual_seed(seed_of(kind))
            config = shrunk(type(transformers.AutoConfig.for_model(kind)), rung)
            model = builder(kind, rung, ())().model
        except Exception as error:
            failures.append(error)
            continue
        takes = set(inspect.signature(model.forward).parameters)
        sets = input_sets(config, model.main_input_name, takes)
        if not sets:
            failures.append(ValueError(f"its main input, {model.main_input_name}, is of no kind that is made here"))
        for inputs, sizes in sets:
            try:
                names = tuple(i.name for i in inputs)
                for at, size in enumerate(sizes):
                    arrays = {n: torch.from_numpy(x) for n, x in make_inputs(inputs, size, seed=at).items()}
                    with torch.no_grad():
                        first, again = (tensors(model(**arrays)) for _ in range(2))
                    if not first:
                        raise ValueError("its answer has no tensor")
                    if not all(torch.isfinite(t).all() for t in first if t.is_floating_point()):
                        raise ValueError("its answer is not finite")
                    if not all(torch.equal(a, b) for a, b in zip(first, again)):
                        raise ValueError("its answer is another each time")
                return {"type": kind, "rung": RUNGS.index(rung), "parameters": sum(p.numel() for p in model.parameters()),
                        "inputs": [dataclasses.asdict(i) for i in inputs], "sizes": list(sizes), "names": names}
            except Exception as error:
                failures.append(error)
    raise failures[0]


def architecture(made: dict) -> Architecture:
    inputs = tuple(Input(**{k: tuple(v) if isinstance(v, list) else v for k, v in i.items()}) for i in made["inputs"])
    names = tuple(i.name for i in inputs)
    return Architecture(f"drawn_{made['type']}", family(inputs), builder(made["type"], RUNGS[made["rung"]], names), inputs,
                        tuple(made["sizes"]))


def draw(folder: Path, count: int, limit: float, say=print, kinds: list[str] | None = None) -> dict:
    """Goes down the order; folder/draw.json says of each type what became of it."""
    from . import exporting
    folder.mkdir(parents=True, exist_ok=True)
    exporting.warm_up([File("", None, way) for way in WAYS])
    import transformers
    kinds = kinds if kinds is not None else order(pool())
    store = folder / "draw.json"
    said = json.loads(store.read_text()) if store.exists() else {"types": {}}
    said |= {"seed": SEED, "transformers": transformers.__version__, "pool": len(pool()), "asked": count}
    for kind in kinds:
        if sum(bool(t["exported"]) for t in said["types"].values()) >= count:
            break
        if kind in said["types"]:
            continue
        made = folder / f"{kind}.plan"
        reason = exporting.in_a_child(lambda: made.write_text(json.dumps(plan(kind))), folder / f"{kind}.partial", limit)
        if reason is None and not made.exists():
            reason = "no plan was written"
        record = said["types"][kind] = {"exported": [], "reason": (reason or "").splitlines()[0][:300] if reason else "", "rung": None}
        if not reason:
            planned = json.loads(made.read_text())
            a = architecture(planned)
            record["rung"], record["parameters"] = planned["rung"], planned["parameters"]
            exporting.export_all([File(f"{a.name}.{way}", a, way) for way in WAYS], folder, limit, say=lambda line: None)
            record["exported"] = [way for way in WAYS if (folder / f"{a.name}.{way}.onnx").exists()]
        store.write_text(json.dumps(said, indent=1) + "\n")
        say(f"{len(said['types'])} {kind}: {', '.join(record['exported']) or record['reason'][:150] or 'no exporter takes it'}")
    return said
