"""Run the model's own .onnx file in onnxruntime at points of the region: a second reader of the same bytes.

Nothing here is trusted, and nothing is accepted because of it. But a file is rejected if onnxruntime
evaluates it differently from this checker, or if it violates the claim there. Without onnxruntime the verdict
reports that no comparison was made.

Tolerance. onnxruntime computes in float32. For a step let M be the sum of absolute values that enters an
element at the point (for sigmoid and tanh one more, for their own error), and L the derivative of an output
with respect to that step. If every element of every step is wrong by UNITS 2^-24 M, the output is wrong, to
first order, by

    UNITS 2^-24 * (sum over all steps, including the input, of |L| M).

Rounding errors of a sum of n products have both signs and amount to about sqrt(n) 2^-24 M, so UNITS = 64 is
generous; a misread operator is wrong by the size of M. If there are more than EXAMINED outputs, the sum is
computed for that many, and the others get four times the largest ratio to their own M.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from holdfast_check.arithmetic import Array
from holdfast_check.errors import Rejected, require, zip_equal
from holdfast_check.functions import ProductFunction
from holdfast_check.rows import RowRegion
from holdfast_check.steps import AffineStep, Program, StepTerm

if TYPE_CHECKING:
    from holdfast_check.proof import Claim

POINTS = 16  # The number of points of the region (chosen by hand); a witness is added to them.
UNITS = 64  # The tolerance in units of 2^-24 M (chosen by hand, see above).
EXAMINED = 8  # The number of outputs for which the tolerance is computed (chosen by hand).
# Skip points where a value of some step exceeds this: float32 (up to 3.4e38) might overflow (chosen by hand).
LARGEST_SINGLE = 1e30
# The number of float64 derivatives processed together (32 MiB; chosen by hand).
AT_ONCE = 2**22
NOT_INSTALLED = "onnxruntime is not installed, so no comparison was made"


@dataclass(frozen=True)
class Runtime:
    """An .onnx file in onnxruntime."""

    data: bytes

    @cached_property
    def session(self) -> Any:
        """The inference session; None if onnxruntime is not installed; a message if it has no kernel for the
        file's types. A file that onnxruntime refuses is rejected.
        """
        try:
            import onnxruntime  # type: ignore[import-not-found,unused-ignore]
        except ImportError:
            return None
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        try:
            return onnxruntime.InferenceSession(self.data, options, providers=["CPUExecutionProvider"])
        except Exception as error:
            if type(error).__name__ == "NotImplemented":
                return f"onnxruntime cannot run this file, so it was not compared ({_line(error)})"
            raise Rejected(f"onnxruntime refuses this file: {_line(error)}") from error

    def outputs(self, points: Array, shape: tuple[int, ...]) -> Array:
        """(points, n) -> (points, outputs), one point at a time: the file may have a fixed batch size."""
        given = self.session.get_inputs()[0]
        kind = np.float64 if "double" in given.type else np.float32
        try:
            answers = [
                self.session.run(None, {given.name: point.reshape(shape).astype(kind)})[0] for point in points
            ]
        except Exception as error:
            raise Rejected(f"onnxruntime does not run this file: {_line(error)}") from error
        return np.stack([np.asarray(answer, dtype=np.float64).ravel() for answer in answers])


def _line(error: Exception) -> str:
    """The message of an error on one line, at most 200 characters."""
    return " ".join(str(error).split())[:200]


def points_of(claim: Claim, seed: bytes) -> Array:
    """(POINTS, n), rounded to float32: the centre, corners, points in between, and the witness if there is
    one.
    """
    draw = np.random.default_rng(int.from_bytes(hashlib.sha256(seed).digest()[:8], "little"))
    if isinstance(claim.region, RowRegion):
        points = _counted_points(claim.region, draw)
        points = points if claim.point is None else np.concatenate([claim.point[None], points])
        return points.astype(np.float32).astype(np.float64)
    region = claim.region
    lower, upper = region.lower[0], region.upper[0]
    centre = lower / 2 + upper / 2 if region.centre is None else region.centre
    share = draw.random((POINTS, len(lower)))
    share[1 : POINTS // 2] = np.rint(share[1 : POINTS // 2])
    share[1], share[2] = 0.0, 1.0
    away = lower + share * (upper - lower) - centre
    away[0] = 0.0
    if region.spans is not None and not np.isinf(region.norm):
        groups = away.reshape(POINTS, len(region.spans), -1)
        if region.norm == 1:  # In the norm 1, points where few elements move far.
            groups = groups * (draw.random(groups.shape) < draw.random((POINTS, 1, 1)) ** 4)
        length = (np.abs(groups) ** region.norm).sum(-1, keepdims=True) ** (1 / region.norm)
        away = (groups * np.minimum(1.0, region.spans[:, None] / np.maximum(length, 1e-300))).reshape(
            POINTS, -1
        )
    points = np.clip(centre + away, lower, upper)
    points = points if claim.point is None else np.concatenate([claim.point[None], points])
    rounded: Array = points.astype(np.float32).astype(np.float64)
    return rounded


def _counted_points(region: RowRegion, draw: np.random.Generator) -> Array:
    """(POINTS, n): the centre, and points in which random units changed, as many as may."""
    points = np.tile(region.centre, (POINTS, 1))
    many = min(int(region.radius), region.count)
    for point in points[1:]:
        for unit in draw.choice(region.count, many, replace=False).tolist():
            own = region.elements[unit]
            if unit in region.choices:
                values = region.choices[unit]
                point[own] = values[draw.integers(len(values))] if len(values) else point[own]
            else:
                share = draw.random(len(own)) if draw.random() < 0.5 else draw.integers(0, 2, len(own))
                point[own] = region.lower[own] + share * (region.upper[own] - region.lower[own])
    return points


def tolerances(program: Program, values: list[Array]) -> Array:
    """(points, outputs): the largest difference to these values that float32 explains; the module's docstring
    has the formula.
    """
    many, outputs = len(values[0]), program.output.index.size
    sizes, slopes = [np.abs(values[0])], dict[int, tuple[Array, ...]]()
    for at, step in enumerate(program.steps[1:], 1):
        size = np.abs(values[at])
        if isinstance(step, AffineStep):
            size = np.tile(step.offset_size, (many, 1))
            for part in step.parts:
                part.add_to(size, np.abs(values[part.source]), absolute=True)
        else:
            taken = tuple(part.take_elements(values[part.source]) for part in step.parts)
            slopes[at], _ = step.function.slopes(taken, taken)
            for x, slope in zip_equal(taken, slopes[at]):
                size = size + np.abs(x * slope)
            size = size + (1.0 if isinstance(step.function, ProductFunction) else 0.0)
        sizes.append(size)
    view = StepTerm(program.output.step, program.output.index.ravel(), None, None)
    rows = max(1, AT_ONCE // (many * max(step.size for step in program.steps)))
    examined = np.unique(np.linspace(0, outputs - 1, min(outputs, EXAMINED)).astype(np.int64))
    found = []
    for start in range(0, len(examined), rows):
        some = examined[start : start + rows]
        wanted = np.zeros((len(some), outputs))
        wanted[np.arange(len(some)), some] = 1.0
        waiting = {view.source: np.repeat(view.back(wanted[None], program.steps[view.source].size), many, 0)}
        total = np.zeros((many, len(wanted)))
        for at in range(len(program.steps) - 1, -1, -1):
            if at not in waiting:
                continue
            step, own = program.steps[at], waiting.pop(at)
            total += (np.abs(own) @ sizes[at][:, :, None])[..., 0]
            passed = (
                [own * slope[:, None] for slope in slopes[at]] if at in slopes else [own] * len(step.parts)
            )
            for part, rest in zip_equal(step.parts, passed):
                arrived = part.back(rest, program.steps[part.source].size)
                waiting[part.source] = waiting[part.source] + arrived if part.source in waiting else arrived
        found.append(total)
    missed = np.concatenate(found, 1)
    if outputs > len(examined):
        own = view.take_elements(sizes[view.source]) + 1e-30
        missed = 4 * own * (missed / own[:, examined]).max(1, keepdims=True)
    return UNITS * 2.0**-24 * missed + 1e-30


def compare(runtime: Runtime, program: Program, claim: Claim, seed: bytes) -> str:
    """Compare with onnxruntime at points of the region, after a proof or witness was verified; reject the
    file if it differs.

    Returns a sentence for the verdict.
    """
    session = runtime.session
    if session is None or isinstance(session, str):
        return session or NOT_INSTALLED
    points = points_of(claim, seed)
    with np.errstate(all="ignore"):
        values = program.values(points)
        held = np.all(
            [
                np.isfinite(step).all(1) & (np.abs(step).max(1, initial=0.0) < LARGEST_SINGLE)
                for step in values
            ],
            axis=0,
        )
        points, values = points[held], [step[held] for step in values]
    if not len(points):
        return "not compared with onnxruntime: float32 cannot represent the values over this region"
    own = StepTerm(program.output.step, program.output.index.ravel(), None, None).take_elements(
        values[program.output.step]
    )
    answers = runtime.outputs(points, program.input_shape)
    require(
        answers.shape == own.shape,
        f"onnxruntime has {answers.shape[1]} outputs for this file, the checker {own.shape[1]}",
    )
    wide = tolerances(program, values)
    if program.ranked:
        _same_order(answers, own, wide)
    else:
        _same_values(answers, own, wide)
    fails = _fails(claim, answers, 0.0 if program.ranked else wide)
    if claim.kind == "witness":
        return (
            "onnxruntime confirms the witness"
            if held[0] and _fails(claim, answers, 0.0)[0]
            else "onnxruntime, in its own arithmetic, does not confirm the witness"
        )
    require(
        program.ranked or not fails.any(), "in onnxruntime the claim does not hold at a point of the region"
    )
    return f"onnxruntime agrees at {len(points)} points of the region"


def _same_values(answers: Array, own: Array, wide: Array) -> None:
    """Reject outputs that differ by more than the tolerance."""
    differs = ~(np.abs(answers - own) <= wide)
    if differs.any():
        point, output = np.argwhere(differs)[0]
        raise Rejected(
            "onnxruntime runs this file otherwise than this checker: at a point of the region "
            f"output {output} is {answers[point, output]:.7g} in onnxruntime and "
            f"{own[point, output]:.7g} here; float32 explains a difference of {wide[point, output]:.1g}"
        )


def _same_order(answers: Array, own: Array, wide: Array) -> None:
    """After a softmax: reject an order of outputs that contradicts clear differences of their inputs."""
    for answer, value, by in zip_equal(answers, own, wide.max(1)):
        order = np.argsort(value, kind="stable")
        highest = np.maximum.accumulate(answer[order])
        below = np.searchsorted(value[order], value - 2 * by)  # The number of clearly smaller values.
        wrong = (below > 0) & ~(answer >= highest[np.maximum(below, 1) - 1] * (1 - 1e-6) - 1e-30)
        require(
            np.isfinite(answer).all() and not wrong.any(),
            "onnxruntime orders the outputs of this file otherwise than this checker",
        )


def _fails(claim: Claim, answers: Array, wide: Array | float) -> Array:
    """(points,): whether some group has no row above the claimed number, by more than the tolerance."""
    rows = (
        answers @ claim.matrix.T
        + claim.offset
        + np.broadcast_to(wide, answers.shape) @ np.abs(claim.matrix).T
    )
    fails: Array = np.any([(rows[:, list(group)] <= claim.above).all(1) for group in claim.groups], axis=0)
    return fails
