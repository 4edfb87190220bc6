"""Fitted estimators of scikit-learn, XGBoost and LightGBM: what they answer, how they are asked, and what is known of their inside.

A linear model or a small network becomes a torch module. A sum of trees is read as boxes. Everything else is a black box. What was read is
asked beside the estimator itself before it is believed.

The class of a row is what `predict` says. Where the scores of a classifier say another class (thresholds, Platt's probabilities, ties), the
class that was predicted is put just above the largest score, so that certificates and attacks speak of `predict` whatever the scores are.
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
from holdfast.network.estimators.forests import read_trees
from holdfast.network.estimators.library_code import NotReadable, is_unmodified
from holdfast.network.estimators.linear import as_module, steps_of
from holdfast.network.trees import Array, Trees
from holdfast.process_state import Registered, ignored_warnings
from holdfast.region.columns import Columns

READ = "read as a torch module in float64, which answers as the estimator does"
PROBES = 512
SPREAD = (0.0, 1e-3, 1.0, 30.0)
ADDITIVE = (
    "HistGradientBoostingClassifier",
    "GradientBoostingClassifier",
)  # their scores are sums over trees, their probabilities are not
THRESHOLDED = ("FixedThresholdClassifier", "TunedThresholdClassifierCV")
VECTORS = ("SVC", "NuSVC")  # their probabilities (Platt's) are fitted apart from what they predict
ROWS = 128  # asked of each way to score before one is chosen
Scores = Callable[[Any], Array]


@dataclass(frozen=True)
class OpenedEstimator:
    """module: what is measured. itself: the estimator, where the module is not it."""

    module: nn.Module
    itself: nn.Module | None
    columns: Columns
    classes: tuple[str, ...] | None
    labels: tuple[Any, ...] | None  # the classes as the estimator holds them
    trees: Trees | None
    notes: tuple[str, ...]


def open_estimator(estimator: Any, columns: Columns | None) -> OpenedEstimator:
    _check(estimator)
    estimator = copy.deepcopy(estimator)
    names, framed = _names(estimator)
    told = _columns(columns, names)
    if isinstance(getattr(estimator, "classes_", None), list):
        raise BadInput(SEVERAL)
    labels = tuple(np.asarray(estimator.classes_).tolist()) if hasattr(estimator, "classes_") else None
    classes = None if labels is None else tuple(map(str, labels))
    said = None if labels is None else _Predicted(estimator.predict, labels)
    module = as_module(estimator, told)
    ways = _ways_to_score(estimator, is_read=module is not None)
    asked, notes = _following([Estimator(ask, told, names if framed else None, said) for ask in ways], told)
    module = _agreeing(module, asked)
    if module is not None:
        return OpenedEstimator(module, asked, told, classes, labels, None, (READ, *notes))
    trees, why = _trees(estimator, asked)
    return OpenedEstimator(asked, None, told, classes, labels, trees, (_note(estimator, trees, why), *notes))


def _trees(estimator: Any, asked: "Estimator") -> tuple[Trees | None, str]:
    """The trees, or why there are none."""
    try:
        read = read_trees(estimator, asked.columns)
    except NotReadable as error:
        return None, str(error)
    if read is None:
        return None, ""
    found = _verify_trees(*read, asked)
    return found, "" if found is not None else "its answers are not the sum over its trees"


def _note(estimator: Any, trees: Trees | None, why: str) -> str:
    kind = type(steps_of(estimator)[1]).__name__
    if trees is None:
        return f"{kind} is a black box: no gradients, nothing can be proved{f'; {why}' if why else ''}"
    return (
        f"{kind}: {trees.count} trees with {len(trees.tree)} leaves. It is constant between thresholds, so no method follows gradients: "
        f"searches step from leaf to leaf, and proofs add up what each tree can say at most"
    )


SEVERAL = "the estimator answers several questions at once (multi-output): fit one for each, or give from_callable one of them."
FOLLOWS = "its scores and its predict do not always name the same class: it is measured by predict, whose class is put on top"


@dataclass(frozen=True)
class _Predicted:
    """rows -> (n,) int: the place among the classes of what `predict` says."""

    predict: Callable[[Any], Any]
    labels: tuple[Any, ...]

    def __call__(self, rows: Any) -> Array:
        said = np.asarray(self.predict(rows))
        if said.ndim != 1:
            raise BadInput(SEVERAL)
        place = {label: k for k, label in enumerate(self.labels)}
        strange = next((label for label in said.tolist() if label not in place), None)
        if strange is not None:
            raise BadInput(
                f"predict says {str(strange)[:60]!r}, which is none of the estimator's classes {list_names(self.labels)}, so nobody knows "
                f"which class is meant. Give a function with one score for each class instead: hf.Network.from_callable(function)."
            )
        return np.array([place[label] for label in said.tolist()], dtype=np.int64)


def _following(each: list["Estimator"], columns: Columns) -> tuple["Estimator", tuple[str, ...]]:
    """The first way to score that names the classes that `predict` says, as far as rows of all sizes show; else the first, and a note."""
    generator = torch.Generator().manual_seed(1)
    noise = torch.randn(
        (ROWS // len(SPREAD), len(columns.features)), generator=generator, dtype=torch.float64
    )
    rows = columns.as_rows(torch.cat([noise * size for size in SPREAD]))
    for estimator in each:
        try:
            estimator(rows)
        except BadInput:
            raise
        except Exception:  # it refuses such rows; others will be asked of it
            continue
        if not estimator.corrected:
            return estimator, ()
    return each[0], (FOLLOWS,) if each[0].corrected else ()


@contextmanager
def _quiet_single_thread() -> Iterator[None]:
    """Ask an estimator with one thread, without its warnings; it may have threads of its own, so the filter is for all of them."""
    with (
        ignored_warnings(UserWarning, every_thread=True),
        _one_thread().limit(limits=1, user_api="openmp"),
        _one_blas_thread(None),
    ):
        yield


class Estimator(nn.Module):
    """An estimator as a network of float64 numbers; asked with a frame where it was fitted on one.

    said  the classes that `predict` says, None for a regressor. corrected: whether scores named another class, by more than a tie.
    """

    def __init__(
        self, ask: Scores, columns: Columns, names: tuple[str, ...] | None, said: _Predicted | None
    ) -> None:
        super().__init__()
        self.ask, self.columns, self.names, self.said = ask, columns, names, said
        self.corrected = False
        self.register_buffer("arithmetic", torch.zeros((), dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        rows = x.detach().cpu().double()
        if rows.dim() != 2:
            raise BadInput(
                f"an estimator takes rows of {len(self.columns.features)} numbers, these inputs are {tuple(rows.shape[1:])}."
            )
        given = rows.numpy() if self.names is None else self.columns.decode(rows)[list(self.names)]
        with _quiet_single_thread():
            answer = np.asarray(self.ask(given), dtype=np.float64)
        if answer.ndim != 2 or len(answer) != len(rows):
            raise BadInput(
                f"the estimator answered {answer.shape} to {len(rows)} rows; expected one row of numbers for each."
            )
        if self.said is not None and len(rows):
            answer = self._put_on_top(answer, given)
        return torch.from_numpy(np.ascontiguousarray(answer)).to(x.device)

    def _put_on_top(self, scores: Array, given: Any) -> Array:
        """The scores, and where another class than that of `predict` has the largest, or as large a one, this class just above it."""
        assert self.said is not None
        with _quiet_single_thread():
            said = self.said(given)
        if scores.shape[1] != len(self.said.labels):
            raise BadInput(
                f"the estimator has {len(self.said.labels)} classes, and its scores are {scores.shape[1]} numbers for each row."
            )
        rows = np.arange(len(scores))
        others = scores.copy()
        others[rows, said] = -np.inf
        top, own = others.max(axis=1), scores[rows, said]
        wrong = own <= top  # not of NaN
        self.corrected |= bool((own < top).any())
        found = scores.copy()
        found[rows[wrong], said[wrong]] = np.nextafter(top[wrong], np.inf)
        return found


@lru_cache(maxsize=1)
def _one_thread() -> Any:
    """A pool of threads does not survive in a copy of this process, and a run's questions are answered in such copies."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


