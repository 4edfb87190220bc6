"""The steps before a model as torch modules: imputers, scalers, encoders, functions, products, projections.

A step is read only if its outputs are a torch function of the row's numbers that the bounds know. A number that
may be missing comes with an indicator m (`Columns.indicators`), and an imputer computes x (1 - m) + statistic m.
Other numbers are never missing, so an imputer does not change them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from holdfast.network.estimators.library_code import NotReadable, is_unmodified
from holdfast.network.estimators.preparing import IMPUTERS, fills_missing_only, is_nothing, scaler
from holdfast.region.columns import Columns, Word

# The functions of numpy, in a FunctionTransformer, that have the same function in torch.
FUNCTIONS: dict[Any, Callable[[Tensor], Tensor]] = {
    np.log1p: torch.log1p,
    np.log: torch.log,
    np.exp: torch.exp,
    np.sqrt: torch.sqrt,
    np.tanh: torch.tanh,
    np.square: torch.square,
    np.abs: torch.abs,
    np.sin: torch.sin,
    np.cos: torch.cos,
}


@dataclass(frozen=True)
class TableColumn:
    """One column of the table before any step.

    Attributes:
        places: the indices of its numbers in a row.
        values: the values that these encode, one-hot; None for a numeric column.
        indicator: the index of the number that is 1 where the column is missing; None if it never is.
    """

    name: str
    places: tuple[int, ...]
    values: tuple[Word, ...] | None
    indicator: int | None = None


@dataclass(frozen=True)
class Prefix:
    """The part of a pipeline that was read so far, as a function of the row.

    Attributes:
        sources: the columns that are its outputs; None once a step has computed numbers from them.
        module: row -> numbers, if sources is None.
        width: the number of outputs.
        features: the number of numbers in a row.
    """

    sources: tuple[TableColumn, ...] | None
    module: nn.Module
    width: int
    features: int

    @staticmethod
    def of(columns: Columns) -> "Prefix":
        """The table itself. A column of 0 and 1 that is one of several counts as a numeric column here."""
        found = []
        for column, places in zip(columns.each, columns.places, strict=True):
            if column.missing_of is not None:
                continue
            if column.values is not None:
                found.append(TableColumn(column.name, places, column.values))
            else:
                found += [
                    TableColumn(name, (place,), None, columns.indicators.get(place))
                    for name, place in zip(column.features, places, strict=True)
                ]
        return Prefix(
            tuple(sorted(found, key=lambda source: source.places)),
            nn.Identity(),
            len(found),
            len(columns.features),
        )

    def numbers(self, step: Any) -> nn.Module:
        """The outputs as a module; NotReadable if a column of words is among them, which `step` would read."""
        if self.sources is None:
            return self.module
        worded = next((source for source in self.sources if source.values is not None), None)
        if worded is not None:
            raise NotReadable(f"{_name(step)} reads the words of column {worded.name!r}")
        gap = next((source for source in self.sources if source.indicator is not None), None)
        if gap is not None:
            raise NotReadable(
                f"column {gap.name!r} may be missing, and no SimpleImputer fills it before {_name(step)}"
            )
        return Selected([source.places[0] for source in self.sources])

    def then(self, step: Any, module: nn.Module, width: int) -> "Prefix":
        return Prefix(None, nn.Sequential(self.numbers(step), module), width, self.features)

    def choose(self, step: Any, which: Sequence[int]) -> "Prefix":
        """The outputs with these indices."""
        if self.sources is not None:
            return replace(self, sources=tuple(self.sources[k] for k in which), width=len(which))
        return self.then(step, Selected(which), len(which))


class Selected(nn.Module):
    """The features with these indices."""

    def __init__(self, which: Sequence[int]) -> None:
        super().__init__()
        self.register_buffer("which", torch.tensor(list(which), dtype=torch.int64))
        self.which: Tensor

    def forward(self, x: Tensor) -> Tensor:
        return x.index_select(1, self.which)


class Filled(nn.Module):
    """Numbers in which the missing ones are replaced: x (1 - m) + statistic m, m = 1 where x is missing."""

    def __init__(self, sources: Sequence[TableColumn], statistics: Any) -> None:
        super().__init__()
        self.numbers = Selected([source.places[0] for source in sources])
        gaps = [k for k, source in enumerate(sources) if source.indicator is not None]
        self.indicators = Selected([sources[k].indicator or 0 for k in gaps])
        spread = np.zeros((len(sources), len(gaps)))
        spread[gaps, np.arange(len(gaps))] = 1
        self.missing = linear(spread, np.zeros(len(sources)))
        self.register_buffer("statistics", torch.as_tensor(np.asarray(statistics, dtype=np.float64)))
        self.statistics: Tensor

    def forward(self, x: Tensor) -> Tensor:
        numbers, missing = self.numbers(x), self.missing(self.indicators(x))
        found: Tensor = numbers * (1 - missing) + missing * self.statistics
        return found


class Joined(nn.Module):
    """The outputs of several modules next to each other, each multiplied by its weight."""

    def __init__(self, parts: Sequence[nn.Module], weights: Sequence[float] | None = None) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)
        self.weights = weights

    def forward(self, x: Tensor) -> Tensor:
        found = [part(x) for part in self.parts]
        if self.weights is not None:
            found = [part * weight for part, weight in zip(found, self.weights, strict=True)]
        return torch.cat(found, 1)


class Elementwise(nn.Module):
    """A function of each number by itself."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class Monomials(nn.Module):
    """Products of powers of features: output k is the product over i of x_i ** powers[k, i]."""

    def __init__(self, powers: Any) -> None:
        super().__init__()
        powers = np.asarray(powers)
        degree = int(powers.sum(1).max())
        factors = [np.repeat(np.arange(powers.shape[1]), row).tolist() for row in powers]
        one = powers.shape[1]  # the index of the constant 1, which fills up shorter products
        table = torch.tensor([row + [one] * (degree - len(row)) for row in factors], dtype=torch.int64)
        self.register_buffer("factors", table.T.contiguous())
        self.factors: Tensor

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([x, torch.ones_like(x[:, :1])], 1)
        product = x.index_select(1, self.factors[0])
        for which in self.factors[1:]:
            product = product * x.index_select(1, which)
        return product


