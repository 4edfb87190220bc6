"""Networks whose exact answers are known on paper, by enumeration, or by their breakpoints."""

import itertools
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from holdfast.network import Network
from holdfast.problem import Problem
from holdfast.property import Robustness
from holdfast.region import EditedTexts, EditRules, Family
from holdfast.result import Key

NORMS = (1, 1.5, 2, 3, math.inf)


def dual(p: float) -> float:
    """The q with 1/p + 1/q = 1; written down again here, so that the library's own cannot hide behind itself."""
    if p == 1:
        return math.inf
    return 1.0 if math.isinf(p) else p / (p - 1)


def length(v: Tensor, p: float) -> Tensor:
    return torch.linalg.vector_norm(v.double(), ord=p, dim=-1)


def radius_problem(network: Network, family: Family, label: Tensor) -> Problem:
    return Problem(network, family, Robustness(label), "radius", tuple(Key(i) for i in range(len(family))))


# ---------------------------------------------------------------- linear


@dataclass(frozen=True)
class LinearTruth:
    """A linear classifier z = W x + b with rows that it gets right."""

    model: nn.Module
    x: Tensor  # (batch, *shape)
    y: Tensor  # (batch,)

    def network(self, domain: tuple[float, float] | None = None) -> Network:
        return Network.from_torch(self.model, domain=domain)

    def margins(self) -> tuple[Tensor, Tensor]:
        """-> (batch, classes), (batch, classes, features) float64: margins, their gradients; the own is infinite."""
        layer = next(m for m in self.model.modules() if isinstance(m, nn.Linear))
        weight, bias = layer.weight.detach().double(), layer.bias.detach().double()
        z = self.x.flatten(1).double() @ weight.t() + bias
        rows = torch.arange(len(self.y))
        slopes = weight[self.y][:, None] - weight
        margin = z[rows, self.y][:, None] - z
        margin[rows, self.y] = math.inf
        return margin, slopes

    def radius(self, p: float) -> Tensor:
        """(batch,): the distance to the nearest boundary: margin / dual norm of its gradient, no domain."""
        margin, slopes = self.margins()
        return (margin / length(slopes, dual(p))).amin(-1)

    def radius_of_frames(self, p: float, mask: Tensor) -> Tensor:
        """(batch,): every chosen frame moves by the radius, so that the slopes of the frames add up."""
        margin, slopes = self.margins()
        per_frame = length(slopes.reshape(*slopes.shape[:2], *self.x.shape[1:]).flatten(3), dual(p))
        return (margin / (per_frame * mask[:, None]).sum(-1)).amin(-1)

    def radius_of_patch(self, mask: Tensor) -> Tensor:
        margin, slopes = self.margins()
        return (margin / (slopes.abs() * mask.flatten(1)[:, None]).sum(-1)).amin(-1)

    def changed_units(self, domain: tuple[float, float], axes: tuple[int, ...]) -> Tensor:
        """(batch,): the largest number of units that may change freely in the domain, by the best gains in order; infinite if all may."""
        margin, slopes = self.margins()
        slopes = slopes.reshape(*slopes.shape[:2], *self.x.shape[1:])
        x = self.x.double()[:, None]
        gain = slopes * x - torch.minimum(slopes * domain[0], slopes * domain[1])
        per_unit = gain.sum(tuple(a + 2 for a in axes), keepdim=True) if axes else gain
        falls = per_unit.flatten(2).sort(-1, descending=True).values.cumsum(-1)  # (batch, classes, units)
        most = (falls < margin[..., None]).sum(-1).amin(-1).double()
        return torch.where(most == falls.shape[-1], math.inf, most)


def linear(
    seed: int = 0,
    *,
    shape: tuple[int, ...] = (6,),
    classes: int = 3,
    batch: int = 4,
    within: tuple[float, float] = (0.0, 1.0),
) -> LinearTruth:
    """A random linear classifier and random inputs in the given range, labelled as it says."""
    generator = torch.Generator().manual_seed(seed)
    layer = nn.Linear(math.prod(shape), classes)
    with torch.no_grad():
        layer.weight.copy_(torch.randn(layer.weight.shape, generator=generator))
        layer.bias.copy_(torch.randn(layer.bias.shape, generator=generator))
    model = nn.Sequential(nn.Flatten(), layer).eval()
    x = torch.rand((batch, *shape), generator=generator) * (within[1] - within[0]) + within[0]
    return LinearTruth(model, x, model(x).argmax(-1))


# ---------------------------------------------------------------- one ReLU


