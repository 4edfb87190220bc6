"""Linear models and multi-layer perceptrons of scikit-learn as torch modules in float64, which every method
can bound."""

from typing import Any

import numpy as np
from torch import nn

from holdfast.network.estimators.library_code import is_unmodified
from holdfast.network.estimators.preparation_modules import linear

ACTIVATIONS = {"identity": nn.Identity, "logistic": nn.Sigmoid, "tanh": nn.Tanh, "relu": nn.ReLU}
SEARCHES = ("GridSearchCV", "RandomizedSearchCV", "HalvingGridSearchCV", "HalvingRandomSearchCV")


def steps_of(estimator: Any) -> tuple[list[Any], Any]:
    """The steps before the model in a pipeline, and the model.

    A finished parameter search counts as its best estimator, a frozen estimator as what it holds.
    """
    if (
        type(estimator).__name__ in SEARCHES
        and is_unmodified(estimator)
        and hasattr(estimator, "best_estimator_")
    ):
        return steps_of(estimator.best_estimator_)
    if type(estimator).__name__ == "FrozenEstimator" and is_unmodified(estimator):
        return steps_of(estimator.estimator)
    if type(estimator).__name__ == "Pipeline" and is_unmodified(estimator):
        before, last = [step for _, step in estimator.steps[:-1]], estimator.steps[-1][1]
        inner, model = steps_of(last)
        return [*before, *inner], model
    return [], estimator


def linear_layers(model: Any) -> list[nn.Module] | None:
    """The layers of a linear model or a perceptron, or None for another model."""
    from sklearn.linear_model._base import LinearClassifierMixin, LinearModel
    from sklearn.neural_network import MLPClassifier, MLPRegressor

    if isinstance(model, MLPClassifier | MLPRegressor):
        if model.out_activation_ not in ("identity", "logistic", "softmax"):
            return None
        layers: list[nn.Module] = []
        for weights, bias in zip(model.coefs_, model.intercepts_, strict=True):
            layers += [linear(np.asarray(weights).T, bias), ACTIVATIONS[model.activation]()]
        return layers[:-1]  # the final softmax or sigmoid does not change which class has the largest score
    is_linear = isinstance(model, LinearClassifierMixin | LinearModel) or type(model).__name__ in (
        "SGDRegressor",
        "LinearSVR",
    )
    if not is_linear or not hasattr(model, "coef_") or hasattr(model.coef_, "toarray"):
        return None
    weights = np.atleast_2d(np.asarray(model.coef_, dtype=np.float64))
    return [linear(weights, np.broadcast_to(np.asarray(model.intercept_, dtype=np.float64), (len(weights),)))]
