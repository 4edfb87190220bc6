"""What convolutions and poolings read: around each place of an image the same window, with the same weights.

Images are (..., height, width, channels) here, so that every step is a product with the channels.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

Pair = tuple[int, int]


@dataclass(frozen=True, eq=False)
class Kernel:
    """The element at place p of a map reads those at stride p - padding + dilation i; outside of the image it reads nothing."""

    weight: Tensor  # (height, width, channels of the map, channels it reads); (height, width, channels) where each reads only itself
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)

    def back(self, rows: Tensor) -> Tensor:
        """rows (..., h, w, channels) on neighbouring places of the map -> (..., h', w', channels) on all places that these read, those
        outside of the image too. Every coefficient is one sum of products."""
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
        """rows (..., channels, h, w) on all of the map -> (..., channels, *size) on all of the image that it reads."""
        found = self.back(rows.movedim(-3, -1).contiguous()).movedim(-1, -3)
        (top, left), (high, wide) = self.padding, size
        inside = found[..., top : top + high, left : left + wide]
        return pad(
            inside, (0, wide - inside.shape[-1], 0, high - inside.shape[-2])
        )  # what no window reaches is not read

    def is_derivative(
        self, pulled: Callable[[Tensor], tuple[Tensor, ...]], row: Tensor, shape: Sequence[int]
    ) -> bool:
        """Whether a row (1, channels, h, w) of the map goes back to an image of this shape as by `pulled`, but for rounding."""
        (wanted,) = pulled(row)
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
    """From the first to the last of so many places that lie a step apart."""
    return (count - 1) * step + 1


def convolution(
    weight: Tensor, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int
) -> Kernel:
    """weight (channels of the map, channels a group reads, height, width), as torch has it."""
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
    """Means over windows, in which padding counts."""
    high, wide = _pair(size)
    weight = torch.full((high, wide, channels), 1 / (high * wide), dtype=torch.float64, device=device)
    return Kernel(weight, _pair(stride) if stride else (high, wide), _pair(padding))


def scaling(scale: Tensor) -> Kernel:
    """Every channel by itself, times a number: (channels,)."""
    return Kernel(scale.reshape(1, 1, -1))


def _pair(value: Sequence[int] | int) -> Pair:
    both = [value] if isinstance(value, int) else list(value)
    return both[0], both[-1]
