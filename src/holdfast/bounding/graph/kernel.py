"""The windows of convolutions and poolings: every position of the map reads one window of the image, with the
same weights.

Statement: for coefficients L of the map, `back` computes L J as one sum of products per coefficient, so |fl(L
J) - L J| <= gamma(n) |L| |J| with n the number of products (at most channels times positions of the kernel).

Images are (..., height, width, channels) here, so that every step is a product with the channels.

Assumption: float64, rounded to nearest; docs/rounding.md charges underflow.

Reference: Higham, Accuracy and Stability of Numerical Algorithms, 2nd edition 2002, section 3.1.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

Pair = tuple[int, int]


@dataclass(frozen=True, eq=False)
class Kernel:
    """The element at position p of the map reads the elements at stride p - padding + dilation i; elements
    outside of the image are zero.
    """

    # (height, width, channels of the map, channels of the image), or (height, width, channels) if each
    # channel reads only itself.
    weight: Tensor
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)

    def back(self, rows: Tensor) -> Tensor:
        """rows (..., h, w, channels) on a rectangle of positions of the map -> (..., h', w', channels) on all
        positions that these read, also outside of the image. Every coefficient is one sum of products.
        """
        high, wide = (_extent(n, step) for n, step in zip(rows.shape[-3:-1], self.stride, strict=True))
        down, right = ((n - 1) * step for n, step in zip(self.weight.shape[:2], self.dilation, strict=True))
        found = rows.new_zeros((*rows.shape[:-3], high + down, wide + right, self.weight.shape[-1]))
        for i, line in enumerate(self.weight.to(rows.dtype)):
            for j, weight in enumerate(line):
                top, left = i * self.dilation[0], j * self.dilation[1]
                read = found[..., top : top + high : self.stride[0], left : left + wide : self.stride[1], :]
                read += rows @ weight if weight.dim() == 2 else rows * weight
        return found

    def back_whole(self, rows: Tensor, size: Sequence[int]) -> Tensor:
        """rows (..., channels, h, w) on the whole map -> (..., channels, *size) on the image."""
        found = self.back(rows.movedim(-3, -1).contiguous()).movedim(-1, -3)
        (top, left), (high, wide) = self.padding, size
        inside = found[..., top : top + high, left : left + wide]
        return pad(
            inside, (0, wide - inside.shape[-1], 0, high - inside.shape[-2])
        )  # Elements that no window reads have coefficient zero.

    def is_derivative(self, pulled: Sequence[Tensor], row: Tensor, shape: Sequence[int]) -> bool:
        """Whether `back_whole` of a row (1, channels, h, w) equals `pulled`, the row times the derivative of the
        map, up to rounding.
        """
        (wanted,) = pulled
        channels = row.shape[1], shape[1]
        if channels != (
            (channels[0], channels[0]) if self.weight.dim() == 3 else tuple(self.weight.shape[2:])
        ):
            return False
        found = self.back_whole(row, shape[2:])
        return found.shape == wanted.shape and bool(
            ((found - wanted).abs() <= 1e-12 * (1 + wanted.abs().max())).all()
        )


def _extent(count: int, step: int) -> int:
    """The distance from the first to the last of `count` positions with the given step, plus one."""
    return (count - 1) * step + 1


def convolution(
    weight: Tensor, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int
) -> Kernel:
    """The kernel of weights (channels of the map, channels that a group reads, height, width), as torch
    stores them.
    """
    out, read = weight.shape[0], weight.shape[1] * groups
    if groups == out == read:
        return Kernel(
            weight[:, 0].permute(1, 2, 0).contiguous(), _pair(stride), _pair(padding), _pair(dilation)
        )
    whole = weight.new_zeros((*weight.shape[2:], out, read))
    for group in range(groups):
        mine = (
            slice(group * out // groups, (group + 1) * out // groups),
            slice(group * weight.shape[1], (group + 1) * weight.shape[1]),
        )
        whole[:, :, *mine] = weight[mine[0]].permute(2, 3, 0, 1)
    return Kernel(whole, _pair(stride), _pair(padding), _pair(dilation))


def pooling(
    channels: int, size: Sequence[int], stride: Sequence[int], padding: Sequence[int], device: torch.device
) -> Kernel:
    """Means over windows, in which padding counts as zeros."""
    high, wide = _pair(size)
    weight = torch.full((high, wide, channels), 1 / (high * wide), dtype=torch.float64, device=device)
    return Kernel(weight, _pair(stride) if stride else (high, wide), _pair(padding))


def scaling(scale: Tensor) -> Kernel:
    """The kernel that multiplies every channel by a number, scale (channels,)."""
    return Kernel(scale.reshape(1, 1, -1))


def _pair(value: Sequence[int] | int) -> Pair:
    both = [value] if isinstance(value, int) else list(value)
    return both[0], both[-1]
