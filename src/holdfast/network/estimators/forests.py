"""The nodes of the fitted trees of scikit-learn, XGBoost and LightGBM.

An estimator is read only if its class is known to predict a constant plus the sum of its leaves. Everything
else raises NotReadable with the reason, and remains a black box.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from holdfast.network.estimators.library_code import NotReadable, check_unmodified
from holdfast.network.estimators.linear import steps_of
from holdfast.network.estimators.preparing import Prepared, encode_categories, read_preparation
from holdfast.network.trees import Array, Nodes, Trees, trees_of
from holdfast.region.columns import Columns


@dataclass(frozen=True)
class EstimatorTree:
    """The nodes of one tree.

    Attributes:
        value: (nodes, outputs).
        missing_left: (nodes,) bool, whether a missing number goes left.
        left_codes: for a node that splits categories, the codes that go left; all others go right.
    """

    feature: Any
    threshold: Any
    left: Any
    right: Any
    value: Any
    missing_left: Any
    left_codes: Mapping[int, frozenset[int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Compares:
    """How nodes compare a number with their threshold.

    Attributes:
        kind: the numpy type in which they compare.
        strict: whether a number equal to the threshold goes right.
        zero: numbers that are at most this far from zero are read as zero.
    """

    kind: type
    strict: bool = False
    zero: float = 0.0


@dataclass(frozen=True)
class Read:
    """The trees of an estimator.

    Attributes:
        compares: how nodes compare.
        arithmetic: the numpy type in which the estimator adds up its trees.
        has_base: whether a constant may be added to the sum.
        recode: for each input of which the model itself turns the words into codes, these codes.
        encoder: the encoder of categories of scikit-learn's histogram boosting.
    """

    trees: Sequence[EstimatorTree]
    compares: Compares
    arithmetic: type
    has_base: bool
    recode: Mapping[int, Mapping[Any, int]] = field(default_factory=dict)
    encoder: Any = None


def read_trees(estimator: Any, columns: Columns, names: Sequence[str] | None) -> tuple[Trees, bool] | None:
    """The trees without their base, and whether they may have one; None if the estimator has no trees.

    The base is found later from predictions. Raises NotReadable if the estimator is more than a sum of trees.
    """
    before, model = steps_of(estimator)
    found = _read_trees(model)
    if found is None:
        return None
    native = bool(found.recode) or found.encoder is not None
    preparation = read_preparation(before, columns, names, native=native)
    if found.encoder is not None:
        preparation = encode_categories(preparation, found.encoder)
    preparation = _recode_preparation(preparation, found.recode)
    trees, compares, arithmetic = found.trees, found.compares, found.arithmetic
    sizes = np.array([len(tree.left) for tree in trees])
    start = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    shift = np.repeat(start, sizes)
    parts: list[Array] = [
        np.concatenate([np.asarray(getattr(tree, name)) for tree in trees])
        for name in ("left", "right", "feature", "threshold", "value", "missing_left")
    ]
    left, right, feature, threshold, value, missing_left = parts
    leaf = left < 0
    source = np.array(preparation.sources)[np.where(leaf, 0, feature)]
    goes_left = _comparison(preparation, feature, threshold, compares)
    left_codes = {
        int(first) + node: codes
        for first, tree in zip(start, trees, strict=True)
        for node, codes in tree.left_codes.items()
    }
    nodes = Nodes(
        feature=source.astype(np.int64),
        left=np.where(leaf, -1, left + shift).astype(np.int64),
        right=np.where(leaf, -1, right + shift).astype(np.int64),
        values=value.astype(np.float64),
        tree=np.repeat(np.arange(len(trees)), sizes),
        roots=start.astype(np.int64),
        goes_left=goes_left,
        arithmetic=arithmetic,
        word_splits=_word_splits(preparation, left, feature, left_codes, goes_left),
    )
    if columns.indicators:
        nodes = _split_missing_first(nodes, columns, preparation, feature, missing_left.astype(bool))
    boxes = trees_of(nodes, len(columns.features))
    if boxes is None:
        raise NotReadable("it has more leaves than fit into memory as boxes")
    return boxes, found.has_base


def _split_missing_first(
    nodes: Nodes, columns: Columns, preparation: Prepared, feature: Array, missing_left: Array
) -> Nodes:
    """The nodes with a split by the indicator before each comparison of a number that may be missing.

    The left child of the new split is the comparison, its right child the side to which a missing number goes:
    that of the number which an imputer puts there, if one does.
    """
    indicator = np.full(len(columns.features), -1)
    for place, own in columns.indicators.items():
        indicator[place] = own
    split = np.flatnonzero((nodes.left >= 0) & (indicator[nodes.feature] >= 0))
    filled = np.array(preparation.filled)[feature[split]]
    known = ~np.isnan(filled)
    goes_left = missing_left[split].copy()
    goes_left[known] = nodes.goes_left(filled[known], split[known])
    count = len(nodes.left)
    compared = count + np.arange(len(split))  # the comparisons move behind the other nodes
    source = np.concatenate([np.arange(count), split])
    left, right, places = nodes.left[source], nodes.right[source], nodes.feature[source]
    left[split], right[split] = compared, np.where(goes_left, nodes.left[split], nodes.right[split])
    places[split] = indicator[nodes.feature[split]]
    is_indicator = np.zeros(len(source), dtype=bool)
    is_indicator[split] = True

    def compare(x: Array, node: Array) -> Array:
        found: Array = np.where(is_indicator[node], x < 1, nodes.goes_left(x, source[node]))
        return found

    return Nodes(
        feature=places,
        left=left,
        right=right,
        values=nodes.values[source],
        tree=nodes.tree[source],
        roots=nodes.roots,
        goes_left=compare,
        arithmetic=nodes.arithmetic,
        word_splits=nodes.word_splits,
    )


def _recode_preparation(preparation: Prepared, recode: Mapping[int, Mapping[Any, int]]) -> Prepared:
    """The preparation, with the model's own codes in place of words."""
    codes = list(preparation.codes)
    for k, code in enumerate(codes):
        if code is None:
            continue
        if k in recode:
            if not all(value in recode[k] for value in code.values()):
                raise NotReadable(f"it was fitted on other values of input {k}")
            codes[k] = {place: recode[k][value] for place, value in code.items()}
        elif not all(isinstance(value, int | float) for value in code.values()):
            raise NotReadable(f"it reads the words of input {k} in a way that is not known here")
    return replace(preparation, codes=tuple(codes))


