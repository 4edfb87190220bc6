"""Room: how many pixels, frames, features or words may change (the Hamming distance, L0)."""

from holdfast.hamming.branch import Branch
from holdfast.hamming.greedy import Greedy
from holdfast.hamming.grid import Grid
from holdfast.hamming.saliency import Saliency, saliency

__all__ = ["Branch", "Greedy", "Grid", "Saliency", "saliency"]
