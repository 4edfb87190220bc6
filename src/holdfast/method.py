"""How questions are answered: frozen settings, explicit state, one step at a time."""

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from typing import ClassVar, Generic, TypeVar

from torch import Tensor

from holdfast.problem import Problem
from holdfast.result import Kind, Setting

State = TypeVar("State")


@dataclass(frozen=True)
class Claims:
    """What one step found, row by row. A method never moves an upper end itself: it hands over a candidate, and `solve`
    replays it through the user's model.

    proved      (batch,) lower ends that hold for every point of the region; NaN where there is nothing new.
    witness     (batch, *shape) candidates that may break the property (radius) or score low (worst).
    found       (batch,) bool: the rows of `witness` that hold a candidate.
    estimate    (batch,) numbers without a guarantee, of the given kind; NaN where there is none.
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


@dataclass(frozen=True)
class Method(ABC, Generic[State]):
    """One algorithm. Its fields are its settings; what it has learnt so far is its state; when to stop is not its business."""

    long_steps: ClassVar[bool] = False  # seconds each: it begins when the methods with short steps have done what they can

    @property
    def name(self) -> str:
        return type(self).__name__

    def settings(self) -> dict[str, Setting]:
        return {key: value for key, value in asdict(self).items() if isinstance(value, str | int | float | bool | None)}

    @abstractmethod
    def obstacle(self, problem: Problem) -> str | None:
        """Why the method cannot work on this problem, in words for the user; None if it can. Cheap."""

    @abstractmethod
    def start(self, problem: Problem, seed: int) -> State:
        """The state before the first step."""

    @abstractmethod
    def step(self, problem: Problem, state: State) -> tuple[State | None, Claims]:
        """One step over the whole batch; the state is None when another step would find nothing more."""

    def told(self, problem: Problem, state: State, lower: Tensor, upper: Tensor) -> State:
        """Called before every step with both ends (batch,) float64 that are known so far, whoever found them: what is proved need not be
        proved again, and what lies beyond a witness need not be asked."""
        return state
