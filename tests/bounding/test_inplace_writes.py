"""What is assigned in place is bounded as what is computed anew, and an assignment that has no bound is refused by name."""

from collections.abc import Callable

import pytest
import torch
from bounds_zoo import Wrapped
from torch import Tensor

import holdfast as hf
from holdfast.bounding.graph.equivalence_check import check
from holdfast.bounding.graph.graph import build

Written = Callable[[Tensor], Tensor]


def added(h: Tensor) -> Tensor:
    h += 2 * h[:, :1]
    h -= 0.5
    h *= h.flip(1)
    h /= 3
    return h


def added_anew(h: Tensor) -> Tensor:
    h = h + 2 * h[:, :1] - 0.5
    return h * h.flip(1) / 3


def columns(h: Tensor) -> Tensor:
    out = torch.empty(h.shape[0], 6)
    for i in range(6):
        out[:, i] = h[:, 5 - i] * (i + 1)
    return out


def part_added(h: Tensor) -> Tensor:
    h[:, :3] += h[:, 3:]
    h.view(-1, 2, 3)[:, 1, 2] = 1.5
    return h


def part_added_anew(h: Tensor) -> Tensor:
    return torch.cat([h[:, :3] + h[:, 3:], h[:, 3:5], torch.full_like(h[:, :1], 1.5)], 1)


def listed(h: Tensor) -> Tensor:
    out = torch.full((h.shape[0], 6), -2.0)
    out[:, [4, 1]] = h[:, :2]
    return out


def listed_anew(h: Tensor) -> Tensor:
    two = torch.full_like(h[:, :1], -2.0)
    return torch.cat([two, h[:, 1:2], two, two, h[:, :1], two], 1)


def masked(h: Tensor) -> Tensor:
    h = h.clone()
    h[:, torch.tensor([True, False, False, True, False, False])] = -1.0
    return h


def masked_anew(h: Tensor) -> Tensor:
    one = torch.ones_like(h[:, :1])
    return torch.cat([-one, h[:, 1:3], -one, h[:, 4:]], 1)


def scattered(h: Tensor) -> Tensor:
    return h.scatter(1, torch.tensor([[3]]).expand(h.shape[0], 1), h[:, :1] + 1).scatter(
        1, torch.tensor([[0]]).expand(h.shape[0], 1), 0.25
    )


def scattered_anew(h: Tensor) -> Tensor:
    return torch.cat([torch.full_like(h[:, :1], 0.25), h[:, 1:3], h[:, :1] + 1, h[:, 4:]], 1)


def into_itself(h: Tensor) -> Tensor:
    h = h + 0.0
    h[:, :] = h
    return h


def where_negative(h: Tensor) -> Tensor:
    h = h.clone()
    h[h < 0] = 0.5
    return h


SAME: dict[str, tuple[Written, Written]] = {
    "+= -= *= /=": (added, added_anew),
    "columns of an empty tensor": (
        columns,
        lambda h: torch.stack([h[:, 5 - i] * (i + 1) for i in range(6)], 1),
    ),
    "a part, and one element of a view": (part_added, part_added_anew),
    "a list of columns": (listed, listed_anew),
    "columns by a constant mask": (masked, masked_anew),
    "scatter": (scattered, scattered_anew),
    "into itself": (into_itself, lambda h: h + 0.0),
    "where a condition holds": (where_negative, lambda h: torch.where(h < 0, torch.full_like(h, 0.5), h)),
    "all of it": (lambda h: torch.zeros(h.shape).copy_(h), lambda h: h * 1.0),
}


@pytest.mark.parametrize("name", list(SAME))
def test_an_assignment_is_bounded_as_what_it_leaves(name: str) -> None:
    written, anew = (Wrapped(function).eval() for function in SAME[name])
    written.load_state_dict(anew.state_dict())
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    ball = hf.Ball(x, 0.1)
    net = hf.Network.from_torch(written)
    check(net, build(net, x), ball)
    found, wanted = hf.bounds(net, ball), hf.bounds(hf.Network.from_torch(anew), ball)
    torch.testing.assert_close(found.lower, wanted.lower, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(found.upper, wanted.upper, rtol=1e-6, atol=1e-9)
    near = x.repeat(50, 1) + 0.1 * (2 * torch.rand(300, 4, generator=torch.Generator().manual_seed(1)) - 1)
    with torch.no_grad():
        said = written(near.clone()).double().reshape(50, 6, -1)
    assert bool(((found.lower - 1e-6 <= said) & (said <= found.upper + 1e-6)).all())


def twice(h: Tensor) -> Tensor:
    h = h.clone()
    h[:, [0, 0]] = h[:, 1:3]
    return h


def chosen(h: Tensor) -> Tensor:
    h = h.clone()
    h[h[:, 0] < 0] = 0.5
    return h


def cast(h: Tensor) -> Tensor:
    whole = torch.zeros(h.shape, dtype=torch.int64)
    whole[:, :2] = 3 * h[:, :2]
    return h + whole


def truth(h: Tensor) -> Tensor:
    held = h > 0
    held[:, :2] = h[:, :2]
    return h * held


REFUSED: dict[str, tuple[Written, str]] = {
    "two to one place": (twice, "several values are assigned to one place"),
    "rows that depend on the input": (chosen, "places that depend on the input"),
    "into integers": (cast, "into integers or truth values|of integers that depend on the input"),
    "into truth values": (truth, "into integers or truth values"),
    "adding up": (
        lambda h: h.index_put((torch.arange(h.shape[0]), torch.tensor(0)), h[:, 1], accumulate=True),
        "that accumulates",
    ),
}


@pytest.mark.parametrize("name", list(REFUSED))
def test_assignments_without_a_bound_are_refused_by_name(name: str) -> None:
    function, message = REFUSED[name]
    with pytest.raises(hf.errors.UnsupportedLayer, match=message):
        build(hf.Network.from_torch(Wrapped(function).eval()), torch.randn(2, 4))
