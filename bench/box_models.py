"""Many small ONNX models of ten architectures, with weights of 2 to 8 MiB each, drawn by a seed.

    python bench/box_models.py FOLDER [--count 500] [--seed 1]
"""
import argparse
import pathlib

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


class Writer:
    """Collects nodes and weights. `budget` is what the weights should take, in floats."""

    def __init__(self, rng, budget):
        self.rng, self.budget = rng, budget
        self.nodes, self.weights = [], []

    def weight(self, *shape, fan_in=None):
        values = self.rng.standard_normal(shape, np.float32)
        values *= np.float32(1 / np.sqrt(fan_in or shape[0]))
        return self.constant(values)

    def constant(self, values):
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(values), name))
        return name

    def node(self, op, *inputs, outputs=1, **attributes):
        made = [f"v{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(op, list(inputs), made, **attributes))
        return made[0] if outputs == 1 else made

    def dense(self, x, rows, columns, activation=None):
        y = self.node("Add", self.node("MatMul", x, self.weight(rows, columns)), self.weight(columns, fan_in=100))
        return self.node(activation, y) if activation else y

    def conv(self, x, channels, filters, kernel=3, stride=1, group=1, activation="Relu"):
        w = self.weight(filters, channels // group, kernel, kernel, fan_in=channels // group * kernel * kernel)
        y = self.node("Conv", x, w, self.weight(filters, fan_in=100), kernel_shape=[kernel] * 2, strides=[stride] * 2,
                      pads=[kernel // 2] * 4, group=group)
        return self.node(activation, y) if activation else y

    def pooled(self, x, channels, classes):
        return self.dense(self.node("Flatten", self.node("GlobalAveragePool", x)), channels, classes)


def even(number, unit=16):
    return max(unit, int(number) // unit * unit)


def mlp(w):
    width = even(np.sqrt(w.budget / 3))
    x = "x"
    for _ in range(3):
        x = w.dense(x, width, width, "Relu")
    return [("x", FLOAT, ["n", width])], x


def wide(w):
    """Few inputs, one wide layer."""
    width = even(w.budget / 160)
    return [("x", FLOAT, ["n", 128])], w.dense(w.dense("x", 128, width, "Tanh"), width, 32)


def cnn(w):
    filters = even(np.sqrt(w.budget / (9 * 21)), 8)
    x = w.conv("x", 3, filters, stride=2)
    for scale in (1, 2):
        x = w.conv(w.conv(x, filters * scale, filters * 2 * scale, stride=2), filters * 2 * scale, filters * 2 * scale)
    return [("x", FLOAT, ["n", 3, 64, 64])], w.pooled(x, filters * 4, 100)


def residual(w):
    filters = even(np.sqrt(w.budget / (9 * 8)), 8)
    x = w.conv("x", 3, filters, stride=2)
    for _ in range(4):
        y = w.conv(w.conv(x, filters, filters), filters, filters, activation=None)
        x = w.node("Relu", w.node("Add", x, y))
    return [("x", FLOAT, ["n", 3, 32, 32])], w.pooled(x, filters, 100)


def depthwise(w):
    filters = even(np.sqrt(w.budget / 6), 8)
    x = w.conv("x", 3, filters, stride=4)
    for _ in range(6):
        x = w.conv(w.conv(x, filters, filters, group=filters), filters, filters, kernel=1)
    return [("x", FLOAT, ["n", 3, 64, 64])], w.pooled(x, filters, 10)


def autoencoder(w):
    width = even(w.budget / (2 * 784 + 2 * 64))
    x = w.dense(w.dense("x", 784, width, "Relu"), width, 64, "Relu")
    return [("x", FLOAT, ["n", 784])], w.node("Sigmoid", w.dense(w.dense(x, 64, width, "Relu"), width, 784))


def encoder(w):
    """Two blocks of self-attention over a sequence of any length."""
    d = even(np.sqrt(w.budget / 24), 32)
    heads = 4
    x = "x"
    split = w.constant(np.array([0, 0, heads, d // heads], np.int64))
    joined = w.constant(np.array([0, 0, d], np.int64))
    scale = w.constant(np.float32(1 / np.sqrt(d // heads)))
    for _ in range(2):
        def part(order):
            return w.node("Transpose", w.node("Reshape", w.dense(x, d, d), split), perm=order)
        q, k, v = part([0, 2, 1, 3]), part([0, 2, 3, 1]), part([0, 2, 1, 3])
        scores = w.node("Softmax", w.node("Mul", w.node("MatMul", q, k), scale), axis=-1)
        mixed = w.node("Transpose", w.node("MatMul", scores, v), perm=[0, 2, 1, 3])
        x = w.node("Add", x, w.dense(w.node("Reshape", mixed, joined), d, d))
        x = w.node("LayerNormalization", x, w.constant(np.ones(d, np.float32)), w.constant(np.zeros(d, np.float32)))
        x = w.node("Add", x, w.dense(w.dense(x, d, 4 * d, "Relu"), 4 * d, d))
    return [("x", FLOAT, ["n", "length", d])], x


def recurrent(w, op, gates):
    hidden = even(np.sqrt(w.budget / (2 * gates)))
    y, last = w.node(op, "x", w.weight(1, gates * hidden, hidden, fan_in=hidden),
                     w.weight(1, gates * hidden, hidden, fan_in=hidden), outputs=2, hidden_size=hidden)[:2]
    flat = w.node("Squeeze", last, w.constant(np.array([0], np.int64)))
    # Sequences come one at a time, steps first.
    return [("x", FLOAT, [16, 1, hidden])], w.dense(flat, hidden, 10)


def lstm(w):
    return recurrent(w, "LSTM", 4)


def gru(w):
    return recurrent(w, "GRU", 3)


def recommender(w):
    """Rows of a table, looked up by ids, and a small network."""
    width = 64
    rows = even(w.budget / width - 16 * width)
    x = w.node("Reshape", w.node("Gather", w.weight(rows, width, fan_in=width), "ids"),
               w.constant(np.array([-1, 8 * width], np.int64)))
    return [("ids", INT64, ["n", 8])], w.node("Sigmoid", w.dense(w.dense(x, 8 * width, 128, "Relu"), 128, 1))


ARCHITECTURES = [mlp, wide, cnn, residual, depthwise, autoencoder, encoder, lstm, gru, recommender]


def make(folder, count=500, seed=1):
    """Writes the models; gives their names. A model that is there is left as it is: the seed names its folder."""
    names = []
    for index in range(count):
        architecture = ARCHITECTURES[index % len(ARCHITECTURES)]
        rng = np.random.default_rng([seed, index])
        size = rng.uniform(2, 6.8) * 2**20
        names.append(f"{architecture.__name__}_{index:03d}")
        file = pathlib.Path(folder) / names[-1] / "1" / "model.onnx"
        if file.exists():
            continue
        writer = Writer(rng, size / 4)
        inputs, output = architecture(writer)
        graph = helper.make_graph(
            writer.nodes, architecture.__name__,
            [helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in inputs],
            [helper.make_tensor_value_info(output, FLOAT, None)], writer.weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        model = onnx.shape_inference.infer_shapes(model)
        onnx.checker.check_model(model)
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_suffix(".partial")
        onnx.save(model, partial)
        partial.rename(file)
    return names


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    make(args.folder, args.count, args.seed)
    sizes = [file.stat().st_size / 2**20 for file in pathlib.Path(args.folder).glob("*/1/model.onnx")]
    print(f"{len(sizes)} models, {sum(sizes):.0f} MiB, {min(sizes):.1f} to {max(sizes):.1f} MiB each")


if __name__ == "__main__":
    main()
