"""The nodes of fitted trees: scikit-learn's, XGBoost's and LightGBM's. What asks anything else than whether a number is below a threshold
is not read (None), and stays a black box."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from holdfast.network.estimators.linear import steps_of
from holdfast.network.estimators.preparing import Prepared, prepared
from holdfast.network.trees import Array, Nodes, Trees, trees_of
from holdfast.region.columns import Columns


@dataclass(frozen=True)
class Tree:
    """One tree. value: (nodes, outputs)."""

    feature: Any
    threshold: Any
    left: Any
    right: Any
    value: Any


def read_trees(estimator: Any, columns: Columns) -> Trees | None:
    """Without a base: what is added to all of them is found by asking."""
    before, model = steps_of(estimator)
    given, found = prepared(before, columns), _read(model)
    if given is None or found is None:
        return None
    trees, compares, arithmetic = found
    sizes = np.array([len(tree.left) for tree in trees])
    start = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    shift = np.repeat(start, sizes)
    parts: list[Array] = [
        np.concatenate([np.asarray(getattr(tree, name)) for tree in trees]) for name in ("left", "right", "feature", "threshold", "value")
    ]
    left, right, feature, threshold, value = parts
    leaf = left < 0
    compare, source = _compared(given, feature, threshold, compares), np.array(given.sources)[np.where(leaf, 0, feature)]
    nodes = Nodes(
        source.astype(np.int64), np.where(leaf, -1, left + shift).astype(np.int64), np.where(leaf, -1, right + shift).astype(np.int64),
        value.astype(np.float64), np.repeat(np.arange(len(trees)), sizes), start.astype(np.int64), compare, arithmetic,
    )  # fmt: skip
    return trees_of(nodes, len(columns.features))


Compares = tuple[type, bool]  # the arithmetic of the inputs, and whether an equal number goes right


def _compared(given: Prepared, feature: Array, threshold: Array, how: Compares) -> Callable[[Array, Array], Array]:
    """The comparison of a node, of numbers as they come from the user."""
    kind, strict = how

    def goes_left(x: Array, node: Array) -> Array:
        number, column = torch.from_numpy(x.astype(np.float64)), torch.from_numpy(feature[node].astype(np.int64))
        for one in given.scalers:
            number = one.at(column)(number)
        value: Array = number.numpy().astype(kind)
        found: Array = value < threshold[node] if strict else value <= threshold[node]
        return found

    return goes_left


def _read(model: Any) -> tuple[list[Tree], Compares, type] | None:
    home, name = type(model).__module__, type(model).__name__
    if home.startswith("xgboost"):
        return _xgboost(model)
    if home.startswith("lightgbm"):
        return _lightgbm(model)
    if home.startswith("sklearn.tree"):
        return [_sklearn(model)], (np.float32, False), np.float64
    if home.startswith("sklearn.ensemble") and name in (
        "RandomForestClassifier", "RandomForestRegressor", "ExtraTreesClassifier", "ExtraTreesRegressor"
    ):  # fmt: skip
        return [_sklearn(tree, 1 / len(model.estimators_)) for tree in model.estimators_], (np.float32, False), np.float64
    if name in ("GradientBoostingClassifier", "GradientBoostingRegressor"):
        width = model.estimators_.shape[1]
        trees = [_placed(_sklearn(tree, model.learning_rate), place, width) for row in model.estimators_ for place, tree in enumerate(row)]
        return trees, (np.float32, False), np.float64
    if name in ("HistGradientBoostingClassifier", "HistGradientBoostingRegressor"):
        return _histogram(model)
    return None


def _sklearn(tree: Any, weight: float = 1.0) -> Tree:
    inner = tree.tree_
    return Tree(inner.feature, inner.threshold, inner.children_left, inner.children_right, inner.value[:, 0, :] * weight)


def _placed(tree: Tree, place: int, width: int) -> Tree:
    """A tree of a single number, which it adds to the output of this place. One score of two classes is that of the second."""
    value = np.zeros((len(tree.left), max(width, 1)))
    value[:, place] = np.asarray(tree.value).reshape(-1)
    return Tree(tree.feature, tree.threshold, tree.left, tree.right, value)


def _histogram(model: Any) -> tuple[list[Tree], Compares, type] | None:
    if getattr(model, "_preprocessor", None) is not None:
        return None
    trees = []
    for row in model._predictors:
        for place, predictor in enumerate(row):
            nodes = predictor.nodes
            if bool(nodes["is_categorical"].any()):
                return None
            leaf = nodes["is_leaf"].astype(bool)
            left, right = (np.where(leaf, -1, nodes[side].astype(np.int64)) for side in ("left", "right"))
            trees.append(_placed(Tree(nodes["feature_idx"], nodes["num_threshold"], left, right, nodes["value"]), place, len(row)))
    return trees, (np.float64, False), np.float64


def _xgboost(model: Any) -> tuple[list[Tree], Compares, type] | None:
    learner = json.loads(bytes(model.get_booster().save_raw("json")))["learner"]
    booster = learner["gradient_booster"]
    missing = getattr(model, "missing", np.nan)
    if booster.get("name") != "gbtree" or not (missing is None or np.isnan(missing)):
        return None
    last = getattr(model, "best_iteration", None) if getattr(model, "early_stopping_rounds", None) else None
    inner = booster["model"]
    width = max(1, int(learner["learner_model_param"].get("num_class", "0")), int(learner["learner_model_param"].get("num_target", "1")))
    trees = []
    ends = inner.get("iteration_indptr")
    count = len(inner["trees"]) if last is None or ends is None else ends[last + 1]
    for tree, place in list(zip(inner["trees"], inner["tree_info"], strict=True))[:count]:
        if any(tree.get("split_type", ())) or tree.get("categories_nodes") or int(tree["tree_param"].get("size_leaf_vector", "1")) > 1:
            return None
        left, right = (np.array(tree[f"{side}_children"], dtype=np.int64) for side in ("left", "right"))
        condition = np.array(tree["split_conditions"], dtype=np.float32)
        value: Array = np.where(left < 0, condition, 0).astype(np.float64)
        trees.append(_placed(Tree(np.array(tree["split_indices"]), condition, left, right, value), int(place), width))
    return trees, (np.float32, True), np.float32


def _lightgbm(model: Any) -> tuple[list[Tree], Compares, type] | None:
    booster = model.booster_
    dumped = booster.dump_model(num_iteration=booster.best_iteration if booster.best_iteration > 0 else None)
    if dumped.get("average_output"):
        return None
    width = int(dumped["num_tree_per_iteration"])
    trees = []
    for place, one in enumerate(dumped["tree_info"]):
        rows: list[list[Any]] = []
        if not _flattened(one["tree_structure"], rows):
            return None
        feature, threshold, left, right, value = (np.array(part) for part in zip(*rows, strict=True))
        trees.append(_placed(Tree(feature, threshold.astype(np.float64), left, right, value), place % width, width))
    return trees, (np.float64, False), np.float64


def _flattened(top: dict[str, Any], rows: list[list[Any]]) -> bool:
    """A tree of dictionaries as rows of feature, threshold, left, right and value; False where a question is no plain comparison."""
    waiting: list[tuple[dict[str, Any], Sequence[int]]] = [(top, ())]
    while waiting:
        node, whence = waiting.pop()
        if whence:
            rows[whence[0]][whence[1]] = len(rows)
        if "leaf_value" in node:
            rows.append([0, 0.0, -1, -1, float(node["leaf_value"])])
            continue
        if node["decision_type"] != "<=" or node.get("missing_type") == "Zero":
            return False
        here = len(rows)
        rows.append([int(node["split_feature"]), float(node["threshold"]), -1, -1, 0.0])
        waiting += [(node["right_child"], (here, 3)), (node["left_child"], (here, 2))]
    return True
