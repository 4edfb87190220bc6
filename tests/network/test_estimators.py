"""Fitted estimators as networks: what they answer, what is read of them, and how a run knows them again."""

import math
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.ensemble import (
    ExtraTreesClassifier,
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge, RidgeClassifier, SGDClassifier
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import KBinsDiscretizer, MaxAbsScaler, MinMaxScaler, RobustScaler, StandardScaler
from sklearn.svm import LinearSVC
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

import holdfast as hf
from holdfast.errors import BadInput
from holdfast.network.callable_fingerprint import hash_callable

GENERATOR = np.random.default_rng(0)
TABLE = pd.DataFrame(
    GENERATOR.normal(size=(90, 3)) * [1, 5, 0.1] + [0, 20, 3], columns=["age", "debt", "rate"]
)
SCORE = (TABLE.age + (TABLE.debt - 20) / 5 + GENERATOR.normal(0, 0.3, 90)).to_numpy()
TWO, THREE = (
    np.where(SCORE > 0, "yes", "no"),
    np.array(["low", "mid", "top"])[np.digitize(SCORE, [-0.7, 0.7])],
)

LINEAR: list[Any] = [
    LogisticRegression(), make_pipeline(StandardScaler(), LogisticRegression()), make_pipeline(MinMaxScaler(), LinearSVC()),
    make_pipeline(RobustScaler(), MaxAbsScaler(), RidgeClassifier()), make_pipeline(StandardScaler(), SGDClassifier(random_state=0)),
    make_pipeline(StandardScaler(), MLPClassifier((4,), activation="tanh", max_iter=20, random_state=0)),
    make_pipeline("passthrough", MLPClassifier((3, 3), max_iter=20, random_state=0)),
]  # fmt: skip
TREES: list[Any] = [
    DecisionTreeClassifier(max_depth=4), RandomForestClassifier(5, random_state=0), ExtraTreesClassifier(5, random_state=0),
    GradientBoostingClassifier(n_estimators=4), HistGradientBoostingClassifier(max_iter=4, min_samples_leaf=5),
    make_pipeline(StandardScaler(), RandomForestClassifier(4, random_state=0)),
    make_pipeline(MinMaxScaler(), HistGradientBoostingClassifier(max_iter=3, min_samples_leaf=5)),
]  # fmt: skip
REGRESSORS: list[Any] = [
    LinearRegression(), make_pipeline(StandardScaler(), Ridge()),
    make_pipeline(StandardScaler(), MLPRegressor(hidden_layer_sizes=(4,), max_iter=20)),
    DecisionTreeRegressor(max_depth=4), RandomForestRegressor(4), GradientBoostingRegressor(n_estimators=4),
    HistGradientBoostingRegressor(max_iter=4, min_samples_leaf=5),
]  # fmt: skip


def named(estimator: Any) -> str:
    return "_".join(type(step).__name__ for _, step in getattr(estimator, "steps", [("", estimator)]))


def says(net: hf.Network, points: np.ndarray[Any, Any]) -> list[str]:
    assert net.classes is not None
    return [net.classes[i] for i in net(torch.from_numpy(points)).argmax(1).tolist()]


@pytest.mark.filterwarnings("ignore:.*converge")
@pytest.mark.parametrize("labels", [TWO, THREE], ids=["two", "three"])
@pytest.mark.parametrize("estimator", [*LINEAR, *TREES], ids=named)
def test_an_estimator_says_what_it_says_itself(estimator: Any, labels: Any) -> None:
    """Whether it was read or is asked; and never with a warning that names are missing."""
    estimator.fit(TABLE, labels)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        net = hf.Network.from_sklearn(estimator)
        away = TABLE.to_numpy() + np.random.default_rng(1).normal(size=TABLE.shape) * [1, 5, 0.1]
        assert says(net, away) == estimator.predict(pd.DataFrame(away, columns=TABLE.columns)).tolist()
    assert net.columns is not None
    assert net.columns.features == ("age", "debt", "rate")
    assert net.differentiable == (estimator in LINEAR)
    assert (net.trees is not None) == (estimator in TREES)
    assert net.dtype == torch.float64


@pytest.mark.filterwarnings("ignore:.*converge")
@pytest.mark.parametrize("estimator", REGRESSORS, ids=named)
def test_a_regressor_has_one_output(estimator: Any) -> None:
    estimator.fit(TABLE, SCORE)
    net = hf.Network.from_sklearn(estimator)
    np.testing.assert_allclose(net(net.rows(TABLE))[:, 0].numpy(), estimator.predict(TABLE), rtol=1e-9)
    assert net.differentiable or net.trees is not None
    region = hf.Ball(net.rows(TABLE[:2]), 0.3)
    for bracket in hf.worst(
        net,
        region,
        hf.property.Linear.of([1.0], batch=2),
        methods=[hf.attacks.Corners(rounds=1), *proofs(net)],
    ):
        assert -math.inf < bracket.lower.value <= bracket.upper.value


def proofs(net: hf.Network) -> list[hf.Method[Any]]:
    return [hf.certify.Leaves() if net.trees is not None else hf.certify.Certify()]


def test_leaves_bound_the_score_over_a_box_of_shares() -> None:
    """A single tree over a box: the certified bound is the least value among all cells that the box meets."""
    estimator = DecisionTreeRegressor(max_depth=4, random_state=0).fit(
        TABLE.to_numpy(), np.arange(len(TABLE)) % 7
    )
    net = hf.Network.from_sklearn(estimator)
    assert net.trees is not None
    x = torch.tensor(TABLE[:4].to_numpy())
    region = hf.region.Features(x, 0.5, shares=torch.tensor([1.0, 0.0, 0.3]).expand(4, 3))
    found = hf.worst(net, region, hf.property.Linear.of([1.0], batch=4), methods=[hf.certify.Leaves()])
    lower, upper = region.enclosing_box()
    for row, bracket in enumerate(found):
        ends = []
        for feature in range(3):
            low, high = lower[row, feature], upper[row, feature]
            cuts = net.trees.thresholds(feature)
            tried = torch.cat(
                [low[None], high[None], cuts, torch.nextafter(cuts, torch.full_like(cuts, math.inf))]
            )
            ends.append(tried[(tried >= low) & (tried <= high)])
        least = float(estimator.predict(torch.cartesian_prod(*ends).numpy()).min())
        assert bracket.lower.value <= least
        assert bracket.lower.value == pytest.approx(least, abs=1e-9)


@pytest.mark.parametrize("estimator", TREES, ids=named)
def test_leaves_are_boxes_to_the_last_number(estimator: Any) -> None:
    """On both sides of every threshold, however the estimator rounds and scales: the sum over leaves is its own."""
    estimator.fit(TABLE.to_numpy(), THREE)
    net = hf.Network.from_sklearn(estimator)
    assert net.trees is not None
    for feature in range(3):
        ends = net.trees.thresholds(feature)
        if not len(ends):
            continue
        for numbers in (
            ends,
            torch.nextafter(ends, torch.full_like(ends, math.inf)),
            torch.nextafter(ends, torch.full_like(ends, -math.inf)),
        ):
            points = torch.tensor(TABLE.to_numpy())[torch.arange(len(ends)) % 90]
            points[:, feature] = numbers
            torch.testing.assert_close(net(points), net.trees.sum(points), rtol=1e-12, atol=1e-12)
            assert bool((net.trees.holds(points).sum(1) == net.trees.count).all())


def test_what_answers_otherwise_than_it_was_read_is_a_black_box() -> None:
    class Moody(LogisticRegression):
        def decision_function(self, X: Any) -> Any:
            return super().decision_function(X) + (np.asarray(X)[:, 0] > 20)

    class Late(DecisionTreeClassifier):
        def predict_proba(self, X: Any, check_input: bool = True) -> Any:
            return super().predict_proba(np.asarray(X) + 1e-3, check_input)

    for estimator in (
        Moody(),
        Late(max_depth=3),
        make_pipeline(
            KBinsDiscretizer(3, quantile_method="averaged_inverted_cdf"), LogisticRegression(max_iter=1000)
        ),
        KNeighborsClassifier(),
    ):
        net = hf.Network.from_sklearn(estimator.fit(TABLE.to_numpy(), TWO))
        assert not net.differentiable
        assert net.trees is None
        assert "black box" in net.notes[0]


def test_the_radius_of_a_linear_classifier_is_its_distance() -> None:
    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(TABLE, TWO)
    net = hf.Network.from_sklearn(model)
    slope = model[-1].coef_[0] / model[0].scale_
    wanted = np.abs(model.decision_function(TABLE[:4])) / np.linalg.norm(slope)
    said = model.predict(TABLE[:4])
    for bracket, distance in zip(hf.radius(net, TABLE[:4], said, norm=2), wanted, strict=True):
        assert bracket.lower.value <= distance * (1 + 1e-9)
        assert bracket.lower.value == pytest.approx(distance, rel=0.01)
        assert distance * (1 - 1e-9) <= bracket.upper.value <= distance * 1.01


def test_a_witness_of_what_was_read_must_break_the_estimator_too() -> None:
    net = hf.Network.from_sklearn(LogisticRegression().fit(TABLE, TWO))
    assert net.itself is not None
    net.itself.module = torch.nn.Sequential(torch.nn.Linear(3, 2).double()).requires_grad_(False)
    net.itself.module[0].weight.zero_()
    net.itself.module[0].bias.copy_(torch.tensor([1.0, 0.0]))  # says "no" whatever it is asked
    [bracket] = (
        hf.radius(net, TABLE[:1], ["no"], norm=2)
        if TWO[0] == "no"
        else hf.radius(net, TABLE[TWO == "no"][:1], ["no"], norm=2)
    )
    assert bracket.upper.value == math.inf


def test_two_forests_have_two_fingerprints_and_one_fit_again_has_its_own() -> None:
    def forest(seed: int) -> Any:
        return RandomForestClassifier(4, random_state=seed).fit(TABLE, TWO)

    assert (
        hash_callable(forest(0).predict)
        == hash_callable(forest(0).predict)
        != hash_callable(forest(1).predict)
    )
    for estimator in [*LINEAR[:2], *TREES]:
        first = hash_callable(estimator.fit(TABLE, TWO).predict)
        assert first[0]
        assert first != hash_callable(estimator.fit(TABLE[:80], TWO[:80]).predict)
    assert hf.Network.from_sklearn(forest(0)).fingerprint == hash_callable(forest(0).predict)[0]


@pytest.mark.parametrize("library", ["xgboost.XGBClassifier", "lightgbm.LGBMClassifier"])
def test_boosted_trees_of_other_libraries(library: str) -> None:
    module, _, kind = library.partition(".")
    made = getattr(pytest.importorskip(module), kind)
    options = {"verbose": -1, "min_child_samples": 5} if module == "lightgbm" else {}
    for labels in (SCORE > 0, np.digitize(SCORE, [-0.7, 0.7])):
        model = made(n_estimators=4, **options).fit(TABLE, labels.astype(int))
        net = hf.Network.from_sklearn(model)
        assert net.trees is not None
        assert net(net.rows(TABLE)).argmax(1).tolist() == model.predict(TABLE).tolist()
        assert hash_callable(model.predict) != hash_callable(
            made(n_estimators=3, **options).fit(TABLE, labels.astype(int)).predict
        )
        for bracket in hf.radius(net, TABLE[:3], model.predict(TABLE[:3])):
            assert 0 < bracket.lower.value <= bracket.upper.value < math.inf


REFUSED = [
    (lambda: hf.Network.from_sklearn(LogisticRegression), "got the class LogisticRegression"),
    (lambda: hf.Network.from_sklearn(LogisticRegression()), "is not fitted yet"),
    (lambda: hf.Network.from_sklearn(len), "needs a fitted estimator"),
    (
        lambda: hf.Network.from_sklearn(
            LogisticRegression().fit(TABLE, TWO), columns=hf.Columns.named(["age", "debt"])
        ),
        "also has 'rate'",
    ),
    (
        lambda: hf.radius(
            hf.Network.from_sklearn(LogisticRegression().fit(TABLE, TWO)), TABLE[:1], ["maybe"]
        ),
        "'maybe' is none of",
    ),
    (
        lambda: hf.radius(
            hf.Network.from_sklearn(LogisticRegression().fit(TABLE, TWO)), TABLE[["age"]], ["no"] * len(TABLE)
        ),
        "no column 'debt'",
    ),
]


@pytest.mark.parametrize(
    ("build", "message"), REFUSED, ids=[message.replace(" ", "_") for _, message in REFUSED]
)
def test_what_is_no_estimator_or_does_not_fit_it_is_refused_in_words(build: Any, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        build()
