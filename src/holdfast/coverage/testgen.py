"""Coverage-driven test generation: inputs near given ones that make a network do what none of those did.

As in DeepTRE: take the uncovered items nearest to the seeds, change as few units as it takes, count everything that the new inputs
cover, go on. (Its equation 15 is printed the wrong way round: it is the new input that must activate the neuron.)
"""

# ruff: noqa: PT028 - testgen is no test, whatever its name

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from holdfast.coverage.activate import Reach, Units
from holdfast.coverage.criteria import Criterion, check, items
from holdfast.coverage.neurons import Neurons, Per
from holdfast.coverage.pursuit import Search, Test, needed
from holdfast.errors import BadInput
from holdfast.network import Network
from holdfast.property import Robustness
from holdfast.region import Sparse
from holdfast.region.base import check_centre
from holdfast.region.units import Unit, unit_axes
from holdfast.solver import Stop

Status = Literal["finished", "stopped", "interrupted"]


@dataclass(frozen=True)
class Coverage:
    """The items of a layer, or of all layers: how many there are, and how many are covered by the seeds and by seeds and tests."""

    layer: str
    neurons: int
    items: int
    before: int
    after: int


@dataclass(frozen=True, eq=False)
class Tests:
    """New inputs, each covering something that no seed covers.

    An item is a layer's place among `layers`, the number of a neuron in it, and a section: 0 for criterion neuron, the section's number
    for multisection, 0 (below) or 1 (above) for boundary.
    """

    __test__: ClassVar = False  # pytest takes Test... for its own

    x: Tensor  # (tests, *shape)
    seed: Tensor  # (tests,): the place of the input that each was made from
    changed: Tensor  # (tests,): units in which it differs from that
    target: Tensor  # (tests, 3): the item it was made for
    covers: Tensor  # (pairs, 4): a test, and an item that it covers and no seed does
    seed_class: Tensor  # (tests,): what the network says of the seed
    new_class: Tensor  # (tests,): and of the test
    adversarial: Tensor  # (tests,) bool: the seed is classified right (without labels: as it is), and the test otherwise
    total: Coverage
    layers: tuple[Coverage, ...]
    criterion: Criterion
    queries: int
    seconds: float
    status: Status
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.x)

    @property
    def before(self) -> float:
        """The share of all items that the seeds cover."""
        return self.total.before / max(1, self.total.items)

    @property
    def after(self) -> float:
        """The share that seeds and tests cover. The rest was not reached; that it cannot be is not proved."""
        return self.total.after / max(1, self.total.items)


@dataclass(frozen=True)
class Progress:
    """How far a search has come."""

    covered: int
    items: int
    tests: int
    seconds: float


def testgen(
    net: Network,
    x: Tensor,
    criterion: Criterion = "neuron",
    *,
    y: Tensor | Sequence[int] | None = None,
    train: Tensor | None = None,
    layers: Sequence[str] | None = None,
    per: Per = "element",
    threshold: float = 0.0,
    sections: int = 10,
    unit: Unit | None = None,
    changes: int | None = None,
    tests: int | None = None,
    tries: int = 3,
    beam: int = 16,
    batch: int = 32,
    stop: Stop | None = None,
    seed: int = 0,
    progress: Callable[[Progress], None] | None = None,
) -> Tests:
    """New inputs, each a few units away from one of x, that together cover as much of the network as is reached.

    x          (batch, *shape), the seeds.
    criterion  "neuron": every neuron's value above `threshold`. "multisection": in each of `sections` equal parts of the range it has on
               `train`. "boundary": below that range, and above it. The ranges are those of x where no training data are given.
    y          the classes of x. A test is adversarial if its seed is classified right and it is not; without y, if the class changes.
    layers     names of layers (`holdfast inspect` shows them); default: all hidden activation functions and recurrent layers.
    per        "element": every number of a feature map, or of a state at each step, is a neuron. "channel": their mean over all places.
    unit       what counts as one change: a "pixel" (all channels of it), a "frame", a "number"; default: pixels for images, else numbers.
    changes    at most so many changed units in a test. tests: at most so many tests.
    tries      seeds tried for an item, the nearest first. beam: units tried alone in each step. batch: items worked on at once.
    stop       seconds for the whole call; queries for each seed. What was tried by then and covers something goes in as it is, so nearer
               tests may exist. Ctrl-C ends the search too, and what was found is returned.

    What is not reached stays uncovered and is counted. Whether a test still shows what its seed showed is for people to say, and the
    easier the fewer units changed.
    """
    began, asked = time.monotonic(), net.queries
    stop = stop or Stop()
    check_options(criterion, per, threshold, sections, stop, changes=changes, tests=tests, tries=tries, beam=beam, batch=batch)
    seeds, labels = _seeds(net, x, y)
    units = Units.of(_region(net, seeds, unit))
    data = seeds if train is None else _training(net, train, seeds)
    neurons = Neurons.of(net, seeds, layers, per)
    wanted, notes = items(neurons, data, criterion, threshold=threshold, sections=sections)

    def spent() -> bool:
        late = stop.seconds is not None and time.monotonic() - began >= stop.seconds
        return late or (stop.queries is not None and net.queries - asked >= stop.queries * len(seeds))

    reach = Reach(neurons, units, beam, min(changes or units.count, units.count), torch.Generator().manual_seed(seed), spent)
    search = Search.begin(reach, wanted, seeds, tries, hurried=stop.seconds is not None or stop.queries is not None)
    interrupted = False
    try:
        while search.waiting() and not spent() and (tests is None or len(search.found) < tests):
            search.step(batch, tests)
            if progress:
                progress(Progress(search.covered, search.items, len(search.found), time.monotonic() - began))
        search.finish(tests)
    except KeyboardInterrupt:
        interrupted = True
    answer = _tests(search, net, labels, needed(search.found, len(search.reached)))
    return replace(
        answer,
        status="interrupted" if interrupted else "stopped" if search.waiting() else "finished",
        notes=(*neurons.notes, *notes),
        queries=net.queries - asked,
        seconds=time.monotonic() - began,
    )


