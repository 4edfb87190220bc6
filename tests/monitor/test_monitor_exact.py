"""Exact scores against the user's own module on every mutated sequence, label for label."""

from typing import Any

import pytest
import torch
from monitor_truth import (
    CELLS,
    CLASSES,
    DIMENSION,
    HIDDEN,
    WORDS,
    Reader,
    answer,
    some_frames,
    some_groups,
    some_sequences,
    truth,
)
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import holdfast as hf
from holdfast.monitor import Bins, Groups, Noise, Own, Tolerance
from holdfast.monitor.engine import exact
from holdfast.monitor.engine.exact import labels
from holdfast.monitor.engine.recurrent import Recurrent

STEPS = (0, 1, 3, "final")


def agree(found: exact.Transitions, wanted: Tensor) -> None:
    assert torch.equal(found.gamma.isnan(), wanted.isnan())
    assert float((found.gamma - wanted).nan_to_num().abs().max()) <= 1e-12
    known = ~wanted[:, 0].isnan()
    assert float((found.gamma[known].sum(1) - 1).abs().max()) <= 1e-12


def two_ways(x: Tensor) -> list[tuple[Tensor, float]]:
    """A frame, turned round, and shifted."""
    return [(x, 0.5), (-x, 0.3), (x + 1, 0.2)]


@pytest.mark.parametrize("k", STEPS)
@pytest.mark.parametrize("cell", CELLS)
def test_tokens_equal_brute_force(cell: str, k: Any) -> None:
    module = Reader(cell, take="state" if "stacked" in cell else "output")
    net, sequences, groups = module.network(), some_sequences(), some_groups()
    view = Recurrent.of(net)
    assert (view is None) == ("bidirectional" in cell)
    agree(labels(net, sequences, groups, k=k), truth(module, sequences, groups, k))


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("cell", CELLS)
def test_frames_equal_brute_force(cell: str, batch_first: bool) -> None:
    module = Reader(cell, tokens=False, batch_first=batch_first, head="deep" if cell == "lstm" else "linear")
    net, sequences, own = module.network(), some_frames(), Own(two_ways)
    for k in (0, "final"):
        agree(labels(net, sequences, own, k=k), truth(module, sequences, own, k))


@pytest.mark.parametrize(
    ("head", "take", "batch_first"),
    [("deep", "state", False), ("linear", "mean", True), ("deep", "output", True)],
)
def test_any_head_equals_brute_force(head: str, take: str, batch_first: bool) -> None:
    module = Reader("gru", head=head, take=take, batch_first=batch_first)
    net, sequences, groups = module.network(), some_sequences(), some_groups()
    assert (Recurrent.of(net) is None) == (take == "mean")  # a sum over time is no state of the layer
    for k in (0, 2):
        agree(labels(net, sequences, groups, k=k), truth(module, sequences, groups, k))


@pytest.mark.parametrize("output", [Bins((-0.5, 0.0, 0.7), output=1), Tolerance(0.3, output=2)])
def test_numbers_equal_brute_force(output: Any) -> None:
    module = Reader("lstm")
    net, sequences, groups = module.network(), some_sequences(), some_groups()
    for k in (0, 1, "final"):
        found, wanted = (
            labels(net, sequences, groups, k=k, outputs=output),
            truth(module, sequences, groups, k, output),
        )
        agree(found, wanted)
        assert 0 < float(found.values.nan_to_num(1).min()) < 1  # something moved


class Packed(nn.Module):
    """Lengths beside the tokens, a learned first state, packing: as in many tutorials."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, DIMENSION)
        self.recurrent = nn.LSTM(DIMENSION, HIDDEN, num_layers=2, batch_first=True)
        self.first = nn.Parameter(torch.randn(2, 1, HIDDEN))
        self.head = nn.Linear(HIDDEN, CLASSES)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(self.embedding(x), lengths, batch_first=True, enforce_sorted=False)
        first = self.first.expand(-1, len(x), -1).contiguous()
        outputs, _ = pad_packed_sequence(self.recurrent(packed, (first, first))[0], batch_first=True)
        logits: Tensor = self.head(outputs[torch.arange(len(x)), lengths - 1])
        return logits


def test_packed_sequences_stay_closed_and_exact() -> None:
    """What packing does to rows and places is not read from the code, so the module is asked about every mutant."""
    torch.manual_seed(5)
    module = Packed().eval()
    net, sequences, groups = hf.Network.from_torch(module, tokens=True), some_sequences(), some_groups()
    assert Recurrent.of(net) is None
    found = labels(net, sequences, groups, k="final")
    place = 0
    for sequence in sequences:
        with torch.no_grad():
            said = module(sequence[None], torch.tensor([len(sequence)])).argmax(1)
        assert (found.labels[place : place + len(sequence)] == said).all()
        place += len(sequence)
    assert 0 < float(found.values.min()) < 1


class FirstState(Reader):
    """A learned first state, for all rows alike, and zeros for the memory."""

    def __init__(self) -> None:
        super().__init__("lstm-stacked")
        self.first = nn.Parameter(torch.randn(2, 1, HIDDEN))

    def forward(self, x: Tensor) -> Tensor:
        memory = torch.zeros(2, x.size(0), HIDDEN, device=x.device)
        outputs, _ = self.recurrent(
            self.embedding(x), (self.first.expand(-1, x.shape[0], -1).contiguous(), memory)
        )
        logits: Tensor = self.head(outputs[:, -1, :])
        return logits


def test_a_learned_first_state_is_opened() -> None:
    module = FirstState().eval()
    net, sequences, groups = module.network(), some_sequences(), some_groups()
    view = Recurrent.of(net)
    assert view is not None
    assert float(view.start(1).abs().max()) > 0
    agree(labels(net, sequences, groups, k="final", view=view), truth(module, sequences, groups, "final"))


class Tagger(nn.Module):
    """Answers behind every element, in double precision."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, DIMENSION)
        self.recurrent = nn.GRU(DIMENSION, HIDDEN)
        self.head = nn.Linear(HIDDEN, CLASSES)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.recurrent(self.embedding(x))[0])
        return logits