# OpenMP counts the threads of each thread apart, BLAS those of the process.
_one_blas_thread = Registered(
    lambda _: _one_thread().limit(limits=1, user_api="blas"),
    lambda limiter: limiter.restore_original_limits(),
)


def _check(estimator: Any) -> None:
    if isinstance(estimator, type):
        raise BadInput(
            f"from_sklearn needs a fitted estimator, got the class {estimator.__name__}: make one and fit it first."
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
        pass  # one that is like an estimator, and says less of itself
    if _estimator_attribute(estimator, "n_features_in_") is None:
        raise BadInput(
            f"{type(estimator).__name__} does not say how many features it takes (n_features_in_). Give its function instead: "
            f"hf.Network.from_callable(estimator.predict_proba)."
        )


def _estimator_attribute(estimator: Any, what: str) -> Any:
    """What an estimator says of its inputs; in a pipeline the first step that says it."""
    before, model = steps_of(estimator)
    known = (getattr(step, what, None) for step in (estimator, *before, model))
    return next((found for found in known if found is not None), None)


def _names(estimator: Any) -> tuple[tuple[str, ...], bool]:
    """The names of its features, and whether it was fitted on a frame."""
    found = _estimator_attribute(estimator, "feature_names_in_")
    names = () if found is None else tuple(map(str, found))
    if names and not all(
        name == f"Column_{place}" for place, name in enumerate(names)
    ):  # LightGBM's own, where there were none
        return names, True
    return tuple(f"x{place}" for place in range(_estimator_attribute(estimator, "n_features_in_"))), False


def _columns(columns: Columns | None, names: tuple[str, ...]) -> Columns:
    """What the columns are, in the order of the estimator."""
    if columns is None:
        return Columns.named(names)
    held = {name for c in columns.each for name in ((c.name,) if c.values is not None else c.features)}
    if held == set(names):
        return columns.in_order(names)
    if len(columns.features) == len(names) and all(name == f"x{place}" for place, name in enumerate(names)):
        return columns  # fitted on an array: by their places
    strange = next((name for name in names if name not in held), None)
    more = next((name for name in held if name not in names), None)
    raise BadInput(
        f"the columns are not those of the estimator: {f'it also has {strange!r}' if strange else f'it has no {more!r}'}. "
        f"It was fitted on {', '.join(names[:12])}{' ...' if len(names) > 12 else ''}."
    )


def _ways_to_score(estimator: Any, *, is_read: bool) -> list[Scores]:
    """Each (rows) -> (n, outputs): scores where they are sums over trees or of linear models, probabilities where there are, else 1 for the
    class; further ways where a classifier has them. is_read: whether it was read as a torch module."""
    model = steps_of(estimator)[1]
    home, name = type(model).__module__, type(model).__name__
    if hasattr(model, "n_jobs") and home.startswith(("xgboost", "lightgbm")):
        model.n_jobs = 1  # they bring their own threads: see `_one_thread`
    if not hasattr(estimator, "classes_"):
        return [lambda x: _as_rows(estimator.predict(x))]
    classes = np.asarray(estimator.classes_)
    if home.startswith("xgboost"):
        return [lambda x: _two(estimator.predict(x, output_margin=True))]
    if home.startswith("lightgbm"):
        return [lambda x: _two(estimator.predict(x, raw_score=True))]
    if name in THRESHOLDED and is_unmodified(model):
        return [_Margin(estimator, model, positive) for positive in (1, 0)]
    ways: list[Scores] = []
    if hasattr(estimator, "predict_proba"):
        scale = _logarithms if name == "MLPClassifier" and is_read else _probabilities
        ways.append(lambda x: scale(estimator.predict_proba(x)))
    if hasattr(estimator, "decision_function"):
        first = is_read or name in (*ADDITIVE, *VECTORS)
        ways.insert(0 if first else len(ways), lambda x: _two(estimator.decision_function(x)))
    return ways or [lambda x: (np.asarray(estimator.predict(x))[:, None] == classes).astype(np.float64)]


@dataclass(frozen=True)
class _Margin:
    """A classifier of two classes that says the positive one where a score reaches a threshold: outputs 0 and score - threshold, the score
    of the positive class (its place is `positive`). The difference of two floating-point numbers has the right sign."""

    estimator: Any
    model: Any
    positive: int

    def __call__(self, rows: Any) -> Array:
        likely = self.model.response_method != "decision_function" and hasattr(
            self.estimator, "predict_proba"
        )
        if likely:
            score = np.asarray(self.estimator.predict_proba(rows), dtype=np.float64)[:, self.positive]
        else:
            score = np.asarray(self.estimator.decision_function(rows), dtype=np.float64) * (
                1 if self.positive else -1
            )
        told = getattr(self.model, "best_threshold_", getattr(self.model, "threshold", "auto"))
        threshold = (0.5 if likely else 0.0) if isinstance(told, str) else float(told)
        found = np.zeros((len(score), 2))
        found[:, self.positive] = score - threshold
        return found


def _as_rows(answer: Any) -> Array:
    found = np.asarray(answer, dtype=np.float64)
    return found[:, None] if found.ndim == 1 else found


def _two(score: Any) -> Array:
    """One score s of two classes as the outputs 0 and s."""
    found = np.asarray(score, dtype=np.float64)
    if found.ndim == 2 and found.shape[1] > 1:
        return found
    return np.stack([np.zeros(len(found)), found.reshape(-1)], axis=1)


def _probabilities(answer: Any) -> Array:
    if isinstance(answer, list):
        raise BadInput(SEVERAL)
    return np.asarray(answer, dtype=np.float64)


def _logarithms(answer: Any) -> Array:
    """Probabilities on the scale of the outputs that were read, before softmax: their differences are those of these outputs."""
    return np.log(np.maximum(_probabilities(answer), np.finfo(np.float64).tiny))


def _agreeing(module: nn.Module | None, asked: Estimator) -> nn.Module | None:
    """The module, where it answers as the estimator does, near and far."""
    if module is None:
        return None
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn((PROBES // 4, len(asked.columns.features)), generator=generator, dtype=torch.float64)
    points = asked.columns.as_rows(torch.cat([noise * size for size in SPREAD]))
    with torch.no_grad():
        said, own = asked(points), module(points)
        if asked.said is not None and bool((said.argmax(-1) != own.argmax(-1)).any()):
            return None
    if said.shape != own.shape:
        return None
    same = torch.allclose(said, own, rtol=1e-9, atol=1e-12)
    if not same and own.shape[1] > 1:  # it may answer with logarithms of probabilities
        same = torch.allclose(said.exp(), own.softmax(-1), rtol=1e-9, atol=1e-12)
    return module if same else None


def _verify_trees(trees: Trees, has_base: bool, asked: Estimator) -> Trees | None:
    """The trees with what is added to all of them, where their sum is what the estimator answers on both sides of their thresholds."""
    points = asked.columns.as_rows(trees.probes(PROBES))
    said = asked(points)
    values, base = trees.values, trees.base
    if said.shape[1] == 2 and values.shape[1] == 1:
        values = torch.cat([torch.zeros_like(values), values], 1)
        base = torch.zeros(2, dtype=torch.float64)
    if values.shape[1] != said.shape[1]:
        return None
    bare = replace(trees, values=values, base=base)
    apart = said - bare.sum(points)
    base = apart.median(0).values
    base = torch.where(
        apart.abs().amax(0) <= bare.rounding_error(), 0.0, base
    )  # most have none, and none is exact
    if not has_base and bool((base != 0).any()):
        return None
    found = replace(bare, base=base)
    return (
        found if bool(((said - found.sum(points)).abs() <= found.rounding_error() + 1e-300).all()) else None
    )
