"""VNN-LIB 2: what it says is what version 1 says, and what cannot be verified is told. Most of it needs the package vnnlib."""

import gzip
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import holdfast as hf
from holdfast.errors import BadInput, MissingExtra
from holdfast.verification.vnnlib import Spec, parse, read_vnnlib

HEAD = "(vnnlib-version <2.0>)\n(declare-network N (declare-input X float32 [1,2]) (declare-output Y float32 [1,2]))\n"
BOX = "(assert (and (>= X[0,0] -1.0) (<= X[0,0] 1.0) (>= X[0,1] 0.0) (<= X[0,1] 0.1)))\n"


@pytest.fixture
def package() -> None:
    module = pytest.importorskip(
        "vnnlib", reason="the package vnnlib is not installed: pip install 'holdfast[vnnlib2]'"
    )
    if not hasattr(module, "parse_query_string"):
        pytest.skip("the package vnnlib is older than 1.0 and does not read VNN-LIB 2")


def meets(found: Spec, x: list[float], y: list[float]) -> bool:
    return any(case.holds(x) and case.is_violated(y) for case in found.cases)


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vnnlib", None)
    with pytest.raises(MissingExtra, match=r"two\.vnnlib.*pip install 'holdfast\[vnnlib2\]'"):
        parse(HEAD + BOX, "two.vnnlib")


@pytest.mark.parametrize("version", ["<3.0>", "<1.0>", "<>", "20"])
def test_other_versions_are_refused(version: str) -> None:
    with pytest.raises(BadInput, match="version"):
        parse(f"; first\n (vnnlib-version {version})")


def test_many_comments_before_the_version_take_no_time() -> None:
    with pytest.raises(BadInput, match="version 7"):
        parse(";   \n   \n" * 20_000 + "(vnnlib-version <7.0>)")


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(
    ("body", "inside", "outside"),
    [
        ("(assert (<= Y[0,0] Y[0,1]))", [[1.0, 1.0]], [[1.1, 1.0]]),
        ("(assert (< Y[0,0] 2.5))", [[2.4, 0.0]], [[2.5, 0.0]]),
        ("(assert (> Y[0,1] -0.5))", [[0.0, -0.4]], [[0.0, -0.5]]),
        ("(assert (>= (- (* 2.0 Y[0,0]) Y[0,1] 1.0) 0.0))", [[1.0, 1.0]], [[1.0, 1.1]]),
        ("(assert (<= (+ (- Y[0,0]) (* Y[0,1] 3.0)) 0.0))", [[3.0, 1.0]], [[2.9, 1.0]]),
        ("(assert (== Y[0,0] 0.5))", [[0.5, 0.0]], [[0.5000001, 0.0], [0.4999999, 0.0]]),
        ("(assert (!= Y[0,0] 0.5))", [[0.5000001, 0.0], [0.4999999, 0.0]], [[0.5, 0.0]]),
        ("(assert (or (<= Y[0,0] 0.0) (and (<= Y[0,1] 0.0) (<= Y[0,0] 1.0))))", [[0.0, 9.0], [1.0, 0.0]], [[1.0, 1.0]]),
    ],
)  # fmt: skip
def test_what_a_file_means(body: str, inside: list[list[float]], outside: list[list[float]]) -> None:
    found = parse(HEAD + BOX + body)
    assert (found.inputs, found.outputs) == (2, 2)
    assert all(meets(found, [0.5, 0.05], y) for y in inside)
    assert not any(meets(found, [0.5, 0.05], y) for y in outside)
    assert not any(meets(found, x, y) for x in ([1.1, 0.0], [0.0, -0.1], [0.0, 0.11]) for y in inside)


@pytest.mark.usefixtures("package")
def test_elements_are_counted_row_by_row_and_numbers_are_exact() -> None:
    head = (
        "(vnnlib-version <2.0>) (declare-network N (declare-input X Real [2,3]) (declare-output Y Real []))"
    )
    box = "".join(
        f"(assert (>= X[{i},{j}] {i}.{j})) (assert (<= X[{i},{j}] {i + 1}.{j}))"
        for i in range(2)
        for j in range(3)
    )
    found = parse(f"{head}{box}(assert (<= Y 0.1))")
    [case] = found.cases
    assert [str(end.value) for end in case.lower] == ["0", "1/10", "1/5", "1", "11/10", "6/5"]
    assert str(case.polytopes[0][0].bound) == "1/10"


