"""Operators of ai.onnx.ml, as scikit-learn's, XGBoost's and LightGBM's models are exported in: answers as onnxruntime's."""

from __future__ import annotations

import sys

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from loopback import ROOT, serving

sys.path.insert(0, str(ROOT / "python"))

from carillon_models.client import Client, Refused  # noqa: E402

WIDTH = 4
KINDS = {np.float32: TensorProto.FLOAT, np.float64: TensorProto.DOUBLE, np.int64: TensorProto.INT64}


def forest(trees, classes, prefix, per_leaf=1, modes=("BRANCH_LEQ",), missing=False, only=None, low=-1.0, seed=3):
    """Attributes of random trees three branches deep, whose leaves hold weights of `per_leaf` classes, or of `only`."""
    rng = np.random.default_rng(seed)
    a = {f"nodes_{k}": [] for k in ("treeids", "nodeids", "featureids", "modes", "values", "truenodeids", "falsenodeids")}
    w = {f"{prefix}_{k}": [] for k in ("treeids", "nodeids", "ids", "weights")}
    for tree in range(trees):
        for node in range(15):
            leaf = node >= 7
            row = (tree, node, int(rng.integers(WIDTH)), "LEAF" if leaf else str(rng.choice(modes)),
                   0.0 if leaf else float(np.float32(rng.integers(-2, 3) / 2)), 0 if leaf else 2 * node + 1, 0 if leaf else 2 * node + 2)
            for key, value in zip(a, row):
                a[key].append(value)
            for one in ([only] if only is not None else rng.permutation(classes)[:per_leaf]) if leaf else []:
                for key, value in zip(w, (tree, node, int(one), float(np.float32(rng.uniform(low, 1))))):
                    w[key].append(value)
    if missing:
        a["nodes_missing_value_tracks_true"] = [int(v) for v in rng.integers(0, 2, len(a["nodes_modes"]))]
    return a | w


def ensemble(trees, targets, kind=np.float32, modes=(0,), missing=False, seed=5, **more):
    """Attributes of TreeEnsemble, of version 5: trees three branches deep, and one that is a single leaf."""
    rng = np.random.default_rng(seed)
    a = {f"nodes_{k}": [] for k in ("featureids", "modes", "splits", "truenodeids", "trueleafs", "falsenodeids", "falseleafs")}
    roots, leaves, members = [], 0, []
    for tree in range(trees + 1):
        roots.append(base := len(a["nodes_modes"]))
        for node in range(7 if tree else 1):
            low = node >= 3 or not tree
            mode = int(rng.choice(modes))
            if mode == 6:
                members += [*rng.choice(np.arange(-2.0, 4), rng.integers(1, 4), replace=False), np.nan]
            places = [leaves, leaves + bool(tree)] if low else [base + 2 * node + 1, base + 2 * node + 2]
            row = (int(rng.integers(WIDTH)), mode, rng.integers(-2, 3) / 2, places[0], int(low), places[1], int(low))
            for key, value in zip(a, row):
                a[key].append(value)
            leaves += (1 + bool(tree)) * low
    if missing:
        a["nodes_missing_value_tracks_true"] = [int(v) for v in rng.integers(0, 2, len(a["nodes_modes"]))]
    a["nodes_modes"] = numpy_helper.from_array(np.array(a["nodes_modes"], np.uint8))
    a["nodes_splits"] = numpy_helper.from_array(np.array(a["nodes_splits"], kind))
    if members:
        a["membership_values"] = numpy_helper.from_array(np.array(members, kind))
    return a | dict(tree_roots=roots, n_targets=targets, leaf_targetids=[int(v) for v in rng.integers(targets, size=leaves)],
                    leaf_weights=numpy_helper.from_array(rng.uniform(-1, 1, leaves).astype(kind))) | more


def wide(attributes, *names):
    """The same with lists of doubles in tensors, as of version 3."""
    out = dict(attributes)
    for name in names:
        out[name + "_as_tensor"] = numpy_helper.from_array(np.array(out.pop(name), np.float64))
    return out


def floats(seed, *shape):
    return [float(v) for v in np.random.default_rng(seed).standard_normal(shape).astype(np.float32).ravel()]


