"""The tensor algorithm against all sets and grid points, against a plain loop, and against the paper's own mistake."""

import itertools
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hamming_truth import UNIT, changed, counting, inputs, pixels, random_network, run, smallest
from torch import Tensor, nn

import holdfast as hf
import truth
from holdfast.errors import BadInput
from holdfast.hamming import Grid, Saliency, grid, saliency
from holdfast.hamming.grid import subsets
from holdfast.hamming.saliency import _coarse_to_fine, saliency_problem
from holdfast.problem import Problem
from holdfast.property import Custom, Robustness
from holdfast.region import Ball, Sparse, Words, unit_choices
from holdfast.result import Key, Record
from holdfast.solver import Stop, solve

ENDS = torch.tensor([0.0, 1.0])
RULES = ("margin", "confidence")


def network(model: nn.Module) -> hf.Network:
    return hf.Network.from_torch(model, domain=(0, 1))


def estimate(record: Record) -> float | None:
    """What the grid takes to be safe; it must never be more than an estimate."""
    found = [e for e in record.bracket.estimates if e.evidence.method == "Grid"]
    assert all(e.evidence.kind == "estimated" for e in found)
    assert record.bracket.lower.evidence.method != "Grid"
    return found[0].value if found else None


# ---------------------------------------------------------------- all sets


@pytest.mark.parametrize("size", [1, 2, 3])
def test_every_set_comes_once_and_sets_of_the_first_units_come_first(size: int) -> None:
    found = subsets(torch.arange(math.comb(7, size)), size, 7)
    assert sorted(tuple(sorted(row)) for row in found.tolist()) == list(
        itertools.combinations(range(7), size)
    )
    largest = found.amax(1)
    assert bool((largest.diff() >= 0).all())
    far = subsets(torch.tensor([math.comb(100_000, 3) - 1]), 3, 100_000)  # more sets than any memory holds
    assert sorted(far[0].tolist()) == [99_997, 99_998, 99_999]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("t", [1, 2, 3])
def test_against_everything_on_the_grid(t: int, rule: Any) -> None:
    seen = set()
    for seed in range(6):
        model, x = random_network(seed, (6,), sharp=1.0), inputs(seed, 4, (6,))
        y = model(x).argmax(-1)
        least = smallest(model, pixels(x), y, ENDS)
        for record, best in zip(
            run(counting(network(model), pixels(x), y), Grid(t=t, rule=rule)), least, strict=True
        ):
            found = record.bracket.upper.value + 1
            assert found >= best
            if (
                best <= t + 1
            ):  # sets of t are gone through, and one more unit than that was laid on top or is not known
                assert found == best or best == t + 1
            safe = estimate(record)
            assert safe == (None if best == 1 else min(best - 1, t))
            seen.add(min(best, t + 1))
    assert seen == set(range(1, t + 2))


def test_levels_mask_and_colours() -> None:
    levels = torch.tensor([0.1, 0.4, 0.8])
    for seed in range(4):
        model, x = random_network(seed, (2, 1, 3), sharp=1.5), inputs(seed, 3, (2, 1, 3))
        y = model(x).argmax(-1)
        region = pixels(x, axes=(0,), free=torch.tensor([[[True, False, True]]]), levels=levels)
        least = smallest(model, region, y, levels)
        for record, best in zip(run(counting(network(model), region, y), Grid(t=2)), least, strict=True):
            assert record.bracket.upper.value + 1 >= best
            witness = record.bracket.upper.evidence.witness
            if witness is not None:
                assert bool(region.distance(witness).isfinite()[record.key.index])
            assert estimate(record) in (None, 1, 2)


def test_words() -> None:
    for seed in range(6):
        known = truth.sentences(seed)
        net = known.network()
        assert net.vectors is not None
        region = Words.around(known.tokens, known.substitutes, net.vectors, 0)
        records = run(truth.radius_problem(net, region, known.y), Grid(t=4))
        for record, radius in zip(records, known.radius(), strict=True):
            assert record.bracket.upper.value == radius
            if radius == math.inf:
                assert estimate(record) in (None, float(region.limit()[record.key.index]))


# ---------------------------------------------------------------- the paper


class Table(nn.Module):
    """Confidences (.8, .1, .1); pixel A makes them (.40, .30, .30), pixel B (.45, .46, .09)."""

    def forward(self, x: Tensor) -> Tensor:
        start, a, b = (
            torch.tensor(p).log() for p in ((0.8, 0.1, 0.1), (0.40, 0.30, 0.30), (0.45, 0.46, 0.09))
        )
        return start + x[:, :1] * (a - start) + x[:, 1:2] * (b - start) + 0 * x[:, 2:]


