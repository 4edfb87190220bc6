"""solve(): order, batches, budgets, interruption, and methods that lie."""

import math
import signal
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

import holdfast as hf
import truth
from clocks import TestClock
from holdfast import time_limit
from holdfast.attacks import CLEVER, PGD, CarliniWagner, Corners
from holdfast.errors import BadInput, Contradiction, StoreError
from holdfast.method import Claims, Method
from holdfast.problem import Problem
from holdfast.property import Linear, Robustness
from holdfast.region import Ball, Box
from holdfast.result import Bound, Bracket, Evidence, Goal, Key, Record, trivial_bound
from holdfast.solver import Progress, Stop, solve


@dataclass
class Memory:
    """A store that only remembers."""

    kept: dict[Key, Record] = field(default_factory=dict)
    written: list[Record] = field(default_factory=list)

    def load_known(self, keys: Sequence[Key]) -> dict[Key, Record]:
        return {k: self.kept[k] for k in keys if k in self.kept}

    def write(self, records: Sequence[Record]) -> None:
        self.written.extend(records)
        self.kept.update((r.key, r) for r in records)


@dataclass(frozen=True)
class Scripted(Method[int]):
    """Claims what the script says, step by step."""

    goals: ClassVar[tuple[Goal, ...]] = ("radius", "worst", "steepness")
    script: tuple[Any, ...] = ()

    def obstacle(self, problem: Problem) -> str | None:
        return None

    def start(self, problem: Problem, seed: int) -> int:
        return 0

    def step(self, problem: Problem, state: int) -> tuple[int | None, Claims]:
        line = self.script[state]
        claims = line(problem) if callable(line) else line
        return (state + 1 if state + 1 < len(self.script) else None), claims


def proves(value: float) -> Any:
    return lambda problem: Claims(proved=torch.full((len(problem),), value, dtype=torch.float64))


def shows(x: Tensor) -> Any:
    return lambda problem: Claims(
        witness=x.expand(problem.region.centre.shape), found=torch.ones(len(problem), dtype=torch.bool)
    )


def interrupts(problem: Problem) -> Claims:
    raise KeyboardInterrupt


@dataclass(frozen=True)
class Picky(Scripted):
    def obstacle(self, problem: Problem) -> str | None:
        return "wants the moon"


KNOWN = truth.linear(0, batch=6)


def known_problem(
    network: hf.Network | None = None, p: float = 2, keys: Sequence[Key] | None = None
) -> Problem:
    zero = torch.zeros(len(KNOWN.x), dtype=torch.float64)
    problem = truth.radius_problem(network or KNOWN.network(), Ball(KNOWN.x, zero, p), KNOWN.y)
    return problem if keys is None else replace(problem, keys=tuple(keys))


def ends(records: Sequence[Record]) -> list[tuple[Key, float, float]]:
    return [(r.key, r.bracket.lower.value, r.bracket.upper.value) for r in records]


# ---------------------------------------------------------------- order and batches


def test_records_come_in_the_order_of_the_questions() -> None:
    """Whatever shares a batch with whatever: norms 1 and 2 alternate, keys fall."""
    network = KNOWN.network()
    problems = [
        known_problem(network, p, [Key(100 * i - row) for row in range(6)])
        for i, p in ((9, 2), (7, 1), (5, 2), (3, 1))
    ]
    records = solve(problems, [PGD(rounds=2)])
    assert [r.key for r in records] == [key for p in problems for key in p.keys]
    for problem, answers in zip(problems, [KNOWN.radius(p) for p in (2, 1, 2, 1)], strict=True):
        mine = [r for r in records if r.key in problem.keys]
        assert all(
            a * (1 - 1e-9) <= r.bracket.upper.value <= a * 1.1
            for r, a in zip(mine, answers.tolist(), strict=True)
        )


def test_batches_of_one_answer_like_one_batch() -> None:
    """With chance out of the way (the first round starts at the input) rows do not influence each other."""
    whole = solve([known_problem()], [PGD(rounds=1)])
    single = solve([known_problem()], [PGD(rounds=1)], batch=1)
    pairs = solve([known_problem()], [PGD(rounds=1)], batch=4)
    for other in (single, pairs):
        assert [k for k, *_ in ends(other)] == [k for k, *_ in ends(whole)]
        assert [u for *_, u in ends(other)] == pytest.approx([u for *_, u in ends(whole)], rel=1e-5)
        assert all(
            abs(r.queries - whole[0].queries) <= 2 for r in other
        )  # the probe of the float64 twin is shared


def test_queries_are_those_of_the_network() -> None:
    network = KNOWN.network()
    problem = known_problem(network)
    problem.check()
    checked = network.queries  # what the first check costs; a second one asks for two inputs
    records = solve([problem], [PGD(rounds=2)])
    assert (
        0 <= network.queries - checked - 2 - sum(r.queries for r in records) < len(records)
    )  # a share is rounded down
    assert records[0].queries > 100


def test_a_batch_without_room_is_halved_and_keeps_what_it_found() -> None:
    asked: list[int] = []

    def crowded(problem: Problem) -> Claims:
        asked.append(len(problem))
        if len(problem) > 2:
            raise torch.OutOfMemoryError("no room")
        return Claims()

    records = solve([known_problem()], [Scripted((proves(1e-4), crowded))])
    assert asked == [6, 3, 2, 1, 3, 2, 1]
    assert [r.bracket.lower.value for r in records] == [1e-4] * 6
    assert [r.status for r in records] == ["finished"] * 6


