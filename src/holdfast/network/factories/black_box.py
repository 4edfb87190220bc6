"""Networks from functions of numpy arrays."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from holdfast.errors import BadInput
from holdfast.network.adapter import BlackBox
from holdfast.network.factories.assembly import (
    AssemblyOptions,
    NetworkParts,
    OpenedModel,
    assemble,
    check_one_input,
)
from holdfast.network.model_identity import hash_or_note, named_by

if TYPE_CHECKING:
    import numpy as np


def parts_of_callable(
    function: "Callable[[np.ndarray[Any, Any]], Any]",
    options: AssemblyOptions,
    *,
    shape: Sequence[int] | None,
    name: str | None,
    fingerprint: str | Sequence[str | Path] | None,
) -> NetworkParts:
    """The parts of `Network.from_callable`."""
    if not callable(function):
        raise BadInput(f"from_callable needs a function, got {type(function).__name__}.")
    label: str = name or str(getattr(function, "__name__", type(function).__name__))
    check_one_input(function, label)
    digest, hash_notes = hash_or_note(function) if fingerprint is None else (named_by(fingerprint), [])
    return assemble(
        OpenedModel(
            BlackBox(function),
            name=label,
            source="black box",
            device=torch.device("cpu"),
            notes=["black box: no gradients, nothing can be proved", *hash_notes],
            fingerprint=digest,
            shape=shape,
        ),
        options,
    )
