"""Properties that are bounded through linear rows: against high precision, against dense boxes of outputs, and through solve."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import mpmath
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor, nn

import holdfast as hf
from holdfast import batch
from holdfast.attacks import PGD
from holdfast.certify import Certify, Split, Tighten
from holdfast.errors import BadInput
from holdfast.network import Network
from holdfast.problem import Problem
from holdfast.property import (
    BoundedProperty,
    Confidence,
    Property,
    Reach,
    Robustness,
    Targeted,
    Tie,
    Uncertainty,
)
from holdfast.property.probability import probabilities
from holdfast.random_streams import RandomStreams
from holdfast.region import Ball
from holdfast.result import Key

CLASSES = 4
LABEL, OTHER = torch.tensor([1, 3]), torch.tensor([2, 0])
TOWARD = torch.tensor([[0.5, 0.25, 0.25, 0.0], [0.1, 0.2, 0.3, 0.4]], dtype=torch.float64)
NEAR = torch.tensor([[0.7, 0.1, 0.1, 0.1], [0.25, 0.5, 0.0, 0.25]], dtype=torch.float64)
Exact = Callable[[int, list[mpmath.mpf]], mpmath.mpf]


def softmax(z: list[mpmath.mpf]) -> list[mpmath.mpf]:
    total = mpmath.fsum(mpmath.exp(v) for v in z)
    return [mpmath.exp(v) / total for v in z]


def gap(f: list[mpmath.mpf], label: int, other: int | None) -> mpmath.mpf:
    return f[label] - (max(v for k, v in enumerate(f) if k != label) if other is None else f[other])


def divergence(q: list[float], z: list[mpmath.mpf]) -> mpmath.mpf:
    return mpmath.fsum(a * (mpmath.log(a) - mpmath.log(p)) for a, p in zip(q, softmax(z), strict=True) if a)


@dataclass(frozen=True)
class Case:
    name: str
    prop: BoundedProperty
    exact: Exact  # the score of one row, in high precision


EPSILON = 0.125
TAU = torch.tensor([0.5, 0.9], dtype=torch.float64)
CASES = [
    Case(
        "all others",
        Confidence(LABEL, None, EPSILON),
        lambda r, z: gap(softmax(z), int(LABEL[r]), None) - EPSILON,
    ),
    Case("one other", Confidence(LABEL, OTHER), lambda r, z: gap(softmax(z), int(LABEL[r]), int(OTHER[r]))),
    Case(
        "all outputs",
        Confidence(LABEL, None, EPSILON, False),
        lambda r, z: gap(z, int(LABEL[r]), None) - EPSILON,
    ),
    Case(
        "one output",
        Confidence(LABEL, OTHER, EPSILON, False),
        lambda r, z: gap(z, int(LABEL[r]), int(OTHER[r])) - EPSILON,
    ),
    Case("tie", Tie(LABEL, EPSILON), lambda r, z: sorted(softmax(z))[-1] - sorted(softmax(z))[-2] - EPSILON),
    Case("tie of outputs", Tie(LABEL, EPSILON, False), lambda r, z: sorted(z)[-1] - sorted(z)[-2] - EPSILON),
    Case("reach", Reach(LABEL, TAU), lambda r, z: float(TAU[r]) - softmax(z)[int(LABEL[r])]),
    Case("reach of outputs", Reach(LABEL, TAU, False), lambda r, z: float(TAU[r]) - z[int(LABEL[r])]),
    Case(
        "uniform",
        Uncertainty(None, EPSILON, NEAR),
        lambda r, z: divergence([1 / CLASSES] * CLASSES, z) - EPSILON,
    ),
    Case(
        "toward",
        Uncertainty(TOWARD, EPSILON, NEAR),
        lambda r, z: divergence(Uncertainty(TOWARD).toward[r].tolist(), z) - EPSILON,
    ),
    Case(
        "toward without a plane",
        Uncertainty(TOWARD),
        lambda r, z: divergence(Uncertainty(TOWARD).toward[r].tolist(), z),
    ),
]
every = pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
outputs = st.lists(st.floats(-40, 40), min_size=2 * CLASSES, max_size=2 * CLASSES)
wild = st.floats(-3000, 3000)


def rows_at(prop: BoundedProperty, z: Tensor) -> Tensor:
    matrix, offset = prop.rows(CLASSES)
    return (matrix * z[..., None, :]).sum(-1) + offset


@every
@given(z=outputs)
def test_score_and_its_bounds_at_a_point_enclose_high_precision(case: Case, z: list[float]) -> None:
    """The rows themselves are exact here, so least and most must stand on either side of the truth, and close by."""
    case.prop.check(2, CLASSES)
    mpmath.mp.dps = 60
    whole = (
        torch.tensor(z, dtype=torch.float64).reshape(2, CLASSES).mul(2**20).round().div(2**20)
    )  # so that no row is rounded much
    values = rows_at(case.prop, whole)
    slack = values.abs() * 1e-15
    least, most = case.prop.least(values - slack), case.prop.most(values - slack, values + slack)
    for row in range(2):
        truth = case.exact(row, [mpmath.mpf(v) for v in whole[row].tolist()])
        assert least[row].item() <= truth <= most[row].item()
        assert float(case.prop.score(whole)[row]) == pytest.approx(float(truth), rel=1e-9, abs=1e-9)
        if not isinstance(case.prop, Tie):
            assert least[row].item() == pytest.approx(float(truth), rel=1e-9, abs=1e-9)
            assert most[row].item() == pytest.approx(float(truth), rel=1e-9, abs=1e-9)


@every
@given(
    z=st.lists(wild, min_size=2 * CLASSES, max_size=2 * CLASSES),
    width=st.floats(0, 20),
    seed=st.integers(0, 1000),
)
def test_bounds_hold_over_boxes_of_outputs_however_far_out(
    case: Case, z: list[float], width: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    centre = torch.tensor(z, dtype=torch.float64).reshape(2, CLASSES)
    share = torch.rand((200, 2, CLASSES), generator=generator, dtype=torch.float64)
    points = centre + width * torch.where(
        torch.rand(share.shape, generator=generator) < 0.7, share.round(), share
    )
    values = rows_at(case.prop, points)
    lower, upper = (
        end - 1e-12 * values.abs().amax(0)
        for end in (values.amin(0), values.amax(0) + 2e-12 * values.abs().amax(0))
    )
    scores = case.prop.score(points)
    slack = 1e-12 * (1 + scores.abs())  # of the score's own arithmetic
    assert (case.prop.least(lower) <= scores + slack).all()
    assert (case.prop.most(lower, upper) >= scores - slack).all()


@every
@given(
    values=st.lists(st.floats(-800, 800), min_size=14, max_size=14),
    place=st.integers(0, 6),
    more=st.floats(0, 50),
)
def test_least_rises_with_every_value(case: Case, values: list[float], place: int, more: float) -> None:
    rows = case.prop.rows(CLASSES)[0].shape[1]
    low = torch.tensor(values, dtype=torch.float64).reshape(2, 7)[:, :rows]
    high = low.clone()
    high[:, place % rows] += more
    a, b = case.prop.least(low), case.prop.least(high)
    assert (a <= b + 1e-12 * (1 + b.abs())).all()


@every
@pytest.mark.parametrize("nothing", [math.nan, -math.inf])
def test_what_is_not_known_proves_nothing(case: Case, nothing: float) -> None:
    rows = case.prop.rows(CLASSES)[0].shape[1]
    for place in range(rows):
        values = torch.full((2, rows), 50.0, dtype=torch.float64)
        values[0, place] = nothing
        least = case.prop.least(values)
        assert not least[0] > -math.inf
        assert not (case.prop.score(torch.full((2, CLASSES), math.nan)) > 0).any()


@every
@given(seed=st.integers(0, 10_000), width=st.sampled_from([0.0, 0.1, 1.0, 5.0]))
def test_slopes_hold_wherever_the_rows_are_within_their_bounds(case: Case, seed: int, width: float) -> None:
    """The gradient of the score along the outputs, by autograd, against what the pieces allow along any direction of outputs."""
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn((2, CLASSES), generator=generator, dtype=torch.float64) * 3
    points = (
        z + width * (torch.rand((64, 2, CLASSES), generator=generator, dtype=torch.float64) - 0.5)
    ).requires_grad_()
    (gradient,) = torch.autograd.grad(case.prop.score(points).sum(), points)
    values = rows_at(case.prop, points.detach())
    matrix, _ = case.prop.rows(CLASSES)
    low, high = case.prop.slopes(values.amin(0) - 1e-9, values.amax(0) + 1e-9)
    assert (low <= high).all()
    if not (low.isfinite().all() and high.isfinite().all()):
        assert isinstance(case.prop, Tie)
        return
    along = torch.randn((2, CLASSES), generator=generator, dtype=torch.float64)
    steps = (matrix * along[:, None]).sum(-1)[:, None]  # what each row changes along it
    most = torch.maximum(low * steps, high * steps).sum(-1).amax(-1)
    least = torch.minimum(low * steps, high * steps).sum(-1).amin(-1)
    change = (gradient * along).sum(-1)
    assert (change <= most + 1e-9).all()
    assert (change >= least - 1e-9).all()


@example(z=[-744.0, -745.5, -745.5], width=[1488.0, 0.0, 0.0])  # exponentials that underflow
@given(z=st.lists(wild, min_size=3, max_size=3), width=st.lists(st.floats(0, 900), min_size=3, max_size=3))
def test_probability_bounds_are_attained_and_right(z: list[float], width: list[float]) -> None:
    mpmath.mp.dps = 50
    lower = torch.tensor([z], dtype=torch.float64)
    upper = lower + torch.tensor([width], dtype=torch.float64)
    low, high = probabilities(lower, upper)
    for k in range(3):
        own = torch.arange(3) == k
        worst, best = torch.where(own, lower, upper)[0].tolist(), torch.where(own, upper, lower)[0].tolist()
        least, most = (softmax([mpmath.mpf(v) for v in end])[k] for end in (worst, best))
        assert low[0, k].item() <= least
        assert most <= high[0, k].item()
        if max(width) < 600:  # beyond, exponentials underflow and little is said
            assert float(least) - 1e-11 <= low[0, k].item()
            assert high[0, k].item() <= float(most) + 1e-11


# ---------------------------------------------------------------- through solve


def two_classes() -> tuple[nn.Module, Tensor, Tensor]:
    """A linear network, inputs, and the difference of its outputs there."""
    generator = torch.Generator().manual_seed(5)
    layer = nn.Linear(6, 2).double()
    with torch.no_grad():
        layer.weight.copy_(torch.randn(layer.weight.shape, generator=generator))
        layer.bias.zero_()
    x = torch.rand((5, 6), generator=generator).double()
    return layer.eval(), x, (layer(x)[:, 0] - layer(x)[:, 1]).detach()


def small_network() -> tuple[Network, Tensor]:
    generator = torch.Generator().manual_seed(2)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 12), nn.Tanh(), nn.Linear(12, CLASSES))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.7)
    return Network.from_torch(model.eval(), domain=(0, 1)), torch.rand((5, 6), generator=generator)


def keys(x: Tensor) -> tuple[Key, ...]:
    return tuple(Key(i) for i in range(len(x)))


@pytest.mark.parametrize("p", [1, 2, math.inf])
@pytest.mark.parametrize("kind", ["all", "other", "tie", "reach", "uncertainty"])
def test_two_classes_of_a_linear_network_have_a_closed_form(p: float, kind: str) -> None:
    """With the difference d of the outputs p_0 - p_1 = tanh(d / 2), p_0 = sigmoid(d), and KL to the uniform is log cosh(d / 2)."""
    layer, x, d = two_classes()
    label = (d < 0).long()
    gap = float(d.abs().min()) / 4  # the difference at which the property fails, nearer to zero than any
    epsilon = math.tanh(gap / 2)
    further = d.abs() + 4  # for reach: a probability that is larger still
    prop, distance = {
        "all": (Confidence(label, None, epsilon), d.abs() - gap),
        "other": (Confidence(label, 1 - label, epsilon), d.abs() - gap),
        "tie": (Tie(label, epsilon), d.abs() - gap),
        "reach": (Reach(label, torch.sigmoid(further)), further - d.abs()),
        "uncertainty": (Uncertainty(torch.full((5, 2), 0.5), math.log(math.cosh(gap / 2))), d.abs() - gap),
    }[kind]
    weight = layer.get_parameter("weight").detach()
    truth = distance / torch.linalg.vector_norm(
        weight[0] - weight[1], ord={1: math.inf, 2: 2, math.inf: 1}[p]
    )
    problem = Problem(Network.from_torch(layer), Ball(x, torch.zeros(5), p), prop, "radius", keys(x))
    for record, answer in zip(
        hf.solve([problem], [PGD(), Certify(close=0.0, rounds=40)]), truth.tolist(), strict=True
    ):
        assert record.bracket.lower.value <= answer * (1 + 1e-9)
        assert record.bracket.lower.value >= answer * (1 - 1e-3)
        assert record.bracket.upper.value >= answer * (1 - 1e-9)


PROPERTIES: dict[str, Callable[[Tensor], Property]] = {
    "all others": lambda z: Confidence(z.argmax(-1), None, 0.05),
    "runner-up": lambda z: Confidence.runner_up(z),
    "against": lambda z: Confidence.against(z, (z.argmax(-1) + 1) % CLASSES, 0.1),
    "least likely": lambda z: Confidence.least_likely(z, 0.1),
    "outputs": lambda z: Confidence(z.argmax(-1), None, 0.05, softmax=False),
    "uncertainty": lambda z: Uncertainty.around(z, None, 0.02),
    "toward": lambda z: Uncertainty.around(z, torch.tensor([[0.4, 0.3, 0.2, 0.1]]).expand(len(z), -1), 0.01),
    "uniform without planes": lambda z: Uncertainty(epsilon=0.02),
    "tie": lambda z: Tie(z.argmax(-1), 0.02),
    "reach": lambda z: Reach.rise(z, z.argmin(-1), 0.1),
    "reach of an output": lambda z: Reach.rise(z, z.argmin(-1), 0.5, softmax=False),
}


@pytest.mark.parametrize("name", PROPERTIES)
def test_brackets_close_around_the_truth_on_a_small_network(name: str) -> None:
    """Ends never cross (solve would raise), and random points and gradients inside a proved radius never break the property."""
    net, x = small_network()
    prop = PROPERTIES[name](net(x).detach())
    radius = Problem(net, Ball(x, torch.zeros(5), math.inf, net.domain), prop, "radius", keys(x))
    records = hf.solve([radius], [PGD(restarts=2), Certify()])
    low = torch.tensor([min(r.bracket.lower.value, 1.0) for r in records], dtype=torch.float64)
    safe = low > 0
    assert safe.any()
    worst = Problem(net, Ball(x, low, math.inf, net.domain), prop, "worst", keys(x))
    points = worst.region.sample(2000, RandomStreams.of(range(len(worst.region)), 0))
    assert (worst.score(points)[:, safe] > 0).all()
    found = hf.solve([worst], [PGD(restarts=4), Certify()])
    for row, record in enumerate(found):
        assert record.bracket.lower.value > -math.inf
        assert record.bracket.lower.value <= float(worst.score(points)[:, row].min()) + 1e-6
        if bool(safe[row]):
            assert record.bracket.lower.value > 0


def test_wider_regions_give_finite_worst_scores_of_probabilities() -> None:
    net, x = small_network()
    z = net(x).detach()
    region = Ball(x, torch.ones(5), math.inf, net.domain)
    for prop, least in (
        (Confidence(z.argmax(-1), None, 0.1), -1.1),
        (Tie(z.argmax(-1), 0.1), -0.1),
        (Uncertainty.around(z, None, 0.1), -0.1),
    ):
        for record in hf.solve([Problem(net, region, prop, "worst", keys(x))], [PGD(), Certify()]):
            assert record.bracket.lower.value >= least - 1e-9


def test_a_confidence_of_zero_is_robustness() -> None:
    net, x = small_network()
    label, other = net(x).topk(2).indices.unbind(-1)
    region = Ball(x, torch.zeros(5), math.inf, net.domain)
    for a, b in ((Confidence(label), Robustness(label)), (Confidence(label, other), Targeted(label, other))):
        found = [
            hf.solve([Problem(net, region, prop, "radius", keys(x))], [Certify(close=1e-6, rounds=40)])
            for prop in (a, b)
        ]
        first, second = ([record.bracket.lower.value for record in records] for records in found)
        assert first == pytest.approx(second, rel=1e-4)


def test_properties_are_batches() -> None:
    for case in CASES:
        parts = [batch.take(case.prop, torch.tensor([0])), batch.take(case.prop, torch.tensor([1]))]
        z = torch.randn(2, CLASSES, dtype=torch.float64)
        assert torch.equal(batch.concatenate(parts).score(z), case.prop.score(z))


def test_other_proofs_say_that_they_need_linear_rows() -> None:
    net, x = small_network()
    problem = Problem(
        net, Ball(x, torch.zeros(5), math.inf, net.domain), Confidence(net(x).argmax(-1)), "radius", keys(x)
    )
    assert Certify().obstacle(problem) is None
    for method in (Tighten(), Split(), Certify(arithmetic="executed"), hf.attacks.CLEVER()):
        assert "linear rows" in str(method.obstacle(problem))


THREE = torch.tensor([0, 1, 2])
REFUSED = [
    ("label too large", Confidence(torch.tensor([0, 1, 4])), "label 4 of input 2 is out of range"),
    (
        "other is the label",
        Confidence(THREE, torch.tensor([1, 1, 0])),
        "other class 1 of input 1 is its own label",
    ),
    ("other too large", Confidence(THREE, THREE + 2), "other class 4 of input 2"),
    ("epsilon one", Confidence(THREE, None, 1.0), "epsilon must be in \\[0, 1\\)"),
    (
        "epsilon negative",
        Confidence(THREE, None, -0.1, False),
        "epsilon must be a number >= 0",
    ),
    ("epsilon NaN", Uncertainty(None, math.nan), "epsilon must be a number >= 0"),
    ("tie at zero", Tie(THREE, 0.0), "epsilon must be above zero"),
    (
        "toward of wrong shape",
        Uncertainty(torch.full((3, 3), 1 / 3)),
        r"`toward` has shape \(3, 3\), expected \(3, 4\)",
    ),
    ("toward no distribution", Uncertainty(torch.full((3, 4), 0.5)), "add up to one"),
    (
        "near negative",
        Uncertainty(None, 0.1, torch.tensor([[1.5, -0.5, 0, 0]]).expand(3, -1)),
        "`near` must hold numbers from 0 to 1",
    ),
    ("tau for too few", Reach(THREE, torch.ones(2)), r"tau has shape \(2,\), expected \(3,\)"),
    ("tau NaN", Reach(THREE, torch.full((3,), math.nan)), "NaN or infinite"),
]


@pytest.mark.parametrize(("prop", "message"), [pytest.param(p, m, id=name) for name, p, m in REFUSED])
def test_what_does_not_fit_is_refused_in_words(prop: Property, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        prop.check(3, 4)


def test_one_output_has_no_other_class() -> None:
    for prop in (
        Confidence(torch.tensor([0])),
        Tie(torch.tensor([0]), 0.1),
        Uncertainty(),
        Reach(torch.tensor([0]), torch.ones(1)),
    ):
        with pytest.raises(BadInput, match="1 output, so there is no class to change"):
            prop.check(1, 1)