@dataclass(frozen=True)
class OneRelu:
    """z = (level, relu(w.x + b)): class 0 while relu(w.x + b) < level, which is a half space again, behind a kink."""

    weight: Tensor
    bias: float
    level: float
    x: Tensor

    @property
    def model(self) -> nn.Module:
        hidden, out = nn.Linear(len(self.weight), 1), nn.Linear(1, 2)
        with torch.no_grad():
            hidden.weight.copy_(self.weight[None])
            hidden.bias.fill_(self.bias)
            out.weight.copy_(torch.tensor([[0.0], [1.0]]))
            out.bias.copy_(torch.tensor([self.level, 0.0]))
        return nn.Sequential(hidden, nn.ReLU(), out).eval()

    def radius(self, p: float) -> float:
        """w.x + b must rise to the level, however flat the way there begins."""
        rise = self.level - (float(self.x[0].double() @ self.weight.double()) + self.bias)
        return rise / float(length(self.weight, dual(p)))


def one_relu(*, awake: bool = True) -> OneRelu:
    """All numbers are exact in binary. awake: w.x + b is 0.25 at the input, else -0.5, where the gradient is zero."""
    weight, x = torch.tensor([1.0, -2.0, 0.5]), torch.tensor([[0.5, 0.25, 1.0]])
    return OneRelu(weight, -0.25 if awake else -1.0, 1.0, x)


# ---------------------------------------------------------------- one number in, piecewise linear out


@dataclass(frozen=True)
class Piecewise:
    """A ReLU network of one number and two classes: between its breakpoints its margin is a straight line."""

    model: nn.Sequential
    x: Tensor  # (1, 1)
    y: Tensor  # (1,)

    def margin(self, points: Tensor) -> Tensor:
        """(n,) -> (n,) in float64."""
        hidden, out = self.model[0], self.model[2]
        h = torch.relu(
            points.double()[:, None] @ hidden.weight.detach().double().t() + hidden.bias.detach().double()
        )
        z = h @ out.weight.detach().double().t() + out.bias.detach().double()
        y = int(self.y[0])
        return z[:, y] - z[:, 1 - y]

    def knots(self, low: float, high: float) -> Tensor:
        """The ends of the straight pieces between low and high, rising."""
        hidden = self.model[0]
        inner = -hidden.bias.detach().double() / hidden.weight.detach().double()[:, 0]
        inner = inner[(inner > low) & (inner < high)]
        return torch.cat([torch.tensor([low, high], dtype=torch.float64), inner]).sort().values

    def worst(self, low: float, high: float) -> float:
        """The smallest margin on the interval: at a knot."""
        return float(self.margin(self.knots(low, high)).min())

    def radius(self, low: float, high: float) -> float:
        """The distance to the nearest zero of the margin in [low, high]; infinite if there is none."""
        knots = self.knots(low, high)
        values = self.margin(knots)
        centre, best = float(self.x[0, 0]), math.inf
        for a, b, fa, fb in zip(knots[:-1], knots[1:], values[:-1], values[1:], strict=True):
            if fa <= 0 or fb <= 0:
                zeros = [float(k) for k, f in ((a, fa), (b, fb)) if f <= 0]
                if (fa > 0) != (fb > 0):
                    zeros.append(float(a + (b - a) * fa / (fa - fb)))
                best = min(best, *(abs(z - centre) for z in zeros))
        return best


def piecewise(seed: int, hidden: int = 12) -> Piecewise:
    generator = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Linear(1, hidden), nn.ReLU(), nn.Linear(hidden, 2))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    x = torch.rand((1, 1), generator=generator) * 2 - 1
    return Piecewise(model.eval(), x, model(x).argmax(-1))


def grid_worst(
    model: nn.Module, score: Callable[[Tensor], Tensor], low: Tensor, high: Tensor, steps: int = 201
) -> float:
    """The smallest score on a dense grid over a box of two numbers; the truth is at most this, and close to it."""
    axes = [torch.linspace(float(a), float(b), steps) for a, b in zip(low, high, strict=True)]
    points = torch.cartesian_prod(*axes)
    with torch.no_grad():
        return float(score(model(points)).min())


# ---------------------------------------------------------------- words


class Bag(nn.Module):
    """Token ids (batch, length) -> the mean of the word vectors -> two classes."""

    def __init__(self, vectors: Tensor, weight: Tensor) -> None:
        super().__init__()
        self.embedding = nn.Embedding.from_pretrained(vectors.clone(), freeze=True)
        self.out = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
        self.out.weight = nn.Parameter(weight.clone())

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(torch.tanh(self.embedding(tokens).sum(1)))


@dataclass(frozen=True)
class Sentences:
    """A token model small enough to ask about every sentence."""

    model: nn.Module
    tokens: Tensor  # (batch, length)
    y: Tensor
    substitutes: Mapping[int, Sequence[int]]

    def network(self) -> Network:
        return Network.from_torch(self.model, tokens=True)

    def radius(self) -> list[float]:
        """For each sentence, how many words may be replaced without any choice of them changing the class; infinite if none does."""
        answers: list[float] = []
        for sentence, label in zip(self.tokens.tolist(), self.y.tolist(), strict=True):
            options = [[t, *(s for s in self.substitutes.get(t, ()) if s != t)] for t in sentence]
            every = torch.tensor(list(itertools.product(*options)))
            with torch.no_grad():
                z = self.model(every)
            wrong = z[:, label] <= z[:, 1 - label]
            changed = (every != torch.tensor(sentence)).sum(-1)
            answers.append(int(changed[wrong].min()) - 1 if bool(wrong.any()) else math.inf)
        return answers


