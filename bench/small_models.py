"""Small models with open sizes, for real_models.py: encoders, steps of decoders, loops written out in operators.

Each is an ONNX file whose batch and lengths are open (`write_open`), and files of the same network at fixed sizes, one a
batch size (`write_fixed`), which both engines can compile as well as they are able to. Weights are random. Loops are
what tf2onnx and torch.jit.script make of recurrences: a Loop or Scan whose body gathers a step's input, multiplies,
adds and gates, and hands each step's state out.
"""
from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable

VOCABULARY = 1000


@dataclasses.dataclass(frozen=True)
class Small:
    build: Callable[[], object]  # a torch module, or an onnx.ModelProto whose open dimensions have these names
    inputs: tuple[tuple[str, tuple[int | str, ...]], ...]
    outputs: tuple[str, ...]
    sizes: dict[str, int]  # of the open dimensions beside "batch", in the files at fixed sizes

    def fixed(self, batch: int) -> list[tuple[str, tuple[int, ...]]]:
        sizes = {**self.sizes, "batch": batch}
        return [(name, tuple(sizes[n] if isinstance(n, str) else n for n in shape)) for name, shape in self.inputs]


# --- Encoders and decoders of transformers' ---------------------------------------------------------------------------

def encoder(layers, width):
    def build():
        import transformers
        from carillon_models.networks import module
        config = transformers.BertConfig(vocab_size=VOCABULARY, hidden_size=width, num_hidden_layers=layers,
                                         num_attention_heads=width // 32, intermediate_size=4 * width)
        model = transformers.BertModel._from_config(config, attn_implementation="eager")
        return module(lambda self, ids, mask: self.body(ids, mask, return_dict=False)[0], body=model)
    return build


def gpt2_step(layers, width, heads):
    """One more token, given the keys and values of those before: logits, and all keys and values."""
    def build():
        import torch
        import transformers
        from carillon_models.networks import module
        from transformers.cache_utils import DynamicCache
        config = transformers.GPT2Config(vocab_size=VOCABULARY, n_positions=512, n_embd=width, n_layer=layers, n_head=heads)
        model = transformers.GPT2LMHeadModel._from_config(config, attn_implementation="eager")

        def forward(self, ids, *past):
            cache = DynamicCache()
            for i in range(layers):
                cache.update(past[2 * i], past[2 * i + 1], i)
            places = torch.full_like(ids, 0) + past[0].shape[2]
            result = self.body(input_ids=ids, position_ids=places, past_key_values=cache, use_cache=True)
            return (result.logits, *(t for layer in result.past_key_values.layers for t in (layer.keys, layer.values)))
        return module(forward, body=model)
    return build


def decoder_step(width, heads, layers, ranks):
    """BART's and T5's decoder: attention to what is past and to the encoder's result, whose keys and values are given.

    Written out here: transformers' own trace the number of past tokens as a constant. `ranks`: T5 normalises by the root
    of the mean square and adds a bias by distance to the scores; else it is BART, with LayerNorm behind each part.
    """
    def build():
        import torch
        from torch import nn
        import torch.nn.functional as F
        size = width // heads

        class Root(nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = nn.Parameter(torch.ones(width))

            def forward(self, x):
                return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))

        norm = Root if ranks else lambda: nn.LayerNorm(width)

        class Layer(nn.Module):
            def __init__(self):
                super().__init__()
                linear = lambda i, o: nn.Linear(i, o, bias=not ranks)
                self.q, self.k, self.v, self.o = (linear(width, width) for _ in range(4))
                self.cross_q, self.cross_o = linear(width, width), linear(width, width)
                self.one, self.two = linear(width, 4 * width), linear(4 * width, width)
                self.norms = nn.ModuleList(norm() for _ in range(3))

            def split(self, x):
                return x.view(x.shape[0], -1, heads, size).transpose(1, 2)

            def attend(self, q, k, v, bias=None):
                scores = q @ k.transpose(2, 3) * (1 if ranks else size ** -0.5)
                if bias is not None:
                    scores = scores + bias
                y = F.softmax(scores, -1) @ v
                return y.transpose(1, 2).reshape(y.shape[0], -1, width)

            def part(self, number, x, what):
                n = self.norms[number]
                return x + what(n(x)) if ranks else n(x + what(x))

            def forward(self, x, past_k, past_v, cross_k, cross_v, table):
                made = []

                def own(x):
                    k, v = torch.cat([past_k, self.split(self.k(x))], 2), torch.cat([past_v, self.split(self.v(x))], 2)
                    made.extend((k, v))
                    bias = None
                    if ranks:
                        far = (k.shape[2] - 1 - torch.arange(k.shape[2])).clamp(max=31)
                        bias = table(far).t()[None, :, None]
                    return self.o(self.attend(self.split(self.q(x)), k, v, bias))

                x = self.part(0, x, own)
                x = self.part(1, x, lambda x: self.cross_o(self.attend(self.split(self.cross_q(x)), cross_k, cross_v)))
                act = F.relu if ranks else F.gelu
                return self.part(2, x, lambda x: self.two(act(self.one(x)))), *made

        class Step(nn.Module):
            def __init__(self):
                super().__init__()
                self.words, self.out = nn.Embedding(VOCABULARY, width), nn.Linear(width, VOCABULARY, bias=False)
                self.places = nn.Embedding(512, width)
                self.table = nn.Embedding(32, heads)
                self.layers, self.norm = nn.ModuleList(Layer() for _ in range(layers)), norm()

            def forward(self, ids, *past):
                x, made = self.words(ids), []
                if not ranks:
                    x = x + self.places(torch.full_like(ids, 0) + past[0].shape[2])
                for i, layer in enumerate(self.layers):
                    x, k, v = layer(x, *past[4 * i:4 * i + 4], self.table)
                    made.extend((k, v))
                return (self.out(self.norm(x)), *made)

        return Step()
    return build