def linear(weights: Any, bias: Any) -> nn.Linear:
    """The map weights x + bias in float64."""
    layer = nn.Linear(weights.shape[1], weights.shape[0], dtype=torch.float64)
    with torch.no_grad():
        layer.weight.copy_(torch.as_tensor(np.array(weights, dtype=np.float64)))
        layer.bias.copy_(torch.as_tensor(np.array(bias, dtype=np.float64)))
    return layer


def read_steps(steps: Sequence[Any], before: Prefix) -> Prefix:
    """Append the steps one after another; NotReadable names the first that cannot be read."""
    for step in steps:
        before = _read_step(step, before)
    return before


def _read_step(step: Any, before: Prefix) -> Prefix:
    if is_nothing(step):
        return before
    kind = type(step).__name__
    if not is_unmodified(step):
        raise NotReadable(f"the step {kind} before the model has code of its own, which may answer anything")
    if kind == "Pipeline":
        return read_steps([one for _, one in step.steps], before)
    if kind == "ColumnTransformer":
        return _transform_columns(step, before)
    if kind == "FeatureUnion":
        weights = step.transformer_weights or {}
        parts = [(one, before, float(weights.get(name, 1.0))) for name, one in step.transformer_list]
        return _join(before, [part for part in parts if not _is_dropped(part[0])])
    if before.sources is not None and any(s.indicator is not None for s in before.sources):
        if kind in IMPUTERS:
            return _fill(step, before, before.sources)
    elif fills_missing_only(step):
        return before
    if before.sources is not None and (kind in ENCODERS or any(s.values for s in before.sources)):
        return _encode(step, before, before.sources)
    found = scaler(step)
    if found is not None:
        return before.then(step, found, before.width)
    if hasattr(step, "get_support"):  # the selectors of scikit-learn's feature_selection
        return before.choose(step, step.get_support(indices=True).tolist())
    if kind == "FunctionTransformer" and not (step.kw_args or step.validate):
        function = next((torch_one for one, torch_one in FUNCTIONS.items() if one is step.func), None)
        if function is None:
            name = getattr(step.func, "__name__", type(step.func).__name__)
            raise NotReadable(f"the step FunctionTransformer calls {name}, whose formula is not known here")
        return before.then(step, Elementwise(function), before.width)
    if kind == "PolynomialFeatures":
        return before.then(step, Monomials(step.powers_), len(step.powers_))
    if kind in ("PCA", "TruncatedSVD"):
        return before.then(step, _projection(step), len(step.components_))
    raise NotReadable(f"the step {kind} before the model is not supported")


def _fill(step: Any, before: Prefix, sources: Sequence[TableColumn]) -> Prefix:
    """A SimpleImputer of numbers of which some may be missing, with its indicators if it adds any."""
    kind = type(step).__name__
    if kind != "SimpleImputer" or any(source.values is not None for source in sources):
        raise NotReadable(f"the step {kind} fills missing values with more than one number for each column")
    statistics = np.asarray(step.statistics_, dtype=object)
    is_number = all(isinstance(value, float) and np.isfinite(value) for value in statistics.tolist())
    if not is_number or len(statistics) != len(sources):
        raise NotReadable("the step SimpleImputer fills a column with no number, or drops it")
    filled: nn.Module = Filled(sources, statistics.astype(np.float64))
    width = len(sources)
    if step.add_indicator:
        chosen = [sources[k] for k in step.indicator_.features_]
        if any(source.indicator is None for source in chosen):
            raise NotReadable(
                "the step SimpleImputer adds an indicator of a column that is described as never missing"
            )
        filled = Joined([filled, Selected([source.indicator or 0 for source in chosen])])
        width += len(chosen)
    return Prefix(None, filled, width, before.features)


def _projection(step: Any) -> nn.Module:
    """PCA (x - mean) components', scaled if it whitens; TruncatedSVD x components'."""
    components = np.asarray(step.components_, dtype=np.float64)
    if getattr(step, "whiten", False):
        components = components / np.sqrt(step.explained_variance_)[:, None]
    mean = getattr(step, "mean_", None)
    return linear(components, np.zeros(len(components)) if mean is None else -components @ mean)


