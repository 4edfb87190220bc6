"""Taylor models with a rest that is a vector, and branch and bound on them, against samples, descent and singular values."""

import pytest
import torch
from bounds_zoo import ZOO, network
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from holdfast import batch
from holdfast.bounding import taylor
from holdfast.bounding.branching.branching_rule import choose_branching
from holdfast.bounding.branching.input_split import InputSplit
from holdfast.bounding.branching.smooth_split import SmoothSplit
from holdfast.bounding.branching.subproblem_queue import PolytopeQuestion
from holdfast.bounding.graph.fusion import fuse_affine
from holdfast.bounding.graph.graph import Graph, build
from holdfast.network import Network
from holdfast.property import Avoid
from holdfast.region import Box
from holdfast.rounding import spectral_norm
from holdfast.verification import reach
from sizes import count


class Branches(nn.Module):
    """Ways that part, meet in a sum and lie side by side, of several functions."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(3, 9), nn.Linear(9, 9), nn.Linear(12, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x))
        k = h + torch.nn.functional.silu(self.second(h))
        answer: Tensor = self.last(torch.cat([torch.sigmoid(k), x], 1))
        return answer


def chain(kind: type[nn.Module]) -> nn.Module:
    return nn.Sequential(nn.Linear(3, 12), kind(), nn.Linear(12, 12), kind(), nn.Linear(12, 2))


NETS = {
    "tanh": lambda: chain(nn.Tanh),
    "sigmoid": lambda: chain(nn.Sigmoid),
    "gelu": lambda: chain(nn.GELU),
    "silu": lambda: chain(nn.SiLU),
    "branches": Branches,
}


def made(name: str, seed: int = 0, gain: float = 2.0) -> tuple[nn.Module, Network, Graph]:
    torch.manual_seed(seed)
    model = NETS[name]().double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(gain)
    net = Network.from_torch(model, shape=(3,))
    return model, net, fuse_affine(build(net, torch.zeros(1, 3, dtype=torch.float64)))


def boxes(seed: int, count: int, width: float) -> tuple[Tensor, Tensor]:
    """Some inputs of some of them stay still."""
    generator = torch.Generator().manual_seed(seed)
    centre = torch.randn((count, 3), generator=generator, dtype=torch.float64)
    radius = width * torch.rand((count, 3), generator=generator, dtype=torch.float64)
    radius[::3, 1] = 0
    return centre - radius, centre + radius


def attacked(model: nn.Module, lower: Tensor, upper: Tensor, rows: Tensor) -> Tensor:
    """-> points (n, boxes, inputs): corners, random ones, and where descent on each row leads."""
    generator = torch.Generator().manual_seed(5)
    share = torch.rand((60, *lower.shape), generator=generator, dtype=torch.float64)
    corner = (torch.arange(8)[:, None] >> torch.arange(3) & 1).double()[:, None]
    points = [lower + share * (upper - lower), lower + corner * (upper - lower)]
    for row in rows.unbind(1):
        x = points[0][:6].clone()
        for _ in range(25):
            x.requires_grad_(True)
            with torch.enable_grad():
                score = (model(x.flatten(0, 1)).reshape(*x.shape[:2], -1) * row).sum()
                (slope,) = torch.autograd.grad(score, x)
            x = torch.minimum(torch.maximum(x.detach() - slope.sign() * (upper - lower) / 12, lower), upper)
        points.append(x.detach())
    return torch.minimum(torch.maximum(torch.cat(points), lower), upper)


@pytest.mark.parametrize("width", [0.0, 1e-9, 1e-3, 0.1, 0.6, 3.0])
@pytest.mark.parametrize("name", list(NETS))
def test_nothing_lies_below_a_model_or_its_plane(name: str, width: float) -> None:
    for seed in range(count(1, full=3)):
        model, _, graph = made(name, seed)
        assert taylor.obstacle(graph) is None
        lower, upper = boxes(seed, 9, width)
        rows = torch.randn((9, 3, 2), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        found = taylor.lower_bound_rows(graph, lower, upper, rows)
        points = attacked(model, lower, upper, rows)
        with torch.no_grad():
            value = torch.einsum(
                "bro,nbo->nbr", rows, model(points.flatten(0, 1)).reshape(*points.shape[:2], -1)
            )
        plane = torch.einsum("bri,nbi->nbr", found.slope, points) + found.constant
        units = 1e-14 * (1 + value.abs())  # the network and the plane are computed here too
        assert (found.least <= value + units).all()
        assert (plane <= value + units).all()
        assert found.least.isfinite().all()


@pytest.mark.parametrize("name", [name for name in ZOO if ZOO[name].shape == (4,)][::3])
def test_networks_of_all_kinds_have_models_or_a_reason(name: str) -> None:
    model, net = network(name)
    graph = fuse_affine(build(net, torch.zeros(1, 4)))
    if taylor.obstacle(graph) is not None:
        return
    generator = torch.Generator().manual_seed(0)
    for width in (0.01, 0.5):
        centre = torch.randn((5, 4), generator=generator, dtype=torch.float64)
        rows = torch.eye(graph.output.size, dtype=torch.float64).expand(5, -1, -1)
        found = taylor.lower_bound_rows(graph, centre - width, centre + width, rows)
        points = centre + width * (2 * torch.rand((200, 5, 4), generator=generator, dtype=torch.float64) - 1)
        with torch.no_grad():
            value = model.double()(points.flatten(0, 1)).reshape(200, 5, -1)
        assert not (found.least > value + 1e-12 * (1 + value.abs())).any()


@pytest.mark.parametrize("name", ["tanh", "branches"])
def test_what_a_model_does_not_know_falls_with_the_third_power(name: str) -> None:
    _, _, graph = made(name, gain=1.0)
    rest = []
    for width in (0.1, 0.05, 0.025):
        centre = torch.randn((20, 3), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        found = taylor.lower_bound_rows(
            graph, centre - width, centre + width, torch.ones((20, 1, 2), dtype=torch.float64)
        )
        rest.append(float(found.rest.mean()))
    assert rest[0] > 7 * rest[1] > 49 * rest[2]


@settings(max_examples=80, deadline=None)
@given(
    st.integers(1, 20),
    st.integers(1, 20),
    st.sampled_from([1e-200, 1e-30, 1.0, 1e30]),
    st.integers(0, 2**20),
    st.booleans(),
)
def test_the_spectral_norm_is_met_from_above(
    height: int, width: int, scale: float, seed: int, thin: bool
) -> None:
    generator = torch.Generator().manual_seed(seed)
    matrix = torch.randn((height, width), generator=generator, dtype=torch.float64)
    if thin:
        matrix = matrix[:, :1] * matrix[:1]
    truth = float(torch.linalg.svdvals(matrix)[0])
    found = spectral_norm(matrix * scale) / scale
    assert found >= truth * (1 - 1e-14)
    assert found <= truth * 1.06 or scale < 1e-100


def test_the_spectral_norm_of_nothing_is_tiny_and_of_no_numbers_unknown() -> None:
    assert 0 <= spectral_norm(torch.zeros((3, 4), dtype=torch.float64)) < 1e-100
    assert spectral_norm(torch.full((2, 2), torch.inf, dtype=torch.float64)) == torch.inf
    assert not spectral_norm(torch.full((2, 2), torch.nan, dtype=torch.float64)) < torch.inf


@settings(max_examples=count(10, full=25), deadline=None)
@given(
    st.sampled_from(list(NETS)),
    st.integers(0, 2**20),
    st.sampled_from([0.05, 0.3, 1.0]),
    st.floats(0.02, 0.5),
)
def test_no_failure_lies_outside_of_what_is_left_of_a_box(
    name: str, seed: int, width: float, quantile: float
) -> None:
    """Bounds close ways to fail and cut boxes down: no sampled point of the box that fails may be lost by either."""
    model, _, graph = made(name, seed % 5)
    lower, upper = boxes(seed, 6, width)
    generator = torch.Generator().manual_seed(seed)
    matrix = torch.randn((6, 2, 2, 2), generator=generator, dtype=torch.float64)
    points = attacked(model, lower, upper, matrix.flatten(1, 2))
    with torch.no_grad():
        outputs = model(points.flatten(0, 1)).reshape(*points.shape[:2], -1)
    rows = torch.einsum("bpro,nbo->nbpr", matrix, outputs)
    offset = -rows.quantile(quantile, dim=0)  # some of the points fail, most do not
    rules = Avoid(matrix, offset)
    cut = SmoothSplit()
    parts = cut.start(graph, Box.between(lower, upper), rules)
    parts = (
        batch.take(parts, torch.arange(6))
        if seed % 2
        else type(parts)(**{**vars(parts), "bound": torch.full((6,), -9.0).double()})
    )
    seen = cut.bound(PolytopeQuestion(graph, Box.between(lower, upper), rules), parts).parts
    fails = (rows + offset < -1e-12).all(-1)  # (n, boxes, polytopes)
    assert not (fails & ~seen.open).any()
    inside = ((points >= seen.lower) & (points <= seen.upper)).all(-1)
    assert not (fails.any(-1) & ~inside).any()
    lowest = (
        (rows + offset).amax(-1).amin(-1).amin(0)
    )  # a box in which nothing fails may say no more than that
    assert (seen.bound <= lowest + 1e-12)[lowest < 0].all()


@pytest.mark.parametrize("name", ["tanh", "branches"])
def test_ranges_by_models_and_by_forms_agree(name: str) -> None:
    _, net, graph = made(name)
    ends = -torch.ones(3), torch.ones(3)
    assert isinstance(
        choose_branching(graph, Box.between(*(end[None].double() for end in ends))), SmoothSplit
    )
    for ours, theirs in zip(
        reach(net, ends), reach(net, ends, methods=[InputSplit(walks=False)]), strict=True
    ):
        assert ours.closed
        for one, other in ((ours, theirs), (theirs, ours)):
            assert one.minimum.lower.value <= other.minimum.upper.value
            assert one.maximum.upper.value >= other.maximum.lower.value


def test_networks_without_models_are_cut_as_before() -> None:
    torch.manual_seed(0)
    net = Network.from_torch(nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1)).eval(), shape=(2,))
    graph = fuse_affine(build(net, torch.zeros(1, 2)))
    assert taylor.obstacle(graph) is not None
    assert (
        type(choose_branching(graph, Box.between(torch.zeros(1, 2).double(), torch.ones(1, 2).double())))
        is InputSplit
    )
    (found,) = reach(net, (torch.zeros(2), torch.ones(2)), methods=[SmoothSplit()])
    assert found.closed


def test_inputs_that_stay_still_cost_nothing() -> None:
    """Two of many inputs move: the boxes of a batch are as many as for a network with two inputs."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(200, 8), nn.Tanh(), nn.Linear(8, 1)).eval()
    net = Network.from_torch(model, shape=(200,))
    lower, upper = torch.zeros(200), torch.zeros(200)
    upper[[3, 77]] = 2.0
    graph = fuse_affine(build(net, torch.zeros(1, 200)))
    region = Box.between(lower[None].double(), upper[None].double())
    cut = choose_branching(graph, region)
    assert isinstance(cut, SmoothSplit)
    rules = Avoid(torch.ones(1, 1, 1, 1).double(), torch.zeros(1, 1, 1).double())
    assert cut.at_once(PolytopeQuestion(graph, region, rules)) > 100
    (found,) = reach(net, (lower, upper), tolerance=1e-3)
    assert found.closed
