"""A network that is a chain of affine layers and activations, as matrices; and the values of the first two
layers that each input unit touches.

Statement. z_1 = W_1 x + b_1, r_k = f_k(z_k), z_(k+1) = W_(k+1) r_k + b_(k+1), the last layer without f;
`centre` returns z_k and r_k at an input within the errors that it returns.

A changed pixel touches few values of the first layer and few of the second: its window. Pixels inside a
convolution have windows with the same weights, which are stored once.

Assumption: the network is such a chain, and a composed layer fits in memory as a matrix.

Reference: none; the matrices are those of the layers.
"""

from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from holdfast.bounding.graph.graph import Affine, Graph, Relaxed
from holdfast.bounding.relax import Relaxation, value_range
from holdfast.derivations import (
    LAYER_CHAIN,
)
from holdfast.rounding import TINY, charge, round_up

# Largest number of elements in the matrix of a layer; networks with a larger layer have no chain (chosen by
# hand; 128 MiB).
LARGEST_MATRIX = 2**24
# Largest number of elements in all distinct local weights; beyond it all units share one window (chosen by
# hand).
MAX_WINDOW_ELEMENTS = 2**24
# Number of elements in all cached patches above which the cache is emptied (chosen by hand).
MAX_CACHED_ELEMENTS = 2**25


@dataclass(frozen=True, eq=False)
class ChainLayer:
    """The layer z = weight . r + bias followed by f(z).

    `size` >= |weight| and `bias_size` bound the terms of the sums from which they were computed, by which
    rounding errors are bounded.
    """

    weight: Tensor  # (n, values before)
    size: Tensor  # (n, values before)
    bias: Tensor  # (n,)
    bias_size: Tensor  # (n,)
    function: Relaxation | None  # None for the last layer


@dataclass(frozen=True, eq=False)
class Windows:
    """The values that each unit touches. Index lists are padded with the number of values, which is no valid
    index.
    """

    elements: Tensor  # (units, elements of a unit): indices into the input
    near: Tensor  # (units, a): values of the first layer
    far: Tensor  # (units, b): values of the second layer that depend on any of them
    first: Tensor  # (units, elements of one, a): weights of the first layer
    kind: Tensor  # (units,): index into `second`
    second: Tensor  # (kinds, a, b): weights of the second layer


@dataclass(frozen=True, eq=False)
class TouchedPatch:
    """The values that a set of units touches together."""

    near: Tensor  # (a,)
    far: Tensor  # (b,)
    first: Tensor  # (a, elements of all units)
    second: Tensor  # (b, a)


@dataclass(eq=False)
class PatchCache:
    """Cache of patches by their sets of units; branch and bound requests the same sets again and again."""

    patches: dict[bytes, TouchedPatch] = field(default_factory=dict)
    size: int = 0

    def keep(self, key: bytes, patch: TouchedPatch) -> TouchedPatch:
        if self.size > MAX_CACHED_ELEMENTS:
            self.patches.clear()
            self.size = 0
        self.patches[key] = patch
        self.size += patch.second.numel()
        return patch


@dataclass(frozen=True, eq=False)
class Centre:
    """The values of every layer at a batch of inputs, each with a bound of its distance from the exact
    value.
    """

    x: Tensor  # (batch, input values)
    before: tuple[Tensor, ...]  # (batch, n) each: z
    before_error: tuple[Tensor, ...]
    after: tuple[Tensor, ...]  # f(z), one entry fewer
    after_error: tuple[Tensor, ...]

    def take(self, rows: Tensor) -> "Centre":
        parts = (self.before, self.before_error, self.after, self.after_error)
        return Centre(self.x[rows], *(tuple(value[rows] for value in part) for part in parts))


@dataclass(frozen=True, eq=False)
class Chain:
    """A chain of at least two layers."""

    layers: tuple[ChainLayer, ...]
    windows: Windows
    terms: int  # an upper bound of the number of terms of any sum in this package
    memory: PatchCache

    @property
    def inner(self) -> list[int]:
        """The sizes of the layers after the second, except the last."""
        return [len(layer.bias) for layer in self.layers[2:-1]]

    def centre(self, x: Tensor) -> Centre:
        """Evaluate all layers at inputs x (batch, *shape), with error bounds."""
        r = x.double().flatten(1)
        found, error = Centre(r, (), (), (), ()), torch.zeros_like(r)
        for layer in self.layers:
            z = r @ layer.weight.t() + layer.bias
            entering = (error + charge(r.abs(), LAYER_CHAIN, self.terms)) @ layer.size.t()
            error = (
                round_up(entering, LAYER_CHAIN, self.terms)
                + charge(layer.bias_size, LAYER_CHAIN, self.terms)
                + TINY
            )
            found = replace(found, before=(*found.before, z), before_error=(*found.before_error, error))
            if layer.function is not None:
                least, most = value_range(layer.function, (z - error,), (z + error,))
                r = layer.function.function(z)
                error = round_up(torch.maximum(most - r, r - least), LAYER_CHAIN, self.terms) + TINY
                found = replace(found, after=(*found.after, r), after_error=(*found.after_error, error))
        return found

    def patches(self, units: Tensor) -> list[TouchedPatch]:
        """Return the patches of sets of units, given as (n, units) bool."""
        here = units.cpu()
        keys = [row.tobytes() for row in np.packbits(here.numpy(), axis=1)]
        known = self.memory.patches
        return [
            known.get(key) or self.memory.keep(key, self._patch(some))
            for key, some in zip(keys, here, strict=True)
        ]

    def _patch(self, chosen: Tensor) -> TouchedPatch:
        units = chosen.nonzero().flatten().to(self.windows.near.device)
        w, (first, second) = self.windows, self.layers[:2]
        near, far = (places[units].unique() for places in (w.near, w.far))
        near, far = near[near < len(first.bias)], far[far < len(second.bias)]
        return TouchedPatch(
            near,
            far,
            first.weight[near[:, None], w.elements[units].flatten()],
            second.weight[far[:, None], near],
        )