def test_one_row_without_room_is_said() -> None:
    def crowded(problem: Problem) -> Claims:
        raise torch.OutOfMemoryError("no room")

    with pytest.raises(torch.OutOfMemoryError):
        solve([known_problem()], [Scripted((crowded,))])


def test_nothing_in_nothing_out() -> None:
    assert solve([], [PGD()]) == []


def test_two_questions_with_one_key_are_refused() -> None:
    network = KNOWN.network()
    with pytest.raises(BadInput, match="share a key"):
        solve([known_problem(network), known_problem(network)], [PGD()])


def test_bad_questions_are_refused_before_any_work() -> None:
    network, memory = KNOWN.network(), Memory()
    good = known_problem(network)
    bad = replace(
        known_problem(network, keys=[Key(50 + i) for i in range(6)]), property=Robustness(KNOWN.y + 7)
    )
    with pytest.raises(BadInput, match="out of range"):
        solve([good, bad], [PGD()], store=memory)
    assert memory.written == []
    assert network.queries <= 18
    with pytest.raises(BadInput, match="batch must be at least 1"):
        solve([good], [PGD()], batch=0)
    with pytest.raises(BadInput, match="2 keys for 6 inputs"):
        solve([replace(good, keys=(Key(0), Key(1)))], [PGD()])
    box = Box.between(KNOWN.x - 1, KNOWN.x + 1)
    with pytest.raises(BadInput, match="a Box does not grow with a radius"):
        solve([replace(good, region=box)], [PGD()])


def test_without_methods_only_definitions_are_known() -> None:
    records = solve([known_problem()], [])
    assert {(r.bracket.lower.value, r.bracket.upper.value, r.status) for r in records} == {
        (0.0, math.inf, "finished")
    }


# ---------------------------------------------------------------- budgets


def endless(count: int = 10_000) -> Scripted:
    return Scripted(tuple(proves(1e-9 * i) for i in range(count)))


def test_seconds_stop_every_batch_fairly(still_clock: TestClock) -> None:
    spent: Counter[int] = Counter()  # by the first input of each batch

    def takes(seconds: float, claims: Any) -> Any:
        def step(problem: Problem) -> Claims:
            still_clock.advance(seconds)
            spent[problem.keys[0].index] += seconds
            return claims(problem)  # type: ignore[no-any-return]

        return step

    steps = tuple(takes(0.01, proves(1e-9 * (i + 1))) for i in range(1000))
    records = solve([known_problem()], [Scripted(steps)], Stop(seconds=0.3), batch=2)
    assert {r.status for r in records} == {"stopped"}
    assert all(r.bracket.lower.value > 0 for r in records)
    assert list(spent) == [0, 2, 4]
    assert sum(spent.values()) == pytest.approx(0.3, abs=0.011)
    assert all(seconds == pytest.approx(0.1, abs=0.011) for seconds in spent.values())


def test_no_seconds_no_steps() -> None:
    records = solve([known_problem()], [endless()], Stop(seconds=0))
    assert {(r.status, r.bracket.lower.value) for r in records} == {("stopped", 0.0)}


def test_queries_stop_after_the_step_that_spends_them() -> None:
    full = solve([known_problem()], [PGD()])
    records = solve([known_problem()], [PGD()], Stop(queries=300))
    assert {r.status for r in records} == {"stopped"}
    assert 300 <= records[0].queries < full[0].queries
    assert full[0].status == "finished"


def test_gap_stops_when_every_row_is_close_enough() -> None:
    distance = float(KNOWN.radius(2).min())
    method = Scripted(tuple(proves(distance * share) for share in (0.5, 0.9, 0.95, 0.99)))
    free = solve([known_problem()], [PGD(), method])
    assert max(r.bracket.gap for r in free) > 0
    one = known_problem().take(KNOWN.radius(2).argmin()[None])
    [record] = solve([one], [PGD(), method], Stop(gap=0.2 * distance))
    assert record.bracket.gap <= 0.2 * distance
    assert record.bracket.lower.value == pytest.approx(0.9 * distance)  # and not a step further


@pytest.mark.parametrize(
    "options", [{"seconds": -1}, {"queries": -1}, {"gap": -0.1}, {"gap": math.nan}, {"seconds": math.nan}]
)
def test_stop_refuses_negative_budgets(options: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match="must not be negative"):
        Stop(**options)


def test_progress_counts_to_the_end() -> None:
    seen: list[Progress] = []
    solve([known_problem()], [PGD(rounds=2)], Stop(seconds=60), batch=2, progress=seen.append)
    assert [p.done for p in seen] == sorted(p.done for p in seen)
    assert (seen[-1].done, seen[-1].total) == (6, 6)
    assert {p.method for p in seen} == {"PGD", "done"}
    assert all(p.seconds_left is None or 0 <= p.seconds_left <= 60 for p in seen)
    assert sum(len(p.records) for p in seen if p.method == "done") == 6


# ---------------------------------------------------------------- what the input itself says


def test_a_class_with_a_name_is_called_by_it() -> None:
    net = hf.Network.from_torch(torch.nn.Linear(2, 3).eval(), classes=("cat", "dog", "ship"))
    x = torch.zeros(1, 2)
    said = int(net(x).argmax())
    (b,) = hf.radius(net, x, (net(x).argmax(1) + 1) % 3)
    assert (
        b.note == f"the property fails at the input itself (the network says {('cat', 'dog', 'ship')[said]})"
    )


