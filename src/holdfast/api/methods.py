"""The default methods of each kind of problem. Importing this module registers every named method."""

from typing import Any, Literal, get_args

from holdfast.attacks import PGD, CarliniWagner, Corners, Mesh, Steps
from holdfast.certify import Arithmetic, Certify, Enumerate, Leaves, Split, Tighten
from holdfast.edits import EditBounds, EditSearch, EnumerateEdits
from holdfast.errors import BadInput
from holdfast.formatting import suggest
from holdfast.goals import objective_of
from holdfast.hamming import Branch, Greedy, Grid
from holdfast.lipschitz import Shells, Steepest  # noqa: F401  registered by name
from holdfast.method import Method
from holdfast.network import Network
from holdfast.problem import Goal, Problem
from holdfast.property import LinearProperty

Tier = Literal["search", "fast", "tight", "split"]
Mode = Literal["prove", "grid"]
What = Literal["norms", "units", "words", "edits", "offsets"]  # the quantity that a radius measures


def default_methods(
    net: Network,
    goal: Goal,
    tier: Tier = "fast",
    *,
    what: What = "norms",
    mode: Mode = "prove",
    arithmetic: Arithmetic = "real",
) -> list[Method[Any]]:
    """Return the default methods: attacks for the upper bound, then proofs for the lower bound."""
    for name, value, known in (
        ("tier", tier, Tier),
        ("arithmetic", arithmetic, Arithmetic),
        ("mode", mode, Mode),
    ):
        if value not in get_args(known):
            raise BadInput(
                f"{name} {value!r} is unknown; there are {', '.join(get_args(known))}.{suggest(value, get_args(known))}"
            )
    if arithmetic == "executed" and tier in ("tight", "split"):
        raise BadInput(
            f"tier {tier!r} proves bounds in real arithmetic only; with arithmetic 'executed' use tier "
            "'fast'."
        )
    if what == "edits":
        return edit_methods(tier, mode, arithmetic)
    if mode == "grid":
        if what in ("norms", "offsets"):
            raise BadInput("mode 'grid' counts changed units: use it with norm 0, or with substitutes.")
        return [Grid()]
    counts: list[Method[Any]] = [Greedy()] if what in ("units", "words") else []
    if net.trees is not None:
        return [*counts, Steps(), *([] if tier == "search" else [Leaves()])]
    if not net.differentiable:
        return counts or [Corners(), Mesh()]
    if net.columns is not None and not net.columns.plain:
        proof: Method[Any] = (
            Certify(arithmetic=arithmetic) if tier == "fast" or what == "units" else Tighten()
        )
        return [*(counts or [PGD(), Corners()]), *([] if tier == "search" else [proof])]
    searches: list[Method[Any]] = [PGD(), CarliniWagner()] if objective_of(goal).bounds_radius else [PGD()]
    if what == "words":  # The distance that CarliniWagner minimises has no meaning for words.
        searches = [PGD()]
    if what == "offsets":  # Offsets have few dimensions, so random corners find counterexamples quickly.
        searches = [PGD(), Corners()]
    if tier == "search":
        return counts if what == "units" else [*counts, *searches]
    if what == "units" and arithmetic == "real":
        return [*counts, Branch()]
    exact: list[Method[Any]] = [Enumerate()] if what == "words" else []
    proofs: dict[Tier, Method[Any]] = {
        "fast": Certify(arithmetic=arithmetic),
        "tight": Tighten(),
        "split": Split(),
    }
    return [*exact, *counts, *([] if what == "units" else searches), proofs[tier]]


def edit_methods(tier: Tier, mode: Mode, arithmetic: Arithmetic) -> list[Method[Any]]:
    """Return the default methods for edited texts: exact enumeration, a search, and bounds over positions."""
    if mode != "prove":
        raise BadInput("mode 'grid' counts changed units: leave it out with edits.")
    if arithmetic != "real":
        raise BadInput(
            "arithmetic 'executed' is not known for edits. Enumeration is about the outputs as executed anyway; "
            "the record of each bound says what it is about."
        )
    search: list[Method[Any]] = [EditSearch()]
    return search if tier == "search" else [EnumerateEdits(), *search, EditBounds()]


def score_methods(problem: Problem, tier: Tier, arithmetic: Arithmetic = "real") -> list[Method[Any]]:
    """Return the default methods for a score: also mesh search, where gradients mislead, and CROWN for
    nonlinear scores.
    """
    methods = default_methods(problem.network, problem.goal, tier, arithmetic=arithmetic)
    extra: list[Method[Any]] = (
        [Mesh()] if problem.network.differentiable else []
    )  # The defaults of a black box contain it.
    if not isinstance(problem.property, LinearProperty) and tier != "search":
        extra.append(Certify(arithmetic=arithmetic))
    return [*methods, *(method for method in extra if method not in methods)]
