"""Quadratic (second-order Taylor) models of a graph: every node as a quadratic function of the input and of
remainders.

Statement. Over a region x = centre + size v, v in a unit ball, every node y has a model: for every v there
are numbers r_j, |r_j| <= 1, one for each remainder that has been named and the same ones for all
nodes, with

    |y - (c + J v + R r + 1/2 v'Q v + v'C r)| <= rest.

`quadratic_algebra` has the operations on models. Here they follow the nodes of a graph: what an operation leaves over
is bounded and becomes the next named remainder. Named remainders may cancel later, and so may curvature; interval and
linear relaxations add both up. Rounding: docs/rounding.md.

References: Makino, Berz, "Taylor models and other validated functional inclusion methods" (2003), for Taylor
models; Stolfi, de Figueiredo, "Self-validated numerical methods and applications" (1997), for named
remainders (noise symbols).

Assumption: the region is such an image of a unit ball, and every function has a parabola (`relax/parabola`)
or is a product.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import reduce

import torch
from torch import Tensor

from holdfast.bounding.crown import IntermediateRefinement, Intervals, lower_bound
from holdfast.bounding.crown_with_fixed_bounds import BoundConstraints, ZonotopePropagation
from holdfast.bounding.first_bounds import forms_for
from holdfast.bounding.graph.graph import Affine, Graph, InputNode, Node, Relaxed
from holdfast.bounding.node_bounds import Boxes, IntervalBounds
from holdfast.bounding.quadratic_algebra import (
    QuadraticModel,
    VariableBall,
    add_models,
    apply_affine,
    apply_curve,
    apply_rows,
    charge_rounding,
    free_parabola,
    multiply,
    union_of_inputs,
)
from holdfast.bounding.traversal import Forward, forward
from holdfast.derivations import MODEL_VALUES
from holdfast.memory_budget import format_bytes, free_bytes
from holdfast.region import Region
from holdfast.region.norms import dual
from holdfast.rounding import centre_and_radius, charge

# Largest number of values in the models of a network with ReLU-like activations only. Linear bounds are
# better and cheaper for larger ones. Chosen by hand.
MAX_VALUES_RELU_LIKE = 2**22

# For each curve (2, batch, n): added to the parabola's first and second coefficient, in units that depend on
# the half width of its interval.
ParabolaCoefficients = dict[tuple[Node, int], Tensor]


@dataclass(frozen=True)
class ModelStep:
    """A node with its inputs; for an affine node the map, which may combine several nodes of the graph."""

    node: Node
    inputs: tuple[Node, ...]
    map: Affine | None = None
    names: bool = False  # its rest becomes named remainders
    stores: bool = False  # its quadratic part is computed and stored


class Quadratic:
    """The quadratic models of a graph, for the nodes that the output needs.

    Selections of elements are merged into the affine maps before them.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.steps = _steps(graph)
        self._each = _numbers(self.steps, graph.device)
        self.numbers = sum(self._each)  # stored values for one input with all elements perturbed
        self._unsuited, self._too_large = _why_unsuited(self.steps, self.numbers), _too_large(self.steps)

    @property
    def missing_requirement(self) -> str:
        """What is missing for such models, memory or small enough maps; empty if nothing is.

        Evaluated at each access, since a memory limit may have changed.
        """
        if self._unsuited is not None or self._too_large:
            return self._too_large
        needed, available = self.bytes(training=False), free_bytes(self.graph.device)
        short = needed > available
        return (
            f"one input needs {format_bytes(needed)}, and {format_bytes(available)} may be used"
            if short
            else ""
        )

    @property
    def obstacle(self) -> str | None:
        """Why there are no such models: they do not apply to the network, or something is missing."""
        return self._unsuited or (
            f"second-order models: {lack}" if (lack := self.missing_requirement) else None
        )

    def bytes(self, training: bool) -> int:
        """The memory for one input: the largest nodes in float64; in training, all nodes in float32."""
        largest = max(self._each, default=0)
        return 8 * (6 * largest + 2**16) if not training else 8 * (self.numbers + 6 * largest + 2**16)

    def zero_coefficients(self, batch: int, dtype: torch.dtype) -> ParabolaCoefficients:
        """Free coefficients, all zero: the parabolas through the Chebyshev points."""
        found: ParabolaCoefficients = {}
        for step in self.steps:
            if isinstance(step.node, Relaxed):
                for place, curve in enumerate(step.node.relaxation.curves() or ()):
                    if curve is not None:
                        found[step.node, place] = torch.zeros(
                            (2, batch, step.node.size), dtype=dtype, device=self.graph.device
                        )
        return found

    def least(
        self,
        region: Region,
        rows: Tensor,
        offset: Tensor,
        coefficients: ParabolaCoefficients,
        boxes: Boxes | None = None,
    ) -> Tensor:
        """Lower bounds (batch, rows) of rows . output + offset; a proof in float64 only.

        Args:
            rows: (batch, rows, outputs).
            boxes: intermediate bounds, with which the ranges of the models are intersected.
        """
        found = QuadraticPropagation(self.steps, region, coefficients, boxes)
        forward((step.node for step in self.steps), found.visit)
        return found.least({self.graph.output: rows}, offset)

    def least_with_crown(
        self, region: Region, rows: Tensor, offset: Tensor, coefficients: ParabolaCoefficients
    ) -> Tensor:
        """The better of this bound and CROWN's, where both use the intermediate bounds of both, and of affine
        forms if the network has these.
        """
        boxes = Boxes(region)
        models = QuadraticPropagation(self.steps, region, coefficients, boxes)
        forms = forms_for(self.graph, boxes, self.graph.nodes)
        self._propagate_both(models, boxes, BoundConstraints(boxes, {}), forms)
        return torch.fmax(
            models.least({self.graph.output: rows}, offset), lower_bound(self.graph, boxes, rows, offset)
        )

    def within(
        self,
        region: Region,
        coefficients: ParabolaCoefficients,
        within: Mapping[Node, IntervalBounds],
        kept: Collection[Node] = (),
    ) -> tuple["QuadraticPropagation", Boxes, Tensor]:
        """Models and boxes for the points of the region at which some nodes lie between given bounds.

        Returns the models, the boxes, and (batch,) bool: rows without any such point. The models of the
        output and of the nodes in `kept` stay available.
        """
        assert next(iter(coefficients.values())).dtype == torch.float64, (
            "linear bounds must not rest on float32 ranges, which prove nothing"
        )
        models = QuadraticPropagation(self.steps, region, coefficients, boxes := Boxes(region), kept)
        self._propagate_both(models, boxes, held := BoundConstraints(boxes, within))
        return models, boxes, held.empty

    def parabolas(self, region: Region, coefficients: ParabolaCoefficients) -> ParabolaCoefficients:
        """Coefficients a, b of each curve's parabola a y + b y^2 over a region, stacked to (2, batch, n)."""
        relaxed = [step for step in self.steps if isinstance(step.node, Relaxed)]
        models, _, _ = self.within(
            region, coefficients, {}, {source for step in relaxed for source in step.inputs}
        )
        found: ParabolaCoefficients = {}
        for step in relaxed:
            assert isinstance(step.node, Relaxed)
            for place, curve in enumerate(step.node.relaxation.curves() or ()):
                if curve is not None:
                    y, ends = models.models[step.inputs[place]], models.ranges[step.inputs[place]]
                    at, slope, second = free_parabola(curve, y, *ends, coefficients[step.node, place])
                    found[step.node, place] = torch.stack([slope - 2 * second * at, second])
        return found

    def boxes(self, region: Region, coefficients: ParabolaCoefficients) -> Boxes:
        """Intermediate bounds of all nodes by CROWN and quadratic models together."""
        boxes = Boxes(region)
        self._propagate_both(
            QuadraticPropagation(self.steps, region, coefficients, boxes), boxes, BoundConstraints(boxes, {})
        )
        return boxes

    def _propagate_both(
        self,
        models: "QuadraticPropagation",
        boxes: Boxes,
        held: BoundConstraints,
        forms: ZonotopePropagation | None = None,
    ) -> None:
        """Propagate models, affine forms and boxes forward together, each intersected with the others' bounds."""
        intervals, refine = Intervals(self.graph, boxes), IntermediateRefinement(self.graph, boxes)

        def narrow(node: Node) -> None:
            if isinstance(node, Relaxed) and node in models.steps:
                for source, ends in zip(node.inputs, models.ranges_of(node), strict=True):
                    boxes.keep(source, *(end.double().reshape(-1, *source.shape) for end in ends))

        def carry(node: Node) -> None:
            if node in models.steps:
                models.visit(node)

        carriers = [] if forms is None else [forms.visit]
        forward(self.graph.nodes, narrow, intervals.visit, *carriers, held, refine, carry)


