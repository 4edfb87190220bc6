"""A VNN-LIB specification as a problem: allowed inputs and forbidden outputs, both exact.

The file is a union of cases. Case c has a box B_c of inputs and polytopes P_c1, P_c2, ... of forbidden
outputs. The network satisfies the specification iff f(x) is in none of the P_cj for every x in B_c, for all
c. Each case is one row of the problem.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from holdfast import batch
from holdfast.bounding.crown_with_fixed_bounds import propagate
from holdfast.bounding.graph.graph import Graph
from holdfast.derivations import (
    NONNEGATIVE_SUM,
)
from holdfast.network import Network
from holdfast.network.adapter import Adapter
from holdfast.problem import Problem
from holdfast.property import Avoid
from holdfast.region import Box
from holdfast.region.box import numbers_between
from holdfast.result import Key
from holdfast.rounding import TINY, round_up
from holdfast.verification.combined_network import input_shape
from holdfast.verification.vnnlib import Spec, tabulate_ends

NEAREST = (
    "an input interval that contains no float64 number is represented by the nearest one; a counterexample "
    "must also fail at "
    "both neighbours"
)
CASES_PER_BATCH = 64  # Number of cases whose outputs are bounded together; limits memory (chosen by hand).


@dataclass(frozen=True, eq=False)
class Allowed(Box):
    """The input boxes of the cases, (batch, *shape) float64.

    [lower, upper] contains every real input that the file allows. The float64 numbers in [least, most] are
    exactly the ones that it allows. If there are none (least > most), the centre is the nearest float64
    number, and lower and upper are its neighbours on both sides.
    """

    least: Tensor  # (batch, *shape)
    most: Tensor

    @staticmethod
    def by(spec: Spec, shape: tuple[int, ...]) -> "Allowed":
        lower, upper, least, most = (end.reshape(-1, *shape) for end in (*spec.box(), *spec.inside()))
        nearest = tabulate_ends((case.lower for case in spec.cases), lambda end: float(end.value))
        written = nearest.reshape(lower.shape)
        middle = torch.minimum(torch.maximum(lower / 2 + upper / 2, least), most)
        return Allowed(torch.where(least > most, written, middle), lower, upper, least, most)

    @property
    def empty(self) -> Tensor:
        return self.least > self.most

    def contains(self, x: Tensor) -> Tensor:
        exact = (x >= self.least) & (x <= self.most)
        return self.flatten(exact | self.empty & (x >= self.lower) & (x <= self.upper)).all(-1)

    def project(self, x: Tensor) -> Tensor:
        least, most, centre = (end.to(x) for end in (self.least, self.most, self.centre))
        return torch.where(self.empty, centre, torch.minimum(torch.maximum(x, least), most))

    def numbers(self, dtype: torch.dtype) -> Box:
        return numbers_between(self.least, self.most, self.centre, dtype)

    def stand_ins(self, x: Tensor) -> Tensor:
        if not bool(self.empty.any()):
            return x[None]
        return torch.stack([x, *(torch.where(self.empty, end, x) for end in (self.lower, self.upper))])

    def assumptions(self, row: int) -> tuple[str, ...]:
        return (NEAREST,) if bool(self.empty[row].any()) else ()


@dataclass(frozen=True, eq=False)
class Forbidden(Avoid):
    """The forbidden polytopes of the cases, rounded outwards.

    `fails` decides with the exact numbers of the file.
    """

    # (batch, polytopes, rows, outputs) float64: upper bound on the error of each factor against the file.
    off: Tensor
    case: Tensor  # (batch,)
    spec: Spec

    @staticmethod
    def by(spec: Spec) -> "Forbidden":
        rules = spec.rules()
        return Forbidden(rules.matrix, rules.offset, spec.factor_error(), torch.arange(len(spec.cases)), spec)

    def fails(self, outputs: Tensor) -> Tensor:
        values = self.with_products(outputs.double())
        near = self.score(values) <= self.rounding_error(values, torch.finfo(torch.float32).eps)
        found = torch.zeros(len(outputs), dtype=torch.bool)
        for row in (near & outputs.isfinite().all(-1)).nonzero().flatten().tolist():
            exact = self.spec.exact_values(outputs[row].tolist())
            found[row] = self.spec.cases[int(self.case[row])].is_violated(exact)
        return found.to(outputs.device)

    def with_products(self, outputs: Tensor) -> Tensor:
        """(batch, outputs) float64 with its products computed again, since the network's have its own rounding."""
        if not self.spec.products:
            return outputs
        outputs = outputs.clone()
        for place, factors in self.spec.products:
            outputs[:, place] = outputs[:, list(factors)].prod(1)
        return outputs

    def charge_rounding(self, graph: Graph, region: Box) -> Avoid | None:
        """Lower the offsets by the rounding error of the factors; None if it has no finite bound."""
        rules = Avoid(self.matrix, self.offset)
        if not bool(self.off.any()):
            return rules
        parts = (
            batch.take(region, some)
            for some in torch.arange(len(region), device=graph.device).split(CASES_PER_BATCH)
        )
        largest = torch.cat([propagate(graph, part)[0].largest(graph.output).flatten(1) for part in parts])
        total = torch.where(self.off > 0, self.off * largest[:, None, None], 0).sum(-1)
        missed = round_up(total, NONNEGATIVE_SUM, self.off.shape[-1]) + TINY
        offset = self.offset - torch.where((self.off > 0).any(-1), missed, 0)
        offset = torch.nextafter(offset, torch.full_like(offset, -torch.inf))
        return replace(rules, offset=offset) if bool(offset.isfinite().all()) else None


def problem_of(net: Network, spec: Spec, *, judges: Sequence[Network] = (), index: int = 0) -> Problem:
    """Build the problem: one row for each case, goal: the smallest margin of the specification."""
    shape = input_shape(net, spec.inputs, spec.name)
    net = _with_real_outputs(net, shape)
    # Products of many rows may round differently.
    alone = len(spec.cases) > 1 and net.dtype == torch.float32
    keys = tuple(Key(index, case) for case in range(len(spec.cases)))
    region = Allowed.by(spec, shape)
    region = replace(
        region, centre=region.project(region.numbers(net.dtype).centre.double())
    )  # Start at an input that the network's own dtype can represent, if one is allowed.
    return Problem(net, region, Forbidden.by(spec), "worst", keys, tuple(judges), alone)


def _with_real_outputs(net: Network, shape: tuple[int, ...]) -> Network:
    """Return the network, with floating answers where it answers with integers, such as a count of pixels."""
    with torch.no_grad():
        answer = net(torch.zeros(1, *shape, dtype=net.dtype))
    if answer.is_floating_point() or not isinstance(net.module, Adapter):
        return net
    module = copy.copy(net.module)
    module.real_outputs = True
    return net.around(module)
