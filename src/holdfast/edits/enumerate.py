"""Exhaustive enumeration of edited texts: exact for few edits, and therefore a proof.

Statement. Let S(k) be the finite set of texts with at most k edits (`region.edits`). If the network was queried at
every text of S(k) and kept its class, then k is certified, for the network as executed.

Two ways to query. In a network with one recurrent layer between a front and a head, common prefixes are computed once
(`sweep`). Every other network is queried on whole texts, in batches of one length; nothing is ever filled up.

Rounding. An output may depend on the batch in its last digits. So scores within ROUNDING of the boundary, relative to
the outputs (in a sweep: within the measured difference to the user's module), are queried again, one text at a time.

Assumption: the network answers a text the same way every time (`network.statefulness`).
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from holdfast import batch, time_limit
from holdfast.certify.enumerate import RowsByCount, fewest_first
from holdfast.edits.sweep import Prefixes, sweeps
from holdfast.method import Claims, Method
from holdfast.network import Network
from holdfast.problem import Problem
from holdfast.property import Robustness, Targeted
from holdfast.region import EditedTexts
from holdfast.region.edits import Text
from holdfast.result import Goal, Traits

if TYPE_CHECKING:
    from holdfast.monitor.engine.state_view import StateView

# Assumptions of these proofs, stored with the record.
ASSUMPTIONS = ("every allowed text was queried, in the network's own arithmetic",)
# Texts of one step, after which other methods and the budget have their turn; a step holds at least one input
# (chosen by hand).
TEXTS_IN_STEP = 2**16
# Texts of all inputs of a batch that are queried before attacks and proofs begin (chosen by hand: seconds).
FIRST_TEXTS = 2**18
TEXTS_PER_BATCH = 4096  # Whole texts that are made and queried at once (chosen by hand).
# Relative difference of outputs that the other rows of a batch may cause (chosen by hand, as in the monitor).
ROUNDING = {torch.float32: 1e-5, torch.float64: 1e-13}

_views: "WeakKeyDictionary[Network, list[StateView | None]]" = WeakKeyDictionary()


def view_of(net: Network) -> "StateView | None":
    """The opened network, if it is one recurrent layer between a front and a head; opened once."""
    from holdfast.monitor.engine.state_view import open_network  # Only edits need the monitor.

    if net not in _views:
        known = net.token_model is not None and net.differentiable
        _views[net] = [open_network(net) if known else None]
    return _views[net][0]


@dataclass(frozen=True)
class EnumerateEdits(Method[RowsByCount]):
    """Query all texts with one edit, then two, and so on; of each input, up to `texts` with the same number of edits,
    where common prefixes are computed once, else up to `whole_texts`.
    """

    finds: ClassVar[str] = "exact counts of edits"
    help: ClassVar[str] = "queries every text that the edits make"
    traits: ClassVar[Traits] = Traits(complete=True, seeded=False, glass=False, exact=True, runs=True)
    goals: ClassVar[tuple[Goal, ...]] = ("radius",)
    has_opening: ClassVar[bool] = True
    reads_edits: ClassVar[bool] = True

    texts: int = 2**20
    whole_texts: int = 100_000

    def __post_init__(self) -> None:
        self.at_least(texts=1, whole_texts=1)

    def obstacle(self, problem: Problem) -> str | None:
        if not isinstance(problem.region, EditedTexts):
            return "enumerates edited texts; this problem has another region"
        return None

    def start(self, problem: Problem, seed: int) -> RowsByCount:
        return self._count_next(problem, 1, torch.ones(len(problem), dtype=torch.bool))

    def is_opening(self, state: RowsByCount) -> bool:
        return state.texts <= FIRST_TEXTS

    def update_bounds(
        self, problem: Problem, state: RowsByCount, lower: Tensor, upper: Tensor
    ) -> RowsByCount:
        return state.without_settled(lower, upper)

    def step(self, problem: Problem, state: RowsByCount) -> tuple[RowsByCount | None, Claims]:
        region, count = problem.region, state.count
        assert isinstance(region, EditedTexts)
        now = state.rows_of_step((region.options(row).count(count) for row in state.waiting), TEXTS_IN_STEP)
        proved = torch.full((len(problem),), math.nan, dtype=torch.float64)
        witness = region.to_rows([region.options(row).text for row in range(len(problem))])
        found, still, answered = torch.zeros(len(problem), dtype=torch.bool), state.open.clone(), list[int]()
        for row in now:
            shown = time_limit.in_time(partial(_first_or_nothing, problem, row, count), None)
            if shown is None:  # The budget is used up.
                break
            answered.append(row)
            if shown:
                witness[row], found[row], still[row] = region.to_rows([shown])[0], True, False
            else:
                proved[row], still[row] = count, count < region.options(row).most
        claims = Claims(
            proved=proved,
            witness=witness,
            found=found,
            assumptions=ASSUMPTIONS,
            dtype=str(problem.network.dtype),
        )
        waiting = tuple(row for row in state.waiting if row not in answered)
        if waiting:
            state = replace(state, open=still, waiting=waiting)
        else:
            state = self._count_next(problem, count + 1, still)
        return state if state.waiting else None, claims

    def _count_next(self, problem: Problem, count: int, still: Tensor) -> RowsByCount:
        """The state before texts with `count` edits; rows that have too many are left out."""
        region = problem.region
        assert isinstance(region, EditedTexts)
        most = self.whole_texts if _state_view(problem) is None else self.texts
        sizes = {row: region.options(row).count(count) for row in still.nonzero().flatten().tolist()}
        return RowsByCount(count, *fewest_first(sizes, most, still))


def _state_view(problem: Problem) -> "StateView | None":
    """The opened network, where common prefixes can be shared: its error is known for margins of classes.

    A sweep takes one token of the original to one other, so it does not replace phrases.
    """
    assert isinstance(problem.region, EditedTexts)
    if problem.region.rules.phrases:
        return None
    return view_of(problem.network) if isinstance(problem.property, Robustness | Targeted) else None


def _first_or_nothing(problem: Problem, row: int, count: int) -> Text:
    """As `first_counterexample`; an empty text, which is no edited text, if there is none."""
    return first_counterexample(problem, row, count) or ()


def first_counterexample(problem: Problem, row: int, count: int) -> Text | None:
    """The first text of one input with exactly `count` edits at which the property fails; None if there is none.

    Raises time_limit.Expired if the budget ends before all texts were queried.
    """
    region, view = problem.region, _state_view(problem)
    assert isinstance(region, EditedTexts)
    if view is not None:
        longest = torch.tensor(region.rules.read(region.options(row).text))
        longest = torch.cat([longest, longest[-1:].expand(count)])
        if not view.covers(longest, longest[:0]):
            view = None
    if view is None:
        return _by_whole_texts(problem, row, count)
    for sweep in sweeps(view, region.options(row), count):
        for prefixes in sweep.iterate_texts():
            shown = _fails_in(problem, row, view, prefixes)
            if shown is not None:
                # The words as read; the edited text itself is needed where some of them are cut off.
                return _unread(region, row, count, shown)
    return None


def _fails_in(problem: Problem, row: int, view: "StateView", prefixes: Prefixes) -> Text | None:
    """The first of these texts, as read, at which the property fails in the user's own module; None if none does."""
    for states, words in zip(
        prefixes.states.split(TEXTS_PER_BATCH), prefixes.words.split(TEXTS_PER_BATCH), strict=True
    ):
        time_limit.raise_if_expired()
        problem.network.queries += len(words)
        outputs = view.outputs(states)
        # A margin is a difference of two outputs.
        close = ~(_scores(problem, row, outputs) > 2 * view.doubt(outputs).double())
        texts = [tuple(text) for text in words[close.to(words.device)].tolist()]
        for text, score in zip(texts, _careful_scores(problem, row, texts), strict=True):
            if not score > 0:
                return text
    return None


