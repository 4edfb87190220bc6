"""Is a result of holdfast right, refused with a reason, or wrong?

The truth is observed: the outputs of the user's own module, never those of holdfast's import. Observations
are one-sided: an input of the region at which a fresh instance of the module violates the property refutes
every proof of it, whatever state, randomness or batch produced the output.
"""

import contextlib
import itertools
import math
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

import holdfast as hf
from holdfast.verification.vnnlib import Spec, parse

Verdict = Literal["right", "refused", "wrong"]
Run = Callable[[Tensor], Tensor]  # (n, *shape) -> (n, outputs), as a user calls the model
GRID = {1: 801, 2: 61, 3: 19}  # Grid points along each axis, by the number of axes.
LINE = 81  # Values of a single input while the others are fixed.
ALONE = 100  # Points that are evaluated one at a time.
CLOSE = 1e-4  # Relative to the outputs: a margin below this may be rounding, so it refutes nothing.
QUICK = hf.Stop(seconds=1.0)


class NoWay(Exception):
    """The module cannot use this entry point: torch refuses to export it, or it takes no arrays."""


def only(outputs: Any) -> Tensor:
    """The output of a model that returns one tensor."""
    assert isinstance(outputs, Tensor)
    return outputs


def plainly(module: nn.Module, x: Tensor) -> Any:
    return module(x)


