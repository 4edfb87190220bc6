"""Recurrent token classifiers against replaced words: proofs and enumeration against every sentence there is."""

import itertools
import math
from dataclasses import dataclass
from functools import cache

import pytest
import torch
from torch import Tensor, nn

import holdfast as hf
from holdfast.random_streams import RandomStreams

WORDS, GROUP, LENGTH = 15, 3, 5  # five groups of three synonyms
SYNONYMS = {
    word: [other for other in range(WORDS) if other // GROUP == word // GROUP and other != word]
    for word in range(WORDS - GROUP)
}

QUICK = [hf.attacks.PGD(rounds=2, steps=10), hf.certify.Certify()]


class Reader(nn.Module):
    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, 4)
        self.layer, self.head = kind(4, 6, batch_first=True), nn.Linear(6, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        answer: Tensor = self.head(self.layer(self.table(tokens))[0][:, -1])
        return answer


@dataclass(frozen=True)
class Trained:
    model: nn.Module
    net: hf.Network
    tokens: Tensor
    y: Tensor

    def exact(self, row: int, radius: int) -> float:
        """The smallest margin over every sentence with at most so many replaced words, in float64."""
        return min(margin for changed, margin in self.every(row) if changed <= radius)

    def radius(self, row: int) -> float:
        return min((changed for changed, margin in self.every(row) if margin <= 0), default=math.inf) - 1

    @cache  # noqa: B019
    def every(self, row: int) -> list[tuple[int, float]]:
        own = self.tokens[row].tolist()
        sentences = torch.tensor(list(itertools.product(*([word, *SYNONYMS.get(word, ())] for word in own))))
        with torch.no_grad():
            outputs = self.model.double()(sentences)
            self.model.float()
        y = int(self.y[row])
        changed = (sentences != self.tokens[row]).sum(-1)
        return list(zip(changed.tolist(), (outputs[:, y] - outputs[:, 1 - y]).tolist(), strict=True))


@cache
def trained(kind: type[nn.RNNBase]) -> Trained:
    """Learns whether a sentence holds more of the first words than of the last; some synonyms lie close together, some do not."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = Reader(kind)
        centres = torch.randn(WORDS // GROUP, 1, 4)
        model.table.weight.data = (
            centres + torch.rand(WORDS // GROUP, 1, 1) * 0.6 * torch.randn(WORDS // GROUP, GROUP, 4)
        ).flatten(0, 1)
        tokens = torch.randint(0, WORDS, (256, LENGTH))
        label = ((tokens < WORDS // 2).sum(-1) * 2 > LENGTH).long()
        optimiser = torch.optim.Adam([*model.layer.parameters(), *model.head.parameters()], 0.03)
        for _ in range(40):
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(tokens), label).backward()
            optimiser.step()
        model.eval().requires_grad_(False)
        chosen = tokens[:12]
        return Trained(model, hf.Network.from_torch(model, tokens=True), chosen, model(chosen).argmax(-1))


both_kinds = pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU], ids=["lstm", "gru"])


@both_kinds
@pytest.mark.parametrize("radius", [1, LENGTH])
def test_worst_scores_hold_for_every_sentence(kind: type[nn.RNNBase], radius: int) -> None:
    known = trained(kind)
    assert known.net.vectors is not None
    region = hf.region.Words.around(known.tokens, SYNONYMS, known.net.vectors, radius)
    found = hf.worst(known.net, region, hf.Robustness(known.y), methods=QUICK)
    for row, bracket in enumerate(found):
        truth = known.exact(row, radius)
        assert bracket.lower.value <= truth <= bracket.upper.value + 1e-6
    assert sum(bracket.lower.value > 0 for bracket in found) >= 2  # and the proofs are good for something


@both_kinds
def test_radii_are_proved_below_and_enumerated_exactly(kind: type[nn.RNNBase]) -> None:
    known = trained(kind)
    answers = [known.radius(row) for row in range(len(known.tokens))]
    assert {0, math.inf} <= set(answers)
    proofs = hf.radius(known.net, known.tokens, known.y, substitutes=SYNONYMS, methods=[hf.certify.Certify()])
    for bracket, answer in zip(proofs, answers, strict=True):
        assert bracket.lower.value <= answer
    assert any(bracket.lower.value == math.inf for bracket in proofs)  # all places at once, by bounds alone
    exact = hf.radius(known.net, known.tokens, known.y, substitutes=SYNONYMS)
    assert [(b.lower.value, b.upper.value) for b in exact] == [(a, a) for a in answers]
    for bracket, own in zip(exact, known.tokens, strict=True):
        witness = bracket.upper.evidence.witness
        if witness is not None:
            assert int((witness != own).sum()) == bracket.upper.value + 1
            assert all(
                int(new) in [int(old), *SYNONYMS.get(int(old), ())]
                for new, old in zip(witness, own, strict=True)
            )
            assert int(known.model(witness[None]).argmax()) != int(known.model(own[None]).argmax())


@both_kinds
def test_long_sentences_are_attacked_in_vain(kind: type[nn.RNNBase]) -> None:
    """More sentences than anyone can ask: what is proved must survive random ones and the best that a search finds."""
    known = trained(kind)
    tokens = torch.randint(0, WORDS, (6, 12), generator=torch.Generator().manual_seed(0))
    y = known.model(tokens).argmax(-1)
    assert known.net.vectors is not None
    for radius in (1, 12):
        region = hf.region.Words.around(tokens, SYNONYMS, known.net.vectors, radius)
        found = hf.worst(known.net, region, hf.Robustness(y), methods=QUICK)
        words = region.decode(region.sample(500, RandomStreams.of(range(len(region)), 1)))
        with torch.no_grad():
            z = known.model(words.flatten(0, 1)).reshape(500, 6, 2)
        margin = (
            z.gather(-1, y.expand(500, 6)[..., None])[..., 0]
            - z.gather(-1, 1 - y.expand(500, 6)[..., None])[..., 0]
        )
        for bracket, lowest in zip(found, margin.amin(0).tolist(), strict=True):
            assert bracket.lower.value <= min(lowest, bracket.upper.value) + 1e-6


def test_enumeration_asks_no_more_than_it_may() -> None:
    known = trained(nn.GRU)
    before = known.net.queries
    found = hf.radius(
        known.net,
        known.tokens,
        known.y,
        substitutes=SYNONYMS,
        methods=[hf.certify.Enumerate(sentences=2 * LENGTH)],
    )
    for row, bracket in enumerate(found):
        assert min(known.radius(row), 1) <= bracket.lower.value <= known.radius(row) <= bracket.upper.value
    assert known.net.queries - before <= len(known.tokens) * (2 * LENGTH * LENGTH + 4) + 10
