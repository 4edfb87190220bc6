"""A claim in words says no more than what was checked, and names are labels that cannot say anything else."""

import json
import math
import random
import re
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from holdfast.certificates.claim import pack_proof
from holdfast.certificates.names import as_labels, claim_names, names_in_comments, read_names
from holdfast.errors import BadInput
from holdfast_check import check
from holdfast_check.claim_text import ClaimNames, ClaimNumbers, VariableLabel
from holdfast_check.container import read_container
from holdfast_check.proof import SCHEMA
from proof_networks import proved

NUMBER = r"(-?\d+\.?\d*(?:e[+-]?\d+)?)"


def numbers(**given: Any) -> ClaimNumbers:
    """The claim brake > 0.2 of a network of speed and gap, with changes."""
    usual: dict[str, Any] = {
        "kind": "proof", "where": "in the box 00", "size": 2, "outputs": 1,
        "lower": np.array([20.0, 5.0]), "upper": np.array([30.0, 60.0]), "norm": "box", "radius": None,
        "matrix": np.array([[1.0]]), "offset": np.array([-0.2]), "groups": ((0,),), "above": 0.0, "margin": 0.0131,
        "names": ClaimNames((VariableLabel("speed", "m/s"), VariableLabel("gap", "m")), (VariableLabel("brake"),)),
        "model": "brake.onnx", "sha256": "ab" * 32,
    }  # fmt: skip
    return ClaimNumbers(**{**usual, **given})


def test_a_claim_is_a_sentence_with_names_units_ranges_and_the_proved_number() -> None:
    assert numbers().sentence() == (
        "for all speed 20 to 30 m/s, gap 5 to 60 m: brake > 0.2; smallest proved value 0.2131 "
        "(real arithmetic, weights as stored; model brake.onnx, sha256 abababababababab; names and units are labels)"
    )
    below = numbers(matrix=np.array([[-2.0]]), offset=np.array([1.0]), margin=0.5)
    assert "brake < 0.5; largest proved value 0.25" in below.sentence()
    nothing = numbers(names=ClaimNames(), margin=None)
    assert "for all x_0 20 to 30, x_1 5 to 60: y_0 > 0.2 (" in nothing.sentence()


def test_conditions_on_several_outputs_are_words() -> None:
    names = ClaimNames((), (VariableLabel("left"), VariableLabel("right"), VariableLabel("stay")))
    some = {"outputs": 3, "names": names, "size": 100, "lower": None, "upper": None, "margin": None}
    others = np.array([[-1.0, 1, 0], [-1.0, 0, 1]])
    zero = np.zeros(2)
    assert (
        "left is not the largest" in numbers(matrix=others, offset=zero, groups=((0, 1),), **some).sentence()
    )
    assert (
        "left is not the smallest"
        in numbers(matrix=-others, offset=zero, groups=((0, 1),), **some).sentence()
    )
    told = numbers(matrix=others, offset=zero, groups=((0,), (1,), (1,)), **some).sentence()
    assert told.startswith("for all 100 inputs in the box 00: right > left and stay > left (")
    told = numbers(matrix=np.array([[2.0, -3, 0]]), offset=np.array([0.5]), **some).sentence()
    assert "2.0 left - 3.0 right > -0.5" in told
    far = numbers(matrix=-others, offset=np.array([0.0, -1]), groups=((0, 1),), **some).sentence()
    assert "left > right or left - stay > 1" in far


def test_no_shown_number_says_more_than_the_claim() -> None:
    """Ranges lie inside of the checked ones, and bounds of outputs are implied by the proved ones, in exact fractions."""
    draw = random.Random(1)
    for _ in range(300):
        scale = draw.choice([1.0, -1.0, 60261.0, -6.28318530718, 1e-7, draw.uniform(-3, 3) or 1.0])
        shift = draw.choice([0.0, 19791.091, draw.uniform(-1e3, 1e3)])
        label = VariableLabel("speed", "", scale, shift)
        low = draw.uniform(-2, 2) * 10.0 ** draw.randint(-6, 3)
        high = low + abs(draw.gauss(0, 1)) * 10.0 ** draw.randint(-9, 2)
        factor, offset, margin = draw.uniform(-2, 2) or 1.0, draw.uniform(-1, 1), draw.random()
        one = numbers(
            size=1, lower=np.array([low]), upper=np.array([high]), matrix=np.array([[factor]]),
            offset=np.array([offset]), margin=margin, names=ClaimNames((label,), (replace(label, name="brake"),)),
        )  # fmt: skip
        told = one.sentence()
        ranged = re.search(rf"speed {NUMBER} to {NUMBER}(?! \(before)", told)
        if ranged and low < high and "(before scaling)" not in told:
            ends = sorted([label.of(low), label.of(high)])
            first, last = Fraction(ranged[1]), Fraction(ranged[2])
            named = float(ranged[1]) in (low, high) and float(ranged[2]) in (low, high)
            assert named or ends[0] <= first <= last <= ends[1], told
        (sign, shown), (word, reached) = (
            re.findall(rf"brake ([<>]) {NUMBER}", told)[0],
            re.findall(rf"(smallest|largest) proved value {NUMBER}", told)[0],
        )
        exact = [
            (Fraction(value) - Fraction(offset)) / Fraction(factor) * Fraction(scale) + Fraction(shift)
            for value in (0.0, margin)
        ]
        rises = factor * scale > 0
        assert (sign, word) == ((">", "smallest") if rises else ("<", "largest"))
        for text, truth in zip((shown, reached), exact, strict=True):
            assert (Fraction(text) <= truth) if rises else (Fraction(text) >= truth), (told, float(truth))