@pytest.mark.parametrize("pool", ["last", "mean"])
def test_models_that_answer_every_element(pool: Any) -> None:
    torch.manual_seed(6)
    net = hf.Network.from_torch(Tagger().eval(), tokens=True, time_first=True, pool=pool)
    view = Recurrent.of(net)
    assert (view is not None) == (pool == "last")
    if view is not None:
        assert view.slack < 1e-10
    sequences, groups = some_sequences(), some_groups()
    agree(labels(net, sequences, groups, k=1), labels(net, sequences, groups, k=1, view=None).gamma)


def test_a_module_that_looks_back_is_not_opened() -> None:
    class Attends(Reader):
        def forward(self, x: Tensor) -> Tensor:
            outputs = self.recurrent(self.embedding(x))[0]
            logits: Tensor = self.head((outputs * (outputs @ outputs[:, -1:].mT).softmax(1)).sum(1))
            return logits

    assert Recurrent.of(Attends("lstm").network()) is None


class CutsOff(Reader):
    """Reads no more than 120 words: more than the lengths on which a view is checked."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x[:, :120])


def test_what_a_module_does_to_long_sequences_only_is_seen() -> None:
    net = hf.Network.from_torch(CutsOff("gru"), tokens=True)
    assert Recurrent.of(net) is None
    long = torch.randint(0, WORDS, (130,), generator=torch.Generator().manual_seed(0))
    found = labels(net, [long], some_groups(), k="final")
    assert (found.values[120:] == 1).all()  # what is not read changes nothing


def test_a_long_sequence_is_asked_of_the_module_once() -> None:
    net = Reader("gru").network()
    view = Recurrent.of(net)
    assert view is not None
    long = torch.randint(0, WORDS, (130,), generator=torch.Generator().manual_seed(0))
    before = net.queries
    assert view.covers(long, long)
    assert net.queries == before + 1
    assert view.covers(long, long)
    assert net.queries == before + 1


class Padded(Reader):
    """Takes the answer behind the last word that is not padding, whose vector is zero."""

    def forward(self, x: Tensor) -> Tensor:
        words = self.embedding(x)
        outputs, _ = self.recurrent(words)
        last = (words.abs().sum(-1).sign() * torch.arange(1, words.shape[1] + 1)).amax(1).long().clamp_min(
            1
        ) - 1
        logits: Tensor = self.head(outputs[torch.arange(len(x)), last])
        return logits


def test_a_token_that_means_something_else_is_seen() -> None:
    module = Padded("gru")
    with torch.no_grad():
        module.embedding.weight[0] = 0
    assert Recurrent.of(hf.Network.from_torch(module, tokens=True)) is None


def test_close_calls_are_decided_by_the_users_module() -> None:
    """Two classes nearly tie everywhere, and the view is off by more than that: without the module every label would be wrong."""
    module = Reader("lstm")
    with torch.no_grad():
        module.head.weight[1] = module.head.weight[0]
        module.head.bias[1] = module.head.bias[0] + 4e-6
    net, sequences, groups = module.network(), some_sequences(), some_groups()
    view = Recurrent.of(net)
    assert view is not None
    assert view.head is not None
    assert view.slack > 1e-5
    view.head = (view.head[0], view.head[1] + torch.tensor([8e-6, 0, 0, 0]))
    for k in (0, "final"):
        found = labels(net, sequences, groups, k=k, view=view)
        agree(found, truth(module, sequences, groups, k))
        assert found.asked > 10
        assert 1 in found.labels
        assert 0 not in found.labels


def test_clear_labels_ask_nobody() -> None:
    net = Reader("gru").network()
    view, before = Recurrent.of(net), net.queries
    found = labels(net, some_sequences(), some_groups(), view=view)
    assert found.asked == 0
    assert net.queries == before


def test_many_small_sweeps_are_one_large_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound on memory cuts the work anywhere, in the middle of a sentence too, and nothing is lost."""
    module = Reader("lstm-stacked")
    net, sequences = module.network(), some_sequences([30, 7, 1, 12] * 5)
    groups = Groups.of_sets({own: range(WORDS) for own in range(WORDS)})
    wanted = {k: labels(net, sequences, groups, k=k, keep="mutants") for k in (0, 2, "final")}
    monkeypatch.setattr(exact, "LIVE_MUTANT_BYTES", 1)
    monkeypatch.setattr(exact, "SEQUENCES_PER_SWEEP", 3)
    for k, one in wanted.items():
        found = labels(net, sequences, groups, k=k, keep="mutants")
        agree(found, one.gamma)
        assert torch.equal(found.of, one.of)
        assert torch.allclose(found.mutants, one.mutants, atol=1e-5)


