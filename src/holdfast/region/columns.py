"""The columns of a table: types, allowed values, units, and which of them may change."""

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from holdfast.errors import BadInput
from holdfast.files import read_json
from holdfast.region.base import Domain

Word = str | int | float | bool
MISSING = "missing"  # how a missing value is shown
Scales = Literal["std", "range"] | Mapping[str, float] | Sequence[float] | None
EXPECTED = (
    "Expected an object with an entry for each column, as in "
    '{"age": {"step": 1, "scale": 10}, "colour": {"values": ["red", "blue"]}}.'
)


@dataclass(frozen=True)
class Column:
    """One column of a table.

    Attributes:
        step: a number is a multiple of this (1: an integer); 0: any number.
        low: the smallest allowed number.
        high: the largest allowed number.
        scale: the unit in which changes of a number are measured.
        frozen: the column does not change.
        values: the allowed values of a categorical column.
        one_of: for a categorical column that the table stores as one-hot columns, the names of these.
        kind: the dtype of the column in a DataFrame that is built from rows.
        missing_of: this number is 1 where the named column, of numbers, is missing in a row, else 0. The table
            itself has no such column. Frozen, a missing value stays missing; free, it may become missing.
        unit: the unit of the numbers, such as "°C", for sentences and charts.
    """

    name: str
    step: float = 0.0
    low: float = -math.inf
    high: float = math.inf
    scale: float = 1.0
    frozen: bool = False
    values: tuple[Word, ...] | None = None
    one_of: tuple[str, ...] | None = None
    kind: str = "float64"
    missing_of: str | None = None
    unit: str = ""

    def __post_init__(self) -> None:
        if self.values is not None and self.one_of is not None:
            raise BadInput(
                f"column {self.name!r}: 'values' is for a categorical column, 'one_of' for one stored as "
                "several; give one."
            )
        words = self.values if self.values is not None else self.one_of
        if words is not None and (len(words) < 1 or len(set(words)) < len(words)):
            raise BadInput(
                f"column {self.name!r}: its values must be distinct, and at least one; got {list(words)}."
            )
        if not 0 <= self.step < math.inf:
            raise BadInput(
                f"column {self.name!r}: the step must be 0 (any number) or positive, got {self.step}."
            )
        if not 0 < self.scale < math.inf:
            raise BadInput(
                f"column {self.name!r}: the scale, the unit of its changes, must be positive, got "
                f"{self.scale}."
            )
        if not self.low <= self.high:
            raise BadInput(
                f"column {self.name!r}: its smallest value {self.low} is above its largest {self.high}."
            )

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the numbers that encode the column."""
        if self.values is not None:
            return tuple(f"{self.name}={value}" for value in self.values)
        return self.one_of if self.one_of is not None else (self.name,)

    @property
    def movable(self) -> bool:
        return not self.frozen and (len(self.features) > 1 if self.worded else self.low < self.high)

    @property
    def placeholder(self) -> float:
        """The number in a row where the column is missing: the allowed number next to zero."""
        return min(max(0.0, self.low), self.high)

    @property
    def worded(self) -> bool:
        return self.values is not None or self.one_of is not None

    def describe_numbers(self, numbers: Sequence[float]) -> str:
        """Format the value that these numbers encode."""
        if not self.worded:
            return f"{numbers[0]:.10g}{f' {self.unit}' if self.unit else ''}"
        words = self.values if self.values is not None else self.features
        chosen = [str(word) for word, number in zip(words, numbers, strict=True) if number == 1]
        return (
            chosen[0]
            if len(chosen) == 1 and sum(map(bool, numbers)) == 1
            else f"({', '.join(f'{n:.4g}' for n in numbers)})"
        )


@dataclass(frozen=True)
class Columns:
    """The columns of a table, and the encoding of its rows as numbers.

    A categorical column becomes a one-hot group of numbers. `order`: the order of the numbers, if not that of
    the columns. `channels`: these are the features of each frame of a window (frames, features), not the columns
    of a table.
    """

    each: tuple[Column, ...]
    order: tuple[str, ...] | None = None
    channels: bool = False

    def __post_init__(self) -> None:
        names = [name for column in self.each for name in column.features]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None or not names:
            raise BadInput(f"columns: {f'{twice!r} occurs twice' if twice else 'there are none'}.")
        if self.order is not None and sorted(self.order) != sorted(names):
            raise BadInput(f"columns: the order {list(self.order)} does not name each of {names} once.")
        for column in self.each:
            if column.missing_of is not None:
                self._check_indicator(column)
        wrong = next((c.name for c in self.each if c.worded or c.step or c.missing_of is not None), None)
        if self.channels and wrong is not None:
            raise BadInput(
                f"channel {wrong!r}: the channels of a window are numbers without steps, so values, one_of, step and "
                "missing_of have no meaning for them; give low, high, scale, unit or frozen."
            )

    def _check_indicator(self, column: Column) -> None:
        """Raise BadInput unless this column of 0 and 1 says where a column of numbers is missing."""
        other = next((c for c in self.each if c.name == column.missing_of), None)
        if other is None or other.worded or other.missing_of is not None:
            raise BadInput(
                f"column {column.name!r}: 'missing_of' names {column.missing_of!r}, which is no column of numbers."
            )
        if (column.step, column.low, column.high, column.worded) != (1.0, 0.0, 1.0, False):
            raise BadInput(
                f"column {column.name!r} says where {column.missing_of!r} is missing, so it is 0 or 1: give it "
                '"step": 1, "low": 0, "high": 1.'
            )

    # ---- constructors

    @staticmethod
    def of(
        frame: Any, *, frozen: Sequence[str] = (), scales: Scales = None, whole: Sequence[str] | None = None
    ) -> "Columns":
        """Infer the columns of a DataFrame.

        Numbers range from their smallest to their largest value, integers have step 1, booleans are 0 or 1.
        Columns of type object, string or category become categorical, with the values that occur. A column of
        numbers with missing values gets a second, frozen column, named "... is missing", of 0 and 1.

        Args:
            frame: the DataFrame, for instance of the training data.
            frozen: columns that do not change.
            scales: the unit of each column's changes: "std" or "range" (of these data), or a number for each
                by name. Default: 1.
            whole: columns of floating-point numbers that are whole numbers, such as counts with missing
                values: they get step 1. None: a warning names the columns that look like it.
        """
        if not all(hasattr(frame, part) for part in ("columns", "dtypes", "iloc")):
            raise BadInput(
                f"columns are read from a DataFrame of pandas, got {type(frame).__name__}; other libraries "
                "have to_pandas(), "
                f"and for arrays there is Columns.named."
            )
        names = list(frame.columns)
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None or not len(frame):
            raise BadInput(
                f"columns: {'the table has no rows' if twice is None else f'{twice!r} occurs twice'}."
            )
        found = [column for name in frame.columns for column in _columns_of(frame[name], str(name))]
        numbers = [c.name for c in found if not c.worded and c.missing_of is None]
        if scales in ("std", "range"):
            of_name = {str(name): _numbers(frame[name].dropna()) for name in names if str(name) in numbers}
            spread = {
                n: float(x.std(correction=0) if scales == "std" else x.max() - x.min())
                for n, x in of_name.items()
            }
            scales = {name: much for name, much in spread.items() if much > 0}
        found = _with_whole_numbers(found, frame, whole)
        return Columns(tuple(found)).with_(frozen=frozen, scales=scales)

    @staticmethod
    def named(names: Iterable[str], *, frozen: Sequence[str] = (), scales: Scales = None) -> "Columns":
        """Build numeric columns without bounds, by their `names`; `frozen` and `scales` as in `of`."""
        return Columns(tuple(Column(str(name)) for name in names)).with_(frozen=frozen, scales=scales)

    @staticmethod
    def of_inputs(
        inputs: Mapping[str, int | Sequence[int]],
        *,
        frozen: Sequence[str] = (),
        scales: Mapping[str, float] | None = None,
    ) -> "Columns":
        """Name the numbers of a network with several inputs, such as "goal[2]", as columns.

        Args:
            inputs: the size or shape of each input by its name, in the order of the network.
            frozen: inputs that do not change.
            scales: the unit of the changes of an input, by its name. Default: 1.
        """
        strange = next((name for name in (*frozen, *(scales or ())) if name not in inputs), None)
        if strange is not None:
            raise BadInput(f"there is no input {strange!r}; the inputs are {_few(list(inputs))}.")
        found = []
        for name, size in inputs.items():
            count = size if isinstance(size, int) else math.prod(size)
            scale = float((scales or {}).get(name, 1.0))
            found += [Column(f"{name}[{k}]", frozen=name in frozen, scale=scale) for k in range(count)]
        return Columns(tuple(found))

    @staticmethod
    def of_channels(
        names: Iterable[str],
        *,
        scales: Scales = None,
        units: Mapping[str, str] | Sequence[str] | None = None,
        frozen: Sequence[str] = (),
        domain: Mapping[str, tuple[float, float]] | None = None,
    ) -> "Columns":
        """Describe the features of windows (frames, features): their names, units, scales and limits.

        Args:
            names: of the features, in order.
            scales: how far each moves at radius 1, by name or in order. Default: 1.
            units: such as {"temperature": "°C"}, by name or in order, for sentences and charts.
            frozen: features that do not change.
            domain: the lowest and highest value of a feature, by name. Default: those of the network.
        """
        if not isinstance(names, Iterable):
            raise BadInput(
                f"channels: expected the names of the features, as in ['temperature', 'wind'], got {names!r}."
            )
        known = [str(name) for name in ([names] if isinstance(names, str) else names)]
        if units is not None and not isinstance(units, Mapping):
            if isinstance(units, str) or len(units) != len(known):
                raise BadInput(f"units: {units!r} is not one unit for each of the {len(known)} channels.")
            units = dict(zip(known, units, strict=True))
        strange = next((name for name in (*(units or ()), *(domain or ())) if name not in known), None)
        if strange is not None:
            raise BadInput(f"there is no channel {strange!r}; the channels are {_few(known)}.")
        found = []
        for name in known:
            limits = (domain or {}).get(name, (-math.inf, math.inf))
            try:
                low, high = (float(limit) for limit in limits)
            except (TypeError, ValueError) as error:
                raise BadInput(
                    f"domain of {name!r}: expected its lowest and highest value, got {limits!r}."
                ) from error
            found.append(Column(name, low=low, high=high, unit=str((units or {}).get(name, ""))))
        return Columns(tuple(found), channels=True).with_(frozen=frozen, scales=scales)

    def as_channels(self) -> "Columns":
        """Return the same columns as the features of a window."""
        return replace(self, channels=True)

    @property
    def titles(self) -> list[str]:
        """The names with their units, such as 'temperature (°C)'."""
        return [f"{c.name} ({c.unit})" if c.unit else c.name for c in self.each]

    @cached_property
    def channel_shares(self) -> Tensor:
        """(features,) float64: how far each feature moves at radius 1; 0 if it does not change."""
        return torch.where(self.free, self.scales, 0.0)

    @staticmethod
    def read(file: str | Path) -> "Columns":
        """Read a JSON file: an object that maps the name of a column to the fields of `Column`."""
        return Columns.from_json(read_json(Path(file), EXPECTED), str(file))

    @staticmethod
    def from_json(stored: Any, source: str = "columns") -> "Columns":
        """Build columns from `stored`, an object as `read` describes it. `source` names it in errors."""
        if not isinstance(stored, Mapping) or not all(isinstance(told, Mapping) for told in stored.values()):
            raise BadInput(f"{source}: {EXPECTED}")
        known, found = {f.name for f in fields(Column)}, []
        for name, told in stored.items():
            strange = next((key for key in told if key not in known), None)
            if strange is not None:
                raise BadInput(
                    f"{source}: column {name!r} has {strange!r}; allowed are "
                    f"{', '.join(sorted(known - {'name'}))}."
                )
            given: dict[str, Any] = {
                key: tuple(value) if isinstance(value, list) else value for key, value in told.items()
            }
            try:
                given |= {key: float(given[key]) for key in ("step", "low", "high", "scale") if key in given}
                found.append(
                    Column(
                        **{"kind": "object" if "values" in given else "float64", **given, "name": str(name)}
                    )
                )
            except (TypeError, ValueError) as error:
                raise BadInput(f"{source}: column {name!r}: {error}") from error
        return Columns(tuple(found))

    def as_json(self) -> dict[str, Any]:
        """Return the JSON form, without fields that have their default values."""
        usual = Column("")
        return {
            c.name: {
                k: list(v) if isinstance(v, tuple) else v
                for k, v in asdict(c).items()
                if k not in ("name",) and v != getattr(usual, k)
            }
            for c in self.each
        }

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form that a run stores."""
        return {"each": self.as_json(), "order": list(self.features)}

    @staticmethod
    def from_stored(stored: Any) -> "Columns":
        """Return the columns that a run stores.

        Args:
            stored: the columns and their order, as `to_json` made them.
        """
        return Columns.from_json(stored["each"]).in_order(stored["order"])

    def with_(self, *, frozen: Sequence[str] = (), scales: Scales = None) -> "Columns":
        """Return a copy with these columns frozen and these units."""
        names = [c.name for c in self.each]
        if isinstance(scales, str):
            raise BadInput(f"scales={scales!r} needs data: use Columns.of(frame, scales={scales!r}).")
        if scales is not None and not isinstance(scales, Mapping):
            if not hasattr(scales, "__len__"):
                raise BadInput(f"scales: {scales!r} is not one number for each of {len(names)} columns.")
            if len(scales) != len(names):
                raise BadInput(f"scales: {len(scales)} numbers for {len(names)} columns.")
            scales = dict(zip(names, scales, strict=True))
        strange = next((name for name in (*frozen, *(scales or ())) if name not in names), None)
        if strange is not None:
            raise BadInput(f"there is no column {strange!r}; the columns are {_few(names)}.")
        units = scales or {}
        try:
            sizes = {name: float(size) for name, size in units.items()}
        except (TypeError, ValueError) as error:
            raise BadInput(f"scales must be numbers, got {dict(units)}.") from error
        found = [
            replace(c, frozen=c.frozen or c.name in frozen, scale=sizes.get(c.name, c.scale))
            for c in self.each
        ]
        return replace(self, each=tuple(found))

    def only_free(self, name: str) -> "Columns":
        """Return a copy in which this column may change, and no other."""
        return replace(self, each=tuple(replace(c, frozen=c.name != name) for c in self.each))

    def in_order(self, names: Sequence[str]) -> "Columns":
        """Return a copy with features in this order if `names` are its features; otherwise unchanged."""
        return replace(self, order=tuple(names)) if sorted(names) == sorted(self.features) else self

    # ---- encoding

    @cached_property
    def features(self) -> tuple[str, ...]:
        return self.order or tuple(name for column in self.each for name in column.features)

    @cached_property
    def places(self) -> tuple[tuple[int, ...], ...]:
        """For each column the indices of its numbers in a row."""
        at = {name: place for place, name in enumerate(self.features)}
        return tuple(tuple(at[name] for name in column.features) for column in self.each)

    @cached_property
    def indicators(self) -> dict[int, int]:
        """For each number that may be missing, its index in a row and that of its indicator."""
        place = {column.name: places[0] for column, places in zip(self.each, self.places, strict=True)}
        return {place[c.missing_of]: place[c.name] for c in self.each if c.missing_of is not None}

    @cached_property
    def table_names(self) -> tuple[str, ...]:
        """The names of the table's own columns, where a column stored as several counts by its parts."""
        own = {c.name for c in self.each if c.values is not None or c.missing_of is not None}
        numbers = [name for name in self.features if name not in own]
        words = [c for c in self.each if c.values is not None]
        encoded = {name for c in words for name in c.features}
        return (*(name for name in numbers if name not in encoded), *(c.name for c in words))

    def of_features(self, numbers: Sequence[float]) -> Tensor:
        """Expand one number for each column to (features,) float64."""
        found = torch.zeros(len(self.features), dtype=torch.float64)
        for number, places in zip(numbers, self.places, strict=True):
            found[list(places)] = float(number)
        return found

    @cached_property
    def unit(self) -> Tensor:
        """(features,) int64: the column of each feature."""
        return self.of_features(range(len(self.each))).long()

    @cached_property
    def groups(self) -> Tensor:
        """(categorical columns, features) bool: the features of each."""
        worded = [place for place, column in enumerate(self.each) if column.worded]
        return self.unit == torch.tensor(worded, dtype=torch.int64).reshape(-1, 1)

    @cached_property
    def steps(self) -> Tensor:
        return self.of_features([c.step for c in self.each])

    @cached_property
    def scales(self) -> Tensor:
        return self.of_features([c.scale for c in self.each])

    @cached_property
    def free(self) -> Tensor:
        """(features,) bool: whether the feature may change."""
        return self.of_features([c.movable for c in self.each]) > 0

    def domain(self, around: Domain) -> Domain:
        """Return the bounds of every feature: its own, or those of `around` if it has none."""
        count = len(self.features)
        low, high = (
            self.of_features([c.low for c in self.each]),
            self.of_features([c.high for c in self.each]),
        )
        words = self.groups.any(0)
        low, high = torch.where(words, 0.0, low), torch.where(words, 1.0, high)
        own, ends = (
            Domain.of((low, torch.where(low == high, high + high.abs().clamp_min(1), high))),
            (around.lower, around.upper),
        )
        least, most = (
            end.double().expand(count) if end.dim() < 2 and end.numel() in (1, count) else end for end in ends
        )
        return Domain(
            torch.where(own.lower.isinf(), least, own.lower), torch.where(own.upper.isinf(), most, own.upper)
        )

    @property
    def plain(self) -> bool:
        """Whether all columns are numbers without bounds and steps, in the same unit."""
        return all(replace(c, name="", kind="float64") == Column("") for c in self.each)

    # ---- rows

    def encode(self, frame: Any) -> Tensor:
        """Encode a DataFrame with these columns: (rows, features) float64."""
        if not all(isinstance(name, str) for name in frame.columns):  # Columns are named by texts.
            frame = frame.rename(columns=str)
        missing = [
            c.name
            for c in self.each
            if c.missing_of is None
            and c.name not in frame.columns
            and not set(c.one_of or [c.name]) <= set(frame.columns)
        ]
        if missing:
            raise BadInput(
                f"the table has no column {missing[0]!r}; its columns are "
                f"{_few([str(n) for n in frame.columns])}."
            )
        found = torch.zeros((len(frame), len(self.features)), dtype=torch.float64)
        for column, places in zip(self.each, self.places, strict=True):
            if column.missing_of is not None:
                continue  # set with the column that it describes
            if column.values is not None:
                found[:, list(places)] = _one_hot(frame[column.name], column)
            elif places[0] in self.indicators:
                gaps = torch.tensor(frame[column.name].isna().to_numpy(dtype=bool))
                found[:, places[0]] = column.placeholder
                found[~gaps, places[0]] = _numbers(frame[column.name].dropna())
                found[:, self.indicators[places[0]]] = gaps.double()
            else:
                for name, place in zip(column.features, places, strict=True):
                    found[:, place] = _numbers(frame[name])
        return found

    def decode(self, x: Tensor) -> Any:
        """Decode (rows, features) to a DataFrame with the original dtypes."""
        pandas = _pandas()
        found: dict[str, Any] = {}
        for column, places in zip(self.each, self.places, strict=True):
            part = x[:, list(places)].double()
            if column.missing_of is not None:
                continue
            if places[0] in self.indicators:
                gaps = x[:, self.indicators[places[0]]] == 1
                numbers = torch.where(gaps, torch.nan, part[:, 0]).numpy()
                found[column.name] = pandas.Series(numbers, dtype=column.kind)
            elif column.values is not None:
                words = [column.values[i] for i in part.argmax(1).tolist()]
                kind = (
                    pandas.CategoricalDtype(list(column.values)) if column.kind == "category" else column.kind
                )
                found[column.name] = pandas.Series(words, dtype=kind)
            else:
                for name, values in zip(column.features, part.T, strict=True):
                    whole = column.kind == "float64" or not bool((values == values.round()).all())
                    found[name] = pandas.Series(values.numpy(), dtype="float64" if whole else column.kind)
        return pandas.DataFrame(found)

    def as_rows(self, x: Tensor) -> Tensor:
        """Round (rows, features) to rows of the table: within bounds, in steps, categories one-hot."""
        steps = torch.where(self.steps > 0, self.steps, 1)
        x = torch.where(self.steps > 0, (x / steps).round() * steps, x)
        ends = torch.tensor([[c.low, c.high] for c in self.each], dtype=torch.float64)[self.unit]
        x = torch.minimum(torch.maximum(x, ends[:, 0]), ends[:, 1])
        for group in self.groups:
            x[:, group] = torch.nn.functional.one_hot(x[:, group].argmax(1), int(group.sum())).to(x)
        for place, indicator in self.indicators.items():
            placeholder = self.each[int(self.unit[place])].placeholder
            x[:, place] = torch.where(x[:, indicator] == 1, placeholder, x[:, place])
        return x

    def changes(self, before: Sequence[float], after: Sequence[float]) -> list[tuple[str, str, str]]:
        """Compare two rows: for each column that differs its name, the old and the new value."""
        found = []
        for column, places in zip(self.each, self.places, strict=True):
            if column.missing_of is None:
                old, new = (
                    self.describe_value(column, places, before),
                    self.describe_value(column, places, after),
                )
                same = all(float(before[i]) == float(after[i]) for i in places)
                if old != new or (not same and old != MISSING):
                    found.append((column.name, old, new))
        return found

    def describe_row(self, row: Sequence[float]) -> list[tuple[str, str]]:
        """The name and the value of each column of the table in a row."""
        return [
            (column.name, self.describe_value(column, places, row))
            for column, places in zip(self.each, self.places, strict=True)
            if column.missing_of is None
        ]

    def describe_value(self, column: Column, places: Sequence[int], row: Sequence[float]) -> str:
        """Format the value of a column in a row."""
        indicator = self.indicators.get(places[0])
        if indicator is not None and float(row[indicator]) == 1:
            return MISSING
        return column.describe_numbers([float(row[i]) for i in places])


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")


