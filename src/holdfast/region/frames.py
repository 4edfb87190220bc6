"""An lp ball in each selected frame of a sequence: an image row, a word vector or an audio frame.

    { x : ||x_k - c_k||_p <= r m_k for all frames k },   m_k >= 0 (`mask`)

With non-uniform m_k this is the non-uniform distortion of POPQORN (docs/papers/popqorn.md).
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from holdfast.errors import BadInput
from holdfast.region.normed import NormFamily

SMALLEST_SHARE = 1e-30  # Smallest share of the radius other than 0: float32 can still divide by it.


@dataclass(frozen=True, eq=False)
class Frames(NormFamily):
    """All x with ||x_k - centre_k||_p <= radius * mask_k for every frame k, inside the domain.

    Inputs are (frames, *rest). mask is (batch, frames): bool, the frames that may move, or numbers >= 0,
    their shares of the radius. Default: every frame moves by the full radius.
    """

    mask: Tensor | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.shape:
            raise BadInput("frames need inputs of shape (batch, frames, ...); these inputs are scalars.")
        mask = torch.ones(self.centre.shape[:2], dtype=torch.bool) if self.mask is None else self.mask
        object.__setattr__(self, "mask", torch.as_tensor(mask, device=self.centre.device))
        assert self.mask is not None
        if tuple(self.mask.shape) != (len(self), self.shape[0]):
            raise BadInput(
                f"the frame mask has shape {tuple(self.mask.shape)}, expected {(len(self), self.shape[0])}: "
                f"a flag or a number for each frame of each input."
            )
        free = self.free()
        if not bool(((free == 0) | ((free >= SMALLEST_SHARE) & (free <= 1 / SMALLEST_SHARE))).all()):
            raise BadInput(
                "frame k moves by the radius times its number in the mask (shares=, --shares), which must "
                "be 0 or between "
                f"{SMALLEST_SHARE:g} and {1 / SMALLEST_SHARE:g}; got {float(free.min()):g} to "
                f"{float(free.max()):g}."
            )

    def only(self, places: Tensor) -> "Frames":
        """Restrict the region: only frames with places (batch, frames) bool true may move."""
        return replace(self, mask=self.free() * places)

    def count_moving_frames(self) -> Tensor:
        return (self.free() > 0).sum(1)

    def group_features(self, x: Tensor) -> Tensor:
        rest = len(self.shape) - 1
        return x.flatten(x.dim() - rest) if rest else x.unsqueeze(-1)

    def free(self) -> Tensor:
        assert self.mask is not None
        return self.mask.double()

    def condense(self) -> "tuple[Frames, Tensor] | None":
        moving = self._span() > 0
        count = max(1, int(moving.sum(1).max()))
        if count == moving.shape[1] or self.domain.lower.numel() > 1 or self.domain.upper.numel() > 1:
            return None
        which = moving.to(torch.uint8).topk(count, dim=1).indices
        grouped = self.group_features(self.centre)
        width = grouped.shape[-1]
        centre = grouped.gather(1, which[..., None].expand(-1, -1, width))
        features = (which[..., None] * width + torch.arange(width, device=which.device)).flatten(1)
        return replace(self, centre=centre, mask=self.free().gather(1, which)), features
