"""Support vector machines and Gaussian naive Bayes of scikit-learn as torch modules in float64.

A support vector machine with one decision value computes

    f(x) = sum over i of a_i k(s_i, x) + b,    s_i its support vectors, a_i = dual_coef_, b = intercept_,

with k(s, x) = s.x (linear), (gamma s.x + c)^degree (poly), tanh(gamma s.x + c) (sigmoid), or
exp(-gamma |s - x|^2) (rbf), where |s - x|^2 = |x|^2 - 2 s.x + |s|^2 needs the squares of the features once.

Gaussian naive Bayes scores class c by log prior_c - 1/2 sum over j of (log(2 pi v_cj) + (x_j - m_cj)^2 / v_cj).

References: Cortes, Vapnik, "Support-vector networks" (1995); Hastie, Tibshirani, Friedman, "The Elements of
Statistical Learning" (2009), section 6.6.3, for naive Bayes.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from holdfast.network.estimators.library_code import NotReadable
from holdfast.network.estimators.preparation_modules import linear

VECTOR_MACHINES = ("SVC", "NuSVC", "SVR", "NuSVR", "OneClassSVM")
# Largest number of numbers in the support vectors of a machine that is read as a module (chosen by hand).
MAX_SUPPORT_NUMBERS = 2**20


class VectorMachine(nn.Module):
    """The decision value of a support vector machine: (n, features) -> (n, 1)."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        support = np.asarray(model.support_vectors_, dtype=np.float64)
        self.kernel, self.gamma = str(model.kernel), float(model._gamma)
        self.offset, self.degree = float(model.coef0), int(model.degree)
        self.inner = linear(support, np.zeros(len(support)))
        self.outer = linear(np.asarray(model.dual_coef_), np.asarray(model.intercept_))
        self.register_buffer("squares", torch.from_numpy((support**2).sum(1)))
        self.squares: Tensor

    def forward(self, x: Tensor) -> Tensor:
        products = self.inner(x)
        if self.kernel == "rbf":
            distance = (x * x).sum(1, keepdim=True) - 2 * products + self.squares
            kernel = torch.exp(-self.gamma * distance)
        elif self.kernel == "linear":
            kernel = products
        else:
            affine = self.gamma * products + self.offset
            kernel = torch.tanh(affine) if self.kernel == "sigmoid" else affine**self.degree
        found: Tensor = self.outer(kernel)
        return found


class GaussianClasses(nn.Module):
    """The logarithm of prior times likelihood for each class: (n, features) -> (n, classes)."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        mean, variance = np.asarray(model.theta_, np.float64), np.asarray(model.var_, np.float64)
        constant = np.log(model.class_prior_) - 0.5 * np.log(2 * np.pi * variance).sum(1)
        # (x - m)^2 / v = x^2 / v - 2 x m / v + m^2 / v: each feature is squared once.
        self.square = linear(-0.5 / variance, constant - 0.5 * (mean**2 / variance).sum(1))
        self.line = linear(mean / variance, np.zeros(len(mean)))

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.square(x * x) + self.line(x)
        return found


def read_vector_machine(model: Any) -> nn.Module:
    """The machine's decision value; NotReadable if several decide by votes, or its kernel is not known."""
    kind = type(model).__name__
    if not isinstance(model.kernel, str) or model.kernel == "precomputed":
        raise NotReadable(f"{kind} has a kernel of its own")
    if len(getattr(model, "classes_", ())) > 2:
        raise NotReadable(f"{kind} with more than two classes decides by votes between pairs of classes")
    if hasattr(model.support_vectors_, "toarray"):
        raise NotReadable(f"{kind} was fitted on a sparse matrix")
    if model.support_vectors_.size > MAX_SUPPORT_NUMBERS:
        raise NotReadable(f"{kind} has {len(model.support_vectors_)} support vectors, too many to bound")
    return VectorMachine(model)
