"""Proof and witness files: their claims, the model they refer to, and the decision whether a claim holds."""

from __future__ import annotations

import gzip
import hashlib
import json
import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, Union

import numpy as np

from holdfast_check import container, onnx_file, replay, trees
from holdfast_check.arithmetic import LARGEST, TINY, Array, down
from holdfast_check.budget import CountedRegion, unit_leaves
from holdfast_check.claim_text import ClaimNames, ClaimNumbers, class_rows, digest_of
from holdfast_check.errors import Rejected
from holdfast_check.graph import ModelGraph, program
from holdfast_check.limits import OutOfTime
from holdfast_check.planes import StepBounds
from holdfast_check.quadratic import SecondOrderBounds
from holdfast_check.region import CheckedRegion, inside
from holdfast_check.rows import ROW_ARRAYS, RowRegion, read_rows
from holdfast_check.steps import FunctionStep, Program
from holdfast_check.tree import leaves, margins, paths
from holdfast_check.trees import TREES, TreeSum, read_trees

SCHEMA = "holdfast-proof"  # The format of proof files that this checker reads.
# Version 1: networks over balls and boxes. Version 2 adds models of trees, regions of rows (`rows`) and norm 0. This
# checker reads both; a file has the smallest version that describes it.
VERSION, ROWS_VERSION = 1, 2
LARGEST_MODEL = 2**31  # Unpacked bytes of a model file (chosen by hand).
BLOCK_BYTES = 2**20  # Bytes that are read at once (chosen by hand).
# The number of float64 values of one step over all subproblems that are processed together (2 MiB; chosen by
# hand).
AT_ONCE = 2**18
# Margins of float64 exceed those of rational arithmetic by at most this fraction if the two agree (chosen by hand: both
# try the slopes that follow from their intervals).
AGREES = Fraction(1, 10**6)
NORMS = {"inf": math.inf, "2": 2.0, "1": 1.0}  # The norms of balls, by their names in a file.
# Arrays of untrusted numbers for the function at a step; docs/proofs.md describes them.
SLOPES = {
    "slopes",
    "rows",
    "parabolas",
    "ends",
    "at",
}
TREE_CLAIM = {"region", "property", "witness"}  # The arrays of a claim about trees: it needs nothing else.
# Arrays that are either shared by all leaves of a tree of halves or given per leaf.
SHARED = "slopes", "rows", "parabolas"


@dataclass(frozen=True)
class ProofVerdict:
    """The result of checking one file.

    Attributes:
        claim: what was checked, formulated from the numbers in the file and the margin that was computed.
        reason: why the file was rejected; empty if it was accepted.
        margin: by how much the claim holds or fails; None if no bound was computed.
        header: the file's own description of itself.
        finished: False if a time limit ended the check; then the file was neither accepted nor found wrong.
        numbers: the claim in numbers; None if the file could not be read.
        compared: the result of the comparison with onnxruntime, or why there was none; empty for a model that
            is not an .onnx file.
        recomputed: the result in rational arithmetic, or why there is none; empty if it was not asked for.
    """

    accepted: bool
    claim: str
    reason: str = ""
    margin: float | None = None
    header: dict[str, Any] = field(default_factory=dict)
    compared: str = ""
    numbers: ClaimNumbers | None = None
    finished: bool = True
    recomputed: str = ""


@dataclass(frozen=True)
class Model:
    """The program of a model file and the SHA-256 of its bytes (of a .gz file, after decompression). runtime:
    the same .onnx file in onnxruntime.
    """

    sha256: str
    name: str
    program: Union[Program, TreeSum]
    runtime: replay.Runtime | None = field(default=None, repr=False, compare=False)

    @staticmethod
    def read_file(path: str | Path) -> Model:
        """Read an .onnx file or a described model (.safetensors), optionally compressed with gzip."""
        data = _read_unpacked(Path(path))
        of_onnx = Path(path).name.endswith((".onnx", ".onnx.gz"))
        digest, name = hashlib.sha256(data).hexdigest(), Path(path).name
        if not of_onnx:
            metadata, arrays = container.read_container(data)
            if TREES in metadata:
                return Model(digest, name, read_trees(_inputs_of(metadata[TREES]), arrays))
        graph: ModelGraph = onnx_file.read_onnx(data) if of_onnx else container.read_described_model(data)
        return Model(digest, name, program(graph), replay.Runtime(data) if of_onnx else None)

    @staticmethod
    def digest_of(path: str | Path) -> str:
        """The SHA-256 by which certificates name a model file."""
        return hashlib.sha256(_read_unpacked(Path(path))).hexdigest()


