"""Power spectra: bounds of weighted sums of squares hold, are tight where sound is soft, and charge rounding."""

from collections.abc import Callable
from fractions import Fraction

import pytest
import torch
from bounds_regions import seeded
from bounds_zoo import values
from torch import Tensor, nn

from holdfast.bounding import crown, sums_of_squares
from holdfast.bounding.graph.graph import Graph, build
from holdfast.bounding.node_bounds import Boxes, LinearForms
from holdfast.bounding.sums_of_squares import find_sums_of_squares
from holdfast.network import Network
from holdfast.region import Ball, Box, Region

FRAME, STEP, BANDS = 12, 8, 3
LENGTH = FRAME + 3 * STEP


class Spectrum(nn.Module):
    """Frames of a waveform, a Fourier transform, powers in bands, their logarithms, a linear layer."""

    def __init__(self, linear: bool = False) -> None:
        super().__init__()
        place = torch.arange(FRAME)[:, None] * torch.arange(1, 6)[None] * (2 * torch.pi / FRAME)
        self.register_buffer("transform", torch.cat([place.cos(), place.sin()], 1))
        self.register_buffer("mel", torch.rand((10, BANDS), generator=seeded(0)).clamp_min(0.3) - 0.3)
        self.last = nn.Linear(BANDS, 2)
        self.spectrum = nn.Linear(FRAME, 10)
        with torch.no_grad():
            self.spectrum.weight.copy_(self.transform.T)
            self.last.weight.copy_(torch.tensor([[1.0, -1.0, 0.5], [-2.0, 1.0, -1.0]]))
        self.linear = linear

    def forward(self, x: Tensor) -> Tensor:
        frames = x.unfold(1, FRAME, STEP)
        lines = self.spectrum(frames) if self.linear else frames @ self.transform
        found: Tensor = self.last(torch.log(lines**2 @ self.mel + 1e-10)).sum(1)
        return found


def sounds(loudness: float) -> Tensor:
    """A tone that fades into silence, then samples of zero."""
    time = torch.arange(LENGTH, dtype=torch.float64)
    sound = loudness * (0.9 * time).sin() * torch.exp(-time / 6)
    sound[-STEP:] = 0
    return sound[None]


def graph_and_region(loudness: float, radius: float, norm: float = torch.inf) -> tuple[Graph, Region]:
    x = sounds(loudness)
    graph = build(Network.from_torch(Spectrum().eval()), x.float())
    return graph, Ball(x, torch.tensor([radius], dtype=torch.float64), norm)


def corners(region: Region, count: int) -> Tensor:
    """Points of a ball in the maximum norm, most of them with every sample at a bound; those of a tone too."""
    low, high = region.enclosing_box()
    draw = torch.rand((count, LENGTH), generator=seeded(1), dtype=torch.float64)
    time = torch.arange(LENGTH, dtype=torch.float64)
    tones = torch.stack(
        [(k * 2 * torch.pi * time / FRAME + p).sin() for k in range(1, 6) for p in (0.0, 1.6)]
    )
    signs = torch.cat([(draw[1:] > 0.5).double(), draw[:1], (tones > 0).double(), (tones < 0).double()])
    return low + signs * (high - low)


def violations(graph: Graph, boxes: Boxes, points: Tensor) -> float:
    """By how much a value, or a linear function of the output, leaves its bounds at the worst point."""
    worst = 0.0
    at = values(graph, points)
    for node in graph.nodes:
        scale = 1e-9 * (1 + at[node].abs())
        below = (boxes.lower[node] - at[node] - scale).amax()
        above = (at[node] - boxes.upper[node] - scale).amax()
        worst = max(worst, float(below), float(above))
    rows = torch.cat([torch.eye(2), -torch.eye(2)]).double()[None]
    form: LinearForms = crown._walk_back(graph, boxes, graph.output, rows)
    linear = points @ form.coefficients[0].reshape(4, -1).T + form.constant
    return max(worst, float((linear - at[graph.output].flatten(1) @ rows[0].T).amax()))


