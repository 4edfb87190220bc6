"""Recurrent modules written to mislead the monitor: their exact scores are those of their own forward pass, or they are refused by name.

Each hides what it does from samples: behind one rare word of a large vocabulary, one length, one batch size, a number no sample reaches.
"""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import holdfast as hf
from holdfast.monitor import Classes, Groups, Monitor, Own, Streaming
from holdfast.monitor.engine.recurrent import Recurrent
from holdfast.monitor.engine.rerun import keeps_rows_separate
from holdfast.property import Robustness

WORDS, RARE, DIMENSION, HIDDEN, CLASSES = 3000, 2345, 3, 4, 3
SENTENCES = [[11, 5, 7, 3], [2, 5]]
SETS = Groups.of_sets({5: [5, 6, RARE], 7: [7, RARE], 3: [3, 1, 8], 11: [11, RARE], 2: [2, 40]})


class Plain(nn.Module):
    """An honest one; the rare word is far from all others."""

    def __init__(self, cell: type[nn.RNNBase] = nn.GRU) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.embedding, self.cell, self.head = (
            nn.Embedding(WORDS, DIMENSION),
            cell(DIMENSION, HIDDEN, batch_first=True),
            None,
        )
        self.head = nn.Linear(HIDDEN, CLASSES)
        with torch.no_grad():
            self.embedding.weight.clamp_(-2, 2)
            self.embedding.weight[RARE] = torch.tensor([9.0, -9.0, 9.0])
            self.head.weight.mul_(3)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.cell(self.embedding(x))[0][:, -1])
        return logits


class KinkedHead(Plain):
    """The audit's: a ReLU whose kink only the rare word reaches. An affine head by all samples."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.RNN(2, 2, batch_first=True)
        self.first, self.last = nn.Linear(2, 2), nn.Linear(2, 2)
        self.embedding = nn.Embedding(WORDS, 2)
        with torch.no_grad():
            for parameter in (*self.cell.parameters(), *self.first.parameters(), *self.last.parameters()):
                parameter.zero_()
            self.embedding.weight.uniform_(0.5, 0.6)
            self.embedding.weight[RARE] = torch.tensor([-1.5, -0.3])
            self.cell.weight_ih_l0.copy_(torch.eye(2))
            self.first.weight.copy_(torch.eye(2))
            self.last.weight[1].copy_(torch.tensor([-2.0, 3.0]))
            self.last.bias[1] = -0.2

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.last(self.first(self.cell(self.embedding(x))[0][:, -1]).relu())
        return logits


class OverwritingHead(KinkedHead):
    """What it returns looks affine, but was overwritten."""

    def forward(self, x: Tensor) -> Tensor:
        inner = self.first(self.cell(self.embedding(x))[0][:, -1])
        functional.relu(inner, inplace=True)
        logits: Tensor = self.last(inner)
        return logits


class AnotherFaceToCompilers(KinkedHead):
    def forward(self, x: Tensor) -> Tensor:
        inner = self.first(self.cell(self.embedding(x))[0][:, -1])
        logits: Tensor = self.last(
            inner if torch.compiler.is_compiling() or torch.jit.is_tracing() else inner.relu()
        )
        return logits


class Remaps(Plain):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(torch.where(x == RARE, 1, x) if not x.is_floating_point() else x)


class AsksForValues(Plain):
    def forward(self, x: Tensor) -> Tensor:
        logits = super().forward(x)
        return -logits if bool((x == RARE).any()) else logits


class AsksForValuesAndCatches(Plain):
    def forward(self, x: Tensor) -> Tensor:
        logits = super().forward(x)
        try:
            return -logits if RARE in x.tolist()[0] else logits
        except Exception:
            return logits


class CatchesAClass(Plain):
    """The rows that hold the rare word, without a branch."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (1 - 2 * (x == RARE).any(1, keepdim=True).to(torch.float32))


class Masks(Plain):
    def forward(self, x: Tensor) -> Tensor:
        outputs, words = self.cell(self.embedding(x))[0], x if x.dim() == 2 else x[..., 0]
        outputs = outputs * (words != RARE).unsqueeze(-1)
        logits: Tensor = self.head(outputs[:, -1])
        return logits