class QuadraticPropagation(Forward):
    """Propagates models forward; models that no later node reads are freed."""

    def __init__(
        self,
        steps: list[ModelStep],
        region: Region,
        coefficients: ParabolaCoefficients,
        boxes: Boxes | None,
        kept: Collection[Node] = (),
    ) -> None:
        self.region = region
        self.coefficients = coefficients
        self.boxes = boxes
        self.kept = kept
        self.steps = {step.node: step for step in steps}
        self.last = {node: step.node for step in steps for node in step.inputs}
        self.models: dict[Node, QuadraticModel] = {}
        self.ranges: dict[Node, tuple[Tensor, Tensor]] = {}
        self.count = 0  # the number of named remainders

    def enter(self, node: InputNode) -> None:
        self.models[node] = _entry(self.region, next(iter(self.coefficients.values())).dtype)

    def through_map(self, node: Affine) -> None:
        step = self.steps[node]
        assert step.map is not None
        self._keep(step, apply_affine(step.map, [self.models[s] for s in step.inputs]))

    def through_function(self, node: Relaxed) -> None:
        ranges, step = self.ranges_of(node), self.steps[node]
        self._keep(
            step, _apply_relaxation(node, [self.models[s] for s in step.inputs], ranges, self.coefficients)
        )

    def ranges_of(self, node: Relaxed) -> list[tuple[Tensor, Tensor]]:
        """The ranges of an activation's inputs."""
        for source in self.steps[node].inputs:
            if source not in self.ranges:
                self.ranges[source] = range_of(self.models[source], source, self.boxes)
        return [self.ranges[s] for s in self.steps[node].inputs]

    def least(self, rows: Mapping[Node, Tensor], offset: Tensor) -> Tensor:
        """Lower bounds (batch, rows) of the sum of row . node over some nodes, plus the offset.

        `rows` are (batch, rows, size) for each node.
        """
        dtype = next(iter(self.coefficients.values())).dtype
        asked = [
            apply_rows(self.models[node].store_curvature(), part.to(dtype)) for node, part in rows.items()
        ]
        inputs, remainders = (
            reduce(union_of_inputs, (a.inputs for a in asked)),
            max(a.R.shape[-1] for a in asked),
        )
        total = reduce(add_models, (a.extend_variables(inputs, remainders) for a in asked))
        size = sum(a.size for a in asked) + offset.abs().to(dtype)
        return charge_rounding(replace(total, c=total.c + offset.to(dtype), size=size), len(asked)).least(
            rounds=8
        )

    def _keep(self, step: ModelStep, found: QuadraticModel) -> None:
        if step.stores:
            found = found.store_curvature()
        if step.names:
            found = found.name_remainder(self.count)
            self.count += step.node.size
        self.models[step.node] = found
        for source in step.inputs:
            if self.last[source] is step.node and source not in self.kept:
                self.models.pop(source, None)


