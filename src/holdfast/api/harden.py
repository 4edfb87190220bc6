"""`hf.harden`: train a network for certified robustness, and measure whether more inputs are certified."""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor

from holdfast import time_limit
from holdfast.api.argument_names import explain_arguments
from holdfast.api.arguments import (
    DomainOption,
    ModelLike,
    StopOption,
    SubstitutesOption,
    as_network,
    check_choice,
    check_classes,
    check_inputs,
    check_lengths,
    check_norm,
    check_number,
    check_stop,
    check_whole,
    count_of,
    show,
    substitute_ids,
)
from holdfast.api.edits import Edits
from holdfast.api.methods import default_methods
from holdfast.api.perturbation import FramesOption, NormOption, Perturbation, SharesOption
from holdfast.api.progress import check_progress, epoch_display
from holdfast.api.radius import Inputs, LabelsOption, as_rows, radius_problems
from holdfast.edits import EnumerateEdits
from holdfast.errors import BadInput
from holdfast.hardening.evaluation import Outcome, RobustnessResult, certified_share
from holdfast.hardening.examples import Examples
from holdfast.hardening.folder import Folder
from holdfast.hardening.hardened_model import hardened_network, user_module
from holdfast.hardening.initialisation import begin_afresh
from holdfast.hardening.recipe import MEANS, Begin, Recipe, select_recipe
from holdfast.hardening.result import Hardened
from holdfast.hardening.training import (
    Epoch,
    HardeningSettings,
    check_layers,
    is_recurrent,
    prepare_training,
    train,
)
from holdfast.network import Network
from holdfast.network.callable_fingerprint import of_value
from holdfast.network.fingerprint import of_tensors
from holdfast.problem import Problem
from holdfast.property import Robustness
from holdfast.property.base import OneOutput
from holdfast.region import EditedTexts, Words
from holdfast.region.words import Substitutes
from holdfast.result import DONE, Record, Share
from holdfast.solver import Stop, solve

LEAST = 10  # Least number of inputs for training, and for validation.
LEAST_SECONDS = 0.01  # A budget that is used up becomes this many seconds: it must be positive.
MEASURED = 100  # Held-out inputs that are measured before and after training.
BEFORE, TRAINED = (
    0.12,
    0.85,
)  # Fractions of the time: for measuring the given network, and by which training has ended.

ONLY_CLASSES = (
    "harden trains classifiers. For a forecast hf.radius(property=hf.Within('10%')) bounds how far it "
    "stays in its band, and hf.worst "
    "its worst score; a single score can be hardened as two classes: give a module that returns (0, score)."
)

Held = float | tuple[Inputs, LabelsOption]
EpochsOption = Callable[[Epoch], None] | bool | None


