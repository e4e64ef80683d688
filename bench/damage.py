"""Models and configs, and seeded damage to them: same seed, same bytes, on every machine.

Half of the damage is blind (bytes flipped, cut, doubled, moved, the end gone), half knows protobuf's fields and changes
one of them to what a hostile or broken exporter might write, so that it gets further in than a parser.
"""

import random

import numpy as np
import onnx
from google.protobuf import json_format, text_format
from google.protobuf.descriptor import FieldDescriptor as Field
from onnx import TensorProto, helper, numpy_helper
from tritonclient.grpc import model_config_pb2

WHOLE = [0, 1, -1, 2, 3, 7, 16, 255, 65536, 2**31 - 1, 2**31, -(2**31), 2**32, 2**40, 2**62, 2**63 - 1, -(2**63)]
REAL = [0.0, -0.0, 1.0, -1.0, 0.5, 1e-30, 1e30, float("inf"), float("-inf"), float("nan"), 3.4e38, -3.4e38]
TEXTS = [
    "",
    "x",
    "input",
    "output",
    "../../etc/passwd",
    "/dev/zero",
    "a/b",
    "\u00fc\U0001f514",
    "n" * 100_000,
    "%s%n",
    "\n",
    "0",
]
OPERATORS = [
    "Add",
    "Cast",
    "Concat",
    "Constant",
    "Conv",
    "ConvTranspose",
    "DequantizeLinear",
    "Einsum",
    "Expand",
    "Flatten",
    "GRU",
    "Gather",
    "Gemm",
    "If",
    "LSTM",
    "LayerNormalization",
    "Loop",
    "MatMul",
    "MaxPool",
    "NonZero",
    "Pad",
    "QLinearConv",
    "QuantizeLinear",
    "Range",
    "ReduceMean",
    "Relu",
    "Reshape",
    "Resize",
    "Scan",
    "Shape",
    "Slice",
    "Softmax",
    "Split",
    "Squeeze",
    "Tile",
    "TopK",
    "Transpose",
    "Unsqueeze",
    "Where",
    "NoSuchOperator",
]


# -- what is damaged


def tensor(name, kind, *shape):
    return helper.make_tensor_value_info(name, kind, shape)


def model_of(name, nodes, inputs, outputs, weights):
    model = helper.make_model(
        helper.make_graph(nodes, name, inputs, outputs, weights),
        opset_imports=[helper.make_opsetid("", 17)],
        producer_name="damage",
    )
    model.ir_version = 8
    onnx.checker.check_model(model, full_check=True)
    return model


def numbers(generator, name, *shape, gain=0.3):
    return numpy_helper.from_array((gain * generator.standard_normal(shape)).astype(np.float32), name)


def constant(name, values, kind):
    return numpy_helper.from_array(np.asarray(values, kind), name)


def perceptron():
    """Two dense layers."""
    made = np.random.default_rng(1)
    nodes = [
        helper.make_node("Gemm", ["input", "w1", "b1"], ["h"], "first", transB=1),
        helper.make_node("Relu", ["h"], ["r"], "relu"),
        helper.make_node("Gemm", ["r", "w2", "b2"], ["p"], "second"),
        helper.make_node("Softmax", ["p"], ["output"], "most", axis=1),
    ]
    return model_of(
        "perceptron",
        nodes,
        [tensor("input", TensorProto.FLOAT, "batch", 16)],
        [tensor("output", TensorProto.FLOAT, "batch", 5)],
        [numbers(made, "w1", 24, 16), numbers(made, "b1", 24), numbers(made, "w2", 24, 5), numbers(made, "b2", 5)],
    )


