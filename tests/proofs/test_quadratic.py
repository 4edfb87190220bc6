"""The checker's second-order models: against truth, and trying to break them."""

import functools
import json
import math
from fractions import Fraction
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from benchmarks.proofs.mutants import mutants

from holdfast.api.prove import prove
from holdfast.api.radius import radius_problems
from holdfast.attacks.pgd import PGD
from holdfast.bounding import quadratic_algebra
from holdfast.certificates.claim import pack_proof, request_header
from holdfast.certificates.model_file import model_for
from holdfast.certificates.parabolas import Parabolas
from holdfast.certificates.writing import Certificate
from holdfast.certify.tight_tier import Tighten, coefficients
from holdfast.network import Network
from holdfast.problem import Problem
from holdfast.property import Linear
from holdfast.region import Box
from holdfast.solver import Stop, solve
from holdfast_check import Model, Rejected, balls, check, quadratic
from holdfast_check.container import read_container
from holdfast_check.functions import ProductFunction
from holdfast_check.planes import StepBounds
from holdfast_check.proof import SCHEMA
from holdfast_check.quadratic import SecondOrderBounds, UnitBall
from holdfast_check.region import CheckedRegion
from holdfast_check.steps import FunctionStep, Program
from proof_networks import copies, network
from sizes import some

DRAW = np.random.default_rng(2)


@pytest.fixture(autouse=True)
def _drawn_anew() -> None:
    """Every test draws the same numbers, whichever ran before it."""
    DRAW.bit_generator.state = np.random.default_rng(7).bit_generator.state


Array = np.ndarray[Any, Any]


def program_of(net: Network, x: torch.Tensor, folder: Path) -> Program:
    problem = Problem(
        net,
        Box(x.double(), x.double() - 0.1, x.double() + 0.1),
        Linear.of([1.0] + [0.0] * (net(x).shape[1] - 1), batch=2),
        "worst",
    )
    return model_for(problem, folder, None)[1].program


def touching(program: Program, bounds: StepBounds) -> dict[str, Array]:
    """Parabolas through the Chebyshev points of the intervals that planes know; lines for straight pieces."""
    found: dict[str, Array] = {}
    for place, step in enumerate(program.steps):
        if isinstance(step, FunctionStep):
            found[f"parabolas/{place}"] = array = np.zeros((1, 2, len(step.parts), step.size))
            for argument, (curve, part) in enumerate(zip(step.function.curves, step.parts, strict=True)):
                low, high = (
                    part.take_elements(ends[part.source])[0] for ends in (bounds.lower, bounds.upper)
                )
                if isinstance(curve, ProductFunction):
                    middle, reach = (low + high) / 2, np.maximum((high - low) / 2, 1e-3) * math.sqrt(0.75)
                    left, centre, right = (curve.value(v) for v in (middle - reach, middle, middle + reach))
                    bend = (left + right - 2 * centre) / (2 * reach * reach)
                    array[0, :, argument] = (right - left) / (2 * reach) - 2 * bend * middle, bend
                else:
                    (below,), (above,) = curve.slopes((low,), (high,))
                    array[0, 0, argument] = (below + above) / 2
    return found


def attacked(net: Network, centre: torch.Tensor, radius: float, norm: float, rows: Array) -> Array:
    """(points, rows): values at random points, corners and ends of gradient steps, all inside the ball."""
    matrix = torch.from_numpy(rows)
    twin = net.double(centre[None]) or net
    n = centre.numel()

    def inside(steps: torch.Tensor) -> torch.Tensor:
        length = torch.linalg.vector_norm(steps, norm, 1, keepdim=True)
        return centre.double() + radius * (1 - 1e-12) * (steps / length.clamp_min(1.0)).reshape(
            -1, *centre.shape
        )

    starts = torch.from_numpy(
        np.concatenate(
            [np.sign(DRAW.normal(size=(300, n))), DRAW.normal(size=(300, n)) ** 3, np.eye(n), -np.eye(n)]
        )
    )
    points = starts / torch.linalg.vector_norm(starts, norm, 1, keepdim=True)
    found = [twin(inside(points)).double() @ matrix.T]
    v = points[: len(matrix)].clone().float()
    for _ in range(20):
        v.requires_grad_()
        value = (net.module((centre + radius * v.reshape(-1, *centre.shape)).float()) * matrix.float()).sum()
        (gradient,) = torch.autograd.grad(value, v)
        v = (
            v
            - 0.3
            * (
                gradient.sign()
                if math.isinf(norm)
                else gradient / gradient.norm(dim=1, keepdim=True).clamp_min(1e-9)
            )
        ).detach()
        v = (
            v.clamp(-1, 1)
            if math.isinf(norm)
            else v / torch.linalg.vector_norm(v, norm, 1, keepdim=True).clamp_min(1.0)
        )
    found.append(twin(inside(v.double())).double() @ matrix.T)
    return torch.cat(found).numpy()


