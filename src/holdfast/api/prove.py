"""Certificates: proved bounds and counterexamples of records as files that `holdfast-check` accepts without
holdfast.

A file is kept only after the checker has accepted its bytes. If the checker cannot prove the number of the
record, the file claims the largest smaller number that it can prove, and says so. Nothing in this module is
trusted.
"""

import hashlib
import json
import math
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import holdfast_check
from holdfast import time_limit
from holdfast.api.arguments import StopOption, check_stop, show
from holdfast.api.check import ROUNDING, has_proof, has_witness, orient_bounds
from holdfast.api.checker_parabolas import Parabolas, certainly_holds
from holdfast.api.checker_signs import split_by_relus
from holdfast.api.checker_slopes import SLACK, MatchedActivations, search_trained_slopes
from holdfast.api.checker_splits import split_box
from holdfast.bounding.branching.branching_rule import choose_branching
from holdfast.bounding.branching.relu_split import ActivationSplit
from holdfast.bounding.description import describe_network
from holdfast.bounding.graph.equivalence_check import FINE, sampled_points
from holdfast.errors import BadInput, HoldfastError, UnsupportedLayer
from holdfast.files import new_file
from holdfast.problem import Problem
from holdfast.property import Avoid, LinearProperty, Robustness
from holdfast.region import Box, Patch, Region
from holdfast.region.normed import NormFamily
from holdfast.result import Key, Record
from holdfast.verification.specification import Forbidden
from holdfast_check import proof as checker
from holdfast_check.container import read_container as read_container

SUFFIX, SHOWN_BY = ".proof", ".witness"
NEARLY = 0.99  # Fraction of a radius; the checker's rounding loses less than the rest.
SEARCHED = 7  # Bisection steps between an accepted and a rejected fraction of the radius.
PARTS, MOST = (
    4096,
    200_000,
)  # Subproblems of ReLU splits: for a radius (a smaller one may be claimed instead), and for a score.
NORMS = {math.inf: "inf", 2.0: "2", 1.0: "1"}


@dataclass(frozen=True)
class Certificate:
    """A certificate file, or the reason why there is none.

    Attributes:
        key: the record.
        kind: proof or witness.
        known: the number of the record.
        value: the number that the certificate claims.
        file: the path; None if there is no file.
        model: the path of the model that the certificate is about.
        told: remarks, as text.
        reason: why there is no file.
        seconds: time spent on it.
    """

    key: Key
    kind: str
    known: float
    value: float = math.nan
    file: Path | None = None
    model: Path | None = None
    told: str = ""
    reason: str = ""
    seconds: float = 0.0

    @property
    def size(self) -> int:
        return 0 if self.file is None else self.file.stat().st_size


def prove(
    problems: Iterable[Problem],
    records: Iterable[Record],
    folder: str | Path,
    *,
    file: str | Path | None = None,
    stop: StopOption = None,
    seconds: float | None = None,
) -> list[Certificate]:
    """Write a certificate file for every claim of these records into a folder.

    The model is written too, unless the checker reads its .onnx file.

    Args:
        problems: the hf.Problem objects that were solved.
        records: their answers, as `hf.solve` returns them.
        folder: where the files go.
        file: the .onnx file that the network was read from.
        stop: hf.Stop(seconds=...) or a number of seconds for all certificates; claims that are left then have
        no file, and say so.
        seconds: the same as a number for `stop`.
    """
    problems = (
        [problems] if isinstance(problems, Problem) else list(_iterable("problems", problems, "hf.Problem"))
    )
    records = list(_iterable("records", records, "hf.Record"))
    for name, values, kind in (("problems", problems, Problem), ("records", records, Record)):
        wrong = next((one for one in values if not isinstance(one, kind)), None)
        if wrong is not None:
            raise BadInput(
                f"{name}: expected hf.{kind.__name__} objects, got {show(wrong)}; hf.solve takes problems "
                "and returns records."
            )
    if not isinstance(folder, str | Path):
        raise BadInput(f"folder: expected the path of a folder, got {show(folder)}.")
    stop = check_stop(stop, seconds)
    known, place = {record.key: record for record in records}, Path(folder)
    until = math.inf if stop is None or stop.seconds is None else time.monotonic() + stop.seconds
    source = None if file is None else Path(file)
    place.mkdir(parents=True, exist_ok=True)
    return [
        made for problem in problems for made in iterate_certificates(problem, known, place, source, until)
    ]