def vectors(classes, probabilities=False, kernel="RBF", transform="NONE"):
    per_class = [2 + i for i in range(classes)]
    count, pairs = sum(per_class), classes * (classes - 1) // 2
    out = dict(classlabels_ints=[10 + i for i in range(classes)], coefficients=floats(1, classes - 1, count), kernel_type=kernel,
               kernel_params=[0.3, 0.5, 3.0], post_transform=transform, rho=floats(2, pairs), support_vectors=floats(3, count, WIDTH),
               vectors_per_class=per_class)
    return out | (dict(prob_a=[-1.5] * pairs, prob_b=[0.1] * pairs) if probabilities else {})


EVERY_MODE = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")
TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO")
LABELS3, LABELS2 = dict(classlabels_int64s=[7, 8, 9]), dict(classlabels_int64s=[4, 5])
# Name: operator, attributes, how many outputs, the input's type.
MODELS = {
    "regress_missing": ("TreeEnsembleRegressor", forest(5, 1, "target", missing=True) | dict(n_targets=1), 1, np.float32),
    "regress_modes": ("TreeEnsembleRegressor", forest(5, 1, "target", modes=EVERY_MODE, missing=True) | dict(n_targets=1), 1, np.float32),
    "regress_base": ("TreeEnsembleRegressor", forest(5, 3, "target", 2) | dict(n_targets=3, base_values=[0.5, -1.0, 2.0]), 1, np.float32),
    "regress_doubles": ("TreeEnsembleRegressor", wide(forest(5, 2, "target", 2), "nodes_values", "target_weights") | dict(n_targets=2), 1,
                        np.float64),
    "boosting_integers": ("TreeEnsembleClassifier", forest(5, 3, "class") | LABELS3, 2, np.int64),
    "regress_one_softmax": ("TreeEnsembleRegressor", forest(5, 1, "target") | dict(n_targets=1, post_transform="SOFTMAX"), 1, np.float32),
    "forest_many_classes": ("TreeEnsembleClassifier", forest(40, 70, "class", 5, low=0.0) | dict(classlabels_int64s=list(range(70))), 2,
                            np.float32),
    "boosting_doubles": ("TreeEnsembleClassifier", wide(forest(6, 3, "class"), "nodes_values", "class_weights") | LABELS3, 2, np.float64),
    "boosting_base": ("TreeEnsembleClassifier", forest(6, 3, "class") | LABELS3 | dict(base_values=[0.1, 0.2, -0.3]), 2, np.float32),
    "two_base": ("TreeEnsembleClassifier", forest(6, 2, "class", only=0) | LABELS2 | dict(base_values=[0.2], post_transform="LOGISTIC"), 2,
                 np.float32),
    "two_positive": ("TreeEnsembleClassifier", forest(2, 2, "class", only=0, low=0.0) | LABELS2, 2, np.float32),
    "two_second": ("TreeEnsembleClassifier", forest(4, 2, "class", only=1) | LABELS2, 2, np.float32),
    # onnxruntime answers 0 or 1 here, whatever the labels are.
    "two_both": ("TreeEnsembleClassifier", forest(4, 2, "class", 2) | dict(classlabels_int64s=[0, 1]), 2, np.float32),
    "two_both_base": ("TreeEnsembleClassifier", forest(4, 2, "class", 2) | dict(classlabels_int64s=[0, 1], base_values=[0.5, -0.5]), 2,
                      np.float32),
    "svm_proba": ("SVMClassifier", vectors(3, True), 2, np.float32),
    "svm_two": ("SVMClassifier", vectors(2), 2, np.float32),
    "svm_two_proba": ("SVMClassifier", vectors(2, True), 2, np.float32),
    "svm_doubles": ("SVMClassifier", vectors(4), 2, np.float64),
    "svr_one_class": ("SVMRegressor", dict(coefficients=floats(1, 5), kernel_type="POLY", kernel_params=[0.4, 1.0, 2.0], n_supports=5,
                                           one_class=1, rho=[0.1], support_vectors=floats(2, 5, WIDTH)), 1, np.float32),
    "linear_two": ("LinearClassifier", dict(classlabels_ints=[3, 6], coefficients=floats(1, WIDTH), intercepts=[0.2]), 2, np.float32),
    "linear_integers": ("LinearClassifier", dict(classlabels_ints=[3, 6, 1], coefficients=floats(1, 3, WIDTH), intercepts=[0.2, 0.1, 0.0],
                                                 post_transform="LOGISTIC"), 2, np.int64),
    "linear_targets": ("LinearRegressor", dict(coefficients=floats(1, 3, WIDTH), intercepts=[1.0, 2.0, 3.0], targets=3), 1, np.float32),
    "scaler": ("Scaler", dict(offset=floats(1, WIDTH), scale=floats(2, WIDTH)), 1, np.float32),
    "scaler_doubles": ("Scaler", dict(offset=[0.5], scale=[3.0]), 1, np.float64),
    "scaler_integers": ("Scaler", dict(offset=floats(1, WIDTH), scale=floats(2, WIDTH)), 1, np.int64),
    "imputer": ("Imputer", dict(imputed_value_floats=[1.0, 2.0, 3.0, 4.0], replaced_value_float=float("nan")), 1, np.float32),
    "imputer_number": ("Imputer", dict(imputed_value_int64s=[9], replaced_value_int64=1), 1, np.int64),
    "binarizer": ("Binarizer", dict(threshold=0.25), 1, np.float32),
    "labels": ("LabelEncoder", dict(keys_int64s=[2, -1, 0], values_floats=[0.5, 1.5, 2.5], default_float=-7.0), 1, np.int64),
    "labels_of_floats": ("LabelEncoder", dict(keys_floats=[0.5, float("nan"), -1.0], values_int64s=[4, 5, 6], default_int64=99), 1, np.float32),
    "one_hot": ("OneHotEncoder", dict(cats_int64s=[1, 0, -2], zeros=1), 1, np.int64),
}
for transform in TRANSFORMS:
    MODELS[f"boosting_{transform}"] = ("TreeEnsembleClassifier", forest(6, 3, "class") | LABELS3 | dict(post_transform=transform), 2, np.float32)
    MODELS[f"two_{transform}"] = ("TreeEnsembleClassifier", forest(6, 2, "class", only=0) | LABELS2 | dict(post_transform=transform), 2,
                                  np.float32)
    MODELS[f"regress_{transform}"] = ("TreeEnsembleRegressor", forest(4, 3, "target", 2) | dict(n_targets=3, post_transform=transform), 1,
                                      np.float32)
    MODELS[f"linear_{transform}"] = ("LinearClassifier", dict(classlabels_ints=[3, 6, 1], coefficients=floats(1, 3, WIDTH),
                                                              intercepts=[0.2, 0.1, 0.0], post_transform=transform), 2, np.float32)
