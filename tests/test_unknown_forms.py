"""What a file may say that is not known here: refused by name, whichever engine would run it; and what is known, as ONNX has it."""

from __future__ import annotations

import copy

import numpy as np
import onnx
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from onnx import AttributeProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from loopback import serving

node = helper.make_node
BITS = {"FLOAT8E4M3FN": 8, "FLOAT8E4M3FNUZ": 8, "FLOAT8E5M2": 8, "FLOAT8E5M2FNUZ": 8, "FLOAT8E8M0": 8, "UINT4": 4, "INT4": 4,
        "FLOAT4E2M1": 4, "UINT2": 2, "INT2": 2}
OPENVINO = 'parameters { key: "engine" value { string_value: "openvino" } }'
NUMBERS = np.random.default_rng(5).standard_normal((4, 16)).astype(np.float32)


def value(name, shape, type=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, type, shape)


def model(nodes, weights=(), opset=17, ir=8, domains=(), x=(4, 16), out=TensorProto.FLOAT):
    graph = helper.make_graph(nodes, "g", [value("x", x)], [value("y", None, out)], list(weights))
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(name, version) for name, version in domains)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=ir)


def relu(**more):
    return model([node("Relu", ["x"], ["y"])], **more)


def narrow(type, encoding, dims, seed=1):
    """A tensor of codes, all of which are numbers."""
    bits = BITS[type]
    count = int(np.prod(dims))
    codes = np.random.default_rng(seed).integers(0, 120 if bits == 8 else 1 << bits, count)
    each = 8 // bits
    packed = [sum(int(code) << (bits * j) for j, code in enumerate(codes[i:i + each])) for i in range(0, count, each)]
    tensor = TensorProto(name="w", data_type=getattr(TensorProto, type), dims=dims)
    if encoding == "raw_data":
        tensor.raw_data = bytes(packed)
    else:
        tensor.int32_data.extend(packed)
    return tensor


def product(type, encoding, opset):
    """Of numbers and of weights that have one scale a column."""
    scales = numpy_helper.from_array(np.linspace(0.01, 0.1, 24).astype(np.float32), "s")
    return model([node("DequantizeLinear", ["w", "s"], ["f"], axis=1), node("MatMul", ["x", "f"], ["y"])],
                 [narrow(type, encoding, [16, 24]), scales], opset, 13)


def tensor(type, dims=(3,), **fields):
    made = TensorProto(name="w", data_type=type, dims=dims)
    for field, values in fields.items():
        if field in ("raw_data", "data_location"):
            setattr(made, field, values)
        elif field == "external_data":
            for key, text in values:
                made.external_data.add(key=key, value=text)
        else:
            getattr(made, field).extend(values)
    return made


def cast(weight):
    """To floats, as a request of three numbers gets them added."""
    return model([node("Cast", ["w"], ["f"], to=TensorProto.FLOAT), node("Add", ["x", "f"], ["y"])], [weight], x=[3])


def with_attribute(made, name, change):
    for attribute in made.graph.node[0].attribute:
        if attribute.name == name:
            change(attribute)
    return made


def unknown_location():
    made = tensor(TensorProto.FLOAT, raw_data=bytes(12))
    made.MergeFromString(b"\x70\x05")  # data_location, which has no 5
    return cast(made)


def segment():
    made = tensor(TensorProto.FLOAT, raw_data=bytes(12))
    made.segment.begin = 0
    made.segment.end = 3
    return cast(made)


def quantised(type, opset):
    zero = narrow(type, "raw_data", [1])
    zero.name = "z"
    del zero.dims[:]
    zero.raw_data = b"\0"
    return model([node("QuantizeLinear", ["x", "s", "z"], ["q"]), node("DequantizeLinear", ["q", "s", "z"], ["y"])],
                 [numpy_helper.from_array(np.float32(0.5), "s"), zero], opset, 13)


def branches(levels):
    """A graph of Ifs, each in a branch of the one before."""
    def graph(level):
        out = [value(f"r{level}", None)]
        if level == levels:
            return helper.make_graph([node("Neg", ["x"], [f"r{level}"])], f"b{level}", [], out)
        other = helper.make_graph([node("Relu", ["x"], [f"e{level}"])], f"o{level}", [], [value(f"e{level}", None)])
        return helper.make_graph([node("If", ["c"], [f"r{level}"], then_branch=graph(level + 1), else_branch=other)],
                                 f"b{level}", [], out)
    first = helper.make_graph([node("Identity", ["x"], ["e"])], "first", [], [value("e", None)])
    made = model([node("ReduceSum", ["x"], ["t"], keepdims=0), node("Cast", ["t"], ["c"], to=TensorProto.BOOL),
                  node("If", ["c"], ["y"], then_branch=graph(2), else_branch=first)])
    return made


