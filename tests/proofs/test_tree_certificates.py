"""Certificates of sums of decision trees: bounds against enumeration of all cells, estimators of three libraries, forgeries."""

import itertools
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.numpy import load_file, save_file
from sklearn.ensemble import (
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
)

import holdfast as hf
from holdfast.api.methods import default_methods
from holdfast.api.radius import radius_problems
from holdfast.certificates.claim import pack_proof
from holdfast.certificates.comparison import _compare_question
from holdfast.certificates.writing import Certificate
from holdfast.problem import Problem
from holdfast.property import Linear
from holdfast.region import Box
from holdfast_check import Model, Rejected, check
from holdfast_check.container import read_container
from holdfast_check.proof import ROWS_VERSION, SCHEMA
from holdfast_check.rows import RowRegion, read_rows
from holdfast_check.trees import TREES, TreeSum, exact_margin, margin, read_trees, shown_margin

Array = np.ndarray[Any, Any]
FEATURES = 4


def random_trees(draw: np.random.Generator, count: int, depth: int = 3) -> dict[str, Array]:
    """Random trees over four inputs, of which the last two are compared with their one-hot numbers or tested as a set."""
    feature, threshold, left, right, roots = list[int](), list[float](), list[int](), list[int](), list[int]()
    sets = dict[str, Array]()

    def grow(level: int) -> int:
        node = len(feature)
        for column, value in ((feature, 0), (threshold, 0.0), (left, -1), (right, -1)):
            column.append(value)  # type: ignore[attr-defined]
        if level < depth and (level == 0 or draw.random() < 0.8):
            feature[node] = int(draw.integers(FEATURES))
            threshold[node] = float(draw.choice([-1.0, -0.5, 0.25, 0.5, 1.5, draw.normal()]))
            if draw.random() < 0.25:
                sets[f"set/{node}"] = np.array([2] if draw.random() < 0.5 else [3])
            left.__setitem__(node, level + 10**6)
            pending.append((node, level))
        return node

    pending = list[tuple[int, int]]()
    for _ in range(count):
        roots.append(grow(0))
        while pending:
            node, level = pending.pop()
            left[node] = grow(level + 1)
            right[node] = grow(level + 1)
    return {
        "feature": np.array(feature), "threshold": np.array(threshold), "left": np.array(left), "right": np.array(right),
        "value": draw.normal(size=(len(left), 2)), "roots": np.array(roots), "base": draw.normal(size=2), **sets,
    }  # fmt: skip


def random_region(draw: np.random.Generator, norm: str) -> RowRegion:
    """A region with scales, steps and, under norm 0, a unit of two one-hot numbers."""
    chosen = int(draw.integers(2))
    centre = np.array([draw.normal(), float(draw.integers(-2, 3)), float(chosen == 0), float(chosen == 1)])
    low, high = np.array([-3.0, -3.0, 0.0, 0.0]), np.array([3.0, 3.0, 1.0, 1.0])
    if norm != "0":
        low[2:] = high[2:] = centre[2:]
    if draw.random() < 0.3:
        low[0] = high[0] = centre[0]
    arrays = {
        "region/centre": centre, "region/lower": low, "region/upper": high,
        "region/steps": np.array([0.0, float(draw.choice([0.0, 0.5, 1.0])), 0.0, 0.0]),
        "region/scales": np.array([draw.uniform(0.5, 2), draw.uniform(0.5, 2), 1.0, 1.0]),
    }  # fmt: skip
    if norm == "0":
        arrays |= {
            "region/units": np.array([0, 1, 2, 2]),
            "region/choices": np.eye(2),
            "region/choice_units": np.array([2, 2]),
        }
        arrays.pop("region/scales")
    radius = float(draw.integers(0, 4)) if norm == "0" else float(draw.uniform(0.2, 2.5))
    return read_rows({"norm": norm, "radius": radius}, arrays, FEATURES)


