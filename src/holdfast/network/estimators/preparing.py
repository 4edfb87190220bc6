"""The preparation steps before a model in a pipeline, where each of their outputs is one feature of the row,
scaled.

These are scalers, one-hot encoders of words, and column transformers of these. Each output is non-decreasing
in its feature, also in floating-point arithmetic.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from holdfast.network.estimators.library_code import NotReadable, is_unmodified
from holdfast.region.columns import Column, Columns

# The operations of `Scaled`, each with the value for which it has no effect.
OPERATIONS = {"mean": 0.0, "std": 1.0, "factor": 1.0, "offset": 0.0}

# For a column of words: the place of each value in a row -> what the value becomes.
Codes = Mapping[int, Any]

# Encoders that turn a column of words into one column of numbers.
WORD_CODES = ("OrdinalEncoder", "TargetEncoder")

IMPUTERS = ("SimpleImputer", "KNNImputer", "IterativeImputer")


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
        filled: the number that an imputer puts where an input is missing; NaN: it stays missing.
        codes: for an input that comes from a column of words, what each value becomes, by the value's place
            in the row; before the scalers. `sources` has the place of its first value. None for other inputs.
    """

    sources: tuple[int, ...]
    scalers: tuple[Scaled, ...]
    filled: tuple[float, ...]
    codes: tuple[Codes | None, ...]


def read_preparation(
    before: Sequence[Any], columns: Columns, names: Sequence[str] | None, *, native: bool = False
) -> Prepared:
    """The preparation by these steps; NotReadable names a step that does more than select and scale features.

    Args:
        names: the columns of the table in the order in which the first step reads them; None: all numbers.
        native: the model itself splits the values of columns of words.
    """
    if before and type(before[0]).__name__ == "ColumnTransformer":
        first = _read_transformer(before[0], columns)
        if columns.indicators and any(type(step).__name__ in IMPUTERS for step in before[1:]):
            raise NotReadable("an imputer after the ColumnTransformer fills missing values")
        sources, scalers, filled, before = first.sources, list(first.scalers), first.filled, before[1:]
        codes = first.codes
    else:
        scalers = []
        worded = next((c.name for c in columns.each if c.values is not None), None)
        if worded is None:
            hidden = set(columns.indicators.values())
            sources = tuple(k for k in range(len(columns.features)) if k not in hidden)
            codes = (None,) * len(sources)
        elif before or not native or names is None:
            raise NotReadable(f"no encoder in a ColumnTransformer encodes the column of words {worded!r}")
        else:
            sources, codes = _native_inputs(columns, names)
        filled, before = _read_imputer(before, sources, columns)
    return Prepared(sources, (*scalers, *map(_scaler_of, before)), filled, codes)


def _native_inputs(
    columns: Columns, names: Sequence[str]
) -> tuple[tuple[int, ...], tuple[Codes | None, ...]]:
    """The inputs of a model that reads the columns of the table itself: sources, and values of words."""
    place = {name: k for k, name in enumerate(columns.features)}
    words = {
        column.name: dict(zip(places, column.values, strict=True))
        for column, places in zip(columns.each, columns.places, strict=True)
        if column.values is not None
    }
    sources = tuple(min(words[name]) if name in words else place[name] for name in names)
    return sources, tuple(words.get(name) for name in names)


def encode_categories(prepared: Prepared, encoder: Any) -> Prepared:
    """The inputs behind the encoder that scikit-learn's histogram boosting fits to its categorical inputs.

    It puts the categorical inputs first, each as the index of its value, and passes on the others.
    """
    step, chosen = next((step, chosen) for name, step, chosen in encoder.transformers_ if name == "encoder")
    count = len(prepared.sources)
    is_categorical = np.zeros(count, dtype=bool)
    is_categorical[np.asarray(chosen)] = True
    categorical, others = (np.flatnonzero(which).tolist() for which in (is_categorical, ~is_categorical))
    codes: list[Codes | None] = []
    for k, categories in zip(categorical, step.categories_, strict=True):
        own = prepared.codes[k]
        if own is None:
            raise NotReadable(
                f"it splits the categories of input {k}, which the columns describe as a number: describe "
                "it with its values"
            )
        index = {value: float(i) for i, value in enumerate(categories.tolist())}
        codes.append(
            {place: index.get(_scale_one(prepared.scalers, k, v), np.nan) for place, v in own.items()}
        )
    scalers = tuple(
        _concatenate([Scaled(), one.at(torch.tensor(others))], [len(categorical), len(others)])
        for one in prepared.scalers
    )
    order = [*categorical, *others]
    return Prepared(
        tuple(prepared.sources[k] for k in order),
        scalers,
        tuple(prepared.filled[k] for k in order),
        (*codes, *(prepared.codes[k] for k in others)),
    )


