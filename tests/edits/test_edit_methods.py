"""Enumeration, search and bounds of edited texts, against all texts; and attacks on the bounds of the states."""

import math
from typing import Any

import pytest
import torch
from edit_models import RULES, Attention, Bag, BothWays, Convolution, Recurrent, network, texts
from torch import nn

import truth
from holdfast.edits import EditBounds, EditSearch, EnumerateEdits
from holdfast.edits.bounds import EditProgramme
from holdfast.edits.cells import AffineCells, AffineDomain, BoxDomain
from holdfast.edits.enumerate import view_of
from holdfast.edits.opened import OpenedLayer
from holdfast.edits.sweep import Sweep, sweeps
from holdfast.network import Network
from holdfast.problem import Problem
from holdfast.property import Robustness
from holdfast.region import EditedTexts, EditRules
from holdfast.solver import Stop, solve
from sizes import count

KINDS: dict[str, Any] = {
    "lstm": lambda: Recurrent(nn.LSTM),
    "gru": lambda: Recurrent(nn.GRU),
    "rnn": lambda: Recurrent(nn.RNN),
    "two layers": lambda: Recurrent(nn.LSTM, layers=2),
}
BLACK_BOXES = {"bag": Bag, "convolution": Convolution, "attention": Attention, "both ways": BothWays}


def problem_of(net: Network, rules: EditRules, count: int = 3, length: int = 4) -> Problem:
    tokens = texts(count, length)
    assert net.vectors is not None
    region = EditedTexts.around(tokens, rules, net.vectors)
    labels = torch.cat([net.ask_tokens(torch.tensor([region.rules.read(tuple(t))])) for t in tokens.tolist()])
    return Problem(net, region, Robustness(labels.argmax(1)), "radius")


def answers(problem: Problem) -> list[float]:
    region, required = problem.region, problem.property
    assert isinstance(region, EditedTexts)
    assert isinstance(required, Robustness)
    rows = range(len(problem))
    return [truth.fewest_edits(problem.network, region, row, int(required.label[row])) for row in rows]


@pytest.mark.parametrize("rules", RULES.values(), ids=RULES.keys())
@pytest.mark.parametrize("kind", KINDS)
def test_shared_prefixes_reach_the_states_of_all_texts(kind: str, rules: EditRules) -> None:
    net = network(KINDS[kind]())
    view = view_of(net)
    assert view is not None
    text = (3, 0, 6, 1)
    options = rules.options(text)
    for edits in range(1, rules.total + 1):
        known = {rules.read(made) for made, _ in options.texts(edits)}
        for first in (None, 0, 1, 2, 3, 4):
            sweep = Sweep(view, options, edits, None if first is None else frozenset({first}))
            for prefixes in sweep.iterate_texts():
                read = {tuple(words) for words in prefixes.words.tolist()}
                assert read <= known
                outputs = net.ask_tokens(prefixes.words)
                torch.testing.assert_close(view.outputs(prefixes.states), outputs, rtol=1e-4, atol=1e-5)
        whole = {
            tuple(words)
            for sweep in sweeps(view, options, edits)
            for prefixes in sweep.iterate_texts()
            for words in prefixes.words.tolist()
        }
        fewer = {rules.read(made) for less in range(edits) for made, _ in options.texts(less)}
        assert whole <= known <= whole | fewer


@pytest.mark.parametrize("rules", RULES.values(), ids=RULES.keys())
@pytest.mark.parametrize("kind", [*KINDS, *BLACK_BOXES])
def test_enumeration_is_exact_and_a_search_is_an_upper_bound(kind: str, rules: EditRules) -> None:
    if kind == "convolution" and rules is not RULES["padded"]:
        pytest.skip("a convolution of three words cannot read fewer")
    net = network({**KINDS, **BLACK_BOXES}[kind]())
    problem = problem_of(net, rules)
    known = answers(problem)
    enumerated = [record.bracket for record in solve([problem], [EnumerateEdits()])]
    assert [bracket.lower.value for bracket in enumerated] == known
    assert [bracket.upper.value for bracket in enumerated] == known
    found = solve([problem], [EditSearch(beam=8)])
    assert all(r.bracket.upper.value >= answer for r, answer in zip(found, known, strict=True))
    for record, answer in zip(found, known, strict=True):
        assert (record.witness is not None) == (record.bracket.upper.value < math.inf)
        assert answer > 0 or record.bracket.upper.value == 0  # A search for one edit tries them all.