def pandas_frame(columns: Mapping[str, Any]) -> Any:
    return _pandas().DataFrame(dict(columns))


def _pandas() -> Any:
    try:
        import pandas
    except ImportError as error:
        raise BadInput("DataFrames need pandas: pip install 'holdfast[tables]'.") from error
    return pandas


def _columns_of(series: Any, name: str) -> list[Column]:
    """The column, and its indicator if it is a column of numbers with missing values."""
    missing = int(series.isna().sum())
    if not missing:
        return [_column(series, name)]
    if missing == len(series):
        raise BadInput(
            f"column {name!r} is missing in all rows: leave it out, or describe it in a file of columns."
        )
    if str(series.dtype) == "category" or series.dtype.kind not in "biuf":
        raise BadInput(
            f"column {name!r} of words has {missing} missing values: give them a word of their own, as in "
            f"frame[{name!r}].fillna('missing'), or leave these rows out."
        )
    known = _column(series.dropna(), name)
    indicator = Column(f"{name} is missing", step=1.0, low=0.0, high=1.0, frozen=True, missing_of=name)
    return [known, indicator]


def _with_whole_numbers(found: list[Column], frame: Any, whole: Sequence[str] | None) -> list[Column]:
    """The columns, with step 1 where the user calls them whole; a warning about other columns that look whole."""
    looks_whole = []
    for name in frame.columns:
        column = next(c for c in found if c.name == str(name))
        if column.worded or column.step or column.low == column.high:
            continue
        numbers = _numbers(frame[name].dropna())
        if bool((numbers == numbers.round()).all()):
            looks_whole.append(column.name)
    if whole is None:
        if looks_whole:
            listed = ", ".join(map(repr, looks_whole))
            warnings.warn(
                f"columns: {_few(looks_whole)}: whole numbers in a column of floating-point numbers. If fractions "
                f"cannot occur, say whole=[{listed}]; else whole=().",
                stacklevel=4,
            )
        return found
    strange = next((name for name in whole if name not in looks_whole), None)
    if strange is not None:
        raise BadInput(f"whole: {strange!r} is no column of floating-point numbers that are all whole.")
    return [replace(c, step=1.0) if c.name in whole else c for c in found]


