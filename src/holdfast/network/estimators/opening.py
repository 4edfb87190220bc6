"""Fitted estimators of scikit-learn, XGBoost and LightGBM as modules.

A linear model or a multi-layer perceptron becomes a torch module. A sum of trees is read as boxes. Everything
else is a black box. A module or trees are used only if they give the estimator's own outputs on random rows.

The class of a row is the prediction of `predict`. Where the scores of a classifier name another class
(thresholds, Platt's probabilities, ties), the score of the predicted class is raised just above the largest
score, so that certificates and attacks are about `predict`.
"""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from holdfast.errors import BadInput
from holdfast.network.classes import list_names
from holdfast.network.estimators.composed import as_module
from holdfast.network.estimators.forests import read_trees
from holdfast.network.estimators.library_code import NotReadable, is_unmodified
from holdfast.network.estimators.linear import steps_of
from holdfast.network.estimators.preparation_modules import Prefix
from holdfast.network.trees import Array, Trees
from holdfast.process_state import Registered, ignored_warnings
from holdfast.region.columns import Columns

READ = "read as a torch module in float64, which answers as the estimator does"
# Number of rows on which a module or trees are compared with the estimator (chosen by hand).
PROBES = 512
# Smallest number of these rows on which the module must be defined (chosen by hand).
MIN_PROBES = PROBES // 8
# Standard deviations of the random rows (chosen by hand).
SPREAD = (0.0, 1e-3, 1.0, 30.0)
# Largest difference between the outputs of a module and of its estimator that is attributed to rounding in
# float64 (chosen by hand).
RELATIVE_TOLERANCE = 1e-9
ABSOLUTE_TOLERANCE = 1e-12
# Smallest difference that counts when sums over trees are compared: it allows for subnormal numbers (chosen
# by hand).
SMALLEST_DIFFERENCE = 1e-300
# Classifiers whose scores are sums over trees, while their probabilities are not.
ADDITIVE = ("HistGradientBoostingClassifier", "GradientBoostingClassifier", "AdaBoostClassifier")
THRESHOLDED = ("FixedThresholdClassifier", "TunedThresholdClassifierCV")
# Classifiers whose modules answer with logarithms of probabilities, up to a constant for each row.
LOGARITHMIC = ("MLPClassifier", "GaussianNB")
# Classifiers whose probabilities (Platt's) are fitted separately from their predictions.
VECTORS = ("SVC", "NuSVC")
# Number of rows on which each kind of scores is compared with `predict` before one is chosen (chosen by
# hand).
ROWS = 128
# Number of column names in an error message (chosen by hand).
MAX_NAMES = 12
Scores = Callable[[Any], Array]


@dataclass(frozen=True)
class OpenedEstimator:
    """An estimator as a module.

    Attributes:
        module: the module to measure.
        itself: the estimator, if `module` was read from it.
        labels: the classes as the estimator has them.
    """

    module: nn.Module
    itself: nn.Module | None
    columns: Columns
    classes: tuple[str, ...] | None
    labels: tuple[Any, ...] | None
    trees: Trees | None
    notes: tuple[str, ...]


def open_estimator(estimator: Any, columns: Columns | None) -> OpenedEstimator:
    """Read an estimator; BadInput if it is not fitted, or the columns are not its own."""
    _check(estimator)
    estimator = copy.deepcopy(estimator)
    names, has_names = _names(estimator)
    matched = _columns(columns, names)
    if isinstance(getattr(estimator, "classes_", None), list):
        raise BadInput(SEVERAL)
    labels = tuple(np.asarray(estimator.classes_).tolist()) if hasattr(estimator, "classes_") else None
    classes = None if labels is None else tuple(map(str, labels))
    predicted = None if labels is None else _Predicted(estimator.predict, labels)
    module, why_no_module = _module(estimator, matched)
    scorers = _scorers(estimator, is_read=module is not None)
    candidates = [Estimator(scorer, matched, names if has_names else None, predicted) for scorer in scorers]
    black_box, notes = _consistent_with_predict(candidates, matched)
    verified = _verify_module(module, black_box)
    if verified is not None:
        return OpenedEstimator(verified, black_box, matched, classes, labels, None, (READ, *notes))
    trees, why = _trees(estimator, black_box)
    if not why:
        why = why_no_module if module is None else "as a module it would not answer as its predict does"
    notes = (_note(estimator, trees, why), *notes)
    return OpenedEstimator(black_box, None, matched, classes, labels, trees, notes)


