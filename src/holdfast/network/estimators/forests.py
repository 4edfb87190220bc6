"""The nodes of the fitted trees of scikit-learn, XGBoost and LightGBM.

An estimator is read only if its class is known to predict a constant plus the sum of its leaves. Everything
else raises NotReadable with the reason, and remains a black box.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from holdfast.network.estimators.library_code import NotReadable, check_unmodified
from holdfast.network.estimators.linear import steps_of
from holdfast.network.estimators.preparing import Prepared, read_preparation
from holdfast.network.trees import Array, Nodes, Trees, trees_of
from holdfast.region.columns import Columns


@dataclass(frozen=True)
class EstimatorTree:
    """The nodes of one tree. value: (nodes, outputs)."""

    feature: Any
    threshold: Any
    left: Any
    right: Any
    value: Any


# The numpy type in which inputs are compared with thresholds, and whether an input equal to the threshold
# goes right.
Compares = tuple[type, bool]


@dataclass(frozen=True)
class Read:
    """The trees of an estimator.

    Attributes:
        compares: how nodes compare.
        arithmetic: the numpy type in which the estimator adds up its trees.
        has_base: whether a constant may be added to the sum.
    """

    trees: Sequence[EstimatorTree]
    compares: Compares
    arithmetic: type
    has_base: bool


def read_trees(estimator: Any, columns: Columns) -> tuple[Trees, bool] | None:
    """The trees without their base, and whether they may have one; None if the estimator has no trees.

    The base is found later from predictions. Raises NotReadable if the estimator is more than a sum of trees.
    """
    before, model = steps_of(estimator)
    found = _read_trees(model)
    if found is None:
        return None
    preparation = read_preparation(before, columns)
    if preparation is None:
        raise NotReadable("the steps before it in the pipeline do more than scale")
    trees, compares, arithmetic = found.trees, found.compares, found.arithmetic
    sizes = np.array([len(tree.left) for tree in trees])
    start = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    shift = np.repeat(start, sizes)
    parts: list[Array] = [
        np.concatenate([np.asarray(getattr(tree, name)) for tree in trees])
        for name in ("left", "right", "feature", "threshold", "value")
    ]
    left, right, feature, threshold, value = parts
    leaf = left < 0
    source = np.array(preparation.sources)[np.where(leaf, 0, feature)]
    nodes = Nodes(
        feature=source.astype(np.int64),
        left=np.where(leaf, -1, left + shift).astype(np.int64),
        right=np.where(leaf, -1, right + shift).astype(np.int64),
        values=value.astype(np.float64),
        tree=np.repeat(np.arange(len(trees)), sizes),
        roots=start.astype(np.int64),
        goes_left=_comparison(preparation, feature, threshold, compares),
        arithmetic=arithmetic,
    )
    boxes = trees_of(nodes, len(columns.features))
    if boxes is None:
        raise NotReadable("it has more leaves than fit into memory as boxes")
    return boxes, found.has_base


def _comparison(
    preparation: Prepared, feature: Array, threshold: Array, compares: Compares
) -> Callable[[Array, Array], Array]:
    """`Nodes.goes_left`: the comparison of a node for numbers in the user's units."""
    kind, strict = compares

    def goes_left(x: Array, node: Array) -> Array:
        number = torch.from_numpy(x.astype(np.float64))
        column = torch.from_numpy(feature[node].astype(np.int64))
        for one in preparation.scalers:
            number = one.at(column)(number)
        value: Array = number.numpy().astype(kind)
        found: Array = value < threshold[node] if strict else value <= threshold[node]
        return found

    return goes_left


FORESTS = ("RandomForestClassifier", "RandomForestRegressor", "ExtraTreesClassifier", "ExtraTreesRegressor")
SINGLE = ("DecisionTreeClassifier", "DecisionTreeRegressor", "ExtraTreeClassifier", "ExtraTreeRegressor")
# Strategies of a DummyClassifier whose predicted probabilities do not depend on the row.
CONSTANT = (
    "prior",
    "most_frequent",
    "constant",
)


