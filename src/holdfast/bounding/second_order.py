"""Second-order bounds: every node as a quadratic function of the input, so that curvature cancels instead of adding up.

A model of a node y over a region x = centre + size v, v in a unit ball: for every v there are numbers r, |r_j| <= 1, one for each
remainder that has been given a name so far, with

    |y - (c + J v + R r + 1/2 v'Q v + v'C r)| <= rest.

Affine maps carry models exactly. A function of one argument is replaced by a parabola with free coefficients and its exact largest
deviation (`curves`), a product by its second-order part; what is left over is bounded and becomes the next remainder. Products of two
remainders are bounded at once, which keeps Q as small as the input and costs little. The margin that arrives is bounded by fixing,
round after round, every variable in which it is monotone at its worse end. Rounding: docs/rounding.md.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from holdfast.bounding.crown import Boxes
from holdfast.bounding.graph.graph import Affine, Entry, Graph, Node, Relaxed
from holdfast.bounding.relax.base import Curve
from holdfast.bounding.relax.parabola import deviation, parabola
from holdfast.bounding.traversal import Forward, forward
from holdfast.region import Region
from holdfast.region.normed import NormFamily
from holdfast.region.norms import dual
from holdfast.rounding import TINY, gamma

LARGEST = 2**28  # numbers in all models for one input; beyond, they are not worth their memory

Bends = dict[tuple[Node, int], Tensor]  # (2, batch, n) for each curve: what is added to its first slope and bend


@dataclass(frozen=True)
class Ball:
    """Where v lives: |v_k| <= 1 for all k if q = 1; else the norm whose dual is the q-norm is at most one in each group."""

    q: float
    groups: Tensor  # (inputs,) the group of each input

    @property
    def box(self) -> bool:
        return self.q == 1

    def dual_norm(self, a: Tensor, inputs: Tensor, axis: int) -> Tensor:
        """a (..., inputs, ...) -> the same with one norm for each group in place of the inputs; |a . v| is at most their sum."""
        if self.box:
            return a.abs().sum(axis, keepdim=True)
        groups, place = self.groups[inputs].unique(return_inverse=True)
        axis %= a.dim()
        index = place.reshape([-1 if k == axis else 1 for k in range(a.dim())]).expand(a.shape)
        shape = [len(groups) if k == axis else size for k, size in enumerate(a.shape)]
        if a.numel() == 0:
            return a.new_zeros(shape)
        if math.isinf(self.q):
            return a.new_zeros(shape).scatter_reduce(axis, index, a.abs(), "amax")
        tiny = torch.finfo(a.dtype).tiny * 2**20  # more than all powers that underflow
        largest = a.detach().abs().amax().clamp_min(tiny**0.5)
        powers = a.new_zeros(shape).scatter_add(axis, index, (a / largest).abs() ** self.q)
        return largest * (powers + tiny) ** (1 / self.q)  # the root has no derivative at zero; a hair more bounds it too


@dataclass(frozen=True)
class Model:
    """One node for a batch of inputs; the words of this module say what the letters are."""

    c: Tensor  # (batch, n)
    J: Tensor  # (batch, n, d)
    R: Tensor  # (batch, n, m): the first m remainders
    Q: Tensor | None  # (batch, n, d, d); None is zero
    C: Tensor | None  # (batch, n, d, m); None is zero
    rest: Tensor  # (batch, n)
    size: Tensor  # (batch, n), at least the sizes of all coefficients together
    inputs: Tensor  # (d,) rising: which inputs v holds
    ball: Ball = field(repr=False)

    def each(self, change: Callable[[Tensor], Tensor]) -> "Model":
        """The same change to every coefficient."""
        Q, C = (None if t is None else change(t) for t in (self.Q, self.C))
        return replace(self, c=change(self.c), J=change(self.J), R=change(self.R), Q=Q, C=C)

    def spread(self, inputs: Tensor, remainders: int) -> "Model":
        """The same model over more inputs and remainders."""
        J, Q, C = self.J, self.Q, self.C
        more = remainders - self.R.shape[-1]
        R, C = F.pad(self.R, (0, more)), None if C is None else F.pad(C, (0, more))
        d, wider = len(self.inputs), len(inputs) - len(self.inputs)
        if wider and torch.equal(inputs[:d], self.inputs):
            J = F.pad(J, (0, wider))
            Q = None if Q is None else F.pad(Q, (0, wider, 0, wider))
            C = None if C is None else F.pad(C, (0, 0, 0, wider))
        elif wider:
            place = torch.searchsorted(self.inputs, inputs).clamp_max(d - 1)
            place = torch.where(self.inputs[place] == inputs, place, d)  # what is padded is zero
            J = F.pad(J, (0, 1))[..., place]
            Q = None if Q is None else F.pad(Q, (0, 1, 0, 1))[..., place, :][..., place]
            C = None if C is None else F.pad(C, (0, 0, 0, 1))[..., place, :]
        return replace(self, J=J, R=R, Q=Q, C=C, inputs=inputs)

    def named(self, before: int) -> "Model":
        """The rest becomes a remainder of its own, after all `before` that exist."""
        wide = self.spread(self.inputs, before)
        R = torch.cat([wide.R, torch.diag_embed(self.rest)], -1)
        C = None if wide.C is None else F.pad(wide.C, (0, self.rest.shape[1]))
        return replace(wide, R=R, C=C, rest=torch.zeros_like(self.rest), size=self.size + self.rest)

    @property
    def terms(self) -> int:
        d, m = self.J.shape[-1], self.R.shape[-1]
        return (d + 1) * (d + m + 1)

    @cached_property
    def parts(self) -> "Parts":
        linear, named = self.ball.dual_norm(self.J, self.inputs, -1).sum(-1), self.R.abs().sum(-1)
        middle = width = torch.zeros_like(self.c)
        if self.Q is not None and self.ball.box:
            squares = self.Q.diagonal(dim1=-2, dim2=-1)  # v_k^2 lies in [0, 1]
            middle, width = squares.sum(-1) / 4, self.Q.abs().sum((-1, -2)) / 2 - squares.abs().sum(-1) / 4
        elif self.Q is not None:
            width = self.ball.dual_norm(self.ball.dual_norm(self.Q, self.inputs, -1), self.inputs, -2).sum((-1, -2)) / 2
        if self.C is not None:
            width = width + self.ball.dual_norm(self.C, self.inputs, -2).sum((-1, -2))
        size = self.c.abs() + linear + named + 2 * width
        off = 8 * gamma(self.terms) * size
        return Parts(linear + off, named + off, middle, width + off, size + off)

    def least(self, rounds: int = 3) -> Tensor:
        """-> (batch, n): the node is nowhere below. Monotone variables are looked for and fixed `rounds` times."""
        parts = self.parts
        plain = self.c - parts.linear - parts.named + parts.middle - parts.width - self.rest - 8 * gamma(self.terms) * parts.size - TINY
        if self.Q is None or not self.ball.box:
            return plain
        C = self.J.new_zeros((*self.J.shape, self.R.shape[-1])) if self.C is None else self.C
        return (
            _least_over_box(self.c, self.J, self.R, self.Q, C, rounds)
            - self.rest
            - 32 * gamma((rounds + 1) * self.terms) * parts.size
            - TINY
        )

    def range(self) -> tuple[Tensor, Tensor]:
        return self.least(), -self.each(torch.neg).least()


@dataclass(frozen=True)
class Parts:
    """|J v| <= linear, |R r| <= named, the quadratic part within `width` of `middle`; size is at least all coefficients together."""

    linear: Tensor
    named: Tensor
    middle: Tensor
    width: Tensor
    size: Tensor


def _least_over_box(c: Tensor, J: Tensor, R: Tensor, Q: Tensor, C: Tensor, rounds: int) -> Tensor:
    """The smallest c + J v + R r + 1/2 v'Q v + v'C r over |v|, |r| <= 1, from below: exact in the variables that turn out monotone."""
    steep, cross = Q.abs(), C.abs()
    free, open_ = torch.ones_like(J), torch.ones_like(R)  # of v and of r
    for _ in range(rounds):
        fix = (J.abs() >= _times(steep, free) + _times(cross, open_)).to(J) * free
        set_ = (R.abs() >= _times(cross.mT, free)).to(J) * open_
        v, r = -J.detach().sign() * fix, -R.detach().sign() * set_
        from_v, from_r = _times(Q, v), _times(C, r)
        c = c + (J * v).sum(-1) + (R * r).sum(-1) + (v * (from_v / 2 + from_r)).sum(-1)
        free, open_ = free - fix, open_ - set_
        J, R = (J + from_v + from_r) * free, (R + _times(C.mT, v)) * open_
    squares = Q.diagonal(dim1=-2, dim2=-1) * free
    mixed = (_times(steep, free) * free).sum(-1) / 2 - squares.abs().sum(-1) / 2 + (_times(cross, open_) * free).sum(-1)
    inside = squares > J.abs()  # the parabola J v + squares v^2 / 2 has its least value between the ends
    alone = torch.where(inside, -J * J / torch.where(inside, 2 * squares, 1.0), squares / 2 - J.abs())
    return c + alone.sum(-1) - mixed - R.abs().sum(-1)


def _times(matrix: Tensor, vector: Tensor) -> Tensor:
    return (matrix @ vector.unsqueeze(-1)).squeeze(-1)


def _along(curve: Curve, y: Model, lower: Tensor, upper: Tensor, bends: Tensor) -> Model:
    """f(y) for lower <= y <= upper: with D = y - at, a parabola in D; D^2 is (J v)^2 + 2 (J v)(R r) and what is bounded."""
    p = y.parts
    at = y.c + p.middle
    slope, bend = (first + more for first, more in zip(parabola(curve, lower, upper, at), bends, strict=True))
    least, most = deviation(curve, slope, bend, lower, upper, at)
    loose, reach = p.width + y.rest, p.linear + p.named
    c = (least + most) / 2 + bend * (p.named**2 + loose**2) / 2 - slope * p.middle
    rest = (most - least) / 2 + slope.abs() * y.rest + bend.abs() * (p.named**2 / 2 + loose**2 / 2 + 2 * reach * loose)
    size = c.abs() + slope.abs() * (p.size + p.middle.abs()) + 2 * bend.abs() * (reach + loose) ** 2 + most.abs() + least.abs()
    steep, twice = slope[..., None], (2 * bend)[..., None] * y.J
    return Model(
        c, steep * y.J, steep * y.R,
        _sum(y.Q, steep[..., None], twice[..., :, None] * y.J[..., None, :]),
        _sum(y.C, steep[..., None], twice[..., :, None] * y.R[..., None, :]),
        rest + gamma(16) * (size + rest), size, y.inputs, y.ball,
    )  # fmt: skip


def _sum(t: Tensor | None, factor: Tensor, more: Tensor) -> Tensor:
    return more if t is None else torch.addcmul(more, t, factor)


def _product(a: Model, z: Model, a_largest: Tensor, z_largest: Tensor) -> Model:
    """a z, exact to the second order; the true values of both never exceed `largest` in size."""
    p, q = a.parts, z.parts
    a_at, z_at = a.c + p.middle, z.c + q.middle
    inputs, remainders = torch.cat([a.inputs, z.inputs]).unique(), max(a.R.shape[-1], z.R.shape[-1])
    a, z = a.spread(inputs, remainders), z.spread(inputs, remainders)
    c = a_at * z_at - a_at * q.middle - z_at * p.middle
    a_reach, z_reach = p.linear + p.named, q.linear + q.named
    rest = p.named * q.named + a_reach * q.width + p.width * z_reach + p.width * q.width
    rest = rest + a.rest * z_largest + z.rest * (a_largest + a.rest)
    size = c.abs() + 2 * (a_at.abs() + p.size) * (z_at.abs() + q.size)
    u, w = a_at[..., None], z_at[..., None]
    square = a.J[..., :, None] * z.J[..., None, :]
    Q, C = square + square.mT, a.J[..., :, None] * z.R[..., None, :] + z.J[..., :, None] * a.R[..., None, :]
    for t, s, factor in ((z.Q, z.C, u), (a.Q, a.C, w)):
        Q, C = _sum(t, factor[..., None], Q), _sum(s, factor[..., None], C)
    return Model(c, u * z.J + w * a.J, u * z.R + w * a.R, Q, C, rest + gamma(16) * (size + rest), size, inputs, a.ball)


@dataclass(frozen=True)
class Step:
    """A node with what it reads; for an affine one the map of that, which may be several nodes of the graph in one."""

    node: Node
    inputs: tuple[Node, ...]
    map: Affine | None = None
    names: bool = False  # what it leaves over becomes a remainder


class Quadratic:
    """The second-order view of a graph: only what the output needs, moves joined with the maps they follow."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.steps = _steps(graph)
        self.elements = _elements(self.steps, graph.device)
        self.obstacle = _obstacle(self.steps, self.elements)

    def bends(self, batch: int, dtype: torch.dtype) -> Bends:
        """Free coefficients, all zero: the parabolas through the Chebyshev points."""
        found: Bends = {}
        for step in self.steps:
            if isinstance(step.node, Relaxed):
                for place, curve in enumerate(step.node.relaxation.curves() or ()):
                    if curve is not None:
                        found[step.node, place] = torch.zeros((2, batch, step.node.size), dtype=dtype, device=self.graph.device)
        return found

    def least(self, region: Region, rows: Tensor, offset: Tensor, bends: Bends, boxes: Boxes | None = None) -> Tensor:
        """rows (batch, rows, outputs) -> (batch, rows): row . output + offset is nowhere below. A proof in float64 only."""
        dtype = next(iter(bends.values())).dtype
        found = _Models(self.steps, region, bends, boxes)
        forward((step.node for step in self.steps), found.visit)
        return _asked(found.models[self.graph.output], rows.to(dtype), offset.to(dtype)).least(rounds=8)


