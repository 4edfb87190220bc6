"""hf.verify against the truth: dense grids, networks in closed form, competition files with known answers; and it never claims too much."""

import math
import time
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import holdfast as hf
from clocks import TestClock
from holdfast import batch, time_limit
from holdfast.bounding.branching.input_split import InputSplit
from holdfast.bounding.branching.relu_split import ActivationSplit
from holdfast.bounding.branching.subproblem_queue import Branching, CandidatePoints
from holdfast.bounding.crown import propagate
from holdfast.bounding.graph.fusion import prepare_graph
from holdfast.property import Avoid
from holdfast.random_streams import RandomStreams
from holdfast.region import Box
from holdfast.replay import replay
from holdfast.result import Bound, Bracket, Evidence, Key, Record, trivial_bound
from holdfast.verification import BranchAndBound, read_instances, read_key, search, vnnlib
from holdfast.verification.search import as_polytopes, problem_box, search_weakest
from holdfast.verification.specification import problem_of
from holdfast.verification.verify import UNREAD, Verdict, verdict, verify
from holdfast.verification.vnnlib import Spec, SpecReader, parse, read_vnnlib
from sizes import count, some

METHODS = [InputSplit(batch=64), ActivationSplit(batch=32)]
BOTH = pytest.mark.parametrize("method", METHODS, ids=lambda m: type(m).__name__)


def perceptron(seed: int, *sizes: int) -> hf.Network:
    torch.manual_seed(seed)
    layers = [part for a, b in pairwise(sizes) for part in (nn.Linear(a, b), nn.ReLU())]
    model = nn.Sequential(*layers[:-1]).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    return hf.Network.from_torch(model, shape=(sizes[0],))


def spec(low: list[float], high: list[float], outputs: int, *asserts: str) -> Spec:
    lines = [f"(declare-const X_{i} Real)" for i in range(len(low))] + [
        f"(declare-const Y_{i} Real)" for i in range(outputs)
    ]
    lines += [
        f"(assert (>= X_{i} {a!r}))\n(assert (<= X_{i} {b!r}))"
        for i, (a, b) in enumerate(zip(low, high, strict=True))
    ]
    return parse("\n".join([*lines, *(f"(assert {text})" for text in asserts)]))


def dense(net: hf.Network, low: list[float], high: list[float], steps: int = 201) -> Tensor:
    """The outputs on a grid that holds the corners, in float64."""
    axes = [torch.linspace(a, b, steps, dtype=torch.float64) for a, b in zip(low, high, strict=True)]
    x = torch.cartesian_prod(*axes).reshape(-1, len(low))
    twin = net.double(x[:1].float())
    assert twin is not None
    return twin(x)


def stands(found: Verdict, net: hf.Network, asked: Spec) -> bool:
    """A counterexample holds: it lies in a box, and the network as it is says what is forbidden."""
    assert found.witness is not None
    assert found.evidence is not None
    x = found.witness
    inside = [case for case in asked.cases if case.holds(x.flatten().tolist())]
    return found.evidence.kind == "witnessed" and any(
        case.is_violated(net(x[None]).double().flatten().tolist()) for case in inside
    )


# ---- against dense grids


@BOTH
@pytest.mark.parametrize("seed", range(count(2, full=4)))
def test_one_row_just_above_and_just_below_the_truth(seed: int, method: Branching[object]) -> None:
    net, low, high = perceptron(seed, 2, 12, 12, 2), [-1.0, -0.5], [1.0, 1.5]
    least = float(dense(net, low, high)[:, 0].min())
    sat = spec(low, high, 2, f"(<= Y_0 {least + 1e-4!r})")
    found = verify(net, sat, methods=[method])
    assert found.answer == "sat"
    assert stands(found, net, sat)
    assert found.gap == 0
    unsat = verify(net, spec(low, high, 2, f"(<= Y_0 {least - 0.01!r})"), methods=[method])
    assert unsat.answer == "unsat"
    assert unsat.evidence is not None
    assert (unsat.evidence.kind, unsat.evidence.dtype) == ("proved", "torch.float64")
    assert any("real arithmetic" in said for said in unsat.evidence.assumptions)


@BOTH
@pytest.mark.parametrize("seed", range(count(2, full=3)))
def test_polytopes_and_choices_of_them(seed: int, method: Branching[object]) -> None:
    """(Y_0 <= a and Y_1 <= b) or (Y_2 >= c), moved from where the grid just fails to where it just holds."""
    net, low, high = perceptron(seed, 2, 10, 10, 3), [-1.0, -1.0], [1.0, 1.0]
    y = dense(net, low, high)
    a, b = float(y[:, 0].quantile(0.3)), float(y[:, 1].quantile(0.3))
    c = float(y[:, 2].max())
    lead = torch.maximum(y[:, 0] - a, y[:, 1] - b).min()  # negative: some point lies in the first polytope
    for shift, answer in ((float(lead) - 0.02, "unsat"), (float(lead) + 1e-3, "sat")):
        asked = spec(
            low, high, 3, f"(or (and (<= Y_0 {a + shift!r}) (<= Y_1 {b + shift!r})) (>= Y_2 {c + 0.02!r}))"
        )
        found = verify(net, asked, methods=[method])
        assert found.answer == answer
        assert answer == "unsat" or stands(found, net, asked)


