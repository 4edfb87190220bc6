"""What stands before a model in a pipeline, where every number that it makes is one number of the row, scaled: scalers, one-hot encoders of
words, and column transformers of these. All of it rises with that number, in floating point too."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from holdfast.network.estimators.library_code import is_unmodified
from holdfast.region.columns import Columns

OPERATIONS = {"mean": 0.0, "std": 1.0, "factor": 1.0, "offset": 0.0}  # with what changes nothing


class Scaled(nn.Module):
    """((x - mean) / std) * factor + offset, each where there is one: the scalers, in their own order of operations."""

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
        """Return whether each number rises with the one it is made of; a scale that was set by hand may be zero, negative or NaN."""
        return all(value is None or bool((value > 0).all()) for value in (self.std, self.factor))

    def at(self, column: Tensor) -> "Scaled":
        """The same for numbers of these columns."""
        return Scaled(
            **{name: None if (value := getattr(self, name)) is None else value[column] for name in OPERATIONS}
        )


@dataclass(frozen=True)
class Prepared:
    """The numbers that a model is given: each one of the row's, then through the scalers."""

    sources: tuple[int, ...]
    scalers: tuple[Scaled, ...]


def read_preparation(before: Sequence[Any], columns: Columns) -> Prepared | None:
    """None where a step does more than that."""
    sources = tuple(range(len(columns.features)))
    scalers: list[Scaled] = []
    if before and type(before[0]).__name__ == "ColumnTransformer":
        first = _read_transformer(before[0], columns)
        if first is None:
            return None
        sources, scalers, before = first.sources, list(first.scalers), before[1:]
    elif any(c.values is not None for c in columns.each):  # nobody has said how words become numbers
        return None
    more = [scaler(step) for step in before]
    return None if None in more else Prepared(sources, (*scalers, *(one for one in more if one is not None)))


def scaler(step: Any) -> Scaled | None:
    """A step that scales each number by itself; None where it does more."""
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
    """A column transformer, part after part, each with the same operations where it has fewer."""
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
        tuple(sources), tuple(_beside([stage[k] for stage in filled], widths) for k in range(deepest))
    )


def _part(step: Any, names: list[str], columns: Columns) -> Prepared | None:
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


def _beside(scalers: list[Scaled], widths: list[int]) -> Scaled:
    """Scalers of different numbers as one, with operations that change nothing where one has none."""
    parts = {}
    for name, nothing in OPERATIONS.items():
        values = [getattr(one, name) for one in scalers]
        if any(value is not None for value in values):
            filled = [
                np.full(width, nothing) if value is None else value.numpy()
                for value, width in zip(values, widths, strict=True)
            ]
            parts[name] = np.concatenate(filled)
    return Scaled(**parts)
