"""hf.reach against the truth: networks in closed form, dense grids, attacks that try to cross what was proved; and it ends when told to."""

import math
import signal
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import holdfast as hf
from holdfast import batch
from holdfast.bounding.branching.input_split import InputSplit
from holdfast.bounding.branching.relu_split import ActivationSplit
from holdfast.bounding.branching.subproblem_queue import Branching
from holdfast.bounding.graph.graph import build
from holdfast.bounding.zonotope import Forms
from holdfast.region import Box
from holdfast.verification import BranchAndBound
from holdfast.verification.branch_and_bound import BoxTree
from holdfast.verification.ranges import Range
from holdfast.verification.reach import reach
from sizes import count

SQUARE = torch.tensor([-1.0, -1.0]), torch.tensor([1.0, 1.0])
BOTH = pytest.mark.parametrize(
    "method", [InputSplit(batch=64), InputSplit(batch=16, walks=False), ActivationSplit(batch=32)], ids=str
)


def perceptron(
    seed: int, *sizes: int, bend: type[nn.Module] = nn.ReLU, last: nn.Module | None = None
) -> hf.Network:
    torch.manual_seed(seed)
    layers = [part for a, b in pairwise(sizes) for part in (nn.Linear(a, b), bend())][:-1]
    model = nn.Sequential(*layers, *([] if last is None else [last])).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    return hf.Network.from_torch(model, shape=(sizes[0],))


def values(net: hf.Network, x: Tensor) -> Tensor:
    twin = net.double(x[:1].float())
    assert twin is not None
    return twin(x.double())


def dense(net: hf.Network, low: Tensor, high: Tensor, steps: int = 301) -> Tensor:
    axes = [
        torch.linspace(float(a), float(b), steps, dtype=torch.float64) for a, b in zip(low, high, strict=True)
    ]
    return values(net, torch.cartesian_prod(*axes).reshape(-1, len(low)))


def honest(found: Range, net: hf.Network, row: Tensor, low: Tensor, high: Tensor) -> None:
    """The witnesses lie in the box and say what is claimed; the ends carry the right evidence."""
    for at, bound, end in (
        (found.low_at, found.minimum.upper, found.minimum.lower),
        (found.high_at, found.maximum.lower, found.maximum.upper),
    ):
        assert bool(((at >= low.double()) & (at <= high.double())).all())
        assert float(values(net, at[None])[0] @ row.double()) == pytest.approx(bound.value, abs=1e-9)
        assert bound.evidence.kind == "witnessed"
        assert bound.evidence.dtype == "torch.float64"
        assert end.evidence.kind == "proved"
        assert bound.evidence.witness is not None
        assert torch.equal(bound.evidence.witness, at)
        assert bound.executed == pytest.approx(bound.value, abs=1e-4)


# ---- against the truth


def test_a_linear_network_is_known_in_closed_form() -> None:
    torch.manual_seed(1)
    linear = nn.Linear(3, 2)
    net = hf.Network.from_torch(linear.eval(), shape=(3,))
    low, high = torch.tensor([-1.0, 0.0, 2.0]), torch.tensor([1.0, 0.5, 2.0])
    for found in reach(net, (low, high), tolerance=1e-6):
        weight, bias = (
            linear.weight[found.output].detach().double(),
            float(linear.bias[found.output].detach()),
        )
        middle, half = (low + high).double() / 2, (high - low).double() / 2
        least, most = (float(weight @ middle + side * (weight.abs() @ half)) + bias for side in (-1, 1))
        assert found.minimum.lower.value <= least <= found.minimum.upper.value + 1e-12
        assert found.maximum.lower.value - 1e-12 <= most <= found.maximum.upper.value
        assert found.closed
        assert found.gap <= 1e-6
        assert found.width == pytest.approx(most - least, abs=3e-6)
        honest(found, net, torch.eye(2)[found.output], low, high)


def test_a_linear_network_of_many_inputs_is_known_at_once() -> None:
    """Also where the search before the proof finds nothing: its planes say where the ends are."""
    linear = nn.Linear(40, 1)
    net = hf.Network.from_torch(linear.eval(), shape=(40,))
    weight, bias = linear.weight.detach().double(), float(linear.bias.detach())
    half = float(weight.abs().sum())
    for methods in (None, [BranchAndBound(gap=1e-6)]):
        (found,) = reach(
            net, (torch.full((40,), -1.0), torch.full((40,), 1.0)), tolerance=1e-6, methods=methods
        )
        assert found.closed
        assert found.nodes == 0  # the first bounds are exact
        assert found.minimum.lower.value <= bias - half <= found.minimum.upper.value + 1e-12
        assert found.maximum.lower.value - 1e-12 <= bias + half <= found.maximum.upper.value