def test_several_boxes_each_with_its_own_rule() -> None:
    net = perceptron(1, 1, 8, 1)
    left, right = dense(net, [-2.0], [-1.0], 4001).min(), dense(net, [1.0], [2.0], 4001).min()
    boxes = "(or (and (>= X_0 -2) (<= X_0 -1) (<= Y_0 {a!r})) (and (>= X_0 1) (<= X_0 2) (<= Y_0 {b!r})))"
    declared = "(declare-const X_0 Real) (declare-const Y_0 Real)"
    for a, b, answer in (
        (left - 0.01, right - 0.01, "unsat"),
        (left + 1e-4, right - 0.01, "sat"),
        (left - 0.01, right + 1e-4, "sat"),
    ):
        asked = parse(f"{declared} (assert {boxes.format(a=float(a), b=float(b))})")
        found = verify(net, asked)
        assert found.answer == answer
        assert answer == "unsat" or stands(found, net, asked)


@pytest.mark.parametrize("seed", range(count(2, full=4)))
@pytest.mark.usefixtures("cpu_clock")
def test_no_proof_past_a_failure(seed: int) -> None:
    """The forbidden set begins exactly at the smallest value of the grid: a failure by the tightest of margins. Never unsat."""
    net, low, high = perceptron(seed, 2, 16, 16, 2), [-1.0, -1.0], [1.0, 1.0]
    y = dense(net, low, high, 401)
    row = y[:, 0] - y[:, 1]
    for method in METHODS:
        found = verify(
            net,
            spec(low, high, 2, f"(<= (- Y_0 Y_1) {float(row.min()) + 1e-12!r})"),
            methods=[method],
            stop=hf.Stop(seconds=0.7),
        )
        assert found.answer != "unsat"
        assert found.least <= 0


def test_other_activations_are_proved_by_cutting_inputs() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 8), nn.Sigmoid(), nn.Linear(8, 1)).eval()
    net = hf.Network.from_torch(model, shape=(2,))
    most = float(dense(net, [-2.0, -2.0], [2.0, 2.0]).max())
    assert verify(net, spec([-2.0, -2.0], [2.0, 2.0], 1, f"(>= Y_0 {most + 0.02!r})")).answer == "unsat"
    assert verify(net, spec([-2.0, -2.0], [2.0, 2.0], 1, f"(>= Y_0 {most - 1e-3!r})")).answer == "sat"


def test_many_inputs_are_proved_by_deciding_activations() -> None:
    """Thirty inputs: too many to halve. The truth comes from a network whose hidden layer has four neurons, by all their patterns."""
    torch.manual_seed(4)
    hidden, last = nn.Linear(30, 4), nn.Linear(4, 1)
    net = hf.Network.from_torch(nn.Sequential(hidden, nn.ReLU(), last).eval(), shape=(30,))
    truth = _least_by_patterns(hidden, last)
    low, high = [-1.0] * 30, [1.0] * 30
    proved = verify(net, spec(low, high, 1, f"(<= Y_0 {truth - 1e-3!r})"))
    assert proved.answer == "unsat"
    assert proved.evidence is not None
    assert proved.evidence.settings["method"] == "ActivationSplit"
    asked = spec(low, high, 1, f"(<= Y_0 {truth + 1e-3!r})")
    found = verify(net, asked)
    assert found.answer == "sat"
    assert stands(found, net, asked)


def _least_by_patterns(hidden: nn.Linear, last: nn.Linear) -> float:
    """min over the box [-1, 1]^n: for every pattern of the neurons a linear programme."""
    from scipy.optimize import linprog

    w, b = hidden.weight.detach().double().numpy(), hidden.bias.detach().double().numpy()
    v, c = last.weight.detach().double().numpy()[0], last.bias.item()
    best = math.inf
    for pattern in range(2 ** len(b)):
        sign = [1 if pattern >> k & 1 else -1 for k in range(len(b))]
        on = [s > 0 for s in sign]
        cost = sum((v[k] * w[k] for k in range(len(b)) if on[k]), 0 * w[0])
        rows = [-s * row for s, row in zip(sign, w, strict=True)]  # s (w x + b) >= 0
        found = linprog(
            cost,
            A_ub=rows,
            b_ub=[s * shift for s, shift in zip(sign, b, strict=True)],
            bounds=[(-1, 1)] * len(w[0]),
        )
        if found.success:
            best = min(best, found.fun + sum(v[k] * b[k] for k in range(len(b)) if on[k]) + c)
    return float(best)