BAD_NAMES = [
    "", " ", "speed 20", "speed  x", "20", "gap to", "speed: 0", "brake > 0", "a;b", "a,b", "x\ny", "x\x1b[2J", "a" * 61, "and",
    "speed (m/s)", "Of", "x‮y",
]  # fmt: skip


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_name_cannot_be_read_as_a_part_of_the_sentence(name: str) -> None:
    with pytest.raises(ValueError, match="no name"):
        VariableLabel(name)


@pytest.mark.parametrize("unit", ["m to 5", "m, gap 0", ">", "1", "m" * 20, "x y", "\n"])
def test_a_unit_cannot_be_read_as_a_part_of_the_sentence(unit: str) -> None:
    with pytest.raises(ValueError, match="no unit"):
        VariableLabel("speed", unit)


def test_a_certificate_states_its_claim_by_its_own_numbers(tmp_path: Path) -> None:
    """Labels decide nothing: a text in the file is not repeated, and labels of other inputs are rejected."""
    _, _, made = proved("mlp", tmp_path)
    first = made[0]
    assert first.file is not None
    assert first.model is not None
    metadata, arrays = read_container(first.file.read_bytes())
    header = json.loads(metadata[SCHEMA])
    plain = check(first.model, first.file)
    size = plain.numbers.size if plain.numbers else 0
    outputs = plain.numbers.outputs if plain.numbers else 0
    labels = {
        "inputs": [{"name": f"sensor_{k}", "unit": "V", "scale": 2.0, "shift": 1.0} for k in range(size)],
        "outputs": [{"name": f"class_{k}"} for k in range(outputs)],
    }

    def verdict_of(**changes: Any) -> Any:
        first.file.write_bytes(pack_proof({**header, **changes}, arrays))  # type: ignore[union-attr]
        return check(first.model, first.file)  # type: ignore[arg-type]

    named = verdict_of(names=labels, sentence="for all x: y > 5", claim="anything", margin=9)
    assert named.accepted
    assert "class_" in named.claim
    assert "anything" not in named.claim
    assert named.margin == plain.margin
    assert named.numbers.margin <= plain.margin
    for wrong in (
        {"inputs": labels["inputs"][1:]},
        {"outputs": labels["outputs"] + labels["outputs"]},
        {"outputs": [{"name": "same"}] * outputs},
        {"outputs": [{"name": "class 0"}] * outputs},
        {"inputs": [{"name": f"s_{k}", "scale": 0} for k in range(size)]},
        {"inputs": [{"name": f"s_{k}", "scale": "2"} for k in range(size)]},
        {"inputs": [{"name": f"s_{k}", "scale": math.inf} for k in range(size)]},
        {"inputs": [{"names": f"s_{k}"} for k in range(size)]},
        {"title": "x"},
        ["x"],
        "x",
        7,
    ):
        found = verdict_of(names=wrong)
        assert not found.accepted, wrong
        assert "cannot be read" in found.reason
    # What the sentence says follows the arrays of the file, not its labels.
    told = verdict_of(names=labels).claim
    header["region"]["radius"] /= 2
    assert verdict_of(names=labels).claim != told


def test_names_come_from_files_comments_columns_and_classes(tmp_path: Path) -> None:
    file = tmp_path / "names.csv"
    file.write_text("variable,name,unit,scale,shift\nX_1,gap,m,,\n\nY_0,brake,,2,-1\n")
    found = read_names(file)
    assert found == {"X_1": VariableLabel("gap", "m"), "Y_0": VariableLabel("brake", "", 2.0, -1.0)}
    labels = claim_names(2, 1, found, {"X_0": VariableLabel("other")})
    assert [one.name for one in labels.inputs] == ["X_0", "gap"]
    assert labels.outputs == (VariableLabel("brake", "", 2.0, -1.0),)
    spec = tmp_path / "p.vnnlib"
    spec.write_text(
        "; X_0: speed [m/s]\n; X_1 = gap (m)\n; Unscaled Input 2: (0, 1)\n; Y_0: 5 > 3\n(declare-const X_0 Real)\n"
    )
    assert names_in_comments(spec) == {"X_0": VariableLabel("speed", "m/s"), "X_1": VariableLabel("gap", "m")}
    assert as_labels("X", ["petal width (cm)", "a/b", "100%"]) == {
        "X_0": VariableLabel("petal width", "cm"), "X_1": VariableLabel("a_b"), "X_2": VariableLabel("column_100"),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "first line"),
        ("name,unit\nx,m\n", "first line"),
        ("variable,name\nX_0,speed,m\n", "line 2: write a variable such as X_0"),
        ("variable,name\nZ_0,speed\n", "line 2: write a variable such as X_0"),
        ("variable,name\nX_0,a\nX_0,b\n", "line 3: X_0 has a name already"),
        ("variable,name,scale\nX_0,a,fast\n", "line 2: could not convert"),
        ("variable,name,scale\nX_0,a,nan\n", "scale and shift are finite"),
        ("variable,name,unit\nX_0,a,m to s\n", "no unit"),
    ],
)
def test_a_file_of_names_that_is_wrong_is_refused_with_its_line(text: str, told: str, tmp_path: Path) -> None:
    file = tmp_path / "names.csv"
    file.write_text(text)
    with pytest.raises(BadInput, match=re.escape(told)):
        read_names(file)
