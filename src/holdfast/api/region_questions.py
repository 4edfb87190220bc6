"""Build the region and the property of `hf.risk` and `hf.worst` from their arguments."""

import difflib
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from holdfast.errors import BadInput
from holdfast.formatting import shorten
from holdfast.network import Network
from holdfast.network.scored import append_score
from holdfast.property import Confidence, Custom, Linear, Property, Reach, Robustness, Rule, Tie, Uncertainty
from holdfast.property.base import OneOutput, check_labels, least_likely, next_likely
from holdfast.property.probability import are_probabilities
from holdfast.region import Ball, Drift, Features, Patch, Region
from holdfast.region.features import feature_shares

PropertyName = Literal[
    "robustness", "confidence", "runner-up", "targeted", "least", "uncertainty", "tie", "reach"
]
PROPERTIES: tuple[str, ...] = get_args(PropertyName)
BOX_NORM = (
    "with shares every feature moves by its own share: that is a box, measured in the maximum norm; "
    "leave the norm out."
)
PropertyOption = Property | Rule | PropertyName | Callable[[Tensor], Tensor]


def check_property_name(given: object) -> None:
    """Raise unless this is a property, a rule, a function of the outputs, or the name of a property."""
    if isinstance(given, Property | Rule) or (callable(given) and not isinstance(given, type)):
        return
    if isinstance(given, type):
        raise BadInput(f"property: {given.__name__} is a class; give an instance, as in hf.Robustness(y).")
    if not (isinstance(given, str) and given in PROPERTIES):
        near = difflib.get_close_matches(str(given), PROPERTIES, 1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise BadInput(
            f"property {shorten(repr(given), 60)} is unknown; there are {', '.join(PROPERTIES)}, a Property, "
            "or your own function of the "
            f"outputs.{hint}"
        )


def region_of(
    net: Network,
    x: Any,
    *,
    norm: float = math.inf,
    radius: float | Tensor | None = None,
    patch: Tensor | None = None,
    shares: Sequence[float] | Sequence[Sequence[float]] | Tensor | None = None,
    drift: bool = False,
) -> Region:
    """Return the perturbation set around each input."""
    if patch is not None and (shares is not None or drift):
        raise BadInput(
            f"patch and {'drift' if drift else 'shares'} both say where the input may move; give one."
        )
    rows = torch.as_tensor(net.inputs(x, alike=True))
    centre = net.exactly(rows) if rows.is_floating_point() else net.embed(rows)
    if radius is None and patch is None:
        raise BadInput("how far may the input move? Give a radius (radius=0.05, --radius), or a region.")
    size = torch.as_tensor(math.inf if radius is None else radius, dtype=torch.float64)
    if not bool((size > 0).all()):
        raise BadInput(
            f"radius {radius}: the ball is empty or contains only the input; give a positive number."
        )
    if patch is not None:
        if not math.isinf(norm):
            raise BadInput("a patch uses the maximum norm: leave the norm out.")
        mask = torch.as_tensor(patch)
        if mask.shape not in (centre.shape, centre.shape[1:]):
            raise BadInput(
                f"patch: the mask has shape {tuple(mask.shape)}, expected {tuple(centre.shape[1:])}: a "
                "flag for each feature."
            )
        if not bool(mask.any()):
            raise BadInput("patch: the mask selects no feature, or the square lies outside the images.")
        free = Patch(centre, size, mask.expand(centre.shape).to(net.device), net.domain)
        whole = torch.minimum(free.radius, free.limit())
        if bool(whole.isinf().any()):
            raise BadInput(
                "patch: the domain is unbounded, so a patch without a radius could take any value; give a "
                "radius or a domain."
            )
        return free.at(whole)
    if drift:
        each = None if shares is None else feature_shares(shares, centre)[:, 0]
        return Drift(centre, size, norm, net.domain, shares=each)
    if shares is None:
        return Ball(centre, size, norm, net.domain)
    if not math.isinf(norm):
        raise BadInput(BOX_NORM)
    return Features(centre, size, norm, net.domain, shares=feature_shares(shares, centre))


def classes_of(values: Tensor | Sequence[int] | Sequence[Sequence[int]], count: int, what: str) -> Tensor:
    """Return classes as (count,) int64, one for each input."""
    try:
        classes = torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise BadInput(f"{what} must be integers, one class for each input ({error}).") from error
    if classes.dim() != 1 or len(classes) != count:
        raise BadInput(
            f"{what} have shape {tuple(classes.shape)}, expected ({count},): one class for each input."
        )
    if classes.is_floating_point() or classes.dtype == torch.bool:
        raise BadInput(
            f"{what} must be integers, got {classes.dtype}. A network that forecasts numbers has no "
            "classes: ask how long it stays near "
            f"its forecast (property=hf.Within('10%'), --within 10%)."
        )
    return classes.long()


def property_of(
    net: Network,
    region: Region,
    given: PropertyOption,
    *,
    y: Tensor | Sequence[int] | None = None,
    targets: Tensor | Sequence[int] | int | None = None,
    epsilon: float = 0.0,
    toward: Tensor | None = None,
    softmax: bool = True,
) -> tuple[Network, Property]:
    """Return the property with its network. A function of the outputs becomes part of the network, so that
    bounds apply to it.
    """
    if isinstance(given, Property):
        return net, given
    if isinstance(given, Rule):
        net.outputs_for(region.centre)
        return net, given.around(net(region.centre), y)
    if callable(given):
        own = Custom(given)
        own.check(len(region), net.outputs_for(region.centre))
        whole = append_score(net, given, region.centre)
        return (net, own) if whole is None else (whole, Linear.of([1.0], batch=len(region)))
    check_property_name(given)
    assert isinstance(given, str)
    net.outputs_for(region.centre)
    outputs = net(region.centre)
    if outputs.shape[-1] < 2:
        raise OneOutput(outputs)
    label = outputs.argmax(-1) if y is None else classes_of(y, len(region), "labels").to(net.device)
    if softmax and given != "robustness" and bool(are_probabilities(outputs).all()):
        raise BadInput("the network's outputs are probabilities already: give softmax=False (--no-softmax).")
    aim = None if targets is None else torch.as_tensor(targets, device=net.device).expand(len(region)).long()
    if aim is None and given in ("targeted", "reach"):
        raise BadInput(f"property {given!r} needs a class: name it (targets=, --targets).")
    if aim is not None and given not in ("targeted", "reach"):
        raise BadInput(f"targets have no meaning for property {given!r}; use targeted or reach.")
    if toward is not None and given != "uncertainty":
        raise BadInput(f"toward has no meaning for property {given!r}; it is a distribution for uncertainty.")
    made: dict[str, Callable[[], Property]] = {
        "robustness": lambda: Robustness(label),
        "confidence": lambda: Confidence(label, None, epsilon, softmax),
        "runner-up": lambda: Confidence(label, next_likely(outputs, label), epsilon, softmax),
        "targeted": lambda: Confidence(label, aim, epsilon, softmax),
        "least": lambda: Confidence(label, least_likely(outputs, label), epsilon, softmax),
        "uncertainty": lambda: Uncertainty.around(
            outputs, None if toward is None else toward.expand(outputs.shape), epsilon
        ),
        "tie": lambda: Tie(label, epsilon, softmax),
        "reach": lambda: Reach.rise(outputs, label if aim is None else aim, epsilon, softmax),
    }
    for what, classes in (("label", label), ("target", aim)):
        if classes is not None:
            check_labels(classes, len(region), outputs.shape[-1], what)
    return net, made[given]()
