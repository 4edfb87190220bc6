"""Sets of recurrent states: unions of affine forms, or of boxes, through one step of the network and through its head.

Statement. A row of `AffineCells` holds every state s for which there are |e_k| <= 1 with

    |s - (centre + sum over k of e_k generator_k)| <= error    element by element;

a row of `BoxCells` every s with lower <= s <= upper. Cells are unions of their rows. `step` maps the union into one
that holds every state after a word (or after any word of a group), by the relaxations of `bounding`. `join` maps it
into one of fewer rows that holds the union:

- boxes by their hull;
- forms by a parallelotope. Let V be any matrix and m any point. For a state p and a = V'(p - m),

      p = m + V a + (1 - V V')(p - m).

  So bounds of a over all rows, low <= a <= high, and of |p - m| give the centre m + V (low + high) / 2, the generators
  V_k (high_k - low_k) / 2, and the error |1 - V V'| |p - m|. V holds the principal axes of the rows (eigenvectors of
  the covariance of centres and generators), so that a set that moves along few directions stays thin. V is nearly
  orthogonal, but nothing depends on it.

Rounding: docs/rounding.md, "The hull of forms".

References: Zhang et al. 2021 (ARC, arXiv 2102.07818) joins intervals; Stolfi and de Figueiredo 1997 for affine
arithmetic; Girard 2005 for order reduction.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from holdfast.bounding import crown, crown_with_fixed_bounds
from holdfast.bounding.graph.graph import Graph
from holdfast.bounding.zonotope import Form, Forms
from holdfast.derivations import FORM_HULL, FORM_LINEAR_BOUND, FORM_MERGED
from holdfast.edits.opened import OpenedLayer
from holdfast.region import Box
from holdfast.rounding import TINY, centre_and_radius, charge, round_up

# Noise symbols of a form, for each number of the state, above which the least of them are merged (chosen by hand: a
# parallelotope has one, and a step of an LSTM adds two).
SYMBOLS_OF_A_NUMBER = 6
KEPT_SYMBOLS_OF_A_NUMBER = 3  # ... and how many are kept besides the box of the others.
# Values of all forms of one call; more rows are split (chosen by hand: some hundred megabytes).
FORM_VALUES = 2**22


class Cells(Protocol):
    """A union of sets of states, one row each."""

    def __len__(self) -> int: ...

    def take(self, rows: Tensor) -> "Cells": ...

    def centres(self) -> Tensor:
        """(n, width): a point of each row, for grouping alone."""
        ...


@dataclass(frozen=True)
class AffineCells:
    """Affine forms of states: centre and error (n, width), generators (n, symbols, width)."""

    centre: Tensor
    generators: Tensor
    error: Tensor

    def __len__(self) -> int:
        return len(self.centre)

    def take(self, rows: Tensor) -> "AffineCells":
        return AffineCells(self.centre[rows], self.generators[rows], self.error[rows])

    def centres(self) -> Tensor:
        return self.centre

    @staticmethod
    def points(states: Tensor) -> "AffineCells":
        """States that are known exactly, (n, width) float64."""
        return AffineCells(
            states, states.new_zeros((len(states), 0, states.shape[1])), torch.zeros_like(states)
        )

    def pad_symbols(self, symbols: int) -> Tensor:
        missing = symbols - self.generators.shape[1]
        return torch.nn.functional.pad(self.generators, (0, 0, 0, missing))


@dataclass(frozen=True)
class BoxCells:
    """Boxes of states, (n, width) each."""

    lower: Tensor
    upper: Tensor

    def __len__(self) -> int:
        return len(self.lower)

    def take(self, rows: Tensor) -> "BoxCells":
        return BoxCells(self.lower[rows], self.upper[rows])

    def centres(self) -> Tensor:
        return self.lower / 2 + self.upper / 2


class _StateForms(Forms):
    """Affine forms of the nodes of one step, whose input is an affine form itself."""

    def __init__(self, graph: Graph, form: Form) -> None:
        super().__init__({graph.entry: form}, form.centre.new_zeros((0, 0, form.generators.shape[1])))

    def _attribute(self, arguments: list[Form], width: Tensor, place: Tensor) -> None:
        count = self.share.shape[2] + width.shape[1]
        self.share = self.share.new_zeros((0, 0, count))


class AffineDomain:
    """Cells as affine forms."""

    def __init__(self, opened: OpenedLayer) -> None:
        self.opened = opened

    def first(self) -> AffineCells:
        return AffineCells.points(self.opened.first())

    def words(self, vectors: Tensor) -> AffineCells:
        """One row that holds all of these vectors of words, (m, inputs)."""
        points = AffineCells.points(vectors)
        return points if len(points) == 1 else self.hull(points)

    def concatenate(self, parts: Sequence[AffineCells]) -> AffineCells:
        symbols = max(part.generators.shape[1] for part in parts)
        return AffineCells(
            torch.cat([part.centre for part in parts]),
            torch.cat([part.pad_symbols(symbols) for part in parts]),
            torch.cat([part.error for part in parts]),
        )

    def step(self, cells: AffineCells, words: AffineCells) -> AffineCells:
        """The states after a word: row k of the cells reads row k of the words."""
        mine, theirs = cells.generators, words.generators
        width, inputs = cells.centre.shape[1], words.centre.shape[1]
        # Noise of the state and of the word are independent.
        generators = torch.cat(
            [
                torch.nn.functional.pad(mine, (0, inputs)),
                torch.nn.functional.pad(theirs, (width, 0)),
            ],
            1,
        )
        error = torch.cat([cells.error, words.error], 1)
        form = Form.of(torch.cat([cells.centre, words.centre], 1), generators, error + TINY)
        found = _propagate(self.opened.step, form)
        return _reduce_symbols(AffineCells(found.centre, found.generators, found.error))

    def rows_at_once(self, cells: AffineCells) -> int:
        width = cells.centre.shape[1]
        symbols = cells.generators.shape[1] + SYMBOLS_OF_A_NUMBER * width
        return (
            max(1, FORM_VALUES // (symbols * 4 * width))
            if cells.generators.shape[1]
            else FORM_VALUES // width
        )

    def hull(self, cells: AffineCells) -> AffineCells:
        """One row that holds all rows."""
        if len(cells) == 1:
            return cells
        middle = cells.centre.mean(0)
        away = cells.centre - middle
        spread = away.T @ away + torch.einsum("nsd,nse->de", cells.generators, cells.generators)
        axes = _principal_axes(spread)
        terms = cells.centre.shape[1] + cells.generators.shape[1]
        radius = round_up(cells.generators.abs().sum(1), FORM_MERGED, terms) + cells.error
        size = cells.centre.abs() + middle.abs() + radius  # at least every |p - m|, element by element
        along = away @ axes
        half = (cells.generators @ axes).abs().sum(1) + cells.error @ axes.abs()
        rounding = charge(size @ axes.abs(), FORM_HULL, terms)
        low, high = (along - half - rounding).amin(0), (along + half + rounding).amax(0)
        mid, rad = centre_and_radius(low, high)
        identity = torch.eye(len(axes), dtype=axes.dtype, device=axes.device)
        rest = (identity - axes @ axes.T).abs() + charge(
            identity + axes.abs() @ axes.T.abs(), FORM_HULL, terms
        )
        largest = size.amax(0)
        moved = middle.abs() + axes.abs() @ (mid.abs() + rad)
        error = rest @ largest + charge(rest @ largest + moved, FORM_HULL, terms)
        return AffineCells((middle + axes @ mid)[None], (axes * rad).T[None], error[None])

    def lower_bounds(self, cells: AffineCells, rows: Tensor, offset: Tensor) -> Tensor:
        """(n, rows): lower bounds of rows . output + offset over each row of the cells; rows (rows, outputs)."""
        form = _propagate(self.opened.head, Form.of(cells.centre, cells.generators, cells.error + TINY))
        matrix = rows.expand(len(cells), *rows.shape)
        effect = (form.generators @ matrix.transpose(1, 2)).abs().sum(1)
        error = (matrix.abs() @ form.error.unsqueeze(-1)).squeeze(-1)
        size = (matrix.abs() @ form.size.unsqueeze(-1)).squeeze(-1) + effect + offset.abs()
        value = (matrix @ form.centre.unsqueeze(-1)).squeeze(-1) + offset
        terms = form.centre.shape[1] + form.generators.shape[1] + 2
        return value - effect - error - charge(size, FORM_LINEAR_BOUND, terms)


class BoxDomain:
    """Cells as boxes: interval arithmetic, as ARC."""

    def __init__(self, opened: OpenedLayer) -> None:
        self.opened = opened

    def first(self) -> BoxCells:
        state = self.opened.first()
        return BoxCells(state, state)

    def words(self, vectors: Tensor) -> BoxCells:
        return BoxCells(vectors.amin(0)[None], vectors.amax(0)[None])

    def concatenate(self, parts: Sequence[BoxCells]) -> BoxCells:
        return BoxCells(torch.cat([p.lower for p in parts]), torch.cat([p.upper for p in parts]))

    def step(self, cells: BoxCells, words: BoxCells) -> BoxCells:
        lower, upper = torch.cat([cells.lower, words.lower], 1), torch.cat([cells.upper, words.upper], 1)
        graph = self.opened.step
        boxes = crown.intervals(graph, Box.between(lower, upper))
        return BoxCells(boxes.lower[graph.output].flatten(1), boxes.upper[graph.output].flatten(1))

    def rows_at_once(self, cells: BoxCells) -> int:
        return max(1, FORM_VALUES // cells.lower.shape[1])

    def hull(self, cells: BoxCells) -> BoxCells:
        return BoxCells(cells.lower.amin(0)[None], cells.upper.amax(0)[None])

    def lower_bounds(self, cells: BoxCells, rows: Tensor, offset: Tensor) -> Tensor:
        graph = self.opened.head
        boxes = crown.intervals(graph, Box.between(cells.lower, cells.upper))
        matrix, shift = rows.expand(len(cells), *rows.shape), offset.expand(len(cells), *offset.shape)
        return crown.lower_bound(graph, boxes, matrix, shift)


def _propagate(graph: Graph, form: Form) -> Form:
    """The form of the graph's output."""
    lower, upper = form.interval_bounds()
    forms = _StateForms(graph, form)
    crown_with_fixed_bounds.propagate(graph, Box.between(lower, upper), forms, walks=False)
    found = forms.of[graph.output]
    symbols = found.generators.shape[1]
    if found.rows == slice(0, len(found.centre)):
        return found
    generators = found.generators.new_zeros((len(found.centre), symbols, found.centre.shape[1]))
    generators[found.rows] = found.generators
    return Form.of(found.centre, generators, found.error)


