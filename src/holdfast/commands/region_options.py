"""The options that `risk` and `worst` share: a property over a region around each input."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from holdfast.commands import options
from holdfast.commands.parse import norm_option, numbers, one_of, rule_option, targets_option, whole_numbers
from holdfast.errors import BadInput
from holdfast.formatting import exact_text

if TYPE_CHECKING:
    from torch import Tensor

    from holdfast.network import Network
    from holdfast.property import Property
    from holdfast.question import Request
    from holdfast.reading.data import Data
    from holdfast.region import Region


@dataclass(frozen=True)
class RegionOptions(options.DataOptions):
    """The options as typed."""

    name: ClassVar[str]

    network: options.ModelOptions
    data: options.DataOption
    property: options.Property = "robustness"
    radius: options.RadiusOption = None
    norm: options.Norm = "inf"
    within: options.Within = None
    threshold: options.Threshold = None
    outputs: options.Outputs = None
    quantiles: options.Quantiles = None
    epsilon: options.Epsilon = 0.0
    targets: options.Targets = None
    patch: options.PatchOption = None
    shares: options.Shares = None
    drift: options.Drift = False
    softmax: options.Softmax = True
    scale: options.Scale = None
    limit: options.Limit = None
    tier: options.Tier = "fast"
    toward: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBERS",
            help="With --property uncertainty: the distribution from which the KL divergence is measured, one "
            "probability for each class, as in 0.2,0.3,0.5. Default: uniform.",
        ),
    ] = None
    seed: options.Seed = 0
    batch: options.Batch = None
    seconds: options.Seconds = None

    def to_request(self) -> "Request":
        from holdfast.question import Request

        ruled = (
            "within"
            if self.within is not None
            else "threshold"
            if self.threshold is not None
            else self.property
        )
        if self.toward is not None:
            ruled = f"{ruled} toward {self.toward}"
        return Request.of_command(self.name, self, norm=exact_text(norm_option(self.norm)), property=ruled)

    def read_inputs(self) -> "tuple[Network, Data, Network, Region, Property]":
        """The network, the data, the network to search, the region and the property.

        The network to search includes the function of the outputs if the property is one.
        """
        from holdfast.api.perturbation import Perturbation
        from holdfast.api.region_questions import PropertyName, property_of
        from holdfast.commands.reading.model_and_data import load_both
        from holdfast.reading.source import import_named

        if self.toward is not None and self.property != "uncertainty":
            raise BadInput(
                f"--toward has no meaning for --property {self.property}; it is a distribution for uncertainty."
            )
        numbers(self.toward, "toward")
        norm, corner, shares = (
            norm_option(self.norm),
            whole_numbers(self.patch, "patch"),
            numbers(self.shares, "shares"),
        )
        if norm == 0:
            raise BadInput(
                "this command measures distances: use a norm p >= 1. To count changed pixels, use "
                "'holdfast radius --norm 0'."
            )
        given: Any = (
            import_named(self.property, "property")[0]
            if ":" in self.property
            else one_of(self.property, "property", PropertyName)
        )
        rule = rule_option(self.within, self.threshold, self.outputs, self.quantiles)
        if rule is not None and self.property != "robustness":
            raise BadInput(
                f"--property {self.property} and --{self.to_request().property} are two properties: "
                "use one of them."
            )
        net, data = load_both(
            self.network, self.data, scale=self.scale, limit=self.limit, how=self, labels=rule is None
        )
        x = data.stack_inputs(self.data)
        targets = targets_option(self.targets, data)
        if targets == "runner-up":
            raise BadInput("targets: name a class; for the runner-up use --property runner-up.")
        patch = None if corner is None else _square(x, corner)
        moves = Perturbation(norm=norm, radius=self.radius, patch=patch, shares=shares, drift=self.drift)
        region = moves.region_around(net, x)
        whole, prop = property_of(
            net,
            region,
            rule or given,
            y=data.y if data.labelled else None,
            targets=targets,
            epsilon=self.epsilon,
            toward=_distribution(self.toward, region.centre, net),
            softmax=self.softmax,
        )
        return net, data, whole, region, prop


def _distribution(text: str | None, x: "Tensor", net: "Network") -> "Tensor | None":
    """--toward: (1, outputs) float64."""
    import torch

    found = numbers(text, "toward")
    if found is None:
        return None
    outputs = net.outputs_for(x)
    if len(found) != outputs:
        raise BadInput(
            f"toward {text!r} has {len(found)} numbers, and {net.name} has {outputs} outputs: give one "
            "probability for each."
        )
    return torch.tensor([found], dtype=torch.float64)


def _square(x: "Tensor", corner: list[int]) -> "Tensor":
    import torch

    if len(corner) != 3 or x.dim() < 3:
        raise BadInput(
            "patch: give top,left,size of a square, as in 2,2,3, for inputs that are images (..., height, "
            "width)."
        )
    top, left, size = corner
    mask = torch.zeros(x.shape, dtype=torch.bool)
    mask[..., max(0, top) : top + size, max(0, left) : left + size] = True
    return mask
