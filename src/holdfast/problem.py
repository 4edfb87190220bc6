"""A question: a network, a region around each input, a property that must hold there, and the number asked for."""

import builtins
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from holdfast import batch, time_limit
from holdfast.errors import BadInput
from holdfast.network import Network
from holdfast.network.callable_fingerprint import of_rows, of_value
from holdfast.network.network import ELEMENTS_IN_TIME, ELEMENTS_PER_CALL
from holdfast.property import Linear, Property
from holdfast.region import Family, Region, Words
from holdfast.result import Goal, Key

__all__ = ["Goal", "Problem", "merge"]
TURNED: tuple[Goal, ...] = ("largest", "steepness")  # searched as the smallest of the negative


@dataclass(frozen=True, eq=False)
class Problem:
    """radius: how far may the region grow before the property can fail? worst: the property's smallest score over the region. largest:
    its largest, of a property with a single row. steepness: the largest change of the score over the distance to the input, DeepQuant's Q.

    judges  the same network on other machinery: a witness counts only where they agree. The user's own model is one wherever the network
            was read from it.
    """

    network: Network
    region: Region
    property: Property
    goal: Goal
    keys: tuple[Key, ...] = ()  # one for each row of the batch; by default, by their places
    judges: tuple[Network, ...] = ()

    def __post_init__(self) -> None:
        own = self.network.itself
        if own is not None and all(judge is not own for judge in self.judges):
            object.__setattr__(self, "judges", (own, *self.judges))
        object.__setattr__(self, "keys", self.keys or tuple(Key(i) for i in range(len(self.region))))
        object.__setattr__(self, "region", batch.move(self.region, self.network.device))
        object.__setattr__(self, "property", batch.move(self.property, self.network.device))

    def __len__(self) -> int:
        return len(self.region)

    @builtins.property  # `property` is a field here
    def family(self) -> Family:
        assert isinstance(self.region, Family)
        return self.region

    def answers(self, x: Tensor, twin: Network | None = None) -> Tensor:
        """(batch, *shape) -> (batch, outputs): what the user's own model says, asked with tokens where the points are sentences, or what
        its twin says."""
        if twin is None and isinstance(self.region, Words) and self.network.token_model is not None:
            return self.network.ask_tokens(self.region.decode(x).clamp_min(0))
        return (twin or self.network)(x)

    def score(self, x: Tensor) -> Tensor:
        """(..., batch, *shape) -> (..., batch)."""
        lead = x.shape[: x.dim() - len(self.region.shape)]
        outputs = self.network(x.reshape(math.prod(lead), *self.region.shape))
        return self.property.score(outputs.reshape(*lead, -1))

    def score_and_gradient(
        self, x: Tensor, score: Callable[[Tensor], Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        """(..., batch, *shape) -> scores (..., batch), gradients (..., batch, *shape). score: (k, batch, outputs) -> (k, batch), where it
        is not that of the property."""
        stacked, scored = x.reshape(-1, len(self), *self.region.shape), score or self.property.score

        def flat(outputs: Tensor) -> Tensor:
            return scored(outputs.reshape(-1, len(self), outputs.shape[-1])).flatten()

        # Whole batches at a time, as many as one pass may hold: the property knows its rows by their place.
        numbers = time_limit.at_once(ELEMENTS_PER_CALL, ELEMENTS_IN_TIME, x.device)
        at_once = max(1, numbers // max(1, stacked[0].numel()))
        parts = [self.network.score_and_gradient(part.flatten(0, 1), flat) for part in stacked.split(at_once)]
        scores, gradients = (torch.cat(found) for found in zip(*parts, strict=True))
        return scores.reshape(x.shape[: x.dim() - len(self.region.shape)]), gradients.reshape(x.shape)

    def take(self, rows: Tensor) -> "Problem":
        keys = tuple(self.keys[i] for i in torch.arange(len(self))[rows.cpu()].tolist())
        return replace(
            self, region=batch.take(self.region, rows), property=batch.take(self.property, rows), keys=keys
        )

    def tile_radii(self, radii: Tensor) -> "Problem":
        """(k, batch) radii -> one problem of k * batch rows: the whole batch at the first radius, at the second, ..."""
        rows = torch.arange(len(self), device=self.region.centre.device).repeat(len(radii))
        copies = self.take(rows)
        return replace(copies, region=copies.family.at(radii.flatten().to(self.family.radius)))

    def check(self) -> None:
        """Raise BadInput for whatever would only come to light after long work."""
        if len(self.keys) != len(self):
            raise BadInput(f"{len(self.keys)} keys for {len(self)} inputs.")
        if self.goal in ("radius", "steepness") and not isinstance(self.region, Family):
            raise BadInput(
                f"a {type(self.region).__name__} does not grow with a radius; ask hf.worst about it, or use a Ball."
            )
        if self.goal == "largest" and not isinstance(self.property, Linear):
            raise BadInput(
                f"the largest score of {type(self.property).__name__} cannot be asked for: use Linear, with a single row."
            )
        self.property.check(len(self), self.network.outputs_for(self.region.centre))

    def lowest(self) -> "Problem":
        """What methods are asked: the largest value is the smallest of the negative."""
        if self.goal != "largest":
            return self
        assert isinstance(self.property, Linear)
        return replace(self, property=Linear(-self.property.matrix, -self.property.offset), goal="worst")

    def digests(self) -> list[str]:
        """For each row the hash of what is asked there: the network, the goal, the region and the property."""
        shared = [
            self.network.identity(self.region.centre),
            self.goal,
            batch.settings(self.region),
            batch.settings(self.property),
        ]
        return of_rows(of_value(shared), [*batch.tensors(self.region), *batch.tensors(self.property)])

    def mergeable(self) -> tuple[object, ...]:
        """Problems with equal answers here can be solved as one batch."""
        return (
            id(self.network),
            *map(id, self.judges),
            self.goal,
            batch.signature(self.region),
            batch.signature(self.property),
        )


def merge(problems: list[Problem]) -> Problem:
    """One problem whose rows are all their rows in order; they must be `mergeable`."""
    return replace(
        problems[0],
        region=batch.concatenate([p.region for p in problems]),
        property=batch.concatenate([p.property for p in problems]),
        keys=tuple(key for p in problems for key in p.keys),
    )
