"""Every bounder answers the same question, and no point of a region contradicts any of them."""

from collections.abc import Callable

import pytest
import torch
from bounds_regions import KINDS, hostile, regions, seeded
from bounds_zoo import RECURRENT, ZOO, every_place, network, values
from torch import Tensor

from holdfast import time_limit
from holdfast.bounding.bounder import AffineForms, Bounder, ClosedForm, Coupled, SecondOrder, TrainedBounder
from holdfast.bounding.crown import lower_bound, propagate
from holdfast.bounding.graph.graph import Graph, build
from holdfast.bounding.quadratic_models import Quadratic
from holdfast.region import Region

BOUNDERS: dict[str, Callable[[Graph], Bounder]] = {
    "closed form": ClosedForm,
    "forms": AffineForms,
    "forms and walks": lambda graph: AffineForms(graph, walks=True),
    "few noise symbols": lambda graph: AffineForms(graph, most=24),
    "second order": lambda graph: SecondOrder(Quadratic(graph)),
    "trained": lambda graph: TrainedBounder(graph, steps=4),
    "coupled": lambda graph: Coupled(graph, steps=6),
}


def asked(graph: Graph, region: Region, seed: int) -> Tensor:
    outputs = graph.output.size
    rows = torch.cat(
        [torch.eye(outputs), -torch.eye(outputs), torch.randn((2, outputs), generator=seeded(seed))]
    ).double()
    return rows.expand(len(region), *rows.shape).contiguous()


@every_place
def test_no_point_lies_below_any_bound_nor_below_its_planes(place: int) -> None:
    name = list(ZOO)[place]
    shape = ZOO[name].shape
    graph = build(network(name)[1], torch.zeros(1, *shape))
    offered = regions(shape, place)
    kinds = [KINDS[(place * 3 + k * 7) % len(KINDS)] for k in range(1 if name in RECURRENT else 2)]
    for region in (offered[kind] for kind in kinds if kind in offered):
        rows = asked(graph, region, place)
        points = hostile(graph, region, rows, place)
        met = values(graph, points.flatten(0, 1))[graph.output].reshape(len(points), len(region), -1)
        score = torch.einsum("bro,nbo->nbr", rows, met)
        for kind, make in BOUNDERS.items():
            least, planes = make(graph).bound(region, rows)
            assert least.shape == rows.shape[:2]
            assert not least.isnan().any()
            assert (least <= score).all(), kind
            if planes is not None:
                below = (
                    torch.einsum("brk,nbk->nbr", planes.coefficients.flatten(2), points.double().flatten(2))
                    + planes.constant
                )
                size = torch.einsum(
                    "brk,nbk->nbr", planes.coefficients.abs().flatten(2), points.double().abs().flatten(2)
                )
                assert not (below > score + 1e-12 * (1 + size + planes.constant.abs() + score.abs())).any(), (
                    kind
                )


@pytest.mark.parametrize("name", ["relu", "lstm", "residual"])
def test_bounders_say_something(name: str) -> None:
    shape = ZOO[name].shape
    graph, region = build(network(name)[1], torch.zeros(1, *shape)), regions(shape, 5)["box"]
    rows = asked(graph, region, 0)
    for kind, make in BOUNDERS.items():
        assert make(graph).bound(region, rows)[0].isfinite().all() or (kind, name) == ("coupled", "lstm"), (
            kind
        )
    found = lower_bound(
        graph, propagate(graph, region), rows, torch.zeros(rows.shape[:2], dtype=torch.float64)
    )
    torch.testing.assert_close(ClosedForm(graph).bound(region, rows)[0], found, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["relu", "residual"])
@pytest.mark.parametrize("kind", ["box", "ball 2", "ball 1"])
def test_trained_planes_are_never_below_those_in_closed_form_and_win(name: str, kind: str) -> None:
    shape = ZOO[name].shape
    graph, region = build(network(name)[1], torch.zeros(1, *shape)), regions(shape, 5)[kind]
    rows = asked(graph, region, 0)
    plain, trained = ClosedForm(graph).bound(region, rows)[0], TrainedBounder(graph).bound(region, rows)[0]
    assert (trained >= plain - 1e-9 * (1 + plain.abs())).all()
    assert (trained - plain).mean() > 1e-4 * plain.abs().mean()
    # Rows that are above what is enough stay what they were; few ends at a time, one row at a time, prove something too.
    assert torch.allclose(TrainedBounder(graph, enough=plain - 1).bound(region, rows)[0], plain)
    assert (TrainedBounder(graph, ends=1).bound(region, rows)[0] >= plain - 1e-9 * (1 + plain.abs())).all()


def test_trained_planes_without_time_or_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, region = (
        build(network("relu")[1], torch.zeros(1, *ZOO["relu"].shape)),
        regions(ZOO["relu"].shape, 5)["box"],
    )
    rows = asked(graph, region, 0)
    usual = TrainedBounder(graph).bound(region, rows)[0]
    with time_limit.within(0.0):
        assert (TrainedBounder(graph).bound(region, rows)[0] == -torch.inf).all()
    monkeypatch.setattr("holdfast.bounding.bounder.free_bytes", lambda device: 1)
    torch.testing.assert_close(TrainedBounder(graph).bound(region, rows)[0], usual, rtol=1e-3, atol=1e-3)


def test_what_cannot_be_bounded_is_minus_infinity() -> None:
    name = "constants"  # linear: nothing is left to the second order
    graph = build(network(name)[1], torch.zeros(1, *ZOO[name].shape))
    region = regions(ZOO[name].shape, 5)["box"]
    view = Quadratic(graph)
    assert view.obstacle is not None
    least, planes = SecondOrder(view).bound(region, asked(graph, region, 0))
    assert planes is None
    assert (least == -torch.inf).all()
