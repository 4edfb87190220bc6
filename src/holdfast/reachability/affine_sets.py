"""Sets of states as affine forms over a batch of boxes of initial states: regions, images and order reduction.

Statement. An `AffineSet` holds, for each row of the batch,

    { c + sum over k of eps_k g_k + e :  |eps_k| <= 1,  |e_i| <= error_i }.

The noise symbols eps_k keep their meaning from step to step: two values that depend on the same symbol stay
dependent, so errors that were made at an early step may shrink or cancel later (no wrapping effect).
`reduce_order` replaces the symbols with the smallest loss by a box; the first `kept` symbols, those of the
initial states, always stay.

References: Girard, "Reachability of uncertain linear systems using zonotopes" (2005); Kuehn, "Rigorously computed
orbits of dynamical systems without the wrapping effect" (1998).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.bounding import crown_with_fixed_bounds
from holdfast.bounding.graph.graph import Graph
from holdfast.bounding.zonotope import Form, Forms, input_radius, pad_generators
from holdfast.derivations import FLOW_STEP, FORM_LINEAR_BOUND, FORM_MERGED
from holdfast.random_streams import RandomStreams
from holdfast.region import Region
from holdfast.rounding import TINY, charge, round_up


@dataclass(frozen=True, eq=False)
class AffineSet(Region):
    """Affine forms as a region: c is `centre` (batch, n), g_k the rows of `generators` (batch, symbols, n)."""

    generators: Tensor
    error: Tensor  # (batch, n)

    @staticmethod
    def of(form: Form) -> "AffineSet":
        return AffineSet(form.centre, form.generators, form.error)

    @staticmethod
    def box(lower: Tensor, upper: Tensor) -> "AffineSet":
        """The boxes between lower and upper (batch, n), with one noise symbol for each state."""
        radius = input_radius(lower, upper)
        error = torch.full_like(radius, TINY)
        return AffineSet(lower / 2 + upper / 2, torch.diag_embed(radius), error)

    @property
    def form(self) -> Form:
        return Form.of(self.centre, self.generators, self.error)

    @property
    def symbols(self) -> int:
        return self.generators.shape[1]

    @property
    def radius(self) -> Tensor:
        """(batch, n): at least the largest distance of a value from its centre."""
        form = self.form
        return form.radius + form.error

    def part(self, begin: int, end: int) -> "AffineSet":
        """The set of the values begin, ..., end - 1, with the same noise symbols."""
        return AffineSet(
            self.centre[:, begin:end], self.generators[:, :, begin:end], self.error[:, begin:end]
        )

    def with_symbols(self, count: int) -> "AffineSet":
        """The same set with as many noise symbols, the new ones unused."""
        missing = count - self.symbols
        return AffineSet(
            self.centre, torch.nn.functional.pad(self.generators, (0, 0, 0, missing)), self.error
        )

    def add_box(self, lower: Tensor, upper: Tensor) -> "AffineSet":
        """The sum with boxes (batch, n), which become new noise symbols together with the error so far."""
        middle = lower / 2 + upper / 2
        half = round_up(input_radius(lower, upper) + self.error, FORM_MERGED, 2) + TINY
        generators = torch.cat([self.generators, torch.diag_embed(half)], 1)
        centre = self.centre + middle
        return AffineSet(centre, generators, charge(self.centre.abs() + middle.abs(), FLOW_STEP, 2))

    # ---- the interface of a region

    def enclosing_box(self) -> tuple[Tensor, Tensor]:
        return self.form.interval_bounds()

    def minimise_linear(self, a: Tensor) -> Tensor:
        """The minimum of a . x is a . c less the sum of |a . g_k| and |a| . error; charged like a linear
        bound that is read off a form."""
        a = a.double()
        middle = (a @ self.centre[..., None]).squeeze(-1)
        away = (a @ self.generators.mT).abs().sum(-1) + (a.abs() @ self.error[..., None]).squeeze(-1)
        size = (a.abs() @ self.form.size[..., None]).squeeze(-1)
        return middle - away - charge(size, FORM_LINEAR_BOUND, self.symbols + 2 * a.shape[-1])

    def sample(self, count: int, chance: RandomStreams) -> Tensor:
        noise = 2 * chance.uniform(count, (self.symbols,), self.centre) - 1
        return self.centre + (noise[..., None, :] @ self.generators).squeeze(-2)

    def vertex(self, a: Tensor) -> Tensor:
        signs = -torch.sign((self.generators @ a[..., None]).squeeze(-1))
        return self.centre + (signs[..., None, :] @ self.generators).squeeze(-2)

    def contains(self, x: Tensor) -> Tensor:
        """Whether x = c + G e + r for some |e| <= 1, |r| <= error: a linear programme for each point."""
        distance = (x - self._nearest(x)).abs()
        return (distance <= self.error + 1e-12 * (1 + x.abs())).all(-1)

    def project(self, x: Tensor) -> Tensor:
        """A point of the set whose largest distance from x in one state is least."""
        return torch.where(self.contains(x)[..., None], x, self._nearest(x))

    def _nearest(self, x: Tensor) -> Tensor:
        """(..., batch, n): c + G e with the least largest distance |x - c - G e|, by linear programmes."""
        found = [
            self._nearest_in_row(point, row % len(self))
            for row, point in enumerate(x.double().reshape(-1, x.shape[-1]))
        ]
        return torch.stack(found).reshape(x.shape)

    def _nearest_in_row(self, point: Tensor, row: int) -> Tensor:
        from scipy.optimize import linprog

        generators = self.generators[row].mT.numpy(force=True)
        away = (point - self.centre[row]).numpy(force=True)
        symbols = generators.shape[1]
        rows = [[*line, -1.0] for line in generators] + [[*line, -1.0] for line in -generators]
        solved = linprog(
            [0.0] * symbols + [1.0],
            A_ub=rows,
            b_ub=[*away, *-away],
            bounds=[(-1, 1)] * symbols + [(0, None)],
        )
        assert solved.status == 0  # e = 0 is feasible, and the distance is bounded from below.
        noise = torch.as_tensor(solved.x[:symbols], dtype=torch.float64, device=self.centre.device)
        return self.centre[row] + noise @ self.generators[row]


def image(graph: Graph, start: AffineSet) -> AffineSet:
    """The values of a graph over the sets; new noise symbols come after those of the start."""
    form = start.form
    forms = Forms({graph.entry: form}, form.centre.new_zeros((len(start), 0, start.symbols)))
    crown_with_fixed_bounds.propagate(graph, start, forms, walks=False)
    found = forms.of[graph.output]
    return AffineSet(found.centre, pad_generators(found, forms.count, slice(0, len(start))), found.error)


def weighted_sum(parts: Sequence[AffineSet], weights: Sequence[float]) -> AffineSet:
    """The sum of weight * set over sets with shared noise symbols.

    Centre, generators and error are sums of len(parts) products, whose weights were computed with at most
    eight operations each (`FLOW_STEP`).
    """
    symbols = max(part.symbols for part in parts)
    wide = [part.with_symbols(symbols) for part in parts]
    centre = torch.stack([w * p.centre for w, p in zip(weights, wide, strict=True)]).sum(0)
    generators = torch.stack([w * p.generators for w, p in zip(weights, wide, strict=True)]).sum(0)
    error = torch.stack([abs(w) * p.error for w, p in zip(weights, wide, strict=True)]).sum(0)
    size = torch.stack([abs(w) * p.form.size for w, p in zip(weights, wide, strict=True)]).sum(0)
    return AffineSet(centre, generators, error + charge(size, FLOW_STEP, len(parts)))


def reduce_order(whole: AffineSet, most: int, kept: int) -> AffineSet:
    """The set with at most `most` noise symbols, larger where symbols were merged.

    Args:
        kept: how many of the first symbols always stay.
    """
    n = whole.centre.shape[1]
    if whole.symbols <= most:
        return whole
    sizes = whole.generators.abs() / whole.radius.clamp_min(TINY)[:, None]
    loss = sizes.sum(2) - sizes.amax(2)
    loss = torch.nan_to_num(loss, 0.0)
    loss[:, :kept] = torch.inf
    stays = max(kept, most - n)
    chosen = loss.topk(stays, dim=1).indices.sort(1).values
    merged = torch.ones_like(loss).scatter_(1, chosen, 0)
    box = (merged[:, None] @ whole.generators.abs()).squeeze(1) + whole.error
    box = round_up(box, FORM_MERGED, whole.symbols) + TINY
    remaining = whole.generators.gather(1, chosen[..., None].expand(-1, -1, n))
    return AffineSet(
        whole.centre, torch.cat([remaining, torch.diag_embed(box)], 1), torch.zeros_like(whole.error)
    )
