"""Tensors that record the meaning of their axes."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor
from torch.utils._pytree import tree_flatten

if TYPE_CHECKING:
    from holdfast.monitor.structure.structure import Reading

Axis = Literal["batch", "time"] | None  # None: another axis, of fixed size
# outputs: of the layer, one for each time step. state: after the last time step.
Stage = Literal["constant", "entry", "outputs", "state"]


class UnreadableError(Exception):
    """The reading failed: the network stays a black box. Never leaves this package."""


@dataclass(frozen=True)
class Mark:
    """What a tensor depends on: its entry at [row, step] on that element or state only."""

    stage: Stage
    axes: tuple[Axis, ...]
    affine: bool = False  # an affine function of the state
    plain: bool = False  # the elements themselves, unchanged


class Marked(Tensor):
    """A tensor of the user's code with its mark; `raw` is the plain tensor."""

    raw: Tensor
    mark: Mark
    reading: "Reading"

    @staticmethod
    def of(raw: Tensor, mark: Mark, reading: "Reading") -> "Marked":
        made: Marked = Tensor._make_subclass(Marked, raw)
        made.raw, made.mark, made.reading = raw, mark, reading
        return made

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """End the reading: it did not intercept this call (compiled code, extensions)."""
        for x in tree_flatten((args, kwargs))[0]:
            if isinstance(x, Marked):
                x.reading.end("hides from the reading")
        raise UnreadableError("hides from the reading")

    __torch_dispatch__ = __torch_function__  # type: ignore[assignment]


def raw(x: Any) -> Any:
    return x.raw if isinstance(x, Marked) else x