@pytest.mark.parametrize("width", [1e-6, 0.2, 3.0])
@pytest.mark.parametrize("name", ["sigmoid", "tanh"])
def test_no_parabola_strays_further_than_is_said(name: str, width: float) -> None:
    """Against 60 digits, with parabolas that touch and with any others; and the deviation is nearly reached."""
    low = DRAW.uniform(-3, 3, 30)
    high = low + width * DRAW.uniform(0.2, 1, 30)
    function, middle = ProductFunction(name), (low + high) / 2
    bend = np.concatenate(
        [
            (function.value(high) + function.value(low) - 2 * function.value(middle))[:15]
            * 2
            / (high - low)[:15] ** 2,
            DRAW.normal(0, 2, 15),
        ]
    )
    slope = (function.value(high) - function.value(low)) / (high - low) - 2 * bend * middle
    least, most = (
        function.least(1.0, (slope,), (low,), (high,), bend),
        -function.least(-1.0, (-slope,), (low,), (high,), -bend),
    )
    with mpmath.workdps(60):
        exact = (lambda v: 1 / (1 + mpmath.exp(-v))) if name == "sigmoid" else mpmath.tanh
        for place in range(30):
            a, b, start, end = (mpmath.mpf(float(part[place])) for part in (slope, bend, low, high))
            strays = [
                exact(v) - a * v - b * v * v for v in (start + (end - start) * k / 64 for k in range(65))
            ]
            assert least[place] <= min(strays), place
            assert most[place] >= max(strays), place
            close = (
                0.02 * float(max(strays) - min(strays)) + 1e-4 * width * width * (1 + abs(float(b))) + 1e-10
            )
            assert min(strays) - least[place] <= close, place
            assert most[place] - max(strays) <= close, place


@pytest.mark.parametrize("norm", [1.0, 2.0, math.inf])
@pytest.mark.parametrize("name", ["sigmoid", "tanh"])
def test_a_function_of_a_model_holds_wherever_its_rest_lets_it_be(name: str, norm: float) -> None:
    """Values that differ from the model's by up to its rest, at both ends: the function's model must reach them all.

    In programs the rest of an argument is a bound of rounding errors, far below the deviation of a parabola; here it
    is as large as the linear part, so that a model that forgets it is false.
    """
    d, k, n, points = 3, 5, 40, 200
    function, ball = (
        ProductFunction(name),
        UnitBall(d, norm, np.array([0]) if norm < math.inf else np.arange(d)),
    )
    c, L, B = DRAW.normal(size=n), 0.2 * DRAW.normal(size=(n, k)), 0.05 * DRAW.normal(size=(n, d, k))
    B[:, :, :d] = (B[:, :, :d] + B[:, :, :d].swapaxes(1, 2)) / 2
    rest = DRAW.uniform(0, 1, n) * DRAW.choice([0.0, 0.3, 1.0], n)
    y = quadratic.SecondOrderModel(c, L, B, rest, np.abs(c) + np.abs(L).sum(1) + np.abs(B).sum((1, 2)))
    u = DRAW.uniform(-1, 1, (points, k))
    u[:, :d] /= np.maximum(1.0, np.linalg.norm(u[:, :d], norm, 1, keepdims=True))

    def at(model: quadratic.SecondOrderModel) -> Array:
        linear: Array = model.c + u @ model.L.T + np.einsum("pi,nij,pj->pn", u[:, :d], model.B, u)
        return linear

    values = at(y) + rest * DRAW.choice([-1.0, 0.0, 1.0], (points, n))
    low, high = values.min(0), values.max(0)
    for slope, bend in (
        (DRAW.uniform(0.1, 1, n), np.zeros(n)),
        (DRAW.normal(size=n), 0.2 * DRAW.normal(size=n)),
        (function.curves[0].slopes((low,), (high,))[0][0], np.zeros(n)),
    ):
        made = quadratic.along(function, y, slope, bend, low, high, ball)
        missed = np.abs(function.value(values) - at(made)) - made.rest
        assert (missed <= 1e-9).all()