def test_a_misclassified_input_has_radius_zero_and_says_so() -> None:
    wrong = (KNOWN.y + 1) % 3
    label = torch.where(torch.arange(6) % 2 == 0, wrong, KNOWN.y)
    problem = replace(known_problem(), property=Robustness(label))
    for row, record in enumerate(solve([problem], [PGD(rounds=2)])):
        b = record.bracket
        if row % 2:
            assert b.upper.value > 0
            assert b.note == ""
            continue
        assert (b.lower.value, b.upper.value, record.status) == (0.0, 0.0, "closed")
        assert b.note == f"the property fails at the input itself (the network says {int(KNOWN.y[row])})"
        assert b.upper.evidence.kind == "witnessed"
        assert b.upper.evidence.witness is not None
        assert torch.equal(b.upper.evidence.witness, KNOWN.x[row])


def test_a_tie_at_the_input_is_a_failure_too() -> None:
    model = nn.Linear(2, 2, bias=False)
    nn.init.zeros_(model.weight)
    [b] = hf.radius(hf.Network.from_torch(model.eval()), torch.zeros(1, 2), [0], methods=[hf.attacks.PGD()])
    assert (b.lower.value, b.upper.value) == (0.0, 0.0)
    assert "fails at the input itself" in b.note


def test_worst_begins_with_the_score_at_the_centre() -> None:
    region = Ball(KNOWN.x, torch.ones(6, dtype=torch.float64), 2)
    problem = Problem(
        KNOWN.network(),
        region,
        Linear.of([1.0, -1.0, 0.0], batch=6),
        "worst",
        tuple(Key(i) for i in range(6)),
    )
    z = KNOWN.model(KNOWN.x).detach()
    for record, score in zip(solve([problem], []), (z[:, 0] - z[:, 1]).tolist(), strict=True):
        assert record.bracket.lower.value == -math.inf
        assert record.bracket.upper.value == pytest.approx(score, abs=1e-5)
        assert record.bracket.upper.evidence.method == "the input itself"


# ---------------------------------------------------------------- interruption


def test_ctrl_c_keeps_what_is_known_and_marks_the_rest() -> None:
    memory, method = Memory(), Scripted((proves(1e-3), interrupts))
    with pytest.warns(UserWarning, match="interrupted: all results so far are kept"):
        records = solve([known_problem()], [method], batch=2, store=memory)
    assert [r.key for r in records] == [Key(i) for i in range(6)]
    assert {r.status for r in records} == {"interrupted"}
    assert [r.bracket.lower.value for r in records] == [1e-3, 1e-3, 0, 0, 0, 0]
    assert {k: r.bracket.lower.value for k, r in memory.kept.items()} == {
        r.key: r.bracket.lower.value for r in records
    }


def test_finished_batches_stay_finished_after_ctrl_c() -> None:
    @dataclass(frozen=True)
    class Second(Scripted):
        """Interrupts in the batch that holds row 2."""

        def step(self, problem: Problem, state: int) -> tuple[int | None, Claims]:
            if Key(2) in problem.keys:
                raise KeyboardInterrupt
            return None, Claims(proved=torch.full((len(problem),), 1e-3))

    network = KNOWN.network()
    with pytest.warns(UserWarning, match="interrupted"):
        records = solve([known_problem(network)], [Second()], batch=2)
    assert [r.status for r in records] == ["finished"] * 2 + ["interrupted"] * 4


