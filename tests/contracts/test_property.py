"""What every property promises. A new property is one line in PROPERTIES."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from holdfast import batch
from holdfast.errors import BadInput
from holdfast.property import (
    Band,
    Confidence,
    Custom,
    Labels,
    Linear,
    Property,
    Reach,
    Robustness,
    Targeted,
    Tie,
    Uncertainty,
)
from holdfast.property.base import LinearProperty

BATCH, OUTPUTS = 3, 4


@dataclass(frozen=True)
class Case:
    """name, how to build it for a batch of BATCH, and what it says of one row, written down a second time."""

    name: str
    build: Callable[[torch.Generator], Property]
    truth: Callable[[Property, int, list[float]], float]


def labels(generator: torch.Generator) -> Tensor:
    return torch.randint(0, OUTPUTS, (BATCH,), generator=generator)


def targeted(generator: torch.Generator) -> Targeted:
    label = labels(generator)
    return Targeted(label, (label + torch.randint(1, OUTPUTS, (BATCH,), generator=generator)) % OUTPUTS)


def linear(generator: torch.Generator) -> Linear:
    return Linear(
        torch.randn((BATCH, 2, OUTPUTS), generator=generator), torch.randn((BATCH, 2), generator=generator)
    )


def margin(prop: Property, row: int, z: list[float]) -> float:
    assert isinstance(prop, Robustness)
    label = int(prop.label[row])
    return z[label] - max(v for j, v in enumerate(z) if j != label)


def lead(prop: Property, row: int, z: list[float]) -> float:
    assert isinstance(prop, Targeted)
    return z[int(prop.label[row])] - z[int(prop.target[row])]


def smallest(prop: Property, row: int, z: list[float]) -> float:
    assert isinstance(prop, Linear)
    matrix, offset = prop.matrix[row].tolist(), prop.offset[row].tolist()
    return min(
        sum(a * v for a, v in zip(line, z, strict=True)) + b for line, b in zip(matrix, offset, strict=True)
    )


def shares(z: list[float]) -> list[float]:
    return [math.exp(v) / sum(math.exp(u) for u in z) for v in z]


def confidence(prop: Property, row: int, z: list[float]) -> float:
    assert isinstance(prop, Confidence)
    return margin(Robustness(prop.label), row, shares(z)) - prop.epsilon


def decided(prop: Property, row: int, z: list[float]) -> float:
    assert isinstance(prop, Tie)
    *_, second, first = sorted(shares(z))
    return first - second - prop.epsilon


def below(prop: Property, row: int, z: list[float]) -> float:
    assert isinstance(prop, Reach)
    return float(prop.tau[row]) - shares(z)[int(prop.label[row])]


def divergence(prop: Property, row: int, z: list[float]) -> float:
    assert isinstance(prop, Uncertainty)
    return -sum(math.log(len(z) * p) for p in shares(z)) / len(z) - prop.epsilon


def band(generator: torch.Generator) -> Band:
    lower = torch.randn((BATCH, 2), generator=generator, dtype=torch.float64)
    return Band(lower, lower + torch.rand((BATCH, 2), generator=generator, dtype=torch.float64) + 0.1, (3, 1))


def room(prop: Property, row: int, z: list[float]) -> float:
    assert isinstance(prop, Band)
    ends = zip(prop.outputs, prop.lower[row].tolist(), prop.upper[row].tolist(), strict=True)
    return min(min(z[k] - low, high - z[k]) for k, low, high in ends)


def yes_or_no(generator: torch.Generator) -> Labels:
    shape = (BATCH, OUTPUTS)
    return Labels(
        torch.rand(shape, generator=generator) < 0.5,
        torch.randn(shape, generator=generator, dtype=torch.float64),
    )


def sides(prop: Property, row: int, z: list[float]) -> float:
    assert isinstance(prop, Labels)
    each = zip(z, prop.wanted[row].tolist(), prop.threshold[row].tolist(), strict=True)
    return min(v - at if yes else at - v for v, yes, at in each)


PROPERTIES = [
    Case("band", band, room),
    Case("labels", yes_or_no, sides),
    Case("robustness", lambda g: Robustness(labels(g)), margin),
    Case("targeted", targeted, lead),
    Case("linear", linear, smallest),
    Case("confidence", lambda g: Confidence(labels(g), None, 0.1), confidence),
    Case("tie", lambda g: Tie(labels(g), 0.1), decided),
    Case("reach", lambda g: Reach(labels(g), torch.rand(BATCH, generator=g)), below),
    Case(
        "uncertainty",
        lambda g: Uncertainty(None, 0.1, torch.rand((BATCH, OUTPUTS), generator=g).softmax(-1)),
        divergence,
    ),
    Case(
        "custom",
        lambda g: Custom(lambda z: 3 - z.square().sum(-1)),
        lambda _, __, z: 3 - sum(v * v for v in z),
    ),
]
every_property = pytest.mark.parametrize("case", PROPERTIES, ids=lambda c: c.name)
seeds = st.integers(0, 10_000)


@every_property
@given(seed=seeds)
def test_score_is_what_it_says(case: Case, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    prop = case.build(generator)
    prop.check(BATCH, OUTPUTS)
    z = torch.randn((BATCH, OUTPUTS), generator=generator, dtype=torch.float64)
    truth = [case.truth(prop, row, z[row].tolist()) for row in range(BATCH)]
    assert prop.score(z).tolist() == pytest.approx(truth, rel=1e-9, abs=1e-9)


@every_property
@given(seed=seeds)
def test_rows_say_the_same_as_the_score(case: Case, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    prop = case.build(generator)
    if not isinstance(prop, LinearProperty):
        return
    matrix, offset = prop.rows(OUTPUTS)
    assert matrix.dtype == offset.dtype == torch.float64
    assert matrix.shape[0] == BATCH
    assert matrix.shape[2] == OUTPUTS
    assert offset.shape == matrix.shape[:2]
    z = torch.randn((5, BATCH, OUTPUTS), generator=generator, dtype=torch.float64) * 10
    values = (matrix * z[:, :, None]).sum(-1) + offset
    assert torch.allclose(prop.score(z), values.amin(-1), rtol=1e-12, atol=1e-12)


@every_property
@given(seed=seeds)
def test_leading_axes_and_rows_are_independent(case: Case, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    prop = case.build(generator)
    z = torch.randn((2, 3, BATCH, OUTPUTS), generator=generator)
    scores = prop.score(z)
    assert scores.shape == (2, 3, BATCH)
    assert torch.allclose(scores[1, 2], prop.score(z[1, 2]))
    for row in range(BATCH):
        alone = batch.take(prop, torch.tensor([row])).score(z[:, :, row : row + 1])
        assert torch.allclose(scores[:, :, row : row + 1], alone)


@every_property
def test_batches_of_a_property_can_be_joined_again(case: Case) -> None:
    prop = case.build(torch.Generator().manual_seed(0))
    z = torch.randn(BATCH, OUTPUTS)
    whole = batch.concatenate([batch.take(prop, torch.tensor([0])), batch.take(prop, torch.tensor([1, 2]))])
    assert torch.equal(whole.score(z), prop.score(z))
    assert batch.signature(whole) == batch.signature(prop)


@every_property
def test_nan_outputs_never_pass(case: Case) -> None:
    prop = case.build(torch.Generator().manual_seed(0))
    assert not (prop.score(torch.full((BATCH, OUTPUTS), torch.nan)) > 0).any()


def test_ties_are_failures() -> None:
    tie = torch.tensor([[2.0, 2.0, 1.0]])
    assert not (Robustness(torch.tensor([0])).score(tie) > 0).any()
    assert not (Targeted(torch.tensor([0]), torch.tensor([1])).score(tie) > 0).any()
    assert not (Linear.of([1.0, -1.0, 0.0]).score(tie) > 0).any()
    assert (Targeted(torch.tensor([0]), torch.tensor([2])).score(tie) > 0).all()


def test_linear_of_repeats_one_condition() -> None:
    prop = Linear.of([0.0, -1.0], 3.0, batch=2)
    prop.check(2, 2)
    assert prop.score(torch.tensor([[9.0, 1.0], [9.0, 5.0]])).tolist() == [2, -2]


LABEL = torch.tensor([0, 1, 2])
REFUSED = [
    (
        "label too large",
        Robustness(torch.tensor([0, 1, 4])),
        "label 4 of input 2 is out of range: the network has classes 0 to 3",
    ),
    ("label negative", Robustness(torch.tensor([-1, 1, 2])), "label -1 of input 0 is out of range"),
    ("label for too few", Robustness(LABEL[:2]), r"label has shape \(2,\), expected \(3,\)"),
    ("label in columns", Robustness(LABEL[:, None]), r"label has shape \(3, 1\)"),
    ("float labels", Robustness(LABEL.float()), "label must be integers .*, got torch.float32"),
    ("narrow labels", Robustness(LABEL.int()), "label must be integers of type torch.int64, got torch.int32"),
    ("bool labels", Robustness(LABEL > 0), "label must be integers .*, got torch.bool"),
    ("target too large", Targeted(LABEL, torch.tensor([1, 2, 9])), "target 9 of input 2 is out of range"),
    ("target is the label", Targeted(LABEL, torch.tensor([1, 1, 0])), "target 1 of input 1 is its own label"),
    ("target for too few", Targeted(LABEL, LABEL[:1] + 1), "target has shape"),
    ("matrix of wrong width", Linear(torch.ones(3, 1, 5), torch.ones(3, 1)), r"expected \(3, rows, 4\)"),
    ("matrix for too few", Linear(torch.ones(2, 1, 4), torch.ones(2, 1)), r"expected \(3, rows, 4\)"),
    ("no rows", Linear(torch.ones(3, 0, 4), torch.ones(3, 0)), "at least one row"),
    ("offset of wrong shape", Linear(torch.ones(3, 1, 4), torch.ones(3)), "the offset has shape"),
    ("NaN coefficient", Linear(torch.full((3, 1, 4), torch.nan), torch.ones(3, 1)), "NaN or infinite"),
    (
        "band of too few",
        Band(torch.zeros(2, 1), torch.ones(2, 1), (0,)),
        r"band: the bounds have shapes \(2, 1\)",
    ),
    (
        "band of no output",
        Band(torch.zeros(3, 1), torch.ones(3, 1), (4,)),
        "output 4 does not exist.*outputs 0 to 3",
    ),
    ("empty band", Band(torch.ones(3, 1), torch.ones(3, 1), (0,)), "of input 0 a lower bound is not below"),
    ("endless band", Band(torch.zeros(3, 1), torch.full((3, 1), torch.inf), (0,)), "NaN or infinite"),
    (
        "labels of too few",
        Labels(torch.ones(3, 2) > 0, torch.zeros(3, 2)),
        r"labels have shape \(3, 2\), expected \(3, 4\)",
    ),
    ("labels in numbers", Labels(torch.ones(3, 4), torch.zeros(3, 4)), "booleans"),
    ("no threshold", Labels(torch.ones(3, 4) > 0, torch.full((3, 4), torch.nan)), "a threshold is NaN"),
    ("custom of wrong shape", Custom(lambda z: z), r"returned shape \(3, 4\).*one score for each row"),
    ("custom of one number", Custom(lambda z: z.sum()), r"returned shape \(\)"),
]


@pytest.mark.parametrize(("prop", "message"), [pytest.param(p, m, id=name) for name, p, m in REFUSED])
def test_what_does_not_fit_is_refused_in_words(prop: Property, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        prop.check(BATCH, OUTPUTS)


def test_one_output_has_no_class_to_change() -> None:
    with pytest.raises(BadInput, match=r"1 output, so there is no class to change.*hf\.worst"):
        Robustness(torch.tensor([0])).check(1, 1)