# By name: the model, and what is said of it.
REFUSED = {
    "opset": (relu(opset=28, ir=13), "it uses opset 28; the newest known is 27"),
    "opset_far": (relu(opset=4_000_000), "it uses opset 4000000; the newest known is 27"),
    "opset_below": (relu(opset=-1), "it uses opset -1; the first is 1"),
    "ir": (relu(ir=14), "its IR version is 14; the newest known is 13"),
    "ml": (relu(domains=[("ai.onnx.ml", 6)]), "it uses opset 6 of domain 'ai.onnx.ml'; the newest known is 5"),
    "microsoft": (relu(domains=[("com.microsoft", 2)]), "opset 2 of domain 'com.microsoft'; the newest known is 1"),
    "training": (relu(domains=[("ai.onnx.preview.training", 2)]), "'ai.onnx.preview.training'; the newest known is 1"),
    "two_opsets": (relu(domains=[("ai.onnx", 16)]), "it uses opset 16 and also 17; there can be one"),
    "type_99": (cast(tensor(99, raw_data=bytes(3))), "ONNX element type number 99 is not supported"),
    "out_of_range": (cast(tensor(TensorProto.UINT8, int32_data=[1, 300, 2])),
                     "int32_data has 300 as element 1, which is out of the range of its type uint8"),
    "negative": (cast(tensor(TensorProto.UINT16, int32_data=[1, 2, -1])), "int32_data has -1 as element 2"),
    "twice": (cast(tensor(TensorProto.FLOAT, raw_data=bytes(12), float_data=[1, 2, 3])),
              "its data are in raw_data and in float_data"),
    "elsewhere": (cast(tensor(TensorProto.FLOAT, int64_data=[1, 2, 3])),
                  "its data are in int64_data, and those of type FLOAT belong into float_data"),
    "outside_and_inside": (cast(tensor(TensorProto.FLOAT, raw_data=bytes(12), data_location=TensorProto.EXTERNAL,
                                       external_data=[("location", "w.bin")])), "outside the file, and in raw_data"),
    "without_end": (cast(tensor(TensorProto.FLOAT, [2**40, 2**40])), "elements"),
    "levels": (branches(25), "graphs are nested more than 16 deep"),
    "two_offsets": (cast(tensor(TensorProto.FLOAT, data_location=TensorProto.EXTERNAL,
                                external_data=[("location", "w.bin"), ("offset", "0"), ("offset", "4")])),
                    "external data: offset is given twice"),
    "location": (unknown_location(), "its data_location is one that ONNX does not have"),
    "segment": (segment(), "tensors in segments are not supported"),
    "gelu": (with_attribute(model([node("Gelu", ["x"], ["y"], approximate="none")], opset=20),
                            "approximate", lambda a: setattr(a, "s", b"erf")), "it is 'erf', and must be one of none, tanh"),
    "depth": (model([node("DepthToSpace", ["x"], ["y"], blocksize=2, mode="CDR")], x=[1, 4, 2, 2]),
              "it is 'CDR', and must be one of DCR, CRD"),
    "padding": (model([node("Pad", ["x", "p"], ["y"], mode="mirror")], [numpy_helper.from_array(np.zeros(4, np.int64), "p")]),
                "it is 'mirror', and must be one of constant, reflect, edge, wrap"),
    "two_values": (with_attribute(model([node("LeakyRelu", ["x"], ["y"], alpha=0.5)]), "alpha", lambda a: setattr(a, "i", 3)),
                   "attribute 'alpha': it has values of 2 types"),
    "attribute_type": (with_attribute(model([node("LeakyRelu", ["x"], ["y"], alpha=0.5)]), "alpha",
                                      lambda a: setattr(a, "type", AttributeProto.FLOATS)), "has the wrong type"),
}
# Our own engine has these; the other one takes bits for whole numbers.
BY_OTHERS = {"bfloat16_given": (cast(tensor(TensorProto.BFLOAT16, int32_data=[0x3f80, 0x4000, 0xbf80])),
                                "tensor 'w' of type BFLOAT16 is in int32_data")}
