"""Who asks the model, where that is not this very process. Networks hand their questions over; `execution.asking` answers them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from torch import Tensor

Ask = Callable[[Any, str, Tensor], Tensor]  # a network, the name of its method, inputs -> outputs

_ask: ContextVar[Ask | None] = ContextVar("ask", default=None)


def delegate() -> Ask | None:
    """None: the network asks the model itself."""
    return _ask.get()


@contextmanager
def delegate_queries(ask: Ask | None) -> Iterator[None]:
    """Inside, every network hands its inputs to `ask`; None: they ask their models themselves."""
    before = _ask.set(ask)
    try:
        yield
    finally:
        _ask.reset(before)