@BOTH
@pytest.mark.parametrize("seed", range(count(1, full=3)))
def test_relu_networks_against_a_grid(method: Branching[Any], seed: int) -> None:
    net = perceptron(seed, 2, 6, 6, 3)
    seen = dense(net, *SQUARE)
    rows, tolerance = torch.tensor([[1.0, 0.0, 0.0], [1.0, -1.0, 0.5]]), 5e-3
    for found in reach(net, SQUARE, rows=rows, tolerance=tolerance, methods=[method], seed=seed):
        value = seen @ rows[found.output].double()
        assert found.minimum.lower.value <= float(value.min())
        assert found.maximum.upper.value >= float(value.max())
        assert found.minimum.upper.value <= float(value.min()) + tolerance
        assert found.maximum.lower.value >= float(value.max()) - tolerance
        assert found.closed, found
        honest(found, net, rows[found.output], *SQUARE)


@pytest.mark.parametrize("bend", [nn.Tanh, nn.Sigmoid, nn.GELU])
def test_smooth_networks_against_a_grid(bend: type[nn.Module]) -> None:
    net = perceptron(3, 2, 12, 12, 1, bend=bend)
    value = dense(net, *SQUARE)
    (found,) = reach(net, SQUARE, tolerance=5e-3)
    assert found.minimum.lower.value <= float(value.min()) <= found.minimum.lower.value + 6e-3
    assert found.maximum.upper.value >= float(value.max()) >= found.maximum.upper.value - 6e-3
    assert found.closed


@pytest.mark.usefixtures("cpu_clock")
def test_class_probabilities() -> None:
    net = perceptron(0, 2, 6, 3, last=nn.Softmax(-1))
    value = dense(net, *SQUARE)
    for found in reach(net, SQUARE, tolerance=1e-2, stop=hf.Stop(seconds=20)):
        assert found.minimum.lower.value <= float(value[:, found.output].min())
        assert found.maximum.upper.value >= float(value[:, found.output].max())
        assert found.closed, found


@pytest.mark.usefixtures("cpu_clock")
def test_many_inputs_are_split_by_activations() -> None:
    net = perceptron(5, 30, 8, 8, 1)
    low, high = torch.full((30,), -0.2), torch.full((30,), 0.2)
    found = reach(net, (low, high), tolerance=0.02, stop=hf.Stop(seconds=20))
    settings = found[0].minimum.lower.evidence.settings
    assert settings["method"] == "ActivationSplit"
    x = low + torch.rand(20000, 30) * (high - low)
    x[:10000] = torch.where(x[:10000] > 0, high, low)
    attacked = values(net, x)
    for one in found:
        assert one.closed, one
        assert one.minimum.lower.value <= float(attacked[:, one.output].min())
        assert one.maximum.upper.value >= float(attacked[:, one.output].max())
        honest(one, net, torch.ones(1), low, high)


@pytest.mark.usefixtures("cpu_clock")
@pytest.mark.parametrize("seed", range(count(2, full=4)))
def test_no_attack_crosses_what_is_proved(seed: int) -> None:
    """Random points, corners, and Adam from the best of them, in float64."""
    net = perceptron(seed, 4, 16, 16, 1, bend=[nn.ReLU, nn.Tanh][seed % 2])
    low, high = torch.full((4,), -1.0), torch.full((4,), 1.0)
    (found,) = reach(net, (low, high), tolerance=0.05, stop=hf.Stop(seconds=4), seed=seed)
    twin = net.double(low[None])
    assert twin is not None
    corners = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0])] * 4).double()
    start = torch.cat([corners, 2 * torch.rand(4000, 4).double() - 1])
    for sign, proved in ((1.0, found.minimum.lower.value), (-1.0, -found.maximum.upper.value)):
        x = start[(sign * twin(start)[:, 0]).topk(50, largest=False).indices].clone().requires_grad_()
        climb = torch.optim.Adam([x], lr=0.02)
        for _ in range(60):
            value = sign * twin.module(x)[:, 0]
            assert float(value.detach().min()) >= proved - 1e-9
            climb.zero_grad()
            value.sum().backward()
            climb.step()
            with torch.no_grad():
                x.clamp_(-1, 1)