def _module(estimator: Any, columns: Columns) -> tuple[nn.Module | None, str]:
    """The estimator as a module, or None and the reason."""
    try:
        return as_module(estimator, Prefix.of(columns)), ""
    except NotReadable as error:
        return None, str(error)


def _trees(estimator: Any, black_box: "Estimator") -> tuple[Trees | None, str]:
    """The trees, or None and the reason; the reason is "" if the estimator has no trees."""
    try:
        read = read_trees(estimator, black_box.columns, black_box.names)
    except NotReadable as error:
        return None, str(error)
    if read is None:
        return None, ""
    found = _verify_trees(*read, black_box)
    return found, "" if found is not None else "its answers are not the sum over its trees"


def _note(estimator: Any, trees: Trees | None, why: str) -> str:
    kind = type(steps_of(estimator)[1]).__name__
    if trees is None:
        return f"black box: no gradients, nothing can be proved{f'; {why}' if why else f' of {kind}'}"
    return (
        f"{kind}: {trees.count} trees with {len(trees.tree)} leaves. It is constant between thresholds, so "
        f"no method follows gradients: searches step from leaf to leaf, and proofs add up bounds over the "
        f"leaves of each tree"
    )


SEVERAL = (
    "the estimator answers several questions at once (multi-output): fit one for each, "
    "or give from_callable one of them."
)
FOLLOWS = (
    "its scores and its predict do not always name the same class: it is measured by predict, "
    "whose class is put on top"
)


@dataclass(frozen=True)
class _Predicted:
    """rows -> (n,) int: the numbers of the predicted classes."""

    predict: Callable[[Any], Any]
    labels: tuple[Any, ...]

    def __call__(self, rows: Any) -> Array:
        predicted = np.asarray(self.predict(rows))
        if predicted.ndim != 1:
            raise BadInput(SEVERAL)
        number = {label: k for k, label in enumerate(self.labels)}
        unknown = next((label for label in predicted.tolist() if label not in number), None)
        if unknown is not None:
            raise BadInput(
                f"predict returns {str(unknown)[:60]!r}, which is none of the estimator's classes "
                f"{list_names(self.labels)}, so nobody knows which class is meant. Give a function with one "
                f"score for each class instead: hf.Network.from_callable(function)."
            )
        return np.array([number[label] for label in predicted.tolist()], dtype=np.int64)