def test_an_affine_network_of_many_inputs_is_decided_at_once() -> None:
    """Nothing bends, so nothing can be decided: the planes are the network, and several rows together are a linear programme."""
    from scipy.optimize import linprog

    torch.manual_seed(2)
    layer = nn.Linear(30, 2)
    net, low, high = hf.Network.from_torch(layer.eval(), shape=(30,)), [-1.0] * 30, [1.0] * 30
    weight, bias = layer.weight.detach().double(), layer.bias.detach().double()
    alone = float(bias[0] - weight[0].abs().sum())
    columns = torch.cat([weight, -torch.ones(2, 1, dtype=torch.float64)], dim=1).numpy()
    both = float(
        linprog(
            [0.0] * 30 + [1.0], A_ub=columns, b_ub=-bias.numpy(), bounds=[(-1, 1)] * 30 + [(None, None)]
        ).fun
    )
    assert both > alone + 0.1
    for method in (None, [ActivationSplit()]):
        for shift, answer in ((-1e-4, "unsat"), (1e-4, "sat")):
            one = spec(low, high, 2, f"(<= Y_0 {alone + shift!r})")
            two = spec(low, high, 2, f"(<= Y_0 {both + shift!r})", f"(<= Y_1 {both + shift!r})")
            for asked in (one, two):
                found = verify(net, asked, methods=method)
                assert found.answer == answer
                assert found.nodes <= 1
                assert answer == "unsat" or stands(found, net, asked)


def fixed_spec(count: int, least: float) -> Spec:
    """Boxes of one varying input among six, side by side; forbidden is an output of at most `least`."""
    low = [[-1.0 + 2 * i / count, *[0.5] * 5] for i in range(count)]
    text = [f"(declare-const X_{i} Real)" for i in range(6)] + [
        "(declare-const Y_0 Real)",
        "(declare-const Y_1 Real)",
    ]
    cases = []
    for start in low:
        ends = "".join(
            f"(>= X_{i} {value!r})(<= X_{i} {value + (2 / count if i == 0 else 0)!r})"
            for i, value in enumerate(start)
        )
        cases.append(f"(and {ends}(<= Y_0 {least!r}))")
    return parse("\n".join([*text, f"(assert (or {''.join(cases)}))"]))


def test_boxes_in_which_one_input_varies_are_split_with_intervals_and_decided(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    net = perceptron(3, 6, 16, 16, 2)
    line = torch.full((20001, 6), 0.5)
    line[:, 0] = torch.linspace(-1, 1, len(line))
    least = float(net(line)[:, 0].min())
    used: list[bool] = []
    bound = InputSplit.bound

    def noted(self: InputSplit, question: Any, parts: Any) -> Any:
        used.append(self.intervals)
        return bound(self, question, parts)

    monkeypatch.setattr(InputSplit, "bound", noted)
    assert verify(net, fixed_spec(3, least - 1e-3)).answer == "unsat"
    assert used
    assert all(used)
    asked = fixed_spec(3, least + 1e-5)
    found = verify(net, asked)
    assert found.answer == "sat"
    assert stands(found, net, asked)


def test_a_search_takes_no_more_points_than_its_rules_may_fill(monkeypatch: pytest.MonkeyPatch) -> None:
    net = perceptron(3, 2, 8, 2)
    problem = problem_of(net, spec([-1.0, -1.0], [1.0, 1.0], 2, "(or (and (<= Y_0 -9)) (and (<= Y_1 -9)))"))
    inside, rules = problem_box(problem), as_polytopes(problem)
    x = torch.linspace(-1, 1, 600, dtype=torch.float64).reshape(300, 2)
    points = CandidatePoints(x, x, x, torch.zeros(300, dtype=torch.int64))
    counts = []
    for values in (2**24, 7 * rules.matrix[0].numel()):
        monkeypatch.setattr(search, "MOST_RULE_VALUES", values)
        found = search_weakest(
            net, inside, rules, points, RandomStreams.of(problem.keys, 0, x.device), downhill=False
        )
        counts.append([(len(tried), float(tried.min()), float(tried.max())) for tried, _, _ in found])
    assert counts == [[(300, -1.0, 1.0)], [(7, -1.0, 1.0)]]  # the first and the last remain


def test_only_rows_in_doubt_are_evaluated_alone() -> None:
    """A counterexample of several cases is evaluated without other rows, and must fail there too."""
    net = perceptron(3, 6, 16, 16, 2)
    rows: list[int] = []

    class Counting(nn.Module):
        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: Tensor) -> Tensor:
            rows.append(len(x))
            answer: Tensor = self.model(x)
            return answer

    other = net.around(Counting(net.module))
    problem = problem_of(other, fixed_spec(8, -1e3))
    rows.clear()
    replay(problem, problem.region.centre, None)
    assert rows == [8]  # far from failing: nobody is evaluated alone
    score = net(problem.region.centre.float())[:, 0].sort().values
    problem = problem_of(other, fixed_spec(8, float(score[2:4].mean())))
    rows.clear()
    replay(problem, problem.region.centre, None)
    assert rows == [8, 1, 1, 1]