def test_a_batch_of_boxes_and_chosen_outputs() -> None:
    net = perceptron(0, 2, 8, 3)
    lower = torch.tensor([[-1.0, -1.0], [0.0, 0.0], [0.3, 0.7]])
    upper = torch.tensor([[1.0, 1.0], [0.5, 0.5], [0.3, 0.7]])
    found = reach(net, Box.between(lower, upper), [2, 0], tolerance=1e-3)
    assert [(r.box, r.output) for r in found] == [(b, o) for b in range(3) for o in (2, 0)]
    for one in found:
        (alone,) = reach(net, (lower[one.box], upper[one.box]), one.output, tolerance=1e-3)
        assert one.closed
        assert one.minimum.lower.value == pytest.approx(alone.minimum.lower.value, abs=2.1e-3)
        assert one.maximum.upper.value == pytest.approx(alone.maximum.upper.value, abs=2.1e-3)
    at = values(net, lower[2:])[0]
    assert found[4].minimum.upper.value == pytest.approx(float(at[2]), abs=1e-7)
    assert found[4].width <= 2.1e-3


def test_a_box_between_two_numbers_of_float32() -> None:
    """No float32 number lies inside: the witness must, in float64."""
    net = perceptron(0, 1, 4, 1)
    low, high = (
        torch.tensor([0.1 + 1e-12], dtype=torch.float64),
        torch.tensor([0.1 + 2e-12], dtype=torch.float64),
    )
    (found,) = reach(net, (low, high), tolerance=1e-9)
    assert found.closed
    honest(found, net, torch.ones(1), low, high)


def test_published_networks(shared_data: Path) -> None:
    """DeepQuant's ReLU-NN-0, whose range the paper's tools only estimate."""
    file = shared_data / "deepquant_nets" / "relu_nn_0.npz"
    if not file.is_file():
        pytest.skip(f"{file} does not exist")
    with np.load(file, allow_pickle=False) as arrays:
        model = nn.Sequential(nn.Linear(2, 100), nn.ReLU(), nn.Linear(100, 1)).eval()
        names = {"weight": "W", "bias": "b"}
        model.load_state_dict(
            {
                f"{2 * k}.{name}": torch.from_numpy(arrays[f"{short}{k}"])
                for k in (0, 1)
                for name, short in names.items()
            }
        )
    net = hf.Network.from_torch(model, shape=(2,))
    low, high = torch.zeros(2), torch.full((2,), 10.0)
    (found,) = reach(net, (low, high), tolerance=1e-2)
    value = dense(net, low, high, 401)
    assert found.closed
    assert found.minimum.lower.value <= float(value.min()) <= found.minimum.lower.value + 0.011
    assert found.maximum.upper.value >= float(value.max()) >= found.maximum.upper.value - 0.011


def test_neurons_that_are_off_change_nothing() -> None:
    """Forms leave out what stays still in all boxes; a value that is no number must still spoil the bound."""
    net = perceptron(0, 2, 20, 20, 1)
    with torch.no_grad():
        for layer in net.module.model[:4:2]:  # type: ignore[index, union-attr]
            layer.bias[:16] = -50.0
    value = dense(net, *SQUARE)
    (found,) = reach(net, SQUARE, tolerance=1e-3, methods=[InputSplit(batch=8, walks=False)])
    assert found.closed
    assert found.minimum.lower.value <= float(value.min()) <= found.minimum.lower.value + 2e-3
    assert found.maximum.upper.value >= float(value.max()) >= found.maximum.upper.value - 2e-3
    graph = build(net, torch.zeros(1, 2))
    forms = Forms.over(
        graph.entry,
        torch.tensor([[0.0, torch.nan]], dtype=torch.float64),
        torch.ones((1, 2), dtype=torch.float64),
    )
    forms.affine(graph.nodes[1])  # type: ignore[arg-type]
    assert bool(
        forms.of[graph.nodes[1]].generators.isnan().any(1).all()
    )  # what is no number must not get lost


# ---- at any time


@pytest.mark.usefixtures("cpu_clock")
def test_it_ends_when_the_time_is_up_with_what_holds() -> None:
    net = perceptron(0, 5, 40, 40, 1, bend=nn.Tanh)
    low, high = torch.full((5,), -3.0), torch.full((5,), 3.0)
    began = time.monotonic()
    (found,) = reach(net, (low, high), tolerance=1e-6, stop=hf.Stop(seconds=2))
    assert time.monotonic() - began < 12
    assert not found.closed
    assert found.note == "the time ran out"
    assert (
        -math.inf
        < found.minimum.lower.value
        < found.minimum.upper.value
        <= found.maximum.lower.value
        < found.maximum.upper.value
        < math.inf
    )
    value = values(net, low + torch.rand(20000, 5) * (high - low))
    assert found.minimum.lower.value <= float(value.min())
    assert found.maximum.upper.value >= float(value.max())