def _scale_one(scalers: Sequence[Scaled], k: int, value: Any) -> Any:
    """A value behind the scalers of input k; a word, which no scaler reads, is unchanged."""
    if isinstance(value, str) or not scalers:
        return value
    number = torch.tensor([float(value)], dtype=torch.float64)
    for one in scalers:
        number = one.at(torch.tensor([k]))(number)
    return number.item()


def _read_imputer(
    steps: Sequence[Any], sources: Sequence[int], columns: Columns
) -> tuple[tuple[float, ...], Sequence[Any]]:
    """What fills each input where it is missing (NaN: nothing does), and the steps after the imputer."""
    if not any(place in columns.indicators for place in sources):
        return (np.nan,) * len(sources), steps
    which = next((k for k, step in enumerate(steps) if type(step).__name__ in IMPUTERS), None)
    if which is None:
        return (np.nan,) * len(sources), steps
    imputer = steps[which]
    kind = type(imputer).__name__
    if kind != "SimpleImputer" or not fills_missing_only(imputer):
        raise NotReadable(
            f"the step {kind} does more than fill missing values with one number for each column"
        )
    if not all(map(is_nothing, steps[:which])):
        raise NotReadable(f"the step {kind} fills missing values after another step")
    return tuple(map(float, imputer.statistics_)), steps[which + 1 :]


def _scaler_of(step: Any) -> Scaled:
    found = scaler(step)
    if found is None:
        raise NotReadable(
            f"the step {type(step).__name__} before the model does more than scale each feature"
        )
    return found


def is_nothing(step: Any) -> bool:
    """Whether a step returns its inputs."""
    if step is None or isinstance(step, str):
        return step is None or step == "passthrough"
    return type(step).__name__ == "FunctionTransformer" and is_unmodified(step) and step.func is None


def fills_missing_only(step: Any) -> bool:
    """Whether a step is an imputer that returns rows without missing values unchanged.

    An imputer drops a column that was missing in all rows of its training data.
    """
    if type(step).__name__ not in IMPUTERS or not is_unmodified(step) or step.add_indicator:
        return False
    missing = step.missing_values
    is_gap = missing is None or (isinstance(missing, float) and np.isnan(missing))
    return is_gap and len(step.get_feature_names_out()) == step.n_features_in_


def scaler(step: Any) -> Scaled | None:
    """A step that scales each feature by itself, as a module; None if it does more."""
    if is_nothing(step) or fills_missing_only(step):
        return Scaled()
    name = type(step).__name__
    if not type(step).__module__.startswith("sklearn.preprocessing") or not is_unmodified(step):
        return None
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


def _read_transformer(transformer: Any, columns: Columns) -> Prepared:
    """A column transformer whose parts select, encode and scale features.

    Parts with fewer scalers than others are filled up with scalers without effect.
    """
    if not is_unmodified(transformer):
        raise NotReadable("the ColumnTransformer has code of its own, which may answer anything")
    if transformer.transformer_weights:
        raise NotReadable("the ColumnTransformer weights its parts")
    sources: list[int] = []
    filled: list[float] = []
    codes: list[Codes | None] = []
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
            raise NotReadable("the ColumnTransformer does not choose its columns by their names")
        dropped = isinstance(step, str) and step == "drop"
        part = Prepared((), (), (), ()) if dropped else _part(step, names, columns)
        sources += part.sources
        filled += part.filled
        codes += part.codes
        stages.append(list(part.scalers))
        widths.append(len(part.sources))
    deepest = max(map(len, stages), default=0)
    padded = [[*stage, *[Scaled()] * (deepest - len(stage))] for stage in stages]
    joined = tuple(_concatenate([stage[k] for stage in padded], widths) for k in range(deepest))
    return Prepared(tuple(sources), joined, tuple(filled), tuple(codes))


