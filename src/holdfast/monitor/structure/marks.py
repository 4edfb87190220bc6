"""Tensors that know what each of their axes is."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor
from torch.utils._pytree import tree_flatten

if TYPE_CHECKING:
    from holdfast.monitor.structure.structure import Reading

Axis = Literal["batch", "time"] | None  # None: any other, of a fixed size
Stage = Literal[
    "constant", "entry", "outputs", "state"
]  # outputs: of the layer, one for each place; state: behind the last place


class UnreadableError(Exception):
    """The reading ended: the network stays a black box. Never leaves this package."""


@dataclass(frozen=True)
class Mark:
    """What is known about a tensor: at [row, place] it depends on that element, or on that state, and on nothing else."""

    stage: Stage
    axes: tuple[Axis, ...]
    affine: bool = False  # in the state
    plain: bool = False  # the elements themselves


class Marked(Tensor):
    """A tensor of the user's code with its mark; `raw` is the same without."""

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
        """The reading sees every call first, unless somebody switched it off or goes another way: compiled code, extensions."""
        for x in tree_flatten((args, kwargs))[0]:
            if isinstance(x, Marked):
                x.reading.end("hides from the reading")
        raise UnreadableError("hides from the reading")

    __torch_dispatch__ = __torch_function__  # type: ignore[assignment]


def raw(x: Any) -> Any:
    return x.raw if isinstance(x, Marked) else x