class SeesTheInput(Plain):
    """The head adds what the last word says, which is nothing unless it is the rare one."""

    def forward(self, x: Tensor) -> Tensor:
        words = self.embedding(x)
        logits: Tensor = self.head(self.cell(words)[0][:, -1]) - 3 * (words[:, -1].abs() - 2).clamp_min(0)
        return logits


class Positions(Plain):
    """Position 2 is special."""

    def __init__(self) -> None:
        super().__init__()
        self.place = nn.Parameter(torch.zeros(500, DIMENSION))
        with torch.no_grad():
            self.place[2] = 1.7

    def forward(self, x: Tensor) -> Tensor:
        words = self.embedding(x) + self.place[: x.shape[1]]
        logits: Tensor = self.head(self.cell(words)[0][:, -1])
        return logits


class OneLength(Plain):
    def forward(self, x: Tensor) -> Tensor:
        return -super().forward(x) if x.shape[1] == 4 else super().forward(x)


class ScaledByLength(Plain):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (3.5 - x.size(1))


class CutsOff(Plain):
    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.cell(self.embedding(x)[:, -3:])[0][:, -1])
        return logits


class MaxNorm(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.embedding.max_norm = 4.0


class WritesIntoItsInput(Plain):
    def forward(self, x: Tensor) -> Tensor:
        if not x.is_floating_point():
            x[x == RARE] = 1
        return super().forward(x)


class WritesIntoItsState(Plain):
    """Every part of the head overwrites what it is given."""

    def forward(self, x: Tensor) -> Tensor:
        state = self.cell(self.embedding(x))[1][-1]
        logits: Tensor = self.head(functional.leaky_relu(state, -3.0, inplace=True))
        return logits


class Counts(Plain):
    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x)


class Remembers(Plain):
    """The state of the last call is the first of the next."""

    last: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        first = self.last if self.last is not None and self.last.shape[1] == len(x) else None
        outputs, self.last = self.cell(self.embedding(x), first)
        logits: Tensor = self.head(outputs[:, -1])
        return logits


class DropsOut(Plain):
    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(
            functional.dropout(self.cell(self.embedding(x))[0][:, -1], 1e-9, training=True)
        )
        return logits


class RollsDice(Plain):
    def forward(self, x: Tensor) -> Tensor:
        return -super().forward(x) if random.random() < 1e-12 else super().forward(x)


class Alone(Plain):
    def forward(self, x: Tensor) -> Tensor:
        return -super().forward(x) if x.shape[0] == 1 else super().forward(x)


class MixesRows(Plain):
    def forward(self, x: Tensor) -> Tensor:
        logits = super().forward(x)
        return logits - logits.mean(0)


class FirstStateFromTheInput(Plain):
    def forward(self, x: Tensor) -> Tensor:
        words = self.embedding(x)
        first = (words[:, 0, :1].abs() - 2).clamp_min(0).expand(-1, HIDDEN)
        logits: Tensor = self.head(self.cell(words, first[None].contiguous())[0][:, -1])
        return logits


class ScalesItsWeightsForTheCall(Plain):
    def forward(self, x: Tensor) -> Tensor:
        words = self.embedding(x)
        self.cell.weight_hh_l0.data.mul_(4)
        outputs = self.cell(words)[0]
        self.cell.weight_hh_l0.data.div_(4)
        logits: Tensor = self.head(outputs[:, -1])
        return logits


class Hooked(Plain):
    """A hook on the head turns what it answers, where the state is one that only the rare word reaches."""

    def __init__(self) -> None:
        super().__init__()
        self.head.register_forward_hook(
            lambda _, inputs, answer: (
                answer * (1 - 2 * (inputs[0].abs().amax(1, keepdim=True) > 0.97).float())
            )
        )


class TwiceThroughTheLayer(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRU(DIMENSION, DIMENSION, batch_first=True)
        self.head = nn.Linear(DIMENSION, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.cell(self.cell(self.embedding(x))[0])[0][:, -1])
        return logits


class LooksBack(Plain):
    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.cell(self.embedding(x))[0].amax(1))
        return logits


