"""Estimators of scikit-learn, XGBoost and LightGBM as modules.

None of these libraries is needed to import this package.
"""

from holdfast.network.estimators.opening import OpenedEstimator, open_estimator

__all__ = ["OpenedEstimator", "open_estimator"]
