"""Linear models and multi-layer perceptrons of scikit-learn as torch modules in float64, which every method
can bound."""

from typing import Any

import numpy as np
import torch
from torch import nn

from holdfast.network.estimators.library_code import is_unmodified
from holdfast.network.estimators.preparing import read_preparation
from holdfast.region.columns import Columns

ACTIVATIONS = {"identity": nn.Identity, "logistic": nn.Sigmoid, "tanh": nn.Tanh, "relu": nn.ReLU}
SEARCHES = ("GridSearchCV", "RandomizedSearchCV", "HalvingGridSearchCV", "HalvingRandomSearchCV")


def steps_of(estimator: Any) -> tuple[list[Any], Any]:
    """The steps before the model in a pipeline, and the model.

    A finished parameter search counts as its best estimator.
    """
    if (
        type(estimator).__name__ in SEARCHES
        and is_unmodified(estimator)
        and hasattr(estimator, "best_estimator_")
    ):
        return steps_of(estimator.best_estimator_)
    if type(estimator).__name__ == "Pipeline" and is_unmodified(estimator):
        before, last = [step for _, step in estimator.steps[:-1]], estimator.steps[-1][1]
        inner, model = steps_of(last)
        return [*before, *inner], model
    return [], estimator


def as_module(estimator: Any, columns: Columns) -> nn.Module | None:
    """The whole estimator as a module, or None if it is no such model.

    A binary classifier with one score s has the outputs 0 and s.
    """
    before, model = steps_of(estimator)
    layers = _layers(model) if is_unmodified(model) else None
    preparation = None if layers is None else read_preparation(before, columns)
    if preparation is None or layers is None:
        return None
    if getattr(model, "classes_", None) is not None and _outputs(layers) == 1:
        layers.append(_layer(np.array([[0.0], [1.0]]), np.zeros(2)))
    features = len(columns.features)
    sources = preparation.sources
    selection = (
        []
        if sources == tuple(range(features))
        else [_layer(np.eye(features)[list(sources)], np.zeros(len(sources)))]
    )
    return nn.Sequential(*selection, *preparation.scalers, *layers).double().eval()


def _layers(model: Any) -> list[nn.Module] | None:
    """The layers of a linear model or a perceptron, or None for another model."""
    from sklearn.linear_model._base import LinearClassifierMixin, LinearModel
    from sklearn.neural_network import MLPClassifier, MLPRegressor

    if isinstance(model, MLPClassifier | MLPRegressor):
        if model.out_activation_ not in ("identity", "logistic", "softmax"):
            return None
        layers: list[nn.Module] = []
        for weights, bias in zip(model.coefs_, model.intercepts_, strict=True):
            layers += [_layer(np.asarray(weights).T, bias), ACTIVATIONS[model.activation]()]
        return layers[:-1]  # the final softmax or sigmoid does not change which class has the largest score
    linear = isinstance(model, LinearClassifierMixin | LinearModel) or type(model).__name__ in (
        "SGDRegressor",
        "LinearSVR",
    )
    if not linear or not hasattr(model, "coef_") or hasattr(model.coef_, "toarray"):
        return None
    weights = np.atleast_2d(np.asarray(model.coef_, dtype=np.float64))
    return [_layer(weights, np.broadcast_to(np.asarray(model.intercept_, dtype=np.float64), (len(weights),)))]


def _layer(weights: Any, bias: Any) -> nn.Linear:
    layer = nn.Linear(weights.shape[1], weights.shape[0], dtype=torch.float64)
    with torch.no_grad():
        layer.weight.copy_(torch.as_tensor(np.array(weights, dtype=np.float64)))
        layer.bias.copy_(torch.as_tensor(np.array(bias, dtype=np.float64)))
    return layer


def _outputs(layers: list[nn.Module]) -> int:
    last = next(layer for layer in reversed(layers) if isinstance(layer, nn.Linear))
    return int(last.out_features)