for aggregate in ("AVERAGE", "MIN", "MAX"):
    for targets in (1, 3):
        MODELS[f"{aggregate}_{targets}"] = ("TreeEnsembleRegressor", forest(5, targets, "target", targets) |
                                            dict(n_targets=targets, aggregate_function=aggregate), 1, np.float32)
# Rows reach leaves of some of the targets.
for aggregate in ("SUM", "AVERAGE", "MIN", "MAX"):
    MODELS[f"{aggregate}_of_few"] = ("TreeEnsembleRegressor", forest(2, 4, "target") |
                                     dict(n_targets=4, aggregate_function=aggregate, base_values=[0.5, -1.0, 2.0, 0.25]), 1, np.float32)
for kind in (np.float32, np.float64):
    for what, more in {"plain": {}, "missing_modes": dict(modes=range(6), missing=True), "modes": dict(modes=range(6)),
                       "members": dict(modes=(0, 6)), "average": dict(aggregate_function=0), "least": dict(aggregate_function=2),
                       "most": dict(aggregate_function=3), "softmax_zero": dict(post_transform=3)}.items():
        for targets in (1, 3):
            MODELS[f"ensemble_{what}_{targets}_{kind.__name__}"] = ("TreeEnsemble", ensemble(5, targets, kind, **more), 1, kind)