for type in ("FLOAT8E4M3FN", "FLOAT8E5M2"):
    for opset in (19, 24, 26):
        REFUSED[f"{type}_int32_{opset}".lower()] = (product(type, "int32_data", opset),
                                                    f"of type {type} is in int32_data, which engines read otherwise")
        REFUSED[f"{type}_made_{opset}".lower()] = (quantised(type, opset), "it makes values of the type of 'z'")
        REFUSED[f"{type}_cast_{opset}".lower()] = (
            model([node("Cast", ["x"], ["q"], to=getattr(TensorProto, type)), node("Cast", ["q"], ["y"], to=TensorProto.FLOAT)],
                  opset=opset, ir=13), f"it makes values of {type}")
for type in ("FLOAT8E4M3FNUZ", "FLOAT8E5M2FNUZ", "FLOAT8E8M0", "UINT2", "INT2"):
    REFUSED[f"{type}_weights".lower()] = (product(type, "raw_data", 25), f"of type {type}: no engine here has that type")
for type in ("UINT4", "INT4"):
    REFUSED[f"{type}_made".lower()] = (quantised(type, 21), "it makes values of the type of 'z'")

SERVED = {"newest": relu(opset=27, ir=13), "bfloat16": BY_OTHERS["bfloat16_given"][0], "truth": cast(tensor(TensorProto.BOOL, int32_data=[256, 0, -1]))}
for type in ("FLOAT8E4M3FN", "FLOAT8E5M2", "UINT4", "INT4", "FLOAT4E2M1"):
    for opset in (23, 24, 26):
        SERVED[f"{type}_raw_{opset}".lower()] = product(type, "raw_data", opset)
        if BITS[type] == 4:
            SERVED[f"{type}_int32_{opset}".lower()] = product(type, "int32_data", opset)


@pytest.fixture(scope="module")
def server(program, tmp_path_factory):
    folder = tmp_path_factory.mktemp("unknown")
    every = {**SERVED, **{name: made for name, (made, _) in REFUSED.items()}}
    # The other engine reads files by itself: what it is asked for is looked at just so.
    every.update({f"{name}_given": made for name, (made, _) in REFUSED.items()
                  if name in ("opset", "opset_below", "without_end", "levels", "ir", "ml", "two_opsets", "twice", "outside_and_inside", "location", "segment")
                  or name.startswith("float8") or "int" in name})
    every.update({name: made for name, (made, _) in BY_OTHERS.items()})
    for name, made in every.items():
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "1" / "model.onnx").write_bytes(made.SerializeToString())
        (folder / name / "1" / "w.bin").write_bytes(bytes(16))
        (folder / name / "config.pbtxt").write_text("max_batch_size: 0\n" + (OPENVINO if name.endswith("_given") else ""))
    with serving(program, folder, tmp_path_factory.mktemp("log") / "server.log", "--strict-readiness", "false") as running:
        yield running


def states(server):
    with http_client.InferenceServerClient(server.http) as client:
        return {entry["name"]: (entry.get("state"), entry.get("reason", "")) for entry in client.get_model_repository_index()}


def test_what_is_not_known_is_refused_by_name(server):
    index = states(server)
    for name, (_, said) in {**REFUSED, **BY_OTHERS}.items():
        for model_name in (name, f"{name}_given"):
            if model_name in index:
                state, reason = index[model_name]
                assert state == "UNAVAILABLE" and said in reason, (model_name, state, reason)


@pytest.mark.parametrize("module", [http_client, grpc_client], ids=["http", "grpc"])
def test_what_is_known_is_as_onnx_has_it(server, module):
    index = states(server)
    with module.InferenceServerClient(server.http if module is http_client else server.grpc) as client:
        for name, made in SERVED.items():
            assert index[name][0] == "READY", (name, index[name])
            x = NUMBERS[0, :3] if name in ("truth", "bfloat16") else NUMBERS
            tensor = module.InferInput("x", x.shape, "FP32")
            tensor.set_data_from_numpy(x)
            got = client.infer(name, [tensor]).as_numpy("y")
            reference = copy.deepcopy(made)
            if name == "newest":  # the reference has no other form of it
                reference.opset_import[0].version = 14
            want = x + [1, 0, 1] if name == "truth" else ReferenceEvaluator(reference).run(None, {"x": x})[0]
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4 * np.abs(want).max(), err_msg=name)