NETWORKS = [("lstm", "all kinds"), ("gru", "cut"), ("rnn", "padded"), ("two layers", "many")]


@pytest.mark.parametrize(
    ("kind", "name", "rows"), [("lstm", "all kinds", count(1, full=2)), ("gru", "cut", 2)]
)
def test_bounds_never_exceed_the_truth(kind: str, name: str, rows: int) -> None:
    proved = 0
    for scale in (0.1, 2.0):
        problem = problem_of(network(KINDS[kind](), 1, scale), RULES[name], count=rows)
        found = [r.bracket.lower.value for r in solve([problem], [EditBounds(most=2)])]
        assert all(low <= known for low, known in zip(found, answers(problem), strict=True))
        proved += sum(low > 0 for low in found)
    assert proved > 0


def outside(programme: EditProgramme, opened: OpenedLayer) -> float:
    """How far a state of an edited text lies outside of all cells at the end; 0 if every one is inside."""
    ends = programme.ends()
    boxes = []
    for cells in ends:
        if isinstance(cells, AffineCells):
            away = cells.generators.abs().sum(1) + cells.error
            boxes.append((cells.centre - away, cells.centre + away))
        else:
            boxes.append((cells.lower, cells.upper))  # type: ignore[attr-defined]
    low, high = (torch.cat(parts) for parts in zip(*boxes, strict=True))
    worst = 0.0
    options = programme.options
    for text, _ in truth_texts(programme):
        state = opened.first()
        for word in options.rules.read(text):
            state = opened.view.advance(state, torch.tensor([word]))
        beyond = torch.maximum(low - state, state - high).amax(1).amin()
        worst = max(worst, float(beyond))
    return worst


def truth_texts(programme: EditProgramme) -> list[tuple[tuple[int, ...], int]]:
    options = programme.options
    return list(truth.all_edited(options.text, options.rules, programme.edits).items())


def programmes(
    name: str = "all kinds", kind: str = "lstm", edits: int = 2, *, boxes: bool = False, rows: int = 1
) -> tuple[EditProgramme, OpenedLayer]:
    problem = problem_of(network(KINDS[kind]()), RULES[name], count=1)
    opened = EditBounds()._open_layer(problem)
    assert isinstance(opened, OpenedLayer)
    domain = BoxDomain(opened) if boxes else AffineDomain(opened)
    assert isinstance(problem.region, EditedTexts)
    return EditProgramme(opened, domain, problem.region.options(0), edits, rows), opened


@pytest.mark.parametrize("boxes", [False, True], ids=["forms", "boxes"])
@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize(("kind", "name"), NETWORKS)
def test_cells_hold_the_states_of_all_edited_texts(kind: str, name: str, rows: int, boxes: bool) -> None:
    assert outside(*programmes(name, kind, 2, boxes=boxes, rows=rows)) <= 1e-12


def test_hulls_hold_forms_along_rotated_axes() -> None:
    """A thin set in a slanted direction stays thin, and no point of its rows is lost."""
    programme, _ = programmes()
    generator = torch.Generator().manual_seed(0)
    size = programme.opened.width
    axis = torch.randn(size, generator=generator, dtype=torch.float64)
    centre = torch.linspace(-1, 1, 5, dtype=torch.float64)[:, None] * axis
    generators = (
        0.1 * axis.expand(5, 1, size) * torch.rand((5, 1, 1), generator=generator, dtype=torch.float64)
    )
    cells = AffineCells(centre, generators, torch.full((5, size), 1e-9, dtype=torch.float64))
    (one,) = [AffineDomain(programme.opened).hull(cells)]
    # Across the axis the hull is as thin as the errors.
    assert float(one.generators[0].norm(dim=1).sort().values[-2]) < 1e-7
    inverse = torch.linalg.pinv(one.generators[0].T)
    for share in (-1.0, 0.3, 1.0):
        for point in centre + share * generators[:, 0]:
            noise = inverse @ (point - one.centre[0])
            rest = (point - one.centre[0] - one.generators[0].T @ noise).abs()
            assert bool((noise.abs() <= 1 + 1e-9).all())
            assert bool((rest <= one.error[0] + 1e-9).all())