# ---- what it may not claim


@pytest.mark.usefixtures("cpu_clock")
def test_a_judge_that_disagrees_is_heard() -> None:
    net = perceptron(0, 2, 8, 2)
    least = float(dense(net, [-1.0, -1.0], [1.0, 1.0])[:, 0].min())
    asked = spec([-1.0, -1.0], [1.0, 1.0], 2, f"(<= Y_0 {least + 1e-3!r})")
    assert verify(net, asked, judges=[net]).answer == "sat"
    found = verify(net, asked, judges=[_never(net)], stop=hf.Stop(seconds=0.5))
    assert found.answer == "timeout"
    assert found.lowest <= 0  # it was met, and not believed


@BOTH
@pytest.mark.parametrize("lie", ["all is settled", "what waits is better than it is"])
def test_a_bound_that_lies_is_a_contradiction(
    monkeypatch: pytest.MonkeyPatch, method: Branching[Any], lie: str
) -> None:
    """Nothing was met before the proof, which is complete at once, or claims too much of what is left; then a counterexample is found."""
    look = type(method).look

    def lying(self: Branching[Any], *arguments: Any) -> Any:
        left, points = look(self, *arguments)
        if lie == "all is settled":
            return batch.take(left, torch.zeros_like(left.bound, dtype=torch.bool)), points
        return replace(left, bound=torch.full_like(left.bound, -1e-3)), points

    net, low, high = perceptron(0, 2, 8, 2), [-1.0, -1.0], [1.0, 1.0]
    value = dense(net, low, high)[:, 0]
    centre = float(net(torch.zeros(1, 2))[0, 0])
    asked = spec(low, high, 2, f"(<= Y_0 {(float(value.min()) + centre) / 2!r})")
    alone = [BranchAndBound(method)]  # without a search before it
    assert verify(net, asked, methods=alone).answer == "sat"
    monkeypatch.setattr(type(method), "look", lying)
    said = r"input 0/0: BranchAndBound \[.*method=.*\] says at least .* \(proved\), BranchAndBound .* \(witnessed\), at the witness \("
    with pytest.raises(hf.Contradiction, match=said):
        verify(net, asked, methods=alone)