def test_mutants_that_become_the_original_are_dropped_and_still_counted() -> None:
    """A relu layer that forgets everything after one step: all mutants re-converge, bit for bit."""
    module = Reader("rnn-relu")
    with torch.no_grad():
        module.recurrent.weight_hh_l0.zero_()
    net, sequences, groups = module.network(), some_sequences([25]), some_groups()
    steps: list[int] = []
    view = Recurrent.of(net)
    assert view is not None
    whole = view.recall
    view.recall = lambda state: steps.append(len(state)) or whole(state)
    agree(labels(net, sequences, groups, k="final", view=view), truth(module, sequences, groups, "final"))
    assert max(steps) <= 4


def test_states_are_those_of_the_network() -> None:
    module = Reader("lstm")
    net, sequences, groups = module.network(), some_sequences(), some_groups()
    found = labels(net, sequences, groups, keep="mutants")
    assert found.states is not None
    assert found.successors is not None
    assert found.mutants is not None
    assert found.of is not None
    assert found.probability is not None
    row = 0
    for sequence in sequences:
        for place in range(len(sequence)):
            hidden, memory = module.recurrent(module.embedding(sequence[None, : place + 1]))[1]
            assert torch.allclose(found.successors[row], torch.cat([hidden[0, 0], memory[0, 0]]), atol=1e-5)
            assert (
                torch.equal(found.states[row], found.successors[row - 1])
                if place
                else not found.states[row].any()
            )
            row += 1
    share = torch.zeros(len(found.labels), dtype=torch.float64).index_add_(0, found.of, found.probability)
    assert torch.allclose(share, found.attackable.double())


def test_bad_questions() -> None:
    net = Reader("lstm").network()
    for sequences, mutation, k in (
        ([[1, 2], []], some_groups(), 0),
        ([], some_groups(), 0),
        ([[1, WORDS]], some_groups(), 0),
        ([[1, -1]], some_groups(), 0),
        ([[1]], some_groups(), -1),
        ([[1]], some_groups(), "last"),
        ([[1]], Noise(0.1), 0),
    ):
        with pytest.raises(hf.errors.BadInput):
            labels(net, sequences, mutation, k=k)
    with pytest.raises(hf.errors.BadInput, match="token ids"):
        labels(Reader("lstm", tokens=False).network(), some_frames(), some_groups())
    with pytest.raises(hf.errors.BadInput, match="Bins"):
        labels(
            hf.Network.from_torch(nn.Sequential(Reader("lstm"), nn.Linear(CLASSES, 1)).eval(), tokens=True),
            [[1]],
            some_groups(),
        )


def test_a_film_review_fits() -> None:
    """256 words, 300 hidden: the final scores, where mutants live longest; spot checks against the module."""
    torch.manual_seed(0)
    module = Reader("lstm")
    module.embedding, module.recurrent, module.head = (
        nn.Embedding(WORDS, 50),
        nn.LSTM(50, 300, batch_first=True),
        nn.Linear(300, 2),
    )
    net, groups = module.eval().network(), some_groups()
    (sequence,) = some_sequences([256])
    found = labels(net, [sequence], groups, k="final")
    assert bool(found.values.isfinite().all())
    for place in (0, 100, 254, 255):
        choices, gamma = groups.choices(int(sequence[place])), torch.zeros(2, dtype=torch.float64)
        for value, probability in zip(choices.values, choices.probability, strict=True):
            mutant = sequence.clone()
            mutant[place] = value
            gamma[answer(module, mutant).argmax()] += probability
        assert torch.allclose(found.gamma[place], gamma, rtol=0, atol=1e-12)