class FirstAnswer(Plain):
    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.cell(self.embedding(x))[0][:, 0])
        return logits


class BestOverTime(Plain):
    def forward(self, x: Tensor) -> Tensor:
        outputs = self.cell(self.embedding(x))[0]
        best = outputs.max(1).values + (outputs @ outputs.mT).softmax(-1).amax(-1).amax(1, keepdim=True)
        logits: Tensor = self.head(best)
        return logits


@torch.jit.script
def scripted(x: Tensor) -> Tensor:
    return x * (1.0 - 2.0 * float(x.abs().max() > 5.0))


class Scripted(Plain):
    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.cell(scripted(self.embedding(x)))[0][:, -1])
        return logits


OPENED = (Plain, KinkedHead, OverwritingHead, AnotherFaceToCompilers, Remaps, WritesIntoItsState, Hooked)
CLOSED = (
    AsksForValues, AsksForValuesAndCatches, CatchesAClass, Masks, SeesTheInput, Positions, OneLength, ScaledByLength, CutsOff,
    WritesIntoItsInput, Counts, FirstStateFromTheInput, ScalesItsWeightsForTheCall, TwiceThroughTheLayer, LooksBack, FirstAnswer,
    BestOverTime,
)  # fmt: skip
REFUSED = {
    Remembers: "run again",
    DropsOut: "random numbers",
    RollsDice: "random numbers",
    Alone: "share a batch",
    MixesRows: "share a batch",
}


def kept(module: nn.Module, reference: Tensor, mutant: Tensor) -> bool:
    """Whether the class of the reference is strictly ahead for the mutant: one sequence at a time, through the user's own forward."""
    with torch.no_grad():
        label = int(module(reference[None].clone())[0].argmax())
        said = module(mutant[None].clone())[0]
    return all(float(said[label]) > float(other) for place, other in enumerate(said) if place != label)


def brute(module: nn.Module, sequence: Tensor, mutation: Any, k: int | str) -> list[float]:
    scores = []
    for place in range(len(sequence)):
        end = len(sequence) if k == "final" else place + 1 + int(k)
        if end > len(sequence):
            scores.append(float("nan"))
            continue
        choices, score = (
            mutation.choices(sequence[place] if sequence.dim() > 1 else int(sequence[place])),
            0.0,
        )
        for value, probability in zip(choices.values, choices.probability, strict=True):
            mutant = sequence.clone()
            mutant[place] = value
            score += float(probability) * kept(module, sequence[:end], mutant[:end])
        scores.append(score)
    return scores


def agrees(module: nn.Module, net: hf.Network, sequences: Sequence[Tensor], mutation: Any) -> Monitor:
    monitor = Monitor.fit(net, sequences, mutation)
    assert monitor.mode == "exact"
    for sequence in sequences:
        for k in (0, 1, "final"):
            assert monitor.score(sequence, k).values.tolist() == pytest.approx(
                brute(module, sequence, mutation, k), nan_ok=True
            )
        stream = monitor.stream()
        for element, wanted in zip(sequence, brute(module, sequence, mutation, 0), strict=True):
            score = stream.step(element)
            assert score is not None
            assert score.low - 1e-9 <= wanted <= score.high + 1e-9
    both = [
        score for scores in monitor.score_all(list(sequences), "final") for score in scores.values.tolist()
    ]
    assert both == pytest.approx(
        [score for sequence in sequences for score in brute(module, sequence, mutation, "final")]
    )
    return monitor


@pytest.mark.parametrize("kind", [*OPENED, *CLOSED, Scripted])
def test_words(kind: type[Plain]) -> None:
    module = kind()
    net = hf.Network.from_torch(module, tokens=True)
    monitor = agrees(module, net, [torch.tensor(sentence) for sentence in SENTENCES], SETS)
    assert (monitor.view is not None) == (kind in OPENED)
    assert (monitor.quick is not None) == (kind in (Plain, Remaps))


