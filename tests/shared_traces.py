"""Traces that tests share: a network that equals one of an earlier test is not traced again.

Tracing by torch.export takes 60 to 100 ms of a test whose bounds take less, and the same small networks, with the same
seed, occur in many tests. Two modules are equal if `hash_callable` gives them one hash: it covers weights, buffers,
attributes and code, and reports what it cannot read; such modules are traced every time. Programs are never changed
in place, so networks may share one (`replace_weights` copies).
"""

from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.network import network
from holdfast.network.callable_fingerprint import hash_callable

# Folders whose tests are about tracing itself, or whose models change while they run: they trace every network.
# "tests" are the modules that lie in no package, such as test_process_state.py.
OWN_TRACES = ("network", "adversary", "execution", "hardening", "tests")
MOST_PROGRAMS = 500  # Programs of small networks, a few hundred kB each (chosen by hand).

export = network.export
programs: "OrderedDict[tuple[Any, ...], torch.export.ExportedProgram]" = OrderedDict()


def export_once(module: nn.Module, example: Tensor) -> torch.export.ExportedProgram:
    """`export`, or the program of an equal module that was traced before."""
    digest, unreadable = hash_callable(module)
    if unreadable:
        return export(module, example)
    key = digest, tuple(example.shape), example.dtype, example.device
    if key not in programs:
        programs[key] = export(module, example)
        if len(programs) > MOST_PROGRAMS:
            programs.popitem(last=False)
    programs.move_to_end(key)
    return programs[key]