def test_a_proof_and_the_network_exclude_each_other_whatever_a_judge_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No judge believes the counterexample, but the network gives it in both its arithmetics: a proof that it cannot happen is wrong."""
    net = perceptron(0, 2, 8, 2)
    least = float(dense(net, [-1.0, -1.0], [1.0, 1.0])[:, 0].min())
    asked = spec([-1.0, -1.0], [1.0, 1.0], 2, f"(<= Y_0 {least + 1e-3!r})")
    look = InputSplit.look

    def lying(self: InputSplit, *arguments: Any) -> Any:
        left, points = look(self, *arguments)
        return batch.take(left, torch.zeros_like(left.bound, dtype=torch.bool)), points

    monkeypatch.setattr(InputSplit, "look", lying)
    with pytest.raises(hf.Contradiction, match="says at most -"):
        verify(net, asked, judges=[_never(net)])


def test_a_network_that_changes_meanwhile_is_not_believed() -> None:
    """After the proof it is asked again: what it was is not what it is."""
    first, second = perceptron(0, 2, 8, 2), perceptron(0, 2, 8, 2)
    least = float(dense(first, [-1.0, -1.0], [1.0, 1.0])[:, 0].min())

    class Meddling(InputSplit):
        def step(self, *arguments: Any) -> Any:
            found = super().step(*arguments)
            with torch.no_grad():
                for net in (first, second):
                    net.module.model[-1].bias.add_(0.01)  # type: ignore[index, union-attr]
            return found

    with pytest.raises(hf.errors.BadInput, match="answers differently now than before the proofs"):
        verify(first, spec([-1.0, -1.0], [1.0, 1.0], 2, f"(<= Y_0 {least - 0.01!r})"), methods=[Meddling()])
    with pytest.raises(hf.errors.BadInput, match="answers differently now than before the proofs"):
        hf.reach(
            second,
            (-torch.ones(2), torch.ones(2)),
            tolerance=0.05,
            methods=[BranchAndBound(Meddling(), 0.05)],
        )


def test_an_interrupted_search_keeps_its_first_bounds() -> None:
    class Interrupted(InputSplit):
        def look(self, *arguments: object) -> None:  # type: ignore[override]
            raise KeyboardInterrupt

    net = perceptron(0, 2, 8, 2)
    least = float(dense(net, [-1.0, -1.0], [1.0, 1.0])[:, 0].min())
    found = verify(
        net, spec([-1.0, -1.0], [1.0, 1.0], 2, f"(<= Y_0 {least - 0.001!r})"), methods=[Interrupted()]
    )
    assert (found.answer, found.note) == ("unknown", "interrupted")
    assert found.least <= 0.001 < math.inf
    assert found.least > -math.inf


@pytest.mark.usefixtures("still_clock")
def test_a_budget_that_runs_out_is_a_timeout_and_the_gap_is_told() -> None:
    class Slow(InputSplit):
        def step(self, *arguments: Any) -> Any:
            found = super().step(*arguments)
            time.sleep(0.6)
            return found

    net = perceptron(0, 3, 30, 30, 2)
    least = float(dense(net, [-2.0] * 3, [2.0] * 3, 41)[:, 0].min())
    asked = spec([-2.0] * 3, [2.0] * 3, 2, f"(<= Y_0 {least - 0.05!r})")
    none = verify(net, asked, stop=hf.Stop(seconds=0))
    assert (none.answer, none.least, none.nodes) == ("timeout", -math.inf, 0)
    some = verify(net, asked, methods=[Slow(batch=1)], stop=hf.Stop(seconds=1))
    assert (some.answer, some.evidence) == ("timeout", None)
    assert 1 <= some.nodes <= 2
    assert -math.inf < some.least <= 0.05 <= some.lowest + 0.01
    assert some.gap == some.lowest - some.least
    assert some.seconds < 5


@pytest.mark.usefixtures("cpu_clock")
def test_memory_is_never_filled() -> None:
    """A failure that no judge believes: the search would go on for ever, and ends when too many parts wait."""
    net = perceptron(0, 2, 8, 2)
    least = float(dense(net, [-1.0, -1.0], [1.0, 1.0])[:, 0].median())
    asked = spec([-1.0, -1.0], [1.0, 1.0], 2, f"(<= Y_0 {least!r})", "(>= Y_1 -100)")
    found = verify(
        net, asked, judges=[_never(net)], methods=[InputSplit(batch=32, waiting=16)], stop=hf.Stop(seconds=60)
    )
    assert found.answer == "unknown"
    assert "more than the memory limit allows" in found.note


def _never(net: hf.Network) -> hf.Network:
    return hf.Network.from_callable(lambda x: net(torch.from_numpy(x)).numpy() + 1e6, shape=(2,))


@pytest.mark.parametrize("seed", range(2))
def test_layers_without_a_bound_can_still_be_refuted(seed: int) -> None:
    class Waving(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.sinc(3 * x)

    net = hf.Network.from_torch(nn.Sequential(nn.Linear(2, 4), Waving(), nn.Linear(4, 1)).eval(), shape=(2,))
    most = float(dense(net, [-1.0, -1.0], [1.0, 1.0]).max())
    assert (
        verify(net, spec([-1.0, -1.0], [1.0, 1.0], 1, f"(>= Y_0 {most - 1e-3!r})"), seed=seed).answer == "sat"
    )
    found = verify(net, spec([-1.0, -1.0], [1.0, 1.0], 1, f"(>= Y_0 {most + 0.1!r})"), seed=seed)
    assert found.answer == "unknown"
    assert "no bound" in found.note


def test_a_black_box_is_refuted_or_unknown() -> None:
    net = hf.Network.from_callable(lambda x: x.sum(1, keepdims=True), shape=(2,))
    assert verify(net, spec([-1.0, -1.0], [1.0, 1.0], 1, "(>= Y_0 1.9)")).answer == "sat"
    assert verify(net, spec([-1.0, -1.0], [1.0, 1.0], 1, "(>= Y_0 2.1)")).answer == "unknown"


# ---- ends of intervals


def identity() -> hf.Network:
    linear = nn.Linear(1, 1)
    linear.load_state_dict({"weight": torch.ones(1, 1), "bias": torch.zeros(1)})
    return hf.Network.from_torch(linear.eval(), shape=(1,))


@pytest.mark.usefixtures("cpu_clock")
def test_touching_counts_unless_it_is_excluded() -> None:
    net = identity()
    assert verify(net, spec([0.0], [1.0], 1, "(<= Y_0 0)")).answer == "sat"
    for excluded in (spec([0.0], [1.0], 1, "(< Y_0 0)"), spec([0.0], [1.0], 1, "(<= Y_0 0)", "(> X_0 0)")):
        found = verify(net, excluded, stop=hf.Stop(seconds=0.5))
        assert found.answer in (
            "unknown",
            "timeout",
        )  # the smallest value is the bound itself, which no closed bound can exclude


def test_numbers_between_which_float32_has_none() -> None:
    """X_0 is one tenth, exactly: the network is asked about the nearest number it knows, its twin about the nearest of float64."""
    net = identity()
    found = verify(net, spec([0.1], [0.1], 1, "(>= Y_0 0.05)"))
    assert found.answer == "sat"
    assert found.witness is not None
    assert float(found.witness) == 0.1
    assert found.evidence is not None
    assert any("no float64 number" in said for said in found.evidence.assumptions)
    assert verify(net, spec([0.1], [0.1], 1, "(>= Y_0 0.11)")).answer == "unsat"


def doubled(net: hf.Network) -> hf.Network:
    """In float64, which has numbers so close to the ends that the ends' own rounding decides."""
    twin = net.double(torch.zeros(1, 1))
    assert twin is not None
    return twin


