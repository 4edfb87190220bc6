"""The texts that edits make, against a second enumeration that tries every action at every place."""

import pytest
import torch
from edit_models import ALL_KINDS, RULES, WORDS, texts

import truth
from holdfast import batch
from holdfast.errors import BadInput
from holdfast.random_streams import RandomStreams
from holdfast.region import EditedTexts, EditRules
from holdfast.region.edits import DELETE, NO_WORD, count_kinds

VECTORS = torch.randn(WORDS, 2, generator=torch.Generator().manual_seed(0))
every_rule = pytest.mark.parametrize("rules", RULES.values(), ids=RULES.keys())


@every_rule
def test_edits_make_exactly_the_texts_of_the_definition(rules: EditRules) -> None:
    for text in [*map(tuple, texts(3, 4).tolist()), (3,), (5, 5), (1, 2, 1, 2, 1)]:
        options = rules.options(text)
        known = truth.all_edited(text, rules, rules.total)
        for edits in range(rules.total + 1):
            made = list(options.texts(edits))
            assert len(made) <= options.count(edits)  # which counts the empty text, too
            assert len(made) == options.count(edits) or rules.budgets[DELETE] >= len(text)
            assert all(options.apply(edits_made) == found for found, edits_made in made)
            fewer = {found for found, count in known.items() if count == edits}
            assert fewer <= {found for found, _ in made} <= known.keys()


@every_rule
def test_the_distance_is_the_smallest_number_of_edits(rules: EditRules) -> None:
    rows = texts(2, 4, seed=3)
    region = EditedTexts.around(rows, rules, VECTORS)
    for row, text in enumerate(map(tuple, rows.tolist())):
        known = truth.all_edited(text, rules, rules.total)
        others = [(8, 8, 8), (*text, 0, 0, 0, 0), (0, *text[:-1])]
        for made, count in [*known.items(), *((o, known.get(o)) for o in others)]:
            edits = rules.options(text).fewest(made)
            assert (None if edits is None else len(edits)) == count
            assert edits is None or (
                rules.options(text).apply(edits) == made and rules.allows(count_kinds(edits))
            )
            if len(made) <= region.width:
                points = region.to_rows([made] * 2)
                assert float(region.distance(points)[row]) == (float("inf") if count is None else count)


def test_fixed_words_stay_and_nothing_is_put_outside_of_them() -> None:
    rules = EditRules((1, 1, 1, 1, 1), 2, any_substitutes=(4,), insertions=(5,), fixed=frozenset({0, 1}))
    text = (0, 3, 2, 1)
    found = {made for edits in (1, 2) for made, _ in rules.options(text).texts(edits)}
    assert all(made[0] == 0 and made[-1] == 1 and made.count(0) == made.count(1) == 1 for made in found)
    assert {(0, 5, 3, 2, 1), (0, 3, 2, 5, 1), (0, 3, 5, 2, 1), (0, 2, 1), (0, 2, 3, 1)} <= found
    assert rules.options((0, 1)).most == 0


def test_extensions_stay_within_the_budgets_and_do_not_overlap() -> None:
    options = ALL_KINDS.options((3, 0, 6, 1))
    for first in options.extensions(()):
        assert options.apply(first) in {made for made, _ in options.texts(1)} or options.apply(first) == ()
        for second in options.extensions(first):
            made = options.apply(second)
            assert not made or len(options.fewest(made) or ()) <= 2


def test_what_is_read_is_cut_and_filled_up() -> None:
    padded = RULES["padded"]
    assert padded.read((1, 2)) == (1, 2, 0, 0, 0, 0)
    assert padded.read((1, 2, 3, 4, 5, 6, 7)) == (1, 2, 3, 4, 5, 6)
    assert padded.strip((1, 2, 0, 0)) == (1, 2)
    assert RULES["cut"].read((1, 2, 3, 4, 5)) == (1, 2, 3, 4)
    assert RULES["cut"].read((1,)) == (1,)


def test_a_region_is_a_batch_like_others() -> None:
    rows = texts(4, 3)
    region = EditedTexts.around(rows, ALL_KINDS, VECTORS).at(2.0)
    assert region.centre.shape == (4, 3, 2)
    assert torch.equal(region.as_data(region.centre), rows)
    both = batch.concatenate(
        [batch.take(region, torch.tensor([0])), batch.take(region, torch.tensor([2, 3]))]
    )
    assert torch.equal(both.tokens, rows[[0, 2, 3]])
    drawn = region.sample(5, RandomStreams.of(range(4), 0))
    assert bool(region.contains(drawn).all())
    assert not bool(
        region.at(0.0).contains(drawn[drawn[..., -1] != NO_WORD][:0].reshape(0, 4, region.width)).any()
    )
    point = region.from_data(torch.tensor([1, 2]))
    assert point is not None
    assert region.trim(point).tolist() == [1, 2]
    with pytest.raises(BadInput, match="text is empty"):
        EditedTexts.around(torch.zeros((1, 0), dtype=torch.int64), ALL_KINDS, VECTORS)
