"""Two different questions have two different sentences, whatever they differ in; a new field or option is found here by itself."""

import dataclasses
import inspect
import json
import types
from collections.abc import Iterator
from typing import Any, Union, get_args, get_origin, get_type_hints

import hypothesis.strategies as st
import pytest
from hypothesis import assume, given, settings

from holdfast.cli import commands  # noqa: F401  every command is known by now
from holdfast.commands.command import COMMANDS, RUNNING_OPTIONS
from holdfast.commands.options import ModelOptions
from holdfast.question import DataDescription, Means, ModelDescription, Question, Request, plain
from holdfast.question_text import CLAUSES, NOT_SAID, describe_question
from holdfast.question_words import value_text

KINDS = sorted({*COMMANDS, "monitor"})

# Of what need not be said, and why, as the reviewer of this file has agreed to; `NOT_SAID` gives the reason of each.
AGREED = {
    "model", "data", "spec", "folder", "trust", "device", "fingerprint", "vocabulary", "classes", "tier", "methods", "seed", "seconds",
    "seconds_each", "queries", "gap", "samples", "choosing", "batch", "pictures", "saliency", "certificates", "key", "names",
}  # fmt: skip
NO_DATA = ("verify", "data")  # instances lie in files, which the specification names
NOT_ASKED = {  # fields of a question that do not enter its hash: what they hold stands elsewhere
    (
        "ModelDescription",
        "source",
    ): "whether it came from torch or a file: the hash of the model tells which one",
    ("ModelDescription", "notes"): "remarks about how it was read, shown by themselves",
    ("DataDescription", "classes"): "names of outputs",
    (
        "DataDescription",
        "columns",
    ): "names of the numbers of an input; what columns may do is in Asked.columns",
    ("Question", "begun_in"): "the folder in which the command was given",
}


def values_of(kind: Any) -> list[Any]:
    """Two different values of a type, and None where it may be that."""
    if get_origin(kind) in (Union, types.UnionType):
        some = [value for part in get_args(kind) for value in values_of(part)]
        return list({json.dumps(plain(value)): value for value in some}.values())
    origin = get_origin(kind) or kind
    if origin in (type(None), None):
        return [None]
    if origin is Any:
        return [None, {"a": 1}, {"a": 2}, [["x"], ["y"]], list(range(100)), [*range(99), 0]]
    known: dict[Any, list[Any]] = {
        bool: [False, True], int: [3, 4], float: [0.25, 0.1234567890123, 0.1234567890124], str: ["one", "two", "a" * 300, "a" * 299 + "b"],
        list: [["one"], ["two"]], tuple: [("one",), ("two",), ("one", "two")],
    }  # fmt: skip
    if inspect.isclass(origin) and issubclass(origin, dict):
        return [{"a": 1}, {"a": 2}]
    if origin in known:
        return known[origin]
    assert str(origin).endswith("Mapping'>"), f"{kind}: say here which two values such a field may have"
    return [{"a": 1}, {"a": 2}]


def distinct(questions: list[Question]) -> bool:
    sentences = [describe_question(question) for question in questions]
    return len(set(sentences)) == len(sentences)


PARTS: dict[str, type[Any]] = {
    "model": ModelDescription,
    "data": DataDescription,
    "asked": Request,
    "means": Means,
}


def changed(base: Question, part: str, field: str, value: Any) -> Question:
    return dataclasses.replace(base, **{part: dataclasses.replace(getattr(base, part), **{field: value})})


def fields_of() -> Iterator[tuple[str, str, Any]]:
    for part, kind in PARTS.items():
        for field, hint in get_type_hints(kind).items():
            yield part, field, hint


