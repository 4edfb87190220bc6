"""What may stand in an element's place: sets, typos, noise; and what is refused."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.cluster.hierarchy import fcluster, linkage

import holdfast as hf
from holdfast.monitor import Bins, Classes, ElementChoices, Groups, Noise, Own, Tolerance, Typos, outputs
from holdfast.monitor.mutation.mutation import Mutation, misspellings, restore


def listed(mutation: Mutation, element: Any) -> dict[int, float]:
    found = mutation.choices(element)
    assert found.probability.dtype == torch.float64
    assert abs(float(found.probability.sum()) - 1) <= 1e-12
    assert int(found.values[0]) == element
    return dict(zip(found.values.tolist(), found.probability.tolist(), strict=True))


def test_sets_with_and_without_probabilities() -> None:
    groups = Groups.of_sets({1: [3, 1], 3: [3, 1, 4, 4], 6: [5, 6]}, probability={6: [0.25, 0.75]})
    assert listed(groups, 1) == {1: 0.5, 3: 0.5}
    assert listed(groups, 3) == {3: 0.25, 1: 0.25, 4: 0.5}
    assert listed(groups, 6) == {6: 0.75, 5: 0.25}
    assert listed(groups, 0) == {0: 1.0}
    assert listed(groups, 99) == {99: 1.0}


def test_the_table_is_the_choices_one_after_the_other() -> None:
    groups = Groups.of_sets({1: [3, 1], 3: [3, 1, 4], 6: [5, 6]}, probability={6: [0.25, 0.75]})
    asked = torch.tensor([6, 0, 3, 99, 1, 3])
    quick, plain = groups.table(asked), Mutation.table(groups, asked)
    for one, other in (
        (quick.start, plain.start),
        (quick.values, plain.values),
        (quick.probability, plain.probability),
    ):
        assert torch.equal(one, other)


def test_words_are_looked_up() -> None:
    groups = Groups.of_sets({"good": ["good", "fine"]}, vocabulary=("bad", "fine", "good"))
    assert listed(groups, 2) == {2: 0.5, 1: 0.5}
    near = Groups.of_neighbours(("bad", "fine", "good"), {"good": ["fine", "grand"], "bad": []})
    assert listed(near, 2) == {2: 0.5, 1: 0.5}
    assert listed(near, 0) == {0: 1.0}
    with pytest.raises(hf.errors.BadInput, match="not in the vocabulary"):
        Groups.of_sets({"good": ["good", "grand"]}, vocabulary=("good",))
    with pytest.raises(hf.errors.BadInput, match="vocabulary"):
        Groups.of_sets({"good": ["good"]})


def test_tokens_with_one_set_are_alike_to_an_abstract_model() -> None:
    groups = Groups.of_sets({1: [1, 3], 3: [3, 1], 4: [4, 1]})
    assert groups.abstract(torch.tensor([0, 1, 3, 4, 77])).tolist() == [0, 1, 1, 4, 77]


@pytest.mark.parametrize(
    ("values", "probability"),
    [
        ([2, 3], None),
        ([1, 2], [0.5, 0.4]),
        ([1, 2], [1.5, -0.5]),
        ([1, 2], [1.0]),
        ([], None),
        ([1, 2], [math.nan, 1]),
    ],
)
def test_sets_that_miss_the_original_or_do_not_sum_to_one(
    values: list[int], probability: list[float] | None
) -> None:
    with pytest.raises(hf.errors.BadInput, match=r"element 1|original"):
        Groups.of_sets({1: values}, probability=None if probability is None else {1: probability})
    with pytest.raises(hf.errors.BadInput, match=r"a frame|original"):
        ElementChoices.of(torch.ones(2), [torch.full((2,), float(value)) for value in values], probability)


def test_complete_linkage_is_that_of_all_words_at_once() -> None:
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(12, 5, generator=generator).repeat_interleave(10, 0) + 0.8 * torch.randn(
        120, 5, generator=generator
    )
    unit = torch.nn.functional.normalize(vectors, dim=1)
    distance = (1 - unit @ unit.T).clamp_min(0).double().numpy()
    wanted = fcluster(linkage(distance[np.triu_indices(120, 1)], "complete"), t=0.35, criterion="distance")
    found = Groups.of_vectors(vectors, cosine=0.65)
    for own in range(120):
        assert set(found.choices(own).values.tolist()) == set(np.flatnonzero(wanted == wanted[own]).tolist())
    sizes = [len(found.choices(own).values) for own in range(120)]
    assert max(sizes) > 3
    first = next(own for own in range(120) if sizes[own] > 1)
    other = int(found.choices(first).values[1])
    apart = Groups.of_vectors(vectors, cosine=0.65, antonyms=[(other, first)])
    for own in range(120):
        group = apart.choices(own).values
        assert not {first, other} <= set(group.tolist())
        assert float((unit[group] @ unit[group].T).min()) >= 0.65 - 1e-6
    few = Groups.of_vectors(vectors, cosine=0.65, among=range(40))
    assert all(int(few.choices(own).values.max()) < 40 for own in range(40))
    with pytest.raises(hf.errors.BadInput, match="cosine"):
        Groups.of_vectors(vectors, cosine=1.5)


def test_misspellings() -> None:
    assert misspellings("cat", ["swap"]) == {"act", "cta"}
    assert misspellings("cat", ["delete"]) == {"at", "ct", "ca"}
    assert {"cats", "chat", "scat"} <= misspellings("cat", ["insert"])
    assert {"vat", "cst", "car"} <= misspellings("cat", ["keyboard"])
    assert "cat" not in misspellings("cat")
    assert misspellings("a", ["delete"]) == set()


def test_typos_become_words_of_the_vocabulary_or_the_unknown_one() -> None:
    words = ("<unk>", "cat", "act", "at")
    found = listed(Typos(words, unknown=0, kinds=("swap", "delete")), 1)  # cat: act, cta, at, ct, ca
    assert found == pytest.approx({1: 1 / 6, 2: 1 / 6, 3: 1 / 6, 0: 3 / 6})
    assert listed(Typos(words, kinds=("swap", "delete")), 1) == pytest.approx({1: 1 / 3, 2: 1 / 3, 3: 1 / 3})
    keys = tuple("abcdefghijklmnopqrstuvwxyz")
    assert set(listed(Typos(keys, characters=True), keys.index("s"))) == {keys.index(c) for c in "swedxza"}
    with pytest.raises(hf.errors.BadInput, match="no such typos"):
        Typos(words, kinds=("smudge",))
    with pytest.raises(hf.errors.BadInput, match="unknown=9"):
        Typos(words, unknown=9)


@pytest.mark.parametrize("p", [1, 2, math.inf])
def test_noise_fills_the_ball_evenly(p: float) -> None:
    """The norm of a uniform point of a ball in d dimensions is r u^(1/d): its mean is r d / (d + 1), and its median is known too."""
    centre, d = torch.randn(3, 2), 6
    drawn = Noise(0.7, norm=p).sample(centre, 20_000, torch.Generator().manual_seed(0)) - centre
    norm = torch.linalg.vector_norm(drawn.double().flatten(1), ord=p, dim=1)
    assert float(norm.max()) <= 0.7 * (1 + 1e-5)
    assert float(norm.mean()) == pytest.approx(0.7 * d / (d + 1), abs=0.005)
    assert float((norm <= 0.7 * 0.5 ** (1 / d)).double().mean()) == pytest.approx(0.5, abs=0.02)
    assert float(drawn.mean(0).abs().max()) < 0.02
    kept = Noise(0.7, norm=p, low=0.0, high=0.1).sample(centre, 100, torch.Generator().manual_seed(0))
    assert float(kept.min()) >= 0
    assert float(kept.max()) <= float(torch.tensor(0.1))


def test_noise_refuses_what_it_cannot_do() -> None:
    for arguments in ((-1.0, 2.0), (math.nan, 2.0), (1.0, 3.0), (1.0, 0.5)):
        with pytest.raises(hf.errors.BadInput):
            Noise(*arguments)
    with pytest.raises(hf.errors.BadInput, match="infinitely"):
        Noise(1.0).choices(torch.zeros(2))
    with pytest.raises(hf.errors.BadInput, match="integers"):
        Noise(1.0).sample(3, 2, torch.Generator())


@pytest.mark.parametrize(
    "mutation",
    [
        Groups.of_sets({1: [1, 3]}, probability={1: [0.2, 0.8]}),
        Typos(("cat", "at"), unknown=1),
        Noise(0.5, norm=math.inf, low=-1.0),
    ],
)
def test_mutations_come_back_from_what_they_write_down(mutation: Mutation) -> None:
    again = restore(mutation.settings(), mutation.tensors())
    assert type(again) is type(mutation)
    assert again.settings() == mutation.settings()
    assert all(torch.equal(value, again.tensors()[key]) for key, value in mutation.tensors().items())
    if mutation.finite:
        assert listed(again, 1) == listed(mutation, 1)


def test_an_own_function_cannot_be_saved_and_strange_kinds_are_told() -> None:
    with pytest.raises(hf.errors.BadInput, match="own function"):
        Own(lambda x: [(x, 1.0)]).settings()
    with pytest.raises(hf.errors.BadInput, match="newer"):
        restore({"kind": "swaps"}, {})
    with pytest.raises(hf.errors.BadInput, match="newer"):
        outputs.restore({"kind": "ranks"})


def test_output_abstractions() -> None:
    y = torch.tensor([[0.1, 0.4], [2.0, -1.0], [0.0, 0.0]])
    assert Classes().own(y).tolist() == [1, 0, 0]
    assert Classes().labels(y, y).tolist() == [1, 0, 1]  # a tie is a loss, as in a certificate
    tied = torch.tensor(
        [[1.0, 2.0, 2.0, 2.0], [2.0, 1.0, 2.0, 0.0], [2.0, 2.0, 1.0, 0.0], [0.0, 3.0, 3.0, 1.0]]
    )
    assert Classes().labels(tied, torch.eye(4)[[1, 0, 3, 2]]).tolist() == [2, 2, 0, 1]
    assert Classes().margins(y, y).tolist() == pytest.approx([0.15, 1.5, 0])
    bins = Bins((0.0, 1.0))
    assert bins.labels(y, y).tolist() == [1, 2, 1]
    assert bins.margins(y, y).tolist() == pytest.approx([0.1, 1.0, 0.0])
    near = Tolerance(0.5)
    assert near.labels(y, torch.tensor([[0.5, 0], [1.0, 0], [0.6, 0]])).tolist() == [1, 2, 0]
    for output in (Classes(), bins, near):
        assert outputs.restore(output.settings()) == output
    for wrong in (
        lambda: Bins(()),
        lambda: Bins((1.0, 0.0)),
        lambda: Tolerance(0.0),
        lambda: Classes().count(1),
        lambda: Bins((0.0,), 3).count(2),
    ):
        with pytest.raises(hf.errors.BadInput):
            wrong()
