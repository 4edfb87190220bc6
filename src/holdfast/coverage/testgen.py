"""Coverage-driven test generation: inputs near given ones that cover neurons' intervals which no given input
covers.

As in DeepTRE (Ruan et al. 2019): take the uncovered items nearest to the seeds, change as few units as
necessary, count everything that the new inputs cover, and repeat. (Equation 15 of the paper is printed the
wrong way round: it is the new input that must activate the neuron.)
"""

# ruff: noqa: PT028 - testgen is no test, whatever its name

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from holdfast import memory_budget
from holdfast.coverage.activate import Units
from holdfast.coverage.criteria import CoverageGoal, Criterion, Items, items
from holdfast.coverage.neurons import Neurons, Per
from holdfast.coverage.pursuit import PROVENANCE_KEY, Pursuit
from holdfast.coverage.question import NearSeeds, OutsideInterval, Seeds, UncoveredItems
from holdfast.errors import BadInput
from holdfast.network import Network
from holdfast.problem import Problem
from holdfast.property import Robustness
from holdfast.region import Sparse
from holdfast.region.base import check_centre
from holdfast.region.units import Unit, unit_axes
from holdfast.result import DONE, Key, Record
from holdfast.solver import Progress, Stop, solve

Status = Literal["finished", "stopped", "interrupted"]
# Largest number of values in the inputs of the items of one block (chosen by hand; 128 MiB in float32).
BLOCK_NUMBERS = 2**25
# Number of tensors of that size that are alive at once: the inputs, the tests offered for them, and those of
# their replay (chosen by hand).
LIVE_TENSORS = 8


@dataclass(frozen=True)
class Coverage:
    """The items of a layer, or of all layers: their number, and how many the seeds cover, and seeds and tests
    together.
    """

    layer: str
    neurons: int
    items: int
    before: int
    after: int


@dataclass(frozen=True, eq=False)
class Tests:
    """New inputs, each of which covers an item that no seed covers.

    An item is the index of a layer in `layers`, the index of a neuron in it, and a section: 0 for criterion
    neuron, the section's index for multisection, 0 (below) or 1 (above) for boundary.
    """

    __test__: ClassVar = False  # Without this pytest would collect the class as a test.

    x: Tensor  # (tests, *shape)
    seed: Tensor  # (tests,): index of the input that each test was made from
    changed: Tensor  # (tests,): number of units in which it differs from that input
    target: Tensor  # (tests, 3): the item it was made for
    covers: Tensor  # (pairs, 4): a test, and an item that it covers and no seed covers
    seed_class: Tensor  # (tests,): the network's class of the seed
    new_class: Tensor  # (tests,): the network's class of the test
    # (tests,) bool: the seed is classified correctly (without labels: always), and the test is not
    adversarial: Tensor
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
        """Share of all items that the seeds cover."""
        return self.total.before / max(1, self.total.items)

    @property
    def after(self) -> float:
        """Share of all items that seeds and tests cover. The remaining items were not reached; it is not
        proved that they cannot be.
        """
        return self.total.after / max(1, self.total.items)