def _column(series: Any, name: str) -> Column:
    kind = str(series.dtype)
    if kind == "category" or series.dtype.kind not in "biuf":
        given = series.cat.categories.tolist() if kind == "category" else series.tolist()
        return Column(name, values=_words(given, kind, name, kind == "category"), kind=_kind(kind, "object"))
    numbers = _numbers(series)
    whole = series.dtype.kind in "biu"
    return Column(
        name,
        step=1.0 if whole else 0.0,
        low=float(numbers.min()),
        high=float(numbers.max()),
        kind=_kind(kind, "float64"),
    )


def _words(given: Sequence[Any], kind: str, name: str, ordered: bool) -> tuple[Word, ...]:
    """List the distinct values of a categorical column: strings, numbers or booleans, as in JSON."""
    strange = next(
        (
            value
            for value in given
            if not isinstance(value, Word) or (isinstance(value, float) and not math.isfinite(value))
        ),
        None,
    )
    if strange is not None:
        raise BadInput(
            f"column {name!r} ({kind}) holds {type(strange).__name__} ({str(strange)[:40]}); a column holds "
            "numbers, strings or "
            "booleans. Convert it to numbers, such as the days since some date, or to strings, by "
            "astype(str), or leave it out."
        )
    values = list(dict.fromkeys(given))
    types = {(type(value), value) for value in given}
    if len(types) > len(values):
        same = next(value for value in values if sum(value == other for _, other in types) > 1)
        raise BadInput(
            f"column {name!r} ({kind}) holds {same!r} with two types, which cannot be distinguished: "
            "convert it by astype."
        )
    return tuple(values if ordered else sorted(values, key=str))


