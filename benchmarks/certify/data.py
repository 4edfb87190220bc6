"""The benchmarks' data: scikit-learn's digits, and the shared data folder (../shared/data)."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from holdfast.datasets import digits

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared" / "data"


def shared(name: str, folder: Path = SHARED) -> Path:
    """The path of a shared file or folder; ends the program with a message where it is missing."""
    path = folder / name
    if not path.exists():
        raise SystemExit(
            f"this benchmark needs the shared data, and {path} does not exist. Give its folder by --data."
        )
    return path


def digit_frames(frames: int, split: str) -> tuple[Tensor, Tensor]:
    """-> x (n, frames, 64 / frames) in [0, 1], y (n,)."""
    found = digits("train" if split == "train" else "test")
    return found.x.reshape(len(found.x), frames, -1), found.y


def mnist_frames(frames: int, split: str, folder: Path = SHARED) -> tuple[Tensor, Tensor]:
    """-> x (n, frames, 784 / frames) in [-1, 1], as POPQORN's published scripts scale them, y (n,)."""
    (file,) = shared("mnist", folder).glob("*.npz")
    with np.load(file, allow_pickle=False) as arrays:
        x, y = torch.from_numpy(arrays[f"x_{split}"]), torch.from_numpy(arrays[f"y_{split}"])
    return x.reshape(len(x), frames, -1).float() / 127.5 - 1, y.long()