def _part(step: Any, names: list[str], columns: Columns) -> Prepared:
    """One part of a column transformer; NotReadable if it does more than select, encode and scale features."""
    by_name = {
        column.name: (column, places) for column, places in zip(columns.each, columns.places, strict=True)
    }
    at = {name: place for place, name in enumerate(columns.features)}
    piped = type(step).__name__ == "Pipeline" and is_unmodified(step)
    inner: Sequence[Any] = [one for _, one in step.steps] if piped else [step]
    last = inner[-1]
    if type(last).__name__ == "OneHotEncoder" and all(
        is_nothing(one) or fills_missing_only(one) for one in inner[:-1]
    ):
        step = last
    if type(step).__name__ == "OneHotEncoder" and is_unmodified(step):
        found: list[int] = []
        for i, (name, categories) in enumerate(zip(names, step.categories_, strict=True)):
            column, places = by_name.get(name, (None, ()))
            if (
                column is None
                or column.values is None
                or getattr(step, "infrequent_categories_", [None] * len(names))[i] is not None
            ):
                raise NotReadable(f"column {name!r} is not encoded word by word")
            left_out = None if step.drop_idx_ is None else step.drop_idx_[i]
            own = dict(zip(column.values, places, strict=True))
            kept = [value for k, value in enumerate(categories.tolist()) if k != left_out]
            if not all(value in own for value in kept):
                raise NotReadable(
                    f"the OneHotEncoder knows values of column {name!r} that its description lacks"
                )
            found += [own[value] for value in kept]
        return Prepared(tuple(found), (), (np.nan,) * len(found), (None,) * len(found))
    is_coded = type(inner[0]).__name__ in WORD_CODES and is_unmodified(inner[0])
    if is_coded and all(name in by_name and by_name[name][0].values is not None for name in names):
        codes = tuple(_codes(inner[0], k, *by_name[name]) for k, name in enumerate(names))
        first = tuple(min(code) for code in codes)
        return Prepared(first, tuple(map(_scaler_of, inner[1:])), (np.nan,) * len(codes), codes)
    strange = next((name for name in names if name not in at), None)
    if strange is not None:
        kind = "no step" if isinstance(step, str) else f"the step {type(step).__name__}"
        raise NotReadable(
            f"{kind} of the ColumnTransformer encodes the words of column {strange!r} for its trees as "
            "OneHotEncoder, OrdinalEncoder or TargetEncoder would"
        )
    sources = tuple(at[name] for name in names)
    filled, inner = _read_imputer(inner, sources, columns)
    return Prepared(sources, tuple(map(_scaler_of, inner)), filled, (None,) * len(sources))


def _codes(encoder: Any, k: int, column: Column, places: Sequence[int]) -> Codes:
    """What an encoder of one number a column makes of each value of its column k."""
    kind = type(encoder).__name__
    values = encoder.categories_[k].tolist()
    if kind == "TargetEncoder":
        if len(encoder.encodings_) != len(encoder.categories_):
            raise NotReadable("the step TargetEncoder encodes more than two classes")
        numbers = [float(number) for number in encoder.encodings_[k]]
    else:
        if getattr(encoder, "_infrequent_enabled", False):
            raise NotReadable("the step OrdinalEncoder joins rare values")
        numbers = [float(order) for order in range(len(values))]
    of = dict(zip(values, numbers, strict=True))
    assert column.values is not None
    if not all(value in of for value in column.values):
        raise NotReadable(f"the {kind} was fitted on other values of column {column.name!r}")
    return {place: of[value] for place, value in zip(places, column.values, strict=True)}


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