def reader():
    """Words looked up, attention between them as exporters write it, an LSTM over the result."""
    made = np.random.default_rng(2)
    length, width, heads, hidden = 6, 8, 2, 5
    part = width // heads
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["words"], "look"),
        helper.make_node("Shape", ["ids"], ["shape"], "shape"),
        helper.make_node("Gather", ["shape", "zero"], ["batch"], "count"),
        helper.make_node("Unsqueeze", ["batch", "axis"], ["batch1"], "row"),
        helper.make_node("Concat", ["batch1", "parts"], ["split"], "split", axis=0),
    ]
    for name, turn in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
        nodes += [
            helper.make_node("MatMul", ["words", f"w{name}"], [f"{name}1"], f"{name}.product"),
            helper.make_node("Reshape", [f"{name}1", "split"], [f"{name}2"], f"{name}.heads"),
            helper.make_node("Transpose", [f"{name}2"], [f"{name}3"], f"{name}.turned", perm=turn),
        ]
    nodes += [
        helper.make_node("MatMul", ["q3", "k3"], ["scores"], "scores"),
        helper.make_node("Div", ["scores", "root"], ["scaled"], "scaled"),
        helper.make_node("Softmax", ["scaled"], ["weights"], "weights", axis=-1),
        helper.make_node("MatMul", ["weights", "v3"], ["mixed"], "mixed"),
        helper.make_node("Transpose", ["mixed"], ["back"], "back", perm=[2, 0, 1, 3]),
        helper.make_node("Reshape", ["back", "joined"], ["steps"], "steps"),
        helper.make_node("LSTM", ["steps", "lw", "lr", "lb"], ["all", "last", "cell"], "lstm", hidden_size=hidden),
        helper.make_node("Squeeze", ["last", "axis"], ["state"], "state"),
        helper.make_node("Gemm", ["state", "wo", "bo"], ["output"], "head"),
    ]
    weights = [
        numbers(made, "table", 20, width, gain=0.8),
        *(numbers(made, f"w{n}", width, width) for n in "qkv"),
        constant("zero", 0, np.int64),
        constant("axis", [0], np.int64),
        constant("parts", [length, heads, part], np.int64),
        constant("root", np.sqrt(part), np.float32),
        constant("joined", [length, -1, width], np.int64),
        numbers(made, "lw", 1, 4 * hidden, width),
        numbers(made, "lr", 1, 4 * hidden, hidden),
        numbers(made, "lb", 1, 8 * hidden),
        numbers(made, "wo", hidden, 3),
        numbers(made, "bo", 3),
    ]
    return model_of(
        "reader",
        nodes,
        [tensor("ids", TensorProto.INT64, "batch", length)],
        [tensor("output", TensorProto.FLOAT, "batch", 3)],
        weights,
    )


