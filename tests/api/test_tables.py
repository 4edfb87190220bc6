"""Rows of tables: what columns are, radii over them against exact ones, and witnesses that are rows of the same table."""

import datetime
import decimal
import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.compose import make_column_transformer
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, OneHotEncoder, OrdinalEncoder, StandardScaler
from torch import nn

import holdfast as hf
import tree_truth
from holdfast.errors import BadInput
from holdfast.random_streams import RandomStreams
from holdfast.region import ChangedColumns, Column, Rows

GENERATOR = np.random.default_rng(0)
PEOPLE = pd.DataFrame(
    {
        "age": GENERATOR.integers(18, 80, 120),
        "debt": GENERATOR.normal(50, 15, 120).round(2),
        "owner": GENERATOR.random(120) < 0.5,
        "job": GENERATOR.choice(["baker", "clerk", "smith"], 120),
        "city": pd.Categorical(GENERATOR.choice(["A", "B"], 120)),
    }
)
GRANTED = np.where(
    PEOPLE.age / 10 + PEOPLE.debt / 10 + 2 * (PEOPLE.job == "smith") + PEOPLE.owner > 10, "yes", "no"
)
SPREAD = pd.get_dummies(PEOPLE, columns=["job", "city"], dtype=float)
TOLD = {
    "age": {"step": 1, "low": 18, "high": 80, "scale": 10},
    "debt": {"low": 0, "high": 120, "scale": 10},
    "owner": {"step": 1, "low": 0, "high": 1},
    "job": {"one_of": ["job_baker", "job_clerk", "job_smith"]},
    "city": {"one_of": ["city_A", "city_B"], "frozen": True},
}


def test_columns_of_a_frame() -> None:
    columns = hf.Columns.of(PEOPLE, frozen=["city"], scales="std")
    age, debt, owner, job, city = columns.each
    assert (age.step, age.low, age.high) == (1, PEOPLE.age.min(), PEOPLE.age.max())
    assert debt.scale == pytest.approx(PEOPLE.debt.std(ddof=0))
    assert (owner.step, owner.low, owner.high) == (1, 0, 1)
    assert job.values == ("baker", "clerk", "smith")
    assert city.frozen
    assert columns.features == (
        "age",
        "debt",
        "owner",
        "job=baker",
        "job=clerk",
        "job=smith",
        "city=A",
        "city=B",
    )
    again = columns.decode(columns.encode(PEOPLE))
    pd.testing.assert_frame_equal(again, PEOPLE)
    assert hf.Columns.from_json(columns.as_json()).as_json() == columns.as_json()


def test_columns_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "columns.json").write_text('{"age": {"step": 1}, "job": {"one_of": ["a", "b"]}}')
    columns = hf.Columns.read(tmp_path / "columns.json").in_order(["b", "age", "a"])
    assert columns.places == ((1,), (2, 0))
    assert columns.changes([0, 30, 1], [1, 31, 0]) == [("age", "30", "31"), ("job", "a", "b")]
    assert not columns.plain
    assert hf.Columns.named(["a", "b"]).plain


