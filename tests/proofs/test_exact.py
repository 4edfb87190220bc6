"""Rational arithmetic as a second opinion: it agrees with float64, and shows an error of the float64 checker."""

import json
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_relu_split_certificates import opened as with_signs
from torch import nn

import holdfast_check.functions
import holdfast_check.planes
from holdfast.api.prove import prove
from holdfast.certificates.claim import pack_proof
from holdfast.certify import Certify, Split
from holdfast.network import Network
from holdfast.problem import Problem
from holdfast.property import Linear
from holdfast.region import Box
from holdfast.solver import solve
from holdfast_check import Model, check
from holdfast_check.__main__ import main
from holdfast_check.arithmetic import Array
from holdfast_check.exact import Dyadic, NotRecomputed, exact_margin
from holdfast_check.proof import AGREES, Claim, proof_margin, read_header
from proof_networks import proved


def files(kind: str, folder: Path, norm: float = math.inf) -> tuple[Model, Path]:
    _, _, made = proved(kind, folder, norm=norm)
    one = next(one for one in made if one.kind == "proof")
    assert one.file is not None
    assert one.model is not None
    return Model.read_file(one.model), one.file


def halves(folder: Path) -> tuple[Model, Path]:
    """A proof by a tree of halved boxes."""
    torch.manual_seed(3)
    net = Network.from_torch(
        nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)).eval()
    )
    x = torch.zeros(1, 2, dtype=torch.float64)
    problem = Problem(net, Box(x, x - 1.5, x + 1.5), Linear.of([1.0, -1.0], batch=1), "worst")
    made = [
        one for one in prove([problem], solve([problem], [Certify(), Split()]), folder) if one.kind == "proof"
    ]
    assert made[0].file is not None, made[0].reason
    assert made[0].model is not None
    return Model.read_file(made[0].model), made[0].file


def both(model: Model, path: Path) -> tuple[float, Fraction]:
    claim = Claim.read_claim(*read_header(path.read_bytes()), model.program)
    with np.errstate(all="ignore"):
        return proof_margin(claim, model.program), exact_margin(claim, model.program)


@pytest.mark.parametrize(
    ("kind", "norm"), [("mlp", 1.0), ("mlp", 2.0), ("mlp", math.inf), ("clipped", math.inf)]
)
def test_both_checkers_agree_and_float64_claims_no_more(kind: str, norm: float, tmp_path: Path) -> None:
    model, path = files(kind, tmp_path, norm)
    margin, exact = both(model, path)
    assert exact > 0
    assert Fraction(margin) <= exact <= Fraction(margin) * (1 + AGREES) + Fraction(1, 10**9)


def test_both_checkers_agree_on_trees_and_trained_slopes(tmp_path: Path) -> None:
    model, path = halves(tmp_path)
    assert len(read_header(path.read_bytes())[1].get("tree", [0])) > 1, "no tree, so this tests nothing"
    margin, exact = both(model, path)
    assert Fraction(margin) <= exact <= Fraction(margin) * (1 + AGREES) + Fraction(1, 10**9)
    one, _, model, header, arrays = with_signs("mlp", 2.0)
    assert one.file is not None
    assert {name.split("/")[0] for name in arrays} >= {"signs", "at", "leaves"}
    margin, exact = both(model, one.file)
    assert exact > 0
    assert abs(exact - Fraction(margin)) <= Fraction(margin) * Fraction(1, 1000) + Fraction(1, 10**9)
    # A tree that misses leaves is no proof here either.
    for tree in (arrays["signs"][:-1], np.concatenate([arrays["signs"], arrays["signs"][-1:]])):
        claim = Claim.read_claim(header, {**arrays, "signs": tree}, model.program)
        with pytest.raises(NotRecomputed):
            exact_margin(claim, model.program)


def test_false_claims_have_no_positive_margin(tmp_path: Path) -> None:
    """At and beyond the radius of a counterexample, with any slopes."""
    _, records, made = proved("mlp", tmp_path, norm=2.0)
    one = next(one for one in made if one.kind == "proof")
    assert one.file is not None
    assert one.model is not None
    record = next(record for record in records if record.key == one.key)
    model = Model.read_file(one.model)
    header, arrays = read_header(one.file.read_bytes())
    draw = np.random.default_rng(0)
    for factor in (1.0, 1.5):
        header["region"] = {**header["region"], "radius": record.bracket.upper.value * factor}
        for _ in range(3):
            other = dict(arrays)
            for place, step in enumerate(model.program.steps):
                if hasattr(step, "function"):
                    other[f"slopes/{place}"] = draw.uniform(0, 1, (1, 2, 1, step.size))
            claim = Claim.read_claim(header, other, model.program)
            assert exact_margin(claim, model.program) <= 0


def test_an_error_of_the_float64_checker_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model, path = files("mlp", tmp_path)
    header, arrays = read_header(path.read_bytes())
    header["region"]["radius"] *= 1.02
    path.write_bytes(pack_proof(header, arrays))
    assert not check(model, path).accepted
    right = holdfast_check.functions.PiecewiseLinear._extremes

    def wrong(self: Any, sign: float, slope: Array, lower: Array, upper: Array) -> Array:
        return right(self, sign, slope, lower, upper) + 0.05

    monkeypatch.setattr(holdfast_check.functions.PiecewiseLinear, "_extremes", wrong)
    assert check(model, path).accepted, "the error changes nothing, so this tests nothing"
    verdict = check(model, path, exact=True)
    assert not verdict.accepted
    assert "rational arithmetic does not prove it" in verdict.reason
    monkeypatch.undo()
    header["region"]["radius"] /= 1.02
    path.write_bytes(pack_proof(header, arrays))
    file = str(path.parent / "model.safetensors")
    out = tmp_path / "told.json"
    assert main([file, str(path), "--exact", "--json", str(out)]) == 0
    assert "rational arithmetic agrees: margin " in capsys.readouterr().out
    [told] = json.loads(out.read_text())["certificates"]
    assert told["recomputed"].startswith("rational arithmetic agrees")


def test_what_is_not_recomputed_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, path = files("smooth", tmp_path)
    verdict = check(model, path, exact=True)
    assert verdict.accepted
    assert "not piecewise linear" in verdict.recomputed
    model, path = files("mlp", tmp_path / "mlp")
    monkeypatch.setattr("holdfast_check.exact.MOST_PRODUCTS", 10)
    verdict = check(model, path, exact=True)
    assert verdict.accepted
    assert verdict.recomputed.startswith("not recomputed in rational arithmetic: more than 10 products")


def test_dyadic_numbers_are_exact_and_shortened_outwards() -> None:
    draw = np.random.default_rng(0)
    a, b = (draw.normal(size=8) * 10.0 ** draw.integers(-200, 60, 8) for _ in range(2))
    x, y = Dyadic.of(a), Dyadic.of(b)
    exact = [(Fraction(p), Fraction(q)) for p, q in zip(a.tolist(), b.tolist(), strict=True)]
    assert x.fractions() == [p for p, _ in exact]
    assert (x + y).fractions() == [p + q for p, q in exact]
    assert (x * y - x).fractions() == [p * q - p for p, q in exact]
    product = x * y
    for low, value, high in zip(
        product.down().fractions(), product.fractions(), product.up().fractions(), strict=True
    ):
        assert low <= value <= high <= low + Fraction(1, 2**160)
