"""The claim of a record in the format of a certificate: header and arrays, as docs/proofs.md describes them.

What is written here is not trusted: the checker reads the bytes again and decides what they claim.
"""

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

import holdfast_check
from holdfast.errors import UnsupportedLayer
from holdfast.problem import Problem
from holdfast.property import Avoid, LinearProperty, Property, Robustness
from holdfast.region import Box, Patch, Region
from holdfast.region.normed import NormFamily
from holdfast.region.rows import Rows, TableFamily
from holdfast.region.sparse import Sparse
from holdfast.region.words import Words
from holdfast.result import Record
from holdfast.verification.specification import Forbidden
from holdfast_check import proof as checker
from holdfast_check.claim_text import ClaimNames
from holdfast_check.container import read_container
from holdfast_check.rows import ROW_ARRAYS
from holdfast_check.steps import Program
from holdfast_check.trees import TreeSum

NORMS = {
    math.inf: "inf",
    2.0: "2",
    1.0: "1",
}  # Norms of balls that certificates support, and their names there.
Array = np.ndarray[Any, Any]


def request_header(
    part: Problem,
    record: Record,
    opened: holdfast_check.Model,
    kind: str,
    names: ClaimNames | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return header and arrays of a file about one row, without the radius and the claimed number."""
    header: dict[str, Any] = {
        "schema": checker.SCHEMA,
        "version": checker.VERSION,
        "kind": kind,
        "goal": record.goal,
        "input": str(record.key),
        "question": record.question,
        "model": {"sha256": opened.sha256, "file": opened.name},
    }
    if names is not None and (names.inputs or names.outputs):
        header["names"] = names.as_json()
    outputs = opened.program.outputs
    region, arrays = describe_region(part.region)
    if region["norm"] == "0" or set(ROW_ARRAYS) & arrays.keys() or isinstance(opened.program, TreeSum):
        header["version"] = checker.ROWS_VERSION
    about, rows = describe_property(part.property, outputs, part)
    return {**header, "region": region, "property": about, "above": 0.0}, {**arrays, **rows}


def _compact(values: Any) -> "np.ndarray[Any, Any]":
    """Return the values as float32 if that is exact, else float64; a constant array as one number."""
    wide = np.asarray(values, dtype=np.float64).ravel()
    wide = wide[:1] if len(wide) and bool((wide == wide[0]).all()) else wide
    narrow = wide.astype(np.float32)
    return narrow if bool((narrow.astype(np.float64) == wide).all()) else wide


def describe_region(region: Region) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the part of the header and the arrays that describe the region of one row."""
    centre = region.centre[0].detach().cpu().double().numpy()
    if isinstance(region, NormFamily | Patch):
        if isinstance(region, Patch):
            norm, shares = math.inf, region.mask[0].cpu().double().numpy().ravel()
        else:
            shares = region.free()[0].cpu().numpy()
            norm = math.inf if len(shares) == centre.size else region.norm
        if norm not in NORMS:
            raise UnsupportedLayer(f"certificates support the norms 1, 2 and inf, not {norm:g}.")
        ends = {
            end: _compact(np.broadcast_to(getattr(region.domain, end).cpu().numpy(), centre.shape))
            for end in ("lower", "upper")
        }
        arrays = {
            "region/centre": np.asarray(centre.ravel()),
            "region/shares": shares,
            **{f"region/{end}": v for end, v in ends.items()},
        }
        arrays["region/centre"] = _compact(centre) if centre.size > 1 else centre.ravel()
        return {"norm": NORMS[norm], "radius": float(region.radius[0])}, arrays
    if isinstance(region, Box):
        lower, upper = (end[0].detach().cpu().double().numpy().ravel() for end in region.enclosing_box())
        return {"norm": "box"}, {"region/lower": _compact(lower), "region/upper": _compact(upper)}
    if isinstance(region, TableFamily):
        return describe_rows(region, centre)
    if isinstance(region, Sparse | Words):
        return describe_counted(region, centre.ravel())
    raise UnsupportedLayer(
        "certificates support balls, frames, patches, boxes, rows of tables, changed units and words, not "
        f"{type(region).__name__}."
    )


def describe_rows(region: TableFamily, centre: Array) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the part of the header and the arrays for rows of a table: numbers by their scales, or whole columns.

    Steps that are no powers of two are left out: the claim is then about all numbers, which are more.
    """
    moving = region.moving.cpu().numpy()
    low, high = (end.cpu().numpy() for end in region.feature_bounds())
    still = np.where(np.isfinite(centre), centre, np.nan)
    if np.isnan(still).any():
        raise UnsupportedLayer(
            "the row has a number that is not finite, and certificates need finite numbers."
        )
    steps = region.steps.cpu().double().numpy()
    dyadic = (steps > 0) & (np.frexp(np.where(steps > 0, steps, 1.0))[0] == 0.5)
    arrays: dict[str, Any] = {
        "region/centre": centre,
        "region/lower": np.where(moving, np.minimum(low, centre), centre),
        "region/upper": np.where(moving, np.maximum(high, centre), centre),
        "region/steps": np.where(dyadic & moving, steps, 0.0),
    }
    if isinstance(region, Rows):
        scales = np.broadcast_to(region.scales.cpu().double().numpy(), centre.shape)
        arrays["region/scales"] = np.where(moving, scales, 1.0)
        norms = {**NORMS}
        if region.norm not in norms:
            raise UnsupportedLayer(f"certificates support the norms 0, 1, 2 and inf, not {region.norm:g}.")
        return {"norm": norms[region.norm], "radius": float(region.radius[0])}, arrays
    units = region.columns.unit.cpu().numpy().astype(np.int64)
    _, units = np.unique(units, return_inverse=True)
    arrays["region/units"] = units
    words = [np.flatnonzero(group) for group in region.groups.cpu().numpy()]
    lists = [(units[own[0]], np.eye(len(own))) for own in words if moving[own].all()]
    if lists:
        widest = max(len(values) for _, values in lists)
        arrays["region/choices"] = np.concatenate(
            [np.pad(values, ((0, 0), (0, widest - len(values)))) for _, values in lists]
        )
        arrays["region/choice_units"] = np.concatenate([np.full(len(values), unit) for unit, values in lists])
    return {"norm": "0", "radius": float(np.floor(float(region.radius[0])))}, arrays


def describe_counted(region: Sparse | Words, centre: Array) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the part of the header and the arrays for changed units (pixels, frames, numbers) or words.

    Units have boxes; with levels, these reach from the smallest level to the largest one, which is more. Words have the
    vectors of their substitutes.
    """
    about = {"norm": "0", "radius": float(min(float(region.radius[0].floor()), 1e15))}
    if isinstance(region, Words):
        length, size = region.tokens.shape[1], len(centre) // region.tokens.shape[1]
        vectors = region.vectors.table[region.choices[0]].detach().cpu().double().numpy()
        every = np.concatenate([vectors, centre.reshape(length, 1, size)], axis=1)
        return about, {
            "region/centre": _compact(centre),
            "region/lower": _compact(every.min(1)),
            "region/upper": _compact(every.max(1)),
            "region/units": np.repeat(np.arange(length), size),
            "region/choices": vectors.reshape(-1, size),
            "region/choice_units": np.repeat(np.arange(length), vectors.shape[1]),
        }
    shape = region.centre.shape[1:]
    free = region.free_units()[0].expand(shape).cpu().numpy().ravel()
    low, high = (
        np.broadcast_to(end.detach().cpu().double().numpy(), shape).ravel()
        for end in region.value_range(region.centre.double())
    )
    units = torch.arange(region.units).reshape(region.unit_shape).expand(shape).numpy().ravel()
    return about, {
        "region/centre": _compact(centre),
        "region/lower": _compact(np.where(free, np.minimum(low, centre), centre)),
        "region/upper": _compact(np.where(free, np.maximum(high, centre), centre)),
        "region/units": units.astype(np.int32),
    }


def describe_property(
    asked: Property, outputs: int, part: Problem | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the part of the header and the arrays that describe the property of one row."""
    if isinstance(asked, Robustness):
        return {"class": int(asked.label[0])}, {}
    if isinstance(asked, LinearProperty) and part is not None:
        matrix, offset = (part.expand(1, *part.shape[1:])[0].cpu().numpy() for part in asked.rows(outputs))
        return {"groups": [[row] for row in range(len(matrix))]}, {
            "property/rows": matrix,
            "property/offset": offset,
        }
    if isinstance(asked, Avoid):
        if isinstance(asked, Forbidden) and bool(asked.off[0].any()):
            raise UnsupportedLayer(
                "the coefficients of this property are not exact in float64, which certificates need."
            )
        polytopes, each = asked.matrix.shape[1:3]
        arrays = {
            "property/rows": asked.matrix[0].flatten(0, 1).cpu().numpy(),
            "property/offset": asked.offset[0].flatten().cpu().numpy(),
        }
        return {"groups": [list(range(p * each, (p + 1) * each)) for p in range(polytopes)]}, arrays
    raise UnsupportedLayer(
        f"certificates support properties that are linear in the outputs, not {type(asked).__name__}."
    )


def pack_proof(header: Mapping[str, Any], arrays: Mapping[str, Any]) -> bytes:
    from safetensors.numpy import save  # optional dependency

    return bytes(
        save(
            {name: np.ascontiguousarray(value) for name, value in arrays.items()},
            {checker.SCHEMA: json.dumps(header)},
        )
    )


def read_claim(
    header: Mapping[str, Any], arrays: Mapping[str, Any], program: Program | TreeSum
) -> checker.Claim:
    """Return the claim as the checker reads it from the bytes of the file."""
    metadata, read = read_container(pack_proof(header, arrays))
    return checker.Claim.read_claim(json.loads(metadata[checker.SCHEMA]), read, program)


def proved_margin(header: Mapping[str, Any], arrays: Mapping[str, Any], program: Program | TreeSum) -> float:
    """Return the margin that the checker proves."""
    with np.errstate(all="ignore"):
        return checker.proof_margin(read_claim(header, arrays, program), program)