@explain_arguments(
    "How far inputs may move is radius=.",
    **dict.fromkeys(
        ("optimizer", "learning_rate", "lr", "batch_size"),
        "The training chooses it; what can be set is in hf.hardening.Recipe, given as recipe=.",
    ),
)
def harden(
    net: ModelLike,
    x: Inputs | Iterable[Any],
    y: LabelsOption = None,
    *,
    radius: float | None = None,
    norm: NormOption = math.inf,
    domain: DomainOption = None,
    frames: FramesOption = None,
    shares: SharesOption = None,
    substitutes: SubstitutesOption = None,
    edits: Edits | None = None,
    lengths: Sequence[int] | None = None,
    recipe: str | Recipe = "auto",
    begin: Begin = "given",
    freeze: Sequence[str] = (),
    validation: Held = 0.15,
    test: tuple[Inputs, LabelsOption] | None = None,
    measured: int = MEASURED,
    epochs: int | None = None,
    stop: StopOption = None,
    seconds: float | None = None,
    seed: int = 0,
    folder: str | Path | None = None,
    progress: EpochsOption = None,
) -> Hardened:
    """Train a copy of the network for certified robustness, and measure it before and after.

    The given network is not changed.

    Args:
        net: a torch module, or a hf.Network made from one.
        x: the inputs, as for `hf.radius`; or, without y, an iterable of batches (x, y), such as a DataLoader.
        y: the class of each input, as a number or by its name.
        radius: the perturbation radius to train for, in the units of the domain. With substitutes none: every
            word may become any of its set, all at once. With edits none: their budgets.
        norm: 1, 2, math.inf (or "inf") or any p >= 1. Training bounds the box around the region. In the
            maximum norm and for words the box is the region itself; for another norm it is larger, and small
            boxes inside of it are bounded.
        domain: the lowest and highest value of an input, as in (0, 1). A hf.Network has its own.
        frames: which frames are perturbed, as for `hf.radius`.
        shares: by how much of the radius each frame or feature moves, as for `hf.radius`.
        substitutes: what words may become, as for `hf.radius`.
        edits: hf.Edits(...), as for `hf.radius`: train on the worst of several edited copies of each text.
        lengths: the lengths of padded inputs.
        recipe: "auto", "standard", "pgd", "intervals", "small boxes", "mixed", "crown-ibp", "edits", or a
            holdfast.hardening.Recipe. "auto" picks one, and the result says which.
        begin: "given": start from the weights as they are. "afresh": from new ones.
        freeze: names of layers whose weights are not trained; "embedding": the word vectors.
        validation: the share of x that is held back to choose the checkpoint, or inputs and labels for it.
        test: inputs and labels for the numbers before and after. Default: those of validation, and the result
            says so.
        measured: about how many of them are measured.
        epochs: how often all inputs are seen. Default: as the recipe says, or as often as `stop` allows.
        stop: hf.Stop(seconds=...) or a number of seconds for the whole call, measuring included. With a limit
            in seconds two runs need not end in the same network; without one, the same seed gives the same
            network on the same machine.
        seconds: the same as a number for `stop`.
        seed: decides every random number.
        folder: keeps what is needed to continue after an interruption: the same call continues. At the end it
            holds hardened.safetensors.
        progress: None: a bar in a terminal or notebook. False: nothing. A function: it is called after every
            epoch.

    Ctrl-C ends training and keeps the best network so far, and so does a loss that is NaN. Bounds from
    training are never reported: the numbers in `before` and `after` are proved by the engine at the given
    radius, and searched for by attacks.
    """
    check_whole("seed", seed)
    check_whole("measured", measured, at_least=1)
    if epochs is not None:
        check_whole("epochs", epochs, at_least=1)
    check_choice("begin", begin, get_args(Begin))
    check_progress(progress)
    check_lengths(lengths)
    if isinstance(freeze, str) or not all(isinstance(one, str) for one in freeze):
        raise BadInput("freeze: expected a list of names of layers, as in ['embedding'].")
    if not isinstance(recipe, str | Recipe):
        raise BadInput(
            f"recipe: expected the name of a recipe or a holdfast.hardening.Recipe, got {show(recipe)}."
        )
    if isinstance(recipe, str):
        check_choice("recipe", recipe, ("auto", *MEANS))
    if not isinstance(validation, tuple):
        check_number(
            "validation", validation, help="It is the share held back, as in 0.15, or (inputs, labels)."
        )
    moves, limit = (
        Perturbation(norm=check_norm(norm), frames=frames, shares=shares, edits=edits),
        check_stop(stop, seconds),
    )
    reach = _radius(radius, substitutes, edits)
    network = as_network(net, domain=domain, x=x)
    if y is not None:
        x = check_inputs(network, x)
        y = _class_numbers(network, y, count_of(x))
    sets = substitute_ids(network, substitutes)
    with epoch_display(progress, "harden", epochs) as report:
        return _harden(
            network,
            _Data(x, y, lengths, sets),
            replace(moves, substitutes=sets),
            reach,
            _Plan(recipe, begin, freeze, validation, test, measured, epochs, seed),
            limit,
            folder=folder,
            progress=report,
        )


@dataclass(frozen=True)
class _Plan:
    """How the network is trained and on what it is measured; each field is an argument of `harden`."""

    recipe: str | Recipe
    begin: Begin
    freeze: Sequence[str]
    validation: Held
    test: tuple[Inputs, LabelsOption] | None
    measured: int
    epochs: int | None
    seed: int