def test_ctrl_c_before_the_first_step_of_a_batch_loses_nothing() -> None:
    """The network itself is slow and is interrupted while it looks at the centres of the third batch."""
    asked: list[int] = []

    class Slow(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = KNOWN.model

        def forward(self, x: Tensor) -> Tensor:
            if asked and bool((x[0] == KNOWN.x[4]).all()):
                signal.raise_signal(signal.SIGINT)
            return self.model(x)

    network = hf.Network.from_torch(Slow().eval())
    problem = known_problem(network)
    asked.append(1)
    with pytest.warns(UserWarning, match="interrupted"):
        records = solve([problem], [Scripted((proves(1e-3),))], batch=2)
    assert [r.status for r in records] == ["finished"] * 4 + ["interrupted"] * 2
    assert [r.bracket.lower.value for r in records] == [1e-3] * 4 + [0.0] * 2


def test_a_resumed_search_never_forgets() -> None:
    """What an interrupted run proved stays, even if the resumed one gets less far."""
    memory = Memory()
    with pytest.warns(UserWarning, match="interrupted"):
        solve([known_problem()], [PGD(rounds=1), Scripted((proves(2e-3), interrupts))], store=memory)
    before = dict(memory.kept)
    records = solve([known_problem()], [Scripted((proves(1e-3),))], store=memory)
    for r in records:
        assert r.bracket.lower.value == 2e-3
        assert r.bracket.upper.value == before[r.key].bracket.upper.value < math.inf
        assert r.status == "finished"
    assert all(r.bracket.lower.value >= 2e-3 for r in memory.kept.values())


def test_finished_rows_are_not_asked_again() -> None:
    memory, network = Memory(), KNOWN.network()
    first = solve([known_problem(network)], [PGD(rounds=1)], store=memory)
    problem = known_problem(network)
    before = network.queries
    problem.check()
    check = network.queries - before
    before = network.queries
    again = solve([problem], [PGD(rounds=1)], store=memory)
    assert network.queries - before == check
    assert again == first
    del memory.kept[Key(3)]
    before = network.queries
    [*_] = solve([problem], [PGD(rounds=1)], store=memory)
    assert 0 <= network.queries - before - check - first[0].queries <= 2
    assert sorted(memory.kept) == [Key(i) for i in range(6)]


# ---------------------------------------------------------------- where a region ends


def test_a_proof_of_all_that_a_region_can_hold_is_a_proof_at_every_radius() -> None:
    network = KNOWN.network((-9, 9))
    region = Ball(KNOWN.x, torch.zeros(len(KNOWN.x), dtype=torch.float64), 2, network.domain)
    problem, limit = truth.radius_problem(network, region, KNOWN.y), float(region.limit().max())
    for record in solve([problem], [Scripted((proves(0.01), proves(limit)))]):
        assert record.status == "closed"
        assert record.bracket.lower.value == record.bracket.upper.value == math.inf
        assert "no change that is allowed breaks it" in record.bracket.note
    short = solve([problem], [Scripted((proves(float(region.limit().min()) * (1 - 1e-9)),))])
    assert all(r.bracket.lower.value < math.inf and not r.bracket.note for r in short)
    with pytest.raises(Contradiction, match="Scripted says at least inf"):
        solve([problem], [PGD(), Scripted((proves(limit),))])


@pytest.mark.parametrize("methods", [[], [PGD()], [hf.certify.Certify()]], ids=["none", "PGD", "Certify"])
def test_an_input_that_cannot_move_needs_no_method(methods: list[Method[Any]]) -> None:
    network, still = KNOWN.network(), torch.zeros(len(KNOWN.x), KNOWN.x.shape[1], dtype=torch.bool)
    still[0] = True
    region = hf.region.Frames(KNOWN.x, torch.zeros(len(KNOWN.x), dtype=torch.float64), 2, mask=still)
    first, *others = solve([truth.radius_problem(network, region, KNOWN.y)], methods)
    assert first.bracket.lower.value < math.inf
    for record in others:
        assert record.status == "closed"
        assert record.bracket.lower.value == math.inf
        assert record.bracket.lower.evidence.method == "the input itself"
        assert "nothing may change" in record.bracket.note


# ---------------------------------------------------------------- lies


@pytest.mark.parametrize("order", [1, -1], ids=["lie first", "lie last"])
def test_a_proof_above_a_witness_is_a_contradiction(order: int) -> None:
    liar = Scripted((proves(1e9),))
    with pytest.raises(Contradiction, match=r"Scripted says at least 1000000000.0 .proved.*PGD says at most"):
        solve([known_problem()], [liar, PGD()][::order])


def test_a_proof_a_hair_above_the_truth_is_caught_where_the_attack_is_exact() -> None:
    known = truth.one_relu()
    problem = truth.radius_problem(
        hf.Network.from_torch(known.model), Ball(known.x, torch.zeros(1), math.inf), torch.tensor([0])
    )
    [record] = solve([problem], [PGD(), Scripted((proves(known.radius(math.inf)),))])
    assert record.bracket.lower.value == known.radius(math.inf)
    with pytest.raises(Contradiction):
        solve([problem], [PGD(), Scripted((proves(1.01 * known.radius(math.inf)),))])


def test_a_false_witness_is_replayed_and_ignored() -> None:
    unharmed = KNOWN.x + 1e-6
    records = solve([known_problem()], [Scripted((shows(unharmed), shows(KNOWN.x)))])
    assert all(r.bracket.upper.value == math.inf for r in records)


def test_nan_is_neither_proof_nor_witness_nor_estimate() -> None:
    def nothing(problem: Problem) -> Claims:
        rows = torch.full((len(problem),), math.nan, dtype=torch.float64)
        witness, found = (
            torch.full_like(problem.region.centre, math.nan),
            torch.ones(len(problem), dtype=torch.bool),
        )
        return Claims(proved=rows, estimate=rows, witness=witness, found=found)

    for r in solve([known_problem()], [Scripted((nothing,))]):
        assert (r.bracket.lower.value, r.bracket.upper.value, r.bracket.estimates) == (0.0, math.inf, ())
    region = Ball(KNOWN.x, torch.ones(6, dtype=torch.float64), 2)
    worst = replace(known_problem(), goal="worst", region=region)
    start = [r.bracket.upper.value for r in solve([worst], [])]
    assert [r.bracket.upper.value for r in solve([worst], [Scripted((nothing,))])] == start


def test_a_witness_outside_the_region_or_the_domain_is_no_witness() -> None:
    network = KNOWN.network(domain=(0.0, 1.0))
    zero = torch.zeros(6, dtype=torch.float64)
    outside = replace(known_problem(network), region=Ball(KNOWN.x, zero, 2, network.domain))
    far = torch.where(KNOWN.model(torch.full((1, 6), 50.0)).argmax() == KNOWN.y, -50.0, 50.0)[:, None].expand(
        6, 6
    )
    assert all(r.bracket.upper.value == math.inf for r in solve([outside], [Scripted((shows(far),))]))
    worst = replace(known_problem(), goal="worst", region=Ball(KNOWN.x, zero + 0.1, 2))
    start = [r.bracket.upper.value for r in solve([worst], [])]
    assert [r.bracket.upper.value for r in solve([worst], [Scripted((shows(far),))])] == start


def test_a_flip_by_float32_rounding_alone_is_no_witness() -> None:
    """In real arithmetic the model never changes its mind: only in float32 is a small number lost beside 1e8."""

    class Rounds(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            lost = (x[:, :1] + 1e8) - 1e8
            return torch.cat([lost + 0.5 - x[:, :1], torch.zeros_like(lost)], 1)

    network = hf.Network.from_torch(Rounds().eval())
    x = torch.zeros(1, 1)
    witness = torch.tensor([[0.75]])
    assert network(witness)[0, 0] < 0  # the float32 model does fail there
    problem = truth.radius_problem(network, Ball(x, torch.zeros(1), 2), torch.tensor([0]))
    [record] = solve([problem], [Scripted((shows(witness),))])
    assert record.bracket.upper.value == math.inf


def test_methods_that_do_not_apply_are_named_with_the_reason() -> None:
    records = solve([known_problem()], [Picky(), Corners(rounds=1)])
    assert all(r.skipped == ("Picky: wants the moon",) for r in records)
    assert all(r.bracket.upper.value < math.inf for r in records)


def test_estimates_never_move_an_end() -> None:
    def guess(problem: Problem) -> Claims:
        return Claims(
            estimate=torch.full((len(problem),), 5.0),
            estimate_kind="sampled",
            confidence=0.9,
            assumptions=("luck",),
        )

    for r in solve([known_problem()], [Scripted((guess,)), CLEVER(batches=5)]):
        assert (r.bracket.lower.value, r.bracket.upper.value) == (0.0, math.inf)
        first, second = r.bracket.estimates
        assert (first.value, first.evidence.kind, first.evidence.confidence) == (5.0, "sampled", 0.9)
        assert first.evidence.assumptions == ("luck",)
        assert second.evidence.kind == "estimated"


def test_a_store_that_holds_a_false_proof_is_contradicted_too() -> None:
    lie = Bound(1e9, Evidence("proved", "an old version"))
    question = known_problem().digests()[0]
    record = Record(Key(0), Bracket(lie, trivial_bound(math.inf)), "interrupted", 0.0, 0, question=question)
    with pytest.raises(Contradiction, match="an old version"):
        solve([known_problem()], [PGD()], store=Memory({Key(0): record}))


def test_solve_is_silent_when_all_is_well() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        solve(
            [known_problem()],
            [PGD(rounds=1), CarliniWagner(rounds=1, steps=5), Corners(rounds=1), CLEVER(batches=5)],
        )


def test_a_contradiction_keeps_the_rest_of_the_batch_and_names_the_input() -> None:
    def lies_of_the_first(problem: Problem) -> Claims:
        proved = torch.full((len(problem),), math.nan, dtype=torch.float64)
        proved[0] = 1e9
        return Claims(proved=proved)

    store = Memory({})
    with pytest.raises(
        Contradiction, match=r"input 0: Scripted says at least 1000000000\.0.*PGD says at most"
    ):
        solve([known_problem()], [Scripted((lies_of_the_first,)), PGD(rounds=1)], store=store)
    first, *others = [store.kept[key] for key in sorted(store.kept)]
    assert (first.status, first.bracket.lower.value, first.bracket.upper.value) == ("refuted", 0.0, math.inf)
    assert others
    assert all(r.status == "finished" and r.bracket.upper.evidence.kind == "witnessed" for r in others)


def test_a_tie_of_rounding_is_judged_by_the_float64_twin() -> None:
    """1 + 2^-30 is 1 in float32, so both outputs are equal there; in real arithmetic the first is larger."""
    model = nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, 2.0**-30], [1.0, 0.0]]))
    net, x = hf.Network.from_torch(model.eval()), torch.ones(1, 2)
    with torch.no_grad():
        assert torch.equal(model(x)[:, 0], model(x)[:, 1])
    [held] = hf.radius(net, x, [0], methods=[hf.certify.Certify()])
    assert held.upper.value > 0
    assert "fails at the input" not in held.note
    [lost] = hf.radius(net, x, [1], methods=[hf.certify.Certify()])
    assert lost.upper.value == 0