REFUSED: list[tuple[Any, str]] = [
    (
        lambda: hf.Columns.from_json({"age": {"steps": 1}}),
        "column 'age' has 'steps'; allowed are frozen, high",
    ),
    (lambda: hf.Columns.from_json([1]), "Expected an object with an entry for each column"),
    (lambda: hf.Columns.from_json({"age": {"step": "one"}}), "column 'age': could not convert"),
    (lambda: hf.Columns.of(PEOPLE, frozen=["town"]), "no column 'town'; the columns are age, debt"),
    (lambda: hf.Columns.of(PEOPLE.assign(debt=np.nan)), "'debt' is missing in all rows"),
    (lambda: hf.Columns.named(["a", "a"]), "'a' occurs twice"),
    (lambda: Column("a", low=2, high=1), "its smallest value 2 is above"),
    (lambda: Column("a", scale=0), "must be positive"),
    (lambda: Column("a", values=("x", "x")), "must be distinct"),
    (
        lambda: hf.Columns.of(PEOPLE).encode(PEOPLE.assign(job="king")),
        "row 0 holds 'king', which is not one of baker",
    ),
    (lambda: hf.Columns.of(PEOPLE).encode(PEOPLE[["age"]]), "no column 'debt'"),
    (
        lambda: Rows(torch.zeros(1, 2), torch.ones(1), hf.Columns.named("abc")),
        "a row of the table has 3 numbers: a, b, c",
    ),
    (
        lambda: Rows(torch.full((1, 1), 5.0), torch.ones(1), hf.Columns((Column("a", low=0, high=1),))),
        "row 0: a is 5, .* allows 0 to 1",
    ),
    (
        lambda: Rows(torch.full((1, 2), 0.5), torch.ones(1), hf.Columns((Column("w", one_of=("p", "q")),))),
        "'w' .p, q. exactly one",
    ),
    (
        lambda: ChangedColumns(torch.zeros(1, 1), torch.ones(1), hf.Columns((Column("a", step=1),))),
        "needs bounds .* 'a' has none",
    ),
]