def _word_splits(
    preparation: Prepared,
    left: Array,
    feature: Array,
    left_codes: Mapping[int, frozenset[int]],
    goes_left: Callable[[Array, Array], Array],
) -> dict[int, tuple[Array, Array]]:
    """For each node on an input that comes from a column of words: the features whose values go left and right."""
    coded = np.array([code is not None for code in preparation.codes])
    found = {}
    for node in np.flatnonzero((left >= 0) & coded[np.where(left >= 0, feature, 0)]).tolist():
        code = preparation.codes[int(feature[node])]
        assert code is not None
        places = np.array(list(code))
        if node in left_codes:
            goes = np.array([value in left_codes[node] for value in code.values()])
        else:
            goes = goes_left(np.array(list(code.values()), dtype=np.float64), np.full(len(places), node))
        found[node] = (places[goes], places[~goes])
    if any(node not in found for node in left_codes):
        raise NotReadable(
            "its trees split categories of a column that is described as numbers: describe it with its values"
        )
    return found


def _comparison(
    preparation: Prepared, feature: Array, threshold: Array, compares: Compares
) -> Callable[[Array, Array], Array]:
    """`Nodes.goes_left`: the comparison of a node for numbers in the user's units."""

    def goes_left(x: Array, node: Array) -> Array:
        number = torch.from_numpy(x.astype(np.float64))
        column = torch.from_numpy(feature[node].astype(np.int64))
        for one in preparation.scalers:
            number = one.at(column)(number)
        value: Array = number.numpy().astype(compares.kind)
        value = np.where(np.abs(value) <= compares.zero, 0, value)
        found: Array = value < threshold[node] if compares.strict else value <= threshold[node]
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
        return Read([_sklearn(model)], Compares(np.float32), np.float64, has_base=False)
    if name in FORESTS and hasattr(model, "estimators_"):
        check_unmodified(model)
        trees = [_sklearn(tree, 1 / len(model.estimators_)) for tree in model.estimators_]
        return Read(trees, Compares(np.float32), np.float64, has_base=False)
    if name in ("GradientBoostingClassifier", "GradientBoostingRegressor"):
        return _read_boosting(model)
    if name in ("HistGradientBoostingClassifier", "HistGradientBoostingRegressor"):
        return _histogram(model)
    if name == "AdaBoostClassifier":
        return _ada_boost(model)
    if name in AVERAGES and hasattr(model, "estimators_"):
        return _read_average(model)
    return None


