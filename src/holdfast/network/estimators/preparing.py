"""The preparation steps before a model in a pipeline, where each of their outputs is one feature of the row,
scaled.

These are scalers, one-hot encoders of words, and column transformers of these. Each output is non-decreasing
in its feature, also in floating-point arithmetic.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from holdfast.network.estimators.library_code import is_unmodified
from holdfast.region.columns import Columns

# The operations of `Scaled`, each with the value for which it has no effect.
OPERATIONS = {"mean": 0.0, "std": 1.0, "factor": 1.0, "offset": 0.0}


class Scaled(nn.Module):
    """((x - mean) / std) * factor + offset, without the operations that are None.

    All scalers compute in this order.
    """

    def __init__(self, *, mean: Any = None, std: Any = None, factor: Any = None, offset: Any = None) -> None:
        super().__init__()
        self.mean: Tensor | None
        self.std: Tensor | None
        self.factor: Tensor | None
        self.offset: Tensor | None
        for name, value in (("mean", mean), ("std", std), ("factor", factor), ("offset", offset)):
            self.register_buffer(
                name, None if value is None else torch.as_tensor(np.asarray(value), dtype=torch.float64)
            )

    def forward(self, x: Tensor) -> Tensor:
        x = x if self.mean is None else x - self.mean
        x = x if self.std is None else x / self.std
        x = x if self.factor is None else x * self.factor
        return x if self.offset is None else x + self.offset

    def rises(self) -> bool:
        """Whether each output increases with its input.

        A scale that the user set may be zero, negative or NaN.
        """
        return all(value is None or bool((value > 0).all()) for value in (self.std, self.factor))

    def at(self, column: Tensor) -> "Scaled":
        """The scaler of these columns."""
        return Scaled(
            **{name: None if (value := getattr(self, name)) is None else value[column] for name in OPERATIONS}
        )


@dataclass(frozen=True)
class Prepared:
    """The inputs of a model: features of the row, then scaled.

    Attributes:
        sources: the feature that each input comes from.
        scalers: applied one after another.
    """

    sources: tuple[int, ...]
    scalers: tuple[Scaled, ...]


def read_preparation(before: Sequence[Any], columns: Columns) -> Prepared | None:
    """The preparation by these steps, or None if a step does more than select and scale features."""
    sources = tuple(range(len(columns.features)))
    scalers: list[Scaled] = []
    if before and type(before[0]).__name__ == "ColumnTransformer":
        first = _read_transformer(before[0], columns)
        if first is None:
            return None
        sources, scalers, before = first.sources, list(first.scalers), before[1:]
    elif any(c.values is not None for c in columns.each):  # nothing encodes the columns of words
        return None
    more = [scaler(step) for step in before]
    return None if None in more else Prepared(sources, (*scalers, *(one for one in more if one is not None)))


def scaler(step: Any) -> Scaled | None:
    """A step that scales each feature by itself, as a module; None if it does more."""
    if step is None or (isinstance(step, str) and step == "passthrough"):
        return Scaled()
    name = type(step).__name__
    if not type(step).__module__.startswith("sklearn.preprocessing") or not is_unmodified(step):
        return None
    if name == "FunctionTransformer" and step.func is None:
        return Scaled()
    found = None
    if name == "StandardScaler":
        found = Scaled(
            mean=step.mean_ if step.with_mean else None, std=step.scale_ if step.with_std else None
        )
    elif name == "RobustScaler":
        found = Scaled(
            mean=step.center_ if step.with_centering else None, std=step.scale_ if step.with_scaling else None
        )
    elif name == "MaxAbsScaler" and not getattr(step, "clip", False):
        found = Scaled(std=step.scale_)
    elif name == "MinMaxScaler" and not step.clip:
        found = Scaled(factor=step.scale_, offset=step.min_)
    return found if found is not None and found.rises() else None


def _read_transformer(transformer: Any, columns: Columns) -> Prepared | None:
    """A column transformer, or None.

    Parts with fewer scalers than others are filled up with scalers without effect.
    """
    if not is_unmodified(transformer) or transformer.transformer_weights:
        return None
    sources: list[int] = []
    stages: list[list[Scaled]] = []
    widths: list[int] = []
    for _, step, chosen in transformer.transformers_:
        names = (
            [chosen]
            if isinstance(chosen, str)
            else list(chosen)
            if isinstance(chosen, list | tuple | np.ndarray)
            else None
        )
        if names is None or not all(isinstance(name, str) for name in names):
            return None
        part = Prepared((), ()) if isinstance(step, str) and step == "drop" else _part(step, names, columns)
        if part is None:
            return None
        sources += part.sources
        stages.append(list(part.scalers))
        widths.append(len(part.sources))
    deepest = max(map(len, stages), default=0)
    filled = [[*stage, *[Scaled()] * (deepest - len(stage))] for stage in stages]
    return Prepared(
        tuple(sources), tuple(_concatenate([stage[k] for stage in filled], widths) for k in range(deepest))
    )


def _part(step: Any, names: list[str], columns: Columns) -> Prepared | None:
    """One part of a column transformer, or None if it does more than select, encode and scale features."""
    by_name = {
        column.name: (column, places) for column, places in zip(columns.each, columns.places, strict=True)
    }
    at = {name: place for place, name in enumerate(columns.features)}
    if type(step).__name__ == "OneHotEncoder" and is_unmodified(step):
        found: list[int] = []
        for i, (name, categories) in enumerate(zip(names, step.categories_, strict=True)):
            column, places = by_name.get(name, (None, ()))
            if (
                column is None
                or column.values is None
                or getattr(step, "infrequent_categories_", [None] * len(names))[i] is not None
            ):
                return None
            left_out = None if step.drop_idx_ is None else step.drop_idx_[i]
            own = dict(zip(column.values, places, strict=True))
            kept = [value for k, value in enumerate(categories.tolist()) if k != left_out]
            if not all(value in own for value in kept):
                return None
            found += [own[value] for value in kept]
        return Prepared(tuple(found), ())
    if not all(name in at for name in names):
        return None
    piped = type(step).__name__ == "Pipeline" and is_unmodified(step)
    inner = [one for _, one in step.steps] if piped else [step]
    scalers = [scaler(one) for one in inner]
    return (
        None
        if None in scalers
        else Prepared(tuple(at[name] for name in names), tuple(one for one in scalers if one is not None))
    )


def _concatenate(scalers: list[Scaled], widths: list[int]) -> Scaled:
    """One scaler for the features of several, with operations without effect where a scaler has none."""
    parts = {}
    for name, no_effect in OPERATIONS.items():
        values = [getattr(one, name) for one in scalers]
        if any(value is not None for value in values):
            filled = [
                np.full(width, no_effect) if value is None else value.numpy()
                for value, width in zip(values, widths, strict=True)
            ]
            parts[name] = np.concatenate(filled)
    return Scaled(**parts)
