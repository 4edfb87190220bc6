"""What is certified or attacked of an estimator is what its own `predict` says: proved radii against a grid of predict calls."""

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import sklearn.model_selection
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.dummy import DummyClassifier
from sklearn.ensemble import (
    AdaBoostClassifier,
    BaggingClassifier,
    ExtraTreesClassifier,
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    StackingClassifier,
    VotingClassifier,
)
from sklearn.feature_selection import SelectKBest
from sklearn.frozen import FrozenEstimator
from sklearn.impute import SimpleImputer
from sklearn.linear_model import (
    LinearRegression,
    LogisticRegression,
    Perceptron,
    Ridge,
    RidgeClassifier,
    SGDClassifier,
)
from sklearn.model_selection import GridSearchCV
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import MultiOutputClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    KBinsDiscretizer,
    MinMaxScaler,
    OneHotEncoder,
    OrdinalEncoder,
    PolynomialFeatures,
    StandardScaler,
)
from sklearn.svm import SVC, LinearSVC, NuSVC
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

import holdfast as hf
from holdfast.errors import BadInput, Contradiction
from sizes import FULL

DRAW = np.random.default_rng(3)
X = DRAW.normal(size=(300, 3))
TWO = (X[:, 0] + 0.3 * DRAW.normal(size=300) > 0.8).astype(int)
THREE = TWO + (X[:, 0] + X[:, 1] > 1.5)
FORECAST = 3.0 * (X[:, 0] > 1) + 0.1 * DRAW.normal(size=300)
STEPS = np.linspace(0.02, 4, 200)
ALONG = np.concatenate(
    [np.eye(3), -np.eye(3), np.sign(np.random.default_rng(4).normal(size=(6, 3)))]
)  # of length 1 in the norm inf
SHORT = hf.Stop(queries=600)


def first_change(estimator: Any, x: Any) -> float:
    """How far along a few rays, in the norm inf, until `predict` says something else; infinite where it never does."""
    points = x + (ALONG[:, None] * STEPS[None, :, None])
    said = estimator.predict(points.reshape(-1, 3)).reshape(points.shape[:2])
    changed = said != estimator.predict(x)[0]
    return min((float(STEPS[row.argmax()]) for row in changed if row.any()), default=np.inf)


class FarOverride(LogisticRegression):
    """Answers as its parent does near the data, and otherwise where feature 2 is large."""

    def predict(self, X: Any) -> Any:
        return np.where(np.asarray(X)[:, 2] > 1.3, self.classes_[0], super().predict(X))


class TreeOverride(DecisionTreeClassifier):
    def predict(self, X: Any, check_input: bool = True) -> Any:
        return np.where(np.abs(np.asarray(X)[:, 2] - 1.25) < 0.1, self.classes_[-1], super().predict(X))


class ForestOverride(RandomForestClassifier):
    def predict_proba(self, X: Any) -> Any:
        found = super().predict_proba(X)
        return np.where((np.asarray(X)[:, 2] > 2)[:, None], found[:, ::-1], found)


class NarrowPipeline(Pipeline):
    def predict(self, X: Any, **more: Any) -> Any:
        return np.where(np.asarray(X)[:, 1] > 1.1, 1, super().predict(X))


