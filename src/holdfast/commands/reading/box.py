"""Parse boxes of inputs."""

import csv
import math
from pathlib import Path

import torch
from torch import Tensor

from holdfast.errors import BadInput
from holdfast.files import explained_errors, read_text
from holdfast.network import Network
from holdfast.reading.source import array
from holdfast.verification.combined_network import input_shape


def box_option(text: str, net: Network) -> tuple[Tensor, Tensor]:
    """'0:10,-1:1', one 'low:high' for all inputs, or a .csv or .npy file -> lower, upper."""
    if text.endswith(".npy"):
        return _npy(Path(text))
    pairs = _csv(Path(text)) if text.endswith(".csv") else _written(text)
    if len(pairs) == 1 and net.shape is not None and None not in net.shape:
        pairs = pairs * math.prod(size for size in net.shape if size is not None)
    shape = input_shape(net, len(pairs), f"box {text!r}")
    lower, upper = torch.tensor(pairs, dtype=torch.float64).unbind(1)
    return lower.reshape(shape), upper.reshape(shape)


def _written(text: str) -> list[list[float]]:
    try:
        pairs = [[float(end) for end in part.split(":")] for part in text.split(",")]
    except ValueError:
        pairs = [[]]
    if any(len(pair) != 2 for pair in pairs):
        raise BadInput(
            f"box {text!r}: expected low:high for each input, as in 0:10,-1:1, or a .csv or .npy file."
        )
    return pairs


def _csv(path: Path) -> list[list[float]]:
    pairs = []
    with explained_errors(path, "cannot be read as .csv", "Write one line low,high for each input."):
        rows = list(csv.reader(read_text(path).splitlines()))
    for number, row in enumerate(rows, 1):
        if not any(cell.strip() for cell in row):
            continue
        try:
            low, high = (float(cell) for cell in row)
        except ValueError:
            raise BadInput(
                f"{path}:{number}: expected low,high, two numbers, got {','.join(row)[:60]!r}."
            ) from None
        pairs.append([low, high])
    if not pairs:
        raise BadInput(f"{path}: holds no line low,high.")
    return pairs


def _npy(path: Path) -> tuple[Tensor, Tensor]:
    ends = array(path, "numbers")
    if ends.dim() < 2 or len(ends) != 2 or ends.is_complex() or ends.dtype == torch.bool:
        raise BadInput(
            f"{path}: holds shape {tuple(ends.shape)}; expected the smallest and the largest values, (2, "
            "*shape of "
            "an input)."
        )
    return ends[0].double(), ends[1].double()