def _steps(graph: Graph) -> list[ModelStep]:
    joined: dict[Node, ModelStep] = {}
    for node in graph.nodes:
        if not isinstance(node, Affine):
            joined[node] = ModelStep(node, node.inputs)
            continue
        # A selection takes rows of the map before it; inputs that no row reads any more are dropped.
        before = joined[node.inputs[0]].map
        one = (node.after(before) if before is not None else None) or node
        joined[node] = ModelStep(node, one.inputs, one)
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

    def joins_sum(node: Node) -> bool:
        """Whether the node's only reader is a sum, where the summands' remainders are named together."""
        reading = readers.get(node, [])
        return (
            isinstance(node, Relaxed)
            and len(reading) == 1
            and isinstance(reading[0], Affine)
            and reading[0].sums
        )

    def needs_own_remainder(step: ModelStep) -> bool:
        return (isinstance(step.node, Relaxed) and not joins_sum(step.node)) or any(
            joins_sum(source) for source in step.inputs
        )

    return [replace(s, names=needs_own_remainder(s), stores=needs_own_remainder(s)) for s in steps]


def _numbers(steps: list[ModelStep], device: torch.device) -> list[int]:
    """The number of values in every node's stored quadratic part, for one fully perturbed input."""
    reads: dict[Node, set[int]] = {}
    remainders, found = 0, []
    for step in steps:
        node = step.node
        if step.map is not None and step.map.moves and isinstance(step.inputs[0], InputNode):
            reads[node] = set(step.map.forward([torch.arange(step.inputs[0].size, device=device)]).tolist())
        elif isinstance(node, InputNode):
            reads[node] = set(range(node.size))
        else:
            reads[node] = set().union(*(reads[source] for source in step.inputs))
        if step.stores:
            found.append(node.size * len(reads[node]) * (len(reads[node]) + remainders))
        remainders += node.size if step.names else 0
    return found


