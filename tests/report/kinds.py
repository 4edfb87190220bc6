"""A run of every measuring command, as its records stand in a store."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from report_runs import record, sampled

import holdfast as hf
from holdfast.result import Bound, Bracket, Evidence, Key, Record, trivial_bound

GENERATOR = torch.Generator().manual_seed(0)
IMAGES = torch.rand(3, 1, 4, 4, generator=GENERATOR)


@dataclass(frozen=True)
class Kind:
    """What was asked, and what a reader must find again.

    headings  of the parts, in their order on the page.
    rows      lines of the tables, all parts together.
    """

    said: dict[str, Any]
    records: Callable[[], list[Record]]
    headings: tuple[str, ...]
    rows: int
    headline: str
    properties: tuple[str, ...]
    x: Sequence[torch.Tensor] = tuple(IMAGES)
    names: Sequence[str] = ()
    labelled: bool = True
    tokens: Sequence[Sequence[int] | None] = ()

    def fill(self, store: hf.Store) -> hf.Store:
        count = len(self.x)
        said: list[int | None] = [1 if self.labelled else None] * count
        store.put_inputs(
            list(self.x), said, said, list(self.names) or [""] * count, list(self.tokens) or [None] * count
        )
        store.write(self.records())
        return store


def shown(made: Record, moved: torch.Tensor) -> Record:
    """With a witness at the end that one shows."""
    ends = {"upper": made.bracket.upper, "lower": made.bracket.lower}
    ends = {
        name: replace(end, evidence=replace(end.evidence, witness=moved))
        for name, end in ends.items()
        if end.evidence.kind == "witnessed"
    }
    return replace(made, bracket=replace(made.bracket, **ends))


def radius() -> list[Record]:
    return [shown(record(0, 0.1, 0.4), IMAGES[0] * 0.5), record(1, 0.0, math.inf), record(2, 0.3, 0.3)]


def worst() -> list[Record]:
    ends = [(-0.5, -0.25), (0.5, 0.75), (-math.inf, 2.0)]
    return [shown(record(k, *pair, goal="worst"), IMAGES[k] * 0.5) for k, pair in enumerate(ends)]


def verify() -> list[Record]:
    """unsat in both cases; sat in one, so that the other is left; unknown."""
    cases = {
        0: [(0.5, 0.75), (0.25, 1.0)],
        1: [(-math.inf, 3.0), (-math.inf, -0.5)],
        2: [(-0.5, 0.5), (0.25, 2.0)],
    }
    return [
        shown(
            record(k, *pair, frame=case, goal="worst", status="stopped" if k == 2 else "finished"),
            IMAGES[k] * 0.5,
        )
        for k, pairs in cases.items()
        for case, pair in enumerate(pairs)
    ]


def reach() -> list[Record]:
    low, high = [(-1.25, -1.0), (0.5, 0.75)], [(1.0, 1.5), (2.0, math.inf)]
    small = [
        shown(record(0, *pair, frame=k, goal="worst", part="smallest"), IMAGES[0] * 0.5)
        for k, pair in enumerate(low)
    ]
    return [
        *small,
        *(
            shown(record(0, *pair, frame=k, goal="largest", part="largest"), IMAGES[0])
            for k, pair in enumerate(high)
        ),
    ]


def risk() -> list[Record]:
    found = []
    for k in range(3):
        found += [
            shown(record(k, -0.5 + k, 0.25 + k, goal="worst", part="worst"), IMAGES[k] * 0.9),
            shown(record(k, 0.1 * k, 0.1 * k + 0.2, part="radius"), IMAGES[k] * 0.8),
            shown(
                record(k, 2.0 + k, 4.0 if k < 2 else math.inf, goal="steepness", part="steepness"),
                IMAGES[k] * 0.7,
            ),
        ]
    return found


def saliency() -> list[Record]:
    found = [shown(record(k, -math.inf, 0.5 - k, goal="worst"), IMAGES[k] * 0.5) for k in range(3)]
    return [replace(made, aside={"saliency": torch.rand(1, 4, 4, generator=GENERATOR)}) for made in found]


def testgen() -> list[Record]:
    return [shown(record(k, 0.0, math.inf if k == 2 else 1.0 + k), IMAGES[k] * 0.5) for k in range(3)]


def smoothing() -> list[Record]:
    """The first input has no majority under the noise."""
    found = [record(k, 0.0, math.inf) for k in range(3)]
    shares = (0.4, 0.7, 0.9)
    return [
        replace(
            made,
            bracket=made.bracket.with_estimate(
                replace(guess, evidence=replace(guess.evidence, method="Smoothing"))
            ),
            aside={
                "counts": torch.tensor([90.0, 10.0]),
                "chosen": torch.tensor(0.0),
                "p_lower": torch.tensor(shares[k]),
            },
        )
        for k, made in enumerate(found)
        for guess in [sampled(0.25 * k)]
    ]


def monitor() -> list[Record]:
    """Every mutant asked: both ends are the truth. Sampled: beside a bracket that says nothing."""
    counted = Evidence("proved", "Mutants", traits=hf.certify.Enumerate.traits)
    found = [
        Record(
            Key(k, place),
            Bracket(Bound(share, counted), Bound(share, counted)),
            "closed",
            0.1,
            9,
            goal="probability",
        )
        for k in range(2)
        for place, share in enumerate((1.0, 0.75 - 0.25 * k, 0.9))
    ]
    guessed = Bracket(trivial_bound(0.0), trivial_bound(1.0)).with_estimate(sampled(0.8))
    return [
        *found,
        *(Record(Key(2, place), guessed, "finished", 0.1, 9, goal="probability") for place in range(3)),
    ]


WORDS = {"vocabulary": ["the", "film", "was", "good"]}
KINDS = {
    "radius": Kind({}, radius, ("the radius",), 3, "How far may each of the 3 inputs", ("stability",)),
    "worst": Kind({"norm": None}, worst, ("the worst score",), 3, "How low can the score", ("stability", "reachability")),
    "verify": Kind(
        {"norm": None}, verify, ("the worst score",), 3, "give an output that its property forbids", ("stability", "reachability"),
        names=[f"acas_{k}.onnx prop_{k}.vnnlib" for k in range(3)], labelled=False,
    ),
    "reach": Kind(
        {"norm": None}, reach, ("the smallest value of each output", "the largest value of each output"), 4,
        "Between which values do the outputs of tiny lie, over boxes around", ("reachability",), x=(IMAGES[0],), labelled=False,
    ),
    "risk": Kind(
        {}, risk, ("the radius", "the worst score", "how steep: Q"), 9, "What can go wrong with tiny near each of the 3 inputs",
        ("stability", "sensitivity"),
    ),
    "saliency": Kind(
        {"norm": None}, saliency, ("the worst score",), 3, "How far can the margin of tiny fall", ("sensitivity", "relevance"),
    ),
    "testgen": Kind({"norm": "0"}, testgen, ("the radius",), 3, "How few changes make neurons", ("reachability",)),
    "smoothing": Kind({"norm": "2"}, smoothing, ("the radius",), 3, "before the smoothed tiny changes its answer", ("stability",)),
    "monitor": Kind(
        {**WORDS, "norm": None}, monitor, ("the probability that the answer stays",), 3, "How likely does tiny keep its answer",
        ("stability", "relevance"), x=tuple(torch.rand(3, 3, 2)), tokens=[[0, 1, 3]] * 3,
    ),
}  # fmt: skip


def made(new_store: Callable[..., hf.Store], name: str, **more: Any) -> hf.Store:
    return KINDS[name].fill(new_store(command=name, **{**KINDS[name].said, **more}))
