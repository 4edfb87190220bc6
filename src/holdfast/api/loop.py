"""hf.Loop: a controller and a plant in a closed loop, and questions about all its trajectories."""

import math
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from holdfast import memory_budget
from holdfast.api.arguments import as_network, check_flag, check_number, check_whole, show
from holdfast.errors import BadInput
from holdfast.formatting import format_lower
from holdfast.network import Network
from holdfast.reachability.conditions import Polytope, read_condition, read_start
from holdfast.reachability.model import ORDER, LoopModel
from holdfast.reachability.search import Kind, LoopQuestion, Search

ORDERS = range(2, 5)  # Orders of the Taylor expansion that may be asked for.
# Relative distance up to which a time counts as a multiple of the period: decimal fractions such as 0.3 / 0.1 are no
# exact quotients (chosen by hand).
WHOLE_PERIODS = 1e-9
SHOWN_TRAJECTORIES = (
    64  # Simulated trajectories that an answer keeps, of all that were simulated (chosen by hand).
)

ASSUMPTIONS = (
    "the controller and the plant compute in real arithmetic, with their weights and constants as stored",
    "the controller reads the state at the beginning of each period, and its output is held until the next one",
)

Start = str | tuple[Sequence[float] | Tensor, Sequence[float] | Tensor]


@dataclass(frozen=True, eq=False)
class LoopAnswer:
    """The answer to a question about a loop.

    Attributes:
        verdict: "proved" for all initial states, "violated" by `witness`, or "open".
        question: the question in words.
        states, units: the names of the states and their units ("" where there is none).
        period, steps: the length of a period, and their number.
        margin: if proved: every trajectory keeps this distance from the limit of the condition, in the units of its
            left side less its right side; None if not proved.
        sampled_margin: the smallest such distance among simulated trajectories, negative if one violates. It proves
            nothing.
        proved_share: the proved share of the initial box.
        boxes: the number of boxes of initial states that were enclosed; open_boxes of them are left.
        witness: an initial state from which the solution violates the condition, shown by a rigorous enclosure of
            this solution; None if there is none.
        trajectory: (times, n), the simulated trajectory of the witness.
        ends: (steps + 1, n, 2), lower and upper bounds of the states at the beginning of each period and at the last
            end; not-a-number where no bound is known. None if the time did not suffice.
        tube: (steps, n, 2), bounds over each period.
        times: (times,), the times of simulated states.
        sampled: (trajectories, times, n), some simulated trajectories.
        sampled_ends: (n, 2), the range of all simulated states at the end.
        condition: the polytope of the question. window: its begin and end, in units of time.
        method: how it was computed, with all settings. assumptions: what a proof takes for granted.
        seconds: the time that it took.
    """

    verdict: str
    kind: Kind
    question: str
    start: tuple[Tensor, Tensor]
    states: tuple[str, ...]
    units: tuple[str, ...]
    period: float
    steps: int
    discrete: bool
    condition: Polytope
    window: tuple[float, float]
    margin: float | None
    sampled_margin: float
    proved_share: float
    boxes: int
    open_boxes: int
    witness: Tensor | None
    trajectory: Tensor | None
    ends: Tensor | None
    tube: Tensor | None
    times: Tensor
    sampled: Tensor
    sampled_ends: Tensor
    method: str
    assumptions: tuple[str, ...]
    seconds: float

    @property
    def width_ratio(self) -> Tensor | None:
        """(n,): the width of the tube at the end divided by that of the simulated states; infinite where these do
        not differ. None if the tube is not complete.
        """
        if self.ends is None or not bool(self.ends[-1].isfinite().all()):
            return None
        return (self.ends[-1, :, 1] - self.ends[-1, :, 0]) / (
            self.sampled_ends[:, 1] - self.sampled_ends[:, 0]
        )

    @property
    def sentence(self) -> str:
        """The answer in one sentence."""
        if self.verdict == "proved":
            assert self.margin is not None
            return f"Proved: {self.question}. Every trajectory keeps a margin of {format_lower(self.margin)} or more."
        if self.verdict == "violated":
            assert self.witness is not None
            at = ", ".join(
                f"{name} = {value:.9g}"
                for name, value in zip(self.states, self.witness.tolist(), strict=True)
            )
            return (
                f"Violated: it is not true that {self.question}. The trajectory from {at} violates it, as a rigorous "
                "enclosure of this trajectory shows."
            )
        return (
            f"Open: it is neither proved nor refuted that {self.question}. Proved for {100 * self.proved_share:.3g} % "
            f"of the initial states; the smallest margin of the simulated trajectories is {self.sampled_margin:.4g}."
        )

    def __str__(self) -> str:
        return self.sentence

    def save_page(self, file: str | Path) -> Path:
        """Write the answer as a self-contained HTML page: the tube of every state and simulated trajectories."""
        from holdfast.report.loop_page import write_loop_page

        return write_loop_page(self, Path(file))


