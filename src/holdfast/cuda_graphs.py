"""A GPU is told of a small kernel more slowly than it runs it. What is done many times is recorded once and sent as one.

A record (a CUDA graph) holds the very kernels that were launched, so its results are those of the first time. What cannot be recorded,
because it decides something by the values of its tensors or because there is no room for them, is done as before.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

SMALL = 2**18  # numbers in a tensor, up to which launching takes longer than computing
MOST = 64  # functions that are remembered

Tensors = tuple[Tensor, ...]


class Repeated:
    """A step that changes tensors in place, the same ones every time. The first time it is taken, the second time recorded."""

    def __init__(self, step: Callable[[], None], device: torch.device) -> None:
        self._step, self._device = step, device
        self._times = 0
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> None:
        self._times += 1
        if self._times == 2 and self._device.type == "cuda":
            self._graph = _record_graph(self._step, self._device)
        if self._graph is None:
            self._step()
        else:
            self._graph.replay()


def record_function(name: Hashable, function: Callable[..., Tensors], *tensors: Tensor) -> Tensors:
    """function(*tensors) of tensors of one shape, every row of which, and nothing else, makes a row of each result; the name says which
    function. Recorded when it is asked for about so many rows for the second time: there is room for the next power of two."""
    first = tensors[0]
    if (
        not first.is_cuda
        or max(t.numel() for t in tensors) > SMALL
        or (torch.is_grad_enabled() and any(t.requires_grad for t in tensors))
    ):
        return function(*tensors)
    count, room = len(first), 1 << max(0, len(first) - 1).bit_length()
    key = name, first.device, first.dtype, room, first.shape[1:], len(tensors)
    records = _here.records
    known = records.get(key)
    if known is None:
        records[key] = _Record()
        if len(records) > MOST:
            records.popitem(last=False)
        return function(*tensors)
    records.move_to_end(key)
    if known.graph is None:
        if known.refused:
            return function(*tensors)
        known.inputs = tuple(t.new_zeros((room, *t.shape[1:])) for t in tensors)

        def once() -> None:
            known.outputs = function(*known.inputs)

        known.graph = _record_graph(once, first.device)
        known.refused = known.graph is None
        if known.graph is None:
            return function(*tensors)
    for own, given in zip(known.inputs, tensors, strict=True):
        own[:count].copy_(given)
    known.graph.replay()
    return tuple(t[:count].clone() for t in known.outputs)


@dataclass
class _Record:
    graph: torch.cuda.CUDAGraph | None = None
    inputs: Tensors = ()
    outputs: Tensors = ()
    refused: bool = False


class _Here(threading.local):
    """Of one thread: what it remembers, and its last record, which keeps the memory that all its records share."""

    def __init__(self) -> None:
        self.records: OrderedDict[Hashable, _Record] = OrderedDict()
        self.last: dict[torch.device, tuple[torch.cuda.CUDAGraph, Any]] = {}
        self.failed = False


_here = _Here()


def _record_graph(step: Callable[[], None], device: torch.device) -> torch.cuda.CUDAGraph | None:
    """Records hand their results out before the next one is played, so they may use the same memory. After one that failed torch holds
    that memory to be in use for good, so this thread records nothing more."""
    if _here.failed:
        return None
    graph, now, aside = torch.cuda.CUDAGraph(), torch.cuda.current_stream(device), torch.cuda.Stream(device)
    pool = _here.last[device][1] if device in _here.last else torch.cuda.graph_pool_handle()
    aside.wait_stream(now)
    done = False
    with torch.cuda.stream(aside):
        graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        try:
            step()
            done = True
        except RuntimeError:  # it asked for a value, or there is no room
            pass
        finally:
            try:
                graph.capture_end()
            except RuntimeError:
                done = False
    now.wait_stream(aside)
    if not done:
        _here.failed = True
        return None
    _here.last[device] = graph, pool
    return graph
