"""Lower bounds for many edits: a dynamic programme over the position in the text and the edits that were made.

Statement. The cell (i, u) is a set that holds the state of the network after every edited prefix that consumes i words
of the original with the edits u. It is the union of what keeping, substituting, inserting, deleting, swapping and
duplicating make of the cells before it (`sweep` has the transitions), so it follows by induction that it holds every
such state if each step and each join holds its arguments (`cells`). If the score of the property is positive for
every state of every cell at the end of the text with at most k edits in all, k is certified.

A cell is a union of at most `rows` sets. Where more arrive, close ones are joined. With one box a cell this is ARC;
affine forms keep how the numbers of a state depend on each other, and several of them what the edits have in common.
`rows` grows until the proof succeeds.

Which edits were made matters only for what may still be done: cells of equal remaining budgets are one. With a
`length`, the words that were read are part of the cell as well.

Assumptions: those of `bounding.graph.problem_graph`, and that the network has the parts of `opened`.

Reference: Zhang et al., "Certified robustness to programmable transformations in LSTMs" (ARC, arXiv 2102.07818, 2021).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor

from holdfast import batch, time_limit
from holdfast.bounding.graph import problem_graph
from holdfast.edits.cells import AffineDomain, BoxDomain, Cells, group_rows
from holdfast.edits.opened import OpenedLayer, open_layer
from holdfast.errors import BadInput
from holdfast.method import Claims, Method
from holdfast.problem import Problem
from holdfast.property import BoundedProperty, Robustness, Targeted
from holdfast.region import EditedTexts
from holdfast.region.edits import (
    CONSUMED,
    DELETE,
    DUPLICATE,
    EMITTED,
    KINDS,
    SWAP,
    Text,
    TextEdits,
    Used,
)
from holdfast.result import Goal, Traits

Join = Literal["affine", "intervals"]
ASSUMPTIONS = (
    *problem_graph.ASSUMPTIONS,
    "its code reads word by word and answers from the last state, as was derived from the code",
)
CHECKS = (
    "one step of the layer and the head, as they are bounded, answer as the model does at random points",
    "the model answers as its parts do, for random texts and for the measured texts",
)
# Rows that a group of words makes of a cell at once: words are grouped where there would be more (chosen by hand).
EXPANDED_POINTS = 2048
EXPANDED_FORMS = 256
# Words of one edit are divided into at least this many groups (chosen by hand).
FEWEST_WORD_GROUPS = 4


@dataclass(frozen=True)
class Part:
    """What is left to do at a place: the edits that may still be made, and the words that were emitted.

    offset: emitted less consumed words, where it matters; else None.
    """

    made: int
    left: Used
    offset: int | None


Waiting = list[dict[Part, list[Any]]]


@dataclass(frozen=True)
class EditProgramme:
    """The dynamic programme for one text and at most `edits` edits, with at most `rows` sets a cell."""

    opened: OpenedLayer
    domain: Any
    options: TextEdits
    edits: int
    rows: int

    def ends(self) -> list[Cells]:
        """Sets that together hold the last state of the network for every edited text."""
        text = self.options.text
        waiting: Waiting = [{} for _ in range(len(text) + 3)]
        waiting[0][self._part((0,) * len(KINDS))] = [self.domain.first()]
        ends: list[Cells] = []
        for place in range(len(text) + 1):
            for made in range(self.edits + 1):  # Insertions lead to more edits at the same place.
                here = waiting[place]
                cells = {part: self._join(here.pop(part)) for part in [p for p in here if p.made == made]}
                self._leave(place, cells, waiting, ends)
            waiting[place] = {}
        return ends

    def _part(self, used: Used) -> Part:
        """The cell of a prefix with these edits."""
        rules = self.options.rules
        left = self.edits - sum(used)
        limits = zip(rules.budgets, used, strict=True)
        remaining = tuple(min(budget - some, left) for budget, some in limits)
        offset = sum((EMITTED[k] - CONSUMED[k]) * some for k, some in enumerate(used))
        # An edited text has a word at least: where all may be deleted, the empty one must be told apart.
        matters = rules.length is not None or rules.budgets[DELETE] >= len(self.options.text)
        return Part(sum(used), remaining, offset if matters else None)

    def _after(self, part: Part, kind: int) -> Part | None:
        """The cell after one more edit; None if it is not allowed."""
        if part.left[kind] == 0:
            return None
        left = self.edits - part.made - 1
        remaining = tuple(min(many - (k == kind), left) for k, many in enumerate(part.left))
        offset = None if part.offset is None else part.offset + EMITTED[kind] - CONSUMED[kind]
        return Part(part.made + 1, remaining, offset)

    def _is_read(self, place: int, part: Part) -> bool:
        length = self.options.rules.length
        return length is not None and part.offset is not None and place + part.offset >= length

    def _leave(self, place: int, cells: dict[Part, Cells], waiting: Waiting, ends: list[Cells]) -> None:
        """Add what every edit, and keeping the word, makes of these cells at a place."""
        text = self.options.text
        # Requests for steps: the cells, the words of each step in turn, and where the result belongs.
        requests: list[tuple[Cells, Sequence[Any], int, Part]] = []
        by_kind: dict[int, list[Text]] = {}
        for edit in self.options.at[place]:
            by_kind.setdefault(edit.kind, []).append(edit.words)
        for part, found in cells.items():
            if self._is_read(place, part):
                ends.append(found)
                continue
            if place < len(text):
                requests.append((found, [self._exactly(text[place])], place + 1, part))
            elif part.offset is None or len(text) + part.offset > 0:
                ends.append(self._pad(found, place, part))
            for kind, words in by_kind.items():
                after = self._after(part, kind)
                if after is None:
                    continue
                to = place + CONSUMED[kind]
                if kind == DELETE:
                    waiting[to].setdefault(after, []).append(found)
                elif kind in (SWAP, DUPLICATE):
                    length, emitted = self.options.rules.length, place + (part.offset or 0)
                    read = words[0] if length is None else words[0][: length - emitted]
                    requests.append((found, [self._exactly(word) for word in read], to, after))
                else:
                    for group in self._groups(found, [word for (word,) in words]):
                        requests.append((found, [group], to, after))
        self._answer(requests, waiting)

    def _answer(self, requests: list[tuple[Cells, Sequence[Any], int, Part]], waiting: Waiting) -> None:
        """Make the requested steps: the first words of all requests at once, then the second ones."""
        while requests:
            time_limit.raise_if_expired()
            stepped = self._step_all([(cells, words[0]) for cells, words, _, _ in requests])
            more = []
            for made, (_, words, to, part) in zip(stepped, requests, strict=True):
                if len(words) > 1:
                    more.append((made, words[1:], to, part))
                else:
                    waiting[to].setdefault(part, []).append(made)
            requests = more

    def _step_all(self, pairs: list[tuple[Cells, Any]]) -> list[Cells]:
        """One step of several cells, each with its word or group of words."""
        domain = self.domain
        sizes = [len(cells) for cells, _ in pairs]
        cells = domain.concatenate([cells for cells, _ in pairs])
        counts = torch.tensor(sizes)
        words = domain.concatenate([words for _, words in pairs])
        which = torch.arange(len(pairs)).repeat_interleave(counts)
        parts = []
        for rows in torch.arange(len(cells)).split(domain.rows_at_once(cells)):
            time_limit.raise_if_expired()
            parts.append(domain.step(cells.take(rows), words.take(which[rows])))
        whole = domain.concatenate(parts)
        found: list[Cells] = [whole.take(rows) for rows in torch.arange(len(whole)).split(sizes)]
        return found

    def _exactly(self, word: int) -> Any:
        return self.domain.words(self._vectors([word]))

    def _vectors(self, words: list[int]) -> Tensor:
        return self.opened.vectors(torch.tensor(words))

    def _groups(self, cells: Cells, words: list[int]) -> list[Any]:
        """The words one by one, or in groups of close vectors where they would make too many rows."""
        if self.rows == 1 and isinstance(self.domain, BoxDomain):
            return [self.domain.words(self._vectors(words))]
        exact = not (hasattr(cells, "generators") and cells.generators.shape[1])
        most = (EXPANDED_POINTS if exact else EXPANDED_FORMS) // len(cells)
        if len(words) <= most:
            return [self._exactly(word) for word in words]
        vectors = self._vectors(words)
        groups = group_rows(vectors, max(FEWEST_WORD_GROUPS, most))
        return [self.domain.words(vectors[group]) for group in groups]

    def _join(self, arrived: list[Any]) -> Cells:
        """The union of the sets that reach a cell, in at most `rows` rows."""
        cells: Cells = self.domain.concatenate(arrived)
        if len(cells) <= self.rows:
            return cells
        time_limit.raise_if_expired()
        groups = group_rows(cells.centres(), self.rows)
        found: Cells = self.domain.concatenate([self.domain.hull(cells.take(rows)) for rows in groups])
        return found

    def _pad(self, cells: Cells, place: int, part: Part) -> Cells:
        """Read the padding behind a text that is shorter than the network reads."""
        rules = self.options.rules
        if rules.padding is None or rules.length is None or part.offset is None:
            return cells
        word = self._exactly(rules.padding)
        for _ in range(rules.length - place - part.offset):
            (cells,) = self._step_all([(cells, word)])
        return cells


@dataclass(frozen=True)
class Attempts:
    """The number of edits that is tried next for each open row, and how many sets a cell holds."""

    rows: dict[int, int]  # row -> the number of edits
    level: int


@dataclass(frozen=True)
class EditBounds(Method[Attempts]):
    """Join what edits make of the states of a recurrent network: cells of 1, `middle` and then `most` sets.

    join: "affine" joins states to affine forms, "intervals" to boxes (with most=1: the bound of ARC).
    """

    finds: ClassVar[str] = "lower bounds of edits, proved"
    help: ClassVar[str] = "bounds the states of a recurrent network after all edits"
    traits: ClassVar[Traits] = Traits(complete=False, seeded=False, glass=True, exact=False, runs=False)
    goals: ClassVar[tuple[Goal, ...]] = ("radius",)
    long_steps: ClassVar[bool] = True
    needs_graph: ClassVar[bool] = True
    reads_edits: ClassVar[bool] = True

    join: Join = "affine"
    middle: int = 8
    most: int = 32

    def __post_init__(self) -> None:
        self.at_least(middle=1, most=1)
        if self.join not in get_args(Join):
            raise BadInput(f"EditBounds: join must be one of {', '.join(get_args(Join))}, got {self.join!r}.")

    @property
    def sizes(self) -> list[int]:
        """The numbers of sets of a cell that are tried."""
        return sorted({min(size, self.most) for size in (1, self.middle, self.most)})

    def obstacle(self, problem: Problem) -> str | None:
        if not isinstance(problem.region, EditedTexts):
            return "bounds edited texts; this problem has another region"
        if not isinstance(problem.property, BoundedProperty):
            return "the score of this property has no bounds"
        if problem.region.rules.phrases:
            return "bounds replacements of single tokens; here whole words of several tokens are replaced"
        opened = self._open_layer(problem)
        return f"needs a recurrent network: {opened}" if isinstance(opened, str) else None

    def _open_layer(self, problem: Problem) -> OpenedLayer | str:
        region = problem.region
        assert isinstance(region, EditedTexts)
        texts = [region.rules.read(region.options(row).text) for row in range(len(problem))]
        return open_layer(problem.network, isinstance(problem.property, Robustness | Targeted), texts)

    def start(self, problem: Problem, seed: int) -> Attempts:
        return Attempts(dict.fromkeys(range(len(problem)), 1), 0)

    def update_bounds(self, problem: Problem, state: Attempts, lower: Tensor, upper: Tensor) -> Attempts:
        """Try one edit more than is proved, where more could be."""
        rows = {
            row: max(edits, int(lower[row]) + 1)
            for row, edits in state.rows.items()
            if bool(lower[row] < upper[row]) and bool(lower[row].isfinite())
        }
        return replace(state, rows=rows)

    def step(self, problem: Problem, state: Attempts) -> tuple[Attempts | None, Claims]:
        region, opened = problem.region, self._open_layer(problem)
        assert isinstance(region, EditedTexts)
        assert isinstance(opened, OpenedLayer)
        proved = torch.full((len(problem),), math.nan, dtype=torch.float64)
        waiting = dict(state.rows)
        for row, edits in state.rows.items():
            if time_limit.has_expired():
                break
            options = region.options(row)
            reached = edits - 1
            while reached < options.most:
                size = self.sizes[state.level]
                holds = time_limit.in_time(
                    partial(self.certifies, problem, row, reached + 1, size, opened), None
                )
                if holds is None or not holds:
                    break
                reached += 1
            if reached >= edits:
                proved[row] = reached
            waiting[row] = reached + 1
            if reached >= options.most:
                del waiting[row]
        claims = Claims(proved=proved, assumptions=ASSUMPTIONS, checks=CHECKS)
        state = Attempts(waiting, state.level + 1)
        return (state if waiting and state.level < len(self.sizes) else None), claims

    def certifies(
        self, problem: Problem, row: int, edits: int, rows: int, opened: OpenedLayer | None = None
    ) -> bool:
        """Whether cells of at most `rows` rows prove that no text with at most `edits` edits changes the answer."""
        found = self._open_layer(problem) if opened is None else opened
        assert isinstance(found, OpenedLayer)
        region = problem.region
        assert isinstance(region, EditedTexts)
        domain: Any = AffineDomain(found) if self.join == "affine" else BoxDomain(found)
        programme = EditProgramme(found, domain, region.options(row), edits, rows)
        one = batch.take(problem.property, torch.tensor([row]))
        assert isinstance(one, BoundedProperty)
        matrix, offset = one.rows(found.head.output.size)
        for cells in programme.ends():
            time_limit.raise_if_expired()
            lower = domain.lower_bounds(cells, matrix[0].double(), offset[0].double())
            each = batch.take(problem.property, torch.full((len(lower),), row))
            assert isinstance(each, BoundedProperty)
            if not bool((each.least(lower) > 0).all()):
                return False
        return True
