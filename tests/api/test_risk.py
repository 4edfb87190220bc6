"""hf.risk: all three quantities from both sides, attacked."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import holdfast as hf
from holdfast import time_limit
from holdfast.api import risk as risks
from holdfast.api.risk import Risk, estimate_text
from holdfast.errors import BadInput
from holdfast.lipschitz import Shells
from holdfast.method import Claims, Method
from holdfast.problem import Goal, Problem
from holdfast.random_streams import RandomStreams
from holdfast.result import Bound, Bracket, Evidence, trivial_bound
from holdfast.solver import Progress
from sizes import every

FEW = 60  # queries for Q


@pytest.fixture(scope="module")
def net() -> hf.Network:
    torch.manual_seed(1)
    return hf.Network.from_torch(
        nn.Sequential(nn.Linear(4, 12), nn.ReLU(), nn.Linear(12, 3)).eval(), domain=(0, 1)
    )


@pytest.fixture(scope="module")
def x() -> Tensor:
    return torch.rand(3, 4, generator=torch.Generator().manual_seed(2)) * 0.6 + 0.2


def linear() -> tuple[hf.Network, Tensor]:
    """Outputs (w.x, 0) with w = (1, -2, 0.5): the margin is w.x itself."""
    model = nn.Linear(3, 2)
    model.weight.data = torch.tensor([[1.0, -2.0, 0.5], [0.0, 0.0, 0.0]])
    model.bias.data = torch.zeros(2)
    return hf.Network.from_torch(model.eval()), torch.tensor([[2.0, 0.25, 1.0]])


@pytest.mark.parametrize(("norm", "steep"), [(1, 2.0), (2, math.sqrt(5.25)), (math.inf, 3.5)])
def test_everything_is_known_of_a_linear_network(norm: float, steep: float) -> None:
    net, x = linear()
    [r] = hf.risk(net, x, "robustness", norm=norm, radius=0.1, queries=FEW)
    score = 2.0
    assert r.score == pytest.approx(score)
    assert r.metric is not None
    assert r.radius is not None
    for bracket, truth in ((r.metric, steep), (r.worst, score - 0.1 * steep), (r.radius, score / steep)):
        assert bracket.lower.value <= truth * (1 + 1e-6)
        assert bracket.upper.value >= truth * (1 - 1e-6)
        assert bracket.gap < 5e-3 * truth
    assert r.estimate is not None
    assert r.estimate.evidence.kind == "estimated"
    assert score / steep > 0.1
    assert (
        r.estimate.value == 0.1
    )  # Theorem 1 speaks of the ball in which Q was looked for, and of no larger one


@pytest.mark.parametrize(("norm", "steep"), [(1, 2.0), (2, math.sqrt(5.25)), (math.inf, 3.5)])
def test_the_estimate_of_a_linear_network_is_its_radius_and_never_above_a_witness(
    norm: float, steep: float
) -> None:
    net, x = linear()
    [r] = hf.risk(net, x, "robustness", norm=norm, radius=3.0, queries=FEW)
    assert r.estimate is not None
    assert r.radius is not None
    assert r.refuted_estimate is None
    assert r.estimate.value == pytest.approx(2.0 / steep, rel=5e-3)
    assert r.estimate.value <= r.radius.upper.value


def known(score: float, q: float, witnessed: float, searched: float | None) -> Risk:
    """With a Q that was found and a failure at a distance."""
    nothing, met = trivial_bound(-math.inf), Evidence("witnessed", "Steepest")
    metric = Bracket(Bound(q, met), trivial_bound(math.inf))
    radius = Bracket(
        trivial_bound(0.0), trivial_bound(math.inf) if math.isinf(witnessed) else Bound(witnessed, met)
    )
    return Risk(
        score, Bracket(nothing, trivial_bound(math.inf)), metric, radius, None, (), 0, 0.0, searched=searched
    )


def test_an_estimate_beyond_a_witness_is_refuted() -> None:
    """s / Q = 0.1008 beside an input that fails at 0.033: no estimate any more, and shown as wrong."""
    found = known(1.0, 1 / 0.1008, 0.033, 0.2)
    assert found.estimate is None
    assert found.refuted_estimate == pytest.approx(0.1008)
    assert estimate_text(found) == "0.1008, refuted: fails at 0.033"
    fine = known(1.0, 10.0, 0.2, 0.2)
    assert fine.estimate is not None
    assert (fine.estimate.value, fine.refuted_estimate, estimate_text(fine)) == (0.1, None, "0.1")
    within_the_search = known(
        1.0, 10.0, 0.09999, 0.2
    )  # the error of a search for Q refutes nothing, and is not passed on
    assert within_the_search.estimate is not None
    assert within_the_search.estimate.value == 0.09999


def test_an_estimate_is_at_most_the_radius_in_which_q_was_looked_for() -> None:
    capped = known(854.0, 1.0, math.inf, 1.0)
    assert capped.estimate is not None
    assert capped.estimate.value == 1.0
    assert (
        known(854.0, 1.0, math.inf, None).estimate is None
    )  # a run of before, of which nobody knows that radius


QUESTIONS = [
    ("robustness", {}), ("confidence", {"epsilon": 0.05}), ("runner-up", {}), ("targeted", {"targets": 0}), ("least", {}),
    ("uncertainty", {"epsilon": 0.01}), ("uncertainty", {"toward": torch.tensor([[0.2, 0.3, 0.5]])}), ("tie", {"epsilon": 0.01}),
    ("reach", {"targets": 1, "epsilon": 0.1}),
]  # fmt: skip


@pytest.mark.parametrize(("question", "options"), every(QUESTIONS, 2))
def test_no_point_of_the_ball_is_beyond_a_proved_end(
    net: hf.Network, x: Tensor, question: str, options: dict[str, object]
) -> None:
    if question == "targeted":
        options = {"targets": [0 if c else 1 for c in net(x).argmax(1).tolist()]}
    radius = 0.15
    found = hf.risk(net, x, question, radius=radius, queries=FEW, **options)  # type: ignore[arg-type]
    twin = net.double(x)
    assert twin is not None
    score = score_of(question, options, net(x))
    ball = hf.Ball(x.double(), radius, math.inf, net.domain)
    points = ball.sample(4000, RandomStreams.of(range(len(ball)), 0))
    scores = torch.stack([score(said) for said in twin(points.flatten(0, 1)).reshape(*points.shape[:2], -1)])
    at = score(twin(x.double()))
    for row, r in enumerate(found):
        assert r.metric is not None
        assert r.radius is not None
        assert r.metric.upper.evidence.kind == "proved"
        assert r.worst.lower.value <= float(scores[:, row].min()) + 1e-9
        away = (points[:, row] - x[row].double()).abs().amax(1)
        ratio = (scores[:, row] - at[row]).abs() / away
        assert float(ratio.max()) <= r.metric.upper.value * (1 + 1e-9)
        broken = away[~(scores[:, row] > 0)]
        assert not len(broken) or r.radius.lower.value <= float(broken.min())
        assert math.isfinite(r.metric.upper.value)
        if r.example is not None:
            assert float(score(twin(r.example[None].double().expand(len(x), -1)))[row]) <= 1e-6


def score_of(question: str, options: dict[str, object], outputs: Tensor):  # type: ignore[no-untyped-def]
    """The same properties in other words."""
    top = outputs.argmax(1)
    epsilon = float(options.get("epsilon", 0.0))  # type: ignore[arg-type]
    rows = torch.arange(len(outputs))

    def others(f: Tensor) -> Tensor:
        return f.masked_fill(nn.functional.one_hot(top, 3).bool(), -math.inf).amax(1)

    def probability(z: Tensor) -> Tensor:
        return z.softmax(1)

    if question == "robustness":
        return lambda z: z[rows, top] - others(z)
    if question == "confidence":
        return lambda z: probability(z)[rows, top] - others(probability(z)) - epsilon
    if question in ("runner-up", "targeted", "least"):
        order = outputs.argsort(1, descending=True)
        rival = (
            torch.as_tensor(options["targets"])
            if question == "targeted"
            else order[:, 1 if question == "runner-up" else 2]
        )
        return lambda z: probability(z)[rows, top] - probability(z)[rows, rival]
    if question == "uncertainty":
        q = torch.as_tensor(options.get("toward", torch.full((1, 3), 1 / 3))).double()
        return lambda z: (q * (q.log() - z.log_softmax(1))).sum(1) - epsilon
    if question == "tie":
        return lambda z: (probability(z).sort(1).values[:, 2] - probability(z).sort(1).values[:, 1]) - epsilon
    level = outputs.double().softmax(1)[:, 1] + epsilon
    return lambda z: level - probability(z)[:, 1]


def test_only_the_patch_moves(net: hf.Network, x: Tensor) -> None:
    mask = torch.tensor([True, False, True, False])
    for r in hf.risk(net, x, "robustness", patch=mask, queries=FEW):
        row = x[[float(v) == r.score for v in margins(net, x)]]
        lowest = r.worst.upper.evidence.witness
        assert lowest is not None
        assert torch.equal(lowest[~mask], row[0][~mask])


def margins(net: hf.Network, x: Tensor) -> list[float]:
    first, second = net(x).topk(2).values.unbind(1)
    return (first - second).double().tolist()


def test_shares_say_how_far_each_feature_moves(net: hf.Network, x: Tensor) -> None:
    shares = [1.0, 0.0, 0.5, 0.1]
    boxed = hf.Box(x, *(net.domain.clamp(x + side * 0.1 * torch.tensor(shares)) for side in (-1, 1)))
    with_shares = hf.risk(net, x, "robustness", radius=0.1, shares=shares, queries=FEW)
    with_box = hf.risk(net, x, "robustness", region=boxed, queries=FEW)
    for a, b in zip(with_shares, with_box, strict=True):
        assert a.worst.lower.value == pytest.approx(b.worst.lower.value, abs=1e-5)
        assert a.metric is not None
        assert b.metric is None
        assert b.radius is None


def test_a_function_in_torch_is_proved_and_one_in_numpy_is_searched(net: hf.Network, x: Tensor) -> None:
    def score(z: Tensor) -> Tensor:
        return z[:, 0] - z[:, 1] + 3

    def same(z: Tensor) -> Tensor:
        return torch.as_tensor(score(torch.as_tensor(np.asarray(z.detach().cpu()))))

    proved, searched = (
        hf.risk(net, x, score, radius=0.1, queries=FEW),
        hf.risk(net, x, same, radius=0.1, queries=FEW),
    )
    for a, b in zip(proved, searched, strict=True):
        assert a.score == pytest.approx(b.score, abs=1e-5)
        assert a.metric is not None
        assert b.metric is not None
        assert math.isfinite(a.metric.upper.value)
        assert math.isinf(b.metric.upper.value)
        assert math.isinf(b.worst.lower.value)
        assert a.worst.lower.value <= b.worst.upper.value
        assert b.metric.lower.value <= a.metric.upper.value


@dataclass(frozen=True)
class Liar(Method[int]):
    """Proves too much of one question, and finds nothing against it."""

    goals: ClassVar[tuple[Goal, ...]] = ("radius", "worst", "steepness")

    claim: float = 0.99

    def obstacle(self, problem: Problem) -> None:
        return None

    def start(self, problem: Problem, seed: int) -> int:
        return 0

    def step(self, problem: Problem, state: int) -> tuple[None, Claims]:
        return None, Claims(proved=torch.full((len(problem),), self.claim, dtype=torch.float64))


@pytest.mark.parametrize(("goal", "claim"), [("worst", 0.99), ("radius", 0.99), ("steepness", -1e-3)])
def test_the_questions_hear_each_others_witnesses(goal: Goal, claim: float) -> None:
    """A lie about one part that its own search does not meet is met by the witnesses of the others."""
    net, x = linear()  # which can move by 4 / 7 in the maximum norm
    problems = risks.risk_problems(net, hf.Ball(x, 0.9), hf.Robustness(torch.tensor([0])))
    honest = risks.risk_methods(queries=FEW)
    with pytest.raises(
        hf.Contradiction,
        match=rf"input 0 {goal}: Liar says at least {claim} .proved., \w+ says at most .* the witness",
    ):
        hf.solve(problems, lambda problem: [Liar(claim)] if problem.goal == goal else honest(problem))


def test_a_run_that_was_stopped_between_its_parts_hears_them_too(tmp_path: Path) -> None:
    """What the last part finds betters the first one although that was finished before the run was taken up again."""
    net, x = linear()
    problems = risks.risk_problems(net, hf.Ball(x, 0.9), hf.Robustness(torch.tensor([0])))
    honest = risks.risk_methods(queries=FEW)

    def chosen(problem: Problem) -> list[Method[Any]]:
        return [] if problem.goal == "worst" else honest(problem)

    whole = hf.solve(problems, chosen)
    with hf.Store.create(tmp_path / "run") as store:
        hf.solve(problems[:1], chosen, store=store)
        again = hf.solve(problems, chosen, store=store)
        assert [str(r.bracket) for r in store.records()] == [
            str(r.bracket) for r in sorted(again, key=lambda r: r.key.part)
        ]
    assert [str(r.bracket) for r in again] == [str(r.bracket) for r in whole]
    assert whole[0].bracket.upper.evidence.method != "the input itself"
    assert risks.risks_of(again)[0].score == pytest.approx(2.0)


def test_nothing_is_proved_of_a_black_box(net: hf.Network, x: Tensor) -> None:
    box = hf.Network.from_callable(lambda a: net(torch.as_tensor(a)).numpy(), domain=(0, 1))
    for r in hf.risk(box, x, "confidence", radius=0.3, queries=FEW):
        assert r.metric is not None
        assert r.radius is not None
        assert (r.worst.lower.value, r.metric.upper.value, r.radius.lower.value) == (-math.inf, math.inf, 0.0)
        assert r.metric.lower.value > 0


def test_what_fails_at_the_input_itself_has_radius_zero(net: hf.Network, x: Tensor) -> None:
    wrong = net(x).argmin(1)
    for place, r in enumerate(hf.risk(net, x, "confidence", y=wrong, radius=0.1, queries=FEW)):
        assert r.radius is not None
        assert r.radius.closed
        assert r.radius.upper.value == 0
        assert "fails at the input itself" in r.radius.note
        assert r.example is not None
        assert torch.equal(r.example, x[place])
        assert r.estimate is None


def test_queries_are_counted_and_the_way_to_q_is_kept(net: hf.Network, x: Tensor) -> None:
    before = net.queries
    found = hf.risk(net, x, "robustness", radius=0.1, queries=200)
    assert (
        0 <= net.queries - before - found[0].queries * len(x) < 100
    )  # shared out evenly; checks of the input come before, and at last the parts hear each other
    for r in found:
        ratios = [step.ratio for step in r.path]
        assert ratios == sorted(ratios)
        assert r.metric is not None
        assert ratios[-1] <= r.metric.lower.value * (1 + 1e-4)
        assert all(step.queries <= 200 for step in r.path)


def test_the_same_seed_gives_the_same_answers(net: hf.Network, x: Tensor) -> None:
    first, second = (hf.risk(net, x, "robustness", radius=0.1, queries=FEW, seed=7) for _ in range(2))
    assert [(str(a.worst), str(a.metric), str(a.radius)) for a in first] == [
        (str(a.worst), str(a.metric), str(a.radius)) for a in second
    ]


ERRORS = [
    ("robust", {"radius": 0.1}, "unknown; there are robustness"),
    ("robustness", {}, "Give a radius"),
    ("robustness", {"radius": 0.0}, "empty"),
    ("robustness", {"radius": -1.0}, "empty"),
    ("robustness", {"radius": 0.1, "y": [0, 1, 7]}, "label 7 of input 2 is out of range"),
    ("targeted", {"radius": 0.1}, "name it"),
    ("targeted", {"radius": 0.1, "targets": 9}, "target 9 of input 0 is out of range"),
    ("tie", {"radius": 0.1, "targets": 1, "epsilon": 0.1}, "no meaning"),
    ("robustness", {"radius": 0.1, "queries": 3}, "at least"),
    ("robustness", {"radius": 0.1, "shares": [1.0]}, "one number for each feature"),
    ("robustness", {"radius": 0.1, "shares": [1.0] * 4, "norm": 2}, "leave the norm out"),
    ("robustness", {"patch": torch.zeros(4, dtype=torch.bool)}, "no feature"),
    ("robustness", {"patch": torch.ones(3, dtype=torch.bool)}, "a flag for each feature"),
    ("robustness", {"patch": torch.ones(4, dtype=torch.bool), "shares": [1.0] * 4}, "both say"),
    ("uncertainty", {"radius": 0.1, "toward": torch.tensor([[0.5, 0.1, 0.1]])}, "add up to one"),
]


@pytest.mark.parametrize(("question", "options", "said"), ERRORS)
def test_bad_input_is_refused_at_once(
    net: hf.Network, x: Tensor, question: str, options: dict[str, object], said: str
) -> None:
    with pytest.raises(hf.errors.BadInput, match=said):
        hf.risk(net, x, question, **options)  # type: ignore[arg-type]


def test_probabilities_are_not_taken_for_logits(x: Tensor) -> None:
    torch.manual_seed(0)
    sure = hf.Network.from_torch(nn.Sequential(nn.Linear(4, 3), nn.Softmax(1)).eval(), domain=(0, 1))
    with pytest.raises(hf.errors.BadInput, match="probabilities already"):
        hf.risk(sure, x, "confidence", radius=0.1)
    [r, *_] = hf.risk(sure, x, "confidence", radius=0.1, softmax=False, queries=FEW)
    assert math.isfinite(r.worst.lower.value)


# ---- the clock


@pytest.mark.usefixtures("cpu_clock")
def test_after_the_deadline_no_step_begins(net: hf.Network, x: Tensor) -> None:
    """Counted, not timed: of all parts together at most the step in which the time ran out ends late."""
    seen: list[Progress] = []
    hf.risk(net, x.repeat(20, 1), "confidence", radius=0.1, stop=hf.Stop(seconds=0.3), progress=seen.append)
    late = [now.method for now in seen if now.method != "done" and now.seconds > 0.3]
    assert len(late) <= 1


@pytest.mark.parametrize("goal", ["worst", "steepness"])
def test_a_step_that_proves_looks_at_the_clock(net: hf.Network, x: Tensor, goal: Goal) -> None:
    many = x.repeat(20, 1)
    problem = Problem(
        net,
        hf.Ball(many, 0.1),
        hf.Robustness(net(many).argmax(1)),
        goal,
        tuple(hf.result.Key(i) for i in range(60)),
    )
    method: Method[Any] = hf.certify.Certify() if goal == "worst" else Shells()
    proved = []
    for until in (0.0, math.inf):
        with time_limit.within(until):
            state = method.start(problem, 0)
            state, claims = method.step(problem, state)
            if goal == "steepness":
                state, claims = method.step(problem, state)  # the first looks at the input itself
        assert claims.proved is not None or until == 0.0  # it was cut off
        proved.append(
            torch.full((60,), torch.nan, dtype=torch.float64) if claims.proved is None else claims.proved
        )
        assert until == math.inf or state is not None  # not done: the run is stopped, not finished
    assert int(proved[0].isfinite().sum()) <= 2 * time_limit.ROWS_PER_CHECK
    assert bool(proved[1].isfinite().all())
    known = proved[0].isfinite()
    assert torch.allclose(proved[0][known], proved[1][known]) or goal == "steepness"


def test_methods_by_name_search_the_parts_that_they_fit_and_a_mesh_searches_for_q() -> None:
    net = hf.Network.from_torch(torch.nn.Sequential(torch.nn.Linear(3, 2)).eval(), domain=(0, 1))
    x = torch.full((1, 3), 0.5)
    [found] = hf.risk(
        net, x, "robustness", norm=2, radius=0.2, methods="mesh-lagrangian", queries=200, progress=False
    )
    assert found.metric is not None
    assert found.metric.lower.evidence.settings["searches"] == "mesh"
    assert found.worst.upper.evidence.method == "MeshLagrangian"
    assert found.worst.lower.value == -math.inf  # Nothing is proved: no proof was asked for.
    [default] = hf.risk(net, x, "robustness", norm=2, radius=0.2, queries=200, progress=False)
    assert default.worst.lower.value > -math.inf


def test_methods_that_fit_no_part_are_refused_before_the_search() -> None:
    net = hf.Network.from_torch(torch.nn.Sequential(torch.nn.Linear(3, 2)).eval(), domain=(0, 1))
    with pytest.raises(BadInput, match="none of them can answer"):
        hf.risk(net, torch.full((1, 3), 0.5), "robustness", radius=0.2, methods=["branch"], progress=False)