@pytest.mark.parametrize("rule", RULES)
def test_the_largest_fall_of_confidence_need_not_be_the_one_that_breaks(rule: Any) -> None:
    """The paper looks at pixel A alone, sees the class unchanged, and calls one pixel safe."""
    model = Table().eval()
    [record] = run(
        counting(network(model), pixels(torch.zeros(1, 3)), torch.tensor([0])), Grid(t=1, rule=rule)
    )
    assert record.bracket.upper.value == 0
    assert record.bracket.closed
    assert estimate(record) is None
    witness = record.bracket.upper.evidence.witness
    assert witness is not None
    assert witness.tolist() == [0, 1, 0]
    confidences = sensitivity_by_confidence(model, torch.zeros(3))
    assert int(confidences.argmax()) == 0  # pixel A would have been looked at


def sensitivity_by_confidence(model: nn.Module, x: Tensor) -> Tensor:
    changed_inputs = x + torch.eye(len(x))
    return model(x[None]).softmax(-1)[0, 0] - model(changed_inputs).softmax(-1)[:, 0]


def overlay(model: nn.Module, x: Tensor, y: int, rule: str) -> float:
    """Algorithm of the paper at t = 1 by plain loops: how many pixels change in the end."""

    def margin(z: Tensor) -> float:
        return float(z[y] - torch.cat([z[:y], z[y + 1 :]]).max())

    def measure(point: Tensor) -> float:
        z = model(point[None])[0].detach()
        return margin(z) if rule == "margin" else float(z.softmax(-1)[y])

    def with_value(point: Tensor, unit: int, value: float) -> Tensor:
        return torch.where(torch.arange(len(x)) == unit, value, point)

    solutions = []
    for unit in range(len(x)):
        best = min((measure(with_value(x, unit, v)), v) for v in (0.0, 1.0))
        solutions.append((best[0], unit, best[1]))
    point = x
    for _, unit, value in sorted(solutions):
        point = with_value(point, unit, value)
        if margin(model(point[None])[0].detach()) <= 0:
            break
    else:
        return math.inf
    while True:
        back = [with_value(point, u, float(x[u])) for u in range(len(x)) if point[u] != x[u]]
        scores = [margin(model(b[None])[0].detach()) for b in back]
        if not scores or min(scores) > 0:
            return float((point != x).sum())
        point = back[scores.index(min(scores))]


@pytest.mark.parametrize("rule", RULES)
def test_the_upper_end_is_that_of_a_plain_loop(rule: Any) -> None:
    counts = set()
    for seed in range(8):
        model, x = random_network(seed, (9,), sharp=0.8), inputs(seed, 4, (9,))
        y = model(x).argmax(-1)
        records = run(counting(network(model), pixels(x), y), Grid(t=1, rule=rule))
        for record, row, label in zip(records, x, y.tolist(), strict=True):
            expected = overlay(model, row, label, rule)
            single = estimate(record) is None  # a single pixel was found
            assert record.bracket.upper.value + 1 == (1 if single else expected)
            counts.add(expected)
    assert len(counts) > 3


def test_confidence_is_the_same_for_a_network_that_ends_in_a_softmax() -> None:
    model, x = random_network(3, (9,), sharp=0.8), inputs(3, 6, (9,))
    y = model(x).argmax(-1)
    plain, soft = (
        run(counting(network(m), pixels(x), y), Grid(t=1, rule="confidence"))
        for m in (model, nn.Sequential(model, nn.Softmax(-1)).eval())
    )
    assert changed(plain) == changed(soft)


# ---------------------------------------------------------------- streaming


def test_pieces_of_any_size_give_the_same_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = random_network(2, (8,), sharp=0.8), inputs(2, 5, (8,))
    problem = counting(network(model), pixels(x), model(x).argmax(-1))
    whole = run(problem, Grid(t=3))
    monkeypatch.setattr(unit_choices, "QUERY_NUMBERS", 8)
    monkeypatch.setattr(unit_choices, "QUERIES_PER_STEP", 40)
    monkeypatch.setattr(grid, "BYTES_PER_GRID_POINT", 2**16)  # a few grid points at a time
    pieces = run(problem, Grid(t=3, memory=1))
    assert [r.bracket.upper.value for r in pieces] == [r.bracket.upper.value for r in whole]
    assert [estimate(r) for r in pieces] == [estimate(r) for r in whole]