def _read_unpacked(path: Path) -> bytes:
    """The bytes of a file, decompressed if its name ends in .gz; Rejected if they are too many."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            # In blocks, since `read(n)` allocates n bytes before it reads.
            blocks, size = [], 0
            while size <= LARGEST_MODEL and (block := stream.read(BLOCK_BYTES)):
                blocks.append(block)
                size += len(block)
    except (OSError, EOFError, zlib.error) as error:
        raise Rejected(f"{path} cannot be read: {error}") from error
    if size > LARGEST_MODEL:
        raise Rejected(f"{path}: larger than {LARGEST_MODEL} bytes")
    return b"".join(blocks)


def _inputs_of(text: str) -> Any:
    """The number of inputs of a model of trees: the only member of its description."""
    try:
        about = json.loads(text)
        if set(about) != {"inputs"}:
            raise ValueError("other members than inputs")
        return about["inputs"]
    except (ValueError, TypeError, RecursionError) as error:
        raise Rejected(f"the description of the trees cannot be read ({error})") from error


@dataclass(frozen=True)
class SignTree:
    """A tree (nodes, 2) of sign splits, each an element of a step, and data of its leaves.

    Attributes:
        groups: the groups of rows that are proved over the leaves.
        multipliers: (splits of all leaves, rows of these groups).
        slopes: `rows/K`, (leaves, rows of these groups, n).
        refine (in the file, `signs/anew`): whether backward passes tighten intermediate bounds over each leaf.
    """

    tree: Array
    groups: tuple[int, ...]
    multipliers: Array
    slopes: dict[str, Array]
    refine: bool


@dataclass(frozen=True)
class Claim:
    """For every x of the region and every group of rows, some row of the group satisfies row . f(x) + offset
    > above. A witness claims that at x, a point of the region, some group has no such row.
    """

    kind: str  # "proof" or "witness"
    region: Union[CheckedRegion, RowRegion]
    matrix: Array
    offset: Array
    groups: tuple[tuple[int, ...], ...]
    above: float
    cuts: Array
    slopes: dict[str, Array]
    point: Array | None
    numbers: ClaimNumbers
    signs: SignTree | None

    def rows(self) -> RowRegion:
        """The region as one of rows."""
        if not isinstance(self.region, RowRegion):
            raise Rejected("the region is none of rows")
        return self.region

    def box(self) -> CheckedRegion:
        """The region as a ball or a box."""
        if not isinstance(self.region, CheckedRegion):
            raise Rejected("the region is no ball and no box")
        return self.region

    @staticmethod
    def read_claim(header: dict[str, Any], arrays: dict[str, Array], built: Union[Program, TreeSum]) -> Claim:
        """Read and validate the claim of a file."""
        try:
            return _claim(header, arrays, built)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError) as error:
            raise Rejected(f"the proof cannot be read ({type(error).__name__}: {error})") from error


def _claim(header: dict[str, Any], arrays: dict[str, Array], built: Union[Program, TreeSum]) -> Claim:
    """The claim of a file; other exceptions than Rejected report malformed files."""
    numbers, region, contains = claim_numbers(header, arrays, built.inputs, built.outputs)
    kind, above = numbers.kind, numbers.above
    matrix, offset, groups = numbers.matrix, numbers.offset, numbers.groups
    if built.ranked and not _ranks(matrix, offset, above):
        raise Rejected(
            "the model ends with a softmax, of which this checker knows only the order of the outputs, "
            "and the claim depends on more than their order"
        )
    point = numbers.point
    if point is not None and not contains(point):
        raise Rejected("the witness does not lie in the region")
    if isinstance(built, TreeSum):
        if any(name.split("/")[0] not in TREE_CLAIM for name in arrays):
            raise ValueError("arrays of a proof about a network in one about trees")
        rows = region if isinstance(region, RowRegion) else read_rows(header["region"], arrays, built.inputs)
        return Claim(kind, rows, matrix, offset, groups, above, np.array([-1]), {}, point, numbers, None)
    region = _of_network(region)
    cuts = arrays.get("units" if isinstance(region, RowRegion) else "tree", np.array([-1])).ravel()
    if len(cuts) > 1 and not (isinstance(region, RowRegion) or math.isinf(region.norm)):
        raise Rejected("only boxes can be split into halves")
    if isinstance(region, RowRegion) and any(
        name.split("/")[0] in ("tree", "signs", "parabolas") for name in arrays
    ):
        raise ValueError("counted changes are split by units only, and have no quadratic models")
    signs = _signs(arrays, built, groups) if "signs" in arrays else None
    if signs is not None and len(cuts) > 1:
        raise ValueError("a tree of signs together with a tree of halves")
    slopes = {
        name: _slopes(name, arrays, built, len(matrix)) for name in arrays if name.split("/")[0] in SLOPES
    }
    return Claim(kind, region, matrix, offset, groups, above, cuts, slopes, point, numbers, signs)


def _of_network(region: Union[CheckedRegion, RowRegion]) -> Union[CheckedRegion, RowRegion]:
    """The region over which a network is bounded: rows in the maximum norm as their box, in the norms 1 and 2 as a ball if
    their scales are 1. Steps are left out, which makes it larger.
    """
    if not isinstance(region, RowRegion) or region.norm == 0:
        return region
    lower, upper = region.bounds()
    if math.isinf(region.norm):
        return CheckedRegion(lower[None], upper[None])
    if bool((region.scales != 1).any()):
        raise Rejected("in the norms 1 and 2, scales are supported for trees, and not for networks")
    return CheckedRegion.ball(
        region.centre, region.radius, region.norm, np.ones(1), region.lower, region.upper
    )


def claim_numbers(
    header: dict[str, Any], arrays: dict[str, Array], size: int, outputs: int
) -> tuple[ClaimNumbers, Union[CheckedRegion, RowRegion], Callable[[Array], bool]]:
    """The numbers of the claim of a file about a model with `size` inputs and `outputs` outputs, its region, and whether
    a point lies in it.
    """
    kind, above, about = header["kind"], _number(header["above"]), header["region"]
    if kind not in ("proof", "witness"):
        raise ValueError(f"a file of kind {kind!r}")
    matrix, offset, groups, label = _property(header["property"], arrays, outputs)
    region, where, contains = _region(about, arrays, size)
    lower, upper = region.bounds() if isinstance(region, RowRegion) else (region.lower[0], region.upper[0])
    numbers = ClaimNumbers(
        kind=kind,
        where=where,
        size=size,
        outputs=outputs,
        lower=lower,
        upper=upper,
        norm=str(about["norm"]),
        radius=None if about["norm"] == "box" else _number(about["radius"]),
        matrix=matrix,
        offset=offset,
        groups=groups,
        above=above,
        label=label,
        point=_vector(arrays["witness"], size) if kind == "witness" else None,
        names=ClaimNames.from_json(header.get("names"), size, outputs),
    )
    return numbers, region, contains


def _slopes(name: str, arrays: dict[str, Array], built: Program, rows: int) -> Array:
    """One array of untrusted numbers, validated.

    at/K and ends/T: elements of a step. slopes/K and parabolas/K: (leaves or 1, 2, pre-activations, n). For
    functions of one pre-activation, with n all elements or those in at/K: rows/K and (of signs) leaves/K,
    (leaves or 1, rows, n); ends/K/T, (2, elements in ends/T, n).
    """
    kind, *numbers = name.split("/")
    array, places = arrays[name], [int(number) for number in numbers]
    step, many = (
        built.steps[places[0]],
        arrays[f"at/{places[0]}"].size if f"at/{places[0]}" in arrays else built.steps[places[0]].size,
    )
    if kind == "at" or (kind == "ends" and len(places) == 1):
        if (
            array.ndim != 1
            or array.dtype.kind not in "iu"
            or not bool(((array >= 0) & (array < step.size)).all())
        ):
            raise ValueError(f"{name} lists elements that do not exist")
        return array.astype(np.int64)
    whole = kind in ("slopes", "parabolas")
    wanted: tuple[int, ...] = (2, len(step.parts), step.size) if whole else (rows, many)
    if kind == "ends":
        wanted = (arrays[f"ends/{places[1]}"].size if places[1] > places[0] and len(array) == 2 else -1, many)
    if (
        not isinstance(step, FunctionStep)
        or array.shape[1:] != wanted
        or (not whole and len(step.parts) != 1)
    ):
        raise ValueError(f"{name} has shape {array.shape}, which does not fit the function at its step")
    return array if array.dtype == np.uint8 and not whole else array.astype(np.float64)


def _signs(arrays: dict[str, Array], built: Program, groups: tuple[tuple[int, ...], ...]) -> SignTree:
    """The tree of signs of a file, validated."""
    tree, multipliers, own = (
        arrays["signs"],
        arrays["signs/multipliers"].astype(np.float64),
        tuple(arrays["signs/groups"].tolist()),
    )
    rows = sum(len(groups[group]) for group in own)
    if (
        tree.ndim != 2
        or tree.shape[1] != 2
        or tree.dtype.kind not in "iu"
        or not all(0 <= group < len(groups) for group in own)
    ):
        raise ValueError("signs is not a tree of splits for groups of rows")
    if multipliers.shape[1:] != (rows,) or not bool(((multipliers >= 0) & (multipliers < LARGEST)).all()):
        raise ValueError("a multiplier of signs is negative, not finite, too large, or for other rows")
    slopes = {
        f"rows/{name[7:]}": _slopes(name, arrays, built, rows)
        for name in arrays
        if name.startswith("leaves/")
    }
    return SignTree(tree, own, multipliers, slopes, bool(arrays["signs/anew"].any()))


def _number(value: Any) -> float:
    """A finite number below LARGEST in absolute value."""
    number = float(value)
    if isinstance(value, bool) or not abs(number) < LARGEST:
        raise ValueError(f"{value!r} is not a number of absolute value below {LARGEST:g}")
    return number


def _vector(values: Array, size: int) -> Array:
    """A float64 vector of this size; a single number is repeated."""
    wide = np.broadcast_to(values.astype(np.float64).ravel(), (size,)).copy()
    if np.isnan(wide).any():
        raise ValueError("a value is NaN")
    return wide


def _region(
    about: dict[str, Any], arrays: dict[str, Array], size: int
) -> tuple[Union[CheckedRegion, RowRegion], str, Callable[[Array], bool]]:
    """The region, its description for the verdict, and whether a point lies in it."""
    if about["norm"] == "0" or any(name in arrays for name in ROW_ARRAYS):
        rows = read_rows(about, arrays, size)
        return rows, rows.words(), rows.inside
    lower, upper = (_vector(arrays[f"region/{end}"], size) for end in ("lower", "upper"))
    if not bool((lower <= upper).all()):
        raise ValueError("a region with a lower bound above its upper bound")
    if about["norm"] == "box":
        if not bool(np.isfinite(lower).all() and np.isfinite(upper).all()):
            raise ValueError("a box with an infinite bound")
        return (
            CheckedRegion(lower[None], upper[None]),
            f"in the box {digest_of(lower, upper)}",
            lambda x: inside(x, lower, LARGEST, math.inf, np.ones(1), lower, upper),
        )
    radius, norm, centre = (
        _number(about["radius"]),
        NORMS[about["norm"]],
        _vector(arrays["region/centre"], size),
    )
    shares = arrays["region/shares"].astype(np.float64).ravel()
    good = (
        radius >= 0
        and size % len(shares) == 0
        and bool((shares >= 0).all() and (lower <= centre).all() and (centre <= upper).all())
    )
    if not good or not bool((shares < LARGEST).all() and (np.abs(centre) < LARGEST).all()):
        raise ValueError("a region with an invalid radius, share, centre or box")
    told = f"within {radius!r} of the centre {digest_of(centre)} in the norm {about['norm']}"
    if not bool((shares == 1).all()):  # The verdict must mention everything that makes the region smaller.
        told += (
            f", {int((shares > 0).sum())} of {len(shares)} parts moving, by the shares {digest_of(shares)}"
        )
    if bool(np.isfinite(lower).any() or np.isfinite(upper).any()):
        alike = bool((lower == lower[0]).all() and (upper == upper[0]).all())
        told += (
            f", between {lower[0]!s} and {upper[0]!s}" if alike else f", in the box {digest_of(lower, upper)}"
        )
    return (
        CheckedRegion.ball(centre, radius, norm, shares, lower, upper),
        told,
        lambda x: inside(x, centre, radius, norm, shares, lower, upper),
    )


def _property(
    about: dict[str, Any], arrays: dict[str, Array], outputs: int
) -> tuple[Array, Array, tuple[tuple[int, ...], ...], int | None]:
    """The matrix, offset and groups of rows of the claim, and the class if it is about one."""
    if "class" in about:
        label = int(about["class"])
        if not 0 <= label < outputs or outputs < 2:
            raise ValueError(f"class {label} of {outputs}")
        matrix = class_rows(label, outputs)
        return matrix, np.zeros(len(matrix)), tuple((row,) for row in range(len(matrix))), label
    matrix, offset = arrays["property/rows"].astype(np.float64), arrays["property/offset"].astype(np.float64)
    if matrix.ndim != 2 or matrix.shape[1] != outputs or offset.shape != matrix.shape[:1] or len(matrix) == 0:
        raise ValueError(f"rows of shape {matrix.shape} for {outputs} outputs")
    if not bool((np.abs(matrix) < LARGEST).all() and (np.abs(offset) < LARGEST).all()):
        raise ValueError("a row with a number that is not finite or too large")
    groups = tuple(tuple(int(row) for row in group) for group in about["groups"])
    if not groups or not all(group and all(0 <= row < len(matrix) for row in group) for group in groups):
        raise ValueError("groups that are empty or list rows that do not exist")
    return matrix, offset, groups, None


def _ranks(matrix: Array, offset: Array, above: float) -> bool:
    """Whether the claim only compares single outputs with each other."""
    pairs = (np.sort(matrix, 1)[:, [0, -1]] == [-1.0, 1.0]).all() and (np.abs(matrix).sum(1) == 2).all()
    return bool(pairs) and above == 0 and not bool(offset.any())


def proof_margin(claim: Claim, built: Union[Program, TreeSum]) -> float:
    """The margin of a proof: by how much, at the worst leaf, every group has a row above the claimed number;
    negative if the claim is not proved.
    """
    if isinstance(built, TreeSum):
        least = trees.margin(built, claim.rows(), claim.matrix, claim.offset)[None] - claim.above
        return min(_least(least[:, list(group)]) for group in claim.groups)
    count, part = _subproblems(claim)
    if any(len(array) not in (1, count) for name, array in claim.slopes.items() if name.startswith(SHARED)):
        raise Rejected("slopes for another number of leaves than the tree has")
    if claim.signs is not None:
        return _by_signs(claim, claim.signs, built)
    bounded = SecondOrderBounds if any(name.startswith("parabolas/") for name in claim.slopes) else StepBounds
    many = 1 if bounded is SecondOrderBounds else max(1, AT_ONCE // max(step.size for step in built.steps))
    worst = math.inf
    for start in range(0, count, many):
        some = slice(start, start + many)
        slopes = {
            n: array[some] if n.startswith(SHARED) and len(array) > 1 else array
            for n, array in claim.slopes.items()
        }
        bounds = bounded(built, part(some), slopes).rows(claim.matrix, claim.offset) - claim.above
        worst = min(worst, *(_least(bounds[:, list(group)]) for group in claim.groups))
        if not worst > 0:
            break
    return worst


def _subproblems(claim: Claim) -> tuple[int, Callable[[slice], CheckedRegion]]:
    """The number of leaves of the claim's tree of halves or of units, and the region of some of them."""
    if isinstance(claim.region, RowRegion):
        rows = claim.region
        found = unit_leaves(rows, claim.cuts)
        return len(found), lambda some: CountedRegion.of(rows, found[some])
    box = claim.region
    lower, upper = leaves(box.lower[0], box.upper[0], claim.cuts)
    return len(lower), lambda some: box.within(lower[some], upper[some])