def sentences(seed: int = 0, batch: int = 4, size: int = 4) -> Sentences:
    generator = torch.Generator().manual_seed(seed)
    vectors, weight = torch.randn((7, 3), generator=generator), torch.randn((2, 3), generator=generator)
    model = Bag(vectors, weight).eval()
    tokens = torch.randint(0, 7, (batch, size), generator=generator)
    return Sentences(
        model, tokens, model(tokens).argmax(-1), {0: (1, 2), 1: (0,), 2: (0, 3), 3: (2, 4, 5), 5: (6,)}
    )


def three_routes(model: nn.Module, example: Tensor, folder: Path) -> list[Network]:
    """The same model as torch module, exported program and ONNX file, for any batch."""
    pt2, onnx = folder / "model.pt2", folder / "model.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        batch = ({0: torch.export.Dim.DYNAMIC},)
        torch.export.save(torch.export.export(model, (example,), dynamic_shapes=batch), pt2)
        torch.onnx.export(model, (example,), onnx, dynamo=True, dynamic_shapes=batch, verbose=False)
    return [Network.from_torch(model), Network.from_export(pt2, trust=True), Network.from_onnx(onnx)]


# ---- edited texts


class TokenGRU(nn.Module):
    """Token ids -> two classes, by the last state of a GRU."""

    def __init__(self, words: int = 8) -> None:
        super().__init__()
        self.table = nn.Embedding(words, 3)
        self.layer = nn.GRU(3, 4, batch_first=True)
        self.out = nn.Linear(4, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        scores: Tensor = self.out(self.layer(self.table(tokens))[0][:, -1])
        return scores


def edited_texts(batch: int = 5, length: int = 4) -> tuple[Network, EditedTexts, Tensor]:
    """A network, texts with at most two edits of all kinds, and the class of each."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(8)
        model = TokenGRU().eval()
        tokens = torch.randint(0, 8, (5, length))[:batch]
    with torch.no_grad():  # Then 0, 0, 1, all and 1 edits keep the class.
        model.table.weight.mul_(3)
    network = Network.from_torch(model, tokens=True)
    assert network.vectors is not None
    rules = EditRules(
        (2, 1, 1, 1, 1),
        2,
        ((0, (1,)), (3, (4, 5)), (6, (7,))),
        insertions=(2,),
        deletable=frozenset({1, 3, 7}),
    )
    region = EditedTexts.around(tokens, rules, network.vectors)
    return network, region, model(tokens).argmax(1)


def all_edited(text: tuple[int, ...], rules: EditRules, most: int) -> dict[tuple[int, ...], int]:
    """Every text that at most so many edits make, with the smallest number: by trying every action at every place."""
    found: dict[tuple[int, ...], int] = {}

    def visit(place: int, made: tuple[int, ...], used: tuple[int, ...]) -> None:
        if sum(used) > min(most, rules.total) or any(a > b for a, b in zip(used, rules.budgets, strict=True)):
            return
        sub, ins, dele, swap, dup = used
        for word in rules.insertions:
            visit(place, (*made, word), (sub, ins + 1, dele, swap, dup))
        if place == len(text):
            if made:
                found[made] = min(found.get(made, 99), sum(used))
            return
        own = text[place]
        visit(place + 1, (*made, own), used)
        for word in dict(rules.substitutes).get(own, ()) + rules.any_substitutes:
            if word != own:
                visit(place + 1, (*made, word), (sub + 1, ins, dele, swap, dup))
        if rules.deletable is None or own in rules.deletable:
            visit(place + 1, made, (sub, ins, dele + 1, swap, dup))
        if rules.duplicable is None or own in rules.duplicable:
            visit(place + 1, (*made, own, own), (sub, ins, dele, swap, dup + 1))
        if place + 1 < len(text) and text[place + 1] != own:
            visit(place + 2, (*made, text[place + 1], own), (sub, ins, dele, swap + 1, dup))

    visit(0, (), (0, 0, 0, 0, 0))
    return found


def fewest_edits(network: Network, region: EditedTexts, row: int, label: int) -> float:
    """The largest number of edits that never changes the class; infinite if none of the allowed ones does."""
    assert network.token_model is not None
    found = math.inf
    text = tuple(region.tokens[row].tolist())
    for made, count in all_edited(text, region.rules, region.rules.total).items():
        with torch.no_grad():
            answer = int(network.token_model(torch.tensor([region.rules.read(made)])).argmax())
        if answer != label:
            found = min(found, count - 1)
    return found
