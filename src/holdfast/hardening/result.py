"""The result of hardening: the network, its training history, and a comparison with the original network."""

from dataclasses import dataclass

from torch import nn

from holdfast.hardening.evaluation import RobustnessResult, proved_increase
from holdfast.hardening.recipe import Recipe
from holdfast.hardening.training import Ended, Epoch
from holdfast.network import Network


@dataclass(frozen=True, eq=False, repr=False)
class Hardened:
    """The hardened network; `before` and `after` are results on inputs not used for training.

    `measured_on` states whether these were test inputs or the validation inputs that selected the checkpoint.
    """

    network: Network
    module: nn.Module  # the same network as an instance of the user's own class: a copy with other weights
    recipe: Recipe
    radius: float
    history: tuple[Epoch, ...]
    before: RobustnessResult
    after: RobustnessResult
    measured_on: str
    ended: Ended
    seconds: float

    @property
    def better(self) -> bool:
        """Whether certainly more inputs are proved than before, and the network is not a constant classifier.

        Inputs that there was no time to measure count against it. If False, keep the original network.
        """
        return proved_increase(self.before, self.after)[0] > 0 and not self.after.constant

    @property
    def verdict(self) -> str:
        """One sentence that summarizes the result."""
        end = {
            "finished": "",
            "stopped": " Training was stopped by its limit.",
            "interrupted": " Training was interrupted.",
            "not a number": " The loss was not finite: training stopped, and the last good network was kept.",
        }[self.ended]
        told = (
            f"at radius {self.radius:g}, of {self.after.inputs} {self.measured_on} inputs, proved: "
            f"{self.after.proved}, "
            f"before: {self.before.proved}; {self.after.accuracy:.1%} are right, before "
            f"{self.before.accuracy:.1%}."
        )
        if self.better:
            return f"hardened: {told}{end}"
        if self.after.constant and self.after.proved.count:
            return (
                "NOT hardened, the network predicts a single class, or is no better than that (proofs of a "
                "constant "
                f"class mean nothing; the most frequent class has {self.after.commonest:.1%}): {told}{end} "
                f"Train for a smaller radius, or fewer frames."
            )
        if proved_increase(self.before, self.after)[1] > 0:
            return (
                f"NOT KNOWN whether hardened, there was no time to measure enough inputs: {told}{end} Allow "
                "more "
                f"seconds, or measure fewer inputs."
            )
        return f"NOT hardened, no more is proved than before: {told}{end}"

    def __repr__(self) -> str:
        return (
            f"Hardened({self.network.name} by {self.recipe.name}, {len(self.history)} epochs; "
            f"before {self.before}; after {self.after})"
        )
