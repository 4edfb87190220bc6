"""hf.radius with norm 0, as people ask it: units, masks, values, modes; and what it says to a question that makes no sense."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import holdfast as hf
from holdfast.datasets import digits
from holdfast.datasets.digits_networks import digits_cnn
from sizes import full_only

BOUNDED = (0.0, 1.0)


def linear(weight: list[float], bias: float, domain: tuple[float, float] = BOUNDED) -> hf.Network:
    """Class 0 while weight . x + bias > 0."""
    layer = nn.Linear(len(weight), 2)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([weight, [0.0] * len(weight)]))
        layer.bias.copy_(torch.tensor([bias, 0.0]))
    return hf.Network.from_torch(nn.Sequential(nn.Flatten(), layer).eval(), domain=domain)


def ends(net: hf.Network, x: Tensor, **options: Any) -> tuple[float, float]:
    (bracket,) = hf.radius(net, x[None], [0], norm=0, **options)
    return bracket.lower.value, bracket.upper.value


def test_a_pixel_is_all_its_channels_and_a_number_is_one_of_them() -> None:
    """Six ones in three channels of two pixels: to lose 3.5 takes four numbers, but two pixels, or two frames of the other layout."""
    net = linear([1.0] * 6, -2.5)
    x = torch.ones(3, 1, 2)
    assert ends(net, x) == (1, 1)
    assert ends(net, x, unit="pixel") == (1, 1)
    assert ends(net, x, unit="number") == (3, 3)
    rows = linear([1.0] * 6, -2.5)
    assert ends(rows, torch.ones(3, 2)) == (3, 3)
    assert ends(rows, torch.ones(3, 2), unit="frame") == (1, 1)
    assert ends(rows, torch.ones(3, 2), frames="all") == (1, 1)


def test_units_that_may_not_change_do_not() -> None:
    net, x = linear([3.0, 1.0, 1.0, 1.0], -2.5), torch.ones(4)
    assert ends(net, x) == (1, 1)  # the first and any other
    locked = torch.tensor([False, True, True, True])
    lower, upper = ends(net, x, free=locked)
    assert lower == upper == math.inf  # the others alone never suffice: 6 - 2.5 - 3 > 0
    assert ends(net, x, free=torch.stack([~locked])) == (math.inf, math.inf)
    assert ends(linear([3.0, 2.0, 1.0, 1.0], -3.5), x, free=locked) == (2, 2)
    (bracket,) = hf.radius(net, x[None], [0], norm=0, free=torch.zeros(4, dtype=torch.bool))
    assert bracket.closed
    assert "nothing may change" in bracket.note


def test_a_mask_of_an_image_needs_no_channel_axis() -> None:
    net, x = linear([1.0] * 8, -5.5), torch.ones(2, 2, 2)
    mask = torch.tensor([[True, False], [False, False]])
    assert ends(net, x) == (1, 1)
    for given in (mask, mask[None], mask[None, None], [mask]):
        assert ends(net, x, free=given) == (math.inf, math.inf)


def test_changed_numbers_take_the_values_given() -> None:
    """Only a value of 0 for two numbers lowers the sum enough; with 0.5 as the smallest it takes four."""
    net, x = linear([1.0] * 6, -4.0), torch.ones(6)
    assert ends(net, x) == (1, 1)
    assert ends(net, x, values=[0.5, 1.0]) == (3, 3)
    (bracket,) = hf.radius(net, x[None], [0], norm=0, values=[0.25, 1.0])
    witness = bracket.upper.evidence.witness
    assert witness is not None
    assert set(witness.unique().tolist()) <= {0.25, 1.0}
    wide = linear([1.0] * 4, -1000.0, domain=(0, 255))
    assert ends(wide, torch.full((4,), 255.0), values=range(256)) == (0, 0)


@pytest.mark.usefixtures("cpu_clock")
def test_the_grid_estimates_and_never_proves() -> None:
    data = digits("test")
    net = hf.Network.from_torch(digits_cnn(), domain=BOUNDED)
    brackets = hf.radius(net, data.x[:4], data.y[:4], norm=0, mode="grid", stop=hf.Stop(seconds=20))
    for bracket in brackets:
        assert bracket.lower.evidence.method in ("definition", "the input itself")
        assert bracket.upper.value < 20
        (estimate,) = bracket.estimates
        assert estimate.evidence.kind == "estimated"
        assert estimate.value <= bracket.upper.value


@pytest.mark.usefixtures("cpu_clock")
def test_a_black_box_has_an_upper_end_and_no_proof() -> None:
    data = digits("test")
    module = digits_cnn()
    net = hf.Network.from_callable(lambda v: module(torch.from_numpy(v)).detach().numpy(), domain=BOUNDED)
    (bracket,) = hf.radius(net, data.x[:1], data.y[:1], norm=0, stop=hf.Stop(seconds=20))
    assert bracket.lower.value == 0
    assert bracket.lower.evidence.method == "definition"
    assert 0 <= bracket.upper.value < 64


@full_only  # tests/hamming/test_hamming_branch.py attacks the same proofs without the public functions.
@pytest.mark.usefixtures("cpu_clock")
def test_no_image_is_called_safe_that_a_search_breaks() -> None:
    """Every bracket of the room against attacks that know nothing of it."""
    data = digits("test")
    net = hf.Network.from_torch(digits_cnn(), domain=BOUNDED)
    x, y = data.x[:6], data.y[:6]
    proved = hf.radius(net, x, y, norm=0, stop=hf.Stop(seconds=40))
    attacked = hf.radius(net, x, y, norm=0, methods=[hf.attacks.PGD(), hf.attacks.Corners()])
    for bracket, other in zip(proved, attacked, strict=True):
        assert bracket.lower.value <= other.upper.value
    assert sum(b.closed for b in proved) >= 4


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"unit": "voxel"}, "unit 'voxel' is unknown; choose one of pixel, frame, number"),
        ({"unit": "pixel"}, "unit 'pixel' needs images"),
        ({"norm": 2, "unit": "number"}, "needs norm 0"),
        ({"norm": 2, "values": [0, 1]}, "needs norm 0"),
        ({"norm": 2, "mode": "grid"}, "mode 'grid' counts changed units"),
        ({"mode": "guess"}, "mode 'guess' is unknown; there are prove, grid"),
        ({"values": [0.5]}, "at least two values"),
        ({"values": [0, 2]}, "levels run from 0 to 2, but the domain is"),
        (
            {"free": torch.ones(3, dtype=torch.bool)},
            "free: give one mask of shape (4,), or one for each of the 1 inputs",
        ),
        ({"free": torch.ones(4)}, "must be a bool tensor"),
        ({"frames": [0]}, "norm 0 counts changed frames with frames='all'"),
    ],
)
def test_a_question_without_sense_is_told_what_to_do(options: dict[str, Any], words: str) -> None:
    net = linear([1.0] * 4, 1.0)
    with pytest.raises(hf.errors.BadInput) as error:
        hf.radius(net, torch.ones(1, 4), [0], **{"norm": 0, **options})
    assert words in str(error.value)
