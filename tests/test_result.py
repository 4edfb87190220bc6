"""Brackets only tighten, only guarantees move their ends, and what cannot be true is said out loud."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import Contradiction
from holdfast.result import Bound, Bracket, Evidence, Key, Kind, Record, contradiction, overall, trivial_bound


def bound(value: float, kind: Kind = "proved", method: str = "test") -> Bound:
    return Bound(value, Evidence(kind, method))


def bracket(lower: float, upper: float) -> Bracket:
    return Bracket(bound(lower), bound(upper, "witnessed"))


truths = st.floats(-1e6, 1e6)
offers = st.lists(st.tuples(st.floats(0, 1e6) | st.just(math.inf), st.booleans()), max_size=20)


@given(truth=truths, offers=offers)
def test_true_offers_only_ever_tighten(truth: float, offers: list[tuple[float, bool]]) -> None:
    known = Bracket(trivial_bound(-math.inf), trivial_bound(math.inf))
    for away, above in offers:
        before = known
        known = (
            known.tighten(upper=bound(truth + away, "witnessed"))
            if above
            else known.tighten(lower=bound(truth - away))
        )
        assert before.lower.value <= known.lower.value <= truth <= known.upper.value <= before.upper.value
    best_lower = max([truth - a for a, above in offers if not above], default=-math.inf)
    best_upper = min([truth + a for a, above in offers if above], default=math.inf)
    assert (known.lower.value, known.upper.value) == (best_lower, best_upper)


def test_a_worse_offer_changes_nothing_at_all() -> None:
    known = bracket(1.0, 2.0)
    assert known.tighten(lower=bound(0.5), upper=bound(3.0, "witnessed")) is known
    assert known.tighten(lower=bound(1.0, method="another")) is known
    assert known.tighten() is known


def test_evidence_travels_with_its_end() -> None:
    better = bracket(1.0, 2.0).tighten(lower=bound(1.5, method="second"))
    assert better.lower.evidence.method == "second"
    assert better.upper.evidence.method == "test"


def test_crossing_ends_are_a_contradiction_that_names_both() -> None:
    known = Bracket(bound(1.0, method="Prover"), trivial_bound(math.inf))
    with pytest.raises(
        Contradiction, match=r"Prover says at least 1\.0 \(proved\), Finder says at most 0\.5 \(witnessed\)"
    ):
        known.tighten(upper=bound(0.5, "witnessed", "Finder"))
    with pytest.raises(Contradiction):
        bracket(2.0, 1.0)


def test_a_contradiction_names_methods_settings_input_and_values() -> None:
    witness = torch.tensor([[0.25, 0.5], [1.0, 2.0]])
    lower = Bound(1.0, Evidence("proved", "verify", {"batch": 3}, 7))
    upper = Bound(0.5, Evidence("witnessed", "verify", {"batch": 4}, 8, witness=witness))
    told = str(contradiction(lower, upper, "input 3"))
    assert "verify [batch=3, seed=7] says at least 1.0 (proved)" in told
    assert (
        "verify [batch=4, seed=8] says at most 0.5 (witnessed), at input 3, the witness (0.25, 0.5, 1, 2):"
        in told
    )
    other = str(
        contradiction(
            replace(lower, evidence=Evidence("proved", "Certify", {"batch": 3})), upper, names=("a: ", "b: ")
        )
    )
    assert "a: Certify says at least" in other
    assert "b: verify says at most" in other
    long = replace(upper, evidence=replace(upper.evidence, witness=torch.zeros(100)))
    assert "... 100 numbers in all" in str(contradiction(lower, long))


@given(st.floats(-1e9, 1e9), st.floats(0, 1e9))
def test_what_is_shown_of_a_bracket_still_holds(low: float, width: float) -> None:
    shown = str(bracket(low, low + width)).strip("[]").replace(",", "").split()
    if low == low + width:
        assert shown[0] == shown[2]
    else:
        assert float(shown[0]) <= low
        assert float(shown[2]) >= low + width
    assert float(shown[0]) == pytest.approx(low, rel=1e-5)
    assert str(bracket(-math.inf, math.inf)) == "[-inf proved, inf witnessed]"


def test_equal_ends_do_not_contradict_but_close() -> None:
    known = bracket(1.0, 2.0).tighten(upper=bound(1.0, "witnessed"))
    assert known.closed
    assert known.gap == 0
    assert not bracket(1.0, 2.0).closed


@pytest.mark.parametrize("kind", ["sampled", "estimated"])
def test_what_is_no_guarantee_can_never_be_an_end(kind: Kind) -> None:
    with pytest.raises(AssertionError, match="cannot be an end"):
        Bracket(bound(0.0, kind), bound(1.0))
    with pytest.raises(AssertionError, match="cannot be an end"):
        bracket(0.0, 1.0).tighten(lower=bound(0.5, kind))
    with pytest.raises(AssertionError, match="cannot be an end"):
        bracket(0.0, 1.0).tighten(upper=bound(0.5, kind))


def test_nan_never_proves() -> None:
    with pytest.raises(AssertionError, match="NaN never proves"):
        bracket(math.nan, 1.0)
    with pytest.raises(AssertionError, match="NaN never proves"):
        bracket(0.0, math.nan)
    known = bracket(0.0, 1.0)
    assert known.tighten(lower=bound(math.nan), upper=bound(math.nan, "witnessed")) is known


def test_estimates_stand_beside_the_ends_one_for_each_method() -> None:
    known = (
        bracket(0.0, 1.0)
        .with_estimate(bound(5.0, "estimated", "CLEVER"))
        .with_estimate(bound(0.4, "sampled", "Samples"))
    )
    assert (known.lower.value, known.upper.value) == (0.0, 1.0)
    assert [e.value for e in known.estimates] == [5.0, 0.4]
    newer = known.with_estimate(bound(0.7, "estimated", "CLEVER"))
    assert [(e.evidence.method, e.value) for e in newer.estimates] == [("Samples", 0.4), ("CLEVER", 0.7)]
    assert newer.tighten(lower=bound(0.5)).estimates == newer.estimates
    with pytest.raises(AssertionError):
        known.with_estimate(bound(0.5, "proved"))


@pytest.mark.parametrize(
    ("lower", "upper", "gap", "closed"),
    [
        (0, math.inf, math.inf, False),
        (-math.inf, 0, math.inf, False),
        (1, 3, 2, False),
        (2, 2, 0, True),
        (math.inf, math.inf, 0, True),
    ],
)
def test_gap_and_closed(lower: float, upper: float, gap: float, closed: bool) -> None:
    known = bracket(lower, upper)
    assert known.gap == gap
    assert known.closed is closed


def test_brackets_and_keys_read_well() -> None:
    assert str(bracket(0.25, 2.0)) == "[0.25 proved, 2 witnessed]"
    assert str(Key(3)) == "3"
    assert str(Key(3, 1)) == "3/1"
    assert sorted([Key(2, 0), Key(1, 1), Key(1, 0)]) == [Key(1, 0), Key(1, 1), Key(2, 0)]


def test_a_set_of_inputs_has_the_means_of_its_ends() -> None:
    def bracket(lower: float, upper: float) -> Bracket:
        return Bracket(trivial_bound(lower), trivial_bound(upper))

    found = overall([bracket(1, 3), bracket(2, 2), bracket(math.inf, math.inf)])
    assert (found.lower, found.upper, found.centre, found.radius) == (1.5, 2.5, 2.0, 0.5)
    assert (found.closed, found.unbreakable, found.count) == (2, 1, 3)
    assert overall([bracket(1, math.inf)]).upper == math.inf
    assert math.isnan(overall([]).lower)


def test_a_turned_bracket_is_that_of_the_negative() -> None:
    guess = Bound(1.5, Evidence("estimated", "C"))
    made = Bracket(
        Bound(1.0, Evidence("proved", "A")),
        Bound(2.0, Evidence("witnessed", "B"), 1e-3, 2.5),
        (guess,),
        "note",
    )
    other = made.negate()
    assert (other.lower.value, other.upper.value, other.lower.slack, other.lower.executed) == (
        -2.0,
        -1.0,
        1e-3,
        -2.5,
    )
    assert (other.lower.evidence.kind, other.estimates[0].value, other.note) == ("witnessed", -1.5, "note")
    assert other.negate() == made


@pytest.mark.parametrize("turned", [False, True])
def test_a_proof_within_the_slack_of_a_witness_is_cut_back_to_it(turned: bool) -> None:
    proof, shown = Bound(1.0005, Evidence("proved", "A")), Bound(1.0, Evidence("witnessed", "B"), slack=1e-3)
    made = Bracket(shown.negate(), proof.negate()) if turned else Bracket(proof, shown)
    assert made.closed
    assert abs(made.lower.value) == 1.0
    with pytest.raises(Contradiction):
        Bracket(Bound(1.0011, proof.evidence), shown)
    with pytest.raises(Contradiction):
        Bracket(Bound(1.0005, proof.evidence), Bound(1.0, shown.evidence))


def test_a_record_has_the_witness_of_either_end() -> None:
    point = torch.zeros(2)
    low, high = Bound(1.0, Evidence("witnessed", "B", witness=point)), Bound(2.0, Evidence("proved", "A"))
    assert Record(Key(0), Bracket(low, high), "finished", 0.0, 0, goal="largest").witness is point
    assert Record(Key(0), Bracket(trivial_bound(0.0), high), "finished", 0.0, 0).witness is None


def test_keys_sort_by_part_then_place() -> None:
    keys = [Key(1, part="b"), Key(0, 2), Key(0), Key(1), Key(0, part="b"), Key(0, 1)]
    assert sorted(keys) == [Key(0), Key(0, 1), Key(0, 2), Key(1), Key(0, part="b"), Key(1, part="b")]
    assert [str(key) for key in (Key(3), Key(3, 1), Key(3, 1, "largest"))] == ["3", "3/1", "3/1 largest"]


def test_an_end_that_nobody_found_says_which_one_is_missing_and_why() -> None:
    unproved = Bracket(trivial_bound(0.0), bound(0.25, "witnessed"))
    assert str(unproved) == "[nothing proved, 0.25 witnessed]"
    assert repr([unproved]) == "[Bracket[nothing proved, 0.25 witnessed]]"
    assert str(Bracket(bound(0.25), trivial_bound(math.inf))) == "[0.25 proved, nothing found]"
    assert str(Bracket(trivial_bound(0.0), trivial_bound(math.inf))) == "[nothing known, nothing known]"
    assert str(Bracket(trivial_bound(math.inf), trivial_bound(math.inf))) == "[inf proved, inf proved]"
    record = Record(Key(0), unproved, "finished", 1.0, 1, skipped=("Certify: layer 3 has no bound",))
    assert record.explained.note == "Certify: layer 3 has no bound"
    assert replace(record, bracket=bracket(0.1, 0.25)).explained.note == ""


def test_a_bound_is_one_short_line() -> None:
    shown = Bound(0.5, Evidence("witnessed", "PGD", witness=torch.zeros(9999)))
    assert repr(shown) == "Bound(0.5 witnessed by PGD)"
