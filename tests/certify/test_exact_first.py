"""Word substitution: enumeration runs first on inputs with few sentences, and then nothing else queries the network."""

import math

import pytest
import torch
from test_words import SYNONYMS, trained
from torch import nn

import holdfast as hf
from holdfast.api.methods import default_methods
from holdfast.certify import Enumerate
from holdfast.result import Bracket


def sentences(tokens: torch.Tensor) -> int:
    """How many sentences the substitutes allow, the input included."""
    return math.prod(1 + len(SYNONYMS.get(int(word), ())) for word in tokens)


def radii(rows: range, substitutes: dict[int, list[int]] = SYNONYMS) -> list[Bracket]:
    known = trained(nn.LSTM)
    some = list(rows)
    return hf.radius(known.net, known.tokens[some], known.y[some], substitutes=substitutes)


def test_few_sentences_are_enumerated_and_nothing_else_is_asked() -> None:
    known = trained(nn.LSTM)
    before = known.net.queries
    found = radii(range(len(known.tokens)))
    spent = known.net.queries - before
    for row, bracket in enumerate(found):
        assert bracket.closed
        true = known.radius(row)
        assert bracket.lower.value == (math.inf if math.isinf(true) else max(true, 0))
    assert spent <= sum(map(sentences, known.tokens)) + 8 * len(known.tokens), "a few checks of each input"


def test_the_other_methods_would_have_needed_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """So the limit is where enumeration stops to be cheaper, in queries an input."""
    known = trained(nn.LSTM)
    methods = [m for m in default_methods(known.net, "radius", what="words") if not isinstance(m, Enumerate)]
    assert len(methods) >= 3
    before = known.net.queries
    hf.radius(known.net, known.tokens, known.y, substitutes=SYNONYMS, methods=methods)
    other = known.net.queries - before
    before = known.net.queries
    radii(range(len(known.tokens)))
    assert known.net.queries - before < other


def test_an_input_of_many_sentences_changes_nothing_for_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are decided one by one: a mixed batch gives each input what it gets alone."""
    known = trained(nn.LSTM)
    counts = [sentences(tokens) for tokens in known.tokens]
    monkeypatch.setattr(Enumerate, "cheap", sorted(counts)[len(counts) // 2])
    assert min(counts) <= Enumerate.cheap < max(counts)
    together = radii(range(len(known.tokens)))
    for row, bracket in enumerate(together):
        [alone] = radii(range(row, row + 1))
        assert (alone.lower.value, alone.upper.value) == (bracket.lower.value, bracket.upper.value)
        if counts[row] <= Enumerate.cheap:
            assert alone.upper.evidence.method == bracket.upper.evidence.method


def test_a_budget_ends_the_enumeration_too() -> None:
    known = trained(nn.LSTM)
    found = hf.radius(known.net, known.tokens, known.y, substitutes=SYNONYMS, stop=hf.Stop(queries=1))
    assert not all(bracket.closed for bracket in found)
