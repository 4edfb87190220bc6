"""Small token models of every kind, and random rules of edits."""

import torch
from torch import Tensor, nn

from holdfast.network import Network
from holdfast.region import EditRules

WORDS = 9


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], layers: int = 1) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, 3)
        self.layer = kind(3, 4, num_layers=layers, batch_first=True)
        self.out = nn.Linear(4, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        scores: Tensor = self.out(self.layer(self.table(tokens))[0][:, -1])
        return scores


class Bag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(WORDS, 3), nn.Linear(3, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        scores: Tensor = self.out(self.table(tokens).mean(1))
        return scores


class Convolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.inner, self.out = nn.Embedding(WORDS, 3), nn.Conv1d(3, 4, 3), nn.Linear(4, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        scores: Tensor = self.out(self.inner(self.table(tokens).transpose(1, 2)).relu().amax(2))
        return scores


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, 4)
        self.inner = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
        self.out = nn.Linear(4, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        scores: Tensor = self.out(self.inner(self.table(tokens)).mean(1))
        return scores


class BothWays(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(WORDS, 3), nn.Linear(6, 2)
        self.layer = nn.LSTM(3, 3, batch_first=True, bidirectional=True)

    def forward(self, tokens: Tensor) -> Tensor:
        last = self.layer(self.table(tokens))[1][0]
        scores: Tensor = self.out(torch.cat([last[0], last[1]], 1))
        return scores


def network(make: type[nn.Module] | nn.Module, seed: int = 0, scale: float = 2.0) -> Network:
    """A network of token ids with larger vectors, so that edits matter."""
    torch.manual_seed(seed)
    module = make() if isinstance(make, type) else make
    with torch.no_grad():
        for part in module.modules():
            if isinstance(part, nn.Embedding):
                part.weight.mul_(scale)
    return Network.from_torch(module.eval(), tokens=True)


def texts(count: int, length: int, seed: int = 0) -> Tensor:
    return torch.randint(0, WORDS, (count, length), generator=torch.Generator().manual_seed(seed))


# Every kind, with lists of their own; words that are fixed; and networks that read six words, filled up with word 0.
ALL_KINDS = EditRules(
    (2, 1, 1, 1, 1), 2, ((0, (1,)), (3, (4, 5)), (6, (7,))), (8,), (2, 5), frozenset({1, 3, 7})
)
CUT = EditRules((1, 2, 1, 1, 1), 2, (), (1, 2), (4,), duplicable=frozenset({3, 4, 5}), length=4)
PADDED = EditRules((1, 1, 2, 1, 0), 2, (), (1, 2), (4,), length=6, padding=0)
MANY = EditRules((1, 1, 1, 1, 1), 3, (), (1,), (2,))
RULES = {"all kinds": ALL_KINDS, "cut": CUT, "padded": PADDED, "many": MANY}