@pytest.mark.parametrize(
    ("kind", "norm"),
    some(
        [("lstm", math.inf), ("lstm", 2.0), ("gru", math.inf), ("gru", 1.0), ("rnn", 2.0), ("rnn", 1.0), ("smooth", math.inf),
         ("smooth", 2.0), ("own cell", math.inf), ("clipped", math.inf)],
        [("lstm", 2.0), ("gru", 1.0), ("rnn", 2.0), ("smooth", math.inf), ("own cell", math.inf), ("clipped", math.inf)],
    ),
)  # fmt: skip
def test_models_hold_at_every_point_that_is_found(kind: str, norm: float, tmp_path: Path) -> None:
    """Whatever the parabolas. With those that touch, models of smooth networks are nearer to the truth than planes."""
    net, x, _ = network(kind)
    program, n = program_of(net, x, tmp_path), x[0].numel()
    centre, rows = x[0].double().numpy().ravel(), np.eye(program.output.index.size)
    rows = np.concatenate([rows, -rows])
    for radius in (0.05, 0.3):
        region = CheckedRegion.ball(centre, radius, norm, np.ones(1), np.full(n, -np.inf), np.full(n, np.inf))
        values, planes = attacked(net, x[0].double(), radius, norm, rows), StepBounds(program, region)
        arrays = touching(program, planes)
        by_planes = planes.rows(rows, np.zeros(len(rows)))[0]
        by_models = SecondOrderBounds(program, region, arrays).rows(rows, np.zeros(len(rows)))[0]
        assert (values >= by_models).all()
        assert (by_models >= by_planes - 1e-3 * np.abs(values).max()).all()
        if kind not in ("clipped", "own cell"):
            assert (values.min(0) - by_models).mean() < 0.8 * (values.min(0) - by_planes).mean()
        other = {name: array + 0.3 * DRAW.normal(size=array.shape) for name, array in arrays.items()}
        assert (values >= SecondOrderBounds(program, region, other).rows(rows, np.zeros(len(rows)))[0]).all()
    assert (values >= SecondOrderBounds(program, region).rows(rows, np.zeros(len(rows)))[0]).all(), (
        "lines, where no parabolas are given"
    )


def test_every_model_holds_step_by_step(tmp_path: Path) -> None:
    """Not only the margin: each step of an LSTM, at points, with remainders anywhere between their ends."""
    net, x, _ = network("lstm")
    program, centre = program_of(net, x, tmp_path), x[0].double().numpy().ravel()
    region = CheckedRegion((centre - 0.2)[None], (centre + 0.2)[None])
    kept: dict[int, quadratic.SecondOrderModel] = {}

    class Watched(SecondOrderBounds):
        def _store(self, place: int, model: quadratic.SecondOrderModel, named: bool) -> None:
            kept[place] = model
            super()._store(place, model, named)

    made = Watched(program, region, touching(program, StepBounds(program, region)))
    v = DRAW.uniform(-1, 1, (200, len(centre)))
    values = program.values(centre + 0.2 * v)
    for place, y in kept.items():
        d, known = len(centre), y.B.shape[2]
        low = values[place] - y.c - v @ y.L[:, :d].T
        if known:
            low = low - np.einsum("pi,nij,pj->pn", v, y.B[:, :, :d], v)
        free = np.abs(y.L[:, d:]).sum(1)
        crossed = np.abs(np.einsum("pi,nij->pnj", v, y.B[:, :, d:])).sum(2) if known else 0.0
        assert (np.abs(low) <= free + crossed + y.rest).all(), place
        assert (y.size >= (np.abs(y.c) + np.abs(y.L).sum(1) + np.abs(y.B).sum((1, 2))) * (1 - 1e-12)).all()
    assert made.count > len(centre)


