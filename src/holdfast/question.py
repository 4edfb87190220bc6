"""What a run was asked, of what, and with what means: typed, hashed, stored with the run; `resume`, `compare` and `gate` match on it."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from holdfast.errors import StoreError
from holdfast.network.fingerprint import of_text

Json = Any  # text, numbers, true, false, nothing, and lists and mappings of these


@dataclass(frozen=True)
class ModelDescription:
    """Of what. `prepared` is how its inputs are made ready, as far as that is not its usual way."""

    name: str = ""
    source: str = ""
    fingerprint: str | None = None  # "": what it is made of cannot be hashed; None: nobody said
    notes: tuple[str, ...] = ()
    domain: str | None = None
    prepared: Mapping[str, Json] = field(default_factory=dict)
    vocabulary: tuple[str, ...] | None = None
    tokenizer: str | None = (
        None  # the hash of one that was given; where text is cut into words of the vocabulary there is none
    )


Said = int | tuple[int, ...]  # the class of an input, or all outputs that say yes where each says yes or no


@dataclass(frozen=True)
class DataDescription:
    """On which inputs."""

    name: str = ""
    fingerprint: str | None = None
    count: int = 0
    classes: tuple[str, ...] | None = None
    columns: tuple[str, ...] | None = None  # what the numbers of an input are called

    def class_name(self, number: Said | None) -> str:
        """Its name, or the number itself; nothing of nothing. Of several all, of a set of none "none"."""
        if isinstance(number, tuple):
            return " + ".join(map(self.class_name, number)) or "none"
        known = self.classes is not None and number is not None and 0 <= number < len(self.classes)
        return (
            ""
            if number is None
            else self.classes[number]
            if known and self.classes is not None
            else str(number)
        )


@dataclass(frozen=True)
class Request:
    """What the answers depend on besides the network and the input. What a command does not speak of is None."""

    norm: str | None = None  # a number, or "words"
    radius: float | str | None = None
    frames: str | None = None
    shares: str | None = None
    drift: bool | None = None
    targets: str | None = None
    substitutes: Json = None
    unit: str | None = None
    free: str | None = None  # the hash of the mask's file
    values: str | None = None
    property: str | None = None
    epsilon: float | None = None
    within: str | None = None
    threshold: float | None = None
    patch: str | None = None
    softmax: bool | None = None
    sigma: float | None = None
    confidence: float | None = None
    box: str | None = None
    outputs: str | None = None
    tolerance: float | None = None
    specification: Json = None  # of VNN-LIB: names and hashes
    criterion: str | None = None
    mutation: Json = None
    columns: Json = None  # of a table: what each column is, and the order of its numbers


@dataclass(frozen=True)
class Means:
    """How it is searched: this changes what is found, not what is true."""

    tier: str | None = None
    mode: str | None = None
    methods: str | None = None
    arithmetic: str | None = None
    seed: int = 0
    seconds: float | None = None
    queries: int | None = None
    gap: float = 0.0


@dataclass(frozen=True)
class Question:
    """options and begun_in: the command as it was given and where, so that it can be asked again; empty for a run made by a program."""

    command: str = "radius"
    model: ModelDescription = ModelDescription()
    data: DataDescription = DataDescription()
    asked: Request = Request()
    means: Means = Means()
    options: Mapping[str, Json] = field(default_factory=dict)
    begun_in: str = ""

    @property
    def fingerprint(self) -> str:
        """Two runs with equal ones asked the same thing about the same network and inputs, however they searched."""
        model, data = self.model, self.data
        parts = [
            self.command,
            model.fingerprint,
            model.domain,
            model.prepared,
            model.vocabulary,
            data.fingerprint,
            asdict(self.asked),
        ]
        parts += [] if model.tokenizer is None else [model.tokenizer]
        return of_text(json.dumps(plain(parts), sort_keys=True))

    def differs(self, other: "Question") -> tuple[str, Json, Json] | None:
        """The first thing in which the questions are not the same, whoever is asked and with whatever means; None: they are the same."""
        pairs = [("command", self.command, other.command), ("domain", self.model.domain, other.model.domain)]
        pairs += [
            (f.name, getattr(self.asked, f.name), getattr(other.asked, f.name)) for f in fields(Request)
        ]
        return next((pair for pair in pairs if plain(pair[1]) != plain(pair[2])), None)

    def same_truth(self, other: "Question") -> bool:
        """The same network, prepared alike, and the same thing asked: their answers may not exclude each other."""
        known = bool(self.model.fingerprint) and self.model.fingerprint == other.model.fingerprint
        return (
            known
            and plain(self.model.prepared) == plain(other.model.prepared)
            and self.differs(other) is None
        )

    def as_json(self) -> dict[str, Json]:
        told: dict[str, Json] = plain(asdict(self))
        return {**told, "fingerprint": self.fingerprint}

    @staticmethod
    def from_json(stored: Mapping[str, Json]) -> "Question":
        try:
            kept = {name: value for name, value in stored.items() if name != "fingerprint"}
            for name, kind in (
                ("model", ModelDescription),
                ("data", DataDescription),
                ("asked", Request),
                ("means", Means),
            ):
                if name in kept:
                    kept[name] = kind(**_tuples(kept[name]))
            return Question(**kept)
        except (
            TypeError,
            AttributeError,
            ValueError,
        ) as error:  # it holds other names, or other things by these names
            raise StoreError(
                f"the run's question cannot be read: it was written by another version of holdfast ({error})."
            ) from error


def _tuples(stored: Mapping[str, Json]) -> dict[str, Json]:
    """Lists where a tuple was written."""
    listed = ("notes", "vocabulary", "classes", "columns")
    return {
        name: tuple(value) if name in listed and isinstance(value, list) else value
        for name, value in stored.items()
    }


def plain(value: Json) -> Json:
    """As JSON holds it: no tuples, and infinity, which JSON does not have, as text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in value.items()}
    return [plain(part) for part in value] if isinstance(value, list | tuple) else value
