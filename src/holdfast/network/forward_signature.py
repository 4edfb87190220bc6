"""What the signature of a model's forward function says about its inputs."""

import inspect
import re
from collections.abc import Callable
from typing import Any

from torch import nn

from holdfast.errors import BadInput
from holdfast.network.tokens import OfVectors

# Parameter names that mean the lengths of the sequences of a batch.
LENGTHS = re.compile(r"(^|_)(length|lengths|lens?)(_|$)|^length")


def check_one_input(function: Callable[..., Any], name: str, *, lengths: bool = False) -> None:
    """Raise BadInput unless the function takes one tensor, or with lengths=True one tensor and the lengths of
    its sequences."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # C functions and TorchScript may have no signature
        return
    kinds = inspect.Parameter
    positional = [p for p in parameters if p.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)]
    needed = [
        p
        for p in parameters
        if p.default is kinds.empty and p.kind not in (kinds.VAR_POSITIONAL, kinds.VAR_KEYWORD)
    ]
    if not positional and not any(p.kind is kinds.VAR_POSITIONAL for p in parameters):
        raise BadInput(
            f"{name} takes no positional argument; holdfast calls it with one tensor, (batch, *shape)."
        )
    others = [p for p in needed if p not in positional[:1]]
    if lengths and len(positional) > 1 and positional[1] in others and LENGTHS.search(positional[1].name):
        others.remove(positional[1])
    if others:
        names = [p.name for p in (*positional[:1], *others)]
        raise BadInput(
            f"{name} takes {len(names)} inputs ({', '.join(names)}); holdfast gives it one tensor, the "
            f"perturbed input. Fix the others by constants={{{names[-1]!r}: value}} (--constant "
            f"{names[-1]}=0.5), or perturb several together by inputs={{{names[0]!r}: size, {names[-1]!r}: "
            f"size}} (--inputs)."
        )


def takes_lengths(model: nn.Module) -> bool:
    """Whether the second required parameter of forward is the lengths of the sequences."""
    whole = model.behind if isinstance(model, OfVectors) else model
    parameters = list(inspect.signature(whole.forward).parameters.values())
    return (
        len(parameters) > 1
        and parameters[1].default is inspect.Parameter.empty
        and bool(LENGTHS.search(parameters[1].name))
    )
