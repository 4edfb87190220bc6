"""Room: how many pixels, frames, features or words may change (the Hamming distance, L0).

A map needs no bounds, so who asks for one does not wait until those are loaded.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from holdfast.hamming.saliency import Saliency, saliency

if TYPE_CHECKING:
    from holdfast.hamming.branch import Branch
    from holdfast.hamming.greedy import Greedy
    from holdfast.hamming.grid import Grid

__all__ = ["Branch", "Greedy", "Grid", "Saliency", "saliency"]


def __getattr__(name: str) -> object:
    if name in __all__:
        return getattr(import_module(f"holdfast.hamming.{name.lower()}"), name)
    raise AttributeError(f"module 'holdfast.hamming' has no attribute {name!r}")
