"""Robustness in the Hamming distance (norm 0): how many pixels, frames, features or words may change.

`Branch`, `Greedy` and `Grid` are imported on first use, so that a saliency map, which needs no bounds, does
not wait for their imports.
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
