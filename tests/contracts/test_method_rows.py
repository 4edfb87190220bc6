"""The same seed gives the same answer of an input alone, among others, in any order, and in a run that was stopped and taken up again.

Float64 networks: what is left is the last bits, by which a product of matrices is rounded otherwise in a batch of another size."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.ensemble import RandomForestClassifier
from torch import Tensor, nn

import holdfast as hf
import truth
from holdfast.attacks import (
    CLEVER,
    PGD,
    CarliniWagner,
    CleverRNN,
    Corners,
    External,
    Mesh,
    MeshLagrangian,
    Steps,
)
from holdfast.certify import Certify, Smoothing
from holdfast.edits import EditSearch
from holdfast.hamming import Greedy, Grid
from holdfast.lipschitz import Steepest
from holdfast.method import Method, known_methods
from holdfast.problem import Problem
from holdfast.region import Ball, Box, Frames, Patch, Region, Rows, Sparse, Words
from holdfast.result import Key, Record
from holdfast.solver import Progress, solve
from holdfast.store import Store
from holdfast.verification import BranchAndBound, Scatter

ROWS = 5
CLOSE = 1e-9


def sign_step(model: nn.Module, x: Tensor, y: Tensor, epsilon: float) -> Tensor:
    """An attack of another library: the fast gradient sign method."""
    moving = x.clone().requires_grad_(True)
    (slope,) = torch.autograd.grad(nn.functional.cross_entropy(model(moving), y, reduction="sum"), moving)
    return x + epsilon * slope.sign()


SEEDED: list[tuple[Method[Any], str]] = [  # with a region where it draws
    (PGD(rounds=3, radii=3, steps=4, restarts=2), "ball 2"), (PGD(rounds=2, radii=2, steps=3), "frames 1"),
    (PGD(rounds=2, steps=3, restarts=2), "worst box"), (PGD(rounds=2, radii=2, steps=3, restarts=2), "patch"),
    (PGD(rounds=2, radii=2, steps=3, restarts=2), "words"), (CarliniWagner(rounds=1, steps=8), "ball 2"),
    (Corners(rounds=3, radii=3, restarts=4), "ball inf"), (Corners(rounds=2, radii=3, restarts=4), "pixels"),
    (Corners(rounds=2, restarts=4), "worst box"), (CLEVER(batches=5, samples=4), "frames 1"), (CleverRNN(batches=5, samples=4), "frames 1"), (Smoothing(samples=40), "ball 2"),
    (Greedy(beam=2, lanes=2, candidates=2, sweep=4), "pixels"), (Greedy(sweep=3), "words"), (Grid(t=1), "pixels"),
    (Mesh(rounds=2, radii=2, queries=60, restarts=2), "ball 2"), (Mesh(rounds=1, queries=300, block=4), "worst box"),
    (MeshLagrangian(rounds=1, radii=2, queries=40), "ball 2"), (Scatter(places=8, steps=3, rounds=2), "worst box"),
    (Steepest(queries=150), "steep"), (Steepest(queries=150, searches="mesh,rays"), "steep"), (BranchAndBound(gap=0.01), "small box"),
    (Steps(rounds=2, moves=2, leaves=4), "rows"), (External(sign_step, (0.1, 1.0)), "ball 2"),
    (EditSearch(beam=2, tries=5), "edits"),
]  # fmt: skip
every = pytest.mark.parametrize(
    ("method", "where"), SEEDED, ids=[f"{m.name}-{w.replace(' ', '')}-{i}" for i, (m, w) in enumerate(SEEDED)]
)


@cache
def problems() -> dict[str, Problem]:
    """Small networks that bend, and regions of every kind around the same inputs."""
    generator, sizes = torch.Generator().manual_seed(0), torch.zeros(ROWS, dtype=torch.float64)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Flatten(), nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 3)).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)  # else no change in the domain breaks anything
    net, x = (
        hf.Network.from_torch(model, domain=(0, 1)),
        torch.rand(ROWS, 3, 2, generator=generator, dtype=torch.float64),
    )
    y, domain = net(x).argmax(1), net.domain
    sentences = truth.sentences()
    texts = sentences.network()
    assert texts.vectors is not None
    words = Words.around(sentences.tokens, sentences.substitutes, texts.vectors, 0)
    mask = torch.arange(6).reshape(3, 2).expand(ROWS, 3, 2) % 2 == 0
    radius: dict[str, Region] = {
        "ball 2": Ball(x, sizes, 2.0, domain), "ball inf": Ball(x, sizes, math.inf, domain), "frames 1": Frames(x, sizes, 1.0, domain),
        "pixels": Sparse(x, sizes, domain), "patch": Patch(x, sizes, mask, domain),
    }  # fmt: skip
    keys = tuple(Key(i) for i in range(ROWS))
    recurrent, edited, classes = truth.edited_texts(ROWS)
    found = {name: Problem(net, region, hf.Robustness(y), "radius", keys) for name, region in radius.items()}
    found["words"] = Problem(texts, words, hf.Robustness(sentences.y), "radius")
    found["worst box"] = Problem(
        net, Box.between((x - 0.2).clamp(0, 1), (x + 0.2).clamp(0, 1)), hf.Robustness(y), "worst", keys
    )
    found["small box"] = replace(
        found["worst box"], region=Box.between((x - 0.02).clamp(0, 1), (x + 0.02).clamp(0, 1))
    )
    forest = RandomForestClassifier(3, max_depth=3, random_state=0).fit(
        x.reshape(-1, 2).numpy(), x.reshape(-1, 2).sum(1).numpy() > 1
    )
    trees, rows = hf.Network.from_sklearn(forest, domain=(0, 1)), x[:, 0]
    assert trees.columns is not None
    region = Rows(rows, sizes, trees.columns, trees.domain)
    found["rows"] = Problem(trees, region, hf.Robustness(trees(rows).argmax(1)), "radius", keys)
    found["edits"] = Problem(recurrent, edited, hf.Robustness(classes), "radius", keys)
    found["steep"] = Problem(net, Ball(x, sizes + 0.3, 2.0, domain), hf.Robustness(y), "steepness", keys)
    return found


def numbers(records: Sequence[Record]) -> dict[Key, tuple[float, ...]]:
    """Both ends and the estimates of every row."""
    return {
        r.key: (r.bracket.lower.value, r.bracket.upper.value, *(e.value for e in r.bracket.estimates))
        for r in records
    }


def test_every_seeded_method_is_here() -> None:
    seeded = {
        kind
        for kind in known_methods().values()
        if kind.traits.seeded and kind.__module__.startswith("holdfast.")
    }
    missing = {kind.__name__ for kind in seeded} - {type(method).__name__ for method, _ in SEEDED}
    assert missing <= {"Pursuit"}  # what it finds for one neuron counts for others: tests/coverage


@every
def test_an_input_is_answered_alike_whoever_shares_its_batch(method: Method[Any], where: str) -> None:
    problem = problems()[where]
    assert method.unfit(problem) is None
    first = solve([problem], [method], seed=3)
    assert any(
        bound.evidence.method == method.name
        for r in first
        for bound in (r.bracket.lower, r.bracket.upper, *r.bracket.estimates)
    )
    whole = numbers(first)
    others = [
        solve(
            [problem.take(torch.tensor([3, *range(3)]))], [method], seed=3, batch=3
        ),  # the last of them alone
        solve([problem.take(torch.tensor([len(problem) - 1, 1]))], [method], seed=3),
    ]
    for records in others:
        for key, found in numbers(records).items():
            assert found == pytest.approx(whole[key], rel=CLOSE, abs=CLOSE), f"input {key}"


def test_inputs_draw_different_numbers_and_seeds_do() -> None:
    """Else the test above would hold for methods that draw nothing."""
    same = problems()["steep"].take(torch.zeros(3, dtype=torch.int64))
    again = replace(same, goal="worst", keys=tuple(Key(i) for i in range(3)))
    once, other = (numbers(solve([again], [Corners(rounds=1, restarts=8)], seed=seed)) for seed in (0, 1))
    assert len({*once.values(), *other.values()}) == 6


MEANS: list[Method[Any]] = [
    PGD(rounds=3, radii=3, steps=4, restarts=2),
    Corners(rounds=3, radii=3, restarts=4),
    Certify(rounds=4),
]


@pytest.mark.parametrize("where", ["ball 2", "ball inf"])
def test_a_run_that_is_taken_up_again_ends_like_one_that_was_not_disturbed(
    where: str, tmp_path: Path
) -> None:
    """Stopped in the second batch: the first is left out of what is asked afterwards, which has other batches too."""
    problem, store, steps = problems()[where], Store.create(tmp_path / "run"), 0
    undisturbed = numbers(solve([problem], MEANS, seed=3))

    def interrupts(now: Progress) -> None:
        nonlocal steps
        steps += now.done >= 2
        if steps == 3:
            raise KeyboardInterrupt

    with pytest.warns(UserWarning, match="interrupted"):
        solve([problem], MEANS, seed=3, batch=2, store=store, progress=interrupts)
    assert {record.status == "interrupted" for record in store.records()} == {True, False}
    assert any(math.isfinite(upper) for _, upper in undisturbed.values())
    again = numbers(solve([problem], MEANS, seed=3, store=store))
    for key, found in again.items():
        assert found == pytest.approx(undisturbed[key], rel=CLOSE)
