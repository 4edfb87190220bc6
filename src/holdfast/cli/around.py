"""What `risk` and `worst` share: a property over a region around each input, as options and as objects."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from holdfast.cli.parse import ModelOptions, norm_option, numbers, one_of, targets_option, whole_numbers
from holdfast.errors import BadInput

if TYPE_CHECKING:
    from torch import Tensor

    from holdfast.cli.reading.data import Data
    from holdfast.cli.run import Built
    from holdfast.network import Network
    from holdfast.property import Property
    from holdfast.question import Asked
    from holdfast.region import Region
    from holdfast.store import Store


@dataclass(frozen=True)
class Around:
    """The options as they stand on the command line."""

    network: ModelOptions
    data: str
    property: str = "robustness"
    radius: float | None = None
    norm: str = "inf"
    epsilon: float = 0.0
    targets: str | None = None
    patch: str | None = None
    shares: str | None = None
    softmax: bool = True
    scale: float | None = None
    limit: int | None = None
    tier: str = "fast"
    seed: int = 0
    batch: int = 128
    seconds: float | None = None

    def asked(self) -> "Asked":
        from holdfast.question import Asked

        return Asked(
            norm=f"{norm_option(self.norm):g}", radius=self.radius, property=self.property, epsilon=self.epsilon, targets=self.targets,
            patch=self.patch, shares=self.shares, softmax=self.softmax,
        )  # fmt: skip

    def read(self) -> "tuple[Network, Data, Network, Region, Property]":
        """The network, the data, and of what is asked: the network (with a function of its outputs where that is the property), the region
        and the property."""
        from holdfast.api.asking import PROPERTIES, property_of, region_of
        from holdfast.cli.reading.data import load_data
        from holdfast.cli.reading.model import load_network
        from holdfast.cli.reading.source import named

        norm, corner, shares = norm_option(self.norm), whole_numbers(self.patch, "patch"), numbers(self.shares, "shares")
        if norm == 0:
            raise BadInput("this measures distances: use a norm p >= 1. To count changed pixels there is 'holdfast radius --norm 0'.")
        given: Any = named(self.property, "property")[0] if ":" in self.property else one_of(self.property, "property", PROPERTIES)
        net = load_network(self.network)
        data = load_data(self.data, net, scale=self.scale).limited(self.limit)
        x = data.stacked(self.data)
        targets = targets_option(self.targets, len(x))
        if targets == "runner-up":
            raise BadInput("targets: name a class; against the runner-up there is --property runner-up.")
        patch = None if corner is None else _square(x, corner)
        region = region_of(net, x, norm=norm, radius=self.radius, patch=patch, shares=shares)
        whole, prop = property_of(net, region, given, y=data.y, targets=targets, epsilon=self.epsilon, softmax=self.softmax)
        return net, data, whole, region, prop


def keep_classes(store: "Store", built: "Built") -> None:
    """What the network says at the inputs and at the witnesses; its classes, also where a score of them was asked for."""
    from holdfast.cli.views.answers import keep_answers

    keep_answers(store, [replace(problem, network=built.net) for problem in built.problems], built.batch or 128)


def _square(x: "Tensor", corner: list[int]) -> "Tensor":
    import torch

    if len(corner) != 3 or x.dim() < 3:
        raise BadInput("patch: give top,left,size of a square, as in 2,2,3, for inputs that are images (..., height, width).")
    top, left, size = corner
    mask = torch.zeros(x.shape, dtype=torch.bool)
    mask[..., max(0, top) : top + size, max(0, left) : left + size] = True
    return mask