def test_the_least_value_of_a_quadratic_function_over_a_box() -> None:
    """Against exact rationals at all corners and at random points; exact where every variable is monotone."""
    d, k, n = 3, 5, 40
    L, B = DRAW.normal(size=(n, k)) * DRAW.choice([0.1, 1, 30], (n, 1)), DRAW.normal(size=(n, d, k))
    B[:, :, :d] = (B[:, :, :d] + B[:, :, :d].swapaxes(1, 2)) / 2
    size = np.abs(L).sum(1) + np.abs(B).sum((1, 2))
    y = quadratic.SecondOrderModel(np.zeros(n), L, B, np.zeros(n), size)
    ball = UnitBall(d, math.inf, np.arange(d))
    found, worse = ball.least(y, 8), ball.least(y, 0)
    assert (found >= worse - 1e-9).all()
    corners = np.array(np.meshgrid(*[[-1.0, 1.0]] * k)).reshape(k, -1).T
    points = np.concatenate([corners, DRAW.integers(-8, 9, (100, k)) / 8])
    values = points @ L.T + np.einsum("pi,nij,pj->pn", points[:, :d], B, points)
    monotone = np.abs(L) >= np.concatenate(
        [np.abs(B).sum(2) + np.abs(B[:, :, :d]).sum(1), np.abs(B[:, :, d:]).sum(1)], 1
    )
    assert monotone.all(1).any()
    for element in range(n):
        u = points[values[:, element].argmin()]
        exact = sum(
            (Fraction(float(a)) * Fraction(float(b)) for a, b in zip(L[element], u, strict=True)), Fraction()
        )
        for i in range(d):
            for j in range(k):
                exact += Fraction(float(u[i])) * Fraction(float(B[element, i, j])) * Fraction(float(u[j]))
        assert Fraction(float(found[element])) <= exact
        if monotone[element].all():
            assert float(exact) - found[element] <= 1e-9 * size[element]


@pytest.mark.parametrize("starts", [[0], [0, 2]])
def test_the_least_value_of_a_quadratic_function_over_balls(starts: list[int]) -> None:
    d, n = 4, 60
    J, Q = (
        DRAW.normal(size=(n, d)) * DRAW.choice([0.0, 0.1, 3], (n, 1)),
        DRAW.normal(size=(n, d, d)) * DRAW.choice([0.0, 1, 4], (n, 1, 1)),
    )
    found = balls.least(J, Q, np.array(starts))
    v = DRAW.normal(size=(40000, d))
    for start, end in zip(starts, [*starts[1:], d], strict=True):
        v[:, start:end] *= DRAW.uniform(0, 1, (40000, 1)) ** 0.1 / np.linalg.norm(
            v[:, start:end], axis=1, keepdims=True
        )
    value = v @ J.T + np.einsum("pi,nij,pj->pn", v, Q, v, optimize=True)
    assert (value.min(0) >= found).all()
    size = np.linalg.norm(J, axis=1) + np.linalg.norm(Q, axis=(1, 2))
    assert (value.min(0) - found <= (0.15 if len(starts) == 1 else 0.5) * size + 1e-9).all()
    assert not (balls.least(J * np.nan, Q, np.array(starts)) > -np.inf).any(), (
        "what is no number proves nothing"
    )


def test_nothing_moves(tmp_path: Path) -> None:
    net, x, _ = network("gru")
    program, centre = program_of(net, x, tmp_path), x[0].double().numpy().ravel()
    for norm in (math.inf, 2.0, 1.0):
        region = CheckedRegion.ball(
            centre, 0.0, norm, np.ones(1), np.full(len(centre), -2.0), np.full(len(centre), 2.0)
        )
        rows = SecondOrderBounds(program, region).rows(np.eye(3), np.zeros(3))[0]
        value = program.value(centre[None])[0]
        assert (value >= rows).all()
        assert (value - rows < 1e-9).all()


