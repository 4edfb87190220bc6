"""The declaration of a request: runs of earlier versions keep their fingerprints, and every command agrees with it."""

import dataclasses
import json
import math
from typing import Any

import pytest
import torch

import holdfast as hf
from holdfast.api.perturbation import Perturbation
from holdfast.cli import commands  # noqa: F401  every command is known by now
from holdfast.commands.command import COMMANDS
from holdfast.commands.options import ModelOptions
from holdfast.question import Question, Request
from holdfast.request import RequestOption, options_of

MODEL = {
    "name": "mod:make",
    "source": "torch",
    "fingerprint": "d90d471084ab328dbef19bfc09a4126fb6c6cd6f74922bc474395fd4c50cffa8",
    "domain": "[0, 1]",
    "prepared": {"domain": "0,1", "shape": "3,4"},
    "vocabulary": None,
    "tokenizer": None,
}
DATA = {"name": "d.npz", "fingerprint": "87de0fb8faa5235741cd671a656e46b0803b8348634ebb5b7983cb3784cd0a65"}
# Options that a command builds into a value of its own, in place of what was typed.
BUILT = {
    ("testgen", "criterion"),
    ("testgen", "threshold"),
}

# (command, its options, values that are not stored as typed, the stored request, the fingerprint), written by
# a version before options were declared in one place. The fields left out of a stored request were null.
STORED: list[tuple[str, dict[str, Any], dict[str, Any], dict[str, Any], str]] = [
    (
        "radius",
        {"norm": "2"},
        {"norm": "2"},
        {"norm": "2"},
        "df1c3f80795557cff339e25b12a3d59ffff7c7fd64d65567e3adfaca21d4e10e",
    ),
    (
        "radius",
        {"norm": "inf", "shares": "1,1,0.5,1", "drift": True, "targets": "runner-up"},
        {"norm": "inf"},
        {"norm": "inf", "drift": True, "shares": "1,1,0.5,1", "targets": "runner-up"},
        "7f693d9daad346e4df19689bd64e71483f620c3cce12b1243fcc69cc1afc0243",
    ),
    (
        "radius",
        {"norm": "0", "unit": "number", "values": "0,1"},
        {"norm": "0"},
        {"norm": "0", "unit": "number", "values": "0,1"},
        "77d5524c435051cb43509b4c3ef0257f6973e97b49262d2857d87221f8ee359b",
    ),
    (
        "risk",
        {"radius": 0.05, "property": "confidence", "epsilon": 0.01},
        {"norm": "inf"},
        {"norm": "inf", "radius": 0.05, "property": "confidence", "epsilon": 0.01, "softmax": True},
        "24aecf3250117b2571ed90a4e8198e1c2f67251cc8c1dd3b666e4b6852d30d50",
    ),
    (
        "saliency",
        {"unit": "number", "values": "0,0.5,1"},
        {"norm": "0", "radius": 1.0},
        {"norm": "0", "radius": 1.0, "unit": "number", "values": "0,0.5,1"},
        "93596aa402732f2c27230ea3a90e3eeb51045954979c2695aa6ae3e4f3726f3f",
    ),
    (
        "smoothing",
        {"sigma": 0.1},
        {"norm": "2"},
        {"norm": "2", "sigma": 0.1, "confidence": 0.999},
        "21558435bb2507f7c70fd8b304f6f9bf1c61634a2f55962b6c4829232b47352d",
    ),
    (
        "testgen",
        {},
        {"norm": "0", "criterion": "neuron of all layers per element, 0, 10"},
        {"norm": "0", "criterion": "neuron of all layers per element, 0, 10"},
        "d85f5eb76dff39d512fafb486546438cd0e9dbbefa84430faa49270621c814d7",
    ),
]
NAMES = [f"{command}-{place}" for place, (command, *_) in enumerate(STORED)]


def stored_question(command: str, asked: dict[str, Any]) -> dict[str, Any]:
    """A question as a run of an earlier version holds it: every field of the request, null or not."""
    whole = {name: asked.get(name) for name in options_of(Request)}
    return json.loads(json.dumps({"command": command, "model": MODEL, "data": DATA, "asked": whole}))