@pytest.mark.usefixtures("cpu_clock")
@pytest.mark.parametrize(
    ("box", "rule"),
    [
        (
            "(>= X_0 0.3) (<= X_0 1)",
            "(< Y_0 0.3)",
        ),  # float64's 0.3 is below three tenths, so it is no input of this file
        ("(>= X_0 0.3) (<= X_0 0.3)", "(< Y_0 0.3)"),  # nor is it three tenths
        ("(>= X_0 0.1) (<= X_0 0.1)", "(> Y_0 0.1)"),  # float64's 0.1 is above one tenth
        ("(>= X_0 0) (<= X_0 0.1)", "(> Y_0 0.1)"),
        ("(>= X_0 0) (<= X_0 0.1)", "(> (* 0.1 Y_0) 0.01)"),
        ("(> X_0 0.3) (<= X_0 1)", "(<= (+ (* 0.1 Y_0) (* 0.2 Y_0)) 0.09)"),  # 0.3 * 0.3, as it is written
    ],
)
def test_no_counterexample_by_the_rounding_of_decimals(box: str, rule: str) -> None:
    ends = "".join(f"(assert {end})" for end in box.replace(") (", ")|(").split("|"))
    asked = parse(f"(declare-const X_0 Real) (declare-const Y_0 Real) {ends} (assert {rule})")
    for net in (identity(), doubled(identity())):
        assert verify(net, asked, stop=hf.Stop(seconds=0.1)).answer in (
            "unknown",
            "timeout",
        )  # it touches, so nothing closed excludes it


def test_a_counterexample_in_float32_lies_between_the_ends_as_written() -> None:
    """The ends are decimals of float32 numbers: the one that its decimals round up is no input of the file any more."""
    end = float(torch.tensor(0.3))  # 0.300000011920928955..., of which the decimals below are a little more
    net = identity()
    for low, high, answer in ((end, 1.0, "sat"), (0.0, end, "sat")):
        asked = spec([low], [high], 1, f"(>= Y_0 {low!r})", f"(<= Y_0 {high!r})")
        found = verify(net, asked)
        assert found.answer == answer
        assert stands(found, net, asked)
        assert found.witness is not None
        assert torch.equal(found.witness.float().double(), found.witness)
    found = verify(net, spec([0.0], [end], 1, f"(>= Y_0 {end - 1e-12!r})"))
    assert found.answer == "sat"
    assert float(found.witness) == end  # type: ignore[arg-type]


def test_what_rounding_factors_misses_is_charged() -> None:
    """Factors of a ratio that float64 cannot write: what is proved holds for every output that the rules as written forbid."""
    net = perceptron(3, 2, 6, 2)
    row = "(+ (* 1.0000000000000000000001 Y_0) (* 3 Y_1))"
    asked = spec([-1.0, -1.0], [1.0, 1.0], 2, f"(<= {row} -1e-3)")
    assert not asked.exact
    problem = problem_of(net, asked)
    region = Box.between(*problem.region.enclosing_box())
    graph = prepare_graph(net, problem.region.numbers(net.dtype))  # type: ignore[attr-defined]
    rules = problem.property.charge_rounding(graph, region)  # type: ignore[attr-defined]
    assert rules is not None
    least = torch.stack(
        [propagate(graph, region).lower[graph.output], propagate(graph, region).upper[graph.output]]
    )
    factors, bound = (
        asked.cases[0].polytopes[0][0].scaled.factors,
        asked.cases[0].polytopes[0][0].scaled.bound,
    )
    for choice in range(4):
        y = [Fraction(float(least[choice >> i & 1].flatten()[i])) for i in range(2)]
        exact = sum((f * y[i] for i, f in factors), Fraction(0)) - bound
        taken = sum(
            (Fraction(float(rules.matrix[0, 0, 0, i])) * y[i] for i in range(2)),
            Fraction(float(rules.offset)),
        )
        assert taken <= exact
    value = dense(net, [-1.0, -1.0], [1.0, 1.0]) @ torch.tensor([1.0, 3.0], dtype=torch.float64)
    for bound_, answer in ((float(value.min()) - 0.01, "unsat"), (float(value.min()) + 1e-3, "sat")):
        found = verify(net, spec([-1.0, -1.0], [1.0, 1.0], 2, f"(<= {row} {bound_!r})"))
        assert found.answer == answer