@pytest.mark.usefixtures("package")
def test_decimals_decide_as_they_are_written() -> None:
    found = parse(HEAD + BOX + "(assert (<= (+ (* 0.1 Y[0,0]) (* 0.2 Y[0,1])) 0.3))")
    assert found.rules().matrix.flatten().tolist() == [1.0, 2.0]
    assert float(found.rules().offset) == -3.0
    assert not meets(found, [0.5, 0.1], [1.0, 1.0])  # float64's 0.1 is above one tenth
    assert meets(found, [0.5, 0.0625], [1.0, 1.0])
    assert not meets(found, [0.5, 0.0625], [1.0, 1.0 + 2.0**-52])


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(
    ("number", "says"), [("1" * 350 + ".0", "f:4: .*large"), ("0." + "0" * 350 + "1", "f:4: .*small")]
)
def test_numbers_that_float64_cannot_hold_are_named(number: str, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        parse(HEAD + BOX + f"(assert (<= Y[0,0] {number}))", "f")


@pytest.mark.usefixtures("package")
def test_both_versions_give_the_same_and_deep_nesting_is_read() -> None:
    one = parse(
        "(declare-const X_0 Real) (declare-const X_1 Real) (declare-const Y_0 Real) (declare-const Y_1 Real)"
        "(assert (and (>= X_0 -1.0) (<= X_0 1.0) (>= X_1 0.0) (<= X_1 0.1))) (assert (or (<= Y_0 Y_1) (<= Y_0 3.0)))",
        "same",
    )
    deep = "(and " * 5000 + "(or (<= Y[0,0] Y[0,1]) (<= Y[0,0] 3.0))" + ")" * 5000
    assert parse(f"{HEAD}{BOX}(assert {deep})", "same") == one


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(
    ("text", "says"),
    [
        (HEAD + BOX + "(assert (<= (* Y[0,0] Y[0,1]) 1.0))", r"f:4: a product of two variables"),
        (HEAD + BOX + "(assert (<= (* X[0,0] Y[0,1]) 1.0))", r"f:4: a product of two variables"),
        (HEAD + BOX + "(assert (<= X[0,0] Y[0,1]))", "f:4: compares an input with another variable"),
        (HEAD + "(assert (<= X[0,0] 1.0))", "no lower bound"),
        (HEAD + BOX + "(assert (<= Z[0,0] 1.0))", r"f:4: .*Z"),
        (HEAD + BOX + "(assert (<= X[0,5] 1.0))", "f:4: "),
        (HEAD + BOX + "(assert (<= X[0,0] 1e-3))", r"f:4: .*syntax error"),
        (HEAD + BOX + "(assert (<= X[0,0] 1.0)", "f"),
        ("(vnnlib-version <2.0>) (declare-network N (declare-input X Real [1]) (declare-input V Real [1]) (declare-output Y Real [1]))"
         "(assert (<= Y[0] 1.0))", "2 inputs"),
        ("(vnnlib-version <2.0>) (declare-network N (declare-input X Real [1]) (declare-output Y Real [1]) (declare-output Z Real [1]))"
         "(assert (<= Y[0] 1.0))", "2 outputs"),
        ("(vnnlib-version <2.0>) (declare-network N (declare-input X Real [1]) (declare-output Y Real [1]))"
         "(declare-network M (declare-input V Real [1]) (declare-output W Real [1])) (assert (<= Y[0] 1.0))", "2 networks"),
        ('(vnnlib-version <2.0>) (declare-network N (declare-input X Real [1]) (declare-hidden H Real [3] "relu")'
         "(declare-output Y Real [1])) (assert (<= Y[0] 1.0))", "hidden node 'H'"),
        ("(vnnlib-version <2.0>) (declare-network N (declare-input X int8 [1]) (declare-output Y Real [1])) (assert (<= Y[0] 1.0))", " I8"),
    ],
)  # fmt: skip
def test_what_cannot_be_verified_is_told(text: str, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        parse(text, "f")


@pytest.mark.usefixtures("package")
def test_a_packed_file_is_verified(tmp_path: Path) -> None:
    layer = nn.Linear(2, 2).eval()
    layer.load_state_dict({"weight": torch.eye(2), "bias": torch.zeros(2)})
    net = hf.Network.from_torch(layer, shape=(2,))
    file = tmp_path / "two.vnnlib.gz"
    for bound, answer in (("-1.5", "unsat"), ("-0.5", "sat")):
        with gzip.open(file, "wt") as packed:
            packed.write(f"; a comment\n{HEAD}{BOX}(assert (<= Y[0,0] {bound}))")
        assert hf.verify(net, file).answer == answer
        assert read_vnnlib(file).inputs == 2
