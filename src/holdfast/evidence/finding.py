"""One thing that was looked at by somebody who checks a run or a bundle."""

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "differs", "unchecked"]


@dataclass(frozen=True)
class Finding:
    """ok: it is as it should be. differs: it is not. unchecked: nobody can say, and `told` says why."""

    what: str
    state: State
    told: str
    details: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n  ".join([f"{self.what}: {self.state}, {self.told}", *self.details])
