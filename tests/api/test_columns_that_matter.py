"""Counterfactuals, columns that do or do not matter, and whole numbers that are stored as floating-point numbers."""

import itertools
import math
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.compose import make_column_transformer
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import holdfast as hf
from holdfast.errors import BadInput
from sizes import count

DRAW = np.random.default_rng(0)
COUNT = 300
TABLE = pd.DataFrame(
    {
        "age": DRAW.integers(18, 80, COUNT),
        "income": DRAW.normal(50, 15, COUNT).round(1),
        "sex": DRAW.choice(["f", "m"], COUNT),
        "city": DRAW.choice(["x", "y", "z"], COUNT),
    }
)
GRANTED = np.where(TABLE.age / 10 + TABLE.income / 10 > 10, "yes", "no")
UNFAIR = np.where(TABLE.age / 10 + TABLE.income / 10 + 2 * (TABLE.sex == "m") > 11, "yes", "no")
COLUMNS = hf.Columns.of(TABLE, scales={"age": 10, "income": 10})


def encoded(*words: str) -> Any:
    numbers = [name for name in ("age", "income") if name not in words]
    return make_column_transformer((StandardScaler(), numbers), (OneHotEncoder(), list(words)))


def network(model: Any, y: Any, *words: str) -> tuple[Any, hf.Network]:
    fitted = make_pipeline(encoded(*words), model).fit(TABLE, y)
    return fitted, hf.Network.from_sklearn(fitted, columns=COLUMNS)


@pytest.mark.parametrize(
    ("model", "length"),
    [(LogisticRegression(), 3), (RandomForestClassifier(5, max_depth=4, random_state=0), count(1, 3))],
    ids=["linear", "forest"],
)
def test_counterfactuals_are_sparse_small_and_valid(model: Any, length: int) -> None:
    fitted, net = network(model, UNFAIR, "sex", "city")
    rows = TABLE.iloc[:length]
    said = fitted.predict(rows)
    found = hf.counterfactuals(net, rows, per_row=length)
    assert {one.index for one in found} == set(range(length))
    frame = found.to_frame()
    assert (fitted.predict(frame[list(TABLE.columns)]) != said[frame.row]).all()
    for one, values in zip(found, frame.to_dict("records"), strict=True):
        before = rows.iloc[one.index].to_dict()
        changed = {name for name, *_ in one.changes}
        assert changed == {name for name in TABLE.columns if values[name] != before[name]}
        assert len(changed) >= one.least_columns
        assert values["age"] == int(values["age"])
        for name in ("age", "income"):
            assert TABLE[name].min() <= values[name] <= TABLE[name].max()
        assert one.distance == pytest.approx(
            sum(abs(values[name] - before[name]) / 10 for name in ("age", "income"))
        )
        if changed == {"age"}:  # the age next to it has the old class: no smaller change suffices
            step = 1 if values["age"] > before["age"] else -1
            nearer = pd.DataFrame([{**before, "age": values["age"] - step}])
            assert fitted.predict(nearer)[0] == said[one.index]
    for index in range(length):
        own = [frozenset(name for name, *_ in one.changes) for one in found if one.index == index]
        assert len(set(own)) == len(own)
        order = [(len(one.changes), one.distance) for one in found if one.index == index]
        assert order == sorted(order)
    assert all(name in str(found) for one in found for name, *_ in one.changes)


def test_frozen_columns_stay_and_what_cannot_change_has_no_counterfactual() -> None:
    _, net = network(LogisticRegression(), GRANTED, "sex")
    columns = COLUMNS.with_(frozen=["age", "income"])
    found = hf.counterfactuals(net.with_columns(columns), TABLE.iloc[:2])
    assert len(found) == 0
    assert found.without == (0, 1)
    assert "none found for rows 0, 1" in str(found)
    with pytest.raises(BadInput, match="no columns"):
        hf.counterfactuals(torch.nn.Linear(2, 2), torch.zeros(1, 2))


@pytest.mark.parametrize(
    "model", [LogisticRegression(), RandomForestClassifier(5, max_depth=4, random_state=0)]
)
def test_a_column_that_the_model_reads_changes_the_class_of_some_rows(model: Any) -> None:
    fitted, net = network(model, UNFAIR, "sex", "city")
    rows = TABLE.iloc[:40]
    effect = hf.column_effect(net, "sex", rows)
    other = fitted.predict(rows.assign(sex=rows.sex.map({"f": "m", "m": "f"}))) != fitted.predict(rows)
    assert effect.affected == tuple(np.flatnonzero(other).tolist())
    assert effect.unaffected == tuple(np.flatnonzero(~other).tolist())
    assert effect.every_row == "changes the class"
    assert effect.example is not None
    row, (name, old, new), before, after = effect.example
    assert name == "sex"
    kinds = {"age": int, "income": float, "sex": str, "city": str}
    table = pd.DataFrame([{k: kinds[k](v) for k, v in row}])
    assert fitted.predict(table.assign(sex=old))[0] == before
    assert fitted.predict(table.assign(sex=new))[0] == after
    assert before != after


