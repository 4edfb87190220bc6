"""Search for a large Q by gradients: Q = max over r of (the largest change of the score at distance r) / r.

The search first follows the steepest directions at the input itself: as r tends to 0, the ratio along them
tends to the dual norm of the gradient. It then descends and ascends at several radii in one batch, and again
at radii closer around the best one.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from holdfast.attacks.descent import broadcast_rows, select_nearest
from holdfast.lipschitz.ratio import Guide, QueryTally
from holdfast.lipschitz.ray_search import regions_at_radii
from holdfast.random_streams import RandomStreams
from holdfast.region import Region

# Number of radii, halved from one to the next, along each steepest direction at the input (chosen by hand).
HALVINGS = 13


@dataclass(frozen=True, eq=False)
class SteepestSides:
    """The best points at which the score falls (index 0) and rises (index 1)."""

    ratio: Tensor  # (2, batch)
    point: Tensor  # (2, batch, *shape)

    def update(self, region: Region, x: Tensor, change: Tensor, ratio: Tensor) -> "SteepestSides":
        """Return the sides after evaluating points x (k, batch, *shape), given the change of the score and
        the ratio at each, (k, batch).
        """
        least = [torch.where(change * side > 0, -ratio, 0.0) for side in (-1, 1)]
        found = [select_nearest(region, x, values) for values in least]
        ratios, points = (
            -torch.stack([value for _, value in found]),
            torch.stack([point for point, _ in found]),
        )
        better = ratios > self.ratio
        return SteepestSides(
            torch.where(better, ratios, self.ratio),
            torch.where(broadcast_rows(better, region), points, self.point),
        )

    def at(self, which: Tensor) -> Tensor:
        """Map (k, batch) of 0 and 1 to the best points of these sides, (k, batch, *shape)."""
        wide = which.reshape(*which.shape, *(1 for _ in self.point.shape[2:]))
        return self.point.gather(0, wide.expand(-1, *self.point.shape[1:]))


@dataclass(frozen=True, eq=False)
class GradientSearchState:
    """The state of the gradient search.

    Attributes:
        began: queries of each row before the search.
        end: queries of each row after which it ends.
        turn: number of grids of radii that were searched.
    """

    began: int
    end: int
    sides: SteepestSides
    turn: int
    chance: RandomStreams


@dataclass(frozen=True)
class Slopes:
    """Rounds of gradient steps from the best points found, in every third round from random points; the two
    guides take turns.

    In the first half of the budget both sides (the score falls, the score rises) are followed, in the second
    half only the better one.

    Attributes:
        radii: radii of each side in one batch; each costs one query with its gradient a step.
        steps: gradient steps before the radii are chosen again.
    """

    radii: int = 4  # radii of each side in one batch
    steps: int = 12  # gradient steps at each choice of radii

    def start(self, tally: QueryTally, end: int, chance: RandomStreams) -> GradientSearchState:
        began, family = tally.queries, tally.problem.family
        nothing = torch.zeros(2, len(family), dtype=torch.float64, device=family.centre.device)
        sides = SteepestSides(nothing, family.centre.expand(2, *family.centre.shape))
        for guide in _guides(tally):
            sides = self._steepest(tally, end, guide, sides)
        return GradientSearchState(began, end, sides, 0, chance)

    def advance(self, tally: QueryTally, state: GradientSearchState) -> GradientSearchState:
        """Choose a grid of radii and take `steps` gradient steps at all of them."""
        family, sides, turn = tally.problem.family, state.sides, state.turn
        both = tally.queries - state.began < (state.end - state.began) / 2
        rows = torch.arange(2, device=family.centre.device)[:, None].expand(2, len(family))
        which = (rows if both else sides.ratio.argmax(0).expand(2, -1)).repeat_interleave(self.radii, 0)
        point, fresh = sides.at(which), turn % 3 == 2
        radii = self._ladder(tally, family.distance(point), turn, both)
        chance = state.chance.substream(turn).tile(len(radii))
        start = (
            regions_at_radii(family, radii).sample(1, chance).reshape(point.shape)
            if fresh
            else _scale_to_radii(tally, point, radii)
        )
        sides = self._climb(tally, radii, start, state.end, _guides(tally)[turn % 2], which, sides)
        return replace(state, sides=sides, turn=turn + 1)

    def _ladder(self, tally: QueryTally, best: Tensor, turn: int, both: bool) -> Tensor:
        """Map the distances of the best points (2 radii, batch) to radii around them, closer in later turns;
        in the first turn radii of all sizes.
        """
        if turn == 0:
            return (
                tally.radius
                * 2.0 ** -torch.arange(self.radii, dtype=torch.float64, device=best.device).repeat(2)[:, None]
            )
        ladders, count = (2, self.radii) if both else (1, 2 * self.radii)
        powers = torch.linspace(-1, 1, count, dtype=torch.float64, device=best.device).repeat(ladders)[
            :, None
        ]
        wide = 1.5 if turn % 3 == 2 else 1 + 0.5 ** (1 + turn // 3)
        return torch.minimum(best * wide**powers, tally.radius)

    def _steepest(self, tally: QueryTally, end: int, guide: Guide, sides: SteepestSides) -> SteepestSides:
        """Evaluate the steepest descent and ascent directions of the guide at the input."""
        family = tally.problem.family
        if tally.queries >= end:
            return sides
        _, _, gradient = tally.query_with_gradients(family.centre[None], guide)
        slopes = torch.cat([gradient, -gradient]).repeat_interleave(HALVINGS, 0)[: end - tally.queries]
        if not len(slopes):
            return sides
        halving = 2.0 ** -torch.arange(HALVINGS, dtype=torch.float64, device=slopes.device)[:, None]
        regions = regions_at_radii(family, (tally.radius * halving).repeat(2, 1)[: len(slopes)])
        x = regions.vertex(slopes.flatten(0, 1)).reshape(slopes.shape)
        return sides.update(family, x, *tally.query(x))

    def _climb(
        self,
        tally: QueryTally,
        radii: Tensor,
        x: Tensor,
        end: int,
        guide: Guide,
        which: Tensor,
        sides: SteepestSides,
    ) -> SteepestSides:
        """Take gradient steps at every radius: descend the guide where `which` is 0, ascend it where it
        is 1.
        """
        family, regions = tally.problem.family, regions_at_radii(tally.problem.family, radii)
        downhill = broadcast_rows(1 - 2 * which, family)
        for step in range(self.steps):
            x = x[: end - tally.queries]
            if len(x) < len(radii):  # The budget does not allow a full step.
                return sides.update(family, x, *tally.query(x)) if len(x) else sides
            change, ratio, gradient = tally.query_with_gradients(x, guide)
            sides = sides.update(family, x, change, ratio)
            pace = 0.5 * (1 - step / self.steps) + 0.02
            target = regions.vertex((gradient * downhill).flatten(0, 1))
            x = regions.project(x.flatten(0, 1) + pace * (target - regions.centre)).reshape(x.shape)
        return sides


def _guides(tally: QueryTally) -> tuple[Guide, Guide]:
    """Return the scores whose gradients are followed in turn: the smoothed score and the score of the
    specification.
    """
    return tally.smoothed_score, tally.problem.property.score


def _scale_to_radii(tally: QueryTally, point: Tensor, radii: Tensor) -> Tensor:
    """Scale the points (k, batch, *shape) to the distances `radii` (k, batch) from the input."""
    family = tally.problem.family
    scale = radii / family.distance(point).clamp_min(torch.finfo(torch.float64).tiny)
    x = family.centre + (point - family.centre) * broadcast_rows(scale, family).to(family.centre)
    return regions_at_radii(family, radii).project(x.flatten(0, 1)).reshape(x.shape)