def _kind(kind: str, otherwise: str) -> str:
    """Return the dtype of the column, or `otherwise` if pandas cannot create it from its name."""
    try:
        _pandas().api.types.pandas_dtype(kind)
    except (TypeError, ValueError, NotImplementedError):
        return otherwise
    return kind


def _one_hot(series: Any, column: Column) -> Tensor:
    assert column.values is not None
    number = {value: place for place, value in enumerate(column.values)}
    places = [number.get(value) if isinstance(value, Word) else None for value in series.tolist()]
    if None in places:
        row = places.index(None)
        raise BadInput(
            f"column {column.name!r}: row {row} holds {series.tolist()[row]!r}, which is not one of "
            f"{_few(list(map(str, number)))}."
        )
    return torch.nn.functional.one_hot(torch.tensor(places, dtype=torch.int64), len(number)).double()


LARGEST_EXACT_INTEGER = 2**53  # float64 represents every integer up to this one.


def _numbers(series: Any) -> Tensor:
    if series.dtype.kind in "mMc":
        raise BadInput(
            f"column {series.name!r} holds {series.dtype}, not numbers. Convert it, for example to the days "
            "since some date."
        )
    if (
        series.dtype.kind in "iu"
        and len(series)
        and max(abs(int(series.min())), abs(int(series.max()))) > LARGEST_EXACT_INTEGER
    ):
        raise BadInput(
            f"column {series.name!r} holds integers beyond {LARGEST_EXACT_INTEGER}, which float64 cannot "
            "distinguish. If "
            "they are identifiers, "
            f"convert them to strings, by astype(str), or leave them out; else measure them in a larger unit."
        )
    try:
        found = torch.tensor(series.to_numpy(dtype="float64"))
    except (TypeError, ValueError) as error:
        raise BadInput(
            f"column {series.name!r} does not hold numbers ({error}). Describe it: hf.Columns.of(frame) "
            "reads it from a frame."
        ) from error
    if not bool(found.isfinite().all()):
        raise BadInput(
            f"column {series.name!r}: row {int((~found.isfinite()).nonzero()[0, 0])} is missing or infinite. If the "
            "estimator reads or fills missing values, describe the column as one that may be missing: "
            "columns=hf.Columns.of(frame) of a table with such rows. Otherwise leave the row out."
        )
    return found