def quantised():
    """A convolution in ONNX's own quantised operators, one between QuantizeLinear and DequantizeLinear, a dense layer."""
    made = np.random.default_rng(3)
    bytes_of = lambda name, *shape: constant(name, made.integers(-60, 60, shape), np.int8)
    nodes = [
        helper.make_node("QuantizeLinear", ["input", "xs", "xz"], ["q"], "quantise"),
        helper.make_node(
            "QLinearConv",
            ["q", "xs", "xz", "w1", "ws", "wz", "ys", "yz", "b1"],
            ["c"],
            "first",
            pads=[1, 1, 1, 1],
            kernel_shape=[3, 3],
        ),
        helper.make_node("DequantizeLinear", ["c", "ys", "yz"], ["d"], "back"),
        helper.make_node("Relu", ["d"], ["r"], "relu"),
        helper.make_node("MaxPool", ["r"], ["m"], "pool", kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("QuantizeLinear", ["m", "ms", "mz"], ["mq"], "again"),
        helper.make_node("DequantizeLinear", ["mq", "ms", "mz"], ["md"], "and_back"),
        helper.make_node("DequantizeLinear", ["w2", "w2s", "w2z"], ["w2d"], "weights", axis=0),
        helper.make_node("Conv", ["md", "w2d", "b2"], ["c2"], "second", strides=[2, 2]),
        helper.make_node("GlobalAveragePool", ["c2"], ["g"], "mean"),
        helper.make_node("Flatten", ["g"], ["f"], "flat"),
        helper.make_node("Gemm", ["f", "w3", "b3"], ["output"], "head"),
    ]
    weights = [
        constant("xs", 0.04, np.float32),
        constant("xz", 118, np.uint8),
        constant("ys", 0.05, np.float32),
        constant("yz", 120, np.uint8),
        bytes_of("w1", 4, 2, 3, 3),
        constant("ws", 0.01, np.float32),
        constant("wz", 0, np.int8),
        constant("b1", made.integers(-500, 500, 4), np.int32),
        constant("ms", 0.02, np.float32),
        constant("mz", 3, np.uint8),
        bytes_of("w2", 6, 4, 3, 3),
        constant("w2s", made.uniform(0.005, 0.02, 6), np.float32),
        constant("w2z", np.zeros(6), np.int8),
        numbers(made, "b2", 6),
        numbers(made, "w3", 6, 3),
        numbers(made, "b3", 3),
    ]
    return model_of(
        "quantised",
        nodes,
        [tensor("input", TensorProto.FLOAT, "batch", 2, 8, 8)],
        [tensor("output", TensorProto.FLOAT, "batch", 3)],
        weights,
    )


def config_of(model, **more):
    """A config that says all that one can of a model's tensors, and some more."""
    config = model_config_pb2.ModelConfig(
        name=model.graph.name, platform="onnxruntime_onnx", max_batch_size=8, default_model_filename="model.onnx"
    )
    kinds = {TensorProto.FLOAT: model_config_pb2.TYPE_FP32, TensorProto.INT64: model_config_pb2.TYPE_INT64}
    for values, into in ((model.graph.input, config.input), (model.graph.output, config.output)):
        for value in values:
            into.add(
                name=value.name,
                data_type=kinds[value.type.tensor_type.elem_type],
                dims=[d.dim_value for d in value.type.tensor_type.shape.dim[1:]],
            )
    json_format.ParseDict(more, config)
    return config


MODELS = {"perceptron": perceptron(), "reader": reader(), "quantised": quantised()}
CONFIGS = {
    "perceptron": config_of(
        MODELS["perceptron"],
        dynamicBatching={"preferredBatchSize": [2, 8], "maxQueueDelayMicroseconds": "100"},
        parameters={"slo_ms": {"stringValue": "50"}, "class": {"stringValue": "normal"}},
    ),
    "reader": config_of(
        MODELS["reader"],
        versionPolicy={"latest": {"numVersions": 2}},
        parameters={"precision": {"stringValue": "f32"}},
        instanceGroup=[{"count": 1, "kind": "KIND_CPU"}],
    ),
    "quantised": config_of(
        MODELS["quantised"],
        versionPolicy={"specific": {"versions": ["1"]}},
        optimization={"graph": {"level": 1}},
        modelWarmup=[
            {
                "name": "warm",
                "batchSize": 1,
                "inputs": {"input": {"dataType": "TYPE_FP32", "dims": ["2", "8", "8"], "zeroData": True}},
            }
        ],
    ),
}


# -- damage


def damaged_bytes(whole, chance):
    """Blind damage: some cuts, flips, moves; or the end gone."""
    data = bytearray(whole)
    for _ in range(chance.choice([1, 1, 1, 2, 4, 16])):
        if not data:
            break
        at = chance.randrange(len(data))
        length = min(chance.choice([1, 2, 4, 8, 64, 1024]), len(data) - at)
        how = chance.randrange(8)
        if how <= 1:
            data[at] ^= 1 << chance.randrange(8)
        elif how == 2:
            data[at : at + length] = chance.randbytes(length)
        elif how == 3:
            data[at : at + length] = chance.choice([b"\0", b"\xff", b"\x80", b"\x7f"]) * length
        elif how == 4:
            del data[at : at + length]
        elif how == 5:
            data[at:at] = data[at : at + length]
        elif how == 6:
            other = chance.randrange(len(data))
            data[other:other] = data[at : at + length]
        elif chance.randrange(3) == 0:
            del data[at:]
    return bytes(data)


def places(message, below=None):
    """All messages in it with at least one field, itself first; below a few thousand."""
    found = [message] if below is None else below
    for field, value in message.ListFields():
        if field.type == Field.TYPE_MESSAGE and len(found) < 5000:
            if field.message_type.GetOptions().map_entry:
                inner = value.values() if field.message_type.fields_by_name["value"].type == Field.TYPE_MESSAGE else []
            else:
                inner = value if is_list(field) else [value]
            for each in inner:
                found.append(each)
                places(each, found)
    return found


def is_list(field):
    return field.is_repeated if hasattr(field, "is_repeated") else field.label == Field.LABEL_REPEATED


def other_value(field, old, chance, names):
    kinds = Field
    if field.type in (kinds.TYPE_FLOAT, kinds.TYPE_DOUBLE):
        return chance.choice([*REAL, old * 2, -old])
    if field.type == kinds.TYPE_BOOL:
        return not old
    if field.type == kinds.TYPE_STRING:
        if field.name == "op_type":
            return chance.choice(OPERATORS)
        return chance.choice([*TEXTS, *names, *names, old + "x", old[:-1]])
    if field.type == kinds.TYPE_BYTES:
        return chance.choice(
            [
                b"",
                old[:-1],
                old[: len(old) // 2],
                old + old,
                old + b"\0",
                damaged_bytes(old, chance),
                chance.randbytes(len(old)),
            ]
        )
    if field.type == kinds.TYPE_ENUM:
        return chance.choice(
            [*(v.number for v in field.enum_type.values), *([] if field.enum_type.is_closed else [77])]
        )
    low, high = {
        kinds.TYPE_INT32: (-(2**31), 2**31 - 1),
        kinds.TYPE_SINT32: (-(2**31), 2**31 - 1),
        kinds.TYPE_UINT32: (0, 2**32 - 1),
        kinds.TYPE_UINT64: (0, 2**64 - 1),
    }.get(field.type, (-(2**63), 2**63 - 1))
    return min(max(chance.choice([*WHOLE, old + 1, old - 1, old + 1, old - 1, old * 2, -old, old // 2]), low), high)


def damage_field(message, chance, names):
    """One change to one field of one message in it."""
    spots = places(message)
    spot = chance.choice(spots)
    fields = [
        (field, value)
        for field, value in spot.ListFields()
        if not (field.type == Field.TYPE_MESSAGE and field.message_type.GetOptions().map_entry)
    ]
    if not fields or chance.randrange(8) == 0:  # one that is not set
        field = chance.choice(spot.DESCRIPTOR.fields)
        if field.type == Field.TYPE_MESSAGE:
            return
        value = other_value(
            field,
            (
                field.default_value
                if not is_list(field)
                else {
                    Field.CPPTYPE_STRING: b"" if field.type == Field.TYPE_BYTES else "",
                    Field.CPPTYPE_BOOL: False,
                }.get(field.cpp_type, 0)
            ),
            chance,
            names,
        )
        if is_list(field):
            getattr(spot, field.name).append(value)
        else:
            setattr(spot, field.name, value)
        return
    field, value = chance.choice(fields)
    how = chance.randrange(10)
    if is_list(field):
        at = chance.randrange(len(value))
        if how == 0:
            spot.ClearField(field.name)
        elif how <= 2:
            del value[at]
        elif how <= 4:
            value.extend([value[at]] * chance.choice([1, 1, 1, 30]))
        elif how == 5:
            turned = (
                [type(v).FromString(v.SerializeToString()) for v in value]
                if field.type == Field.TYPE_MESSAGE
                else list(value)
            )
            chance.shuffle(turned)
            spot.ClearField(field.name)
            getattr(spot, field.name).extend(turned)
        elif field.type == Field.TYPE_MESSAGE:
            damage_field(value[at], chance, names)
        else:
            value[at] = other_value(field, value[at], chance, names)
    elif how == 0:
        spot.ClearField(field.name)
    elif field.type == Field.TYPE_MESSAGE:
        damage_field(value, chance, names)
    else:
        setattr(spot, field.name, other_value(field, value, chance, names))


def damage_structure(message, chance):
    """A copy with one to three of its fields changed."""
    copy = type(message).FromString(message.SerializeToString())
    names = []
    for spot in places(copy):
        names += [value for field, value in spot.ListFields() if field.type == Field.TYPE_STRING and not is_list(field)]
    for _ in range(chance.choice([1, 1, 2, 3])):
        damage_field(copy, chance, names)
    return copy


def ordinary(model):
    """Whether no weight of an ONNX file is infinite, NaN or so large that sums of products may be."""
    for weight in onnx.ModelProto.FromString(model).graph.initializer:
        if weight.data_type in (TensorProto.FLOAT, TensorProto.DOUBLE) and not np.all(
            np.abs(numpy_helper.to_array(weight)) < 1e12
        ):
            return False
    return True


def chance_of(kind, name, seed):
    return random.Random(f"{kind}/{name}/{seed}")


def damaged_model(name, seed):
    chance = chance_of("model", name, seed)
    whole = MODELS[name]
    if seed % 2:
        return damage_structure(whole, chance).SerializeToString(deterministic=True)
    return damaged_bytes(whole.SerializeToString(deterministic=True), chance)


def damaged_text(name, seed):
    """config.pbtxt, as bytes: not all of it is UTF-8."""
    chance = chance_of("text", name, seed)
    whole = CONFIGS[name]
    if seed % 2:
        whole = damage_structure(whole, chance)
        return text_format.MessageToString(whole).encode()
    return damaged_bytes(text_format.MessageToString(whole).encode(), chance)


def damaged_json(name, seed):
    """A config as clients send one with an order, as text."""
    chance = chance_of("json", name, seed)
    whole = CONFIGS[name]
    if seed % 2:
        whole = damage_structure(whole, chance)
        return json_format.MessageToJson(whole)
    return damaged_bytes(json_format.MessageToJson(whole).encode(), chance).decode(errors="replace")