testgen.__test__ = False  # type: ignore[attr-defined]  # for pytest, as above


# ---- what was given


def check_options(criterion: str, per: str, threshold: float, sections: int, stop: Stop, **counts: int | None) -> None:
    """Raise where an option has no meaning, before anything is asked."""
    check(criterion, threshold, sections)
    if per not in get_args(Per):
        raise BadInput(f"per {per!r} is unknown; there are {', '.join(get_args(Per))}.")
    for name, value in counts.items():
        if value is not None and value < 1:
            raise BadInput(f"{name} must be at least 1, got {value}.")
    if stop.gap:
        raise BadInput("stop: tests have no gap to close; give seconds or queries.")


def _seeds(net: Network, x: Tensor, y: Tensor | Sequence[int] | None) -> tuple[Tensor, Tensor | None]:
    """The seeds and their classes where the network is, checked."""
    seeds = _numbers(net, x, "x")
    outputs = net.outputs_for(seeds)
    if y is None or outputs < 2:  # a single output has no classes
        return seeds, None
    labels = torch.as_tensor(y, device=net.device)
    whole = labels.dtype in (torch.uint8, torch.int8, torch.int16, torch.int32)
    labels = labels.long() if whole else labels
    Robustness(labels).check(len(seeds), outputs)
    return seeds, labels


def _numbers(net: Network, x: Tensor, what: str) -> Tensor:
    try:
        given = torch.as_tensor(x)
    except (TypeError, ValueError, RuntimeError) as error:
        raise BadInput(f"{what} must be one tensor (batch, *shape): all inputs need the same shape ({error}).") from error
    if not given.is_floating_point():
        kind = "token ids" if net.vectors is not None else "integers"
        raise BadInput(f"{what} holds {kind}, and tests are made by changing numbers: give floating-point inputs in the domain's units.")
    numbers = given.to(net.device, net.dtype)
    try:
        check_centre(numbers, net.domain)
    except BadInput as error:
        raise BadInput(f"{what}: {error}") from error
    return numbers


def _region(net: Network, seeds: Tensor, unit: Unit | None) -> Sparse:
    """All that may be made of the seeds."""
    if not net.domain.bounded:
        raise BadInput(f"tests are made by moving units to the ends of the domain, and {net.name} has none: state it (domain=, --domain).")
    return Sparse(seeds, torch.zeros(len(seeds)), net.domain, axes=unit_axes(seeds.shape[1:], unit))


def _training(net: Network, train: Tensor, seeds: Tensor) -> Tensor:
    data = _numbers(net, train, "train")
    if data.shape[1:] != seeds.shape[1:]:
        raise BadInput(f"train: inputs of shape {tuple(data.shape[1:])}, but those of x have shape {tuple(seeds.shape[1:])}.")
    return data


# ---- what is told


def _tests(search: Search, net: Network, labels: Tensor | None, found: list[Test]) -> Tests:
    """The tests with everything that belongs to them; the network itself says their classes."""
    seeds = search.seeds
    x = torch.stack([test.x for test in found]) if found else seeds[:0]
    start = torch.tensor([test.seed for test in found], dtype=torch.int64, device=seeds.device)
    said = net(seeds).argmax(-1)
    new = net(x).argmax(-1) if found else start
    right = said if labels is None else labels
    layers = _coverage(search, found)
    return Tests(
        x=x.cpu(),
        seed=start.cpu(),
        changed=search.reach.units.changed(x, seeds[start]).sum(1).cpu(),
        target=_named(search, [torch.tensor([test.item]) for test in found])[:, 1:],
        covers=_named(search, [test.covers for test in found]),
        seed_class=said[start].cpu(),
        new_class=new.cpu(),
        adversarial=((said == right)[start] & (new != right[start])).cpu(),
        total=Coverage("all", *(sum(getattr(layer, what) for layer in layers) for what in ("neurons", "items", "before", "after"))),
        layers=layers,
        criterion=search.wanted.criterion,
        queries=0,
        seconds=0.0,
        status="finished",
    )


def _named(search: Search, open_items: list[Tensor]) -> Tensor:
    """Open items for each test -> (pairs, 4): the test, and the item's layer, neuron in that layer and kind."""
    sizes = torch.tensor([len(some) for some in open_items], dtype=torch.int64)
    item = torch.cat([torch.empty(0, dtype=torch.int64), *(some.cpu() for some in open_items)])
    neuron, kind = search.neuron.cpu()[item], search.kind.cpu()[item]
    ends = torch.tensor([0, *(layer.neurons for layer in search.reach.neurons.layers)]).cumsum(0)
    layer = torch.searchsorted(ends, neuron, right=True) - 1
    return torch.stack([torch.arange(len(sizes)).repeat_interleave(sizes), layer, neuron - ends[layer], kind], dim=1)


def _coverage(search: Search, found: list[Test]) -> tuple[Coverage, ...]:
    """Layer by layer."""
    after, layers = search.before.clone(), search.reach.neurons.layers
    for test in found:
        after[search.neuron[test.covers], search.kind[test.covers]] = True
    parts = torch.stack([search.wanted.exist, search.before, after]).sum(-1).split([layer.neurons for layer in layers], dim=1)
    return tuple(Coverage(layer.name, layer.neurons, *part.sum(1).tolist()) for layer, part in zip(layers, parts, strict=True))
