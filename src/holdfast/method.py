"""How questions are answered: frozen settings, explicit state, one step at a time."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import wraps
from inspect import isabstract
from typing import Any, ClassVar, Generic, TypeVar

from torch import Tensor

from holdfast import time_limit
from holdfast.errors import BadInput
from holdfast.problem import Problem
from holdfast.result import Goal, Kind, Setting, Traits

State = TypeVar("State")


@dataclass(frozen=True)
class Claims:
    """What one step found, row by row. A method never moves an upper bound itself: it hands over a candidate, and `solve`
    replays it through the user's model.

    proved      (batch,) lower bounds that hold for every point of the region; NaN where there is nothing new.
    witness     (batch, *shape) candidates that may break the property (radius) or score low (worst).
    found       (batch,) bool: the rows of `witness` that hold a candidate.
    estimate    (batch,) numbers without a guarantee, of the given kind; NaN where there is none.
    done        (batch,) bool: rows that the method will not come back to, so that a resumed run need not either; None: none yet.

    Of a steepness `proved` holds the negatives of upper bounds, and candidates are points of which the ratio is taken.
    """

    proved: Tensor | None = None
    witness: Tensor | None = None
    found: Tensor | None = None
    estimate: Tensor | None = None
    estimate_kind: Kind = "estimated"
    confidence: float | None = None
    assumptions: tuple[str, ...] = ()
    checks: tuple[str, ...] = ()
    dtype: str = "torch.float64"  # the arithmetic of what is proved
    done: Tensor | None = None
    aside: Mapping[str, Tensor] = field(
        default_factory=dict
    )  # (batch, ...) each: what is kept beside the records; NaN: nothing
    settings: Mapping[str, Setting] = field(default_factory=dict)  # that the method chose by itself
    obstacle: str = ""  # why it goes no further, in words for the user
    fallback: str = ""  # a stage that was left out for want of memory, of size or of time, why, and what was used instead; for the record


@dataclass(frozen=True)
class Method(ABC, Generic[State]):
    """One algorithm. Its fields are its settings; what it has learnt so far is its state; when to stop is not its business.

    finds   in a few words what it contributes: "lower bounds, proved", "witnesses", "estimates", ...
    help    one line for people who choose methods.
    keyword what the command line calls it; its name in small letters where nothing is said.
    traits  in the words of the standard.
    goals   what it can be asked for: what it proves of one number says nothing of another.
    """

    finds: ClassVar[str]
    help: ClassVar[str]
    keyword: ClassVar[str] = ""
    traits: ClassVar[Traits] = Traits()
    goals: ClassVar[tuple[Goal, ...]] = ("radius", "worst")
    long_steps: ClassVar[bool] = (
        False  # seconds each: it begins when the methods with short steps have done what they can
    )

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        if "step" in vars(cls):
            setattr(cls, "step", _ending_in_time(cls.step))  # noqa: B010  a method that mypy would not let be replaced

    @property
    def name(self) -> str:
        return type(self).__name__

    def at_least(self, **fewest: int) -> None:
        """BadInput where a setting is smaller than that."""
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
        """Why the method is not used here; None: it is."""
        return (
            self.obstacle(problem)
            if problem.goal in self.goals
            else f"answers questions for {', '.join(self.goals)}"
        )

    @abstractmethod
    def obstacle(self, problem: Problem) -> str | None:
        """Why the method cannot work on this problem, in words for the user; None if it can. Cheap."""

    def view(self, problem: Problem) -> Problem:
        """The problem as the method is asked: another one whose proofs are proofs of this one. A method with another view of it claims
        no witnesses."""
        return problem

    @abstractmethod
    def start(self, problem: Problem, seed: int) -> State:
        """The state before the first step."""

    def resume_state(self, problem: Problem, state: State, aside: Mapping[str, Tensor]) -> State:
        """The first state of a run that is taken up again, given what this method with these settings left beside the records, (batch, ...)
        each and NaN where there is nothing; most begin again."""
        return state

    @abstractmethod
    def step(self, problem: Problem, state: State) -> tuple[State | None, Claims]:
        """One step over the whole batch; the state is None when another step would find nothing more. A step that goes on after the
        deadline is cut off, and it is as if it had never begun: so the state that it was given must stay as it was."""

    def update_bounds(self, problem: Problem, state: State, lower: Tensor, upper: Tensor) -> State:
        """Called before every step with the ends (batch,) float64 known so far, whoever found them: what is proved need not be proved
        again, and what lies beyond a witness need not be asked."""
        return state

    def settles(self, problem: Problem) -> Tensor | None:
        """(batch,) bool: the rows that this method decides exactly with few queries; None: no row.

        The solver runs the method on these rows before all other methods. Each row's value depends on that
        row alone.
        """
        return None


Step = Callable[[Any, Problem, Any], tuple[Any, Claims]]


def _ending_in_time(step: Step) -> Step:
    """What is cut off finds nothing; and what ended after the deadline may have left something out, so it was not the last step."""

    @wraps(step)
    def ending(method: Any, problem: Problem, state: Any) -> tuple[Any, Claims]:
        after, claims = time_limit.interrupt_late(lambda: step(method, problem, state), (state, Claims()))
        return state if after is None and time_limit.has_expired() else after, claims

    return ending


def known_methods() -> dict[str, type[Method[Any]]]:
    """Every method that can be asked for by name and needs no settings, by its keyword; those of modules that are loaded."""
    found: dict[str, type[Method[Any]]] = {}
    waiting = list(Method.__subclasses__())
    for kind in waiting:
        waiting += kind.__subclasses__()
        if not isabstract(kind) and hasattr(kind, "finds"):
            keyword = kind.keyword or kind.__name__.lower()
            ours = keyword in found and all(
                k.__module__.startswith("holdfast.") for k in (kind, found[keyword])
            )
            assert not ours, f"two methods are called {keyword}"
            found[keyword] = kind  # of those that users made, the last
    return dict(sorted(found.items()))
