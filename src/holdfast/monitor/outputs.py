"""What of an output matters: the class, the bin of a number, or that it stays close to what it was."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from holdfast.errors import BadInput


class Output(ABC):
    """Outputs (n, o) -> labels (n,). `reference` (n, o) holds what the network answers without a mutation."""

    kind: ClassVar[str]

    @abstractmethod
    def labels(self, outputs: Tensor, reference: Tensor) -> Tensor:
        """-> (n,) int64."""

    def own(self, reference: Tensor) -> Tensor:
        """(n, o) -> (n,): the label that the network emits, which a mutant keeps or not."""
        return self.labels(reference, reference)

    @abstractmethod
    def margins(self, outputs: Tensor, reference: Tensor) -> Tensor:
        """-> (n,): how far an output may move, in its own units, before the label can change; NaN where it is no number."""

    @abstractmethod
    def count(self, outputs: int) -> int:
        """How many labels there are for a network with so many outputs; BadInput where they do not fit."""

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """What JSON can hold."""


@dataclass(frozen=True)
class Classes(Output):
    """The class with the largest output; the first where several are equal.

    A class is kept only where its output is strictly above every other, as in a certificate: a tie is a loss. A mutant for which the
    reference's class shares the largest output counts for the first of the others; so does the original itself, if it ties.
    """

    kind: ClassVar[str] = "classes"

    def own(self, reference: Tensor) -> Tensor:
        return reference.argmax(1)

    def labels(self, outputs: Tensor, reference: Tensor) -> Tensor:
        label = outputs.argmax(1)
        tied = (outputs == outputs.amax(1, keepdim=True)).sum(1) > 1
        if bool(tied.any()):
            largest = outputs[tied] == outputs[tied].amax(1, keepdim=True)
            label[tied] = (
                largest.scatter(1, reference[tied].argmax(1)[:, None], False).to(torch.uint8).argmax(1)
            )
        return label

    def margins(self, outputs: Tensor, reference: Tensor) -> Tensor:
        best = outputs.topk(2, dim=1).values
        return (best[:, 0] - best[:, 1]) / 2  # both may move

    def count(self, outputs: int) -> int:
        if outputs < 2:
            raise BadInput(
                "the network has one output, so there is no class to keep: use Bins((0.0,)) for a logit, or Tolerance(width)."
            )
        return outputs

    def settings(self) -> dict[str, Any]:
        return {"kind": self.kind}


@dataclass(frozen=True)
class Bins(Output):
    """The bin of one output: label i where edges[i - 1] <= value < edges[i]."""

    edges: tuple[float, ...]
    output: int = 0
    kind: ClassVar[str] = "bins"

    def __post_init__(self) -> None:
        object.__setattr__(self, "edges", tuple(float(edge) for edge in self.edges))
        if (
            not self.edges
            or not all(math.isfinite(e) for e in self.edges)
            or list(self.edges) != sorted(set(self.edges))
        ):
            raise BadInput(f"the edges of bins must be numbers that rise, got {self.edges}.")

    def labels(self, outputs: Tensor, reference: Tensor) -> Tensor:
        value = outputs[:, self.output].double().contiguous()
        return torch.bucketize(value, self._ends(value), right=True)

    def margins(self, outputs: Tensor, reference: Tensor) -> Tensor:
        value = outputs[:, self.output].double()
        return (value[:, None] - self._ends(value)).abs().amin(1)

    def _ends(self, like: Tensor) -> Tensor:
        return torch.tensor(self.edges, dtype=torch.float64, device=like.device)

    def count(self, outputs: int) -> int:
        _check_output(self.output, outputs)
        return len(self.edges) + 1

    def settings(self) -> dict[str, Any]:
        return {"kind": self.kind, "edges": list(self.edges), "output": self.output}


@dataclass(frozen=True)
class Tolerance(Output):
    """One output against what it is without a mutation: 0 where it falls by more than the width, 1 within, 2 where it rises by more."""

    width: float
    output: int = 0
    kind: ClassVar[str] = "tolerance"

    def __post_init__(self) -> None:
        if not (self.width > 0 and math.isfinite(self.width)):
            raise BadInput(f"tolerance of width {self.width}: it must be a number above 0.")

    def labels(self, outputs: Tensor, reference: Tensor) -> Tensor:
        moved = self._outputs_moved(outputs, reference)
        return 1 + (moved > self.width).long() - (moved < -self.width).long()

    def margins(self, outputs: Tensor, reference: Tensor) -> Tensor:
        return (
            self._outputs_moved(outputs, reference).abs() - self.width
        ).abs() / 2  # the reference may move too

    def _outputs_moved(self, outputs: Tensor, reference: Tensor) -> Tensor:
        return outputs[:, self.output].double() - reference[:, self.output].double()

    def count(self, outputs: int) -> int:
        _check_output(self.output, outputs)
        return 3

    def settings(self) -> dict[str, Any]:
        return {"kind": self.kind, "width": self.width, "output": self.output}


def _check_output(output: int, outputs: int) -> None:
    if not 0 <= output < outputs:
        raise BadInput(f"output {output} does not exist: the network has {outputs} (0 to {outputs - 1}).")


KINDS: Sequence[type[Output]] = (Classes, Bins, Tolerance)


def restore(settings: Mapping[str, Any]) -> Output:
    """What `settings` wrote down. TypeError, ValueError where it is something else."""
    for kind in KINDS:
        if kind.kind == settings.get("kind"):
            found = kind(**{key: value for key, value in settings.items() if key != "kind"})
            if type(getattr(found, "output", 0)) is not int:
                raise TypeError("the output is no whole number")
            return found
    raise BadInput(
        f"no output abstraction is called {settings.get('kind')!r}; was this written by a newer version?"
    )