def test_steps_are_bounded_and_a_search_goes_on_from_its_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unit_choices, "QUERY_NUMBERS", 12)
    monkeypatch.setattr(unit_choices, "QUERIES_PER_STEP", 64)
    model, x = random_network(2, (12,), sharp=0.5), inputs(2, 2, (12,))
    with torch.no_grad():
        model[3].bias[0] += 20  # type: ignore[index]
    problem = counting(network(model), pixels(x), torch.tensor([0, 0]))
    method, estimates = Grid(t=2), []
    state: Any = method.start(problem, 0)
    while state is not None:
        before = problem.network.queries
        state, claims = method.step(problem, state)
        if claims.estimate is not None:
            estimates.append(claims.estimate.tolist())
        else:
            assert problem.network.queries - before <= 64
    assert estimates == [[1, 1], [2, 2]]


def test_few_kept_sets_are_enough_for_an_estimate() -> None:
    model, x = random_network(4, (8,), sharp=0.6), inputs(4, 4, (8,))
    problem = counting(network(model), pixels(x), model(x).argmax(-1))
    many, few = run(problem, Grid(t=2)), run(problem, Grid(t=2, keep=2))
    assert [estimate(r) for r in many] == [estimate(r) for r in few]


# ---------------------------------------------------------------- refusals


def test_what_the_grid_cannot_do_is_said() -> None:
    model, x = random_network(1, (4,)), inputs(1, 1, (4,))
    problem = counting(network(model), pixels(x), model(x).argmax(-1))
    with pytest.raises(BadInput, match="sets of t=5 units, but the inputs have only 4"):
        run(problem, Grid(t=5))
    bytes_ = counting(network(model), pixels(x, levels=torch.linspace(0, 1, 256)), model(x).argmax(-1))
    with pytest.raises(BadInput, match=r"256 values for each of 3 units are 16777216 inputs .* 256 MiB"):
        run(bytes_, Grid(t=3))
    ball = Problem(
        network(model), Ball(x, torch.zeros(1), 2, UNIT), Robustness(model(x).argmax(-1)), "radius", (Key(0),)
    )
    assert "counts changed units" in str(Grid().obstacle(ball))
    custom = Problem(network(model), pixels(x), Custom(lambda z: z[:, 0]), "radius", (Key(0),))
    assert "needs a property of a class" in str(Grid(rule="confidence").obstacle(custom))


@pytest.mark.parametrize("wrong", [{"t": 0}, {"levels": 1}, {"keep": 0}, {"memory": 0}, {"rule": "guess"}])
def test_settings_that_cannot_be(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match=next(iter(wrong))):
        Grid(**wrong)


def test_a_row_with_fewer_free_units_than_the_sets_have() -> None:
    flat = nn.Linear(3, 2)
    with torch.no_grad():
        flat.weight.zero_()
        flat.bias.copy_(torch.tensor([1.0, 0.0]))
    region = pixels(torch.zeros(2, 3), free=torch.tensor([[True, False, False], [True, True, True]]))
    records = run(counting(network(flat.eval()), region, torch.tensor([0, 0])), Grid(t=3))
    assert [estimate(r) for r in records] == [1, 3]
    assert changed(records) == [math.inf, math.inf]


# ---------------------------------------------------------------- saliency


def test_saliency_is_the_fall_of_the_margin_by_plain_loops() -> None:
    model, x = random_network(1, (2, 2, 3), sharp=1.0), inputs(1, 2, (2, 2, 3))
    y = torch.tensor([1, 2])
    free = torch.ones(2, 1, 2, 3, dtype=torch.bool)
    free[1, 0, 0, 2] = False
    values = torch.tensor([0.0, 0.3, 1.0])

    def margin(point: Tensor, label: int) -> float:
        z = model(point[None])[0].detach()
        return float(z[label] - torch.cat([z[:label], z[label + 1 :]]).max())

    for net in (
        network(model),
        hf.Network.from_callable(lambda a: model(torch.from_numpy(a)).detach().numpy(), domain=(0, 1)),
    ):
        found = saliency(net, x, y, free=free, values=values)
        assert found.shape == (2, 1, 2, 3)
        assert found.isnan().nonzero().tolist() == [[1, 0, 0, 2]]
        for row, i, j in itertools.product(range(2), range(2), range(3)):
            if bool(free[row, 0, i, j]):
                least = margin(x[row], int(y[row]))
                for first, second in itertools.product(values, values):
                    point = x[row].clone()
                    point[:, i, j] = torch.stack([first, second])
                    least = min(least, margin(point, int(y[row])))
                assert float(found[row, 0, i, j]) == pytest.approx(
                    margin(x[row], int(y[row])) - least, abs=1e-4
                )


