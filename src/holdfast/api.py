"""The short forms people type: hf.radius and hf.worst."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, get_args, overload

import torch
from torch import Tensor

from holdfast.attacks import PGD, CarliniWagner, Corners
from holdfast.certify import Certify, Enumerate
from holdfast.errors import BadInput
from holdfast.method import Method
from holdfast.network import Network
from holdfast.problem import Goal, Problem
from holdfast.property import Property, Robustness, Targeted
from holdfast.region import Ball, Family, Frames, Region, Sparse, Words
from holdfast.result import Bracket, Key
from holdfast.solver import Progress, Sink, Stop, solve

FramesOption = Literal["all", "each"] | int | Sequence[int] | Tensor | None
Inputs = Tensor | Sequence[Tensor]
Tier = Literal["search", "fast"]


@overload
def radius(
    net: Network,
    x: Inputs,
    y: Tensor | Sequence[int],
    *,
    norm: float = ...,
    frames: Literal["each"],
    targets: Tensor | Sequence[int] | None = ...,
    substitutes: None = ...,
    lengths: Sequence[int] | None = ...,
    tier: Tier = ...,
    methods: Sequence[Method[Any]] | None = ...,
    stop: Stop | None = ...,
    seed: int = ...,
    store: Sink | None = ...,
    progress: Callable[[Progress], None] | None = ...,
) -> list[list[Bracket]]: ...


@overload
def radius(
    net: Network,
    x: Inputs,
    y: Tensor | Sequence[int],
    *,
    norm: float = ...,
    frames: Literal["all"] | int | Sequence[int] | Tensor | None = ...,
    targets: Tensor | Sequence[int] | None = ...,
    substitutes: Mapping[int, Sequence[int]] | None = ...,
    lengths: Sequence[int] | None = ...,
    tier: Tier = ...,
    methods: Sequence[Method[Any]] | None = ...,
    stop: Stop | None = ...,
    seed: int = ...,
    store: Sink | None = ...,
    progress: Callable[[Progress], None] | None = ...,
) -> list[Bracket]: ...


def radius(
    net: Network,
    x: Inputs,
    y: Tensor | Sequence[int],
    *,
    norm: float = math.inf,
    frames: FramesOption = None,
    targets: Tensor | Sequence[int] | None = None,
    substitutes: Mapping[int, Sequence[int]] | None = None,
    lengths: Sequence[int] | None = None,
    tier: Tier = "fast",
    methods: Sequence[Method[Any]] | None = None,
    stop: Stop | None = None,
    seed: int = 0,
    store: Sink | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> list[Bracket] | list[list[Bracket]]:
    """How far may each input move before its class changes? One bracket for each input, in their order.

    x            (batch, *shape), or a list of inputs of different lengths, or padded with `lengths`; token ids for a token network.
    y            the class of each input. An input the network gets wrong has radius 0, and its bracket says so.
    norm         any p >= 1, in the units of the network's domain; 0 counts changed pixels, frames or features.
    frames       None: the whole input moves as one. "all": every frame moves by at most the radius. "each": each frame alone, and the
                 answer is a list of brackets for every input. A number, several, or a bool mask: only those frames move.
    targets      None: any other class counts. Else one class for each input, and only a change to that class counts.
    tier         how hard to prove: "fast" is one pass of linear bounds with closed-form planes, "search" only looks for witnesses.
    substitutes  token id -> ids it may become: the radius then counts replaced words.
    """
    problems = radius_problems(net, x, y, norm=norm, frames=frames, targets=targets, substitutes=substitutes, lengths=lengths)
    chosen = default_methods(net, "radius", tier, words=substitutes is not None) if methods is None else methods
    records = solve(problems, chosen, stop, seed=seed, store=store, progress=progress)
    ordered = sorted(records, key=lambda r: (r.key.index, r.key.frame or 0))
    if not (isinstance(frames, str) and frames == "each"):
        return [r.bracket for r in ordered]
    each: dict[int, list[Bracket]] = {}
    for r in ordered:
        each.setdefault(r.key.index, []).append(r.bracket)
    return list(each.values())


def worst(
    net: Network,
    region: Region,
    property: Property,
    *,
    tier: Tier = "fast",
    methods: Sequence[Method[Any]] | None = None,
    stop: Stop | None = None,
    seed: int = 0,
    store: Sink | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> list[Bracket]:
    """The smallest score of the property over each region of the batch: positive lower ends prove that it always holds.

    Reachability is two of these: the smallest of an output, and the smallest of its negative.
    """
    problem = Problem(net, region, property, "worst", tuple(Key(i) for i in range(len(region))))
    chosen = default_methods(net, "worst", tier) if methods is None else methods
    return [r.bracket for r in solve([problem], chosen, stop, seed=seed, store=store, progress=progress)]


def default_methods(net: Network, goal: Goal, tier: Tier = "fast", *, words: bool = False) -> list[Method[Any]]:
    """What is tried when nothing is named: searches for the upper end, then proofs for the lower one."""
    if tier not in get_args(Tier):
        raise BadInput(f"tier {tier!r} is unknown; there are {', '.join(get_args(Tier))}.")
    if not net.differentiable:
        return [Corners()]
    searches: list[Method[Any]] = [PGD(), CarliniWagner()] if goal == "radius" else [PGD()]
    exact: list[Method[Any]] = [Enumerate()] if words else []
    return searches if tier == "search" else [*exact, *searches, Certify()]


def radius_problems(
    net: Network,
    x: Inputs,
    y: Tensor | Sequence[int],
    *,
    norm: float = math.inf,
    frames: FramesOption = None,
    targets: Tensor | Sequence[int] | None = None,
    substitutes: Mapping[int, Sequence[int]] | None = None,
    lengths: Sequence[int] | None = None,
) -> list[Problem]:
    """The questions behind `radius`, one problem for each length of input. Everything is checked here, before long work."""
    if substitutes is not None and frames is not None:
        raise BadInput("substitutes already say which words may change; leave frames out.")
    rows = as_rows(x, lengths)
    labels = _classes(y, len(rows), "labels")
    aims = None if targets is None else _classes(targets, len(rows), "targets")
    groups: dict[tuple[int, ...], list[int]] = {}
    for index, row in enumerate(rows):
        groups.setdefault(tuple(row.shape), []).append(index)
    problems = []
    for members in groups.values():
        stacked = torch.stack([rows[i] for i in members])
        tokens = None if stacked.is_floating_point() else stacked
        centre = (stacked if tokens is None else net.embed(tokens)).to(net.device, net.dtype)
        place = torch.tensor(members)
        label = labels[place].to(net.device)
        prop = Robustness(label) if aims is None else Targeted(label, aims[place].to(net.device))
        if substitutes is not None:
            if tokens is None or net.vectors is None:
                raise BadInput("substitutes are sets of words: give token ids to a network that reads tokens.")
            region: Family = Words.around(tokens, substitutes, net.vectors)
            problems.append(Problem(net, region, prop, "radius", tuple(Key(i) for i in members)))
        elif isinstance(frames, str) and frames == "each":
            problems.append(_each_frame(net, centre, prop, norm, members))
        else:
            region = _region(net, centre, norm, frames)
            problems.append(Problem(net, region, prop, "radius", tuple(Key(i) for i in members)))
    for problem in problems:
        problem.check()
    return problems


def as_rows(x: Inputs, lengths: Sequence[int] | None) -> list[Tensor]:
    """Every input by itself, without padding."""
    rows = [torch.as_tensor(row) for row in x]
    if not rows:
        raise BadInput("the data are empty: there is no input to ask about.")
    if lengths is None:
        return rows
    if len(lengths) != len(rows):
        raise BadInput(f"{len(lengths)} lengths for {len(rows)} inputs.")
    for i, (row, length) in enumerate(zip(rows, lengths, strict=True)):
        if not 1 <= length <= len(row):
            raise BadInput(f"length {length} of input {i} must be between 1 and its {len(row)} frames.")
    return [row[: int(length)] for row, length in zip(rows, lengths, strict=True)]


def _classes(values: Tensor | Sequence[int], count: int, what: str) -> Tensor:
    classes = torch.as_tensor(values)
    if classes.dim() != 1 or len(classes) != count:
        raise BadInput(f"{what} have shape {tuple(classes.shape)}, expected ({count},): one class for each input.")
    if classes.is_floating_point() or classes.dtype == torch.bool:
        raise BadInput(f"{what} must be integers, got {classes.dtype}.")
    return classes.long()


def _region(net: Network, centre: Tensor, norm: float, frames: FramesOption) -> Family:
    zero = torch.zeros(len(centre), dtype=torch.float64, device=centre.device)
    if norm == 0:
        return Sparse(centre, zero, net.domain, axes=_unit_axes(centre, frames))
    if frames is None:
        return Ball(centre, zero, norm, net.domain)
    return Frames(centre, zero, norm, net.domain, mask=_mask(centre, frames))


def _unit_axes(centre: Tensor, frames: FramesOption) -> tuple[int, ...]:
    """What changes as one under norm 0: a frame if frames are asked for, a pixel of an image, else each number by itself."""
    rank = centre.dim() - 1
    if isinstance(frames, str) and frames == "all":
        return tuple(range(1, rank))
    if frames is not None:
        raise BadInput("norm 0 counts changed frames with frames='all'; other choices of frames do not apply to it.")
    return (0,) if rank == 3 else ()


def _mask(centre: Tensor, frames: FramesOption) -> Tensor:
    """(batch, frames) bool."""
    count = centre.shape[1] if centre.dim() > 1 else 0
    if count == 0:
        raise BadInput("frames need inputs of shape (batch, frames, ...).")
    mask = torch.zeros((len(centre), count), dtype=torch.bool, device=centre.device)
    if isinstance(frames, str):
        if frames != "all":
            raise BadInput(f"frames={frames!r}: use 'all', 'each', a frame's number, several, or a bool mask.")
        return ~mask
    chosen = torch.as_tensor(frames, device=centre.device)
    if chosen.dtype == torch.bool:
        if chosen.shape[-1:] != (count,):
            raise BadInput(f"the frame mask covers {chosen.shape[-1] if chosen.dim() else 0} frames, the inputs have {count}.")
        if tuple(chosen.shape) not in ((count,), tuple(mask.shape)):
            raise BadInput(f"the frame mask has shape {tuple(chosen.shape)}, expected ({count},) or {tuple(mask.shape)}.")
        return mask | chosen
    if chosen.numel() == 0 or chosen.is_floating_point():
        raise BadInput(f"frames={frames!r}: name at least one frame, by whole numbers.")
    wrong = [int(f) for f in chosen.flatten() if not 0 <= int(f) < count]
    if wrong:
        raise BadInput(f"frame {wrong[0]} does not exist: the inputs have frames 0 to {count - 1}.")
    mask[:, chosen.flatten()] = True
    return mask


def _each_frame(net: Network, centre: Tensor, prop: Property, norm: float, members: list[int]) -> Problem:
    """Every input once for each of its frames."""
    batch, count = len(centre), centre.shape[1] if centre.dim() > 1 else 0
    whole = _region(net, centre, norm, "all")
    if not isinstance(whole, Frames):
        raise BadInput("frames='each' needs a norm p >= 1.")
    rows = torch.arange(batch, device=centre.device).repeat_interleave(count)
    base = Problem(net, whole, prop, "radius", tuple(Key(i) for i in members)).take(rows)
    assert isinstance(base.region, Frames)
    single = Frames(
        base.region.centre, base.region.radius, norm, net.domain,
        mask=torch.eye(count, dtype=torch.bool, device=centre.device).repeat(batch, 1),
    )  # fmt: skip
    return Problem(net, single, base.property, "radius", tuple(Key(i, k) for i in members for k in range(count)))