def _why_unsuited(steps: list[ModelStep], numbers: int) -> str | None:
    """Why models gain nothing over linear bounds or do not exist, whatever the memory; else None."""
    if not any(isinstance(s.node, Relaxed) for s in steps):
        return "the network is linear: linear bounds are exact"
    for step in steps:
        node = step.node
        if isinstance(node, Relaxed) and node.relaxation.curves() is None:
            return f"{node.name}: {type(node.relaxation).__name__} has no second-order model"
    if numbers > MAX_VALUES_RELU_LIKE and all(
        s.node.relaxation.sides() is not None for s in steps if isinstance(s.node, Relaxed)
    ):
        return (
            "all its activations are piecewise linear: at this size linear bounds are better than parabolas"
        )
    return None


def _too_large(steps: list[ModelStep]) -> str:
    """Names an affine map that is too large to be stored as a matrix; empty if there is none."""
    large = [step.node.name for step in steps if step.map is not None and not step.map.small]
    return f"{large[0]} is too large to be stored as a matrix" if large else ""


def _entry(region: Region, dtype: torch.dtype) -> QuadraticModel:
    """The model of the input, x = c + J v: over the enclosing box, or over the balls of a smooth norm."""
    family = region.as_norm_family()
    if family is not None and not math.isinf(family.norm):
        like = family.group_features(family.centre)
        groups = torch.arange(like.shape[1], device=like.device)[:, None].expand(like.shape[1:]).flatten()
        centre = region.centre.double().flatten(1)
        size = family.spans().flatten(1)
        ball = VariableBall(dual(family.norm), groups)
    else:
        lower, upper = (end.flatten(1) for end in region.enclosing_box())
        centre, size = centre_and_radius(lower, upper)
        size = torch.where(lower == upper, 0, size)
        ball = VariableBall(1.0, torch.zeros(centre.shape[1], dtype=torch.long, device=centre.device))
    inputs = (size > 0).any(0).nonzero().flatten()
    centre, size = centre.to(dtype), size.to(dtype)
    J = torch.diag_embed(size)[..., inputs]
    none = torch.zeros_like(centre)
    return QuadraticModel(
        centre, J, J.new_zeros((*centre.shape, 0)), None, none, centre.abs() + size, inputs, ball
    )


def range_of(model: QuadraticModel, node: Node, boxes: Boxes | None) -> tuple[Tensor, Tensor]:
    lower, upper = model.range()
    if boxes is not None:
        lower = torch.maximum(lower, boxes.lower[node].flatten(1).to(lower))
        upper = torch.minimum(upper, boxes.upper[node].flatten(1).to(upper))
    return lower, torch.maximum(lower, upper)


def _apply_relaxation(
    node: Relaxed,
    sources: list[QuadraticModel],
    ranges: list[tuple[Tensor, Tensor]],
    coefficients: ParabolaCoefficients,
) -> QuadraticModel:
    models, values = [], []
    curves = node.relaxation.curves() or ()
    for place, (curve, source, (lower, upper)) in enumerate(zip(curves, sources, ranges, strict=True)):
        ends = lower, upper
        if curve is not None:
            source = apply_curve(curve, source, lower, upper, coefficients[node, place])
            ends = curve.function(lower), curve.function(upper)  # curves that enter products are increasing
        models.append(source)
        off = charge(torch.maximum(ends[0].abs(), ends[1].abs()), MODEL_VALUES)
        values.append((ends[0] - off, ends[1] + off))
    if len(models) == 1:
        return models[0]
    (a, z), (a_values, z_values) = models, values
    return multiply(a, z, a_values, z_values)