@dataclass(frozen=True, eq=False)
class Suite:
    """The input of test generation: the items of a criterion, the items that the seeds cover, and the problem
    of covering the others.
    """

    net: Network
    neurons: Neurons
    wanted: Items
    seeds: Tensor
    labels: Tensor | None
    before: Tensor  # (neurons, kinds) bool: covered by the seeds
    neuron: Tensor  # (open,): the neurons of the items that are not covered, in their order
    kind: Tensor  # (open,)
    order: Tensor  # (open,): the nearest to the seeds first
    nearest: Tensor  # (open, tries): the seeds whose neuron comes nearest
    unit: Unit | None
    units: Units
    notes: tuple[str, ...]
    began: float
    asked: int  # queries of the network before

    def __len__(self) -> int:
        return len(self.neuron)

    @property
    def block(self) -> int:
        """Number of items in one block: each brings an input of its own, so memory limits them."""
        return max(
            1,
            memory_budget.elements_per_tensor(self.seeds.device, BLOCK_NUMBERS, LIVE_TENSORS)
            // max(1, self.seeds[0].numel()),
        )

    @property
    def problems(self) -> list[Problem]:
        """The problem of all items if they fit into one block; else empty: they are searched block by
        block.
        """
        return [self.problem(self.order)] if 0 < len(self) <= self.block else []

    def problem(self, chosen: Tensor) -> Problem:
        """Return the problem of the items `chosen`, given as indices into the open items."""
        at, which, first = self.neuron[chosen], self.kind[chosen], self.nearest[chosen]
        axes = unit_axes(self.seeds.shape[1:], self.unit)
        region = NearSeeds(
            self.seeds[first[:, 0]],
            torch.zeros(len(at)),
            self.net.domain,
            axes,
            seeds=Seeds(self.seeds),
            nearest=first,
        )
        lower, upper = (end[at, which].double() for end in self.wanted.within(1))
        keys = tuple(Key(place) for place in chosen.tolist())
        outside = OutsideInterval(at, lower, upper, self.wanted.margin[at, which].double())
        return UncoveredItems(self.neurons.net, region, outside, "radius", keys, neurons=self.neurons)

    def waiting(self, records: Iterable[Record]) -> Tensor:
        """Return the items without a final record that no witness of a record covers, the nearest to the
        seeds first.
        """
        left = torch.ones(len(self), dtype=torch.bool)
        witnesses: dict[bytes, Tensor] = {}
        for record in records:
            left[record.key.index] &= record.status not in DONE
            witness = record.bracket.upper.evidence.witness
            if witness is not None:
                witnesses[witness.numpy().tobytes()] = witness.to(self.seeds)
        for covers in self._covers(list(witnesses.values())):
            left[covers] = False
        order = self.order.cpu()
        return order[left[order]].to(self.order.device)

    def names(self) -> list[str]:
        """Return a readable description of every open item."""
        kinds = {"neuron": ["fires"], "boundary": ["below its range", "above its range"]}
        _, layer, neuron, kind = self._locate_items([torch.arange(len(self))]).T.tolist()
        descriptions = kinds.get(self.wanted.criterion) or [
            f"in section {k}" for k in range(self.wanted.lower.shape[1])
        ]
        return [
            f"{self.neurons.layers[at].name}, neuron {n}: {descriptions[k]}"
            for at, n, k in zip(layer, neuron, kind, strict=True)
        ]

    def tests(self, records: Sequence[Record], made: Mapping[Key, Tensor], most: int | None = None) -> Tests:
        """Return the tests that the records show, with all their properties; their classes are those of the
        network itself.

        Args:
            made: extras of the records: what each test was made from and for.
        """
        found = self._minimise_suite(self._distinct(records, made))[:most]
        x = torch.stack([test.x for test in found]).to(self.seeds) if found else self.seeds[:0]
        start = torch.tensor([test.seed for test in found], dtype=torch.int64, device=self.seeds.device)
        seed_classes = self.net(self.seeds).argmax(-1)
        new = self.net(x).argmax(-1) if found else start
        right = seed_classes if self.labels is None else self.labels
        layers = self._coverage(found)
        total = Coverage(
            "all",
            *(
                sum(getattr(layer, what) for layer in layers)
                for what in ("neurons", "items", "before", "after")
            ),
        )
        enough = most is not None and len(found) >= most and total.after < total.items
        asked = {record.key.index for record in records}.union(*(set(test.covers.tolist()) for test in found))
        ends = {record.status for record in records} | ({"stopped"} if len(asked) < len(self) else set())
        status: Status = (
            "interrupted"
            if "interrupted" in ends
            else "stopped"
            if "stopped" in ends or enough
            else "finished"
        )
        return Tests(
            x=x.cpu(),
            seed=start.cpu(),
            changed=self.units.changed_units(x, self.seeds[start]).sum(1).cpu(),
            target=self._locate_items([torch.tensor([test.item]) for test in found])[:, 1:],
            covers=self._locate_items([test.covers for test in found]),
            seed_class=seed_classes[start].cpu(),
            new_class=new.cpu(),
            adversarial=((seed_classes == right)[start] & (new != right[start])).cpu(),
            total=total,
            layers=layers,
            criterion=self.wanted.criterion,
            queries=self.net.queries
            - self.asked
            + (0 if self.neurons.net is self.net else self.neurons.net.queries),
            seconds=time.monotonic() - self.began,
            status=status,
            notes=self.notes,
        )

    def _distinct(self, records: Sequence[Record], made: Mapping[Key, Tensor]) -> "list[_Test]":
        """Return each distinct witness once, those first that were made for the nearest items."""
        shown = {r.key.index: r.bracket.upper.evidence.witness for r in records}
        rank = self.order.argsort().tolist()
        items: dict[bytes, list[int]] = {}
        for item in sorted((i for i, witness in shown.items() if witness is not None), key=rank.__getitem__):
            witness = shown[item]
            assert witness is not None
            items.setdefault(witness.numpy().tobytes(), []).append(item)
        tests = []
        for group in items.values():
            x = shown[group[0]]
            assert x is not None
            known = made.get(Key(group[0]))
            seed, item = (int(part) for part in known.tolist()) if known is not None else (-1, group[0])
            changed = self.units.changed_units(x.to(self.seeds).expand_as(self.seeds), self.seeds).sum(1)
            nearest = seed if seed >= 0 and bool(changed[seed] == changed.min()) else int(changed.argmin())
            tests.append(_Test(x, nearest, item if item in group else group[0]))
        tests.sort(key=lambda test: rank[test.item])
        return [
            replace(test, covers=covers)
            for test, covers in zip(tests, self._covers([test.x for test in tests]), strict=True)
        ]

    def _covers(self, x: list[Tensor]) -> list[Tensor]:
        """Return for each input the open items that it certainly covers."""
        place = torch.full_like(self.before, -1, dtype=torch.int64)
        place[self.neuron, self.kind] = torch.arange(len(self), device=place.device)
        found = []
        for values, _ in self.neurons.read_values(torch.stack(x)) if x else ():
            row, neuron, kind = self.wanted.certainly_inside(values).unbind(1)
            pairs = torch.stack([row, place[neuron, kind]], 1).cpu()
            pairs = pairs[pairs[:, 1] >= 0]
            item = pairs[(pairs[:, 0] * len(self) + pairs[:, 1]).argsort(), 1]
            found += item.split(pairs[:, 0].bincount(minlength=len(values)).tolist())
        return found

    def _minimise_suite(self, tests: "list[_Test]") -> "list[_Test]":
        """Drop tests whose items are all covered by other tests; tests that cover fewer items go first."""
        times = torch.bincount(
            torch.cat([torch.empty(0, dtype=torch.int64), *(test.covers for test in tests)]),
            minlength=len(self),
        )
        kept = set(range(len(tests)))
        for place in sorted(kept, key=lambda p: len(tests[p].covers)):
            covers = tests[place].covers
            if bool((times[covers] > 1).all()):
                times[covers] -= 1
                kept.remove(place)
        return [tests[place] for place in sorted(kept)]

    def _locate_items(self, open_items: list[Tensor]) -> Tensor:
        """Map open items of each test to (pairs, 4): the test, and the item's layer, neuron in that layer and
        kind.
        """
        sizes = torch.tensor([len(some) for some in open_items], dtype=torch.int64)
        item = torch.cat([torch.empty(0, dtype=torch.int64), *open_items])
        neuron, kind = self.neuron.cpu()[item], self.kind.cpu()[item]
        ends = torch.tensor([0, *(layer.neurons for layer in self.neurons.layers)]).cumsum(0)
        layer = torch.searchsorted(ends, neuron, right=True) - 1
        return torch.stack(
            [torch.arange(len(sizes)).repeat_interleave(sizes), layer, neuron - ends[layer], kind], dim=1
        )

    def _coverage(self, found: "list[_Test]") -> tuple[Coverage, ...]:
        """Return the coverage of each layer."""
        after, layers = self.before.clone(), self.neurons.layers
        for test in found:
            after[self.neuron[test.covers], self.kind[test.covers]] = True
        parts = (
            torch.stack([self.wanted.exist, self.before, after])
            .sum(-1)
            .split([layer.neurons for layer in layers], dim=1)
        )
        return tuple(
            Coverage(layer.name, layer.neurons, *part.sum(1).tolist())
            for layer, part in zip(layers, parts, strict=True)
        )


