"""Describe a call as the stored request of a run, so that its page states every restriction that its numbers
depend on.
"""

from dataclasses import fields
from typing import Any

from torch import Tensor

from holdfast.formatting import exact_text
from holdfast.network.callable_fingerprint import of_value
from holdfast.property import Property, Rule, Threshold, Within
from holdfast.question import Json, Request
from holdfast.region import Ball, Region
from holdfast.request import describe_numbers


def region_request(region: Region, rule: object, **more: Any) -> Request:
    """Return the request of a call about a region: norm and radius of a ball, else a hash of the region."""
    where: dict[str, Any] = {"box": of_value(region)}
    if isinstance(region, Ball):
        radii = sorted({float(size) for size in region.radius.tolist()})
        shown: Any = radii[0] if len(radii) == 1 else describe_numbers(region.radius)
        where = {"norm": exact_text(float(region.norm)), "radius": shown}
    return Request(**where, **property_fields(rule), **more)


def reach_request(region: Region, outputs: Json, rows: Tensor | None, tolerance: float) -> Request:
    """Return the request of `hf.reach`: a hash of the boxes, the outputs and the tolerance."""
    which = describe_numbers(outputs) if rows is None else f"combinations hash {of_value(rows)[:8]}"
    return Request(box=of_value(region), outputs=which, tolerance=tolerance)


def property_fields(given: object) -> dict[str, Any]:
    """The fields of a request that say what must hold."""
    if isinstance(given, Within):
        return {
            "within": describe_numbers(given.by),
            "outputs": describe_numbers(given.outputs),
            "quantiles": describe_numbers(given.quantiles),
        }
    if isinstance(given, Threshold) and isinstance(given.at, int | float):
        return {"threshold": float(given.at)}
    if isinstance(given, str) or given is None:
        return {"property": given}
    if isinstance(given, Property | Rule):
        settings = {one.name: getattr(given, one.name) for one in fields(given)}  # type: ignore[arg-type]
        plain = [
            f"{name} {value}" for name, value in settings.items() if isinstance(value, str | int | float)
        ]
        others = [value for value in settings.values() if not isinstance(value, str | int | float)]
        known = [f"hash {of_value(others)[:8]}"] if others else []
        return {"property": " ".join([type(given).__name__, *plain, *known])}
    name = getattr(given, "__name__", type(given).__name__)
    return {"property": f"{name} hash {of_value(given)[:8]}"}
