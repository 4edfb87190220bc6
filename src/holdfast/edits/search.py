"""Search for few edits that change the answer: a beam of edited texts, one edit longer in each step.

Each step queries the texts of the beam with one more edit, all of them or a random sample, and keeps those of the
lowest scores. It shows upper bounds only.
"""

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from holdfast import batch, time_limit
from holdfast.method import Claims, Method
from holdfast.problem import Problem
from holdfast.region import EditedTexts
from holdfast.region.edits import Edit
from holdfast.result import Goal, Traits


@dataclass(frozen=True)
class Beams:
    """The edits of the texts that are followed, for each open row, and the generator of samples."""

    edits: dict[int, list[tuple[Edit, ...]]]
    count: int
    seed: int


@dataclass(frozen=True)
class EditSearch(Method[Beams]):
    """Follow `beam` edited texts, and query `tries` texts with one more edit for each input and step."""

    finds: ClassVar[str] = "edited texts with another answer"
    help: ClassVar[str] = "adds edits one by one, each time the edit that lowers the score the most"
    traits: ClassVar[Traits] = Traits(complete=False, seeded=True, glass=False, exact=False, runs=True)
    goals: ClassVar[tuple[Goal, ...]] = ("radius",)
    reads_edits: ClassVar[bool] = True

    beam: int = 4
    tries: int = 2048

    def __post_init__(self) -> None:
        self.at_least(beam=1, tries=1)

    def obstacle(self, problem: Problem) -> str | None:
        if not isinstance(problem.region, EditedTexts):
            return "searches edited texts; this problem has another region"
        return None

    def start(self, problem: Problem, seed: int) -> Beams:
        return Beams({row: [()] for row in range(len(problem))}, 1, seed)

    def update_bounds(self, problem: Problem, state: Beams, lower: Tensor, upper: Tensor) -> Beams:
        """Leave out rows whose upper bound fewer edits than those of the next step have shown."""
        useful = (upper >= state.count) & (lower < upper)
        return replace(state, edits={row: beam for row, beam in state.edits.items() if bool(useful[row])})

    def step(self, problem: Problem, state: Beams) -> tuple[Beams | None, Claims]:
        region = problem.region
        assert isinstance(region, EditedTexts)
        witness = region.to_rows([region.options(row).text for row in range(len(problem))])
        found = torch.zeros(len(problem), dtype=torch.bool)
        beams: dict[int, list[tuple[Edit, ...]]] = {}
        for row, beam in state.edits.items():
            if time_limit.has_expired():
                break
            options = region.options(row)
            more = [edits for known in beam for edits in options.extensions(known)]
            if len(more) > self.tries:
                generator = torch.Generator().manual_seed(
                    hash((state.seed, problem.keys[row].index, state.count)) % 2**31
                )
                chosen = torch.randperm(len(more), generator=generator)[: self.tries].tolist()
                more = [more[place] for place in chosen]
            texts = {text: edits for edits in more if (text := options.apply(edits))}
            if not texts or state.count > options.most:
                continue
            read = [region.rules.read(text) for text in texts]
            outputs = time_limit.in_time(partial(problem.answers_to_texts, read), None)
            if outputs is None:
                break
            rows = torch.full((len(texts),), row, device=outputs.device)
            scores = batch.take(problem.property, rows).score(outputs).double().nan_to_num(math.inf)
            best = scores.argsort(stable=True)[: self.beam].tolist()
            names = list(texts)
            if not bool(scores[best[0]] > 0):
                witness[row], found[row] = region.to_rows([names[best[0]]])[0], True
            else:
                beams[row] = [texts[names[place]] for place in best]
        claims = Claims(witness=witness, found=found)
        return (Beams(beams, state.count + 1, state.seed) if beams else None), claims
