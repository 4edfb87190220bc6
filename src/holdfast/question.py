"""The question of a run: model, data, request and search settings. It is hashed and stored; `resume`,
`compare` and `gate` match it.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields

from holdfast.errors import StoreError
from holdfast.network.fingerprint import of_text
from holdfast.question_words import Json as Json
from holdfast.question_words import plain as plain
from holdfast.request import Request as Request

# Options that older versions did not know: runs without them keep their fingerprints.
NOT_IN_OLD_RUNS = ("edits", "quantiles", "channels")


@dataclass(frozen=True)
class ModelDescription:
    """The model under test. `prepared` holds the options of its input preprocessing that differ from the
    defaults.
    """

    name: str = ""
    source: str = ""
    fingerprint: str | None = None  # "": it cannot be hashed; None: unknown
    notes: tuple[str, ...] = ()
    domain: str | None = None
    prepared: Mapping[str, Json] = field(default_factory=dict)
    vocabulary: tuple[str, ...] | None = None
    tokenizer: str | None = (
        None  # the hash of a given tokenizer; None where text is split into words of the vocabulary
    )


ClassLabel = int | tuple[int, ...]  # the class of an input, or all positive outputs of a multi-label network


@dataclass(frozen=True)
class DataDescription:
    """The inputs of a run."""

    name: str = ""
    fingerprint: str | None = None
    count: int = 0
    classes: tuple[str, ...] | None = None
    columns: tuple[str, ...] | None = None  # the names of an input's features

    def class_name(self, number: ClassLabel | None) -> str:
        """Return the name of a class, or its number; several joined by +, an empty set as "none", None as an
        empty text.
        """
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
class Means:
    """The search settings: they change what is found and not what is true."""

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
    """The question of a run. options and begun_in: the command and its folder, for resuming; empty for a run
    from Python.
    """

    command: str = "radius"
    model: ModelDescription = ModelDescription()
    data: DataDescription = DataDescription()
    asked: Request = field(default_factory=Request)
    means: Means = Means()
    options: Mapping[str, Json] = field(default_factory=dict)
    begun_in: str = ""

    @property
    def frames_are_words(self) -> bool:
        """Whether the frames of an input are words."""
        return self.asked.norm in ("words", "edits") or self.model.vocabulary is not None

    @property
    def fingerprint(self) -> str:
        """A hash that is equal for runs with the same request about the same network and inputs, with any
        search settings.
        """
        model, data = self.model, self.data
        parts = [
            self.command,
            model.fingerprint,
            model.domain,
            model.prepared,
            model.vocabulary,
            data.fingerprint,
            {
                name: value
                for name, value in asdict(self.asked).items()
                if value is not None or name not in NOT_IN_OLD_RUNS
            },
        ]
        parts += [] if model.tokenizer is None else [model.tokenizer]
        return of_text(json.dumps(plain(parts), sort_keys=True))

    def differs(self, other: "Question") -> tuple[str, Json, Json] | None:
        """Return the first difference (name, mine, other), apart from model, data and search settings; None
        if there is none.
        """
        pairs = [("command", self.command, other.command), ("domain", self.model.domain, other.model.domain)]
        pairs += [
            (f.name, getattr(self.asked, f.name), getattr(other.asked, f.name)) for f in fields(Request)
        ]
        return next((pair for pair in pairs if plain(pair[1]) != plain(pair[2])), None)

    def same_truth(self, other: "Question") -> bool:
        """Whether network, preprocessing and request are the same, so that the results must not exclude each
        other.
        """
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
        """Return the question that was `stored` by `as_json`. StoreError if it is damaged."""
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
        ) as error:  # unknown fields, or fields of other types
            raise StoreError(
                f"the run's question cannot be read: it was written by another version of holdfast ({error})."
            ) from error


def _tuples(stored: Mapping[str, Json]) -> dict[str, Json]:
    """Convert lists back to tuples."""
    listed = ("notes", "vocabulary", "classes", "columns")
    return {
        name: tuple(value) if name in listed and isinstance(value, list) else value
        for name, value in stored.items()
    }