def past_of(layers, heads, size, cross):
    for i in range(layers):
        for what in ("key", "value"):
            yield f"past_{what}_{i}", ("batch", heads, "past", size)
        if cross:
            for what in ("key", "value"):
                yield f"cross_{what}_{i}", ("batch", heads, "source", size)


# --- Loops, in operators ----------------------------------------------------------------------------------------------

class Writer:
    """Collects the nodes of one graph; values are their names."""

    def __init__(self, prefix="", constants=None):
        import numpy as np
        self.prefix, self.nodes, self.constants = prefix, [], constants if constants is not None else {}
        self.random = np.random.default_rng(len(self.constants) + 1)

    def __call__(self, op, *inputs, outputs=1, **attributes):
        from onnx import helper
        names = [f"{self.prefix}{op}_{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(op, list(inputs), names, f"{self.prefix}{op}_{len(self.nodes)}", **attributes))
        return names[0] if outputs == 1 else names

    def constant(self, value, kind="int64"):
        import numpy as np
        from onnx import numpy_helper
        array = np.asarray(value, kind)
        name = f"constant_{len(self.constants)}"
        self.constants[name] = numpy_helper.from_array(array, name)
        return name

    def weights(self, *shape):
        return self.constant(self.random.standard_normal(shape) / max(1, shape[0]) ** 0.5, "float32")


def value(name, kind, shape=None):
    from onnx import TensorProto, helper
    return helper.make_tensor_value_info(name, getattr(TensorProto, kind), shape)


def gru_cell(w, x, h, inputs, width):
    """As Keras writes it (reset_after): z and r by a sigmoid, the candidate by tanh."""
    of_x = w("Add", w("MatMul", x, w.weights(inputs, 3 * width)), w.weights(3 * width))
    of_h = w("Add", w("MatMul", h, w.weights(width, 3 * width)), w.weights(3 * width))
    xs, hs = w("Split", of_x, outputs=3, axis=-1), w("Split", of_h, outputs=3, axis=-1)
    z = w("Sigmoid", w("Add", xs[0], hs[0]))
    r = w("Sigmoid", w("Add", xs[1], hs[1]))
    candidate = w("Tanh", w("Add", xs[2], w("Mul", r, hs[2])))
    kept, new = w("Mul", z, h), w("Mul", w("Sub", w.constant(1, "float32"), z), candidate)
    return w("Add", kept, new)


def lstm_cell(w, x, h, c, inputs, width):
    both = w("Concat", x, h, axis=-1)
    gates = w("Add", w("MatMul", both, w.weights(inputs + width, 4 * width)), w.weights(4 * width))
    i, j, f, o = w("Split", gates, outputs=4, axis=-1)
    forget = w("Sigmoid", w("Add", f, w.constant(1, "float32")))
    c = w("Add", w("Mul", c, forget), w("Mul", w("Sigmoid", i), w("Tanh", j)))
    return w("Mul", w("Tanh", c), w("Sigmoid", o)), c


def model_of(graph, inputs, outputs):
    from onnx import checker, helper
    infos = [value(name, "INT64" if name == "input_ids" else "FLOAT", list(shape)) for name, shape in inputs]
    made = helper.make_model(
        helper.make_graph(graph.nodes, "small", infos, outputs, list(graph.constants.values())),
        opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    checker.check_model(made)
    return made


def zeros(w, x, width):
    """A state for each row of x."""
    rows = w("Slice", w("Shape", x), w.constant([0]), w.constant([1]))
    return w("Expand", w.constant([[0.0]], "float32"), w("Concat", rows, w.constant([width]), axis=0))


INPUTS, WIDTH = 64, 128  # of a step, of the state
STEPS = (("x", ("batch", "time", INPUTS)),)


def loop(cell, states):
    """tf2onnx's loop over time: counters beside the states, the step's input by Gather, outputs stacked."""
    def build():
        from onnx import helper
        w = Writer()
        turned = w("Transpose", "x", perm=[1, 0, 2])
        steps = w("Gather", w("Shape", "x"), w.constant(1))
        body = Writer("body_", w.constants)
        step = body("Gather", turned, "time", axis=0)
        now = cell(body, step, *[f"state_{i}" for i in range(states)])
        after = body("Add", "time", body.constant(1))
        goes_on = body("And", body("Less", after, steps), body("Identity", "condition"))
        kept = [body("Identity", s) for s in now]
        given = body("Identity", now[0])
        states_in = [value(f"state_{i}", "FLOAT") for i in range(states)]
        graph = helper.make_graph(
            body.nodes, "body", [value("number", "INT64", []), value("condition", "BOOL", []), value("time", "INT64", []), *states_in],
            [value(goes_on, "BOOL", []), value(after, "INT64", []), *(value(k, "FLOAT") for k in kept), value(given, "FLOAT")])
        first = [zeros(w, "x", WIDTH) for _ in range(states)]
        out = w("Loop", steps, w.constant(True, "bool"), w.constant(0), *first, outputs=2 + states, body=graph)
        y = w("Transpose", out[-1], perm=[1, 0, 2])
        w.nodes.append(helper.make_node("Identity", [y], ["y"]))
        return model_of(w, STEPS, [value("y", "FLOAT", ["batch", "time", WIDTH])])
    return build


def gru_step(w, x, h):
    return (gru_cell(w, x, h, INPUTS, WIDTH),)


def lstm_step(w, x, h, c):
    return lstm_cell(w, x, h, c, INPUTS, WIDTH)


def gated_lstm_step(w, x, h, c):
    """With a branch that the data take: the state fades where the whole batch's has grown."""
    from onnx import helper
    h, c = lstm_cell(w, x, h, c, INPUTS, WIDTH)
    grown = w("Greater", w("ReduceMax", h, keepdims=0), w.constant(0.5, "float32"))
    one, other = Writer(w.prefix + "then_", w.constants), Writer(w.prefix + "else_", w.constants)
    fades, stays = one("Mul", c, one.constant(0.5, "float32")), other("Identity", c)
    c = w("If", grown, then_branch=helper.make_graph(one.nodes, "then", [], [value(fades, "FLOAT")]),
          else_branch=helper.make_graph(other.nodes, "else", [], [value(stays, "FLOAT")]))
    return h, c


def scan():
    """A simple recurrence in both things that Scan does: a state, and an output a step."""
    from onnx import helper
    w = Writer()
    turned = w("Transpose", "x", perm=[1, 0, 2])
    body = Writer("body_", w.constants)
    h = body("Tanh", body("Add", body("Add", body("MatMul", "step", body.weights(INPUTS, WIDTH)), body("MatMul", "state", body.weights(WIDTH, WIDTH))),
                          body.weights(WIDTH)))
    given = body("Identity", h)
    graph = helper.make_graph(body.nodes, "body", [value("state", "FLOAT"), value("step", "FLOAT")], [value(h, "FLOAT"), value(given, "FLOAT")])
    out = w("Scan", zeros(w, "x", WIDTH), turned, outputs=2, body=graph, num_scan_inputs=1)
    w.nodes.append(helper.make_node("Transpose", [out[1]], ["y"], perm=[1, 0, 2]))
    return model_of(w, STEPS, [value("y", "FLOAT", ["batch", "time", WIDTH])])


GREEDY = (("input_ids", ("batch",)), ("limit", (1,)))


def greedy(most):
    """Decoding in the model: at each step the likeliest token goes back in. Data end it, half way, whatever they are."""
    def build():
        from onnx import helper
        w = Writer()
        half = w("Clip", "limit", w.constant(most / 2, "float32"), w.constant(most / 2, "float32"))
        body = Writer("body_", w.constants)
        x = body("Gather", body.weights(VOCABULARY, INPUTS), "token")
        h = gru_cell(body, x, "state", INPUTS, WIDTH)
        logits = body("Add", body("MatMul", h, body.weights(WIDTH, VOCABULARY)), body.weights(VOCABULARY))
        token = body("ArgMax", logits, axis=-1, keepdims=0)
        at = body("Equal", body.constant([list(range(most))]), "number")
        tokens = body("Where", at, body("Unsqueeze", token, body.constant([1])), "tokens")
        so_far = body("Cast", body("Add", "number", body.constant(1)), to=1)
        goes_on = body("Squeeze", body("Less", so_far, half), body.constant([0]))
        last = body("Identity", logits)
        graph = helper.make_graph(
            body.nodes, "body",
            [value("number", "INT64", []), value("condition", "BOOL", []), value("token", "INT64"), value("state", "FLOAT"),
             value("tokens", "INT64"), value("last", "FLOAT")],
            [value(goes_on, "BOOL", []), value(token, "INT64"), value(h, "FLOAT"), value(tokens, "INT64"), value(last, "FLOAT")])
        none = w("Cast", zeros(w, "input_ids", most), to=7)
        out = w("Loop", w.constant(most), w.constant(True, "bool"), "input_ids", zeros(w, "input_ids", WIDTH), none,
                zeros(w, "input_ids", VOCABULARY), outputs=4, body=graph)
        w.nodes.append(helper.make_node("Identity", [out[3]], ["y"]))
        w.nodes.append(helper.make_node("Identity", [out[2]], ["tokens_out"]))
        return model_of(w, GREEDY,
                        [value("y", "FLOAT", ["batch", VOCABULARY]), value("tokens_out", "INT64", ["batch", most])])
    return build


WORDS = (("input_ids", ("batch", "tokens")), ("attention_mask", ("batch", "tokens")))
ONE_WORD = ("input_ids", ("batch", 1))


def bert(layers, width, tokens):
    return Small(encoder(layers, width), WORDS, ("y",), {"tokens": tokens})


def gpt2(layers, width, heads, past):
    made = tuple(past_of(layers, heads, width // heads, cross=False))
    return Small(gpt2_step(layers, width, heads), (ONE_WORD, *made),
                 ("y", *(f"now_{name[5:]}" for name, _ in made)), {"past": past})


def seq2seq(layers, width, heads, past, ranks):
    made = tuple(past_of(layers, heads, width // heads, cross=True))
    return Small(decoder_step(width, heads, layers, ranks), (ONE_WORD, *made),
                 ("y", *(f"now_{name[5:]}" for name, _ in made if name.startswith("past"))), {"past": past, "source": 32})


SMALL = {
    "small_bert_2x64": bert(2, 64, 16),
    "small_bert_4x128": bert(4, 128, 32),
    "small_bert_6x256": bert(6, 256, 64),
    "small_gpt2_2x64": gpt2(2, 64, 2, 16),
    "small_gpt2_4x128": gpt2(4, 128, 4, 32),
    "small_gpt2_6x256": gpt2(6, 256, 8, 64),
    "small_bart_2x128": seq2seq(2, 128, 4, 16, ranks=False),
    "small_t5_4x128": seq2seq(4, 128, 4, 32, ranks=True),
    "loop_gru": Small(loop(gru_step, 1), STEPS, ("y",), {"time": 32}),
    "loop_lstm": Small(loop(lstm_step, 2), STEPS, ("y",), {"time": 64}),
    "loop_lstm_if": Small(loop(gated_lstm_step, 2), STEPS, ("y",), {"time": 32}),
    "scan_rnn": Small(scan, STEPS, ("y",), {"time": 64}),
    "loop_greedy_16": Small(greedy(16), GREEDY, ("y", "tokens_out"), {}),
    "loop_greedy_64": Small(greedy(64), GREEDY, ("y", "tokens_out"), {}),
}
BATCHES = (1, 8)


def fixed_inputs(name: str) -> list[tuple[str, tuple[int, ...]]] | None:
    """The inputs of a file that write_fixed() made; None: it is not one of these."""
    base, _, batch = name.rpartition("_b")
    return SMALL[base].fixed(int(batch)) if base in SMALL and batch.isdigit() else None


def write_open(name: str, file: pathlib.Path) -> None:
    import onnx
    small = SMALL[name]
    partial = file.with_suffix(".partial")
    if name.startswith("small"):
        import numpy as np
        import torch
        from carillon_models.exporting import settle
        torch.manual_seed(1)
        model = small.build().eval()
        settle(model)
        like = [torch.from_numpy(np.ones(shape, np.int64 if len(shape) == 2 else np.float32)) for _, shape in small.fixed(2)]
        axes = {n: {i: d for i, d in enumerate(shape) if isinstance(d, str)} for n, shape in small.inputs}
        with torch.no_grad():
            torch.onnx.export(model, tuple(like), str(partial), dynamo=False, opset_version=17,
                              input_names=[n for n, _ in small.inputs], output_names=list(small.outputs), dynamic_axes=axes)
    else:
        onnx.save(small.build(), str(partial))
    partial.rename(file)


def write_fixed(name: str, batch: int, open_file: pathlib.Path, file: pathlib.Path) -> None:
    import onnx
    model = onnx.load(str(open_file))
    shapes = dict(SMALL[name].fixed(batch))
    for given in model.graph.input:
        for dim, extent in zip(given.type.tensor_type.shape.dim, shapes[given.name]):
            dim.dim_value = extent
    for out in model.graph.output:
        out.type.tensor_type.ClearField("shape")
    del model.graph.value_info[:]
    partial = file.with_suffix(".partial")
    onnx.save(model, str(partial))
    partial.rename(file)