class Bare(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier of one's own whose predict looks at another threshold than one half."""

    def fit(self, X: Any, y: Any) -> Any:
        self.inner_ = LogisticRegression().fit(X, y)
        self.classes_, self.n_features_in_ = self.inner_.classes_, 3
        return self

    def predict_proba(self, X: Any) -> Any:
        return self.inner_.predict_proba(X)

    def predict(self, X: Any) -> Any:
        return (self.predict_proba(X)[:, 1] > 0.1).astype(int)


def with_own_predict(model: Any) -> Any:
    """An instance whose predict was replaced after it was fitted."""
    inner = model.fit(X, TWO).predict
    model.predict = lambda rows: np.where(np.asarray(rows)[:, 2] > 1.7, 1, inner(rows))
    return model


def with_other_tree() -> Any:
    forest = RandomForestClassifier(5, max_depth=2, random_state=0).fit(X, TWO)
    forest.estimators_[0] = TreeOverride(max_depth=2).fit(X, TWO)
    return forest


def warm() -> Any:
    model = GradientBoostingClassifier(n_estimators=2, max_depth=1, warm_start=True, random_state=0).fit(
        X, TWO
    )
    return model.set_params(n_estimators=5).fit(X, TWO)


def with_gaps() -> Any:
    holes = np.where(np.random.default_rng(1).random(X.shape) < 0.2, np.nan, X)
    return HistGradientBoostingClassifier(max_iter=5, monotonic_cst=[1, 0, 0], min_samples_leaf=5).fit(
        holes, TWO
    )


def words() -> Any:
    table = np.column_stack([X[:, 0], X[:, 1], np.round(np.abs(X[:, 2]))])
    return HistGradientBoostingClassifier(max_iter=5, categorical_features=[2], min_samples_leaf=5).fit(
        table, TWO
    )


def weighted_columns() -> Any:
    parts = ColumnTransformer(
        [("a", StandardScaler(), [0, 1]), ("b", "passthrough", [2])], transformer_weights={"a": 2.0, "b": 0.5}
    )
    return make_pipeline(parts, DecisionTreeClassifier(max_depth=3)).fit(X, TWO)


def thresholded(name: str, **options: Any) -> Any:
    kind = getattr(sklearn.model_selection, name, None)
    if kind is None:
        pytest.skip("this scikit-learn has no thresholds")
    return kind(LogisticRegression(), **options).fit(X, TWO)


def boosted(**options: Any) -> Any:
    return GradientBoostingClassifier(
        n_estimators=3, max_depth=1, max_features=1, random_state=1, **options
    ).fit(X, TWO)


CASES: dict[str, Any] = {
    "boosted_init_tree": lambda: boosted(init=DecisionTreeClassifier(max_depth=1)),
    "boosted_init_linear": lambda: boosted(init=LogisticRegression()),
    "boosted_init_pipeline": lambda: boosted(init=make_pipeline(StandardScaler(), LogisticRegression())),
    "boosted_init_dummy": lambda: boosted(init=DummyClassifier(strategy="prior")),
    "boosted_init_zero": lambda: boosted(init="zero"),
    "boosted_init_default": boosted,
    "boosted_three": lambda: GradientBoostingClassifier(
        init=DecisionTreeClassifier(max_depth=1), n_estimators=2
    ).fit(X, THREE),
    "boosted_exponential": lambda: boosted(loss="exponential"),
    "boosted_warm": warm,
    "boosted_pruned": lambda: GradientBoostingClassifier(
        n_estimators=40, n_iter_no_change=2, max_depth=2
    ).fit(X, TWO),
    "histogram_gaps": with_gaps,
    "histogram_words": words,
    "forest_weights": lambda: RandomForestClassifier(
        5, max_depth=3, class_weight={0: 1, 1: 9}, random_state=0
    ).fit(X, TWO),
    "forest_monotone": lambda: RandomForestClassifier(
        5, max_depth=3, monotonic_cst=[1, -1, 0], random_state=0
    ).fit(X, TWO),
    "extra_bootstrap": lambda: ExtraTreesClassifier(4, max_depth=3, bootstrap=True, random_state=0).fit(
        X, THREE
    ),
    "forest_override": lambda: ForestOverride(5, max_depth=2, random_state=0).fit(X, TWO),
    "forest_other_tree": with_other_tree,
    "tree_override": lambda: TreeOverride(max_depth=2).fit(X, TWO),
    "tree_own_predict": lambda: with_own_predict(DecisionTreeClassifier(max_depth=2)),
    "tree_weighted_columns": weighted_columns,
    "linear_override": lambda: FarOverride().fit(X, TWO),
    "linear_own_predict": lambda: with_own_predict(LogisticRegression()),
    "linear_pipeline_override": lambda: NarrowPipeline(
        [("s", StandardScaler()), ("m", LogisticRegression())]
    ).fit(X, TWO),
    "linear_weights": lambda: LogisticRegression(class_weight={0: 1, 1: 30}).fit(X, THREE),
    "linear_discriminant": lambda: LinearDiscriminantAnalysis().fit(X, THREE),
    "linear_perceptron": lambda: Perceptron(random_state=0).fit(X, TWO),
    "linear_log_loss": lambda: SGDClassifier(loss="modified_huber", random_state=0).fit(X, THREE),
    "linear_ridge": lambda: make_pipeline(MinMaxScaler(), RidgeClassifier(class_weight="balanced")).fit(
        X, THREE
    ),
    "linear_search": lambda: GridSearchCV(LogisticRegression(), {"C": [0.1, 1]}, cv=2).fit(X, TWO),
    "perceptrons": lambda: MLPClassifier((5,), max_iter=30, random_state=0).fit(X, THREE),
    "transformed": lambda: make_pipeline(FunctionTransformer(np.tanh), LogisticRegression()).fit(X, TWO),
    "fixed_threshold": lambda: thresholded("FixedThresholdClassifier", threshold=0.05),
    "fixed_threshold_of_class_0": lambda: thresholded("FixedThresholdClassifier", threshold=0.7, pos_label=0),
    "fixed_threshold_of_scores": lambda: thresholded(
        "FixedThresholdClassifier", threshold=1.5, response_method="decision_function"
    ),
    "tuned_threshold": lambda: thresholded("TunedThresholdClassifierCV", scoring="recall", cv=2),
    "own_threshold": lambda: Bare().fit(X, TWO),
    "platt": lambda: CalibratedClassifierCV(SVC(), cv=2).fit(X, TWO),
    "svc_three": lambda: SVC(kernel="poly").fit(X, THREE),
    "nu_svc": lambda: NuSVC(nu=0.2).fit(X, TWO),
    "voting": lambda: VotingClassifier(
        [("a", LogisticRegression()), ("b", DecisionTreeClassifier(max_depth=2))]
    ).fit(X, TWO),
    "stacking": lambda: StackingClassifier([("a", DecisionTreeClassifier(max_depth=2))], cv=2).fit(X, TWO),
    "bagging": lambda: BaggingClassifier(
        DecisionTreeClassifier(max_depth=1), 4, max_features=2, random_state=0
    ).fit(X, TWO),
    "ada": lambda: AdaBoostClassifier(n_estimators=4, random_state=0).fit(X, TWO),
    "one_against_rest": lambda: OneVsRestClassifier(LogisticRegression()).fit(X, THREE),
    "neighbours": lambda: KNeighborsClassifier(4).fit(X, THREE),
    "votes_of_probabilities": lambda: VotingClassifier(
        [("a", LogisticRegression()), ("b", GaussianNB())], voting="soft", weights=[1, 3]
    ).fit(X, THREE),
    "stack_of_functions": lambda: StackingClassifier(
        [("a", LogisticRegression()), ("b", LinearSVC())], cv=2, passthrough=True
    ).fit(X, TWO),
    "bag_of_functions": lambda: BaggingClassifier(
        LogisticRegression(), 3, max_features=2, random_state=0
    ).fit(X, TWO),
    "vectors": lambda: make_pipeline(StandardScaler(), SVC()).fit(X[:60], TWO[:60]),
    "vectors_polynomial": lambda: SVC(kernel="poly", degree=2, coef0=1).fit(X[:60], TWO[:60]),
    "naive_bayes": lambda: GaussianNB().fit(X, THREE),
    "frozen_calibrated": lambda: CalibratedClassifierCV(
        FrozenEstimator(LogisticRegression().fit(X, TWO))
    ).fit(X, TWO),
    "isotonic": lambda: CalibratedClassifierCV(LogisticRegression(), method="isotonic", cv=2).fit(X, TWO),
    "imputed_products": lambda: make_pipeline(
        SimpleImputer(), PolynomialFeatures(2), LogisticRegression(max_iter=500)
    ).fit(X, TWO),
    "projected": lambda: make_pipeline(PCA(2, whiten=True), SelectKBest(k=1), LogisticRegression()).fit(
        X, TWO
    ),
    "imputed_forest": lambda: make_pipeline(
        SimpleImputer(), RandomForestClassifier(4, max_depth=3, random_state=0)
    ).fit(X, TWO),
    "imputed_with_indicator": lambda: make_pipeline(
        SimpleImputer(add_indicator=True), LogisticRegression()
    ).fit(np.where(np.random.default_rng(1).random(X.shape) < 0.1, np.nan, X), TWO),
}
READ = {  # of which something is proved; all others are black boxes
    "boosted_init_dummy", "boosted_init_zero", "boosted_init_default", "boosted_exponential", "boosted_warm", "boosted_pruned",
    "histogram_gaps", "forest_weights", "forest_monotone", "extra_bootstrap", "linear_weights", "linear_discriminant",
    "linear_perceptron", "linear_log_loss", "linear_ridge", "linear_search", "perceptrons", "transformed", "platt", "nu_svc",
    "one_against_rest", "votes_of_probabilities", "stack_of_functions", "bag_of_functions", "vectors", "vectors_polynomial",
    "naive_bayes", "frozen_calibrated", "imputed_products", "projected", "imputed_forest", "bagging", "ada",
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_certificates_and_witnesses_are_about_predict(name: str) -> None:
    model = CASES[name]()
    net = hf.Network.from_sklearn(model)
    assert (net.trees is not None or net.differentiable) == (name in READ), net.notes
    rows = X[[0, 1, 2, 3, int(TWO.argmax())]]
    said = model.predict(rows)
    away = net(torch.from_numpy(rows)).argmax(1)
    assert [net.labels[k] for k in away.tolist()] == said.tolist()  # type: ignore[index]
    # Proofs of differentiable networks take no queries; a search without end takes 0.3 CPU-s of each case.
    stop = None if name in READ and (FULL or net.trees is not None) else SHORT
    found = hf.radius(net, torch.from_numpy(rows), said, stop=stop)
    assert any(bracket.lower.value > 0 for bracket in found) == (name in READ)
    for row, label, bracket in zip(rows, said, found, strict=True):
        assert bracket.lower.value <= first_change(model, row[None])
        witness = bracket.upper.evidence.witness
        if witness is not None:
            assert model.predict(witness.numpy()[None])[0] != label
            assert np.abs(witness.numpy() - row).max() <= bracket.upper.value * (1 + 1e-9)


def test_no_boosting_with_an_estimator_at_its_beginning_is_proved() -> None:
    """The issue's own cases: the trees never read the feature on which the first estimator decides."""
    for seed in range(6):
        draw = np.random.default_rng(seed)
        table = draw.normal(size=(400, 3))
        y = (table[:, 0] > 1.0).astype(int) ^ (draw.random(400) < 0.1)
        first = DecisionTreeClassifier(max_depth=1)
        model = GradientBoostingClassifier(
            init=first, n_estimators=3, max_depth=1, max_features=1, random_state=seed
        ).fit(table, y)
        net = hf.Network.from_sklearn(model)
        assert net.trees is None
        assert "add to the predictions of init=DecisionTreeClassifier" in net.notes[0]
        t = 3.0 * (table[:, 0] > 1)
        forecast = GradientBoostingRegressor(
            init=DecisionTreeRegressor(max_depth=1), n_estimators=2, max_depth=1, random_state=seed
        )
        assert hf.Network.from_sklearn(forecast.fit(table, t)).trees is None


def test_sums_that_are_no_answers_are_not_read() -> None:
    boosted = HistGradientBoostingRegressor(loss="poisson", max_iter=3, min_samples_leaf=5).fit(
        X, np.exp(X[:, 0])
    )
    net = hf.Network.from_sklearn(boosted)
    assert net.trees is None
    assert "no sum of its trees (loss='poisson')" in net.notes[0]


def test_a_threshold_is_measured_as_a_margin() -> None:
    """Outputs 0 and probability - threshold, so that a search follows what predict says."""
    model = thresholded("FixedThresholdClassifier", threshold=0.05)
    net = hf.Network.from_sklearn(model)
    outputs = net(torch.from_numpy(X)).numpy()
    np.testing.assert_allclose(outputs[:, 1] - outputs[:, 0], model.predict_proba(X)[:, 1] - 0.05, atol=1e-12)
    assert (outputs.argmax(1) == model.predict(X)).all()


def test_platt_s_probabilities_do_not_decide() -> None:
    """An SVC whose probabilities were fitted for other labels: its decision function is what predict says."""

    class Platt(SVC):
        def predict_proba(self, X: Any) -> Any:
            likely = 1 / (1 + np.exp(-2 * (self.decision_function(X) - 0.7)))
            return np.stack([1 - likely, likely], 1)

    net = hf.Network.from_sklearn(Platt().fit(X, TWO))
    assert (net(torch.from_numpy(X)).argmax(1).numpy() == SVC().fit(X, TWO).predict(X)).all()
    assert not net.differentiable


def test_where_scores_and_predict_differ_a_note_says_so() -> None:
    net = hf.Network.from_sklearn(Bare().fit(X, TWO))
    assert any("measured by predict" in note for note in net.notes)
    assert (net(torch.from_numpy(X)).argmax(1).numpy() == Bare().fit(X, TWO).predict(X)).all()


def test_a_tie_is_broken_as_predict_breaks_it() -> None:
    """Two trees of which each says another class: predict takes the first, so this is no witness against it."""
    forest = RandomForestClassifier(2, max_depth=1, random_state=0).fit(X, TWO)
    net = hf.Network.from_sklearn(forest)
    grid = np.random.default_rng(0).normal(size=(500, 3)) * 2
    assert (net(torch.from_numpy(grid)).argmax(1).numpy() == forest.predict(grid)).all()


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: MultiOutputClassifier(LogisticRegression()).fit(X, np.stack([TWO, 1 - TWO], 1)),
            "several questions at once",
        ),
        (lambda: RandomForestClassifier(3).fit(X, np.stack([TWO, 1 - TWO], 1)), "several questions at once"),
        (lambda: RidgeClassifier().fit(X, np.stack([TWO, 1 - TWO, TWO], 1)), "several questions at once"),
        (lambda: with_strange_labels(), "'unsure', which is none of the estimator's classes 0, 1"),
    ],
)
def test_what_predict_says_must_be_one_of_the_classes(build: Any, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        hf.Network.from_sklearn(build())


def with_strange_labels() -> Any:
    model = LogisticRegression().fit(X, TWO)
    model.predict = lambda rows: np.full(len(rows), "unsure")
    return model


def test_what_is_not_what_was_read_is_found_out_after_the_proof() -> None:
    """A reader that were wrong: the estimator says otherwise far away, where no probe of the opening looked."""

    def lying(model: Any) -> hf.Network:
        net = hf.Network.from_sklearn(model.fit(X, TWO))
        own = net.itself or net
        said: Any = own.module.model.predicted  # type: ignore[union-attr]
        own.module.model.predicted = replace(
            said, predict=lambda rows: np.where(np.asarray(rows)[:, 2] > 0.2, 1, said.predict(rows))
        )  # type: ignore[union-attr]
        return net

    x, y = torch.zeros(1, 3, dtype=torch.float64), [0]
    with pytest.raises(Contradiction, match="itself breaks the property within"):
        hf.radius(lying(LogisticRegression()), x, y, methods=[hf.certify.Certify()])
    [bracket] = hf.radius(lying(DecisionTreeClassifier(max_depth=1)), x, y, methods=[hf.certify.Leaves()])
    assert bracket.lower.value == 0  # its answers are not those of its leaves, which is seen before the proof


def test_a_linear_regression_keeps_its_proof() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        net = hf.Network.from_sklearn(LinearRegression().fit(X, FORECAST))
        [bracket] = hf.radius(net, torch.zeros(1, 3, dtype=torch.float64), property=hf.Within(0.5))
    assert 0 < bracket.lower.value <= bracket.upper.value < np.inf


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (
            lambda: make_pipeline(KBinsDiscretizer(3), LogisticRegression()).fit(X, TWO),
            "the step KBinsDiscretizer before the model is not supported",
        ),
        (
            lambda: make_pipeline(FunctionTransformer(np.floor), LogisticRegression()).fit(X, TWO),
            "the step FunctionTransformer calls floor, whose formula is not known here",
        ),
        (
            lambda: VotingClassifier(
                [("a", LogisticRegression()), ("b", KNeighborsClassifier())], voting="soft"
            ).fit(X, TWO),
            "KNeighborsClassifier has no formula that is known here",
        ),
        (CASES["voting"], "VotingClassifier counts votes"),
        (CASES["svc_three"], "SVC with more than two classes decides by votes between pairs of classes"),
        (CASES["isotonic"], "calibrates by method='isotonic', not by a sigmoid"),
        (CASES["imputed_with_indicator"], "the step SimpleImputer before the model"),
        (
            lambda: make_pipeline(KBinsDiscretizer(3), DecisionTreeClassifier(max_depth=2)).fit(X, TWO),
            "the step KBinsDiscretizer before the model does more than scale each feature",
        ),
    ],
)
def test_a_note_names_the_part_that_stops_a_proof(build: Any, reason: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        net = hf.Network.from_sklearn(build())
    assert net.notes[0].startswith("black box: no gradients, nothing can be proved; ")
    assert reason in net.notes[0]


def test_words_are_encoded_by_the_pipeline_of_a_column_transformer() -> None:
    """Imputers, ordinal codes and one-hot codes of words, within parts of a column transformer."""
    table = pd.DataFrame(
        {
            "size": X[:, 0],
            "colour": np.where(X[:, 1] > 0, "red", "blue"),
            "grade": np.array(list("abc"))[THREE],
        }
    )
    parts = ColumnTransformer(
        [
            ("numbers", make_pipeline(SimpleImputer(), StandardScaler()), ["size"]),
            ("colours", make_pipeline(SimpleImputer(strategy="most_frequent"), OneHotEncoder()), ["colour"]),
            ("grades", OrdinalEncoder(), ["grade"]),
        ]
    )
    model = make_pipeline(parts, LogisticRegression()).fit(table, TWO)
    net = hf.Network.from_sklearn(model, columns=hf.Columns.of(table))
    assert net.differentiable, net.notes
    rows = net.rows(table)
    assert (net(rows).argmax(1).numpy() == model.predict(table)).all()
    said = model.predict(table[:6])
    for k, bracket in enumerate(hf.radius(net, table[:6], said, norm=0)):
        changed = [
            model.predict(table[k : k + 1].assign(colour=colour, grade=grade))[0]
            for colour in ("red", "blue")
            for grade in "abc"
        ]
        most = max(
            (colour != table.colour[k]) + (grade != table.grade[k]) if answer == said[k] else 0
            for answer, (colour, grade) in zip(
                changed, [(c, g) for c in ("red", "blue") for g in "abc"], strict=True
            )
        )
        if bracket.lower.value >= 2:
            assert most == 2
            assert set(changed) == {said[k]}


def test_a_target_is_transformed_back() -> None:
    grown = np.exp(0.3 * X[:, 0] + 0.1 * X[:, 1])
    model = TransformedTargetRegressor(Ridge(), func=np.log1p, inverse_func=np.expm1).fit(X, grown)
    net = hf.Network.from_sklearn(model)
    assert net.differentiable, net.notes
    np.testing.assert_allclose(net(torch.from_numpy(X))[:, 0].numpy(), model.predict(X), rtol=1e-9)
