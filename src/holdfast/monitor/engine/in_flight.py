"""Mutants between their mutation and the comparison of their label, all in one batch."""

import torch
from torch import Tensor

from holdfast.monitor.engine.state_view import StateView


class MutantsInFlight:
    """Live mutants.

    Each has the sequence it belongs to (`owner`) and the step at which its label is compared (`due`).
    """

    def __init__(self, view: StateView, count: int) -> None:
        self.view = view
        self.count = count
        self.left: list[tuple[Tensor, Tensor]] = []  # mutants and their outputs
        self._forget()

    def _forget(self) -> None:
        none = torch.zeros(0, dtype=torch.int64, device=self.view.device)
        self.mutant, self.owner, self.due = none, none, none
        self.state = torch.zeros(0, self.view.width, dtype=self.view.dtype, device=self.view.device)

    def advance(self, gates: Tensor) -> None:
        """Advance all mutants by the next element of their sequence, with gates (sequences, G)."""
        if len(self.mutant):
            self.state = self.view.step(
                gates.index_select(0, self.owner), self.view.recall(self.state), self.state
            )

    def join(self, mutant: Tensor, owner: Tensor, due: Tensor, state: Tensor) -> None:
        new = (mutant, owner, due, state)
        old = (self.mutant, self.owner, self.due, self.state)
        self.mutant, self.owner, self.due, self.state = (
            (torch.cat(pair) for pair in zip(old, new, strict=True)) if len(self.mutant) else new
        )

    def leave(self, t: int, base: Tensor) -> None:
        """Remove mutants that are due, and those whose state equals that of their sequence, bit for bit."""
        if not len(self.mutant):
            return
        over = self.due == t
        if bool(over.all()):
            self.left.append((self.mutant, self.view.outputs(self.state)))
            self._forget()
            return
        if bool(over.any()):
            self.left.append((self.mutant[over], self.view.outputs(self.state[over])))
        same = (self.state == base.index_select(0, self.owner)).all(1) & ~over
        gone = over | same
        if bool(gone.any()):
            self._keep(~gone)

    def _keep(self, chosen: Tensor) -> None:
        self.mutant, self.owner, self.due, self.state = (
            x[chosen] for x in (self.mutant, self.owner, self.due, self.state)
        )

    def outputs(self, unmutated: Tensor) -> Tensor:
        """Outputs (count, o); removed mutants without their own have those of their sequence, `unmutated`."""
        found = unmutated.clone()
        for mutant, outputs in self.left:
            found[mutant] = outputs
        return found
