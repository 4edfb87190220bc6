"""What can come out? The smallest and largest value of outputs over boxes of inputs, each between a proof and a witness.

Every end of every output is a question of its own: how low, and how high, does g = row . outputs get?
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
from holdfast.verification.verify import ways

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
    """The smallest and largest value of outputs over a box, to a tolerance; one range for each output of each box, in order.

    box        a Box, which holds one for each row of its batch; or lower and upper bounds, of one input or of a batch.
    outputs    which ones, by number; all by default.
    rows       (questions, outputs): combinations row . outputs instead.
    stop       its seconds end the search with what is known by then. Without any it ends when all is known to the tolerance.
    methods    InputSplit or ActivationSplit, to say how parts are cut: by default, by inputs where few of them move. Or any methods.
    store      where records are kept, two for each range, and found again.

    The proved bounds speak of the network in real arithmetic; the others were met by its twin in float64, or by itself where there is none.
    Where the network itself gives a value beyond a proved bound by its own rounding, the end is moved out to it; a value of the twin beyond
    one is a Contradiction.
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
            "reach stops after seconds only: leave queries out of stop, and say tolerance instead of gap."
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
    """How low, and how high: one problem each, with a row for each output of each box."""
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
    return ways(methods, Scatter.closely(sum(map(len, problems))), tolerance)