@pytest.mark.parametrize("command", KINDS)
@pytest.mark.parametrize(
    ("part", "field", "hint"), [pytest.param(*one, id=f"{one[0]}.{one[1]}") for one in fields_of()]
)
def test_a_change_of_any_field_changes_the_sentence(command: str, part: str, field: str, hint: Any) -> None:
    bases = [
        Question(command),
        Question(command, ModelDescription("net", fingerprint="ab" * 32), asked=Request(norm="0")),
        Question(command, asked=Request("words")),
    ]
    for base in bases:
        made = [changed(base, part, field, value) for value in values_of(hint)]
        assert len(made) >= 2
        said = {describe_question(question) for question in made}
        if (
            (field in NOT_SAID and part == "means")
            or (PARTS[part].__name__, field) in NOT_ASKED
            or ((command, part) == NO_DATA and field != "fingerprint")
        ):
            assert len(said) == 1
        elif len({question.fingerprint for question in made}) < len(
            made
        ):  # not a part of the question: the names of model and data
            assert len(said) > 1, f"{part}.{field} neither enters the hash of a question nor its sentence"
        else:
            assert len(said) == len(made), (
                f"{part}.{field} changes the question and not the sentence: give it a clause in CLAUSES"
            )


def options_of() -> Iterator[tuple[str, str, Any]]:
    """(command, option, its type) for all options that a run keeps."""
    for name, kind in COMMANDS.items():
        hints = get_type_hints(kind)
        for field in dataclasses.fields(kind):
            if field.name != "network":
                yield name, field.name, hints[field.name]
        yield from (
            (name, beside, str | None if beside == "shard" else float | None) for beside in RUNNING_OPTIONS
        )


@pytest.mark.parametrize(("command", "option", "hint"), list(options_of()))
def test_a_change_of_any_option_of_any_command_changes_the_sentence(
    command: str, option: str, hint: Any
) -> None:
    """An option that its command forgets to put into the question is named from the options that the run keeps."""
    made = [Question(command, options={option: value}) for value in values_of(hint)]
    said = {describe_question(question) for question in made}
    if option in NOT_SAID:
        assert len(said) == 1
    else:
        silent = sum(value in (None, False, "", []) for value in values_of(hint))
        assert len(said) == len(made) - max(0, silent - 1), (
            f"--{option} changes what is asked and not the sentence"
        )


@pytest.mark.parametrize("option", [field.name for field in dataclasses.fields(ModelOptions)])
def test_a_change_of_how_the_model_is_read_changes_the_sentence(option: str) -> None:
    values = values_of(get_type_hints(ModelOptions)[option])
    for made in (
        [Question(options={"network": {option: value}}) for value in values],
        [
            Question(model=ModelDescription(prepared={option: value}), options={"network": {option: value}})
            for value in values
            if value
        ],
    ):
        said = {describe_question(question) for question in made}
        told_once = sum(question.options["network"][option] in (None, False, "", []) for question in made)
        stored = bool(made[0].model.prepared)
        expected = 1 if option in NOT_SAID and not stored else len(made) - max(0, told_once - 1)
        assert len(said) == expected, f"--{option}"


def test_what_is_not_said_has_a_reason_and_exists() -> None:
    assert set(NOT_SAID) == AGREED
    options = {option for _, option, _ in options_of()} | {
        field.name for field in dataclasses.fields(ModelOptions)
    }
    assert set(NOT_SAID) <= options | {field.name for field in dataclasses.fields(Means)}
    assert all(len(reason) > 10 for reason in NOT_SAID.values())
    assert set(CLAUSES) == {
        field.name for field in dataclasses.fields(Request)
    }  # one without a clause is named, less well


def test_a_field_that_somebody_adds_is_named_before_it_has_a_clause() -> None:
    Later = dataclasses.make_dataclass("Later", [("tilt", str | None, None)], bases=(Request,), frozen=True)
    import holdfast.question_text as module

    original, module.Request = module.Request, Later  # type: ignore[misc, assignment]
    try:
        one, other = (describe_question(Question(asked=Later(tilt=value))) for value in ("left", "right"))
    finally:
        module.Request = original  # type: ignore[misc]
    assert "tilt left" in one
    assert one != other


TEXTS = st.one_of(
    st.sampled_from(["each", "all", "0,3", "1, only the frames 0", "a; b", '"', "(x)", ""]),
    st.text(max_size=12),
)
NUMBERS = st.one_of(
    st.sampled_from([0.0, 0.1, 0.1000000001, 1.0]), st.floats(allow_nan=False, allow_infinity=False)
)


def any_value(hint: Any) -> st.SearchStrategy[Any]:
    parts = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    kinds: dict[Any, st.SearchStrategy[Any]] = {
        str: TEXTS,
        float: NUMBERS,
        bool: st.booleans(),
        int: st.integers(),
        type(None): st.none(),
    }
    return st.one_of(*(kinds.get(part, st.one_of(st.none(), st.lists(TEXTS, max_size=2))) for part in parts))


