"""The classical models of ai.onnx.ml, and the steps of optimizers."""

from __future__ import annotations

import numpy as np

from ..sketch import F32, F64, I64, TEXT, draw_numbers
from .registry import row

ML = "ai.onnx.ml"
TRAINING = "ai.onnx.preview.training"


def table(s, among=(F32, F32, F32, F64, I64), rank=(2, 2), width=(1, 4)):
    """Rows of features, as many as are known."""
    dtype = s.one(among)
    return s.tensor(dtype=dtype, rank=rank, where=lambda v: v.fixed(v.rank - 1) and width[0] <= v.shape[-1] <= width[1],
                    dims=("N", s.within(*width)))


@row("ArrayFeatureExtractor")
def extractor(s, op):
    value = table(s, among=(F32, F32, F64, I64))
    places = s.const(s.numbers.integers(0, value.shape[-1], (1, s.within(1, 3)) if s.chance(0.5) else (s.within(1, 3),)), I64)
    s.node(op, [value, places], domain=ML)


@row("Binarizer")
def binarizer(s, op):
    s.node(op, [table(s, among=(F32,))], domain=ML, threshold=s.one([None, 0.5]))


@row("Scaler")
def scaler(s, op):
    value = table(s)
    width = value.shape[-1]
    several = width if s.chance(0.7) else 1
    s.node(op, [value], domain=ML, offset=s.numbers.uniform(-1, 1, several).tolist(),
           scale=s.numbers.uniform(0.5, 2, several).tolist())


@row("Normalizer")
def normalizer(s, op):
    s.node(op, [table(s, among=(F32,))], domain=ML, norm=s.one(["MAX", "L1", "L2"]))


@row("Imputer")
def imputer(s, op):
    value = table(s, among=(F32, F32, I64))
    several = value.shape[-1] if s.chance(0.6) else 1
    if value.dtype == I64:
        return s.node(op, [value], domain=ML, imputed_value_int64s=list(range(several)), replaced_value_int64=s.one([0, 1]))
    s.node(op, [value], domain=ML, imputed_value_floats=s.numbers.uniform(-1, 1, several).tolist(), replaced_value_float=0.0)


@row("FeatureVectorizer")
def vectorizer(s, op):
    value = table(s, among=(F32, F32, F64, I64))
    others = [s.like(value, exact=True) for _ in range(s.within(0, 2))]
    s.node(op, [value, *others], domain=ML, inputdimensions=[value.shape[-1]] * (1 + len(others)))


@row("LabelEncoder")
def label_encoder(s, op):
    way = s.one(["ints", "texts", "to_texts", "floats"])
    if way == "ints":
        value = s.tensor(dtype=I64, rank=(1, 2), numbers=draw_numbers(I64, "index", 0, 4))
        return s.node(op, [value], domain=ML, keys_int64s=[0, 1, 2], values_floats=[0.5, 1.5, 2.5], default_float=s.one([None, -1.0]))
    if way == "texts":
        value = s.tensor(dtype=TEXT, rank=(1, 2))
        return s.node(op, [value], domain=ML, keys_strings=["a", "be", ""], values_int64s=[3, 2, 1], default_int64=s.one([None, 7]))
    if way == "to_texts":
        value = s.tensor(dtype=I64, rank=(1, 2), numbers=draw_numbers(I64, "index", 0, 4))
        return s.node(op, [value], domain=ML, keys_int64s=[0, 1, 2], values_strings=["x", "why", ""],
                      default_string=s.one([None, "?"]))
    value = s.tensor(dtype=F32, rank=(1, 2), numbers=lambda g, shape: g.integers(0, 4, shape).astype(np.float32))
    s.node(op, [value], domain=ML, keys_floats=[0.0, 1.0], values_floats=[5.0, 6.0], default_float=s.one([None, 9.0]))


@row("CategoryMapper")
def category_mapper(s, op):
    if s.chance(0.5):
        return s.node(op, [s.tensor(dtype=TEXT, rank=(1, 2))], domain=ML, cats_int64s=[1, 2, 3],
                      cats_strings=["a", "b", "be"], default_int64=-1)
    value = s.tensor(dtype=I64, rank=(1, 2), numbers=draw_numbers(I64, "index", 0, 5))
    s.node(op, [value], domain=ML, cats_int64s=[1, 2, 3], cats_strings=["a", "b", "be"], default_string="none")


@row("OneHotEncoder")
def one_hot_encoder(s, op):
    if s.chance(0.3):
        return s.node(op, [s.tensor(dtype=TEXT, rank=(1, 2))], domain=ML, cats_strings=["a", "b", "be"], zeros=s.one([None, 1]))
    dtype = s.one([I64, F32])
    value = s.tensor(dtype=dtype, rank=(1, 2), numbers=lambda g, shape: g.integers(0, 4, shape).astype(dtype))
    s.node(op, [value], domain=ML, cats_int64s=[0, 1, 2, 3], zeros=s.one([None, 1]))


@row("LinearRegressor")
def linear_regressor(s, op):
    value = table(s, among=(F32,))
    targets = s.one([1, 1, 2])
    s.node(op, [value], domain=ML, coefficients=s.numbers.uniform(-1, 1, targets * value.shape[-1]).tolist(),
           intercepts=s.numbers.uniform(-1, 1, targets).tolist() if s.chance(0.7) else None, targets=targets,
           post_transform=s.one([None, "NONE"]))


