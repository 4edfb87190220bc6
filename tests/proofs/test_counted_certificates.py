"""Certificates of counted changes: words with lists of substitutes and norm 0 of networks, against enumeration and forgeries."""

import functools
import itertools
import json
import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import holdfast as hf
from holdfast.api.methods import default_methods
from holdfast.api.perturbation import Perturbation
from holdfast.api.radius import radius_problems
from holdfast.certificates.claim import pack_proof
from holdfast.certificates.writing import Certificate
from holdfast_check import Model, Rejected, check
from holdfast_check.budget import CountedRegion, split, unit_leaves
from holdfast_check.container import read_container
from holdfast_check.planes import StepBounds
from holdfast_check.proof import SCHEMA
from holdfast_check.rows import RowRegion, read_rows

Array = np.ndarray[Any, Any]
SYNONYMS = {word: [word ^ 1, (word + 4) % 12] for word in range(12)}


def random_region(draw: np.random.Generator, budget: int) -> RowRegion:
    """Four units of five elements in all: two numbers, a pair, and a number with a list of values."""
    centre = draw.normal(size=5)
    spread = np.array([1.0, 0.5, 1.0, 0.7, 2.0])
    arrays = {
        "region/centre": centre, "region/lower": centre - spread * draw.random(5), "region/upper": centre + spread,
        "region/units": np.array([0, 1, 2, 2, 3]), "region/choices": draw.normal(size=(3, 1)) + centre[4],
        "region/choice_units": np.array([3, 3, 3]),
    }  # fmt: skip
    arrays["region/lower"][4], arrays["region/upper"][4] = -9.0, 9.0
    return read_rows({"norm": "0", "radius": float(budget)}, arrays, 5)


def points_of(region: RowRegion, draw: np.random.Generator, many: int = 200) -> Array:
    """Corners and random points of a region of counted changes."""
    found = [region.centre]
    for _ in range(many):
        point = region.centre.copy()
        for unit in draw.permutation(region.count)[: int(region.radius)]:
            own = region.elements[unit]
            if unit in region.choices:
                point[own] = region.choices[unit][draw.integers(len(region.choices[unit]))]
            else:
                share = draw.integers(0, 2, len(own)) if draw.random() < 0.7 else draw.random(len(own))
                moved = region.lower[own] + share * (region.upper[own] - region.lower[own])
                point[own] = np.minimum(moved, region.upper[own])
        found.append(point)
    points = np.array(found)
    assert all(region.inside(point) for point in points)
    return points


def random_tree(region: RowRegion, draw: np.random.Generator, most: int) -> Array:
    """A complete tree of random splits."""
    cuts, waiting = list[int](), unit_leaves(region, np.array([-1]))
    while waiting:
        leaf = waiting.pop()
        options = list[int]()
        for cut in range(region.count + len(region.units)):
            try:
                split(region, leaf, cut)
                options.append(cut)
            except Rejected:
                continue
        if not options or len(cuts) > most or draw.random() < 0.2:
            cuts.append(-1)
            continue
        cuts.append(int(draw.choice(options)))
        waiting += split(region, leaf, cuts[-1])[::-1]
    return np.array(cuts)


@pytest.mark.parametrize("budget", [0, 1, 2, 4])
def test_leaves_cover_the_region_and_minima_lie_below_every_point(budget: int) -> None:
    draw = np.random.default_rng(budget)
    for _ in range(6):
        region = random_region(draw, budget)
        points, rows = points_of(region, draw), draw.normal(size=(1, 7, 5))
        leaves = unit_leaves(region, random_tree(region, draw, 15))
        batch = CountedRegion.of(region, leaves)
        least = batch.minimum(np.repeat(rows, len(leaves), 0))
        whole = CountedRegion.of(region, unit_leaves(region, np.array([-1]))).minimum(rows)[0]
        values = points @ rows[0].T
        assert (whole <= values.min(0)).all()
        assert (least.min(0) <= values.min(0)).all()
        assert (least.min(0) >= whole - 1e-9).all()  # Splits only help.
        assert (values.min(0) - whole < 0.5 * (1 + np.abs(whole))).all(), "a bound that says nothing"
        inside = ((points[:, None] >= batch.lower) & (points[:, None] <= batch.upper)).all(2)
        assert inside.any(1).all()
    with pytest.raises(Rejected):
        unit_leaves(region, np.array([0, -1])) if budget else unit_leaves(region, np.array([0, -1, -1]))
    for wrong in ([], [-1, -1], [region.count, -1, -1], [99, -1, -1], [-2]):
        with pytest.raises(Rejected):
            unit_leaves(region, np.array(wrong, dtype=np.int64))


