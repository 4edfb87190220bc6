"""A module with several inputs as one of a single input: constants fill some, a flat input holds the others.

With inputs of n_1, n_2, ... numbers, the new input has n_1 + n_2 + ... numbers: those of the first input row by
row, then those of the second, and so on. With constants alone the remaining input keeps its shape.
"""

import inspect
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.errors import BadInput
from holdfast.network.flat_tensors import FlatTensor

Sizes = Mapping[str, int | Sequence[int]]


class SeveralInputs(nn.Module):
    """The module as a function of one tensor.

    Attributes:
        tensors: the inputs that x holds; none: x is the only input without a constant, in its own shape.
        free: the name of that input.
        as_dict: the module takes one dict of all inputs.
    """

    def __init__(
        self,
        model: nn.Module,
        tensors: Sequence[FlatTensor],
        constants: Mapping[str, Tensor],
        free: str,
        *,
        as_dict: bool,
    ) -> None:
        super().__init__()
        self.model, self.tensors, self.free, self.as_dict = model, tuple(tensors), free, as_dict
        self.constant_names = tuple(constants)
        for k, value in enumerate(constants.values()):
            self.register_buffer(f"constant_{k}", value)

    def forward(self, x: Tensor) -> Any:
        given: dict[str, Tensor] = {}
        begin = 0
        for tensor in self.tensors:
            given[tensor.name] = x[:, begin : begin + tensor.size].reshape(-1, *tensor.shape)
            begin += tensor.size
        if not self.tensors:
            given[self.free] = x
        for k, name in enumerate(self.constant_names):
            value = getattr(self, f"constant_{k}")
            given[name] = value.expand(x.shape[0], *value.shape)
        return self.model(given) if self.as_dict else self.model(**given)


def join_inputs(
    module: nn.Module, inputs: Sizes | None, constants: Mapping[str, Any] | None, label: str
) -> tuple[nn.Module, tuple[FlatTensor, ...]]:
    """The module as one of a single input, and the inputs that it holds; BadInput if the names do not fit."""
    parameters = [
        one
        for one in inspect.signature(module.forward).parameters.values()
        if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)
    ]
    names = [one.name for one in parameters]
    needed = [one.name for one in parameters if one.default is one.empty]
    tensors = flat_tensors(inputs, "inputs")
    fixed = {name: _number_array(name, value) for name, value in (constants or {}).items()}
    given = [*(tensor.name for tensor in tensors), *fixed]
    twice = next((name for name in given if given.count(name) > 1), None)
    if twice is not None:
        raise BadInput(f"{label}: {twice!r} is both among inputs and constants.")
    unknown = next((name for name in given if name not in names), None)
    as_dict = unknown is not None and len(needed) == 1 and not set(given) & set(names)
    if as_dict:
        if not tensors:
            raise BadInput(
                f"{label} takes a dict ({needed[0]}): name the inputs that are perturbed with their sizes, as in "
                'inputs={"state": 8}.'
            )
        return SeveralInputs(module, tensors, fixed, "", as_dict=True), tensors
    if unknown is not None:
        raise BadInput(f"{label} has no input {unknown!r}; it has {', '.join(names)}.")
    missing = [name for name in needed if name not in given]
    if tensors and missing:
        raise BadInput(
            f"{label} also takes {', '.join(missing)}: add it to inputs, or give it a value in constants."
        )
    if not tensors:
        free = missing or [name for name in names if name not in given][:1]
        if len(free) != 1:
            raise BadInput(
                f"{label} takes {', '.join(names)}, of which {', '.join(free) or 'none'} would be perturbed. Give all "
                'but one a value in constants, or name the perturbed ones with their sizes: inputs={"state": 8}.'
            )
        return SeveralInputs(module, (), fixed, free[0], as_dict=False), ()
    return SeveralInputs(module, tensors, fixed, "", as_dict=False), tensors


def flat_tensors(inputs: Sizes | None, what: str) -> tuple[FlatTensor, ...]:
    """The inputs with their shapes, without the batch axis."""
    if inputs is None:
        return ()
    if not isinstance(inputs, Mapping) or not inputs:
        raise BadInput(f'{what}: give the size of each input by its name, as in {{"state": 8, "goal": 3}}.')
    found = []
    for name, size in inputs.items():
        shape = (size,) if isinstance(size, int) else tuple(size)
        if not shape or not all(isinstance(one, int) and one > 0 for one in shape):
            raise BadInput(
                f"{what}: {name!r} needs a size such as 8, or a shape such as (3, 32, 32), got {size!r}."
            )
        found.append(FlatTensor(str(name), shape))
    return tuple(found)


def join_values(tensors: Sequence[FlatTensor], values: Mapping[str, Any], what: str) -> Tensor:
    """Arrays (batch, *shape) of each input as one tensor (batch, numbers)."""
    missing = next((tensor.name for tensor in tensors if tensor.name not in values), None)
    names = ", ".join(tensor.name for tensor in tensors)
    if missing is not None:
        raise BadInput(f"{what}: there is no {missing!r}; the network takes {names}.")
    parts = []
    for tensor in tensors:
        part = torch.as_tensor(values[tensor.name])
        if tuple(part.shape[1:]) != tensor.shape:
            raise BadInput(
                f"{what}: {tensor.name!r} has shape {tuple(part.shape)}; expected (inputs, "
                f"{', '.join(map(str, tensor.shape))})."
            )
        parts.append(part.flatten(1))
    counts = {len(part) for part in parts}
    if len(counts) > 1:
        raise BadInput(
            f"{what}: {names} hold different numbers of inputs ({', '.join(map(str, sorted(counts)))})."
        )
    return torch.cat(parts, 1)


def count_numbers(tensors: Sequence[FlatTensor]) -> int:
    """The numbers of the flat input."""
    return sum(math.prod(tensor.shape) for tensor in tensors)


def _number_array(name: str, value: Any) -> Tensor:
    try:
        found = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise BadInput(f"constants: {name!r} must be a number or an array of numbers ({error}).") from error
    return found.to(torch.get_default_dtype()) if found.dtype == torch.float64 else found