for kernel in ("LINEAR", "POLY", "SIGMOID"):
    MODELS[f"svm_{kernel}"] = ("SVMClassifier", vectors(3, kernel=kernel), 2, np.float32)
for norm in ("MAX", "L1", "L2"):
    MODELS[f"norm_{norm}"] = ("Normalizer", dict(norm=norm), 1, np.float32)


def save(folder, name, nodes, kind, outputs, initializers=(), version=3, opset=17):
    graph = helper.make_graph(nodes, name, [helper.make_tensor_value_info("x", KINDS[kind], ["batch", WIDTH])], outputs, initializers)
    model = helper.make_model(graph, opset_imports=([helper.make_opsetid("", opset)] if opset else []) +
                              [helper.make_opsetid("ai.onnx.ml", version)])
    model.ir_version = 8
    place = folder / name / "1"
    place.mkdir(parents=True)
    onnx.save(model, place / "model.onnx")
    # Ours, not one that it may be given to.
    (folder / name / "config.pbtxt").write_text('max_batch_size: 100 parameters { key: "engine" value { string_value: "carillon" } }')


def ml(op, inputs, outputs, **attributes):
    return helper.make_node(op, inputs, outputs, domain="ai.onnx.ml", **attributes)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("classical")
    for name, (op, attributes, count, kind) in MODELS.items():
        names = ["label", "scores"][:count] if count == 2 else ["y"]
        infos = []
        for one in names:
            whole = one == "label" or (op in ("Imputer",) and kind is np.int64) or "values_int64s" in attributes
            floating = KINDS[kind] if op == "TreeEnsemble" else TensorProto.FLOAT
            infos.append(helper.make_tensor_value_info(one, TensorProto.INT64 if whole else floating, None))
        # Before version 4 onnxruntime finds no NaN among keys.
        version = 5 if op == "TreeEnsemble" else 4 if name == "labels_of_floats" else 3
        save(folder, name, [ml(op, ["x"], names, **attributes)], kind, infos, version=version)
    for number, transform in ((1, "SOFTMAX"), (2, "LOGISTIC")):
        save(folder, f"ensemble_{transform}", [ml("TreeEnsemble", ["x"], ["y"], **ensemble(5, 3, np.float64, post_transform=number))],
             np.float64, [helper.make_tensor_value_info("y", TensorProto.DOUBLE, None)], version=5)
    map_type = helper.make_sequence_type_proto(helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, None)))
    linear = dict(coefficients=floats(1, 3, WIDTH), intercepts=[0.0, 0.1, 0.2])
    label = helper.make_tensor_value_info("label", TensorProto.INT64, None)
    save(folder, "zip_map", [ml("LinearClassifier", ["x"], ["label", "p"], classlabels_ints=[0, 1, 2], **linear),
                             ml("ZipMap", ["p"], ["probabilities"], classlabels_int64s=[0, 1, 2])], np.float32,
         [label, helper.make_value_info("probabilities", map_type)])
    for opset in (0, 9):
        save(folder, f"opset_{opset}", [ml("Binarizer", ["x"], ["b"], threshold=0.1), ml("Normalizer", ["b"], ["y"], norm="L1")], np.float32,
             [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)], opset=opset)
    texts = [ml("LinearClassifier", ["x"], ["label", "p"], classlabels_strings=["a", "b", "c"], **linear)]
    scores = helper.make_tensor_value_info("p", TensorProto.FLOAT, None)
    save(folder, "unread_texts", texts, np.float32, [scores])
    save(folder, "strict", [ml("OneHotEncoder", ["x"], ["y"], cats_int64s=[0, 1], zeros=0)], np.int64,
         [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)])
    save(folder, "features", [ml("Scaler", ["x"], ["s"], offset=[1.0], scale=[2.0]), ml("FeatureVectorizer", ["x", "s"], ["f"], inputdimensions=[4, 4]),
                              ml("ArrayFeatureExtractor", ["f", "at"], ["y"])], np.float32,
         [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)], [numpy_helper.from_array(np.array([6, 1, 1]), "at")], 1)
    return folder


@pytest.fixture(scope="module")
def server(program, models, tmp_path_factory):
    with serving(program, models, tmp_path_factory.mktemp("log") / "server.log", "--threads", "2", "--strict-readiness",
                 "false") as running:
        yield running


