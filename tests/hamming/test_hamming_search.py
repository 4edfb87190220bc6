"""Greedy against everything: on networks so small that all sets of units can be tried."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hamming_truth import UNIT, changed, counting, everything, inputs, pixels, random_network, run, smallest
from torch import Tensor, nn

import holdfast as hf
import truth
from holdfast import memory_budget
from holdfast.datasets import digits
from holdfast.datasets.digits_networks import digits_cnn
from holdfast.errors import BadInput
from holdfast.hamming import Greedy
from holdfast.problem import Problem
from holdfast.property import Custom, Linear, Robustness
from holdfast.region import Ball, Sparse, Words, unit_choices
from holdfast.result import Key
from sizes import count

ENDS = torch.tensor([0.0, 1.0])
THIRDS = torch.tensor([0.0, 0.5, 1.0])


def black_box(model: nn.Module) -> hf.Network:
    return hf.Network.from_callable(lambda x: model(torch.from_numpy(x)).detach().numpy(), domain=(0, 1))


def networks(model: nn.Module) -> list[hf.Network]:
    return [hf.Network.from_torch(model, domain=(0, 1)), black_box(model)]


def compared(
    shape: tuple[int, ...], values: Tensor, seeds: range, *, axes: tuple[int, ...] = (), **options: Any
) -> float:
    """How often Greedy finds the smallest set, over many networks; it may never find a smaller one than there is."""
    right = total = 0
    for seed in seeds:
        model, x = random_network(seed, shape), inputs(seed, 4, shape)
        y = model(x).argmax(-1)
        region = pixels(x, axes=axes, **options)
        truths = smallest(model, region, y, values)
        for network in networks(model):
            found = changed(run(counting(network, region, y), Greedy(values=len(values))))
            assert all(f >= t for f, t in zip(found, truths, strict=True)), (seed, found, truths)
            right += sum(f == t for f, t in zip(found, truths, strict=True))
            total += len(found)
    return right / total


def test_where_nothing_may_change_the_worst_score_is_that_of_the_input() -> None:
    model, x = random_network(0, (5,)), inputs(0, 3, (5,))
    y = model(x).argmax(-1)
    found = hf.worst(
        hf.Network.from_torch(model, domain=(0, 1)), pixels(x).at(0), Robustness(y), methods=[Greedy()]
    )
    scores = Robustness(y).score(model(x)).tolist()
    assert [b.upper.value for b in found] == pytest.approx(scores, rel=1e-5)


# ---------------------------------------------------------------- against everything


def test_numbers() -> None:
    assert compared((7,), ENDS, range(12)) > 0.97


def test_sets_of_many_numbers() -> None:
    """Classes held by a strong bias need up to nine changes of ten, or cannot be broken at all."""
    pairs = []
    for seed in range(15):
        model, x = random_network(seed, (10,), classes=4, sharp=1.0), inputs(seed, 3, (10,))
        with torch.no_grad():
            model[3].bias[model(x).argmax(-1)[0]] += 4 * (seed % 4)  # type: ignore[index]
        y = model(x).argmax(-1)
        truths = smallest(model, pixels(x), y, ENDS)
        for network in networks(model):
            pairs += zip(changed(run(counting(network, pixels(x), y), Greedy())), truths, strict=True)
    assert all(found >= least for found, least in pairs)
    assert sum(found == least for found, least in pairs) > 0.95 * len(pairs)
    assert {least for _, least in pairs} >= {1, 2, 3, 4, 5, math.inf}


def test_values_between_the_ends() -> None:
    assert compared((5,), THIRDS, range(8)) > 0.97


def test_levels() -> None:
    levels = torch.tensor([0.1, 0.4, 0.8])
    assert compared((5,), levels, range(8), levels=levels) > 0.97


def test_colours_change_together_or_in_part() -> None:
    """Two channels, three pixels. Channels may keep their value, which corners of both do not show: Greedy may miss those sets."""
    assert compared((2, 1, 3), ENDS, range(12), axes=(0,)) > 0.9


def test_locked_units_stay() -> None:
    free = torch.tensor([True, False, True, True, False, True, True])
    assert compared((7,), ENDS, range(8), free=free) > 0.97
    model, x = random_network(0, (7,)), inputs(0, 4, (7,))
    y = model(x).argmax(-1)
    for record in run(counting(networks(model)[0], pixels(x, free=free), y), Greedy()):
        witness = record.bracket.upper.evidence.witness
        if witness is not None:
            assert torch.equal(witness[~free], x[record.key.index][~free])


@pytest.mark.parametrize("axes", [(), (0,), (1, 2)])
def test_linear_networks_are_solved_exactly(axes: tuple[int, ...]) -> None:
    """Also for units of many parts, where only the gradient knows the right one of 2 ** 12 corners."""
    for seed in range(4):
        known = truth.linear(seed, shape=(3, 3, 4))
        problem = counting(known.network((0, 1)), pixels(known.x, axes=axes), known.y)
        expected = known.changed_units((0, 1), axes).tolist()
        assert [r.bracket.upper.value for r in run(problem, Greedy())] == expected


def test_digits_have_no_smaller_set_among_all_pairs() -> None:
    data, model = digits("test"), digits_cnn()
    x, y = data.x[:40], data.y[:40]
    found = changed(
        run(counting(hf.Network.from_torch(model, domain=(0, 1)), pixels(x, axes=(0,)), y), Greedy())
    )
    pairs = torch.combinations(torch.arange(64), 2)
    values = torch.cartesian_prod(ENDS, ENDS)
    for row in [i for i, units in enumerate(found) if 2 <= units <= 3][: count(4, full=10)]:
        points = x[row].flatten().expand(len(values), len(pairs), -1).clone()
        points.scatter_(2, pairs.expand(len(values), -1, -1), values[:, None].expand(-1, len(pairs), -1))
        with torch.no_grad():
            wrong = model(points.reshape(-1, 1, 8, 8)).argmax(-1) != y[row]
        best = (points.reshape(-1, 64)[wrong] != x[row].flatten()).sum(-1)
        assert found[row] == (int(best.min()) if len(best) else 3)
    assert 1.5 < sum(c for c in found if c > 0) / sum(c > 0 for c in found) < 2.4


def test_words() -> None:
    for seed in range(6):
        known = truth.sentences(seed)
        network = known.network()
        assert network.vectors is not None
        region = Words.around(known.tokens, known.substitutes, network.vectors, 0)
        problem = truth.radius_problem(network, region, known.y)
        assert [r.bracket.upper.value for r in run(problem, Greedy())] == [float(r) for r in known.radius()]


def test_words_of_a_black_box_that_reads_token_ids() -> None:
    """Each word is its own number; nothing but answers is needed."""
    for seed in range(3):
        known = truth.sentences(seed)

        def answer(x: np.ndarray[Any, Any], model: nn.Module = known.model) -> np.ndarray[Any, Any]:
            return model(torch.from_numpy(x[..., 0]).long()).detach().numpy()  # type: ignore[no-any-return]

        region = Words.around(known.tokens, known.substitutes, torch.arange(7.0)[:, None], 0)
        problem = truth.radius_problem(hf.Network.from_callable(answer), region, known.y)
        assert [r.bracket.upper.value for r in run(problem, Greedy())] == [float(r) for r in known.radius()]


def test_the_lowest_score_with_few_changes() -> None:
    right = total = 0
    for seed in range(8):
        model, x = random_network(seed, (6,)), inputs(seed, 3, (6,))
        y, radius = model(x).argmax(-1), torch.tensor([0.0, 1.0, 2.0])
        region = Sparse(x, radius, UNIT)
        for network in networks(model):
            problem = Problem(network, region, Robustness(y), "worst", tuple(Key(i) for i in range(3)))
            for row, record in enumerate(run(problem, Greedy())):
                points = everything(x[row], ENDS)
                points = points[(points != x[row]).sum(-1) <= radius[row]]
                least = float(Robustness(y[row].expand(len(points))).score(model(points).detach()).min())
                assert record.bracket.upper.value >= least - 1e-4
                right += record.bracket.upper.value <= least + 1e-4
                total += 1
    assert right / total > 0.95


# ---------------------------------------------------------------- planted


class Planted(nn.Module):
    """Sure of class 0 by 20, and flat: no gradient points to the one pixel that turns it over, at one of its values."""

    def __init__(self, pixel: int, value: float) -> None:
        super().__init__()
        self.pixel, self.value = pixel, value
        self.weight = nn.Parameter(torch.linspace(-0.1, 0.1, 64))
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(1)
        sure = 20 + flat @ self.weight
        turned = 800 * torch.relu(0.05 - (flat[:, self.pixel] - self.value).abs())
        return torch.stack([sure, turned], 1)


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_one_planted_pixel_is_found_in_an_image_the_network_is_sure_of(value: float) -> None:
    x = torch.full((2, 1, 8, 8), 0.5)
    for network in networks(Planted(37, value)):
        for record in run(counting(network, pixels(x, axes=(0,)), torch.tensor([0, 0])), Greedy()):
            assert record.bracket.closed
            assert record.bracket.upper.value == 0
            witness = record.bracket.upper.evidence.witness
            assert witness is not None
            assert (witness != 0.5).flatten().nonzero().tolist() == [[37]]


def test_a_value_between_the_ends_is_found_only_where_it_is_tried() -> None:
    network, x, y = networks(Planted(5, 0.5))[0], torch.zeros(1, 1, 8, 8), torch.tensor([0])
    assert changed(run(counting(network, pixels(x), y), Greedy())) == [math.inf]
    assert changed(run(counting(network, pixels(x), y), Greedy(values=3))) == [1]
    levels = torch.linspace(0, 1, 256)  # so many that only every seventeenth is tried
    network = networks(Planted(5, 119 / 255))[0]
    assert changed(run(counting(network, pixels(x, levels=levels), y), Greedy())) == [1]


class Both(nn.Module):
    """Two pixels turn the class together; either alone only makes it surer."""

    def __init__(self) -> None:
        super().__init__()
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(1)
        return torch.stack([5 + flat[:, 3] + flat[:, 9], 12 * torch.relu(flat[:, 3] + flat[:, 9] - 1)], 1)


def test_two_pixels_that_only_work_together() -> None:
    for network in networks(Both()):
        assert changed(
            run(counting(network, pixels(torch.zeros(1, 1, 4, 4)), torch.tensor([0])), Greedy())
        ) == [2]


# ---------------------------------------------------------------- edges


def test_nothing_may_change() -> None:
    model, x = random_network(1, (5,)), inputs(1, 2, (5,))
    region = pixels(x, free=torch.tensor([[False] * 5, [True] * 5]))
    first, second = run(counting(networks(model)[0], region, model(x).argmax(-1)), Greedy())
    assert first.bracket.closed
    assert first.bracket.lower.value == math.inf
    assert "nothing may change" in first.bracket.note
    assert second.bracket.upper.value < math.inf


def test_constant_images_and_constant_networks() -> None:
    x = torch.stack([torch.zeros(1, 3, 3), torch.ones(1, 3, 3), torch.full((1, 3, 3), 0.5)])
    model = random_network(3, (1, 3, 3))
    y = model(x).argmax(-1)
    found = changed(run(counting(networks(model)[0], pixels(x, axes=(0,)), y), Greedy()))
    assert found == smallest(model, pixels(x, axes=(0,)), y, ENDS)
    flat = nn.Linear(9, 2)
    with torch.no_grad():
        flat.weight.zero_()
        flat.bias.copy_(torch.tensor([1.0, 0.0]))
    for network in networks(nn.Sequential(nn.Flatten(), flat).eval()):
        assert changed(run(counting(network, pixels(x), torch.tensor([0, 0, 0])), Greedy())) == [math.inf] * 3


def test_an_input_the_network_gets_wrong_has_radius_zero() -> None:
    model, x = random_network(2, (5,)), inputs(2, 3, (5,))
    y = model(x).argmax(-1)
    wrong = torch.where(torch.arange(3) == 1, (y + 1) % 3, y)
    records = run(counting(networks(model)[0], pixels(x), wrong), Greedy())
    assert records[1].bracket.upper.value == 0
    assert "fails at the input itself" in records[1].bracket.note
    assert changed([records[0], records[2]]) == [smallest(model, pixels(x), y, ENDS)[i] for i in (0, 2)]


def test_ties_and_not_a_number_count_as_failures() -> None:
    def answer(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        tie, nan = x[:, 0] == 1, x[:, 1] == 1
        second = np.where(nan, np.nan, np.where(tie, 1.0, 0.0))
        return np.stack([np.ones(len(x)), second], 1)

    network = hf.Network.from_callable(answer, domain=(0, 1))
    for free in ([True, False, True], [False, True, True]):
        region = pixels(torch.zeros(1, 3), free=torch.tensor(free))
        assert changed(run(counting(network, region, torch.tensor([0])), Greedy())) == [1]


def test_any_score_of_the_user() -> None:
    model, x = random_network(4, (5,)), inputs(4, 2, (5,))
    limit = model(x).abs().amax().item() + 4
    problem = counting(networks(model)[0], pixels(x), torch.zeros(2, dtype=torch.int64))
    records = run(replace(problem, property=Custom(lambda z: limit - z.abs().amax(-1))), Greedy())
    for row, record in enumerate(records):
        points = everything(x[row], ENDS)
        broken = model(points).abs().amax(-1) >= limit
        assert record.bracket.upper.value + 1 == (points[broken] != x[row]).sum(-1).min()
    several = Linear(torch.tensor([[[1.0, 0, 0], [0, 1, 0]]]).expand(2, -1, -1), torch.full((2, 2), 30.0))
    assert len(run(replace(problem, property=several), Greedy())) == 2


# ---------------------------------------------------------------- steps


def test_every_step_hands_over_what_holds_and_it_only_gets_better() -> None:
    model, x = random_network(5, (1, 6, 6), sharp=0.3), inputs(5, 6, (1, 6, 6))
    y = model(x).argmax(-1)
    problem = counting(networks(model)[0], pixels(x, axes=(0,)), y)
    method = Greedy(beam=2, candidates=4)
    state: Any = method.start(problem, 0)
    best, steps = torch.full((6,), math.inf, dtype=torch.float64), 0
    while state is not None:
        state, claims = method.step(problem, state)
        assert claims.witness is not None
        assert claims.found is not None
        away = torch.where(claims.found, problem.family.distance(claims.witness), math.inf)
        assert not bool((Robustness(y).score(model(claims.witness)) > 0)[claims.found].any())
        assert bool((away <= best).all())
        best, steps = away, steps + 1
    assert steps > 3
    assert [r.bracket.upper.value + 1 for r in run(problem, method)] == best.tolist()


def test_the_same_seed_gives_the_same_answer_and_rows_do_not_depend_on_their_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, x = random_network(6, (1, 5, 5), sharp=1.0), inputs(6, 5, (1, 5, 5))
    problem = counting(networks(model)[0], pixels(x, axes=(0,)), model(x).argmax(-1))
    witnesses = [[r.bracket.upper.evidence.witness for r in run(problem, Greedy(), seed=3)] for _ in range(2)]
    for one, two in zip(*witnesses, strict=True):
        assert one is not None
        assert two is not None
        assert torch.equal(one, two)
    together, alone = changed(run(problem, Greedy())), changed(run(problem, Greedy(), batch=1))
    assert together == alone
    monkeypatch.setattr(
        unit_choices, "QUERY_NUMBERS", 100
    )  # four inputs at a time, and as few in a step as can be: the rows take turns
    monkeypatch.setattr(unit_choices, "QUERIES_PER_STEP", 1)
    assert changed(run(problem, Greedy())) == together


def test_a_sweep_over_more_changes_than_are_asked_about() -> None:
    """A random part of the single changes, in several steps; then the gradient leads."""
    model, x = random_network(7, (1, 8, 8), sharp=0.5), inputs(7, 3, (1, 8, 8))
    problem = counting(networks(model)[0], pixels(x, axes=(0,)), model(x).argmax(-1))
    full, part = changed(run(problem, Greedy())), changed(run(problem, Greedy(sweep=10)))
    assert all(math.isfinite(count) for count in part)
    assert sum(part) <= sum(full) + 3


def test_what_is_not_counted_is_left_to_others() -> None:
    model, x = random_network(8, (4,)), inputs(8, 1, (4,))
    ball = Ball(x, torch.zeros(1), 2, UNIT)
    problem = Problem(networks(model)[0], ball, Robustness(model(x).argmax(-1)), "radius", (Key(0),))
    assert "few changed units" in str(Greedy().obstacle(problem))


@pytest.mark.parametrize("wrong", [{"beam": 0}, {"lanes": 0}, {"candidates": 0}, {"values": 1}, {"sweep": 0}])
def test_settings_that_cannot_be(wrong: dict[str, int]) -> None:
    with pytest.raises(BadInput, match=next(iter(wrong))):
        Greedy(**wrong)


# ---------------------------------------------------------------- large inputs


def test_large_inputs_begin_with_few_queries_along_the_gradient() -> None:
    """16,384 pixels: the first step already finds the smallest set of a linear network, where a sweep over single
    pixels would take 32,768 queries."""
    for seed in range(3):
        known = truth.linear(seed, shape=(1, 128, 128), classes=2)
        network = known.network((0, 1))
        problem = counting(network, pixels(known.x[:2], axes=(0,)), known.y[:2])
        expected = known.changed_units((0, 1), (0,))[:2].tolist()
        method = Greedy()
        state: Any = method.start(problem, 0)
        before = network.queries
        for row in range(2):
            state, claims = method.step(problem, state)
            assert claims.found is not None
            assert claims.found.tolist() == [True, row == 1]  # one input after the other reports
        assert [float(best) - 1 for best in state.best] == expected
        assert network.queries - before <= 2 * 40


@pytest.mark.parametrize(("shape", "axes"), [((7,), ()), ((2, 1, 3), (0,))])
def test_the_stages_for_large_inputs_end_with_the_smallest_sets_too(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], axes: tuple[int, ...]
) -> None:
    monkeypatch.setattr(unit_choices, "LARGE_INPUT_NUMBERS", 1)
    assert compared(shape, ENDS, range(6), axes=axes) > 0.85


def test_large_sets_shrink_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Classes held by a strong bias: many units, no set smaller than the smallest, and never a larger one later."""
    monkeypatch.setattr(unit_choices, "LARGE_INPUT_NUMBERS", 1)
    for seed in range(4):
        model, x = random_network(seed, (10,), classes=4, sharp=1.0), inputs(seed, 3, (10,))
        with torch.no_grad():
            model[3].bias[model(x).argmax(-1)[0]] += 4 * (seed % 4)  # type: ignore[index]
        y = model(x).argmax(-1)
        problem, method = counting(networks(model)[0], pixels(x), y), Greedy()
        truths = torch.tensor(smallest(model, pixels(x), y, ENDS))
        state: Any = method.start(problem, 0)
        last = torch.full((3,), torch.inf, dtype=torch.float64)
        while state is not None:
            after, claims = method.step(problem, state)
            best = (state if after is None else after).best
            assert bool((best <= last).all()), (seed, best, last)
            assert bool((best >= truths).all())
            assert claims.witness is not None
            fails = model(claims.witness).argmax(-1) != y
            assert torch.equal(fails, best.isfinite())
            state, last = after, best


def test_calls_with_large_inputs_hold_as_many_as_the_memory_allows() -> None:
    image = 3 * 224 * 224
    assert memory_budget.rows_per_call(image, 2**17) == memory_budget.LARGE_INPUTS_PER_CALL
    with memory_budget.within(2 * memory_budget.ACTIVATION_BYTES_PER_NUMBER * image):
        assert memory_budget.rows_per_call(image, 2**17) == 2
    with memory_budget.within(1):
        assert memory_budget.rows_per_call(image, 2**17) == 1
    assert memory_budget.rows_per_call(64, 2**17) == 2**11
    assert memory_budget.rows_per_call(image, 100 * image) == 100  # on a GPU