def chain_of(graph: Graph, elements: Tensor) -> Chain | None:
    """Return the graph as a chain; None if it is none or too large.

    Args:
        elements: (units, elements of a unit), indices into the input.
    """
    layers = _layers(graph)
    if layers is None or len(layers) < 2:
        return None
    # No sum in this package, and none that a layer was composed from, has more terms than there are values in
    # the network.
    terms = 4 * sum(node.size for node in graph.nodes)
    return Chain(tuple(layers), _windows(layers[0], layers[1], elements), terms, PatchCache())


def _layers(graph: Graph) -> list[ChainLayer] | None:
    """Return the layers of the graph; None if it is no chain or a layer is too large."""
    found: list[ChainLayer] = []
    current: ChainLayer | None = None  # None: no affine map since the last activation
    for before, node in zip(graph.nodes, graph.nodes[1:], strict=False):
        if node.inputs != (before,):
            return None
        width = current.weight.shape[1] if current else before.size
        if node.size * max(width, before.size) > LARGEST_MATRIX:
            return None
        if isinstance(node, Relaxed):
            found.append(replace(current or _identity(before.size, graph), function=node.relaxation))
            current = None
        else:
            assert isinstance(node, Affine)
            current = _compose(current, node, graph)
    return [*found, current or _identity(graph.output.size, graph)]


def _identity(size: int, graph: Graph) -> ChainLayer:
    """Return the identity as a layer without an activation."""
    matrix, none = (
        torch.eye(size, dtype=torch.float64, device=graph.device),
        torch.zeros(size, dtype=torch.float64, device=graph.device),
    )
    return ChainLayer(matrix, matrix, none, none, None)


def _compose(layer: ChainLayer | None, node: Affine, graph: Graph) -> ChainLayer:
    """Compose the layer with one more affine map."""
    before = layer or _identity(node.inputs[0].size, graph)
    rows = node.rows(torch.arange(node.size, device=graph.device)) if layer is None else None
    weight = node.part(0, before.weight, 0) if rows is None else rows[0]
    size = weight.abs() if layer is None else node.part(0, before.size, 0, absolute=True)
    return ChainLayer(
        weight, size, node.forward([before.bias]), node.forward_absolute([before.bias_size]), None
    )


# ---- windows


def _windows(first: ChainLayer, second: ChainLayer, elements: Tensor) -> Windows:
    touches = (first.size != 0)[:, elements].any(-1).t()  # (units, n)
    reads = touches.float() @ (second.size != 0).float().t() > 0
    near, far = _list_places(touches), _list_places(reads)
    kind, weights = _kinds(second.weight, near, far)
    if weights is None:  # The windows are not local: all units share one.
        near, far = (
            torch.arange(n, device=near.device).expand(len(elements), n)
            for n in reversed(second.weight.shape)
        )
        kind, weights = torch.zeros_like(kind), second.weight.t()[None].contiguous()
    padded = torch.nn.functional.pad(first.weight, (0, 0, 0, 1))
    return Windows(elements, near, far, padded[near[:, None, :], elements[:, :, None]], kind, weights)


def _list_places(mask: Tensor) -> Tensor:
    """Map (units, n) bool to (units, most): the indices of each row in order, padded with n."""
    found, places = mask.to(torch.uint8).sort(dim=1, descending=True, stable=True)
    most = max(1, int(found.sum(1).max()))
    return torch.where(found[:, :most] > 0, places[:, :most], mask.shape[1])


def _kinds(weight: Tensor, near: Tensor, far: Tensor) -> tuple[Tensor, Tensor | None]:
    """Group units whose windows hold the same weights: (units,), (kinds, near, far); None if there are too
    many distinct weights.
    """
    padded = torch.nn.functional.pad(weight, (0, 1, 0, 1))
    kind, known, found = (
        torch.zeros(len(near), dtype=torch.int64, device=near.device),
        dict[bytes, int](),
        list[Tensor](),
    )
    for unit, (rows, columns) in enumerate(zip(far, near, strict=True)):
        if (1 + len(found)) * len(rows) * len(columns) > MAX_WINDOW_ELEMENTS:
            return kind, None
        local = padded[rows][:, columns].t().contiguous()
        key = local.cpu().numpy().tobytes()
        if known.setdefault(key, len(found)) == len(found):
            found.append(local)
        kind[unit] = known[key]
    return kind, torch.stack(found)