def test_minima_are_attained_without_pairs_of_rounding() -> None:
    """The minimum is exact up to rounding: enumeration of every choice of units and corner."""
    draw = np.random.default_rng(5)
    for budget in (1, 2, 3):
        region, row = random_region(draw, budget), draw.normal(size=5)
        values = [
            [tuple(region.centre[own]), *(
                map(tuple, region.choices[unit]) if unit in region.choices
                else itertools.product(*zip(region.lower[own], region.upper[own], strict=True))
            )]
            for unit, own in enumerate(region.elements)
        ]  # fmt: skip
        every = [np.concatenate(x) for x in itertools.product(*values)]
        truth = min(float(row @ x) for x in every if region.inside(x))
        found = CountedRegion.of(region, unit_leaves(region, np.array([-1]))).minimum(row[None, None])[0, 0]
        assert truth - 1e-9 <= found <= truth


class Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(12, 3)
        self.layer, self.head = nn.GRU(3, 3, batch_first=True), nn.Linear(3, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        answer: Tensor = self.head(self.layer(self.table(tokens))[0][:, -1])
        return answer


@functools.cache
def words_folder() -> Path:
    """A folder for the certificates about sentences, which several tests read."""
    return Path(tempfile.mkdtemp())


@functools.cache
def of_words(folder: Path) -> tuple[nn.Module, list[Certificate], Tensor]:
    with torch.random.fork_rng():
        torch.manual_seed(4)
        model = Reader().eval().requires_grad_(False)
        model.table.weight.mul_(1.5)
        model.head.bias.zero_()
        tokens = torch.randint(0, 12, (4, 3))
    net = hf.Network.from_torch(model, tokens=True)
    problems = radius_problems(net, tokens, model(tokens).argmax(1), Perturbation(substitutes=SYNONYMS))
    records = hf.solve(problems, default_methods(net, "radius", "fast", what="words"))
    return model, hf.prove(problems, records, folder), tokens


def of_pixels(folder: Path) -> tuple[nn.Module, list[Certificate], Tensor]:
    with torch.random.fork_rng():
        torch.manual_seed(2)
        model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).eval().requires_grad_(False)
        x = torch.rand(6, 6)
    net = hf.Network.from_torch(model, domain=(0, 1))
    problems = radius_problems(net, x, model(x).argmax(1), norm=0)
    records = hf.solve(problems, default_methods(net, "radius", "fast", what="units"))
    return model, hf.prove(problems, records, folder), x


def opened(path: Path | None) -> tuple[dict[str, Any], dict[str, Array]]:
    assert path is not None
    metadata, arrays = read_container(path.read_bytes())
    return json.loads(metadata[SCHEMA]), dict(arrays)


def accepted(one: Certificate, header: dict[str, Any], arrays: dict[str, Any], folder: Path) -> bool:
    path = folder / "forged.proof"
    path.write_bytes(pack_proof(header, arrays))
    assert one.model is not None
    return check(one.model, path).accepted


