"""`hf.equivalent`: proofs and witnesses on both sides of the truth, the query that it stands for, and wrong calls."""

import copy
from fractions import Fraction

import pytest
import torch
from torch import nn

import holdfast as hf
from holdfast.errors import BadInput
from holdfast.verification.equivalence import equivalence_query
from holdfast.verification.vnnlib import parse

BOX = -torch.ones(2), torch.ones(2)


def net(seed: int = 0, outputs: int = 3) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(2, 10), nn.ReLU(), nn.Linear(10, outputs)).eval()


def rounded(one: nn.Module, steps: float = 64.0) -> nn.Module:
    other = copy.deepcopy(one)
    with torch.no_grad():
        for weight in other.parameters():
            weight.copy_((weight * steps).round() / steps)
    return other


ONE, OTHER = net(), rounded(net())
AXIS = torch.linspace(-1, 1, 201)
GRID = torch.cartesian_prod(AXIS, AXIS)
with torch.no_grad():
    MET = float((ONE(GRID) - OTHER(GRID)).abs().max())


def test_the_largest_difference_is_bracketed() -> None:
    found = hf.equivalent(ONE, OTHER, BOX, tolerance=1e-3, seconds=60, progress=False)
    assert found.answer == "measured"
    assert found.proved >= MET - 1e-6
    assert found.found <= found.proved <= found.found + 1e-3
    assert found.found >= MET - 1e-3
    assert found.witness is not None
    x = found.witness.float()[None]
    with torch.no_grad():
        assert abs(float((ONE(x) - OTHER(x)).abs().max()) - found.found) < 1e-6
    assert "differ by at most" in str(found)


def test_within_is_proved_above_and_refuted_below() -> None:
    above = hf.equivalent(ONE, OTHER, BOX, within=MET * 1.1, seconds=60, progress=False)
    assert (above.answer, above.equivalent) == ("equivalent", True)
    assert above.found <= MET * 1.1 <= above.proved
    below = hf.equivalent(ONE, OTHER, BOX, within=MET * 0.9, seconds=60, progress=False)
    assert (below.answer, below.equivalent) == ("different", False)
    assert below.witness is not None
    with torch.no_grad():
        x = below.witness.float()[None]
        assert float((ONE(x) - OTHER(x)).abs().max()) > MET * 0.9
    assert hf.equivalent(ONE, copy.deepcopy(ONE), BOX, within=1e-6, seconds=60, progress=False).equivalent


def test_classes_agree_where_the_lead_is_large_enough() -> None:
    with torch.no_grad():
        y, z = ONE(GRID), OTHER(GRID)
    lead = y.sort(1, descending=True)[0]
    differ = y.argmax(1) != z.argmax(1)
    assert bool(differ.any())
    most = float((lead[:, 0] - lead[:, 1])[differ].max())
    sure = hf.equivalent(ONE, OTHER, BOX, same_class=True, margin=2 * MET, seconds=60, progress=False)
    assert sure.equivalent is True  # two differences of at most MET cannot turn a lead of 2 MET
    unsure = hf.equivalent(ONE, OTHER, BOX, same_class=True, seconds=60, progress=False)
    assert unsure.equivalent is False
    assert most < 2 * MET
    assert unsure.outputs is not None
    first, second = unsure.outputs
    assert int(first.argmax()) != int(second.argmax())


def test_networks_of_other_structure_are_compared() -> None:
    torch.manual_seed(0)
    deep = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 3)).eval()
    with torch.no_grad():
        met = float((ONE(GRID) - deep(GRID)).abs().max())
    found = hf.equivalent(ONE, deep, BOX, within=met + 0.3, seconds=60, progress=False)
    assert found.equivalent is True


def test_the_query_is_exact() -> None:
    """0.1 is no float64: the query holds the float64 number in all its digits."""
    lower, upper = torch.tensor([0.1, -3.0]).double(), torch.tensor([0.1, 2.0]).double()
    spec = parse(equivalence_query((2,), 2, lower, upper, within=0.05), "query")
    (case,) = spec.cases
    assert [end.value for end in case.lower] == [Fraction(float(lower[0])), Fraction(-3)]
    assert spec.sources == ((0,), (1,), (0,), (1,))
    assert {row.bound for rows in case.polytopes for row in rows} == {-Fraction(0.05)}
    assert all(row.strict for rows in case.polytopes for row in rows)
    assert len(case.polytopes) == 4
    classes = parse(equivalence_query((2,), 3, lower, upper, margin=0.0), "query").cases[0]
    assert [len(rows) for rows in classes.polytopes] == [3] * 6


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"within": 0.1, "same_class": True}, "not both"),
        ({"margin": 0.1}, "margin belongs to same_class"),
        ({"within": -1.0}, "within: expected a number, at least 0"),
        ({"within": "wide"}, "within: expected a number"),
        ({"same_class": True, "margin": -0.5}, "margin: expected a number, at least 0"),
        ({"tolerance": 0.0}, "tolerance: expected a number above 0"),
        ({"box": 3}, "box: expected"),
        ({"box": (torch.ones(2), -torch.ones(2))}, "is above the upper bound"),
        ({"box": (torch.zeros(3, 2), torch.ones(3, 2))}, "give one"),
        ({"box": (torch.zeros(2), torch.full((2,), torch.inf))}, "infinity"),
        ({"other": net(outputs=4)}, "3 outputs.*4; only networks with the same outputs"),
        ({"other": nn.Linear(5, 3)}, "inputs"),
        ({"other": {"weight": torch.ones(2)}}, "other"),
    ],
)  # fmt: skip
def test_wrong_calls_say_what_to_do(options: dict[str, object], message: str) -> None:
    given: dict[str, object] = {"other": OTHER, "box": BOX, **options}
    with pytest.raises(BadInput, match=message):
        hf.equivalent(ONE, **given, progress=False)  # type: ignore[arg-type]
