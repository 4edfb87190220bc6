"""Room 2: how many pixels, frames, features or words may change."""

from holdfast.hamming.branch import Branch
from holdfast.hamming.greedy import Greedy
from holdfast.hamming.grid import Grid
from holdfast.hamming.saliency import saliency, sensitivity
from holdfast.hamming.testgen import Tests, testgen

__all__ = ["Branch", "Greedy", "Grid", "Tests", "saliency", "sensitivity", "testgen"]