# Estimators that average the probabilities or the values of others.
AVERAGES = ("BaggingClassifier", "BaggingRegressor", "VotingClassifier", "VotingRegressor")


def _read_average(model: Any) -> Read | None:
    """The trees of an average of estimators; None if one of these has none."""
    check_unmodified(model)
    parts = list(model.estimators_)
    weights = np.ones(len(parts))
    if type(model).__name__.startswith("Voting"):
        if getattr(model, "voting", "soft") != "soft":
            return None
        given = None if model.weights is None else zip(model.estimators, model.weights, strict=True)
        if given is not None:
            weights = np.array([float(w) for (_, one), w in given if one != "drop"])
        chosen: list[Any] = [None] * len(parts)
    else:
        chosen = list(model.estimators_features_)
    classes = len(model.classes_) if hasattr(model, "classes_") else None
    found: list[Read] = []
    trees: list[EstimatorTree] = []
    for part, weight, which in zip(parts, weights / weights.sum(), chosen, strict=True):
        steps, inner = steps_of(part)
        read = _read_trees(inner)
        if read is None:
            return None
        kind = type(inner).__name__
        if steps:
            raise NotReadable(f"{type(model).__name__} averages pipelines that end in trees ({kind})")
        if classes is not None and kind not in (*SINGLE, *FORESTS, *AVERAGES):
            raise NotReadable(
                f"{type(model).__name__} averages probabilities of {kind}, which are no sums of its trees"
            )
        found.append(read)
        for tree in read.trees:
            value = np.asarray(tree.value, dtype=np.float64) * weight
            if classes is not None and value.shape[1] != classes:  # a bag without some of the classes
                spread = np.zeros((len(value), classes))
                spread[:, np.asarray(inner.classes_, dtype=np.int64)] = value
                value = spread
            feature = np.asarray(tree.feature)
            if which is not None:
                feature = np.where(feature < 0, feature, np.asarray(which)[feature])
            trees.append(replace(tree, value=value, feature=feature))
    first = found[0]
    if any(
        (one.compares, one.arithmetic) != (first.compares, first.arithmetic) or one.recode or one.encoder
        for one in found
    ):
        raise NotReadable(f"{type(model).__name__} averages trees of different libraries")
    return Read(trees, first.compares, np.float64, has_base=any(one.has_base for one in found))


def _ada_boost(model: Any) -> Read | None:
    """The weighted votes of trees: SAMME adds w to the predicted class, and -w / (classes - 1) to others.

    Of two classes the score is the second sum minus the first. Reference: Zhu, Zou, Rosset and Hastie,
    "Multi-class AdaBoost" (2009).
    """
    check_unmodified(model)
    if any(type(part).__name__ not in SINGLE for part in model.estimators_):
        return None
    labels = model.classes_.tolist()
    weights = np.asarray(model.estimator_weights_[: len(model.estimators_)], dtype=np.float64)
    trees = []
    for part, weight in zip(model.estimators_, weights / weights.sum(), strict=True):
        tree = _sklearn(part)
        own = [labels.index(label) for label in part.classes_.tolist()]
        predicted = np.asarray(own)[np.asarray(tree.value).argmax(1)]
        votes = np.where(predicted[:, None] == np.arange(len(labels)), weight, -weight / (len(labels) - 1))
        trees.append(replace(tree, value=votes[:, 1:] - votes[:, :1] if len(labels) == 2 else votes))
    return Read(trees, Compares(np.float32), np.float64, has_base=False)


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
    return Read(trees, Compares(np.float32), np.float64, has_base=True)


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
        inner.missing_go_to_left,
    )


