"""`hf.radius`, `hf.worst` and `hf.bounds`: how far inputs may be perturbed, how low a score can fall, and the
linear bounds themselves.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypedDict, Unpack, get_args, overload

import numpy as np
import torch
from torch import Tensor

from holdfast import batch
from holdfast.api.argument_names import explain_arguments
from holdfast.api.arguments import (
    DomainOption,
    MethodsOption,
    ModelLike,
    StopOption,
    SubstitutesOption,
    as_network,
    check_choice,
    check_classes,
    check_inputs,
    check_lengths,
    check_methods,
    check_norm,
    check_region,
    check_search,
    check_stop,
    count_of,
    show,
    substitute_ids,
)
from holdfast.api.edits import Edits, check_padding, whole_word_edits
from holdfast.api.methods import Mode, Tier, default_methods
from holdfast.api.perturbation import (
    FramesOption,
    MaskOption,
    NormOption,
    Perturbation,
    SharesOption,
    ValuesOption,
)
from holdfast.api.printed_table import PrintedTable, data_frame, make_table, plain
from holdfast.api.progress import ProgressOption, check_progress, progress_display
from holdfast.api.region_questions import (
    PropertyOption,
    check_property_name,
    classes_of,
    property_of,
)
from holdfast.api.requests import property_fields, region_request
from holdfast.api.results import AnswerList, FrameRadiusList, RadiusList, WorstList
from holdfast.bounding.bounder import ClosedForm
from holdfast.bounding.graph.problem_graph import graph_of
from holdfast.certify import Arithmetic
from holdfast.errors import BadInput
from holdfast.formatting import format_lower, format_upper
from holdfast.network import Network
from holdfast.problem import Problem
from holdfast.property import Linear, Property, Robustness, Rule, Targeted
from holdfast.property.base import OneOutput, next_likely
from holdfast.region import Family, Region
from holdfast.region.units import Unit
from holdfast.result import Key
from holdfast.solver import Sink, solve

TargetsOption = Literal["runner-up"] | Tensor | Sequence[int] | Sequence[str] | str | int | None
Array = np.ndarray[Any, Any]
Inputs = (
    Tensor | Array | Sequence[Tensor] | Sequence[Array] | Sequence[str] | Mapping[str, Any]
)  # a mapping: of a network with several inputs
LabelsOption = (
    Tensor
    | Array
    | Sequence[int]
    | Sequence[float]
    | Sequence[str]
    | Sequence[Sequence[int]]
    | int
    | str
    | None
)

RADIUS_IS_THE_ANSWER = (
    "hf.radius searches for the radius itself. For a given one ask hf.worst(net, hf.Ball(x, 0.05, math.inf, "
    "(0, 1)), hf.Robustness(y)), or this answer: result.gate(at=0.05, min_certified=0.9)."
)
IN_THE_REGION = "It is part of the region: hf.Ball(x, 0.05, math.inf, (0, 1)) is x, radius, norm and domain."
CLASSES_AS_PROPERTY = "Classes are given as a property: hf.Robustness(torch.as_tensor(y))."


class Options(TypedDict, total=False):
    """The options of `radius` except `frames`, on which the type of the answer depends."""

    norm: NormOption
    domain: DomainOption
    property: Property | Rule | None
    shares: SharesOption
    drift: bool
    targets: TargetsOption
    substitutes: SubstitutesOption
    edits: Edits | None
    unit: Unit | None
    free: MaskOption
    values: ValuesOption
    lengths: Sequence[int] | None
    mode: Mode
    tier: Tier
    arithmetic: Arithmetic
    methods: MethodsOption
    stop: StopOption
    seconds: float | None
    seed: int
    store: Sink | None
    progress: ProgressOption


@overload
def radius(
    net: ModelLike, x: Inputs, y: LabelsOption = ..., *, frames: Literal["each"], **options: Unpack[Options]
) -> FrameRadiusList: ...


@overload
def radius(
    net: ModelLike,
    x: Inputs,
    y: LabelsOption = ...,
    *,
    frames: Literal["all"] | int | Sequence[int] | Sequence[Sequence[bool]] | Tensor | None = ...,
    **options: Unpack[Options],
) -> RadiusList: ...


@explain_arguments(
    "The norm is norm=, how long is seconds=.",
    quantiles="They belong to the property: hf.Within('10%', outputs='median', quantiles=[0.1, 0.5, 0.9]).",
    scales="It is shares= of features, or the scales of columns: net.with_columns(hf.Columns.of_channels(names, scales=...)).",
    **dict.fromkeys(("eps", "epsilon", "radius"), RADIUS_IS_THE_ANSWER),
)
def radius(
    net: ModelLike,
    x: Inputs,
    y: LabelsOption = None,
    *,
    norm: NormOption = math.inf,
    domain: DomainOption = None,
    property: Property | Rule | None = None,
    frames: FramesOption = None,
    shares: SharesOption = None,
    drift: bool = False,
    targets: TargetsOption = None,
    substitutes: SubstitutesOption = None,
    edits: Edits | None = None,
    unit: Unit | None = None,
    free: MaskOption = None,
    values: ValuesOption = None,
    lengths: Sequence[int] | None = None,
    mode: Mode = "prove",
    tier: Tier = "fast",
    arithmetic: Arithmetic = "real",
    methods: MethodsOption = None,
    stop: StopOption = None,
    seconds: float | None = None,
    seed: int = 0,
    store: Sink | None = None,
    progress: ProgressOption = None,
) -> RadiusList | FrameRadiusList:
    """Bracket the robustness radius of each input.

    The radius is how far the input may be perturbed before its class (or another property) changes.

    Args:
        net: a torch module in evaluation mode, the path of an .onnx file, a fitted scikit-learn estimator, or
            a hf.Network.
        x: (batch, *shape), a list of inputs of different lengths, or padded ones with `lengths`; for a
            network that reads tokens their ids, or a list of texts.
        y: the class of each input, as a number or by its name. A misclassified input has radius 0. Not needed
            with `property`.
        norm: 1, 2, math.inf (or "inf") or any p >= 1, in the units of the domain; 0 counts changed pixels,
            frames or features.
        domain: the lowest and highest value of an input, as in (0, 1). A hf.Network has its own.
        property: what must hold instead of the class: hf.Within("10%") (outputs stay near the forecast at the
            unperturbed input), hf.Threshold(0) (every output stays on its side of the threshold), or any
            Property.
        frames: None: the whole input is perturbed. "all": every frame by at most the radius. "each": each
            frame alone, and the answer holds a list of brackets for every input. A number, several numbers,
            or a bool mask: only those frames.
        shares: with frames, frame k moves by at most radius * shares[k], one number a frame, for all inputs
            or for each. Without frames, feature k does, in every frame of a window.
        drift: for windows (frames, features): one offset for each feature, the same in every frame. The
            radius is the norm of the offsets, each divided by its share where there are shares.
        targets: None: a change to any other class counts. One class for each input (or one for all): only a
            change to that class counts. "runner-up": the class with the second largest output.
        substitutes: word -> words that may replace it, or for each input and each of its positions the
            allowed words; as words of the vocabulary or as token ids. The radius then counts replaced words.
            Words that the tokenizer splits are replaced as a whole, as by hf.Edits(substitute=50, substitutes=...).
            With frames="each", each position alone.
        edits: hf.Edits(substitute=..., insert=..., delete=..., swap=..., duplicate=...): the radius then counts edits
            of a text, for a network that reads tokens.
        unit: under norm 0, what counts as one change: "pixel" (all its channels), "frame" or "number".
            Default: pixels for images, else numbers.
        free: under norm 0, a bool mask of the units that may change, for all inputs or for each. Default:
            all.
        values: under norm 0, the values that a changed number may take, such as range(256) for bytes.
            Default: any of the domain.
        lengths: the lengths of padded inputs.
        mode: under norm 0, "prove": search for few changes and prove by branch and bound that fewer do not
            suffice. "grid": DeepTRE's sensitivities over a grid of values; its lower bounds are estimates.
        tier: how hard to prove. "search": attacks only. "fast": linear bounds in closed form. "tight":
            optimised slopes, joint ReLU relaxations and quadratic models, seconds for an input. "split":
            branch and bound too, minutes; limit it with `stop`.
        arithmetic: "real": proofs are about the network in real arithmetic. "executed": about its own float32
            outputs (tier "fast").
        methods: what to run instead of the defaults: instances such as hf.attacks.PGD(), or names such as
            "pgd" and "certify".
        stop: when to stop: a hf.Stop, or a number of seconds for the whole call.
        seconds: the same as a number for `stop`.
        seed: decides every random number.
        store: keeps every record while it is made: hf.Store.create(folder).
        progress: None: a bar in a terminal or notebook. False: nothing. True: always a bar. A function: it is
            called with every report.

    Returns: A list with one bracket for each input, in order, lower <= radius <= upper, that prints as a
    table and has .lower, .upper, .to_frame(), .summary(), .report(path) and .gate(...). The radius is
    infinite where no allowed perturbation changes the class; the bracket is then closed and its note says
    why.
    """
    check_search(seed, store)
    check_progress(progress)
    for name, value, kind in (
        ("tier", tier, Tier),
        ("mode", mode, Mode),
        ("arithmetic", arithmetic, Arithmetic),
    ):
        check_choice(name, value, get_args(kind))
    limit, chosen = check_stop(stop, seconds), check_methods(methods)
    check_lengths(lengths)
    moves = Perturbation(
        norm=check_norm(norm),
        frames=frames,
        drift=drift,
        shares=shares,
        edits=edits,
        unit=unit,
        free=free,
        values=values,
    )
    if property is not None and not isinstance(property, Property | Rule):
        raise BadInput(
            f"property: expected hf.Within, hf.Threshold or a Property, got {show(property)}. hf.risk "
            "takes properties by name and your "
            f"own functions."
        )
    network = as_network(net, domain=domain, x=x)
    x = check_inputs(network, x)
    count = count_of(x)
    labels = check_classes(network, y, count) if property is None else y
    aims = check_targets(network, targets, count)
    whole = whole_word_edits(network, substitutes) if edits is None and frames is None else None
    moves = replace(
        moves,
        substitutes=None if whole is not None else substitute_ids(network, substitutes),
        edits=whole or edits,
    )
    problems = radius_problems(network, x, labels, moves, property=property, targets=aims, lengths=lengths)
    if chosen is None:
        chosen = default_methods(network, "radius", tier, what=moves.what, mode=mode, arithmetic=arithmetic)
    with progress_display(progress, "radius") as report:
        records = solve(problems, chosen, limit, seed=seed, store=store, progress=report)
    ordered = tuple(sorted(records, key=lambda r: (r.key.index, r.key.frame or 0)))
    request = replace(moves.to_request(targets=targets), **property_fields(property))
    if network.channels is not None and moves.what in ("norms", "offsets"):
        request = replace(request, channels=network.channels.to_json())
    answered = AnswerList(network, tuple(problems), ordered, "radius", request)
    if not moves.one_frame_each:
        return RadiusList([r.explained for r in ordered], answered)
    groups: dict[int, list[Any]] = {}
    for record in ordered:
        groups.setdefault(record.key.index, []).append(record)
    rows = [
        RadiusList([r.explained for r in group], replace(answered, records=tuple(group)))
        for group in groups.values()
    ]
    return FrameRadiusList(rows, answered)


def check_targets(net: Network, targets: Any, count: int) -> Any:
    """Return target classes as integers, one for each input; "runner-up" stays."""
    if targets is None or (isinstance(targets, str) and targets == "runner-up"):
        return targets
    if isinstance(targets, str) and targets not in (net.classes or ()):
        names = "" if net.classes is None else f" (there are {', '.join(map(str, net.classes[:8]))})"
        raise BadInput(f"targets={targets!r}: use 'runner-up', or one class for each input{names}.")
    one = isinstance(targets, str | int) and not isinstance(targets, bool)
    return check_classes(net, [targets] * count if one else targets, count, "targets")


@explain_arguments(
    **dict.fromkeys(("radius", "eps", "epsilon", "norm", "p", "domain"), IN_THE_REGION), y=CLASSES_AS_PROPERTY
)
def worst(
    net: ModelLike,
    region: Region,
    property: PropertyOption,
    *,
    tier: Tier = "fast",
    arithmetic: Arithmetic = "real",
    methods: MethodsOption = None,
    stop: StopOption = None,
    seconds: float | None = None,
    seed: int = 0,
    store: Sink | None = None,
    progress: ProgressOption = None,
) -> WorstList:
    """Bracket the smallest score of a property over each region. A positive lower bound proves that the
    property holds there.

    Args:
        net: a torch module in evaluation mode, the path of an .onnx file, a fitted estimator, or a
            hf.Network.
        region: where inputs may be: hf.Ball(x, 0.02, torch.inf, (0, 1)), hf.Box.between(lower, upper), or any
            region of hf.region.
        property: the score that must stay positive: hf.Robustness(y), hf.Within("10%"), hf.Threshold(0), any
            Property, one of the names of `hf.risk`, or your own function of the outputs.
        tier: how hard to prove, as for `hf.radius`.
        arithmetic: "real" or "executed", as for `hf.radius`.
        methods: what to run instead of the defaults, as instances or names.
        stop: when to stop: a hf.Stop, or a number of seconds for the whole call.
        seconds: the same as a number for `stop`.
        seed: decides every random number.
        store: keeps every record while it is made.
        progress: None: a bar in a terminal or notebook. False: nothing. A function: it is called with every
            report.

    Returns: A list with one bracket for each region. The range of an output is two of these: the smallest
    value of the output, and of its negative.
    """
    check_search(seed, store)
    check_progress(progress)
    for name, value, kind in (("tier", tier, Tier), ("arithmetic", arithmetic, Arithmetic)):
        check_choice(name, value, get_args(kind))
    limit, chosen = check_stop(stop, seconds), check_methods(methods)
    where = check_region(region, "hf.worst")
    check_property_name(property)
    network = as_network(net, x=where.as_data(where.centre) if where.embedded else None)
    asked, made = property_of(network, where, property)
    problem = Problem(asked, where, made, "worst")
    if chosen is None:
        chosen = default_methods(asked, "worst", tier, arithmetic=arithmetic)
    with progress_display(progress, "worst") as report:
        records = solve([problem], chosen, limit, seed=seed, store=store, progress=report)
    answered = AnswerList(asked, (problem,), tuple(records), "worst", region_request(where, property))
    return WorstList([record.explained for record in records], answered)


@dataclass(frozen=True, eq=False, repr=False)
class Bounds:
    """Certified bounds of linear functions of the outputs over each region of a batch, in real arithmetic,
    rounding included:

    lower <= lower_A . x + lower_b <= rows . output(x) + offset <= upper_A . x + upper_b <= upper for every x
    of the region.
    """

    lower: Tensor  # (batch, rows) float64, as are all
    upper: Tensor  # (batch, rows)
    lower_A: Tensor  # (batch, rows, *shape)
    lower_b: Tensor  # (batch, rows)
    upper_A: Tensor  # (batch, rows, *shape)
    upper_b: Tensor  # (batch, rows)

    def table(self) -> PrintedTable:
        """One line for each row of each input."""
        rows = [
            {
                "input": str(i),
                "output": str(k),
                "lower": plain(format_lower(low)),
                "upper": plain(format_upper(high)),
            }
            for i, pair in enumerate(zip(self.lower.tolist(), self.upper.tolist(), strict=True))
            for k, (low, high) in enumerate(zip(*pair, strict=True))
        ]
        return make_table(rows, ("input", "output", "lower", "upper"))

    def summary(self) -> str:
        """How many bounds there are, and how wide they are."""
        width = (self.upper - self.lower).flatten()
        inputs, rows = self.lower.shape
        widest = about_width(float(width.max())) if len(width) else "0"
        regions = f"{inputs} region{'' if inputs == 1 else 's'}"
        return f"Certified bounds of {rows} outputs over {regions}; the widest is {widest}."

    def to_frame(self) -> Any:
        """One row for each output of each region, as a pandas DataFrame."""
        return data_frame(
            [
                {"input": i, "output": k, "lower": float(self.lower[i, k]), "upper": float(self.upper[i, k])}
                for i in range(self.lower.shape[0])
                for k in range(self.lower.shape[1])
            ]
        )

    def __str__(self) -> str:
        return f"{self.table()}\n{self.summary()}"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return f"{self.table().to_html()}<p>{self.summary()}</p>"


def about_width(width: float) -> str:
    """A width, rounded up."""
    return plain(format_upper(width))


@explain_arguments(**dict.fromkeys(("radius", "eps", "epsilon", "norm", "p", "domain"), IN_THE_REGION))
def bounds(
    net: ModelLike, region: Region, rows: Tensor | None = None, offset: Tensor | None = None
) -> Bounds:
    """Return certified bounds of every output over each region (CROWN).

    The bounds are numbers and linear functions of the input.

    Args:
        net: a torch module in evaluation mode, the path of an .onnx file, a fitted estimator, or a
            hf.Network.
        region: where inputs may be: hf.Ball, hf.Box, or any region of hf.region.
        rows: (rows, outputs) or (batch, rows, outputs): bound these linear combinations of the outputs
            instead.
        offset: (rows,) or (batch, rows): added to the combinations.
    """
    where = check_region(region, "hf.bounds")
    network = as_network(net, x=where.as_data(where.centre) if where.embedded else None)
    count, outputs = len(where), network.outputs_for(where.centre)
    given = torch.eye(outputs) if rows is None else tensor_argument("rows", rows)
    if given.dim() not in (2, 3) or given.shape[-1] != outputs or (given.dim() == 3 and len(given) != count):
        raise BadInput(
            f"rows have shape {tuple(given.shape)}, expected (rows, {outputs}) or ({count}, rows, {outputs})."
        )
    matrix = given.to(network.device, torch.float64).expand(count, *given.shape[-2:])
    shift = torch.zeros(()) if offset is None else tensor_argument("offset", offset)
    if shift.dim() and tuple(shift.shape) not in ((matrix.shape[1],), tuple(matrix.shape[:2])):
        raise BadInput(
            f"offset has shape {tuple(shift.shape)}, expected one number for each of the {matrix.shape[1]} "
            "rows."
        )
    shift = shift.to(network.device, torch.float64).expand(matrix.shape[:2])
    problem = Problem(network, where, Linear(matrix, shift), "worst")
    problem.check()
    graph = graph_of(problem)
    _, found = ClosedForm(graph).bound(problem.region, torch.cat([matrix, -matrix], dim=1))
    assert found is not None
    signed = torch.cat([shift, -shift], dim=1)
    down = torch.full_like(signed, -torch.inf)
    plane = replace(
        found,
        constant=torch.where(signed == 0, found.constant, torch.nextafter(found.constant + signed, down)),
    )
    least, half = plane.minimum(problem.region), matrix.shape[1]
    return Bounds(
        lower=least[:, :half],
        upper=-least[:, half:],
        lower_A=plane.coefficients[:, :half],
        lower_b=plane.constant[:, :half],
        upper_A=-plane.coefficients[:, half:],
        upper_b=-plane.constant[:, half:],
    )


def tensor_argument(name: str, values: object) -> Tensor:
    """Return numbers as a tensor."""
    try:
        return torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError):
        raise BadInput(f"{name}: expected a tensor of numbers, got {show(values)}.") from None


def radius_problems(
    net: Network,
    x: Inputs,
    y: LabelsOption = None,
    perturbation: Perturbation | None = None,
    *,
    property: Property | Rule | None = None,
    targets: TargetsOption = None,
    lengths: Sequence[int] | None = None,
    **options: Any,
) -> list[Problem]:
    """Return the problems of `radius`, one for each shape of input, after checking all arguments.

    options: fields of `Perturbation`, in place of one.
    """
    moves = Perturbation(**options) if perturbation is None else perturbation
    rows = as_rows(net.rows(x) if hasattr(x, "columns") else net.inputs(x), lengths)
    if y is None and property is None:
        raise BadInput(
            "radius needs labels, the class of each input (y), or another property: "
            "property=hf.Within('10%') for a "
            "forecast, hf.Threshold(0) for a single score."
        )
    labels = None if y is None or property is not None else classes_of(net.places_of(y), len(rows), "labels")
    if property is not None and targets is not None:
        raise BadInput(
            "targets are classes: they choose the class to which a change counts. Leave them out, or the "
            "property."
        )
    aims = None if targets is None or isinstance(targets, str) else classes_of(targets, len(rows), "targets")  # type: ignore[arg-type]
    if isinstance(targets, str) and targets != "runner-up":
        raise BadInput(f"targets={targets!r}: use 'runner-up', or one class for each input.")
    regions = moves.families(net, rows, padded=lengths is not None)
    if lengths is not None and moves.edits is not None:
        check_padding(net, x, rows, moves.edits)
    problems = []
    kept = None if property is None else _resolve_property(net, property, regions, y)
    for members, region in regions:
        place = torch.tensor(members, device=net.device)
        if kept is not None:
            prop: Property = batch.take(kept, place)
        else:
            assert labels is not None
            aim = None if aims is None else aims.to(net.device)[place]
            prop = _classes(net, region.centre, labels.to(net.device)[place], targets, aim)
        problem = Problem(net, region, prop, "radius", tuple(Key(i) for i in members))
        problems.append(_each_frame(problem) if moves.one_frame_each else problem)
    for problem in problems:
        try:
            problem.check()
        except OneOutput as error:
            raise OneOutput(net(problem.region.centre)) from error
    return problems


def as_rows(x: Inputs, lengths: Sequence[int] | None) -> list[Tensor]:
    """Return a list with each input, without padding."""
    try:
        rows = [torch.as_tensor(row) for row in x]
    except (TypeError, ValueError, RuntimeError) as error:
        raise BadInput(
            "x does not hold inputs: give a tensor (batch, ...), or a list with one for each input "
            f"({error})."
        ) from error
    if not rows:
        raise BadInput("the data are empty: there is no input.")
    if lengths is None:
        return rows
    if len(lengths) != len(rows):
        raise BadInput(f"{len(lengths)} lengths for {len(rows)} inputs.")
    for i, (row, length) in enumerate(zip(rows, lengths, strict=True)):
        if not 1 <= length <= len(row):
            raise BadInput(f"length {length} of input {i} must be between 1 and its {len(row)} frames.")
    return [row[: int(length)] for row, length in zip(rows, lengths, strict=True)]


def _classes(
    net: Network, centre: Tensor, label: Tensor, targets: TargetsOption, aims: Tensor | None
) -> Property:
    """Return the property that the class stays, or does not become the target."""
    if targets is None or aims is not None:
        return Robustness(label) if aims is None else Targeted(label, aims)
    Robustness(label).check(len(centre), net.outputs_for(centre))
    return Targeted(label, next_likely(net(centre), label))


def _resolve_property(
    net: Network, property: Property | Rule, regions: list[tuple[list[int], Family]], y: LabelsOption
) -> Property:
    """Return the property of all inputs in order. A rule is evaluated at the network's outputs for the
    inputs.
    """
    count = sum(len(members) for members, _ in regions)
    if isinstance(property, Rule):
        for _, region in regions:
            net.outputs_for(region.centre)
        said = {
            i: one for members, region in regions for i, one in zip(members, net(region.centre), strict=True)
        }
        rule = property.with_spread(net.output_spread)
        property = rule.around(torch.stack([said[i] for i in range(count)]), y)
    property.check(count, net.outputs_for(regions[0][1].centre))
    return batch.move(property, net.device)


def _each_frame(problem: Problem) -> Problem:
    """Return the problem with one row for each frame, or position of a sentence, of every input."""
    whole = problem.take(
        torch.arange(len(problem), device=problem.region.centre.device).repeat_interleave(
            problem.region.shape[0]
        )
    )
    count = problem.region.shape[0]
    places = torch.eye(count, dtype=torch.bool, device=problem.region.centre.device).repeat(len(problem), 1)
    region = whole.region.only(places)
    if region is None:
        raise BadInput("frames='each' needs a norm p >= 1, or substitutes for words.")
    keys = tuple(Key(key.index, place) for key in problem.keys for place in range(count))
    return replace(whole, region=region, keys=keys)