def _consistent_with_predict(
    candidates: list["Estimator"], columns: Columns
) -> tuple["Estimator", tuple[str, ...]]:
    """The first candidate whose scores name the classes of `predict` on random rows.

    Otherwise returns the first candidate, with a note.
    """
    generator = torch.Generator().manual_seed(1)
    noise = torch.randn(
        (ROWS // len(SPREAD), len(columns.features)), generator=generator, dtype=torch.float64
    )
    rows = columns.as_rows(torch.cat([noise * size for size in SPREAD]))
    for estimator in candidates:
        try:
            estimator(rows)
        except BadInput:
            raise
        except Exception:  # it refuses such rows, but may accept the user's
            continue
        if not estimator.corrected:
            return estimator, ()
    return candidates[0], (FOLLOWS,) if candidates[0].corrected else ()


@contextmanager
def _quiet_single_thread() -> Iterator[None]:
    """A context in which an estimator runs with one thread and without warnings, which are filtered in all
    threads."""
    with (
        ignored_warnings(UserWarning, every_thread=True),
        _one_thread().limit(limits=1, user_api="openmp"),
        _one_blas_thread(None),
    ):
        yield


class Estimator(nn.Module):
    """An estimator as a module of float64 numbers.

    Attributes:
        scorer: computes the scores.
        names: the column names of the data frame that it was fitted on, or None; it is called with such a
            frame.
        predicted: the classes of `predict`; None for a regressor.
        corrected: whether the scores of a row named another class than `predict`, by more than a tie.
    """

    def __init__(
        self, scorer: Scores, columns: Columns, names: tuple[str, ...] | None, predicted: _Predicted | None
    ) -> None:
        super().__init__()
        self.scorer, self.columns, self.names, self.predicted = scorer, columns, names, predicted
        self.corrected = False
        self.register_buffer("arithmetic", torch.zeros((), dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        rows = x.detach().cpu().double()
        if rows.dim() != 2:
            raise BadInput(
                f"an estimator takes rows of {len(self.columns.features)} numbers, "
                f"these inputs are {tuple(rows.shape[1:])}."
            )
        if self.names is not None:
            table = self.columns.decode(rows)[list(self.names)]
        elif self.columns.indicators:
            table = self.columns.decode(rows)[list(self.columns.table_names)].to_numpy(dtype=np.float64)
        else:
            table = rows.numpy()
        with _quiet_single_thread():
            answer = np.asarray(self.scorer(table), dtype=np.float64)
        if answer.ndim != 2 or len(answer) != len(rows):
            raise BadInput(
                f"the estimator answered {answer.shape} to {len(rows)} rows; expected one row of numbers for "
                f"each."
            )
        if self.predicted is not None and len(rows):
            answer = self._raise_predicted(answer, table)
        return torch.from_numpy(np.ascontiguousarray(answer)).to(x.device)

    def _raise_predicted(self, scores: Array, table: Any) -> Array:
        """The scores, with the score of the predicted class raised just above the others where it is not the
        largest."""
        assert self.predicted is not None
        with _quiet_single_thread():
            predicted = self.predicted(table)
        labels = self.predicted.labels
        if scores.shape[1] != len(labels):
            raise BadInput(
                f"the estimator has {len(labels)} classes, and its scores are {scores.shape[1]} numbers for "
                f"each row."
            )
        rows = np.arange(len(scores))
        others = scores.copy()
        others[rows, predicted] = -np.inf
        top, own = others.max(axis=1), scores[rows, predicted]
        wrong = own <= top  # False for NaN
        self.corrected |= bool((own < top).any())
        raised = scores.copy()
        raised[rows[wrong], predicted[wrong]] = np.nextafter(top[wrong], np.inf)
        return raised


@lru_cache(maxsize=1)
def _one_thread() -> Any:
    """Limits the threads of numerical libraries, because thread pools do not survive a fork and workers are
    forks of this process."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


# The limit of OpenMP is for each thread, that of BLAS for the whole process.
_one_blas_thread = Registered(
    lambda _: _one_thread().limit(limits=1, user_api="blas"),
    lambda limiter: limiter.restore_original_limits(),
)


def _check(estimator: Any) -> None:
    if isinstance(estimator, type):
        raise BadInput(
            f"from_sklearn needs a fitted estimator, got the class {estimator.__name__}: make one and fit it "
            f"first."
        )
    if not hasattr(estimator, "predict") or not hasattr(estimator, "fit"):
        raise BadInput(
            f"from_sklearn needs a fitted estimator with fit and predict, got {type(estimator).__name__}."
        )
    try:
        from sklearn.exceptions import NotFittedError
        from sklearn.utils.validation import check_is_fitted
    except ImportError as error:
        raise BadInput("estimators need scikit-learn: pip install 'holdfast[tables]'.") from error
    try:
        check_is_fitted(estimator)
    except NotFittedError as error:
        raise BadInput(f"{type(estimator).__name__} is not fitted yet: call fit first.") from error
    except (AttributeError, TypeError):
        pass  # not a scikit-learn estimator, but similar
    if _estimator_attribute(estimator, "n_features_in_") is None:
        raise BadInput(
            f"{type(estimator).__name__} does not say how many features it takes (n_features_in_). "
            f"Give its function instead: hf.Network.from_callable(estimator.predict_proba)."
        )


def _estimator_attribute(estimator: Any, what: str) -> Any:
    """An attribute of an estimator about its inputs; in a pipeline that of the first step that has it."""
    before, model = steps_of(estimator)
    known = (getattr(step, what, None) for step in (estimator, *before, model))
    return next((found for found in known if found is not None), None)


def _names(estimator: Any) -> tuple[tuple[str, ...], bool]:
    """The names of the features, and whether the estimator was fitted on a data frame."""
    found = _estimator_attribute(estimator, "feature_names_in_")
    names = () if found is None else tuple(map(str, found))
    # LightGBM makes up the names Column_0, Column_1, ... if it was fitted on an array.
    if names and not all(name == f"Column_{i}" for i, name in enumerate(names)):
        return names, True
    return tuple(f"x{i}" for i in range(_estimator_attribute(estimator, "n_features_in_"))), False


def _columns(columns: Columns | None, names: tuple[str, ...]) -> Columns:
    """The columns in the order of the estimator's features; BadInput if they are not its features."""
    if columns is None:
        return Columns.named(names)
    held = set(columns.table_names)
    if held == set(names):
        indicators = [c.name for c in columns.each if c.missing_of is not None]
        return columns.in_order((*names, *indicators))
    if len(held) == len(names) and all(name == f"x{i}" for i, name in enumerate(names)):
        return columns  # fitted on an array: columns are matched by position
    missing = next((name for name in names if name not in held), None)
    extra = next((name for name in held if name not in names), None)
    raise BadInput(
        f"the columns are not those of the estimator: "
        f"{f'it also has {missing!r}' if missing else f'it has no {extra!r}'}. It was fitted on "
        f"{', '.join(names[:MAX_NAMES])}{' ...' if len(names) > MAX_NAMES else ''}."
    )


def _scorers(estimator: Any, *, is_read: bool) -> list[Scores]:
    """The functions (rows) -> (n, outputs) that can serve as the scores of an estimator, in order of
    preference.

    Scores come first for sums over trees and linear models, else probabilities; without both, 1 for the
    predicted class and 0 for others.

    Args:
        is_read: whether the estimator was read as a torch module.
    """
    model = steps_of(estimator)[1]
    home, name = type(model).__module__, type(model).__name__
    if hasattr(model, "n_jobs") and home.startswith(("xgboost", "lightgbm")):
        model.n_jobs = 1  # these libraries have their own threads: see `_one_thread`
    if not hasattr(estimator, "classes_"):
        return [lambda x: _as_rows(estimator.predict(x))]
    classes = np.asarray(estimator.classes_)
    if home.startswith("xgboost"):
        return [lambda x: _two(estimator.predict(x, output_margin=True))]
    if home.startswith("lightgbm"):
        return [lambda x: _two(estimator.predict(x, raw_score=True))]
    if name in THRESHOLDED and is_unmodified(model):
        return [_Margin(estimator, model, positive) for positive in (1, 0)]
    scorers: list[Scores] = []
    if hasattr(estimator, "predict_proba"):
        scale = _logarithms if name in LOGARITHMIC and is_read else _probabilities
        scorers.append(lambda x: scale(estimator.predict_proba(x)))
    if hasattr(estimator, "decision_function"):
        averages = name == "BaggingClassifier"  # predict averages the probabilities of its parts
        first = (is_read and not averages) or name in (*ADDITIVE, *VECTORS)
        scorers.insert(0 if first else len(scorers), lambda x: _two(estimator.decision_function(x)))
    return scorers or [lambda x: (np.asarray(estimator.predict(x))[:, None] == classes).astype(np.float64)]


@dataclass(frozen=True)
class _Margin:
    """A binary classifier that predicts the positive class where a score reaches a threshold, as outputs 0
    and score - threshold.

    The sign of the floating-point difference is exact.

    Attributes:
        positive: the number of the positive class, 0 or 1.
    """

    estimator: Any
    model: Any
    positive: int

    def __call__(self, rows: Any) -> Array:
        has_probabilities = self.model.response_method != "decision_function" and hasattr(
            self.estimator, "predict_proba"
        )
        if has_probabilities:
            score = np.asarray(self.estimator.predict_proba(rows), dtype=np.float64)[:, self.positive]
        else:
            score = np.asarray(self.estimator.decision_function(rows), dtype=np.float64) * (
                1 if self.positive else -1
            )
        setting = getattr(self.model, "best_threshold_", getattr(self.model, "threshold", "auto"))
        default = 0.5 if has_probabilities else 0.0
        threshold = default if isinstance(setting, str) else float(setting)
        outputs = np.zeros((len(score), 2))
        outputs[:, self.positive] = score - threshold
        return outputs


def _as_rows(answer: Any) -> Array:
    found = np.asarray(answer, dtype=np.float64)
    return found[:, None] if found.ndim == 1 else found


def _two(score: Any) -> Array:
    """The score s of a binary classifier as the outputs 0 and s; several scores unchanged."""
    found = np.asarray(score, dtype=np.float64)
    if found.ndim == 2 and found.shape[1] > 1:
        return found
    return np.stack([np.zeros(len(found)), found.reshape(-1)], axis=1)


def _probabilities(answer: Any) -> Array:
    if isinstance(answer, list):
        raise BadInput(SEVERAL)
    return np.asarray(answer, dtype=np.float64)


def _logarithms(answer: Any) -> Array:
    """Logarithms of probabilities. Their differences are those of the outputs before the softmax."""
    return np.log(np.maximum(_probabilities(answer), np.finfo(np.float64).tiny))


def _verify_module(module: nn.Module | None, estimator: Estimator) -> nn.Module | None:
    """The module, if it gives the estimator's outputs on random rows; else None."""
    if module is None:
        return None
    generator = torch.Generator().manual_seed(0)
    shape = (PROBES // len(SPREAD), len(estimator.columns.features))
    noise = torch.randn(shape, generator=generator, dtype=torch.float64)
    points = estimator.columns.as_rows(torch.cat([noise * size for size in SPREAD]))
    with torch.no_grad():
        outputs = module(points)
        defined = outputs.isfinite().all(1)  # a logarithm is defined for some rows only
        if int(defined.sum()) < MIN_PROBES:
            return None
        outputs, expected = outputs[defined], estimator(points[defined])
        if estimator.predicted is not None and bool((expected.argmax(-1) != outputs.argmax(-1)).any()):
            return None
    if expected.shape != outputs.shape:
        return None
    same = _same_outputs(expected, outputs)
    if not same and outputs.shape[1] > 1:  # the estimator's scores may be logarithms of probabilities
        same = _same_outputs(expected.exp(), outputs.softmax(-1))
    return module if same else None


def _same_outputs(expected: Tensor, outputs: Tensor) -> bool:
    return torch.allclose(expected, outputs, rtol=RELATIVE_TOLERANCE, atol=ABSOLUTE_TOLERANCE)


def _verify_trees(trees: Trees, has_base: bool, estimator: Estimator) -> Trees | None:
    """The trees with their base, if their sum gives the estimator's outputs on both sides of their
    thresholds; else None."""
    points = trees.probes(PROBES)
    generator = torch.Generator().manual_seed(2)
    for group in estimator.columns.groups:  # every value of a column of words is as likely
        points[:, group] = torch.rand((PROBES, int(group.sum())), generator=generator, dtype=torch.float64)
    points = estimator.columns.as_rows(points)
    expected = estimator(points)
    values, base = trees.values, trees.base
    if expected.shape[1] == 2 and values.shape[1] == 1:
        values = torch.cat([torch.zeros_like(values), values], 1)
        base = torch.zeros(2, dtype=torch.float64)
    if values.shape[1] != expected.shape[1]:
        return None
    without_base = replace(trees, values=values, base=base)
    difference = expected - without_base.sum(points)
    base = difference.median(0).values
    # Most estimators have no base; then zero is exact, and the median is not.
    base = torch.where(difference.abs().amax(0) <= without_base.rounding_error(), 0.0, base)
    if not has_base and bool((base != 0).any()):
        return None
    found = replace(without_base, base=base)
    errors = (expected - found.sum(points)).abs()
    return found if bool((errors <= found.rounding_error() + SMALLEST_DIFFERENCE).all()) else None
