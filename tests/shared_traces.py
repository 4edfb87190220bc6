"""Traces that tests share: a network that differs from one of an earlier test only by its weights is not traced again.

Tracing by torch.export takes 60 to 100 ms of a test whose bounds take less, and the same small networks occur in many
tests. The program of a module depends on everything that `hash_callable` covers (buffers, attributes and code), but not
on the values of its parameters, because torch.export traces with tensors that have none. So the hash here replaces
each parameter by its shape and its number, and a module with the hash of an earlier one gets that one's program with
its own parameters. A module of which the hash cannot read everything is traced every time.
"""

import copy
from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.network import network
from holdfast.network.callable_fingerprint import NotHashableError, _Walk
from holdfast.network.fingerprint import of_text
from holdfast.network.trace import replace_weights

# Folders and modules whose tests are about tracing itself: they trace every network.
OWN_TRACES = ("network", "adversary", "test_process_state.py", "test_time_limit.py")
MOST_PROGRAMS = 500  # Programs of small networks, a few hundred kB each (chosen by hand).

export = network.export
programs: "OrderedDict[tuple[Any, ...], torch.export.ExportedProgram]" = OrderedDict()


class StructureWalk(_Walk):
    """A traversal that reads everything but the values of parameters."""

    def __init__(self) -> None:
        super().__init__()
        self._parameters_seen = 0

    def _tensor(self, value: Tensor, kind: type, where: str) -> str:
        if kind is not nn.Parameter or value.layout is not torch.strided or vars(value):
            return super()._tensor(value, kind, where)
        self._parameters_seen += (
            1  # A parameter with two names has one number, two equal parameters have two.
        )
        described = (tuple(value.shape), value.stride(), value.dtype, value.device, value.requires_grad)
        return of_text(f"parameter {self._parameters_seen} {described}")


def structure_of(module: nn.Module) -> str | None:
    """The hash of everything in a module except the values of its parameters; None if a part cannot be read."""
    walk = StructureWalk()
    try:
        digest = walk.of(module, "model")
        walk.check_names()
    except (NotHashableError, RecursionError):
        return None
    return digest


def export_once(module: nn.Module, example: Tensor) -> torch.export.ExportedProgram:
    """`export`, or the program of a module with the same structure, with the parameters of this one."""
    structure = structure_of(module)
    if structure is None:
        return export(module, example)
    key = structure, tuple(example.shape), example.dtype, example.device
    if key not in programs:
        programs[key] = export(module, example)
        if len(programs) > MOST_PROGRAMS:
            programs.popitem(last=False)
        return programs[key]
    programs.move_to_end(key)
    return replace_weights(programs[key], copy.deepcopy(module))