def _harden(
    net: Network,
    data: "_Data",
    asked: Perturbation,
    reach: float,
    plan: _Plan,
    stop: Stop | None,
    *,
    folder: str | Path | None,
    progress: Callable[[Epoch], None] | None,
) -> Hardened:
    """Train and measure, with every argument checked."""
    left, recipe, seed = _Time(stop), plan.recipe, plan.seed
    _trainable(net)
    if data.y is None:
        x, y = _of_loader(data.x)
        data = _Data(x, y, data.lengths, data.substitutes)
    training, held = _split(data, plan.validation, seed)
    problems = _problems(net, training, asked)
    judged = _problems(net, held, asked)
    test = None if plan.test is None else _Data(*plan.test, None, asked.substitutes)
    tested = judged if test is None else _problems(net, test, asked)
    _check(net, problems, reach)
    words = any(problem.region.embedded for problem in problems)
    recurrent = is_recurrent(net.module)
    boxed = all(p.region.embedded or p.region.boxed for p in problems)
    how = select_recipe(
        recipe,
        recurrent=recurrent,
        boxed=boxed,
        frames=max(p.region.shape[0] for p in problems),
        edited=asked.edits is not None,
    )
    if not isinstance(recipe, Recipe):
        how = replace(how, begin=plan.begin)
    if plan.epochs is not None or (left.limited and not isinstance(recipe, Recipe)):
        how = replace(how, epochs=plan.epochs)
    live = prepare_training(net, plan.freeze, words=words)
    if how.begin == "afresh":
        begin_afresh(live.module, seed)
    check_layers(live, problems, how, reach)
    kept = (
        None if folder is None else Folder(folder, _describe_request(net, how, reach, asked, seed, problems))
    )
    before = _standing(tested, reach, plan.measured, left.part(BEFORE), seed)
    found = train(
        live,
        problems,
        judged,
        HardeningSettings(how, reach, left.until(TRAINED), seed),
        progress=progress,
        keep=None if kept is None else kept.keep,
        known=None if kept is None else kept.load_progress(),
        certify=certified_share if asked.edits is None else _share_of_counted_edits,
    )
    live.load(found.state)
    made = hardened_network(net, live)
    anew = [_with_network(problem, made) for problem in tested]
    after = _standing(anew, reach, plan.measured, left.until(1.0), seed)
    result = Hardened(
        made,
        user_module(made),
        how,
        reach,
        found.history,
        before,
        after,
        "validation" if test is None else "test",
        found.ended,
        found.seconds,
    )
    if kept is not None and found.ended == "interrupted":
        kept.keep_best(result.module.state_dict())
    elif kept is not None:
        kept.finish(
            result.module.state_dict(),
            recipe=asdict(how),
            before=before.as_json(),
            after=after.as_json(),
            better=result.better,
            verdict=result.verdict,
            measured_on=result.measured_on,
            ended=found.ended,
            history=[asdict(epoch) for epoch in found.history],
        )
    return result


class _Data:
    """Inputs and labels, with the lengths and substitutes of each."""

    def __init__(
        self, x: Any, y: Any, lengths: Sequence[int] | None, substitutes: Substitutes | None
    ) -> None:
        self.x, self.y, self.lengths, self.substitutes = x, y, lengths, substitutes


def _problems(net: Network, data: _Data, asked: Perturbation) -> list[Problem]:
    if data.y is None:
        raise BadInput("labels are missing: harden needs the class of each input (y).")
    if _forecast(data.y):
        raise BadInput(f"{net.name}: y holds numbers that are no classes, as for a forecast. {ONLY_CLASSES}")
    try:
        moves = replace(asked, substitutes=data.substitutes)
        return radius_problems(net, data.x, data.y, moves, lengths=data.lengths)
    except OneOutput as error:
        raise BadInput(f"{net.name} has one output, a forecast or a single score. {ONLY_CLASSES}") from error


def _class_numbers(net: Network, y: LabelsOption, count: int) -> Any:
    """Return classes as numbers. What can be no classes, or not of these inputs, stays as it is and is
    refused later.
    """
    try:
        given = torch.as_tensor(y)
    except (TypeError, ValueError, RuntimeError):  # names
        return check_classes(net, y, count)
    whole = not given.is_floating_point() or bool((given == given.round()).all())
    return check_classes(net, y, count) if whole and tuple(given.shape) == (count,) else y


def _forecast(y: Any) -> bool:
    """Whether y holds real numbers, or several numbers for each input."""
    try:
        given = torch.as_tensor(y)
    except (TypeError, ValueError, RuntimeError):  # such as names
        return False
    return given.is_floating_point() or given.dim() > 1


def _trainable(net: Network) -> None:
    if net.source != "torch" or not net.differentiable:
        raise BadInput(
            f"{net.name} comes from {'a black box' if not net.differentiable else net.source}; harden "
            "trains torch modules: give it "
            f"Network.from_torch(module)."
        )


def _of_loader(x: Any) -> tuple[Inputs, LabelsOption]:
    """Concatenate the batches (x, y) of a DataLoader."""
    if isinstance(x, Tensor) or not isinstance(x, Iterable) or isinstance(x, str | Mapping):
        raise BadInput(
            "labels are missing: give y, the class of each input, or a DataLoader of pairs (x, y)."
        )
    inputs: list[Tensor] = []
    labels: list[Tensor] = []
    for batch in x:
        if (
            not isinstance(batch, tuple | list)
            or len(batch) != 2
            or not all(isinstance(part, Tensor) for part in batch)
        ):
            raise BadInput(
                "labels are missing: a DataLoader must give pairs (x, y) of tensors; or give x and y as "
                "two arguments."
            )
        inputs += list(batch[0])
        labels.append(batch[1].reshape(-1))
    if not inputs:
        raise BadInput("the data are empty: there is no input to train on.")
    same = all(row.shape == inputs[0].shape for row in inputs)
    return torch.stack(inputs) if same else inputs, torch.cat(labels)


