"""A controller and a plant as one loop: traced, checked and simulated.

The controller reads inputs(x) at the beginning of every period, and its output u is held until the next one.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from holdfast.bounding.graph import equivalence_check
from holdfast.bounding.graph.graph import Graph, build
from holdfast.errors import BadInput, HoldfastError
from holdfast.foreign_text import first_line
from holdfast.network import Network
from holdfast.network.trace import as_plain_module
from holdfast.reachability.flow import Enclosure, PlantGraphs
from holdfast.reachability.taylor_coefficients import (
    JoinedPlant,
    PartialDerivatives,
    TaylorCoefficients,
    check_coefficients,
)
from holdfast.region import Box

Plant = Callable[[Tensor, Tensor], Tensor]
Inputs = Callable[[Tensor], Tensor]

ORDER = 3  # Order of the Taylor expansion in time (chosen by hand; 2 to 4 are allowed).
# Steps of a period in simulations, of the classical Runge-Kutta method (chosen by hand).
SIMULATED_STEPS = 20


class StateController(nn.Module):
    """The controller as a function of the state: controller(inputs(x)), in the shape that it reads."""

    def __init__(self, controller: nn.Module, inputs: Inputs | None, shape: tuple[int, ...] | None) -> None:
        super().__init__()
        self.controller, self.inputs, self.shape = controller, inputs, shape

    def forward(self, x: Tensor) -> Tensor:
        read = x if self.inputs is None else self.inputs(x)
        outputs: Tensor = self.controller(read if self.shape is None else read.reshape(-1, *self.shape))
        return outputs.flatten(1)


@dataclass(frozen=True, eq=False)
class LoopModel:
    """A loop of a controller and a plant.

    Attributes:
        controller: a network of inputs(x).
        plant: (x, u) -> dx/dt, or the next state of a discrete plant; x (batch, n), u (batch, m).
        states: the names of the states.
        period: how long u is held, in units of time.
        disturbance: (n,), the largest absolute values of a term that is added to dx/dt, or to the next state.
        order: of the Taylor expansion.
    """

    controller: Network
    plant: Plant
    states: tuple[str, ...]
    period: float
    inputs: Inputs | None
    discrete: bool
    disturbance: Tensor
    order: int

    @cached_property
    def controlled(self) -> Network:
        """The controller as a network of the state."""
        shape = self.controller.shape
        whole = None if shape is None or None in shape else tuple(size for size in shape if size is not None)
        module = StateController(self.controller.module, self.inputs, whole).eval()
        return Network.from_torch(
            module, shape=(len(self.states),), name=self.controller.name, fingerprint="loop"
        )

    def check(self, start: tuple[Tensor, Tensor]) -> None:
        """Raise BadInput or UnsupportedLayer unless controller and plant fit each other at these states."""
        n, middle = len(self.states), (start[0] / 2 + start[1] / 2)[None]
        read = middle
        if self.inputs is not None:
            read = _call("inputs", self.inputs, middle.to(self.controller.dtype))
            if read.dim() < 2 or read.shape[0] != 1:
                raise BadInput(
                    f"inputs: expected a function from states (batch, {n}) to the controller's inputs (batch, ...), "
                    f"got a result of shape {tuple(read.shape)} for one state."
                )
        shape = self.controller.shape
        fits = shape is None or None in shape or math.prod(size or 1 for size in shape) == read[0].numel()
        try:
            outputs = self.controlled(middle) if fits else torch.zeros(0)
        except (RuntimeError, ValueError, IndexError, TypeError, HoldfastError):
            fits = False
        if not fits:
            given = f"{n} states" if self.inputs is None else f"{read[0].numel()} values of inputs(x)"
            wanted = "" if shape is None else f", which reads the shape {shape}"
            raise BadInput(
                f"the controller {self.controller.name}{wanted}, cannot read the {given}. Give inputs=, the function "
                "from states (batch, n) to what the controller reads."
            )
        moved = _call("plant", self.plant, middle, outputs.double())
        if tuple(moved.shape) != (1, n):
            raise BadInput(
                f"plant: for {n} states (1, {n}) and {outputs.shape[1]} controls {tuple(outputs.shape)} it returned "
                f"the shape {tuple(moved.shape)}; expected (1, {n}). Index states and controls by their last "
                "axis, as in x[..., 0]."
            )
        two = _call("plant", self.plant, middle.repeat(2, 1), outputs.double().repeat(2, 1))
        if tuple(two.shape) != (2, n):
            raise BadInput(
                f"plant: for a batch of two states it returned the shape {tuple(two.shape)}; expected (2, {n}). "
                "Index states and controls by their last axis, as in x[..., 0]."
            )

    def enclosure(self, start: tuple[Tensor, Tensor]) -> Enclosure:
        """The graphs for proofs, each checked against the model at points of the start."""
        n = len(self.states)
        box = Box.between(start[0][None], start[1][None])
        controller = _graph(self.controlled, box)
        outputs = self.controlled(box.centre).double()
        joined = Box.between(torch.cat([box.lower, outputs], 1), torch.cat([box.upper, outputs], 1))
        net = _network(JoinedPlant(self.plant, n), joined, "plant")
        step = _graph(net, joined)
        if self.discrete:
            return Enclosure(controller, PlantGraphs(step), n, self.disturbance)
        program = as_plain_module(net.program(joined.centre))
        points = equivalence_check.sampled_points(joined)
        check_coefficients(net, TaylorCoefficients(program, n, 1, self.order + 1), points)
        graphs = [
            _graph(_network(module, joined, "plant"), joined)
            for module in (
                TaylorCoefficients(program, n, 1, self.order),
                TaylorCoefficients(program, n, self.order + 1, self.order + 1),
                *([PartialDerivatives(program, n)] if bool(self.disturbance.any()) else []),
            )
        ]
        plant = PlantGraphs(step, self.order, graphs[0], graphs[1], graphs[2] if len(graphs) > 2 else None)
        return Enclosure(controller, plant, n, self.disturbance)

    def simulate(self, start: Tensor, periods: int, steps: int = SIMULATED_STEPS) -> Tensor:
        """Trajectories without disturbance, (batch, periods * steps + 1, n); one step a period if discrete.

        The controller runs as the user's model does, the plant in float64, integrated by the classical
        Runge-Kutta method with `steps` steps a period. Simulations prove nothing.
        """
        x, found = start.double(), [start.double()]
        with torch.no_grad():
            for _ in range(periods):
                u = self.controlled(x).double()
                if self.discrete:
                    x = self.plant(x, u).double()
                    found.append(x)
                    continue
                h = self.period / steps
                for _ in range(steps):
                    x = runge_kutta_step(self.plant, x, u, h)
                    found.append(x)
        return torch.stack(found, 1)


def runge_kutta_step(plant: Plant, x: Tensor, u: Tensor, h: float) -> Tensor:
    """One step of the classical Runge-Kutta method (order 4)."""
    k1 = plant(x, u)
    k2 = plant(x + h / 2 * k1, u)
    k3 = plant(x + h / 2 * k2, u)
    k4 = plant(x + h * k3, u)
    return x + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)


def _network(module: nn.Module, box: Box, name: str) -> Network:
    return Network.from_torch(module.eval(), shape=box.shape, name=name, fingerprint="loop")


def _graph(net: Network, box: Box) -> Graph:
    """The graph of a network, checked against it at points of the box."""
    graph = build(net, box.centre)
    equivalence_check.check(net, graph, box)
    return graph


def _call(name: str, function: Callable[..., Tensor], *given: Tensor) -> Tensor:
    """What a user's function returns; BadInput if it fails or returns no tensor."""
    try:
        found = function(*given)
    except HoldfastError:
        raise
    except Exception as error:
        shapes = ", ".join(str(tuple(part.shape)) for part in given)
        raise BadInput(
            f"{name}: the function failed for arguments of shape {shapes}: {first_line(error)}"
        ) from error
    if not isinstance(found, Tensor):
        raise BadInput(f"{name}: the function must return a torch tensor, got {type(found).__name__}.")
    return found
