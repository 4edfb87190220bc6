"""Runs side by side: who wins, by how much, and what is refused."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from report_runs import MODEL, Document, TinyImages, bracket, put, record

import holdfast as hf
from holdfast.errors import BadInput
from holdfast.question import DataDescription
from holdfast.report.compare import Comparison, compare, interval, outcome
from holdfast.report.compare_page import render
from holdfast.report.compare_table import as_json, as_markdown
from holdfast.report.gate import Rules, gate
from holdfast.report.pairing import Run, distinct_names, load
from holdfast.result import Bound, Bracket, Evidence, Key, Record, trivial_bound

NewStore = Callable[..., hf.Store]
Ends = Sequence[tuple[float, float]]


def run(
    store: hf.Store,
    ends: Ends,
    name: str,
    *,
    order: Sequence[int] | None = None,
    wrong: Sequence[int] = (),
    **kind: str,
) -> Run:
    """Input k holds the number k; `order` says where in the data it stands."""
    places = list(order or range(len(ends)))
    x = [torch.full((2,), float(k)) for k in places]
    store.put_inputs(
        x, [1] * len(x), [0 if k in wrong else 1 for k in places], [""] * len(x), [None] * len(x)
    )
    note = dict.fromkeys(wrong, "the property fails at the input itself")
    store.write([record(place, *ends[k], note=note.get(k, ""), **kind) for place, k in enumerate(places)])
    return load(store, name)


@pytest.mark.parametrize(
    ("first", "second", "known"),
    [
        ((0.5, 0.6), (0.1, 0.4), "first"),
        ((0.1, 0.2), (0.3, math.inf), "second"),
        ((0.1, 0.4), (0.3, 0.6), "undecided"),
        ((0.3, 0.3), (0.3, 0.3), "tie"),
        ((math.inf, math.inf), (math.inf, math.inf), "tie"),
        ((0.3, 0.3), (0.3, 0.4), "undecided"),
        ((0.1, math.inf), (0.1, math.inf), "undecided"),
    ],
)
def test_an_outcome_is_told_only_where_brackets_decide(
    first: tuple[float, float], second: tuple[float, float], known: str
) -> None:
    assert outcome(bracket(*first), bracket(*second)) == known
    swapped = {"first": "second", "second": "first"}.get(known, known)
    assert outcome(bracket(*second), bracket(*first)) == swapped


def test_outcomes_agree_with_every_truth_inside_the_brackets() -> None:
    generator = np.random.default_rng(0)
    for _ in range(300):
        (a, b), (c, d) = np.sort(generator.random((2, 2)))
        truths = generator.uniform((a, c), (b, d), (50, 2))
        said = outcome(bracket(a, b), bracket(c, d))
        assert said in ("first", "second", "undecided")
        if said != "undecided":
            assert ((truths[:, 0] > truths[:, 1]) == (said == "first")).all()


def test_inputs_are_matched_by_what_they_hold(new_store: NewStore) -> None:
    ends = [(0.1, 0.2), (0.3, 0.4), (0.5, 0.6)]
    better = [(0.15, 0.2), (0.45, 0.5), (0.5, 0.6)]
    found = compare(
        [run(new_store(), ends, "a"), run(new_store(), better, "b", order=[2, 0, 1])], radii=[0.4]
    )
    assert [(a.bracket.lower.value, b.bracket.lower.value) for a, b in found.pairs] == [
        (0.1, 0.15),
        (0.3, 0.45),
        (0.5, 0.5),
    ]
    [duel] = found.duels
    assert (duel.wins, duel.losses, duel.ties, duel.undecided) == (0, 1, 0, 2)
    assert math.isclose(duel.lower.mean, -0.2 / 3)
    assert [side.tallies[0].certified for side in found.sides] == [1, 2]
    assert [side.rank_lower for side in found.sides] == [2, 1]


def test_networks_that_read_other_shapes_share_inputs(new_store: NewStore) -> None:
    x = torch.rand(4, 1, 3, 3, generator=torch.Generator().manual_seed(0))
    sides = []
    for shaped in (x, x.reshape(4, 3, 3).double()):
        store = new_store()
        store.put_inputs(list(shaped), [0] * 4, [0] * 4, [""] * 4, [None] * 4)
        store.write([record(k, 0.1, 0.2) for k in range(4)])
        sides.append(load(store))
    assert len(compare(sides).pairs) == 4


def test_an_input_that_stands_twice_is_paired_once_each(new_store: NewStore) -> None:
    stores = [new_store(), new_store()]
    for store, count in zip(stores, (3, 2), strict=True):
        store.put_inputs([torch.ones(2)] * count, [0] * count, [0] * count, [""] * count, [None] * count)
        store.write([record(k, 0.1 * (k + 1), 0.9) for k in range(count)])
    found = compare([load(store, name) for store, name in zip(stores, "ab", strict=True)])
    assert len(found.pairs) == 2
    assert "a: 1 of 3 inputs are not compared" in found.notes[0]


def test_the_interval_is_students_and_covers_as_often_as_it_says() -> None:
    from scipy import stats

    values = np.array([0.1, 0.4, -0.2, 0.3])
    found = interval(values, 0.9)
    low, high = stats.t.interval(0.9, 3, loc=values.mean(), scale=stats.sem(values))
    assert np.allclose((found.low, found.high), (low, high))
    generator = np.random.default_rng(0)
    covered = [
        (found := interval(generator.normal(0.3, 1, 8), 0.8)).low <= 0.3 <= found.high for _ in range(2000)
    ]
    assert 0.77 < np.mean(covered) < 0.83
    assert math.isinf(interval(values[:1], 0.9).high)


def test_the_true_mean_difference_lies_in_its_range(new_store: NewStore) -> None:
    generator = np.random.default_rng(1)
    one, two = np.sort(generator.random((2, 20, 2)))
    [duel] = compare([run(new_store(), one.tolist(), "a"), run(new_store(), two.tolist(), "b")]).duels
    for _ in range(50):
        truth = generator.uniform(one[:, 0], one[:, 1]) - generator.uniform(two[:, 0], two[:, 1])
        assert duel.least <= truth.mean() <= duel.most
    assert math.isclose(duel.least, (one[:, 0] - two[:, 1]).mean())


def test_infinite_ends_leave_means_comparable(new_store: NewStore) -> None:
    first = run(new_store(), [(0.2, 0.4), (math.inf, math.inf), (0.1, math.inf)], "a")
    second = run(new_store(), [(0.1, 0.3), (0.5, 0.6), (0.2, 0.3)], "b")
    found = compare([first, second])
    a, b = found.sides
    assert math.isclose(a.mean_lower, 0.15)  # the unbreakable input counts in neither mean
    assert math.isclose(b.mean_lower, 0.15)
    assert (a.unbreakable, a.open_above) == (1, 1)
    [duel] = found.duels
    assert duel.outcomes == ("undecided", "first", "undecided")
    assert duel.lower.count == 2
    assert duel.most == math.inf


def test_accuracy_stands_beside_robustness(new_store: NewStore) -> None:
    ends = [(0.3, 0.4), (0.0, 0.0)]
    found = compare(
        [run(new_store(), ends, "a", wrong=[1]), run(new_store(), [(0.1, 0.2), (0.1, 0.2)], "b")],
        radii=[0.0, 0.1],
    )
    assert [side.accuracy for side in found.sides] == [0.5, 1.0]
    assert [t.certified for t in found.sides[0].tallies] == [1, 1]
    assert found.duels[0].accuracy.mean == -0.5


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("norm", "2"),
        ("radius", 0.2),
        ("frames", "each"),
        ("targets", "3"),
        ("domain", "[0, 255]"),
        ("command", "worst"),
    ],
)
def test_different_questions_are_refused(new_store: NewStore, name: str, value: str) -> None:
    one, two = run(new_store(), [(0.1, 0.2)], "a"), run(new_store(**{name: value}), [(0.1, 0.2)], "b")
    with pytest.raises(BadInput, match=f"asked different questions: {name}"):
        compare([one, two])


def test_runs_without_anything_in_common_are_refused(new_store: NewStore) -> None:
    one = run(new_store(), [(0.1, 0.2)], "a")
    with pytest.raises(BadInput, match="two or more"):
        compare([one])
    other = new_store()
    other.put_inputs([torch.full((2,), 9.0)], [1], [1], [""], [None])
    other.write([record(0, 0.1, 0.2)])
    with pytest.raises(BadInput, match="nothing to compare"):
        compare([one, load(other, "b")])
    with pytest.raises(BadInput, match="confidence"):
        compare([one, one], confidence=1.0)


def test_runs_without_inputs_are_matched_by_place_on_the_same_data(new_store: NewStore) -> None:
    runs = []
    for ends in ((0.1, 0.2), (0.3, 0.4)):
        store = new_store()
        store.write([record(0, *ends)])
        runs.append(load(store))
    assert compare(runs).duels[0].losses == 1
    strange = replace(runs[1], question=replace(runs[1].question, data=DataDescription(fingerprint="other")))
    with pytest.raises(BadInput, match="fingerprints"):
        compare([runs[0], strange])


def three(new_store: NewStore) -> Comparison:
    runs = [
        run(new_store(), [(0.1, 0.3), (0.2, 0.2), (0.0, math.inf)], "<b>a|`*$x$"),
        run(new_store(tier="tight"), [(0.4, 0.5), (0.2, 0.2), (0.1, 0.3)], "_b"),
        run(new_store(), [(0.2, 0.6), (0.1, 0.3), (math.inf, math.inf)], "c"),
    ]
    return compare(runs)


def test_the_page_json_and_markdown_say_the_same(new_store: NewStore) -> None:
    found = three(new_store)
    document = Document(render(found))
    assert len(document.rows) == 3
    assert document.tags.count("script") == 1
    assert "<b>a|`*$x$" in document.text
    assert "the runs differ in tier" in document.text
    told = json.loads(json.dumps(as_json(found), allow_nan=False))
    assert [duel["losses"] for duel in told["duels"]] == [1, 0, 1]
    assert told["rows"][0]["outcomes"] == ["second", "undecided", "undecided"]
    assert told["rows"][2]["upper"] == [None, 0.3, None]
    lines = as_markdown(found).splitlines()
    assert {line.count(" | ") for line in lines if line.startswith("| ")} >= {8}
    assert "<b>" not in as_markdown(found).replace("\\<", "")


def test_real_runs_of_two_networks(new_store: NewStore) -> None:
    x = torch.rand(5, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    net = hf.Network.from_torch(TinyImages().eval(), domain=(0, 1))
    labels = net(x).argmax(-1)
    runs = []
    for name, methods in (("both", [hf.attacks.PGD(), hf.certify.Certify()]), ("search", [hf.attacks.PGD()])):
        store = new_store(**SAME)
        put(store, x, labels.tolist(), net)
        hf.radius(net, x, labels, store=store, methods=methods)
        runs.append(load(store, name))
    found = compare(runs)
    assert found.sides[0].mean_lower > found.sides[1].mean_lower == 0
    assert not found.duels[0].wins + found.duels[0].losses  # one network cannot beat itself


SAME = {"model": MODEL}


@pytest.mark.parametrize("liar", ["a", "b"])
def test_runs_of_one_network_that_exclude_each_other_are_a_contradiction(
    new_store: NewStore, liar: str
) -> None:
    ends: dict[str, Ends] = {"a": [(0.1, 0.2), (0.1, 0.3)], "b": [(0.15, 0.4), (0.2, 0.3)]}
    ends[liar] = [ends[liar][0], (0.5, math.inf)]
    one, two = (
        run(new_store(**SAME, tier="tight"), ends["a"], "a"),
        run(new_store(**SAME, seed=4), ends["b"], "b", order=[1, 0]),
    )
    with pytest.raises(hf.Contradiction) as told:
        compare([one, two])
    message, honest = str(told.value), "b" if liar == "a" else "a"
    assert (
        f"{liar}: Certify says at least 0.5 (proved), {honest}: PGD says at most 0.3 (witnessed)" in message
    )
    assert "input 1 of a (input 0 of b)" in message
    with pytest.raises(hf.Contradiction):
        gate(two, Rules(), baseline=one)
    three = compare(
        [one, run(new_store(), [(0.6, 0.7), (0.1, 0.2)], "c")]
    )  # another network may hold longer, or less long
    assert three.duels[0].losses == 1


def test_the_same_method_is_told_apart_by_its_settings(new_store: NewStore) -> None:
    runs = []
    for name, bound, batch in (
        ("a", Bound(0.5, Evidence("proved", "Grid", {"batch": 1})), 1),
        ("b", None, 2),
    ):
        store = new_store(**SAME)
        lower, upper = (
            bound or trivial_bound(0.0),
            trivial_bound(math.inf) if bound else Bound(0.25, Evidence("witnessed", "Grid", {"batch": 2})),
        )
        store.write([Record(Key(0), Bracket(lower, upper), "finished", 0.1, batch)])
        runs.append(load(store, name))
    with pytest.raises(
        hf.Contradiction,
        match=r"a: Grid \[batch=1\] says at least 0.5 .*b: Grid \[batch=2\] says at most 0.25",
    ):
        compare(runs)


def test_frames_of_one_network_must_agree_too(new_store: NewStore) -> None:
    """Of the weakest frames nothing is wrong; of frame 1 one run proves what the other refutes."""
    runs = []
    for name, ends in (("a", [(0.1, 0.2), (0.5, 0.6)]), ("b", [(0.1, 0.2), (0.2, 0.3)])):
        store = new_store(**SAME, frames="each")
        store.write([record(0, *pair, frame=frame) for frame, pair in enumerate(ends)])
        runs.append(load(store, name))
    with pytest.raises(hf.Contradiction, match=r"input 0, frame 1 of a \(input 0, frame 1 of b\)"):
        compare(runs)


@pytest.mark.parametrize(
    "other",
    [
        {"model": {**MODEL, "fingerprint": "cafe"}},
        {"model": {"name": "tiny"}},
        {"prepared": {"mean": "0.5"}},
        {"prepared": {"black_box": True}},
    ],
)
def test_what_asks_another_network_or_another_question_may_differ(
    new_store: NewStore, other: dict[str, object]
) -> None:
    one, two = (
        run(new_store(**SAME), [(0.5, 0.6)], "a"),
        run(new_store(**{**SAME, **other}), [(0.1, 0.2)], "b"),
    )
    assert compare([one, two]).duels[0].wins == 1


def test_names_tell_runs_apart() -> None:
    assert distinct_names(["a", "b"], ["x/a", "x/b"]) == ["a", "b"]
    assert distinct_names(["run", "run"], ["x/run", "y/run"]) == ["x/run", "y/run"]
    assert distinct_names(["run", "run"], ["x/run", "x/run"]) == ["x/run (1)", "x/run (2)"]


def test_scores_are_compared_too(new_store: NewStore, tmp_path: Path) -> None:
    runs = [
        run(new_store(command="worst", norm=None), ends, name, goal="worst")
        for ends, name in (([(-1.0, -0.5)], "a"), ([(0.5, 1.0)], "b"))
    ]
    found = compare(runs)
    assert [side.tallies[0].certified for side in found.sides] == [0, 1]
    assert "above 0" in Document(render(found)).text
