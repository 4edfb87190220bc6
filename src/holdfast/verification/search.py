"""The search for low scores that goes on between proofs, and the way to cut that suits a network: for verification and reachability."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from holdfast import batch
from holdfast.attacks.descent import descend
from holdfast.bounding.alpha_beta_crown import arguments
from holdfast.bounding.branching.frontier import Branching, Points
from holdfast.bounding.branching.input_split import InputSplit
from holdfast.bounding.branching.relu_split import ActivationSplit
from holdfast.bounding.graph.graph import Graph, Relaxed
from holdfast.network import Network
from holdfast.problem import Problem
from holdfast.property import Avoid
from holdfast.region import Box
from holdfast.result import Key

FEW_INPUTS = 16  # up to so many that move, boxes of inputs are cut; beyond, activations are decided
FULL = 8  # times what a method likes to have waiting; depth first that takes very long
OFTEN = 16  # batches of parts after each of which the search goes downhill; later, after every fourth
TRIES, SHORT = 64, 12  # places from which it does, and steps
LONGEST = 100  # steps where there are few places
ROUNDING = 2**12  # units of the arithmetic, in the sizes of what is added: more than evaluating a network at one point misses


def method_for(graph: Graph, region: Box) -> Branching[Any]:
    """Boxes of inputs while few inputs move, or where some function does not bend at zero and cannot be decided."""
    moving = int((region.lower < region.upper).flatten(1).sum(1).max())
    read = set(arguments(graph))
    decidable = all(set(node.inputs) <= read for node in graph.nodes if isinstance(node, Relaxed))
    return ActivationSplit() if moving > FEW_INPUTS and decidable else InputSplit()


def problem_of(net: Network, region: Box, rules: Avoid) -> Problem:
    return Problem(net, region, rules, "worst", tuple(Key(i) for i in range(len(region))))


def lowered(problem: Problem, start: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """start (..., batch, *shape) -> the lowest points met, and their scores; a black box has no way down."""
    return descend(problem, start, steps) if problem.network.differentiable else (start, problem.score(start))


def scattered(region: Box, count: int, generator: torch.Generator) -> Tensor:
    """-> (count, batch, *shape): every feature at its lower end, at its upper end, or anywhere between, a third of them each."""
    share = (3 * torch.rand((count, *region.centre.shape), generator=generator) - 1).clamp(0, 1).to(region.centre)
    return region.project(region.lower + share * (region.upper - region.lower))


def near(
    net: Network, inside: Box, rules: Avoid, points: Points, generator: torch.Generator, *, downhill: bool, longest: int = LONGEST
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """-> candidates x (n, *shape), their rows of the rules (n,) and scores (n,): the places where bounds are worst, or others in the same
    boxes; then what lies downhill from the best of them, in at most `longest` steps."""
    if not len(points.task):
        return
    around = batch.take(inside, points.task)
    boxes = Box.between(*(around.project(end.to(around.centre)) for end in (points.lower, points.upper)))
    problem = problem_of(net, boxes, batch.take(rules, points.task))
    tried = torch.cat([boxes.project(points.x.to(boxes.centre))[None], scattered(boxes, 1, generator)])
    score, which = problem.score(tried).min(0)
    tried = torch.where(boxes.per_row(which == 0), tried[0], tried[1])
    yield tried, points.task, score
    if downhill and net.differentiable:
        chosen = score.topk(min(TRIES, len(score)), largest=False).indices
        steps = min(longest, SHORT * TRIES // len(chosen))
        found, score = lowered(problem.take(chosen), tried[chosen][None], steps)
        yield found[0], points.task[chosen], score[0]


def rounding(matrix: Tensor, outputs: Tensor, offset: Tensor | float = 0.0) -> Tensor:
    """rows (..., outputs) of outputs (..., outputs) -> (...): how far evaluating them in the arithmetic of the outputs may lie from the
    truth. A witness that passes a proof by no more than this does not contradict it."""
    size = (matrix.abs() * outputs.abs()).double().sum(-1) + torch.as_tensor(offset).abs()
    return ROUNDING * torch.finfo(outputs.dtype).eps * (1 + size)
