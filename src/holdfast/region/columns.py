"""What the columns of a table are: numbers, whole numbers, words; what each may be, its unit, and whether it stays as it is."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from holdfast.errors import BadInput
from holdfast.files import json_of
from holdfast.region.base import Domain

Word = str | int | float | bool
Scales = Literal["std", "range"] | Mapping[str, float] | Sequence[float] | None
EXPECTED = 'Expected an object with a line for each column, as in {"age": {"step": 1, "scale": 10}, "colour": {"values": ["red", "blue"]}}.'


@dataclass(frozen=True)
class Column:
    """One column.

    step    of a number: it is a multiple of this (1: a whole number); 0: any number.
    low     the lowest value of a number, and
    high    its highest.
    scale   the unit in which changes of a number are measured.
    frozen  it stays as it is.
    values  of a column of words: those that it may hold.
    one_of  of a column of words that is spread over others: the names of these, of which one is 1 and the others are 0.
    kind    of a frame that is made of rows: the type of its column.
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

    def __post_init__(self) -> None:
        if self.values is not None and self.one_of is not None:
            raise BadInput(
                f"column {self.name!r}: 'values' is for a column of words, 'one_of' for one spread over several; give one."
            )
        words = self.values if self.values is not None else self.one_of
        if words is not None and (len(words) < 1 or len(set(words)) < len(words)):
            raise BadInput(
                f"column {self.name!r}: its values must be different, and at least one; got {list(words)}."
            )
        if not 0 <= self.step < math.inf:
            raise BadInput(
                f"column {self.name!r}: the step must be 0 (any number) or above, got {self.step}."
            )
        if not 0 < self.scale < math.inf:
            raise BadInput(
                f"column {self.name!r}: the scale, the unit of its changes, must be above 0, got {self.scale}."
            )
        if not self.low <= self.high:
            raise BadInput(
                f"column {self.name!r}: its lowest value {self.low} is above its highest {self.high}."
            )

    @property
    def features(self) -> tuple[str, ...]:
        """The numbers that stand for it."""
        if self.values is not None:
            return tuple(f"{self.name}={value}" for value in self.values)
        return self.one_of if self.one_of is not None else (self.name,)

    @property
    def movable(self) -> bool:
        return not self.frozen and (len(self.features) > 1 if self.worded else self.low < self.high)

    @property
    def worded(self) -> bool:
        return self.values is not None or self.one_of is not None

    def describe_numbers(self, numbers: Sequence[float]) -> str:
        """What its numbers stand for, in words."""
        if not self.worded:
            return f"{numbers[0]:.10g}"
        words = self.values if self.values is not None else self.features
        chosen = [str(word) for word, number in zip(words, numbers, strict=True) if number == 1]
        return (
            chosen[0]
            if len(chosen) == 1 and sum(map(bool, numbers)) == 1
            else f"({', '.join(f'{n:.4g}' for n in numbers)})"
        )


