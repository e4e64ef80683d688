"""scikit-learn's models, which skl2onnx writes in the operators of ai.onnx.ml."""

from __future__ import annotations

from .catalogue import BATCHES, Architecture, Input

WIDTH = 6


def fitted(path, target="class", **options):
    def build():
        import importlib
        import numpy as np
        where, name = path.rsplit(".", 1)
        model = getattr(importlib.import_module(where), name)(**options)
        rng = np.random.default_rng(0)
        x = rng.standard_normal((200, WIDTH)).astype(np.float32)
        number = x @ rng.standard_normal(WIDTH) + 0.3 * x[:, 0] ** 2
        return model.fit(x, (number > 0).astype(int) + (number > 1) if target == "class" else number)
    return build


def pipeline():
    from sklearn.decomposition import PCA
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    import numpy as np
    rng = np.random.default_rng(0)
    x = rng.standard_normal((200, WIDTH)).astype(np.float32)
    return make_pipeline(StandardScaler(), PCA(4), LogisticRegression()).fit(x, (x.sum(1) > 0).astype(int))


def model(name, build):
    return Architecture(name, "scikit-learn", build, (Input("x", ("batch", WIDTH)),), BATCHES)


ARCHITECTURES = [
    model("sk_linear", fitted("sklearn.linear_model.LinearRegression", "number")),
    model("sk_logistic", fitted("sklearn.linear_model.LogisticRegression")),
    model("sk_forest", fitted("sklearn.ensemble.RandomForestClassifier", n_estimators=10, random_state=0)),
    model("sk_forest_regressor", fitted("sklearn.ensemble.RandomForestRegressor", "number", n_estimators=10, random_state=0)),
    model("sk_boosting", fitted("sklearn.ensemble.GradientBoostingClassifier", n_estimators=10, random_state=0)),
    model("sk_svc", fitted("sklearn.svm.SVC", probability=False)),
    model("sk_svr", fitted("sklearn.svm.SVR", "number")),
    model("sk_kmeans", fitted("sklearn.cluster.KMeans", n_clusters=4, random_state=0, n_init=2)),
    model("sk_neighbours", fitted("sklearn.neighbors.KNeighborsClassifier")),
    model("sk_bayes", fitted("sklearn.naive_bayes.GaussianNB")),
    model("sk_perceptron", fitted("sklearn.neural_network.MLPClassifier", hidden_layer_sizes=(16,), max_iter=50, random_state=0)),
    model("sk_scaler_pca_logistic", pipeline),
]