def _read_trees(model: Any) -> Read | None:
    """The trees of a model, or None if it has none."""
    name, home = type(model).__name__, type(model).__module__.partition(".")[0]
    if home in ("xgboost", "lightgbm"):
        check_unmodified(model)
        return _xgboost(model) if home == "xgboost" else _lightgbm(model)
    if name in SINGLE and hasattr(model, "tree_"):
        return Read([_sklearn(model)], (np.float32, False), np.float64, has_base=False)
    if name in FORESTS and hasattr(model, "estimators_"):
        check_unmodified(model)
        trees = [_sklearn(tree, 1 / len(model.estimators_)) for tree in model.estimators_]
        return Read(trees, (np.float32, False), np.float64, has_base=False)
    if name in ("GradientBoostingClassifier", "GradientBoostingRegressor"):
        return _read_boosting(model)
    if name in ("HistGradientBoostingClassifier", "HistGradientBoostingRegressor"):
        return _histogram(model)
    return None


def _read_boosting(model: Any) -> Read:
    """Gradient boosting of scikit-learn.

    The trees add to the prediction of the estimator `init`, which must be a constant.
    """
    check_unmodified(model)
    first = model.init_
    if not (isinstance(first, str) and first == "zero"):
        kind = type(first).__name__
        constant = kind == "DummyRegressor" or (kind == "DummyClassifier" and first.strategy in CONSTANT)
        if not constant:
            raise NotReadable(f"its trees add to the predictions of init={kind}, which are not constant")
        check_unmodified(first)
    width = model.estimators_.shape[1]
    trees = [
        _place_output(_sklearn(tree, model.learning_rate), place, width)
        for row in model.estimators_
        for place, tree in enumerate(row)
    ]
    return Read(trees, (np.float32, False), np.float64, has_base=True)


def _sklearn(tree: Any, weight: float = 1.0) -> EstimatorTree:
    check_unmodified(tree)
    inner = tree.tree_
    if inner.value.shape[1] != 1:
        raise NotReadable("its trees answer several questions at once")
    return EstimatorTree(
        inner.feature,
        inner.threshold,
        inner.children_left,
        inner.children_right,
        inner.value[:, 0, :] * weight,
    )


def _place_output(tree: EstimatorTree, place: int, width: int) -> EstimatorTree:
    """A tree with one value for each leaf as a tree that adds it to output `place` of `width`."""
    value = np.zeros((len(tree.left), max(width, 1)))
    value[:, place] = np.asarray(tree.value).reshape(-1)
    return EstimatorTree(tree.feature, tree.threshold, tree.left, tree.right, value)


def _histogram(model: Any) -> Read:
    check_unmodified(model)
    if getattr(model, "_preprocessor", None) is not None:
        raise NotReadable("it reads columns of words")
    if type(model).__name__.endswith("Regressor") and type(model._loss.link).__name__ != "IdentityLink":
        raise NotReadable(f"its answer is no sum of its trees (loss={model.loss!r})")
    trees = []
    for row in model._predictors:
        for place, predictor in enumerate(row):
            nodes = predictor.nodes
            if bool(nodes["is_categorical"].any()):
                raise NotReadable("its trees split categories")
            leaf = nodes["is_leaf"].astype(bool)
            left, right = (np.where(leaf, -1, nodes[side].astype(np.int64)) for side in ("left", "right"))
            trees.append(
                _place_output(
                    EstimatorTree(nodes["feature_idx"], nodes["num_threshold"], left, right, nodes["value"]),
                    place,
                    len(row),
                )
            )
    return Read(trees, (np.float64, False), np.float64, has_base=True)


# Objectives for which `predict` returns the class with the largest sum over trees, or that sum itself.
XGBOOST = (
    "binary:logistic",
    "multi:softprob",
    "multi:softmax",
    "reg:squarederror",
    "reg:linear",
    "reg:absoluteerror",
    "reg:pseudohubererror",
    "reg:quantileerror",
)
LIGHTGBM = ("binary", "multiclass", "regression", "regression_l1", "huber", "fair", "quantile", "mape")


