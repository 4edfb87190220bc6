"""Fitted estimators of scikit-learn, XGBoost and LightGBM: what they answer, how they are asked, and what is known of their inside.

A linear model or a small network becomes a torch module. A sum of trees is read as boxes. Everything else is a black box. What was read is
asked beside the estimator itself before it is believed.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from holdfast.errors import BadInput
from holdfast.network.estimators.forests import read_trees
from holdfast.network.estimators.linear import as_module, steps_of
from holdfast.network.trees import Array, Trees
from holdfast.process_state import Registered, ignored_warnings
from holdfast.region.columns import Columns

READ = "read as a torch module in float64, which answers as the estimator does"
PROBES = 512
SPREAD = (0.0, 1e-3, 1.0, 30.0)
ADDITIVE = ("HistGradientBoostingClassifier", "GradientBoostingClassifier")  # their scores are sums over trees, their probabilities are not


@dataclass(frozen=True)
class Opened:
    """module: what is measured. itself: the estimator, where the module is not it."""

    module: nn.Module
    itself: nn.Module | None
    columns: Columns
    classes: tuple[str, ...] | None
    labels: tuple[Any, ...] | None  # the classes as the estimator holds them
    trees: Trees | None
    notes: tuple[str, ...]


def open_estimator(estimator: Any, columns: Columns | None) -> Opened:
    _check(estimator)
    estimator = copy.deepcopy(estimator)
    names, framed = _names(estimator)
    told = _columns(columns, names)
    asked = Estimator(_asker(estimator, told), told, names if framed else None)
    labels = tuple(np.asarray(estimator.classes_).tolist()) if hasattr(estimator, "classes_") else None
    classes = None if labels is None else tuple(map(str, labels))
    module = _agreeing(as_module(estimator, told), asked)
    if module is not None:
        return Opened(
            module, asked, told, classes, labels, None, ("read as a torch module in float64, which answers as the estimator does",)
        )
    trees = _believed(read_trees(estimator, told), asked)
    return Opened(asked, None, told, classes, labels, trees, (_note(estimator, trees),))


def _note(estimator: Any, trees: Trees | None) -> str:
    kind = type(steps_of(estimator)[1]).__name__
    if trees is None:
        return f"{kind} is a black box: no gradients, nothing can be proved"
    return (
        f"{kind}: {trees.count} trees with {len(trees.tree)} leaves. It is constant between thresholds, so no method follows gradients: "
        f"searches step from leaf to leaf, and proofs add up what each tree can say at most"
    )


class Estimator(nn.Module):
    """An estimator as a network of float64 numbers; asked with a frame where it was fitted on one."""

    def __init__(self, ask: Callable[[Any], Any], columns: Columns, names: tuple[str, ...] | None) -> None:
        super().__init__()
        self.ask, self.columns, self.names = ask, columns, names
        self.register_buffer("arithmetic", torch.zeros((), dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        rows = x.detach().cpu().double()
        if rows.dim() != 2:
            raise BadInput(f"an estimator takes rows of {len(self.columns.features)} numbers, these inputs are {tuple(rows.shape[1:])}.")
        given = rows.numpy() if self.names is None else self.columns.decode(rows)[list(self.names)]
        quiet = ignored_warnings(UserWarning, every_thread=True)  # the estimator may have threads of its own
        with quiet, _one_thread().limit(limits=1, user_api="openmp"), _one_blas_thread(None):
            answer = np.asarray(self.ask(given), dtype=np.float64)
        if answer.ndim != 2 or len(answer) != len(rows):
            raise BadInput(f"the estimator answered {answer.shape} to {len(rows)} rows; expected one row of numbers for each.")
        return torch.from_numpy(np.ascontiguousarray(answer)).to(x.device)


@lru_cache(maxsize=1)
def _one_thread() -> Any:
    """A pool of threads does not survive in a copy of this process, and a run's questions are answered in such copies."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


# OpenMP counts the threads of each thread apart, BLAS those of the process.
_one_blas_thread = Registered(lambda _: _one_thread().limit(limits=1, user_api="blas"), lambda limiter: limiter.restore_original_limits())


def _check(estimator: Any) -> None:
    if isinstance(estimator, type):
        raise BadInput(f"from_sklearn needs a fitted estimator, got the class {estimator.__name__}: make one and fit it first.")
    if not hasattr(estimator, "predict") or not hasattr(estimator, "fit"):
        raise BadInput(f"from_sklearn needs a fitted estimator with fit and predict, got {type(estimator).__name__}.")
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
    if _told(estimator, "n_features_in_") is None:
        raise BadInput(
            f"{type(estimator).__name__} does not say how many features it takes (n_features_in_). Give its function instead: "
            f"hf.Network.from_callable(estimator.predict_proba)."
        )