@dataclass(frozen=True, eq=False)
class Case:
    """A user's module, with inputs few and small enough to enumerate its outputs.

    make         makes a fresh instance.
    read         selects the logits in its output.
    ask          calls the module as the user does.
    repeats      calls per instance: for a stateful or random module, every output counts.
    coarse       few points suffice, so that the module can be called very often.
    alone        the user also evaluates single inputs.
    substitutes  for a model of tokens.
    after        the user's action between two requests to the same network.
    told         a word in the network's notes if only the first part of the output is measured.
    """

    name: str
    make: Callable[[], nn.Module]
    x: Tensor
    y: tuple[int, ...]
    domain: tuple[float, float] = (-2.0, 2.0)
    width: float = 0.3  # Half the side of the boxes.
    read: Callable[[Any], Tensor] = only
    ask: Callable[[nn.Module, Tensor], Any] = plainly
    repeats: int = 1
    coarse: bool = False
    alone: bool = False
    substitutes: Mapping[int, Sequence[int]] | None = None
    after: Callable[[], None] | None = None
    before: Callable[[], None] | None = None
    told: str | None = None
    capabilities: tuple[str, ...] | None = None  # Only these; None: all.
    options: Mapping[str, Any] = field(default_factory=dict)  # Arguments of from_torch.

    @property
    def labels(self) -> Tensor:
        return torch.tensor(self.y)

    def box(self) -> tuple[Tensor, Tensor]:
        """Lower and upper corners (n, *shape) of the box around each input."""
        lower, upper = (self.x.double() + side * self.width for side in (-1, 1))
        return lower.clamp(*self.domain).to(self.x.dtype), upper.clamp(*self.domain).to(self.x.dtype)

    def points(self) -> Tensor:
        """Evaluation points: a grid of the domain, a grid and lines around each input, and the inputs."""
        if self.substitutes is not None:
            return torch.cat([self.sentences(row) for row in self.x])
        shape, size = self.x.shape[1:], math.prod(self.x.shape[1:])
        low, high = self.domain
        each, line_steps = (GRID[size] // 5, LINE // 5) if self.coarse else (GRID[size], LINE)
        found = [_grid([(low, high)] * size, each)] if math.isfinite(low) else []
        for row, below, above in zip(
            self.x.double().flatten(1), *(end.double().flatten(1) for end in self.box()), strict=True
        ):
            found += [row[None], _grid(list(zip(below.tolist(), above.tolist(), strict=True)), each)]
            for count in range(1, size):
                for moved in itertools.combinations(range(size), count):
                    line = _grid([(low, high)] * count, line_steps if count == 1 else each)
                    whole = row.repeat(len(line), 1)
                    whole[:, list(moved)] = line
                    found.append(whole)
        return torch.cat(found).to(self.x.dtype).reshape(-1, *shape)

    def sentences(self, row: Tensor) -> Tensor:
        assert self.substitutes is not None
        return torch.tensor(
            list(itertools.product(*([t, *self.substitutes.get(t, ())] for t in row.tolist())))
        )


def _grid(ends: list[tuple[float, float]], steps: int) -> Tensor:
    axes = [torch.linspace(low, high, steps, dtype=torch.float64) for low, high in ends]
    return torch.cartesian_prod(*axes).reshape(-1, len(ends))


@dataclass(frozen=True, eq=False)
class Truth:
    """All observed outputs of a model."""

    case: Case
    points: Tensor  # (m, *shape)
    outputs: Tensor  # (m, outputs) float64
    fresh: Callable[[], Run]

    @staticmethod
    def seen(case: Case, fresh: Callable[[], Run]) -> "Truth":
        asked, points, outputs = case.points(), [], []
        run = fresh()
        for _ in range(case.repeats):
            points.append(asked)
            outputs.append(run(asked.clone()))
        if case.alone:
            few = torch.cat(
                [
                    case.x,
                    asked[torch.randperm(len(asked), generator=torch.Generator().manual_seed(0))[:ALONE]],
                ]
            )
            points.append(few)
            outputs.append(torch.cat([run(row[None].clone()) for row in few]))
        whole, told = torch.cat(points), torch.cat(outputs).double()
        assert len(whole) == len(told)
        finite = told.isfinite().all(-1)
        return Truth(case, whole[finite], told[finite], fresh)

    def at(self, point: Tensor) -> Tensor:
        """Outputs (k, outputs) of a fresh instance at a point (*shape), alone and within a batch."""
        run, row = self.fresh(), point.to(self.case.x.dtype)[None]
        with_others = torch.cat([row, self.case.x.to(row)])
        said = [
            part
            for _ in range(max(2, self.case.repeats))
            for part in (run(row.clone()), run(with_others.clone())[:1])
        ]
        return torch.cat(said).double()

    @cached_property
    def slack(self) -> float:
        return CLOSE * (1 + float(self.outputs.abs().max()))

    def scores(self, label: int) -> Tensor:
        return margin(self.outputs, label)

    def inside(self, row: int) -> Tensor:
        """(m,) bool: which points lie in the box of this input."""
        lower, upper = (end[row] for end in self.case.box())
        return ((self.points >= lower) & (self.points <= upper)).flatten(1).all(-1)

    def distance(self, row: int, norm: float) -> Tensor:
        away = (self.points.double() - self.case.x[row].double()).flatten(1)
        return (away != 0).sum(-1).double() if norm == 0 else torch.linalg.vector_norm(away, ord=norm, dim=-1)


def margin(outputs: Tensor, label: int) -> Tensor:
    """(..., outputs) -> (...): the label's output minus the largest other one."""
    others = outputs.clone()
    others[..., label] = -math.inf
    return outputs[..., label] - others.amax(-1)


# ---------------------------------------------------------------- entry points


def fresh_module(case: Case) -> Callable[[], Run]:
    def fresh() -> Run:
        module = case.make().eval()

        def run(x: Tensor) -> Tensor:
            with torch.no_grad(), _quiet():
                return case.read(case.ask(module, x)).detach().reshape(len(x), -1)

        return run

    return fresh


def _example(case: Case) -> Tensor:
    """A batch of two, since tracers specialise a size of one."""
    return case.x.repeat(2, *(1 for _ in case.x.shape[1:]))[:2].clone()


def _by_torch(case: Case, folder: Path) -> tuple[hf.Network, Callable[[], Run], nn.Module | None]:
    module = case.make()
    net = hf.Network.from_torch(module, shape=tuple(case.x.shape[1:]), **_common(case), **case.options)
    return net, fresh_module(case), module


def _common(case: Case) -> dict[str, Any]:
    return {} if case.substitutes is not None else {"domain": case.domain}


def _by_export(case: Case, folder: Path) -> tuple[hf.Network, Callable[[], Run], nn.Module | None]:
    """Here the truth is the exported program as torch runs it: torch's own export errors are not ours."""
    file = folder / "model.pt2"
    try:
        with torch.no_grad():
            program = torch.export.export(
                case.make().eval(), (_example(case),), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},)
            )
        torch.export.save(program, file)
        loaded = torch.export.load(file)
        _said(loaded.module(check_guards=False)(_example(case)), case)
    except Exception as error:
        raise NoWay(f"torch.export: {error}") from error

    def fresh() -> Run:
        module = torch.export.load(file).module(check_guards=False)

        def run(x: Tensor) -> Tensor:
            parts = [
                part.repeat(2, *(1 for _ in x.shape[1:])) if len(part) == 1 else part for part in x.split(64)
            ]  # Sizes that the tracer saw.
            with torch.no_grad():
                return torch.cat([_said(module(part), case) for part in parts])[: len(x)]

        return run

    return hf.Network.from_export(file, trust=True, **_common(case)), fresh, None