def _transform_columns(step: Any, before: Prefix) -> Prefix:
    """A ColumnTransformer: each part reads some columns of the table."""
    if before.sources is None:
        names: list[str] = []
        count = before.width
    else:
        names = [source.name for source in before.sources]
        count = len(names)
    weights = step.transformer_weights or {}
    parts = []
    for name, one, chosen in step.transformers_:
        which = _indices(chosen, names, count)
        if _is_dropped(one) or not which:
            continue
        parts.append((one, before.choose(one, which), float(weights.get(name, 1.0))))
    return _join(before, parts)


def _is_dropped(step: Any) -> bool:
    return isinstance(step, str) and step == "drop"


def _join(whole: Prefix, parts: Sequence[tuple[Any, Prefix, float]]) -> Prefix:
    """The parts next to each other, each (its step, its input, its weight)."""
    found = [(one, _read_step(one, before)) for one, before, _ in parts]
    weights = [weight for *_, weight in parts]
    if any(after.sources is None for _, after in found) or any(weight != 1 for weight in weights):
        modules = [after.numbers(one) for one, after in found]
        joined = Joined(modules, None if all(weight == 1 for weight in weights) else weights)
        return Prefix(None, joined, sum(after.width for _, after in found), whole.features)
    kept = tuple(source for _, after in found for source in after.sources or ())
    return replace(whole, sources=kept, width=len(kept))


def _indices(chosen: Any, names: Sequence[str], count: int) -> list[int]:
    """The indices of the columns that a part of a ColumnTransformer reads."""
    if isinstance(chosen, slice) and not isinstance(chosen.start, str) and not isinstance(chosen.stop, str):
        return list(range(count))[chosen]
    given = (
        [chosen] if isinstance(chosen, str | int) else list(chosen) if not isinstance(chosen, slice) else []
    )
    if isinstance(chosen, slice) or not all(isinstance(one, str | int | np.integer) for one in given):
        raise NotReadable("the ColumnTransformer chooses its columns by a range of names or by a rule")
    if given and all(isinstance(one, bool | np.bool_) for one in given):
        return [k for k, one in enumerate(given) if one]
    strange = next((one for one in given if isinstance(one, str) and one not in names), None)
    if strange is not None:
        raise NotReadable(f"the ColumnTransformer reads {strange!r}, which is no column of the table")
    return [names.index(one) if isinstance(one, str) else range(count)[int(one)] for one in given]


ENCODERS = ("OneHotEncoder", "OrdinalEncoder", "TargetEncoder")


def _encode(step: Any, before: Prefix, sources: Sequence[TableColumn]) -> Prefix:
    """An encoder of columns of words: a linear map of their one-hot numbers."""
    kind = type(step).__name__
    if kind not in ENCODERS:
        worded = next(source for source in sources if source.values is not None)
        raise NotReadable(f"the step {kind} reads the words of column {worded.name!r}")
    places = [place for source in sources for place in source.places]
    rows: list[tuple[int, dict[int, float]]] = []  # one output each: its source, and the weight of each value
    for k, (source, categories) in enumerate(zip(sources, step.categories_, strict=True)):
        if source.values is None:
            raise NotReadable(
                f"the step {kind} encodes the numbers of column {source.name!r}; describe it with its values"
            )
        number = {value: place for place, value in enumerate(source.values)}
        known = [number.get(value) for value in categories.tolist()]
        if None in known or len(known) < len(number):
            raise NotReadable(f"{kind} was fitted on other values of column {source.name!r}")
        rows += _encoded_outputs(step, k, [place for place in known if place is not None])
    weights = np.zeros((len(rows), len(places)))
    start = np.cumsum([0, *(len(source.places) for source in sources)])
    for row, (owner, values) in enumerate(rows):
        for place, weight in values.items():
            weights[row, start[owner] + place] = weight
    module = nn.Sequential(Selected(places), linear(weights, np.zeros(len(rows))))
    return Prefix(None, module, len(rows), before.features)


def _encoded_outputs(step: Any, k: int, places: Sequence[int]) -> list[tuple[int, dict[int, float]]]:
    """The outputs for column k, each as the weights of its values."""
    kind = type(step).__name__
    if kind == "OrdinalEncoder":
        return [(k, {place: float(order) for order, place in enumerate(places)})]
    if kind == "TargetEncoder":
        if len(step.encodings_) != len(step.categories_):
            raise NotReadable("the step TargetEncoder encodes more than two classes")
        return [(k, dict(zip(places, map(float, step.encodings_[k]), strict=True)))]
    if getattr(step, "infrequent_categories_", None) and step.infrequent_categories_[k] is not None:
        raise NotReadable("the step OneHotEncoder joins rare values")
    left_out = None if step.drop_idx_ is None else step.drop_idx_[k]
    return [(k, {place: 1.0}) for order, place in enumerate(places) if order != left_out]


def _name(step: Any) -> str:
    return f"the step {type(step).__name__}" if not isinstance(step, str) else "the model"