class _Models(Forward):
    """Carries models forward; those that nobody reads any more are let go."""

    def __init__(self, steps: list[Step], region: Region, bends: Bends, boxes: Boxes | None) -> None:
        self.region, self.bends, self.boxes = region, bends, boxes
        self.steps = {step.node: step for step in steps}
        self.last = {node: step.node for step in steps for node in step.inputs}
        self.models: dict[Node, Model] = {}
        self.ranges: dict[Node, tuple[Tensor, Tensor]] = {}
        self.count = 0  # of remainders

    def enter(self, node: Entry) -> None:
        self.models[node] = _entry(self.region, next(iter(self.bends.values())).dtype)

    def through_map(self, node: Affine) -> None:
        step = self.steps[node]
        assert step.map is not None
        self._keep(step, _affine(step.map, [self.models[s] for s in step.inputs]))

    def through_function(self, node: Relaxed) -> None:
        step = self.steps[node]
        for source in step.inputs:
            if source not in self.ranges:
                self.ranges[source] = _range(self.models[source], source, self.boxes)
        ranges = [self.ranges[s] for s in step.inputs]
        self._keep(step, _relaxed(node, [self.models[s] for s in step.inputs], ranges, self.bends))

    def _keep(self, step: Step, found: Model) -> None:
        if step.names:
            found = found.named(self.count)
            self.count += step.node.size
        self.models[step.node] = found
        for source in step.inputs:
            if self.last[source] is step.node:
                self.models.pop(source, None)


