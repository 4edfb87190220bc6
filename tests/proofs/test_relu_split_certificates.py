"""Certificates by signs of ReLUs, with multipliers and trained ends: accepted where they hold, and never for something false."""

import json
import math
import signal
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.proofs.mutants import broken_signs, other_signs
from torch import nn
from typer.testing import CliRunner

import holdfast.cli.prove
from holdfast.api.prove import prove
from holdfast.api.radius import radius_problems
from holdfast.attacks import PGD
from holdfast.certificates.claim import pack_proof
from holdfast.certificates.writing import Certificate, iterate_certificates
from holdfast.certify import Certify
from holdfast.cli import app, main
from holdfast.network import Network
from holdfast.problem import Problem
from holdfast.property import Linear
from holdfast.region import Box
from holdfast.result import Record
from holdfast.solver import solve
from holdfast_check import Model, check
from holdfast_check.container import read_container
from holdfast_check.planes import StepBounds
from holdfast_check.proof import SCHEMA, Claim
from holdfast_check.tree import margins
from sizes import some

DRAW = np.random.default_rng(2)
NETWORKS = {
    "mlp": (
        lambda: nn.Sequential(nn.Linear(20, 14), nn.ReLU(), nn.Linear(14, 14), nn.ReLU(), nn.Linear(14, 3)),
        (20,),
    ),
    "leaky": (
        lambda: nn.Sequential(
            nn.Linear(18, 10), nn.LeakyReLU(0.1), nn.Linear(10, 10), nn.ReLU(), nn.Linear(10, 3)
        ),
        (18,),
    ),
    "cnn": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 3, 3),
            nn.ReLU(),
            nn.Conv2d(3, 3, 2, padding=1),
            nn.ReLU(),
            nn.AvgPool2d(2),
            nn.Flatten(),
            nn.Linear(12, 3),
        ),
        (1, 5, 5),
    ),
}


METHODS = [PGD(restarts=2), Certify()]


@cache
def proved(kind: str, norm: float = math.inf) -> tuple[Network, Record, list[Certificate]]:
    """Half way from what planes prove to what was met, and its certificates; nobody but the checker has proved it before."""
    torch.manual_seed(0)
    make, shape = NETWORKS[kind]
    module = make().eval()
    with torch.no_grad():
        for weight in module.parameters():
            weight *= 2
    net = Network.from_torch(module, domain=(-2, 2))
    x = torch.randn(1, *shape).clamp(-1.9, 1.9)
    problems = list(radius_problems(net, x, net(x).argmax(-1), norm=norm))
    [record] = [_half_way(record) for record in solve(problems, METHODS)]
    return net, record, prove(problems, [record], mkdtemp())


def _half_way(record: Record) -> Record:
    known = record.bracket
    return replace(
        record,
        bracket=replace(known, lower=replace(known.lower, value=(known.lower.value + known.upper.value) / 2)),
    )


def opened(
    kind: str, norm: float = math.inf
) -> tuple[Certificate, Certificate, Model, dict[str, Any], dict[str, Any]]:
    _, _, made = proved(kind, norm)
    one, shown = (next(one for one in made if one.kind == kind) for kind in ("proof", "witness"))
    assert one.file is not None, one
    assert one.model is not None, one
    metadata, arrays = read_container(one.file.read_bytes())
    return one, shown, Model.read_file(one.model), json.loads(metadata[SCHEMA]), dict(arrays)


@pytest.mark.parametrize(
    ("kind", "norm"),
    some(
        [("mlp", math.inf), ("mlp", 2.0), ("leaky", math.inf), ("cnn", math.inf)],
        [("mlp", 2.0), ("leaky", math.inf), ("cnn", math.inf)],
    ),
)
def test_what_planes_do_not_prove_signs_do(kind: str, norm: float) -> None:
    _, record, made = proved(kind, norm)
    one, _, model, header, arrays = opened(kind, norm)
    assert "signs" in arrays, "planes alone prove it, so this tests nothing"
    assert one.value >= 0.99 * record.bracket.lower.value, (one.value, record.bracket)
    assert all(
        check(other.model, other.file).accepted
        for other in made
        if other.file is not None and other.model is not None
    )
    # Nothing of the region, and no corner of it, says another class.
    centre = arrays["region/centre"].astype(np.float64)
    away = DRAW.normal(size=(3000, centre.size))
    away = np.sign(away) if math.isinf(norm) else away / np.linalg.norm(away, axis=1, keepdims=True)
    points = np.clip(centre + header["region"]["radius"] * away, -2, 2)
    assert (model.program.value(points).argmax(1) == header["property"]["class"]).all()


@pytest.mark.parametrize(("kind", "norm"), [("mlp", math.inf), ("cnn", math.inf), ("mlp", 2.0)])
def test_mutants_of_signs_are_rejected(kind: str, norm: float, tmp_path: Path) -> None:
    _, shown, model, header, arrays = opened(kind, norm)
    path = tmp_path / "mutant.proof"
    for number, other in enumerate(broken_signs(arrays)):
        path.write_bytes(pack_proof(header, other))
        verdict = check(model, path)
        assert not verdict.accepted, number
        assert verdict.reason, number
    false = {**header, "region": {**header["region"], "radius": shown.known}}
    for number, other in enumerate([arrays, *other_signs(arrays, DRAW)]):
        path.write_bytes(pack_proof(false, other))
        assert not check(model, path).accepted, number
    path.write_bytes(pack_proof(header, arrays))
    assert check(model, path).accepted