ASKED = st.builds(Request, **{name: any_value(hint) for name, hint in get_type_hints(Request).items()})


@settings(max_examples=400)
@given(ASKED, ASKED, st.sampled_from(KINDS))
def test_any_two_questions(one: Request, other: Request, command: str) -> None:
    first, second = Question(command, asked=one), Question(command, asked=other)
    assume(first.fingerprint != second.fingerprint)
    assert describe_question(first) != describe_question(second)


@settings(max_examples=400)
@given(
    ASKED,
    st.sampled_from([field.name for field in dataclasses.fields(Request)]),
    st.sampled_from(KINDS),
    st.data(),
)
def test_two_questions_that_differ_in_one_field(
    one: Request, field: str, command: str, data: st.DataObject
) -> None:
    drawn = data.draw(any_value(get_type_hints(Request)[field]))
    # "0" and 0.0 read alike; no field that takes numbers stores a number as text.
    assume(type(drawn) is type(getattr(one, field)) or value_text(drawn) != value_text(getattr(one, field)))
    other = dataclasses.replace(one, **{field: drawn})
    first, second = Question(command, asked=one), Question(command, asked=other)
    assume(first.fingerprint != second.fingerprint)
    assert describe_question(first) != describe_question(second)


# ---------------------------------------------------------------- what it says, and where


MODEL = ModelDescription(
    "fan.onnx", fingerprint="51b70fd8" * 8, domain="[0, 1]", prepared={"domain": "0,1", "mean": "0.5"}
)
DATA = DataDescription("windows.npz", "03cb4a11" * 8, 3)
DRIFT = Question(
    "radius",
    MODEL,
    DATA,
    Request(norm="inf", shares="0.1,1,0.5", drift=True),
    Means("fast"),
    {"seed": 0, "limit": 3},
)
SENTENCE = (
    "How far may each of the 3 inputs of windows.npz move, in the L∞ norm, as a drift (one offset for each feature, the same in every "
    "frame), feature k by the radius times share k of 0.1,1,0.5, before fan.onnx changes its answer? (domain [0, 1]; mean 0.5; limit 3; "
    "model 51b70fd8, data 03cb4a11)"
)


def test_a_drift_with_shares_says_so() -> None:
    assert describe_question(DRIFT) == SENTENCE


@pytest.mark.parametrize(
    ("question", "told"),
    [
        (Question(asked=Request("0", unit="pixel", values="0:255")), "How many pixels of each input of the data may change"),
        (Question(asked=Request("0")), "How many units (pixels of images, else numbers) of"),
        (Question(data=DataDescription("a.npz", None, 1), asked=Request("inf", frames="each")),
         "the input of a.npz move, in the L∞ norm, one frame at"),
        (Question(asked=Request("words", frames="2")), "may be replaced, only the words 2, before the network changes its answer?"),
        (Question(asked=Request("2", within="10%", outputs="0")), "of the outputs 0 alone, before the network forecasts what is further"),
        (Question(asked=Request("2", threshold=0.0)), "before the network crosses 0 with an output?"),
        (Question(asked=Request("2", targets="3,3")), "before the network changes its answer to the target 3,3?"),
        (Question(means=Means(mode="grid", arithmetic="executed")), "(mode grid; arithmetic executed; "),
        (Question("worst", asked=Request("inf", 0.1, patch="2,2,3")), "by at most 0.1, only the square 2,2,3 (top,left,size) moving"),
        (Question("verify", asked=Request(specification=[["n.onnx", "p.vnnlib", "1", "2"]])), "by the property file p.vnnlib for n.onnx (hash "),
        (Question("radius", options={"shard": "2/3"}), "(only the part of the inputs 2/3)"),
        (Question("radius", options={"labels": "y.npy", "only_correct": True}), "(labels y.npy; only correct yes)"),
        (Question(model=ModelDescription("evil\x1b[31m")), "before evil�[31m changes"),
        (Question(model=ModelDescription("\udcff")), "before � changes"),
    ],
)  # fmt: skip
def test_conditions_in_words(question: Question, told: str) -> None:
    sentence = describe_question(question)
    assert told in sentence
    sentence.encode()
