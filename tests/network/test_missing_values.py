"""Rows with missing values: what is certified of an estimator that reads or fills them is what its `predict` says."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.impute import KNNImputer, SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier

import holdfast as hf
from holdfast.errors import BadInput

DRAW = np.random.default_rng(0)
FULL = DRAW.normal(size=(300, 3))
LABELS = (FULL[:, 0] + FULL[:, 1] > 0.3).astype(int)
FULL[:, 1] += 10  # so that zero is no value of this column
GAPS = np.where(DRAW.random(FULL.shape) < [0.2, 0.2, 0.0], np.nan, FULL)
TABLE = pd.DataFrame(GAPS, columns=list("abc"))
COLUMNS = hf.Columns.of(TABLE)
FREE = hf.Columns.from_json({name: {**column, "frozen": False} for name, column in COLUMNS.as_json().items()})
# The libraries of boosted trees read missing values themselves; LightGBM reads them as 0 if its data had none.
XGBOOST = pytest.importorskip("xgboost", reason="xgboost is not installed: pip install xgboost-cpu")
LIGHTGBM = pytest.importorskip("lightgbm", reason="lightgbm is not installed: pip install lightgbm")
PROVED: dict[str, Any] = {
    "xgboost": XGBOOST.XGBClassifier(n_estimators=4, max_depth=3),
    "lightgbm": LIGHTGBM.LGBMClassifier(n_estimators=4, min_child_samples=5, verbose=-1),
    "histogram": HistGradientBoostingClassifier(max_iter=5, min_samples_leaf=5),
    "scaled_histogram": make_pipeline(StandardScaler(), HistGradientBoostingClassifier(max_iter=3)),
    "forest": RandomForestClassifier(4, max_depth=3, random_state=0),
    "filled_forest": make_pipeline(
        SimpleImputer(strategy="median"),
        StandardScaler(),
        RandomForestClassifier(4, max_depth=3, random_state=0),
    ),
    "filled_linear": make_pipeline(SimpleImputer(), StandardScaler(), LogisticRegression()),
    "filled_with_indicator": make_pipeline(SimpleImputer(add_indicator=True), LogisticRegression()),
    "filled_columns": make_pipeline(
        make_column_transformer(
            (make_pipeline(SimpleImputer(), StandardScaler()), ["a", "b"]), remainder="passthrough"
        ),
        DecisionTreeClassifier(max_depth=4),
    ),
}


def test_columns_with_gaps_get_an_indicator_and_are_decoded_to_the_same_table() -> None:
    assert COLUMNS.features == ("a", "a is missing", "b", "b is missing", "c")
    assert COLUMNS.table_names == ("a", "b", "c")
    pd.testing.assert_frame_equal(COLUMNS.decode(COLUMNS.encode(TABLE)), TABLE)
    stored = hf.Columns.from_json(COLUMNS.as_json())
    assert stored == COLUMNS
    gap, known = TABLE.index[TABLE.a.isna()][0], TABLE.index[TABLE.a.notna()][0]
    rows = COLUMNS.encode(TABLE)
    assert ("a", "missing") in COLUMNS.describe_row(rows[gap].tolist())
    assert COLUMNS.changes(rows[known].tolist(), rows[gap].tolist())[0][0] == "a"


@pytest.mark.parametrize("name", PROVED)
def test_certificates_hold_on_both_sides_of_missing(name: str) -> None:
    """Known numbers move, missing ones stay missing: no row that is drawn within the radius is predicted otherwise."""
    model = PROVED[name].fit(TABLE, LABELS)
    net = hf.Network.from_sklearn(model, columns=COLUMNS)
    assert net.trees is not None or net.differentiable, net.notes
    rows, said = net.rows(TABLE), model.predict(TABLE)
    assert (net(rows).argmax(1).numpy() == said).all()
    chosen = [*TABLE.index[TABLE.a.isna()][:3], *TABLE.index[TABLE.notna().all(axis=1)][:3]]
    found = hf.radius(net, rows[chosen], said[chosen], norm=torch.inf)
    assert any(bracket.lower.value > 0 for bracket in found)
    draw = np.random.default_rng(1)
    for k, bracket in zip(chosen, found, strict=True):
        if bracket.lower.value > 0:
            moved = GAPS[k] + bracket.lower.value * draw.uniform(-1, 1, size=(400, 3))
            assert (model.predict(pd.DataFrame(moved, columns=list("abc"))) == said[k]).all()
        witness = bracket.counterexample
        if witness is not None:
            other = net.columns.decode(witness[None])  # type: ignore[union-attr]
            assert model.predict(other)[0] != said[k]
            assert (other.isna() == TABLE.iloc[[k]].reset_index(drop=True).isna()).all(axis=None)


@pytest.mark.parametrize("name", ["histogram", "xgboost", "lightgbm", "filled_linear", "filled_columns"])
def test_values_that_may_become_missing_count_as_changed_columns(name: str) -> None:
    """Norm 0 against all combinations of one column: a grid of numbers, and missing."""
    model = PROVED[name].fit(TABLE, LABELS)
    net = hf.Network.from_sklearn(model, columns=FREE)
    assert net.trees is not None or net.differentiable, net.notes
    chosen = TABLE.index[TABLE.notna().all(axis=1)][:12]
    said = model.predict(TABLE.loc[chosen])
    found = hf.radius(net, net.rows(TABLE)[chosen], said, norm=0)
    for k, label, bracket in zip(chosen, said, found, strict=True):
        changed = []
        for column in "abc":
            for value in [np.nan, *np.linspace(*TABLE[column].agg(["min", "max"]), 40)]:
                if column == "c" and np.isnan(value):
                    continue
                changed.append(TABLE.loc[[k]].assign(**{column: value}))
        breaks = bool((model.predict(pd.concat(changed)) != label).any())
        assert not (breaks and bracket.lower.value >= 1)
        if bracket.upper.value == 0:
            assert model.predict(net.columns.decode(bracket.counterexample[None]))[0] != label  # type: ignore


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (
            make_pipeline(KNNImputer(), LogisticRegression()),
            "the step KNNImputer fills missing values with more than one number for each column",
        ),
        (
            make_pipeline(StandardScaler(), SimpleImputer(), LogisticRegression()),
            "column 'a' may be missing, and no SimpleImputer fills it before the step StandardScaler",
        ),
        (
            make_pipeline(StandardScaler(), SimpleImputer(), DecisionTreeClassifier(max_depth=2)),
            "the step SimpleImputer fills missing values after another step",
        ),
    ],
)
def test_what_cannot_be_read_is_named(model: Any, reason: str) -> None:
    net = hf.Network.from_sklearn(model.fit(TABLE, LABELS), columns=COLUMNS)
    assert reason in net.notes[0]


def test_wrong_descriptions_are_refused() -> None:
    with pytest.raises(BadInput, match="missing in all rows: leave it out"):
        hf.Columns.of(pd.DataFrame({"a": [np.nan, np.nan]}))
    with pytest.raises(BadInput, match=r"of words has 1 missing values: give them a word of their own"):
        hf.Columns.of(pd.DataFrame({"a": ["x", None]}))
    with pytest.raises(BadInput, match="'missing_of' names 'b', which is no column of numbers"):
        hf.Columns.from_json({"a": {"step": 1, "low": 0, "high": 1, "missing_of": "b"}})
    with pytest.raises(BadInput, match='so it is 0 or 1: give it "step": 1, "low": 0, "high": 1'):
        hf.Columns.from_json({"b": {}, "a": {"missing_of": "b"}})