@dataclass(frozen=True, eq=False)
class _Test:
    """One test; items are indices into the open items."""

    x: Tensor
    seed: int
    item: int
    covers: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))


def suite_of(
    net: Network,
    x: Tensor,
    goal: CoverageGoal,
    *,
    y: Tensor | Sequence[int] | None = None,
    train: Tensor | None = None,
    unit: Unit | None = None,
    tries: int = 3,
) -> Suite:
    """Read and check the input of test generation. Options as in `testgen`."""
    began, asked = time.monotonic(), net.queries
    if tries < 1:
        raise BadInput(f"tries must be at least 1, got {tries}.")
    seeds, labels = _seeds(net, x, y)
    units = Units.of(_region(net, seeds, unit))
    data = seeds if train is None else _training(net, train, seeds)
    neurons = Neurons.of(net, seeds, goal.layers, goal.per)
    wanted, notes = items(neurons, data, goal)
    before = torch.stack([wanted.covers(values) for values, _ in neurons.read_values(seeds)]).any(0)
    neuron, kind = (wanted.exist & ~before).nonzero(as_tuple=True)
    nearest, gap = _nearest(neurons, wanted, seeds, neuron, kind, min(tries, len(seeds)))
    order = gap.argsort(stable=True)
    descriptions = (*neurons.notes, *notes)
    return Suite(
        net,
        neurons,
        wanted,
        seeds,
        labels,
        before,
        neuron,
        kind,
        order,
        nearest.T,
        unit,
        units,
        descriptions,
        began,
        asked,
    )


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
    """Generate inputs, each a few units away from one of x, that together cover as much of the network as the
    search reaches.

    Args:
        x: (batch, *shape), the seeds.
        criterion: "neuron": every neuron's value above `threshold`. "multisection": in each of `sections`
            equal parts of its range on `train`. "boundary": below that range, and above it. Without training
            data the ranges are those on x.
        y: the classes of x. A test is adversarial if its seed is classified correctly and the test is not;
            without y, if the class changes.
        layers: names of layers (`holdfast inspect` shows them). Default: all hidden activation functions and
            recurrent layers.
        per: "element": every number of a feature map, or of a state at each step, is a neuron. "channel":
            their mean over all positions.
        unit: what counts as one change: a "pixel" (all of its channels), a "frame", a "number". Default:
            pixels for images, else numbers.
        changes: largest number of changed units in a test. Default: no limit.
        tests: largest number of tests. Default: no limit.
        tries: seeds tried for an item, the nearest first.
        beam: units tried alone in each step.
        batch: items processed in one batch.
        stop: seconds for the whole call; queries for each item that x does not cover. Tests found by then are
            returned without further minimisation, so nearer tests may exist. Ctrl-C ends the search too, and
            the tests found are returned.

    Items that are not reached stay uncovered and are counted. Whether a test still shows the same thing as
    its seed must be judged by people, which is the easier the fewer units changed.
    """
    stop = stop or Stop()
    method = pursuit(stop, changes=changes, tests=tests, beam=beam, block=batch)
    goal = CoverageGoal(criterion, layers, per, threshold, sections)
    suite = suite_of(net, x, goal, y=y, train=train, unit=unit, tries=tries)
    known: dict[Key, Record] = {}

    def ask(problem: Problem, seconds: float | None, tests_known: int) -> bool:
        chosen = [replace(method, known=tests_known)]
        answers = solve(
            [problem],
            chosen,
            replace(stop, seconds=seconds, began=None),
            seed=seed,
            batch=len(problem),
            progress=progress,
        )
        known.update((record.key, record) for record in answers)
        return any(record.status == "interrupted" for record in answers)

    until = math.inf if stop.seconds is None else suite.began + stop.seconds
    in_blocks(suite, known.values, ask, until, tests)
    records = list(known.values())
    found = suite.tests(
        records,
        {record.key: record.aside[PROVENANCE_KEY] for record in records if PROVENANCE_KEY in record.aside},
        tests,
    )
    net.queries = suite.asked + found.queries  # The truncated network was queried on behalf of the network.
    return found