@pytest.mark.parametrize("make", [of_words, of_pixels], ids=["words", "pixels"])
def test_every_count_has_a_certificate_and_no_larger_one_is_accepted(make: Any, tmp_path: Path) -> None:
    _, made, _ = make(words_folder() if make is of_words else tmp_path)
    assert all(one.file is not None for one in made), made
    proofs = [one for one in made if one.kind == "proof"]
    assert len(proofs) >= 2
    for one in made:
        assert one.model is not None
        assert one.file is not None
        verdict = check(one.model, one.file)
        assert verdict.accepted, verdict
        assert one.kind == "witness" or one.value == one.known or math.isinf(one.known)
        assert "units different from those of the centre" in verdict.claim
    for shown in (one for one in made if one.kind == "witness"):
        told, point = opened(shown.file)
        assert told["region"]["radius"] == shown.known + 1
        told["region"]["radius"] -= 1
        assert not accepted(shown, told, point, tmp_path)  # It changes one unit more.
        twin = next((one for one in proofs if one.key == shown.key), None)
        if twin is None:
            continue
        header, arrays = opened(twin.file)
        header["region"]["radius"] = shown.known + 1
        draw = np.random.default_rng(0)
        units = len(np.unique(arrays["region/units"]))
        trees = [
            [-1],
            [0, -1, -1],
            [0, 1, -1, -1, -1],
            [0] * 5,
            *([int(u) for u in draw.integers(-1, units, 9)] for _ in range(4)),
        ]
        for tree in trees:
            assert not accepted(twin, header, {**arrays, "units": np.array(tree)}, tmp_path)
        # A complete enumeration with one sentence left out: the budget's tree without its last leaves.
        cuts = arrays.get("units")
        if cuts is not None:
            header["region"]["radius"] = twin.value
            assert accepted(twin, header, arrays, tmp_path)
            for shorter in (cuts[:-1], cuts[:-2], np.append(cuts, -1), np.where(cuts == cuts[0], -1, cuts)):
                assert not accepted(twin, header, {**arrays, "units": shorter}, tmp_path)


def test_words_claim_every_sentence_that_the_list_allows(tmp_path: Path) -> None:
    """A forged list: with a word that changes the answer, or without the region's own limits, the proof fails."""
    model, made, _ = of_words(words_folder())
    proof = next(one for one in made if one.kind == "proof")
    header, arrays = opened(proof.file)
    label = int(header["property"]["class"])
    every = torch.tensor(list(itertools.product(range(12), repeat=3)))
    assert bool((model(every).argmax(1) != label).any()), "the test needs sentences that change the answer"
    header["region"]["radius"] = 3.0
    table = model.table.weight.double().numpy()  # type: ignore[union-attr]
    words = {"region/choices": np.tile(table, (3, 1)), "region/choice_units": np.repeat(np.arange(3), 12)}
    wide = {"region/lower": np.array([-9.0]), "region/upper": np.array([9.0])}
    assert not accepted(proof, header, {**arrays, **words}, tmp_path)
    free = {name: array for name, array in arrays.items() if "choice" not in name}
    assert not accepted(proof, header, {**free, **wide}, tmp_path)
    for name in ("region/choices", "region/choice_units", "region/units", "region/centre"):
        assert not accepted(proof, header, {**arrays, name: arrays[name][:-1]}, tmp_path)
    assert not accepted(proof, {**header, "version": 1}, arrays, tmp_path)
    assert not accepted(proof, {**header, "region": {"norm": "inf", "radius": 1.0}}, arrays, tmp_path)
    for strange in ("tree", "signs", "parabolas/1"):
        assert not accepted(proof, header, {**arrays, strange: np.array([-1])}, tmp_path)


def test_bounds_over_leaves_hold_at_points_of_the_network(tmp_path: Path) -> None:
    _, made, _ = of_pixels(tmp_path)
    assert made[0].model is not None
    program = Model.read_file(made[0].model).program
    draw = np.random.default_rng(1)
    centre = draw.random(6)
    arrays = {"region/centre": centre, "region/lower": np.zeros(1), "region/upper": np.ones(1)}
    region = read_rows({"norm": "0", "radius": 2.0}, arrays, 6)
    leaves = unit_leaves(region, np.array([0, 1, -1, -1, 2, -1, -1]))
    bounds = StepBounds(program, CountedRegion.of(region, leaves)).rows(np.eye(3), np.zeros(3)).min(0)  # type: ignore[arg-type]
    values = program.value(points_of(region, draw, 2000))  # type: ignore[operator]
    assert (bounds <= values.min(0)).all()