def test_saliency_by_default() -> None:
    model, x = random_network(1, (1, 4, 4)), inputs(1, 3, (1, 4, 4))
    net = network(model)
    said = model(x).argmax(-1)
    assert torch.equal(saliency(net, x), saliency(net, x, said))
    assert saliency(net, x).shape == (3, 1, 4, 4)
    assert bool((saliency(net, x) >= 0).all())
    assert saliency(net, x.flatten(1).reshape(3, 1, 4, 4), unit="number").shape == (3, 1, 4, 4)
    finer = saliency(net, x, levels=5)
    assert bool((finer >= saliency(net, x) - 1e-5).all())
    with pytest.raises(BadInput, match="bounded domain"):
        saliency(hf.Network.from_torch(model), x)
    assert torch.equal(saliency(hf.Network.from_torch(model), x, domain=(0, 1)), saliency(net, x))


def test_the_most_harmful_change_is_a_witness_and_nothing_is_proved() -> None:
    model, x = random_network(1, (2, 2, 3), sharp=1.0), inputs(1, 2, (2, 2, 3))
    problem = saliency_problem(network(model), x, torch.tensor([1, 2]), unit="number")
    for record, centre, label in zip(solve([problem], [Saliency()]), x, (1, 2), strict=True):
        ends = centre.repeat(24, 1, 1, 1).flatten(1)
        ends[range(24), [unit // 2 for unit in range(24)]] = ENDS.repeat(12)
        z = model(ends.reshape(24, *centre.shape)).detach()
        margins = z[:, label] - z.masked_fill(torch.arange(z.shape[1]) == label, -torch.inf).amax(1)
        shown = record.bracket.upper.evidence.witness
        assert record.bracket.lower.value == -math.inf
        assert shown is not None
        assert int((shown != centre).sum()) <= 1
        assert record.bracket.upper.value == pytest.approx(float(margins.min()), abs=1e-5)


def test_a_map_is_made_piece_by_piece_and_what_is_not_known_yet_is_blank(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, x = random_network(1, (1, 4, 4)), inputs(1, 3, (1, 4, 4))
    whole, net = saliency(network(model), x), network(model)
    monkeypatch.setattr("holdfast.region.unit_choices.QUERY_NUMBERS", 16 * 5)  # five inputs in a piece
    monkeypatch.setattr(unit_choices, "QUERIES_PER_STEP", 2)
    seen: list[Tensor] = []
    method, problem = Saliency(), saliency_problem(net, x)
    state: Any = method.start(problem, 0)
    while state is not None:
        state, claims = method.step(problem, state)
        seen.append(claims.aside["saliency"])
    blank = [int(part.isnan().sum()) for part in seen]
    assert len(blank) > 7
    assert blank == sorted(blank, reverse=True)
    assert blank[0] > 40
    torch.testing.assert_close(seen[-1], whole, rtol=1e-4, atol=1e-4, equal_nan=True)


def test_sensitivity_of_words() -> None:
    known = truth.sentences(0)
    net = known.network()
    assert net.vectors is not None
    region = Words.around(known.tokens, known.substitutes, net.vectors, 1)
    problem = replace(truth.radius_problem(net, region, known.y), goal="worst")
    records = solve([problem], [Saliency()])
    found = torch.stack([record.aside["saliency"] for record in records])
    for row, sentence in enumerate(known.tokens):
        z = known.model(sentence[None])[0].detach()
        label = int(known.y[row])
        lowest = float(z[label] - z[1 - label]) - float(found[row].nan_to_num(0).max())
        assert records[row].bracket.upper.value == pytest.approx(lowest, abs=1e-4)
        for place, word in enumerate(sentence.tolist()):
            others = [w for w in known.substitutes.get(word, ()) if w != word]
            if not others:
                assert float(found[row, place]) == -math.inf  # locked: NaN would say that it was not measured
                continue
            replaced = sentence.repeat(len(others), 1)
            replaced[:, place] = torch.tensor(others)
            outputs = known.model(replaced).detach()
            least = min(
                float((outputs[:, label] - outputs[:, 1 - label]).min()), float(z[label] - z[1 - label])
            )
            assert float(found[row, place]) == pytest.approx(float(z[label] - z[1 - label]) - least, abs=1e-4)
    ball = Problem(net, Ball(region.centre, torch.zeros(4)), Robustness(known.y), "worst", problem.keys)
    assert "single units or words" in str(Saliency().obstacle(ball))


def test_sparse_is_enough_to_ask() -> None:
    """The region a user builds by hand, through the public face."""
    model, x = random_network(5, (6,), sharp=1.0), inputs(5, 2, (6,))
    problem = Problem(
        network(model), Sparse(x, 0.0, UNIT), Robustness(model(x).argmax(-1)), "radius", (Key(0), Key(1))  # type: ignore[arg-type]
    )  # fmt: skip
    assert all(estimate(r) is not None or r.bracket.upper.value == 0 for r in run(problem, Grid(t=1)))


@pytest.mark.parametrize("shape", [(8, 8), (5, 7), (3, 6, 10), (13,), (1, 4, 4), (2, 1), (1,)])
def test_units_are_asked_from_coarse_to_fine(shape: tuple[int, ...]) -> None:
    units = math.prod(shape)
    row, unit, value = _coarse_to_fine(torch.ones(2, units, 2, dtype=torch.bool), shape)
    assert len({*zip(row.tolist(), unit.tolist(), value.tolist(), strict=True)}) == len(unit) == 4 * units
    order = unit.reshape(units, 4)
    assert bool(
        (order == order[:, :1]).all()
    )  # a unit of all rows, and all of its values, before the next unit
    assert row.reshape(units, 4).tolist() == [[0, 0, 1, 1]] * units
    if shape == (8, 8):
        places = [(int(k) // 8, int(k) % 8) for k in order[:, 0]]
        for step, count in ((4, 4), (2, 16)):
            assert set(places[:count]) == {(i, j) for i in range(0, 8, step) for j in range(0, 8, step)}


def test_a_budget_leaves_a_coarse_map_of_the_whole_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    """Never a map of the top half, and never a zero where nothing was asked; going on ends in the map of a run without a limit."""
    model, x = random_network(1, (1, 8, 8)), inputs(1, 2, (1, 8, 8))
    x = 0.1 + 0.8 * x
    net = network(model)
    whole = saliency(net, x)
    monkeypatch.setattr("holdfast.region.unit_choices.QUERY_NUMBERS", 64 * 8)  # eight inputs in a piece
    monkeypatch.setattr(unit_choices, "QUERIES_PER_STEP", 1)
    problem = saliency_problem(net, x)
    records = solve([problem], [Saliency()], Stop(queries=33))  # of each input; a unit takes two
    found = torch.stack([record.aside["saliency"] for record in records])[:, 0]
    assert [record.status for record in records] == ["stopped"] * 2
    known = ~found.isnan()
    assert 12 <= int(known[0].sum()) == int(known[1].sum()) <= 20
    for rows, columns in itertools.product((slice(0, 4), slice(4, 8)), repeat=2):
        assert bool(known[:, rows, columns].any())
    torch.testing.assert_close(found[known], whole[:, 0][known], rtol=1e-4, atol=1e-4)
    method = Saliency()
    state: Any = method.resume_state(problem, method.start(problem, 0), {"saliency": found[:, None]})
    assert state.change.shape[1] == 2 * int((~known).sum())  # only what is missing is asked
    while state is not None:
        state, claims = method.step(problem, state)
    torch.testing.assert_close(claims.aside["saliency"], whole, rtol=1e-4, atol=1e-4)


def test_a_unit_of_which_one_value_was_asked_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = random_network(1, (1, 2, 2)), 0.1 + 0.8 * inputs(1, 1, (1, 2, 2))
    monkeypatch.setattr(
        "holdfast.region.unit_choices.QUERY_NUMBERS", 4 * 3
    )  # three changes: a unit and a half
    monkeypatch.setattr(unit_choices, "QUERIES_PER_STEP", 1)
    problem = saliency_problem(network(model), x)
    _, claims = Saliency().step(problem, Saliency().start(problem, 0))
    assert int((~claims.aside["saliency"].isnan()).sum()) == 1


def test_a_locked_unit_is_not_one_that_was_not_measured() -> None:
    model, x = random_network(1, (1, 2, 2)), inputs(1, 1, (1, 2, 2))
    free = torch.tensor([[[True, True], [False, True]]])
    [record] = solve([saliency_problem(network(model), x, free=free)], [Saliency()])
    kept = record.aside["saliency"]
    assert float(kept[0, 1, 0]) == -math.inf
    assert not bool(kept.isnan().any())
    assert saliency(network(model), x, free=free).isnan().sum() == 1