class Loop:
    """A controller that reads the state of a plant once a period, and the plant.

    Args:
        controller: a torch module in evaluation mode, the path of an .onnx file, or a hf.Network.
        plant: a torch function of the states x (batch, n) and the controls u (batch, m). It returns dx/dt, or the
            next states if `discrete`, (batch, n). Index by the last axis, as in x[..., 0].
        period: how long a control is held, in units of time.
        steps: the number of periods that are analysed.
        inputs: a torch function from states (batch, n) to what the controller reads; default: the states.
        states: the names of the states. Default: x1, x2, ...
        units: their units, for pages.
        discrete: whether the plant returns the next state.
        disturbance: for each state the largest absolute value of a term that is added to its derivative (to its next value
            if `discrete`) at any time, in any way. Default: none.
        order: of the Taylor expansion in time, 2 to 4.

    Example:
        loop = hf.Loop(controller, plant, period=0.1, steps=20, states=["angle", "rate"])
        answer = loop.stay("0.9 <= angle <= 1 and rate == 0", "angle <= 1.2")
        print(answer)
    """

    def __init__(
        self,
        controller: Network | nn.Module | str | Path,
        plant: Callable[[Tensor, Tensor], Tensor],
        *,
        period: float,
        steps: int,
        inputs: Callable[[Tensor], Tensor] | None = None,
        states: Sequence[str] | None = None,
        units: Sequence[str] | None = None,
        discrete: bool = False,
        disturbance: Sequence[float] | Tensor | None = None,
        order: int = ORDER,
    ) -> None:
        check_number("period", period, above=0)
        if not math.isfinite(period):
            raise BadInput(f"period: expected a finite time, got {period}.")
        check_whole("steps", steps, at_least=1)
        check_flag("discrete", discrete)
        if order not in ORDERS:
            raise BadInput(f"order: the Taylor expansion has order 2, 3 or 4, got {show(order)}.")
        for name, function in (("plant", plant), ("inputs", inputs)):
            if not callable(function) and not (name == "inputs" and function is None):
                raise BadInput(f"{name}: expected a torch function, got {show(function)}.")
        self.controller = as_network(controller, name="controller")
        self.plant, self.inputs = plant, inputs
        self.period, self.steps, self.discrete, self.order = float(period), int(steps), discrete, int(order)
        self.states = None if states is None else _names("states", states)
        self.units = None if units is None else tuple(str(unit) for unit in units)
        self.disturbance = disturbance

    def stay(
        self, start: Start, inside: str, *, between: tuple[float, float] | None = None, **budget: Any
    ) -> LoopAnswer:
        """Does every trajectory stay in a set?

        Args:
            start: the initial states, as in "1 <= x1 <= 1.2 and x2 == 0", or a pair (lower, upper) of arrays.
            inside: linear conditions, as in "x1 - x4 >= 10 + 1.4 * x5 and x2 <= 3".
            between: the times from and until which; default: always.
            budget: as for `answer`.
        """
        return self.answer("stay", start, inside, between, **budget)

    def avoid(
        self, start: Start, unsafe: str, *, between: tuple[float, float] | None = None, **budget: Any
    ) -> LoopAnswer:
        """Does every trajectory avoid a set? Arguments as for `stay`."""
        return self.answer("avoid", start, unsafe, between, **budget)

    def reach(
        self, start: Start, goal: str, *, at: float | None = None, by: float | None = None, **budget: Any
    ) -> LoopAnswer:
        """Is every trajectory in a set at a time (`at`), or at some moment up to a time (`by`)?

        Default: by the end. Other arguments as for `stay`.
        """
        if at is not None and by is not None:
            raise BadInput("reach: give at= or by=, not both.")
        if at is not None:
            return self.answer("stay", start, goal, (at, at), **budget)
        return self.answer("reach", start, goal, None if by is None else (0.0, by), **budget)

    def answer(
        self,
        kind: Kind,
        start: Start,
        condition: str,
        window: tuple[float, float] | None = None,
        *,
        seconds: float | None = None,
        memory: int | None = None,
        max_boxes: int | None = None,
        width_ratio: float | None = None,
        seed: int = 0,
        folder: str | Path | None = None,
        progress: Callable[[Search], None] | None = None,
    ) -> LoopAnswer:
        """Answer a question: "stay" in, "avoid" or "reach" the states that satisfy a condition.

        Args:
            window: the times from and until which; default: all periods.
            seconds: a limit of time; what is not decided then is open.
            memory: a limit of the memory of this process, in bytes.
            max_boxes: a limit of the number of boxes of initial states that are enclosed.
            width_ratio: go on after a proof until the tube at the end exceeds the simulated states by no more than
                this share of their width says, in every state (1.5: by a quarter of the width on each side).
            seed: of the simulated initial states.
            folder: where the state of the search is stored after each pass; a search of the same question that was
                interrupted is continued from there.
            progress: called with the search after every pass.
        """
        began = time.monotonic()
        for name, value in (("seconds", seconds), ("width_ratio", width_ratio)):
            if value is not None:
                check_number(name, value, above=0)
        for name, limit in (("memory", memory), ("max_boxes", max_boxes)):
            if limit is not None:
                check_whole(name, limit, at_least=1)
        check_whole("seed", seed, at_least=0)
        if width_ratio is not None and width_ratio <= 1:
            raise BadInput(
                f"width_ratio: a tube is at least as wide as the trajectories in it, so > 1; got {width_ratio}."
            )
        names, box = self._start(start)
        polytope = read_condition(condition, names, "condition")
        begin, end = self._window(window)
        model = self.model(names)
        with memory_budget.limit_process(memory):
            model.check(box)
            question = LoopQuestion(kind, polytope, begin, end)
            until = math.inf if seconds is None else began + seconds
            most_boxes = math.inf if max_boxes is None else float(max_boxes)
            search = Search(model, question, box, self.steps, until, most_boxes, seed, width_ratio)
            if folder is not None:
                from holdfast.reachability.stored_search import continue_search, store_search

                continue_search(search, Path(folder))
            for _ in search.run():
                if folder is not None:
                    store_search(search, Path(folder))
                if progress is not None:
                    progress(search)
            if folder is not None:
                store_search(search, Path(folder))
            return self._answer(search, condition, names, (begin, end), time.monotonic() - began)

    def model(self, states: Sequence[str]) -> LoopModel:
        """The loop with these names of states, for simulations."""
        return LoopModel(
            self.controller, self.plant, tuple(states), self.period, self.inputs, self.discrete,
            self._disturbance(len(states)), self.order,
        )  # fmt: skip

    # ---- reading arguments

    def _start(self, start: Start) -> tuple[tuple[str, ...], tuple[Tensor, Tensor]]:
        """The names of the states, and the box of initial states."""
        if isinstance(start, str):
            names = self.states or _number_names(start)
            box = read_start(start, names, "start")
        else:
            if not isinstance(start, tuple | list) or len(start) != 2:
                raise BadInput(
                    'start: expected a text such as "1 <= x1 <= 1.2 and x2 == 0" or a pair (lower, upper), '
                    f"got {show(start)}."
                )
            try:
                low, high = (torch.as_tensor(ends, dtype=torch.float64).flatten() for ends in start)
            except (TypeError, ValueError, RuntimeError) as error:
                raise BadInput(f"start: the bounds are no numbers: {show(start)}.") from error
            if low.shape != high.shape or not len(low):
                raise BadInput(
                    f"start: {len(low)} lower and {len(high)} upper bounds; give one of each for a state."
                )
            names, box = self.states or tuple(f"x{i + 1}" for i in range(len(low))), (low, high)
        lower, upper = box
        if len(names) != len(lower):
            raise BadInput(f"start: {len(lower)} bounds for {len(names)} states ({', '.join(names)}).")
        if not bool((lower.isfinite() & upper.isfinite() & (lower <= upper)).all()):
            raise BadInput("start: every lower bound must be finite and at most its upper bound.")
        if self.units is not None and len(self.units) != len(names):
            raise BadInput(f"units: {len(self.units)} units for {len(names)} states.")
        return names, box

    def _window(self, window: tuple[float, float] | None) -> tuple[float, float]:
        """The window in periods, checked."""
        if window is None:
            return 0.0, float(self.steps)
        if not isinstance(window, tuple | list) or len(window) != 2:
            raise BadInput(f"between: expected two times, as in (0.5, 1), got {show(window)}.")
        for value in window:
            check_number("time", value, at_least=0)
        begin, end = (_periods(value, self.period) for value in window)
        if not begin <= end <= self.steps:
            raise BadInput(
                f"time: the window {window[0]:g} to {window[1]:g} is not within 0 and {self.period * self.steps:g}, the "
                f"end of {self.steps} periods of {self.period:g}."
            )
        if self.discrete and begin == end and begin != int(begin):
            raise BadInput(
                f"time: a discrete plant has states at multiples of {self.period:g} only, got {window[0]:g}."
            )
        return begin, end

    def _disturbance(self, n: int) -> Tensor:
        if self.disturbance is None:
            return torch.zeros(n, dtype=torch.float64)
        try:
            found = torch.as_tensor(self.disturbance, dtype=torch.float64).flatten()
        except (TypeError, ValueError, RuntimeError) as error:
            raise BadInput(
                f"disturbance: expected a number for each state, got {show(self.disturbance)}."
            ) from error
        if len(found) != n or not bool((found.isfinite() & (found >= 0)).all()):
            raise BadInput(
                f"disturbance: expected {n} finite numbers >= 0, one for each state, got {show(self.disturbance)}."
            )
        return found

    def _answer(
        self,
        search: Search,
        condition: str,
        names: tuple[str, ...],
        window: tuple[float, float],
        seconds: float,
    ) -> LoopAnswer:
        state = search.state
        proved = not state.open and state.passes > 0 and state.witness is None
        verdict = "violated" if state.witness is not None else "proved" if proved else "open"
        ends, tube = search.tube()
        assert search.trajectories is not None
        witness = None if state.witness is None else torch.tensor(state.witness, dtype=torch.float64)
        last = search.trajectories[:, -1]
        kind, period = search.question.kind, self.period
        begin, end = (value * period for value in window)
        every = max(1, len(search.trajectories) // SHOWN_TRAJECTORIES)
        settings = (
            f"controller: CROWN over affine forms with at most {search.runner.most} noise symbols; "
            + ("discrete plant: affine forms" if self.discrete else f"flow: Taylor expansion of order {self.order} with "
               "Lagrange remainder over a box proved by Picard's operator")
            + f"; {state.passes} boxes of initial states"
        )  # fmt: skip
        return LoopAnswer(
            verdict=verdict,
            kind=kind,
            question=_in_words(kind, condition, begin, end, period * self.steps),
            start=search.start,
            states=names,
            units=self.units or ("",) * len(names),
            period=period,
            steps=self.steps,
            discrete=self.discrete,
            condition=search.question.polytope,
            window=(begin, end),
            margin=-state.excess if verdict == "proved" else None,
            sampled_margin=-search.sampled_excess,
            proved_share=1.0 if proved else min(state.proved_volume, 1.0),
            boxes=state.passes,
            open_boxes=len(state.open),
            witness=witness,
            trajectory=None if witness is None else search.model.simulate(witness[None], self.steps)[0],
            ends=ends,
            tube=tube,
            times=search.moments * period,
            sampled=search.trajectories[::every],
            sampled_ends=torch.stack([last.amin(0), last.amax(0)], -1),
            method=settings,
            assumptions=ASSUMPTIONS,
            seconds=seconds,
        )


def _in_words(kind: Kind, condition: str, begin: float, end: float, last: float) -> str:
    """The question as a clause."""
    when = "always" if (begin, end) == (0, last) else f"from {begin:g} to {end:g}"
    if begin == end:
        when = f"at time {begin:g}"
    if kind == "reach":
        return f"every trajectory satisfies {condition} at some moment up to time {end:g}"
    verb = "satisfies" if kind == "stay" else "never satisfies"
    return f"every trajectory {verb} {condition}" + (f" {when}" if kind == "stay" or when != "always" else "")


def _periods(value: float, period: float) -> float:
    """A time in periods, a whole number where it is one up to rounding."""
    found = float(value) / period
    whole = round(found)
    return float(whole) if abs(found - whole) <= WHOLE_PERIODS * max(1, whole) else found


def _number_names(text: str) -> tuple[str, ...]:
    """The names x1, ..., xn for a text about them."""
    numbers = [int(number) for number in re.findall(r"\bx(\d+)\b", str(text))]
    return tuple(f"x{i + 1}" for i in range(max(numbers, default=1)))


def _names(name: str, given: Sequence[str]) -> tuple[str, ...]:
    names = (given,) if isinstance(given, str) else tuple(given)
    wrong = next((one for one in names if not isinstance(one, str) or not one.isidentifier()), None)
    if wrong is not None or len(set(names)) < len(names) or not names:
        raise BadInput(
            f"{name}: expected different names that conditions can use (letters, digits, underscores), got {show(given)}."
        )
    return names