@pytest.mark.parametrize(("command", "typed", "read", "asked", "fingerprint"), STORED, ids=NAMES)
def test_a_stored_question_keeps_its_fingerprint(
    command: str, typed: dict[str, Any], read: dict[str, Any], asked: dict[str, Any], fingerprint: str
) -> None:
    found = Question.from_json(stored_question(command, asked))
    assert found.fingerprint == fingerprint
    assert Question.from_json(found.as_json()) == found


@pytest.mark.parametrize(("command", "typed", "read", "asked", "fingerprint"), STORED, ids=NAMES)
def test_the_same_command_asks_the_stored_question(
    command: str, typed: dict[str, Any], read: dict[str, Any], asked: dict[str, Any], fingerprint: str
) -> None:
    """What `resume`, `compare` and `gate` match: the request that the command makes today."""
    given = COMMANDS[command](network=ModelOptions("mod:make"), data="d.npz", **typed)  # type: ignore[call-arg]
    now = Request.of_command(command, given, **read)
    before = Question.from_json(stored_question(command, asked))
    assert now == before.asked
    assert dataclasses.replace(before, asked=now).fingerprint == fingerprint


def test_a_missing_field_of_a_stored_request_is_none() -> None:
    stored = stored_question("radius", {"norm": "2"})
    del stored["asked"]["tolerance"]
    assert Question.from_json(stored).asked == Request(norm="2")


def test_a_call_from_python_is_stored_as_before() -> None:
    """The texts and hashes of arguments, and their absence."""
    moves = Perturbation(norm=0.0, unit="number", values=[0, 1], free=torch.ones(3, 4, dtype=torch.bool))
    found = moves.to_request(targets=[1, 2])
    assert (found.norm, found.unit, found.values, found.targets) == ("0", "number", "[0, 1]", "[1, 2]")
    assert found.free is not None
    assert len(found.free) == 64
    assert (found.drift, found.frames, found.substitutes) == (None, None, None)
    assert Perturbation(drift=True).to_request() == Request(norm="inf", drift=True)
    assert Perturbation(substitutes={1: [2]}).to_request().norm == "words"


def declared() -> list[tuple[str, str, RequestOption]]:
    return [(command, name, one) for name, one in options_of(Request).items() for command in one.commands]


@pytest.mark.parametrize(("command", "name"), [(command, name) for command, name, _ in declared()])
def test_a_command_has_the_options_that_are_declared_for_it(command: str, name: str) -> None:
    assert name in {part.name for part in dataclasses.fields(COMMANDS[command])}


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_a_command_stores_every_option_that_a_request_has(command: str) -> None:
    """An option with the name of a field of `Request` that its command would forget."""
    stored = {name for kind, name, _ in declared() if kind == command}
    own = {part.name for part in dataclasses.fields(COMMANDS[command])} & options_of(Request).keys()
    built = {name for kind, name in BUILT if kind == command}
    assert own - built <= stored


def test_every_field_is_declared_and_no_two_mean_the_same() -> None:
    options = options_of(Request)
    assert list(options) == [part.name for part in dataclasses.fields(Request)]
    meanings = [one.meaning for one in options.values()]
    assert len(set(meanings)) == len(meanings)
    assert all(one.help.get("") for one in options.values() if one.commands)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"norm": 0.5}, "norm"),
        ({"drift": 1}, "drift"),
        ({"values": 3}, "values"),
        ({"free": "all"}, "free"),
    ],
)
def test_a_perturbation_refuses_wrong_values_when_it_is_made(options: dict[str, Any], message: str) -> None:
    with pytest.raises(hf.HoldfastError, match=message):
        Perturbation(**options)


def test_a_perturbation_takes_the_names_of_norms() -> None:
    assert Perturbation(norm="l2").norm == 2  # type: ignore[arg-type]
    assert math.isinf(Perturbation().norm)
