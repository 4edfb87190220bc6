"""Build the region and the property of `hf.risk` and `hf.worst` from their arguments."""

from collections.abc import Callable, Sequence
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from holdfast.errors import BadInput
from holdfast.formatting import shorten, suggest
from holdfast.network import Network
from holdfast.network.scored import append_score
from holdfast.property import Confidence, Custom, Linear, Property, Reach, Robustness, Rule, Tie, Uncertainty
from holdfast.property.base import OneOutput, check_labels, least_likely, next_likely
from holdfast.property.probability import are_probabilities
from holdfast.region import Region

PropertyName = Literal[
    "robustness", "confidence", "runner-up", "targeted", "least", "uncertainty", "tie", "reach"
]
PROPERTIES: tuple[str, ...] = get_args(PropertyName)
PropertyOption = Property | Rule | PropertyName | Callable[[Tensor], Tensor]


def check_property_name(given: object) -> None:
    """Raise unless this is a property, a rule, a function of the outputs, or the name of a property."""
    if isinstance(given, Property | Rule) or (callable(given) and not isinstance(given, type)):
        return
    if isinstance(given, type):
        raise BadInput(f"property: {given.__name__} is a class; give an instance, as in hf.Robustness(y).")
    if isinstance(given, Tensor) or (
        isinstance(given, list | tuple | np.ndarray) and len(given) and isinstance(given[0], int | np.integer)
    ):
        raise BadInput(
            "property: these are classes. That inputs keep them is hf.Robustness(torch.as_tensor(y)); where a "
            "property is given by its name, as in 'confidence', the classes are y=."
        )
    if not (isinstance(given, str) and given in PROPERTIES):
        raise BadInput(
            f"property {shorten(repr(given), 60)} is unknown; there are {', '.join(PROPERTIES)}, a Property, "
            "or your own function of the "
            f"outputs.{suggest(given, PROPERTIES)}"
        )


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
        return net, given.with_spread(net.output_spread).around(net(region.centre), y)
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