def _told(estimator: Any, what: str) -> Any:
    """What an estimator says of its inputs; in a pipeline the first step that says it."""
    before, model = steps_of(estimator)
    known = (getattr(step, what, None) for step in (estimator, *before, model))
    return next((found for found in known if found is not None), None)


def _names(estimator: Any) -> tuple[tuple[str, ...], bool]:
    """The names of its features, and whether it was fitted on a frame."""
    found = _told(estimator, "feature_names_in_")
    names = () if found is None else tuple(map(str, found))
    if names and not all(name == f"Column_{place}" for place, name in enumerate(names)):  # LightGBM's own, where there were none
        return names, True
    return tuple(f"x{place}" for place in range(_told(estimator, "n_features_in_"))), False


def _columns(columns: Columns | None, names: tuple[str, ...]) -> Columns:
    """What the columns are, in the order of the estimator."""
    if columns is None:
        return Columns.named(names)
    held = {name for c in columns.each for name in ((c.name,) if c.values is not None else c.features)}
    if held == set(names):
        return columns.ordered(names)
    if len(columns.features) == len(names) and all(name == f"x{place}" for place, name in enumerate(names)):
        return columns  # fitted on an array: by their places
    strange = next((name for name in names if name not in held), None)
    more = next((name for name in held if name not in names), None)
    raise BadInput(
        f"the columns are not those of the estimator: {f'it also has {strange!r}' if strange else f'it has no {more!r}'}. "
        f"It was fitted on {', '.join(names[:12])}{' ...' if len(names) > 12 else ''}."
    )


def _asker(estimator: Any, columns: Columns) -> Callable[[Any], Any]:
    """(rows) -> (n, outputs): scores where they are sums over trees or of linear models, probabilities where there are, else the class."""
    model = steps_of(estimator)[1]
    home, name = type(model).__module__, type(model).__name__
    if hasattr(model, "n_jobs") and home.startswith(("xgboost", "lightgbm")):
        model.n_jobs = 1  # they bring their own threads: see `_one_thread`
    if not hasattr(estimator, "classes_"):
        return lambda x: _as_rows(estimator.predict(x))
    if home.startswith("xgboost"):
        return lambda x: _two(estimator.predict(x, output_margin=True))
    if home.startswith("lightgbm"):
        return lambda x: _two(estimator.predict(x, raw_score=True))
    scores = hasattr(estimator, "decision_function") and (name in ADDITIVE or as_module(estimator, columns) is not None)
    if scores or (hasattr(estimator, "decision_function") and not hasattr(estimator, "predict_proba")):
        return lambda x: _two(estimator.decision_function(x))
    if hasattr(estimator, "predict_proba"):
        return lambda x: _probabilities(estimator.predict_proba(x))
    classes = np.asarray(estimator.classes_)
    return lambda x: (np.asarray(estimator.predict(x))[:, None] == classes).astype(np.float64)


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
        raise BadInput(
            "the estimator answers several questions at once (multi-output): fit one for each, or give from_callable one of them."
        )
    return np.asarray(answer, dtype=np.float64)


def _agreeing(module: nn.Module | None, asked: Estimator) -> nn.Module | None:
    """The module, where it answers as the estimator does, near and far."""
    if module is None:
        return None
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn((PROBES // 4, len(asked.columns.features)), generator=generator, dtype=torch.float64)
    points = asked.columns.as_rows(torch.cat([noise * size for size in SPREAD]))
    with torch.no_grad():
        said, own = asked(points), module(points)
        if said.shape[1] == own.shape[1] and _are_probabilities(said) and own.shape[1] > 1:
            own = own.softmax(-1)
    if said.shape != own.shape or not torch.allclose(said, own, rtol=1e-9, atol=1e-12):
        return None
    return module


def _are_probabilities(outputs: Tensor) -> bool:
    return bool((outputs >= 0).all()) and bool(((outputs.sum(-1) - 1).abs() < 1e-6).all())


def _believed(trees: Trees | None, asked: Estimator) -> Trees | None:
    """The trees with what is added to all of them, where their sum is what the estimator answers on both sides of their thresholds."""
    if trees is None:
        return None
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
    base = torch.where(apart.abs().amax(0) <= bare.missed(), 0.0, base)  # most have none, and none is exact
    found = replace(bare, base=base)
    return found if bool(((said - found.sum(points)).abs() <= found.missed() + 1e-300).all()) else None