def in_blocks(
    suite: Suite,
    records: Callable[[], Iterable[Record]],
    ask: Callable[[Problem, float | None, int], bool],
    until: float,
    tests: int | None,
) -> None:
    """Search all open items, one block at a time, until the time is up, there are enough tests, or a block
    was interrupted.

    Args:
        records: returns the records known at this time.
        ask: called with the problem of a block, the seconds left, and the number of tests known; returns
            whether it was interrupted.
    """

    def left() -> float | None:
        return None if math.isinf(until) else max(0.0, until - time.monotonic())

    def count_tests() -> int:
        witnesses = (record.bracket.upper.evidence.witness for record in records())
        return len({x.numpy().tobytes() for x in witnesses if x is not None})

    for problem in suite.problems:
        ask(problem, left(), count_tests())
        return
    asked = torch.zeros(len(suite), dtype=torch.bool)
    while not bool(asked.all()):
        waiting = suite.waiting(records()).cpu()
        waiting = waiting[~asked[waiting]][: suite.block]
        late = bool(asked.any()) and time.monotonic() >= until
        if not len(waiting) or late or (tests is not None and count_tests() >= tests):
            return
        asked[waiting] = True
        if ask(suite.problem(waiting.to(suite.order.device)), left(), count_tests()):
            return


