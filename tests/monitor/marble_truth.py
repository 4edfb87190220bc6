"""A small recurrent network over twelve words in groups, and its traces by brute force: every mutant is run on its own."""

import torch
from torch import Tensor, nn

from holdfast.monitor.abstract.traces import Mutants, Traces

SIZES = (3, 3, 2, 1, 2, 1)  # of the groups
GROUP = torch.repeat_interleave(torch.arange(len(SIZES)), torch.tensor(SIZES))


class Small(nn.Module):
    def __init__(self, seed: int, labels: int = 3, hidden: int = 6) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.embedding, self.head = nn.Embedding(len(GROUP), 5), nn.Linear(hidden, labels)
            self.cell = nn.GRU(5, hidden, batch_first=True)
            for part in self.cell.parameters():
                part.data *= 3.0

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.head(self.cell(self.embedding(tokens))[0][:, -1])
        return logits

    @torch.no_grad()
    def step(self, state: Tensor, word: int) -> tuple[Tensor, Tensor]:
        state = self.cell(self.embedding(torch.tensor([[word]])), state[None, None])[1][0, 0]
        return state, self.head(state)


def sentences(seed: int, count: int = 60, longest: int = 7) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, longest + 1, (count,), generator=generator).tolist()
    return [torch.randint(0, len(GROUP), (n,), generator=generator).tolist() for n in lengths]


def members(word: int) -> list[int]:
    return (GROUP[word] == GROUP).nonzero()[:, 0].tolist()


def labels_after(net: Small, state: Tensor, words: list[int]) -> int:
    """The label behind the last word."""
    for word in words:
        state, out = net.step(state, word)
    return int(out.argmax())


def traces(seed: int = 0, count: int = 60) -> tuple[Traces, Small, list[list[int]]]:
    net, data = Small(seed).eval(), sentences(seed, count)
    rows: dict[str, list[object]] = {
        name: [] for name in ("states", "after", "words", "labels", "gamma", "sequence", "place", "margin")
    }
    went, of, probability = [], [], []
    for number, words in enumerate(data):
        state = torch.zeros(6)
        for place, word in enumerate(words):
            after, out = net.step(state, word)
            others = members(word)
            gamma = torch.zeros(3, dtype=torch.float64)
            for other in others:
                moved, said = net.step(state, other)
                gamma[int(said.argmax())] += 1 / len(others)
                if len(others) > 1:
                    went.append(moved), of.append(len(rows["words"])), probability.append(1 / len(others))
            best = out.topk(2).values
            found = (state, after, word, int(out.argmax()), gamma, number, place, float(best[0] - best[1]))
            for column, value in zip(rows.values(), found, strict=True):
                column.append(value)
            state = after
    words_read = torch.tensor(rows["words"])
    return (
        Traces(
            torch.stack(rows["states"]),  # type: ignore[arg-type]
            torch.stack(rows["after"]),  # type: ignore[arg-type]
            words_read,
            GROUP[words_read],
            torch.tensor(rows["labels"]),
            torch.stack(rows["gamma"]),  # type: ignore[arg-type]
            torch.tensor(rows["sequence"]),
            torch.tensor(rows["place"]),
            torch.tensor(SIZES)[GROUP[words_read]] > 1,
            torch.tensor(rows["margin"]),
            Mutants(torch.stack(went), torch.tensor(of), torch.tensor(probability, dtype=torch.float64)),
        ),
        net,
        data,
    )
