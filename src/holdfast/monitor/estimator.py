"""A monitor with the interface of scikit-learn: fit, score_samples, predict.

Each sequence gets one score, the smallest robustness among its elements. A sequence whose score lies below the
threshold is an outlier (-1), others are inliers (1), as in scikit-learn's outlier detectors.
"""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, OutlierMixin
from sklearn.utils.validation import check_is_fitted

from holdfast.errors import BadInput
from holdfast.monitor.monitor import Monitor
from holdfast.monitor.score import Steps


class MonitorEstimator(OutlierMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Robustness scores of a recurrent network as an outlier detector.

    Args:
        net: a hf.Network of a recurrent model.
        mutation: the alternatives of each element, as for `hf.Monitor.fit`.
        mode: "auto", "exact", "sampled", "abstract" or "marble".
        k: which label must stay: that k elements later, or "final".
        threshold: sequences with a smaller score are outliers.
        seed: for random mutants and fitting.

    Attributes:
        monitor_: the fitted hf.Monitor.
    """

    def __init__(
        self,
        net: Any,
        mutation: Any = None,
        *,
        mode: Literal["auto", "exact", "sampled", "abstract", "marble"] = "auto",
        k: Steps = "final",
        threshold: float = 0.5,
        seed: int = 0,
    ) -> None:
        self.net = net
        self.mutation = mutation
        self.mode = mode
        self.k = k
        self.threshold = threshold
        self.seed = seed

    def fit(self, X: Sequence[Any], y: object = None) -> "MonitorEstimator":
        """Fit a monitor on sequences; y is ignored."""
        if not 0 <= self.threshold <= 1:
            raise BadInput(f"threshold {self.threshold}: a score lies between 0 and 1.")
        self.monitor_ = Monitor.fit(self.net, list(X), self.mutation, mode=self.mode, seed=self.seed)
        return self

    def score_samples(self, X: Sequence[Any]) -> NDArray[Any]:
        """(sequences,) the smallest score among the elements of each sequence."""
        check_is_fitted(self, "monitor_")
        scores = self.monitor_.score_all(list(X), self.k)
        found = np.array([np.nanmin([score.value for score in one], initial=np.inf) for one in scores])
        if not np.isfinite(found).all():
            place = int(np.flatnonzero(~np.isfinite(found))[0])
            raise BadInput(
                f"sequence {place} has no score: it is empty, shorter than k={self.k!r}, or all its elements are "
                "unknown."
            )
        return found

    def decision_function(self, X: Sequence[Any]) -> NDArray[Any]:
        """(sequences,) score - threshold: negative for outliers."""
        found: NDArray[Any] = self.score_samples(X) - self.threshold
        return found

    def predict(self, X: Sequence[Any]) -> NDArray[Any]:
        """(sequences,) -1 for a sequence whose score is below the threshold, else 1."""
        return np.where(self.decision_function(X) < 0, -1, 1)
