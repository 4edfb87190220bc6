"""In-place assignments, `x[:, i] = part` and `x[:] = value`: the base, with copies of the assigned elements
in their positions.
"""

from typing import Any

import torch
from torch import Tensor

from holdfast.bounding.graph import discontinuities
from holdfast.bounding.graph.discontinuities import may_be_truth
from holdfast.bounding.graph.graph import Graph, Node, OperatorCall, handles, leaves
from holdfast.bounding.graph.node import MaskedValue
from holdfast.errors import UnsupportedLayer

aten = torch.ops.aten

# The position of the assigned value among an operator's arguments.
PART: dict[Any, int] = {
    aten.slice_scatter.default: 1,
    aten.select_scatter.default: 1,
    aten.index_put.default: 2,
    aten.scatter.src: 3,
    aten.scatter.value: 3,
}


@handles(*PART)
def assign_in_place(graph: Graph, call: OperatorCall) -> Node | MaskedValue:
    """Every element is one of the base or of the assigned part; assigning their indices shows which."""
    args, spot = list(call.args), PART[call.target]
    if _is_choice(call):
        held: Node | MaskedValue = discontinuities.where(
            graph, OperatorCall(call.name, aten.where.self, (args[1][0], args[2], args[0]), {})
        )
        return held
    if any(
        isinstance(leaf, Node) for leaf in leaves([arg for i, arg in enumerate(args) if i not in (0, spot)])
    ):
        raise UnsupportedLayer(
            f"{call.name}: an assignment to places that depend on the input has no bound here; "
            "attacks still work."
        )
    if args[3:] == [True] and call.target == aten.index_put.default:
        raise UnsupportedLayer(
            f"{call.name}: an assignment that accumulates has no bound here; attacks still work."
        )
    base, part = args[0], args[spot]
    _refuse_casts(call, base, part)
    shape, piece = (torch.Size(getattr(value, "shape", ())) for value in (base, part))
    numbers = torch.arange(shape.numel() + piece.numel(), device=graph.device)
    args[0], args[spot] = numbers[: shape.numel()].reshape(shape), numbers[shape.numel() :].reshape(piece)
    if call.target == aten.scatter.value:
        args[spot] = shape.numel()
    origin = call.target(*args, **call.kwargs)
    if piece.numel() > 1 and int((origin >= shape.numel()).sum()) < _written(call, piece):
        raise UnsupportedLayer(
            f"{call.name}: several values are assigned to one place, and torch does not define which one "
            "stays."
        )

    def chosen(base: Any, part: Any) -> Tensor:
        return torch.cat([torch.as_tensor(v, device=graph.device).flatten() for v in (base, part)])[
            origin.flatten()
        ].reshape(shape)

    if isinstance(base, Node) and isinstance(part, Node):
        return graph.add_move(call.name, call.nodes, lambda *v: chosen(v[0], v[0] if base is part else v[1]))
    if isinstance(base, Node):
        return graph.affine(
            call.name, [base], lambda v: chosen(v, _double(part)), lambda m: chosen(m, _double(part).abs())
        )
    return graph.affine(
        call.name, [part], lambda v: chosen(base.double(), v), lambda m: chosen(base.double().abs(), m)
    )


def _is_choice(call: OperatorCall) -> bool:
    """Whether it is `x[condition] = number`, with a condition of the shape of x."""
    if (
        call.target != aten.index_put.default
        or len(call.args[1]) != 1
        or not isinstance(call.args[2], Tensor)
    ):
        return False
    base, (condition,), value = call.args[:3]
    return (
        may_be_truth(condition)
        and isinstance(condition, Node)
        and condition.shape == tuple(base.shape)
        and value.numel() == 1
    )


def _written(call: OperatorCall, piece: torch.Size) -> int:
    """The number of writes, counting repeated positions as often as they occur."""
    if call.target == aten.index_put.default:
        return int(
            aten.index.Tensor(torch.zeros(call.args[0].shape, device=_device(call)), call.args[1]).numel()
        )
    return int(call.args[2].numel()) if call.target == aten.scatter.src else piece.numel()


def _device(call: OperatorCall) -> torch.device:
    return next(leaf.device for leaf in leaves(call.args[1]) if isinstance(leaf, Tensor))


def _double(value: Any) -> Tensor:
    return torch.as_tensor(value).double()


def _refuse_casts(call: OperatorCall, base: Any, value: Any) -> None:
    """Refuse a node assigned to integers or truth values: the assignment casts it to the type of its target,
    which is a discontinuity.
    """
    whole = isinstance(base, Tensor) and not base.is_floating_point()
    if isinstance(value, Node) and (whole or (may_be_truth(base) and not may_be_truth(value))):
        raise UnsupportedLayer(
            f"{call.name}: an assignment into integers or truth values has no bound here; attacks still work."
        )


@handles(aten.fill.Scalar, aten.fill.Tensor, aten.copy.default)
def filled_in(graph: Graph, call: OperatorCall) -> Any:
    """Every element is overwritten, so the previous values do not matter."""
    base, value = call.args[:2]
    _refuse_casts(call, base, value)
    if isinstance(value, Node):
        return graph.add_move(call.name, [value], lambda v: v.expand(base.shape))
    return torch.as_tensor(value, device=graph.device).double().expand(base.shape)
