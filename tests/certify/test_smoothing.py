"""Randomised smoothing against the closed form for linear classifiers, and never more than an estimate."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import norm
from torch import nn

import holdfast as hf
from holdfast.certify.smoothing import Smoothing, SmoothingSettings, smoothed, smoothing_problem
from holdfast.errors import BadInput
from holdfast.problem import Problem
from holdfast.property import Robustness
from holdfast.region import Ball
from holdfast.result import Key


def linear(weight: list[list[float]], bias: list[float]) -> hf.Network:
    layer = nn.Linear(len(weight[0]), len(weight))
    layer.load_state_dict({"weight": torch.tensor(weight), "bias": torch.tensor(bias)})
    return hf.Network.from_torch(layer.eval(), shape=(len(weight[0]),), domain=(0, 1))


def half_plane() -> tuple[hf.Network, torch.Tensor, torch.Tensor]:
    """Class 1 where w . x + b > 0: the smoothed classifier is the classifier itself, its radius the distance to the line."""
    weight, bias = torch.tensor([1.2, -0.5, 0.3]), 0.1
    x = torch.tensor([[0.9, 0.1, 0.4], [0.3, 0.5, 0.2], [0.2, 0.95, 0.1]])
    return linear([[0.0] * 3, weight.tolist()], [0.0, bias]), x, (x @ weight + bias) / weight.norm()


def ball_problem(net: hf.Network, x: torch.Tensor, y: torch.Tensor, p: float = 2.0) -> Problem:
    return Problem(
        net,
        Ball(x, torch.zeros(len(x)), p, net.domain),
        Robustness(y),
        "radius",
        tuple(Key(i) for i in range(len(x))),
    )


def test_a_linear_classifier_has_its_radius_in_closed_form() -> None:
    net, x, distance = half_plane()
    found = smoothed(net, x, sigma=0.5, samples=20_000, confidence=0.999)
    for row, truth in zip(found, distance.tolist(), strict=True):
        assert row.prediction == int(truth > 0)
        assert (
            0.75 * abs(truth) <= row.radius.value <= abs(truth)
        )  # Clopper and Pearson take three standard errors off
        assert int(row.counts.sum()) == 20_000


def test_the_confidence_is_kept_over_many_seeds() -> None:
    net, x, distance = half_plane()
    confidence, seeds = 0.8, 400
    above = sum(
        smoothed(net, x[1:2], sigma=0.3, samples=200, confidence=confidence, choosing=20, seed=seed)[
            0
        ].radius.value
        > float(distance[1])
        for seed in range(seeds)
    )
    # Wrong at most a fifth of the time, and not because it says next to nothing: Clopper and Pearson come close to a fifth.
    assert 0.08 * seeds < above < 0.2 * seeds + 3 * math.sqrt(0.16 * seeds)


@pytest.mark.parametrize("chance", [0.55, 0.9, 0.999])
def test_the_lower_end_of_a_probability_covers_it(chance: float) -> None:
    noise = SmoothingSettings(1.0, 300, 0.9)
    counts = np.random.default_rng(0).binomial(300, chance, 2000)
    ends = {k: noise.at_least(int(k)) for k in set(counts)}
    assert sum(ends[k] <= chance for k in counts) >= 0.9 * 2000 - 3 * math.sqrt(0.09 * 2000)


def test_certain_samples_give_the_largest_radius_and_none_give_zero() -> None:
    noise = SmoothingSettings(0.5, 1000, 0.999)
    assert noise.at_least(0) == 0
    assert noise.at_least(1000) == pytest.approx(0.001 ** (1 / 1000))
    assert noise.radius(noise.at_least(1000)) == pytest.approx(0.5 * float(norm.ppf(0.001 ** (1 / 1000))))
    assert noise.radius(0.5) == 0


def test_without_a_majority_it_abstains() -> None:
    net = linear([[1.0, 0.0], [-1.0, 0.0]], [0.0, 0.0])
    [row] = smoothed(net, torch.tensor([[0.0, 0.5]]), sigma=1.0, samples=500)
    assert row.prediction is None
    assert row.radius.value == 0


def test_any_function_works_and_every_query_is_counted() -> None:
    seen: list[int] = []

    def box(x: np.ndarray) -> np.ndarray:
        seen.append(len(x))
        return np.stack([x.sum((1, 2)), np.ones(len(x))], axis=1)

    net = hf.Network.from_callable(box, shape=(2, 2))
    method, problem = Smoothing(0.1, 50, choosing=7), smoothing_problem(net, torch.full((3, 2, 2), 2.0))
    state = method.start(problem, 0)
    seen.clear()
    while state is not None:
        state, claims = method.step(problem, state)
    assert claims.aside["chosen"].tolist() == [0, 0, 0]
    assert sum(seen) == 3 * 57


def test_outputs_that_are_no_numbers_count_for_no_class() -> None:
    net = hf.Network.from_callable(
        lambda x: np.where(x[:, :1] > 0, [[1.0, 0.0]], [[np.nan, 0.0]]), shape=(2,)
    )
    [row] = smoothed(net, torch.full((1, 2), 1e-4), sigma=1.0, samples=1000)
    assert 400 < int(row.counts.sum()) < 600
    assert row.prediction is None


def test_the_same_seed_says_the_same() -> None:
    net, x, _ = half_plane()
    runs = [smoothed(net, x, sigma=0.4, samples=300, seed=seed) for seed in (3, 3, 4)]
    first, again, other = ([row.counts.tolist() for row in run] for run in runs)
    assert first == again
    assert first != other


def test_a_sample_is_the_same_however_the_inputs_are_batched() -> None:
    net, x, _ = half_plane()
    options = {"sigma": 0.4, "samples": 700, "seed": 3}
    together = smoothed(net, x, **options)  # type: ignore[arg-type]
    [alone] = smoothed(net, x[:1], **options)  # type: ignore[arg-type]
    assert torch.equal(alone.counts, together[0].counts)


def test_a_stopped_run_goes_on_with_the_samples_it_would_have_drawn(tmp_path: Path) -> None:
    net, x, _ = half_plane()
    whole = smoothed(net, x, sigma=0.4, samples=2000)
    for budget in (300, 500, 700, None):  # queries for each input, of this call
        with (
            hf.Store.open(tmp_path)
            if (tmp_path / "run.sqlite").exists()
            else hf.Store.create(tmp_path) as store
        ):
            before = net.queries
            found = smoothed(net, x, sigma=0.4, samples=2000, store=store, stop=hf.Stop(queries=budget))
            if budget is not None:
                assert {row.radius.evidence.method for row in found} == {
                    "definition"
                }  # nothing is said before all are counted
    assert (net.queries - before) / 3 < 1000  # the last call had few left to draw
    for mine, other in zip(found, whole, strict=True):
        assert torch.equal(mine.counts, other.counts)
        assert (mine.prediction, mine.p_lower, mine.radius) == (other.prediction, other.p_lower, other.radius)


def test_other_settings_begin_anew(tmp_path: Path) -> None:
    net, x, _ = half_plane()
    with hf.Store.create(tmp_path) as store:
        smoothed(net, x, sigma=0.4, samples=900, seed=1, store=store, stop=hf.Stop(queries=300))
        found = smoothed(net, x, sigma=0.4, samples=900, seed=2, store=store)
    assert [row.counts.tolist() for row in found] == [
        row.counts.tolist() for row in smoothed(net, x, sigma=0.4, samples=900, seed=2)
    ]


def test_in_a_bracket_it_stands_beside_the_ends() -> None:
    net, x, distance = half_plane()
    y = (distance > 0).long()
    brackets = hf.radius(
        net, x, y, norm=2, methods=[Smoothing(sigma=0.5, samples=5000, confidence=0.99)], seed=1
    )
    for bracket, truth in zip(brackets, distance.abs().tolist(), strict=True):
        [guess] = bracket.estimates
        assert guess.evidence.kind == "sampled"
        assert guess.evidence.confidence == 0.99
        assert any(
            "smoothed classifier" in said and "not of the network" in said
            for said in guess.evidence.assumptions
        )
        assert 0.7 * truth <= guess.value <= truth
        assert (bracket.lower.value, bracket.upper.value) == (0.0, math.inf)


def test_its_steps_ask_as_often_as_was_said() -> None:
    net, x, _ = half_plane()
    wide = x.repeat(1000, 1)
    problem, method = ball_problem(net, wide, torch.ones(3000, dtype=torch.int64)), Smoothing(samples=1000)
    state, steps, before = method.start(problem, 0), 0, net.queries
    while state is not None:
        state, claims = method.step(problem, state)
        steps += 1
        assert (claims.estimate is None) == (state is not None)  # nothing is said before all are counted
    assert steps > 1
    assert net.queries - before == 3000 * 1000


def test_a_class_the_majority_does_not_give_has_radius_zero() -> None:
    """The network says 1 at the point itself and 0 all around it."""
    net = hf.Network.from_callable(
        lambda x: np.stack([(abs(x).max(1) > 0.1).astype(float), np.full(len(x), 0.5)], 1), shape=(2,)
    )
    [bracket] = hf.radius(net, torch.zeros(1, 2), [1], norm=2, methods=[Smoothing(sigma=1.0, samples=200)])
    assert [guess.value for guess in bracket.estimates] == [0.0]


def test_only_whole_euclidean_balls() -> None:
    net, x, _ = half_plane()
    y = torch.ones(3, dtype=torch.int64)
    assert Smoothing().obstacle(ball_problem(net, x, y)) is None
    assert "norm=2" in str(Smoothing().obstacle(ball_problem(net, x, y, math.inf)))


@pytest.mark.parametrize(
    ("options", "says"),
    [({"sigma": 0.0}, "sigma"), ({"sigma": math.nan}, "sigma"), ({"confidence": 1.0}, "confidence"), ({"confidence": 0.0}, "confidence"),
     ({"samples": 0}, "sample"), ({"choosing": 0}, "choose")],
)  # fmt: skip
def test_bad_settings_are_told(options: dict[str, float], says: str) -> None:
    net, x, _ = half_plane()
    with pytest.raises(BadInput, match=says):
        smoothed(net, x, **{"sigma": 1.0, **options})  # type: ignore[arg-type]
    if "choosing" not in options:
        with pytest.raises(BadInput, match=says):
            Smoothing(**options)  # type: ignore[arg-type]


def test_an_input_without_a_batch_axis_is_refused() -> None:
    net, x, _ = half_plane()
    with pytest.raises(BadInput, match="at least one input"):
        smoothed(net, x[0], sigma=1.0)