def test_a_property_without_outputs_or_without_inputs() -> None:
    net = identity()
    assert verify(net, spec([0.0], [1.0], 1)).answer == "sat"  # any input will do
    nobody = verify(net, spec([0.0], [1.0], 1, "(<= 1 0)"))
    assert nobody.answer == "unsat"
    assert nobody.evidence is not None


def test_questions_that_do_not_fit() -> None:
    net = perceptron(0, 2, 4, 2)
    with pytest.raises(hf.errors.BadInput, match="3 inputs, but Sequential takes 2"):
        verify(net, spec([0.0] * 3, [1.0] * 3, 2, "(<= Y_0 0)"))
    with pytest.raises(hf.errors.BadInput, match="the matrix has shape"):
        verify(net, spec([0.0] * 2, [1.0] * 2, 3, "(<= Y_0 0)"))
    with pytest.raises(hf.errors.BadInput, match="seconds only"):
        verify(net, spec([0.0] * 2, [1.0] * 2, 2, "(<= Y_0 0)"), stop=hf.Stop(queries=5))
    matrix, offset = torch.zeros(1, 2, 3, 2), torch.zeros(1, 2, 3)
    Avoid(matrix, offset).check(1, 2)
    for wrong in (
        Avoid(matrix[:, 0], offset),
        Avoid(matrix, offset[0]),
        Avoid(matrix / 0, offset),
        Avoid(matrix[:, :0], offset[:, :0]),
    ):
        with pytest.raises(hf.errors.BadInput, match="polytopes: "):
            wrong.check(1, 2)


# ---- the competition's own


@pytest.mark.usefixtures("cpu_clock")
@pytest.mark.parametrize(
    ("network", "prop"),
    some(
        [
            ("1_1", "prop_1"),
            ("2_9", "prop_8"),
            ("4_5", "prop_10"),
            ("1_7", "prop_3"),
            ("3_2", "prop_2"),
            ("2_1", "prop_4"),
        ],
        [("2_9", "prop_8"), ("1_7", "prop_3"), ("2_1", "prop_4")],  # sat, sat, unsat
    ),
)
def test_acas_xu(shared_data: Path, network: str, prop: str) -> None:
    folder = shared_data / "acasxu"
    if not folder.is_dir():
        pytest.skip(f"{folder} does not exist")
    name = f"ACASXU_run2a_{network}_batch_2000"
    net = hf.Network.from_onnx(folder / "onnx" / f"{name}.onnx.gz")
    asked = read_vnnlib(folder / "vnnlib" / f"{prop}.vnnlib.gz")
    found = verify(net, asked, stop=hf.Stop(seconds=60))
    assert found.answer == read_key(folder / "expected.csv")[name, prop]
    assert found.answer == "unsat" or stands(found, net, asked)


@pytest.mark.usefixtures("cpu_clock")
@pytest.mark.parametrize(
    ("network", "prop"),
    some(
        [("256x2", "prop_4_0.03"), ("256x2", "prop_2_0.03"), ("256x4", "prop_0_0.03")],
        [("256x2", "prop_2_0.03"), ("256x4", "prop_0_0.03")],
    ),
)
def test_mnist_fc(shared_data: Path, network: str, prop: str) -> None:
    folder = shared_data / "vnncomp" / "mnist_fc"
    if not folder.is_dir():
        pytest.skip(f"{folder} does not exist")
    net = hf.Network.from_onnx(folder / "onnx" / f"mnist-net_{network}.onnx.gz")
    asked = read_vnnlib(folder / "vnnlib" / f"{prop}.vnnlib.gz")
    found = verify(net, asked, stop=hf.Stop(seconds=60))
    assert found.answer == read_key(folder / "expected.csv")[f"mnist-net_{network}", prop]
    assert found.answer == "unsat" or stands(found, net, asked)


