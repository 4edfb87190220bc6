"""Temporary changes to state that all threads of a process share: what torch logs, prints and warns of,
cuDNN's settings, BLAS threads.

If two threads save, change and restore the same value, the second saves what the first has set, and restores
that last. Here a change either affects only the thread that requests it, or is registered: the first
registration saves the user's settings, and the last one to end restores them.
"""

import contextlib
import logging
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn

_lock = threading.Lock()


_random_numbers = threading.RLock()


def _renew_locks() -> None:
    """Give a forked child new locks: the parent's may be held by threads that the child does not have."""
    global _lock, _random_numbers
    _lock, _random_numbers = threading.Lock(), threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)


# ---- for one thread only


class _InThread:
    """A message pattern for a warning filter that matches every message of one thread."""

    # Matches nothing; scikit-learn copies the patterns of all filters into the threads that it starts.
    pattern = "(?!)"

    def __init__(self) -> None:
        self._thread = threading.get_ident()

    def match(self, text: str) -> bool:
        return threading.get_ident() == self._thread


@contextlib.contextmanager
def ignored_warnings(category: type[Warning] = Warning, *, every_thread: bool = False) -> Iterator[None]:
    """Ignore the warnings of this thread (or of every thread) without touching filters that other threads
    change meanwhile.

    One filter is inserted and removed; `warnings.catch_warnings` would restore all filters.
    """
    entry = ("ignore", None if every_thread else _InThread(), category, None, 0)
    held: Any = warnings.filters
    held.insert(0, entry)
    try:
        yield
    finally:
        lists: list[Any] = [held] if warnings.filters is held else [held, warnings.filters]
        for filters in lists:  # another thread may be inside catch_warnings, which works on a copy
            filters[:] = [other for other in filters if other is not entry]


class _OthersThan(logging.Filter):
    """Passes records of other threads, and records that are not torch's."""

    def __init__(self) -> None:
        super().__init__()
        self._thread = threading.get_ident()

    def filter(self, record: logging.LogRecord) -> bool:
        return record.thread != self._thread or record.name.partition(".")[0] != "torch"


@contextlib.contextmanager
def ignored_torch_logs() -> Iterator[None]:
    """Drop torch's log records of this thread before any handler sees them."""
    loggers = [
        logger
        for name, logger in list(logging.root.manager.loggerDict.items())
        if name.partition(".")[0] == "torch"
    ]
    held = [logging.root, *(logger for logger in loggers if isinstance(logger, logging.Logger))]
    handlers = {id(handler): handler for logger in held for handler in logger.handlers}
    if logging.lastResort is not None:
        handlers[id(logging.lastResort)] = logging.lastResort
    own = _OthersThan()
    for handler in handlers.values():
        handler.addFilter(own)
    try:
        yield
    finally:
        for handler in handlers.values():
            handler.removeFilter(own)


class _StandardError:
    """sys.stderr that drops the output of the threads listed in `silent`."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.silent: list[int] = []

    def write(self, text: str) -> int:
        return (
            len(text)
            if threading.get_ident() in self.silent or self.stream is None
            else int(self.stream.write(text))
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


_standard_error: _StandardError | None = None


@contextlib.contextmanager
def ignored_standard_error() -> Iterator[None]:
    """Drop this thread's output to sys.stderr."""
    global _standard_error
    thread = threading.get_ident()
    with _lock:
        if _standard_error is None or sys.stderr is not _standard_error:
            _standard_error = _StandardError(sys.stderr)
            sys.stderr = _standard_error
        own = _standard_error
        own.silent.append(thread)
    try:
        yield
    finally:
        with _lock:
            own.silent.remove(thread)
            if not own.silent and sys.stderr is own:
                sys.stderr = own.stream
            if not own.silent and _standard_error is own:
                _standard_error = None


@contextlib.contextmanager
def silent_torch() -> Iterator[None]:
    """Drop this thread's warnings, torch's log records of it, and its output to sys.stderr."""
    with ignored_warnings(), ignored_torch_logs(), ignored_standard_error():
        yield


# ---- for all threads, one at a time


@contextlib.contextmanager
def own_random_numbers(seed: int, module: nn.Module | None = None) -> Iterator[None]:
    """Seed torch's CPU generator and those of the GPUs that hold the module, and restore them at the end.

    For code that does not accept a generator. torch.manual_seed would seed all GPUs without restoring them.
    """
    on_gpus = [] if module is None else [value.device for value in module.parameters() if value.is_cuda]
    devices = sorted(
        {torch.cuda.current_device() if device.index is None else device.index for device in on_gpus}
    )
    with _random_numbers, torch.random.fork_rng(devices=devices):
        torch.default_generator.manual_seed(seed)
        for device in devices:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield


# ---- for all threads, restored when the last one is done


class Registered:
    """Process-wide settings that several threads may request at once.

    apply    applies all open requests, those of each thread from the outermost to the innermost; returns the
             previous settings.
    restore  restores what `apply` returned.
    """

    def __init__(
        self, apply: Callable[[Mapping[int, Sequence[Any]]], Any], restore: Callable[[Any], object]
    ) -> None:
        self._apply, self._restore = apply, restore
        self._open: dict[int, list[Any]] = {}
        self._before: Any = None

    @contextlib.contextmanager
    def __call__(self, request: Any) -> Iterator[None]:
        thread = threading.get_ident()
        with _lock:
            first = not self._open
            self._open.setdefault(thread, []).append(request)
            before = self._apply(self._open)
            if first:
                self._before = before
        try:
            yield
        finally:
            with _lock:
                self._open[thread].pop()
                if not self._open[thread]:
                    del self._open[thread]
                if self._open:
                    self._apply(self._open)
                else:
                    self._restore(self._before)


# ---- full float32 precision of cuDNN wherever a model is evaluated


def _set_flags(requests: Mapping[int, Sequence[tuple[bool, bool]]]) -> Any:
    """Set cuDNN's flags to the innermost request of each thread.

    Between threads, the more restrictive request wins.
    """
    innermost = [own[-1] for own in requests.values()]
    return torch.backends.cudnn.set_flags(
        _enabled=all(enabled for enabled, _ in innermost),
        _benchmark=False,
        _deterministic=False,
        _allow_tf32=all(allow_tf32 for _, allow_tf32 in innermost),
    )


_cudnn = Registered(_set_flags, lambda before: torch.backends.cudnn.set_flags(*before))


def cudnn_flags(*, enabled: bool, allow_tf32: bool = True) -> AbstractContextManager[None]:
    """torch.backends.cudnn.flags for concurrent threads: the user's settings are restored when the last one
    leaves the context."""
    return _cudnn((enabled, allow_tf32))


def without_tf32() -> AbstractContextManager[None]:
    """cuDNN without TF32, which it uses by default.

    TF32 products have ten bits of mantissa. They would blur the decision boundary, and an input would have
    other outputs in a batch, where cuDNN uses TF32, than alone, where it does not.
    """
    return cudnn_flags(enabled=True, allow_tf32=False)