def _iterable(name: str, given: Any, kind: str) -> Iterable[Any]:
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise BadInput(f"{name}: expected a list of {kind}, got {show(given)}.")
    return given


def iterate_certificates(
    problem: Problem, records: Mapping[Key, Record], folder: Path, source: Path | None, until: float
) -> Iterator[Certificate]:
    """Yield the certificates of one problem as they are made; `until` is a deadline of time.monotonic."""
    rows = [
        row
        for row, key in enumerate(problem.keys)
        if key in records and (has_proof(records[key]) or has_witness(records[key]))
    ]
    if not rows:
        return
    asked = problem.lowest()
    try:
        path, opened = model_for(asked, folder, source)
    except (HoldfastError, holdfast_check.Rejected) as error:
        for row in rows:
            record = records[problem.keys[row]]
            yield Certificate(record.key, "proof", orient_bounds(record).lower.value, reason=str(error))
        return
    for row in rows:
        record = records[problem.keys[row]]
        part = asked.take(torch.tensor([row], device=asked.region.centre.device))
        for kind, wanted, make in (
            ("proof", has_proof(record), _proof),
            ("witness", has_witness(record), _witness),
        ):
            if wanted:
                begun = time.monotonic()
                ends = orient_bounds(record)
                blank = Certificate(
                    record.key, kind, ends.lower.value if kind == "proof" else ends.upper.value, model=path
                )
                try:
                    if begun >= until:
                        raise holdfast_check.Rejected("no time was left for it: give more --seconds")
                    made = make(part, record, opened, folder, blank, until)
                except (HoldfastError, holdfast_check.Rejected, OverflowError, MemoryError) as error:
                    made = replace(blank, reason=str(error))
                yield replace(made, seconds=time.monotonic() - begun)


def model_for(problem: Problem, folder: Path, source: Path | None) -> tuple[Path, holdfast_check.Model]:
    """Return the model file for the checker and its program: the user's own .onnx file if the checker reads
    it.
    """
    why = ""
    if source is not None and source.name.endswith((".onnx", ".onnx.gz")):
        try:
            opened = holdfast_check.Model.read_file(source)
            check_agreement(problem, opened)
            return source, opened
        except (UnsupportedLayer, holdfast_check.Rejected) as error:
            why = f"the checker cannot read {source.name}: {error}. "
    try:
        data = describe_network(problem.network, problem.region.centre)
    except HoldfastError as error:
        raise UnsupportedLayer(f"{why}{error}") from error
    path = folder / "model.safetensors"
    if path.exists() and path.read_bytes() != data:
        path = folder / f"model-{hashlib.sha256(data).hexdigest()[:8]}.safetensors"
    with new_file(path) as stream:
        stream.write(data)
    opened = holdfast_check.Model.read_file(path)
    check_agreement(problem, opened)
    return path, opened


def check_agreement(problem: Problem, opened: holdfast_check.Model) -> None:
    """Raise unless program and network agree at the inputs and at random points, to 1e-9 of the largest
    output.
    """
    points = sampled_points(problem.region).double()
    twin = problem.network.double(problem.region.centre)
    said = (
        (twin or problem.network)(points.to((twin or problem.network).dtype))
        .double()
        .cpu()
        .numpy()
        .reshape(len(points), -1)
    )
    found = opened.program.value(points.cpu().numpy())
    wide = FINE if twin is not None else 1e-3
    if found.shape == said.shape and opened.program.ranked:
        found, wide = np.exp(found - found.max(1, keepdims=True)), 1e-3
        found = found / found.sum(1, keepdims=True)
        said = said if bool((said >= 0).all()) else np.exp(said)
    if found.shape != said.shape or not bool(
        (np.abs(found - said) <= wide * max(1.0, float(np.abs(said).max()))).all()
    ):
        raise UnsupportedLayer(
            f"{problem.network.name}: the checker's program gives other outputs than the network, so no "
            "certificate is written."
        )