def _radius(radius: float | None, substitutes: SubstitutesOption, edits: Edits | None) -> float:
    """The radius to train for; with edits their largest number in all."""
    if edits is not None:
        if radius is not None:
            raise BadInput(
                "with edits there is no radius: hf.Edits(..., total=2) says how many edits to train for. Leave "
                "radius out."
            )
        return float(edits.total or sum(edits.budgets))
    if substitutes is not None:
        if radius is not None:
            raise BadInput(
                "with substitutes there is no radius: every word may become any of its set, all at once. "
                "Leave radius out."
            )
        return 1.0
    if radius is None or not isinstance(radius, int | float) or not 0 < float(radius) < math.inf:
        raise BadInput(
            f"radius {radius}: say how far inputs may be perturbed in training, a number above 0 in the "
            "units of the domain, as in radius=0.02."
        )
    return float(radius)


def _split(data: _Data, validation: Held, seed: int) -> tuple[_Data, _Data]:
    """Split the data into the training part and the part that is held back."""
    x, y, lengths, substitutes = data.x, data.y, data.lengths, data.substitutes
    if y is None:
        raise BadInput("labels are missing: harden needs the class of each input (y).")
    if isinstance(validation, tuple):
        return _Data(x, y, lengths, substitutes), _Data(*validation, None, substitutes)
    texts = isinstance(x, list | tuple) and bool(x) and isinstance(x[0], str)
    rows: Sequence[Any] = list(x) if texts else as_rows(x, lengths)
    if len(y) != len(rows):
        raise BadInput(f"{len(rows)} inputs, but {len(y)} labels: give one for each.")
    if not 0 < float(validation) < 1:
        raise BadInput(
            f"validation {validation}: give the fraction of the inputs to hold back, between 0 and 1, or "
            "(inputs, labels)."
        )
    count = round(len(rows) * float(validation))
    if count < LEAST or len(rows) - count < LEAST:
        raise BadInput(
            f"{len(rows)} inputs are too few: {count} would be held back to choose the checkpoint and "
            f"{len(rows) - count} used for "
            f"training; both need {LEAST}. Give more inputs, a larger fraction, or separate inputs for "
            "validation."
        )
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed)).tolist()
    listed = substitutes if isinstance(substitutes, Mapping) or substitutes is None else list(substitutes)

    def some(places: Sequence[int]) -> _Data:
        sets = [listed[k] for k in places] if isinstance(listed, list) else listed
        own = [y[k] for k in places]
        labels = torch.stack(own) if isinstance(own[0], Tensor) else own
        return _Data([rows[k] for k in places], labels, None, sets)

    return some(sorted(order[count:])), some(sorted(order[:count]))


def _check(net: Network, problems: Sequence[Problem], radius: float) -> None:
    """Raise BadInput for a radius larger than the data's range, and for data of a single class."""
    labels = torch.cat([_labels(problem) for problem in problems])
    if len(labels.unique()) < 2:
        raise BadInput(
            f"all labels are {int(labels[0])}, so a constant network would be robust everywhere. Give "
            "inputs of several classes."
        )
    for problem in problems:
        region = problem.region.as_norm_family()
        if region is not None and len(region) > 1:
            width = region.centre.double().amax(0) - region.centre.double().amin(0)
            furthest = float(region.length(width.expand_as(region.centre)).max())
            if radius >= furthest > 0:
                raise BadInput(
                    f"radius {radius:g} is beyond the data's range: no two inputs are further apart than "
                    f"{furthest:g} in this norm, so "
                    f"no network can be robust at this radius. Give a smaller one."
                )


def _labels(problem: Problem) -> Tensor:
    assert isinstance(problem.property, Robustness)
    return problem.property.label


class _Time:
    """The time budget of the call, where there is one."""

    def __init__(self, stop: Stop | None) -> None:
        if stop is not None and (stop.queries is not None or stop.gap or stop.each is not None):
            raise BadInput("harden stops after seconds, as in hf.Stop(seconds=60), or after epochs.")
        self._began, self._seconds = time.monotonic(), None if stop is None else stop.seconds
        if self._seconds is not None and not self._seconds > 0:
            raise BadInput(f"seconds {self._seconds}: training needs some, so give more than 0.")

    @property
    def limited(self) -> bool:
        return self._seconds is not None

    def part(self, share: float) -> float | None:
        """Return this fraction of all seconds, counted from now, so that the seconds for loading torch's
        tracer do not count.
        """
        return None if self._seconds is None else self._seconds * share

    def until(self, share: float) -> float | None:
        """Return the seconds left until this fraction of the budget has passed."""
        return (
            None
            if self._seconds is None
            else max(0.01, self._seconds * share - (time.monotonic() - self._began))
        )