def test_models_that_are_too_large_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net, x, _ = network("lstm")
    program, centre = program_of(net, x, tmp_path), x[0].double().numpy().ravel()
    monkeypatch.setattr(quadratic, "MOST", 1000)
    with pytest.raises(Rejected, match="Let fewer inputs move"):
        SecondOrderBounds(program, CheckedRegion((centre - 0.1)[None], (centre + 0.1)[None]))


# ---- certificates


def opened(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    metadata, arrays = read_container(path.read_bytes())
    return json.loads(metadata[SCHEMA]), dict(arrays)


@functools.cache
def _tightly(kind: str, norm: float) -> list[Certificate]:
    net, x, y = network(kind)
    problems = list(radius_problems(net, x[:1], y[:1], norm=norm))
    records = solve(problems, [Tighten(steps=10 if kind == "rnn" else 0), PGD(restarts=2)])
    return prove(problems, records, Path(mkdtemp()))


def tightly(kind: str, folder: Path, norm: float = math.inf) -> list[Certificate]:
    """Certificates of a radius by second-order models, in `folder`, where a test may change them."""
    return copies(_tightly(kind, norm), folder)


@pytest.mark.parametrize(
    ("kind", "norm"),
    some([("lstm", math.inf), ("rnn", 2.0), ("rnn", math.inf)], [("lstm", math.inf), ("rnn", math.inf)]),
)
def test_certificates_keep_what_second_order_models_proved(kind: str, norm: float, tmp_path: Path) -> None:
    made = tightly(kind, tmp_path, norm)
    [one] = [one for one in made if one.kind == "proof"]
    assert one.file is not None, one
    assert one.model is not None
    assert one.value >= 0.99 * one.known, one
    header, arrays = opened(one.file)
    model = Model.read_file(one.model)
    given = {name: array for name, array in arrays.items() if name.startswith("parabolas/")}
    assert given
    assert check(model, one.file).accepted
    one.file.write_bytes(
        pack_proof(header, {name: array for name, array in arrays.items() if name not in given})
    )
    assert not check(model, one.file).accepted, "planes alone prove it"
    if kind == "rnn" and math.isinf(norm):
        shown = next(other.known for other in made if other.kind == "witness")
        tried = 0
        with np.errstate(all="ignore"):
            wrong = mutants(header, arrays, shown, DRAW)
        for changed, other in wrong:
            one.file.write_bytes(pack_proof(changed, other))
            verdict = check(model, one.file)
            assert not verdict.accepted, (changed, other.keys(), verdict)
            assert verdict.reason
            tried += 1
        assert tried >= 80


def test_damaged_parabolas_are_told_apart_from_proofs(tmp_path: Path) -> None:
    """A byte here or there, or an end that is missing: accepted only with what it claims, and never more than that."""
    made = tightly("rnn", tmp_path)
    one = next(one for one in made if one.kind == "proof")
    assert one.file is not None
    assert one.model is not None
    model, whole = Model.read_file(one.model), one.file.read_bytes()
    start, path = (
        len(whole) - sum(array.nbytes for array in opened(one.file)[1].values()),
        tmp_path / "damaged.proof",
    )
    accepted = 0
    for trial in range(40):
        data = bytearray(whole)
        if trial % 4 == 0:
            data = data[: int(DRAW.integers(start, len(data)))]
        for _ in range(int(DRAW.integers(1, 9))):
            data[int(DRAW.integers(start if trial % 2 else 8, len(data)))] = int(DRAW.integers(0, 256))
        path.write_bytes(bytes(data))
        verdict = check(model, path)
        assert verdict.accepted or verdict.reason
        accepted += verdict.accepted
        if verdict.accepted:
            assert verdict.header["region"]["radius"] <= one.value * 1.0001 or "centre" not in verdict.claim
    assert accepted < 40


@pytest.mark.usefixtures("cpu_clock")
def test_an_engine_that_lies_about_parabolas_has_no_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deviations said to be smaller than they are, and margins larger: the engine proves too much, the checker does not follow it."""
    net, x, y = network("rnn")
    [problem] = radius_problems(net, x[:1], y[:1])
    shown = solve([problem], [PGD(restarts=2)])[0].bracket.upper.value
    deviation, least = quadratic_algebra.deviation, quadratic_algebra.QuadraticModel.least

    def too_small(*given: Any) -> Any:
        low, high = deviation(*given)
        return (low + high) / 2 + (low - high) / 500, (low + high) / 2 + (high - low) / 500

    monkeypatch.setattr(quadratic_algebra, "deviation", too_small)
    monkeypatch.setattr(
        quadratic_algebra.QuadraticModel, "least", lambda self, rounds: least(self, rounds) + 1.0
    )
    [record] = solve([problem], [Tighten(steps=10)])
    assert record.bracket.lower.value > shown
    _, model = model_for(problem, tmp_path, None)
    parabolas, (header, arrays) = (
        Parabolas(problem, model.program),
        request_header(problem, record, model, "proof"),
    )
    header["region"]["radius"] = radius = min(record.bracket.lower.value, float(problem.family.limit()[0]))
    for bends in coefficients(problem, torch.full((1,), radius, dtype=torch.float64), 10):
        lie = parabolas.arrays(problem.family.at(torch.full((1,), radius, dtype=torch.float64)), bends)
        assert lie
        (tmp_path / "lie.proof").write_bytes(pack_proof(header, {**arrays, **lie}))
        assert not check(model, tmp_path / "lie.proof").accepted
    for one in prove([problem], [record], tmp_path, stop=Stop(seconds=3)):
        assert one.kind != "proof" or one.file is None or one.value < shown


def test_a_score_by_models(tmp_path: Path) -> None:
    net, x, _ = network("rnn")
    problem = Problem(
        net,
        Box(x[:1].double(), x[:1].double() - 0.2, x[:1].double() + 0.2),
        Linear.of([1.0, -1.0, 0.0], 0.25),
        "worst",
    )
    records = solve([problem], [Tighten(steps=10), PGD(restarts=2)])
    made = prove([problem], records, tmp_path)
    one = made[0]
    assert one.file is not None, one
    assert one.model is not None
    assert abs(one.value - one.known) <= 1e-2 * abs(one.known) + 1e-9
    header, arrays = opened(one.file)
    assert any(name.startswith("parabolas/") for name in arrays)
    header["above"] = records[0].bracket.upper.value + 1e-6
    one.file.write_bytes(pack_proof(header, arrays))
    assert not check(one.model, one.file).accepted


@pytest.mark.parametrize("starts", [list(range(9)), [0, 4], [0]])
@pytest.mark.parametrize("kind", ["mixed", "one sign", "none"])
def test_how_far_a_quadratic_part_reaches(starts: list[int], kind: str) -> None:
    """Against ascent from many points, with every remainder at its worse end."""
    draw = np.random.default_rng(len(starts))
    Q, C = draw.normal(0, 1, (5, 9, 9)), draw.normal(0, 0.3, (5, 9, 4))
    Q, C = (np.abs(Q), np.abs(C)) if kind == "one sign" else (0 * Q, 0 * C) if kind == "none" else (Q, C)
    low, high = balls.reach(Q, C, np.array(starts))
    runs = np.diff([*starts, 9])
    for sign, end in ((1.0, high), (-1.0, -low)):
        v = draw.normal(0, 1, (100, 5, 9))
        for _ in range(50):
            v = v / np.repeat(np.sqrt(np.add.reduceat(v * v, starts, 2)), runs, 2)
            r = np.sign(np.einsum("kni,nij->knj", v, sign * C))
            value = np.einsum("kni,nij,knj->kn", v, sign * Q, v) + np.einsum(
                "kni,nij,knj->kn", v, sign * C, r
            )
            assert (value.max(0) <= end).all()
            v = (
                20 * v
                + np.einsum("nij,knj->kni", sign * (Q + Q.swapaxes(1, 2)), v)
                + np.einsum("nij,knj->kni", sign * C, r)
            )
    if kind == "mixed" and len(starts) == 9:
        assert ((high - low) / 2 < 0.9 * (np.abs(Q).sum((1, 2)) + np.abs(C).sum((1, 2)))).all()
    nothing = balls.reach(Q * np.nan, C, np.array(starts))
    assert not (nothing[0] > -np.inf).any()
    assert not (nothing[1] < np.inf).any()
