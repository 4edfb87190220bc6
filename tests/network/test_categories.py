"""Trees that split the values of categorical columns: what is certified is what `predict` says, value by value."""

import itertools
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.compose import make_column_transformer
from sklearn.ensemble import (
    AdaBoostClassifier,
    ExtraTreesClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
    VotingClassifier,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler, TargetEncoder
from sklearn.tree import DecisionTreeClassifier

import holdfast as hf
from holdfast.errors import BadInput

XGBOOST = pytest.importorskip("xgboost", reason="xgboost is not installed: pip install xgboost-cpu")
LIGHTGBM = pytest.importorskip("lightgbm", reason="lightgbm is not installed: pip install lightgbm")
DRAW = np.random.default_rng(0)
COUNT = 300
# Not in the order of the alphabet: codes must be the model's.
JOBS = ["smith", "baker", "clerk", "pilot", "judge"]
TABLE = pd.DataFrame(
    {
        "age": DRAW.integers(18, 80, COUNT),
        "job": pd.Categorical(DRAW.choice(JOBS, COUNT), categories=JOBS),
        "income": DRAW.normal(50, 15, COUNT).round(1),
        "city": pd.Categorical(DRAW.choice([5, 3, 9], COUNT), categories=[5, 3, 9]),
    }
)
ODD = TABLE.job.isin(["baker", "judge"]).to_numpy()
LABELS = (TABLE.age / 10 + TABLE.income / 10 + 3 * ODD - 2 * (TABLE.city == 3) > 10).astype(int).to_numpy()
ENCODED = make_column_transformer((OrdinalEncoder(), ["job", "city"]), remainder="passthrough")
TARGETS = make_column_transformer(
    (TargetEncoder(random_state=0), ["job", "city"]), remainder=StandardScaler()
)
MODELS: dict[str, Any] = {
    "xgboost": XGBOOST.XGBClassifier(n_estimators=5, max_depth=3, enable_categorical=True),
    "xgboost_sets": XGBOOST.XGBClassifier(
        n_estimators=5, max_depth=3, enable_categorical=True, max_cat_to_onehot=1
    ),
    "lightgbm": LIGHTGBM.LGBMClassifier(
        n_estimators=5, num_leaves=8, min_data_per_group=1, cat_smooth=1, verbose=-1
    ),
    "histogram": HistGradientBoostingClassifier(
        max_iter=5, max_leaf_nodes=8, categorical_features="from_dtype", random_state=0
    ),
    "ordinal_forest": make_pipeline(ENCODED, StandardScaler(), RandomForestClassifier(4, max_depth=4)),
    "ordinal_histogram": make_pipeline(
        ENCODED, HistGradientBoostingClassifier(max_iter=4, max_leaf_nodes=8, categorical_features=[0, 1])
    ),
    "targets": make_pipeline(TARGETS, RandomForestClassifier(4, max_depth=4, random_state=0)),
    "one_hot_votes": make_pipeline(
        make_column_transformer((OneHotEncoder(), ["job", "city"]), remainder="passthrough"),
        VotingClassifier(
            [("a", RandomForestClassifier(3, max_depth=3)), ("b", ExtraTreesClassifier(2, max_depth=3))],
            voting="soft",
            weights=[1, 3],
        ),
    ),
    "ordinal_ada": make_pipeline(
        ENCODED, AdaBoostClassifier(DecisionTreeClassifier(max_depth=2), n_estimators=4)
    ),
}
COLUMNS = hf.Columns.of(TABLE, scales={"age": 10, "income": 10})


@pytest.mark.parametrize("name", MODELS)
def test_trees_of_categories_are_certified_as_predict_says(name: str) -> None:
    model = MODELS[name].fit(TABLE, LABELS)
    net = hf.Network.from_sklearn(model, columns=COLUMNS)
    assert net.trees is not None, net.notes
    rows = TABLE.iloc[:4]
    said = model.predict(rows)
    by_words = hf.radius(net, rows, said, norm=0)
    by_numbers = hf.radius(net, rows, said)
    assert any(found.lower.value > 0 for found in by_numbers)
    for k, (words, numbers) in enumerate(zip(by_words, by_numbers, strict=True)):
        # Norm 0: changing any set of columns within the certified count, words to all of their values.
        for changed in itertools.combinations(TABLE.columns, int(words.lower.value)):
            assert (model.predict(variants(rows.iloc[k], changed)) == said[k]).all()
        # Norm inf: numbers within the certified radius, words unchanged.
        points = pd.concat([rows.iloc[[k]]] * 200, ignore_index=True)
        # A radius is infinite where no change of the numbers alone changes the class; 100 spans the whole table.
        reach = 10 * min(numbers.lower.value, 100)
        ages = np.clip(
            points.age + np.trunc(DRAW.uniform(-reach, reach, 200)), TABLE.age.min(), TABLE.age.max()
        )
        points["age"] = ages.astype(int)
        incomes = points.income + DRAW.uniform(-reach, reach, 200)
        points["income"] = incomes.clip(TABLE.income.min(), TABLE.income.max())
        assert (model.predict(points) == said[k]).all()
        for found in (words, numbers):
            if found.counterexample is not None:
                table = COLUMNS.decode(found.counterexample[None])[list(TABLE.columns)]
                assert model.predict(table)[0] != said[k]


def variants(row: Any, changed: tuple[str, ...]) -> pd.DataFrame:
    """The row with these columns set to all values of words, and to values over the range of numbers."""
    values = [
        TABLE[name].cat.categories.tolist()
        if isinstance(TABLE[name].dtype, pd.CategoricalDtype)
        else np.quantile(TABLE[name], np.linspace(0, 1, 12), method="nearest").tolist()
        for name in changed
    ]
    points = pd.DataFrame(
        [
            {**row.to_dict(), **dict(zip(changed, chosen, strict=True))}
            for chosen in itertools.product(*values)
        ]
    )
    return points.astype(TABLE.dtypes.to_dict())


def test_a_row_is_in_one_leaf_of_every_tree() -> None:
    net = hf.Network.from_sklearn(MODELS["lightgbm"].fit(TABLE, LABELS), columns=COLUMNS)
    assert net.trees is not None
    inside = net.trees.holds(COLUMNS.encode(TABLE)).double()
    each = torch.zeros((len(TABLE), net.trees.count), dtype=torch.float64).index_add(
        1, net.trees.tree, inside
    )
    assert bool((each == 1).all())


def test_categories_that_are_described_as_numbers_are_not_read() -> None:
    """Without its values, a column of categories would be compared as a number, which the model never does."""
    numbers = TABLE.assign(job=TABLE.job.cat.codes, city=TABLE.city.astype(int))
    model = HistGradientBoostingClassifier(max_iter=3, categorical_features=["job"]).fit(numbers, LABELS)
    net = hf.Network.from_sklearn(model, columns=hf.Columns.of(numbers))
    assert net.trees is None
    assert "describe" in net.notes[0]
    with pytest.raises(BadInput, match="which is not one of"):
        COLUMNS.encode(TABLE.assign(job="miller"))