def _place_output(tree: EstimatorTree, place: int, width: int) -> EstimatorTree:
    """A tree with one value for each leaf as a tree that adds it to output `place` of `width`."""
    value = np.zeros((len(tree.left), max(width, 1)))
    value[:, place] = np.asarray(tree.value).reshape(-1)
    return replace(tree, value=value)


def _histogram(model: Any) -> Read:
    check_unmodified(model)
    encoder = getattr(model, "_preprocessor", None)
    if type(model).__name__.endswith("Regressor") and type(model._loss.link).__name__ != "IdentityLink":
        raise NotReadable(f"its answer is no sum of its trees (loss={model.loss!r})")
    trees = []
    for row in model._predictors:
        for place, predictor in enumerate(row):
            nodes = predictor.nodes
            splits = np.flatnonzero(nodes["is_categorical"].astype(bool) & ~nodes["is_leaf"].astype(bool))
            left_codes = {
                int(node): _bits(predictor.raw_left_cat_bitsets[nodes["bitset_idx"][node]]) for node in splits
            }
            leaf = nodes["is_leaf"].astype(bool)
            left, right = (np.where(leaf, -1, nodes[side].astype(np.int64)) for side in ("left", "right"))
            trees.append(
                _place_output(
                    EstimatorTree(
                        nodes["feature_idx"],
                        nodes["num_threshold"],
                        left,
                        right,
                        nodes["value"],
                        nodes["missing_go_to_left"],
                        left_codes,
                    ),
                    place,
                    len(row),
                )
            )
    return Read(trees, Compares(np.float64), np.float64, has_base=True, encoder=encoder)


def _bits(words: Any) -> frozenset[int]:
    """The members of a set that is stored as bits of numbers of 32 bits."""
    return frozenset(
        32 * k + bit for k, word in enumerate(words.tolist()) for bit in range(32) if word >> bit & 1
    )


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
# LightGBM reads numbers of at most this size as zero (kZeroThreshold in its source, a float32).
LIGHTGBM_ZERO = float(np.float32(1e-35))
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
    recode = _xgboost_categories(inner, learner.get("feature_types") or [])
    first_trees = inner.get("iteration_indptr")
    count = len(inner["trees"]) if last is None or first_trees is None else first_trees[last + 1]
    for tree, place in list(zip(inner["trees"], inner["tree_info"], strict=True))[:count]:
        if int(tree["tree_param"].get("size_leaf_vector", "1")) > 1:
            raise NotReadable("the leaves of its trees hold several numbers")
        left, right = (np.array(tree[f"{side}_children"], dtype=np.int64) for side in ("left", "right"))
        condition = np.array(tree["split_conditions"], dtype=np.float32)
        value: Array = np.where(left < 0, condition, 0).astype(np.float64)
        trees.append(
            _place_output(
                EstimatorTree(
                    np.array(tree["split_indices"]),
                    condition,
                    left,
                    right,
                    value,
                    np.array(tree["default_left"], dtype=bool),
                    _left_codes(tree, recode),
                ),
                int(place),
                width,
            )
        )
    return Read(trees, Compares(np.float32, strict=True), np.float32, has_base=True, recode=recode)


def _xgboost_categories(model: Any, types: Sequence[str]) -> dict[int, dict[Any, int]]:
    """The codes of the categories of each categorical input, by the words that the model stores.

    Words are stored as the bytes of all of them and where each begins, numbers as they are.
    """
    stored = (model.get("cats") or {}).get("enc") or []
    found: dict[int, dict[Any, int]] = {}
    for k, kind in enumerate(types):
        if kind != "c":
            continue
        one = stored[k] if k < len(stored) else {}
        values = one.get("values") or []
        if "offsets" in one:
            raw, at = bytes(value & 255 for value in values), one["offsets"]
            values = [raw[start:stop].decode() for start, stop in pairwise(at)]
        if not values:
            raise NotReadable("it splits categories, and the model does not say which words these are")
        found[k] = {value: code for code, value in enumerate(values)}
    return found