def test_a_column_without_weight_is_proved_to_have_no_effect_on_any_row() -> None:
    """Not read at all, weight exactly zero, and never compared by a tree; each for all rows."""
    sparse = LogisticRegression(solver="liblinear", l1_ratio=1, C=0.02)
    forest = RandomForestClassifier(3, max_depth=2, max_features=None, random_state=0)
    proved = 0
    for model, words in (
        (LogisticRegression(), ("city",)),
        (sparse, ("sex", "city")),
        (forest, ("sex", "city")),
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fitted, net = network(model, GRANTED, *words)
        effect = hf.column_effect(net, "sex", TABLE.iloc[:10])
        swapped = TABLE.assign(sex=TABLE.sex.map({"f": "m", "m": "f"}))
        if effect.every_row == "no effect":
            proved += 1
            assert (fitted.predict(swapped) == fitted.predict(TABLE)).all()
            assert (fitted.predict_proba(swapped) == fitted.predict_proba(TABLE)).all()
            assert effect.unaffected == tuple(range(10))
            assert "proved, no value of sex" in str(effect)
    assert proved == 3


def test_a_small_weight_is_never_called_no_effect() -> None:
    """Attack of the proof: one weight of 1e-12 on the column, in a linear model and in the first layer of a network."""
    fitted, _ = network(LogisticRegression(), GRANTED, "sex")
    for weight in (1e-12, -1e-300, 5e-324):
        fitted[-1].coef_[0, -2:] = (0.0, weight)
        net = hf.Network.from_sklearn(fitted, columns=COLUMNS)
        assert hf.column_effect(net, "sex").every_row != "no effect"
    fitted[-1].coef_[0, -2:] = 0.0
    net = hf.Network.from_sklearn(fitted, columns=COLUMNS)
    assert hf.column_effect(net, "sex").every_row == "no effect"
    assert hf.column_effect(net, "income").every_row == "changes the class"


def test_columns_that_do_not_exist_or_cannot_change_are_refused() -> None:
    _, net = network(LogisticRegression(), GRANTED, "sex")
    with pytest.raises(BadInput, match="no column 'gender'"):
        hf.column_effect(net, "gender")
    with pytest.raises(BadInput, match="give it columns"):
        hf.column_effect(torch.nn.Linear(2, 2), "sex")


def test_whole_numbers_in_floating_point_columns_are_asked_about() -> None:
    """A count with gaps is float in pandas; without a step its counterexamples were 1.99999994 children."""
    counts = TABLE.assign(children=DRAW.integers(0, 4, COUNT).astype(float))
    counts.loc[3, "children"] = np.nan
    with pytest.warns(UserWarning, match=r"whole=\['children'\]"):
        asked = hf.Columns.of(counts)
    assert {c.name: c.step for c in asked.each}["children"] == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        answered = hf.Columns.of(counts, whole=["children"])
        hf.Columns.of(counts, whole=())
        hf.Columns.of(TABLE)
    assert {c.name: c.step for c in answered.each}["children"] == 1
    with pytest.raises(BadInput, match="'income' is no column"):
        hf.Columns.of(counts, whole=["income"])
    full = counts.dropna()
    y = (full.children > 1).astype(int)
    model = LogisticRegression(max_iter=500).fit(full[["income", "children"]], y)
    net = hf.Network.from_sklearn(
        model, columns=hf.Columns.of(full[["income", "children"]], whole=["children"])
    )
    for bracket in hf.radius(
        net, full[["income", "children"]][:3], model.predict(full[["income", "children"]][:3])
    ):
        if math.isfinite(bracket.upper.value):
            assert float(bracket.counterexample[1]) == int(bracket.counterexample[1])  # type: ignore[index]


def test_every_pair_of_the_smallest_example_agrees_with_enumeration() -> None:
    """Two whole columns of few values: `least_columns` and the answers against all rows."""
    small = pd.DataFrame(list(itertools.product(range(4), range(4))), columns=["a", "b"])
    y = ((small.a >= 2) & (small.b >= 1)).astype(int)
    model = RandomForestClassifier(1, bootstrap=False, max_features=None, random_state=0).fit(small, y)
    net = hf.Network.from_sklearn(model, columns=hf.Columns.of(small))
    said = model.predict(small)
    for one in hf.counterfactuals(net, small, per_row=count(1, 2)):
        away = (small.to_numpy() != small.to_numpy()[one.index]).sum(1)
        assert one.least_columns <= away[said != said[one.index]].min() <= len(one.changes)
    for name in small.columns:
        effect = hf.column_effect(net, name, small)
        groups = small.assign(said=said).groupby([c for c in small.columns if c != name]).said.nunique()
        other = small[next(c for c in small.columns if c != name)]
        assert effect.affected == tuple(k for k in range(len(small)) if groups[other[k]] > 1)
