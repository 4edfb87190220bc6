"""Word substitution: enumeration runs first on inputs with few sentences, and then nothing else queries the network."""

import math

import pytest
import torch
from test_words import SYNONYMS, trained
from torch import Tensor, nn

import holdfast as hf
from holdfast.api.methods import default_methods
from holdfast.certify import Certify, Enumerate
from holdfast.certify import enumerate as enumeration
from holdfast.method import Method
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


WORDS, LENGTH, WIDE = 40, 6, 8
SPREAD = 0.3  # of the vectors of words of one meaning
GROUP = 5  # words of one meaning: four substitutes at each position


class Transformer(nn.Module):
    """One layer of attention over a few words, with random weights."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.places = nn.Embedding(WORDS, WIDE), nn.Parameter(torch.randn(16, WIDE))
        self.query, self.key, self.value = (nn.Linear(WIDE, WIDE) for _ in range(3))
        self.wide, self.norm, self.head = nn.Linear(WIDE, WIDE), nn.LayerNorm(WIDE), nn.Linear(WIDE, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens) + self.places[: tokens.shape[1]]
        weights = torch.softmax(self.query(x) @ self.key(x).transpose(-1, -2) / math.sqrt(WIDE), -1)
        out: Tensor = self.head(self.norm(x + torch.relu(self.wide(weights @ self.value(x)))).mean(1))
        return out


def ask_transformer(**more: object) -> tuple[list[Bracket], int]:
    """Radii of three sentences with 5^6 = 15,625 variants each, more than are `cheap`; and the queries used."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Transformer().eval().requires_grad_(False)
        centres = model.table.weight[::GROUP].repeat_interleave(GROUP, 0)
        model.table.weight.copy_(centres + SPREAD * torch.randn(WORDS, WIDE))
        tokens = torch.randint(0, WORDS, (3, LENGTH))
    groups = [[word // GROUP * GROUP + k for k in range(GROUP)] for word in range(WORDS)]
    others = {word: [other for other in groups[word] if other != word] for word in range(WORDS)}
    net = hf.Network.from_torch(model, tokens=True)
    before = net.queries
    found = hf.radius(net, tokens, model(tokens).argmax(-1), substitutes=others, **more)  # type: ignore[arg-type]
    return list(found), net.queries - before


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The methods of all steps, in their order."""
    done: list[str] = []

    def note(method: type[Method[object]]) -> None:
        step = method.step

        def noted(self: Method[object], *given: object) -> object:
            done.append(self.name)
            return step(self, *given)  # type: ignore[arg-type]

        monkeypatch.setattr(method, "step", noted)

    for method in (Enumerate, Certify, hf.attacks.PGD, hf.hamming.Greedy):
        note(method)  # type: ignore[type-abstract]
    return done


def test_sentences_of_a_small_transformer_come_before_attacks_and_proofs(steps: list[str]) -> None:
    """Enumeration costs less than a proof pass here, and decides every sentence: nothing else has a step."""
    found, spent = ask_transformer()
    assert set(steps) == {"Enumerate"}
    assert all(bracket.closed for bracket in found)
    assert {math.isinf(bracket.lower.value) for bracket in found} == {True, False}
    alone, needed = ask_transformer(methods="enumerate")
    assert [(b.lower.value, b.upper.value) for b in found] == [(b.lower.value, b.upper.value) for b in alone]
    assert spent <= needed + 8 * len(found), "a few checks of each input"


def test_dear_sentences_wait_for_the_other_methods(steps: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the counts that are cheap come first; the others have their turn."""
    least = enumeration.LEAST_PRODUCTS
    monkeypatch.setattr(enumeration, "FIRST_PRODUCTS", 3 * 4 * LENGTH * least)  # those with one replaced word
    ask_transformer(stop=hf.Stop(queries=2000))
    assert steps[:2].count("Enumerate") == 2, "one replaced word, then its turn among all methods"
    assert steps[2] != "Enumerate"


def test_a_step_ends_after_some_inputs(steps: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """One step of each count and input, so that a budget that ends loses no more than the current input."""
    monkeypatch.setattr(enumeration, "SENTENCES_IN_STEP", 1)
    single, _ = ask_transformer(methods="enumerate")
    many = steps.count("Enumerate")
    monkeypatch.undo()
    whole, _ = ask_transformer(methods="enumerate")
    assert [(b.lower.value, b.upper.value) for b in single] == [(b.lower.value, b.upper.value) for b in whole]
    assert many == sum(min(b.upper.value + 1, LENGTH) for b in whole)