def _left_codes(tree: Any, recode: Mapping[int, Mapping[Any, int]]) -> dict[int, frozenset[int]]:
    """For each node of an XGBoost tree that splits categories, the categories that go left: all that it does not list."""
    found = {}
    for node, start, size in zip(
        tree.get("categories_nodes") or [],
        tree.get("categories_segments") or [],
        tree.get("categories_sizes") or [],
        strict=True,
    ):
        known = recode.get(int(tree["split_indices"][node]))
        if known is None:
            raise NotReadable("it splits categories, and the model does not say which words these are")
        found[int(node)] = frozenset(known.values()) - set(tree["categories"][start : start + size])
    return found


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
        left_codes: dict[int, frozenset[int]] = {}
        if not _flatten_nodes(one["tree_structure"], rows, left_codes):
            raise NotReadable(
                "its trees do more than compare a number with a threshold or split categories, or its leaves "
                "are not constant"
            )
        feature, threshold, left, right, value, missing = map(np.array, zip(*rows, strict=True))
        tree = EstimatorTree(
            feature, threshold.astype(np.float64), left, right, value, missing.astype(bool), left_codes
        )
        trees.append(_place_output(tree, place % width, width))
    recode = _lightgbm_categories(dumped)
    compares = Compares(np.float64, zero=LIGHTGBM_ZERO)
    return Read(trees, compares, np.float64, has_base=True, recode=recode)


def _lightgbm_categories(dumped: Mapping[str, Any]) -> dict[int, dict[Any, int]]:
    """The codes of the categories of each categorical input, by the words that the model stores.

    LightGBM stores the words of the categorical columns in their order, without the columns' numbers. The
    columns are those whose description lists codes instead of a range.
    """
    stored = dumped.get("pandas_categorical") or []
    infos = dumped.get("feature_infos") or {}
    names = list(dumped.get("feature_names") or [])
    listed = [k for k, name in enumerate(names) if (infos.get(name) or {}).get("values")]
    if len(listed) != len(stored):
        raise NotReadable("it splits categories, and the model does not say which words these are")
    return {
        k: {value: code for code, value in enumerate(values)}
        for k, values in zip(listed, stored, strict=True)
    }


def _flatten_nodes(top: dict[str, Any], rows: list[list[Any]], left_codes: dict[int, frozenset[int]]) -> bool:
    """Append a tree of dictionaries as rows of feature, threshold, left, right, value and missing_left.

    A node that splits categories lists the categories that go left, as in "0||2"; they are put into `left_codes`.

    Returns False if a node is not a plain comparison. Without missing values in its training data (missing type
    "None"), LightGBM reads a missing number as 0.
    """
    waiting: list[tuple[dict[str, Any], Sequence[int]]] = [(top, ())]
    while waiting:
        node, parent = waiting.pop()
        if parent:
            rows[parent[0]][parent[1]] = len(rows)
        if "leaf_value" in node:
            if node.get("leaf_coeff") or node.get("leaf_features"):
                return False
            rows.append([0, 0.0, -1, -1, float(node["leaf_value"]), False])
            continue
        index = len(rows)
        if node["decision_type"] == "==":
            left_codes[index] = frozenset(int(code) for code in str(node["threshold"]).split("||"))
            rows.append([int(node["split_feature"]), 0.0, -1, -1, 0.0, False])
            waiting += [(node["right_child"], (index, 3)), (node["left_child"], (index, 2))]
            continue
        if node["decision_type"] != "<=" or node.get("missing_type") == "Zero":
            return False
        threshold = float(node["threshold"])
        missing_left = threshold >= 0 if node.get("missing_type") == "None" else bool(node["default_left"])
        rows.append([int(node["split_feature"]), threshold, -1, -1, 0.0, missing_left])
        waiting += [(node["right_child"], (index, 3)), (node["left_child"], (index, 2))]
    return True
