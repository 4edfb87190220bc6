"""Small recurrent networks of every kind, and the truth about them: the user's own module on every mutated sequence, one by one."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

import holdfast as hf
from holdfast.monitor import Classes, Groups, Mutation, Output

WORDS, DIMENSION, HIDDEN, CLASSES = 40, 6, 9, 4
CELLS: dict[str, tuple[type[nn.RNNBase], dict[str, Any]]] = {
    "rnn-tanh": (nn.RNN, {}),
    "rnn-relu": (nn.RNN, {"nonlinearity": "relu"}),
    "lstm": (nn.LSTM, {}),
    "gru": (nn.GRU, {}),
    "lstm-no-bias": (nn.LSTM, {"bias": False}),
    "gru-stacked": (nn.GRU, {"num_layers": 3}),
    "lstm-stacked": (nn.LSTM, {"num_layers": 2}),
    "lstm-bidirectional": (nn.LSTM, {"bidirectional": True}),
    "gru-bidirectional-stacked": (nn.GRU, {"bidirectional": True, "num_layers": 2}),
}


class Reader(nn.Module):
    """Tokens or frames -> logits behind the last element, the way people write it."""

    def __init__(
        self,
        cell: str = "lstm",
        *,
        tokens: bool = True,
        batch_first: bool = True,
        head: str = "linear",
        take: str = "output",
        seed: int = 0,
    ) -> None:
        super().__init__()
        torch.manual_seed(seed)
        kind, options = CELLS[cell]
        self.embedding = nn.Embedding(WORDS, DIMENSION) if tokens else nn.Identity()
        self.recurrent = kind(DIMENSION, HIDDEN, batch_first=batch_first, **options)
        width = HIDDEN * (2 if self.recurrent.bidirectional else 1)
        deep = nn.Sequential(
            nn.Dropout(0.5), nn.Linear(width, 8), nn.ReLU(), nn.Linear(8, CLASSES), nn.Softmax(-1)
        )
        self.head = nn.Linear(width, CLASSES) if head == "linear" else deep
        self.batch_first, self.take = batch_first, take
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.mul_(2)  # livelier labels
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        outputs, state = self.recurrent(self.embedding(x))
        if self.take == "state":
            hidden = state[0] if isinstance(state, tuple) else state
            logits: Tensor = self.head(
                torch.cat([hidden[-2], hidden[-1]], 1) if self.recurrent.bidirectional else hidden[-1]
            )
        elif self.take == "mean":
            logits = self.head(outputs.mean(1 if self.batch_first else 0))
        else:
            logits = self.head(outputs[:, -1] if self.batch_first else outputs[-1])
        return logits

    def network(self) -> hf.Network:
        return hf.Network.from_torch(
            self, tokens=isinstance(self.embedding, nn.Embedding), time_first=not self.batch_first
        )


def answer(module: Reader, sequence: Tensor) -> Tensor:
    """(length, ...) -> (1, o): the user's own module."""
    with torch.no_grad():
        found: Tensor = module(sequence[None] if module.batch_first else sequence[:, None])
    return found


def truth(
    module: Reader, sequences: Sequence[Any], mutation: Mutation, k: int | str, outputs: Output | None = None
) -> Tensor:
    """(all elements, labels): how likely each label is when only this element is replaced; NaN where the sequence has ended."""
    output, rows = outputs or Classes(), []
    for given in sequences:
        sequence = torch.as_tensor(given)
        for place in range(len(sequence)):
            end = len(sequence) - 1 if k == "final" else place + int(k)
            gamma = torch.zeros(output.count(CLASSES), dtype=torch.float64)
            if end >= len(sequence):
                rows.append(gamma * torch.nan)
                continue
            element = sequence[place]
            reference = answer(module, sequence[: end + 1])
            choices = mutation.choices(element if sequence.dim() > 1 else int(element))
            for value, probability in zip(choices.values, choices.probability, strict=True):
                mutant = sequence.clone()
                mutant[place] = value
                gamma[output.labels(answer(module, mutant[: end + 1]), reference)] += probability
            rows.append(gamma)
    return torch.stack(rows)


def some_groups(seed: int = 1) -> Groups:
    """Sets of one to four tokens, not symmetric, some with probabilities of their own."""
    generator = torch.Generator().manual_seed(seed)
    sets = {
        own: [own, *torch.randint(0, WORDS, (own % 4,), generator=generator).tolist()] for own in range(WORDS)
    }
    weight = {
        own: torch.rand(len(s), generator=generator, dtype=torch.float64)
        for own, s in sets.items()
        if own % 3 == 0
    }
    return Groups.of_sets(sets, probability={own: (w / w.sum()).tolist() for own, w in weight.items()})


def some_sequences(lengths: Sequence[int] = (1, 2, 6, 9, 4), seed: int = 2) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, WORDS, (length,), generator=generator) for length in lengths]


def some_frames(lengths: Sequence[int] = (1, 2, 5, 7), seed: int = 3) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(length, DIMENSION, generator=generator) for length in lengths]
