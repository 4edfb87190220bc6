"""Estimators that combine others, as torch modules: pipelines, calibration, votes, stacks, bags, one against rest.

`read_scores` reads what decides: the value of a regressor (n, k), the score of a binary classifier (n, 1), or a
score for each class (n, classes). `read_probabilities` reads predict_proba, (n, classes). An estimator is read
only if all of its parts are; NotReadable names the part that is not.

References: Platt, "Probabilistic outputs for support vector machines" (1999), for calibration by a sigmoid;
Wolpert, "Stacked generalization" (1992).
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from holdfast.errors import BadInput
from holdfast.network.estimators.kernels import VECTOR_MACHINES, GaussianClasses, read_vector_machine
from holdfast.network.estimators.library_code import NotReadable, check_unmodified
from holdfast.network.estimators.linear import linear_layers, steps_of
from holdfast.network.estimators.preparation_modules import Elementwise, Joined, Prefix, linear, read_steps
from holdfast.network.estimators.scalers import numbers_of_scaler

# Functions that undo the transformation of a target, with their counterparts in torch.
TARGET_FUNCTIONS: dict[Any, Callable[[Tensor], Tensor]] = {
    np.expm1: torch.expm1,
    np.exp: torch.exp,
    np.square: torch.square,
    np.tanh: torch.tanh,
}


class Average(nn.Module):
    """The sum of the parts' outputs, each multiplied by its weight."""

    def __init__(self, parts: Sequence[nn.Module], weights: Sequence[float]) -> None:
        super().__init__()
        self.parts, self.weights = nn.ModuleList(parts), list(weights)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = sum(
            (weight * part(x) for part, weight in zip(self.parts, self.weights, strict=True)),
            start=torch.zeros_like(x[:, :1]),
        )
        return found


class BothProbabilities(nn.Module):
    """(n, 1) scores -> (n, 2): 1 - p and p with p = 1 / (1 + exp(-score))."""

    def forward(self, score: Tensor) -> Tensor:
        likely = torch.sigmoid(score)
        return torch.cat([1 - likely, likely], 1)


class Softmax(nn.Module):
    def forward(self, score: Tensor) -> Tensor:
        return score.softmax(1)


def as_module(estimator: Any, before: Prefix) -> nn.Module:
    """The whole estimator as a module. A binary classifier with one score s has the outputs 0 and s."""
    scores = read_scores(estimator, before)
    module = scores
    if getattr(estimator, "classes_", None) is not None and count_outputs(scores, before) == 1:
        module = nn.Sequential(scores, linear(np.array([[0.0], [1.0]]), np.zeros(2)))
    return module.double().eval()


def count_outputs(module: nn.Module, before: Prefix) -> int:
    """The number of outputs, from one evaluation at zero."""
    with torch.no_grad():
        return int(module.double()(torch.zeros((1, before.features), dtype=torch.float64)).shape[1])


def read_scores(estimator: Any, before: Prefix) -> nn.Module:
    """What decides, as a module of the row; see the module's first paragraph."""
    steps, model = steps_of(estimator)
    if steps:
        return read_scores(model, read_steps(steps, before))
    check_unmodified(model)
    kind = type(model).__name__
    layers = linear_layers(model)
    if layers is not None:
        return nn.Sequential(before.numbers(model), *layers)
    if kind in VECTOR_MACHINES:
        return nn.Sequential(before.numbers(model), read_vector_machine(model))
    if kind == "GaussianNB":
        return nn.Sequential(before.numbers(model), GaussianClasses(model))
    if kind == "OneVsRestClassifier":
        return _one_against_rest(model, before)
    if kind in ("StackingClassifier", "StackingRegressor"):
        return read_scores(model.final_estimator_, _read_stacked(model, before))
    if kind == "VotingRegressor":
        return _vote(model, before, read_scores)
    if kind == "BaggingRegressor":
        return _bag(model, before, read_scores)
    if kind == "TransformedTargetRegressor":
        return nn.Sequential(read_scores(model.regressor_, before), _target(model))
    return read_probabilities(model, before)