@dataclass(frozen=True)
class Columns:
    """The columns of a table, and the rows of numbers that stand for its rows.

    A column of words becomes a group of numbers of which exactly one is 1. order: of these numbers, where it is not that of the columns.
    """

    each: tuple[Column, ...]
    order: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        names = [name for column in self.each for name in column.features]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None or not names:
            raise BadInput(f"columns: {f'{twice!r} stands there twice' if twice else 'there is none'}.")
        if self.order is not None and sorted(self.order) != sorted(names):
            raise BadInput(f"columns: the order {list(self.order)} does not name each of {names} once.")

    # ---- ways in

    @staticmethod
    def of(frame: Any, *, frozen: Sequence[str] = (), scales: Scales = None) -> "Columns":
        """The columns of a DataFrame: numbers between their lowest and highest values, whole ones in steps of 1, truth values 0 or 1, and
        columns of words (object, string, category) with the values that are there.

        frozen  columns that stay as they are.
        scales  the unit of each column's changes: "std" or "range" (of these data), or a number for each by its name; else 1.
        """
        if not all(hasattr(frame, part) for part in ("columns", "dtypes", "iloc")):
            raise BadInput(
                f"columns are read from a DataFrame of pandas, got {type(frame).__name__}; others have to_pandas(), and for arrays there "
                f"is Columns.named."
            )
        names = list(frame.columns)
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None or not len(frame):
            raise BadInput(
                f"columns: {'the table has no rows' if twice is None else f'{twice!r} stands there twice'}."
            )
        found = [_column(frame[name], str(name)) for name in frame.columns]
        numbers = [c.name for c in found if not c.worded]
        if scales in ("std", "range"):
            of_name = {str(name): _numbers(frame[name]) for name in names if str(name) in numbers}
            spread = {
                n: float(x.std(correction=0) if scales == "std" else x.max() - x.min())
                for n, x in of_name.items()
            }
            scales = {name: much for name, much in spread.items() if much > 0}
        return Columns(tuple(found)).with_(frozen=frozen, scales=scales)

    @staticmethod
    def named(names: Iterable[str], *, frozen: Sequence[str] = (), scales: Scales = None) -> "Columns":
        """Columns of numbers that may be anything."""
        return Columns(tuple(Column(str(name)) for name in names)).with_(frozen=frozen, scales=scales)

    @staticmethod
    def read(file: str | Path) -> "Columns":
        """A JSON file: an object, name of a column -> what it is, by the fields of `Column`."""
        return Columns.from_json(json_of(Path(file), EXPECTED), str(file))

    @staticmethod
    def from_json(stored: Any, source: str = "columns") -> "Columns":
        if not isinstance(stored, Mapping) or not all(isinstance(told, Mapping) for told in stored.values()):
            raise BadInput(f"{source}: {EXPECTED}")
        known, found = {f.name for f in fields(Column)}, []
        for name, told in stored.items():
            strange = next((key for key in told if key not in known), None)
            if strange is not None:
                raise BadInput(
                    f"{source}: column {name!r} has {strange!r}; there are {', '.join(sorted(known - {'name'}))}."
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
        """Without what is as usual."""
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
        """As a run keeps them."""
        return {"each": self.as_json(), "order": list(self.features)}

    def with_(self, *, frozen: Sequence[str] = (), scales: Scales = None) -> "Columns":
        """The same with these columns held still and these units."""
        names = [c.name for c in self.each]
        if isinstance(scales, str):
            raise BadInput(f"scales={scales!r} needs data: say it in Columns.of(frame, scales={scales!r}).")
        if scales is not None and not isinstance(scales, Mapping):
            if len(scales) != len(names):
                raise BadInput(f"scales: {len(scales)} numbers for {len(names)} columns.")
            scales = dict(zip(names, scales, strict=True))
        strange = next((name for name in (*frozen, *(scales or ())) if name not in names), None)
        if strange is not None:
            raise BadInput(f"there is no column {strange!r}; there are {_few(names)}.")
        units = scales or {}
        found = [
            replace(c, frozen=c.frozen or c.name in frozen, scale=float(units.get(c.name, c.scale)))
            for c in self.each
        ]
        return replace(self, each=tuple(found))

    def in_order(self, names: Sequence[str]) -> "Columns":
        """With their numbers in this order, where these are their names; else as they are."""
        return replace(self, order=tuple(names)) if sorted(names) == sorted(self.features) else self

    # ---- what they are, as numbers

    @cached_property
    def features(self) -> tuple[str, ...]:
        return self.order or tuple(name for column in self.each for name in column.features)

    @cached_property
    def places(self) -> tuple[tuple[int, ...], ...]:
        """For each column the places of its numbers in a row."""
        at = {name: place for place, name in enumerate(self.features)}
        return tuple(tuple(at[name] for name in column.features) for column in self.each)

    def of_features(self, numbers: Sequence[float]) -> Tensor:
        """One number a column -> (features,) float64."""
        found = torch.zeros(len(self.features), dtype=torch.float64)
        for number, places in zip(numbers, self.places, strict=True):
            found[list(places)] = float(number)
        return found

    @cached_property
    def unit(self) -> Tensor:
        """(features,) int64: the column of each number."""
        return self.of_features(range(len(self.each))).long()

    @cached_property
    def groups(self) -> Tensor:
        """(columns of words, features) bool."""
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
        """(features,) bool: may change."""
        return self.of_features([c.movable for c in self.each]) > 0

    def domain(self, around: Domain) -> Domain:
        """The ends of every number: its own, or where it has none those of `around`."""
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
        """Nothing but names: numbers that may be anything, each in the same unit."""
        return all(replace(c, name="", kind="float64") == Column("") for c in self.each)

    # ---- rows

    def encode(self, frame: Any) -> Tensor:
        """A DataFrame with these columns -> (rows, features) float64."""
        missing = [
            c.name
            for c in self.each
            if c.name not in frame.columns and not set(c.one_of or [c.name]) <= set(frame.columns)
        ]
        if missing:
            raise BadInput(
                f"the table has no column {missing[0]!r}; it has {_few([str(n) for n in frame.columns])}."
            )
        found = torch.zeros((len(frame), len(self.features)), dtype=torch.float64)
        for column, places in zip(self.each, self.places, strict=True):
            if column.values is not None:
                found[:, list(places)] = _one_hot(frame[column.name], column)
            else:
                for name, place in zip(column.features, places, strict=True):
                    found[:, place] = _numbers(frame[name])
        return found

    def decode(self, x: Tensor) -> Any:
        """(rows, features) -> a DataFrame in the types that it came in."""
        pandas = _pandas()
        found: dict[str, Any] = {}
        for column, places in zip(self.each, self.places, strict=True):
            part = x[:, list(places)].double()
            if column.values is not None:
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
        """(rows, features) any numbers -> rows of the table near them: between the ends, in steps, one word of each column."""
        steps = torch.where(self.steps > 0, self.steps, 1)
        x = torch.where(self.steps > 0, (x / steps).round() * steps, x)
        ends = torch.tensor([[c.low, c.high] for c in self.each], dtype=torch.float64)[self.unit]
        x = torch.minimum(torch.maximum(x, ends[:, 0]), ends[:, 1])
        for group in self.groups:
            x[:, group] = torch.nn.functional.one_hot(x[:, group].argmax(1), int(group.sum())).to(x)
        return x

    def changes(self, before: Sequence[float], after: Sequence[float]) -> list[tuple[str, str, str]]:
        """Two rows -> for each column that differs its name, what it was and what it is."""
        found = []
        for column, places in zip(self.each, self.places, strict=True):
            old, new = [float(before[i]) for i in places], [float(after[i]) for i in places]
            if old != new:
                found.append((column.name, column.describe_numbers(old), column.describe_numbers(new)))
        return found


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


def _column(series: Any, name: str) -> Column:
    kind = str(series.dtype)
    missing = int(series.isna().sum())
    if missing:
        raise BadInput(
            f"column {name!r} has {missing} missing values; fill them or leave those rows out: a gap is no value to move from."
        )
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
    """The different values of a column of words: texts, numbers and truth values, as the JSON of a run can keep them."""
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
            f"column {name!r} ({kind}) holds {type(strange).__name__} ({str(strange)[:40]}); a column holds numbers, words or truth "
            f"values. Make it numbers, such as the days since some date, or words, by astype(str), or leave it out."
        )
    values = list(dict.fromkeys(given))
    types = {(type(value), value) for value in given}
    if len(types) > len(values):
        same = next(value for value in values if sum(value == other for _, other in types) > 1)
        raise BadInput(
            f"column {name!r} ({kind}) holds {same!r} as values of two types, which cannot be told apart: make it one, by astype."
        )
    return tuple(values if ordered else sorted(values, key=str))


