"""CROWN's backward pass for convolutions, with coefficients stored only in the receptive fields (patches).

Statement. As `crown`: Lambda y(x) >= A x + b for every x of the region, with each row of Lambda zero
outside of one window of every node.

A row starts at one element, at position p of its node. In an earlier image its coefficients lie in the window
of `extent` positions from scale p + start on; scale, start and extent are the same for all rows, since a
convolution is the same at every position. Where a window extends beyond the image, the convolution reads
zeros of its padding: coefficients there are multiplied with zeros, and are set to zero before a map reads
them. Linear bounds and offsets are gathered window by window, once for all channels at a position. Results
and rounding errors are those of `crown.BackwardWalk` (docs/rounding.md).

Assumption: the map between two nodes is a convolution, a pooling or elementwise, with the same kernel
everywhere.

Reference: auto_LiRPA (Xu et al. 2020) stores convolutional coefficients as patches in the same way.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from holdfast.bounding.graph.graph import Affine, Graph, Node, Relaxed
from holdfast.bounding.graph.kernel import Kernel, Pair
from holdfast.bounding.graph.node import is_image
from holdfast.bounding.node_bounds import Boxes
from holdfast.bounding.traversal import Backward
from holdfast.derivations import (
    BACKWARD_CONSTANT,
    BACKWARD_MEETING,
    BACKWARD_STEP,
)
from holdfast.rounding import charge

# Patches are used from this many numbers in a dense row of all nodes together (chosen by hand).
MIN_DENSE_NUMBERS = 2**13
# Patches are used if a dense row holds at least this many times as many numbers (chosen by hand).
MIN_SAVING_FACTOR = 2


@dataclass(frozen=True)
class RowWindow:
    """The window of an image in which rows have coefficients."""

    scale: Pair = (1, 1)
    start: Pair = (0, 0)
    extent: Pair = (1, 1)

    def read_by(self, kernel: Kernel) -> "RowWindow":
        """The window that the elements of this window read through a convolution."""
        (a, b) = kernel.stride
        (c, d) = kernel.padding
        (e, f) = kernel.dilation
        high, wide = kernel.weight.shape[:2]
        return RowWindow(
            (a * self.scale[0], b * self.scale[1]),
            (a * self.start[0] - c, b * self.start[1] - d),
            (a * (self.extent[0] - 1) + e * (high - 1) + 1, b * (self.extent[1] - 1) + f * (wide - 1) + 1),
        )

    def union(self, other: "RowWindow") -> "RowWindow":
        """The smallest window that contains both; their scales must agree."""
        assert self.scale == other.scale
        top, left = (min(a, b) for a, b in zip(self.start, other.start, strict=True))
        down, right = (max(w.start[k] + w.extent[k] for w in (self, other)) for k in (0, 1))
        return RowWindow(self.scale, (top, left), (down - top, right - left))

    def inside(self, around: "RowWindow") -> tuple[slice, slice]:
        """The slices of this window within one that contains it."""
        top, left = (a - b for a, b in zip(self.start, around.start, strict=True))
        return slice(top, top + self.extent[0]), slice(left, left + self.extent[1])

    def numbers(self, node: Node) -> int:
        """The number of coefficients of a row of this node."""
        return self.extent[0] * self.extent[1] * node.shape[1]


@dataclass(frozen=True)
class Route:
    """How far back a backward pass uses patches."""

    until: int  # the position in the graph of the last node passed with patches
    widest: int  # the largest number of coefficients of a row at one node
    # nodes that dense rows pass after that; empty where patches reach an input that is a box
    rest: tuple[Node, ...]


def route(graph: Graph, boxes: Boxes, start: Node) -> Route | None:
    """The use of patches from a node on; None where dense rows cost hardly more."""
    pending = {start: RowWindow()}
    until = start.place + 1
    widest = 0
    total = 0
    for node in reversed(graph.nodes[1 : start.place + 1]):
        if node not in pending:
            continue
        further = _windows_behind(pending, node) if boxes.moving[node] == boxes.moving[start] else None
        if further is None:
            break
        total += pending[node].numbers(node)
        pending, until = further, node.place
        widest = max(widest, *(window.numbers(source) for source, window in pending.items()))
    ended = (
        set(pending) == {graph.entry}
        and boxes.region.boxed
        and bool(boxes.largest(graph.entry).isfinite().all())
    )
    rest = () if ended else _ancestors(pending)
    dense = sum(node.size for node in _ancestors([start]))
    if (
        until > start.place
        or dense < MIN_DENSE_NUMBERS
        or MIN_SAVING_FACTOR * (total + sum(node.size for node in rest)) > dense
    ):
        return None
    return Route(until, widest, rest)


def _windows_behind(pending: dict[Node, RowWindow], node: Node) -> dict[Node, RowWindow] | None:
    """The windows once a node is passed; None where it must be passed with dense rows."""
    window = pending[node]
    if not is_image(node) or not all(is_image(source) for source in node.inputs):
        return None
    if isinstance(node, Affine) and not node.sums:
        if node.kernel is None or window.extent[0] * window.extent[1] >= node.shape[2] * node.shape[3]:
            return None
        window = window.read_by(node.kernel)
    further = {other: held for other, held in pending.items() if other is not node}
    for source in node.inputs:
        if source in further and further[source].scale != window.scale:
            return None
        further[source] = further[source].union(window) if source in further else window
    return further


def _ancestors(nodes: Iterable[Node]) -> tuple[Node, ...]:
    """These nodes and all nodes on which they depend."""
    found, new = dict[Node, None](), list(nodes)
    while new:
        found.update(dict.fromkeys(new))
        new = [
            source for source in dict.fromkeys(s for node in new for s in node.inputs) if source not in found
        ]
    return tuple(found)


@dataclass(frozen=True)
class WindowCoefficients:
    """Coefficients of rows in their windows of one image."""

    # (positions, rows, height, width, channels): rows that start at one position share a window
    values: Tensor
    window: RowWindow
    clipped: bool  # whether all coefficients outside of the image are zero already

    def __add__(self, other: "WindowCoefficients") -> "WindowCoefficients":
        both = self.window.union(other.window)
        values = self.values.new_zeros((*self.values.shape[:2], *both.extent, self.values.shape[-1]))
        for part in (self, other):
            high, wide = part.window.inside(both)
            values[:, :, high, wide] += part.values
        return WindowCoefficients(values, both, self.clipped and other.clipped)


def group_by_position(owner: Tensor, place: Tensor, at_once: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Group elements by position.

    Args:
        owner, place: (elements,), the row of the batch and the position of each.
        at_once: the most elements that a group holds.

    Yields:
        (positions, rows) indices of elements, those of one position in a row, and a mask of the same shape;
        positions with similar numbers of elements are together.
    """
    order = (owner * (int(place.max()) + 1) + place).argsort()
    _, count = torch.stack([owner, place])[:, order].unique_consecutive(dim=1, return_counts=True)
    group = torch.arange(len(count), device=owner.device).repeat_interleave(count)
    within = torch.arange(len(owner), device=owner.device) - (count.cumsum(0) - count)[group]
    _, count = torch.stack([group, within // at_once]).unique_consecutive(dim=1, return_counts=True)
    first, fullest = count.cumsum(0) - count, count.argsort(descending=True)
    while len(fullest):
        line = torch.arange(int(count[fullest[0]]), device=owner.device)
        some, fullest = fullest.tensor_split([max(1, at_once // len(line))])
        there = line < count[some, None]
        yield order[torch.where(there, first[some, None] + line, 0)], there


class WindowWalk(Backward[WindowCoefficients]):
    """The backward pass of single elements of a node, or of their negatives.

    The constants are (positions, rows).
    """

    def __init__(
        self,
        graph: Graph,
        boxes: Boxes,
        node: Node,
        owner: Tensor,
        place: Tensor,
        channel: Tensor,
        sign: Tensor,
    ) -> None:
        """Start at elements of a node.

        Args:
            owner, place: (positions,), the row of the batch (among those in which the node varies) and the
                position.
            channel, sign: (positions, rows), the channel of each element and its coefficient.
        """
        super().__init__(graph)
        self.boxes = boxes
        self.owner = owner
        self.moving = boxes.moving[node]
        self.steps = 1
        channels, *self.size = node.shape[1:]
        self.place = place // self.size[1], place % self.size[1]  # vertical and horizontal
        self.constant, self.total, self.charge = (torch.zeros_like(sign) for _ in range(3))
        values = sign.new_zeros((*sign.shape, channels)).scatter_(2, channel[:, :, None], sign[:, :, None])
        self.pending[node] = WindowCoefficients(values[:, :, None, None], RowWindow(), True)

    def through_function(self, node: Relaxed, carried: WindowCoefficients) -> None:
        """As `BackwardWalk.through_function`."""
        tilt = self.boxes.tilt(node)
        values = carried.values
        count = len(node.inputs)
        size = values.abs()
        held = self._around(
            carried.window, node, [*tilt.of_size.unbind(-1), tilt.offset, *tilt.middle, *tilt.half]
        )
        down, weight = _dots(size, held[:, :2])
        self.constant += _dots(values, held[:, 2:3])[0] + down
        self._weigh(weight, node.size)
        for k, source in enumerate(node.inputs):
            slope = (values * held[:, 3 + k, None]).addcmul_(size, held[:, 3 + count + k, None])
            self._arrive(source, WindowCoefficients(slope, carried.window, True))

    def through_map(self, node: Affine, carried: WindowCoefficients) -> None:
        boxes = self.boxes
        values = carried.values
        window = carried.window
        if node not in self.graph.exact:
            (weight,) = _dots(values.abs(), self._around(window, node, [boxes.magnitude[node][self.moving]]))
            self._weigh(weight, node.size)
        if node in boxes.error:
            self.constant -= _dots(
                values.abs(), self._around(window, node, [boxes.error[node][self.moving]])
            )[0]
        if node.shift is not None:
            shift = node.shift.expand(self.moving.stop - self.moving.start, -1)
            self.constant += _dots(values, self._around(window, node, [shift]))[0]
        if node.sums:
            for source in node.inputs:
                self._arrive(source, carried)
            return
        assert node.kernel is not None
        (source,) = node.inputs
        if not carried.clipped:
            self._clip(carried, node)
        clipped = node.kernel.padding == (0, 0)
        self._arrive(
            source, WindowCoefficients(node.kernel.back(values), window.read_by(node.kernel), clipped)
        )

    def lower_bound_by_intervals(self) -> Tensor:
        """(positions, rows): lower bounds from the intervals of all pending nodes."""
        for node, patches in self.pending.items():
            middle, radius = self.boxes.interval(node, self.moving)
            largest = self.boxes.largest(node)[self.moving]
            held = self._around(patches.window, node, [radius, largest, middle])
            radius, largest = _dots(patches.values.abs(), held[:, :2])
            self.constant += _dots(patches.values, held[:, 2:])[0] - radius
            self._weigh(largest, node.size)
        self.pending = {}
        return (
            self.constant
            - (self.charge + charge(self.total, BACKWARD_MEETING, 4 * self.steps))
            - charge(self.constant.abs(), BACKWARD_CONSTANT)
        )

    def dense(self, node: Node) -> Tensor:
        """The coefficients on a node as dense rows, (positions, rows, *shape)."""
        patches, places = self.pending[node], list[Tensor]()
        for first, count, held in zip(
            self._first(patches.window), node.shape[2:], patches.window.extent, strict=True
        ):
            at = torch.arange(count, device=first.device) - first[:, None]
            places.append(torch.where((at >= 0) & (at < held), at, held))
        # coefficients outside of the window are zero
        values = pad(patches.values, (0, 0, 0, 1, 0, 1)).movedim(1, -1)
        number = torch.arange(len(values), device=values.device)
        # (positions, height, width, channels, rows)
        found = values[number[:, None, None], places[0][:, :, None], places[1][:, None, :]]
        return found.permute(0, 4, 3, 1, 2).reshape(*self.constant.shape, *node.shape)

    def _weigh(self, weight: Tensor, terms: int) -> None:
        self.charge += charge(weight, BACKWARD_STEP, 2 * terms)
        self.total += weight
        self.steps += 1

    def _arrive(self, source: Node, part: WindowCoefficients) -> None:
        self.pending[source] = self.pending[source] + part if source in self.pending else part

    def _first(self, window: RowWindow) -> tuple[Tensor, Tensor]:
        """The first row and the first column of each window, (positions,) each."""
        down, right = self.place
        return window.scale[0] * down + window.start[0], window.scale[1] * right + window.start[1]

    def _clip(self, patches: WindowCoefficients, node: Node) -> None:
        """Set the coefficients outside of the node's image to zero, in place."""
        for axis, first in enumerate(self._first(patches.window)):
            at = first[:, None] + torch.arange(patches.window.extent[axis], device=first.device)
            outside = (at < 0) | (at >= node.shape[2 + axis])
            patches.values.masked_fill_(
                outside[:, None, :, None, None] if axis == 0 else outside[:, None, None, :, None], 0
            )

    def _around(self, window: RowWindow, node: Node, planes: list[Tensor]) -> Tensor:
        """Gather what each window sees of some images of a node.

        Args:
            planes: images (rows of the batch in which the node varies, ...).

        Returns:
            (positions, planes, height, width, channels), zero outside of the image.
        """
        channels, *size = node.shape[1:]
        image = torch.stack([plane.reshape(-1, channels, *size) for plane in planes], 1).movedim(2, -1)
        ends = [
            w * (n - 1) + a + e
            for w, n, a, e in zip(window.scale, self.size, window.start, window.extent, strict=True)
        ]
        margins = [
            (max(0, -start), max(0, end - n)) for start, end, n in zip(window.start, ends, size, strict=True)
        ]
        image = pad(image, (0, 0, *margins[1], *margins[0])).contiguous()
        row, plane, line, place, _ = image.stride()
        high, wide = window.extent
        shape = (
            len(image),
            image.shape[2] - high + 1,
            image.shape[3] - wide + 1,
            len(planes),
            high,
            wide * channels,
        )
        down, right = (
            first + before for first, (before, _) in zip(self._first(window), margins, strict=True)
        )
        held = image.as_strided(shape, (row, line, place, plane, line, 1))[self.owner, down, right]
        return held.reshape(len(self.owner), len(planes), high, wide, channels)


def _dots(values: Tensor, planes: Tensor) -> tuple[Tensor, ...]:
    """(positions, rows, ...), (positions, planes, ...) -> for each plane (positions, rows)."""
    return torch.bmm(values.flatten(2), planes.flatten(2).transpose(1, 2)).unbind(-1)