def test_other_methods_go_on_from_what_is_known_and_other_questions_are_refused() -> None:
    store, problem = Memory({}), known_problem()
    first = solve([problem], [PGD(rounds=1)], store=store)
    again = solve([problem], [PGD(rounds=1)], store=store)
    assert [r.bracket for r in again] == [r.bracket for r in first]
    better = solve([problem], [PGD(rounds=1), Scripted((proves(0.0),))], store=store)
    assert all(b.bracket.upper.value <= a.bracket.upper.value for a, b in zip(first, better, strict=True))
    moved = replace(problem, region=replace(problem.region, centre=problem.region.centre + 0.01))
    with pytest.raises(StoreError, match="belongs to another question"):
        solve([moved], [PGD(rounds=1)], store=store)


def test_a_model_that_changes_while_it_is_asked_has_no_proof() -> None:
    class Clock(nn.Module):
        """What it reads is no part of it: as a file or a clock would be."""

        def forward(self, x: Tensor) -> Tensor:
            return torch.stack([x[:, 0] + HOUR[0].value, torch.zeros_like(x[:, 0])], 1)

    class Hour:
        __slots__ = ("value",)

    HOUR = [Hour()]
    HOUR[0].value = 1.0
    net, x = hf.Network.from_torch(Clock().eval()), torch.ones(1, 1)

    def later(problem: Problem) -> Claims:
        HOUR[0].value = -0.5
        return Claims(proved=torch.ones(len(problem), dtype=torch.float64))

    with pytest.raises(BadInput, match="answers differently now than before the proofs"):
        hf.radius(net, x, [0], methods=[Scripted((later,))])