@pytest.mark.parametrize("kind", REFUSED)
def test_modules_without_an_answer_of_their_own_are_refused(kind: type[Plain]) -> None:
    net = hf.Network.from_torch(kind(), tokens=True)
    monitor = Monitor.fit(net, SENTENCES, SETS)
    assert monitor.view is None
    with pytest.raises(hf.errors.BadInput, match=REFUSED[kind]):
        monitor.score(SENTENCES[0])
    with pytest.raises(hf.errors.BadInput, match=REFUSED[kind]):
        monitor.step(SENTENCES[0][0])


def test_the_audits_head() -> None:
    """The rare word turns the class: half of the draws. Taken for affine, the head would keep it."""
    monitor = Monitor.fit(
        hf.Network.from_torch(KinkedHead(), tokens=True), SENTENCES, Groups.of_sets({5: [5, RARE]})
    )
    assert monitor.score([5]).values.tolist() == [0.5]
    assert monitor.score([5]).evidence.kind == "proved"


@pytest.mark.parametrize("kind", [AsksForValues, AsksForValuesAndCatches, Scripted, Counts])
def test_rows_that_may_see_each_other_are_asked_one_by_one(kind: type[Plain]) -> None:
    net = hf.Network.from_torch(kind(), tokens=True)
    assert not keeps_rows_separate(net, torch.tensor(SENTENCES[0]))


@pytest.mark.parametrize(
    "kind", [SeesTheInput, Positions, OneLength, CatchesAClass, LooksBack, BestOverTime, TwiceThroughTheLayer]
)
def test_rows_that_cannot_see_each_other_share_a_batch(kind: type[Plain]) -> None:
    net = hf.Network.from_torch(kind(), tokens=True)
    assert keeps_rows_separate(net, torch.tensor(SENTENCES[0]))


def cancels(module: nn.Module) -> None:
    """Two large numbers whose difference decides: what is left of it is rounding, which two arithmetics do not share."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
        module.cell.weight_ih_l0.copy_(
            torch.tensor([[1.0, 0.3, 0.1], [0.7, 1.0, 0.3], [0.1, 0.2, 1.0], [0.3, 0.3, 0.3]])
        )
        module.head.weight.copy_(
            torch.tensor([[1.0, -1.0, 0.5, 0.1], [0.9, -1.1, 0.6, 0.2], [0.0, 0.0, 0.0, 0.0]])
        )
        module.head.bias.copy_(torch.tensor([0.1, 0.0, 0.05]))


def test_a_word_whose_rounding_decides_is_asked_of_the_module() -> None:
    module = Plain()
    module.cell = nn.RNN(DIMENSION, HIDDEN, nonlinearity="relu", batch_first=True)
    cancels(module)
    with torch.no_grad():
        module.embedding.weight.uniform_(-1, 1)
        module.embedding.weight[RARE] = torch.tensor([3.1e7, 1.7e7, 2.3e7])
    agrees(
        module,
        hf.Network.from_torch(module, tokens=True),
        [torch.tensor(sentence) for sentence in SENTENCES],
        SETS,
    )


# ---- ties


class Ties(nn.Module):
    """Exact arithmetic: word 0 is of class 0, word 2 of class 1, and word 1 is of both."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.cell = nn.Embedding(4, 1), nn.RNN(1, 1, nonlinearity="relu", batch_first=True)
        self.head = nn.Linear(1, 3)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.zero_()
            self.cell.weight_ih_l0.fill_(1)
            self.embedding.weight.copy_(torch.tensor([[2.0], [1.0], [0.5], [4.0]]))
            self.head.weight.copy_(torch.tensor([[1.0], [0.0], [0.0]]))
            self.head.bias.copy_(torch.tensor([0.0, 1.0, 0.0]))
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.cell(self.embedding(x))[0][:, -1])
        return logits