@pytest.mark.parametrize(("loudness", "radius"), [(1.0, 1e-3), (1.0, 0.05), (0.01, 0.05), (1e4, 30.0)])
def test_all_bounds_hold_at_every_point(loudness: float, radius: float) -> None:
    graph, region = graph_and_region(loudness, radius)
    assert len(find_sums_of_squares(graph)) == 1
    boxes = crown.propagate(graph, region)
    assert boxes.curvature
    assert violations(graph, boxes, corners(region, 400)) <= 1e-9


@pytest.mark.parametrize("mutant", ["curvature", "lower", "upper", "walk"])
def test_points_refute_bounds_that_are_too_tight(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    original = sums_of_squares._bounds

    def tighter(*given: object) -> tuple[Tensor, Tensor, Tensor]:
        low, high, beyond = original(*given)  # type: ignore[arg-type]
        if mutant == "lower":
            low = low + 0.2 * (high - low)
        return low, high * (0.8 if mutant == "upper" else 1), beyond * (0.2 if mutant == "curvature" else 1)

    monkeypatch.setattr(sums_of_squares, "_bounds", tighter)
    if mutant == "walk":
        monkeypatch.setattr(
            crown.BackwardWalk,
            "_add_curvature",
            lambda walk, node, rows: walk.tangent.add(walk.boxes.curvature[node][0]),
        )
    found = []
    for loudness, radius in ((1.0, 0.05), (0.01, 0.05)):
        graph, region = graph_and_region(loudness, radius)
        found.append(violations(graph, crown.propagate(graph, region), corners(region, 400)))
    assert max(found) > 1e-6


def test_soft_sound_has_narrower_bounds_than_square_by_square(monkeypatch: pytest.MonkeyPatch) -> None:
    def width() -> Tensor:
        graph, region = graph_and_region(0.05, 0.01)
        boxes = crown.propagate(graph, region)
        (powers,) = find_sums_of_squares(graph)
        return boxes.upper[powers]

    with_sums = width()
    monkeypatch.setattr(crown, "find_sums_of_squares", lambda graph: {})
    assert bool((with_sums < 0.8 * width()).all())


def test_silence_has_finite_bounds_next_to_a_loud_frame() -> None:
    """The rounding error of a loud band exceeds the 1e-10 that keeps the logarithm of silence finite."""
    graph, region = graph_and_region(1e4, 1e-3)
    boxes = crown.propagate(graph, region)
    assert bool(boxes.lower[graph.output].isfinite().all())


def test_a_transform_written_as_a_linear_layer_and_other_norms_are_bounded_too() -> None:
    x = sounds(0.1)
    graph = build(Network.from_torch(Spectrum(linear=True).eval()), x.float())
    assert len(find_sums_of_squares(graph)) == 1
    region = Ball(x, torch.tensor([0.01], dtype=torch.float64), 2.0)
    boxes = crown.propagate(graph, region)
    draw = torch.randn((400, LENGTH), generator=seeded(2), dtype=torch.float64)
    assert violations(graph, boxes, x + 0.01 * draw / draw.norm(dim=1, keepdim=True)) <= 1e-9


def test_squares_that_something_else_reads_are_relaxed_one_by_one() -> None:
    class Both(Spectrum):
        def forward(self, x: Tensor) -> Tensor:
            squares = (x.unfold(1, FRAME, STEP) @ self.transform) ** 2
            return (squares @ self.mel).sum(1) + squares.sum((1, 2))[:, None]

    graph = build(Network.from_torch(Both().eval()), sounds(1.0).float())
    assert not find_sums_of_squares(graph)


def exact(numbers: Tensor) -> list[list[Fraction]]:
    return [[Fraction(value) for value in row] for row in numbers.tolist()]


@pytest.mark.parametrize("scale", [1e-120, 1.0, 1e9])
def test_bounds_hold_for_exact_fractions(scale: float) -> None:
    """One frame, at the corners of a box that are worst for each band, computed with fractions."""
    model = Spectrum().eval()
    x = sounds(1.0)[:, :FRAME] * scale
    graph = build(Network.from_torch(model), x.float())
    ((form, _),) = [(one, node) for node, one in find_sums_of_squares(graph).items()]
    low, high = x * (1 - 1e-7), x * (1 + 1e-7)
    box = Box.between(torch.minimum(low, high), torch.maximum(low, high))
    boxes = crown.intervals(graph, box)
    a, m = exact(form.transform), exact(form.weights)
    steep = [form.transform @ (form.weights[:, j] * (x @ form.transform)[0]) for j in range(BANDS)]
    for j, g in enumerate(steep):
        for sign in (1, -1):
            lower, upper = box.enclosing_box()
            u = exact(torch.where(sign * g > 0, upper, lower))[0]
            lines = [sum((u[i] * a[i][k] for i in range(FRAME)), Fraction(0)) for k in range(len(m))]
            power = sum((m[k][j] * lines[k] ** 2 for k in range(len(m))), Fraction(0))
            assert Fraction(boxes.lower[form.sums].flatten()[j].item()) <= power
            assert power <= Fraction(boxes.upper[form.sums].flatten()[j].item())


def test_rounding_is_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the charges, a bound at a single point is violated by rounding alone."""
    keep: Callable[..., Tensor] = lambda value, *_: value  # noqa: E731
    monkeypatch.setattr(sums_of_squares, "round_up", keep)
    monkeypatch.setattr(sums_of_squares, "round_down", keep)
    monkeypatch.setattr(sums_of_squares, "charge", lambda size, *_: torch.zeros_like(size))
    broken = 0
    for seed in range(30):
        x = torch.randn((1, FRAME), generator=seeded(seed), dtype=torch.float64)
        graph = build(Network.from_torch(Spectrum().eval()), x.float())
        ((form, _),) = [(one, node) for node, one in find_sums_of_squares(graph).items()]
        boxes = Boxes(Box.between(x, x))
        crown.forward(graph.nodes[: form.sums.place], crown.Intervals(graph, boxes).visit)
        t = (boxes.planes[form.squares].lower[0] / 2).reshape(1, -1)
        zero = torch.zeros_like(t)
        low, high, _ = sums_of_squares._bounds(
            form, t, zero, zero, torch.zeros((1, FRAME), dtype=torch.float64)
        )
        ts, m = exact(t)[0], exact(form.weights)
        for j in range(BANDS):
            power = sum((m[k][j] * ts[k] ** 2 for k in range(len(m))), Fraction(0))
            broken += not Fraction(low[0, j].item()) <= power <= Fraction(high[0, j].item())
    assert broken


def test_squares_are_tangents_only_if_all_of_their_sums_have_a_curvature() -> None:
    class Two(Spectrum):
        def forward(self, x: Tensor) -> Tensor:
            squares = (x.unfold(1, FRAME, STEP) @ self.transform) ** 2
            one, other = squares @ self.mel, squares @ self.mel.flip(0).contiguous()
            return (one.sum(1) - 2 * other.sum(1))[:, :2]

    x = sounds(1.0)
    graph = build(Network.from_torch(Two().eval()), x.float())
    assert len(find_sums_of_squares(graph)) == 2
    region = Ball(x, torch.tensor([0.05], dtype=torch.float64), torch.inf)
    boxes = crown.propagate(graph, region)
    assert len(crown._curved_sums(graph, boxes)) == 2
    assert violations(graph, boxes, corners(region, 400)) <= 1e-9
    boxes.curvature.popitem()  # as if it had overflowed
    assert not crown._curved_sums(graph, boxes)
    assert violations(graph, boxes, corners(region, 400)) <= 1e-9