def test_a_join_without_its_radius_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    right = AffineDomain.hull

    def too_small(self: AffineDomain, cells: AffineCells) -> AffineCells:
        found = right(self, cells)
        return AffineCells(found.centre, found.generators[:, :0], found.error)

    monkeypatch.setattr(AffineDomain, "hull", too_small)
    assert outside(*programmes()) > 1e-6


def test_a_step_without_the_noise_of_the_word_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    right = AffineDomain.words
    monkeypatch.setattr(
        AffineDomain, "words", lambda self, vectors: right(self, vectors.mean(0, keepdim=True))
    )
    monkeypatch.setattr("holdfast.edits.bounds.EXPANDED_POINTS", 0)
    monkeypatch.setattr("holdfast.edits.bounds.EXPANDED_FORMS", 0)
    monkeypatch.setattr("holdfast.edits.bounds.FEWEST_WORD_GROUPS", 1)
    assert outside(*programmes("padded", "gru", rows=1000)) > 1e-6


def test_grouped_words_hold_each_word(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("EXPANDED_POINTS", "EXPANDED_FORMS"):
        monkeypatch.setattr(f"holdfast.edits.bounds.{name}", 0)
    monkeypatch.setattr("holdfast.edits.bounds.FEWEST_WORD_GROUPS", 1)
    assert outside(*programmes("padded", "gru")) <= 1e-12


@pytest.mark.parametrize("kind", range(5))
def test_an_edit_that_is_forgotten_is_caught(kind: int, monkeypatch: pytest.MonkeyPatch) -> None:
    right = EditProgramme._after
    monkeypatch.setattr(
        EditProgramme, "_after", lambda self, part, k: None if k == kind else right(self, part, k)
    )
    assert outside(*programmes("many", "lstm", 1, rows=1000)) > 1e-6


def test_forms_prove_more_than_boxes() -> None:
    """The same cells, once as affine forms and once as boxes."""
    problem = problem_of(network(KINDS["lstm"](), 2, 2.0), RULES["all kinds"], 2)
    found = []
    for method in (EditBounds(most=4), EditBounds(join="intervals", most=1)):
        found.append(sum(method.certifies(problem, row, 2, method.sizes[-1]) for row in range(2)))
    assert found == [2, 1]


def test_other_networks_are_refused_in_words() -> None:
    problem = problem_of(network(Bag), RULES["many"])
    assert "needs a recurrent network" in str(EditBounds().obstacle(problem))
    (record, *_) = solve([problem], [EditBounds()])
    assert any("needs a recurrent network" in reason for reason in record.skipped)


def test_too_many_texts_are_left_to_bounds() -> None:
    problem = problem_of(network(KINDS["lstm"](), 0, 0.4), RULES["all kinds"], count=1)
    assert isinstance(problem.region, EditedTexts)
    enough = EnumerateEdits(texts=problem.region.options(0).count(1))
    (few,) = solve([problem], [enough])
    assert few.bracket.lower.value == 1
    (more,) = solve([problem], [enough, EditBounds(most=2)])
    assert more.bracket.lower.value > 1
    assert more.bracket.lower.evidence.method == "EditBounds"


def test_a_budget_of_queries_ends_the_enumeration() -> None:
    problem = problem_of(network(Bag), RULES["many"], count=1)
    (record,) = solve([problem], [EnumerateEdits(), EditSearch()], Stop(seconds=0.0))
    assert record.status == "stopped"
    assert record.bracket.lower.value == 0