def _xgboost(model: Any) -> Read:
    learner = json.loads(bytes(model.get_booster().save_raw("json")))["learner"]
    booster = learner["gradient_booster"]
    missing = getattr(model, "missing", np.nan)
    if booster.get("name") != "gbtree" or not (missing is None or np.isnan(missing)):
        raise NotReadable("its booster is not gbtree, or it uses a number for missing values")
    objective = learner.get("objective", {}).get("name")
    if objective not in XGBOOST or callable(getattr(model, "objective", None)):
        raise NotReadable(f"its predictions depend on more than the sum of its trees (objective {objective})")
    last = getattr(model, "best_iteration", None) if getattr(model, "early_stopping_rounds", None) else None
    inner = booster["model"]
    width = max(
        1,
        int(learner["learner_model_param"].get("num_class", "0")),
        int(learner["learner_model_param"].get("num_target", "1")),
    )
    trees = []
    first_trees = inner.get("iteration_indptr")
    count = len(inner["trees"]) if last is None or first_trees is None else first_trees[last + 1]
    for tree, place in list(zip(inner["trees"], inner["tree_info"], strict=True))[:count]:
        if (
            any(tree.get("split_type", ()))
            or tree.get("categories_nodes")
            or int(tree["tree_param"].get("size_leaf_vector", "1")) > 1
        ):
            raise NotReadable("its trees split categories, or their leaves hold several numbers")
        left, right = (np.array(tree[f"{side}_children"], dtype=np.int64) for side in ("left", "right"))
        condition = np.array(tree["split_conditions"], dtype=np.float32)
        value: Array = np.where(left < 0, condition, 0).astype(np.float64)
        trees.append(
            _place_output(
                EstimatorTree(np.array(tree["split_indices"]), condition, left, right, value),
                int(place),
                width,
            )
        )
    return Read(trees, (np.float32, True), np.float32, has_base=True)


def _lightgbm(model: Any) -> Read:
    booster = model.booster_
    dumped = booster.dump_model(num_iteration=booster.best_iteration if booster.best_iteration > 0 else None)
    if dumped.get("average_output"):
        raise NotReadable("its answer is an average of its trees")
    objective = str(dumped.get("objective", "")).split()
    if (
        not objective
        or objective[0] not in LIGHTGBM
        or "sqrt" in objective
        or callable(getattr(model, "objective", None))
    ):
        raise NotReadable(
            f"its predictions depend on more than the sum of its trees (objective "
            f"{' '.join(objective) or 'custom'})"
        )
    width = int(dumped["num_tree_per_iteration"])
    trees = []
    for place, one in enumerate(dumped["tree_info"]):
        rows: list[list[Any]] = []
        if not _flatten_nodes(one["tree_structure"], rows):
            raise NotReadable(
                "its trees do more than compare a number with a threshold, or its leaves are not constant"
            )
        feature, threshold, left, right, value = (np.array(part) for part in zip(*rows, strict=True))
        trees.append(
            _place_output(
                EstimatorTree(feature, threshold.astype(np.float64), left, right, value), place % width, width
            )
        )
    return Read(trees, (np.float64, False), np.float64, has_base=True)


def _flatten_nodes(top: dict[str, Any], rows: list[list[Any]]) -> bool:
    """Append a tree of dictionaries as rows of feature, threshold, left, right and value.

    Returns False if a node is not a plain comparison.
    """
    waiting: list[tuple[dict[str, Any], Sequence[int]]] = [(top, ())]
    while waiting:
        node, parent = waiting.pop()
        if parent:
            rows[parent[0]][parent[1]] = len(rows)
        if "leaf_value" in node:
            if node.get("leaf_coeff") or node.get("leaf_features"):
                return False
            rows.append([0, 0.0, -1, -1, float(node["leaf_value"])])
            continue
        if node["decision_type"] != "<=" or node.get("missing_type") == "Zero":
            return False
        index = len(rows)
        rows.append([int(node["split_feature"]), float(node["threshold"]), -1, -1, 0.0])
        waiting += [(node["right_child"], (index, 3)), (node["left_child"], (index, 2))]
    return True
