"""The result of one check of a run or a bundle."""

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "differs", "unchecked"]


@dataclass(frozen=True)
class Finding:
    """Result of one check; `told` gives the reason, also if it is undecided ("unchecked")."""

    what: str
    state: State
    told: str
    details: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n  ".join([f"{self.what}: {self.state}, {self.told}", *self.details])