def _steps(graph: Graph) -> list[Step]:
    joined: dict[Node, Step] = {}
    for node in graph.nodes:
        if not isinstance(node, Affine):
            joined[node] = Step(node, node.inputs)
            continue
        # A move takes rows of what it moves; an input that no row reads any more is dropped.
        before = joined[node.inputs[0]].map
        one = (node.after(before) if before is not None else None) or node
        joined[node] = Step(node, one.inputs, one)
    needed, kept = {graph.output}, []
    for node in reversed(graph.nodes):
        if node in needed:
            kept.append(joined[node])
            needed.update(joined[node].inputs)
    steps = kept[::-1]
    readers: dict[Node, list[Node]] = {}
    for step in steps:
        for source in step.inputs:
            readers.setdefault(source, []).append(step.node)

    def summed(node: Node) -> bool:
        """Its rest is added to others at once, so that one name serves them all."""
        reading = readers.get(node, [])
        return isinstance(node, Relaxed) and len(reading) == 1 and isinstance(reading[0], Affine) and reading[0].sums

    return [
        replace(s, names=(isinstance(s.node, Relaxed) and not summed(s.node)) or any(summed(source) for source in s.inputs)) for s in steps
    ]


def _elements(steps: list[Step], device: torch.device) -> int:
    """Numbers in the models of all nodes, for one input all of which may move."""
    reads: dict[Node, set[int]] = {}
    remainders = total = 0
    for step in steps:
        node = step.node
        if step.map is not None and step.map.moves and isinstance(step.inputs[0], Entry):
            reads[node] = set(step.map.forward([torch.arange(step.inputs[0].size, device=device)]).tolist())
        elif isinstance(node, Entry):
            reads[node] = set(range(node.size))
        else:
            reads[node] = set().union(*(reads[source] for source in step.inputs))
            total += node.size * len(reads[node]) * (len(reads[node]) + remainders)
        remainders += node.size if step.names else 0
    return total


