"""The interface of every algorithm: frozen settings, explicit state, one step at a time."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass
from functools import wraps
from inspect import isabstract
from typing import Any, ClassVar, Generic, TypeVar

from torch import Tensor

from holdfast import time_limit
from holdfast.errors import BadInput
from holdfast.goals import objective_of
from holdfast.problem import Problem
from holdfast.result import Goal, Kind, Setting, Traits

State = TypeVar("State")


@dataclass(frozen=True)
class Claims:
    """The results of one step, row by row.

    A method never sets an upper bound itself: it returns a candidate counterexample, and the solver replays
    it through the user's model.

    proved      (batch,) lower bounds that hold for every point of the region; NaN: nothing new.
    witness     (batch, *shape) candidates that may violate the property (radius) or have a low score (worst).
    found       (batch,) bool: the rows of `witness` that hold a candidate.
    estimate    (batch,) numbers without a guarantee, of the given kind; NaN: none.
    done        (batch,) bool: rows that the method has finished, also for a resumed run; None: none yet.

    For the goal "steepness" (the metric Q) `proved` holds negated upper bounds, and a candidate is a point
    whose difference quotient is taken.
    """

    proved: Tensor | None = None
    witness: Tensor | None = None
    found: Tensor | None = None
    estimate: Tensor | None = None
    estimate_kind: Kind = "estimated"
    confidence: float | None = None
    assumptions: tuple[str, ...] = ()
    checks: tuple[str, ...] = ()
    dtype: str = "torch.float64"  # the arithmetic that the proof is about
    done: Tensor | None = None
    # (batch, ...) each: values that are stored with the records, such as saliency maps; NaN: nothing
    aside: Mapping[str, Tensor] = field(default_factory=dict)
    settings: Mapping[str, Setting] = field(default_factory=dict)  # settings that the method chose by itself
    obstacle: str = ""  # why the method cannot continue, for the user
    # A stage that was left out (memory, size or time), why, and what replaced it; the record shows it.
    fallback: str = ""


@dataclass(frozen=True)
class Method(ABC, Generic[State]):
    """One algorithm. Its fields are its settings, its state holds its progress, and the solver decides when
    to stop.

    finds   what it contributes: "lower bounds, proved", "witnesses", "estimates", ...
    help    one line for users who choose methods.
    keyword its name on the command line (default: the class name in lower case).
    traits  its classification in the terms of ISO/IEC 24029-2.
    goals   the goals that it supports.
    """

    finds: ClassVar[str]
    help: ClassVar[str]
    keyword: ClassVar[str] = ""
    traits: ClassVar[Traits] = Traits()
    goals: ClassVar[tuple[Goal, ...]] = ("radius", "worst")
    # steps take seconds: it begins when the methods with short steps are done
    long_steps: ClassVar[bool] = False
    # its obstacle traces the model or builds its graph, which takes long for a large one: it is examined once the
    # methods that need neither have had their first, cheap steps (`is_opening`)
    needs_graph: ClassVar[bool] = False
    # it answers about texts of different lengths (`Region.changes_length`)
    reads_edits: ClassVar[bool] = False
    # it may begin with cheap steps that come before the steps of all other methods (`is_opening`)
    has_opening: ClassVar[bool] = False

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        if "step" in vars(cls):
            setattr(cls, "step", _ending_in_time(cls.step))  # noqa: B010  a method that mypy would not let be replaced

    @property
    def name(self) -> str:
        return type(self).__name__

    def at_least(self, **fewest: int) -> None:
        """Raise BadInput for each setting that is smaller than the given minimum."""
        for name, least in fewest.items():
            if getattr(self, name) < least:
                raise BadInput(f"{self.name}: {name} must be at least {least}, got {getattr(self, name)}.")

    def settings(self) -> dict[str, Setting]:
        return {
            key: value
            for key, value in asdict(self).items()
            if isinstance(value, str | int | float | bool | None)
        }

    def unfit(self, problem: Problem) -> str | None:
        """Why the method is not used for this problem; None: it is used."""
        if problem.region.changes_length and not self.reads_edits:
            return "works on inputs of one length; edits change the length of a text"
        return (
            self.obstacle(problem)
            if problem.goal in self.goals
            else f"bounds {' and '.join(objective_of(goal).nouns for goal in self.goals)}, "
            f"not {problem.objective.nouns}"
        )

    @abstractmethod
    def obstacle(self, problem: Problem) -> str | None:
        """Why the method cannot work on this problem, for the user; None if it can.

        It may trace the model and build its graph, both of which are cached; it must not run the method.
        """

    def least_seconds(self, problem: Problem) -> float:
        """Predict the seconds that the first result for one row takes at least; 0: nothing is predicted.

        A method that cannot finish this within the budget is not begun, and the record says so.
        """
        return 0.0

    def view(self, problem: Problem) -> Problem:
        """The problem that the method solves instead; its proofs must be proofs of the given one.

        A method that overrides this claims no counterexamples.
        """
        return problem

    @abstractmethod
    def start(self, problem: Problem, seed: int) -> State:
        """The state before the first step."""

    def resume_state(self, problem: Problem, state: State, aside: Mapping[str, Tensor]) -> State:
        """The first state of a resumed run.

        `aside` holds what this method with these settings stored with the records, (batch, ...) each, NaN
        where there is nothing. Default: begin again.
        """
        return state

    @abstractmethod
    def step(self, problem: Problem, state: State) -> tuple[State | None, Claims]:
        """Run one step over the whole batch; return the new state (None: finished) and the claims.

        A step that runs past the deadline is interrupted and its effect discarded, so it must not modify the
        given state.
        """

    def update_bounds(self, problem: Problem, state: State, lower: Tensor, upper: Tensor) -> State:
        """Take over the current bounds, each (batch,) float64, before every step.

        They come from all methods: a smaller radius is proved already, and a larger one has a counterexample.
        """
        return state

    def is_opening(self, state: State) -> bool:
        """Whether the next step is one of the cheap ones that come first; asked only where `has_opening` is set."""
        return False

    def settles(self, problem: Problem) -> Tensor | None:
        """(batch,) bool: the rows that this method decides exactly with few queries; None: no row.

        The solver runs the method on these rows before all other methods. Each row's value depends on that
        row alone.
        """
        return None

    def explain_interruption(self, state: State) -> str:
        """Why the time was too short, for the record, if a step from this state is interrupted or the budget ends
        before it; empty: nothing to say.
        """
        return ""


Step = Callable[[Any, Problem, Any], tuple[Any, Claims]]


def _ending_in_time(step: Step) -> Step:
    """Interrupt a late step, which then claims nothing.

    A step that ended after the deadline may have left work out, so it does not count as the last one.
    """

    @wraps(step)
    def ending(method: Any, problem: Problem, state: Any) -> tuple[Any, Claims]:
        late = Claims(fallback=method.explain_interruption(state))
        after, claims = time_limit.interrupt_late(lambda: step(method, problem, state), (state, late))
        return state if after is None and time_limit.has_expired() else after, claims

    return ending


def _needs_settings(kind: type[Method[Any]]) -> bool:
    """Whether a method cannot be made without arguments, as one that takes a function of the user's."""
    own = fields(kind) if is_dataclass(kind) else ()
    return any(one.init and one.default is MISSING and one.default_factory is MISSING for one in own)


def known_methods() -> dict[str, type[Method[Any]]]:
    """All methods of loaded modules that can be chosen by name and need no settings, by keyword."""
    found: dict[str, type[Method[Any]]] = {}
    waiting = list(Method.__subclasses__())
    for kind in waiting:
        waiting += kind.__subclasses__()
        if not isabstract(kind) and hasattr(kind, "finds") and not _needs_settings(kind):
            keyword = kind.keyword or kind.__name__.lower()
            ours = keyword in found and all(
                k.__module__.startswith("holdfast.") for k in (kind, found[keyword])
            )
            assert not ours, f"two methods are called {keyword}"
            found[keyword] = kind  # a user's class with the same keyword replaces an earlier one
    return dict(sorted(found.items()))