def test_lists_of_instances(tmp_path: Path) -> None:
    for name in ("a.onnx", "b.vnnlib.gz"):
        (tmp_path / name).touch()
    (tmp_path / "instances.csv").write_text("a.onnx,b.vnnlib,116\n\na.onnx,b.vnnlib\n")
    first, second = read_instances(tmp_path)
    assert (first.name, first.seconds, first.spec.name, second.seconds) == (
        ("a", "b"),
        116.0,
        "b.vnnlib.gz",
        None,
    )
    for text, words in (
        ("a.onnx\n", r"csv:1: .*1 columns"),
        ("a.onnx,b.vnnlib,soon", "csv:1: 'soon'"),
        ("\n", "no line"),
    ):
        (tmp_path / "instances.csv").write_text(text)
        with pytest.raises(hf.errors.BadInput, match=words):
            read_instances(tmp_path / "instances.csv")
    (tmp_path / "instances.csv").write_text("a.onnx,b.vnnlib\nc.onnx,b.vnnlib\n")
    with pytest.raises(hf.errors.UnreadableFile, match=r"csv:2: c\.onnx does not exist"):
        read_instances(tmp_path)
    (tmp_path / "key.csv").write_text("property,expected,network\nx/b.vnnlib,sat,y/a.onnx\n")
    assert read_key(tmp_path / "key.csv") == {("a", "b"): "sat"}
    (tmp_path / "key.csv").write_text("a,b,sat\n")
    with pytest.raises(hf.errors.BadInput, match="header line with the columns"):
        read_key(tmp_path / "key.csv")


def test_a_case_without_a_record_is_never_proved() -> None:
    """A worker that ends before it has told anything, or a run that is killed, leaves records of some cases or of none."""
    proof = Evidence("proved", "test")
    settled = Bracket(Bound(0.5, proof), trivial_bound(math.inf))
    first, second = (Record(Key(0, case), settled, "finished", 0.0, 0, goal="worst") for case in range(2))
    assert verdict([first, second], cases=2).answer == "unsat"
    assert verdict([first], cases=2).answer != "unsat"
    assert verdict([], cases=2).answer != "unsat"
    assert verdict([]).answer != "unsat"
    assert verdict([], cases=0).answer == "unsat"
    assert verdict([first, second]).answer == "unsat"
    assert verdict([replace(first, status="interrupted")]).answer != "unsat"


def test_a_black_box_is_searched_again_and_again() -> None:
    """Only inputs in a square of side 3/100 are forbidden, and nothing leads there: a first round of 2,048 points misses it."""
    calls = []

    def answer(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        calls.append(len(x))
        inside = (np.abs(x - 0.777) < 0.015).all(1)
        return np.where(inside, -1.0, 1.0)[:, None]

    net = hf.Network.from_callable(answer, shape=(2,))
    found = verify(net, spec([0.0, 0.0], [1.0, 1.0], 1, "(<= Y_0 0.0)"))
    assert found.answer == "sat"
    assert len([count for count in calls if count > 1000]) > 1


BOX = "(declare-const X_0 Real)(assert (>= X_0 0))(declare-const Y_0 Real)(assert (<= Y_0 -1))\n"
FIRST = BOX + "(assert (<= X_0 1))\n" * 2000
SECOND = (
    "(vnnlib-version <2.0>)(declare-network f (declare-input X float32 [1,1]) (declare-output Y float32 [1,1]))\n"
    "(assert (>= X[0,0] 0))(assert (<= Y[0,0] -1))\n" + "(assert (<= X[0,0] 1))\n" * 2000
)


@pytest.mark.parametrize(
    ("text", "where", "step"),
    [
        (FIRST, (SpecReader, "read_token"), 0.001),
        (SECOND, (SpecReader, "read_token"), 0.001),
        (FIRST, (vnnlib._Alternative, "take"), 0.004),
    ],
)
def test_reading_a_property_ends_with_the_budget(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    still_clock: TestClock,
    text: str,
    where: tuple[type, str],
    step: float,
) -> None:
    """The first two read more than 6 s of tokens; the third spends 8 s on the conditions that were read."""
    work = getattr(*where)

    def slow(*arguments: Any) -> Any:
        still_clock.advance(step)
        return work(*arguments)

    monkeypatch.setattr(*where, slow)
    monkeypatch.setattr(time_limit, "ITEMS_PER_CHECK", 100)
    file, net = tmp_path / "large.vnnlib", perceptron(0, 1, 4, 1)
    file.write_text(text)
    for budget in (0.001, 2.0):
        for ask in (hf.verify, verify):
            before = time.monotonic()
            found = ask(net, file, stop=hf.Stop(seconds=budget))
            assert (found.answer, found.note, found.evidence) == ("timeout", UNREAD, None)
            assert (found.least, found.lowest, found.nodes) == (-math.inf, math.inf, 0)
            assert budget <= found.seconds <= time.monotonic() - before <= budget + 1
    before = time.monotonic()
    assert len(read_vnnlib(file).cases) == 1  # Without a budget everything is read.
    assert time.monotonic() - before > 6
    with time_limit.within(time.monotonic() + 2.0):
        assert len(read_vnnlib(file).cases) == 1  # Nobody said that it can do without the property.
