"""An individual perturbation radius for every feature: |x_i - c_i| <= r s_i with factors s_i >= 0
(`shares`)."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from holdfast.errors import BadInput
from holdfast.region.frames import SMALLEST_SHARE
from holdfast.region.normed import NormFamily


@dataclass(frozen=True, eq=False, kw_only=True)
class Features(NormFamily):
    """All x with |x_i - centre_i| <= radius * shares_i for every i, inside the domain."""

    shares: Tensor  # (batch, *shape), numbers >= 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shares.shape != self.centre.shape:
            raise BadInput(
                f"shares have shape {tuple(self.shares.shape)}, expected {tuple(self.centre.shape)}: "
                "one number for each feature."
            )
        check_shares(self.shares, "feature k moves")

    def group_features(self, x: Tensor) -> Tensor:
        return self.flatten(x).unsqueeze(-1)

    def free(self) -> Tensor:
        return self.flatten(self.shares.double())

    def only(self, places: Tensor) -> "Features":
        """Restrict the region: only frames with places (batch, frames) bool true may move."""
        return replace(self, shares=self.shares * places.reshape(*places.shape, *(1 for _ in self.shape[1:])))

    def condense(self) -> "tuple[Features, Tensor] | None":
        moving = self._span() > 0
        count = max(1, int(moving.sum(1).max()))
        if count == moving.shape[1] or self.domain.lower.numel() > 1 or self.domain.upper.numel() > 1:
            return None
        which = moving.to(torch.uint8).topk(count, dim=1).indices
        return replace(
            self, centre=self.flatten(self.centre).gather(1, which), shares=self.free().gather(1, which)
        ), which


def check_shares(shares: Tensor, what: str) -> None:
    if not bool(((shares == 0) | ((shares >= SMALLEST_SHARE) & (shares <= 1 / SMALLEST_SHARE))).all()):
        raise BadInput(
            f"{what} by the radius times its number in the shares (shares=, --shares), "
            f"which must be 0 or between {SMALLEST_SHARE:g} and "
            f"{1 / SMALLEST_SHARE:g}; got {float(shares.min()):g} to {float(shares.max()):g}."
        )


def feature_shares(shares: object, centre: Tensor) -> Tensor:
    """Broadcast shares, one for each feature or each number of an input, to (batch, *shape) float64."""
    try:
        each = torch.as_tensor(shares, dtype=torch.float64, device=centre.device)
    except (TypeError, ValueError, RuntimeError) as error:
        raise BadInput(f"shares must be numbers, one for each feature ({error}).") from error
    shape = tuple(centre.shape[1:])
    if each.dim() == 0 or tuple(each.shape) not in (shape, shape[1:]):
        among = f"({', '.join(map(str, shape[1:]))}) or {shape}" if shape[1:] else str(shape)
        raise BadInput(
            f"shares: one number for each feature, so {among} for inputs of shape {shape}; got "
            f"{tuple(each.shape)}."
        )
    return each.expand(centre.shape).clone()
