"""Delegation of model queries to another process: networks pass their queries on, and `execution.asking`
answers them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from torch import Tensor

# A network, the name of its method, inputs -> outputs.
Ask = Callable[[Any, str, Tensor], Tensor]

_ask: ContextVar[Ask | None] = ContextVar("ask", default=None)


def delegate() -> Ask | None:
    """The function that answers queries in this context.

    Returns None if networks evaluate their models themselves.
    """
    return _ask.get()


@contextmanager
def delegate_queries(ask: Ask | None) -> Iterator[None]:
    """Inside the block, all networks pass their queries to `ask`.

    With None they evaluate their models themselves.
    """
    before = _ask.set(ask)
    try:
        yield
    finally:
        _ask.reset(before)