def _obstacle(steps: list[Step], elements: int) -> str | None:
    if not any(isinstance(s.node, Relaxed) for s in steps):
        return "the network is linear: planes are exact"
    for step in steps:
        node = step.node
        if isinstance(node, Relaxed) and node.relaxation.curves() is None:
            return f"{node.name}: {type(node.relaxation).__name__} has no second-order model"
        if step.map is not None and not step.map.small:
            return f"{node.name}: too large for second-order models"
    return f"second-order models would hold {elements:.2g} numbers for one input" if elements > LARGEST else None


def _entry(region: Region, dtype: torch.dtype) -> Model:
    """x = c + J v: the box around the region, or for a smooth norm its balls."""
    if isinstance(region, NormFamily) and not math.isinf(region.p):
        like = region.grouped(region.centre)
        groups = torch.arange(like.shape[1], device=like.device)[:, None].expand(like.shape[1:]).flatten()
        centre, size, ball = (
            region.centre.double().flatten(1),
            region.spans().flatten(1),
            Ball(dual(region.p), groups),
        )
    else:
        lower, upper = (end.flatten(1) for end in region.enclosing_box())
        centre = lower / 2 + upper / 2
        size = (upper / 2 - lower / 2) * (1 + 4 * gamma(1)) + 2 * gamma(1) * torch.maximum(lower.abs(), upper.abs())
        size = torch.where(lower == upper, 0, size)
        ball = Ball(1.0, torch.zeros(centre.shape[1], dtype=torch.long, device=centre.device))
    inputs = (size > 0).any(0).nonzero().flatten()
    centre, size = centre.to(dtype), size.to(dtype)
    J = torch.diag_embed(size)[..., inputs]
    none = torch.zeros_like(centre)
    return Model(centre, J, J.new_zeros((*centre.shape, 0)), None, None, none, centre.abs() + size, inputs, ball)


