"""Tighter proofs: trained planes below functions that bend at zero, then these functions bounded together, then second-order models whose
free coefficients are trained, at a radius that grows as they improve. Networks that have only some of them are proved by those.

Training works in float32, since any coefficients are sound; what it reaches is then proved in float64 with every rounding paid for.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from holdfast import batch, time_limit
from holdfast.bounding import joint_relu
from holdfast.bounding.alpha_beta_crown import arguments, relu_like_functions
from holdfast.bounding.bounder import TrainedBounder
from holdfast.bounding.coefficient_training import CoefficientAscent, Memory
from holdfast.bounding.drift_parameters import in_offsets
from holdfast.bounding.graph.graph import Graph
from holdfast.bounding.graph.problem_graph import ASSUMPTIONS, CHECKS, graph_of, rows_of
from holdfast.bounding.node_bounds import Boxes
from holdfast.bounding.quadratic_models import Bends, Quadratic
from holdfast.certify.certify import Certify, RadiusSearch
from holdfast.memory_budget import bytes_told, free_bytes
from holdfast.method import Claims, Method
from holdfast.problem import Problem
from holdfast.property import LinearProperty
from holdfast.region import Region
from holdfast.region.base import Counted
from holdfast.result import Traits
from holdfast.rounding import gamma

FURTHER = 1.03  # times what is proved, where training begins
GROWTH = 1.25  # times what is proved, as long as no radius has failed
PLANES_GROWTH = 1.08  # the same of trained planes, which win less
AHEAD = 1.03  # times the radius in training: planes are found again when it has passed that
MOST_ON_A_PROCESSOR = 2**25  # numbers in second-order models that are trained there
SPEED = 1e7  # of such numbers, those that a core trains in a second
CLOSE = 1.02  # of what failed and what is proved: near enough to begin training
COUPLED_CLOSE = 1.015  # the same of neurons that move together
HIGH = (
    0.7  # of the way to what was met they begin: what is trained at a larger radius soon proves a smaller one
)
STEEPER = 1.8  # times as much as on the way from the centre a bound falls where it fails
PLANES_CLOSE = 1.01  # the same of trained planes, after which there may be no training


@dataclass(frozen=True)
class Trial:
    """Row by row: the smallest radius at which trained planes, or the first coefficients of models, failed, and the scores on both sides of
    it."""

    high: Tensor  # (batch,)
    low_score: Tensor  # NaN where others proved it
    high_score: Tensor
    round: int = 0
    growth: float = GROWTH
    close: float = CLOSE

    @staticmethod
    def above(low: Tensor, growth: float = GROWTH, close: float = CLOSE) -> "Trial":
        nothing = torch.full_like(low, torch.nan)
        return Trial(torch.full_like(low, torch.inf), nothing, nothing, growth=growth, close=close)

    def next(self, low: Tensor) -> Tensor:
        share = (self.low_score / (self.low_score - self.high_score)).clamp(0.2, 0.8).nan_to_num(0.5)
        return torch.where(self.high.isinf(), self.growth * low, low + (self.high - low) * share)

    def add_score(self, radius: Tensor, score: Tensor) -> "Trial":
        """NaN where the clock left no time: those are tried again."""
        held, lost = score > 0, ~(score > 0) & ~score.isnan()
        return replace(
            self,
            high=torch.where(lost, radius, self.high),
            low_score=torch.where(held, score, self.low_score),
            high_score=torch.where(lost, score, self.high_score),
            round=self.round + int(not score.isnan().any()),
        )

    def open(self, low: Tensor) -> Tensor:
        """-> (batch,) bool: where the ends are not close yet."""
        return self.high > self.close * low

    def done(self, low: Tensor, rounds: int) -> bool:
        return self.round >= rounds or not bool(self.open(low).any())


@dataclass(frozen=True)
class Training:
    """Row by row: proved at `low` (a radius, or the score); `trying` is the radius in training, `reached` the best it passed."""

    search: RadiusSearch | None  # as long as the planes in closed form are not done
    low: Tensor  # (batch,)
    trying: Tensor  # (batch,)
    reached: Tensor  # (batch,)
    bends: Bends
    best: Bends  # those with which `reached` was passed
    step: int
    planes: Trial | None = None  # as long as the trained planes are not done
    joint: Trial | None = None  # as long as neurons that move together are not done
    trial: Trial | None = None  # as long as the first coefficients are not done
    memory: Memory | None = None  # of Adam
    numbers: joint_relu.Memory = field(default_factory=dict)  # of neurons that move together
    upper: Tensor | None = None  # (batch,): what was met by anyone
    fast: Tensor | None = None  # (batch,): what planes in closed form proved
    crowded: bool = False  # neurons that move together had too many variables


@dataclass(frozen=True)
class Tighten(Method[Training]):
    """First what Certify does, then, where functions bend at zero, trained planes at a few radii and these functions bounded together at
    `radii` more, then second-order models: with their first coefficients at a few radii, then `steps` steps of Adam, proved again after
    every `block` of them."""

    finds: ClassVar[str] = "larger proved lower ends"
    help: ClassVar[str] = (
        "linear bounds, then trained slopes (alpha-CROWN), ReLUs bounded together and trained second-order models"
    )
    traits: ClassVar[Traits] = Traits(seeded=False, glass=True)

    steps: int = 40
    block: int = 10
    rate: float = 0.02
    push: float = 0.01  # how much further to try once a radius has been passed
    trials: int = 4  # radii for trained planes
    first: int = 6  # and for models before training, whose steps each take as long as a radius
    radii: int = 6  # for neurons that move together
    few: int = 0  # up to so many neurons are not bounded together, since signs are soon decided

    def obstacle(self, problem: Problem) -> str | None:
        if not isinstance(problem.property, LinearProperty):
            return "proofs by training need a property in linear rows (Robustness, Targeted, Linear)"
        return Certify().obstacle(problem)

    def view(self, problem: Problem) -> Problem:
        return in_offsets(problem)

    def start(self, problem: Problem, seed: int) -> Training:
        none = torch.zeros(len(problem), dtype=torch.float64, device=problem.region.centre.device)
        low = none if problem.goal == "radius" else none - torch.inf
        return Training(Certify().start(problem, seed), low, none, none, {}, {}, 0)

    def update_bounds(self, problem: Problem, state: Training, lower: Tensor, upper: Tensor) -> Training:
        """Training goes on beyond what is proved."""
        state, better = replace(state, upper=upper), lower.isfinite() & (lower > state.low)
        if not bool(better.any()):
            return state
        search = (
            None if state.search is None else Certify().update_bounds(problem, state.search, lower, upper)
        )
        trying = torch.where(
            better & (problem.goal == "radius"), torch.maximum(state.trying, FURTHER * lower), state.trying
        )
        planes, trial = (
            t and replace(t, low_score=torch.where(better, torch.nan, t.low_score))
            for t in (state.planes, state.trial)
        )
        return replace(
            state,
            search=search,
            low=torch.where(better, lower, state.low),
            trying=trying,
            planes=planes,
            trial=trial,
        )

    def step(self, problem: Problem, state: Training) -> tuple[Training | None, Claims]:
        state, claims = self.advance(problem, state)
        return None if self.done(problem, state) else state, claims

    def advance(self, problem: Problem, state: Training) -> tuple[Training, Claims]:
        """One step, and what had to be left out when it ended a stage."""
        after, claims = self._advance(problem, state)
        return after, replace(claims, fallback="; ".join(self._left_out(problem, state, after)))

    def _left_out(self, problem: Problem, before: Training, after: Training) -> Iterator[str]:
        """The stages that end or would begin with this step and lack memory, size or time: each with the reason and what is used instead.
        Stages that have nothing to say about such a network are no loss."""
        if before.search is not None and after.search is None and after.planes is not None:
            planes = TrainedBounder(graph_of(problem))
            needed, room = planes.bytes_of_a_row(), free_bytes(problem.region.centre.device)
            if needed > room:
                yield (
                    f"trained linear bounds take {bytes_told(needed)} for a single row, and {bytes_told(room)} may be used: they were "
                    f"trained row by row, beyond that limit"
                )
        instead = (
            "trained linear bounds were used instead"
            if relu_like_functions(graph_of(problem))
            else "linear bounds in closed form were used instead"
        )
        passed_over = (
            before.planes is not None
            and after.planes is None
            and after.joint is None
            and self._wants_joint(problem)
        )
        if passed_over and joint_relu.obstacle(graph_of(problem), _unit(problem)) == joint_relu.TOO_LARGE:
            yield f"ReLUs were not bounded together ({joint_relu.TOO_LARGE}); {instead}"
        if after.crowded and not before.crowded:
            most = joint_relu.most_variables(graph_of(problem))
            yield f"ReLUs were not bounded together at some radii (more variables than {most}); {instead}"
        began = before.search is not None or before.planes is not None or before.joint is not None
        ended = after.search is None and after.planes is None and after.joint is None
        if began and ended and after.trial is None and not isinstance(problem.region, Counted):
            lack = models_lack(problem)
            if lack:
                yield f"second-order models were left out ({lack}); {instead}"
        if before.trial is not None and after.trial is None and self.steps and _lack(problem):
            yield f"{_untrainable(problem)}; second-order models with their first coefficients were used instead"

    def done(self, problem: Problem, state: Training) -> bool:
        if (
            state.search is not None
            or state.planes is not None
            or state.joint is not None
            or state.trial is not None
        ):
            return False
        return not state.bends or state.step >= self.steps or bool(_untrainable(problem))

    def _advance(self, problem: Problem, state: Training) -> tuple[Training, Claims]:
        if state.search is not None:
            search, claims = Certify().step(problem, state.search)
            if claims.proved is None:  # cut off
                return state, claims
            state = self._start_training(
                problem, replace(state, search=search, low=torch.fmax(state.low, claims.proved))
            )
            return state, replace(
                claims, obstacle=self._cannot(problem) if search is None and not models_lack(problem) else ""
            )
        if state.planes is not None:
            after = self._step_trained_bounds(problem, state)
            gained = bool((after.low > state.low + 1e-6 * state.low.abs()).any()) or not bool(
                state.planes.low_score.isnan().all()
            )
            more = (
                gained
                or after.joint is not None
                or after.trial is not None
                or (after.planes is not None and not time_limit.has_expired())
            )
            obstacle = (
                ""
                if more
                else f"trained planes prove no more than tier fast{' in the time there was' if time_limit.has_expired() else ''}"
            )
            return after, Claims(proved=after.low, assumptions=ASSUMPTIONS, checks=CHECKS, obstacle=obstacle)
        if state.joint is not None:
            state = self._step_joint_relus(problem, state)
            gained = state.fast is None or bool((state.low > state.fast + 1e-6 * state.fast.abs()).any())
            more = gained or state.joint is not None or state.trial is not None
            obstacle = (
                "" if more else "trained planes and neurons bounded together prove no more than tier fast"
            )
            return state, Claims(proved=state.low, assumptions=ASSUMPTIONS, checks=CHECKS, obstacle=obstacle)
        if state.trial is None:
            state = self._step_coefficients(problem, state)
            return state, Claims(proved=state.low, assumptions=ASSUMPTIONS, checks=CHECKS)
        state = self._step_first_coefficients(problem, state)
        return state, Claims(proved=state.low, assumptions=ASSUMPTIONS, checks=CHECKS)

    def _cannot(self, problem: Problem) -> str:
        """Why there is nothing to gain beyond planes in closed form."""
        if isinstance(problem.region, Counted):
            return "tier tight proves no more than tier fast of counts of changes"
        obstacle = None if relu_like_functions(graph_of(problem)) else no_models(problem)
        return "" if obstacle is None else f"tier tight proves no more than tier fast here: {obstacle}"

    def _start_training(self, problem: Problem, state: Training) -> Training:
        """Once the planes in closed form are done: trained ones, if the network has functions that bend at zero, else the models."""
        if state.search is not None or self._cannot(problem):
            return state
        if relu_like_functions(graph_of(problem)):
            return replace(state, planes=Trial.above(state.low, PLANES_GROWTH, PLANES_CLOSE), fast=state.low)
        return self._start_models(problem, state)

    def _start_models(self, problem: Problem, state: Training) -> Training:
        """The coefficients to train, if the network has second-order models."""
        if no_models(problem) is not None:
            return state
        bends = quadratic_of(problem).bends(len(problem), torch.float32)
        return replace(state, bends=bends, best=bends, reached=state.low, trial=Trial.above(state.low))

    def _step_trained_bounds(self, problem: Problem, state: Training) -> Training:
        """Trained planes, at one radius."""
        trial = state.planes
        assert trial is not None
        if problem.goal != "radius":
            state = replace(state, low=torch.fmax(state.low, _by_planes(problem)))
            return (
                state
                if time_limit.has_expired()
                else self._start_joint_relus(problem, replace(state, planes=None))
            )
        radius = problem.family.at(
            torch.minimum(trial.next(state.low), problem.family.limit())
        ).radius.double()
        score = torch.full_like(radius, -torch.inf)  # of rows with nothing to gain
        rows = ((state.low > 0) & (radius > state.low) & trial.open(state.low)).nonzero().flatten()
        if len(rows):
            score[rows] = _by_planes(problem.take(rows).tile_radii(radius[rows][None]))
        if time_limit.has_expired():
            score = torch.where(
                score > 0, score, torch.nan
            )  # training that was cut short says nothing of what it can reach
        low, trial = (
            torch.where(score > 0, torch.maximum(state.low, radius), state.low),
            trial.add_score(radius, score),
        )
        done = trial.done(low, self.trials)
        state = replace(state, low=low, trying=FURTHER * low, planes=None if done else trial)
        return self._start_joint_relus(problem, state) if done else state

    def _start_joint_relus(self, problem: Problem, state: Training) -> Training:
        """After trained planes: neurons that move together, where they are known, else the models."""
        if (
            not self._wants_joint(problem)
            or joint_relu.obstacle(graph_of(problem), _unit(problem)) is not None
        ):
            return self._start_models(problem, state)
        return replace(state, joint=Trial.above(state.low, GROWTH, COUPLED_CLOSE))

    def _wants_joint(self, problem: Problem) -> bool:
        return sum(node.size for node in arguments(graph_of(problem))) > self.few

    def _step_joint_relus(self, problem: Problem, state: Training) -> Training:
        """Neurons that move together, at one radius: between what is proved and what was met, or what failed."""
        trial, graph = state.joint, graph_of(problem)
        assert trial is not None
        matrix, offset = rows_of(problem, graph)
        if problem.goal != "radius":
            score = joint_relu.scores(graph, problem.region, matrix, offset, sign=False)
            low = torch.fmax(state.low, score)
            state = replace(state, crowded=state.crowded or bool((score == -torch.inf).any()))
            return (
                replace(state, low=low)
                if time_limit.has_expired()
                else self._start_models(problem, replace(state, low=low, joint=None))
            )
        upper = torch.full_like(state.low, torch.inf) if state.upper is None else state.upper
        further = torch.where(upper.isfinite(), state.low * (upper / state.low) ** HIGH, GROWTH * state.low)
        further = torch.where(trial.high.isinf(), further, self._between(problem, state.low, trial))
        radius = problem.family.at(torch.minimum(further, problem.family.limit())).radius.double()
        score = torch.full_like(radius, -torch.inf)  # of rows with nothing to gain
        rows = ((state.low > 0) & (radius > state.low) & trial.open(state.low)).nonzero().flatten()
        if len(rows):
            memory, part = dict(state.numbers), problem.take(rows).family.at(radius[rows])
            score[rows] = joint_relu.scores(
                graph, part, matrix[rows], offset[rows], sign=True, memory=memory, inputs=rows.tolist()
            )
            state = replace(
                state, numbers=memory, crowded=state.crowded or bool((score[rows] == -torch.inf).any())
            )
        low = torch.where(score > 0, torch.maximum(state.low, radius), state.low)
        trial = trial.add_score(radius, score)
        # Where there are too many variables at one radius, there are at the next.
        done = trial.done(low, self.radii) or bool((score == -torch.inf).all())
        state = replace(state, low=low, trying=FURTHER * low, joint=None if done else trial)
        return self._start_models(problem, state) if done else state

    def _between(self, problem: Problem, low: Tensor, trial: Trial) -> Tensor:
        """-> (batch,): where neurons that move together are tried next. What they lack at the radius that failed says how much smaller it
        has to be, as long as they have not proved any."""
        lack, score = -trial.high_score, problem.score(problem.region.centre).double()
        smaller = trial.high * (1 - lack / (STEEPER * (score + lack).clamp_min(1e-12)))
        share = torch.where(
            trial.low_score.isnan(), ((smaller - low) / (trial.high - low)).nan_to_num(0.5), 0.5
        )
        return low + share.clamp(0.1, 0.9) * (trial.high - low)

    def _step_first_coefficients(self, problem: Problem, state: Training) -> Training:
        """The first coefficients, proved at one radius."""
        trial = state.trial
        assert trial is not None
        if problem.goal != "radius":
            score = self._score(problem, problem.region, state.bends)
            low = torch.fmax(state.low, score)
            return replace(state, low=low, reached=low, trial=trial if bool(score.isnan().any()) else None)
        region = problem.family.at(torch.minimum(trial.next(state.low), problem.family.limit()))
        score = self._score(problem, region, state.bends)
        radius = region.radius.double()
        low = torch.where(score > 0, torch.maximum(state.low, radius), state.low)
        trial = trial.add_score(radius, score)
        done = trial.done(low, self.first)
        return replace(state, low=low, reached=low, trying=FURTHER * low, trial=None if done else trial)

    def _score(self, problem: Problem, region: Region, bends: Bends) -> Tensor:
        """-> (batch,): proved with these coefficients over the region, in float64; NaN where the clock left no time."""
        view = quadratic_of(problem)
        score = torch.full((len(problem),), torch.nan, dtype=torch.float64, device=view.graph.device)
        assert isinstance(problem.property, LinearProperty)
        matrix, offset = problem.property.rows(view.graph.output.size)
        for rows in _chunks(problem, view, training=False):
            if time_limit.has_expired():
                break
            part, mine = batch.take(region, rows), {k: v[:, rows].double() for k, v in bends.items()}
            bounds = time_limit.in_time(
                partial(view.with_planes, part, matrix[rows], offset[rows], mine), None
            )
            if bounds is None:
                break
            found = bounds.amin(1)
            score[rows] = torch.where(found.isfinite(), found, -torch.inf)  # what overflows proves nothing
        return score

    def _step_coefficients(self, problem: Problem, state: Training) -> Training:
        state = self._train_block(problem, state)
        low = torch.fmax(state.low, self._prove(problem, state))
        further = torch.where(low > state.low, FURTHER * low, 0) if problem.goal == "radius" else state.trying
        return replace(state, low=low, trying=torch.maximum(state.trying, further))

    def _train_block(self, problem: Problem, state: Training) -> Training:
        """`block` steps of Adam, every row at its own radius; fewer where the clock says so."""
        view = quadratic_of(problem)
        ascent = CoefficientAscent(list(state.bends.values()), memory=state.memory)
        bends = dict(zip(state.bends, ascent.values, strict=True))
        best = {k: v.clone() for k, v in state.best.items()}
        trying, reached = state.trying.clone(), state.reached.clone()
        parts = [_Part(view, problem.take(rows), rows) for rows in _chunks(problem, view, training=True)]
        step, last = state.step, min(self.steps, state.step + self.block)
        while step < last:
            slopes = [torch.zeros_like(value) for value in ascent.values]
            for part in parts:
                rows = part.rows
                mine = {k: v.detach()[:, rows].requires_grad_() for k, v in bends.items()}
                found = (
                    None
                    if time_limit.has_expired()
                    else time_limit.in_time(partial(part.climb, trying[rows], mine), None)
                )
                if found is None:
                    last = step
                    break
                score, gradients = found
                better = score > 0 if problem.goal == "radius" else score > reached[rows]
                reached[rows] = torch.where(
                    better, trying[rows] if problem.goal == "radius" else score, reached[rows]
                )
                trying[rows] = torch.where(better, trying[rows] * (1 + self.push), trying[rows])
                # Where models alone pass no radius yet, planes beside them may: the latest are tried.
                kept = better | ~_has_passed(problem, reached[rows], state.low[rows])
                for slope, gradient, (key, value) in zip(slopes, gradients, mine.items(), strict=True):
                    slope[:, rows] = gradient
                    best[key][:, rows] = torch.where(kept[:, None], value.detach(), best[key][:, rows])
            else:
                ascent.step(slopes, self.rate * 0.1 ** (step / self.steps))
                step += 1
        trained = {k: v.detach() for k, v in bends.items()}
        return replace(
            state, trying=trying, reached=reached, bends=trained, best=best, memory=ascent.memory, step=step
        )

    def _prove(self, problem: Problem, state: Training) -> Tensor:
        """-> (batch,): the largest of a few radii around the one reached that holds in float64, or the score."""
        if problem.goal != "radius":
            return self._score(problem, problem.region, state.best)
        proved, passed = (
            torch.full_like(state.low, -torch.inf),
            _has_passed(problem, state.reached, state.low),
        )
        for share in (0.0, 0.5, 0.95, 1.0):
            if share and time_limit.has_expired():
                break
            further = (
                state.low + (state.trying - state.low) * (1 + 3 * share) / 4
            )  # nothing was passed: between what is proved and tried
            region = problem.family.at(
                torch.where(passed, state.reached * (1 + self.push * (share - 0.05)), further)
            )
            score = self._score(problem, region, state.best)
            proved = torch.where(score > 0, torch.maximum(proved, region.radius.double()), proved)
        return proved


def _has_passed(problem: Problem, reached: Tensor, low: Tensor) -> Tensor:
    """Whether training has passed more than what is proved, (rows,) bool; scores need no radius."""
    return reached > low if problem.goal == "radius" else torch.ones_like(low, dtype=torch.bool)


class _Part:
    """Rows that are trained together, with the ends that planes know."""

    def __init__(self, view: Quadratic, problem: Problem, rows: Tensor) -> None:
        assert isinstance(problem.property, LinearProperty)
        self.view, self.problem, self.rows = view, problem, rows
        self.matrix, self.offset = problem.property.rows(view.graph.output.size)
        self.boxes: Boxes | None = None
        self.reach = torch.zeros(len(problem), dtype=torch.float64, device=rows.device)  # of the boxes

    def climb(self, radius: Tensor, bends: Bends) -> tuple[Tensor, tuple[Tensor, ...]]:
        """-> (rows,): the scores with these coefficients, in their arithmetic; and the way up for each of them."""
        radial = self.problem.goal == "radius"
        if self.boxes is None or (radial and bool((radius > self.reach).any())):
            self.reach = radius * AHEAD  # the ends over a larger region hold in a smaller one
            first = self.view.bends(len(self.rows), torch.float64)
            self.boxes = self.view.boxes(
                self.problem.family.at(self.reach) if radial else self.problem.region, first
            )
        region = self.problem.family.at(radius) if radial else self.problem.region
        with torch.enable_grad():
            margins = self.view.least(region, self.matrix, self.offset, bends, self.boxes)
            gain = (
                margins.amin(1).sum() + margins.clamp_max(0).sum()
            )  # the worst row, and all that are not proved yet
        return margins.detach().amin(1).double(), torch.autograd.grad(gain, list(bends.values()))


def coefficients(problem: Problem, radius: Tensor, steps: int) -> Iterator[Bends]:
    """Coefficients for the models of a problem at these radii (rows,), or over its region, as training improves them, in float64: the
    first, those that pass first, and those after every block of steps. Only the first where training takes too much, and no more once the
    clock has passed."""
    rule, view = Tighten(steps=steps), quadratic_of(problem)
    part = _Part(view, problem, torch.arange(len(problem), device=radius.device))
    first, passed, last = view.bends(len(problem), torch.float32), False, 0 if _lack(problem) else steps
    ascent = CoefficientAscent(list(first.values()))
    for step in range(last + 1):
        if time_limit.has_expired():
            return
        bends = dict(
            zip(first, (value.detach().clone().requires_grad_() for value in ascent.values), strict=True)
        )
        if step % rule.block == 0:
            yield {key: value.detach().double() for key, value in bends.items()}
        if step == last:
            return
        score, gradients = part.climb(radius, bends)
        if not passed and bool((score > 0).all()) and step % rule.block:
            yield {key: value.detach().double() for key, value in bends.items()}
        passed = passed or bool((score > 0).all())
        ascent.step(gradients, rule.rate * 0.1 ** (step / steps))


def _by_planes(problem: Problem) -> Tensor:
    """-> (batch,): the score is proved to be at least this over the region, by trained planes; -inf where nothing is known in time."""
    graph = graph_of(problem)
    matrix, offset = rows_of(problem, graph)
    # A radius needs a positive score; and no score is above that of the centre.
    enough = (
        -offset
        if problem.goal == "radius"
        else problem.score(problem.region.centre).double()[:, None] - offset
    )
    found, _ = TrainedBounder(graph, enough).bound(problem.region, matrix)
    score = (found + offset - 4 * gamma(1) * (found.abs() + offset.abs())).amin(1)
    return torch.where(score.isfinite(), score, -torch.inf)


def no_models(problem: Problem) -> str | None:
    """Why second-order models are not used. Without training they win nothing over planes that are trained."""
    view = quadratic_of(problem)
    lack = _lack(problem) if view.obstacle is None and relu_like_functions(view.graph) else ""
    return f"their training {lack}" if lack else view.obstacle


def models_lack(problem: Problem) -> str:
    """What second-order models would need that is not there; empty where they are used, or have nothing to say about such a network."""
    view = quadratic_of(problem)
    if view.obstacle is not None:
        return view.lack
    return f"their training {_lack(problem)}" if relu_like_functions(view.graph) and _lack(problem) else ""


def _unit(problem: Problem) -> Region:
    """The region, at radius 1 where it grows: at radius 0, where searches begin, nothing moves."""
    return problem.family.at(1.0) if problem.goal == "radius" else problem.region


def _untrainable(problem: Problem) -> str:
    """Why the first coefficients are the last; empty where they can be trained."""
    lack = _lack(problem)
    return f"tier tight without training, which {lack}" if lack else ""


def _lack(problem: Problem) -> str:
    """What training takes of memory or time, where that is more than there is; else empty."""
    view, device = quadratic_of(problem), problem.region.centre.device
    needed, room = view.bytes(training=True), free_bytes(device)
    if needed > room:
        return f"would take {bytes_told(needed)} where {bytes_told(room)} may be used"
    if device.type == "cpu" and view.numbers > MOST_ON_A_PROCESSOR:
        return (
            f"would take about {view.numbers / SPEED:.0f} s for a step and an input, on a graphics card less"
        )
    return ""


def _chunks(problem: Problem, view: Quadratic, training: bool) -> Iterator[Tensor]:
    """Rows that may be held in memory together, alike in what moves: models hold only that."""
    region = (
        problem.family.at(1.0) if problem.goal == "radius" else problem.region
    )  # at radius 0, where searches begin, nothing moves
    lower, upper = region.enclosing_box()
    kinds = (upper > lower).flatten(1).unique(dim=0, return_inverse=True)[1]
    for kind in kinds.unique():
        yield from (kinds == kind).nonzero().flatten().split(boxes_at_once(problem, view, training))


def boxes_at_once(problem: Problem, view: Quadratic, training: bool) -> int:
    """How many inputs may be looked at together; in training all that is stored is kept until the gradient is known."""
    return max(1, free_bytes(problem.region.centre.device) // view.bytes(training))


_views: "WeakKeyDictionary[Graph, Quadratic]" = WeakKeyDictionary()


def quadratic_of(problem: Problem) -> Quadratic:
    graph = graph_of(problem)
    if graph not in _views:
        _views[graph] = Quadratic(graph)
    return _views[graph]