def test_bounds_over_leaves_hold_at_their_points() -> None:
    """Any cuts, multipliers and slopes: at every point with these signs the rows are above the bounds. Leaves without a point are told."""
    _, _, model, header, arrays = opened("mlp")
    claim = Claim.read_claim(header, arrays, model.program)
    whole = StepBounds(model.program, claim.region, claim.slopes)
    points = DRAW.uniform(claim.region.lower[0], claim.region.upper[0], (4000, claim.region.lower.shape[1]))
    rows = model.program.value(points) @ claim.matrix.T
    steps = [place for place, step in enumerate(model.program.steps) if 0 < place < model.program.output.step]
    values = _values(model, points)
    met = empty = 0
    for trial in range(60):
        path = [
            (
                step := int(DRAW.choice(steps)),
                int(DRAW.integers(model.program.steps[step].size)),
                float(DRAW.choice([-1, 1])),
            )
            for _ in "abc"
        ]
        times = DRAW.exponential(0.3, (3, len(claim.matrix)))
        bounds = StepBounds(model.program, claim.region).planes
        slopes = {
            f"rows/{place}": DRAW.uniform(0, 1, (1, len(rows[0]), model.program.steps[place].size))
            for place in bounds
        }
        least = margins(whole, claim.matrix, claim.offset, [path], times, slopes, trial % 2 == 0)[0]
        inside = np.all([sign * values[step][:, element] >= 0 for step, element, sign in path], 0)
        met, empty = met + int(inside.sum()), empty + bool(np.isinf(least).all())
        assert (rows[inside] + claim.offset >= least - 1e-9).all()
    assert met > 1000
    assert empty > 0


def _values(model: Model, x: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
    known = [x]
    for step in model.program.steps[1:]:
        if hasattr(step, "function"):
            known.append(
                step.function.value(*(part.take_elements(known[part.source]) for part in step.parts))
            )
        else:
            y = np.tile(step.offset, (len(x), 1))
            for part in step.parts:
                part.add_to(y, known[part.source])
            known.append(y)
    return known


def test_damaged_signs_are_told(tmp_path: Path) -> None:
    """Single bytes changed: a reason, or the very claim of before."""
    one, _, model, _, _ = opened("mlp")
    assert one.file is not None
    whole, path, accepted = one.file.read_bytes(), tmp_path / "damaged.proof", 0
    told = check(model, one.file).claim
    for _ in range(200):
        data = bytearray(whole)
        data[int(DRAW.integers(8, len(data)))] ^= 1 << int(DRAW.integers(8))
        path.write_bytes(bytes(data))
        verdict = check(model, path)
        accepted += verdict.accepted
        assert (
            verdict.reason or verdict.claim == told or verdict.header["region"]["radius"] < 1.001 * one.value
        )
    assert accepted > 0


def test_a_score_over_a_box_of_many_inputs(tmp_path: Path) -> None:
    """Halves of twenty inputs would be too many; signs are not."""
    torch.manual_seed(1)
    net = Network.from_torch(NETWORKS["mlp"][0]().eval())
    x = torch.zeros(1, 20, dtype=torch.float64)
    problem = Problem(net, Box(x, x - 1, x + 1), Linear.of([1.0, -1.0, 0.0], batch=1), "worst")
    records = [_half_way(record) for record in solve([problem], METHODS)]
    [one] = [one for one in prove([problem], records, tmp_path) if one.kind == "proof"]
    assert one.file is not None, one
    assert one.model is not None
    metadata, arrays = read_container(one.file.read_bytes())
    assert "signs" in arrays
    assert one.value >= one.known - 0.02 * abs(one.known)
    header = json.loads(metadata[SCHEMA])
    header["above"] = records[0].bracket.upper.value + 1e-9
    one.file.write_bytes(pack_proof(header, arrays))
    assert not check(one.model, one.file).accepted


def test_an_interrupted_writer_leaves_only_what_was_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C comes when the first input has its two files."""
    run, out, model = tmp_path / "run", tmp_path / "proofs", "holdfast.datasets.digits_networks:digits_cnn"
    files = ["--model", model, "--data", "holdfast.datasets.digits:images"]
    asked = [
        "radius",
        *files,
        "--domain",
        "0,1",
        "--limit",
        "2",
        "--methods",
        "pgd,certify",
        "--out",
        str(run),
    ]
    assert CliRunner().invoke(app, asked).exit_code == 0

    def interrupt_after_a_witness(*arguments: Any) -> Iterator[Certificate]:
        for one in iterate_certificates(*arguments):
            yield one
            if one.kind == "witness":
                signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(holdfast.cli.prove, "iterate_certificates", interrupt_after_a_witness)
    with pytest.raises(SystemExit) as ended:
        main(["prove", str(run), "-o", str(out), *files])
    assert ended.value.code == 130
    assert "written" in capsys.readouterr().out
    made = sorted(path.name for path in out.iterdir())
    assert made == ["0.proof", "0.witness", "model.safetensors"]
    assert check(out / "model.safetensors", out / "0.proof").accepted