def _affine(node: Affine, sources: list[Model]) -> Model:
    """The model of a map of the sources, exact but for rounding."""
    if node.moves:
        return _moved(node, sources[0])
    inputs = torch.cat([s.inputs for s in sources]).unique()
    remainders = max(s.R.shape[-1] for s in sources)
    total: Model | None = None
    for k, source in enumerate(sources):
        part = source.spread(inputs, remainders).each(lambda t, k=k: node.part(k, t, 1))  # type: ignore[misc]
        part = replace(part, rest=node.part(k, source.rest, 1, absolute=True))
        total = part if total is None else _plus(total, part)
    assert total is not None
    c = total.c if node.shift is None else total.c + node.shift.to(total.c)
    return _rounded(replace(total, c=c, size=node.forward_absolute([s.size for s in sources])), sum(s.c.shape[1] for s in sources))


def _moved(node: Affine, source: Model) -> Model:
    found = source.each(lambda t: node.part(0, t, 1))
    found = replace(found, rest=node.forward([source.rest]), size=node.forward([source.size]))
    if found.Q is None and found.C is None:  # a frame of the input: forget the inputs of the others
        read = (found.J != 0).any(0).any(0)
        return replace(found, J=found.J[..., read], inputs=found.inputs[read])
    return found


def _asked(source: Model, rows: Tensor, offset: Tensor) -> Model:
    """rows (batch, rows, n) of a node, plus the offset (batch, rows)."""
    part = source.each(lambda t: _rows(rows, t))
    rest, size = (_rows(rows.abs(), t) for t in (source.rest, source.size))
    return _rounded(replace(part, c=part.c + offset, rest=rest, size=size + offset.abs()), source.c.shape[1])


def _rounded(model: Model, terms: int) -> Model:
    """What sums of so many terms may have missed joins the rest."""
    units = gamma(2 * terms + 16)
    return replace(model, rest=model.rest * (1 + units) + 2 * units * model.size, size=model.size * (1 + units))


def _rows(matrix: Tensor, t: Tensor) -> Tensor:
    return (matrix @ t.flatten(2)).reshape(t.shape[0], matrix.shape[-2], *t.shape[2:]) if t.dim() > 2 else _times(matrix, t)


def _plus(a: Model, b: Model) -> Model:
    Q, C = (s if t is None else t if s is None else t + s for t, s in ((a.Q, b.Q), (a.C, b.C)))
    return replace(a, c=a.c + b.c, J=a.J + b.J, R=a.R + b.R, Q=Q, C=C, rest=a.rest + b.rest)


def _range(model: Model, node: Node, boxes: Boxes | None) -> tuple[Tensor, Tensor]:
    lower, upper = model.range()
    if boxes is not None:
        lower = torch.maximum(lower, boxes.lower[node].flatten(1).to(lower))
        upper = torch.minimum(upper, boxes.upper[node].flatten(1).to(upper))
    return lower, torch.maximum(lower, upper)


def _relaxed(node: Relaxed, sources: list[Model], ranges: list[tuple[Tensor, Tensor]], bends: Bends) -> Model:
    models, largest = [], []
    curves = node.relaxation.curves() or ()
    for place, (curve, source, (lower, upper)) in enumerate(zip(curves, sources, ranges, strict=True)):
        ends = lower, upper
        if curve is not None:
            source = _along(curve, source, lower, upper, bends[node, place])
            ends = curve.function(lower), curve.function(upper)  # curves that enter products rise
        models.append(source)
        largest.append(torch.maximum(ends[0].abs(), ends[1].abs()) * (1 + gamma(8)))
    if len(models) == 1:
        return models[0]
    (a, z), (a_largest, z_largest) = models, largest
    return _product(a, z, a_largest, z_largest)