def _said(outputs: Any, case: Case) -> Tensor:
    answer = case.read(outputs).detach()
    return answer.reshape(len(answer), -1)


def _by_onnx(case: Case, folder: Path) -> tuple[hf.Network, Callable[[], Run], nn.Module | None]:
    """Here the truth is the ONNX file as onnxruntime runs it."""
    file = folder / "model.onnx"
    try:
        import onnxruntime
        import onnxscript  # noqa: F401

        with torch.no_grad():
            free = ({0: torch.export.Dim.DYNAMIC},)
            torch.onnx.export(
                case.make().eval(), (_example(case),), file, dynamo=True, dynamic_shapes=free, verbose=False
            )
        session = onnxruntime.InferenceSession(file)
        entry = session.get_inputs()[0].name
        outputs = [output.name for output in session.get_outputs()]
        _said(
            _like(
                case,
                [torch.as_tensor(o) for o in session.run(None, {entry: _example(case).numpy()})],
                outputs,
            ),
            case,
        )
    except Exception as error:
        raise NoWay(f"torch.onnx: {error}") from error

    def run(x: Tensor) -> Tensor:
        return _said(
            _like(case, [torch.as_tensor(o) for o in session.run(None, {entry: x.numpy()})], outputs), case
        )

    return hf.Network.from_onnx(file, **_common(case)), lambda: run, None


def _like(case: Case, parts: list[Tensor], names: list[str]) -> Any:
    """A file's outputs, in the structure of the module's output."""
    form = case.ask(case.make().eval(), _example(case))
    if isinstance(form, dict):
        return dict(zip(form, parts, strict=True))
    return parts if isinstance(form, tuple | list) else parts[0]