def _kind(kind: str, otherwise: str) -> str:
    """The type of the column, where pandas can make one by its name."""
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
            f"column {column.name!r}: row {row} holds {series.tolist()[row]!r}, which is none of {_few(list(map(str, number)))}."
        )
    return torch.nn.functional.one_hot(torch.tensor(places, dtype=torch.int64), len(number)).double()


EXACT = 2**53  # up to here every whole number is a float64 of its own


def _numbers(series: Any) -> Tensor:
    if series.dtype.kind in "mMc":
        raise BadInput(
            f"column {series.name!r} holds {series.dtype}, no numbers. Make it numbers, such as the days since some date."
        )
    if (
        series.dtype.kind in "iu"
        and len(series)
        and max(abs(int(series.min())), abs(int(series.max()))) > EXACT
    ):
        raise BadInput(
            f"column {series.name!r} holds whole numbers beyond {EXACT}, which float64 does not tell apart. If they are names (ids), make "
            f"them words, by astype(str), or leave them out; else measure them in a larger unit."
        )
    try:
        found = torch.tensor(series.to_numpy(dtype="float64"))
    except (TypeError, ValueError) as error:
        raise BadInput(
            f"column {series.name!r} does not hold numbers ({error}). Say what it is: hf.Columns.of(frame) reads it from a frame."
        ) from error
    if not bool(found.isfinite().all()):
        raise BadInput(
            f"column {series.name!r}: row {int((~found.isfinite()).nonzero()[0, 0])} is missing or infinite."
        )
    return found
