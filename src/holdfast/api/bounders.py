"""Which bounding method and which branching rule the library uses for a network: tiers, norm 0, verify, reach
and risk.

Every line calls the function that decides at run time, so that the table cannot differ from what happens.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.bounding import joint_relu, taylor
from holdfast.bounding.alpha_beta_crown import relu_like_functions
from holdfast.bounding.branching.branching_rule import (
    MAX_INPUT_SPLIT_INPUTS,
    MAX_TAYLOR_INPUTS,
    choose_branching,
)
from holdfast.bounding.branching.nonlinear_split import NonlinearSplit
from holdfast.bounding.branching.relu_split import ActivationSplit
from holdfast.bounding.branching.smooth_split import SmoothSplit
from holdfast.bounding.first_bounds import describe_forms
from holdfast.bounding.graph.fusion import prepare_graph
from holdfast.bounding.graph.problem_graph import graph_of
from holdfast.certify.quadratic_training import no_models, quadratic_of
from holdfast.certify.split_tier import Split
from holdfast.errors import HoldfastError
from holdfast.hamming.budget_split import question_of
from holdfast.memory_budget import format_bytes
from holdfast.network import Network
from holdfast.problem import Problem
from holdfast.property import Linear
from holdfast.region import Ball, Box, Region, Sparse
from holdfast.result import Goal

PLANES = "linear bounds in closed form (CROWN)"
SLOPES = "optimised slopes (alpha-CROWN)"
TOGETHER = "joint ReLU relaxation (maximum norm, norm 2)"
TRAINED = "optimised slopes and multipliers (alpha-, beta-CROWN)"
FORMS, TAYLOR = "linear bounds and zonotopes", "Taylor models, linear bounds and zonotopes"
HALVES, SIGNS, RANGES = (
    "input splitting",
    "ReLU splitting",
    "input splitting; in other norms splitting of pre-activation ranges",
)


@dataclass(frozen=True)
class BoundingChoice:
    question: str
    bounds: str
    cut: str = ""


def bounders(net: Network, x: Tensor) -> list[BoundingChoice]:
    """Return the choices for inputs like x, (batch, *shape); an empty list where nothing can be proved."""
    ball = _problem(net, Ball(x[:1], torch.zeros(1, dtype=torch.float64), torch.inf, net.domain), "radius")
    try:
        graph_of(ball)
        graph = prepare_graph(net, Box.between(x[:1], x[:1]))
    except HoldfastError:
        return []
    models = _models(ball)
    found = [
        BoundingChoice("radius, worst; tier fast", _first(ball)),
        BoundingChoice("tier tight", _tight(ball, models)),
    ]
    cut = choose_branching(graph, ball.family.at(1.0), models=models is not None)
    signs = isinstance(cut, ActivationSplit)
    bounds, parts = (
        (TRAINED, SIGNS)
        if signs
        else (models or PLANES, RANGES if isinstance(cut, NonlinearSplit) else HALVES)
    )
    found.append(BoundingChoice("tier split", bounds, Split().obstacle(ball) or parts))
    if net.domain.bounded:
        counts = _problem(net, Sparse(x[:1], torch.zeros(1, dtype=torch.float64), net.domain), "radius")
        chain = "windows of a layer chain" if question_of(counts).chain is not None else PLANES
        found.append(BoundingChoice("norm 0 (changed units)", chain, "budgets of changes"))
    widths = [
        width
        for width in (MAX_TAYLOR_INPUTS, MAX_INPUT_SPLIT_INPUTS)
        if width < x[0].numel() and (width != MAX_TAYLOR_INPUTS or taylor.obstacle(graph) is None)
    ]
    named = {f"up to {width} inputs move": width for width in widths}
    for told, width in {**named, "more move" if named else "any move": x[0].numel()}.items():
        moves = torch.zeros_like(x[:1].flatten(1))
        moves[:, :width] = 1
        cut = choose_branching(graph, Box.between(x[:1], x[:1] + moves.reshape(x[:1].shape)))
        bounds = (
            TRAINED if isinstance(cut, ActivationSplit) else TAYLOR if isinstance(cut, SmoothSplit) else FORMS
        )
        found.append(
            BoundingChoice(
                f"verify, reach; {told}", bounds, SIGNS if isinstance(cut, ActivationSplit) else HALVES
            )
        )
    return [*found, BoundingChoice("risk: steepness", "gradient intervals", "shells")]


def _first(ball: Problem) -> str:
    """The bounds of tier fast, with the source of its intermediate bounds where all inputs may vary."""
    forms = describe_forms(graph_of(ball), ball.family.at(1.0))
    return f"{PLANES}; intermediate bounds: {forms}" if forms else PLANES


def _models(ball: Problem) -> str | None:
    """Describe the quadratic models and their memory; None where they are not used."""
    size = format_bytes(quadratic_of(ball).bytes(training=True))
    return None if no_models(ball) else f"quadratic models with optimised coefficients ({size} an input)"


def _tight(ball: Problem, models: str | None) -> str:
    graph = graph_of(ball)
    planes = SLOPES if relu_like_functions(graph) else PLANES
    if joint_relu.obstacle(graph, ball.family.at(1.0)) is None:
        planes = f"{planes}, then {TOGETHER}"
    if models is None:
        return f"{planes}; no quadratic models: {no_models(ball)}"
    return models if planes == PLANES else f"{planes}, then {models}"


def _problem(net: Network, region: Region, goal: Goal) -> Problem:
    return Problem(net, region, Linear.of([1.0] + [0.0] * (net.outputs_for(region.centre) - 1)), goal)