def cells(model: TreeSum, region: RowRegion) -> Array:
    """Points of the region in every cell between thresholds that it contains: next to both sides of every threshold."""
    columns = list[list[float]]()
    for at in range(FEATURES):
        cuts = {0.5, *model.threshold[model.feature == at].tolist()}
        near = {float(region.centre[at]), float(region.lower[at]), float(region.upper[at]), *cuts}
        near |= {math.nextafter(cut, math.inf) for cut in cuts}
        if region.steps[at] > 0:
            step = float(region.steps[at])
            near |= {math.floor(cut / step) * step for cut in cuts} | {
                math.floor(cut / step + 1) * step for cut in cuts
            }
        columns.append(sorted(near))
    points = np.array([x for x in itertools.product(*columns) if region.inside(np.array(x))])
    return points


@pytest.mark.parametrize("norm", ["inf", "2", "1", "0"])
@pytest.mark.parametrize("count", [1, 3])
def test_bounds_lie_below_every_cell_and_one_tree_attains_them(norm: str, count: int) -> None:
    draw = np.random.default_rng(10 * count + len(norm))
    rows, offset = np.array([[1.0, -1.0], [0.3, 2.0]]), np.array([0.1, -0.2])
    gaps = list[float]()
    for _ in range(8):
        model = read_trees(FEATURES, random_trees(draw, count))
        region = random_region(draw, norm)
        points = cells(model, region)
        assert len(points)
        values = model.value_at(points) @ rows.T + offset
        found, exact = margin(model, region, rows, offset), exact_margin(model, region, rows, offset)
        assert (found <= values.min(0) + 1e-12).all()
        assert all(float(one) >= two for one, two in zip(exact, found, strict=True))
        assert np.allclose([float(one) for one in exact], found, atol=1e-9)
        gaps += (values.min(0) - found).tolist()
        assert np.allclose([float(one) for one in shown_margin(model, rows, offset, points[0])], values[0])
    if count == 1:  # Nearly always: a ball may touch a cell only at numbers that float64 does not have.
        assert np.median(gaps) < 1e-9
        assert np.mean(np.array(gaps) < 1e-9) > 0.9


