"""Sums of squares of linear functions, such as the power spectrum of a frame of sound.

Notation. A frame u of n numbers, c - r <= u <= c + r, passes through K linear functions s_k = a_k . u + b_k (a
Fourier transform), and J weighted sums of their squares (mel bands):

    P_j = sum over k of m_jk s_k^2,    m_jk >= 0.

For tangents at any numbers t_k, with d = u - c and e_k = a_k . c + b_k - t_k, exactly

    P_j = sum m_jk (2 t_k s_k - t_k^2)  +  C_j,    C_j = sum m_jk (s_k - t_k)^2 >= 0.

Statement. With T_j = sum m_jk t_k^2, H_j = sum_i |sum_k m_jk t_k a_ki| r_i + sum_k m_jk |t_k e_k|,
Q_j = sum_k m_jk a_k a_k' and G_j = sum_k m_jk e_k^2, wherever u lies in its box,

    C_j  <=  (sqrt(r' |Q_j| r) + sqrt(G_j))^2,
    max(0, T_j - H_j)^2 / T_j  <=  P_j  <=  T_j + 2 H_j + C_j.

Proof. sum m t s = T + sum m t e + (sum m t a) . d is within H of T. The lower bound is the inequality of Cauchy
and Schwarz, (sum m t s)^2 <= T P. The upper bound is the identity above. For C, the triangle inequality of the
norm with weights m_j, and d' Q d <= |d|' |Q| |d|.

Why. A relaxation of every square by itself adds sum_k m_jk (|a_k| . r)^2 to P_j, as if u could move against all
a_k at once; by Parseval's identity it cannot, and this is 4 to 20 times as much as r' |Q_j| r for the bands of a
spoken-digit network. Where a frame is nearly silent, that decides whether its logarithm has a useful bound.

Assumptions: m >= 0, and b as stored. Rounding errors are charged term by term (docs/rounding.md, "Sums of
squares").

Reference: none known to us; the proof is above.
"""

from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from holdfast.bounding.graph.graph import Affine, Graph, Node, Relaxed
from holdfast.bounding.node_bounds import Boxes, Tangent
from holdfast.bounding.relax import Power
from holdfast.derivations import FEW_OPERATIONS, INTERVAL_MAP, NONNEGATIVE_SUM, SQUARED_MATRIX
from holdfast.rounding import TINY, add_rounding_down, centre_and_radius, charge, round_down, round_up

UNIT = 2.0**-53  # The unit roundoff of float64.
# Bands whose matrices |Q_j| take more numbers than this together are bounded square by square (chosen by hand).
MAX_CURVATURE_NUMBERS = 2**25


@dataclass(frozen=True, eq=False)
class SumsOfSquares:
    """The nodes of P_j = sum_k m_jk (a_k . u + b_k)^2 in a graph, for all frames u along the last axis."""

    spectrum: Affine  # s = u W + b
    squares: Relaxed
    sums: Affine  # P = s^2 M, or with a constant added

    @property
    def transform(self) -> Tensor:
        """W (n, K), whose columns are a_k."""
        assert self.spectrum.last_axis is not None
        return self.spectrum.last_axis

    @property
    def weights(self) -> Tensor:
        """M (K, J)."""
        assert self.sums.last_axis is not None
        return self.sums.last_axis

    _kept: list[Tensor] = field(default_factory=list)

    def curvature(self) -> Tensor:
        """(J, n, n): at least |Q_j|, element by element."""
        if not self._kept:
            a, m = self.transform, self.weights
            whole = torch.stack([(a * m[:, j]) @ a.T for j in range(m.shape[1])]).abs()
            sizes = torch.stack([(a.abs() * m[:, j]) @ a.T.abs() for j in range(m.shape[1])])
            self._kept.append(whole + charge(sizes, SQUARED_MATRIX, m.shape[0] + 1) + TINY)
        return self._kept[0]


_found: "WeakKeyDictionary[Graph, dict[Node, SumsOfSquares]]" = WeakKeyDictionary()