def _with_network(problem: Problem, net: Network) -> Problem:
    """Return the same problem for the hardened network."""
    region = problem.region
    if isinstance(region, EditedTexts):
        assert net.vectors is not None
        return replace(problem, network=net, region=region.with_vectors(net.vectors))
    if isinstance(region, Words):
        assert net.vectors is not None
        places = region.choices.tolist()
        return replace(problem, network=net, region=Words.around(region.tokens, places, net.vectors, 0))
    return replace(problem, network=net)


def _share_of_counted_edits(net: Network, parts: Sequence[Examples], limit: int) -> Share:
    """The share of the first texts, about `limit`, that keep their class under all edits by exact enumeration."""
    count = sum(map(len, parts))
    problems = []
    for part in parts:
        rows = torch.arange(
            min(len(part), max(1, round(limit * len(part) / count))), device=part.label.device
        )
        problems.append(replace(part.evaluation_problem(net, rows), goal="radius"))
    left = time_limit.deadline() - time.monotonic()
    stop = Stop(seconds=max(left, LEAST_SECONDS) if math.isfinite(left) else None)
    records = solve(problems, [EnumerateEdits()], stop)
    outcomes = [_outcome(record, counted=True) for record in records]
    measured = len(outcomes) - outcomes.count("not measured")
    return Share(outcomes.count("proved"), measured, len(outcomes))


def _standing(
    problems: Sequence[Problem], radius: float, limit: int, seconds: float | None, seed: int
) -> RobustnessResult:
    """Measure a network by proofs and attacks on about `limit` inputs: at this radius, or for words with all
    of them free.
    """
    count = sum(map(len, problems))
    asked, right, total = [], 0, 0
    for problem in problems:
        rows = torch.arange(
            min(len(problem), max(1, round(limit * len(problem) / count))),
            device=problem.region.centre.device,
        )
        one = problem.take(rows)
        words = one.region.embedded
        asked.append(one if words else replace(one, region=one.family.at(radius), goal="worst"))
        score = one.property.score(one.network(one.region.centre))
        right, total = right + int((score > 0).sum()), total + len(one)
    words = any(problem.region.embedded for problem in asked)
    net, goal, what = asked[0].network, asked[0].goal, "words" if words else "norms"
    what = "edits" if any(isinstance(problem.region, EditedTexts) for problem in asked) else what
    searches = [method.name for method in default_methods(net, goal, "search", what=what)]  # type: ignore[arg-type]
    methods = default_methods(net, goal, "fast", what=what)  # type: ignore[arg-type]
    methods.sort(
        key=lambda method: method.name in searches
    )  # Proofs first: they are reported, and attacks take the longest.
    outcomes = [
        _outcome(record, words) for record in solve(asked, methods, Stop(seconds, sign=not words), seed=seed)
    ]
    commonest = int(torch.cat([_labels(problem) for problem in asked]).bincount().max())
    return RobustnessResult(right / total, tuple(outcomes), commonest / total)


def _outcome(record: Record, counted: bool) -> Outcome:
    """Classify a record: for words and edits by their number (infinite: robust), else by the worst score."""
    lower, upper = record.bracket.lower, record.bracket.upper
    if (math.isinf(lower.value) and lower.value > 0) if counted else lower.value > 0:
        return "proved"
    if math.isfinite(upper.value) if counted else upper.value <= 0:
        return "broken"
    if record.status in DONE:
        return "neither"
    return "not proved" if lower.known else "not measured"


def _describe_request(
    net: Network,
    recipe: Recipe,
    radius: float,
    asked: Perturbation,
    seed: int,
    problems: Sequence[Problem],
) -> dict[str, Any]:
    """Return what must be equal for a run to be resumed."""
    held = {f"x{k}": problem.region.centre for k, problem in enumerate(problems)}
    held |= {f"y{k}": label for k, label in enumerate(map(_labels, problems))}
    return {
        "network": net.fingerprint,
        "data": of_tensors(held),
        "radius": radius,
        "recipe": asdict(recipe),
        "seed": seed,
        "region": of_value([str(asked.norm), str(asked.frames), str(asked.shares), str(asked.edits)]),
    }