def test_no_time_at_all() -> None:
    (found,) = reach(perceptron(0, 2, 4, 1), SQUARE, stop=hf.Stop(seconds=0))
    assert math.isinf(found.gap)
    assert found.note == "the time ran out"
    assert not found.closed


def test_more_time_never_loses(monkeypatch: pytest.MonkeyPatch) -> None:
    """After every batch of parts the proved ends are right, and they only rise."""
    net = perceptron(7, 2, 16, 16, 1)
    least, most = (float(f(dense(net, *SQUARE))) for f in (torch.min, torch.max))
    seen: list[Tensor] = []
    concluded = BoxTree.conclude

    def watched(self: BoxTree, done: Tensor) -> BoxTree:
        after = concluded(self, done)
        seen.append(after.proved.clone())
        return after

    monkeypatch.setattr(BoxTree, "conclude", watched)
    reach(net, SQUARE, tolerance=1e-4, methods=[InputSplit(batch=4)])
    for ends, truth in zip(torch.stack(seen).T.tolist(), (least, -most), strict=True):
        assert len(set(ends)) > 5
        assert all(b >= a for a, b in pairwise(ends))
        assert ends[-1] <= truth


def test_a_bad_first_search_is_made_good() -> None:
    """Thresholds begin far too high when the search before the proofs finds nothing; they must fall, and bounds with them."""
    for method in (InputSplit(batch=4), ActivationSplit(batch=16)):
        net = perceptron(2, 2, 6, 6, 1)
        value = dense(net, *SQUARE)
        (found,) = reach(net, SQUARE, tolerance=1e-2, methods=[BranchAndBound(method, 1e-2)])
        assert found.closed
        assert found.minimum.lower.value <= float(value.min()) <= found.minimum.lower.value + 0.011
        assert found.maximum.upper.value >= float(value.max()) >= found.maximum.upper.value - 0.011


