"""What is said about a monitor's scores: against brute force through the user's own model."""

import math
from typing import Any

import pytest
import torch

from holdfast.datasets import helpdesk
from holdfast.monitor import Groups, Monitor, Noise, Typos
from holdfast.monitor.evaluate import RELIABILITY_EDGES, Mean, evaluate
from holdfast.network import Network

TEXTS = [text.split() for text in helpdesk.sentences("test").text[::3]]


def monitor(**settings: Any) -> Monitor:
    net = helpdesk.network()
    sets = Groups.of_sets(helpdesk.sets(), vocabulary=net.vocabulary)
    return Monitor.fit(net, helpdesk.sentences("train").tokens, sets, unknown="unk", **settings)


def brute_force(net: Network) -> list[list[float]]:
    """For each text the share of each attackable word's set that changes the final answer."""
    sets, found = helpdesk.sets(), []
    for words in TEXTS:
        truth = int(net.ask_tokens(helpdesk.tokens(words)[None]).argmax())
        shares = []
        for i, word in enumerate(words):
            mutants = [helpdesk.tokens([*words[:i], other, *words[i + 1 :]]) for other in sets.get(word, ())]
            if mutants:
                shares.append(
                    float((net.ask_tokens(torch.stack(mutants)).argmax(1) != truth).double().mean())
                )
        found.append(shares)
    return found


def test_attacks_are_those_of_brute_force() -> None:
    made = monitor()
    found = evaluate(made, TEXTS)
    shares = [row for row in brute_force(made.net) if row]
    assert (found.sequences, found.eligible) == (len(TEXTS), len(shares))
    assert found.attackable == sum(map(len, shares))
    now, final = found.attacks
    assert (now.k, final.k) == (0, "final")
    assert found.random is not None
    assert found.random.value == pytest.approx(sum(sum(row) / len(row) for row in shares) / len(shares))
    assert final.least.value == pytest.approx(sum(map(max, shares)) / len(shares))
    assert final.most.value == pytest.approx(sum(map(min, shares)) / len(shares))
    assert final.least.value > found.random.value > final.most.value
    assert final.most.value <= now.least.value <= final.least.value


def test_enumeration_has_no_error_and_its_sure_places_never_change() -> None:
    found = evaluate(monitor(), TEXTS)
    assert found.kind == "proved"
    assert found.errors is not None
    assert (found.errors.squared, found.errors.within) == (0, 1)
    assert found.errors.constant > 0.01
    assert sum(row.count for row in found.reliability) == found.attackable
    sure = found.reliability[-1]
    assert (sure.low, sure.high, sure.kept) == (1, 1, 1)
    for row in found.reliability:
        assert row.low <= row.score <= row.high
        assert 0 <= row.kept_low <= row.kept <= row.kept_high <= 1


def test_draws_err_a_little_and_their_intervals_hold() -> None:
    found = evaluate(monitor(mode="sampled", samples=60), TEXTS)
    assert found.kind == "sampled"
    assert found.errors is not None
    assert 0 < found.errors.squared < 0.01
    assert found.errors.within > 0.85
    assert found.attacks[1].least.value > found.attacks[1].most.value


def test_an_abstract_model_has_no_final_scores_but_is_attacked_all_the_same() -> None:
    net = helpdesk.network()
    typos = Typos(net.vocabulary or (), unknown=0)
    made = Monitor.fit(net, helpdesk.sentences("train").tokens, typos, mode="abstract", unknown="unk")
    found = evaluate(made, TEXTS)
    assert [attack.k for attack in found.attacks] == [0]
    assert found.errors is not None
    assert 0 < found.errors.squared < found.errors.constant


def test_noise_cannot_be_enumerated() -> None:
    torch.manual_seed(0)

    class Reader(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.head = torch.nn.LSTM(2, 5, batch_first=True), torch.nn.Linear(5, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            answer: torch.Tensor = self.head(self.lstm(x)[0][:, -1])
            return answer

    made = Monitor.fit(Network.from_torch(Reader().eval(), shape=(4, 2)), [], Noise(2.0), samples=40)
    found = evaluate(made, list(torch.randn(6, 4, 2)))
    assert found.errors is None
    assert found.attackable == 24
    assert len(found.attacks) == 2


def test_nothing_to_attack_is_said_as_nothing() -> None:
    found = evaluate(monitor(), [["the", "app"], ["is"]])
    assert (found.attackable, found.eligible, found.random, found.attacks, found.reliability) == (
        0,
        0,
        None,
        (),
        (),
    )


@pytest.mark.parametrize("count", [1, 2, 4, 9, 30])
def test_an_interval_of_few_sequences_contains_the_expected_value_often_enough(count: int) -> None:
    """The exact probability over all outcomes of `count` tosses, for expected values of 1 to 99 %; the usual normal
    approximation contains 1 % with probability 0.04 only."""
    means = [Mean.of(torch.tensor([1.0] * hits + [0.0] * (count - hits)), 0.95) for hits in range(count + 1)]
    for percent in range(1, 100):
        p = percent / 100
        covered = sum(
            math.comb(count, hits) * p**hits * (1 - p) ** (count - hits)
            for hits, mean in enumerate(means)
            if mean.low <= p <= mean.high
        )
        assert covered >= 0.95 - 1e-12, p


def test_no_success_in_four_sequences_is_not_certain() -> None:
    found = Mean.of(torch.zeros(4), 0.95)
    assert (found.value, found.low) == (0, 0)
    assert found.high == pytest.approx(1 - 40 ** (-1 / 4))  # KL(0, p) = -log(1 - p) = log(40) / 4


def test_means_have_intervals_that_shrink() -> None:
    values = (torch.arange(400) % 2).double()
    some, many = Mean.of(values[:40], 0.95), Mean.of(values, 0.95)
    assert some.value == many.value == 0.5
    assert many.high - many.low < some.high - some.low
    assert RELIABILITY_EDGES[0] == 0
