"""Output range analysis (reachability): the smallest and largest value of outputs over boxes of inputs.

For each output, or each given row of coefficients, two problems are solved: min and max of g(x) = row . f(x)
over the box.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from holdfast import batch
from holdfast.bounding.branching.subproblem_queue import Branching
from holdfast.errors import BadInput
from holdfast.method import Method
from holdfast.network import Network
from holdfast.problem import Goal, Problem
from holdfast.property import Linear
from holdfast.region import Box
from holdfast.result import Key
from holdfast.solver import Progress, Sink, Stop, solve
from holdfast.verification.ranges import Range, box_of, ranges_of, rows_of
from holdfast.verification.search import Scatter
from holdfast.verification.verify import select_methods

Part = Literal["smallest", "largest"]
GOALS: dict[Part, Goal] = {"smallest": "worst", "largest": "largest"}


def reach(
    net: Network,
    box: Box | tuple[Tensor, Tensor],
    outputs: int | Sequence[int] | None = None,
    *,
    rows: Tensor | None = None,
    tolerance: float = 1e-2,
    stop: Stop | None = None,
    seed: int = 0,
    methods: Sequence[Method[Any] | Branching[Any]] | None = None,
    store: Sink | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> list[Range]:
    """Bound the smallest and largest value of outputs over boxes: one range for each output and box.

    Args:
        box: a Box (one box for each row of its batch), or lower and upper bounds of one input or of a batch.
        outputs: numbers of outputs (default: all).
        rows: (rows, outputs), coefficients of linear combinations of outputs, instead of `outputs`.
        stop: `stop.seconds` limits the time. Without it the search ends when all bounds meet the tolerance.
        methods: InputSplit or ActivationSplit select how branch and bound splits (default: inputs where few
            of them vary). Other methods are used as given.
        store: keeps two records for each range and finds them again.

    Certified bounds are about the network in real arithmetic. The other bounds were attained by its float64
    twin, or by the network itself if it has none. If the network attains a value beyond a certified bound by
    its own rounding, the bound is moved to it. A value of the twin beyond a certified bound raises
    Contradiction.
    """
    problems, limit = reach_problems(net, box, outputs, rows=rows), reach_stop(stop, tolerance)
    chosen = reach_methods(problems, tolerance, methods)
    return ranges_of(
        solve(problems, chosen, limit, seed=seed, store=store, progress=progress), tolerance, net
    )


def reach_stop(stop: Stop | None, tolerance: float) -> Stop:
    limit = stop or Stop()
    if limit.queries is not None or limit.gap:
        raise BadInput(
            "reach stops after seconds only: leave queries out of stop, and give tolerance instead of gap."
        )
    if not 0 < tolerance < math.inf:
        raise BadInput(f"tolerance must be a number above 0, got {tolerance}.")
    return replace(limit, gap=tolerance)


def reach_problems(
    net: Network,
    box: Box | tuple[Tensor, Tensor],
    outputs: int | Sequence[int] | None = None,
    *,
    rows: Tensor | None = None,
) -> list[Problem]:
    """Build one problem for the minimum and one for the maximum, with a row for each output of each box."""
    boxes = box_of(net, box)
    names, asked = rows_of(net.outputs_for(boxes.centre), outputs, rows)
    region = batch.take(boxes, torch.arange(len(boxes), device=net.device).repeat_interleave(len(asked)))
    values = Linear(asked.repeat(len(boxes), 1)[:, None], torch.zeros((len(region), 1), dtype=torch.float64))
    return [
        Problem(
            net,
            region,
            values,
            goal,
            tuple(Key(number, name, part) for number in range(len(boxes)) for name in names),
        )
        for part, goal in GOALS.items()
    ]


def reach_methods(
    problems: Sequence[Problem],
    tolerance: float,
    methods: Sequence[Method[Any] | Branching[Any]] | None = None,
) -> list[Method[Any]]:
    return select_methods(methods, Scatter.closely(sum(map(len, problems))), tolerance)
