"""What may change in each input: the options of the Python functions, checked, and the regions they describe."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from holdfast.api.arguments import check_flag, check_mask, check_norm, check_values, show
from holdfast.api.edits import Edits
from holdfast.api.methods import What
from holdfast.errors import BadInput
from holdfast.formatting import exact_text
from holdfast.network import Network
from holdfast.region import (
    Ball,
    ChangedColumns,
    Drift,
    Family,
    Features,
    Frames,
    Patch,
    Region,
    Rows,
    Sparse,
    Words,
)
from holdfast.region.columns import Columns
from holdfast.region.features import feature_shares
from holdfast.region.units import Unit, unit_axes
from holdfast.region.words import Substitutes, position_sets
from holdfast.request import Request

FramesOption = Literal["all", "each"] | int | Sequence[int] | Sequence[Sequence[bool]] | Tensor | None
SharesOption = Sequence[float] | Sequence[Sequence[float]] | Tensor | None
MaskOption = Tensor | Sequence[Tensor] | None
ValuesOption = Sequence[float] | Tensor | None
NormOption = float | str
BOX_NORM = (
    "with shares every feature moves by its own share: that is a box, measured in the maximum norm; "
    "leave the norm out."
)


@dataclass(frozen=True, eq=False, kw_only=True)
class Perturbation:
    """What may change in each input. `holdfast.request` says what each option means.

    Every value is checked when the object is made; what fits together is checked with the inputs.
    """

    norm: float = math.inf
    radius: float | Tensor | None = None
    frames: FramesOption = None
    drift: bool = False
    shares: SharesOption = None
    substitutes: Substitutes | None = None
    edits: Edits | None = None
    unit: Unit | None = None
    free: MaskOption = None
    values: ValuesOption = None
    patch: Tensor | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "norm", check_norm(self.norm))
        check_flag("drift", self.drift)
        check_values(self.values)
        check_mask(self.free)
        if self.edits is not None and not isinstance(self.edits, Edits):
            raise BadInput(f"edits: expected hf.Edits(delete=1, swap=1, ...), got {show(self.edits)}.")

    @property
    def what(self) -> What:
        """The quantity that a radius measures."""
        if self.edits is not None:
            return "edits"
        if self.substitutes is not None:
            return "words"
        return "units" if self.norm == 0 else "offsets" if self.drift else "norms"

    @property
    def one_frame_each(self) -> bool:
        """Whether each frame, or position of a sentence, is perturbed alone."""
        return isinstance(self.frames, str) and self.frames == "each"

    def to_request(self, **more: Any) -> Request:
        """Return the stored request; more: its other arguments, None where they were left out."""
        request = Request.of_arguments(
            frames=self.frames,
            drift=self.drift,
            shares=self.shares,
            substitutes=self.substitutes,
            edits=self.edits,
            unit=self.unit,
            free=self.free,
            values=self.values,
            **more,
        )
        return replace(request, norm=self.counted_norm)

    @property
    def counted_norm(self) -> str:
        """The norm as a request stores it: a number, or what is counted."""
        return self.what if self.what in ("words", "edits") else exact_text(self.norm)

    def families(self, net: Network, rows: list[Tensor], *, padded: bool) -> list[tuple[list[int], Family]]:
        """Return the families of regions around inputs, one for each shape, with the places of its inputs.

        rows: the inputs, *shape each. padded: lists of numbers for frames may be longer than the inputs.
        """
        self._check_combination()
        if self.edits is not None:
            return self.edits.families(net, rows)
        sets = None if self.substitutes is None else _position_sets(net, rows, self.substitutes)
        weights = None
        if self.frames is not None and self.substitutes is None:
            weights = _frame_weights(rows, self.frames, self.shares, padded=padded)
        groups: dict[tuple[int, ...], list[int]] = {}
        for index, row in enumerate(rows):
            groups.setdefault(tuple(row.shape), []).append(index)
        found: list[tuple[list[int], Family]] = []
        for members in groups.values():
            stacked = torch.stack([rows[i] for i in members])
            if stacked.is_floating_point() and stacked.dim() == 2 and net.vectors is not None:
                raise BadInput(
                    f"{net.name} reads token ids, and the data are {stacked.dtype}: give integers, or word "
                    "vectors (length, dim)."
                )
            if sets is not None:
                assert net.vectors is not None
                words = Words.around(stacked, [sets[i] for i in members], net.vectors)
                found.append((members, words))
                continue
            mask = None if weights is None else torch.stack([weights[i] for i in members]).to(net.device)
            found.append((members, self._family(net, stacked, members, len(rows), mask)))
        return found

    def _check_combination(self) -> None:
        """Raise BadInput for options of a radius that exclude each other."""
        words, counted = self.substitutes is not None, self.norm == 0
        if self.edits is not None:
            self._check_edits_alone()
        if self.shares is not None and (words or counted):
            raise BadInput("the shares scale the radius of each frame or feature: they need a norm p >= 1.")
        if self.shares is not None and self.frames is None and not self.drift and not math.isinf(self.norm):
            raise BadInput(BOX_NORM)
        if self.drift and (self.frames is not None or words or counted):
            raise BadInput(
                "a drift adds the same offset to all frames: it needs a norm p >= 1; leave frames and "
                "substitutes out."
            )
        for name in ("unit", "free", "values"):
            if getattr(self, name) is not None and (not counted or words):
                raise BadInput(
                    f"{name} restricts counted changes: it needs norm 0 (--norm 0), without substitutes."
                )
        if words and self.frames is not None and not self.one_frame_each:
            raise BadInput(
                "substitutes already say which words may change; leave frames out, or give frames='each' for "
                "one position at a time."
            )

    def _check_edits_alone(self) -> None:
        """Raise BadInput for options that have no meaning together with edits."""
        if self.substitutes is not None:
            raise BadInput(
                "edits and substitutes both say which words may change: give hf.Edits(substitute=..., "
                "substitutes=...) alone."
            )
        given = [
            name for name in ("frames", "shares", "unit", "free", "values") if getattr(self, name) is not None
        ]
        given += ["drift"] if self.drift else []
        if given:
            raise BadInput(f"{given[0]} has no meaning for edits of a text: leave it out.")
        if not math.isinf(self.norm):
            raise BadInput("edits are counted: leave the norm out.")

    def _family(
        self, net: Network, stacked: Tensor, members: list[int], count: int, mask: Tensor | None
    ) -> Family:
        """Return the family around inputs of one shape, the `members` out of `count`, at radius 0.

        mask: (batch, frames), the share of the radius by which each frame moves.
        """
        # Under norm 0, rounding an input to the network's dtype does not count as a change.
        exact = stacked.is_floating_point() and self.norm != 0
        centre = net.exactly(stacked) if exact else _as_network_input(net, stacked)
        zero = torch.zeros(len(centre), dtype=torch.float64, device=centre.device)
        if net.columns is not None and not net.columns.plain and centre.dim() > 2:
            raise BadInput(
                f"the columns describe rows of a table, and inputs have shape {tuple(centre.shape[1:])}. The features of "
                "windows (frames, features) are described by hf.Columns.of_channels."
            )
        if self._is_of_table(net):
            assert net.columns is not None
            if self.norm == 0:
                return ChangedColumns(centre, zero, net.columns, net.domain)
            return Rows(centre, zero, net.columns, net.domain, norm=self.norm)
        if net.channels is not None:
            return self._of_channels(net, net.channels, centre, zero, mask)
        if self.norm == 0:
            return self._sparse(net, centre, members, count)
        if mask is not None:
            return Frames(centre, zero, self.norm, net.domain, mask=mask)
        return self._moving(net, centre, zero)

    def _of_channels(
        self, net: Network, channels: Columns, centre: Tensor, size: Tensor, mask: Tensor | None
    ) -> Family:
        """Return the family in which feature k of every frame moves by the radius times its scale.

        mask: (batch, frames), the share of the radius by which each frame moves.
        """
        if centre.dim() < 3 or centre.shape[-1] != len(channels.features):
            raise BadInput(
                f"there are {len(channels.features)} channels ({', '.join(channels.features[:6])}), and inputs have shape "
                f"{tuple(centre.shape[1:])}: windows of (frames, features) have one for each feature."
            )
        if self.norm == 0:
            raise BadInput(
                "norm 0 counts changed numbers, so the scales of channels have no meaning for it: use the network "
                "without them; free= says which numbers may change."
            )
        if self.shares is not None and self.frames is None:
            raise BadInput(
                "the channels of the network say how far each feature moves: leave shares out, or give frames='all' and one "
                "share for each frame."
            )
        domain, shares = channels.domain(net.domain), channels.channel_shares.to(centre.device)
        if not bool((shares > 0).any()):
            raise BadInput("every channel is frozen, so no input can change.")
        numbers = centre.double().flatten(1, -2)
        for k, channel in enumerate(channels.each):
            own = numbers[..., k]
            if bool(((own < channel.low) | (own > channel.high)).any()):
                raise BadInput(
                    f"channel {channel.name!r} has values from {float(own.min()):g} to {float(own.max()):g}, outside of its "
                    f"limits {channel.low:g} to {channel.high:g}. Widen them (low, high), or leave these windows out."
                )
        if self.drift:
            each = shares.expand(len(centre), *centre.shape[2:]).clone()
            return Drift(centre, size, self.norm, domain, shares=each)
        if not math.isinf(self.norm):
            raise BadInput(
                "channels with units of their own move apart from each other: that is a box, measured in the maximum "
                "norm; leave the norm out, or use drift."
            )
        each = shares.expand(centre.shape).clone()
        if mask is not None:
            each = each * mask.reshape(*mask.shape, *(1 for _ in centre.shape[2:]))
        return Features(centre, size, self.norm, domain, shares=each)

    def _is_of_table(self, net: Network) -> bool:
        """Whether the columns of a table define the region. Plain columns do not: other regions have more
        methods.
        """
        if net.columns is None or (net.columns.plain and net.trees is None):
            return False
        options = {name: getattr(self, name) for name in ("frames", "unit", "free", "values", "shares")}
        named = [name for name, option in options.items() if option is not None]
        named += ["drift"] if self.drift else []
        if named:
            raise BadInput(
                f"{named[0]} has no meaning for rows of a table: the columns define what may change (hf.Columns)."
            )
        return True

    def _moving(self, net: Network, centre: Tensor, size: Tensor) -> Family:
        """Return the region in which the whole input moves: by norm, by feature shares, or by a drift."""
        if self.drift:
            each = None if self.shares is None else feature_shares(self.shares, centre)[:, 0]
            return Drift(centre, size, self.norm, net.domain, shares=each)
        if self.shares is None:
            return Ball(centre, size, self.norm, net.domain)
        if not math.isinf(self.norm):
            raise BadInput(BOX_NORM)
        return Features(centre, size, self.norm, net.domain, shares=feature_shares(self.shares, centre))

    def _sparse(self, net: Network, centre: Tensor, members: list[int], count: int) -> Sparse:
        """Return the family of changed units for the inputs `members` out of `count`."""
        frames = self.frames
        whole = isinstance(frames, str) and frames == "all" and self.unit in (None, "frame")
        if frames is not None and not whole:
            raise BadInput(
                "norm 0 counts changed frames with frames='all'; other choices of frames do not apply to it."
            )
        axes = unit_axes(centre.shape[1:], self.unit if frames is None else "frame")
        zero = torch.zeros(len(centre), dtype=torch.float64, device=centre.device)
        region = Sparse(centre, zero, net.domain, axes=axes)
        mask = None if self.free is None else _free_units(self.free, members, count, region.unit_shape)
        levels = None
        if self.values is not None:
            levels = torch.as_tensor(list(self.values), dtype=torch.float64, device=centre.device)
        return replace(region, free=mask, levels=levels)

    def region_around(self, net: Network, x: Any) -> Region:
        """Return the region of this radius around each input, for a property over a given region."""
        patch, radius = self.patch, self.radius
        if patch is not None and (self.shares is not None or self.drift):
            raise BadInput(
                f"patch and {'drift' if self.drift else 'shares'} both say where the input may move; give one."
            )
        rows = torch.as_tensor(net.inputs(x, alike=True))
        centre = net.exactly(rows) if rows.is_floating_point() else net.embed(rows)
        if radius is None and patch is None:
            raise BadInput("how far may the input move? Give a radius (radius=0.05, --radius), or a region.")
        size = torch.as_tensor(math.inf if radius is None else radius, dtype=torch.float64)
        if not bool((size > 0).all()):
            raise BadInput(
                f"radius {radius}: the ball is empty or contains only the input; give a positive number."
            )
        if net.channels is not None and patch is not None:
            raise BadInput(
                "a patch has one radius for all features; use the network without channels, or no patch."
            )
        if net.channels is not None:
            return self._of_channels(net, net.channels, centre, size.expand(len(centre)), None)
        if patch is not None:
            if not math.isinf(self.norm):
                raise BadInput("a patch uses the maximum norm: leave the norm out.")
            mask = torch.as_tensor(patch)
            if mask.shape not in (centre.shape, centre.shape[1:]):
                raise BadInput(
                    f"patch: the mask has shape {tuple(mask.shape)}, expected {tuple(centre.shape[1:])}: a "
                    "flag for each feature."
                )
            if not bool(mask.any()):
                raise BadInput("patch: the mask selects no feature, or the square lies outside the images.")
            free = Patch(centre, size, mask.expand(centre.shape).to(net.device), net.domain)
            whole = torch.minimum(free.radius, free.limit())
            if bool(whole.isinf().any()):
                raise BadInput(
                    "patch: the domain is unbounded, so a patch without a radius could take any value; give a "
                    "radius or a domain."
                )
            return free.at(whole)
        return self._moving(net, centre, size)


def _position_sets(net: Network, rows: list[Tensor], substitutes: Substitutes) -> list[list[list[int]]]:
    if net.vectors is None or any(row.is_floating_point() or row.dim() != 1 for row in rows):
        raise BadInput(
            "substitutes are sets of words: give token ids, or texts, to a network that reads tokens "
            "(tokens=True, vocabulary=[...])."
        )
    return position_sets([row.tolist() for row in rows], substitutes, len(net.vectors))


def _as_network_input(net: Network, x: Tensor) -> Tensor:
    """Return inputs as the network reads them: token ids as word vectors, numbers in its dtype."""
    return (x if x.is_floating_point() else net.embed(x)).to(net.device, net.dtype)


def _free_units(
    free: Tensor | Sequence[Tensor], members: list[int], count: int, shape: tuple[int, ...]
) -> Tensor:
    """Return masks (members, *unit shape) from one for all inputs or one for each. Axes of size one may be
    left out.
    """
    plain = tuple(size for size in shape if size > 1)

    def fits(mask: Tensor) -> bool:
        return tuple(mask.shape) == shape or tuple(size for size in mask.shape if size > 1) == plain

    if isinstance(free, Tensor) and fits(free):
        return free.reshape(1, *shape).expand(len(members), *shape)
    if len(free) != count:
        raise BadInput(
            f"free: give one mask of shape {shape}, or one for each of the {count} inputs; got {len(free)}."
        )
    masks = [torch.as_tensor(free[i]) for i in members]
    wrong = [mask for mask in masks if not fits(mask)]
    if wrong:
        raise BadInput(
            f"free: a mask has shape {tuple(wrong[0].shape)}, expected {shape}: a flag for each unit."
        )
    return torch.stack([mask.reshape(shape) for mask in masks])


def _frame_weights(
    rows: list[Tensor], frames: FramesOption, shares: SharesOption, *, padded: bool
) -> list[Tensor]:
    """Return the radius share of each frame, (frames,) float64 for each input."""
    counts = [len(row) if row.dim() else 0 for row in rows]
    if min(counts) == 0:
        raise BadInput("frames need inputs of shape (batch, frames, ...).")
    chosen = [torch.ones(count, dtype=torch.float64) for count in counts]
    if isinstance(frames, str):
        if frames not in ("all", "each"):
            raise BadInput(
                f"frames={frames!r}: use 'all', 'each', a frame's number, several, or a bool mask."
            )
    else:
        given = _plain(frames)
        if isinstance(given, list) and given and isinstance(given[0], list | bool):
            flags = given if isinstance(given[0], bool) else [flag for flags in given for flag in flags]
            if not all(isinstance(flag, bool) for flag in flags):
                raise BadInput(
                    "frames: several lists are bool masks, one for each input; use shares= for numbers."
                )
            chosen = _per_frame(given, counts, "the frame mask", padded)
        else:
            chosen = [_frame_mask(given, count, place) for place, count in enumerate(counts)]
    if shares is None:
        return chosen
    return [
        some * much
        for some, much in zip(
            chosen, _per_frame(_plain(shares), counts, "the list of shares", padded), strict=True
        )
    ]


def _plain(values: Any) -> Any:
    """Return numbers as nested lists."""
    try:
        return torch.as_tensor(values).tolist()
    except (TypeError, ValueError, RuntimeError):
        return (
            [_plain(part) for part in values]
            if isinstance(values, Sequence) and not isinstance(values, str)
            else values
        )


def _frame_mask(frames: Any, count: int, place: int) -> Tensor:
    """Return (count,) with ones at the given frame numbers."""
    wanted = frames if isinstance(frames, list) else [frames]
    if not wanted or not all(type(f) is int for f in wanted):
        raise BadInput(f"frames={frames!r}: name at least one frame, by whole numbers.")
    wrong = [f for f in wanted if not 0 <= f < count]
    if wrong:
        raise BadInput(f"frame {wrong[0]} does not exist: input {place} has frames 0 to {count - 1}.")
    return torch.zeros(count, dtype=torch.float64).index_fill(0, torch.tensor(wanted), 1.0)


def _per_frame(values: Any, counts: list[int], what: str, padded: bool) -> list[Tensor]:
    """Return (frames,) float64 for each input, from one list for all or one for each. Lists of padded inputs
    may be padded.
    """
    if not isinstance(values, list) or not values:
        raise BadInput(f"{what} needs a number for each frame, got {values!r}.")
    lists = values if isinstance(values[0], list) else [values] * len(counts)
    if len(lists) != len(counts):
        raise BadInput(f"{what} is given for {len(lists)} inputs, but there are {len(counts)}.")
    found = []
    for place, (numbers, count) in enumerate(zip(lists, counts, strict=True)):
        if len(numbers) != count and not (padded and len(numbers) > count):
            raise BadInput(f"{what} covers {len(numbers)} frames, input {place} has {count}.")
        if not all(isinstance(number, int | float) for number in numbers):
            raise BadInput(f"{what} needs a number for each frame, got {numbers!r} for input {place}.")
        found.append(torch.tensor(numbers[:count], dtype=torch.float64))
    return found
