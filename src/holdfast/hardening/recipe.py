"""How a network is trained to hold: which loss, how the radius grows, for how long. All of it frozen, so that a run can be repeated."""

from dataclasses import dataclass
from typing import Literal, get_args

from holdfast.errors import BadInput

Name = Literal["standard", "pgd", "intervals", "small boxes", "mixed", "crown-ibp"]
Begin = Literal["given", "afresh"]
KNOWN = ("auto", *get_args(Name))
MEANS = {
    "standard": "the usual loss at the inputs themselves",
    "pgd": "the loss at the worst points that PGD finds: adversarial training, no bounds",
    "intervals": "interval bounds of the whole region in the loss (IBP)",
    "small boxes": "interval bounds of small boxes around points that PGD finds (SABR)",
    "mixed": "the loss at points that PGD finds, mixed with interval bounds of the whole region (MTL-IBP)",
    "crown-ibp": "bounds of the whole region by one walk back over intervals, fading into intervals alone as the radius grows (CROWN-IBP)",
}
USUAL = {"small boxes": 0.4}  # shares


@dataclass(frozen=True)
class Recipe:
    """name     which loss; MEANS says what each is.
    begin    "given": go on from the weights as they are. "afresh": from new ones, drawn so that intervals do not grow from layer to layer.
    weight   of the bounds in the loss, once the radius is reached; the rest is the loss at the inputs, or at attacked points ("mixed").
    share    of the region's width that the bounded box has: around the input, or around attacked points ("small boxes"). The engine's
             proofs are tighter than intervals, so what intervals hold over less, proofs often hold over all; more than 1 trains for
             more than was asked, at a price in accuracy. None: by the kind of loss.
    attack   steps of PGD for each batch.
    warm     the shares of training between which the radius grows from nothing to what was asked for, and the weight with it.
    horizon  recurrent networks: until the radius is reached, only the last frames move, more and more of them.
    crown    "crown-ibp": the share of the walked bounds in the margins at radius 0, and once the radius is reached; the rest is intervals'.
    tight    how much growth of intervals from the input to the activations, and to the states of recurrent layers, is punished while the
             radius grows (Shi et al. 2021).
    jacobian how much the first-order loss of the margin over the region is punished: |gradient of the margin| . half the region's width.
    epochs   how often all inputs are seen; None: as often as the time allows.
    """

    name: Name = "intervals"
    begin: Begin = "given"
    weight: float = 0.5
    share: float | None = None
    attack: int = 8
    warm: tuple[float, float] = (0.05, 0.6)
    horizon: bool = False
    crown: tuple[float, float] = (1.0, 0.0)
    tight: float = 0.0
    jacobian: float = 0.0
    epochs: int | None = 60
    batch: int = 64
    rate: float = 5e-3
    decay: float = 1e-4
    clip: float = 1.0  # the longest gradient

    def __post_init__(self) -> None:
        if self.name not in get_args(Name):
            raise BadInput(f"recipe {self.name!r} is unknown; there are {', '.join(KNOWN)}.")
        if self.begin not in get_args(Begin):
            raise BadInput(
                f"begin {self.begin!r}: 'given' goes on from the weights as they are, 'afresh' draws new ones."
            )
        for name, value, most in (
            ("weight", self.weight, 1),
            ("share", self.inner, 1 if self.name == "small boxes" else 4),
        ):
            if not 0 < value <= most:
                raise BadInput(f"{name} {value} of the recipe: it is a share above 0 and at most {most}.")
        if not 0 <= self.warm[0] <= self.warm[1] < 1:
            raise BadInput(f"warm {self.warm}: give two shares of the training, 0 <= first <= second < 1.")
        if (self.epochs is not None and self.epochs < 1) or self.batch < 1 or self.attack < 1:
            raise BadInput("epochs, batch and attack of a recipe are at least 1.")
        if not all(0 <= share <= 1 for share in self.crown):
            raise BadInput(
                f"crown {self.crown}: give two shares between 0 and 1, at radius 0 and at the radius asked for."
            )
        if not self.rate > 0 or self.decay < 0 or not self.clip > 0 or self.tight < 0 or self.jacobian < 0:
            raise BadInput(
                "the rate and the clip of a recipe are above 0, its decay, tight and jacobian not below."
            )

    def __str__(self) -> str:
        return f"{self.name}: {MEANS[self.name]}"

    @property
    def bounded(self) -> bool:
        """Whether it needs intervals."""
        return self.name in ("intervals", "small boxes", "mixed", "crown-ibp")

    @property
    def walked(self) -> bool:
        """Whether it needs the walk back."""
        return self.name == "crown-ibp" and max(self.crown) > 0

    @property
    def inner(self) -> float:
        return self.share if self.share is not None else USUAL.get(self.name, 1.0)

    @property
    def attacked(self) -> bool:
        return self.name in ("pgd", "small boxes", "mixed")

    def grown(self, progress: float) -> float:
        """How far training is, 0 to 1 -> the share of the radius by then: smooth at both bounds."""
        first, second = self.warm
        along = 1.0 if progress >= second else max(0.0, (progress - first) / max(second - first, 1e-9))
        return along * along * (3 - 2 * along)


LONG = 10  # frames, beyond which intervals survive neither large steps nor that all frames move at once from the beginning: the network
# ends by saying one class of everything


def chosen(recipe: "str | Recipe", *, recurrent: bool, boxed: bool, frames: int) -> Recipe:
    """The recipe by its name; "auto" by a rule of thumb: for recurrent networks what held best on the digits' validation images, for others
    the literature's way.

    recurrent  the network has recurrent layers. boxed: the region is its own box (the maximum norm, words). frames: of the longest input.
    """
    if isinstance(recipe, Recipe):
        return recipe
    if recipe != "auto":
        return Recipe(name=recipe)  # type: ignore[arg-type]
    if not boxed:
        return Recipe(name="small boxes")
    if not recurrent:
        return Recipe(name="mixed", share=0.7, rate=2e-3)
    if frames <= LONG:
        return Recipe(weight=1.0, share=1.0, batch=32)
    return Recipe(weight=1.0, share=0.8, batch=128, rate=2e-3, horizon=True, warm=(0.02, 0.8))
