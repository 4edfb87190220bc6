"""The arithmetic of MARBLE's Table 2: picks with ties, the control for the position, the paper's repeats."""

import pytest
import torch
from benchmarks.monitor.table2 import Places, mann_whitney, repeated, usual_success

TEXT = torch.tensor([0, 0, 0, 1, 1, 2, 2])
FROM_END = torch.tensor([3, 1, 0, 1, 0, 3, 0])
SUCCESS = torch.tensor([0.9, 0.1, 0.2, 0.3, 0.4, 0.5, 0.0], dtype=torch.float64)


def places() -> Places:
    usual = usual_success(SUCCESS, FROM_END)
    return Places(TEXT, SUCCESS, torch.stack([usual, usual]))


def test_the_usual_success_is_the_mean_of_the_other_texts_at_that_distance() -> None:
    found = usual_success(SUCCESS, FROM_END)
    for i in range(len(TEXT)):
        others = [float(SUCCESS[j]) for j in range(len(TEXT)) if j != i and FROM_END[j] == FROM_END[i]]
        assert float(found[i]) == pytest.approx(sum(others) / len(others))


def test_words_with_equal_scores_share_the_pick() -> None:
    score = torch.tensor([1.0, 0.0, 0.0, 5.0, 6.0, 2.0, 2.0], dtype=torch.float64)
    assert places().picked(score).tolist() == pytest.approx([0.15, 0.3, 0.25])
    assert places().picked(-score).tolist() == pytest.approx([0.9, 0.4, 0.25])
    assert places().mean().tolist() == pytest.approx([0.4, 0.35, 0.25])


def test_a_score_that_knows_the_position_alone_is_not_above_its_position() -> None:
    """In these texts success depends on the distance from the end and on nothing else."""
    text = torch.arange(20).repeat_interleave(4)
    from_end = torch.tensor([3, 2, 1, 0]).repeat(20)
    success = from_end.double() / 10
    found = Places(text, success, usual_success(success, from_end)[None])
    first = -from_end.double()
    assert found.picked(first).tolist() == pytest.approx([0.3] * 20)
    assert found.mean().tolist() == pytest.approx([0.15] * 20)
    assert found.above(first, 0).tolist() == pytest.approx([0.0] * 20)


def test_a_text_without_a_comparison_is_left_out() -> None:
    text, from_end = torch.tensor([0, 0, 1, 1]), torch.tensor([7, 0, 1, 0])
    success = torch.tensor([0.5, 0.5, 0.5, 0.5], dtype=torch.float64)
    found = Places(text, success, usual_success(success, from_end)[None])
    assert len(found.above(-from_end.double(), 0)) == 0
    assert len(found.above(from_end.double(), 0)) == 2


def test_some_texts_keep_the_comparison_with_all() -> None:
    chosen = torch.tensor([3, 4, 5, 6])
    part = places().of_texts(2, chosen)
    assert part.text.tolist() == [0, 0, 1, 1]
    assert torch.equal(part.usual, places().usual[:, chosen])


def test_repeats_are_rates_with_the_expected_mean() -> None:
    success = torch.tensor([0.2] * 40, dtype=torch.float64)
    rates = repeated(success)
    assert rates.shape == (100,)
    assert float(rates.mean()) == pytest.approx(0.2, abs=0.02)
    assert float(mann_whitney(repeated(success + 0.2), rates)) < 0.01
    assert float(mann_whitney(rates, rates)) == pytest.approx(0.5, abs=0.05)
