"""`holdfast inspect`: what was understood of a model, what can be asked, and what stops a proof."""

import re
import time

import onnx
import pytest
from cli_workshop import Ask
from onnx import TensorProto, helper

from holdfast.certify import Certify
from holdfast.cli.views import model


def lines(text: str) -> list[str]:
    """The rows of all tables, each as words separated by single spaces."""
    return [" ".join(line.replace("│", "|").split()) for line in text.splitlines()]


def test_a_network_that_can_be_proved(ask: Ask) -> None:
    said = ask("inspect", "lstm.onnx", "--domain", "0,1")
    assert said.code == 0, said.err
    seen = lines(said.out)
    for fact in (
        "model lstm.onnx",
        "read as onnx",
        "input 3 x 2",
        "domain [0, 1]",
        "outputs 3",
        "arithmetic float32",
    ):
        assert fact in seen
    assert any("aten.lstm.input" in line and line.endswith("yes |") for line in seen)
    assert "stops here" not in said.out
    for method in ("certify", "pgd", "carlini", "corners", "clever"):
        assert any(line.startswith(f"| {method} ") and line.endswith("| yes |") for line in seen)


def test_what_a_radius_takes_is_foretold_tier_by_tier(ask: Ask) -> None:
    seen = lines(ask("inspect", "lstm.onnx", "--domain", "0,1").out)
    told = seen[seen.index("what one radius takes on this machine, about") :]
    times = {line.split()[1]: line for line in told if "MiB |" in line or "--seconds allows" in line}
    assert list(times) == ["fast", "tight", "split"]
    assert all(
        re.search(r"\| (0\.\d+|\d+|more than 5) \| up to \d+ MiB \|$", times[tier])
        for tier in ("fast", "tight")
    )
    unproved = ask("inspect", "cli_own_code:waving", "--shape", "4").out
    assert "what one radius takes" not in unproved


def test_the_layer_that_stops_a_proof_is_named_and_what_still_works(ask: Ask) -> None:
    said = ask("inspect", "cli_own_code:waving", "--shape", "4")
    assert said.code == 0, said.err
    seen = lines(said.out)
    assert ["aten.sinc.default" in line for line in seen if "stops here" in line] == [True]
    assert any(line.startswith("| certify ") and "no:" in line for line in seen)
    assert any(line.startswith("| pgd ") and line.endswith("| yes |") for line in seen)


def test_a_token_model(ask: Ask) -> None:
    said = ask("inspect", "reader.onnx", "--vocabulary", "words.txt")
    assert said.code == 0, said.err
    assert "any x 4; words as vectors of a table of 9" in said.out
    assert any(
        line.startswith("| enumerate ") and "yes, with --substitutes" in line for line in lines(said.out)
    )


def test_a_black_box(ask: Ask) -> None:
    for arguments in (("cli_own_code:black_box", "--shape", "3,2"), ("lstm.onnx", "--black-box")):
        said = ask("inspect", *arguments)
        assert said.code == 0, said.err
        seen = lines(said.out)
        assert "read as black box" in seen
        assert "weights not visible" in seen
        assert [line.split()[1] for line in seen if line.endswith("| yes |")] == ["corners", "mesh", "mesh-lagrangian"]


def test_an_operator_that_only_onnxruntime_knows_makes_a_black_box_and_says_so(ask: Ask) -> None:
    node = helper.make_node("NonMaxSuppression", ["boxes", "scores"], ["chosen"])
    rest = [
        helper.make_node("Unsqueeze", ["x", "axes"], ["boxes"]),
        node,
        helper.make_node("Cast", ["chosen"], ["cast"], to=TensorProto.FLOAT),
        helper.make_node("ReduceSum", ["cast"], ["total"], keepdims=0),
        helper.make_node("Add", ["x", "total"], ["y"]),
    ]
    constants = [
        helper.make_tensor("axes", TensorProto.INT64, [1], [0]),
        helper.make_tensor("scores", TensorProto.FLOAT, [1, 1, 1], [0.5]),
    ]
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 4]) for n in "xy"]
    graph = helper.make_graph(rest, "g", ports[:1], ports[1:], constants)
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), "boxes.onnx"
    )
    said = ask("inspect", "boxes.onnx")
    assert said.code == 0, said.err
    assert "NonMaxSuppression" in said.out
    assert "read as black box" in lines(said.out)


def test_a_program_needs_trust_here_too(ask: Ask) -> None:
    assert ask("inspect", "lstm.pt2").code == 2
    said = ask("inspect", "lstm.pt2", "--trust")
    assert said.code == 0, said.err
    assert "read as export" in lines(said.out)


def test_a_shape_that_nobody_said(ask: Ask) -> None:
    said = ask("inspect", "cli_own_code:linear")
    assert said.code == 2
    assert "--shape 1,28,28" in said.err


def test_what_is_not_found_out_in_time_is_said(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    def hangs(*_: object) -> None:
        time.sleep(600)

    monkeypatch.setattr(model, "bounders", hangs)
    monkeypatch.setattr(Certify, "obstacle", hangs)
    said = ask("inspect", "lstm.onnx", "--domain", "0,1", "--seconds", "20")
    assert said.code == 0, said.err
    seen = lines(said.out)
    assert "model lstm.onnx" in seen
    assert any("not found out within 20 s: how proofs are made" in line for line in seen)
    assert any(line.startswith("| certify ") and line.endswith("| not found out in time |") for line in seen)