# ---------------------------------------------------------------- goals that rise, parts, signs, slack, judges, what lies beside


def output_problem(goal: Goal, part: str = "", radius: float = 0.5) -> Problem:
    """The first output of a linear network over a maximum-norm ball: least and most are w.x + b -+ radius * |w|_1."""
    ball = Ball(KNOWN.x, torch.full((len(KNOWN.x),), radius, dtype=torch.float64), math.inf)
    rows = torch.zeros(len(KNOWN.x), 1, KNOWN.network().outputs_for(KNOWN.x), dtype=torch.float64)
    rows[:, :, 0] = 1.0
    keys = tuple(Key(i, part=part) for i in range(len(KNOWN.x)))
    return Problem(
        KNOWN.network(), ball, Linear(rows, torch.zeros(len(KNOWN.x), 1, dtype=torch.float64)), goal, keys
    )


def closed_form(radius: float = 0.5) -> tuple[Tensor, Tensor, Tensor]:
    """Of the first output: its value at the centre, how far it may move, and how fast in the maximum norm."""
    problem = output_problem("worst")
    _, gradient = problem.score_and_gradient(KNOWN.x)
    steep = gradient.double().flatten(1).abs().sum(1)
    return problem.score(KNOWN.x).double(), radius * steep, steep


def corner(problem: Problem) -> Claims:
    """The point of the region with the smallest score, of a linear network; a hair inside, whatever float32 rounds."""
    centre = problem.region.centre
    _, gradient = problem.score_and_gradient(centre)
    moved = centre - (1 - 1e-6) * problem.region.per_row(problem.family.radius.to(gradient)) * gradient.sign()
    return Claims(witness=moved, found=torch.ones(len(problem), dtype=torch.bool))


def test_the_largest_value_is_met_from_below_and_proved_from_above() -> None:
    centre, moves, _ = closed_form()
    prover = Scripted(script=(lambda p: Claims(proved=-(centre + moves) - 1e-3), corner))
    for record, most in zip(
        solve([output_problem("largest")], [prover]), (centre + moves).tolist(), strict=True
    ):
        lower, upper = record.bracket.lower, record.bracket.upper
        assert record.goal == "largest"
        assert (lower.evidence.kind, upper.evidence.kind) == ("witnessed", "proved")
        assert lower.value <= most + 1e-5
        assert lower.value == pytest.approx(most, abs=1e-5)
        assert upper.value == pytest.approx(most + 1e-3)
        assert lower.executed == pytest.approx(lower.value, abs=1e-5)
        assert record.witness is lower.evidence.witness


def test_the_largest_value_is_the_negative_of_the_smallest_of_the_negative() -> None:
    smallest = solve([output_problem("worst")], [PGD(rounds=1)])
    largest = solve([output_problem("largest")], [PGD(rounds=1)])
    centre, moves, _ = closed_form()
    for low, high, c, m in zip(smallest, largest, centre.tolist(), moves.tolist(), strict=True):
        assert c - m - 1e-4 <= low.bracket.upper.value <= c
        assert c <= high.bracket.lower.value <= c + m + 1e-4


def test_steepness_is_the_dual_norm_of_a_linear_network() -> None:
    _, _, steep = closed_form()
    prover = Scripted(script=(lambda p: Claims(proved=-steep - 1e-3), corner))
    for record, truth_ in zip(solve([output_problem("steepness")], [prover]), steep.tolist(), strict=True):
        lower, upper = record.bracket.lower, record.bracket.upper
        assert (lower.evidence.kind, upper.evidence.kind) == ("witnessed", "proved")
        assert truth_ * (1 - 1e-4) <= lower.value <= truth_  # rounding is taken off
        assert upper.value == pytest.approx(truth_ + 1e-3)
    nothing = solve([output_problem("steepness")], [])
    assert [(r.bracket.lower.value, r.bracket.upper.value) for r in nothing] == [(0.0, math.inf)] * 6


@pytest.mark.parametrize("goal", ["largest", "steepness"])
def test_a_false_proof_of_a_number_that_rises_is_a_contradiction(goal: Goal) -> None:
    centre, moves, steep = closed_form()
    truth_ = centre + moves if goal == "largest" else steep
    with pytest.raises(Contradiction):
        solve([output_problem(goal)], [Scripted(script=(corner, lambda p: Claims(proved=-(truth_ - 0.1))))])


def test_a_resumed_search_of_a_number_that_rises_never_forgets() -> None:
    memory, problem = Memory(), output_problem("largest")
    first = solve([problem], [Scripted(script=(corner,))], store=memory)
    again = solve([problem], [Scripted(script=(proves(-100.0),))], seed=1, store=memory)
    for one, two in zip(first, again, strict=True):
        assert two.bracket.lower.value == one.bracket.lower.value
        assert two.bracket.upper.value == 100.0