# ---- claims


def request_header(
    part: Problem, record: Record, opened: holdfast_check.Model, kind: str
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
    region, arrays = _region(part)
    about, rows = _property(part, opened)
    return {**header, "region": region, "property": about, "above": 0.0}, {**arrays, **rows}


def _compact(values: Any) -> "np.ndarray[Any, Any]":
    """Return the values as float32 if that is exact, else float64; a constant array as one number."""
    wide = np.asarray(values, dtype=np.float64).ravel()
    wide = wide[:1] if len(wide) and bool((wide == wide[0]).all()) else wide
    narrow = wide.astype(np.float32)
    return narrow if bool((narrow.astype(np.float64) == wide).all()) else wide


def _region(part: Problem) -> tuple[dict[str, Any], dict[str, Any]]:
    region = part.region
    centre = region.centre[0].detach().cpu().double().numpy()
    if isinstance(region, NormFamily | Patch):
        if isinstance(region, Patch):
            norm, shares = math.inf, region.mask[0].cpu().double().numpy().ravel()
        else:
            shares = region.free()[0].cpu().numpy()
            norm = math.inf if len(shares) == centre.size else region.p
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
    raise UnsupportedLayer(
        f"certificates support balls, frames, patches and boxes, not {type(region).__name__}."
    )


def _property(part: Problem, opened: holdfast_check.Model) -> tuple[dict[str, Any], dict[str, Any]]:
    asked, outputs = part.property, opened.program.output.index.size
    if isinstance(asked, Robustness):
        return {"class": int(asked.label[0])}, {}
    if isinstance(asked, LinearProperty):
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


# ---- proofs


def pack_proof(header: Mapping[str, Any], arrays: Mapping[str, Any]) -> bytes:
    from safetensors.numpy import save  # optional dependency

    return bytes(
        save(
            {name: np.ascontiguousarray(value) for name, value in arrays.items()},
            {checker.SCHEMA: json.dumps(header)},
        )
    )


def _read_claim(
    header: Mapping[str, Any], arrays: Mapping[str, Any], opened: holdfast_check.Model
) -> checker.Claim:
    """Return the claim as the checker reads it from the bytes of the file."""
    metadata, read = read_container(pack_proof(header, arrays))
    return checker.Claim.read_claim(json.loads(metadata[checker.SCHEMA]), read, opened.program)


def _margin(header: Mapping[str, Any], arrays: Mapping[str, Any], opened: holdfast_check.Model) -> float:
    """Return the margin that the checker proves."""
    with np.errstate(all="ignore"):
        return checker.proof_margin(_read_claim(header, arrays, opened), opened.program)


def _proof(
    part: Problem,
    record: Record,
    opened: holdfast_check.Model,
    folder: Path,
    blank: Certificate,
    until: float,
) -> Certificate:
    header, arrays = request_header(part, record, opened, "proof")
    if part.goal == "radius":
        limit = float(part.family.limit()[0])
        known = min(blank.known, limit)
        if not math.isfinite(known):
            raise UnsupportedLayer("the proved radius is infinite, and certificates need a finite region.")
        value = _largest_radius(part, header, arrays, opened, known, until)
        header["region"]["radius"] = value
        value = blank.known if value == known else value
    else:
        known = value = blank.known
        if part.goal == "worst" and isinstance(part.property, Avoid):
            value = 0.0
        if not math.isfinite(known):
            raise UnsupportedLayer("the proved bound is not finite.")
        size = max(abs(known), 1e-6)

        def at(share: float, some: Mapping[str, Any]) -> float:
            header["above"] = value if value == 0 else known - share * size
            return _margin(header, {**arrays, **some}, opened)

        for share in (1e-9, 1e-6, 1e-4, 1e-3, 1e-2):
            margin = at(share, {})
            if margin > 0 or value == 0:
                break
        if not margin > 0:
            parabolas = Parabolas(part, opened.program)
            found = parabolas.largest(
                (1e-6, 1e-3, 1e-2), lambda _: part.region, 0.0, lambda share, some: at(share, some) > 0, until
            )
            if found is not None:
                arrays.update(found[1])
                margin = at(found[0], {})
        if not margin > 0:
            header["above"] = value if value == 0 else known - 1e-2 * size
            arrays |= _cut(part, header, arrays, opened, until)
            margin = _margin(header, arrays, opened)
        if not margin > 0:
            raise holdfast_check.Rejected(f"the checker's bound is too low by {-margin:.4g}")
        value = header["above"]
    told = _describe_value(blank.known, value, part.goal)
    return _written(header, arrays, opened, folder, replace(blank, value=value, told=told), SUFFIX)


def _describe_value(known: float, value: float, goal: str) -> str:
    lost = (known - value) / max(abs(known), 1e-300)
    if goal != "radius" or lost <= 0 or not math.isfinite(known):
        return ""
    return (
        f"{100 * lost:.2g} % less than the record"
        if lost < 0.01
        else f"only {100 * (1 - lost):.3g} % of the record, by the checker's methods"
    )


def _cut(
    part: Problem,
    header: Mapping[str, Any],
    arrays: Mapping[str, Any],
    opened: holdfast_check.Model,
    until: float,
) -> dict[str, Any]:
    """Return the arrays that prove a score where linear bounds do not: input splits of a box with few varying
    inputs, else trained slopes and ReLU splits.
    """
    match = MatchedActivations.of(part, opened.program)
    if match is not None and isinstance(choose_branching(match.graph, part.region), ActivationSplit):
        found = _search_checker_hints(match, part.region, header, arrays, opened, until, MOST)
        if found is not None:
            return found
        raise holdfast_check.Rejected(
            "neither trained linear bounds nor ReLU splits prove it in this time: give more --seconds"
        )
    return {"tree": split_box(header, arrays, opened.program, until)}


def _search_checker_hints(
    match: MatchedActivations,
    region: Region,
    header: Mapping[str, Any],
    arrays: Mapping[str, Any],
    opened: holdfast_check.Model,
    until: float,
    parts: int,
) -> dict[str, Any] | None:
    """Return arrays with which the checker proves the claim, or None: trained slopes, trained intermediate
    bounds, and ReLU splits with at most `parts` subproblems.
    """
    claim = _read_claim(header, arrays, opened)
    said = (
        claim.matrix @ opened.program.value(region.centre.double().cpu().numpy())[0]
        + claim.offset
        - claim.above
    )
    scale = max(float(np.abs(said).min()), 1e-9)
    planes = None
    with time_limit.within(until):
        for planes in search_trained_slopes(
            match, region, claim.matrix, claim.offset - claim.above - SLACK * scale
        ):
            if _margin(header, {**arrays, **planes.arrays}, opened) > 0:
                return planes.arrays
    if planes is None or not parts:
        return None
    try:
        signs = split_by_relus(
            match,
            region,
            _read_claim(header, {**arrays, **planes.arrays}, opened),
            planes,
            scale,
            until,
            parts,
        )
    except holdfast_check.Rejected:
        return None
    found = {**planes.arrays, **signs}
    return found if _margin(header, {**arrays, **found}, opened) > 0 else None


def _largest_radius(
    part: Problem,
    header: dict[str, Any],
    arrays: dict[str, Any],
    opened: holdfast_check.Model,
    known: float,
    until: float,
) -> float:
    """Return the largest radius that the checker proves, and put what it needs into `arrays`.

    Tried at the record's radius or slightly less: the checker's own slopes, trained slopes, ReLU splits,
    quadratic models. If none succeeds, bisection finds a smaller radius without ReLU splits.
    """
    match = MatchedActivations.of(part, opened.program)

    def region(share: float) -> Region:
        return part.family.at(torch.full_like(part.family.radius.double(), known * share))

    def holds(share: float, some: Mapping[str, Any]) -> bool:
        header["region"]["radius"] = known * share
        return _margin(header, {**arrays, **some}, opened) > 0

    def planes(share: float, parts: int) -> dict[str, Any] | None:
        """Return arrays that prove this fraction with trained slopes and at most `parts` ReLU subproblems, or
        None.
        """
        try:
            if holds(share, {}):
                return {}
            if match is None or time.monotonic() > until:
                return None
            return _search_checker_hints(match, region(share), header, arrays, opened, until, parts)
        except holdfast_check.NoBounds:
            return None

    for share in (1.0, 1 - 1e-6, 1 - 1e-4):
        if certainly_holds(holds, share, {}):
            return known * share
    for share in (1 - 1e-3, NEARLY):
        found = planes(share, PARTS)
        if found is not None:
            arrays.update(found)
            return known * share
    parabolas = Parabolas(part, opened.program)
    largest = parabolas.largest((1.0, 1 - 1e-4, 1 - 3e-3, NEARLY), region, known * (1 - 1e-3), holds, until)
    if largest is not None:
        arrays.update(largest[1])
        return known * largest[0]
    low, high, best = 0.0, NEARLY, dict[str, Any]()
    for _ in range(SEARCHED):
        if time.monotonic() > until:
            break
        middle = (low + high) / 2
        found = planes(middle, 0)
        if found is None and parabolas.bends is not None:
            models = parabolas.arrays(region(middle), parabolas.bends)
            found = models if certainly_holds(holds, middle, models) else None
        if found is None:
            high = middle
        else:
            low, best = middle, found
    if low == 0.0:
        raise holdfast_check.Rejected("linear bounds and quadratic models prove no fraction of it")
    arrays.update(best)
    return known * low


def _witness(
    part: Problem,
    record: Record,
    opened: holdfast_check.Model,
    folder: Path,
    blank: Certificate,
    until: float,
) -> Certificate:
    """Write the counterexample with the region of its distance; the checker decides whether it shows the
    recorded value.
    """
    header, arrays = request_header(part, record, opened, "witness")
    found = orient_bounds(record).upper.evidence.witness
    if found is None or not found.is_floating_point() or found.shape != part.region.centre.shape[1:]:
        raise UnsupportedLayer("the record has no witness that is an input of this network.")
    arrays["witness"] = found.detach().cpu().numpy().ravel()
    if part.goal == "radius":
        header["region"]["radius"] = blank.known
    else:
        header["above"] = (
            blank.known + orient_bounds(record).upper.slack + ROUNDING * max(1.0, abs(blank.known))
        )
    return _written(
        header,
        arrays,
        opened,
        folder,
        replace(blank, value=header["region"].get("radius", blank.known)),
        SHOWN_BY,
    )


def _written(
    header: Mapping[str, Any],
    arrays: Mapping[str, Any],
    opened: holdfast_check.Model,
    folder: Path,
    made: Certificate,
    suffix: str,
) -> Certificate:
    name = f"{made.key}".replace(" ", "-").replace(",", "").replace("/", "-")
    path = folder / f"{name}{suffix}"
    with new_file(path) as stream:
        stream.write(pack_proof(header, arrays))
    try:
        verdict = holdfast_check.check(opened, path)
        if not verdict.accepted:
            raise holdfast_check.Rejected(verdict.reason)
    except BaseException:  # Including Ctrl-C: only accepted files stay.
        path.unlink()
        raise
    return replace(made, file=path, told=f"{verdict.claim}{'; ' + made.told if made.told else ''}")
