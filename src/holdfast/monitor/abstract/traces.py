"""Traces of a recurrent network on training data, from which both abstract models are built."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

from torch import Tensor

from holdfast.monitor.engine.exact import labels
from holdfast.monitor.engine.state_view import StateView, open_network
from holdfast.monitor.mutation.choices import Mutation
from holdfast.monitor.outputs import Classes, Output
from holdfast.network import Network


@dataclass(frozen=True)
class Mutants:
    """The successors of the mutants of attackable elements, including the original."""

    successors: Tensor  # (mutants, d)
    of: Tensor  # (mutants,) the transition of which it is a mutant
    probability: Tensor  # (mutants,)


@dataclass(frozen=True)
class Traces:
    """N transitions s --x, y--> s' of unmutated sequences, with the labels that mutants emit."""

    states: Tensor  # (N, d) float32, before the element
    successors: Tensor  # (N, d)
    elements: Tensor  # (N,) or (N, frame)
    abstract: Tensor  # (N,) long, the element's group
    labels: Tensor  # (N,) long, emitted
    gamma: Tensor  # (N, labels) float64, 0-step
    sequence: Tensor  # (N,) long
    place: Tensor  # (N,) long
    attackable: Tensor  # (N,) bool: the element has other mutants than itself
    margins: Tensor  # (N,) float32, margin of the emitted label: known at run time
    mutants: Mutants | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def scores(self) -> Tensor:
        """(N,) float64: the probability that a mutant keeps the label (0-step robustness)."""
        return self.gamma.gather(1, self.labels[:, None])[:, 0]

    def rows(self, chosen: Tensor) -> "Traces":
        """Select transitions by a mask or by indices, without their mutants."""
        return Traces(**{f.name: getattr(self, f.name)[chosen] for f in fields(self) if f.name != "mutants"})


def profile(
    net: Network,
    sequences: Sequence[Any],
    mutation: Mutation,
    outputs: Output | None = None,
    view: StateView | Literal["find"] | None = "find",
    *,
    mutants: bool = False,
) -> Traces:
    """Record every transition of these sequences, with exact 0-step distributions.

    mutants: also record the successors of mutants, which the corrected k-step robustness needs. A black box
    (view=None) has no visible states: its outputs take their place, with zeros before the first element.
    """
    outputs = outputs or Classes()
    found = open_network(net) if view == "find" else view
    keep: Literal["labels", "states", "mutants"] = (
        "labels" if found is None else "mutants" if mutants else "states"
    )
    seen = labels(net, sequences, mutation, outputs=outputs, keep=keep, view=found, apart=False)
    states, successors = seen.states, seen.successors
    if states is None or successors is None:
        successors = seen.outputs
        states = successors.roll(1, 0) * (seen.place > 0)[:, None]
    went = None
    if seen.mutants is not None and seen.of is not None and seen.probability is not None:
        went = Mutants(seen.mutants, seen.of, seen.probability)
    return Traces(
        states,
        successors,
        seen.elements,
        mutation.abstract(seen.elements),
        seen.labels,
        seen.gamma,
        seen.sequence,
        seen.place,
        seen.attackable,
        outputs.margins(seen.outputs, seen.outputs),
        went,
    )