def test_a_sign_is_enough_and_one_case_that_fails_settles_the_others() -> None:
    region = Ball(KNOWN.x, torch.zeros(len(KNOWN.x), dtype=torch.float64), 2)
    safe = replace(known_problem(), goal="worst", region=region)
    asked: list[int] = []

    def step(problem: Problem) -> Claims:
        asked.append(len(problem))
        return Claims(proved=torch.full((len(problem),), 1e-9, dtype=torch.float64))

    records = solve([safe], [Scripted(script=(step, step, step))], Stop(sign=True))
    assert len(asked) == 1
    assert [r.status for r in records] == ["finished"] * 6
    outputs = KNOWN.network().outputs_for(KNOWN.x)
    other = replace(
        safe, property=Robustness((KNOWN.y + 1) % outputs), keys=tuple(Key(i, 1) for i in range(6))
    )  # fails at once
    asked.clear()
    records = solve(
        [replace(safe, keys=tuple(Key(i, 0) for i in range(6))), other],
        [Scripted(script=(step,))],
        Stop(sign=True),
    )
    assert asked == []  # sat: nothing more is asked
    assert all(r.bracket.upper.value <= 0 for r in records if r.key.frame == 1)


def test_parts_hear_what_others_witness() -> None:
    """Only the radius is searched; its witness is a point of the worst score's region too, and the other way round."""
    far = torch.full((len(KNOWN.x),), 1e3, dtype=torch.float64)
    near = replace(known_problem(), keys=tuple(Key(i, part="radius") for i in range(6)))
    worst = replace(
        near, goal="worst", region=Ball(KNOWN.x, far, 2), keys=tuple(Key(i, part="worst") for i in range(6))
    )
    for order in ([near, worst], [worst, near]):
        records = {
            r.key: r
            for r in solve(order, lambda problem: [CarliniWagner()] if problem.goal == "radius" else [])
        }
        for i in range(6):
            radius, score = records[Key(i, part="radius")], records[Key(i, part="worst")]
            assert radius.bracket.upper.value < math.inf
            assert score.bracket.upper.value <= 0
            assert score.bracket.upper.evidence.method == "CarliniWagner"
    alone = [replace(p, keys=tuple(Key(i + 10 * k) for i in range(6))) for k, p in enumerate((near, worst))]
    records = {
        r.key: r for r in solve(alone, lambda problem: [CarliniWagner()] if problem.goal == "radius" else [])
    }
    assert all(
        records[Key(i + 10)].bracket.upper.value > 0 for i in range(6)
    )  # questions of their own keep to themselves


def test_a_proof_that_another_part_refutes_is_a_contradiction() -> None:
    far = torch.full((len(KNOWN.x),), 1e3, dtype=torch.float64)
    near = replace(known_problem(), keys=tuple(Key(i, part="radius") for i in range(6)))
    worst = replace(
        near, goal="worst", region=Ball(KNOWN.x, far, 2), keys=tuple(Key(i, part="worst") for i in range(6))
    )
    with pytest.raises(Contradiction, match="worst"):
        solve(
            [worst, near],
            lambda problem: (
                [CarliniWagner()] if problem.goal == "radius" else [Scripted(script=(proves(0.001),))]
            ),
        )


@pytest.mark.parametrize(("beyond", "fine"), [(0.5, True), (2.0, False)])
def test_a_proof_may_pass_a_witness_by_its_slack_and_no_further(beyond: float, fine: bool) -> None:
    shown = solve([output_problem("worst")], [])
    slack = min(r.bracket.upper.slack for r in shown)
    assert 0 < slack < 1e-4
    ends = torch.tensor(
        [r.bracket.upper.value + beyond * r.bracket.upper.slack for r in shown], dtype=torch.float64
    )
    script = (Claims(proved=ends),)
    if fine:
        records = solve([output_problem("worst")], [Scripted(script=script)])
        assert [r.bracket.lower.value for r in records] == [r.bracket.upper.value for r in shown]
        assert all(r.status == "closed" for r in records)
    else:
        with pytest.raises(Contradiction):
            solve([output_problem("worst")], [Scripted(script=script)])


@dataclass(frozen=True)
class Listener(Scripted):
    """Writes down what it is told."""

    heard: list[tuple[list[float], list[float]]] = field(default_factory=list)

    def update_bounds(self, problem: Problem, state: int, lower: Tensor, upper: Tensor) -> int:
        self.heard.append((lower.tolist(), upper.tolist()))
        return state


def test_methods_are_told_both_ends_before_every_step() -> None:
    listener = Listener(script=(Claims(), Claims(), Claims()))
    records = solve(
        [known_problem()], [Scripted(script=(proves(1e-6), shows(-100 * KNOWN.x), proves(1e-5))), listener]
    )
    assert len(listener.heard) == 3
    assert listener.heard[0] == ([1e-6] * 6, [math.inf] * 6)
    assert listener.heard[2] == (
        [r.bracket.lower.value for r in records],
        [r.bracket.upper.value for r in records],
    )
    turned = Listener(script=(Claims(), Claims()))
    [first, *_] = solve([output_problem("largest")], [Scripted(script=(proves(-100.0),)), turned])
    assert turned.heard[0][0][0] == -100.0  # as methods are asked: the smallest of the negative
    assert turned.heard[0][1][0] == -first.bracket.lower.value


def ends_of(record: Record) -> tuple[float, float]:
    return record.bracket.lower.value, record.bracket.upper.value