def _by_callable(case: Case, folder: Path) -> tuple[hf.Network, Callable[[], Run], nn.Module | None]:
    if case.substitutes is not None:
        raise NoWay("a function of arrays reads no tokens")
    run = fresh_module(case)()

    def function(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return run(torch.from_numpy(x)).numpy()

    # The function is the user's own and keeps its state between calls.
    return (
        hf.Network.from_callable(function, domain=case.domain, shape=tuple(case.x.shape[1:])),
        lambda: run,
        None,
    )


ENTRIES: dict[str, Callable[[Case, Path], tuple[hf.Network, Callable[[], Run], nn.Module | None]]] = {
    "from_torch": _by_torch,
    "from_export": _by_export,
    "from_onnx": _by_onnx,
    "from_callable": _by_callable,
}


# ---------------------------------------------------------------- capabilities


@dataclass
class Outcome:
    """Outcome of one request."""

    wrong: list[str] = field(default_factory=list)
    proved: list[bool] = field(
        default_factory=list
    )  # For each result, whether it has a nontrivial certified bound.
    reasons: list[str] = field(default_factory=list)  # Reasons for missing certified bounds.


CapabilityTest = Callable[[hf.Network, Case, Truth, Outcome], None]


def _heard(outcome: Outcome) -> Callable[[Any], None]:
    """A callback that collects the reasons in records."""
    return lambda progress: outcome.reasons.extend(
        reason for record in progress.records for reason in record.skipped
    )


def _claims(bound: hf.Bound) -> bool:
    return bound.evidence.kind == "proved" and bound.evidence.method != "definition"


def check_radius(truth: Truth, row: int, bracket: hf.Bracket, norm: float, outcome: Outcome) -> None:
    """No counterexample is closer than the lower bound, and that of the upper bound fools the user's own
    module.
    """
    case, label = truth.case, truth.case.y[row]
    lower, upper = bracket.lower.value, bracket.upper.value
    outcome.proved.append(_claims(bracket.lower))
    if bracket.note:
        outcome.reasons.append(bracket.note)
    distance, score = truth.distance(row, norm), truth.scores(label)
    near = distance <= lower if norm == 0 else distance < lower * (1 - 1e-6) - 1e-9
    broken = (score < -truth.slack) | ((distance == 0) & (score <= 0))
    if bool((near & broken).any()) and lower > 0:
        first = int((near & broken).nonzero()[0, 0])
        outcome.wrong.append(
            f"input {row}: {bracket} in norm {norm:g}, but {truth.points[first].tolist()} at "
            f"{float(distance[first]):.4g} answers "
            f"{truth.outputs[first].tolist()}"
        )
    witness = bracket.upper.evidence.witness
    if witness is None:
        return
    there = truth.at(witness)
    best = (
        margin(there, label).min() if bool(there.isfinite().all()) else torch.tensor(-math.inf)
    )  # NaN outputs have no class.
    away = (witness.double() - case.x[row].double()).flatten()
    far = float((away != 0).sum()) - 1 if norm == 0 else float(torch.linalg.vector_norm(away, ord=norm))
    if best > truth.slack:
        outcome.wrong.append(
            f"input {row}: the witness {witness.tolist()} of {bracket} keeps its class by {float(best):.4g}"
        )
    if far > upper + 1e-6 * (1 + abs(far)) and upper > 0:
        outcome.wrong.append(f"input {row}: the witness {witness.tolist()} of {bracket} lies at {far}")


def _radius(norm: float, **options: Any) -> CapabilityTest:
    def run(net: hf.Network, case: Case, truth: Truth, outcome: Outcome) -> None:
        brackets = hf.radius(
            net, case.x, case.labels, norm=norm, progress=_heard(outcome), stop=QUICK, **options
        )
        for row, bracket in enumerate(brackets):
            check_radius(truth, row, bracket, norm, outcome)

    return run


def check_worst(
    truth: Truth,
    row: int,
    bracket: hf.Bracket,
    scores: Callable[[Tensor], Tensor],
    outcome: Outcome,
    slack: float,
) -> None:
    """The smallest margin over the box of an input lies between the bounds."""
    outcome.proved.append(_claims(bracket.lower))
    inside = truth.inside(row)
    least = float(scores(truth.outputs)[inside].min())
    if bracket.lower.value > least + slack:
        outcome.wrong.append(
            f"input {row}: the worst-case margin is reported as {bracket}, but {least:.4g} occurs"
        )
    witness = bracket.upper.evidence.witness
    if witness is not None and float(scores(truth.at(witness)).min()) > bracket.upper.value + slack:
        outcome.wrong.append(
            f"input {row}: the witness {witness.tolist()} of {bracket} scores "
            f"{float(scores(truth.at(witness)).min()):.4g}"
        )


def _worst(net: hf.Network, case: Case, truth: Truth, outcome: Outcome) -> None:
    box = hf.Box(case.x, *case.box())
    brackets = hf.worst(
        net,
        box,
        hf.Robustness(case.labels),
        methods=_methods(net, hf.attacks.PGD(rounds=1), hf.certify.Certify()),
        stop=QUICK,
        progress=_heard(outcome),
    )
    for row, bracket in enumerate(brackets):
        check_worst(truth, row, bracket, lambda z, row=row: margin(z, case.y[row]), outcome, truth.slack)


def _methods(net: hf.Network, *methods: Any) -> Any:
    """The methods that apply: for a black box, those that need outputs only."""
    return list(methods) if net.differentiable else None


def spec_of(case: Case, row: int, outputs: int) -> Spec:
    """A VNN-LIB property: another class reaches the output of the input's class somewhere in the box."""
    lower, upper = (end[row].double().flatten().tolist() for end in case.box())
    lines = [f"(declare-const X_{i} Real)" for i in range(len(lower))] + [
        f"(declare-const Y_{i} Real)" for i in range(outputs)
    ]
    ends = enumerate(zip(lower, upper, strict=True))
    lines += [f"(assert (>= X_{i} {a:.17f}))\n(assert (<= X_{i} {b:.17f}))" for i, (a, b) in ends]
    any_of = " ".join(f"(and (>= Y_{j} Y_{case.y[row]}))" for j in range(outputs) if j != case.y[row])
    return parse("\n".join([*lines, f"(assert (or {any_of}))"]))


def _verify(net: hf.Network, case: Case, truth: Truth, outcome: Outcome) -> None:
    for row, label in enumerate(case.y[:2]):
        found = hf.verify(net, spec_of(case, row, truth.outputs.shape[1]), stop=hf.Stop(seconds=1.0))
        outcome.proved.append(found.answer == "unsat")
        outcome.reasons.append(found.note)
        if found.answer == "unsat" and bool((truth.scores(label)[truth.inside(row)] < -truth.slack).any()):
            outcome.wrong.append(f"input {row}: unsat, but another class is reached in the box")
        if found.answer == "sat":
            assert found.witness is not None
            if float(margin(truth.at(found.witness), label).min()) > truth.slack:
                outcome.wrong.append(f"input {row}: sat, but the class holds at {found.witness.tolist()}")


def _reach(net: hf.Network, case: Case, truth: Truth, outcome: Outcome) -> None:
    ranges = hf.reach(net, case.box(), tolerance=0.05, stop=hf.Stop(seconds=1.0))
    for found in ranges:
        outcome.reasons.append(found.note)
        outcome.proved.append(_claims(found.minimum.lower) and _claims(found.maximum.upper))
        values = truth.outputs[truth.inside(found.box), found.output]
        low, high = float(values.min()), float(values.max())
        if found.minimum.lower.value > low + truth.slack or found.maximum.upper.value < high - truth.slack:
            outcome.wrong.append(f"{found}, but {low:.4g} to {high:.4g} occurs")
        for at, value, sign in (
            (found.low_at, found.minimum.upper.value, 1),
            (found.high_at, found.maximum.lower.value, -1),
        ):
            met = sign * truth.at(at)[:, found.output]
            if not met.isfinite().all() or float(met.min()) > sign * value + truth.slack:
                outcome.wrong.append(f"{found}: {at.tolist()} answers {(sign * met).tolist()}")


def _bounds(net: hf.Network, case: Case, truth: Truth, outcome: Outcome) -> None:
    found = hf.bounds(net, hf.Box(case.x, *case.box()))
    for row in range(len(case.x)):
        outcome.proved.append(bool(found.lower[row].isfinite().all()))
        inside = truth.inside(row)
        outputs, points = truth.outputs[inside], truth.points[inside].double().flatten(1)
        below, above = (
            points @ a[row].flatten(1).t() + b[row]
            for a, b in ((found.lower_A, found.lower_b), (found.upper_A, found.upper_b))
        )
        slack = truth.slack
        for name, low, high in (("numbers", found.lower[row], found.upper[row]), ("planes", below, above)):
            if bool((outputs < low - slack).any() or (outputs > high + slack).any()):
                outcome.wrong.append(
                    f"input {row}: the {name} {found.lower[row].tolist()}, {found.upper[row].tolist()} are "
                    "crossed"
                )


def _risk(net: hf.Network, case: Case, truth: Truth, outcome: Outcome) -> None:
    found = hf.risk(
        net, case.x, "confidence", radius=case.width, y=case.labels, queries=200, stop=hf.Stop(seconds=0.6)
    )
    for row, risk in enumerate(found):
        outcome.reasons.extend(risk.notes)

        def scores(z: Tensor, label: int = case.y[row]) -> Tensor:
            return margin(z.softmax(-1), label)

        check_worst(truth, row, risk.worst, scores, outcome, 2 * CLOSE)
        assert risk.radius is not None
        assert risk.metric is not None
        check_radius(truth, row, risk.radius, math.inf, outcome)
        distance = truth.distance(row, math.inf)
        near, score = truth.inside(row) & (distance > 0.05), scores(truth.outputs)
        centre = score[distance == 0]
        change = (score[near][:, None] - centre).abs().amin(-1) / distance[near]
        outcome.proved.append(_claims(risk.metric.upper))
        if len(change) and float(change.max()) > risk.metric.upper.value * (1 + 1e-3) + 20 * CLOSE:
            outcome.wrong.append(
                f"input {row}: Q is reported as {risk.metric}, but {float(change.max()):.4g} occurs"
            )


def _saliency(net: hf.Network, case: Case, truth: Truth, outcome: Outcome) -> None:
    """Each reported margin decrease must equal an observed one at the smallest or largest input value."""
    found = hf.saliency(net, case.x, case.labels).flatten(1)
    if case.alone or case.repeats > 1:  # There is no unique output to compare with.
        return
    for row, label in enumerate(case.y):
        at_centre = margin(truth.at(case.x[row]), label)
        for unit in range(found.shape[1]):
            ends = case.x[row].flatten().repeat(2, 1)
            ends[:, unit] = torch.tensor(case.domain, dtype=ends.dtype)
            falls = torch.stack([at_centre.min(), at_centre.max()])[:, None] - torch.cat(
                [margin(truth.at(end.reshape(case.x.shape[1:])), label) for end in ends]
            )
            shown = float(found[row, unit])
            if (
                math.isfinite(shown)
                and not float(falls.min()) - truth.slack
                <= shown
                <= max(0.0, float(falls.max())) + truth.slack
            ):
                outcome.wrong.append(
                    f"input {row}: the map says {shown:.4g} for unit {unit}, but "
                    f"{falls.flatten().tolist()} occur"
                )


def _words(net: hf.Network, case: Case, truth: Truth, outcome: Outcome) -> None:
    assert case.substitutes is not None
    brackets = hf.radius(
        net, case.x, case.labels, substitutes=case.substitutes, progress=_heard(outcome), stop=QUICK
    )
    each = hf.radius(net, case.x, case.labels, substitutes=case.substitutes, frames="each", stop=QUICK)
    for row, bracket in enumerate(brackets):
        check_words(truth, row, bracket, None, outcome)
        for place, alone in enumerate(each[row]):
            check_words(truth, row, alone, place, outcome)


def check_words(truth: Truth, row: int, bracket: hf.Bracket, place: int | None, outcome: Outcome) -> None:
    """As `check_radius`, over the sentences that the substitutes allow, or with a single replaced token."""
    case = truth.case
    outcome.proved.append(_claims(bracket.lower))
    allowed = case.sentences(case.x[row])
    mine = (truth.points[:, None] == allowed[None]).all(-1).any(-1)
    changed = truth.points != case.x[row]
    if place is not None:
        mine &= changed.sum(-1) == changed[:, place]
    count, score = changed.sum(-1), truth.scores(case.y[row])
    refuted = mine & (count <= bracket.lower.value) & (score < -truth.slack)
    if bool(refuted.any()) and bracket.lower.value > 0:
        first = int(refuted.nonzero()[0, 0])
        outcome.wrong.append(
            f"sentence {row}: {bracket}, but {truth.points[first].tolist()} answers "
            f"{truth.outputs[first].tolist()}"
        )
    witness = bracket.upper.evidence.witness
    if witness is not None:
        tokens = witness if not witness.is_floating_point() else case.x[row]
        if float(margin(truth.at(tokens), case.y[row]).min()) > truth.slack:
            outcome.wrong.append(
                f"sentence {row}: the witness {tokens.tolist()} of {bracket} keeps its class"
            )


QUICKLY = [hf.attacks.PGD(rounds=1)]
CAPABILITIES: dict[str, CapabilityTest] = {
    "radius inf, proof alone": lambda net, case, truth, outcome: _radius(
        math.inf, methods=_methods(net, hf.certify.Certify())
    )(net, case, truth, outcome),
    "radius inf": _radius(math.inf),
    "radius 2": lambda net, case, truth, outcome: _radius(
        2, methods=_methods(net, *QUICKLY, hf.certify.Certify())
    )(net, case, truth, outcome),
    "radius 1": lambda net, case, truth, outcome: _radius(
        1, methods=_methods(net, *QUICKLY, hf.certify.Certify())
    )(net, case, truth, outcome),
    "radius 0": _radius(0),
    "radius inf, tight": lambda net, case, truth, outcome: _radius(
        math.inf, methods=_methods(net, hf.certify.Tighten())
    )(net, case, truth, outcome),
    "radius inf, executed": lambda net, case, truth, outcome: _radius(
        math.inf, methods=_methods(net, hf.certify.Certify(arithmetic="executed"))
    )(net, case, truth, outcome),
    "worst": _worst,
    "bounds": _bounds,
    "reach": _reach,
    "verify": _verify,
    "risk": _risk,
    "saliency": _saliency,
    "words": _words,
}


def capabilities_of(case: Case) -> Iterator[str]:
    if case.substitutes is not None:
        yield "words"
    else:
        yield from (capability for capability in case.capabilities or CAPABILITIES if capability != "words")


# ---------------------------------------------------------------- the judge


@dataclass(frozen=True)
class Judgement:
    verdict: Verdict
    detail: str


class _quiet(warnings.catch_warnings):
    def __enter__(self) -> Any:
        found = super().__enter__()
        warnings.simplefilter("ignore")
        return found


class Trial:
    """One module through one entry point. The network is read once for all capabilities."""

    def __init__(self, entry: str, case: Case) -> None:
        _unwound()  # Failed exporters leave torch in this state, too.
        self.entry, self.case = entry, case
        self.error: Judgement | None = None
        if case.before is not None:
            case.before()
        self.folder = (
            tempfile.TemporaryDirectory()
        )  # Kept as long as the trial, since fresh instances are read from its file.
        with _quiet():
            try:
                self.net, fresh, self.module = ENTRIES[entry](case, Path(self.folder.name))
            except hf.HoldfastError as error:
                self.error = Judgement("refused", f"{type(error).__name__}: {error}")
                return
            except NoWay:
                raise
            except Exception as error:  # A crash is not a refusal: it gives the user no advice.
                self.error = Judgement(
                    "wrong", f"crashed while reading the model, {type(error).__name__}: {error}"
                )
                return
            self.state = None if self.module is None else _state(self.module)
            if case.after is not None:
                _first(self.net, case)
                case.after()
            with contextlib.suppress(hf.HoldfastError):
                self.net.outputs_for(case.x)  # Warnings about the model appear at the first call.
            told = self._told()
            if told is not case:
                _, fresh, _ = ENTRIES[entry](told, Path(self.folder.name))
            try:
                self.truth = Truth.seen(told, fresh)
            except Exception as error:
                if self.module is None:
                    raise NoWay(f"the file does not run: {error}") from error
                raise

    def _told(self) -> Case:
        """The case with the first part of the output only, if the network's notes say that it measures only
        that.
        """
        if self.case.told is None or not any(self.case.told in note for note in self.net.notes):
            return self.case
        return replace(self.case, read=lambda outputs: outputs[0])

    def examine(self, capability: str) -> Judgement:
        if self.error is not None:
            return self.error
        outcome, case = Outcome(), self.truth.case
        x = case.x.clone()
        try:
            with warnings.catch_warnings(record=True) as warned:
                warnings.simplefilter("always")
                CAPABILITIES[capability](self.net, case, self.truth, outcome)
        except hf.HoldfastError as error:
            return Judgement("refused", f"{type(error).__name__}: {error}")
        except Exception as error:
            return Judgement("wrong", f"crashed, {type(error).__name__}: {error}")
        finally:
            changed, inside = not torch.equal(case.x, x), _unwound()
            case.x.copy_(x)
        if changed:
            outcome.wrong.append("the user's data were changed")
        if inside:
            outcome.wrong.append("torch was left inside a vmap, where the user's own next call fails")
        if self.state is not None and self.module is not None and _state(self.module) != self.state:
            outcome.wrong.append("the user's module was changed")
        if outcome.wrong:
            return Judgement("wrong", "; ".join(outcome.wrong))
        reasons = [
            reason
            for reason in [*outcome.reasons, *(str(w.message) for w in warned), *self.net.notes]
            if reason
        ]
        if outcome.proved and not any(outcome.proved) and reasons:
            return Judgement("refused", "; ".join(dict.fromkeys(reasons)))
        detail = (
            "proved"
            if outcome.proved and all(outcome.proved)
            else "partly proved"
            if any(outcome.proved)
            else "nothing is claimed"
        )
        return Judgement("right", detail)


def _unwound() -> bool:
    """Whether torch was left inside a transformation. If so, leave it for the next trial."""
    inside = False
    while torch._C._functorch.maybe_current_level() is not None:
        torch._C._functorch.pop_dynamic_layer_stack()
        inside = True
    return inside


def _first(net: hf.Network, case: Case) -> None:
    """Make one request before the one that is judged."""
    with contextlib.suppress(hf.HoldfastError):
        hf.radius(net, case.x.clone(), case.labels, methods=[hf.certify.Certify()])


def _state(module: nn.Module) -> dict[str, bytes]:
    """The weights as bytes; empty for a module that has none yet."""
    found = {}
    for name, value in module.state_dict().items():
        if isinstance(value, Tensor) and not isinstance(value, nn.parameter.UninitializedTensorMixin):
            found[name] = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return found


def judge(entry: str, capability: str, case: Case) -> Verdict:
    """The verdict on a single request. Raises NoWay if the module cannot use this entry point."""
    return Trial(entry, case).examine(capability).verdict