def _reduce_symbols(cells: AffineCells) -> AffineCells:
    """The cells with fewer noise symbols: the symbols whose loss is least become a box."""
    symbols, width = cells.generators.shape[1:]
    if symbols <= SYMBOLS_OF_A_NUMBER * width:
        return cells
    sizes = cells.generators.abs()
    kept = KEPT_SYMBOLS_OF_A_NUMBER * width
    order = (sizes.sum(2) - sizes.amax(2)).argsort(1, descending=True)
    chosen, merged = order[:, :kept], order[:, kept:]
    box = sizes.gather(1, merged[..., None].expand(-1, -1, width)).sum(1) + cells.error
    box = round_up(box, FORM_MERGED, symbols) + TINY
    generators = cells.generators.gather(1, chosen[..., None].expand(-1, -1, width))
    return AffineCells(
        cells.centre, torch.cat([generators, torch.diag_embed(box)], 1), torch.zeros_like(cells.error)
    )


def _principal_axes(spread: Tensor) -> Tensor:
    """(d, d): about orthogonal axes along which the rows vary; those of the coordinates where none are found."""
    try:
        axes: Tensor = torch.linalg.eigh(spread).eigenvectors
    except RuntimeError:  # It does not converge.
        axes = torch.full_like(spread, torch.nan)
    return axes if bool(axes.isfinite().all()) else torch.eye(len(spread), dtype=spread.dtype)


def group_rows(centres: Tensor, most: int) -> list[Tensor]:
    """Divide rows into at most `most` groups of close centres: the widest group is halved along its widest axis."""
    groups, spreads = [torch.arange(len(centres))], [float("inf")]
    while len(groups) < min(most, len(centres)):
        widest = max(range(len(groups)), key=spreads.__getitem__)
        if spreads[widest] <= 0:
            break
        rows = groups.pop(widest)
        spreads.pop(widest)
        away = centres[rows] - centres[rows].mean(0)
        axis = _principal_axes(away.T @ away)[:, -1]
        side = away @ axis > 0
        if bool(side.all()) or not bool(side.any()):
            groups.append(rows)
            spreads.append(0.0)
            continue
        for part in (rows[side], rows[~side]):
            groups.append(part)
            spreads.append(float((centres[part] - centres[part].mean(0)).square().sum()))
    return groups