def _least(bounds: Array) -> float:
    """(leaves, rows of a group) -> the best row's bound at the worst leaf; -infinity if a bound is NaN."""
    least = float(bounds.max(1).min())
    return least if not math.isnan(least) else -math.inf


def _by_signs(claim: Claim, signs: SignTree, built: Program) -> float:
    """The margin where some groups are proved over the leaves of a tree of signs, and the others over the
    whole region.
    """
    whole, sizes = StepBounds(built, claim.box(), claim.slopes), [step.size for step in built.steps]
    bounds = whole.rows(claim.matrix, claim.offset) - claim.above
    worst = min(
        (
            _least(bounds[:, list(group)])
            for place, group in enumerate(claim.groups)
            if place not in signs.groups
        ),
        default=math.inf,
    )
    found, rows = paths(signs.tree, sizes), [row for place in signs.groups for row in claim.groups[place]]
    starts, ends = (
        np.cumsum([0, *(len(claim.groups[place]) for place in signs.groups)]),
        np.cumsum([0, *map(len, found)]),
    )
    if len(signs.multipliers) != ends[-1] or any(len(array) != len(found) for array in signs.slopes.values()):
        raise Rejected("multipliers or slopes for other leaves than those of the tree of signs")
    at = {name: array for name, array in claim.slopes.items() if name.startswith("at/")}
    many = max(1, AT_ONCE // max(sizes))
    for start in range(0, len(found), many):
        some, times = (
            slice(start, start + many),
            signs.multipliers[ends[start] : ends[min(start + many, len(found))]],
        )
        slopes = {**at, **{name: array[some] for name, array in signs.slopes.items()}}
        least = (
            margins(whole, claim.matrix[rows], claim.offset[rows], found[some], times, slopes, signs.refine)
            - claim.above
        )
        worst = min(worst, *(_least(least[:, a:b]) for a, b in zip(starts, starts[1:])))
        if not worst > 0:
            break
    return worst


def shown(claim: Claim, built: Union[Program, TreeSum]) -> float:
    """The margin of a witness: by how much all rows of some group are at or below the claimed number at the
    witness, by interval arithmetic around the point.
    """
    if claim.point is None:
        raise Rejected("a witness without a point")
    if isinstance(built, TreeSum):
        values = trees.shown_margin(built, claim.matrix, claim.offset, claim.point)
        short = max(min(Fraction(claim.above) - values[row] for row in group) for group in claim.groups)
        return float(short) if short >= 0 else min(float(short), -TINY)
    bounds = (
        StepBounds(built, CheckedRegion(claim.point[None], claim.point[None])).rows(
            -claim.matrix, -claim.offset
        )
        + claim.above
    )
    return float(np.stack([bounds[:, list(group)].min(1) for group in claim.groups]).max())


def _recompute(claim: Claim, built: Union[Program, TreeSum], margin: float) -> str:
    """The comparison with rational arithmetic, as a text for the verdict; Rejected if it does not prove the claim."""
    from holdfast_check.exact import NotRecomputed, exact_margin  # It reads the claims of this module.

    try:
        if isinstance(built, TreeSum):
            found = _exact_of_trees(claim, built)
        else:
            found = exact_margin(claim, built)
    except NotRecomputed as why:
        return f"not recomputed in rational arithmetic: {why}"
    if not found > 0:
        raise Rejected(
            f"rational arithmetic does not prove it: its margin is {float(found):.6g}, in float64 {margin:.6g}"
        )
    agrees = found >= Fraction(margin) * (1 - AGREES)
    told = "rational arithmetic agrees" if agrees else "rational arithmetic proves it with a smaller margin"
    return f"{told}: margin {float(found):.9g}, in float64 {margin:.9g}"


def _version(header: dict[str, Any], arrays: dict[str, Array], built: Union[Program, TreeSum]) -> int:
    """The version of the format that a claim needs."""
    rows = header["region"]["norm"] == "0" or any(name in arrays for name in ROW_ARRAYS)
    return ROWS_VERSION if rows or isinstance(built, TreeSum) else VERSION


def _exact_of_trees(claim: Claim, built: TreeSum) -> Fraction:
    """The margin of a proof about trees in rational arithmetic."""
    from holdfast_check.exact import NotRecomputed

    if claim.kind != "proof":
        raise NotRecomputed("a witness, which is exact already")
    if int((built.left < 0).sum()) * built.inputs > trees.MOST_EXACT:
        raise NotRecomputed("more leaves and inputs than rational arithmetic takes in minutes")
    rows = trees.exact_margin(built, claim.rows(), claim.matrix, claim.offset)
    return min(max(rows[row] for row in group) - Fraction(claim.above) for group in claim.groups)


def read_header(data: bytes) -> tuple[dict[str, Any], dict[str, Array]]:
    """Header and arrays of the bytes of a file."""
    metadata, arrays = container.read_container(data)
    try:
        header = json.loads(metadata.get(SCHEMA, "null"))
    except (ValueError, RecursionError) as error:
        raise Rejected("this file is no proof: it has no proof header") from error
    if not isinstance(header, dict):
        raise Rejected("this file is no proof: it has no proof header")
    return header, arrays


def check(model: str | Path | Model, proof: str | Path, *, exact: bool = False) -> ProofVerdict:
    """Decide whether the claim of a file holds for this model. A file that cannot be read or verified is
    rejected, with the reason.

    exact: also compute a proof's margin in rational arithmetic, where `exact` supports it, and reject the file if that
    does not prove the claim.
    """
    header: dict[str, Any] = {}
    told, numbers = str(proof), None
    try:
        opened = model if isinstance(model, Model) else Model.read_file(model)
        try:
            data = Path(proof).read_bytes()
        except OSError as error:
            raise Rejected(f"{proof} cannot be read: {error}") from error
        header, arrays = read_header(data)
        try:
            said = header["schema"], header["version"], header["model"]["sha256"]
        except (KeyError, TypeError) as error:
            raise Rejected("this file is no proof: it has no proof header") from error
        if said[0] != SCHEMA or said[1] not in (VERSION, ROWS_VERSION):
            raise Rejected(
                f"this is {said[0]} version {said[1]}; this checker supports {SCHEMA} versions {VERSION} and "
                f"{ROWS_VERSION}"
            )
        if said[2] != opened.sha256:
            raise Rejected(
                f"the proof is about another model: sha256 {said[2]}; this model has sha256 {opened.sha256}"
            )
        with np.errstate(all="ignore"):  # Overflow gives inf or NaN, which no check accepts.
            claim = Claim.read_claim(header, arrays, opened.program)
            needed = _version(header, arrays, opened.program)
            if said[1] != needed:
                raise Rejected(f"a claim of version {needed} in a file of version {said[1]}")
            numbers = replace(claim.numbers, model=opened.name, sha256=opened.sha256)
            told = numbers.sentence()
            margin = (
                proof_margin(claim, opened.program) if claim.kind == "proof" else shown(claim, opened.program)
            )
        if claim.kind == "proof" and not margin > 0:
            raise Rejected(f"the bound misses the claimed number by {-margin:.6g}")
        if claim.kind == "witness" and not margin >= 0:
            raise Rejected(f"the witness does not violate the property: the margin there is {-margin:.6g}")
        compared = (
            ""
            if opened.runtime is None or isinstance(opened.program, TreeSum)
            else replay.compare(opened.runtime, opened.program, claim, data)
        )
        again = _recompute(claim, opened.program, margin) if exact else ""
        if claim.kind == "proof" and not opened.program.ranked:  # A softmax changes the margin, not its sign.
            numbers = replace(numbers, margin=float(down(np.array(margin))))
        return ProofVerdict(True, numbers.sentence(), "", margin, header, compared, numbers, recomputed=again)
    except OutOfTime as error:
        return ProofVerdict(False, told, str(error), None, header, "", numbers, finished=False)
    except Rejected as error:
        reason = str(error)
    except Exception as error:  # An unexpected error also rejects.
        reason = f"checking ended with an error ({type(error).__name__}: {error})"
    return ProofVerdict(False, told, reason, None, header if isinstance(header, dict) else {}, "", numbers)
