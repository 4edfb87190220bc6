"""`hf.assert_robust`: fail a test unless enough inputs are certified at a radius."""

from pathlib import Path
from typing import Unpack

from holdfast.api.arguments import ModelLike, check_number
from holdfast.api.radius import Inputs, LabelsOption, Options
from holdfast.api.radius import radius as bracket_radii
from holdfast.api.results import RadiusList

SHOWN_INPUTS = 10  # Inputs that the message of a failed assertion names; chosen by hand.


def assert_robust(
    net: ModelLike,
    x: Inputs,
    y: LabelsOption = None,
    *,
    radius: float,
    min_certified: float = 1.0,
    max_broken: float | None = None,
    max_unknown: float | None = None,
    report: str | Path | None = None,
    **options: Unpack[Options],
) -> RadiusList:
    """Raise AssertionError unless enough inputs keep their class under every perturbation up to a radius.

    Args:
        net: a torch module in evaluation mode, the path of an .onnx file, a fitted estimator, or a
            hf.Network.
        x: (batch, *shape), the inputs, as for `hf.radius`.
        y: the class of each input. A misclassified input is not certified.
        radius: how far inputs may be perturbed. Under norm 0 and with substitutes it counts changes.
        min_certified: at least this share of all inputs has to be certified at the radius. An input that is
            unknown, because the time ended or the bounds are too wide, is not certified.
        max_broken: at most this share may have a counterexample within the radius; unknown inputs count too,
            unless max_unknown is given.
        max_unknown: at most this share may be unknown.
        report: the path of a page (.html) that is written before the decision, so also for a failed one.
        options: all other options of `hf.radius`, such as norm, domain, tier, seconds and property.

    Returns: The result of `hf.radius`, for a report or further rules.
    """
    check_number("radius", radius, above=0)
    for name, share in (
        ("min_certified", min_certified),
        ("max_broken", max_broken),
        ("max_unknown", max_unknown),
    ):
        if share is not None:
            check_number(name, share, at_least=0, help="It is a share of the inputs, as in 0.9.")
    result = bracket_radii(net, x, y, **options)
    if report is not None:
        result.report(report)
    decision = result.gate(
        radius, min_certified=min_certified, max_broken=max_broken, max_unknown=max_unknown
    )
    if decision.passed:
        return result
    inputs = dict.fromkeys(line for check in decision.checks if not check.passed for line in check.details)
    lines = [*list(inputs)[:SHOWN_INPUTS]]
    if len(inputs) > SHOWN_INPUTS:
        lines.append(f"and {len(inputs) - SHOWN_INPUTS} more")
    raise AssertionError("\n  ".join([str(decision), *lines]))
