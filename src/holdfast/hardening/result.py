"""What hardening gives back: the network, how it came about, and where it stands against the one it was made from."""

from dataclasses import dataclass

from torch import nn

from holdfast.hardening.evaluation import Standing, gain
from holdfast.hardening.recipe import Recipe
from holdfast.hardening.training import Ended, Epoch
from holdfast.network import Network


@dataclass(frozen=True, eq=False, repr=False)
class Hardened:
    """before and after are measured by the engine and by attacks on inputs that no step of training saw; `measured_on` says whether these
    were test inputs or those by which the checkpoint was chosen."""

    network: Network
    module: nn.Module  # the same, as the user's own class: a copy with other weights
    recipe: Recipe
    radius: float
    history: tuple[Epoch, ...]
    before: Standing
    after: Standing
    measured_on: str
    ended: Ended
    seconds: float

    @property
    def better(self) -> bool:
        """Whether it is known that more inputs are proved than before, and not by saying one class of everything. Inputs that there was no
        time to measure count against it. Where not, the network it was made from is the one to keep."""
        return gain(self.before, self.after)[0] > 0 and not self.after.constant

    @property
    def verdict(self) -> str:
        """One sentence for people."""
        end = {
            "finished": "", "stopped": " Training was stopped by its limit.", "interrupted": " Training was interrupted.",
            "not a number": " The loss was no number: training stopped there, and the last good network was kept.",
        }[self.ended]  # fmt: skip
        told = (
            f"at radius {self.radius:g}, of {self.after.inputs} {self.measured_on} inputs, proved: {self.after.proved}, before: "
            f"{self.before.proved}; {self.after.accuracy:.1%} are right, before {self.before.accuracy:.1%}."
        )
        if self.better:
            return f"hardened: {told}{end}"
        if self.after.constant and self.after.proved.count:
            return (
                f"NOT hardened, it says nothing but one class, or knows as little (what is proved is that it does; the commonest class has "
                f"{self.after.commonest:.1%}): {told}{end} Train for a smaller radius, or fewer frames."
            )
        if gain(self.before, self.after)[1] > 0:
            return (
                f"NOT KNOWN whether hardened, there was no time to measure enough inputs: {told}{end} Allow more seconds, or measure fewer "
                f"inputs."
            )
        return f"NOT hardened, no more is proved than before: {told}{end}"

    def __repr__(self) -> str:
        return f"Hardened({self.network.name} by {self.recipe.name}, {len(self.history)} epochs; before {self.before}; after {self.after})"
