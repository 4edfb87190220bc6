"""One column of a table: the radii of one tier, and the CPU seconds of its proofs alone."""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, get_args

import torch
from torch import Tensor

import holdfast as hf
from holdfast.api.methods import Tier, default_methods
from holdfast.api.perturbation import FramesOption
from holdfast.bounding import first_bounds


@dataclass(frozen=True)
class Column:
    radii: Tensor  # (inputs,)
    seconds: float  # CPU seconds of one core for each input.

    @property
    def mean(self) -> float:
        return float(self.radii.mean())

    def __str__(self) -> str:
        return f"{self.mean:.4f} ({self.seconds:.2g})"


def tiers() -> list[str]:
    """The tiers with a certified lower bound."""
    return [t for t in get_args(Tier) if t != "search"]


def proofs(net: hf.Network, tier: str) -> list[hf.Method[Any]]:
    """The methods of a tier that certify lower bounds."""
    searches = {m.name for m in default_methods(net, "radius", "search")}
    return [m for m in default_methods(net, "radius", tier) if m.name not in searches]  # type: ignore[arg-type]


def measure(
    net: hf.Network,
    x: Tensor,
    y: Tensor,
    targets: Tensor,
    norm: float,
    tier: str,
    frames: FramesOption,
    seconds: float | None = None,
) -> Column:
    """Certified lower bounds of a tier without its attacks; for tier 'search', the attacks' upper bounds.

    `seconds` limits the time for one input.
    """
    stop = hf.Stop(seconds=None if seconds is None else seconds * len(x))
    methods = proofs(net, tier) or default_methods(net, "radius", "search")
    hf.radius(
        net,
        x[:1],
        y[:1],
        norm=norm,
        frames=frames,
        targets=targets[:1],
        methods=[hf.certify.Certify(rounds=1)],
    )  # Trace the network first; this is not timed.
    began = time.process_time()
    brackets = hf.radius(net, x, y, norm=norm, frames=frames, targets=targets, methods=methods, stop=stop)
    spent = (time.process_time() - began) / len(x)
    assert all(isinstance(b, hf.Bracket) for b in brackets)
    return Column(
        torch.tensor([b.upper.value if tier == "search" else b.lower.value for b in brackets]), spent
    )  # type: ignore[union-attr]


@contextlib.contextmanager
def backward_passes_only() -> Iterator[None]:
    """Bound recurrent networks by backward passes alone, as POPQORN does, without affine forms."""
    own = first_bounds._make_plan
    first_bounds._plans.clear()
    first_bounds._make_plan = lambda graph: None
    try:
        yield
    finally:
        first_bounds._make_plan = own
        first_bounds._plans.clear()
