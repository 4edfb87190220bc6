"""Losses: at the inputs, at adversarial examples, and over boxes by their bounds.

Statement. The robust loss is the cross-entropy of the worst-case logits -m, where m_k is a lower bound of z_c - z_k over
the box (Gowal et al. 2018; for boxes around adversarial examples, Mueller et al. 2023).

Assumption: m_k is a lower bound up to rounding; a loss is never reported as a certificate.

References: Gowal et al. 2018 (IBP); Mueller et al. 2023 (SABR).
"""

import random
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from holdfast.attacks.descent import descend
from holdfast.hardening.backward import TapedWalk
from holdfast.hardening.examples import Box, EditedExamples, Examples
from holdfast.hardening.intervals import Span, Traced, frozen
from holdfast.hardening.recipe import Recipe
from holdfast.network import Network
from holdfast.process_state import cudnn_flags
from holdfast.random_streams import RandomStreams


@dataclass(frozen=True)
class Widths:
    """Mean interval radii of the pre-activations, and of the input."""

    begin: Tensor
    seen: list[Tensor] = field(default_factory=list)

    def __call__(self, name: str, span: Span) -> None:
        self.seen.append(span.reach.mean())

    def growth(self) -> Tensor:
        """The tightness term of Shi et al. 2021 without its clip; 0 if no layer is wider than the input."""
        if not self.seen:
            return torch.zeros_like(self.begin)
        return torch.stack(
            [torch.relu(width / self.begin.clamp_min(1e-12) - 1).log1p() for width in self.seen]
        ).mean()


@dataclass(frozen=True)
class BoundedNetwork:
    """The network that is trained, with what computes its bounds.

    Attributes:
        net: wraps the module that is trained.
        traced: its interval bounds; None if the recipe needs no bounds.
        recurrent: whether it has recurrent layers.
        walk: its CROWN bounds; None if the recipe does not use them.
    """

    net: Network
    traced: Traced | None
    recurrent: bool
    walk: TapedWalk | None = None


@dataclass(frozen=True)
class TrainingBatch:
    """Rows of the training data, at this share of the radius; seed: of the attack."""

    examples: Examples
    rows: Tensor
    grown: float
    seed: int


def loss(recipe: Recipe, network: BoundedNetwork, batch: TrainingBatch) -> Tensor:
    """Return the loss of a batch at its share of the radius."""
    found = _loss(recipe, network, batch)
    if recipe.jacobian == 0 or batch.grown == 0:
        return found
    part, rows = batch.examples, batch.rows
    fall = first_order(network.net, part.points(rows), part.label[rows], *part.box(rows, batch.grown))
    return found + recipe.jacobian * fall.mean()


def first_order(net: Network, x: Tensor, label: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """Return (batch,): the first-order decrease of the margin over the box, |gradient| . half-width.

    The result is differentiable. Second derivatives need torch's own recurrent layers, since cuDNN's do not
    support them.
    """
    x = x if x.requires_grad else x.detach().requires_grad_()
    with cudnn_flags(enabled=False):
        outputs = net.module(x)
    own = outputs.gather(1, label[:, None]).squeeze(1)
    other = outputs.scatter(1, label[:, None], -torch.inf).amax(1)
    (slope,) = torch.autograd.grad((own - other).sum(), x, create_graph=True)
    return (slope.abs() * ((upper - lower) / 2).detach()).flatten(1).sum(1)


def _loss(recipe: Recipe, network: BoundedNetwork, batch: TrainingBatch) -> Tensor:
    net, traced, walk = network.net, network.traced, network.walk
    part, rows, grown = batch.examples, batch.rows, batch.grown
    label, x = part.label[rows], part.points(rows)
    if recipe.name == "standard" or grown == 0:
        return cross_entropy(net.module(x), label)
    if recipe.name == "edits":
        assert isinstance(part, EditedExamples)
        return _loss_of_worst_copies(net, part, batch, recipe.attack)
    worst = _attack(recipe, net, part, rows, grown, batch.seed) if recipe.attacked else None
    if recipe.name == "pgd":
        assert worst is not None
        return cross_entropy(net.module(worst), label)
    assert traced is not None
    small = recipe.name == "small boxes"
    box = part.box(rows, grown if small else grown * recipe.inner)
    if recipe.horizon and network.recurrent and grown < 1:
        box = _last_frames(box, x, grown)
    if small:
        assert worst is not None
        box = _small(box, worst, recipe.inner)
    widths = Widths(((box[1] - box[0]) / 2).mean().detach())
    margins = traced.margins(*box, label, widths if recipe.tight else None)
    walked = recipe.crown[0] + (recipe.crown[1] - recipe.crown[0]) * grown
    if walk is not None and walked > 0:
        margins = torch.lerp(margins, torch.maximum(margins, walk.margins(*box, label)), walked)
    bounded = cross_entropy(-margins, label)
    weight = grown if small else recipe.weight * grown
    at_points = (
        cross_entropy(net.module(worst if worst is not None and not small else x), label)
        if weight < 1
        else 0.0
    )
    whole = (1 - weight) * at_points + weight * bounded
    return whole + recipe.tight * (1 - grown) * widths.growth() if recipe.tight else whole


def _attack(recipe: Recipe, net: Network, part: Examples, rows: Tensor, grown: float, seed: int) -> Tensor:
    """Return the lowest points that PGD finds from a random start, (rows, *shape)."""
    problem = part.attack_problem(net, rows, grown)
    chance = (
        RandomStreams.of([seed], 0, rows.device)
        .take(torch.zeros(len(rows), dtype=torch.int64, device=rows.device))
        .substream(rows)
    )
    with frozen(net.module):
        points, _ = descend(problem, problem.region.sample(1, chance), recipe.attack)
    return points[0].to(net.dtype)


def _loss_of_worst_copies(net: Network, part: EditedExamples, batch: TrainingBatch, count: int) -> Tensor:
    """Return the mean cross-entropy of the worst of `count` edited copies of each text."""
    copies = part.copies(batch.rows, batch.grown, count, random.Random(batch.seed))
    label = part.label[batch.rows]
    every = [text for texts in copies for text in texts]
    with torch.no_grad():
        losses = label.new_zeros(len(every), dtype=net.dtype)
        for places, points in part.by_length(every):
            losses[places] = cross_entropy(net.module(points), label[places // count], reduction="none")
    worst = losses.reshape(-1, count).argmax(1).tolist()
    chosen = [texts[k] for texts, k in zip(copies, worst, strict=True)]
    parts = [
        cross_entropy(net.module(points), label[places], reduction="sum")
        for places, points in part.by_length(chosen)
    ]
    return torch.stack(parts).sum() / len(chosen)


def _small(box: Box, around: Tensor, share: float) -> Box:
    """A box with this share of the widths, inside the given box and as near to the point as possible."""
    lower, upper = box
    reach = (upper - lower) / 2 * share
    centre = torch.minimum(torch.maximum(around.detach(), lower + reach), upper - reach)
    return centre - reach, centre + reach


def _last_frames(box: Box, x: Tensor, share: float) -> Box:
    """Perturb only this share of the frames, the last ones: their bounds pass through few steps."""
    frames = x.shape[1]
    moving = torch.arange(frames, device=x.device) >= frames - max(1, round(share * frames))
    mask = moving.reshape(1, -1, *(1 for _ in x.shape[2:]))
    return torch.where(mask, box[0], x), torch.where(mask, box[1], x)