@row("LinearClassifier")
def linear_classifier(s, op):
    value = table(s, among=(F32,))
    classes = s.one([2, 3])
    s.node(op, [value], 2, domain=ML, coefficients=s.numbers.uniform(-1, 1, classes * value.shape[-1]).tolist(),
           intercepts=s.numbers.uniform(-1, 1, classes).tolist(), multi_class=0, post_transform=s.one(["NONE", "SOFTMAX", "LOGISTIC"]),
           **({"classlabels_ints": list(range(classes))} if s.chance(0.6) else {"classlabels_strings": ["a", "b", "c"][:classes]}))


@row("SVMRegressor")
def svm_regressor(s, op):
    value = table(s, among=(F32,))
    width, vectors = value.shape[-1], s.within(1, 3)
    s.node(op, [value], domain=ML, kernel_type=s.one(["RBF", "LINEAR", "POLY"]), kernel_params=[0.5, 0.1, 2.0], n_supports=vectors,
           support_vectors=s.numbers.uniform(-1, 1, width * vectors).tolist(), coefficients=s.numbers.uniform(-1, 1, vectors).tolist(),
           rho=[0.25])


@row("SVMClassifier")
def svm_classifier(s, op):
    value = table(s, among=(F32,))
    width = value.shape[-1]
    s.node(op, [value], 2, domain=ML, kernel_type=s.one(["RBF", "LINEAR"]), kernel_params=[0.5, 0.0, 3.0], classlabels_ints=[0, 1],
           vectors_per_class=[1, 2], support_vectors=s.numbers.uniform(-1, 1, width * 3).tolist(),
           coefficients=s.numbers.uniform(-1, 1, 3).tolist(), rho=[0.1])


def two_trees(s, width, prefix, leaves):
    """Attributes of two trees: one of two levels and one of one."""
    feature = lambda: s.within(0, width - 1)
    return {"nodes_treeids": [0, 0, 0, 0, 0, 1, 1, 1], "nodes_nodeids": [0, 1, 2, 3, 4, 0, 1, 2],
            "nodes_featureids": [feature(), 0, feature(), 0, 0, feature(), 0, 0],
            "nodes_modes": ["BRANCH_LEQ", "LEAF", s.one(["BRANCH_LEQ", "BRANCH_LT"]), "LEAF", "LEAF", "BRANCH_LEQ", "LEAF", "LEAF"],
            "nodes_values": [0.1, 0, -0.3, 0, 0, 0.4, 0, 0], "nodes_truenodeids": [1, 0, 3, 0, 0, 1, 0, 0],
            "nodes_falsenodeids": [2, 0, 4, 0, 0, 2, 0, 0], "nodes_hitrates": [1.0] * 8,
            "nodes_missing_value_tracks_true": s.one([None, [0, 0, 1, 0, 0, 1, 0, 0]]),
            f"{prefix}_treeids": [0, 0, 0, 1, 1], f"{prefix}_nodeids": [1, 3, 4, 1, 2], f"{prefix}_ids": leaves,
            f"{prefix}_weights": [0.5, -0.25, 1.5, 0.75, -1.0]}


@row("TreeEnsembleRegressor")
def tree_regressor(s, op):
    value = table(s, among=(F32, F32, I64))
    targets = s.one([1, 1, 2])
    s.node(op, [value], domain=ML, n_targets=targets, aggregate_function=s.one([None, "SUM", "AVERAGE", "MIN", "MAX"]),
           base_values=s.one([None, [0.5] * targets]), post_transform=s.one([None, "NONE"]),
           **two_trees(s, value.shape[-1], "target", [s.within(0, targets - 1) for _ in range(5)]))


@row("TreeEnsembleClassifier")
def tree_classifier(s, op):
    value = table(s, among=(F32,))
    classes = s.one([2, 3])
    s.node(op, [value], 2, domain=ML, post_transform=s.one(["NONE", "SOFTMAX"]),
           **({"classlabels_int64s": list(range(classes))} if s.chance(0.6) else {"classlabels_strings": ["a", "b", "c"][:classes]}),
           **two_trees(s, value.shape[-1], "class", [0, 1, classes - 1, 0, 1]))


@row("Adagrad", "Adam", "Momentum")
def optimizer(s, op):
    dims = s.dims(s.within(1, 2))
    rate, turn = s.input(F32, (), draw_numbers(F32, "positive")), s.input(I64, (), draw_numbers(I64, "positive"))
    several = s.one([1, 1, 2])
    kept = {"Adagrad": ["any", "any", "positive"], "Adam": ["any", "any", "any", "positive"], "Momentum": ["any", "any", "any"]}[op]
    tensors = [s.input(F32, dims, draw_numbers(F32, kind)) for kind in kept for _ in range(several)]
    attributes = {"Adagrad": {"norm_coefficient": 0.01, "epsilon": 1e-3, "decay_factor": 0.1},
                  "Adam": {"norm_coefficient": 0.01, "alpha": 0.9, "beta": 0.99, "epsilon": 1e-3},
                  "Momentum": {"alpha": 0.9, "beta": 0.5, "norm_coefficient": 0.01, "mode": s.one(["standard", "nesterov"])}}[op]
    s.node(op, [rate, turn, *tensors], (len(kept) - 1) * several, domain=TRAINING, **attributes)