def test_what_is_given_up_holds_the_end_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts that nothing can settle: the proved end stays at their bound."""
    look = InputSplit.look

    def giving_up(self: InputSplit, *arguments: Any) -> Any:
        left, points = look(self, *arguments)
        return replace(left, lost=-0.5), points

    monkeypatch.setattr(InputSplit, "look", giving_up)
    monkeypatch.setattr(BranchAndBound, "_bound_quickly", lambda self, state: state)
    (found,) = reach(perceptron(0, 2, 4, 1), SQUARE, tolerance=1e-2)
    assert found.minimum.gap == pytest.approx(0.51, abs=1e-3)
    assert found.maximum.gap == pytest.approx(0.51, abs=1e-3)


def test_ctrl_c_returns_what_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    look, calls = InputSplit.look, [0]

    def interrupted(self: InputSplit, *arguments: Any) -> Any:
        calls[0] += 1
        if calls[0] == 3:
            signal.raise_signal(signal.SIGINT)
        return look(self, *arguments)

    monkeypatch.setattr(InputSplit, "look", interrupted)
    net = perceptron(7, 2, 16, 16, 1)
    value = dense(net, *SQUARE)
    (found,) = reach(net, SQUARE, tolerance=1e-5, methods=[InputSplit(batch=2)])
    assert found.note == "interrupted"
    assert not found.closed
    assert -math.inf < found.minimum.lower.value <= float(value.min())


def test_the_same_seed_gives_the_same_answer() -> None:
    net = perceptron(1, 3, 8, 1)
    ends = torch.full((3,), -1.0), torch.full((3,), 1.0)
    first, second = (reach(net, ends, seed=4)[0] for _ in range(2))
    assert (first.minimum.upper.value, first.nodes, first.queries) == (
        second.minimum.upper.value,
        second.nodes,
        second.queries,
    )
    assert torch.equal(first.low_at, second.low_at)


# ---- nothing is called safe without a proof


def test_a_black_box_has_witnesses_only() -> None:
    net = hf.Network.from_callable(lambda x: np.stack([x.sum(1), -(x**2).sum(1)], 1), shape=(2,))
    first, second = reach(net, SQUARE)
    for found in (first, second):
        assert found.minimum.lower.value == -math.inf
        assert found.maximum.upper.value == math.inf
        assert "black box" in found.note
        assert not found.closed
        assert found.nodes == 0
    assert first.minimum.upper.value == pytest.approx(-2)
    assert first.maximum.lower.value == pytest.approx(2)
    assert second.maximum.lower.value == pytest.approx(0, abs=1e-3)
    assert second.minimum.upper.evidence.dtype == "torch.float32"


def test_a_layer_without_bounds_is_named() -> None:
    class Waving(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.sinc(3 * x)

    net = hf.Network.from_torch(nn.Sequential(nn.Linear(2, 4), Waving(), nn.Linear(4, 1)).eval(), shape=(2,))
    (found,) = reach(net, SQUARE)
    assert (found.minimum.lower.value, found.maximum.upper.value) == (-math.inf, math.inf)
    assert "no bound" in found.note
    value = dense(net, *SQUARE)
    assert found.minimum.upper.value == pytest.approx(float(value.min()), abs=1e-3)
    assert found.maximum.lower.value == pytest.approx(float(value.max()), abs=1e-3)


# ---- a proof and a witness that exclude each other


@pytest.mark.parametrize("cut", [InputSplit, ActivationSplit])
@pytest.mark.parametrize("end", ["smallest", "largest"])
def test_a_bound_that_lies_is_a_contradiction(
    monkeypatch: pytest.MonkeyPatch, cut: type[Branching[Any]], end: str
) -> None:
    """It calls everything settled after one look; the search had not met the lowest value by then, and does so later."""
    look = cut.look

    def lying(self: Branching[Any], question: Any, parts: Any) -> Any:
        left, points = look(self, question, parts)
        wrong = (question.rules.matrix.sum((1, 2, 3)) > 0) == (
            end == "smallest"
        )  # the largest value is the smallest of the negative
        return batch.take(left, ~wrong[left.task]), points

    monkeypatch.setattr(cut, "look", lying)
    said = f"input 0/0 {end}: .*method={cut.__name__}.* at the witness"
    with pytest.raises(hf.Contradiction, match=said) as told:
        reach(perceptron(2, 2, 6, 6, 1), SQUARE, tolerance=1e-2, methods=[BranchAndBound(cut(), 1e-2)])
    assert str(told.value).index("(proved)") < str(told.value).index("(witnessed)")


def test_the_range_encloses_what_the_network_itself_gives() -> None:
    """In float32 a hundred swallows the last digits: the values met there lie beyond what is proved of real arithmetic."""
    first, second = nn.Linear(1, 1), nn.Linear(1, 1)
    first.load_state_dict({"weight": torch.ones(1, 1), "bias": torch.tensor([100.0])})
    second.load_state_dict({"weight": torch.ones(1, 1), "bias": torch.tensor([-100.0])})
    net = hf.Network.from_torch(nn.Sequential(first, nn.ReLU(), second).eval(), shape=(1,))
    low, high = torch.tensor([0.1]), torch.tensor([0.2000033])
    (found,) = reach(net, (low, high), tolerance=1e-8)
    smallest, largest = (float(net(at[None])) for at in (found.low_at, found.high_at))
    assert smallest < float(values(net, low[None])) - 1e-7
    assert found.minimum.lower.value <= smallest
    assert found.maximum.upper.value >= largest
    assert max(found.widened) > 1e-7
    assert found.closed  # in real arithmetic all is known
    assert found.gap <= 1e-8
    assert any(
        "widened to enclose" in said and "float32" in said
        for said in found.minimum.lower.evidence.assumptions
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"box": (torch.ones(2), torch.zeros(2))}, r"at \(0, 0\) the lower bound 1 is above"),
        ({"box": (torch.tensor([math.nan, 0.0]), torch.ones(2))}, "the lower bound contains NaN"),
        (
            {"box": (torch.zeros(2), torch.tensor([math.inf, 0.0]))},
            "the upper bound contains NaN or infinity",
        ),
        ({"box": (torch.zeros(3), torch.ones(3))}, "takes 2"),
        ({"box": (torch.zeros(2), torch.ones(3))}, "different shapes"),
        ({"box": (torch.zeros(0, 2), torch.ones(0, 2))}, "the batch is empty"),
        ({"box": 3.0}, "give a Box"),
        ({"outputs": 3}, "number 3 does not exist; they run from 0 to 2"),
        ({"outputs": [0, -1]}, "number -1"),
        ({"outputs": []}, "none was given"),
        ({"rows": torch.ones(1, 2)}, r"shape \(rows, 3\)"),
        ({"rows": torch.ones(3)}, r"shape \(rows, 3\)"),
        ({"rows": torch.full((1, 3), math.nan)}, "finite"),
        ({"rows": torch.ones(1, 3), "outputs": 0}, "not both"),
        ({"tolerance": 0.0}, "tolerance must be"),
        ({"tolerance": math.nan}, "tolerance must be"),
        ({"stop": hf.Stop(queries=3)}, "seconds only"),
    ],
)
def test_questions_that_make_no_sense(change: dict[str, Any], words: str) -> None:
    with pytest.raises(hf.errors.BadInput, match=words):
        reach(perceptron(0, 2, 4, 3), **{"box": SQUARE, **change})
