"""Training recipes: the loss, the radius schedule, the optimiser's settings.

Recipes are frozen, so runs are reproducible.
"""

from dataclasses import dataclass
from typing import Literal, get_args

from holdfast.errors import BadInput

Name = Literal["standard", "pgd", "intervals", "small boxes", "mixed", "crown-ibp", "edits"]
Begin = Literal["given", "afresh"]
KNOWN = ("auto", *get_args(Name))
MEANS = {
    "standard": "cross-entropy at the inputs",
    "pgd": "cross-entropy at adversarial examples from PGD: adversarial training, no bounds",
    "intervals": "interval bounds over the whole region (IBP)",
    "small boxes": "interval bounds over small boxes around adversarial examples from PGD (SABR)",
    "mixed": "cross-entropy at adversarial examples from PGD, mixed with bounds as in `intervals` (MTL-IBP)",
    "crown-ibp": (
        "CROWN bounds over interval bounds of the whole region, fading into interval bounds as the radius "
        "grows (CROWN-IBP)"
    ),
    "edits": "cross-entropy at the worst of several edited copies of each text (needs edits): no bounds",
}
DEFAULT_SHARES = {
    "small boxes": 0.4
}  # Default width of the bounded box, relative to the region's (chosen by hand).


@dataclass(frozen=True)
class Recipe:
    """Settings of a training run.

    References: IBP, Gowal et al. 2018; CROWN-IBP, Zhang et al. 2020; SABR, Mueller et al. 2023; MTL-IBP, De
    Palma et al. 2024.

    Attributes:
        name: the loss; MEANS describes each.
        begin: "given" continues from the current weights, "afresh" draws new ones for which intervals do not
            grow from layer to layer.
        weight: weight of the bounds in the loss at the full radius; the rest is the loss at the inputs, or at
            adversarial examples ("mixed").
        share: width of the bounded box, relative to the region's: around the input, or around adversarial
            examples ("small boxes"). The engine's proofs are tighter than intervals, so training on a smaller
            box often suffices. Values above 1 train for more than the radius, at a cost in accuracy. None:
            the default of the loss.
        attack: PGD steps for each batch; "edits": edited copies of each text.
        warm: the radius, and the weight of the bounds, grow from zero to full between these two shares of
            training.
        horizon: for recurrent networks: until the full radius is reached, only the last frames are perturbed,
            then more.
        crown: "crown-ibp": weight of the CROWN bounds in the margins, at radius 0 and at the full radius; the
            rest is IBP.
        tight: weight of a penalty on the growth of intervals from the input to the activations (and recurrent
            states) while the radius grows (Shi et al. 2021).
        jacobian: weight of a penalty on the first-order decrease of the margin over the region, |gradient| .
            half-width.
        epochs: number of passes over all inputs; None: as many as the time allows.
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
    clip: float = 1.0  # limit for the norm of the gradient

    def __post_init__(self) -> None:
        if self.name not in get_args(Name):
            raise BadInput(f"recipe {self.name!r} is unknown; choose one of {', '.join(KNOWN)}.")
        if self.begin not in get_args(Begin):
            raise BadInput(
                f"begin {self.begin!r}: 'given' continues from the current weights, 'afresh' draws new ones."
            )
        for name, value, most in (
            ("weight", self.weight, 1),
            ("share", self.inner, 1 if self.name == "small boxes" else 4),
        ):
            if not 0 < value <= most:
                raise BadInput(f"{name} {value} of the recipe: it must be above 0 and at most {most}.")
        if not 0 <= self.warm[0] <= self.warm[1] < 1:
            raise BadInput(f"warm {self.warm}: give two shares of the training, 0 <= first <= second < 1.")
        if (self.epochs is not None and self.epochs < 1) or self.batch < 1 or self.attack < 1:
            raise BadInput("epochs, batch and attack of a recipe must be at least 1.")
        if not all(0 <= share <= 1 for share in self.crown):
            raise BadInput(
                f"crown {self.crown}: give two weights between 0 and 1, at radius 0 and at the full radius."
            )
        if not self.rate > 0 or self.decay < 0 or not self.clip > 0 or self.tight < 0 or self.jacobian < 0:
            raise BadInput(
                "the rate and the clip of a recipe must be positive, its decay, tight and jacobian not "
                "negative."
            )

    def __str__(self) -> str:
        return f"{self.name}: {MEANS[self.name]}"

    @property
    def uses_bounds(self) -> bool:
        """Whether the loss needs interval bounds."""
        return self.name in ("intervals", "small boxes", "mixed", "crown-ibp")

    @property
    def uses_crown(self) -> bool:
        """Whether the loss needs CROWN bounds."""
        return self.name == "crown-ibp" and max(self.crown) > 0

    @property
    def inner(self) -> float:
        return self.share if self.share is not None else DEFAULT_SHARES.get(self.name, 1.0)

    @property
    def attacked(self) -> bool:
        return self.name in ("pgd", "small boxes", "mixed")

    def radius_share(self, progress: float) -> float:
        """The share of the radius at this progress in [0, 1]: a smoothstep between the two shares `warm`."""
        first, second = self.warm
        along = 1.0 if progress >= second else max(0.0, (progress - first) / max(second - first, 1e-9))
        return along * along * (3 - 2 * along)


# Number of frames up to which recurrent networks train with all frames perturbed from the start. On longer
# sequences intervals then grow too wide, and the network collapses to a constant class (observed on the
# digits).
MOST_FRAMES_AT_ONCE = 10


def select_recipe(
    recipe: "str | Recipe", *, recurrent: bool, boxed: bool, frames: int, edited: bool = False
) -> Recipe:
    """Return the recipe with this name. "auto" is a heuristic.

    For recurrent networks it takes what certified best on the digits' validation images; for others the
    literature's settings.

    Args:
        recurrent: the network has recurrent layers.
        boxed: the region is a box (maximum norm, words).
        frames: length of the longest input.
        edited: the region is that of edited texts, which no box encloses.
    """
    if not isinstance(recipe, Recipe) and recipe != "auto":
        recipe = Recipe(name=recipe)  # type: ignore[arg-type]
    if isinstance(recipe, Recipe):
        if edited and recipe.name not in ("standard", "edits"):
            raise BadInput(
                f"recipe {recipe.name!r} needs a region of vectors, and edited texts differ in length: with edits "
                "use 'auto', 'edits' or 'standard'."
            )
        if not edited and recipe.name == "edits":
            raise BadInput(
                "recipe 'edits' trains on edited texts: give edits=hf.Edits(...), or another recipe."
            )
        return recipe
    if edited:
        return Recipe(name="edits", rate=2e-3)
    if not boxed:
        return Recipe(name="small boxes")
    if not recurrent:
        return Recipe(name="mixed", share=0.7, rate=2e-3)
    if frames <= MOST_FRAMES_AT_ONCE:
        return Recipe(weight=1.0, share=1.0, batch=32)
    return Recipe(weight=1.0, share=0.8, batch=128, rate=2e-3, horizon=True, warm=(0.02, 0.8))