def _by_whole_texts(problem: Problem, row: int, count: int) -> Text | None:
    """As `first_counterexample`, by querying whole texts."""
    region = problem.region
    assert isinstance(region, EditedTexts)
    seen: set[Text] = set()

    def new_texts() -> Iterator[Text]:
        for text, _ in region.options(row).texts(count):
            read = region.rules.read(text)
            if read not in seen:
                seen.add(read)
                yield text

    made = new_texts()
    while chunk := list(itertools.islice(made, TEXTS_PER_BATCH)):
        time_limit.raise_if_expired()
        scores = _careful_scores(problem, row, [region.rules.read(text) for text in chunk])
        for text, score in zip(chunk, scores, strict=True):
            if not score > 0:
                return text
    return None


def _unread(region: EditedTexts, row: int, count: int, read: Text) -> Text:
    """An edited text with this number of edits that the network reads as `read`."""
    if region.rules.length is None:
        return read
    return next(text for text, _ in region.options(row).texts(count) if region.rules.read(text) == read)


def _scores(problem: Problem, row: int, outputs: Tensor) -> Tensor:
    """(n, outputs) -> (n,) float64: the scores of the property of one input."""
    rows = torch.full((len(outputs),), row, device=outputs.device)
    return batch.take(problem.property, rows).score(outputs).double()


def _careful_scores(problem: Problem, row: int, texts: Sequence[Text]) -> list[float]:
    """The scores of texts as the network reads them; scores that rounding could decide are from the text alone."""
    if not texts:
        return []
    outputs = problem.answers_to_texts(texts)
    scores = _scores(problem, row, outputs)
    slack = ROUNDING.get(problem.network.dtype, 1e-2) * outputs.abs().amax(1).double()
    for place in (~(scores.abs() > slack)).nonzero().flatten().tolist():
        time_limit.raise_if_expired()
        scores[place] = _scores(problem, row, problem.answers_to_texts([texts[place]]))[0]
    found: list[float] = scores.tolist()
    return found
