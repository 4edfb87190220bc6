"""CUDA graphs: record a function of small tensors once and replay it as one launch.

Launching a small kernel takes longer than running it. A CUDA graph holds the same kernels that were launched,
so its results equal those of the first call. A function that cannot be recorded, because it branches on
tensor values or memory is short, runs without recording.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

# Elements of a tensor up to which the launch dominates the time (benchmarks.certify.gpu, one H200).
SMALL = 2**18
MOST = 64  # Recorded functions that one thread keeps; chosen by hand.

Tensors = tuple[Tensor, ...]


class RecordedStep:
    """A step that modifies the same tensors in place at each call. The second call is recorded, later ones
    replay it.
    """

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
    """Return function(*tensors), from a CUDA graph after the first call.

    Args:
        name: Identifies the function; equal names must mean equal functions.
        function: Acts on each row separately: row i of each result depends on row i of the tensors only.
        tensors: All of the same shape. The graph is recorded for the next power of two of the number of rows.
    """
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
    """The records of one thread. The last graph keeps the memory pool that all its graphs share."""

    def __init__(self) -> None:
        self.records: OrderedDict[Hashable, _Record] = OrderedDict()
        self.last: dict[torch.device, tuple[torch.cuda.CUDAGraph, Any]] = {}
        self.failed = False


_here = _Here()


def _record_graph(step: Callable[[], None], device: torch.device) -> torch.cuda.CUDAGraph | None:
    """Record the step, or return None if it cannot be recorded.

    Graphs share one memory pool, because the results of one are copied before the next is replayed. After a
    failed recording torch keeps the pool marked as in use, so the thread records nothing more.
    """
    if _here.failed:
        return None
    graph = torch.cuda.CUDAGraph()
    current = torch.cuda.current_stream(device)
    side = torch.cuda.Stream(device)
    pool = _here.last[device][1] if device in _here.last else torch.cuda.graph_pool_handle()
    side.wait_stream(current)
    done = False
    with torch.cuda.stream(side):
        graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        try:
            step()
            done = True
        except RuntimeError:  # it read a value on the CPU, or memory is short
            pass
        finally:
            try:
                graph.capture_end()
            except RuntimeError:
                done = False
    current.wait_stream(side)
    if not done:
        _here.failed = True
        return None
    _here.last[device] = graph, pool
    return graph