@pytest.mark.parametrize("norm", ["inf", "2", "1", "0"])
def test_enumeration_finds_a_bound_that_leaves_out_a_reachable_leaf(
    norm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The enumeration can fail: with regions that are taken too small it does."""
    draw = np.random.default_rng(3)
    rows, offset = np.array([[1.0, -1.0]]), np.zeros(1)
    broken = 0
    for _ in range(20):
        model, region = read_trees(FEATURES, random_trees(draw, 1)), random_region(draw, norm)
        smaller = RowRegion(**{**region.__dict__, "radius": math.floor(region.radius * 0.4)})
        smaller = RowRegion(
            **{k: v for k, v in smaller.__dict__.items() if k in RowRegion.__dataclass_fields__}
        )
        values = model.value_at(cells(model, region)) @ rows.T
        broken += int(margin(model, smaller, rows, offset)[0] > values.min())
    assert broken > 0


GENERATOR = np.random.default_rng(0)
TABLE = pd.DataFrame(
    GENERATOR.normal(size=(90, 3)) * [1, 5, 0.1] + [0, 20, 3], columns=["age", "debt", "rate"]
)
SCORE = (TABLE.age + (TABLE.debt - 20) / 5 + GENERATOR.normal(0, 0.3, 90)).to_numpy()
THREE = np.digitize(SCORE, [-0.7, 0.7])
WORDS = TABLE.assign(
    job=pd.Categorical(GENERATOR.choice(["smith", "baker", "clerk"], 90)), count=GENERATOR.integers(0, 9, 90)
)
HOLES = TABLE.mask(GENERATOR.random(TABLE.shape) < 0.2)


def estimator(kind: str) -> tuple[Any, pd.DataFrame]:
    """A fitted estimator and its table."""
    if kind == "xgboost":
        library = pytest.importorskip("xgboost", reason="xgboost is not installed: pip install xgboost-cpu")
        return library.XGBClassifier(n_estimators=5, max_depth=3).fit(TABLE, THREE), TABLE
    if kind == "lightgbm":
        library = pytest.importorskip("lightgbm", reason="lightgbm is not installed: pip install lightgbm")
        return library.LGBMClassifier(n_estimators=5, min_child_samples=5, verbose=-1).fit(
            TABLE, THREE
        ), TABLE
    if kind == "forest":
        return RandomForestClassifier(5, random_state=0).fit(TABLE, THREE), TABLE
    if kind == "boosting":
        return GradientBoostingClassifier(n_estimators=4).fit(TABLE, (SCORE > 0).astype(int)), TABLE
    model = HistGradientBoostingClassifier(
        max_iter=4, max_leaf_nodes=8, min_samples_leaf=5, categorical_features="from_dtype"
    )
    table = WORDS if kind == "categories" else HOLES
    return model.fit(table, (SCORE + (WORDS.job == "smith") > 0).astype(int)), table


def certificates(kind: str, norm: float, folder: Path, limit: int = 6) -> list[Certificate]:
    model, table = estimator(kind)
    net = hf.Network.from_sklearn(model, columns=hf.Columns.of(table, scales="std"))
    rows = table.iloc[:limit]
    problems = radius_problems(net, rows, model.predict(rows), norm=norm)
    records = hf.solve(problems, default_methods(net, "units" if norm == 0 else "radius", "fast"))
    return hf.prove(problems, records, folder)


KINDS = ["forest", "boosting", "categories", "missing", "xgboost", "lightgbm"]


@pytest.mark.parametrize("norm", [math.inf, 0.0, 2.0])
@pytest.mark.parametrize("kind", KINDS)
def test_every_claim_about_an_estimator_of_trees_has_a_certificate(
    kind: str, norm: float, tmp_path: Path
) -> None:
    made = certificates(kind, norm, tmp_path)
    proofs = [one for one in made if one.kind == "proof"]
    assert proofs or norm == 0
    for one in made:
        assert one.file is not None, one
        assert one.model is not None
        assert one.kind == "witness" or one.value >= 0.999 * one.known
        verdict = check(one.model, one.file, exact=True)
        assert verdict.accepted, verdict
        if one.kind == "proof":
            assert "rational arithmetic agrees" in verdict.recomputed
            assert verdict.claim.startswith("for all ")
            assert "smallest proved margin" in verdict.claim


def opened(path: Path) -> tuple[dict[str, Any], dict[str, Array]]:
    metadata, arrays = read_container(path.read_bytes())
    return json.loads(metadata[SCHEMA]), dict(arrays)


@pytest.fixture(scope="module")
def forest(tmp_path_factory: pytest.TempPathFactory) -> tuple[Certificate, Certificate]:
    """A proof and a witness about the same row of a forest, in the maximum norm."""
    made = certificates("categories", math.inf, tmp_path_factory.mktemp("forest"))
    for proof, witness in itertools.pairwise(made):
        if (proof.kind, witness.kind) == ("proof", "witness") and proof.key == witness.key:
            return proof, witness
    raise AssertionError("no row has both")


def rejected(one: Certificate, header: Mapping[str, Any], arrays: Mapping[str, Any], folder: Path) -> bool:
    path = folder / "forged.proof"
    path.write_bytes(pack_proof(header, arrays))
    assert one.model is not None
    return not check(one.model, path).accepted


def test_a_claim_that_a_witness_contradicts_is_rejected_whatever_else_the_file_says(
    forest: tuple[Certificate, Certificate], tmp_path: Path
) -> None:
    proof, witness = forest
    assert proof.file is not None
    assert witness.file is not None
    header, arrays = opened(proof.file)
    _, shown = opened(witness.file)
    beyond = {**header["region"], "radius": 1.000001 * witness.known}
    found = shown["witness"].astype(np.float64)
    draw = np.random.default_rng(0)
    assert not rejected(proof, header, arrays, tmp_path)
    size = len(found)
    forgeries: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"region": {**header["region"], "radius": factor * witness.known}}, {})
        for factor in (1.000001, 1.5, 100.0, 1e99)
    ]
    # Around another centre, in other units, by other names, with everything that the format has: the point stays inside.
    forgeries += [
        (
            {"region": beyond},
            {"region/centre": arrays["region/centre"] + t * (found - arrays["region/centre"])},
        )
        for t in (0.3, 1.0)
    ]
    forgeries += [({"region": header["region"]}, {"region/scales": arrays["region/scales"] * 1e6})]
    forgeries += [
        ({"region": {**beyond, "norm": norm}}, {"region/scales": arrays["region/scales"] * size})
        for norm in ("1", "2")
    ]
    forgeries += [
        ({"region": beyond}, {name: draw.normal(size=size)})
        for name in ("slopes/1", "tree", "signs", "rows/1", "free")
    ]
    forgeries += [
        ({"region": beyond}, {"tree": np.array([0, -1, -1])}),
        ({"property": {"class": 1 - header["property"]["class"]}}, {}),
    ]
    forgeries += [
        ({"above": 50.0}, {}),
        ({"above": "nan"}, {}),
        ({"version": 1}, {}),
        ({"version": 3}, {}),
        ({"kind": "witness"}, {}),
    ]
    forgeries += [
        ({"model": {"sha256": "0" * 64}}, {}),
        ({"property": {"class": 7}}, {}),
        ({"schema": "x"}, {}),
    ]
    for strange in (-1.0, None, "inf", "nan", True, [1.0], 1e300):
        forgeries.append(({"region": {**header["region"], "radius": strange}}, {}))
    for name in ("region/centre", "region/lower", "region/upper", "region/scales", "region/steps"):
        forgeries += [({}, {name: np.full(size, np.nan)}), ({}, {name: np.ones(size + 1)})]
    forgeries += [({}, {"region/scales": np.zeros(size)}), ({}, {"region/scales": -np.ones(size)})]
    forgeries += [({}, {"region/steps": np.full(size, 0.3)}), ({}, {"region/shares": np.full(size, 0.1)})]
    forgeries += [({}, {"region/lower": arrays["region/upper"] + 1})]
    forgeries += [
        ({}, {"region/units": units}) for units in (np.arange(size) + 1, np.zeros(size) - 1, np.zeros(size))
    ]
    forgeries += [({}, {"region/choices": np.eye(2), "region/choice_units": np.zeros(2, dtype=int)})]
    for more, other in forgeries:
        assert rejected(proof, {**header, **more}, {**arrays, **other}, tmp_path), (more, list(other))
    for name in ("region/centre", "region/lower", "region/upper"):
        assert rejected(proof, header, {n: a for n, a in arrays.items() if n != name}, tmp_path), name
    for name in ("schema", "version", "kind", "region", "property", "above", "model"):
        assert rejected(proof, {n: a for n, a in header.items() if n != name}, arrays, tmp_path), name


def test_a_count_of_columns_cannot_be_raised(tmp_path: Path) -> None:
    made = certificates("categories", 0.0, tmp_path, 30)
    proof = next(one for one in made if one.kind == "proof")
    witness = next(one for one in made if one.kind == "witness" and one.key == proof.key)
    assert proof.file is not None
    assert witness.file is not None
    header, arrays = opened(proof.file)
    told, shown = opened(witness.file)
    assert not rejected(proof, header, arrays, tmp_path)
    more = {**header, "region": {**header["region"], "radius": told["region"]["radius"]}}
    assert told["region"]["radius"] == witness.known + 1
    assert rejected(proof, more, arrays, tmp_path)
    # Fewer units, so that one change covers more numbers; words that may be anything; a raised budget with other steps.
    one_unit = {**arrays, "region/units": np.zeros_like(arrays["region/units"])}
    for name in ("region/choices", "region/choice_units"):
        one_unit.pop(name)
    assert rejected(proof, header, one_unit, tmp_path)
    free = {name: array for name, array in arrays.items() if not name.startswith("region/choice")}
    assert rejected(proof, more, free, tmp_path)
    assert rejected(proof, more, {**arrays, "region/steps": np.zeros(1)}, tmp_path)
    for radius in (1.5, -1.0, "1", None):
        wrong = {**header, "region": {**header["region"], "radius": radius}}
        assert rejected(proof, wrong, arrays, tmp_path) or radius == "1"
    for name, array in (
        ("region/choice_units", np.array([99] * 3)),
        ("region/choices", np.full((3, 3), np.inf)),
    ):
        assert rejected(proof, header, {**arrays, name: array}, tmp_path)
    # A witness that changes more columns than it says, or a word that is none.
    fewer = {**told, "region": {**told["region"], "radius": told["region"]["radius"] - 1}}
    assert rejected(witness, fewer, shown, tmp_path)
    assert rejected(witness, told, {**shown, "witness": shown["witness"] + 0.5}, tmp_path)


def test_changed_trees_are_another_model_and_malformed_ones_are_none(
    forest: tuple[Certificate, Certificate], tmp_path: Path
) -> None:
    proof, _ = forest
    assert proof.model is not None
    assert proof.file is not None
    arrays = load_file(proof.model)
    inner = int(np.flatnonzero(arrays["left"] >= 0)[0])
    leaf = int(np.flatnonzero(arrays["left"] < 0)[0])
    last = len(arrays["left"]) - 1

    def with_entry(name: str, at: Any, value: float) -> dict[str, Array]:
        array = arrays[name].copy()
        array[at] = value
        return {**arrays, name: array}

    other = [with_entry("value", leaf, 3.0), with_entry("threshold", inner, 99.0), with_entry("base", 0, 9.0)]
    broken = [
        with_entry("left", inner, -1), with_entry("left", inner, inner), with_entry("right", inner, int(arrays["left"][inner])),
        with_entry("left", inner, last + 1), with_entry("feature", inner, 99), with_entry("threshold", inner, np.nan),
        with_entry("value", leaf, np.inf), {**arrays, "roots": arrays["roots"][:-1]}, {**arrays, "roots": arrays["roots"][:0]},
        {name: array[:-1] if name in ("left", "right", "feature", "threshold", "value") else array for name, array in arrays.items()},
        {**arrays, "set/0": np.array([99])}, {**arrays, f"set/{leaf}": np.array([0])}, {**arrays, "base": arrays["base"][:-1]},
        with_entry("left", leaf, 2),
    ]  # fmt: skip
    about = {TREES: json.dumps({"inputs": Model.read_file(proof.model).program.inputs})}
    path = tmp_path / "model.safetensors"
    for changed in other:
        save_file(changed, path, about)
        verdict = check(path, proof.file)
        assert not verdict.accepted
        assert "another model" in verdict.reason
    for changed in broken:
        save_file(changed, path, about)
        with pytest.raises(Rejected):
            Model.read_file(path)
    for text in ("{}", '{"inputs": 0}', '{"inputs": true}', '{"inputs": 2, "more": 1}', "x", "[3]"):
        save_file(arrays, path, {TREES: text})
        with pytest.raises(Rejected):
            Model.read_file(path)


def test_worst_and_reach_of_trees_have_certificates(tmp_path: Path) -> None:
    model, _ = estimator("boosting")
    net = hf.Network.from_sklearn(model)
    x = torch.tensor(TABLE.to_numpy()[:4])
    for goal in ("worst", "largest"):
        row = torch.tensor([[-1.0, 1.0]], dtype=torch.float64)
        problem = Problem(net, Box(x, x - 0.3, x + 0.3), Linear(row.expand(4, 1, 2), torch.zeros(4, 1)), goal)
        records = hf.solve([problem], default_methods(net, goal, "fast"))
        made = hf.prove([problem], records, tmp_path / goal)
        assert {one.kind for one in made} == {"proof", "witness"}
        assert all(one.file is not None for one in made), made
        proof = next(one for one in made if one.kind == "proof")
        assert proof.file is not None
        header, arrays = opened(proof.file)
        assert header["version"] == ROWS_VERSION
        assert rejected(proof, {**header, "above": header["above"] + 1.0}, arrays, tmp_path)
        wide = {"region/lower": arrays["region/lower"] - 50.0, "region/upper": arrays["region/upper"] + 50.0}
        assert rejected(proof, header, {**arrays, **wide}, tmp_path)


def test_a_certificate_about_other_scales_is_not_about_the_question(tmp_path: Path) -> None:
    """Whoever has model and data compares the region of a certificate with that of the question, scales included."""
    model, table = estimator("forest")
    net = hf.Network.from_sklearn(model, columns=hf.Columns.of(table, scales="std"))
    problems = radius_problems(net, table.iloc[:1], model.predict(table.iloc[:1]))
    [record] = hf.solve(problems, default_methods(net, "radius", "fast"))
    one = next(one for one in hf.prove(problems, [record], tmp_path) if one.kind == "proof")
    assert one.file is not None
    assert one.model is not None
    opened_model = Model.read_file(one.model)
    assert _compare_question(one.file, problems[0], record, opened_model)[0] == "accepted"
    header, arrays = opened(one.file)
    for name, factor in (("region/scales", 0.5), ("region/centre", 1.001)):
        one.file.write_bytes(pack_proof(header, {**arrays, name: arrays[name] * factor}))
        assert _compare_question(one.file, problems[0], record, opened_model)[0] == "other"