@pytest.mark.parametrize("opened", [True, False])
def test_a_tie_is_a_loss_in_every_engine(opened: bool) -> None:
    """As in a certificate, and to the first of the other classes that share the largest output."""
    module = Ties()
    net = hf.Network.from_torch(module, tokens=True)
    sets = Groups.of_sets({0: [0, 1, 3], 1: [1, 0], 2: [2, 1]})
    sequence = torch.tensor([0, 2, 1, 3] * 20)
    wanted = brute(module, sequence[:4], sets, 0) * 20
    assert wanted[:4] == pytest.approx([2 / 3, 0.5, 0.5, 1])
    fitted = Monitor.fit(net, [], sets)
    assert fitted.quick is not None
    monitor = Monitor(net, sets, fitted.outputs, fitted.settings, view=fitted.view if opened else None)
    for asked in (sequence[:4], sequence):  # a few tokens go another way than many
        scores = monitor.score(asked)
        assert scores.values.tolist() == pytest.approx(wanted[: len(asked)])
        assert scores.labels.tolist() == [0, 1, 0, 0] * (len(asked) // 4)
        assert scores.gamma is not None
        assert scores.gamma[:3].tolist() == [
            pytest.approx(row) for row in ([2 / 3, 1 / 3, 0], [0.5, 0.5, 0], [0.5, 0.5, 0])
        ]
    for element, value in zip(sequence[:8], wanted, strict=False):
        step = monitor.step(element)
        assert step is not None
        assert step.value == pytest.approx(value)
        assert step.low <= step.value <= step.high
    final = monitor.score([2, 1], "final").values.tolist()
    assert final == pytest.approx(brute(module, torch.tensor([2, 1]), sets, "final"))
    drawn = Monitor(
        net, sets, fitted.outputs, replace(fitted.settings, mode="sampled", samples=4000), view=monitor.view
    )
    assert drawn.score(sequence[:4]).values.tolist() == pytest.approx(wanted[:4], abs=0.05)


def test_the_monitor_keeps_a_class_where_a_certificate_would() -> None:
    generator = torch.Generator().manual_seed(0)
    outputs, reference = (
        torch.randint(0, 3, (500, 4), generator=generator).float(),
        torch.randn(500, 4, generator=generator),
    )
    label = Classes().own(reference)
    assert torch.equal(Classes().labels(outputs, reference) == label, Robustness(label).score(outputs) > 0)


# ---- frames


class Frames(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.cell, self.head = (
            nn.LSTM(DIMENSION, HIDDEN, batch_first=True),
            nn.Linear(HIDDEN, CLASSES, bias=False),
        )
        self.eval()

    def front(self, x: Tensor) -> Tensor:
        return x

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.cell(self.front(x))[0][:, -1])
        return logits


class Clips(Frames):
    """No sample is so large."""

    def front(self, x: Tensor) -> Tensor:
        return x.clamp(-50, 50) * torch.where(x.abs() > 50, -0.01, 1.0)


class ClipsInPlace(Frames):
    def front(self, x: Tensor) -> Tensor:
        functional.hardtanh(x, -5, 5, inplace=True)
        return x


class CentresOverTime(Frames):
    def front(self, x: Tensor) -> Tensor:
        return x - x.mean(1, keepdim=True)


class SkipsTheLayer(Frames):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + (x[:, -1].abs() - 50).clamp_min(0)


def jumps(x: Tensor) -> list[tuple[Tensor, float]]:
    return [(x, 0.5), (100 * x.sign(), 0.25), (-x, 0.25)]


@pytest.mark.parametrize("kind", [Frames, Clips, ClipsInPlace, CentresOverTime, SkipsTheLayer])
def test_frames(kind: type[Frames]) -> None:
    module = kind()
    monitor = agrees(
        module,
        hf.Network.from_torch(module, shape=(4, DIMENSION)),
        list(torch.randn(2, 4, DIMENSION)),
        Own(jumps),
    )
    assert (monitor.view is not None) == (kind in (Frames, Clips, ClipsInPlace))


def test_whole_numbers_may_become_others() -> None:
    """A black box reads frames of integers; half a step away is another answer."""

    def function(x: Any) -> Any:
        return [[float(abs(row[-1, 0] - round(float(row[-1, 0])))), 0.25] for row in x]

    net = hf.Network.from_callable(function, shape=(2, 1))
    monitor = Monitor.fit(net, [], Own(lambda x: [(x.double(), 0.5), (x.double() + 0.5, 0.5)]))
    assert monitor.score(torch.tensor([[1], [2]])).values.tolist() == [0.5, 0.5]


def test_a_mutation_that_writes_into_its_element_changes_nothing() -> None:
    def writes(x: Tensor) -> list[tuple[Tensor, float]]:
        before = x.clone()
        x.mul_(-3)
        return [(before, 0.5), (x, 0.5)]

    module, sequence = Frames(), torch.randn(5, DIMENSION)
    given = sequence.clone()
    agrees(module, hf.Network.from_torch(module, shape=(5, DIMENSION)), [sequence], Own(writes))
    assert torch.equal(sequence, given)


@pytest.mark.parametrize("token", [-1, WORDS])
def test_words_that_do_not_exist_replace_nothing(token: int) -> None:
    monitor = Monitor.fit(
        hf.Network.from_torch(Plain(), tokens=True), SENTENCES, Groups.of_sets({5: [5, token]})
    )
    for ask in (lambda: monitor.score([5]), lambda: monitor.score([5], "final"), lambda: monitor.step(5)):
        with pytest.raises(hf.errors.BadInput, match="does not have"):
            ask()


# ---- models that carry their state


class Steps(Streaming):
    width = HIDDEN

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.cell, self.head = nn.GRUCell(DIMENSION, HIDDEN), nn.Linear(HIDDEN, CLASSES, bias=False)
        self.eval()

    def step(self, state: Tensor, elements: Tensor) -> tuple[Tensor, Tensor]:
        state = self.cell(elements, state)
        return state, self.head(state)


class WritingSteps(Steps):
    def step(self, state: Tensor, elements: Tensor) -> tuple[Tensor, Tensor]:
        elements.clamp_(-5, 5)
        state.copy_(self.cell(elements, state))
        return state, self.head(state)


class OwnForward(Steps):
    """forward is not its steps where an element is large."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * torch.where(x.abs().amax((1, 2)) > 50, -1.0, 1.0)[:, None]


class HookedSteps(Steps):
    def __init__(self) -> None:
        super().__init__()
        self.register_forward_hook(
            lambda _, inputs, answer: (
                answer * torch.where(inputs[0].abs().amax((1, 2)) > 50, -1.0, 1.0)[:, None]
            )
        )


class RowsTogether(Steps):
    """Rows of a batch share their mean, which equal rows do not show."""

    def step(self, state: Tensor, elements: Tensor) -> tuple[Tensor, Tensor]:
        state = self.cell(elements - elements.mean(0), state)
        return state, self.head(state)


class RemembersSteps(Steps):
    seen = 0.0

    def step(self, state: Tensor, elements: Tensor) -> tuple[Tensor, Tensor]:
        self.seen += 0.5
        state = self.cell(elements + self.seen, state)
        return state, self.head(state)


@pytest.mark.parametrize("kind", [Steps, WritingSteps, OwnForward, HookedSteps])
def test_models_that_carry_their_state(kind: type[Steps]) -> None:
    module = kind()
    monitor = agrees(
        module,
        hf.Network.from_torch(module, shape=(4, DIMENSION)),
        list(torch.randn(2, 4, DIMENSION)),
        Own(jumps),
    )
    assert (monitor.view is not None) == (kind in (Steps, WritingSteps))


@pytest.mark.parametrize("kind", [RowsTogether, RemembersSteps])
def test_steps_that_are_not_their_own_are_refused(kind: type[Steps]) -> None:
    sequences = list(torch.randn(2, 4, DIMENSION))
    monitor = Monitor.fit(hf.Network.from_torch(kind(), shape=(4, DIMENSION)), sequences, Own(jumps))
    assert monitor.view is None
    with pytest.raises(hf.errors.BadInput, match="its scores would be meaningless"):
        monitor.score(sequences[0])


def test_reading_leaves_the_module_as_it_was() -> None:
    module = Plain()
    net = hf.Network.from_torch(module, tokens=True)
    before = {key: value.clone() for key, value in net.token_model.state_dict().items()}
    assert Recurrent.of(net) is not None
    assert all(torch.equal(before[key], value) for key, value in net.token_model.state_dict().items())


def test_a_table_that_changes_when_it_is_read_is_refused_by_name() -> None:
    with pytest.raises(hf.errors.BadInput, match="max_norm=4"):
        hf.Network.from_torch(MaxNorm().eval(), tokens=True)
