"""Output abstractions: the class, the bin of a number, or its distance to the original value."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from holdfast.errors import BadInput


class Output(ABC):
    """Maps outputs (n, o) to labels (n,). `reference` (n, o) holds the outputs without a mutation."""

    kind: ClassVar[str]

    @abstractmethod
    def labels(self, outputs: Tensor, reference: Tensor) -> Tensor:
        """(n, o) twice -> (n,) int64."""

    def own(self, reference: Tensor) -> Tensor:
        """(n, o) -> (n,): the network's own label, which a mutant keeps or not."""
        return self.labels(reference, reference)

    @abstractmethod
    def margins(self, outputs: Tensor, reference: Tensor) -> Tensor:
        """(n,): how far each output may move before the label can change; NaN for NaN outputs."""

    @abstractmethod
    def count(self, outputs: int) -> int:
        """The number of labels for a network with this number of outputs; BadInput if they do not fit."""

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Return the settings in JSON form."""


@dataclass(frozen=True)
class Classes(Output):
    """The class with the largest output; the first of equals.

    As in a certificate, a class is kept only if its output is strictly above every other, so a tie counts as
    a change. A mutant for which the reference's class ties for the largest output gets the first of the other
    classes; so does the original itself if it ties.
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
        return (best[:, 0] - best[:, 1]) / 2  # both outputs may move

    def count(self, outputs: int) -> int:
        if outputs < 2:
            raise BadInput(
                "the network has one output, so there is no class to keep: use Bins((0.0,)) for a logit, or "
                "Tolerance(width)."
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
            raise BadInput(f"the edges of bins must be ascending numbers, got {self.edges}.")

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
    """One output against its unmutated value: 0 below by more than the width, 1 within, 2 above."""

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
        # The reference may move too.
        return (self._outputs_moved(outputs, reference).abs() - self.width).abs() / 2

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
    """Build an output abstraction from its settings. TypeError or ValueError if they are invalid."""
    for kind in KINDS:
        if kind.kind == settings.get("kind"):
            found = kind(**{key: value for key, value in settings.items() if key != "kind"})
            if type(getattr(found, "output", 0)) is not int:
                raise TypeError("the output is not an integer")
            return found
    raise BadInput(
        f"there is no output abstraction {settings.get('kind')!r}; was this written by a newer version?"
    )
