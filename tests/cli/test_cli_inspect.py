"""`holdfast inspect`: what was understood of a model, what can be asked, and what stops a proof."""

import re
import time
from dataclasses import replace

import onnx
import pytest
import torch
from cli_workshop import Ask
from onnx import TensorProto, helper

import holdfast as hf
from holdfast.certify import Certify, Tighten
from holdfast.certify import cost as cost_module
from holdfast.certify.cost import USUAL_PASSES, Cost, costs
from holdfast.certify.tight_tier import ClosedFormBounds
from holdfast.cli.views import model
from holdfast.problem import Problem


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


def test_the_time_of_a_radius_is_measured_or_extrapolated_tier_by_tier(ask: Ask) -> None:
    seen = lines(ask("inspect", "lstm.onnx", "--domain", "0,1").out)
    start = seen.index("what a radius takes on this machine (L∞ norm, one random input)")
    rows = {line.split()[1]: line for line in seen[start:] if "MiB |" in line or "--seconds allows" in line}
    assert list(rows) == ["fast", "tight", "split"]
    number = r"(0\.\d+|\d+|\de-\d+) s"
    assert re.fullmatch(rf"\| fast \| a whole search: {number} \| {number} \| up to \d+ MiB \|", rows["fast"])
    assert re.fullmatch(rf"\| tight \| .*: {number} \| about {number} \| up to \d+ MiB \|", rows["tight"])
    assert any(line.startswith("time: tier fast was measured on one random input;") for line in seen)
    unproved = ask("inspect", "cli_own_code:waving", "--shape", "4").out
    assert "what a radius takes" not in unproved


def test_a_measured_time_is_shown_as_measured() -> None:
    cost = Cost("fast", seconds=3.0, memory=0, measured=3.0, complete=True)
    assert (model.measured_text(cost), model.seconds_text(cost)) == ("a whole search: 3 s", "3 s")
    assert "extrapolated from single steps" in model.time_statement(cost)


def test_a_search_that_does_not_end_is_extrapolated_from_its_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    net = hf.Network.from_torch(torch.nn.Linear(3, 2).eval(), domain=(0, 1))
    ball = hf.region.Ball(torch.full((1, 3), 0.5), torch.zeros(1, dtype=torch.float64), torch.inf, net.domain)
    problem = Problem(net, ball, hf.property.Linear.of([1.0, -1.0]), "radius")
    finished = Tighten().start(problem, 0)
    assert isinstance(finished.phase, ClosedFormBounds)
    search = finished.phase.search
    for passes, seconds in ((0, None), (2, 10.0), (7, 32 / 7)):
        going_on = replace(finished, phase=ClosedFormBounds(replace(search, round=torch.tensor([passes]))))
        monkeypatch.setattr(cost_module, "_run_linear_bounds", lambda *_, state=going_on: state)
        clock = iter(range(100, 200, 4))
        monkeypatch.setattr(cost_module.time, "perf_counter", lambda clock=clock: next(clock))
        fast, tight = costs(problem)
        monkeypatch.undo()
        assert (fast.measured, fast.complete, fast.passes) == (4.0, False, passes)
        assert fast.seconds == pytest.approx(seconds) if seconds else fast.seconds is None
        assert tight.seconds is None, "nothing supports an estimate of the tier after it"
        told = model.time_statement(fast)
        if passes:
            assert model.seconds_text(fast) == f"about {seconds:.0f} s"
            assert f"extrapolated from {passes} of usually {USUAL_PASSES} passes" in told
        else:
            assert model.seconds_text(fast) == "more than 4 s"
            assert "no pass of linear bounds ended in 4 s, so a proof of one input takes more" in told


def test_the_measurement_uses_the_seconds_that_are_given(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = list[float]()

    def measure(problem: Problem, limit: float) -> list[Cost]:
        limits.append(limit)
        return [Cost("fast", None, 2**20, measured=limit)]

    monkeypatch.setattr(model, "costs", measure)
    said = ask("inspect", "lstm.onnx", "--domain", "0,1", "--seconds", "400")
    assert said.code == 0, said.err
    assert 100 < limits[0] <= 200, "half of the seconds that are left"
    assert f"more than {limits[0]:.0f} s" in said.out


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
        assert [line.split()[1] for line in seen if line.endswith("| yes |")] == [
            "corners",
            "mesh",
            "mesh-lagrangian",
        ]


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
    assert any("not determined within 20 s: how proofs are made" in line for line in seen)
    assert any(line.startswith("| certify ") and line.endswith("| not determined in time |") for line in seen)


def test_a_tier_whose_turn_never_came_is_not_measured() -> None:
    """Tier fast used all the time: nothing is known of tier tight, and no number is shown."""
    cost = Cost("tight", None, 2**28, measured=5e-5)
    assert (model.measured_text(cost), model.seconds_text(cost)) == (
        "not measured: no time was left",
        "unknown",
    )