def ask(server, name, x):
    client = Client(server.http, 120)
    try:
        return client.infer(name, {"x": x})
    finally:
        client.connection.close()


def rows(name, kind, count, seed):
    rng = np.random.default_rng(seed)
    if kind is np.int64:
        return rng.integers(-2, 3, (count, WIDTH))
    # Halves, so that some meet a tree's numbers exactly.
    x = (rng.integers(-6, 7, (count, WIDTH)) / np.array([2, 4, 2, 3])).astype(kind)
    if any(word in name for word in ("missing", "modes", "imputer", "labels")):
        x[rng.random(x.shape) < 0.3] = np.nan
    if name.startswith("norm"):
        x[0] = 0
    if "members" in name:  # onnxruntime looks at what is before the point alone
        x = np.round(x)
    return x


def reference(models, name):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(str(models / name / "1" / "model.onnx"), options, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("name", MODELS)
def test_answers_are_onnxruntimes(server, models, name):
    session = reference(models, name)
    names = [o.name for o in session.get_outputs()]
    for count in (1, 7, 100):
        x = rows(name, MODELS[name][3], count, count)
        got = ask(server, name, x)
        for output, want in zip(names, session.run(None, {"x": x})):
            assert got[output].shape == want.shape and got[output].dtype == want.dtype, output
            if want.dtype == np.int64:
                np.testing.assert_array_equal(got[output], want)
            else:
                np.testing.assert_allclose(got[output], want, rtol=1e-4, atol=1e-5)


# As ONNX numbers them. onnxruntime takes 1 for the one and 2 for the other, so the sums are its own alone.
@pytest.mark.parametrize("name, transform", [("ensemble_SOFTMAX", lambda z: np.exp(z) / np.exp(z).sum(1, keepdims=True)),
                                             ("ensemble_LOGISTIC", lambda z: 1 / (1 + np.exp(-z)))])
def test_an_ensemble_s_scores_are_transformed_as_onnx_says(server, models, name, transform):
    x = rows(name, np.float64, 20, 3)
    sums = reference(models, "ensemble_plain_3_float64").run(None, {"x": x})[0]
    np.testing.assert_allclose(ask(server, name, x)["y"], transform(sums), rtol=1e-9)


def test_features_are_joined_and_picked(server, models):
    x = rows("features", np.float32, 5, 1)
    np.testing.assert_allclose(ask(server, "features", x)["y"], reference(models, "features").run(None, {"x": x})[0], rtol=1e-6)


@pytest.mark.parametrize("opset", (0, 9))
def test_old_and_unnamed_opsets_of_the_other_operators_do_not_matter(server, opset):
    x = rows("plain", np.float32, 5, 1)
    ones = (x > 0.1).astype(np.float32)
    want = ones / np.maximum(ones.sum(1, keepdims=True), 1)
    np.testing.assert_allclose(ask(server, f"opset_{opset}", x)["y"], want, rtol=1e-6)


def test_a_map_is_answered_as_the_tensor_that_it_is_made_of(server, models):
    x = rows("zip_map", np.float32, 5, 1)
    label, maps = reference(models, "zip_map").run(None, {"x": x})
    got = ask(server, "zip_map", x)
    np.testing.assert_array_equal(got["label"], label)
    np.testing.assert_allclose(got["probabilities"], [[row[i] for i in range(3)] for row in maps], rtol=1e-4, atol=1e-6)


def test_scores_without_their_labels(server, models):
    x = rows("unread_texts", np.float32, 3, 1)
    np.testing.assert_allclose(ask(server, "unread_texts", x)["p"], reference(models, "unread_texts").run(["p"], {"x": x})[0], rtol=1e-4,
                               atol=1e-6)


def test_an_unknown_category_fails_its_request(server):
    np.testing.assert_array_equal(ask(server, "strict", np.array([[0, 1, 1, 0]]))["y"][0], [[1, 0], [0, 1], [0, 1], [1, 0]])
    with pytest.raises(Refused, match="category 5.*is not one of the 2"):
        ask(server, "strict", np.array([[0, 1, 5, 0]]))