def read_probabilities(estimator: Any, before: Prefix) -> nn.Module:
    """predict_proba as a module of the row."""
    steps, model = steps_of(estimator)
    if steps:
        return read_probabilities(model, read_steps(steps, before))
    check_unmodified(model)
    kind = type(model).__name__
    if kind == "CalibratedClassifierCV":
        return _read_calibrated(model, before)
    if kind == "VotingClassifier":
        if model.voting != "soft":
            raise NotReadable("VotingClassifier counts votes (voting='hard')")
        return _vote(model, before, read_probabilities)
    if kind == "BaggingClassifier":
        return _bag(model, before, read_probabilities)
    if kind in ("MLPClassifier", "GaussianNB", "LogisticRegression", "LogisticRegressionCV"):
        scores = read_scores(model, before)
        binary = count_outputs(scores, before) == 1
        return nn.Sequential(scores, BothProbabilities() if binary else Softmax())
    if kind == "SGDClassifier" and model.loss == "log_loss" and len(model.classes_) == 2:
        return nn.Sequential(read_scores(model, before), BothProbabilities())
    raise NotReadable(f"{kind} has no formula that is known here")


def _one_against_rest(model: Any, before: Prefix) -> nn.Module:
    """The decision value of each class; of two classes only one estimator is fitted."""
    return Joined([read_scores(one, before) for one in model.estimators_])


def _vote(model: Any, before: Prefix, read: Callable[[Any, Prefix], nn.Module]) -> nn.Module:
    weights = [1.0] * len(model.estimators_)
    if model.weights is not None:
        kept = [w for (_, one), w in zip(model.estimators, model.weights, strict=True) if one != "drop"]
        weights = [float(weight) for weight in kept]
    return Average([read(one, before) for one in model.estimators_], [w / sum(weights) for w in weights])


def _bag(model: Any, before: Prefix, read: Callable[[Any, Prefix], nn.Module]) -> nn.Module:
    parts = [
        read(one, before.choose(model, list(which)))
        for one, which in zip(model.estimators_, model.estimators_features_, strict=True)
    ]
    return Average(parts, [1 / len(parts)] * len(parts))


def _read_stacked(model: Any, before: Prefix) -> Prefix:
    """The answers of the first layer, which the final estimator reads."""
    parts: list[nn.Module] = []
    for one, method in zip(model.estimators_, model.stack_method_, strict=True):
        if method == "predict_proba":
            part = read_probabilities(one, before)
            width = count_outputs(part, before)
            both = width == 2 and len(model.classes_) == 2
            parts.append(nn.Sequential(part, linear(np.eye(2)[1:], np.zeros(1))) if both else part)
        elif method == "decision_function" or not hasattr(one, "classes_"):
            parts.append(read_scores(one, before))
        else:
            raise NotReadable(f"{type(one).__name__} in the stack passes on the classes that it predicts")
    if model.passthrough:
        parts.append(before.numbers(model))
    joined = Joined(parts)
    return Prefix(None, joined, count_outputs(joined, before), before.features)


def _read_calibrated(model: Any, before: Prefix) -> nn.Module:
    """The mean over the folds of 1 / (1 + exp(a f(x) + b)), f the score of the fold's classifier."""
    if len(model.classes_) != 2:
        raise NotReadable(
            "CalibratedClassifierCV with more than two classes divides by a sum of probabilities"
        )
    parts = []
    for fold in model.calibrated_classifiers_:
        [calibrator] = fold.calibrators
        if type(calibrator).__name__ != "_SigmoidCalibration":
            raise NotReadable(
                f"CalibratedClassifierCV calibrates by method={model.method!r}, not by a sigmoid"
            )
        inner = fold.estimator
        if hasattr(inner, "decision_function"):
            score = read_scores(inner, before)
        else:
            score = nn.Sequential(read_probabilities(inner, before), linear(np.eye(2)[1:], np.zeros(1)))
        line = linear(np.array([[-calibrator.a_]]), np.array([-calibrator.b_]))
        parts.append(nn.Sequential(score, line, BothProbabilities()))
    return Average(parts, [1 / len(parts)] * len(parts))


def _target(model: Any) -> nn.Module:
    """The inverse transformation of the target."""
    inverse = model.transformer_
    kind = type(inverse).__name__
    if kind == "FunctionTransformer":
        function = next((own for one, own in TARGET_FUNCTIONS.items() if one is inverse.inverse_func), None)
        if function is None:
            raise NotReadable(
                "TransformedTargetRegressor's inverse function has no formula that is known here"
            )
        return Elementwise(function)
    try:
        mean, std = numbers_of_scaler(inverse, "the target's transformer")
    except BadInput as error:
        raise NotReadable(f"TransformedTargetRegressor: {error}") from error
    if mean is None and std is None:
        return nn.Identity()
    scale = torch.ones_like(mean) if std is None and mean is not None else std
    assert scale is not None
    return linear(np.diag(scale.numpy()), np.zeros(len(scale)) if mean is None else mean.numpy())