def test_the_smallest_and_the_largest_value_are_asked_for_in_one_batch() -> None:
    """Each record still speaks of its own end, and methods that are chosen apart stay apart."""
    smallest = output_problem("worst", "smallest")
    both = [smallest, replace(smallest, goal="largest", keys=output_problem("largest", "largest").keys)]
    listener = Listener(script=(Claims(),))
    records = solve(both, [Scripted(script=(proves(-100.0),)), listener])
    assert [len(lower) for lower, _ in listener.heard] == [2 * len(KNOWN.x)]
    apart = [solve([problem], [Scripted(script=(proves(-100.0),))]) for problem in both]
    for one, two in zip(records, [record for part in apart for record in part], strict=True):
        assert (one.key, one.goal, one.aside.keys()) == (two.key, two.goal, two.aside.keys())
        assert ends_of(one) == pytest.approx(ends_of(two))
    other = Listener(script=(proves(-200.0),))
    records = solve(
        both, lambda problem: [other if problem.goal == "largest" else Scripted(script=(proves(-100.0),))]
    )
    assert {record.bracket.lower.value for record in records[: len(KNOWN.x)]} == {-100.0}
    assert {record.bracket.upper.value for record in records[len(KNOWN.x) :]} == {200.0}


def test_methods_may_be_chosen_for_each_problem() -> None:
    one = known_problem(keys=[Key(i) for i in range(6)])
    other = known_problem(one.network, p=1, keys=[Key(10 + i) for i in range(6)])
    records = solve(
        [one, other],
        lambda problem: [Scripted(script=(proves(1e-6 if problem.keys[0].index < 10 else 2e-6),))],
    )
    assert [r.bracket.lower.value for r in records] == [1e-6] * 6 + [2e-6] * 6


def test_a_witness_counts_only_where_every_judge_agrees() -> None:
    """The same network elsewhere says something else: what breaks one alone is no witness."""
    shifted = nn.Sequential(
        nn.Flatten(), nn.Linear(KNOWN.x[0].numel(), KNOWN.network().outputs_for(KNOWN.x))
    ).eval()
    with torch.no_grad():
        shifted[1].weight.zero_()
        shifted[1].bias.zero_()
    problem = output_problem("worst")
    plain = solve([problem], [Scripted(script=(corner,))])
    judged = solve([replace(problem, judges=(hf.Network.from_torch(shifted),))], [Scripted(script=(corner,))])
    for one, two in zip(plain, judged, strict=True):
        assert two.bracket.upper.value == max(
            0.0, one.bracket.upper.value
        )  # the judge's score is 0 everywhere
    itself = solve([replace(problem, judges=(KNOWN.network(),))], [Scripted(script=(corner,))])
    assert [r.bracket.upper.value for r in itself] == pytest.approx([r.bracket.upper.value for r in plain])


def test_what_is_found_on_the_way_lies_beside_its_record() -> None:
    closed = replace(
        known_problem(), property=Robustness(torch.where(torch.arange(6) == 2, (KNOWN.y + 1) % 2, KNOWN.y))
    )
    found = Scripted(script=(lambda p: Claims(aside={"map": torch.arange(len(p) * 3.0).reshape(len(p), 3)}),))
    memory = Memory()
    records = solve([closed], [found], store=memory)
    kept = [r.aside["map"].tolist() if "map" in r.aside else None for r in records]
    failing = [i for i, r in enumerate(records) if r.bracket.closed]
    assert 2 in failing
    assert all(kept[i] is None for i in failing)  # nobody asked about it
    assert [k for i, k in enumerate(kept) if i not in failing] == torch.arange(
        (6 - len(failing)) * 3.0
    ).reshape(-1, 3).tolist()
    assert memory.kept[Key(0)].aside["map"].shape == (3,)


def test_the_clock_is_set_around_every_step() -> None:
    ends: list[float] = []

    def look(problem: Problem) -> Claims:
        ends.append(time_limit.deadline() - time.monotonic())
        return Claims()

    solve([known_problem()], [Scripted(script=(look, look))], Stop(seconds=60), batch=3)
    first, _, last, _ = ends
    assert 20 < first <= 30  # two batches share the time
    assert first < last <= 60
    solve([known_problem()], [Scripted(script=(look,))])
    assert ends[-1] == time_limit.deadline() == math.inf
    with time_limit.within(time.monotonic() + 5):
        solve([known_problem()], [Scripted(script=(look,))], Stop(seconds=60))
    assert ends[-1] <= 5  # who asks may set an earlier one


def test_an_input_without_an_answer_takes_no_other_with_it() -> None:
    """Witnesses are asked once more, alone, where a layer rounds otherwise than in a batch."""
    torch.manual_seed(0)
    layer = nn.Linear(3, 3)

    class Hole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: Tensor) -> Tensor:
            return torch.where(x[:, :1] == 0.015625, torch.nan, self.layer(x))

    x = torch.rand(6, 3) * 0.5 + 0.25
    x[4, 0] = 0.015625
    net = hf.Network.from_torch(Hole().eval(), domain=(0, 1))
    required = Robustness(layer(x).argmax(1))
    found = solve(
        [hf.Problem(net, Ball(x, torch.full((6,), torch.inf), 2, net.domain), required, "radius")], [PGD()]
    )
    assert [record.status for record in found] == ["finished"] * 4 + ["failed", "finished"]
    assert "NaN" in found[4].bracket.note
    assert all(math.isfinite(found[row].bracket.upper.value) for row in (0, 1, 2, 3, 5))
