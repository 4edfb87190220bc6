"""The 1797 handwritten digits of scikit-learn, 8 x 8 pixels, with a fixed split."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from holdfast.errors import BadInput

TEST_SIZE = 500  # Number of test images (chosen by hand).
LARGEST_PIXEL = 16  # The largest pixel value in scikit-learn's data.
SEED = 0  # Of the split.


@dataclass(frozen=True, eq=False)
class Digits:
    """One split of the digits; x.reshape(n, 8, 8) is a sequence of 8 rows of 8 pixels for every image."""

    x: Tensor  # (n, 1, 8, 8) float32 in [0, 1]
    y: Tensor  # (n,) int64 in 0..9


def digits(split: Literal["train", "test"]) -> Digits:
    """Return the 1297 training or the 500 test images, always the same ones in the same order."""
    if split not in ("train", "test"):
        raise BadInput(f"split is {split!r}; the digits have the splits 'train' and 'test'")
    from sklearn.datasets import load_digits  # imported here, because it takes a second

    pixels, labels = load_digits(return_X_y=True)
    chosen = _in_test(labels) == (split == "test")
    x = torch.from_numpy(pixels[chosen]).to(torch.float32).reshape(-1, 1, 8, 8) / LARGEST_PIXEL
    return Digits(x=x, y=torch.from_numpy(labels[chosen]).to(torch.int64))


def _in_test(labels: NDArray[np.int64]) -> NDArray[np.bool_]:
    """(n,) -> (n,) bool: TEST_SIZE are true, with the same share of every class to within one image.

    Picks are evenly spaced in a shuffle sorted by class. RandomState is frozen by NumPy; scikit-learn's own
    splitter is not, and a changed split would put training images into the test set of the stored networks.
    """
    shuffled = np.random.RandomState(SEED).permutation(len(labels))
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    in_test = np.zeros(len(labels), dtype=bool)
    in_test[by_class[np.arange(TEST_SIZE) * len(labels) // TEST_SIZE]] = True
    return in_test


def images() -> dict[str, Tensor | list[str]]:
    """Return the test digits as images, for the command line: --data holdfast.datasets.digits:images."""
    found = digits("test")
    return {"x": found.x, "y": found.y, "classes": [str(c) for c in range(10)]}


def rows() -> dict[str, Tensor | list[str]]:
    """Return the test digits as sequences of eight rows of eight pixels, from the top."""
    found = digits("test")
    return {"x": found.x.flatten(1, 2), "y": found.y, "classes": [str(c) for c in range(10)]}


def training_rows() -> dict[str, Tensor | list[str]]:
    """Return the training digits in the form of `rows`, for commands that learn from data."""
    found = digits("train")
    return {"x": found.x.flatten(1, 2), "y": found.y, "classes": [str(c) for c in range(10)]}