testgen.__test__ = False  # type: ignore[attr-defined]  # for pytest, as above


def pursuit(
    stop: Stop, *, changes: int | None, tests: int | None, beam: int = 16, block: int = 32
) -> Pursuit:
    """Return the method that searches tests, with checked settings."""
    for name, value in (("changes", changes), ("tests", tests), ("beam", beam), ("batch", block)):
        if value is not None and value < 1:
            raise BadInput(f"{name} must be at least 1, got {value}.")
    if stop.gap:
        raise BadInput("stop: tests have no gap to close; give seconds or queries.")
    return Pursuit(beam, block, changes, tests, hurried=stop.seconds is not None or stop.queries is not None)


# ---- the given inputs


def _seeds(net: Network, x: Tensor, y: Tensor | Sequence[int] | None) -> tuple[Tensor, Tensor | None]:
    """Return the checked seeds and their classes on the network's device."""
    seeds = _numbers(net, x, "x")
    outputs = net.outputs_for(seeds)
    if y is None or outputs < 2:  # A single output has no classes.
        return seeds, None
    labels = torch.as_tensor(y, device=net.device)
    whole = labels.dtype in (torch.uint8, torch.int8, torch.int16, torch.int32)
    labels = labels.long() if whole else labels
    Robustness(labels).check(len(seeds), outputs)
    return seeds, labels


def _numbers(net: Network, x: Tensor, what: str) -> Tensor:
    """Return x in the arithmetic of the network, checked to be floating-point and inside the domain."""
    try:
        given = torch.as_tensor(x)
    except (TypeError, ValueError, RuntimeError) as error:
        raise BadInput(
            f"{what} must be one tensor (batch, *shape): all inputs need the same shape ({error})."
        ) from error
    if not given.is_floating_point():
        kind = "token ids" if net.vectors is not None else "integers"
        raise BadInput(
            f"{what} holds {kind}, and tests are made by changing numbers: give floating-point inputs in "
            "the domain's units."
        )
    numbers = given.to(net.device, net.dtype)
    try:
        check_centre(numbers, net.domain)
    except BadInput as error:
        raise BadInput(f"{what}: {error}") from error
    return numbers


def _region(net: Network, seeds: Tensor, unit: Unit | None) -> Sparse:
    """Return the region of all tests that can be made from the seeds."""
    if not net.domain.bounded:
        raise BadInput(
            f"tests are made by moving units to the bounds of the domain, and {net.name} has none: state it "
            "(domain=, --domain)."
        )
    return Sparse(seeds, torch.zeros(len(seeds)), net.domain, axes=unit_axes(seeds.shape[1:], unit))


def _training(net: Network, train: Tensor, seeds: Tensor) -> Tensor:
    """Return the checked training data."""
    data = _numbers(net, train, "train")
    if data.shape[1:] != seeds.shape[1:]:
        raise BadInput(
            f"train: inputs of shape {tuple(data.shape[1:])}, but those of x have shape "
            f"{tuple(seeds.shape[1:])}."
        )
    return data


def _nearest(
    neurons: Neurons, wanted: Items, seeds: Tensor, neuron: Tensor, kind: Tensor, tries: int
) -> tuple[Tensor, Tensor]:
    """Return the seeds whose drive comes nearest to each item, (tries, open), and the smallest distance
    (open,) in the scale of the layer.
    """
    lower, upper, scale = wanted.lower[neuron, kind], wanted.upper[neuron, kind], wanted.scale[neuron]
    gaps, rows, done = (
        torch.empty(0, len(neuron)).to(lower),
        torch.empty(0, len(neuron), dtype=torch.int64, device=lower.device),
        0,
    )
    for _, drives in neurons.read_values(seeds):
        drive = drives[:, neuron]
        here = torch.arange(done, done + len(drive), device=lower.device)[:, None].expand_as(drive)
        gaps, rows = torch.cat([gaps, torch.maximum(lower - drive, drive - upper)]), torch.cat([rows, here])
        gaps, best = gaps.topk(min(tries, len(gaps)), dim=0, largest=False)
        rows, done = rows.gather(0, best), done + len(drive)
    return rows, gaps[0] / scale.clamp_min(torch.finfo(scale.dtype).tiny)
