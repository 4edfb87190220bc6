"""A problem: a network, a perturbation set around each input, a property, and the quantity to bound."""

import builtins
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from holdfast import batch, time_limit
from holdfast.errors import BadInput
from holdfast.goals import Goal, Objective, objective_of
from holdfast.memory_budget import LARGE_INPUT_NUMBERS, rows_per_call
from holdfast.network import Network
from holdfast.network.callable_fingerprint import of_rows, of_value
from holdfast.network.network import ELEMENTS_PER_CALL, ELEMENTS_PER_TIMED_CALL
from holdfast.property import Linear, Property
from holdfast.region import Family, Region
from holdfast.result import Key

__all__ = ["Goal", "Problem", "merge"]


@dataclass(frozen=True, eq=False)
class Problem:
    """A batch of questions about one network.

    Attributes:
        network: the network under test.
        region: the perturbation set of each row.
        property: what must hold.
        goal: the quantity to bound. radius: how far the region may grow before the property can fail. worst:
            the smallest score of the property over the region. largest: its largest score, for a property
            with a single row. steepness: the largest change of the score divided by the distance to the input
            (DeepQuant's Q).
        keys: one for each row of the batch. Default: their positions.
        judges: the same network in other implementations; a counterexample counts only where they agree.
            Where the network was read from the user's own model, that model is one of them.
        evaluate_alone: a counterexample counts only if the network answers the same to it without other rows.
    """

    network: Network
    region: Region
    property: Property
    goal: Goal
    keys: tuple[Key, ...] = ()
    judges: tuple[Network, ...] = ()
    evaluate_alone: bool = False

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
        assert isinstance(self.region, Family)  # `check` has asked whether it grows
        return self.region

    @builtins.property
    def objective(self) -> Objective:
        return objective_of(self.goal)

    @builtins.property
    def bounds_radius(self) -> bool:
        """Whether the region grows until the property fails; otherwise the region is given."""
        return self.objective.bounds_radius

    def region_with_extent(self) -> Region:
        """Return the region, at radius 1 if it grows: at radius 0, where searches begin, nothing can change."""
        return self.family.at(1.0) if self.bounds_radius else self.region

    def limit(self) -> Tensor:
        """Return (batch,): the value that represents infinity: a region does not grow beyond its limit."""
        if self.bounds_radius:
            return self.family.limit()
        return torch.full((len(self),), math.inf)

    def answers(self, x: Tensor, twin: Network | None = None) -> Tensor:
        """(batch, *shape) -> (batch, outputs): outputs of the user's model, or of `twin`.

        Sentences are given to the model as token ids.
        """
        if self.region.changes_length:
            return self.answers_to_texts(self.region.texts_read(x), precise=twin is not None)
        if twin is None and self.region.embedded and self.network.token_model is not None:
            return self.network.ask_tokens(self.region.as_data(x).clamp_min(0))
        return (twin or self.network)(x)

    def answers_to_texts(self, texts: Sequence[tuple[int, ...]], *, precise: bool = False) -> Tensor:
        """Outputs (n, outputs) for texts of any lengths, as token ids. Only texts of one length share a batch, and
        none is filled up.

        precise: by the network in float64, where there is one.
        """
        places: dict[int, list[int]] = {}
        for place, text in enumerate(texts):
            places.setdefault(len(text), []).append(place)
        device, vectors, answers = self.network.device, self.network.vectors, dict[int, Tensor]()
        assert vectors is not None
        for length, some in places.items():
            numbers = time_limit.at_once(ELEMENTS_PER_CALL, ELEMENTS_PER_TIMED_CALL, device)
            rows = rows_per_call(length * vectors.shape[1], numbers)
            for begin in range(0, len(some), rows):
                part = some[begin : begin + rows]
                tokens = torch.tensor([texts[place] for place in part], device=device)
                answers.update(zip(part, self._answers_to_tokens(tokens, precise), strict=True))
        return torch.stack([answers[place] for place in range(len(texts))])

    def _answers_to_tokens(self, tokens: Tensor, precise: bool) -> Tensor:
        vectors = self.network.vectors
        assert vectors is not None
        if self.network.token_model is not None and not precise:
            return self.network.ask_tokens(tokens)
        points = vectors[tokens.to(vectors.device)]
        twin = self.network.double(points) if precise else None
        return (twin or self.network)(points)

    def answers_to_data(self, data: Tensor) -> Tensor:
        """(n, *data shape) -> (n, outputs): outputs of the user's model for inputs as users give them."""
        if self.region.changes_length:
            return self.answers_to_texts(self.region.texts_read(data))
        if self.region.embedded and self.network.token_model is not None:
            return self.network.ask_tokens(data)
        points = self.region.from_data(data)
        assert points is not None
        return self.network(points)

    def score(self, x: Tensor) -> Tensor:
        """(..., batch, *shape) -> (..., batch)."""
        lead = x.shape[: x.dim() - len(self.region.shape)]
        outputs = self.network(x.reshape(math.prod(lead), *self.region.shape))
        return self.property.score(outputs.reshape(*lead, -1))

    def score_and_gradient(
        self, x: Tensor, score: Callable[[Tensor], Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        """(..., batch, *shape) -> scores (..., batch), gradients (..., batch, *shape).

        score: another score than the property's, (k, batch, outputs) -> (k, batch).
        """
        stacked, scored = x.reshape(-1, len(self), *self.region.shape), score or self.property.score

        def flat(outputs: Tensor) -> Tensor:
            return scored(outputs.reshape(-1, len(self), outputs.shape[-1])).flatten()

        # Only whole batches are passed on, because the property identifies rows by their position.
        numbers = time_limit.at_once(ELEMENTS_PER_CALL, ELEMENTS_PER_TIMED_CALL, x.device)
        rows = rows_per_call(math.prod(self.region.shape), numbers)
        if score is None and math.prod(self.region.shape) >= LARGE_INPUT_NUMBERS and rows < len(self):
            # Of large inputs not even a whole batch fits into one call.
            each = [
                self.take(some).score_and_gradient(stacked[:, some])
                for some in torch.arange(len(self), device=x.device).split(rows)
            ]
            scores, gradients = (torch.cat(found, 1) for found in zip(*each, strict=True))
            return scores.reshape(x.shape[: x.dim() - len(self.region.shape)]), gradients.reshape(x.shape)
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
        """Return a problem of k * batch rows for (k, batch) radii: the batch at the first radius, at the
        second, ...
        """
        rows = torch.arange(len(self), device=self.region.centre.device).repeat(len(radii))
        copies = self.take(rows)
        return replace(copies, region=copies.family.at(radii.flatten().to(self.family.radius)))

    def check(self) -> None:
        """Raise BadInput for everything that would otherwise be found after long work."""
        if len(self.keys) != len(self):
            raise BadInput(f"{len(self.keys)} keys for {len(self)} inputs.")
        if self.objective.needs_distance and not self.region.grows:
            raise BadInput(
                f"a {type(self.region).__name__} does not grow with a radius; ask hf.worst about it, or "
                "use a Ball."
            )
        if self.goal == "largest" and not isinstance(self.property, Linear):
            raise BadInput(
                f"the largest score of {type(self.property).__name__} cannot be asked for: use Linear, "
                "with a single row."
            )
        self.property.check(len(self), self.network.outputs_for(self.region.centre))

    def lowest(self) -> "Problem":
        """Return the problem as methods solve it: a maximum becomes the minimum of the negative."""
        if self.goal != "largest":
            return self
        assert isinstance(self.property, Linear)
        return replace(self, property=Linear(-self.property.matrix, -self.property.offset), goal="worst")

    def digests(self) -> list[str]:
        """Return a hash of the network, the goal, the region and the property for each row."""
        shared = [
            self.network.identity(self.region.centre),
            self.goal,
            batch.settings(self.region),
            batch.settings(self.property),
        ]
        return of_rows(of_value(shared), [*batch.tensors(self.region), *batch.tensors(self.property)])

    def mergeable(self) -> tuple[object, ...]:
        """Return a value that is equal for problems that can be solved as one batch."""
        return (
            id(self.network),
            *map(id, self.judges),
            self.evaluate_alone,
            self.goal,
            batch.signature(self.region),
            batch.signature(self.property),
        )


def merge(problems: list[Problem]) -> Problem:
    """Concatenate the rows of problems whose `mergeable` values are equal."""
    return replace(
        problems[0],
        region=batch.concatenate([p.region for p in problems]),
        property=batch.concatenate([p.property for p in problems]),
        keys=tuple(key for p in problems for key in p.keys),
    )