@pytest.mark.parametrize(("build", "message"), REFUSED, ids=[str(i) for i in range(len(REFUSED))])
def test_what_cannot_be_a_table_is_refused_in_words(build: Any, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        build()


def logistic() -> tuple[hf.Network, Any]:
    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(SPREAD, GRANTED)
    return hf.Network.from_sklearn(model, columns=hf.Columns.from_json(TOLD)), model


def check_row(net: hf.Network, before: torch.Tensor, after: torch.Tensor) -> None:
    """Of the same table, whatever the region says."""
    assert net.columns is not None
    row = dict(zip(net.columns.features, after.tolist(), strict=True))
    assert row["age"] == round(row["age"])
    assert 18 <= row["age"] <= 80
    assert row["owner"] in (0, 1)
    assert 0 <= row["debt"] <= 120
    assert sorted(row[f"job_{job}"] for job in ("baker", "clerk", "smith")) == [0, 0, 1]
    assert [row["city_A"], row["city_B"]] == [
        before[net.columns.features.index(name)] for name in ("city_A", "city_B")
    ]


@pytest.mark.parametrize("norm", [0, 1, 2, math.inf])
def test_proofs_and_witnesses_over_rows_of_a_linear_model(norm: float) -> None:
    """No row of many drawn within the proved radius breaks; every witness is a row, and breaks the estimator itself."""
    net, model = logistic()
    assert net.columns is not None
    x, said = net.rows(SPREAD[:6]), model.predict(SPREAD[:6])
    for row, bracket in enumerate(hf.radius(net, SPREAD[:6], said, norm=norm)):
        witness = bracket.upper.evidence.witness
        assert witness is not None
        check_row(net, x[row], witness)
        assert model.predict(net.columns.decode(witness[None])[list(SPREAD.columns)])[0] != said[row]
        if norm == 0:
            assert bracket.closed
            assert bracket.upper.value == len(net.columns.changes(x[row].tolist(), witness.tolist())) - 1
            continue
        assert bracket.lower.value > 0
        assert bracket.upper.value <= bracket.lower.value * 1.5 + 0.15  # whole numbers leave a gap
        region = Rows(
            x[row : row + 1],
            torch.tensor([bracket.lower.value], dtype=torch.float64),
            net.columns,
            net.domain,
            norm=norm,
        )
        inside = region.sample(400, RandomStreams.of(range(1), 1)).squeeze(1)
        assert set(model.predict(net.columns.decode(inside)[list(SPREAD.columns)])) == {said[row]}


def test_counts_of_changed_columns_are_exact_for_a_linear_model() -> None:
    """Against every set of columns, each at its best: a word counts as one column however many numbers stand for it."""
    torch.manual_seed(1)
    columns = hf.Columns(
        (Column("a", low=-1, high=1), Column("w", one_of=("p", "q", "r")), Column("b", step=1, low=0, high=3))
    )
    layer = nn.Linear(5, 2).double()
    net = hf.Network.from_torch(layer.eval()).with_columns(columns)
    words, x = torch.eye(3, dtype=torch.float64), torch.zeros(6, 5, dtype=torch.float64)
    x[:, 0], x[:, 1:4], x[:, 4] = (
        torch.linspace(-1, 1, 6, dtype=torch.float64),
        words[torch.arange(6) % 3],
        torch.arange(6) % 4,
    )
    with torch.no_grad():
        y = layer(x).argmax(1)
    options: list[list[list[float]]] = [[[-1.0], [1.0]], words.tolist(), [[0.0], [3.0]]]
    for row, bracket in enumerate(hf.radius(net, x, y, norm=0)):
        own = [[x[row, 0].item()], x[row, 1:4].tolist(), [x[row, 4].item()]]
        counts = []
        for chosen in itertools.product(
            *([mine, *others] for mine, others in zip(own, options, strict=True))
        ):
            moved = torch.tensor([sum(chosen, [])], dtype=torch.float64)  # noqa: RUF017
            with torch.no_grad():
                if int(layer(moved).argmax(1)) != int(y[row]):
                    counts.append(sum(mine != one for mine, one in zip(own, chosen, strict=True)))
        assert bracket.closed
        assert bracket.lower.value == (min(counts) - 1 if counts else math.inf)


def test_radii_of_a_single_tree_are_exact() -> None:
    table, columns = SPREAD.to_numpy(dtype=float), hf.Columns.from_json(TOLD)
    columns = columns.in_order(list(SPREAD.columns))
    model = RandomForestClassifier(1, max_depth=4, bootstrap=False, random_state=0).fit(table, GRANTED)
    net = hf.Network.from_sklearn(model, columns=columns)
    cuts = tree_truth.cuts_of(model.estimators_, table.shape[1])

    def answer(rows: Any) -> Any:
        share = model.predict_proba(rows)
        return np.where(share[:, 0] == share[:, 1], -1, share.argmax(1))

    said = model.predict(table[:8])
    for norm in (0, 1, 2, math.inf):
        for row, bracket in enumerate(hf.radius(net, SPREAD[:8].astype(float), said, norm=norm)):
            wanted = tree_truth.radius(
                answer, columns, cuts, table[row].tolist(), int(said[row] == "yes"), norm
            )
            assert bracket.lower.value == pytest.approx(wanted, rel=1e-9)
            assert bracket.upper.value == pytest.approx(wanted, rel=1e-9)
            assert bracket.lower.value <= wanted * (1 + 1e-12)
            assert wanted * (1 - 1e-12) <= bracket.upper.value


@pytest.mark.parametrize(
    "model",
    [RandomForestClassifier(4, max_depth=5, random_state=0), LogisticRegression()],
    ids=["forest", "logistic"],
)
def test_a_pipeline_that_reads_words_is_read_through(model: Any) -> None:
    """One-hot encoders and scalers in a column transformer: proofs hold for rows of the frame, asked of the pipeline itself."""
    encode = make_column_transformer(
        (OneHotEncoder(drop="if_binary"), ["job", "city"]), (make_pipeline(StandardScaler()), ["debt"]), (MinMaxScaler(), ["age"]),
        remainder="passthrough",
    )  # fmt: skip
    pipeline = make_pipeline(encode, model).fit(PEOPLE, GRANTED)
    net = hf.Network.from_sklearn(pipeline, columns=hf.Columns.of(PEOPLE, scales="std"))
    assert net.columns is not None
    assert net.trees is not None or net.differentiable
    said = pipeline.predict(PEOPLE[:4])
    x = net.rows(PEOPLE[:4])
    for row, bracket in enumerate(
        hf.radius(net, PEOPLE[:4], said, methods=[hf.attacks.Corners(rounds=2), *proof(net)])
    ):
        assert 0 < bracket.lower.value <= bracket.upper.value
        region = Rows(
            x[row : row + 1],
            torch.tensor([bracket.lower.value], dtype=torch.float64),
            net.columns,
            net.domain,
        )
        inside = region.sample(300, RandomStreams.of(range(1), 1)).squeeze(1)
        assert set(pipeline.predict(net.columns.decode(inside))) == {said[row]}
    two = ChangedColumns(x, torch.full((4,), 2.0), net.columns, net.domain)
    points = two.sample(50, RandomStreams.of(range(4), 1))
    asked = pipeline.predict(net.columns.decode(points.flatten(0, 1)))
    assert net.classes is not None
    assert [net.classes[i] for i in net(points.flatten(0, 1)).argmax(1).tolist()] == asked.tolist()


def proof(net: hf.Network) -> list[hf.Method[Any]]:
    return [hf.certify.Leaves() if net.trees is not None else hf.certify.Certify()]


def test_a_pipeline_with_ordinal_words_is_read_and_answers_as_predict() -> None:
    encode = make_column_transformer((OrdinalEncoder(), ["job", "city"]), remainder="passthrough")
    pipeline = make_pipeline(encode, LogisticRegression(max_iter=900)).fit(PEOPLE, GRANTED)
    net = hf.Network.from_sklearn(pipeline, columns=hf.Columns.of(PEOPLE))
    assert net.differentiable
    assert net.classes is not None
    answers = net(net.rows(PEOPLE)).argmax(1).tolist()
    assert [net.classes[i] for i in answers] == pipeline.predict(PEOPLE).tolist()


def test_words_of_a_frame_reach_the_estimator_as_words() -> None:
    """A pipeline that reads words is asked with them; its witnesses are rows of the frame."""
    seen: list[pd.DataFrame] = []

    class Rule:
        classes_, n_features_in_, feature_names_in_ = np.array(["no", "yes"]), 5, np.array(PEOPLE.columns)

        def fit(self) -> None: ...

        def predict(self, frame: pd.DataFrame) -> Any:
            seen.append(frame)
            return np.where((frame.job == "smith") | (frame.age > 90), "yes", "no")

    net = hf.Network.from_sklearn(Rule(), columns=hf.Columns.of(PEOPLE))
    bakers = PEOPLE[PEOPLE.job == "baker"][:2]
    for row, bracket in zip(net.rows(bakers), hf.radius(net, bakers, ["no", "no"], norm=0), strict=True):
        assert net.columns is not None
        assert net.columns.changes(row.tolist(), bracket.upper.evidence.witness.tolist()) == [
            ("job", "baker", "smith")
        ]  # type: ignore[union-attr]
    assert all(frame.dtypes.equals(PEOPLE.dtypes) for frame in seen)


def test_no_method_that_follows_gradients_is_asked_about_trees() -> None:
    net, _, _, _, x, y = tree_truth.forest()
    found = hf.radius(net, x, y)
    assert {b.upper.evidence.method for b in found} <= {"Steps", "Leaves"}
    assert {b.lower.evidence.method for b in found} == {"Leaves"}


# ---- every type that a column of a DataFrame may have


def series_of(kind: str) -> Any:
    """Three values of the type."""
    made: dict[str, Any] = {
        "object of truth values": pd.Series([True, False, True], dtype=object),
        "object of several": pd.Series(["a", 1, 2.5], dtype=object),
        "object of dates": pd.Series([datetime.date(2020, 1, day) for day in (1, 2, 3)]),
        "object of lists": pd.Series([[1], [2], [3]]),
        "object of decimals": pd.Series([decimal.Decimal(number) for number in ("1.5", "2", "3")]),
        "object of bytes": pd.Series([b"a", b"b", b"a"]),
        "1 and True": pd.Series([1, True, 2], dtype=object),
        "text or None": pd.Series(["a", None, "a"]),
        "category": pd.Series(["a", "b", "a"], dtype="category"),
        "category of intervals": pd.Series(pd.interval_range(0, 3)).astype("category"),
        "datetime": pd.to_datetime(pd.Series(["2020-01-01", "2020-01-02", "2020-01-03"])),
        "timedelta": pd.to_timedelta(pd.Series([1, 2, 3]), unit="s"),
        "period": pd.Series(pd.period_range("2020", periods=3, freq="D")),
        "complex": pd.Series([1j, 2, 3]),
        "string": pd.Series(["a", "b", "a"], dtype="string"),
        "boolean, one missing": pd.Series([True, None, False], dtype="boolean"),
        "Int64, one missing": pd.Series([1, None, 2], dtype="Int64"),
        "infinite": pd.Series([1.0, math.inf, 2.0]),
        "ids": pd.Series([1, 2, 2**53 + 1], dtype="int64"),
        "largest uint64": pd.Series([1, 2, 2**64 - 1], dtype="uint64"),
        "sparse": pd.Series(pd.arrays.SparseArray([0, 0, 1])),
    }
    return made[kind] if kind in made else pd.Series([1, 0, 1], dtype=kind)


@pytest.mark.parametrize("scales", [None, "std", "range"])
@pytest.mark.parametrize(
    "kind",
    [
        "bool", "boolean", "int8", "Int64", "UInt8", "uint64", "float16", "float32", "Float64", "sparse", "category", "string",
        "object of truth values", "object of several",
    ],
)  # fmt: skip
def test_a_table_of_numbers_truth_values_or_words_comes_back_as_it_was(kind: str, scales: Any) -> None:
    frame = pd.DataFrame({"it": series_of(kind), "other": [0.0, 1.0, 2.0]})
    columns = hf.Columns.of(frame, scales=scales)
    again = columns.decode(columns.encode(frame))
    assert again["it"].tolist() == frame["it"].tolist()
    kept = hf.Columns.from_json(json.loads(json.dumps(columns.as_json())))
    assert kept.encode(frame).equal(columns.encode(frame))


def test_the_unit_of_truth_values_is_that_of_zeros_and_ones() -> None:
    frame = pd.DataFrame({"it": [True, False, True, False], "as numbers": [1.0, 0.0, 1.0, 0.0]})
    for scales in ("std", "range"):
        found = hf.Columns.of(frame, scales=scales)
        assert found.each[0].scale == found.each[1].scale == {"std": 0.5, "range": 1.0}[scales]


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("object of dates", "holds date"),
        ("object of lists", "holds list"),
        ("object of decimals", "holds Decimal"),
        ("object of bytes", "holds bytes"),
        ("1 and True", "two types"),
        ("text or None", "1 missing"),
        ("category of intervals", "holds Interval"),
        ("datetime", "holds Timestamp.*days since"),
        ("timedelta", "holds Timedelta"),
        ("period", "holds Period"),
        ("complex", "holds complex"),
        ("infinite", "missing or infinite"),
        ("ids", "beyond 9007199254740992.*astype"),
        ("largest uint64", "beyond 9007199254740992"),
    ],
)
def test_a_column_that_cannot_be_measured_is_refused_by_its_name(kind: str, message: str) -> None:
    with pytest.raises(BadInput, match=f"'it'.*{message}"):
        hf.Columns.of(pd.DataFrame({"it": series_of(kind)}))


@pytest.mark.parametrize("kind", ["boolean, one missing", "Int64, one missing"])
def test_a_missing_number_has_an_indicator_and_comes_back(kind: str) -> None:
    table = pd.DataFrame({"it": series_of(kind)})
    columns = hf.Columns.of(table)
    codes = columns.encode(table)
    assert codes[:, 1].tolist() == [0, 1, 0]
    pd.testing.assert_frame_equal(columns.decode(codes), table)


def test_an_empty_table_two_columns_of_one_name_and_other_tables_are_refused() -> None:
    with pytest.raises(BadInput, match="no rows"):
        hf.Columns.of(pd.DataFrame({"it": []}))
    with pytest.raises(BadInput, match="'it' occurs twice"):
        hf.Columns.of(pd.DataFrame([[1, 2]], columns=["it", "it"]))
    with pytest.raises(BadInput, match="DataFrame of pandas"):
        hf.Columns.of(np.zeros(3, dtype=[("it", float)]))


def test_dates_and_ids_are_no_numbers_for_named_columns_either() -> None:
    for kind in ("datetime", "ids"):
        with pytest.raises(BadInput, match="'it'"):
            hf.Columns.named(["it"]).encode(pd.DataFrame({"it": series_of(kind)}))