def find_sums_of_squares(graph: Graph) -> dict[Node, SumsOfSquares]:
    """The sums of squares of a graph, by their last node. All readers of the squares must be such sums."""
    if graph not in _found:
        readers: dict[Node, list[Node]] = {}
        for node in graph.nodes:
            for source in node.inputs:
                readers.setdefault(source, []).append(node)
        found: dict[Node, SumsOfSquares] = {}
        for squares in graph.nodes:
            if not (isinstance(squares, Relaxed) and squares.relaxation == Power(2)):
                continue
            (spectrum,) = squares.inputs
            if not (isinstance(spectrum, Affine) and spectrum.last_axis is not None):
                continue
            size = spectrum.last_axis.shape[0] ** 2
            made = [
                SumsOfSquares(spectrum, squares, node)
                for node in readers.get(squares, [])
                if isinstance(node, Affine)
                and node.last_axis is not None
                and bool((node.last_axis >= 0).all())
                and node.last_axis.shape[1] * size <= MAX_CURVATURE_NUMBERS
            ]
            if squares is not graph.output and made and len(made) == len(readers[squares]):
                found.update({one.sums: one for one in made})
        _found[graph] = found
    return _found[graph]


def keep_bounds(boxes: Boxes, form: SumsOfSquares) -> None:
    """Intersect the bounds of P with those of the statement, and store the tangents and the bound of C for
    backward passes. The tangents are those of the relaxation of the squares.
    """
    squares, (entry,) = form.squares, form.spectrum.inputs
    plane = boxes.planes[squares]
    t, offset = (part.flatten(1) / 2 for part in (plane.lower[0], 2 * plane.lower_offset))
    centre, radius = centre_and_radius(boxes.lower[entry], boxes.upper[entry])
    at, sizes = (
        form.spectrum.forward([centre.flatten(1)]),
        form.spectrum.forward_absolute([boxes.largest(entry).flatten(1)]),
    )
    missed = (at - t).abs() + charge(sizes + t.abs(), INTERVAL_MAP, form.transform.shape[0])
    # s^2 - (2 t s + offset) = (s - t)^2 + rest, with rest = -t^2 - offset up to rounding.
    rest = ((-t * t - offset) + 4 * UNIT * (t * t + offset.abs())).clamp_min(0) + TINY
    count, size = form.transform.shape
    rows = [
        _bounds(form, t[k].reshape(-1, size), missed[k].reshape(-1, size), rest[k].reshape(-1, size), away)
        for k, away in enumerate(radius.reshape(len(radius), -1, count))
    ]
    low, high, curved = (
        torch.stack(parts).reshape(-1, *form.sums.shape) for parts in zip(*rows, strict=True)
    )
    if form.sums.shift is not None:
        shift = form.sums.shift.reshape(form.sums.shape[1:])
        low, high = (
            add_rounding_down(low, shift.expand_as(low)),
            -add_rounding_down(-high, -shift.expand_as(high)),
        )
    boxes.keep(form.sums, low, high)
    if bool(curved.isfinite().all()):
        slope = plane.lower[0]
        boxes.tangents[squares] = Tangent(
            slope, plane.lower_offset, slope.abs() * boxes.largest(form.spectrum) + plane.lower_offset.abs()
        )
        boxes.curvature[form.sums] = squares, curved


def _bounds(
    form: SumsOfSquares, t: Tensor, missed: Tensor, rest: Tensor, radius: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Lower and upper bounds of P, and an upper bound of P less its tangents, (frames, J) each.

    t, missed (at least |e|), rest: (frames, K); radius: (frames, n).
    """
    a, m = form.transform, form.weights
    (count, size), bands = a.shape, m.shape[1]
    weighted = t[:, None] * m.T  # (frames, J, K)
    steep = (weighted @ a.T).abs() + charge(weighted.abs() @ a.T.abs(), SQUARED_MATRIX, size + 1) + TINY
    away = (steep @ radius[:, :, None]).squeeze(-1) + (t.abs() * missed) @ m
    away = round_up(away, NONNEGATIVE_SUM, count + size + 2) + TINY
    square = (t * t) @ m
    least, most = (
        round_down(square, NONNEGATIVE_SUM, size + 1),
        round_up(square, NONNEGATIVE_SUM, size + 1) + TINY,
    )
    bend = torch.stack([((radius @ q) * radius).sum(1) for q in form.curvature()], dim=1)
    bend = round_up(bend, NONNEGATIVE_SUM, 2 * count) + TINY
    off = round_up((missed * missed) @ m, NONNEGATIVE_SUM, size + 1) + TINY
    curved = round_up(bend + 2 * (bend * off).sqrt() + off, FEW_OPERATIONS, 8)
    beyond = round_up(curved + rest @ m, NONNEGATIVE_SUM, size + 2)
    inner = (least - away).clamp_min(0)
    low = (round_down(inner * (inner / most), FEW_OPERATIONS, 2) - TINY).clamp_min(0)
    high = round_up(most + 2 * away + curved, FEW_OPERATIONS, 2)
    assert low.shape == (len(t), bands)
    return low, high, beyond
